/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who copies. A loop never copies more than 64 KiB itself; longer copies are jobs, cut into slices
 * of 1 MiB, which are run by the thread that waits for the op that they belong to (it has nothing
 * else to do, and its caches want the data), or, when nobody waits, by one of a few pool threads,
 * round robin over the jobs.
 *
 * Any thread may call anything here. The queue is the one place where the threads of a client meet,
 * under one mutex that is held for a few instructions and never while copying.
 */
#ifndef TQI_NET_EXEC_H
#define TQI_NET_EXEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/list.h"

typedef struct tqi_exec tqi_exec_t;

/* One copy of a job; dst and src don't overlap. */
typedef struct tqi_copy_piece {
    void *dst;
    const void *src;
    uint64_t len;
} tqi_copy_piece_t;

/* A job, in memory of whoever submits it, zeroed before. The first members are filled by them; the
 * rest is the queue's, from submit until on_done is called. */
typedef struct tqi_copy_job {
    const tqi_copy_piece_t *pieces; /* stay until on_done */
    uint32_t pieces_cnt;
    const void *copier; /* the thread that sits under this name copies it; NULL: the pool */
    /* Called once, by the thread that ran the last slice (or that cancelled it), outside the lock:
     * post to your loop. The job may be freed from within. */
    void (*on_done)(struct tqi_copy_job *job, bool was_cancelled);
    void *ctx;

    tqi_node_t node;
    uint64_t bytes;      /* in all */
    uint32_t piece_next; /* the first one that no slice covers wholly, and how far in */
    uint64_t piece_offset;
    uint32_t running_cnt; /* slices being copied */
    bool is_cancelled;
    bool is_queued;
} tqi_copy_job_t;

/* threads_cnt pool threads, 1 to 4. E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_exec_new(uint32_t threads_cnt, tqi_exec_t **out, tqi_err_t *err);
/* Stops the pool. No job may be queued and nobody may sit. NULL is fine. */
void tqi_exec_free(tqi_exec_t *exec);

void tqi_exec_submit(tqi_exec_t *exec, tqi_copy_job_t *job);
/* Asks to stop after the slices that are being copied; on_done comes all the same, perhaps from
 * within this call. job must not be done yet, as far as the caller's thread was told. */
void tqi_exec_cancel(tqi_exec_t *exec, tqi_copy_job_t *job);

/* Sits down under the name `copier` and copies its jobs until is_over(ctx) is true or the time of
 * CLOCK_MONOTONIC is deadline_ns (UINT64_MAX: never). is_over is asked with the queue locked: it
 * may only read what somebody changed before calling tqi_exec_wake. Its last answer is returned.
 * One thread a name. */
bool tqi_exec_sit(tqi_exec_t *exec, const void *copier, uint64_t deadline_ns,
                  bool (*is_over)(void *ctx), void *ctx);
/* Wakes the thread that sits under the name, if there is one, to ask again. */
void tqi_exec_wake(tqi_exec_t *exec, const void *copier);

#endif
