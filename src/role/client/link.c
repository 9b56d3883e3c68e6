/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One peer. The ctrl port loses messages silently, so everything here is about sending again: a
 * HELLO until it is answered; on a fresh connection every request that is open; in between those
 * that the peer's answer to PING names. The peer executes each once (core/outcome.h). So whatever
 * can't be done for want of memory may be left undone here: the same comes again.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

TQI_MACHINE(tqi_controller_link_machine, "link to the controller", TQI_LINK,
            TQI_CONTROLLER_LINK_STEPS);
TQI_MACHINE(tqi_unit_link_machine, "link to a unit", TQI_LINK, TQI_UNIT_LINK_STEPS);

static void link_step(tqi_link_t *link, tqi_link_event_t event)
{
    const tqi_machine_t *machine =
        link->unit_id == 0 ? &tqi_controller_link_machine : &tqi_unit_link_machine;

    link->state = (tqi_link_state_t)tqi_machine_step(machine, link->state, event);
}

static tqi_req_t *req_of(const tqi_node_t *link_node)
{
    return tqi_container_of(link_node, tqi_req_t, link_node);
}

static uint64_t ms_until(uint64_t deadline_ns, uint64_t now_ns)
{
    return deadline_ns > now_ns ? (deadline_ns - now_ns + TQI_MS - 1) / TQI_MS : 0;
}

/* ---- life -------------------------------------------------------------------------------------- */

tq_status_t tqi_link_new(tqi_client_t *client, uint32_t unit_id, tqi_link_t **out)
{
    tqi_link_t *link = tqi_env_zalloc(client->env, sizeof *link);

    if (!link)
        return TQ_E_NO_MEMORY;
    link->client = client;
    link->unit_id = unit_id;
    link->state = TQI_LINK_IDLE;
    link->backoff_ns = TQI_BACKOFF_MIN_NS;
    link->patience_ns = TQI_SILENCE_NS;
    link->overdue_ns = TQI_NEVER;
    tqi_list_init(&link->backlog);
    tqi_list_init(&link->delayed);
    tqi_list_init(&link->waiters);
    tqi_list_init(&link->moving);
    link->outbox = tqi_outbox_new(client->env);
    if (!link->outbox) {
        tqi_env_free(client->env, link, sizeof *link);
        return TQ_E_NO_MEMORY;
    }
    tqi_list_push_back(&client->links, &link->node);
    *out = link;
    return TQ_OK;
}

static void req_free(tqi_req_t *req)
{
    if (req->op)
        tqi_list_remove(&req->op->reqs, &req->node);
    if (req->is_in_backlog)
        tqi_list_remove(&req->link->backlog, &req->link_node);
    if (req->is_delayed)
        tqi_list_remove(&req->link->delayed, &req->link_node);
    tqi_buf_fini(&req->body);
    tqi_env_free(req->link->client->env, req, sizeof *req);
}

static void each_free(void *ctx, uint64_t seq, void *user)
{
    tqi_link_t *link = ctx;

    req_free(user);
    tqi_outbox_replied(link->outbox, seq);
    tqi_outbox_take(link->outbox, seq);
}

/* Requests are forgotten, answered or not. */
static void drop_requests(tqi_link_t *link)
{
    tqi_node_t *node;

    tqi_outbox_each(link->outbox, each_free, link);
    while ((node = tqi_list_first(&link->backlog)))
        req_free(req_of(node));
    tqi_assert(link->delayed.cnt == 0);
}

static void drop_connection(tqi_link_t *link)
{
    if (link->peer == 0)
        return;
    tqi_map_u64_take(&link->client->peers, link->peer);
    link->client->ctrl->disconnect(link->client->ctrl, link->peer);
    link->peer = 0;
}

void tqi_link_free(tqi_link_t *link)
{
    const tqi_env_t *env;

    if (!link)
        return;
    env = link->client->env;
    tqi_assert(link->moving.cnt == 0 && link->waiters.cnt == 0);
    drop_requests(link);
    drop_connection(link);
    if (link->is_payload_open)
        link->client->payload->close(link->client->payload, link->unit_id);
    tqi_outbox_free(link->outbox);
    tqi_list_remove(&link->client->links, &link->node);
    tqi_env_free(env, link->addresses, link->addresses_size);
    tqi_env_free(env, link, sizeof *link);
}

static void close_way(tqi_link_t *link)
{
    if (link->moving.cnt > 0 || !link->must_reopen)
        return;
    if (link->is_payload_open)
        link->client->payload->close(link->client->payload, link->unit_id);
    link->is_payload_open = false;
    link->must_reopen = false;
    link->mode = TQI_PAYLOAD_NONE;
}

void tqi_link_reset(tqi_link_t *link)
{
    drop_requests(link);
    tqi_assert(link->waiters.cnt == 0); /* every op was stopped before */
    if (link->unit_id != 0) {
        drop_connection(link);
        link_step(link, TQI_LINK_EV_RESET);
        link->must_reopen = link->is_payload_open;
        close_way(link);
    }
    link->ack_due_ns = 0;
    /* seqs are per session. */
    tqi_outbox_clear(link->outbox);
}

/* ---- addresses --------------------------------------------------------------------------------- */

tq_status_t tqi_link_set_addresses(tqi_link_t *link, const char *addresses, size_t len,
                                   uint64_t now_ns)
{
    const tqi_env_t *env = link->client->env;
    char *copy;

    if (link->addresses && strlen(link->addresses) == len &&
        memcmp(link->addresses, addresses, len) == 0)
        return TQ_OK;
    copy = tqi_env_alloc(env, len + 1);
    if (!copy)
        return TQ_E_NO_MEMORY;
    memcpy(copy, addresses, len);
    copy[len] = '\0';
    tqi_env_free(env, link->addresses, link->addresses_size);
    link->addresses = copy;
    link->addresses_size = len + 1;
    link->address_idx = 0;
    link->patience_ns = TQI_SILENCE_NS;
    if (link->state == TQI_LINK_GREETING || link->state == TQI_LINK_UP) {
        link->backoff_ns = TQI_BACKOFF_MIN_NS;
        tqi_link_down(link, TQ_E_PEER_LOST, "its address changed", now_ns);
    } else if (link->state == TQI_LINK_WAITING) {
        link->retry_ns = now_ns;
    }
    return TQ_OK;
}

void tqi_link_forget_addresses(tqi_link_t *link)
{
    tqi_assert(link->state == TQI_LINK_IDLE);
    tqi_env_free(link->client->env, link->addresses, link->addresses_size);
    link->addresses = NULL;
    link->addresses_size = 0;
    link->address_idx = 0;
    link->is_in_table = false;
    link->is_lost = false;
}

/* Alternative idx, or false past the last. */
static bool address_at(const tqi_link_t *link, uint32_t idx, char *out, size_t out_size)
{
    const char *at = link->addresses;

    for (;;) {
        size_t len = strcspn(at, ",");
        if (idx == 0) {
            if (len == 0 || len >= out_size)
                return false;
            memcpy(out, at, len);
            out[len] = '\0';
            return true;
        }
        if (at[len] == '\0')
            return false;
        at += len + 1;
        idx--;
    }
}

static bool is_local_address(const char *address)
{
    return strncmp(address, "ipc://", 6) == 0 || strncmp(address, "inproc://", 9) == 0;
}

/* ---- connecting -------------------------------------------------------------------------------- */

static void set_trouble(tqi_link_t *link, tq_status_t why, const char *text)
{
    link->trouble = why;
    snprintf(link->trouble_text, sizeof link->trouble_text, "%.255s", text ? text : "");
}

static void send_frame(tqi_link_t *link, tqi_envelope_t *env, bool is_ping, const void *body,
                       size_t body_len)
{
    tqi_client_t *client = link->client;
    uint64_t open[TQI_OPEN_MAX];
    uint32_t open_cnt = 0;
    tqi_buf_t frame;

    env->version = TQI_VERSION_MAX;
    env->session = client->session;
    env->incarnation = client->incarnation;
    env->epoch = link->epoch;
    if (env->kind != TQI_KIND_Hello)
        tqi_outbox_acks(link->outbox, is_ping, &env->ack, open, &open_cnt);
    env->open_cnt = (uint16_t)open_cnt;
    tqi_buf_init(&frame, client->env);
    if (tqi_envelope_begin(&frame, env, open) == TQ_OK &&
        tqi_buf_append(&frame, body, body_len) == TQ_OK) {
        tqi_envelope_seal(&frame);
        /* A frame that can't be queued is as good as lost: PING finds out what is missing. */
        if (client->ctrl->send(client->ctrl, link->peer, &frame) == TQ_OK &&
            env->kind != TQI_KIND_Hello)
            link->ack_due_ns = 0;
    }
    tqi_buf_fini(&frame);
}

void tqi_link_say(tqi_link_t *link, uint16_t kind, const void *msg)
{
    tqi_envelope_t env = {.kind = kind, .budget_ms = UINT32_MAX};
    tqi_buf_t buf;

    tqi_buf_init(&buf, link->client->env);
    if (tqi_msg_encode(&buf, &env, NULL, msg, NULL) == TQ_OK)
        send_frame(link, &env, kind == TQI_KIND_Ping, buf.data + TQI_ENVELOPE_BYTES,
                   buf.len - TQI_ENVELOPE_BYTES);
    tqi_buf_fini(&buf);
}

static void send_hello(tqi_link_t *link, uint64_t now_ns)
{
    const tqi_client_conf_t *conf = &link->client->conf;
    tqi_msg_Hello_t msg = {
        .version_min = TQI_VERSION_MIN,
        .version_max = TQI_VERSION_MAX,
        .name = tqi_str(conf->name),
        .boot_id = tqi_str(conf->boot_id),
        .pid_ns = conf->pid_ns,
        .pid = conf->pid,
        .start_time = conf->start_time,
        .incarnation_wanted = conf->incarnation_wanted,
    };

    link->hello_ns = now_ns;
    tqi_link_say(link, TQI_KIND_Hello, &msg);
}

static void dial(tqi_link_t *link, uint64_t now_ns)
{
    tqi_client_t *client = link->client;
    char address[512];
    tqi_err_t err = {0};
    tq_status_t rc = TQ_E_CONFIG;

    snprintf(err.text, sizeof err.text, "it has no address that can be reached from here");
    if (!address_at(link, link->address_idx, address, sizeof address))
        link->address_idx = 0;
    for (; address_at(link, link->address_idx, address, sizeof address); link->address_idx++) {
        if (link->unit_id != 0 && !link->is_near && is_local_address(address))
            continue;
        rc = client->ctrl->connect(client->ctrl, address, &link->peer, &err);
        if (rc == TQ_OK)
            break;
    }
    if (rc == TQ_OK && tqi_map_u64_put(&client->peers, link->peer, link, NULL) != TQ_OK) {
        client->ctrl->disconnect(client->ctrl, link->peer);
        link->peer = 0;
        rc = tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a connection");
    }
    if (rc != TQ_OK) {
        link->peer = 0;
        link->address_idx = 0;
        set_trouble(link, rc, err.text);
        if (link->unit_id == 0 && rc == TQ_E_CONFIG)
            tqi_client_on_refusal(client, link, rc, err.text, now_ns);
        link->retry_ns = now_ns + link->backoff_ns;
        link->backoff_ns = tqi_u64_min(link->backoff_ns * 2, TQI_BACKOFF_MAX_NS);
        link_step(link, TQI_LINK_EV_NO_DIAL);
        return;
    }
    link_step(link, TQI_LINK_EV_DIAL);
    link->epoch = ++client->epoch_last;
    link->asked_ns = 0;
    link->dial_ns = now_ns;
    send_hello(link, now_ns);
}

void tqi_link_want(tqi_link_t *link, uint64_t now_ns)
{
    if (link->state == TQI_LINK_IDLE && link->addresses && !link->must_reopen)
        dial(link, now_ns);
}

void tqi_link_down(tqi_link_t *link, tq_status_t why, const char *text, uint64_t now_ns)
{
    drop_connection(link);
    if (link->state == TQI_LINK_IDLE)
        return;
    if (why != TQ_OK)
        set_trouble(link, why, text);
    if (link->state == TQI_LINK_WAITING)
        return;
    /* The next alternative, if this one never answered. */
    if (link->state == TQI_LINK_GREETING)
        link->address_idx++;
    link_step(link, TQI_LINK_EV_DOWN);
    link->retry_ns = now_ns + link->backoff_ns;
    link->backoff_ns = tqi_u64_min(link->backoff_ns * 2, TQI_BACKOFF_MAX_NS);
}

/* ---- requests ---------------------------------------------------------------------------------- */

static void req_send(tqi_req_t *req, uint64_t now_ns)
{
    tqi_link_t *link = req->link;
    const tqi_buf_t *body = tqi_outbox_frame(link->outbox, req->seq);
    uint64_t budget_ms = ms_until(req->deadline_ns, now_ns);
    tqi_envelope_t env = {
        .kind = req->kind,
        .attempt = req->attempt,
        .seq = req->seq,
        .budget_ms = req->deadline_ns == TQI_NEVER
                         ? UINT32_MAX
                         : (uint32_t)tqi_u64_min(budget_ms, UINT32_MAX - 1),
        .request_id = req->request_id,
    };

    tqi_assert(body);
    if (link->state != TQI_LINK_UP || req->is_delayed)
        return;
    if (req->attempt < UINT16_MAX)
        req->attempt++;
    send_frame(link, &env, false, body->data, body->len);
}

/* Requests from the backlog get a seq each, while the window has room. */
static void pump(tqi_link_t *link, uint64_t now_ns)
{
    tqi_node_t *node;

    while ((node = tqi_list_first(&link->backlog))) {
        tqi_req_t *req = req_of(node);
        uint64_t seq = tqi_outbox_open(link->outbox, req);
        if (seq == 0)
            return;
        tqi_list_remove(&link->backlog, node);
        req->is_in_backlog = false;
        req->seq = seq;
        tqi_outbox_keep(link->outbox, seq, &req->body);
        req_send(req, now_ns);
    }
}

tqi_req_t *tqi_req_new(tqi_link_t *link, uint16_t kind, const void *msg, tqi_err_t *err)
{
    const tqi_env_t *env = link->client->env;
    tqi_envelope_t blank = {.kind = kind};
    tqi_req_t *req = tqi_env_zalloc(env, sizeof *req);

    if (!req) {
        tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a request");
        return NULL;
    }
    req->link = link;
    req->kind = kind;
    req->deadline_ns = TQI_NEVER;
    req->is_detached = true;
    tqi_buf_init(&req->body, env);
    if (tqi_msg_encode(&req->body, &blank, NULL, msg, err) != TQ_OK) {
        tqi_req_drop(req, env);
        return NULL;
    }
    memmove(req->body.data, req->body.data + TQI_ENVELOPE_BYTES,
            req->body.len - TQI_ENVELOPE_BYTES);
    req->body.len -= TQI_ENVELOPE_BYTES;
    return req;
}

void tqi_req_drop(tqi_req_t *req, const tqi_env_t *env)
{
    if (!req)
        return;
    tqi_buf_fini(&req->body);
    tqi_env_free(env, req, sizeof *req);
}

void tqi_req_submit(tqi_req_t *req, uint64_t now_ns)
{
    tqi_link_t *link = req->link;

    req->since_ns = now_ns;
    if (link->unit_id != 0 && tqi_link_open_cnt(link) == 0)
        link->ping_ns = tqi_u64_max(link->ping_ns, now_ns + TQI_PING_NS);
    req->is_in_backlog = true;
    tqi_list_push_back(&link->backlog, &req->link_node);
    tqi_link_want(link, now_ns);
    pump(link, now_ns);
}

tq_status_t tqi_link_request(tqi_link_t *link, tqi_op_t *op, tqi_slot_t *slot, uint16_t kind,
                             const void *msg, uint64_t deadline_ns, uint64_t now_ns,
                             tqi_req_t **out, tqi_err_t *err)
{
    tqi_err_t why = {0};
    tqi_req_t *req = tqi_req_new(link, kind, msg, &why);

    if (!req) {
        if (err)
            *err = why;
        return why.status;
    }
    req->slot = slot;
    req->deadline_ns = deadline_ns;
    req->request_id = op ? op->id : 0;
    req->is_detached = !op;
    if (op) {
        req->op = op;
        tqi_list_push_back(&op->reqs, &req->node);
        tqi_link_watch(link, now_ns);
    }
    tqi_req_submit(req, now_ns);
    if (out)
        *out = req;
    return TQ_OK;
}

void tqi_req_detach(tqi_req_t *req)
{
    if (req->op)
        tqi_list_remove(&req->op->reqs, &req->node);
    req->op = NULL;
    req->slot = NULL;
    req->is_detached = true;
}

void tqi_req_orphan(tqi_req_t *req)
{
    if (req->op)
        tqi_list_remove(&req->op->reqs, &req->node);
    req->op = NULL;
    req->slot = NULL;
    /* ABORT follows a PREPARE of a put that is given up, whether that was received or not. Sent
     * again it might meet another life of the unit, and replace what others have put since. */
    if (req->attempt > 0 && req->kind != TQI_KIND_PreparePut)
        return;
    if (req->seq != 0) {
        tqi_outbox_replied(req->link->outbox, req->seq);
        tqi_outbox_take(req->link->outbox, req->seq);
    }
    req_free(req);
}

void tqi_link_take(tqi_link_t *link, uint64_t seq, uint64_t now_ns)
{
    tqi_outbox_take(link->outbox, seq);
    if (link->ack_due_ns == 0)
        link->ack_due_ns = now_ns + TQI_ACK_NS;
    pump(link, now_ns);
}

uint32_t tqi_link_open_cnt(const tqi_link_t *link)
{
    return tqi_outbox_cnt(link->outbox) + (uint32_t)link->backlog.cnt;
}

/* ---- replies ----------------------------------------------------------------------------------- */

static void on_error(const tqi_envelope_t *env, tqi_reply_t *reply)
{
    tqi_msg_Error_t error;

    reply->status = (tq_status_t)env->status;
    if (tqi_msg_decode(env, TQI_KIND_Error, &error, NULL) == TQ_OK && error.text.len > 0)
        tqi_fail(&reply->err, reply->status, "%.*s", (int)error.text.len,
                 (const char *)error.text.data);
    else
        tqi_fail(&reply->err, reply->status, "%s", tq_status_text(reply->status));
}

/* Somebody has to do it: what it undoes would stay for as long as the session lives. */
static bool is_undoing(const tqi_req_t *req)
{
    return req->is_detached || req->kind == TQI_KIND_Cancel ||
           (req->op && req->op->state == TQI_OP_ENDING);
}

static uint64_t retry_wait_ns(const tqi_req_t *req)
{
    return TQI_BACKOFF_MIN_NS << tqi_u64_min(req->attempt, 5);
}

/* Nothing was executed, and it may be later: the peer has too much to do, or no memory to undo
 * something; or a unit serves nobody until it hears the controller again, which does not call it
 * lost (yet). What undoes something waits for that, however long: a unit that comes back has all that
 * it had. */
static bool is_passing(const tqi_req_t *req, tq_status_t status, uint64_t now_ns)
{
    const tqi_link_t *link = req->link;

    if (!req->op && !req->is_detached)
        return false;
    /* The cancel named the seq that this was refused under: another one would wait in vain. */
    if (req->kind == TQI_KIND_Fetch && req->op->is_cancelling)
        return false;
    if (req->deadline_ns != TQI_NEVER && now_ns + retry_wait_ns(req) >= req->deadline_ns)
        return false;
    if (status == TQ_E_UNIT_LOST && link->unit_id != 0)
        return is_undoing(req) ||
               (!link->is_lost &&
                now_ns < req->since_ns + link->client->conf.connect_timeout_ms * TQI_MS);
    return status == TQ_E_BUSY || (status == TQ_E_NO_MEMORY && is_undoing(req));
}

/* The same again under a new seq, a little later; without memory for a seq, once there is. */
static void retry_later(tqi_req_t *req, uint64_t now_ns)
{
    tqi_link_t *link = req->link;

    tqi_outbox_withdraw(link->outbox, req->seq, &req->body);
    req->seq = tqi_outbox_open(link->outbox, req);
    if (req->seq == 0) {
        req->is_in_backlog = true;
        tqi_list_push_back(&link->backlog, &req->link_node);
        return;
    }
    tqi_outbox_keep(link->outbox, req->seq, &req->body);
    req->send_at_ns = now_ns + retry_wait_ns(req);
    req->is_delayed = true;
    tqi_list_push_back(&link->delayed, &req->link_node);
}

/* The seq has its answer; req is gone, what it was is in reply. */
static void answered(tqi_link_t *link, tqi_req_t *req, tqi_reply_t *reply, bool must_stay_open,
                     uint64_t now_ns)
{
    tqi_op_t *op = req->op;
    tqi_slot_t *slot = req->slot;

    reply->kind = req->kind;
    if (reply->status == TQ_OK && reply->env->kind != (req->kind | TQI_KIND_REPLY))
        reply->status = tqi_fail(&reply->err, TQ_E_MALFORMED, "kind %u was answered with kind %u",
                                 req->kind, reply->env->kind);
    if (req->releases_seq)
        tqi_outbox_take(link->outbox, req->releases_seq);
    req_free(req);
    if (op && op->state == TQI_OP_RUNNING)
        op->cls->on_reply(op, slot, reply, now_ns);
    /* A grant is acknowledged when its caller took it; anything else has arrived with this. */
    if (op && link->unit_id == 0 && op->grant_seq != 0 && op->grant_seq == reply->seq)
        must_stay_open = true;
    if (!must_stay_open)
        tqi_outbox_take(link->outbox, reply->seq);
    if (op && op->state == TQI_OP_ENDING)
        tqi_op_settle(op, now_ns);
    pump(link, now_ns);
}

static void on_reply(tqi_link_t *link, const tqi_envelope_t *env, uint64_t now_ns)
{
    tqi_client_t *client = link->client;
    const tqi_buf_t *kept = tqi_outbox_frame(link->outbox, env->seq);
    tqi_reply_t reply = {.env = env, .link = link, .seq = env->seq, .status = TQ_OK};
    bool must_stay_open = false;
    tqi_req_t *req;

    if (env->session != client->session || !kept) {
        client->dropped_cnt++;
        return;
    }
    if (env->status != TQ_OK) {
        on_error(env, &reply);
        if (tqi_client_on_refusal(client, link, reply.status, reply.err.text, now_ns))
            return;
    }
    req = tqi_outbox_user(link->outbox, env->seq);
    if (!req->op && !tqi_orphan_answered(link, req->kind, kept, env, now_ns, &must_stay_open)) {
        client->dropped_cnt++; /* it is as if the answer had been lost */
        return;
    }
    if (req->op && req->kind == TQI_KIND_Fetch && !tqi_fetch_can_take(req->op, env)) {
        client->dropped_cnt++; /* the same */
        return;
    }
    if (req->is_delayed) {
        tqi_list_remove(&link->delayed, &req->link_node);
        req->is_delayed = false;
    }
    if (is_passing(req, reply.status, now_ns)) {
        retry_later(req, now_ns);
        return;
    }
    tqi_outbox_replied(link->outbox, env->seq);
    answered(link, req, &reply, must_stay_open, now_ns);
}

/* ---- HELLO and PING ---------------------------------------------------------------------------- */

static void send_each(void *ctx, uint64_t seq, void *user)
{
    (void)seq;
    req_send(user, *(uint64_t *)ctx);
}

/* False if this process lacks something just now: HELLO is said again. */
static bool open_way(tqi_link_t *link, const tqi_msg_Hello_R_t *msg)
{
    tqi_client_t *client = link->client;
    char address[1025];
    uint8_t token[sizeof link->way_token] = {0};
    tqi_err_t err = {0};

    if (msg->payload_token.len > 0)
        memcpy(token, msg->payload_token.data, tqi_size_min(sizeof token, msg->payload_token.len));
    if (link->is_payload_open) {
        /* Another life of the unit: nothing of its former one is there any more. */
        link->must_reopen |= link->way_arena != msg->direct_arena ||
                             memcmp(link->way_token, token, sizeof token) != 0;
        close_way(link);
    }
    if (link->is_payload_open)
        return true;
    link->way_arena = msg->direct_arena;
    memcpy(link->way_token, token, sizeof token);
    if (!client->payload) {
        snprintf(link->mode_text, sizeof link->mode_text, "this client has no payload port");
        return true;
    }
    snprintf(address, sizeof address, "%.*s", (int)msg->payload_address.len,
             (const char *)msg->payload_address.data);
    link->mode =
        client->payload->open(client->payload, link->unit_id, address, msg->payload_token.data,
                              msg->payload_token.len, client->session, msg->direct_arena, &err);
    link->is_payload_open = link->mode != TQI_PAYLOAD_NONE;
    if (!link->is_payload_open)
        snprintf(link->mode_text, sizeof link->mode_text, "%.255s", err.text);
    return link->is_payload_open || tq_status_class(err.status) != TQ_CLASS_LOCAL;
}

/* Often enough that one RENEW may be lost before 2/3 of a lease have passed. */
static uint64_t renew_after(const tqi_link_t *link, uint64_t now_ns)
{
    uint64_t part_ns = link->lease_ms * TQI_MS / 4;

    return now_ns + (part_ns > 0 && part_ns < TQI_RENEW_NS ? part_ns : TQI_RENEW_NS);
}

void tqi_link_lease(tqi_link_t *link, uint32_t lease_ms, uint64_t now_ns)
{
    link->lease_ms = lease_ms;
    link->renew_ns = tqi_u64_min(link->renew_ns, renew_after(link, now_ns));
}

typedef struct leased {
    uint64_t ids[1024];
    uint32_t cnt;
} leased_t;

static void leased_add(leased_t *leased, const tqi_slot_t *slot)
{
    if (leased->cnt < tqi_array_len(leased->ids))
        leased->ids[leased->cnt++] = slot->transfer;
}

/* The unit answers a COMMIT when it has moved the last byte, which may be long after we have. */
static void each_leased(void *ctx, uint64_t seq, void *user)
{
    const tqi_req_t *req = user;

    (void)seq;
    if (req->kind == TQI_KIND_Commit && req->slot && !tqi_node_is_linked(&req->slot->link_node))
        leased_add(ctx, req->slot);
}

/* Perhaps: a COMMIT may be among the requests. */
static bool has_leases(const tqi_link_t *link)
{
    return link->moving.cnt > 0 || (link->unit_id != 0 && tqi_outbox_cnt(link->outbox) > 0);
}

static void renew(tqi_link_t *link, uint64_t now_ns)
{
    leased_t leased = {.cnt = 0};
    tqi_msg_Renew_t msg;

    tqi_list_each(&link->moving, node)
    {
        leased_add(&leased, tqi_container_of(node, tqi_slot_t, link_node));
    }
    tqi_outbox_each(link->outbox, each_leased, &leased);
    link->renew_ns = renew_after(link, now_ns);
    if (leased.cnt == 0)
        return;
    msg.transfers = tqi_u64s(leased.ids, leased.cnt);
    tqi_link_say(link, TQI_KIND_Renew, &msg);
    if (link->renew_asked_ns == 0)
        link->renew_asked_ns = now_ns;
}

static void stop_writing(tqi_slot_t *slot, const char *why, uint64_t now_ns)
{
    tqi_err_t err;

    tqi_fail(&err, TQ_E_TIMEOUT,
             "writing to storage unit %" PRIu32 " was stopped: %s (its leases are %" PRIu64
             " ms long)",
             slot->link->unit_id, why, (uint64_t)slot->link->lease_ms);
    tqi_op_fail(slot->op, &err, now_ns);
}

/* When nothing says any more that the unit still keeps the memory that is written to: 2/3 of the lease
 * after the last word that did. The rest of it is for what is under way. */
static uint64_t stop_overdue_writes(tqi_link_t *link, uint64_t now_ns)
{
    uint64_t next = TQI_NEVER;

    if (link->lease_ms == 0)
        return next;
    tqi_list_each(&link->moving, node)
    {
        tqi_slot_t *slot = tqi_container_of(node, tqi_slot_t, link_node);
        uint64_t due_ns =
            tqi_u64_max(slot->since_ns, link->leased_ns) + link->lease_ms * TQI_MS / 3 * 2;

        if (!slot->is_write || slot->op->state != TQI_OP_RUNNING)
            continue;
        if (now_ns >= due_ns)
            stop_writing(slot, "it has not renewed the lease", now_ns);
        else
            next = tqi_u64_min(next, due_ns);
    }
    return next;
}

static void on_renewed(tqi_link_t *link, const tqi_envelope_t *env, uint64_t now_ns)
{
    tqi_client_t *client = link->client;
    tqi_msg_Renew_R_t msg;

    if (env->status != TQ_OK || env->session != client->session ||
        tqi_msg_decode(env, TQI_KIND_Renew_R, &msg, NULL) != TQ_OK) {
        client->dropped_cnt++;
        return;
    }
    link->leased_ns = tqi_u64_max(link->leased_ns, link->renew_asked_ns);
    link->renew_asked_ns = 0;
    for (uint32_t i = 0; i < msg.gone.cnt; i++) {
        tqi_slot_t *slot = tqi_map_u64_get(&client->transfers, tqi_u64s_at(msg.gone, i));

        /* What the unit sends it may have sent whole by now. */
        if (slot && slot->link == link && slot->is_write && slot->op->state == TQI_OP_RUNNING)
            stop_writing(slot, "the lease has run out", now_ns);
    }
}

static void on_hello(tqi_link_t *link, const tqi_envelope_t *env, uint64_t now_ns)
{
    tqi_client_t *client = link->client;
    tqi_reply_t reply = {0};
    char text[80];
    tqi_msg_Hello_R_t msg;
    tqi_err_t err;

    if (link->state != TQI_LINK_GREETING) {
        client->dropped_cnt++;
        return;
    }
    if (env->status != TQ_OK) {
        on_error(env, &reply);
        if (!tqi_client_on_refusal(client, link, reply.status, reply.err.text, now_ns))
            tqi_link_down(link, reply.status, reply.err.text, now_ns);
        return;
    }
    if (tqi_msg_decode(env, TQI_KIND_Hello_R, &msg, &err) != TQ_OK) {
        tqi_link_down(link, TQ_E_MALFORMED, err.text, now_ns);
        return;
    }
    if (link->unit_id != 0 && env->session != client->session) {
        client->dropped_cnt++;
        return;
    }
    if (env->session == 0 || env->incarnation == 0) {
        tqi_link_down(link, TQ_E_MALFORMED, "its answer to HELLO names no session or no store",
                      now_ns);
        return;
    }
    if (env->sender != link->unit_id) {
        /* The table is behind. Its rows are not there, and what is put there nobody would find. */
        snprintf(text, sizeof text, "unit %" PRIu32 " answers at the address of unit %" PRIu32,
                 env->sender, link->unit_id);
        tqi_link_down(link, TQ_E_PEER_LOST, text, now_ns);
        tqi_link_ping(client->controller, now_ns);
        return;
    }
    if (link->unit_id != 0 && !open_way(link, &msg)) {
        tqi_link_down(link, TQ_E_NO_MEMORY, link->mode_text, now_ns);
        return;
    }
    link_step(link, TQI_LINK_EV_WELCOME);
    link->heard_ns = now_ns;
    link->backoff_ns = TQI_BACKOFF_MIN_NS;
    link->patience_ns = TQI_SILENCE_NS;
    link->trouble = TQ_OK;
    link->trouble_text[0] = '\0';
    link->renew_ns = renew_after(link, now_ns);
    link->renew_asked_ns = 0;
    if (link->unit_id == 0) {
        link->ping_ns = now_ns + (msg.ping_ms ? msg.ping_ms * TQI_MS : TQI_PING_NS);
        tqi_client_on_hello(client, env, &msg, now_ns);
    } else {
        link->ping_ns = now_ns + TQI_PING_NS;
    }
    tqi_outbox_each(link->outbox, send_each, &now_ns);
    pump(link, now_ns);
    while (link->waiters.cnt > 0 && !link->must_reopen) {
        tqi_slot_t *slot =
            tqi_container_of(tqi_list_pop_front(&link->waiters), tqi_slot_t, wait_node);
        tqi_slot_step(slot, TQI_SLOT_EV_LINKED);
        tqi_assert(slot->op->state == TQI_OP_RUNNING);
        slot->op->cls->on_link(slot->op, slot, now_ns);
    }
}

static void on_ping(tqi_link_t *link, const tqi_envelope_t *env, uint64_t now_ns)
{
    tqi_client_t *client = link->client;
    tqi_msg_Ping_R_t msg;

    if (env->status != TQ_OK) {
        tqi_reply_t reply = {0};
        on_error(env, &reply);
        tqi_client_on_refusal(client, link, reply.status, reply.err.text, now_ns);
        return;
    }
    if (env->session != client->session ||
        tqi_msg_decode(env, TQI_KIND_Ping_R, &msg, NULL) != TQ_OK) {
        client->dropped_cnt++;
        return;
    }
    for (uint32_t i = 0; i < msg.resend.cnt; i++) {
        uint64_t seq = tqi_u64s_at(msg.resend, i);
        tqi_req_t *req = tqi_outbox_user(link->outbox, seq);
        if (req)
            req_send(req, now_ns);
    }
    if (link->unit_id == 0 && msg.unit_ids.cnt > 0)
        tqi_client_on_table(client, msg.table_version, msg.unit_ids, msg.unit_addresses,
                            msg.unit_hosts, msg.unit_lost, now_ns);
}

void tqi_link_on_message(tqi_link_t *link, const tqi_envelope_t *env, uint64_t now_ns)
{
    /* A peer that answers but refuses HELLO is no better than one that is silent. */
    if (link->state == TQI_LINK_UP)
        link->heard_ns = now_ns;
    link->asked_ns = 0;
    if (env->kind == TQI_KIND_Hello_R)
        on_hello(link, env, now_ns);
    else if (env->kind == TQI_KIND_Ping_R)
        on_ping(link, env, now_ns);
    else if (env->kind == TQI_KIND_Renew_R)
        on_renewed(link, env, now_ns);
    else if (env->kind == TQI_KIND_Bye_R)
        tqi_client_on_bye(link->client);
    else if (link->state == TQI_LINK_UP)
        on_reply(link, env, now_ns);
    else
        link->client->dropped_cnt++;
}

void tqi_link_ping(tqi_link_t *link, uint64_t now_ns)
{
    tqi_msg_Ping_t msg = {.table_version = link->unit_id == 0 ? link->client->table_version : 0};

    if (link->state != TQI_LINK_UP)
        return;
    tqi_link_say(link, TQI_KIND_Ping, &msg);
    if (link->asked_ns == 0)
        link->asked_ns = now_ns;
    link->ping_ns = now_ns + (link->unit_id == 0 ? link->client->ping_ms * TQI_MS : TQI_PING_NS);
}

static void detach_ended(void *ctx, uint64_t seq, void *user)
{
    tqi_req_t *req = user;

    (void)ctx, (void)seq;
    if (req->op && req->op->state == TQI_OP_ENDING)
        tqi_req_detach(req);
}

void tqi_link_on_closing(tqi_link_t *link, uint64_t now_ns)
{
    link->is_lost = true;
    tqi_link_down(link, TQ_E_CLOSING, "it is shutting down", now_ns);
    /* What ops want undone there goes with it; the client's step ends them. */
    tqi_outbox_each(link->outbox, detach_ended, NULL);
    tqi_list_each(&link->backlog, node)
    {
        detach_ended(NULL, 0, req_of(node));
    }
}

/* ---- time -------------------------------------------------------------------------------------- */

tq_status_t tqi_link_trouble(const tqi_link_t *link, uint64_t waited_ms, tqi_err_t *err)
{
    const char *why = link->trouble_text[0] ? link->trouble_text : "it does not answer";

    if (tq_status_class(link->trouble) == TQ_CLASS_LOCAL || link->trouble == TQ_E_BUSY)
        return tqi_fail(err, link->trouble, "no connection to %s (tried for %" PRIu64 " ms): %s",
                        link->unit_id == 0 ? link->client->conf.address
                        : link->addresses  ? link->addresses
                                           : "an unknown address",
                        waited_ms, why);
    if (link->unit_id == 0)
        return tqi_fail(err, TQ_E_UNREACHABLE,
                        "no store answers at %s (tried for %" PRIu64 " ms: %s); is its process "
                        "still running? Start it, or set address or TQ_ADDRESS to a store that is",
                        link->client->conf.address, waited_ms, why);
    if (link->is_lost && link->trouble == TQ_E_CLOSING)
        return tqi_fail(err, TQ_E_CLOSING,
                        "storage unit %u at %s has shut down; its rows are gone with it",
                        link->unit_id, link->addresses ? link->addresses : "an unknown address");
    if (link->is_lost)
        return tqi_fail(err, TQ_E_UNIT_LOST,
                        "storage unit %u is lost: the controller has not heard it for too long. "
                        "Restart it, or clear its rows and put them again",
                        link->unit_id);
    return tqi_fail(err, TQ_E_UNREACHABLE,
                    "storage unit %u at %s does not answer (tried for %" PRIu64 " ms: %s)",
                    link->unit_id, link->addresses ? link->addresses : "an unknown address",
                    waited_ms, why);
}

/* ops that have waited too long for a peer that says nothing */
typedef struct overdue {
    tqi_link_t *link;
    uint64_t now_ns;
    uint64_t next_ns;
    tqi_op_t *op;
    uint64_t since_ns;
} overdue_t;

static void overdue_look(overdue_t *o, tqi_op_t *op, uint64_t since_ns)
{
    uint64_t due;

    if (!op || op->state != TQI_OP_RUNNING)
        return;
    since_ns = tqi_u64_max(since_ns, o->link->heard_ns);
    due = since_ns + o->link->client->conf.connect_timeout_ms * TQI_MS;
    if (due <= o->now_ns || (o->link->is_lost && o->link->state != TQI_LINK_UP)) {
        o->op = op;
        o->since_ns = since_ns;
    } else {
        o->next_ns = tqi_u64_min(o->next_ns, due);
    }
}

static void overdue_req(void *ctx, uint64_t seq, void *user)
{
    tqi_req_t *req = user;

    (void)seq;
    overdue_look(ctx, req->op, req->since_ns);
}

void tqi_link_watch(tqi_link_t *link, uint64_t now_ns)
{
    uint64_t due_ns = now_ns + link->client->conf.connect_timeout_ms * TQI_MS;

    link->overdue_ns = tqi_u64_min(link->overdue_ns, due_ns);
}

static uint64_t fail_overdue(tqi_link_t *link, uint64_t now_ns)
{
    if (now_ns < link->overdue_ns && !link->is_lost)
        return link->overdue_ns;
    for (;;) {
        overdue_t o = {.link = link, .now_ns = now_ns, .next_ns = TQI_NEVER};
        tqi_err_t err;
        tqi_outbox_each(link->outbox, overdue_req, &o);
        tqi_list_each(&link->backlog, node)
        {
            overdue_look(&o, req_of(node)->op, req_of(node)->since_ns);
        }
        tqi_list_each(&link->waiters, node)
        {
            tqi_slot_t *slot = tqi_container_of(node, tqi_slot_t, wait_node);
            overdue_look(&o, slot->op, slot->since_ns);
        }
        tqi_list_each(&link->moving, node)
        {
            tqi_slot_t *slot = tqi_container_of(node, tqi_slot_t, link_node);
            overdue_look(&o, slot->op, slot->since_ns);
        }
        if (!o.op) {
            link->overdue_ns = o.next_ns;
            return o.next_ns;
        }
        tqi_link_trouble(link, (now_ns - o.since_ns) / TQI_MS, &err);
        tqi_op_stop(o.op, TQI_OP_EV_UNREACHABLE, &err, now_ns);
    }
}

static uint64_t send_delayed(tqi_link_t *link, uint64_t now_ns)
{
    uint64_t next = TQI_NEVER;

    tqi_list_each(&link->delayed, node)
    {
        tqi_req_t *req = req_of(node);
        if (req->send_at_ns > now_ns) {
            next = tqi_u64_min(next, req->send_at_ns);
            continue;
        }
        tqi_list_remove(&link->delayed, node);
        req->is_delayed = false;
        req_send(req, now_ns);
    }
    return next;
}

/* Tries the next alternative; after the last one, all of them with more patience. */
static void give_up_greeting(tqi_link_t *link, uint64_t now_ns)
{
    char next[512];

    if (!address_at(link, link->address_idx + 1, next, sizeof next))
        link->patience_ns = tqi_u64_min(link->patience_ns * 2, TQI_PATIENCE_MAX_NS);
    tqi_link_down(link, TQ_E_UNREACHABLE, "HELLO was not answered", now_ns);
}

static bool is_wanted(const tqi_link_t *link)
{
    return link->unit_id == 0 || tqi_link_open_cnt(link) + link->waiters.cnt + link->moving.cnt > 0;
}

uint64_t tqi_link_step(tqi_link_t *link, uint64_t now_ns)
{
    uint64_t next = TQI_NEVER;

    pump(link, now_ns);
    if (link->must_reopen && link->moving.cnt == 0) {
        /* HELLO opens another way; a request that meets none would be refused. */
        close_way(link);
        tqi_link_down(link, TQ_E_PEER_LOST, link->mode_text, now_ns);
    }
    if (link->state == TQI_LINK_IDLE && is_wanted(link))
        tqi_link_want(link, now_ns);
    if (link->state == TQI_LINK_WAITING) {
        if (!is_wanted(link))
            link_step(link, TQI_LINK_EV_REST);
        else if (now_ns >= link->retry_ns)
            dial(link, now_ns);
    }
    if (link->state == TQI_LINK_GREETING) {
        if (now_ns >= link->dial_ns + link->patience_ns)
            give_up_greeting(link, now_ns);
        else if (now_ns >= link->hello_ns + TQI_HELLO_NS)
            send_hello(link, now_ns);
    }
    if (link->state == TQI_LINK_UP) {
        if (link->asked_ns != 0 && now_ns >= link->asked_ns + TQI_SILENCE_NS)
            tqi_link_down(link, TQ_E_PEER_LOST, "it does not answer PING", now_ns);
        else if (is_wanted(link) && link->ping_ns <= now_ns)
            tqi_link_ping(link, now_ns);
        else if (link->ack_due_ns != 0 && link->ack_due_ns <= now_ns)
            tqi_link_ping(link, now_ns);
        if (has_leases(link) && link->renew_ns <= now_ns)
            renew(link, now_ns);
    }
    switch (link->state) {
    case TQI_LINK_IDLE:
        break;
    case TQI_LINK_WAITING:
        next = link->retry_ns;
        break;
    case TQI_LINK_GREETING:
        next = tqi_u64_min(link->dial_ns + link->patience_ns, link->hello_ns + TQI_HELLO_NS);
        break;
    default: /* UP */
        next = is_wanted(link) ? link->ping_ns : TQI_NEVER;
        if (link->ack_due_ns != 0)
            next = tqi_u64_min(next, link->ack_due_ns);
        if (link->asked_ns != 0)
            next = tqi_u64_min(next, link->asked_ns + TQI_SILENCE_NS);
        if (has_leases(link))
            next = tqi_u64_min(next, link->renew_ns);
        break;
    }
    /* Out of memory for a seq, if the window has room: soon again. */
    if (link->backlog.cnt > 0 && tqi_outbox_cnt(link->outbox) < TQ_OUTSTANDING_MAX)
        next = tqi_u64_min(next, now_ns + TQI_BACKOFF_MIN_NS);
    next = tqi_u64_min(next, stop_overdue_writes(link, now_ns));
    next = tqi_u64_min(next, send_delayed(link, now_ns));
    return tqi_u64_min(next, fail_overdue(link, now_ns));
}
