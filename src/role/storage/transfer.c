/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every end of a transfer is transfer_event with the event that brought it, and what is then done
 * depends on the state that the table leads to and on nothing else. Memory goes back to the
 * allocator only where the phase says that nobody writes it (INV-13).
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "role/storage/internal.h"

static bool is_get(const transfer_t *t)
{
    return t->core.kind == TQI_GET_STREAM || t->core.kind == TQI_GET_DIRECT;
}

static tqi_transfer_key_t key_of(const transfer_t *t)
{
    return (tqi_transfer_key_t){t->session->id, t->core.id};
}

transfer_t *transfer_new(tqi_unit_t *unit, session_t *session, uint64_t id,
                         tqi_transfer_kind_t kind)
{
    transfer_t *t = tqi_env_zalloc(unit->env, sizeof *t);

    if (!t)
        return NULL;
    /* Room for every transfer's timer is made now: renewing a lease can't fail. */
    if (tqi_heap_reserve(&unit->timers, unit->transfers_cnt + 1) != TQ_OK ||
        tqi_map_u64_put(&session->transfers, id, t, NULL) != TQ_OK) {
        tqi_env_free(unit->env, t, sizeof *t);
        return NULL;
    }
    tqi_transfer_init(&t->core, id, kind, &unit->counts);
    t->session = session;
    tqi_view_init(&t->view, unit->env);
    tqi_buf_init(&t->frame, unit->env);
    unit->transfers_cnt++;
    return t;
}

transfer_t *transfer_find(const session_t *session, uint64_t id)
{
    return tqi_map_u64_get(&session->transfers, id);
}

void transfer_remember(session_t *session, uint64_t id)
{
    /* Without memory a late message is refused all the same, with less of a reason. */
    if (session_may_give_up(session))
        (void)tqi_intervals_add(&session->gone, id, id + 1);
}

tq_status_t transfer_missing(const tqi_unit_t *unit, const session_t *session, uint64_t id,
                             tqi_err_t *err)
{
    if (tqi_intervals_contains(&session->gone, id))
        return tqi_fail(err, TQ_E_TIMEOUT,
                        "transfer %" PRIu64
                        " was given up, or nothing named it for %u ms; nothing of it was written",
                        id, unit->conf.lease_ms);
    return tqi_fail(err, TQ_E_NOT_FOUND, "storage unit %u has no transfer %" PRIu64, unit->unit_id,
                    id);
}

static void timer_set(tqi_unit_t *unit, transfer_t *t, uint64_t deadline_ns)
{
    if (tqi_heap_node_is_in(&t->core.timer)) {
        tqi_heap_move(&unit->timers, &t->core.timer, deadline_ns);
    } else {
        tq_status_t rc = tqi_heap_insert(&unit->timers, &t->core.timer, deadline_ns);

        tqi_assert(rc == TQ_OK); /* reserved by transfer_new */
    }
}

void transfer_renew(tqi_unit_t *unit, transfer_t *t, uint64_t now_ns)
{
    switch (t->core.state) {
    case TQI_TRANSFER_OPEN:
    case TQI_TRANSFER_ARRIVED:
    case TQI_TRANSFER_BROKEN:
    case TQI_TRANSFER_COMMITTED:
        timer_set(unit, t, now_ns + unit->conf.lease_ms * NS_PER_MS);
        break;
    default:
        break; /* parked: its own deadline; given up: nothing brings it back */
    }
}

void transfer_park(tqi_unit_t *unit, transfer_t *t, uint64_t deadline_ns)
{
    timer_set(unit, t, deadline_ns);
    tqi_list_push_back(&unit->waiters[t->is_column ? 0 : 1], &t->node);
    unit->waiters_bytes += t->frame.cap;
    unit->counters.waited++;
}

static void unpark(tqi_unit_t *unit, transfer_t *t)
{
    if (!tqi_node_is_linked(&t->node))
        return;
    tqi_list_remove(&unit->waiters[t->is_column ? 0 : 1], &t->node);
    unit->waiters_bytes -= t->frame.cap;
    tqi_buf_fini(&t->frame);
    unit->is_dirty = true; /* whoever waits behind it */
}

void transfer_free(tqi_unit_t *unit, transfer_t *t)
{
    session_t *session = t->session;

    tqi_heap_remove(&unit->timers, &t->core.timer);
    tqi_transfer_fini(&t->core);
    tqi_map_u64_take(&session->transfers, t->core.id);
    session->views_bytes -= tqi_view_bytes(&t->view);
    tqi_view_fini(&t->view);
    tqi_buf_fini(&t->frame);
    tqi_env_free(unit->env, t, sizeof *t);
    unit->transfers_cnt--;
    session_free_if_done(unit, session);
}

/* Gives up cells and pins, and a PUT's memory where nobody may write to it any more. */
static void let_go(tqi_unit_t *unit, transfer_t *t)
{
    if (t->batch && tqi_transfer_phase(&t->core) == TQI_PHASE_POSTED) {
        if (!t->batch->is_doomed)
            tqi_objects_doom(unit->objs, t->batch);
    } else if (t->batch) {
        tqi_objects_cancel(unit->objs, t->batch);
        t->batch = NULL;
    }
    if (t->view.is_pinned)
        tqi_objects_unpin(unit->objs, &t->view);
    unit->is_dirty = true;
}

static void answer_owed(tqi_unit_t *unit, transfer_t *t, tqi_transfer_event_t event)
{
    tq_status_t status = t->why.status;
    const char *text = t->why.text;

    if (t->owed.kind == 0)
        return;
    if (event == TQI_TRANSFER_EV_END) {
        status = TQ_E_SESSION_EXPIRED;
        text = "the session has ended";
    } else if (event == TQI_TRANSFER_EV_CANCEL || event == TQI_TRANSFER_EV_ABORT ||
               event == TQI_TRANSFER_EV_RELEASE) {
        status = TQ_E_CANCELLED;
        text = "the client gave the transfer up";
    } else if (status == TQ_OK) {
        status = TQ_E_TIMEOUT;
        text = "nothing named the transfer for longer than its lease";
    }
    /* To the caller a cell that is taken is like space that is taken. */
    reply_error(unit, &t->owed, status == TQ_E_BUSY ? TQ_E_FULL : status, text, NULL);
}

void transfer_event(tqi_unit_t *unit, transfer_t *t, tqi_transfer_event_t event, uint64_t now_ns)
{
    bool is_legal = tqi_transfer_apply(&t->core, event);

    tqi_assert(is_legal);
    unpark(unit, t);
    if (event == TQI_TRANSFER_EV_EXPIRE) {
        unit->counters.expired++;
        transfer_remember(t->session, t->core.id);
    }
    switch (t->core.state) {
    case TQI_TRANSFER_OPEN:
    case TQI_TRANSFER_ARRIVED:
    case TQI_TRANSFER_COMMITTED:
        transfer_renew(unit, t, now_ns);
        return;
    case TQI_TRANSFER_BROKEN:
        let_go(unit, t);
        transfer_renew(unit, t, now_ns);
        return;
    case TQI_TRANSFER_DROPPING:
        /* A GET's pins are what keeps the port from reading freed memory: they stay, too. */
        if (!is_get(t))
            let_go(unit, t);
        tqi_heap_remove(&unit->timers, &t->core.timer);
        answer_owed(unit, t, event);
        unit->payload->drop(unit->payload, key_of(t));
        return;
    case TQI_TRANSFER_HELD:
        /* A client whose session was ended may live, and writes until it hears that; at the latest
         * until its lease is over, which therefore runs on. */
        let_go(unit, t);
        return;
    case TQI_TRANSFER_DONE:
        let_go(unit, t);
        answer_owed(unit, t, event);
        transfer_free(unit, t);
        return;
    default:
        tqi_assert(false);
    }
}

void transfer_on_payload(tqi_unit_t *unit, tqi_transfer_key_t key, tq_status_t status,
                         const char *text, uint64_t now_ns)
{
    session_t *session = tqi_map_u64_get(&unit->sessions, key.owner);
    transfer_t *t = session ? transfer_find(session, key.transfer) : NULL;
    tqi_transfer_event_t event = status == TQ_OK ? TQI_TRANSFER_EV_LANDED : TQI_TRANSFER_EV_FAILED;
    tqi_err_t err;

    if (!t || !tqi_transfer_can(&t->core, event)) {
        unit->counters.dropped++;
        return;
    }
    if (status != TQ_OK)
        tqi_fail(&t->why, status, "%s", text ? text : "");
    if (event == TQI_TRANSFER_EV_LANDED && t->core.state == TQI_TRANSFER_COMMITTED) {
        /* By our own clock, before what it would make visible. */
        if (link_check(unit, now_ns, &err) != TQ_OK) {
            t->why = err;
            event = TQI_TRANSFER_EV_FAILED;
        } else if (is_get(t)) {
            unit->counters.get_bytes += t->view.bytes;
            reply(unit, &t->owed, NULL);
        } else {
            put_finish(unit, t, &t->owed);
        }
    }
    transfer_event(unit, t, event, now_ns);
}

void transfer_on_cancel(tqi_unit_t *unit, session_t *session, request_t *request,
                        const tqi_msg_Cancel_t *msg, uint64_t now_ns)
{
    transfer_t *t = transfer_find(session, msg->transfer);

    if (t && t->core.state == TQI_TRANSFER_COMMITTED &&
        !tqi_transfer_can(&t->core, TQI_TRANSFER_EV_CANCEL)) {
        reply_error(unit, request, TQ_E_INVALID,
                    "the transfer is being committed: only its put can be aborted now", NULL);
        return;
    }
    if (!session_may_give_up(session)) {
        reply_error(unit, request, TQ_E_BUSY, "the session has given up too much", NULL);
        return;
    }
    /* Also when there is none: perhaps its PREPARE comes only now. */
    if (msg->transfer == UINT64_MAX ||
        tqi_intervals_add(&session->gone, msg->transfer, msg->transfer + 1) != TQ_OK) {
        reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for a cancellation", NULL);
        return;
    }
    session->given_up_seq = tqi_u64_max(session->given_up_seq, request->seq);
    if (t && tqi_transfer_can(&t->core, TQI_TRANSFER_EV_CANCEL))
        transfer_event(unit, t, TQI_TRANSFER_EV_CANCEL, now_ns);
    else if (!t && tqi_objects_abort_fused(unit->objs, session->id, msg->transfer))
        unit->is_dirty = true; /* a fused PREPARE is committed before it can be cancelled */
    reply(unit, request, NULL);
}

void transfer_on_renew(tqi_unit_t *unit, session_t *session, request_t *request,
                       const tqi_msg_Renew_t *msg, uint64_t now_ns)
{
    tqi_msg_Renew_R_t answer = {0};

    unit->u64s[0].len = 0;
    for (uint32_t i = 0; i < msg->transfers.cnt; i++) {
        uint64_t id = tqi_u64s_at(msg->transfers, i);
        transfer_t *t = transfer_find(session, id);
        bool is_there =
            t && t->core.state != TQI_TRANSFER_DROPPING && t->core.state != TQI_TRANSFER_HELD;

        if (is_there) {
            transfer_renew(unit, t, now_ns);
        } else if (tqi_vec_push(&unit->u64s[0], id) != TQ_OK) {
            reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for an answer", NULL);
            return;
        }
    }
    answer.gone = tqi_u64s(unit->u64s[0].at, (uint32_t)unit->u64s[0].len);
    reply(unit, request, &answer);
}

uint64_t transfer_step(tqi_unit_t *unit, uint64_t now_ns)
{
    tqi_heap_node_t *node;

    while ((node = tqi_heap_pop_due(&unit->timers, now_ns))) {
        transfer_t *t = tqi_container_of(node, transfer_t, core.timer);

        transfer_event(unit, t, TQI_TRANSFER_EV_EXPIRE, now_ns);
    }
    node = tqi_heap_peek(&unit->timers);
    return node ? node->deadline_ns : TQI_NEVER;
}

void transfer_fini(tqi_unit_t *unit)
{
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&unit->sessions), *next; it; it = next) {
        session_t *session = it->value;
        tqi_map_u64_item_t *first;

        next = tqi_map_u64_next(it);
        session->state = SESSION_ADRIFT; /* session_fini frees it */
        while ((first = tqi_map_u64_first(&session->transfers))) {
            transfer_t *t = first->value;

            unpark(unit, t);
            if (t->batch)
                tqi_objects_cancel(unit->objs, t->batch);
            if (t->view.is_pinned)
                tqi_objects_unpin(unit->objs, &t->view);
            transfer_free(unit, t);
        }
    }
    tqi_heap_fini(&unit->timers);
}
