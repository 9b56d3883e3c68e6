/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a transfer at a storage unit, as a table. Success, error, timeout, cancellation and
 * the end of a session all go through it.
 *
 * Its phase says what a failure may do with the memory:
 *   BEFORE     nobody writes yet: everything is released
 *   POSTED     a writer may be at work, outcome uncertain: nothing that it could touch is reused
 *   CONFIRMED  all bytes are where they belong, or nobody touches them any more
 *
 * A parked PREPARE is a transfer already, so that it can be cancelled and timed like any other.
 */
#ifndef TQI_CORE_TRANSFER_H
#define TQI_CORE_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"
#include "base/machine.h"

/* Who moves the bytes, and when. */
typedef enum tqi_transfer_kind {
    TQI_PUT_INLINE, /* they came with PREPARE: all that it can do is wait for space */
    TQI_PUT_STREAM, /* the payload port copies them in */
    TQI_PUT_DIRECT, /* the client writes them into the segments */
    TQI_GET_STREAM, /* the payload port sends them upon COMMIT */
    TQI_GET_DIRECT, /* the client reads them from the segments */
    TQI_TRANSFER_KINDS,
} tqi_transfer_kind_t;

#define TQI_TRANSFER_STATES(X, P)                                                                  \
    X(P, PARKED, "waits for space, or for another put's cells")                                    \
    X(P, OPEN, "READY was answered")                                                               \
    X(P, ARRIVED, "all bytes are there, COMMIT is not")                                            \
    X(P, BROKEN, "the port gave up before COMMIT, which will be told")                             \
    X(P, COMMITTED, "COMMIT is there, the port is not done")                                       \
    X(P, DROPPING, "given up, the port still holds the memory")                                    \
    X(P, HELD, "given up, a thread of the client may still write to the memory")                   \
    X(P, DONE, "over: nothing of it remains")

typedef enum tqi_transfer_state { TQI_MACHINE_STATES(TQI_TRANSFER) } tqi_transfer_state_t;

#define TQI_TRANSFER_EVENTS(X, P)                                                                  \
    X(P, GRANT, "it has its space (a PUT), or its pins (a GET)")                                   \
    X(P, COMMIT, "the client's COMMIT")                                                            \
    X(P, LANDED, "the port moved all bytes")                                                       \
    X(P, FAILED, "the port is done with it, and not all bytes were moved")                         \
    X(P, RELEASE, "the reader is done")                                                            \
    X(P, CANCEL, "the client gives it up, and touches its memory no more")                         \
    X(P, ABORT, "the client gives up the whole put")                                               \
    X(P, EXPIRE, "nobody named it for a lease's time")                                             \
    X(P, END, "its session has ended")

typedef enum tqi_transfer_event { TQI_MACHINE_EVENTS(TQI_TRANSFER) } tqi_transfer_event_t;

#define TQI_PUT_INLINE_STEPS(X, P)                                                                 \
    X(P, PARKED, GRANT, DONE)                                                                      \
    X(P, PARKED, CANCEL, DONE)                                                                     \
    X(P, PARKED, ABORT, DONE)                                                                      \
    X(P, PARKED, EXPIRE, DONE)                                                                     \
    X(P, PARKED, END, DONE)

#define TQI_PUT_STREAM_STEPS(X, P)                                                                 \
    X(P, PARKED, GRANT, OPEN)                                                                      \
    X(P, PARKED, FAILED, DONE)                                                                     \
    X(P, PARKED, CANCEL, DONE)                                                                     \
    X(P, PARKED, ABORT, DONE)                                                                      \
    X(P, PARKED, EXPIRE, DONE)                                                                     \
    X(P, PARKED, END, DONE)                                                                        \
    X(P, OPEN, COMMIT, COMMITTED)                                                                  \
    X(P, OPEN, LANDED, ARRIVED)                                                                    \
    X(P, OPEN, FAILED, BROKEN)                                                                     \
    X(P, OPEN, CANCEL, DROPPING)                                                                   \
    X(P, OPEN, ABORT, DROPPING)                                                                    \
    X(P, OPEN, EXPIRE, DROPPING)                                                                   \
    X(P, OPEN, END, DROPPING)                                                                      \
    X(P, ARRIVED, COMMIT, DONE)                                                                    \
    X(P, ARRIVED, CANCEL, DONE)                                                                    \
    X(P, ARRIVED, ABORT, DONE)                                                                     \
    X(P, ARRIVED, EXPIRE, DONE)                                                                    \
    X(P, ARRIVED, END, DONE)                                                                       \
    X(P, BROKEN, COMMIT, DONE)                                                                     \
    X(P, BROKEN, CANCEL, DONE)                                                                     \
    X(P, BROKEN, ABORT, DONE)                                                                      \
    X(P, BROKEN, EXPIRE, DONE)                                                                     \
    X(P, BROKEN, END, DONE)                                                                        \
    X(P, COMMITTED, LANDED, DONE)                                                                  \
    X(P, COMMITTED, FAILED, DONE)                                                                  \
    X(P, COMMITTED, ABORT, DROPPING)                                                               \
    X(P, COMMITTED, EXPIRE, DROPPING)                                                              \
    X(P, COMMITTED, END, DROPPING)                                                                 \
    X(P, DROPPING, LANDED, DONE)                                                                   \
    X(P, DROPPING, FAILED, DONE)

#define TQI_PUT_DIRECT_STEPS(X, P)                                                                 \
    X(P, PARKED, GRANT, OPEN)                                                                      \
    X(P, PARKED, CANCEL, DONE)                                                                     \
    X(P, PARKED, ABORT, DONE)                                                                      \
    X(P, PARKED, EXPIRE, DONE)                                                                     \
    X(P, PARKED, END, DONE)                                                                        \
    X(P, OPEN, COMMIT, DONE)                                                                       \
    X(P, OPEN, CANCEL, DONE)                                                                       \
    X(P, OPEN, ABORT, DONE)                                                                        \
    X(P, OPEN, EXPIRE, HELD)                                                                       \
    X(P, OPEN, END, HELD)                                                                          \
    X(P, HELD, CANCEL, DONE)                                                                       \
    X(P, HELD, ABORT, DONE)                                                                        \
    X(P, HELD, EXPIRE, DONE)                                                                       \
    X(P, HELD, END, DONE)

#define TQI_GET_STREAM_STEPS(X, P)                                                                 \
    X(P, PARKED, GRANT, OPEN)                                                                      \
    X(P, OPEN, COMMIT, COMMITTED)                                                                  \
    X(P, OPEN, CANCEL, DONE)                                                                       \
    X(P, OPEN, EXPIRE, DONE)                                                                       \
    X(P, OPEN, END, DONE)                                                                          \
    X(P, COMMITTED, LANDED, DONE)                                                                  \
    X(P, COMMITTED, FAILED, DONE)                                                                  \
    X(P, COMMITTED, CANCEL, DROPPING)                                                              \
    X(P, COMMITTED, EXPIRE, DROPPING)                                                              \
    X(P, COMMITTED, END, DROPPING)                                                                 \
    X(P, DROPPING, LANDED, DONE)                                                                   \
    X(P, DROPPING, FAILED, DONE)

#define TQI_GET_DIRECT_STEPS(X, P)                                                                 \
    X(P, PARKED, GRANT, OPEN)                                                                      \
    X(P, OPEN, RELEASE, DONE)                                                                      \
    X(P, OPEN, CANCEL, DONE)                                                                       \
    X(P, OPEN, EXPIRE, DONE)                                                                       \
    X(P, OPEN, END, DONE)

extern const tqi_machine_t tqi_put_inline_machine, tqi_put_stream_machine, tqi_put_direct_machine,
    tqi_get_stream_machine, tqi_get_direct_machine;

typedef enum tqi_transfer_phase {
    TQI_PHASE_BEFORE,
    TQI_PHASE_POSTED,
    TQI_PHASE_CONFIRMED,
} tqi_transfer_phase_t;

/* Transitions into each state, and transfers in it now: one for all transfers of an owner. */
typedef struct tqi_transfer_counts {
    uint64_t entered[TQI_TRANSFER_STATE_CNT];
    uint64_t now[TQI_TRANSFER_STATE_CNT];
} tqi_transfer_counts_t;

typedef struct tqi_transfer {
    uint64_t id; /* the client's name for it */
    tqi_transfer_kind_t kind;
    tqi_transfer_state_t state;
    tqi_heap_node_t timer; /* of the lease; while parked, of the wait */
    tqi_transfer_counts_t *counts;
} tqi_transfer_t;

/* Parked. counts outlives it. */
void tqi_transfer_init(tqi_transfer_t *t, uint64_t id, tqi_transfer_kind_t kind,
                       tqi_transfer_counts_t *counts);
/* Whether the event is legal now. */
bool tqi_transfer_can(const tqi_transfer_t *t, tqi_transfer_event_t event);
/* Changes the state, the only way that there is. False, and nothing changed, when the event is not
 * legal: the caller refuses it. */
bool tqi_transfer_apply(tqi_transfer_t *t, tqi_transfer_event_t event);
tqi_transfer_phase_t tqi_transfer_phase(const tqi_transfer_t *t);
/* Forgets a transfer in any state (for its owner's end). */
void tqi_transfer_fini(tqi_transfer_t *t);

const char *tqi_transfer_kind_name(tqi_transfer_kind_t kind);    /* "PUT_STREAM" */
const char *tqi_transfer_state_name(tqi_transfer_state_t state); /* "PARKED" */

#endif
