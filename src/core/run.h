/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: the values of one field that one put brought to one unit. A run is one extent, its rows one
 * after another as in the frame that brought them, and one column descriptor; each row's value is
 * one object.
 *
 * A row is kept while a cell (or the put that is still under way) holds it, and pinned while
 * readers do. When neither does, its granules go back at once, but for those that it shares with a
 * neighbour: they go with the last of their rows. So clearing one row gives its bytes back, and a
 * reader goes on reading what was cleared under it.
 */
#ifndef TQI_CORE_RUN_H
#define TQI_CORE_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "core/segment.h"
#include "wire/coldesc.h"

typedef struct tqi_run {
    uint32_t slot; /* the objects' own number for it: references name runs by it */
    uint32_t rows_cnt;
    uint32_t live_cnt; /* rows that are kept or pinned */
    uint64_t put_id;
    struct tqi_batch *batch; /* the put that brought it, until that is settled */
    tqi_span_t span;         /* of the whole frame, also after parts were given back */
    uint64_t bytes;          /* of the frame */
    uint64_t row_bytes;      /* UNIFORM */
    const uint64_t *offsets; /* else: rows_cnt + 1, in the frame */
    tqi_bytes_t blob;        /* the column's encoded descriptors, a copy */
    const uint32_t *desc_at; /* EACH: where each row's descriptor is in the blob */
    uint32_t *pins;          /* one a row */
    uint64_t *kept;          /* one bit a row */
    uint64_t *held;          /* one bit a row: it has bytes, and they were not given back */
    tq_desc_t *ragged;       /* RAGGED: the descriptor that all share but for shape[0] */
    uint64_t unit_bytes;     /* RAGGED */
    size_t alloc_bytes;
} tqi_run_t;

/* A run over `span` (segment NULL when the frame has no bytes), every row kept. col was decoded
 * from blob. NULL when out of memory. */
tqi_run_t *tqi_run_new(const tqi_env_t *env, const tqi_coldesc_t *col, tqi_bytes_t blob,
                       tqi_span_t span);
/* Gives the whole extent back; no row was ever dropped or pinned. */
void tqi_run_give_all(tqi_run_t *run, tqi_segments_t *segs);
/* Frees the run itself. No row is live. */
void tqi_run_free(const tqi_env_t *env, tqi_run_t *run);

/* Where a row's bytes are in the frame. */
static inline uint64_t tqi_run_offset(const tqi_run_t *run, uint32_t row)
{
    return run->offsets ? run->offsets[row] : row * run->row_bytes;
}
static inline uint64_t tqi_run_bytes(const tqi_run_t *run, uint32_t lo, uint32_t cnt)
{
    return tqi_run_offset(run, lo + cnt) - tqi_run_offset(run, lo);
}
/* Address of a row's bytes; the run has some. */
static inline uint8_t *tqi_run_data(const tqi_run_t *run, uint32_t row)
{
    return (uint8_t *)tqi_span_data(run->span) + tqi_run_offset(run, row);
}
void tqi_run_desc(const tqi_run_t *run, uint32_t row, tq_desc_t *desc);

/* Rows [lo, lo + cnt), all kept, are kept no longer. Returns the bytes that stay because they are
 * pinned. */
uint64_t tqi_run_drop(tqi_run_t *run, tqi_segments_t *segs, uint32_t lo, uint32_t cnt);
/* Counted. Rows are live. */
void tqi_run_pin(tqi_run_t *run, uint32_t lo, uint32_t cnt);
/* Returns the bytes given back by it: of rows that were dropped meanwhile. */
uint64_t tqi_run_unpin(tqi_run_t *run, tqi_segments_t *segs, uint32_t lo, uint32_t cnt);

/* Names what the run holds, for tqi_segments_check_end, and compares its own figures. */
tq_status_t tqi_run_check(const tqi_run_t *run, tqi_segments_t *segs, tqi_err_t *err);

#endif
