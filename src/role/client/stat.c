/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures of the whole store: the controller's and its units', as
 * {"controller": {...}, "units": [{...}, ...]}. A unit that can't be asked is listed with the error.
 */
#include "role/client/internal.h"

#include <string.h>

#include "wire/value.h"

typedef struct stat_op {
    tqi_op_t op;
    tqi_buf_t controller;
    tqi_buf_t units; /* members, separated by commas */
    uint32_t waiting_cnt;
} stat_op_t;

static stat_op_t *stat_of(tqi_op_t *op)
{
    return tqi_container_of(op, stat_op_t, op);
}

static void stat_start(tqi_op_t *op, uint64_t now_ns)
{
    stat_op_t *stat = stat_of(op);
    tqi_client_t *client = op->client;
    tqi_msg_Stat_t msg = {0};

    tqi_buf_clear(&stat->controller);
    tqi_buf_clear(&stat->units);
    stat->waiting_cnt = 1;
    if (!tqi_op_request(op, client->controller, NULL, TQI_KIND_Stat, &msg, now_ns))
        return;
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&client->units); item;
         item = tqi_map_u64_next(item)) {
        tqi_link_t *link = item->value;
        if (!link->is_in_table || link->is_lost)
            continue;
        if (!tqi_op_request(op, link, NULL, TQI_KIND_Stat, &msg, now_ns))
            return;
        stat->waiting_cnt++;
    }
}

static tq_status_t add_unit(stat_op_t *stat, uint32_t unit_id, const tqi_err_t *err,
                            tqi_bytes_t json)
{
    tqi_buf_t *units = &stat->units;
    tq_status_t rc = units->len > 0 ? tqi_buf_append(units, ",", 1) : TQ_OK;

    if (rc == TQ_OK && err->status == TQ_OK)
        return tqi_buf_append(units, json.data, json.len);
    if (rc == TQ_OK)
        rc = tqi_buf_printf(units, "{\"unit\":%u,\"error\":", unit_id);
    if (rc == TQ_OK)
        rc = tqi_json_str(units, err->text, strlen(err->text));
    return rc == TQ_OK ? tqi_buf_append(units, "}", 1) : rc;
}

static void answered(stat_op_t *stat, tq_status_t rc, uint64_t now_ns)
{
    tqi_op_t *op = &stat->op;

    if (rc == TQ_OK && --stat->waiting_cnt > 0)
        return;
    if (rc == TQ_OK)
        rc = tqi_buf_printf(&op->json, "{\"controller\":");
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->json, stat->controller.data, stat->controller.len);
    if (rc == TQ_OK)
        rc = tqi_buf_printf(&op->json, ",\"units\":[");
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->json, stat->units.data, stat->units.len);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->json, "]}", 3); /* terminated */
    if (rc != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    op->result.json = (const char *)op->json.data;
    tqi_op_finish(op, now_ns);
}

static void stat_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    stat_op_t *stat = stat_of(op);
    tqi_msg_Stat_R_t msg = {0};
    tq_status_t rc;

    (void)slot;
    if (reply->status == TQ_OK && !tqi_op_decode(op, reply, &msg, now_ns))
        return;
    if (reply->link->unit_id != 0) {
        rc = add_unit(stat, reply->link->unit_id, &reply->err, msg.json);
    } else if (reply->status == TQ_OK) {
        rc = tqi_buf_append(&stat->controller, msg.json.data, msg.json.len);
    } else {
        tqi_op_fail(op, &reply->err, now_ns);
        return;
    }
    answered(stat, rc, now_ns);
}

/* What is left are units that don't answer. */
static bool stat_stop(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns)
{
    stat_op_t *stat = stat_of(op);
    tqi_node_t *node;

    if ((why != TQI_OP_EV_UNREACHABLE && why != TQI_OP_EV_TIMEOUT) || stat->controller.len == 0)
        return false;
    while (op->state == TQI_OP_RUNNING && (node = tqi_list_first(&op->reqs))) {
        tqi_req_t *req = tqi_container_of(node, tqi_req_t, node);
        uint32_t unit_id = req->link->unit_id;
        tqi_req_orphan(req);
        answered(stat, add_unit(stat, unit_id, err, (tqi_bytes_t){0}), now_ns);
    }
    return true;
}

static void stat_fini(tqi_op_t *op)
{
    tqi_buf_fini(&stat_of(op)->controller);
    tqi_buf_fini(&stat_of(op)->units);
}

static const tqi_op_class_t stat_class = {
    .name = "stat",
    .size = sizeof(stat_op_t),
    .is_repeatable = true,
    .start = stat_start,
    .on_reply = stat_on_reply,
    .stop = stat_stop,
    .fini = stat_fini,
};

tq_status_t tqi_op_stat(const tqi_env_t *env, uint32_t timeout_ms, tqi_op_t **op, tqi_err_t *err)
{
    tq_status_t rc = tqi_op_new(env, &stat_class, timeout_ms, op, err);

    if (rc == TQ_OK) {
        tqi_buf_init(&stat_of(*op)->controller, env);
        tqi_buf_init(&stat_of(*op)->units, env);
    }
    return rc;
}
