/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller with scripted clients and units around it: a port that keeps every frame, time that
 * moves when told, and helpers that speak for one end of a conversation.
 */
#ifndef TQI_TESTS_ROLE_CONTROLLER_H
#define TQI_TESTS_ROLE_CONTROLLER_H

#include <string.h>

#include <tq/tq.h>

#include "base/size.h"
#include "role/controller/controller.h"
#include "unit.h"
#include "wire/coldesc.h"
#include "wire/msg.h"
#include "wire/value.h"

#define WORLD_INCARNATION 0x1234u
#define WORLD_FRAMES_MAX 512
#define MS UINT64_C(1000000)

typedef struct world_frame {
    tqi_peer_t peer;
    tqi_buf_t data;
    tqi_envelope_t env;
} world_frame_t;

typedef struct world {
    unit_env_t env;
    tqi_ctrl_t ctrl;
    tqi_controller_t *ctl;
    tqi_role_t *role;
    uint64_t now_ns;
    uint64_t next_ns; /* what step answered last */
    world_frame_t frames[WORLD_FRAMES_MAX];
    size_t frames_cnt;
    tqi_peer_t deaf; /* a peer that frames don't reach */
} world_t;

typedef struct caller {
    world_t *world;
    tqi_peer_t peer;
    uint64_t session;
    uint32_t epoch;
    uint64_t seq;
    uint64_t ack;
    uint32_t budget_ms;
    tqi_err_t err; /* of the last error reply */
} caller_t;

typedef struct store_unit {
    world_t *world;
    tqi_peer_t peer;
    uint32_t id;
    uint64_t incarnation;
} store_unit_t;

static world_t *world_of(tqi_ctrl_t *ctrl)
{
    return tqi_container_of(ctrl, world_t, ctrl);
}

static tq_status_t world_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    world_t *w = world_of(ctrl);

    if (peer == w->deaf) {
        tqi_buf_fini(frame);
        return TQ_OK;
    }
    assert_true(w->frames_cnt < WORLD_FRAMES_MAX);
    world_frame_t *kept = &w->frames[w->frames_cnt++];
    kept->peer = peer;
    kept->data = *frame;
    *frame = (tqi_buf_t){.env = frame->env};
    assert_int_equal(tqi_envelope_decode(kept->data.data, kept->data.len, &kept->env, NULL), TQ_OK);
    return TQ_OK;
}

static void world_drop(world_t *w, size_t at)
{
    tqi_buf_fini(&w->frames[at].data);
    w->frames_cnt--;
    memmove(&w->frames[at], &w->frames[at + 1], (w->frames_cnt - at) * sizeof w->frames[0]);
}

static inline void world_drop_all(world_t *w)
{
    while (w->frames_cnt > 0)
        world_drop(w, w->frames_cnt - 1);
}

static inline void world_check(world_t *w)
{
    tqi_err_t err;

    if (!tqi_controller_check(w->ctl, &err))
        fail_msg("%s (seed %llu)", err.text, (unsigned long long)unit_seed);
}

/* Steps until there is nothing to do at this time. */
static inline void world_settle(world_t *w)
{
    for (int i = 0; i < 100000; i++) {
        w->next_ns = w->role->step(w->role, w->now_ns);
        if (w->next_ns > w->now_ns)
            break;
    }
    unit_check(w->next_ns > w->now_ns);
    world_check(w);
}

static inline void world_pass(world_t *w, uint64_t ms)
{
    uint64_t until = w->now_ns + ms * MS;

    while (w->next_ns <= until) {
        w->now_ns = w->next_ns;
        world_settle(w);
    }
    w->now_ns = until;
    world_settle(w);
}

static inline void world_init(world_t *w, const tqi_controller_conf_t *conf)
{
    tqi_controller_conf_t used = conf ? *conf : (tqi_controller_conf_t){0};
    tqi_err_t err = {0};

    memset(w, 0, sizeof *w);
    unit_env_init(&w->env);
    w->ctrl.send = world_send;
    w->now_ns = 1000 * MS;
    if (used.incarnation == 0)
        used.incarnation = WORLD_INCARNATION;
    assert_int_equal(tqi_controller_new(&w->env.env, &used, &w->ctrl, w->now_ns, &w->ctl, &err),
                     TQ_OK);
    w->role = tqi_controller_role(w->ctl);
    w->next_ns = w->now_ns;
}

static inline void world_fini(world_t *w)
{
    tqi_controller_free(w->ctl);
    world_drop_all(w);
    assert_int_equal(w->env.bytes, 0);
}

static inline void world_feed(world_t *w, tqi_peer_t peer, const tqi_envelope_t *env,
                              const void *msg)
{
    tqi_buf_t frame;
    tqi_err_t err;

    tqi_buf_init(&frame, &w->env.env);
    uint64_t keep = w->env.fail_after;
    w->env.fail_after = UINT64_MAX;
    if (tqi_msg_encode(&frame, env, (const uint64_t *)env->open, msg, &err) != TQ_OK)
        fail_msg("%s", err.text);
    w->env.fail_after = keep;
    w->role->on_message(w->role, peer, frame.data, frame.len, w->now_ns);
    tqi_buf_fini(&frame);
}

/* The first kept frame to a peer of that kind and seq (0: any), or NULL. */
static inline world_frame_t *world_find(world_t *w, tqi_peer_t peer, uint32_t kind, uint64_t seq)
{
    for (size_t i = 0; i < w->frames_cnt; i++)
        if (w->frames[i].peer == peer && w->frames[i].env.kind == kind &&
            (seq == 0 || w->frames[i].env.seq == seq))
            return &w->frames[i];
    return NULL;
}

/* ---- clients ---- */

static inline void caller_hello(caller_t *c, world_t *w, tqi_peer_t peer)
{
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Hello, .epoch = ++c->epoch};
    tqi_msg_Hello_t msg = {.version_min = 1, .version_max = 1, .name = tqi_str("test")};

    c->world = w;
    c->peer = peer;
    c->budget_ms = c->budget_ms ? c->budget_ms : 200000;
    env.session = c->session;
    world_feed(w, peer, &env, &msg);
    world_frame_t *f = world_find(w, peer, TQI_KIND_Hello_R, 0);
    assert_non_null(f);
    assert_int_equal(f->env.status, TQ_OK);
    c->session = f->env.session;
    world_drop(w, (size_t)(f - w->frames));
}

static inline void caller_repeat(caller_t *c, uint16_t kind, uint64_t seq, const void *msg)
{
    tqi_envelope_t env = {.version = 1,
                          .kind = kind,
                          .incarnation = WORLD_INCARNATION,
                          .session = c->session,
                          .epoch = c->epoch,
                          .budget_ms = c->budget_ms,
                          .seq = seq,
                          .ack = c->ack};

    world_feed(c->world, c->peer, &env, msg);
}

static inline uint64_t caller_send(caller_t *c, uint16_t kind, const void *msg)
{
    caller_repeat(c, kind, ++c->seq, msg);
    return c->seq;
}

/* Acknowledges everything up to `ack`, with a lone PING. */
static inline void caller_ack(caller_t *c, uint64_t ack)
{
    tqi_envelope_t env = {.version = 1,
                          .kind = TQI_KIND_Ping,
                          .incarnation = WORLD_INCARNATION,
                          .session = c->session,
                          .epoch = c->epoch};

    c->ack = ack;
    env.ack = ack;
    world_feed(c->world, c->peer, &env, &(tqi_msg_Ping_t){0});
}

/* The reply of seq, decoded into out (its frame is in *frame, which the caller finishes); the status.
 * Fails the test when it is not there. */
static inline tq_status_t caller_take(caller_t *c, uint64_t seq, uint16_t kind, void *out,
                                      tqi_buf_t *frame)
{
    world_t *w = c->world;
    world_frame_t *f = world_find(w, c->peer, kind | TQI_KIND_REPLY, seq);
    tq_status_t status;

    if (!f)
        fail_msg("no reply of kind %u for seq %llu", kind, (unsigned long long)seq);
    status = f->env.status;
    *frame = f->data;
    f->data = (tqi_buf_t){.env = frame->env};
    if (status != TQ_OK) {
        tqi_msg_Error_t error;

        assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Error, &error, NULL), TQ_OK);
        c->err.status = status;
        snprintf(c->err.text, sizeof c->err.text, "%.*s", (int)error.text.len,
                 (const char *)error.text.data);
    } else {
        assert_int_equal(tqi_msg_decode(&f->env, kind | TQI_KIND_REPLY, out, NULL), TQ_OK);
    }
    world_drop(w, (size_t)(f - w->frames));
    return status;
}

static inline bool caller_has(caller_t *c, uint64_t seq, uint16_t kind)
{
    return world_find(c->world, c->peer, kind | TQI_KIND_REPLY, seq) != NULL;
}

#define call(caller, Name, out, frame, ...)                                                        \
    (caller_send(caller, TQI_KIND_##Name, &(tqi_msg_##Name##_t){__VA_ARGS__}),                     \
     world_settle((caller)->world),                                                                \
     caller_take(caller, (caller)->seq, TQI_KIND_##Name, out, frame))

/* ---- lists of strings: strs("a", "b") ---- */

typedef struct test_strs {
    uint32_t offsets[65];
    char bytes[4096];
    uint32_t cnt;
} test_strs_t;

static inline tqi_strs_t test_strs(test_strs_t *s, uint32_t cnt, const char *const *items)
{
    s->offsets[0] = 0;
    s->cnt = cnt;
    for (uint32_t i = 0; i < cnt; i++) {
        size_t len = strlen(items[i]);

        memcpy(s->bytes + s->offsets[i], items[i], len);
        s->offsets[i + 1] = s->offsets[i] + (uint32_t)len;
    }
    return (tqi_strs_t){s->offsets, s->bytes, cnt, s->offsets[cnt]};
}

#define strs(...)                                                                                  \
    test_strs(&(test_strs_t){0},                                                                   \
              (uint32_t)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *)),            \
              (const char *[]){__VA_ARGS__})

/* A put of rows that the store makes: INSERT; *rows gets the first row (they follow each other). */
static inline uint64_t put_begin_rows(caller_t *c, const char *partition, uint32_t cnt,
                                      uint64_t *rows)
{
    tqi_msg_Insert_R_t reply;
    tqi_buf_t frame;
    uint64_t put_id;

    assert_int_equal(call(c, Insert, &reply, &frame, .partition = tqi_str(partition),
                          .rows_cnt = cnt, .fields = strs("a"), .is_put = true),
                     TQ_OK);
    assert_int_equal(reply.rows.cnt, cnt);
    for (uint32_t i = 0; i < cnt; i++)
        rows[i] = tqi_u64s_at(reply.rows, i);
    put_id = reply.put_id;
    tqi_buf_fini(&frame);
    return put_id;
}

static inline tq_status_t put_publish(caller_t *c, const char *partition, uint64_t put_id,
                                      const uint64_t *rows, uint32_t cnt, tqi_strs_t fields)
{
    tqi_msg_Publish_R_t reply;
    tqi_buf_t frame;
    tq_status_t rc =
        call(c, Publish, &reply, &frame, .partition = tqi_str(partition), .put_id = put_id,
             .part = 1, .parts = 1, .rows = tqi_u64s(rows, cnt), .fields = fields);

    tqi_buf_fini(&frame);
    return rc;
}

static inline void put_rows(caller_t *c, const char *partition, uint32_t cnt, tqi_strs_t fields,
                            uint64_t *rows)
{
    uint64_t put_id = put_begin_rows(c, partition, cnt, rows);

    assert_int_equal(put_publish(c, partition, put_id, rows, cnt, fields), TQ_OK);
}

/* A fetch that is not polling; its seq. */
static inline uint64_t fetch_send(caller_t *c, const char *partition, const char *task,
                                  uint32_t cnt, tqi_strs_t fields)
{
    uint64_t seq = caller_send(c, TQI_KIND_Fetch,
                               &(tqi_msg_Fetch_t){.partition = tqi_str(partition),
                                                  .task = tqi_str(task),
                                                  .fields = fields,
                                                  .rows_cnt = cnt,
                                                  .mode = TQ_FETCH});

    world_settle(c->world);
    return seq;
}

/* Rows of a fetch's reply; how many, or UINT32_MAX on an error (then c->err). */
static inline uint32_t fetch_take(caller_t *c, uint64_t seq, uint64_t *rows, uint32_t max)
{
    tqi_msg_Fetch_R_t reply = {0};
    tqi_buf_t frame;
    uint32_t cnt = UINT32_MAX;

    if (caller_take(c, seq, TQI_KIND_Fetch, &reply, &frame) == TQ_OK) {
        cnt = reply.rows.cnt;
        assert_true(cnt <= max);
        for (uint32_t i = 0; i < cnt; i++)
            rows[i] = tqi_u64s_at(reply.rows, i);
    }
    tqi_buf_fini(&frame);
    return cnt;
}

static inline uint64_t clear_send(caller_t *c, const char *partition, const uint64_t *rows,
                                  uint32_t cnt)
{
    uint64_t seq = caller_send(
        c, TQI_KIND_Clear,
        &(tqi_msg_Clear_t){.partition = tqi_str(partition), .rows = tqi_u64s(rows, cnt)});

    world_settle(c->world);
    return seq;
}

/* ---- units ---- */

/* A REGISTER of somebody who lives: its answer, after the PING that asks for proof of that. */
static inline world_frame_t *world_register(world_t *w, tqi_peer_t peer, const tqi_envelope_t *env,
                                            const tqi_msg_Register_t *msg)
{
    tqi_envelope_t pong = {.version = 1, .kind = TQI_KIND_Ping_R};

    world_feed(w, peer, env, msg);
    if (!world_find(w, peer, TQI_KIND_Register_R, 0)) {
        world_frame_t *f = world_find(w, peer, TQI_KIND_Ping, 0);
        assert_non_null(f);
        world_drop(w, (size_t)(f - w->frames));
        world_feed(w, peer, &pong, &(tqi_msg_Ping_R_t){0});
        world_feed(w, peer, env, msg);
    }
    return world_find(w, peer, TQI_KIND_Register_R, 0);
}

static inline void unit_register_at(store_unit_t *u, world_t *w, tqi_peer_t peer,
                                    uint64_t incarnation, const char *host, tqi_strs_t addresses)
{
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Register};
    tqi_msg_Register_t msg = {.version_min = 1,
                              .version_max = 1,
                              .unit_incarnation = incarnation,
                              .unit_id = u->id,
                              .addresses = addresses,
                              .host = tqi_str(host),
                              .capacity_bytes = 1 << 30,
                              .free_bytes = 1 << 30,
                              .name = tqi_strs_at(addresses, 0)};
    tqi_msg_Register_R_t reply;

    if (u->id != 0 && u->incarnation == incarnation)
        msg.store_incarnation = WORLD_INCARNATION;
    world_frame_t *f = world_register(w, peer, &env, &msg);
    assert_non_null(f);
    assert_int_equal(f->env.status, TQ_OK);
    assert_int_equal(tqi_msg_decode(&f->env, TQI_KIND_Register_R, &reply, NULL), TQ_OK);
    *u = (store_unit_t){w, peer, reply.unit_id, incarnation};
    world_drop(w, (size_t)(f - w->frames));
    world_settle(w);
}

static inline void unit_register(store_unit_t *u, world_t *w, tqi_peer_t peer, uint64_t incarnation,
                                 const char *address)
{
    unit_register_at(u, w, peer, incarnation, "host", strs(address));
}

static inline void unit_answer(store_unit_t *u, uint16_t kind, uint64_t seq, const void *msg)
{
    tqi_envelope_t env = {.version = 1,
                          .kind = (uint16_t)(kind | TQI_KIND_REPLY),
                          .incarnation = WORLD_INCARNATION,
                          .seq = seq,
                          .sender = u->id};

    world_feed(u->world, u->peer, &env, msg);
    world_settle(u->world);
}

/* Answers every order of the kind that has come; how many. */
static inline uint32_t unit_obey(store_unit_t *u, uint16_t kind)
{
    uint32_t cnt = 0;
    world_frame_t *f;

    while ((f = world_find(u->world, u->peer, kind, 0))) {
        uint64_t seq = f->env.seq;

        world_drop(u->world, (size_t)(f - u->world->frames));
        if (kind == TQI_KIND_Unlink)
            unit_answer(u, kind, seq, &(tqi_msg_Unlink_R_t){.free_bytes = 1 << 30});
        else if (kind == TQI_KIND_Confirm)
            unit_answer(u, kind, seq, &(tqi_msg_Confirm_R_t){0});
        else if (kind == TQI_KIND_EndSession)
            unit_answer(u, kind, seq, &(tqi_msg_EndSession_R_t){0});
        else
            unit_answer(u, kind, seq,
                        &(tqi_msg_Ping_R_t){.capacity_bytes = 1 << 30, .free_bytes = 1 << 30});
        cnt++;
    }
    return cnt;
}

static inline void unit_obey_all(store_unit_t *u)
{
    while (unit_obey(u, TQI_KIND_Ping) + unit_obey(u, TQI_KIND_Unlink) +
               unit_obey(u, TQI_KIND_Confirm) + unit_obey(u, TQI_KIND_EndSession) >
           0)
        ;
}

#endif
