/* SPDX-License-Identifier: Apache-2.0 */
/* What is put is what is got, in every layout, size and order. */
#include "api.h"

/* Puts n rows of `fields` uniform columns of `width` elements as keys k0, k1, ... */
static void put_rows(tq_client_t *client, uint32_t n, uint32_t fields, uint32_t width,
                     uint32_t seed)
{
    api_strs_t keys = api_names("k", n);
    char names[64][8];
    tq_column_t columns[64];
    uint32_t *data[64];

    for (uint32_t f = 0; f < fields; f++) {
        snprintf(names[f], sizeof names[f], "f%02u", f);
        data[f] = api_fill(seed + f, n, width);
        columns[f] = api_column(names[f], data[f], width);
    }
    tq_put_args_t args = {.partition = "p",
                          .rows_cnt = n,
                          .keys = &keys.strs,
                          .columns_cnt = fields,
                          .columns = columns};
    api_ok(tq_put(client, &args, NULL, &err));
    for (uint32_t f = 0; f < fields; f++)
        free(data[f]);
    api_strs_free(&keys);
}

static void check_rows(tq_client_t *client, uint32_t n, uint32_t fields, uint32_t width,
                       uint32_t seed)
{
    api_strs_t keys = api_names("k", n);
    tq_get_args_t args = {.partition = "p", .keys = &keys.strs};
    tq_op_t *op;

    api_ok(tq_get(client, &args, &op, &err));
    const tq_result_t *result = tq_op_result(op);
    assert_int_equal(result->rows_cnt, n);
    assert_int_equal(result->columns_cnt, fields);
    for (uint32_t f = 0; f < fields; f++) {
        assert_int_equal(result->columns[f].layout, TQ_LAYOUT_UNIFORM);
        assert_int_equal(result->columns[f].desc.shape[0], width);
        assert_int_equal((uintptr_t)tq_buffer_data(result->columns[f].buffer) % 64, 0);
        for (uint32_t r = 0; r < n; r++)
            api_check_row(&result->columns[f], r, seed + f, r, width);
    }
    tq_op_free(op);
    api_strs_free(&keys);
}

static void a_small_batch_comes_back_as_it_went_in(void **state)
{
    api_t api;

    (void)state;
    api_open(&api);
    put_rows(api.client, 5, 3, 4, 1);
    check_rows(api.client, 5, 3, 4, 1);
    api_close(&api);
}

static void a_large_batch_comes_back_as_it_went_in(void **state)
{
    api_t api;

    (void)state;
    api_open(&api);
    for (uint32_t round = 0; round < 3; round++) {
        put_rows(api.client, 300, 5, 4096, round);
        check_rows(api.client, 300, 5, 4096, round);
    }
    api_close(&api);
}

static void many_rows_are_spread_over_the_units_and_come_back_in_order(void **state)
{
    api_t api;
    uint32_t n = 10000;
    uint32_t units[3] = {0};

    (void)state;
    api_open(&api);
    put_rows(api.client, n, 2, 16, 3);
    check_rows(api.client, n, 2, 16, 3);
    tq_list_args_t args = {.partition = "p", .want_fields = true};
    tq_op_t *op;
    api_ok(tq_list_submit(api.client, NULL, &args, NULL, &op, &err));
    const tq_result_t *result = tq_op_result(api_wait(op));
    assert_int_equal(result->rows_cnt, n);
    for (uint32_t r = 0; r < n; r++)
        if (result->units[r] < 3)
            units[result->units[r]]++;
    assert_true(units[1] > 0 && units[2] > 0);
    tq_op_free(op);
    api_close(&api);
}

static void strided_repeated_and_ragged_rows_are_packed(void **state)
{
    api_t api;
    uint32_t data[12], one = 77;
    int64_t offsets[] = {0, 2, 2, 5};
    tq_op_t *op;

    (void)state;
    for (uint32_t i = 0; i < 12; i++)
        data[i] = i;
    tq_column_t columns[] = {
        {.field = "every_other",
         .layout = TQ_LAYOUT_UNIFORM,
         .desc = api_desc(1),
         .data = data,
         .row_stride = 8},
        {.field = "backwards",
         .layout = TQ_LAYOUT_UNIFORM,
         .desc = api_desc(1),
         .data = &data[11],
         .row_stride = -4},
        {.field = "same", .layout = TQ_LAYOUT_UNIFORM, .desc = api_desc(1), .data = &one},
        {.field = "ragged",
         .layout = TQ_LAYOUT_RAGGED,
         .desc = api_desc(0),
         .data = data,
         .offsets = offsets,
         .unit_bytes = 4},
    };
    api_open(&api);
    tq_put_args_t put = {.partition = "p", .rows_cnt = 3, .columns_cnt = 4, .columns = columns};
    api_ok(tq_put(api.client, &put, &op, &err));
    tq_row_t rows[3];
    memcpy(rows, tq_op_result(op)->rows, sizeof rows);
    tq_op_free(op);
    tq_get_args_t get = {.partition = "p", .rows = rows, .rows_cnt = 3};
    api_ok(tq_get(api.client, &get, &op, &err));
    const tq_result_t *result = tq_op_result(op);
    /* by name: backwards, every_other, ragged, same */
    assert_int_equal(result->columns_cnt, 4);
    assert_memory_equal(tq_buffer_data(result->columns[0].buffer), ((uint32_t[]){11, 10, 9}), 12);
    assert_memory_equal(tq_buffer_data(result->columns[1].buffer), ((uint32_t[]){0, 2, 4}), 12);
    assert_int_equal(result->columns[2].layout, TQ_LAYOUT_RAGGED);
    assert_int_equal(result->columns[2].offsets[1], 8);
    assert_int_equal(result->columns[2].offsets[2], 8);
    assert_int_equal(result->columns[2].offsets[3], 20);
    assert_memory_equal(tq_buffer_data(result->columns[2].buffer), data, 20);
    assert_memory_equal(tq_buffer_data(result->columns[3].buffer), ((uint32_t[]){77, 77, 77}), 12);
    tq_op_free(op);
    api_close(&api);
}

static void objects_of_every_kind_and_length_come_back(void **state)
{
    api_t api;
    enum { N = 200 };
    tq_cell_t cells[N];
    char *bytes = malloc(1 << 20);
    api_strs_t keys = api_names("k", N);
    tq_column_t column = {.field = "obj", .layout = TQ_LAYOUT_EACH, .cells = cells};
    tq_op_t *op;

    (void)state;
    for (uint32_t i = 0; i < 1 << 20; i++)
        bytes[i] = (char)(i * 2654435761u >> 13);
    for (uint32_t r = 0; r < N; r++)
        cells[r] = (tq_cell_t){
            .data = bytes + r,
            .desc = {.encoding = r % 2 ? TQ_ENC_PICKLE : TQ_ENC_TEXT, .len = (uint64_t)r * 37}};
    api_open(&api);
    tq_put_args_t put = {
        .partition = "p", .rows_cnt = N, .keys = &keys.strs, .columns_cnt = 1, .columns = &column};
    api_ok(tq_put(api.client, &put, NULL, &err));
    tq_get_args_t get = {.partition = "p", .keys = &keys.strs};
    api_ok(tq_get(api.client, &get, &op, &err));
    const tq_column_out_t *out = tq_op_result(op)->columns;
    assert_int_equal(out->layout, TQ_LAYOUT_EACH);
    for (uint32_t r = 0; r < N; r++) {
        assert_int_equal(out->descs[r].len, r * 37);
        assert_int_equal(out->descs[r].encoding, r % 2 ? TQ_ENC_PICKLE : TQ_ENC_TEXT);
        assert_int_equal(out->offsets[r] % 16, 0);
        assert_memory_equal((char *)tq_buffer_data(out->buffer) + out->offsets[r], bytes + r,
                            out->descs[r].len);
    }
    tq_op_free(op);
    api_close(&api);
    api_strs_free(&keys);
    free(bytes);
}

static void rows_come_in_the_order_asked_for_and_as_often(void **state)
{
    api_t api;
    tq_row_t rows[6];
    tq_op_t *op;
    uint32_t order[] = {3, 0, 3, 2, 1, 0};

    (void)state;
    api_open(&api);
    put_rows(api.client, 4, 1, 30000, 9);
    api_strs_t keys = api_names("k", 4);
    tq_resolve_args_t resolve = {.partition = "p", .keys = &keys.strs};
    api_ok(tq_resolve_submit(api.client, NULL, &resolve, NULL, &op, &err));
    const tq_result_t *result = tq_op_result(api_wait(op));
    for (uint32_t i = 0; i < 6; i++)
        rows[i] = result->rows[order[i]];
    tq_op_free(op);
    tq_get_args_t get = {.partition = "p", .rows = rows, .rows_cnt = 6};
    api_ok(tq_get(api.client, &get, &op, &err));
    for (uint32_t i = 0; i < 6; i++)
        api_check_row(tq_op_result(op)->columns, i, 9, order[i], 30000);
    tq_op_free(op);
    api_strs_free(&keys);
    api_close(&api);
}

static void an_overwrite_replaces_and_another_dtype_is_fine(void **state)
{
    api_t api;
    double value = 2.5;
    uint32_t offsets[] = {0, 2};
    tq_strs_t key = {1, offsets, "k0"};
    tq_op_t *op;

    (void)state;
    api_open(&api);
    put_rows(api.client, 1, 1, 4, 1);
    tq_column_t column = {.field = "f00",
                          .layout = TQ_LAYOUT_UNIFORM,
                          .desc = {.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_F64, .len = 8},
                          .data = &value};
    tq_put_args_t put = {
        .partition = "p", .rows_cnt = 1, .keys = &key, .columns_cnt = 1, .columns = &column};
    api_ok(tq_put(api.client, &put, NULL, &err));
    tq_get_args_t get = {.partition = "p", .keys = &key};
    api_ok(tq_get(api.client, &get, &op, &err));
    assert_int_equal(tq_op_result(op)->columns[0].desc.dtype, TQ_DTYPE_F64);
    assert_memory_equal(tq_buffer_data(tq_op_result(op)->columns[0].buffer), &value, 8);
    tq_op_free(op);
    api_close(&api);
}

static void what_is_missing_has_its_own_error(void **state)
{
    api_t api;
    uint32_t offsets[] = {0, 2}, name_offsets[] = {0, 4};
    tq_strs_t key = {1, offsets, "zz"}, field = {1, name_offsets, "none"};
    tq_row_t row = 123456;
    tq_error_t why;
    tq_op_t *op;

    (void)state;
    api_open(&api);
    put_rows(api.client, 1, 1, 4, 1);
    tq_get_args_t get = {.partition = "nowhere", .keys = &key};
    assert_int_equal(tq_get(api.client, &get, &op, &why), TQ_E_NO_PARTITION);
    assert_non_null(strstr(why.text, "nowhere"));
    get.partition = "p";
    assert_int_equal(tq_get(api.client, &get, &op, &why), TQ_E_NO_KEY);
    assert_non_null(strstr(why.text, "'zz'"));
    key.bytes = "k0";
    get.fields = &field;
    assert_int_equal(tq_get(api.client, &get, &op, &why), TQ_E_NO_FIELD);
    assert_non_null(strstr(why.text, "'none'"));
    get = (tq_get_args_t){.partition = "p", .rows = &row, .rows_cnt = 1};
    assert_int_equal(tq_get(api.client, &get, &op, &why), TQ_E_NOT_FOUND);
    api_close(&api);
}

static void cleared_rows_are_gone_and_their_memory_is_free_again(void **state)
{
    api_t api;
    tq_op_t *op;
    tq_clear_args_t clear = {.partition = "p", .is_all = true};

    (void)state;
    api_open_conf(&api, (tq_store_conf_t){.is_private = true, .capacity_bytes = 64u << 20});
    for (uint32_t round = 0; round < 6; round++) {
        put_rows(api.client, 64, 2, 50000, round); /* most of one unit */
        check_rows(api.client, 64, 2, 50000, round);
        api_ok(tq_clear_submit(api.client, NULL, &clear, NULL, &op, &err));
        assert_int_equal(tq_op_result(api_wait(op))->count, 64);
        tq_op_free(op);
    }
    api_close(&api);
}

static void a_full_store_says_so_and_leaves_nothing_behind(void **state)
{
    api_t api;
    uint32_t *data = api_fill(1, 64, 262144);
    tq_column_t column = api_column("x", data, 262144);
    tq_put_args_t put = {.partition = "q", .rows_cnt = 40, .columns_cnt = 1, .columns = &column};
    tq_error_t why;
    tq_op_t *op;

    (void)state;
    api_open_conf(
        &api, (tq_store_conf_t){.is_private = true, .capacity_bytes = 64u << 20, .units_cnt = 1});
    tq_client_t *hasty;
    tq_client_conf_t conf = {.address = tq_store_address(api.store), .space_timeout_ms = 200};
    api_ok(tq_client_open(&conf, &hasty, &err));
    api_ok(tq_put(hasty, &put, NULL, &err)); /* 40 MiB of 64 */
    assert_int_equal(tq_put(hasty, &put, NULL, &why), TQ_E_FULL);
    put.rows_cnt = 64;
    assert_int_equal(tq_put(hasty, &put, NULL, &why), TQ_E_TOO_LARGE);
    tq_list_args_t list = {.partition = "q"};
    api_ok(tq_list_submit(hasty, NULL, &list, NULL, &op, &err));
    assert_int_equal(tq_op_result(api_wait(op))->rows_cnt, 40);
    tq_op_free(op);
    tq_client_close(hasty);
    api_close(&api);
    free(data);
}

static void buffers_outlive_op_client_and_store(void **state)
{
    api_t api;
    tq_op_t *op;
    uint32_t offsets[] = {0, 2};
    tq_strs_t key = {1, offsets, "k1"};
    tq_get_args_t get = {.partition = "p", .keys = &key};

    (void)state;
    api_open(&api);
    put_rows(api.client, 2, 1, 50000, 4);
    api_ok(tq_get(api.client, &get, &op, &err));
    tq_buffer_t *buffer = tq_op_result(op)->columns[0].buffer;
    tq_buffer_ref(buffer);
    tq_op_free(op);
    api_close(&api);
    assert_int_equal(tq_buffer_size(buffer), 200000);
    assert_int_equal(((uint32_t *)tq_buffer_data(buffer))[49999], api_value(4, 1, 49999));
    tq_buffer_unref(buffer);
}

static void tags_merge_and_status_tells(void **state)
{
    api_t api;
    uint32_t offsets[] = {0, 4};
    tq_strs_t tags = {1, offsets,
                      "\x81\xa1"
                      "a\x01"};
    tq_op_t *op;
    uint32_t key_offsets[] = {0, 2}, field_offsets[] = {0, 3};
    tq_strs_t key = {1, key_offsets, "k0"}, field = {1, field_offsets, "f00"};

    (void)state;
    api_open(&api);
    put_rows(api.client, 1, 1, 4, 1);
    tq_put_args_t put = {
        .partition = "p", .rows_cnt = 1, .keys = &key, .tags = &tags, .flags = TQ_PUT_WANT_META};
    api_ok(tq_put(api.client, &put, &op, &err));
    const tq_result_t *result = tq_op_result(op);
    assert_int_equal(result->tags.cnt, 1);
    assert_int_equal(result->fields.cnt, 1);
    assert_memory_equal(result->fields.bytes, "f00", 3);
    tq_op_free(op);
    tq_status_args_t status = {.partition = "p", .kind = TQ_STATUS_PRODUCTION, .fields = &field};
    api_ok(tq_status_submit(api.client, NULL, &status, NULL, &op, &err));
    result = tq_op_result(api_wait(op));
    assert_true(result->is_known);
    assert_int_equal(result->rows_cnt, 1);
    assert_int_equal(result->status[0], 1);
    tq_op_free(op);
    api_ok(tq_stat_submit(api.client, NULL, 0, NULL, &op, &err));
    assert_non_null(strstr(tq_op_result(api_wait(op))->json, "\"controller\""));
    tq_op_free(op);
    api_close(&api);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_batch_comes_back_as_it_went_in),
        cmocka_unit_test(a_large_batch_comes_back_as_it_went_in),
        cmocka_unit_test(many_rows_are_spread_over_the_units_and_come_back_in_order),
        cmocka_unit_test(strided_repeated_and_ragged_rows_are_packed),
        cmocka_unit_test(objects_of_every_kind_and_length_come_back),
        cmocka_unit_test(rows_come_in_the_order_asked_for_and_as_often),
        cmocka_unit_test(an_overwrite_replaces_and_another_dtype_is_fine),
        cmocka_unit_test(what_is_missing_has_its_own_error),
        cmocka_unit_test(cleared_rows_are_gone_and_their_memory_is_free_again),
        cmocka_unit_test(a_full_store_says_so_and_leaves_nothing_behind),
        cmocka_unit_test(buffers_outlive_op_client_and_store),
        cmocka_unit_test(tags_merge_and_status_tells),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
