/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading. Few bytes go into the answer. More are pinned and stay as they are, whatever is cleared
 * or overwritten meanwhile, until they were sent (STREAM) or the reader says RELEASE (DIRECT).
 */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "role/storage/internal.h"

/* The descriptors of every field into unit->strs. */
static tq_status_t add_columns(tqi_unit_t *unit, const tqi_view_t *view, tqi_err_t *err)
{
    tq_status_t rc = TQ_OK;

    tqi_strs_builder_clear(&unit->strs);
    for (uint32_t f = 0; rc == TQ_OK && f < view->fields.len; f++) {
        tqi_buf_clear(&unit->bytes);
        rc = tqi_view_column(view, f, &unit->bytes, err);
        if (rc == TQ_OK && tqi_strs_builder_add(&unit->strs, unit->bytes.data, unit->bytes.len))
            rc = tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the descriptors of a read");
    }
    return rc;
}

static void reply_inline(tqi_unit_t *unit, request_t *request, const tqi_view_t *view)
{
    tqi_msg_PrepareGet_R_t ready = {.is_inline = true};

    ready.columns = tqi_strs_builder_view(&unit->strs);
    tqi_buf_clear(&unit->bytes);
    if (view->bytes > 0) {
        void *at = tqi_buf_extend(&unit->bytes, view->bytes);

        if (!at) {
            reply_error(unit, request, TQ_E_NO_MEMORY, "no memory for the values of a read", NULL);
            return;
        }
        tqi_view_copy(view, at);
        ready.inline_bytes = (tqi_bytes_t){at, (uint32_t)view->bytes};
    }
    unit->counters.get_bytes += view->bytes;
    reply(unit, request, &ready);
}

/* The pieces of every frame, for a client that reads the segments itself. */
static tq_status_t add_pieces(tqi_unit_t *unit, const tqi_view_t *view,
                              tqi_msg_PrepareGet_R_t *ready, tqi_err_t *err)
{
    size_t at = 0;

    if (view->ranges.len > TQ_REQUEST_DESCS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "the values lie in %zu pieces, over the limit of %u: read fewer rows at "
                        "once",
                        view->ranges.len, TQ_REQUEST_DESCS_MAX);
    for (int i = 0; i < 2; i++)
        unit->u32s[i].len = unit->u64s[i].len = 0;
    if (tqi_vec_reserve(&unit->u32s[0], view->fields.len) != TQ_OK ||
        tqi_vec_reserve(&unit->u32s[1], view->ranges.len) != TQ_OK ||
        tqi_vec_reserve(&unit->u64s[0], view->ranges.len) != TQ_OK ||
        tqi_vec_reserve(&unit->u64s[1], view->ranges.len) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the pieces of a read");
    for (size_t f = 0; f < view->fields.len; f++) {
        size_t first = unit->u32s[1].len;

        for (; at < view->fields.at[f].ranges_end; at++) {
            const tqi_range_t *range = &view->ranges.at[at];
            uint64_t bytes = tqi_run_bytes(range->run, range->lo, range->cnt);
            size_t n = unit->u32s[1].len;

            if (bytes == 0)
                continue;
            unit->u32s[1].at[n] = tqi_segment_id(range->run->span.segment);
            unit->u64s[0].at[n] = range->run->span.offset + tqi_run_offset(range->run, range->lo);
            unit->u64s[1].at[n] = bytes;
            unit->u32s[1].len++;
        }
        unit->u32s[0].at[f] = (uint32_t)(unit->u32s[1].len - first);
    }
    uint32_t cnt = (uint32_t)unit->u32s[1].len;

    ready->piece_counts = tqi_u32s(unit->u32s[0].at, (uint32_t)view->fields.len);
    ready->piece_segments = tqi_u32s(unit->u32s[1].at, cnt);
    ready->piece_offsets = tqi_u64s(unit->u64s[0].at, cnt);
    ready->piece_bytes = tqi_u64s(unit->u64s[1].at, cnt);
    return TQ_OK;
}

/* A read that needs a transfer, because its bytes do not fit into the answer. */
static tq_status_t check_transfer(const tqi_unit_t *unit, const session_t *session,
                                  const tqi_msg_PrepareGet_t *msg, tqi_err_t *err)
{
    if (msg->transfer == 0 || msg->transfer == UINT64_MAX)
        return tqi_fail(err, TQ_E_INVALID, "a PREPARE names its transfer");
    if (transfer_find(session, msg->transfer))
        return tqi_fail(err, TQ_E_DUPLICATE, "transfer %" PRIu64 " exists", msg->transfer);
    if (tqi_intervals_contains(&session->gone, msg->transfer))
        return tqi_fail(err, TQ_E_CANCELLED, "the client gave the transfer up before it came");
    if (tqi_map_u64_count(&session->transfers) >= SESSION_TRANSFERS_MAX)
        return tqi_fail(err, TQ_E_BUSY, "the session has %u transfers at storage unit %u",
                        SESSION_TRANSFERS_MAX, unit->unit_id);
    if (session->views_bytes > 0 &&
        session->views_bytes + unit->view.ranges.len * sizeof *unit->view.ranges.at >
            SESSION_VIEWS_BYTES_MAX)
        return tqi_fail(err, TQ_E_BUSY, "the session reads too many single values at unit %u",
                        unit->unit_id);
    return TQ_OK;
}

static tq_status_t kind_of(const tqi_unit_t *unit, const session_t *session,
                           const tqi_msg_PrepareGet_t *msg, uint64_t bytes,
                           tqi_transfer_kind_t *kind, tqi_err_t *err)
{
    if (msg->mode == TQI_PAYLOAD_STREAM && unit->payload)
        *kind = TQI_GET_STREAM;
    else if (msg->mode == TQI_PAYLOAD_DIRECT && session->is_direct)
        *kind = TQI_GET_DIRECT;
    else
        return tqi_fail(err, TQ_E_UNSUPPORTED,
                        "%" PRIu64
                        " bytes are too many for a message (%u), and storage unit %u has "
                        "no payload of mode %u for this session",
                        bytes, msg->inline_max, unit->unit_id, msg->mode);
    return TQ_OK;
}

/* The transfer's own copy, as large as it has to be: the unit's is reused by every read. */
static tq_status_t view_keep(session_t *session, transfer_t *t, const tqi_view_t *view,
                             tqi_err_t *err)
{
    tqi_view_t *own = &t->view;
    bool is_there = tqi_vec_reserve(&own->ranges, view->ranges.len) == TQ_OK &&
                    tqi_vec_reserve(&own->fields, view->fields.len) == TQ_OK;

    session->views_bytes += tqi_view_bytes(own); /* half of it, too: transfer_free takes it off */
    if (!is_there)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a transfer");
    memcpy(own->ranges.at, view->ranges.at, view->ranges.len * sizeof *own->ranges.at);
    memcpy(own->fields.at, view->fields.at, view->fields.len * sizeof *own->fields.at);
    own->ranges.len = view->ranges.len;
    own->fields.len = view->fields.len;
    own->rows_cnt = view->rows_cnt;
    own->bytes = view->bytes;
    return TQ_OK;
}

void get_on_prepare(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_msg_PrepareGet_t *msg, uint64_t now_ns)
{
    tqi_msg_PrepareGet_R_t ready = {.lease_ms = unit->conf.lease_ms};
    tqi_transfer_kind_t kind = TQI_GET_STREAM;
    tqi_view_t *view = &unit->view;
    tqi_blame_t blame = {0};
    tqi_err_t err = {0};
    tq_status_t rc = TQ_OK;

    /* Another put may have staged something there since, which `produced` must not publish. */
    if (msg->life != 0 && msg->life != unit->conf.unit_incarnation)
        rc = tqi_fail(&err, TQ_E_ROW_GONE,
                      "storage unit %u was started again since, and what it held is gone",
                      unit->unit_id);
    if (rc == TQ_OK && (uint64_t)msg->rows.cnt * msg->fields.cnt > TQ_REQUEST_DESCS_MAX)
        rc = tqi_fail(&err, TQ_E_TOO_LARGE, "a read of %u rows by %u fields, over %u cells",
                      msg->rows.cnt, msg->fields.cnt, TQ_REQUEST_DESCS_MAX);
    if (rc == TQ_OK)
        rc =
            tqi_objects_read(unit->objs, msg->rows, msg->fields, msg->produced, view, &blame, &err);
    unit->is_dirty = true; /* its marks may have published what a PREPARE waits for */
    if (rc == TQ_OK)
        rc = add_columns(unit, view, &err);
    if (rc == TQ_OK) {
        unit->counters.gets++;
        if (view->bytes <= msg->inline_max && view->bytes <= TQ_INLINE_BYTES_MAX) {
            reply_inline(unit, request, view);
            return;
        }
        rc = check_transfer(unit, session, msg, &err);
        if (rc == TQ_OK)
            rc = kind_of(unit, session, msg, view->bytes, &kind, &err);
    }
    if (rc == TQ_OK && kind == TQI_GET_DIRECT)
        rc = add_pieces(unit, view, &ready, &err);
    transfer_t *t = rc == TQ_OK ? transfer_new(unit, session, msg->transfer, kind) : NULL;
    if (rc == TQ_OK)
        rc = t ? view_keep(session, t, view, &err)
               : tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a transfer");
    if (rc != TQ_OK) {
        if (t)
            transfer_free(unit, t);
        reply_error(unit, request, rc, err.text, &blame);
        return;
    }
    tqi_objects_pin(unit->objs, &t->view);
    transfer_event(unit, t, TQI_TRANSFER_EV_GRANT, now_ns);
    ready.columns = tqi_strs_builder_view(&unit->strs);
    if (!reply(unit, request, &ready)) /* nobody will say RELEASE */
        transfer_event(unit, t, TQI_TRANSFER_EV_CANCEL, now_ns);
}

/* Hands the frames to the port. */
static tq_status_t send_frames(tqi_unit_t *unit, const transfer_t *t, tqi_err_t *err)
{
    tqi_transfer_key_t key = {t->session->id, t->core.id};
    const tqi_view_t *view = &t->view;
    size_t at = 0;

    unit->frames.len = unit->pieces.len = 0;
    if (tqi_vec_reserve(&unit->frames, view->fields.len) != TQ_OK ||
        tqi_vec_reserve(&unit->pieces, view->ranges.len) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the frames of a read");
    for (size_t f = 0; f < view->fields.len; f++) {
        tqi_frame_t frame = {unit->pieces.at + unit->pieces.len, 0, view->fields.at[f].bytes};

        for (; at < view->fields.at[f].ranges_end; at++) {
            const tqi_range_t *range = &view->ranges.at[at];
            uint64_t bytes = tqi_run_bytes(range->run, range->lo, range->cnt);

            if (bytes == 0)
                continue;
            frame.pieces[frame.pieces_cnt++] =
                (tqi_piece_t){tqi_run_data(range->run, range->lo), bytes};
        }
        unit->pieces.len += frame.pieces_cnt;
        unit->frames.at[unit->frames.len++] = frame;
    }
    return unit->payload->send(unit->payload, key, unit->frames.at, (uint32_t)unit->frames.len,
                               err);
}

void get_on_commit(tqi_unit_t *unit, transfer_t *t, request_t *request, uint64_t now_ns)
{
    tqi_err_t err = {0};
    tq_status_t rc;

    if (!tqi_transfer_can(&t->core, TQI_TRANSFER_EV_COMMIT)) {
        rc = t->core.kind == TQI_GET_DIRECT
                 ? tqi_fail(&err, TQ_E_INVALID, "a direct read has no COMMIT, only RELEASE")
                 : tqi_fail(&err, TQ_E_DUPLICATE, "transfer %" PRIu64 " is being sent", t->core.id);
        reply_error(unit, request, rc, err.text, NULL);
        return;
    }
    rc = send_frames(unit, t, &err);
    if (rc != TQ_OK) {
        reply_error(unit, request, rc, err.text, NULL);
        transfer_event(unit, t, TQI_TRANSFER_EV_CANCEL, now_ns);
        return;
    }
    t->owed = *request; /* answered when all is sent */
    transfer_event(unit, t, TQI_TRANSFER_EV_COMMIT, now_ns);
}

void get_on_release(tqi_unit_t *unit, session_t *session, request_t *request,
                    const tqi_msg_Release_t *msg, uint64_t now_ns)
{
    transfer_t *t = transfer_find(session, msg->transfer);
    tqi_msg_Release_R_t answer = {0};

    if (t && t->core.kind == TQI_GET_STREAM) {
        reply_error(unit, request, TQ_E_INVALID,
                    "a streamed read ends with its COMMIT, or is cancelled", NULL);
        return;
    }
    if (t && tqi_transfer_can(&t->core, TQI_TRANSFER_EV_RELEASE)) {
        answer.was_held = t->view.is_pinned;
        if (answer.was_held)
            unit->counters.get_bytes += t->view.bytes;
        transfer_event(unit, t, TQI_TRANSFER_EV_RELEASE, now_ns);
    }
    reply(unit, request, &answer);
}
