/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that do everything at random and die at any moment, units that are deaf, lost and born
 * again, slices of a few rows, and now and then no memory. All invariants are checked after every
 * step; rows that were taken are never given to the same task again.
 */
#include <stdlib.h>

#include "role_controller.h"

#define CLIENTS 4u
#define UNITS 3u
#define ROWS_MAX 4000u
#define PARTITIONS 2u

static const char *const partitions[PARTITIONS] = {"p", "q"};
static const char *const tasks[2] = {"t", "u"};

typedef struct begun {
    uint64_t put_id;
    unsigned partition;
    uint32_t cnt;
    uint64_t rows[40];
} begun_t;

typedef struct client {
    caller_t c;
    begun_t put;
    uint64_t fetch_seq; /* not answered or not taken yet */
    unsigned fetch_task;
    unsigned fetch_partition;
} client_t;

typedef struct chaos {
    world_t w;
    tqi_rng_t rng;
    client_t clients[CLIENTS];
    store_unit_t units[UNITS];
    bool is_deaf[UNITS];
    tqi_peer_t peer_last;
    uint64_t life_last;
    uint64_t rows[ROWS_MAX]; /* that some put ever had */
    uint32_t rows_cnt;
    /* By row and task: taken for good, since the last reset. */
    uint8_t *taken[2];
} chaos_t;

static uint64_t below(chaos_t *x, uint64_t bound)
{
    return tqi_rng_below(&x->rng, bound);
}

static void hello(chaos_t *x, client_t *k)
{
    memset(k, 0, sizeof *k);
    caller_hello(&k->c, &x->w, ++x->peer_last);
    k->c.budget_ms = (uint32_t)below(x, 8000);
}

static void unit_start(chaos_t *x, unsigned i, bool is_new)
{
    char address[16];

    snprintf(address, sizeof address, "inproc://u%u", i);
    unit_register(&x->units[i], &x->w, ++x->peer_last,
                  is_new ? ++x->life_last : x->units[i].incarnation, address);
    x->is_deaf[i] = false;
}

/* Takes whatever came for a client. */
static void client_reads(chaos_t *x, client_t *k)
{
    world_t *w = &x->w;

    for (size_t i = 0; i < w->frames_cnt;) {
        world_frame_t *f = &w->frames[i];
        tqi_msg_Fetch_R_t fetched;
        tqi_msg_Insert_R_t inserted;
        tqi_msg_Resolve_R_t resolved;

        if (f->peer != k->c.peer) {
            i++;
            continue;
        }
        if (f->env.kind == TQI_KIND_Insert_R && f->env.status == TQ_OK) {
            unit_check(tqi_msg_decode(&f->env, f->env.kind, &inserted, NULL) == TQ_OK);
            k->put.put_id = inserted.put_id;
            k->put.cnt = inserted.rows.cnt;
            for (uint32_t r = 0; r < k->put.cnt; r++) {
                k->put.rows[r] = tqi_u64s_at(inserted.rows, r);
                if (x->rows_cnt < ROWS_MAX)
                    x->rows[x->rows_cnt++] = k->put.rows[r];
            }
        }
        if (f->env.kind == TQI_KIND_Resolve_R && f->env.status == TQ_OK) {
            unit_check(tqi_msg_decode(&f->env, f->env.kind, &resolved, NULL) == TQ_OK);
            if (resolved.put_id != 0) {
                k->put.put_id = resolved.put_id;
                k->put.cnt = resolved.rows.cnt;
                for (uint32_t r = 0; r < k->put.cnt; r++)
                    k->put.rows[r] = tqi_u64s_at(resolved.rows, r);
            }
        }
        if (f->env.kind == TQI_KIND_Fetch_R && f->env.seq == k->fetch_seq) {
            k->fetch_seq = 0;
            if (f->env.status == TQ_OK) {
                unit_check(tqi_msg_decode(&f->env, f->env.kind, &fetched, NULL) == TQ_OK);
                for (uint32_t r = 0; r < fetched.rows.cnt; r++) {
                    uint64_t row = tqi_u64s_at(fetched.rows, r);

                    unit_check(row < 1u << 20);
                    unit_check(!x->taken[k->fetch_task][row]);
                    x->taken[k->fetch_task][row] = 1;
                }
                uint64_t seq = f->env.seq;
                world_drop(w, i);
                caller_ack(&k->c, seq);
                i = 0;
                continue;
            }
        }
        world_drop(w, i);
    }
}

static void client_acts(chaos_t *x, client_t *k)
{
    unsigned partition = (unsigned)below(x, PARTITIONS), task = (unsigned)below(x, 2);
    tqi_str_t name = tqi_str(partitions[partition]);
    uint64_t row = x->rows_cnt ? x->rows[below(x, x->rows_cnt)] : 0;
    uint64_t rows[3] = {row, row + 1, x->rows_cnt ? x->rows[below(x, x->rows_cnt)] : 5};
    char keys[3][8];

    for (int i = 0; i < 3; i++)
        snprintf(keys[i], sizeof keys[i], "k%u", (unsigned)below(x, 30));
    switch (below(x, 14)) {
    case 0:
    case 1:
        k->put = (begun_t){.partition = partition};
        caller_send(&k->c, TQI_KIND_Insert,
                    &(tqi_msg_Insert_t){.partition = name,
                                        .rows_cnt = (uint32_t)below(x, 30),
                                        .fields = strs("a"),
                                        .is_put = tqi_rng_chance(&x->rng, 0.8)});
        break;
    case 2:
        k->put = (begun_t){.partition = partition};
        caller_send(&k->c, TQI_KIND_Resolve,
                    &(tqi_msg_Resolve_t){.partition = name,
                                         .keys = strs(keys[0], keys[1], keys[2]),
                                         .fields = strs("b"),
                                         .is_create = tqi_rng_chance(&x->rng, 0.7),
                                         .is_put = tqi_rng_chance(&x->rng, 0.6),
                                         .want_common = true,
                                         .want_keys = true,
                                         .want_tags = true});
        break;
    case 3:
        k->put = (begun_t){.partition = partition};
        caller_send(&k->c, TQI_KIND_Resolve,
                    &(tqi_msg_Resolve_t){.partition = name,
                                         .rows = tqi_u64s(rows, 3),
                                         .fields = strs("a", "b"),
                                         .is_put = true});
        break;
    case 4:
    case 5:
    case 6:
        if (k->put.put_id == 0)
            break;
        caller_send(&k->c, TQI_KIND_Publish,
                    &(tqi_msg_Publish_t){.partition = tqi_str(partitions[k->put.partition]),
                                         .put_id = k->put.put_id,
                                         .part = 1,
                                         .parts = 1,
                                         .rows = tqi_u64s(k->put.rows, k->put.cnt),
                                         .fields = tqi_rng_chance(&x->rng, 0.5) ? strs("a")
                                                                                : strs("a", "b"),
                                         .want_meta = tqi_rng_chance(&x->rng, 0.3),
                                         .is_abort = tqi_rng_chance(&x->rng, 0.2)});
        k->put = (begun_t){0};
        break;
    case 7:
    case 8:
        if (k->fetch_seq != 0)
            break;
        k->fetch_task = task;
        k->fetch_partition = partition;
        k->fetch_seq = caller_send(
            &k->c, TQI_KIND_Fetch,
            &(tqi_msg_Fetch_t){.partition = name,
                               .task = tqi_str(tasks[task]),
                               .fields = tqi_rng_chance(&x->rng, 0.6) ? strs("a") : strs("b", "a"),
                               .rows_cnt = 1 + (uint32_t)below(x, 40),
                               .mode = TQ_FETCH,
                               .is_polling = tqi_rng_chance(&x->rng, 0.3)});
        break;
    case 9:
        caller_send(&k->c, TQI_KIND_Clear,
                    &(tqi_msg_Clear_t){.partition = name, .rows = tqi_u64s(rows, 3)});
        break;
    case 10:
        if (tqi_rng_chance(&x->rng, 0.3))
            caller_send(&k->c, TQI_KIND_Clear,
                        &(tqi_msg_Clear_t){.partition = name, .is_all = true});
        else
            caller_send(&k->c, TQI_KIND_Clear,
                        &(tqi_msg_Clear_t){.partition = name, .keys = strs(keys[0], keys[1])});
        break;
    case 11:
        if (k->fetch_seq != 0)
            caller_send(&k->c, TQI_KIND_CancelOp,
                        &(tqi_msg_CancelOp_t){.target_seq = k->fetch_seq});
        break;
    case 12:
        caller_send(&k->c, TQI_KIND_List,
                    &(tqi_msg_List_t){.partition = name,
                                      .is_stuck_only = tqi_rng_chance(&x->rng, 0.5),
                                      .want_fields = true});
        break;
    case 13:
        caller_send(&k->c, TQI_KIND_Tags,
                    &(tqi_msg_Tags_t){.partition = name,
                                      .rows = tqi_u64s(rows, 1),
                                      .tags = strs("\x81\xa1x\x01")});
        break;
    }
}

static void unit_acts(chaos_t *x, unsigned i)
{
    if (x->is_deaf[i]) {
        if (!tqi_rng_chance(&x->rng, 0.05))
            return;
        unit_start(x, i, tqi_rng_chance(&x->rng, 0.3));
    }
    if (tqi_rng_chance(&x->rng, 0.01)) {
        x->is_deaf[i] = true;
        if (tqi_rng_chance(&x->rng, 0.5))
            x->w.role->on_peer_down(x->w.role, x->units[i].peer, x->w.now_ns);
        return;
    }
    if (tqi_rng_chance(&x->rng, 0.5))
        unit_obey_all(&x->units[i]);
}

/* Frames to nobody, and what a deaf unit is sent. */
static void sweep(chaos_t *x)
{
    for (size_t i = x->w.frames_cnt; i > 0; i--) {
        bool is_known = false;

        for (unsigned k = 0; k < CLIENTS; k++)
            is_known = is_known || x->clients[k].c.peer == x->w.frames[i - 1].peer;
        for (unsigned u = 0; u < UNITS; u++)
            is_known = is_known || (x->units[u].peer == x->w.frames[i - 1].peer && !x->is_deaf[u]);
        if (!is_known)
            world_drop(&x->w, i - 1);
    }
}

static void check_only(world_t *w)
{
    /* One step, so that others come in between. */
    w->next_ns = w->role->step(w->role, w->now_ns);
    world_check(w);
}

static void chaos_step(chaos_t *x, bool has_failures)
{
    client_t *k = &x->clients[below(x, CLIENTS)];

    if (has_failures && tqi_rng_chance(&x->rng, 0.1))
        x->w.env.fail_after = below(x, 30);
    client_acts(x, k);
    for (unsigned i = 0; i < below(x, 4); i++)
        check_only(&x->w);
    x->w.env.fail_after = UINT64_MAX;
    if (tqi_rng_chance(&x->rng, 0.2)) {
        x->w.now_ns += below(x, 300) * MS;
        check_only(&x->w);
    }
    /* A session ends in the middle of whatever it does. */
    if (tqi_rng_chance(&x->rng, 0.01)) {
        tqi_controller_session_died(x->w.ctl, k->c.session, x->w.now_ns);
        world_check(&x->w);
        hello(x, k);
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (tqi_rng_chance(&x->rng, 0.5))
            caller_ack(&x->clients[i].c, x->clients[i].c.ack);
        client_reads(x, &x->clients[i]);
    }
    for (unsigned i = 0; i < UNITS; i++)
        unit_acts(x, i);
    sweep(x);
    world_check(&x->w);
}

/* Everybody is well again: all that was under way comes to its end. */
static void chaos_quiesce(chaos_t *x)
{
    tqi_msg_Stat_R_t stat;
    tqi_buf_t frame;
    caller_t c = {0};

    for (unsigned i = 0; i < CLIENTS; i++)
        tqi_controller_session_died(x->w.ctl, x->clients[i].c.session, x->w.now_ns);
    for (unsigned i = 0; i < UNITS; i++)
        if (x->is_deaf[i])
            unit_start(x, i, false);
    world_settle(&x->w);
    for (int round = 0; round < 4; round++) {
        /* Orders that were lost with a connection are asked for again by PING. */
        for (unsigned i = 0; i < UNITS; i++) {
            world_frame_t *f;

            while ((f = world_find(&x->w, x->units[i].peer, TQI_KIND_Ping, 0))) {
                uint64_t open[TQI_OPEN_MAX];
                uint32_t cnt = f->env.open_cnt;

                memcpy(open, f->env.open, cnt * 8);
                world_drop(&x->w, (size_t)(f - x->w.frames));
                unit_answer(
                    &x->units[i], TQI_KIND_Ping, 0,
                    &(tqi_msg_Ping_R_t){.resend = tqi_u64s(open, cnt), .free_bytes = 1 << 30});
            }
            unit_obey_all(&x->units[i]);
        }
        world_pass(&x->w, 1000);
    }
    world_drop_all(&x->w);
    caller_hello(&c, &x->w, ++x->peer_last);
    unit_check(call(&c, Stat, &stat, &frame, .unused_ = 0) == TQ_OK);
    char *json = malloc(stat.json.len + 1);
    memcpy(json, stat.json.data, stat.json.len);
    json[stat.json.len] = 0;
    unit_check(!strstr(json, "\"lost\":true"));
    unit_check(strstr(json, "\"partitions_dying\":0"));
    unit_check(strstr(json, "\"requests_under_way\":1"));
    for (const char *at = json; (at = strstr(at, "\"rows_clearing\":")); at++)
        unit_check(strncmp(at, "\"rows_clearing\":0", 17) == 0);
    for (const char *at = json; (at = strstr(at, "\"puts_pending\":")); at++)
        unit_check(strncmp(at, "\"puts_pending\":0", 16) == 0);
    for (const char *at = json; (at = strstr(at, "\"rows_unlisted\":")); at++)
        unit_check(strncmp(at, "\"rows_unlisted\":0", 17) == 0);
    for (const char *at = json; (at = strstr(at, "\"provisional_grants\":")); at++)
        unit_check(strncmp(at, "\"provisional_grants\":0", 22) == 0);
    free(json);
    tqi_buf_fini(&frame);
    /* What nobody took can still be taken, once. */
    for (unsigned p = 0; p < PARTITIONS; p++)
        for (unsigned t = 0; t < 2; t++)
            for (;;) {
                tqi_msg_Fetch_R_t reply;
                uint64_t row;

                unit_check(call(&c, Fetch, &reply, &frame, .partition = tqi_str(partitions[p]),
                                .task = tqi_str(tasks[t]), .fields = strs("a"), .rows_cnt = 1,
                                .mode = TQ_FETCH, .is_polling = true) == TQ_OK);
                if (reply.rows.cnt == 0) {
                    tqi_buf_fini(&frame);
                    break;
                }
                row = tqi_u64s_at(reply.rows, 0);
                tqi_buf_fini(&frame);
                unit_check(!x->taken[t][row]);
                x->taken[t][row] = 1;
                caller_ack(&c, c.seq);
                world_drop_all(&x->w);
            }
}

static void chaos_run(uint64_t seed, bool has_failures)
{
    chaos_t *x = calloc(1, sizeof *x);
    tqi_controller_conf_t conf = {.slice_rows = 0, .prealloc_rows = (uint32_t)(seed % 3)};

    assert_non_null(x);
    tqi_rng_init(&x->rng, seed);
    conf.slice_rows = 1 + (uint32_t)below(x, 20);
    x->taken[0] = calloc(1, 1u << 20);
    x->taken[1] = calloc(1, 1u << 20);
    world_init(&x->w, &conf);
    for (unsigned i = 0; i < UNITS; i++)
        unit_start(x, i, true);
    for (unsigned i = 0; i < CLIENTS; i++)
        hello(x, &x->clients[i]);
    for (int i = 0; i < 400; i++)
        chaos_step(x, has_failures);
    chaos_quiesce(x);
    free(x->taken[0]);
    free(x->taken[1]);
    world_fini(&x->w);
    free(x);
}

static void whatever_clients_and_units_do_the_tables_agree(void **state)
{
    (void)state;
    for_each_seed(seed, 40)
    {
        chaos_run(seed, false);
    }
}

static void without_memory_now_and_then_the_tables_agree(void **state)
{
    (void)state;
    for_each_seed(seed, 40)
    {
        chaos_run(1000 + seed, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_clients_and_units_do_the_tables_agree),
        cmocka_unit_test(without_memory_now_and_then_the_tables_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
