/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage units: how they join, are lost and come back, and what they are told.
 *
 * Orders (UNLINK, CONFIRM, END_SESSION) go through the unit's outbox, which keeps each until it is
 * answered; PING names the open ones, and its answer those to send again. A lost unit's orders stay
 * in the outbox, and what comes up meanwhile is noted; when it is back in the same life it gets all
 * of that, and only then its rows return to the ready sets. In a new life it is empty: there is
 * nothing left to tell it but which sessions have ended, and its cells are lost.
 */
#include "role/controller/internal.h"

#include <string.h>

#define BLOCK_COST 8u

typedef enum order_kind { ORDER_UNLINK, ORDER_CONFIRM, ORDER_END } order_kind_t;

typedef struct order {
    order_kind_t kind;
    unlinking_t *unlinking; /* UNLINK: whose clear waits; NULL: nobody's */
    uint64_t session;       /* END */
} order_t;

/* ---- finding --------------------------------------------------------------------------------- */

unit_t *tqi_ctl_unit_find(tqi_controller_t *ctl, uint32_t id)
{
    return id >= 1 && id <= ctl->units.len ? ctl->units.at[id - 1] : NULL;
}

unit_t *tqi_ctl_unit_by_peer(tqi_controller_t *ctl, tqi_peer_t peer)
{
    for (size_t i = 0; i < ctl->units.len; i++)
        if (ctl->units.at[i]->peer == peer && peer != 0)
            return ctl->units.at[i];
    return NULL;
}

TQI_MACHINE(tqi_ctl_unit_machine, "unit", UNIT, UNIT_STEPS);

static void unit_step(unit_t *unit, unit_event_t event)
{
    unit->state = (unit_state_t)tqi_machine_step(&tqi_ctl_unit_machine, unit->state, event);
}

/* ---- partitions follow ----------------------------------------------------------------------- */

static void sync_queue(tqi_controller_t *ctl, tqi_list_t *parts, const unit_t *unit)
{
    tqi_list_each(parts, node)
    {
        part_t *part = tqi_container_of(node, part_t, node);

        if (tqi_partition_placed(&part->table, unit->id))
            tqi_ctl_op_queue_next(ctl, part, &part->sync);
    }
}

/* Clients and partitions learn what has become of the unit. */
static void unit_changed(tqi_controller_t *ctl, const unit_t *unit)
{
    ctl->table_version++;
    sync_queue(ctl, &ctl->parts, unit);
    sync_queue(ctl, &ctl->dying, unit);
}

bool tqi_ctl_sync_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    tqi_partition_t *table = &op->part->table;

    for (size_t i = 0; i < table->placed.len; i++) {
        tqi_placed_t *placed = table->placed.at[i];
        const unit_t *unit = tqi_ctl_unit_find(ctl, placed->unit);
        bool is_absent = unit->state != UNIT_PRESENT;
        bool is_wiped = placed->wipes_seen != unit->wipes;

        if (!placed->is_syncing && !is_wiped && placed->is_absent == is_absent)
            continue;
        if (!placed->is_syncing || placed->sync_absent != is_absent ||
            placed->sync_wipe != is_wiped) {
            placed->is_syncing = true;
            placed->sync_absent = is_absent;
            placed->sync_wipe = is_wiped;
            placed->sync_at = tqi_index_first(&table->index);
        }
        for (; placed->sync_at < tqi_index_limit(&table->index); placed->sync_at++) {
            uint64_t lost = table->cells_lost;

            if (*budget == 0)
                return false;
            if (is_wiped)
                tqi_partition_wipe(table, placed, placed->sync_at);
            tqi_partition_absent(table, placed, placed->sync_at, is_absent);
            ctl->cnt_cells_lost += table->cells_lost - lost;
            *budget -= (uint32_t)tqi_u64_min(*budget, BLOCK_COST);
        }
        placed->is_syncing = false;
        placed->wipes_seen = unit->wipes;
        placed->life_seen = unit->incarnation;
        tqi_partition_absent_done(placed, is_absent);
    }
    return true;
}

tq_status_t tqi_ctl_unit_place(tqi_controller_t *ctl, part_t *part, uint64_t lo, uint64_t hi,
                               uint32_t id)
{
    bool is_new = !tqi_partition_placed(&part->table, id);
    tq_status_t rc = tqi_partition_place(&part->table, lo, hi, id);
    tqi_placed_t *placed = tqi_partition_placed(&part->table, id);

    if (is_new && placed) {
        placed->wipes_seen = tqi_ctl_unit_find(ctl, id)->wipes;
        placed->life_seen = tqi_ctl_unit_find(ctl, id)->incarnation;
    }
    return rc;
}

/* ---- orders ---------------------------------------------------------------------------------- */

static void send_copy(tqi_controller_t *ctl, unit_t *unit, const tqi_buf_t *frame)
{
    tqi_buf_t copy;

    tqi_buf_init(&copy, ctl->env);
    if (unit->peer == 0 || tqi_buf_append(&copy, frame->data, frame->len) != TQ_OK ||
        ctl->ctrl->send(ctl->ctrl, unit->peer, &copy) != TQ_OK) {
        ctl->cnt_unsent++;
        tqi_buf_fini(&copy);
    }
}

/* Sends an order and keeps it until it is answered. */
static tq_status_t order_send(tqi_controller_t *ctl, unit_t *unit, order_kind_t kind,
                              tqi_kind_t msg_kind, const void *msg, unlinking_t *unlinking,
                              uint64_t session, uint64_t *seq_out)
{
    order_t *order = tqi_env_zalloc(ctl->env, sizeof *order);
    uint64_t open[TQI_OPEN_MAX];
    uint32_t open_cnt;
    tqi_buf_t frame;
    uint64_t seq = order ? tqi_outbox_open(unit->outbox, order) : 0;

    if (seq == 0) {
        tqi_env_free(ctl->env, order, sizeof *order);
        return TQ_E_NO_MEMORY;
    }
    *order = (order_t){.kind = kind, .unlinking = unlinking, .session = session};
    tqi_envelope_t env = {.version = TQI_VERSION_MAX,
                          .kind = (uint16_t)msg_kind,
                          .incarnation = ctl->incarnation,
                          .budget_ms = UINT32_MAX,
                          .seq = seq};
    tqi_outbox_acks(unit->outbox, false, &env.ack, open, &open_cnt);
    env.open_cnt = (uint16_t)open_cnt;
    tqi_buf_init(&frame, ctl->env);
    if (tqi_msg_encode(&frame, &env, open, msg, NULL) != TQ_OK) {
        tqi_buf_fini(&frame);
        tqi_outbox_replied(unit->outbox, seq);
        tqi_outbox_take(unit->outbox, seq);
        tqi_env_free(ctl->env, order, sizeof *order);
        return TQ_E_NO_MEMORY;
    }
    send_copy(ctl, unit, &frame);
    tqi_outbox_keep(unit->outbox, seq, &frame);
    if (seq_out)
        *seq_out = seq;
    return TQ_OK;
}

/* outbox NULL: to somebody who has no orders. */
static void ping_send_to(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_outbox_t *outbox)
{
    uint64_t open[TQI_OPEN_MAX];
    uint32_t open_cnt = 0;
    tqi_buf_t frame;
    tqi_envelope_t env = {.version = TQI_VERSION_MAX,
                          .kind = TQI_KIND_Ping,
                          .incarnation = ctl->incarnation,
                          .budget_ms = UINT32_MAX};

    if (outbox)
        tqi_outbox_acks(outbox, true, &env.ack, open, &open_cnt);
    env.open_cnt = (uint16_t)open_cnt;
    tqi_buf_init(&frame, ctl->env);
    tqi_msg_Ping_t msg = {.session_last = ctl->session_last};
    if (tqi_msg_encode(&frame, &env, open, &msg, NULL) != TQ_OK ||
        ctl->ctrl->send(ctl->ctrl, peer, &frame) != TQ_OK) {
        ctl->cnt_unsent++;
        tqi_buf_fini(&frame);
    }
}

static void ping_send(tqi_controller_t *ctl, unit_t *unit)
{
    if (unit->peer != 0)
        ping_send_to(ctl, unit->peer, unit->outbox);
}

/* Blocks that are dead for good ride along with an UNLINK. */
static tq_status_t dead_blocks(tqi_controller_t *ctl, unit_t *unit, tqi_msg_Unlink_t *msg,
                               uint64_t **blocks)
{
    uint32_t cnt = (uint32_t)tqi_u64_min(unit->dead.vec.len, TQ_REQUEST_ROWS_MAX);

    *blocks = NULL;
    if (cnt == 0)
        return TQ_OK;
    *blocks = tqi_env_calloc(ctl->env, cnt, 2 * sizeof **blocks);
    if (!*blocks)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < cnt; i++) {
        (*blocks)[i] = unit->dead.vec.at[i].lo;
        (*blocks)[cnt + i] = unit->dead.vec.at[i].hi;
    }
    msg->dead_blocks_lo = tqi_u64s(*blocks, cnt);
    msg->dead_blocks_hi = tqi_u64s(*blocks + cnt, cnt);
    return TQ_OK;
}

static tq_status_t unlink_send(tqi_controller_t *ctl, unit_t *unit, unlinking_t *unlinking,
                               uint64_t clear_id, const uint64_t *lo, const uint64_t *hi,
                               uint32_t cnt)
{
    tqi_msg_Unlink_t msg = {.clear_id = clear_id, .lo = tqi_u64s(lo, cnt), .hi = tqi_u64s(hi, cnt)};
    uint64_t *blocks;
    tq_status_t rc = dead_blocks(ctl, unit, &msg, &blocks);

    if (rc == TQ_OK)
        rc = order_send(ctl, unit, ORDER_UNLINK, TQI_KIND_Unlink, &msg, unlinking, 0, NULL);
    if (rc == TQ_OK && blocks)
        tqi_intervals_fini(&unit->dead);
    if (blocks)
        tqi_env_free(ctl->env, blocks, (size_t)msg.dead_blocks_lo.cnt * 2 * sizeof *blocks);
    return rc;
}

/* The next ranges of the first clear that waits for its turn. */
static tq_status_t push_unlink(tqi_controller_t *ctl, unit_t *unit)
{
    unlinking_t *unlinking = tqi_container_of(tqi_list_first(&unit->unlinks), unlinking_t, node);
    clearing_t *clearing = unlinking->clearing;
    const tqi_placed_t *placed = tqi_partition_placed(&clearing->part->table, unit->id);
    /* As many runs as there can be, or as fit into a message. */
    uint32_t max = (uint32_t)tqi_u64_min(
        tqi_u64_max(TQI_BLOCK_ROWS / 2, clearing->core.rows.leaf_cnt * (TQI_BLOCK_ROWS / 2)),
        TQ_REQUEST_ROWS_MAX);
    uint64_t ordinal = unlinking->ordinal;
    uint32_t cnt;
    bool has_more;
    tq_status_t rc = TQ_OK;
    uint64_t *lo = tqi_env_calloc(ctl->env, max, 2 * sizeof *lo);

    if (!lo)
        return TQ_E_NO_MEMORY;
    has_more = tqi_clear_ranges(&clearing->part->table, &clearing->core, placed, &ordinal, lo,
                                lo + max, max, &cnt);
    rc = unlink_send(ctl, unit, unlinking, clearing->core.id, lo, lo + max, cnt);
    tqi_env_free(ctl->env, lo, (size_t)max * 2 * sizeof *lo);
    if (rc != TQ_OK)
        return rc;
    unlinking->ordinal = ordinal;
    unlinking->under_way++;
    if (!has_more) {
        unlinking->is_sent_all = true;
        tqi_list_remove(&unit->unlinks, &unlinking->node);
    }
    return TQ_OK;
}

/* Everything noted while the unit was lost. Sent in part, it is sent again whole: unlinking twice is
 * unlinking once. */
static tq_status_t push_missed(tqi_controller_t *ctl, unit_t *unit)
{
    const size_t total = unit->missed.vec.len;
    size_t at = 0;

    while (at < total) {
        uint32_t cnt = (uint32_t)tqi_u64_min(total - at, TQ_REQUEST_ROWS_MAX);
        uint64_t *lo = tqi_env_calloc(ctl->env, cnt, 2 * sizeof *lo);
        tq_status_t rc = lo ? TQ_OK : TQ_E_NO_MEMORY;

        for (uint32_t i = 0; rc == TQ_OK && i < cnt; i++) {
            lo[i] = unit->missed.vec.at[at + i].lo;
            lo[cnt + i] = unit->missed.vec.at[at + i].hi;
        }
        if (rc == TQ_OK)
            rc = unlink_send(ctl, unit, NULL, 0, lo, lo + cnt, cnt);
        tqi_env_free(ctl->env, lo, (size_t)cnt * 2 * sizeof *lo);
        if (rc != TQ_OK)
            return rc;
        at += cnt;
    }
    tqi_intervals_fini(&unit->missed);
    return TQ_OK;
}

/* The oldest session whose end the unit was not told, with its puts that are not confirmed. */
static tq_status_t push_end(tqi_controller_t *ctl, unit_t *unit)
{
    uint64_t session = unit->ends.at[0];
    tqi_msg_EndSession_t msg = {.session = session};
    uint64_t *published = NULL;
    uint32_t cnt = 0, cap = 0;
    size_t kept = 0;
    tq_status_t rc;

    for (size_t i = 0; i < unit->confirms.len; i++)
        cap += unit->confirms.at[i].session == session;
    if (cap > 0) {
        published = tqi_env_calloc(ctl->env, cap, sizeof *published);
        if (!published)
            return TQ_E_NO_MEMORY;
    }
    for (size_t i = 0; i < unit->confirms.len && cnt < TQ_REQUEST_ROWS_MAX; i++)
        if (unit->confirms.at[i].session == session)
            published[cnt++] = unit->confirms.at[i].put_id;
    msg.published = tqi_u64s(published, cnt);
    rc = order_send(ctl, unit, ORDER_END, TQI_KIND_EndSession, &msg, NULL, session, NULL);
    tqi_env_free(ctl->env, published, cap * sizeof *published);
    if (rc != TQ_OK)
        return rc;
    for (size_t i = 0; i < unit->confirms.len; i++)
        if (unit->confirms.at[i].session != session || unit->confirms.at[i].seq != 0)
            unit->confirms.at[kept++] = unit->confirms.at[i];
    unit->unsent_cnt -= (uint32_t)(unit->confirms.len - kept);
    unit->confirms.len = kept;
    unit->ends.len--;
    memmove(unit->ends.at, unit->ends.at + 1, unit->ends.len * sizeof *unit->ends.at);
    return TQ_OK;
}

static tq_status_t push_confirms(tqi_controller_t *ctl, unit_t *unit)
{
    uint32_t cnt = 0, cap = (uint32_t)tqi_u64_min(unit->unsent_cnt, CONFIRM_BATCH_MAX);
    uint64_t *ids = tqi_env_calloc(ctl->env, cap, sizeof *ids);
    uint64_t seq = 0;
    tq_status_t rc = ids ? TQ_OK : TQ_E_NO_MEMORY;

    for (size_t i = 0; rc == TQ_OK && i < unit->confirms.len && cnt < cap; i++)
        if (unit->confirms.at[i].seq == 0)
            ids[cnt++] = unit->confirms.at[i].put_id;
    if (rc == TQ_OK) {
        tqi_msg_Confirm_t msg = {.put_ids = tqi_u64s(ids, cnt)};

        rc = order_send(ctl, unit, ORDER_CONFIRM, TQI_KIND_Confirm, &msg, NULL, 0, &seq);
    }
    for (size_t i = 0; rc == TQ_OK && i < unit->confirms.len && cnt > 0; i++)
        if (unit->confirms.at[i].seq == 0) {
            unit->confirms.at[i].seq = seq;
            unit->unsent_cnt--;
            cnt--;
        }
    tqi_env_free(ctl->env, ids, cap * sizeof *ids);
    return rc;
}

/* ---- lost and found -------------------------------------------------------------------------- */

/* Clears no longer wait for the unit: what they had for it is noted for its return. */
static void absorb(tqi_controller_t *ctl, unit_t *unit)
{
    enum { RUNS = 1024 };
    uint64_t lo[RUNS], hi[RUNS];
    tqi_node_t *node;

    while ((node = tqi_list_first(&unit->unlinks))) {
        unlinking_t *unlinking = tqi_container_of(node, unlinking_t, node);
        clearing_t *clearing = unlinking->clearing;
        const tqi_partition_t *table = &clearing->part->table;
        const tqi_placed_t *placed = tqi_partition_placed(table, unit->id);
        bool has_more = true;

        while (has_more) {
            uint64_t ordinal = unlinking->ordinal;
            uint32_t cnt;

            has_more =
                tqi_clear_ranges(table, &clearing->core, placed, &ordinal, lo, hi, RUNS, &cnt);
            for (uint32_t i = 0; i < cnt; i++)
                if (tqi_intervals_add(&unit->missed, lo[i], hi[i]) != TQ_OK) {
                    ctl->is_starved = true;
                    return;
                }
            unlinking->ordinal = ordinal;
        }
        tqi_list_remove(&unit->unlinks, node);
        unlinking->is_sent_all = true;
        if (unlinking->under_way == 0)
            tqi_ctl_clearing_unit_done(ctl, unlinking);
    }
}

/* An order that a clear waits for goes on without it. */
static void detach_order(void *ctx, uint64_t seq, void *user)
{
    order_t *order = user;
    unlinking_t *unlinking = order->unlinking;

    (void)seq;
    if (!unlinking)
        return;
    order->unlinking = NULL;
    if (--unlinking->under_way == 0 && unlinking->is_sent_all)
        tqi_ctl_clearing_unit_done(ctx, unlinking);
}

static void unit_lost(tqi_controller_t *ctl, unit_t *unit)
{
    unit_step(unit, UNIT_EV_SILENT);
    ctl->cnt_units_lost++;
    tqi_outbox_each(unit->outbox, detach_order, ctl);
    absorb(ctl, unit);
    unit_changed(ctl, unit);
}

static void free_order(void *ctx, uint64_t seq, void *user)
{
    tqi_controller_t *ctl = ctx;

    (void)seq;
    tqi_env_free(ctl->env, user, sizeof(order_t));
}

/* What the unit had is gone, and there is nothing that any order could be about. incarnation: of the
 * life that begins; 0: none does. E_NO_MEMORY. */
static tq_status_t unit_wipe(tqi_controller_t *ctl, unit_t *unit, uint64_t incarnation)
{
    tqi_outbox_t *outbox = tqi_outbox_new(ctl->env);
    tqi_node_t *node;

    if (!outbox || tqi_vec_reserve(&unit->former, 1) != TQ_OK) {
        tqi_outbox_free(outbox);
        return TQ_E_NO_MEMORY;
    }
    if (unit->former.len == UNIT_FORMER_MAX)
        memmove(unit->former.at, unit->former.at + 1, --unit->former.len * sizeof *unit->former.at);
    if (unit->incarnation != incarnation)
        unit->former.at[unit->former.len++] = unit->incarnation;
    unit->incarnation = incarnation;
    tqi_outbox_each(unit->outbox, detach_order, ctl);
    tqi_outbox_each(unit->outbox, free_order, ctl);
    tqi_outbox_free(unit->outbox);
    unit->outbox = outbox;
    while ((node = tqi_list_pop_front(&unit->unlinks)))
        tqi_ctl_clearing_unit_done(ctl, tqi_container_of(node, unlinking_t, node));
    tqi_intervals_fini(&unit->missed);
    tqi_intervals_fini(&unit->dead);
    unit->confirms.len = 0;
    unit->unsent_cnt = 0;
    unit->ends.len = 0;
    unit->wipes++;
    unit->wiped_at = ++ctl->wipes;
    unit->put_last = ctl->put_last;
    return TQ_OK;
}

static tq_status_t unit_reborn(tqi_controller_t *ctl, unit_t *unit, uint64_t incarnation)
{
    tq_status_t rc = unit_wipe(ctl, unit, incarnation);

    if (rc != TQ_OK)
        return rc;
    unit_step(unit, UNIT_EV_NEW_LIFE);
    unit_changed(ctl, unit);
    return TQ_OK;
}

void tqi_ctl_forget_handle(tqi_controller_t *ctl, request_t *req)
{
    unit_t *unit = tqi_ctl_unit_find(ctl, req->msg.forget.unit_id);
    tqi_err_t err;
    tq_status_t rc = TQ_OK;

    if (!unit)
        rc = tqi_fail(&err, TQ_E_NOT_FOUND, "there is no storage unit %u", req->msg.forget.unit_id);
    else if (unit->state != UNIT_LOST)
        rc = tqi_fail(&err, TQ_E_INVALID,
                      "storage unit %u ('%s') is not lost, and its rows are there: stop it first",
                      unit->id, unit->name);
    else if (unit->incarnation != 0 && unit_wipe(ctl, unit, 0) != TQ_OK)
        rc = tqi_fail(&err, TQ_E_NO_MEMORY, "no memory to forget a storage unit");
    if (rc != TQ_OK) {
        tqi_ctl_request_fail(ctl, req, &err);
        return;
    }
    /* Whatever it still says is of a life that is over. */
    unit->peer = 0;
    unit->claim_peer = 0;
    unit_changed(ctl, unit);
    tqi_ctl_request_reply(ctl, req, &(tqi_msg_Forget_R_t){0});
}

void tqi_ctl_unit_push(tqi_controller_t *ctl, unit_t *unit)
{
    tq_status_t rc = TQ_OK;

    if (unit->state == UNIT_LOST) {
        absorb(ctl, unit);
        return;
    }
    while (unit->peer != 0 && rc == TQ_OK && tqi_outbox_cnt(unit->outbox) < UNIT_ORDERS_MAX) {
        if (unit->missed.vec.len > 0)
            rc = push_missed(ctl, unit);
        else if (tqi_list_first(&unit->unlinks))
            rc = push_unlink(ctl, unit);
        else if (unit->ends.len > 0)
            rc = push_end(ctl, unit);
        else if (unit->unsent_cnt > 0 && (unit->unsent_cnt >= CONFIRM_BATCH_MAX ||
                                          !tqi_heap_node_is_in(&unit->confirm.node)))
            rc = push_confirms(ctl, unit);
        else
            break;
    }
    if (rc != TQ_OK)
        ctl->is_starved = true;
    if (unit->state == UNIT_RETURNING && unit->peer != 0 && tqi_outbox_cnt(unit->outbox) == 0 &&
        unit->missed.vec.len == 0 && unit->unlinks.cnt == 0 && unit->ends.len == 0 &&
        unit->confirms.len == 0) {
        unit_step(unit, UNIT_EV_CAUGHT_UP);
        unit_changed(ctl, unit);
    }
}

/* ---- what the rest of the controller asks ---------------------------------------------------- */

tq_status_t tqi_ctl_unit_confirm_reserve(unit_t *unit, uint32_t cnt)
{
    return tqi_vec_reserve(&unit->confirms, cnt);
}

void tqi_ctl_unit_confirm(tqi_controller_t *ctl, unit_t *unit, put_t *put)
{
    confirm_t confirm = {.put_id = put->id, .session = put->session->id};

    unit->confirms.at[unit->confirms.len++] = confirm;
    unit->unsent_cnt++;
    /* Without a timer it is sent at once. */
    if (!tqi_heap_node_is_in(&unit->confirm.node))
        (void)tqi_ctl_timer_arm(ctl, &unit->confirm, ctl->now_ns + ms_to_ns(ctl->confirm_ms));
}

void tqi_ctl_unit_session_ended(tqi_controller_t *ctl, unit_t *unit, uint64_t session)
{
    tqi_assert(unit->ends.len < unit->ends.cap);
    unit->ends.at[unit->ends.len++] = session;
    tqi_ctl_unit_push(ctl, unit);
}

void tqi_ctl_unit_block_dead(tqi_controller_t *ctl, part_t *part, uint64_t block)
{
    for (size_t i = 0; i < part->table.placed.len; i++) {
        unit_t *unit = tqi_ctl_unit_find(ctl, part->table.placed.at[i]->unit);

        /* Forgotten for want of memory, it only costs the unit a bitmap. */
        if (unit)
            (void)tqi_intervals_add(&unit->dead, block, block + 1);
    }
}

bool tqi_ctl_unit_is_there(const tqi_controller_t *ctl)
{
    for (size_t i = 0; i < ctl->units.len; i++)
        if (ctl->units.at[i]->state == UNIT_PRESENT)
            return true;
    return false;
}

uint32_t tqi_ctl_unit_choose(tqi_controller_t *ctl, const session_t *session, uint64_t bytes)
{
    uint32_t cnt = 0, chosen;
    unit_t *unit;

    for (size_t i = 0; i < ctl->units.len; i++) {
        const unit_t *u = ctl->units.at[i];

        if (u->state == UNIT_PRESENT)
            ctl->candidates.at[cnt++] = (tqi_candidate_t){
                .unit = u->id,
                .is_local = session && u->host[0] && strcmp(u->host, session->boot_id) == 0,
                .free_bytes = u->free_bytes - tqi_u64_min(u->free_bytes, u->placed_bytes)};
    }
    if (cnt == 0)
        return 0;
    chosen = tqi_placement_choose(ctl->candidates.at, cnt, bytes, &ctl->placement_turn);
    unit = tqi_ctl_unit_find(ctl, ctl->candidates.at[chosen].unit);
    unit->placed_bytes += bytes;
    return unit->id;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void ping_due(tqi_controller_t *ctl, ctl_timer_t *timer)
{
    unit_t *unit = tqi_container_of(timer, unit_t, ping);
    uint64_t lost_at = unit->heard_ns + ms_to_ns(ctl->unit_lost_ms);
    uint64_t next = ctl->now_ns + ms_to_ns(ctl->ping_ms);

    if (unit->state != UNIT_LOST && ctl->now_ns >= lost_at)
        unit_lost(ctl, unit);
    ping_send(ctl, unit);
    if (unit->state != UNIT_LOST)
        next = tqi_u64_min(next, lost_at);
    /* It has just left the heap, so there is room. */
    tq_status_t rc = tqi_ctl_timer_arm(ctl, timer, next);
    tqi_assert(rc == TQ_OK);
}

static void confirm_due(tqi_controller_t *ctl, ctl_timer_t *timer)
{
    tqi_ctl_unit_push(ctl, tqi_container_of(timer, unit_t, confirm));
}

/* ---- REGISTER -------------------------------------------------------------------------------- */

void tqi_ctl_unit_free(tqi_controller_t *ctl, unit_t *unit)
{
    tqi_ctl_timer_disarm(ctl, &unit->ping);
    tqi_ctl_timer_disarm(ctl, &unit->confirm);
    if (unit->outbox) {
        tqi_outbox_each(unit->outbox, free_order, ctl);
        tqi_outbox_free(unit->outbox);
    }
    tqi_intervals_fini(&unit->missed);
    tqi_intervals_fini(&unit->dead);
    tqi_vec_fini(&unit->confirms);
    tqi_vec_fini(&unit->ends);
    tqi_vec_fini(&unit->former);
    if (unit->addresses)
        tqi_env_free(ctl->env, unit->addresses, (size_t)unit->addresses_len + 1);
    tqi_env_free(ctl->env, unit, sizeof *unit);
}

/* "a,b" of the message's list; NULL: out of memory. */
static char *addresses_join(tqi_controller_t *ctl, tqi_strs_t list, uint32_t *len)
{
    uint32_t total = list.bytes_len + (list.cnt > 0 ? list.cnt - 1 : 0), at = 0;
    char *text = tqi_env_alloc(ctl->env, (size_t)total + 1);

    for (uint32_t i = 0; text && i < list.cnt; i++) {
        tqi_str_t item = tqi_strs_at(list, i);

        if (i > 0)
            text[at++] = ',';
        if (item.len > 0)
            memcpy(text + at, item.data, item.len);
        at += item.len;
    }
    if (text)
        text[total] = 0;
    *len = total;
    return text;
}

static unit_t *unit_new(tqi_controller_t *ctl)
{
    unit_t *unit = tqi_env_zalloc(ctl->env, sizeof *unit);
    size_t sessions = tqi_map_u64_count(&ctl->sessions);

    if (!unit)
        return NULL;
    unit->id = (uint32_t)ctl->units.len + 1;
    unit->state = UNIT_PRESENT;
    unit->ping.fire = ping_due;
    unit->confirm.fire = confirm_due;
    unit->heard_ns = ctl->now_ns;
    unit->put_last = ctl->put_last;
    tqi_list_init(&unit->unlinks);
    tqi_intervals_init(&unit->missed, ctl->env);
    tqi_intervals_init(&unit->dead, ctl->env);
    tqi_vec_init(&unit->confirms, ctl->env);
    tqi_vec_init(&unit->ends, ctl->env);
    tqi_vec_init(&unit->former, ctl->env);
    unit->outbox = tqi_outbox_new(ctl->env);
    if (!unit->outbox || tqi_vec_reserve(&unit->ends, sessions + 1) != TQ_OK ||
        tqi_vec_reserve(&ctl->units, 1) != TQ_OK ||
        tqi_vec_reserve(&ctl->candidates, ctl->units.len + 1) != TQ_OK ||
        tqi_ctl_timer_arm(ctl, &unit->ping, ctl->now_ns + ms_to_ns(ctl->ping_ms)) != TQ_OK) {
        tqi_ctl_unit_free(ctl, unit);
        return NULL;
    }
    ctl->units.at[ctl->units.len++] = unit;
    return unit;
}

/* Somebody of the list is in the unit's text of addresses. */
static bool is_reached_at(const unit_t *unit, tqi_strs_t list)
{
    for (const char *at = unit->addresses; at && *at; at += *at == ',') {
        size_t len = strcspn(at, ",");

        for (uint32_t i = 0; i < list.cnt; i++) {
            tqi_str_t item = tqi_strs_at(list, i);

            if (item.len == len && memcmp(item.data, at, len) == 0)
                return true;
        }
        at += len;
    }
    return false;
}

/* The unit that a REGISTER speaks for: by its life, or by where it is reached. One address in common
 * is enough, since its name inside its process is another one each time; but 127.0.0.1 is also an
 * address of other machines, whose units are not dead because of that. */
static unit_t *unit_known(tqi_controller_t *ctl, const tqi_msg_Register_t *msg)
{
    for (size_t i = 0; i < ctl->units.len; i++) {
        unit_t *unit = ctl->units.at[i];

        if (unit->incarnation == msg->unit_incarnation)
            return unit;
    }
    for (size_t i = 0; i < ctl->units.len; i++) {
        unit_t *unit = ctl->units.at[i];
        bool is_same_host =
            strlen(unit->host) == msg->host.len &&
            (msg->host.len == 0 || memcmp(unit->host, msg->host.data, msg->host.len) == 0);

        if ((is_same_host || unit->state == UNIT_LOST) && is_reached_at(unit, msg->addresses))
            return unit;
    }
    return NULL;
}

static void copy_str(char *out, size_t size, tqi_str_t str)
{
    size_t len = tqi_size_min(size - 1, str.len);

    if (len > 0)
        memcpy(out, str.data, len);
    out[len] = 0;
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* Frames of a process that has died, or of a connection that was replaced, still arrive, and must not
 * undo what came after them. Lives have no order by themselves: which of two is the later one is seen
 * by who answers a PING. So a REGISTER that would end another life is only a claim until then; it
 * comes again twice a second. What was ended never comes back. */

static tq_status_t judge_life(tqi_controller_t *ctl, const tqi_msg_Register_t *msg, tqi_err_t *err)
{
    for (size_t i = 0; i < ctl->units.len; i++) {
        const unit_t *unit = ctl->units.at[i];

        for (size_t k = 0; k < unit->former.len; k++)
            if (unit->former.at[k] == msg->unit_incarnation)
                return tqi_fail(err, TQ_E_DENIED,
                                "this life of storage unit %u is over: another one has taken its "
                                "place. Start it again",
                                unit->id);
    }
    return TQ_OK;
}

static bool is_late(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                    const tqi_msg_Register_t *msg)
{
    for (size_t i = 0; i < ctl->units.len; i++) {
        const unit_t *unit = ctl->units.at[i];

        if (unit->incarnation == msg->unit_incarnation && unit->peer != peer &&
            env->epoch < unit->epoch)
            return true;
    }
    return false;
}

/* Whether it may take the unit over now. */
static bool claim(tqi_controller_t *ctl, unit_t *unit, tqi_peer_t peer, uint64_t incarnation)
{
    if (unit->claim_peer != peer || unit->claim_incarnation != incarnation) {
        unit->claim_peer = peer;
        unit->claim_incarnation = incarnation;
        unit->is_claim_proven = false;
    }
    if (!unit->is_claim_proven)
        ping_send_to(ctl, peer, NULL);
    return unit->is_claim_proven;
}

void tqi_ctl_stranger_reply_handle(tqi_controller_t *ctl, tqi_peer_t peer,
                                   const tqi_envelope_t *env)
{
    for (size_t i = 0; i < ctl->units.len; i++)
        if (ctl->units.at[i]->claim_peer == peer && env->kind == TQI_KIND_Ping_R) {
            ctl->units.at[i]->is_claim_proven = true;
            return;
        }
    ctl->cnt_stray++;
}

/* ---- joining --------------------------------------------------------------------------------- */

static tq_status_t register_judge(tqi_controller_t *ctl, tqi_peer_t peer,
                                  const tqi_msg_Register_t *msg, tqi_err_t *err)
{
    const unit_t *of_peer = tqi_ctl_unit_by_peer(ctl, peer);

    if (msg->version_min > TQI_VERSION_MAX || msg->version_max < TQI_VERSION_MIN)
        return tqi_fail(err, TQ_E_VERSION,
                        "the unit speaks versions %u to %u of the protocol, the controller %u to "
                        "%u",
                        msg->version_min, msg->version_max, TQI_VERSION_MIN, TQI_VERSION_MAX);
    if (msg->unit_incarnation == 0)
        return tqi_fail(err, TQ_E_INVALID, "a unit needs an incarnation");
    if (msg->store_incarnation != 0 && msg->store_incarnation != ctl->incarnation)
        return tqi_fail(err, TQ_E_STALE_STORE,
                        "the unit holds rows of store %016llx, this is %016llx: it must empty "
                        "itself first",
                        (unsigned long long)msg->store_incarnation,
                        (unsigned long long)ctl->incarnation);
    if (ctl->is_draining)
        return tqi_fail(err, TQ_E_CLOSING, "the store is shutting down");
    if (msg->addresses.bytes_len + msg->addresses.cnt > UNIT_ADDRESSES_MAX)
        return tqi_fail(err, TQ_E_INVALID, "a unit's addresses have %u bytes, %u are allowed",
                        msg->addresses.bytes_len, UNIT_ADDRESSES_MAX);
    if (of_peer && of_peer->incarnation != msg->unit_incarnation)
        return tqi_fail(err, TQ_E_DENIED, "this connection is storage unit %u's", of_peer->id);
    return judge_life(ctl, msg, err);
}

/* Joins, comes back, or is born again. */
static tq_status_t register_apply(tqi_controller_t *ctl, tqi_peer_t peer, uint32_t epoch,
                                  const tqi_msg_Register_t *msg, unit_t **out, tqi_err_t *err)
{
    uint32_t addresses_len;
    char *addresses = addresses_join(ctl, msg->addresses, &addresses_len);
    unit_t *unit = addresses ? unit_known(ctl, msg) : NULL;
    bool is_new = addresses && !unit;
    tq_status_t rc = addresses ? TQ_OK : TQ_E_NO_MEMORY;

    if (is_new && ctl->units.len >= STORE_UNITS_MAX)
        rc = TQ_E_TOO_LARGE;
    if (rc == TQ_OK && is_new) {
        unit = unit_new(ctl);
        rc = unit ? TQ_OK : TQ_E_NO_MEMORY;
    } else if (rc == TQ_OK && (unit->incarnation != msg->unit_incarnation ||
                               /* It says that it is empty, and is not merely asking again. */
                               (msg->store_incarnation == 0 && unit->peer != peer))) {
        rc = unit_reborn(ctl, unit, msg->unit_incarnation);
    } else if (rc == TQ_OK) {
        unit_step(unit, UNIT_EV_SAME_LIFE);
    }
    if (rc != TQ_OK) {
        if (addresses)
            tqi_env_free(ctl->env, addresses, (size_t)addresses_len + 1);
        return rc == TQ_E_TOO_LARGE
                   ? tqi_fail(err, rc, "the store has %zu storage units, and takes no more",
                              ctl->units.len)
                   : tqi_fail(err, rc, "no memory for a storage unit");
    }
    if (unit->addresses)
        tqi_env_free(ctl->env, unit->addresses, (size_t)unit->addresses_len + 1);
    unit->addresses = addresses;
    unit->addresses_len = addresses_len;
    unit->incarnation = msg->unit_incarnation;
    unit->peer = peer;
    unit->epoch = epoch;
    unit->claim_peer = 0;
    unit->heard_ns = ctl->now_ns;
    unit->capacity_bytes = msg->capacity_bytes;
    unit->free_bytes = msg->free_bytes;
    unit->placed_bytes = 0;
    copy_str(unit->name, sizeof unit->name, msg->name);
    copy_str(unit->host, sizeof unit->host, msg->host);
    ctl->table_version++;
    *out = unit;
    return TQ_OK;
}

/* The sessions that have ended, as ranges between those that live. A unit that is new, or born again,
 * was never told of their ends, and without them would take a late HELLO for a session that nobody
 * ends again. *ranges is the caller's. E_NO_MEMORY. */
static tq_status_t ended_sessions(tqi_controller_t *ctl, tqi_msg_Register_R_t *reply,
                                  uint64_t **ranges)
{
    size_t max = tqi_map_u64_count(&ctl->sessions) + 1;
    uint64_t *lo = tqi_env_calloc(ctl->env, max, 2 * sizeof *lo), *hi, from = 1;
    uint32_t cnt = 0;

    *ranges = lo;
    if (!lo)
        return TQ_E_NO_MEMORY;
    hi = lo + max;
    /* In the order in which they began. */
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions);;
         item = tqi_map_u64_next(item)) {
        uint64_t to = item ? item->key : ctl->session_last + 1;

        if (from < to && cnt < TQ_REQUEST_ROWS_MAX) {
            lo[cnt] = from;
            hi[cnt++] = to;
        }
        if (!item)
            break;
        from = to + 1;
    }
    reply->ended_lo = tqi_u64s(lo, cnt);
    reply->ended_hi = tqi_u64s(hi, cnt);
    return TQ_OK;
}

static void register_reply(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                           const unit_t *unit)
{
    tqi_msg_Register_R_t reply = {.version = TQI_VERSION_MAX,
                                  .unit_id = unit->id,
                                  .silence_ms = ctl->silence_ms,
                                  .put_last = unit->put_last};
    uint64_t *ranges;

    /* Without an answer it asks again. */
    if (ended_sessions(ctl, &reply, &ranges) != TQ_OK)
        return;
    tqi_ctl_reply_direct(ctl, peer, env, TQI_KIND_Register_R, &reply);
    tqi_env_free(ctl->env, ranges, (tqi_map_u64_count(&ctl->sessions) + 1) * 2 * sizeof *ranges);
}

void tqi_ctl_register_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env)
{
    tqi_msg_Register_t msg;
    unit_t *unit = NULL;
    tqi_err_t err;

    if (tqi_msg_decode(env, TQI_KIND_Register, &msg, &err) != TQ_OK) {
        ctl->cnt_malformed++;
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    if (is_late(ctl, peer, env, &msg)) {
        ctl->cnt_late++;
        return;
    }
    if (register_judge(ctl, peer, &msg, &err) != TQ_OK) {
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    unit = unit_known(ctl, &msg);
    if (unit && unit->incarnation != msg.unit_incarnation &&
        !claim(ctl, unit, peer, msg.unit_incarnation))
        return;
    if (register_apply(ctl, peer, env->epoch, &msg, &unit, &err) != TQ_OK) {
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    register_reply(ctl, peer, env, unit);
    ping_send(ctl, unit);
    tqi_ctl_unit_push(ctl, unit);
}

void tqi_ctl_unit_closing_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env)
{
    unit_t *unit = tqi_ctl_unit_by_peer(ctl, peer);

    if (!unit || env->incarnation != ctl->incarnation) {
        ctl->cnt_stray++;
        return;
    }
    tqi_ctl_reply_direct(ctl, peer, env, TQI_KIND_Closing_R, &(tqi_msg_Closing_R_t){0});
    unit->peer = 0; /* nothing late of this connection speaks for it any more */
    if (unit->state != UNIT_LOST)
        unit_lost(ctl, unit);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void pong_handle(tqi_controller_t *ctl, unit_t *unit, const tqi_envelope_t *env)
{
    tqi_msg_Ping_R_t msg;

    if (tqi_msg_decode(env, TQI_KIND_Ping_R, &msg, NULL) != TQ_OK) {
        ctl->cnt_malformed++;
        return;
    }
    unit->capacity_bytes = msg.capacity_bytes;
    unit->free_bytes = msg.free_bytes;
    unit->zombie_bytes = msg.zombie_bytes;
    unit->placed_bytes = 0;
    for (uint32_t i = 0; i < msg.resend.cnt; i++) {
        const tqi_buf_t *frame = tqi_outbox_frame(unit->outbox, tqi_u64s_at(msg.resend, i));

        if (frame)
            send_copy(ctl, unit, frame);
    }
}

static void order_answered(tqi_controller_t *ctl, unit_t *unit, const tqi_envelope_t *env)
{
    order_t *order = tqi_outbox_replied(unit->outbox, env->seq);
    tqi_msg_Unlink_R_t msg;
    size_t kept = 0;

    if (!order) {
        ctl->cnt_stray++;
        return;
    }
    tqi_outbox_take(unit->outbox, env->seq);
    switch (order->kind) {
    case ORDER_UNLINK:
        if (tqi_msg_decode(env, TQI_KIND_Unlink_R, &msg, NULL) == TQ_OK && msg.free_bytes > 0) {
            unit->free_bytes = msg.free_bytes;
            unit->zombie_bytes = msg.zombie_bytes;
        }
        if (order->unlinking)
            detach_order(ctl, env->seq, order);
        break;
    case ORDER_CONFIRM:
        for (size_t i = 0; i < unit->confirms.len; i++)
            if (unit->confirms.at[i].seq != env->seq)
                unit->confirms.at[kept++] = unit->confirms.at[i];
        unit->confirms.len = kept;
        break;
    case ORDER_END:
        break;
    }
    tqi_env_free(ctl->env, order, sizeof *order);
}

void tqi_ctl_unit_reply_handle(tqi_controller_t *ctl, unit_t *unit, const tqi_envelope_t *env)
{
    if (env->incarnation != ctl->incarnation) {
        ctl->cnt_stray++;
        return;
    }
    unit->heard_ns = ctl->now_ns;
    /* Only its way to here was cut: it has heard us all the time, so it does not register again. */
    if (unit->state == UNIT_LOST) {
        unit_step(unit, UNIT_EV_SAME_LIFE);
        ctl->table_version++;
    }
    /* A refusal leaves the order open; the next PING asks for it again. */
    if (env->status != TQ_OK)
        ctl->cnt_stray++;
    else if (env->kind == TQI_KIND_Ping_R)
        pong_handle(ctl, unit, env);
    else
        order_answered(ctl, unit, env);
    tqi_ctl_unit_push(ctl, unit);
}
