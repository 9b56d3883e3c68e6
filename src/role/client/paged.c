/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops whose answer may be long: status, list. Pages are asked for one after another and put
 * together; each page is as the store is when it answers.
 */
#include "role/client/internal.h"

#include <string.h>

typedef struct paged {
    tqi_op_t op;
    const char *partition; /* list: NULL for the names of all */
    const char *task;
    tq_strs_t wanted;
    tq_status_kind_t kind;
    bool is_keys_only, is_stuck_only, want_fields;
    uint64_t rows_max;
    uint64_t cursor;
    bool has_page;
} paged_t;

static paged_t *paged_of(tqi_op_t *op)
{
    return tqi_container_of(op, paged_t, op);
}

static tq_status_t paged_new(const tqi_env_t *env, const tqi_op_class_t *cls, uint32_t timeout_ms,
                             const char *partition, tqi_op_t **out, tqi_err_t *err)
{
    tqi_op_t *op;
    tq_status_t rc = tqi_op_new(env, cls, timeout_ms, &op, err);

    if (rc != TQ_OK)
        return rc;
    if (partition) {
        paged_of(op)->partition = tqi_op_dup_str(op, partition, strlen(partition));
        if (!paged_of(op)->partition) {
            tqi_op_free(op);
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an op");
        }
    }
    *out = op;
    return TQ_OK;
}

static void finish(paged_t *paged, uint64_t now_ns)
{
    if (tqi_op_answer(&paged->op, now_ns) == TQ_OK)
        tqi_op_finish(&paged->op, now_ns);
}

/* ---- status ------------------------------------------------------------------------------------ */

static void ask_status(paged_t *paged, uint64_t now_ns)
{
    tqi_msg_Status_t msg = {.partition = tqi_str(paged->partition),
                            .what = paged->kind,
                            .task = tqi_str(paged->task),
                            .fields = tqi_strs_of(&paged->wanted),
                            .cursor = paged->cursor};

    tqi_op_request(&paged->op, paged->op.client->controller, NULL, TQI_KIND_Status, &msg, now_ns);
}

static void status_start(tqi_op_t *op, uint64_t now_ns)
{
    paged_of(op)->cursor = 0;
    ask_status(paged_of(op), now_ns);
}

/* Pages follow each other upwards, or this would never end. False: it has failed. */
static bool goes_on(paged_t *paged, uint64_t next, uint64_t now_ns)
{
    tqi_err_t err;

    if (next == 0 || next > paged->cursor)
        return true;
    tqi_fail(&err, TQ_E_MALFORMED, "%s: the next page is not behind this one", paged->op.cls->name);
    tqi_op_fail(&paged->op, &err, now_ns);
    return false;
}

static void status_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                            uint64_t now_ns)
{
    paged_t *paged = paged_of(op);
    tqi_msg_Status_R_t msg;

    (void)slot;
    if (reply->status != TQ_OK) {
        tqi_op_fail(op, &reply->err, now_ns);
        return;
    }
    if (!tqi_op_decode(op, reply, &msg, now_ns))
        return;
    if (tqi_buf_append(&op->rows, msg.rows.data, (size_t)msg.rows.cnt * 8) != TQ_OK ||
        tqi_buf_append(&op->status, msg.status.data, msg.status.cnt) != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    if (!goes_on(paged, msg.next, now_ns))
        return;
    op->result.is_known = msg.is_known;
    paged->cursor = msg.next;
    if (paged->cursor != 0) {
        ask_status(paged, now_ns);
    } else if (tqi_strs_append(&op->fields, tqi_strs_of(&paged->wanted)) != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
    } else {
        finish(paged, now_ns);
    }
}

static const tqi_op_class_t status_class = {
    .name = "status",
    .size = sizeof(paged_t),
    .is_repeatable = true,
    .start = status_start,
    .on_reply = status_on_reply,
};

tq_status_t tqi_op_status_of(const tqi_env_t *env, const tq_status_args_t *args, tqi_op_t **op,
                             tqi_err_t *err)
{
    tq_status_t rc = tqi_check_name("partition", args->partition, err);
    paged_t *paged;

    if (rc == TQ_OK && args->kind == TQ_STATUS_CONSUMPTION)
        rc = tqi_check_name("task", args->task, err);
    else if (rc == TQ_OK && args->kind == TQ_STATUS_PRODUCTION)
        rc = tqi_check_strs("field", args->fields, TQ_PARTITION_FIELDS_MAX, TQ_NAME_MAX, true, err);
    else if (rc == TQ_OK)
        rc = tqi_fail(err, TQ_E_INVALID, "unknown kind %d of a status", args->kind);
    if (rc == TQ_OK)
        rc = paged_new(env, &status_class, args->timeout_ms, args->partition, op, err);
    if (rc != TQ_OK)
        return rc;
    paged = paged_of(*op);
    paged->kind = args->kind;
    paged->task = tqi_op_dup_str(*op, args->task, args->task ? strlen(args->task) : 0);
    if (!paged->task || (args->kind == TQ_STATUS_PRODUCTION &&
                         tqi_op_dup_strs(*op, args->fields, &paged->wanted) != TQ_OK)) {
        tqi_op_free(*op);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an op");
    }
    return TQ_OK;
}

/* ---- list -------------------------------------------------------------------------------------- */

static void ask_list(paged_t *paged, uint64_t now_ns)
{
    uint64_t left = paged->rows_max - paged->op.rows.len / sizeof(tq_row_t);
    tqi_msg_List_t msg = {
        .partition = tqi_str(paged->partition ? paged->partition : ""),
        .is_partitions = !paged->partition,
        .cursor = paged->cursor,
        .rows_max = paged->rows_max == 0 || left > TQ_REQUEST_ROWS_MAX ? 0 : (uint32_t)left,
        .is_keys_only = paged->is_keys_only,
        .is_stuck_only = paged->is_stuck_only,
        .want_fields = paged->want_fields,
    };

    tqi_op_request(&paged->op, paged->op.client->controller, NULL, TQI_KIND_List, &msg, now_ns);
}

static void list_start(tqi_op_t *op, uint64_t now_ns)
{
    paged_of(op)->cursor = 0;
    paged_of(op)->has_page = false;
    ask_list(paged_of(op), now_ns);
}

static bool is_same(tqi_strs_t a, tqi_strs_t b)
{
    return a.cnt == b.cnt && a.bytes_len == b.bytes_len &&
           (a.cnt == 0 || (memcmp(a.offsets, b.offsets, ((size_t)a.cnt + 1) * 4) == 0 &&
                           memcmp(a.bytes, b.bytes, a.bytes_len) == 0));
}

static tq_status_t add_page(paged_t *paged, const tqi_msg_List_R_t *msg)
{
    tqi_op_t *op = &paged->op;
    tq_status_t rc = tqi_strs_append(&op->names, msg->names);

    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->rows, msg->rows.data, (size_t)msg->rows.cnt * 8);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->units, msg->units.data, (size_t)msg->units.cnt * 4);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->has_key, msg->has_key.data, msg->has_key.cnt);
    if (rc == TQ_OK)
        rc = tqi_strs_append(&op->keys, msg->keys);
    if (rc == TQ_OK)
        rc = tqi_op_add_tags(op, msg->tags);
    if (rc == TQ_OK && !paged->has_page) {
        rc = tqi_strs_append(&op->fields, msg->fields);
        if (rc == TQ_OK)
            rc = tqi_op_add_schemas(op, msg->schemas);
    }
    if (rc == TQ_OK)
        rc = tqi_op_add_produced(op, msg->produced, msg->rows.cnt, msg->fields.cnt);
    return rc;
}

static void list_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    paged_t *paged = paged_of(op);
    tqi_msg_List_R_t msg;
    tqi_err_t err;

    (void)slot;
    if (reply->status != TQ_OK) {
        tqi_op_fail(op, &reply->err, now_ns);
        return;
    }
    if (!tqi_op_decode(op, reply, &msg, now_ns))
        return;
    if (paged->has_page && !is_same(msg.fields, tqi_strs_builder_view(&op->fields))) {
        /* A field came or went, or is waited for now, between two pages: their columns don't fit
         * together. */
        tqi_fail(&err, TQ_E_BUSY, "the fields of partition '%.200s' keep changing",
                 paged->partition);
        tqi_op_restart(op, &err, now_ns);
        return;
    }
    if (add_page(paged, &msg) != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    if (!goes_on(paged, msg.next, now_ns))
        return;
    paged->has_page = true;
    op->result.is_known = msg.is_known;
    paged->cursor = msg.next;
    if (paged->cursor != 0 &&
        (paged->rows_max == 0 || op->rows.len / sizeof(tq_row_t) < paged->rows_max))
        ask_list(paged, now_ns);
    else
        finish(paged, now_ns);
}

static const tqi_op_class_t list_class = {
    .name = "list",
    .size = sizeof(paged_t),
    .is_repeatable = true,
    .start = list_start,
    .on_reply = list_on_reply,
};

tq_status_t tqi_op_list(const tqi_env_t *env, const tq_list_args_t *args, tqi_op_t **op,
                        tqi_err_t *err)
{
    tq_status_t rc = args->partition ? tqi_check_name("partition", args->partition, err) : TQ_OK;
    paged_t *paged;

    if (rc == TQ_OK)
        rc = paged_new(env, &list_class, args->timeout_ms, args->partition, op, err);
    if (rc != TQ_OK)
        return rc;
    paged = paged_of(*op);
    paged->is_keys_only = args->is_keys_only;
    paged->is_stuck_only = args->is_stuck_only;
    paged->want_fields = args->want_fields;
    paged->rows_max = args->rows_max;
    return TQ_OK;
}
