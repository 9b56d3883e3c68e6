/* SPDX-License-Identifier: Apache-2.0 */
#include "core/sampler.h"

#include <string.h>

#include "base/assert.h"
#include "wire/value.h"

#define BATCH_ROWS 256u

struct tqi_sampler_ops {
    const char *name;
    /* Looks at one ready row, in ascending order; may add to chosen. E_NO_MEMORY. */
    tq_status_t (*look)(const tqi_sampler_t *sampler, tqi_sample_t *sample, uint64_t pos);
    bool is_grouped;
};

/* ---- sequential ---- */

static tq_status_t sequential_look(const tqi_sampler_t *sampler, tqi_sample_t *sample, uint64_t pos)
{
    (void)sampler;
    return tqi_vec_push(&sample->chosen, pos);
}

/* ---- groups ---- */

static tq_status_t adjacent_look(const tqi_sampler_t *sampler, tqi_sample_t *sample, uint64_t pos)
{
    if (sample->run_len == 0 || pos != sample->run_lo + sample->run_len) {
        sample->run_lo = pos;
        sample->run_len = 0;
    }
    if (++sample->run_len < sampler->group)
        return TQ_OK;
    if (tqi_vec_reserve(&sample->chosen, sampler->group) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < sampler->group; i++)
        sample->chosen.at[sample->chosen.len++] = sample->run_lo + i;
    sample->run_len = 0;
    return TQ_OK;
}

/* Rows with one value of the tag, not a whole group yet. */
typedef struct tag_group {
    uint32_t cnt;
    uint32_t cap;
    uint64_t pos[];
} tag_group_t;

static size_t tag_group_bytes(uint32_t cap)
{
    return sizeof(tag_group_t) + (size_t)cap * sizeof(uint64_t);
}

static void tag_group_free(void *ctx, void *value)
{
    const tqi_env_t *env = ctx;
    tag_group_t *group = value;

    tqi_env_free(env, group, tag_group_bytes(group->cap));
}

/* Rows without the tag belong to no group. */
static tq_status_t tagged_look(const tqi_sampler_t *sampler, tqi_sample_t *sample, uint64_t pos)
{
    const tqi_env_t *env = sample->p->env;
    const tqi_tags_t *tags = tqi_partition_tags(sample->p, pos);
    const uint8_t *span;
    size_t span_len;
    tqi_value_t value;

    if (!tags || !tqi_value_find(tags->data, tags->len, sampler->group_by,
                                 strlen(sampler->group_by), &value, &span, &span_len))
        return TQ_OK;
    tag_group_t *group = tqi_map_str_get(&sample->groups, span, span_len);
    if (!group) {
        group = tqi_env_zalloc(env, tag_group_bytes(sampler->group));
        if (!group)
            return TQ_E_NO_MEMORY;
        group->cap = sampler->group;
        if (tqi_map_str_put(&sample->groups, span, span_len, group, NULL) != TQ_OK) {
            tqi_env_free(env, group, tag_group_bytes(group->cap));
            return TQ_E_NO_MEMORY;
        }
    }
    group->pos[group->cnt++] = pos;
    if (group->cnt < sampler->group)
        return TQ_OK;
    if (tqi_vec_reserve(&sample->chosen, group->cnt) != TQ_OK)
        return TQ_E_NO_MEMORY;
    memcpy(sample->chosen.at + sample->chosen.len, group->pos, group->cnt * sizeof *group->pos);
    sample->chosen.len += group->cnt;
    tqi_map_str_take(&sample->groups, span, span_len);
    tqi_env_free(env, group, tag_group_bytes(group->cap));
    return TQ_OK;
}

/* ---- the interface ---- */

static const struct tqi_sampler_ops sequential = {"SequentialSampler", sequential_look, false};
static const struct tqi_sampler_ops adjacent = {"GRPOGroupNSampler", adjacent_look, true};
static const struct tqi_sampler_ops tagged = {"GRPOGroupNSampler", tagged_look, true};

tq_status_t tqi_sampler_init(tqi_sampler_t *sampler, const char *name, uint32_t group,
                             const char *group_by, tqi_err_t *err)
{
    *sampler = (tqi_sampler_t){.ops = &sequential, .group = 1};
    if (!name || strcmp(name, sequential.name) == 0)
        return TQ_OK;
    if (strcmp(name, adjacent.name) != 0)
        return tqi_fail(err, TQ_E_NO_SAMPLER, "no sampler is called '%s'; there are %s and %s",
                        name, sequential.name, adjacent.name);
    if (group > TQ_REQUEST_ROWS_MAX)
        return tqi_fail(err, TQ_E_CONFIG, "groups of %u rows, at most %u are possible", group,
                        TQ_REQUEST_ROWS_MAX);
    sampler->group = group ? group : 1;
    sampler->group_by = group_by;
    sampler->ops = group_by ? &tagged : &adjacent;
    return TQ_OK;
}

const char *tqi_sampler_name(const tqi_sampler_t *sampler)
{
    return sampler->ops->name;
}

tq_status_t tqi_sampler_admit(const tqi_sampler_t *sampler, uint32_t need, tqi_err_t *err)
{
    if (need % sampler->group != 0)
        return tqi_fail(err, TQ_E_INVALID,
                        "%u rows are not a multiple of the sampler's groups of %u", need,
                        sampler->group);
    return TQ_OK;
}

void tqi_sample_init(tqi_sample_t *sample, tqi_partition_t *p, tqi_ready_t *set, uint32_t need)
{
    *sample = (tqi_sample_t){.p = p, .set = set, .need = need};
    tqi_vec_init(&sample->chosen, p->env);
    tqi_map_str_init(&sample->groups, p->env);
}

void tqi_sample_fini(tqi_sample_t *sample)
{
    if (!sample->p)
        return;
    tqi_vec_fini(&sample->chosen);
    tqi_map_str_fini(&sample->groups, tag_group_free, (void *)sample->p->env);
    sample->p = NULL;
}

tqi_sample_result_t tqi_sampler_step(const tqi_sampler_t *sampler, tqi_sample_t *sample,
                                     uint32_t *budget)
{
    uint64_t batch[BATCH_ROWS];

    if (tqi_ready_count(sample->set) < sample->need)
        return TQI_SAMPLE_NOT_ENOUGH;
    while (sample->chosen.len < sample->need) {
        uint32_t want = BATCH_ROWS;

        if (*budget == 0)
            return TQI_SAMPLE_AGAIN;
        if (want > *budget)
            want = *budget;
        if (!sampler->ops->is_grouped && want > sample->need - sample->chosen.len)
            want = (uint32_t)(sample->need - sample->chosen.len);
        size_t got = tqi_summary_fetch(&sample->set->rows, sample->at, batch, want);
        if (got == 0)
            return TQI_SAMPLE_NOT_ENOUGH;
        for (size_t i = 0; i < got && sample->chosen.len < sample->need; i++)
            if (sampler->ops->look(sampler, sample, batch[i]) != TQ_OK)
                return TQI_SAMPLE_NO_MEMORY;
        sample->at = batch[got - 1] + 1;
        *budget -= (uint32_t)got;
    }
    return TQI_SAMPLE_DONE;
}
