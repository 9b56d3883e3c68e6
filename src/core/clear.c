/* SPDX-License-Identifier: Apache-2.0 */
#include "core/clear.h"

#include "base/assert.h"

TQI_MACHINE(tqi_clear_machine, "clear", TQI_CLEAR, TQI_CLEAR_STEPS);

void tqi_clear_step(tqi_clear_t *clear, tqi_clear_event_t event)
{
    clear->state = (tqi_clear_state_t)tqi_machine_step(&tqi_clear_machine, clear->state, event);
}

void tqi_clear_init(tqi_clear_t *clear, const tqi_env_t *env, uint64_t id)
{
    *clear = (tqi_clear_t){.id = id};
    tqi_bits_init(&clear->rows, env);
}

void tqi_clear_fini(tqi_clear_t *clear)
{
    tqi_bits_fini(&clear->rows);
}

tq_status_t tqi_clear_reserve(tqi_clear_t *clear, uint64_t ordinal)
{
    return tqi_bits_reserve(&clear->rows, ordinal * TQI_BLOCK_ROWS, ordinal * TQI_BLOCK_ROWS + 1);
}

uint32_t tqi_clear_add(tqi_partition_t *p, tqi_clear_t *clear, const tqi_mask_t *mask,
                       tqi_mask_t *taken, tqi_key_fn on_key, void *ctx)
{
    tqi_mask_t cleared;

    tqi_partition_clear(p, mask, &cleared, on_key, ctx);
    if (taken)
        *taken = cleared;
    if (!tqi_mask_any(&cleared))
        return 0;
    tq_status_t rc = tqi_bits_or_leaf(&clear->rows, cleared.ordinal, cleared.words);
    tqi_assert(rc == TQ_OK);
    clear->rows_cnt += tqi_mask_count(&cleared);
    return tqi_mask_count(&cleared);
}

bool tqi_clear_meets(const tqi_clear_t *clear, const tqi_mask_t *mask)
{
    uint64_t both[TQI_LEAF_WORDS];

    tqi_leaf_copy(both, mask->words);
    tqi_leaf_and(both, tqi_bits_leaf(&clear->rows, mask->ordinal));
    return tqi_leaf_any(both);
}

bool tqi_clear_ranges(const tqi_partition_t *p, const tqi_clear_t *clear,
                      const tqi_placed_t *placed, uint64_t *ordinal, uint64_t *lo, uint64_t *hi,
                      uint32_t max, uint32_t *cnt)
{
    tqi_mask_t mask;

    tqi_assert(max >= TQI_BLOCK_ROWS / 2);
    *cnt = 0;
    for (uint64_t at = *ordinal; tqi_mask_next(&clear->rows, &at, &mask); *ordinal = at) {
        const tqi_block_t *block = tqi_index_block(&p->index, mask.ordinal);

        /* A block has at most 512 runs. */
        if (max - *cnt < TQI_BLOCK_ROWS / 2)
            return true;
        tqi_leaf_and(mask.words, tqi_bits_leaf(&placed->rows, mask.ordinal));
        for (size_t bit = tqi_words_next(mask.words, TQI_LEAF_WORDS, 0); bit < TQI_BLOCK_ROWS;) {
            uint64_t row = block->id * TQI_BLOCK_ROWS + bit;

            if (*cnt > 0 && hi[*cnt - 1] == row) {
                hi[*cnt - 1]++;
            } else {
                lo[*cnt] = row;
                hi[*cnt] = row + 1;
                ++*cnt;
            }
            bit = tqi_words_next(mask.words, TQI_LEAF_WORDS, bit + 1);
        }
    }
    return false;
}

bool tqi_clear_bury(tqi_partition_t *p, tqi_clear_t *clear, uint32_t blocks_max,
                    tqi_dead_block_fn on_dead, void *ctx)
{
    tqi_mask_t mask;
    uint64_t block;

    tqi_invariant(clear->waiting_cnt == 0, "INV-9");
    for (; blocks_max > 0; blocks_max--) {
        uint64_t at = clear->buried_to;

        if (!tqi_mask_next(&clear->rows, &at, &mask)) {
            tqi_partition_drop_dead(p);
            return true;
        }
        if (tqi_partition_bury(p, &mask, &block))
            on_dead(ctx, block);
        tqi_bits_andnot_leaf(&clear->rows, mask.ordinal, mask.words);
        clear->buried_to = at;
    }
    return false;
}
