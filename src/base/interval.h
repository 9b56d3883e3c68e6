/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of 64-bit numbers kept as disjoint intervals [lo, hi), sorted and coalesced: ended
 * sessions, dead blocks, sequence numbers seen. What arrives roughly in order stays one interval,
 * so the array is short; look-ups are binary searches, adding in the middle moves what lies above.
 */
#ifndef TQI_BASE_INTERVAL_H
#define TQI_BASE_INTERVAL_H

#include "base/vec.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tqi_interval {
    uint64_t lo;
    uint64_t hi; /* not in it; lo < hi */
} tqi_interval_t;

typedef struct tqi_intervals {
    TQI_VEC(tqi_interval_t) vec; /* read vec.at[0 .. vec.len) to walk the set; add to change it */
    uint64_t covered;            /* how many numbers are in the set */
} tqi_intervals_t;

/* Allocates nothing. */
void tqi_intervals_init(tqi_intervals_t *set, const tqi_env_t *env);
void tqi_intervals_fini(tqi_intervals_t *set);

/* Adds [lo, hi), of which any part may be there already; nothing when lo >= hi. UINT64_MAX itself
 * can't be in a set. OK, or E_NO_MEMORY and the set unchanged. */
tq_status_t tqi_intervals_add(tqi_intervals_t *set, uint64_t lo, uint64_t hi);
bool tqi_intervals_contains(const tqi_intervals_t *set, uint64_t x);
/* All of [lo, hi); true when lo >= hi. */
bool tqi_intervals_contains_range(const tqi_intervals_t *set, uint64_t lo, uint64_t hi);
/* The smallest number at or above `from` that is not in the set. */
uint64_t tqi_intervals_next_gap(const tqi_intervals_t *set, uint64_t from);

#endif
