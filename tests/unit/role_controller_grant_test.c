/* SPDX-License-Identifier: Apache-2.0 */
/* Grants are provisional until they are taken; waiters are served in order; sessions end. */
#include "role_controller.h"

static void setup(world_t *w, caller_t *c, store_unit_t *u)
{
    world_init(w, NULL);
    unit_register(u, w, 100, 7, "inproc://u1");
    caller_hello(c, w, 1);
}

static void consumed_is(caller_t *c, const char *task, uint32_t expected)
{
    tqi_msg_Status_R_t reply;
    tqi_buf_t frame;
    uint32_t cnt = 0;

    assert_int_equal(call(c, Status, &reply, &frame, .partition = tqi_str("p"),
                          .what = TQ_STATUS_CONSUMPTION, .task = tqi_str(task)),
                     TQ_OK);
    for (uint32_t i = 0; i < reply.status.cnt; i++)
        cnt += reply.status.data[i];
    assert_int_equal(cnt, expected);
    tqi_buf_fini(&frame);
}

static void rows_that_nobody_took_return_when_the_session_ends(void **state)
{
    world_t w;
    caller_t c = {0}, d = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&d, &w, 2);
    put_rows(&c, "p", 4, strs("a"), rows);
    uint64_t seq = fetch_send(&d, "p", "t", 3, strs("a"));
    assert_int_equal(fetch_take(&d, seq, got, 3), 3);
    consumed_is(&c, "t", 3);
    uint64_t waiting = fetch_send(&c, "p", "t", 4, strs("a"));
    assert_false(caller_has(&c, waiting, TQI_KIND_Fetch));
    for (int i = 0; i < 6; i++) {
        world_pass(&w, 1000);
        caller_ack(&c, c.ack);
        unit_obey_all(&u);
    }
    /* d was silent for 5 s. */
    assert_int_equal(fetch_take(&c, waiting, got, 4), 4);
    world_fini(&w);
}

static void rows_that_were_taken_stay_consumed(void **state)
{
    world_t w;
    caller_t c = {0}, d = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&d, &w, 2);
    put_rows(&c, "p", 4, strs("a"), rows);
    uint64_t seq = fetch_send(&d, "p", "t", 3, strs("a"));
    assert_int_equal(fetch_take(&d, seq, got, 3), 3);
    caller_ack(&d, seq);
    tqi_controller_session_died(w.ctl, d.session, w.now_ns);
    world_settle(&w);
    consumed_is(&c, "t", 3);
    world_fini(&w);
}

static void a_reset_makes_older_grants_final(void **state)
{
    world_t w;
    caller_t c = {0}, d = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];
    tqi_msg_Reset_R_t reset;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&d, &w, 2);
    put_rows(&c, "p", 4, strs("a"), rows);
    uint64_t seq = fetch_send(&d, "p", "t", 3, strs("a"));
    assert_int_equal(fetch_take(&d, seq, got, 3), 3);
    assert_int_equal(
        call(&c, Reset, &reset, &frame, .partition = tqi_str("p"), .task = tqi_str("t")), TQ_OK);
    tqi_buf_fini(&frame);
    consumed_is(&c, "t", 0);
    seq = fetch_send(&c, "p", "t", 4, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 4), 4);
    /* The old grant's session ends: nothing of it returns. */
    tqi_controller_session_died(w.ctl, d.session, w.now_ns);
    world_settle(&w);
    consumed_is(&c, "t", 4);
    world_fini(&w);
}

static void returned_rows_go_to_who_waits(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];
    tqi_msg_Return_R_t reply;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 4, strs("a"), rows);
    uint64_t seq = fetch_send(&c, "p", "t", 4, strs("a"));
    uint64_t waiting = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 4), 4);
    assert_int_equal(call(&c, Return, &reply, &frame, .partition = tqi_str("p"),
                          .task = tqi_str("t"), .rows = tqi_u64s(rows + 1, 2)),
                     TQ_OK);
    tqi_buf_fini(&frame);
    assert_int_equal(fetch_take(&c, waiting, got, 4), 2);
    assert_int_equal(got[0], rows[1]);
    assert_int_equal(got[1], rows[2]);
    world_fini(&w);
}

static void a_cancelled_fetch_leaves_and_is_answered(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];
    tqi_msg_CancelOp_R_t reply;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t waiting = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(call(&c, CancelOp, &reply, &frame, .target_seq = waiting), TQ_OK);
    assert_true(reply.is_cancelled);
    tqi_buf_fini(&frame);
    assert_int_equal(fetch_take(&c, waiting, got, 2), UINT32_MAX);
    assert_int_equal(c.err.status, TQ_E_CANCELLED);
    put_rows(&c, "p", 2, strs("a"), rows);
    consumed_is(&c, "t", 0);

    /* One that won is not cancelled. */
    uint64_t won = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(call(&c, CancelOp, &reply, &frame, .target_seq = won), TQ_OK);
    assert_false(reply.is_cancelled);
    tqi_buf_fini(&frame);
    assert_int_equal(fetch_take(&c, won, got, 2), 2);
    world_fini(&w);
}

static void a_cancel_that_comes_before_its_fetch_is_the_fetchs_answer(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];
    tqi_msg_Fetch_t fetch = {.partition = tqi_str("p"),
                             .task = tqi_str("t"),
                             .fields = strs("a"),
                             .rows_cnt = 2,
                             .mode = TQ_FETCH};
    tqi_msg_CancelOp_R_t reply;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    uint64_t lost = ++c.seq;
    assert_int_equal(call(&c, CancelOp, &reply, &frame, .target_seq = lost), TQ_OK);
    assert_true(reply.is_cancelled);
    tqi_buf_fini(&frame);
    for (int i = 0; i < 2; i++) { /* at once, and when the FETCH comes after all */
        assert_int_equal(fetch_take(&c, lost, got, 2), UINT32_MAX);
        assert_int_equal(c.err.status, TQ_E_CANCELLED);
        caller_repeat(&c, TQI_KIND_Fetch, lost, &fetch);
        world_settle(&w);
    }
    assert_int_equal(fetch_take(&c, lost, got, 2), UINT32_MAX);
    put_rows(&c, "p", 2, strs("a"), rows);
    consumed_is(&c, "t", 0);
    /* What is not older than the cancel is nobody's. */
    assert_int_equal(call(&c, CancelOp, &reply, &frame, .target_seq = c.seq + 9), TQ_OK);
    assert_false(reply.is_cancelled);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void waiters_are_served_in_order_of_arrival_and_hold_nobody_up(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[8];

    (void)state;
    setup(&w, &c, &u);
    uint64_t large = fetch_send(&c, "p", "t", 8, strs("a"));
    uint64_t first = fetch_send(&c, "p", "t", 2, strs("a"));
    uint64_t second = fetch_send(&c, "p", "t", 2, strs("a"));
    uint64_t other = fetch_send(&c, "p", "u", 3, strs("a"));
    put_rows(&c, "p", 3, strs("a"), rows);
    assert_false(caller_has(&c, large, TQI_KIND_Fetch));
    assert_false(caller_has(&c, second, TQI_KIND_Fetch));
    assert_int_equal(fetch_take(&c, first, got, 8), 2);
    assert_int_equal(got[0], rows[0]);
    assert_int_equal(fetch_take(&c, other, got, 8), 3);
    put_rows(&c, "p", 4, strs("a"), rows);
    assert_int_equal(fetch_take(&c, second, got, 8), 2);
    assert_false(caller_has(&c, large, TQI_KIND_Fetch));
    world_fini(&w);
}

static void a_waiter_for_whole_groups_waits_although_rows_are_enough(void **state)
{
    tqi_controller_conf_t conf = {.sampler = "GRPOGroupNSampler", .sampler_group = 2};
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];

    (void)state;
    world_init(&w, &conf);
    unit_register(&u, &w, 100, 7, "inproc://u1");
    caller_hello(&c, &w, 1);
    uint64_t put_id = put_begin_rows(&c, "p", 4, rows);
    (void)put_id;
    uint64_t seq = fetch_send(&c, "p", "t", 2, strs("a"));
    tqi_msg_Resolve_R_t resolved;
    tqi_buf_t frame;
    uint64_t apart[2] = {rows[0], rows[3]};
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(apart, 2), .fields = strs("a"), .is_put = true),
                     TQ_OK);
    uint64_t second = resolved.put_id;
    tqi_buf_fini(&frame);
    assert_int_equal(put_publish(&c, "p", second, apart, 2, strs("a")), TQ_OK);
    assert_false(caller_has(&c, seq, TQI_KIND_Fetch));
    assert_int_equal(put_publish(&c, "p", put_id, rows, 4, strs("a")), TQ_OK);
    assert_int_equal(fetch_take(&c, seq, got, 4), 2);
    assert_int_equal(got[0], rows[0]);
    assert_int_equal(got[1], rows[1]);
    seq = fetch_send(&c, "p", "t", 3, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 4), UINT32_MAX);
    assert_int_equal(c.err.status, TQ_E_INVALID);
    world_fini(&w);
}

static void polling_answers_at_once_with_nothing(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Fetch_R_t reply;
    tqi_buf_t frame;
    uint64_t rows[1], got[1];

    (void)state;
    setup(&w, &c, &u);
    assert_int_equal(call(&c, Fetch, &reply, &frame, .partition = tqi_str("nowhere"),
                          .task = tqi_str("t"), .fields = strs("a"), .rows_cnt = 1,
                          .mode = TQ_FETCH, .is_polling = true),
                     TQ_OK);
    assert_int_equal(reply.rows.cnt, 0);
    tqi_buf_fini(&frame);
    put_rows(&c, "p", 1, strs("a"), rows);
    assert_int_equal(call(&c, Fetch, &reply, &frame, .partition = tqi_str("p"),
                          .task = tqi_str("t"), .fields = strs("a"), .rows_cnt = 2,
                          .mode = TQ_FETCH, .is_polling = true),
                     TQ_OK);
    assert_int_equal(reply.rows.cnt, 0);
    tqi_buf_fini(&frame);
    uint64_t seq = fetch_send(&c, "p", "t", 0, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 1), UINT32_MAX);
    assert_int_equal(c.err.status, TQ_E_SAMPLER);
    world_fini(&w);
}

static void a_fetch_that_was_given_up_is_granted_nothing(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2];

    (void)state;
    setup(&w, &c, &u);
    uint64_t seq = fetch_send(&c, "p", "t", 2, strs("a"));
    caller_ack(&c, seq);
    put_rows(&c, "p", 2, strs("a"), rows);
    consumed_is(&c, "t", 0);
    world_fini(&w);
}

static void cleared_rows_of_a_grant_do_not_return(void **state)
{
    world_t w;
    caller_t c = {0}, d = {0};
    store_unit_t u = {0};
    uint64_t rows[4], got[4];

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&d, &w, 2);
    put_rows(&c, "p", 4, strs("a"), rows);
    uint64_t seq = fetch_send(&d, "p", "t", 4, strs("a"));
    assert_int_equal(fetch_take(&d, seq, got, 4), 4);
    clear_send(&c, "p", rows, 2);
    unit_obey_all(&u);
    tqi_controller_session_died(w.ctl, d.session, w.now_ns);
    world_settle(&w);
    consumed_is(&c, "t", 0);
    seq = fetch_send(&c, "p", "t", 2, strs("a"));
    assert_int_equal(fetch_take(&c, seq, got, 4), 2);
    assert_int_equal(got[0], rows[2]);
    world_fini(&w);
}

/* ---- sessions ---- */

static void a_session_survives_its_connection(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2], got[2];

    (void)state;
    setup(&w, &c, &u);
    uint64_t session = c.session;
    uint64_t seq = fetch_send(&c, "p", "t", 2, strs("a"));
    w.role->on_peer_down(w.role, c.peer, w.now_ns);
    world_settle(&w);
    caller_hello(&c, &w, 9);
    assert_int_equal(c.session, session);
    put_rows(&c, "p", 2, strs("a"), rows);
    assert_int_equal(fetch_take(&c, seq, got, 2), 2);
    world_fini(&w);
}

static void a_ping_names_the_lost_requests_and_the_lost_replies(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Ping_R_t pong;

    (void)state;
    setup(&w, &c, &u);
    caller_send(&c, TQI_KIND_Insert, &(tqi_msg_Insert_t){.partition = tqi_str("p")});
    world_drop_all(&w); /* the reply is lost; seq 2 never arrived; seq 3 waits */
    c.seq = 2;
    fetch_send(&c, "p", "t", 1, strs("a"));
    uint64_t open[] = {1, 2, 3};
    tqi_envelope_t env = {.version = 1,
                          .kind = TQI_KIND_Ping,
                          .incarnation = WORLD_INCARNATION,
                          .session = c.session,
                          .epoch = c.epoch,
                          .ack = 3,
                          .open_cnt = 3,
                          .open = (const uint8_t *)open};
    world_feed(&w, c.peer, &env, &(tqi_msg_Ping_t){0});
    world_frame_t *f = world_find(&w, c.peer, TQI_KIND_Ping_R, 0);
    assert_non_null(f);
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Ping_R, &pong, NULL), TQ_OK);
    assert_int_equal(pong.resend.cnt, 2);
    assert_int_equal(tqi_u64s_at(pong.resend, 0), 1);
    assert_int_equal(tqi_u64s_at(pong.resend, 1), 2);
    assert_int_equal(pong.unit_ids.cnt, 1);
    world_fini(&w);
}

static void an_ended_session_is_refused_and_units_are_told(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    uint64_t rows[2];
    tqi_msg_Bye_R_t bye;
    tqi_msg_EndSession_t end;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    put_rows(&c, "p", 2, strs("a"), rows);
    caller_send(&c, TQI_KIND_Bye, &(tqi_msg_Bye_t){0});
    world_settle(&w);
    assert_int_equal(caller_take(&c, c.seq, TQI_KIND_Bye, &bye, &frame), TQ_OK);
    tqi_buf_fini(&frame);
    world_frame_t *f = world_find(&w, u.peer, TQI_KIND_EndSession, 0);
    assert_non_null(f);
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_EndSession, &end, NULL), TQ_OK);
    assert_int_equal(end.session, c.session);
    assert_int_equal(end.published.cnt, 1);
    unit_obey_all(&u);

    tqi_msg_Insert_R_t reply;
    assert_int_equal(call(&c, Insert, &reply, &frame, .partition = tqi_str("p")),
                     TQ_E_SESSION_EXPIRED);
    tqi_buf_fini(&frame);
    caller_send(&c, TQI_KIND_Bye, &(tqi_msg_Bye_t){0});
    assert_int_equal(caller_take(&c, c.seq, TQI_KIND_Bye, &bye, &frame), TQ_OK);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void rows_that_only_an_unpublished_put_made_go_with_its_session(void **state)
{
    world_t w;
    caller_t c = {0}, d = {0};
    store_unit_t u = {0};
    uint64_t rows[3];
    tqi_msg_List_R_t list;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&d, &w, 2);
    put_begin_rows(&d, "p", 3, rows);
    assert_int_equal(call(&c, List, &list, &frame, .partition = tqi_str("p")), TQ_OK);
    assert_true(list.is_known);
    assert_int_equal(list.rows.cnt, 0);
    tqi_buf_fini(&frame);
    tqi_controller_session_died(w.ctl, d.session, w.now_ns);
    world_settle(&w);
    assert_int_equal(unit_obey(&u, TQI_KIND_Unlink), 1);
    tqi_msg_Resolve_R_t resolved;
    assert_int_equal(call(&c, Resolve, &resolved, &frame, .partition = tqi_str("p"),
                          .rows = tqi_u64s(rows, 3), .is_put = true),
                     TQ_E_ROW_GONE);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void another_store_is_told_apart(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Hello_t hello = {.version_min = 1, .version_max = 1, .incarnation_wanted = 5};
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Hello};

    (void)state;
    setup(&w, &c, &u);
    world_feed(&w, 50, &env, &hello);
    world_frame_t *f = world_find(&w, 50, TQI_KIND_Hello_R, 0);
    assert_non_null(f);
    assert_int_equal(f->env.status, TQ_E_STALE_STORE);
    assert_int_equal(f->env.incarnation, WORLD_INCARNATION);
    world_drop_all(&w);
    hello = (tqi_msg_Hello_t){.version_min = 7, .version_max = 9};
    world_feed(&w, 50, &env, &hello);
    f = world_find(&w, 50, TQI_KIND_Hello_R, 0);
    assert_non_null(f);
    assert_int_equal(f->env.status, TQ_E_VERSION);
    world_fini(&w);
}

static void a_pause_of_the_loop_is_forgiven(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_R_t reply;
    tqi_buf_t frame;

    (void)state;
    setup(&w, &c, &u);
    w.now_ns += 6000 * MS;
    tqi_controller_forgive(w.ctl, 6000 * MS);
    world_settle(&w);
    assert_int_equal(call(&c, Insert, &reply, &frame, .partition = tqi_str("p")), TQ_OK);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void draining_refuses_what_is_new_and_what_waits(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Insert_R_t reply;
    tqi_buf_t frame;
    uint64_t got[1];

    (void)state;
    setup(&w, &c, &u);
    uint64_t seq = fetch_send(&c, "p", "t", 1, strs("a"));
    assert_false(tqi_controller_is_idle(w.ctl));
    tqi_controller_drain(w.ctl, w.now_ns);
    world_settle(&w);
    assert_true(tqi_controller_is_idle(w.ctl));
    assert_int_equal(fetch_take(&c, seq, got, 1), UINT32_MAX);
    assert_int_equal(c.err.status, TQ_E_CLOSING);
    assert_int_equal(call(&c, Insert, &reply, &frame, .partition = tqi_str("p")), TQ_E_CLOSING);
    tqi_buf_fini(&frame);
    world_fini(&w);
}

static void bytes_that_are_no_message_are_counted_and_dropped(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_rng_t rng;
    uint8_t bytes[300];

    (void)state;
    setup(&w, &c, &u);
    tqi_rng_init(&rng, 3);
    for (int i = 0; i < 2000; i++) {
        size_t len = tqi_rng_below(&rng, sizeof bytes);

        for (size_t j = 0; j < len; j++)
            bytes[j] = (uint8_t)tqi_rng_u64(&rng);
        if (len >= 6)
            memcpy(bytes, "\x54\x54\x51\x31\x01\x00", 6);
        w.role->on_message(w.role, c.peer, bytes, len, w.now_ns);
        world_drop_all(&w);
    }
    /* A real request with every byte wrong in turn. */
    tqi_buf_t frame;
    tqi_envelope_t env = {.version = 1,
                          .kind = TQI_KIND_Publish,
                          .incarnation = WORLD_INCARNATION,
                          .session = c.session,
                          .epoch = 1,
                          .seq = 900};
    tqi_buf_init(&frame, &w.env.env);
    uint64_t row = 3;
    tqi_msg_Publish_t msg = {.partition = tqi_str("p"),
                             .put_id = 1,
                             .part = 1,
                             .parts = 1,
                             .rows = tqi_u64s(&row, 1),
                             .fields = strs("a")};
    assert_int_equal(tqi_msg_encode(&frame, &env, NULL, &msg, NULL), TQ_OK);
    for (size_t i = 0; i < frame.len; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            frame.data[i] ^= (uint8_t)(1u << bit);
            w.role->on_message(w.role, c.peer, frame.data, frame.len, w.now_ns);
            world_settle(&w);
            world_drop_all(&w);
            frame.data[i] ^= (uint8_t)(1u << bit);
        }
    tqi_buf_fini(&frame);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_nobody_took_return_when_the_session_ends),
        cmocka_unit_test(rows_that_were_taken_stay_consumed),
        cmocka_unit_test(a_reset_makes_older_grants_final),
        cmocka_unit_test(returned_rows_go_to_who_waits),
        cmocka_unit_test(a_cancelled_fetch_leaves_and_is_answered),
        cmocka_unit_test(a_cancel_that_comes_before_its_fetch_is_the_fetchs_answer),
        cmocka_unit_test(waiters_are_served_in_order_of_arrival_and_hold_nobody_up),
        cmocka_unit_test(a_waiter_for_whole_groups_waits_although_rows_are_enough),
        cmocka_unit_test(polling_answers_at_once_with_nothing),
        cmocka_unit_test(a_fetch_that_was_given_up_is_granted_nothing),
        cmocka_unit_test(cleared_rows_of_a_grant_do_not_return),
        cmocka_unit_test(a_session_survives_its_connection),
        cmocka_unit_test(a_ping_names_the_lost_requests_and_the_lost_replies),
        cmocka_unit_test(an_ended_session_is_refused_and_units_are_told),
        cmocka_unit_test(rows_that_only_an_unpublished_put_made_go_with_its_session),
        cmocka_unit_test(another_store_is_told_apart),
        cmocka_unit_test(a_pause_of_the_loop_is_forgiven),
        cmocka_unit_test(draining_refuses_what_is_new_and_what_waits),
        cmocka_unit_test(bytes_that_are_no_message_are_counted_and_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
