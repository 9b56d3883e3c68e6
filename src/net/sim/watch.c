/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch port: the machine tells of a death soon after it, and of nobody whom it does not know.
 */
#include "net/sim/internal.h"

#define BOOT_ID "machine"
#define PID_NS 1

typedef struct watched {
    tqi_sim_host_t *host; /* who watches */
    uint64_t id;
    const tqi_sim_host_t *target;
    uint64_t life;
    tqi_sim_event_t event; /* set once it is dead */
} watched_t;

static tqi_sim_host_t *host_of(tqi_watch_t *watch)
{
    return tqi_container_of(watch, tqi_sim_host_t, watch);
}

static void forget(watched_t *w)
{
    tqi_map_u64_take(&w->host->watched, w->id);
    tqi_sim_cancel(w->host->sim, &w->event);
    free(w);
}

static void soon(watched_t *w)
{
    tqi_sim_t *sim = w->host->sim;

    tqi_sim_at(sim, &w->event,
               sim->now_ns + sim_between(sim, 0, sim->conf.faults.latency_max_ns + TQI_SIM_MS));
}

static void told(void *ctx)
{
    watched_t *w = ctx;
    tqi_sim_host_t *host = w->host;
    uint64_t id = w->id;

    if (host->is_paused) {
        soon(w);
        return;
    }
    forget(w);
    host->on_death(host->on_death_ctx, id);
}

static bool watch_add(tqi_watch_t *watch, uint64_t id, const tqi_process_t *process)
{
    tqi_sim_host_t *host = host_of(watch);
    tqi_sim_t *sim = host->sim;

    if (!host->is_up || process->boot_id_len != sizeof BOOT_ID - 1 ||
        memcmp(process->boot_id, BOOT_ID, sizeof BOOT_ID - 1) != 0 || process->pid_ns != PID_NS ||
        process->pid == 0 || process->pid > sim->hosts_cnt || tqi_map_u64_get(&host->watched, id))
        return false;
    const tqi_sim_host_t *target = sim->hosts[process->pid - 1];
    bool is_dead = !target->is_up || target->life != process->start_time;
    /* A process that has died may still be known, until its parent asks. */
    if (process->start_time == 0 || process->start_time > target->life || port_fails(host) ||
        (is_dead && sim_chance(sim, 0.5)))
        return false;
    watched_t *w = sim_alloc(sizeof *w);
    *w = (watched_t){.host = host, .id = id, .target = target, .life = process->start_time};
    tqi_sim_event_init(&w->event, told, w);
    tq_status_t rc = tqi_map_u64_put(&host->watched, id, w, NULL);
    tqi_assert(rc == TQ_OK);
    if (is_dead)
        soon(w);
    return true;
}

static void watch_remove(tqi_watch_t *watch, uint64_t id)
{
    watched_t *w = tqi_map_u64_get(&host_of(watch)->watched, id);

    if (w)
        forget(w);
}

void watch_init(tqi_sim_host_t *host)
{
    host->watch = (tqi_watch_t){watch_add, watch_remove};
}

void watch_kill(tqi_sim_host_t *host)
{
    tqi_map_u64_item_t *item;

    while ((item = tqi_map_u64_first(&host->watched)))
        forget(item->value);
}

void watch_tell(tqi_sim_host_t *host)
{
    tqi_sim_t *sim = host->sim;

    for (uint32_t i = 0; i < sim->hosts_cnt; i++) {
        tqi_map_u64_item_t *item = tqi_map_u64_first(&sim->hosts[i]->watched);
        for (; item; item = tqi_map_u64_next(item)) {
            watched_t *w = item->value;
            if (w->target == host && w->life == host->life && !tqi_sim_is_set(&w->event))
                soon(w);
        }
    }
}

tqi_watch_t *tqi_sim_host_watch(tqi_sim_host_t *host, void (*on_death)(void *ctx, uint64_t id),
                                void *ctx)
{
    host->on_death = on_death;
    host->on_death_ctx = ctx;
    return &host->watch;
}

tqi_process_t tqi_sim_host_process(const tqi_sim_host_t *host)
{
    return (tqi_process_t){.boot_id = BOOT_ID,
                           .boot_id_len = sizeof BOOT_ID - 1,
                           .pid_ns = PID_NS,
                           .pid = (uint64_t)host->id + 1,
                           .start_time = host->life};
}
