/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/limit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/assert.h"

#define CNT_MAX 32u

/* "; " and what to do about errnum, or "". */
static void remedy(int errnum, char *out, size_t size)
{
    struct rlimit limit;

    out[0] = '\0';
    switch (errnum) {
    case EMFILE:
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
            snprintf(out, size,
                     "; this process may have %llu files open: raise the limit (ulimit -n)",
                     (unsigned long long)limit.rlim_cur);
        break;
    case ENFILE:
        snprintf(out, size, "; no process may open more files now: raise fs.file-max");
        break;
    case EAGAIN:
        snprintf(out, size,
                 "; no more threads may run: raise the limit of processes (ulimit -u, or "
                 "pids.max of the container), or of memory (ulimit -v)");
        break;
    case EFBIG:
        if (getrlimit(RLIMIT_FSIZE, &limit) == 0)
            snprintf(out, size, "; a file may have %llu bytes: raise the limit (ulimit -f)",
                     (unsigned long long)limit.rlim_cur);
        break;
    case ENOMEM:
        if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
            snprintf(out, size, "; this process may map %llu bytes: raise the limit (ulimit -v)",
                     (unsigned long long)limit.rlim_cur);
        break;
    default:
        break;
    }
}

tq_status_t tqi_fail_errno(tqi_err_t *err, int errnum, const char *fmt, ...)
{
    char text[256], what[192];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    remedy(errnum, what, sizeof what);
    return tqi_fail(err, errnum == ENOMEM || errnum == ENOSPC ? TQ_E_NO_MEMORY : TQ_E_SYSTEM,
                    "%s: %s%s", text, strerror(errnum), what);
}

tq_status_t tqi_limit_descriptors(unsigned cnt, tqi_err_t *err)
{
    int fds[CNT_MAX], why = 0;
    unsigned have = 0;

    tqi_assert(cnt >= 1 && cnt <= CNT_MAX);
    for (; have < cnt; have++) {
        fds[have] =
            have == 0 ? eventfd(0, EFD_CLOEXEC) : fcntl(fds[0], F_DUPFD_CLOEXEC, fds[0] + 1);
        if (fds[have] < 0)
            break;
    }
    if (have < cnt)
        /* F_DUPFD says EINVAL where the next number is past the limit. */
        why = have > 0 && errno == EINVAL ? EMFILE : errno;
    for (unsigned i = 0; i < have; i++)
        close(fds[i]);
    return why == 0 ? TQ_OK : tqi_fail_errno(err, why, "%u more files cannot be opened", cnt);
}

uint64_t tqi_limit_descriptors_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

/* New ones take the lowest number that is free. */
uint64_t tqi_limit_descriptors_used(void)
{
    int fd = eventfd(0, EFD_CLOEXEC);

    if (fd < 0)
        return tqi_limit_descriptors_max();
    close(fd);
    return (uint64_t)fd;
}

typedef struct trial {
    pthread_mutex_t mutex; /* held until all were begun */
} trial_t;

static void *trial_run(void *arg)
{
    trial_t *trial = arg;

    pthread_mutex_lock(&trial->mutex);
    pthread_mutex_unlock(&trial->mutex);
    return NULL;
}

tq_status_t tqi_limit_threads(unsigned cnt, tqi_err_t *err)
{
    trial_t trial = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[CNT_MAX];
    unsigned have = 0;
    int why = 0;

    tqi_assert(cnt >= 1 && cnt <= CNT_MAX);
    pthread_mutex_lock(&trial.mutex);
    for (; have < cnt && why == 0; have += why == 0)
        why = pthread_create(&threads[have], NULL, trial_run, &trial);
    pthread_mutex_unlock(&trial.mutex);
    for (unsigned i = 0; i < have; i++)
        pthread_join(threads[i], NULL);
    return why == 0 ? TQ_OK : tqi_fail_errno(err, why, "%u more threads cannot be started", cnt);
}
