/* SPDX-License-Identifier: Apache-2.0 */
#include "net/zmq/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"

#define MAGIC 0x31505154u /* "TQP1" */

void tqi_stream_head_write(uint8_t out[TQI_STREAM_HEAD], const tqi_stream_head_t *head)
{
    tqi_store_le32(out, MAGIC);
    tqi_store_le32(out + 4, head->kind);
    tqi_store_le64(out + 8, head->id);
    tqi_store_le32(out + 16, head->frame);
    tqi_store_le32(out + 20, head->len);
    tqi_store_le64(out + 24, head->offset);
    tqi_store_le64(out + 32, head->credit);
}

bool tqi_stream_head_read(const void *data, size_t len, tqi_stream_head_t *head)
{
    const uint8_t *p = data;
    if (len != TQI_STREAM_HEAD || tqi_load_le32(p) != MAGIC)
        return false;
    head->kind = tqi_load_le32(p + 4);
    head->id = tqi_load_le64(p + 8);
    head->frame = tqi_load_le32(p + 16);
    head->len = tqi_load_le32(p + 20);
    head->offset = tqi_load_le64(p + 24);
    head->credit = tqi_load_le64(p + 32);
    return true;
}

/* ---- cursor ---------------------------------------------------------------------------------- */

tq_status_t tqi_cursor_init(tqi_cursor_t *cursor, const tqi_frame_t *frames, uint32_t cnt)
{
    size_t pieces_cnt = 0;
    memset(cursor, 0, sizeof *cursor);
    for (uint32_t i = 0; i < cnt; i++)
        pieces_cnt += frames[i].pieces_cnt;
    cursor->frames = calloc((size_t)cnt + 1, sizeof *cursor->frames);
    cursor->pieces = calloc(pieces_cnt + 1, sizeof *cursor->pieces);
    if (!cursor->frames || !cursor->pieces) {
        tqi_cursor_fini(cursor);
        return TQ_E_NO_MEMORY;
    }
    cursor->cnt = cnt;
    tqi_piece_t *at = cursor->pieces;
    for (uint32_t i = 0; i < cnt; i++) {
        cursor->frames[i] = frames[i];
        cursor->frames[i].pieces = at;
        if (frames[i].pieces_cnt > 0)
            memcpy(at, frames[i].pieces, frames[i].pieces_cnt * sizeof *at);
        at += frames[i].pieces_cnt;
    }
    return TQ_OK;
}

void tqi_cursor_fini(tqi_cursor_t *cursor)
{
    free(cursor->frames);
    free(cursor->pieces);
    memset(cursor, 0, sizeof *cursor);
}

void tqi_cursor_rewind(tqi_cursor_t *cursor)
{
    cursor->frame = 0;
    cursor->piece = 0;
    cursor->in_piece = 0;
    cursor->offset = 0;
}

/* Steps over pieces that are empty or behind us; true at the end of the frame. */
static bool at_frame_end(tqi_cursor_t *cursor)
{
    const tqi_frame_t *frame = &cursor->frames[cursor->frame];
    while (cursor->piece < frame->pieces_cnt &&
           cursor->in_piece == frame->pieces[cursor->piece].len) {
        cursor->piece++;
        cursor->in_piece = 0;
    }
    return cursor->piece == frame->pieces_cnt;
}

bool tqi_cursor_at_end(tqi_cursor_t *cursor)
{
    while (cursor->frame < cursor->cnt && at_frame_end(cursor)) {
        cursor->frame++;
        cursor->piece = 0;
        cursor->in_piece = 0;
        cursor->offset = 0;
    }
    return cursor->frame == cursor->cnt;
}

uint64_t tqi_cursor_take(tqi_cursor_t *cursor, uint64_t max, void **data)
{
    if (at_frame_end(cursor))
        return 0;
    const tqi_piece_t *piece = &cursor->frames[cursor->frame].pieces[cursor->piece];
    uint64_t len = tqi_u64_min(piece->len - cursor->in_piece, max);
    *data = (uint8_t *)piece->data + cursor->in_piece;
    cursor->in_piece += len;
    cursor->offset += len;
    return len;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void letter_open(tqi_letter_t *letter, bool is_closed)
{
    tqi_outgoing_t *out = tqi_container_of(letter, tqi_outgoing_t, letter);
    out->on_over(out, is_closed);
}

static void outgoing_unref(tqi_outgoing_t *out)
{
    if (atomic_fetch_sub_explicit(&out->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (!tqi_mailbox_post(out->mailbox, &out->letter))
        out->on_over(out, true);
}

/* libzmq's thread has let go of a chunk. */
static void chunk_sent(void *data, void *hint)
{
    (void)data;
    outgoing_unref(hint);
}

tq_status_t tqi_outgoing_new(tqi_transfer_key_t key, const tqi_frame_t *frames, uint32_t cnt,
                             tqi_mailbox_t *mailbox, void *ctx,
                             void (*on_over)(tqi_outgoing_t *out, bool is_closed),
                             tqi_outgoing_t **result)
{
    tqi_outgoing_t *out = calloc(1, sizeof *out);
    if (!out)
        return TQ_E_NO_MEMORY;
    tq_status_t rc = tqi_cursor_init(&out->cursor, frames, cnt);
    if (rc != TQ_OK) {
        free(out);
        return rc;
    }
    out->letter.open = letter_open;
    out->mailbox = mailbox;
    tqi_mailbox_ref(mailbox);
    out->ctx = ctx;
    out->on_over = on_over;
    atomic_init(&out->refs, 1);
    out->key = key;
    out->credit = TQI_STREAM_WINDOW; /* READY, or COMMIT, grants the first window */
    out->text = "";
    *result = out;
    return TQ_OK;
}

void tqi_outgoing_end(tqi_outgoing_t *out, tq_status_t status, const char *text)
{
    tqi_assert(!out->is_over && !tqi_node_is_linked(&out->node));
    out->is_over = true;
    out->status = status;
    out->text = text;
    outgoing_unref(out);
}

void tqi_outgoing_free(tqi_outgoing_t *out)
{
    tqi_cursor_fini(&out->cursor);
    tqi_mailbox_unref(out->mailbox);
    free(out);
}

bool tqi_stream_say(void *socket, const void *id, size_t id_len, const tqi_stream_head_t *head,
                    const void *data, size_t len)
{
    uint8_t bytes[TQI_STREAM_HEAD];
    tqi_stream_head_write(bytes, head);
    if (id_len > 0 && zmq_send(socket, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return false;
    if (zmq_send(socket, bytes, sizeof bytes, ZMQ_DONTWAIT | (len > 0 ? ZMQ_SNDMORE : 0)) < 0)
        return false;
    return len == 0 || zmq_send(socket, data, len, ZMQ_DONTWAIT) >= 0;
}

/* Fills msg with the next bytes of the current frame: a large piece is lent to libzmq, small ones
 * are gathered. The cursor moves; *len says how far. */
static tq_status_t next_chunk(tqi_outgoing_t *out, zmq_msg_t *msg, uint64_t *len)
{
    tqi_cursor_t *cursor = &out->cursor;
    tqi_cursor_t start = *cursor;
    uint64_t max = tqi_u64_min(out->credit, TQI_STREAM_CHUNK);
    void *data = NULL;
    *len = tqi_cursor_take(cursor, max, &data);
    if (*len >= TQI_STREAM_GATHER) {
        if (zmq_msg_init_data(msg, data, *len, chunk_sent, out) == 0) {
            atomic_fetch_add_explicit(&out->refs, 1, memory_order_relaxed);
            return TQ_OK;
        }
    } else {
        *cursor = start;
        uint64_t left = start.frames[start.frame].bytes - start.offset;
        uint64_t want = tqi_u64_min(tqi_u64_min(left, TQI_STREAM_GATHER), max);
        if (zmq_msg_init_size(msg, want) == 0) {
            uint8_t *to = zmq_msg_data(msg);
            *len = 0;
            while (*len < want) {
                uint64_t took = tqi_cursor_take(cursor, want - *len, &data);
                tqi_assert(took > 0);
                memcpy(to + *len, data, took);
                *len += took;
            }
            return TQ_OK;
        }
    }
    *cursor = start;
    return TQ_E_NO_MEMORY;
}

tqi_send_t tqi_outgoing_send(tqi_outgoing_t *out, void *socket, const void *id, size_t id_len)
{
    zmq_msg_t msg;
    uint64_t len = 0;
    if (tqi_cursor_at_end(&out->cursor)) {
        tqi_outgoing_end(out, TQ_OK, "");
        return TQI_SEND_ALL;
    }
    if (out->credit == 0)
        return TQI_SEND_WAIT;
    tqi_cursor_t start = out->cursor;
    if (next_chunk(out, &msg, &len) != TQ_OK)
        return TQI_SEND_BLOCKED;
    tqi_stream_head_t head = {.kind = TQI_STREAM_DATA,
                              .id = out->key.transfer,
                              .frame = start.frame,
                              .len = (uint32_t)len,
                              .offset = start.offset};
    uint8_t bytes[TQI_STREAM_HEAD];
    tqi_stream_head_write(bytes, &head);
    bool is_sent = (id_len == 0 || zmq_send(socket, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0) &&
                   zmq_send(socket, bytes, sizeof bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
                   zmq_msg_send(&msg, socket, ZMQ_DONTWAIT) >= 0;
    if (!is_sent) {
        int why = errno;
        out->cursor = start;
        zmq_msg_close(&msg); /* gives the reference back */
        if (why == EAGAIN)
            return TQI_SEND_BLOCKED;
        tqi_outgoing_end(out, TQ_E_PEER_LOST, "the payload connection is gone");
        return TQI_SEND_LOST;
    }
    out->credit -= len;
    return TQI_SEND_OK;
}
