/* SPDX-License-Identifier: Apache-2.0 */
#include "role_client.h"

#include "base/size.h"

static tqi_op_t *get_op(rig_t *rig, const tq_row_t *rows, uint32_t cnt, const char *field,
                        uint32_t flags)
{
    tqi_op_t *op;
    tqi_err_t err = {0};
    uint32_t offsets[] = {0, field ? (uint32_t)strlen(field) : 0};
    tq_strs_t fields = {1, offsets, field};
    tq_get_args_t args = {.partition = "p",
                          .rows = rows,
                          .rows_cnt = cnt,
                          .fields = field ? &fields : NULL,
                          .flags = flags};

    if (tqi_op_get(&rig->env.env, &args, &op, &err) != TQ_OK)
        fail_msg("%s", err.text);
    return op;
}

/* Answers RESOLVE of rows: row r is on unit units[r]; one field "x", produced everywhere. */
static void answer_resolve(rig_t *rig, const uint32_t *units, uint32_t n)
{
    tqi_msg_Resolve_t msg;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Resolve, &msg);
    uint8_t ones[16];
    static const uint32_t name_offsets[] = {0, 1}, schema_offsets[] = {0, 4}, ids[] = {1, 2};
    static const uint64_t lives[] = {71, 72};
    tqi_msg_Resolve_R_t reply = {
        .is_known = true,
        .rows = msg.rows,
        .units = tqi_u32s(units, n),
        .produced = {ones, (n + 7) / 8},
        .common = {name_offsets, "x", msg.want_common ? 1 : 0, msg.want_common ? 1 : 0},
        .schemas = {schema_offsets, "\1\14\0\0", 1, 4},
        .life_units = tqi_u32s(ids, 2),
        .lives = tqi_u64s(lives, 2),
    };

    memset(ones, 0xff, sizeof ones);
    assert_int_equal(msg.rows.cnt, n);
    assert_false(msg.is_put);
    rig_answer(rig, &frame, TQ_OK, &reply);
}

typedef struct lens {
    uint32_t lens[16]; /* elements of each row, u8 */
    uint8_t encoding;
} lens_t;

static void desc_at(void *ctx, uint32_t r, tq_desc_t *desc)
{
    const lens_t *l = ctx;

    *desc = (tq_desc_t){.encoding = l->encoding, .len = l->lens[r]};
    if (l->encoding == TQ_ENC_TENSOR) {
        desc->dtype = TQ_DTYPE_U8;
        desc->ndim = 1;
        desc->shape[0] = l->lens[r];
    }
}

/* Answers PREPARE_GET with these lengths; bytes NULL: not inline. */
static uint64_t answer_prepare(rig_t *rig, lens_t *lens, uint32_t n, const char *bytes)
{
    tqi_msg_PrepareGet_t msg;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_PrepareGet, &msg);
    tqi_buf_t column;
    uint32_t offsets[] = {0, 0}, total = 0, piece = 1, segment = 4;
    uint64_t offset = 128, transfer = msg.transfer;

    assert_int_equal(msg.rows.cnt, n);
    assert_int_equal(msg.life, 70 + rig_unit_of(rig, frame.peer)); /* as RESOLVE said */
    for (uint32_t r = 0; r < n; r++)
        total += lens->lens[r];
    uint64_t piece_bytes = total;
    tqi_buf_init(&column, &rig->env.env);
    assert_int_equal(tqi_coldesc_encode(&column, n, desc_at, lens, NULL), TQ_OK);
    offsets[1] = (uint32_t)column.len;
    tqi_msg_PrepareGet_R_t reply = {
        .columns = {offsets, (const char *)column.data, 1, offsets[1]},
        .is_inline = bytes != NULL,
        .inline_bytes = {bytes, bytes ? total : 0},
    };
    if (!bytes) {
        reply.piece_counts = tqi_u32s(&piece, 1);
        reply.piece_segments = tqi_u32s(&segment, 1);
        reply.piece_offsets = tqi_u64s(&offset, 1);
        reply.piece_bytes = tqi_u64s(&piece_bytes, 1);
    }
    rig_answer(rig, &frame, TQ_OK, &reply);
    tqi_buf_fini(&column);
    return transfer;
}

static void answer_release(rig_t *rig, bool was_held)
{
    tqi_msg_Release_t msg;
    tqi_msg_Release_R_t reply = {.was_held = was_held};
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Release, &msg);

    rig_answer(rig, &frame, TQ_OK, &reply);
}

static void moved(rig_t *rig, uint32_t i, tq_status_t status)
{
    tqi_role_t *role = tqi_client_role(rig->client);

    role->on_payload(role, rig->transfers[i].key, status, "as the test wants", rig->now);
    rig_step(rig);
}

/* What the payload port would do: fills the transfer's memory. */
static void fill(rig_t *rig, uint32_t i, const char *bytes)
{
    for (uint32_t p = 0; p < rig->transfers[i].pieces_cnt; p++) {
        memcpy(rig->transfers[i].pieces[p].data, bytes, rig->transfers[i].pieces[p].len);
        bytes += rig->transfers[i].pieces[p].len;
    }
}

static const char *text_of(const tq_column_out_t *column)
{
    return column->buffer->data;
}

static void equal_values_come_back_as_one_uniform_column(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 11, 12};
    uint32_t units[] = {1, 1, 1};
    lens_t lens = {{2, 2, 2}, TQ_ENC_TENSOR};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 3, "x", 0));
    answer_resolve(&rig, units, 3);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &lens, 3, "aabbcc");
    tqi_op_t *op = rig_done(&rig);
    const tq_result_t *result = tqi_op_result(op);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_int_equal(result->rows_cnt, 3);
    assert_int_equal(result->columns_cnt, 1);
    assert_string_equal(result->columns[0].field, "x");
    assert_int_equal(result->columns[0].layout, TQ_LAYOUT_UNIFORM);
    assert_int_equal(result->columns[0].desc.shape[0], 2);
    assert_int_equal(result->columns[0].offsets[2], 4);
    assert_memory_equal(text_of(&result->columns[0]), "aabbcc", 6);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void rows_of_two_units_interleave_in_the_order_asked_for(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 20, 11, 21, 10};
    uint32_t units[] = {2, 1, 2, 1, 2};
    lens_t one = {{1, 3}, TQ_ENC_TENSOR}, two = {{2, 1, 2}, TQ_ENC_TENSOR};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 5, NULL, 0));
    answer_resolve(&rig, units, 5);
    rig_greet_unit(&rig);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &one, 2, "1333");
    answer_prepare(&rig, &two, 3, "aabcc");
    tqi_op_t *op = rig_done(&rig);
    const tq_column_out_t *column = tqi_op_result(op)->columns;
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_int_equal(column->layout, TQ_LAYOUT_RAGGED);
    assert_int_equal(column->desc.shape[0], 0);
    assert_int_equal(column->offsets[5], 9);
    assert_memory_equal(text_of(column), "aa1b333cc", 9);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void values_of_no_common_shape_are_aligned_each(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 11};
    uint32_t units[] = {1, 1};
    lens_t lens = {{3, 2}, TQ_ENC_BYTES};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 2, "x", 0));
    answer_resolve(&rig, units, 2);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &lens, 2, "abcde");
    tqi_op_t *op = rig_done(&rig);
    const tq_column_out_t *column = tqi_op_result(op)->columns;
    assert_int_equal(column->layout, TQ_LAYOUT_EACH);
    assert_int_equal(column->offsets[1], 16);
    assert_int_equal(column->descs[0].len, 3);
    assert_int_equal(column->descs[1].len, 2);
    assert_memory_equal(text_of(column), "abc", 3);
    assert_memory_equal(text_of(column) + 16, "de", 2);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void direct_reads_land_in_the_column_and_count_if_the_pin_was_held(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 11};
    uint32_t units[] = {1, 1};
    lens_t lens = {{3, 3}, TQ_ENC_TENSOR};

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 2, "x", 0));
    answer_resolve(&rig, units, 2);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &lens, 2, NULL);
    assert_int_equal(rig.transfers_cnt, 1);
    assert_false(rig.transfers[0].is_write);
    assert_int_equal(rig.transfers[0].extents[0].segment, 4);
    assert_int_equal(rig.transfers[0].extents[0].len, 6);
    fill(&rig, 0, "abcdef");
    moved(&rig, 0, TQ_OK);
    answer_release(&rig, true);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_memory_equal(text_of(tqi_op_result(op)->columns), "abcdef", 6);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_pin_that_was_let_go_makes_the_get_read_again(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR}, longer = {{4}, TQ_ENC_TENSOR};

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    uint64_t first = answer_prepare(&rig, &lens, 1, NULL);
    moved(&rig, 0, TQ_OK);
    answer_release(&rig, false);
    answer_resolve(&rig, units, 1);
    assert_true(answer_prepare(&rig, &longer, 1, NULL) != first);
    fill(&rig, 1, "abcd");
    moved(&rig, 1, TQ_OK);
    answer_release(&rig, true);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_memory_equal(text_of(tqi_op_result(op)->columns), "abcd", 4);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_stream_is_over_when_both_ends_say_so(void **state)
{
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_msg_Commit_t commit;
    tqi_msg_Commit_R_t reply = {0};

    (void)state;
    for (int order = 0; order < 2; order++) {
        rig_t rig;
        rig_init(&rig);
        rig.mode = TQI_PAYLOAD_STREAM;
        rig_greet(&rig);
        rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
        answer_resolve(&rig, units, 1);
        rig_greet_unit(&rig);
        answer_prepare(&rig, &lens, 1, NULL);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Commit, &commit);
        fill(&rig, 0, "abc");
        if (order == 0)
            moved(&rig, 0, TQ_OK);
        rig_answer(&rig, &frame, TQ_OK, &reply);
        if (order == 1) {
            assert_int_equal(rig.done_cnt, 0);
            moved(&rig, 0, TQ_OK);
        }
        rig_done_with(&rig, TQ_OK);
        rig_fini(&rig);
    }
}

/* Once all bytes are here nothing renews the lease any more, and the unit, whose port takes long to
 * say that it sent them, may let it run out. */
static void a_stream_that_came_whole_counts_whatever_the_unit_says_of_it(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_msg_Commit_t commit;

    (void)state;
    for (int order = 0; order < 2; order++) {
        rig_init(&rig);
        rig.mode = TQI_PAYLOAD_STREAM;
        rig_greet(&rig);
        rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
        answer_resolve(&rig, units, 1);
        rig_greet_unit(&rig);
        answer_prepare(&rig, &lens, 1, NULL);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Commit, &commit);
        fill(&rig, 0, "abc");
        if (order == 0)
            moved(&rig, 0, TQ_OK);
        rig_answer(&rig, &frame, TQ_E_TIMEOUT, NULL);
        if (order == 1) /* it is being dropped: nothing of it counts */
            moved(&rig, 0, TQ_E_CANCELLED);
        rig_done_with(&rig, order == 0 ? TQ_OK : TQ_E_TIMEOUT);
        rig_fini(&rig);
    }
}

/* It is of another life of the unit. */
static void a_refused_token_opens_the_way_again(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_msg_Commit_t commit;
    bool has_greeted = false;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_STREAM;
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &lens, 1, NULL);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Commit, &commit);
    rig_free(&frame);
    moved(&rig, 0, TQ_E_DENIED);
    rig_idle(&rig, 500);
    assert_int_equal(rig.done_cnt, 0);
    assert_int_equal(rig.ways_closed, 1);
    for (uint32_t i = 0; i < rig.frames_cnt; i++)
        has_greeted |= rig.frames[i].env.kind == TQI_KIND_Hello;
    assert_true(has_greeted);
    rig_fini(&rig);
}

static void a_row_that_goes_away_in_between_is_resolved_once_more(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    tqi_msg_PrepareGet_t msg;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    for (int i = 0; i < 2; i++) {
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_PrepareGet, &msg);
        rig_answer(&rig, &frame, TQ_E_ROW_GONE, NULL);
        if (i == 0)
            answer_resolve(&rig, units, 1);
    }
    rig_done_with(&rig, TQ_E_NOT_FOUND);
    rig_fini(&rig);
}

static void what_is_missing_is_named(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 11};
    uint64_t found[] = {10, TQ_ROW_NONE};
    uint32_t units[] = {1, 1}, schema_offsets[] = {0, 0};
    uint8_t bits = 1;
    tqi_msg_Resolve_t msg;

    (void)state;
    for (int i = 0; i < 4; i++) {
        tqi_msg_Resolve_R_t reply = {.is_known = i > 0,
                                     .rows = tqi_u64s(i == 1 ? found : rows, 2),
                                     .units = tqi_u32s(units, 2),
                                     .produced = {&bits, 1},
                                     .schemas = {schema_offsets, "\1\14\0\0", 1, 0}};
        tq_status_t expected[] = {TQ_E_NO_PARTITION, TQ_E_NOT_FOUND, TQ_E_NO_FIELD,
                                  TQ_E_NOT_PRODUCED};
        if (i == 3)
            schema_offsets[1] = reply.schemas.bytes_len = 4;
        rig_init(&rig);
        rig_greet(&rig);
        rig_submit(&rig, get_op(&rig, rows, 2, "x", 0));
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_Resolve, &msg);
        rig_answer(&rig, &frame, TQ_OK, &reply);
        rig_done_with(&rig, expected[i]);
        rig_fini(&rig);
    }
}

static void a_field_that_some_row_lacks_can_be_left_out(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 11};
    uint32_t units[] = {1, 1};
    uint8_t bits = 1;
    tqi_msg_Resolve_t msg;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 2, "x", TQ_GET_SKIP_FIELDS));
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Resolve, &msg);
    tqi_msg_Resolve_R_t reply = {.is_known = true,
                                 .rows = tqi_u64s(rows, 2),
                                 .units = tqi_u32s(units, 2),
                                 .produced = {&bits, 1}};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_OK);
    assert_int_equal(tqi_op_result(op)->rows_cnt, 2);
    assert_int_equal(tqi_op_result(op)->columns_cnt, 0);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_cancelled_get_lets_go_of_pins_and_keeps_its_memory_until_the_port_did(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_msg_Cancel_t msg;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    tqi_op_t *op = get_op(&rig, rows, 1, "x", 0);
    rig_submit(&rig, op);
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    uint64_t transfer = answer_prepare(&rig, &lens, 1, NULL);
    tqi_client_cancel(rig.client, op, rig.now);
    rig_step(&rig);
    assert_true(rig.transfers[0].is_dropped);
    assert_int_equal(rig.buffers_cnt, 1);
    assert_int_equal(rig.done_cnt, 0);
    fill(&rig, 0, "abc"); /* late bytes hurt nobody */
    moved(&rig, 0, TQ_E_CANCELLED);
    rig_done_with(&rig, TQ_E_CANCELLED);
    assert_int_equal(rig.buffers_cnt, 0);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Cancel, &msg);
    assert_int_equal(msg.transfer, transfer);
    tqi_msg_Cancel_R_t reply = {0};
    rig_answer(&rig, &frame, TQ_OK, &reply);
    rig_fini(&rig);
}

static void a_lost_session_reads_again_in_the_next_one(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_msg_Ping_t ping;

    (void)state;
    rig_init(&rig);
    rig.mode = TQI_PAYLOAD_DIRECT;
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &lens, 1, NULL);
    rig_pass(&rig, 1000);
    rig_frame_t frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
    if (rig.frames_cnt > 0)
        rig_drop_frames(&rig);
    rig_answer(&rig, &frame, TQ_E_SESSION_EXPIRED, NULL);
    moved(&rig, 0, TQ_E_CANCELLED);
    assert_int_equal(rig.done_cnt, 0);
    rig.session = 78;
    rig_greet(&rig);
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    answer_prepare(&rig, &lens, 1, NULL);
    fill(&rig, 1, "abc");
    moved(&rig, 1, TQ_OK);
    answer_release(&rig, true);
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void a_unit_that_waits_for_the_controller_is_asked_again(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_msg_PrepareGet_t msg;

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
    answer_resolve(&rig, units, 1);
    rig_greet_unit(&rig);
    for (int i = 0; i < 3; i++) {
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_PrepareGet, &msg);
        rig_answer(&rig, &frame, TQ_E_UNIT_LOST, NULL);
        assert_int_equal(rig.frames_cnt, 0);
        rig_idle(&rig, 100);
    }
    answer_prepare(&rig, &lens, 1, "abc");
    rig_done_with(&rig, TQ_OK);
    rig_fini(&rig);
}

static void a_unit_that_refuses_hello_fails_the_get_in_time(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1};
    tqi_msg_Ping_t ping;
    tqi_msg_Ping_R_t pong = {0};

    (void)state;
    rig_init(&rig);
    rig_greet(&rig);
    rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
    answer_resolve(&rig, units, 1);
    for (int i = 0; i < 60 && rig.done_cnt == 0; i++) {
        while (rig.frames_cnt > 0) {
            if (rig.frames[0].env.kind == TQI_KIND_Ping) {
                rig_frame_t frame = rig_expect(&rig, TQI_KIND_Ping, &ping);
                rig_answer(&rig, &frame, TQ_OK, &pong);
            } else {
                rig_frame_t frame = rig_take(&rig, TQI_KIND_Hello);
                rig_answer(&rig, &frame, TQ_E_UNIT_LOST, NULL);
            }
        }
        rig_idle(&rig, 100);
    }
    tqi_op_t *op = rig_done(&rig);
    assert_int_equal(tqi_op_status(op), TQ_E_UNREACHABLE);
    assert_non_null(strstr(tqi_op_error(op), "as the test wants"));
    assert_true(rig.now <= (1000 + 5200) * RIG_MS);
    tqi_op_free(op);
    rig_fini(&rig);
}

static void a_get_survives_every_refused_allocation(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10, 11, 12};
    uint32_t units[] = {1, 1, 1};
    lens_t lens = {{2, 1, 2}, TQ_ENC_TENSOR};
    uint32_t failures = 0;

    (void)state;
    for (uint64_t after = 0; after < 40; after++) {
        tqi_msg_PrepareGet_t msg;
        tqi_buf_t column, buf;
        rig_init(&rig);
        rig_greet(&rig);
        rig_submit(&rig, get_op(&rig, rows, 3, "x", 0));
        answer_resolve(&rig, units, 3);
        rig_greet_unit(&rig);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_PrepareGet, &msg);
        tqi_buf_init(&column, &rig.env.env);
        tqi_buf_init(&buf, &rig.env.env);
        assert_int_equal(tqi_coldesc_encode(&column, 3, desc_at, &lens, NULL), TQ_OK);
        uint32_t offsets[] = {0, (uint32_t)column.len};
        tqi_msg_PrepareGet_R_t reply = {
            .columns = {offsets, (const char *)column.data, 1, offsets[1]},
            .is_inline = true,
            .inline_bytes = {"aabcc", 5},
        };
        tqi_envelope_t env = {.kind = TQI_KIND_PrepareGet_R,
                              .version = 1,
                              .sender = 1,
                              .incarnation = rig.incarnation,
                              .session = rig.session,
                              .seq = frame.env.seq};
        assert_int_equal(tqi_msg_encode(&buf, &env, NULL, &reply, NULL), TQ_OK);
        rig.env.fail_after = after;
        rig_deliver(&rig, frame.peer, &buf);
        rig.env.fail_after = UINT64_MAX;
        rig_step(&rig);
        tqi_op_t *op = rig_done(&rig);
        failures += tqi_op_status(op) == TQ_E_NO_MEMORY;
        assert_true(tqi_op_status(op) == TQ_OK || tqi_op_status(op) == TQ_E_NO_MEMORY);
        tqi_op_free(op);
        tqi_buf_fini(&buf);
        tqi_buf_fini(&column);
        rig_free(&frame);
        rig_fini(&rig);
    }
    assert_true(failures > 1 && failures < 40);
}

static void bytes_that_are_not_as_described_are_refused(void **state)
{
    rig_t rig;
    tq_row_t rows[] = {10};
    uint32_t units[] = {1}, offsets[] = {0, 0}, piece = 1, segment = 1;
    uint64_t offset = 0, bytes = 99;
    lens_t lens = {{3}, TQ_ENC_TENSOR};
    tqi_buf_t column;
    tqi_msg_PrepareGet_t msg;

    (void)state;
    for (int i = 0; i < 3; i++) {
        rig_init(&rig);
        rig.mode = TQI_PAYLOAD_DIRECT;
        rig_greet(&rig);
        rig_submit(&rig, get_op(&rig, rows, 1, "x", 0));
        answer_resolve(&rig, units, 1);
        rig_greet_unit(&rig);
        rig_frame_t frame = rig_expect(&rig, TQI_KIND_PrepareGet, &msg);
        tqi_buf_init(&column, &rig.env.env);
        assert_int_equal(tqi_coldesc_encode(&column, 1, desc_at, &lens, NULL), TQ_OK);
        offsets[1] = (uint32_t)column.len - (i == 2);
        tqi_msg_PrepareGet_R_t reply = {
            .columns = {offsets, (const char *)column.data, 1, offsets[1]},
            .is_inline = i != 1,
            .inline_bytes = {"abcd", i == 1 ? 0 : 4},
        };
        if (i == 1) {
            reply.piece_counts = tqi_u32s(&piece, 1);
            reply.piece_segments = tqi_u32s(&segment, 1);
            reply.piece_offsets = tqi_u64s(&offset, 1);
            reply.piece_bytes = tqi_u64s(&bytes, 1);
        }
        rig_answer(&rig, &frame, TQ_OK, &reply);
        tqi_buf_fini(&column);
        rig_done_with(&rig, TQ_E_MALFORMED);
        rig_fini(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_values_come_back_as_one_uniform_column),
        cmocka_unit_test(rows_of_two_units_interleave_in_the_order_asked_for),
        cmocka_unit_test(values_of_no_common_shape_are_aligned_each),
        cmocka_unit_test(direct_reads_land_in_the_column_and_count_if_the_pin_was_held),
        cmocka_unit_test(a_pin_that_was_let_go_makes_the_get_read_again),
        cmocka_unit_test(a_stream_is_over_when_both_ends_say_so),
        cmocka_unit_test(a_stream_that_came_whole_counts_whatever_the_unit_says_of_it),
        cmocka_unit_test(a_refused_token_opens_the_way_again),
        cmocka_unit_test(a_row_that_goes_away_in_between_is_resolved_once_more),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(a_field_that_some_row_lacks_can_be_left_out),
        cmocka_unit_test(a_cancelled_get_lets_go_of_pins_and_keeps_its_memory_until_the_port_did),
        cmocka_unit_test(a_lost_session_reads_again_in_the_next_one),
        cmocka_unit_test(a_unit_that_waits_for_the_controller_is_asked_again),
        cmocka_unit_test(a_unit_that_refuses_hello_fails_the_get_in_time),
        cmocka_unit_test(a_get_survives_every_refused_allocation),
        cmocka_unit_test(bytes_that_are_not_as_described_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
