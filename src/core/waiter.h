/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiters: fetches that can't be served yet. One queue per (partition, task), in order of arrival. A
 * wake-up walks it and asks of each only whether rows came into its ready set since it was looked at
 * last and whether the count is enough, so one that can't be served holds nobody up.
 *
 * Deadlines are the owner's business: whoever is due simply leaves.
 */
#ifndef TQI_CORE_WAITER_H
#define TQI_CORE_WAITER_H

#include "core/ready.h"

/* Embedded in what waits. All zero: not parked. */
typedef struct tqi_waiter {
    tqi_node_t node; /* in the task's queue */
    tqi_task_t *task;
    tqi_ready_t *set; /* NULL: some field of it does not exist yet */
    uint32_t need;
    uint64_t adds_seen;   /* the set's adds when it was looked at last */
    uint64_t fields_seen; /* with set NULL: fields of the partition then */
} tqi_waiter_t;

static inline bool tqi_waiter_is_parked(const tqi_waiter_t *w)
{
    return tqi_node_is_linked(&w->node);
}

/* Parks at the end of the task's queue; the set (may be NULL) stays as long as it has waiters. */
void tqi_waiter_park(const tqi_partition_t *p, tqi_waiter_t *w, tqi_task_t *task, tqi_ready_t *set,
                     uint32_t need);
/* Leaves the queue, if parked. */
void tqi_waiter_leave(tqi_waiter_t *w);
/* It was looked at and stays: not again before something changes. */
void tqi_waiter_looked(const tqi_partition_t *p, tqi_waiter_t *w);
/* Gives a parked waiter that had no set the one that exists now. */
void tqi_waiter_set(tqi_waiter_t *w, tqi_ready_t *set);
/* Whether looking at it may help. */
bool tqi_waiter_is_worth(const tqi_partition_t *p, const tqi_waiter_t *w);
/* The first waiter of any task that is worth looking at, or NULL. */
tqi_waiter_t *tqi_waiter_next(const tqi_partition_t *p);
/* How many are parked in the partition. */
uint64_t tqi_waiter_cnt(const tqi_partition_t *p);

#endif
