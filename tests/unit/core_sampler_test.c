/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers, tags and placement. */
#include "core/sampler.h"

#include <string.h>

#include "core/placement.h"
#include "core/tags.h"
#include "unit.h"
#include "wire/value.h"

typedef struct table {
    unit_env_t env;
    tqi_index_source_t source;
    tqi_partition_t p;
    tqi_task_t *task;
    tqi_field_t *field;
    tqi_ready_t *set;
} table_t;

static void table_init(table_t *t, uint32_t rows)
{
    uint64_t lo;
    uint32_t got;

    memset(t, 0, sizeof *t);
    unit_env_init(&t->env);
    tqi_partition_init(&t->p, &t->env.env, &t->source);
    assert_int_equal(tqi_partition_take(&t->p, rows, false, &lo, &got, NULL), TQ_OK);
    assert_int_equal(tqi_partition_field_make(&t->p, "a", 1, &t->field, NULL), TQ_OK);
    assert_int_equal(tqi_partition_task_make(&t->p, "t", 1, &t->task, NULL), TQ_OK);
    assert_int_equal(tqi_ready_get(&t->p, t->task, &t->field, 1, &t->set, NULL), TQ_OK);
    assert_true(tqi_ready_build(&t->p, t->set, 1000));
}

static void table_ready(table_t *t, uint64_t lo, uint64_t hi)
{
    for (uint64_t pos = lo; pos < hi; pos++) {
        tqi_mask_t mask = tqi_mask_run(pos, pos + 1);

        assert_int_equal(tqi_partition_publish_reserve(&t->p, &t->field, 1, &mask), TQ_OK);
        tqi_partition_publish(&t->p, &t->field, 1, &mask);
    }
}

static void table_tag(table_t *t, uint64_t pos, const char *key, const char *value)
{
    tqi_tags_t *tags;
    tqi_buf_t map;

    tqi_buf_init(&map, &t->env.env);
    tqi_put_map(&map, 1);
    tqi_put_str(&map, key, (uint32_t)strlen(key));
    tqi_put_str(&map, value, (uint32_t)strlen(value));
    assert_int_equal(
        tqi_tags_merge(&t->env.env, NULL, map.data, (uint32_t)map.len, false, &tags, NULL), TQ_OK);
    assert_int_equal(tqi_partition_tags_reserve(&t->p, pos / TQI_BLOCK_ROWS), TQ_OK);
    tqi_partition_tags_set(&t->p, pos, tags);
    tqi_buf_fini(&map);
}

static void table_fini(table_t *t)
{
    tqi_partition_fini(&t->p);
    assert_int_equal(t->env.bytes, 0);
}

/* Runs a sampler with so much budget a step. The answer's rows are in got. */
static tqi_sample_result_t run(table_t *t, const tqi_sampler_t *sampler, uint32_t need,
                               uint32_t slice, uint64_t *got)
{
    tqi_sample_result_t result = TQI_SAMPLE_AGAIN;
    tqi_sample_t sample;

    tqi_sample_init(&sample, &t->p, t->set, need);
    while (result == TQI_SAMPLE_AGAIN) {
        uint32_t budget = slice;

        result = tqi_sampler_step(sampler, &sample, &budget);
        assert_true(result != TQI_SAMPLE_AGAIN || budget == 0);
    }
    if (result == TQI_SAMPLE_DONE)
        memcpy(got, sample.chosen.at, need * sizeof *got);
    tqi_sample_fini(&sample);
    return result;
}

static void the_sequential_sampler_gives_the_oldest_rows(void **state)
{
    tqi_sampler_t sampler;
    uint64_t got[4];
    table_t t;

    (void)state;
    table_init(&t, 100);
    table_ready(&t, 90, 93);
    table_ready(&t, 10, 12);
    assert_int_equal(tqi_sampler_init(&sampler, NULL, 0, NULL, NULL), TQ_OK);
    assert_int_equal(run(&t, &sampler, 4, 1, got), TQI_SAMPLE_DONE);
    assert_int_equal(got[0], 10);
    assert_int_equal(got[1], 11);
    assert_int_equal(got[2], 90);
    assert_int_equal(got[3], 91);
    assert_int_equal(run(&t, &sampler, 6, 1000, got), TQI_SAMPLE_NOT_ENOUGH);
    table_fini(&t);
}

static void groups_are_runs_of_ready_rows_that_follow_each_other(void **state)
{
    tqi_sampler_t sampler;
    uint64_t got[8];
    table_t t;

    (void)state;
    table_init(&t, 100);
    assert_int_equal(tqi_sampler_init(&sampler, "GRPOGroupNSampler", 4, NULL, NULL), TQ_OK);
    table_ready(&t, 0, 3);   /* too short */
    table_ready(&t, 62, 67); /* over a word's end: one group */
    assert_int_equal(run(&t, &sampler, 4, 7, got), TQI_SAMPLE_DONE);
    assert_int_equal(got[0], 62);
    assert_int_equal(got[3], 65);
    /* Eight rows are ready, and no two whole groups. */
    assert_int_equal(tqi_ready_count(t.set), 8);
    assert_int_equal(run(&t, &sampler, 8, 7, got), TQI_SAMPLE_NOT_ENOUGH);
    table_ready(&t, 3, 4);
    assert_int_equal(run(&t, &sampler, 8, 7, got), TQI_SAMPLE_DONE);
    assert_int_equal(got[0], 0);
    assert_int_equal(got[4], 62);
    table_fini(&t);
}

static void a_number_that_is_no_multiple_of_the_group_is_refused(void **state)
{
    tqi_sampler_t sampler;
    tqi_err_t err;

    (void)state;
    assert_int_equal(tqi_sampler_init(&sampler, "GRPOGroupNSampler", 4, NULL, NULL), TQ_OK);
    assert_int_equal(tqi_sampler_admit(&sampler, 8, &err), TQ_OK);
    assert_int_equal(tqi_sampler_admit(&sampler, 6, &err), TQ_E_INVALID);
    assert_int_equal(tqi_sampler_init(&sampler, "Random", 4, NULL, &err), TQ_E_NO_SAMPLER);
    assert_non_null(strstr(err.text, "Random"));
}

static void groups_by_a_tag_are_the_oldest_that_are_whole(void **state)
{
    /* a b a - b c b: with groups of 2, "a" is whole first, then "b"; the third b starts anew. */
    static const char *const uid[] = {"a", "b", "a", NULL, "b", "c", "b"};
    tqi_sampler_t sampler;
    uint64_t got[6];
    table_t t;

    (void)state;
    table_init(&t, 10);
    for (uint64_t pos = 0; pos < 7; pos++)
        if (uid[pos])
            table_tag(&t, pos, "uid", uid[pos]);
    table_ready(&t, 0, 7);
    assert_int_equal(tqi_sampler_init(&sampler, "GRPOGroupNSampler", 2, "uid", NULL), TQ_OK);
    assert_int_equal(run(&t, &sampler, 4, 3, got), TQI_SAMPLE_DONE);
    assert_int_equal(got[0], 0);
    assert_int_equal(got[1], 2);
    assert_int_equal(got[2], 1);
    assert_int_equal(got[3], 4);
    assert_int_equal(run(&t, &sampler, 6, 3, got), TQI_SAMPLE_NOT_ENOUGH);
    table_fini(&t);
}

/* ---- tags ---- */

static void put_pair(tqi_buf_t *map, const char *key, int64_t value)
{
    tqi_put_str(map, key, (uint32_t)strlen(key));
    tqi_put_int(map, value);
}

static int64_t tag_int(const tqi_tags_t *tags, const char *key)
{
    tqi_value_t value;

    assert_true(tqi_value_find(tags->data, tags->len, key, strlen(key), &value, NULL, NULL));
    return value.as.i;
}

static void tags_merge_at_the_top_level_and_the_last_key_wins(void **state)
{
    tqi_tags_t *one, *two, *three;
    unit_env_t env;
    tqi_buf_t map;

    (void)state;
    unit_env_init(&env);
    tqi_buf_init(&map, &env.env);
    tqi_put_map(&map, 2);
    put_pair(&map, "a", 1);
    put_pair(&map, "b", 2);
    assert_int_equal(tqi_tags_merge(&env.env, NULL, map.data, (uint32_t)map.len, false, &one, NULL),
                     TQ_OK);
    tqi_buf_clear(&map);
    tqi_put_map(&map, 3);
    put_pair(&map, "b", 3);
    tqi_put_int(&map, 7);
    tqi_put_nil(&map);
    put_pair(&map, "b", 4);
    assert_int_equal(tqi_tags_merge(&env.env, one, map.data, (uint32_t)map.len, false, &two, NULL),
                     TQ_OK);
    assert_int_equal(tag_int(two, "a"), 1);
    assert_int_equal(tag_int(two, "b"), 4);
    assert_int_equal(two->data[0], 0x83);
    assert_int_equal(tqi_tags_merge(&env.env, two, map.data, (uint32_t)map.len, true, &three, NULL),
                     TQ_OK);
    assert_int_equal(three->data[0], 0x82);
    tqi_tags_free(&env.env, one);
    tqi_tags_free(&env.env, two);
    assert_int_equal(tqi_tags_merge(&env.env, three, NULL, 0, true, &one, NULL), TQ_OK);
    assert_null(one);
    tqi_tags_free(&env.env, three);
    tqi_buf_fini(&map);
    assert_int_equal(env.bytes, 0);
}

static void tags_over_a_limit_or_of_another_form_are_refused(void **state)
{
    tqi_tags_t *tags, *more;
    unit_env_t env;
    tqi_buf_t map;
    tqi_err_t err;

    (void)state;
    unit_env_init(&env);
    tqi_buf_init(&map, &env.env);
    tqi_put_array(&map, 0);
    assert_int_equal(
        tqi_tags_merge(&env.env, NULL, map.data, (uint32_t)map.len, false, &tags, &err),
        TQ_E_INVALID);
    tqi_buf_clear(&map);
    tqi_put_map(&map, 200);
    for (int i = 0; i < 200; i++) {
        tqi_put_int(&map, i);
        tqi_put_nil(&map);
    }
    assert_int_equal(
        tqi_tags_merge(&env.env, NULL, map.data, (uint32_t)map.len, false, &tags, &err), TQ_OK);
    tqi_buf_clear(&map);
    tqi_put_map(&map, 57);
    for (int i = 0; i < 57; i++) {
        tqi_put_int(&map, 1000 + i);
        tqi_put_nil(&map);
    }
    assert_int_equal(
        tqi_tags_merge(&env.env, tags, map.data, (uint32_t)map.len, false, &more, &err),
        TQ_E_TOO_LARGE);
    assert_non_null(strstr(err.text, "257"));
    tqi_tags_free(&env.env, tags);
    tqi_buf_fini(&map);
    assert_int_equal(env.bytes, 0);
}

/* ---- placement ---- */

static void rows_go_to_the_fullest_unit_on_the_writers_host_with_room(void **state)
{
    tqi_candidate_t units[] = {{1, false, 900}, {2, true, 500}, {3, true, 700}};
    uint64_t turn = 0;

    (void)state;
    assert_int_equal(tqi_placement_choose(units, 3, 300, &turn), 2);
    assert_int_equal(units[2].free_bytes, 400);
    assert_int_equal(tqi_placement_choose(units, 3, 300, &turn), 1);
    /* Nobody here has room for 600: anywhere. */
    assert_int_equal(tqi_placement_choose(units, 3, 600, &turn), 0);
}

static void equal_units_take_turns(void **state)
{
    tqi_candidate_t units[] = {{1, true, 100}, {2, true, 100}, {3, true, 100}};
    uint64_t turn = 0;
    unsigned seen[3] = {0};

    (void)state;
    for (int i = 0; i < 6; i++)
        seen[tqi_placement_choose(units, 3, 0, &turn)]++;
    for (int i = 0; i < 3; i++)
        assert_int_equal(seen[i], 2);
}

static void large_inserts_are_cut_into_equal_parts(void **state)
{
    uint32_t parts = 0, at = 0;

    (void)state;
    assert_int_equal(tqi_placement_part(4096, 0), 4096);
    while (at < 10000) {
        uint32_t part = tqi_placement_part(10000, at);

        assert_in_range(part, 3333, 3334);
        at += part;
        parts++;
    }
    assert_int_equal(at, 10000);
    assert_int_equal(parts, 3);
}

static void a_sampler_without_memory_says_so_and_keeps_none(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 3; kind++) {
        tqi_sample_result_t result = TQI_SAMPLE_NO_MEMORY;
        tqi_sampler_t sampler;
        uint64_t got[4], fail_after = 0;
        table_t t;

        table_init(&t, 100);
        table_ready(&t, 0, 8);
        for (uint64_t pos = 0; pos < 8; pos++)
            table_tag(&t, pos, "uid", pos % 2 ? "odd" : "even");
        assert_int_equal(tqi_sampler_init(&sampler, kind ? "GRPOGroupNSampler" : NULL, 4,
                                          kind == 2 ? "uid" : NULL, NULL),
                         TQ_OK);
        while (result == TQI_SAMPLE_NO_MEMORY) {
            assert_true(fail_after < 30);
            t.env.fail_after = fail_after++;
            result = run(&t, &sampler, 4, 100, got);
        }
        t.env.fail_after = UINT64_MAX;
        assert_true(fail_after > 1);
        assert_int_equal(result, TQI_SAMPLE_DONE);
        assert_int_equal(got[3], kind == 2 ? 6 : 3);
        table_fini(&t);
    }
}

static void a_group_is_as_large_as_a_request_at_most(void **state)
{
    tqi_sampler_t sampler;
    tqi_err_t err;

    (void)state;
    assert_int_equal(
        tqi_sampler_init(&sampler, "GRPOGroupNSampler", TQ_REQUEST_ROWS_MAX + 1, NULL, &err),
        TQ_E_CONFIG);
    assert_int_equal(tqi_sampler_init(&sampler, "GRPOGroupNSampler", 0, NULL, &err), TQ_OK);
    assert_int_equal(sampler.group, 1);
}

static void tags_are_bounded_before_and_after_they_merge(void **state)
{
    uint8_t *half = calloc(1, TQ_TAGS_BYTES_MAX);
    tqi_tags_t *old = NULL, *out = NULL;
    unit_env_t e;
    tqi_buf_t map;
    tqi_err_t err;

    (void)state;
    assert_non_null(half);
    unit_env_init(&e);
    tqi_buf_init(&map, &e.env);
    assert_int_equal(tqi_put_map(&map, TQ_TAGS_ENTRIES_MAX + 1), TQ_OK);
    for (uint32_t i = 0; i <= TQ_TAGS_ENTRIES_MAX; i++) {
        assert_int_equal(tqi_put_uint(&map, i), TQ_OK);
        assert_int_equal(tqi_put_nil(&map), TQ_OK);
    }
    assert_int_equal(tqi_tags_merge(&e.env, NULL, map.data, (uint32_t)map.len, false, &out, &err),
                     TQ_E_TOO_LARGE);
    assert_int_equal(tqi_tags_merge(&e.env, NULL, half, TQ_TAGS_BYTES_MAX + 1, false, &out, &err),
                     TQ_E_TOO_LARGE);
    /* Two keys of equal length, each with a value that leaves no room for the other's. */
    for (int i = 0; i < 2; i++) {
        tqi_buf_clear(&map);
        assert_int_equal(tqi_put_map(&map, 1), TQ_OK);
        assert_int_equal(tqi_put_str(&map, i ? "b" : "a", 1), TQ_OK);
        assert_int_equal(tqi_put_bin(&map, half, TQ_TAGS_BYTES_MAX / 2), TQ_OK);
        assert_int_equal(
            tqi_tags_merge(&e.env, old, map.data, (uint32_t)map.len, false, i ? &out : &old, &err),
            i ? TQ_E_TOO_LARGE : TQ_OK);
    }
    /* No entries: nothing changes, or all go. */
    assert_int_equal(tqi_tags_merge(&e.env, old, NULL, 0, false, &out, &err), TQ_OK);
    assert_int_equal(out->len, old->len);
    assert_memory_equal(out->data, old->data, old->len);
    tqi_tags_free(&e.env, out);
    assert_int_equal(tqi_tags_merge(&e.env, old, NULL, 0, true, &out, &err), TQ_OK);
    assert_null(out);
    tqi_tags_free(&e.env, old);
    tqi_buf_fini(&map);
    free(half);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sequential_sampler_gives_the_oldest_rows),
        cmocka_unit_test(groups_are_runs_of_ready_rows_that_follow_each_other),
        cmocka_unit_test(a_number_that_is_no_multiple_of_the_group_is_refused),
        cmocka_unit_test(groups_by_a_tag_are_the_oldest_that_are_whole),
        cmocka_unit_test(tags_merge_at_the_top_level_and_the_last_key_wins),
        cmocka_unit_test(tags_over_a_limit_or_of_another_form_are_refused),
        cmocka_unit_test(rows_go_to_the_fullest_unit_on_the_writers_host_with_room),
        cmocka_unit_test(equal_units_take_turns),
        cmocka_unit_test(large_inserts_are_cut_into_equal_parts),
        cmocka_unit_test(a_sampler_without_memory_says_so_and_keeps_none),
        cmocka_unit_test(a_group_is_as_large_as_a_request_at_most),
        cmocka_unit_test(tags_are_bounded_before_and_after_they_merge),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
