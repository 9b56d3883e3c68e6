/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clear: rows that are CLEARING together, and the units that have yet to say that no new request
 * can reach them. When the last has answered, or counts as LOST, the rows are dead. A clear that
 * meets rows of another joins it and is over when both are.
 *
 *   INV-9  rows are CLEARING exactly while one clear that waits, or has still to bury them, has them
 */
#ifndef TQI_CORE_CLEAR_H
#define TQI_CORE_CLEAR_H

#include "core/partition.h"

typedef struct tqi_clear {
    tqi_node_t node; /* in the partition's list of clears */
    uint64_t id;
    tqi_bits_t rows;      /* all of them CLEARING; those buried leave */
    uint64_t rows_cnt;    /* how many it began with */
    uint32_t waiting_cnt; /* units that have not answered */
    uint64_t buried_to;   /* ordinal: blocks before it are done */
} tqi_clear_t;

void tqi_clear_init(tqi_clear_t *clear, const tqi_env_t *env, uint64_t id);
void tqi_clear_fini(tqi_clear_t *clear);

/* Makes it possible to take the block's rows without failing. E_NO_MEMORY. */
tq_status_t tqi_clear_reserve(tqi_clear_t *clear, uint64_t ordinal);
/* Clears the mask's live rows in the partition and takes them in. How many; *taken (may be NULL)
 * gets them. Reserved before. */
uint32_t tqi_clear_add(tqi_partition_t *p, tqi_clear_t *clear, const tqi_mask_t *mask,
                       tqi_mask_t *taken, tqi_key_fn on_key, void *ctx);
/* Whether the clear has any of the mask's rows. */
bool tqi_clear_meets(const tqi_clear_t *clear, const tqi_mask_t *mask);

/* Writes the runs of rows (indexes, [lo, hi)) that the clear has on a unit, from block *ordinal on, at
 * most max of them (at least 512); *ordinal then is the block to go on with. False when that was the
 * last. */
bool tqi_clear_ranges(const tqi_partition_t *p, const tqi_clear_t *clear,
                      const tqi_placed_t *placed, uint64_t *ordinal, uint64_t *lo, uint64_t *hi,
                      uint32_t max, uint32_t *cnt);

/* Buries up to blocks_max blocks of a clear that waits for nobody. Each block that is dead for good
 * is told to on_dead. True when all rows are dead. */
typedef void (*tqi_dead_block_fn)(void *ctx, uint64_t block);
bool tqi_clear_bury(tqi_partition_t *p, tqi_clear_t *clear, uint32_t blocks_max,
                    tqi_dead_block_fn on_dead, void *ctx);

#endif
