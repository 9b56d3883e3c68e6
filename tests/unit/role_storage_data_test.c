/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and gets at a storage unit: inline, from its segments, and through the payload port. */
#include "role_storage.h"

#define CAPACITY (1u << 20)

static rig_put_t streamed(uint64_t id, uint64_t first, uint32_t rows_cnt, uint32_t len)
{
    rig_put_t put = rig_fused(id, first, rows_cnt, len);

    put.is_fused = false;
    put.mode = TQI_PAYLOAD_STREAM;
    return put;
}

static rig_put_t direct(uint64_t id, uint64_t first, uint32_t rows_cnt, uint32_t len)
{
    rig_put_t put = streamed(id, first, rows_cnt, len);

    put.mode = TQI_PAYLOAD_DIRECT;
    return put;
}

/* What a client's thread does between READY and COMMIT. */
static void write_direct(rig_t *rig, const rig_put_t *put, uint32_t segment, uint64_t offset)
{
    memset(rig->segments[segment] + offset, put->fill, (size_t)put->rows_cnt * put->len);
}

/* What the payload port does with what it expects. */
static void land(rig_t *rig, const rig_put_t *put)
{
    rig_transfer_t *t = rig_transfer(rig, RIG_SESSION, put->transfer);

    assert_non_null(t);
    assert_false(t->is_send);
    for (uint32_t p = 0; p < t->pieces_cnt; p++)
        memset(t->pieces[p].data, put->fill, t->pieces[p].len);
    rig_payload_done(rig, RIG_SESSION, put->transfer, TQ_OK, NULL);
}

static void put_published(rig_t *rig, uint64_t id, uint64_t first, uint32_t rows_cnt, uint32_t len)
{
    rig_put_t put = rig_fused(id, first, rows_cnt, len);

    if ((uint64_t)rows_cnt * len > TQ_INLINE_BYTES_MAX) {
        put = direct(id, first, rows_cnt, len);
        assert_int_equal(rig_put(rig, &put), TQ_OK);
        write_direct(rig, &put, tqi_u32s_at(rig->msg.put.segments, 0),
                     tqi_u64s_at(rig->msg.put.offsets, 0));
        assert_int_equal(RIG_ID_CALL(rig, Commit, id), TQ_OK);
    } else {
        assert_int_equal(rig_put(rig, &put), TQ_OK);
    }
    rig_confirm(rig, id);
}

/* ---- inline ----------------------------------------------------------------------------------- */

static void a_small_put_is_one_message_and_so_is_its_get(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(5, 100, 8, 50);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig_get(&rig, 1, 100, 8, TQ_INLINE_BYTES_MAX, 0, false), TQ_E_NOT_PRODUCED);
    assert_int_equal(rig.msg.error.rows.cnt, 8);
    assert_memory_equal(tqi_strs_at(rig.msg.error.fields, 0).data, "x", 1);
    /* The controller's word publishes it before CONFIRM comes. */
    assert_int_equal(rig_get(&rig, 1, 100, 8, TQ_INLINE_BYTES_MAX, 0, true), TQ_OK);
    assert_true(rig.msg.get.is_inline);
    assert_int_equal(rig.msg.get.inline_bytes.len, 400);
    for (uint32_t i = 0; i < 400; i++)
        assert_int_equal(((const uint8_t *)rig.msg.get.inline_bytes.data)[i], 5);
    tqi_coldesc_t col;
    assert_int_equal(tqi_coldesc_decode(tqi_strs_at(rig.msg.get.columns, 0), 8, &col, NULL), TQ_OK);
    assert_int_equal(col.layout, TQ_LAYOUT_UNIFORM);
    assert_int_equal(col.desc.shape[0], 50);
    rig_confirm(&rig, 5); /* nothing is left of it to do */
    assert_int_equal(rig_figure(&rig, "puts_unconfirmed"), 0);
    rig_close(&rig);
}

/* A get that was resolved before the unit was started again speaks of cells that went with the life
 * before; what another put has staged in their place is not for it to publish. */
static void what_was_produced_in_a_former_life_publishes_nothing(void **state)
{
    rig_t rig;
    uint64_t row = 100;
    uint32_t offsets[2] = {0, 1};
    uint8_t bits = 1;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = rig_fused(5, row, 1, 50);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    tqi_msg_PrepareGet_t msg = {.transfer = 1,
                                .rows = tqi_u64s(&row, 1),
                                .fields = {offsets, "x", 1, 1},
                                .produced = {&bits, 1},
                                .inline_max = TQ_INLINE_BYTES_MAX,
                                .life = RIG_UNIT_INCARNATION - 1};
    assert_int_equal(rig_call(&rig, TQI_KIND_PrepareGet, &msg), TQ_E_ROW_GONE);
    assert_int_equal(rig_value(&rig, row), -1);
    msg.life = RIG_UNIT_INCARNATION;
    assert_int_equal(rig_call(&rig, TQI_KIND_PrepareGet, &msg), TQ_OK);
    assert_int_equal(rig_value(&rig, row), 5);
    rig_close(&rig);
}

static void a_fused_put_must_be_as_long_as_it_says(void **state)
{
    rig_t rig;
    uint64_t row = 1;
    uint32_t offsets[2] = {0, 1};
    uint32_t len = 100;
    uint8_t bytes[99] = {0};
    tqi_buf_t column;
    tqi_strs_builder_t columns;
    (void)state;
    rig_open(&rig, CAPACITY);
    tqi_buf_init(&column, &rig.env.env);
    tqi_strs_builder_init(&columns, &rig.env.env);
    assert_int_equal(tqi_coldesc_encode(&column, 1, rig_desc_at, &len, NULL), TQ_OK);
    assert_int_equal(tqi_strs_builder_add(&columns, column.data, column.len), TQ_OK);
    tqi_msg_PreparePut_t msg = {.transfer = 1,
                                .put_id = 1,
                                .rows = tqi_u64s(&row, 1),
                                .fields = {offsets, "x", 1, 1},
                                .columns = tqi_strs_builder_view(&columns),
                                .is_fused = true,
                                .wait_ms = 1000,
                                .inline_bytes = {bytes, sizeof bytes}};
    assert_int_equal(rig_call(&rig, TQI_KIND_PreparePut, &msg), TQ_E_MALFORMED);
    assert_string_equal(rig_text(&rig), "99 bytes of payload, but the columns say 100");
    msg.put_id = 0;
    assert_int_equal(rig_call(&rig, TQI_KIND_PreparePut, &msg), TQ_E_INVALID);
    msg.put_id = 1;
    msg.is_fused = false;
    msg.mode = 9;
    assert_int_equal(rig_call(&rig, TQI_KIND_PreparePut, &msg), TQ_E_UNSUPPORTED);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    tqi_buf_fini(&column);
    tqi_strs_builder_fini(&columns);
    rig_close(&rig);
}

/* ---- DIRECT ----------------------------------------------------------------------------------- */

static void a_direct_put_goes_where_ready_says(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = direct(5, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig.msg.put.lease_ms, 30000);
    write_direct(&rig, &put, tqi_u32s_at(rig.msg.put.segments, 0),
                 tqi_u64s_at(rig.msg.put.offsets, 0));
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 5), TQ_OK);
    rig_confirm(&rig, 5);
    assert_int_equal(rig_value(&rig, 163), 5);
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 5), TQ_E_NOT_FOUND);
    rig_close(&rig);
}

static void a_direct_get_is_pinned_until_its_release(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 100, 64, 2000);
    put_published(&rig, 2, 164, 64, 2000);
    assert_int_equal(rig_get(&rig, 9, 150, 30, 1000, TQI_PAYLOAD_DIRECT, false), TQ_OK);
    assert_false(rig.msg.get.is_inline);
    assert_int_equal(rig.msg.get.piece_counts.cnt, 1);
    assert_int_equal(tqi_u32s_at(rig.msg.get.piece_counts, 0), 2);
    assert_int_equal(tqi_u64s_at(rig.msg.get.piece_bytes, 0), 14 * 2000);
    assert_int_equal(tqi_u64s_at(rig.msg.get.piece_bytes, 1), 16 * 2000);
    uint8_t *first = rig.segments[tqi_u32s_at(rig.msg.get.piece_segments, 0)] +
                     tqi_u64s_at(rig.msg.get.piece_offsets, 0);
    /* Cleared and written anew under it: it reads what it was promised. */
    rig_unlink(&rig, 100, 160);
    put_published(&rig, 3, 160, 68, 2000);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 30 * 2000);
    rig_check(&rig);
    for (int i = 0; i < 14 * 2000; i++)
        assert_int_equal(first[i], 1);
    assert_int_equal(RIG_ID_CALL(&rig, Release, 9), TQ_OK);
    assert_true(rig.msg.release.was_held);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 0);
    assert_int_equal(RIG_ID_CALL(&rig, Release, 9), TQ_OK);
    assert_false(rig.msg.release.was_held);
    rig_close(&rig);
}

static void a_reader_that_is_too_slow_is_told_so(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 100, 64, 2000);
    assert_int_equal(rig_get(&rig, 9, 100, 64, 0, TQI_PAYLOAD_DIRECT, false), TQ_OK);
    /* A lease begins again with every message that names it. */
    for (int i = 0; i < 5; i++) {
        uint64_t ids[2] = {9, 10};

        for (int s = 0; s < 5; s++) {
            rig_sleep(&rig, 4000);
            rig_ping(&rig);
        }
        assert_int_equal(
            rig_call(&rig, TQI_KIND_Renew, &(tqi_msg_Renew_t){.transfers = tqi_u64s(ids, 2)}),
            TQ_OK);
        assert_int_equal(rig.msg.renew.gone.cnt, 1);
        assert_int_equal(tqi_u64s_at(rig.msg.renew.gone, 0), 10);
    }
    for (int s = 0; s < 8; s++) {
        rig_sleep(&rig, 4000);
        rig_ping(&rig);
    }
    assert_int_equal(rig_figure(&rig, "rows_pinned"), 0);
    assert_int_equal(rig_figure(&rig, "expired"), 1);
    assert_int_equal(RIG_ID_CALL(&rig, Release, 9), TQ_OK);
    assert_false(rig.msg.release.was_held);
    rig_close(&rig);
}

static void a_direct_writer_that_is_too_slow_keeps_its_memory(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = direct(5, 100, 10, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    for (int s = 0; s < 8; s++) {
        rig_sleep(&rig, 4000);
        rig_ping(&rig);
    }
    /* Its cells are others' again at once; its memory only when its session ends. */
    assert_int_equal(rig_figure(&rig, "cells_claimed"), 0);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 20224);
    rig_check(&rig);
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 5), TQ_E_TIMEOUT);
    assert_non_null(strstr(rig_text(&rig), "nothing of it was written"));
    put_published(&rig, 6, 100, 10, 2000);
    rig_end_session(&rig, RIG_SESSION, 0);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 0);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 20224);
    rig_close(&rig);
}

static void direct_is_for_those_who_were_offered_it(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig.has_direct = false;
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 2), TQ_OK);
    rig_put_t put = direct(5, 100, 10, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_E_UNSUPPORTED);
    put_published(&rig, 6, 100, 10, 200);
    assert_int_equal(rig_get(&rig, 7, 100, 10, 10, TQI_PAYLOAD_DIRECT, false), TQ_E_UNSUPPORTED);
    rig_close(&rig);
}

/* ---- STREAM ----------------------------------------------------------------------------------- */

static void a_streamed_put_is_done_when_its_bytes_are_there(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = streamed(5, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig.msg.put.segments.cnt, 0);
    uint64_t seq = rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 5});
    assert_false(rig_next(&rig));
    /* Asked again, it is not committed again; cancelled it can't be any more. */
    rig.seq--;
    rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 5});
    assert_false(rig_next(&rig));
    assert_int_equal(RIG_ID_CALL(&rig, Cancel, 5), TQ_E_INVALID);
    land(&rig, &put);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Commit), TQ_OK);
    assert_int_equal(rig.reply_env.seq, seq);
    rig_confirm(&rig, 5);
    assert_int_equal(rig_value(&rig, 163), 5);
    /* The other order. */
    put = streamed(6, 200, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    land(&rig, &put);
    assert_false(rig_next(&rig));
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 6), TQ_OK);
    rig_close(&rig);
}

static void a_stream_that_breaks_fails_its_put(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = streamed(5, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_payload_done(&rig, RIG_SESSION, 5, TQ_E_PEER_LOST, "the connection broke");
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    rig_check(&rig);
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 5), TQ_E_PEER_LOST);
    assert_string_equal(rig_text(&rig), "the connection broke");
    put = streamed(6, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 6});
    rig_payload_done(&rig, RIG_SESSION, 6, TQ_E_PEER_LOST, "the connection broke");
    assert_int_equal(rig_answer(&rig, TQI_KIND_Commit), TQ_E_PEER_LOST);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    rig.refuses_payload = true;
    put = streamed(7, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_E_UNREACHABLE);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    rig_close(&rig);
}

static void memory_that_the_port_may_write_is_kept_until_its_word(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = streamed(5, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(RIG_ID_CALL(&rig, Cancel, 5), TQ_OK);
    assert_true(rig_transfer(&rig, RIG_SESSION, 5)->is_dropped);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 128000);
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 5), TQ_E_TIMEOUT);
    rig_check(&rig);
    rig_payload_done(&rig, RIG_SESSION, 5, TQ_OK, NULL); /* the drop came too late: all the same */
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 0);
    /* ABORT after COMMIT, and the end of the session. */
    put = streamed(6, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 6});
    rig_request(&rig, TQI_KIND_Abort, &(tqi_msg_Abort_t){.put_id = 6});
    assert_int_equal(rig_answer(&rig, TQI_KIND_Commit), TQ_E_CANCELLED);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Abort), TQ_OK);
    put = streamed(7, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_end_session(&rig, RIG_SESSION, 0);
    assert_true(rig_transfer(&rig, RIG_SESSION, 7)->is_dropped);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 256000);
    rig_check(&rig);
    rig_payload_done(&rig, RIG_SESSION, 6, TQ_E_CANCELLED, "dropped");
    assert_int_equal(rig_figure(&rig, "sessions"), 1);
    rig_payload_done(&rig, RIG_SESSION, 7, TQ_E_CANCELLED, "dropped");
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    assert_int_equal(rig_figure(&rig, "sessions"), 0);
    rig_close(&rig);
}

static void a_streamed_get_is_sent_upon_commit(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 100, 32, 2000);
    put_published(&rig, 2, 132, 32, 2000);
    assert_int_equal(rig_get(&rig, 9, 120, 20, 1000, TQI_PAYLOAD_STREAM, false), TQ_OK);
    assert_int_equal(rig.msg.get.piece_counts.cnt, 0);
    assert_null(rig_transfer(&rig, RIG_SESSION, 9));
    rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 9});
    assert_false(rig_next(&rig));
    rig_transfer_t *t = rig_transfer(&rig, RIG_SESSION, 9);
    assert_true(t->is_send);
    assert_int_equal(t->frames_cnt, 1);
    assert_int_equal(t->frames[0].pieces_cnt, 2);
    assert_int_equal(t->frames[0].bytes, 40000);
    assert_int_equal(*(uint8_t *)t->pieces[0].data, 1);
    assert_int_equal(*(uint8_t *)t->pieces[1].data, 2);
    rig_unlink(&rig, 100, 164);
    rig_payload_done(&rig, RIG_SESSION, 9, TQ_OK, NULL);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Commit), TQ_OK);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    rig_close(&rig);
}

static void a_get_given_up_while_it_is_sent_stays_pinned_until_the_ports_word(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 100, 32, 2000);
    assert_int_equal(rig_get(&rig, 9, 100, 32, 1000, TQI_PAYLOAD_STREAM, false), TQ_OK);
    rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 9});
    rig_request(&rig, TQI_KIND_Cancel, &(tqi_msg_Cancel_t){.transfer = 9});
    assert_int_equal(rig_answer(&rig, TQI_KIND_Commit), TQ_E_CANCELLED);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Cancel), TQ_OK);
    rig_unlink(&rig, 100, 132);
    assert_int_equal(rig_figure(&rig, "zombie_bytes"), 64000);
    rig_check(&rig);
    rig_payload_done(&rig, RIG_SESSION, 9, TQ_E_CANCELLED, "dropped");
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    /* A new one to the same unit works meanwhile, and so does one whose port refuses. */
    put_published(&rig, 2, 200, 32, 2000);
    assert_int_equal(rig_get(&rig, 10, 200, 32, 1000, TQI_PAYLOAD_STREAM, false), TQ_OK);
    rig.refuses_payload = true;
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 10), TQ_E_UNREACHABLE);
    assert_int_equal(rig_figure(&rig, "rows_pinned"), 0);
    rig_close(&rig);
}

static void bytes_that_land_while_the_controller_is_silent_do_not_count(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t put = streamed(5, 100, 64, 2000);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = 5});
    rig_sleep(&rig, 6000);
    land(&rig, &put);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Commit), TQ_E_UNIT_LOST);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 0);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    rig_close(&rig);
}

/* ---- giving up -------------------------------------------------------------------------------- */

static void what_was_cancelled_before_it_came_is_refused(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    assert_int_equal(RIG_ID_CALL(&rig, Cancel, 5), TQ_OK);
    rig_put_t put = rig_fused(5, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_E_CANCELLED);
    assert_int_equal(rig_abort(&rig, 6), TQ_OK);
    put = rig_fused(6, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_E_CANCELLED);
    assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
    put = direct(7, 0, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    put = direct(7, 100, 4, 100);
    assert_int_equal(rig_put(&rig, &put), TQ_E_DUPLICATE);
    rig_close(&rig);
}

static void a_fused_put_can_be_cancelled_after_the_fact(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 0, 2, 100);
    rig_put_t put = rig_fused(2, 0, 4, 100);
    rig_put_t other = rig_fused(3, 10, 4, 100);
    other.put_id = 2;
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig_put(&rig, &other), TQ_OK);
    assert_int_equal(RIG_ID_CALL(&rig, Cancel, 2), TQ_OK);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 4); /* the other transfer's */
    assert_int_equal(rig_value(&rig, 1), 2);               /* what was replaced stays so */
    rig_check(&rig);
    put.transfer = 4;
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    rig_confirm(&rig, 2);
    assert_int_equal(rig_value(&rig, 3), 2);
    assert_int_equal(RIG_ID_CALL(&rig, Cancel, 4), TQ_OK); /* too late: published */
    assert_int_equal(rig_value(&rig, 3), 2);
    rig_close(&rig);
}

static void what_was_given_up_is_not_remembered_for_ever(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    size_t bytes = 0;
    for (uint64_t i = 0; i < 5000; i++) {
        assert_int_equal(RIG_ID_CALL(&rig, Cancel, 2 * i + 2), TQ_OK);
        assert_int_equal(rig_abort(&rig, 2 * i + 2), TQ_OK);
        if (i == 1100)
            bytes = rig.env.bytes_max;
    }
    assert_int_equal(rig.env.bytes_max, bytes);
    rig_close(&rig);
}

static void an_abort_takes_all_that_the_put_brought(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 2, 1, 100);
    rig_put_t put = rig_fused(5, 0, 4, 100); /* one of them replaces */
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    put = direct(6, 10, 4, 100);
    put.put_id = 5;
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    assert_int_equal(rig_abort(&rig, 5), TQ_OK);
    assert_int_equal(rig_figure(&rig, "cells_staged"), 0);
    assert_int_equal(rig_figure(&rig, "cells_claimed"), 0);
    assert_int_equal(rig_value(&rig, 2), 5);
    assert_int_equal(rig_value(&rig, 1), -1);
    assert_int_equal(rig_abort(&rig, 5), TQ_OK);
    rig_close(&rig);
}

/* ---- waiting for space ------------------------------------------------------------------------ */

static void a_full_unit_says_so_with_the_figures(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, 100 * 1024);
    put_published(&rig, 1, 0, 80, 1024);
    rig_put_t put = rig_fused(2, 100, 20, 1024);
    assert_int_equal(rig_put(&rig, &put), TQ_E_FULL);
    assert_string_equal(
        rig_text(&rig),
        "20480 bytes wanted, 10240 of 102400 free outside the reserve for rows that "
        "have data, 0 of those in use are cleared but still read; clear rows or "
        "raise capacity_bytes (unit.capacity)");
    put = rig_fused(3, 100, 20, 1024);
    put.is_column = true;
    assert_int_equal(rig_put(&rig, &put), TQ_OK);
    put = rig_fused(4, 200, 1, 60000);
    put.wait_ms = 500;
    rig_prepare_put(&rig, &put);
    assert_false(rig_next(&rig));
    rig_sleep(&rig, 499);
    assert_false(rig_next(&rig));
    rig_sleep(&rig, 1);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_E_FULL);
    assert_non_null(strstr(rig_text(&rig), "60160 bytes wanted"));
    put = streamed(5, 200, 100, 1024);
    put.wait_ms = 500;
    assert_int_equal(rig_put(&rig, &put), TQ_E_TOO_LARGE);
    rig_close(&rig);
}

static void space_goes_to_columns_first_and_then_in_order(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, 100 * 1024);
    put_published(&rig, 1, 0, 89, 1024);
    rig_put_t puts[4] = {rig_fused(2, 100, 50, 1024), rig_fused(3, 200, 1, 1024),
                         rig_fused(4, 300, 40, 1024), rig_fused(5, 400, 1, 1024)};
    uint64_t seqs[4];
    puts[2].is_column = true;
    for (int i = 0; i < 4; i++) {
        puts[i].wait_ms = 10000;
        seqs[i] = rig_prepare_put(&rig, &puts[i]);
        assert_false(rig_next(&rig)); /* the small ones queue behind the large one */
    }
    rig_put_t impatient = rig_fused(6, 500, 1, 1024);
    assert_int_equal(rig_put(&rig, &impatient), TQ_E_FULL);
    assert_string_equal(rig_text(&rig), "4 requests that came before wait for space in storage "
                                        "unit 3");
    rig_unlink(&rig, 0, 40);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_OK);
    assert_int_equal(rig.reply_env.seq, seqs[2]);
    assert_false(rig_next(&rig));
    rig_unlink(&rig, 40, 89);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_OK);
    assert_int_equal(rig.reply_env.seq, seqs[0]);
    assert_false(rig_next(&rig));
    rig_unlink(&rig, 300, 310);
    for (int i = 1; i < 4; i += 2) {
        assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_OK);
        assert_int_equal(rig.reply_env.seq, seqs[i]);
    }
    assert_int_equal(rig_figure(&rig, "waiters_bytes"), 0);
    rig_close(&rig);
}

static void a_waiter_can_be_cancelled_and_its_session_can_end(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, 100 * 1024);
    put_published(&rig, 1, 0, 90, 1024);
    rig_put_t put = rig_fused(2, 100, 50, 1024);
    put.wait_ms = 10000;
    rig_prepare_put(&rig, &put);
    rig_put_t behind = rig_fused(3, 200, 1, 1024);
    rig_request(&rig, TQI_KIND_Cancel, &(tqi_msg_Cancel_t){.transfer = 2});
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_E_CANCELLED);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Cancel), TQ_OK);
    put.transfer = 4;
    rig_prepare_put(&rig, &put);
    behind.wait_ms = 10000;
    rig_prepare_put(&rig, &behind);
    assert_int_equal(rig_abort(&rig, 77), TQ_OK);
    rig_end_session(&rig, RIG_SESSION, 0);
    assert_int_equal(rig_figure(&rig, "waiters_bytes"), 0);
    rig_close(&rig);
}

static void a_put_waits_for_a_cell_that_another_is_writing(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    rig_put_t a = rig_fused(1, 0, 4, 100);
    rig_put_t b = rig_fused(2, 3, 4, 100);
    assert_int_equal(rig_put(&rig, &a), TQ_OK);
    assert_int_equal(rig_put(&rig, &b), TQ_E_FULL);
    assert_string_equal(rig_text(&rig), "row 3, field 'x' is being written by another put");
    b.transfer = 3;
    b.wait_ms = 1000;
    rig_prepare_put(&rig, &b);
    assert_false(rig_next(&rig));
    put_published(&rig, 9, 100, 4, 100); /* others do not wait behind it */
    tqi_msg_Confirm_t confirm = {.put_ids = tqi_u64s(&a.put_id, 1)};
    rig_controller_says(&rig, TQI_KIND_Confirm, TQ_OK, 9, &confirm);
    assert_int_equal(rig_answer(&rig, TQI_KIND_Confirm), TQ_OK);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_OK);
    assert_int_equal(rig_value(&rig, 3), 2); /* it replaced a published one: readable at once */
    assert_int_equal(rig_value(&rig, 4), -1);
    rig_close(&rig);
}

static void a_waiting_streamed_put_is_expected_once_granted(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, 100 * 1024);
    put_published(&rig, 1, 0, 60, 1024);
    rig_put_t put = streamed(2, 100, 80, 1024);
    put.wait_ms = 1000;
    rig_prepare_put(&rig, &put);
    assert_null(rig_transfer(&rig, RIG_SESSION, 2));
    rig_unlink(&rig, 0, 60);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_OK);
    land(&rig, &put);
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 2), TQ_OK);
    rig_confirm(&rig, 2);
    assert_int_equal(rig_value(&rig, 179), 2);
    rig_close(&rig);
}

static void draining_ends_waits_and_lets_the_rest_finish(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, 100 * 1024);
    rig_put_t open = direct(1, 0, 80, 1024);
    assert_int_equal(rig_put(&rig, &open), TQ_OK);
    rig_put_t put = rig_fused(2, 100, 50, 1024);
    put.wait_ms = 10000;
    rig_prepare_put(&rig, &put);
    tqi_unit_drain(rig.unit, rig.now);
    assert_int_equal(rig_answer(&rig, TQI_KIND_PreparePut), TQ_E_CLOSING);
    assert_false(tqi_unit_is_idle(rig.unit));
    put.transfer = 3;
    assert_int_equal(rig_put(&rig, &put), TQ_E_CLOSING);
    assert_int_equal(rig_get(&rig, 4, 0, 1, 1000, 0, false), TQ_E_CLOSING);
    assert_int_equal(RIG_ID_CALL(&rig, Commit, 1), TQ_OK);
    assert_true(tqi_unit_is_idle(rig.unit));
    rig_close(&rig);
}

static void stat_answers_one_json_object(void **state)
{
    rig_t rig;
    (void)state;
    rig_open(&rig, CAPACITY);
    put_published(&rig, 1, 0, 4, 100);
    assert_int_equal(rig_call(&rig, TQI_KIND_Stat, NULL), TQ_OK);
    const char *json = rig.msg.stat.json.data;
    size_t len = rig.msg.stat.json.len;
    int depth = 0;
    for (size_t i = 0; i < len; i++) {
        depth += json[i] == '{' || json[i] == '[';
        depth -= json[i] == '}' || json[i] == ']';
        assert_true(depth > 0 || i == len - 1);
    }
    assert_int_equal(depth, 0);
    assert_int_equal(rig_figure(&rig, "put_bytes"), 400);
    assert_int_equal(rig_figure(&rig, "DROPPING"), 0);
    rig_close(&rig);
}

/* ---- out of memory, and everything at once ---------------------------------------------------- */

static void without_memory_requests_fail_and_nothing_breaks(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 120; n++) {
        rig_t rig;

        rig_open(&rig, CAPACITY);
        put_published(&rig, 1, 0, 8, 1000);
        rig.env.fail_after = UINT64_MAX;
        /* The frames of the test come from the same memory: they are made before it ends. */
        tqi_buf_t frames[4];
        uint64_t lo = 0, hi = 4;
        uint64_t ids[1] = {1};
        uint64_t rows[2] = {2, 3};
        uint32_t offsets[2] = {0, 1};
        tqi_msg_PrepareGet_t get = {.transfer = 50,
                                    .rows = tqi_u64s(rows, 2),
                                    .fields = {offsets, "x", 1, 1},
                                    .inline_max = 100,
                                    .mode = TQI_PAYLOAD_STREAM};
        tqi_msg_Commit_t commit = {.transfer = 50};
        tqi_msg_Unlink_t unlink = {.lo = tqi_u64s(&lo, 1), .hi = tqi_u64s(&hi, 1)};
        tqi_msg_EndSession_t end = {.session = RIG_SESSION, .published = tqi_u64s(ids, 1)};
        const void *msgs[4] = {&get, &commit, &unlink, &end};
        const uint16_t kinds[4] = {TQI_KIND_PrepareGet, TQI_KIND_Commit, TQI_KIND_Unlink,
                                   TQI_KIND_EndSession};
        for (int i = 0; i < 4; i++) {
            tqi_envelope_t env = rig_envelope(&rig, kinds[i], rig.seq + 1 + (uint64_t)i);

            tqi_buf_init(&frames[i], &rig.env.env);
            assert_int_equal(tqi_msg_encode(&frames[i], &env, NULL, msgs[i], NULL), TQ_OK);
        }
        for (int i = 0; i < 4; i++) {
            rig.env.fail_after = n;
            rig.role->on_message(rig.role, i < 2 ? RIG_CLIENT : rig.controller, frames[i].data,
                                 frames[i].len, rig.now);
            rig_step(&rig);
            rig.env.fail_after = UINT64_MAX;
            rig_check(&rig);
        }
        for (int i = 0; i < 4; i++)
            tqi_buf_fini(&frames[i]);
        rig_discard(&rig);
        /* Once there is memory again, the same orders are done. */
        rig_unlink(&rig, 0, 8);
        rig_end_session(&rig, RIG_SESSION, 0);
        if (rig.transfers_cnt > 0)
            rig_payload_done(&rig, RIG_SESSION, 50, TQ_E_CANCELLED, "dropped");
        assert_int_equal(rig_figure(&rig, "used_bytes"), 0);
        assert_int_equal(rig_figure(&rig, "sessions"), 0);
        rig_close(&rig);
    }
}

/* Anything in any order, with rows, puts and transfers that meet each other; at the end, whatever
 * happened, the end of the session and a clear give all memory back. */
static void whatever_happens_all_memory_comes_back(void **state)
{
    uint64_t put_bytes = 0;
    uint64_t get_bytes = 0;
    (void)state;
    for_each_seed(seed, 60)
    {
        rig_t rig;
        tqi_rng_t rng;
        uint64_t next_id = 1;

        rig_open(&rig, 400 * 1024);
        tqi_rng_init(&rng, seed);
        for (int step = 0; step < 800; step++) {
            uint64_t id = next_id > 1
                              ? next_id - 1 - tqi_rng_below(&rng, next_id < 12 ? next_id - 1 : 12)
                              : 1;
            uint64_t first = tqi_rng_below(&rng, 100);
            uint32_t rows = 1 + (uint32_t)tqi_rng_below(&rng, 10);
            uint32_t mode = tqi_rng_chance(&rng, 0.5) ? TQI_PAYLOAD_STREAM : TQI_PAYLOAD_DIRECT;

            switch (tqi_rng_below(&rng, 12)) {
            case 0:
            case 1:
            case 2: {
                rig_put_t put = {.transfer = next_id,
                                 .put_id = tqi_rng_chance(&rng, 0.1) ? id : next_id,
                                 .first = first,
                                 .rows_cnt = rows,
                                 .field = "x",
                                 .len = (uint32_t)tqi_rng_below(&rng, 6000),
                                 .is_fused = tqi_rng_chance(&rng, 0.4),
                                 .is_column = tqi_rng_chance(&rng, 0.3),
                                 .wait_ms = (uint32_t)tqi_rng_below(&rng, 2) * 3000,
                                 .mode = mode,
                                 .fill = 1};

                next_id++;
                rig.refuses_payload = tqi_rng_chance(&rng, 0.05) || rig.transfers_cnt > 12;
                rig_prepare_put(&rig, &put);
                break;
            }
            case 3:
                rig_request(&rig, TQI_KIND_Commit, &(tqi_msg_Commit_t){.transfer = id});
                break;
            case 4:
                rig_request(&rig, TQI_KIND_Cancel, &(tqi_msg_Cancel_t){.transfer = id});
                break;
            case 5:
                rig_request(&rig, TQI_KIND_Abort, &(tqi_msg_Abort_t){.put_id = id});
                break;
            case 6: {
                tqi_msg_Confirm_t msg = {.put_ids = tqi_u64s(&id, 1)};

                rig_controller_says(&rig, TQI_KIND_Confirm, TQ_OK, 1, &msg);
                break;
            }
            case 7:
            case 8: {
                uint64_t wanted[4] = {first, first + 1, first + 2, first};
                uint8_t bits = (uint8_t)tqi_rng_below(&rng, 2) * 15;
                uint32_t offsets[2] = {0, 1};
                tqi_msg_PrepareGet_t msg = {
                    .transfer = next_id++,
                    .rows = tqi_u64s(wanted, 1 + (uint32_t)tqi_rng_below(&rng, 4)),
                    .fields = {offsets, "x", 1, 1},
                    .produced = {&bits, 1},
                    .inline_max = 1000,
                    .mode = mode};

                rig.refuses_payload = rig.transfers_cnt > 12;
                rig_request(&rig, TQI_KIND_PrepareGet, &msg);
                break;
            }
            case 9:
                rig_request(&rig, TQI_KIND_Release, &(tqi_msg_Release_t){.transfer = id});
                break;
            case 10:
                if (rig.transfers_cnt > 0) {
                    tqi_transfer_key_t key =
                        rig.transfers[tqi_rng_below(&rng, rig.transfers_cnt)].key;

                    rig_payload_done(&rig, key.owner, key.transfer,
                                     tqi_rng_chance(&rng, 0.7) ? TQ_OK : TQ_E_PEER_LOST, "broke");
                }
                break;
            default:
                if (tqi_rng_chance(&rng, 0.2)) {
                    uint64_t lo = first, hi = first + tqi_rng_below(&rng, 2);
                    tqi_msg_Unlink_t msg = {.lo = tqi_u64s(&lo, 1), .hi = tqi_u64s(&hi, 1)};

                    rig_controller_says(&rig, TQI_KIND_Unlink, TQ_OK, 2, &msg);
                } else {
                    rig_sleep(&rig, tqi_rng_below(&rng, 4000));
                    rig_controller_says(&rig, TQI_KIND_Ping, TQ_OK, 0, NULL);
                }
            }
            rig_discard(&rig);
            rig_check(&rig);
        }
        rig_end_session(&rig, RIG_SESSION, 0);
        rig_discard(&rig);
        while (rig.transfers_cnt > 0)
            rig_payload_done(&rig, rig.transfers[0].key.owner, rig.transfers[0].key.transfer,
                             TQ_E_CANCELLED, "dropped");
        rig_unlink(&rig, 0, 1000);
        rig_let_leases_pass(&rig);
        rig_discard(&rig);
        unit_check(rig_figure(&rig, "used_bytes") == 0);
        unit_check(rig_figure(&rig, "zombie_bytes") == 0);
        unit_check(rig_figure(&rig, "sessions") == 0);
        unit_check(rig_figure(&rig, "puts_unconfirmed") == 0);
        unit_check(tqi_unit_is_idle(rig.unit));
        put_bytes += rig_figure(&rig, "put_bytes");
        get_bytes += rig_figure(&rig, "get_bytes");
        rig_close(&rig);
    }
    assert_in_range(put_bytes, 10u << 20, 1u << 30);
    assert_in_range(get_bytes, 1u << 20, 1u << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_put_is_one_message_and_so_is_its_get),
        cmocka_unit_test(what_was_produced_in_a_former_life_publishes_nothing),
        cmocka_unit_test(a_fused_put_must_be_as_long_as_it_says),
        cmocka_unit_test(a_direct_put_goes_where_ready_says),
        cmocka_unit_test(a_direct_get_is_pinned_until_its_release),
        cmocka_unit_test(a_reader_that_is_too_slow_is_told_so),
        cmocka_unit_test(a_direct_writer_that_is_too_slow_keeps_its_memory),
        cmocka_unit_test(direct_is_for_those_who_were_offered_it),
        cmocka_unit_test(a_streamed_put_is_done_when_its_bytes_are_there),
        cmocka_unit_test(a_stream_that_breaks_fails_its_put),
        cmocka_unit_test(memory_that_the_port_may_write_is_kept_until_its_word),
        cmocka_unit_test(a_streamed_get_is_sent_upon_commit),
        cmocka_unit_test(a_get_given_up_while_it_is_sent_stays_pinned_until_the_ports_word),
        cmocka_unit_test(bytes_that_land_while_the_controller_is_silent_do_not_count),
        cmocka_unit_test(what_was_cancelled_before_it_came_is_refused),
        cmocka_unit_test(a_fused_put_can_be_cancelled_after_the_fact),
        cmocka_unit_test(what_was_given_up_is_not_remembered_for_ever),
        cmocka_unit_test(an_abort_takes_all_that_the_put_brought),
        cmocka_unit_test(a_full_unit_says_so_with_the_figures),
        cmocka_unit_test(space_goes_to_columns_first_and_then_in_order),
        cmocka_unit_test(a_waiter_can_be_cancelled_and_its_session_can_end),
        cmocka_unit_test(a_put_waits_for_a_cell_that_another_is_writing),
        cmocka_unit_test(a_waiting_streamed_put_is_expected_once_granted),
        cmocka_unit_test(draining_ends_waits_and_lets_the_rest_finish),
        cmocka_unit_test(stat_answers_one_json_object),
        cmocka_unit_test(without_memory_requests_fail_and_nothing_breaks),
        cmocka_unit_test(whatever_happens_all_memory_comes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
