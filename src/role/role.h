/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A role is a state machine over ports: the loop of a thread, a test or the simulator feeds it
 * messages, completions and time, one at a time, and it answers through its ports. It never blocks
 * and never looks at a clock.
 */
#ifndef TQI_ROLE_ROLE_H
#define TQI_ROLE_ROLE_H

#include <stddef.h>
#include <stdint.h>

#include "net/ctrl.h"
#include "net/payload.h"

#define TQI_NEVER UINT64_MAX

typedef struct tqi_role tqi_role_t;
struct tqi_role {
    /* One control frame from a peer; data is the caller's, for the call only. Any bytes. */
    void (*on_message)(tqi_role_t *role, tqi_peer_t peer, const void *data, size_t len,
                       uint64_t now_ns);
    /* The peer's connection is gone; its handle will not come again. */
    void (*on_peer_down)(tqi_role_t *role, tqi_peer_t peer, uint64_t now_ns);
    /* A transfer of the payload port is over; status OK or why not. NULL for the controller. */
    void (*on_payload)(tqi_role_t *role, tqi_transfer_key_t key, tq_status_t status,
                       const char *text, uint64_t now_ns);
    /* Runs timers that are due and at most one slice of queued work. Returns when to be called
     * next: now_ns (at once, there is more), a time, or TQI_NEVER. Called after each batch of the
     * above and at the returned time. */
    uint64_t (*step)(tqi_role_t *role, uint64_t now_ns);
};

#endif
