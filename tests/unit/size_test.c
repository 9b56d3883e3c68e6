/* SPDX-License-Identifier: Apache-2.0 */
#include "base/size.h"

#include "unit.h"

static void sums_and_products_that_wrap_are_refused(void **state)
{
    size_t out;

    (void)state;
    assert_true(tqi_size_add(SIZE_MAX - 1, 1, &out));
    assert_true(out == SIZE_MAX);
    assert_false(tqi_size_add(SIZE_MAX, 1, &out));
    assert_true(tqi_size_mul(SIZE_MAX, 1, &out));
    assert_false(tqi_size_mul(SIZE_MAX / 2 + 1, 2, &out));
    assert_true(tqi_size_mul(0, SIZE_MAX, &out));
    assert_true(out == 0);
}

static void align_rounds_up_and_refuses_to_wrap(void **state)
{
    size_t out;

    (void)state;
    assert_true(tqi_size_align(0, 64, &out) && out == 0);
    assert_true(tqi_size_align(1, 64, &out) && out == 64);
    assert_true(tqi_size_align(64, 64, &out) && out == 64);
    assert_true(tqi_size_align(65, 64, &out) && out == 128);
    assert_false(tqi_size_align(SIZE_MAX - 62, 64, &out));
    assert_true(tqi_size_align(SIZE_MAX - 63, 64, &out) && out == SIZE_MAX - 63);
}

static void numbers_are_little_endian_at_any_alignment(void **state)
{
    uint8_t bytes[16];

    (void)state;
    for (size_t at = 0; at < 8; at++) {
        tqi_store_le64(bytes + at, 0x8877665544332211u);
        for (size_t i = 0; i < 8; i++)
            assert_int_equal(bytes[at + i], 0x11 * (i + 1));
        assert_true(tqi_load_le64(bytes + at) == 0x8877665544332211u);
        assert_true(tqi_load_le32(bytes + at) == 0x44332211u);
        assert_true(tqi_load_le16(bytes + at) == 0x2211u);
        tqi_store_le32(bytes + at, 0xdeadbeefu);
        assert_true(tqi_load_le64(bytes + at) == 0x88776655deadbeefu);
        tqi_store_le16(bytes + at, 0xcafeu);
        assert_true(tqi_load_le32(bytes + at) == 0xdeadcafeu);
    }
}

typedef struct outer {
    int before;
    int member;
} outer_t;

static void container_of_leads_back_to_the_struct(void **state)
{
    outer_t outer = {1, 2};
    int *member = &outer.member;

    (void)state;
    assert_ptr_equal(tqi_container_of(member, outer_t, member), &outer);
}

static void calloc_refuses_a_product_that_wraps(void **state)
{
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    assert_null(tqi_env_calloc(&e.env, SIZE_MAX / 2, 3));
    unsigned char *p = tqi_env_calloc(&e.env, 3, 5);
    for (size_t i = 0; i < 15; i++)
        assert_int_equal(p[i], 0);
    assert_int_equal(e.bytes, 15);
    tqi_env_free(&e.env, p, 15);
    tqi_env_free(&e.env, NULL, 99);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_products_that_wrap_are_refused),
        cmocka_unit_test(align_rounds_up_and_refuses_to_wrap),
        cmocka_unit_test(numbers_are_little_endian_at_any_alignment),
        cmocka_unit_test(container_of_leads_back_to_the_struct),
        cmocka_unit_test(calloc_refuses_a_product_that_wraps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
