/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two ends of a payload path for the tests of net/payload.h: the same calls whether the path is
 * inside a process, over sockets, or simulated, which a driver hides. The test plays both roles: it
 * says READY and COMMIT by calling the ports itself. Every report is looked at: it comes from the
 * loop, once, and for a transfer that was begun.
 */
#ifndef TQI_TESTS_NET_PAYLOAD_ENDS_H
#define TQI_TESTS_NET_PAYLOAD_ENDS_H

#include "pump.h"

#include <tq/types.h>

#include "base/rng.h"
#include "base/size.h"
#include "net/exec.h"
#include "net/inproc/inproc.h"
#include "net/sim/sim.h"
#include "net/zmq/zmq_payload.h"

#define SESSION 77
#define UNIT 3
#define SEGMENT_BYTES (64u << 20)
#define BEGUN_MAX 256

typedef struct world world_t;

/* A transfer that was begun at one end. */
typedef struct begun {
    tqi_transfer_key_t key;
    bool is_over;
    tq_status_t status;
} begun_t;

typedef struct side {
    world_t *world;
    begun_t begun[BEGUN_MAX];
    uint32_t begun_cnt;
    uint32_t over_cnt;
    bool is_held;
    tqi_sink_t sink;
    tqi_mailbox_t *mailbox;
    tqi_sim_host_t *host;
} side_t;

typedef struct driver {
    const char *name;
    tqi_payload_mode_t mode;
    unsigned seeds;
    /* Makes both ends, but for the way between them. */
    void (*open)(world_t *w);
    void (*close)(world_t *w);
    /* The unit's process goes, and is there again with no memory of what was. */
    void (*lose_unit)(world_t *w);
    void (*regain_unit)(world_t *w);
    void (*hold)(world_t *w, side_t *side, bool is_held);
    bool (*turn)(world_t *w);
} driver_t;

struct world {
    const driver_t *driver;
    uint64_t seed;
    uint64_t until_ns;
    unsigned calls; /* into a port, under way */
    pump_t pump;
    char folder[64];
    char listen[128];
    tqi_exec_t *exec;
    tqi_sim_t *sim;
    side_t unit;
    side_t client;
    tqi_inproc_arena_t *arena;
    tqi_arena_t *arena_port;
    uint8_t *segment; /* 1, of the unit */
    tqi_zmq_payload_unit_t *payload_unit;
    tqi_inproc_payload_t *direct;
    tqi_zmq_payload_client_t *stream;
    tqi_payload_client_t *port; /* the client's */
    tqi_payload_unit_t *unit_port;
    uint8_t token[16];
    const char *address;
    uint64_t handle;
};

static void on_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    side_t *side = ctx;
    assert_non_null(text);
    assert_true(status == TQ_OK || text[0]);
    assert_true(side->world->calls == 0);
    for (uint32_t i = 0; i < side->begun_cnt; i++) {
        begun_t *begun = &side->begun[i];
        if (begun->key.owner != key.owner || begun->key.transfer != key.transfer || begun->is_over)
            continue;
        begun->is_over = true;
        begun->status = status;
        side->over_cnt++;
        return;
    }
    fail_msg("transfer %llu of %llu was not begun, or is over already",
             (unsigned long long)key.transfer, (unsigned long long)key.owner);
}

/* ---- time -------------------------------------------------------------------------------------- */

static void world_begin(world_t *w, uint64_t ns)
{
    w->until_ns = (w->sim ? tqi_sim_now(w->sim) : tqi_now_ns()) + ns;
}

#define until(w, condition)                                                                        \
    do {                                                                                           \
        world_begin(w, UINT64_C(20000000000));                                                     \
        while (!(condition))                                                                       \
            if (!(w)->driver->turn(w))                                                             \
                fail_msg("not within 20 s: %s (seed %llu)", #condition,                            \
                         (unsigned long long)(w)->seed);                                           \
    } while (0)

/* Lets things happen for a while: so many milliseconds of a real path, a hundred times as many of
 * the simulated one. */
static void quiet(world_t *w, unsigned ms)
{
    world_begin(w, ms * UINT64_C(1000000) * (w->sim ? 100 : 1));
    while (w->driver->turn(w))
        continue;
}

static void turns(world_t *w, unsigned cnt)
{
    world_begin(w, UINT64_C(1000000000));
    while (cnt-- > 0 && w->driver->turn(w))
        continue;
}

/* ---- real paths -------------------------------------------------------------------------------- */

static void real_unit(world_t *w)
{
    tqi_err_t err = {0};
    w->unit.mailbox = pump_mailbox(&w->pump);
    if (tqi_zmq_payload_unit_new(tqi_env_malloc(), w->listen[0] ? w->listen : NULL,
                                 tqi_inproc_arena_handle(w->arena), w->unit.mailbox, &w->unit.sink,
                                 &w->payload_unit, &err) != TQ_OK)
        fail_msg("%s", err.text);
    w->unit_port = tqi_zmq_payload_unit_port(w->payload_unit);
    pump_add(&w->pump, tqi_zmq_payload_unit_source(w->payload_unit));
}

static void real_open(world_t *w)
{
    void *base;
    w->client.mailbox = pump_mailbox(&w->pump);
    assert_int_equal(tqi_exec_new(2, &w->exec, NULL), TQ_OK);
    assert_int_equal(tqi_inproc_arena_new(&w->arena, NULL), TQ_OK);
    w->arena_port = tqi_inproc_arena_port(w->arena);
    assert_int_equal(w->arena_port->open(w->arena_port, 1, SEGMENT_BYTES, &base, NULL), TQ_OK);
    w->segment = base;
    real_unit(w);
    if (w->driver->mode == TQI_PAYLOAD_DIRECT) {
        assert_int_equal(tqi_inproc_payload_new(tqi_env_malloc(), w->client.mailbox, w->exec,
                                                &w->client.sink, &w->direct, NULL),
                         TQ_OK);
        w->port = tqi_inproc_payload_port(w->direct);
    } else {
        assert_int_equal(tqi_zmq_payload_client_new(tqi_env_malloc(), w->client.mailbox, w->exec,
                                                    &w->client.sink, &w->stream, NULL),
                         TQ_OK);
        w->port = tqi_zmq_payload_client_port(w->stream);
        pump_add(&w->pump, tqi_zmq_payload_client_source(w->stream));
    }
}

static void direct_open(world_t *w)
{
    real_open(w);
}

static void ipc_open(world_t *w)
{
    strcpy(w->folder, "/tmp/tq-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(w->listen, sizeof w->listen, "ipc://%s/data", w->folder);
    real_open(w);
}

static void tcp_open(world_t *w)
{
    strcpy(w->listen, "tcp://127.0.0.1:*");
    real_open(w);
}

static void real_lose_unit(world_t *w)
{
    pump_remove(&w->pump, tqi_zmq_payload_unit_source(w->payload_unit));
    tqi_mailbox_close(w->unit.mailbox);
    tqi_zmq_payload_unit_free(w->payload_unit);
    w->payload_unit = NULL;
}

static void real_regain_unit(world_t *w)
{
    real_unit(w);
}

/* As a host does it: mailboxes first, then what threads may touch, then the ports. */
static void real_close(world_t *w)
{
    tqi_mailbox_close(w->client.mailbox);
    tqi_mailbox_close(w->unit.mailbox);
    if (w->direct)
        tqi_inproc_payload_stop(w->direct);
    if (w->stream)
        tqi_zmq_payload_client_stop(w->stream);
    if (w->payload_unit)
        tqi_zmq_payload_unit_stop(w->payload_unit);
    tqi_inproc_payload_free(w->direct);
    tqi_zmq_payload_client_free(w->stream);
    tqi_zmq_payload_unit_free(w->payload_unit);
    tqi_inproc_arena_free(w->arena);
    tqi_exec_free(w->exec);
    if (w->client.is_held)
        pump_add_mailbox(&w->pump, w->client.mailbox);
    if (w->unit.is_held)
        pump_add_mailbox(&w->pump, w->unit.mailbox);
    for (unsigned i = 0; i < w->pump.mailboxes_cnt; i++)
        tqi_mailbox_unref(w->pump.mailboxes[i]);
    if (w->folder[0])
        assert_int_equal(rmdir(w->folder), 0);
}

static void real_hold(world_t *w, side_t *side, bool is_held)
{
    tqi_source_t *source = side == &w->unit ? tqi_zmq_payload_unit_source(w->payload_unit)
                           : w->stream      ? tqi_zmq_payload_client_source(w->stream)
                                            : NULL;
    if (is_held) {
        pump_remove(&w->pump, source);
        pump_remove_mailbox(&w->pump, side->mailbox);
    } else {
        if (source)
            pump_add(&w->pump, source);
        pump_add_mailbox(&w->pump, side->mailbox);
    }
}

static bool real_turn(world_t *w)
{
    if (!pump_turn(&w->pump))
        pump_wait(&w->pump);
    return tqi_now_ns() < w->until_ns;
}

/* ---- the simulated path ------------------------------------------------------------------------ */

static void sim_boot_unit(world_t *w, uint32_t process)
{
    void *base;
    tqi_sim_host_boot(w->unit.host, &w->unit.sink, true, process);
    w->unit_port = tqi_sim_host_payload_unit(w->unit.host);
    w->arena_port = tqi_sim_host_arena(w->unit.host);
    assert_int_equal(w->arena_port->open(w->arena_port, 1, SEGMENT_BYTES, &base, NULL), TQ_OK);
    w->segment = base;
}

static void sim_open_as(world_t *w, uint32_t process)
{
    tqi_sim_conf_t conf = {
        .seed = w->seed,
        .faults = {.latency_min_ns = 10 * TQI_SIM_US,
                   .latency_max_ns = 300 * TQI_SIM_US,
                   .chunk_ns_max = 50 * TQI_SIM_US},
    };
    w->sim = tqi_sim_new(&conf);
    w->unit.host = tqi_sim_host_new(w->sim, "unit");
    w->client.host = tqi_sim_host_new(w->sim, "client");
    sim_boot_unit(w, process);
    tqi_sim_host_boot(w->client.host, &w->client.sink, false, process);
    w->port = tqi_sim_host_payload_client(w->client.host);
}

static void sim_open(world_t *w)
{
    sim_open_as(w, 0);
}

static void sim_direct_open(world_t *w)
{
    sim_open_as(w, 1);
}

static void sim_lose_unit(world_t *w)
{
    tqi_sim_host_kill(w->unit.host, false);
    tqi_sim_host_reap(w->unit.host);
}

static void sim_regain_unit(world_t *w)
{
    sim_boot_unit(w, 0);
}

static void sim_close(world_t *w)
{
    tqi_sim_host_kill(w->client.host, false);
    assert_null(tqi_sim_host_arena_fault(w->unit.host));
    if (tqi_sim_host_is_up(w->unit.host))
        sim_lose_unit(w);
    tqi_sim_free(w->sim);
}

static void sim_hold(world_t *w, side_t *side, bool is_held)
{
    (void)w;
    tqi_sim_host_pause(side->host, is_held);
}

static bool sim_turn(world_t *w)
{
    return tqi_sim_step(w->sim, w->until_ns);
}

static const driver_t directly = {
    .name = "in a process",
    .mode = TQI_PAYLOAD_DIRECT,
    .seeds = 1,
    .open = direct_open,
    .close = real_close,
    .lose_unit = real_lose_unit,
    .regain_unit = real_regain_unit,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t over_ipc = {
    .name = "over ipc",
    .mode = TQI_PAYLOAD_STREAM,
    .seeds = 1,
    .open = ipc_open,
    .close = real_close,
    .lose_unit = real_lose_unit,
    .regain_unit = real_regain_unit,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t over_tcp = {
    .name = "over tcp",
    .mode = TQI_PAYLOAD_STREAM,
    .seeds = 1,
    .open = tcp_open,
    .close = real_close,
    .lose_unit = real_lose_unit,
    .regain_unit = real_regain_unit,
    .hold = real_hold,
    .turn = real_turn,
};
static const driver_t simulated = {
    .name = "over the simulated network",
    .mode = TQI_PAYLOAD_STREAM,
    .seeds = 1,
    .open = sim_open,
    .close = sim_close,
    .lose_unit = sim_lose_unit,
    .regain_unit = sim_regain_unit,
    .hold = sim_hold,
    .turn = sim_turn,
};
static const driver_t simulated_directly = {
    .name = "in a simulated process",
    .mode = TQI_PAYLOAD_DIRECT,
    .seeds = 1,
    .open = sim_direct_open,
    .close = sim_close,
    .lose_unit = sim_lose_unit,
    .regain_unit = sim_regain_unit,
    .hold = sim_hold,
    .turn = sim_turn,
};

/* ---- both ends --------------------------------------------------------------------------------- */

static void side_init(world_t *w, side_t *side)
{
    side->world = w;
    side->sink = (tqi_sink_t){.ctx = side, .on_payload = on_payload};
}

static tqi_payload_mode_t way_open(world_t *w, const uint8_t token[16])
{
    tqi_err_t err = {0};
    w->calls++;
    tqi_payload_mode_t mode =
        w->port->open(w->port, UNIT, w->address, token, 16, SESSION, w->handle, &err);
    w->calls--;
    assert_true(mode != TQI_PAYLOAD_NONE || err.text[0]);
    return mode;
}

static void offer(world_t *w)
{
    uint8_t again[16];
    assert_int_equal(w->unit_port->offer(w->unit_port, SESSION, &w->address, w->token, &w->handle),
                     TQ_OK);
    assert_int_equal(w->unit_port->offer(w->unit_port, SESSION, &w->address, again, &w->handle),
                     TQ_OK);
    assert_memory_equal(w->token, again, 16);
}

static world_t *world_open(const driver_t *driver, uint64_t seed)
{
    world_t *w = calloc(1, sizeof *w);
    w->driver = driver;
    w->seed = seed;
    side_init(w, &w->unit);
    side_init(w, &w->client);
    driver->open(w);
    offer(w);
    assert_int_equal(way_open(w, w->token), driver->mode);
    return w;
}

static void world_close(world_t *w)
{
    w->driver->close(w);
    free(w);
}

static void side_hold(side_t *side, bool is_held)
{
    side->world->driver->hold(side->world, side, is_held);
    side->is_held = is_held;
}

/* ---- frames ------------------------------------------------------------------------------------ */

/* The same run of bytes on both sides, cut differently: the client's in memory of its own, the
 * unit's in its segment, one after another. */
typedef struct load {
    uint8_t *local;
    uint64_t bytes;
    uint32_t cnt;
    tqi_frame_t *local_frames, *unit_frames;
    tqi_remote_frame_t *remote;
    tqi_piece_t *local_pieces, *unit_pieces;
    tqi_extent_t *extents;
} load_t;

/* cnt frames of sizes[i], the client's in pieces of about piece_bytes, the unit's in pieces of
 * 1 MiB + 5, from `offset` of the segment. */
static void load_init(load_t *l, uint8_t *segment, uint64_t offset, const uint64_t *sizes,
                      uint32_t cnt, uint64_t piece_bytes)
{
    uint64_t unit_piece = (1u << 20) + 5, local_cap = 0, unit_cap = 0, at = 0;
    memset(l, 0, sizeof *l);
    for (uint32_t i = 0; i < cnt; i++) {
        l->bytes += sizes[i];
        local_cap += sizes[i] / piece_bytes + 2;
        unit_cap += sizes[i] / unit_piece + 2;
    }
    assert_true(offset + l->bytes <= SEGMENT_BYTES);
    l->cnt = cnt;
    l->local = malloc(l->bytes + 1);
    l->local_frames = calloc(cnt + 1, sizeof *l->local_frames);
    l->unit_frames = calloc(cnt + 1, sizeof *l->unit_frames);
    l->remote = calloc(cnt + 1, sizeof *l->remote);
    l->local_pieces = calloc(local_cap + 1, sizeof *l->local_pieces);
    l->unit_pieces = calloc(unit_cap + 1, sizeof *l->unit_pieces);
    l->extents = calloc(unit_cap + 1, sizeof *l->extents);
    tqi_piece_t *lp = l->local_pieces, *up = l->unit_pieces;
    tqi_extent_t *ex = l->extents;
    for (uint32_t i = 0; i < cnt; i++) {
        l->local_frames[i] = (tqi_frame_t){.pieces = lp, .bytes = sizes[i]};
        l->unit_frames[i] = (tqi_frame_t){.pieces = up, .bytes = sizes[i]};
        l->remote[i].extents = ex;
        for (uint64_t off = 0, len; off < sizes[i]; off += len) {
            len = tqi_u64_min(sizes[i] - off, piece_bytes);
            *lp++ = (tqi_piece_t){l->local + at + off, len};
            l->local_frames[i].pieces_cnt++;
        }
        for (uint64_t off = 0, len; off < sizes[i]; off += len) {
            len = tqi_u64_min(sizes[i] - off, unit_piece);
            *up++ = (tqi_piece_t){segment + offset + at + off, len};
            *ex++ = (tqi_extent_t){1, offset + at + off, len};
            l->unit_frames[i].pieces_cnt++;
            l->remote[i].extents_cnt++;
        }
        at += sizes[i];
    }
}

static void load_fini(load_t *l)
{
    free(l->local);
    free(l->local_frames);
    free(l->unit_frames);
    free(l->remote);
    free(l->local_pieces);
    free(l->unit_pieces);
    free(l->extents);
}

static void fill(uint8_t *bytes, uint64_t len, uint64_t seed)
{
    tqi_rng_t rng;
    tqi_rng_init(&rng, seed);
    for (uint64_t i = 0; i < len; i += 8) {
        uint64_t v = tqi_rng_u64(&rng);
        memcpy(bytes + i, &v, tqi_u64_min(8, len - i));
    }
}

/* ---- transfers --------------------------------------------------------------------------------- */

static tq_status_t noted(side_t *side, tqi_transfer_key_t key, tq_status_t rc, const tqi_err_t *err)
{
    if (rc == TQ_OK) {
        assert_true(side->begun_cnt < BEGUN_MAX);
        side->begun[side->begun_cnt++] = (begun_t){.key = key};
    } else if (err) {
        assert_true(err->text[0]);
    }
    return rc;
}

static tq_status_t unit_begins(world_t *w, uint64_t transfer, const load_t *l, bool is_put,
                               tqi_err_t *err)
{
    tqi_transfer_key_t key = {SESSION, transfer};
    w->calls++;
    tq_status_t rc = (is_put ? w->unit_port->expect
                             : w->unit_port->send)(w->unit_port, key, l->unit_frames, l->cnt, err);
    w->calls--;
    return noted(&w->unit, key, rc, err);
}

static tq_status_t client_begins(world_t *w, uint64_t transfer, const load_t *l, bool is_put,
                                 tqi_err_t *err)
{
    tqi_transfer_key_t key = {UNIT, transfer};
    w->calls++;
    tq_status_t rc = (is_put ? w->port->write : w->port->read)(w->port, key, l->local_frames,
                                                               l->remote, l->cnt, NULL, err);
    w->calls--;
    return noted(&w->client, key, rc, err);
}

/* Both ends, in the order of life: a PUT's unit expects before it says READY, a GET's client reads
 * before it says COMMIT. */
static void begin(world_t *w, uint64_t transfer, const load_t *l, bool is_put)
{
    tqi_err_t err = {0};
    bool has_unit = w->driver->mode == TQI_PAYLOAD_STREAM;
    if (has_unit && is_put && unit_begins(w, transfer, l, true, &err) != TQ_OK)
        fail_msg("%s", err.text);
    if (client_begins(w, transfer, l, is_put, &err) != TQ_OK)
        fail_msg("%s", err.text);
    if (has_unit && !is_put && unit_begins(w, transfer, l, false, &err) != TQ_OK)
        fail_msg("%s", err.text);
}

static void client_drop(world_t *w, uint64_t transfer)
{
    w->calls++;
    w->port->drop(w->port, (tqi_transfer_key_t){UNIT, transfer});
    w->calls--;
}

static void unit_drop(world_t *w, uint64_t transfer)
{
    w->calls++;
    w->unit_port->drop(w->unit_port, (tqi_transfer_key_t){SESSION, transfer});
    w->calls--;
}

/* How a transfer ended; it is over. */
static tq_status_t end_of(const side_t *side, uint64_t transfer)
{
    for (uint32_t i = side->begun_cnt; i-- > 0;)
        if (side->begun[i].key.transfer == transfer && side->begun[i].is_over)
            return side->begun[i].status;
    fail_msg("transfer %llu is not over", (unsigned long long)transfer);
    return TQ_E_BUG;
}

static bool all_over(const world_t *w)
{
    return w->client.over_cnt == w->client.begun_cnt && w->unit.over_cnt == w->unit.begun_cnt;
}

/* Everything that was begun ends well. */
static void wait_over(world_t *w)
{
    until(w, all_over(w));
    for (uint32_t i = 0; i < w->client.begun_cnt; i++)
        assert_int_equal(w->client.begun[i].status, TQ_OK);
    for (uint32_t i = 0; i < w->unit.begun_cnt; i++)
        assert_int_equal(w->unit.begun[i].status, TQ_OK);
    w->client.begun_cnt = w->client.over_cnt = w->unit.begun_cnt = w->unit.over_cnt = 0;
}

/* Forgets how the past ended. */
static void forget_ends(world_t *w)
{
    assert_true(all_over(w));
    w->client.begun_cnt = w->client.over_cnt = w->unit.begun_cnt = w->unit.over_cnt = 0;
}

static uint64_t next_transfer(void)
{
    static uint64_t last;
    return ++last;
}

static void there_and_back(world_t *w, const uint64_t *sizes, uint32_t cnt, uint64_t piece_bytes)
{
    load_t l;
    load_init(&l, w->segment, 0, sizes, cnt, piece_bytes);
    uint8_t *want = malloc(l.bytes + 1);
    fill(want, l.bytes, l.bytes + 1);
    memcpy(l.local, want, l.bytes);
    memset(w->segment, 0xee, l.bytes + 64);
    begin(w, next_transfer(), &l, true);
    wait_over(w);
    assert_memory_equal(w->segment, want, l.bytes);
    assert_int_equal(w->segment[l.bytes], 0xee);

    memset(l.local, 0, l.bytes);
    begin(w, next_transfer(), &l, false);
    wait_over(w);
    assert_memory_equal(l.local, want, l.bytes);
    free(want);
    load_fini(&l);
}

#endif
