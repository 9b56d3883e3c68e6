/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated network keeps the ports' contracts, and breaks nothing but what it may. */
#include <string.h>

#include "net/sim/sim.h"
#include "unit.h"

#define MESSAGES_MAX 4096

typedef struct node {
    tqi_sim_host_t *host;
    tqi_sink_t sink;
    tqi_peer_t peer; /* of the last message */
    uint32_t messages[MESSAGES_MAX];
    tqi_peer_t from[MESSAGES_MAX];
    uint32_t messages_cnt;
    uint32_t downs_cnt;
    tqi_peer_t down;
    uint32_t payloads_cnt;
    tqi_transfer_key_t payload_key;
    tq_status_t payload_status;
    bool is_echoing;
} node_t;

typedef struct world {
    tqi_sim_t *sim;
    unit_env_t env;
    node_t a, b;
} world_t;

static void send_number(world_t *w, node_t *node, tqi_peer_t peer, uint32_t number)
{
    tqi_buf_t frame;

    tqi_buf_init(&frame, &w->env.env);
    assert_int_equal(tqi_buf_append(&frame, &number, sizeof number), TQ_OK);
    (void)tqi_sim_host_ctrl(node->host)->send(tqi_sim_host_ctrl(node->host), peer, &frame);
    tqi_buf_fini(&frame);
}

static void on_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    node_t *node = ctx;

    assert_int_equal(len, sizeof(uint32_t));
    assert_true(node->messages_cnt < MESSAGES_MAX);
    memcpy(&node->messages[node->messages_cnt], data, len);
    node->from[node->messages_cnt++] = peer;
    node->peer = peer;
}

static void on_peer_down(void *ctx, tqi_peer_t peer)
{
    node_t *node = ctx;

    node->downs_cnt++;
    node->down = peer;
}

static void on_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    node_t *node = ctx;

    assert_non_null(text);
    node->payloads_cnt++;
    node->payload_key = key;
    node->payload_status = status;
}

static void boot(node_t *node, uint32_t process)
{
    node->sink = (tqi_sink_t){node, on_message, on_peer_down, on_payload};
    tqi_sim_host_boot(node->host, &node->sink, true, process);
}

static world_t *setup_with(uint64_t seed, const tqi_sim_faults_t *faults, uint32_t process)
{
    static world_t world;
    world_t *w = &world;
    tqi_sim_conf_t conf = {.seed = seed, .chunk_bytes_max = 1000, .window_bytes = 5000};

    memset(w, 0, sizeof *w);
    conf.faults = *faults;
    unit_env_init(&w->env);
    w->sim = tqi_sim_new(&conf);
    w->a.host = tqi_sim_host_new(w->sim, "a");
    w->b.host = tqi_sim_host_new(w->sim, "b");
    boot(&w->a, process);
    boot(&w->b, process);
    return w;
}

static const tqi_sim_faults_t no_faults = {.latency_min_ns = 10 * TQI_SIM_US,
                                           .latency_max_ns = 1000 * TQI_SIM_US};

static world_t *setup(uint64_t seed)
{
    return setup_with(seed, &no_faults, 0);
}

static void run(world_t *w, uint64_t ns)
{
    uint64_t until = tqi_sim_now(w->sim) + ns;

    while (tqi_sim_step(w->sim, until))
        continue;
}

static void teardown(world_t *w)
{
    if (tqi_sim_host_is_up(w->a.host))
        tqi_sim_host_kill(w->a.host, false);
    if (tqi_sim_host_is_up(w->b.host))
        tqi_sim_host_kill(w->b.host, false);
    tqi_sim_host_reap(w->a.host);
    tqi_sim_host_reap(w->b.host);
    tqi_sim_free(w->sim);
    assert_int_equal(w->env.bytes, 0);
}

static tqi_peer_t dial_b(world_t *w)
{
    tqi_ctrl_t *ctrl = tqi_sim_host_ctrl(w->a.host);
    tqi_peer_t peer;
    tqi_err_t err;

    assert_int_equal(ctrl->connect(ctrl, tqi_sim_host_address(w->b.host), &peer, &err), TQ_OK);
    return peer;
}

static void hang_up(node_t *node, tqi_peer_t peer)
{
    tqi_sim_host_ctrl(node->host)->disconnect(tqi_sim_host_ctrl(node->host), peer);
}

/* ---- ctrl -------------------------------------------------------------------------------------- */

static void frames_of_one_handle_arrive_in_order_and_once(void **state)
{
    tqi_sim_faults_t faults = no_faults;

    (void)state;
    faults.spike = 0.2;
    faults.spike_ns = 50 * TQI_SIM_MS;
    for_each_seed(seed, 50)
    {
        world_t *w = setup_with(seed, &faults, 0);
        tqi_peer_t peer = dial_b(w);
        for (uint32_t i = 0; i < 200; i++) {
            send_number(w, &w->a, peer, i);
            if (i % 7 == 0)
                run(w, 100 * TQI_SIM_US);
        }
        run(w, 60 * TQI_SIM_S);
        unit_check(w->b.messages_cnt == 200);
        for (uint32_t i = 0; i < 200; i++)
            unit_check(w->b.messages[i] == i);
        teardown(w);
    }
}

static void a_loss_leaves_the_others_in_order(void **state)
{
    tqi_sim_faults_t faults = no_faults;

    (void)state;
    faults.loss = 0.3;
    for_each_seed(seed, 20)
    {
        world_t *w = setup_with(seed, &faults, 0);
        tqi_peer_t peer = dial_b(w);
        for (uint32_t i = 0; i < 200; i++)
            send_number(w, &w->a, peer, i);
        run(w, TQI_SIM_S);
        unit_check(w->b.messages_cnt > 80 && w->b.messages_cnt < 200);
        for (uint32_t i = 1; i < w->b.messages_cnt; i++)
            unit_check(w->b.messages[i - 1] < w->b.messages[i]);
        teardown(w);
    }
}

static void the_other_side_answers_by_its_own_handle(void **state)
{
    world_t *w = setup(1);
    tqi_peer_t peer = dial_b(w);

    (void)state;
    send_number(w, &w->a, peer, 1);
    run(w, TQI_SIM_S);
    assert_int_equal(w->b.messages_cnt, 1);
    send_number(w, &w->b, w->b.peer, 2);
    run(w, TQI_SIM_S);
    assert_int_equal(w->a.messages_cnt, 1);
    assert_int_equal(w->a.messages[0], 2);
    assert_int_equal(w->a.peer, peer);
    teardown(w);
}

static void an_address_that_nobody_serves_is_told_down(void **state)
{
    world_t *w = setup(1);
    tqi_peer_t peer;

    (void)state;
    tqi_sim_host_kill(w->b.host, false);
    peer = dial_b(w);
    assert_int_equal(w->a.downs_cnt, 0);
    run(w, TQI_SIM_S);
    assert_int_equal(w->a.downs_cnt, 1);
    assert_int_equal(w->a.down, peer);
    teardown(w);
}

static void an_address_of_another_network_is_refused(void **state)
{
    world_t *w = setup(1);
    tqi_ctrl_t *ctrl = tqi_sim_host_ctrl(w->a.host);
    tqi_peer_t peer;
    tqi_err_t err;

    (void)state;
    assert_int_equal(ctrl->connect(ctrl, "tcp://1.2.3.4:5", &peer, &err), TQ_E_CONFIG);
    teardown(w);
}

static void what_is_queued_reaches_the_process_that_listens_then(void **state)
{
    world_t *w = setup(3);
    tqi_peer_t peer;

    (void)state;
    tqi_sim_block(w->sim, w->a.host, w->b.host, true);
    peer = dial_b(w);
    send_number(w, &w->a, peer, 7);
    run(w, TQI_SIM_S);
    tqi_sim_host_kill(w->b.host, false);
    boot(&w->b, 0);
    tqi_sim_heal(w->sim);
    run(w, TQI_SIM_S);
    assert_int_equal(w->b.messages_cnt, 1);
    teardown(w);
}

static void a_partition_holds_one_direction_and_heals(void **state)
{
    world_t *w = setup(4);
    tqi_peer_t peer = dial_b(w);

    (void)state;
    send_number(w, &w->a, peer, 1);
    run(w, TQI_SIM_S);
    tqi_sim_block(w->sim, w->a.host, w->b.host, true);
    send_number(w, &w->a, peer, 2);
    send_number(w, &w->b, w->b.peer, 3);
    run(w, 10 * TQI_SIM_S);
    assert_int_equal(w->b.messages_cnt, 1);
    assert_int_equal(w->a.messages_cnt, 1);
    tqi_sim_block(w->sim, w->a.host, w->b.host, false);
    run(w, TQI_SIM_S);
    assert_int_equal(w->b.messages_cnt, 2);
    teardown(w);
}

static void a_stopped_process_gets_everything_later(void **state)
{
    world_t *w = setup(5);
    tqi_peer_t peer = dial_b(w);

    (void)state;
    run(w, TQI_SIM_S);
    tqi_sim_host_pause(w->b.host, true);
    for (uint32_t i = 0; i < 10; i++)
        send_number(w, &w->a, peer, i);
    run(w, 10 * TQI_SIM_S);
    assert_int_equal(w->b.messages_cnt, 0);
    tqi_sim_host_pause(w->b.host, false);
    run(w, TQI_SIM_S);
    assert_int_equal(w->b.messages_cnt, 10);
    teardown(w);
}

/* Frames of a connection that was given up may arrive behind those of the next one, but each comes
 * at most once, and under another handle. */
static void late_frames_of_an_old_connection_keep_their_handle(void **state)
{
    uint32_t seen_late = 0;

    (void)state;
    for_each_seed(seed, 100)
    {
        world_t *w = setup(seed);
        tqi_peer_t peer = dial_b(w);
        uint8_t times[20] = {0};
        run(w, TQI_SIM_S);
        for (uint32_t i = 0; i < 10; i++)
            send_number(w, &w->a, peer, i);
        hang_up(&w->a, peer);
        peer = dial_b(w);
        for (uint32_t i = 10; i < 20; i++)
            send_number(w, &w->a, peer, i);
        run(w, TQI_SIM_S);
        tqi_peer_t old = 0, new = 0;
        for (uint32_t i = 0; i < w->b.messages_cnt; i++) {
            uint32_t number = w->b.messages[i];
            tqi_peer_t *handle = number < 10 ? &old : &new;
            unit_check(times[number]++ == 0);
            unit_check(*handle == 0 || *handle == w->b.from[i]);
            *handle = w->b.from[i];
            seen_late += number < 10 && new != 0;
        }
        unit_check(old != new);
        for (uint32_t i = 10; i < 20; i++)
            unit_check(times[i] == 1);
        teardown(w);
    }
    assert_true(seen_late > 0);
}

static void no_down_follows_a_disconnect(void **state)
{
    (void)state;
    for_each_seed(seed, 50)
    {
        world_t *w = setup(seed);
        tqi_peer_t peer = dial_b(w);
        send_number(w, &w->a, peer, 1);
        run(w, TQI_SIM_S);
        hang_up(&w->a, peer);
        run(w, TQI_SIM_S);
        unit_check(w->a.downs_cnt == 0);
        unit_check(w->b.downs_cnt <= 1);
        send_number(w, &w->b, w->b.peer, 2);
        run(w, TQI_SIM_S);
        unit_check(w->a.messages_cnt == 0);
        unit_check(w->b.downs_cnt <= 1);
        teardown(w);
    }
}

static void who_listens_may_forget_a_peer_that_goes_on(void **state)
{
    uint32_t again = 0, down = 0;

    (void)state;
    for_each_seed(seed, 50)
    {
        world_t *w = setup(seed);
        tqi_peer_t peer = dial_b(w), first;
        send_number(w, &w->a, peer, 1);
        run(w, TQI_SIM_S);
        first = w->b.peer;
        hang_up(&w->b, first);
        run(w, TQI_SIM_S);
        send_number(w, &w->a, peer, 2);
        run(w, TQI_SIM_S);
        again += w->b.messages_cnt == 2;
        down += w->a.downs_cnt;
        if (w->b.messages_cnt == 2)
            unit_check(w->b.peer != first);
        teardown(w);
    }
    assert_true(again > 0 && down > 0);
}

static void a_process_that_dies_is_told_by_name_or_not_at_all(void **state)
{
    (void)state;
    for_each_seed(seed, 20)
    {
        world_t *w = setup(seed);
        tqi_peer_t peer = dial_b(w);
        send_number(w, &w->a, peer, 1);
        run(w, TQI_SIM_S);
        tqi_sim_host_kill(w->b.host, seed % 2 == 0);
        run(w, TQI_SIM_S);
        unit_check(w->a.downs_cnt == seed % 2);
        send_number(w, &w->a, peer, 1);
        boot(&w->b, 0);
        run(w, TQI_SIM_S);
        unit_check(w->b.messages_cnt == 1);
        teardown(w);
    }
}

static void a_full_queue_is_busy_and_takes_nothing(void **state)
{
    tqi_sim_conf_t conf = {.seed = 1, .faults = no_faults, .queue_bytes_max = 10};
    world_t *w = setup(1);
    tqi_ctrl_t *ctrl;
    tqi_peer_t peer;
    tqi_buf_t frame;
    tqi_err_t err;

    (void)state;
    tqi_sim_host_kill(w->a.host, false);
    tqi_sim_host_kill(w->b.host, false);
    tqi_sim_free(w->sim);
    w->sim = tqi_sim_new(&conf);
    w->a.host = tqi_sim_host_new(w->sim, "a");
    w->b.host = tqi_sim_host_new(w->sim, "b");
    boot(&w->a, 0);
    boot(&w->b, 0);
    ctrl = tqi_sim_host_ctrl(w->a.host);
    assert_int_equal(ctrl->connect(ctrl, "sim://b", &peer, &err), TQ_OK);
    tqi_buf_init(&frame, &w->env.env);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tqi_buf_append(&frame, "\1\2\3\4", 4), TQ_OK);
        assert_int_equal(ctrl->send(ctrl, peer, &frame), i < 2 ? TQ_OK : TQ_E_BUSY);
        assert_int_equal(frame.len, i < 2 ? 0 : 4);
    }
    tqi_buf_fini(&frame);
    teardown(w);
}

static void equal_seeds_give_equal_runs(void **state)
{
    tqi_sim_faults_t faults = {.latency_min_ns = 1,
                               .latency_max_ns = TQI_SIM_MS,
                               .loss = 0.1,
                               .breaks = 0.02,
                               .spike = 0.1,
                               .spike_ns = TQI_SIM_S};
    uint64_t digests[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        world_t *w = setup_with(i < 2 ? 9 : 10, &faults, 0);
        for (uint32_t n = 0; n < 100; n++) {
            tqi_peer_t peer = dial_b(w);
            send_number(w, &w->a, peer, n);
            run(w, 3 * TQI_SIM_MS);
            if (n % 3 == 0)
                hang_up(&w->a, peer);
        }
        digests[i] = tqi_sim_digest(w->sim);
        teardown(w);
    }
    assert_int_equal(digests[0], digests[1]);
    assert_int_not_equal(digests[0], digests[2]);
}

static void clocks_that_drift_come_to_their_times(void **state)
{
    static const int32_t ppms[] = {0, 300, -300, 99999, -99999};

    (void)state;
    for (size_t i = 0; i < sizeof ppms / sizeof *ppms; i++) {
        world_t *w = setup(1);
        tqi_sim_host_kill(w->a.host, false);
        tqi_sim_host_set_clock(w->a.host, UINT64_C(1234567890123456), ppms[i]);
        boot(&w->a, 0);
        for (uint64_t ahead = 1; ahead < 1000 * TQI_SIM_S; ahead = ahead * 7 + 3) {
            uint64_t local = tqi_sim_host_now(w->a.host) + ahead;
            run(w, tqi_sim_host_when(w->a.host, local) - tqi_sim_now(w->sim));
            assert_true(tqi_sim_host_now(w->a.host) >= local);
            assert_true(tqi_sim_host_now(w->a.host) - local < 2000);
        }
        teardown(w);
    }
}

/* ---- payload ----------------------------------------------------------------------------------- */

#define BYTES 40000

static uint8_t local_bytes[BYTES];

static tqi_payload_mode_t open_way(world_t *w, uint64_t session)
{
    tqi_payload_unit_t *unit = tqi_sim_host_payload_unit(w->b.host);
    tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
    const char *address;
    uint8_t token[16];
    uint64_t arena;
    tqi_err_t err;

    unit->offer(unit, session, &address, token, &arena);
    return client->open(client, 1, address, token, 16, session, arena, &err);
}

/* Both ends of a frame, cut differently. */
typedef struct cut {
    tqi_piece_t pieces[3];
    tqi_frame_t frames[2];
} cut_t;

static void cut_at(cut_t *cut, uint8_t *bytes, size_t first, size_t second)
{
    cut->pieces[0] = (tqi_piece_t){bytes, first};
    cut->pieces[1] = (tqi_piece_t){bytes + first, second};
    cut->pieces[2] = (tqi_piece_t){bytes + BYTES / 2, BYTES / 2};
    cut->frames[0] = (tqi_frame_t){cut->pieces, 2, BYTES / 2};
    cut->frames[1] = (tqi_frame_t){cut->pieces + 2, 1, BYTES / 2};
}

static void fill(uint8_t *bytes, uint64_t seed)
{
    tqi_rng_t rng;

    tqi_rng_init(&rng, seed);
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)tqi_rng_u64(&rng);
}

static void a_stream_carries_all_bytes_whatever_the_cut(void **state)
{
    static uint8_t far_bytes[BYTES];

    (void)state;
    for_each_seed(seed, 20)
    {
        world_t *w = setup(seed);
        tqi_payload_unit_t *unit = tqi_sim_host_payload_unit(w->b.host);
        tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
        tqi_transfer_key_t here = {1, 5}, there = {77, 5};
        bool is_put = seed % 2;
        cut_t near, far;
        tqi_err_t err;
        cut_at(&near, local_bytes, 1, BYTES / 2 - 1);
        cut_at(&far, far_bytes, 12345, BYTES / 2 - 12345);
        fill(is_put ? local_bytes : far_bytes, seed);
        memset(is_put ? far_bytes : local_bytes, 0, BYTES);
        assert_int_equal(open_way(w, 77), TQI_PAYLOAD_STREAM);
        if (is_put) {
            assert_int_equal(unit->expect(unit, there, far.frames, 2, &err), TQ_OK);
            assert_int_equal(client->write(client, here, near.frames, NULL, 2, NULL, &err), TQ_OK);
        } else {
            assert_int_equal(client->read(client, here, near.frames, NULL, 2, NULL, &err), TQ_OK);
            assert_int_equal(unit->send(unit, there, far.frames, 2, &err), TQ_OK);
        }
        run(w, TQI_SIM_S);
        unit_check(w->a.payloads_cnt == 1 && w->a.payload_status == TQ_OK);
        unit_check(w->b.payloads_cnt == 1 && w->b.payload_status == TQ_OK);
        unit_check(w->a.payload_key.owner == 1 && w->b.payload_key.owner == 77);
        unit_check(memcmp(local_bytes, far_bytes, BYTES) == 0);
        client->close(client, 1);
        teardown(w);
    }
}

static void a_stream_that_breaks_ends_for_the_client_alone(void **state)
{
    static uint8_t far_bytes[BYTES];
    world_t *w = setup(11);
    tqi_payload_unit_t *unit = tqi_sim_host_payload_unit(w->b.host);
    tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
    cut_t near, far;
    tqi_err_t err;

    (void)state;
    cut_at(&near, local_bytes, 1, BYTES / 2 - 1);
    cut_at(&far, far_bytes, 2, BYTES / 2 - 2);
    assert_int_equal(open_way(w, 3), TQI_PAYLOAD_STREAM);
    run(w, TQI_SIM_S);
    assert_int_equal(unit->expect(unit, (tqi_transfer_key_t){3, 1}, far.frames, 2, &err), TQ_OK);
    assert_int_equal(
        client->write(client, (tqi_transfer_key_t){1, 1}, near.frames, NULL, 2, NULL, &err), TQ_OK);
    run(w, TQI_SIM_MS);
    tqi_sim_break(w->sim, w->a.host, w->b.host);
    run(w, TQI_SIM_S);
    assert_int_equal(w->a.payload_status, TQ_E_PEER_LOST);
    assert_int_equal(w->b.payloads_cnt, 0);
    unit->drop(unit, (tqi_transfer_key_t){3, 1});
    assert_int_equal(w->b.payloads_cnt, 0);
    run(w, TQI_SIM_S);
    assert_int_equal(w->b.payloads_cnt, 1);
    assert_int_equal(w->b.payload_status, TQ_E_CANCELLED);
    /* The way is dialled anew by the next transfer. */
    assert_int_equal(
        client->read(client, (tqi_transfer_key_t){1, 2}, near.frames, NULL, 2, NULL, &err), TQ_OK);
    assert_int_equal(unit->send(unit, (tqi_transfer_key_t){3, 2}, far.frames, 2, &err), TQ_OK);
    run(w, TQI_SIM_S);
    assert_int_equal(w->a.payload_status, TQ_OK);
    teardown(w);
}

static void nothing_is_written_after_a_dropped_transfer_was_reported(void **state)
{
    static uint8_t far_bytes[BYTES];

    (void)state;
    for_each_seed(seed, 20)
    {
        world_t *w = setup(seed);
        tqi_payload_unit_t *unit = tqi_sim_host_payload_unit(w->b.host);
        tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
        tqi_transfer_key_t here = {1, 5}, there = {77, 5};
        static uint8_t before[BYTES];
        cut_t near, far;
        tqi_err_t err;
        cut_at(&near, local_bytes, 1, BYTES / 2 - 1);
        cut_at(&far, far_bytes, 9, BYTES / 2 - 9);
        fill(far_bytes, seed);
        open_way(w, 77);
        assert_int_equal(client->read(client, here, near.frames, NULL, 2, NULL, &err), TQ_OK);
        assert_int_equal(unit->send(unit, there, far.frames, 2, &err), TQ_OK);
        run(w, 3 * TQI_SIM_MS);
        client->drop(client, here);
        run(w, 2 * TQI_SIM_MS);
        unit_check(w->a.payloads_cnt == 1);
        memcpy(before, local_bytes, BYTES);
        run(w, TQI_SIM_S);
        unit_check(memcmp(before, local_bytes, BYTES) == 0);
        unit_check(w->a.payloads_cnt == 1 && w->b.payloads_cnt == 1);
        teardown(w);
    }
}

static void a_wrong_token_lets_nobody_in(void **state)
{
    world_t *w = setup(2);
    tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
    uint8_t token[16] = "not the right 1";
    cut_t near;
    tqi_err_t err;

    (void)state;
    cut_at(&near, local_bytes, 1, BYTES / 2 - 1);
    assert_int_equal(client->open(client, 1, "simdata://b", token, 16, 77, 0, &err),
                     TQI_PAYLOAD_STREAM);
    assert_int_equal(
        client->read(client, (tqi_transfer_key_t){1, 1}, near.frames, NULL, 2, NULL, &err), TQ_OK);
    run(w, TQI_SIM_S);
    assert_int_equal(w->a.payload_status, TQ_E_DENIED);
    teardown(w);
}

static void a_direct_copy_takes_time_and_can_be_dropped(void **state)
{
    (void)state;
    for_each_seed(seed, 20)
    {
        world_t *w = setup_with(seed, &no_faults, 7);
        tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
        tqi_arena_t *arena = tqi_sim_host_arena(w->b.host);
        tqi_extent_t extents[3] = {
            {1, 256, 10000}, {1, 20480, BYTES / 2 - 10000}, {1, 65536, BYTES / 2}};
        tqi_remote_frame_t remote[2] = {{extents, 2}, {extents + 2, 1}};
        cut_t near;
        void *base;
        tqi_err_t err;
        cut_at(&near, local_bytes, 17, BYTES / 2 - 17);
        fill(local_bytes, seed);
        assert_int_equal(arena->open(arena, 1, 1u << 17, &base, &err), TQ_OK);
        assert_int_equal(open_way(w, 77), TQI_PAYLOAD_DIRECT);
        assert_int_equal(
            client->write(client, (tqi_transfer_key_t){1, 1}, near.frames, remote, 2, NULL, &err),
            TQ_OK);
        run(w, TQI_SIM_MS);
        unit_check(w->a.payloads_cnt == 0);
        if (seed % 2) {
            client->drop(client, (tqi_transfer_key_t){1, 1});
            run(w, 10 * TQI_SIM_MS);
            unit_check(w->a.payload_status == TQ_E_CANCELLED);
        } else {
            run(w, TQI_SIM_S);
            unit_check(w->a.payload_status == TQ_OK);
            unit_check(memcmp((char *)base + 256, local_bytes, 10000) == 0);
            unit_check(memcmp((char *)base + 65536, local_bytes + BYTES / 2, BYTES / 2) == 0);
        }
        unit_check(w->a.payloads_cnt == 1);
        unit_check(tqi_sim_host_arena_fault(w->b.host) == NULL);
        client->close(client, 1);
        teardown(w);
    }
}

static void the_death_of_a_client_ends_its_transfers_at_once(void **state)
{
    world_t *w = setup(2);
    tqi_payload_client_t *client = tqi_sim_host_payload_client(w->a.host);
    cut_t near;
    tqi_err_t err;

    (void)state;
    cut_at(&near, local_bytes, 1, BYTES / 2 - 1);
    open_way(w, 77);
    assert_int_equal(
        client->read(client, (tqi_transfer_key_t){1, 1}, near.frames, NULL, 2, NULL, &err), TQ_OK);
    assert_int_equal(tqi_sim_host_transfers_cnt(w->a.host), 1);
    tqi_sim_host_kill(w->a.host, true);
    assert_int_equal(w->a.payload_status, TQ_E_CLOSED);
    assert_int_equal(tqi_sim_host_transfers_cnt(w->a.host), 0);
    teardown(w);
}

/* ---- arena, memory ----------------------------------------------------------------------------- */

static void the_arena_notices_what_is_written_outside(void **state)
{
    world_t *w = setup(2);
    tqi_arena_t *arena = tqi_sim_host_arena(w->b.host);
    void *base;
    tqi_err_t err;

    (void)state;
    assert_int_equal(arena->open(arena, 1, 65536, &base, &err), TQ_OK);
    assert_null(tqi_sim_host_arena_fault(w->b.host));
    ((uint8_t *)base)[65536] = 0;
    assert_non_null(tqi_sim_host_arena_fault(w->b.host));
    teardown(w);
}

static void the_arena_notices_holes_and_segments_that_are_not_there(void **state)
{
    world_t *w = setup(2);
    tqi_arena_t *arena = tqi_sim_host_arena(w->b.host);
    void *base;
    tqi_err_t err;

    (void)state;
    assert_int_equal(arena->open(arena, 1, 65536, &base, &err), TQ_OK);
    arena->punch(arena, 1, 4096, 8192);
    assert_null(tqi_sim_host_arena_fault(w->b.host));
    assert_true(((uint8_t *)base)[4096] != ((uint8_t *)base)[0]);
    arena->punch(arena, 1, 61440, 8192);
    assert_non_null(tqi_sim_host_arena_fault(w->b.host));
    teardown(w);
}

static void memory_is_counted_and_refused_on_demand(void **state)
{
    tqi_sim_memory_t memory;
    void *a, *b;

    (void)state;
    tqi_sim_memory_init(&memory, "test", 1);
    memory.fail_at = 3;
    a = tqi_env_alloc(&memory.env, 10);
    memset(a, 'x', 10);
    a = tqi_env_realloc(&memory.env, a, 10, 100);
    assert_int_equal(((char *)a)[9], 'x');
    assert_null(tqi_env_alloc(&memory.env, 5));
    b = tqi_env_alloc(&memory.env, 5);
    assert_int_equal(memory.bytes, 105);
    assert_int_equal(memory.blocks, 2);
    tqi_env_free(&memory.env, a, 100);
    tqi_env_free(&memory.env, b, 5);
    assert_int_equal(memory.bytes, 0);
    assert_int_equal(memory.refused, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_of_one_handle_arrive_in_order_and_once),
        cmocka_unit_test(a_loss_leaves_the_others_in_order),
        cmocka_unit_test(the_other_side_answers_by_its_own_handle),
        cmocka_unit_test(an_address_that_nobody_serves_is_told_down),
        cmocka_unit_test(an_address_of_another_network_is_refused),
        cmocka_unit_test(what_is_queued_reaches_the_process_that_listens_then),
        cmocka_unit_test(a_partition_holds_one_direction_and_heals),
        cmocka_unit_test(a_stopped_process_gets_everything_later),
        cmocka_unit_test(late_frames_of_an_old_connection_keep_their_handle),
        cmocka_unit_test(no_down_follows_a_disconnect),
        cmocka_unit_test(who_listens_may_forget_a_peer_that_goes_on),
        cmocka_unit_test(a_process_that_dies_is_told_by_name_or_not_at_all),
        cmocka_unit_test(a_full_queue_is_busy_and_takes_nothing),
        cmocka_unit_test(equal_seeds_give_equal_runs),
        cmocka_unit_test(clocks_that_drift_come_to_their_times),
        cmocka_unit_test(a_stream_carries_all_bytes_whatever_the_cut),
        cmocka_unit_test(a_stream_that_breaks_ends_for_the_client_alone),
        cmocka_unit_test(nothing_is_written_after_a_dropped_transfer_was_reported),
        cmocka_unit_test(a_wrong_token_lets_nobody_in),
        cmocka_unit_test(a_direct_copy_takes_time_and_can_be_dropped),
        cmocka_unit_test(the_death_of_a_client_ends_its_transfers_at_once),
        cmocka_unit_test(the_arena_notices_what_is_written_outside),
        cmocka_unit_test(the_arena_notices_holes_and_segments_that_are_not_there),
        cmocka_unit_test(memory_is_counted_and_refused_on_demand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
