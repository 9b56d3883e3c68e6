/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libzmq that is none: sockets are queues that the target fills and looks at, in one thread, so
 * that the adapters of src/net/zmq can be fed with any parts in any order, as fast as it goes. It
 * stands in for libzmq itself, for net/zmq/poller.h and for net/zmq/context.h.
 */
#ifndef TQI_TESTS_FUZZ_FAKE_ZMQ_H
#define TQI_TESTS_FUZZ_FAKE_ZMQ_H

#include <stdbool.h>
#include <stddef.h>

#include "net/zmq/poller.h"

/* The newest socket of a kind (ZMQ_ROUTER, ZMQ_DEALER), or NULL; by age, 0 is the oldest open. */
void *fake_socket(int type, unsigned age);
/* A part arrives. */
void fake_arrive(void *socket, const void *data, size_t len, bool is_more);
/* The socket's monitor has this to say. */
void fake_event(void *socket, tqi_link_event_t event);
/* From now on sending fails with this errno; 0: it works. */
void fake_refuse(int why);
/* Lets go of what was lent to "libzmq", all or the oldest; looks at it first, which it must allow. */
void fake_release(bool is_all);
/* Closes and frees everything; no socket may be open. */
void fake_over(void);

#endif
