/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storage unit between fake ports and a test that plays the controller (peer 1), its clients and
 * the payload port. Time is a number.
 */
#ifndef TQI_TESTS_UNIT_ROLE_STORAGE_H
#define TQI_TESTS_UNIT_ROLE_STORAGE_H

#include "unit.h"

#include "base/list.h"
#include "base/size.h"
#include "role/storage/unit.h"
#include "wire/coldesc.h"
#include "wire/msg.h"

#include <inttypes.h>
#include <string.h>

#define RIG_MS UINT64_C(1000000)
#define RIG_STORE UINT64_C(0xabcdef)
#define RIG_UNIT_INCARNATION 99u
#define RIG_SESSION UINT64_C(77)
#define RIG_CLIENT UINT64_C(1000) /* the first client's peer */
#define RIG_SEGMENTS_MAX 256
#define RIG_FRAMES_MAX 64

typedef struct rig_frame {
    tqi_peer_t peer;
    tqi_buf_t buf;
    tqi_envelope_t env;
} rig_frame_t;

/* What the unit told the payload port. */
typedef struct rig_transfer {
    tqi_transfer_key_t key;
    bool is_send, is_dropped;
    uint32_t frames_cnt;
    tqi_frame_t frames[8];
    tqi_piece_t pieces[64];
    uint32_t pieces_cnt;
} rig_transfer_t;

typedef struct rig {
    unit_env_t env;
    tqi_ctrl_t ctrl;
    tqi_payload_unit_t payload;
    tqi_arena_t arena;
    tqi_unit_t *unit;
    tqi_role_t *role;
    uint64_t now;
    uint64_t next; /* what step returned */

    rig_frame_t sent[RIG_FRAMES_MAX]; /* by the unit, not looked at yet */
    uint32_t sent_cnt;
    tqi_peer_t controller; /* handle of the last connect */
    tqi_peer_t peer_next;
    uint32_t connects;
    uint32_t disconnects;
    bool is_full; /* send refuses */

    uint8_t *segments[RIG_SEGMENTS_MAX];
    uint32_t segments_cnt;
    bool has_direct;
    rig_transfer_t transfers[16];
    uint32_t transfers_cnt;
    uint32_t forgotten;
    bool refuses_payload;
    bool refuses_offers;

    uint64_t seq; /* of the client's requests */
    uint64_t ack;
    uint64_t incarnation;
    tqi_buf_t reply; /* the frame that the test looks at */
    tqi_envelope_t reply_env;
    union {
        tqi_msg_Error_t error;
        tqi_msg_Hello_R_t hello;
        tqi_msg_Ping_R_t ping;
        tqi_msg_Register_t reg;
        tqi_msg_Stat_R_t stat;
        tqi_msg_Unlink_R_t unlink;
        tqi_msg_PreparePut_R_t put;
        tqi_msg_PrepareGet_R_t get;
        tqi_msg_Release_R_t release;
        tqi_msg_Renew_R_t renew;
    } msg;
} rig_t;

/* ---- ports ------------------------------------------------------------------------------------ */

#define RIG_OF(port, member) tqi_container_of(port, rig_t, member)

static inline tq_status_t rig_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                      tqi_err_t *err)
{
    rig_t *rig = RIG_OF(ctrl, ctrl);

    if (strcmp(address, "inproc://controller") != 0)
        return tqi_fail(err, TQ_E_CONFIG, "'%s' is no address", address);
    rig->connects++;
    *peer = rig->controller = rig->peer_next++;
    return TQ_OK;
}

static inline void rig_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    (void)peer;
    RIG_OF(ctrl, ctrl)->disconnects++;
}

static inline tq_status_t rig_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    rig_t *rig = RIG_OF(ctrl, ctrl);

    if (rig->is_full)
        return TQ_E_BUSY;
    assert_in_range(rig->sent_cnt, 0, RIG_FRAMES_MAX - 1);
    rig_frame_t *sent = &rig->sent[rig->sent_cnt++];

    memset(sent, 0, sizeof *sent);
    sent->peer = peer;
    sent->buf = *frame;
    *frame = (tqi_buf_t){.env = frame->env};
    assert_int_equal(tqi_envelope_decode(sent->buf.data, sent->buf.len, &sent->env, NULL), TQ_OK);
    return TQ_OK;
}

static inline const char *rig_why_down(tqi_ctrl_t *ctrl)
{
    (void)ctrl;
    return "connection refused";
}

static inline tq_status_t rig_offer(tqi_payload_unit_t *port, uint64_t session,
                                    const char **address, uint8_t token[16], uint64_t *direct_arena)
{
    if (RIG_OF(port, payload)->refuses_offers)
        return TQ_E_NO_MEMORY;
    *address = "inproc://data";
    memset(token, (int)session, 16);
    *direct_arena = RIG_OF(port, payload)->has_direct ? 4711 : 0;
    return TQ_OK;
}

static inline void rig_forget(tqi_payload_unit_t *port, uint64_t session)
{
    (void)session;
    RIG_OF(port, payload)->forgotten++;
}

static inline rig_transfer_t *rig_transfer(rig_t *rig, uint64_t session, uint64_t id)
{
    for (uint32_t i = 0; i < rig->transfers_cnt; i++)
        if (rig->transfers[i].key.owner == session && rig->transfers[i].key.transfer == id)
            return &rig->transfers[i];
    return NULL;
}

static inline tq_status_t rig_take(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                                   const tqi_frame_t *frames, uint32_t cnt, bool is_send,
                                   tqi_err_t *err)
{
    rig_t *rig = RIG_OF(port, payload);

    if (rig->refuses_payload)
        return tqi_fail(err, TQ_E_UNREACHABLE, "no payload connection");
    assert_null(rig_transfer(rig, key.owner, key.transfer));
    rig_transfer_t *t = &rig->transfers[rig->transfers_cnt++];

    *t = (rig_transfer_t){.key = key, .is_send = is_send, .frames_cnt = cnt};
    for (uint32_t f = 0; f < cnt; f++) {
        uint64_t bytes = 0;

        t->frames[f] = frames[f];
        t->frames[f].pieces = &t->pieces[t->pieces_cnt];
        for (uint32_t p = 0; p < frames[f].pieces_cnt; p++) {
            t->pieces[t->pieces_cnt++] = frames[f].pieces[p];
            bytes += frames[f].pieces[p].len;
        }
        assert_int_equal(bytes, frames[f].bytes);
    }
    return TQ_OK;
}

static inline tq_status_t rig_expect(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                                     const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    return rig_take(port, key, frames, cnt, false, err);
}

static inline tq_status_t rig_payload_send(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                                           const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    return rig_take(port, key, frames, cnt, true, err);
}

static inline void rig_drop(tqi_payload_unit_t *port, tqi_transfer_key_t key)
{
    rig_transfer_t *t = rig_transfer(RIG_OF(port, payload), key.owner, key.transfer);

    assert_non_null(t);
    t->is_dropped = true;
}

static inline tq_status_t rig_segment_open(tqi_arena_t *arena, uint32_t id, uint64_t bytes,
                                           void **base, tqi_err_t *err)
{
    rig_t *rig = RIG_OF(arena, arena);
    (void)err;
    assert_in_range(id, 1, RIG_SEGMENTS_MAX - 1);
    assert_null(rig->segments[id]);
    *base = rig->segments[id] = malloc(bytes);
    rig->segments_cnt++;
    return TQ_OK;
}

static inline void rig_segment_punch(tqi_arena_t *arena, uint32_t id, uint64_t offset, uint64_t len)
{
    memset(RIG_OF(arena, arena)->segments[id] + offset, 0, len);
}

static inline void rig_segment_close(tqi_arena_t *arena, uint32_t id)
{
    free(RIG_OF(arena, arena)->segments[id]);
    RIG_OF(arena, arena)->segments_cnt--;
}

/* ---- the loop --------------------------------------------------------------------------------- */

static inline void rig_check(rig_t *rig)
{
    tqi_err_t err = {0};

    if (!tqi_unit_check(rig->unit, &err))
        fail_msg("%s (seed %llu)", err.text, (unsigned long long)unit_seed);
}

static inline void rig_step(rig_t *rig)
{
    int turns = 0;

    do {
        rig->next = rig->role->step(rig->role, rig->now);
        assert_in_range(turns++, 0, 100000);
    } while (rig->next <= rig->now);
}

static inline void rig_sleep(rig_t *rig, uint64_t ms)
{
    rig->now += ms * RIG_MS;
    rig_step(rig);
}

/* A frame from a peer to the unit. */
static inline void rig_deliver(rig_t *rig, tqi_peer_t peer, const tqi_envelope_t *env,
                               const uint64_t *open, const void *msg)
{
    tqi_buf_t frame;
    tqi_err_t err = {0};

    tqi_buf_init(&frame, &rig->env.env);
    if (tqi_msg_encode(&frame, env, open, msg, &err) != TQ_OK)
        fail_msg("%s", err.text);
    rig->role->on_message(rig->role, peer, frame.data, frame.len, rig->now);
    tqi_buf_fini(&frame);
    rig_step(rig);
}

/* The oldest frame that the unit sent and that nobody looked at: decoded into rig->msg, its
 * envelope in rig->reply_env. False when there is none. */
static inline bool rig_next(rig_t *rig)
{
    if (rig->sent_cnt == 0)
        return false;
    rig_frame_t sent = rig->sent[0];
    tqi_err_t err = {0};

    rig->sent_cnt--;
    memmove(rig->sent, rig->sent + 1, rig->sent_cnt * sizeof sent);
    tqi_buf_fini(&rig->reply);
    rig->reply = sent.buf;
    rig->reply_env = sent.env;
    uint32_t kind = (sent.env.kind & TQI_KIND_REPLY) && sent.env.status != TQ_OK ? TQI_KIND_Error
                                                                                 : sent.env.kind;

    assert_in_range(tqi_msg_info(kind)->size, 1, sizeof rig->msg);
    memset(&rig->msg, 0, sizeof rig->msg);
    if (tqi_msg_decode(&sent.env, kind, &rig->msg, &err) != TQ_OK)
        fail_msg("%s", err.text);
    return true;
}

/* The next frame must be the answer to such a request; returns its status. */
static inline tq_status_t rig_answer(rig_t *rig, uint16_t kind)
{
    assert_true(rig_next(rig));
    assert_int_equal(rig->reply_env.kind, kind | TQI_KIND_REPLY);
    if (rig->reply_env.session == RIG_SESSION && rig->reply_env.seq > rig->ack)
        rig->ack = rig->reply_env.seq;
    return (tq_status_t)rig->reply_env.status;
}

static inline const char *rig_text(rig_t *rig)
{
    static char text[TQI_ERR_TEXT_MAX + 1];

    snprintf(text, sizeof text, "%.*s", (int)rig->msg.error.text.len,
             (const char *)rig->msg.error.text.data);
    return text;
}

/* ---- the controller --------------------------------------------------------------------------- */

static inline void rig_controller_says(rig_t *rig, uint16_t kind, tq_status_t status, uint64_t seq,
                                       const void *msg)
{
    tqi_envelope_t env = {.version = 1,
                          .kind = kind,
                          .status = (uint16_t)status,
                          .incarnation = rig->incarnation,
                          .budget_ms = UINT32_MAX,
                          .seq = seq};

    rig_deliver(rig, rig->controller, &env, NULL, msg);
}

/* So long that nothing that was granted is leased any more, under a controller that lives. */
static inline void rig_let_leases_pass(rig_t *rig)
{
    for (int i = 0; i < 9; i++) {
        rig_sleep(rig, 4000);
        rig_controller_says(rig, TQI_KIND_Ping, TQ_OK, 0, NULL);
        while (rig_next(rig)) {
        }
    }
}

/* Answers a REGISTER, which must be the next frame. */
static inline void rig_register(rig_t *rig)
{
    tqi_msg_Register_R_t answer = {.version = 1, .unit_id = 3, .silence_ms = 5000};

    assert_true(rig_next(rig));
    assert_int_equal(rig->reply_env.kind, TQI_KIND_Register);
    rig_controller_says(rig, TQI_KIND_Register | TQI_KIND_REPLY, TQ_OK, 0, &answer);
    assert_true(tqi_unit_is_registered(rig->unit));
}

static inline void rig_ping(rig_t *rig)
{
    rig_controller_says(rig, TQI_KIND_Ping, TQ_OK, 0, NULL);
    assert_int_equal(rig_answer(rig, TQI_KIND_Ping), TQ_OK);
}

static inline void rig_unlink(rig_t *rig, uint64_t lo, uint64_t hi)
{
    tqi_msg_Unlink_t msg = {.clear_id = 1, .lo = tqi_u64s(&lo, 1), .hi = tqi_u64s(&hi, 1)};

    rig_controller_says(rig, TQI_KIND_Unlink, TQ_OK, 5, &msg);
    assert_int_equal(rig_answer(rig, TQI_KIND_Unlink), TQ_OK);
}

static inline void rig_confirm(rig_t *rig, uint64_t put_id)
{
    tqi_msg_Confirm_t msg = {.put_ids = tqi_u64s(&put_id, 1)};

    rig_controller_says(rig, TQI_KIND_Confirm, TQ_OK, 6, &msg);
    assert_int_equal(rig_answer(rig, TQI_KIND_Confirm), TQ_OK);
}

static inline void rig_end_session(rig_t *rig, uint64_t session, uint64_t published)
{
    tqi_msg_EndSession_t msg = {.session = session};

    if (published)
        msg.published = tqi_u64s(&published, 1);
    rig_controller_says(rig, TQI_KIND_EndSession, TQ_OK, 7, &msg);
    /* Answers to what the session was waiting for come first. */
    while (rig_next(rig))
        if (rig->reply_env.kind == (TQI_KIND_EndSession | TQI_KIND_REPLY))
            break;
    assert_int_equal(rig->reply_env.kind, TQI_KIND_EndSession | TQI_KIND_REPLY);
}

/* ---- a client --------------------------------------------------------------------------------- */

static inline tqi_envelope_t rig_envelope(const rig_t *rig, uint16_t kind, uint64_t seq)
{
    return (tqi_envelope_t){.version = 1,
                            .kind = kind,
                            .incarnation = rig->incarnation,
                            .session = RIG_SESSION,
                            .epoch = 1,
                            .budget_ms = 200000,
                            .seq = seq,
                            .ack = rig->ack};
}

/* Sends a request; its answer, if one came at once, is looked at with rig_answer. */
static inline uint64_t rig_request(rig_t *rig, uint16_t kind, const void *msg)
{
    tqi_envelope_t env = rig_envelope(rig, kind, ++rig->seq);

    rig_deliver(rig, RIG_CLIENT, &env, NULL, msg);
    return rig->seq;
}

static inline tq_status_t rig_call(rig_t *rig, uint16_t kind, const void *msg)
{
    uint64_t seq = rig_request(rig, kind, msg);
    tq_status_t status = rig_answer(rig, kind);

    assert_int_equal(rig->reply_env.seq, seq);
    assert_int_equal(rig->reply_env.session, RIG_SESSION);
    assert_int_equal(rig->reply_env.sender, 3);
    return status;
}

static inline tq_status_t rig_hello_as(rig_t *rig, tqi_peer_t peer, uint64_t session,
                                       uint32_t epoch)
{
    tqi_msg_Hello_t msg = {.version_min = 1, .version_max = 1};
    tqi_envelope_t env = rig_envelope(rig, TQI_KIND_Hello, 0);

    env.session = session;
    env.epoch = epoch;
    rig_deliver(rig, peer, &env, NULL, &msg);
    return rig_answer(rig, TQI_KIND_Hello);
}

/* What was sent is taken, and nobody looks at it. */
static inline void rig_discard(rig_t *rig)
{
    for (uint32_t i = 0; i < rig->sent_cnt; i++) {
        const tqi_envelope_t *env = &rig->sent[i].env;

        if (env->session == RIG_SESSION && env->seq > rig->ack)
            rig->ack = env->seq;
        tqi_buf_fini(&rig->sent[i].buf);
    }
    rig->sent_cnt = 0;
}

/* ---- puts and gets ---------------------------------------------------------------------------- */

/* rows from `first`, one field of u8 tensors of `len` bytes each. */
typedef struct rig_put {
    uint64_t transfer;
    uint64_t put_id;
    uint64_t first;
    uint32_t rows_cnt;
    const char *field;
    uint32_t len;
    bool is_fused;
    bool is_column;
    uint32_t wait_ms;
    uint32_t mode;
    uint8_t fill;
} rig_put_t;

static inline void rig_desc_at(void *ctx, uint32_t row, tq_desc_t *desc)
{
    (void)row;
    memset(desc, 0, sizeof *desc);
    desc->encoding = TQ_ENC_TENSOR;
    desc->dtype = TQ_DTYPE_U8;
    desc->ndim = 1;
    desc->shape[0] = desc->len = *(const uint32_t *)ctx;
}

static inline uint64_t rig_prepare_put(rig_t *rig, const rig_put_t *put)
{
    tqi_strs_builder_t columns;
    tqi_buf_t column;
    uint64_t rows[256];
    uint32_t len = put->len;
    uint32_t offsets[2] = {0, (uint32_t)strlen(put->field)};
    size_t bytes = (size_t)put->rows_cnt * put->len;
    uint8_t *fill = malloc(bytes + 1);

    for (uint32_t i = 0; i < put->rows_cnt; i++)
        rows[i] = put->first + i;
    memset(fill, put->fill, bytes);
    tqi_buf_init(&column, &rig->env.env);
    tqi_strs_builder_init(&columns, &rig->env.env);
    assert_int_equal(tqi_coldesc_encode(&column, put->rows_cnt, rig_desc_at, &len, NULL), TQ_OK);
    assert_int_equal(tqi_strs_builder_add(&columns, column.data, column.len), TQ_OK);
    tqi_msg_PreparePut_t msg = {
        .transfer = put->transfer,
        .put_id = put->put_id,
        .rows = tqi_u64s(rows, put->rows_cnt),
        .fields = {offsets, put->field, 1, offsets[1]},
        .columns = tqi_strs_builder_view(&columns),
        .wait_ms = put->wait_ms,
        .is_column = put->is_column,
        .is_fused = put->is_fused,
        .mode = put->mode,
    };
    if (put->is_fused)
        msg.inline_bytes = (tqi_bytes_t){fill, (uint32_t)bytes};
    uint64_t seq = rig_request(rig, TQI_KIND_PreparePut, &msg);

    tqi_buf_fini(&column);
    tqi_strs_builder_fini(&columns);
    free(fill);
    return seq;
}

static inline tq_status_t rig_put(rig_t *rig, const rig_put_t *put)
{
    rig_prepare_put(rig, put);
    return rig_answer(rig, TQI_KIND_PreparePut);
}

static inline rig_put_t rig_fused(uint64_t id, uint64_t first, uint32_t rows_cnt, uint32_t len)
{
    return (rig_put_t){.transfer = id,
                       .put_id = id,
                       .first = first,
                       .rows_cnt = rows_cnt,
                       .field = "x",
                       .len = len,
                       .is_fused = true,
                       .fill = (uint8_t)id};
}

static inline tq_status_t rig_get(rig_t *rig, uint64_t transfer, uint64_t first, uint32_t rows_cnt,
                                  uint32_t inline_max, uint32_t mode, bool is_produced)
{
    uint32_t offsets[2] = {0, 1};
    uint64_t rows[256];
    uint8_t bits[32];

    for (uint32_t i = 0; i < rows_cnt; i++)
        rows[i] = first + i;
    memset(bits, 0xff, sizeof bits);
    tqi_msg_PrepareGet_t msg = {
        .transfer = transfer,
        .rows = tqi_u64s(rows, rows_cnt),
        .fields = {offsets, "x", 1, 1},
        .inline_max = inline_max,
        .mode = mode,
    };
    if (is_produced)
        msg.produced = (tqi_bytes_t){bits, (rows_cnt + 7) / 8};
    return rig_call(rig, TQI_KIND_PrepareGet, &msg);
}

/* The byte that the rows of field x are filled with; -1: they can't be read. */
static inline int rig_value(rig_t *rig, uint64_t row)
{
    if (rig_get(rig, 0, row, 1, TQ_INLINE_BYTES_MAX, 0, false) != TQ_OK)
        return -1;
    assert_true(rig->msg.get.is_inline);
    return ((const uint8_t *)rig->msg.get.inline_bytes.data)[0];
}

#define RIG_ID_CALL(rig, Name, value)                                                              \
    rig_call(rig, TQI_KIND_##Name, &(tqi_msg_##Name##_t){.transfer = (value)})

static inline tq_status_t rig_abort(rig_t *rig, uint64_t put_id)
{
    return rig_call(rig, TQI_KIND_Abort, &(tqi_msg_Abort_t){.put_id = put_id});
}

/* A figure of STAT's JSON. */
static inline uint64_t rig_figure(rig_t *rig, const char *name)
{
    char key[64];
    tqi_buf_t json;
    const char *at;
    uint64_t value;

    tqi_buf_init(&json, &rig->env.env);
    assert_int_equal(tqi_unit_stat(rig->unit, &json), TQ_OK);
    assert_int_equal(tqi_buf_append(&json, "", 1), TQ_OK);
    snprintf(key, sizeof key, "\"%s\":", name);
    at = strstr((const char *)json.data, key);
    assert_non_null(at);
    value = strtoull(at + strlen(key), NULL, 10);
    tqi_buf_fini(&json);
    return value;
}

/* The port is done with a transfer. */
static inline void rig_payload_done(rig_t *rig, uint64_t session, uint64_t id, tq_status_t status,
                                    const char *text)
{
    rig_transfer_t *t = rig_transfer(rig, session, id);

    assert_non_null(t);
    *t = rig->transfers[--rig->transfers_cnt];
    for (uint32_t i = 0; i < rig->transfers_cnt; i++) {
        /* Frames point into their own struct. */
        uint32_t piece = 0;

        for (uint32_t f = 0; f < rig->transfers[i].frames_cnt; f++) {
            rig->transfers[i].frames[f].pieces = &rig->transfers[i].pieces[piece];
            piece += rig->transfers[i].frames[f].pieces_cnt;
        }
    }
    rig->role->on_payload(rig->role, (tqi_transfer_key_t){session, id}, status, text, rig->now);
    rig_step(rig);
}

/* ---- set up ----------------------------------------------------------------------------------- */

/* A unit that has sent its first REGISTER. */
static inline void rig_start(rig_t *rig, uint64_t capacity_bytes)
{
    static const char *const addresses[] = {"ipc:///tmp/u", "tcp://127.0.0.1:1"};
    tqi_unit_conf_t conf = {.unit_incarnation = RIG_UNIT_INCARNATION,
                            .controller = "inproc://controller",
                            .addresses = addresses,
                            .addresses_cnt = 2,
                            .host = "boot",
                            .name = "u",
                            .capacity_bytes = capacity_bytes,
                            .segment_bytes = 1u << 20};

    memset(rig, 0, sizeof *rig);
    unit_env_init(&rig->env);
    rig->ctrl = (tqi_ctrl_t){rig_connect, rig_disconnect, rig_send, rig_why_down};
    rig->payload =
        (tqi_payload_unit_t){rig_offer, rig_forget, rig_expect, rig_payload_send, rig_drop};
    rig->arena = (tqi_arena_t){rig_segment_open, rig_segment_punch, rig_segment_close};
    rig->incarnation = RIG_STORE;
    rig->peer_next = 1;
    rig->now = 1000 * RIG_MS;
    rig->has_direct = true;
    tqi_buf_init(&rig->reply, &rig->env.env);
    assert_int_equal(tqi_unit_new(&rig->env.env, &conf, &rig->ctrl, &rig->payload, &rig->arena,
                                  rig->now, &rig->unit, NULL),
                     TQ_OK);
    rig->role = tqi_unit_role(rig->unit);
}

/* And registered, with a client. */
static inline void rig_open(rig_t *rig, uint64_t capacity_bytes)
{
    rig_start(rig, capacity_bytes);
    rig_register(rig);
    assert_int_equal(rig_hello_as(rig, RIG_CLIENT, RIG_SESSION, 1), TQ_OK);
}

static inline void rig_close(rig_t *rig)
{
    rig_check(rig);
    tqi_unit_free(rig->unit);
    while (rig_next(rig))
        ;
    tqi_buf_fini(&rig->reply);
    assert_int_equal(rig->segments_cnt, 0);
    assert_int_equal(rig->env.bytes, 0);
}

#endif
