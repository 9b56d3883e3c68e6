/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The role itself: frames in, timers, partitions and the runner of their ops.
 *
 * A message for an idle partition runs at once, within a slice; what is left of it, and whatever
 * comes meanwhile, queues at the partition and goes on in step(), one partition after another.
 */
#include "role/controller/internal.h"

#include <string.h>

#define STARVED_NS ms_to_ns(10)

/* ---- timers ---------------------------------------------------------------------------------- */

tq_status_t tqi_ctl_timer_arm(tqi_controller_t *ctl, ctl_timer_t *timer, uint64_t deadline_ns)
{
    if (!tqi_heap_node_is_in(&timer->node))
        return tqi_heap_insert(&ctl->timers, &timer->node, deadline_ns);
    tqi_heap_move(&ctl->timers, &timer->node, deadline_ns);
    return TQ_OK;
}

void tqi_ctl_timer_disarm(tqi_controller_t *ctl, ctl_timer_t *timer)
{
    tqi_heap_remove(&ctl->timers, &timer->node);
}

/* ---- ops ------------------------------------------------------------------------------------- */

static void part_runnable(tqi_controller_t *ctl, part_t *part)
{
    if (!tqi_node_is_linked(&part->run_node))
        tqi_list_push_back(&ctl->runnable, &part->run_node);
}

void tqi_ctl_op_queue(tqi_controller_t *ctl, part_t *part, op_t *op)
{
    if (tqi_node_is_linked(&op->node))
        return;
    op->part = part;
    op->is_started = false;
    tqi_list_push_back(&part->queue, &op->node);
    part_runnable(ctl, part);
}

void tqi_ctl_op_queue_next(tqi_controller_t *ctl, part_t *part, op_t *op)
{
    tqi_node_t *first = tqi_list_first(&part->queue);

    if (tqi_node_is_linked(&op->node))
        return;
    op->part = part;
    op->is_started = false;
    if (first && tqi_container_of(first, op_t, node)->is_started)
        tqi_list_insert_after(&part->queue, first, &op->node);
    else
        tqi_list_push_front(&part->queue, &op->node);
    part_runnable(ctl, part);
}

void tqi_ctl_op_unqueue(op_t *op)
{
    tqi_invariant(!op->is_started, "INV-10");
    if (tqi_node_is_linked(&op->node))
        tqi_list_remove(&op->part->queue, &op->node);
}

void tqi_ctl_part_run(tqi_controller_t *ctl, part_t *part)
{
    uint32_t budget = ctl->slice_rows;
    tqi_node_t *node;

    tqi_invariant(!part->is_running, "INV-10");
    part->is_running = true;
    if (tqi_node_is_linked(&part->run_node))
        tqi_list_remove(&ctl->runnable, &part->run_node);
    while (budget > 0 && (node = tqi_list_first(&part->queue))) {
        op_t *op = tqi_container_of(node, op_t, node);

        op->is_started = true;
        if (!op->step(ctl, op, &budget)) {
            ctl->cnt_yields++;
            /* A request that can't be kept for later goes on now. */
            if (op->is_request && tqi_ctl_request_own(ctl, request_of(op)) != TQ_OK) {
                budget = ctl->slice_rows;
                continue;
            }
            break;
        }
        tqi_list_remove(&part->queue, &op->node);
        op->is_started = false;
        if (op->is_request)
            tqi_ctl_part_count_queued(part, op, -1);
        if (op->finish)
            op->finish(ctl, op);
        /* Whatever the op did, those who can be served now are served before the next one. */
        if (part->changes_woken != part->table.changes)
            tqi_ctl_op_queue_next(ctl, part, &part->wake);
        if (budget > 0)
            budget--;
    }
    part->is_running = false;
    if (tqi_list_first(&part->queue))
        part_runnable(ctl, part);
    else
        tqi_ctl_part_maybe_free(ctl, part);
}

/* ---- partitions ------------------------------------------------------------------------------ */

part_t *tqi_ctl_part_find(tqi_controller_t *ctl, const void *name, size_t len)
{
    return tqi_map_str_get(&ctl->part_map, name, len);
}

static part_t *part_new(tqi_controller_t *ctl, const void *name, size_t len)
{
    part_t *part = tqi_env_zalloc(ctl->env, sizeof *part);

    if (!part)
        return NULL;
    part->name = tqi_env_alloc(ctl->env, len + 1);
    if (!part->name) {
        tqi_env_free(ctl->env, part, sizeof *part);
        return NULL;
    }
    if (len > 0)
        memcpy(part->name, name, len);
    part->name[len] = 0;
    part->name_len = (uint32_t)len;
    part->ordinal = ++ctl->part_ordinal;
    tqi_partition_init(&part->table, ctl->env, &ctl->source);
    tqi_list_init(&part->queue);
    tqi_list_init(&part->clears);
    tqi_list_init(&part->puts);
    tqi_map_str_init(&part->leaving, ctl->env);
    part->wake.step = tqi_ctl_wake_step;
    part->wake.part = part;
    part->sync.step = tqi_ctl_sync_step;
    part->sync.part = part;
    tqi_list_push_back(&ctl->parts, &part->node);
    return part;
}

static void part_free(tqi_controller_t *ctl, part_t *part)
{
    tqi_list_remove(part->is_dying ? &ctl->dying : &ctl->parts, &part->node);
    if (tqi_node_is_linked(&part->run_node))
        tqi_list_remove(&ctl->runnable, &part->run_node);
    tqi_map_str_fini(&part->leaving, NULL, NULL);
    tqi_partition_fini(&part->table);
    tqi_env_free(ctl->env, part->name, (size_t)part->name_len + 1);
    tqi_env_free(ctl->env, part, sizeof *part);
}

tq_status_t tqi_ctl_part_make(tqi_controller_t *ctl, const void *name, size_t len, part_t **out,
                              tqi_err_t *err)
{
    part_t *part = tqi_ctl_part_find(ctl, name, len);

    if (part) {
        *out = part;
        return TQ_OK;
    }
    if (ctl->parts.cnt >= TQ_PARTITIONS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "a store may have %u partitions", TQ_PARTITIONS_MAX);
    part = part_new(ctl, name, len);
    if (!part)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a partition");
    if (tqi_map_str_put(&ctl->part_map, name, len, part, NULL) != TQ_OK) {
        part_free(ctl, part);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a partition");
    }
    *out = part;
    return TQ_OK;
}

tq_status_t tqi_ctl_part_known(tqi_controller_t *ctl, part_t *part, tqi_err_t *err)
{
    tq_status_t rc;

    if (part->is_known)
        return TQ_OK;
    rc = tqi_partition_prealloc(&part->table, ctl->prealloc_rows, err);
    if (rc == TQ_OK)
        part->is_known = true;
    return rc;
}

void tqi_ctl_part_maybe_free(tqi_controller_t *ctl, part_t *part)
{
    if (part->is_running || part->queue.cnt > 0 || part->clears.cnt > 0 ||
        (part->is_known && !part->is_dying) || tqi_waiter_cnt(&part->table) > 0 ||
        tqi_partition_rows_cnt(&part->table) > 0)
        return;
    while (part->puts.cnt > 0) {
        put_t *put = tqi_container_of(tqi_list_pop_front(&part->puts), put_t, in_part);

        put->part = NULL;
        tqi_ctl_put_step(put, CTL_PUT_EV_PART_GONE);
    }
    tqi_ctl_grants_drop(ctl, part);
    if (!part->is_dying)
        tqi_map_str_take(&ctl->part_map, part->name, part->name_len);
    part_free(ctl, part);
}

tq_status_t tqi_ctl_part_detach(tqi_controller_t *ctl, part_t *part, op_t *running)
{
    uint64_t heirs = tqi_waiter_cnt(&part->table);
    part_t *heir = NULL;
    void *old;

    tqi_list_each(&part->queue, node)
    {
        op_t *op = tqi_container_of(node, op_t, node);

        heirs += op != running && op->is_request;
    }
    if (heirs == 0) {
        tqi_map_str_take(&ctl->part_map, part->name, part->name_len);
    } else {
        heir = part_new(ctl, part->name, part->name_len);
        if (!heir)
            return TQ_E_NO_MEMORY;
        tqi_map_str_put(&ctl->part_map, part->name, part->name_len, heir, &old);
        /* Waiters begin anew there, before what came after them. */
        tqi_ctl_fetch_rehome(ctl, part, heir);
        tqi_list_each(&part->queue, node)
        {
            op_t *op = tqi_container_of(node, op_t, node);

            if (op == running || !op->is_request)
                continue;
            tqi_list_remove(&part->queue, &op->node);
            tqi_ctl_part_count_queued(part, op, -1);
            tqi_ctl_op_queue(ctl, heir, op);
            tqi_ctl_part_count_queued(heir, op, 1);
        }
    }
    part->is_dying = true;
    tqi_list_remove(&ctl->parts, &part->node);
    tqi_list_push_back(&ctl->dying, &part->node);
    return TQ_OK;
}

void tqi_ctl_part_count_queued(part_t *part, const op_t *op, int sign)
{
    const request_t *req = tqi_container_of(op, request_t, op);
    uint64_t bytes = req->frame.len;

    part->queued_requests += (uint32_t)sign;
    part->queued_bytes += sign > 0 ? bytes : -bytes;
}

/* ---- frames in ------------------------------------------------------------------------------- */

static void refuse(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                   tq_status_t status, const char *text)
{
    tqi_err_t err;

    tqi_fail(&err, status, "%s", text);
    tqi_ctl_reply_error(ctl, peer, env, &err);
}

static void request_handle(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env)
{
    session_t *session;

    if (env->incarnation != ctl->incarnation) {
        tqi_err_t err;

        tqi_fail(&err, TQ_E_STALE_STORE,
                 "the request is for store %016llx, which was replaced by %016llx",
                 (unsigned long long)env->incarnation, (unsigned long long)ctl->incarnation);
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    session = tqi_ctl_session_find(ctl, env->session);
    if (!session && env->kind == TQI_KIND_Bye && env->session != 0 &&
        env->session <= ctl->session_last) {
        tqi_ctl_reply_direct(ctl, peer, env, TQI_KIND_Bye_R, &(tqi_msg_Bye_R_t){0});
        return;
    }
    if (!session) {
        tqi_err_t err;

        tqi_fail(&err, TQ_E_SESSION_EXPIRED, "session %llu has ended",
                 (unsigned long long)env->session);
        tqi_ctl_reply_error(ctl, peer, env, &err);
        return;
    }
    if (!tqi_ctl_session_heard(ctl, session, peer, env))
        return;
    if (env->kind == TQI_KIND_Ping)
        tqi_ctl_ping_handle(ctl, peer, session, env);
    else if (env->kind == TQI_KIND_Bye)
        tqi_ctl_bye_handle(ctl, peer, session, env);
    else if (env->seq == 0)
        refuse(ctl, peer, env, TQ_E_INVALID, "a request needs a sequence number");
    else
        tqi_ctl_request_admit(ctl, session, env);
}

static void closing_heard(tqi_controller_t *ctl, tqi_peer_t peer)
{
    session_t *session = tqi_map_u64_get(&ctl->peers, peer);

    if (session)
        session->has_heard_closing = true;
    else
        ctl->cnt_stray++;
}

static void on_message(tqi_role_t *role, tqi_peer_t peer, const void *data, size_t len,
                       uint64_t now_ns)
{
    tqi_controller_t *ctl = tqi_container_of(role, tqi_controller_t, role);
    tqi_envelope_t env;

    ctl->now_ns = now_ns;
    ctl->frame = data;
    ctl->frame_len = len;
    ctl->cnt_messages++;
    if (tqi_envelope_decode(data, len, &env, NULL) != TQ_OK) {
        ctl->cnt_malformed++;
        return;
    }
    if (env.kind == TQI_KIND_Closing_R) {
        closing_heard(ctl, peer);
        return;
    }
    if (env.kind & TQI_KIND_REPLY) {
        unit_t *unit = tqi_ctl_unit_by_peer(ctl, peer);

        if (unit)
            tqi_ctl_unit_reply_handle(ctl, unit, &env);
        else
            tqi_ctl_stranger_reply_handle(ctl, peer, &env);
        return;
    }
    switch (env.kind) {
    case TQI_KIND_Hello:
        tqi_ctl_hello_handle(ctl, peer, &env);
        break;
    case TQI_KIND_Register:
        tqi_ctl_register_handle(ctl, peer, &env);
        break;
    case TQI_KIND_Closing:
        tqi_ctl_unit_closing_handle(ctl, peer, &env);
        break;
    default:
        request_handle(ctl, peer, &env);
    }
}

static void on_peer_down(tqi_role_t *role, tqi_peer_t peer, uint64_t now_ns)
{
    tqi_controller_t *ctl = tqi_container_of(role, tqi_controller_t, role);
    session_t *session = tqi_map_u64_take(&ctl->peers, peer);
    unit_t *unit = tqi_ctl_unit_by_peer(ctl, peer);

    ctl->now_ns = now_ns;
    /* A hang-up proves nothing: both have until they count as silent to come back. */
    if (session && session->peer == peer) {
        session->peer = 0;
        tqi_ctl_session_step(session, CTL_SESSION_EV_DOWN);
    }
    if (unit)
        unit->peer = 0;
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t role_step(tqi_role_t *role, uint64_t now_ns)
{
    tqi_controller_t *ctl = tqi_container_of(role, tqi_controller_t, role);
    tqi_heap_node_t *due;
    tqi_node_t *node;

    ctl->now_ns = now_ns;
    ctl->is_starved = false;
    while ((due = tqi_heap_pop_due(&ctl->timers, now_ns))) {
        ctl_timer_t *timer = tqi_container_of(due, ctl_timer_t, node);

        timer->fire(ctl, timer);
    }
    tqi_ctl_request_late(ctl);
    if ((node = tqi_list_first(&ctl->runnable)))
        tqi_ctl_part_run(ctl, tqi_container_of(node, part_t, run_node));
    for (size_t i = 0; i < ctl->units.len; i++)
        tqi_ctl_unit_push(ctl, ctl->units.at[i]);
    tqi_ctl_put_wake(ctl);

    due = tqi_heap_peek(&ctl->timers);
    uint64_t next = due ? due->deadline_ns : TQI_NEVER;
    if (ctl->is_starved)
        return tqi_u64_min(next, now_ns + STARVED_NS);
    if (tqi_list_first(&ctl->runnable))
        return now_ns;
    return next > now_ns ? next : now_ns;
}

void tqi_controller_drain(tqi_controller_t *ctl, uint64_t now_ns)
{
    tqi_err_t err;

    ctl->now_ns = now_ns;
    ctl->is_draining = true;
    tqi_fail(&err, TQ_E_CLOSING, "the store is shutting down");
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions); item;
         item = tqi_map_u64_next(item)) {
        session_t *session = item->value;

        tqi_list_each(&session->requests, node)
        {
            tqi_ctl_request_leave(ctl, tqi_container_of(node, request_t, in_session), &err);
        }
    }
}

bool tqi_controller_is_idle(const tqi_controller_t *ctl)
{
    return ctl->requests_cnt == 0 && ctl->runnable.cnt == 0 && ctl->late.cnt == 0;
}

void tqi_controller_say_closing(tqi_controller_t *ctl)
{
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions); item;
         item = tqi_map_u64_next(item)) {
        const session_t *session = item->value;
        tqi_envelope_t to = {.session = session->id, .epoch = session->epoch};

        if (session->peer != 0)
            tqi_ctl_reply_direct(ctl, session->peer, &to, TQI_KIND_Closing,
                                 &(tqi_msg_Closing_t){0});
    }
}

bool tqi_controller_is_heard(const tqi_controller_t *ctl)
{
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions); item;
         item = tqi_map_u64_next(item)) {
        const session_t *session = item->value;

        if (session->peer != 0 && !session->has_heard_closing)
            return false;
    }
    return true;
}

void tqi_controller_forgive(tqi_controller_t *ctl, uint64_t pause_ns)
{
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions); item;
         item = tqi_map_u64_next(item))
        ((session_t *)item->value)->heard_ns += pause_ns;
    for (size_t i = 0; i < ctl->units.len; i++)
        ctl->units.at[i]->heard_ns += pause_ns;
}

/* ---- life ------------------------------------------------------------------------------------ */

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value ? value : otherwise;
}

tq_status_t tqi_controller_new(const tqi_env_t *env, const tqi_controller_conf_t *conf,
                               tqi_ctrl_t *ctrl, uint64_t now_ns, tqi_controller_t **out,
                               tqi_err_t *err)
{
    tqi_controller_t *ctl;
    tq_status_t rc;

    if (conf->incarnation == 0)
        return tqi_fail(err, TQ_E_CONFIG, "a store needs an incarnation");
    if (conf->prealloc_rows > TQI_SLICE_ROWS)
        return tqi_fail(err, TQ_E_CONFIG, "%u rows made ahead in each partition, at most %u are",
                        conf->prealloc_rows, TQI_SLICE_ROWS);
    if (conf->page_rows > TQ_REQUEST_ROWS_MAX)
        return tqi_fail(err, TQ_E_CONFIG, "pages of %u rows, at most %u are", conf->page_rows,
                        TQ_REQUEST_ROWS_MAX);
    if (conf->slice_rows > TQI_SLICE_ROWS)
        return tqi_fail(err, TQ_E_CONFIG, "slices of %u rows, at most %u are", conf->slice_rows,
                        TQI_SLICE_ROWS);
    ctl = tqi_env_zalloc(env, sizeof *ctl);
    if (!ctl)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a controller");
    ctl->env = env;
    ctl->ctrl = ctrl;
    ctl->role =
        (tqi_role_t){.on_message = on_message, .on_peer_down = on_peer_down, .step = role_step};
    ctl->incarnation = conf->incarnation;
    ctl->now_ns = ctl->started_ns = now_ns;
    ctl->ping_ms = or_default(conf->ping_ms, 1000);
    ctl->watch = conf->watch;
    ctl->sessions_max = conf->sessions_max;
    ctl->sessions_max_ctx = conf->sessions_max_ctx;
    ctl->silence_ms = or_default(conf->silence_ms, 5000);
    ctl->unit_lost_ms = or_default(conf->unit_lost_ms, 10000);
    ctl->confirm_ms = or_default(conf->confirm_ms, 100);
    ctl->prealloc_rows = conf->prealloc_rows;
    ctl->slice_rows = or_default(conf->slice_rows, TQI_SLICE_ROWS);
    ctl->page_rows = or_default(conf->page_rows, TQ_REQUEST_ROWS_MAX);
    ctl->placement_turn = conf->seed;
    ctl->table_version = 1;
    tqi_buf_init(&ctl->user_conf, env);
    tqi_heap_init(&ctl->timers, env);
    tqi_map_u64_init(&ctl->sessions, env);
    tqi_map_u64_init(&ctl->peers, env);
    tqi_vec_init(&ctl->units, env);
    tqi_vec_init(&ctl->candidates, env);
    tqi_map_str_init(&ctl->part_map, env);
    tqi_list_init(&ctl->parts);
    tqi_list_init(&ctl->dying);
    tqi_list_init(&ctl->runnable);
    tqi_map_u64_init(&ctl->puts, env);
    tqi_list_init(&ctl->late);
    tqi_list_init(&ctl->homeless);

    rc = TQ_OK;
    if (conf->sampler_group_by) {
        size_t bytes = strlen(conf->sampler_group_by) + 1;

        ctl->sampler_group_by = tqi_env_alloc(env, bytes);
        if (ctl->sampler_group_by)
            memcpy(ctl->sampler_group_by, conf->sampler_group_by, bytes);
        else
            rc = tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a controller");
    }
    if (rc == TQ_OK)
        rc = tqi_sampler_init(&ctl->sampler, conf->sampler, conf->sampler_group,
                              ctl->sampler_group_by, err);
    if (rc == TQ_OK &&
        tqi_buf_append(&ctl->user_conf, conf->user_conf, conf->user_conf_len) != TQ_OK)
        rc = tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the store's configuration");
    if (rc != TQ_OK) {
        tqi_controller_free(ctl);
        return rc;
    }
    *out = ctl;
    return TQ_OK;
}

/* Everything goes, in the order of who points at whom: requests, sessions with their puts and
 * grants, partitions, units. */
static void parts_free(tqi_controller_t *ctl, tqi_list_t *parts)
{
    tqi_list_each(parts, node)
    {
        part_t *part = tqi_container_of(node, part_t, node);

        tqi_list_each(&part->queue, queued)
        {
            op_t *op = tqi_container_of(queued, op_t, node);

            tqi_list_remove(&part->queue, queued);
            if (op->is_request)
                tqi_ctl_request_free(ctl, request_of(op));
        }
        tqi_ctl_fetch_free_all(ctl, part);
        tqi_list_each(&part->clears, clear)
        {
            tqi_ctl_clearing_free(ctl, tqi_container_of(clear, clearing_t, core.node));
        }
        tqi_list_each(&part->puts, put)
        {
            tqi_ctl_put_free(ctl, tqi_container_of(put, put_t, in_part));
        }
        part_free(ctl, part);
    }
}

void tqi_controller_free(tqi_controller_t *ctl)
{
    tqi_map_u64_item_t *item;

    if (!ctl)
        return;
    const tqi_env_t *env = ctl->env;
    while (ctl->late.cnt > 0)
        tqi_ctl_request_free(
            ctl, request_of(tqi_container_of(tqi_list_pop_front(&ctl->late), op_t, node)));
    parts_free(ctl, &ctl->parts);
    parts_free(ctl, &ctl->dying);
    while ((item = tqi_map_u64_first(&ctl->puts)))
        tqi_ctl_put_free(ctl, item->value);
    while ((item = tqi_map_u64_first(&ctl->sessions)))
        tqi_ctl_session_free(ctl, item->value);
    for (size_t i = 0; i < ctl->units.len; i++)
        tqi_ctl_unit_free(ctl, ctl->units.at[i]);
    tqi_vec_fini(&ctl->units);
    tqi_vec_fini(&ctl->candidates);
    tqi_map_u64_fini(&ctl->puts, NULL, NULL);
    tqi_map_u64_fini(&ctl->sessions, NULL, NULL);
    tqi_map_u64_fini(&ctl->peers, NULL, NULL);
    tqi_map_str_fini(&ctl->part_map, NULL, NULL);
    tqi_heap_fini(&ctl->timers);
    tqi_buf_fini(&ctl->user_conf);
    if (ctl->sampler_group_by)
        tqi_env_free(env, ctl->sampler_group_by, strlen(ctl->sampler_group_by) + 1);
    tqi_env_free(env, ctl, sizeof *ctl);
}

tqi_role_t *tqi_controller_role(tqi_controller_t *ctl)
{
    return &ctl->role;
}

void tqi_controller_session_died(tqi_controller_t *ctl, uint64_t session_id, uint64_t now_ns)
{
    session_t *session = tqi_ctl_session_find(ctl, session_id);

    ctl->now_ns = now_ns;
    if (!session)
        return;
    ctl->cnt_sessions_lost++;
    tqi_ctl_session_end(ctl, session, CTL_SESSION_EV_DIED);
}
