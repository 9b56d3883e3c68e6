/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store in this process and a client of it, through the public headers alone; and columns of
 * numbers that say which row and field they belong to.
 */
#ifndef TQ_TESTS_API_H
#define TQ_TESTS_API_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include <tq/host.h>
#include <tq/tq.h>

#define api_ok(call)                                                                               \
    do {                                                                                           \
        tq_error_t err = {0};                                                                      \
        tq_status_t api_rc = (call);                                                               \
        if (api_rc != TQ_OK)                                                                       \
            fail_msg("%s: %s: %s", #call, tq_status_name(api_rc), err.text);                       \
    } while (0)

typedef struct api {
    tq_store_t *store;
    tq_client_t *client;
} api_t;

static inline void api_open_conf(api_t *api, tq_store_conf_t conf)
{
    tq_client_conf_t client = {0};

    memset(api, 0, sizeof *api);
    if (conf.capacity_bytes == 0)
        conf.capacity_bytes = 256u << 20;
    api_ok(tq_store_open(&conf, &api->store, &err));
    client.address = tq_store_address(api->store);
    api_ok(tq_client_open(&client, &api->client, &err));
}

static inline void api_open(api_t *api)
{
    api_open_conf(api, (tq_store_conf_t){.is_private = true});
}

static inline void api_close(api_t *api)
{
    tq_client_close(api->client);
    tq_store_close(api->store);
}

/* A done op, or a failed test. */
static inline tq_op_t *api_wait(tq_op_t *op)
{
    assert_true(tq_op_wait(op, -1));
    if (tq_op_status(op) != TQ_OK)
        fail_msg("%s: %s", tq_status_name(tq_op_status(op)), tq_op_error(op));
    return op;
}

static inline double api_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* ---- strings ---- */

typedef struct api_strs {
    uint32_t *offsets;
    char *bytes;
    tq_strs_t strs;
} api_strs_t;

/* "PREFIX0", "PREFIX1", ... */
static inline api_strs_t api_names(const char *prefix, uint32_t cnt)
{
    api_strs_t s;
    uint32_t at = 0;
    size_t room = cnt * (strlen(prefix) + 11) + 1;

    s.offsets = calloc((size_t)cnt + 1, sizeof *s.offsets);
    s.bytes = malloc(room);
    for (uint32_t i = 0; i < cnt; i++) {
        at += (uint32_t)snprintf(s.bytes + at, room - at, "%s%u", prefix, i);
        s.offsets[i + 1] = at;
    }
    s.strs = (tq_strs_t){cnt, s.offsets, s.bytes};
    return s;
}

static inline void api_strs_free(api_strs_t *s)
{
    free(s->offsets);
    free(s->bytes);
}

/* ---- columns ---- */

static inline tq_desc_t api_desc(uint32_t width)
{
    return (tq_desc_t){.encoding = TQ_ENC_TENSOR,
                       .dtype = TQ_DTYPE_U32,
                       .ndim = 1,
                       .len = (uint64_t)width * 4,
                       .shape = {width}};
}

static inline uint32_t api_value(uint32_t seed, uint32_t row, uint32_t i)
{
    return (seed * 7919u + row) * 104729u + i;
}

/* rows x width elements; row r has api_value(seed, r, 0..width). */
static inline uint32_t *api_fill(uint32_t seed, uint32_t rows, uint32_t width)
{
    uint32_t *data = malloc((size_t)rows * width * 4 + 1);

    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t i = 0; i < width; i++)
            data[(size_t)r * width + i] = api_value(seed, r, i);
    return data;
}

static inline tq_column_t api_column(const char *field, const uint32_t *data, uint32_t width)
{
    return (tq_column_t){.field = field,
                         .layout = TQ_LAYOUT_UNIFORM,
                         .desc = api_desc(width),
                         .data = data,
                         .row_stride = (int64_t)width * 4};
}

/* Row r of the column is what api_fill made of row `from`. */
static inline void api_check_row(const tq_column_out_t *column, uint32_t r, uint32_t seed,
                                 uint32_t from, uint32_t width)
{
    const char *base = column->buffer ? tq_buffer_data(column->buffer) : NULL;
    const uint32_t *row = (const uint32_t *)(const void *)(base + column->offsets[r]);

    for (uint32_t i = 0; i < width; i++)
        if (row[i] != api_value(seed, from, i))
            fail_msg("field %s row %u element %u is %u, not %u", column->field, r, i, row[i],
                     api_value(seed, from, i));
}

#endif
