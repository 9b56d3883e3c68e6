/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles don't survive a fork: the child has none of the threads behind them. Each remembers the
 * generation of the process that made it; a child's is another one.
 */
#ifndef TQI_API_FORK_H
#define TQI_API_FORK_H

/* The number of forks between the process that loaded the library and this one. Any thread. */
unsigned tqi_fork_generation(void);

#endif
