/* SPDX-License-Identifier: Apache-2.0 */
#include "base/interval.h"

#include "unit.h"

enum { POSITIONS = 300 };

static void check_against_model(const tqi_intervals_t *set, const bool *model, uint64_t base)
{
    uint64_t covered = 0;
    size_t runs = 0;

    for (uint64_t i = 0; i < POSITIONS; i++) {
        uint64_t gap = i;

        unit_check(tqi_intervals_contains(set, base + i) == model[i]);
        covered += model[i];
        runs += model[i] && (i == 0 || !model[i - 1]);
        while (gap < POSITIONS && model[gap])
            gap++;
        unit_check(tqi_intervals_next_gap(set, base + i) == base + gap);
    }
    unit_check(set->covered == covered);
    unit_check(set->vec.len == runs); /* coalesced: an interval per run, no more */
    for (size_t i = 1; i < set->vec.len; i++)
        unit_check(set->vec.at[i - 1].hi < set->vec.at[i].lo);
}

static void random_additions_agree_with_a_byte_per_number(void **state)
{
    static const uint64_t bases[] = {0, 1000, UINT64_MAX - POSITIONS};

    (void)state;
    for_each_seed(seed, 200)
    {
        bool model[POSITIONS] = {false};
        uint64_t base = bases[seed % 3];
        tqi_intervals_t set;
        unit_env_t e;
        tqi_rng_t rng;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        tqi_intervals_init(&set, &e.env);
        for (int i = 0; i < 60; i++) {
            uint64_t lo = tqi_rng_below(&rng, POSITIONS);
            uint64_t hi = lo + tqi_rng_below(&rng, tqi_rng_chance(&rng, 0.1) ? 100 : 6);
            bool all = true;

            if (hi > POSITIONS)
                hi = POSITIONS;
            for (uint64_t x = lo; x < hi; x++)
                all = all && model[x];
            unit_check(tqi_intervals_contains_range(&set, base + lo, base + hi) == all);
            unit_check(tqi_intervals_add(&set, base + lo, base + hi) == TQ_OK);
            for (uint64_t x = lo; x < hi; x++)
                model[x] = true;
            check_against_model(&set, model, base);
        }
        tqi_intervals_fini(&set);
        unit_check(e.bytes == 0);
    }
}

static void numbers_in_order_stay_one_interval(void **state)
{
    tqi_intervals_t set;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_intervals_init(&set, &e.env);
    for (uint64_t i = 0; i < 100000; i++)
        assert_int_equal(tqi_intervals_add(&set, i, i + 1), TQ_OK);
    assert_int_equal(set.vec.len, 1);
    assert_int_equal(e.alloc_cnt, 1);
    assert_int_equal(tqi_intervals_next_gap(&set, 7), 100000);
    assert_int_equal(tqi_intervals_add(&set, 5, 5), TQ_OK);
    assert_int_equal(tqi_intervals_add(&set, 9, 5), TQ_OK);
    assert_int_equal(set.covered, 100000);
    tqi_intervals_fini(&set);
    assert_int_equal(e.bytes, 0);
}

static void refused_memory_leaves_the_set_as_it_was(void **state)
{
    tqi_intervals_t set;
    unit_env_t e;
    uint64_t i = 0;

    (void)state;
    unit_env_init(&e);
    tqi_intervals_init(&set, &e.env);
    e.fail_after = 1;
    while (tqi_intervals_add(&set, 10 * i, 10 * i + 1) == TQ_OK)
        i++;
    assert_true(i > 0);
    assert_int_equal(set.vec.len, i);
    assert_int_equal(set.covered, i);
    assert_false(tqi_intervals_contains(&set, 10 * i));
    /* Joining what is there takes no memory. */
    assert_int_equal(tqi_intervals_add(&set, 0, 10 * i), TQ_OK);
    assert_int_equal(set.vec.len, 1);
    tqi_intervals_fini(&set);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_additions_agree_with_a_byte_per_number),
        cmocka_unit_test(numbers_in_order_stay_one_interval),
        cmocka_unit_test(refused_memory_leaves_the_set_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
