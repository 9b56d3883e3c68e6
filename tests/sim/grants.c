/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has which row, read off the frames in the order in which the controller handled or sent them.
 * A grant is provisional from the reply on, and final once an acknowledgement of it was handled.
 *
 *   INV-20  every ready row is unconsumed, provisionally granted to a live session, or acknowledged;
 *           between resets no task gets a row twice
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "base/vec.h"
#include "role/controller/internal.h"
#include "sys/env_malloc.h"
#include "world.h"

typedef struct asked {
    uint16_t kind;
    uint32_t part;
    uint32_t task; /* TASKS: all, or one that nobody uses */
    bool is_grant; /* FETCH, not of all */
    bool is_vague; /* a RESET came between it and its answer: who was first is not known */
    bool is_answered;
    uint64_t asked_at; /* when it was first handled */
    uint32_t rows_cnt;
    tq_row_t rows[ROWS_MAX * 4];
} asked_t;

typedef struct holding {
    uint32_t part;
    uint64_t session;
    uint64_t seq;
    uint64_t granted_at;
    bool is_final;
    bool is_vague; /* may have been freed already */
} holding_t;

typedef struct seen {
    uint32_t epoch;      /* the newest */
    tqi_map_u64_t asked; /* seq -> asked_t */
} seen_t;

struct grants {
    world_t *w;
    uint64_t clock;            /* of what was handled and answered, in order */
    tqi_map_u64_t sessions;    /* id -> seen_t */
    tqi_map_u64_t rows[TASKS]; /* row -> holding_t */
};

static void value_free(void *ctx, void *value)
{
    (void)ctx;
    free(value);
}

static void seen_free(void *ctx, void *value)
{
    seen_t *seen = value;

    (void)ctx;
    tqi_map_u64_fini(&seen->asked, value_free, NULL);
    free(seen);
}

static void init(grants_t *g)
{
    tqi_map_u64_init(&g->sessions, tqi_env_malloc());
    for (int t = 0; t < TASKS; t++)
        tqi_map_u64_init(&g->rows[t], tqi_env_malloc());
}

grants_t *grants_new(world_t *w)
{
    grants_t *g = calloc(1, sizeof *g);

    tqi_assert(g);
    g->w = w;
    init(g);
    return g;
}

static void fini(grants_t *g)
{
    tqi_map_u64_fini(&g->sessions, seen_free, NULL);
    for (int t = 0; t < TASKS; t++)
        tqi_map_u64_fini(&g->rows[t], value_free, NULL);
}

void grants_new_store(grants_t *g)
{
    fini(g);
    init(g);
}

void grants_free(grants_t *g)
{
    fini(g);
    free(g);
}

static bool session_is_live(const grants_t *g, uint64_t id)
{
    const proc_t *proc = g->w->controller;

    return proc->role && tqi_map_u64_get(&proc->controller->sessions, id);
}

static uint32_t name_idx(tqi_str_t name, const char *const *names, uint32_t cnt)
{
    uint32_t i = 0;

    while (i < cnt && (strlen(names[i]) != name.len || memcmp(names[i], name.data, name.len) != 0))
        i++;
    return i;
}

/* ---- what the controller is told --------------------------------------------------------------- */

static bool is_open(const tqi_envelope_t *env, uint64_t seq)
{
    for (uint16_t i = 0; i < env->open_cnt; i++)
        if (tqi_load_le64(env->open + 8u * i) == seq)
            return true;
    return false;
}

static void take_acks(grants_t *g, const tqi_envelope_t *env)
{
    for (int t = 0; t < TASKS; t++)
        for (tqi_map_u64_item_t *item = tqi_map_u64_first(&g->rows[t]); item;
             item = tqi_map_u64_next(item)) {
            holding_t *holding = item->value;
            if (holding->session == env->session && !holding->is_final &&
                holding->seq <= env->ack && !is_open(env, holding->seq))
                holding->is_final = true;
        }
}

static asked_t *ask(grants_t *g, seen_t *seen, uint64_t seq)
{
    asked_t *asked = tqi_map_u64_get(&seen->asked, seq);

    if (asked)
        return asked;
    asked = calloc(1, sizeof *asked);
    tqi_assert(asked && tqi_map_u64_put(&seen->asked, seq, asked, NULL) == TQ_OK);
    asked->asked_at = ++g->clock;
    return asked;
}

/* Fetches that may have been granted already, their answers being late. */
static void blur(grants_t *g, const asked_t *reset)
{
    for (tqi_map_u64_item_t *s = tqi_map_u64_first(&g->sessions); s; s = tqi_map_u64_next(s)) {
        const seen_t *seen = s->value;
        for (tqi_map_u64_item_t *a = tqi_map_u64_first(&seen->asked); a; a = tqi_map_u64_next(a)) {
            asked_t *asked = a->value;
            if (asked->kind == TQI_KIND_Fetch && !asked->is_answered &&
                asked->part == reset->part && (reset->task == TASKS || reset->task == asked->task))
                asked->is_vague = true;
        }
    }
}

static void note_request(grants_t *g, seen_t *seen, const tqi_envelope_t *env)
{
    asked_t *asked;
    tqi_msg_Fetch_t fetch;
    tqi_msg_Return_t ret;
    tqi_msg_Reset_t reset;

    switch (env->kind) {
    case TQI_KIND_Fetch:
        if (tqi_msg_decode(env, env->kind, &fetch, NULL) != TQ_OK)
            return;
        asked = ask(g, seen, env->seq);
        asked->part = name_idx(fetch.partition, partition_names, PARTITIONS);
        asked->task = name_idx(fetch.task, task_names, TASKS);
        asked->is_grant = fetch.mode == TQ_FETCH;
        break;
    case TQI_KIND_Return:
        if (tqi_msg_decode(env, env->kind, &ret, NULL) != TQ_OK)
            return;
        asked = ask(g, seen, env->seq);
        asked->task = name_idx(ret.task, task_names, TASKS);
        asked->rows_cnt = ret.rows.cnt;
        tqi_assert(ret.rows.cnt <= sizeof asked->rows / sizeof asked->rows[0]);
        for (uint32_t i = 0; i < ret.rows.cnt; i++)
            asked->rows[i] = tqi_u64s_at(ret.rows, i);
        break;
    case TQI_KIND_Reset:
        if (tqi_msg_decode(env, env->kind, &reset, NULL) != TQ_OK)
            return;
        asked = ask(g, seen, env->seq);
        asked->part = name_idx(reset.partition, partition_names, PARTITIONS);
        asked->task = reset.is_all_tasks ? TASKS : name_idx(reset.task, task_names, TASKS);
        blur(g, asked);
        break;
    default:
        return;
    }
    asked->kind = env->kind;
}

void grants_on_request(grants_t *g, const tqi_envelope_t *env)
{
    seen_t *seen;

    if (env->session == 0 || env->kind == TQI_KIND_Hello || !session_is_live(g, env->session))
        return;
    seen = tqi_map_u64_get(&g->sessions, env->session);
    if (!seen) {
        seen = calloc(1, sizeof *seen);
        tqi_assert(seen && tqi_map_u64_put(&g->sessions, env->session, seen, NULL) == TQ_OK);
        tqi_map_u64_init(&seen->asked, tqi_env_malloc());
    }
    if (env->epoch < seen->epoch)
        return; /* of an older connection: its acknowledgements don't count */
    seen->epoch = env->epoch;
    take_acks(g, env);
    if (env->seq != 0)
        note_request(g, seen, env);
}

/* Whether a RETURN or a RESET that was handled, and whose answer has not been seen, may have freed
 * the row: an answer that the port refuses (E_BUSY) is sent later. */
static bool may_be_freed(const grants_t *g, uint32_t task, tq_row_t row, const holding_t *holding)
{
    for (tqi_map_u64_item_t *s = tqi_map_u64_first(&g->sessions); s; s = tqi_map_u64_next(s)) {
        const seen_t *seen = s->value;
        for (tqi_map_u64_item_t *a = tqi_map_u64_first(&seen->asked); a; a = tqi_map_u64_next(a)) {
            const asked_t *asked = a->value;
            if (asked->is_answered)
                continue;
            if (asked->kind == TQI_KIND_Reset && asked->part == holding->part &&
                (asked->task == task || asked->task == TASKS))
                return true;
            if (asked->kind != TQI_KIND_Return || asked->task != task ||
                holding->session != s->key || holding->is_final)
                continue;
            for (uint32_t i = 0; i < asked->rows_cnt; i++)
                if (asked->rows[i] == row)
                    return true;
        }
    }
    return false;
}

/* ---- what it answers --------------------------------------------------------------------------- */

static void granted(grants_t *g, const tqi_envelope_t *env, const asked_t *asked)
{
    world_t *w = g->w;
    tqi_msg_Fetch_R_t msg;

    if (!asked->is_grant || asked->task >= TASKS ||
        tqi_msg_decode(env, env->kind, &msg, NULL) != TQ_OK)
        return;
    w->totals.grants++;
    for (uint32_t i = 0; i < msg.rows.cnt; i++) {
        tq_row_t row = tqi_u64s_at(msg.rows, i);
        holding_t *holding = tqi_map_u64_get(&g->rows[asked->task], row);
        if (holding && (holding->is_vague || may_be_freed(g, asked->task, row, holding)))
            holding->session = 0;
        else if (asked->is_vague && holding &&
                 (holding->is_final || session_is_live(g, holding->session)))
            continue; /* it was granted before the reset, and only its answer is late */
        else if (holding && holding->is_final)
            world_fail(w, "INV-20",
                       "task %s gets row %" PRIu64 " (session %" PRIu64 ", seq %" PRIu64
                       "), which session %" PRIu64 " has acknowledged (seq %" PRIu64 ")",
                       task_names[asked->task], row, env->session, env->seq, holding->session,
                       holding->seq);
        else if (holding && session_is_live(g, holding->session))
            world_fail(w, "INV-20",
                       "task %s gets row %" PRIu64 " (session %" PRIu64 ", seq %" PRIu64
                       "), which the live session %" PRIu64 " has (seq %" PRIu64 ")",
                       task_names[asked->task], row, env->session, env->seq, holding->session,
                       holding->seq);
        if (!holding) {
            holding = calloc(1, sizeof *holding);
            tqi_assert(holding &&
                       tqi_map_u64_put(&g->rows[asked->task], row, holding, NULL) == TQ_OK);
        }
        *holding = (holding_t){.part = asked->part,
                               .session = env->session,
                               .seq = env->seq,
                               .granted_at = ++g->clock,
                               .is_vague = asked->is_vague};
    }
}

/* What a RETURN or a RESET freed. Its answer may be late: a row that was granted since it was handled
 * may have been given away again after it, or before. */
static void freed(grants_t *g, uint32_t task, tq_row_t row, const asked_t *asked)
{
    holding_t *holding = tqi_map_u64_get(&g->rows[task], row);

    if (holding->granted_at > asked->asked_at)
        holding->is_vague = true;
    else
        free(tqi_map_u64_take(&g->rows[task], row));
}

static void returned(grants_t *g, const tqi_envelope_t *env, const asked_t *asked)
{
    for (uint32_t i = 0; asked->task < TASKS && i < asked->rows_cnt; i++) {
        holding_t *holding = tqi_map_u64_get(&g->rows[asked->task], asked->rows[i]);
        if (holding && !holding->is_final && holding->session == env->session)
            freed(g, asked->task, asked->rows[i], asked);
    }
}

static void was_reset(grants_t *g, const asked_t *asked)
{
    for (uint32_t t = 0; t < TASKS; t++) {
        tqi_map_u64_item_t *next;
        if (asked->task != TASKS && asked->task != t)
            continue;
        for (tqi_map_u64_item_t *item = tqi_map_u64_first(&g->rows[t]); item; item = next) {
            holding_t *holding = item->value;
            next = tqi_map_u64_next(item);
            if (holding->part == asked->part)
                freed(g, t, item->key, asked);
        }
    }
}

void grants_on_reply(grants_t *g, const tqi_envelope_t *env)
{
    seen_t *seen = tqi_map_u64_get(&g->sessions, env->session);
    asked_t *asked = seen && env->seq ? tqi_map_u64_get(&seen->asked, env->seq) : NULL;

    if (!asked || asked->is_answered || env->kind != (asked->kind | TQI_KIND_REPLY) ||
        env->status != TQ_OK)
        return;
    asked->is_answered = true;
    if (asked->kind == TQI_KIND_Fetch)
        granted(g, env, asked);
    else if (asked->kind == TQI_KIND_Return)
        returned(g, env, asked);
    else
        was_reset(g, asked);
}

bool grants_has(grants_t *g, uint32_t task, tq_row_t row)
{
    const holding_t *holding = tqi_map_u64_get(&g->rows[task], row);

    return holding && (holding->is_final || session_is_live(g, holding->session));
}
