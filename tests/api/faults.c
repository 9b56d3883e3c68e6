/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#define DEPTH 16
#define PLACES_MAX 16384 /* a power of two, and many more than there are */

static unsigned every = 1;
static atomic_bool is_armed;
static atomic_int_least64_t blocks;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static uint64_t places[PLACES_MAX];
static uint32_t places_cnt;
static const char *fired;
static void *stack[DEPTH];
static int stack_len;

/* Notes a place. False: it has failed before. */
static bool place_add(uint64_t place)
{
    uint32_t at = (uint32_t)(place >> 32);

    for (;; at++) {
        uint64_t *slot = &places[at % PLACES_MAX];
        if (*slot == place || places_cnt == PLACES_MAX / 2)
            return false;
        if (*slot == 0) {
            *slot = place;
            places_cnt++;
            return true;
        }
    }
}

static bool is_due(const char *name)
{
    void *frames[DEPTH];
    uint64_t place = 0;
    bool is_now = false;

    if (!atomic_load_explicit(&is_armed, memory_order_relaxed))
        return false;
    int len = backtrace(frames, DEPTH);
    for (int i = 1; i < len; i++)
        place = (place ^ (uint64_t)(uintptr_t)frames[i]) * UINT64_C(0x9E3779B97F4A7C15);
    if ((place >> 16) % every != 0)
        return false;
    pthread_mutex_lock(&mutex);
    if (atomic_load_explicit(&is_armed, memory_order_relaxed) && place_add(place | 1)) {
        atomic_store_explicit(&is_armed, false, memory_order_relaxed);
        fired = name;
        memcpy(stack, frames, sizeof stack);
        stack_len = len;
        is_now = true;
    }
    pthread_mutex_unlock(&mutex);
    return is_now;
}

void faults_init(unsigned each)
{
    void *frame;

    every = each;
    (void)backtrace(&frame, 1); /* loads what it needs */
}

void faults_arm(void)
{
    pthread_mutex_lock(&mutex);
    fired = NULL;
    pthread_mutex_unlock(&mutex);
    atomic_store_explicit(&is_armed, true, memory_order_relaxed);
}

const char *faults_disarm(void)
{
    atomic_store_explicit(&is_armed, false, memory_order_relaxed);
    pthread_mutex_lock(&mutex);
    const char *name = fired;
    pthread_mutex_unlock(&mutex);
    return name;
}

uint32_t faults_places(void)
{
    return places_cnt;
}

int64_t faults_blocks(void)
{
    return atomic_load_explicit(&blocks, memory_order_relaxed);
}

void faults_print(void)
{
    fprintf(stderr, "the last failure was of %s:\n", fired ? fired : "nothing");
    backtrace_symbols_fd(stack, stack_len, STDERR_FILENO);
}

/* ---- memory ------------------------------------------------------------------------------------ */

void *__real_malloc(size_t size);
void *__real_calloc(size_t cnt, size_t size);
void *__real_realloc(void *ptr, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strndup(const char *text, size_t max);
void __real_free(void *ptr);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t cnt, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strndup(const char *text, size_t max);
void __wrap_free(void *ptr);

static void *counted(void *ptr)
{
    if (ptr)
        atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed);
    return ptr;
}

void *__wrap_malloc(size_t size)
{
    return is_due("malloc") ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t cnt, size_t size)
{
    return is_due("calloc") ? NULL : counted(__real_calloc(cnt, size));
}

void *__wrap_realloc(void *ptr, size_t size)
{
    if (is_due("realloc"))
        return NULL;
    return ptr ? __real_realloc(ptr, size) : counted(__real_realloc(ptr, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_due("aligned_alloc") ? NULL : counted(__real_aligned_alloc(alignment, size));
}

char *__wrap_strndup(const char *text, size_t max)
{
    return is_due("strndup") ? NULL : counted(__real_strndup(text, max));
}

void __wrap_free(void *ptr)
{
    if (ptr)
        atomic_fetch_sub_explicit(&blocks, 1, memory_order_relaxed);
    __real_free(ptr);
}

/* ---- sending ----------------------------------------------------------------------------------- */

/* A message of several parts is taken whole or not at all: only its first part may be refused. */
static _Thread_local bool is_in_message;

int __real_zmq_send(void *socket, const void *data, size_t len, int flags);
int __wrap_zmq_send(void *socket, const void *data, size_t len, int flags);
int __real_zmq_msg_send(zmq_msg_t *msg, void *socket, int flags);
int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int flags);

static bool is_send_due(const char *name)
{
    if (is_in_message || !is_due(name))
        return false;
    errno = EAGAIN;
    return true;
}

int __wrap_zmq_send(void *socket, const void *data, size_t len, int flags)
{
    if (is_send_due("zmq_send"))
        return -1;
    int rc = __real_zmq_send(socket, data, len, flags);
    is_in_message = rc >= 0 && (flags & ZMQ_SNDMORE);
    return rc;
}

int __wrap_zmq_msg_send(zmq_msg_t *msg, void *socket, int flags)
{
    if (is_send_due("zmq_msg_send"))
        return -1;
    int rc = __real_zmq_msg_send(msg, socket, flags);
    is_in_message = rc >= 0 && (flags & ZMQ_SNDMORE);
    return rc;
}

/* ---- the rest ---------------------------------------------------------------------------------- */

#define FAULT(name, type, params, args, condition, failure, error)                                 \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        if ((condition) && is_due(#name)) {                                                        \
            errno = error;                                                                         \
            return failure;                                                                        \
        }                                                                                          \
        return __real_##name args;                                                                 \
    }
#include "faults.def"
#undef FAULT
