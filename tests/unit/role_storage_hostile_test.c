/* SPDX-License-Identifier: Apache-2.0 */
/* What one peer may make a storage unit remember, and that more is refused. */
#include "role_storage.h"

#define CAPACITY (1u << 20)

static void a_connection_speaks_for_one_session(void **state)
{
    rig_t rig;

    (void)state;
    rig_open(&rig, CAPACITY);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION + 1, 1), TQ_E_DENIED);
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 2), TQ_OK);
    assert_int_equal(rig_figure(&rig, "sessions"), 1);
    rig_close(&rig);
}

/* Nobody ends a session that the controller never began. */
static void sessions_that_the_controller_has_not_told_of_are_bounded(void **state)
{
    rig_t rig;
    tqi_peer_t peer = 10000;
    uint64_t session = 100000;
    tq_status_t rc = TQ_OK;

    (void)state;
    rig_open(&rig, CAPACITY);
    while (rc == TQ_OK) {
        assert_true(session < 110000);
        rc = rig_hello_as(&rig, ++peer, ++session, 1);
    }
    assert_int_equal(rc, TQ_E_BUSY);
    assert_in_range(rig_figure(&rig, "sessions"), 1000, 1100);
    /* Those that are there go on, and one that it is told of is welcome. */
    assert_int_equal(rig_hello_as(&rig, RIG_CLIENT, RIG_SESSION, 2), TQ_OK);
    rig_controller_says(&rig, TQI_KIND_Ping, TQ_OK, 0,
                        &(tqi_msg_Ping_t){.session_last = RIG_SESSION + 5});
    assert_int_equal(rig_answer(&rig, TQI_KIND_Ping), TQ_OK);
    assert_int_equal(rig_hello_as(&rig, ++peer, RIG_SESSION + 5, 1), TQ_OK);
    rig_close(&rig);
}

/* CANCELs and ABORTs of what is not there yet are remembered, since it may come; some are kept apart
 * by being every other one. */
static void what_a_session_gave_up_is_remembered_up_to_a_bound(void **state)
{
    rig_t rig;
    tq_status_t rc = TQ_OK;
    uint64_t given_up = 0;

    (void)state;
    rig_open(&rig, CAPACITY);
    /* The first one stays open, so that nothing older is history. */
    uint64_t open = ++rig.seq;
    while (rc == TQ_OK) {
        tqi_msg_Cancel_t msg = {.transfer = 10 + 2 * given_up++};
        tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_Cancel, ++rig.seq);

        assert_true(given_up < 100000);
        env.open_cnt = env.ack > open;
        rig_deliver(&rig, RIG_CLIENT, &env, &open, &msg);
        rc = rig_answer(&rig, TQI_KIND_Cancel);
    }
    assert_int_equal(rc, TQ_E_BUSY);
    assert_in_range(given_up, 16000, 17000);
    assert_int_equal(rig_abort(&rig, 77), TQ_OK); /* all is acknowledged now, and forgotten */
    assert_int_equal(rig_call(&rig, TQI_KIND_Cancel, &(tqi_msg_Cancel_t){.transfer = 1}), TQ_OK);
    rig_close(&rig);
}

static tq_status_t read_cells(rig_t *rig, uint64_t transfer, uint32_t rows_cnt, uint32_t fields_cnt)
{
    static uint64_t rows[TQ_REQUEST_ROWS_MAX];
    static uint32_t offsets[65];
    static char names[64];

    for (uint32_t i = 0; i < rows_cnt; i++)
        rows[i] = i % 2;
    for (uint32_t i = 0; i < fields_cnt; i++)
        names[i] = i == 0 ? 'x' : (char)('A' + i);
    for (uint32_t i = 0; i <= fields_cnt; i++)
        offsets[i] = i;
    tqi_msg_PrepareGet_t msg = {.transfer = transfer,
                                .rows = tqi_u64s(rows, rows_cnt),
                                .fields = {offsets, names, fields_cnt, fields_cnt},
                                .produced = {"\3", 1},
                                .mode = TQI_PAYLOAD_STREAM};
    return rig_call(rig, TQI_KIND_PrepareGet, &msg);
}

static void what_reads_remember_is_bounded(void **state)
{
    rig_t rig;
    tq_status_t rc = TQ_OK;
    uint64_t transfer = 10;

    (void)state;
    rig_open(&rig, CAPACITY);
    /* Two rows of two puts: a read that takes turns between them has a range for each row. */
    for (uint64_t row = 0; row < 2; row++) {
        rig_put_t put = rig_fused(1 + row, row, 1, 16);

        assert_int_equal(rig_put(&rig, &put), TQ_OK);
        rig_confirm(&rig, 1 + row);
    }
    assert_int_equal(read_cells(&rig, 5, TQ_REQUEST_ROWS_MAX, 5), TQ_E_TOO_LARGE);
    while (rc == TQ_OK) {
        assert_true(transfer < 1000);
        rc = read_cells(&rig, ++transfer, TQ_REQUEST_ROWS_MAX, 1);
    }
    assert_int_equal(rc, TQ_E_BUSY);
    assert_true(transfer > 30);
    assert_true(rig.env.bytes < (100u << 20));
    /* Whoever gives one up may read again; a small read keeps little. */
    assert_int_equal(rig_call(&rig, TQI_KIND_Cancel, &(tqi_msg_Cancel_t){.transfer = 11}), TQ_OK);
    size_t had = rig.env.bytes;
    assert_int_equal(read_cells(&rig, 2000, 2, 1), TQ_OK);
    assert_true(rig.env.bytes < had + 8192);
    rig_check(&rig);
    rig_close(&rig);
}

/* A read that found memory for half of what it keeps had given back more than it had taken. */
static void a_read_without_memory_does_not_count_against_the_next(void **state)
{
    static uint64_t rows[1];
    static uint32_t offsets[2] = {0, 1};

    (void)state;
    for (uint64_t n = 0; n < 60; n++) {
        tqi_msg_PrepareGet_t msg = {.transfer = 5,
                                    .rows = tqi_u64s(rows, 1),
                                    .fields = {offsets, "x", 1, 1},
                                    .produced = {"\3", 1},
                                    .mode = TQI_PAYLOAD_STREAM};
        tqi_buf_t frame;
        rig_t rig;

        rig_open(&rig, CAPACITY);
        rig_put_t put = rig_fused(1, 0, 1, 16);

        assert_int_equal(rig_put(&rig, &put), TQ_OK);
        rig_confirm(&rig, 1);
        /* The frame comes from the same memory: it is made before that ends. */
        tqi_envelope_t env = rig_envelope(&rig, TQI_KIND_PrepareGet, ++rig.seq);
        tqi_buf_init(&frame, &rig.env.env);
        assert_int_equal(tqi_msg_encode(&frame, &env, NULL, &msg, NULL), TQ_OK);
        rig.env.fail_after = n;
        rig.role->on_message(rig.role, RIG_CLIENT, frame.data, frame.len, rig.now);
        rig.env.fail_after = UINT64_MAX;
        tqi_buf_fini(&frame);
        rig_discard(&rig);
        assert_int_equal(read_cells(&rig, 10, 1, 1), TQ_OK);
        assert_int_equal(read_cells(&rig, 11, 1, 1), TQ_OK);
        rig_close(&rig);
    }
}

static void orders_that_wait_are_bounded(void **state)
{
    static uint64_t rows[1] = {5}, ends[1] = {6};
    tqi_msg_Unlink_t msg = {.clear_id = 1, .lo = tqi_u64s(rows, 1), .hi = tqi_u64s(ends, 1)};
    tqi_envelope_t env = {.version = 1, .kind = TQI_KIND_Unlink, .budget_ms = UINT32_MAX};
    tqi_buf_t frame;
    rig_t rig;

    (void)state;
    rig_open(&rig, CAPACITY);
    env.incarnation = rig.incarnation;
    size_t had = rig.env.bytes;
    /* Without a step in between. */
    for (env.seq = 1; env.seq <= 20000; env.seq++) {
        tqi_buf_init(&frame, &rig.env.env);
        assert_int_equal(tqi_msg_encode(&frame, &env, NULL, &msg, NULL), TQ_OK);
        rig.role->on_message(rig.role, rig.controller, frame.data, frame.len, rig.now);
        tqi_buf_fini(&frame);
    }
    assert_int_equal(rig_figure(&rig, "orders"), 1024);
    assert_true(rig.env.bytes < had + (1u << 20));
    rig.is_full = true; /* nobody looks at the answers */
    rig_step(&rig);
    rig.is_full = false;
    assert_int_equal(rig_figure(&rig, "orders"), 0);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_speaks_for_one_session),
        cmocka_unit_test(sessions_that_the_controller_has_not_told_of_are_bounded),
        cmocka_unit_test(what_a_session_gave_up_is_remembered_up_to_a_bound),
        cmocka_unit_test(what_reads_remember_is_bounded),
        cmocka_unit_test(a_read_without_memory_does_not_count_against_the_next),
        cmocka_unit_test(orders_that_wait_are_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
