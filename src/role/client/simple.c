/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops that are one request and its reply: insert, tags, clear, reset, forget, resolve. Clear and reset are
 * the same when done twice, and so is making rows for keys; an insert or tags whose answer a lost
 * session took along may have happened or not.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct simple {
    tqi_op_t op;
    const char *partition;
    const char *task;
    uint32_t rows_cnt; /* forget: the unit's id */
    const tq_row_t *rows;
    tq_strs_t strs;  /* keys, fields or tags */
    bool is_flagged; /* clear: all. reset: every task. tags: replace. resolve: create */
    bool has_rows;
} simple_t;

static simple_t *simple_of(tqi_op_t *op)
{
    return tqi_container_of(op, simple_t, op);
}

static tq_status_t simple_new(const tqi_env_t *env, const tqi_op_class_t *cls, uint32_t timeout_ms,
                              const char *partition, uint32_t rows_cnt, const tq_row_t *rows,
                              const tq_strs_t *strs, tqi_op_t **out, tqi_err_t *err)
{
    simple_t *simple;
    tqi_op_t *op;
    tq_status_t rc = tqi_op_new(env, cls, timeout_ms, &op, err);

    if (rc != TQ_OK)
        return rc;
    simple = simple_of(op);
    simple->rows_cnt = rows_cnt;
    simple->partition = tqi_op_dup_str(op, partition, strlen(partition));
    if (rows) {
        simple->has_rows = true;
        simple->rows = tqi_op_dup(op, rows, rows_cnt * sizeof *rows);
    }
    if (!simple->partition || (rows && !simple->rows) ||
        tqi_op_dup_strs(op, strs, &simple->strs) != TQ_OK) {
        tqi_op_free(op);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an op");
    }
    *out = op;
    return TQ_OK;
}

static bool decode(tqi_op_t *op, const tqi_reply_t *reply, void *msg, uint64_t now_ns)
{
    if (reply->status == TQ_OK)
        return tqi_op_decode(op, reply, msg, now_ns);
    tqi_op_fail(op, &reply->err, now_ns);
    return false;
}

static void finish(tqi_op_t *op, tq_status_t rc, uint64_t now_ns)
{
    if (rc != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    if (tqi_op_answer(op, now_ns) == TQ_OK)
        tqi_op_finish(op, now_ns);
}

/* A write that was sent and not answered. */
static bool stop_write(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns)
{
    char text[TQ_ERROR_TEXT_MAX];

    if (!tqi_op_is_past_point(op) || err->status == TQ_E_STALE_STORE ||
        err->status == TQ_E_STORE_GONE)
        return false;
    if (why == TQI_OP_EV_CANCEL)
        return true; /* its answer decides, and comes soon */
    memcpy(text, err->text, sizeof text);
    tqi_fail(err, TQ_E_OUTCOME_UNKNOWN, "%s: it was sent and no answer came (%.300s)",
             op->cls->name, text);
    tqi_op_fail(op, err, now_ns);
    return true;
}

static void write_request(tqi_op_t *op, uint16_t kind, const void *msg, uint64_t now_ns)
{
    tqi_req_t *req;
    tqi_err_t err;

    if (tqi_link_request(op->client->controller, op, NULL, kind, msg, op->deadline_ns, now_ns, &req,
                         &err) == TQ_OK)
        req->is_point = true;
    else
        tqi_op_fail(op, &err, now_ns);
}

/* ---- insert ------------------------------------------------------------------------------------ */

static void insert_start(tqi_op_t *op, uint64_t now_ns)
{
    simple_t *simple = simple_of(op);
    tqi_msg_Insert_t msg = {.partition = tqi_str(simple->partition),
                            .rows_cnt = simple->rows_cnt,
                            .fields = tqi_strs_of(&simple->strs)};

    write_request(op, TQI_KIND_Insert, &msg, now_ns);
}

static void insert_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                            uint64_t now_ns)
{
    tqi_msg_Insert_R_t msg;
    tq_status_t rc;

    (void)slot;
    if (!decode(op, reply, &msg, now_ns))
        return;
    rc = tqi_buf_append(&op->rows, msg.rows.data, (size_t)msg.rows.cnt * 8);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->units, msg.units.data, (size_t)msg.units.cnt * 4);
    if (rc == TQ_OK)
        rc = tqi_strs_append(&op->fields, tqi_strs_of(&simple_of(op)->strs));
    if (rc == TQ_OK)
        rc = tqi_op_add_schemas(op, msg.schemas);
    finish(op, rc, now_ns);
}

static const tqi_op_class_t insert_class = {
    .name = "insert",
    .size = sizeof(simple_t),
    .start = insert_start,
    .on_reply = insert_on_reply,
    .stop = stop_write,
};

tq_status_t tqi_op_insert(const tqi_env_t *env, const tq_insert_args_t *args, tqi_op_t **op,
                          tqi_err_t *err)
{
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK && args->rows_cnt > TQ_REQUEST_ROWS_MAX)
        rc = tqi_fail(err, TQ_E_TOO_LARGE, "an insert of %" PRIu32 " rows, over the limit of %u",
                      args->rows_cnt, TQ_REQUEST_ROWS_MAX);
    if (rc == TQ_OK)
        rc = tqi_check_strs("field", args->fields, TQ_PARTITION_FIELDS_MAX, TQ_NAME_MAX, true, err);
    return rc != TQ_OK ? rc
                       : simple_new(env, &insert_class, args->timeout_ms, args->partition,
                                    args->rows_cnt, NULL, args->fields, op, err);
}

/* ---- tags -------------------------------------------------------------------------------------- */

static void tags_start(tqi_op_t *op, uint64_t now_ns)
{
    simple_t *simple = simple_of(op);
    tqi_msg_Tags_t msg = {.partition = tqi_str(simple->partition),
                          .rows = tqi_u64s(simple->rows, simple->rows_cnt),
                          .tags = tqi_strs_of(&simple->strs),
                          .is_replace = simple->is_flagged};

    write_request(op, TQI_KIND_Tags, &msg, now_ns);
}

static void tags_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    tqi_msg_Tags_R_t msg;

    (void)slot;
    if (decode(op, reply, &msg, now_ns))
        finish(op, TQ_OK, now_ns);
}

static const tqi_op_class_t tags_class = {
    .name = "tags",
    .size = sizeof(simple_t),
    .start = tags_start,
    .on_reply = tags_on_reply,
    .stop = stop_write,
};

tq_status_t tqi_op_tags(const tqi_env_t *env, const tq_tags_args_t *args, tqi_op_t **op,
                        tqi_err_t *err)
{
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK)
        rc = tqi_check_rows("tags", args->rows, args->rows_cnt, err);
    if (rc == TQ_OK && (args->rows_cnt == 0 || !args->tags))
        rc = tqi_fail(err, TQ_E_INVALID, "tags: no rows or no tags were given");
    if (rc == TQ_OK)
        rc = tqi_check_distinct_rows(env, args->rows, args->rows_cnt, err);
    if (rc == TQ_OK)
        rc = tqi_check_tags(args->tags, args->rows_cnt, err);
    if (rc == TQ_OK)
        rc = simple_new(env, &tags_class, args->timeout_ms, args->partition, args->rows_cnt,
                        args->rows, args->tags, op, err);
    if (rc == TQ_OK)
        simple_of(*op)->is_flagged = args->is_replace;
    return rc;
}

/* ---- clear ------------------------------------------------------------------------------------- */

static void clear_start(tqi_op_t *op, uint64_t now_ns)
{
    simple_t *simple = simple_of(op);
    tqi_msg_Clear_t msg = {.partition = tqi_str(simple->partition),
                           .rows = tqi_u64s(simple->rows, simple->has_rows ? simple->rows_cnt : 0),
                           .keys = tqi_strs_of(&simple->strs),
                           .is_all = simple->is_flagged};

    if (!msg.is_all && msg.rows.cnt == 0 && msg.keys.cnt == 0) {
        finish(op, TQ_OK, now_ns);
        return;
    }
    tqi_op_request(op, op->client->controller, NULL, TQI_KIND_Clear, &msg, now_ns);
}

static void clear_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                           uint64_t now_ns)
{
    tqi_msg_Clear_R_t msg;

    (void)slot;
    if (!decode(op, reply, &msg, now_ns))
        return;
    op->result.count = msg.rows_cnt;
    finish(op, TQ_OK, now_ns);
}

static const tqi_op_class_t clear_class = {
    .name = "clear",
    .size = sizeof(simple_t),
    .is_repeatable = true,
    .start = clear_start,
    .on_reply = clear_on_reply,
};

tq_status_t tqi_op_clear(const tqi_env_t *env, const tq_clear_args_t *args, tqi_op_t **op,
                         tqi_err_t *err)
{
    int ways = (args->rows != NULL) + (args->keys != NULL) + args->is_all;
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK && ways != 1)
        rc = tqi_fail(err, TQ_E_INVALID, "a clear is of rows, of keys or of all: one of them");
    if (rc == TQ_OK && args->rows)
        rc = tqi_check_rows("clear", args->rows, args->rows_cnt, err);
    if (rc == TQ_OK && args->keys)
        rc = tqi_check_keys(args->keys, true, err);
    if (rc == TQ_OK)
        rc = simple_new(env, &clear_class, args->timeout_ms, args->partition, args->rows_cnt,
                        args->rows, args->keys, op, err);
    if (rc == TQ_OK)
        simple_of(*op)->is_flagged = args->is_all;
    return rc;
}

/* ---- reset ------------------------------------------------------------------------------------- */

static void reset_start(tqi_op_t *op, uint64_t now_ns)
{
    simple_t *simple = simple_of(op);
    tqi_msg_Reset_t msg = {.partition = tqi_str(simple->partition),
                           .task = tqi_str(simple->task),
                           .is_all_tasks = simple->is_flagged};

    tqi_op_request(op, op->client->controller, NULL, TQI_KIND_Reset, &msg, now_ns);
}

static void reset_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                           uint64_t now_ns)
{
    tqi_msg_Reset_R_t msg;

    (void)slot;
    if (decode(op, reply, &msg, now_ns))
        finish(op, TQ_OK, now_ns);
}

static const tqi_op_class_t reset_class = {
    .name = "reset",
    .size = sizeof(simple_t),
    .is_repeatable = true,
    .start = reset_start,
    .on_reply = reset_on_reply,
};

tq_status_t tqi_op_reset(const tqi_env_t *env, const tq_reset_args_t *args, tqi_op_t **op,
                         tqi_err_t *err)
{
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK && args->task)
        rc = tqi_check_name("task", args->task, err);
    if (rc == TQ_OK)
        rc = simple_new(env, &reset_class, args->timeout_ms, args->partition, 0, NULL, NULL, op,
                        err);
    if (rc != TQ_OK)
        return rc;
    simple_of(*op)->is_flagged = !args->task;
    simple_of(*op)->task = tqi_op_dup_str(*op, args->task, args->task ? strlen(args->task) : 0);
    if (!simple_of(*op)->task) {
        tqi_op_free(*op);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an op");
    }
    return TQ_OK;
}

/* ---- forget ------------------------------------------------------------------------------------ */

static void forget_start(tqi_op_t *op, uint64_t now_ns)
{
    tqi_msg_Forget_t msg = {.unit_id = simple_of(op)->rows_cnt};

    tqi_op_request(op, op->client->controller, NULL, TQI_KIND_Forget, &msg, now_ns);
}

static void forget_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                            uint64_t now_ns)
{
    tqi_msg_Forget_R_t msg;

    (void)slot;
    if (decode(op, reply, &msg, now_ns))
        finish(op, TQ_OK, now_ns);
}

static const tqi_op_class_t forget_class = {
    .name = "forget",
    .size = sizeof(simple_t),
    .is_repeatable = true,
    .start = forget_start,
    .on_reply = forget_on_reply,
};

tq_status_t tqi_op_unit_forget(const tqi_env_t *env, uint32_t unit_id, uint32_t timeout_ms,
                               tqi_op_t **op, tqi_err_t *err)
{
    return simple_new(env, &forget_class, timeout_ms, "", unit_id, NULL, NULL, op, err);
}

/* ---- resolve ----------------------------------------------------------------------------------- */

static void resolve_start(tqi_op_t *op, uint64_t now_ns)
{
    simple_t *simple = simple_of(op);
    tqi_msg_Resolve_t msg = {.partition = tqi_str(simple->partition),
                             .keys = tqi_strs_of(&simple->strs),
                             .rows =
                                 tqi_u64s(simple->rows, simple->has_rows ? simple->rows_cnt : 0),
                             .is_create = simple->is_flagged,
                             .want_common = true,
                             .want_tags = true,
                             .want_keys = true};

    tqi_op_request(op, op->client->controller, NULL, TQI_KIND_Resolve, &msg, now_ns);
}

static void resolve_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                             uint64_t now_ns)
{
    tqi_msg_Resolve_R_t msg;
    tq_status_t rc;

    (void)slot;
    if (!decode(op, reply, &msg, now_ns))
        return;
    op->result.is_known = msg.is_known;
    rc = tqi_buf_append(&op->rows, msg.rows.data, (size_t)msg.rows.cnt * 8);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->units, msg.units.data, (size_t)msg.units.cnt * 4);
    if (rc == TQ_OK)
        rc = tqi_strs_append(&op->keys, msg.keys);
    if (rc == TQ_OK)
        rc = tqi_buf_append(&op->has_key, msg.has_key.data, msg.has_key.cnt);
    if (rc == TQ_OK)
        rc = tqi_op_add_tags(op, msg.tags);
    if (rc == TQ_OK)
        rc = tqi_strs_append(&op->fields, msg.common);
    if (rc == TQ_OK)
        rc = tqi_op_add_schemas(op, msg.schemas);
    finish(op, rc, now_ns);
}

static const tqi_op_class_t resolve_class = {
    .name = "resolve",
    .size = sizeof(simple_t),
    .is_repeatable = true,
    .start = resolve_start,
    .on_reply = resolve_on_reply,
};

tq_status_t tqi_op_resolve(const tqi_env_t *env, const tq_resolve_args_t *args, tqi_op_t **op,
                           tqi_err_t *err)
{
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK && (args->keys != NULL) == (args->rows != NULL))
        rc = tqi_fail(err, TQ_E_INVALID, "a resolve is of keys or of rows");
    if (rc == TQ_OK && args->is_create && args->rows)
        rc = tqi_fail(err, TQ_E_INVALID, "a resolve makes rows for keys only");
    if (rc == TQ_OK && args->keys)
        rc = tqi_check_keys(args->keys, true, err);
    if (rc == TQ_OK && args->rows)
        rc = tqi_check_rows("resolve", args->rows, args->rows_cnt, err);
    if (rc == TQ_OK)
        rc = simple_new(env, &resolve_class, args->timeout_ms, args->partition, args->rows_cnt,
                        args->rows, args->keys, op, err);
    if (rc == TQ_OK)
        simple_of(*op)->is_flagged = args->is_create;
    return rc;
}
