/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include "unit.h"

typedef TQI_VEC(uint32_t) u32_vec_t;

static void pushed_elements_are_there_in_order(void **state)
{
    u32_vec_t vec;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_vec_init(&vec, &e.env);
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(tqi_vec_push(&vec, i * i), TQ_OK);
    assert_int_equal(vec.len, 10000);
    for (uint32_t i = 0; i < 10000; i++)
        assert_int_equal(vec.at[i], i * i);
    assert_true(e.alloc_cnt < 20);
    tqi_vec_fini(&vec);
    assert_int_equal(e.bytes, 0);
    assert_int_equal(tqi_vec_push(&vec, 1), TQ_OK);
    tqi_vec_fini(&vec);
}

static void refused_memory_leaves_the_vector_as_it_was(void **state)
{
    u32_vec_t vec;
    unit_env_t e;
    uint32_t cnt = 0;

    (void)state;
    unit_env_init(&e);
    tqi_vec_init(&vec, &e.env);
    e.fail_after = 1;
    while (tqi_vec_push(&vec, cnt) == TQ_OK)
        cnt++;
    assert_int_equal(vec.len, cnt);
    assert_int_equal(vec.at[cnt - 1], cnt - 1);
    e.fail_after = UINT64_MAX;
    assert_int_equal(tqi_vec_reserve(&vec, SIZE_MAX), TQ_E_NO_MEMORY);
    assert_int_equal(tqi_vec_reserve(&vec, SIZE_MAX / 2), TQ_E_NO_MEMORY);
    tqi_vec_fini(&vec);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushed_elements_are_there_in_order),
        cmocka_unit_test(refused_memory_leaves_the_vector_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
