/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for what gets return. Fresh pages cost three times what the copy into them costs, so
 * buffers that nobody refers to any more stay warm, up to a bound, for the next get of about their
 * size. Any thread.
 */
#ifndef TQI_API_BUFFER_H
#define TQI_API_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include <tq/types.h>

#include "base/err.h"

typedef struct tqi_buffers tqi_buffers_t;

/* Keeps up to idle_bytes_max of unreferenced memory; 0: none. E_NO_MEMORY. */
tq_status_t tqi_buffers_new(uint64_t idle_bytes_max, tqi_buffers_t **out, tqi_err_t *err);
/* Frees what is idle. Buffers that are still referred to stay valid, and their last unref gives
 * them back to the system. NULL is fine. */
void tqi_buffers_close(tqi_buffers_t *buffers);
/* A buffer of `bytes` > 0, aligned to 64, with one reference; NULL when there is no memory. */
tq_buffer_t *tqi_buffers_take(tqi_buffers_t *buffers, size_t bytes, void **data);

typedef struct tqi_buffers_stat {
    uint64_t idle_bytes;
    uint64_t used_bytes;
    uint64_t hits;
    uint64_t misses;
} tqi_buffers_stat_t;
void tqi_buffers_stat(tqi_buffers_t *buffers, tqi_buffers_stat_t *stat);

#endif
