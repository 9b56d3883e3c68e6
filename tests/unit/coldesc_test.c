/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/coldesc.h"

#include "unit.h"

#include <string.h>

#define ROWS_MAX 40

typedef struct column {
    tq_desc_t descs[ROWS_MAX];
    uint32_t rows_cnt;
} column_t;

static void desc_at(void *ctx, uint32_t row, tq_desc_t *desc)
{
    *desc = ((column_t *)ctx)->descs[row];
}

static tq_desc_t tensor(tq_dtype_t dtype, uint8_t ndim, uint64_t a, uint64_t b, uint64_t c)
{
    tq_desc_t d = {.encoding = TQ_ENC_TENSOR, .dtype = (uint8_t)dtype, .ndim = ndim};
    uint64_t shape[3] = {a, b, c};

    d.len = tq_dtype_size(dtype);
    for (uint8_t i = 0; i < ndim; i++) {
        d.shape[i] = shape[i];
        d.len *= shape[i];
    }
    return d;
}

static tq_desc_t random_desc(tqi_rng_t *rng)
{
    if (tqi_rng_chance(rng, 0.3))
        return (tq_desc_t){.encoding = (uint8_t)(2 + tqi_rng_below(rng, 4)),
                           .len = tqi_rng_below(rng, 100)};
    return tensor((tq_dtype_t)(1 + tqi_rng_below(rng, 21)), (uint8_t)tqi_rng_below(rng, 4),
                  tqi_rng_below(rng, 5), 1 + tqi_rng_below(rng, 4), 1 + tqi_rng_below(rng, 4));
}

/* A column of one of the three kinds. */
static void random_column(column_t *col, tqi_rng_t *rng)
{
    int kind = (int)tqi_rng_below(rng, 3);
    tq_desc_t first = random_desc(rng);

    col->rows_cnt = 1 + (uint32_t)tqi_rng_below(rng, ROWS_MAX);
    for (uint32_t r = 0; r < col->rows_cnt; r++) {
        col->descs[r] = kind == 2 ? random_desc(rng) : first;
        if (kind == 1 && first.encoding == TQ_ENC_TENSOR && first.ndim > 0)
            col->descs[r] = tensor((tq_dtype_t)first.dtype, first.ndim, tqi_rng_below(rng, 9),
                                   first.shape[1], first.shape[2]);
    }
}

static void descriptors_come_back_row_by_row_in_the_smallest_layout(void **state)
{
    (void)state;
    for_each_seed(seed, 500)
    {
        tqi_rng_t rng;
        unit_env_t e;
        tqi_buf_t buf;
        tqi_err_t err;
        column_t col;
        tqi_coldesc_t got;
        tqi_coldesc_iter_t it;
        uint64_t bytes = 0;
        bool is_uniform = true;

        unit_env_init(&e);
        tqi_buf_init(&buf, &e.env);
        tqi_rng_init(&rng, seed);
        random_column(&col, &rng);
        unit_check(tqi_coldesc_encode(&buf, col.rows_cnt, desc_at, &col, &err) == TQ_OK);
        unit_check(tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, col.rows_cnt,
                                      &got, &err) == TQ_OK);
        tqi_coldesc_iter(&it, &got);
        for (uint32_t r = 0; r < col.rows_cnt; r++) {
            tq_desc_t d;
            uint64_t offset;

            tqi_coldesc_next(&it, &d, &offset);
            unit_check(memcmp(&d, &col.descs[r], sizeof d) == 0);
            unit_check(offset == bytes);
            bytes += d.len;
            is_uniform = is_uniform && memcmp(&d, &col.descs[0], sizeof d) == 0;
        }
        unit_check(got.frame_bytes == bytes);
        unit_check(is_uniform == (got.layout == TQ_LAYOUT_UNIFORM));
        unit_check(got.descs_cnt == (is_uniform ? 1 : col.rows_cnt));
        /* Another number of rows is another column. */
        if (!is_uniform)
            unit_check(tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len},
                                          col.rows_cnt + 1, &got, &err) == TQ_E_MALFORMED);
        tqi_buf_fini(&buf);
        unit_check(e.bytes == 0);
    }
}

static void damaged_descriptors_are_refused_or_true(void **state)
{
    (void)state;
    for_each_seed(seed, 3000)
    {
        tqi_rng_t rng;
        unit_env_t e;
        tqi_buf_t buf;
        tqi_err_t err;
        column_t col;
        tqi_coldesc_t got;

        unit_env_init(&e);
        tqi_buf_init(&buf, &e.env);
        tqi_rng_init(&rng, seed);
        random_column(&col, &rng);
        unit_check(tqi_coldesc_encode(&buf, col.rows_cnt, desc_at, &col, &err) == TQ_OK);
        size_t len = tqi_rng_chance(&rng, 0.3) ? tqi_rng_below(&rng, buf.len) : buf.len;
        uint8_t *copy = malloc(len + 1);
        memcpy(copy, buf.data, len);
        if (len > 0)
            copy[tqi_rng_below(&rng, len)] = (uint8_t)tqi_rng_u64(&rng);
        if (tqi_coldesc_decode((tqi_bytes_t){copy, (uint32_t)len}, col.rows_cnt, &got, &err) ==
            TQ_OK) {
            tqi_coldesc_iter_t it;
            uint64_t sum = 0;

            tqi_coldesc_iter(&it, &got);
            for (uint32_t r = 0; r < col.rows_cnt; r++) {
                tq_desc_t d;
                uint64_t offset;

                tqi_coldesc_next(&it, &d, &offset);
                unit_check(tqi_desc_check(&d, &err) == TQ_OK);
                sum += d.len;
            }
            unit_check(sum == got.frame_bytes);
        }
        free(copy);
        tqi_buf_fini(&buf);
    }
}

static void a_column_without_its_descriptor_is_refused(void **state)
{
    static const uint8_t heads[][4] = {{1, 0, 0, 0}, {2, 0, 0, 0}, {3, 0, 0, 0}, {0, 0, 0, 0}};
    tqi_coldesc_t got;

    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (uint32_t len = 0; len <= 4; len++)
            assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){heads[i], len}, 199, &got, NULL),
                             TQ_E_MALFORMED);
}

static void a_tensor_is_as_long_as_its_shape_says(void **state)
{
    tqi_err_t err;
    tq_desc_t d = tensor(TQ_DTYPE_F32, 2, 3, 4, 0);

    (void)state;
    assert_int_equal(tqi_desc_check(&d, &err), TQ_OK);
    d.len = 47;
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
    assert_string_equal(err.text, "47 bytes, but shape and dtype f32 make 48");
    d = tensor(TQ_DTYPE_F64, 3, UINT64_MAX / 4, 3, 3);
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
    /* A zero anywhere makes it empty, however large the rest is. */
    d = tensor(TQ_DTYPE_F64, 3, UINT64_MAX / 4, 0, 9);
    d.len = 0;
    assert_int_equal(tqi_desc_check(&d, &err), TQ_OK);
    d = (tq_desc_t){.encoding = TQ_ENC_TEXT, .ndim = 1};
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
    d = (tq_desc_t){.encoding = 77};
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
}

static tq_schema_t schema_of(column_t *col)
{
    unit_env_t e;
    tqi_buf_t buf;
    tqi_coldesc_t got;
    tq_schema_t schema, again;

    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    assert_int_equal(tqi_coldesc_encode(&buf, col->rows_cnt, desc_at, col, NULL), TQ_OK);
    assert_int_equal(
        tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, col->rows_cnt, &got, NULL),
        TQ_OK);
    tqi_schema_of(&got, &schema);
    tqi_buf_clear(&buf);
    assert_int_equal(tqi_schema_encode(&buf, &schema), TQ_OK);
    assert_int_equal(tqi_schema_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, &again), TQ_OK);
    assert_memory_equal(&schema, &again, sizeof schema);
    tqi_buf_fini(&buf);
    return schema;
}

static void schemas_say_what_all_rows_share(void **state)
{
    column_t col = {{tensor(TQ_DTYPE_I64, 1, 4, 0, 0), tensor(TQ_DTYPE_I64, 1, 4, 0, 0)}, 2};
    tq_schema_t uniform = schema_of(&col), merged = uniform;

    (void)state;
    assert_int_equal(uniform.dtype, TQ_DTYPE_I64);
    assert_int_equal(uniform.is_nested, 0);
    assert_int_equal(uniform.shape[0], 4);
    tqi_schema_merge(&merged, &uniform);
    assert_memory_equal(&merged, &uniform, sizeof merged);

    col.descs[1] = tensor(TQ_DTYPE_I64, 1, 5, 0, 0);
    tq_schema_t ragged = schema_of(&col);
    assert_int_equal(ragged.is_nested, 1);
    tqi_schema_merge(&merged, &ragged);
    assert_int_equal(merged.is_nested, 1);

    col.descs[1] = (tq_desc_t){.encoding = TQ_ENC_TEXT, .len = 3};
    tq_schema_t mixed = schema_of(&col);
    assert_int_not_equal(mixed.encoding, TQ_ENC_TENSOR);
    assert_int_equal(mixed.ndim, 0);
    tqi_schema_merge(&merged, &mixed);
    assert_memory_equal(&merged, &mixed, sizeof merged);
}

static void a_schema_that_no_column_has_is_refused(void **state)
{
    static const struct {
        uint8_t head[4]; /* encoding, dtype, is_nested, ndim */
        bool is_good;
    } cases[] = {
        {{TQ_ENC_TENSOR, TQ_DTYPE_F32, 0, 1}, true},
        {{TQ_ENC_TENSOR, TQ_DTYPE_F32, 1, 0}, true},
        {{TQ_ENC_TENSOR, TQ_DTYPE_NONE, 1, 0}, true},
        {{TQ_ENC_TEXT, TQ_DTYPE_NONE, 0, 0}, true},
        {{0, TQ_DTYPE_NONE, 0, 0}, true},
        {{TQ_ENC_TENSOR, TQ_DTYPE_NONE, 0, 0}, false},
        {{TQ_ENC_TENSOR, 200, 0, 0}, false},
        {{TQ_ENC_TENSOR, 200, 1, 0}, false},
        {{TQ_ENC_TENSOR, TQ_DTYPE_F32, 1, 1}, false},
        {{TQ_ENC_TENSOR, TQ_DTYPE_F32, 2, 0}, false},
        {{TQ_ENC_TENSOR, TQ_DTYPE_F32, 0, TQ_NDIM_MAX + 1}, false},
        {{TQ_ENC_BYTES, TQ_DTYPE_F32, 0, 0}, false},
        {{TQ_ENC_BYTES, TQ_DTYPE_NONE, 0, 1}, false},
        {{TQ_ENC_BYTES, TQ_DTYPE_NONE, 1, 0}, false},
        {{TQ_ENC_PICKLE + 1, TQ_DTYPE_NONE, 0, 0}, false},
    };
    uint8_t blob[4 + 8 * 255] = {0};
    tq_schema_t schema;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(blob, cases[i].head, 4);
        tqi_bytes_t bytes = {blob, 4 + 8u * blob[3]};
        if ((tqi_schema_decode(bytes, &schema) == TQ_OK) != cases[i].is_good)
            fail_msg("case %zu", i);
    }
}

/* A column's rows may be as long as they like as long as all of them are below 2^63 bytes. */
static void columns_whose_bytes_overflow_are_refused(void **state)
{
    tq_desc_t huge = tensor(TQ_DTYPE_U8, 1, INT64_MAX, 0, 0);
    tq_desc_t opaque = {.encoding = TQ_ENC_BYTES, .len = UINT64_MAX};
    column_t col = {.descs = {huge, huge, huge}, .rows_cnt = 2};
    tqi_coldesc_t got;
    tqi_err_t err;
    unit_env_t e;
    tqi_buf_t buf;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    assert_int_equal(tqi_coldesc_encode(&buf, 2, desc_at, &col, &err), TQ_E_TOO_LARGE);
    col.descs[0] = tensor(TQ_DTYPE_U8, 1, 1, 0, 0);
    col.descs[1] = opaque;
    assert_int_equal(tqi_coldesc_encode(&buf, 2, desc_at, &col, &err), TQ_E_TOO_LARGE);
    assert_int_equal(buf.len, 0);
    /* UNIFORM: the length by the rows. */
    col.descs[0] = huge;
    assert_int_equal(tqi_coldesc_encode(&buf, 1, desc_at, &col, NULL), TQ_OK);
    for (uint32_t rows = 1; rows < 4; rows++)
        assert_int_equal(
            tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, rows, &got, &err),
            rows == 1 ? TQ_OK : TQ_E_TOO_LARGE);
    tqi_buf_clear(&buf);
    /* RAGGED: a row's bytes, their sum, and the bytes of one element. */
    static const struct {
        uint64_t dim0[2];
        uint64_t dim1;
        tq_status_t want;
    } ragged[] = {
        {{1, 2}, 3, TQ_OK},
        {{UINT64_MAX / 2, 1}, 3, TQ_E_TOO_LARGE},
        {{UINT64_MAX, 1}, 1, TQ_E_TOO_LARGE},
        {{INT64_MAX, 1}, 1, TQ_E_TOO_LARGE},
        {{INT64_MAX, UINT64_MAX}, 1, TQ_E_TOO_LARGE},
    };
    for (size_t i = 0; i < sizeof ragged / sizeof ragged[0]; i++) {
        col.descs[0] = tensor(TQ_DTYPE_U8, 2, 1, ragged[i].dim1, 0);
        col.descs[1] = tensor(TQ_DTYPE_U8, 2, 2, ragged[i].dim1, 0);
        assert_int_equal(tqi_coldesc_encode(&buf, 2, desc_at, &col, NULL), TQ_OK);
        assert_int_equal(buf.data[0], TQ_LAYOUT_RAGGED);
        memcpy(buf.data + buf.len - 16, ragged[i].dim0, 16);
        assert_int_equal(
            tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, 2, &got, &err),
            ragged[i].want);
        tqi_buf_clear(&buf);
    }
    tq_desc_t wide = tensor(TQ_DTYPE_F64, 3, 0, 1, 1);
    col.descs[0] = wide;
    wide.shape[0] = 1;
    wide.len = 8;
    col.descs[1] = wide;
    assert_int_equal(tqi_coldesc_encode(&buf, 2, desc_at, &col, NULL), TQ_OK);
    memset(buf.data + 4 + 4 + 8, 0xff, 16); /* shape[1] and shape[2] */
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, 2, &got, &err),
                     TQ_E_TOO_LARGE);
    tqi_buf_clear(&buf);
    /* EACH: the sum. */
    static const uint8_t head[4] = {TQ_LAYOUT_EACH, 0, 0, 0};
    static const uint64_t lens[][2] = {{1, INT64_MAX}, {INT64_MAX, UINT64_MAX}};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(tqi_buf_append(&buf, head, 4), TQ_OK);
        for (size_t r = 0; r < 2; r++) {
            opaque.len = lens[i][r];
            assert_int_equal(tqi_desc_encode(&buf, &opaque), TQ_OK);
        }
        assert_int_equal(
            tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, 2, &got, &err),
            TQ_E_TOO_LARGE);
        assert_string_equal(err.text, "a column is over 2^63 bytes");
        assert_int_equal(
            tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len - 1}, 2, &got, &err),
            TQ_E_MALFORMED);
        tqi_buf_clear(&buf);
    }
    tqi_buf_fini(&buf);
}

static void heads_of_columns_that_nobody_writes_are_refused(void **state)
{
    /* One row: a UNIFORM column of texts, 4 bytes of head and 12 of descriptor. */
    uint8_t good[17] = {TQ_LAYOUT_UNIFORM, 0, 0, 0, TQ_ENC_TEXT};
    tqi_coldesc_t got;

    (void)state;
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 16}, 1, &got, NULL), TQ_OK);
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 16}, 0, &got, NULL), TQ_E_MALFORMED);
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 17}, 1, &got, NULL), TQ_E_MALFORMED);
    for (size_t i = 1; i < 4; i++) {
        good[i] = 1;
        assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 16}, 1, &got, NULL),
                         TQ_E_MALFORMED);
        good[i] = 0;
    }
    good[0] = TQ_LAYOUT_RAGGED; /* of texts: only tensors are */
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 16}, 1, &got, NULL), TQ_E_MALFORMED);
    good[0] = TQ_LAYOUT_EACH; /* and a byte that is no row's */
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 16}, 1, &got, NULL), TQ_OK);
    assert_int_equal(tqi_coldesc_decode((tqi_bytes_t){good, 17}, 1, &got, NULL), TQ_E_MALFORMED);
}

static void limits_of_a_descriptor_are_named(void **state)
{
    tq_desc_t d = tensor(TQ_DTYPE_F32, 1, 1, 0, 0);
    column_t col = {.rows_cnt = 2};
    tqi_err_t err;
    unit_env_t e;
    tqi_buf_t buf;

    (void)state;
    unit_env_init(&e);
    tqi_buf_init(&buf, &e.env);
    d.ndim = TQ_NDIM_MAX + 1;
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
    assert_non_null(strstr(err.text, "dimensions, over the limit"));
    d = (tq_desc_t){.encoding = 0};
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
    d = (tq_desc_t){.encoding = TQ_ENC_TENSOR, .dtype = 200};
    assert_int_equal(tqi_desc_check(&d, &err), TQ_E_INVALID);
    assert_string_equal(err.text, "unknown dtype 200");
    col.descs[0] = tensor(TQ_DTYPE_F32, 1, 1, 0, 0);
    col.descs[1] = d;
    assert_int_equal(tqi_coldesc_encode(&buf, 2, desc_at, &col, &err), TQ_E_INVALID);
    assert_string_equal(err.text, "row 1: unknown dtype 200");
    assert_int_equal(buf.len, 0);
    assert_string_equal(tq_dtype_name(200), "?");
    tqi_buf_fini(&buf);
}

/* Each layout, in a buffer that has room for ever less of it and may not grow. */
static void a_column_without_memory_leaves_the_buffer_as_it_was(void **state)
{
    static const tq_desc_t text = {.encoding = TQ_ENC_TEXT, .len = 3};
    tq_desc_t one = tensor(TQ_DTYPE_F32, 1, 1, 0, 0), two = tensor(TQ_DTYPE_F32, 1, 2, 0, 0);
    column_t cols[] = {{{one, one}, 2}, {{one, two}, 2}, {{one, text}, 2}};
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
        tq_status_t rc = TQ_E_NO_MEMORY;

        for (size_t room = 0; rc != TQ_OK; room++) {
            tqi_buf_t buf;
            size_t start;

            assert_true(room < 64);
            tqi_buf_init(&buf, &e.env);
            e.fail_after = UINT64_MAX;
            assert_int_equal(tqi_buf_reserve(&buf, 64), TQ_OK);
            start = buf.cap - room;
            assert_non_null(tqi_buf_extend(&buf, start));
            e.fail_after = 0;
            rc = tqi_coldesc_encode(&buf, 2, desc_at, &cols[c], NULL);
            if (rc != TQ_OK) {
                assert_int_equal(rc, TQ_E_NO_MEMORY);
                assert_int_equal(buf.len, start);
            }
            tqi_buf_fini(&buf);
        }
    }
    assert_int_equal(e.bytes, 0);
}

static void schemas_merge_to_what_both_say(void **state)
{
    const tq_schema_t row = {
        .encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_F32, .ndim = 1, .shape = {4}};
    const tq_schema_t text = {.encoding = TQ_ENC_TEXT};
    tq_schema_t add = row, old = row;

    (void)state;
    add.ndim = 2;
    add.shape[1] = 4;
    tqi_schema_merge(&old, &add);
    assert_int_equal(old.is_nested, 1);
    assert_int_equal(old.ndim, 0);
    tqi_schema_merge(&old, &row); /* stays nested */
    assert_int_equal(old.is_nested, 1);
    old = row;
    add = row;
    add.shape[0] = 5;
    tqi_schema_merge(&old, &add);
    assert_int_equal(old.is_nested, 1);
    add = row;
    add.dtype = TQ_DTYPE_F64;
    tqi_schema_merge(&old, &add); /* another dtype: the newest says */
    assert_memory_equal(&old, &add, sizeof old);
    old = text;
    tqi_schema_merge(&old, &text);
    assert_memory_equal(&old, &text, sizeof old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_come_back_row_by_row_in_the_smallest_layout),
        cmocka_unit_test(damaged_descriptors_are_refused_or_true),
        cmocka_unit_test(a_column_without_its_descriptor_is_refused),
        cmocka_unit_test(a_tensor_is_as_long_as_its_shape_says),
        cmocka_unit_test(schemas_say_what_all_rows_share),
        cmocka_unit_test(a_schema_that_no_column_has_is_refused),
        cmocka_unit_test(columns_whose_bytes_overflow_are_refused),
        cmocka_unit_test(heads_of_columns_that_nobody_writes_are_refused),
        cmocka_unit_test(limits_of_a_descriptor_are_named),
        cmocka_unit_test(a_column_without_memory_leaves_the_buffer_as_it_was),
        cmocka_unit_test(schemas_merge_to_what_both_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
