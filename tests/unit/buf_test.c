/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include "unit.h"

#include <string.h>

static void bytes_and_text_are_appended_in_order(void **state)
{
    tqi_buf_t buf;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    assert_int_equal(tqi_buf_append(&buf, NULL, 0), TQ_OK);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(tqi_buf_append(&buf, "ab\0c", 4), TQ_OK);
        assert_int_equal(tqi_buf_printf(&buf, "%03d", i), TQ_OK);
        memset(tqi_buf_extend(&buf, 2), '-', 2);
    }
    assert_int_equal(buf.len, 900);
    for (size_t i = 0; i < 100; i++) {
        char digits[24];

        snprintf(digits, sizeof digits, "%03zu--", i);
        assert_memory_equal(buf.data + 9 * i, "ab\0c", 4);
        assert_memory_equal(buf.data + 9 * i + 4, digits, 5);
    }
    assert_true(e.alloc_cnt < 12);
    tqi_buf_fini(&buf);
    assert_int_equal(e.bytes, 0);
}

static void taking_moves_the_memory_and_clearing_keeps_it(void **state)
{
    tqi_buf_t from, to;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&from, &e.env);
    tqi_buf_init(&to, &e.env);
    assert_int_equal(tqi_buf_append(&from, "bytes", 5), TQ_OK);
    tqi_buf_take(&to, &from);
    assert_int_equal(to.len, 5);
    assert_memory_equal(to.data, "bytes", 5);
    assert_int_equal(from.len, 0);
    assert_null(from.data);
    tqi_buf_clear(&to);
    assert_int_equal(to.len, 0);
    e.fail_after = 0;
    assert_int_equal(tqi_buf_append(&to, "again", 5), TQ_OK);
    tqi_buf_fini(&to);
    tqi_buf_fini(&from);
    assert_int_equal(e.bytes, 0);
}

static void a_refused_append_appends_nothing(void **state)
{
    tqi_buf_t buf;
    unit_env_t e;
    char big[200];

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    assert_int_equal(tqi_buf_append(&buf, "x", 1), TQ_OK);
    e.fail_after = 0;
    memset(big, 'b', sizeof big);
    assert_int_equal(tqi_buf_append(&buf, big, sizeof big), TQ_E_NO_MEMORY);
    assert_int_equal(tqi_buf_printf(&buf, "%200d", 1), TQ_E_NO_MEMORY);
    assert_null(tqi_buf_extend(&buf, sizeof big));
    assert_int_equal(tqi_buf_reserve(&buf, SIZE_MAX), TQ_E_NO_MEMORY);
    assert_int_equal(buf.len, 1);
    assert_int_equal(buf.data[0], 'x');
    tqi_buf_fini(&buf);
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_and_text_are_appended_in_order),
        cmocka_unit_test(taking_moves_the_memory_and_clearing_keeps_it),
        cmocka_unit_test(a_refused_append_appends_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
