/* SPDX-License-Identifier: Apache-2.0 */
#include "core/index.h"

#include <string.h>

#include "base/assert.h"

void tqi_index_init(tqi_index_t *index, const tqi_env_t *env, tqi_index_source_t *source)
{
    *index = (tqi_index_t){.env = env, .source = source};
    tqi_vec_init(&index->blocks, env);
}

void tqi_index_fini(tqi_index_t *index)
{
    tqi_vec_fini(&index->blocks);
}

tq_status_t tqi_index_extend(tqi_index_t *index, uint64_t cnt)
{
    while (tqi_index_limit(index) * TQI_BLOCK_ROWS - index->end < cnt) {
        if (index->source->next_block > TQ_ROW_MAX / TQI_BLOCK_ROWS)
            return TQ_E_NO_MEMORY;
        tqi_block_t block = {.id = index->source->next_block};
        tq_status_t rc = tqi_vec_push(&index->blocks, block);
        if (rc != TQ_OK)
            return rc;
        index->source->next_block++;
    }
    return TQ_OK;
}

uint64_t tqi_index_pos(const tqi_index_t *index, tq_row_t row, uint64_t *hint)
{
    uint64_t id = row / TQI_BLOCK_ROWS;
    const tqi_block_t *block = tqi_index_block(index, *hint);

    if (!block || block->id != id) {
        size_t lo = index->head, hi = index->blocks.len;

        while (lo < hi) {
            size_t mid = lo + (hi - lo) / 2;

            if (index->blocks.at[mid].id < id)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (lo == index->blocks.len || index->blocks.at[lo].id != id)
            return TQI_POS_NONE;
        *hint = index->first_ordinal + (lo - index->head);
    }
    uint64_t pos = *hint * TQI_BLOCK_ROWS + row % TQI_BLOCK_ROWS;
    return pos < index->end ? pos : TQI_POS_NONE;
}

tq_row_t tqi_index_row(const tqi_index_t *index, uint64_t pos)
{
    const tqi_block_t *block = tqi_index_block(index, pos / TQI_BLOCK_ROWS);

    tqi_assert(block && pos < index->end);
    return block->id * TQI_BLOCK_ROWS + pos % TQI_BLOCK_ROWS;
}

uint64_t tqi_index_drop_dead(tqi_index_t *index)
{
    while (index->head < index->blocks.len) {
        const tqi_block_t *block = &index->blocks.at[index->head];

        /* The last block stays until it has given out all of its indexes. */
        if (block->dead_cnt < TQI_BLOCK_ROWS)
            break;
        tqi_assert(!block->units && !block->pending && !block->tags && !block->keys);
        index->head++;
        index->first_ordinal++;
    }
    if (index->head == index->blocks.len) {
        tqi_vec_fini(&index->blocks);
        index->head = 0;
    }
    /* Sliding when half of the array is gone keeps a drop O(1) on average. */
    if (index->head > 16 && index->head > index->blocks.len / 2) {
        index->blocks.len -= index->head;
        memmove(index->blocks.at, index->blocks.at + index->head,
                index->blocks.len * sizeof *index->blocks.at);
        index->head = 0;
    }
    return index->first_ordinal;
}
