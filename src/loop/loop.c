/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One turn: run every source, open the mailbox, let the role step; sleep only when the role has
 * nothing due and a last look at sources and mailbox, after the announcement that we are about to
 * sleep, finds nothing (sys/ring.h says why that can't lose a wake-up).
 */
#include "loop/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/size.h"
#include "sys/clock.h"
#include "sys/limit.h"
#include "sys/thread.h"

#define CTRL_MAX 4
#define SOURCES_MAX (CTRL_MAX + 4)
#define PEER_BITS 56 /* a peer handle is (slot + 1) << 56 | the adapter's own */
#define PAUSE_NS UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

typedef struct slot {
    tqi_loop_t *loop;
    unsigned number;
    tqi_ctrl_adapter_t *adapter;
    tqi_sink_t sink;
} slot_t;

struct tqi_loop {
    tqi_ctrl_t ctrl;
    tqi_mailbox_t *mailbox;
    tqi_thread_t thread;
    bool is_started;
    char name[16];
    int epoll_fd;
    slot_t slots[CTRL_MAX];
    tqi_source_t *sources[SOURCES_MAX];
    unsigned sources_cnt;
    tqi_sink_t payload_sink;
    tqi_role_t *role;
    uint64_t now_ns; /* of this turn */
    void (*on_pause)(void *ctx, uint64_t pause_ns);
    void *on_pause_ctx;
    slot_t *down_slot; /* whose on_peer_down is being reported */
};

/* ---- sinks: from adapters to the role -------------------------------------------------------- */

static tqi_peer_t outer_peer(const slot_t *slot, tqi_peer_t inner)
{
    return (tqi_peer_t)(slot->number + 1) << PEER_BITS | inner;
}

static void sink_message(void *ctx, tqi_peer_t peer, const void *data, size_t len)
{
    slot_t *slot = ctx;
    tqi_role_t *role = slot->loop->role;
    role->on_message(role, outer_peer(slot, peer), data, len, slot->loop->now_ns);
}

static void sink_peer_down(void *ctx, tqi_peer_t peer)
{
    slot_t *slot = ctx;
    tqi_role_t *role = slot->loop->role;
    slot->loop->down_slot = slot;
    role->on_peer_down(role, outer_peer(slot, peer), slot->loop->now_ns);
    slot->loop->down_slot = NULL;
}

static void sink_payload(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text)
{
    tqi_loop_t *loop = ctx;
    loop->role->on_payload(loop->role, key, status, text, loop->now_ns);
}

/* ---- the joined ctrl port -------------------------------------------------------------------- */

static slot_t *slot_for(tqi_loop_t *loop, const char *address)
{
    for (unsigned i = 0; i < CTRL_MAX; i++) {
        tqi_ctrl_adapter_t *adapter = loop->slots[i].adapter;
        if (adapter && adapter->serves(adapter, address))
            return &loop->slots[i];
    }
    return NULL;
}

static slot_t *slot_of(tqi_loop_t *loop, tqi_peer_t *peer)
{
    uint64_t number = *peer >> PEER_BITS;
    *peer &= (UINT64_C(1) << PEER_BITS) - 1;
    tqi_assert(number >= 1 && number <= CTRL_MAX && loop->slots[number - 1].adapter);
    return &loop->slots[number - 1];
}

static tq_status_t no_adapter(const char *address, tqi_err_t *err)
{
    return tqi_fail(err, TQ_E_CONFIG,
                    "'%s' is no address: expected ipc://PATH, tcp://HOST:PORT or inproc://NAME",
                    address);
}

static tq_status_t loop_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                tqi_err_t *err)
{
    tqi_loop_t *loop = tqi_container_of(ctrl, tqi_loop_t, ctrl);
    slot_t *slot = slot_for(loop, address);
    if (!slot)
        return no_adapter(address, err);
    tqi_peer_t inner = 0;
    tq_status_t rc = slot->adapter->ctrl.connect(&slot->adapter->ctrl, address, &inner, err);
    if (rc == TQ_OK)
        *peer = outer_peer(slot, inner);
    return rc;
}

static void loop_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    slot_t *slot = slot_of(tqi_container_of(ctrl, tqi_loop_t, ctrl), &peer);
    slot->adapter->ctrl.disconnect(&slot->adapter->ctrl, peer);
}

static tq_status_t loop_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    slot_t *slot = slot_of(tqi_container_of(ctrl, tqi_loop_t, ctrl), &peer);
    return slot->adapter->ctrl.send(&slot->adapter->ctrl, peer, frame);
}

static const char *loop_why_down(tqi_ctrl_t *ctrl)
{
    slot_t *slot = tqi_container_of(ctrl, tqi_loop_t, ctrl)->down_slot;
    tqi_ctrl_t *inner = slot ? &slot->adapter->ctrl : NULL;
    return inner && inner->why_down ? inner->why_down(inner) : "";
}

/* ---- the thread ------------------------------------------------------------------------------ */

static bool has_work(tqi_loop_t *loop)
{
    if (!tqi_mailbox_is_empty(loop->mailbox) || tqi_thread_should_stop(&loop->thread))
        return true;
    for (unsigned i = 0; i < loop->sources_cnt; i++)
        if (loop->sources[i]->is_busy(loop->sources[i]))
            return true;
    return false;
}

/* Sleeps until until_ns at the latest. Rounded up to a millisecond: a timer may be late, but a turn
 * for nothing costs more. */
static void loop_sleep(tqi_loop_t *loop, uint64_t now_ns, uint64_t until_ns)
{
    struct epoll_event events[SOURCES_MAX + 1];
    int timeout_ms = -1;
    if (until_ns != UINT64_MAX)
        timeout_ms = (int)tqi_u64_min((until_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS, 60000);
    tqi_wake_prepare(&loop->mailbox->wake);
    if (!has_work(loop))
        (void)epoll_wait(loop->epoll_fd, events, SOURCES_MAX + 1, timeout_ms);
    tqi_wake_done(&loop->mailbox->wake);
}

static void loop_main(tqi_thread_t *thread, void *arg)
{
    tqi_loop_t *loop = arg;
    uint64_t expected_ns = tqi_now_ns(); /* when this turn was to begin at the latest */

    while (!tqi_thread_should_stop(thread)) {
        uint64_t begun_ns = tqi_now_ns();
        loop->now_ns = begun_ns;
        uint64_t next_ns = UINT64_MAX;
        for (unsigned i = 0; i < loop->sources_cnt; i++)
            next_ns = tqi_u64_min(next_ns, loop->sources[i]->run(loop->sources[i], loop->now_ns));
        tqi_mailbox_open(loop->mailbox);
        if (begun_ns > expected_ns && begun_ns - expected_ns > PAUSE_NS && loop->on_pause)
            loop->on_pause(loop->on_pause_ctx, begun_ns - expected_ns);
        loop->now_ns = tqi_now_ns();
        next_ns = tqi_u64_min(next_ns, loop->role->step(loop->role, loop->now_ns));
        uint64_t now_ns = tqi_now_ns();
        if (next_ns > now_ns)
            loop_sleep(loop, now_ns, next_ns);
        /* A turn that was held up, in the role or asleep past its deadline, shows at the next. */
        expected_ns = next_ns == UINT64_MAX ? tqi_now_ns() : tqi_u64_max(next_ns, begun_ns);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

tq_status_t tqi_loop_new(const char *thread_name, tqi_loop_t **out, tqi_err_t *err)
{
    tqi_loop_t *loop = calloc(1, sizeof *loop);
    if (!loop)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a loop");
    loop->ctrl = (tqi_ctrl_t){loop_connect, loop_disconnect, loop_send, loop_why_down};
    loop->payload_sink = (tqi_sink_t){.ctx = loop, .on_payload = sink_payload};
    strncpy(loop->name, thread_name, sizeof loop->name - 1);
    for (unsigned i = 0; i < CTRL_MAX; i++)
        loop->slots[i] = (slot_t){.loop = loop,
                                  .number = i,
                                  .sink = {&loop->slots[i], sink_message, sink_peer_down, NULL}};
    tq_status_t rc = tqi_mailbox_new(&loop->mailbox, err);
    loop->epoll_fd = rc == TQ_OK ? epoll_create1(EPOLL_CLOEXEC) : -1;
    struct epoll_event event = {.events = EPOLLIN};
    if (rc == TQ_OK &&
        (loop->epoll_fd < 0 ||
         epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, tqi_wake_fd(&loop->mailbox->wake), &event) != 0))
        rc = tqi_fail_errno(err, errno, "epoll");
    if (rc != TQ_OK) {
        tqi_loop_free(loop);
        return rc;
    }
    *out = loop;
    return TQ_OK;
}

void tqi_loop_free(tqi_loop_t *loop)
{
    if (!loop)
        return;
    tqi_loop_stop(loop);
    for (unsigned i = 0; i < CTRL_MAX; i++)
        if (loop->slots[i].adapter)
            loop->slots[i].adapter->close(loop->slots[i].adapter);
    if (loop->epoll_fd >= 0)
        close(loop->epoll_fd);
    tqi_mailbox_unref(loop->mailbox);
    free(loop);
}

tqi_mailbox_t *tqi_loop_mailbox(tqi_loop_t *loop)
{
    return loop->mailbox;
}

const tqi_sink_t *tqi_loop_sink(tqi_loop_t *loop)
{
    return &loop->payload_sink;
}

const tqi_sink_t *tqi_loop_ctrl_sink(tqi_loop_t *loop, unsigned slot)
{
    tqi_assert(slot < CTRL_MAX);
    return &loop->slots[slot].sink;
}

tq_status_t tqi_loop_add_ctrl(tqi_loop_t *loop, unsigned slot, tqi_ctrl_adapter_t *adapter,
                              tqi_err_t *err)
{
    tqi_assert(slot < CTRL_MAX && !loop->slots[slot].adapter);
    loop->slots[slot].adapter = adapter;
    return tqi_loop_add_source(loop, &adapter->source, err);
}

tq_status_t tqi_loop_add_source(tqi_loop_t *loop, tqi_source_t *source, tqi_err_t *err)
{
    tqi_assert(loop->sources_cnt < SOURCES_MAX && !loop->is_started);
    struct epoll_event event = {.events = EPOLLIN};
    if (source->fd >= 0 && epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) != 0)
        return tqi_fail(err, TQ_E_SYSTEM, "epoll: %s", strerror(errno));
    loop->sources[loop->sources_cnt++] = source;
    return TQ_OK;
}

tqi_ctrl_t *tqi_loop_ctrl(tqi_loop_t *loop)
{
    return &loop->ctrl;
}

tq_status_t tqi_loop_listen(tqi_loop_t *loop, const char *address, char real[TQI_ADDRESS_MAX],
                            tqi_err_t *err)
{
    slot_t *slot = slot_for(loop, address);
    return slot ? slot->adapter->listen(slot->adapter, address, real, err)
                : no_adapter(address, err);
}

void tqi_loop_on_pause(tqi_loop_t *loop, void (*fn)(void *ctx, uint64_t pause_ns), void *ctx)
{
    loop->on_pause = fn;
    loop->on_pause_ctx = ctx;
}

tq_status_t tqi_loop_start(tqi_loop_t *loop, tqi_role_t *role, tqi_err_t *err)
{
    loop->role = role;
    tq_status_t rc = tqi_thread_start(&loop->thread, loop->name, loop_main, loop, err);
    loop->is_started = rc == TQ_OK;
    return rc;
}

void tqi_loop_stop(tqi_loop_t *loop)
{
    if (loop->is_started) {
        tqi_thread_stop(&loop->thread);
        tqi_wake_signal(&loop->mailbox->wake);
        tqi_thread_join(&loop->thread);
        loop->is_started = false;
    }
    if (loop->mailbox)
        tqi_mailbox_close(loop->mailbox);
}

bool tqi_loop_post(tqi_loop_t *loop, tqi_letter_t *letter)
{
    return tqi_mailbox_post(loop->mailbox, letter);
}

typedef struct call {
    tqi_letter_t letter;
    tqi_loop_t *loop;
    void (*fn)(void *ctx, uint64_t now_ns);
    void *ctx;
    pthread_mutex_t mutex;
    pthread_cond_t done;
    bool is_done;
} call_t;

static void call_open(tqi_letter_t *letter, bool is_closed)
{
    call_t *call = tqi_container_of(letter, call_t, letter);
    if (!is_closed)
        call->fn(call->ctx, call->loop->now_ns);
    pthread_mutex_lock(&call->mutex);
    call->is_done = true;
    pthread_cond_signal(&call->done);
    pthread_mutex_unlock(&call->mutex);
}

void tqi_loop_call(tqi_loop_t *loop, void (*fn)(void *ctx, uint64_t now_ns), void *ctx)
{
    call_t call = {.letter.open = call_open, .loop = loop, .fn = fn, .ctx = ctx};
    pthread_mutex_init(&call.mutex, NULL);
    pthread_cond_init(&call.done, NULL);
    if (tqi_loop_post(loop, &call.letter)) {
        pthread_mutex_lock(&call.mutex);
        while (!call.is_done)
            pthread_cond_wait(&call.done, &call.mutex);
        pthread_mutex_unlock(&call.mutex);
    }
    pthread_cond_destroy(&call.done);
    pthread_mutex_destroy(&call.mutex);
}
