/* SPDX-License-Identifier: Apache-2.0 */
/* Tag maps between people's texts, msgpack and JSON. */
#include "api.h"

#include <tq/value.h>

static char *json_of(const void *value, size_t len)
{
    char *json = NULL;

    api_ok(tq_value_to_json(value, len, &json, &err));
    return json;
}

/* What one text becomes as a tag, as JSON. */
static void assert_tag(const char *text, const char *json)
{
    const char *name = "t";
    char expected[256];
    size_t len;
    void *map;

    api_ok(tq_map_from_texts(&name, &text, 1, &map, &len, &err));
    char *got = json_of(map, len);
    snprintf(expected, sizeof expected, "{\"t\":%s}", json);
    assert_string_equal(got, expected);
    tq_free(got);
    tq_free(map);
}

static void a_text_that_looks_like_a_number_or_a_word_of_json_becomes_it(void **state)
{
    (void)state;
    assert_tag("3", "3");
    assert_tag("-3", "-3");
    assert_tag("+3", "3");
    assert_tag("007", "7");
    assert_tag("9223372036854775807", "9223372036854775807");
    assert_tag("0.5", "0.5");
    assert_tag(".5", "0.5");
    assert_tag("1e3", "1000");
    assert_tag("true", "true");
    assert_tag("false", "false");
    assert_tag("null", "null");
}

static void anything_else_is_a_string(void **state)
{
    (void)state;
    assert_tag("", "\"\"");
    assert_tag("+", "\"+\"");
    assert_tag("1.2.3", "\"1.2.3\"");
    assert_tag("1e", "\"1e\"");
    assert_tag("0x10", "\"0x10\"");
    assert_tag("inf", "\"inf\"");
    assert_tag("nan", "\"nan\"");
    assert_tag(" 3", "\" 3\"");
    assert_tag("True", "\"True\"");
    assert_tag("a=b", "\"a=b\"");
    assert_tag("\xc3\xa9\xe2\x82\xac", "\"\xc3\xa9\xe2\x82\xac\"");
}

static void quotes_make_a_string_of_what_would_be_a_number(void **state)
{
    (void)state;
    assert_tag("\"3\"", "\"3\"");
    assert_tag("\"\"", "\"\"");
    assert_tag("\"", "\"\\\"\"");
    assert_tag("\"a\"b\"", "\"a\\\"b\"");
}

static void a_number_that_no_type_holds_stays_the_text_that_it_is(void **state)
{
    (void)state;
    assert_tag("1e999", "\"1e999\"");
    /* Beyond 64 bits, but a double comes near. */
    assert_tag("99999999999999999999", "1e+20");
}

static void a_name_given_twice_is_refused(void **state)
{
    const char *names[] = {"a", "b", "a"}, *texts[] = {"1", "2", "3"};
    tq_error_t err = {0};
    size_t len = 0;
    void *map = NULL;

    (void)state;
    assert_int_equal(tq_map_from_texts(names, texts, 3, &map, &len, &err), TQ_E_INVALID);
    assert_string_equal(err.text, "tag 'a' is given twice");
}

static void no_names_are_the_empty_map_and_so_are_no_bytes(void **state)
{
    size_t len;
    void *map;

    (void)state;
    api_ok(tq_map_from_texts(NULL, NULL, 0, &map, &len, &err));
    assert_int_equal(len, 1);
    char *json = json_of(map, len);
    assert_string_equal(json, "{}");
    tq_free(json);
    tq_free(map);
    json = json_of("", 0);
    assert_string_equal(json, "{}");
    tq_free(json);
}

static void what_is_not_one_whole_value_is_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {
        {"\xc1", 1},         /* no type */
        {"\x81\xa1k", 3},    /* a map without its value */
        {"\x01\x02", 2},     /* two values */
        {"\xdb\xff\xff", 3}, /* a length that ends early */
        {"\xdd\xff\xff\xff\xff", 5},
        {"\xa5he", 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tq_error_t err = {0};
        char *json = NULL;
        assert_int_equal(tq_value_to_json(cases[i].bytes, cases[i].len, &json, &err), TQ_E_INVALID);
        assert_string_equal(err.text, "not one whole msgpack value");
        assert_null(json);
    }
}

static void values_that_json_lacks_become_what_is_next(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *json;
    } cases[] = {
        {"\xcb\x7f\xf8\0\0\0\0\0\0", 9, "null"}, /* NaN */
        {"\xcb\x7f\xf0\0\0\0\0\0\0", 9, "null"}, /* infinity */
        {"\xc4\x03\x01\x02\x03", 5, "\"AQID\""}, /* bytes: base64 */
        {"\xc4\x00", 2, "\"\""},
        {"\x82\x01\xa1x\xa1k\x92\xc0\xc3", 9, "{\"1\":\"x\",\"k\":[null,true]}"},
        {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9, "18446744073709551615"},
        {"\xd3\x80\0\0\0\0\0\0\0", 9, "-9223372036854775808"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = json_of(cases[i].bytes, cases[i].len);
        assert_string_equal(json, cases[i].json);
        tq_free(json);
    }
}

static void nesting_beyond_sixty_four_is_null_and_not_followed(void **state)
{
    enum { DEPTH = 100000 };
    char *deep = malloc(DEPTH);

    (void)state;
    assert_non_null(deep);
    memset(deep, 0x91, DEPTH - 1); /* lists of one list */
    deep[DEPTH - 1] = 0;
    char *json = json_of(deep, DEPTH);
    assert_int_equal(strspn(json, "["), 64);
    assert_int_equal(strncmp(json + 64, "null]", 5), 0);
    tq_free(json);
    free(deep);
}

static void strings_of_any_bytes_are_json(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *json;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"\\/b", 5, "\"a\\\"\\\\/b\""},
        {"\0\x1f\n\t", 4, "\"\\u0000\\u001f\\u000a\\u0009\""},
        {"\xe2\x82\xac", 3, "\"\xe2\x82\xac\""},
        {"a\xff"
         "b",
         3,
         "\"a\xef\xbf\xbd"
         "b\""},
        {"\xe2\x82", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* ends in a character */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* half a surrogate */
        {"\xc0\x80", 2, "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = tq_json_string(cases[i].bytes, cases[i].len);
        assert_string_equal(json, cases[i].json);
        tq_free(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_that_looks_like_a_number_or_a_word_of_json_becomes_it),
        cmocka_unit_test(anything_else_is_a_string),
        cmocka_unit_test(quotes_make_a_string_of_what_would_be_a_number),
        cmocka_unit_test(a_number_that_no_type_holds_stays_the_text_that_it_is),
        cmocka_unit_test(a_name_given_twice_is_refused),
        cmocka_unit_test(no_names_are_the_empty_map_and_so_are_no_bytes),
        cmocka_unit_test(what_is_not_one_whole_value_is_refused),
        cmocka_unit_test(values_that_json_lacks_become_what_is_next),
        cmocka_unit_test(nesting_beyond_sixty_four_is_null_and_not_followed),
        cmocka_unit_test(strings_of_any_bytes_are_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
