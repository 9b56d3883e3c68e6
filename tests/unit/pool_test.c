/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include "unit.h"

#include <string.h>

typedef struct object {
    uint64_t a;
    char b[33];
} object_t;

static void an_object_given_back_is_the_next_one_taken_and_is_clear(void **state)
{
    tqi_pool_t pool;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_pool_init(&pool, &e.env, sizeof(object_t), 10);
    object_t *first = tqi_pool_take(&pool);
    memset(first, 0xff, sizeof *first);
    tqi_pool_give(&pool, first);
    object_t *second = tqi_pool_take(&pool);
    assert_ptr_equal(first, second);
    assert_int_equal(second->a, 0);
    assert_int_equal(second->b[32], 0);
    assert_int_equal(e.alloc_cnt, 1);
    tqi_pool_give(&pool, second);
    tqi_pool_give(&pool, NULL);
    tqi_pool_fini(&pool);
    assert_int_equal(e.bytes, 0);
}

static void the_bound_refuses_and_the_gauge_says_so(void **state)
{
    enum { MAX = 8 };
    void *objects[MAX];
    tqi_pool_t pool;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_pool_init(&pool, &e.env, 1, MAX);
    for (int i = 0; i < MAX; i++) {
        objects[i] = tqi_pool_take(&pool);
        assert_non_null(objects[i]);
    }
    assert_null(tqi_pool_take(&pool));
    assert_int_equal(pool.refusals, 1);
    assert_int_equal(pool.used_cnt, MAX);
    tqi_pool_give(&pool, objects[0]);
    assert_int_equal(pool.used_cnt, MAX - 1);
    assert_int_equal(pool.used_max, MAX);
    assert_int_equal(pool.idle_cnt, 1);
    objects[0] = tqi_pool_take(&pool);
    assert_non_null(objects[0]);
    for (int i = 0; i < MAX; i++)
        tqi_pool_give(&pool, objects[i]);
    tqi_pool_fini(&pool);
    assert_int_equal(e.bytes, 0);
}

static void no_memory_is_a_refusal(void **state)
{
    tqi_pool_t pool;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_pool_init(&pool, &e.env, 100, 2);
    e.fail_after = 0;
    assert_null(tqi_pool_take(&pool));
    assert_int_equal(pool.refusals, 1);
    assert_int_equal(pool.used_cnt, 0);
    tqi_pool_fini(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_given_back_is_the_next_one_taken_and_is_clear),
        cmocka_unit_test(the_bound_refuses_and_the_gauge_says_so),
        cmocka_unit_test(no_memory_is_a_refusal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
