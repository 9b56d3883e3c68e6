/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adapters between threads of one process. ctrl: frames are handed over by pointer through the
 * loops' mailboxes ("inproc://NAME"). payload: the client's copy threads read and write the unit's
 * segments in place.
 */
#ifndef TQI_NET_INPROC_INPROC_H
#define TQI_NET_INPROC_INPROC_H

#include "base/env.h"
#include "net/adapter.h"
#include "net/exec.h"
#include "sys/mail.h"

/* ctrl for one loop. env must serve any thread: frames are freed where they arrive. mailbox is the
 * loop's. E_NO_MEMORY. */
tq_status_t tqi_inproc_ctrl_new(const tqi_env_t *env, tqi_mailbox_t *mailbox,
                                const tqi_sink_t *sink, tqi_ctrl_adapter_t **out, tqi_err_t *err);

/* A unit's segments: memfds, mapped here, that clients of this process find by the arena's handle
 * (a random number that no other process has). The arena is counted: segments that a copy is
 * under way in stay mapped until it is over. */
typedef struct tqi_inproc_arena tqi_inproc_arena_t;
tq_status_t tqi_inproc_arena_new(tqi_inproc_arena_t **out, tqi_err_t *err);
tqi_arena_t *tqi_inproc_arena_port(tqi_inproc_arena_t *arena);
uint64_t tqi_inproc_arena_handle(const tqi_inproc_arena_t *arena);
void tqi_inproc_arena_free(tqi_inproc_arena_t *arena);

/* The client's side: mode DIRECT for arenas of this process, else NONE. exec does the copying. */
typedef struct tqi_inproc_payload tqi_inproc_payload_t;
tq_status_t tqi_inproc_payload_new(const tqi_env_t *env, tqi_mailbox_t *mailbox, tqi_exec_t *exec,
                                   const tqi_sink_t *sink, tqi_inproc_payload_t **out,
                                   tqi_err_t *err);
tqi_payload_client_t *tqi_inproc_payload_port(tqi_inproc_payload_t *payload);
/* After the loop has stopped: stops copies and waits until nothing touches their memory any more.
 * The port may still be called, and does nothing. Idempotent. */
void tqi_inproc_payload_stop(tqi_inproc_payload_t *payload);
void tqi_inproc_payload_free(tqi_inproc_payload_t *payload); /* stops; NULL is fine */

#endif
