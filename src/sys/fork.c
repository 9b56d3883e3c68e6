/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/fork.h"

#include "base/assert.h"

#define GUARDED_MAX 8u

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER; /* guarded as well */
static pthread_mutex_t *guarded[GUARDED_MAX];
static unsigned guarded_cnt;

static void before_fork(void)
{
    pthread_mutex_lock(&list_mutex);
    for (unsigned i = 0; i < guarded_cnt; i++)
        pthread_mutex_lock(guarded[i]);
}

static void after_fork(void)
{
    for (unsigned i = guarded_cnt; i > 0; i--)
        pthread_mutex_unlock(guarded[i - 1]);
    pthread_mutex_unlock(&list_mutex);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, after_fork);
}

void tqi_fork_guard(pthread_mutex_t *mutex)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&list_mutex);
    tqi_assert(guarded_cnt < GUARDED_MAX);
    guarded[guarded_cnt++] = mutex;
    pthread_mutex_unlock(&list_mutex);
}
