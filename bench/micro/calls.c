/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-row control requests per second, 64 outstanding: client, ctrl, controller and back. Embedded
 * (in-process ctrl), and over ipc (libzmq) from the same process, which is what other processes use.
 *
 *   usage: calls [CALLS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tq/host.h>
#include <tq/tq.h>

#include "common.h"

#define OUTSTANDING 64
#define ROWS 1024

static void measure(const char *name, const char *address, long calls)
{
    tq_client_conf_t conf = {.address = address};
    tq_error_t err = {0};
    tq_client_t *client;
    tq_cq_t *cq;
    tq_op_t *op, *done[OUTSTANDING];
    tq_row_t rows[ROWS];
    static const char map[] = "\x81\xa1v\x01"; /* {"v": 1} */
    uint32_t offsets[2] = {0, 4};
    tq_strs_t tags = {1, offsets, map};
    must(tq_client_open(&conf, &client, &err), err.text);
    must(tq_cq_open(client, &cq, &err), err.text);
    tq_insert_args_t insert = {.partition = "calls", .rows_cnt = ROWS};
    must(tq_insert_submit(client, NULL, &insert, NULL, &op, &err), err.text);
    tq_op_wait(op, -1);
    must(tq_op_status(op), tq_op_error(op));
    memcpy(rows, tq_op_result(op)->rows, sizeof rows);
    tq_op_free(op);

    long sent = 0, over = 0;
    int64_t start = now_ns();
    while (over < calls) {
        for (; sent < calls && sent - over < OUTSTANDING; sent++) {
            tq_tags_args_t args = {
                .partition = "calls", .rows_cnt = 1, .rows = &rows[sent % ROWS], .tags = &tags};
            must(tq_tags_submit(client, cq, &args, NULL, &op, &err), err.text);
        }
        uint32_t cnt = tq_cq_wait(cq, done, OUTSTANDING, -1);
        for (uint32_t i = 0; i < cnt; i++) {
            must(tq_op_status(done[i]), tq_op_error(done[i]));
            tq_op_free(done[i]);
        }
        over += cnt;
    }
    double s = (double)(now_ns() - start) / 1e9;
    printf("%-10s %8.0f calls/s (%ld calls, %d outstanding)\n", name, (double)calls / s, calls,
           OUTSTANDING);
    tq_cq_close(cq);
    tq_client_close(client);
}

int main(int argc, char **argv)
{
    long calls = argc > 1 ? atol(argv[1]) : 200000;
    tq_store_conf_t conf = {.capacity_bytes = 64u << 20};
    tq_error_t err = {0};
    tq_store_t *store;
    must(tq_store_open(&conf, &store, &err), err.text);
    measure("embedded", tq_store_address(store), calls);
    measure("ipc", tq_store_public_address(store), calls);
    tq_store_close(store);
    return 0;
}
