/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include "base/hash.h"
#include "sys/env_malloc.h"

#include "unit.h"

#include <string.h>

enum { KEYS = 300 };

/* The naive model: an array in insertion order. Values are addresses in `cells`. */
typedef struct model {
    size_t keys[KEYS];
    void *values[KEYS];
    size_t cnt;
} model_t;

static char cells[4096];

static size_t model_find(const model_t *model, size_t key)
{
    size_t i = 0;

    while (i < model->cnt && model->keys[i] != key)
        i++;
    return i;
}

static void *model_put(model_t *model, size_t key, void *value)
{
    size_t i = model_find(model, key);
    void *old = i < model->cnt ? model->values[i] : NULL;

    model->keys[i] = key;
    model->values[i] = value;
    model->cnt += i == model->cnt;
    return old;
}

static void *model_take(model_t *model, size_t key)
{
    size_t i = model_find(model, key);

    if (i == model->cnt)
        return NULL;
    void *value = model->values[i];
    model->cnt--;
    memmove(model->keys + i, model->keys + i + 1, (model->cnt - i) * sizeof *model->keys);
    memmove(model->values + i, model->values + i + 1, (model->cnt - i) * sizeof *model->values);
    return value;
}

static void count_value(void *ctx, void *value)
{
    assert_non_null(value);
    ++*(size_t *)ctx;
}

/* Keys that differ in their high bits alone, as (epoch, unit) pairs do. */
static uint64_t number_key(size_t i)
{
    return (uint64_t)i << 40;
}

static void numbers_agree_with_an_array(void **state)
{
    (void)state;
    for_each_seed(seed, 20)
    {
        tqi_map_u64_t map;
        model_t model = {.cnt = 0};
        unit_env_t e;
        tqi_rng_t rng;
        size_t left = 0;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        tqi_map_u64_init(&map, &e.env);
        unit_check(tqi_map_u64_first(&map) == NULL);
        for (int i = 0; i < 2000; i++) {
            size_t k = tqi_rng_below(&rng, KEYS);
            void *value = &cells[tqi_rng_below(&rng, sizeof cells)];
            void *old;

            if (tqi_rng_chance(&rng, 0.6)) {
                unit_check(tqi_map_u64_put(&map, number_key(k), value, &old) == TQ_OK);
                unit_check(old == model_put(&model, k, value));
            } else {
                unit_check(tqi_map_u64_take(&map, number_key(k)) == model_take(&model, k));
            }
            k = model_find(&model, tqi_rng_below(&rng, KEYS));
            if (k < model.cnt)
                unit_check(tqi_map_u64_get(&map, number_key(model.keys[k])) == model.values[k]);
            unit_check(tqi_map_u64_count(&map) == model.cnt);
        }
        const tqi_map_u64_item_t *item = tqi_map_u64_first(&map);
        for (size_t i = 0; i < model.cnt; i++, item = tqi_map_u64_next(item)) {
            unit_check(item->key == number_key(model.keys[i]));
            unit_check(item->value == model.values[i]);
        }
        unit_check(item == NULL);
        tqi_map_u64_fini(&map, count_value, &left);
        unit_check(left == model.cnt);
        unit_check(e.bytes == 0);
    }
}

/* Key 0 is empty; others share beginnings and hold NULs. */
static size_t string_key(size_t i, char key[64])
{
    size_t len = i % 60;

    memset(key, 0, 64);
    if (len >= 2) {
        key[len - 2] = (char)(i >> 8);
        key[len - 1] = (char)i;
    }
    return len;
}

static void strings_agree_with_an_array(void **state)
{
    (void)state;
    for_each_seed(seed, 20)
    {
        tqi_map_str_t map;
        model_t model = {.cnt = 0};
        unit_env_t e;
        tqi_rng_t rng;
        size_t left = 0;
        char key[64];
        size_t len;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        tqi_map_str_init(&map, &e.env);
        for (int i = 0; i < 2000; i++) {
            size_t k = tqi_rng_below(&rng, KEYS);
            void *value = &cells[tqi_rng_below(&rng, sizeof cells)];
            void *old;

            while (k >= 60 && k % 60 < 2) /* those are the same as key k % 60 */
                k = tqi_rng_below(&rng, KEYS);
            len = string_key(k, key);
            unit_check((tqi_map_str_get(&map, key, len) != NULL) ==
                       (model_find(&model, k) < model.cnt));
            if (tqi_rng_chance(&rng, 0.6)) {
                unit_check(tqi_map_str_put(&map, key, len, value, &old) == TQ_OK);
                unit_check(old == model_put(&model, k, value));
                unit_check(tqi_map_str_get(&map, key, len) == value);
            } else {
                unit_check(tqi_map_str_take(&map, key, len) == model_take(&model, k));
            }
            unit_check(tqi_map_str_count(&map) == model.cnt);
        }
        const tqi_map_str_item_t *item = tqi_map_str_first(&map);
        for (size_t i = 0; i < model.cnt; i++, item = tqi_map_str_next(item)) {
            len = string_key(model.keys[i], key);
            unit_check(item->key_len == len && memcmp(item->key, key, len) == 0);
            unit_check(item->key[len] == '\0');
            unit_check(item->value == model.values[i]);
            unit_check(tqi_map_str_find(&map, key, len) == item);
        }
        unit_check(item == NULL);
        tqi_map_str_fini(&map, count_value, &left);
        unit_check(left == model.cnt);
        unit_check(e.bytes == 0);
    }
}

static void no_bytes_at_no_address_are_a_key(void **state)
{
    tqi_map_str_t map;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_map_str_init(&map, &e.env);
    assert_null(tqi_map_str_get(&map, NULL, 0));
    assert_int_equal(tqi_map_str_put(&map, NULL, 0, cells, NULL), TQ_OK);
    assert_ptr_equal(tqi_map_str_get(&map, "", 0), cells);
    assert_ptr_equal(tqi_map_str_take(&map, NULL, 0), cells);
    tqi_map_str_fini(&map, NULL, NULL);
    assert_int_equal(e.bytes, 0);
}

static void an_item_may_be_taken_while_walking(void **state)
{
    tqi_map_u64_t map;
    unit_env_t e;
    uint64_t seen = 0;

    (void)state;
    unit_env_init(&e);
    tqi_map_u64_init(&map, &e.env);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(tqi_map_u64_put(&map, i, cells, NULL), TQ_OK);
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&map), *next; item != NULL; item = next) {
        next = tqi_map_u64_next(item);
        assert_true(item->key == seen);
        seen++;
        assert_ptr_equal(tqi_map_u64_take(&map, item->key), cells);
    }
    assert_int_equal(seen, 100);
    assert_int_equal(tqi_map_u64_count(&map), 0);
    assert_int_equal(e.bytes, 0); /* an emptied map holds nothing */
    tqi_map_u64_fini(&map, NULL, NULL);
}

/* Every allocation of 2,000 puts is refused once, the first table and each doubling included. */
static void refused_memory_is_an_error_and_loses_nothing(void **state)
{
    tqi_map_u64_t numbers;
    tqi_map_str_t strings;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_map_u64_init(&numbers, &e.env);
    tqi_map_str_init(&strings, &e.env);
    for (uint64_t i = 0; i < 2000; i++) {
        tq_status_t status;
        uint64_t allowed = 0;

        do {
            assert_null(tqi_map_u64_get(&numbers, i));
            assert_int_equal(tqi_map_u64_count(&numbers), i);
            e.fail_after = allowed++;
            status = tqi_map_u64_put(&numbers, i, cells, NULL);
        } while (status == TQ_E_NO_MEMORY);
        assert_int_equal(status, TQ_OK);
        assert_true(allowed >= 2);
        allowed = 0;
        do {
            assert_null(tqi_map_str_get(&strings, &i, sizeof i));
            assert_int_equal(tqi_map_str_count(&strings), i);
            e.fail_after = allowed++;
            status = tqi_map_str_put(&strings, &i, sizeof i, cells, NULL);
        } while (status == TQ_E_NO_MEMORY);
        assert_int_equal(status, TQ_OK);
        e.fail_after = UINT64_MAX;
    }
    for (uint64_t i = 0; i < 2000; i++) {
        assert_ptr_equal(tqi_map_u64_get(&numbers, i), cells);
        assert_ptr_equal(tqi_map_str_get(&strings, &i, sizeof i), cells);
    }
    uint64_t order = 0;
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&numbers); item != NULL;
         item = tqi_map_u64_next(item))
        assert_true(item->key == order++);
    assert_int_equal(order, 2000);
    tqi_map_u64_fini(&numbers, NULL, NULL);
    tqi_map_str_fini(&strings, NULL, NULL);
    assert_int_equal(e.bytes, 0);
}

/* Whoever knows the seed can choose keys that meet; under another seed the same keys part. */
static void keys_that_meet_under_one_seed_part_under_another(void **state)
{
    enum { MEET = 200, BUCKETS = 4096 };
    static uint64_t keys[MEET];
    static bool is_used[BUCKETS];
    size_t cnt = 0, parted = 0;

    (void)state;
    for (uint64_t key = 0; cnt < MEET; key++)
        if (tqi_hash_bytes(&key, sizeof key, 0) % BUCKETS == 7)
            keys[cnt++] = key;
    for (size_t i = 0; i < MEET; i++) {
        size_t bucket = tqi_hash_bytes(&keys[i], sizeof keys[i], 0x5eed) % BUCKETS;

        parted += !is_used[bucket];
        is_used[bucket] = true;
    }
    assert_true(parted > MEET * 9 / 10);
}

static void a_seed_changes_nothing_that_can_be_seen(void **state)
{
    unit_env_t e;
    tqi_map_str_t maps[2];
    tqi_env_t envs[2];

    (void)state;
    unit_env_init(&e);
    for (size_t m = 0; m < 2; m++) {
        envs[m] = e.env;
        envs[m].hash_seed = m * 0x1234567890abcdefu;
        tqi_map_str_init(&maps[m], &envs[m]);
        for (uint64_t key = 0; key < 500; key++)
            assert_int_equal(tqi_map_str_put(&maps[m], &key, sizeof key, cells + key, NULL), TQ_OK);
        for (uint64_t key = 0; key < 500; key += 3)
            assert_ptr_equal(tqi_map_str_take(&maps[m], &key, sizeof key), cells + key);
    }
    tqi_map_str_item_t *a = tqi_map_str_first(&maps[0]), *b = tqi_map_str_first(&maps[1]);
    for (; a && b; a = tqi_map_str_next(a), b = tqi_map_str_next(b))
        assert_ptr_equal(a->value, b->value);
    assert_true(!a && !b);
    for (size_t m = 0; m < 2; m++)
        tqi_map_str_fini(&maps[m], NULL, NULL);
    assert_int_equal(e.bytes, 0);
}

static void a_process_has_a_seed_of_its_own(void **state)
{
    (void)state;
    assert_true(tqi_env_malloc()->hash_seed != 0);
    assert_true(tqi_env_malloc() == tqi_env_malloc());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_agree_with_an_array),
        cmocka_unit_test(strings_agree_with_an_array),
        cmocka_unit_test(no_bytes_at_no_address_are_a_key),
        cmocka_unit_test(an_item_may_be_taken_while_walking),
        cmocka_unit_test(refused_memory_is_an_error_and_loses_nothing),
        cmocka_unit_test(keys_that_meet_under_one_seed_part_under_another),
        cmocka_unit_test(a_seed_changes_nothing_that_can_be_seen),
        cmocka_unit_test(a_process_has_a_seed_of_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
