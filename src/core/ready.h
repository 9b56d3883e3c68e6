/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ready sets: for each (task, set of fields) that is asked for, the rows that a fetch may be given.
 * Built at first use, block by block, then kept up to date by every change; at most 64 in a
 * partition, the least recently used without waiters leaving first.
 *
 * Every live block has its leaf in every set from the start, so that keeping one up to date can't
 * fail.
 */
#ifndef TQI_CORE_READY_H
#define TQI_CORE_READY_H

#include "core/partition.h"

typedef struct tqi_ready {
    tqi_node_t node; /* in the partition's list */
    tqi_task_t *task;
    tqi_field_t **fields; /* ascending by id */
    uint32_t fields_cnt;
    tqi_summary_t rows;
    uint64_t built_to;    /* ordinal: blocks before it are in */
    uint64_t adds;        /* grows whenever rows come in */
    uint32_t waiters_cnt; /* parked on it: it stays */
} tqi_ready_t;

static inline uint64_t tqi_ready_count(const tqi_ready_t *set)
{
    return tqi_summary_count(&set->rows);
}

/* Finds or makes the set; fields are distinct, in any order. A new one is not built yet.
 * E_NO_MEMORY; E_BUSY when TQ_PARTITION_READY_SETS_MAX sets have waiters. */
tq_status_t tqi_ready_get(tqi_partition_t *p, tqi_task_t *task, tqi_field_t *const *fields,
                          uint32_t fields_cnt, tqi_ready_t **out, tqi_err_t *err);
/* Builds on, up to blocks_max blocks; true when it is complete. */
bool tqi_ready_build(tqi_partition_t *p, tqi_ready_t *set, uint32_t blocks_max);

/* ---- for core/partition.c ---- */

/* Brings the mask's rows up to date in every set (task NULL) or in the task's. */
void tqi_ready_refresh(tqi_partition_t *p, const tqi_task_t *task, const tqi_mask_t *mask);
/* The same in the sets with a field whose mark is the partition's. */
void tqi_ready_refresh_marked(tqi_partition_t *p, const tqi_mask_t *mask);
/* Takes the mask's rows out of every set (task NULL) or of the task's. */
void tqi_ready_remove(tqi_partition_t *p, const tqi_task_t *task, const tqi_mask_t *mask);
/* Leaves for [lo, hi) in all sets. E_NO_MEMORY. */
tq_status_t tqi_ready_reserve(tqi_partition_t *p, uint64_t lo, uint64_t hi);
void tqi_ready_drop_before(tqi_partition_t *p, uint64_t ordinal);
void tqi_ready_free_all(tqi_partition_t *p);
bool tqi_ready_check(const tqi_partition_t *p, tqi_err_t *err);

#endif
