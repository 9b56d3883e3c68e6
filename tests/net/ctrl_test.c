/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What net/ctrl.h promises, stamped on each adapter: the same cases run over inproc, ipc, tcp, tcp with
 * CURVE, and the simulated network. What the header leaves open is compared: whatever a real network
 * was seen to do, the simulated one does as well for some seed, so it is never the kinder one.
 */
#include "ctrl_ends.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <zmq.h>

#include "base/rng.h"

/* The usual cast. */
#define SERVER(w) (&(w)->ends[0])
#define CLIENT(w) (&(w)->ends[1])
#define OTHER(w) (&(w)->ends[2])

static void open_two(world_t *w)
{
    end_open(w, SERVER(w), "server");
    end_open(w, CLIENT(w), "");
}

static uint32_t next_stream(void)
{
    static uint32_t last;
    return ++last;
}

/* Sends numbers [from, to) of a stream; waits where the queue is full. */
static void send_stream(end_t *end, tqi_peer_t peer, uint32_t stream, uint32_t from, uint32_t to,
                        size_t len)
{
    for (uint32_t i = from; i < to; i++) {
        tq_status_t rc;
        while ((rc = end_send(end, peer, (mark_t){stream, i}, len)) == TQ_E_BUSY)
            turns(end->world, 1);
        assert_int_equal(rc, TQ_OK);
    }
}

/* ---- frames ------------------------------------------------------------------------------------ */

static void frames_arrive_whole_and_in_order_both_ways(world_t *w)
{
    uint64_t bytes = 0;
    uint32_t stream = next_stream();
    open_two(w);
    SERVER(w)->is_echo = true;
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    for (uint32_t i = 0; i < 1000; i++) {
        size_t len = i % 100 == 99 ? (2u << 20) + i : 8 + (i * 37) % 5000;
        bytes += len;
        send_stream(CLIENT(w), peer, stream, i, i + 1, len);
        until(w, bytes - CLIENT(w)->bytes < 8u << 20); /* so that each echo finds room */
    }
    until(w, CLIENT(w)->messages == 1000);
    assert_int_equal(SERVER(w)->bytes, bytes);
    assert_int_equal(CLIENT(w)->bytes, bytes);
    assert_int_equal(CLIENT(w)->last_peer, peer);
    assert_int_equal(SERVER(w)->seen_cnt, 1);
}

static void the_largest_frame_arrives_and_so_does_what_follows(world_t *w)
{
    uint32_t stream = next_stream();
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, stream, 0, 1, TQ_MESSAGE_BYTES_MAX);
    send_stream(CLIENT(w), peer, stream, 1, 2, 8);
    until(w, SERVER(w)->messages == 2);
    assert_int_equal(SERVER(w)->bytes, TQ_MESSAGE_BYTES_MAX + 8);
    send_stream(SERVER(w), SERVER(w)->last_peer, stream, 0, 1, TQ_MESSAGE_BYTES_MAX);
    send_stream(SERVER(w), SERVER(w)->last_peer, stream, 1, 2, 8);
    until(w, CLIENT(w)->messages == 2);
    assert_int_equal(CLIENT(w)->bytes, TQ_MESSAGE_BYTES_MAX + 8);
}

static void two_hundred_peers_are_told_apart(world_t *w)
{
    tqi_peer_t peers[200];
    uint32_t streams[200];
    open_two(w);
    SERVER(w)->is_echo = true;
    for (unsigned i = 0; i < 200; i++) {
        peers[i] = end_dial(CLIENT(w), SERVER(w)->address);
        streams[i] = next_stream();
        send_stream(CLIENT(w), peers[i], streams[i], 0, 1, 8);
    }
    until(w, CLIENT(w)->messages == 200);
    for (unsigned i = 0; i < 200; i++) {
        CLIENT(w)->messages = 0;
        send_stream(CLIENT(w), peers[i], streams[i], 1, 2, 8);
        until(w, CLIENT(w)->messages == 1);
        assert_int_equal(CLIENT(w)->last_peer, peers[i]);
        assert_int_equal(CLIENT(w)->last_stream, streams[i]);
    }
    assert_int_equal(SERVER(w)->seen_cnt, 200);
}

/* ---- who is there ------------------------------------------------------------------------------ */

static void who_connects_again_is_somebody_else(world_t *w)
{
    open_two(w);
    tqi_peer_t first = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), first, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    tqi_peer_t seen = SERVER(w)->last_peer;
    end_hang_up(CLIENT(w), first);
    assert_int_equal(end_send(CLIENT(w), first, (mark_t){1, 1}, 8), TQ_E_UNREACHABLE);
    end_hang_up(CLIENT(w), first); /* no effect */
    tqi_peer_t second = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), second, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 2);
    assert_int_not_equal(SERVER(w)->last_peer, seen);
    quiet(w, 10);
    assert_int_equal(CLIENT(w)->downs, 0); /* who hangs up is not told */
}

static void a_peer_that_is_not_there_goes_down_with_a_reason(world_t *w)
{
    char nobody[TQI_ADDRESS_MAX];
    open_two(w);
    end_open(w, OTHER(w), "nobody"); /* an address that was just free */
    strcpy(nobody, OTHER(w)->address);
    end_close(OTHER(w));
    tqi_peer_t peer = end_dial(CLIENT(w), nobody);
    (void)end_send(CLIENT(w), peer, (mark_t){1, 0}, 8);
    until(w, CLIENT(w)->downs == 1);
    assert_int_equal(CLIENT(w)->last_down, peer);
    assert_true(strlen(CLIENT(w)->why) > 0);
    assert_int_equal(end_send(CLIENT(w), peer, (mark_t){1, 1}, 8), TQ_E_UNREACHABLE);
    quiet(w, 10);
    assert_int_equal(CLIENT(w)->downs, 1);
}

static void a_server_that_goes_takes_its_peers_down(world_t *w)
{
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    end_close(SERVER(w));
    until(w, CLIENT(w)->downs == 1);
    assert_int_equal(CLIENT(w)->last_down, peer);
    assert_int_equal(end_send(CLIENT(w), peer, (mark_t){1, 1}, 8), TQ_E_UNREACHABLE);
}

static void who_listens_again_gets_nothing_that_was_meant_for_the_one_before(world_t *w)
{
    uint32_t stream = next_stream();
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, stream, 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    end_hold(SERVER(w), true);
    for (uint32_t i = 1; i < 20; i++)
        (void)end_send(CLIENT(w), peer, (mark_t){stream, i}, 1000);
    turns(w, 3);
    end_close(SERVER(w));
    for (uint32_t i = 20; i < 30; i++)
        (void)end_send(CLIENT(w), peer, (mark_t){stream, i}, 1000);
    end_open(w, SERVER(w), "server");
    until(w, CLIENT(w)->downs == 1);
    quiet(w, 20);
    assert_int_equal(SERVER(w)->messages, 0);
    peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
}

static void an_address_that_is_in_use_is_refused(world_t *w)
{
    tqi_err_t err = {0};
    open_two(w);
    assert_false(end_try(w, OTHER(w), "server", &err));
    if (!w->sim)
        assert_non_null(strstr(err.text, SERVER(w)->address + strlen("tcp://")));
    /* The first one still works. */
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
}

static void addresses_of_another_kind_and_unknown_peers_are_refused(world_t *w)
{
    tqi_peer_t peer = 77;
    tqi_err_t err = {0};
    open_two(w);
    end_t *client = CLIENT(w);
    const char *bad[] = {"", "nowhere", w->driver->foreign};
    for (unsigned i = 0; i < tqi_array_len(bad); i++) {
        err.text[0] = '\0';
        assert_int_equal(client->ctrl->connect(client->ctrl, bad[i], &peer, &err), TQ_E_CONFIG);
        assert_non_null(strstr(err.text, bad[i]));
    }
    assert_int_equal(end_send(client, 12345, (mark_t){1, 0}, 8), TQ_E_UNREACHABLE);
    end_hang_up(client, 12345);
    quiet(w, 10);
    assert_int_equal(client->downs + SERVER(w)->seen_cnt, 0);
}

/* ---- hanging up -------------------------------------------------------------------------------- */

static void hanging_up_drops_what_is_queued(world_t *w)
{
    open_two(w);
    for (unsigned round = 0; round < 4; round++) {
        uint32_t before = SERVER(w)->messages, stream = next_stream();
        tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
        for (uint32_t i = 0; i < 50; i++)
            assert_int_equal(end_send(CLIENT(w), peer, (mark_t){stream, i}, 100000), TQ_OK);
        turns(w, round * 3);
        end_hang_up(CLIENT(w), peer);
        quiet(w, 10);
        /* Some of it, from its beginning: on_message has looked. */
        assert_true(SERVER(w)->messages - before <= 50);
    }
    uint32_t before = SERVER(w)->messages;
    send_stream(CLIENT(w), end_dial(CLIENT(w), SERVER(w)->address), next_stream(), 0, 3, 8);
    until(w, SERVER(w)->messages == before + 3);
    assert_int_equal(CLIENT(w)->downs, 0);
}

static void a_peer_that_was_forgotten_comes_back_as_another_or_not_at_all(world_t *w)
{
    uint32_t stream = next_stream(), before;
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, stream, 0, 3, 8);
    until(w, SERVER(w)->messages == 3);
    tqi_peer_t seen = SERVER(w)->last_peer;
    end_hang_up(SERVER(w), seen);
    assert_int_equal(end_send(SERVER(w), seen, (mark_t){1, 0}, 8), TQ_E_UNREACHABLE);
    for (uint32_t i = 3; i < 6; i++) {
        (void)end_send(CLIENT(w), peer, (mark_t){stream, i}, 8);
        quiet(w, 3);
    }
    /* That it is not under the old handle, and in order, on_message has looked. */
    assert_int_equal(SERVER(w)->downs, 0);
    before = SERVER(w)->messages;
    send_stream(CLIENT(w), end_dial(CLIENT(w), SERVER(w)->address), next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == before + 1);
}

static void hang_up_and_dial(end_t *end, tqi_peer_t peer)
{
    if (end->messages == 5) {
        end_hang_up(end, peer);
        end_dial(end, end->world->ends[0].address);
    }
}

static void dial_again(end_t *end, tqi_peer_t peer)
{
    (void)peer;
    if (end->downs < 3)
        end_dial(end, end->address[0] ? end->address : end->world->ends[2].address);
}

static void ports_may_be_called_from_within_what_they_report(world_t *w)
{
    uint32_t stream = next_stream();
    open_two(w);
    SERVER(w)->is_echo = true;
    CLIENT(w)->on_message = hang_up_and_dial;
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(end_send(CLIENT(w), peer, (mark_t){stream, i}, 8), TQ_OK);
    until(w, CLIENT(w)->messages == 5);
    quiet(w, 10);
    assert_int_equal(CLIENT(w)->messages, 5); /* the handle is gone: it brings nothing more */
    assert_int_equal(CLIENT(w)->downs, 0);

    /* From within the news that nobody is there, to where nobody is. */
    CLIENT(w)->on_message = NULL;
    CLIENT(w)->on_down = dial_again;
    end_open(w, OTHER(w), "nobody");
    end_close(OTHER(w));
    end_dial(CLIENT(w), OTHER(w)->address);
    until(w, CLIENT(w)->downs == 3);
}

/* ---- who is slow, and who floods --------------------------------------------------------------- */

static void a_peer_that_does_not_read_costs_a_bounded_queue(world_t *w)
{
    uint32_t stream = next_stream(), sent = 1;
    tq_status_t rc = TQ_OK;
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, stream, 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    end_hold(SERVER(w), true);
    /* Until it has been full for a while, since what real networks hold for us is asynchronous. */
    for (unsigned full = 0; full < 20; full = rc == TQ_E_BUSY ? full + 1 : 0) {
        rc = end_send(CLIENT(w), peer, (mark_t){stream, sent}, 1u << 20);
        sent += rc == TQ_OK;
        turns(w, 1);
    }
    assert_int_equal(rc, TQ_E_BUSY);
    assert_true(sent > 15);
    /* 16 MiB of ours; over libzmq besides 4 that it was lent, what the kernel holds, and the 64
     * messages that the other end's libzmq takes before it stops reading. */
    assert_true(sent <= 1 + (w->driver->is_zmq ? 16 + 4 + 16 + 64 + 1 : 16));
    end_hold(SERVER(w), false);
    until(w, SERVER(w)->messages == sent);
    send_stream(CLIENT(w), peer, stream, sent, sent + 1, 8);
    until(w, SERVER(w)->messages == sent + 1);
}

static void a_peer_that_does_not_read_delays_nobody_else(world_t *w)
{
    uint32_t to_slow = next_stream(), to_quick = next_stream(), sent = 0;
    open_two(w);
    end_open(w, OTHER(w), "");
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    tqi_peer_t slow = SERVER(w)->last_peer;
    send_stream(OTHER(w), end_dial(OTHER(w), SERVER(w)->address), next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 2);
    tqi_peer_t quick = SERVER(w)->last_peer;
    end_hold(CLIENT(w), true);
    for (unsigned full = 0; full < 20;) {
        tq_status_t rc = end_send(SERVER(w), slow, (mark_t){to_slow, sent}, 256u << 10);
        full = rc == TQ_E_BUSY ? full + 1 : 0;
        sent += rc == TQ_OK;
        turns(w, 1);
    }
    for (uint32_t i = 0; i < 20; i++) {
        send_stream(SERVER(w), quick, to_quick, i, i + 1, 8);
        until(w, OTHER(w)->messages == i + 1);
    }
    end_hold(CLIENT(w), false);
    until(w, CLIENT(w)->messages == sent);
}

static uint32_t patient_stream; /* of who does not flood, ... */
static uint64_t patient_bytes;  /* ... and how much had come when its frame came */

static void note_patient(end_t *end, tqi_peer_t peer)
{
    (void)peer;
    if (end->last_stream == patient_stream)
        patient_bytes = end->bytes;
}

static void a_flood_delays_others_by_no_more_than_its_own_queue(world_t *w)
{
    uint32_t flood = next_stream(), other = next_stream(), sent = 0;
    uint64_t before = 0;
    open_two(w);
    SERVER(w)->on_message = note_patient;
    end_open(w, OTHER(w), "");
    tqi_peer_t flooding = end_dial(CLIENT(w), SERVER(w)->address);
    tqi_peer_t patient = end_dial(OTHER(w), SERVER(w)->address);
    send_stream(CLIENT(w), flooding, flood, sent++, 1, 8);
    send_stream(OTHER(w), patient, other, 0, 1, 8);
    until(w, SERVER(w)->messages == 2);
    patient_stream = other;
    patient_bytes = 0;
    for (unsigned turn = 0; patient_bytes == 0 && turn < 20000; turn++) {
        while (end_send(CLIENT(w), flooding, (mark_t){flood, sent}, 64u << 10) == TQ_OK)
            sent++;
        if (turn == 20) {
            before = SERVER(w)->bytes;
            send_stream(OTHER(w), patient, other, 1, 2, 8);
        }
        turns(w, 1);
    }
    assert_int_not_equal(patient_bytes, 0);
    /* The queue, and what libzmq, the kernel and the other libzmq hold. The simulated network has no
     * bandwidth: what is sent while the other's frame travels counts too. */
    assert_true(patient_bytes - before <= (w->driver->is_zmq ? 40u : w->sim ? 64u : 17u) << 20);
}

/* ---- the end ----------------------------------------------------------------------------------- */

static void closing_with_work_in_flight_calls_nobody(world_t *w)
{
    for (unsigned round = 0; round < 8; round++) {
        uint32_t stream = next_stream();
        open_two(w);
        SERVER(w)->is_echo = true;
        tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
        for (uint32_t i = 0; i < 20; i++)
            (void)end_send(CLIENT(w), peer, (mark_t){stream, i}, i % 2 ? 8 : 300000);
        turns(w, round * 2);
        end_close(round % 2 ? SERVER(w) : CLIENT(w));
        turns(w, 5);
        end_close(round % 2 ? CLIENT(w) : SERVER(w));
        quiet(w, 2); /* on_message has looked */
    }
}

/* Anything at any time, for what has to hold whatever happens: on_message and on_peer_down look. */
static void whatever_happens_streams_stay_whole_in_order_and_once(world_t *w)
{
    tqi_rng_t rng;
    mark_t next[2][HANDLES_MAX] = {0}; /* of each end that dials, by handle */
    tqi_rng_init(&rng, w->seed);
    open_two(w);
    end_open(w, OTHER(w), "");
    end_t *server = SERVER(w);
    for (unsigned step = 0; step < 400; step++) {
        unsigned which = (unsigned)tqi_rng_below(&rng, 2);
        end_t *from = which ? CLIENT(w) : OTHER(w);
        uint32_t cnt = from->seen_cnt;
        uint32_t at = cnt ? cnt - 1 - (uint32_t)tqi_rng_below(&rng, tqi_u64_min(cnt, 4)) : 0;
        mark_t *mark = &next[which][at];
        switch (cnt ? tqi_rng_below(&rng, 40) : 0) {
        case 0:
        case 1:
            end_dial(from, server->address);
            break;
        case 2:
            end_hang_up(from, from->seen[at].peer);
            break;
        case 3:
            if (server->seen_cnt > 0)
                end_hang_up(server, server->seen[server->seen_cnt - 1].peer);
            break;
        case 4:
            if (tqi_rng_below(&rng, 3) == 0) {
                end_close(server);
                turns(w, (unsigned)tqi_rng_below(&rng, 4));
                end_open(w, server, "server");
            }
            break;
        case 5:
            end_hold(from, true);
            turns(w, (unsigned)tqi_rng_below(&rng, 8));
            end_hold(from, false);
            break;
        case 6:
            turns(w, (unsigned)tqi_rng_below(&rng, 20));
            break;
        default:
            if (from->seen[at].is_gone)
                break;
            if (mark->stream == 0)
                mark->stream = next_stream();
            mark->number += end_send(from, from->seen[at].peer, *mark,
                                     tqi_rng_below(&rng, 10) ? 8 + tqi_rng_below(&rng, 3000)
                                                             : 1u << 18) == TQ_OK;
            break;
        }
    }
    quiet(w, 30);
}

/* ---- what the header leaves open --------------------------------------------------------------- */

/* What the listener learns of a peer that hung up: nothing, at once, or when it sends. */
static unsigned told_of_a_hang_up(world_t *w)
{
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    end_hang_up(CLIENT(w), peer);
    quiet(w, 20);
    if (SERVER(w)->downs)
        return 1;
    tq_status_t rc = end_send(SERVER(w), SERVER(w)->last_peer, (mark_t){1, 0}, 8);
    quiet(w, 5);
    if (rc == TQ_E_UNREACHABLE)
        assert_int_equal(SERVER(w)->downs, 1);
    return SERVER(w)->downs ? 2 : 0;
}

/* What comes of a peer that the listener forgot: it is told, or it comes back with its next frame as
 * somebody else, or neither. */
static unsigned forgotten_peer_sends(world_t *w)
{
    uint32_t stream = next_stream();
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, stream, 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    end_hang_up(SERVER(w), SERVER(w)->last_peer);
    quiet(w, 5);
    (void)end_send(CLIENT(w), peer, (mark_t){stream, 1}, 8);
    quiet(w, 10);
    return CLIENT(w)->downs ? 1 : SERVER(w)->messages == 2 ? 2 : 0;
}

static unsigned part_of(uint32_t got, uint32_t all)
{
    return got == 0 ? 0 : got == all ? 2 : 1;
}

/* How much arrives of what was sent right before: nothing, some, all. */
static unsigned sent_and_hung_up(world_t *w)
{
    uint32_t stream = next_stream();
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, stream, 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    for (uint32_t i = 1; i <= 20; i++)
        (void)end_send(CLIENT(w), peer, (mark_t){stream, i}, 100000);
    turns(w, 1);
    end_hang_up(CLIENT(w), peer);
    quiet(w, 20);
    return part_of(SERVER(w)->messages - 1, 20);
}

static unsigned sent_and_died(world_t *w)
{
    uint32_t stream = next_stream();
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    send_stream(CLIENT(w), peer, next_stream(), 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    for (uint32_t i = 0; i < 20; i++)
        (void)end_send(SERVER(w), SERVER(w)->last_peer, (mark_t){stream, i}, 100000);
    turns(w, 1);
    end_close(SERVER(w));
    until(w, CLIENT(w)->downs == 1);
    return part_of(CLIENT(w)->messages, 20);
}

/* Whether a frame is taken for an address where nobody listens. */
static unsigned sent_to_nobody(world_t *w)
{
    open_two(w);
    end_open(w, OTHER(w), "nobody");
    end_close(OTHER(w));
    tqi_peer_t peer = end_dial(CLIENT(w), OTHER(w)->address);
    tq_status_t rc = end_send(CLIENT(w), peer, (mark_t){1, 0}, 8);
    until(w, CLIENT(w)->downs == 1);
    return rc == TQ_OK;
}

typedef unsigned (*oddity_t)(world_t *w);

static unsigned outcomes_of(const driver_t *driver, oddity_t oddity, unsigned runs)
{
    unsigned found = 0;
    for (uint64_t seed = 1; seed <= runs; seed++) {
        world_t *w = world_open(driver, seed);
        found |= 1u << oddity(w);
        world_close(w);
    }
    return found;
}

static void the_simulated_network_does_whatever_a_real_one_was_seen_to_do(void **state)
{
    static const driver_t *const real[] = {&over_inproc, &over_ipc, &over_tcp, &over_curve};
    static const struct {
        const char *name;
        oddity_t oddity;
    } all[] = {{"told of a hang-up", told_of_a_hang_up},
               {"forgotten peer sends", forgotten_peer_sends},
               {"sent and hung up", sent_and_hung_up},
               {"sent and died", sent_and_died},
               {"sent to nobody", sent_to_nobody}};
    (void)state;
    for (unsigned i = 0; i < tqi_array_len(all); i++) {
        unsigned simulated = outcomes_of(&over_sim, all[i].oddity, 60);
        for (unsigned d = 0; d < tqi_array_len(real); d++) {
            unsigned seen = outcomes_of(real[d], all[i].oddity, 3);
            if (seen & ~simulated)
                fail_msg("%s: over %s outcomes %x, simulated %x", all[i].name, real[d]->name, seen,
                         simulated);
        }
    }
}

/* ---- libzmq only ------------------------------------------------------------------------------- */

static void garbage_on_the_socket_disturbs_nobody(void **state)
{
    (void)state;
    world_t *w = world_open(&over_tcp, 1);
    uint32_t stream = next_stream();
    open_two(w);
    tqi_peer_t peer = end_dial(CLIENT(w), SERVER(w)->address);
    SERVER(w)->takes_garbage = true; /* ZMTP 1.0 begins with no magic: some junk passes for it */
    send_stream(CLIENT(w), peer, stream, 0, 1, 8);
    until(w, SERVER(w)->messages == 1);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port =
                                 htons((uint16_t)atoi(strrchr(SERVER(w)->address, ':') + 1)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 0; i < 8; i++) {
        uint8_t junk[4096];
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        for (size_t k = 0; k < sizeof junk; k++)
            junk[k] = (uint8_t)((size_t)i * 31 + k * 7);
        assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
        (void)!write(fd, junk, sizeof junk);
        quiet(w, 3);
        close(fd);
    }
    /* A libzmq peer that sends three parts is no peer of ours either. */
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    int linger = 0;
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_connect(dealer, SERVER(w)->address), 0);
    zmq_send(dealer, "a", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "b", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "c", 1, 0);
    send_stream(CLIENT(w), peer, stream, 1, 2, 8);
    until(w, SERVER(w)->messages == 2);
    quiet(w, 30);
    assert_int_equal(SERVER(w)->messages, 2);
    zmq_close(dealer);
    zmq_ctx_term(context);
    world_close(w);
}

/* An end with keys of its own. */
static void open_with_keys(world_t *w, end_t *end, const tqi_zmq_conf_t *conf, bool is_listening)
{
    tqi_err_t err = {0};
    memset(end, 0, sizeof *end);
    end->world = w;
    end->sink = (tqi_sink_t){end, on_message, on_peer_down, NULL};
    strcpy(end->name, is_listening ? "keyed" : "");
    end->is_open = zmq_open(w, end, "tcp", conf, &err);
    assert_true(end->is_open);
}

static void keys_decide_who_is_served_over_tcp(void **state)
{
    (void)state;
    char other[41], other_secret[41];
    world_t *w = world_open(&over_tcp, 1);
    end_t *server = &w->ends[0], *good = &w->ends[1], *wrong = &w->ends[2], *none = &w->ends[3];
    assert_int_equal(tqi_zmq_keypair(other, other_secret, NULL), TQ_OK);
    open_with_keys(
        w, server,
        &(tqi_zmq_conf_t){.curve_secret_key = w->curve_secret, .curve_public_key = w->curve_public},
        true);
    open_with_keys(w, good, &(tqi_zmq_conf_t){.curve_server_key = w->curve_public}, false);
    open_with_keys(w, wrong, &(tqi_zmq_conf_t){.curve_server_key = other}, false);
    open_with_keys(w, none, NULL, false);
    (void)end_send(wrong, end_dial(wrong, server->address), (mark_t){1, 0}, 8);
    (void)end_send(none, end_dial(none, server->address), (mark_t){2, 0}, 8);
    (void)end_send(good, end_dial(good, server->address), (mark_t){3, 0}, 8);
    until(w, server->messages == 1 && none->downs == 1);
    quiet(w, 50);
    assert_int_equal(server->messages, 1);
    assert_int_equal(server->last_stream, 3);
    assert_int_equal(good->downs, 0);
    world_close(w);
}

static void bad_keys_and_addresses_are_refused_with_what_is_expected(void **state)
{
    (void)state;
    tqi_err_t err = {0};
    tqi_sink_t sink = {0};
    tqi_ctrl_adapter_t *adapter;
    tqi_peer_t peer;
    char real[TQI_ADDRESS_MAX];
    assert_int_equal(tqi_zmq_ctrl_new(tqi_env_malloc(),
                                      &(tqi_zmq_conf_t){.curve_server_key = "short"}, &sink,
                                      &adapter, &err),
                     TQ_E_CONFIG);
    assert_non_null(strstr(err.text, "curve_server_key"));
    world_t *w = world_open(&over_tcp, 1);
    open_two(w);
    adapter = CLIENT(w)->adapter;
    assert_int_equal(adapter->ctrl.connect(&adapter->ctrl, "tcp://nowhere", &peer, &err),
                     TQ_E_CONFIG);
    assert_int_equal(adapter->listen(adapter, "tcp://999.1.1.1:x", real, &err), TQ_E_CONFIG);
    assert_int_equal(adapter->listen(adapter, "tcp://203.0.113.7:1234", real, &err), TQ_E_ADDRESS);
    assert_true(adapter->serves(adapter, "ipc://x"));
    assert_false(adapter->serves(adapter, "udp://x"));
    char deep[200] = "ipc:///tmp/";
    memset(deep + strlen(deep), 'x', 120);
    assert_int_equal(adapter->listen(adapter, deep, real, &err), TQ_E_ADDRESS);
    assert_non_null(strstr(err.text, "shorter"));
    world_close(w);
}

/* ---- stamping ---------------------------------------------------------------------------------- */

typedef struct stamp {
    void (*run)(world_t *w);
    const driver_t *driver;
    unsigned seeds;
} stamp_t;

static void run_stamp(void **state)
{
    const stamp_t *stamp = *state;
    for (uint64_t seed = 1; seed <= stamp->seeds; seed++) {
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
        unsigned seeds_max;
    } cases[] = {
#define CASE(test) {#test, test, 100}
#define LARGE_CASE(test)                                                                           \
    {                                                                                              \
#test, test, 1                                                                             \
    } /* moves many MiB */
        LARGE_CASE(frames_arrive_whole_and_in_order_both_ways),
        LARGE_CASE(the_largest_frame_arrives_and_so_does_what_follows),
        CASE(two_hundred_peers_are_told_apart),
        CASE(who_connects_again_is_somebody_else),
        CASE(a_peer_that_is_not_there_goes_down_with_a_reason),
        CASE(a_server_that_goes_takes_its_peers_down),
        CASE(who_listens_again_gets_nothing_that_was_meant_for_the_one_before),
        CASE(an_address_that_is_in_use_is_refused),
        CASE(addresses_of_another_kind_and_unknown_peers_are_refused),
        CASE(hanging_up_drops_what_is_queued),
        CASE(a_peer_that_was_forgotten_comes_back_as_another_or_not_at_all),
        CASE(ports_may_be_called_from_within_what_they_report),
        LARGE_CASE(a_peer_that_does_not_read_costs_a_bounded_queue),
        LARGE_CASE(a_peer_that_does_not_read_delays_nobody_else),
        LARGE_CASE(a_flood_delays_others_by_no_more_than_its_own_queue),
        CASE(closing_with_work_in_flight_calls_nobody),
        CASE(whatever_happens_streams_stay_whole_in_order_and_once),
    };
    static const driver_t *const drivers[] = {&over_inproc, &over_ipc, &over_tcp, &over_curve,
                                              &over_sim};
    enum { CASES = tqi_array_len(cases), DRIVERS = tqi_array_len(drivers) };
    static stamp_t stamps[CASES * DRIVERS + 1];
    static char names[CASES * DRIVERS + 1][128];
    struct CMUnitTest tests[CASES * DRIVERS + 5] = {
        cmocka_unit_test(the_simulated_network_does_whatever_a_real_one_was_seen_to_do),
        cmocka_unit_test(garbage_on_the_socket_disturbs_nobody),
        cmocka_unit_test(keys_decide_who_is_served_over_tcp),
        cmocka_unit_test(bad_keys_and_addresses_are_refused_with_what_is_expected),
    };
    size_t cnt = 4;
    for (size_t i = 0; i <= CASES * DRIVERS; i++) {
        bool is_storm = i == CASES * DRIVERS;
        size_t c = is_storm ? CASES - 1 : i / DRIVERS;
        const driver_t *driver = is_storm ? &over_storm : drivers[i % DRIVERS];
        stamps[i] = (stamp_t){cases[c].run, driver,
                              (unsigned)tqi_u64_min(driver->seeds, cases[c].seeds_max)};
        snprintf(names[i], sizeof names[i], "%s over %s", cases[c].name, stamps[i].driver->name);
        tests[cnt++] = (struct CMUnitTest){names[i], run_stamp, NULL, NULL, &stamps[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
