/* SPDX-License-Identifier: Apache-2.0 */
/* A storage unit and its controller, and the sessions that come and go. */
#include "role_storage.h"

#define CAPACITY (1u << 20)

static void it_registers_and_says_what_it_is(void **state)
{
    rig_t rig;
    (void)state;
    rig_start(&rig, CAPACITY);
    assert_int_equal(rig.connects, 1);
    assert_false(tqi_unit_is_registered(rig.unit));
    assert_true(rig_next(&rig));
    assert_int_equal(rig.reply_env.kind, TQI_KIND_Register);
    assert_int_equal(rig.msg.reg.unit_incarnation, 99);
    assert_int_equal(rig.msg.reg.unit_id, 0);
    assert_int_equal(rig.msg.reg.store_incarnation, 0);
    assert_int_equal(rig.msg.reg.capacity_bytes, CAPACITY);
    assert_int_equal(rig.msg.reg.free_bytes, CAPACITY);
    assert_int_equal(rig.msg.reg.addresses.cnt, 2);
    tqi_str_t second = tqi_strs_at(rig.msg.reg.addresses, 1);
    assert_memory_equal(second.data, "tcp://127.0.0.1:1", second.len);
    /* Lost: it says so again. */
    rig_sleep(&rig, 600);
    rig_register(&rig);
    rig_sleep(&rig, 600);
    assert_false(rig_next(&rig));
    rig_close(&rig);
}

static void a_refusal_is_told_and_asked_again(void **state)
{
    rig_t rig;
    tqi_msg_Error_t error = {.text = tqi_str("protocol 7 only")};
    (void)state;
    rig_start(&rig, CAPACITY);
    assert_true(rig_next(&rig));
    rig_controller_says(&rig, TQI_KIND_Register | TQI_KIND_REPLY, TQ_E_VERSION, 0, &error);
    assert_false(tqi_unit_is_registered(rig.unit));
    assert_string_equal(tqi_unit_error(rig.unit), "protocol 7 only");
    rig_sleep(&rig, 600);
    rig_register(&rig);
    assert_string_equal(tqi_unit_error(rig.unit), "");
    rig_close(&rig);
}

static void a_bad_configuration_is_refused(void **state)
{
    rig_t rig;
    tqi_unit_t *unit;
    tqi_err_t err;
    tqi_unit_conf_t conf = {.unit_incarnation = 1, .controller = "nowhere", .capacity_bytes = 1000};
    (void)state;
    rig_start(&rig, CAPACITY);
    assert_int_equal(tqi_unit_new(&rig.env.env, &conf, &rig.ctrl, NULL, &rig.arena, 0, &unit, &err),
                     TQ_E_CONFIG);
    assert_string_equal(err.text, "'nowhere' is no address");
    conf.capacity_bytes = 0;
    assert_int_equal(tqi_unit_new(&rig.env.env, &conf, &rig.ctrl, NULL, &rig.arena, 0, &unit, &err),
                     TQ_E_CONFIG);
    rig_close(&rig);
}

static void a_ping_is_answered_with_what_is_free_and_what_was_lost(void **state)
{
    rig_t rig;
    uint64_t open[2] = {41, 42};
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 10, 1000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    tqi_envelope_t env = {
        .version = 1, .kind = TQI_KIND_Ping, .incarnation = RIG_STORE, .ack = 42, .open_cnt = 2};
    rig_deliver(&rig, rig.controller, &env, open, NULL);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Ping), TQ_OK);
    assert_int_equal(rig.msg.ping.capacity_bytes, CAPACITY);
    assert_int_equal(rig.msg.ping.free_bytes, CAPACITY - 10240);
    assert_int_equal(rig.msg.ping.resend.cnt, 2);
    rig_close(&rig);
}

static void a_silent_controller_makes_it_refuse_everybody(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 10, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_confirm(&rig, 1);
    rig_sleep(&rig, 5000);
    assert_int_equal(rig_value(&rig, 0), 1);
    rig_sleep(&rig, 1);
    assert_int_equal(rig_get(&rig, 0, 0, 1, 1000, 0, false), TQ_E_UNIT_LOST);
    assert_non_null(strstr(rig_text(&rig), "has not heard the controller for 5001 ms"));
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT + 1, 78, 1), TQ_E_UNIT_LOST);
    /* A word is not enough: it must have been told what it missed. */
    rig_ping(&rig);
    assert_true(rig_next(&rig));
    assert_int_equal(rig.reply_env.kind, TQI_KIND_Register);
    assert_int_equal(rig.msg.reg.unit_id, 3);
    assert_int_equal(rig.msg.reg.store_incarnation, RIG_STORE);
    assert_int_equal(rig_get(&rig, 0, 0, 1, 1000, 0, false), TQ_E_UNIT_LOST);
    assert_non_null(strstr(rig_text(&rig), "is not registered"));
    rig_unlink(&rig, 0, 1);
    rig_sleep(&rig, 600);
    rig_register(&rig);
    assert_int_equal(rig_value(&rig, 0), -1);
    assert_int_equal(rig_value(&rig, 1), 1);
    rig_close(&rig);
}

static void its_last_word_goes_to_clients_and_to_the_controller(void **state)
{
    rig_t rig;
    bool has_client = false, has_controller = false;

    (void)state;
    rig_open(&rig, CAPACITY);
    tqi_unit_drain(rig.unit, rig.now);
    assert_true(tqi_unit_is_idle(rig.unit));
    assert_false(rig_next(&rig));
    tqi_unit_say_closing(rig.unit);
    while (rig_next(&rig)) {
        assert_int_equal(rig.reply_env.kind, TQI_KIND_Closing);
        assert_int_equal(rig.reply_env.incarnation, RIG_STORE);
        assert_int_equal(rig.reply_env.sender, 3);
        if (rig.reply_env.session == RIG_SESSION)
            has_client = true;
        else
            has_controller = rig.reply_env.session == 0;
    }
    assert_true(has_client && has_controller);
    assert_false(tqi_unit_is_heard(rig.unit));
    rig_controller_says(&rig, TQI_KIND_Closing_R, TQ_OK, 0, &(tqi_msg_Closing_R_t){0});
    assert_false(tqi_unit_is_heard(rig.unit));
    tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_Closing_R, 0);
    rig_deliver(&rig, RIG_CLIENT, &env, NULL, &(tqi_msg_Closing_R_t){0});
    assert_true(tqi_unit_is_heard(rig.unit));
    rig_close(&rig);
}

static void a_lost_connection_is_made_again_and_service_goes_on(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 10, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_confirm(&rig, 1);
    rig_sleep(&rig, 1000);
    rig.role->on_peer_down(rig.role, rig.controller, rig.now);
    assert_int_equal(rig.connects, 1);
    rig_step(&rig);
    assert_int_equal(rig.connects, 2);
    rig_register(&rig);
    assert_int_equal(rig_value(&rig, 3), 1);
    rig_close(&rig);
}

static void a_controller_that_is_not_there_is_dialled_twice_a_second(void **state)
{
    rig_t rig;
    (void)state;
    rig_start(&rig, CAPACITY);
    for (uint32_t i = 1; i < 10; i++) {
        assert_int_equal(rig.connects, i);
        rig.role->on_peer_down(rig.role, rig.controller, rig.now);
        rig_step(&rig);
        assert_string_equal(
            tqi_unit_error(rig.unit),
            "no connection to the controller at inproc://controller: connection refused");
        rig_sleep(&rig, 500);
    }
    while (rig.sent_cnt > 1)
        assert_true(rig_next(&rig));
    rig_register(&rig);
    assert_string_equal(tqi_unit_error(rig.unit), "");
    rig_close(&rig);
}

static void a_lost_connection_registers_again(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig.role->on_peer_down(rig.role, rig.controller, rig.now);
    rig_sleep(&rig, 500);
    rig_register(&rig);
    assert_int_equal(rig.reply_env.epoch, 2); /* so that what the first one still brings is known */
    /* And a peer that says nothing any more, without a hang-up, is dialled anew. */
    rig_sleep(&rig, 10002);
    assert_int_equal(rig.disconnects, 1);
    assert_int_equal(rig.connects, 3);
    rig_register(&rig);
    rig_close(&rig);
}

static void another_store_finds_it_empty(void **state)
{
    rig_t rig;
    tqi_msg_Error_t stale = {.text = tqi_str("another store")};
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 10, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_confirm(&rig, 1);
    rig_unlink(&rig, 9, 10);
    /* A transfer that the payload port still has is waited for. */
    rig_put_t stream = {.transfer = 2,
                        .put_id = 2,
                        .first = 50,
                        .rows_cnt = 1,
                        .field = "x",
                        .len = 100000,
                        .mode = TQI_PAYLOAD_STREAM};
    assert_int_equal(rig_put(&rig, &stream), TQ_OK);
    rig.incarnation = 0x1234;
    rig.role->on_peer_down(rig.role, rig.controller, rig.now);
    rig_sleep(&rig, 500);
    assert_true(rig_next(&rig));
    assert_int_equal(rig.msg.reg.store_incarnation, RIG_STORE);
    rig_controller_says(&rig, TQI_KIND_Register | TQI_KIND_REPLY, TQ_E_STALE_STORE, 0, &stale);
    rig_sleep(&rig, 600);
    assert_false(rig_next(&rig));
    assert_true(rig_transfer(&rig, RIG_SESSION, 2)->is_dropped);
    rig_payload_done(&rig, RIG_SESSION, 2, TQ_E_CANCELLED, "dropped");
    assert_true(rig_next(&rig));
    assert_int_equal(rig.reply_env.kind, TQI_KIND_Register);
    assert_int_equal(rig.msg.reg.store_incarnation, 0);
    assert_int_equal(rig.msg.reg.unit_id, 0);
    assert_int_equal(rig.msg.reg.free_bytes, CAPACITY);
    rig_sleep(&rig, 600);
    rig_register(&rig);
    /* Nothing is known of the old rows, dead ones included. */
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 2), TQ_OK);
    rig.seq = rig.ack = 0;
    put = rig_fused(3, 9, 1, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 1);
    assert_int_equal(rig_figure(&rig, "cells_published"), 0);
    rig_close(&rig);
}

static void a_message_for_another_store_is_refused(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig.incarnation = 0x1234;
    assert_int_equal(rig_get(&rig, 0, 0, 1, 100, 0, false), TQ_E_STALE_STORE);
    uint64_t lo = 0, hi = 10;
    tqi_msg_Unlink_t unlink = {.lo = tqi_u64s(&lo, 1), .hi = tqi_u64s(&hi, 1)};
    rig_controller_says(&rig, TQI_KIND_Unlink, TQ_OK, 9, &unlink);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Unlink), TQ_E_STALE_STORE);
    rig.incarnation = RIG_STORE;
    tqi_msg_Hello_t hello = {.version_min = 1, .version_max = 1, .incarnation_wanted = 5};
    tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_Hello, 0);
    rig_deliver(&rig, RIG_CLIENT, &env, NULL, &hello);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Hello), TQ_E_STALE_STORE);
    rig_close(&rig);
}

static void a_hello_is_told_where_the_payload_goes(void **state)
{
    rig_t rig;
    uint8_t token[16];
    (void)state;
    rig_open(&rig, CAPACITY);
    assert_int_equal(rig.msg.hello.version, 1);
    assert_memory_equal(rig.msg.hello.payload_address.data, "inproc://data", 13);
    memset(token, (int)RIG_SESSION, sizeof token);
    assert_memory_equal(rig.msg.hello.payload_token.data, token, 16);
    assert_int_equal(rig.msg.hello.direct_arena, 4711);
    tqi_msg_Hello_t old = {.version_min = 7, .version_max = 9};
    tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_Hello, 0);
    rig_deliver(&rig, RIG_CLIENT + 1, &env, NULL, &old);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Hello), TQ_E_VERSION);
    assert_string_equal(rig_text(&rig),
                        "the client speaks protocol versions 7 to 9, the unit 1 to 1");
    rig_close(&rig);
}

static void a_hello_that_finds_no_memory_for_a_way_is_refused_and_said_again(void **state)
{
    rig_t rig;
    (void)state;
    rig_start(&rig, CAPACITY);
    rig_register(&rig);
    rig.refuses_offers = true;
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 1), TQ_E_NO_MEMORY);
    rig.refuses_offers = false;
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 1), TQ_OK);
    assert_int_equal(rig.msg.hello.payload_token.len, 16);
    rig_close(&rig);
}

static void a_connection_speaks_for_the_session_of_its_hello_only(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT + 1, 78, 1), TQ_OK);
    tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_Stat, 1);
    env.session = 78;
    rig_deliver(&rig, RIG_CLIENT, &env, NULL, NULL);
    env.session = 79;
    rig_deliver(&rig, RIG_CLIENT + 5, &env, NULL, NULL);
    assert_false(rig_next(&rig));
    assert_int_equal(rig_figure(&rig, "dropped"), 2);
    /* What only the controller may say. */
    env = rig_envelope(&rig, TQI_KIND_Unlink, 1);
    rig_deliver(&rig, RIG_CLIENT, &env, NULL, NULL);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Unlink), TQ_E_DENIED);
    rig_close(&rig);
}

static void a_request_sent_twice_is_executed_once(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 4, 100);
    uint64_t seq = rig_prepare_put(&rig, &put);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_OK);
    rig.ack = 0; /* the client says that it never saw the answer */
    rig.seq = seq - 1;
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig.reply_env.seq, seq);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 4);
    assert_int_equal(rig_figure(&rig, "puts"), 1);
    /* Acknowledged, it is never answered again. */
    rig.ack = seq;
    rig.seq = seq - 1;
    rig_prepare_put(&rig, &put);
    assert_false(rig_next(&rig));
    rig_close(&rig);
}

static void answers_go_to_the_newest_connection(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t large = rig_fused(1, 0, 15, 60000);
    large.is_fused = false;
    large.mode = TQI_PAYLOAD_DIRECT;
    assert_int_equal(rig_put(&rig, &large), TQ_OK);
    rig_put_t parked = rig_fused(2, 100, 1, 60000);
    parked.wait_ms = 1000;
    rig_prepare_put(&rig, &parked);
    assert_false(rig_next(&rig));
    /* Connects anew; a HELLO of the old connection that comes late changes nothing. */
    rig.role->on_peer_down(rig.role, RIG_CLIENT, rig.now);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT + 1, RIG_SESSION, 2), TQ_OK);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 1), TQ_OK);
    rig_sleep(&rig, 1000);
    assert_int_equal(rig.sent[0].peer, RIG_CLIENT + 1);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_E_FULL);
    assert_int_equal(rig.reply_env.epoch, 2);
    rig_close(&rig);
}

static void a_ping_names_what_the_unit_does_not_have(void **state)
{
    rig_t rig;
    uint64_t open[3] = {1, 2, 3};
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 4, 100);
    rig.seq = 1;
    rig_prepare_put(&rig, &put); /* seq 2: done, and the answer lost */
    assert_true(rig_next(&rig));
    tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_Ping, 0);
    env.ack = 3;
    env.open_cnt = 3;
    rig_deliver(&rig, RIG_CLIENT, &env, open, NULL);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Ping), TQ_OK);
    assert_int_equal(rig.msg.ping.resend.cnt, 3);
    rig_close(&rig);
}

static void the_end_of_a_session_takes_what_was_not_published(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    put = rig_fused(2, 10, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    put = rig_fused(3, 20, 4, 1000);
    put.is_fused = false;
    put.mode = TQI_PAYLOAD_DIRECT;
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig_figure(&rig, "cells_claimed"), 4);
    rig_end_session(&rig, RIG_SESSION, 2);
    assert_int_equal(rig_figure(&rig, "cells_published"), 4);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 0);
    assert_int_equal(rig_figure(&rig, "cells_claimed"), 0);
    assert_int_equal(rig.forgotten, 1);
    /* What its client may still write to goes when no lease lets it. */
    assert_int_equal(rig_figure(&rig, "sessions"), 1);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 4096);
    rig_let_leases_pass(&rig);
    assert_int_equal(rig_figure(&rig, "sessions"), 0);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 0);
    rig_check(&rig);
    assert_int_equal(rig_get(&rig, 0, 10, 1, 1000, 0, false), TQ_E_SESSION_EXPIRED);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 5), TQ_E_SESSION_EXPIRED);
    rig_end_session(&rig, RIG_SESSION, 2); /* again */
    rig_end_session(&rig, 500, 0);         /* one that never came, and may not any more */
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, 500, 1), TQ_E_SESSION_EXPIRED);
    rig_close(&rig);
}

static void a_session_that_ended_before_it_registered_begins_no_more(void **state)
{
    rig_t rig;
    uint64_t lo[] = {1, RIG_SESSION + 1}, hi[] = {RIG_SESSION, RIG_SESSION + 2};
    tqi_msg_Register_R_t answer = {.version = 1,
                                   .unit_id = 3,
                                   .silence_ms = 5000,
                                   .ended_lo = tqi_u64s(lo, 2),
                                   .ended_hi = tqi_u64s(hi, 2)};
    (void)state;
    rig_start(&rig, CAPACITY);
    assert_true(rig_next(&rig));
    rig_controller_says(&rig, TQI_KIND_Register | TQI_KIND_REPLY, TQ_OK, 0, &answer);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION - 1, 1), TQ_E_SESSION_EXPIRED);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION + 1, 1), TQ_E_SESSION_EXPIRED);
    assert_int_equal(rig_figure(&rig, "sessions"), 0);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 1), TQ_OK);
    rig_close(&rig);
}

static void a_put_from_before_this_life_is_refused(void **state)
{
    rig_t rig;
    tqi_msg_Register_R_t answer = {.version = 1, .unit_id = 3, .silence_ms = 5000, .put_last = 7};
    (void)state;
    rig_start(&rig, CAPACITY);
    assert_true(rig_next(&rig));
    rig_controller_says(&rig, TQI_KIND_Register | TQI_KIND_REPLY, TQ_OK, 0, &answer);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 1), TQ_OK);
    rig_put_t put = rig_fused(7, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_E_PEER_LOST);
    put = rig_fused(8, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_close(&rig);
}

static void long_orders_are_done_in_slices(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, 64u << 20);
    for (uint64_t p = 0; p < 20; p++) {
        rig_put_t put = rig_fused(1 + p, p * 256, 256, 200);
        assert_int_equal(rig_put(&rig, &put), TQ_OK);
        rig_confirm(&rig, 1 + p);
    }
    uint64_t lo = 0, hi = 5 << 20;
    tqi_msg_Unlink_t msg = {.lo = tqi_u64s(&lo, 1), .hi = tqi_u64s(&hi, 1)};
    tqi_envelope_t env = {
        .version = 1, .kind = TQI_KIND_Unlink, .incarnation = RIG_STORE, .seq = 1};
    tqi_buf_t frame;
    tqi_buf_init(&frame, &rig.env.env);
    assert_int_equal(tqi_msg_encode(&frame, &env, NULL, &msg, NULL), TQ_OK);
    rig.role->on_message(rig.role, rig.controller, frame.data, frame.len, rig.now);
    rig.role->on_message(rig.role, rig.controller, frame.data, frame.len, rig.now);
    tqi_buf_fini(&frame);
    assert_int_equal(rig_figure(&rig, "orders"), 1); /* the copy is not a second order */
    assert_false(rig_next(&rig));
    rig_step(&rig);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Unlink), TQ_OK);
    assert_int_equal(rig.msg.unlink.free_bytes, 64u << 20);
    assert_int_equal(rig_figure(&rig, "blocks"), 0);
    rig_close(&rig);
}

static void whole_blocks_die_for_ever(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 1000, 100, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_confirm(&rig, 1);
    uint64_t lo = 1, hi = 2;
    tqi_msg_Unlink_t msg = {.dead_blocks_lo = tqi_u64s(&lo, 1), .dead_blocks_hi = tqi_u64s(&hi, 1)};
    rig_controller_says(&rig, TQI_KIND_Unlink, TQ_OK, 1, &msg);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Unlink), TQ_OK);
    assert_int_equal(rig_figure(&rig, "cells_published"), 24);
    assert_int_equal(rig_value(&rig, 1023), 1);
    assert_int_equal(rig_get(&rig, 0, 1024, 1, 1000, 0, false), TQ_E_NOT_FOUND);
    put = rig_fused(2, 1020, 8, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_E_ROW_GONE);
    assert_int_equal(rig.msg.error.rows.cnt, 4);
    assert_int_equal(tqi_u64s_at(rig.msg.error.rows, 0), 1024);
    rig_close(&rig);
}

static void garbage_is_counted_and_nothing_else(void **state)
{
    rig_t rig;
    tqi_rng_t rng;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(1, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    tqi_rng_init(&rng, 7);
    for (int i = 0; i < 20000; i++) {
        /* A good frame of every kind, some bytes of its body changed. */
        static const uint16_t kinds[] = {TQI_KIND_Hello,
                                         TQI_KIND_Ping,
                                         TQI_KIND_PreparePut,
                                         TQI_KIND_Commit,
                                         TQI_KIND_Abort,
                                         TQI_KIND_Release,
                                         TQI_KIND_PrepareGet,
                                         TQI_KIND_Cancel,
                                         TQI_KIND_Renew,
                                         TQI_KIND_Stat,
                                         TQI_KIND_Unlink,
                                         TQI_KIND_Confirm,
                                         TQI_KIND_EndSession,
                                         60,
                                         TQI_KIND_Register | TQI_KIND_REPLY};
        uint8_t body[64];
        tqi_buf_t frame;
        tqi_envelope_t env = rig_envelope(&rig, kinds[tqi_rng_below(&rng, 15)], ++rig.seq);
        bool is_controller = tqi_rng_chance(&rng, 0.3);

        if (is_controller)
            env.session = 0;
        env.ack = rig.seq - 1;
        tqi_buf_init(&frame, &rig.env.env);
        assert_int_equal(tqi_envelope_begin(&frame, &env, NULL), TQ_OK);
        size_t len = tqi_rng_below(&rng, sizeof body);
        for (size_t b = 0; b < len; b++)
            body[b] = (uint8_t)tqi_rng_u64(&rng);
        body[0] = (uint8_t)(0x80 | tqi_rng_below(&rng, 8)); /* a small map */
        assert_int_equal(tqi_buf_append(&frame, body, len), TQ_OK);
        tqi_envelope_seal(&frame);
        if (tqi_rng_chance(&rng, 0.1))
            frame.data[tqi_rng_below(&rng, frame.len)] ^= 1;
        rig.role->on_message(rig.role, is_controller ? rig.controller : RIG_CLIENT, frame.data,
                             frame.len, rig.now);
        rig_step(&rig);
        tqi_buf_fini(&frame);
        for (uint32_t s = 0; s < rig.sent_cnt; s++)
            tqi_buf_fini(&rig.sent[s].buf);
        rig.sent_cnt = 0;
    }
    rig_check(&rig);
    assert_in_range(rig_figure(&rig, "malformed"), 100, 20000);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_registers_and_says_what_it_is),
        cmocka_unit_test(a_refusal_is_told_and_asked_again),
        cmocka_unit_test(a_bad_configuration_is_refused),
        cmocka_unit_test(a_ping_is_answered_with_what_is_free_and_what_was_lost),
        cmocka_unit_test(a_silent_controller_makes_it_refuse_everybody),
        cmocka_unit_test(its_last_word_goes_to_clients_and_to_the_controller),
        cmocka_unit_test(a_lost_connection_is_made_again_and_service_goes_on),
        cmocka_unit_test(a_controller_that_is_not_there_is_dialled_twice_a_second),
        cmocka_unit_test(a_lost_connection_registers_again),
        cmocka_unit_test(another_store_finds_it_empty),
        cmocka_unit_test(a_message_for_another_store_is_refused),
        cmocka_unit_test(a_hello_is_told_where_the_payload_goes),
        cmocka_unit_test(a_hello_that_finds_no_memory_for_a_way_is_refused_and_said_again),
        cmocka_unit_test(a_connection_speaks_for_the_session_of_its_hello_only),
        cmocka_unit_test(a_request_sent_twice_is_executed_once),
        cmocka_unit_test(answers_go_to_the_newest_connection),
        cmocka_unit_test(a_ping_names_what_the_unit_does_not_have),
        cmocka_unit_test(the_end_of_a_session_takes_what_was_not_published),
        cmocka_unit_test(a_session_that_ended_before_it_registered_begins_no_more),
        cmocka_unit_test(a_put_from_before_this_life_is_refused),
        cmocka_unit_test(long_orders_are_done_in_slices),
        cmocka_unit_test(whole_blocks_die_for_ever),
        cmocka_unit_test(garbage_is_counted_and_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
