/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: a client process's life with the store. Begun by HELLO, kept by any frame, ended by BYE,
 * by silence, or when its process is known to be dead. Ending one takes back what was provisional:
 * parked fetches leave, grants return, puts that were not published end, and units are told.
 */
#include "role/controller/internal.h"

#include <string.h>

TQI_MACHINE(tqi_ctl_session_machine, "session at the controller", CTL_SESSION, CTL_SESSION_STEPS);

void tqi_ctl_session_step(session_t *session, session_event_t event)
{
    session->state =
        (session_state_t)tqi_machine_step(&tqi_ctl_session_machine, session->state, event);
}

session_t *tqi_ctl_session_find(tqi_controller_t *ctl, uint64_t id)
{
    return tqi_map_u64_get(&ctl->sessions, id);
}

static void copy_str(char *out, size_t size, tqi_str_t str)
{
    size_t len = tqi_size_min(size - 1, str.len);

    if (len > 0)
        memcpy(out, str.data, len);
    out[len] = 0;
}

/* The deadline moves with every frame; the timer looks at it when it fires, not before. */
static void silence_due(tqi_controller_t *ctl, ctl_timer_t *timer)
{
    session_t *session = tqi_container_of(timer, session_t, silence);
    uint64_t deadline = session->heard_ns + ms_to_ns(ctl->silence_ms);

    if (deadline > ctl->now_ns) {
        tqi_ctl_timer_arm(ctl, timer, deadline);
        return;
    }
    ctl->cnt_sessions_lost++;
    tqi_ctl_session_end(ctl, session, CTL_SESSION_EV_SILENT);
}

void tqi_ctl_session_free(tqi_controller_t *ctl, session_t *session)
{
    tqi_node_t *node;

    /* Where the controller itself goes: requests that are parked, in no partition's queue. */
    while ((node = tqi_list_first(&session->requests)))
        tqi_ctl_request_free(ctl, tqi_container_of(node, request_t, in_session));
    if (ctl->watch)
        ctl->watch->remove(ctl->watch, session->id);
    tqi_ctl_timer_disarm(ctl, &session->silence);
    tqi_map_u64_take(&ctl->sessions, session->id);
    if (session->peer != 0)
        tqi_map_u64_take(&ctl->peers, session->peer);
    tqi_inbox_free(session->inbox);
    tqi_map_u64_fini(&session->grants, NULL, NULL);
    tqi_env_free(ctl->env, session, sizeof *session);
}

/* Each unit must be able to note the end of every session, whatever memory there is then. */
static tq_status_t reserve_ends(tqi_controller_t *ctl)
{
    size_t more = tqi_map_u64_count(&ctl->sessions) + 1;

    for (size_t i = 0; i < ctl->units.len; i++)
        if (tqi_vec_reserve(&ctl->units.at[i]->ends, more) != TQ_OK)
            return TQ_E_NO_MEMORY;
    return TQ_OK;
}

static session_t *session_new(tqi_controller_t *ctl)
{
    session_t *session = tqi_env_zalloc(ctl->env, sizeof *session);

    if (!session)
        return NULL;
    session->id = ctl->session_last + 1;
    session->heard_ns = ctl->now_ns;
    session->silence.fire = silence_due;
    tqi_list_init(&session->requests);
    tqi_list_init(&session->puts);
    tqi_map_u64_init(&session->grants, ctl->env);
    session->inbox = tqi_inbox_new(ctl->env);
    if (!session->inbox || reserve_ends(ctl) != TQ_OK ||
        tqi_map_u64_put(&ctl->sessions, session->id, session, NULL) != TQ_OK ||
        tqi_ctl_timer_arm(ctl, &session->silence, ctl->now_ns + ms_to_ns(ctl->silence_ms)) !=
            TQ_OK) {
        tqi_ctl_session_free(ctl, session);
        return NULL;
    }
    ctl->session_last++;
    ctl->cnt_sessions_begun++;
    return session;
}

/* From now on the session's replies go to peer. A connection is of one session while that lives: with
 * more, one could keep any number of them alive. E_NO_MEMORY, E_DENIED. */
static tq_status_t session_bind(tqi_controller_t *ctl, session_t *session, tqi_peer_t peer)
{
    if (session->peer == peer)
        return TQ_OK;
    if (tqi_map_u64_get(&ctl->peers, peer))
        return TQ_E_DENIED;
    if (tqi_map_u64_put(&ctl->peers, peer, session, NULL) != TQ_OK)
        return TQ_E_NO_MEMORY;
    if (session->peer != 0)
        tqi_map_u64_take(&ctl->peers, session->peer);
    session->peer = peer;
    tqi_ctl_session_step(session, CTL_SESSION_EV_BIND);
    return TQ_OK;
}

/* A frame of an older connection: dropped. */
static void session_late(tqi_controller_t *ctl, session_t *session)
{
    if (session->state == CTL_SESSION_CONNECTED)
        tqi_ctl_session_step(session, CTL_SESSION_EV_LATE);
    ctl->cnt_late++;
}

static void on_acked(void *ctx, uint64_t seq)
{
    session_t *session = ctx;

    tqi_ctl_grant_acked(session->ctl, session, seq);
}

bool tqi_ctl_session_heard(tqi_controller_t *ctl, session_t *session, tqi_peer_t peer,
                           const tqi_envelope_t *env)
{
    if (session->peer != peer) {
        if (env->epoch < session->epoch) {
            session_late(ctl, session);
            return false;
        }
        if (session_bind(ctl, session, peer) != TQ_OK) {
            ctl->cnt_stray++;
            return false;
        }
        session->epoch = env->epoch;
    }
    session->heard_ns = ctl->now_ns;
    tqi_inbox_ack(session->inbox, env->ack, env->open, env->open_cnt, on_acked, session);
    return true;
}

/* ---- the unit table -------------------------------------------------------------------------- */

typedef struct unit_table {
    TQI_VEC(uint32_t) ids;
    TQI_VEC(uint8_t) lost;
    tqi_strs_builder_t addresses;
    tqi_strs_builder_t hosts;
} unit_table_t;

static tq_status_t unit_table_make(tqi_controller_t *ctl, unit_table_t *table)
{
    tq_status_t rc = TQ_OK;

    tqi_vec_init(&table->ids, ctl->env);
    tqi_vec_init(&table->lost, ctl->env);
    tqi_strs_builder_init(&table->addresses, ctl->env);
    tqi_strs_builder_init(&table->hosts, ctl->env);
    for (size_t i = 0; i < ctl->units.len && rc == TQ_OK; i++) {
        const unit_t *unit = ctl->units.at[i];

        rc = tqi_vec_push(&table->ids, unit->id);
        if (rc == TQ_OK)
            rc = tqi_vec_push(&table->lost, unit->state == UNIT_LOST);
        if (rc == TQ_OK)
            rc = tqi_strs_builder_add(&table->addresses, unit->addresses, unit->addresses_len);
        if (rc == TQ_OK)
            rc = tqi_strs_builder_add(&table->hosts, unit->host, strlen(unit->host));
    }
    return rc;
}

static void unit_table_fini(unit_table_t *table)
{
    tqi_vec_fini(&table->ids);
    tqi_vec_fini(&table->lost);
    tqi_strs_builder_fini(&table->addresses);
    tqi_strs_builder_fini(&table->hosts);
}

/* ---- HELLO, PING, BYE ------------------------------------------------------------------------ */

/* The session that a HELLO means: the one it names, the one of its connection, or a new one. */
static session_t *hello_session(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                                const tqi_msg_Hello_t *msg, tqi_err_t *err)
{
    session_t *session = env->session != 0 ? tqi_ctl_session_find(ctl, env->session)
                                           : tqi_map_u64_get(&ctl->peers, peer);

    if (session)
        return session;
    if (env->session != 0) {
        tqi_fail(err, TQ_E_SESSION_EXPIRED, "session %llu has ended",
                 (unsigned long long)env->session);
        return NULL;
    }
    if (ctl->is_draining) {
        tqi_fail(err, TQ_E_CLOSING, "the store is shutting down");
        return NULL;
    }
    if (ctl->sessions_max) {
        char why[256] = "";
        size_t max = ctl->sessions_max(ctl->sessions_max_ctx, why, sizeof why);

        if (tqi_map_u64_count(&ctl->sessions) >= max) {
            tqi_fail(err, TQ_E_BUSY, "the store has %zu clients, and takes %zu: %s",
                     tqi_map_u64_count(&ctl->sessions), max, why);
            return NULL;
        }
    }
    session = session_new(ctl);
    if (!session) {
        tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a session");
        return NULL;
    }
    session->ctl = ctl;
    copy_str(session->name, sizeof session->name, msg->name);
    copy_str(session->boot_id, sizeof session->boot_id, msg->boot_id);
    session->pid = msg->pid;
    if (ctl->watch) {
        tqi_process_t process = {.boot_id = msg->boot_id.data,
                                 .boot_id_len = msg->boot_id.len,
                                 .pid_ns = msg->pid_ns,
                                 .pid = msg->pid,
                                 .start_time = msg->start_time};
        (void)ctl->watch->add(ctl->watch, session->id, &process);
    }
    return session;
}

static tq_status_t hello_judge(tqi_controller_t *ctl, const tqi_envelope_t *env,
                               const tqi_msg_Hello_t *msg, tqi_err_t *err)
{
    uint64_t wanted = msg->incarnation_wanted ? msg->incarnation_wanted : env->incarnation;

    if (wanted != 0 && wanted != ctl->incarnation)
        return tqi_fail(err, TQ_E_STALE_STORE,
                        "store %016llx was asked for, %016llx is at this address",
                        (unsigned long long)wanted, (unsigned long long)ctl->incarnation);
    if (msg->version_min > TQI_VERSION_MAX || msg->version_max < TQI_VERSION_MIN)
        return tqi_fail(err, TQ_E_VERSION,
                        "the client speaks versions %u to %u of the protocol, the controller %u to "
                        "%u",
                        msg->version_min, msg->version_max, TQI_VERSION_MIN, TQI_VERSION_MAX);
    return TQ_OK;
}

void tqi_ctl_hello_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env)
{
    tqi_envelope_t to = *env;
    session_t *session = NULL;
    unit_table_t table;
    tqi_msg_Hello_t msg;
    tqi_err_t err;

    if (tqi_msg_decode(env, TQI_KIND_Hello, &msg, &err) != TQ_OK) {
        ctl->cnt_malformed++;
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    if (hello_judge(ctl, env, &msg, &err) == TQ_OK)
        session = hello_session(ctl, peer, env, &msg, &err);
    if (!session) {
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    if (session->peer != peer) {
        if (env->epoch < session->epoch) {
            session_late(ctl, session);
            return;
        }
        tq_status_t rc = session_bind(ctl, session, peer);
        if (rc == TQ_E_DENIED) {
            tqi_fail(&err, rc, "this connection is another session's");
            tqi_ctl_reply_error(ctl, peer, env, &err);
        }
        if (rc != TQ_OK)
            return; /* it asks again */
    }
    session->epoch = env->epoch;
    session->heard_ns = ctl->now_ns;
    to.session = session->id;
    if (unit_table_make(ctl, &table) == TQ_OK) {
        tqi_msg_Hello_R_t reply = {.version = TQI_VERSION_MAX,
                                   .ping_ms = ctl->ping_ms,
                                   .silence_ms = ctl->silence_ms,
                                   .user_conf = {ctl->user_conf.data, (uint32_t)ctl->user_conf.len},
                                   .table_version = ctl->table_version,
                                   .unit_ids = tqi_u32s(table.ids.at, (uint32_t)table.ids.len),
                                   .unit_addresses = tqi_strs_builder_view(&table.addresses),
                                   .unit_hosts = tqi_strs_builder_view(&table.hosts),
                                   .unit_lost = {table.lost.at, (uint32_t)table.lost.len}};

        tqi_ctl_reply_direct(ctl, peer, &to, TQI_KIND_Hello_R, &reply);
    }
    unit_table_fini(&table);
}

void tqi_ctl_ping_handle(tqi_controller_t *ctl, tqi_peer_t peer, session_t *session,
                         const tqi_envelope_t *env)
{
    uint64_t missing[TQI_OPEN_MAX];
    tqi_msg_Ping_R_t reply = {.table_version = ctl->table_version};
    tqi_msg_Ping_t msg;
    unit_table_t table;

    if (tqi_msg_decode(env, TQI_KIND_Ping, &msg, NULL) != TQ_OK) {
        ctl->cnt_malformed++;
        return;
    }
    reply.resend = tqi_u64s(missing, tqi_inbox_missing(session->inbox, env->open, env->open_cnt,
                                                       missing, TQI_OPEN_MAX));
    if (msg.table_version == ctl->table_version) {
        tqi_ctl_reply_direct(ctl, peer, env, TQI_KIND_Ping_R, &reply);
        return;
    }
    if (unit_table_make(ctl, &table) == TQ_OK) {
        reply.unit_ids = tqi_u32s(table.ids.at, (uint32_t)table.ids.len);
        reply.unit_addresses = tqi_strs_builder_view(&table.addresses);
        reply.unit_hosts = tqi_strs_builder_view(&table.hosts);
        reply.unit_lost = (tqi_u8s_t){table.lost.at, (uint32_t)table.lost.len};
        tqi_ctl_reply_direct(ctl, peer, env, TQI_KIND_Ping_R, &reply);
    }
    unit_table_fini(&table);
}

void tqi_ctl_bye_handle(tqi_controller_t *ctl, tqi_peer_t peer, session_t *session,
                        const tqi_envelope_t *env)
{
    tqi_ctl_session_end(ctl, session, CTL_SESSION_EV_BYE);
    tqi_ctl_reply_direct(ctl, peer, env, TQI_KIND_Bye_R, &(tqi_msg_Bye_R_t){0});
}

/* ---- the end --------------------------------------------------------------------------------- */

void tqi_ctl_session_end(tqi_controller_t *ctl, session_t *session, session_event_t event)
{
    tqi_map_u64_item_t *item;
    tqi_node_t *node;
    tqi_err_t err;

    tqi_ctl_session_step(session, event);
    tqi_fail(&err, TQ_E_SESSION_EXPIRED, "session %llu has ended", (unsigned long long)session->id);
    /* Requests that run go on to a point where they can stop, with nobody to answer. */
    while ((node = tqi_list_pop_front(&session->requests))) {
        request_t *req = tqi_container_of(node, request_t, in_session);

        req->session = NULL;
        tqi_ctl_request_leave(ctl, req, &err);
    }
    while ((item = tqi_map_u64_first(&session->grants))) {
        grant_t *grant = item->value;

        tqi_map_u64_take(&session->grants, grant->seq);
        grant->session = NULL;
        tqi_ctl_grant_give_back(ctl, grant);
    }
    while ((node = tqi_list_pop_front(&session->puts))) {
        put_t *put = tqi_container_of(node, put_t, in_session);

        put->session = NULL;
        tqi_ctl_put_end(ctl, put, CTL_PUT_EV_SESSION_OVER);
    }
    for (size_t i = 0; i < ctl->units.len; i++)
        tqi_ctl_unit_session_ended(ctl, ctl->units.at[i], session->id);
    tqi_ctl_session_free(ctl, session);
}
