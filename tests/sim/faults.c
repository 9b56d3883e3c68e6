/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong. The seed draws a temper (how bad, and what of), then a gremlin strikes every now
 * and then. What strikes at random seldom meets a moment that lasts a microsecond: so some worlds have
 * an ambush besides, at the n-th frame of one kind, where its sender or its receiver dies, is stopped
 * until its session is over, or is cut off from the other. And with sim_options_t.strike there is one
 * strike, at one frame, and all else is fine: over all frames, that is every step of every operation.
 */
#include "world.h"

#include <string.h>

#include "role/controller/internal.h"

const char *strike_name(strike_t strike)
{
    static const char *const names[STRIKES_CNT] = {
        "none",      "controller", "unit",   "client",  "stop",  "sluggish",
        "partition", "break",      "memory", "session", "drain", "leave",
    };

    return names[strike];
}

static void plan_strikes(world_t *w)
{
    double *weights = w->weights;

    if (world_chance(w, 0.25))
        weights[STRIKE_CONTROLLER] = 0.5;
    if (world_chance(w, 0.5))
        weights[STRIKE_UNIT] = (double)world_between(w, 1, 4);
    if (world_chance(w, 0.6))
        weights[STRIKE_CLIENT] = (double)world_between(w, 1, 4);
    if (world_chance(w, 0.5))
        weights[STRIKE_STOP] = 2;
    if (world_chance(w, 0.3))
        weights[STRIKE_SLUGGISH] = 2;
    if (world_chance(w, 0.5))
        weights[STRIKE_PARTITION] = 2;
    if (world_chance(w, 0.5))
        weights[STRIKE_BREAK] = 3;
    if (world_chance(w, 0.3))
        weights[STRIKE_MEMORY] = 3;
    if (world_chance(w, 0.2))
        weights[STRIKE_SESSION] = (double)world_between(w, 1, 3);
    if (world_chance(w, 0.2))
        weights[STRIKE_DRAIN] = (double)world_between(w, 1, 3);
    if (world_chance(w, 0.4))
        weights[STRIKE_LEAVE] = 2;
    w->ambushes_left = world_chance(w, 0.5) ? (uint32_t)world_between(w, 1, 6) : 0;
}

void faults_plan(world_t *w)
{
    tqi_sim_faults_t *faults = &w->faults;

    w->faults_end_ns = world_between(w, 5, 40) * TQI_SIM_S;
    faults->latency_min_ns = world_between(w, 5, 100) * TQI_SIM_US;
    faults->latency_max_ns = faults->latency_min_ns + world_between(w, 0, 5000) * TQI_SIM_US;
    /* Crystals are right within 200 ppm; a virtual machine's clock may be anything. */
    w->ppm_max = world_chance(w, 0.1) ? 20000 : 200;
    if (w->options->strike || world_chance(w, 0.15))
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
    plan_strikes(w);
}

/* ---- one process, and those that share its fate ------------------------------------------------ */

static bool is_fellow(const proc_t *proc, const proc_t *victim)
{
    return proc == victim || (victim->process != 0 && proc->process == victim->process);
}

static uint64_t some_time(world_t *w, uint64_t max_ms)
{
    /* Short more often than long: most things that matter are near each other. */
    uint64_t ms = world_between(w, 1, max_ms);

    return (world_chance(w, 0.6) ? ms / 20 + 1 : ms) * TQI_SIM_MS;
}

static void die(proc_t *victim, bool is_silent)
{
    world_t *w = victim->world;
    uint64_t back_ns = tqi_sim_now(w->sim) + some_time(w, 16000);

    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (!is_fellow(proc, victim))
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
        if (!is_fellow(proc, victim) || proc->drain_until_ns != 0)
            continue;
        proc_pause(proc);
        tqi_sim_at(w->sim, &proc->fate, back_ns);
    }
}

/* It has the CPU for some milliseconds, then others have it. */
static void slow_down(proc_t *victim)
{
    world_t *w = victim->world;
    uint64_t until_ns = tqi_sim_now(w->sim) + some_time(w, 12000) + TQI_SIM_S;

    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (!is_fellow(proc, victim) || proc->drain_until_ns != 0)
            continue;
        proc->sluggish_until_ns = until_ns;
        if (!tqi_sim_is_set(&proc->fate))
            tqi_sim_at(w->sim, &proc->fate, tqi_sim_now(w->sim));
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

static void drain(proc_t *victim)
{
    world_t *w = victim->world;

    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (!is_fellow(proc, victim))
            continue;
        proc_resume(proc); /* a signal is seen by who runs */
        proc_drain(proc);
        tqi_sim_at(w->sim, &proc->fate, tqi_sim_now(w->sim) + 10 * TQI_SIM_MS);
    }
}

static void look_at_drain(proc_t *proc)
{
    world_t *w = proc->world;

    for (uint32_t i = 0; i < w->procs_cnt; i++)
        if (is_fellow(&w->procs[i], proc) && !proc_is_drained(&w->procs[i])) {
            tqi_sim_at(w->sim, &proc->fate, tqi_sim_now(w->sim) + 20 * TQI_SIM_MS);
            return;
        }
    die(proc, false);
}

static void on_fate(void *ctx)
{
    proc_t *proc = ctx;
    world_t *w = proc->world;
    bool is_sluggish = tqi_sim_now(w->sim) < proc->sluggish_until_ns;

    if (!proc->role) {
        proc_boot(proc);
    } else if (proc->drain_until_ns != 0) {
        look_at_drain(proc);
    } else if (proc->is_leaving) {
        proc_kill(proc, false);
        proc_boot(proc);
    } else if (is_sluggish && !tqi_sim_host_is_paused(proc->host)) {
        proc_pause(proc);
        tqi_sim_at(w->sim, &proc->fate,
                   tqi_sim_now(w->sim) + world_between(w, 5, 400) * TQI_SIM_MS);
    } else {
        proc_resume(proc);
        if (is_sluggish)
            tqi_sim_at(w->sim, &proc->fate,
                       tqi_sim_now(w->sim) + world_between(w, 1, 30) * TQI_SIM_MS);
    }
}

/* ---- the network, and the controller's view ---------------------------------------------------- */

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

/* Wrongly, as it seems to the client: it was silent for too long, by the controller's clock, or a
 * watcher took it for another process. */
static void end_session(world_t *w)
{
    proc_t *proc = w->controller;
    uint64_t chosen = 0, seen = 0;

    if (!proc->role || tqi_sim_host_is_paused(proc->host))
        return;
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&proc->controller->sessions); item;
         item = tqi_map_u64_next(item))
        if (world_between(w, 0, seen++) == 0)
            chosen = item->key;
    if (chosen == 0)
        return;
    world_say(w, "---- session %llu is ended", (unsigned long long)chosen);
    tqi_controller_session_died(proc->controller, chosen, proc_now(proc));
    proc_poke(proc);
}

/* ---- the ambush -------------------------------------------------------------------------------- */

static void ambush_plan(world_t *w)
{
    /* Where something is decided, or is known to one side alone. */
    static const uint16_t turns[] = {
        TQI_KIND_Publish,   TQI_KIND_Publish_R,    TQI_KIND_Fetch_R,    TQI_KIND_Insert_R,
        TQI_KIND_Resolve_R, TQI_KIND_PreparePut_R, TQI_KIND_Commit,     TQI_KIND_Commit_R,
        TQI_KIND_Unlink,    TQI_KIND_Confirm,      TQI_KIND_EndSession, TQI_KIND_Register,
        TQI_KIND_Hello,     TQI_KIND_Hello_R,      TQI_KIND_Return,     TQI_KIND_PrepareGet_R,
    };
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);

    /* The first is what all errors carry, and has no frames. */
    w->ambush_kind = (uint16_t)infos[world_between(w, 1, cnt - 1)].kind;
    if (world_chance(w, 0.6))
        w->ambush_kind = turns[world_between(w, 0, tqi_array_len(turns) - 1)];
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
    switch (world_between(w, 0, 6)) {
    case 0:
        die(victim, world_chance(w, 0.4));
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
        if (world_chance(w, 0.6))
            tqi_sim_block(w->sim, other->host, victim->host, true);
        /* Mostly for longer than a session lives in silence. */
        tqi_sim_at(w->sim, &w->unblock,
                   now_ns +
                       world_between(w, world_chance(w, 0.7) ? 5500 : 500, 13000) * TQI_SIM_MS);
        break;
    }
    if (--w->ambushes_left > 0)
        ambush_plan(w);
}

static void ambush_on_frame(world_t *w, const tqi_sim_host_t *from, const tqi_sim_host_t *to,
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

static void do_strike(world_t *w, strike_t what)
{
    proc_t *victim;

    w->totals.faults++;
    w->totals.strikes[what]++;
    switch (what) {
    case STRIKE_CONTROLLER:
        die(w->controller, world_chance(w, 0.4));
        break;
    case STRIKE_UNIT:
        die(w->units[world_between(w, 0, w->units_cnt - 1)], world_chance(w, 0.4));
        break;
    case STRIKE_CLIENT:
        die(w->clients[world_between(w, 0, w->clients_cnt - 1)], world_chance(w, 0.4));
        break;
    case STRIKE_STOP:
        victim = some_proc(w);
        if (victim->role)
            stop(victim, tqi_sim_now(w->sim) + some_time(w, 14000));
        break;
    case STRIKE_SLUGGISH:
        victim = some_proc(w);
        if (victim->role)
            slow_down(victim);
        break;
    case STRIKE_PARTITION:
        partition(w);
        break;
    case STRIKE_BREAK:
        tqi_sim_break(w->sim, some_proc(w)->host, some_proc(w)->host);
        break;
    case STRIKE_MEMORY:
        victim = some_proc(w);
        victim->memory.fail_at = victim->memory.calls + world_between(w, 1, 60);
        world_say(w, "---- an allocation of %s will fail", victim->name);
        break;
    case STRIKE_SESSION:
        end_session(w);
        break;
    case STRIKE_DRAIN:
        victim = some_proc(w);
        if (victim->role)
            drain(victim);
        break;
    case STRIKE_LEAVE:
        leave(w->clients[world_between(w, 0, w->clients_cnt - 1)]);
        break;
    case STRIKE_NONE:
    case STRIKES_CNT:
        break;
    }
}

static void on_gremlin(void *ctx)
{
    world_t *w = ctx;
    double total = 0, at;
    int what = STRIKE_NONE + 1;

    for (int i = 0; i < STRIKES_CNT; i++)
        total += w->weights[i];
    if (total == 0)
        return;
    at = total * (double)tqi_rng_below(&w->rng, 1u << 20) / (1u << 20);
    while (what < STRIKES_CNT - 1 && at >= w->weights[what])
        at -= w->weights[what++];
    do_strike(w, (strike_t)what);
    tqi_sim_at(w->sim, &w->gremlin, tqi_sim_now(w->sim) + some_time(w, 6000));
}

static void on_one(void *ctx)
{
    world_t *w = ctx;

    world_say(w, "---- at frame %llu: %s", (unsigned long long)w->totals.frames,
              strike_name(w->options->strike));
    do_strike(w, w->options->strike);
}

static bool is_client(const world_t *w, const tqi_sim_host_t *host)
{
    for (uint32_t i = 0; i < w->clients_cnt; i++)
        if (w->clients[i]->host == host)
            return true;
    return false;
}

void faults_on_frame(world_t *w, const tqi_sim_host_t *from, const tqi_sim_host_t *to,
                     const tqi_envelope_t *env)
{
    ambush_on_frame(w, from, to, env);
    if (w->is_healing || (!is_client(w, from) && !is_client(w, to)))
        return;
    /* Not within the call that sends it: whoever does is in the middle of something. */
    if (++w->totals.frames == w->options->strike_at)
        tqi_sim_at(w->sim, &w->one, tqi_sim_now(w->sim));
}

void faults_start(world_t *w)
{
    for (uint32_t i = 0; i < w->procs_cnt; i++)
        tqi_sim_event_init(&w->procs[i].fate, on_fate, &w->procs[i]);
    tqi_sim_event_init(&w->gremlin, on_gremlin, w);
    tqi_sim_event_init(&w->unblock, on_unblock, w);
    tqi_sim_event_init(&w->ambush, on_ambush, w);
    tqi_sim_event_init(&w->one, on_one, w);
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
    tqi_sim_cancel(w->sim, &w->one);
    tqi_sim_heal(w->sim);
    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        tqi_sim_cancel(w->sim, &proc->fate);
        proc->memory.fail_at = 0;
        proc->memory.refusal = 0;
        if (proc->is_leaving)
            proc_kill(proc, false);
        if (proc->drain_until_ns != 0) /* told to end, it ends, with those of its process */
            for (uint32_t k = 0; k < w->procs_cnt; k++)
                if (is_fellow(&w->procs[k], proc))
                    proc_kill(&w->procs[k], false);
    }
    for (uint32_t i = 0; i < w->procs_cnt; i++) {
        proc_t *proc = &w->procs[i];
        if (proc->role)
            proc_resume(proc);
        else if (proc->kind != PROC_UNIT || world_chance(w, 0.5))
            proc_boot(proc); /* the others are forgotten first */
    }
}
