/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/thread.h"

#include "base/assert.h"
#include "sys/limit.h"

#include <signal.h>
#include <stdio.h>

/* Given, not inherited: musl's default of 128 KiB and a user's `ulimit -s unlimited` are both
 * wrong. Only touched pages cost. */
#define STACK_BYTES (2u << 20)

static void *thread_run(void *arg)
{
    tqi_thread_t *thread = arg;

    pthread_setname_np(pthread_self(), thread->name);
    thread->main(thread, thread->arg);
    return NULL;
}

tq_status_t tqi_thread_start(tqi_thread_t *thread, const char *name, tqi_thread_main_t main,
                             void *arg, tqi_err_t *err)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc;

    thread->main = main;
    thread->arg = arg;
    thread->is_running = false;
    atomic_init(&thread->stop, false);
    snprintf(thread->name, sizeof thread->name, "%s", name);

    rc = pthread_attr_init(&attr);
    if (rc != 0)
        return tqi_fail_errno(err, rc, "cannot start thread %s", name);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&thread->id, &attr, thread_run, thread);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0)
        return tqi_fail_errno(err, rc, "cannot start thread %s", name);
    thread->is_running = true;
    return TQ_OK;
}

void tqi_thread_stop(tqi_thread_t *thread)
{
    atomic_store_explicit(&thread->stop, true, memory_order_release);
}

void tqi_thread_join(tqi_thread_t *thread)
{
    if (!thread->is_running)
        return;
    int rc = pthread_join(thread->id, NULL);
    tqi_assert(rc == 0);
    thread->is_running = false;
}
