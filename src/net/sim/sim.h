/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A world in one thread: a virtual clock, hosts, and a network between them that misbehaves as real
 * ones do, all from one seed. The same seed and the same calls give the same run, event by event.
 *
 * A host is a place where a process runs, dies and is started again. Each life of it has ports of
 * its own: ctrl ("sim://NAME"), payload of either side, and an arena. The world calls the host's
 * sink from its events only, never from within a call to a port.
 *
 * What the network does, and what it does not:
 *   within one connection frames arrive in order, at most once; a ctrl frame may get lost
 *   a connection that ends, ends for each side on its own: some of what was under way still arrives,
 *     late, perhaps behind the first frames of the next connection; a side may learn of it at once,
 *     when it sends next, or never
 *   a partition holds frames back, in one direction or both; when it heals they arrive, or the
 *     connection turns out to be broken
 *   queued frames reach whoever listens at the address when the connection comes about, also a
 *     process that was started since; where nobody listens they are taken, or refused at once
 *   nothing is duplicated within a connection: libzmq does not. Senders that send again do.
 */
#ifndef TQI_NET_SIM_SIM_H
#define TQI_NET_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/env.h"
#include "base/heap.h"
#include "base/rng.h"
#include "net/adapter.h"
#include "net/watch.h"

#define TQI_SIM_HOSTS_MAX 64
#define TQI_SIM_US UINT64_C(1000)
#define TQI_SIM_MS UINT64_C(1000000)
#define TQI_SIM_S UINT64_C(1000000000)

typedef struct tqi_sim tqi_sim_t;
typedef struct tqi_sim_host tqi_sim_host_t;

/* What goes wrong, and how long things take. Probabilities from 0 to 1. */
typedef struct tqi_sim_faults {
    uint64_t latency_min_ns; /* of a frame */
    uint64_t latency_max_ns;
    uint64_t chunk_ns_max; /* a payload chunk, or a slice of a copy, takes up to this; 0: 1 ms */
    double spike;          /* a frame (and those behind it) takes spike_ns longer */
    uint64_t spike_ns;     /* up to */
    double loss;           /* a ctrl frame vanishes */
    double breaks;         /* a frame breaks its connection */
    double busy;           /* a ctrl send is refused with E_BUSY */
    double ports;          /* a call to a port fails for want of memory: E_NO_MEMORY, or no way */
    double silence;        /* a side is not told that its connection ended */
    double arena;          /* opening a segment fails */
} tqi_sim_faults_t;

/* Told of everything that happens on the wire; for traces. `what`: "->" sent, "=>" delivered, "lost",
 * "late" (dropped: nobody has that connection any more), "up", "down". data NULL: no frame.
 * is_payload: a chunk of payload, not a control message. */
typedef void (*tqi_sim_trace_fn)(void *ctx, const char *what, const tqi_sim_host_t *from,
                                 const tqi_sim_host_t *to, const void *data, size_t len,
                                 bool is_payload);

typedef struct tqi_sim_conf {
    uint64_t seed;
    tqi_sim_faults_t faults;
    uint64_t queue_bytes_max; /* of one direction of a ctrl connection; 0: 16 MiB */
    uint32_t chunk_bytes_max; /* payload chunks are cut at random up to this; 0: 1 MiB */
    uint32_t window_bytes;    /* payload under way without credit; 0: 8 MiB */
    tqi_sim_trace_fn trace;   /* may be NULL */
    void *trace_ctx;
} tqi_sim_conf_t;

/* Memory comes from the C library and never runs out. */
tqi_sim_t *tqi_sim_new(const tqi_sim_conf_t *conf);
/* Every host is down. */
void tqi_sim_free(tqi_sim_t *sim);
void tqi_sim_set_faults(tqi_sim_t *sim, const tqi_sim_faults_t *faults);

/* ---- time ------------------------------------------------------------------------------------ */

/* Something that happens at a time, in its owner's memory. Events of the same time happen in the
 * order in which they were set. */
typedef struct tqi_sim_event {
    tqi_heap_node_t node;
    void (*fn)(void *ctx);
    void *ctx;
} tqi_sim_event_t;

void tqi_sim_event_init(tqi_sim_event_t *event, void (*fn)(void *ctx), void *ctx);
/* Sets it, or moves it. A time that has passed is now. */
void tqi_sim_at(tqi_sim_t *sim, tqi_sim_event_t *event, uint64_t at_ns);
void tqi_sim_cancel(tqi_sim_t *sim, tqi_sim_event_t *event);
bool tqi_sim_is_set(const tqi_sim_event_t *event);
/* The time of the world, from 0. */
uint64_t tqi_sim_now(const tqi_sim_t *sim);
/* Moves on to the next event at or before until_ns and lets it happen. False: there is none; the
 * time is then until_ns. */
bool tqi_sim_step(tqi_sim_t *sim, uint64_t until_ns);
/* Of everything that was random and everything that was sent so far: equal runs have equal ones. */
uint64_t tqi_sim_digest(const tqi_sim_t *sim);
/* Mixes something of the user's into it. */
void tqi_sim_mix(tqi_sim_t *sim, uint64_t value);

/* ---- hosts ----------------------------------------------------------------------------------- */

/* A place, down at first. name: without "/", kept by the host. */
tqi_sim_host_t *tqi_sim_host_new(tqi_sim_t *sim, const char *name);
const char *tqi_sim_host_name(const tqi_sim_host_t *host);
/* "sim://NAME" */
const char *tqi_sim_host_address(const tqi_sim_host_t *host);

/* Begins a life. is_listening: others may connect. has_direct: this host's client side reaches
 * arenas of hosts of the same `process` (not 0) by memory; those live and die together, which the
 * caller sees to. */
void tqi_sim_host_boot(tqi_sim_host_t *host, const tqi_sink_t *sink, bool is_listening,
                       uint32_t process);
/* Ends it. From now on its ports answer E_UNREACHABLE and E_CLOSED, and the sink is not called, but
 * for the ends of the client side's transfers, which are reported from within this call (E_CLOSED)
 * so that the role can be freed. is_silent: nobody is told (a machine lost its power).
 * Segments stay until tqi_sim_host_reap. */
void tqi_sim_host_kill(tqi_sim_host_t *host, bool is_silent);
/* After the role was freed: the arena's segments go. Returns how many were left open. */
uint32_t tqi_sim_host_reap(tqi_sim_host_t *host);
bool tqi_sim_host_is_up(const tqi_sim_host_t *host);
/* A process that was stopped: what is for it waits. The owner must not run it meanwhile. */
void tqi_sim_host_pause(tqi_sim_host_t *host, bool is_paused);
bool tqi_sim_host_is_paused(const tqi_sim_host_t *host);

/* The host's own clock: it began somewhere else, and runs fast or slow by ppm. Set while it is
 * down. */
void tqi_sim_host_set_clock(tqi_sim_host_t *host, uint64_t offset_ns, int32_t ppm);
uint64_t tqi_sim_host_now(const tqi_sim_host_t *host);
/* The world's time at which the host's clock has reached local_ns. UINT64_MAX stays. */
uint64_t tqi_sim_host_when(const tqi_sim_host_t *host, uint64_t local_ns);

/* Ports of the present life; the pointers are the same in all of them. */
tqi_ctrl_t *tqi_sim_host_ctrl(tqi_sim_host_t *host);
tqi_payload_client_t *tqi_sim_host_payload_client(tqi_sim_host_t *host);
tqi_payload_unit_t *tqi_sim_host_payload_unit(tqi_sim_host_t *host);
tqi_arena_t *tqi_sim_host_arena(tqi_sim_host_t *host);
/* The watch port; deaths are told to on_death, for all lives to come. Every host is a process of one
 * machine, which sees how the others die unless they do so silently. */
tqi_watch_t *tqi_sim_host_watch(tqi_sim_host_t *host, void (*on_death)(void *ctx, uint64_t id),
                                void *ctx);
/* Who the process of the present life says it is; the strings are static. */
tqi_process_t tqi_sim_host_process(const tqi_sim_host_t *host);

/* The first thing that a role did to its arena and must not do (opened an id twice, wrote outside of
 * a segment, punched what is not there), as a sentence; NULL: nothing. */
const char *tqi_sim_host_arena_fault(tqi_sim_host_t *host);
/* Of the segments that are open. */
uint64_t tqi_sim_host_arena_bytes(const tqi_sim_host_t *host);
/* Transfers that the ports of this life have. */
uint32_t tqi_sim_host_transfers_cnt(const tqi_sim_host_t *host);
/* Peers that the ctrl port has. */
uint32_t tqi_sim_host_peers_cnt(const tqi_sim_host_t *host);

/* The newest transfer that comes in at the unit's side of the host ends with E_PEER_LOST, as one does
 * whose chunks are not those of its frame. False: there is none. */
bool tqi_sim_host_spoil(tqi_sim_host_t *host);

/* Counting from the host's first life: call number `at` of those that faults.ports may refuse is
 * refused; and segment number `at`. 0: none. */
void tqi_sim_host_fail_port(tqi_sim_host_t *host, uint64_t at);
void tqi_sim_host_fail_arena(tqi_sim_host_t *host, uint64_t at);
uint64_t tqi_sim_host_port_calls(const tqi_sim_host_t *host);
uint64_t tqi_sim_host_arena_calls(const tqi_sim_host_t *host);

/* ---- the network ----------------------------------------------------------------------------- */

/* Frames from one to the other are held back, or flow again. Setting what is set has no effect. */
void tqi_sim_block(tqi_sim_t *sim, tqi_sim_host_t *from, tqi_sim_host_t *to, bool is_blocked);
bool tqi_sim_is_blocked(const tqi_sim_t *sim, const tqi_sim_host_t *from, const tqi_sim_host_t *to);
/* Breaks one connection between the two, if there is any. */
void tqi_sim_break(tqi_sim_t *sim, tqi_sim_host_t *a, tqi_sim_host_t *b);
/* Unblocks everything and resumes nobody. */
void tqi_sim_heal(tqi_sim_t *sim);

/* ---- memory ---------------------------------------------------------------------------------- */

/* An environment that knows what it gave out: counts, checks that sizes come back as they went,
 * keeps a guard behind each block, poisons what is new and what is freed, and may refuse. A mistake
 * is told on stderr and aborts: whoever frees the wrong size has lost track of its memory. */
typedef struct tqi_sim_memory {
    tqi_env_t env; /* first */
    const char *name;
    uint64_t bytes; /* allocated now */
    uint64_t blocks;
    uint64_t bytes_max;
    uint64_t calls;   /* allocations and growths so far */
    uint64_t fail_at; /* the call with this number is refused; 0: none */
    double refusal;   /* and any other one with this probability */
    tqi_rng_t rng;    /* for that */
    uint64_t refused;
} tqi_sim_memory_t;
void tqi_sim_memory_init(tqi_sim_memory_t *memory, const char *name, uint64_t seed);

#endif
