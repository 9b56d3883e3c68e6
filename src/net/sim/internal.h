/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulator's files share.
 *
 *   sim.c      clock, events, hosts
 *   conn.c     connections: two lanes of frames, and how they end
 *   ctrl.c     the ctrl port
 *   payload.c  the payload ports, mode STREAM; direct.c mode DIRECT
 *   arena.c    segments
 *   watch.c    the watch port
 *   memory.c   the environment that counts
 */
#ifndef TQI_NET_SIM_INTERNAL_H
#define TQI_NET_SIM_INTERNAL_H

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "net/sim/sim.h"

typedef struct conn conn_t;
typedef struct lane lane_t;

struct tqi_sim {
    tqi_sim_conf_t conf;
    tqi_rng_t rng;
    uint64_t now_ns;
    uint64_t digest;
    tqi_heap_t events;
    tqi_sim_host_t *hosts[TQI_SIM_HOSTS_MAX];
    uint32_t hosts_cnt;
    uint64_t blocked[TQI_SIM_HOSTS_MAX]; /* [from] bit to */
    tqi_list_t conns;
    uint64_t arena_last; /* handles of arenas, never used twice */
};

void *sim_alloc(size_t size); /* cleared */
/* In [lo, hi]. */
uint64_t sim_between(tqi_sim_t *sim, uint64_t lo, uint64_t hi);
/* When the next chunk of payload, or slice of a copy, is through. */
uint64_t sim_chunk_at(tqi_sim_t *sim);
bool sim_chance(tqi_sim_t *sim, double probability);
tqi_sim_host_t *sim_find(tqi_sim_t *sim, const char *name);
void sim_trace(tqi_sim_t *sim, const char *what, const tqi_sim_host_t *from,
               const tqi_sim_host_t *to, const void *data, size_t len, bool is_payload);

/* ---- connections ----------------------------------------------------------------------------- */

typedef enum conn_kind { CONN_CTRL, CONN_PAYLOAD } conn_kind_t;

typedef struct frame {
    tqi_node_t node;
    uint64_t due_ns;
    bool is_end; /* no frame: the other side learns that this was all */
    size_t len;
    uint8_t data[];
} frame_t;

/* One direction, towards ends[to]. */
struct lane {
    conn_t *conn;
    int to;
    tqi_list_t frames;
    size_t bytes;
    uint64_t last_due_ns;
    tqi_sim_event_t event; /* the first frame arrives */
    bool is_held;          /* by a partition or a pause */
    bool is_over;          /* nothing more is sent this way */
};

typedef struct conn_end {
    tqi_sim_host_t *host;
    bool is_open;      /* the host's port knows it */
    bool is_told_late; /* learns when it sends that the connection is over */
    void *user;        /* of the port */
    tqi_peer_t peer;   /* ctrl: handle, 0 until a frame came */
} conn_end_t;

struct conn {
    tqi_sim_t *sim;
    tqi_node_t node;
    conn_kind_t kind;
    bool is_up;
    uint32_t in_use; /* by an upcall: not freed meanwhile */
    bool is_refused; /* nobody listens, and who sends is told so at once */
    char target[64]; /* host's name */
    tqi_sim_event_t dial;
    tqi_sim_event_t told[2]; /* an end learns late that it is over */
    conn_end_t ends[2];      /* 0 dialled */
    lane_t lanes[2];
};

/* Begins to connect; NULL when `name` is too long. end 0 is open. */
conn_t *conn_dial(tqi_sim_host_t *host, const char *name, conn_kind_t kind, void *user);
/* From end `from`. False: it has learned just now that the connection is gone; told follows. */
bool conn_send(conn_t *conn, int from, const void *data, size_t len, bool may_lose);
/* The port of that end has let go: it is not called any more. */
void conn_close(conn_t *conn, int at);
/* It breaks in the middle. */
void conn_break(conn_t *conn);
/* The host of this end has died. */
void conn_died(conn_t *conn, int at, bool is_silent);
/* Frames that were held may flow. */
void conn_release(conn_t *conn);

/* Upcalls to the ports. */
void ctrl_on_frame(conn_t *conn, int at, const void *data, size_t len);
void ctrl_on_end(conn_t *conn, int at);
void payload_on_frame(conn_t *conn, int at, const void *data, size_t len);
void payload_on_end(conn_t *conn, int at);

/* ---- hosts ----------------------------------------------------------------------------------- */

typedef struct segment {
    uint8_t *memory; /* guard, bytes, guard */
    uint8_t *base;
    uint64_t bytes;
    uint32_t id;
    uint32_t refs; /* the arena's, and one for each copy under way */
} segment_t;

struct tqi_sim_host {
    tqi_sim_t *sim;
    uint32_t id;
    char name[40];
    char address[48];
    char payload_address[56];
    bool is_up;
    bool is_paused;
    bool is_listening;
    uint32_t process;
    uint64_t life; /* number of the present one, from 1 */
    uint64_t offset_ns;
    int32_t ppm;
    tqi_sink_t sink;

    tqi_ctrl_t ctrl;
    tqi_map_u64_t peers; /* handle -> conn */
    tqi_peer_t peer_last;
    const char *why_down;

    tqi_payload_client_t client;
    tqi_map_u64_t ways; /* unit id -> way_t */
    tqi_payload_unit_t unit;
    tqi_map_u64_t sessions; /* session -> admitted_t */
    tqi_list_t transfers;   /* transfer_t of both sides */
    tqi_list_t copies;      /* copy_t, mode DIRECT */

    tqi_watch_t watch;
    void (*on_death)(void *ctx, uint64_t id);
    void *on_death_ctx;
    tqi_map_u64_t watched; /* id -> watched_t */

    tqi_arena_t arena;
    uint64_t arena_handle;
    tqi_map_u64_t segments;
    uint64_t arena_bytes;
    char fault[200];

    uint64_t port_calls, port_fail_at; /* calls so far, and which one is refused */
    uint64_t arena_calls, arena_fail_at;
};

void ctrl_init(tqi_sim_host_t *host);
void payload_init(tqi_sim_host_t *host);
void payload_kill(tqi_sim_host_t *host);
void arena_init(tqi_sim_host_t *host);
void watch_init(tqi_sim_host_t *host);
void watch_kill(tqi_sim_host_t *host);
/* The process of this host has died where others see it. */
void watch_tell(tqi_sim_host_t *host);
/* A call to a port of this host is to fail for want of memory. */
bool port_fails(tqi_sim_host_t *host);
void arena_fault(tqi_sim_host_t *host, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
segment_t *segment_ref(tqi_sim_host_t *host, uint32_t id);
void segment_unref(segment_t *segment);

/* DIRECT. */
tqi_sim_host_t *direct_find(tqi_sim_host_t *host, uint64_t arena_handle);
tq_status_t direct_begin(tqi_sim_host_t *host, tqi_sim_host_t *unit, tqi_transfer_key_t key,
                         const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                         bool is_write, tqi_err_t *err);
/* False: no such copy. */
bool direct_drop(tqi_sim_host_t *host, tqi_transfer_key_t key);
void direct_kill(tqi_sim_host_t *host);

#endif
