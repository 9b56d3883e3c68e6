/* SPDX-License-Identifier: Apache-2.0 */
#include "core/waiter.h"

#include "base/assert.h"

void tqi_waiter_park(const tqi_partition_t *p, tqi_waiter_t *w, tqi_task_t *task, tqi_ready_t *set,
                     uint32_t need)
{
    tqi_assert(!tqi_waiter_is_parked(w));
    w->task = task;
    w->set = set;
    w->need = need;
    if (set)
        set->waiters_cnt++;
    tqi_list_push_back(&task->waiters, &w->node);
    tqi_waiter_looked(p, w);
}

void tqi_waiter_leave(tqi_waiter_t *w)
{
    if (!tqi_waiter_is_parked(w))
        return;
    tqi_list_remove(&w->task->waiters, &w->node);
    if (w->set)
        w->set->waiters_cnt--;
    w->set = NULL;
}

void tqi_waiter_looked(const tqi_partition_t *p, tqi_waiter_t *w)
{
    if (w->set)
        w->adds_seen = w->set->adds;
    w->fields_seen = p->fields.len;
}

void tqi_waiter_set(tqi_waiter_t *w, tqi_ready_t *set)
{
    tqi_assert(tqi_waiter_is_parked(w) && !w->set);
    w->set = set;
    set->waiters_cnt++;
}

bool tqi_waiter_is_worth(const tqi_partition_t *p, const tqi_waiter_t *w)
{
    if (!w->set)
        return w->fields_seen != p->fields.len;
    return w->adds_seen != w->set->adds && tqi_ready_count(w->set) >= w->need;
}

tqi_waiter_t *tqi_waiter_next(const tqi_partition_t *p)
{
    for (tqi_map_str_item_t *item = tqi_map_str_first(&p->tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        tqi_list_each(&task->waiters, node)
        {
            tqi_waiter_t *w = tqi_container_of(node, tqi_waiter_t, node);

            if (tqi_waiter_is_worth(p, w))
                return w;
        }
    }
    return NULL;
}

uint64_t tqi_waiter_cnt(const tqi_partition_t *p)
{
    uint64_t cnt = 0;

    for (tqi_map_str_item_t *item = tqi_map_str_first(&p->tasks); item;
         item = tqi_map_str_next(item))
        cnt += ((const tqi_task_t *)item->value)->waiters.cnt;
    return cnt;
}
