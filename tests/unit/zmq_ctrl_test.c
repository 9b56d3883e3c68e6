/* SPDX-License-Identifier: Apache-2.0 */
/* The ctrl adapter over a libzmq that is none (tests/fuzz/fake_zmq.h): what takes too many peers. */
#include "../fuzz/fake_zmq.h"
#include "net/zmq/zmq_ctrl.h"
#include "sys/env_malloc.h"
#include "unit.h"

#include <string.h>
#include <zmq.h>

#define PEERS_MAX 65536

typedef struct seen {
    tqi_peer_t last; /* who spoke last */
    uint64_t messages;
    uint64_t downs;
    tqi_peer_t down; /* who went first */
} seen_t;

static void on_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    seen_t *seen = ctx;

    (void)data, (void)len;
    seen->last = peer;
    seen->messages++;
}

static void on_peer_down(void *ctx, tqi_peer_t peer)
{
    seen_t *seen = ctx;

    if (seen->downs++ == 0)
        seen->down = peer;
}

/* One message of somebody; returns the handle that it came from. */
static tqi_peer_t speak(tqi_ctrl_adapter_t *adapter, seen_t *seen, uint32_t who)
{
    void *router = fake_socket(ZMQ_ROUTER, 0);
    uint64_t had = seen->messages;

    fake_arrive(router, &who, sizeof who, true);
    fake_arrive(router, "x", 1, false);
    adapter->source.run(&adapter->source, 1);
    assert_int_equal(seen->messages, had + 1);
    return seen->last;
}

static void strangers_that_came_and_went_keep_nobody_out(void **state)
{
    seen_t seen = {0};
    tqi_sink_t sink = {.ctx = &seen, .on_message = on_message, .on_peer_down = on_peer_down};
    tqi_ctrl_adapter_t *adapter;
    char real[TQI_ADDRESS_MAX];
    tqi_err_t err;

    (void)state;
    assert_int_equal(
        tqi_zmq_ctrl_new(tqi_env_malloc(), &(tqi_zmq_conf_t){0}, &sink, &adapter, &err), TQ_OK);
    assert_int_equal(adapter->listen(adapter, "tcp://*:1", real, &err), TQ_OK);
    tqi_peer_t friend = speak(adapter, &seen, 0);
    tqi_peer_t first = speak(adapter, &seen, 1);
    for (uint32_t who = 2; who < PEERS_MAX; who++) {
        speak(adapter, &seen, who);
        if (who % 1000 == 0)
            assert_int_equal(speak(adapter, &seen, 0), friend);
    }
    assert_int_equal(seen.downs, 0);
    /* The next ones are heard, and whoever was silent for longest is gone. */
    tqi_peer_t next = speak(adapter, &seen, PEERS_MAX);
    assert_int_equal(seen.downs, 1);
    assert_int_equal(seen.down, first);
    assert_int_equal(speak(adapter, &seen, PEERS_MAX), next);
    assert_int_equal(speak(adapter, &seen, 0), friend);
    /* Who was only quiet is another peer when it speaks again. */
    assert_true(speak(adapter, &seen, 1) > next);
    assert_int_equal(seen.downs, 2);
    adapter->close(adapter);
    fake_over();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strangers_that_came_and_went_keep_nobody_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
