/* SPDX-License-Identifier: Apache-2.0 */
#include "role_client.h"

static tqi_op_t *fetch_op(rig_t *rig, tq_fetch_mode_t mode)
{
    tqi_op_t *op;
    uint32_t offsets[] = {0, 1};
    tq_strs_t fields = {1, offsets, "x"};
    tq_fetch_args_t args = {
        .partition = "p", .fields = &fields, .rows_cnt = 2, .task = "t", .mode = mode};

    assert_int_equal(tqi_op_fetch(&rig->env.env, &args, &op, NULL), TQ_OK);
    return op;
}

static rig_frame_t expect_fetch(rig_t *rig)
{
    tqi_msg_Fetch_t msg;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Fetch, &msg);

    assert_int_equal(msg.rows_cnt, 2);
    assert_memory_equal(msg.task.data, "t", 1);
    return frame;
}

/* As rig_answer, to be delivered when the test likes, and as often. */
static tqi_buf_t grant_frame(rig_t *rig, const rig_frame_t *frame)
{
    static const uint64_t rows[] = {5, 6};
    static const uint32_t units[] = {1, 2}, offsets[] = {0, 1}, tag_offsets[] = {0, 4, 4};
    tqi_msg_Fetch_R_t reply = {
        .rows = tqi_u64s(rows, 2),
        .units = tqi_u32s(units, 2),
        .fields = {offsets, "x", 1, 1},
        .tags = {tag_offsets, "\x81\xa1k\x01", 2, 4},
    };
    tqi_envelope_t env = {.kind = TQI_KIND_Fetch_R,
                          .version = 1,
                          .incarnation = rig->incarnation,
                          .session = rig->session,
                          .epoch = frame->env.epoch,
                          .seq = frame->env.seq};
    tqi_buf_t buf;

    tqi_buf_init(&buf, &rig->env.env);
    assert_int_equal(tqi_msg_encode(&buf, &env, NULL, &reply, NULL), TQ_OK);
    return buf;
}

static void grant(rig_t *rig, rig_frame_t *frame)
{
    static const uint64_t rows[] = {5, 6};
    static const uint32_t units[] = {1, 2}, offsets[] = {0, 1}, tag_offsets[] = {0, 4, 4};
    tqi_msg_Fetch_R_t reply = {
        .rows = tqi_u64s(rows, 2),
        .units = tqi_u32s(units, 2),
        .fields = {offsets, "x", 1, 1},
        .tags = {tag_offsets, "\x81\xa1k\x01", 2, 4},
    };

    rig_answer(rig, frame, TQ_OK, &reply);
}

static void answer_return(rig_t *rig, uint64_t *ack)
{
    tqi_msg_Return_t msg;
    tqi_msg_Return_R_t reply = {0};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Return, &msg);

    assert_int_equal(msg.rows.cnt, 2);
    assert_int_equal(tqi_u64s_at(msg.rows, 1), 6);
    assert_memory_equal(msg.task.data, "t", 1);
    *ack = frame.env.ack;
    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void a_grant_stays_open_until_it_is_taken_and_is_acknowledged_soon(void **state)
{
    rig_t rig;
    tqi_msg_Ping_t ping;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, fetch_op(&rig, TQ_FETCH));
    rig_frame_t frame = expect_fetch(&rig);
    uint64_t seq = frame.env.seq;
    grant(&rig, &frame);
    tqi_op_t *op = rig_done(&rig);
    assert_true(tqi_op_has_grant(op));
    assert_int_equal(tqi_op_result(op)->rows_cnt, 2);
    assert_int_equal(tqi_op_result(op)->units[1], 2);
    assert_int_equal(tqi_op_result(op)->status[1], 1);
    const tq_strs_t *tags = &tqi_op_result(op)->tags;
    assert_int_equal(tags->cnt, 2);
    assert_memory_equal(tags->bytes, "\x81\xa1k\x01", tags->offsets[1]);
    assert_int_equal(tags->offsets[2] - tags->offsets[1], 1); /* none: an empty map */
    assert_memory_equal(tags->bytes + tags->offsets[1], "\x80", 1);
    rig_pass(&rig, 1000);
    frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
    assert_int_equal(frame.env.open_cnt, 1);
    tqi_msg_Ping_R_t pong = {.resend = tqi_u64s(&seq, 1)};
    rig_answer(&rig, &frame, TQ_OK, &pong);
    assert_int_equal(rig.frames_cnt, 0); /* it was answered: not sent again */
    tqi_client_taken(rig.client, op, rig.now);
    tqi_op_free(op);
    rig_pass(&rig, 10);
    frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
    assert_int_equal(frame.env.seq, 0);
    assert_int_equal(frame.env.open_cnt, 0);
    assert_int_equal(frame.env.ack, seq);
    rig_free(&frame);
    rig_fini(&rig);
}

/* Who took the answer can give it back, whatever memory there is then: else the rows would be nobody's
 * for as long as the session lives. */
static void a_grant_can_always_be_given_back(void **state)
{
    (void)state;
    for (uint64_t allowed = 0;; allowed++) {
        rig_t rig;
        uint64_t ack, again[] = {1};

        rig_init(&rig);
        rig_greet(&rig);
        rig_submit(&rig, fetch_op(&rig, TQ_FETCH));
        rig_frame_t frame = expect_fetch(&rig);
        tqi_buf_t answer = grant_frame(&rig, &frame);
        rig_free(&frame);
        rig.env.fail_after = allowed;
        rig_deliver(&rig, 1, &answer);
        bool was_lost = rig.done_cnt == 0;
        if (was_lost) {
            rig.env.fail_after = UINT64_MAX;
            rig_idle(&rig, 1000);
            rig_pong(&rig, again, 1); /* the store has it, and says so */
            frame = expect_fetch(&rig);
            rig_free(&frame);
            rig_deliver(&rig, 1, &answer);
        }
        tqi_buf_fini(&answer);
        tqi_op_t *op = rig_done(&rig);
        bool is_ok = tqi_op_status(op) == TQ_OK;
        rig.env.fail_after = 0;
        tqi_client_discard(rig.client, op, rig.now);
        rig_step(&rig);
        rig.env.fail_after = UINT64_MAX;
        /* The RETURN, and until its answer the seq of the FETCH is open. */
        for (int i = 0; rig.frames_cnt == 0 || rig.frames[0].env.kind == TQI_KIND_Ping; i++) {
            assert_true(i < 100);
            if (rig.frames_cnt > 0)
                rig_pong(&rig, (uint64_t[]){2}, 1);
            else
                rig_idle(&rig, 100);
        }
        answer_return(&rig, &ack);
        assert_true(ack == 0 || is_ok);
        tqi_op_free(op);
        rig_fini(&rig);
        if (is_ok && !was_lost && allowed > 20)
            return;
        assert_true(allowed < 200);
    }
}

static void a_discarded_grant_goes_back_before_it_is_acknowledged(void **state)
{
    rig_t rig;
    uint64_t ack;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, fetch_op(&rig, TQ_FETCH));
    rig_frame_t frame = expect_fetch(&rig);
    uint64_t seq = frame.env.seq;
    grant(&rig, &frame);
    tqi_op_t *op = rig_done(&rig);
    tqi_client_discard(rig.client, op, rig.now);
    tqi_op_free(op);
    answer_return(&rig, &ack);
    assert_true(ack < seq);
    rig_fini(&rig);
}

static void a_cancel_asks_the_store_and_the_store_decides(void **state)
{
    rig_t rig;
    tqi_msg_CancelOp_t cancel;

    (void)state;
    for (int is_granted = 0; is_granted < 2; is_granted++) {
        rig_init(&rig);
        rig_greet(&rig);
        tqi_op_t *op = fetch_op(&rig, TQ_FETCH);
        rig_submit(&rig, op);
        rig_frame_t fetch = expect_fetch(&rig);
        tqi_client_cancel(rig.client, op, rig.now);
        tqi_client_cancel(rig.client, op, rig.now);
        rig_step(&rig);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_CancelOp, &cancel);
        assert_int_equal(cancel.target_seq, fetch.env.seq);
        assert_int_equal(rig.frames_cnt, 0);
        assert_int_equal(rig.done_cnt, 0);
        tqi_msg_CancelOp_R_t reply = {.is_cancelled = !is_granted};
        rig_answer(&rig, &frame, TQ_OK, &reply);
        if (is_granted)
            grant(&rig, &fetch);
        else
            rig_answer(&rig, &fetch, TQ_E_CANCELLED, NULL);
        rig_done_with(&rig, is_granted ? TQ_OK : TQ_E_CANCELLED);
        rig_fini(&rig);
    }
}

static void a_cancelled_fetch_that_was_refused_is_not_asked_again(void **state)
{
    rig_t rig;
    tqi_msg_CancelOp_t cancel;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_t *op = fetch_op(&rig, TQ_FETCH);
    rig_submit(&rig, op);
    rig_frame_t fetch = expect_fetch(&rig);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_CancelOp, &cancel);
    rig_free(&frame);
    rig_answer(&rig, &fetch, TQ_E_BUSY, NULL);
    rig_done_with(&rig, TQ_E_CANCELLED);
    rig_idle(&rig, 900);
    assert_int_equal(rig.frames_cnt, 0);
    rig_fini(&rig);
}

static void a_fetch_that_nobody_waits_for_gives_its_rows_back(void **state)
{
    rig_t rig;
    uint64_t ack;
    tqi_msg_CancelOp_t cancel;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_t *op = fetch_op(&rig, TQ_FETCH);
    rig_submit(&rig, op);
    rig_frame_t fetch = expect_fetch(&rig);
    tqi_client_abandon(rig.client, op, rig.now);
    rig_step(&rig);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_CancelOp, &cancel);
    rig_free(&frame);
    grant(&rig, &fetch);
    rig_done_with(&rig, TQ_OK);
    answer_return(&rig, &ack);
    rig_fini(&rig);
}

static void a_fetch_times_out_with_the_stores_words_if_they_come(void **state)
{
    rig_t rig;
    tqi_msg_Ping_t ping;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, fetch_op(&rig, TQ_FETCH));
    rig_frame_t fetch = expect_fetch(&rig);
    assert_int_equal(fetch.env.budget_ms, 5000);
    for (int i = 0; i < 5; i++) {
        rig_idle(&rig, 1000);
        while (rig.frames_cnt > 0) {
            tqi_msg_Ping_R_t pong = {0};
            rig_frame_t frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
            rig_answer(&rig, &frame, TQ_OK, &pong);
        }
    }
    assert_int_equal(rig.done_cnt, 0);
    rig_answer(&rig, &fetch, TQ_E_NOT_READY, NULL);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_NOT_READY);
    assert_string_equal(tqi_op_error(op), "as the test wants");
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_fetch_that_is_not_answered_in_time_is_cancelled_first(void **state)
{
    rig_t rig;
    tqi_msg_Ping_t ping;
    tqi_msg_CancelOp_t cancel;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, fetch_op(&rig, TQ_FETCH));
    rig_frame_t fetch = expect_fetch(&rig);
    for (int i = 0; i < 5; i++) {
        rig_idle(&rig, 1000);
        tqi_msg_Ping_R_t pong = {0};
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
        rig_answer(&rig, &frame, TQ_OK, &pong);
    }
    rig_idle(&rig, 300);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_CancelOp, &cancel);
    assert_int_equal(rig.done_cnt, 0);
    tqi_msg_CancelOp_R_t reply = {.is_cancelled = true};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_answer(&rig, &fetch, TQ_E_CANCELLED, NULL);
    rig_done_with(&rig, TQ_E_TIMEOUT);
    rig_fini(&rig);
}

static void a_grant_of_a_lost_session_is_nobodys_to_acknowledge(void **state)
{
    rig_t rig;
    tqi_msg_Ping_t ping;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, fetch_op(&rig, TQ_FETCH));
    rig_frame_t frame = expect_fetch(&rig);
    grant(&rig, &frame);
    tqi_op_t *op = rig_done(&rig);
    rig_pass(&rig, 1000);
    frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
    rig_answer(&rig, &frame, TQ_E_SESSION_EXPIRED, NULL);
    rig.session = 80;
    rig_greet(&rig);
    tqi_client_taken(rig.client, op, rig.now);
    rig_pass(&rig, 10);
    assert_int_equal(rig.frames_cnt, 0);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_long_fetch_all_goes_on_with_list(void **state)
{
    rig_t rig;
    tqi_msg_List_t list;
    static const uint64_t rows[] = {5, 6}, more[] = {9};
    static const uint32_t units[] = {1, 1}, offsets[] = {0, 1}, two[] = {0, 1, 2};
    uint8_t bits = 1, both = 2;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, fetch_op(&rig, TQ_FETCH_ALL));
    rig_frame_t frame = expect_fetch(&rig);
    tqi_msg_Fetch_R_t reply = {.rows = tqi_u64s(rows, 2),
                               .units = tqi_u32s(units, 2),
                               .fields = {offsets, "x", 1, 1},
                               .produced = {&bits, 1},
                               .next = 7};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    frame = rig_expect(&rig, TQI_KIND_List, &list);
    assert_int_equal(list.cursor, 7);
    tqi_msg_List_R_t page = {.is_known = true,
                             .rows = tqi_u64s(more, 1),
                             .units = tqi_u32s(units, 1),
                             .fields = {two, "ax", 2, 2},
                             .produced = {&both, 1}};
    rig_answer(&rig, &frame, TQ_OK, &page);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_result(op)->rows_cnt, 3);
    assert_int_equal(tqi_op_result(op)->rows[2], 9);
    assert_memory_equal(tqi_op_result(op)->status, "\1\0\1", 3);
    assert_false(tqi_op_has_grant(op));
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_list_is_put_together_from_its_pages(void **state)
{
    rig_t rig;
    tqi_op_t *op;
    tqi_msg_List_t list;
    tq_list_args_t args = {.partition = "p", .rows_max = 3};
    static const uint64_t rows[] = {1, 2};
    static const uint32_t offsets[] = {0, 1, 1};
    static const uint8_t has_key[] = {1, 0};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    assert_int_equal(tqi_op_list(&rig.env.env, &args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    for (int i = 0; i < 2; i++) {
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_List, &list);
        assert_int_equal(list.cursor, i);
        assert_int_equal(list.rows_max, i == 0 ? 3 : 1);
        tqi_msg_List_R_t page = {.is_known = true,
                                 .rows = tqi_u64s(rows, 2 - (uint32_t)i),
                                 .keys = {offsets, "k", 2 - (uint32_t)i, 1},
                                 .has_key = {has_key, 2 - (uint32_t)i},
                                 .next = i == 0};
        rig_answer(&rig, &frame, TQ_OK, &page);
    }
    op = rig_done(&rig);
    assert_int_equal(tqi_op_result(op)->rows_cnt, 3);
    assert_int_equal(tqi_op_result(op)->keys.cnt, 3);
    assert_memory_equal(tqi_op_result(op)->has_key, "\1\0\1", 3);
    tqi_op_free(op);
    rig_fini(&rig);
}

/* Whoever walks the rows of a result would read beyond its columns. */
static void an_answer_whose_columns_do_not_fit_each_other_is_refused(void **state)
{
    static const uint64_t rows[] = {1, 2, 3};
    static const uint32_t units[] = {1, 1}, offsets[] = {0, 1};
    static const uint8_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const tqi_strs_t one = {offsets, "f", 1, 1};
    const tq_strs_t fields = {1, offsets, "f"};
    rig_t rig;
    tqi_op_t *op;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);

    tqi_msg_List_t list;
    tq_list_args_t list_args = {.partition = "p"};
    const tqi_msg_List_R_t pages[] = {
        {.rows = tqi_u64s(rows, 3), .units = tqi_u32s(units, 2)},
        {.rows = tqi_u64s(rows, 3), .keys = one},
        {.rows = tqi_u64s(rows, 3), .tags = one},
        {.rows = tqi_u64s(rows, 3), .has_key = {ones, 2}},
        {.rows = tqi_u64s(rows, 3), .schemas = one},
    };
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        assert_int_equal(tqi_op_list(&rig.env.env, &list_args, &op, NULL), TQ_OK);
        rig_submit(&rig, op);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_List, &list);
        rig_answer(&rig, &frame, TQ_OK, &pages[i]);
        rig_done_with(&rig, TQ_E_MALFORMED);
    }

    tqi_msg_Status_t status;
    tq_status_args_t status_args = {
        .partition = "p", .kind = TQ_STATUS_PRODUCTION, .fields = &fields};
    for (uint32_t cnt = 2; cnt <= 4; cnt++) {
        assert_int_equal(tqi_op_status_of(&rig.env.env, &status_args, &op, NULL), TQ_OK);
        rig_submit(&rig, op);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Status, &status);
        rig_answer(&rig, &frame, TQ_OK,
                   &(tqi_msg_Status_R_t){.rows = tqi_u64s(rows, 3), .status = {ones, cnt}});
        rig_done_with(&rig, cnt == 3 ? TQ_OK : TQ_E_MALFORMED);
    }

    tqi_msg_Insert_t insert;
    tq_insert_args_t insert_args = {.partition = "p", .rows_cnt = 3};
    assert_int_equal(tqi_op_insert(&rig.env.env, &insert_args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Insert, &insert);
    rig_answer(&rig, &frame, TQ_OK,
               &(tqi_msg_Insert_R_t){.rows = tqi_u64s(rows, 3), .units = tqi_u32s(units, 2)});
    rig_done_with(&rig, TQ_E_MALFORMED);
    rig_fini(&rig);
}

/* The fields of such a list are those that somebody waits for, and that changes by the moment. */
static void a_list_of_stuck_rows_begins_again_when_its_fields_change(void **state)
{
    static const uint64_t rows[] = {1, 2};
    static const uint32_t offsets[] = {0, 1, 2};
    tq_list_args_t args = {.partition = "p", .is_stuck_only = true};
    tqi_msg_List_t list;
    rig_t rig;
    tqi_op_t *op;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    assert_int_equal(tqi_op_list(&rig.env.env, &args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t fields_cnt = i == 0 ? 1 : 2;
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_List, &list);

        assert_int_equal(list.cursor, i % 2);
        tqi_msg_List_R_t page = {.is_known = true,
                                 .rows = tqi_u64s(rows + i % 2, 1),
                                 .fields = {offsets, "fg", fields_cnt, fields_cnt},
                                 .produced = {"\0", 1},
                                 .next = i % 2 == 0};
        rig_answer(&rig, &frame, TQ_OK, &page);
    }
    op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_int_equal(tqi_op_result(op)->rows_cnt, 2);
    assert_int_equal(tqi_op_result(op)->fields.cnt, 2);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void pages_that_lead_nowhere_end_the_list(void **state)
{
    static const uint64_t rows[] = {1};
    tq_list_args_t args = {.partition = "p"};
    tqi_msg_List_t list;
    rig_t rig;
    tqi_op_t *op;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    assert_int_equal(tqi_op_list(&rig.env.env, &args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    for (int i = 0; i < 2; i++) {
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_List, &list);
        rig_answer(&rig, &frame, TQ_OK, &(tqi_msg_List_R_t){.rows = tqi_u64s(rows, 1), .next = 7});
    }
    rig_done_with(&rig, TQ_E_MALFORMED);
    rig_fini(&rig);
}

static void stat_joins_the_figures_of_all(void **state)
{
    rig_t rig;
    tqi_op_t *op;
    tqi_msg_Stat_t stat;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    assert_int_equal(tqi_op_stat(&rig.env.env, 0, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Stat, &stat);
    rig_greet_unit(&rig);
    rig_greet_unit(&rig);
    tqi_msg_Stat_R_t reply = {.json = {"{\"c\":1}", 7}};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    frame = rig_expect(&rig, TQI_KIND_Stat, &stat);
    reply.json = (tqi_bytes_t){"{\"u\":1}", 7};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    frame = rig_expect(&rig, TQI_KIND_Stat, &stat);
    rig_answer(&rig, &frame, TQ_E_CLOSING, NULL);
    op = rig_done(&rig);
    assert_string_equal(tqi_op_result(op)->json, "{\"controller\":{\"c\":1},\"units\":[{\"u\":1},"
                                                 "{\"unit\":2,\"error\":\"as the test wants\"}]}");
    tqi_op_free(op);
    rig_fini(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grant_stays_open_until_it_is_taken_and_is_acknowledged_soon),
        cmocka_unit_test(a_grant_can_always_be_given_back),
        cmocka_unit_test(a_discarded_grant_goes_back_before_it_is_acknowledged),
        cmocka_unit_test(a_cancel_asks_the_store_and_the_store_decides),
        cmocka_unit_test(a_cancelled_fetch_that_was_refused_is_not_asked_again),
        cmocka_unit_test(a_fetch_that_nobody_waits_for_gives_its_rows_back),
        cmocka_unit_test(a_fetch_times_out_with_the_stores_words_if_they_come),
        cmocka_unit_test(a_fetch_that_is_not_answered_in_time_is_cancelled_first),
        cmocka_unit_test(a_grant_of_a_lost_session_is_nobodys_to_acknowledge),
        cmocka_unit_test(a_long_fetch_all_goes_on_with_list),
        cmocka_unit_test(a_list_is_put_together_from_its_pages),
        cmocka_unit_test(an_answer_whose_columns_do_not_fit_each_other_is_refused),
        cmocka_unit_test(a_list_of_stuck_rows_begins_again_when_its_fields_change),
        cmocka_unit_test(pages_that_lead_nowhere_end_the_list),
        cmocka_unit_test(stat_joins_the_figures_of_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
