/* SPDX-License-Identifier: Apache-2.0 */
#include "net/zmq/poller.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#include "base/assert.h"
#include "base/size.h"
#include "net/zmq/context.h"
#include "sys/limit.h"

#define COLLECT_MAX 64

tq_status_t tqi_poller_init(tqi_poller_t *poller, tqi_err_t *err)
{
    tqi_list_init(&poller->dirty);
    poller->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (poller->epoll_fd < 0)
        return tqi_fail_errno(err, errno, "epoll");
    return TQ_OK;
}

void tqi_poller_fini(tqi_poller_t *poller)
{
    if (poller->epoll_fd >= 0)
        close(poller->epoll_fd);
    poller->epoll_fd = -1;
}

static tq_status_t watch(tqi_poller_item_t *item, void *socket, tqi_err_t *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = item};
    if (epoll_ctl(item->poller->epoll_fd, EPOLL_CTL_ADD, tqi_zmq_fd(socket), &event) != 0)
        return tqi_fail_errno(err, errno, "epoll");
    return TQ_OK;
}

tq_status_t tqi_poller_add(tqi_poller_t *poller, tqi_poller_item_t *item, void *socket,
                           tqi_err_t *err)
{
    *item = (tqi_poller_item_t){.poller = poller, .socket = socket};
    tq_status_t rc = watch(item, socket, err);
    if (rc == TQ_OK)
        tqi_poller_mark(item);
    return rc;
}

tq_status_t tqi_poller_monitor(tqi_poller_item_t *item, void *context, tqi_err_t *err)
{
    static atomic_uint_least64_t last;
    char name[64];
    snprintf(name, sizeof name, "inproc://tq-monitor-%" PRIu64,
             (uint64_t)atomic_fetch_add(&last, 1));
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                 ZMQ_EVENT_CLOSED | ZMQ_EVENT_DISCONNECTED;
    if (zmq_socket_monitor(item->socket, name, events) != 0)
        return tqi_fail_errno(err, errno, "libzmq: no monitor");
    tq_status_t rc = tqi_zmq_socket(context, ZMQ_PAIR, 0, 0, -1, &item->monitor, err);
    if (rc == TQ_OK && zmq_connect(item->monitor, name) != 0)
        rc = tqi_fail_errno(err, errno, "libzmq: no monitor");
    return rc == TQ_OK ? watch(item, item->monitor, err) : rc;
}

void tqi_poller_close(tqi_poller_item_t *item)
{
    if (item->monitor) {
        epoll_ctl(item->poller->epoll_fd, EPOLL_CTL_DEL, tqi_zmq_fd(item->monitor), NULL);
        zmq_socket_monitor(item->socket, NULL, 0);
        zmq_close(item->monitor);
    }
    if (item->socket) {
        epoll_ctl(item->poller->epoll_fd, EPOLL_CTL_DEL, tqi_zmq_fd(item->socket), NULL);
        zmq_close(item->socket);
    }
    if (tqi_node_is_linked(&item->dirty))
        tqi_list_remove(&item->poller->dirty, &item->dirty);
    memset(item, 0, sizeof *item);
}

void tqi_poller_mark(tqi_poller_item_t *item)
{
    if (!tqi_node_is_linked(&item->dirty))
        tqi_list_push_back(&item->poller->dirty, &item->dirty);
}

bool tqi_poller_collect(tqi_poller_t *poller)
{
    struct epoll_event events[COLLECT_MAX];
    int cnt = epoll_wait(poller->epoll_fd, events, COLLECT_MAX, 0);
    for (int i = 0; i < cnt; i++)
        tqi_poller_mark(events[i].data.ptr);
    return cnt == COLLECT_MAX;
}

tqi_poller_item_t *tqi_poller_pop(tqi_poller_t *poller)
{
    tqi_node_t *node = tqi_list_pop_front(&poller->dirty);
    return node ? tqi_container_of(node, tqi_poller_item_t, dirty) : NULL;
}

static bool is_readable(void *socket)
{
    return socket && (tqi_zmq_events(socket) & ZMQ_POLLIN);
}

bool tqi_poller_is_busy(tqi_poller_t *poller)
{
    tqi_list_each(&poller->dirty, node)
    {
        tqi_poller_item_t *item = tqi_container_of(node, tqi_poller_item_t, dirty);
        if (is_readable(item->socket) || is_readable(item->monitor))
            return true;
        tqi_list_remove(&poller->dirty, node);
    }
    return false;
}

tqi_link_event_t tqi_poller_next_event(tqi_poller_item_t *item, const char **why)
{
    zmq_msg_t head, address;
    if (!item->monitor)
        return TQI_LINK_NONE;
    zmq_msg_init(&head);
    zmq_msg_init(&address);
    tqi_link_event_t event = TQI_LINK_NONE;
    if (zmq_msg_recv(&head, item->monitor, ZMQ_DONTWAIT) >= 0) {
        (void)zmq_msg_recv(&address, item->monitor, ZMQ_DONTWAIT);
        event = TQI_LINK_DOWN;
        switch (tqi_load_le16(zmq_msg_data(&head))) {
        case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
            event = TQI_LINK_UP;
            break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            *why = "the handshake failed: wrong CURVE key, CURVE on one side only, or no tq server";
            break;
        case ZMQ_EVENT_CLOSED:
            *why = "nobody listens there";
            break;
        default:
            *why = "the connection was closed by the other side";
            break;
        }
    }
    zmq_msg_close(&head);
    zmq_msg_close(&address);
    return event;
}
