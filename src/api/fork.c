/* SPDX-License-Identifier: Apache-2.0 */
#include "api/fork.h"

#include <pthread.h>
#include <stdatomic.h>

static atomic_uint generation;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* The child's only thread runs this before fork returns. It closes nothing: sockets and eventfds of
 * the parent's are close-on-exec, harmless to hold, and libzmq's must not be touched. */
static void in_child(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

unsigned tqi_fork_generation(void)
{
    pthread_once(&once, watch_forks);
    return atomic_load_explicit(&generation, memory_order_relaxed);
}
