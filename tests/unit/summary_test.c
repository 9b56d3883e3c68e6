/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bitset.h"
#include "base/size.h"

#include "unit.h"

#include <string.h>

/* Sparse and far apart on purpose: positions reach over several words of the top level. */
static uint64_t random_pos(tqi_rng_t *rng, uint64_t lo_block)
{
    static const uint64_t spans[] = {100, 5000, 300000, 20000000};

    return lo_block * TQI_LEAF_BITS + tqi_rng_below(rng, spans[tqi_rng_below(rng, 4)]);
}

/* Every level must be exactly "the word below is not zero". */
static void check_levels(tqi_summary_t *set)
{
    for (unsigned k = 1; k < TQI_SUMMARY_LEVELS; k++) {
        uint64_t above = 0;
        uint64_t last_word = TQI_BITS_NONE;

        for (uint64_t p = tqi_bits_next(&set->level[k - 1], 0); p != TQI_BITS_NONE;
             p = tqi_bits_next(&set->level[k - 1], p + 1)) {
            if (p / TQI_WORD_BITS == last_word)
                continue;
            last_word = p / TQI_WORD_BITS;
            unit_check(tqi_bits_test(&set->level[k], last_word));
            above++;
        }
        unit_check(tqi_bits_count(&set->level[k]) == above);
    }
}

static void check_same_bits(tqi_summary_t *set, const tqi_bits_t *model)
{
    uint64_t from = 0;

    unit_check(tqi_summary_count(set) == tqi_bits_count(model));
    for (;;) {
        uint64_t got = tqi_summary_next(set, from);

        unit_check(got == tqi_bits_next(model, from));
        if (got == TQI_BITS_NONE)
            break;
        unit_check(tqi_summary_test(set, got));
        from = got + 1;
    }
}

static void random_operations_agree_with_a_plain_bitset(void **state)
{
    (void)state;
    for_each_seed(seed, 20)
    {
        tqi_summary_t set;
        tqi_bits_t model;
        unit_env_t e;
        tqi_rng_t rng;
        uint64_t lo_block = 0;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        tqi_summary_init(&set, &e.env);
        tqi_bits_init(&model, &e.env);
        for (int i = 0; i < 3000; i++) {
            uint64_t pos = random_pos(&rng, lo_block);
            uint64_t words[TQI_LEAF_WORDS] = {0};
            uint64_t from;

            for (int b = 0; b < 8; b++)
                tqi_words_set(words, tqi_rng_below(&rng, TQI_LEAF_BITS));
            switch (tqi_rng_below(&rng, 8)) {
            case 0:
            case 1:
                unit_check(tqi_summary_set(&set, pos) == TQ_OK);
                unit_check(tqi_bits_set(&model, pos) == TQ_OK);
                break;
            case 2:
                unit_check(tqi_summary_or_leaf(&set, pos / TQI_LEAF_BITS, words) == TQ_OK);
                unit_check(tqi_bits_or_leaf(&model, pos / TQI_LEAF_BITS, words) == TQ_OK);
                break;
            case 3:
                tqi_summary_andnot_leaf(&set, pos / TQI_LEAF_BITS, words);
                tqi_bits_andnot_leaf(&model, pos / TQI_LEAF_BITS, words);
                break;
            case 4:
            case 5: /* clear a bit that is likely to be set */
                from = tqi_bits_next(&model, pos);
                if (from != TQI_BITS_NONE)
                    pos = from;
                unit_check(tqi_summary_clear(&set, pos) == tqi_bits_clear(&model, pos));
                break;
            case 6:
                unit_check(tqi_summary_next(&set, pos) == tqi_bits_next(&model, pos));
                break;
            default:
                if (!tqi_rng_chance(&rng, 0.02))
                    break;
                lo_block += tqi_rng_below(&rng, tqi_rng_chance(&rng, 0.5) ? 3 : 5000);
                tqi_summary_drop_before(&set, lo_block);
                tqi_bits_drop_before(&model, lo_block);
                break;
            }
            if (i % 500 == 499) {
                check_levels(&set);
                check_same_bits(&set, &model);
            }
        }
        tqi_summary_fini(&set);
        tqi_bits_fini(&model);
        unit_check(e.bytes == 0);
    }
}

/* DESIGN: fetching 32 rows costs the same at 1 k, 1 M and 10 M rows. */
static void words_touched_by_a_fetch_do_not_depend_on_the_size(void **state)
{
    enum { FETCH = 32 };
    static const uint64_t sizes[] = {1000, 1000000, 10000000};
    uint64_t touched[3];
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    for (int s = 0; s < 3; s++) {
        uint64_t out[FETCH];
        tqi_summary_t set;
        uint64_t start;

        tqi_summary_init(&set, &e.env);
        for (uint64_t block = 0; block * TQI_LEAF_BITS < sizes[s]; block++) {
            uint64_t words[TQI_LEAF_WORDS];

            memset(words, 0xff, sizeof words);
            assert_int_equal(tqi_summary_or_leaf(&set, block, words), TQ_OK);
        }
        /* Consumed up to near the end, with one straggler at the front. */
        for (uint64_t pos = 1; pos < sizes[s] - 100; pos++)
            tqi_summary_clear(&set, pos);
        start = set.words_touched;
        assert_int_equal(tqi_summary_fetch(&set, 0, out, FETCH), FETCH);
        touched[s] = set.words_touched - start;
        assert_true(out[0] == 0);
        for (int i = 1; i < FETCH; i++)
            assert_true(out[i] == sizes[s] - 100 + (uint64_t)i - 1);
        tqi_summary_fini(&set);
    }
    for (int s = 0; s < 3; s++)
        assert_in_range(touched[s], 1, 4 * TQI_SUMMARY_LEVELS);
    assert_int_equal(e.bytes, 0);
}

static void thinly_spread_bits_cost_a_bounded_number_of_words_each(void **state)
{
    enum { FETCH = 32 };
    static const uint64_t strides[] = {31, 31000, 310000};

    (void)state;
    for (int s = 0; s < 3; s++) {
        uint64_t out[FETCH];
        tqi_summary_t set;
        unit_env_t e;

        unit_env_init(&e);
        tqi_summary_init(&set, &e.env);
        for (uint64_t i = 1; i <= FETCH; i++)
            assert_int_equal(tqi_summary_set(&set, i * strides[s]), TQ_OK);
        assert_int_equal(tqi_summary_fetch(&set, 0, out, FETCH), FETCH);
        assert_true(set.words_touched <= (FETCH + 1) * 2 * TQI_SUMMARY_LEVELS);
        for (uint64_t i = 1; i <= FETCH; i++)
            assert_true(out[i - 1] == i * strides[s]);
        tqi_summary_fini(&set);
        assert_int_equal(e.bytes, 0);
    }
}

static void refused_memory_leaves_the_levels_consistent(void **state)
{
    (void)state;
    for (uint64_t allowed = 0; allowed < 8; allowed++) {
        uint64_t words[TQI_LEAF_WORDS] = {1};
        tqi_summary_t set;
        unit_env_t e;

        unit_env_init(&e);
        tqi_summary_init(&set, &e.env);
        e.fail_after = allowed;
        assert_int_equal(tqi_summary_set(&set, 70000000), TQ_E_NO_MEMORY);
        assert_int_equal(tqi_summary_or_leaf(&set, 5, words), TQ_E_NO_MEMORY);
        assert_int_equal(tqi_summary_count(&set), 0);
        check_levels(&set);
        assert_true(tqi_summary_next(&set, 0) == TQI_BITS_NONE);
        e.fail_after = UINT64_MAX;
        assert_int_equal(tqi_summary_set(&set, 70000000), TQ_OK);
        check_levels(&set);
        tqi_summary_fini(&set);
        assert_int_equal(e.bytes, 0);
    }
}

static void bits_that_were_reserved_need_no_memory(void **state)
{
    tqi_summary_t set;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_summary_init(&set, &e.env);
    assert_int_equal(tqi_summary_reserve(&set, 4000, 500000), TQ_OK);
    e.fail_after = 0;
    for (uint64_t pos = 4000; pos < 500000; pos += 63)
        assert_int_equal(tqi_summary_set(&set, pos), TQ_OK);
    check_levels(&set);
    tqi_summary_fini(&set);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_agree_with_a_plain_bitset),
        cmocka_unit_test(words_touched_by_a_fetch_do_not_depend_on_the_size),
        cmocka_unit_test(thinly_spread_bits_cost_a_bounded_number_of_words_each),
        cmocka_unit_test(refused_memory_leaves_the_levels_consistent),
        cmocka_unit_test(bits_that_were_reserved_need_no_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
