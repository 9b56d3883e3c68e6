/* SPDX-License-Identifier: Apache-2.0 */
#include "role_client.h"

#include "base/rng.h"
#include "base/size.h"

static tqi_op_t *clear_op(rig_t *rig)
{
    tqi_op_t *op;
    tq_clear_args_t args = {.partition = "p", .is_all = true};

    assert_int_equal(tqi_op_clear(&rig->env.env, &args, &op, NULL), TQ_OK);
    return op;
}

static tqi_op_t *tags_op(rig_t *rig)
{
    tqi_op_t *op;
    tq_row_t row = 5;
    uint32_t offsets[] = {0, 1};
    tq_strs_t tags = {1, offsets, "\x80"};
    tq_tags_args_t args = {.partition = "p", .rows_cnt = 1, .rows = &row, .tags = &tags};

    assert_int_equal(tqi_op_tags(&rig->env.env, &args, &op, NULL), TQ_OK);
    return op;
}

static void answer_clear(rig_t *rig, uint64_t rows)
{
    tqi_msg_Clear_t msg;
    tqi_msg_Clear_R_t reply = {.rows_cnt = rows};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Clear, &msg);

    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void hello_opens_a_session(void **state)
{
    rig_t rig;
    size_t len;

    (void)state;
    rig_init(&rig);
    assert_string_equal(rig.addresses[0], "tcp://store:1");
    rig_greet(&rig);
    assert_int_equal(tqi_client_session(rig.client), RIG_SESSION);
    assert_int_equal(tqi_client_incarnation(rig.client), RIG_INCARNATION);
    assert_memory_equal(tqi_client_user_conf(rig.client, &len), "conf", 4);
    assert_int_equal(rig.ups, 1);
    assert_int_equal(rig.frames_cnt, 0);
    rig_fini(&rig);
}

static void an_unanswered_hello_is_sent_again(void **state)
{
    rig_t rig;
    tqi_msg_Hello_t hello;

    (void)state;
    rig_init(&rig);
    rig_frame_t first = rig_expect(&rig, TQI_KIND_Hello, &hello);
    rig_pass(&rig, 1000);
    rig_free(&first);
    rig_greet(&rig);
    assert_int_equal(rig.ups, 1);
    rig_fini(&rig);
}

/* A thousand processes that dial a store at once must not dial it again while it greets them. */
static void an_unanswered_hello_is_dialled_again_with_more_patience(void **state)
{
    rig_t rig;
    uint32_t dialled_after_s[4] = {0};

    (void)state;
    rig_init(&rig);
    for (uint32_t s = 1, dialled = 1; s < 40 && dialled < 4; s++) {
        rig_pass(&rig, 1000);
        for (uint32_t i = 0; i < rig.frames_cnt; i++)
            tqi_buf_fini(&rig.frames[i].buf);
        rig.frames_cnt = 0;
        if (rig.peers_cnt > dialled)
            dialled_after_s[dialled++] = s;
    }
    assert_in_range(dialled_after_s[1], 3, 4);
    assert_in_range(dialled_after_s[2] - dialled_after_s[1], 6, 7);
    assert_in_range(dialled_after_s[3] - dialled_after_s[2], 12, 13);
    rig_pass(&rig, 1000);
    rig_greet(&rig);
    assert_int_equal(rig.ups, 1);
    rig_fini(&rig);
}

static void a_call_is_one_request_and_its_reply(void **state)
{
    rig_t rig;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    answer_clear(&rig, 3);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_int_equal(tqi_op_result(op)->count, 3);
    assert_int_equal(tqi_op_result(op)->incarnation, RIG_INCARNATION);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_call_before_the_session_waits_for_it(void **state)
{
    rig_t rig;

    (void)state;
    rig_init(&rig);
    rig_submit(&rig, clear_op(&rig));
    assert_int_equal(rig.frames_cnt, 1);
    rig_greet(&rig);
    answer_clear(&rig, 0);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void ping_names_what_is_open_and_resends_what_is_missing(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t msg;
    tqi_msg_Ping_t ping;
    uint64_t seq;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t lost = rig_expect(&rig, TQI_KIND_Clear, &msg);
    assert_int_equal(lost.env.attempt, 0);
    seq = lost.env.seq;
    rig_free(&lost);
    rig_pass(&rig, 1000);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
    assert_int_equal(frame.env.seq, 0);
    assert_int_equal(frame.env.ack, seq);
    assert_int_equal(frame.env.open_cnt, 1);
    tqi_msg_Ping_R_t pong = {.resend = tqi_u64s(&seq, 1)};
    rig_answer(&rig, &frame, TQ_OK, &pong);
    frame = rig_expect(&rig, TQI_KIND_Clear, &msg);
    assert_int_equal(frame.env.seq, seq);
    assert_int_equal(frame.env.attempt, 1);
    tqi_msg_Clear_R_t reply = {0};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void a_second_reply_is_nobodys(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t msg;
    tqi_msg_Clear_R_t reply = {.rows_cnt = 1};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Clear, &msg), twin = frame;
    tqi_buf_init(&twin.buf, &rig.env.env);
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_answer(&rig, &twin, TQ_OK, &reply);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void a_broken_connection_is_made_again_and_all_is_sent_again(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t msg;
    tqi_msg_Hello_t hello;
    tqi_role_t *role;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    role = tqi_client_role(rig.client);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t lost = rig_expect(&rig, TQI_KIND_Clear, &msg);
    role->on_peer_down(role, lost.peer, rig.now);
    rig_idle(&rig, 20);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
    assert_int_equal(frame.env.session, RIG_SESSION);
    assert_true(frame.env.epoch != lost.env.epoch);
    assert_int_equal(frame.peer, 2);
    tqi_msg_Hello_R_t greeting = {.version = 1, .ping_ms = 1000};
    rig_answer(&rig, &frame, TQ_OK, &greeting);
    frame = rig_expect(&rig, TQI_KIND_Clear, &msg);
    assert_int_equal(frame.env.seq, lost.env.seq);
    assert_int_equal(frame.env.attempt, 1);
    tqi_msg_Clear_R_t reply = {0};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_done_with(&rig, TQ_OK);
    assert_int_equal(rig.ups, 1);
    rig_free(&lost);
    rig_fini(&rig);
}

static void a_dead_address_fails_within_five_seconds_and_says_what_to_do(void **state)
{
    rig_t rig;
    tqi_role_t *role;

    (void)state;
    rig_init(&rig);
    role = tqi_client_role(rig.client);
    rig_submit(&rig, clear_op(&rig));
    for (int ms = 0; ms < 5000 && rig.done_cnt == 0; ms += 50) {
        if (rig.frames_cnt > 0)
            role->on_peer_down(role, rig.frames[0].peer, rig.now);
        rig_drop_frames(&rig);
        rig.peers_cnt = rig.peers_cnt > 1 ? 1 : rig.peers_cnt;
        rig_idle(&rig, 50);
    }
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_UNREACHABLE);
    assert_non_null(strstr(tqi_op_error(op), "tcp://store:1"));
    assert_non_null(strstr(tqi_op_error(op), "TQ_ADDRESS"));
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_store_that_takes_no_more_clients_says_so_itself(void **state)
{
    tqi_msg_Hello_t hello;
    rig_t rig;

    (void)state;
    rig_init(&rig);
    rig_submit(&rig, clear_op(&rig));
    for (int ms = 0; ms < 6000 && rig.done_cnt == 0; ms += 10) {
        while (rig.frames_cnt > 0) {
            rig_frame_t frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
            rig_answer(&rig, &frame, TQ_E_BUSY, NULL);
        }
        rig.peers_cnt = rig.peers_cnt > 1 ? 1 : rig.peers_cnt;
        rig_pass(&rig, 10);
    }
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_BUSY);
    assert_non_null(strstr(tqi_op_error(op), "tcp://store:1"));
    assert_non_null(strstr(tqi_op_error(op), "as the test wants"));
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_silent_controller_fails_calls_within_five_seconds(void **state)
{
    rig_t rig;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_pass(&rig, 100);
    rig_submit(&rig, clear_op(&rig));
    rig_idle(&rig, 4900);
    assert_int_equal(rig.done_cnt, 0);
    rig_idle(&rig, 100);
    rig_done_with(&rig, TQ_E_UNREACHABLE);
    rig_fini(&rig);
}

static void a_refused_address_refuses_every_call(void **state)
{
    rig_t rig;

    (void)state;
    rig_init_conf(&rig, (tqi_client_conf_t){.address = "bad"});
    assert_int_equal(rig.refusals, 1);
    rig_submit(&rig, clear_op(&rig));
    rig_done_with(&rig, TQ_E_CONFIG);
    rig_fini(&rig);
}

static void a_lost_session_repeats_reads_and_leaves_writes_unknown(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t clear;
    tqi_msg_Tags_t tags;
    tqi_op_t *op;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_submit(&rig, tags_op(&rig));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig_frame_t other = rig_expect(&rig, TQI_KIND_Tags, &tags);
    rig_free(&frame);
    rig_answer(&rig, &other, TQ_E_SESSION_EXPIRED, NULL);
    op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_OUTCOME_UNKNOWN);
    tqi_op_free(op);
    assert_int_equal(rig.downs, 1);
    rig.session = 78;
    rig_step(&rig);
    rig_greet(&rig);
    assert_int_equal(tqi_client_session(rig.client), 78);
    frame = rig_expect(&rig, TQI_KIND_Clear, &clear);
    assert_int_equal(frame.env.session, 78);
    assert_int_equal(frame.env.seq, 1);
    tqi_msg_Clear_R_t reply = {0};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

/* Unit 1 of the new store is another one than unit 1 of the old. */
static void units_of_an_old_store_are_forgotten(void **state)
{
    rig_t rig;
    tqi_msg_Hello_t hello;
    tqi_msg_Clear_t clear;
    tqi_msg_Hello_R_t greeting = {.version = 1, .ping_ms = 1000, .silence_ms = 5000};
    tq_row_t row = 5;
    tq_get_args_t get = {.partition = "p", .rows_cnt = 1, .rows = &row};
    static const uint32_t offsets[] = {0, 1};
    static const char name[] = "a";
    tq_strs_t fields = {.cnt = 1, .offsets = offsets, .bytes = name};
    uint64_t rows[] = {5};
    uint32_t units[] = {1};
    uint8_t produced = 1;
    tqi_op_t *op;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig.incarnation = 0x123;
    rig_answer(&rig, &frame, TQ_E_STALE_STORE, NULL);
    rig_done_with(&rig, TQ_E_STALE_STORE);
    rig_submit(&rig, clear_op(&rig));
    rig_done_with(&rig, TQ_E_STALE_STORE);
    rig.session = 99;
    frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
    rig_answer(&rig, &frame, TQ_OK, &greeting); /* no unit has registered yet */

    get.fields = &fields;
    assert_int_equal(tqi_op_get(&rig.env.env, &get, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    tqi_msg_Resolve_t resolve;
    frame = rig_expect(&rig, TQI_KIND_Resolve, &resolve);
    tqi_msg_Resolve_R_t resolved = {.is_known = true,
                                    .rows = tqi_u64s(rows, 1),
                                    .units = tqi_u32s(units, 1),
                                    .produced = {&produced, 1},
                                    .schemas = {offsets, "", 1, 0},
                                    .keys = {offsets, "", 1, 0},
                                    .has_key = {&produced, 1}};
    static const uint32_t none[] = {0, 0};
    resolved.schemas.offsets = resolved.keys.offsets = none;
    rig_answer(&rig, &frame, TQ_OK, &resolved);
    uint32_t peers = rig.peers_cnt;
    rig_pass(&rig, 100);
    assert_int_equal(rig.peers_cnt, peers); /* nobody is dialled at an old address */
    tqi_client_cancel(rig.client, op, rig.now);
    rig_pass(&rig, 100);
    rig_done_with(&rig, TQ_E_CANCELLED);
    rig_drop_frames(&rig);
    rig_fini(&rig);
}

static void a_call_that_waits_to_be_repeated_can_be_closed(void **state)
{
    rig_t rig;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t frame = rig_take(&rig, TQI_KIND_Clear);
    rig_answer(&rig, &frame, TQ_E_SESSION_EXPIRED, NULL);
    assert_int_equal(rig.done_cnt, 0);
    tqi_client_close(rig.client, rig.now);
    rig_step(&rig);
    rig_done_with(&rig, TQ_E_CLOSED);
    rig_fini(&rig);
}

static void requests_of_a_lost_session_are_forgotten_even_without_memory(void **state)
{
    rig_t rig;
    tqi_msg_Tags_t tags;
    tqi_envelope_t env = {.version = 1, .status = TQ_E_SESSION_EXPIRED};
    tqi_buf_t expired;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, tags_op(&rig));
    rig_submit(&rig, tags_op(&rig));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Tags, &tags);
    rig_drop_frames(&rig);
    env.kind = frame.env.kind | TQI_KIND_REPLY;
    env.incarnation = rig.incarnation;
    env.session = rig.session;
    env.epoch = frame.env.epoch;
    env.seq = frame.env.seq;
    tqi_buf_init(&expired, &rig.env.env);
    assert_int_equal(tqi_envelope_begin(&expired, &env, NULL), TQ_OK);
    tqi_envelope_seal(&expired);
    rig.env.fail_after = 0; /* no new window of requests for the next session */
    rig.session = 78;
    rig_deliver(&rig, frame.peer, &expired);
    rig.env.fail_after = UINT64_MAX;
    assert_int_equal(rig.done_cnt, 2);
    while (rig.done_cnt > 0) {
        assert_int_equal(tqi_op_status(rig.done[--rig.done_cnt]), TQ_E_OUTCOME_UNKNOWN);
        tqi_op_free(rig.done[rig.done_cnt]);
    }
    rig_pass(&rig, 1000);
    rig_greet(&rig);
    assert_int_equal(tqi_client_session(rig.client), 78);
    assert_int_equal(rig.frames_cnt, 0);
    tqi_buf_fini(&expired);
    rig_free(&frame);
    rig_fini(&rig);
}

static void a_new_store_is_told_once_and_then_joined(void **state)
{
    rig_t rig;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    tqi_msg_Clear_t clear;
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig.incarnation = 0x123;
    rig_answer(&rig, &frame, TQ_E_STALE_STORE, NULL);
    rig_done_with(&rig, TQ_E_STALE_STORE);
    rig_submit(&rig, clear_op(&rig));
    rig_done_with(&rig, TQ_E_STALE_STORE);
    rig.session = 99;
    rig_greet(&rig);
    assert_int_equal(tqi_client_incarnation(rig.client), 0x123);
    rig_submit(&rig, clear_op(&rig));
    answer_clear(&rig, 0);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void a_wanted_store_that_is_gone_is_gone_for_ever(void **state)
{
    rig_t rig;
    tqi_msg_Hello_t hello;

    (void)state;
    rig_init_conf(&rig, (tqi_client_conf_t){.address = "tcp://store:1",
                                            .incarnation_wanted = RIG_INCARNATION});
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
    assert_int_equal(hello.incarnation_wanted, RIG_INCARNATION);
    rig.incarnation = 5;
    rig_answer(&rig, &frame, TQ_E_STALE_STORE, NULL);
    assert_int_equal(rig.refusals, 1);
    for (int i = 0; i < 2; i++) {
        rig_submit(&rig, clear_op(&rig));
        rig_done_with(&rig, TQ_E_STORE_GONE);
    }
    rig_idle(&rig, 10000);
    assert_int_equal(rig.frames_cnt, 0);
    rig_fini(&rig);
}

static void the_last_word_of_a_controller_ends_calls_at_once(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t clear;
    tqi_msg_Hello_t hello;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t asked = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig_say_closing(&rig, asked.peer);
    rig_heard_closing(&rig);
    assert_int_equal(rig.downs, 1);
    rig_done_with(&rig, TQ_E_CLOSING);
    rig_free(&asked);
    /* The address may get another store: that is looked for, and joined. */
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
    rig.incarnation = 5;
    rig.session = 78;
    rig_answer(&rig, &frame, TQ_OK, &(tqi_msg_Hello_R_t){.version = 1, .ping_ms = 1000});
    rig_submit(&rig, clear_op(&rig));
    rig_done_with(&rig, TQ_E_STALE_STORE);
    frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
    rig_answer(&rig, &frame, TQ_OK, &(tqi_msg_Hello_R_t){.version = 1, .ping_ms = 1000});
    rig_submit(&rig, clear_op(&rig));
    answer_clear(&rig, 1);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void the_last_word_leaves_a_write_that_was_sent_unknown(void **state)
{
    rig_t rig;
    tqi_msg_Tags_t tags;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, tags_op(&rig));
    rig_frame_t asked = rig_expect(&rig, TQI_KIND_Tags, &tags);
    rig_say_closing(&rig, asked.peer);
    rig_done_with(&rig, TQ_E_OUTCOME_UNKNOWN);
    rig_free(&asked);
    rig_fini(&rig);
}

static void the_last_word_of_a_wanted_store_is_final(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t clear;

    (void)state;
    rig_init_conf(&rig, (tqi_client_conf_t){.address = "tcp://store:1",
                                            .incarnation_wanted = RIG_INCARNATION});
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t asked = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig_say_closing(&rig, asked.peer);
    rig_heard_closing(&rig);
    rig_done_with(&rig, TQ_E_STORE_GONE);
    rig_submit(&rig, clear_op(&rig));
    rig_done_with(&rig, TQ_E_STORE_GONE);
    rig_free(&asked);
    rig_idle(&rig, 10000);
    assert_int_equal(rig.frames_cnt, 0);
    rig_fini(&rig);
}

static void a_last_word_of_another_store_or_session_says_nothing(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t clear;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t asked = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig.session++;
    rig_say_closing(&rig, asked.peer);
    rig.session--;
    rig.incarnation++;
    rig_say_closing(&rig, asked.peer);
    rig.incarnation--;
    assert_int_equal(rig.downs, 0);
    rig_answer(&rig, &asked, TQ_OK, &(tqi_msg_Clear_R_t){.rows_cnt = 1});
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void too_busy_is_asked_again_later_under_a_new_seq(void **state)
{
    rig_t rig;
    tqi_msg_Clear_t clear;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Clear, &clear);
    rig_answer(&rig, &frame, TQ_E_BUSY, NULL);
    assert_int_equal(rig.frames_cnt, 0);
    rig_idle(&rig, 50);
    frame = rig_expect(&rig, TQI_KIND_Clear, &clear);
    assert_int_equal(frame.env.seq, 2);
    assert_int_equal(frame.env.ack, 1);
    tqi_msg_Clear_R_t reply = {0};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void more_than_a_window_of_calls_wait_their_turn(void **state)
{
    rig_t rig;
    uint32_t sent = 0, done = 0;
    enum { CALLS = TQ_OUTSTANDING_MAX + 10 };

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_client_submit(rig.client, clear_op(&rig), rig.now);
    rig_frame_t first = rig_take(&rig, TQI_KIND_Clear);
    for (uint32_t i = 1; i < CALLS; i++) {
        tqi_client_submit(rig.client, clear_op(&rig), rig.now);
        sent += rig.frames_cnt;
        rig_drop_frames(&rig);
    }
    assert_int_equal(sent, TQ_OUTSTANDING_MAX - 1);
    tqi_msg_Clear_R_t reply = {0};
    rig_answer(&rig, &first, TQ_OK, &reply);
    done += rig.done_cnt;
    assert_int_equal(done, 1);
    rig_frame_t next = rig_take(&rig, TQI_KIND_Clear);
    assert_int_equal(next.env.seq, TQ_OUTSTANDING_MAX + 1);
    rig_free(&next);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void closing_ends_calls_and_says_bye(void **state)
{
    rig_t rig;
    tqi_msg_Bye_t bye;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, clear_op(&rig));
    rig_drop_frames(&rig);
    tqi_client_close(rig.client, rig.now);
    rig_step(&rig);
    rig_done_with(&rig, TQ_E_CLOSED);
    assert_false(tqi_client_is_closed(rig.client));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Bye, &bye);
    tqi_msg_Bye_R_t reply = {0};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    assert_true(tqi_client_is_closed(rig.client));
    rig_submit(&rig, clear_op(&rig));
    rig_done_with(&rig, TQ_E_CLOSED);
    rig_fini(&rig);
}

static void any_bytes_are_survived(void **state)
{
    rig_t rig;
    tqi_rng_t rng;
    tqi_role_t *role;
    uint8_t bytes[256];

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    role = tqi_client_role(rig.client);
    rig_submit(&rig, clear_op(&rig));
    rig_frame_t frame = rig_take(&rig, TQI_KIND_Clear);
    tqi_rng_init(&rng, 7);
    for (int i = 0; i < 2000; i++) {
        size_t len = tqi_rng_below(&rng, sizeof bytes);
        if (i % 2 == 0) {
            for (size_t k = 0; k < len; k++)
                bytes[k] = (uint8_t)tqi_rng_u64(&rng);
        } else {
            len = tqi_size_min(frame.buf.len, sizeof bytes);
            memcpy(bytes, frame.buf.data, len);
            bytes[tqi_rng_below(&rng, len)] ^= (uint8_t)(1u << tqi_rng_below(&rng, 8));
        }
        role->on_message(role, 1, bytes, len, rig.now);
    }
    rig_step(&rig);
    rig_free(&frame);
    rig_fini(&rig);
}

static void a_greeting_without_a_session_or_a_store_is_none(void **state)
{
    rig_t rig;
    tqi_msg_Hello_t hello;

    (void)state;
    for (int i = 0; i < 2; i++) {
        rig_init(&rig);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
        *(i == 0 ? &rig.session : &rig.incarnation) = 0;
        rig_answer(&rig, &frame, TQ_OK, &(tqi_msg_Hello_R_t){.version = 1});
        assert_int_equal(rig.ups, 0);
        assert_int_equal(tqi_client_session(rig.client), 0);
        /* It tries again. */
        rig.session = RIG_SESSION;
        rig.incarnation = RIG_INCARNATION;
        rig_idle(&rig, 1000);
        rig_greet(&rig);
        assert_int_equal(rig.ups, 1);
        rig_fini(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_greeting_without_a_session_or_a_store_is_none),
        cmocka_unit_test(hello_opens_a_session),
        cmocka_unit_test(units_of_an_old_store_are_forgotten),
        cmocka_unit_test(a_call_that_waits_to_be_repeated_can_be_closed),
        cmocka_unit_test(requests_of_a_lost_session_are_forgotten_even_without_memory),
        cmocka_unit_test(an_unanswered_hello_is_sent_again),
        cmocka_unit_test(an_unanswered_hello_is_dialled_again_with_more_patience),
        cmocka_unit_test(a_call_is_one_request_and_its_reply),
        cmocka_unit_test(a_call_before_the_session_waits_for_it),
        cmocka_unit_test(ping_names_what_is_open_and_resends_what_is_missing),
        cmocka_unit_test(a_second_reply_is_nobodys),
        cmocka_unit_test(a_broken_connection_is_made_again_and_all_is_sent_again),
        cmocka_unit_test(a_dead_address_fails_within_five_seconds_and_says_what_to_do),
        cmocka_unit_test(a_store_that_takes_no_more_clients_says_so_itself),
        cmocka_unit_test(a_silent_controller_fails_calls_within_five_seconds),
        cmocka_unit_test(a_refused_address_refuses_every_call),
        cmocka_unit_test(a_lost_session_repeats_reads_and_leaves_writes_unknown),
        cmocka_unit_test(a_new_store_is_told_once_and_then_joined),
        cmocka_unit_test(a_wanted_store_that_is_gone_is_gone_for_ever),
        cmocka_unit_test(the_last_word_of_a_controller_ends_calls_at_once),
        cmocka_unit_test(the_last_word_leaves_a_write_that_was_sent_unknown),
        cmocka_unit_test(the_last_word_of_a_wanted_store_is_final),
        cmocka_unit_test(a_last_word_of_another_store_or_session_says_nothing),
        cmocka_unit_test(too_busy_is_asked_again_later_under_a_new_seq),
        cmocka_unit_test(more_than_a_window_of_calls_wait_their_turn),
        cmocka_unit_test(closing_ends_calls_and_says_bye),
        cmocka_unit_test(any_bytes_are_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
