/* SPDX-License-Identifier: Apache-2.0 */
#include "peer.h"

#include <string.h>

#include "base/size.h"
#include "sys/env_malloc.h"

/* What any message may cost beside what a target adds for its kind: a record of a session or a
 * request, and what is made for each of a few bytes. An honest role stays far below; a count that is
 * believed goes far above. */
#define MESSAGE_BYTES 16384u
#define BYTES_A_BYTE 256u
#define START_BYTES (1u << 20)
#define CHECKED_BYTES (2u << 20)

static void *fuzz_mem(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    fuzz_t *f = ctx;
    f->bytes += new_size - old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    void *result = realloc(ptr, new_size);
    if (!result)
        f->bytes -= new_size - old_size;
    return result;
}

/* ---- ports ----------------------------------------------------------------------------------- */

static fuzz_t *fuzz_of(tqi_ctrl_t *ctrl)
{
    return tqi_container_of(ctrl, fuzz_t, ctrl);
}

tqi_peer_t fuzz_connect_peer(fuzz_t *f)
{
    return ++f->peer_last;
}

static tq_status_t fuzz_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                tqi_err_t *err)
{
    fuzz_t *f = fuzz_of(ctrl);
    if (strncmp(address, "bad", 3) == 0)
        return tqi_fail(err, TQ_E_CONFIG, "'%.100s' is no address", address);
    *peer = fuzz_connect_peer(f);
    if (f->on_connect)
        f->on_connect(f, *peer, address);
    return TQ_OK;
}

static void fuzz_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    fuzz_t *f = fuzz_of(ctrl);
    for (int i = 0; i < FUZZ_PEERS; i++)
        if (f->peers[i] == peer)
            f->peers[i] = fuzz_connect_peer(f);
}

/* Whatever a role says is well-formed. */
static tq_status_t fuzz_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    fuzz_t *f = fuzz_of(ctrl);
    tqi_envelope_t env;
    tqi_err_t err = {0};
    fuzz_require(tqi_envelope_decode(frame->data, frame->len, &env, &err) == TQ_OK,
                 "the role sent what is no message: %s", err.text);
    /* The outcome that it keeps, and what it needed to make it. */
    f->allowed += 4 * frame->len;
    if (env.kind == TQI_KIND_Hello_R && env.session != 0)
        for (int i = 0; i < FUZZ_PEERS; i++)
            if (f->peers[i] == peer)
                f->sessions[i] = env.session;
    if (!(env.kind & TQI_KIND_REPLY))
        f->requests[f->requests_cnt++ % FUZZ_REQUESTS] =
            (fuzz_request_t){peer, env.kind, env.seq, env.session, env.epoch};
    if (f->on_sent)
        f->on_sent(f, peer, &env);
    if (peer == f->friend && peer != 0) {
        tqi_buf_clear(&f->answer);
        if (tqi_buf_append(&f->answer, frame->data, frame->len) != TQ_OK ||
            tqi_envelope_decode(f->answer.data, f->answer.len, &f->answer_env, NULL) != TQ_OK)
            abort();
    }
    tqi_buf_fini(frame);
    return TQ_OK;
}

void fuzz_init(fuzz_t *f)
{
    memset(f, 0, sizeof *f);
    f->env = (tqi_env_t){.ctx = f, .mem = fuzz_mem};
    f->ctrl = (tqi_ctrl_t){fuzz_connect, fuzz_disconnect, fuzz_send, NULL};
    f->now_ns = UINT64_C(1000000000000);
    f->allowed = START_BYTES;
    f->store = FUZZ_STORE;
    f->where = "the start";
    for (int i = 0; i < FUZZ_PEERS; i++) {
        f->peers[i] = fuzz_connect_peer(f);
        f->epochs[i] = 1;
    }
    tqi_buf_init(&f->answer, tqi_env_malloc());
}

void fuzz_over(fuzz_t *f)
{
    tqi_buf_fini(&f->answer);
    fuzz_require(f->bytes == 0, "%zu bytes were not given back", f->bytes);
}

/* ---- messages -------------------------------------------------------------------------------- */

void fuzz_deliver(fuzz_t *f, tqi_peer_t peer, const tqi_envelope_t *env, const uint64_t *open,
                  const void *body, size_t body_len)
{
    tqi_buf_t frame;
    tqi_buf_init(&frame, tqi_env_malloc());
    if (tqi_envelope_begin(&frame, env, open) != TQ_OK ||
        tqi_buf_append(&frame, body, body_len) != TQ_OK)
        abort();
    tqi_envelope_seal(&frame);
    f->role->on_message(f->role, peer, frame.data, frame.len, f->now_ns);
    tqi_buf_fini(&frame);
}

void fuzz_say(fuzz_t *f, tqi_peer_t peer, const tqi_envelope_t *env, const void *msg)
{
    tqi_buf_t frame;
    tqi_err_t err = {0};
    tqi_buf_init(&frame, tqi_env_malloc());
    fuzz_require(tqi_msg_encode(&frame, env, NULL, msg, &err) == TQ_OK, "%s", err.text);
    f->role->on_message(f->role, peer, frame.data, frame.len, f->now_ns);
    tqi_buf_fini(&frame);
}

/* The newest request of the role that a reply of this kind could be to; else any. */
static const fuzz_request_t *request_for(const fuzz_t *f, tqi_peer_t peer, uint16_t kind)
{
    const fuzz_request_t *any = NULL;
    unsigned cnt = f->requests_cnt < FUZZ_REQUESTS ? f->requests_cnt : FUZZ_REQUESTS;
    for (unsigned i = 1; i <= cnt; i++) {
        const fuzz_request_t *r = &f->requests[(f->requests_cnt - i) % FUZZ_REQUESTS];
        if ((r->kind | TQI_KIND_REPLY) != kind)
            continue;
        if (r->peer == peer)
            return r;
        any = any ? any : r;
    }
    return any;
}

static void hostile_message(fuzz_t *f, int who, const fuzz_record_t *record)
{
    static const uint16_t statuses[] = {
        TQ_E_BUSY,      TQ_E_SESSION_EXPIRED, TQ_E_STALE_STORE, TQ_E_FULL,      TQ_E_ROW_GONE,
        TQ_E_UNIT_LOST, TQ_E_NOT_FOUND,       TQ_E_TIMEOUT,     TQ_E_CANCELLED, TQ_E_STORE_GONE,
        TQ_E_NO_MEMORY, TQ_E_MALFORMED,       TQ_E_DENIED,      TQ_E_VERSION,   9999};
    const tqi_msg_info_t *info = fuzz_kind(record->kind);
    tqi_peer_t peer = f->peers[who];
    unsigned flags = record->flags;
    uint64_t open[TQI_OPEN_MAX];
    tqi_envelope_t env = {.kind = (uint16_t)info->kind,
                          .incarnation = flags & FUZZ_F_NO_STORE ? 0 : f->store,
                          .session = f->sessions[who],
                          .seq = record->seq,
                          .epoch = f->epochs[who],
                          .ack = record->ack & 63,
                          .sender = f->sender,
                          .budget_ms = flags & FUZZ_F_NO_TIME    ? 0
                                       : flags & FUZZ_F_FOR_EVER ? UINT32_MAX
                                                                 : 1000};
    if (flags & FUZZ_F_NO_SESSION)
        env.session = 0;
    else if (flags & FUZZ_F_OTHERS_SESSION)
        env.session = f->sessions[(who + 1) % FUZZ_PEERS];
    else if (flags & FUZZ_F_GUESSED_SESSION)
        env.session = record->seq;
    if (flags & FUZZ_F_EPOCH)
        env.epoch = record->seq;
    if (record->ack & 128)
        env.ack += UINT64_C(1) << (record->ack & 63);
    if (record->ack & 64) {
        env.ack = (uint64_t)(record->ack & 63) * 2 * TQI_OPEN_MAX + 2 * TQI_OPEN_MAX;
        for (; env.open_cnt < TQI_OPEN_MAX; env.open_cnt++)
            open[env.open_cnt] = env.ack - 2u * (TQI_OPEN_MAX - env.open_cnt);
    }
    if (info->kind & TQI_KIND_REPLY) {
        const fuzz_request_t *request = request_for(f, peer, (uint16_t)info->kind);
        if (request) {
            peer = request->peer;
            env.seq = request->seq;
            env.epoch = request->epoch;
            if (!(flags & FUZZ_F_NO_SESSION) && request->session != 0)
                env.session = request->session;
        }
        if (flags & FUZZ_F_ERROR)
            env.status = statuses[record->seq % tqi_array_len(statuses)];
    }
    f->where = info->name;
    f->allowed += MESSAGE_BYTES + BYTES_A_BYTE * (record->len + 8u * env.open_cnt);
    env.body = record->body;
    env.body_len = (uint32_t)record->len;
    if (f->cost)
        f->allowed += f->cost(&env);
    fuzz_deliver(f, peer, &env, open, record->body, record->len);
}

static void raw_frame(fuzz_t *f, int who, const fuzz_record_t *record)
{
    tqi_envelope_t env;
    f->where = "bytes";
    f->allowed += MESSAGE_BYTES + BYTES_A_BYTE * record->len;
    if (f->cost && tqi_envelope_decode(record->body, record->len, &env, NULL) == TQ_OK)
        f->allowed += f->cost(&env);
    f->role->on_message(f->role, f->peers[who], record->body, record->len, f->now_ns);
}

/* ---- time ------------------------------------------------------------------------------------ */

void fuzz_step(fuzz_t *f)
{
    unsigned turns = 0;
    for (; turns < 20000 && f->role->step(f->role, f->now_ns) <= f->now_ns; turns++)
        continue;
    fuzz_require(turns < 20000, "the role does not come to rest");
    if (f->after_step)
        f->after_step(f);
}

void fuzz_pass(fuzz_t *f, uint64_t ms)
{
    while (ms > 0) {
        uint64_t some = tqi_u64_min(ms, 500);
        f->now_ns += some * FUZZ_MS;
        ms -= some;
        fuzz_step(f);
    }
}

static void bound(const fuzz_t *f)
{
    fuzz_require(f->bytes <= f->allowed,
                 "after %s the role holds %zu bytes, for messages that may cost %zu", f->where,
                 f->bytes, f->allowed);
}

void fuzz_feed(fuzz_t *f, const uint8_t *data, size_t len)
{
    static const uint64_t waits_ms[] = {0, 0, 1, 30, 100, 1000, 3000, 11000};
    fuzz_record_t record;
    unsigned skipped = 0;
    size_t at = 0;
    fuzz_step(f);
    while (fuzz_record_read(data, len, &at, &record)) {
        int who = record.choice & 3;
        fuzz_pass(f, waits_ms[record.choice >> 5]);
        switch (record.choice >> 2 & 7) {
        case FUZZ_RAW:
            raw_frame(f, who, &record);
            break;
        case FUZZ_DOWN:
            f->where = "a hang-up";
            f->role->on_peer_down(f->role, f->peers[who], f->now_ns);
            f->peers[who] = fuzz_connect_peer(f);
            f->epochs[who]++;
            break;
        case FUZZ_HOST:
        case FUZZ_HOST_TOO:
            f->where = "the host";
            if (f->host) {
                f->host(f, &record);
                break;
            }
            hostile_message(f, who, &record);
            break;
        default:
            hostile_message(f, who, &record);
        }
        fuzz_step(f);
        /* A check walks all there is: of much, now and then. */
        if (f->check && (f->bytes <= CHECKED_BYTES || ++skipped % 16 == 0))
            f->check(f);
        bound(f);
    }
    if (f->check)
        f->check(f);
}

/* ---- friends --------------------------------------------------------------------------------- */

tq_status_t fuzz_ask(fuzz_t *f, uint16_t kind, uint64_t session, uint64_t seq, const void *msg)
{
    tqi_envelope_t env = {.kind = kind,
                          .incarnation = f->store,
                          .session = session,
                          .seq = seq,
                          .epoch = f->friend_epoch,
                          .ack = seq > 0 ? seq - 1 : 0,
                          .budget_ms = 60000};
    tqi_buf_clear(&f->answer);
    f->answer_env = (tqi_envelope_t){0};
    fuzz_say(f, f->friend, &env, msg);
    for (int turns = 0; turns < 120; turns++) {
        fuzz_step(f);
        if (f->answer.len > 0 && f->answer_env.kind == (kind | TQI_KIND_REPLY) &&
            f->answer_env.seq == seq)
            return (tq_status_t)f->answer_env.status;
        fuzz_pass(f, 500);
    }
    return TQ_E_TIMEOUT;
}

const char *fuzz_answer_text(fuzz_t *f)
{
    static char text[512];
    tqi_msg_Error_t error;
    text[0] = 0;
    if (f->answer.len > 0 &&
        tqi_msg_decode(&f->answer_env, TQI_KIND_Error, &error, NULL) == TQ_OK && error.text.len > 0)
        snprintf(text, sizeof text, "%.*s", (int)error.text.len, (const char *)error.text.data);
    return text;
}
