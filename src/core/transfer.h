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

/* Who moves the bytes, and when. */
typedef enum tqi_transfer_kind {
    TQI_PUT_INLINE, /* they came with PREPARE: all that it can do is wait for space */
    TQI_PUT_STREAM, /* the payload port copies them in */
    TQI_PUT_DIRECT, /* the client writes them into the segments */
    TQI_GET_STREAM, /* the payload port sends them upon COMMIT */
    TQI_GET_DIRECT, /* the client reads them from the segments */
    TQI_TRANSFER_KINDS,
} tqi_transfer_kind_t;

/* X(name, what it means) */
#define TQI_TRANSFER_STATES(X)                                                                     \
    X(PARKED, "waits for space, or for another put's cells")                                       \
    X(OPEN, "READY was answered")                                                                  \
    X(ARRIVED, "all bytes are there, COMMIT is not")                                               \
    X(BROKEN, "the port gave up before COMMIT, which will be told")                                \
    X(COMMITTED, "COMMIT is there, the port is not done")                                          \
    X(DROPPING, "given up, the port still holds the memory")                                       \
    X(HELD, "given up, a thread of the client may still write to the memory")                      \
    X(DONE, "over: nothing of it remains")

typedef enum tqi_transfer_state {
#define TQI_TRANSFER_STATE_(name, doc) TQI_TRANSFER_##name,
    TQI_TRANSFER_STATES(TQI_TRANSFER_STATE_)
#undef TQI_TRANSFER_STATE_
        TQI_TRANSFER_STATES_CNT,
} tqi_transfer_state_t;

#define TQI_TRANSFER_EVENTS(X)                                                                     \
    X(GRANT, "it has its space (a PUT), or its pins (a GET)")                                      \
    X(COMMIT, "the client's COMMIT")                                                               \
    X(LANDED, "the port moved all bytes")                                                          \
    X(FAILED, "the port is done with it, and not all bytes were moved")                            \
    X(RELEASE, "the reader is done")                                                               \
    X(CANCEL, "the client gives it up, and touches its memory no more")                            \
    X(ABORT, "the client gives up the whole put")                                                  \
    X(EXPIRE, "nobody named it for a lease's time")                                                \
    X(END, "its session has ended")

typedef enum tqi_transfer_event {
#define TQI_TRANSFER_EVENT_(name, doc) TQI_TRANSFER_EV_##name,
    TQI_TRANSFER_EVENTS(TQI_TRANSFER_EVENT_)
#undef TQI_TRANSFER_EVENT_
        TQI_TRANSFER_EVENTS_CNT,
} tqi_transfer_event_t;

/* X(kind, from, event, to): what is not here is not legal. */
#define TQI_TRANSFER_TABLE(X)                                                                      \
    X(PUT_INLINE, PARKED, GRANT, DONE)                                                             \
    X(PUT_INLINE, PARKED, CANCEL, DONE)                                                            \
    X(PUT_INLINE, PARKED, ABORT, DONE)                                                             \
    X(PUT_INLINE, PARKED, EXPIRE, DONE)                                                            \
    X(PUT_INLINE, PARKED, END, DONE)                                                               \
    X(PUT_STREAM, PARKED, GRANT, OPEN)                                                             \
    X(PUT_STREAM, PARKED, FAILED, DONE)                                                            \
    X(PUT_STREAM, PARKED, CANCEL, DONE)                                                            \
    X(PUT_STREAM, PARKED, ABORT, DONE)                                                             \
    X(PUT_STREAM, PARKED, EXPIRE, DONE)                                                            \
    X(PUT_STREAM, PARKED, END, DONE)                                                               \
    X(PUT_STREAM, OPEN, COMMIT, COMMITTED)                                                         \
    X(PUT_STREAM, OPEN, LANDED, ARRIVED)                                                           \
    X(PUT_STREAM, OPEN, FAILED, BROKEN)                                                            \
    X(PUT_STREAM, OPEN, CANCEL, DROPPING)                                                          \
    X(PUT_STREAM, OPEN, ABORT, DROPPING)                                                           \
    X(PUT_STREAM, OPEN, EXPIRE, DROPPING)                                                          \
    X(PUT_STREAM, OPEN, END, DROPPING)                                                             \
    X(PUT_STREAM, ARRIVED, COMMIT, DONE)                                                           \
    X(PUT_STREAM, ARRIVED, CANCEL, DONE)                                                           \
    X(PUT_STREAM, ARRIVED, ABORT, DONE)                                                            \
    X(PUT_STREAM, ARRIVED, EXPIRE, DONE)                                                           \
    X(PUT_STREAM, ARRIVED, END, DONE)                                                              \
    X(PUT_STREAM, BROKEN, COMMIT, DONE)                                                            \
    X(PUT_STREAM, BROKEN, CANCEL, DONE)                                                            \
    X(PUT_STREAM, BROKEN, ABORT, DONE)                                                             \
    X(PUT_STREAM, BROKEN, EXPIRE, DONE)                                                            \
    X(PUT_STREAM, BROKEN, END, DONE)                                                               \
    X(PUT_STREAM, COMMITTED, LANDED, DONE)                                                         \
    X(PUT_STREAM, COMMITTED, FAILED, DONE)                                                         \
    X(PUT_STREAM, COMMITTED, ABORT, DROPPING)                                                      \
    X(PUT_STREAM, COMMITTED, EXPIRE, DROPPING)                                                     \
    X(PUT_STREAM, COMMITTED, END, DROPPING)                                                        \
    X(PUT_STREAM, DROPPING, LANDED, DONE)                                                          \
    X(PUT_STREAM, DROPPING, FAILED, DONE)                                                          \
    X(PUT_DIRECT, PARKED, GRANT, OPEN)                                                             \
    X(PUT_DIRECT, PARKED, CANCEL, DONE)                                                            \
    X(PUT_DIRECT, PARKED, ABORT, DONE)                                                             \
    X(PUT_DIRECT, PARKED, EXPIRE, DONE)                                                            \
    X(PUT_DIRECT, PARKED, END, DONE)                                                               \
    X(PUT_DIRECT, OPEN, COMMIT, DONE)                                                              \
    X(PUT_DIRECT, OPEN, CANCEL, DONE)                                                              \
    X(PUT_DIRECT, OPEN, ABORT, DONE)                                                               \
    X(PUT_DIRECT, OPEN, EXPIRE, HELD)                                                              \
    X(PUT_DIRECT, OPEN, END, DONE)                                                                 \
    X(PUT_DIRECT, HELD, CANCEL, DONE)                                                              \
    X(PUT_DIRECT, HELD, ABORT, DONE)                                                               \
    X(PUT_DIRECT, HELD, END, DONE)                                                                 \
    X(GET_STREAM, PARKED, GRANT, OPEN)                                                             \
    X(GET_STREAM, OPEN, COMMIT, COMMITTED)                                                         \
    X(GET_STREAM, OPEN, RELEASE, DONE)                                                             \
    X(GET_STREAM, OPEN, CANCEL, DONE)                                                              \
    X(GET_STREAM, OPEN, EXPIRE, DONE)                                                              \
    X(GET_STREAM, OPEN, END, DONE)                                                                 \
    X(GET_STREAM, COMMITTED, LANDED, DONE)                                                         \
    X(GET_STREAM, COMMITTED, FAILED, DONE)                                                         \
    X(GET_STREAM, COMMITTED, RELEASE, DROPPING)                                                    \
    X(GET_STREAM, COMMITTED, CANCEL, DROPPING)                                                     \
    X(GET_STREAM, COMMITTED, EXPIRE, DROPPING)                                                     \
    X(GET_STREAM, COMMITTED, END, DROPPING)                                                        \
    X(GET_STREAM, DROPPING, LANDED, DONE)                                                          \
    X(GET_STREAM, DROPPING, FAILED, DONE)                                                          \
    X(GET_DIRECT, PARKED, GRANT, OPEN)                                                             \
    X(GET_DIRECT, OPEN, RELEASE, DONE)                                                             \
    X(GET_DIRECT, OPEN, CANCEL, DONE)                                                              \
    X(GET_DIRECT, OPEN, EXPIRE, DONE)                                                              \
    X(GET_DIRECT, OPEN, END, DONE)

typedef enum tqi_transfer_phase {
    TQI_PHASE_BEFORE,
    TQI_PHASE_POSTED,
    TQI_PHASE_CONFIRMED,
} tqi_transfer_phase_t;

/* Transitions into each state, and transfers in it now: one for all transfers of an owner. */
typedef struct tqi_transfer_counts {
    uint64_t entered[TQI_TRANSFER_STATES_CNT];
    uint64_t now[TQI_TRANSFER_STATES_CNT];
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
