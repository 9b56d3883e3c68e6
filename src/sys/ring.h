/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How threads talk to the owner of an object: a bounded queue of pointers with many producers and
 * one consumer, and a wake-up that costs a system call only when the consumer sleeps.
 *
 *     producer                                consumer
 *     tqi_ring_push(&ring, message)           for (;;) {
 *     tqi_wake_signal(&wake)                      while ((message = tqi_ring_pop(&ring)))
 *                                                     handle(message);
 *                                                 tqi_wake_prepare(&wake);
 *                                                 if (tqi_ring_is_empty(&ring))
 *                                                     poll(tqi_wake_fd(&wake), other fds)
 *                                                 tqi_wake_done(&wake);
 *                                             }
 *
 * The look at the ring between prepare and poll is what makes a lost wake-up impossible: either it
 * sees the message, or the producer sees that the consumer is about to sleep.
 */
#ifndef TQI_SYS_RING_H
#define TQI_SYS_RING_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TQI_CACHE_LINE 64u

/* ---- ring ---- */

typedef struct tqi_ring_slot {
    atomic_size_t turn; /* position it is free for; + 1: holds that position's pointer */
    void *ptr;
} tqi_ring_slot_t;

/* Padded instead of aligned, so that it can lie in any struct: producers' and consumer's words are
 * on lines of their own. */
typedef struct tqi_ring {
    tqi_ring_slot_t *slots;
    size_t mask;
    char pad0[TQI_CACHE_LINE];
    atomic_size_t tail; /* next position to write */
    char pad1[TQI_CACHE_LINE];
    atomic_size_t head; /* next position to read; written by the consumer */
    char pad2[TQI_CACHE_LINE];
} tqi_ring_t;

/* Room for at least cap pointers (rounded up to a power of two). E_NO_MEMORY. */
tq_status_t tqi_ring_init(tqi_ring_t *ring, size_t cap);
/* No thread may be in a call any more. Pointers still queued are the caller's: pop them first. */
void tqi_ring_fini(tqi_ring_t *ring);

/* Queues ptr, which is not NULL; what was written before is visible to who pops it. Any thread,
 * never blocks. False when the ring is full. */
bool tqi_ring_push(tqi_ring_t *ring, void *ptr);
/* The oldest pointer, or NULL. One producer's come in its order. Consumer only. */
void *tqi_ring_pop(tqi_ring_t *ring);
/* Whether pop would return NULL. Consumer only. */
bool tqi_ring_is_empty(tqi_ring_t *ring);
/* About how many are queued: a gauge. Any thread. */
size_t tqi_ring_len(tqi_ring_t *ring);

/* ---- wake-up ---- */

typedef struct tqi_wake {
    int fd;               /* an eventfd, close-on-exec */
    uint64_t writes_owed; /* writes to fd that were or will be made and were not read yet */
    char pad[TQI_CACHE_LINE];
    atomic_uint is_sleeping;
} tqi_wake_t;

/* E_SYSTEM. */
tq_status_t tqi_wake_init(tqi_wake_t *wake, tqi_err_t *err);
void tqi_wake_fini(tqi_wake_t *wake);

/* After something was queued: wakes the consumer if it sleeps or is about to. Any thread, never
 * blocks. */
void tqi_wake_signal(tqi_wake_t *wake);

/* Consumer only. prepare, then look at every queue again, then poll the fd for reading (if they
 * were empty), then done, in any case. */
void tqi_wake_prepare(tqi_wake_t *wake);
void tqi_wake_done(tqi_wake_t *wake);
/* The poll of a consumer that has no other fds: until a signal or until timeout_ns has passed
 * (UINT64_MAX: no limit). Between prepare and done. */
void tqi_wake_wait(tqi_wake_t *wake, uint64_t timeout_ns);

static inline int tqi_wake_fd(const tqi_wake_t *wake)
{
    return wake->fd;
}

#endif
