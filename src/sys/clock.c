/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/clock.h"

#include <time.h>

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts); /* can't fail for the two clocks below */
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t tqi_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t tqi_realtime_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}
