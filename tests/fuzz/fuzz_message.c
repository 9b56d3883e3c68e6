/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of every message of the catalogue: the first two bytes are its kind. What is one is
 * encoded again, and says the same; the encoding of that is the same bytes.
 */
#include "fuzz.h"
#include "grammar.h"

#include <string.h>

#include "base/size.h"
#include "sys/env_malloc.h"

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng);
size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng)
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);
    if (cap < 2)
        return len;
    if (len < 2 || tqi_rng_below(rng, 3) == 0) {
        const tqi_msg_info_t *info = &infos[tqi_rng_below(rng, cnt)];
        tqi_store_le16(data, (uint16_t)info->kind);
        return 2 + fuzz_body_make(info, rng, data + 2, cap - 2);
    }
    return 2 + fuzz_body_change(fuzz_kind(tqi_load_le16(data)), rng, data + 2, len - 2, cap - 2);
}

static bool is_same_list(const void *a, const void *b, size_t item, uint32_t a_cnt, uint32_t b_cnt)
{
    return a_cnt == b_cnt && (a_cnt == 0 || memcmp(a, b, a_cnt * item) == 0);
}

static bool is_same_field(const tqi_field_info_t *f, const void *a, const void *b)
{
    switch (f->type) {
    case TQI_TYPE_u64:
        return *(const uint64_t *)a == *(const uint64_t *)b;
    case TQI_TYPE_u32:
        return *(const uint32_t *)a == *(const uint32_t *)b;
    case TQI_TYPE_bool:
        return *(const bool *)a == *(const bool *)b;
    case TQI_TYPE_bytes:
    case TQI_TYPE_str: {
        const tqi_bytes_t *x = a, *y = b;
        return is_same_list(x->data, y->data, 1, x->len, y->len);
    }
    case TQI_TYPE_u64s: {
        const tqi_u64s_t *x = a, *y = b;
        return is_same_list(x->data, y->data, 8, x->cnt, y->cnt);
    }
    case TQI_TYPE_u32s: {
        const tqi_u32s_t *x = a, *y = b;
        return is_same_list(x->data, y->data, 4, x->cnt, y->cnt);
    }
    case TQI_TYPE_u8s: {
        const tqi_u8s_t *x = a, *y = b;
        return is_same_list(x->data, y->data, 1, x->cnt, y->cnt);
    }
    case TQI_TYPE_strs: {
        const tqi_strs_t *x = a, *y = b;
        if (x->cnt != y->cnt)
            return false;
        for (uint32_t i = 0; i < x->cnt; i++) {
            tqi_str_t s = tqi_strs_at(*x, i), t = tqi_strs_at(*y, i);
            if (!is_same_list(s.data, t.data, 1, s.len, t.len))
                return false;
        }
        return true;
    }
    }
    return false;
}

static void encode(const tqi_msg_info_t *info, const void *msg, tqi_buf_t *frame)
{
    tqi_envelope_t env = {.kind = (uint16_t)info->kind};
    tqi_err_t err = {0};
    tqi_buf_init(frame, tqi_env_malloc());
    fuzz_require(tqi_msg_encode(frame, &env, NULL, msg, &err) == TQ_OK,
                 "what was decoded can't be encoded: %s", err.text);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    _Alignas(16) static uint8_t msg[1024], again[1024];
    char line[256];
    tqi_buf_t first, second;
    tqi_envelope_t env;
    tqi_err_t err = {0};
    if (len < 2)
        return;
    const tqi_msg_info_t *info = fuzz_kind(tqi_load_le16(data));
    fuzz_require(info->size <= sizeof msg, "%s is too large for this test", info->name);
    env = (tqi_envelope_t){
        .kind = (uint16_t)info->kind, .body = data + 2, .body_len = (uint32_t)len - 2};
    (void)tqi_msg_print(&env, line, sizeof line);
    if (tqi_msg_decode(&env, (uint32_t)info->kind, msg, &err) != TQ_OK) {
        fuzz_require(err.text[0] != 0, "a refusal without a sentence");
        return;
    }
    encode(info, msg, &first);
    if (tqi_envelope_decode(first.data, first.len, &env, NULL) != TQ_OK ||
        tqi_msg_decode(&env, (uint32_t)info->kind, again, &err) != TQ_OK)
        fuzz_require(false, "what was encoded can't be decoded: %s", err.text);
    for (uint32_t i = 0; i < info->fields_cnt; i++)
        fuzz_require(is_same_field(&info->fields[i], msg + info->fields[i].offset,
                                   again + info->fields[i].offset),
                     "%s.%s comes back as another", info->name, info->fields[i].name);
    encode(info, again, &second);
    fuzz_require(first.len == second.len && memcmp(first.data, second.data, first.len) == 0,
                 "the same %s has two encodings", info->name);
    tqi_buf_fini(&first);
    tqi_buf_fini(&second);
}
