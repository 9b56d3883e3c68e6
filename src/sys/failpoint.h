/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failpoints: named places where a test, or an operator who hunts a bug, makes something go wrong.
 *
 *     tq_status_t status = tqi_failpoint("zmq.send");
 *     if (status != TQ_OK)
 *         return tqi_fail(err, status, "failpoint zmq.send");
 *
 * One relaxed load while none is armed. They are armed by the call below or by TQ_FAILPOINTS:
 *
 *     TQ_FAILPOINTS="zmq.send=3+1*return(E_UNREACHABLE);unit.commit=sleep(5)"
 *
 * An action is [SKIP+][TIMES*] and one of return(CODE), sleep(MILLISECONDS), abort, count: the first
 * SKIP hits do nothing, the next TIMES (all, if not given) act, later ones do nothing.
 */
#ifndef TQI_SYS_FAILPOINT_H
#define TQI_SYS_FAILPOINT_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TQI_FAILPOINTS_MAX 32
#define TQI_FAILPOINT_NAME_MAX 63

/* Arms one, in place of what it was armed with; hits count from 0 again. E_CONFIG for what can't be
 * parsed, E_BUSY when TQI_FAILPOINTS_MAX are armed. Any thread. */
tq_status_t tqi_failpoint_arm(const char *name, const char *action, tqi_err_t *err);
/* Arms what TQ_FAILPOINTS names, if it is set; a program calls this as it starts. E_CONFIG, E_BUSY. */
tq_status_t tqi_failpoint_arm_from_environment(tqi_err_t *err);
void tqi_failpoint_disarm(const char *name);
void tqi_failpoint_disarm_all(void);
/* How often an armed one was passed, acting or not; 0 when it isn't armed. */
uint64_t tqi_failpoint_hits(const char *name);

/* For the function below only. */
extern atomic_uint tqi_failpoints_armed;
tq_status_t tqi_failpoint_hit(const char *name);

/* OK, or the code that the failpoint is armed to return. Any thread. */
static inline tq_status_t tqi_failpoint(const char *name)
{
    if (atomic_load_explicit(&tqi_failpoints_armed, memory_order_relaxed) == 0)
        return TQ_OK;
    return tqi_failpoint_hit(name);
}

#endif
