/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/ring.h"
#include "sys/thread.h"

#include "unit.h"

#include <poll.h>
#include <sched.h>

static void pointers_come_out_in_order_and_a_full_ring_refuses(void **state)
{
    static char cells[100];
    tqi_ring_t ring;

    (void)state;
    assert_int_equal(tqi_ring_init(&ring, 5), TQ_OK);
    for (int round = 0; round < 10; round++) {
        int pushed = 0;

        assert_true(tqi_ring_is_empty(&ring));
        assert_null(tqi_ring_pop(&ring));
        while (tqi_ring_push(&ring, &cells[pushed]))
            pushed++;
        assert_int_equal(pushed, 8);
        assert_int_equal(tqi_ring_len(&ring), 8);
        assert_ptr_equal(tqi_ring_pop(&ring), &cells[0]);
        assert_true(tqi_ring_push(&ring, &cells[8]));
        for (int i = 1; i <= 8; i++)
            assert_ptr_equal(tqi_ring_pop(&ring), &cells[i]);
    }
    assert_int_equal(tqi_ring_len(&ring), 0);
    tqi_ring_fini(&ring);
}

static void more_slots_than_memory_is_an_error(void **state)
{
    tqi_ring_t ring;

    (void)state;
    assert_int_equal(tqi_ring_init(&ring, SIZE_MAX), TQ_E_NO_MEMORY);
}

/* ---- threads ---- */

enum { PRODUCERS = 3, MESSAGES = 20000 };

typedef struct message {
    int producer;
    int number;
} message_t;

typedef struct traffic {
    tqi_ring_t ring;
    tqi_wake_t wake;
    message_t messages[PRODUCERS][MESSAGES];
    atomic_int producer_next;
} traffic_t;

static void produce(tqi_thread_t *thread, void *arg)
{
    traffic_t *traffic = arg;
    int producer = atomic_fetch_add(&traffic->producer_next, 1);

    for (int i = 0; i < MESSAGES && !tqi_thread_should_stop(thread); i++) {
        message_t *message = &traffic->messages[producer][i];

        *message = (message_t){producer, i};
        while (!tqi_ring_push(&traffic->ring, message))
            sched_yield();
        tqi_wake_signal(&traffic->wake);
    }
}

/* A lost wake-up would leave this waiting without limit, and the test's own limit would end it. */
static void every_message_of_every_thread_arrives_in_its_order(void **state)
{
    static traffic_t traffic;
    tqi_thread_t threads[PRODUCERS];
    int next[PRODUCERS] = {0};
    int received = 0, sleeps = 0;

    (void)state;
    assert_int_equal(tqi_ring_init(&traffic.ring, 64), TQ_OK);
    assert_int_equal(tqi_wake_init(&traffic.wake, NULL), TQ_OK);
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(tqi_thread_start(&threads[i], "producer", produce, &traffic, NULL), TQ_OK);
    while (received < PRODUCERS * MESSAGES) {
        message_t *message;

        while ((message = tqi_ring_pop(&traffic.ring)) != NULL) {
            assert_int_equal(message->number, next[message->producer]);
            next[message->producer]++;
            received++;
        }
        if (received == PRODUCERS * MESSAGES)
            break;
        tqi_wake_prepare(&traffic.wake);
        if (tqi_ring_is_empty(&traffic.ring)) {
            tqi_wake_wait(&traffic.wake, UINT64_MAX);
            sleeps++;
        }
        tqi_wake_done(&traffic.wake);
    }
    for (int i = 0; i < PRODUCERS; i++)
        tqi_thread_join(&threads[i]);
    assert_null(tqi_ring_pop(&traffic.ring));
    assert_true(sleeps > 0);
    tqi_wake_fini(&traffic.wake);
    tqi_ring_fini(&traffic.ring);
}

/* ---- wake-up, one thread playing both parts ---- */

static bool is_readable(tqi_wake_t *wake)
{
    struct pollfd pollfd = {.fd = tqi_wake_fd(wake), .events = POLLIN};

    return poll(&pollfd, 1, 0) == 1;
}

static void a_signal_to_a_busy_consumer_makes_no_system_call(void **state)
{
    tqi_wake_t wake;

    (void)state;
    assert_int_equal(tqi_wake_init(&wake, NULL), TQ_OK);
    tqi_wake_signal(&wake);
    assert_false(is_readable(&wake));
    tqi_wake_fini(&wake);
}

static void many_signals_to_a_sleeper_are_one_write(void **state)
{
    tqi_wake_t wake;

    (void)state;
    assert_int_equal(tqi_wake_init(&wake, NULL), TQ_OK);
    for (int i = 0; i < 3; i++) {
        tqi_wake_prepare(&wake);
        assert_false(is_readable(&wake));
        tqi_wake_signal(&wake);
        tqi_wake_signal(&wake);
        assert_true(is_readable(&wake));
        assert_int_equal(wake.writes_owed, 0);
        tqi_wake_wait(&wake, UINT64_MAX);
        tqi_wake_done(&wake);
        assert_int_equal(wake.writes_owed, 0);
        assert_false(is_readable(&wake));
    }
    tqi_wake_prepare(&wake);
    tqi_wake_wait(&wake, 1);
    tqi_wake_done(&wake);
    assert_int_equal(wake.writes_owed, 0);
    tqi_wake_fini(&wake);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointers_come_out_in_order_and_a_full_ring_refuses),
        cmocka_unit_test(more_slots_than_memory_is_an_error),
        cmocka_unit_test(every_message_of_every_thread_arrives_in_its_order),
        cmocka_unit_test(a_signal_to_a_busy_consumer_makes_no_system_call),
        cmocka_unit_test(many_signals_to_a_sleeper_are_one_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
