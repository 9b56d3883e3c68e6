/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong. The seed draws a temper (how bad, and what of), then a gremlin strikes every now
 * and then: it kills, stops, partitions, breaks a connection, lets an allocation fail, or a client
 * leaves. What strikes at random seldom meets a moment that lasts a microsecond: so some worlds have an
 * ambush besides, at the n-th frame of one kind, where its sender or its receiver dies, is stopped
 * until its session is over, or is cut off from the other.
 */
#include "world.h"

#include <string.h>

void faults_plan(world_t *w)
{
    tqi_sim_faults_t *faults = &w->faults;

    w->faults_end_ns = world_between(w, 5, 40) * TQI_SIM_S;
    faults->latency_min_ns = world_between(w, 5, 100) * TQI_SIM_US;
    faults->latency_max_ns = faults->latency_min_ns + world_between(w, 0, 5000) * TQI_SIM_US;
    if (world_chance(w, 0.15))
        return; /* a fine day */
    if (world_chance(w, 0.5)) {
        faults->spike = (double)world_between(w, 0, 50) / 1000;
        faults->spike_ns = world_between(w, 1, 4000) * TQI_SIM_MS;
    }
    if (world_chance(w, 0.5))
        faults->loss = (double)world_between(w, 0, 100) / 1000;
    if (world_chance(w, 0.5))
        faults->breaks = (double)world_between(w, 0, 20) / 1000;
    if (world_chance(w, 0.3))
        faults->busy = (double)world_between(w, 0, 50) / 1000;
    faults->silence = world_chance(w, 0.5) ? 0 : (double)world_between(w, 0, 100) / 100;
    if (world_chance(w, 0.2))
        faults->ports = (double)world_between(w, 0, 30) / 1000;
    if (world_chance(w, 0.2))
        faults->arena = (double)world_between(w, 0, 200) / 1000;
    if (world_chance(w, 0.25))
        w->crash_weight[PROC_CONTROLLER] = 1;
    if (world_chance(w, 0.5))
        w->crash_weight[PROC_UNIT] = (double)world_between(w, 1, 4);
    if (world_chance(w, 0.6))
        w->crash_weight[PROC_CLIENT] = (double)world_between(w, 1, 4);
    w->may_partition = world_chance(w, 0.5);
    w->may_pause = world_chance(w, 0.5);
    w->may_break = world_chance(w, 0.5);
    w->may_refuse_memory = world_chance(w, 0.3);
    w->may_leave = world_chance(w, 0.4);
    w->ambushes_left = world_chance(w, 0.5) ? (uint32_t)world_between(w, 1, 6) : 0;
}

/* ---- one process, and those that share its fate ------------------------------------------------ */

static void on_fate(void *ctx)
{
    proc_t *proc = ctx;

    if (proc->is_leaving)
        proc_kill(proc, false);
    if (proc->role)
        proc_resume(proc);
    else
        proc_boot(proc);
}

static uint64_t some_time(world_t *w, uint64_t max_ms)
{
    /* Short more often than long: most things that matter are near each other. */
    uint64_t ms = world_between(w, 1, max_ms);

    return (world_chance(w, 0.6) ? ms / 20 + 1 : ms) * TQI_SIM_MS;
}

static void strike_dead(proc_t *victim)
{
    world_t *w = victim->world;
    bool is_silent = world_chance(w, 0.4);
    uint64_t back_ns = tqi_sim_now(w->sim) + some_time(w, 16000);

    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (proc != victim && (victim->process == 0 || proc->process != victim->process))
            continue;
        proc_kill(proc, is_silent);
        tqi_sim_at(w->sim, &proc->fate, back_ns + world_between(w, 0, 1000) * TQI_SIM_US);
    }
}

static void stop(proc_t *victim, uint64_t back_ns)
{
    world_t *w = victim->world;

    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (proc != victim && (victim->process == 0 || proc->process != victim->process))
            continue;
        proc_pause(proc);
        tqi_sim_at(w->sim, &proc->fate, back_ns);
    }
}

/* A client says good-bye, and soon there is another. Its neighbours in the process live on. */
static void leave(proc_t *client)
{
    world_t *w = client->world;

    if (!client->role || client->is_leaving || tqi_sim_host_is_paused(client->host))
        return;
    world_say(w, "---- %s leaves", client->name);
    client->is_leaving = true;
    tqi_client_close(client->client, proc_now(client));
    proc_poke(client);
    tqi_sim_at(w->sim, &client->fate, tqi_sim_now(w->sim) + some_time(w, 3000));
}

/* ---- the ambush -------------------------------------------------------------------------------- */

static void ambush_plan(world_t *w)
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);

    /* The first is what all errors carry, and has no frames. */
    w->ambush_kind = (uint16_t)infos[world_between(w, 1, cnt - 1)].kind;
    w->ambush_in = (uint32_t)world_between(w, 1, 12);
}

static proc_t *proc_of(world_t *w, const tqi_sim_host_t *host)
{
    uint32_t i = 0;

    while (w->procs[i].host != host)
        i++;
    return &w->procs[i];
}

static void on_ambush(void *ctx)
{
    world_t *w = ctx;
    proc_t *victim = w->ambush_victim, *other = w->ambush_other;
    uint64_t now_ns = tqi_sim_now(w->sim);

    if (w->is_healing || !victim->role)
        return;
    world_say(w, "---- an ambush on %s", victim->name);
    w->totals.faults++;
    switch (world_between(w, 0, 4)) {
    case 0:
        strike_dead(victim);
        break;
    case 1:
        stop(victim, now_ns + world_between(w, 5500, 9000) * TQI_SIM_MS);
        break;
    case 2:
        if (victim->kind == PROC_CLIENT)
            leave(victim);
        break;
    default:
        tqi_sim_block(w->sim, victim->host, other->host, true);
        if (world_chance(w, 0.5))
            tqi_sim_block(w->sim, other->host, victim->host, true);
        tqi_sim_at(w->sim, &w->unblock, now_ns + world_between(w, 1000, 13000) * TQI_SIM_MS);
        break;
    }
    if (--w->ambushes_left > 0)
        ambush_plan(w);
}

void faults_on_frame(world_t *w, const tqi_sim_host_t *from, const tqi_sim_host_t *to,
                     const tqi_envelope_t *env)
{
    if (w->is_healing || env->kind != w->ambush_kind || !to || --w->ambush_in > 0)
        return;
    bool is_sender = world_chance(w, 0.5);
    w->ambush_kind = 0;
    w->ambush_victim = proc_of(w, is_sender ? from : to);
    w->ambush_other = proc_of(w, is_sender ? to : from);
    /* Before it arrives, or when it has just been handled. */
    tqi_sim_at(w->sim, &w->ambush,
               tqi_sim_now(w->sim) + world_between(w, 0, 2 * w->faults.latency_max_ns));
}

/* ---- the gremlin ------------------------------------------------------------------------------- */

static void on_unblock(void *ctx)
{
    world_t *w = ctx;

    world_say(w, "---- the network heals");
    tqi_sim_heal(w->sim);
}

static proc_t *some_proc(world_t *w)
{
    return &w->procs[world_between(w, 0, w->procs_cnt - 1)];
}

static void partition(world_t *w)
{
    proc_t *victim = some_proc(w);
    bool is_from = world_chance(w, 0.7), is_to = !is_from || world_chance(w, 0.5);
    bool is_alone = world_chance(w, 0.5);
    proc_t *other = some_proc(w);

    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (proc == victim || (!is_alone && proc != other))
            continue;
        world_say(w, "---- %s %s%s %s is cut", victim->name, is_to ? "<" : "", is_from ? ">" : "",
                  proc->name);
        if (is_from)
            tqi_sim_block(w->sim, victim->host, proc->host, true);
        if (is_to)
            tqi_sim_block(w->sim, proc->host, victim->host, true);
    }
    tqi_sim_at(w->sim, &w->unblock, tqi_sim_now(w->sim) + some_time(w, 15000));
}

static void strike(world_t *w)
{
    double total = 0, at;
    double weights[8] = {
        w->crash_weight[PROC_CONTROLLER] * 0.5,
        w->crash_weight[PROC_UNIT],
        w->crash_weight[PROC_CLIENT],
        w->may_pause ? 2 : 0,
        w->may_partition ? 2 : 0,
        w->may_break ? 3 : 0,
        w->may_refuse_memory ? 3 : 0,
        w->may_leave ? 2 : 0,
    };
    proc_t *victim;
    int what = 0;

    for (int i = 0; i < 8; i++)
        total += weights[i];
    if (total == 0)
        return;
    at = total * (double)tqi_rng_below(&w->rng, 1u << 20) / (1u << 20);
    while (what < 7 && at >= weights[what])
        at -= weights[what++];
    w->totals.faults++;
    switch (what) {
    case 0:
        strike_dead(w->controller);
        break;
    case 1:
        strike_dead(w->units[world_between(w, 0, w->units_cnt - 1)]);
        break;
    case 2:
        strike_dead(w->clients[world_between(w, 0, w->clients_cnt - 1)]);
        break;
    case 3:
        victim = some_proc(w);
        if (victim->role)
            stop(victim, tqi_sim_now(w->sim) + some_time(w, 14000));
        break;
    case 4:
        partition(w);
        break;
    case 5:
        tqi_sim_break(w->sim, some_proc(w)->host, some_proc(w)->host);
        break;
    case 7:
        leave(w->clients[world_between(w, 0, w->clients_cnt - 1)]);
        break;
    default:
        victim = some_proc(w);
        victim->memory.fail_at = victim->memory.calls + world_between(w, 1, 60);
        world_say(w, "---- an allocation of %s will fail", victim->name);
        break;
    }
}

static void on_gremlin(void *ctx)
{
    world_t *w = ctx;

    strike(w);
    tqi_sim_at(w->sim, &w->gremlin, tqi_sim_now(w->sim) + some_time(w, 6000));
}

void faults_start(world_t *w)
{
    for (uint32_t i = 0; i < w->procs_cnt; i++)
        tqi_sim_event_init(&w->procs[i].fate, on_fate, &w->procs[i]);
    tqi_sim_event_init(&w->gremlin, on_gremlin, w);
    tqi_sim_event_init(&w->unblock, on_unblock, w);
    tqi_sim_event_init(&w->ambush, on_ambush, w);
    tqi_sim_at(w->sim, &w->gremlin, world_between(w, 100, 3000) * TQI_SIM_MS);
    if (w->ambushes_left > 0)
        ambush_plan(w);
}

void faults_heal(world_t *w)
{
    tqi_sim_faults_t none = {.latency_min_ns = 10 * TQI_SIM_US, .latency_max_ns = 200 * TQI_SIM_US};

    world_say(w, "---- everything heals");
    w->is_healing = true;
    w->faults = none;
    tqi_sim_set_faults(w->sim, &none);
    tqi_sim_cancel(w->sim, &w->gremlin);
    tqi_sim_cancel(w->sim, &w->unblock);
    tqi_sim_cancel(w->sim, &w->ambush);
    tqi_sim_heal(w->sim);
    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        tqi_sim_cancel(w->sim, &proc->fate);
        proc->memory.fail_at = 0;
        proc->memory.refusal = 0;
        if (proc->is_leaving)
            proc_kill(proc, false);
        if (proc->role)
            proc_resume(proc);
        else
            proc_boot(proc);
    }
}
