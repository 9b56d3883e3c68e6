/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What net/payload.h promises, stamped on each way: DIRECT inside a process, STREAM over ipc and
 * tcp. The test plays both roles: it says READY and COMMIT by calling the ports itself.
 */
#include "pump.h"

#include <tq/types.h>

#include "base/rng.h"
#include "base/size.h"
#include "net/exec.h"
#include "net/inproc/inproc.h"
#include "net/zmq/zmq_payload.h"

typedef enum way { WAY_DIRECT, WAY_IPC, WAY_TCP } way_t;

#define SESSION 77
#define UNIT 3
#define SEGMENT_BYTES (64u << 20)

typedef struct report {
    uint64_t transfer;
    tq_status_t status;
} report_t;

typedef struct side {
    report_t reports[64];
    uint32_t reports_cnt;
    tqi_sink_t sink;
    tqi_mailbox_t *mailbox;
} side_t;

typedef struct world {
    pump_t pump;
    way_t way;
    char folder[64];
    tqi_exec_t *exec;
    side_t unit;
    side_t client;
    tqi_inproc_arena_t *arena;
    uint8_t *segment; /* 1, of the unit */
    tqi_zmq_payload_unit_t *payload_unit;
    tqi_inproc_payload_t *direct;
    tqi_zmq_payload_client_t *stream;
    tqi_payload_client_t *port; /* the client's */
    tqi_payload_unit_t *unit_port;
    tqi_payload_mode_t mode;
    uint8_t token[16];
    const char *address;
} world_t;

static void on_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    side_t *side = ctx;
    assert_non_null(text);
    assert_true(side->reports_cnt < 64);
    side->reports[side->reports_cnt++] = (report_t){key.transfer, status};
}

static void side_init(world_t *w, side_t *side)
{
    side->sink = (tqi_sink_t){.ctx = side, .on_payload = on_payload};
    side->mailbox = pump_mailbox(&w->pump);
}

static world_t *world_open(way_t way)
{
    world_t *w = calloc(1, sizeof *w);
    char listen[128];
    void *base;
    uint64_t handle;
    tqi_err_t err = {0};
    w->way = way;
    strcpy(w->folder, "/tmp/tq-test-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    side_init(w, &w->unit);
    side_init(w, &w->client);
    assert_int_equal(tqi_exec_new(2, &w->exec, NULL), TQ_OK);
    assert_int_equal(tqi_inproc_arena_new(&w->arena, NULL), TQ_OK);
    tqi_arena_t *arena = tqi_inproc_arena_port(w->arena);
    assert_int_equal(arena->open(arena, 1, SEGMENT_BYTES, &base, NULL), TQ_OK);
    w->segment = base;
    snprintf(listen, sizeof listen, way == WAY_TCP ? "tcp://127.0.0.1:*" : "ipc://%s/data",
             w->folder);
    if (tqi_zmq_payload_unit_new(tqi_env_malloc(), way == WAY_DIRECT ? NULL : listen,
                                 tqi_inproc_arena_handle(w->arena), w->unit.mailbox, &w->unit.sink,
                                 &w->payload_unit, &err) != TQ_OK)
        fail_msg("%s", err.text);
    w->unit_port = tqi_zmq_payload_unit_port(w->payload_unit);
    pump_add(&w->pump, tqi_zmq_payload_unit_source(w->payload_unit));
    if (way == WAY_DIRECT) {
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
    w->unit_port->offer(w->unit_port, SESSION, &w->address, w->token, &handle);
    w->mode =
        w->port->open(w->port, UNIT, w->address, w->token, sizeof w->token, SESSION, handle, &err);
    assert_int_equal(w->mode, way == WAY_DIRECT ? TQI_PAYLOAD_DIRECT : TQI_PAYLOAD_STREAM);
    return w;
}

/* As a host does it: mailboxes first, then what threads may touch, then the ports. */
static void world_close(world_t *w)
{
    char path[128];
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
    tqi_mailbox_unref(w->client.mailbox);
    tqi_mailbox_unref(w->unit.mailbox);
    snprintf(path, sizeof path, "%s/data", w->folder);
    (void)unlink(path);
    assert_int_equal(rmdir(w->folder), 0);
    free(w);
}

/* ---- frames ---------------------------------------------------------------------------------- */

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
 * 1 MiB + 5. */
static void load_init(load_t *l, uint8_t *segment, const uint64_t *sizes, uint32_t cnt,
                      uint64_t piece_bytes)
{
    uint64_t unit_piece = (1u << 20) + 5, local_cap = 0, unit_cap = 0, at = 0;
    memset(l, 0, sizeof *l);
    for (uint32_t i = 0; i < cnt; i++) {
        l->bytes += sizes[i];
        local_cap += sizes[i] / piece_bytes + 2;
        unit_cap += sizes[i] / unit_piece + 2;
    }
    assert_true(l->bytes <= SEGMENT_BYTES);
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
            *up++ = (tqi_piece_t){segment + at + off, len};
            *ex++ = (tqi_extent_t){1, at + off, len};
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

static tq_status_t begin_put(world_t *w, uint64_t transfer, const load_t *l, tqi_err_t *err)
{
    if (w->mode == TQI_PAYLOAD_STREAM) {
        tq_status_t rc = w->unit_port->expect(w->unit_port, (tqi_transfer_key_t){SESSION, transfer},
                                              l->unit_frames, l->cnt, err);
        if (rc != TQ_OK)
            return rc;
    }
    return w->port->write(w->port, (tqi_transfer_key_t){UNIT, transfer}, l->local_frames, l->remote,
                          l->cnt, NULL, err);
}

static tq_status_t begin_get(world_t *w, uint64_t transfer, const load_t *l, tqi_err_t *err)
{
    tq_status_t rc = w->port->read(w->port, (tqi_transfer_key_t){UNIT, transfer}, l->local_frames,
                                   l->remote, l->cnt, NULL, err);
    if (rc == TQ_OK && w->mode == TQI_PAYLOAD_STREAM)
        rc = w->unit_port->send(w->unit_port, (tqi_transfer_key_t){SESSION, transfer},
                                l->unit_frames, l->cnt, err);
    return rc;
}

/* Waits for both sides' reports (only the client's where the unit does nothing). */
static void wait_over(world_t *w, uint32_t cnt)
{
    uint32_t unit_cnt = w->mode == TQI_PAYLOAD_STREAM ? cnt : 0;
    pump_until(&w->pump, w->client.reports_cnt == cnt && w->unit.reports_cnt == unit_cnt);
    for (uint32_t i = 0; i < cnt; i++)
        assert_int_equal(w->client.reports[i].status, TQ_OK);
    for (uint32_t i = 0; i < unit_cnt; i++)
        assert_int_equal(w->unit.reports[i].status, TQ_OK);
    w->client.reports_cnt = w->unit.reports_cnt = 0;
}

static void there_and_back(world_t *w, const uint64_t *sizes, uint32_t cnt, uint64_t piece_bytes)
{
    static uint64_t transfer;
    load_t l;
    tqi_err_t err = {0};
    load_init(&l, w->segment, sizes, cnt, piece_bytes);
    uint8_t *want = malloc(l.bytes + 1);
    fill(want, l.bytes, l.bytes + 1);
    memcpy(l.local, want, l.bytes);
    memset(w->segment, 0xee, l.bytes + 64);
    if (begin_put(w, ++transfer, &l, &err) != TQ_OK)
        fail_msg("%s", err.text);
    wait_over(w, 1);
    assert_memory_equal(w->segment, want, l.bytes);
    assert_int_equal(w->segment[l.bytes], 0xee);

    memset(l.local, 0, l.bytes);
    if (begin_get(w, ++transfer, &l, &err) != TQ_OK)
        fail_msg("%s", err.text);
    wait_over(w, 1);
    assert_memory_equal(l.local, want, l.bytes);
    free(want);
    load_fini(&l);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void frames_of_every_size_arrive_where_they_belong(void **state)
{
    static const uint64_t sizes[][5] = {
        {0},
        {1, 0, 65535, 65536, 65537},
        {(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 0, 3},
        {40u << 20, 7, 5u << 20, 1, 0},
    };
    world_t *w = world_open(*(way_t *)*state);
    for (unsigned i = 0; i < 4; i++) {
        there_and_back(w, sizes[i], 5, UINT64_MAX / 2); /* one piece a frame */
        there_and_back(w, sizes[i], 5, 100001);
        there_and_back(w, sizes[i], 5, 3 << 20);
    }
    world_close(w);
}

static void thousands_of_small_frames_are_one_transfer(void **state)
{
    world_t *w = world_open(*(way_t *)*state);
    uint64_t *sizes = calloc(8192, sizeof *sizes);
    for (uint32_t i = 0; i < 8192; i++)
        sizes[i] = (i * 37) % 600;
    there_and_back(w, sizes, 8192, 128);
    there_and_back(w, sizes, 8192, 4096);
    free(sizes);
    world_close(w);
}

static void transfers_run_side_by_side(void **state)
{
    world_t *w = world_open(*(way_t *)*state);
    load_t loads[8];
    tqi_err_t err = {0};
    uint64_t size = (6u << 20) + 11;
    for (unsigned i = 0; i < 8; i++) {
        load_init(&loads[i], w->segment + i * (7u << 20), &size, 1, 1u << 20);
        for (uint32_t e = 0; e < loads[i].remote[0].extents_cnt; e++)
            loads[i].extents[e].offset += i * (7u << 20);
        fill(loads[i].local, size, i + 1);
        if (begin_put(w, 100 + i, &loads[i], &err) != TQ_OK)
            fail_msg("%s", err.text);
    }
    wait_over(w, 8);
    for (unsigned i = 0; i < 8; i++)
        assert_memory_equal(w->segment + i * (7u << 20), loads[i].local, size);
    for (unsigned i = 0; i < 8; i++) {
        memset(loads[i].local, 0, size);
        if (begin_get(w, 200 + i, &loads[i], &err) != TQ_OK)
            fail_msg("%s", err.text);
    }
    wait_over(w, 8);
    for (unsigned i = 0; i < 8; i++) {
        assert_memory_equal(w->segment + i * (7u << 20), loads[i].local, size);
        load_fini(&loads[i]);
    }
    world_close(w);
}

/* After the answer to drop, nobody touches the memory: it is freed at once, for ASan to see. */
static void a_dropped_transfer_ends_once_and_the_next_one_works(void **state)
{
    world_t *w = world_open(*(way_t *)*state);
    uint64_t size = 48u << 20;
    for (unsigned round = 0; round < 6; round++) {
        tqi_transfer_key_t at_client = {UNIT, 300 + round}, at_unit = {SESSION, 300 + round};
        load_t l;
        tqi_err_t err = {0};
        load_init(&l, w->segment, &size, 1, 2u << 20);
        fill(l.local, size, round);
        bool is_put = round % 2 == 0;
        if ((is_put ? begin_put : begin_get)(w, 300 + round, &l, &err) != TQ_OK)
            fail_msg("%s", err.text);
        pump_quiet(&w->pump, round * 3);
        w->port->drop(w->port, at_client);
        w->port->drop(w->port, at_client);
        pump_until(&w->pump, w->client.reports_cnt == 1);
        load_fini(&l);
        if (w->mode == TQI_PAYLOAD_STREAM) {
            w->unit_port->drop(w->unit_port, at_unit);
            pump_until(&w->pump, w->unit.reports_cnt == 1);
        }
        pump_quiet(&w->pump, 10);
        assert_int_equal(w->client.reports_cnt, 1);
        w->client.reports_cnt = w->unit.reports_cnt = 0;
        w->port->drop(w->port, at_client); /* over: no effect */
    }
    there_and_back(w, &size, 1, 1u << 20);
    world_close(w);
}

static void closing_in_the_middle_leaves_nothing_behind(void **state)
{
    for (unsigned turns = 0; turns < 12; turns += 3) {
        world_t *w = world_open(*(way_t *)*state);
        load_t put, get;
        uint64_t size = 30u << 20;
        load_init(&put, w->segment, &size, 1, 1u << 20);
        load_init(&get, w->segment, &size, 1, 1u << 20);
        fill(put.local, size, 1);
        assert_int_equal(begin_put(w, 1, &put, NULL), TQ_OK);
        assert_int_equal(begin_get(w, 2, &get, NULL), TQ_OK);
        pump_quiet(&w->pump, turns);
        world_close(w);
        load_fini(&put);
        load_fini(&get);
    }
}

static void a_unit_that_goes_ends_its_transfers(void **state)
{
    world_t *w = world_open(*(way_t *)*state);
    load_t l;
    uint64_t size = 60u << 20;
    load_init(&l, w->segment, &size, 1, 1u << 20);
    assert_int_equal(w->port->read(w->port, (tqi_transfer_key_t){UNIT, 1}, l.local_frames, l.remote,
                                   1, NULL, NULL),
                     TQ_OK);
    pump_quiet(&w->pump, 20); /* connected, and waiting for bytes that nobody sends */
    tqi_mailbox_close(w->unit.mailbox);
    tqi_zmq_payload_unit_free(w->payload_unit);
    w->payload_unit = NULL;
    w->pump.sources[0] = w->pump.sources[--w->pump.sources_cnt];
    pump_until(&w->pump, w->client.reports_cnt == 1);
    assert_int_equal(w->client.reports[0].status, TQ_E_PEER_LOST);
    load_fini(&l);
    world_close(w);
}

static void a_wrong_token_is_refused_and_the_right_one_still_works(void **state)
{
    world_t *w = world_open(*(way_t *)*state);
    uint8_t wrong[16] = {1, 2, 3};
    uint64_t size = 1u << 20;
    load_t l;
    load_init(&l, w->segment, &size, 1, size);
    w->port->close(w->port, UNIT);
    assert_int_equal(w->port->open(w->port, UNIT, w->address, wrong, 16, SESSION, 0, NULL),
                     TQI_PAYLOAD_STREAM);
    assert_int_equal(w->port->read(w->port, (tqi_transfer_key_t){UNIT, 1}, l.local_frames, l.remote,
                                   1, NULL, NULL),
                     TQ_OK);
    pump_until(&w->pump, w->client.reports_cnt == 1);
    assert_int_equal(w->client.reports[0].status, TQ_E_DENIED);
    w->client.reports_cnt = 0;
    load_fini(&l);
    assert_int_equal(w->port->open(w->port, UNIT, w->address, w->token, 16, SESSION, 0, NULL),
                     TQI_PAYLOAD_STREAM);
    there_and_back(w, &size, 1, 1000);
    world_close(w);
}

static void extents_outside_the_segment_are_refused(void **state)
{
    (void)state;
    world_t *w = world_open(WAY_DIRECT);
    uint64_t size = 1u << 20;
    load_t l;
    tqi_err_t err = {0};
    load_init(&l, w->segment, &size, 1, size);
    l.extents[0].offset = SEGMENT_BYTES - 10;
    assert_int_equal(begin_put(w, 1, &l, &err), TQ_E_MALFORMED);
    l.extents[0].offset = UINT64_MAX - 10;
    assert_int_equal(begin_put(w, 2, &l, &err), TQ_E_MALFORMED);
    l.extents[0] = (tqi_extent_t){9, 0, size};
    assert_int_equal(begin_put(w, 3, &l, &err), TQ_E_MALFORMED);
    l.extents[0] = (tqi_extent_t){1, 0, size - 1};
    assert_int_equal(begin_put(w, 4, &l, &err), TQ_E_MALFORMED);
    pump_quiet(&w->pump, 5);
    assert_int_equal(w->client.reports_cnt, 0);
    load_fini(&l);
    world_close(w);
}

int main(void)
{
    static way_t direct = WAY_DIRECT, ipc = WAY_IPC, tcp = WAY_TCP;
#define ON_STREAMS(test)                                                                           \
    {#test " over ipc", test, NULL, NULL, &ipc},                                                   \
    {                                                                                              \
#test " over tcp", test, NULL, NULL, &tcp                                                  \
    }
#define ON_EACH(test) {#test " directly", test, NULL, NULL, &direct}, ON_STREAMS(test)
    const struct CMUnitTest tests[] = {
        ON_EACH(frames_of_every_size_arrive_where_they_belong),
        ON_EACH(thousands_of_small_frames_are_one_transfer),
        ON_EACH(transfers_run_side_by_side),
        ON_EACH(a_dropped_transfer_ends_once_and_the_next_one_works),
        ON_EACH(closing_in_the_middle_leaves_nothing_behind),
        ON_STREAMS(a_unit_that_goes_ends_its_transfers),
        ON_STREAMS(a_wrong_token_is_refused_and_the_right_one_still_works),
        cmocka_unit_test(extents_outside_the_segment_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
