/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of copies, between threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "net/exec.h"

typedef struct copy {
    tqi_copy_job_t job;
    tqi_copy_piece_t *pieces;
    char *src, *dst;
    size_t bytes;
    tqi_exec_t *exec;
    atomic_bool is_done;
    bool was_cancelled;
    pthread_t copied_by;
} copy_t;

static void on_done(tqi_copy_job_t *job, bool was_cancelled)
{
    copy_t *copy = job->ctx;
    tqi_exec_t *exec = copy->exec;

    copy->was_cancelled = was_cancelled;
    copy->copied_by = pthread_self();
    atomic_store(&copy->is_done, true);
    tqi_exec_wake(exec, copy); /* a name: the copy may be gone */
}

static bool is_done(void *ctx)
{
    return atomic_load(&((copy_t *)ctx)->is_done);
}

/* A job of `bytes` in pieces of `piece` bytes. */
static void copy_init(copy_t *copy, tqi_exec_t *exec, size_t bytes, size_t piece)
{
    size_t cnt = bytes == 0 ? 0 : (bytes + piece - 1) / piece;

    memset(copy, 0, sizeof *copy);
    copy->exec = exec;
    copy->bytes = bytes;
    copy->src = malloc(bytes + 1);
    copy->dst = calloc(1, bytes + 1);
    copy->pieces = calloc(cnt + 1, sizeof *copy->pieces);
    for (size_t i = 0; i < bytes; i++)
        copy->src[i] = (char)(i * 2654435761u >> 11);
    for (size_t i = 0; i < cnt; i++)
        copy->pieces[i] = (tqi_copy_piece_t){copy->dst + i * piece, copy->src + i * piece,
                                             i + 1 < cnt ? piece : bytes - i * piece};
    copy->job.pieces = copy->pieces;
    copy->job.pieces_cnt = (uint32_t)cnt;
    copy->job.copier = copy;
    copy->job.on_done = on_done;
    copy->job.ctx = copy;
}

static void copy_fini(copy_t *copy)
{
    free(copy->src);
    free(copy->dst);
    free(copy->pieces);
}

static void wait_for_pool(copy_t *copy)
{
    struct timespec nap = {0, 100000};

    while (!is_done(copy))
        nanosleep(&nap, NULL);
}

static void the_pool_copies_what_nobody_waits_for(void **state)
{
    tqi_exec_t *exec;
    copy_t copies[8];

    (void)state;
    assert_int_equal(tqi_exec_new(2, &exec, NULL), TQ_OK);
    for (int i = 0; i < 8; i++) {
        copy_init(&copies[i], exec, ((size_t)3 << 20) + (size_t)i, i % 2 ? 1000 : 1 << 20);
        tqi_exec_submit(exec, &copies[i].job);
    }
    for (int i = 0; i < 8; i++) {
        wait_for_pool(&copies[i]);
        assert_false(copies[i].was_cancelled);
        assert_memory_equal(copies[i].src, copies[i].dst, copies[i].bytes);
        copy_fini(&copies[i]);
    }
    tqi_exec_free(exec);
}

static void *submit_soon(void *arg)
{
    copy_t *copy = arg;
    struct timespec nap = {0, 20000000};

    nanosleep(&nap, NULL);
    tqi_exec_submit(copy->exec, &copy->job);
    return NULL;
}

static void the_thread_that_waits_copies_its_own(void **state)
{
    tqi_exec_t *exec;
    copy_t copy;
    pthread_t thread;

    (void)state;
    assert_int_equal(tqi_exec_new(1, &exec, NULL), TQ_OK);
    copy_init(&copy, exec, 5 << 20, 70000);
    pthread_create(&thread, NULL, submit_soon, &copy);
    assert_true(tqi_exec_sit(exec, &copy, UINT64_MAX, is_done, &copy));
    assert_true(pthread_equal(copy.copied_by, pthread_self()));
    assert_memory_equal(copy.src, copy.dst, copy.bytes);
    pthread_join(thread, NULL);
    copy_fini(&copy);
    tqi_exec_free(exec);
}

static void a_seat_is_left_in_time_and_the_pool_goes_on(void **state)
{
    tqi_exec_t *exec;
    copy_t copy;
    struct timespec ts;

    (void)state;
    assert_int_equal(tqi_exec_new(1, &exec, NULL), TQ_OK);
    copy_init(&copy, exec, 1 << 20, 4096);
    clock_gettime(CLOCK_MONOTONIC, &ts);
    assert_false(tqi_exec_sit(exec, &copy,
                              (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec + 1000000,
                              is_done, &copy));
    tqi_exec_submit(exec, &copy.job);
    wait_for_pool(&copy);
    assert_memory_equal(copy.src, copy.dst, copy.bytes);
    copy_fini(&copy);
    tqi_exec_free(exec);
}

static void an_empty_job_is_done_at_once(void **state)
{
    tqi_exec_t *exec;
    copy_t copy;

    (void)state;
    assert_int_equal(tqi_exec_new(1, &exec, NULL), TQ_OK);
    copy_init(&copy, exec, 0, 1);
    tqi_exec_submit(exec, &copy.job);
    assert_true(is_done(&copy));
    copy_fini(&copy);
    tqi_exec_free(exec);
}

static void a_cancelled_job_is_done_once_and_not_touched_any_more(void **state)
{
    tqi_exec_t *exec;

    (void)state;
    assert_int_equal(tqi_exec_new(2, &exec, NULL), TQ_OK);
    for (int i = 0; i < 30; i++) {
        copy_t copy;
        struct timespec nap = {0, i * 20000};
        copy_init(&copy, exec, 8 << 20, 300000);
        tqi_exec_submit(exec, &copy.job);
        nanosleep(&nap, NULL);
        tqi_exec_cancel(exec, &copy.job);
        wait_for_pool(&copy);
        if (!copy.was_cancelled)
            assert_memory_equal(copy.src, copy.dst, copy.bytes);
        copy_fini(&copy); /* a late slice would be seen by the sanitizer */
    }
    tqi_exec_free(exec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pool_copies_what_nobody_waits_for),
        cmocka_unit_test(the_thread_that_waits_copies_its_own),
        cmocka_unit_test(a_seat_is_left_in_time_and_the_pool_goes_on),
        cmocka_unit_test(an_empty_job_is_done_at_once),
        cmocka_unit_test(a_cancelled_job_is_done_once_and_not_touched_any_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
