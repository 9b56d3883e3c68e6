/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of the process tests share: a client or an end, and columns of plain bytes.
 * An error is printed as "E_NAME: text" and ends the program with status 1. */
#ifndef TQ_TESTS_PROC_H
#define TQ_TESTS_PROC_H

#include <stdio.h>
#include <stdlib.h>
#include <tq/tq.h>

static inline void fail(tq_status_t status, const char *text)
{
    printf("%s: %s\n", tq_status_name(status), text);
    fflush(stdout);
    exit(1);
}

/* Prints a line that the test waits for. */
static inline void say(const char *line)
{
    puts(line);
    fflush(stdout);
}

/* Waits for an op that was submitted, which must succeed. */
static inline void done(tq_status_t submitted, const tq_error_t *err, tq_op_t *const *op)
{
    if (submitted != TQ_OK)
        fail(submitted, err->text);
    tq_op_wait(*op, -1);
    if (tq_op_status(*op) != TQ_OK)
        fail(tq_op_status(*op), tq_op_error(*op));
}

static inline tq_client_t *connected(const char *address)
{
    tq_client_conf_t conf = {.address = address, .name = "proc test", .call_timeout_ms = 60000};
    tq_client_t *client;
    tq_error_t err;

    if (tq_client_open(&conf, &client, &err) != TQ_OK)
        fail(err.status, err.text);
    say("connected");
    return client;
}

static inline tq_column_t bytes_column(const char *field, const void *data, size_t len)
{
    return (tq_column_t){.field = field,
                         .layout = TQ_LAYOUT_UNIFORM,
                         .desc = {.encoding = TQ_ENC_BYTES, .len = len},
                         .data = data,
                         .row_stride = (int64_t)len};
}

#endif
