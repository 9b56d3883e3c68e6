/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strikes at a moment: most seeds choose a state of some machine, and what befalls the world a little
 * after that state was entered. So a fault meets states that last a microsecond, which chance alone
 * would seldom find; the list below is of those that it did not.
 *
 * Only where the roles tell their steps (pairs.h): in sim_mutants nothing is ever sprung.
 */
#include <string.h>

#include "base/size.h"
#include "core/clear.h"
#include "core/rowstate.h"
#include "core/transfer.h"
#include "pairs.h"
#include "role/client/machines.h"
#include "role/controller/machines.h"
#include "role/storage/machines.h"
#include "world.h"

static void break_all(world_t *w)
{
    for (uint32_t c = 0; c < w->clients_cnt; c++)
        for (uint32_t u = 0; u < w->units_cnt; u++)
            tqi_sim_break(w->sim, w->clients[c]->host, w->units[u]->host);
}

static void block(world_t *w, bool is_both, uint64_t for_ms)
{
    for (uint32_t c = 0; c < w->clients_cnt; c++)
        for (uint32_t u = 0; u < w->units_cnt; u++) {
            tqi_sim_block(w->sim, w->clients[c]->host, w->units[u]->host, true);
            if (is_both)
                tqi_sim_block(w->sim, w->units[u]->host, w->clients[c]->host, true);
        }
    tqi_sim_at(w->sim, &w->unblock, tqi_sim_now(w->sim) + for_ms * TQI_SIM_MS);
}

/* What clients say is held back until leases are over. */
static void hold(world_t *w)
{
    block(w, false, w->lease_ms + world_between(w, 100, 1500));
}

static void hold_answers_of(world_t *w, uint32_t unit, bool is_held)
{
    for (uint32_t c = 0; c < w->clients_cnt; c++)
        tqi_sim_block(w->sim, w->units[unit]->host, w->clients[c]->host, is_held);
}

/* What units say is. */
static void hold_answers(world_t *w)
{
    for (uint32_t u = 0; u < w->units_cnt; u++)
        hold_answers_of(w, u, true);
    tqi_sim_at(w->sim, &w->unblock, tqi_sim_now(w->sim) + world_between(w, 20, 1500) * TQI_SIM_MS);
}

/* What one unit says is held back, for as long as bytes need to get to another. */
static void hold_one(world_t *w)
{
    w->held_unit = (uint32_t)world_between(w, 0, w->units_cnt - 1);
    hold_answers_of(w, w->held_unit, true);
    tqi_sim_at(w->sim, &w->unblock, tqi_sim_now(w->sim) + 900 * TQI_SIM_MS);
}

/* Bytes have come to a unit, and before their client hears it, it hears what the first was to say. */
static void hold_others(world_t *w)
{
    for (uint32_t u = 0; u < w->units_cnt; u++)
        hold_answers_of(w, u, u != w->held_unit);
    tqi_sim_at(w->sim, &w->unblock, tqi_sim_now(w->sim) + world_between(w, 20, 300) * TQI_SIM_MS);
}

/* Clients and units do not hear each other until ops give up. */
static void cut(world_t *w)
{
    block(w, true, world_between(w, 5000, 8000));
}

/* For a while that only the impatient can't wait. */
static void cut_short(world_t *w)
{
    block(w, true, world_between(w, 900, 1500));
}

static void cut_units_off(world_t *w)
{
    for (uint32_t u = 0; u < w->units_cnt; u++) {
        tqi_sim_block(w->sim, w->units[u]->host, w->controller->host, true);
        tqi_sim_block(w->sim, w->controller->host, w->units[u]->host, true);
    }
    tqi_sim_at(w->sim, &w->unblock, tqi_sim_now(w->sim) + 12 * TQI_SIM_S);
}

/* The controller takes a client for dead. */
static void end_session(world_t *w)
{
    for (uint32_t c = 0; c < w->clients_cnt && w->controller->role; c++) {
        const proc_t *client = w->clients[c];
        uint64_t session = client->role ? tqi_client_session(client->client) : 0;
        if (session != 0)
            tqi_controller_session_died(w->controller->controller, session,
                                        proc_now(w->controller));
    }
    if (w->controller->role)
        proc_poke(w->controller);
}

static void back_soon(proc_t *proc)
{
    world_t *w = proc->world;

    tqi_sim_at(w->sim, &proc->fate, tqi_sim_now(w->sim) + world_between(w, 1, 60) * TQI_SIM_MS);
}

static void kill_controller(world_t *w)
{
    if (!w->controller->role)
        return;
    proc_kill(w->controller, false);
    back_soon(w->controller);
}

/* It says so, and goes. */
static void shut_controller(world_t *w)
{
    proc_t *proc = w->controller;

    if (!proc->role || tqi_sim_host_is_paused(proc->host))
        return;
    tqi_controller_drain(proc->controller, proc_now(proc));
    tqi_controller_say_closing(proc->controller);
    kill_controller(w);
}

static void kill_units(world_t *w)
{
    for (uint32_t u = 0; u < w->units_cnt; u++)
        if (w->units[u]->role && w->units[u]->process == 0) {
            proc_kill(w->units[u], false);
            back_soon(w->units[u]);
        }
}

static void cancel_all(world_t *w)
{
    for (uint32_t c = 0; c < w->clients_cnt; c++)
        work_cancel_all(w->clients[c]);
}

static void close_clients(world_t *w)
{
    for (uint32_t c = 0; c < w->clients_cnt; c++) {
        proc_t *client = w->clients[c];
        if (!client->role || client->is_leaving || tqi_sim_host_is_paused(client->host))
            continue;
        client->is_leaving = true;
        tqi_client_close(client->client, proc_now(client));
        proc_poke(client);
        tqi_sim_at(w->sim, &client->fate, tqi_sim_now(w->sim) + 2500 * TQI_SIM_MS);
    }
}

static void hold_controller(world_t *w)
{
    for (uint32_t c = 0; c < w->clients_cnt; c++)
        tqi_sim_block(w->sim, w->clients[c]->host, w->controller->host, true);
    tqi_sim_at(w->sim, &w->unblock,
               tqi_sim_now(w->sim) + world_between(w, 3100, 4500) * TQI_SIM_MS);
}

static void break_units_off(world_t *w)
{
    for (uint32_t u = 0; u < w->units_cnt; u++)
        tqi_sim_break(w->sim, w->units[u]->host, w->controller->host);
}

static void starve_controller(world_t *w)
{
    tqi_sim_memory_t *memory = &w->controller->memory;

    memory->fail_at = memory->calls + world_between(w, 1, 4);
}

static void spoil_all(world_t *w)
{
    for (uint32_t u = 0; u < w->units_cnt; u++)
        tqi_sim_host_spoil(w->units[u]->host);
}

/* What comes in at a unit fails, and its client does not hear what others say. */
static void spoil_and_hold(world_t *w)
{
    spoil_all(w);
    hold_answers(w);
}

/* What runs can't go on, and there is another store. */
static void cut_and_replace(world_t *w)
{
    block(w, true, 4000);
    kill_controller(w);
}

/* What a trap wants of the world. */
enum {
    DIRECT = 1, /* a client and the units in one process */
    SLOW = 2,   /* bytes move slowly */
    TIGHT = 4,  /* large values, little space */
    SHORT = 8,  /* leases of a second and a half */
    NOW = 16,   /* no time between the step and the strike */
    INSIDE = 32 /* the strike comes within the step: nothing but memory */
};

typedef struct trap {
    const tqi_machine_t *machine;
    const char *state;
    void (*spring)(world_t *w);
    unsigned wants;
    const struct trap *then; /* set when this one was sprung */
} trap_t;

static const trap_t then_kill_units = {&tqi_ctl_unit_machine, "RETURNING", kill_units, 0, NULL};
static const trap_t then_cut_units = {&tqi_ctl_unit_machine, "RETURNING", cut_units_off, 0, NULL};
static const trap_t then_close = {&tqi_client_machine, "OUTSIDE", close_clients, NOW, NULL};
static const trap_t then_starve, then_break_again;
static const trap_t then_starve = {&tqi_unit_wire_machine, "DIALLED", starve_controller, NOW,
                                   &then_break_again};
static const trap_t then_break_again = {&tqi_ctl_unit_machine, "PRESENT", break_units_off, 0,
                                        &then_starve};

static const trap_t hold_one_first;
static const trap_t then_hold_others = {&tqi_put_stream_machine, "ARRIVED", hold_others,
                                        NOW | SLOW | TIGHT, &hold_one_first};
static const trap_t hold_one_first = {&tqi_put_machine, "STORING", hold_one, NOW | SLOW | TIGHT,
                                      &then_hold_others};

static const trap_t traps[] = {
    {&tqi_ctl_unit_machine, "RETURNING", kill_units, 0, NULL},
    {&tqi_ctl_unit_machine, "RETURNING", cut_units_off, 0, NULL},
    {&tqi_ctl_session_machine, "CONNECTED", cut_units_off, 0, &then_kill_units},
    {&tqi_ctl_session_machine, "CONNECTED", cut_units_off, 0, &then_cut_units},
    {&tqi_ctl_unit_machine, "PRESENT", break_units_off, 0, &then_starve},
    {&tqi_ctl_session_machine, "CONNECTED", hold_controller, 0, NULL},
    {&tqi_ctl_session_machine, "CONNECTED", shut_controller, 0, NULL},
    {&tqi_ctl_session_machine, "CONNECTED", end_session, 0, NULL},
    {&tqi_row_machine, "CLEARING", starve_controller, INSIDE, NULL},
    {&tqi_slot_machine, "MOVING", spoil_and_hold, NOW | SLOW | TIGHT, NULL},
    {&tqi_slot_machine, "MOVING", spoil_and_hold, SLOW | TIGHT, NULL},
    {&tqi_slot_machine, "MOVING", hold_answers, NOW | SLOW | TIGHT, NULL},
    {&tqi_put_machine, "YIELDING", hold, NOW | DIRECT | TIGHT | SHORT, NULL},
    {&tqi_put_machine, "STORING", hold_one, NOW | SLOW | TIGHT, &then_hold_others},
    {&tqi_ctl_put_machine, "APPLYING", end_session, 0, NULL},
    {&tqi_client_machine, "OUTSIDE", kill_controller, 0, NULL},
    {&tqi_unit_link_machine, "GREETING", hold, 0, NULL},
    {&tqi_put_stream_machine, "ARRIVED", end_session, SLOW, NULL},
    {&tqi_put_stream_machine, "ARRIVED", cancel_all, SLOW, NULL},
    {&tqi_put_stream_machine, "OPEN", end_session, SLOW, NULL},
    {&tqi_put_stream_machine, "OPEN", spoil_all, NOW | SLOW, NULL},
    {&tqi_put_stream_machine, "OPEN", spoil_all, TIGHT | SLOW, NULL},
    {&tqi_put_stream_machine, "BROKEN", end_session, SLOW, NULL},
    {&tqi_put_stream_machine, "BROKEN", hold, SLOW | SHORT, NULL},
    {&tqi_put_stream_machine, "BROKEN", cancel_all, SLOW, NULL},
    {&tqi_put_stream_machine, "COMMITTED", end_session, SLOW, NULL},
    {&tqi_put_stream_machine, "COMMITTED", cancel_all, SLOW, NULL},
    {&tqi_put_stream_machine, "DROPPING", spoil_all, SLOW | TIGHT, NULL},
    {&tqi_put_direct_machine, "OPEN", hold, DIRECT | SHORT, NULL},
    {&tqi_put_direct_machine, "OPEN", hold, DIRECT | SHORT | SLOW | TIGHT, NULL},
    {&tqi_put_direct_machine, "OPEN", hold, DIRECT | SHORT | SLOW | TIGHT, NULL},
    {&tqi_put_direct_machine, "OPEN", end_session, DIRECT | SLOW, NULL},
    {&tqi_put_direct_machine, "OPEN", cancel_all, DIRECT | SLOW, NULL},
    {&tqi_put_direct_machine, "OPEN", cancel_all, DIRECT | SLOW | TIGHT, NULL},
    {&tqi_put_direct_machine, "HELD", end_session, DIRECT | SLOW | SHORT, NULL},
    {&tqi_put_direct_machine, "HELD", cancel_all, DIRECT | SLOW | SHORT, NULL},
    {&tqi_put_machine, "STORING", cancel_all, DIRECT | TIGHT, NULL},
    {&tqi_put_machine, "STORING", end_session, DIRECT | TIGHT, NULL},
    {&tqi_get_stream_machine, "OPEN", hold, NOW | SHORT, NULL},
    {&tqi_get_stream_machine, "COMMITTED", break_all, SLOW | TIGHT, NULL},
    {&tqi_get_stream_machine, "COMMITTED", end_session, SLOW | TIGHT, NULL},
    {&tqi_get_stream_machine, "COMMITTED", hold, SHORT | SLOW | TIGHT, NULL},
    {&tqi_get_stream_machine, "COMMITTED", cancel_all, SLOW | TIGHT, NULL},
    {&tqi_get_stream_machine, "DROPPING", cancel_all, SLOW | TIGHT, NULL},
    {&tqi_get_direct_machine, "OPEN", hold, DIRECT | SHORT | SLOW | TIGHT, NULL},
    {&tqi_get_direct_machine, "OPEN", end_session, DIRECT | SLOW | TIGHT, NULL},
    {&tqi_get_direct_machine, "OPEN", cancel_all, DIRECT | SLOW | TIGHT, NULL},
    {&tqi_put_machine, "YIELDING", cut, TIGHT | SLOW, NULL},
    {&tqi_put_machine, "YIELDING", cut_and_replace, TIGHT | SLOW, NULL},
    {&tqi_put_machine, "YIELDING", close_clients, TIGHT | SLOW, NULL},
    {&tqi_put_machine, "YIELDING", cancel_all, TIGHT | SLOW, NULL},
    {&tqi_put_machine, "YIELDING", cut_short, TIGHT | SLOW, NULL},
    {&tqi_put_machine, "STORING", cut_and_replace, SLOW, NULL},
    {&tqi_put_machine, "STORING", close_clients, SLOW, NULL},
    {&tqi_put_machine, "PUBLISHING", cancel_all, 0, NULL},
    {&tqi_put_machine, "PUBLISHING", close_clients, 0, NULL},
    {&tqi_get_machine, "DESCRIBING", cut_and_replace, NOW, NULL},
    {&tqi_get_machine, "DESCRIBING", close_clients, 0, NULL},
    {&tqi_get_machine, "READING", cut, SLOW | TIGHT, NULL},
    {&tqi_get_machine, "READING", cut_short, SLOW | TIGHT, NULL},
    {&tqi_get_machine, "READING", break_all, SLOW | TIGHT, NULL},
    {&tqi_get_machine, "READING", cut_and_replace, SLOW | TIGHT, NULL},
    {&tqi_get_machine, "READING", close_clients, SLOW | TIGHT, NULL},
    {&tqi_get_machine, "READING", cancel_all, SLOW | TIGHT, NULL},
    {&tqi_get_machine, "READING", end_session, SLOW | TIGHT, &then_close},
    {&tqi_op_machine, "ENDING", kill_controller, SLOW, NULL},
    {&tqi_clear_machine, "WAITING", cancel_all, 0, NULL},
    {&tqi_clear_machine, "BURYING", end_session, 0, NULL},
};

static void set(world_t *w, const trap_t *trap);

static void on_trap(void *ctx)
{
    world_t *w = ctx;
    const trap_t *trap = w->trap;

    if (w->is_healing)
        return;
    world_say(w, "---- a trap: %s is %s", trap->machine->name, trap->state);
    w->totals.faults++;
    if (trap->then)
        set(w, trap->then);
    trap->spring(w);
}

static void on_enter(void *ctx)
{
    world_t *w = ctx;

    if (w->is_healing || w->traps_left == 0 || tqi_sim_is_set(&w->trapped))
        return;
    w->traps_left--;
    if (w->trap->wants & INSIDE) {
        w->trap->spring(w);
        return;
    }
    tqi_sim_at(w->sim, &w->trapped,
               tqi_sim_now(w->sim) + ((w->trap->wants & NOW) || world_chance(w, 0.5)
                                          ? 0
                                          : world_between(w, 0, 2 * w->faults.latency_max_ns)));
}

static void set(world_t *w, const trap_t *trap)
{
    unsigned state = 0;

    while (strcmp(trap->machine->states[state], trap->state) != 0)
        state++;
    w->trap = trap;
    pairs_watch(trap->machine, state, on_enter, w);
}

void traps_plan(world_t *w)
{
    const trap_t *trap = &traps[w->seed % tqi_array_len(traps)];

    tqi_sim_event_init(&w->trapped, on_trap, w);
    if (!world_chance(w, 0.8) || w->options->strike)
        return;
    w->traps_left = (uint32_t)world_between(w, 2, 6);
    w->is_embedded |= (trap->wants & DIRECT) != 0;
    w->is_slow |= (trap->wants & SLOW) != 0;
    w->is_tight |= (trap->wants & TIGHT) != 0;
    if (trap->wants & SHORT)
        w->lease_ms = 1500;
    set(w, trap);
}

void traps_clear(world_t *w)
{
    pairs_watch(NULL, 0, NULL, NULL);
    tqi_sim_cancel(w->sim, &w->trapped);
}
