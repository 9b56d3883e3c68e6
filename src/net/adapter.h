/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an adapter offers to the loop that drives it, beside its port: something to wait for, and a
 * way to run. The ports (ctrl.h, payload.h) are what roles see; this is what the loop sees.
 */
#ifndef TQI_NET_ADAPTER_H
#define TQI_NET_ADAPTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/ctrl.h"
#include "net/payload.h"

#define TQI_ADDRESS_MAX 1024

/* Where an adapter reports to, in the loop's thread, from run() only. Members that an adapter has
 * no use for may be NULL. */
typedef struct tqi_sink {
    void *ctx;
    void (*on_message)(void *ctx, tqi_peer_t peer, const void *data, size_t len);
    void (*on_peer_down)(void *ctx, tqi_peer_t peer);
    void (*on_payload)(void *ctx, tqi_transfer_key_t key, tq_status_t status, const char *text);
} tqi_sink_t;

typedef struct tqi_source tqi_source_t;
struct tqi_source {
    /* Readable when there may be something to do; -1 when the loop's mailbox wakes it. */
    int fd;
    /* Does what can be done, a bounded piece of it. Returns when it wants to run again even if
     * nothing wakes it: now_ns at once, UINT64_MAX never. */
    uint64_t (*run)(tqi_source_t *source, uint64_t now_ns);
    /* Last look before the loop sleeps: true when run has something to do. */
    bool (*is_busy)(tqi_source_t *source);
};

/* A ctrl adapter: peer handles are its own, from 1, below 2^56. */
typedef struct tqi_ctrl_adapter tqi_ctrl_adapter_t;
struct tqi_ctrl_adapter {
    tqi_ctrl_t ctrl;
    tqi_source_t source;
    bool (*serves)(const tqi_ctrl_adapter_t *adapter, const char *address);
    /* Begins to listen; real gets the address to dial (a free port filled in). E_ADDRESS with the
     * reason and the remedy; E_CONFIG. */
    tq_status_t (*listen)(tqi_ctrl_adapter_t *adapter, const char *address,
                          char real[TQI_ADDRESS_MAX], tqi_err_t *err);
    /* Stops listening, forgets all peers and frees it. The sink is not called any more. */
    void (*close)(tqi_ctrl_adapter_t *adapter);
};

#endif
