/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all ops have in common. An op ends in two steps: its outcome is decided once, in ENDING it
 * waits until no transfer can touch its memory any more and what it must undo was undone (or that
 * took too long), and only then it is DONE. A restart takes the same way, back to QUEUED.
 */
#include "role/client/internal.h"

#include <string.h>

#define CHUNK_BYTES 2000

TQI_MACHINE(tqi_op_machine, "op", TQI_OP, TQI_OP_STEPS);

static void op_step(tqi_op_t *op, tqi_op_event_t event)
{
    op->state = (tqi_op_state_t)tqi_machine_step(&tqi_op_machine, op->state, event);
}

/* ---- making and memory ------------------------------------------------------------------------- */

tq_status_t tqi_op_new(const tqi_env_t *env, const tqi_op_class_t *cls, uint32_t timeout_ms,
                       tqi_op_t **out, tqi_err_t *err)
{
    tqi_op_t *op = tqi_env_zalloc(env, cls->size);

    if (!op)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an op");
    op->env = env;
    op->cls = cls;
    op->state = TQI_OP_NEW;
    op->timeout_ms = timeout_ms;
    tqi_list_init(&op->reqs);
    tqi_list_init(&op->moving);
    tqi_buf_init(&op->rows, env);
    tqi_buf_init(&op->units, env);
    tqi_buf_init(&op->has_key, env);
    tqi_buf_init(&op->status, env);
    tqi_buf_init(&op->schemas, env);
    tqi_buf_init(&op->json, env);
    tqi_strs_builder_init(&op->keys, env);
    tqi_strs_builder_init(&op->tags, env);
    tqi_strs_builder_init(&op->fields, env);
    tqi_strs_builder_init(&op->names, env);
    *out = op;
    return TQ_OK;
}

void tqi_op_free(tqi_op_t *op)
{
    const tqi_env_t *env;

    if (!op)
        return;
    tqi_assert(op->state == TQI_OP_NEW || op->state == TQI_OP_DONE);
    env = op->env;
    if (op->cls->fini)
        op->cls->fini(op);
    tqi_req_drop(op->give_back, env);
    tqi_buf_fini(&op->rows);
    tqi_buf_fini(&op->units);
    tqi_buf_fini(&op->has_key);
    tqi_buf_fini(&op->status);
    tqi_buf_fini(&op->schemas);
    tqi_buf_fini(&op->json);
    tqi_strs_builder_fini(&op->keys);
    tqi_strs_builder_fini(&op->tags);
    tqi_strs_builder_fini(&op->fields);
    tqi_strs_builder_fini(&op->names);
    while (op->chunks) {
        tqi_chunk_t *next = op->chunks->next;
        tqi_env_free(env, op->chunks, op->chunks->size);
        op->chunks = next;
    }
    tqi_env_free(env, op, op->cls->size);
}

void *tqi_op_mem(tqi_op_t *op, size_t size)
{
    size_t head, need;
    tqi_chunk_t *chunk = op->chunks;

    if (!tqi_size_align(sizeof *chunk, 16, &head) || !tqi_size_align(size, 16, &size))
        return NULL;
    if (!chunk || chunk->size - chunk->used < size) {
        if (!tqi_size_add(head, tqi_size_max(size, CHUNK_BYTES), &need))
            return NULL;
        chunk = tqi_env_alloc(op->env, need);
        if (!chunk)
            return NULL;
        chunk->size = need;
        chunk->used = head;
        /* A large piece fills its own chunk; the one with room left stays in front. */
        if (op->chunks && size > CHUNK_BYTES / 2) {
            chunk->next = op->chunks->next;
            op->chunks->next = chunk;
        } else {
            chunk->next = op->chunks;
            op->chunks = chunk;
        }
    }
    chunk->used += size;
    return (char *)chunk + chunk->used - size;
}

void *tqi_op_dup(tqi_op_t *op, const void *data, size_t size)
{
    void *copy = tqi_op_mem(op, size);

    if (copy && size > 0)
        memcpy(copy, data, size);
    return copy;
}

char *tqi_op_dup_str(tqi_op_t *op, const char *data, size_t len)
{
    char *copy = tqi_op_mem(op, len + 1);

    if (!copy)
        return NULL;
    if (len > 0)
        memcpy(copy, data, len);
    copy[len] = '\0';
    return copy;
}

tq_status_t tqi_op_dup_strs(tqi_op_t *op, const tq_strs_t *from, tq_strs_t *to)
{
    *to = (tq_strs_t){0};
    if (!from || from->cnt == 0)
        return TQ_OK;
    to->offsets = tqi_op_dup(op, from->offsets, ((size_t)from->cnt + 1) * sizeof *from->offsets);
    to->bytes = tqi_op_dup(op, from->bytes, from->offsets[from->cnt]);
    if (!to->offsets || !to->bytes)
        return TQ_E_NO_MEMORY;
    to->cnt = from->cnt;
    return TQ_OK;
}

void tqi_op_set_user(tqi_op_t *op, void *user)
{
    op->user = user;
}

void *tqi_op_user(const tqi_op_t *op)
{
    return op->user;
}

tq_status_t tqi_op_status(const tqi_op_t *op)
{
    return op->err.status;
}

const char *tqi_op_error(const tqi_op_t *op)
{
    return op->err.text;
}

const tq_result_t *tqi_op_result(const tqi_op_t *op)
{
    return &op->result;
}

bool tqi_op_has_grant(const tqi_op_t *op)
{
    return op->grant_session != 0;
}

/* ---- life -------------------------------------------------------------------------------------- */

static uint32_t default_timeout_ms(const tqi_op_t *op)
{
    const tqi_client_conf_t *conf = &op->client->conf;

    return op->cls->is_fetch ? conf->fetch_timeout_ms : conf->call_timeout_ms;
}

static void move_to(tqi_op_t *op, tqi_list_t *from, tqi_list_t *to, tqi_op_event_t event)
{
    op_step(op, event);
    tqi_list_remove(from, &op->node);
    tqi_list_push_back(to, &op->node);
}

void tqi_client_submit(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns)
{
    tqi_err_t err = {0};

    tqi_assert(op->state == TQI_OP_NEW);
    op->client = client;
    op->buffer_give = client->conf.host.buffer_give;
    op->id = ++client->op_last;
    op->since_ns = now_ns;
    if (op->timeout_ms == 0)
        op->timeout_ms = default_timeout_ms(op);
    op->deadline_ns = now_ns + op->timeout_ms * TQI_MS;
    op_step(op, TQI_OP_EV_SUBMIT);
    tqi_list_push_back(&client->queued, &op->node);

    if (client->closing != TQI_CLOSE_OPEN)
        tqi_fail(&err, TQ_E_CLOSED, "the client is closed");
    else if (client->state == TQI_JOIN_REFUSED)
        err = client->refusal;
    else if (client->is_stale_pending)
        err = client->stale;
    else if (tqi_heap_insert(&client->timers, &op->timer, op->deadline_ns + TQI_GRACE_NS) != TQ_OK)
        tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a timer");
    client->is_stale_pending = false;
    if (err.status != TQ_OK)
        tqi_op_fail(op, &err, now_ns);
    else if (client->session != 0)
        tqi_op_start(op, now_ns);
}

void tqi_op_start(tqi_op_t *op, uint64_t now_ns)
{
    tqi_client_t *client = op->client;

    move_to(op, &client->queued, &client->running, TQI_OP_EV_START);
    op->is_cleaned = false;
    op->err = (tqi_err_t){0};
    op->cls->start(op, now_ns);
}

static void drop_outputs(tqi_op_t *op)
{
    op->result = (tq_result_t){0};
    tqi_buf_clear(&op->rows);
    tqi_buf_clear(&op->units);
    tqi_buf_clear(&op->has_key);
    tqi_buf_clear(&op->status);
    tqi_buf_clear(&op->schemas);
    tqi_buf_clear(&op->json);
    tqi_strs_builder_clear(&op->keys);
    tqi_strs_builder_clear(&op->tags);
    tqi_strs_builder_clear(&op->fields);
    tqi_strs_builder_clear(&op->names);
}

static void orphan_all(tqi_op_t *op)
{
    tqi_node_t *node;

    while ((node = tqi_list_first(&op->reqs)))
        tqi_req_orphan(tqi_container_of(node, tqi_req_t, node));
}

static void end(tqi_op_t *op, tqi_op_event_t event, uint64_t now_ns)
{
    tqi_client_t *client = op->client;

    move_to(op, op->state == TQI_OP_QUEUED ? &client->queued : &client->running, &client->ending,
            event);
    orphan_all(op);
    tqi_slots_stop(op);
    op->clean_deadline_ns = now_ns + client->conf.connect_timeout_ms * TQI_MS;
    tqi_op_settle(op, now_ns);
}

void tqi_op_finish(tqi_op_t *op, uint64_t now_ns)
{
    op->err = (tqi_err_t){0};
    end(op, TQI_OP_EV_SUCCEED, now_ns);
}

void tqi_op_fail(tqi_op_t *op, const tqi_err_t *err, uint64_t now_ns)
{
    tqi_assert(err->status != TQ_OK);
    if (op->state == TQI_OP_ENDING) {
        /* Only a restart can still turn into something else. */
        if (op->is_restarting) {
            op_step(op, TQI_OP_EV_FAIL);
            op->is_restarting = false;
            op->err = *err;
        }
        return;
    }
    op->err = *err;
    end(op, TQI_OP_EV_FAIL, now_ns);
}

void tqi_op_restart(tqi_op_t *op, const tqi_err_t *err, uint64_t now_ns)
{
    if (op->restarts >= TQI_RESTARTS_MAX) {
        tqi_op_fail(op, err, now_ns);
        return;
    }
    op->restarts++;
    op->is_restarting = true;
    op->err = *err;
    end(op, TQI_OP_EV_AGAIN, now_ns);
}

void tqi_op_settle(tqi_op_t *op, uint64_t now_ns)
{
    tqi_client_t *client = op->client;
    tqi_node_t *node;

    if (op->state != TQI_OP_ENDING || op->moving.cnt > 0)
        return;
    if (!op->is_cleaned)
        op->is_cleaned = !op->cls->clean || client->session == 0 || op->cls->clean(op, now_ns);
    if ((op->reqs.cnt > 0 || !op->is_cleaned) && now_ns < op->clean_deadline_ns)
        return;
    while ((node = tqi_list_first(&op->reqs)))
        tqi_req_detach(tqi_container_of(node, tqi_req_t, node));
    tqi_slots_fini(op);
    if (op->is_restarting) {
        op->is_restarting = false; /* whoever fails it now means it */
        drop_outputs(op);
        move_to(op, &client->ending, &client->queued, TQI_OP_EV_REQUEUED);
        return; /* the client's next step starts it */
    }
    if (op->err.status != TQ_OK) {
        drop_outputs(op);
        if (op->cls->fini)
            op->cls->fini(op);
    }
    op->result.incarnation = client->incarnation;
    tqi_heap_remove(&client->timers, &op->timer);
    move_to(op, &client->ending, &client->done, TQI_OP_EV_SETTLED);
}

void tqi_op_stop(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns)
{
    op_step(op, why);
    if (op->state == TQI_OP_DONE)
        return;
    if (op->state == TQI_OP_RUNNING && why == TQI_OP_EV_SESSION_OVER && op->cls->is_repeatable &&
        err->status == TQ_E_SESSION_EXPIRED) {
        tqi_op_restart(op, err, now_ns);
        return;
    }
    if (op->state == TQI_OP_RUNNING && op->cls->stop && op->cls->stop(op, why, err, now_ns))
        return;
    tqi_op_fail(op, err, now_ns);
}

bool tqi_op_is_past_point(const tqi_op_t *op)
{
    tqi_list_each(&op->reqs, node)
    {
        const tqi_req_t *req = tqi_container_of(node, tqi_req_t, node);
        if (req->is_point && req->attempt > 0)
            return true;
    }
    return false;
}

bool tqi_op_request(tqi_op_t *op, tqi_link_t *link, tqi_slot_t *slot, uint16_t kind,
                    const void *msg, uint64_t now_ns)
{
    tqi_err_t err;

    if (tqi_link_request(link, op, slot, kind, msg, op->deadline_ns, now_ns, NULL, &err) == TQ_OK)
        return true;
    tqi_op_fail(op, &err, now_ns);
    return false;
}

bool tqi_op_decode(tqi_op_t *op, const tqi_reply_t *reply, void *msg, uint64_t now_ns)
{
    tqi_err_t err;

    if (tqi_msg_decode(reply->env, reply->kind | TQI_KIND_REPLY, msg, &err) == TQ_OK)
        return true;
    tqi_op_fail(op, &err, now_ns);
    return false;
}

void tqi_op_no_memory(tqi_op_t *op, uint64_t now_ns)
{
    tqi_err_t err;

    tqi_fail(&err, TQ_E_NO_MEMORY, "%s: no memory", op->cls->name);
    tqi_op_fail(op, &err, now_ns);
}

uint32_t tqi_op_budget_ms(const tqi_op_t *op, uint64_t now_ns)
{
    return op->deadline_ns > now_ns ? (uint32_t)((op->deadline_ns - now_ns) / TQI_MS) : 0;
}

/* ---- outputs ----------------------------------------------------------------------------------- */

tq_status_t tqi_strs_append(tqi_strs_builder_t *to, tqi_strs_t from)
{
    for (uint32_t i = 0; i < from.cnt; i++) {
        tqi_str_t item = tqi_strs_at(from, i);
        tq_status_t rc = tqi_strs_builder_add(to, item.data, item.len);
        if (rc != TQ_OK)
            return rc;
    }
    return TQ_OK;
}

tq_status_t tqi_op_add_tags(tqi_op_t *op, tqi_strs_t tags)
{
    static const char empty_map[] = "\x80";

    for (uint32_t i = 0; i < tags.cnt; i++) {
        tqi_str_t map = tqi_strs_at(tags, i);
        tq_status_t rc = tqi_strs_builder_add(&op->tags, map.len > 0 ? map.data : empty_map,
                                              map.len > 0 ? map.len : 1);
        if (rc != TQ_OK)
            return rc;
    }
    return TQ_OK;
}

tq_status_t tqi_op_add_schemas(tqi_op_t *op, tqi_strs_t schemas)
{
    for (uint32_t i = 0; i < schemas.cnt; i++) {
        tq_schema_t *schema = tqi_buf_extend(&op->schemas, sizeof *schema);
        if (!schema)
            return TQ_E_NO_MEMORY;
        /* A hint: one that can't be read says nothing. */
        if (tqi_schema_decode(tqi_strs_at(schemas, i), schema) != TQ_OK)
            memset(schema, 0, sizeof *schema);
    }
    return TQ_OK;
}

tq_status_t tqi_op_add_produced(tqi_op_t *op, tqi_bytes_t produced, uint32_t rows_cnt,
                                uint32_t fields_cnt)
{
    const uint8_t *bits = produced.data;
    size_t cnt = (size_t)rows_cnt * fields_cnt;
    uint8_t *out;

    if (cnt == 0)
        return TQ_OK;
    out = tqi_buf_extend(&op->status, cnt);
    if (!out)
        return TQ_E_NO_MEMORY;
    for (size_t i = 0; i < cnt; i++)
        out[i] = i / 8 < produced.len && (bits[i / 8] >> (i % 8) & 1);
    return TQ_OK;
}

static tq_strs_t strs_out(const tqi_strs_builder_t *builder)
{
    tqi_strs_t view = tqi_strs_builder_view(builder);

    return (tq_strs_t){.cnt = view.cnt, .offsets = view.offsets, .bytes = view.bytes};
}

static bool is_one_each(size_t cnt, size_t of)
{
    return cnt == 0 || cnt == of;
}

/* Callers walk all columns of a result by its rows and fields. */
static bool is_whole(const tqi_op_t *op)
{
    size_t rows = op->rows.len / sizeof(tq_row_t), fields = op->fields.cnt;

    return rows <= TQ_PARTITION_ROWS_MAX && is_one_each(op->units.len / sizeof(uint32_t), rows) &&
           is_one_each(op->has_key.len, rows) && is_one_each(op->keys.cnt, rows) &&
           is_one_each(op->tags.cnt, rows) &&
           is_one_each(op->schemas.len / sizeof(tq_schema_t), fields) &&
           is_one_each(op->status.len, fields > 0 ? rows * fields : rows);
}

tq_status_t tqi_op_answer(tqi_op_t *op, uint64_t now_ns)
{
    tqi_err_t err;

    if (!is_whole(op)) {
        tqi_fail(&err, TQ_E_MALFORMED, "%s: the columns of the answer don't fit each other",
                 op->cls->name);
        tqi_op_fail(op, &err, now_ns);
        return TQ_E_MALFORMED;
    }
    tqi_op_seal(op);
    return TQ_OK;
}

void tqi_op_seal(tqi_op_t *op)
{
    tq_result_t *result = &op->result;

    result->rows_cnt = (uint32_t)(op->rows.len / sizeof(tq_row_t));
    result->rows = (const tq_row_t *)(void *)op->rows.data;
    result->units = (const uint32_t *)(void *)op->units.data;
    result->has_key = op->has_key.data;
    result->status = op->status.data;
    result->schemas = (const tq_schema_t *)(void *)op->schemas.data;
    result->keys = strs_out(&op->keys);
    result->tags = strs_out(&op->tags);
    result->fields = strs_out(&op->fields);
    result->names = strs_out(&op->names);
}
