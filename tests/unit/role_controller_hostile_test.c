/* SPDX-License-Identifier: Apache-2.0 */
/* What one peer may make a controller remember, and that more is refused. */
#include "role_controller.h"

static void setup(world_t *w, caller_t *c, store_unit_t *u)
{
    world_init(w, NULL);
    unit_register(u, w, 100, 7, "inproc://u1");
    world_drop_all(w);
    caller_hello(c, w, 1);
}

static tq_status_t hello_status(world_t *w, tqi_peer_t peer, uint64_t session, uint32_t epoch)
{
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Hello, .session = session, .epoch = epoch};
    tqi_msg_Hello_t msg = {.version_min = 1, .version_max = 1};

    world_feed(w, peer, &env, &msg);
    world_frame_t *f = world_find(w, peer, TQI_KIND_Hello_R, 0);
    assert_non_null(f);
    tq_status_t status = (tq_status_t)f->env.status;
    world_drop(w, (size_t)(f - w->frames));
    return status;
}

/* Sessions of one connection could else be made, and kept alive, without end. */
static void a_connection_speaks_for_one_session(void **state)
{
    world_t w;
    caller_t a = {0}, b = {0};
    store_unit_t u = {0};

    (void)state;
    setup(&w, &a, &u);
    caller_hello(&b, &w, 2);
    assert_int_not_equal(a.session, b.session);
    assert_int_equal(hello_status(&w, 2, a.session, 99), TQ_E_DENIED);
    /* Nor by any other frame: this one is dropped. */
    caller_t stolen = a;
    stolen.peer = 2;
    stolen.epoch = 99;
    uint64_t seq = caller_send(&stolen, TQI_KIND_Stat, NULL);
    world_settle(&w);
    assert_false(caller_has(&stolen, seq, TQI_KIND_Stat));
    assert_false(caller_has(&a, seq, TQI_KIND_Stat));
    /* A connection of its own may take a session over, which leaves the old one behind. */
    assert_int_equal(hello_status(&w, 3, a.session, 2), TQ_OK);
    assert_int_equal(hello_status(&w, 1, 0, 1), TQ_OK);
    world_fini(&w);
}

static void frames_that_wait_are_bounded_for_a_session(void **state)
{
    static char names[4096u * 1000];
    static uint32_t offsets[4097];
    world_t w;
    caller_t c = {0}, other = {0};
    store_unit_t u = {0};
    tqi_msg_Fetch_R_t reply;
    tqi_buf_t frame;
    uint64_t rows[1], last = 0;
    unsigned parked = 0;

    (void)state;
    setup(&w, &c, &u);
    caller_hello(&other, &w, 2);
    put_rows(&c, "p", 1, strs("a"), rows);
    memset(names, 'n', sizeof names);
    for (uint32_t i = 0; i <= 4096; i++)
        offsets[i] = i * 1000;
    for (uint32_t i = 0; i < 4096; i++)
        memcpy(names + i * 1000, &i, 2);
    /* 4 MB each, and all of them would be waiters: nobody makes those fields. */
    tqi_msg_Fetch_t fetch = {.partition = tqi_str("p"),
                             .fields = {offsets, names, 4096, sizeof names},
                             .rows_cnt = 1,
                             .task = tqi_str("t"),
                             .mode = TQ_FETCH};
    for (unsigned i = 0; i < 32; i++) {
        last = caller_send(&c, TQI_KIND_Fetch, &fetch);
        world_settle(&w);
        parked += !caller_has(&c, last, TQI_KIND_Fetch);
    }
    assert_in_range(parked, 10, 20);
    assert_true(w.env.bytes < (80u << 20));
    assert_int_equal(caller_take(&c, last, TQI_KIND_Fetch, &reply, &frame), TQ_E_BUSY);
    tqi_buf_fini(&frame);
    /* Another session waits all the same. */
    last = caller_send(&other, TQI_KIND_Fetch, &fetch);
    world_settle(&w);
    assert_false(caller_has(&other, last, TQI_KIND_Fetch));
    world_drop_all(&w);
    world_fini(&w);
}

/* Part 65,535 makes room for all before it. */
static void parts_of_publishes_are_bounded_for_a_session(void **state)
{
    world_t w;
    caller_t c = {0};
    store_unit_t u = {0};
    tqi_msg_Publish_R_t reply;
    tqi_buf_t frame;
    tq_status_t rc = TQ_OK;
    uint64_t rows[1];
    unsigned puts = 0;

    (void)state;
    setup(&w, &c, &u);
    for (; rc == TQ_OK && puts < 1000; puts++) {
        uint64_t put_id = put_begin_rows(&c, "p", 1, rows);

        rc = call(&c, Publish, &reply, &frame, .partition = tqi_str("p"), .put_id = put_id,
                  .part = 65535, .parts = 65536, .rows = tqi_u64s(rows, 1));
        tqi_buf_fini(&frame);
        caller_ack(&c, c.seq);
        world_drop_all(&w);
    }
    assert_int_equal(rc, TQ_E_TOO_LARGE);
    assert_in_range(puts, 64, 200);
    assert_true(w.env.bytes < (400u << 20));
    /* What was refused has ended its put; ending the others makes room. */
    for (uint64_t put_id = 1; put_id < puts; put_id++) {
        assert_int_equal(call(&c, Publish, &reply, &frame, .put_id = put_id, .is_abort = true),
                         TQ_OK);
        tqi_buf_fini(&frame);
        caller_ack(&c, c.seq);
        world_drop_all(&w);
    }
    assert_true(w.env.bytes < (8u << 20));
    world_fini(&w);
}

static tq_status_t register_status(world_t *w, tqi_peer_t peer, uint64_t incarnation,
                                   const char *address)
{
    uint32_t offsets[2] = {0, (uint32_t)strlen(address)};
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Register};
    tqi_msg_Register_t msg = {.version_min = 1,
                              .version_max = 1,
                              .unit_incarnation = incarnation,
                              .addresses = {offsets, address, 1, offsets[1]},
                              .capacity_bytes = 1000,
                              .free_bytes = 1000};

    world_feed(w, peer, &env, &msg);
    world_frame_t *f = world_find(w, peer, TQI_KIND_Register_R, 0);
    if (!f) { /* the next life of a unit shows that it is alive */
        tqi_envelope_t pong = {
            .version = 1, .kind = TQI_KIND_Ping_R, .incarnation = WORLD_INCARNATION};

        world_feed(w, peer, &pong, &(tqi_msg_Ping_R_t){0});
        world_feed(w, peer, &env, &msg);
        f = world_find(w, peer, TQI_KIND_Register_R, 0);
    }
    assert_non_null(f);
    tq_status_t status = (tq_status_t)f->env.status;
    world_drop_all(w);
    return status;
}

static void a_connection_is_one_unit_in_one_life_with_addresses_of_a_kilobyte(void **state)
{
    static char large[2000];
    world_t w;

    (void)state;
    world_init(&w, NULL);
    memset(large, 'a', sizeof large - 1);
    assert_int_equal(register_status(&w, 1, 11, "tcp://a:1"), TQ_OK);
    assert_int_equal(register_status(&w, 1, 11, "tcp://a:1"), TQ_OK);
    assert_int_equal(register_status(&w, 1, 12, "tcp://b:1"), TQ_E_DENIED);
    assert_int_equal(register_status(&w, 2, 12, large), TQ_E_INVALID);
    assert_int_equal(register_status(&w, 2, 12, "tcp://b:1"), TQ_OK);
    world_fini(&w);
}

static void former_lives_of_a_unit_are_remembered_up_to_a_bound(void **state)
{
    world_t w;
    size_t had = 0;

    (void)state;
    world_init(&w, NULL);
    for (uint64_t life = 1; life <= 3000; life++) {
        assert_int_equal(register_status(&w, life, life, "tcp://a:1"), TQ_OK);
        if (life == 1500)
            had = w.env.bytes;
    }
    assert_true(w.env.bytes <= had);
    /* The last ones are. */
    assert_int_equal(register_status(&w, 5000, 2999, "tcp://a:1"), TQ_E_DENIED);
    world_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_speaks_for_one_session),
        cmocka_unit_test(frames_that_wait_are_bounded_for_a_session),
        cmocka_unit_test(parts_of_publishes_are_bounded_for_a_session),
        cmocka_unit_test(a_connection_is_one_unit_in_one_life_with_addresses_of_a_kilobyte),
        cmocka_unit_test(former_lives_of_a_unit_are_remembered_up_to_a_bound),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
