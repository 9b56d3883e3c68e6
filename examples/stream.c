/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Producers and a consumer, each in a process of its own: producers put rows with a tensor of
 * samples as they make them, the consumer fetches whichever rows are complete, eight at a time,
 * reads them and clears them.
 *
 *     cc stream.c -ltq -o stream && ./stream [PRODUCERS [ROWS]]
 *
 * The store lives in the first process; the others find it by TQ_ADDRESS. Every value says which
 * row it belongs to, so the consumer can check what it got: it exits with 1 if a row is wrong, or
 * comes twice, or not at all.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tq/host.h>
#include <tq/tq.h>

#define PARTITION "train"
#define TASK "trainer"
#define WIDTH 4096 /* elements of a row's sample */
#define BATCH 8

static const uint32_t field_offsets[] = {0, 2, 8};
static const tq_strs_t fields = {.cnt = 2, .offsets = field_offsets, .bytes = "idsample"};

static int failed(const char *what, const tq_error_t *err)
{
    fprintf(stderr, "%s: %s: %s\n", what, tq_status_name(err->status), err->text);
    return 1;
}

static tq_desc_t tensor(tq_dtype_t dtype, uint64_t elements)
{
    tq_desc_t desc = {.encoding = TQ_ENC_TENSOR, .dtype = (uint8_t)dtype};

    desc.len = elements * tq_dtype_size(dtype);
    if (elements > 1) {
        desc.ndim = 1;
        desc.shape[0] = elements;
    }
    return desc;
}

/* ---- producer ---------------------------------------------------------------------------------- */

static int produce(uint64_t producer, uint64_t rows)
{
    tq_client_t *client;
    tq_error_t err;
    float *sample = malloc(WIDTH * sizeof *sample);
    uint64_t id;
    int rc = 0;
    tq_column_t columns[] = {
        {.field = "id", .layout = TQ_LAYOUT_UNIFORM, .desc = tensor(TQ_DTYPE_U64, 1), .data = &id},
        {.field = "sample",
         .layout = TQ_LAYOUT_UNIFORM,
         .desc = tensor(TQ_DTYPE_F32, WIDTH),
         .data = sample},
    };
    tq_put_args_t put = {
        .partition = PARTITION, .rows_cnt = 1, .columns_cnt = 2, .columns = columns};

    if (!sample || tq_client_open(NULL, &client, &err) != TQ_OK)
        return failed("producer", &err);
    for (uint64_t r = 0; r < rows && rc == 0; r++) {
        id = producer * rows + r;
        for (uint32_t i = 0; i < WIDTH; i++)
            sample[i] = (float)(id + i);
        if (tq_put(client, &put, NULL, &err) != TQ_OK)
            rc = failed("put", &err);
    }
    tq_client_close(client);
    free(sample);
    return rc;
}

/* ---- consumer ---------------------------------------------------------------------------------- */

static bool check(const tq_result_t *result, bool *seen, uint64_t total)
{
    const uint64_t *ids = tq_buffer_data(result->columns[0].buffer);
    const float *samples = tq_buffer_data(result->columns[1].buffer);

    for (uint32_t r = 0; r < result->rows_cnt; r++) {
        if (ids[r] >= total || seen[ids[r]])
            return false;
        seen[ids[r]] = true;
        for (uint32_t i = 0; i < WIDTH; i++)
            if (samples[(size_t)r * WIDTH + i] != (float)(ids[r] + i))
                return false;
    }
    return true;
}

/* Fetches, gets and clears one batch; false at the first error. */
static bool consume_batch(tq_client_t *client, uint32_t rows, bool *seen, uint64_t total,
                          tq_error_t *err)
{
    tq_fetch_args_t fetch = {.partition = PARTITION,
                             .fields = &fields,
                             .rows_cnt = rows,
                             .task = TASK,
                             .mode = TQ_FETCH,
                             .timeout_ms = 30000};
    tq_op_t *granted = NULL, *got = NULL, *cleared = NULL;
    bool is_ok = false;

    if (tq_fetch_submit(client, NULL, &fetch, NULL, &granted, err) != TQ_OK)
        return false;
    tq_op_wait(granted, -1);
    err->status = tq_op_status(granted);
    snprintf(err->text, sizeof err->text, "%s", tq_op_error(granted));
    if (err->status == TQ_OK) {
        tq_get_args_t get = {.partition = PARTITION,
                             .rows = tq_op_result(granted)->rows,
                             .rows_cnt = tq_op_result(granted)->rows_cnt,
                             .fields = &fields};
        tq_clear_args_t clear = {
            .partition = PARTITION, .rows = get.rows, .rows_cnt = get.rows_cnt};
        if (tq_get(client, &get, &got, err) == TQ_OK) {
            is_ok = check(tq_op_result(got), seen, total);
            snprintf(err->text, sizeof err->text, "a row is wrong, or came twice");
        }
        if (is_ok && tq_clear_submit(client, NULL, &clear, NULL, &cleared, err) == TQ_OK)
            tq_op_wait(cleared, -1);
    }
    tq_op_free(cleared);
    tq_op_free(got);
    tq_op_free(granted);
    return is_ok;
}

static int consume(uint64_t total)
{
    tq_client_t *client;
    tq_error_t err;
    bool *seen = calloc(total, sizeof *seen);
    uint64_t done = 0;
    int rc = 0;

    if (!seen || tq_client_open(NULL, &client, &err) != TQ_OK)
        return failed("consumer", &err);
    while (done < total && rc == 0) {
        uint32_t rows = total - done < BATCH ? (uint32_t)(total - done) : BATCH;
        if (!consume_batch(client, rows, seen, total, &err))
            rc = failed("consumer", &err);
        done += rows;
    }
    tq_client_close(client);
    free(seen);
    return rc;
}

/* ---- all of it --------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    uint64_t producers = argc > 1 ? strtoull(argv[1], NULL, 10) : 2;
    uint64_t rows = argc > 2 ? strtoull(argv[2], NULL, 10) : 64;
    tq_store_conf_t conf = {.capacity_bytes = (uint64_t)256 << 20};
    tq_store_t *store;
    tq_error_t err;
    char address[512] = ""; /* a record of the pipe, written and read whole */
    int gate[2], status, rc = 0;

    if (producers == 0 || producers > 64 || rows == 0 || pipe(gate) != 0)
        return 2;
    /* Processes are made before the store has threads; they wait at the gate for its address. */
    for (uint64_t p = 0; p <= producers; p++) {
        pid_t pid = fork();
        if (pid < 0)
            return 2;
        if (pid == 0) {
            close(gate[1]);
            if (read(gate[0], address, sizeof address) != sizeof address)
                _exit(2);
            setenv("TQ_ADDRESS", address, 1);
            _exit(p == producers ? consume(producers * rows) : produce(p, rows));
        }
    }
    if (tq_store_open(&conf, &store, &err) != TQ_OK)
        return failed("store", &err);
    snprintf(address, sizeof address, "%s", tq_store_public_address(store));
    for (uint64_t p = 0; p <= producers; p++)
        if (write(gate[1], address, sizeof address) != sizeof address)
            rc = 1;
    close(gate[1]);
    for (uint64_t p = 0; p <= producers; p++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
            rc = 1;
    tq_store_close(store);
    if (rc == 0)
        printf("%llu rows went through\n", (unsigned long long)(producers * rows));
    return rc;
}
