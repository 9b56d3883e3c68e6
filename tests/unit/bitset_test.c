/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bitset.h"

#include "unit.h"

#include <string.h>

/* The naive model: one byte per position. */
#define MODEL_POSITIONS (20u * TQI_LEAF_BITS)

typedef struct model {
    uint64_t base;           /* where the model's position 0 lies */
    uint64_t dropped_before; /* position in the model */
    bool set[MODEL_POSITIONS];
} model_t;

static void check_against_model(const tqi_bits_t *bits, const model_t *model)
{
    uint64_t count = 0;
    uint64_t next = tqi_bits_next(bits, 0);

    for (uint64_t i = 0; i < MODEL_POSITIONS; i++) {
        unit_check(tqi_bits_test(bits, model->base + i) == model->set[i]);
        count += model->set[i];
        if (model->set[i]) {
            unit_check(next == model->base + i);
            next = tqi_bits_next(bits, next + 1);
        }
    }
    unit_check(next == TQI_BITS_NONE);
    unit_check(tqi_bits_count(bits) == count);
    for (uint64_t block = 0; block < MODEL_POSITIONS / TQI_LEAF_BITS; block++) {
        const uint64_t *leaf = tqi_bits_leaf(bits, model->base / TQI_LEAF_BITS + block);

        for (size_t i = 0; leaf != NULL && i < TQI_LEAF_BITS; i++)
            unit_check(tqi_words_test(leaf, i) == model->set[block * TQI_LEAF_BITS + i]);
    }
}

static void model_drop(model_t *model, uint64_t block)
{
    uint64_t pos = block * TQI_LEAF_BITS;

    if (pos <= model->dropped_before)
        return;
    memset(model->set, 0, pos);
    model->dropped_before = pos;
}

static void random_step(tqi_rng_t *rng, tqi_bits_t *bits, model_t *model)
{
    uint64_t lo = tqi_rng_below(rng, MODEL_POSITIONS);
    uint64_t hi = lo + tqi_rng_below(rng, tqi_rng_chance(rng, 0.1) ? 5000 : 70);
    uint64_t words[TQI_LEAF_WORDS] = {0};
    uint64_t block = lo / TQI_LEAF_BITS;
    uint64_t cnt = 0;
    bool may_set = lo >= model->dropped_before;

    if (hi > MODEL_POSITIONS)
        hi = MODEL_POSITIONS;
    for (int i = 0; i < 20; i++)
        tqi_words_set(words, tqi_rng_below(rng, TQI_LEAF_BITS));
    switch (tqi_rng_below(rng, 9)) {
    case 0:
    case 1:
        if (!may_set)
            break;
        unit_check(tqi_bits_set(bits, model->base + lo) == TQ_OK);
        model->set[lo] = true;
        break;
    case 2:
        if (!may_set)
            break;
        unit_check(tqi_bits_set_range(bits, model->base + lo, model->base + hi) == TQ_OK);
        for (uint64_t i = lo; i < hi; i++)
            model->set[i] = true;
        break;
    case 3:
        if (block * TQI_LEAF_BITS < model->dropped_before)
            break;
        unit_check(tqi_bits_or_leaf(bits, model->base / TQI_LEAF_BITS + block, words) == TQ_OK);
        for (size_t i = 0; i < TQI_LEAF_BITS; i++)
            model->set[block * TQI_LEAF_BITS + i] |= tqi_words_test(words, i);
        break;
    case 4:
        unit_check(tqi_bits_clear(bits, model->base + lo) == model->set[lo]);
        model->set[lo] = false;
        break;
    case 5:
        tqi_bits_clear_range(bits, model->base + lo, model->base + hi);
        for (uint64_t i = lo; i < hi; i++)
            model->set[i] = false;
        break;
    case 6:
        tqi_bits_andnot_leaf(bits, model->base / TQI_LEAF_BITS + block, words);
        for (size_t i = 0; i < TQI_LEAF_BITS; i++)
            if (tqi_words_test(words, i))
                model->set[block * TQI_LEAF_BITS + i] = false;
        break;
    case 7:
        if (tqi_rng_chance(rng, 0.05)) {
            tqi_bits_drop_before(bits, model->base / TQI_LEAF_BITS + block);
            model_drop(model, block);
        }
        break;
    default:
        for (uint64_t i = lo; i < hi; i++)
            cnt += model->set[i];
        unit_check(tqi_bits_count_range(bits, model->base + lo, model->base + hi) == cnt);
        hi = lo;
        while (hi < MODEL_POSITIONS && model->set[hi])
            hi++;
        unit_check(tqi_bits_next_clear(bits, model->base + lo) == model->base + hi);
        break;
    }
}

static void random_operations_agree_with_a_byte_per_bit(void **state)
{
    static const uint64_t bases[] = {0, 1024 * 1000, UINT64_MAX / 1024 * 1024 - MODEL_POSITIONS};

    (void)state;
    for_each_seed(seed, 30)
    {
        static model_t model;
        tqi_bits_t bits;
        unit_env_t e;
        tqi_rng_t rng;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        memset(&model, 0, sizeof model);
        model.base = bases[seed % 3];
        tqi_bits_init(&bits, &e.env);
        for (int i = 0; i < 600; i++) {
            random_step(&rng, &bits, &model);
            if (i % 100 == 99)
                check_against_model(&bits, &model);
        }
        tqi_bits_fini(&bits);
        unit_check(e.bytes == 0);
    }
}

static void and_of_sets_agrees_with_bit_by_bit(void **state)
{
    (void)state;
    for_each_seed(seed, 30)
    {
        enum { SETS = 4, POSITIONS = 6 * TQI_LEAF_BITS };
        tqi_bits_t sets[SETS];
        tqi_bits_t out;
        const tqi_bits_t *inputs[SETS];
        unit_env_t e;
        tqi_rng_t rng;
        uint64_t cnt = 0;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        tqi_bits_init(&out, &e.env);
        unit_check(tqi_bits_set_range(&out, 0, POSITIONS) == TQ_OK);
        for (int s = 0; s < SETS; s++) {
            tqi_bits_init(&sets[s], &e.env);
            inputs[s] = &sets[s];
            for (int i = 0; i < 40; i++) {
                uint64_t lo = tqi_rng_below(&rng, POSITIONS);

                unit_check(tqi_bits_set_range(&sets[s], lo, lo + tqi_rng_below(&rng, 300)) ==
                           TQ_OK);
            }
        }
        unit_check(tqi_bits_and(&out, inputs, SETS, 0, POSITIONS / TQI_LEAF_BITS) == TQ_OK);
        for (uint64_t i = 0; i < POSITIONS; i++) {
            bool all = true;

            for (int s = 0; s < SETS; s++)
                all = all && tqi_bits_test(&sets[s], i);
            unit_check(tqi_bits_test(&out, i) == all);
            cnt += all;
        }
        unit_check(tqi_bits_count(&out) == cnt);
        for (int s = 0; s < SETS; s++)
            tqi_bits_fini(&sets[s]);
        tqi_bits_fini(&out);
        unit_check(e.bytes == 0);
    }
}

static void refused_memory_changes_no_bit(void **state)
{
    (void)state;
    for (uint64_t allowed = 0; allowed < 12; allowed++) {
        tqi_bits_t bits;
        unit_env_t e;

        unit_env_init(&e);
        tqi_bits_init(&bits, &e.env);
        assert_int_equal(tqi_bits_set(&bits, 10 * TQI_LEAF_BITS), TQ_OK);
        e.fail_after = allowed;
        tq_status_t status = tqi_bits_set_range(&bits, 3 * TQI_LEAF_BITS, 20 * TQI_LEAF_BITS + 1);
        assert_int_equal(status, TQ_E_NO_MEMORY);
        assert_int_equal(tqi_bits_count(&bits), 1);
        assert_int_equal(tqi_bits_next(&bits, 0), 10 * TQI_LEAF_BITS);
        e.fail_after = UINT64_MAX;
        tqi_bits_fini(&bits);
        assert_int_equal(e.bytes, 0);
    }
}

static void bits_that_were_reserved_need_no_memory(void **state)
{
    tqi_bits_t bits;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_bits_init(&bits, &e.env);
    assert_int_equal(tqi_bits_reserve(&bits, 5000, 9000), TQ_OK);
    e.fail_after = 0;
    assert_int_equal(tqi_bits_set_range(&bits, 5000, 9000), TQ_OK);
    assert_int_equal(tqi_bits_set(&bits, 5000), TQ_OK);
    assert_int_equal(tqi_bits_count(&bits), 4000);
    assert_int_equal(tqi_bits_set(&bits, 100000), TQ_E_NO_MEMORY);
    tqi_bits_fini(&bits);
    assert_int_equal(e.bytes, 0);
}

static void a_moving_window_keeps_the_memory_of_the_window(void **state)
{
    enum { WINDOW = 8 };
    tqi_bits_t bits;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_bits_init(&bits, &e.env);
    for (uint64_t block = 0; block < 100000; block++) {
        assert_int_equal(tqi_bits_set(&bits, block * TQI_LEAF_BITS + 7), TQ_OK);
        if (block >= WINDOW)
            tqi_bits_drop_before(&bits, block - WINDOW);
    }
    assert_int_equal(bits.leaf_cnt, WINDOW + 1);
    assert_int_equal(tqi_bits_count(&bits), WINDOW + 1);
    assert_true(e.bytes_max < (WINDOW + 2) * 128 + 64 * sizeof(void *) * 2);
    tqi_bits_drop_before(&bits, 200000);
    assert_int_equal(bits.leaf_cnt, 0);
    assert_int_equal(tqi_bits_set(&bits, 200000 * (uint64_t)TQI_LEAF_BITS), TQ_OK);
    tqi_bits_fini(&bits);
    assert_int_equal(e.bytes, 0);
}

static void an_absent_leaf_costs_a_pointer(void **state)
{
    tqi_bits_t bits;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_bits_init(&bits, &e.env);
    assert_int_equal(tqi_bits_set(&bits, 0), TQ_OK);
    assert_int_equal(tqi_bits_set(&bits, 1000 * (uint64_t)TQI_LEAF_BITS), TQ_OK);
    assert_int_equal(bits.leaf_cnt, 2);
    assert_null(tqi_bits_leaf(&bits, 500));
    assert_true(tqi_bits_word(&bits, 500 * TQI_LEAF_WORDS) == 0);
    assert_int_equal(tqi_bits_clear(&bits, 500 * TQI_LEAF_BITS), false);
    assert_int_equal(bits.leaf_cnt, 2);
    tqi_bits_fini(&bits);
}

static void word_helpers_hold_at_the_edges(void **state)
{
    (void)state;
    assert_true(tqi_word_mask(0, 64) == UINT64_MAX);
    assert_true(tqi_word_mask(0, 0) == 0);
    assert_true(tqi_word_mask(64, 64) == 0);
    assert_true(tqi_word_mask(63, 64) == UINT64_C(1) << 63);
    assert_true(tqi_word_mask(3, 5) == 0x18);
    assert_int_equal(tqi_word_count(UINT64_MAX), 64);
    assert_int_equal(tqi_word_count(0), 0);
    assert_int_equal(tqi_word_count(0x8000000000000001u), 2);
    uint64_t words[2] = {0, UINT64_C(1) << 63};
    assert_int_equal(tqi_words_next(words, 2, 0), 127);
    assert_int_equal(tqi_words_next(words, 2, 128), 128);
    assert_int_equal(tqi_words_next(words, 1, 0), 64);
    assert_int_equal(tqi_words_count(words, 2), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(word_helpers_hold_at_the_edges),
        cmocka_unit_test(random_operations_agree_with_a_byte_per_bit),
        cmocka_unit_test(and_of_sets_agrees_with_bit_by_bit),
        cmocka_unit_test(refused_memory_changes_no_bit),
        cmocka_unit_test(bits_that_were_reserved_need_no_memory),
        cmocka_unit_test(a_moving_window_keeps_the_memory_of_the_window),
        cmocka_unit_test(an_absent_leaf_costs_a_pointer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
