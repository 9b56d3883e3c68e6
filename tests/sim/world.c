/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include "role/controller/internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "history.h"
#include "mutants.h"

#define PING_MS 1000
#define DRAIN_NS (10 * TQI_SIM_S) /* of api/host.c */
/* Ten times what the busiest of the first thousand seeds needs. */
#define EVENTS_MAX 500000

/* ---- telling ----------------------------------------------------------------------------------- */

void world_print_replay(uint64_t seed, const sim_options_t *options)
{
    char text[500], strike[80] = "";
    int len;

    if (options->strike)
        snprintf(strike, sizeof strike, " --strike %s --at %" PRIu64, strike_name(options->strike),
                 options->strike_at);
    len = snprintf(text, sizeof text,
                   "seed %" PRIu64 " failed; repeat it with: %s --seed %" PRIu64 "%s --verbose\n",
                   seed, options->program, seed, strike);
    fflush(stdout);
    fwrite(text, 1, (size_t)len, stderr);
    fflush(stderr);
}

void world_say(world_t *w, const char *fmt, ...)
{
    va_list args;
    uint64_t now_ns = tqi_sim_now(w->sim);

    if (!w->options->is_verbose)
        return;
    printf("%4" PRIu64 ".%06" PRIu64 " ", now_ns / TQI_SIM_S, now_ns % TQI_SIM_S / 1000);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

/* What the servers say of themselves, for who reads the trace. */
static void print_figures(world_t *w)
{
    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        tqi_sim_memory_t scratch;
        tqi_buf_t json;
        if (!proc->role || proc->kind == PROC_CLIENT)
            continue;
        tqi_sim_memory_init(&scratch, "figures", 0);
        tqi_buf_init(&json, &scratch.env);
        if (proc->kind == PROC_CONTROLLER)
            tqi_controller_stat(proc->controller, &json);
        else
            tqi_unit_stat(proc->unit, &json);
        printf("%s: %.*s\n", proc->name, (int)json.len, (const char *)json.data);
        tqi_buf_fini(&json);
    }
}

void world_fail(world_t *w, const char *invariant, const char *fmt, ...)
{
    va_list args;
    uint64_t now_ns = tqi_sim_now(w->sim);

    if (w->options->is_verbose)
        print_figures(w);
    fflush(stdout);
    fprintf(stderr, "%s does not hold at %" PRIu64 ".%06" PRIu64 " s, event %" PRIu64 ": ",
            invariant, now_ns / TQI_SIM_S, now_ns % TQI_SIM_S / 1000, w->event_idx);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    world_print_replay(w->seed, w->options);
    exit(1);
}

uint64_t world_between(world_t *w, uint64_t lo, uint64_t hi)
{
    return hi > lo ? lo + tqi_rng_below(&w->rng, hi - lo + 1) : lo;
}

bool world_chance(world_t *w, double probability)
{
    return probability > 0 && tqi_rng_chance(&w->rng, probability);
}

static void on_trace(void *ctx, const char *what, const tqi_sim_host_t *from,
                     const tqi_sim_host_t *to, const void *data, size_t len, bool is_payload)
{
    world_t *w = ctx;
    const char *from_name = tqi_sim_host_name(from), *to_name = to ? tqi_sim_host_name(to) : "?";
    tqi_envelope_t env;
    char text[400] = "";

    if (is_payload || !data) {
        if (w->options->is_verbose && (!data || !is_payload))
            world_say(w, "%-4s %s %s%s", what, from_name, to_name, is_payload ? " (payload)" : "");
        else if (w->options->is_verbose)
            world_say(w, "%-4s %s %s payload %zu", what, from_name, to_name, len);
        return;
    }
    if (tqi_envelope_decode(data, len, &env, NULL) != TQ_OK)
        world_fail(w, "INV-30", "%s sent a malformed frame of %zu bytes", from_name, len);
    if (w->options->is_verbose) {
        tqi_msg_print(&env, text, sizeof text);
        world_say(w, "%-4s %s %s %s", what, from_name, to_name, text);
    }
    if (strcmp(what, "->") == 0)
        faults_on_frame(w, from, to, &env);
    if (strcmp(what, "=>") == 0 && to == w->controller->host)
        grants_on_request(w->grants, &env);
    else if (from == w->controller->host && (strcmp(what, "->") == 0 || strcmp(what, "lost") == 0))
        grants_on_reply(w->grants, &env);
}

/* ---- stepping ---------------------------------------------------------------------------------- */

uint64_t proc_now(const proc_t *proc)
{
    return tqi_sim_host_now(proc->host);
}

static void wake_at(proc_t *proc, uint64_t at_ns)
{
    if (!tqi_sim_is_set(&proc->wake) || proc->wake.node.deadline_ns > at_ns)
        tqi_sim_at(proc->world->sim, &proc->wake, at_ns);
}

void proc_poke(proc_t *proc)
{
    wake_at(proc, tqi_sim_now(proc->world->sim) + world_between(proc->world, 0, 50 * TQI_SIM_US));
}

static void on_wake(void *ctx)
{
    proc_t *proc = ctx;
    world_t *w = proc->world;
    uint64_t now_ns, next_ns;

    if (!proc->role || tqi_sim_host_is_paused(proc->host))
        return;
    now_ns = proc_now(proc);
    next_ns = proc->role->step(proc->role, now_ns);
    if (!proc->role || next_ns == TQI_NEVER)
        return;
    if (next_ns <= now_ns)
        wake_at(proc, tqi_sim_now(w->sim) + world_between(w, 1, w->slack_us * TQI_SIM_US));
    else
        wake_at(proc, tqi_sim_host_when(proc->host, next_ns));
}

static void on_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    proc_t *proc = ctx;

    if (proc->kind == PROC_CLIENT)
        work_before_frame(proc, data, len);
    proc->role->on_message(proc->role, peer, data, len, proc_now(proc));
    if (proc->kind == PROC_CLIENT)
        work_after_frame(proc);
    proc_poke(proc);
}

static void on_peer_down(void *ctx, tqi_peer_t peer)
{
    proc_t *proc = ctx;

    proc->role->on_peer_down(proc->role, peer, proc_now(proc));
    proc_poke(proc);
}

static void on_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    proc_t *proc = ctx;

    world_say(proc->world, "     %s transfer %" PRIu64 "/%" PRIu64 ": %s %s", proc->name, key.owner,
              key.transfer, tq_status_name(status), text);
    proc->role->on_payload(proc->role, key, status, text, proc_now(proc));
    if (!proc->is_dying)
        proc_poke(proc);
}

static void on_death(void *ctx, uint64_t session)
{
    proc_t *proc = ctx;

    if (!proc->role)
        return;
    world_say(proc->world, "     %s hears that the process of session %" PRIx64 " is dead",
              proc->name, session);
    tqi_controller_session_died(proc->controller, session, proc_now(proc));
    proc_poke(proc);
}

uint64_t world_sessions_ended(const world_t *w)
{
    const tqi_controller_t *ctl = w->controller->role ? w->controller->controller : NULL;

    return ctl ? ctl->cnt_sessions_begun - tqi_map_u64_count(&ctl->sessions) : 0;
}

/* ---- life -------------------------------------------------------------------------------------- */

static tq_status_t boot_controller(proc_t *proc, uint64_t now_ns, tqi_err_t *err)
{
    world_t *w = proc->world;
    tqi_controller_conf_t conf = {
        .incarnation = proc->life,
        .seed = tqi_rng_u64(&w->rng),
        .sampler = w->sampler,
        .sampler_group = w->sampler_group,
        .prealloc_rows = w->prealloc_rows,
        .ping_ms = PING_MS,
        .slice_rows = w->slice_rows,
        .page_rows = w->page_rows,
        .user_conf = "simulated",
        .user_conf_len = 9,
        .watch = tqi_sim_host_watch(proc->host, on_death, proc),
    };
    tq_status_t rc = tqi_controller_new(&proc->memory.env, &conf, tqi_sim_host_ctrl(proc->host),
                                        now_ns, &proc->controller, err);

    if (rc == TQ_OK)
        proc->role = tqi_controller_role(proc->controller);
    return rc;
}

static tq_status_t boot_unit(proc_t *proc, uint64_t now_ns, tqi_err_t *err)
{
    const char *address = tqi_sim_host_address(proc->host);
    tqi_unit_conf_t conf = {
        .unit_incarnation = proc->life,
        .controller = tqi_sim_host_address(proc->world->controller->host),
        .addresses = &address,
        .addresses_cnt = 1,
        .host = "machine",
        .name = proc->name,
        .capacity_bytes = proc->capacity,
        .segment_bytes = 512u << 10,
        .lease_ms = proc->world->lease_ms,
    };
    tq_status_t rc = tqi_unit_new(&proc->memory.env, &conf, tqi_sim_host_ctrl(proc->host),
                                  tqi_sim_host_payload_unit(proc->host),
                                  tqi_sim_host_arena(proc->host), now_ns, &proc->unit, err);

    if (rc == TQ_OK)
        proc->role = tqi_unit_role(proc->unit);
    return rc;
}

static tq_status_t boot_client(proc_t *proc, uint64_t now_ns, tqi_err_t *err)
{
    tqi_process_t self = tqi_sim_host_process(proc->host);
    tqi_client_conf_t conf = {
        .address = tqi_sim_host_address(proc->world->controller->host),
        .name = proc->name,
        .boot_id = self.boot_id,
        /* Of another pid namespace: its death is noticed by its silence. */
        .pid_ns = self.pid_ns + (proc->id % 2),
        .pid = self.pid,
        .start_time = self.start_time,
        .call_timeout_ms = 12000,
        .fetch_timeout_ms = 3000,
        .space_timeout_ms = 4000,
        .incarnation_wanted = work_store_wanted(proc),
        .host = work_host(proc),
    };
    tq_status_t rc =
        tqi_client_new(&proc->memory.env, &conf, tqi_sim_host_ctrl(proc->host),
                       tqi_sim_host_payload_client(proc->host), now_ns, &proc->client, err);

    if (rc == TQ_OK)
        proc->role = tqi_client_role(proc->client);
    return rc;
}

void proc_boot(proc_t *proc)
{
    world_t *w = proc->world;
    tqi_err_t err = {0};
    tq_status_t rc;

    proc->life = ++w->life_last * UINT64_C(0x9E3779B97F4A7C15) | 1;
    proc->lives++;
    proc->memory.fail_at = 0;
    proc->drain_until_ns = 0;
    proc->sluggish_until_ns = 0;
    tqi_sim_host_set_clock(proc->host, world_between(w, 0, 1000) * TQI_SIM_S,
                           (int32_t)world_between(w, 0, 2 * (uint32_t)w->ppm_max) - w->ppm_max);
    tqi_sim_host_boot(proc->host, &proc->sink, proc->kind != PROC_CLIENT, proc->process);
    world_say(w, "---- %s is born (life %u)", proc->name, proc->lives);
    if (proc->kind == PROC_CONTROLLER) {
        model_new_store(w->model);
        grants_new_store(w->grants);
    }
    do { /* who finds no memory to begin with is started again */
        if (proc->kind == PROC_CONTROLLER)
            rc = boot_controller(proc, proc_now(proc), &err);
        else if (proc->kind == PROC_UNIT)
            rc = boot_unit(proc, proc_now(proc), &err);
        else
            rc = boot_client(proc, proc_now(proc), &err);
    } while (rc == TQ_E_NO_MEMORY);
    if (rc != TQ_OK)
        world_fail(w, "INV-30", "%s can't start: %s", proc->name, err.text);
    if (proc->kind == PROC_CLIENT)
        work_start(proc);
    proc_poke(proc);
}

void proc_kill(proc_t *proc, bool is_silent)
{
    world_t *w = proc->world;
    uint32_t left;

    if (!proc->role)
        return;
    world_say(w, "---- %s dies%s", proc->name, is_silent ? " silently" : "");
    tqi_sim_cancel(w->sim, &proc->wake);
    proc->is_dying = true;
    if (proc->kind == PROC_CLIENT)
        work_stop(proc);
    tqi_sim_host_kill(proc->host, is_silent);
    if (proc->kind == PROC_CONTROLLER) {
        tqi_controller_free(proc->controller);
        w->memory_losses++;
        history_loss(w);
    } else if (proc->kind == PROC_UNIT) {
        tqi_unit_free(proc->unit);
        w->memory_losses++;
        history_loss(w);
    } else {
        tqi_client_free(proc->client);
        work_killed(proc);
    }
    proc->role = NULL;
    proc->is_dying = false;
    proc->is_leaving = false;
    left = tqi_sim_host_reap(proc->host);
    if (left > 0)
        world_fail(w, "INV-29", "%s left %u segments open", proc->name, left);
    if (proc->memory.bytes != 0)
        world_fail(w, "INV-29", "%s left %" PRIu64 " bytes in %" PRIu64 " blocks", proc->name,
                   proc->memory.bytes, proc->memory.blocks);
    if (proc->buffers_cnt != 0)
        world_fail(w, "INV-29", "%s left %u receive buffers", proc->name, proc->buffers_cnt);
}

void proc_pause(proc_t *proc)
{
    if (!proc->role || tqi_sim_host_is_paused(proc->host))
        return;
    world_say(proc->world, "---- %s is stopped", proc->name);
    proc->paused_ns = tqi_sim_now(proc->world->sim);
    tqi_sim_host_pause(proc->host, true);
}

void proc_resume(proc_t *proc)
{
    uint64_t pause_ns = tqi_sim_now(proc->world->sim) - proc->paused_ns;

    if (!proc->role || !tqi_sim_host_is_paused(proc->host))
        return;
    world_say(proc->world, "---- %s goes on", proc->name);
    tqi_sim_host_pause(proc->host, false);
    /* As the loop does: its queues are read before anything counts as silent. */
    if (proc->kind == PROC_CONTROLLER && pause_ns > TQI_SIM_S)
        tqi_controller_forgive(proc->controller, pause_ns);
    wake_at(proc, tqi_sim_now(proc->world->sim) + 2 * proc->world->faults.latency_max_ns);
}

void proc_drain(proc_t *proc)
{
    if (!proc->role || proc->drain_until_ns != 0)
        return;
    world_say(proc->world, "---- %s is told to end", proc->name);
    proc->drain_until_ns = tqi_sim_now(proc->world->sim) + DRAIN_NS;
    if (proc->kind == PROC_CONTROLLER)
        tqi_controller_drain(proc->controller, proc_now(proc));
    else if (proc->kind == PROC_UNIT)
        tqi_unit_drain(proc->unit, proc_now(proc));
    else
        tqi_client_close(proc->client, proc_now(proc));
    proc->is_leaving = proc->kind == PROC_CLIENT;
    proc_poke(proc);
}

bool proc_is_drained(const proc_t *proc)
{
    if (!proc->role || tqi_sim_now(proc->world->sim) >= proc->drain_until_ns)
        return true;
    if (tqi_sim_host_is_paused(proc->host))
        return false;
    if (proc->kind == PROC_CONTROLLER)
        return tqi_controller_is_idle(proc->controller);
    if (proc->kind == PROC_UNIT)
        return tqi_unit_is_idle(proc->unit);
    return tqi_client_is_closed(proc->client);
}

/* ---- checks ------------------------------------------------------------------------------------ */

static void check_role(proc_t *proc)
{
    static const char *const invariants[] = {"INV-1 to INV-10", "INV-11 to INV-15", "tables"};
    tqi_err_t err = {0};
    bool is_ok = true;

    if (!proc->role || proc->world->options->is_outside_only)
        return;
    if (proc->kind == PROC_CONTROLLER)
        is_ok = tqi_controller_check(proc->controller, &err);
    else if (proc->kind == PROC_UNIT)
        is_ok = tqi_unit_check(proc->unit, &err);
    else
        is_ok = tqi_client_check(proc->client, &err);
    if (!is_ok)
        world_fail(proc->world, invariants[proc->kind], "%s: %s", proc->name, err.text);
}

void check_all(world_t *w)
{
    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        double refusal = proc->memory.refusal;
        uint64_t fail_at = proc->memory.fail_at, calls = proc->memory.calls;
        const char *fault = tqi_sim_host_arena_fault(proc->host);
        if (fault)
            world_fail(w, "INV-26", "%s: %s", proc->name, fault);
        proc->memory.refusal = 0;
        proc->memory.fail_at = 0;
        check_role(proc);
        proc->memory.refusal = refusal;
        proc->memory.fail_at = fail_at;
        proc->memory.calls = calls;
    }
}

/* The value of a member of the role's own figures. */
static uint64_t figure(proc_t *proc, const char *member)
{
    tqi_sim_memory_t scratch;
    tqi_buf_t json;
    uint64_t value = 0;
    char name[64];

    tqi_sim_memory_init(&scratch, "figures", 0);
    tqi_buf_init(&json, &scratch.env);
    if (tqi_unit_stat(proc->unit, &json) == TQ_OK && tqi_buf_append(&json, "", 1) == TQ_OK) {
        snprintf(name, sizeof name, "\"%s\":", member);
        const char *at = strstr((char *)json.data, name);
        if (at)
            value = strtoull(at + strlen(name), NULL, 10);
    }
    tqi_buf_fini(&json);
    return value;
}

void check_cheap(world_t *w)
{
    for (uint32_t i = 0; i < w->units_cnt; i++) {
        proc_t *unit = w->units[i];
        uint64_t used;
        if (!unit->role)
            continue;
        used = figure(unit, "used_bytes");
        if (used > unit->capacity)
            world_fail(w, "INV-25", "%s uses %" PRIu64 " of %" PRIu64 " bytes", unit->name, used,
                       unit->capacity);
    }
}

/* ---- the run ----------------------------------------------------------------------------------- */

static bool run_one(world_t *w, uint64_t until_ns)
{
    if (w->options->steps_max && w->event_idx >= w->options->steps_max) {
        printf("stopped after %" PRIu64 " events\n", w->event_idx);
        exit(0);
    }
    if (!tqi_sim_step(w->sim, until_ns))
        return false;
    if (++w->event_idx == EVENTS_MAX)
        world_fail(w, "INV-28", "%d events and no end", EVENTS_MAX);
    if (w->event_idx % 16 == 0)
        check_cheap(w);
    if (w->event_idx % w->options->check_every == 0)
        check_all(w);
    return true;
}

bool world_until(world_t *w, uint64_t until_ns, bool (*is_done)(world_t *w))
{
    for (;;) {
        if (is_done && is_done(w))
            return true;
        if (!run_one(w, until_ns))
            return false;
    }
}

static proc_t *proc_add(world_t *w, proc_kind_t kind, uint32_t id)
{
    static const char *const kinds[] = {"controller", "unit", "client"};
    proc_t *proc = &w->procs[w->procs_cnt++];

    proc->world = w;
    proc->kind = kind;
    proc->id = id;
    if (kind == PROC_CONTROLLER)
        snprintf(proc->name, sizeof proc->name, "%s", kinds[kind]);
    else
        snprintf(proc->name, sizeof proc->name, "%s%u", kinds[kind], id);
    proc->host = tqi_sim_host_new(w->sim, proc->name);
    proc->sink = (tqi_sink_t){proc, on_message, on_peer_down, on_payload};
    tqi_sim_event_init(&proc->wake, on_wake, proc);
    tqi_sim_memory_init(&proc->memory, proc->name, tqi_rng_u64(&w->rng));
    tqi_list_init(&proc->works);
    return proc;
}

static void world_init(world_t *w)
{
    static const uint32_t chunks[] = {1000, 16u << 10, 1u << 20};
    tqi_sim_conf_t conf = {.seed = w->seed * 2 + 1, .trace = on_trace, .trace_ctx = w};

    tqi_rng_init(&w->rng, w->seed * 2);
    faults_plan(w);
    work_plan(w);
    traps_plan(w);
    conf.chunk_bytes_max = chunks[world_between(w, 0, 2)];
    /* Where bytes move slowly: how long the largest value takes, in chunks of half of that. */
    if (w->is_slow)
        w->faults.chunk_ns_max = world_between(w, 100, world_chance(w, 0.6) ? 1500 : 12000) *
                                 TQI_SIM_MS / (280000 / conf.chunk_bytes_max + 1);
    conf.faults = w->faults;
    conf.window_bytes = (uint32_t)world_between(w, 4, 200) << 10;
    if (world_chance(w, 0.3)) /* a peer that is slow to read is soon full */
        conf.queue_bytes_max = world_between(w, 1, 200) << 10;
    w->sim = tqi_sim_new(&conf);
    w->model = model_new(w);
    w->grants = grants_new(w);

    w->controller = proc_add(w, PROC_CONTROLLER, 0);
    w->units_cnt = (uint32_t)world_between(w, w->is_tight ? 2 : 1, UNITS_MAX);
    for (uint32_t i = 0; i < w->units_cnt; i++) {
        w->units[i] = proc_add(w, PROC_UNIT, i);
        w->units[i]->capacity =
            world_between(w, w->is_tight ? 8 : 4, w->is_tight ? 12 : 40) * (64u << 10);
        w->units[i]->process = w->is_embedded ? 1 : 0;
    }
    w->clients_cnt = (uint32_t)world_between(w, 1, CLIENTS_MAX);
    for (uint32_t i = 0; i < w->clients_cnt; i++) {
        w->clients[i] = proc_add(w, PROC_CLIENT, i);
        w->clients[i]->process = w->is_embedded && i == 0 ? 1 : 0;
        w->clients[i]->actors_cnt = (uint32_t)world_between(w, 1, ACTORS_MAX);
    }
    bool is_grouped = world_chance(w, 0.3);
    snprintf(w->sampler, sizeof w->sampler, "%s",
             is_grouped ? "GRPOGroupNSampler" : "SequentialSampler");
    w->sampler_group = is_grouped ? (uint32_t)world_between(w, 1, 3) : 1;
    w->prealloc_rows = world_chance(w, 0.2) ? (uint32_t)world_between(w, 1, 20) : 0;
    w->ops_left = (uint32_t)world_between(w, 30, 200);
}

static void world_fini(world_t *w)
{
    tqi_sim_cancel(w->sim, &w->gremlin);
    tqi_sim_cancel(w->sim, &w->unblock);
    traps_clear(w);
    tqi_sim_cancel(w->sim, &w->ambush);
    tqi_sim_cancel(w->sim, &w->one);
    for (uint32_t i = w->procs_cnt; i-- > 0;)
        proc_kill(&w->procs[i], false);
    w->totals.events = w->event_idx;
    w->totals.digest = tqi_sim_digest(w->sim) ^ tqi_rng_u64(&w->rng);
    grants_free(w->grants);
    model_free(w->model);
    tqi_sim_free(w->sim);
}

static bool is_over(world_t *w)
{
    return tqi_sim_now(w->sim) >= w->faults_end_ns;
}

void world_run(uint64_t seed, const sim_options_t *options, sim_totals_t *totals)
{
    static world_t world;
    world_t *w = &world;

    memset(w, 0, sizeof *w);
    w->seed = seed;
    w->options = options;
    world_init(w);
    for (uint32_t i = 0; i < w->procs_cnt; i++)
        proc_boot(&w->procs[i]);
    faults_start(w);
    world_until(w, w->faults_end_ns, is_over);
    audit(w);
    world_fini(w);
    *totals = w->totals;
}
