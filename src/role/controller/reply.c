/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns of replies that describe rows, built a slice at a time.
 */
#include "role/controller/internal.h"

#include <string.h>

void tqi_ctl_out_init(reply_rows_t *out, const tqi_env_t *env)
{
    tqi_vec_init(&out->rows, env);
    tqi_vec_init(&out->units, env);
    tqi_vec_init(&out->has_key, env);
    tqi_vec_init(&out->has_data, env);
    tqi_vec_init(&out->life_units, env);
    tqi_vec_init(&out->lives, env);
    tqi_buf_init(&out->produced, env);
    tqi_strs_builder_init(&out->keys, env);
    tqi_strs_builder_init(&out->tags, env);
    tqi_strs_builder_init(&out->fields, env);
    tqi_strs_builder_init(&out->schemas, env);
}

void tqi_ctl_out_fini(reply_rows_t *out)
{
    tqi_vec_fini(&out->rows);
    tqi_vec_fini(&out->units);
    tqi_vec_fini(&out->has_key);
    tqi_vec_fini(&out->has_data);
    tqi_vec_fini(&out->life_units);
    tqi_vec_fini(&out->lives);
    tqi_buf_fini(&out->produced);
    tqi_strs_builder_fini(&out->keys);
    tqi_strs_builder_fini(&out->tags);
    tqi_strs_builder_fini(&out->fields);
    tqi_strs_builder_fini(&out->schemas);
}

tq_status_t tqi_ctl_out_rows(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                             uint32_t cnt)
{
    if (cnt == 0)
        return TQ_OK;
    if (tqi_vec_reserve(&out->rows, cnt) != TQ_OK || tqi_vec_reserve(&out->units, cnt) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < cnt; i++)
        out->rows.at[out->rows.len + i] =
            pos[i] == TQI_POS_NONE ? TQ_ROW_NONE : tqi_index_row(&p->index, pos[i]);
    tqi_partition_units(p, pos, cnt, out->units.at + out->units.len);
    out->rows.len += cnt;
    out->units.len += cnt;
    return TQ_OK;
}

tq_status_t tqi_ctl_out_lives(reply_rows_t *out, const tqi_partition_t *p)
{
    if (tqi_vec_reserve(&out->life_units, p->placed.len) != TQ_OK ||
        tqi_vec_reserve(&out->lives, p->placed.len) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (size_t i = 0; i < p->placed.len; i++) {
        out->life_units.at[out->life_units.len++] = p->placed.at[i]->unit;
        out->lives.at[out->lives.len++] = p->placed.at[i]->life_seen;
    }
    return TQ_OK;
}

tq_status_t tqi_ctl_out_keys(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                             uint32_t cnt)
{
    if (tqi_vec_reserve(&out->has_key, cnt) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < cnt; i++) {
        size_t len = 0;
        const char *key = pos[i] == TQI_POS_NONE ? NULL : tqi_partition_key_of(p, pos[i], &len);

        if (tqi_strs_builder_add(&out->keys, key, len) != TQ_OK)
            return TQ_E_NO_MEMORY;
        out->has_key.at[out->has_key.len++] = key != NULL;
    }
    return TQ_OK;
}

tq_status_t tqi_ctl_out_tags(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                             uint32_t cnt)
{
    for (uint32_t i = 0; i < cnt; i++) {
        const tqi_tags_t *tags = pos[i] == TQI_POS_NONE ? NULL : tqi_partition_tags(p, pos[i]);

        if (tqi_strs_builder_add(&out->tags, tags ? tags->data : NULL, tags ? tags->len : 0) !=
            TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    return TQ_OK;
}

tq_status_t tqi_ctl_out_produced(reply_rows_t *out, const tqi_partition_t *p, const uint64_t *pos,
                                 uint32_t cnt, uint32_t first, tqi_field_t *const *fields,
                                 uint32_t fields_cnt)
{
    size_t bytes = ((size_t)(first + cnt) * fields_cnt + 7) / 8;

    (void)p;
    if (bytes > out->produced.len) {
        size_t more = bytes - out->produced.len;
        uint8_t *at = tqi_buf_extend(&out->produced, more);

        if (!at)
            return TQ_E_NO_MEMORY;
        memset(at, 0, more);
    }
    for (uint32_t f = 0; f < fields_cnt; f++) {
        const uint64_t *leaf = NULL;
        uint64_t ordinal = UINT64_MAX;

        for (uint32_t i = 0; fields[f] && i < cnt; i++) {
            size_t bit = (size_t)(first + i) * fields_cnt + f;

            if (pos[i] == TQI_POS_NONE)
                continue;
            if (pos[i] / TQI_BLOCK_ROWS != ordinal) {
                ordinal = pos[i] / TQI_BLOCK_ROWS;
                leaf = tqi_bits_leaf(&fields[f]->produced, ordinal);
            }
            if (leaf && tqi_words_test(leaf, pos[i] % TQI_BLOCK_ROWS))
                out->produced.data[bit / 8] |= (uint8_t)(1u << bit % 8);
        }
    }
    return TQ_OK;
}

tq_status_t tqi_ctl_out_field(reply_rows_t *out, const tqi_field_t *field)
{
    return tqi_strs_builder_add(&out->fields, field->name, field->name_len);
}

tq_status_t tqi_ctl_out_schema(reply_rows_t *out, const tqi_field_t *field)
{
    tqi_buf_t blob;
    tq_status_t rc = TQ_OK;

    tqi_buf_init(&blob, out->produced.env);
    if (field && field->schema.encoding != 0)
        rc = tqi_schema_encode(&blob, &field->schema);
    if (rc == TQ_OK)
        rc = tqi_strs_builder_add(&out->schemas, blob.data, blob.len);
    tqi_buf_fini(&blob);
    return rc;
}
