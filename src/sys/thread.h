/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A named thread that can be asked to stop. It takes no signals: those are for the thread of the
 * program that embeds us. Who owns the thread starts, stops and joins it, from one thread.
 */
#ifndef TQI_SYS_THREAD_H
#define TQI_SYS_THREAD_H

#include "base/err.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct tqi_thread tqi_thread_t;
typedef void (*tqi_thread_main_t)(tqi_thread_t *thread, void *arg);

struct tqi_thread {
    pthread_t id;
    tqi_thread_main_t main;
    void *arg;
    atomic_bool stop;
    bool is_running; /* started and not joined; the owner's */
    char name[16];   /* as top and gdb show it */
};

/* Runs main(thread, arg) in a new thread; *thread must stay where it is until join. name is cut to
 * 15 characters. E_SYSTEM. */
tq_status_t tqi_thread_start(tqi_thread_t *thread, const char *name, tqi_thread_main_t main,
                             void *arg, tqi_err_t *err);
/* Raises the flag; waking the thread up is the caller's. Any thread. */
void tqi_thread_stop(tqi_thread_t *thread);
/* Waits until main has returned. Nothing when it never ran. */
void tqi_thread_join(tqi_thread_t *thread);

static inline bool tqi_thread_should_stop(tqi_thread_t *thread)
{
    return atomic_load_explicit(&thread->stop, memory_order_acquire);
}

#endif
