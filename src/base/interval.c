/* SPDX-License-Identifier: Apache-2.0 */
#include "base/interval.h"

#include <string.h>

void tqi_intervals_init(tqi_intervals_t *set, const tqi_env_t *env)
{
    tqi_vec_init(&set->vec, env);
    set->covered = 0;
}

void tqi_intervals_fini(tqi_intervals_t *set)
{
    tqi_vec_fini(&set->vec);
    set->covered = 0;
}

/* The first interval whose hi is at or above x: the one that holds x or ends at it, else the next
 * one up. */
static size_t interval_find(const tqi_intervals_t *set, uint64_t x)
{
    size_t lo = 0;
    size_t hi = set->vec.len;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (set->vec.at[mid].hi < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The interval that holds x, or NULL. */
static const tqi_interval_t *interval_of(const tqi_intervals_t *set, uint64_t x)
{
    if (x == UINT64_MAX)
        return NULL;
    size_t i = interval_find(set, x + 1);
    return i < set->vec.len && set->vec.at[i].lo <= x ? &set->vec.at[i] : NULL;
}

tq_status_t tqi_intervals_add(tqi_intervals_t *set, uint64_t lo, uint64_t hi)
{
    if (lo >= hi)
        return TQ_OK;
    /* [first, end) are the intervals that touch [lo, hi) and become one with it. */
    size_t first = interval_find(set, lo);
    size_t end = first;
    tqi_interval_t merged = {lo, hi};
    uint64_t had = 0;

    for (; end < set->vec.len && set->vec.at[end].lo <= hi; end++) {
        const tqi_interval_t *old = &set->vec.at[end];

        merged.lo = old->lo < merged.lo ? old->lo : merged.lo;
        merged.hi = old->hi > merged.hi ? old->hi : merged.hi;
        had += old->hi - old->lo;
    }
    if (end == first && tqi_vec_reserve(&set->vec, 1) != TQ_OK)
        return TQ_E_NO_MEMORY;
    if (first + 1 != end && end < set->vec.len)
        memmove(&set->vec.at[first + 1], &set->vec.at[end],
                (set->vec.len - end) * sizeof *set->vec.at);
    set->vec.len = set->vec.len + first + 1 - end;
    set->vec.at[first] = merged;
    set->covered += merged.hi - merged.lo - had;
    return TQ_OK;
}

bool tqi_intervals_contains(const tqi_intervals_t *set, uint64_t x)
{
    return interval_of(set, x) != NULL;
}

bool tqi_intervals_contains_range(const tqi_intervals_t *set, uint64_t lo, uint64_t hi)
{
    if (lo >= hi)
        return true;
    const tqi_interval_t *interval = interval_of(set, lo);
    return interval != NULL && interval->hi >= hi;
}

uint64_t tqi_intervals_next_gap(const tqi_intervals_t *set, uint64_t from)
{
    const tqi_interval_t *interval = interval_of(set, from);

    return interval != NULL ? interval->hi : from;
}
