/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clients' side. A message is looked at in this order: does the unit serve anybody now; is it
 * of this store; has its session ended; is it from a connection that said HELLO for that session;
 * has its request been executed before. Only then is its body read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "role/storage/internal.h"

/* ---- replies ---------------------------------------------------------------------------------- */

static tqi_envelope_t envelope_to(const tqi_unit_t *unit, const request_t *request)
{
    return (tqi_envelope_t){
        .version = TQI_VERSION_MAX,
        .kind = request->kind,
        .incarnation = unit->store_incarnation,
        .session = request->session,
        .epoch = request->epoch,
        .budget_ms = UINT32_MAX,
        .seq = request->seq,
        .request_id = request->request_id,
        .sender = unit->unit_id,
    };
}

/* The frame of a reply, or of an error about it if it can't be encoded. Empty without memory. */
static void encode_reply(tqi_unit_t *unit, const request_t *request, tq_status_t status,
                         const void *msg, tqi_buf_t *frame)
{
    tqi_envelope_t env = envelope_to(unit, request);
    tqi_err_t err = {0};

    env.kind |= TQI_KIND_REPLY;
    env.status = (uint16_t)status;

    tqi_buf_init(frame, unit->env);
    tq_status_t rc = tqi_msg_encode(frame, &env, NULL, msg, &err);
    if (rc == TQ_OK)
        return;
    tqi_buf_fini(frame);
    if (status != TQ_OK || rc == TQ_E_NO_MEMORY)
        return;
    tqi_msg_Error_t error = {.text = tqi_str(err.text)};

    env.status = (uint16_t)rc;
    if (tqi_msg_encode(frame, &env, NULL, &error, NULL) != TQ_OK)
        tqi_buf_fini(frame);
}

static void send_frame(tqi_unit_t *unit, tqi_peer_t peer, tqi_buf_t *frame)
{
    if (!frame->data || peer == 0 || unit->ctrl->send(unit->ctrl, peer, frame) != TQ_OK) {
        unit->counters.replies_lost++;
        tqi_buf_fini(frame);
    }
}

void say(tqi_unit_t *unit, const request_t *to, const void *msg)
{
    tqi_envelope_t env = envelope_to(unit, to);
    tqi_buf_t frame;

    tqi_buf_init(&frame, unit->env);
    if (tqi_msg_encode(&frame, &env, NULL, msg, NULL) != TQ_OK)
        tqi_buf_fini(&frame);
    send_frame(unit, to->peer, &frame);
}

/* OK to such a request says nothing without its body. */
static bool needs_body(const request_t *request)
{
    switch (request->kind) {
    case TQI_KIND_PreparePut:
        return !request->is_fused;
    case TQI_KIND_PrepareGet:
    case TQI_KIND_Renew:
    case TQI_KIND_Stat:
        return true;
    default:
        return false;
    }
}

/* False: there is no memory for the answer, and the client will be told so instead. */
static bool reply_status(tqi_unit_t *unit, request_t *request, tq_status_t status, const void *msg)
{
    session_t *session = tqi_map_u64_get(&unit->sessions, request->session);
    tqi_peer_t peer = request->peer;
    tqi_buf_t frame;
    tq_status_t outcome = status == TQ_OK && needs_body(request) ? TQ_E_NO_MEMORY : status;
    bool is_said;

    if (request->kind == 0)
        return true;
    /* The client may have a new connection by now. */
    if (session && session->peer) {
        peer = session->peer;
        request->epoch = session->epoch;
    }
    encode_reply(unit, request, status, msg, &frame);
    /* Without memory for all of it, its status is kept, and said when the client asks again. */
    if (session && session->state != SESSION_ENDED && request->seq &&
        (!frame.data || tqi_inbox_done(session->inbox, request->seq, &frame) != TQ_OK))
        tqi_inbox_late(session->inbox, request->seq, 1 + (uint32_t)outcome);
    is_said = frame.data || outcome == status;
    request->kind = 0;
    send_frame(unit, peer, &frame);
    return is_said;
}

bool reply(tqi_unit_t *unit, request_t *request, const void *msg)
{
    return reply_status(unit, request, TQ_OK, msg);
}

void reply_error(tqi_unit_t *unit, request_t *request, tq_status_t status, const char *text,
                 const tqi_blame_t *blame)
{
    uint32_t offsets[2] = {0, blame ? blame->field.len : 0};
    tqi_msg_Error_t error = {.text = tqi_str(text)};

    tqi_assert(status != TQ_OK);
    if (blame && blame->rows_cnt > 0)
        error.rows = tqi_u64s(blame->rows, blame->rows_cnt);
    if (blame && blame->field.len > 0)
        error.fields = (tqi_strs_t){offsets, blame->field.data, 1, blame->field.len};
    reply_status(unit, request, status, &error);
}

void reply_refused(tqi_unit_t *unit, const request_t *request, tq_status_t status, const char *text)
{
    tqi_msg_Error_t error = {.text = tqi_str(text)};
    tqi_buf_t frame;

    encode_reply(unit, request, status, &error, &frame);
    send_frame(unit, request->peer, &frame);
}

/* ---- sessions --------------------------------------------------------------------------------- */

TQI_MACHINE(tqi_unit_session_machine, "session at a unit", SESSION, SESSION_STEPS);

static void session_step(session_t *session, session_event_t event)
{
    session->state =
        (session_state_t)tqi_machine_step(&tqi_unit_session_machine, session->state, event);
}

static session_t *session_new(tqi_unit_t *unit, uint64_t id)
{
    session_t *session = tqi_env_zalloc(unit->env, sizeof *session);

    if (!session)
        return NULL;
    session->id = id;
    session->inbox = tqi_inbox_new(unit->env);
    tqi_map_u64_init(&session->transfers, unit->env);
    tqi_intervals_init(&session->gone, unit->env);
    tqi_intervals_init(&session->aborted, unit->env);
    if (!session->inbox || tqi_map_u64_put(&unit->sessions, id, session, NULL) != TQ_OK) {
        tqi_inbox_free(session->inbox);
        tqi_env_free(unit->env, session, sizeof *session);
        return NULL;
    }
    return session;
}

void session_free(tqi_unit_t *unit, session_t *session)
{
    tqi_assert(tqi_map_u64_count(&session->transfers) == 0);
    tqi_map_u64_take(&unit->sessions, session->id);
    tqi_inbox_free(session->inbox);
    tqi_map_u64_fini(&session->transfers, NULL, NULL);
    tqi_intervals_fini(&session->gone);
    tqi_intervals_fini(&session->aborted);
    tqi_env_free(unit->env, session, sizeof *session);
}

void session_free_if_done(tqi_unit_t *unit, session_t *session)
{
    if (session->state == SESSION_ENDED && tqi_map_u64_count(&session->transfers) == 0) {
        session_step(session, SESSION_EV_LAST);
        session_free(unit, session);
    }
}

tq_status_t session_end(tqi_unit_t *unit, uint64_t id, uint64_t now_ns)
{
    session_t *session = tqi_map_u64_get(&unit->sessions, id);

    if (tqi_intervals_add(&unit->ended, id, id + 1) != TQ_OK)
        return TQ_E_NO_MEMORY;
    if (!session || session->state == SESSION_ENDED)
        return TQ_OK;
    session_step(session, SESSION_EV_END);
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&session->transfers), *next; it; it = next) {
        transfer_t *t = it->value;

        next = tqi_map_u64_next(it);
        if (tqi_transfer_can(&t->core, TQI_TRANSFER_EV_END))
            transfer_event(unit, t, TQI_TRANSFER_EV_END, now_ns);
    }
    /* The last of them took the session along, unless there were none or the port holds some. */
    if (unit->payload)
        unit->payload->forget(unit->payload, id);
    session = tqi_map_u64_get(&unit->sessions, id);
    if (session)
        session_free_if_done(unit, session);
    return TQ_OK;
}

void session_fini(tqi_unit_t *unit)
{
    tqi_map_u64_item_t *it;

    while ((it = tqi_map_u64_first(&unit->sessions)))
        session_free(unit, it->value);
    while ((it = tqi_map_u64_first(&unit->peers)))
        session_on_peer_down(unit, it->key);
    tqi_map_u64_fini(&unit->sessions, NULL, NULL);
    tqi_map_u64_fini(&unit->peers, NULL, NULL);
    tqi_intervals_fini(&unit->ended);
}

/* A connection speaks for one session: the one of its HELLO. */
typedef struct binding {
    uint64_t session;
} binding_t;

static tq_status_t peer_bind(tqi_unit_t *unit, tqi_peer_t peer, uint64_t session)
{
    binding_t *binding = tqi_map_u64_get(&unit->peers, peer);

    if (!binding) {
        binding = tqi_env_zalloc(unit->env, sizeof *binding);
        if (!binding)
            return TQ_E_NO_MEMORY;
        if (tqi_map_u64_put(&unit->peers, peer, binding, NULL) != TQ_OK) {
            tqi_env_free(unit->env, binding, sizeof *binding);
            return TQ_E_NO_MEMORY;
        }
    }
    binding->session = session;
    return TQ_OK;
}

void session_on_peer_down(tqi_unit_t *unit, tqi_peer_t peer)
{
    binding_t *binding = tqi_map_u64_take(&unit->peers, peer);
    session_t *session;

    if (!binding)
        return;
    session = tqi_map_u64_get(&unit->sessions, binding->session);
    if (session && session->peer == peer) {
        session->peer = 0; /* it lives on: only the controller ends it */
        if (session->state == SESSION_CONNECTED)
            session_step(session, SESSION_EV_DOWN);
    }
    tqi_env_free(unit->env, binding, sizeof *binding);
}

/* Sessions above what the controller has told of. */
static uint32_t sessions_ahead(const tqi_unit_t *unit)
{
    uint32_t cnt = 0;

    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&unit->sessions); it; it = tqi_map_u64_next(it))
        cnt += it->key > unit->session_last;
    return cnt;
}

/* ---- HELLO, PING, STAT ------------------------------------------------------------------------ */

static void on_hello(tqi_unit_t *unit, request_t *request, const tqi_envelope_t *env)
{
    session_t *session = tqi_map_u64_get(&unit->sessions, env->session);
    const binding_t *binding = tqi_map_u64_get(&unit->peers, request->peer);
    tqi_msg_Hello_t msg;
    tqi_err_t err = {0};
    uint8_t token[16] = {0};
    const char *address = "";
    uint64_t direct_arena = 0;
    char text[TQI_ERR_TEXT_MAX];

    tq_status_t rc = tqi_msg_decode(env, TQI_KIND_Hello, &msg, &err);
    if (rc != TQ_OK) {
        reply_error(unit, request, rc, err.text, NULL);
        return;
    }
    if (msg.version_min > TQI_VERSION_MAX || msg.version_max < TQI_VERSION_MIN) {
        snprintf(text, sizeof text,
                 "the client speaks protocol versions %u to %u, the unit %d to %d", msg.version_min,
                 msg.version_max, TQI_VERSION_MIN, TQI_VERSION_MAX);
        reply_error(unit, request, TQ_E_VERSION, text, NULL);
        return;
    }
    if (env->session == 0) {
        reply_error(unit, request, TQ_E_INVALID, "a HELLO to a unit names the session", NULL);
        return;
    }
    if (msg.incarnation_wanted && msg.incarnation_wanted != unit->store_incarnation) {
        snprintf(text, sizeof text, "store %016" PRIx64 " wanted, the unit belongs to %016" PRIx64,
                 msg.incarnation_wanted, unit->store_incarnation);
        reply_error(unit, request, TQ_E_STALE_STORE, text, NULL);
        return;
    }
    /* With several, one connection could make up any number of them. */
    if (binding && binding->session != env->session) {
        reply_error(unit, request, TQ_E_DENIED, "this connection is another session's", NULL);
        return;
    }
    if (!session && env->session > unit->session_last &&
        sessions_ahead(unit) >= SESSIONS_AHEAD_MAX) {
        reply_error(unit, request, TQ_E_BUSY,
                    "the controller has not told of this session yet, nor of 1,024 others", NULL);
        return;
    }
    if (!session)
        session = session_new(unit, env->session);
    if (!session || peer_bind(unit, request->peer, env->session) != TQ_OK ||
        (unit->payload && unit->payload->offer(unit->payload, session->id, &address, token,
                                               &direct_arena) != TQ_OK)) {
        reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for another session", NULL);
        return;
    }
    /* One that was overtaken by a newer connection's is answered, and changes nothing. */
    if (env->epoch >= session->epoch || !session->peer) {
        session->peer = request->peer;
        session->epoch = env->epoch;
        session_step(session, SESSION_EV_HELLO);
    } else {
        session_step(session, SESSION_EV_OVERTAKEN);
    }
    session->is_direct = direct_arena != 0;
    tqi_msg_Hello_R_t answer = {
        .version = TQI_VERSION_MAX,
        .payload_address = tqi_str(address),
        .direct_arena = direct_arena,
    };
    if (address[0] != '\0')
        answer.payload_token = (tqi_bytes_t){token, sizeof token};
    reply(unit, request, &answer);
}

static void on_ping(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_envelope_t *env)
{
    uint64_t resend[TQI_OPEN_MAX];
    uint32_t cnt =
        tqi_inbox_missing(session->inbox, env->open, env->open_cnt, resend, TQI_OPEN_MAX);
    tqi_msg_Ping_R_t answer = {.resend = tqi_u64s(resend, cnt)};

    reply(unit, request, &answer);
}

static void on_stat(tqi_unit_t *unit, request_t *request)
{
    tqi_buf_t json;

    tqi_buf_init(&json, unit->env);
    if (tqi_unit_stat(unit, &json) == TQ_OK) {
        tqi_msg_Stat_R_t answer = {.json = {json.data, (uint32_t)json.len}};

        reply(unit, request, &answer);
    } else {
        reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for the unit's figures", NULL);
    }
    tqi_buf_fini(&json);
}

/* ---- requests --------------------------------------------------------------------------------- */

typedef union any_msg {
    tqi_msg_PreparePut_t prepare_put;
    tqi_msg_Commit_t commit;
    tqi_msg_Abort_t abort;
    tqi_msg_PrepareGet_t prepare_get;
    tqi_msg_Release_t release;
    tqi_msg_Cancel_t cancel;
    tqi_msg_Renew_t renew;
    tqi_msg_Stat_t stat;
} any_msg_t;

static void on_commit(tqi_unit_t *unit, session_t *session, request_t *request, uint64_t id,
                      uint64_t now_ns)
{
    transfer_t *t = transfer_find(session, id);
    tqi_err_t err;

    if (!t) {
        tq_status_t rc = transfer_missing(unit, session, id, &err);

        reply_error(unit, request, rc, err.text, NULL);
    } else if (t->core.kind == TQI_GET_STREAM || t->core.kind == TQI_GET_DIRECT) {
        get_on_commit(unit, t, request, now_ns);
    } else {
        put_on_commit(unit, t, request, now_ns);
    }
}

/* An admitted request: executes it. */
static void execute(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_envelope_t *env, const void *data, size_t len, uint64_t now_ns)
{
    any_msg_t msg;
    tqi_err_t err = {0};
    tq_status_t rc = tqi_msg_decode(env, env->kind, &msg, &err);

    if (rc != TQ_OK) {
        unit->counters.malformed++;
        reply_error(unit, request, rc, err.text, NULL);
        return;
    }
    switch (env->kind) {
    case TQI_KIND_PreparePut:
        put_on_prepare(unit, session, request, &msg.prepare_put, data, len, env->budget_ms, now_ns);
        break;
    case TQI_KIND_Commit:
        on_commit(unit, session, request, msg.commit.transfer, now_ns);
        break;
    case TQI_KIND_Abort:
        put_on_abort(unit, session, request, &msg.abort, now_ns);
        break;
    case TQI_KIND_PrepareGet:
        get_on_prepare(unit, session, request, &msg.prepare_get, now_ns);
        break;
    case TQI_KIND_Release:
        get_on_release(unit, session, request, &msg.release, now_ns);
        break;
    case TQI_KIND_Cancel:
        transfer_on_cancel(unit, session, request, &msg.cancel, now_ns);
        break;
    case TQI_KIND_Renew:
        transfer_on_renew(unit, session, request, &msg.renew, now_ns);
        break;
    case TQI_KIND_Stat:
        on_stat(unit, request);
        break;
    }
}

static bool is_client_kind(uint16_t kind)
{
    switch (kind) {
    case TQI_KIND_Hello:
    case TQI_KIND_Ping:
    case TQI_KIND_Stat:
    case TQI_KIND_PreparePut:
    case TQI_KIND_Commit:
    case TQI_KIND_Abort:
    case TQI_KIND_PrepareGet:
    case TQI_KIND_Release:
    case TQI_KIND_Cancel:
    case TQI_KIND_Renew:
        return true;
    default:
        return false;
    }
}

/* What was executed, and found no memory for its reply. */
static void reply_late(tqi_unit_t *unit, session_t *session, const request_t *request)
{
    tq_status_t status = (tq_status_t)(tqi_inbox_outcome(session->inbox, request->seq) - 1);
    request_t owed = *request;

    owed.is_fused = true; /* if it is OK, no body is needed */
    if (status == TQ_OK)
        reply(unit, &owed, NULL);
    else
        reply_error(unit, &owed, status, "the storage unit was out of memory for its answer", NULL);
}

/* Whether a request may go on; else it was answered, or dropped. */
static bool admit(tqi_unit_t *unit, session_t *session, const request_t *request)
{
    const tqi_buf_t *kept;
    tqi_buf_t frame;
    bool is_prepare = request->kind == TQI_KIND_PreparePut || request->kind == TQI_KIND_PrepareGet;

    if (request->seq == 0)
        return true;
    switch (tqi_inbox_admit(session->inbox, request->seq, &kept)) {
    case TQI_ADMIT_NEW:
        break;
    case TQI_ADMIT_PENDING:
    case TQI_ADMIT_OLD:
        return false;
    case TQI_ADMIT_DONE:
        tqi_buf_init(&frame, unit->env);
        if (tqi_buf_append(&frame, kept->data, kept->len) != TQ_OK)
            tqi_buf_fini(&frame);
        send_frame(unit, session->peer, &frame);
        return false;
    case TQI_ADMIT_LATE:
        reply_late(unit, session, request);
        return false;
    case TQI_ADMIT_BUSY:
        reply_refused(unit, request, TQ_E_BUSY,
                      "the session has 1,024 requests open at this unit, or 16 MiB of answers that "
                      "it did not acknowledge");
        return false;
    case TQI_ADMIT_NO_MEMORY:
        reply_refused(unit, request, TQ_E_BUSY, "the unit is out of memory");
        return false;
    }
    if (is_prepare && unit->is_draining) {
        request_t owed = *request;

        reply_error(unit, &owed, TQ_E_CLOSING, "the storage unit is shutting down", NULL);
        return false;
    }
    return true;
}

bool session_may_give_up(const session_t *session)
{
    return session->gone.vec.len + session->aborted.vec.len < SESSION_GIVEN_UP_LIMIT;
}

/* When all is acknowledged up to the newest CANCEL or ABORT, no PREPARE from before it can come any
 * more: what they named need not be remembered. */
static void forget_given_up(session_t *session, const tqi_envelope_t *env)
{
    if (session->gone.vec.len + session->aborted.vec.len < SESSION_GIVEN_UP_MAX ||
        env->ack < session->given_up_seq ||
        (env->open_cnt > 0 && tqi_load_le64(env->open) <= session->given_up_seq))
        return;
    tqi_intervals_fini(&session->gone);
    tqi_intervals_fini(&session->aborted);
}

void session_on_message(tqi_unit_t *unit, tqi_peer_t peer, const tqi_envelope_t *env,
                        const void *data, size_t len, uint64_t now_ns)
{
    request_t request = {.peer = peer,
                         .session = env->session,
                         .seq = env->seq,
                         .request_id = env->request_id,
                         .epoch = env->epoch,
                         .kind = env->kind};
    const binding_t *binding;
    session_t *session;
    tqi_err_t err = {0};
    tq_status_t rc;

    if (env->kind == TQI_KIND_Closing_R) {
        binding = tqi_map_u64_get(&unit->peers, peer);
        session = binding ? tqi_map_u64_get(&unit->sessions, binding->session) : NULL;
        if (session)
            session->has_heard_closing = true;
        return;
    }
    if (env->kind & TQI_KIND_REPLY) {
        unit->counters.dropped++;
        return;
    }
    if (!is_client_kind(env->kind)) {
        bool is_known = tqi_msg_info(env->kind) != NULL;

        reply_refused(unit, &request, is_known ? TQ_E_DENIED : TQ_E_UNSUPPORTED,
                      is_known ? "only the controller may say that to a storage unit"
                               : "the storage unit does not know this kind of message");
        return;
    }
    rc = link_check(unit, now_ns, &err);
    if (rc != TQ_OK) {
        unit->counters.refused++;
        reply_refused(unit, &request, rc, err.text);
        return;
    }
    if (env->incarnation != unit->store_incarnation &&
        !(env->kind == TQI_KIND_Hello && env->incarnation == 0)) {
        tqi_fail(&err, TQ_E_STALE_STORE,
                 "the message is for store %016" PRIx64 ", the unit belongs to %016" PRIx64,
                 env->incarnation, unit->store_incarnation);
        reply_refused(unit, &request, err.status, err.text);
        return;
    }
    if (tqi_intervals_contains(&unit->ended, env->session)) {
        reply_refused(unit, &request, TQ_E_SESSION_EXPIRED,
                      "the controller has ended this session");
        return;
    }
    if (env->kind == TQI_KIND_Hello) {
        request.seq = 0;
        on_hello(unit, &request, env);
        return;
    }
    binding = tqi_map_u64_get(&unit->peers, peer);
    session = tqi_map_u64_get(&unit->sessions, env->session);
    if (!binding || binding->session != env->session || !session) {
        /* Its HELLO was lost and will be sent again; what came between is asked for by PING. */
        unit->counters.dropped++;
        return;
    }
    tqi_inbox_ack(session->inbox, env->ack, env->open, env->open_cnt, NULL, NULL);
    forget_given_up(session, env);
    if (env->kind == TQI_KIND_Ping) {
        request.seq = 0;
        on_ping(unit, session, &request, env);
        return;
    }
    if (admit(unit, session, &request))
        execute(unit, session, &request, env, data, len, now_ns);
}
