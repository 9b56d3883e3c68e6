/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's life: one session after another with the store at one address. The controller alone
 * begins and ends sessions; what it says is told to links and ops here.
 *
 * Ops go from list to list as their state changes; a done op is handed to the host at the end of
 * the step, so that nothing here is ever called from within itself.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLOSE_NS (2000 * TQI_MS)
#define BYE_NS (500 * TQI_MS)
#define UNITS_MAX 65536u /* as many as a table can name */
/* A loop that ran so late was stopped or starved, not its peers. */
#define PAUSE_NS (500 * TQI_MS)

static tqi_op_t *op_of(const tqi_node_t *node)
{
    return tqi_container_of(node, tqi_op_t, node);
}

static tqi_client_t *client_of(tqi_role_t *role)
{
    return tqi_container_of(role, tqi_client_t, role);
}

static tqi_link_t *link_of(const tqi_node_t *node)
{
    return tqi_container_of(node, tqi_link_t, node);
}

/* ---- making ------------------------------------------------------------------------------------ */

TQI_MACHINE(tqi_client_machine, "client in its store", TQI_JOIN, TQI_JOIN_STEPS);
TQI_MACHINE(tqi_close_machine, "close", TQI_CLOSE, TQI_CLOSE_STEPS);

static void client_step(tqi_client_t *client, tqi_join_event_t event)
{
    client->state = (tqi_join_state_t)tqi_machine_step(&tqi_client_machine, client->state, event);
}

static void close_step(tqi_client_t *client, tqi_close_event_t event)
{
    client->closing =
        (tqi_close_state_t)tqi_machine_step(&tqi_close_machine, client->closing, event);
}

static const char *keep(tqi_client_t *client, size_t *at, const char *text)
{
    char *to = client->strings + *at;
    size_t size = text ? strlen(text) + 1 : 1;

    memcpy(to, text ? text : "", size);
    *at += size;
    return to;
}

static void or_default(uint32_t *value, uint32_t otherwise)
{
    if (*value == 0)
        *value = otherwise;
}

static void on_message(tqi_role_t *role, tqi_peer_t peer, const void *data, size_t len,
                       uint64_t now_ns);
static void on_peer_down(tqi_role_t *role, tqi_peer_t peer, uint64_t now_ns);
static void on_payload(tqi_role_t *role, tqi_transfer_key_t key, tq_status_t status,
                       const char *text, uint64_t now_ns);
static uint64_t step(tqi_role_t *role, uint64_t now_ns);

tq_status_t tqi_client_new(const tqi_env_t *env, const tqi_client_conf_t *conf, tqi_ctrl_t *ctrl,
                           tqi_payload_client_t *payload, uint64_t now_ns, tqi_client_t **out,
                           tqi_err_t *err)
{
    tqi_client_t *client;
    size_t at = 0;

    if (!conf->address || conf->address[0] == '\0')
        return tqi_fail(err, TQ_E_CONFIG, "no address of a store was given");
    client = tqi_env_zalloc(env, sizeof *client);
    if (!client)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a client");
    client->role = (tqi_role_t){on_message, on_peer_down, on_payload, step};
    client->env = env;
    client->ctrl = ctrl;
    client->payload = payload;
    client->conf = *conf;
    client->ping_ms = (uint32_t)(TQI_PING_NS / TQI_MS);
    client->stepped_ns = now_ns;
    client->due_ns = now_ns;
    tqi_list_init(&client->queued);
    tqi_list_init(&client->running);
    tqi_list_init(&client->ending);
    tqi_list_init(&client->done);
    tqi_list_init(&client->links);
    tqi_heap_init(&client->timers, env);
    tqi_map_u64_init(&client->units, env);
    tqi_map_u64_init(&client->peers, env);
    tqi_map_u64_init(&client->transfers, env);
    tqi_buf_init(&client->user_conf, env);
    or_default(&client->conf.connect_timeout_ms, 5000);
    or_default(&client->conf.call_timeout_ms, 200000);
    or_default(&client->conf.fetch_timeout_ms, 5000);
    or_default(&client->conf.space_timeout_ms, 30000);
    client->strings_size = strlen(conf->address) + (conf->name ? strlen(conf->name) : 0) +
                           (conf->boot_id ? strlen(conf->boot_id) : 0) + 3;
    client->strings = tqi_env_alloc(env, client->strings_size);
    if (!client->strings || tqi_link_new(client, 0, &client->controller) != TQ_OK ||
        tqi_link_set_addresses(client->controller, conf->address, strlen(conf->address), now_ns) !=
            TQ_OK) {
        tqi_client_free(client);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a client");
    }
    client->conf.address = keep(client, &at, conf->address);
    client->conf.name = keep(client, &at, conf->name);
    client->conf.boot_id = keep(client, &at, conf->boot_id);
    *out = client;
    return TQ_OK;
}

tqi_role_t *tqi_client_role(tqi_client_t *client)
{
    return &client->role;
}

static void flush_done(tqi_client_t *client)
{
    tqi_node_t *node;

    while ((node = tqi_list_pop_front(&client->done))) {
        tqi_op_t *op = op_of(node);
        if (op->is_abandoned && tqi_op_has_grant(op))
            tqi_client_discard(client, op, client->stepped_ns);
        client->conf.host.on_done(client->conf.host.ctx, op);
    }
}

void tqi_client_free(tqi_client_t *client)
{
    const tqi_env_t *env;

    if (!client)
        return;
    env = client->env;
    if (client->controller) {
        tqi_map_u64_item_t *item;
        tqi_client_close(client, client->stepped_ns);
        client->session = 0;
        /* Stopped without a word. */
        while ((item = tqi_map_u64_first(&client->transfers)))
            tqi_slot_moved(client, (tqi_transfer_key_t){.transfer = item->key});
        tqi_list_each(&client->ending, node)
        {
            op_of(node)->clean_deadline_ns = 0;
            tqi_op_settle(op_of(node), client->stepped_ns);
        }
        flush_done(client);
        tqi_assert(tqi_client_ops_cnt(client) == 0);
    }
    tqi_list_each(&client->links, node)
    {
        tqi_link_free(link_of(node));
    }
    tqi_map_u64_fini(&client->units, NULL, NULL);
    tqi_map_u64_fini(&client->peers, NULL, NULL);
    tqi_map_u64_fini(&client->transfers, NULL, NULL);
    tqi_heap_fini(&client->timers);
    tqi_buf_fini(&client->user_conf);
    tqi_env_free(env, client->strings, client->strings_size);
    tqi_env_free(env, client, sizeof *client);
}

/* ---- sessions ---------------------------------------------------------------------------------- */

static void tell(tqi_client_t *client, tqi_client_event_t event, tq_status_t status,
                 const char *text)
{
    if (client->conf.host.on_event)
        client->conf.host.on_event(client->conf.host.ctx, event, status, text);
}

/* What waits for a session, and what is on its way to wait for one. */
static void fail_queued(tqi_client_t *client, const tqi_err_t *err, uint64_t now_ns)
{
    tqi_node_t *first;

    while ((first = tqi_list_first(&client->queued)))
        tqi_op_fail(op_of(first), err, now_ns);
    tqi_list_each(&client->ending, node)
    {
        tqi_op_fail(op_of(node), err, now_ns);
    }
}

/* The session is over, for the reason that ops are told. Transfers that run are stopped, and their
 * ops end when the payload port has let go of them. */
static void lose_session(tqi_client_t *client, tqi_join_event_t event, const tqi_err_t *err,
                         uint64_t now_ns)
{
    bool had_session = client->session != 0;
    tqi_node_t *node;

    /* Who has no session can be told all the same, by a peer, that it is over. */
    if (had_session || event != TQI_JOIN_EV_EXPIRED)
        client_step(client, event);

    client->session = 0;
    client->table_version = 0;
    while ((node = tqi_list_first(&client->running))) {
        tqi_err_t copy = *err;
        tqi_op_stop(op_of(node), TQI_OP_EV_SESSION_OVER, &copy, now_ns);
        tqi_assert(op_of(node)->state != TQI_OP_RUNNING);
    }
    tqi_list_each(&client->links, n)
    {
        tqi_link_reset(link_of(n));
    }
    tqi_list_each(&client->ending, n)
    {
        tqi_op_settle(op_of(n), now_ns);
    }
    client->controller->backoff_ns = TQI_BACKOFF_MIN_NS;
    tqi_link_down(client->controller, err->status, err->text, now_ns);
    client->controller->retry_ns = now_ns;
    if (had_session)
        tell(client, TQI_CLIENT_DOWN, err->status, err->text);
}

static void refuse(tqi_client_t *client, tq_status_t status, const char *text, uint64_t now_ns)
{
    if (client->state == TQI_JOIN_REFUSED)
        return;
    tqi_fail(&client->refusal, status, "%s", text);
    lose_session(client, TQI_JOIN_EV_REFUSE, &client->refusal, now_ns);
    fail_queued(client, &client->refusal, now_ns);
    tell(client, TQI_CLIENT_REFUSED, status, text);
}

static void store_gone(tqi_client_t *client, uint64_t now_ns)
{
    char text[TQ_ERROR_TEXT_MAX];

    snprintf(text, sizeof text,
             "the store %016" PRIx64
             " that this client was opened for is gone; another one answers "
             "at %s. Open a new client",
             client->conf.incarnation_wanted, client->conf.address);
    refuse(client, TQ_E_STORE_GONE, text, now_ns);
}

/* Another store answers at the address. */
static void store_replaced(tqi_client_t *client, uint64_t now_ns)
{
    if (client->conf.incarnation_wanted != 0) {
        store_gone(client, now_ns);
        return;
    }
    if (client->incarnation != 0) {
        tqi_fail(
            &client->stale, TQ_E_STALE_STORE,
            "the store at %s was replaced by a new one: rows and keys of the old one are gone. "
            "The next call joins the new store",
            client->conf.address);
        client->is_stale_pending = true;
        client->incarnation = 0;
        lose_session(client, TQI_JOIN_EV_REPLACED, &client->stale, now_ns);
        /* Its units are other ones, whatever their ids. */
        tqi_list_each(&client->links, node)
        {
            if (link_of(node)->unit_id != 0)
                tqi_link_forget_addresses(link_of(node));
        }
        fail_queued(client, &client->stale, now_ns);
    }
}

bool tqi_client_on_refusal(tqi_client_t *client, tqi_link_t *link, tq_status_t status,
                           const char *text, uint64_t now_ns)
{
    tqi_err_t err;

    if (link->unit_id != 0) {
        /* Whether a session is over is the controller's to say. */
        if (status == TQ_E_SESSION_EXPIRED || status == TQ_E_STALE_STORE)
            tqi_link_ping(client->controller, now_ns);
        return false;
    }
    switch (status) {
    case TQ_E_SESSION_EXPIRED:
        tqi_fail(&err, status, "%s", text);
        lose_session(client, TQI_JOIN_EV_EXPIRED, &err, now_ns);
        return true;
    case TQ_E_STALE_STORE:
        if (client->incarnation == 0 && client->conf.incarnation_wanted == 0)
            return false;
        store_replaced(client, now_ns);
        return true;
    case TQ_E_STORE_GONE:
    case TQ_E_VERSION:
    case TQ_E_DENIED:
    case TQ_E_CONFIG:
        /* Of one request these are about that request. */
        if (status != TQ_E_STORE_GONE && link->state == TQI_LINK_UP)
            return false;
        refuse(client, status, text, now_ns);
        return true;
    default:
        return false;
    }
}

void tqi_client_on_hello(tqi_client_t *client, const tqi_envelope_t *env,
                         const tqi_msg_Hello_R_t *msg, uint64_t now_ns)
{
    bool is_new = client->session != env->session;
    tqi_err_t err;

    if (client->conf.incarnation_wanted != 0 &&
        env->incarnation != client->conf.incarnation_wanted) {
        store_gone(client, now_ns);
        return;
    }
    if (client->incarnation != 0 && env->incarnation != client->incarnation) {
        store_replaced(client, now_ns);
        return;
    }
    if (client->session != 0 && is_new) {
        tqi_fail(&err, TQ_E_SESSION_EXPIRED, "the controller has begun another session");
        lose_session(client, TQI_JOIN_EV_EXPIRED, &err, now_ns);
        return;
    }
    client_step(client, is_new ? TQI_JOIN_EV_JOIN : TQI_JOIN_EV_KEEP);
    client->session = env->session;
    client->incarnation = env->incarnation;
    if (msg->ping_ms != 0)
        client->ping_ms = msg->ping_ms;
    if (is_new) {
        tqi_buf_clear(&client->user_conf);
        if (tqi_buf_append(&client->user_conf, msg->user_conf.data, msg->user_conf.len) != TQ_OK) {
            tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for the store's configuration");
            lose_session(client, TQI_JOIN_EV_STARVED, &err, now_ns);
            return;
        }
    }
    tqi_client_on_table(client, msg->table_version, msg->unit_ids, msg->unit_addresses,
                        msg->unit_hosts, msg->unit_lost, now_ns);
    if (is_new)
        tell(client, TQI_CLIENT_UP, TQ_OK, "");
}

void tqi_client_on_bye(tqi_client_t *client)
{
    if (client->closing == TQI_CLOSE_CLOSING)
        close_step(client, TQI_CLOSE_EV_BYE);
}

/* The last word of a peer. Of the controller: the session is over, and where this client was opened
 * for that store alone, so is the client. */
static void on_closing(tqi_client_t *client, tqi_link_t *link, const tqi_envelope_t *env,
                       uint64_t now_ns)
{
    char text[TQ_ERROR_TEXT_MAX];
    tqi_err_t err;

    if (link->state != TQI_LINK_UP || client->session == 0 || env->session != client->session ||
        env->incarnation != client->incarnation) {
        client->dropped_cnt++;
        return;
    }
    tqi_link_say(link, TQI_KIND_Closing_R, &(tqi_msg_Closing_R_t){0});
    if (link->unit_id != 0) {
        tqi_link_on_closing(link, now_ns);
        return;
    }
    snprintf(text, sizeof text, "the store at %s has shut down", client->conf.address);
    if (client->conf.incarnation_wanted != 0) {
        refuse(client, TQ_E_STORE_GONE, text, now_ns);
        return;
    }
    tqi_fail(&err, TQ_E_CLOSING, "%s", text);
    lose_session(client, TQI_JOIN_EV_DISMISSED, &err, now_ns);
    fail_queued(client, &err, now_ns);
}

/* ---- units ------------------------------------------------------------------------------------- */

tqi_link_t *tqi_client_unit(tqi_client_t *client, uint32_t unit_id)
{
    tqi_link_t *link = tqi_map_u64_get(&client->units, unit_id);

    if (link && link->addresses)
        return link;
    if (!link && tqi_map_u64_count(&client->units) >= UNITS_MAX)
        return NULL;
    if (!link && tqi_link_new(client, unit_id, &link) != TQ_OK)
        return NULL;
    if (!tqi_map_u64_get(&client->units, unit_id) &&
        tqi_map_u64_put(&client->units, unit_id, link, NULL) != TQ_OK) {
        tqi_link_free(link);
        return NULL;
    }
    /* One that the table does not name yet: the answer to a PING does. */
    if (client->session != 0 && client->table_version != 0)
        tqi_link_ping(client->controller, client->stepped_ns);
    return link;
}

void tqi_client_on_table(tqi_client_t *client, uint64_t version, tqi_u32s_t ids,
                         tqi_strs_t addresses, tqi_strs_t hosts, tqi_u8s_t lost, uint64_t now_ns)
{
    if (addresses.cnt != ids.cnt || hosts.cnt != ids.cnt || lost.cnt != ids.cnt) {
        client->dropped_cnt++;
        return;
    }
    for (uint32_t i = 0; i < ids.cnt; i++)
        if (tqi_u32s_at(ids, i) == 0) { /* that is the controller */
            client->dropped_cnt++;
            return;
        }
    client->table_version = 0; /* while links are made: it is what PING would ask for */
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&client->units); item;
         item = tqi_map_u64_next(item))
        ((tqi_link_t *)item->value)->is_in_table = false;
    for (uint32_t i = 0; i < ids.cnt; i++) {
        tqi_str_t address = tqi_strs_at(addresses, i), host = tqi_strs_at(hosts, i);
        const char *here = client->conf.boot_id;
        tqi_link_t *link = tqi_client_unit(client, tqi_u32s_at(ids, i));
        if (!link)
            return; /* the version is not taken over: the next PING brings the table again */
        link->is_in_table = true;
        link->is_lost = lost.data[i] != 0;
        link->is_near =
            strlen(here) == host.len && (host.len == 0 || memcmp(here, host.data, host.len) == 0);
        if (tqi_link_set_addresses(link, address.data ? address.data : "", address.len, now_ns) !=
            TQ_OK)
            return;
    }
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&client->units); item;
         item = tqi_map_u64_next(item)) {
        tqi_link_t *link = item->value;
        if (!link->is_in_table && link->addresses)
            link->is_lost = true;
    }
    client->table_version = version;
}

/* ---- what the loop brings ---------------------------------------------------------------------- */

static void on_message(tqi_role_t *role, tqi_peer_t peer, const void *data, size_t len,
                       uint64_t now_ns)
{
    tqi_client_t *client = client_of(role);
    tqi_link_t *link = tqi_map_u64_get(&client->peers, peer);
    tqi_envelope_t env;

    client->stepped_ns = tqi_u64_max(client->stepped_ns, now_ns);
    if (!link || tqi_envelope_decode(data, len, &env, NULL) != TQ_OK)
        client->dropped_cnt++;
    else if (env.kind == TQI_KIND_Closing)
        on_closing(client, link, &env, now_ns);
    else if (env.kind & TQI_KIND_REPLY)
        tqi_link_on_message(link, &env, now_ns);
    else
        client->dropped_cnt++;
}

static void on_peer_down(tqi_role_t *role, tqi_peer_t peer, uint64_t now_ns)
{
    tqi_client_t *client = client_of(role);
    tqi_link_t *link = tqi_map_u64_get(&client->peers, peer);
    const char *why = client->ctrl->why_down ? client->ctrl->why_down(client->ctrl) : "";

    if (link)
        tqi_link_down(link, TQ_E_PEER_LOST, why[0] ? why : "the connection was refused or broke",
                      now_ns);
}

static void on_payload(tqi_role_t *role, tqi_transfer_key_t key, tq_status_t status,
                       const char *text, uint64_t now_ns)
{
    tqi_client_t *client = client_of(role);
    tqi_slot_t *slot = tqi_slot_moved(client, key);
    tqi_op_t *op;

    if (!slot) {
        client->dropped_cnt++;
        return;
    }
    op = slot->op;
    /* A token that is not good any more is of another life of the unit: the way has broken. */
    if (status == TQ_E_DENIED)
        status = TQ_E_PEER_LOST;
    if (tq_status_class(status) == TQ_CLASS_PEER) {
        slot->link->must_reopen = true;
        snprintf(slot->link->mode_text, sizeof slot->link->mode_text, "%s", text ? text : "");
    }
    if (op->state == TQI_OP_RUNNING)
        op->cls->on_payload(op, slot, status, text ? text : "", now_ns);
    else
        tqi_op_settle(op, now_ns);
}

/* ---- what callers want ------------------------------------------------------------------------- */

void tqi_client_cancel(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns)
{
    tqi_err_t err;

    (void)client;
    tqi_fail(&err, TQ_E_CANCELLED, "%s: cancelled by the caller", op->cls->name);
    tqi_op_stop(op, TQI_OP_EV_CANCEL, &err, now_ns);
}

void tqi_client_abandon(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns)
{
    op->is_abandoned = true;
    tqi_client_cancel(client, op, now_ns);
}

void tqi_client_taken(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns)
{
    if (op->grant_session != 0 && op->grant_session == client->session && op->err.status == TQ_OK)
        tqi_link_take(client->controller, op->grant_seq, now_ns);
    op->grant_session = 0;
}

void tqi_client_discard(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns)
{
    if (op->grant_session != 0 && op->grant_session == client->session && op->err.status == TQ_OK)
        tqi_fetch_return(op, now_ns);
    op->grant_session = 0;
}

void tqi_client_close(tqi_client_t *client, uint64_t now_ns)
{
    tqi_node_t *node;
    tqi_err_t err;

    if (client->closing != TQI_CLOSE_OPEN)
        return;
    close_step(client, TQI_CLOSE_EV_CLOSE);
    client->close_deadline_ns = now_ns + CLOSE_NS;
    tqi_fail(&err, TQ_E_CLOSED, "the client was closed");
    fail_queued(client, &err, now_ns);
    while ((node = tqi_list_first(&client->running))) {
        tqi_err_t copy = err;
        tqi_op_stop(op_of(node), TQI_OP_EV_CLOSE, &copy, now_ns);
        tqi_assert(op_of(node)->state != TQI_OP_RUNNING);
    }
}

bool tqi_client_is_closed(const tqi_client_t *client)
{
    return client->closing == TQI_CLOSE_CLOSED && tqi_client_ops_cnt(client) == 0 &&
           client->done.cnt == 0 && tqi_map_u64_count(&client->transfers) == 0;
}

tq_status_t tqi_client_why(const tqi_client_t *client, uint64_t waited_ms, tqi_err_t *err)
{
    if (client->state == TQI_JOIN_REFUSED) {
        *err = client->refusal;
        return err->status;
    }
    return tqi_link_trouble(client->controller, waited_ms, err);
}

uint64_t tqi_client_session(const tqi_client_t *client)
{
    return client->session;
}

uint64_t tqi_client_incarnation(const tqi_client_t *client)
{
    return client->incarnation;
}

const void *tqi_client_user_conf(const tqi_client_t *client, size_t *len)
{
    *len = client->user_conf.len;
    return client->user_conf.data;
}

uint32_t tqi_client_ops_cnt(const tqi_client_t *client)
{
    return (uint32_t)(client->queued.cnt + client->running.cnt + client->ending.cnt);
}

/* ---- time -------------------------------------------------------------------------------------- */

static void op_timed_out(tqi_op_t *op, uint64_t now_ns)
{
    tqi_client_t *client = op->client;
    tqi_err_t err;

    if (op->state == TQI_OP_QUEUED)
        tqi_client_why(client, op->timeout_ms, &err);
    else
        tqi_fail(&err, TQ_E_TIMEOUT, "%s: no end within %" PRIu32 " ms (timeout_ms)", op->cls->name,
                 op->timeout_ms);
    tqi_op_stop(op, TQI_OP_EV_TIMEOUT, &err, now_ns);
}

/* Ops that wait for a session start, or have waited too long. */
static uint64_t step_queued(tqi_client_t *client, uint64_t now_ns)
{
    uint64_t next = TQI_NEVER;
    uint64_t patience_ns = client->conf.connect_timeout_ms * TQI_MS;

    for (size_t left = client->queued.cnt; left > 0 && client->queued.cnt > 0; left--) {
        tqi_op_t *op = op_of(tqi_list_first(&client->queued));
        uint64_t since_ns = tqi_u64_max(op->since_ns, client->controller->heard_ns);
        if (client->session != 0) {
            tqi_op_start(op, now_ns);
        } else if (client->state == TQI_JOIN_REFUSED || now_ns >= since_ns + patience_ns) {
            tqi_err_t err;
            tqi_client_why(client, (now_ns - since_ns) / TQI_MS, &err);
            tqi_op_fail(op, &err, now_ns);
        } else {
            next = tqi_u64_min(next, since_ns + patience_ns);
            tqi_list_remove(&client->queued, &op->node);
            tqi_list_push_back(&client->queued, &op->node);
        }
    }
    return next;
}

static uint64_t step_ending(tqi_client_t *client, uint64_t now_ns)
{
    uint64_t next = TQI_NEVER;

    tqi_list_each(&client->ending, node)
    {
        tqi_op_t *op = op_of(node);
        if (op->moving.cnt > 0)
            continue;
        if (!op->is_cleaned || op->reqs.cnt == 0 || now_ns >= op->clean_deadline_ns)
            tqi_op_settle(op, now_ns);
        if (op->state == TQI_OP_ENDING)
            next = tqi_u64_min(next, op->is_cleaned ? op->clean_deadline_ns
                                                    : now_ns + TQI_BACKOFF_MIN_NS);
    }
    return next;
}

static uint64_t step_close(tqi_client_t *client, uint64_t now_ns)
{
    tqi_msg_Bye_t bye = {0};

    if (client->session == 0 || client->controller->state != TQI_LINK_UP) {
        close_step(client, TQI_CLOSE_EV_ALONE);
        return TQI_NEVER;
    }
    if (now_ns >= client->close_deadline_ns) {
        close_step(client, TQI_CLOSE_EV_LATE);
        return TQI_NEVER;
    }
    if (tqi_client_ops_cnt(client) == 0 &&
        (client->bye_ns == 0 || now_ns >= client->bye_ns + BYE_NS)) {
        tqi_link_say(client->controller, TQI_KIND_Bye, &bye);
        client->bye_ns = now_ns;
    }
    return tqi_u64_min(client->close_deadline_ns,
                       client->bye_ns ? client->bye_ns + BYE_NS : TQI_NEVER);
}

static uint64_t step(tqi_role_t *role, uint64_t now_ns)
{
    tqi_client_t *client = client_of(role);
    uint64_t next = TQI_NEVER;
    tqi_heap_node_t *timer;

    if (client->due_ns < now_ns && now_ns - client->due_ns > PAUSE_NS) {
        uint64_t pause_ns = now_ns - client->due_ns;
        tqi_list_each(&client->links, node)
        {
            tqi_link_t *link = link_of(node);
            link->heard_ns = tqi_u64_min(link->heard_ns + pause_ns, now_ns);
            if (link->asked_ns != 0)
                link->asked_ns = tqi_u64_min(link->asked_ns + pause_ns, now_ns);
        }
    }
    client->stepped_ns = now_ns;
    while ((timer = tqi_heap_pop_due(&client->timers, now_ns)))
        op_timed_out(tqi_container_of(timer, tqi_op_t, timer), now_ns);
    if (client->state != TQI_JOIN_REFUSED && client->closing != TQI_CLOSE_CLOSED) {
        tqi_link_want(client->controller, now_ns);
        tqi_list_each(&client->links, node)
        {
            next = tqi_u64_min(next, tqi_link_step(link_of(node), now_ns));
        }
    }
    next = tqi_u64_min(next, step_queued(client, now_ns));
    next = tqi_u64_min(next, step_ending(client, now_ns));
    if (client->closing == TQI_CLOSE_CLOSING)
        next = tqi_u64_min(next, step_close(client, now_ns));
    flush_done(client);
    timer = tqi_heap_peek(&client->timers);
    if (timer)
        next = tqi_u64_min(next, timer->deadline_ns);
    client->due_ns = next;
    return next;
}

/* ---- check ------------------------------------------------------------------------------------- */

static bool check_list_of(const tqi_list_t *list, tqi_op_state_t state, size_t *moving,
                          tqi_err_t *err)
{
    tqi_list_each(list, node)
    {
        const tqi_op_t *op = op_of(node);
        if (op->state != state) {
            tqi_fail(err, TQ_E_BUG, "%s %" PRIu64 " is in state %d in the list of %d",
                     op->cls->name, op->id, op->state, state);
            return false;
        }
        *moving += op->moving.cnt;
    }
    return true;
}

bool tqi_client_check(const tqi_client_t *client, tqi_err_t *err)
{
    size_t moving = 0, at_links = 0;

    if ((client->session != 0) != (client->state == TQI_JOIN_INSIDE)) {
        tqi_fail(err, TQ_E_BUG, "the client is in state %d with session %" PRIu64, client->state,
                 client->session);
        return false;
    }
    if (!check_list_of(&client->queued, TQI_OP_QUEUED, &moving, err) ||
        !check_list_of(&client->running, TQI_OP_RUNNING, &moving, err) ||
        !check_list_of(&client->ending, TQI_OP_ENDING, &moving, err) ||
        !check_list_of(&client->done, TQI_OP_DONE, &moving, err))
        return false;
    tqi_list_each(&client->links, node)
    {
        const tqi_link_t *link = link_of(node);
        at_links += link->moving.cnt;
        if ((link->peer != 0) != (link->state == TQI_LINK_GREETING || link->state == TQI_LINK_UP)) {
            tqi_fail(err, TQ_E_BUG, "the link to unit %u is in state %d with peer %" PRIu64,
                     link->unit_id, link->state, link->peer);
            return false;
        }
        if (link->peer != 0 && tqi_map_u64_get(&client->peers, link->peer) != link) {
            tqi_fail(err, TQ_E_BUG, "unit %u is not the link of its peer", link->unit_id);
            return false;
        }
        if (client->session == 0 && (tqi_link_open_cnt(link) > 0 || link->waiters.cnt > 0)) {
            tqi_fail(err, TQ_E_BUG, "unit %u has requests and there is no session", link->unit_id);
            return false;
        }
    }
    if (moving != at_links || moving != tqi_map_u64_count(&client->transfers)) {
        tqi_fail(err, TQ_E_BUG, "%zu slots move at ops, %zu at links, %zu in the map", moving,
                 at_links, tqi_map_u64_count(&client->transfers));
        return false;
    }
    return true;
}
