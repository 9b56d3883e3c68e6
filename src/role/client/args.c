/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of arguments, before anything is sent: a caller's mistake is told where it was made, with
 * the item and the figures.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "wire/value.h"

tq_status_t tqi_check_name(const char *what, const char *name, tqi_err_t *err)
{
    size_t len;

    if (!name || name[0] == '\0')
        return tqi_fail(err, TQ_E_INVALID, "the name of the %s is missing or empty", what);
    len = strnlen(name, TQ_NAME_MAX + 1);
    if (len > TQ_NAME_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "the name of the %s is longer than %d bytes", what,
                        TQ_NAME_MAX);
    return TQ_OK;
}

static tq_status_t check_list(const char *what, const tq_strs_t *strs, uint32_t cnt_max,
                              tqi_err_t *err)
{
    if (strs->cnt > cnt_max)
        return tqi_fail(err, TQ_E_TOO_LARGE, "%" PRIu32 " %ss, over the limit of %" PRIu32,
                        strs->cnt, what, cnt_max);
    if (strs->cnt > 0 && (!strs->offsets || strs->offsets[0] != 0))
        return tqi_fail(err, TQ_E_INVALID, "the offsets of the %ss are missing or don't start at 0",
                        what);
    for (uint32_t i = 0; i < strs->cnt; i++)
        if (strs->offsets[i + 1] < strs->offsets[i])
            return tqi_fail(err, TQ_E_INVALID, "the offsets of the %ss don't ascend at %" PRIu32,
                            what, i);
    if (strs->cnt > 0 && strs->offsets[strs->cnt] > 0 && !strs->bytes)
        return tqi_fail(err, TQ_E_INVALID, "the bytes of the %ss are missing", what);
    return TQ_OK;
}

tq_status_t tqi_check_keys(const tq_strs_t *keys, bool may_be_empty, tqi_err_t *err)
{
    tq_status_t rc;

    if (!keys || keys->cnt == 0)
        return may_be_empty ? TQ_OK : tqi_fail(err, TQ_E_INVALID, "no keys were given");
    rc = check_list("key", keys, TQ_REQUEST_ROWS_MAX, err);
    if (rc != TQ_OK)
        return rc;
    for (uint32_t i = 0; i < keys->cnt; i++) {
        size_t len = keys->offsets[i + 1] - keys->offsets[i];
        if (len > TQ_NAME_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE,
                            "key %" PRIu32 " has %zu bytes, over the limit of %u", i, len,
                            TQ_NAME_MAX);
    }
    return TQ_OK;
}

tq_status_t tqi_check_strs(const char *what, const tq_strs_t *strs, uint32_t cnt_max,
                           size_t item_max, bool may_be_empty, tqi_err_t *err)
{
    tq_status_t rc;

    if (!strs || strs->cnt == 0)
        return may_be_empty ? TQ_OK : tqi_fail(err, TQ_E_INVALID, "no %ss were given", what);
    rc = check_list(what, strs, cnt_max, err);
    if (rc != TQ_OK)
        return rc;
    for (uint32_t i = 0; i < strs->cnt; i++) {
        const char *item = strs->bytes + strs->offsets[i];
        size_t len = strs->offsets[i + 1] - strs->offsets[i];
        if (len == 0)
            return tqi_fail(err, TQ_E_INVALID, "%s %" PRIu32 " is empty", what, i);
        if (len > item_max)
            return tqi_fail(err, TQ_E_TOO_LARGE,
                            "%s %" PRIu32 " has %zu bytes, over the limit of %zu", what, i, len,
                            item_max);
        if (memchr(item, '\0', len))
            return tqi_fail(err, TQ_E_INVALID, "%s %" PRIu32 " has a NUL byte in it", what, i);
    }
    return TQ_OK;
}

tq_status_t tqi_check_rows(const char *what, const tq_row_t *rows, uint32_t cnt, tqi_err_t *err)
{
    if (cnt > TQ_REQUEST_ROWS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "%s of %" PRIu32 " rows, over the limit of %u a call: split it", what, cnt,
                        TQ_REQUEST_ROWS_MAX);
    if (cnt > 0 && !rows)
        return tqi_fail(err, TQ_E_INVALID, "%s: the rows are missing", what);
    for (uint32_t i = 0; i < cnt; i++)
        if (rows[i] > TQ_ROW_MAX)
            return tqi_fail(err, TQ_E_INVALID, "%s: row %" PRIu32 " is %" PRIu64 ", not an index",
                            what, i, rows[i]);
    return TQ_OK;
}

/* ---- duplicates -------------------------------------------------------------------------------- */

/* A set of positions, open addressing: at most half full, 0 is empty. */
typedef struct seen {
    const tqi_env_t *env;
    uint32_t *slots;
    size_t cap;
} seen_t;

static bool seen_init(seen_t *seen, const tqi_env_t *env, uint32_t cnt)
{
    seen->env = env;
    for (seen->cap = 16; seen->cap < (size_t)cnt * 2;)
        seen->cap *= 2;
    seen->slots = tqi_env_calloc(env, seen->cap, sizeof *seen->slots);
    return seen->slots != NULL;
}

static void seen_fini(seen_t *seen)
{
    tqi_env_free(seen->env, seen->slots, seen->cap * sizeof *seen->slots);
}

tq_status_t tqi_check_distinct_strs(const tqi_env_t *env, const char *what, const tq_strs_t *strs,
                                    tqi_err_t *err)
{
    tq_status_t rc = TQ_OK;
    seen_t seen;

    if (!strs || strs->cnt < 2)
        return TQ_OK;
    if (!seen_init(&seen, env, strs->cnt))
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to check %" PRIu32 " %ss", strs->cnt, what);
    for (uint32_t i = 0; i < strs->cnt && rc == TQ_OK; i++) {
        const char *item = strs->bytes + strs->offsets[i];
        size_t len = strs->offsets[i + 1] - strs->offsets[i];
        size_t at = tqi_hash_bytes(item, len, 0) & (seen.cap - 1);
        for (; seen.slots[at] != 0; at = (at + 1) & (seen.cap - 1)) {
            uint32_t other = seen.slots[at] - 1;
            size_t other_len = strs->offsets[other + 1] - strs->offsets[other];
            if (other_len == len && memcmp(strs->bytes + strs->offsets[other], item, len) == 0) {
                rc = tqi_fail(err, TQ_E_DUPLICATE,
                              "%s '%.*s' is given twice, at %" PRIu32 " and %" PRIu32, what,
                              (int)tqi_size_min(len, 200), item, other, i);
                break;
            }
        }
        seen.slots[at] = i + 1;
    }
    seen_fini(&seen);
    return rc;
}

tq_status_t tqi_check_distinct_rows(const tqi_env_t *env, const tq_row_t *rows, uint32_t cnt,
                                    tqi_err_t *err)
{
    tq_status_t rc = TQ_OK;
    bool is_ascending = true;
    seen_t seen;

    for (uint32_t i = 1; i < cnt && is_ascending; i++)
        is_ascending = rows[i - 1] < rows[i];
    if (is_ascending)
        return TQ_OK;
    if (!seen_init(&seen, env, cnt))
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to check %" PRIu32 " rows", cnt);
    for (uint32_t i = 0; i < cnt && rc == TQ_OK; i++) {
        size_t at = tqi_hash_bytes(&rows[i], sizeof rows[i], 0) & (seen.cap - 1);
        for (; seen.slots[at] != 0; at = (at + 1) & (seen.cap - 1)) {
            uint32_t other = seen.slots[at] - 1;
            if (rows[other] == rows[i]) {
                rc = tqi_fail(err, TQ_E_DUPLICATE,
                              "row %" PRIu64 " is given twice, at %" PRIu32 " and %" PRIu32,
                              rows[i], other, i);
                break;
            }
        }
        seen.slots[at] = i + 1;
    }
    seen_fini(&seen);
    return rc;
}

tq_status_t tqi_check_tags(const tq_strs_t *tags, uint32_t cnt, tqi_err_t *err)
{
    tq_status_t rc;

    if (!tags)
        return TQ_OK;
    if (tags->cnt != cnt)
        return tqi_fail(err, TQ_E_INVALID, "%" PRIu32 " tags for %" PRIu32 " rows", tags->cnt, cnt);
    rc = check_list("tag map", tags, TQ_REQUEST_ROWS_MAX, err);
    if (rc != TQ_OK)
        return rc;
    for (uint32_t i = 0; i < cnt; i++) {
        size_t len = tags->offsets[i + 1] - tags->offsets[i];
        if (len > TQ_TAGS_BYTES_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE,
                            "the tags of row %" PRIu32 " have %zu bytes, over the limit of %u", i,
                            len, TQ_TAGS_BYTES_MAX);
        const char *map = tags->bytes + tags->offsets[i];
        if (len > 0 && !tqi_value_is_tag_map(map, len, UINT32_MAX))
            return tqi_fail(err, TQ_E_INVALID,
                            "the tags of row %" PRIu32 " are not a msgpack map with strings or "
                            "integers as keys",
                            i);
        if (tqi_value_map_cnt(map, len) > TQ_TAGS_ENTRIES_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE,
                            "the tags of row %" PRIu32 " have %" PRIu32
                            " entries, over the limit of %u",
                            i, tqi_value_map_cnt(map, len), TQ_TAGS_ENTRIES_MAX);
    }
    return TQ_OK;
}
