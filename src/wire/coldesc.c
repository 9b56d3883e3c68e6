/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoded forms, little-endian:
 *   descriptor  encoding u8 | dtype u8 | ndim u8 | 0 u8 | shape ndim x u64 | len u64 unless TENSOR
 *   column      layout u8 | 3 x 0 | UNIFORM: descriptor
 *                                 | RAGGED: descriptor (shape[0] == 0), rows x u64
 *                                 | EACH: rows x descriptor
 *   schema      encoding u8 | dtype u8 | is_nested u8 | ndim u8 | shape ndim x u64
 */
#include "wire/coldesc.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"

#define COLUMN_HEAD 4
#define DESC_HEAD 4

size_t tq_dtype_size(tq_dtype_t dtype)
{
    switch (dtype) {
#define DTYPE_SIZE(name, number, bytes)                                                            \
    case TQ_DTYPE_##name:                                                                          \
        return bytes;
        TQ_DTYPE_TABLE(DTYPE_SIZE)
#undef DTYPE_SIZE
    }
    return 0;
}

const char *tq_dtype_name(tq_dtype_t dtype)
{
    static const char *const names[] = {
        [TQ_DTYPE_NONE] = "none",
        [TQ_DTYPE_BOOL] = "bool",
        [TQ_DTYPE_U8] = "u8",
        [TQ_DTYPE_I8] = "i8",
        [TQ_DTYPE_U16] = "u16",
        [TQ_DTYPE_I16] = "i16",
        [TQ_DTYPE_U32] = "u32",
        [TQ_DTYPE_I32] = "i32",
        [TQ_DTYPE_U64] = "u64",
        [TQ_DTYPE_I64] = "i64",
        [TQ_DTYPE_F16] = "f16",
        [TQ_DTYPE_BF16] = "bf16",
        [TQ_DTYPE_F32] = "f32",
        [TQ_DTYPE_F64] = "f64",
        [TQ_DTYPE_C32] = "c32",
        [TQ_DTYPE_C64] = "c64",
        [TQ_DTYPE_C128] = "c128",
        [TQ_DTYPE_F8_E4M3FN] = "f8_e4m3fn",
        [TQ_DTYPE_F8_E5M2] = "f8_e5m2",
        [TQ_DTYPE_F8_E4M3FNUZ] = "f8_e4m3fnuz",
        [TQ_DTYPE_F8_E5M2FNUZ] = "f8_e5m2fnuz",
        [TQ_DTYPE_F8_E8M0FNU] = "f8_e8m0fnu",
    };
    unsigned i = (unsigned)dtype;
    return i < sizeof names / sizeof names[0] ? names[i] : "?";
}

/* ---- one descriptor -------------------------------------------------------------------------- */

/* Bytes of shape[from..ndim) elements; false on overflow. A zero dimension makes it 0, whatever the
 * others are. */
static bool bytes_of(const tq_desc_t *desc, unsigned from, uint64_t *bytes)
{
    uint64_t total = tq_dtype_size(desc->dtype);
    bool is_empty = false;
    for (unsigned i = from; i < desc->ndim; i++)
        if (desc->shape[i] == 0)
            is_empty = true;
    *bytes = 0;
    if (is_empty)
        return true;
    for (unsigned i = from; i < desc->ndim; i++)
        if (!tqi_u64_mul(total, desc->shape[i], &total))
            return false;
    *bytes = total;
    return true;
}

tq_status_t tqi_desc_check(const tq_desc_t *desc, tqi_err_t *err)
{
    if (desc->encoding < TQ_ENC_TENSOR || desc->encoding > TQ_ENC_PICKLE)
        return tqi_fail(err, TQ_E_INVALID, "unknown encoding %u", desc->encoding);
    if (desc->encoding != TQ_ENC_TENSOR) {
        if (desc->dtype != TQ_DTYPE_NONE || desc->ndim != 0)
            return tqi_fail(err, TQ_E_INVALID, "a value of encoding %u has no dtype and no shape",
                            desc->encoding);
        return TQ_OK;
    }
    if (tq_dtype_size(desc->dtype) == 0)
        return tqi_fail(err, TQ_E_INVALID, "unknown dtype %u", desc->dtype);
    if (desc->ndim > TQ_NDIM_MAX)
        return tqi_fail(err, TQ_E_INVALID, "%u dimensions, over the limit of %d", desc->ndim,
                        TQ_NDIM_MAX);
    uint64_t bytes;
    if (!bytes_of(desc, 0, &bytes))
        return tqi_fail(err, TQ_E_INVALID, "the shape overflows 64 bits");
    if (bytes != desc->len)
        return tqi_fail(err, TQ_E_INVALID,
                        "%" PRIu64 " bytes, but shape and dtype %s make %" PRIu64, desc->len,
                        tq_dtype_name(desc->dtype), bytes);
    return TQ_OK;
}

tq_status_t tqi_desc_encode(tqi_buf_t *buf, const tq_desc_t *desc)
{
    bool is_tensor = desc->encoding == TQ_ENC_TENSOR;
    uint8_t *p = tqi_buf_extend(buf, DESC_HEAD + (size_t)desc->ndim * 8 + (is_tensor ? 0 : 8));
    if (!p)
        return TQ_E_NO_MEMORY;
    p[0] = desc->encoding;
    p[1] = desc->dtype;
    p[2] = desc->ndim;
    p[3] = 0;
    for (unsigned i = 0; i < desc->ndim; i++)
        tqi_store_le64(p + DESC_HEAD + (size_t)i * 8, desc->shape[i]);
    if (!is_tensor)
        tqi_store_le64(p + DESC_HEAD + (size_t)desc->ndim * 8, desc->len);
    return TQ_OK;
}

size_t tqi_desc_decode(const void *data, size_t len, tq_desc_t *desc)
{
    const uint8_t *p = data;
    memset(desc, 0, sizeof *desc);
    if (len < DESC_HEAD || p[2] > TQ_NDIM_MAX || p[3] != 0)
        return 0;
    desc->encoding = p[0];
    desc->dtype = p[1];
    desc->ndim = p[2];
    bool is_tensor = desc->encoding == TQ_ENC_TENSOR;
    size_t need = DESC_HEAD + (size_t)desc->ndim * 8 + (is_tensor ? 0 : 8);
    if (len < need)
        return 0;
    for (unsigned i = 0; i < desc->ndim; i++)
        desc->shape[i] = tqi_load_le64(p + DESC_HEAD + (size_t)i * 8);
    if (!is_tensor)
        desc->len = tqi_load_le64(p + DESC_HEAD + (size_t)desc->ndim * 8);
    else if (!bytes_of(desc, 0, &desc->len))
        return 0;
    return tqi_desc_check(desc, NULL) == TQ_OK ? need : 0;
}

/* ---- columns --------------------------------------------------------------------------------- */

static bool desc_equal(const tq_desc_t *a, const tq_desc_t *b, unsigned from)
{
    if (a->encoding != b->encoding || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (unsigned i = from; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return from > 0 || a->len == b->len;
}

tq_status_t tqi_coldesc_encode(tqi_buf_t *buf, uint32_t rows_cnt, tqi_desc_at_fn descs, void *ctx,
                               tqi_err_t *err)
{
    tq_desc_t first = {0}, desc;
    size_t start = buf->len;
    tq_layout_t layout = TQ_LAYOUT_UNIFORM;
    uint64_t frame_bytes = 0;
    tqi_assert(rows_cnt > 0);

    descs(ctx, 0, &first);
    for (uint32_t r = 0; r < rows_cnt; r++) {
        memset(&desc, 0, sizeof desc);
        descs(ctx, r, &desc);
        tq_status_t rc = tqi_desc_check(&desc, err);
        if (rc != TQ_OK) {
            tqi_err_prefix(err, "row %u", r);
            return rc;
        }
        if (!tqi_u64_add(frame_bytes, desc.len, &frame_bytes) || frame_bytes > INT64_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE, "the column is over 2^63 bytes");
        if (layout == TQ_LAYOUT_UNIFORM && !desc_equal(&first, &desc, 0))
            layout = first.encoding == TQ_ENC_TENSOR && first.ndim > 0 ? TQ_LAYOUT_RAGGED
                                                                       : TQ_LAYOUT_EACH;
        if (layout == TQ_LAYOUT_RAGGED && !desc_equal(&first, &desc, 1))
            layout = TQ_LAYOUT_EACH;
    }

    tq_status_t rc = TQ_OK;
    uint8_t *head = tqi_buf_extend(buf, COLUMN_HEAD);
    if (!head)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a column's descriptors");
    memset(head, 0, COLUMN_HEAD);
    head[0] = (uint8_t)layout;
    if (layout == TQ_LAYOUT_RAGGED) {
        first.shape[0] = 0;
        first.len = 0;
    }
    if (layout != TQ_LAYOUT_EACH)
        rc = tqi_desc_encode(buf, &first);
    if (rc == TQ_OK && layout == TQ_LAYOUT_RAGGED) {
        uint8_t *dim0 = tqi_buf_extend(buf, (size_t)rows_cnt * 8);
        if (!dim0)
            rc = TQ_E_NO_MEMORY;
        for (uint32_t r = 0; rc == TQ_OK && r < rows_cnt; r++) {
            descs(ctx, r, &desc);
            tqi_store_le64(dim0 + (size_t)r * 8, desc.shape[0]);
        }
    }
    for (uint32_t r = 0; rc == TQ_OK && layout == TQ_LAYOUT_EACH && r < rows_cnt; r++) {
        memset(&desc, 0, sizeof desc);
        descs(ctx, r, &desc);
        rc = tqi_desc_encode(buf, &desc);
    }
    if (rc != TQ_OK) {
        buf->len = start;
        return tqi_fail(err, rc, "no memory for a column's descriptors");
    }
    return TQ_OK;
}

static tq_status_t column_too_large(tqi_err_t *err)
{
    return tqi_fail(err, TQ_E_TOO_LARGE, "a column is over 2^63 bytes");
}

static tq_status_t decode_uniform(const uint8_t *p, size_t len, tqi_coldesc_t *out, tqi_err_t *err)
{
    size_t used = tqi_desc_decode(p, len, &out->desc);
    if (used == 0 || used != len)
        return tqi_fail(err, TQ_E_MALFORMED, "bad descriptor of a uniform column");
    if (!tqi_u64_mul(out->desc.len, out->rows_cnt, &out->frame_bytes) ||
        out->frame_bytes > INT64_MAX)
        return column_too_large(err);
    out->descs_cnt = 1;
    return TQ_OK;
}

static tq_status_t decode_ragged(const uint8_t *p, size_t len, tqi_coldesc_t *out, tqi_err_t *err)
{
    size_t used = tqi_desc_decode(p, len, &out->desc);
    if (used == 0 || out->desc.encoding != TQ_ENC_TENSOR || out->desc.ndim == 0 ||
        out->desc.shape[0] != 0 || len - used != (size_t)out->rows_cnt * 8)
        return tqi_fail(err, TQ_E_MALFORMED, "bad descriptor of a ragged column");
    if (!bytes_of(&out->desc, 1, &out->unit_bytes))
        return column_too_large(err);
    out->dim0 = (tqi_u64s_t){p + used, out->rows_cnt};
    for (uint32_t r = 0; r < out->rows_cnt; r++) {
        uint64_t bytes;
        if (!tqi_u64_mul(tqi_u64s_at(out->dim0, r), out->unit_bytes, &bytes) ||
            !tqi_u64_add(out->frame_bytes, bytes, &out->frame_bytes) ||
            out->frame_bytes > INT64_MAX)
            return column_too_large(err);
    }
    out->descs_cnt = out->rows_cnt;
    return TQ_OK;
}

static tq_status_t decode_each(const uint8_t *p, size_t len, tqi_coldesc_t *out, tqi_err_t *err)
{
    size_t at = 0;
    tq_desc_t desc;
    for (uint32_t r = 0; r < out->rows_cnt; r++) {
        size_t used = tqi_desc_decode(p + at, len - at, &desc);
        if (used == 0)
            return tqi_fail(err, TQ_E_MALFORMED, "bad descriptor of row %u of a column", r);
        if (!tqi_u64_add(out->frame_bytes, desc.len, &out->frame_bytes) ||
            out->frame_bytes > INT64_MAX)
            return column_too_large(err);
        at += used;
    }
    if (at != len)
        return tqi_fail(err, TQ_E_MALFORMED, "%zu bytes after a column's descriptors", len - at);
    out->each = (tqi_bytes_t){p, (uint32_t)len};
    out->descs_cnt = out->rows_cnt;
    return TQ_OK;
}

tq_status_t tqi_coldesc_decode(tqi_bytes_t blob, uint32_t rows_cnt, tqi_coldesc_t *out,
                               tqi_err_t *err)
{
    const uint8_t *p = blob.data;
    memset(out, 0, sizeof *out);
    if (blob.len < COLUMN_HEAD || rows_cnt == 0 || p[1] || p[2] || p[3])
        return tqi_fail(err, TQ_E_MALFORMED, "bad head of a column's descriptors");
    out->layout = (tq_layout_t)p[0];
    out->rows_cnt = rows_cnt;
    p += COLUMN_HEAD;
    size_t len = blob.len - COLUMN_HEAD;
    switch (out->layout) {
    case TQ_LAYOUT_UNIFORM:
        return decode_uniform(p, len, out, err);
    case TQ_LAYOUT_RAGGED:
        return decode_ragged(p, len, out, err);
    case TQ_LAYOUT_EACH:
        return decode_each(p, len, out, err);
    }
    return tqi_fail(err, TQ_E_MALFORMED, "unknown column layout %d", (int)out->layout);
}

void tqi_coldesc_iter(tqi_coldesc_iter_t *it, const tqi_coldesc_t *col)
{
    *it = (tqi_coldesc_iter_t){.col = col};
}

void tqi_coldesc_next(tqi_coldesc_iter_t *it, tq_desc_t *desc, uint64_t *offset)
{
    const tqi_coldesc_t *col = it->col;
    tqi_assert(it->row < col->rows_cnt);
    if (col->layout == TQ_LAYOUT_EACH) {
        size_t used = tqi_desc_decode((const uint8_t *)col->each.data + it->each_at,
                                      col->each.len - it->each_at, desc);
        tqi_assert(used > 0);
        it->each_at += (uint32_t)used;
    } else {
        *desc = col->desc;
        if (col->layout == TQ_LAYOUT_RAGGED) {
            desc->shape[0] = tqi_u64s_at(col->dim0, it->row);
            desc->len = desc->shape[0] * col->unit_bytes;
        }
    }
    *offset = it->offset;
    it->offset += desc->len;
    it->row++;
}

/* ---- schemas --------------------------------------------------------------------------------- */

tq_status_t tqi_schema_encode(tqi_buf_t *buf, const tq_schema_t *schema)
{
    unsigned ndim = schema->is_nested ? 0 : schema->ndim;
    uint8_t *p = tqi_buf_extend(buf, 4 + (size_t)ndim * 8);
    if (!p)
        return TQ_E_NO_MEMORY;
    p[0] = schema->encoding;
    p[1] = schema->dtype;
    p[2] = schema->is_nested != 0;
    p[3] = (uint8_t)ndim;
    for (unsigned i = 0; i < ndim; i++)
        tqi_store_le64(p + 4 + (size_t)i * 8, schema->shape[i]);
    return TQ_OK;
}

/* Only tensors have a dtype and a shape; where shapes differ there is none, and where dtypes do too
 * there is neither. */
static bool schema_can_be(uint8_t encoding, uint8_t dtype, uint8_t is_nested, uint8_t ndim)
{
    if (encoding != TQ_ENC_TENSOR)
        return encoding <= TQ_ENC_PICKLE && dtype == TQ_DTYPE_NONE && is_nested == 0 && ndim == 0;
    if (is_nested)
        return is_nested == 1 && ndim == 0 && (dtype == TQ_DTYPE_NONE || tq_dtype_size(dtype) > 0);
    return tq_dtype_size(dtype) > 0 && ndim <= TQ_NDIM_MAX;
}

tq_status_t tqi_schema_decode(tqi_bytes_t blob, tq_schema_t *schema)
{
    const uint8_t *p = blob.data;
    memset(schema, 0, sizeof *schema);
    if (blob.len == 0)
        return TQ_OK;
    if (blob.len < 4 || !schema_can_be(p[0], p[1], p[2], p[3]) || blob.len != 4 + (size_t)p[3] * 8)
        return TQ_E_MALFORMED;
    schema->encoding = p[0];
    schema->dtype = p[1];
    schema->is_nested = p[2];
    schema->ndim = p[3];
    for (unsigned i = 0; i < schema->ndim; i++)
        schema->shape[i] = tqi_load_le64(p + 4 + (size_t)i * 8);
    return TQ_OK;
}

void tqi_schema_of(const tqi_coldesc_t *col, tq_schema_t *schema)
{
    memset(schema, 0, sizeof *schema);
    tq_desc_t desc = col->desc;
    if (col->layout == TQ_LAYOUT_EACH) {
        /* One dtype where all agree; else it says only that the rows differ. */
        tqi_coldesc_iter_t it;
        uint64_t offset;
        tq_desc_t next;
        tqi_coldesc_iter(&it, col);
        tqi_coldesc_next(&it, &desc, &offset);
        while (it.row < col->rows_cnt) {
            tqi_coldesc_next(&it, &next, &offset);
            if (next.dtype != desc.dtype)
                desc.dtype = TQ_DTYPE_NONE;
            if (next.encoding != desc.encoding)
                desc.encoding = TQ_ENC_PICKLE;
        }
        if (desc.encoding != TQ_ENC_TENSOR) {
            desc.dtype = TQ_DTYPE_NONE;
            desc.ndim = 0;
            memset(desc.shape, 0, sizeof desc.shape);
        }
    }
    schema->encoding = desc.encoding;
    schema->dtype = desc.dtype;
    schema->is_nested = col->layout != TQ_LAYOUT_UNIFORM && desc.encoding == TQ_ENC_TENSOR;
    if (!schema->is_nested) {
        schema->ndim = desc.ndim;
        memcpy(schema->shape, desc.shape, sizeof schema->shape);
    }
}

void tqi_schema_merge(tq_schema_t *old, const tq_schema_t *add)
{
    if (old->encoding != add->encoding || old->dtype != add->dtype) {
        *old = *add;
        return;
    }
    bool is_same = !old->is_nested && !add->is_nested && old->ndim == add->ndim &&
                   memcmp(old->shape, add->shape, old->ndim * sizeof old->shape[0]) == 0;
    if (is_same || old->encoding != TQ_ENC_TENSOR)
        return;
    old->is_nested = 1;
    old->ndim = 0;
    memset(old->shape, 0, sizeof old->shape);
}
