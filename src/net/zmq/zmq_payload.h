/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload over libzmq, mode STREAM: frames travel as messages of at most 1 MiB on a connection of
 * their own, so that bulk never stands in front of control messages. The receiver of a transfer
 * grants a window of 8 MiB; the transfers of one peer take turns. Bytes travel in the clear, on a
 * connection that is admitted by a token given over ctrl.
 */
#ifndef TQI_NET_ZMQ_ZMQ_PAYLOAD_H
#define TQI_NET_ZMQ_ZMQ_PAYLOAD_H

#include "base/env.h"
#include "net/adapter.h"
#include "net/exec.h"
#include "sys/mail.h"

/* ---- unit ------------------------------------------------------------------------------------ */

/* The unit copies what arrives into its segments in its own thread. */
typedef struct tqi_zmq_payload_unit tqi_zmq_payload_unit_t;

/* Listens on `address`. direct_arena (0: none) is what `offer` says of the arena besides. E_ADDRESS,
 * E_CONFIG, E_NO_MEMORY, E_SYSTEM. address NULL: listens nowhere, for units of one process. */
tq_status_t tqi_zmq_payload_unit_new(const tqi_env_t *env, const char *address,
                                     uint64_t direct_arena, tqi_mailbox_t *mailbox,
                                     const tqi_sink_t *sink, tqi_zmq_payload_unit_t **out,
                                     tqi_err_t *err);
/* Where it listens, with the real port; "" nowhere. */
const char *tqi_zmq_payload_unit_address(const tqi_zmq_payload_unit_t *unit);
/* Before the loop starts: clients are told to dial this address instead. */
void tqi_zmq_payload_unit_advertise(tqi_zmq_payload_unit_t *unit, const char *address);
tqi_payload_unit_t *tqi_zmq_payload_unit_port(tqi_zmq_payload_unit_t *unit);
tqi_source_t *tqi_zmq_payload_unit_source(tqi_zmq_payload_unit_t *unit);
/* After the loop has stopped, before segments are unmapped: ends what is under way and waits until
 * libzmq has let go of it. The port may still be called, and does nothing. Idempotent. */
void tqi_zmq_payload_unit_stop(tqi_zmq_payload_unit_t *unit);
void tqi_zmq_payload_unit_free(tqi_zmq_payload_unit_t *unit); /* stops; NULL is fine */

/* ---- client ---------------------------------------------------------------------------------- */

/* The client's thread copies nothing: exec does. */
typedef struct tqi_zmq_payload_client tqi_zmq_payload_client_t;
tq_status_t tqi_zmq_payload_client_new(const tqi_env_t *env, tqi_mailbox_t *mailbox,
                                       tqi_exec_t *exec, const tqi_sink_t *sink,
                                       tqi_zmq_payload_client_t **out, tqi_err_t *err);
tqi_payload_client_t *tqi_zmq_payload_client_port(tqi_zmq_payload_client_t *client);
tqi_source_t *tqi_zmq_payload_client_source(tqi_zmq_payload_client_t *client);
/* After the loop has stopped: drops what is under way and waits until nothing touches the op's
 * memory any more. The port may still be called, and does nothing. Idempotent. */
void tqi_zmq_payload_client_stop(tqi_zmq_payload_client_t *client);
void tqi_zmq_payload_client_free(tqi_zmq_payload_client_t *client); /* stops; NULL is fine */

#endif
