/* SPDX-License-Identifier: Apache-2.0 */
#include "core/ready.h"

#include <string.h>

#include "base/assert.h"

static tqi_ready_t *set_of(const tqi_node_t *node)
{
    return tqi_container_of(node, tqi_ready_t, node);
}

static void set_free(tqi_partition_t *p, tqi_ready_t *set)
{
    tqi_list_remove(&p->ready, &set->node);
    tqi_summary_fini(&set->rows);
    tqi_env_free(p->env, set->fields, (set->fields_cnt + 1) * sizeof *set->fields);
    tqi_env_free(p->env, set, sizeof *set);
}

void tqi_ready_free_all(tqi_partition_t *p)
{
    tqi_list_each(&p->ready, node)
    {
        set_free(p, set_of(node));
    }
}

static void fields_sort(tqi_field_t **fields, uint32_t cnt)
{
    /* A few fields, and callers name them in the same order each time. */
    for (uint32_t i = 1; i < cnt; i++) {
        tqi_field_t *field = fields[i];
        uint32_t at = i;

        for (; at > 0 && fields[at - 1]->id > field->id; at--)
            fields[at] = fields[at - 1];
        fields[at] = field;
    }
}

static tqi_ready_t *set_find(tqi_partition_t *p, const tqi_task_t *task, tqi_field_t *const *fields,
                             uint32_t cnt)
{
    /* Marks make the comparison independent of order. */
    p->mark++;
    for (uint32_t i = 0; i < cnt; i++)
        fields[i]->mark = p->mark;
    tqi_list_each(&p->ready, node)
    {
        tqi_ready_t *set = set_of(node);
        uint32_t i = 0;

        if (set->task != task || set->fields_cnt != cnt)
            continue;
        while (i < cnt && set->fields[i]->mark == p->mark)
            i++;
        if (i == cnt)
            return set;
    }
    return NULL;
}

/* Room for one more set. */
static tq_status_t set_evict(tqi_partition_t *p, tqi_err_t *err)
{
    if (p->ready.cnt < TQ_PARTITION_READY_SETS_MAX)
        return TQ_OK;
    tqi_list_each(&p->ready, node)
    {
        if (set_of(node)->waiters_cnt == 0) {
            set_free(p, set_of(node));
            return TQ_OK;
        }
    }
    return tqi_fail(err, TQ_E_BUSY,
                    "fetches wait for %u different sets of fields and tasks, which is the limit of "
                    "a partition",
                    TQ_PARTITION_READY_SETS_MAX);
}

tq_status_t tqi_ready_get(tqi_partition_t *p, tqi_task_t *task, tqi_field_t *const *fields,
                          uint32_t fields_cnt, tqi_ready_t **out, tqi_err_t *err)
{
    tqi_ready_t *set = set_find(p, task, fields, fields_cnt);
    tq_status_t rc;

    if (set) {
        if (set->node.next != &p->ready.head) {
            tqi_list_remove(&p->ready, &set->node);
            tqi_list_push_back(&p->ready, &set->node);
        }
        *out = set;
        return TQ_OK;
    }
    rc = set_evict(p, err);
    if (rc != TQ_OK)
        return rc;
    set = tqi_env_zalloc(p->env, sizeof *set);
    if (!set)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a ready set");
    tqi_summary_init(&set->rows, p->env);
    /* One more than needed, so that an empty set has memory as well. */
    set->fields = tqi_env_calloc(p->env, (size_t)fields_cnt + 1, sizeof *set->fields);
    uint64_t first = tqi_index_first(&p->index), limit = tqi_index_limit(&p->index);
    if (!set->fields ||
        tqi_summary_reserve(&set->rows, first * TQI_BLOCK_ROWS, limit * TQI_BLOCK_ROWS) != TQ_OK) {
        tqi_summary_fini(&set->rows);
        tqi_env_free(p->env, set->fields, ((size_t)fields_cnt + 1) * sizeof *set->fields);
        tqi_env_free(p->env, set, sizeof *set);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a ready set of %llu rows",
                        (unsigned long long)((limit - first) * TQI_BLOCK_ROWS));
    }
    if (fields_cnt > 0)
        memcpy(set->fields, fields, fields_cnt * sizeof *fields);
    fields_sort(set->fields, fields_cnt);
    set->fields_cnt = fields_cnt;
    set->task = task;
    set->built_to = first;
    tqi_list_push_back(&p->ready, &set->node);
    *out = set;
    return TQ_OK;
}

/* What the set should hold of the block (INV-3). */
static void should_hold(const tqi_partition_t *p, const tqi_ready_t *set, uint64_t ordinal,
                        uint64_t *words)
{
    tqi_leaf_copy(words, tqi_bits_leaf(&p->state[TQI_ROW_ACTIVE], ordinal));
    tqi_leaf_andnot(words, tqi_bits_leaf(&p->absent, ordinal));
    tqi_leaf_andnot(words, tqi_bits_leaf(&set->task->consumed, ordinal));
    for (uint32_t i = 0; i < set->fields_cnt; i++)
        tqi_leaf_and(words, tqi_bits_leaf(&set->fields[i]->produced, ordinal));
}

static void set_refresh(tqi_partition_t *p, tqi_ready_t *set, const tqi_mask_t *mask)
{
    uint64_t should[TQI_LEAF_WORDS], is[TQI_LEAF_WORDS], add[TQI_LEAF_WORDS];

    should_hold(p, set, mask->ordinal, should);
    tqi_leaf_and(should, mask->words);
    tqi_leaf_copy(is, tqi_summary_leaf(&set->rows, mask->ordinal));
    tqi_leaf_and(is, mask->words);
    tqi_leaf_copy(add, should);
    tqi_leaf_andnot(add, is);
    tqi_leaf_andnot(is, should);
    if (tqi_leaf_any(is))
        tqi_summary_andnot_leaf(&set->rows, mask->ordinal, is);
    if (tqi_leaf_any(add)) {
        tq_status_t rc = tqi_summary_or_leaf(&set->rows, mask->ordinal, add);

        tqi_assert(rc == TQ_OK);
        set->adds++;
        p->changes++;
    }
}

bool tqi_ready_build(tqi_partition_t *p, tqi_ready_t *set, uint32_t blocks_max)
{
    uint64_t limit = tqi_index_limit(&p->index);
    tqi_mask_t mask;

    memset(mask.words, 0xff, sizeof mask.words);
    for (; set->built_to < limit && blocks_max > 0; blocks_max--) {
        mask.ordinal = set->built_to++;
        set_refresh(p, set, &mask);
    }
    return set->built_to >= limit;
}

void tqi_ready_refresh(tqi_partition_t *p, const tqi_task_t *task, const tqi_mask_t *mask)
{
    tqi_list_each(&p->ready, node)
    {
        if (!task || set_of(node)->task == task)
            set_refresh(p, set_of(node), mask);
    }
}

void tqi_ready_refresh_marked(tqi_partition_t *p, const tqi_mask_t *mask)
{
    tqi_list_each(&p->ready, node)
    {
        tqi_ready_t *set = set_of(node);

        for (uint32_t i = 0; i < set->fields_cnt; i++)
            if (set->fields[i]->mark == p->mark) {
                set_refresh(p, set, mask);
                break;
            }
    }
}

void tqi_ready_remove(tqi_partition_t *p, const tqi_task_t *task, const tqi_mask_t *mask)
{
    tqi_list_each(&p->ready, node)
    {
        if (!task || set_of(node)->task == task)
            tqi_summary_andnot_leaf(&set_of(node)->rows, mask->ordinal, mask->words);
    }
}

tq_status_t tqi_ready_reserve(tqi_partition_t *p, uint64_t lo, uint64_t hi)
{
    tqi_list_each(&p->ready, node)
    {
        if (tqi_summary_reserve(&set_of(node)->rows, lo, hi) != TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    return TQ_OK;
}

void tqi_ready_drop_before(tqi_partition_t *p, uint64_t ordinal)
{
    tqi_list_each(&p->ready, node)
    {
        tqi_ready_t *set = set_of(node);

        tqi_summary_drop_before(&set->rows, ordinal);
        if (set->built_to < ordinal)
            set->built_to = ordinal;
    }
}

bool tqi_ready_check(const tqi_partition_t *p, tqi_err_t *err)
{
    tqi_list_each(&p->ready, node)
    {
        const tqi_ready_t *set = set_of(node);
        uint64_t count = 0;

        for (uint64_t at = tqi_index_first(&p->index); at < tqi_index_limit(&p->index); at++) {
            const uint64_t *is = tqi_summary_leaf(&set->rows, at);
            uint64_t should[TQI_LEAF_WORDS];

            /* Blocks whose first row was refused for want of memory have no leaves yet. */
            if (!is && at * TQI_BLOCK_ROWS >= p->index.end)
                continue;
            if (!is) {
                tqi_fail(err, TQ_E_BUG,
                         "INV-3: a ready set of task '%s' has no leaf for block %llu",
                         set->task->name, (unsigned long long)at);
                return false;
            }
            count += tqi_leaf_count(is);
            if (at >= set->built_to)
                continue;
            should_hold(p, set, at, should);
            if (memcmp(is, should, sizeof should) != 0) {
                tqi_fail(err, TQ_E_BUG, "INV-3: a ready set of task '%s' is wrong in block %llu",
                         set->task->name, (unsigned long long)at);
                return false;
            }
        }
        if (count != tqi_ready_count(set)) {
            tqi_fail(err, TQ_E_BUG, "INV-3: a ready set of task '%s' counts %llu, has %llu",
                     set->task->name, (unsigned long long)tqi_ready_count(set),
                     (unsigned long long)count);
            return false;
        }
    }
    return true;
}
