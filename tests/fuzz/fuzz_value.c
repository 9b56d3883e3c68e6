/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack values, tag maps and how they merge. The first byte is where the input is cut in two: the
 * tags that a row has, and those that are merged over them.
 */
#include "fuzz.h"

#include <string.h>

#include "core/tags.h"
#include "sys/env_malloc.h"
#include "wire/value.h"

static void value(const uint8_t *data, size_t len)
{
    tqi_reader_t r = tqi_reader(data, len);
    const uint8_t *span;
    size_t span_len;
    tqi_buf_t json;
    tqi_value_t v;
    bool is_whole = tqi_value_is_whole(data, len);
    tqi_buf_init(&json, tqi_env_malloc());
    fuzz_require((tqi_value_to_json(data, len, &json) == TQ_OK) == is_whole,
                 "whole to one, not to the other");
    fuzz_require(!tqi_value_is_tag_map(data, len, 256) || is_whole, "a tag map that is not whole");
    /* Heads one by one, and what they claim lies inside. */
    while (tqi_value_next(&r, &v))
        fuzz_require(r.at <= data + len && (v.len == 0 || v.data + v.len <= r.at),
                     "a value reaches beyond its bytes");
    r = tqi_reader(data, len);
    fuzz_require(tqi_value_skip(&r) == (is_whole || r.at != data), "a skip that did not move");
    if (tqi_value_find(data, len, "k", 1, &v, &span, &span_len))
        fuzz_require(span >= data && span + span_len <= data + len &&
                         tqi_value_is_whole(span, span_len),
                     "a value was found that is none");
    tqi_buf_clear(&json);
    if (tqi_json_str(&json, data, len) != TQ_OK)
        abort();
    tqi_buf_fini(&json);
}

static void merge(const uint8_t *had, size_t had_len, const uint8_t *add, size_t add_len)
{
    const tqi_env_t *env = tqi_env_malloc();
    tqi_tags_t *old = NULL, *merged = NULL, *again = NULL;
    tqi_err_t err = {0};
    tq_status_t rc = tqi_tags_merge(env, NULL, had, (uint32_t)had_len, true, &old, &err);
    if (rc == TQ_OK) {
        rc = tqi_tags_merge(env, old, add, (uint32_t)add_len, false, &merged, &err);
        if (rc != TQ_OK)
            fuzz_require(err.text[0] != 0, "a refusal without a sentence");
    }
    if (rc == TQ_OK && merged) {
        fuzz_require(tqi_value_is_tag_map(merged->data, merged->len, TQ_TAGS_ENTRIES_MAX) &&
                         merged->len <= TQ_TAGS_BYTES_MAX,
                     "merged tags are no tags");
        /* The same once more changes nothing. */
        rc = tqi_tags_merge(env, merged, add, (uint32_t)add_len, false, &again, &err);
        fuzz_require(rc == TQ_OK && again && again->len == merged->len &&
                         memcmp(again->data, merged->data, merged->len) == 0,
                     "merging twice is not merging once");
    }
    tqi_tags_free(env, old);
    tqi_tags_free(env, merged);
    tqi_tags_free(env, again);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    if (len == 0)
        return;
    size_t cut = data[0] < len ? data[0] : 0;
    value(data + 1, len - 1);
    merge(data + 1, cut, data + 1 + cut, len - 1 - cut);
}
