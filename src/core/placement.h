/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: which unit new rows go to. Up to 4,096 rows go whole to one unit, more in equal parts.
 * Each part: of the units on the writer's host that have room for it, the one with most free bytes;
 * if there is none, the same over all units. Equals take turns.
 */
#ifndef TQI_CORE_PLACEMENT_H
#define TQI_CORE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

/* A unit that may be chosen. Free bytes are those of its last PONG less what was placed since. */
typedef struct tqi_candidate {
    uint32_t unit;
    bool is_local;
    uint64_t free_bytes;
} tqi_candidate_t;

/* Rows of the part that begins at row `at` of rows_cnt new ones. */
uint32_t tqi_placement_part(uint32_t rows_cnt, uint32_t at);

/* Index of the chosen candidate (cnt > 0) for a part of `bytes`; its free_bytes are reduced. *turn is
 * kept by the caller. If nobody has room, whoever has most: the unit itself parks or refuses. */
uint32_t tqi_placement_choose(tqi_candidate_t *candidates, uint32_t cnt, uint64_t bytes,
                              uint64_t *turn);

#endif
