/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock, and the places where processes run. Everything random is drawn from one generator in
 * the order in which things happen, so a run is a function of its seed.
 */
#include <stdio.h>

#include "net/sim/internal.h"
#include "sys/env_malloc.h"

void *sim_alloc(size_t size)
{
    void *memory = calloc(1, size);

    tqi_assert(memory);
    return memory;
}

void tqi_sim_mix(tqi_sim_t *sim, uint64_t value)
{
    sim->digest = (sim->digest ^ value) * UINT64_C(0x9E3779B97F4A7C15);
    sim->digest ^= sim->digest >> 29;
}

uint64_t tqi_sim_digest(const tqi_sim_t *sim)
{
    return sim->digest;
}

uint64_t sim_between(tqi_sim_t *sim, uint64_t lo, uint64_t hi)
{
    return hi > lo ? lo + tqi_rng_below(&sim->rng, hi - lo + 1) : lo;
}

bool sim_chance(tqi_sim_t *sim, double probability)
{
    return probability > 0 && tqi_rng_chance(&sim->rng, probability);
}

bool port_fails(tqi_sim_host_t *host)
{
    host->port_calls++;
    return host->port_calls == host->port_fail_at ||
           sim_chance(host->sim, host->sim->conf.faults.ports);
}

void tqi_sim_host_fail_port(tqi_sim_host_t *host, uint64_t at)
{
    host->port_fail_at = at;
}

void tqi_sim_host_fail_arena(tqi_sim_host_t *host, uint64_t at)
{
    host->arena_fail_at = at;
}

uint64_t tqi_sim_host_port_calls(const tqi_sim_host_t *host)
{
    return host->port_calls;
}

uint64_t tqi_sim_host_arena_calls(const tqi_sim_host_t *host)
{
    return host->arena_calls;
}

void sim_trace(tqi_sim_t *sim, const char *what, const tqi_sim_host_t *from,
               const tqi_sim_host_t *to, const void *data, size_t len, bool is_payload)
{
    tqi_sim_mix(sim, sim->now_ns + len);
    if (sim->conf.trace)
        sim->conf.trace(sim->conf.trace_ctx, what, from, to, data, len, is_payload);
}

uint64_t sim_chunk_at(tqi_sim_t *sim)
{
    uint64_t max = sim->conf.faults.chunk_ns_max;

    return sim->now_ns + sim_between(sim, 1, max ? max : TQI_SIM_MS);
}

tqi_sim_t *tqi_sim_new(const tqi_sim_conf_t *conf)
{
    tqi_sim_t *sim = sim_alloc(sizeof *sim);

    sim->conf = *conf;
    if (!sim->conf.queue_bytes_max)
        sim->conf.queue_bytes_max = 16u << 20;
    if (!sim->conf.chunk_bytes_max)
        sim->conf.chunk_bytes_max = 1u << 20;
    if (!sim->conf.window_bytes)
        sim->conf.window_bytes = 8u << 20;
    tqi_rng_init(&sim->rng, conf->seed);
    tqi_heap_init(&sim->events, tqi_env_malloc());
    tqi_list_init(&sim->conns);
    return sim;
}

void tqi_sim_free(tqi_sim_t *sim)
{
    if (!sim)
        return;
    for (uint32_t i = 0; i < sim->hosts_cnt; i++) {
        tqi_sim_host_t *host = sim->hosts[i];
        tqi_assert(!host->is_up && tqi_map_u64_count(&host->segments) == 0);
        tqi_map_u64_fini(&host->peers, NULL, NULL);
        tqi_map_u64_fini(&host->ways, NULL, NULL);
        tqi_map_u64_fini(&host->sessions, NULL, NULL);
        tqi_map_u64_fini(&host->segments, NULL, NULL);
        tqi_map_u64_fini(&host->watched, NULL, NULL);
        free(host);
    }
    /* What is left of connections has no ends any more, only frames for nobody. */
    while (sim->conns.cnt > 0) {
        conn_t *conn = tqi_container_of(tqi_list_first(&sim->conns), conn_t, node);
        tqi_assert(!conn->ends[0].is_open && !conn->ends[1].is_open);
        for (int i = 0; i < 2; i++)
            while (conn->lanes[i].frames.cnt > 0)
                free(tqi_container_of(tqi_list_pop_front(&conn->lanes[i].frames), frame_t, node));
        tqi_list_remove(&sim->conns, &conn->node);
        free(conn);
    }
    tqi_heap_fini(&sim->events);
    free(sim);
}

void tqi_sim_set_faults(tqi_sim_t *sim, const tqi_sim_faults_t *faults)
{
    sim->conf.faults = *faults;
}

/* ---- time -------------------------------------------------------------------------------------- */

void tqi_sim_event_init(tqi_sim_event_t *event, void (*fn)(void *ctx), void *ctx)
{
    *event = (tqi_sim_event_t){.fn = fn, .ctx = ctx};
}

void tqi_sim_at(tqi_sim_t *sim, tqi_sim_event_t *event, uint64_t at_ns)
{
    tq_status_t rc = TQ_OK;

    at_ns = tqi_u64_max(at_ns, sim->now_ns);
    if (tqi_heap_node_is_in(&event->node))
        tqi_heap_move(&sim->events, &event->node, at_ns);
    else
        rc = tqi_heap_insert(&sim->events, &event->node, at_ns);
    tqi_assert(rc == TQ_OK);
}

void tqi_sim_cancel(tqi_sim_t *sim, tqi_sim_event_t *event)
{
    tqi_heap_remove(&sim->events, &event->node);
}

bool tqi_sim_is_set(const tqi_sim_event_t *event)
{
    return tqi_heap_node_is_in(&event->node);
}

uint64_t tqi_sim_now(const tqi_sim_t *sim)
{
    return sim->now_ns;
}

bool tqi_sim_step(tqi_sim_t *sim, uint64_t until_ns)
{
    tqi_heap_node_t *node = tqi_heap_pop_due(&sim->events, until_ns);

    if (!node) {
        sim->now_ns = tqi_u64_max(sim->now_ns, until_ns);
        return false;
    }
    tqi_sim_event_t *event = tqi_container_of(node, tqi_sim_event_t, node);
    sim->now_ns = tqi_u64_max(sim->now_ns, node->deadline_ns);
    event->fn(event->ctx);
    return true;
}

/* ---- hosts ------------------------------------------------------------------------------------- */

tqi_sim_host_t *tqi_sim_host_new(tqi_sim_t *sim, const char *name)
{
    tqi_sim_host_t *host = sim_alloc(sizeof *host);

    tqi_assert(sim->hosts_cnt < TQI_SIM_HOSTS_MAX && strlen(name) < sizeof host->name);
    host->sim = sim;
    host->id = sim->hosts_cnt;
    snprintf(host->name, sizeof host->name, "%s", name);
    snprintf(host->address, sizeof host->address, "sim://%s", name);
    snprintf(host->payload_address, sizeof host->payload_address, "simdata://%s", name);
    tqi_map_u64_init(&host->peers, tqi_env_malloc());
    tqi_map_u64_init(&host->ways, tqi_env_malloc());
    tqi_map_u64_init(&host->sessions, tqi_env_malloc());
    tqi_map_u64_init(&host->segments, tqi_env_malloc());
    tqi_map_u64_init(&host->watched, tqi_env_malloc());
    tqi_list_init(&host->transfers);
    tqi_list_init(&host->copies);
    ctrl_init(host);
    payload_init(host);
    arena_init(host);
    watch_init(host);
    sim->hosts[sim->hosts_cnt++] = host;
    return host;
}

tqi_sim_host_t *sim_find(tqi_sim_t *sim, const char *name)
{
    for (uint32_t i = 0; i < sim->hosts_cnt; i++)
        if (strcmp(sim->hosts[i]->name, name) == 0)
            return sim->hosts[i];
    return NULL;
}

const char *tqi_sim_host_name(const tqi_sim_host_t *host)
{
    return host->name;
}

const char *tqi_sim_host_address(const tqi_sim_host_t *host)
{
    return host->address;
}

void tqi_sim_host_boot(tqi_sim_host_t *host, const tqi_sink_t *sink, bool is_listening,
                       uint32_t process)
{
    tqi_assert(!host->is_up && tqi_map_u64_count(&host->segments) == 0);
    host->sink = *sink;
    host->is_up = true;
    host->is_listening = is_listening;
    host->process = process;
    host->life++;
    host->arena_handle = ++host->sim->arena_last;
    host->fault[0] = '\0';
}

/* Calls fn for each connection that has an end at this host; fn may end any of them. */
static void each_conn(tqi_sim_host_t *host, void (*fn)(conn_t *conn, int at, bool is_silent),
                      bool is_silent)
{
    tqi_list_each(&host->sim->conns, node)
    {
        conn_t *conn = tqi_container_of(node, conn_t, node);
        for (int at = 0; at < 2; at++)
            if (conn->ends[at].host == host && conn->ends[at].is_open) {
                fn(conn, at, is_silent);
                break;
            }
    }
}

void tqi_sim_host_kill(tqi_sim_host_t *host, bool is_silent)
{
    tqi_map_u64_item_t *item;

    tqi_assert(host->is_up);
    host->is_up = false;
    host->is_paused = false;
    each_conn(host, conn_died, is_silent);
    while ((item = tqi_map_u64_first(&host->peers)))
        tqi_map_u64_take(&host->peers, item->key);
    payload_kill(host);
    direct_kill(host);
    watch_kill(host);
    if (!is_silent)
        watch_tell(host);
}

bool tqi_sim_host_is_up(const tqi_sim_host_t *host)
{
    return host->is_up;
}

static void release(tqi_sim_t *sim)
{
    tqi_list_each(&sim->conns, node)
    {
        conn_release(tqi_container_of(node, conn_t, node));
    }
}

void tqi_sim_host_pause(tqi_sim_host_t *host, bool is_paused)
{
    host->is_paused = is_paused && host->is_up;
    if (!host->is_paused)
        release(host->sim);
}

bool tqi_sim_host_is_paused(const tqi_sim_host_t *host)
{
    return host->is_paused;
}

void tqi_sim_host_set_clock(tqi_sim_host_t *host, uint64_t offset_ns, int32_t ppm)
{
    tqi_assert(!host->is_up && ppm > -100000 && ppm < 100000);
    host->offset_ns = offset_ns;
    host->ppm = ppm;
}

/* Milliseconds and the rest apart, so that nothing overflows. */
static uint64_t local_of(const tqi_sim_host_t *host, uint64_t now_ns)
{
    int64_t drift = (int64_t)(now_ns / 1000) * host->ppm / 1000;

    return host->offset_ns + now_ns + (uint64_t)drift;
}

uint64_t tqi_sim_host_now(const tqi_sim_host_t *host)
{
    return local_of(host, host->sim->now_ns);
}

uint64_t tqi_sim_host_when(const tqi_sim_host_t *host, uint64_t local_ns)
{
    uint64_t now_ns = host->sim->now_ns, local_now_ns = local_of(host, now_ns);

    if (local_ns == UINT64_MAX)
        return UINT64_MAX;
    if (local_ns <= local_now_ns)
        return now_ns;
    uint64_t at_ns = now_ns + (local_ns - local_now_ns) / (1000000 + (uint64_t)host->ppm) * 1000000;
    uint64_t short_ns;
    while ((short_ns = local_of(host, at_ns)) < local_ns)
        at_ns += (local_ns - short_ns + 1) / 2 + 1;
    return at_ns;
}

/* ---- the network ------------------------------------------------------------------------------- */

void tqi_sim_block(tqi_sim_t *sim, tqi_sim_host_t *from, tqi_sim_host_t *to, bool is_blocked)
{
    uint64_t bit = UINT64_C(1) << to->id;

    if (is_blocked) {
        sim->blocked[from->id] |= bit;
    } else if (sim->blocked[from->id] & bit) {
        sim->blocked[from->id] &= ~bit;
        release(sim);
    }
}

bool tqi_sim_is_blocked(const tqi_sim_t *sim, const tqi_sim_host_t *from, const tqi_sim_host_t *to)
{
    return sim->blocked[from->id] >> to->id & 1;
}

void tqi_sim_break(tqi_sim_t *sim, tqi_sim_host_t *a, tqi_sim_host_t *b)
{
    conn_t *found = NULL;
    uint64_t seen = 0;

    tqi_list_each(&sim->conns, node)
    {
        conn_t *conn = tqi_container_of(node, conn_t, node);
        bool is_ours = (conn->ends[0].host == a && conn->ends[1].host == b) ||
                       (conn->ends[0].host == b && conn->ends[1].host == a);
        if (conn->is_up && is_ours && conn->ends[0].is_open && conn->ends[1].is_open &&
            tqi_rng_below(&sim->rng, ++seen) == 0)
            found = conn;
    }
    if (found)
        conn_break(found);
}

void tqi_sim_heal(tqi_sim_t *sim)
{
    memset(sim->blocked, 0, sizeof sim->blocked);
    release(sim);
}
