/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring is Vyukov's bounded queue with one consumer: a slot's turn says whose it is, so that a
 * push is one compare-and-swap and one store, and a pop writes no line that producers write except
 * the slot. A producer that was stopped between the two hides what others queued behind it; its
 * signal comes after, so nothing is left lying.
 */
#include "sys/ring.h"

#include "base/assert.h"
#include "base/size.h"
#include "sys/limit.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif

/* ---- ring ---- */

tq_status_t tqi_ring_init(tqi_ring_t *ring, size_t cap)
{
    size_t slot_cnt = 2;
    size_t bytes;

    while (slot_cnt < cap)
        if (!tqi_size_mul(slot_cnt, 2, &slot_cnt))
            return TQ_E_NO_MEMORY;
    if (!tqi_size_mul(slot_cnt, sizeof *ring->slots, &bytes) || bytes > PTRDIFF_MAX)
        return TQ_E_NO_MEMORY;
    ring->slots = aligned_alloc(TQI_CACHE_LINE, tqi_size_max(bytes, TQI_CACHE_LINE));
    if (ring->slots == NULL)
        return TQ_E_NO_MEMORY;
    for (size_t i = 0; i < slot_cnt; i++) {
        atomic_init(&ring->slots[i].turn, i);
        ring->slots[i].ptr = NULL;
    }
    ring->mask = slot_cnt - 1;
    atomic_init(&ring->tail, 0);
    atomic_init(&ring->head, 0);
    return TQ_OK;
}

void tqi_ring_fini(tqi_ring_t *ring)
{
    free(ring->slots);
    ring->slots = NULL;
}

bool tqi_ring_push(tqi_ring_t *ring, void *ptr)
{
    size_t pos = atomic_load_explicit(&ring->tail, memory_order_relaxed);

    tqi_assert(ptr != NULL);
    for (;;) {
        tqi_ring_slot_t *slot = &ring->slots[pos & ring->mask];
        size_t turn = atomic_load_explicit(&slot->turn, memory_order_acquire);

        if (turn == pos) {
            if (atomic_compare_exchange_weak_explicit(&ring->tail, &pos, pos + 1,
                                                      memory_order_relaxed, memory_order_relaxed)) {
                slot->ptr = ptr;
                atomic_store_explicit(&slot->turn, pos + 1, memory_order_release);
                return true;
            }
        } else if ((ptrdiff_t)(turn - pos) < 0) {
            return false; /* still holds the pointer of one round ago */
        } else {
            pos = atomic_load_explicit(&ring->tail, memory_order_relaxed);
        }
    }
}

void *tqi_ring_pop(tqi_ring_t *ring)
{
    size_t pos = atomic_load_explicit(&ring->head, memory_order_relaxed);
    tqi_ring_slot_t *slot = &ring->slots[pos & ring->mask];

    if (atomic_load_explicit(&slot->turn, memory_order_acquire) != pos + 1)
        return NULL;
    void *ptr = slot->ptr;
    atomic_store_explicit(&slot->turn, pos + ring->mask + 1, memory_order_release);
    atomic_store_explicit(&ring->head, pos + 1, memory_order_relaxed);
    return ptr;
}

bool tqi_ring_is_empty(tqi_ring_t *ring)
{
    size_t pos = atomic_load_explicit(&ring->head, memory_order_relaxed);

    return atomic_load_explicit(&ring->slots[pos & ring->mask].turn, memory_order_acquire) !=
           pos + 1;
}

size_t tqi_ring_len(tqi_ring_t *ring)
{
    /* head first: it never passes a tail that is read later. */
    size_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);

    return tqi_size_min(tail - head, ring->mask + 1);
}

/* ---- wake-up ---- */

tq_status_t tqi_wake_init(tqi_wake_t *wake, tqi_err_t *err)
{
    wake->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake->fd < 0)
        return tqi_fail_errno(err, errno, "cannot make an eventfd");
    wake->writes_owed = 0;
    atomic_init(&wake->is_sleeping, 0);
    return TQ_OK;
}

void tqi_wake_fini(tqi_wake_t *wake)
{
    close(wake->fd);
    wake->fd = -1;
}

void tqi_wake_signal(tqi_wake_t *wake)
{
    /* The caller's push must be visible before is_sleeping is read, as the consumer's is_sleeping
     * must be before it reads the ring. The fence leaves the flag's line shared while the consumer
     * is busy; TSan knows no fences, and gets the same order from a read-modify-write. */
#ifdef UNDER_TSAN
    if (atomic_fetch_add(&wake->is_sleeping, 0) == 0)
        return;
#else
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&wake->is_sleeping, memory_order_relaxed) == 0)
        return;
#endif
    if (atomic_exchange(&wake->is_sleeping, 0) == 0)
        return; /* another producer does it */
    uint64_t one = 1;
    ssize_t rc;
    do
        rc = write(wake->fd, &one, sizeof one);
    while (rc < 0 && errno == EINTR);
    /* One write per sleep: the counter can't be full. */
    tqi_assert(rc == sizeof one);
}

void tqi_wake_prepare(tqi_wake_t *wake)
{
    atomic_exchange(&wake->is_sleeping, 1);
#ifndef UNDER_TSAN
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

void tqi_wake_done(tqi_wake_t *wake)
{
    uint64_t writes;

    if (atomic_exchange(&wake->is_sleeping, 0) == 0)
        wake->writes_owed++;
    /* A write may still be under way: then it is read after the next sleep, which it cuts short. */
    if (wake->writes_owed > 0 && read(wake->fd, &writes, sizeof writes) == sizeof writes)
        wake->writes_owed -= writes;
}

void tqi_wake_wait(tqi_wake_t *wake, uint64_t timeout_ns)
{
    struct pollfd pollfd = {.fd = wake->fd, .events = POLLIN};
    struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / 1000000000u),
        .tv_nsec = (long)(timeout_ns % 1000000000u),
    };

    /* An interrupted wait is an early return, which every caller's loop takes. */
    ppoll(&pollfd, 1, timeout_ns == UINT64_MAX ? NULL : &timeout, NULL);
}
