/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ctrl port over simulated connections: a peer handle is one end of one of them.
 */
#include "net/sim/internal.h"

#define SCHEME "sim://"

static tqi_sim_host_t *host_of(tqi_ctrl_t *ctrl)
{
    return tqi_container_of(ctrl, tqi_sim_host_t, ctrl);
}

static int end_of(const conn_t *conn, const tqi_sim_host_t *host, tqi_peer_t peer)
{
    return conn->ends[0].host == host && conn->ends[0].peer == peer ? 0 : 1;
}

static void add_peer(tqi_sim_host_t *host, conn_t *conn, int at)
{
    tq_status_t rc;

    conn->ends[at].peer = ++host->peer_last;
    rc = tqi_map_u64_put(&host->peers, conn->ends[at].peer, conn, NULL);
    tqi_assert(rc == TQ_OK);
}

static tq_status_t ctrl_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                tqi_err_t *err)
{
    tqi_sim_host_t *host = host_of(ctrl);
    conn_t *conn;

    if (strncmp(address, SCHEME, sizeof SCHEME - 1) != 0)
        return tqi_fail(err, TQ_E_CONFIG, "'%s' is no address of this network", address);
    if (!host->is_up)
        return tqi_fail(err, TQ_E_SYSTEM, "the process is dead");
    if (port_fails(host))
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a connection to %s", address);
    conn = conn_dial(host, address + sizeof SCHEME - 1, CONN_CTRL, NULL);
    if (!conn)
        return tqi_fail(err, TQ_E_CONFIG, "'%s' is too long", address);
    add_peer(host, conn, 0);
    *peer = conn->ends[0].peer;
    return TQ_OK;
}

static void ctrl_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    tqi_sim_host_t *host = host_of(ctrl);
    conn_t *conn = tqi_map_u64_take(&host->peers, peer);

    if (!conn)
        return;
    int at = end_of(conn, host, peer);
    conn->ends[at].peer = 0;
    /* A ROUTER only forgets: the connection stays, and its next message makes a new handle. */
    if (at == 0 || sim_chance(host->sim, 0.5))
        conn_close(conn, at);
}

static tq_status_t ctrl_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    tqi_sim_host_t *host = host_of(ctrl);
    conn_t *conn = tqi_map_u64_get(&host->peers, peer);

    if (!conn || conn->is_refused)
        return TQ_E_UNREACHABLE;
    if (port_fails(host))
        return TQ_E_NO_MEMORY;
    tqi_assert(frame->len > 0);
    int at = end_of(conn, host, peer);
    lane_t *lane = &conn->lanes[1 - at];
    if ((lane->bytes > 0 && lane->bytes + frame->len > host->sim->conf.queue_bytes_max) ||
        sim_chance(host->sim, host->sim->conf.faults.busy))
        return TQ_E_BUSY;
    if (!conn_send(conn, at, frame->data, frame->len, true))
        return TQ_E_UNREACHABLE;
    tqi_buf_fini(frame);
    return TQ_OK;
}

static const char *ctrl_why_down(tqi_ctrl_t *ctrl)
{
    const char *why = host_of(ctrl)->why_down;

    return why ? why : "";
}

void ctrl_on_frame(conn_t *conn, int at, const void *data, size_t len)
{
    conn_end_t *end = &conn->ends[at];

    if (end->peer == 0)
        add_peer(end->host, conn, at);
    end->host->sink.on_message(end->host->sink.ctx, end->peer, data, len);
}

void ctrl_on_end(conn_t *conn, int at)
{
    conn_end_t *end = &conn->ends[at];
    tqi_peer_t peer = end->peer;

    if (peer == 0)
        return;
    end->peer = 0;
    tqi_map_u64_take(&end->host->peers, peer);
    end->host->sink.on_peer_down(end->host->sink.ctx, peer);
}

void ctrl_init(tqi_sim_host_t *host)
{
    host->ctrl = (tqi_ctrl_t){ctrl_connect, ctrl_disconnect, ctrl_send, ctrl_why_down};
}

tqi_ctrl_t *tqi_sim_host_ctrl(tqi_sim_host_t *host)
{
    return &host->ctrl;
}

uint32_t tqi_sim_host_peers_cnt(const tqi_sim_host_t *host)
{
    return (uint32_t)tqi_map_u64_count(&host->peers);
}
