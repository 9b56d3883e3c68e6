/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Torture: in a whole store on a calm network every allocation fails once, and every call to a port
 * that can be refused is refused once, each in a run of its own. Whatever fails, the step that was
 * under way ends well or with a status that says why; the same step then succeeds; data, tables and
 * figures are right; and who closes leaves nothing behind. The runs are equal but for the failure, so
 * number N of a role names one place.
 *
 * usage: torture [--every N] [--role NAME --kind memory|ports|arena --at N [--verbose]]
 *
 * --every N   only each N-th of the runs; TQ_TORTURE_EVERY overrides it
 * the others  one run
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/size.h"
#include "net/sim/sim.h"
#include "role/client/client.h"
#include "role/controller/controller.h"
#include "role/storage/unit.h"
#include "wire/msg.h"

#define UNITS 2
#define CLIENTS 2 /* the first by streams, the second in the units' process */
#define PROCS (1 + UNITS + CLIENTS)
#define STEP_NS (60 * TQI_SIM_S) /* no step takes longer */
#define RUN_SECONDS_MAX 60

typedef struct world world_t;

typedef struct proc {
    world_t *world;
    const char *name;
    tqi_sim_host_t *host;
    tqi_sink_t sink;
    tqi_sim_memory_t memory;
    tqi_sim_event_t wake;
    tqi_role_t *role; /* NULL: not there */
    tqi_controller_t *controller;
    tqi_unit_t *unit;
    tqi_client_t *client;
    uint32_t lives;
    uint32_t buffers_cnt;
} proc_t;

typedef enum kind { KIND_MEMORY, KIND_PORTS, KIND_ARENA, KINDS } kind_t;

static const char *const kind_names[] = {"memory", "ports", "arena"};

/* What fails in a run: call number `at` of a role. 0: nothing. */
typedef struct plan {
    uint32_t proc;
    kind_t kind;
    uint64_t at;
} plan_t;

struct world {
    plan_t plan;
    bool is_verbose;
    tqi_sim_t *sim;
    proc_t procs[PROCS];
    const char *step; /* under way */
    uint64_t failed_steps;
    const char *sampler;
};

static world_t *now_running; /* for the message of a crash */

static proc_t *controller_of(world_t *w)
{
    return &w->procs[0];
}

static proc_t *unit_of(world_t *w, uint32_t i)
{
    return &w->procs[1 + i];
}

static proc_t *client_of(world_t *w, uint32_t i)
{
    return &w->procs[1 + UNITS + i];
}

/* ---- telling ----------------------------------------------------------------------------------- */

static void print_plan(const world_t *w)
{
    fprintf(stderr, "repeat it with: torture --role %s --kind %s --at %" PRIu64 " --verbose\n",
            w->procs[w->plan.proc].name, kind_names[w->plan.kind], w->plan.at);
}

__attribute__((format(printf, 2, 3))) static _Noreturn void fail(const world_t *w, const char *fmt,
                                                                 ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "step %s: ", w->step);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    print_plan(w);
    exit(1);
}

static void on_crash(int signal_number)
{
    fprintf(stderr, "step %s: signal %d\n", now_running->step, signal_number);
    print_plan(now_running);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void on_trace(void *ctx, const char *what, const tqi_sim_host_t *from,
                     const tqi_sim_host_t *to, const void *data, size_t len, bool is_payload)
{
    world_t *w = ctx;
    tqi_envelope_t env;
    char text[300] = "";

    if (!w->is_verbose)
        return;
    if (data && !is_payload && tqi_envelope_decode(data, len, &env, NULL) == TQ_OK)
        tqi_msg_print(&env, text, sizeof text);
    printf("%9.4f %-4s %s %s %s\n", (double)tqi_sim_now(w->sim) / 1e9, what,
           tqi_sim_host_name(from), to ? tqi_sim_host_name(to) : "?",
           is_payload ? "(payload)" : text);
}

/* ---- roles ------------------------------------------------------------------------------------- */

static void wake_at(proc_t *proc, uint64_t at_ns)
{
    if (!tqi_sim_is_set(&proc->wake) || proc->wake.node.deadline_ns > at_ns)
        tqi_sim_at(proc->world->sim, &proc->wake, at_ns);
}

static uint64_t proc_now(const proc_t *proc)
{
    return tqi_sim_host_now(proc->host);
}

static void poke(proc_t *proc)
{
    wake_at(proc, tqi_sim_now(proc->world->sim) + 10 * TQI_SIM_US);
}

static void on_wake(void *ctx)
{
    proc_t *proc = ctx;
    uint64_t next_ns;

    if (!proc->role)
        return;
    next_ns = proc->role->step(proc->role, proc_now(proc));
    if (next_ns <= proc_now(proc))
        poke(proc);
    else if (next_ns != TQI_NEVER)
        wake_at(proc, tqi_sim_host_when(proc->host, next_ns));
}

static void on_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    proc_t *proc = ctx;

    proc->role->on_message(proc->role, peer, data, len, proc_now(proc));
    poke(proc);
}

static void on_peer_down(void *ctx, tqi_peer_t peer)
{
    proc_t *proc = ctx;

    proc->role->on_peer_down(proc->role, peer, proc_now(proc));
    poke(proc);
}

static void on_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    proc_t *proc = ctx;

    proc->role->on_payload(proc->role, key, status, text, proc_now(proc));
    poke(proc);
}

static void on_death(void *ctx, uint64_t session)
{
    proc_t *proc = ctx;

    tqi_controller_session_died(proc->controller, session, proc_now(proc));
    poke(proc);
}

/* ---- a client's host --------------------------------------------------------------------------- */

struct tq_buffer {
    proc_t *proc;
    size_t size; /* of the whole block */
    void *block;
    void *data;
};

static tq_buffer_t *buffer_take(void *ctx, size_t bytes, void **data)
{
    proc_t *proc = ctx;
    size_t size = bytes + 64;
    tq_buffer_t *buffer = tqi_env_alloc(&proc->memory.env, sizeof *buffer);
    void *block = tqi_env_alloc(&proc->memory.env, size);

    if (!buffer || !block) {
        tqi_env_free(&proc->memory.env, buffer, sizeof *buffer);
        tqi_env_free(&proc->memory.env, block, size);
        return NULL;
    }
    *buffer = (tq_buffer_t){proc, size, block, (void *)(((uintptr_t)block + 63) & ~(uintptr_t)63)};
    *data = buffer->data;
    proc->buffers_cnt++;
    return buffer;
}

static void buffer_give(tq_buffer_t *buffer)
{
    proc_t *proc = buffer->proc;

    proc->buffers_cnt--;
    tqi_env_free(&proc->memory.env, buffer->block, buffer->size);
    tqi_env_free(&proc->memory.env, buffer, sizeof *buffer);
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

static void on_done(void *ctx, tqi_op_t *op)
{
    bool *is_done = tqi_op_user(op);

    (void)ctx;
    if (is_done)
        *is_done = true;
}

/* ---- birth and death --------------------------------------------------------------------------- */

static tq_status_t new_role(proc_t *proc, tqi_err_t *err)
{
    world_t *w = proc->world;
    const tqi_env_t *env = &proc->memory.env;
    tqi_ctrl_t *ctrl = tqi_sim_host_ctrl(proc->host);
    tqi_process_t self = tqi_sim_host_process(proc->host);
    const char *address = tqi_sim_host_address(proc->host);
    const char *store = tqi_sim_host_address(controller_of(w)->host);
    tq_status_t rc;

    if (proc == controller_of(w)) {
        tqi_controller_conf_t conf = {.incarnation = 1000 + proc->lives,
                                      .seed = 5,
                                      .sampler = w->sampler,
                                      .sampler_group = 2,
                                      .prealloc_rows = 2,
                                      .watch = tqi_sim_host_watch(proc->host, on_death, proc),
                                      .user_conf = "torture",
                                      .user_conf_len = 7};
        rc = tqi_controller_new(env, &conf, ctrl, proc_now(proc), &proc->controller, err);
        proc->role = rc == TQ_OK ? tqi_controller_role(proc->controller) : NULL;
    } else if (proc < client_of(w, 0)) {
        tqi_unit_conf_t conf = {.unit_incarnation =
                                    (uint64_t)(proc - w->procs) * 1000 + proc->lives,
                                .controller = store,
                                .addresses = &address,
                                .addresses_cnt = 1,
                                .host = self.boot_id,
                                .name = proc->name,
                                .capacity_bytes = 1u << 20,
                                .segment_bytes = 256u << 10};
        rc = tqi_unit_new(env, &conf, ctrl, tqi_sim_host_payload_unit(proc->host),
                          tqi_sim_host_arena(proc->host), proc_now(proc), &proc->unit, err);
        proc->role = rc == TQ_OK ? tqi_unit_role(proc->unit) : NULL;
    } else {
        tqi_client_conf_t conf = {.address = store,
                                  .name = proc->name,
                                  .boot_id = self.boot_id,
                                  .pid_ns = self.pid_ns,
                                  .pid = self.pid,
                                  .start_time = self.start_time,
                                  .call_timeout_ms = 20000,
                                  .space_timeout_ms = 1000,
                                  .host = {.ctx = proc,
                                           .on_done = on_done,
                                           .buffer_take = buffer_take,
                                           .buffer_give = buffer_give}};
        rc = tqi_client_new(env, &conf, ctrl, tqi_sim_host_payload_client(proc->host),
                            proc_now(proc), &proc->client, err);
        proc->role = rc == TQ_OK ? tqi_client_role(proc->client) : NULL;
    }
    return rc;
}

static bool may_fail_with(tq_status_t status)
{
    return status == TQ_E_NO_MEMORY || status == TQ_E_SYSTEM;
}

static void birth(proc_t *proc)
{
    world_t *w = proc->world;
    bool is_client = proc >= client_of(w, 0), is_controller = proc == controller_of(w);
    tqi_err_t err = {0};
    tq_status_t rc;

    w->step = "birth";
    proc->lives++;
    tqi_sim_host_boot(proc->host, &proc->sink, !is_client,
                      is_controller || proc == client_of(w, 0) ? 0 : 1);
    rc = new_role(proc, &err);
    if (rc != TQ_OK) {
        if (!may_fail_with(rc) || !err.text[0] || proc->memory.bytes != 0)
            fail(w, "%s: %s: %s, %" PRIu64 " bytes left", proc->name, tq_status_name(rc), err.text,
                 proc->memory.bytes);
        w->failed_steps++;
        rc = new_role(proc, &err);
    }
    if (rc != TQ_OK)
        fail(w, "%s: %s: %s", proc->name, tq_status_name(rc), err.text);
    poke(proc);
}

static void death(proc_t *proc)
{
    world_t *w = proc->world;
    uint32_t left;

    if (!proc->role)
        return;
    w->step = "death";
    tqi_sim_cancel(w->sim, &proc->wake);
    tqi_sim_host_kill(proc->host, false);
    if (proc == controller_of(w))
        tqi_controller_free(proc->controller);
    else if (proc < client_of(w, 0))
        tqi_unit_free(proc->unit);
    else
        tqi_client_free(proc->client);
    proc->role = NULL;
    left = tqi_sim_host_reap(proc->host);
    if (left > 0 || proc->memory.bytes != 0 || proc->buffers_cnt != 0)
        fail(w, "%s leaves %u segments, %" PRIu64 " bytes in %" PRIu64 " blocks, %u buffers",
             proc->name, left, proc->memory.bytes, proc->memory.blocks, proc->buffers_cnt);
}

/* Everybody agrees with themselves. The walk itself must not fail. */
static void check(world_t *w)
{
    for (uint32_t i = 0; i < PROCS; i++) {
        proc_t *proc = &w->procs[i];
        uint64_t fail_at = proc->memory.fail_at, calls = proc->memory.calls;
        const char *fault = tqi_sim_host_arena_fault(proc->host);
        tqi_err_t err = {0};
        bool is_ok = !fault;

        proc->memory.fail_at = 0;
        if (proc->role && proc->controller)
            is_ok = is_ok && tqi_controller_check(proc->controller, &err);
        else if (proc->role && proc->unit)
            is_ok = is_ok && tqi_unit_check(proc->unit, &err);
        else if (proc->role)
            is_ok = is_ok && tqi_client_check(proc->client, &err);
        proc->memory.fail_at = fail_at;
        proc->memory.calls = calls;
        if (!is_ok)
            fail(w, "%s: %s", proc->name, fault ? fault : err.text);
    }
}

static void pass(world_t *w, uint64_t ns)
{
    uint64_t until_ns = tqi_sim_now(w->sim) + ns;

    while (tqi_sim_step(w->sim, until_ns))
        continue;
}

/* ---- ops --------------------------------------------------------------------------------------- */

/* Makes an op. */
typedef tq_status_t (*make_t)(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err);

static tq_status_t wait_for(world_t *w, tqi_op_t *op, const bool *is_done)
{
    uint64_t until_ns = tqi_sim_now(w->sim) + STEP_NS;

    while (!*is_done)
        if (!tqi_sim_step(w->sim, until_ns))
            fail(w, "it does not end");
    return tqi_op_status(op);
}

/* Tries an op once. On OK it is the caller's, in *out. */
static tq_status_t attempt(world_t *w, uint32_t client, make_t make, tqi_op_t **out)
{
    proc_t *proc = client_of(w, client);
    tqi_op_t *op = NULL;
    tqi_err_t err = {0};
    bool is_done = false;
    tq_status_t rc = make(&proc->memory.env, &op, &err);

    *out = NULL;
    if (rc != TQ_OK) {
        if (!err.text[0])
            fail(w, "no sentence for %s", tq_status_name(rc));
        return rc;
    }
    tqi_op_set_user(op, &is_done);
    tqi_client_submit(proc->client, op, proc_now(proc));
    poke(proc);
    rc = wait_for(w, op, &is_done);
    tqi_op_set_user(op, NULL);
    if (w->is_verbose)
        printf("%9.4f      %s %s: %s %s\n", (double)tqi_sim_now(w->sim) / 1e9, proc->name, w->step,
               tq_status_name(rc), tqi_op_error(op));
    if (rc != TQ_OK) {
        if (!tqi_op_error(op)[0])
            fail(w, "no sentence for %s", tq_status_name(rc));
        if (w->is_verbose || !may_fail_with(rc))
            fprintf(stderr, "%s: %s: %s\n", w->step, tq_status_name(rc), tqi_op_error(op));
        tqi_op_free(op);
        return rc;
    }
    *out = op;
    return TQ_OK;
}

/* The step: it ends well, or for want of what was refused, and then well. */
static tqi_op_t *run(world_t *w, const char *step, uint32_t client, make_t make)
{
    tqi_op_t *op;
    tq_status_t rc;

    w->step = step;
    rc = attempt(w, client, make, &op);
    check(w);
    if (rc != TQ_OK) {
        w->failed_steps++;
        if (w->plan.at == 0 || !may_fail_with(rc))
            fail(w, "it ends with %s", tq_status_name(rc));
        rc = attempt(w, client, make, &op);
        check(w);
        if (rc != TQ_OK)
            fail(w, "the second time it ends with %s", tq_status_name(rc));
    }
    return op;
}

static void taken(world_t *w, uint32_t client, tqi_op_t *op)
{
    proc_t *proc = client_of(w, client);

    tqi_client_taken(proc->client, op, proc_now(proc));
    poke(proc);
}

static void discard(world_t *w, uint32_t client, tqi_op_t *op)
{
    proc_t *proc = client_of(w, client);

    tqi_client_discard(proc->client, op, proc_now(proc));
    poke(proc);
}

/* ---- what is asked ----------------------------------------------------------------------------- */

#define SMALL 40u         /* bytes of a cell that travels inside a message */
#define LARGE (20u << 10) /* of one whose put does not */
#define ROWS 4u

static const uint32_t key_offsets[] = {0, 2, 4, 6, 8, 10};
static const tq_strs_t keys = {ROWS, key_offsets, "k0k1k2k3"};
static const tq_strs_t one_key = {1, key_offsets, "k1"};
static const tq_strs_t new_keys = {2, key_offsets, "n0n1"};
static const uint32_t name_offsets[] = {0, 1, 2, 3};
static const tq_strs_t field_x = {1, name_offsets, "x"};
static const tq_strs_t fields_xy = {2, name_offsets, "xy"};
/* {"g": 1}, four times */
static const uint32_t tag_offsets[] = {0, 4, 8, 12, 16};
static const tq_strs_t tags = {ROWS, tag_offsets,
                               "\x81\xa1g\x01\x81\xa1g\x01\x81\xa1g\x02\x81\xa1g\x02"};

static uint8_t small_bytes[ROWS * SMALL], large_bytes[ROWS * LARGE];
static uint8_t version_small, version_large;
static tq_row_t rows[16];
static uint32_t rows_cnt;

static void fill(uint8_t *bytes, size_t len, uint8_t version)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(version * 16 + i % 13);
}

static tq_desc_t desc_of(uint32_t len)
{
    return (tq_desc_t){
        .encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_U8, .ndim = 1, .len = len, .shape = {len}};
}

static tq_column_t small_column(void)
{
    fill(small_bytes, sizeof small_bytes, version_small);
    return (tq_column_t){.field = "x",
                         .layout = TQ_LAYOUT_UNIFORM,
                         .desc = desc_of(SMALL),
                         .data = small_bytes,
                         .row_stride = SMALL};
}

static tq_column_t large_column(void)
{
    fill(large_bytes, sizeof large_bytes, version_large);
    return (tq_column_t){.field = "y",
                         .layout = TQ_LAYOUT_UNIFORM,
                         .desc = desc_of(LARGE),
                         .data = large_bytes,
                         .row_stride = LARGE};
}

static tq_status_t make_put_small(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    version_small++;
    tq_column_t column = small_column();
    tq_put_args_t args = {.partition = "p",
                          .rows_cnt = ROWS,
                          .keys = &keys,
                          .columns_cnt = 1,
                          .columns = &column,
                          .tags = &tags,
                          .flags = TQ_PUT_WANT_META};
    return tqi_op_put(env, &args, op, err);
}

static tq_status_t make_put_both(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    version_small++;
    version_large++;
    tq_column_t columns[] = {small_column(), large_column()};
    tq_put_args_t args = {
        .partition = "p", .rows_cnt = ROWS, .keys = &keys, .columns_cnt = 2, .columns = columns};
    return tqi_op_put(env, &args, op, err);
}

/* A column into rows that exist, of each its own length. */
static tq_status_t make_put_column(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_cell_t cells[16];

    fill(large_bytes, sizeof large_bytes, version_large);
    for (uint32_t r = 0; r < rows_cnt; r++)
        cells[r] = (tq_cell_t){.data = large_bytes, .desc = desc_of(100 * r)};
    tq_column_t column = {.field = "z", .layout = TQ_LAYOUT_EACH, .cells = cells};
    tq_put_args_t args = {
        .partition = "p", .rows_cnt = rows_cnt, .rows = rows, .columns_cnt = 1, .columns = &column};
    return tqi_op_put(env, &args, op, err);
}

static tq_status_t make_put_fresh(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_column_t column = small_column();
    tq_put_args_t args = {
        .partition = "q", .rows_cnt = 2, .columns_cnt = 1, .columns = &column, .tags = NULL};
    return tqi_op_put(env, &args, op, err);
}

static tq_status_t make_get(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_get_args_t args = {.partition = "p", .keys = &keys, .fields = &fields_xy};
    return tqi_op_get(env, &args, op, err);
}

static tq_status_t make_get_all(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_get_args_t args = {.partition = "p", .keys = &one_key};
    return tqi_op_get(env, &args, op, err);
}

static tq_status_t make_get_rows(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_get_args_t args = {.partition = "p", .rows = rows, .rows_cnt = rows_cnt, .fields = &field_x};
    return tqi_op_get(env, &args, op, err);
}

static tq_status_t make_fetch(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_fetch_args_t args = {
        .partition = "p", .fields = &fields_xy, .rows_cnt = 2, .task = "t", .mode = TQ_FETCH};
    return tqi_op_fetch(env, &args, op, err);
}

static tq_status_t make_fetch_all(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_fetch_args_t args = {
        .partition = "p", .fields = &field_x, .task = "t", .mode = TQ_FETCH_ALL};
    return tqi_op_fetch(env, &args, op, err);
}

static tq_status_t make_fetch_later(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_fetch_args_t args = {.partition = "q",
                            .fields = &field_x,
                            .rows_cnt = 2,
                            .task = "t",
                            .mode = TQ_FETCH,
                            .timeout_ms = 10000};
    return tqi_op_fetch(env, &args, op, err);
}

static tq_status_t make_insert(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_insert_args_t args = {.partition = "p", .rows_cnt = 3, .fields = &fields_xy};
    return tqi_op_insert(env, &args, op, err);
}

static tq_status_t make_create(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_resolve_args_t args = {.partition = "p", .keys = &new_keys, .is_create = true};
    return tqi_op_resolve(env, &args, op, err);
}

static tq_status_t make_keys_of_rows(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_resolve_args_t args = {.partition = "p", .rows = rows, .rows_cnt = rows_cnt};
    return tqi_op_resolve(env, &args, op, err);
}

static tq_status_t make_tags(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_tags_args_t args = {.partition = "p", .rows_cnt = ROWS, .rows = rows, .tags = &tags};
    return tqi_op_tags(env, &args, op, err);
}

static tq_status_t make_consumption(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_status_args_t args = {.partition = "p", .kind = TQ_STATUS_CONSUMPTION, .task = "t"};
    return tqi_op_status_of(env, &args, op, err);
}

static tq_status_t make_production(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_status_args_t args = {.partition = "p", .kind = TQ_STATUS_PRODUCTION, .fields = &fields_xy};
    return tqi_op_status_of(env, &args, op, err);
}

static tq_status_t make_list(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_list_args_t args = {.partition = "p", .want_fields = true};
    return tqi_op_list(env, &args, op, err);
}

static tq_status_t make_stuck(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_list_args_t args = {.partition = "p", .is_stuck_only = true};
    return tqi_op_list(env, &args, op, err);
}

static tq_status_t make_partitions(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    return tqi_op_list(env, &(tq_list_args_t){0}, op, err);
}

static tq_status_t make_stat(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    return tqi_op_stat(env, 0, op, err);
}

static tq_status_t make_reset(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_reset_args_t args = {.partition = "p", .task = "t"};
    return tqi_op_reset(env, &args, op, err);
}

static tq_status_t make_clear_key(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_clear_args_t args = {.partition = "p", .keys = &one_key};
    return tqi_op_clear(env, &args, op, err);
}

static tq_status_t make_clear_p(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_clear_args_t args = {.partition = "p", .is_all = true};
    return tqi_op_clear(env, &args, op, err);
}

static tq_status_t make_clear_q(const tqi_env_t *env, tqi_op_t **op, tqi_err_t *err)
{
    tq_clear_args_t args = {.partition = "q", .is_all = true};
    return tqi_op_clear(env, &args, op, err);
}

/* ---- how it is judged -------------------------------------------------------------------------- */

static void keep_rows(const tqi_op_t *op, uint32_t cnt)
{
    const tq_result_t *result = tqi_op_result(op);

    tqi_assert(result->rows_cnt == cnt && cnt <= tqi_array_len(rows));
    memcpy(rows, result->rows, cnt * sizeof *rows);
    rows_cnt = cnt;
}

static void check_column(world_t *w, const tq_column_out_t *column, uint32_t cnt, uint32_t len,
                         uint8_t version)
{
    const uint8_t *bytes = tq_buffer_data(column->buffer);

    if (column->layout != TQ_LAYOUT_UNIFORM || column->desc.len != len)
        fail(w, "column %s has another shape", column->field);
    for (uint32_t r = 0; r < cnt; r++)
        for (uint32_t i = 0; i < len; i++)
            if (bytes[column->offsets[r] + i] !=
                (uint8_t)(version * 16 + ((size_t)r * len + i) % 13))
                fail(w, "column %s row %u byte %u is not what was put last", column->field, r, i);
}

static void check_both(world_t *w, const tqi_op_t *op)
{
    const tq_result_t *result = tqi_op_result(op);

    if (result->columns_cnt != 2 || result->rows_cnt != ROWS)
        fail(w, "%u columns of %u rows", result->columns_cnt, result->rows_cnt);
    check_column(w, &result->columns[0], ROWS, SMALL, version_small);
    check_column(w, &result->columns[1], ROWS, LARGE, version_large);
}

static void step(world_t *w, const char *name, uint32_t client, make_t make)
{
    tqi_op_free(run(w, name, client, make));
}

/* Whoever fetches gets rows that nobody has; after a refusal the same ones as well. */
static void fetch_and_take(world_t *w, uint32_t client)
{
    tqi_op_t *op = run(w, "fetch", client, make_fetch);

    keep_rows(op, 2);
    taken(w, client, op);
    tqi_op_free(op);
    op = run(w, "get of what was fetched", client, make_get_rows);
    tqi_op_free(op);
}

/* A fetch that waits until another client has put what it asks for. */
static void fetch_that_waits(world_t *w)
{
    proc_t *proc = client_of(w, 0);
    tq_status_t rc = TQ_E_NO_MEMORY;

    w->step = "fetch that waits";
    for (unsigned tries = 0; rc != TQ_OK; tries++) {
        tqi_op_t *op;
        tqi_err_t err;
        bool is_done = false;

        if (tries == 2)
            fail(w, "the second time it ends with %s", tq_status_name(rc));
        rc = make_fetch_later(&proc->memory.env, &op, &err);
        if (rc == TQ_OK) {
            tqi_op_set_user(op, &is_done);
            tqi_client_submit(proc->client, op, proc_now(proc));
            poke(proc);
            pass(w, TQI_SIM_S);
            step(w, "put that is waited for", 1, make_put_fresh);
            w->step = "fetch that waits";
            rc = wait_for(w, op, &is_done);
            tqi_op_set_user(op, NULL);
            if (rc == TQ_OK)
                discard(w, 0, op);
            tqi_op_free(op);
        }
        if (rc != TQ_OK && (w->plan.at == 0 || !may_fail_with(rc)))
            fail(w, "it ends with %s", tq_status_name(rc));
        w->failed_steps += rc != TQ_OK;
        check(w);
    }
}

/* A fetch that is given up; and one that nobody waits for any more. */
static void fetch_that_is_cancelled(world_t *w, bool is_abandoned)
{
    proc_t *proc = client_of(w, 1);
    tqi_op_t *op;
    tqi_err_t err;
    bool is_done = false;

    w->step = is_abandoned ? "fetch that is abandoned" : "fetch that is cancelled";
    if (make_fetch_later(&proc->memory.env, &op, &err) != TQ_OK)
        return;
    tqi_op_set_user(op, &is_done);
    tqi_client_submit(proc->client, op, proc_now(proc));
    poke(proc);
    pass(w, 100 * TQI_SIM_MS);
    if (!is_done)
        (is_abandoned ? tqi_client_abandon : tqi_client_cancel)(proc->client, op, proc_now(proc));
    poke(proc);
    wait_for(w, op, &is_done);
    tqi_op_set_user(op, NULL);
    if (tqi_op_has_grant(op))
        discard(w, 1, op);
    tqi_op_free(op);
    check(w);
}

/* A transfer that is dropped in the middle. */
static void put_that_is_cancelled(world_t *w, uint32_t client)
{
    proc_t *proc = client_of(w, client);
    tqi_op_t *op;
    tqi_err_t err;
    bool is_done = false;

    w->step = "put that is cancelled";
    if (make_put_both(&proc->memory.env, &op, &err) == TQ_OK) {
        tqi_op_set_user(op, &is_done);
        tqi_client_submit(proc->client, op, proc_now(proc));
        poke(proc);
        pass(w, 3 * TQI_SIM_MS);
        if (!is_done)
            tqi_client_cancel(proc->client, op, proc_now(proc));
        poke(proc);
        wait_for(w, op, &is_done);
        tqi_op_set_user(op, NULL);
        tqi_op_free(op);
    }
    check(w);
}

/* ---- a run ------------------------------------------------------------------------------------- */

static void everything(world_t *w)
{
    tqi_op_t *op;

    for (uint32_t c = 0; c < CLIENTS; c++) {
        step(w, "put of what fits into a message", c, make_put_small);
        step(w, "put of what does not", c, make_put_both);
        op = run(w, "get", c, make_get);
        check_both(w, op);
        tqi_op_free(op);
        put_that_is_cancelled(w, c);
        step(w, "put after a cancelled one", c, make_put_both);
        op = run(w, "get after a cancelled put", 1 - c, make_get);
        check_both(w, op);
        tqi_op_free(op);
        step(w, "get of all fields", c, make_get_all);
        op = run(w, "insert", c, make_insert);
        keep_rows(op, 3);
        tqi_op_free(op);
        step(w, "put of a column", c, make_put_column);
        step(w, "creating keys", c, make_create);
        step(w, "keys of rows", c, make_keys_of_rows);
        step(w, "list", c, make_list);
        step(w, "list of what is stuck", c, make_stuck);
        step(w, "list of partitions", c, make_partitions);
        step(w, "stat", c, make_stat);
        step(w, "fetch of all", c, make_fetch_all);
        fetch_and_take(w, c);
        step(w, "consumption", c, make_consumption);
        step(w, "production", c, make_production);
        op = run(w, "put with tags", c, make_put_small);
        keep_rows(op, ROWS);
        tqi_op_free(op);
        step(w, "tags", c, make_tags);
        step(w, "reset", c, make_reset);
        fetch_that_waits(w);
        fetch_that_is_cancelled(w, c == 0);
        step(w, "clear of a key", c, make_clear_key);
        step(w, "clear of a partition", c, make_clear_p);
        step(w, "clear of the other", 1 - c, make_clear_q);
    }
}

/* A unit that starts again, and a client that dies in the middle: who stays goes on. */
static void losses(world_t *w)
{
    proc_t *proc = client_of(w, 0);
    tqi_op_t *op;
    tqi_err_t err;

    step(w, "put before a loss", 0, make_put_both);
    death(unit_of(w, 0));
    birth(unit_of(w, 0));
    pass(w, 2 * TQI_SIM_S);
    check(w);
    step(w, "clear after a unit's loss", 1, make_clear_p);
    step(w, "put after a unit's loss", 0, make_put_both);
    op = run(w, "get after a unit's loss", 1, make_get);
    check_both(w, op);
    tqi_op_free(op);

    w->step = "client that dies in the middle of a put";
    if (make_put_both(&proc->memory.env, &op, &err) == TQ_OK) {
        tqi_client_submit(proc->client, op, proc_now(proc));
        poke(proc);
        pass(w, 3 * TQI_SIM_MS);
        tqi_sim_cancel(w->sim, &proc->wake);
        tqi_sim_host_kill(proc->host, false);
        tqi_client_free(proc->client);
        tqi_op_free(op);
        proc->role = NULL;
        tqi_sim_host_reap(proc->host);
        if (proc->memory.bytes != 0)
            fail(w, "%s leaves %" PRIu64 " bytes", proc->name, proc->memory.bytes);
        birth(proc);
    }
    pass(w, 8 * TQI_SIM_S);
    check(w);
    step(w, "put after a client's death", 0, make_put_both);
    op = run(w, "get after a client's death", 1, make_get);
    check_both(w, op);
    tqi_op_free(op);
    step(w, "clear at the end", 0, make_clear_p);
}

/* A figure of a server. */
static uint64_t figure(proc_t *proc, const char *member)
{
    tqi_sim_memory_t scratch;
    tqi_buf_t json;
    char name[64];
    uint64_t value = UINT64_MAX;

    tqi_sim_memory_init(&scratch, "figures", 0);
    tqi_buf_init(&json, &scratch.env);
    tqi_assert(tqi_unit_stat(proc->unit, &json) == TQ_OK && tqi_buf_append(&json, "", 1) == TQ_OK);
    snprintf(name, sizeof name, "\"%s\":", member);
    const char *at = strstr((char *)json.data, name);
    if (at)
        value = strtoull(at + strlen(name), NULL, 10);
    tqi_buf_fini(&json);
    return value;
}

/* All is cleared: nothing is kept. Then everybody goes, politely. */
static void the_end(world_t *w)
{
    w->step = "the end";
    pass(w, 35 * TQI_SIM_S); /* a lease: what nobody had the memory to let go of */
    check(w);
    for (uint32_t i = 0; i < UNITS; i++) {
        proc_t *unit = unit_of(w, i);
        if (figure(unit, "used_bytes") != 0 || figure(unit, "zombie_bytes") != 0)
            fail(w, "%s still uses %" PRIu64 " bytes, %" PRIu64 " of them zombies", unit->name,
                 figure(unit, "used_bytes"), figure(unit, "zombie_bytes"));
    }
    for (uint32_t c = 0; c < CLIENTS; c++) {
        proc_t *client = client_of(w, c);
        uint64_t until_ns = tqi_sim_now(w->sim) + 10 * TQI_SIM_S;

        w->step = "close";
        do {
            tqi_client_close(client->client, proc_now(client));
            poke(client);
        } while (!tqi_client_is_closed(client->client) && tqi_sim_step(w->sim, until_ns));
        if (!tqi_client_is_closed(client->client))
            fail(w, "%s does not close", client->name);
        death(client);
    }
    for (uint32_t i = 0; i < UNITS; i++) {
        tqi_unit_drain(unit_of(w, i)->unit, proc_now(unit_of(w, i)));
        poke(unit_of(w, i));
    }
    pass(w, TQI_SIM_S);
    for (uint32_t i = 0; i < UNITS; i++) {
        if (!tqi_unit_is_idle(unit_of(w, i)->unit))
            fail(w, "%s is not idle", unit_of(w, i)->name);
        death(unit_of(w, i));
    }
    tqi_controller_drain(controller_of(w)->controller, proc_now(controller_of(w)));
    poke(controller_of(w));
    pass(w, TQI_SIM_S);
    if (!tqi_controller_is_idle(controller_of(w)->controller))
        fail(w, "the controller is not idle");
    death(controller_of(w));
}

/* How many calls of each kind each role made; and whether the planned one failed. */
typedef struct outcome {
    uint64_t calls[PROCS][KINDS];
    bool has_failed;
    uint64_t failed_steps;
} outcome_t;

static void run_plan(const plan_t *plan, bool is_verbose, outcome_t *outcome)
{
    static const char *const names[PROCS] = {"controller", "unit1", "unit2", "client1", "client2"};
    world_t world = {.plan = *plan, .is_verbose = is_verbose, .step = "start"}, *w = &world;
    tqi_sim_conf_t conf = {
        .seed = 7,
        .faults = {.latency_min_ns = 20 * TQI_SIM_US, .latency_max_ns = 200 * TQI_SIM_US},
        .chunk_bytes_max = 16u << 10,
        .window_bytes = 32u << 10,
        .trace = on_trace,
        .trace_ctx = w};

    now_running = w;
    alarm(RUN_SECONDS_MAX);
    version_small = version_large = 0;
    w->sampler = plan->at % 2 ? "GRPOGroupNSampler" : "SequentialSampler";
    w->sim = tqi_sim_new(&conf);
    for (uint32_t i = 0; i < PROCS; i++) {
        proc_t *proc = &w->procs[i];
        proc->world = w;
        proc->name = names[i];
        proc->host = tqi_sim_host_new(w->sim, names[i]);
        proc->sink = (tqi_sink_t){proc, on_message, on_peer_down, on_payload};
        tqi_sim_event_init(&proc->wake, on_wake, proc);
        tqi_sim_memory_init(&proc->memory, names[i], 0);
    }
    if (plan->kind == KIND_MEMORY)
        w->procs[plan->proc].memory.fail_at = plan->at;
    else if (plan->kind == KIND_PORTS)
        tqi_sim_host_fail_port(w->procs[plan->proc].host, plan->at);
    else
        tqi_sim_host_fail_arena(w->procs[plan->proc].host, plan->at);
    for (uint32_t i = 0; i < PROCS; i++)
        birth(&w->procs[i]);
    w->step = "settling";
    pass(w, 2 * TQI_SIM_S);
    check(w);
    everything(w);
    losses(w);
    the_end(w);
    memset(outcome, 0, sizeof *outcome);
    outcome->failed_steps = w->failed_steps;
    for (uint32_t i = 0; i < PROCS; i++) {
        outcome->calls[i][KIND_MEMORY] = w->procs[i].memory.calls;
        outcome->calls[i][KIND_PORTS] = tqi_sim_host_port_calls(w->procs[i].host);
        outcome->calls[i][KIND_ARENA] = tqi_sim_host_arena_calls(w->procs[i].host);
    }
    outcome->has_failed = plan->at > 0 && outcome->calls[plan->proc][plan->kind] >= plan->at;
    tqi_sim_free(w->sim);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"every", required_argument, NULL, 'e'}, {"role", required_argument, NULL, 'r'},
        {"kind", required_argument, NULL, 'k'},  {"at", required_argument, NULL, 'a'},
        {"verbose", no_argument, NULL, 'v'},     {0},
    };
    static const char *const roles[PROCS] = {"controller", "unit1", "unit2", "client1", "client2"};
    plan_t plan = {0};
    outcome_t outcome, calm;
    const char *wanted = getenv("TQ_TORTURE_EVERY");
    uint64_t every = 1, cnt = 0, failed_steps = 0;
    bool is_verbose = false;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'e':
            every = tqi_u64_max(strtoull(optarg, NULL, 10), 1);
            break;
        case 'r':
            while (plan.proc < PROCS && strcmp(roles[plan.proc], optarg) != 0)
                plan.proc++;
            break;
        case 'k':
            while (plan.kind < KINDS && strcmp(kind_names[plan.kind], optarg) != 0)
                plan.kind++;
            break;
        case 'a':
            plan.at = strtoull(optarg, NULL, 10);
            break;
        case 'v':
            is_verbose = true;
            break;
        default:
            fprintf(stderr, "usage: torture [--every N] [--role NAME --kind memory|ports|arena "
                            "--at N [--verbose]]\n");
            return 2;
        }
    }
    if (plan.proc == PROCS || plan.kind == KINDS) {
        fprintf(stderr, "torture: no such role, or kind\n");
        return 2;
    }
    if (wanted)
        every = tqi_u64_max(strtoull(wanted, NULL, 10), 1);
    signal(SIGABRT, on_crash);
    signal(SIGSEGV, on_crash);
    signal(SIGALRM, on_crash);
    if (plan.at > 0) {
        run_plan(&plan, is_verbose, &outcome);
        printf("steps that failed first: %" PRIu64 "\n", outcome.failed_steps);
        return outcome.has_failed ? 0 : 2;
    }
    run_plan(&plan, is_verbose, &calm);
    for (plan.proc = 0; plan.proc < PROCS; plan.proc++) {
        for (plan.kind = 0; plan.kind < KINDS; plan.kind++) {
            uint64_t runs = 0;
            for (plan.at = 1; plan.at <= calm.calls[plan.proc][plan.kind]; plan.at++) {
                if ((plan.at + plan.proc) % every != 0)
                    continue;
                run_plan(&plan, is_verbose, &outcome);
                failed_steps += outcome.failed_steps;
                runs++;
            }
            if (calm.calls[plan.proc][plan.kind] > 0)
                printf("%-10s %-6s %6" PRIu64 " of %6" PRIu64 " calls failed\n", roles[plan.proc],
                       kind_names[plan.kind], runs, calm.calls[plan.proc][plan.kind]);
            cnt += runs;
        }
    }
    printf("steps that failed first: %" PRIu64 "\nrefusals %" PRIu64 "\n", failed_steps, cnt);
    return 0;
}
