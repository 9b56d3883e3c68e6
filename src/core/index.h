/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity of rows: indexes, which are unique in the store and never used twice (INV-2), and
 * positions, which count a partition's rows from 0 in the order in which they were made.
 *
 * Indexes are given out in blocks of 1,024 that belong to one partition. The partition's n-th block
 * is its ordinal n; position = ordinal * 1,024 + offset, and all of the partition's bitsets run over
 * positions. Blocks are ascending, so index order is position order. Leading blocks whose rows are
 * all dead are dropped: an emptied partition costs one block record.
 */
#ifndef TQI_CORE_INDEX_H
#define TQI_CORE_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include <tq/types.h>

#include "base/bitset.h"
#include "base/env.h"
#include "base/vec.h"

#define TQI_BLOCK_ROWS TQI_LEAF_BITS
#define TQI_POS_NONE TQI_BITS_NONE

/* The store's own: where the next block comes from. */
typedef struct tqi_index_source {
    uint64_t next_block;
} tqi_index_source_t;

/* What is known of a block's rows beyond bits: columns of 1,024 entries, each made when the first
 * of its rows needs it (core/partition.c). */
typedef struct tqi_block {
    uint64_t id;            /* index / 1,024 */
    uint32_t dead_cnt;      /* rows of it that are dead */
    uint32_t pending_sum;   /* sum of the pending column */
    uint32_t unit;          /* of its placed rows while units is NULL; 0: none is placed */
    uint32_t *units;        /* of each row; 0: not placed */
    uint32_t *pending;      /* puts that resolved the row and have not ended */
    struct tqi_tags **tags; /* NULL: an empty map */
    const struct tqi_map_str_item **keys; /* NULL: the row has none */
} tqi_block_t;

typedef struct tqi_index {
    const tqi_env_t *env;
    tqi_index_source_t *source;
    TQI_VEC(tqi_block_t) blocks; /* live ones are [head, len) */
    size_t head;
    uint64_t first_ordinal; /* of blocks.at[head] */
    uint64_t end;           /* position that the next new row gets */
} tqi_index_t;

/* Allocates nothing. */
void tqi_index_init(tqi_index_t *index, const tqi_env_t *env, tqi_index_source_t *source);
/* The columns must have been freed. */
void tqi_index_fini(tqi_index_t *index);

/* Makes blocks so that `cnt` more rows have one; does not move end. E_NO_MEMORY, with fewer. */
tq_status_t tqi_index_extend(tqi_index_t *index, uint64_t cnt);

/* Ordinals of live blocks are [first, limit). */
static inline uint64_t tqi_index_first(const tqi_index_t *index)
{
    return index->first_ordinal;
}
static inline uint64_t tqi_index_limit(const tqi_index_t *index)
{
    return index->first_ordinal + (index->blocks.len - index->head);
}

/* The block of an ordinal, or NULL if it was dropped or is not there yet. Until the next extend. */
static inline tqi_block_t *tqi_index_block(const tqi_index_t *index, uint64_t ordinal)
{
    if (ordinal < index->first_ordinal || ordinal >= tqi_index_limit(index))
        return NULL;
    return &index->blocks.at[index->head + (size_t)(ordinal - index->first_ordinal)];
}

/* Position of a row; TQI_POS_NONE if it is not of this partition or its block was dropped. *hint is
 * the ordinal found last (start with 0): runs of rows cost no search. */
uint64_t tqi_index_pos(const tqi_index_t *index, tq_row_t row, uint64_t *hint);

/* Row at a position of a live block. */
tq_row_t tqi_index_row(const tqi_index_t *index, uint64_t pos);

/* Drops the leading blocks that are full and whose rows are all dead; returns the first ordinal. The
 * columns of a dropped block must have been freed. */
uint64_t tqi_index_drop_dead(tqi_index_t *index);

#endif
