/* SPDX-License-Identifier: Apache-2.0 */
/* How the client's side finds a unit's memory: within this folder only. Any thread. */
#ifndef TQI_NET_INPROC_ARENA_H
#define TQI_NET_INPROC_ARENA_H

#include <stdint.h>

#include "net/inproc/inproc.h"

typedef struct tqi_inproc_segment tqi_inproc_segment_t;

/* A counted reference, or NULL when this process has no such arena (any more). */
tqi_inproc_arena_t *tqi_inproc_arena_find(uint64_t handle);
void tqi_inproc_arena_unref(tqi_inproc_arena_t *arena);

/* A counted reference, which keeps the segment mapped, or NULL. */
tqi_inproc_segment_t *tqi_inproc_arena_ref_segment(tqi_inproc_arena_t *arena, uint32_t id);
void tqi_inproc_segment_unref(tqi_inproc_segment_t *segment);
/* Where a range is mapped; NULL if it is not inside the segment. */
uint8_t *tqi_inproc_segment_at(tqi_inproc_segment_t *segment, uint64_t offset, uint64_t len);

#endif
