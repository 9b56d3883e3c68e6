/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process of a soak: a producer or a consumer of a partition that the two have to themselves.
 *
 *   soak produce|consume ADDRESS PARTITION PACE_MS
 *
 * The producer puts batches of rows, overwrites the large cell of every other row, and then publishes
 * "id", which says what the row's cells must hold. The consumer fetches rows that have all fields,
 * reads and compares them, clears them, and puts one row into PARTITION.credit, which the producer
 * fetches and clears before it goes on: so BATCHES_AHEAD bounds what lies in the store. The producer
 * pauses for PACE_MS after each batch.
 *
 * Prints "connected", "working" after the first batch, and, when its standard input ends,
 * "worked N"; "bytes differ" and status 2 when they do.
 */
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "proc.h"

#define ROWS 8u /* of a batch */
#define BATCHES_AHEAD 3u
#define SMALL_BYTES 200u
#define LARGE_BYTES_MIN 20000u
#define LARGE_BYTES_SPAN 380000u
#define WAIT_MS 500 /* between looks at the standard input */

typedef struct side {
    tq_client_t *client;
    const char *partition;
    char credit[256]; /* the partition of that */
    int pace_ms;
} side_t;

/* What "id" says of its row. */
typedef struct row_id {
    uint64_t number;
    uint64_t version; /* of the large cell */
} row_id_t;

/* Has the standard input ended, or does it within ms? */
static bool is_over(int ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&in, 1, ms) != 0;
}

/* ---- contents ---------------------------------------------------------------------------------- */

static uint64_t seed_of(const side_t *side, row_id_t id, unsigned field)
{
    uint64_t seed = UINT64_C(14695981039346656037);

    for (const char *at = side->partition; *at; at++)
        seed = (seed ^ (uint8_t)*at) * UINT64_C(1099511628211);
    return (seed ^ id.number * 8 ^ id.version * 4 ^ field) * UINT64_C(1099511628211) | 1;
}

static uint64_t next_word(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

static void fill(uint64_t seed, void *data, size_t len)
{
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = next_word(&seed);

        memcpy((char *)data + at, &word, len - at < 8 ? len - at : 8);
    }
}

static void compare(uint64_t seed, const void *data, size_t len, size_t len_wanted)
{
    bool is_same = len == len_wanted;

    for (size_t at = 0; is_same && at < len; at += 8) {
        uint64_t word = next_word(&seed);

        is_same = memcmp((const char *)data + at, &word, len - at < 8 ? len - at : 8) == 0;
    }
    if (!is_same) {
        say("bytes differ");
        exit(2);
    }
}

static size_t large_bytes(row_id_t id)
{
    return LARGE_BYTES_MIN + (id.number * 7919 + id.version * 104729) % LARGE_BYTES_SPAN;
}

/* ---- calls ------------------------------------------------------------------------------------- */

/* Fetches cnt rows that have the fields; NULL when none came in time. */
static tq_op_t *fetched(const side_t *side, const char *partition, const tq_strs_t *fields,
                        uint32_t cnt)
{
    tq_fetch_args_t args = {.partition = partition,
                            .task = "soak",
                            .rows_cnt = cnt,
                            .timeout_ms = WAIT_MS,
                            .fields = fields,
                            .mode = TQ_FETCH};
    tq_error_t err;
    tq_op_t *op = NULL;

    if (tq_fetch_submit(side->client, NULL, &args, NULL, &op, &err) != TQ_OK)
        fail(err.status, err.text);
    tq_op_wait(op, -1);
    if (tq_op_status(op) == TQ_OK)
        return op;
    if (tq_op_status(op) != TQ_E_NOT_READY)
        fail(tq_op_status(op), tq_op_error(op));
    tq_op_free(op);
    return NULL;
}

static void clear(const side_t *side, const char *partition, const tq_op_t *rows)
{
    const tq_result_t *result = tq_op_result(rows);
    tq_clear_args_t args = {
        .partition = partition, .rows_cnt = result->rows_cnt, .rows = result->rows};
    tq_error_t err;
    tq_op_t *op = NULL;

    done(tq_clear_submit(side->client, NULL, &args, NULL, &op, &err), &err, &op);
    tq_op_free(op);
}

static tq_op_t *put(const side_t *side, const tq_put_args_t *args)
{
    tq_error_t err;
    tq_op_t *op = NULL;

    done(tq_put_submit(side->client, NULL, args, NULL, &op, &err), &err, &op);
    return op;
}

/* ---- the two sides ----------------------------------------------------------------------------- */

static tq_column_t each_column(const char *field, const tq_cell_t *cells)
{
    return (tq_column_t){.field = field, .layout = TQ_LAYOUT_EACH, .cells = cells};
}

static tq_cell_t cell(const side_t *side, row_id_t id, unsigned field, size_t len, void *memory)
{
    fill(seed_of(side, id, field), memory, len);
    return (tq_cell_t){.data = memory, .desc = {.encoding = TQ_ENC_BYTES, .len = len}};
}

static void produce_batch(const side_t *side, uint64_t first, char *memory)
{
    char small[ROWS][SMALL_BYTES], names[ROWS][32], bytes[ROWS * 32];
    uint32_t offsets[ROWS + 1] = {0};
    row_id_t ids[ROWS];
    tq_cell_t smalls[ROWS], larges[ROWS];
    tq_row_t rows[ROWS];
    size_t at = 0;

    for (unsigned i = 0; i < ROWS; i++) {
        ids[i] = (row_id_t){.number = first + i};
        smalls[i] = cell(side, ids[i], 1, SMALL_BYTES, small[i]);
        larges[i] = cell(side, ids[i], 2, large_bytes(ids[i]), memory + at);
        at += large_bytes(ids[i]);
        int len = snprintf(names[i], sizeof names[i], "row-%llu", (unsigned long long)(first + i));
        memcpy(bytes + offsets[i], names[i], (size_t)len);
        offsets[i + 1] = offsets[i] + (uint32_t)len;
    }
    tq_strs_t keys = {ROWS, offsets, bytes};
    tq_column_t columns[2] = {each_column("small", smalls), each_column("large", larges)};
    tq_put_args_t args = {.partition = side->partition,
                          .rows_cnt = ROWS,
                          .keys = &keys,
                          .columns_cnt = 2,
                          .columns = columns};
    tq_op_t *op = put(side, &args);
    memcpy(rows, tq_op_result(op)->rows, sizeof rows);
    tq_op_free(op);

    tq_row_t again[ROWS / 2];
    at = 0;
    for (unsigned i = 0; i < ROWS / 2; i++) {
        row_id_t *id = &ids[2 * i];

        id->version = 1;
        larges[i] = cell(side, *id, 2, large_bytes(*id), memory + at);
        at += large_bytes(*id);
        again[i] = rows[2 * i];
    }
    tq_column_t large = each_column("large", larges);
    args = (tq_put_args_t){.partition = side->partition,
                           .rows_cnt = ROWS / 2,
                           .rows = again,
                           .columns_cnt = 1,
                           .columns = &large};
    tq_op_free(put(side, &args));

    tq_column_t id = bytes_column("id", ids, sizeof *ids);
    args = (tq_put_args_t){.partition = side->partition,
                           .rows_cnt = ROWS,
                           .rows = rows,
                           .columns_cnt = 1,
                           .columns = &id};
    tq_op_free(put(side, &args));
}

static uint64_t produce(const side_t *side)
{
    static const uint32_t offsets[] = {0, 1};
    static const tq_strs_t fields = {1, offsets, "n"};
    char *memory = malloc((size_t)ROWS * (LARGE_BYTES_MIN + LARGE_BYTES_SPAN));
    uint64_t batches = 0;
    unsigned ahead = 0;

    if (!memory)
        fail(TQ_E_NO_MEMORY, "no memory for a batch");
    while (!is_over(0)) {
        if (ahead < BATCHES_AHEAD) {
            produce_batch(side, batches * ROWS, memory);
            ahead++;
            if (batches++ == 0)
                say("working");
            (void)is_over(side->pace_ms);
            continue;
        }
        tq_op_t *op = fetched(side, side->credit, &fields, 1);
        if (op) {
            clear(side, side->credit, op);
            tq_op_free(op);
            ahead--;
        }
    }
    free(memory);
    return batches;
}

/* Reads the rows of a fetch, compares them, and clears them. */
static void consume_batch(const side_t *side, const tq_strs_t *fields, const tq_op_t *rows)
{
    const tq_result_t *granted = tq_op_result(rows);
    tq_get_args_t args = {.partition = side->partition,
                          .rows_cnt = granted->rows_cnt,
                          .rows = granted->rows,
                          .fields = fields};
    tq_error_t err;
    tq_op_t *op = NULL;

    done(tq_get_submit(side->client, NULL, &args, NULL, &op, &err), &err, &op);
    const tq_column_out_t *columns = tq_op_result(op)->columns;
    if (tq_op_result(op)->columns_cnt != 3 || columns[0].desc.len != sizeof(row_id_t))
        fail(TQ_E_BUG, "not the columns that were asked for");
    for (uint32_t i = 0; i < granted->rows_cnt; i++) {
        const char *large = tq_buffer_data(columns[2].buffer);
        row_id_t id;
        size_t len =
            columns[2].layout == TQ_LAYOUT_EACH ? columns[2].descs[i].len : columns[2].desc.len;

        memcpy(&id, (const char *)tq_buffer_data(columns[0].buffer) + columns[0].offsets[i],
               sizeof id);
        compare(seed_of(side, (row_id_t){.number = id.number}, 1),
                (const char *)tq_buffer_data(columns[1].buffer) + columns[1].offsets[i],
                columns[1].desc.len, SMALL_BYTES);
        compare(seed_of(side, id, 2), large + columns[2].offsets[i], len, large_bytes(id));
    }
    tq_op_free(op);
    clear(side, side->partition, rows);
}

static uint64_t consume(const side_t *side)
{
    static const uint32_t offsets[] = {0, 2, 7, 12};
    static const tq_strs_t fields = {3, offsets, "idsmalllarge"};
    tq_column_t n = bytes_column("n", "n", 1);
    tq_put_args_t args = {
        .partition = side->credit, .rows_cnt = 1, .columns_cnt = 1, .columns = &n};
    uint64_t batches = 0;

    while (!is_over(0)) {
        tq_op_t *op = fetched(side, side->partition, &fields, ROWS);
        if (!op)
            continue;
        consume_batch(side, &fields, op);
        tq_op_free(op);
        tq_op_free(put(side, &args));
        if (batches++ == 0)
            say("working");
    }
    return batches;
}

int main(int argc, char **argv)
{
    side_t side = {0};

    if (argc != 5)
        return 3;
    side.client = connected(argv[2]);
    side.partition = argv[3];
    side.pace_ms = atoi(argv[4]);
    snprintf(side.credit, sizeof side.credit, "%.200s.credit", argv[3]);
    uint64_t batches = strcmp(argv[1], "produce") == 0 ? produce(&side) : consume(&side);
    printf("worked %llu\n", (unsigned long long)batches);
    tq_client_close(side.client);
    return 0;
}
