/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For LD_PRELOAD: a process that may have TQ_TEST_THREADS threads beside its first one, and no
 * more. The kernel's own limit (RLIMIT_NPROC) does not bind a privileged user, as who CI may run.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef int (*create_t)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

typedef struct begun {
    void *(*run)(void *);
    void *arg;
} begun_t;

static atomic_int running;

static void *run_counted(void *arg)
{
    begun_t begun = *(begun_t *)arg;

    free(arg);
    void *result = begun.run(begun.arg);
    atomic_fetch_sub(&running, 1);
    return result;
}

__attribute__((visibility("default"))) int
pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    const char *max = getenv("TQ_TEST_THREADS");
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");
    begun_t *begun = malloc(sizeof *begun);
    create_t create;
    int rc = EAGAIN;

    if (!begun)
        return EAGAIN;
    memcpy(&create, &symbol, sizeof create);
    if (atomic_fetch_add(&running, 1) < atoi(max ? max : "1000")) {
        *begun = (begun_t){run, arg};
        rc = create(thread, attr, run_counted, begun);
    }
    if (rc != 0) {
        atomic_fetch_sub(&running, 1);
        free(begun);
    }
    return rc;
}
