/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: where a unit's payload bytes live, and the allocator of extents in them.
 *
 * A segment is one mapping of 64 MiB, or one of its own for a larger extent. Space is given out in
 * granules of 256 bytes, by first fit at the lowest address, so that memory that was used before
 * (and is warm: 7.2 GB/s against 2.2 into fresh pages) is used again. An extent is given back whole
 * or by sub-range, in any order.
 *
 * Memory that is free but populated is idle. Beyond a budget it goes back to the system: an empty
 * segment is closed, else the chunks of 64 KiB that became free are punched.
 *
 * This is the bookkeeping only: segments are opened, punched and closed by the caller's functions,
 * and the bytes in them are never touched here.
 */
#ifndef TQI_CORE_SEGMENT_H
#define TQI_CORE_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/err.h"

#define TQI_GRANULE_BYTES 256u
#define TQI_CHUNK_BYTES (64u << 10)

/* As tqi_arena_t (net/payload.h); ids are never reused, sizes are multiples of TQI_CHUNK_BYTES. */
typedef struct tqi_segment_ops {
    void *ctx;
    tq_status_t (*open)(void *ctx, uint32_t id, uint64_t bytes, void **base, tqi_err_t *err);
    void (*punch)(void *ctx, uint32_t id, uint64_t offset, uint64_t len);
    void (*close)(void *ctx, uint32_t id);
} tqi_segment_ops_t;

typedef struct tqi_segments tqi_segments_t;
typedef struct tqi_segment tqi_segment_t;

/* A run of granules; segment NULL and bytes 0 for nothing at all. */
typedef struct tqi_span {
    tqi_segment_t *segment;
    uint64_t offset; /* in the segment, a multiple of TQI_GRANULE_BYTES */
    uint64_t bytes;  /* a multiple of TQI_GRANULE_BYTES */
} tqi_span_t;

typedef struct tqi_segments_stat {
    uint64_t used_bytes;   /* in extents */
    uint64_t idle_bytes;   /* in chunks that are free but populated */
    uint64_t mapped_bytes; /* of all segments */
    uint32_t segments_cnt;
} tqi_segments_stat_t;

/* segment_bytes is rounded up to a chunk; segments get ids from id_first on. NULL when out of
 * memory. Opens nothing yet. */
tqi_segments_t *tqi_segments_new(const tqi_env_t *env, const tqi_segment_ops_t *ops,
                                 uint64_t segment_bytes, uint64_t idle_bytes_max,
                                 uint32_t id_first);
/* The id that the next segment will get. */
uint32_t tqi_segments_id_next(const tqi_segments_t *segs);
/* Closes every segment; whatever is in them is gone. NULL is fine. */
void tqi_segments_free(tqi_segments_t *segs);

/* What an extent of `bytes` costs: bytes rounded up to granules; UINT64_MAX on overflow. */
uint64_t tqi_segments_cost(uint64_t bytes);

/* An extent of bytes > 0, its contents unspecified, aligned to a granule. E_NO_MEMORY, or what
 * opening a segment answered. Capacity is the caller's business. */
tq_status_t tqi_segments_take(tqi_segments_t *segs, uint64_t bytes, tqi_span_t *out,
                              tqi_err_t *err);
/* Gives back a span, or any granules of one; each of them must have been taken. The segment may be
 * closed by this. */
void tqi_segments_give(tqi_segments_t *segs, tqi_span_t span);

uint32_t tqi_segment_id(const tqi_segment_t *segment);
/* Address of a span's first byte. */
void *tqi_span_data(tqi_span_t span);
void tqi_segments_stat(const tqi_segments_t *segs, tqi_segments_stat_t *out);

/* Whether the spans named between begin and end are exactly what is taken, each granule once, and
 * the figures agree. Costs a copy of the bitmaps. E_NO_MEMORY, E_BUG with the sentence. */
tq_status_t tqi_segments_check_begin(tqi_segments_t *segs, tqi_err_t *err);
tq_status_t tqi_segments_check_span(tqi_segments_t *segs, tqi_span_t span, tqi_err_t *err);
tq_status_t tqi_segments_check_end(tqi_segments_t *segs, tqi_err_t *err);

#endif
