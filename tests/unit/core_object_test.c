/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cells.h"
#include "core/object.h"

#include "unit.h"

#include <string.h>

#define CAPACITY (1u << 20)
#define FIELDS_MAX 5u
#define ROWS_MAX 64u /* of one request */
#define ROW_SPACE 3000u
#define PUTS_MAX 12u
#define VIEWS_MAX 6u

static const char *const field_names[FIELDS_MAX] = {"ids", "logp", "reward", "text", "x"};

/* ---- a store of objects over plain memory ----------------------------------------------------- */

typedef struct fixture {
    unit_env_t env;
    void *bases[1024];
    tqi_objects_t *objs;
} fixture_t;

static tq_status_t arena_open(void *ctx, uint32_t id, uint64_t bytes, void **base, tqi_err_t *err)
{
    fixture_t *f = ctx;
    (void)err;
    assert_in_range(id, 1, 1023);
    *base = f->bases[id] = malloc(bytes);
    return TQ_OK;
}

static void arena_punch(void *ctx, uint32_t id, uint64_t offset, uint64_t len)
{
    memset((char *)((fixture_t *)ctx)->bases[id] + offset, 0, len);
}

static void arena_close(void *ctx, uint32_t id)
{
    free(((fixture_t *)ctx)->bases[id]);
}

static void setup_with(fixture_t *f, uint64_t capacity, uint32_t reserve_percent)
{
    memset(f, 0, sizeof *f);
    unit_env_init(&f->env);
    tqi_segment_ops_t ops = {f, arena_open, arena_punch, arena_close};
    tqi_objects_conf_t conf = {.capacity_bytes = capacity,
                               .column_reserve_percent = reserve_percent,
                               .segment_bytes = 128u << 10,
                               .segment_id_first = 1,
                               .idle_bytes_max = 64u << 10};
    f->objs = tqi_objects_new(&f->env.env, &conf, &ops);
    assert_non_null(f->objs);
}

static void setup(fixture_t *f)
{
    setup_with(f, CAPACITY, 10);
}

static void teardown(fixture_t *f)
{
    tqi_objects_free(f->objs);
    assert_int_equal(f->env.bytes, 0);
}

static void check(fixture_t *f)
{
    tqi_err_t err = {0};

    if (tqi_objects_check(f->objs, &err) != TQ_OK)
        fail_msg("%s (seed %llu)", err.text, (unsigned long long)unit_seed);
}

static tqi_objects_stat_t stat_of(const fixture_t *f)
{
    tqi_objects_stat_t stat;

    tqi_objects_stat(f->objs, &stat);
    return stat;
}

/* ---- requests --------------------------------------------------------------------------------- */

/* A put of some rows by some fields, whose values are made of its put_id. */
typedef struct request {
    uint64_t put_id;
    uint32_t rows_cnt;
    uint64_t rows[ROWS_MAX];
    uint32_t fields_cnt;
    uint32_t fields[FIELDS_MAX];
    uint32_t lens[FIELDS_MAX][ROWS_MAX]; /* bytes of each value */
    bool is_tensor[FIELDS_MAX];
    uint8_t produced[ROWS_MAX * FIELDS_MAX / 8 + 1];
    tqi_batch_t *batch;
} request_t;

typedef struct desc_ctx {
    const request_t *req;
    uint32_t field;
} desc_ctx_t;

static void desc_at(void *ctx, uint32_t row, tq_desc_t *desc)
{
    const desc_ctx_t *c = ctx;
    uint32_t len = c->req->lens[c->field][row];

    memset(desc, 0, sizeof *desc);
    desc->len = len;
    desc->encoding = c->req->is_tensor[c->field] ? TQ_ENC_TENSOR : TQ_ENC_BYTES;
    if (c->req->is_tensor[c->field]) {
        desc->dtype = TQ_DTYPE_U8;
        desc->ndim = 1;
        desc->shape[0] = len;
    }
}

/* Which byte value (put, row, field) is filled with. */
static uint8_t fill_of(uint64_t put_id, uint64_t row, uint32_t field)
{
    return (uint8_t)(put_id * 31 + row * 7 + field * 3 + 1);
}

static tq_status_t prepare(fixture_t *f, request_t *req, bool is_column, tqi_blame_t *blame,
                           tqi_err_t *err)
{
    tqi_strs_builder_t names, columns;
    tqi_blame_t ignored;
    tq_status_t rc;

    tqi_strs_builder_init(&names, &f->env.env);
    tqi_strs_builder_init(&columns, &f->env.env);
    for (uint32_t i = 0; i < req->fields_cnt; i++) {
        desc_ctx_t ctx = {req, i};
        tqi_buf_t buf;

        tqi_buf_init(&buf, &f->env.env);
        assert_int_equal(tqi_coldesc_encode(&buf, req->rows_cnt, desc_at, &ctx, NULL), TQ_OK);
        assert_int_equal(tqi_strs_builder_add(&columns, buf.data, buf.len), TQ_OK);
        assert_int_equal(tqi_strs_builder_add(&names, field_names[req->fields[i]],
                                              strlen(field_names[req->fields[i]])),
                         TQ_OK);
        tqi_buf_fini(&buf);
    }
    tqi_prepare_t args = {
        .session = 1,
        .put_id = req->put_id,
        .rows = tqi_u64s(req->rows, req->rows_cnt),
        .fields = tqi_strs_builder_view(&names),
        .columns = tqi_strs_builder_view(&columns),
        .produced = {req->produced, sizeof req->produced},
        .is_column = is_column,
    };
    req->batch = NULL;
    rc = tqi_objects_prepare(f->objs, &args, &req->batch, blame ? blame : &ignored, err);
    tqi_strs_builder_fini(&names);
    tqi_strs_builder_fini(&columns);
    return rc;
}

static void write_frames(request_t *req)
{
    for (uint32_t i = 0; i < req->fields_cnt; i++) {
        const tqi_run_t *run = req->batch->runs[i];

        for (uint32_t r = 0; r < req->rows_cnt; r++)
            if (req->lens[i][r] > 0)
                memset(tqi_run_data(run, r), fill_of(req->put_id, req->rows[r], req->fields[i]),
                       req->lens[i][r]);
    }
}

static tq_status_t commit(fixture_t *f, request_t *req)
{
    tqi_blame_t blame;

    write_frames(req);
    return tqi_objects_commit(f->objs, req->batch, &blame, NULL);
}

/* rows rows from `first`, one field, len bytes each. */
static request_t simple(uint64_t put_id, uint64_t first, uint32_t rows, uint32_t field,
                        uint32_t len)
{
    request_t req = {.put_id = put_id, .rows_cnt = rows, .fields_cnt = 1, .fields = {field}};

    for (uint32_t r = 0; r < rows; r++) {
        req.rows[r] = first + r;
        req.lens[0][r] = len;
    }
    return req;
}

static void put_simple(fixture_t *f, uint64_t put_id, uint64_t first, uint32_t rows, uint32_t field,
                       uint32_t len)
{
    request_t req = simple(put_id, first, rows, field, len);

    assert_int_equal(prepare(f, &req, false, NULL, NULL), TQ_OK);
    assert_int_equal(commit(f, &req), TQ_OK);
    tqi_objects_confirm(f->objs, put_id);
}

static tq_status_t read_one(fixture_t *f, uint64_t row, uint32_t field, bool mark, tqi_view_t *view,
                            tqi_err_t *err)
{
    uint32_t offsets[2] = {0, (uint32_t)strlen(field_names[field])};
    tqi_strs_t names = {offsets, field_names[field], 1, offsets[1]};
    uint8_t bit = mark;
    tqi_blame_t blame;

    return tqi_objects_read(f->objs, tqi_u64s(&row, 1), names, (tqi_bytes_t){&bit, 1}, view, &blame,
                            err);
}

/* The byte that a cell is filled with, or -1 when it can't be read. */
static int value_of(fixture_t *f, uint64_t row, uint32_t field)
{
    tqi_view_t view;
    uint8_t bytes[4096];
    int value = -1;

    tqi_view_init(&view, &f->env.env);
    if (read_one(f, row, field, false, &view, NULL) == TQ_OK) {
        assert_in_range(view.bytes, 1, sizeof bytes);
        tqi_view_copy(&view, bytes);
        value = bytes[0];
    }
    tqi_view_fini(&view);
    return value;
}

static void unlink_rows(fixture_t *f, uint64_t lo, uint64_t hi)
{
    while (lo < hi)
        assert_int_equal(tqi_objects_unlink(f->objs, &lo, hi, 1), TQ_OK);
}

/* ---- what happens to cells -------------------------------------------------------------------- */

static void a_staged_object_is_read_only_once_published(void **state)
{
    fixture_t f;
    tqi_view_t view;
    (void)state;
    setup(&f);
    request_t req = simple(7, 100, 4, 0, 300);
    assert_int_equal(prepare(&f, &req, false, NULL, NULL), TQ_OK);
    assert_int_equal(value_of(&f, 100, 0), -1);
    assert_int_equal(stat_of(&f).claimed_cnt, 4);
    assert_int_equal(commit(&f, &req), TQ_OK);
    assert_int_equal(value_of(&f, 100, 0), -1);
    assert_int_equal(stat_of(&f).staged_cnt, 4);
    /* The controller's word in a GET publishes the cell that it is about. */
    tqi_view_init(&view, &f.env.env);
    assert_int_equal(read_one(&f, 101, 0, true, &view, NULL), TQ_OK);
    tqi_view_fini(&view);
    assert_int_equal(value_of(&f, 101, 0), fill_of(7, 101, 0));
    assert_int_equal(value_of(&f, 100, 0), -1);
    check(&f);
    tqi_objects_confirm(f.objs, 7);
    assert_int_equal(value_of(&f, 100, 0), fill_of(7, 100, 0));
    assert_int_equal(stat_of(&f).puts_cnt, 0);
    tqi_objects_confirm(f.objs, 7); /* unknown now */
    check(&f);
    teardown(&f);
}

static void overwriting_a_published_cell_takes_effect_at_commit(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f);
    put_simple(&f, 1, 10, 8, 0, 500);
    uint64_t used = stat_of(&f).used_bytes;
    request_t req = simple(2, 14, 8, 0, 500); /* four cells that are there, four new ones */
    assert_int_equal(prepare(&f, &req, false, NULL, NULL), TQ_OK);
    assert_int_equal(value_of(&f, 14, 0), fill_of(1, 14, 0));
    assert_int_equal(commit(&f, &req), TQ_OK);
    assert_int_equal(value_of(&f, 13, 0), fill_of(1, 13, 0));
    assert_int_equal(value_of(&f, 14, 0), fill_of(2, 14, 0));
    assert_int_equal(value_of(&f, 18, 0), -1);
    check(&f);
    /* The put fails elsewhere: what it replaced stays, what it staged goes. */
    tqi_objects_abort(f.objs, 2, 1);
    assert_int_equal(value_of(&f, 14, 0), fill_of(2, 14, 0));
    assert_int_equal(value_of(&f, 18, 0), -1);
    assert_int_equal(stat_of(&f).published_cnt, 8);
    assert_true(stat_of(&f).used_bytes <= used + 2 * TQI_GRANULE_BYTES);
    check(&f);
    teardown(&f);
}

static void a_cell_that_another_put_is_writing_is_busy(void **state)
{
    fixture_t f;
    tqi_blame_t blame;
    tqi_err_t err;
    (void)state;
    setup(&f);
    request_t a = simple(1, 0, 4, 0, 100);
    request_t b = simple(2, 3, 4, 0, 100);
    request_t again = simple(1, 3, 1, 0, 100);
    assert_int_equal(prepare(&f, &a, false, NULL, NULL), TQ_OK);
    assert_int_equal(prepare(&f, &b, false, &blame, &err), TQ_E_BUSY);
    assert_int_equal(blame.rows_cnt, 1);
    assert_int_equal(blame.rows[0], 3);
    assert_string_equal(err.text, "row 3, field 'ids' is being written by another put");
    assert_int_equal(prepare(&f, &again, false, NULL, NULL), TQ_E_DUPLICATE);
    assert_int_equal(commit(&f, &a), TQ_OK);
    assert_int_equal(prepare(&f, &b, false, NULL, NULL), TQ_E_BUSY);
    /* The mark for the cell settles it. */
    b.produced[0] = 1;
    assert_int_equal(prepare(&f, &b, false, NULL, NULL), TQ_OK);
    assert_int_equal(value_of(&f, 3, 0), fill_of(1, 3, 0));
    check(&f);
    tqi_objects_cancel(f.objs, b.batch);
    assert_int_equal(stat_of(&f).claimed_cnt, 0);
    check(&f);
    tqi_objects_abort(f.objs, 1, 1);
    assert_int_equal(stat_of(&f).published_cnt, 1);
    teardown(&f);
}

static void a_put_that_begins_again_replaces_what_it_staged(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f);
    request_t first = simple(1, 0, 4, 0, 100);
    request_t second = simple(1, 2, 4, 0, 1000);
    assert_int_equal(prepare(&f, &first, false, NULL, NULL), TQ_OK);
    assert_int_equal(commit(&f, &first), TQ_OK);
    assert_int_equal(prepare(&f, &second, false, NULL, NULL), TQ_OK);
    assert_int_equal(stat_of(&f).staged_cnt, 2);
    assert_int_equal(stat_of(&f).claimed_cnt, 4);
    check(&f);
    assert_int_equal(commit(&f, &second), TQ_OK);
    assert_int_equal(stat_of(&f).staged_cnt, 6);
    check(&f);
    tqi_objects_confirm(f.objs, 1);
    tqi_view_t view;
    tqi_view_init(&view, &f.env.env);
    assert_int_equal(read_one(&f, 1, 0, false, &view, NULL), TQ_OK);
    assert_int_equal(view.bytes, 100);
    assert_int_equal(read_one(&f, 2, 0, false, &view, NULL), TQ_OK);
    assert_int_equal(view.bytes, 1000);
    tqi_view_fini(&view);
    check(&f);
    /* Given up before its COMMIT, the second attempt has taken the first along. */
    request_t third = simple(2, 10, 4, 0, 100);
    assert_int_equal(prepare(&f, &third, false, NULL, NULL), TQ_OK);
    assert_int_equal(commit(&f, &third), TQ_OK);
    assert_int_equal(prepare(&f, &third, false, NULL, NULL), TQ_OK);
    tqi_objects_cancel(f.objs, third.batch);
    assert_int_equal(stat_of(&f).staged_cnt, 0);
    assert_int_equal(stat_of(&f).puts_cnt, 0);
    check(&f);
    teardown(&f);
}

static void clearing_one_row_gives_its_bytes_back(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f);
    put_simple(&f, 1, 0, 32, 0, 4096);
    assert_int_equal(stat_of(&f).used_bytes, 32 * 4096);
    unlink_rows(&f, 5, 6);
    assert_int_equal(stat_of(&f).used_bytes, 31 * 4096);
    assert_int_equal(value_of(&f, 5, 0), -1);
    assert_int_equal(value_of(&f, 6, 0), fill_of(1, 6, 0));
    check(&f);
    unlink_rows(&f, 0, 64);
    assert_int_equal(stat_of(&f).used_bytes, 0);
    assert_int_equal(stat_of(&f).runs_cnt, 0);
    assert_int_equal(stat_of(&f).fields_cnt, 0);
    check(&f);
    teardown(&f);
}

static void rows_that_share_a_granule_give_it_back_together(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f);
    put_simple(&f, 1, 0, 64, 0, 100); /* 6,400 bytes, 25 granules */
    assert_int_equal(stat_of(&f).used_bytes, 25 * 256);
    for (uint64_t r = 0; r < 64; r += 2)
        unlink_rows(&f, r, r + 1);
    assert_int_equal(stat_of(&f).used_bytes, 25 * 256);
    check(&f);
    for (uint64_t r = 1; r < 64; r += 2) {
        unlink_rows(&f, r, r + 1);
        check(&f);
    }
    assert_int_equal(stat_of(&f).used_bytes, 0);
    teardown(&f);
}

static void rows_without_bytes_keep_no_granule(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f);
    request_t req = simple(1, 0, 3, 0, 100);
    req.lens[0][1] = 0;
    assert_int_equal(prepare(&f, &req, false, NULL, NULL), TQ_OK);
    assert_int_equal(commit(&f, &req), TQ_OK);
    tqi_objects_confirm(f.objs, 1);
    unlink_rows(&f, 0, 1);
    unlink_rows(&f, 2, 3);
    assert_int_equal(stat_of(&f).used_bytes, 0);
    assert_int_equal(stat_of(&f).published_cnt, 1);
    check(&f);
    unlink_rows(&f, 1, 2);
    assert_int_equal(stat_of(&f).runs_cnt, 0);
    put_simple(&f, 2, 1500, 5, 1, 0); /* no bytes at all */
    check(&f);
    teardown(&f);
}

static void what_a_reader_pinned_outlives_clear_and_overwrite(void **state)
{
    fixture_t f;
    tqi_view_t view;
    uint8_t bytes[1000];
    (void)state;
    setup(&f);
    put_simple(&f, 1, 0, 4, 0, 1000);
    uint64_t used = stat_of(&f).used_bytes;
    tqi_view_init(&view, &f.env.env);
    assert_int_equal(read_one(&f, 2, 0, false, &view, NULL), TQ_OK);
    tqi_objects_pin(f.objs, &view);
    put_simple(&f, 2, 2, 1, 0, 1000);
    unlink_rows(&f, 0, 4);
    assert_int_equal(stat_of(&f).zombie_bytes, 1000);
    assert_in_range(stat_of(&f).used_bytes, 1, used);
    check(&f);
    tqi_view_copy(&view, bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], fill_of(1, 2, 0));
    tqi_objects_unpin(f.objs, &view);
    assert_int_equal(stat_of(&f).zombie_bytes, 0);
    assert_int_equal(stat_of(&f).used_bytes, 0);
    check(&f);
    tqi_view_fini(&view);
    teardown(&f);
}

static void what_two_readers_pinned_goes_with_the_second(void **state)
{
    fixture_t f;
    tqi_view_t views[2];
    uint8_t bytes[1000];
    (void)state;
    setup(&f);
    put_simple(&f, 1, 0, 4, 0, 1000);
    for (int i = 0; i < 2; i++) {
        tqi_view_init(&views[i], &f.env.env);
        assert_int_equal(read_one(&f, 2, 0, false, &views[i], NULL), TQ_OK);
        tqi_objects_pin(f.objs, &views[i]);
    }
    unlink_rows(&f, 0, 4);
    tqi_objects_unpin(f.objs, &views[0]);
    assert_int_equal(stat_of(&f).zombie_bytes, 1000);
    assert_int_equal(stat_of(&f).pinned_cnt, 1);
    check(&f);
    put_simple(&f, 2, 4, 4, 0, 1000); /* in memory that is free */
    tqi_view_copy(&views[1], bytes);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], fill_of(1, 2, 0));
    tqi_objects_unpin(f.objs, &views[1]);
    assert_int_equal(stat_of(&f).zombie_bytes, 0);
    check(&f);
    tqi_view_fini(&views[0]);
    tqi_view_fini(&views[1]);
    teardown(&f);
}

static void a_dead_row_takes_nothing_any_more(void **state)
{
    fixture_t f;
    tqi_blame_t blame;
    tqi_view_t view;
    tqi_err_t err;
    (void)state;
    setup(&f);
    request_t open = simple(1, 1020, 8, 0, 100);
    assert_int_equal(prepare(&f, &open, false, NULL, NULL), TQ_OK);
    unlink_rows(&f, 1022, 1025);
    check(&f);
    /* The put fails whole, at COMMIT as at PREPARE. */
    assert_int_equal(tqi_objects_commit(f.objs, open.batch, &blame, &err), TQ_E_ROW_GONE);
    assert_int_equal(blame.rows_cnt, 3);
    assert_int_equal(blame.rows[0], 1022);
    tqi_objects_cancel(f.objs, open.batch);
    check(&f);
    assert_int_equal(stat_of(&f).used_bytes, 0);
    request_t late = simple(2, 1020, 8, 0, 100);
    assert_int_equal(prepare(&f, &late, false, &blame, &err), TQ_E_ROW_GONE);
    assert_string_equal(err.text, "3 of 8 rows have been cleared, the first of them 1022");
    tqi_view_init(&view, &f.env.env);
    assert_int_equal(read_one(&f, 1022, 0, true, &view, &err), TQ_E_NOT_FOUND);
    assert_int_equal(read_one(&f, 1021, 0, true, &view, &err), TQ_E_NOT_PRODUCED);
    tqi_view_fini(&view);
    /* Whole blocks, also far more than exist. */
    put_simple(&f, 3, 1025, 3, 0, 100);
    unlink_rows(&f, 0, UINT64_C(1) << 62);
    assert_int_equal(stat_of(&f).used_bytes, 0);
    assert_int_equal(stat_of(&f).blocks_cnt, 0);
    late = simple(4, 50000, 1, 0, 100);
    assert_int_equal(prepare(&f, &late, false, &blame, &err), TQ_E_ROW_GONE);
    check(&f);
    teardown(&f);
}

static void a_doomed_put_keeps_its_memory_until_nobody_writes_it(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f);
    request_t a = simple(1, 0, 4, 0, 1000);
    assert_int_equal(prepare(&f, &a, false, NULL, NULL), TQ_OK);
    uint64_t used = stat_of(&f).used_bytes;
    tqi_objects_doom(f.objs, a.batch);
    assert_int_equal(stat_of(&f).claimed_cnt, 0);
    assert_int_equal(stat_of(&f).zombie_bytes, used);
    assert_int_equal(stat_of(&f).used_bytes, used);
    check(&f);
    put_simple(&f, 2, 0, 4, 0, 1000); /* the cells are free at once */
    write_frames(&a);                 /* a late write touches nothing of that */
    assert_int_equal(value_of(&f, 0, 0), fill_of(2, 0, 0));
    tqi_objects_cancel(f.objs, a.batch);
    assert_int_equal(stat_of(&f).zombie_bytes, 0);
    assert_int_equal(stat_of(&f).used_bytes, used);
    check(&f);
    teardown(&f);
}

static void the_reserve_is_for_rows_that_have_data(void **state)
{
    fixture_t f;
    tqi_err_t err;
    (void)state;
    setup_with(&f, 100 * 1000, 20);
    request_t large = simple(1, 0, 1, 0, 90000);
    assert_int_equal(prepare(&f, &large, false, NULL, &err), TQ_E_TOO_LARGE);
    assert_non_null(strstr(err.text, "90112 bytes for 1 rows, but the unit can hold 80000"));
    large.lens[0][0] = 100001;
    assert_int_equal(prepare(&f, &large, true, NULL, &err), TQ_E_TOO_LARGE);
    large.lens[0][0] = 70000;
    assert_int_equal(prepare(&f, &large, false, NULL, &err), TQ_OK);
    request_t more = simple(2, 1, 1, 0, 20000);
    assert_int_equal(prepare(&f, &more, false, NULL, &err), TQ_E_FULL);
    assert_non_null(strstr(err.text, "20224 bytes wanted, 9856 of 100000 free"));
    assert_int_equal(prepare(&f, &more, true, NULL, &err), TQ_OK);
    request_t last = simple(3, 2, 1, 0, 20000);
    assert_int_equal(prepare(&f, &last, true, NULL, &err), TQ_E_FULL);
    check(&f);
    tqi_objects_cancel(f.objs, large.batch);
    tqi_objects_cancel(f.objs, more.batch);
    teardown(&f);
}

static void a_bad_request_changes_nothing(void **state)
{
    fixture_t f;
    tqi_err_t err;
    tqi_blame_t blame;
    (void)state;
    setup(&f);
    request_t twice = simple(1, 0, 2, 0, 100);
    twice.rows[1] = 0;
    assert_int_equal(prepare(&f, &twice, false, NULL, &err), TQ_E_DUPLICATE);
    assert_string_equal(err.text, "row 0, field 'ids' is named twice");
    request_t field_twice = simple(1, 0, 1, 0, 100);
    field_twice.fields_cnt = 2;
    assert_int_equal(prepare(&f, &field_twice, false, NULL, &err), TQ_E_DUPLICATE);
    request_t no_row = simple(1, UINT64_MAX, 1, 0, 100);
    assert_int_equal(prepare(&f, &no_row, false, NULL, &err), TQ_E_INVALID);
    uint64_t row = 1;
    uint32_t offsets[2] = {0, 3};
    tqi_prepare_t bad = {.session = 1,
                         .put_id = 1,
                         .rows = tqi_u64s(&row, 1),
                         .fields = {offsets, "ids", 1, 3},
                         .columns = {offsets, "???", 1, 3}};
    assert_int_equal(tqi_objects_prepare(f.objs, &bad, &twice.batch, &blame, &err), TQ_E_MALFORMED);
    assert_non_null(strstr(err.text, "field 'ids'"));
    assert_int_equal(stat_of(&f).used_bytes, 0);
    assert_int_equal(stat_of(&f).fields_cnt, 0);
    assert_int_equal(stat_of(&f).blocks_cnt, 0);
    check(&f);
    teardown(&f);
}

static void a_put_without_memory_changes_nothing(void **state)
{
    fixture_t f;
    request_t req = simple(1, 1000, 60, 0, 100);
    tqi_strs_builder_t columns;
    uint32_t offsets[2] = {0, 3};
    tqi_blame_t blame;
    tqi_buf_t buf;
    uint64_t n = 0;
    tq_status_t rc = TQ_E_NO_MEMORY;
    (void)state;
    setup(&f);
    desc_ctx_t ctx = {&req, 0};
    tqi_buf_init(&buf, &f.env.env);
    tqi_strs_builder_init(&columns, &f.env.env);
    assert_int_equal(tqi_coldesc_encode(&buf, req.rows_cnt, desc_at, &ctx, NULL), TQ_OK);
    assert_int_equal(tqi_strs_builder_add(&columns, buf.data, buf.len), TQ_OK);
    tqi_prepare_t args = {.session = 1,
                          .put_id = 1,
                          .rows = tqi_u64s(req.rows, req.rows_cnt),
                          .fields = {offsets, "ids", 1, 3},
                          .columns = tqi_strs_builder_view(&columns)};
    for (; rc == TQ_E_NO_MEMORY; n++) {
        f.env.fail_after = n;
        rc = tqi_objects_prepare(f.objs, &args, &req.batch, &blame, NULL);
        f.env.fail_after = UINT64_MAX;
        check(&f);
        if (rc == TQ_E_NO_MEMORY) {
            assert_int_equal(stat_of(&f).used_bytes, 0);
            assert_int_equal(stat_of(&f).puts_cnt + stat_of(&f).blocks_cnt, 0);
        }
    }
    assert_int_equal(rc, TQ_OK);
    assert_in_range(n, 5, 40);
    tqi_buf_fini(&buf);
    tqi_strs_builder_fini(&columns);
    tqi_objects_cancel(f.objs, req.batch);
    teardown(&f);
}

/* ---- against a model -------------------------------------------------------------------------- */

typedef struct model_cell {
    uint64_t put_id; /* whose value is published; 0: none */
    uint32_t len;
    uint64_t pending_put; /* who claimed or staged it */
    uint32_t pending_len;
    bool is_staged;
} model_cell_t;

typedef struct model_view {
    bool is_open;
    tqi_view_t view;
    uint32_t rows_cnt;
    uint32_t field;
    uint64_t rows[ROWS_MAX];
    uint64_t puts[ROWS_MAX];
    uint32_t lens[ROWS_MAX];
} model_view_t;

typedef struct model {
    fixture_t f;
    tqi_rng_t rng;
    uint64_t put_next;
    model_cell_t cells[ROW_SPACE][FIELDS_MAX];
    bool dead[ROW_SPACE];
    request_t puts[PUTS_MAX]; /* batch != NULL: open. put_id != 0 and no batch: committed */
    model_view_t views[VIEWS_MAX];
} model_t;

static uint64_t below(model_t *m, uint64_t n)
{
    return tqi_rng_below(&m->rng, n);
}

static void make_request(model_t *m, request_t *req)
{
    uint64_t first = below(m, ROW_SPACE - ROWS_MAX);
    bool is_scattered = tqi_rng_chance(&m->rng, 0.3);
    uint32_t max_len = tqi_rng_chance(&m->rng, 0.1)   ? 4000
                       : tqi_rng_chance(&m->rng, 0.5) ? 600
                                                      : 40;

    memset(req, 0, sizeof *req);
    req->put_id = m->put_next++;
    req->fields_cnt = 1 + (uint32_t)below(m, FIELDS_MAX);
    for (uint32_t i = 0; i < req->fields_cnt; i++)
        req->fields[i] = (uint32_t)((req->put_id + i) % FIELDS_MAX);
    for (uint32_t r = 0; r < ROWS_MAX; r++)
        if (!is_scattered || tqi_rng_chance(&m->rng, 0.4))
            req->rows[req->rows_cnt++] = first + r;
    if (req->rows_cnt == 0)
        req->rows[req->rows_cnt++] = first;
    if (!is_scattered)
        req->rows_cnt = 1 + (uint32_t)below(m, ROWS_MAX);
    for (uint32_t i = 0; i < req->fields_cnt; i++) {
        bool is_uniform = tqi_rng_chance(&m->rng, 0.5);
        uint32_t len = (uint32_t)below(m, max_len);

        req->is_tensor[i] = tqi_rng_chance(&m->rng, 0.6);
        for (uint32_t r = 0; r < req->rows_cnt; r++)
            req->lens[i][r] = is_uniform                     ? len
                              : tqi_rng_chance(&m->rng, 0.2) ? 0
                                                             : (uint32_t)below(m, max_len);
    }
}

static void step_prepare(model_t *m, request_t *req)
{
    bool is_gone = false;
    bool is_busy = false;
    uint64_t cost = 0;

    make_request(m, req);
    for (uint32_t i = 0; i < req->fields_cnt; i++)
        for (uint32_t r = 0; r < req->rows_cnt; r++)
            cost += req->lens[i][r];
    for (uint32_t r = 0; r < req->rows_cnt; r++)
        is_gone |= m->dead[req->rows[r]];
    for (uint32_t r = 0; r < req->rows_cnt; r++)
        for (uint32_t i = 0; i < req->fields_cnt; i++)
            is_busy |= m->cells[req->rows[r]][req->fields[i]].pending_put != 0;
    tq_status_t rc = prepare(&m->f, req, tqi_rng_chance(&m->rng, 0.5), NULL, NULL);

    if (rc == TQ_E_TOO_LARGE)
        unit_check(cost > 200000);
    else if (is_gone)
        unit_check(rc == TQ_E_ROW_GONE);
    else if (is_busy)
        unit_check(rc == TQ_E_BUSY);
    else
        unit_check(rc == TQ_OK || rc == TQ_E_FULL);
    if (rc != TQ_OK) {
        memset(req, 0, sizeof *req);
        return;
    }
    write_frames(req);
    for (uint32_t r = 0; r < req->rows_cnt; r++)
        for (uint32_t i = 0; i < req->fields_cnt; i++) {
            model_cell_t *cell = &m->cells[req->rows[r]][req->fields[i]];

            if (cell->put_id)
                continue;
            cell->pending_put = req->put_id;
            cell->pending_len = req->lens[i][r];
        }
}

static void settle_in_model(model_t *m, request_t *req, bool is_published)
{
    for (uint32_t r = 0; r < req->rows_cnt; r++)
        for (uint32_t i = 0; i < req->fields_cnt; i++) {
            model_cell_t *cell = &m->cells[req->rows[r]][req->fields[i]];

            if (cell->pending_put != req->put_id)
                continue;
            if (is_published) {
                cell->put_id = req->put_id;
                cell->len = cell->pending_len;
            }
            cell->pending_put = 0;
            cell->is_staged = false;
        }
}

static void step_commit(model_t *m, request_t *req)
{
    bool is_gone = false;
    tqi_blame_t blame;

    for (uint32_t r = 0; r < req->rows_cnt; r++)
        is_gone |= m->dead[req->rows[r]];
    tq_status_t rc = tqi_objects_commit(m->f.objs, req->batch, &blame, NULL);
    unit_check(rc == (is_gone ? TQ_E_ROW_GONE : TQ_OK));
    if (is_gone) {
        tqi_objects_cancel(m->f.objs, req->batch);
        settle_in_model(m, req, false);
        memset(req, 0, sizeof *req);
        return;
    }
    req->batch = NULL;
    for (uint32_t r = 0; r < req->rows_cnt; r++)
        for (uint32_t i = 0; i < req->fields_cnt; i++) {
            model_cell_t *cell = &m->cells[req->rows[r]][req->fields[i]];

            if (cell->pending_put == req->put_id) {
                cell->is_staged = true;
            } else {
                cell->put_id = req->put_id;
                cell->len = req->lens[i][r];
            }
        }
}

static void step_put(model_t *m)
{
    request_t *req = &m->puts[below(m, PUTS_MAX)];
    bool is_good = tqi_rng_chance(&m->rng, 0.7);

    if (req->put_id == 0) {
        step_prepare(m, req);
    } else if (req->batch && is_good) {
        step_commit(m, req);
    } else if (req->batch) {
        if (tqi_rng_chance(&m->rng, 0.5))
            tqi_objects_doom(m->f.objs, req->batch);
        write_frames(req); /* up to the last moment */
        tqi_objects_cancel(m->f.objs, req->batch);
        settle_in_model(m, req, false);
        memset(req, 0, sizeof *req);
    } else {
        if (is_good)
            tqi_objects_confirm(m->f.objs, req->put_id);
        else
            tqi_objects_abort(m->f.objs, req->put_id, 1);
        settle_in_model(m, req, is_good);
        memset(req, 0, sizeof *req);
    }
}

static void step_unlink(model_t *m)
{
    uint64_t lo = below(m, ROW_SPACE);
    uint64_t hi = lo + below(m, tqi_rng_chance(&m->rng, 0.02) ? 1500 : 12);

    if (hi > ROW_SPACE)
        hi = ROW_SPACE;
    unlink_rows(&m->f, lo, hi);
    for (uint64_t r = lo; r < hi; r++) {
        m->dead[r] = true;
        memset(m->cells[r], 0, sizeof m->cells[r]);
    }
}

static void close_view(model_t *m, model_view_t *v)
{
    uint8_t *bytes = malloc(v->view.bytes + 1);
    const uint8_t *at = bytes;

    tqi_view_copy(&v->view, bytes);
    for (uint32_t r = 0; r < v->rows_cnt; r++)
        for (uint32_t i = 0; i < v->lens[r]; i++)
            unit_check(*at++ == fill_of(v->puts[r], v->rows[r], v->field));
    unit_check(at == bytes + v->view.bytes);
    free(bytes);
    tqi_objects_unpin(m->f.objs, &v->view);
    tqi_view_fini(&v->view);
    v->is_open = false;
}

static void check_column(model_t *m, const model_view_t *v)
{
    tqi_coldesc_iter_t it;
    tqi_coldesc_t col;
    tqi_buf_t buf;
    tq_desc_t desc;
    uint64_t offset;

    tqi_buf_init(&buf, &m->f.env.env);
    unit_check(tqi_view_column(&v->view, 0, &buf, NULL) == TQ_OK);
    unit_check(tqi_coldesc_decode((tqi_bytes_t){buf.data, (uint32_t)buf.len}, v->rows_cnt, &col,
                                  NULL) == TQ_OK);
    unit_check(col.frame_bytes == v->view.bytes);
    tqi_coldesc_iter(&it, &col);
    for (uint32_t r = 0; r < v->rows_cnt; r++) {
        tqi_coldesc_next(&it, &desc, &offset);
        unit_check(desc.len == v->lens[r]);
    }
    tqi_buf_fini(&buf);
}

/* Reads random rows of one field, keeps the view pinned, and looks at its bytes much later. */
static void step_read(model_t *m)
{
    model_view_t *v = &m->views[below(m, VIEWS_MAX)];
    uint8_t produced[ROWS_MAX / 8] = {0};
    uint64_t first = below(m, ROW_SPACE - ROWS_MAX);
    bool is_missing = false;
    bool is_dead = false;
    tqi_blame_t blame;

    if (v->is_open) {
        close_view(m, v);
        return;
    }
    memset(v, 0, sizeof *v);
    v->field = (uint32_t)below(m, FIELDS_MAX);
    v->rows_cnt = 1 + (uint32_t)below(m, 8);
    for (uint32_t r = 0; r < v->rows_cnt; r++) {
        model_cell_t *cell;

        v->rows[r] = first + (tqi_rng_chance(&m->rng, 0.8) ? r : below(m, ROWS_MAX));
        cell = &m->cells[v->rows[r]][v->field];
        is_dead |= m->dead[v->rows[r]];
        if (cell->is_staged && tqi_rng_chance(&m->rng, 0.5))
            produced[r / 8] |= (uint8_t)(1u << (r % 8));
    }
    for (uint32_t r = 0; r < v->rows_cnt && !is_dead; r++) {
        model_cell_t *cell = &m->cells[v->rows[r]][v->field];

        if (cell->is_staged && produced[r / 8] >> (r % 8) & 1) {
            cell->put_id = cell->pending_put;
            cell->len = cell->pending_len;
            cell->pending_put = 0;
            cell->is_staged = false;
        }
        is_missing |= cell->put_id == 0;
        v->puts[r] = cell->put_id;
        v->lens[r] = cell->len;
    }
    const char *name = field_names[v->field];
    uint32_t offsets[2] = {0, (uint32_t)strlen(name)};
    tqi_strs_t fields = {offsets, name, 1, offsets[1]};

    tqi_view_init(&v->view, &m->f.env.env);
    tq_status_t rc =
        tqi_objects_read(m->f.objs, tqi_u64s(v->rows, v->rows_cnt), fields,
                         (tqi_bytes_t){produced, sizeof produced}, &v->view, &blame, NULL);
    unit_check(rc == (is_dead ? TQ_E_NOT_FOUND : is_missing ? TQ_E_NOT_PRODUCED : TQ_OK));
    if (rc != TQ_OK) {
        tqi_view_fini(&v->view);
        return;
    }
    check_column(m, v);
    tqi_objects_pin(m->f.objs, &v->view);
    v->is_open = true;
}

static void objects_do_what_the_model_does(void **state)
{
    model_t *m = malloc(sizeof *m);
    (void)state;
    for_each_seed(seed, 30)
    {
        memset(m, 0, sizeof *m);
        setup_with(&m->f, 300u << 10, 10);
        tqi_rng_init(&m->rng, seed);
        m->put_next = 1;
        for (int step = 0; step < 4000; step++) {
            uint64_t dice = below(m, 100);

            if (dice < 60)
                step_put(m);
            else if (dice < 64)
                step_unlink(m);
            else
                step_read(m);
            if (step % 100 == 0)
                check(&m->f);
        }
        for (uint32_t i = 0; i < VIEWS_MAX; i++)
            if (m->views[i].is_open)
                close_view(m, &m->views[i]);
        for (uint32_t i = 0; i < PUTS_MAX; i++)
            if (m->puts[i].batch)
                tqi_objects_cancel(m->f.objs, m->puts[i].batch);
        check(&m->f);
        /* Whatever happened: with all rows cleared, everything is back. */
        unlink_rows(&m->f, 0, ROW_SPACE);
        check(&m->f);
        unit_check(stat_of(&m->f).used_bytes == 0 && stat_of(&m->f).zombie_bytes == 0);
        unit_check(stat_of(&m->f).runs_cnt == 0 && stat_of(&m->f).puts_cnt == 0);
        teardown(&m->f);
    }
    free(m);
}

/* Values of no bytes, each row in a block of its own: all that they take is bookkeeping. */
static tq_status_t put_nothing(fixture_t *f, uint64_t put_id, uint32_t rows_cnt,
                               uint32_t fields_cnt, tqi_err_t *err)
{
    static uint64_t rows[4096];
    request_t one = {.fields_cnt = 1};
    desc_ctx_t ctx = {&one, 0};
    tqi_strs_builder_t names, columns;
    tqi_batch_t *batch;
    tqi_blame_t blame;
    tqi_buf_t column;

    tqi_buf_init(&column, &f->env.env);
    tqi_strs_builder_init(&names, &f->env.env);
    tqi_strs_builder_init(&columns, &f->env.env);
    assert_int_equal(tqi_coldesc_encode(&column, 1, desc_at, &ctx, NULL), TQ_OK);
    for (uint32_t i = 0; i < rows_cnt; i++)
        rows[i] = (put_id * 4096 + i) * TQI_BLOCK_ROWS;
    for (uint32_t i = 0; i < fields_cnt; i++) {
        assert_int_equal(tqi_strs_builder_add(&names, &"abcdefgh"[i], 1), TQ_OK);
        assert_int_equal(tqi_strs_builder_add(&columns, column.data, column.len), TQ_OK);
    }
    tqi_prepare_t args = {.session = 1,
                          .put_id = put_id,
                          .rows = tqi_u64s(rows, rows_cnt),
                          .fields = tqi_strs_builder_view(&names),
                          .columns = tqi_strs_builder_view(&columns)};
    tq_status_t rc = tqi_objects_prepare(f->objs, &args, &batch, &blame, err);
    if (rc == TQ_OK) {
        assert_int_equal(tqi_objects_commit(f->objs, batch, &blame, err), TQ_OK);
        tqi_objects_confirm(f->objs, put_id);
    }
    tqi_strs_builder_fini(&names);
    tqi_strs_builder_fini(&columns);
    tqi_buf_fini(&column);
    return rc;
}

static void the_bookkeeping_of_values_without_bytes_is_bounded(void **state)
{
    fixture_t f;
    tqi_err_t err = {0};
    uint64_t put_id = 1, had;
    tq_status_t rc;

    (void)state;
    setup(&f);
    had = stat_of(&f).meta_bytes;
    /* 4,096 blocks with a leaf of 8 KiB for each of 8 fields would be 256 MiB. */
    assert_int_equal(put_nothing(&f, put_id, 4096, 8, &err), TQ_E_TOO_LARGE);
    check(&f);
    assert_true(stat_of(&f).meta_bytes < had + (1u << 20));
    while ((rc = put_nothing(&f, put_id, 500, 1, &err)) == TQ_OK)
        assert_true(++put_id < 100);
    assert_int_equal(rc, TQ_E_FULL);
    assert_true(put_id > 10);
    assert_non_null(strstr(err.text, "bookkeeping"));
    assert_true(stat_of(&f).meta_bytes <= TQI_META_BYTES_MIN);
    assert_int_equal(stat_of(&f).used_bytes, 0);
    check(&f);
    /* Clearing gives it back, and is never refused. */
    unlink_rows(&f, 4096 * TQI_BLOCK_ROWS, (put_id + 1) * 4096 * TQI_BLOCK_ROWS);
    assert_true(stat_of(&f).meta_bytes < had + (1u << 20));
    assert_int_equal(put_nothing(&f, put_id + 1, 500, 1, &err), TQ_OK);
    teardown(&f);
}

/* Each of these makes one word of a whole store wrong, in the run of a put that is staged. */
static void break_row_count(tqi_batch_t *batch)
{
    batch->runs[0]->live_cnt++;
}
static void break_row_held(tqi_batch_t *batch)
{
    tqi_words_clear(batch->runs[0]->held, 1);
}
static void break_row_kept(tqi_batch_t *batch)
{
    tqi_words_clear(batch->runs[0]->kept, 1);
}
static void break_cell_beyond(tqi_batch_t *batch)
{
    batch->runs[0]->rows_cnt--;
}
static void break_pins(tqi_batch_t *batch)
{
    batch->runs[0]->pins[1]++;
}
static void break_pending(tqi_batch_t *batch)
{
    batch->pending_cnt++;
}
static void break_settled(tqi_batch_t *batch)
{
    batch->pending_cnt = 0;
}
static void break_open(tqi_batch_t *batch)
{
    batch->is_open = true;
}
static void break_put(tqi_batch_t *batch)
{
    batch->put = NULL;
}
static void break_batch(tqi_batch_t *batch)
{
    batch->runs[0]->batch = NULL;
}

static void the_audit_finds_what_is_wrong(void **state)
{
    static const struct {
        void (*make_wrong)(tqi_batch_t *batch);
        const char *text;
    } cases[] = {
        {break_row_count, "4 live rows, counted as 5"},
        {break_row_held, "row 1 is live and not held"},
        {break_row_kept, "refers to nothing"},
        {break_cell_beyond, "refers to nothing"},
        {break_pins, "1 pins"},
        {break_pending, "cells by state are counted wrong"},
        {break_settled, "keeps a settled batch"},
        {break_open, "is pending without its put"},
        {break_put, "keeps a settled batch"},
        {break_batch, "is pending without its put"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture_t f;
        tqi_err_t err = {0};
        request_t req = simple(7, 100, 4, 0, 300);

        setup(&f);
        assert_int_equal(prepare(&f, &req, false, NULL, NULL), TQ_OK);
        assert_int_equal(commit(&f, &req), TQ_OK); /* staged: the batch lives until it is settled */
        check(&f);
        tqi_batch_t batch = *req.batch;
        tqi_run_t *run = batch.runs[0], was = *run;
        uint64_t kept = run->kept[0], held = run->held[0];

        cases[i].make_wrong(req.batch);
        assert_int_equal(tqi_objects_check(f.objs, &err), TQ_E_BUG);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" instead of \"%s\"", err.text, cases[i].text);
        *req.batch = batch;
        *run = was;
        run->kept[0] = kept;
        run->held[0] = held;
        run->pins[1] = 0;
        check(&f);
        teardown(&f);
    }
}

static void a_store_without_memory_is_not_made(void **state)
{
    tqi_objects_conf_t conf = {
        .capacity_bytes = CAPACITY, .segment_bytes = 128u << 10, .segment_id_first = 1};
    fixture_t f;
    tqi_segment_ops_t ops = {&f, arena_open, arena_punch, arena_close};
    tqi_objects_t *objs = NULL;
    uint64_t fail_after = 0;

    (void)state;
    memset(&f, 0, sizeof f);
    unit_env_init(&f.env);
    while (!objs) {
        assert_true(fail_after < 10);
        assert_int_equal(f.env.bytes, 0);
        f.env.fail_after = fail_after++;
        objs = tqi_objects_new(&f.env.env, &conf, &ops);
    }
    assert_true(fail_after > 1);
    assert_int_equal(tqi_objects_check(objs, NULL), TQ_E_NO_MEMORY);
    tqi_objects_free(objs);
    tqi_objects_free(NULL);
    assert_int_equal(f.env.bytes, 0);
}

static void requests_at_their_limits_are_refused_with_the_figures(void **state)
{
    static const char long_name[TQ_NAME_MAX + 2];
    uint64_t row = 1;
    fixture_t f;
    tqi_view_t view;
    tqi_blame_t blame;
    tqi_err_t err;

    (void)state;
    setup(&f);
    tqi_view_init(&view, &f.env.env);
    for (uint32_t len = 0; len <= TQ_NAME_MAX + 1; len += TQ_NAME_MAX + 1) {
        uint32_t offsets[2] = {0, len};
        tqi_strs_t names = {offsets, long_name, 1, len};

        assert_int_equal(tqi_objects_read(f.objs, tqi_u64s(&row, 1), names, (tqi_bytes_t){0}, &view,
                                          &blame, &err),
                         TQ_E_INVALID);
        assert_non_null(strstr(err.text, "a field's name has"));
    }
    assert_int_equal(tqi_objects_read(f.objs, tqi_u64s(&row, 1), (tqi_strs_t){0}, (tqi_bytes_t){0},
                                      &view, &blame, &err),
                     TQ_E_INVALID);
    assert_string_equal(err.text, "a request for 1 rows and 0 fields");
    tqi_view_fini(&view);
    /* A put of 100 rows that are dead blames the first 64. */
    put_simple(&f, 1, 0, 1, 0, 1);
    unlink_rows(&f, 0, TQI_BLOCK_ROWS);
    uint64_t rows[100];
    for (uint32_t r = 0; r < 100; r++)
        rows[r] = r;
    uint32_t offsets[2] = {0, 3};
    tqi_strs_t names = {offsets, "ids", 1, 3};
    tqi_view_init(&view, &f.env.env);
    memset(&blame, 0, sizeof blame);
    assert_int_equal(
        tqi_objects_read(f.objs, tqi_u64s(rows, 100), names, (tqi_bytes_t){0}, &view, &blame, &err),
        TQ_E_NOT_FOUND);
    assert_int_equal(blame.rows_cnt, TQI_BLAME_ROWS_MAX);
    assert_string_equal(err.text, "100 of 100 rows have been cleared, the first of them 0");
    tqi_view_fini(&view);
    teardown(&f);
}

static void a_put_of_two_to_the_64_bytes_is_refused(void **state)
{
    uint8_t blob[16] = {TQ_LAYOUT_UNIFORM, 0, 0, 0, TQ_ENC_BYTES};
    uint64_t row = 1, len = INT64_MAX;
    tqi_strs_builder_t names, columns;
    tqi_batch_t *batch = NULL;
    tqi_blame_t blame;
    tqi_err_t err;
    fixture_t f;

    (void)state;
    setup(&f);
    tqi_strs_builder_init(&names, &f.env.env);
    tqi_strs_builder_init(&columns, &f.env.env);
    memcpy(blob + 8, &len, 8);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(tqi_strs_builder_add(&names, field_names[i], strlen(field_names[i])),
                         TQ_OK);
        assert_int_equal(tqi_strs_builder_add(&columns, blob, sizeof blob), TQ_OK);
    }
    tqi_prepare_t args = {.session = 1,
                          .put_id = 1,
                          .rows = tqi_u64s(&row, 1),
                          .fields = tqi_strs_builder_view(&names),
                          .columns = tqi_strs_builder_view(&columns)};
    assert_int_equal(tqi_objects_prepare(f.objs, &args, &batch, &blame, &err), TQ_E_TOO_LARGE);
    assert_string_equal(err.text, "the columns are over 2^64 bytes");
    tqi_strs_builder_clear(&columns);
    args.columns = tqi_strs_builder_view(&columns);
    assert_int_equal(tqi_objects_prepare(f.objs, &args, &batch, &blame, &err), TQ_E_MALFORMED);
    assert_string_equal(err.text, "3 fields, but 0 columns");
    tqi_strs_builder_fini(&names);
    tqi_strs_builder_fini(&columns);
    check(&f);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_staged_object_is_read_only_once_published),
        cmocka_unit_test(overwriting_a_published_cell_takes_effect_at_commit),
        cmocka_unit_test(a_cell_that_another_put_is_writing_is_busy),
        cmocka_unit_test(a_put_that_begins_again_replaces_what_it_staged),
        cmocka_unit_test(clearing_one_row_gives_its_bytes_back),
        cmocka_unit_test(rows_that_share_a_granule_give_it_back_together),
        cmocka_unit_test(rows_without_bytes_keep_no_granule),
        cmocka_unit_test(what_a_reader_pinned_outlives_clear_and_overwrite),
        cmocka_unit_test(what_two_readers_pinned_goes_with_the_second),
        cmocka_unit_test(a_dead_row_takes_nothing_any_more),
        cmocka_unit_test(a_doomed_put_keeps_its_memory_until_nobody_writes_it),
        cmocka_unit_test(the_reserve_is_for_rows_that_have_data),
        cmocka_unit_test(a_bad_request_changes_nothing),
        cmocka_unit_test(a_put_without_memory_changes_nothing),
        cmocka_unit_test(the_bookkeeping_of_values_without_bytes_is_bounded),
        cmocka_unit_test(objects_do_what_the_model_does),
        cmocka_unit_test(the_audit_finds_what_is_wrong),
        cmocka_unit_test(a_store_without_memory_is_not_made),
        cmocka_unit_test(requests_at_their_limits_are_refused_with_the_figures),
        cmocka_unit_test(a_put_of_two_to_the_64_bytes_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
