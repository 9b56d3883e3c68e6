/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Column descriptors: how the values of one field for n rows are to be read, in the smallest of
 * three forms. UNIFORM: one descriptor. RAGGED: tensors that differ in shape[0] only: one
 * descriptor and n lengths of that dimension. EACH: n descriptors.
 *
 * A column's frame is its values one after another in row order, without gaps, so that the
 * descriptor alone says where each begins.
 */
#ifndef TQI_WIRE_COLDESC_H
#define TQI_WIRE_COLDESC_H

#include <stdint.h>

#include <tq/types.h>

#include "base/buf.h"
#include "base/err.h"
#include "wire/msg.h"

typedef struct tqi_coldesc {
    tq_layout_t layout;
    uint32_t rows_cnt;
    tq_desc_t desc;       /* UNIFORM: of each. RAGGED: shape[0] == 0, len == 0 */
    uint64_t unit_bytes;  /* RAGGED: bytes of one step of shape[0]; may be 0 */
    tqi_u64s_t dim0;      /* RAGGED: rows_cnt values of shape[0] */
    tqi_bytes_t each;     /* EACH: encoded descriptors, one after another */
    uint64_t frame_bytes; /* of all rows together */
    uint32_t descs_cnt;   /* how many descriptors it counts for TQ_REQUEST_DESCS_MAX */
} tqi_coldesc_t;

/* Appends the encoded form. `descs` gives the n values' descriptors one by one and may be called
 * more than once for a row; the smallest layout that is true is chosen. E_NO_MEMORY, E_INVALID
 * (a tensor whose len is not what its shape says), E_TOO_LARGE. */
typedef void (*tqi_desc_at_fn)(void *ctx, uint32_t row, tq_desc_t *desc);
tq_status_t tqi_coldesc_encode(tqi_buf_t *buf, uint32_t rows_cnt, tqi_desc_at_fn descs, void *ctx,
                               tqi_err_t *err);

/* Total, checks everything: sizes, overflow, shapes against lengths, exactly rows_cnt rows. Views
 * into the blob. E_MALFORMED, E_TOO_LARGE. */
tq_status_t tqi_coldesc_decode(tqi_bytes_t blob, uint32_t rows_cnt, tqi_coldesc_t *out,
                               tqi_err_t *err);

/* Walks the rows of a decoded column in order: each call gives the next row's descriptor and the
 * offset of its bytes in the frame. */
typedef struct tqi_coldesc_iter {
    const tqi_coldesc_t *col;
    uint32_t row;
    uint64_t offset;
    uint32_t each_at;
} tqi_coldesc_iter_t;
void tqi_coldesc_iter(tqi_coldesc_iter_t *it, const tqi_coldesc_t *col);
void tqi_coldesc_next(tqi_coldesc_iter_t *it, tq_desc_t *desc, uint64_t *offset);

/* One descriptor on its own (used in EACH, and by the unit to store odd ones). Decode returns the
 * bytes used, 0 if malformed. */
tq_status_t tqi_desc_encode(tqi_buf_t *buf, const tq_desc_t *desc);
size_t tqi_desc_decode(const void *data, size_t len, tq_desc_t *desc);
/* E_INVALID with the reason unless encoding, dtype, ndim, shape and len belong together. */
tq_status_t tqi_desc_check(const tq_desc_t *desc, tqi_err_t *err);

/* A field's schema, the hint that the controller keeps. */
tq_status_t tqi_schema_encode(tqi_buf_t *buf, const tq_schema_t *schema);
/* An empty blob is the schema of a field that was never written. E_MALFORMED, also for what no column
 * can have: bytes with a shape, an unknown dtype. */
tq_status_t tqi_schema_decode(tqi_bytes_t blob, tq_schema_t *schema);
/* The schema of a column. */
void tqi_schema_of(const tqi_coldesc_t *col, tq_schema_t *schema);
/* What old becomes when values of schema `add` are written beside it: equal shapes stay, different
 * ones make it nested, another dtype or encoding replaces it. */
void tqi_schema_merge(tq_schema_t *old, const tq_schema_t *add);

#endif
