/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks and fork(). A lock that another thread holds while this one forks is held in the child for
 * ever, because the thread that would let go of it is not there. A guarded one is taken before the
 * fork and let go after it, on both sides.
 */
#ifndef TQI_SYS_FORK_H
#define TQI_SYS_FORK_H

#include <pthread.h>

/* Guards a lock of the process's from now on: one that is held for a moment at a time, by a thread
 * that takes no other guarded one meanwhile. Once for each lock. Any thread. */
void tqi_fork_guard(pthread_mutex_t *mutex);

#endif
