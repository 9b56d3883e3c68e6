/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctrl over libzmq: "ipc://PATH" and "tcp://HOST:PORT". docs/protocol.md has what libzmq was seen to
 * do, and why the options are what they are.
 */
#ifndef TQI_NET_ZMQ_ZMQ_CTRL_H
#define TQI_NET_ZMQ_ZMQ_CTRL_H

#include "base/env.h"
#include "net/adapter.h"

/* Keys are Z85 text of 40 characters, or NULL. CURVE is used on tcp addresses when the keys that it
 * takes are there: listening needs secret and public, dialling the server's. */
typedef struct tqi_zmq_conf {
    const char *curve_secret_key;
    const char *curve_public_key;
    const char *curve_server_key;
} tqi_zmq_conf_t;

/* env must serve any thread: libzmq frees frames where it is done with them. conf is copied.
 * E_CONFIG (a key that is none), E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_zmq_ctrl_new(const tqi_env_t *env, const tqi_zmq_conf_t *conf,
                             const tqi_sink_t *sink, tqi_ctrl_adapter_t **out, tqi_err_t *err);

/* A new CURVE key pair, as terminated Z85 text. E_UNSUPPORTED. */
tq_status_t tqi_zmq_keypair(char public_key[41], char secret_key[41], tqi_err_t *err);

#endif
