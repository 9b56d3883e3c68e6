/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the clients do. An actor submits an op, waits for its end, judges it, thinks, goes on. Ops
 * are cancelled or abandoned now and then; grants are taken or discarded; a client that dies leaves
 * everything as it was.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "history.h"
#include "role/client/internal.h"
#include "world.h"

const char *const partition_names[PARTITIONS] = {"train", "eval", "p"};
const char *const field_names[CELLS] = {"prompt", "response", "reward", "logp",
                                        "x",      "tag n",    "tag t"};
const char *const task_names[TASKS] = {"actor", "critic"};

/* ---- receive buffers --------------------------------------------------------------------------- */

struct tq_buffer {
    proc_t *proc;
    size_t size;
    void *data;
};

static tq_buffer_t *buffer_take(void *ctx, size_t bytes, void **data)
{
    proc_t *proc = ctx;
    tq_buffer_t *buffer = calloc(1, sizeof *buffer);

    tqi_assert(buffer && bytes > 0);
    buffer->proc = proc;
    buffer->size = bytes;
    buffer->data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    tqi_assert(buffer->data);
    memset(buffer->data, 0xB7, bytes);
    *data = buffer->data;
    proc->buffers_cnt++;
    return buffer;
}

static void buffer_give(tq_buffer_t *buffer)
{
    tqi_assert(buffer->proc->buffers_cnt > 0);
    buffer->proc->buffers_cnt--;
    free(buffer->data);
    free(buffer);
}

void tq_buffer_unref(tq_buffer_t *buffer)
{
    if (buffer)
        buffer_give(buffer);
}

void *tq_buffer_data(const tq_buffer_t *buffer)
{
    return buffer->data;
}

size_t tq_buffer_size(const tq_buffer_t *buffer)
{
    return buffer->size;
}

/* ---- lists of strings -------------------------------------------------------------------------- */

typedef struct names {
    tq_strs_t strs;
    uint32_t offsets[ROWS_MAX * 2 + 1];
    char bytes[512];
} names_t;

static void names_begin(names_t *names)
{
    *names = (names_t){0};
    names->strs.offsets = names->offsets;
    names->strs.bytes = names->bytes;
}

static void names_add(names_t *names, const void *data, size_t len)
{
    uint32_t at = names->offsets[names->strs.cnt];

    tqi_assert(at + len <= sizeof names->bytes && names->strs.cnt < ROWS_MAX * 2);
    memcpy(names->bytes + at, data, len);
    names->offsets[++names->strs.cnt] = at + (uint32_t)len;
}

static void names_fields(names_t *names, uint32_t mask)
{
    names_begin(names);
    for (uint32_t f = 0; f < FIELDS; f++)
        if (mask >> f & 1)
            names_add(names, field_names[f], strlen(field_names[f]));
}

static void names_keys(names_t *names, const uint32_t *keys, uint32_t cnt)
{
    char text[16];

    names_begin(names);
    for (uint32_t i = 0; i < cnt; i++)
        names_add(names, text, (size_t)snprintf(text, sizeof text, "k%u", keys[i]));
}

/* One msgpack map a row. */
static void names_tags(names_t *names, const put_record_t *put)
{
    uint8_t map[MODEL_TAGS_BYTES];

    names_begin(names);
    for (uint32_t i = 0; i < put->rows_cnt; i++) {
        model_fill_tags(put, i, map);
        names_add(names, map, sizeof map);
    }
}

/* ---- works ------------------------------------------------------------------------------------- */

static void on_cancel(void *ctx);
static void on_harvest(void *ctx);

static work_t *work_new(proc_t *proc, actor_t *actor, work_kind_t kind)
{
    world_t *w = proc->world;
    work_t *work = calloc(1, sizeof *work);

    tqi_assert(work);
    work->proc = proc;
    work->actor = actor;
    work->kind = kind;
    work->losses = (uint32_t)w->memory_losses;
    work->sessions_ended = world_sessions_ended(w);
    work->submit_ns = tqi_sim_now(w->sim);
    /* Some callers are in a hurry. */
    if (actor && world_chance(w, 0.08))
        work->timeout_ms = (uint32_t)world_between(w, 1, 600);
    tqi_sim_event_init(&work->cancel, on_cancel, work);
    tqi_sim_event_init(&work->harvest, on_harvest, work);
    tqi_list_push_back(&proc->works, &work->node);
    if (actor)
        actor->work = work;
    return work;
}

/* The caller's memory is the caller's again: whoever still reads it reads rubbish. */
static void drop_columns(work_t *work)
{
    for (uint32_t f = 0; f < FIELDS; f++) {
        if (work->memory[f])
            memset(work->memory[f], 0x99, work->memory_bytes[f]);
        free(work->memory[f]);
        work->memory[f] = NULL;
    }
}

static void work_free(work_t *work)
{
    world_t *w = work->proc->world;

    tqi_sim_cancel(w->sim, &work->cancel);
    tqi_sim_cancel(w->sim, &work->harvest);
    tqi_list_remove(&work->proc->works, &work->node);
    if (work->actor && work->actor->work == work)
        work->actor->work = NULL;
    drop_columns(work);
    tqi_op_free(work->op);
    free(work);
}

static const char *kind_name(work_kind_t kind)
{
    static const char *const names[] = {"put",    "get",  "fetch",        "clear",
                                        "reset",  "tags", "insert",       "resolve",
                                        "status", "list", "fetch of all", "stat"};

    return names[kind];
}

/* Gives the op that was made to the client; an op that could not be made is not counted. */
static work_t *submit(work_t *work, tq_status_t rc, const tqi_err_t *err)
{
    proc_t *proc = work->proc;
    world_t *w = proc->world;

    if (rc != TQ_OK) {
        if (rc != TQ_E_NO_MEMORY)
            world_fail(w, "INV-28", "%s: a %s can't be made: %s", proc->name, kind_name(work->kind),
                       err->text);
        if (work->put)
            work->put->outcome = PUT_FAILED;
        if (work->clear) {
            work->clear->is_ok = true; /* of nothing */
            work->clear->cnt = 0;
            work->clear->is_all = false;
            work->clear->done_ns = work->submit_ns;
        }
        work_free(work);
        return NULL;
    }
    work->number = ++w->totals.ops;
    history_call(work);
    tqi_op_set_user(work->op, work);
    world_say(w, "     %s.%u submits %s in %s", proc->name, work->actor ? work->actor->id : 9,
              kind_name(work->kind), partition_names[work->part]);
    tqi_client_submit(proc->client, work->op, proc_now(proc));
    if (work->actor && world_chance(w, 0.08)) {
        work->is_cancelled = true;
        tqi_sim_at(w->sim, &work->cancel,
                   tqi_sim_now(w->sim) +
                       world_between(w, 0, world_chance(w, 0.7) ? 20 : 3000) * TQI_SIM_MS);
    }
    proc_poke(proc);
    return work;
}

static void on_cancel(void *ctx)
{
    work_t *work = ctx;
    proc_t *proc = work->proc;
    world_t *w = proc->world;

    if (work->is_done || !proc->role)
        return;
    if (tqi_sim_host_is_paused(proc->host)) {
        tqi_sim_at(w->sim, &work->cancel, tqi_sim_now(w->sim) + 100 * TQI_SIM_MS);
        return;
    }
    world_say(w, "     %s cancels its %s", proc->name, kind_name(work->kind));
    if (world_chance(w, 0.3)) {
        work->is_abandoned = true;
        tqi_client_abandon(proc->client, work->op, proc_now(proc));
    } else {
        tqi_client_cancel(proc->client, work->op, proc_now(proc));
    }
    proc_poke(proc);
}

/* ---- judging ----------------------------------------------------------------------------------- */

static void judge_put(work_t *work, const tq_result_t *result)
{
    world_t *w = work->proc->world;
    put_record_t *put = work->put;

    put->done_ns = work->done_ns;
    if (work->status != TQ_OK) {
        put->outcome = tq_status_class(work->status) == TQ_CLASS_UNKNOWN || work->proc->is_dying
                           ? PUT_UNKNOWN
                           : PUT_FAILED;
        /* The end of its session clears what it had made, too. */
        if (work->status == TQ_E_ROW_GONE && put->ident != IDENT_ROW &&
            work->sessions_ended == world_sessions_ended(w) && work->losses == w->memory_losses &&
            !model_has_clear(w->model, put->part, put->submit_ns, put->done_ns))
            world_fail(w, "INV-31", "put %" PRIu64 " is told that its rows are gone: %s",
                       put->serial, tqi_op_error(work->op));
        return;
    }
    put->outcome = PUT_OK;
    w->totals.puts_ok++;
    if (result->rows_cnt != put->rows_cnt)
        world_fail(w, "INV-28", "a put of %u rows answers with %u", put->rows_cnt,
                   result->rows_cnt);
    for (uint32_t i = 0; i < put->rows_cnt; i++)
        for (uint32_t k = 0; k < i; k++)
            if (result->rows[i] == result->rows[k])
                world_fail(w, "INV-21", "put %" PRIu64 " has row %" PRIu64 " twice", put->serial,
                           result->rows[i]);
    if (put->ident == IDENT_ROW && memcmp(put->rows, result->rows, put->rows_cnt * 8) != 0)
        world_fail(w, "INV-21", "put %" PRIu64 " answers with other rows", put->serial);
    model_put_ok(w->model, put, result->rows, result->incarnation);
}

static bool says_missing(tq_status_t status)
{
    switch (status) {
    case TQ_E_NO_PARTITION:
    case TQ_E_NO_FIELD:
    case TQ_E_NO_KEY:
    case TQ_E_NOT_FOUND:
    case TQ_E_NOT_PRODUCED:
    case TQ_E_ROW_GONE:
        return true;
    default:
        return false;
    }
}

static void judge_missing(work_t *work)
{
    world_t *w = work->proc->world;

    if (!says_missing(work->status) || work->losses != w->memory_losses || work->rows_cnt == 0 ||
        work->fields_mask == 0)
        return;
    for (uint32_t i = 0; i < work->rows_cnt; i++)
        for (uint32_t f = 0; f < FIELDS; f++)
            if ((work->fields_mask >> f & 1) &&
                !model_must_exist(
                    w->model, work->part, work->is_by_key ? TQ_ROW_NONE : work->rows[i],
                    work->is_by_key ? work->keys[i] : KEYS, f, work->submit_ns, work->done_ns))
                return;
    world_fail(w, "INV-23", "a get in %s says %s of what was put and is still there: %s",
               partition_names[work->part], tq_status_name(work->status), tqi_op_error(work->op));
}

static void judge_get(work_t *work, const tq_result_t *result)
{
    world_t *w = work->proc->world;

    if (work->status != TQ_OK) {
        judge_missing(work);
        return;
    }
    w->totals.gets_ok++;
    for (uint32_t c = 0; c < result->columns_cnt; c++) {
        const tq_column_out_t *column = &result->columns[c];
        const uint8_t *bytes = column->buffer ? tq_buffer_data(column->buffer) : NULL;
        uint32_t field = 0;
        while (field < FIELDS && strcmp(field_names[field], column->field) != 0)
            field++;
        if (field == FIELDS || (work->fields_mask && !(work->fields_mask >> field & 1)))
            world_fail(w, "INV-21", "a get answers with field '%s'", column->field);
        for (uint32_t i = 0; i < result->rows_cnt; i++) {
            size_t len = column->layout == TQ_LAYOUT_EACH ? column->descs[i].len
                         : column->layout == TQ_LAYOUT_UNIFORM
                             ? column->desc.len
                             : (size_t)(column->offsets[i + 1] - column->offsets[i]);
            if (!work->is_by_key && result->rows[i] != work->rows[i])
                world_fail(w, "INV-21", "a get of row %" PRIu64 " answers with row %" PRIu64,
                           work->rows[i], result->rows[i]);
            model_check_cell(w->model, work->part, result->rows[i], field,
                             bytes + column->offsets[i], len, work->submit_ns, work->done_ns,
                             result->incarnation);
        }
    }
}

/* Whether key k of the result's row, KEYS if it has none. */
static uint32_t key_of(work_t *work, const tq_result_t *result, uint32_t row)
{
    const char *text = result->keys.bytes + result->keys.offsets[row];
    uint32_t len = result->keys.offsets[row + 1] - result->keys.offsets[row], key = 0;
    char name[16];

    if (!result->has_key[row])
        return KEYS;
    while (key < KEYS && ((uint32_t)snprintf(name, sizeof name, "k%u", key) != len ||
                          memcmp(name, text, len) != 0))
        key++;
    if (key == KEYS)
        world_fail(work->proc->world, "INV-32", "a list has key '%.*s'", (int)len, text);
    return key;
}

/* Rows are those of a table: in order, none twice, none that was gone before. */
static void judge_rows(work_t *work, const tq_result_t *result)
{
    world_t *w = work->proc->world;

    for (uint32_t r = 0; r < result->rows_cnt; r++) {
        if (r > 0 && result->rows[r] <= result->rows[r - 1])
            world_fail(w, "INV-32", "a %s has row %" PRIu64 " behind row %" PRIu64,
                       kind_name(work->kind), result->rows[r], result->rows[r - 1]);
        if (model_is_cleared(w->model, work->part, result->rows[r], work->submit_ns,
                             result->incarnation))
            world_fail(w, "INV-24", "a %s has row %" PRIu64 ", which was cleared before",
                       kind_name(work->kind), result->rows[r]);
    }
}

static void judge_tags(work_t *work, const tq_result_t *result)
{
    const tq_strs_t *tags = &result->tags;

    for (uint32_t r = 0; r < result->rows_cnt && r < tags->cnt; r++)
        model_check_tags(work->proc->world->model, work->part, result->rows[r],
                         (const uint8_t *)tags->bytes + tags->offsets[r],
                         tags->offsets[r + 1] - tags->offsets[r], work->submit_ns, work->done_ns,
                         result->incarnation);
}

/* What must be there is said to be there. */
static void judge_produced(work_t *work, const tq_result_t *result)
{
    world_t *w = work->proc->world;

    if (result->incarnation != w->controller->life || work->losses != w->memory_losses)
        return;
    for (uint32_t c = 0; c < result->fields.cnt; c++) {
        uint32_t at = result->fields.offsets[c], field = 0;
        uint32_t len = result->fields.offsets[c + 1] - at;
        while (field < FIELDS && (strlen(field_names[field]) != len ||
                                  memcmp(field_names[field], result->fields.bytes + at, len) != 0))
            field++;
        if (field == FIELDS)
            world_fail(w, "INV-32", "a %s has field '%.*s'", kind_name(work->kind), (int)len,
                       result->fields.bytes + at);
        for (uint32_t r = 0; r < result->rows_cnt; r++)
            if (!result->status[(size_t)r * result->fields.cnt + c] &&
                model_must_exist(w->model, work->part, result->rows[r], KEYS, field,
                                 work->submit_ns, work->done_ns))
                world_fail(w, "INV-23", "a %s says that row %" PRIu64 " of %s has no field %s",
                           kind_name(work->kind), result->rows[r], partition_names[work->part],
                           field_names[field]);
    }
}

static void judge_fetch(work_t *work, const tq_result_t *result)
{
    world_t *w = work->proc->world;

    if (work->status != TQ_OK)
        return;
    if (result->rows_cnt > work->rows_cnt)
        world_fail(w, "INV-20", "a fetch of %u rows answers with %u", work->rows_cnt,
                   result->rows_cnt);
    for (uint32_t i = 0; i < result->rows_cnt; i++) {
        for (uint32_t k = 0; k < i; k++)
            if (result->rows[i] == result->rows[k])
                world_fail(w, "INV-20", "a fetch has row %" PRIu64 " twice", result->rows[i]);
        if (model_is_cleared(w->model, work->part, result->rows[i], work->submit_ns,
                             result->incarnation))
            world_fail(w, "INV-24", "a fetch has row %" PRIu64 ", which was cleared before",
                       result->rows[i]);
    }
    judge_tags(work, result);
}

static void judge_list(work_t *work, const tq_result_t *result)
{
    world_t *w = work->proc->world;
    bool has_key[KEYS] = {false};

    if (work->status != TQ_OK || result->names.cnt > 0)
        return;
    judge_rows(work, result);
    for (uint32_t r = 0; r < result->rows_cnt; r++) {
        uint32_t key = key_of(work, result, r);
        model_check_key(w->model, work->part, result->rows[r], key, result->incarnation);
        /* A key may go with its row and come back with another while pages are read. */
        if (key < KEYS)
            has_key[key] = true;
    }
    judge_tags(work, result);
    if (result->status)
        judge_produced(work, result);
    for (uint32_t key = 0; key < KEYS && !work->is_part && result->is_known; key++)
        for (uint32_t f = 0; f < FIELDS && !has_key[key]; f++)
            if (result->incarnation == w->controller->life &&
                model_must_exist(w->model, work->part, TQ_ROW_NONE, key, f, work->submit_ns,
                                 work->done_ns))
                world_fail(w, "INV-23", "a list of %s lacks key k%u", partition_names[work->part],
                           key);
}

/* STATUS, FETCH of all. */
static void judge_table(work_t *work, const tq_result_t *result)
{
    if (work->status != TQ_OK)
        return;
    judge_rows(work, result);
    judge_tags(work, result);
    if (result->fields.cnt > 0 && result->status)
        judge_produced(work, result);
}

/* TAGS: only its success says what happened. */
static void judge_tagged(work_t *work, const tq_result_t *result)
{
    put_record_t *put = work->put;

    put->done_ns = work->done_ns;
    put->outcome = work->status == TQ_OK ? PUT_OK : PUT_UNKNOWN;
    if (work->status == TQ_OK)
        model_put_ok(work->proc->world->model, put, put->rows, result->incarnation);
}

static void on_done(void *ctx, tqi_op_t *op)
{
    proc_t *proc = ctx;
    world_t *w = proc->world;
    work_t *work = tqi_op_user(op);
    const tq_result_t *result = tqi_op_result(op);

    if (work->is_done)
        world_fail(w, "INV-27", "%s: a %s completes twice", proc->name, kind_name(work->kind));
    work->is_done = true;
    work->done_ns = tqi_sim_now(w->sim);
    work->status = tqi_op_status(op);
    world_say(w, "     %s.%u has its %s in %s: %s %s", proc->name,
              work->actor ? work->actor->id : 9, kind_name(work->kind), partition_names[work->part],
              tq_status_name(work->status), tqi_op_error(op));
    work->session = tqi_op_has_grant(op) ? op->grant_session : tqi_client_session(proc->client);
    if (work->is_abandoned && work->kind == WORK_FETCH)
        history_returned(work);
    else if (!tqi_op_has_grant(op))
        history_done(work);
    w->totals.ops_ok += work->status == TQ_OK;
    if (tq_status_class(work->status) == TQ_CLASS_BUG || work->status == TQ_E_INVALID ||
        work->status == TQ_E_MALFORMED)
        world_fail(w, "INV-30", "%s: a %s ends with %s: %s", proc->name, kind_name(work->kind),
                   tq_status_name(work->status), tqi_op_error(op));
    if (work->kind == WORK_PUT)
        judge_put(work, result);
    else if (work->kind == WORK_GET)
        judge_get(work, result);
    else if (work->kind == WORK_FETCH)
        judge_fetch(work, result);
    else if (work->kind == WORK_LIST)
        judge_list(work, result);
    else if (work->kind == WORK_STATUS || work->kind == WORK_FETCH_ALL)
        judge_table(work, result);
    else if (work->kind == WORK_TAGS)
        judge_tagged(work, result);
    if (work->clear && work->status == TQ_OK) {
        work->clear->is_ok = true;
        work->clear->done_ns = work->done_ns;
        work->clear->incarnation = result->incarnation;
    }
    drop_columns(work);
    if (work->on_result)
        work->on_result(work, result);
    if (!proc->is_dying)
        tqi_sim_at(w->sim, &work->harvest,
                   work->done_ns +
                       world_between(w, 0, world_chance(w, 0.9) ? 500 : 300000) * TQI_SIM_US);
}

/* The caller looks at what came. */
static void on_harvest(void *ctx)
{
    work_t *work = ctx;
    proc_t *proc = work->proc;
    world_t *w = proc->world;
    actor_t *actor = work->actor;
    const tq_result_t *result = tqi_op_result(work->op);

    if (tqi_sim_host_is_paused(proc->host)) {
        tqi_sim_at(w->sim, &work->harvest, tqi_sim_now(w->sim) + 50 * TQI_SIM_MS);
        return;
    }
    if (tqi_op_has_grant(work->op)) {
        if (world_chance(w, actor ? 0.85 : 1)) {
            history_done(work);
            tqi_client_taken(proc->client, work->op, proc_now(proc));
            if (actor && result->rows_cnt > 0 && result->rows_cnt <= ROWS_MAX) {
                actor->fetched_part = work->part;
                actor->fetched_mask = work->fields_mask;
                actor->fetched_cnt = result->rows_cnt;
                memcpy(actor->fetched, result->rows, result->rows_cnt * sizeof *result->rows);
            }
        } else {
            history_returned(work);
            tqi_client_discard(proc->client, work->op, proc_now(proc));
        }
        proc_poke(proc);
    }
    if (actor)
        tqi_sim_at(w->sim, &actor->think,
                   tqi_sim_now(w->sim) +
                       world_between(w, 0, world_chance(w, 0.8) ? 5 : 400) * TQI_SIM_MS);
    work_free(work);
}

tqi_client_host_t work_host(proc_t *proc)
{
    return (tqi_client_host_t){
        .ctx = proc, .on_done = on_done, .buffer_take = buffer_take, .buffer_give = buffer_give};
}

/* ---- making ops -------------------------------------------------------------------------------- */

static uint32_t some_mask(world_t *w)
{
    uint32_t mask = (uint32_t)world_between(w, 1, (1u << FIELDS) - 1);

    /* Few fields more often than many. */
    return world_chance(w, 0.6) ? 1u << world_between(w, 0, FIELDS - 1) : mask;
}

static uint32_t some_keys(world_t *w, uint32_t keys[ROWS_MAX], uint32_t max)
{
    uint32_t cnt = (uint32_t)world_between(w, 1, max);
    uint32_t at = (uint32_t)world_between(w, 0, KEYS - 1);

    for (uint32_t i = 0; i < cnt; i++)
        keys[i] = (at + i * 5) % KEYS;
    return cnt;
}

/* Rows that exist, or did; distinct. */
static uint32_t some_rows(world_t *w, uint32_t part, tq_row_t rows[ROWS_MAX], uint32_t max)
{
    uint32_t cnt = 0, want = (uint32_t)world_between(w, 1, max);

    for (uint32_t tries = 0; tries < want * 2 && cnt < want; tries++) {
        tq_row_t row = model_some_row(w->model, part);
        bool is_there = row == TQ_ROW_NONE;
        for (uint32_t i = 0; i < cnt; i++)
            is_there |= rows[i] == row;
        if (!is_there)
            rows[cnt++] = row;
    }
    return cnt;
}

/* One field's values for a put, in a layout that is true of them. */
static void make_column(work_t *work, const put_record_t *put, uint32_t field, tq_column_t *column,
                        int64_t *offsets, tq_cell_t *cells)
{
    world_t *w = work->proc->world;
    size_t total = 0;
    uint8_t *bytes;

    for (uint32_t r = 0; r < put->rows_cnt; r++) {
        offsets[r] = (int64_t)total;
        total += model_cell_len(put, r, field);
    }
    offsets[put->rows_cnt] = (int64_t)total;
    bytes = malloc(total + 1);
    tqi_assert(bytes);
    work->memory[field] = bytes;
    work->memory_bytes[field] = total;
    for (uint32_t r = 0; r < put->rows_cnt; r++) {
        size_t len = model_cell_len(put, r, field);
        model_cell_fill(put, r, field, bytes + offsets[r]);
        cells[r].data = bytes + offsets[r];
        cells[r].desc = (tq_desc_t){
            .encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_U8, .ndim = 1, .len = len, .shape = {len}};
        if (world_chance(w, 0.1) && !put->is_uniform)
            cells[r].desc = (tq_desc_t){.encoding = TQ_ENC_BYTES, .len = len};
    }
    *column = (tq_column_t){.field = field_names[field], .layout = TQ_LAYOUT_EACH, .cells = cells};
    if (put->is_uniform) {
        column->layout = TQ_LAYOUT_UNIFORM;
        column->desc = cells[0].desc;
        column->data = bytes;
        column->row_stride = (int64_t)cells[0].desc.len;
    } else if (put->serial % 3 == 0) {
        column->layout = TQ_LAYOUT_RAGGED;
        column->desc = (tq_desc_t){.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_U8, .ndim = 1};
        column->data = bytes;
        column->offsets = offsets;
        column->unit_bytes = 1;
    }
}

static work_t *work_put(proc_t *proc, actor_t *actor, uint32_t part, put_ident_t ident)
{
    world_t *w = proc->world;
    tq_row_t rows[ROWS_MAX];
    uint32_t rows_cnt = (uint32_t)world_between(w, 1, ROWS_MAX);
    tq_column_t columns[FIELDS];
    int64_t offsets[FIELDS][ROWS_MAX + 1];
    tq_cell_t cells[FIELDS][ROWS_MAX];
    names_t keys, tags;
    work_t *work;
    put_record_t *put;
    tqi_err_t err;

    if (ident == IDENT_ROW && (rows_cnt = some_rows(w, part, rows, 4)) == 0)
        ident = IDENT_NEW, rows_cnt = 1;
    work = work_new(proc, actor, WORK_PUT);
    put = work->put = model_put(w->model);
    work->part = put->part = part;
    put->ident = ident;
    put->fields_mask = some_mask(w);
    if (!actor) { /* the audit's: all that it says can be foretold */
        put->fields_mask = (1u << FIELDS) - 1;
        rows_cnt = w->sampler_group * (uint32_t)world_between(w, 1, ROWS_MAX / w->sampler_group);
    } else if (world_chance(w, 0.05)) {
        put->fields_mask = 0; /* tags only */
    }
    if (put->fields_mask == 0 || world_chance(w, 0.3))
        put->fields_mask |= 1u << CELL_N;
    put->is_replace = (put->fields_mask >> CELL_N & 1) && world_chance(w, 0.1);
    put->size_class = !actor        ? 0
                      : w->is_tight ? (uint32_t)world_between(w, 2, 5)
                                    : (uint32_t)world_between(w, 0, world_chance(w, 0.3) ? 5 : 3);
    put->is_uniform = world_chance(w, 0.3);
    if (ident == IDENT_KEY)
        rows_cnt = some_keys(w, put->keys, ROWS_MAX);
    put->rows_cnt = rows_cnt;
    if (ident == IDENT_ROW)
        memcpy(put->rows, rows, rows_cnt * sizeof rows[0]);
    names_keys(&keys, put->keys, ident == IDENT_KEY ? rows_cnt : 0);
    if (put->fields_mask >> CELL_N & 1)
        names_tags(&tags, put);
    tq_put_args_t args = {
        .partition = partition_names[part],
        .rows_cnt = rows_cnt,
        .keys = ident == IDENT_KEY ? &keys.strs : NULL,
        .rows = ident == IDENT_ROW ? put->rows : NULL,
        .columns = columns,
        .tags = put->fields_mask >> CELL_N & 1 ? &tags.strs : NULL,
        .flags = (world_chance(w, 0.2) ? TQ_PUT_WANT_META : 0u) |
                 (put->is_replace ? TQ_PUT_REPLACE_TAGS : 0u),
        .timeout_ms = work->timeout_ms,
    };
    for (uint32_t f = 0; f < FIELDS; f++)
        if (put->fields_mask >> f & 1) {
            make_column(work, put, f, &columns[args.columns_cnt], offsets[f], cells[f]);
            args.columns_cnt++;
        }
    tq_status_t rc = tqi_op_put(&proc->memory.env, &args, &work->op, &err);
    world_say(w, "     put %" PRIu64 ": %u rows by %s, fields %x, size class %u", put->serial,
              rows_cnt,
              ident == IDENT_KEY   ? "key"
              : ident == IDENT_ROW ? "row"
                                   : "none",
              put->fields_mask, put->size_class);
    return submit(work, rc, &err);
}

static work_t *get(work_t *work, uint32_t flags)
{
    names_t keys, fields;
    tqi_err_t err;

    names_keys(&keys, work->keys, work->is_by_key ? work->rows_cnt : 0);
    names_fields(&fields, work->fields_mask);
    tq_get_args_t args = {
        .partition = partition_names[work->part],
        .keys = work->is_by_key ? &keys.strs : NULL,
        .rows_cnt = work->is_by_key ? 0 : work->rows_cnt,
        .rows = work->is_by_key ? NULL : work->rows,
        .fields = work->fields_mask ? &fields.strs : NULL,
        .flags = flags,
        .timeout_ms = work->timeout_ms,
    };
    tq_status_t rc = tqi_op_get(&work->proc->memory.env, &args, &work->op, &err);
    return submit(work, rc, &err);
}

static work_t *work_get(proc_t *proc, actor_t *actor, uint32_t part)
{
    world_t *w = proc->world;
    work_t *work;
    tq_row_t rows[ROWS_MAX];
    uint32_t rows_cnt = 0, mask = world_chance(w, 0.2) ? 0 : some_mask(w);
    bool is_by_key = world_chance(w, 0.5);

    if (actor->fetched_cnt > 0) {
        part = actor->fetched_part;
        rows_cnt = actor->fetched_cnt;
        mask = actor->fetched_mask;
        is_by_key = false;
        memcpy(rows, actor->fetched, sizeof rows);
        actor->fetched_cnt = 0;
    } else if (!is_by_key && (rows_cnt = some_rows(w, part, rows, 5)) == 0) {
        is_by_key = true;
    }
    work = work_new(proc, actor, WORK_GET);
    work->part = part;
    work->fields_mask = mask;
    work->is_by_key = is_by_key;
    if (is_by_key)
        rows_cnt = some_keys(w, work->keys, 5);
    else
        memcpy(work->rows, rows, sizeof rows);
    work->rows_cnt = rows_cnt;
    /* With keys left out the result has fewer rows than were asked for. */
    work->is_skipping = is_by_key && world_chance(w, 0.3);
    return get(work, work->is_skipping ? TQ_GET_SKIP_KEYS : 0);
}

static work_t *fetch(work_t *work, bool is_polling)
{
    names_t fields;
    tqi_err_t err;

    names_fields(&fields, work->fields_mask);
    tq_fetch_args_t args = {
        .partition = partition_names[work->part],
        .fields = &fields.strs,
        .rows_cnt = work->rows_cnt,
        .task = task_names[work->task],
        .mode = TQ_FETCH,
        .is_polling = is_polling,
        .timeout_ms = work->timeout_ms,
    };
    tq_status_t rc = tqi_op_fetch(&work->proc->memory.env, &args, &work->op, &err);
    work->is_polling = is_polling;
    return submit(work, rc, &err);
}

static work_t *work_fetch(proc_t *proc, actor_t *actor, uint32_t part)
{
    world_t *w = proc->world;
    work_t *work = work_new(proc, actor, WORK_FETCH);

    work->part = part;
    work->task = (uint32_t)world_between(w, 0, TASKS - 1);
    work->fields_mask = some_mask(w);
    work->rows_cnt = (uint32_t)world_between(w, 1, ROWS_MAX / w->sampler_group) * w->sampler_group;
    return fetch(work, world_chance(w, 0.4));
}

static work_t *work_clear(proc_t *proc, actor_t *actor, uint32_t part, bool is_all)
{
    world_t *w = proc->world;
    work_t *work = work_new(proc, actor, WORK_CLEAR);
    clear_record_t *clear = work->clear = model_clear(w->model);
    names_t keys;
    tqi_err_t err;

    work->part = clear->part = part;
    clear->is_all = is_all;
    if (!is_all) {
        clear->is_by_key = world_chance(w, 0.5);
        if (!clear->is_by_key && (clear->cnt = some_rows(w, part, clear->rows, 4)) == 0)
            clear->is_by_key = true;
        if (clear->is_by_key)
            clear->cnt = some_keys(w, clear->keys, 4);
    }
    names_keys(&keys, clear->keys, clear->is_by_key ? clear->cnt : 0);
    tq_clear_args_t args = {
        .partition = partition_names[part],
        .rows_cnt = clear->is_by_key || is_all ? 0 : clear->cnt,
        .rows = clear->is_by_key || is_all ? NULL : clear->rows,
        .keys = clear->is_by_key ? &keys.strs : NULL,
        .is_all = is_all,
        .timeout_ms = work->timeout_ms,
    };
    tq_status_t rc = tqi_op_clear(&proc->memory.env, &args, &work->op, &err);
    return submit(work, rc, &err);
}

/* Of all, often more than one at once: clears meet clears. */
static void work_clear_volley(proc_t *proc, actor_t *actor, uint32_t part)
{
    world_t *w = proc->world;
    bool is_all = world_chance(w, 0.2);
    uint32_t more = is_all && world_chance(w, 0.6) ? (uint32_t)world_between(w, 1, 4) : 0;

    work_clear(proc, actor, part, is_all);
    for (; more > 0 && proc->role; more--) {
        work_t *work = work_clear(proc, NULL, part, true);
        if (work && world_chance(w, 0.5))
            tqi_sim_at(w->sim, &work->cancel,
                       tqi_sim_now(w->sim) + world_between(w, 0, 4 * w->faults.latency_max_ns));
    }
}

static work_t *work_simple(proc_t *proc, actor_t *actor, uint32_t part, work_kind_t kind)
{
    world_t *w = proc->world;
    work_t *work;
    names_t names, keys;
    tq_row_t rows[ROWS_MAX];
    uint32_t key_idxs[ROWS_MAX], rows_cnt = some_rows(w, part, rows, 4);
    const char *partition = partition_names[part];
    uint32_t task_idx = (uint32_t)world_between(w, 0, TASKS - 1);
    const char *task = task_names[task_idx];
    const tqi_env_t *env = &proc->memory.env;
    tq_status_t rc = TQ_OK;
    tqi_err_t err;

    if (kind == WORK_TAGS && rows_cnt == 0)
        kind = WORK_LIST;
    work = work_new(proc, actor, kind);
    work->part = part;
    work->task = task_idx;
    switch (kind) {
    case WORK_RESET: {
        work->is_all = world_chance(w, 0.3);
        tq_reset_args_t args = {.partition = partition,
                                .task = work->is_all ? NULL : task,
                                .timeout_ms = work->timeout_ms};
        rc = tqi_op_reset(env, &args, &work->op, &err);
        break;
    }
    case WORK_TAGS: {
        put_record_t *put = work->put = model_put(w->model);
        put->part = part;
        put->ident = IDENT_ROW;
        put->fields_mask = 1u << CELL_T;
        put->rows_cnt = rows_cnt;
        put->is_replace = world_chance(w, 0.2);
        memcpy(put->rows, rows, rows_cnt * sizeof rows[0]);
        names_tags(&names, put);
        tq_tags_args_t args = {.partition = partition,
                               .rows_cnt = rows_cnt,
                               .rows = rows,
                               .tags = &names.strs,
                               .is_replace = put->is_replace,
                               .timeout_ms = work->timeout_ms};
        rc = tqi_op_tags(env, &args, &work->op, &err);
        break;
    }
    case WORK_INSERT: {
        names_fields(&names, some_mask(w));
        tq_insert_args_t args = {.partition = partition,
                                 .rows_cnt = (uint32_t)world_between(w, 0, 3),
                                 .fields = &names.strs,
                                 .timeout_ms = work->timeout_ms};
        /* A partition of more than one block, now and then. */
        if (w->large_inserts < 2 && world_chance(w, 0.2)) {
            w->large_inserts++;
            args.rows_cnt = (uint32_t)world_between(w, 1000, 1300);
        }
        rc = tqi_op_insert(env, &args, &work->op, &err);
        break;
    }
    case WORK_RESOLVE: {
        names_keys(&keys, key_idxs, some_keys(w, key_idxs, 4));
        tq_resolve_args_t args = {
            .partition = partition, .keys = &keys.strs, .is_create = world_chance(w, 0.2)};
        work->is_by_key = rows_cnt == 0 || world_chance(w, 0.5);
        if (!work->is_by_key)
            args = (tq_resolve_args_t){.partition = partition, .rows = rows, .rows_cnt = rows_cnt};
        work->rows_cnt = work->is_by_key ? keys.strs.cnt : rows_cnt;
        memcpy(work->keys, key_idxs, sizeof key_idxs);
        memcpy(work->rows, rows, sizeof rows);
        rc = tqi_op_resolve(env, &args, &work->op, &err);
        break;
    }
    case WORK_STATUS: {
        names_fields(&names, some_mask(w));
        tq_status_args_t args = {.partition = partition,
                                 .kind = world_chance(w, 0.5) ? TQ_STATUS_CONSUMPTION
                                                              : TQ_STATUS_PRODUCTION,
                                 .task = task,
                                 .fields = &names.strs,
                                 .timeout_ms = work->timeout_ms};
        rc = tqi_op_status_of(env, &args, &work->op, &err);
        break;
    }
    case WORK_LIST: {
        tq_list_args_t args = {.partition = world_chance(w, 0.1) ? NULL : partition,
                               .is_keys_only = world_chance(w, 0.2),
                               .is_stuck_only = world_chance(w, 0.2),
                               .want_fields = world_chance(w, 0.5),
                               .rows_max = world_chance(w, 0.2) ? world_between(w, 1, 30) : 0,
                               .timeout_ms = work->timeout_ms};
        work->is_part =
            !args.partition || args.is_keys_only || args.is_stuck_only || args.rows_max > 0;
        rc = tqi_op_list(env, &args, &work->op, &err);
        break;
    }
    case WORK_FETCH_ALL: {
        names_fields(&names, some_mask(w));
        tq_fetch_args_t args = {.partition = partition,
                                .fields = &names.strs,
                                .task = task,
                                .mode = TQ_FETCH_ALL,
                                .timeout_ms = work->timeout_ms};
        rc = tqi_op_fetch(env, &args, &work->op, &err);
        break;
    }
    default:
        rc = tqi_op_stat(env, work->timeout_ms, &work->op, &err);
        break;
    }
    return submit(work, rc, &err);
}

/* ---- actors ------------------------------------------------------------------------------------ */

/* A receive fails at some unit. */
static void spoil(world_t *w)
{
    if (tqi_sim_host_spoil(w->units[world_between(w, 0, w->units_cnt - 1)]->host))
        world_say(w, "---- a transfer is spoilt");
}

/* Whoever opened a store that is gone opens another client. */
static bool was_refused(const proc_t *proc)
{
    tqi_err_t err;

    return tqi_client_why(proc->client, 0, &err) == TQ_E_STORE_GONE;
}

static void act(actor_t *actor)
{
    proc_t *proc = actor->proc;
    world_t *w = proc->world;
    uint32_t part = (uint32_t)world_between(w, 0, world_chance(w, 0.6) ? 0 : PARTITIONS - 1);
    uint64_t what = world_between(w, 0, 99);

    if (w->may_spoil && world_chance(w, 0.2))
        spoil(w);
    if (actor->fetched_cnt > 0 && what < 80)
        work_get(proc, actor, part);
    else if (what < (w->is_tight ? 6 : 18))
        work_put(proc, actor, part, IDENT_NEW);
    else if (what < (w->is_tight ? 12 : 34))
        work_put(proc, actor, part, IDENT_KEY);
    else if (what < 42)
        work_put(proc, actor, part, IDENT_ROW);
    else if (what < 62)
        work_get(proc, actor, part);
    else if (what < 80)
        work_fetch(proc, actor, part);
    else if (what < 87)
        work_clear_volley(proc, actor, part);
    else
        work_simple(proc, actor, part, (work_kind_t)world_between(w, WORK_RESET, WORK_STAT));
}

static void on_think(void *ctx)
{
    actor_t *actor = ctx;
    proc_t *proc = actor->proc;
    world_t *w = proc->world;

    if (w->is_healing || w->ops_left == 0 || !proc->role || actor->work)
        return;
    if (tqi_sim_host_is_paused(proc->host) || proc->is_leaving) {
        tqi_sim_at(w->sim, &actor->think, tqi_sim_now(w->sim) + 100 * TQI_SIM_MS);
        return;
    }
    if (was_refused(proc)) {
        proc_kill(proc, false);
        proc_boot(proc);
        return;
    }
    w->ops_left--;
    act(actor);
    if (!actor->work) /* no memory for it */
        tqi_sim_at(w->sim, &actor->think, tqi_sim_now(w->sim) + 100 * TQI_SIM_MS);
}

void work_plan(world_t *w)
{
    /* Slices and pages of the size of what these clients put. */
    if (world_chance(w, 0.5))
        w->slice_rows = (uint32_t)world_between(w, 1, 12);
    if (world_chance(w, 0.5))
        w->page_rows = (uint32_t)world_between(w, 1, 12);
    w->lease_ms = world_chance(w, 0.4) ? (uint32_t)world_between(w, 1500, 5000) : 8000;
    w->may_spoil = world_chance(w, 0.2);
    w->slack_us = world_chance(w, 0.3) ? (uint32_t)world_between(w, 20, 4000) : 20;
    /* Large values that lie in several units, and little space: puts wait, and yield. */
    w->is_tight = world_chance(w, 0.25);
    w->is_slow = world_chance(w, 0.3);
    w->is_embedded = world_chance(w, 0.3);
}

uint64_t work_store_wanted(proc_t *proc)
{
    world_t *w = proc->world;

    /* The first one is the auditor's. */
    return proc->id > 0 && !w->is_healing && world_chance(w, 0.15) ? w->controller->life : 0;
}

void work_before_frame(proc_t *proc, const void *data, size_t len)
{
    world_t *w = proc->world;
    tqi_envelope_t env;

    /* The one allocation that joining a store takes. */
    if (!w->is_healing && w->weights[STRIKE_MEMORY] > 0 && tqi_client_session(proc->client) == 0 &&
        tqi_envelope_decode(data, len, &env, NULL) == TQ_OK && env.kind == TQI_KIND_Hello_R &&
        world_chance(w, 0.1))
        proc->memory.fail_at = proc->memory.calls + 1;
}

void work_cancel_all(proc_t *proc)
{
    tqi_list_each(&proc->works, node)
    {
        work_t *work = tqi_container_of(node, work_t, node);
        if (!work->is_done && work->actor)
            on_cancel(work);
    }
}

/* What races with an answer: callers that give up at that moment. */
void work_after_frame(proc_t *proc)
{
    world_t *w = proc->world;

    if (!w->is_healing && world_chance(w, 0.003))
        work_cancel_all(proc);
}

void work_start(proc_t *proc)
{
    world_t *w = proc->world;

    for (uint32_t i = 0; i < proc->actors_cnt; i++) {
        actor_t *actor = &proc->actors[i];
        *actor = (actor_t){.proc = proc, .id = i};
        tqi_sim_event_init(&actor->think, on_think, actor);
        tqi_sim_at(w->sim, &actor->think,
                   tqi_sim_now(w->sim) + world_between(w, 0, 300) * TQI_SIM_MS);
    }
}

void work_stop(proc_t *proc)
{
    for (uint32_t i = 0; i < proc->actors_cnt; i++)
        tqi_sim_cancel(proc->world->sim, &proc->actors[i].think);
    tqi_list_each(&proc->works, node)
    {
        work_t *work = tqi_container_of(node, work_t, node);
        tqi_sim_cancel(proc->world->sim, &work->cancel);
        tqi_sim_cancel(proc->world->sim, &work->harvest);
    }
}

void work_killed(proc_t *proc)
{
    while (proc->works.cnt > 0) {
        work_t *work = tqi_container_of(tqi_list_first(&proc->works), work_t, node);
        if (!work->is_done)
            world_fail(proc->world, "INV-27", "%s: a %s is never completed", proc->name,
                       kind_name(work->kind));
        work_free(work);
    }
}

bool work_is_idle(const world_t *w)
{
    for (uint32_t i = 0; i < w->clients_cnt; i++)
        if (w->clients[i]->works.cnt > 0)
            return false;
    return true;
}

/* ---- for the audit ----------------------------------------------------------------------------- */

work_t *work_list(proc_t *proc, uint32_t part)
{
    work_t *work = work_new(proc, NULL, WORK_LIST);
    tq_list_args_t args = {.partition = partition_names[part], .want_fields = true};
    tqi_err_t err;

    work->part = part;
    tq_status_t rc = tqi_op_list(&proc->memory.env, &args, &work->op, &err);
    return submit(work, rc, &err);
}

work_t *work_get_rows(proc_t *proc, uint32_t part, const tq_row_t *rows, uint32_t rows_cnt,
                      uint32_t fields_mask)
{
    work_t *work = work_new(proc, NULL, WORK_GET);

    tqi_assert(rows_cnt <= ROWS_MAX);
    work->part = part;
    work->fields_mask = fields_mask;
    work->rows_cnt = rows_cnt;
    memcpy(work->rows, rows, rows_cnt * sizeof *rows);
    return get(work, 0);
}

static work_t *fetch_of(proc_t *proc, uint32_t part, uint32_t task, uint32_t fields_mask,
                        uint32_t n, bool is_polling)
{
    work_t *work = work_new(proc, NULL, WORK_FETCH);

    work->part = part;
    work->task = task;
    work->fields_mask = fields_mask;
    work->rows_cnt = n;
    return fetch(work, is_polling);
}

work_t *work_poll(proc_t *proc, uint32_t part, uint32_t task, uint32_t fields_mask, uint32_t n)
{
    return fetch_of(proc, part, task, fields_mask, n, true);
}

work_t *work_wait(proc_t *proc, uint32_t part, uint32_t task, uint32_t fields_mask, uint32_t n)
{
    return fetch_of(proc, part, task, fields_mask, n, false);
}

work_t *work_reset(proc_t *proc, uint32_t part)
{
    work_t *work = work_new(proc, NULL, WORK_RESET);
    work->is_all = true;
    tq_reset_args_t args = {.partition = partition_names[part]};
    tqi_err_t err;

    work->part = part;
    tq_status_t rc = tqi_op_reset(&proc->memory.env, &args, &work->op, &err);
    return submit(work, rc, &err);
}

work_t *work_forget(proc_t *proc, uint32_t unit_id)
{
    work_t *work = work_new(proc, NULL, WORK_STAT);
    tqi_err_t err;
    tq_status_t rc = tqi_op_unit_forget(&proc->memory.env, unit_id, 0, &work->op, &err);

    return submit(work, rc, &err);
}

work_t *work_clear_all(proc_t *proc, uint32_t part)
{
    return work_clear(proc, NULL, part, true);
}

work_t *work_put_new(proc_t *proc, uint32_t part)
{
    return work_put(proc, NULL, part, IDENT_NEW);
}
