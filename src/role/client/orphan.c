/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests whose op has ended before they were answered. What such a late answer grants is given
 * back: a put that nobody makes any more is aborted, rows that nobody takes are returned, space and
 * pins are let go of. So is a put that was left with its outcome unknown, and is refused. What was asked is read from the request, which is kept until it is answered.
 */
#include "role/client/internal.h"

static bool say(tqi_link_t *link, uint16_t kind, const void *msg, uint64_t now_ns, tqi_req_t **req)
{
    return tqi_link_request(link, NULL, NULL, kind, msg, TQI_NEVER, now_ns, req, NULL) == TQ_OK;
}

/* INSERT and RESOLVE may have begun a put. */
static bool abort_put(tqi_link_t *link, const tqi_envelope_t *asked, const tqi_envelope_t *reply,
                      uint64_t now_ns)
{
    tqi_msg_Publish_t abort = {.part = 1, .parts = 1, .is_abort = true};
    tqi_msg_Insert_t insert;
    tqi_msg_Resolve_t resolve;
    tqi_msg_Insert_R_t inserted;
    tqi_msg_Resolve_R_t resolved;

    if (asked->kind == TQI_KIND_Insert) {
        if (tqi_msg_decode(asked, TQI_KIND_Insert, &insert, NULL) != TQ_OK ||
            tqi_msg_decode(reply, TQI_KIND_Insert_R, &inserted, NULL) != TQ_OK)
            return true;
        abort.partition = insert.partition;
        abort.put_id = inserted.put_id;
    } else {
        if (tqi_msg_decode(asked, TQI_KIND_Resolve, &resolve, NULL) != TQ_OK ||
            tqi_msg_decode(reply, TQI_KIND_Resolve_R, &resolved, NULL) != TQ_OK)
            return true;
        abort.partition = resolve.partition;
        abort.put_id = resolved.put_id;
    }
    return abort.put_id == 0 || say(link, TQI_KIND_Publish, &abort, now_ns, NULL);
}

/* A PUBLISH whose outcome the caller did not wait for was refused: the put has failed. Which units it
 * wrote to is forgotten; those that were spoken to in this session are told, and of a put that they
 * don't know they have nothing to undo. */
static bool abort_published(tqi_link_t *link, const tqi_envelope_t *asked, uint64_t now_ns)
{
    tqi_msg_Publish_t publish, abort = {.part = 1, .parts = 1, .is_abort = true};
    tqi_msg_Abort_t undo;

    if (tqi_msg_decode(asked, TQI_KIND_Publish, &publish, NULL) != TQ_OK || publish.is_abort)
        return true;
    undo.put_id = abort.put_id = publish.put_id;
    abort.partition = publish.partition;
    tqi_list_each(&link->client->links, node)
    {
        tqi_link_t *unit = tqi_container_of(node, tqi_link_t, node);

        if (unit->unit_id != 0 && tqi_outbox_last(unit->outbox) > 0 &&
            !say(unit, TQI_KIND_Abort, &undo, now_ns, NULL))
            return false;
    }
    return say(link, TQI_KIND_Publish, &abort, now_ns, NULL);
}

/* What was said when the op ended may have gone to the unit's life before this one. */
static bool cancel_transfer(tqi_link_t *link, const tqi_envelope_t *asked, uint64_t now_ns)
{
    tqi_msg_PreparePut_t put = {0};
    tqi_msg_PrepareGet_t get = {0};
    tqi_msg_Cancel_t cancel;
    bool is_put = asked->kind == TQI_KIND_PreparePut;

    if (tqi_msg_decode(asked, asked->kind, is_put ? (void *)&put : (void *)&get, NULL) != TQ_OK)
        return true;
    cancel.transfer = is_put ? put.transfer : get.transfer;
    return say(link, TQI_KIND_Cancel, &cancel, now_ns, NULL);
}

/* The grant stays provisional, its seq open, until the rows were returned. */
static bool return_rows(tqi_link_t *link, const tqi_envelope_t *asked, const tqi_envelope_t *reply,
                        uint64_t now_ns, bool *must_stay_open)
{
    tqi_msg_Fetch_t fetch;
    tqi_msg_Fetch_R_t granted;
    tqi_msg_Return_t give;
    tqi_req_t *req;

    if (tqi_msg_decode(asked, TQI_KIND_Fetch, &fetch, NULL) != TQ_OK ||
        tqi_msg_decode(reply, TQI_KIND_Fetch_R, &granted, NULL) != TQ_OK ||
        fetch.mode != TQ_FETCH || granted.rows.cnt == 0)
        return true;
    give =
        (tqi_msg_Return_t){.partition = fetch.partition, .task = fetch.task, .rows = granted.rows};
    if (!say(link, TQI_KIND_Return, &give, now_ns, &req))
        return false;
    req->releases_seq = reply->seq;
    *must_stay_open = true;
    return true;
}

bool tqi_orphan_answered(tqi_link_t *link, uint16_t kind, const tqi_buf_t *body,
                         const tqi_envelope_t *reply, uint64_t now_ns, bool *must_stay_open)
{
    tqi_envelope_t asked = {.kind = kind, .body = body->data, .body_len = (uint32_t)body->len};

    *must_stay_open = false;
    if (reply->status != TQ_OK)
        return kind != TQI_KIND_Publish || abort_published(link, &asked, now_ns);
    switch (kind) {
    case TQI_KIND_Insert:
    case TQI_KIND_Resolve:
        return abort_put(link, &asked, reply, now_ns);
    case TQI_KIND_PreparePut:
    case TQI_KIND_PrepareGet:
        return cancel_transfer(link, &asked, now_ns);
    case TQI_KIND_Fetch:
        return return_rows(link, &asked, reply, now_ns, must_stay_open);
    default:
        return true;
    }
}
