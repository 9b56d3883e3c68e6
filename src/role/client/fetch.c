/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fetch: waits in the store until its rows are ready. The rows that it gets are granted
 * provisionally until its caller has taken them: the reply's seq stays open for so long, and the
 * end of the session gives them back. A caller who gives up first asks the controller to cancel,
 * and whoever was first there, the cancel or the grant, decides.
 *
 * FETCH_ALL over more rows than fit into one reply goes on with LIST.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <string.h>

typedef struct fetch {
    tqi_op_t op;
    const char *partition;
    const char *task;
    tq_strs_t wanted;
    uint32_t rows_cnt;
    tq_fetch_mode_t mode;
    bool is_polling;
    const void *sampling;
    uint32_t sampling_len;

    tqi_err_t why; /* of the cancel */
} fetch_t;

static fetch_t *fetch_of(tqi_op_t *op)
{
    return tqi_container_of(op, fetch_t, op);
}

static const tqi_op_class_t fetch_class;

tq_status_t tqi_op_fetch(const tqi_env_t *env, const tq_fetch_args_t *args, tqi_op_t **out,
                         tqi_err_t *err)
{
    tqi_op_t *op;
    fetch_t *fetch;
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK && args->mode != TQ_FETCH && args->mode != TQ_FETCH_ALL)
        rc = tqi_fail(err, TQ_E_INVALID, "unknown mode %d of a fetch", args->mode);
    if (rc == TQ_OK && args->mode == TQ_FETCH) {
        rc = tqi_check_name("task", args->task, err);
        if (rc == TQ_OK && args->rows_cnt == 0)
            rc = tqi_fail(err, TQ_E_INVALID, "a fetch of 0 rows");
        if (rc == TQ_OK && args->rows_cnt > TQ_REQUEST_ROWS_MAX)
            rc = tqi_fail(err, TQ_E_TOO_LARGE, "a fetch of %" PRIu32 " rows, over the limit of %u",
                          args->rows_cnt, TQ_REQUEST_ROWS_MAX);
    }
    if (rc == TQ_OK)
        rc = tqi_check_strs("field", args->fields, TQ_PARTITION_FIELDS_MAX, TQ_NAME_MAX,
                            args->mode == TQ_FETCH_ALL, err);
    if (rc == TQ_OK)
        rc = tqi_check_distinct_strs(env, "field", args->fields, err);
    if (rc == TQ_OK && args->sampling_len > TQ_TAGS_BYTES_MAX)
        rc = tqi_fail(err, TQ_E_TOO_LARGE, "%zu bytes of sampling arguments, over the limit of %u",
                      args->sampling_len, TQ_TAGS_BYTES_MAX);
    if (rc == TQ_OK)
        rc = tqi_op_new(env, &fetch_class, args->timeout_ms, &op, err);
    if (rc != TQ_OK)
        return rc;
    fetch = fetch_of(op);
    fetch->mode = args->mode;
    fetch->rows_cnt = args->rows_cnt;
    fetch->is_polling = args->is_polling;
    fetch->sampling_len = (uint32_t)args->sampling_len;
    fetch->sampling = tqi_op_dup(op, args->sampling, args->sampling_len);
    fetch->partition = tqi_op_dup_str(op, args->partition, strlen(args->partition));
    fetch->task = tqi_op_dup_str(op, args->task, args->task ? strlen(args->task) : 0);
    rc = tqi_op_dup_strs(op, args->fields, &fetch->wanted);
    if (!fetch->sampling || !fetch->partition || !fetch->task || rc != TQ_OK) {
        tqi_op_free(op);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a fetch");
    }
    *out = op;
    return TQ_OK;
}

static void fetch_start(tqi_op_t *op, uint64_t now_ns)
{
    fetch_t *fetch = fetch_of(op);
    tqi_msg_Fetch_t msg = {
        .partition = tqi_str(fetch->partition),
        .fields = tqi_strs_of(&fetch->wanted),
        .rows_cnt = fetch->rows_cnt,
        .task = tqi_str(fetch->task),
        .mode = fetch->mode,
        .is_polling = fetch->is_polling,
        .sampling = {fetch->sampling, fetch->sampling_len},
    };

    op->is_cancelling = false;
    tqi_op_request(op, op->client->controller, NULL, TQI_KIND_Fetch, &msg, now_ns);
}

/* The FETCH that waits for its answer, or NULL. */
static tqi_req_t *fetch_req(tqi_op_t *op)
{
    tqi_list_each(&op->reqs, node)
    {
        tqi_req_t *req = tqi_container_of(node, tqi_req_t, node);
        if (req->kind == TQI_KIND_Fetch)
            return req;
    }
    return NULL;
}

static void list_more(fetch_t *fetch, uint64_t cursor, uint64_t now_ns)
{
    tqi_msg_List_t msg = {
        .partition = tqi_str(fetch->partition), .cursor = cursor, .want_fields = true};

    tqi_op_request(&fetch->op, fetch->op.client->controller, NULL, TQI_KIND_List, &msg, now_ns);
}

static void fetch_done(fetch_t *fetch, uint64_t now_ns)
{
    if (tqi_op_answer(&fetch->op, now_ns) != TQ_OK)
        return;
    fetch->op.result.is_known = true;
    tqi_op_finish(&fetch->op, now_ns);
}

static void fetched(fetch_t *fetch, const tqi_reply_t *reply, uint64_t now_ns)
{
    tqi_op_t *op = &fetch->op;
    tqi_msg_Fetch_R_t msg;
    uint8_t *ones;
    size_t cells;

    if (!tqi_op_decode(op, reply, &msg, now_ns))
        return;
    cells = (size_t)msg.rows.cnt * msg.fields.cnt;
    if (tqi_buf_append(&op->rows, msg.rows.data, (size_t)msg.rows.cnt * 8) != TQ_OK ||
        tqi_buf_append(&op->units, msg.units.data, (size_t)msg.units.cnt * 4) != TQ_OK ||
        tqi_strs_append(&op->fields, msg.fields) != TQ_OK ||
        tqi_op_add_schemas(op, msg.schemas) != TQ_OK || tqi_op_add_tags(op, msg.tags) != TQ_OK)
        goto no_memory;
    if (fetch->mode == TQ_FETCH_ALL) {
        if (tqi_op_add_produced(op, msg.produced, msg.rows.cnt, msg.fields.cnt) != TQ_OK)
            goto no_memory;
        if (msg.next != 0) {
            list_more(fetch, msg.next, now_ns);
            return;
        }
    } else if (cells > 0) {
        ones = tqi_buf_extend(&op->status, cells);
        if (!ones)
            goto no_memory;
        memset(ones, 1, cells);
    }
    if (fetch->mode == TQ_FETCH && msg.rows.cnt > 0) {
        op->grant_session = op->client->session;
        op->grant_seq = reply->seq;
    }
    fetch_done(fetch, now_ns);
    return;
no_memory:
    /* Granted, and nobody can be told: back with them. */
    if (op->give_back) {
        op->grant_seq = reply->seq;
        tqi_fetch_return(op, now_ns);
    }
    tqi_op_no_memory(op, now_ns);
}

/* A page has all the partition's fields; those asked for are picked out. */
static void listed(fetch_t *fetch, const tqi_reply_t *reply, uint64_t now_ns)
{
    tqi_op_t *op = &fetch->op;
    tqi_strs_t fields = tqi_strs_builder_view(&op->fields);
    tqi_msg_List_R_t msg;

    if (!tqi_op_decode(op, reply, &msg, now_ns))
        return;
    if (tqi_buf_append(&op->rows, msg.rows.data, (size_t)msg.rows.cnt * 8) != TQ_OK ||
        tqi_buf_append(&op->units, msg.units.data, (size_t)msg.units.cnt * 4) != TQ_OK ||
        tqi_op_add_tags(op, msg.tags) != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    size_t first = op->status.len;
    uint8_t *status = tqi_buf_extend(&op->status, (size_t)msg.rows.cnt * fields.cnt);
    if (!status && (size_t)msg.rows.cnt * fields.cnt > 0) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    for (uint32_t f = 0; f < fields.cnt; f++) {
        tqi_str_t name = tqi_strs_at(fields, f);
        uint32_t at = 0;
        for (; at < msg.fields.cnt; at++) {
            tqi_str_t other = tqi_strs_at(msg.fields, at);
            if (other.len == name.len && memcmp(other.data, name.data, name.len) == 0)
                break;
        }
        for (uint32_t r = 0; r < msg.rows.cnt; r++) {
            size_t bit = (size_t)r * msg.fields.cnt + at;
            bool is_produced = at < msg.fields.cnt && bit / 8 < msg.produced.len &&
                               (((const uint8_t *)msg.produced.data)[bit / 8] >> (bit % 8) & 1);
            op->status.data[first + (size_t)r * fields.cnt + f] = is_produced;
        }
    }
    if (msg.next != 0)
        list_more(fetch, msg.next, now_ns);
    else
        fetch_done(fetch, now_ns);
}

static void fetch_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply,
                           uint64_t now_ns)
{
    fetch_t *fetch = fetch_of(op);

    (void)slot;
    if (reply->kind == TQI_KIND_CancelOp) {
        /* The FETCH's own answer decides. If that was lost, PING has it sent again. */
        return;
    }
    if (reply->status != TQ_OK) {
        tqi_op_fail(op,
                    op->is_cancelling &&
                            (reply->status == TQ_E_CANCELLED || reply->status == TQ_E_BUSY)
                        ? &fetch->why
                        : &reply->err,
                    now_ns);
        return;
    }
    if (reply->kind == TQI_KIND_Fetch)
        fetched(fetch, reply, now_ns);
    else
        listed(fetch, reply, now_ns);
}

static bool fetch_stop(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns)
{
    fetch_t *fetch = fetch_of(op);
    tqi_req_t *req = fetch_req(op);
    tqi_msg_CancelOp_t msg = {0};

    /* Without an answer to come, or a controller to ask, there is nothing to decide. */
    if ((why != TQI_OP_EV_CANCEL && why != TQI_OP_EV_TIMEOUT) || !req || req->attempt == 0 ||
        fetch->mode != TQ_FETCH)
        return false;
    if (op->is_cancelling)
        return true;
    msg.target_seq = req->seq;
    if (tqi_link_request(op->client->controller, op, NULL, TQI_KIND_CancelOp, &msg, TQI_NEVER,
                         now_ns, NULL, NULL) != TQ_OK)
        return false;
    op->is_cancelling = true;
    fetch->why = *err;
    return true;
}

bool tqi_fetch_can_take(tqi_op_t *op, const tqi_envelope_t *env)
{
    fetch_t *fetch = fetch_of(op);
    tqi_msg_Return_t msg = {.partition = tqi_str(fetch->partition), .task = tqi_str(fetch->task)};
    tqi_msg_Fetch_R_t granted;

    if (env->status != TQ_OK || fetch->mode != TQ_FETCH ||
        tqi_msg_decode(env, TQI_KIND_Fetch_R, &granted, NULL) != TQ_OK || granted.rows.cnt == 0)
        return true;
    msg.rows = granted.rows;
    tqi_req_drop(op->give_back, op->env);
    op->give_back = tqi_req_new(op->client->controller, TQI_KIND_Return, &msg, NULL);
    return op->give_back != NULL;
}

/* The seq stays open until the rows are back: acknowledged, they would be the task's. */
void tqi_fetch_return(tqi_op_t *op, uint64_t now_ns)
{
    tqi_req_t *req = op->give_back;

    op->give_back = NULL;
    req->releases_seq = op->grant_seq;
    tqi_req_submit(req, now_ns);
}

static const tqi_op_class_t fetch_class = {
    .name = "fetch",
    .size = sizeof(fetch_t),
    .is_fetch = true,
    .is_repeatable = true,
    .start = fetch_start,
    .on_reply = fetch_on_reply,
    .stop = fetch_stop,
};
