/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload port: moves frames, the bytes of one column each, between a client's memory and a
 * unit's segments; and the arena port, which gives a unit its segments.
 *
 * A frame is a list of pieces of memory that together are one run of bytes; the two ends may cut
 * it differently. A transfer moves all its frames or fails. Nothing is written to memory before
 * expect/read or after the completion (or the answer to drop) was reported.
 */
#ifndef TQI_NET_PAYLOAD_H
#define TQI_NET_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* How a client and a unit move payload; PREPARE names it. */
typedef enum tqi_payload_mode {
    TQI_PAYLOAD_NONE = 0,   /* inline only */
    TQI_PAYLOAD_STREAM = 1, /* frames travel as messages (zmq, sim): PUT: the client sends, the
                               unit expects. GET: the unit sends upon COMMIT, the client expects */
    TQI_PAYLOAD_DIRECT = 2, /* the client reads and writes the unit's segments itself (embedded):
                               the unit does nothing until COMMIT or RELEASE */
} tqi_payload_mode_t;

typedef struct tqi_piece {
    void *data; /* only read on the sending side */
    uint64_t len;
} tqi_piece_t;

typedef struct tqi_frame {
    tqi_piece_t *pieces;
    uint32_t pieces_cnt;
    uint64_t bytes; /* sum of the pieces */
} tqi_frame_t;

/* Where a frame is in a unit's arena (DIRECT). */
typedef struct tqi_extent {
    uint32_t segment;
    uint64_t offset;
    uint64_t len;
} tqi_extent_t;
typedef struct tqi_remote_frame {
    const tqi_extent_t *extents;
    uint32_t extents_cnt;
} tqi_remote_frame_t;

/* Names a transfer at a port: the unit's side is by (session, transfer), the client's by
 * (unit id, transfer). */
typedef struct tqi_transfer_key {
    uint64_t owner; /* session at a unit; unit id at a client */
    uint64_t transfer;
} tqi_transfer_key_t;

/* ---- client side ----------------------------------------------------------------------------- */

typedef struct tqi_payload_client tqi_payload_client_t;
struct tqi_payload_client {
    /* Opens the way to a unit, chosen once, from what its HELLO said. mode NONE and the reason in
     * err when there is none (payload over TQ_INLINE_BYTES_MAX then fails with it). */
    tqi_payload_mode_t (*open)(tqi_payload_client_t *port, uint64_t unit_id, const char *address,
                               const void *token, size_t token_len, uint64_t session,
                               uint64_t direct_arena, tqi_err_t *err);
    void (*close)(tqi_payload_client_t *port, uint64_t unit_id);
    /* PUT: moves local frames to the unit; `remote` (one a frame) matters to DIRECT only. Frames and
     * pieces are copied; the memory that they point at is read until the role's on_payload(key).
     * `copier` is who may copy (op handle of the host, NULL: anyone). */
    tq_status_t (*write)(tqi_payload_client_t *port, tqi_transfer_key_t key,
                         const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                         void *copier, tqi_err_t *err);
    /* GET: fills local frames. STREAM: expects what the unit will send. DIRECT: copies at once. */
    tq_status_t (*read)(tqi_payload_client_t *port, tqi_transfer_key_t key,
                        const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                        void *copier, tqi_err_t *err);
    /* Asks to stop; on_payload(key) still comes, once, after which the memory is not touched any
     * more. Unknown key: no effect. */
    void (*drop)(tqi_payload_client_t *port, tqi_transfer_key_t key);
};

/* ---- unit side ------------------------------------------------------------------------------- */

typedef struct tqi_payload_unit tqi_payload_unit_t;
struct tqi_payload_unit {
    /* What to say in HELLO's answer. Strings live as long as the port. address "" when it listens
     * nowhere; arena 0 when it can't be reached directly. The token admits `session`. */
    void (*offer)(tqi_payload_unit_t *port, uint64_t session, const char **address,
                  uint8_t token[16], uint64_t *direct_arena);
    /* Forget a session: its connection and its token. Its transfers were dropped before. */
    void (*forget)(tqi_payload_unit_t *port, uint64_t session);
    /* STREAM only. on_payload(key) is called once with the outcome. */
    tq_status_t (*expect)(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                          const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err);
    tq_status_t (*send)(tqi_payload_unit_t *port, tqi_transfer_key_t key, const tqi_frame_t *frames,
                        uint32_t cnt, tqi_err_t *err);
    void (*drop)(tqi_payload_unit_t *port, tqi_transfer_key_t key); /* as above */
};

/* ---- arena ----------------------------------------------------------------------------------- */

/* Segments of memory, each its own mapping. The unit's core says when; offsets and sizes are
 * multiples of 4,096. */
typedef struct tqi_arena tqi_arena_t;
struct tqi_arena {
    /* Opens segment `id` (not open before; ids are never reused) of `bytes`, not touched yet.
     * E_NO_MEMORY, E_SYSTEM with the reason. */
    tq_status_t (*open)(tqi_arena_t *arena, uint32_t id, uint64_t bytes, void **base,
                        tqi_err_t *err);
    /* Gives back the memory of a range, which then reads as zeros. Best effort. */
    void (*punch)(tqi_arena_t *arena, uint32_t id, uint64_t offset, uint64_t len);
    void (*close)(tqi_arena_t *arena, uint32_t id);
};

#endif
