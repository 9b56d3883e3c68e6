/* SPDX-License-Identifier: Apache-2.0 */
#include "core/grant.h"

#include "base/assert.h"

TQI_MACHINE(tqi_grant_machine, "grant", TQI_GRANT, TQI_GRANT_STEPS);

static void grant_step(tqi_grant_t *grant, tqi_grant_event_t event)
{
    grant->state = (tqi_grant_state_t)tqi_machine_step(&tqi_grant_machine, grant->state, event);
}

tq_status_t tqi_grant_make(tqi_partition_t *p, tqi_grant_t *grant, tqi_task_t *task,
                           const uint64_t *pos, uint32_t cnt)
{
    tqi_mask_t mask;
    tq_status_t rc = TQ_OK;

    tqi_bits_init(&grant->rows, p->env);
    for (uint32_t i = 0; i < cnt && rc == TQ_OK; i++)
        rc = tqi_bits_set(&grant->rows, pos[i]);
    for (uint64_t at = 0; rc == TQ_OK && tqi_mask_next(&grant->rows, &at, &mask);)
        rc = tqi_partition_consume_reserve(task, &mask);
    if (rc != TQ_OK) {
        tqi_bits_fini(&grant->rows);
        return rc;
    }
    for (uint64_t at = 0; tqi_mask_next(&grant->rows, &at, &mask);)
        tqi_partition_consume(p, task, &mask);
    grant_step(grant, TQI_GRANT_EV_GRANT);
    grant->task = task;
    tqi_list_push_back(&task->grants, &grant->node);
    return TQ_OK;
}

void tqi_grant_finish(tqi_grant_t *grant, tqi_grant_event_t event)
{
    grant_step(grant, event);
    tqi_list_remove(&grant->task->grants, &grant->node);
}

uint32_t tqi_grant_return(tqi_partition_t *p, tqi_grant_t *grant, const tqi_mask_t *mask)
{
    tqi_mask_t rows = *mask;

    tqi_leaf_and(rows.words, tqi_bits_leaf(&grant->rows, mask->ordinal));
    if (!tqi_mask_any(&rows))
        return 0;
    tqi_bits_andnot_leaf(&grant->rows, mask->ordinal, rows.words);
    tqi_partition_unconsume(p, grant->task, &rows);
    return tqi_mask_count(&rows);
}

void tqi_grant_returned(tqi_grant_t *grant)
{
    tqi_assert(tqi_bits_count(&grant->rows) == 0);
    grant_step(grant, TQI_GRANT_EV_GIVE_BACK);
    tqi_list_remove(&grant->task->grants, &grant->node);
}

void tqi_grant_fini(tqi_grant_t *grant)
{
    tqi_assert(grant->state != TQI_GRANT_PROVISIONAL);
    if (grant->state != TQI_GRANT_NONE)
        tqi_bits_fini(&grant->rows);
}

/* The grant's rows that are not cleared are consumed, and in no other grant that is in *seen. */
static bool grant_check_one(const tqi_partition_t *p, const tqi_grant_t *grant, tqi_bits_t *seen,
                            tqi_err_t *err)
{
    const tqi_task_t *task = grant->task;
    tqi_mask_t mask;

    for (uint64_t at = 0; tqi_mask_next(&grant->rows, &at, &mask);) {
        uint64_t words[TQI_LEAF_WORDS];

        tqi_partition_live(p, mask.ordinal, words);
        tqi_leaf_and(mask.words, words);
        tqi_leaf_copy(words, mask.words);
        tqi_leaf_andnot(words, tqi_bits_leaf(&task->consumed, mask.ordinal));
        if (tqi_leaf_any(words)) {
            tqi_fail(err, TQ_E_BUG,
                     "INV-8: a row granted for task '%s' in block %llu is not consumed", task->name,
                     (unsigned long long)mask.ordinal);
            return false;
        }
        tqi_leaf_copy(words, mask.words);
        tqi_leaf_and(words, tqi_bits_leaf(seen, mask.ordinal));
        if (tqi_leaf_any(words)) {
            tqi_fail(err, TQ_E_BUG, "INV-8: a row of block %llu is granted twice for task '%s'",
                     (unsigned long long)mask.ordinal, task->name);
            return false;
        }
        /* Without memory less is checked. */
        (void)tqi_bits_or_leaf(seen, mask.ordinal, mask.words);
    }
    return true;
}

bool tqi_grant_check(const tqi_partition_t *p, tqi_err_t *err)
{
    bool is_good = true;

    for (tqi_map_str_item_t *item = tqi_map_str_first(&p->tasks); item && is_good;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;
        tqi_bits_t seen;

        tqi_bits_init(&seen, p->env);
        tqi_list_each(&task->grants, node)
        {
            is_good = is_good &&
                      grant_check_one(p, tqi_container_of(node, tqi_grant_t, node), &seen, err);
        }
        tqi_bits_fini(&seen);
    }
    return is_good;
}
