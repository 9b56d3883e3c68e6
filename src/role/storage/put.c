/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing. A PREPARE that finds no space, or a cell that another put is writing, is parked with a
 * copy of its message, and read again when something has changed. Waiting is fair: a newcomer does
 * not overtake those of its class, or columns, that wait for space.
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "role/storage/internal.h"

/* ---- granted ---------------------------------------------------------------------------------- */

/* Commits the batch and answers; on failure the batch is still there, and why in t. */
void put_finish(tqi_unit_t *unit, transfer_t *t, request_t *request)
{
    uint64_t bytes = 0;
    bool is_fused = request->kind == TQI_KIND_PreparePut;
    tqi_msg_PreparePut_R_t done = {.lease_ms = unit->conf.lease_ms};
    tqi_blame_t blame;
    tqi_err_t err = {0};

    for (uint32_t f = 0; f < t->batch->fields_cnt; f++)
        bytes += t->batch->runs[f]->bytes;
    tq_status_t rc = tqi_objects_commit(unit->objs, t->batch, &blame, &err);

    if (rc != TQ_OK) {
        reply_error(unit, request, rc, err.text, &blame);
        return;
    }
    t->batch = NULL;
    unit->is_dirty = true;
    unit->counters.put_bytes += bytes;
    reply(unit, request, is_fused ? (const void *)&done : NULL);
}

static void copy_in(const tqi_batch_t *batch, tqi_bytes_t bytes)
{
    const uint8_t *at = bytes.data;

    for (uint32_t f = 0; f < batch->fields_cnt; f++) {
        if (batch->runs[f]->bytes == 0)
            continue; /* without any bytes at all, `at` is NULL */
        memcpy(tqi_run_data(batch->runs[f], 0), at, batch->runs[f]->bytes);
        at += batch->runs[f]->bytes;
    }
}

/* Tells the port where the frames go. */
static tq_status_t expect(tqi_unit_t *unit, transfer_t *t, tqi_err_t *err)
{
    tqi_transfer_key_t key = {t->session->id, t->core.id};
    const tqi_batch_t *batch = t->batch;

    unit->frames.len = unit->pieces.len = 0;
    if (tqi_vec_reserve(&unit->frames, batch->fields_cnt) != TQ_OK ||
        tqi_vec_reserve(&unit->pieces, batch->fields_cnt) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %u frames", batch->fields_cnt);
    for (uint32_t f = 0; f < batch->fields_cnt; f++) {
        const tqi_run_t *run = batch->runs[f];
        tqi_piece_t *piece = &unit->pieces.at[unit->pieces.len];

        if (run->bytes > 0)
            *piece = (tqi_piece_t){tqi_run_data(run, 0), run->bytes};
        unit->pieces.len += run->bytes > 0;
        unit->frames.at[unit->frames.len++] = (tqi_frame_t){piece, run->bytes > 0, run->bytes};
    }
    return unit->payload->expect(unit->payload, key, unit->frames.at, batch->fields_cnt, err);
}

/* READY. E_NO_MEMORY. */
static tq_status_t reply_ready(tqi_unit_t *unit, transfer_t *t, request_t *request)
{
    const tqi_batch_t *batch = t->batch;
    tqi_msg_PreparePut_R_t ready = {.lease_ms = unit->conf.lease_ms};

    if (t->core.kind == TQI_PUT_DIRECT) {
        unit->u32s[0].len = unit->u64s[0].len = 0;
        if (tqi_vec_reserve(&unit->u32s[0], batch->fields_cnt) != TQ_OK ||
            tqi_vec_reserve(&unit->u64s[0], batch->fields_cnt) != TQ_OK)
            return TQ_E_NO_MEMORY;
        for (uint32_t f = 0; f < batch->fields_cnt; f++) {
            const tqi_span_t *span = &batch->runs[f]->span;

            unit->u32s[0].at[f] = span->segment ? tqi_segment_id(span->segment) : 0;
            unit->u64s[0].at[f] = span->offset;
        }
        ready.segments = tqi_u32s(unit->u32s[0].at, batch->fields_cnt);
        ready.offsets = tqi_u64s(unit->u64s[0].at, batch->fields_cnt);
    }
    reply(unit, request, &ready);
    return TQ_OK;
}

/* The transfer has its batch: goes on with it, and answers the PREPARE. */
static void granted(tqi_unit_t *unit, transfer_t *t, request_t *request,
                    const tqi_msg_PreparePut_t *msg, uint64_t now_ns)
{
    tqi_err_t err = {0};
    tq_status_t rc = TQ_OK;

    unit->counters.puts++;
    if (t->core.kind == TQI_PUT_INLINE) {
        copy_in(t->batch, msg->inline_bytes);
        put_finish(unit, t, request);
        transfer_event(unit, t, TQI_TRANSFER_EV_GRANT, now_ns);
        return;
    }
    if (t->core.kind == TQI_PUT_STREAM) {
        rc = expect(unit, t, &err);
        if (rc != TQ_OK) {
            reply_error(unit, request, rc, err.text, NULL);
            transfer_event(unit, t, TQI_TRANSFER_EV_FAILED, now_ns);
            return;
        }
    }
    transfer_event(unit, t, TQI_TRANSFER_EV_GRANT, now_ns);
    if (reply_ready(unit, t, request) != TQ_OK) {
        reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for the answer to a PREPARE", NULL);
        transfer_event(unit, t, TQI_TRANSFER_EV_CANCEL, now_ns);
    }
}

/* ---- prepare ---------------------------------------------------------------------------------- */

static tq_status_t try_prepare(tqi_unit_t *unit, transfer_t *t, const tqi_msg_PreparePut_t *msg,
                               tqi_blame_t *blame, tqi_err_t *err)
{
    tqi_prepare_t args = {
        .session = t->session->id,
        .transfer = t->core.id,
        .put_id = msg->put_id,
        .rows = msg->rows,
        .fields = msg->fields,
        .columns = msg->columns,
        .produced = msg->produced,
        .is_column = msg->is_column,
        .is_fused = msg->is_fused,
        .fused_bytes = msg->inline_bytes.len,
    };

    return tqi_objects_prepare(unit->objs, &args, &t->batch, blame, err);
}

/* Whether somebody waits for space who goes first. */
static bool must_queue(const tqi_unit_t *unit, bool is_column, tqi_err_t *err)
{
    uint32_t ahead = 0;

    for (int c = 0; c < (is_column ? 1 : 2); c++) {
        tqi_list_each(&unit->waiters[c], node) ahead +=
            tqi_container_of(node, transfer_t, node)->waits_for_space;
    }
    if (ahead > 0)
        tqi_fail(err, TQ_E_FULL, "%u requests that came before wait for space in storage unit %u",
                 ahead, unit->unit_id);
    return ahead > 0;
}

static tq_status_t check_request(const tqi_unit_t *unit, const session_t *session,
                                 const tqi_msg_PreparePut_t *msg, tqi_transfer_kind_t *kind,
                                 tqi_err_t *err)
{
    if (msg->transfer == 0 || msg->transfer == UINT64_MAX || msg->put_id == 0 ||
        msg->put_id == UINT64_MAX)
        return tqi_fail(err, TQ_E_INVALID, "a PREPARE names its transfer and its put");
    if (transfer_find(session, msg->transfer))
        return tqi_fail(err, TQ_E_DUPLICATE, "transfer %" PRIu64 " exists", msg->transfer);
    if (tqi_intervals_contains(&session->gone, msg->transfer) ||
        tqi_intervals_contains(&session->aborted, msg->put_id))
        return tqi_fail(err, TQ_E_CANCELLED, "the client gave the transfer up before it came");
    /* Its client may have given it up in the life before; the controller will not publish it. */
    if (msg->put_id <= unit->put_last)
        return tqi_fail(err, TQ_E_PEER_LOST,
                        "storage unit %u was started again while the put was under way",
                        unit->unit_id);
    if (tqi_map_u64_count(&session->transfers) >= SESSION_TRANSFERS_MAX)
        return tqi_fail(err, TQ_E_BUSY, "the session has %u transfers at this unit",
                        SESSION_TRANSFERS_MAX);
    if (msg->is_fused) {
        *kind = TQI_PUT_INLINE;
    } else if (msg->mode == TQI_PAYLOAD_STREAM && unit->payload) {
        *kind = TQI_PUT_STREAM;
    } else if (msg->mode == TQI_PAYLOAD_DIRECT && session->is_direct) {
        *kind = TQI_PUT_DIRECT;
    } else {
        return tqi_fail(err, TQ_E_UNSUPPORTED,
                        "storage unit %u has no payload of mode %u for this session", unit->unit_id,
                        msg->mode);
    }
    return TQ_OK;
}

/* What a client may wait for. */
static bool may_park(tq_status_t rc)
{
    return rc == TQ_E_FULL || rc == TQ_E_BUSY;
}

static tq_status_t park(tqi_unit_t *unit, transfer_t *t, const request_t *request, tq_status_t rc,
                        const void *data, size_t len, uint64_t deadline_ns)
{
    if (unit->waiters[0].cnt + unit->waiters[1].cnt >= WAITERS_MAX ||
        unit->waiters_bytes + len > WAITERS_BYTES_MAX)
        return tqi_fail(&t->why, TQ_E_FULL,
                        "no space, and %zu requests with %" PRIu64
                        " bytes of messages wait for it already",
                        unit->waiters[0].cnt + unit->waiters[1].cnt, unit->waiters_bytes);
    if (tqi_buf_append(&t->frame, data, len) != TQ_OK)
        return tqi_fail(&t->why, TQ_E_NO_MEMORY, "no memory to park a request");
    t->waits_for_space = rc == TQ_E_FULL;
    t->owed = *request;
    transfer_park(unit, t, deadline_ns);
    return TQ_OK;
}

void put_on_prepare(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_msg_PreparePut_t *msg, const void *data, size_t len,
                    uint32_t budget_ms, uint64_t now_ns)
{
    tqi_transfer_kind_t kind = TQI_PUT_INLINE;
    tqi_blame_t blame = {0};
    tqi_err_t err = {0};
    uint64_t wait_ms = tqi_u64_min(msg->wait_ms, budget_ms);
    tq_status_t rc = check_request(unit, session, msg, &kind, &err);
    transfer_t *t = NULL;

    request->is_fused = msg->is_fused;
    if (rc == TQ_OK) {
        t = transfer_new(unit, session, msg->transfer, kind);
        if (!t)
            rc = tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a transfer");
    }
    if (rc != TQ_OK) {
        reply_error(unit, request, rc, err.text, NULL);
        return;
    }
    t->put_id = msg->put_id;
    t->is_column = msg->is_column;
    rc = try_prepare(unit, t, msg, &blame, &t->why);
    if (rc == TQ_OK && must_queue(unit, msg->is_column, &t->why)) {
        tqi_objects_cancel(unit->objs, t->batch);
        t->batch = NULL;
        rc = TQ_E_FULL;
    }
    if (rc == TQ_OK) {
        granted(unit, t, request, msg, now_ns);
        return;
    }
    if (may_park(rc) && wait_ms > 0) {
        rc = park(unit, t, request, rc, data, len, now_ns + wait_ms * NS_PER_MS);
        if (rc == TQ_OK)
            return;
        blame = (tqi_blame_t){0};
    }
    /* To the caller a cell that is taken is like space that is taken. */
    reply_error(unit, request, rc == TQ_E_BUSY ? TQ_E_FULL : rc, t->why.text, &blame);
    transfer_event(unit, t, TQI_TRANSFER_EV_CANCEL, now_ns);
}

void put_serve_waiters(tqi_unit_t *unit, uint64_t now_ns)
{
    tqi_err_t err;

    unit->is_dirty = false;
    if (link_check(unit, now_ns, &err) != TQ_OK)
        return; /* link.c makes it dirty when it serves again */
    for (int c = 0; c < 2; c++) {
        tqi_list_each(&unit->waiters[c], node)
        {
            transfer_t *t = tqi_container_of(node, transfer_t, node);
            request_t owed = t->owed;
            tqi_blame_t blame = {0};
            tqi_envelope_t env;
            tqi_msg_PreparePut_t msg;
            tq_status_t rc = tqi_envelope_decode(t->frame.data, t->frame.len, &env, &t->why);

            if (rc == TQ_OK)
                rc = tqi_msg_decode(&env, TQI_KIND_PreparePut, &msg, &t->why);
            if (rc == TQ_OK)
                rc = try_prepare(unit, t, &msg, &blame, &t->why);
            t->waits_for_space = rc == TQ_E_FULL;
            if (rc == TQ_E_BUSY)
                continue;
            if (rc == TQ_E_FULL)
                return; /* nobody behind it goes first */
            t->owed.kind = 0;
            if (rc == TQ_OK) {
                /* The message must outlive the transfer's place in the queue. */
                tqi_buf_t frame = t->frame;

                t->frame = (tqi_buf_t){.env = frame.env, .cap = 0};
                unit->waiters_bytes -= frame.cap;
                granted(unit, t, &owed, &msg, now_ns);
                tqi_buf_fini(&frame);
            } else {
                reply_error(unit, &owed, rc, t->why.text, &blame);
                transfer_event(unit, t, TQI_TRANSFER_EV_CANCEL, now_ns);
            }
        }
    }
}

/* ---- COMMIT, ABORT ---------------------------------------------------------------------------- */

void put_on_commit(tqi_unit_t *unit, transfer_t *t, request_t *request, uint64_t now_ns)
{
    if (!tqi_transfer_can(&t->core, TQI_TRANSFER_EV_COMMIT)) {
        tqi_err_t err = {0};

        switch (t->core.state) {
        case TQI_TRANSFER_PARKED:
            tqi_fail(&err, TQ_E_INVALID, "transfer %" PRIu64 " waits for space: nothing to commit",
                     t->core.id);
            break;
        case TQI_TRANSFER_COMMITTED:
            tqi_fail(&err, TQ_E_DUPLICATE, "transfer %" PRIu64 " is being committed", t->core.id);
            break;
        default:
            transfer_missing(unit, t->session, t->core.id, &err);
        }
        reply_error(unit, request, err.status, err.text, NULL);
        return;
    }
    switch (t->core.state) {
    case TQI_TRANSFER_BROKEN:
        reply_error(unit, request, t->why.status, t->why.text, NULL);
        break;
    case TQI_TRANSFER_OPEN:
        if (t->core.kind == TQI_PUT_STREAM) {
            t->owed = *request; /* answered when all bytes are there */
            break;
        }
        put_finish(unit, t, request);
        break;
    default: /* ARRIVED */
        put_finish(unit, t, request);
    }
    transfer_event(unit, t, TQI_TRANSFER_EV_COMMIT, now_ns);
}

void put_on_abort(tqi_unit_t *unit, session_t *session, request_t *request,
                  const tqi_msg_Abort_t *msg, uint64_t now_ns)
{
    if (msg->put_id == 0 || msg->put_id == UINT64_MAX) {
        reply_error(unit, request, TQ_E_INVALID, "an ABORT names a put", NULL);
        return;
    }
    if (!session_may_give_up(session)) {
        reply_error(unit, request, TQ_E_BUSY, "the session has given up too much", NULL);
        return;
    }
    if (tqi_intervals_add(&session->aborted, msg->put_id, msg->put_id + 1) != TQ_OK) {
        reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for an abort", NULL);
        return;
    }
    session->given_up_seq = tqi_u64_max(session->given_up_seq, request->seq);
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&session->transfers), *next; it; it = next) {
        transfer_t *t = it->value;

        next = tqi_map_u64_next(it);
        if (t->put_id != msg->put_id || !tqi_transfer_can(&t->core, TQI_TRANSFER_EV_ABORT))
            continue;
        transfer_remember(session, t->core.id);
        transfer_event(unit, t, TQI_TRANSFER_EV_ABORT, now_ns);
    }
    tqi_objects_abort(unit->objs, msg->put_id, session->id);
    unit->is_dirty = true;
    reply(unit, request, NULL);
}
