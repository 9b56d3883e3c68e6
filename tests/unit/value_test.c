/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/value.h"

#include "unit.h"

#include <math.h>
#include <string.h>

/* A random value of bounded depth: appended, and remembered by nothing but its bytes. */
static void put_random(tqi_buf_t *buf, tqi_rng_t *rng, int depth)
{
    uint8_t bytes[64];
    uint32_t len = (uint32_t)tqi_rng_below(rng, sizeof bytes);
    uint64_t u = tqi_rng_u64(rng) >> tqi_rng_below(rng, 64);

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)tqi_rng_u64(rng);
    switch (tqi_rng_below(rng, depth > 0 ? 9 : 7)) {
    case 0:
        tqi_put_nil(buf);
        break;
    case 1:
        tqi_put_bool(buf, u & 1);
        break;
    case 2:
        tqi_put_uint(buf, u);
        break;
    case 3:
        tqi_put_int(buf, -(int64_t)(u >> 1) - 1);
        break;
    case 4:
        tqi_put_f64(buf, (double)u / 3.0);
        break;
    case 5:
        tqi_put_str(buf, bytes, len);
        break;
    case 6:
        tqi_put_bin(buf, bytes, len);
        break;
    case 7:
        len %= 20;
        tqi_put_array(buf, len);
        for (uint32_t i = 0; i < len; i++)
            put_random(buf, rng, depth - 1);
        break;
    case 8:
        len %= 20;
        tqi_put_map(buf, len);
        for (uint32_t i = 0; i < 2 * len; i++)
            put_random(buf, rng, depth - 1);
        break;
    }
}

static void numbers_come_back_in_their_smallest_form(void **state)
{
    static const struct {
        int64_t value;
        size_t bytes;
    } cases[] = {{0, 1},         {127, 1},    {128, 2},        {255, 2},          {256, 3},
                 {65535, 3},     {65536, 5},  {UINT32_MAX, 5}, {1ll << 32, 9},    {INT64_MAX, 9},
                 {-1, 1},        {-32, 1},    {-33, 2},        {INT8_MIN, 2},     {INT8_MIN - 1, 3},
                 {INT16_MIN, 3}, {-32769, 5}, {INT32_MIN, 5},  {-(1ll << 40), 9}, {INT64_MIN, 9}};
    unit_env_t e;
    tqi_buf_t buf;
    tqi_value_t v;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tqi_buf_clear(&buf);
        assert_int_equal(tqi_put_int(&buf, cases[i].value), TQ_OK);
        assert_int_equal(buf.len, cases[i].bytes);
        tqi_reader_t r = tqi_reader(buf.data, buf.len);
        assert_true(tqi_value_next(&r, &v));
        assert_int_equal(v.type, cases[i].value < 0 ? TQI_VALUE_INT : TQI_VALUE_UINT);
        assert_int_equal(v.as.i, cases[i].value);
        assert_ptr_equal(r.at, r.end);
    }
    tqi_buf_fini(&buf);
}

static void a_whole_value_is_stepped_over_and_no_part_of_it_is_whole(void **state)
{
    (void)state;
    for_each_seed(seed, 200)
    {
        unit_env_t e;
        tqi_buf_t buf;
        tqi_rng_t rng;

        unit_env_init(&e);
        tqi_buf_init(&buf, &e.env);
        tqi_rng_init(&rng, seed);
        put_random(&buf, &rng, 3);
        unit_check(tqi_value_is_whole(buf.data, buf.len));
        for (size_t cut = 0; cut < buf.len && cut < 200; cut++)
            unit_check(!tqi_value_is_whole(buf.data, cut));
        tqi_buf_append(&buf, "\xc0", 1);
        unit_check(!tqi_value_is_whole(buf.data, buf.len));
        tqi_buf_fini(&buf);
        unit_check(e.bytes == 0);
    }
}

/* Under ASan this shows that no byte outside is read, whatever the bytes say. */
static void any_bytes_are_read_or_refused(void **state)
{
    (void)state;
    for_each_seed(seed, 2000)
    {
        tqi_rng_t rng;
        unit_env_t e;
        tqi_buf_t json;
        uint8_t bytes[48];
        size_t len;

        unit_env_init(&e);
        tqi_buf_init(&json, &e.env);
        tqi_rng_init(&rng, seed);
        len = tqi_rng_below(&rng, sizeof bytes);
        uint8_t *copy = malloc(len + 1);
        for (size_t i = 0; i < len; i++)
            copy[i] = (uint8_t)(tqi_rng_chance(&rng, 0.5) ? tqi_rng_u64(&rng)
                                                          : 0x80 + tqi_rng_below(&rng, 0x60));
        tqi_reader_t r = tqi_reader(copy, len);
        const uint8_t *before = r.at;
        bool is_ok = tqi_value_skip(&r);
        unit_check(is_ok ? r.at > before && r.at <= r.end : r.at == before);
        bool is_json = tqi_value_to_json(copy, len, &json) == TQ_OK;
        unit_check(is_json == tqi_value_is_whole(copy, len));
        unit_check(is_json || json.len == 0);
        tqi_buf_fini(&json);
        free(copy);
    }
}

static void a_count_that_cannot_be_true_is_refused(void **state)
{
    tqi_value_t v;
    static const char *const lies[] = {"\xdd\xff\xff\xff\xff", "\xdf\x7f\xff\xff\xff",
                                       "\xdc\x00\x05\xc0",     "\xc6\xff\xff\xff\xf0",
                                       "\xdb\xff\xff\xff\xff", "\xc9\xff\xff\xff\xff"};

    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        tqi_reader_t r = tqi_reader(lies[i], i == 2 ? 4 : 5);
        assert_false(tqi_value_next(&r, &v));
        assert_int_equal(r.end - r.at, i == 2 ? 4 : 5);
    }
}

static void deep_nesting_neither_recurses_nor_fails(void **state)
{
    size_t len = 1 << 20;
    uint8_t *deep = malloc(len);
    unit_env_t e;
    tqi_buf_t json;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&json, &e.env);
    memset(deep, 0x91, len); /* an array of one array of one ... */
    deep[len - 1] = 0xc0;
    assert_true(tqi_value_is_whole(deep, len));
    assert_int_equal(tqi_value_to_json(deep, len, &json), TQ_OK);
    assert_int_equal(json.len, 64 + 4 + 64);
    tqi_buf_fini(&json);
    free(deep);
}

static void a_tag_map_has_string_or_integer_keys_and_a_bounded_size(void **state)
{
    (void)state;
    assert_true(tqi_value_is_tag_map("\x80", 1, 256));
    assert_true(tqi_value_is_tag_map("\x82\xa1k\x01\x05\xc0", 6, 256));
    assert_false(tqi_value_is_tag_map("\x82\xa1k\x01\x05\xc0", 6, 1));
    assert_false(tqi_value_is_tag_map("\x81\xc0\x01", 3, 256));
    assert_false(tqi_value_is_tag_map("\x81\xa1k\x01\xc0", 5, 256));
    assert_false(tqi_value_is_tag_map("\x91\x01", 2, 256));
    assert_false(tqi_value_is_tag_map("", 0, 256));
    assert_int_equal(tqi_value_map_cnt("\x82\xa1k\x01\x05\xc0", 6), 2);
    assert_int_equal(tqi_value_map_cnt("\x91\x01", 2), 0);
    assert_int_equal(tqi_value_map_cnt("", 0), 0);
}

static void a_key_is_found_with_the_bytes_of_its_value(void **state)
{
    const uint8_t *span;
    size_t span_len;
    tqi_value_t v;
    /* {[1]: 2, "a": 1, "b": [1, 2], "a": 3} */
    static const char map[] = "\x84\x91\x01\x02\xa1"
                              "a\x01\xa1"
                              "b\x92\x01\x02\xa1"
                              "a\x03";

    (void)state;
    assert_true(tqi_value_find(map, sizeof map - 1, "a", 1, &v, &span, &span_len));
    assert_int_equal(v.as.u, 3);
    assert_int_equal(span_len, 1);
    assert_true(tqi_value_find(map, sizeof map - 1, "b", 1, &v, &span, &span_len));
    assert_int_equal(span_len, 3);
    assert_memory_equal(span, "\x92\x01\x02", 3);
    assert_false(tqi_value_find(map, sizeof map - 1, "c", 1, &v, &span, &span_len));
}

static void json_has_null_for_what_json_cannot_say(void **state)
{
    unit_env_t e;
    tqi_buf_t buf, json;
    static const char want[] = "{\"nan\":null,\"-7\":\"/w==\",\"s\":\"a\\\"\\u000a\xef\xbf\xbd\"}";

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    tqi_buf_init(&json, &e.env);
    tqi_put_map(&buf, 3);
    tqi_put_str(&buf, "nan", 3);
    tqi_put_f64(&buf, NAN);
    tqi_put_int(&buf, -7);
    tqi_put_bin(&buf, "\xff", 1);
    tqi_put_str(&buf, "s", 1);
    tqi_put_str(&buf, "a\"\n\xff", 4);
    assert_int_equal(tqi_value_to_json(buf.data, buf.len, &json), TQ_OK);
    assert_int_equal(json.len, sizeof want - 1);
    assert_memory_equal(json.data, want, json.len);
    tqi_buf_fini(&buf);
    tqi_buf_fini(&json);
}

static void a_map_that_is_cut_off_has_no_tags_and_no_keys(void **state)
{
    /* {{1: 2}: 3, [4]: 5, "": 6, 7: 8, "key": "value"} */
    static const char map[] = "\x85\x81\x01\x02\x03\x91\x04\x05\xa0\x06\x07\x08\xa3key\xa5value";
    static const char tags[] =
        "\x83\x05\x01\xd0\x80\x02\xa3key\xa5value"; /* {5: 1, -128: 2, ...} */
    const uint8_t *span;
    size_t span_len;
    tqi_value_t v;

    (void)state;
    assert_true(tqi_value_find(map, sizeof map - 1, "key", 3, NULL, &span, &span_len));
    assert_int_equal(span_len, 6);
    assert_true(tqi_value_find(map, sizeof map - 1, "", 0, &v, NULL, NULL));
    assert_int_equal(v.as.u, 6);
    assert_false(tqi_value_find(map, sizeof map - 1, "kez", 3, &v, NULL, NULL));
    assert_false(tqi_value_find("\x91\x01", 2, "key", 3, &v, NULL, NULL));
    for (size_t len = 0; len < sizeof map - 1; len++)
        assert_false(tqi_value_find(map, len, "key", 3, &v, NULL, NULL));
    assert_true(tqi_value_is_tag_map(tags, sizeof tags - 1, 3));
    for (size_t len = 0; len < sizeof tags - 1; len++)
        assert_false(tqi_value_is_tag_map(tags, len, 3));
}

/* Lengths at which the head grows: strings, bins, maps and arrays come back with what they held. */
static void what_has_a_length_comes_back_on_both_sides_of_every_head(void **state)
{
    static const uint32_t lens[] = {0, 15, 16, 31, 32, 255, 256, 65535, 65536};
    uint8_t *bytes = calloc(1, 65536);
    unit_env_t e;

    (void)state;
    assert_non_null(bytes);
    unit_env_init(&e);
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        static const tqi_value_type_t types[] = {TQI_VALUE_STR, TQI_VALUE_BIN, TQI_VALUE_MAP,
                                                 TQI_VALUE_ARRAY};
        uint32_t len = lens[i];
        tqi_reader_t r;
        tqi_value_t v;
        tqi_buf_t buf;

        tqi_buf_init(&buf, &e.env);
        assert_int_equal(tqi_put_str(&buf, bytes, len), TQ_OK);
        assert_int_equal(tqi_put_bin(&buf, bytes, len), TQ_OK);
        assert_int_equal(tqi_put_map(&buf, len), TQ_OK);
        for (uint32_t k = 0; k < 2 * len; k++)
            assert_int_equal(tqi_put_nil(&buf), TQ_OK);
        assert_int_equal(tqi_put_array(&buf, len), TQ_OK);
        for (uint32_t k = 0; k < len; k++)
            assert_int_equal(tqi_put_nil(&buf), TQ_OK);
        r = tqi_reader(buf.data, buf.len);
        for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
            tqi_reader_t whole = r;

            assert_true(tqi_value_next(&whole, &v));
            assert_int_equal(v.type, types[t]);
            assert_int_equal(t < 2 ? v.len : v.cnt, len);
            assert_true(tqi_value_skip(&r));
        }
        assert_ptr_equal(r.at, r.end);
        tqi_buf_fini(&buf);
    }
    free(bytes);
    assert_int_equal(e.bytes, 0);
}

/* JSON is UTF-8: each byte that is in no sequence of RFC 3629 becomes one U+FFFD. */
static void json_takes_the_utf8_that_the_rfc_takes(void **state)
{
#define BAD "\xef\xbf\xbd"
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"\xc2\x80", "\xc2\x80"},
        {"\xdf\xbf", "\xdf\xbf"},
        {"\xe0\xa0\x80", "\xe0\xa0\x80"},
        {"\xed\x9f\xbf", "\xed\x9f\xbf"},
        {"\xee\x80\x80", "\xee\x80\x80"},
        {"\xf0\x90\x80\x80", "\xf0\x90\x80\x80"},
        {"\xf1\x80\x80\x80", "\xf1\x80\x80\x80"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\x80", BAD},
        {"\xc1\xbf", BAD BAD}, /* overlong */
        {"\xc2", BAD},
        {"\xc2z", BAD "z"},
        {"\xe0\x9f\xbf", BAD BAD BAD}, /* overlong */
        {"\xed\xa0\x80", BAD BAD BAD}, /* a surrogate */
        {"\xe1\x80", BAD BAD},
        {"\xe1zz", BAD "zz"},
        {"\xe1\x80z", BAD BAD "z"},
        {"\xf0\x8f\xbf\xbf", BAD BAD BAD BAD}, /* overlong */
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* above U+10FFFF */
        {"\xf5\x80\x80\x80", BAD BAD BAD BAD},
        {"\xf1\x80\x80", BAD BAD BAD},
        {"\xf1zzz", BAD "zzz"},
        {"\xf1\x80zz", BAD BAD "zz"},
        {"\xf1\x80\x80z", BAD BAD BAD "z"},
        {"\x7f\\", "\\u007f\\\\"},
    };
#undef BAD
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t len = strlen(cases[i].out);
        tqi_buf_t json;

        tqi_buf_init(&json, &e.env);
        assert_int_equal(tqi_json_str(&json, cases[i].in, strlen(cases[i].in)), TQ_OK);
        assert_int_equal(json.len, len + 2);
        assert_memory_equal(json.data + 1, cases[i].out, len);
        tqi_buf_fini(&json);
    }
}

/* The buffer has room for ever less of the text, and may not grow. */
static void json_without_memory_leaves_the_buffer_as_it_was(void **state)
{
    static const char value[] = "\x86\x01\xc3\xd0\x80\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"
                                "\xc0\x93\x01\xa2\"\n\xc4\x05zzzzz\xa1s\xca\x7f\x80\x00\x00"
                                "\x91\x01\x90\x80\x80";
    static const char want[] = "{\"1\":true,\"-128\":1,\"null\":[1,\"\\\"\\u000a\",\"enp6eno=\"],"
                               "\"s\":null,\"null\":[],\"null\":{}}";
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    for (size_t room = 0; room < sizeof want; room++) {
        tqi_buf_t json;
        tq_status_t rc;
        size_t start;

        tqi_buf_init(&json, &e.env);
        e.fail_after = UINT64_MAX;
        assert_int_equal(tqi_buf_reserve(&json, sizeof want), TQ_OK);
        start = json.cap - room;
        assert_non_null(tqi_buf_extend(&json, start));
        e.fail_after = 0;
        rc = tqi_value_to_json(value, sizeof value - 1, &json);
        if (rc == TQ_OK) {
            assert_int_equal(json.len, start + sizeof want - 1);
            assert_memory_equal(json.data + start, want, sizeof want - 1);
        } else {
            assert_int_equal(rc, TQ_E_NO_MEMORY);
            assert_int_equal(json.len, start);
        }
        assert_true(rc == TQ_OK || room < sizeof want + 1);
        tqi_buf_fini(&json);
    }
    assert_int_equal(e.bytes, 0);
}

static void json_of_a_value_that_is_cut_off_is_refused(void **state)
{
    static const char value[] =
        "\x82\x91\x01\x02\xa1k\x92\x01\xa2zz"; /* {[1]: 2, "k": [1, "zz"]} */
    unit_env_t e;
    tqi_buf_t json;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&json, &e.env);
    for (size_t len = 0; len < sizeof value - 1; len++) {
        assert_int_equal(tqi_value_to_json(value, len, &json), TQ_E_MALFORMED);
        assert_int_equal(json.len, 0);
    }
    assert_int_equal(tqi_value_to_json(value, sizeof value, &json), TQ_E_MALFORMED); /* one more */
    assert_int_equal(tqi_value_to_json(value, sizeof value - 1, &json), TQ_OK);
    assert_memory_equal(json.data, "{\"null\":2,\"k\":[1,\"zz\"]}", json.len);
    tqi_buf_fini(&json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_come_back_in_their_smallest_form),
        cmocka_unit_test(a_whole_value_is_stepped_over_and_no_part_of_it_is_whole),
        cmocka_unit_test(any_bytes_are_read_or_refused),
        cmocka_unit_test(a_count_that_cannot_be_true_is_refused),
        cmocka_unit_test(deep_nesting_neither_recurses_nor_fails),
        cmocka_unit_test(a_tag_map_has_string_or_integer_keys_and_a_bounded_size),
        cmocka_unit_test(a_key_is_found_with_the_bytes_of_its_value),
        cmocka_unit_test(json_has_null_for_what_json_cannot_say),
        cmocka_unit_test(a_map_that_is_cut_off_has_no_tags_and_no_keys),
        cmocka_unit_test(what_has_a_length_comes_back_on_both_sides_of_every_head),
        cmocka_unit_test(json_takes_the_utf8_that_the_rfc_takes),
        cmocka_unit_test(json_without_memory_leaves_the_buffer_as_it_was),
        cmocka_unit_test(json_of_a_value_that_is_cut_off_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
