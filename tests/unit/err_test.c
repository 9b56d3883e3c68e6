/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include "unit.h"

#include <string.h>

static void every_status_has_its_name_text_and_class(void **state)
{
    (void)state;
    assert_string_equal(tq_status_name(TQ_E_FULL), "E_FULL");
    assert_string_equal(tq_status_text(TQ_E_FULL), "no space");
    assert_int_equal(tq_status_class(TQ_E_FULL), TQ_CLASS_RETRY);
    assert_int_equal(tq_status_class(TQ_OK), TQ_CLASS_OK);
#define CHECK_(name, number, cls, text)                                                            \
    assert_int_equal(TQ_##name, number);                                                           \
    assert_string_equal(tq_status_name((tq_status_t)(number)), #name);                             \
    assert_int_equal(tq_status_class((tq_status_t)(number)), TQ_CLASS_##cls);
    TQ_STATUS_TABLE(CHECK_)
#undef CHECK_
}

static void status_numbers_are_given_once(void **state)
{
    static const int numbers[] = {
#define NUMBER_(name, number, cls, text) number,
        TQ_STATUS_TABLE(NUMBER_)
#undef NUMBER_
    };
    (void)state;
    for (size_t i = 1; i < sizeof numbers / sizeof *numbers; i++)
        assert_true(numbers[i - 1] < numbers[i]);
}

static void a_number_from_a_newer_peer_is_a_bug_without_a_name(void **state)
{
    (void)state;
    assert_string_equal(tq_status_name((tq_status_t)599), "E_?");
    assert_int_equal(tq_status_class((tq_status_t)599), TQ_CLASS_BUG);
}

static void fail_returns_the_code_and_keeps_the_sentence(void **state)
{
    tqi_err_t err;

    (void)state;
    assert_int_equal(tqi_fail(&err, TQ_E_NO_KEY, "key '%s' in %d", "a", 7), TQ_E_NO_KEY);
    assert_int_equal(err.status, TQ_E_NO_KEY);
    assert_string_equal(err.text, "key 'a' in 7");
    assert_int_equal(tqi_fail(NULL, TQ_E_NO_KEY, "x"), TQ_E_NO_KEY);
}

static void fail_may_quote_the_error_that_it_replaces(void **state)
{
    tqi_err_t err;

    (void)state;
    tqi_fail(&err, TQ_E_SYSTEM, "ENOSPC");
    tqi_fail(&err, TQ_E_FULL, "cannot grow: %s", err.text);
    assert_string_equal(err.text, "cannot grow: ENOSPC");
}

static void a_long_text_is_cut_with_dots(void **state)
{
    char longer[TQI_ERR_TEXT_MAX + 1];
    tqi_err_t err;

    (void)state;
    memset(longer, 'x', sizeof longer);
    longer[TQI_ERR_TEXT_MAX - 1] = '\0';
    tqi_fail(&err, TQ_E_INVALID, "%s", longer);
    assert_string_equal(err.text, longer); /* just fits */
    longer[TQI_ERR_TEXT_MAX - 1] = 'x';
    longer[TQI_ERR_TEXT_MAX] = '\0';
    tqi_fail(&err, TQ_E_INVALID, "%s", longer);
    assert_int_equal(strlen(err.text), TQI_ERR_TEXT_MAX - 1);
    assert_string_equal(err.text + TQI_ERR_TEXT_MAX - 5, "x...");
}

static void a_cut_never_splits_a_character(void **state)
{
    char longer[2 * TQI_ERR_TEXT_MAX];
    tqi_err_t err;

    (void)state;
    for (size_t shift = 0; shift < 4; shift++) {
        size_t len = shift;

        memset(longer, 'x', shift);
        for (; len + 3 < sizeof longer; len += 3)
            memcpy(longer + len, "\xe2\x82\xac", 3); /* the euro sign */
        longer[len] = '\0';
        tqi_fail(&err, TQ_E_INVALID, "%s", longer);
        size_t end = strlen(err.text) - 3;
        assert_string_equal(err.text + end, "...");
        assert_int_equal((end - shift) % 3, 0);
    }
}

static void prefix_goes_in_front_and_keeps_the_code(void **state)
{
    tqi_err_t err;
    char longer[TQI_ERR_TEXT_MAX];

    (void)state;
    tqi_fail(&err, TQ_E_FULL, "no room");
    tqi_err_prefix(&err, "unit %d", 3);
    assert_string_equal(err.text, "unit 3: no room");
    assert_int_equal(err.status, TQ_E_FULL);
    memset(longer, 'y', sizeof longer);
    longer[sizeof longer - 1] = '\0';
    tqi_err_prefix(&err, "%s", longer);
    assert_int_equal(strlen(err.text), TQI_ERR_TEXT_MAX - 1);
    tqi_err_prefix(NULL, "nothing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_name_text_and_class),
        cmocka_unit_test(status_numbers_are_given_once),
        cmocka_unit_test(a_number_from_a_newer_peer_is_a_bug_without_a_name),
        cmocka_unit_test(fail_returns_the_code_and_keeps_the_sentence),
        cmocka_unit_test(fail_may_quote_the_error_that_it_replaces),
        cmocka_unit_test(a_long_text_is_cut_with_dots),
        cmocka_unit_test(a_cut_never_splits_a_character),
        cmocka_unit_test(prefix_goes_in_front_and_keeps_the_code),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
