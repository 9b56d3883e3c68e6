/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client role between fake ports and a test that plays the store: it reads the frames that the
 * client sent, one by one, and answers them as it likes. Time is a number.
 */
#ifndef TQI_TESTS_UNIT_ROLE_CLIENT_H
#define TQI_TESTS_UNIT_ROLE_CLIENT_H

#include "unit.h"

#include "role/client/client.h"
#include "wire/coldesc.h"
#include "wire/msg.h"

#include <string.h>

#define RIG_MS UINT64_C(1000000)
#define RIG_FRAMES_MAX 64
#define RIG_PEERS_MAX 64
#define RIG_INCARNATION 0xabcdefu
#define RIG_SESSION 77u

typedef struct rig_frame {
    tqi_peer_t peer;
    tqi_buf_t buf;
    tqi_envelope_t env;
} rig_frame_t;

typedef struct rig_transfer {
    tqi_transfer_key_t key;
    bool is_write, is_dropped;
    tqi_frame_t frames[8];
    tqi_piece_t pieces[64];
    tqi_extent_t extents[64];
    uint32_t frames_cnt, pieces_cnt, extents_cnt;
    uint64_t bytes;
} rig_transfer_t;

typedef struct rig {
    unit_env_t env;
    tqi_ctrl_t ctrl;
    tqi_payload_client_t payload;
    tqi_payload_mode_t mode;
    tqi_client_t *client;
    uint64_t now;
    uint64_t next; /* what step returned */
    rig_frame_t frames[RIG_FRAMES_MAX];
    uint32_t frames_cnt;
    char addresses[RIG_PEERS_MAX][64]; /* of peer i + 1 */
    uint32_t peers_cnt;
    tqi_op_t *done[2048];
    uint32_t done_cnt;
    uint32_t ups, downs, refusals;
    rig_transfer_t transfers[8];
    uint32_t transfers_cnt;
    uint64_t incarnation, session;
    uint32_t answering_unit; /* says that it is this one; 0: the one that was dialled */
    uint32_t ways_opened, ways_closed;
    uint32_t buffers_cnt; /* taken and not given */
} rig_t;

static rig_t *rig_now; /* of the test that runs: fake ports have no other way to it */

/* ---- ports ---- */

static inline tq_status_t rig_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                      tqi_err_t *err)
{
    rig_t *rig = rig_now;

    (void)ctrl;
    if (strncmp(address, "bad", 3) == 0)
        return tqi_fail(err, TQ_E_CONFIG, "'%s' is no address", address);
    assert_true(rig->peers_cnt < RIG_PEERS_MAX);
    snprintf(rig->addresses[rig->peers_cnt], sizeof rig->addresses[0], "%s", address);
    *peer = ++rig->peers_cnt;
    return TQ_OK;
}

static inline void rig_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    (void)ctrl;
    assert_true(peer >= 1 && peer <= rig_now->peers_cnt);
}

static inline tq_status_t rig_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    rig_t *rig = rig_now;
    rig_frame_t *to = &rig->frames[rig->frames_cnt];

    (void)ctrl;
    assert_true(rig->frames_cnt < RIG_FRAMES_MAX);
    rig->frames_cnt++;
    to->peer = peer;
    tqi_buf_init(&to->buf, frame->env);
    tqi_buf_take(&to->buf, frame);
    assert_int_equal(tqi_envelope_decode(to->buf.data, to->buf.len, &to->env, NULL), TQ_OK);
    return TQ_OK;
}

static inline tqi_payload_mode_t rig_open(tqi_payload_client_t *port, uint64_t unit_id,
                                          const char *address, const void *token, size_t token_len,
                                          uint64_t session, uint64_t arena, tqi_err_t *err)
{
    (void)port, (void)unit_id, (void)address, (void)token, (void)token_len, (void)session;
    (void)arena;
    rig_now->ways_opened++;
    if (rig_now->mode == TQI_PAYLOAD_NONE)
        tqi_fail(err, TQ_E_UNSUPPORTED, "there is none in this test");
    return rig_now->mode;
}

static inline void rig_close(tqi_payload_client_t *port, uint64_t unit_id)
{
    (void)port, (void)unit_id;
    rig_now->ways_closed++;
}

static inline tq_status_t rig_transfer(tqi_transfer_key_t key, bool is_write,
                                       const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                       uint32_t cnt)
{
    rig_transfer_t *t = &rig_now->transfers[rig_now->transfers_cnt++];

    memset(t, 0, sizeof *t);
    t->key = key;
    t->is_write = is_write;
    t->frames_cnt = cnt;
    for (uint32_t f = 0; f < cnt; f++) {
        t->frames[f] = frames[f];
        t->frames[f].pieces = &t->pieces[t->pieces_cnt];
        t->bytes += frames[f].bytes;
        for (uint32_t p = 0; p < frames[f].pieces_cnt; p++)
            t->pieces[t->pieces_cnt++] = frames[f].pieces[p];
        for (uint32_t x = 0; x < remote[f].extents_cnt; x++)
            t->extents[t->extents_cnt++] = remote[f].extents[x];
    }
    return TQ_OK;
}

static inline tq_status_t rig_write(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                    const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                    uint32_t cnt, void *copier, tqi_err_t *err)
{
    (void)port, (void)copier, (void)err;
    return rig_transfer(key, true, frames, remote, cnt);
}

static inline tq_status_t rig_read(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                   const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                   uint32_t cnt, void *copier, tqi_err_t *err)
{
    (void)port, (void)copier, (void)err;
    return rig_transfer(key, false, frames, remote, cnt);
}

static inline void rig_drop(tqi_payload_client_t *port, tqi_transfer_key_t key)
{
    (void)port;
    for (uint32_t i = 0; i < rig_now->transfers_cnt; i++)
        if (rig_now->transfers[i].key.transfer == key.transfer)
            rig_now->transfers[i].is_dropped = true;
}

/* ---- host ---- */

struct tq_buffer {
    void *data;
};

static inline void rig_on_done(void *ctx, tqi_op_t *op)
{
    rig_t *rig = ctx;

    rig->done[rig->done_cnt++] = op;
}

static inline void rig_on_event(void *ctx, tqi_client_event_t event, tq_status_t status,
                                const char *text)
{
    rig_t *rig = ctx;

    (void)status, (void)text;
    rig->ups += event == TQI_CLIENT_UP;
    rig->downs += event == TQI_CLIENT_DOWN;
    rig->refusals += event == TQI_CLIENT_REFUSED;
}

static inline tq_buffer_t *rig_buffer_take(void *ctx, size_t bytes, void **data)
{
    rig_t *rig = ctx;
    tq_buffer_t *buffer = malloc(sizeof *buffer);

    buffer->data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    *data = buffer->data;
    rig->buffers_cnt++;
    return buffer;
}

static inline void rig_buffer_give(tq_buffer_t *buffer)
{
    rig_now->buffers_cnt--;
    free(buffer->data);
    free(buffer);
}

/* ---- life ---- */

static inline void rig_step(rig_t *rig)
{
    tqi_role_t *role = tqi_client_role(rig->client);
    tqi_err_t err;

    rig->next = role->step(role, rig->now);
    if (!tqi_client_check(rig->client, &err))
        fail_msg("%s", err.text);
}

static inline void rig_pass(rig_t *rig, uint64_t ms)
{
    rig->now += ms * RIG_MS;
    rig_step(rig);
}

/* Lets time pass as a loop would: a step whenever one is due. */
static inline void rig_idle(rig_t *rig, uint64_t ms)
{
    uint64_t until = rig->now + ms * RIG_MS;

    while (rig->next <= until) {
        rig->now = rig->next > rig->now ? rig->next : rig->now + 1;
        rig_step(rig);
    }
    rig->now = until;
    rig_step(rig);
}

static inline void rig_init_conf(rig_t *rig, tqi_client_conf_t conf)
{
    memset(rig, 0, sizeof *rig);
    rig_now = rig;
    unit_env_init(&rig->env);
    rig->now = 1000 * RIG_MS;
    rig->incarnation = RIG_INCARNATION;
    rig->session = RIG_SESSION;
    rig->ctrl = (tqi_ctrl_t){rig_connect, rig_disconnect, rig_send, NULL};
    rig->payload = (tqi_payload_client_t){rig_open, rig_close, rig_write, rig_read, rig_drop};
    conf.host =
        (tqi_client_host_t){rig, rig_on_done, rig_on_event, rig_buffer_take, rig_buffer_give};
    assert_int_equal(tqi_client_new(&rig->env.env, &conf, &rig->ctrl, &rig->payload, rig->now,
                                    &rig->client, NULL),
                     TQ_OK);
    rig_step(rig);
}

static inline void rig_init(rig_t *rig)
{
    rig_init_conf(rig, (tqi_client_conf_t){.address = "tcp://store:1", .name = "test"});
}

static inline void rig_drop_frames(rig_t *rig)
{
    for (uint32_t i = 0; i < rig->frames_cnt; i++)
        tqi_buf_fini(&rig->frames[i].buf);
    rig->frames_cnt = 0;
}

static inline void rig_fini(rig_t *rig)
{
    for (uint32_t i = 0; i < rig->done_cnt; i++)
        tqi_op_free(rig->done[i]);
    rig->done_cnt = 0;
    tqi_client_free(rig->client);
    for (uint32_t i = 0; i < rig->done_cnt; i++)
        tqi_op_free(rig->done[i]);
    rig_drop_frames(rig);
    assert_int_equal(rig->env.bytes, 0);
    assert_int_equal(rig->buffers_cnt, 0);
}

/* ---- the store's side ---- */

/* The oldest frame, which must be of this kind. It is the caller's to finish. */
static inline rig_frame_t rig_take(rig_t *rig, uint32_t kind)
{
    rig_frame_t frame;
    char text[256];

    if (rig->frames_cnt == 0)
        fail_msg("the client sent nothing, not kind %u", kind);
    frame = rig->frames[0];
    if (frame.env.kind != kind) {
        tqi_msg_print(&frame.env, text, sizeof text);
        fail_msg("the client sent %s, not kind %u", text, kind);
    }
    memmove(rig->frames, rig->frames + 1, --rig->frames_cnt * sizeof *rig->frames);
    return frame;
}

/* The oldest frame decoded: msg's views live until the frame is finished. */
static inline rig_frame_t rig_expect(rig_t *rig, uint32_t kind, void *msg)
{
    rig_frame_t frame = rig_take(rig, kind);

    assert_int_equal(tqi_msg_decode(&frame.env, kind, msg, NULL), TQ_OK);
    return frame;
}

static inline void rig_free(rig_frame_t *frame)
{
    tqi_buf_fini(&frame->buf);
}

static inline void rig_deliver(rig_t *rig, tqi_peer_t peer, const tqi_buf_t *buf)
{
    tqi_role_t *role = tqi_client_role(rig->client);

    role->on_message(role, peer, buf->data, buf->len, rig->now);
    rig_step(rig);
}

static inline uint32_t rig_unit_of(const rig_t *rig, tqi_peer_t peer)
{
    unsigned unit = 0;

    sscanf(rig->addresses[peer - 1], "tcp://unit:%u", &unit);
    return unit;
}

/* Answers a frame, which is finished. msg NULL: an error with this status. */
static inline void rig_answer(rig_t *rig, rig_frame_t *frame, tq_status_t status, const void *msg)
{
    tqi_msg_Error_t error = {.text = tqi_str("as the test wants")};
    tqi_envelope_t env = {
        .kind = (uint16_t)(frame->env.kind | TQI_KIND_REPLY),
        .status = (uint16_t)status,
        .version = 1,
        .incarnation = rig->incarnation,
        .session = frame->env.session ? frame->env.session : rig->session,
        .epoch = frame->env.epoch,
        .seq = frame->env.seq,
        .request_id = frame->env.request_id,
        .sender = rig->answering_unit ? rig->answering_unit : rig_unit_of(rig, frame->peer),
    };
    tqi_buf_t buf, body;
    tqi_err_t err = {0};

    tqi_buf_init(&buf, &rig->env.env);
    tqi_buf_init(&body, &rig->env.env);
    if (status == TQ_OK) {
        if (tqi_msg_encode(&buf, &env, NULL, msg, &err) != TQ_OK)
            fail_msg("%s", err.text);
    } else {
        tqi_envelope_t as_error = env;
        as_error.kind = TQI_KIND_Error;
        assert_int_equal(tqi_msg_encode(&body, &as_error, NULL, &error, NULL), TQ_OK);
        assert_int_equal(tqi_envelope_begin(&buf, &env, NULL), TQ_OK);
        assert_int_equal(
            tqi_buf_append(&buf, body.data + TQI_ENVELOPE_BYTES, body.len - TQI_ENVELOPE_BYTES),
            TQ_OK);
        tqi_envelope_seal(&buf);
    }
    rig_deliver(rig, frame->peer, &buf);
    tqi_buf_fini(&buf);
    tqi_buf_fini(&body);
    rig_free(frame);
}

/* The last word of a peer. */
static inline void rig_say_closing(rig_t *rig, tqi_peer_t peer)
{
    tqi_envelope_t env = {.kind = TQI_KIND_Closing,
                          .version = 1,
                          .incarnation = rig->incarnation,
                          .session = rig->session,
                          .sender = rig_unit_of(rig, peer)};
    tqi_buf_t buf;

    tqi_buf_init(&buf, &rig->env.env);
    assert_int_equal(tqi_msg_encode(&buf, &env, NULL, &(tqi_msg_Closing_t){0}, NULL), TQ_OK);
    rig_deliver(rig, peer, &buf);
    tqi_buf_fini(&buf);
}

/* The client says that it has heard it. */
static inline void rig_heard_closing(rig_t *rig)
{
    rig_frame_t frame = rig_take(rig, TQI_KIND_Closing_R);

    rig_free(&frame);
}

/* A store of two units, 1 and 2, greets. */
static inline void rig_greet(rig_t *rig)
{
    tqi_msg_Hello_t hello;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Hello, &hello);
    static const uint32_t ids[] = {1, 2}, offsets[] = {0, 12, 24}, host_offsets[] = {0, 1, 2};
    static const uint8_t lost[] = {0, 0};
    tqi_msg_Hello_R_t msg = {
        .version = 1,
        .ping_ms = 1000,
        .silence_ms = 5000,
        .user_conf = {"conf", 4},
        .table_version = 1,
        .unit_ids = tqi_u32s(ids, 2),
        .unit_addresses = {offsets, "tcp://unit:1tcp://unit:2", 2, 24},
        .unit_hosts = {host_offsets, "hh", 2, 2},
        .unit_lost = {lost, 2},
    };

    rig_answer(rig, &frame, TQ_OK, &msg);
}

static inline void rig_greet_unit(rig_t *rig)
{
    tqi_msg_Hello_t hello;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Hello, &hello);
    tqi_msg_Hello_R_t msg = {.version = 1, .payload_address = tqi_str("tcp://unit:9")};

    assert_int_equal(frame.env.session, rig->session);
    assert_true(rig_unit_of(rig, frame.peer) != 0);
    rig_answer(rig, &frame, TQ_OK, &msg);
}

static inline void rig_pong(rig_t *rig, const uint64_t *resend, uint32_t cnt)
{
    tqi_msg_Ping_t ping;
    rig_frame_t frame = rig_expect(rig, TQI_KIND_Ping, &ping);
    tqi_msg_Ping_R_t msg = {.resend = tqi_u64s(resend, cnt), .table_version = 1};

    rig_answer(rig, &frame, TQ_OK, &msg);
}

static inline void rig_submit(rig_t *rig, tqi_op_t *op)
{
    tqi_client_submit(rig->client, op, rig->now);
    rig_step(rig);
}

/* The only op that is done, which is then the caller's. */
static inline tqi_op_t *rig_done(rig_t *rig)
{
    if (rig->done_cnt != 1)
        fail_msg("%u ops are done, not one", rig->done_cnt);
    rig->done_cnt = 0;
    return rig->done[0];
}

static inline void rig_done_with(rig_t *rig, tq_status_t status)
{
    tqi_op_t *op = rig_done(rig);

    if (tqi_op_status(op) != status)
        fail_msg("%s (%s), not %s", tq_status_name(tqi_op_status(op)), tqi_op_error(op),
                 tq_status_name(status));
    tqi_op_free(op);
}

#endif
