/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What net/payload.h promises, stamped on each way: DIRECT inside a process, STREAM over ipc and
 * tcp, and both as they are simulated.
 */
#include "payload_ends.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <zmq.h>

#include "net/zmq/stream.h"

/* ---- frames ------------------------------------------------------------------------------------ */

static void frames_of_every_size_arrive_where_they_belong(world_t *w)
{
    static const uint64_t sizes[][5] = {
        {0},
        {1, 0, 65535, 65536, 65537},
        {(1 << 20) - 1, 1 << 20, (1 << 20) + 1, 0, 3},
        {40u << 20, 7, 5u << 20, 1, 0},
    };
    there_and_back(w, sizes[0], 0, 1); /* no frame at all */
    for (unsigned i = 0; i < 4; i++) {
        there_and_back(w, sizes[i], 5, UINT64_MAX / 2); /* one piece a frame */
        there_and_back(w, sizes[i], 5, 100001);
        there_and_back(w, sizes[i], 5, 3 << 20);
    }
}

static void thousands_of_small_frames_are_one_transfer(world_t *w)
{
    uint64_t *sizes = calloc(8192, sizeof *sizes);
    for (uint32_t i = 0; i < 8192; i++)
        sizes[i] = (i * 37) % 600;
    there_and_back(w, sizes, 8192, 128);
    there_and_back(w, sizes, 8192, 4096);
    free(sizes);
}

static void transfers_run_side_by_side(world_t *w)
{
    load_t loads[8];
    uint64_t size = (6u << 20) + 11;
    for (unsigned i = 0; i < 8; i++) {
        load_init(&loads[i], w->segment, i * (7u << 20), &size, 1, 1u << 20);
        fill(loads[i].local, size, i + 1);
        begin(w, next_transfer(), &loads[i], true);
    }
    wait_over(w);
    for (unsigned i = 0; i < 8; i++)
        assert_memory_equal(w->segment + i * (7u << 20), loads[i].local, size);
    for (unsigned i = 0; i < 8; i++) {
        memset(loads[i].local, 0, size);
        begin(w, next_transfer(), &loads[i], false);
    }
    wait_over(w);
    for (unsigned i = 0; i < 8; i++) {
        assert_memory_equal(w->segment + i * (7u << 20), loads[i].local, size);
        load_fini(&loads[i]);
    }
}

static void a_small_transfer_does_not_wait_for_a_large_one(world_t *w)
{
    for (unsigned is_put = 0; is_put < 2; is_put++) {
        load_t large, small;
        uint64_t large_size = 48u << 20, small_size = 64u << 10, id = next_transfer();
        load_init(&large, w->segment, 0, &large_size, 1, 1u << 20);
        load_init(&small, w->segment, large_size, &small_size, 1, 1u << 20);
        fill(large.local, large_size, 1);
        fill(small.local, small_size, 2);
        begin(w, id, &large, is_put);
        begin(w, next_transfer(), &small, is_put);
        until(w, w->client.over_cnt > 0);
        assert_false(w->client.begun[0].is_over);
        wait_over(w);
        load_fini(&large);
        load_fini(&small);
    }
}

/* ---- flow -------------------------------------------------------------------------------------- */

static void who_does_not_run_gets_a_window_and_no_more(world_t *w)
{
    for (unsigned is_put = 0; is_put < 2; is_put++) {
        load_t l;
        uint64_t size = 60u << 20;
        side_t *receiver = is_put ? &w->unit : &w->client, *sender = is_put ? &w->client : &w->unit;
        there_and_back(w, &(uint64_t){1000}, 1, 1000); /* the connection is there */
        load_init(&l, w->segment, 0, &size, 1, 1u << 20);
        fill(is_put ? l.local : w->segment, size, 5);
        side_hold(receiver, true);
        begin(w, next_transfer(), &l, is_put);
        quiet(w, 200);
        assert_int_equal(sender->over_cnt, 0);
        assert_int_equal(receiver->over_cnt, 0);
        side_hold(receiver, false);
        wait_over(w);
        assert_memory_equal(w->segment, l.local, size);
        load_fini(&l);
    }
}

/* ---- dropping ---------------------------------------------------------------------------------- */

/* After the answer to drop nobody touches the memory: it is freed at once, for ASan to see. */
static void a_dropped_transfer_ends_once_and_the_next_one_works(world_t *w)
{
    uint64_t size = 48u << 20;
    for (unsigned round = 0; round < 6; round++) {
        load_t l;
        uint64_t id = next_transfer();
        load_init(&l, w->segment, 0, &size, 1, 2u << 20);
        fill(l.local, size, round);
        begin(w, id, &l, round % 2 == 0);
        turns(w, round * 3);
        client_drop(w, id);
        client_drop(w, id);
        until(w, w->client.over_cnt == 1);
        assert_true(end_of(&w->client, id) == TQ_E_CANCELLED || end_of(&w->client, id) == TQ_OK);
        load_fini(&l);
        unit_drop(w, id);
        until(w, all_over(w));
        quiet(w, 10);
        forget_ends(w);
        client_drop(w, id); /* over: no effect */
        unit_drop(w, id);
        client_drop(w, 1u << 30);
        unit_drop(w, 1u << 30);
    }
    there_and_back(w, &size, 1, 1u << 20);
}

static void one_end_drops_and_the_other_learns_of_it_or_is_dropped_too(world_t *w)
{
    uint64_t size = 30u << 20;
    for (unsigned round = 0; round < 8; round++) {
        load_t l;
        uint64_t id = next_transfer();
        bool is_put = round % 2, is_unit = round / 2 % 2;
        load_init(&l, w->segment, 0, &size, 1, 1u << 20);
        begin(w, id, &l, is_put);
        turns(w, round / 4 * 6);
        if (is_unit)
            unit_drop(w, id);
        else
            client_drop(w, id);
        if (is_put == is_unit) /* who receives says so; who sends says nothing */
            until(w, all_over(w));
        until(w, (is_unit ? &w->unit : &w->client)->over_cnt == 1);
        client_drop(w, id);
        unit_drop(w, id);
        until(w, all_over(w));
        load_fini(&l);
        forget_ends(w);
    }
    there_and_back(w, &size, 1, 1u << 20);
}

static void closing_in_the_middle_leaves_nothing_behind(world_t *first)
{
    const driver_t *driver = first->driver;
    uint64_t seed = first->seed;
    for (unsigned round = 0; round < 12; round += 3) {
        world_t *w = world_open(driver, seed);
        load_t put, get;
        uint64_t size = 30u << 20;
        load_init(&put, w->segment, 0, &size, 1, 1u << 20);
        load_init(&get, w->segment, size, &size, 1, 1u << 20);
        fill(put.local, size, 1);
        begin(w, next_transfer(), &put, true);
        begin(w, next_transfer(), &get, false);
        turns(w, round);
        world_close(w);
        load_fini(&put);
        load_fini(&get);
    }
}

/* ---- who is there ------------------------------------------------------------------------------ */

static void without_a_way_nothing_begins(world_t *w)
{
    load_t l;
    tqi_err_t err = {0};
    uint64_t size = 1000;
    load_init(&l, w->segment, 0, &size, 1, size);
    w->port->close(w->port, UNIT);
    w->port->close(w->port, UNIT);
    assert_int_equal(client_begins(w, next_transfer(), &l, true, &err), TQ_E_UNREACHABLE);
    assert_int_equal(client_begins(w, next_transfer(), &l, false, &err), TQ_E_UNREACHABLE);
    /* Bad offers. */
    uint64_t handle = w->handle;
    const char *address = w->address;
    w->handle = 0;
    w->address = "";
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_NONE);
    w->address = "nowhere";
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_NONE);
    w->handle = handle;
    w->address = address;
    assert_int_equal(client_begins(w, next_transfer(), &l, true, &err), TQ_E_UNREACHABLE);
    quiet(w, 5);
    assert_int_equal(w->client.over_cnt, 0);
    /* Opened again, and again. */
    assert_int_equal(way_open(w, w->token), w->driver->mode);
    there_and_back(w, &size, 1, size);
    assert_int_equal(way_open(w, w->token), w->driver->mode);
    there_and_back(w, &size, 1, size);
    load_fini(&l);
}

static void a_key_that_is_under_way_is_refused_at_the_unit(world_t *w)
{
    load_t l;
    tqi_err_t err = {0};
    uint64_t size = 1u << 20, id = next_transfer();
    load_init(&l, w->segment, 0, &size, 1, size);
    assert_int_equal(unit_begins(w, id, &l, true, &err), TQ_OK);
    assert_int_equal(unit_begins(w, id, &l, true, &err), TQ_E_CLOSED);
    assert_int_equal(client_begins(w, id, &l, true, &err), TQ_OK);
    wait_over(w);
    load_fini(&l);
}

static void a_unit_that_goes_ends_its_transfers(world_t *w)
{
    load_t get, put;
    uint64_t size = 60u << 20, small = 100;
    load_init(&get, w->segment, 0, &small, 1, 1u << 20);
    load_init(&put, w->segment, 0, &size, 1, 1u << 20);
    fill(put.local, size, 4);
    /* One waits for bytes that nobody sends, the other for credit that nobody grants. */
    uint64_t get_id = next_transfer(), put_id = next_transfer();
    assert_int_equal(client_begins(w, get_id, &get, false, NULL), TQ_OK);
    side_hold(&w->unit, true);
    assert_int_equal(client_begins(w, put_id, &put, true, NULL), TQ_OK);
    quiet(w, 20);
    side_hold(&w->unit, false);
    w->driver->lose_unit(w);
    until(w, w->client.over_cnt == 2);
    assert_int_equal(end_of(&w->client, get_id), TQ_E_PEER_LOST);
    assert_int_equal(end_of(&w->client, put_id), TQ_E_PEER_LOST);
    load_fini(&get);
    load_fini(&put);
}

static void a_unit_that_was_started_again_knows_no_old_token(world_t *w)
{
    load_t l;
    uint64_t size = 1u << 20, id = next_transfer();
    load_init(&l, w->segment, 0, &size, 1, size);
    there_and_back(w, &size, 1, size);
    w->driver->lose_unit(w);
    w->driver->regain_unit(w);
    quiet(w, 20);
    forget_ends(w);
    /* tcp has another port then: there is nobody at the old one. */
    assert_int_equal(client_begins(w, id, &l, false, NULL), TQ_OK);
    until(w, w->client.over_cnt == 1);
    tq_status_t rc = end_of(&w->client, id);
    assert_true(rc == TQ_E_DENIED || (rc == TQ_E_PEER_LOST && strstr(w->driver->name, "tcp")));
    load_fini(&l);
    forget_ends(w);
    offer(w);
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_STREAM);
    there_and_back(w, &size, 1, 1000);
}

static void a_wrong_token_is_refused_and_the_right_one_still_works(world_t *w)
{
    uint8_t wrong[16] = {1, 2, 3};
    uint64_t size = 1u << 20, id = next_transfer();
    load_t l;
    load_init(&l, w->segment, 0, &size, 1, size);
    assert_int_equal(way_open(w, wrong), TQI_PAYLOAD_STREAM);
    assert_int_equal(client_begins(w, id, &l, false, NULL), TQ_OK);
    until(w, w->client.over_cnt == 1);
    assert_int_equal(end_of(&w->client, id), TQ_E_DENIED);
    load_fini(&l);
    forget_ends(w);
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_STREAM);
    there_and_back(w, &size, 1, 1000);
}

static void a_session_that_was_forgotten_is_not_let_in_again(world_t *w)
{
    uint64_t size = 1u << 20, id = next_transfer();
    load_t l;
    load_init(&l, w->segment, 0, &size, 1, size);
    there_and_back(w, &size, 1, 1000);
    w->unit_port->forget(w->unit_port, SESSION);
    w->unit_port->forget(w->unit_port, SESSION);
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_STREAM);
    assert_int_equal(client_begins(w, id, &l, false, NULL), TQ_OK);
    until(w, w->client.over_cnt == 1);
    assert_int_equal(end_of(&w->client, id), TQ_E_DENIED);
    load_fini(&l);
    forget_ends(w);
    uint8_t old[16];
    memcpy(old, w->token, 16);
    offer(w);
    assert_memory_not_equal(old, w->token, 16);
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_STREAM);
    there_and_back(w, &size, 1, 1000);
}

/* ---- one kind only ----------------------------------------------------------------------------- */

static void extents_outside_the_segment_are_refused(void **state)
{
    (void)state;
    world_t *w = world_open(&directly, 1);
    uint64_t size = 1u << 20;
    load_t l;
    tqi_err_t err = {0};
    load_init(&l, w->segment, 0, &size, 1, size);
    l.extents[0].offset = SEGMENT_BYTES - 10;
    assert_int_equal(client_begins(w, 1u << 20, &l, true, &err), TQ_E_MALFORMED);
    l.extents[0].offset = UINT64_MAX - 10;
    assert_int_equal(client_begins(w, 1u << 20, &l, true, &err), TQ_E_MALFORMED);
    l.extents[0] = (tqi_extent_t){9, 0, size};
    assert_int_equal(client_begins(w, 1u << 20, &l, true, &err), TQ_E_MALFORMED);
    l.extents[0] = (tqi_extent_t){1, 0, size - 1};
    assert_int_equal(client_begins(w, 1u << 20, &l, true, &err), TQ_E_MALFORMED);
    quiet(w, 5);
    assert_int_equal(w->client.over_cnt, 0);
    load_fini(&l);
    world_close(w);
}

/* Says a head, and data, as a peer of libzmq that is none of ours. */
static void say_rubbish(void *dealer, const tqi_stream_head_t *head, const char *data, size_t len)
{
    assert_true(tqi_stream_say(dealer, NULL, 0, head, data, len));
}

static void garbage_on_the_payload_port_disturbs_nobody(void **state)
{
    static const tqi_stream_head_t heads[] = {
        {.kind = TQI_STREAM_DATA, .id = 1, .len = 5},
        {.kind = TQI_STREAM_CREDIT, .id = 1, .credit = UINT64_MAX},
        {.kind = TQI_STREAM_STOP, .id = 1},
        {.kind = TQI_STREAM_REFUSED, .id = SESSION},
        {.kind = 77, .id = SESSION},
        {.kind = TQI_STREAM_HELLO, .id = SESSION},
    };
    (void)state;
    world_t *w = world_open(&over_tcp, 1);
    uint64_t size = 20u << 20;
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    int linger = 0;
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_connect(dealer, w->address), 0);
    for (unsigned i = 0; i < tqi_array_len(heads); i++) {
        say_rubbish(dealer, &heads[i], "wrong", 5);
        say_rubbish(dealer, &heads[i], NULL, 0);
    }
    for (unsigned parts = 1; parts < 6; parts++)
        for (unsigned i = 0; i < parts; i++)
            assert_true(zmq_send(dealer, "rubbish", 7, i + 1 < parts ? ZMQ_SNDMORE : 0) >= 0);
    there_and_back(w, &size, 1, 1u << 20);

    /* A peer that knows its token and then lies: the transfer fails, the port goes on. */
    w->port->close(w->port, UNIT);
    tqi_stream_head_t hello = {.kind = TQI_STREAM_HELLO, .id = SESSION};
    say_rubbish(dealer, &hello, (const char *)w->token, 16);
    load_t l;
    load_init(&l, w->segment, 0, &size, 1, 1u << 20);
    static const tqi_stream_head_t lies[] = {
        {.kind = TQI_STREAM_DATA, .frame = 1, .len = 5},           /* no such frame */
        {.kind = TQI_STREAM_DATA, .len = 6},                       /* another length */
        {.kind = TQI_STREAM_DATA, .len = 5, .offset = 5},          /* not the next */
        {.kind = TQI_STREAM_DATA, .len = 5, .offset = UINT64_MAX}, /* far away */
    };
    for (unsigned i = 0; i < tqi_array_len(lies); i++) {
        tqi_stream_head_t lie = lies[i];
        lie.id = next_transfer();
        assert_int_equal(unit_begins(w, lie.id, &l, true, NULL), TQ_OK);
        memset(w->segment, 0xee, 64);
        say_rubbish(dealer, &lie, "wrong", 5);
        until(w, w->unit.over_cnt == 1);
        assert_int_equal(end_of(&w->unit, lie.id), TQ_E_MALFORMED);
        assert_int_equal(w->segment[0], 0xee);
        forget_ends(w);
    }
    load_fini(&l);
    zmq_close(dealer);
    zmq_ctx_term(context);
    assert_int_equal(way_open(w, w->token), TQI_PAYLOAD_STREAM);
    there_and_back(w, &size, 1, 1u << 20);
    world_close(w);
}

/* ---- the arena --------------------------------------------------------------------------------- */

static void segments_open_are_punched_and_close(world_t *w)
{
    tqi_err_t err = {0};
    void *bases[5] = {0};
    tqi_arena_t *arena = w->arena_port;
    for (uint32_t id = 2; id < 5; id++) {
        assert_int_equal(arena->open(arena, id, id * 65536, &bases[id], &err), TQ_OK);
        assert_int_equal((uintptr_t)bases[id] % 4096, 0);
        memset(bases[id], (int)id, id * 65536);
    }
    arena->punch(arena, 3, 4096, 8192);
    arena->punch(arena, 3, 0, 0);
    arena->close(arena, 2);
    assert_int_equal(((uint8_t *)bases[3])[4095], 3);
    assert_int_equal(((uint8_t *)bases[3])[12288], 3);
    assert_int_equal(((uint8_t *)bases[4])[4 * 65536 - 1], 4);
    /* What was punched can be written again. */
    memset((uint8_t *)bases[3] + 4096, 7, 8192);
    assert_int_equal(((uint8_t *)bases[3])[12287], 7);
    arena->close(arena, 3);
    arena->close(arena, 4);
}

/* ---- stamping ---------------------------------------------------------------------------------- */

typedef struct stamp {
    void (*run)(world_t *w);
    const driver_t *driver;
} stamp_t;

static void run_stamp(void **state)
{
    const stamp_t *stamp = *state;
    for (uint64_t seed = 1; seed <= stamp->driver->seeds; seed++) {
        world_t *w = world_open(stamp->driver, seed);
        stamp->run(w);
        world_close(w);
    }
}

int main(void)
{
    static const struct {
        const char *name;
        void (*run)(world_t *w);
        bool is_for_streams;
    } cases[] = {
#define CASE(test) {#test, test, false}
#define STREAM_CASE(test)                                                                          \
    {                                                                                              \
#test, test, true                                                                          \
    }
        CASE(frames_of_every_size_arrive_where_they_belong),
        CASE(thousands_of_small_frames_are_one_transfer),
        CASE(transfers_run_side_by_side),
        CASE(a_small_transfer_does_not_wait_for_a_large_one),
        CASE(a_dropped_transfer_ends_once_and_the_next_one_works),
        CASE(closing_in_the_middle_leaves_nothing_behind),
        CASE(without_a_way_nothing_begins),
        CASE(segments_open_are_punched_and_close),
        STREAM_CASE(who_does_not_run_gets_a_window_and_no_more),
        STREAM_CASE(one_end_drops_and_the_other_learns_of_it_or_is_dropped_too),
        STREAM_CASE(a_key_that_is_under_way_is_refused_at_the_unit),
        STREAM_CASE(a_unit_that_goes_ends_its_transfers),
        STREAM_CASE(a_unit_that_was_started_again_knows_no_old_token),
        STREAM_CASE(a_wrong_token_is_refused_and_the_right_one_still_works),
        STREAM_CASE(a_session_that_was_forgotten_is_not_let_in_again),
    };
    static const driver_t *const drivers[] = {&directly, &over_ipc, &over_tcp, &simulated,
                                              &simulated_directly};
    enum { CASES = tqi_array_len(cases), DRIVERS = tqi_array_len(drivers) };
    static stamp_t stamps[CASES * DRIVERS];
    static char names[CASES * DRIVERS][128];
    struct CMUnitTest tests[CASES * DRIVERS + 2] = {
        cmocka_unit_test(extents_outside_the_segment_are_refused),
        cmocka_unit_test(garbage_on_the_payload_port_disturbs_nobody),
    };
    size_t cnt = 2;
    for (size_t i = 0; i < CASES * DRIVERS; i++) {
        stamps[i] = (stamp_t){cases[i / DRIVERS].run, drivers[i % DRIVERS]};
        if (cases[i / DRIVERS].is_for_streams && stamps[i].driver->mode != TQI_PAYLOAD_STREAM)
            continue;
        snprintf(names[i], sizeof names[i], "%s %s", cases[i / DRIVERS].name,
                 stamps[i].driver->name);
        tests[cnt++] = (struct CMUnitTest){names[i], run_stamp, NULL, NULL, &stamps[i]};
    }
    return _cmocka_run_group_tests("payload", tests, cnt, NULL, NULL);
}
