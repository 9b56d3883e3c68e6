/* SPDX-License-Identifier: Apache-2.0 */
/* What a table shows: STATUS, LIST, FETCH of all, RESOLVE, tags, schemas; and parts of a PUBLISH. */
#include "role_controller.h"

static void setup(world_t *w, caller_t *c, store_unit_t *u)
{
    world_init(w, NULL);
    unit_register(u, w, 100, 7, "inproc://u1");
    caller_hello(c, w, 1);
}

static bool str_is(tqi_strs_t strs, uint32_t i, const char *text)
{
    tqi_str_t s = tqi_strs_at(strs, i);

    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static uint64_t put_keys(caller_t *c, tqi_strs_t keys, uint64_t *rows)
{
    tqi_msg_Resolve_R_t reply;
    tqi_buf_t frame;

    assert_int_equal(call(c, Resolve, &reply, &frame, .partition = tqi_str("p"), .keys = keys,
                          .fields = strs("a"), .is_create = true, .is_put = true),
                     TQ_OK);
    for (uint32_t i = 0; i < keys.cnt; i++)
        rows[i] = tqi_u64s_at(reply.rows, i);
    uint64_t put_id = reply.put_id;
    tqi_buf_fini(&frame);
    return put_id;
}

static void statuses_are_as_the_reference_has_them(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[3], got[2];
    tqi_msg_Status_R_t status;
    tqi_msg_Insert_R_t inserted;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    assert_int_equal(call(&c, Status, &status, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_CONSUMPTION, .task = tqi_str("t")),
                     TQ_OK);
    assert_false(status.is_known);
    tqi_buf_fini(&frame);
    put_rows(&c, "p", 3, strs("a"), rows);
    assert_int_equal(call(&c, Insert, &inserted, &frame, .partition = tqi_str("p"), .rows_cnt = 1),
                     TQ_OK);
    tqi_buf_fini(&frame);
    /* Reserved rows count; an unknown task has consumed nothing. */
    assert_int_equal(call(&c, Status, &status, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_CONSUMPTION, .task = tqi_str("t")),
                     TQ_OK);
    assert_true(status.is_known);
    assert_int_equal(status.rows.cnt, 4);
    assert_memory_equal(status.status.data, "\0\0\0\0", 4);
    tqi_buf_fini(&frame);
    assert_int_equal(fetch_take(&c, fetch_send(&c, "p", "t", 2, strs("a")), got, 2), 2);
    assert_int_equal(call(&c, Status, &status, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_CONSUMPTION, .task = tqi_str("t")),
                     TQ_OK);
    assert_memory_equal(status.status.data, "\1\1\0\0", 4);
    tqi_buf_fini(&frame);
    /* A never-written field, or none: not known. */
    assert_int_equal(call(&c, Status, &status, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_PRODUCTION, .fields = strs("a", "z")),
                     TQ_OK);
    assert_false(status.is_known);
    tqi_buf_fini(&frame);
    assert_int_equal(
        call(&c, Status, &status, &frame, .partition = tqi_str("p"), .what = TQ_STATUS_PRODUCTION),
        TQ_OK);
    assert_false(status.is_known);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Status, &status, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_PRODUCTION, .fields = strs("a")),
                     TQ_OK);
    assert_true(status.is_known);
    assert_memory_equal(status.status.data, "\1\1\1\0", 4);
    tqi_buf_fini(&frame);
    /* An emptied partition: known, no rows. */
    clear_send(&c, "p", rows, 3);
    unit_obey_all(&u);
    world_fini(&w);
}

static void rows_made_ahead_count_and_are_handed_out_first(void **state)
{
    tqi_controller_conf_t conf = {.prealloc_rows = 3};
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_R_t inserted;
    tqi_msg_Status_R_t status;
    tqi_buf_t frame;

    (void)state;
    world_init(&w, &conf);
    unit_register(&u, &w, 100, 7, "inproc://u1");
    caller_hello(&c, &w, 1);
    assert_int_equal(call(&c, Insert, &inserted, &frame, .partition = tqi_str("p")), TQ_OK);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Insert, &inserted, &frame, .partition = tqi_str("p"), .rows_cnt = 5),
                     TQ_OK);
    for (uint32_t i = 0; i < 5; i++) {
        assert_int_equal(tqi_u64s_at(inserted.rows, i), i);
        assert_int_equal(tqi_u32s_at(inserted.units, i), 1);
    }
    tqi_buf_fini(&frame);
    assert_int_equal(
        call(&c, Status, &status, &frame, .partition = tqi_str("p"), .what = TQ_STATUS_CONSUMPTION),
        TQ_OK);
    assert_int_equal(status.rows.cnt, 5);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_fetch_of_all_lists_and_marks_nothing(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2];
    tqi_msg_Insert_R_t inserted;
    tqi_msg_Fetch_R_t all;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    assert_int_equal(call(&c, Fetch, &all, &frame, .partition = tqi_str("X"), .task = tqi_str("t"),
                          .fields = strs("a"), .mode = TQ_FETCH_ALL),
                     TQ_E_NO_PARTITION);
    assert_string_equal(c.err.text, "Partition X not found");
    tqi_buf_fini(&frame);
    put_rows(&c, "p", 2, strs("a"), rows);
    assert_int_equal(call(&c, Insert, &inserted, &frame, .partition = tqi_str("p"), .rows_cnt = 1),
                     TQ_OK);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Fetch, &all, &frame, .partition = tqi_str("p"),
                          .fields = strs("z", "a"), .mode = TQ_FETCH_ALL),
                     TQ_OK);
    assert_int_equal(all.rows.cnt, 3);
    assert_int_equal(all.fields.cnt, 1);
    assert_true(str_is(all.fields, 0, "a"));
    assert_int_equal(((const uint8_t *)all.produced.data)[0], 3);
    assert_int_equal(all.next, 0);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_listing_pages_in_order_of_insertion_and_leaves_out_unpublished_rows(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[5], hidden[2], cursor = 0, seen = 0;
    tqi_msg_List_R_t list;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t put_id = put_keys(&c, strs("k4", "k1", "k9", "k0", ""), rows);
    assert_int_equal(put_publish(&c, "p", put_id, rows, 5, strs("b", "a")), TQ_OK);
    put_keys(&c, strs("h1", "h2"), hidden);
    do {
        assert_int_equal(call(&c, List, &list, &frame, .partition = tqi_str("p"), .rows_max = 2,
                              .cursor = cursor, .want_fields = true),
                         TQ_OK);
        assert_true(str_is(list.fields, 0, "a") && str_is(list.fields, 1, "b"));
        for (uint32_t i = 0; i < list.rows.cnt; i++) {
            assert_int_equal(tqi_u64s_at(list.rows, i), rows[seen]);
            assert_int_equal(list.has_key.data[i], 1);
            if (seen == 0)
                assert_true(str_is(list.keys, i, "k4"));
            seen++;
        }
        assert_int_equal(((const uint8_t *)list.produced.data)[0] & 3, 3);
        cursor = list.next;
        tqi_buf_fini(&frame);
    } while (cursor != 0 && seen < 5);
    assert_int_equal(seen, 5);
    world_fini(&w);
}

static void partitions_are_listed_in_order_of_creation(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[1];
    tqi_msg_List_R_t list;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    fetch_send(&c, "only-waited-for", "t", 1, strs("a"));
    put_rows(&c, "z", 1, strs("a"), rows);
    put_rows(&c, "a", 1, strs("a"), rows);
    assert_int_equal(call(&c, List, &list, &frame, .is_partitions = true), TQ_OK);
    assert_int_equal(list.names.cnt, 2);
    assert_true(str_is(list.names, 0, "z") && str_is(list.names, 1, "a"));
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void stuck_rows_are_those_that_a_waiting_fetch_lacks_fields_of(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[3], more[2];
    tqi_msg_List_R_t list;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 3, strs("a"), rows);
    put_rows(&c, "p", 2, strs("a", "b"), more);
    assert_int_equal(
        call(&c, List, &list, &frame, .partition = tqi_str("p"), .is_stuck_only = true), TQ_OK);
    assert_int_equal(list.rows.cnt, 0);
    tqi_buf_fini(&frame);
    fetch_send(&c, "p", "t", 4, strs("a", "b"));
    assert_int_equal(
        call(&c, List, &list, &frame, .partition = tqi_str("p"), .is_stuck_only = true), TQ_OK);
    assert_int_equal(list.rows.cnt, 3);
    assert_int_equal(tqi_u64s_at(list.rows, 0), rows[0]);
    assert_int_equal(list.fields.cnt, 2);
    tqi_buf_fini(&frame);
    /* One waits for a field that nobody has written: all rows lack it. */
    fetch_send(&c, "p", "u", 1, strs("c"));
    assert_int_equal(
        call(&c, List, &list, &frame, .partition = tqi_str("p"), .is_stuck_only = true), TQ_OK);
    assert_int_equal(list.rows.cnt, 5);
    assert_int_equal(list.fields.cnt, 3);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void resolving_a_batch_says_what_is_common_and_what_is_unknown(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], one[1];
    tqi_msg_Resolve_R_t r;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t put_id = put_keys(&c, strs("k1", "k2"), rows);
    assert_int_equal(put_publish(&c, "p", put_id, rows, 2, strs("b", "a")), TQ_OK);
    put_id = put_keys(&c, strs("k1"), one);
    assert_int_equal(one[0], rows[0]);
    assert_int_equal(put_publish(&c, "p", put_id, one, 1, strs("c")), TQ_OK);
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"),
                          .keys = strs("k2", "nope", "k1"), .want_common = true, .want_keys = true),
                     TQ_OK);
    assert_true(r.is_known);
    assert_int_equal(tqi_u64s_at(r.rows, 0), rows[1]);
    assert_true(tqi_u64s_at(r.rows, 1) == TQ_ROW_NONE);
    assert_int_equal(tqi_u32s_at(r.units, 1), 0);
    assert_int_equal(r.common.cnt, 2);
    assert_true(str_is(r.common, 0, "a") && str_is(r.common, 1, "b"));
    assert_int_equal(((const uint8_t *)r.produced.data)[0], 0x33);
    assert_memory_equal(r.has_data.data, "\1\0\1", 3);
    tqi_buf_fini(&frame);
    /* A key given twice in one put is refused, and nothing of it stays. */
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"),
                          .keys = strs("new", "new"), .is_create = true, .is_put = true),
                     TQ_E_DUPLICATE);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"),
                          .keys = strs("k1", "k1"), .is_create = true, .is_put = true),
                     TQ_E_DUPLICATE);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"), .keys = strs("new")),
                     TQ_OK);
    assert_true(tqi_u64s_at(r.rows, 0) == TQ_ROW_NONE);
    tqi_buf_fini(&frame);
    /* Twice in a look-up that creates: one row. */
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"),
                          .keys = strs("new", "new"), .is_create = true),
                     TQ_OK);
    assert_int_equal(tqi_u64s_at(r.rows, 0), tqi_u64s_at(r.rows, 1));
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_key_is_not_seen_before_something_is_published_into_it(void **state)
{
    world_t w;
    caller_t c = {0}, d = {0};
    store_unit_t u = {0};
    uint64_t rows[1], same[1];
    tqi_msg_Resolve_R_t r;
    tqi_msg_Publish_R_t aborted;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&d, &w, 2);
    uint64_t first = put_keys(&c, strs("k"), rows);
    assert_int_equal(call(&d, Resolve, &r, &frame, .partition = tqi_str("p"), .keys = strs("k")),
                     TQ_OK);
    assert_true(tqi_u64s_at(r.rows, 0) == TQ_ROW_NONE);
    tqi_buf_fini(&frame);
    /* Two puts into the same new key share its row; it goes only when both have failed. */
    uint64_t second = put_keys(&d, strs("k"), same);
    assert_int_equal(same[0], rows[0]);
    assert_int_equal(call(&c, Publish, &aborted, &frame, .partition = tqi_str("p"), .put_id = first,
                          .is_abort = true),
                     TQ_OK);
    tqi_buf_fini(&frame);
    assert_null(world_find(&w, u.peer, TQI_KIND_Unlink, 0));
    assert_int_equal(put_publish(&d, "p", second, same, 1, strs("a")), TQ_OK);
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"), .keys = strs("k")),
                     TQ_OK);
    assert_int_equal(tqi_u64s_at(r.rows, 0), rows[0]);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void tags_are_merged_at_the_controller(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[1];
    tqi_msg_Publish_R_t published;
    tqi_msg_Tags_R_t tagged;
    tqi_msg_Resolve_R_t r;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t put_id = put_keys(&c, strs("k"), rows);
    /* Tags alone: {"a": 1}. */
    assert_int_equal(call(&c, Publish, &published, &frame, .partition = tqi_str("p"),
                          .put_id = put_id, .rows = tqi_u64s(rows, 1),
                          .tags = strs("\x81\xa1"
                                       "a\x01"),
                          .want_meta = true),
                     TQ_OK);
    assert_int_equal(published.common.cnt, 0);
    assert_true(str_is(published.tags, 0,
                       "\x81\xa1"
                       "a\x01"));
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Tags, &tagged, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(rows, 1),
                          .tags = strs("\x81\xa1"
                                       "b\x02")),
                     TQ_OK);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Resolve, &r, &frame, .partition = tqi_str("p"), .keys = strs("k"),
                          .want_tags = true),
                     TQ_OK);
    assert_true(str_is(r.tags, 0,
                       "\x82\xa1"
                       "a\x01\xa1"
                       "b\x02"));
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Tags, &tagged, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(rows, 1), .tags = strs("\x92\x01\x02")),
                     TQ_E_INVALID);
    tqi_buf_fini(&frame);
    uint64_t never[1] = {77777};
    assert_int_equal(call(&c, Tags, &tagged, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(never, 1), .tags = strs("\x80")),
                     TQ_E_ROW_GONE);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_publish_in_parts_is_applied_with_the_last(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];
    tqi_msg_Publish_R_t published;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t put_id = put_begin_rows(&c, "p", 4, rows);
    uint64_t seq = fetch_send(&c, "p", "t", 4, strs("a"));
    assert_int_equal(call(&c, Publish, &published, &frame, .partition = tqi_str("p"),
                          .put_id = put_id, .part = 2, .parts = 3, .rows = tqi_u64s(rows + 2, 2),
                          .fields = strs("a")),
                     TQ_OK);
    tqi_buf_fini(&frame);
    assert_int_equal(call(&c, Publish, &published, &frame, .partition = tqi_str("p"),
                          .put_id = put_id, .part = 1, .parts = 3, .rows = tqi_u64s(rows, 2),
                          .fields = strs("a")),
                     TQ_OK);
    tqi_buf_fini(&frame);
    assert_false(caller_has(&c, seq, TQI_KIND_Fetch));
    assert_int_equal(call(&c, Publish, &published, &frame, .partition = tqi_str("p"),
                          .put_id = put_id, .part = 3, .parts = 3, .rows = tqi_u64s(rows, 4),
                          .fields = strs("b"), .want_meta = true),
                     TQ_OK);
    assert_int_equal(published.common.cnt, 2);
    tqi_buf_fini(&frame);
    assert_int_equal(fetch_take(&c, seq, got, 4), 4);
    world_fini(&w);
}

static void schemas_are_kept_and_merged(void **state)
{
    tq_schema_t one = {.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_F32, .ndim = 1, .shape = {3}};
    tq_schema_t two = {.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_F32, .ndim = 1, .shape = {5}};
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[1];
    tqi_strs_builder_t schemas;
    tqi_msg_Publish_R_t published;
    tqi_msg_Insert_R_t inserted;
    tq_schema_t got;
    tqi_buf_t frame, blob;

    (void)state;
    setup(&w, &c, &u);
    for (int i = 0; i < 2; i++) {
        uint64_t put_id = put_begin_rows(&c, "p", 1, rows);

        tqi_buf_init(&blob, &w.env.env);
        assert_int_equal(tqi_schema_encode(&blob, i == 0 ? &one : &two), TQ_OK);
        tqi_strs_builder_init(&schemas, &w.env.env);
        tqi_strs_builder_add(&schemas, blob.data, blob.len);
        assert_int_equal(call(&c, Publish, &published, &frame, .partition = tqi_str("p"),
                              .put_id = put_id, .rows = tqi_u64s(rows, 1), .fields = strs("a"),
                              .schemas = tqi_strs_builder_view(&schemas)),
                         TQ_OK);
        tqi_buf_fini(&frame);
        tqi_buf_fini(&blob);
        tqi_strs_builder_fini(&schemas);
        assert_int_equal(call(&c, Insert, &inserted, &frame, .partition = tqi_str("p"),
                              .fields = strs("new", "a")),
                         TQ_OK);
        assert_int_equal(tqi_strs_at(inserted.schemas, 0).len, 0);
        assert_int_equal(tqi_schema_decode(tqi_strs_at(inserted.schemas, 1), &got), TQ_OK);
        assert_int_equal(got.dtype, TQ_DTYPE_F32);
        assert_int_equal(got.is_nested, i);
        tqi_buf_fini(&frame);
    }
    world_fini(&w);
}

static void a_partition_refuses_what_it_can_not_queue(void **state)
{
    tqi_controller_conf_t conf = {.slice_rows = 1};
    world_t w;
    caller_t c[2] = {{0}};
    store_unit_t u = {0};
    tqi_msg_Reset_R_t reset;
    tqi_buf_t frame;
    uint32_t busy = 0;

    (void)state;
    world_init(&w, &conf);
    unit_register(&u, &w, 100, 7, "inproc://u1");
    caller_hello(&c[0], &w, 1);
    caller_hello(&c[1], &w, 2);
    caller_send(&c[0], TQI_KIND_Insert,
                &(tqi_msg_Insert_t){.partition = tqi_str("p"), .rows_cnt = 4000});
    for (int i = 0; i < 1200; i++) {
        caller_t *who = &c[i % 2];

        caller_send(who, TQI_KIND_Reset,
                    &(tqi_msg_Reset_t){.partition = tqi_str("p"), .is_all_tasks = true});
        if (!caller_has(who, who->seq, TQI_KIND_Reset))
            continue;
        assert_int_equal(caller_take(who, who->seq, TQI_KIND_Reset, &reset, &frame), TQ_E_BUSY);
        tqi_buf_fini(&frame);
        busy++;
    }
    /* The one that runs counts too. */
    assert_int_equal(busy, 1200 - 1023);
    w.deaf = 0;
    while (w.role->step(w.role, w.now_ns) <= w.now_ns)
        world_drop_all(&w);
    world_check(&w);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_are_as_the_reference_has_them),
        cmocka_unit_test(rows_made_ahead_count_and_are_handed_out_first),
        cmocka_unit_test(a_fetch_of_all_lists_and_marks_nothing),
        cmocka_unit_test(a_listing_pages_in_order_of_insertion_and_leaves_out_unpublished_rows),
        cmocka_unit_test(partitions_are_listed_in_order_of_creation),
        cmocka_unit_test(stuck_rows_are_those_that_a_waiting_fetch_lacks_fields_of),
        cmocka_unit_test(resolving_a_batch_says_what_is_common_and_what_is_unknown),
        cmocka_unit_test(a_key_is_not_seen_before_something_is_published_into_it),
        cmocka_unit_test(tags_are_merged_at_the_controller),
        cmocka_unit_test(a_publish_in_parts_is_applied_with_the_last),
        cmocka_unit_test(schemas_are_kept_and_merged),
        cmocka_unit_test(a_partition_refuses_what_it_can_not_queue),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
