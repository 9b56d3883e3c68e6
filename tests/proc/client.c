/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the process tests need of a client and the command line has not: a fetch that waits, and
 * work without end.
 *
 *   client fetch ADDRESS PARTITION TASK ROWS TIMEOUT_MS FIELD...
 *       waits for rows of the fields; "fetched N"
 *   client work ADDRESS PARTITION LARGE_BYTES
 *       puts a row of a small and a large cell, reads it back, compares, clears it; again until
 *       its standard input ends; "worked N"
 *
 * Both print "connected" first. An error is printed as "E_NAME: text", with exit status 1; bytes that
 * differ end it with status 2.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tq/tq.h>
#include <unistd.h>

#include "proc.h"

#define SMALL_BYTES 100

static int fetch(tq_client_t *client, int argc, char **argv)
{
    uint32_t offsets[17] = {0};
    char names[2048] = "";
    tq_strs_t fields = {0, offsets, names};
    tq_error_t err;
    tq_op_t *op = NULL;

    for (int i = 4; i < argc && fields.cnt < 16; i++) {
        strncat(names, argv[i], sizeof names - strlen(names) - 1);
        offsets[++fields.cnt] = (uint32_t)strlen(names);
    }
    tq_fetch_args_t args = {.partition = argv[0],
                            .task = argv[1],
                            .rows_cnt = (uint32_t)atoi(argv[2]),
                            .timeout_ms = (uint32_t)atoi(argv[3]),
                            .fields = &fields,
                            .mode = TQ_FETCH};
    done(tq_fetch_submit(client, NULL, &args, NULL, &op, &err), &err, &op);
    printf("fetched %u\n", (unsigned)tq_op_result(op)->rows_cnt);
    tq_op_free(op);
    return 0;
}

static void one_round(tq_client_t *client, const char *partition, char *bytes, size_t large_bytes)
{
    tq_column_t columns[2] = {bytes_column("large", bytes, large_bytes),
                              bytes_column("small", bytes, SMALL_BYTES)};
    tq_put_args_t put = {
        .partition = partition, .rows_cnt = 1, .columns_cnt = 2, .columns = columns};
    tq_error_t err;
    tq_op_t *op = NULL;

    done(tq_put_submit(client, NULL, &put, NULL, &op, &err), &err, &op);
    tq_row_t row = tq_op_result(op)->rows[0];
    tq_op_free(op);

    tq_get_args_t get = {.partition = partition, .rows_cnt = 1, .rows = &row};
    done(tq_get_submit(client, NULL, &get, NULL, &op, &err), &err, &op);
    const tq_result_t *result = tq_op_result(op);
    for (unsigned c = 0; c < 2; c++) {
        const tq_column_out_t *column = &result->columns[c];
        if (result->columns_cnt != 2 || column->desc.len != columns[c].desc.len ||
            memcmp(tq_buffer_data(column->buffer), bytes, column->desc.len) != 0) {
            puts("bytes differ");
            exit(2);
        }
    }
    tq_op_free(op);

    tq_clear_args_t clear = {.partition = partition, .rows_cnt = 1, .rows = &row};
    done(tq_clear_submit(client, NULL, &clear, NULL, &op, &err), &err, &op);
    tq_op_free(op);
}

static int work(tq_client_t *client, char **argv)
{
    size_t large_bytes = strtoull(argv[1], NULL, 10);
    char *bytes = malloc(large_bytes + SMALL_BYTES);
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    unsigned rounds = 0;

    if (!bytes)
        return 3;
    while (poll(&in, 1, 0) == 0) {
        memset(bytes, (int)(rounds + (unsigned)getpid()), large_bytes + SMALL_BYTES);
        one_round(client, argv[0], bytes, large_bytes);
        if (rounds++ == 0) {
            puts("working");
            fflush(stdout);
        }
    }
    printf("worked %u\n", rounds);
    free(bytes);
    return 0;
}

int main(int argc, char **argv)
{
    int code = 3;

    if (argc < 5)
        return code;
    tq_client_t *client = connected(argv[2]);
    if (strcmp(argv[1], "work") == 0)
        code = work(client, argv + 3);
    else if (strcmp(argv[1], "fetch") == 0 && argc > 7)
        code = fetch(client, argc - 3, argv + 3);
    tq_client_close(client);
    return code;
}
