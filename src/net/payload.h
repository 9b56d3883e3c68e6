/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload port: moves frames, the bytes of one column each, between a client's memory and a
 * unit's segments; and the arena port, which gives a unit its segments.
 *
 * A frame is a list of pieces of memory that together are one run of bytes; the two ends may cut
 * it differently. A transfer moves all its frames or fails. Nothing is written to memory before
 * expect/read or after the completion (or the answer to drop) was reported.
 *
 * A transfer that was begun with OK is reported once, by on_payload and never from within a call; one
 * whose begin failed never is. Who sends hears OK when its memory has been read, which says nothing
 * of arrival. The transfers of one peer take turns, chunk by chunk; who receives grants a window, so
 * that one that does not run costs a window and no more. tests/net/payload_test.c holds every adapter
 * to this.
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
 * (unit id, transfer). A client never uses the same number twice, whatever the unit. */
typedef struct tqi_transfer_key {
    uint64_t owner; /* session at a unit; unit id at a client */
    uint64_t transfer;
} tqi_transfer_key_t;

/* ---- client side ----------------------------------------------------------------------------- */

typedef struct tqi_payload_client tqi_payload_client_t;
struct tqi_payload_client {
    /* Opens the way to a unit, chosen once, from what its HELLO said; one that is open is closed
     * first. mode NONE and the reason in err when there is none (payload over TQ_INLINE_BYTES_MAX
     * then fails with it). A stream that broke is dialled again by the next write or read. */
    tqi_payload_mode_t (*open)(tqi_payload_client_t *port, uint64_t unit_id, const char *address,
                               const void *token, size_t token_len, uint64_t session,
                               uint64_t direct_arena, tqi_err_t *err);
    /* Every transfer with the unit has been reported. Unknown: no effect. */
    void (*close)(tqi_payload_client_t *port, uint64_t unit_id);
    /* PUT: moves local frames to the unit; `remote` (one a frame) matters to DIRECT only. Frames and
     * pieces are copied; the memory that they point at is read until the role's on_payload(key).
     * `copier` is who may copy (op handle of the host, NULL: anyone). E_UNREACHABLE: no way is open;
     * E_MALFORMED: remote is not inside the unit's segments, or not as long as the frame;
     * E_NO_MEMORY; E_SYSTEM. Reported: OK; E_CANCELLED; E_DENIED (the token); E_PEER_LOST;
     * E_MALFORMED (what came is not the next of it); E_NO_MEMORY. */
    tq_status_t (*write)(tqi_payload_client_t *port, tqi_transfer_key_t key,
                         const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                         void *copier, tqi_err_t *err);
    /* GET: fills local frames. STREAM: expects what the unit will send. DIRECT: copies at once. */
    tq_status_t (*read)(tqi_payload_client_t *port, tqi_transfer_key_t key,
                        const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                        void *copier, tqi_err_t *err);
    /* Asks to stop; on_payload(key) still comes, once, after which the memory is not touched any
     * more: E_CANCELLED, or how it had ended before. Unknown key: no effect. */
    void (*drop)(tqi_payload_client_t *port, tqi_transfer_key_t key);
};

/* ---- unit side ------------------------------------------------------------------------------- */

typedef struct tqi_payload_unit tqi_payload_unit_t;
struct tqi_payload_unit {
    /* What to say in HELLO's answer. Strings live as long as the port. address "" when it listens
     * nowhere; arena 0 when it can't be reached directly. The token, the same each time, admits
     * `session` until it is forgotten. E_NO_MEMORY: nothing is said yet, ask again. */
    tq_status_t (*offer)(tqi_payload_unit_t *port, uint64_t session, const char **address,
                         uint8_t token[16], uint64_t *direct_arena);
    /* Forget a session: its connection and its token. Its transfers were dropped before. */
    void (*forget)(tqi_payload_unit_t *port, uint64_t session);
    /* STREAM only. on_payload(key) is called once with the outcome, also when the client is lost
     * while we send; a transfer that waits for a client, or for its bytes, waits until it is
     * dropped. E_CLOSED: closed, or the key is under way; E_NO_MEMORY. */
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
    /* Gives back the memory of a range, as far as the system lets us; what it reads as afterwards is
     * not said. */
    void (*punch)(tqi_arena_t *arena, uint32_t id, uint64_t offset, uint64_t len);
    void (*close)(tqi_arena_t *arena, uint32_t id);
};

#endif
