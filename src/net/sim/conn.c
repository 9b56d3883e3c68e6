/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections. A lane carries frames one way, in order, each with its own delay. How a connection
 * ends is where networks differ from what one would like them to be:
 *
 *   closed by one side   LINGER is 0: of what that side had sent, the first few frames still arrive,
 *                        and then the end, if the other side is told of it at all
 *   broken               the same in both directions at once
 *   its process died     the same; silently, if the machine went: then nobody says the end
 *
 * The side that dialled has a monitor and is told when the end arrives. The side that listens has
 * none (libzmq): it is told when the end arrives, when it sends the next time, or never, as the seed
 * has it. Who dialled for payload notices by heartbeats what nobody tells it.
 */
#include <stdio.h>

#include "net/sim/internal.h"

/* A connection that can't be made yet is tried again (SYN) until its owner gives up. */
#define DIAL_AGAIN_NS (300 * TQI_SIM_MS)
/* A payload connection has heartbeats of its own: its client notices within this that it is dead. */
#define HEARTBEAT_NS (8 * TQI_SIM_S)

static void lane_arrives(void *ctx);
static void dial_done(void *ctx);

static void told0(void *ctx);
static void told1(void *ctx);

static void upcall_end(conn_t *conn, int at)
{
    sim_trace(conn->sim, "down", conn->ends[1 - at].host, conn->ends[at].host, NULL, 0,
              conn->kind == CONN_PAYLOAD);
    conn->ends[at].is_open = false;
    conn->in_use++;
    if (conn->kind == CONN_CTRL)
        ctrl_on_end(conn, at);
    else
        payload_on_end(conn, at);
    conn->in_use--;
}

/* Frees it once nobody knows it and nothing is under way. */
static void maybe_free(conn_t *conn)
{
    if (conn->ends[0].is_open || conn->ends[1].is_open || conn->in_use > 0)
        return;
    for (int i = 0; i < 2; i++) {
        lane_t *lane = &conn->lanes[i];
        while (lane->frames.cnt > 0)
            free(tqi_container_of(tqi_list_pop_front(&lane->frames), frame_t, node));
        tqi_sim_cancel(conn->sim, &lane->event);
        tqi_sim_cancel(conn->sim, &conn->told[i]);
    }
    tqi_sim_cancel(conn->sim, &conn->dial);
    tqi_list_remove(&conn->sim->conns, &conn->node);
    free(conn);
}

static void lane_init(lane_t *lane, conn_t *conn, int to)
{
    lane->conn = conn;
    lane->to = to;
    tqi_list_init(&lane->frames);
    tqi_sim_event_init(&lane->event, lane_arrives, lane);
}

conn_t *conn_dial(tqi_sim_host_t *host, const char *name, conn_kind_t kind, void *user)
{
    tqi_sim_t *sim = host->sim;
    const tqi_sim_host_t *to = sim_find(sim, name);
    conn_t *conn;

    if (strlen(name) >= sizeof conn->target)
        return NULL;
    conn = sim_alloc(sizeof *conn);
    conn->sim = sim;
    conn->kind = kind;
    conn->is_refused = (!to || !to->is_up || !to->is_listening) && sim_chance(sim, 0.3);
    snprintf(conn->target, sizeof conn->target, "%s", name);
    conn->ends[0] = (conn_end_t){.host = host, .is_open = true, .user = user};
    lane_init(&conn->lanes[0], conn, 0);
    lane_init(&conn->lanes[1], conn, 1);
    tqi_sim_event_init(&conn->dial, dial_done, conn);
    tqi_sim_event_init(&conn->told[0], told0, conn);
    tqi_sim_event_init(&conn->told[1], told1, conn);
    tqi_list_push_back(&sim->conns, &conn->node);
    tqi_sim_at(sim, &conn->dial,
               sim->now_ns + 2 * sim_between(sim, sim->conf.faults.latency_min_ns,
                                             sim->conf.faults.latency_max_ns));
    return conn;
}

/* ---- lanes ------------------------------------------------------------------------------------- */

static bool lane_is_held(const lane_t *lane)
{
    const conn_t *conn = lane->conn;
    const tqi_sim_host_t *from = conn->ends[1 - lane->to].host, *to = conn->ends[lane->to].host;

    return to->is_paused || tqi_sim_is_blocked(conn->sim, from, to);
}

static void lane_arm(lane_t *lane)
{
    tqi_sim_t *sim = lane->conn->sim;

    if (lane->frames.cnt == 0 || !lane->conn->is_up || lane->is_held)
        return;
    frame_t *first = tqi_container_of(tqi_list_first(&lane->frames), frame_t, node);
    tqi_sim_at(sim, &lane->event, first->due_ns);
}

static void lane_push(lane_t *lane, frame_t *frame)
{
    tqi_sim_t *sim = lane->conn->sim;
    const tqi_sim_faults_t *faults = &sim->conf.faults;
    uint64_t delay_ns = sim_between(sim, faults->latency_min_ns, faults->latency_max_ns);

    if (sim_chance(sim, faults->spike))
        delay_ns += sim_between(sim, 0, faults->spike_ns);
    frame->due_ns = tqi_u64_max(lane->last_due_ns, sim->now_ns + delay_ns);
    lane->last_due_ns = frame->due_ns;
    lane->bytes += frame->len;
    tqi_list_push_back(&lane->frames, &frame->node);
    if (lane->frames.cnt == 1)
        lane_arm(lane);
}

/* No more is sent this way. Some of what is under way still arrives, then perhaps the end. */
static void lane_end(lane_t *lane, bool is_told)
{
    tqi_sim_t *sim = lane->conn->sim;

    if (lane->is_over)
        return;
    lane->is_over = true;
    size_t keep = lane->conn->is_up ? sim_between(sim, 0, lane->frames.cnt) : 0;
    while (lane->frames.cnt > keep) {
        frame_t *last = tqi_container_of(tqi_list_last(&lane->frames), frame_t, node);
        tqi_list_remove(&lane->frames, &last->node);
        lane->bytes -= last->len;
        free(last);
    }
    if (lane->frames.cnt == 0) {
        tqi_sim_cancel(sim, &lane->event);
        lane->is_held = false;
    }
    if (is_told && lane->conn->is_up) {
        frame_t *end = sim_alloc(sizeof *end);
        end->is_end = true;
        lane_push(lane, end);
    }
}

static void lane_arrives(void *ctx)
{
    lane_t *lane = ctx;
    conn_t *conn = lane->conn;
    conn_end_t *end = &conn->ends[lane->to];
    const tqi_sim_host_t *from = conn->ends[1 - lane->to].host;

    if (lane_is_held(lane)) {
        lane->is_held = true;
        return;
    }
    frame_t *frame = tqi_container_of(tqi_list_pop_front(&lane->frames), frame_t, node);
    lane->bytes -= frame->len;
    lane_arm(lane);
    if (!end->is_open) {
        if (!frame->is_end)
            sim_trace(conn->sim, "late", from, end->host, frame->data, frame->len,
                      conn->kind == CONN_PAYLOAD);
    } else if (frame->is_end) {
        upcall_end(conn, lane->to);
    } else {
        sim_trace(conn->sim, "=>", from, end->host, frame->data, frame->len,
                  conn->kind == CONN_PAYLOAD);
        conn->in_use++;
        if (conn->kind == CONN_CTRL)
            ctrl_on_frame(conn, lane->to, frame->data, frame->len);
        else
            payload_on_frame(conn, lane->to, frame->data, frame->len);
        conn->in_use--;
    }
    free(frame);
    maybe_free(conn);
}

void conn_release(conn_t *conn)
{
    tqi_sim_t *sim = conn->sim;

    for (int i = 0; i < 2; i++) {
        lane_t *lane = &conn->lanes[i];
        if (!lane->is_held || lane_is_held(lane))
            continue;
        lane->is_held = false;
        frame_t *first = tqi_container_of(tqi_list_first(&lane->frames), frame_t, node);
        tqi_sim_at(sim, &lane->event,
                   tqi_u64_max(first->due_ns,
                               sim->now_ns + sim_between(sim, 0, sim->conf.faults.latency_max_ns)));
    }
}

/* ---- dialling ---------------------------------------------------------------------------------- */

static void dial_done(void *ctx)
{
    conn_t *conn = ctx;
    tqi_sim_t *sim = conn->sim;
    tqi_sim_host_t *from = conn->ends[0].host, *to = sim_find(sim, conn->target);

    if (to && !conn->is_refused &&
        (tqi_sim_is_blocked(sim, from, to) || tqi_sim_is_blocked(sim, to, from) || to->is_paused)) {
        /* Nobody says no: the handshake is tried again and again. */
        tqi_sim_at(sim, &conn->dial,
                   sim->now_ns + sim_between(sim, DIAL_AGAIN_NS / 3, DIAL_AGAIN_NS));
        return;
    }
    if (from->is_paused) {
        tqi_sim_at(sim, &conn->dial, sim->now_ns + DIAL_AGAIN_NS);
        return;
    }
    if (conn->is_refused || !to || !to->is_up || !to->is_listening) {
        from->why_down = "connection refused";
        conn->ends[1].host = to ? to : from;
        upcall_end(conn, 0);
        from->why_down = "";
        maybe_free(conn);
        return;
    }
    conn->is_up = true;
    conn->ends[1] = (conn_end_t){.host = to, .is_open = true};
    sim_trace(sim, "up", from, to, NULL, 0, conn->kind == CONN_PAYLOAD);
    lane_arm(&conn->lanes[1]);
}

/* ---- sending ----------------------------------------------------------------------------------- */

static void told(conn_t *conn, int at)
{
    if (conn->ends[at].is_open && !conn->ends[at].host->is_paused) {
        upcall_end(conn, at);
        maybe_free(conn);
    } else if (conn->ends[at].is_open) {
        tqi_sim_at(conn->sim, &conn->told[at], conn->sim->now_ns + DIAL_AGAIN_NS);
    }
}

static void told0(void *ctx)
{
    told(ctx, 0);
}

static void told1(void *ctx)
{
    told(ctx, 1);
}

bool conn_send(conn_t *conn, int from, const void *data, size_t len, bool may_lose)
{
    tqi_sim_t *sim = conn->sim;
    lane_t *lane = &conn->lanes[1 - from];
    tqi_sim_host_t *to = conn->is_up ? conn->ends[1 - from].host : sim_find(sim, conn->target);

    if (lane->is_over || (conn->is_up && !conn->ends[1 - from].is_open)) {
        if (!conn->ends[from].is_told_late)
            return true; /* into the void */
        if (!tqi_sim_is_set(&conn->told[from]))
            tqi_sim_at(sim, &conn->told[from], sim->now_ns);
        return false;
    }
    if (may_lose && sim_chance(sim, sim->conf.faults.loss)) {
        sim_trace(sim, "lost", conn->ends[from].host, to, data, len, conn->kind == CONN_PAYLOAD);
        return true;
    }
    frame_t *frame = sim_alloc(sizeof *frame + len);
    frame->len = len;
    memcpy(frame->data, data, len);
    sim_trace(sim, "->", conn->ends[from].host, to, data, len, conn->kind == CONN_PAYLOAD);
    lane_push(lane, frame);
    if (conn->is_up && sim_chance(sim, sim->conf.faults.breaks))
        conn_break(conn);
    return true;
}

/* ---- ends -------------------------------------------------------------------------------------- */

static void told_by_heartbeat(conn_t *conn, int at)
{
    if (conn->kind == CONN_PAYLOAD && at == 0)
        tqi_sim_at(conn->sim, &conn->told[0],
                   conn->sim->now_ns + sim_between(conn->sim, HEARTBEAT_NS / 2, HEARTBEAT_NS));
}

/* How the end `at`, which is still open, learns that the connection is over. True: by its lane. */
static bool is_told_by_lane(conn_t *conn, int at)
{
    tqi_sim_t *sim = conn->sim;

    if (sim_chance(sim, sim->conf.faults.silence)) {
        told_by_heartbeat(conn, at);
        return false;
    }
    if (at == 0)
        return true;
    switch (tqi_rng_below(&sim->rng, 3)) {
    case 0:
        return true;
    case 1:
        conn->ends[at].is_told_late = true;
        return false;
    default:
        return false;
    }
}

void conn_close(conn_t *conn, int at)
{
    int other = 1 - at;

    conn->ends[at].is_open = false;
    if (conn->ends[other].is_open)
        lane_end(&conn->lanes[other], is_told_by_lane(conn, other));
    maybe_free(conn);
}

void conn_break(conn_t *conn)
{
    for (int at = 0; at < 2; at++)
        if (conn->ends[at].is_open)
            lane_end(&conn->lanes[at], is_told_by_lane(conn, at));
    maybe_free(conn);
}

void conn_died(conn_t *conn, int at, bool is_silent)
{
    int other = 1 - at;

    conn->ends[at].is_open = false;
    if (conn->ends[other].is_open && is_silent)
        told_by_heartbeat(conn, other);
    if (conn->ends[other].is_open)
        lane_end(&conn->lanes[other], !is_silent && is_told_by_lane(conn, other));
    maybe_free(conn);
}
