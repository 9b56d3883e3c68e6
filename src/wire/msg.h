/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages: a struct for each entry of catalogue.def, and one codec that walks the table.
 *
 * The same struct is used both ways. Encoding reads it; decoding fills it with views into the
 * frame, so the frame must outlive it. Arrays of numbers are views of little-endian bytes that may
 * be unaligned: read them with tqi_u64s_at / tqi_u32s_at or copy them out.
 */
#ifndef TQI_WIRE_MSG_H
#define TQI_WIRE_MSG_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <tq/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/envelope.h"

typedef struct tqi_bytes {
    const void *data; /* NULL only when len == 0 */
    uint32_t len;
} tqi_bytes_t;
typedef tqi_bytes_t tqi_str_t; /* no terminator, no NUL inside (checked by the decoder) */

typedef struct tqi_u64s {
    const void *data; /* cnt little-endian values, any alignment */
    uint32_t cnt;
} tqi_u64s_t;
typedef struct tqi_u32s {
    const void *data;
    uint32_t cnt;
} tqi_u32s_t;
typedef struct tqi_u8s {
    const uint8_t *data;
    uint32_t cnt;
} tqi_u8s_t;
/* A list of byte strings: offsets are cnt + 1 little-endian u32, offsets[0] == 0, ascending, the
 * last is bytes_len (all checked by the decoder). */
typedef struct tqi_strs {
    const void *offsets;
    const char *bytes;
    uint32_t cnt;
    uint32_t bytes_len;
} tqi_strs_t;

static inline uint64_t tqi_u64s_at(tqi_u64s_t a, uint32_t i)
{
    uint64_t v;
    memcpy(&v, (const char *)a.data + (size_t)i * 8, 8);
    return v;
}
static inline uint32_t tqi_u32s_at(tqi_u32s_t a, uint32_t i)
{
    uint32_t v;
    memcpy(&v, (const char *)a.data + (size_t)i * 4, 4);
    return v;
}
static inline tqi_str_t tqi_strs_at(tqi_strs_t a, uint32_t i)
{
    tqi_u32s_t off = {a.offsets, a.cnt + 1};
    uint32_t lo = tqi_u32s_at(off, i), hi = tqi_u32s_at(off, i + 1);
    return (tqi_str_t){a.bytes + lo, hi - lo};
}

/* enum tqi_kind: TQI_KIND_Hello, ...; struct tqi_msg_Hello, ... */
#define MSG(Name, number, direction, idempotent, doc) TQI_KIND_##Name = number,
#define F(Name, key, type, member, max, doc)
#define MSG_END(Name)
typedef enum tqi_kind {
#include "wire/catalogue.def"
} tqi_kind_t;
#undef MSG
#undef F
#undef MSG_END

#define TQI_FIELD_C_u64 uint64_t
#define TQI_FIELD_C_u32 uint32_t
#define TQI_FIELD_C_bool bool
#define TQI_FIELD_C_bytes tqi_bytes_t
#define TQI_FIELD_C_str tqi_str_t
#define TQI_FIELD_C_u64s tqi_u64s_t
#define TQI_FIELD_C_u32s tqi_u32s_t
#define TQI_FIELD_C_u8s tqi_u8s_t
#define TQI_FIELD_C_strs tqi_strs_t
/* The leading byte keeps messages without fields from being empty structs. */
#define MSG(Name, number, direction, idempotent, doc)                                              \
    typedef struct tqi_msg_##Name {                                                                \
        char unused_;
#define F(Name, key, type, member, max, doc) TQI_FIELD_C_##type member;
#define MSG_END(Name)                                                                              \
    }                                                                                              \
    tqi_msg_##Name##_t;
#include "wire/catalogue.def"
#undef MSG
#undef F
#undef MSG_END

/* One message's row of the table, for generic code (codec, printer, fuzzer, docs). */
typedef enum tqi_field_type {
    TQI_TYPE_u64,
    TQI_TYPE_u32,
    TQI_TYPE_bool,
    TQI_TYPE_bytes,
    TQI_TYPE_str,
    TQI_TYPE_u64s,
    TQI_TYPE_u32s,
    TQI_TYPE_u8s,
    TQI_TYPE_strs,
} tqi_field_type_t;
typedef struct tqi_field_info {
    uint8_t key;
    tqi_field_type_t type;
    const char *name;
    size_t offset;
    uint64_t max;
    const char *doc;
} tqi_field_info_t;
typedef struct tqi_msg_info {
    tqi_kind_t kind;
    const char *name;
    const char *direction;
    const char *idempotent;
    const char *doc;
    size_t size;
    uint32_t fields_cnt;
    const tqi_field_info_t *fields;
} tqi_msg_info_t;
/* NULL for a kind that is not in the catalogue. */
const tqi_msg_info_t *tqi_msg_info(uint32_t kind);
/* All rows, in the order of the file. */
const tqi_msg_info_t *tqi_msg_infos(uint32_t *cnt);

/* Encodes a whole frame: envelope (env->kind names the struct) and body. msg NULL: an empty body.
 * buf is appended to; on error it is as before. E_NO_MEMORY; E_TOO_LARGE over
 * TQ_MESSAGE_BYTES_MAX or over a field's max, naming field and figures. */
tq_status_t tqi_msg_encode(tqi_buf_t *buf, const tqi_envelope_t *env, const uint64_t *open,
                           const void *msg, tqi_err_t *err);

/* Decodes env's body as the struct of `kind` (tqi_msg_info(kind)->size bytes are written; absent
 * fields are zero). Total: E_MALFORMED names message and field; E_UNSUPPORTED an unknown kind. */
tq_status_t tqi_msg_decode(const tqi_envelope_t *env, uint32_t kind, void *msg, tqi_err_t *err);

/* Writes a one-line form for logs and the simulator's trace, cut to len; returns its length. */
size_t tqi_msg_print(const tqi_envelope_t *env, char *out, size_t len);

/* Builders: fill a view from host arrays. The u64s/u32s views point at the arrays themselves (hosts
 * are little-endian; a static assert says so). */
static inline tqi_u64s_t tqi_u64s(const uint64_t *v, uint32_t cnt)
{
    return (tqi_u64s_t){v, cnt};
}
static inline tqi_u32s_t tqi_u32s(const uint32_t *v, uint32_t cnt)
{
    return (tqi_u32s_t){v, cnt};
}
static inline tqi_str_t tqi_str(const char *s)
{
    return (tqi_str_t){s, (uint32_t)strlen(s)};
}
static inline tqi_strs_t tqi_strs_of(const tq_strs_t *s)
{
    if (!s || s->cnt == 0)
        return (tqi_strs_t){0};
    return (tqi_strs_t){s->offsets, s->bytes, s->cnt, s->offsets[s->cnt]};
}

/* Grows a strs value item by item; owns its memory. */
typedef struct tqi_strs_builder {
    tqi_buf_t offsets;
    tqi_buf_t bytes;
    uint32_t cnt;
} tqi_strs_builder_t;
void tqi_strs_builder_init(tqi_strs_builder_t *b, const tqi_env_t *env);
tq_status_t tqi_strs_builder_add(tqi_strs_builder_t *b, const void *data, size_t len);
tqi_strs_t
tqi_strs_builder_view(const tqi_strs_builder_t *b); /* valid until the next add or fini */
void tqi_strs_builder_clear(tqi_strs_builder_t *b); /* keeps the memory */
void tqi_strs_builder_fini(tqi_strs_builder_t *b);

#endif
