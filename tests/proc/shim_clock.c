/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: a wall clock that jumps by an hour, forwards and back, ten times a second. Only
 * the clock that never jumps may decide anything.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define JUMP_S 3600
#define EXPORTED __attribute__((visibility("default")))

typedef int (*gettime_t)(clockid_t, struct timespec *);

static int real_gettime(clockid_t clock, struct timespec *out)
{
    static gettime_t function;

    if (!function) {
        void *symbol = dlsym(RTLD_NEXT, "clock_gettime");

        memcpy(&function, &symbol, sizeof function);
    }
    return function(clock, out);
}

static time_t jump_s(void)
{
    struct timespec now;

    if (real_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0;
    return (time_t)(now.tv_nsec / 100000000 % 3 - 1) * JUMP_S;
}

EXPORTED int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = real_gettime(clock, out);

    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        out->tv_sec += jump_s();
    return rc;
}

EXPORTED int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

EXPORTED time_t time(time_t *out)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
