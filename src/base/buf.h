/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growable run of bytes that knows where its memory came from. Zero-initialised it is empty and
 * must be given an env by tqi_buf_init before it grows. Alignment of the data is that of malloc.
 */
#ifndef TQI_BASE_BUF_H
#define TQI_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/err.h"

typedef struct tqi_buf {
    const tqi_env_t *env;
    uint8_t *data; /* NULL while nothing was appended */
    size_t len;
    size_t cap;
} tqi_buf_t;

void tqi_buf_init(tqi_buf_t *buf, const tqi_env_t *env);
/* Frees the memory; the buffer is then as after init. */
void tqi_buf_fini(tqi_buf_t *buf);
/* Empties it and keeps the memory. */
void tqi_buf_clear(tqi_buf_t *buf);
/* Makes room for `more` bytes past len. E_NO_MEMORY, the buffer unchanged. */
tq_status_t tqi_buf_reserve(tqi_buf_t *buf, size_t more);
/* Appends bytes; data may be NULL when len is 0. E_NO_MEMORY, the buffer unchanged. */
tq_status_t tqi_buf_append(tqi_buf_t *buf, const void *data, size_t len);
/* Appends len bytes that the caller fills: a pointer to them, or NULL when out of memory. */
void *tqi_buf_extend(tqi_buf_t *buf, size_t len);
/* Appends formatted text (no terminator is counted in len). E_NO_MEMORY. */
tq_status_t tqi_buf_printf(tqi_buf_t *buf, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Moves from's contents into `to` (which must hold no memory); from is then empty. */
void tqi_buf_take(tqi_buf_t *to, tqi_buf_t *from);

#endif
