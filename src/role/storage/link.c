/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller's side. The unit dials the controller and REGISTERs, again after every loss of the
 * connection. Silence is judged by the unit's own clock before each message: after silence_ms
 * without a word it serves nobody, and does so again only when a REGISTER was answered, so that the
 * controller can first make it catch up on what it missed.
 *
 * Orders are idempotent: they are done in the order of their arrival, a slice a step, and answered
 * when they are done. The same order again (its answer was lost) is done again.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "role/storage/internal.h"

/* ---- registering ------------------------------------------------------------------------------ */

static void send_register(tqi_unit_t *unit)
{
    tqi_strs_builder_t addresses;
    tqi_objects_stat_t stat;
    tqi_buf_t frame;
    tqi_envelope_t env = {
        .version = TQI_VERSION_MAX,
        .kind = TQI_KIND_Register,
        .incarnation = unit->store_incarnation,
        .epoch = unit->epoch,
        .budget_ms = UINT32_MAX,
        .sender = unit->unit_id,
    };
    tq_status_t rc = TQ_OK;

    tqi_objects_stat(unit->objs, &stat);
    tqi_strs_builder_init(&addresses, unit->env);
    for (uint32_t i = 0; rc == TQ_OK && i < unit->conf.addresses_cnt; i++)
        rc = tqi_strs_builder_add(&addresses, unit->conf.addresses[i],
                                  strlen(unit->conf.addresses[i]));
    tqi_msg_Register_t msg = {
        .version_min = TQI_VERSION_MIN,
        .version_max = TQI_VERSION_MAX,
        .unit_incarnation = unit->conf.unit_incarnation,
        .unit_id = unit->unit_id,
        .addresses = tqi_strs_builder_view(&addresses),
        .host = tqi_str(unit->conf.host),
        .capacity_bytes = stat.capacity_bytes,
        .free_bytes = stat.capacity_bytes - tqi_u64_min(stat.used_bytes, stat.capacity_bytes),
        .name = tqi_str(unit->conf.name),
        .store_incarnation = unit->store_incarnation,
    };

    tqi_buf_init(&frame, unit->env);
    if (rc == TQ_OK)
        rc = tqi_msg_encode(&frame, &env, NULL, &msg, NULL);
    if (rc != TQ_OK || unit->ctrl->send(unit->ctrl, unit->controller, &frame) != TQ_OK)
        tqi_buf_fini(&frame); /* the timer sends another */
    tqi_strs_builder_fini(&addresses);
}

TQI_MACHINE(tqi_unit_member_machine, "unit in its store", MEMBER, MEMBER_STEPS);
TQI_MACHINE(tqi_unit_wire_machine, "unit's connection", WIRE, WIRE_STEPS);

static void member_step(tqi_unit_t *unit, member_event_t event)
{
    unit->member = (member_state_t)tqi_machine_step(&tqi_unit_member_machine, unit->member, event);
}

static void wire_step(tqi_unit_t *unit, wire_event_t event)
{
    unit->wire = (wire_state_t)tqi_machine_step(&tqi_unit_wire_machine, unit->wire, event);
}

tq_status_t link_open(tqi_unit_t *unit, uint64_t now_ns, tqi_err_t *err)
{
    tq_status_t rc = TQ_OK;

    unit->register_ns = now_ns + REGISTER_EVERY_NS;
    if (unit->wire == WIRE_AWAY) {
        unit->connected_ns = now_ns;
        unit->epoch++;
        rc = unit->ctrl->connect(unit->ctrl, unit->conf.controller, &unit->controller, err);
        if (rc == TQ_OK)
            wire_step(unit, WIRE_EV_DIAL);
    }
    if (rc == TQ_OK && unit->member != MEMBER_EMPTYING)
        send_register(unit);
    return rc;
}

static void order_free(tqi_unit_t *unit, order_t *order)
{
    tqi_list_remove(&unit->orders, &order->node);
    tqi_buf_fini(&order->frame);
    tqi_env_free(unit->env, order, sizeof *order);
}

static void orders_free(tqi_unit_t *unit)
{
    tqi_node_t *node;

    while ((node = tqi_list_first(&unit->orders)))
        order_free(unit, tqi_container_of(node, order_t, node));
}

/* At once, but not in a loop when nobody is there. */
static void redial(tqi_unit_t *unit, wire_event_t why, uint64_t now_ns)
{
    wire_step(unit, why);
    unit->controller = 0;
    unit->register_ns = tqi_u64_max(now_ns, unit->connected_ns + REGISTER_EVERY_NS);
}

void link_on_peer_down(tqi_unit_t *unit, uint64_t now_ns)
{
    const char *why = unit->ctrl->why_down ? unit->ctrl->why_down(unit->ctrl) : "";

    if (unit->member != MEMBER_INSIDE)
        tqi_fail(&unit->refusal, TQ_E_UNREACHABLE, "no connection to the controller at %s%s%s",
                 unit->conf.controller, why[0] ? ": " : "", why);
    /* What is stored stays, and is served for as long as silence allows. */
    redial(unit, WIRE_EV_DOWN, now_ns);
}

/* The rows here are of another store: when the last transfer is over they go, and only then does
 * the unit register with the new one. */
static void empty(tqi_unit_t *unit, uint64_t now_ns)
{
    tqi_map_u64_item_t *it, *next;

    if (unit->member != MEMBER_EMPTYING)
        member_step(unit, MEMBER_EV_OTHER_STORE);
    orders_free(unit);
    for (it = tqi_map_u64_first(&unit->sessions); it; it = next) {
        next = tqi_map_u64_next(it);
        if (session_end(unit, it->key, now_ns) != TQ_OK)
            return; /* step comes again */
    }
    if (unit->transfers_cnt > 0 || unit_reset_objects(unit) != TQ_OK)
        return;
    tqi_intervals_fini(&unit->ended);
    member_step(unit, MEMBER_EV_EMPTIED);
    unit->session_last = 0;
    unit->store_incarnation = 0;
    unit->unit_id = 0;
    unit->register_ns = now_ns;
}

static void on_register_reply(tqi_unit_t *unit, const tqi_envelope_t *env, uint64_t now_ns)
{
    tqi_msg_Register_R_t msg;
    tqi_msg_Error_t error = {0};

    if (unit->member == MEMBER_EMPTYING || unit->register_ns == TQI_NEVER)
        return; /* the answer to one that was sent twice, or too late */
    if (env->status != TQ_OK) {
        if (env->status == TQ_E_STALE_STORE && unit->store_incarnation) {
            empty(unit, now_ns);
            return;
        }
        member_step(unit, MEMBER_EV_REFUSED);
        if (tqi_msg_decode(env, TQI_KIND_Error, &error, NULL) != TQ_OK)
            error = (tqi_msg_Error_t){0};
        tqi_fail(&unit->refusal, (tq_status_t)env->status, "%.*s", (int)error.text.len,
                 error.text.data ? (const char *)error.text.data : "");
        return;
    }
    if (tqi_msg_decode(env, TQI_KIND_Register_R, &msg, NULL) != TQ_OK || msg.unit_id == 0 ||
        env->incarnation == 0 || msg.ended_lo.cnt != msg.ended_hi.cnt) {
        unit->counters.malformed++;
        return;
    }
    if (unit->store_incarnation && unit->store_incarnation != env->incarnation) {
        empty(unit, now_ns);
        return;
    }
    for (uint32_t i = 0; i < msg.ended_hi.cnt; i++)
        unit->session_last = tqi_u64_max(unit->session_last, tqi_u64s_at(msg.ended_hi, i) - 1);
    for (uint32_t i = 0; i < msg.ended_lo.cnt; i++)
        if (tqi_intervals_add(&unit->ended, tqi_u64s_at(msg.ended_lo, i),
                              tqi_u64s_at(msg.ended_hi, i)) != TQ_OK)
            return; /* the timer asks again */
    unit->store_incarnation = env->incarnation;
    unit->unit_id = msg.unit_id;
    unit->put_last = msg.put_last;
    if (msg.silence_ms)
        unit->silence_ns = msg.silence_ms * NS_PER_MS;
    member_step(unit, MEMBER_EV_ACCEPTED);
    unit->register_ns = TQI_NEVER;
    unit->refusal = (tqi_err_t){0};
    unit->is_dirty = true;
}

tq_status_t link_check(const tqi_unit_t *unit, uint64_t now_ns, tqi_err_t *err)
{
    uint64_t silence_ns = now_ns - unit->heard_ns;

    if (unit->member == MEMBER_INSIDE && silence_ns <= unit->silence_ns)
        return TQ_OK;
    if (unit->member == MEMBER_INSIDE)
        return tqi_fail(err, TQ_E_UNIT_LOST,
                        "storage unit %u has not heard the controller for %" PRIu64
                        " ms and serves nobody until it does",
                        unit->unit_id, silence_ns / NS_PER_MS);
    return tqi_fail(err, TQ_E_UNIT_LOST,
                    "storage unit %u is not registered with the controller, and serves nobody "
                    "until it is",
                    unit->unit_id);
}

/* ---- orders ----------------------------------------------------------------------------------- */

static order_t *order_find(const tqi_unit_t *unit, uint64_t seq)
{
    tqi_list_each(&unit->orders, node)
    {
        order_t *order = tqi_container_of(node, order_t, node);

        if (order->request.seq == seq)
            return order;
    }
    return NULL;
}

static void order_add(tqi_unit_t *unit, const request_t *request, const void *data, size_t len)
{
    order_t *order;

    if (unit->orders.cnt >= ORDERS_MAX || (request->seq && order_find(unit, request->seq)))
        return; /* it comes again until it is answered */
    order = tqi_env_zalloc(unit->env, sizeof *order);
    if (!order)
        return;
    tqi_buf_init(&order->frame, unit->env);
    if (tqi_buf_append(&order->frame, data, len) != TQ_OK) {
        tqi_env_free(unit->env, order, sizeof *order);
        return;
    }
    order->request = *request;
    tqi_list_push_back(&unit->orders, &order->node);
}

static void pong(tqi_unit_t *unit, request_t *request, const tqi_envelope_t *env)
{
    uint64_t resend[TQI_OPEN_MAX];
    uint32_t cnt = 0;
    tqi_objects_stat_t stat;
    tqi_msg_Ping_t ping;

    if (tqi_msg_decode(env, TQI_KIND_Ping, &ping, NULL) == TQ_OK)
        unit->session_last = tqi_u64_max(unit->session_last, ping.session_last);
    /* Orders that are not here were lost, or done and their answers lost. */
    for (uint32_t i = 0; i < env->open_cnt && cnt < TQI_OPEN_MAX; i++) {
        uint64_t seq = tqi_load_le64(env->open + (size_t)i * 8);

        if (!order_find(unit, seq))
            resend[cnt++] = seq;
    }
    tqi_objects_stat(unit->objs, &stat);
    tqi_msg_Ping_R_t answer = {
        .resend = tqi_u64s(resend, cnt),
        .capacity_bytes = stat.capacity_bytes,
        .free_bytes = stat.capacity_bytes - tqi_u64_min(stat.used_bytes, stat.capacity_bytes),
        .zombie_bytes = stat.zombie_bytes,
    };
    reply(unit, request, &answer);
}

void link_on_message(tqi_unit_t *unit, const tqi_envelope_t *env, const void *data, size_t len,
                     uint64_t now_ns)
{
    request_t request = {.peer = unit->controller,
                         .session = 0,
                         .seq = env->seq,
                         .request_id = env->request_id,
                         .epoch = env->epoch,
                         .kind = env->kind};

    /* It was silent for longer than it may be: it may have given up on us meanwhile, and what it
     * ordered then comes before we serve again. */
    if (unit->member == MEMBER_INSIDE && now_ns - unit->heard_ns > unit->silence_ns) {
        member_step(unit, MEMBER_EV_SILENT);
        unit->register_ns = now_ns;
    }
    unit->heard_ns = now_ns;
    switch (env->kind) {
    case TQI_KIND_Register | TQI_KIND_REPLY:
        on_register_reply(unit, env, now_ns);
        return;
    case TQI_KIND_Closing_R:
        unit->has_controller_heard = true;
        return;
    case TQI_KIND_Ping:
        pong(unit, &request, env);
        return;
    case TQI_KIND_Unlink:
    case TQI_KIND_Confirm:
    case TQI_KIND_EndSession:
        if (env->incarnation == unit->store_incarnation)
            order_add(unit, &request, data, len);
        else
            reply_refused(unit, &request, TQ_E_STALE_STORE,
                          "the storage unit holds another store's rows");
        return;
    default:
        if (env->kind & TQI_KIND_REPLY)
            unit->counters.dropped++;
        else
            reply_refused(unit, &request, TQ_E_UNSUPPORTED,
                          "the storage unit does not know this kind of message");
    }
}

/* ---- doing orders ----------------------------------------------------------------------------- */

/* Each does about ORDER_CELLS_MAX cells' worth. *is_done: the order is over. E_NO_MEMORY ends it
 * unanswered but for the error; it comes again. */

static tq_status_t do_unlink(tqi_unit_t *unit, order_t *order, const tqi_envelope_t *env,
                             bool *is_done)
{
    tqi_msg_Unlink_t msg;
    tqi_err_t err = {0};
    tq_status_t rc = tqi_msg_decode(env, TQI_KIND_Unlink, &msg, &err);

    if (rc == TQ_OK &&
        (msg.lo.cnt != msg.hi.cnt || msg.dead_blocks_lo.cnt != msg.dead_blocks_hi.cnt))
        rc = TQ_E_MALFORMED;
    /* The ranges of rows, then those of whole blocks. */
    for (uint32_t turns = 0; rc == TQ_OK; turns++) {
        uint64_t lo, hi;

        if (order->at == msg.lo.cnt + msg.dead_blocks_lo.cnt) {
            *is_done = true;
            break;
        }
        if (order->at < msg.lo.cnt) {
            lo = tqi_u64s_at(msg.lo, order->at);
            hi = tqi_u64s_at(msg.hi, order->at);
        } else {
            lo = tqi_u64s_at(msg.dead_blocks_lo, order->at - msg.lo.cnt);
            hi = tqi_u64s_at(msg.dead_blocks_hi, order->at - msg.lo.cnt);
            lo = tqi_u64_min(lo, TQ_ROW_MAX / 1024 + 1) * 1024;
            hi = tqi_u64_min(hi, TQ_ROW_MAX / 1024 + 1) * 1024;
        }
        hi = tqi_u64_min(hi, (uint64_t)TQ_ROW_MAX + 1);
        if (order->is_begun)
            lo = order->row;
        /* Single rows are many and cheap; a range may be one of millions. */
        if (turns >= 4096)
            break;
        if (lo < hi)
            rc = tqi_objects_unlink(unit->objs, &lo, hi, ORDER_CELLS_MAX);
        unit->is_dirty = true;
        order->is_begun = lo < hi;
        order->row = lo;
        if (order->is_begun)
            break;
        order->at++;
    }
    if (rc == TQ_OK && *is_done) {
        tqi_objects_stat_t stat;

        tqi_objects_stat(unit->objs, &stat);
        tqi_msg_Unlink_R_t answer = {
            .free_bytes = stat.capacity_bytes - tqi_u64_min(stat.used_bytes, stat.capacity_bytes),
            .zombie_bytes = stat.zombie_bytes,
        };
        reply(unit, &order->request, &answer);
    }
    return rc;
}

/* Confirms puts from *at on, until the slice is used up. True at the end of the list. */
static bool confirm_some(tqi_unit_t *unit, tqi_u64s_t put_ids, uint32_t *at)
{
    uint64_t cells_cnt = 0;

    while (*at < put_ids.cnt && cells_cnt < ORDER_CELLS_MAX)
        cells_cnt += 16 + tqi_objects_confirm(unit->objs, tqi_u64s_at(put_ids, (*at)++));
    unit->is_dirty = true;
    return *at == put_ids.cnt;
}

static tq_status_t do_confirm(tqi_unit_t *unit, order_t *order, const tqi_envelope_t *env,
                              bool *is_done)
{
    tqi_msg_Confirm_t msg;
    tq_status_t rc = tqi_msg_decode(env, TQI_KIND_Confirm, &msg, NULL);

    if (rc != TQ_OK)
        return rc;
    *is_done = confirm_some(unit, msg.put_ids, &order->at);
    if (*is_done)
        reply(unit, &order->request, NULL);
    return TQ_OK;
}

static tq_status_t do_end_session(tqi_unit_t *unit, order_t *order, const tqi_envelope_t *env,
                                  bool *is_done)
{
    tqi_msg_EndSession_t msg;
    uint64_t put_id;
    uint64_t cells_cnt = 0;
    tq_status_t rc = tqi_msg_decode(env, TQI_KIND_EndSession, &msg, NULL);

    if (rc == TQ_OK && (msg.session == 0 || msg.session == UINT64_MAX))
        rc = TQ_E_MALFORMED;
    if (rc == TQ_OK && !order->is_begun)
        rc = session_end(unit, msg.session, unit->heard_ns);
    if (rc != TQ_OK)
        return rc;
    order->is_begun = true;
    if (!confirm_some(unit, msg.published, &order->at))
        return TQ_OK;
    while (cells_cnt < ORDER_CELLS_MAX &&
           (put_id = tqi_objects_staged_put(unit->objs, msg.session)) != 0)
        cells_cnt += 16 + tqi_objects_abort(unit->objs, put_id, msg.session);
    *is_done = cells_cnt < ORDER_CELLS_MAX;
    if (*is_done)
        reply(unit, &order->request, NULL);
    return TQ_OK;
}

static void do_some(tqi_unit_t *unit, order_t *order)
{
    tqi_envelope_t env;
    bool is_done = false;
    tq_status_t rc = tqi_envelope_decode(order->frame.data, order->frame.len, &env, NULL);

    if (rc == TQ_OK && env.kind == TQI_KIND_Unlink)
        rc = do_unlink(unit, order, &env, &is_done);
    else if (rc == TQ_OK && env.kind == TQI_KIND_Confirm)
        rc = do_confirm(unit, order, &env, &is_done);
    else if (rc == TQ_OK)
        rc = do_end_session(unit, order, &env, &is_done);
    if (rc != TQ_OK)
        reply_refused(unit, &order->request, rc,
                      rc == TQ_E_NO_MEMORY ? "the storage unit is out of memory"
                                           : "the order is malformed");
    if (rc != TQ_OK || is_done)
        order_free(unit, order);
}

uint64_t link_step(tqi_unit_t *unit, uint64_t now_ns)
{
    tqi_node_t *first = tqi_list_first(&unit->orders);

    if (unit->member == MEMBER_EMPTYING) {
        empty(unit, now_ns);
        if (unit->member == MEMBER_EMPTYING)
            return now_ns + REGISTER_EVERY_NS; /* or when the port lets the last transfer go */
    }
    if (first)
        do_some(unit, tqi_container_of(first, order_t, node));
    uint64_t stuck_ns = tqi_u64_max(unit->heard_ns, unit->connected_ns) + 2 * unit->silence_ns;

    if (unit->controller && now_ns > stuck_ns) {
        /* A host that vanished closes no connection. */
        unit->ctrl->disconnect(unit->ctrl, unit->controller);
        redial(unit, WIRE_EV_STUCK, now_ns);
    }
    if (now_ns >= unit->register_ns) {
        tqi_err_t err;

        if (link_open(unit, now_ns, &err) != TQ_OK)
            unit->refusal = err;
    }
    if (unit->orders.cnt > 0)
        return now_ns;
    return tqi_u64_min(unit->register_ns,
                       tqi_u64_max(unit->heard_ns, unit->connected_ns) + 2 * unit->silence_ns + 1);
}

void link_fini(tqi_unit_t *unit)
{
    orders_free(unit);
    if (unit->controller)
        unit->ctrl->disconnect(unit->ctrl, unit->controller);
}
