/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of columns, of single values, and schemas. The first two bytes are how many rows a
 * column has. What is one comes back with the same descriptor for each row.
 */
#include "fuzz.h"

#include <string.h>

#include "base/size.h"
#include "sys/env_malloc.h"
#include "wire/coldesc.h"

static bool is_same_desc(const tq_desc_t *a, const tq_desc_t *b)
{
    return a->encoding == b->encoding && a->dtype == b->dtype && a->ndim == b->ndim &&
           a->len == b->len && memcmp(a->shape, b->shape, a->ndim * sizeof a->shape[0]) == 0;
}

typedef struct walk {
    const tqi_coldesc_t *col;
    tqi_coldesc_iter_t it;
} walk_t;

/* Rows come in order, from the first one again whenever the encoder looks again. */
static void desc_at(void *ctx, uint32_t row, tq_desc_t *desc)
{
    walk_t *walk = ctx;
    uint64_t offset;
    if (row < walk->it.row || walk->it.col == NULL)
        tqi_coldesc_iter(&walk->it, walk->col);
    while (walk->it.row <= row)
        tqi_coldesc_next(&walk->it, desc, &offset);
}

static void column(const uint8_t *data, size_t len)
{
    uint32_t rows_cnt = tqi_load_le16(data);
    tqi_bytes_t blob = {data + 2, (uint32_t)len - 2};
    tqi_coldesc_t col, back;
    tqi_coldesc_iter_t it, it_back;
    tq_schema_t schema, merged, decoded;
    tqi_buf_t buf;
    tqi_err_t err = {0};
    if (tqi_coldesc_decode(blob, rows_cnt, &col, &err) != TQ_OK) {
        fuzz_require(err.text[0] != 0, "a refusal without a sentence");
        return;
    }
    walk_t walk = {.col = &col};
    tqi_buf_init(&buf, tqi_env_malloc());
    tq_status_t rc = tqi_coldesc_encode(&buf, rows_cnt, desc_at, &walk, &err);
    fuzz_require(rc == TQ_OK, "a column can't be encoded: %s", err.text);
    rc = tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, rows_cnt, &back, &err);
    fuzz_require(rc == TQ_OK, "what was encoded can't be decoded: %s", err.text);
    fuzz_require(back.frame_bytes == col.frame_bytes && back.rows_cnt == rows_cnt &&
                     back.descs_cnt <= col.descs_cnt,
                 "a column comes back as another");
    tqi_coldesc_iter(&it, &col);
    tqi_coldesc_iter(&it_back, &back);
    uint64_t end = 0;
    for (uint32_t r = 0; r < rows_cnt; r++) {
        tq_desc_t desc, desc_back;
        uint64_t offset, offset_back;
        tqi_coldesc_next(&it, &desc, &offset);
        tqi_coldesc_next(&it_back, &desc_back, &offset_back);
        fuzz_require(tqi_desc_check(&desc, NULL) == TQ_OK, "row %u can't be", r);
        fuzz_require(is_same_desc(&desc, &desc_back) && offset == offset_back && offset == end,
                     "row %u comes back as another", r);
        end = offset + desc.len;
    }
    fuzz_require(end == col.frame_bytes, "rows of %llu bytes in a frame of %llu",
                 (unsigned long long)end, (unsigned long long)col.frame_bytes);
    tqi_schema_of(&col, &schema);
    merged = schema;
    tqi_schema_merge(&merged, &schema);
    fuzz_require(merged.encoding == schema.encoding && merged.dtype == schema.dtype &&
                     merged.is_nested == schema.is_nested,
                 "a schema and itself make another");
    tqi_buf_clear(&buf);
    if (tqi_schema_encode(&buf, &schema) != TQ_OK)
        abort();
    rc = tqi_schema_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, &decoded);
    fuzz_require(rc == TQ_OK && decoded.encoding == schema.encoding &&
                     decoded.dtype == schema.dtype && decoded.ndim == schema.ndim &&
                     memcmp(decoded.shape, schema.shape, schema.ndim * sizeof schema.shape[0]) == 0,
                 "a schema comes back as another");
    tqi_buf_fini(&buf);
}

static void desc(const uint8_t *data, size_t len)
{
    tq_desc_t desc, back;
    tqi_buf_t buf;
    size_t used = tqi_desc_decode(data, len, &desc);
    fuzz_require(used <= len, "a descriptor of %zu bytes out of %zu", used, len);
    if (used == 0)
        return;
    tqi_buf_init(&buf, tqi_env_malloc());
    if (tqi_desc_encode(&buf, &desc) != TQ_OK)
        abort();
    fuzz_require(tqi_desc_decode(buf.data, buf.len, &back) == buf.len && is_same_desc(&desc, &back),
                 "a descriptor comes back as another");
    tqi_buf_fini(&buf);
}

static void schema(const uint8_t *data, size_t len)
{
    tq_schema_t schema, back;
    tqi_buf_t buf;
    if (tqi_schema_decode((tqi_bytes_t){data, (uint32_t)len}, &schema) != TQ_OK)
        return;
    fuzz_require(schema.ndim <= TQ_NDIM_MAX, "%u dimensions", schema.ndim);
    if (len == 0)
        return;
    tqi_buf_init(&buf, tqi_env_malloc());
    if (tqi_schema_encode(&buf, &schema) != TQ_OK)
        abort();
    fuzz_require(tqi_schema_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, &back) == TQ_OK &&
                     back.encoding == schema.encoding && back.ndim == schema.ndim,
                 "a schema comes back as another");
    tqi_schema_merge(&back, &schema);
    tqi_buf_fini(&buf);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    schema(data, len);
    desc(data, len);
    if (len >= 2)
        column(data, len);
}
