/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_zmq.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "fuzz.h"
#include "net/zmq/context.h"

#define SOCKETS_MAX 32
#define EVENTS_MAX 16

/* What is behind a zmq_msg_t. */
typedef struct msg {
    void *data;
    size_t len;
    zmq_free_fn *release; /* lent: called when libzmq is done; NULL: data is ours */
    void *hint;
    bool is_more;
} msg_t;
_Static_assert(sizeof(msg_t) <= sizeof(zmq_msg_t), "a message fits");

typedef struct part {
    struct part *next;
    msg_t msg;
} part_t;

typedef struct sock {
    int type;
    tqi_poller_item_t *item;
    part_t *first, *last;
    tqi_link_event_t events[EVENTS_MAX];
    unsigned events_cnt;
} sock_t;

static sock_t *sockets[SOCKETS_MAX];
static part_t *lent, *lent_last;
static int refusal;

static msg_t *of(const zmq_msg_t *msg)
{
    return (msg_t *)(uintptr_t)msg;
}

/* ---- messages -------------------------------------------------------------------------------- */

int zmq_msg_init(zmq_msg_t *msg)
{
    *of(msg) = (msg_t){0};
    return 0;
}

int zmq_msg_init_size(zmq_msg_t *msg, size_t size)
{
    *of(msg) = (msg_t){.data = malloc(size ? size : 1), .len = size};
    return of(msg)->data ? 0 : -1;
}

int zmq_msg_init_data(zmq_msg_t *msg, void *data, size_t size, zmq_free_fn *release, void *hint)
{
    *of(msg) = (msg_t){.data = data, .len = size, .release = release, .hint = hint};
    return 0;
}

static void let_go(msg_t *msg)
{
    if (msg->release)
        msg->release(msg->data, msg->hint);
    else
        free(msg->data);
    *msg = (msg_t){0};
}

int zmq_msg_close(zmq_msg_t *msg)
{
    let_go(of(msg));
    return 0;
}

int zmq_msg_move(zmq_msg_t *to, zmq_msg_t *from)
{
    let_go(of(to));
    *of(to) = *of(from);
    *of(from) = (msg_t){0};
    return 0;
}

void *zmq_msg_data(zmq_msg_t *msg)
{
    return of(msg)->data;
}

size_t zmq_msg_size(const zmq_msg_t *msg)
{
    return of(msg)->len;
}

int zmq_msg_more(const zmq_msg_t *msg)
{
    return of(msg)->is_more;
}

/* ---- sockets --------------------------------------------------------------------------------- */

void *fake_socket(int type, unsigned age)
{
    for (int i = 0; i < SOCKETS_MAX; i++)
        if (sockets[i] && sockets[i]->type == type && age-- == 0)
            return sockets[i];
    return NULL;
}

void fake_arrive(void *socket, const void *data, size_t len, bool is_more)
{
    sock_t *sock = socket;
    part_t *part = calloc(1, sizeof *part);
    /* Memory of its own, so that a sanitizer sees who reads beyond it. */
    part->msg = (msg_t){.data = malloc(len ? len : 1), .len = len, .is_more = is_more};
    if (len > 0)
        memcpy(part->msg.data, data, len);
    if (sock->last)
        sock->last->next = part;
    else
        sock->first = part;
    sock->last = part;
}

void fake_event(void *socket, tqi_link_event_t event)
{
    sock_t *sock = socket;
    if (sock->events_cnt < EVENTS_MAX)
        sock->events[sock->events_cnt++] = event;
}

void fake_refuse(int why)
{
    refusal = why;
}

int zmq_msg_recv(zmq_msg_t *msg, void *socket, int flags)
{
    sock_t *sock = socket;
    part_t *part = sock->first;
    fuzz_require(flags & ZMQ_DONTWAIT, "a receive that waits");
    if (!part) {
        errno = EAGAIN;
        return -1;
    }
    let_go(of(msg));
    *of(msg) = part->msg;
    sock->first = part->next;
    if (!sock->first)
        sock->last = NULL;
    free(part);
    return (int)of(msg)->len;
}

int zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)
{
    (void)socket;
    fuzz_require(flags & ZMQ_DONTWAIT, "a send that waits");
    if (refusal) {
        errno = refusal;
        return -1;
    }
    part_t *part = calloc(1, sizeof *part);
    part->msg = *of(msg);
    *of(msg) = (msg_t){0};
    if (lent_last)
        lent_last->next = part;
    else
        lent = part;
    lent_last = part;
    return (int)part->msg.len;
}

int zmq_send(void *socket, const void *data, size_t len, int flags)
{
    volatile uint8_t last = len > 0 ? ((const uint8_t *)data)[len - 1] : 0;
    (void)socket, (void)last;
    fuzz_require(flags & ZMQ_DONTWAIT, "a send that waits");
    if (!refusal)
        return (int)len;
    errno = refusal;
    return -1;
}

void fake_release(bool is_all)
{
    while (lent) {
        part_t *part = lent;
        const volatile uint8_t *bytes = part->msg.data;
        if (part->msg.len > 0)
            (void)bytes[0], (void)bytes[part->msg.len - 1];
        lent = part->next;
        if (!lent)
            lent_last = NULL;
        let_go(&part->msg);
        free(part);
        if (!is_all)
            return;
    }
}

void fake_over(void)
{
    fake_release(true);
    refusal = 0;
    for (int i = 0; i < SOCKETS_MAX; i++)
        fuzz_require(!sockets[i], "a socket stays open");
}

/* ---- net/zmq/context.h ----------------------------------------------------------------------- */

tq_status_t tqi_zmq_context_acquire(void **context, tqi_err_t *err)
{
    static int it;
    (void)err;
    *context = &it;
    return TQ_OK;
}

void tqi_zmq_context_release(void *context)
{
    (void)context;
}

tq_status_t tqi_zmq_socket(void *context, int type, int send_hwm, int receive_hwm,
                           int64_t bytes_max, void **socket, tqi_err_t *err)
{
    (void)context, (void)send_hwm, (void)receive_hwm, (void)bytes_max;
    for (int i = 0; i < SOCKETS_MAX; i++) {
        if (sockets[i])
            continue;
        sockets[i] = calloc(1, sizeof *sockets[i]);
        sockets[i]->type = type;
        *socket = sockets[i];
        return TQ_OK;
    }
    return tqi_fail(err, TQ_E_SYSTEM, "no sockets left");
}

void tqi_zmq_heartbeat(void *socket, int every_ms, int timeout_ms)
{
    (void)socket, (void)every_ms, (void)timeout_ms;
}

tq_status_t tqi_zmq_bind(void *socket, const char *address, const tqi_zmq_keys_t *keys,
                         char real[TQI_ADDRESS_MAX], tqi_err_t *err)
{
    (void)socket, (void)keys, (void)err;
    snprintf(real, TQI_ADDRESS_MAX, "%s", address);
    return TQ_OK;
}

tq_status_t tqi_zmq_keys_init(tqi_zmq_keys_t *keys, const tqi_zmq_conf_t *conf, tqi_err_t *err)
{
    (void)conf, (void)err;
    memset(keys, 0, sizeof *keys);
    return TQ_OK;
}

bool tqi_zmq_serves(const char *address)
{
    return strncmp(address, "tcp://", 6) == 0;
}

int tqi_zmq_events(void *socket)
{
    return ((sock_t *)socket)->first ? ZMQ_POLLIN : 0;
}

void tqi_zmq_linger(void *socket, int ms)
{
    (void)socket, (void)ms;
}

void tqi_zmq_unlink(void *socket)
{
    (void)socket;
}

tq_status_t tqi_zmq_connect(void *socket, const char *address, const tqi_zmq_keys_t *keys,
                            tqi_err_t *err)
{
    (void)socket, (void)keys;
    return strncmp(address, "bad", 3) == 0 ? tqi_fail(err, TQ_E_CONFIG, "no address") : TQ_OK;
}

/* ---- net/zmq/poller.h ------------------------------------------------------------------------ */

tq_status_t tqi_poller_init(tqi_poller_t *poller, tqi_err_t *err)
{
    (void)err;
    tqi_list_init(&poller->dirty);
    poller->epoll_fd = -1;
    return TQ_OK;
}

void tqi_poller_fini(tqi_poller_t *poller)
{
    (void)poller;
}

tq_status_t tqi_poller_add(tqi_poller_t *poller, tqi_poller_item_t *item, void *socket,
                           tqi_err_t *err)
{
    (void)err;
    *item = (tqi_poller_item_t){.poller = poller, .socket = socket};
    ((sock_t *)socket)->item = item;
    tqi_poller_mark(item);
    return TQ_OK;
}

tq_status_t tqi_poller_monitor(tqi_poller_item_t *item, void *context, tqi_err_t *err)
{
    (void)context, (void)err;
    item->monitor = item->socket;
    return TQ_OK;
}

void tqi_poller_close(tqi_poller_item_t *item)
{
    sock_t *sock = item->socket;
    zmq_msg_t msg;
    if (sock) {
        zmq_msg_init(&msg);
        while (zmq_msg_recv(&msg, sock, ZMQ_DONTWAIT) >= 0)
            continue;
        zmq_msg_close(&msg);
        for (int i = 0; i < SOCKETS_MAX; i++)
            if (sockets[i] == sock)
                sockets[i] = NULL;
        free(sock);
    }
    if (tqi_node_is_linked(&item->dirty))
        tqi_list_remove(&item->poller->dirty, &item->dirty);
    memset(item, 0, sizeof *item);
}

void tqi_poller_mark(tqi_poller_item_t *item)
{
    fuzz_require(item->socket, "a closed socket is marked");
    if (!tqi_node_is_linked(&item->dirty))
        tqi_list_push_back(&item->poller->dirty, &item->dirty);
}

bool tqi_poller_collect(tqi_poller_t *poller)
{
    for (int i = 0; i < SOCKETS_MAX; i++) {
        sock_t *sock = sockets[i];
        if (sock && sock->item && sock->item->poller == poller && (sock->first || sock->events_cnt))
            tqi_poller_mark(sock->item);
    }
    return false;
}

tqi_poller_item_t *tqi_poller_pop(tqi_poller_t *poller)
{
    tqi_node_t *node = tqi_list_pop_front(&poller->dirty);
    return node ? tqi_container_of(node, tqi_poller_item_t, dirty) : NULL;
}

bool tqi_poller_is_busy(tqi_poller_t *poller)
{
    return poller->dirty.cnt > 0;
}

tqi_link_event_t tqi_poller_next_event(tqi_poller_item_t *item, const char **why)
{
    sock_t *sock = item->monitor;
    if (!sock || sock->events_cnt == 0)
        return TQI_LINK_NONE;
    tqi_link_event_t event = sock->events[0];
    memmove(sock->events, sock->events + 1, --sock->events_cnt * sizeof sock->events[0]);
    *why = "as the story wants";
    return event;
}
