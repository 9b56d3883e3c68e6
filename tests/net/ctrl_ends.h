/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends of a ctrl network for the tests of net/ctrl.h: the same calls whether the network is real
 * sockets and threads or the simulated one, which a driver of a few functions hides. Every end also
 * watches over what no port may ever do: call back from within a call or after close, use a handle
 * again, speak of one that is gone, or deliver a stream twice, torn or out of order.
 */
#ifndef TQI_TESTS_NET_CTRL_ENDS_H
#define TQI_TESTS_NET_CTRL_ENDS_H

#include "pump.h"

#include <tq/types.h>

#include "base/size.h"
#include "net/inproc/inproc.h"
#include "net/sim/sim.h"
#include "net/zmq/zmq_ctrl.h"

#define HANDLES_MAX 1024
#define ENDS_MAX 8
#define NAMES_MAX 4

typedef struct world world_t;
typedef struct end end_t;

/* One handle as an end has seen it. */
typedef struct seen {
    tqi_peer_t peer;
    bool is_gone;    /* hung up, or told down */
    bool has_stream; /* something came */
    uint32_t stream; /* what it carries, ... */
    uint32_t next;   /* ... and the number that follows the last one */
} seen_t;

struct end {
    world_t *world;
    tqi_ctrl_t *ctrl;
    tqi_sink_t sink;
    char name[16]; /* "": it only dials */
    char address[TQI_ADDRESS_MAX];
    bool is_open;
    bool is_held; /* its loop does not run */

    /* Whichever the driver uses. */
    tqi_ctrl_adapter_t *adapter;
    tqi_mailbox_t *mailbox;
    tqi_sim_host_t *host;

    seen_t seen[HANDLES_MAX];
    uint32_t seen_cnt;
    unsigned calls; /* into the port, under way */
    tqi_peer_t last_peer;
    uint32_t last_stream;
    uint32_t messages;
    uint64_t bytes;
    uint32_t downs;
    tqi_peer_t last_down;
    char why[256];
    bool is_echo;
    bool takes_garbage; /* frames that are none of ours are left to the role, as in life */
    uint32_t garbage;
    /* Called besides, by who wants to. */
    void (*on_message)(end_t *end, tqi_peer_t peer);
    void (*on_down)(end_t *end, tqi_peer_t peer);
};

typedef struct driver {
    const char *name;
    const char *foreign; /* an address of another kind */
    unsigned seeds;      /* so many runs: what happens depends on them */
    bool may_lose;       /* frames vanish, and connections break, by themselves */
    bool is_zmq;
    void (*init)(world_t *w);
    void (*fini)(world_t *w);
    /* name "": it only dials. address gets what to dial. False: the address is in use. */
    bool (*open)(world_t *w, end_t *end, tqi_err_t *err);
    void (*close)(world_t *w, end_t *end);
    void (*hold)(world_t *w, end_t *end, bool is_held);
    /* Lets something happen. False once its time is over. */
    bool (*turn)(world_t *w);
} driver_t;

struct world {
    const driver_t *driver;
    uint64_t seed;
    pump_t pump;
    char folder[64];
    char places[NAMES_MAX][TQI_ADDRESS_MAX]; /* real addresses, once something listened there */
    char place_names[NAMES_MAX][16];
    char curve_public[41], curve_secret[41];
    tqi_sim_t *sim;
    tqi_sim_host_t *hosts[ENDS_MAX + 1]; /* the first NAMES_MAX listen */
    uint32_t hosts_cnt;
    uint64_t until_ns;
    end_t ends[ENDS_MAX];
};

/* ---- what an end sees -------------------------------------------------------------------------- */

static seen_t *seen_find(end_t *end, tqi_peer_t peer)
{
    for (uint32_t i = end->seen_cnt; i-- > 0;)
        if (end->seen[i].peer == peer)
            return &end->seen[i];
    return NULL;
}

static seen_t *seen_add(end_t *end, tqi_peer_t peer)
{
    assert_true(peer != 0 && peer < UINT64_C(1) << 56);
    assert_null(seen_find(end, peer)); /* never used twice */
    assert_true(end->seen_cnt < HANDLES_MAX);
    end->seen[end->seen_cnt] = (seen_t){.peer = peer};
    return &end->seen[end->seen_cnt++];
}

/* A frame of a stream: which, the number in it, and bytes that follow from both. */
typedef struct mark {
    uint32_t stream;
    uint32_t number;
} mark_t;

static uint8_t mark_fill(const mark_t *mark)
{
    return (uint8_t)(mark->stream * 31 + mark->number);
}

static tq_status_t end_send(end_t *end, tqi_peer_t peer, mark_t mark, size_t len)
{
    tqi_buf_t frame;
    assert_true(len >= sizeof mark);
    tqi_buf_init(&frame, tqi_env_malloc());
    assert_int_equal(tqi_buf_append(&frame, &mark, sizeof mark), TQ_OK);
    if (len > sizeof mark)
        memset(tqi_buf_extend(&frame, len - sizeof mark), mark_fill(&mark), len - sizeof mark);
    end->calls++;
    tq_status_t rc = end->ctrl->send(end->ctrl, peer, &frame);
    end->calls--;
    if (rc == TQ_OK)
        assert_null(frame.data);
    else
        assert_int_equal(frame.len, len);
    tqi_buf_fini(&frame);
    return rc;
}

static void on_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    end_t *end = ctx;
    const uint8_t *bytes = data;
    mark_t mark = {0};
    assert_true(end->is_open && end->calls == 0);
    bool is_ours = len >= sizeof mark;
    if (is_ours)
        memcpy(&mark, data, sizeof mark);
    for (size_t i = sizeof mark; i < len; i += i < 64 || i + 997 >= len ? 1 : 997)
        is_ours = is_ours && bytes[i] == mark_fill(&mark);
    if (!is_ours) {
        assert_true(end->takes_garbage);
        end->garbage++;
        return;
    }
    seen_t *seen = seen_find(end, peer);
    if (!seen)
        seen = seen_add(end, peer);
    assert_false(seen->is_gone);
    if (seen->has_stream) {
        assert_int_equal(mark.stream, seen->stream);
        assert_true(end->world->driver->may_lose ? mark.number >= seen->next
                                                 : mark.number == seen->next);
    }
    seen->has_stream = true;
    seen->stream = mark.stream;
    seen->next = mark.number + 1;
    end->last_peer = peer;
    end->last_stream = mark.stream;
    end->messages++;
    end->bytes += len;
    if (end->is_echo) {
        tq_status_t rc = end_send(end, peer, mark, len);
        assert_true(rc == TQ_OK || rc == TQ_E_UNREACHABLE); /* it may be gone already */
    }
    if (end->on_message)
        end->on_message(end, peer);
}

static void on_peer_down(void *ctx, tqi_peer_t peer)
{
    end_t *end = ctx;
    assert_true(end->is_open && end->calls == 0);
    seen_t *seen = seen_find(end, peer);
    assert_non_null(seen); /* who was never seen can't go */
    assert_false(seen->is_gone);
    seen->is_gone = true;
    end->downs++;
    end->last_down = peer;
    snprintf(end->why, sizeof end->why, "%s",
             end->ctrl->why_down ? end->ctrl->why_down(end->ctrl) : "");
    if (end->on_down)
        end->on_down(end, peer);
}

/* ---- what an end does -------------------------------------------------------------------------- */

static bool end_try(world_t *w, end_t *end, const char *name, tqi_err_t *err)
{
    memset(end, 0, sizeof *end);
    end->world = w;
    end->sink = (tqi_sink_t){end, on_message, on_peer_down, NULL};
    snprintf(end->name, sizeof end->name, "%s", name);
    end->is_open = w->driver->open(w, end, err);
    return end->is_open;
}

/* name "": it only dials. Where somebody listened until now libzmq takes a moment to let go. */
static void end_open(world_t *w, end_t *end, const char *name)
{
    tqi_err_t err = {0};
    for (unsigned tries = 0; !end_try(w, end, name, &err); tries++)
        if (tries == 2000)
            fail_msg("%s", err.text);
        else
            (void)poll(NULL, 0, 1);
}

static void end_close(end_t *end)
{
    if (!end->is_open)
        return;
    end->is_open = false; /* nothing is called any more */
    end->world->driver->close(end->world, end);
}

static void end_hold(end_t *end, bool is_held)
{
    end->world->driver->hold(end->world, end, is_held);
    end->is_held = is_held;
}

static tqi_peer_t end_dial(end_t *end, const char *address)
{
    tqi_peer_t peer = 0;
    tqi_err_t err = {0};
    end->calls++;
    if (end->ctrl->connect(end->ctrl, address, &peer, &err) != TQ_OK)
        fail_msg("%s", err.text);
    end->calls--;
    seen_add(end, peer);
    return peer;
}

static void end_hang_up(end_t *end, tqi_peer_t peer)
{
    seen_t *seen = seen_find(end, peer);
    if (seen)
        seen->is_gone = true;
    end->calls++;
    end->ctrl->disconnect(end->ctrl, peer);
    end->calls--;
}

/* until(w, server->messages == 3); */
#define until(w, condition)                                                                        \
    do {                                                                                           \
        world_begin(w, UINT64_C(10000000000));                                                     \
        while (!(condition))                                                                       \
            if (!(w)->driver->turn(w))                                                             \
                fail_msg("not within 10 s: %s (seed %llu)", #condition,                            \
                         (unsigned long long)(w)->seed);                                           \
    } while (0)

static uint64_t world_now(world_t *w)
{
    return w->sim ? tqi_sim_now(w->sim) : tqi_now_ns();
}

static void world_begin(world_t *w, uint64_t ns)
{
    w->until_ns = world_now(w) + ns;
}

/* Lets things happen for a while, to see what does not: so many milliseconds of a real network, a
 * hundred times as many of the simulated one. */
static void quiet(world_t *w, unsigned ms)
{
    world_begin(w, ms * UINT64_C(1000000) * (w->sim ? 100 : 1));
    while (w->driver->turn(w))
        continue;
}

/* A few turns: the middle of something. */
static void turns(world_t *w, unsigned cnt)
{
    world_begin(w, UINT64_C(1000000000));
    while (cnt-- > 0 && w->driver->turn(w))
        continue;
}

static world_t *world_open(const driver_t *driver, uint64_t seed)
{
    world_t *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->driver = driver;
    w->seed = seed;
    driver->init(w);
    return w;
}

static void world_close(world_t *w)
{
    for (unsigned i = 0; i < ENDS_MAX; i++)
        end_close(&w->ends[i]);
    w->driver->fini(w);
    free(w);
}

/* ---- real networks ----------------------------------------------------------------------------- */

static void real_init(world_t *w)
{
    strcpy(w->folder, "/tmp/tq-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    assert_int_equal(tqi_zmq_keypair(w->curve_public, w->curve_secret, NULL), TQ_OK);
}

static void real_fini(world_t *w)
{
    assert_int_equal(rmdir(w->folder), 0); /* paths that were listened on are gone */
}

/* Where `name` listens: what it got when it listened there before, or a pattern. */
static char *real_place(world_t *w, const char *name, const char *scheme)
{
    unsigned i = 0;
    while (w->place_names[i][0] && strcmp(w->place_names[i], name) != 0)
        i++;
    assert_true(i < NAMES_MAX);
    if (w->place_names[i][0])
        return w->places[i];
    snprintf(w->place_names[i], sizeof w->place_names[i], "%s", name);
    if (strcmp(scheme, "tcp") == 0)
        snprintf(w->places[i], TQI_ADDRESS_MAX, "tcp://127.0.0.1:*");
    else if (strcmp(scheme, "ipc") == 0)
        snprintf(w->places[i], TQI_ADDRESS_MAX, "ipc://%s/%s", w->folder, name);
    else
        snprintf(w->places[i], TQI_ADDRESS_MAX, "inproc://ctrl-test-%s", name);
    return w->places[i];
}

static bool real_listen(world_t *w, end_t *end, const char *scheme, tqi_err_t *err)
{
    pump_add(&w->pump, &end->adapter->source);
    end->ctrl = &end->adapter->ctrl;
    if (end->name[0] == '\0')
        return true;
    char *place = real_place(w, end->name, scheme);
    tq_status_t rc = end->adapter->listen(end->adapter, place, end->address, err);
    if (rc == TQ_OK) {
        strcpy(place, end->address);
        return true;
    }
    assert_int_equal(rc, TQ_E_ADDRESS);
    end->is_open = true;
    end_close(end);
    return false;
}

static bool zmq_open(world_t *w, end_t *end, const char *scheme, const tqi_zmq_conf_t *conf,
                     tqi_err_t *err)
{
    assert_int_equal(tqi_zmq_ctrl_new(tqi_env_malloc(), conf, &end->sink, &end->adapter, err),
                     TQ_OK);
    return real_listen(w, end, scheme, err);
}

static bool inproc_open(world_t *w, end_t *end, tqi_err_t *err)
{
    end->mailbox = pump_mailbox(&w->pump);
    assert_int_equal(
        tqi_inproc_ctrl_new(tqi_env_malloc(), end->mailbox, &end->sink, &end->adapter, err), TQ_OK);
    return real_listen(w, end, "inproc", err);
}

static bool ipc_open(world_t *w, end_t *end, tqi_err_t *err)
{
    return zmq_open(w, end, "ipc", NULL, err);
}

static bool tcp_open(world_t *w, end_t *end, tqi_err_t *err)
{
    return zmq_open(w, end, "tcp", NULL, err);
}

static bool curve_open(world_t *w, end_t *end, tqi_err_t *err)
{
    tqi_zmq_conf_t server = {.curve_secret_key = w->curve_secret,
                             .curve_public_key = w->curve_public},
                   client = {.curve_server_key = w->curve_public};
    return zmq_open(w, end, "tcp", end->name[0] ? &server : &client, err);
}

static void real_hold(world_t *w, end_t *end, bool is_held)
{
    if (is_held) {
        pump_remove(&w->pump, &end->adapter->source);
        pump_remove_mailbox(&w->pump, end->mailbox);
    } else {
        pump_add(&w->pump, &end->adapter->source);
        pump_add_mailbox(&w->pump, end->mailbox);
    }
}

static void real_close(world_t *w, end_t *end)
{
    pump_remove(&w->pump, &end->adapter->source);
    pump_remove_mailbox(&w->pump, end->mailbox);
    if (end->mailbox)
        tqi_mailbox_close(end->mailbox);
    end->adapter->close(end->adapter);
    tqi_mailbox_unref(end->mailbox);
}

static bool real_turn(world_t *w)
{
    if (!pump_turn(&w->pump))
        pump_wait(&w->pump);
    return tqi_now_ns() < w->until_ns;
}

/* ---- the simulated network --------------------------------------------------------------------- */

static void sim_init_with(world_t *w, const tqi_sim_faults_t *faults)
{
    tqi_sim_conf_t conf = {.seed = w->seed, .faults = *faults};
    w->sim = tqi_sim_new(&conf);
}

static void sim_init(world_t *w)
{
    sim_init_with(w, &(tqi_sim_faults_t){.latency_min_ns = 10 * TQI_SIM_US,
                                         .latency_max_ns = 300 * TQI_SIM_US});
}

static void storm_init(world_t *w)
{
    sim_init_with(w, &(tqi_sim_faults_t){.latency_min_ns = 10 * TQI_SIM_US,
                                         .latency_max_ns = 300 * TQI_SIM_US,
                                         .spike = 0.05,
                                         .spike_ns = 100 * TQI_SIM_MS,
                                         .loss = 0.05,
                                         .breaks = 0.01,
                                         .busy = 0.02,
                                         .silence = 0.2});
}

static void sim_fini(world_t *w)
{
    tqi_sim_free(w->sim);
}

/* A host of that name, in another life than before, or another host that only dials. */
static tqi_sim_host_t *sim_host(world_t *w, const char *name)
{
    char made_up[16];
    for (uint32_t i = 0; i < w->hosts_cnt; i++)
        if (name[0] ? strcmp(tqi_sim_host_name(w->hosts[i]), name) == 0
                    : tqi_sim_host_name(w->hosts[i])[0] == '~' && !tqi_sim_host_is_up(w->hosts[i]))
            return w->hosts[i];
    assert_true(w->hosts_cnt < tqi_array_len(w->hosts));
    snprintf(made_up, sizeof made_up, "~%u", w->hosts_cnt);
    return w->hosts[w->hosts_cnt++] = tqi_sim_host_new(w->sim, name[0] ? name : made_up);
}

static bool sim_open(world_t *w, end_t *end, tqi_err_t *err)
{
    (void)err;
    end->host = sim_host(w, end->name);
    if (tqi_sim_host_is_up(end->host))
        return false;
    tqi_sim_host_boot(end->host, &end->sink, end->name[0] != '\0', 0);
    end->ctrl = tqi_sim_host_ctrl(end->host);
    strcpy(end->address, tqi_sim_host_address(end->host));
    return true;
}

static void sim_close(world_t *w, end_t *end)
{
    (void)w;
    tqi_sim_host_kill(end->host, false);
    assert_int_equal(tqi_sim_host_reap(end->host), 0);
}

static void sim_hold(world_t *w, end_t *end, bool is_held)
{
    (void)w;
    tqi_sim_host_pause(end->host, is_held);
}

static bool sim_turn(world_t *w)
{
    return tqi_sim_step(w->sim, w->until_ns);
}

static const driver_t over_inproc = {
    .name = "inproc",
    .foreign = "tcp://127.0.0.1:1",
    .seeds = 1,
    .init = real_init,
    .fini = real_fini,
    .open = inproc_open,
    .close = real_close,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t over_ipc = {
    .name = "ipc",
    .foreign = "inproc://x",
    .seeds = 1,
    .is_zmq = true,
    .init = real_init,
    .fini = real_fini,
    .open = ipc_open,
    .close = real_close,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t over_tcp = {
    .name = "tcp",
    .foreign = "sim://x",
    .seeds = 1,
    .is_zmq = true,
    .init = real_init,
    .fini = real_fini,
    .open = tcp_open,
    .close = real_close,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t over_curve = {
    .name = "tcp with CURVE",
    .foreign = "inproc://x",
    .seeds = 1,
    .is_zmq = true,
    .init = real_init,
    .fini = real_fini,
    .open = curve_open,
    .close = real_close,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t over_sim = {
    .name = "the simulated network",
    .foreign = "tcp://127.0.0.1:1",
    .seeds = 20,
    .init = sim_init,
    .fini = sim_fini,
    .open = sim_open,
    .close = sim_close,
    .hold = sim_hold,
    .turn = sim_turn,
};
/* For what has to hold whatever goes wrong. */
static const driver_t over_storm = {
    .name = "the simulated network in a storm",
    .foreign = "tcp://127.0.0.1:1",
    .seeds = 100,
    .may_lose = true,
    .init = storm_init,
    .fini = sim_fini,
    .open = sim_open,
    .close = sim_close,
    .hold = sim_hold,
    .turn = sim_turn,
};

#endif
