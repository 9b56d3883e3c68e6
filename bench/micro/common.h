/* SPDX-License-Identifier: Apache-2.0 */
/* What the small benchmarks share. */
#ifndef TQ_BENCH_MICRO_COMMON_H
#define TQ_BENCH_MICRO_COMMON_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <tq/status.h>

static inline int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* A benchmark has nothing to measure after an error: says it and ends the process. */
static inline void must(tq_status_t rc, const char *text)
{
    if (rc == TQ_OK)
        return;
    fprintf(stderr, "%s: %s\n", tq_status_name(rc), text);
    exit(1);
}
#endif
