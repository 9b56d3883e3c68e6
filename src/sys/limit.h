/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the kernel that a process runs into: which one it was, and how it is raised. Some of
 * what we build on (libzmq) ends the process where it finds none left, so that is asked before.
 */
#ifndef TQI_SYS_LIMIT_H
#define TQI_SYS_LIMIT_H

#include <stdint.h>

#include "base/err.h"

/* "TEXT: the system's reason; the limit and its remedy, where errnum tells of one". Returns
 * E_NO_MEMORY where that is what is lacking, else E_SYSTEM. Any thread. */
tq_status_t tqi_fail_errno(tqi_err_t *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Can so many descriptors be opened now? They may be gone the next moment: for what would go wrong
 * worse than with an error. E_SYSTEM, E_NO_MEMORY. */
tq_status_t tqi_limit_descriptors(unsigned cnt, tqi_err_t *err);
/* Of this process: how many there may be (as of now; UINT64_MAX: any number), and about how many there
 * are. */
uint64_t tqi_limit_descriptors_max(void);
uint64_t tqi_limit_descriptors_used(void);
/* Likewise threads. */
tq_status_t tqi_limit_threads(unsigned cnt, tqi_err_t *err);

#endif
