/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One codec for all messages: it walks the rows that catalogue.def expands to. A body is a msgpack
 * map from field number to value; absent fields are zero or empty, so zero and empty are not sent.
 */
#include "wire/msg.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"
#include "base/size.h"
#include "wire/value.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "arrays travel as they lie in memory");

/* ---- the table ------------------------------------------------------------------------------- */

#define MSG(Name, number, direction, idempotent, doc)                                              \
    static const tqi_field_info_t fields_##Name[] = {
#define F(Name, key, type, member, max, doc)                                                       \
    {key, TQI_TYPE_##type, #member, offsetof(tqi_msg_##Name##_t, member), max, doc},
#define MSG_END(Name)                                                                              \
    {                                                                                              \
        0, TQI_TYPE_u64, NULL, 0, 0, NULL                                                          \
    }                                                                                              \
    }                                                                                              \
    ;
#include "wire/catalogue.def"
#undef MSG
#undef F
#undef MSG_END

static const tqi_msg_info_t infos[] = {
#define MSG(Name, number, direction, idempotent, doc)                                              \
    {TQI_KIND_##Name,                                                                              \
     #Name,                                                                                        \
     #direction,                                                                                   \
     idempotent,                                                                                   \
     doc,                                                                                          \
     sizeof(tqi_msg_##Name##_t),                                                                   \
     sizeof fields_##Name / sizeof fields_##Name[0] - 1,                                           \
     fields_##Name},
#define F(Name, key, type, member, max, doc)
#define MSG_END(Name)
#include "wire/catalogue.def"
#undef MSG
#undef F
#undef MSG_END
};
#define INFOS_CNT (sizeof infos / sizeof infos[0])

const tqi_msg_info_t *tqi_msg_infos(uint32_t *cnt)
{
    *cnt = INFOS_CNT;
    return infos;
}

const tqi_msg_info_t *tqi_msg_info(uint32_t kind)
{
    for (size_t i = 0; i < INFOS_CNT; i++)
        if ((uint32_t)infos[i].kind == kind)
            return &infos[i];
    return NULL;
}

/* ---- encoding -------------------------------------------------------------------------------- */

static bool is_absent(const tqi_field_info_t *f, const void *at)
{
    switch (f->type) {
    case TQI_TYPE_u64:
        return *(const uint64_t *)at == 0;
    case TQI_TYPE_u32:
        return *(const uint32_t *)at == 0;
    case TQI_TYPE_bool:
        return !*(const bool *)at;
    case TQI_TYPE_bytes:
    case TQI_TYPE_str:
        return ((const tqi_bytes_t *)at)->len == 0;
    case TQI_TYPE_u64s:
        return ((const tqi_u64s_t *)at)->cnt == 0;
    case TQI_TYPE_u32s:
        return ((const tqi_u32s_t *)at)->cnt == 0;
    case TQI_TYPE_u8s:
        return ((const tqi_u8s_t *)at)->cnt == 0;
    case TQI_TYPE_strs:
        return ((const tqi_strs_t *)at)->cnt == 0;
    }
    return true;
}

/* What `max` bounds: the value's length in bytes, or its items. */
static uint64_t size_of(const tqi_field_info_t *f, const void *at)
{
    switch (f->type) {
    case TQI_TYPE_bytes:
    case TQI_TYPE_str:
        return ((const tqi_bytes_t *)at)->len;
    case TQI_TYPE_u64s:
        return ((const tqi_u64s_t *)at)->cnt;
    case TQI_TYPE_u32s:
        return ((const tqi_u32s_t *)at)->cnt;
    case TQI_TYPE_u8s:
        return ((const tqi_u8s_t *)at)->cnt;
    case TQI_TYPE_strs:
        return ((const tqi_strs_t *)at)->cnt;
    case TQI_TYPE_u64:
        return *(const uint64_t *)at;
    case TQI_TYPE_u32:
        return *(const uint32_t *)at;
    case TQI_TYPE_bool:
        return 0;
    }
    return 0;
}

static tq_status_t encode_field(tqi_buf_t *buf, const tqi_field_info_t *f, const void *at)
{
    tq_status_t rc = tqi_put_uint(buf, f->key);
    if (rc != TQ_OK)
        return rc;
    switch (f->type) {
    case TQI_TYPE_u64:
        return tqi_put_uint(buf, *(const uint64_t *)at);
    case TQI_TYPE_u32:
        return tqi_put_uint(buf, *(const uint32_t *)at);
    case TQI_TYPE_bool:
        return tqi_put_bool(buf, *(const bool *)at);
    case TQI_TYPE_bytes: {
        const tqi_bytes_t *v = at;
        return tqi_put_bin(buf, v->data, v->len);
    }
    case TQI_TYPE_str: {
        const tqi_str_t *v = at;
        return tqi_put_str(buf, v->data, v->len);
    }
    case TQI_TYPE_u64s: {
        const tqi_u64s_t *v = at;
        return tqi_put_bin(buf, v->data, v->cnt * 8);
    }
    case TQI_TYPE_u32s: {
        const tqi_u32s_t *v = at;
        return tqi_put_bin(buf, v->data, v->cnt * 4);
    }
    case TQI_TYPE_u8s: {
        const tqi_u8s_t *v = at;
        return tqi_put_bin(buf, v->data, v->cnt);
    }
    case TQI_TYPE_strs: {
        const tqi_strs_t *v = at;
        rc = tqi_put_array(buf, 2);
        if (rc == TQ_OK)
            rc = tqi_put_bin(buf, v->offsets, (v->cnt + 1) * 4);
        if (rc == TQ_OK)
            rc = tqi_put_bin(buf, v->bytes, v->bytes_len);
        return rc;
    }
    }
    return TQ_E_BUG;
}

static tq_status_t encode_body(tqi_buf_t *buf, const tqi_msg_info_t *info, const void *msg,
                               tqi_err_t *err)
{
    uint32_t present = 0;
    for (uint32_t i = 0; msg && i < info->fields_cnt; i++) {
        const tqi_field_info_t *f = &info->fields[i];
        const void *at = (const char *)msg + f->offset;
        if (is_absent(f, at))
            continue;
        present++;
        if (f->max > 0 && size_of(f, at) > f->max)
            return tqi_fail(err, TQ_E_TOO_LARGE,
                            "%s.%s has %" PRIu64 ", over the limit of %" PRIu64, info->name,
                            f->name, size_of(f, at), f->max);
    }
    tq_status_t rc = tqi_put_map(buf, present);
    for (uint32_t i = 0; rc == TQ_OK && present > 0 && i < info->fields_cnt; i++) {
        const void *at = (const char *)msg + info->fields[i].offset;
        if (!is_absent(&info->fields[i], at))
            rc = encode_field(buf, &info->fields[i], at);
    }
    if (rc != TQ_OK)
        return tqi_fail(err, rc, "no memory for a %s message", info->name);
    return TQ_OK;
}

tq_status_t tqi_msg_encode(tqi_buf_t *buf, const tqi_envelope_t *env, const uint64_t *open,
                           const void *msg, tqi_err_t *err)
{
    bool is_error = (env->kind & TQI_KIND_REPLY) && env->status != TQ_OK;
    const tqi_msg_info_t *info = tqi_msg_info(is_error ? (uint32_t)TQI_KIND_Error : env->kind);
    tqi_assert(info && buf->len == 0);
    tq_status_t rc = tqi_envelope_begin(buf, env, open);
    if (rc != TQ_OK)
        return tqi_fail(err, rc, "no memory for a %s message", info->name);
    rc = encode_body(buf, info, msg, err);
    if (rc == TQ_OK && buf->len > TQ_MESSAGE_BYTES_MAX)
        rc = tqi_fail(err, TQ_E_TOO_LARGE, "a %s message of %zu bytes is over the limit of %u",
                      info->name, buf->len, TQ_MESSAGE_BYTES_MAX);
    if (rc != TQ_OK) {
        tqi_buf_clear(buf);
        return rc;
    }
    tqi_envelope_seal(buf);
    return TQ_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* A strs value: [offsets, bytes]. The offsets must be what tqi_strs_at relies on. */
static bool decode_strs(tqi_reader_t *r, const tqi_value_t *head, tqi_strs_t *out)
{
    tqi_value_t off, bytes;
    if (head->type != TQI_VALUE_ARRAY || head->cnt != 2)
        return false;
    if (!tqi_value_next(r, &off) || off.type != TQI_VALUE_BIN)
        return false;
    if (!tqi_value_next(r, &bytes) || bytes.type != TQI_VALUE_BIN)
        return false;
    if (off.len < 8 || off.len % 4 != 0)
        return false;
    uint32_t cnt = off.len / 4 - 1, last = 0;
    if (tqi_load_le32(off.data) != 0)
        return false;
    for (uint32_t i = 1; i <= cnt; i++) {
        uint32_t at = tqi_load_le32(off.data + (size_t)i * 4);
        if (at < last)
            return false;
        last = at;
    }
    if (last != bytes.len)
        return false;
    *out = (tqi_strs_t){off.data, (const char *)bytes.data, cnt, bytes.len};
    return true;
}

static bool decode_field(tqi_reader_t *r, const tqi_field_info_t *f, const tqi_value_t *v, void *at)
{
    switch (f->type) {
    case TQI_TYPE_u64:
        if (v->type != TQI_VALUE_UINT)
            return false;
        *(uint64_t *)at = v->as.u;
        return true;
    case TQI_TYPE_u32:
        if (v->type != TQI_VALUE_UINT || v->as.u > UINT32_MAX)
            return false;
        *(uint32_t *)at = (uint32_t)v->as.u;
        return true;
    case TQI_TYPE_bool:
        if (v->type != TQI_VALUE_BOOL)
            return false;
        *(bool *)at = v->as.is_true;
        return true;
    case TQI_TYPE_bytes:
        if (v->type != TQI_VALUE_BIN)
            return false;
        *(tqi_bytes_t *)at = (tqi_bytes_t){v->data, v->len};
        return true;
    case TQI_TYPE_str:
        if (v->type != TQI_VALUE_STR || (v->len > 0 && memchr(v->data, 0, v->len)))
            return false;
        *(tqi_str_t *)at = (tqi_str_t){v->data, v->len};
        return true;
    case TQI_TYPE_u64s:
        if (v->type != TQI_VALUE_BIN || v->len % 8 != 0)
            return false;
        *(tqi_u64s_t *)at = (tqi_u64s_t){v->data, v->len / 8};
        return true;
    case TQI_TYPE_u32s:
        if (v->type != TQI_VALUE_BIN || v->len % 4 != 0)
            return false;
        *(tqi_u32s_t *)at = (tqi_u32s_t){v->data, v->len / 4};
        return true;
    case TQI_TYPE_u8s:
        if (v->type != TQI_VALUE_BIN)
            return false;
        *(tqi_u8s_t *)at = (tqi_u8s_t){v->data, v->len};
        return true;
    case TQI_TYPE_strs:
        return decode_strs(r, v, at);
    }
    return false;
}

static const tqi_field_info_t *field_of(const tqi_msg_info_t *info, uint64_t key)
{
    for (uint32_t i = 0; i < info->fields_cnt; i++)
        if (info->fields[i].key == key)
            return &info->fields[i];
    return NULL;
}

tq_status_t tqi_msg_decode(const tqi_envelope_t *env, uint32_t kind, void *msg, tqi_err_t *err)
{
    const tqi_msg_info_t *info = tqi_msg_info(kind);
    if (!info)
        return tqi_fail(err, TQ_E_UNSUPPORTED, "unknown message kind 0x%04x", kind);
    memset(msg, 0, info->size);
    tqi_reader_t r = tqi_reader(env->body, env->body_len);
    tqi_value_t map, key, v;
    if (!tqi_value_next(&r, &map) || map.type != TQI_VALUE_MAP)
        return tqi_fail(err, TQ_E_MALFORMED, "%s: the body is not a map", info->name);
    for (uint32_t i = 0; i < map.cnt; i++) {
        if (!tqi_value_next(&r, &key) || key.type != TQI_VALUE_UINT)
            return tqi_fail(err, TQ_E_MALFORMED, "%s: field %u has no number", info->name, i);
        const tqi_field_info_t *f = field_of(info, key.as.u);
        if (!f) { /* a newer peer's field */
            if (!tqi_value_skip(&r))
                return tqi_fail(err, TQ_E_MALFORMED, "%s: field %" PRIu64 " is cut off", info->name,
                                key.as.u);
            continue;
        }
        void *at = (char *)msg + f->offset;
        if (!tqi_value_next(&r, &v) || !decode_field(&r, f, &v, at))
            return tqi_fail(err, TQ_E_MALFORMED, "%s.%s: not what the catalogue says", info->name,
                            f->name);
        if (f->max > 0 && size_of(f, at) > f->max)
            return tqi_fail(err, TQ_E_MALFORMED,
                            "%s.%s has %" PRIu64 ", over the limit of %" PRIu64, info->name,
                            f->name, size_of(f, at), f->max);
    }
    if (r.at != r.end)
        return tqi_fail(err, TQ_E_MALFORMED, "%s: %zu bytes after the body", info->name,
                        (size_t)(r.end - r.at));
    return TQ_OK;
}

/* ---- printing -------------------------------------------------------------------------------- */

typedef struct line {
    char *out;
    size_t len; /* of out, terminator included */
    size_t at;
} line_t;

static void line_add(line_t *line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line_add(line_t *line, const char *fmt, ...)
{
    if (line->at + 1 >= line->len)
        return;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line->out + line->at, line->len - line->at, fmt, args);
    va_end(args);
    line->at = tqi_size_min(line->at + (size_t)(n > 0 ? n : 0), line->len - 1);
}

static void print_field(line_t *line, const tqi_field_info_t *f, const void *at)
{
    switch (f->type) {
    case TQI_TYPE_u64:
        line_add(line, " %s=%" PRIu64, f->name, *(const uint64_t *)at);
        return;
    case TQI_TYPE_u32:
        line_add(line, " %s=%u", f->name, *(const uint32_t *)at);
        return;
    case TQI_TYPE_bool:
        line_add(line, " %s", f->name);
        return;
    case TQI_TYPE_str: {
        const tqi_str_t *v = at;
        line_add(line, " %s='%.*s'", f->name, (int)tqi_size_min(v->len, 40), (const char *)v->data);
        return;
    }
    case TQI_TYPE_u64s: {
        const tqi_u64s_t *v = at;
        line_add(line, " %s[%u]=%" PRIu64, f->name, v->cnt, tqi_u64s_at(*v, 0));
        if (v->cnt > 1)
            line_add(line, "..%" PRIu64, tqi_u64s_at(*v, v->cnt - 1));
        return;
    }
    case TQI_TYPE_strs: {
        const tqi_strs_t *v = at;
        line_add(line, " %s[%u]", f->name, v->cnt);
        return;
    }
    case TQI_TYPE_bytes:
    case TQI_TYPE_u32s:
    case TQI_TYPE_u8s:
        line_add(line, " %s[%" PRIu64 "]", f->name, size_of(f, at));
        return;
    }
}

size_t tqi_msg_print(const tqi_envelope_t *env, char *out, size_t len)
{
    /* Large enough for any message: the widest struct of the catalogue. */
    union {
#define MSG(Name, number, direction, idempotent, doc) tqi_msg_##Name##_t Name;
#define F(Name, key, type, member, max, doc)
#define MSG_END(Name)
#include "wire/catalogue.def"
#undef MSG
#undef F
#undef MSG_END
    } any;
    line_t line = {out, len, 0};
    if (len == 0)
        return 0;
    out[0] = 0;
    bool is_error = (env->kind & TQI_KIND_REPLY) && env->status != TQ_OK;
    const tqi_msg_info_t *info = tqi_msg_info(env->kind);
    line_add(&line, "%s seq=%" PRIu64 " session=%" PRIu64, info ? info->name : "?", env->seq,
             env->session);
    if (env->attempt > 0)
        line_add(&line, " attempt=%u", env->attempt);
    if (env->ack > 0)
        line_add(&line, " ack=%" PRIu64 "-%u", env->ack, env->open_cnt);
    if (is_error) {
        line_add(&line, " %s", tq_status_name(env->status));
        info = tqi_msg_info(TQI_KIND_Error);
    }
    if (!info || tqi_msg_decode(env, (uint32_t)info->kind, &any, NULL) != TQ_OK) {
        line_add(&line, " (malformed)");
        return line.at;
    }
    for (uint32_t i = 0; i < info->fields_cnt; i++) {
        const void *at = (const char *)&any + info->fields[i].offset;
        if (!is_absent(&info->fields[i], at))
            print_field(&line, &info->fields[i], at);
    }
    return line.at;
}

/* ---- builder --------------------------------------------------------------------------------- */

void tqi_strs_builder_init(tqi_strs_builder_t *b, const tqi_env_t *env)
{
    tqi_buf_init(&b->offsets, env);
    tqi_buf_init(&b->bytes, env);
    b->cnt = 0;
}

void tqi_strs_builder_clear(tqi_strs_builder_t *b)
{
    tqi_buf_clear(&b->offsets);
    tqi_buf_clear(&b->bytes);
    b->cnt = 0;
}

void tqi_strs_builder_fini(tqi_strs_builder_t *b)
{
    tqi_buf_fini(&b->offsets);
    tqi_buf_fini(&b->bytes);
    b->cnt = 0;
}

tq_status_t tqi_strs_builder_add(tqi_strs_builder_t *b, const void *data, size_t len)
{
    if (len > UINT32_MAX - b->bytes.len || b->cnt == UINT32_MAX)
        return TQ_E_TOO_LARGE;
    tq_status_t rc = tqi_buf_reserve(&b->offsets, b->cnt == 0 ? 8 : 4);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&b->bytes, data, len);
    if (rc != TQ_OK)
        return rc;
    uint32_t end = (uint32_t)b->bytes.len, zero = 0;
    if (b->cnt == 0)
        tqi_buf_append(&b->offsets, &zero, 4);
    tqi_buf_append(&b->offsets, &end, 4);
    b->cnt++;
    return TQ_OK;
}

tqi_strs_t tqi_strs_builder_view(const tqi_strs_builder_t *b)
{
    if (b->cnt == 0)
        return (tqi_strs_t){0};
    return (tqi_strs_t){b->offsets.data, (const char *)b->bytes.data, b->cnt,
                        (uint32_t)b->bytes.len};
}
