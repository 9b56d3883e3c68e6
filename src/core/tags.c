/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merging walks the entries of both maps as spans of bytes. Keys are compared by what they mean:
 * integers by value, strings by bytes, whatever form they were written in.
 */
#include "core/tags.h"

#include <string.h>

#include "base/buf.h"
#include "wire/value.h"

void tqi_tags_free(const tqi_env_t *env, tqi_tags_t *tags)
{
    if (tags)
        tqi_env_free(env, tags, sizeof *tags + tags->len);
}

/* One entry of a map. */
typedef struct entry {
    tqi_value_t key;
    const uint8_t *span; /* key and value */
    uint32_t span_len;
} entry_t;

static bool key_equal(const tqi_value_t *a, const tqi_value_t *b)
{
    if (a->type != b->type)
        return false;
    if (a->type == TQI_VALUE_STR)
        return a->len == b->len && memcmp(a->data, b->data, a->len) == 0;
    return a->as.u == b->as.u;
}

/* Entries of a checked map. */
static void entries_read(const void *map, uint32_t len, entry_t *out)
{
    tqi_reader_t r = tqi_reader(map, len);
    tqi_value_t head;

    if (len == 0 || !tqi_value_next(&r, &head))
        return;
    for (uint32_t i = 0; i < head.cnt; i++) {
        out[i].span = r.at;
        tqi_value_next(&r, &out[i].key);
        tqi_value_skip(&r);
        out[i].span_len = (uint32_t)(r.at - out[i].span);
    }
}

/* Puts `add` over the first *cnt entries. */
static void entries_put(entry_t *entries, uint32_t *cnt, const entry_t *add)
{
    for (uint32_t i = 0; i < *cnt; i++)
        if (key_equal(&entries[i].key, &add->key)) {
            entries[i] = *add;
            return;
        }
    entries[(*cnt)++] = *add;
}

static tq_status_t tags_make(const tqi_env_t *env, const entry_t *entries, uint32_t cnt,
                             tqi_tags_t **out, tqi_err_t *err)
{
    size_t len = cnt < 16 ? 1 : 3;
    tqi_tags_t *tags;

    if (cnt == 0) {
        *out = NULL;
        return TQ_OK;
    }
    if (cnt > TQ_TAGS_ENTRIES_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "tags of %u entries, at most %u are allowed", cnt,
                        TQ_TAGS_ENTRIES_MAX);
    for (uint32_t i = 0; i < cnt; i++)
        len += entries[i].span_len;
    if (len > TQ_TAGS_BYTES_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "tags of %zu bytes, at most %u are allowed", len,
                        TQ_TAGS_BYTES_MAX);
    tags = tqi_env_alloc(env, sizeof *tags + len);
    if (!tags)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %zu bytes of tags", len);
    tags->len = (uint32_t)len;
    uint8_t *at = tags->data;
    if (cnt < 16) {
        *at++ = (uint8_t)(0x80 | cnt); /* fixmap */
    } else {
        *at++ = 0xde; /* map 16 */
        *at++ = (uint8_t)(cnt >> 8);
        *at++ = (uint8_t)cnt;
    }
    for (uint32_t i = 0; i < cnt; i++) {
        memcpy(at, entries[i].span, entries[i].span_len);
        at += entries[i].span_len;
    }
    *out = tags;
    return TQ_OK;
}

tq_status_t tqi_tags_merge(const tqi_env_t *env, const tqi_tags_t *old, const void *add,
                           uint32_t add_len, bool is_replace, tqi_tags_t **out, tqi_err_t *err)
{
    uint32_t merged_cnt = 0, added_cnt, entries_max;
    entry_t *merged, *added;
    tq_status_t rc;

    if (add_len > TQ_TAGS_BYTES_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "tags of %u bytes, at most %u are allowed", add_len,
                        TQ_TAGS_BYTES_MAX);
    if (add_len > 0 && !tqi_value_is_tag_map(add, add_len, UINT32_MAX))
        return tqi_fail(err, TQ_E_INVALID,
                        "tags must be one msgpack map whose keys are strings or integers");
    if (tqi_value_map_cnt(add, add_len) > TQ_TAGS_ENTRIES_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "tags of %u entries, at most %u are allowed",
                        tqi_value_map_cnt(add, add_len), TQ_TAGS_ENTRIES_MAX);
    added_cnt = tqi_value_map_cnt(add, add_len);
    if (old && !is_replace)
        merged_cnt = tqi_value_map_cnt(old->data, old->len);
    if (merged_cnt + added_cnt == 0) {
        *out = NULL;
        return TQ_OK;
    }
    entries_max = merged_cnt + 2 * added_cnt;
    merged = tqi_env_calloc(env, entries_max, sizeof *merged);
    if (!merged)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to merge tags");
    added = merged + merged_cnt + added_cnt;
    if (merged_cnt > 0)
        entries_read(old->data, old->len, merged);
    entries_read(add, add_len, added);
    for (uint32_t i = 0; i < added_cnt; i++)
        entries_put(merged, &merged_cnt, &added[i]);
    rc = tags_make(env, merged, merged_cnt, out, err);
    tqi_env_free(env, merged, entries_max * sizeof *merged);
    return rc;
}
