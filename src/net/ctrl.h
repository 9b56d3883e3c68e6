/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ctrl port: control messages between a role and its peers. At most once, in order within one
 * peer handle, silent loss possible; everything above is built for that (docs/protocol.md).
 *
 * A peer handle is one connection in one life of it: a connection that breaks and comes back is
 * another handle, so late bytes of the old one can't be taken for the new one's. Handles are never
 * reused by a port. Peers that connect to us appear with their first message.
 *
 * Who dialled is told when the connection ends, unless the other machine vanished without a word. Who
 * was dialled may be told at once, when it sends next, or never. Of what was sent right before an end
 * some may still arrive: the first frames of it, in order.
 *
 * A peer that does not read costs its own bound and delays nobody else; one that floods delays others
 * by no more than what is queued for it.
 *
 * A role calls the port only from its own thread, and is called back only from that thread, from
 * the loop (never from within a call into the port). It may call the port from within a callback.
 * tests/net/ctrl_test.c holds every adapter to this, and the simulated one to whatever a real one
 * was seen to do.
 */
#ifndef TQI_NET_CTRL_H
#define TQI_NET_CTRL_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

typedef uint64_t tqi_peer_t; /* 0: none */

typedef struct tqi_ctrl tqi_ctrl_t;
struct tqi_ctrl {
    /* Begins to connect to one address; the handle is usable at once (messages are queued, or
     * refused as for a lost peer). If it can't be reached, or is lost later, the role is told by
     * on_peer_down. E_CONFIG for an address that can't be parsed or that this port does not serve;
     * E_NO_MEMORY; E_SYSTEM. */
    tq_status_t (*connect)(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer, tqi_err_t *err);
    /* Forgets a peer, dropping what is queued for it. No on_peer_down follows. Unknown: no effect.
     * Also for peers that connected to us: those are told, or their next message makes a new
     * handle. */
    void (*disconnect)(tqi_ctrl_t *ctrl, tqi_peer_t peer);
    /* Queues one frame, whole: a byte at least, TQ_MESSAGE_BYTES_MAX at most. Takes frame's memory
     * on OK (frame is then empty), leaves it on error. E_BUSY: the peer's queue would be over its
     * bound (16 MiB; an empty queue takes any frame); E_NO_MEMORY; E_UNREACHABLE: unknown or lost
     * peer. OK promises nothing about arrival. */
    tq_status_t (*send)(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame);
    /* From within on_peer_down only: why, for people ("connection refused"), or "". May be NULL. */
    const char *(*why_down)(tqi_ctrl_t *ctrl);
};

#endif
