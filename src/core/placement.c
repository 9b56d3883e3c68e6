/* SPDX-License-Identifier: Apache-2.0 */
#include "core/placement.h"

#include "base/assert.h"

#define PART_ROWS_MAX 4096u

uint32_t tqi_placement_part(uint32_t rows_cnt, uint32_t at)
{
    uint32_t parts = (rows_cnt + PART_ROWS_MAX - 1) / PART_ROWS_MAX;

    if (parts <= 1)
        return rows_cnt - at;
    /* Parts i of n end at rows_cnt * i / n. */
    for (uint32_t i = 1; i <= parts; i++) {
        uint32_t end = (uint32_t)((uint64_t)rows_cnt * i / parts);

        if (end > at)
            return end - at;
    }
    return rows_cnt - at;
}

/* Most free bytes among the local ones with room, or among all; ties by turn. */
static uint32_t choose_among(const tqi_candidate_t *candidates, uint32_t cnt, bool is_local,
                             uint64_t bytes, uint64_t turn)
{
    uint32_t best = cnt;

    for (uint32_t i = 0; i < cnt; i++) {
        uint32_t at = (uint32_t)((turn + i) % cnt);

        if (is_local && (!candidates[at].is_local || candidates[at].free_bytes < bytes))
            continue;
        if (best == cnt || candidates[at].free_bytes > candidates[best].free_bytes)
            best = at;
    }
    return best;
}

uint32_t tqi_placement_choose(tqi_candidate_t *candidates, uint32_t cnt, uint64_t bytes,
                              uint64_t *turn)
{
    uint32_t chosen;

    tqi_assert(cnt > 0);
    chosen = choose_among(candidates, cnt, true, bytes, *turn);
    if (chosen == cnt)
        chosen = choose_among(candidates, cnt, false, bytes, *turn);
    *turn = (uint64_t)chosen + 1;
    candidates[chosen].free_bytes -=
        bytes < candidates[chosen].free_bytes ? bytes : candidates[chosen].free_bytes;
    return chosen;
}
