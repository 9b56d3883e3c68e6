/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives adapters of several ends in the test's own thread, as their loops would: everything runs
 * until a condition holds, or for ten seconds, which only a failing test ever waits for.
 */
#ifndef TQI_TESTS_NET_PUMP_H
#define TQI_TESTS_NET_PUMP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <unistd.h>

#include <cmocka.h>

#include "net/adapter.h"
#include "sys/clock.h"
#include "sys/env_malloc.h"
#include "sys/mail.h"

#define PUMP_SOURCES_MAX 512
#define PUMP_MAILBOXES_MAX 64

typedef struct pump {
    tqi_source_t *sources[PUMP_SOURCES_MAX];
    unsigned sources_cnt;
    tqi_mailbox_t *mailboxes[PUMP_MAILBOXES_MAX];
    unsigned mailboxes_cnt;
} pump_t;

static inline void pump_add(pump_t *pump, tqi_source_t *source)
{
    assert_true(pump->sources_cnt < PUMP_SOURCES_MAX);
    pump->sources[pump->sources_cnt++] = source;
}

/* Not there: no effect. */
static inline void pump_remove(pump_t *pump, const tqi_source_t *source)
{
    for (unsigned i = 0; i < pump->sources_cnt; i++)
        if (pump->sources[i] == source)
            pump->sources[i] = pump->sources[--pump->sources_cnt];
}

/* NULL: no effect. */
static inline void pump_add_mailbox(pump_t *pump, tqi_mailbox_t *box)
{
    if (!box)
        return;
    assert_true(pump->mailboxes_cnt < PUMP_MAILBOXES_MAX);
    pump->mailboxes[pump->mailboxes_cnt++] = box;
}

static inline void pump_remove_mailbox(pump_t *pump, const tqi_mailbox_t *box)
{
    for (unsigned i = 0; i < pump->mailboxes_cnt; i++)
        if (pump->mailboxes[i] == box)
            pump->mailboxes[i] = pump->mailboxes[--pump->mailboxes_cnt];
}

static inline tqi_mailbox_t *pump_mailbox(pump_t *pump)
{
    tqi_mailbox_t *box;
    assert_int_equal(tqi_mailbox_new(&box, NULL), TQ_OK);
    pump_add_mailbox(pump, box);
    return box;
}

/* One turn of everything; true if anything wants another at once. */
static inline bool pump_turn(pump_t *pump)
{
    bool is_more = false;
    uint64_t now_ns = tqi_now_ns();
    for (unsigned i = 0; i < pump->sources_cnt; i++)
        if (pump->sources[i]->run(pump->sources[i], now_ns) <= now_ns)
            is_more = true;
    for (unsigned i = 0; i < pump->mailboxes_cnt; i++)
        if (tqi_mailbox_open(pump->mailboxes[i]))
            is_more = true;
    for (unsigned i = 0; i < pump->sources_cnt; i++)
        if (pump->sources[i]->is_busy(pump->sources[i]))
            is_more = true;
    return is_more;
}

/* Waits for a descriptor, at most a millisecond: letters and a ROUTER's room have none here. */
static inline void pump_wait(pump_t *pump)
{
    struct pollfd fds[PUMP_SOURCES_MAX];
    nfds_t cnt = 0;
    for (unsigned i = 0; i < pump->sources_cnt; i++)
        if (pump->sources[i]->fd >= 0)
            fds[cnt++] = (struct pollfd){pump->sources[i]->fd, POLLIN, 0};
    (void)poll(fds, cnt, 1);
}

/* pump_until(&pump, got == 3); */
#define pump_until(pump, condition)                                                                \
    do {                                                                                           \
        uint64_t pump_end_ns = tqi_now_ns() + UINT64_C(10000000000);                               \
        while (!(condition)) {                                                                     \
            if (tqi_now_ns() > pump_end_ns)                                                        \
                fail_msg("not within 10 s: %s", #condition);                                       \
            if (!pump_turn(pump))                                                                  \
                pump_wait(pump);                                                                   \
        }                                                                                          \
    } while (0)

/* Runs for a while, to see that nothing more happens. */
static inline void pump_quiet(pump_t *pump, unsigned turns)
{
    while (turns-- > 0)
        if (!pump_turn(pump))
            pump_wait(pump);
}

#endif
