/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outcome windows: how a request that may be sent many times is executed once.
 *
 * The receiving side keeps, for each session, which seqs it is working on and the replies of those
 * that it finished, until the sender acknowledges them. The sending side keeps what is open, and
 * says on every frame what it has taken. A new seq executes; a known one that is being worked on
 * waits; a known one that is done gets its reply again; one that was acknowledged is dropped.
 *
 * Pure: no clock, no messages; the roles do the sending.
 */
#ifndef TQI_CORE_OUTCOME_H
#define TQI_CORE_OUTCOME_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/err.h"

/* ---- receiver, one a (session, sender) --------------------------------------------------------- */

typedef struct tqi_inbox tqi_inbox_t;

typedef enum tqi_admit {
    TQI_ADMIT_NEW = 1, /* execute it, then call tqi_inbox_done */
    TQI_ADMIT_PENDING, /* it is being executed: drop this copy */
    TQI_ADMIT_DONE,    /* send the kept reply again */
    TQI_ADMIT_LATE,    /* executed: make a reply from tqi_inbox_outcome, and call tqi_inbox_done */
    TQI_ADMIT_OLD,     /* acknowledged long ago: drop */
    TQI_ADMIT_BUSY,    /* over 1,024 open or 16 MiB kept: answer E_BUSY, nothing is remembered */
    TQI_ADMIT_NO_MEMORY,
} tqi_admit_t;

tqi_inbox_t *tqi_inbox_new(const tqi_env_t *env);
void tqi_inbox_free(tqi_inbox_t *in);

/* Takes the ack of a frame: every seq up to `ack` that is not in its open list is acknowledged, for
 * ever, so frames may arrive in any order. Kept replies of those are dropped; `on_acked` (may be
 * NULL) is called for each seq that was done and is acknowledged now, in ascending order (for final
 * grants). open: open_cnt little-endian u64, ascending. Acknowledgements that no sender with at most
 * TQI_OPEN_MAX open seqs can mean are taken only as far as they cost nothing. */
typedef void (*tqi_acked_fn)(void *ctx, uint64_t seq);
void tqi_inbox_ack(tqi_inbox_t *in, uint64_t ack, const uint8_t *open, uint32_t open_cnt,
                   tqi_acked_fn on_acked, void *ctx);

/* What to do with a request. On DONE *reply points at the kept reply frame (borrowed). */
tqi_admit_t tqi_inbox_admit(tqi_inbox_t *in, uint64_t seq, const tqi_buf_t **reply);

/* The outcome of an admitted seq: keeps a copy of the reply frame (body and all). E_NO_MEMORY
 * leaves the seq as it is: then, as for a reply that can't even be made, there is tqi_inbox_late. */
tq_status_t tqi_inbox_done(tqi_inbox_t *in, uint64_t seq, const tqi_buf_t *reply);
/* Keeps a number, not 0, in place of the reply, for which there is always room. Its sender is told
 * by PING to send the request again, and then gets a reply that is made of the number. */
void tqi_inbox_late(tqi_inbox_t *in, uint64_t seq, uint32_t outcome);
/* The number of a seq for which ADMIT_LATE came. */
uint32_t tqi_inbox_outcome(const tqi_inbox_t *in, uint64_t seq);

/* The sender has acknowledged it without waiting for the outcome: it will never take one. */
bool tqi_inbox_is_acked(const tqi_inbox_t *in, uint64_t seq);

/* For a PING: of the sender's open seqs, those that it should send again (unknown here, or done
 * here, their replies having been lost). Writes up to max; returns how many. */
uint32_t tqi_inbox_missing(const tqi_inbox_t *in, const uint8_t *open, uint32_t open_cnt,
                           uint64_t *out, uint32_t max);
uint32_t tqi_inbox_pending_cnt(const tqi_inbox_t *in);
uint64_t tqi_inbox_kept_bytes(const tqi_inbox_t *in);

/* ---- sender, one a peer ------------------------------------------------------------------------ */

/* Requests that wait for replies. A reply that was received but not taken by its caller stays
 * open, so that the receiver keeps the grant provisional until then. */
typedef struct tqi_outbox tqi_outbox_t;

tqi_outbox_t *tqi_outbox_new(const tqi_env_t *env);
void tqi_outbox_free(tqi_outbox_t *out);

/* Opens a new seq (from 1, ascending) and keeps the frame to send it again; `user` is given back.
 * frame's memory is taken on success. 0 when TQ_OUTSTANDING_MAX are open or out of memory. */
uint64_t tqi_outbox_open(tqi_outbox_t *out, void *user);
tq_status_t tqi_outbox_keep(tqi_outbox_t *out, uint64_t seq, tqi_buf_t *frame);
/* The kept frame of an open seq, or NULL. */
const tqi_buf_t *tqi_outbox_frame(const tqi_outbox_t *out, uint64_t seq);
/* The user of a seq that still waits for its reply, or NULL. */
void *tqi_outbox_user(const tqi_outbox_t *out, uint64_t seq);
/* A reply came: the seq's user, the first time; NULL if it is unknown or was replied before. The
 * kept frame is freed; the seq stays open until taken. */
void *tqi_outbox_replied(tqi_outbox_t *out, uint64_t seq);
/* The same, and taken; *frame, which is empty, is what was kept: to ask again under another seq. */
void tqi_outbox_withdraw(tqi_outbox_t *out, uint64_t seq, tqi_buf_t *frame);
/* Its caller took the reply (or gave up): the seq is acknowledged from now on. */
void tqi_outbox_take(tqi_outbox_t *out, uint64_t seq);
/* What to write into the next frame: the newest taken seq, and older ones still open (ascending,
 * at most TQI_OPEN_MAX). For a PING, which must name all open ones: ack is the newest seq opened,
 * and every open one is listed. */
void tqi_outbox_acks(const tqi_outbox_t *out, bool is_ping, uint64_t *ack, uint64_t *open,
                     uint32_t *open_cnt);
/* Calls fn for every seq that still waits for its reply, ascending; fn may take that one. */
void tqi_outbox_each(tqi_outbox_t *out, void (*fn)(void *ctx, uint64_t seq, void *user), void *ctx);
uint32_t tqi_outbox_cnt(const tqi_outbox_t *out);
/* Forgets everything, as if it were new; seqs begin at 1 again. What `user` pointed at is the
 * caller's. */
void tqi_outbox_clear(tqi_outbox_t *out);
/* The newest seq opened so far. */
uint64_t tqi_outbox_last(const tqi_outbox_t *out);

#endif
