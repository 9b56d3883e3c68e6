/* SPDX-License-Identifier: Apache-2.0 */
/* What all libzmq adapters share: the process's context, and how a socket is made and bound. */
#ifndef TQI_NET_ZMQ_CONTEXT_H
#define TQI_NET_ZMQ_CONTEXT_H

#include <stdint.h>

#include "base/err.h"
#include "net/adapter.h"
#include "net/zmq/zmq_ctrl.h"

/* One context a process, made with the first reference and ended with the last. A forked child
 * gets its own and never touches its parent's. Any thread. E_SYSTEM. */
tq_status_t tqi_zmq_context_acquire(void **context, tqi_err_t *err);
void tqi_zmq_context_release(void *context);

/* The keys as they are applied. */
typedef struct tqi_zmq_keys {
    char secret[41];
    char public[41];
    char server[41]; /* each "" when not given */
} tqi_zmq_keys_t;
/* E_CONFIG names the key that is no Z85 text of 40 characters. */
tq_status_t tqi_zmq_keys_init(tqi_zmq_keys_t *keys, const tqi_zmq_conf_t *conf, tqi_err_t *err);

/* Its connections break when the peer's libzmq says nothing for timeout_ms. */
void tqi_zmq_heartbeat(void *socket, int every_ms, int timeout_ms);
/* How long what was sent, and the peer's kernel has not taken, outlives the socket. 0 at first. */
void tqi_zmq_linger(void *socket, int ms);
/* A socket of a type with the options of both adapters. send_hwm, receive_hwm: messages a peer (0: no
 * limit); bytes_max: the largest message that is taken. E_SYSTEM names the limit that was hit. */
tq_status_t tqi_zmq_socket(void *context, int type, int send_hwm, int receive_hwm,
                           int64_t bytes_max, void **socket, tqi_err_t *err);

/* Binds, with CURVE where keys (NULL: none) and address ask for it. real gets the address with its port.
 * E_ADDRESS with the reason and the remedy. */
tq_status_t tqi_zmq_bind(void *socket, const char *address, const tqi_zmq_keys_t *keys,
                         char real[TQI_ADDRESS_MAX], tqi_err_t *err);
/* Removes the path of an ipc socket that this one listens on, which libzmq leaves. To be called while
 * it still listens: afterwards the path may be another's. */
void tqi_zmq_unlink(void *socket);
/* Begins to connect. E_CONFIG for an address that libzmq can't read. */
tq_status_t tqi_zmq_connect(void *socket, const char *address, const tqi_zmq_keys_t *keys,
                            tqi_err_t *err);

/* Descriptor and events of a socket. */
int tqi_zmq_fd(void *socket);
int tqi_zmq_events(void *socket);

/* Is this an address of ours: ipc:// or tcp://? */
bool tqi_zmq_serves(const char *address);

#endif
