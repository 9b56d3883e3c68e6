/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes are rounded up to classes, eight to an octave, so that an idle buffer fits a later get of
 * about its size and wastes at most an eighth of itself, untouched. Small ones come from the heap
 * and are not kept: malloc keeps them warm as well as we could.
 *
 * The cache is counted by its buffers and by the client, and goes with the last of them.
 */
#include "api/buffer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "api/fork.h"
#include "base/list.h"

#define ALIGN 64u
#define MAPPED_MIN (64u << 10) /* smaller ones are malloc's */
#define HUGE_BYTES (2u << 20)  /* of a huge page; larger buffers are aligned to it */
#define STEPS 8u               /* classes an octave */
#define CLASSES (64u * STEPS)

struct tq_buffer {
    tqi_buffers_t *home;
    atomic_uint refs;
    void *data;
    size_t size;           /* asked for */
    size_t cap;            /* of its class */
    tqi_node_t class_node; /* idle: in its class */
    tqi_node_t idle_node;  /* idle: oldest first */
};

struct tqi_buffers {
    pthread_mutex_t mutex; /* guards all but refs */
    atomic_uint refs;
    unsigned generation; /* of the process that made it */
    bool is_closed;
    uint64_t idle_bytes_max;
    tqi_buffers_stat_t stat;
    tqi_list_t idle;
    tqi_list_t classes[CLASSES];
};

/* size rounded up to a class, and its number. */
static size_t class_of(size_t size, unsigned *number)
{
    unsigned bits = 63u - (unsigned)__builtin_clzll(size | MAPPED_MIN);
    size_t step = ((size_t)1 << bits) / STEPS;
    size_t cap;

    if (!tqi_size_align(size, step, &cap))
        return 0;
    *number = bits * STEPS + (unsigned)((cap - ((size_t)1 << bits)) / step);
    return *number < CLASSES ? cap : 0;
}

static void *map_memory(size_t cap)
{
    size_t extra = cap >= 2 * HUGE_BYTES ? HUGE_BYTES : 0, total;
    char *base, *data;

    if (!tqi_size_add(cap, extra, &total))
        return NULL;
    base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (extra == 0)
        return base;
    data = (char *)(((uintptr_t)base + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    if (data > base)
        munmap(base, (size_t)(data - base));
    if (base + total > data + cap)
        munmap(data + cap, (size_t)(base + total - (data + cap)));
    (void)madvise(data, cap, MADV_HUGEPAGE);
    return data;
}

static void destroy(tq_buffer_t *buffer)
{
    if (buffer->cap >= MAPPED_MIN)
        munmap(buffer->data, buffer->cap);
    free(buffer);
}

static void home_unref(tqi_buffers_t *buffers)
{
    if (atomic_fetch_sub_explicit(&buffers->refs, 1, memory_order_acq_rel) > 1)
        return;
    pthread_mutex_destroy(&buffers->mutex);
    free(buffers);
}

tq_status_t tqi_buffers_new(uint64_t idle_bytes_max, tqi_buffers_t **out, tqi_err_t *err)
{
    tqi_buffers_t *buffers = calloc(1, sizeof *buffers);

    if (!buffers)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a buffer cache");
    pthread_mutex_init(&buffers->mutex, NULL);
    atomic_init(&buffers->refs, 1);
    buffers->generation = tqi_fork_generation();
    buffers->idle_bytes_max = idle_bytes_max;
    tqi_list_init(&buffers->idle);
    for (unsigned c = 0; c < CLASSES; c++)
        tqi_list_init(&buffers->classes[c]);
    *out = buffers;
    return TQ_OK;
}

/* Takes the oldest idle one out; the mutex is held. */
static tq_buffer_t *idle_pop(tqi_buffers_t *buffers)
{
    tqi_node_t *node = tqi_list_pop_front(&buffers->idle);
    tq_buffer_t *buffer;
    unsigned number = 0;

    if (!node)
        return NULL;
    buffer = tqi_container_of(node, tq_buffer_t, idle_node);
    class_of(buffer->cap, &number);
    tqi_list_remove(&buffers->classes[number], &buffer->class_node);
    buffers->stat.idle_bytes -= buffer->cap;
    return buffer;
}

void tqi_buffers_close(tqi_buffers_t *buffers)
{
    tq_buffer_t *buffer;

    if (!buffers)
        return;
    pthread_mutex_lock(&buffers->mutex);
    buffers->is_closed = true;
    while ((buffer = idle_pop(buffers)))
        destroy(buffer);
    pthread_mutex_unlock(&buffers->mutex);
    home_unref(buffers);
}

static tq_buffer_t *take_idle(tqi_buffers_t *buffers, unsigned number)
{
    tqi_list_t *list = &buffers->classes[number];
    tqi_node_t *node;
    tq_buffer_t *buffer = NULL;

    pthread_mutex_lock(&buffers->mutex);
    node = tqi_list_last(list); /* the warmest */
    if (node) {
        buffer = tqi_container_of(node, tq_buffer_t, class_node);
        tqi_list_remove(list, node);
        tqi_list_remove(&buffers->idle, &buffer->idle_node);
        buffers->stat.idle_bytes -= buffer->cap;
        buffers->stat.used_bytes += buffer->cap;
        buffers->stat.hits++;
    } else {
        buffers->stat.misses++;
    }
    pthread_mutex_unlock(&buffers->mutex);
    return buffer;
}

tq_buffer_t *tqi_buffers_take(tqi_buffers_t *buffers, size_t bytes, void **data)
{
    tq_buffer_t *buffer = NULL;
    unsigned number = 0;
    size_t cap, total;

    if (bytes < MAPPED_MIN) {
        /* The head, and the data behind it. */
        if (!tqi_size_align(sizeof *buffer + bytes, ALIGN, &total))
            return NULL;
        buffer = aligned_alloc(ALIGN, total + ALIGN);
        if (!buffer)
            return NULL;
        memset(buffer, 0, sizeof *buffer);
        tqi_size_align(sizeof *buffer, ALIGN, &total);
        buffer->data = (char *)buffer + total;
        buffer->cap = bytes;
    } else {
        cap = class_of(bytes, &number);
        if (cap == 0)
            return NULL;
        buffer = take_idle(buffers, number);
        if (!buffer) {
            buffer = calloc(1, sizeof *buffer);
            if (!buffer)
                return NULL;
            buffer->cap = cap;
            buffer->data = map_memory(cap);
            if (!buffer->data) {
                free(buffer);
                return NULL;
            }
            pthread_mutex_lock(&buffers->mutex);
            buffers->stat.used_bytes += cap;
            pthread_mutex_unlock(&buffers->mutex);
        }
    }
    buffer->home = buffers;
    buffer->size = bytes;
    atomic_init(&buffer->refs, 1);
    atomic_fetch_add_explicit(&buffers->refs, 1, memory_order_relaxed);
    *data = buffer->data;
    return buffer;
}

void tqi_buffers_stat(tqi_buffers_t *buffers, tqi_buffers_stat_t *stat)
{
    pthread_mutex_lock(&buffers->mutex);
    *stat = buffers->stat;
    pthread_mutex_unlock(&buffers->mutex);
}

/* ---- the public part --------------------------------------------------------------------------- */

void tq_buffer_ref(tq_buffer_t *buffer)
{
    atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
}

void *tq_buffer_data(const tq_buffer_t *buffer)
{
    return buffer->data;
}

size_t tq_buffer_size(const tq_buffer_t *buffer)
{
    return buffer->size;
}

static void give(tqi_buffers_t *buffers, tq_buffer_t *buffer)
{
    tq_buffer_t *victim;
    unsigned number = 0;

    pthread_mutex_lock(&buffers->mutex);
    buffers->stat.used_bytes -= buffer->cap;
    if (buffers->is_closed || buffer->cap > buffers->idle_bytes_max) {
        pthread_mutex_unlock(&buffers->mutex);
        destroy(buffer);
        return;
    }
    class_of(buffer->cap, &number);
    tqi_list_push_back(&buffers->classes[number], &buffer->class_node);
    tqi_list_push_back(&buffers->idle, &buffer->idle_node);
    buffers->stat.idle_bytes += buffer->cap;
    while (buffers->stat.idle_bytes > buffers->idle_bytes_max && (victim = idle_pop(buffers)))
        destroy(victim);
    pthread_mutex_unlock(&buffers->mutex);
}

void tq_buffer_unref(tq_buffer_t *buffer)
{
    tqi_buffers_t *buffers;

    if (!buffer || atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) > 1)
        return;
    buffers = buffer->home;
    /* A forked child gives the memory back and forgets the cache, whose mutex may have been held by
     * a thread that the child does not have. */
    if (buffers->generation != tqi_fork_generation() || buffer->cap < MAPPED_MIN)
        destroy(buffer);
    else
        give(buffers, buffer);
    if (buffers->generation == tqi_fork_generation())
        home_unref(buffers);
}
