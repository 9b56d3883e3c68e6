/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that does everything that clients do, at random, and records it (docs/testing.md, "The
 * oracle"), for tests/proc/chaos.py.
 *
 *   chaos_client work ADDRESS NAME SEED FILE
 *       until its standard input ends; "worked N" with the number of its operations
 *   chaos_client audit ADDRESS NAME SEED FILE
 *       lists and reads all that there is, then takes for each task what it never got
 *
 * A line is written before an operation begins and after it has ended, each by a write of its own,
 * so that a process that is killed leaves what it did. Errors are part of the record; the process
 * ends with 1 only where it could not do its work at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <tq/tq.h>
#include <unistd.h>

#define PARTITIONS 2
#define FIELDS 4
#define TASKS 2
#define KEYS 24
#define ROWS_MAX 8   /* of one call; a list has more */
#define KNOWN_MAX 48 /* rows of a partition that are remembered */
#define LINE_MAX_BYTES (4u << 20)

static const char *const partition_names[PARTITIONS] = {"train", "eval"};
static const char *const field_names[FIELDS] = {"a", "b", "c", "d"};
static const char *const task_names[TASKS] = {"actor", "critic"};

typedef struct known {
    uint32_t cnt;
    tq_row_t rows[KNOWN_MAX];
} known_t;

static tq_client_t *client;
static const char *process;
static int file;
static uint64_t rng;
static uint64_t op_number, value_number;
static uint64_t incarnation; /* that the known rows are of */
static known_t known[PARTITIONS];

/* ---- chance, time, lines ----------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint32_t below(uint32_t cnt)
{
    rng = mix(rng);
    return (uint32_t)(rng >> 33) % cnt;
}

static int chance(uint32_t percent)
{
    return below(100) < percent;
}

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void nap(uint32_t ms)
{
    poll(NULL, 0, (int)ms);
}

static int is_over(void)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};

    return poll(&in, 1, 0) != 0;
}

static char line[LINE_MAX_BYTES];
static size_t line_len;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
    va_list args;
    int len;

    va_start(args, fmt);
    len = vsnprintf(line + line_len, sizeof line - line_len, fmt, args);
    va_end(args);
    if (len < 0 || (size_t)len >= sizeof line - line_len) {
        fprintf(stderr, "a line of the history is too long\n");
        exit(1);
    }
    line_len += (size_t)len;
}

static void begin_line(void)
{
    line_len = 0;
    say("{\"p\":\"%s\",\"id\":%" PRIu64 ",\"t\":%" PRIu64, process, op_number, now_ns());
}

static void end_line(void)
{
    say("}\n");
    for (size_t at = 0; at < line_len;) {
        ssize_t cnt = write(file, line + at, line_len - at);
        if (cnt < 0 && errno != EINTR) {
            perror("history");
            exit(1);
        }
        at += cnt < 0 ? 0 : (size_t)cnt;
    }
}

static void say_rows(const tq_row_t *rows, uint32_t cnt)
{
    say(",\"rows\":[");
    for (uint32_t i = 0; i < cnt; i++)
        say("%s%" PRIu64, i ? "," : "", rows[i]);
    say("]");
}

static void say_units(const tq_result_t *result)
{
    if (!result->units)
        return;
    say(",\"units\":[");
    for (uint32_t i = 0; i < result->rows_cnt; i++)
        say("%s%u", i ? "," : "", result->units[i]);
    say("]");
}

static void say_strs(const char *member, const tq_strs_t *strs, const uint8_t *has_item)
{
    say(",\"%s\":[", member);
    for (uint32_t i = 0; i < strs->cnt; i++) {
        uint32_t at = strs->offsets[i];
        say("%s", i ? "," : "");
        if (has_item && !has_item[i])
            say("null");
        else
            say("\"%.*s\"", (int)(strs->offsets[i + 1] - at), strs->bytes + at);
    }
    say("]");
}

static void say_keys_of(const tq_result_t *result)
{
    if (result->keys.cnt > 0 && result->keys.cnt == result->rows_cnt)
        say_strs("keys", &result->keys, result->has_key);
}

/* ---- values ------------------------------------------------------------------------------------ */

static uint64_t hash_of(const void *data, size_t len)
{
    const uint8_t *bytes = data;
    uint64_t hash = mix(len);

    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + at, len - at < 8 ? len - at : 8);
        hash = (hash ^ word) * UINT64_C(0x100000001B3);
        hash ^= hash >> 29;
    }
    return mix(hash);
}

static void say_value(const void *data, size_t len, int is_first)
{
    say("%s\"%016" PRIx64 "\"", is_first ? "" : ",", hash_of(data, len));
}

static size_t some_len(void)
{
    static const uint32_t lens[] = {64, 500, 4000, 40000, 200000, 1500000};
    uint32_t kind = below(100);

    return 16 + below(lens[kind < 40   ? 0
                           : kind < 65 ? 1
                           : kind < 85 ? 2
                           : kind < 94 ? 3
                           : kind < 99 ? 4
                                       : 5]);
}

/* Bytes that nobody else makes: a pattern that follows from who made them and when. */
static void fill(uint8_t *data, size_t len)
{
    uint64_t word = mix(hash_of(process, strlen(process)) ^ ++value_number);

    for (size_t at = 0; at < len; at += 8, word = mix(word))
        memcpy(data + at, &word, len - at < 8 ? len - at : 8);
}

/* ---- lists of names ---------------------------------------------------------------------------- */

typedef struct names {
    tq_strs_t strs;
    uint32_t offsets[KEYS + 1];
    char bytes[256];
} names_t;

static void names_begin(names_t *names)
{
    memset(names, 0, sizeof *names);
    names->strs.offsets = names->offsets;
    names->strs.bytes = names->bytes;
}

static void names_add(names_t *names, const char *name)
{
    uint32_t at = names->offsets[names->strs.cnt];
    size_t len = strlen(name);

    memcpy(names->bytes + at, name, len);
    names->offsets[++names->strs.cnt] = at + (uint32_t)len;
}

static void some_keys(names_t *names, uint32_t cnt)
{
    uint32_t at = below(KEYS);
    char key[16];

    names_begin(names);
    for (uint32_t i = 0; i < cnt; i++) {
        snprintf(key, sizeof key, "k%u", (at + i * 7) % KEYS);
        names_add(names, key);
    }
}

static uint32_t some_mask(void)
{
    return chance(60) ? 1u << below(FIELDS) : 1 + below((1u << FIELDS) - 1);
}

static void fields_of(names_t *names, uint32_t mask)
{
    names_begin(names);
    for (uint32_t f = 0; f < FIELDS; f++)
        if (mask >> f & 1)
            names_add(names, field_names[f]);
}

/* ---- rows that are known ----------------------------------------------------------------------- */

static void know(uint32_t part, const tq_row_t *rows, uint32_t cnt)
{
    known_t *k = &known[part];

    for (uint32_t i = 0; i < cnt; i++) {
        if (k->cnt == KNOWN_MAX)
            memmove(k->rows, k->rows + 1, --k->cnt * sizeof k->rows[0]);
        k->rows[k->cnt++] = rows[i];
    }
}

static void forget(uint32_t part, const tq_row_t *rows, uint32_t cnt)
{
    known_t *k = &known[part];

    for (uint32_t i = 0; i < cnt; i++)
        for (uint32_t at = 0; at < k->cnt; at++)
            if (k->rows[at] == rows[i])
                k->rows[at--] = k->rows[--k->cnt];
}

/* Some of them, distinct. */
static uint32_t some_rows(uint32_t part, tq_row_t *rows, uint32_t max)
{
    const known_t *k = &known[part];
    uint32_t cnt = 0, want = 1 + below(max);

    for (uint32_t tries = 0; tries < 2 * want && cnt < want && k->cnt > 0; tries++) {
        tq_row_t row = k->rows[below(k->cnt)];
        uint32_t i = 0;
        while (i < cnt && rows[i] != row)
            i++;
        if (i == cnt)
            rows[cnt++] = row;
    }
    return cnt;
}

/* ---- operations -------------------------------------------------------------------------------- */

static void begin_op(const char *op, uint32_t part)
{
    op_number++;
    begin_line();
    say(",\"op\":\"%s\",\"part\":\"%s\"", op, partition_names[part]);
}

/* Waits for the end, which now and then is asked for early; begins the line that tells of it. NULL:
 * the op did not even begin, which counts as an end. */
static const tq_result_t *end_op(tq_status_t submitted, tq_op_t *op, const tq_error_t *err,
                                 int may_cancel)
{
    const tq_result_t *result;

    if (submitted != TQ_OK) {
        fprintf(stderr, "an op can't be made: %s: %s\n", tq_status_name(submitted), err->text);
        exit(1);
    }
    if (may_cancel && chance(3) && !tq_op_wait(op, below(20)))
        tq_op_cancel(op);
    tq_op_wait(op, -1);
    result = tq_op_result(op);
    begin_line();
    say(",\"status\":\"%s\",\"store\":\"%016" PRIx64 "\"", tq_status_name(tq_op_status(op)),
        result->incarnation);
    if (result->incarnation != incarnation) {
        memset(known, 0, sizeof known);
        incarnation = result->incarnation;
    }
    if (tq_op_status(op) == TQ_OK)
        return result;
    fprintf(stderr, "%s/%" PRIu64 ": %s: %s\n", process, op_number,
            tq_status_name(tq_op_status(op)), tq_op_error(op));
    end_line();
    /* Where something is down it takes a while. */
    if (tq_status_class(tq_op_status(op)) >= TQ_CLASS_PEER)
        nap(50);
    return NULL;
}

typedef enum ident { IDENT_NEW, IDENT_KEY, IDENT_ROW } ident_t;

static void do_put(uint32_t part, ident_t ident)
{
    static uint8_t *data[FIELDS][ROWS_MAX];
    tq_cell_t cells[FIELDS][ROWS_MAX];
    tq_column_t columns[FIELDS];
    tq_row_t rows[ROWS_MAX];
    uint32_t rows_cnt = 1 + below(ROWS_MAX), mask = some_mask();
    names_t keys;
    tq_put_args_t args = {.partition = partition_names[part], .columns = columns};
    tq_error_t err;
    tq_op_t *op = NULL;

    if (ident == IDENT_ROW && (rows_cnt = some_rows(part, rows, 4)) == 0)
        ident = IDENT_NEW, rows_cnt = 1;
    begin_op("put", part);
    if (ident == IDENT_KEY) {
        some_keys(&keys, rows_cnt);
        args.keys = &keys.strs;
        say_strs("keys", &keys.strs, NULL);
    } else if (ident == IDENT_ROW) {
        args.rows = rows;
        say_rows(rows, rows_cnt);
    }
    args.rows_cnt = rows_cnt;
    say(",\"n\":%u,\"cells\":{", rows_cnt);
    for (uint32_t f = 0; f < FIELDS; f++) {
        if (!(mask >> f & 1))
            continue;
        say("%s\"%s\":[", args.columns_cnt ? "," : "", field_names[f]);
        for (uint32_t r = 0; r < rows_cnt; r++) {
            size_t len = some_len();
            data[f][r] = malloc(len);
            if (!data[f][r])
                exit(1);
            fill(data[f][r], len);
            cells[f][r] =
                (tq_cell_t){.data = data[f][r], .desc = {.encoding = TQ_ENC_BYTES, .len = len}};
            say_value(data[f][r], len, r == 0);
        }
        say("]");
        columns[args.columns_cnt++] =
            (tq_column_t){.field = field_names[f], .layout = TQ_LAYOUT_EACH, .cells = cells[f]};
    }
    say("}");
    end_line();
    tq_status_t rc = tq_put_submit(client, NULL, &args, NULL, &op, &err);
    const tq_result_t *result = end_op(rc, op, &err, 1);
    if (result) {
        say_rows(result->rows, result->rows_cnt);
        end_line();
        if (ident == IDENT_NEW)
            know(part, result->rows, result->rows_cnt);
    }
    tq_op_free(op);
    for (uint32_t f = 0; f < FIELDS; f++)
        for (uint32_t r = 0; r < ROWS_MAX; r++) {
            free(data[f][r]);
            data[f][r] = NULL;
        }
}

static size_t len_of(const tq_column_out_t *column, uint32_t row)
{
    if (column->layout == TQ_LAYOUT_EACH)
        return column->descs[row].len;
    if (column->layout == TQ_LAYOUT_UNIFORM)
        return column->desc.len;
    return (size_t)(column->offsets[row + 1] - column->offsets[row]);
}

static void get(uint32_t part, const names_t *keys, const tq_row_t *rows, uint32_t rows_cnt,
                uint32_t mask, int is_skipping)
{
    names_t fields;
    tq_get_args_t args = {.partition = partition_names[part],
                          .keys = keys ? &keys->strs : NULL,
                          .rows = rows,
                          .rows_cnt = rows_cnt,
                          .fields = &fields.strs,
                          .flags = is_skipping ? TQ_GET_SKIP_KEYS : 0};
    tq_error_t err;
    tq_op_t *op = NULL;

    fields_of(&fields, mask);
    begin_op("get", part);
    if (keys)
        say_strs("keys", &keys->strs, NULL);
    else
        say_rows(rows, rows_cnt);
    say_strs("fields", &fields.strs, NULL);
    if (is_skipping)
        say(",\"skip\":true");
    end_line();
    tq_status_t rc = tq_get_submit(client, NULL, &args, NULL, &op, &err);
    const tq_result_t *result = end_op(rc, op, &err, 1);
    if (result) {
        say_rows(result->rows, result->rows_cnt);
        say_keys_of(result);
        say(",\"cells\":{");
        for (uint32_t c = 0; c < result->columns_cnt; c++) {
            const tq_column_out_t *column = &result->columns[c];
            const uint8_t *bytes = column->buffer ? tq_buffer_data(column->buffer) : NULL;
            say("%s\"%s\":[", c ? "," : "", column->field);
            for (uint32_t r = 0; r < result->rows_cnt; r++)
                say_value(bytes + column->offsets[r], len_of(column, r), r == 0);
            say("]");
        }
        say("}");
        end_line();
    }
    tq_op_free(op);
}

static void do_get(uint32_t part)
{
    tq_row_t rows[ROWS_MAX];
    names_t keys;
    uint32_t cnt = chance(50) ? some_rows(part, rows, 4) : 0;
    /* One cell at a time says most of what is missing. */
    uint32_t mask = chance(70) ? 1u << below(FIELDS) : some_mask();

    if (cnt > 0) {
        get(part, NULL, rows, chance(50) ? 1 : cnt, mask, 0);
        return;
    }
    some_keys(&keys, chance(60) ? 1 : 1 + below(ROWS_MAX));
    get(part, &keys, NULL, 0, mask, chance(40));
}

static void clear(uint32_t part, const tq_row_t *rows, uint32_t cnt, const names_t *keys)
{
    tq_clear_args_t args = {.partition = partition_names[part],
                            .rows = rows,
                            .rows_cnt = cnt,
                            .keys = keys ? &keys->strs : NULL,
                            .is_all = !rows && !keys};
    tq_error_t err;
    tq_op_t *op = NULL;

    begin_op("clear", part);
    if (rows)
        say_rows(rows, cnt);
    else if (keys)
        say_strs("keys", &keys->strs, NULL);
    else
        say(",\"all\":true");
    end_line();
    tq_status_t rc = tq_clear_submit(client, NULL, &args, NULL, &op, &err);
    if (end_op(rc, op, &err, 0)) {
        end_line();
        forget(part, rows, rows ? cnt : 0);
        if (args.is_all)
            known[part].cnt = 0;
    }
    tq_op_free(op);
}

static uint32_t fetch(uint32_t part, uint32_t task, uint32_t mask, uint32_t n, int is_polling)
{
    names_t fields;
    tq_fetch_args_t args = {.partition = partition_names[part],
                            .task = task_names[task],
                            .fields = &fields.strs,
                            .rows_cnt = n,
                            .mode = TQ_FETCH,
                            .is_polling = is_polling};
    tq_error_t err;
    tq_op_t *op = NULL;
    tq_row_t rows[ROWS_MAX];
    uint32_t cnt = 0;

    fields_of(&fields, mask);
    begin_op("fetch", part);
    say(",\"task\":\"%s\",\"n\":%u", task_names[task], n);
    say_strs("fields", &fields.strs, NULL);
    if (is_polling)
        say(",\"poll\":true");
    end_line();
    tq_status_t rc = tq_fetch_submit(client, NULL, &args, NULL, &op, &err);
    const tq_result_t *result = end_op(rc, op, &err, 1);
    if (result) {
        say_rows(result->rows, result->rows_cnt);
        say_units(result);
        end_line();
        cnt = result->rows_cnt;
        if (cnt > 0)
            memcpy(rows, result->rows, (cnt < ROWS_MAX ? cnt : ROWS_MAX) * sizeof rows[0]);
    }
    tq_op_free(op);
    if (cnt == 0 || cnt > ROWS_MAX)
        return cnt;
    know(part, rows, cnt);
    /* As a trainer does: the next answer also tells the store that these rows were taken. */
    get(part, NULL, rows, cnt, mask, 0);
    return cnt;
}

static void do_list(uint32_t part)
{
    tq_list_args_t args = {.partition = partition_names[part], .want_fields = true};
    tq_error_t err;
    tq_op_t *op = NULL;

    begin_op("list", part);
    end_line();
    tq_status_t rc = tq_list_submit(client, NULL, &args, NULL, &op, &err);
    const tq_result_t *result = end_op(rc, op, &err, 0);
    if (result) {
        say_rows(result->rows, result->rows_cnt);
        say_units(result);
        say_keys_of(result);
        say_strs("fields", &result->fields, NULL);
        say(",\"produced\":[");
        for (uint32_t r = 0; r < result->rows_cnt; r++) {
            say("%s", r ? ",\"" : "\"");
            for (uint32_t f = 0; f < result->fields.cnt; f++)
                say("%d", result->status[r * result->fields.cnt + f]);
            say("\"");
        }
        say("]");
        end_line();
        know(part, result->rows, result->rows_cnt < 8 ? result->rows_cnt : 8);
    }
    tq_op_free(op);
}

static void do_reset(uint32_t part)
{
    uint32_t task = below(TASKS + 1);
    tq_reset_args_t args = {.partition = partition_names[part],
                            .task = task < TASKS ? task_names[task] : NULL};
    tq_error_t err;
    tq_op_t *op = NULL;

    begin_op("reset", part);
    if (task < TASKS)
        say(",\"task\":\"%s\"", task_names[task]);
    end_line();
    tq_status_t rc = tq_reset_submit(client, NULL, &args, NULL, &op, &err);
    if (end_op(rc, op, &err, 0))
        end_line();
    tq_op_free(op);
}

static void do_clear(uint32_t part)
{
    tq_row_t rows[ROWS_MAX];
    names_t keys;
    uint32_t cnt;

    if (chance(40)) {
        some_keys(&keys, 1 + below(3));
        clear(part, NULL, 0, &keys);
    } else if ((cnt = some_rows(part, rows, ROWS_MAX)) > 0) {
        clear(part, rows, cnt, NULL);
    }
}

static void act(void)
{
    uint32_t part = below(PARTITIONS), what = below(1000);

    if (what < 160)
        do_put(part, IDENT_NEW);
    else if (what < 300)
        do_put(part, IDENT_KEY);
    else if (what < 380)
        do_put(part, IDENT_ROW);
    else if (what < 640)
        do_get(part);
    else if (what < 820)
        fetch(part, below(TASKS), some_mask(), 1 + below(ROWS_MAX), chance(70));
    else if (what < 980)
        do_clear(part);
    else if (what < 988)
        do_reset(part);
    else if (what < 996)
        do_list(part);
    else if (what < 998)
        clear(part, NULL, 0, NULL);
}

static void work(void)
{
    while (!is_over()) {
        act();
        nap(below(40));
    }
    printf("worked %" PRIu64 "\n", op_number);
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void read_all(uint32_t part)
{
    tq_list_args_t args = {.partition = partition_names[part], .want_fields = true};
    tq_error_t err;
    tq_op_t *op = NULL;

    if (tq_list_submit(client, NULL, &args, NULL, &op, &err) != TQ_OK)
        exit(1);
    tq_op_wait(op, -1);
    const tq_result_t *result = tq_op_result(op);
    for (uint32_t r = 0; r < result->rows_cnt; r++)
        for (uint32_t f = 0; f < result->fields.cnt; f++) {
            const char *name = result->fields.bytes + result->fields.offsets[f];
            if (result->status[r * result->fields.cnt + f])
                get(part, NULL, &result->rows[r], 1, 1u << (uint32_t)(name[0] - 'a'), 0);
        }
    tq_op_free(op);
}

static void audit(void)
{
    for (uint32_t part = 0; part < PARTITIONS; part++) {
        do_list(part); /* a connection of before may turn out to be broken, once */
        do_list(part);
        read_all(part);
        for (uint32_t key = 0; key < KEYS; key++)
            for (uint32_t f = 0; f < FIELDS; f++) {
                names_t keys;
                char name[16];
                snprintf(name, sizeof name, "k%u", key);
                names_begin(&keys);
                names_add(&keys, name);
                get(part, &keys, NULL, 0, 1u << f, 0);
            }
        for (uint32_t task = 0; task < TASKS; task++)
            for (uint32_t f = 0; f < FIELDS; f++)
                while (fetch(part, task, 1u << f, 1, 1) > 0)
                    ;
        clear(part, NULL, 0, NULL);
        do_list(part);
    }
    printf("worked %" PRIu64 "\n", op_number);
}

/* The controller may be dead or stopped at the moment. */
static void connect_to(const char *address)
{
    tq_client_conf_t conf = {.address = address,
                             .name = process,
                             .connect_timeout_ms = 2000,
                             .call_timeout_ms = 20000,
                             .fetch_timeout_ms = 500,
                             .space_timeout_ms = 3000};
    tq_error_t err = {0};

    while (tq_client_open(&conf, &client, &err) != TQ_OK) {
        if (is_over()) {
            printf("worked 0\n");
            exit(0);
        }
        nap(50);
    }
}

int main(int argc, char **argv)
{
    if (argc != 6)
        return 2;
    process = argv[3];
    rng = mix(strtoull(argv[4], NULL, 10) ^ hash_of(process, strlen(process)));
    file = open(argv[5], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) {
        perror(argv[5]);
        return 1;
    }
    connect_to(argv[2]);
    if (strcmp(argv[1], "audit") == 0)
        audit();
    else
        work();
    tq_client_close(client);
    return 0;
}
