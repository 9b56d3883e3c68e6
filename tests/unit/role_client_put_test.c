/* SPDX-License-Identifier: Apache-2.0 */
#include "role_client.h"

#include "base/size.h"

/* n rows of one f32 field "x" of `width` elements, by keys "0", "1", ... */
typedef struct put_case {
    float *data;
    tq_column_t column;
    uint32_t offsets[65];
    char bytes[64];
    tq_strs_t keys;
    tq_put_args_t args;
} put_case_t;

static tqi_op_t *put_op(rig_t *rig, put_case_t *c, uint32_t n, uint32_t width)
{
    tqi_op_t *op;
    tqi_err_t err = {0};

    memset(c, 0, sizeof *c);
    c->data = malloc((size_t)n * width * sizeof *c->data + 1);
    for (uint32_t i = 0; i < n * width; i++)
        c->data[i] = (float)i;
    c->column = (tq_column_t){
        .field = "x",
        .layout = TQ_LAYOUT_UNIFORM,
        .desc = {.encoding = TQ_ENC_TENSOR,
                 .dtype = TQ_DTYPE_F32,
                 .ndim = 1,
                 .len = width * 4,
                 .shape = {width}},
        .data = c->data,
        .row_stride = width * 4,
    };
    for (uint32_t i = 0; i < n; i++) {
        c->bytes[i] = (char)('0' + i);
        c->offsets[i + 1] = i + 1;
    }
    c->keys = (tq_strs_t){n, c->offsets, c->bytes};
    c->args = (tq_put_args_t){
        .partition = "p", .rows_cnt = n, .keys = &c->keys, .columns_cnt = 1, .columns = &c->column};
    if (tqi_op_put(&rig->env.env, &c->args, &op, &err) != TQ_OK)
        fail_msg("%s", err.text);
    return op;
}

static void case_fini(put_case_t *c)
{
    free(c->data);
}

/* Answers RESOLVE: rows 100, 101, ..., the first `on_one` of them on unit 1, the rest on unit 2. */
static void answer_resolve(rig_t *rig, uint32_t n, uint32_t on_one, uint8_t produced)
{
    uint64_t rows[64];
    uint32_t units[64];
    uint8_t has_data[64] = {0};
    tqi_msg_Resolve_t msg;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Resolve, &msg);

    assert_true(msg.is_put);
    assert_in_range(msg.wait_ms, 1, 30000);
    assert_int_equal(msg.keys.cnt, n);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = 100 + i;
        units[i] = i < on_one ? 1 : 2;
    }
    tqi_msg_Resolve_R_t reply = {
        .is_known = true,
        .put_id = 9,
        .rows = tqi_u64s(rows, n),
        .units = tqi_u32s(units, n),
        .produced = {&produced, produced ? 1 : 0},
        .has_data = {has_data, n},
    };
    rig_answer(rig, &frame, TQ_OK, &reply);
}

static rig_frame_t expect_prepare(rig_t *rig, tqi_msg_PreparePut_t *msg, uint32_t rows)
{
    rig_frame_t frame = rig_expect(rig, TQI_KIND_PreparePut, msg);

    assert_int_equal(msg->put_id, 9);
    assert_int_equal(msg->rows.cnt, rows);
    assert_int_equal(msg->columns.cnt, 1);
    return frame;
}

static void answer_prepare(rig_t *rig, uint32_t rows)
{
    tqi_msg_PreparePut_t msg;
    rig_frame_t frame = expect_prepare(rig, &msg, rows);
    static const uint32_t segment = 3;
    static const uint64_t offset = 4096;
    tqi_msg_PreparePut_R_t reply = {.segments = tqi_u32s(&segment, 1),
                                    .offsets = tqi_u64s(&offset, 1)};

    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void answer_commit(rig_t *rig)
{
    tqi_msg_Commit_t msg;
    tqi_msg_Commit_R_t reply = {0};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Commit, &msg);

    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void answer_publish(rig_t *rig, uint32_t rows)
{
    tqi_msg_Publish_t msg;
    tqi_msg_Publish_R_t reply = {0};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Publish, &msg);

    assert_int_equal(msg.put_id, 9);
    assert_int_equal(msg.part, 1);
    assert_int_equal(msg.parts, 1);
    assert_int_equal(msg.rows.cnt, rows);
    assert_int_equal(msg.fields.cnt, 1);
    assert_int_equal(msg.schemas.cnt, 1);
    assert_false(msg.is_abort);
    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void answer_abort(rig_t *rig)
{
    tqi_msg_Abort_t msg;
    tqi_msg_Abort_R_t reply = {0};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Abort, &msg);

    assert_int_equal(msg.put_id, 9);
    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void answer_publish_abort(rig_t *rig)
{
    tqi_msg_Publish_t msg;
    tqi_msg_Publish_R_t reply = {0};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Publish, &msg);

    assert_true(msg.is_abort);
    assert_int_equal(msg.put_id, 9);
    rig_answer(rig, &frame, TQ_OK, &reply);
}

/* Whichever of the two comes. */
static void answer_publish_or_unit_abort(rig_t *rig)
{
    assert_true(rig->frames_cnt > 0);
    if (rig->frames[0].env.kind == TQI_KIND_Abort)
        answer_abort(rig);
    else
        answer_publish_abort(rig);
}

static void moved(rig_t *rig, uint32_t i, tq_status_t status)
{
    tqi_role_t *role = tqi_client_role(rig->client);

    role->on_payload(role, rig->transfers[i].key, status, "as the test wants", rig->now);
    rig_step(rig);
}

/* Both units greet, whoever is dialled first. */
static void greet_units(rig_t *rig, uint32_t cnt)
{
    while (cnt-- > 0)
        rig_greet_unit(rig);
}

static void a_small_put_is_one_fused_message_a_unit_and_one_publish(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t msg;
    tqi_coldesc_t column;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 3, 0);
    greet_units(&rig, 2);
    rig_frame_t first = expect_prepare(&rig, &msg, 3);
    assert_true(msg.is_fused);
    assert_int_equal(msg.wait_ms, 0);
    assert_int_equal(tqi_u64s_at(msg.rows, 2), 102);
    assert_int_equal(msg.inline_bytes.len, 3 * 8);
    assert_memory_equal(msg.inline_bytes.data, c.data, 3 * 8);
    assert_int_equal(tqi_coldesc_decode(tqi_strs_at(msg.columns, 0), 3, &column, NULL), TQ_OK);
    assert_int_equal(column.layout, TQ_LAYOUT_UNIFORM);
    assert_int_equal(column.desc.shape[0], 2);
    tqi_msg_PreparePut_R_t reply = {0};
    rig_answer(&rig, &first, TQ_OK, &reply);
    answer_prepare(&rig, 1);
    answer_publish(&rig, 4);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_int_equal(tqi_op_result(op)->rows_cnt, 4);
    assert_int_equal(tqi_op_result(op)->rows[3], 103);
    tqi_op_free(op);
    case_fini(&c);
    rig_fini(&rig);
}

/* A put to unit 1 whose bytes move, under leases of lease_ms. */
static void begin_moving(rig_t *rig, put_case_t *c, uint32_t lease_ms)
{
    tqi_msg_PreparePut_t msg;
    static const uint32_t segment = 3;
    static const uint64_t offset = 4096;
    tqi_msg_PreparePut_R_t ready = {
        .lease_ms = lease_ms, .segments = tqi_u32s(&segment, 1), .offsets = tqi_u64s(&offset, 1)};

    rig_init(rig);
    rig->mode = TQI_PAYLOAD_DIRECT;
    rig_greet(rig);
    rig_submit(rig, put_op(rig, c, 1, 20000));
    answer_resolve(rig, 1, 1, 0);
    greet_units(rig, 1);
    rig_frame_t frame = expect_prepare(rig, &msg, 1);
    rig_answer(rig, &frame, TQ_OK, &ready);
    assert_int_equal(rig->transfers_cnt, 1);
}

/* Lets time pass, answering PINGs of both peers; RENEWs are counted, and answered with `gone` of them
 * gone unless `is_mute`. */
static uint32_t pass_renewing(rig_t *rig, uint64_t ms, bool is_mute, uint32_t gone)
{
    uint32_t cnt = 0;

    for (uint64_t at = 0; at < ms; at += 50) {
        rig_idle(rig, 50);
        while (rig->frames_cnt > 0 && (rig->frames[0].env.kind == TQI_KIND_Ping ||
                                       rig->frames[0].env.kind == TQI_KIND_Renew)) {
            rig_frame_t frame = rig_take(rig, rig->frames[0].env.kind);
            if (frame.env.kind == TQI_KIND_Ping) {
                rig_answer(rig, &frame, TQ_OK, &(tqi_msg_Ping_R_t){.table_version = 1});
            } else if (is_mute) {
                rig_free(&frame);
                cnt++;
            } else {
                uint64_t id = rig->transfers[0].key.transfer;
                tqi_msg_Renew_R_t msg = {.gone = tqi_u64s(&id, gone)};

                rig_answer(rig, &frame, TQ_OK, &msg);
                cnt++;
            }
        }
    }
    return cnt;
}

static void leases_are_renewed_well_before_they_run_out(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    begin_moving(&rig, &c, 2000);
    assert_in_range(pass_renewing(&rig, 10000, false, 0), 15, 25);
    assert_false(rig.transfers[0].is_dropped);
    moved(&rig, 0, TQ_OK);
    answer_commit(&rig);
    answer_publish(&rig, 1);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

static void writing_stops_when_two_thirds_of_a_lease_pass_unanswered(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    begin_moving(&rig, &c, 30000);
    pass_renewing(&rig, 10000, false, 0); /* renewed at 10 s at the latest */
    pass_renewing(&rig, 14000, true, 0);
    assert_false(rig.transfers[0].is_dropped);
    pass_renewing(&rig, 7000, true, 0);
    assert_true(rig.transfers[0].is_dropped);
    assert_int_equal(rig.done_cnt, 0); /* its memory may still be read */
    moved(&rig, 0, TQ_E_CANCELLED);
    answer_publish_or_unit_abort(&rig);
    answer_publish_or_unit_abort(&rig);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_TIMEOUT);
    assert_non_null(strstr(tqi_op_error(op), "30000 ms"));
    tqi_op_free(op);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_lease_that_the_unit_says_is_gone_stops_the_write(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    begin_moving(&rig, &c, 2000);
    pass_renewing(&rig, 600, false, 1);
    assert_true(rig.transfers[0].is_dropped);
    moved(&rig, 0, TQ_E_CANCELLED);
    answer_publish_or_unit_abort(&rig);
    answer_publish_or_unit_abort(&rig);
    rig_done_with(&rig, TQ_E_TIMEOUT);
    case_fini(&c);
    rig_fini(&rig);
}

static void new_rows_are_inserted(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_op_t *op;
    tqi_msg_Insert_t msg;
    uint64_t rows[] = {7, 8};
    uint32_t units[] = {1, 1};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_free(put_op(&rig, &c, 2, 1));
    c.args.keys = NULL;
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Insert, &msg);
    assert_true(msg.is_put);
    assert_int_equal(msg.rows_cnt, 2);
    assert_int_equal(msg.payload_bytes, 8);
    tqi_msg_Insert_R_t reply = {
        .put_id = 9, .rows = tqi_u64s(rows, 2), .units = tqi_u32s(units, 2)};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    greet_units(&rig, 1);
    answer_prepare(&rig, 2);
    answer_publish(&rig, 2);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_large_put_is_written_through_the_payload_port_then_committed(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 8192));
    answer_resolve(&rig, 4, 4, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 4);
    assert_int_equal(rig.transfers_cnt, 1);
    assert_true(rig.transfers[0].is_write);
    assert_int_equal(rig.transfers[0].key.owner, 1);
    assert_int_equal(rig.transfers[0].bytes, 4 * 8192 * 4);
    assert_int_equal(rig.transfers[0].pieces_cnt, 1); /* rows that touch are one piece */
    assert_ptr_equal(rig.transfers[0].pieces[0].data, c.data);
    assert_int_equal(rig.transfers[0].extents[0].segment, 3);
    assert_int_equal(rig.transfers[0].extents[0].offset, 4096);
    assert_int_equal(rig.transfers[0].extents[0].len, 4 * 8192 * 4);
    assert_int_equal(rig.frames_cnt, 0);
    moved(&rig, 0, TQ_OK);
    answer_commit(&rig);
    answer_publish(&rig, 4);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_large_put_without_a_way_for_payload_says_why(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 8192));
    answer_resolve(&rig, 4, 4, 0);
    greet_units(&rig, 1);
    answer_publish_abort(&rig);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_UNSUPPORTED);
    assert_non_null(strstr(tqi_op_error(op), "there is none in this test"));
    tqi_op_free(op);
    case_fini(&c);
    rig_fini(&rig);
}

static void refuse_prepare(rig_t *rig, uint32_t rows)
{
    tqi_msg_PreparePut_t msg;
    rig_frame_t frame = expect_prepare(rig, &msg, rows);

    rig_answer(rig, &frame, TQ_E_FULL, NULL);
}

static void answer_cancel(rig_t *rig)
{
    tqi_msg_Cancel_t msg;
    tqi_msg_Cancel_R_t reply = {0};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Cancel, &msg);

    rig_answer(rig, &frame, TQ_OK, &reply);
}

/* The two PREPAREs of the second try: unit 2 is asked when unit 1 has answered. */
static void retake(rig_t *rig)
{
    tqi_msg_PreparePut_t msg;
    tqi_msg_PreparePut_R_t reply = {0};

    for (uint32_t unit = 1; unit <= 2; unit++) {
        rig_frame_t frame = expect_prepare(rig, &msg, 2);
        assert_int_equal(rig_unit_of(rig, frame.peer), unit);
        assert_int_equal(msg.wait_ms, 30000);
        assert_int_equal(rig->frames_cnt, 0);
        rig_answer(rig, &frame, TQ_OK, &reply);
    }
}

static void a_full_unit_makes_the_put_cancel_all_and_take_it_in_order(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_STREAM;
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 16384));
    answer_resolve(&rig, 4, 2, 0);
    greet_units(&rig, 2);
    answer_prepare(&rig, 2); /* unit 1 has room, and is being written */
    refuse_prepare(&rig, 2);
    assert_true(rig.transfers[0].is_dropped);
    assert_int_equal(rig.frames_cnt, 0); /* not before the port has stopped */
    moved(&rig, 0, TQ_E_CANCELLED);
    answer_cancel(&rig);
    answer_cancel(&rig);
    retake(&rig);
    moved(&rig, 1, TQ_OK);
    answer_commit(&rig);
    moved(&rig, 2, TQ_OK);
    answer_commit(&rig);
    answer_publish(&rig, 4);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_full_unit_after_a_commit_begins_the_put_again(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 2, 0);
    greet_units(&rig, 2);
    answer_prepare(&rig, 2);
    refuse_prepare(&rig, 2);
    answer_abort(&rig);
    answer_abort(&rig);
    answer_publish_abort(&rig);
    answer_resolve(&rig, 4, 2, 0);
    retake(&rig);
    answer_publish(&rig, 4);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_store_that_stays_full_fails_the_put_and_undoes_it(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 2, 2));
    answer_resolve(&rig, 2, 2, 0);
    greet_units(&rig, 1);
    refuse_prepare(&rig, 2);
    answer_cancel(&rig);
    refuse_prepare(&rig, 2);
    answer_abort(&rig);
    answer_publish_abort(&rig);
    rig_done_with(&rig, TQ_E_FULL);
    case_fini(&c);
    rig_fini(&rig);
}

/* Until the client sends something that is no PING. */
static void await_frame(rig_t *rig)
{
    for (int i = 0; rig->frames_cnt == 0 || rig->frames[0].env.kind == TQI_KIND_Ping; i++) {
        assert_true(i < 1000);
        if (rig->frames_cnt > 0)
            rig_pong(rig, NULL, 0);
        else
            rig_idle(rig, 10);
    }
}

/* A store that has no memory for an ABORT just now has it still to do: the session lives on, and
 * nothing else would ever end the put. */
static void an_abort_that_finds_no_memory_is_asked_again_until_it_is_done(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t msg;
    tqi_msg_Publish_t publish;
    tqi_msg_Abort_t abort;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 2, 0);
    greet_units(&rig, 2);
    answer_prepare(&rig, 2);
    rig_frame_t frame = expect_prepare(&rig, &msg, 2);
    rig_answer(&rig, &frame, TQ_E_ROW_GONE, NULL);
    for (int i = 0; i < 2; i++) {
        frame = rig_expect(&rig, TQI_KIND_Abort, &abort);
        rig_answer(&rig, &frame, TQ_E_NO_MEMORY, NULL);
    }
    /* The caller waits for so long and no longer; the put is ended all the same. */
    for (int refused = 0; refused < 50;) {
        await_frame(&rig);
        if (rig.frames[0].env.kind == TQI_KIND_Abort) {
            answer_abort(&rig);
            continue;
        }
        frame = rig_expect(&rig, TQI_KIND_Publish, &publish);
        assert_true(publish.is_abort);
        rig_answer(&rig, &frame, TQ_E_NO_MEMORY, NULL);
        refused++;
    }
    rig_done_with(&rig, TQ_E_ROW_GONE);
    await_frame(&rig);
    answer_publish_abort(&rig);
    rig_idle(&rig, 500);
    assert_int_equal(rig.frames_cnt, 0);
    case_fini(&c);
    rig_fini(&rig);
}

/* Two units, one of which goes: neither the call nor its ABORT waits for it. */
static void the_last_word_of_a_unit_ends_a_put_at_once(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t prepare;
    tqi_msg_Publish_t publish;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 2, 0);
    rig_greet_unit(&rig);
    rig_greet_unit(&rig);
    rig_frame_t first = expect_prepare(&rig, &prepare, 2);
    rig_frame_t second = expect_prepare(&rig, &prepare, 2);
    tqi_peer_t goes = first.peer;
    rig_say_closing(&rig, goes);
    rig_heard_closing(&rig);
    answer_abort(&rig);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Publish, &publish);
    assert_true(publish.is_abort);
    rig_answer(&rig, &frame, TQ_OK, &(tqi_msg_Publish_R_t){0});
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_CLOSING);
    assert_non_null(strstr(tqi_op_error(op), "storage unit 1"));
    tqi_op_free(op);
    rig_free(&first);
    rig_free(&second);
    case_fini(&c);
    rig_fini(&rig);
}

/* The put has failed, and waits for the ABORT at a unit that goes. */
static void the_last_word_of_a_unit_ends_the_wait_for_its_abort(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t prepare;
    tqi_msg_Abort_t abort;
    tqi_msg_Publish_t publish;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 2, 2));
    answer_resolve(&rig, 2, 2, 0);
    rig_greet_unit(&rig);
    rig_frame_t frame = expect_prepare(&rig, &prepare, 2);
    tqi_peer_t goes = frame.peer;
    rig_answer(&rig, &frame, TQ_E_CLOSING, NULL);
    frame = rig_expect(&rig, TQI_KIND_Abort, &abort);
    rig_free(&frame);
    frame = rig_expect(&rig, TQI_KIND_Publish, &publish);
    rig_answer(&rig, &frame, TQ_OK, &(tqi_msg_Publish_R_t){0});
    assert_int_equal(rig.done_cnt, 0);
    rig_say_closing(&rig, goes);
    rig_heard_closing(&rig);
    rig_done_with(&rig, TQ_E_CLOSING);
    case_fini(&c);
    rig_fini(&rig);
}

/* A unit that serves nobody has what was staged there, and will have it when it serves again. */
static void an_abort_is_asked_again_until_the_unit_serves(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t msg;
    tqi_msg_Abort_t abort;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 2, 0);
    greet_units(&rig, 2);
    answer_prepare(&rig, 2);
    rig_frame_t frame = expect_prepare(&rig, &msg, 2);
    rig_answer(&rig, &frame, TQ_E_ROW_GONE, NULL);
    answer_abort(&rig);
    frame = rig_expect(&rig, TQI_KIND_Abort, &abort);
    rig_answer(&rig, &frame, TQ_E_UNIT_LOST, NULL);
    answer_publish_abort(&rig);
    /* Longer than the caller waits. */
    for (int refused = 0; refused < 50; refused++) {
        await_frame(&rig);
        frame = rig_expect(&rig, TQI_KIND_Abort, &abort);
        rig_answer(&rig, &frame, TQ_E_UNIT_LOST, NULL);
    }
    rig_done_with(&rig, TQ_E_ROW_GONE);
    await_frame(&rig);
    answer_abort(&rig);
    rig_idle(&rig, 500);
    assert_int_equal(rig.frames_cnt, 0);
    case_fini(&c);
    rig_fini(&rig);
}

/* Its caller was told that it may be visible or not; what it left must not stay for ever if it is
 * not. */
static void a_put_of_unknown_outcome_is_aborted_once_it_is_refused(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_Publish_t publish;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 2, 0);
    greet_units(&rig, 2);
    answer_prepare(&rig, 2);
    answer_prepare(&rig, 2);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Publish, &publish);
    assert_false(publish.is_abort);
    for (int i = 0; i < 1000 && rig.done_cnt == 0; i++) {
        rig_idle(&rig, 500);
        while (rig.frames_cnt > 0)
            rig_pong(&rig, NULL, 0);
    }
    rig_done_with(&rig, TQ_E_OUTCOME_UNKNOWN);
    rig_answer(&rig, &frame, TQ_E_ROW_GONE, NULL);
    answer_abort(&rig);
    answer_abort(&rig);
    answer_publish_abort(&rig);
    rig_idle(&rig, 500);
    while (rig.frames_cnt > 0)
        rig_pong(&rig, NULL, 0); /* and nothing else */
    case_fini(&c);
    rig_fini(&rig);
}

static void a_failing_unit_aborts_the_put_everywhere(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t msg;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 2));
    answer_resolve(&rig, 4, 2, 1); /* row 100 had a value */
    greet_units(&rig, 2);
    answer_prepare(&rig, 2);
    rig_frame_t frame = expect_prepare(&rig, &msg, 2);
    rig_answer(&rig, &frame, TQ_E_ROW_GONE, NULL);
    answer_abort(&rig);
    answer_abort(&rig);
    assert_int_equal(rig.done_cnt, 0);
    answer_publish_abort(&rig);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_ROW_GONE);
    assert_non_null(strstr(tqi_op_error(op), "field 'x' of row 100"));
    tqi_op_free(op);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_cancel_before_publish_wins_and_waits_for_the_payload_port(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    tqi_op_t *op = put_op(&rig, &c, 4, 8192);
    rig_submit(&rig, op);
    answer_resolve(&rig, 4, 4, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 4);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    assert_true(rig.transfers[0].is_dropped);
    assert_int_equal(rig.done_cnt, 0);
    assert_int_equal(rig.frames_cnt, 0); /* the unit may not free what is being written */
    moved(&rig, 0, TQ_E_CANCELLED);
    answer_abort(&rig);
    answer_publish_abort(&rig);
    rig_done_with(&rig, TQ_E_CANCELLED);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_unit_that_hangs_fails_the_put_that_it_takes_the_bytes_of(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_Ping_t ping;
    tqi_msg_Ping_R_t pong = {0};

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_STREAM;
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 8192));
    answer_resolve(&rig, 4, 4, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 4);
    for (int i = 0; i < 52 && !rig.transfers[0].is_dropped; i++) {
        rig_idle(&rig, 100);
        while (rig.frames_cnt > 0) {
            rig_frame_t frame = rig.frames[0];
            if (frame.peer == 1) {
                frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
                rig_answer(&rig, &frame, TQ_OK, &pong);
            } else {
                frame = rig_take(&rig, frame.env.kind); /* the unit says nothing */
                rig_free(&frame);
            }
        }
    }
    assert_true(rig.transfers[0].is_dropped);
    moved(&rig, 0, TQ_E_CANCELLED);
    rig_idle(&rig, 6000); /* what it is to undo is asked for in vain */
    rig_drop_frames(&rig);
    rig_done_with(&rig, TQ_E_UNREACHABLE);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_cancel_after_publish_gets_the_real_outcome(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_t *op = put_op(&rig, &c, 1, 2);
    rig_submit(&rig, op);
    answer_resolve(&rig, 1, 1, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 1);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    answer_publish(&rig, 1);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

/* The connection is lost before PUBLISH can be sent: it is never sent, and nobody may see the put. */
static void a_publish_that_was_never_sent_is_taken_back(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_t *op = put_op(&rig, &c, 1, 2);
    rig_submit(&rig, op);
    answer_resolve(&rig, 1, 1, 0);
    greet_units(&rig, 1);
    tqi_role_t *role = tqi_client_role(rig.client);
    role->on_peer_down(role, 1, rig.now);
    answer_prepare(&rig, 1);
    assert_int_equal(rig.frames_cnt, 0);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    answer_abort(&rig);
    rig_pass(&rig, 100);
    rig_greet(&rig);
    answer_publish_abort(&rig);
    rig_done_with(&rig, TQ_E_CANCELLED);
    assert_int_equal(rig.frames_cnt, 0);
    case_fini(&c);
    rig_fini(&rig);
}

static void what_undoes_a_put_is_said_however_late(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_t *op = put_op(&rig, &c, 1, 2);
    rig_submit(&rig, op);
    answer_resolve(&rig, 1, 1, 0);
    greet_units(&rig, 1);
    tqi_role_t *role = tqi_client_role(rig.client);
    role->on_peer_down(role, 1, rig.now);
    answer_prepare(&rig, 1);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    answer_abort(&rig);
    for (int i = 0; i < 60; i++) { /* HELLO is said again and again */
        rig_idle(&rig, 100);
        if (i < 59)
            rig_drop_frames(&rig);
    }
    rig_done_with(&rig, TQ_E_CANCELLED);
    while (rig.frames_cnt == 0)
        rig_idle(&rig, 100);
    rig_greet(&rig);
    answer_publish_abort(&rig);
    assert_int_equal(rig.frames_cnt, 0);
    case_fini(&c);
    rig_fini(&rig);
}

/* What it would write there is not where the controller thinks that it is. */
static void another_unit_at_the_address_is_not_written_to(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 1, 2));
    answer_resolve(&rig, 1, 1, 0);
    rig.answering_unit = 2;
    rig_greet_unit(&rig);
    rig.answering_unit = 0;
    rig_pong(&rig, NULL, 0); /* is there a newer table? */
    assert_int_equal(rig.frames_cnt, 0);
    rig_pass(&rig, 100);
    greet_units(&rig, 1);
    answer_prepare(&rig, 1);
    answer_publish(&rig, 1);
    rig_done_with(&rig, TQ_OK);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_unit_that_was_born_again_gets_a_new_way_for_payload(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_Hello_t hello;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    tqi_role_t *role = tqi_client_role(rig.client);
    for (uint64_t life = 1; life <= 3; life++) {
        tqi_msg_Hello_R_t msg = {.version = 1, .direct_arena = life < 3 ? 11 : 12};

        rig_submit(&rig, put_op(&rig, &c, 1, 2));
        answer_resolve(&rig, 1, 1, 0);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Hello, &hello);
        tqi_peer_t peer = frame.peer;
        rig_answer(&rig, &frame, TQ_OK, &msg);
        assert_int_equal(rig.ways_opened, life < 3 ? 1 : 2);
        assert_int_equal(rig.ways_closed, life < 3 ? 0 : 1);
        answer_prepare(&rig, 1);
        answer_publish(&rig, 1);
        rig_done_with(&rig, TQ_OK);
        role->on_peer_down(role, peer, rig.now);
        rig_pass(&rig, 500);
        rig_drop_frames(&rig); /* of the controller's PINGs */
        case_fini(&c);
    }
    rig_fini(&rig);
}

/* It might meet a new life of the unit, in which the cell is another put's already. */
static void a_prepare_of_a_put_that_was_given_up_is_not_sent_again(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_PreparePut_t prepare;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_t *op = put_op(&rig, &c, 1, 2);
    rig_submit(&rig, op);
    answer_resolve(&rig, 1, 1, 0);
    greet_units(&rig, 1);
    rig_frame_t frame = expect_prepare(&rig, &prepare, 1); /* never answered */
    tqi_peer_t peer = frame.peer;
    rig_free(&frame);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    tqi_client_role(rig.client)->on_peer_down(tqi_client_role(rig.client), peer, rig.now);
    rig_drop_frames(&rig);
    rig_pass(&rig, 500);
    greet_units(&rig, 1);
    assert_int_equal(rig.frames_cnt, 1);
    answer_abort(&rig);
    tqi_client_close(rig.client, rig.now);
    rig_pass(&rig, 10000);
    rig_done_with(&rig, TQ_E_CANCELLED);
    rig_drop_frames(&rig);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_put_whose_publish_is_not_answered_is_unknown(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 1, 2));
    answer_resolve(&rig, 1, 1, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 1);
    rig_drop_frames(&rig);
    for (int i = 0; i < 60 && rig.done_cnt == 0; i++) {
        rig_idle(&rig, 100);
        rig_drop_frames(&rig);
    }
    rig_done_with(&rig, TQ_E_OUTCOME_UNKNOWN);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_lost_session_fails_a_put_before_publish(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_Ping_t ping;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_STREAM;
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 4, 8192));
    answer_resolve(&rig, 4, 4, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 4);
    rig_pass(&rig, 1000);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
    rig_answer(&rig, &frame, TQ_E_SESSION_EXPIRED, NULL);
    assert_int_equal(rig.done_cnt, 0); /* the port still has its memory */
    moved(&rig, 0, TQ_E_CANCELLED);
    rig_done_with(&rig, TQ_E_SESSION_EXPIRED);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_late_answer_of_a_put_that_timed_out_is_aborted(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_op_t *op;
    tqi_msg_Resolve_t msg;
    uint64_t row = 1;
    uint32_t unit = 1;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    tqi_op_free(put_op(&rig, &c, 1, 1));
    c.args.timeout_ms = 100;
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Resolve, &msg);
    rig_idle(&rig, 400);
    rig_done_with(&rig, TQ_E_TIMEOUT);
    tqi_msg_Resolve_R_t reply = {
        .is_known = true, .put_id = 9, .rows = tqi_u64s(&row, 1), .units = tqi_u32s(&unit, 1)};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    answer_publish_abort(&rig);
    rig_fini(&rig);
    case_fini(&c);
}

static void a_refused_publish_undoes_the_put_everywhere(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_msg_Publish_t msg;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, put_op(&rig, &c, 1, 2));
    answer_resolve(&rig, 1, 1, 0);
    greet_units(&rig, 1);
    answer_prepare(&rig, 1);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Publish, &msg);
    rig_answer(&rig, &frame, TQ_E_UNIT_LOST, NULL);
    answer_publish_or_unit_abort(&rig);
    answer_publish_or_unit_abort(&rig);
    rig_done_with(&rig, TQ_E_UNIT_LOST);
    case_fini(&c);
    rig_fini(&rig);
}

static void tags_over_a_limit_are_too_large_and_say_how_many_they_are(void **state)
{
    rig_t rig;
    tqi_op_t *op;
    tqi_err_t err;
    char map[3 + 257 * 4];
    uint32_t offsets[] = {0, sizeof map};
    tq_row_t row = 5;
    tq_strs_t tags = {1, offsets, map};
    tq_tags_args_t args = {.partition = "p", .rows_cnt = 1, .rows = &row, .tags = &tags};

    (void)state;
    rig_init(&rig);
    memcpy(map, "\xde\x01\x01", 3);
    for (int i = 0; i < 257; i++) {
        map[3 + i * 4] = (char)0xcd; /* u16 key */
        map[4 + i * 4] = (char)(i >> 8);
        map[5 + i * 4] = (char)i;
        map[6 + i * 4] = 1;
    }
    assert_int_equal(tqi_op_tags(&rig.env.env, &args, &op, &err), TQ_E_TOO_LARGE);
    assert_non_null(strstr(err.text, "row 0 have 257 entries, over the limit of 256"));
    map[2] = 0;
    offsets[1] -= 4;
    assert_int_equal(tqi_op_tags(&rig.env.env, &args, &op, &err), TQ_OK);
    tqi_op_free(op);
    offsets[1]--;
    assert_int_equal(tqi_op_tags(&rig.env.env, &args, &op, &err), TQ_E_INVALID);
    rig_fini(&rig);
}

static void tags_alone_touch_no_unit(void **state)
{
    rig_t rig;
    tqi_op_t *op;
    tqi_msg_Publish_t msg;
    uint32_t offsets[] = {0, 1};
    tq_strs_t keys = {1, offsets, "0"}, tags = {1, offsets, "\x80"};
    tq_put_args_t args = {
        .partition = "p", .rows_cnt = 1, .keys = &keys, .tags = &tags, .flags = TQ_PUT_WANT_META};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    assert_int_equal(tqi_op_put(&rig.env.env, &args, &op, NULL), TQ_OK);
    rig_submit(&rig, op);
    answer_resolve(&rig, 1, 1, 0);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Publish, &msg);
    assert_int_equal(msg.fields.cnt, 0);
    assert_int_equal(msg.tags.cnt, 1);
    assert_true(msg.want_meta);
    tqi_msg_Publish_R_t reply = {.tags = {offsets, "\x80", 1, 1}};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    op = rig_done(&rig);
    assert_int_equal(tqi_op_result(op)->tags.cnt, 1);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void mistakes_are_told_before_anything_is_sent(void **state)
{
    rig_t rig;
    put_case_t c;
    tqi_op_t *op;
    tqi_err_t err;
    tq_row_t rows[] = {5, 4, 5};

    (void)state;
    rig_init(&rig);
    tqi_op_free(put_op(&rig, &c, 3, 2));
    c.bytes[2] = '0';
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, &err), TQ_E_DUPLICATE);
    assert_non_null(strstr(err.text, "'0'"));
    c.bytes[2] = '\0'; /* a key is any bytes */
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, &err), TQ_OK);
    tqi_op_free(op);
    c.args.keys = NULL;
    c.args.rows = rows;
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, &err), TQ_E_DUPLICATE);
    c.args.rows = NULL;
    c.column.desc.len = 7;
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, &err), TQ_E_INVALID);
    assert_non_null(strstr(err.text, "field 'x'"));
    c.args.columns_cnt = 0;
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, &err), TQ_E_INVALID);
    c.args.rows_cnt = TQ_REQUEST_ROWS_MAX + 1;
    assert_int_equal(tqi_op_put(&rig.env.env, &c.args, &op, &err), TQ_E_TOO_LARGE);
    case_fini(&c);
    rig_fini(&rig);
}

static void a_put_survives_every_refused_allocation(void **state)
{
    rig_t rig;
    put_case_t c;

    (void)state;
    for (uint64_t after = 0; after < 60; after++) {
        rig_init(&rig);
        rig_greet(&rig);
        rig_submit(&rig, put_op(&rig, &c, 2, 2));
        rig_frame_t frame = rig_take(&rig, TQI_KIND_Resolve);
        uint64_t rows[] = {1, 2};
        uint32_t units[] = {1, 1};
        tqi_msg_Resolve_R_t reply = {
            .is_known = true, .put_id = 9, .rows = tqi_u64s(rows, 2), .units = tqi_u32s(units, 2)};
        tqi_envelope_t env = {.kind = TQI_KIND_Resolve_R,
                              .version = 1,
                              .incarnation = rig.incarnation,
                              .session = rig.session,
                              .seq = frame.env.seq};
        tqi_buf_t buf;
        tqi_role_t *role = tqi_client_role(rig.client);
        tqi_buf_init(&buf, &rig.env.env);
        assert_int_equal(tqi_msg_encode(&buf, &env, NULL, &reply, NULL), TQ_OK);
        rig.env.fail_after = after;
        role->on_message(role, frame.peer, buf.data, buf.len, rig.now);
        rig_step(&rig);
        rig.env.fail_after = UINT64_MAX;
        tqi_buf_fini(&buf);
        rig_free(&frame);
        rig_step(&rig);
        rig_fini(&rig);
        case_fini(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_put_is_one_fused_message_a_unit_and_one_publish),
        cmocka_unit_test(leases_are_renewed_well_before_they_run_out),
        cmocka_unit_test(writing_stops_when_two_thirds_of_a_lease_pass_unanswered),
        cmocka_unit_test(a_lease_that_the_unit_says_is_gone_stops_the_write),
        cmocka_unit_test(new_rows_are_inserted),
        cmocka_unit_test(a_large_put_is_written_through_the_payload_port_then_committed),
        cmocka_unit_test(a_large_put_without_a_way_for_payload_says_why),
        cmocka_unit_test(a_full_unit_makes_the_put_cancel_all_and_take_it_in_order),
        cmocka_unit_test(a_full_unit_after_a_commit_begins_the_put_again),
        cmocka_unit_test(a_store_that_stays_full_fails_the_put_and_undoes_it),
        cmocka_unit_test(the_last_word_of_a_unit_ends_a_put_at_once),
        cmocka_unit_test(the_last_word_of_a_unit_ends_the_wait_for_its_abort),
        cmocka_unit_test(a_put_of_unknown_outcome_is_aborted_once_it_is_refused),
        cmocka_unit_test(a_failing_unit_aborts_the_put_everywhere),
        cmocka_unit_test(an_abort_that_finds_no_memory_is_asked_again_until_it_is_done),
        cmocka_unit_test(an_abort_is_asked_again_until_the_unit_serves),
        cmocka_unit_test(a_cancel_before_publish_wins_and_waits_for_the_payload_port),
        cmocka_unit_test(a_unit_that_hangs_fails_the_put_that_it_takes_the_bytes_of),
        cmocka_unit_test(a_cancel_after_publish_gets_the_real_outcome),
        cmocka_unit_test(a_publish_that_was_never_sent_is_taken_back),
        cmocka_unit_test(what_undoes_a_put_is_said_however_late),
        cmocka_unit_test(another_unit_at_the_address_is_not_written_to),
        cmocka_unit_test(a_unit_that_was_born_again_gets_a_new_way_for_payload),
        cmocka_unit_test(a_prepare_of_a_put_that_was_given_up_is_not_sent_again),
        cmocka_unit_test(a_put_whose_publish_is_not_answered_is_unknown),
        cmocka_unit_test(a_lost_session_fails_a_put_before_publish),
        cmocka_unit_test(a_late_answer_of_a_put_that_timed_out_is_aborted),
        cmocka_unit_test(a_refused_publish_undoes_the_put_everywhere),
        cmocka_unit_test(tags_over_a_limit_are_too_large_and_say_how_many_they_are),
        cmocka_unit_test(tags_alone_touch_no_unit),
        cmocka_unit_test(mistakes_are_told_before_anything_is_sent),
        cmocka_unit_test(a_put_survives_every_refused_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
