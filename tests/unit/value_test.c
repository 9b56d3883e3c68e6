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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
