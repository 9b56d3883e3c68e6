/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for many libzmq sockets in one descriptor.
 *
 * libzmq's descriptor of a socket says only that something may have changed, and any call on the
 * socket may swallow the hint. So every socket that was used, or whose descriptor was readable,
 * since its events were last seen empty is "dirty", and is looked at before the loop sleeps.
 */
#ifndef TQI_NET_ZMQ_POLLER_H
#define TQI_NET_ZMQ_POLLER_H

#include <stdbool.h>

#include "base/err.h"
#include "base/list.h"

typedef struct tqi_poller {
    int epoll_fd; /* readable when a socket may be */
    tqi_list_t dirty;
} tqi_poller_t;

/* A socket and, for one that dials, its monitor: both are closed with the item. */
typedef struct tqi_poller_item {
    tqi_poller_t *poller;
    void *socket;
    void *monitor; /* NULL: none */
    tqi_node_t dirty;
} tqi_poller_item_t;

/* E_SYSTEM. */
tq_status_t tqi_poller_init(tqi_poller_t *poller, tqi_err_t *err);
void tqi_poller_fini(tqi_poller_t *poller);

/* Takes the socket over, also on error. E_SYSTEM. */
tq_status_t tqi_poller_add(tqi_poller_t *poller, tqi_poller_item_t *item, void *socket,
                           tqi_err_t *err);
/* Opens the item's monitor. E_SYSTEM. */
tq_status_t tqi_poller_monitor(tqi_poller_item_t *item, void *context, tqi_err_t *err);
/* Closes both sockets. A zeroed item is fine. */
void tqi_poller_close(tqi_poller_item_t *item);

/* After a call on the socket. */
void tqi_poller_mark(tqi_poller_item_t *item);
/* Marks what is readable. True if there may be more than was marked. */
bool tqi_poller_collect(tqi_poller_t *poller);
/* Takes a dirty item off the list, or NULL; mark it again if it was not emptied. */
tqi_poller_item_t *tqi_poller_pop(tqi_poller_t *poller);
/* Last look: true when a dirty socket has something to read. */
bool tqi_poller_is_busy(tqi_poller_t *poller);

/* What a monitor has to say. */
typedef enum tqi_link_event {
    TQI_LINK_NONE, /* nothing (more) */
    TQI_LINK_UP,   /* the handshake is over */
    TQI_LINK_DOWN, /* no connection (any more): *why says why */
} tqi_link_event_t;
tqi_link_event_t tqi_poller_next_event(tqi_poller_item_t *item, const char **why);

#endif
