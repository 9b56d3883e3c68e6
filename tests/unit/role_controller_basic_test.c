/* SPDX-License-Identifier: Apache-2.0 */
/* Puts, fetches and clears, end to end at the controller. */
#include "role_controller.h"

static void setup(world_t *w, caller_t *c, store_unit_t *u)
{
    world_init(w, NULL);
    unit_register(u, w, 100, 7, "inproc://u1");
    caller_hello(c, w, 1);
}

static void rows_of_a_put_are_fetched_after_publish(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];

    (void)state;
    setup(&w, &c, &u);
    uint64_t put_id = put_begin_rows(&c, "p", 4, rows);
    uint64_t seq = fetch_send(&c, "p", "t", 4, strs("a"));
    assert_false(caller_has(&c, seq, TQI_KIND_Fetch));
    assert_int_equal(put_publish(&c, "p", put_id, rows, 4, strs("a")), TQ_OK);
    assert_int_equal(fetch_take(&c, seq, got, 4), 4);
    assert_memory_equal(got, rows, sizeof rows);
    world_fini(&w);
}

static void a_fetch_waits_for_a_partition_that_is_not_there_yet(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];

    (void)state;
    setup(&w, &c, &u);
    uint64_t seq = fetch_send(&c, "later", "t", 2, strs("a", "b"));
    put_rows(&c, "later", 2, strs("a"), rows);
    assert_false(caller_has(&c, seq, TQI_KIND_Fetch));

    tqi_msg_Resolve_R_t resolved;
    tqi_buf_t frame;
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("later"),
                          .rows = tqi_u64s(rows, 2), .fields = strs("b"), .is_put = true),
                     TQ_OK);
    uint64_t put_id = resolved.put_id;
    assert_int_equal(tqi_u32s_at(resolved.units, 0), u.id);
    tqi_buf_fini(&frame);
    assert_int_equal(put_publish(&c, "later", put_id, rows, 2, strs("b")), TQ_OK);
    assert_int_equal(fetch_take(&c, seq, got, 2), 2);
    world_fini(&w);
}

static void a_waiting_fetch_fails_exactly_at_its_deadline_and_says_what_lacks(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[3], got[10];

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 3, strs("a"), rows);
    c.budget_ms = 500;
    uint64_t seq = fetch_send(&c, "p", "T", 10, strs("a"));
    world_pass(&w, 499);
    assert_false(caller_has(&c, seq, TQI_KIND_Fetch));
    world_pass(&w, 1);
    assert_int_equal(fetch_take(&c, seq, got, 10), UINT32_MAX);
    assert_int_equal(c.err.status, TQ_E_NOT_READY);
    static const char begins[] =
        "Timeout while waiting for sufficient data for task T. Required: 10, "
        "Available: 3. Partition 'p' has 3 rows";
    assert_memory_equal(c.err.text, begins, sizeof begins - 1);
    world_fini(&w);
}

static void a_clear_is_over_when_its_units_have_answered(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[5];
    tqi_msg_Clear_R_t reply;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 5, strs("a"), rows);
    uint64_t seq = clear_send(&c, "p", rows, 5);
    assert_false(caller_has(&c, seq, TQI_KIND_Clear));
    world_frame_t *f = world_find(&w, u.peer, TQI_KIND_Unlink, 0);
    assert_non_null(f);
    tqi_msg_Unlink_t unlink;
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Unlink, &unlink, NULL), TQ_OK);
    assert_int_equal(unlink.lo.cnt, 1);
    assert_int_equal(tqi_u64s_at(unlink.lo, 0), rows[0]);
    assert_int_equal(tqi_u64s_at(unlink.hi, 0), rows[4] + 1);
    assert_int_equal(unit_obey(&u, TQI_KIND_Unlink), 1);
    assert_int_equal(caller_take(&c, seq, TQI_KIND_Clear, &reply, &frame), TQ_OK);
    assert_int_equal(reply.rows_cnt, 5);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void a_repeated_request_is_executed_once(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_t msg = {.partition = tqi_str("p"), .rows_cnt = 3};
    tqi_msg_Insert_R_t one, two;
    tqi_buf_t frame_one, frame_two;

    (void)state;
    setup(&w, &c, &u);
    caller_send(&c, TQI_KIND_Insert, &msg);
    assert_int_equal(caller_take(&c, c.seq, TQI_KIND_Insert, &one, &frame_one), TQ_OK);
    caller_repeat(&c, TQI_KIND_Insert, c.seq, &msg);
    assert_int_equal(caller_take(&c, c.seq, TQI_KIND_Insert, &two, &frame_two), TQ_OK);
    assert_int_equal(tqi_u64s_at(one.rows, 0), tqi_u64s_at(two.rows, 0));
    tqi_buf_fini(&frame_one);
    tqi_buf_fini(&frame_two);
    world_fini(&w);
}

static void puts_are_confirmed_in_a_batch_within_the_time(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2];
    tqi_msg_Confirm_t msg;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 1, strs("a"), rows);
    put_rows(&c, "p", 1, strs("a"), rows);
    assert_null(world_find(&w, u.peer, TQI_KIND_Confirm, 0));
    world_pass(&w, 100);
    world_frame_t *f = world_find(&w, u.peer, TQI_KIND_Confirm, 0);
    assert_non_null(f);
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Confirm, &msg, NULL), TQ_OK);
    assert_int_equal(msg.put_ids.cnt, 2);
    unit_obey_all(&u);
    world_pass(&w, 300);
    assert_null(world_find(&w, u.peer, TQI_KIND_Confirm, 0));
    world_fini(&w);
}

static size_t at_most_two(void *ctx, char *why, size_t why_size)
{
    snprintf(why, why_size, "raise the limit of %s", (const char *)ctx);
    return 2;
}

static tq_status_t hello_status(world_t *w, tqi_peer_t peer, char *text, size_t size)
{
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Hello, .epoch = 1};
    tqi_msg_Hello_t msg = {.version_min = 1, .version_max = 1, .name = tqi_str("test")};
    tqi_msg_Error_t error;

    text[0] = '\0';
    world_feed(w, peer, &env, &msg);
    world_frame_t *f = world_find(w, peer, TQI_KIND_Hello_R, 0);
    assert_non_null(f);
    tq_status_t status = (tq_status_t)f->env.status;
    if (status != TQ_OK) {
        assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Error, &error, NULL), TQ_OK);
        snprintf(text, size, "%.*s", (int)error.text.len, (const char *)error.text.data);
    }
    world_drop(w, (size_t)(f - w->frames));
    return status;
}

static void a_session_too_many_is_refused_with_the_reason_until_one_has_left(void **state)
{
    char limit[] = "this test", text[256];
    tqi_controller_conf_t conf = {.sessions_max = at_most_two, .sessions_max_ctx = limit};
    world_t w;
    caller_t a = {0}, b = {0};

    (void)state;
    world_init(&w, &conf);
    caller_hello(&a, &w, 1);
    caller_hello(&b, &w, 2);
    assert_int_equal(hello_status(&w, 3, text, sizeof text), TQ_E_BUSY);
    assert_non_null(strstr(text, "2 clients"));
    assert_non_null(strstr(text, "raise the limit of this test"));
    caller_hello(&b, &w, 4); /* who is there comes back as before */
    tqi_controller_session_died(w.ctl, a.session, w.now_ns);
    world_settle(&w);
    assert_int_equal(hello_status(&w, 3, text, sizeof text), TQ_OK);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_too_many_is_refused_with_the_reason_until_one_has_left),
        cmocka_unit_test(rows_of_a_put_are_fetched_after_publish),
        cmocka_unit_test(a_fetch_waits_for_a_partition_that_is_not_there_yet),
        cmocka_unit_test(a_waiting_fetch_fails_exactly_at_its_deadline_and_says_what_lacks),
        cmocka_unit_test(a_clear_is_over_when_its_units_have_answered),
        cmocka_unit_test(a_repeated_request_is_executed_once),
        cmocka_unit_test(puts_are_confirmed_in_a_batch_within_the_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
