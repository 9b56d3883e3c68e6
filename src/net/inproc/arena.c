/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of a unit of this process, and the table of the arenas that clients can find. The unit's
 * thread opens and closes segments; clients' threads look them up when they begin a copy. Both sides
 * meet under the arena's mutex, held for a look-up; a segment that is being copied is counted, and
 * unmapped by whoever lets go of it last.
 */
#include "net/inproc/arena.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/env.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "net/inproc/inproc.h"
#include "sys/entropy.h"
#include "sys/env_malloc.h"
#include "sys/fork.h"
#include "sys/memfd.h"

struct tqi_inproc_segment {
    atomic_uint refs;
    tqi_memfd_t memfd;
};

struct tqi_inproc_arena {
    tqi_arena_t port;
    tqi_node_t in_registry;
    uint64_t handle;
    pid_t pid; /* a forked child has a copy of the table, and none of the memory behind it */
    atomic_uint refs;
    pthread_mutex_t mutex;
    tqi_map_u64_t segments; /* id -> segment, under mutex */
};

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static tqi_list_t registry = {.head = {&registry.head, &registry.head}};

static void guard(void)
{
    tqi_fork_guard(&registry_mutex);
}

void tqi_inproc_segment_unref(tqi_inproc_segment_t *segment)
{
    if (atomic_fetch_sub_explicit(&segment->refs, 1, memory_order_acq_rel) != 1)
        return;
    tqi_memfd_close(&segment->memfd);
    free(segment);
}

uint8_t *tqi_inproc_segment_at(tqi_inproc_segment_t *segment, uint64_t offset, uint64_t len)
{
    uint64_t end;
    if (!tqi_u64_add(offset, len, &end) || end > segment->memfd.bytes)
        return NULL;
    return segment->memfd.base + offset;
}

tqi_inproc_segment_t *tqi_inproc_arena_ref_segment(tqi_inproc_arena_t *arena, uint32_t id)
{
    pthread_mutex_lock(&arena->mutex);
    tqi_inproc_segment_t *segment = tqi_map_u64_get(&arena->segments, id);
    if (segment)
        atomic_fetch_add_explicit(&segment->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&arena->mutex);
    return segment;
}

tqi_inproc_arena_t *tqi_inproc_arena_find(uint64_t handle)
{
    tqi_inproc_arena_t *found = NULL;
    pthread_mutex_lock(&registry_mutex);
    tqi_list_each(&registry, node)
    {
        tqi_inproc_arena_t *arena = tqi_container_of(node, tqi_inproc_arena_t, in_registry);
        if (arena->handle == handle && arena->pid == getpid()) {
            atomic_fetch_add_explicit(&arena->refs, 1, memory_order_relaxed);
            found = arena;
        }
    }
    pthread_mutex_unlock(&registry_mutex);
    return found;
}

void tqi_inproc_arena_unref(tqi_inproc_arena_t *arena)
{
    if (!arena || atomic_fetch_sub_explicit(&arena->refs, 1, memory_order_acq_rel) != 1)
        return;
    tqi_assert(tqi_map_u64_count(&arena->segments) == 0);
    tqi_map_u64_fini(&arena->segments, NULL, NULL);
    pthread_mutex_destroy(&arena->mutex);
    free(arena);
}

/* ---- the unit's port ------------------------------------------------------------------------- */

static tq_status_t arena_open(tqi_arena_t *port, uint32_t id, uint64_t bytes, void **base,
                              tqi_err_t *err)
{
    tqi_inproc_arena_t *arena = tqi_container_of(port, tqi_inproc_arena_t, port);
    tqi_inproc_segment_t *segment = calloc(1, sizeof *segment);
    if (!segment)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for segment %u", id);
    atomic_init(&segment->refs, 1);
    segment->memfd.fd = -1;
    tq_status_t rc = tqi_memfd_open(&segment->memfd, "tq-segment", bytes, err);
    if (rc == TQ_OK) {
        pthread_mutex_lock(&arena->mutex);
        rc = tqi_map_u64_put(&arena->segments, id, segment, NULL);
        pthread_mutex_unlock(&arena->mutex);
        if (rc != TQ_OK)
            tqi_fail(err, rc, "no memory for segment %u", id);
    }
    if (rc != TQ_OK) {
        tqi_inproc_segment_unref(segment);
        return rc;
    }
    *base = segment->memfd.base;
    return TQ_OK;
}

static void arena_punch(tqi_arena_t *port, uint32_t id, uint64_t offset, uint64_t len)
{
    tqi_inproc_arena_t *arena = tqi_container_of(port, tqi_inproc_arena_t, port);
    tqi_inproc_segment_t *segment = tqi_inproc_arena_ref_segment(arena, id);
    if (!segment)
        return;
    (void)tqi_memfd_punch(&segment->memfd, offset, len, NULL);
    tqi_inproc_segment_unref(segment);
}

static void arena_close(tqi_arena_t *port, uint32_t id)
{
    tqi_inproc_arena_t *arena = tqi_container_of(port, tqi_inproc_arena_t, port);
    pthread_mutex_lock(&arena->mutex);
    tqi_inproc_segment_t *segment = tqi_map_u64_take(&arena->segments, id);
    pthread_mutex_unlock(&arena->mutex);
    if (segment)
        tqi_inproc_segment_unref(segment);
}

tq_status_t tqi_inproc_arena_new(tqi_inproc_arena_t **out, tqi_err_t *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    tqi_inproc_arena_t *arena = calloc(1, sizeof *arena);
    pthread_once(&once, guard);
    if (!arena)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an arena");
    arena->port = (tqi_arena_t){arena_open, arena_punch, arena_close};
    arena->pid = getpid();
    atomic_init(&arena->refs, 1);
    pthread_mutex_init(&arena->mutex, NULL);
    tqi_map_u64_init(&arena->segments, tqi_env_malloc());
    while (arena->handle == 0)
        tqi_entropy(&arena->handle, sizeof arena->handle);
    pthread_mutex_lock(&registry_mutex);
    tqi_list_push_back(&registry, &arena->in_registry);
    pthread_mutex_unlock(&registry_mutex);
    *out = arena;
    return TQ_OK;
}

tqi_arena_t *tqi_inproc_arena_port(tqi_inproc_arena_t *arena)
{
    return &arena->port;
}

uint64_t tqi_inproc_arena_handle(const tqi_inproc_arena_t *arena)
{
    return arena->handle;
}

void tqi_inproc_arena_free(tqi_inproc_arena_t *arena)
{
    tqi_map_u64_item_t *item;
    if (!arena)
        return;
    pthread_mutex_lock(&registry_mutex);
    tqi_list_remove(&registry, &arena->in_registry);
    pthread_mutex_unlock(&registry_mutex);
    while ((item = tqi_map_u64_first(&arena->segments)))
        arena_close(&arena->port, (uint32_t)item->key);
    tqi_inproc_arena_unref(arena);
}
