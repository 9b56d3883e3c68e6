/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FETCH and what becomes of its rows: waiting, granting, RETURN, RESET, CANCEL_OP.
 *
 * A fetch tries once; what can't be served parks in its task's queue, where every change that lets
 * rows into its ready set makes it try again. The tries are the same code, whether the fetch runs as
 * its own op or inside the partition's wake-up.
 */
#include "role/controller/internal.h"

#include <string.h>

enum { FIELDS, BUILD, SAMPLE };

typedef enum attempt { SERVED, STAYS, GOES_ON } attempt_t;

/* A block of a bitset against a budget of rows: 128 bytes for each field. */
#define BLOCK_COST 8u

/* What E_NOT_READY says in rows. */
#define LACKING_ROWS_MAX 64u
#define LACKING_BLOCKS_MAX 64u

/* ---- grants ---------------------------------------------------------------------------------- */

static bool give_back_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    grant_t *grant = tqi_container_of(op, grant_t, op);
    tqi_mask_t mask;

    /* A reset may have made it final while it was queued. */
    while (grant->core.state == TQI_GRANT_PROVISIONAL) {
        if (*budget == 0)
            return false;
        if (!tqi_mask_next(&grant->core.rows, &grant->at_block, &mask)) {
            tqi_grant_returned(&grant->core);
            break;
        }
        uint32_t cnt = tqi_grant_return(&op->part->table, &grant->core, &mask);
        ctl->cnt_rows_returned += cnt;
        *budget -= (uint32_t)tqi_u64_min(*budget, cnt + BLOCK_COST);
    }
    return true;
}

static void grant_free(tqi_controller_t *ctl, grant_t *grant)
{
    tqi_grant_fini(&grant->core);
    tqi_env_free(ctl->env, grant, sizeof *grant);
}

static void give_back_finish(tqi_controller_t *ctl, op_t *op)
{
    grant_free(ctl, tqi_container_of(op, grant_t, op));
}

void tqi_ctl_grant_give_back(tqi_controller_t *ctl, grant_t *grant)
{
    grant->at_block = 0;
    tqi_ctl_op_queue_next(ctl, grant->part, &grant->op);
}

/* It is final: the record goes, unless its return is queued, which then ends by itself. */
static void grant_settle(tqi_controller_t *ctl, grant_t *grant, tqi_grant_event_t event)
{
    tqi_grant_finish(&grant->core, event);
    if (grant->session) {
        tqi_map_u64_take(&grant->session->grants, grant->seq);
        grant->session = NULL;
    }
    if (!tqi_node_is_linked(&grant->op.node))
        grant_free(ctl, grant);
}

void tqi_ctl_grant_acked(tqi_controller_t *ctl, session_t *session, uint64_t seq)
{
    grant_t *grant = tqi_map_u64_get(&session->grants, seq);

    if (grant)
        grant_settle(ctl, grant, TQI_GRANT_EV_ACK);
}

void tqi_ctl_grants_drop(tqi_controller_t *ctl, part_t *part)
{
    for (tqi_map_str_item_t *item = tqi_map_str_first(&part->table.tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        tqi_list_each(&task->grants, node)
        {
            grant_t *grant = tqi_container_of(node, grant_t, core.node);

            grant_settle(ctl, grant, TQI_GRANT_EV_RESET);
        }
    }
}

/* ---- answering ------------------------------------------------------------------------------- */

/* Closes a request that is out of the queue, or leaves that to the runner. */
static void fetch_close(tqi_controller_t *ctl, request_t *req)
{
    tqi_sample_fini(&req->sample);
    tqi_waiter_leave(&req->waiter);
    if (req->is_parked) {
        req->is_parked = false;
        tqi_ctl_request_close(ctl, req);
    }
}

static attempt_t fetch_fail(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    if (req->op.part)
        tqi_err_prefix(err, "partition '%.*s'", part_show(req->op.part), req->op.part->name);
    tqi_ctl_request_fail(ctl, req, err);
    fetch_close(ctl, req);
    return SERVED;
}

static attempt_t fetch_empty(tqi_controller_t *ctl, request_t *req)
{
    tqi_ctl_request_reply(ctl, req, &(tqi_msg_Fetch_R_t){0});
    fetch_close(ctl, req);
    return SERVED;
}

static tq_status_t fetch_columns(request_t *req, const uint64_t *pos, uint32_t cnt)
{
    const tqi_partition_t *table = &req->op.part->table;
    tq_status_t rc = tqi_ctl_out_rows(&req->out, table, pos, cnt);

    if (rc == TQ_OK)
        rc = tqi_ctl_out_tags(&req->out, table, pos, cnt);
    for (size_t i = 0; i < req->fields.len && rc == TQ_OK; i++) {
        rc = tqi_ctl_out_field(&req->out, req->fields.at[i]);
        if (rc == TQ_OK)
            rc = tqi_ctl_out_schema(&req->out, req->fields.at[i]);
    }
    return rc;
}

/* Bytes that the reply will have, generously. */
static uint64_t fetch_bytes(const request_t *req)
{
    const reply_rows_t *out = &req->out;

    return 4096 + out->rows.len * 12 + out->tags.offsets.len + out->tags.bytes.len +
           out->fields.offsets.len + out->fields.bytes.len + out->schemas.offsets.len +
           out->schemas.bytes.len;
}

static attempt_t fetch_grant(tqi_controller_t *ctl, request_t *req)
{
    const uint64_t *pos = req->sample.chosen.at;
    uint32_t cnt = (uint32_t)req->sample.chosen.len;
    tqi_msg_Fetch_R_t reply = {0};
    grant_t *grant;
    tqi_err_t err;
    tq_status_t rc;

    /* Who has given up on the answer would never acknowledge it, nor give it back. */
    if (req->is_cancelled || !req->session || tqi_inbox_is_acked(req->session->inbox, req->seq)) {
        tqi_fail(&err, TQ_E_CANCELLED, "the fetch was cancelled");
        return fetch_fail(ctl, req, &err);
    }
    rc = fetch_columns(req, pos, cnt);
    if (rc == TQ_OK && fetch_bytes(req) > TQ_MESSAGE_BYTES_MAX) {
        tqi_fail(
            &err, TQ_E_TOO_LARGE,
            "%u rows with their tags make an answer of %llu bytes, at most %u fit; fetch fewer",
            cnt, (unsigned long long)fetch_bytes(req), TQ_MESSAGE_BYTES_MAX);
        return fetch_fail(ctl, req, &err);
    }
    grant = rc == TQ_OK ? tqi_env_zalloc(ctl->env, sizeof *grant) : NULL;
    if (!grant || tqi_map_u64_put(&req->session->grants, req->seq, grant, NULL) != TQ_OK) {
        tqi_env_free(ctl->env, grant, sizeof *grant);
        tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a grant");
        return fetch_fail(ctl, req, &err);
    }
    grant->op.step = give_back_step;
    grant->op.finish = give_back_finish;
    grant->part = req->op.part;
    grant->session = req->session;
    grant->seq = req->seq;
    if (tqi_grant_make(&req->op.part->table, &grant->core, req->waiter.task, pos, cnt) != TQ_OK) {
        tqi_map_u64_take(&req->session->grants, req->seq);
        grant_free(ctl, grant);
        tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a grant");
        return fetch_fail(ctl, req, &err);
    }
    ctl->cnt_rows_granted += cnt;
    reply.rows = tqi_u64s(req->out.rows.at, cnt);
    reply.units = tqi_u32s(req->out.units.at, cnt);
    reply.fields = tqi_strs_builder_view(&req->out.fields);
    reply.schemas = tqi_strs_builder_view(&req->out.schemas);
    reply.tags = tqi_strs_builder_view(&req->out.tags);
    if (tqi_ctl_request_reply(ctl, req, &reply) != TQ_OK) {
        tqi_map_u64_take(&grant->session->grants, grant->seq);
        grant->session = NULL;
        tqi_ctl_grant_give_back(ctl, grant);
    }
    fetch_close(ctl, req);
    return SERVED;
}

/* ---- trying ---------------------------------------------------------------------------------- */

/* The fields, each once; false while one of them does not exist. */
static bool fetch_fields(request_t *req, tq_status_t *rc)
{
    const tqi_msg_Fetch_t *msg = &req->msg.fetch;
    const tqi_partition_t *table = &req->op.part->table;

    req->fields.len = 0;
    *rc = tqi_vec_reserve(&req->fields, msg->fields.cnt);
    for (uint32_t i = 0; i < msg->fields.cnt && *rc == TQ_OK; i++) {
        tqi_str_t name = tqi_strs_at(msg->fields, i);
        tqi_field_t *field = tqi_partition_field(table, name.data, name.len);
        size_t at = 0;

        if (!field)
            return false;
        while (at < req->fields.len && req->fields.at[at] != field)
            at++;
        if (at == req->fields.len)
            req->fields.at[req->fields.len++] = field;
    }
    return *rc == TQ_OK;
}

/* Goes on with a try where it stopped. STAYS: it can't be served now. */
static attempt_t fetch_try(tqi_controller_t *ctl, request_t *req, uint32_t *budget)
{
    tqi_partition_t *table = &req->op.part->table;
    tqi_ready_t *set = NULL;
    tqi_err_t err;
    tq_status_t rc = TQ_OK;

    if (req->phase == FIELDS) {
        if (!fetch_fields(req, &rc)) {
            if (rc == TQ_OK)
                return STAYS;
            tqi_fail(&err, rc, "no memory for a fetch");
            return fetch_fail(ctl, req, &err);
        }
        req->phase = BUILD;
    }
    rc = req->waiter.set ? TQ_OK
                         : tqi_ready_get(table, req->waiter.task, req->fields.at,
                                         (uint32_t)req->fields.len, &set, &err);
    if (rc != TQ_OK)
        return fetch_fail(ctl, req, &err);
    if (req->waiter.set)
        set = req->waiter.set;
    else if (tqi_waiter_is_parked(&req->waiter))
        tqi_waiter_set(&req->waiter, set);
    if (req->phase == BUILD) {
        uint32_t cost = BLOCK_COST * (1 + set->fields_cnt);
        uint64_t before = set->built_to;
        bool is_built = tqi_ready_build(table, set, *budget / cost + 1);

        *budget -= (uint32_t)tqi_u64_min(*budget, (set->built_to - before) * cost);
        if (!is_built)
            return GOES_ON;
        req->phase = SAMPLE;
        tqi_sample_init(&req->sample, table, set, req->msg.fetch.rows_cnt);
    }
    switch (tqi_sampler_step(&ctl->sampler, &req->sample, budget)) {
    case TQI_SAMPLE_AGAIN:
        return GOES_ON;
    case TQI_SAMPLE_DONE:
        return fetch_grant(ctl, req);
    case TQI_SAMPLE_NO_MEMORY:
        tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for the sampler");
        return fetch_fail(ctl, req, &err);
    case TQI_SAMPLE_NOT_ENOUGH:
        break;
    }
    tqi_sample_fini(&req->sample);
    req->set = set;
    req->phase = BUILD;
    return STAYS;
}

static tq_status_t fetch_judge(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    const tqi_msg_Fetch_t *msg = &req->msg.fetch;

    if (msg->mode != TQ_FETCH)
        return tqi_fail(err, TQ_E_INVALID, "%u is no mode of a fetch", msg->mode);
    if (msg->task.len == 0)
        return tqi_fail(err, TQ_E_INVALID, "a fetch needs the name of a task");
    if (msg->rows_cnt == 0 && !msg->is_polling)
        return tqi_fail(err, TQ_E_SAMPLER, "Sampler returned no samples: 0 rows were asked for");
    if (msg->rows_cnt > TQ_REQUEST_ROWS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "%u rows are asked for, at most %u can be",
                        msg->rows_cnt, TQ_REQUEST_ROWS_MAX);
    return tqi_sampler_admit(&ctl->sampler, msg->rows_cnt, err);
}

bool tqi_ctl_fetch_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Fetch_t *msg = &req->msg.fetch;
    tq_status_t rc;
    tqi_err_t err;

    if (msg->mode == TQ_FETCH_ALL)
        return tqi_ctl_fetch_all_step(ctl, op, budget);
    if (!req->session) {
        tqi_fail(&err, TQ_E_SESSION_EXPIRED, "the session has ended");
        return fetch_fail(ctl, req, &err) == SERVED;
    }
    if (!req->waiter.task) {
        if (fetch_judge(ctl, req, &err) != TQ_OK)
            return fetch_fail(ctl, req, &err) == SERVED;
        if (!op->part || msg->rows_cnt == 0)
            return fetch_empty(ctl, req) == SERVED;
        if (tqi_partition_task_make(&op->part->table, msg->task.data, msg->task.len,
                                    &req->waiter.task, &err) != TQ_OK)
            return fetch_fail(ctl, req, &err) == SERVED;
    }
    switch (fetch_try(ctl, req, budget)) {
    case GOES_ON:
        return false;
    case SERVED:
        return true;
    case STAYS:
        break;
    }
    if (msg->is_polling)
        return fetch_empty(ctl, req) == SERVED;
    if (req->is_cancelled) {
        tqi_fail(&err, TQ_E_CANCELLED, "the fetch was cancelled");
        return fetch_fail(ctl, req, &err) == SERVED;
    }
    rc = tqi_ctl_request_park(ctl, req);
    if (rc != TQ_OK) {
        tqi_fail(&err, rc,
                 rc == TQ_E_BUSY ? "too many requests of the session wait" : "no memory to wait");
        return fetch_fail(ctl, req, &err) == SERVED;
    }
    tqi_waiter_park(&op->part->table, &req->waiter, req->waiter.task, req->set, msg->rows_cnt);
    ctl->cnt_waits++;
    return true;
}

/* ---- waiting --------------------------------------------------------------------------------- */

bool tqi_ctl_wake_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    part_t *part = op->part;

    for (;;) {
        request_t *req = part->waking;

        if (!req) {
            tqi_waiter_t *waiter = tqi_waiter_next(&part->table);

            if (!waiter)
                break;
            req = tqi_container_of(waiter, request_t, waiter);
        }
        if (*budget == 0)
            return false;
        part->waking = req;
        attempt_t attempt = fetch_try(ctl, req, budget);
        *budget -= (uint32_t)tqi_u64_min(*budget, 1);
        switch (attempt) {
        case GOES_ON:
            return false;
        case STAYS:
            tqi_waiter_looked(&part->table, &req->waiter);
            break;
        case SERVED:
            break;
        }
        part->waking = NULL;
    }
    part->changes_woken = part->table.changes;
    return true;
}

void tqi_ctl_fetch_rehome(tqi_controller_t *ctl, part_t *from, part_t *to)
{
    from->waking = NULL;
    for (tqi_map_str_item_t *item = tqi_map_str_first(&from->table.tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        tqi_list_each(&task->waiters, node)
        {
            request_t *req =
                tqi_container_of(tqi_container_of(node, tqi_waiter_t, node), request_t, waiter);

            tqi_sample_fini(&req->sample);
            tqi_waiter_leave(&req->waiter);
            req->waiter = (tqi_waiter_t){0};
            req->set = NULL;
            req->phase = FIELDS;
            req->is_parked = false;
            tqi_ctl_op_queue(ctl, to, &req->op);
            tqi_ctl_part_count_queued(to, &req->op, 1);
        }
    }
}

void tqi_ctl_fetch_free_all(tqi_controller_t *ctl, part_t *part)
{
    for (tqi_map_str_item_t *item = tqi_map_str_first(&part->table.tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        tqi_list_each(&task->waiters, node)
        {
            tqi_ctl_request_free(ctl, tqi_container_of(tqi_container_of(node, tqi_waiter_t, node),
                                                       request_t, waiter));
        }
    }
    tqi_ctl_grants_drop(ctl, part);
}

/* The first rows that lack one of the fields and that the task could use otherwise. */
static uint32_t lacking_rows(const request_t *req, uint64_t *rows, uint32_t max)
{
    const tqi_partition_t *table = &req->op.part->table;
    uint64_t first = tqi_index_first(&table->index);
    uint64_t limit = tqi_u64_min(tqi_index_limit(&table->index), first + LACKING_BLOCKS_MAX);
    uint32_t cnt = 0;

    for (uint64_t at = first; at < limit && cnt < max; at++) {
        tqi_mask_t mask = {.ordinal = at}, has = {.ordinal = at};

        tqi_partition_listed(table, at, mask.words);
        tqi_leaf_andnot(mask.words, tqi_bits_leaf(&req->waiter.task->consumed, at));
        tqi_leaf_copy(has.words, mask.words);
        tqi_partition_and_produced(table, req->fields.at, (uint32_t)req->fields.len, &has);
        tqi_leaf_andnot(mask.words, has.words);
        for (size_t bit = tqi_words_next(mask.words, TQI_LEAF_WORDS, 0);
             bit < TQI_BLOCK_ROWS && cnt < max;
             bit = tqi_words_next(mask.words, TQI_LEAF_WORDS, bit + 1))
            rows[cnt++] = tqi_index_row(&table->index, at * TQI_BLOCK_ROWS + bit);
    }
    return cnt;
}

/* ". In partition 'p': field 'b' is produced in 5 of 8 rows, field 'c' does not exist" */
static void say_missing(const request_t *req, char *text, size_t size)
{
    const tqi_msg_Fetch_t *msg = &req->msg.fetch;
    const part_t *part = req->op.part;
    const tqi_partition_t *table = &part->table;
    unsigned long long rows = tqi_partition_listed_cnt(table);
    size_t len;

    tqi_buf_t buf;
    tqi_buf_init(&buf, table->env);
    if (!part->is_known)
        tqi_buf_printf(&buf, ". Partition '%.*s' does not exist", part_show(part), part->name);
    else
        tqi_buf_printf(&buf, ". Partition '%.*s' has %llu rows", part_show(part), part->name, rows);
    for (uint32_t i = 0; part->is_known && i < msg->fields.cnt && buf.len < size; i++) {
        tqi_str_t name = tqi_strs_at(msg->fields, i);
        const tqi_field_t *field = tqi_partition_field(table, name.data, name.len);
        int show = (int)tqi_u64_min(name.len, 64);

        if (!field)
            tqi_buf_printf(&buf, ", none with field '%.*s'", show, (const char *)name.data);
        else if (tqi_bits_count(&field->produced) < rows)
            tqi_buf_printf(&buf, ", field '%.*s' is produced in %llu", show,
                           (const char *)name.data,
                           (unsigned long long)tqi_bits_count(&field->produced));
    }
    if (req->waiter.task && tqi_bits_count(&req->waiter.task->consumed) > 0)
        tqi_buf_printf(&buf, ", %llu are consumed",
                       (unsigned long long)tqi_bits_count(&req->waiter.task->consumed));
    if (tqi_bits_count(&table->absent) > 0)
        tqi_buf_printf(&buf, ", %llu are on lost storage units",
                       (unsigned long long)tqi_bits_count(&table->absent));
    if (req->waiter.set && tqi_ready_count(req->waiter.set) >= msg->rows_cnt)
        tqi_buf_printf(&buf, ", too few of them in whole groups");
    len = tqi_size_min(buf.len, size - 1);
    if (len > 0)
        memcpy(text, buf.data, len);
    text[len] = 0;
    tqi_buf_fini(&buf);
}

void tqi_ctl_fetch_due(tqi_controller_t *ctl, request_t *req)
{
    const tqi_msg_Fetch_t *msg = &req->msg.fetch;
    part_t *part = req->op.part;
    uint64_t rows[LACKING_ROWS_MAX];
    char missing[TQI_ERR_TEXT_MAX];
    uint64_t available = req->waiter.set ? tqi_ready_count(req->waiter.set) : 0;
    uint32_t rows_cnt = 0;
    tqi_err_t err;

    /* In the middle of a step it is answered, or parks, and is looked at again. */
    if (req->op.is_started)
        return;
    say_missing(req, missing, sizeof missing);
    tqi_fail(&err, TQ_E_NOT_READY,
             "Timeout while waiting for sufficient data for task %.*s. Required: %u, Available: "
             "%llu%s",
             (int)tqi_u64_min(msg->task.len, 128), (const char *)msg->task.data, msg->rows_cnt,
             (unsigned long long)available, missing);
    if (req->waiter.task && req->waiter.set)
        rows_cnt = lacking_rows(req, rows, LACKING_ROWS_MAX);
    ctl->cnt_wait_timeouts++;
    tqi_ctl_request_leave_about(ctl, req, &err, rows, rows_cnt, &msg->fields);
    (void)part;
}

void tqi_ctl_cancel_handle(tqi_controller_t *ctl, request_t *req)
{
    uint64_t target = req->msg.cancel.target_seq;
    bool is_cancelled = false, is_here = false;
    tqi_err_t err;

    tqi_fail(&err, TQ_E_CANCELLED, "cancelled by the caller");
    tqi_list_each(&req->session->requests, node)
    {
        request_t *other = tqi_container_of(node, request_t, in_session);

        if (other == req || other->seq != target || other->is_replied)
            continue;
        is_here = true;
        if (!other->is_parked && other->kind != TQI_KIND_Fetch)
            break;
        is_cancelled = true;
        other->is_cancelled = true;
        tqi_ctl_request_leave(ctl, other, &err);
        break;
    }
    /* One that was lost on its way would come again later, and wait, with nobody to cancel it. */
    if (!is_here && target > 0 && target < req->seq)
        is_cancelled = tqi_ctl_request_forestall(ctl, req->session, TQI_KIND_Fetch, target, &err);
    tqi_ctl_request_reply(ctl, req, &(tqi_msg_CancelOp_R_t){.is_cancelled = is_cancelled});
}

/* ---- RETURN, RESET --------------------------------------------------------------------------- */

/* Gives the mask's rows back from those provisional grants of the session that have them. */
static void return_mask(tqi_controller_t *ctl, request_t *req, const tqi_task_t *task,
                        const tqi_mask_t *mask)
{
    tqi_map_u64_item_t *item = tqi_map_u64_first(&req->session->grants);

    while (item) {
        tqi_map_u64_item_t *next = tqi_map_u64_next(item);
        grant_t *grant = item->value;

        if (grant->core.task == task) {
            ctl->cnt_rows_returned += tqi_grant_return(&req->op.part->table, &grant->core, mask);
            if (tqi_bits_count(&grant->core.rows) == 0) {
                tqi_grant_returned(&grant->core);
                tqi_map_u64_take(&req->session->grants, grant->seq);
                grant_free(ctl, grant);
            }
        }
        item = next;
    }
}

bool tqi_ctl_return_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Return_t *msg = &req->msg.ret;
    tqi_task_t *task =
        op->part ? tqi_partition_task(&op->part->table, msg->task.data, msg->task.len) : NULL;
    uint64_t hint = 0;

    while (task && req->session && req->at < msg->rows.cnt) {
        uint64_t pos;

        if (*budget == 0)
            return false;
        pos = tqi_index_pos(&op->part->table.index, tqi_u64s_at(msg->rows, req->at), &hint);
        if (pos != TQI_POS_NONE) {
            tqi_mask_t mask = tqi_mask_run(pos, pos + 1);

            return_mask(ctl, req, task, &mask);
        }
        req->at++;
        --*budget;
    }
    tqi_ctl_request_reply_done(ctl, req, &(tqi_msg_Return_R_t){0});
    return true;
}

/* Makes a block of the task's rows unconsumed. */
static void reset_block(tqi_partition_t *table, tqi_task_t *task, uint64_t ordinal)
{
    const uint64_t *leaf = tqi_bits_leaf(&task->consumed, ordinal);
    tqi_mask_t mask = {.ordinal = ordinal};

    if (!leaf || !tqi_leaf_any(leaf))
        return;
    tqi_leaf_copy(mask.words, leaf);
    tqi_partition_unconsume(table, task, &mask);
}

bool tqi_ctl_reset_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Reset_t *msg = &req->msg.reset;
    tqi_partition_t *table = op->part ? &op->part->table : NULL;

    if (table && req->phase == 0) {
        req->at_block = tqi_index_first(&table->index);
        req->phase = 1;
    }
    /* Blocks outside, tasks inside: a partition has few tasks. */
    for (; table && req->at_block <= tqi_index_limit(&table->index); req->at_block++) {
        if (*budget == 0)
            return false;
        for (tqi_map_str_item_t *item = tqi_map_str_first(&table->tasks); item;
             item = tqi_map_str_next(item)) {
            tqi_task_t *task = item->value;

            if (!msg->is_all_tasks && (task->name_len != msg->task.len ||
                                       memcmp(task->name, msg->task.data, msg->task.len) != 0))
                continue;
            /* What was granted before is the taker's for good. */
            tqi_list_each(&task->grants, node)
            {
                grant_settle(ctl, tqi_container_of(node, grant_t, core.node), TQI_GRANT_EV_RESET);
            }
            reset_block(table, task, req->at_block);
            *budget -= (uint32_t)tqi_u64_min(*budget, BLOCK_COST);
        }
        *budget -= (uint32_t)tqi_u64_min(*budget, 1);
    }
    tqi_ctl_request_reply_done(ctl, req, &(tqi_msg_Reset_R_t){0});
    return true;
}
