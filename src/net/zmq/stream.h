/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both ends of a payload connection share: the head of a chunk, and cursors over frames.
 *
 * A message is a head of 40 bytes, and for HELLO and DATA a second part. Little-endian:
 *   0 magic u32 | 4 kind u32 | 8 id u64 (transfer; HELLO: session) | 16 frame u32 | 20 len u32 |
 *   24 offset u64 | 32 credit u64
 *
 *   HELLO    client -> unit  first of a connection; part 2 is the token
 *   DATA     sender -> receiver  len bytes of a frame from offset; chunks come in order
 *   CREDIT   receiver -> sender  so many more bytes may be sent
 *   STOP     receiver -> sender  it takes no more of this transfer
 *   REFUSED  unit -> client  the token is not (or no longer) good
 */
#ifndef TQI_NET_ZMQ_STREAM_H
#define TQI_NET_ZMQ_STREAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <zmq.h>

#include "base/err.h"
#include "base/list.h"
#include "net/adapter.h"
#include "sys/mail.h"

#define TQI_STREAM_HEAD 40
#define TQI_STREAM_WINDOW (8u << 20)
#define TQI_STREAM_CHUNK (1u << 20)
/* Pieces below this are gathered into chunks of this size by copying. */
#define TQI_STREAM_GATHER (64u << 10)
#define TQI_STREAM_TOKEN 16

typedef enum tqi_stream_kind {
    TQI_STREAM_HELLO = 1,
    TQI_STREAM_DATA,
    TQI_STREAM_CREDIT,
    TQI_STREAM_STOP,
    TQI_STREAM_REFUSED,
} tqi_stream_kind_t;

typedef struct tqi_stream_head {
    uint32_t kind;
    uint64_t id;
    uint32_t frame;
    uint32_t len;
    uint64_t offset;
    uint64_t credit;
} tqi_stream_head_t;

void tqi_stream_head_write(uint8_t out[TQI_STREAM_HEAD], const tqi_stream_head_t *head);
/* False for what is none. */
bool tqi_stream_head_read(const void *data, size_t len, tqi_stream_head_t *head);

/* A place in a list of frames, and the frames themselves (copied). */
typedef struct tqi_cursor {
    tqi_frame_t *frames;
    tqi_piece_t *pieces; /* of all frames, one block */
    uint32_t cnt;
    uint32_t frame;
    uint32_t piece;    /* of the frame */
    uint64_t in_piece; /* bytes of the piece that are behind us */
    uint64_t offset;   /* in the frame */
} tqi_cursor_t;

/* E_NO_MEMORY. */
tq_status_t tqi_cursor_init(tqi_cursor_t *cursor, const tqi_frame_t *frames, uint32_t cnt);
void tqi_cursor_fini(tqi_cursor_t *cursor);
/* Back to the first byte. */
void tqi_cursor_rewind(tqi_cursor_t *cursor);
/* Steps over what is empty or finished; true at the end of all frames. */
bool tqi_cursor_at_end(tqi_cursor_t *cursor);
/* The memory here, which ends with its piece; moves on by up to `max` bytes and says how many. 0 at
 * the end of the frame. */
uint64_t tqi_cursor_take(tqi_cursor_t *cursor, uint64_t max, void **data);

/* ---- sending --------------------------------------------------------------------------------- */

/* One transfer that is being sent. libzmq reads the frames' memory in place; each chunk holds a
 * reference, and only when all are back does the transfer end. */
typedef struct tqi_outgoing tqi_outgoing_t;
struct tqi_outgoing {
    tqi_letter_t letter;
    tqi_mailbox_t *mailbox;                               /* counted */
    void *ctx;                                            /* the port's */
    void (*on_over)(tqi_outgoing_t *out, bool is_closed); /* the port's; frees it */
    atomic_uint refs; /* the port's own, and one for each chunk that libzmq has */
    tqi_transfer_key_t key;
    tqi_cursor_t cursor;
    uint64_t credit;
    tq_status_t status;
    const char *text;
    tqi_node_t node; /* in the port's list while it has something to send */
    bool is_over;    /* nothing more will be sent */
};

/* E_NO_MEMORY. */
tq_status_t tqi_outgoing_new(tqi_transfer_key_t key, const tqi_frame_t *frames, uint32_t cnt,
                             tqi_mailbox_t *mailbox, void *ctx,
                             void (*on_over)(tqi_outgoing_t *out, bool is_closed),
                             tqi_outgoing_t **out);
/* No more is sent; on_over comes by the mailbox once libzmq holds nothing of it. */
void tqi_outgoing_end(tqi_outgoing_t *out, tq_status_t status, const char *text);
/* In on_over: frees it. */
void tqi_outgoing_free(tqi_outgoing_t *out);

typedef enum tqi_send {
    TQI_SEND_OK,      /* a chunk went; there may be more */
    TQI_SEND_WAIT,    /* no credit: a CREDIT will come */
    TQI_SEND_BLOCKED, /* libzmq has no room: try again */
    TQI_SEND_ALL,     /* everything was sent (and the transfer ended with OK) */
    TQI_SEND_LOST,    /* the peer is gone (and the transfer ended with E_PEER_LOST) */
} tqi_send_t;
/* Sends one chunk; id (id_len 0: none) goes in front. */
tqi_send_t tqi_outgoing_send(tqi_outgoing_t *out, void *socket, const void *id, size_t id_len);

/* Sends a message of a head, and a second part if len > 0. False when libzmq did not take it. */
bool tqi_stream_say(void *socket, const void *id, size_t id_len, const tqi_stream_head_t *head,
                    const void *data, size_t len);

#endif
