/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs wait in one list. A thread that is free takes a slice of the first job that it may copy, and
 * puts the job at the end, so that jobs advance together. A job leaves the list when all of it is
 * handed out, and is done when the last slice of it was copied.
 *
 * May copy: who sits under the job's name; the pool, when nobody sits there.
 */
#include "net/exec.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "sys/copy.h"
#include "sys/thread.h"

#define SLICE_BYTES (1u << 20)
/* A slice of many small pieces ends after so many, so that a stop is never far away. */
#define SLICE_PIECES 4096u
#define THREADS_MAX 4u

typedef struct seat {
    tqi_node_t node;
    const void *copier;
    pthread_cond_t cond;
} seat_t;

typedef struct slice {
    tqi_copy_job_t *job;
    uint32_t piece;
    uint64_t offset; /* into the first piece */
    uint64_t bytes;
} slice_t;

struct tqi_exec {
    pthread_mutex_t mutex; /* guards everything here, and the queue's members of jobs */
    pthread_cond_t pool;
    tqi_list_t jobs; /* with something left to hand out */
    tqi_list_t seats;
    bool is_stopping;
    uint32_t idle_cnt; /* pool threads that wait */
    tqi_thread_t threads[THREADS_MAX];
    uint32_t threads_cnt;
};

static seat_t *seat_find(const tqi_exec_t *exec, const void *copier)
{
    if (!copier)
        return NULL;
    tqi_list_each(&exec->seats, node)
    {
        seat_t *seat = tqi_container_of(node, seat_t, node);
        if (seat->copier == copier)
            return seat;
    }
    return NULL;
}

/* ---- slices ------------------------------------------------------------------------------------ */

/* Hands out the next slice of a job; the job leaves the list with its last. */
static void slice_take(tqi_exec_t *exec, tqi_copy_job_t *job, slice_t *slice)
{
    uint32_t pieces = 0;

    *slice = (slice_t){.job = job, .piece = job->piece_next, .offset = job->piece_offset};
    while (job->piece_next < job->pieces_cnt && slice->bytes < SLICE_BYTES &&
           pieces++ < SLICE_PIECES) {
        uint64_t left = job->pieces[job->piece_next].len - job->piece_offset;
        uint64_t take = tqi_u64_min(left, SLICE_BYTES - slice->bytes);
        slice->bytes += take;
        job->piece_offset += take;
        if (take == left) {
            job->piece_next++;
            job->piece_offset = 0;
        }
    }
    job->running_cnt++;
    tqi_list_remove(&exec->jobs, &job->node);
    job->is_queued = job->piece_next < job->pieces_cnt;
    if (job->is_queued)
        tqi_list_push_back(&exec->jobs, &job->node);
}

static void slice_copy(const slice_t *slice)
{
    const tqi_copy_piece_t *piece = &slice->job->pieces[slice->piece];
    uint64_t left = slice->bytes, offset = slice->offset;

    for (; left > 0; piece++, offset = 0) {
        uint64_t len = tqi_u64_min(piece->len - offset, left);
        tqi_copy((char *)piece->dst + offset, (const char *)piece->src + offset, len,
                 slice->job->bytes);
        left -= len;
    }
    tqi_copy_done();
}

/* Runs one slice with the mutex let go of, and tells when the job is done. */
static void slice_run(tqi_exec_t *exec, tqi_copy_job_t *job)
{
    slice_t slice;
    bool is_done, was_cancelled;

    slice_take(exec, job, &slice);
    pthread_mutex_unlock(&exec->mutex);
    slice_copy(&slice);
    pthread_mutex_lock(&exec->mutex);
    job->running_cnt--;
    is_done = job->running_cnt == 0 && !job->is_queued;
    was_cancelled = job->is_cancelled;
    if (is_done) {
        pthread_mutex_unlock(&exec->mutex);
        job->on_done(job, was_cancelled);
        pthread_mutex_lock(&exec->mutex);
    }
}

static tqi_copy_job_t *job_for_pool(tqi_exec_t *exec)
{
    tqi_list_each(&exec->jobs, node)
    {
        tqi_copy_job_t *job = tqi_container_of(node, tqi_copy_job_t, node);
        if (!seat_find(exec, job->copier))
            return job;
    }
    return NULL;
}

static tqi_copy_job_t *job_for_seat(tqi_exec_t *exec, const void *copier)
{
    tqi_list_each(&exec->jobs, node)
    {
        tqi_copy_job_t *job = tqi_container_of(node, tqi_copy_job_t, node);
        if (job->copier == copier)
            return job;
    }
    return NULL;
}

/* ---- threads ----------------------------------------------------------------------------------- */

static void pool_main(tqi_thread_t *thread, void *arg)
{
    tqi_exec_t *exec = arg;

    (void)thread;
    pthread_mutex_lock(&exec->mutex);
    while (!exec->is_stopping) {
        tqi_copy_job_t *job = job_for_pool(exec);
        if (job) {
            slice_run(exec, job);
            continue;
        }
        exec->idle_cnt++;
        pthread_cond_wait(&exec->pool, &exec->mutex);
        exec->idle_cnt--;
    }
    pthread_mutex_unlock(&exec->mutex);
}

tq_status_t tqi_exec_new(uint32_t threads_cnt, tqi_exec_t **out, tqi_err_t *err)
{
    tqi_exec_t *exec = calloc(1, sizeof *exec);

    if (!exec)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for copy threads");
    tqi_assert(threads_cnt >= 1 && threads_cnt <= THREADS_MAX);
    tqi_list_init(&exec->jobs);
    tqi_list_init(&exec->seats);
    pthread_mutex_init(&exec->mutex, NULL);
    pthread_cond_init(&exec->pool, NULL);
    for (; exec->threads_cnt < threads_cnt; exec->threads_cnt++) {
        tq_status_t rc =
            tqi_thread_start(&exec->threads[exec->threads_cnt], "tq-copy", pool_main, exec, err);
        if (rc != TQ_OK) {
            tqi_exec_free(exec);
            return rc;
        }
    }
    *out = exec;
    return TQ_OK;
}

void tqi_exec_free(tqi_exec_t *exec)
{
    if (!exec)
        return;
    pthread_mutex_lock(&exec->mutex);
    tqi_assert(exec->jobs.cnt == 0 && exec->seats.cnt == 0);
    exec->is_stopping = true;
    pthread_cond_broadcast(&exec->pool);
    pthread_mutex_unlock(&exec->mutex);
    for (uint32_t i = 0; i < exec->threads_cnt; i++)
        tqi_thread_join(&exec->threads[i]);
    pthread_cond_destroy(&exec->pool);
    pthread_mutex_destroy(&exec->mutex);
    free(exec);
}

void tqi_exec_submit(tqi_exec_t *exec, tqi_copy_job_t *job)
{
    seat_t *seat;

    tqi_assert(!job->is_queued && job->running_cnt == 0);
    job->bytes = 0;
    for (uint32_t i = 0; i < job->pieces_cnt; i++)
        job->bytes += job->pieces[i].len;
    job->piece_next = 0;
    job->piece_offset = 0;
    job->is_cancelled = false;
    if (job->bytes == 0) {
        job->on_done(job, false);
        return;
    }
    pthread_mutex_lock(&exec->mutex);
    job->is_queued = true;
    tqi_list_push_back(&exec->jobs, &job->node);
    seat = seat_find(exec, job->copier);
    if (seat)
        pthread_cond_signal(&seat->cond);
    else if (exec->idle_cnt > 0)
        pthread_cond_signal(&exec->pool);
    pthread_mutex_unlock(&exec->mutex);
}

void tqi_exec_cancel(tqi_exec_t *exec, tqi_copy_job_t *job)
{
    bool is_done = false;

    pthread_mutex_lock(&exec->mutex);
    if (job->is_queued) {
        tqi_list_remove(&exec->jobs, &job->node);
        job->is_queued = false;
        job->is_cancelled = true;
        is_done = job->running_cnt == 0;
    }
    pthread_mutex_unlock(&exec->mutex);
    if (is_done)
        job->on_done(job, true);
}

/* ---- seats ------------------------------------------------------------------------------------- */

static void seat_init(seat_t *seat, const void *copier)
{
    pthread_condattr_t attr;

    *seat = (seat_t){.copier = copier};
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&seat->cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool tqi_exec_sit(tqi_exec_t *exec, const void *copier, uint64_t deadline_ns,
                  bool (*is_over)(void *ctx), void *ctx)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    bool has_time = true, is_it_over;
    seat_t seat;

    seat_init(&seat, copier);
    pthread_mutex_lock(&exec->mutex);
    tqi_list_push_front(&exec->seats, &seat.node);
    while (!(is_it_over = is_over(ctx)) && has_time) {
        tqi_copy_job_t *job = job_for_seat(exec, copier);
        if (job)
            slice_run(exec, job);
        else if (deadline_ns == UINT64_MAX)
            pthread_cond_wait(&seat.cond, &exec->mutex);
        else
            has_time = pthread_cond_timedwait(&seat.cond, &exec->mutex, &until) != ETIMEDOUT;
    }
    tqi_list_remove(&exec->seats, &seat.node);
    /* Jobs of this name are the pool's from now on. */
    if (job_for_seat(exec, copier))
        pthread_cond_broadcast(&exec->pool);
    pthread_mutex_unlock(&exec->mutex);
    pthread_cond_destroy(&seat.cond);
    return is_it_over;
}

void tqi_exec_wake(tqi_exec_t *exec, const void *copier)
{
    seat_t *seat;

    pthread_mutex_lock(&exec->mutex);
    seat = seat_find(exec, copier);
    if (seat)
        pthread_cond_signal(&seat->cond);
    pthread_mutex_unlock(&exec->mutex);
}
