/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request from admission to reply.
 *
 * While it runs in the call that brought it, its message is a view into the caller's frame; before it
 * yields, queues or parks, it copies the frame. Its outcome goes into the session's window before
 * it is sent, so that a lost reply is only a repeated question.
 */
#include "role/controller/internal.h"

#include <stdio.h>

/* What the kinds of requests about a partition are, and whether they make one that is not there. */
typedef struct route {
    uint16_t kind;
    bool (*step)(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
    tqi_str_t (*partition)(const request_msg_t *msg);
    bool (*makes)(const request_msg_t *msg);
} route_t;

static bool never(const request_msg_t *msg)
{
    (void)msg;
    return false;
}
static bool always(const request_msg_t *msg)
{
    (void)msg;
    return true;
}
static bool resolve_makes(const request_msg_t *msg)
{
    return msg->resolve.is_create;
}
/* A fetch waits for a partition that is not there yet as for rows. */
static bool fetch_makes(const request_msg_t *msg)
{
    return msg->fetch.mode == TQ_FETCH && !msg->fetch.is_polling && msg->fetch.rows_cnt > 0;
}

#define ROUTE_NAME(member)                                                                         \
    static tqi_str_t member##_partition(const request_msg_t *msg)                                  \
    {                                                                                              \
        return msg->member.partition;                                                              \
    }
ROUTE_NAME(insert)
ROUTE_NAME(resolve)
ROUTE_NAME(fetch)
ROUTE_NAME(ret)
ROUTE_NAME(publish)
ROUTE_NAME(tags)
ROUTE_NAME(clear)
ROUTE_NAME(reset)
ROUTE_NAME(status)
ROUTE_NAME(list)

static const route_t routes[] = {
    {TQI_KIND_Insert, tqi_ctl_insert_step, insert_partition, always},
    {TQI_KIND_Resolve, tqi_ctl_resolve_step, resolve_partition, resolve_makes},
    {TQI_KIND_Fetch, tqi_ctl_fetch_step, fetch_partition, fetch_makes},
    {TQI_KIND_Return, tqi_ctl_return_step, ret_partition, never},
    {TQI_KIND_Publish, tqi_ctl_publish_step, publish_partition, never},
    {TQI_KIND_Tags, tqi_ctl_tags_step, tags_partition, never},
    {TQI_KIND_Clear, tqi_ctl_clear_step, clear_partition, never},
    {TQI_KIND_Reset, tqi_ctl_reset_step, reset_partition, never},
    {TQI_KIND_Status, tqi_ctl_status_step, status_partition, never},
    {TQI_KIND_List, tqi_ctl_list_step, list_partition, never},
};

static const route_t *route_find(uint16_t kind)
{
    for (size_t i = 0; i < tqi_array_len(routes); i++)
        if (routes[i].kind == kind)
            return &routes[i];
    return NULL;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* The envelope of a reply echoes session, seq, epoch and request id. */
static tq_status_t frame_make(tqi_controller_t *ctl, const tqi_envelope_t *to, uint16_t kind,
                              tq_status_t status, const void *msg, tqi_buf_t *frame, tqi_err_t *err)
{
    tqi_envelope_t env = {.version = TQI_VERSION_MAX,
                          .kind = kind,
                          .status = (uint16_t)status,
                          .incarnation = ctl->incarnation,
                          .session = to->session,
                          .epoch = to->epoch,
                          .budget_ms = UINT32_MAX,
                          .seq = to->seq,
                          .request_id = to->request_id};

    tqi_buf_init(frame, ctl->env);
    return tqi_msg_encode(frame, &env, NULL, msg, err);
}

/* An error's body is cut to what its message may carry. */
static tq_status_t frame_make_error(tqi_controller_t *ctl, const tqi_envelope_t *to,
                                    const tqi_err_t *err, const uint64_t *rows, uint32_t rows_cnt,
                                    const tqi_strs_t *fields, tqi_buf_t *frame)
{
    tqi_msg_Error_t msg = {.text = tqi_str(err->text)};
    tqi_envelope_t env = {.version = TQI_VERSION_MAX,
                          .kind = (uint16_t)(to->kind | TQI_KIND_REPLY),
                          .status = (uint16_t)err->status,
                          .incarnation = ctl->incarnation,
                          .session = to->session,
                          .epoch = to->epoch,
                          .budget_ms = UINT32_MAX,
                          .seq = to->seq,
                          .request_id = to->request_id};

    if (rows)
        msg.rows = tqi_u64s(rows, rows_cnt);
    if (fields)
        msg.fields = *fields;
    ctl->cnt_failed++;
    tqi_buf_init(frame, ctl->env);
    return tqi_msg_encode(frame, &env, NULL, &msg, NULL);
}

/* Takes the frame. Whatever does not arrive is asked for again. */
static void frame_send(tqi_controller_t *ctl, tqi_peer_t peer, tqi_buf_t *frame)
{
    if (peer == 0 || ctl->ctrl->send(ctl->ctrl, peer, frame) != TQ_OK) {
        ctl->cnt_unsent++;
        tqi_buf_fini(frame);
    }
}

void tqi_ctl_reply_direct(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                          uint16_t kind, const void *msg)
{
    tqi_buf_t frame;

    if (frame_make(ctl, env, kind, TQ_OK, msg, &frame, NULL) == TQ_OK)
        frame_send(ctl, peer, &frame);
    else
        tqi_buf_fini(&frame);
}

void tqi_ctl_reply_error(tqi_controller_t *ctl, tqi_peer_t peer, const tqi_envelope_t *env,
                         const tqi_err_t *err)
{
    tqi_buf_t frame;

    if (frame_make_error(ctl, env, err, NULL, 0, NULL, &frame) == TQ_OK)
        frame_send(ctl, peer, &frame);
    else
        tqi_buf_fini(&frame);
}

static tqi_envelope_t request_envelope(const request_t *req)
{
    return (tqi_envelope_t){.kind = req->kind,
                            .session = req->session ? req->session->id : 0,
                            .epoch = req->session ? req->session->epoch : 0,
                            .seq = req->seq,
                            .request_id = req->request_id};
}

/* The outcome: kept, then sent. Takes the frame. */
static void request_done(tqi_controller_t *ctl, request_t *req, tqi_buf_t *frame)
{
    tqi_assert(!req->is_replied);
    req->is_replied = true;
    tqi_ctl_timer_disarm(ctl, &req->timer);
    if (!req->session) {
        tqi_buf_fini(frame);
        return;
    }
    if (!frame->data || tqi_inbox_done(req->session->inbox, req->seq, frame) != TQ_OK) {
        /* Kept in the request until there is memory: without an outcome nothing is sent. */
        tqi_buf_take(&req->late, frame);
        req->is_late = true;
        return;
    }
    frame_send(ctl, req->session->peer, frame);
}

/* What was done is said, if need be without the columns of the answer. */
static tq_status_t frame_make_done(tqi_controller_t *ctl, const request_t *req, tqi_buf_t *frame)
{
    tqi_envelope_t env = request_envelope(req);
    tqi_msg_Clear_R_t cleared = {.rows_cnt = req->rows_cnt};

    return frame_make(ctl, &env, (uint16_t)(req->kind | TQI_KIND_REPLY), TQ_OK,
                      req->kind == TQI_KIND_Clear ? &cleared : NULL, frame, NULL);
}

/* The outcome of a request for which there was no memory, made anew. */
static tq_status_t late_make(tqi_controller_t *ctl, request_t *req)
{
    tqi_envelope_t env = request_envelope(req);
    tqi_err_t err;
    tq_status_t rc;

    if (req->late.data)
        return TQ_OK;
    tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for the reply");
    rc = req->is_committed ? frame_make_done(ctl, req, &req->late)
                           : frame_make_error(ctl, &env, &err, NULL, 0, NULL, &req->late);
    if (rc != TQ_OK)
        tqi_buf_fini(&req->late);
    return rc;
}

void tqi_ctl_request_late(tqi_controller_t *ctl)
{
    tqi_list_each(&ctl->late, node)
    {
        request_t *req = request_of(tqi_container_of(node, op_t, node));

        if (req->session && (late_make(ctl, req) != TQ_OK ||
                             tqi_inbox_done(req->session->inbox, req->seq, &req->late) != TQ_OK)) {
            ctl->is_starved = true;
            return;
        }
        tqi_list_remove(&ctl->late, node);
        if (req->session)
            frame_send(ctl, req->session->peer, &req->late);
        tqi_ctl_request_free(ctl, req);
    }
}

void tqi_ctl_request_reply_done(tqi_controller_t *ctl, request_t *req, const void *msg)
{
    tqi_envelope_t env = request_envelope(req);
    tqi_buf_t frame;

    req->is_committed = true;
    if (frame_make(ctl, &env, (uint16_t)(req->kind | TQI_KIND_REPLY), TQ_OK, msg, &frame, NULL) !=
        TQ_OK) {
        tqi_buf_fini(&frame);
        if (frame_make_done(ctl, req, &frame) != TQ_OK)
            tqi_buf_fini(&frame);
    }
    request_done(ctl, req, &frame);
}

tq_status_t tqi_ctl_request_reply(tqi_controller_t *ctl, request_t *req, const void *msg)
{
    tqi_envelope_t env = request_envelope(req);
    tqi_err_t err;
    tqi_buf_t frame;

    if (frame_make(ctl, &env, (uint16_t)(req->kind | TQI_KIND_REPLY), TQ_OK, msg, &frame, &err) ==
        TQ_OK) {
        request_done(ctl, req, &frame);
        return TQ_OK;
    }
    tqi_buf_fini(&frame);
    tqi_ctl_request_fail(ctl, req, &err);
    return err.status;
}

void tqi_ctl_request_fail(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err)
{
    tqi_ctl_request_fail_about(ctl, req, err, NULL, 0, NULL);
}

void tqi_ctl_request_fail_about(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err,
                                const uint64_t *rows, uint32_t rows_cnt, const tqi_strs_t *fields)
{
    tqi_envelope_t env = request_envelope(req);
    tqi_buf_t frame;

    if (frame_make_error(ctl, &env, err, rows, rows_cnt, fields, &frame) != TQ_OK)
        tqi_buf_fini(&frame);
    request_done(ctl, req, &frame);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void timer_due(tqi_controller_t *ctl, ctl_timer_t *timer)
{
    request_t *req = tqi_container_of(timer, request_t, timer);

    if (req->kind == TQI_KIND_Fetch)
        tqi_ctl_fetch_due(ctl, req);
    else if (req->kind == TQI_KIND_Clear)
        tqi_ctl_clear_due(ctl, req);
    else
        tqi_ctl_put_due(ctl, req);
}

void tqi_ctl_request_close(tqi_controller_t *ctl, request_t *req)
{
    tqi_assert(req->is_replied);
    if (req->session && req->is_late) {
        ctl->is_starved = true;
        tqi_list_push_back(&ctl->late, &req->op.node);
        return;
    }
    tqi_ctl_request_free(ctl, req);
}

static void request_finish(tqi_controller_t *ctl, op_t *op)
{
    request_t *req = request_of(op);

    if (!req->is_parked)
        tqi_ctl_request_close(ctl, req);
}

static request_t *request_new(tqi_controller_t *ctl, session_t *session, const tqi_envelope_t *env)
{
    request_t *req = tqi_env_zalloc(ctl->env, sizeof *req);

    if (!req)
        return NULL;
    req->op.finish = request_finish;
    req->op.is_request = true;
    req->session = session;
    req->seq = env->seq;
    req->request_id = env->request_id;
    req->kind = env->kind;
    req->deadline_ns =
        env->budget_ms == UINT32_MAX ? TQI_NEVER : ctl->now_ns + ms_to_ns(env->budget_ms);
    req->timer.fire = timer_due;
    tqi_buf_init(&req->frame, ctl->env);
    tqi_buf_init(&req->late, ctl->env);
    tqi_vec_init(&req->pos, ctl->env);
    tqi_vec_init(&req->fields, ctl->env);
    tqi_bits_init(&req->rows, ctl->env);
    tqi_ctl_out_init(&req->out, ctl->env);
    tqi_vec_init(&req->parts, ctl->env);
    tqi_vec_init(&req->staged, ctl->env);
    tqi_map_u64_init(&req->staged_map, ctl->env);
    tqi_list_init(&req->joins);
    tqi_list_push_back(&session->requests, &req->in_session);
    ctl->requests_cnt++;
    return req;
}

void tqi_ctl_request_free(tqi_controller_t *ctl, request_t *req)
{
    tqi_ctl_put_homed(ctl, req);
    tqi_ctl_timer_disarm(ctl, &req->timer);
    tqi_waiter_leave(&req->waiter);
    tqi_sample_fini(&req->sample);
    tqi_ctl_clear_leave(ctl, req);
    tqi_ctl_publish_forget(ctl, req);
    tqi_vec_fini(&req->parts);
    tqi_vec_fini(&req->staged);
    tqi_map_u64_fini(&req->staged_map, NULL, NULL);
    tqi_ctl_out_fini(&req->out);
    tqi_bits_fini(&req->rows);
    tqi_vec_fini(&req->fields);
    tqi_vec_fini(&req->pos);
    tqi_buf_fini(&req->late);
    if (req->session)
        req->session->frames_bytes -= req->frame.cap;
    tqi_buf_fini(&req->frame);
    if (req->session)
        tqi_list_remove(&req->session->requests, &req->in_session);
    ctl->requests_cnt--;
    tqi_env_free(ctl->env, req, sizeof *req);
}

tq_status_t tqi_ctl_request_own(tqi_controller_t *ctl, request_t *req)
{
    tqi_envelope_t env;
    tq_status_t rc;

    (void)ctl;
    if (req->frame.data)
        return TQ_OK;
    if (req->session && req->session->frames_bytes > 0 &&
        req->session->frames_bytes + req->borrowed.len > SESSION_FRAMES_BYTES_MAX)
        return TQ_E_BUSY;
    rc = tqi_buf_append(&req->frame, req->borrowed.data, req->borrowed.len);
    if (rc != TQ_OK)
        return rc;
    if (req->session)
        req->session->frames_bytes += req->frame.cap;
    if (req->op.part)
        req->op.part->queued_bytes += req->frame.len;
    /* The bytes were judged before. */
    rc = tqi_envelope_decode(req->frame.data, req->frame.len, &env, NULL);
    tqi_assert(rc == TQ_OK);
    rc = tqi_msg_decode(&env, req->kind, &req->msg, NULL);
    tqi_assert(rc == TQ_OK);
    if (req->kind == TQI_KIND_Publish && req->parts.len > 0)
        req->parts.at[req->parts.len - 1].msg = req->msg.publish;
    return TQ_OK;
}

tq_status_t tqi_ctl_request_park(tqi_controller_t *ctl, request_t *req)
{
    tq_status_t rc = tqi_ctl_request_own(ctl, req);

    if (rc == TQ_OK && req->deadline_ns != TQI_NEVER && !tqi_heap_node_is_in(&req->timer.node))
        rc = tqi_ctl_timer_arm(ctl, &req->timer, req->deadline_ns);
    if (rc == TQ_OK)
        req->is_parked = true;
    return rc;
}

void tqi_ctl_request_leave_about(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err,
                                 const uint64_t *rows, uint32_t rows_cnt, const tqi_strs_t *fields)
{
    part_t *part = req->op.part;

    if (req->is_replied || req->op.is_started)
        return;
    if (part && part->waking == req)
        part->waking = NULL;
    if (tqi_node_is_linked(&req->op.node)) {
        tqi_ctl_op_unqueue(&req->op);
        tqi_ctl_part_count_queued(part, &req->op, -1);
    }
    req->is_parked = false;
    tqi_ctl_request_fail_about(ctl, req, err, rows, rows_cnt, fields);
    tqi_ctl_request_close(ctl, req);
    if (part)
        tqi_ctl_part_maybe_free(ctl, part);
}

void tqi_ctl_request_leave(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err)
{
    tqi_ctl_request_leave_about(ctl, req, err, NULL, 0, NULL);
}

/* ---- admission ------------------------------------------------------------------------------- */

/* Requests about nothing that queues. */
static bool run_now(tqi_controller_t *ctl, request_t *req)
{
    switch (req->kind) {
    case TQI_KIND_CancelOp:
        tqi_ctl_cancel_handle(ctl, req);
        return true;
    case TQI_KIND_Stat:
        tqi_ctl_stat_handle(ctl, req);
        return true;
    case TQI_KIND_Forget:
        tqi_ctl_forget_handle(ctl, req);
        return true;
    case TQI_KIND_List:
        if (!req->msg.list.is_partitions)
            return false;
        tqi_ctl_list_partitions(ctl, req);
        return true;
    default:
        return false;
    }
}

static uint64_t session_frames_bytes(const request_t *req)
{
    return req->session ? req->session->frames_bytes : 0;
}

void tqi_ctl_request_start(tqi_controller_t *ctl, request_t *req)
{
    const route_t *route = route_find(req->kind);
    tqi_str_t name = route->partition(&req->msg);
    part_t *part = NULL;
    tqi_err_t err;

    req->op.step = route->step;
    /* A put stays with the table that it began in, whatever has its name now. */
    if (req->kind == TQI_KIND_Publish) {
        put_t *put = tqi_map_u64_get(&ctl->puts, req->msg.publish.put_id);

        part = put ? put->part : NULL;
    } else {
        part = tqi_ctl_part_find(ctl, name.data, name.len);
    }
    if (!part && route->makes(&req->msg) &&
        tqi_ctl_part_make(ctl, name.data, name.len, &part, &err) != TQ_OK) {
        tqi_ctl_request_fail(ctl, req, &err);
        tqi_ctl_request_close(ctl, req);
        return;
    }
    if (!part) {
        uint32_t budget = TQI_SLICE_ROWS;
        bool is_over = req->op.step(ctl, &req->op, &budget);

        /* A clear may have joined one of a partition that is going. */
        tqi_assert(is_over);
        request_finish(ctl, &req->op);
        return;
    }
    if (part->queue.cnt > 0) {
        if (part->queued_requests >= QUEUE_REQUESTS_MAX || part->queued_bytes >= QUEUE_BYTES_MAX ||
            tqi_ctl_request_own(ctl, req) != TQ_OK) {
            ctl->cnt_busy++;
            tqi_fail(&err, TQ_E_BUSY,
                     "partition '%.*s': %u requests of %llu bytes wait for it, and %llu bytes of "
                     "the session's in all",
                     part_show(part), part->name, part->queued_requests,
                     (unsigned long long)part->queued_bytes,
                     (unsigned long long)session_frames_bytes(req));
            tqi_ctl_request_fail(ctl, req, &err);
            tqi_ctl_request_close(ctl, req);
            return;
        }
        tqi_ctl_op_queue(ctl, part, &req->op);
        tqi_ctl_part_count_queued(part, &req->op, 1);
        return;
    }
    tqi_ctl_op_queue(ctl, part, &req->op);
    tqi_ctl_part_count_queued(part, &req->op, 1);
    tqi_ctl_part_run(ctl, part);
}

/* The outcome of a seq that was admitted, and of which nothing was done. */
static void outcome_refused(tqi_controller_t *ctl, session_t *session, const tqi_envelope_t *env,
                            const tqi_err_t *err)
{
    tqi_buf_t frame;

    if (frame_make_error(ctl, env, err, NULL, 0, NULL, &frame) == TQ_OK &&
        tqi_inbox_done(session->inbox, env->seq, &frame) == TQ_OK) {
        frame_send(ctl, session->peer, &frame);
        return;
    }
    tqi_inbox_late(session->inbox, env->seq, (uint32_t)err->status);
    tqi_buf_fini(&frame);
}

bool tqi_ctl_request_forestall(tqi_controller_t *ctl, session_t *session, uint16_t kind,
                               uint64_t seq, const tqi_err_t *err)
{
    const tqi_buf_t *kept;
    tqi_envelope_t env = {
        .kind = kind, .session = session->id, .epoch = session->epoch, .seq = seq};

    if (tqi_inbox_admit(session->inbox, seq, &kept) != TQI_ADMIT_NEW)
        return false;
    outcome_refused(ctl, session, &env, err);
    return true;
}

void tqi_ctl_request_admit(tqi_controller_t *ctl, session_t *session, const tqi_envelope_t *env)
{
    const tqi_buf_t *kept;
    tqi_buf_t frame;
    request_t *req;
    tqi_err_t err;

    switch (tqi_inbox_admit(session->inbox, env->seq, &kept)) {
    case TQI_ADMIT_NEW:
        break;
    case TQI_ADMIT_PENDING:
    case TQI_ADMIT_OLD:
        return;
    case TQI_ADMIT_LATE:
        tqi_fail(&err, (tq_status_t)tqi_inbox_outcome(session->inbox, env->seq),
                 "there was no memory to say why");
        outcome_refused(ctl, session, env, &err);
        return;
    case TQI_ADMIT_DONE:
        ctl->cnt_replayed++;
        tqi_buf_init(&frame, ctl->env);
        if (tqi_buf_append(&frame, kept->data, kept->len) == TQ_OK)
            frame_send(ctl, session->peer, &frame);
        return;
    case TQI_ADMIT_BUSY:
    case TQI_ADMIT_NO_MEMORY:
        ctl->cnt_busy++;
        tqi_fail(
            &err, TQ_E_BUSY,
            "session %llu has %u requests under way and %llu bytes of outcomes that it has not "
            "acknowledged",
            (unsigned long long)session->id, tqi_inbox_pending_cnt(session->inbox),
            (unsigned long long)tqi_inbox_kept_bytes(session->inbox));
        tqi_ctl_reply_error(ctl, session->peer, env, &err);
        return;
    }
    req = request_new(ctl, session, env);
    if (!req) {
        tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a request");
        outcome_refused(ctl, session, env, &err);
        return;
    }
    req->borrowed = (tqi_bytes_t){ctl->frame, (uint32_t)ctl->frame_len};
    const route_t *route = route_find(env->kind);
    tq_status_t rc = TQ_OK;
    if (ctl->is_draining)
        rc = tqi_fail(&err, TQ_E_CLOSING, "the store is shutting down");
    else if (!route && env->kind != TQI_KIND_CancelOp && env->kind != TQI_KIND_Stat &&
             env->kind != TQI_KIND_Forget)
        rc = tqi_fail(&err, TQ_E_UNSUPPORTED, "a controller does not know message kind %u",
                      env->kind);
    else
        rc = tqi_msg_decode(env, env->kind, &req->msg, &err);
    if (rc != TQ_OK) {
        ctl->cnt_malformed += rc == TQ_E_MALFORMED;
        tqi_ctl_request_fail(ctl, req, &err);
        tqi_ctl_request_close(ctl, req);
    } else if (run_now(ctl, req)) {
        tqi_ctl_request_close(ctl, req);
    } else {
        tqi_ctl_request_start(ctl, req);
    }
}
