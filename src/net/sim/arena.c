/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments from the C library's heap, each between two guards. What is new, punched or closed is
 * filled with a pattern of its own, so that bytes read from there are never mistaken for a value.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "net/sim/internal.h"
#include "sys/env_malloc.h"

#define GUARD_BYTES 4096
#define FILL_GUARD 0xF1
#define FILL_NEW 0xE3
#define FILL_PUNCHED 0xD5
#define FILL_CLOSED 0xC7

void arena_fault(tqi_sim_host_t *host, const char *fmt, ...)
{
    va_list args;

    if (host->fault[0])
        return;
    va_start(args, fmt);
    vsnprintf(host->fault, sizeof host->fault, fmt, args);
    va_end(args);
}

static tqi_sim_host_t *host_of(tqi_arena_t *arena)
{
    return tqi_container_of(arena, tqi_sim_host_t, arena);
}

segment_t *segment_ref(tqi_sim_host_t *host, uint32_t id)
{
    segment_t *segment = tqi_map_u64_get(&host->segments, id);

    if (segment)
        segment->refs++;
    return segment;
}

void segment_unref(segment_t *segment)
{
    if (--segment->refs > 0)
        return;
    free(segment->memory);
    free(segment);
}

static bool guards_stand(const segment_t *segment)
{
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (segment->memory[i] != FILL_GUARD || segment->base[segment->bytes + i] != FILL_GUARD)
            return false;
    return true;
}

static tq_status_t arena_open(tqi_arena_t *arena, uint32_t id, uint64_t bytes, void **base,
                              tqi_err_t *err)
{
    tqi_sim_host_t *host = host_of(arena);
    segment_t *segment;
    tq_status_t rc;

    if (tqi_map_u64_get(&host->segments, id) || bytes == 0 || bytes % 4096 != 0)
        arena_fault(host, "segment %" PRIu32 " of %" PRIu64 " bytes was opened twice or crooked",
                    id, bytes);
    host->arena_calls++;
    if (host->fault[0] || host->arena_calls == host->arena_fail_at ||
        sim_chance(host->sim, host->sim->conf.faults.arena))
        return tqi_fail(err, TQ_E_SYSTEM, "the simulated arena refuses segment %" PRIu32, id);
    segment = sim_alloc(sizeof *segment);
    segment->memory = aligned_alloc(4096, bytes + 2 * GUARD_BYTES);
    tqi_assert(segment->memory);
    segment->base = segment->memory + GUARD_BYTES;
    segment->bytes = bytes;
    segment->id = id;
    segment->refs = 1;
    memset(segment->memory, FILL_GUARD, GUARD_BYTES);
    memset(segment->base, FILL_NEW, bytes);
    memset(segment->base + bytes, FILL_GUARD, GUARD_BYTES);
    rc = tqi_map_u64_put(&host->segments, id, segment, NULL);
    tqi_assert(rc == TQ_OK);
    host->arena_bytes += bytes;
    *base = segment->base;
    return TQ_OK;
}

static void arena_punch(tqi_arena_t *arena, uint32_t id, uint64_t offset, uint64_t len)
{
    tqi_sim_host_t *host = host_of(arena);
    segment_t *segment = tqi_map_u64_get(&host->segments, id);

    if (!segment || offset > segment->bytes || len > segment->bytes - offset || offset % 4096 ||
        len % 4096) {
        arena_fault(host, "a hole of %" PRIu64 "+%" PRIu64 " in segment %" PRIu32 " is not in it",
                    offset, len, id);
        return;
    }
    memset(segment->base + offset, FILL_PUNCHED, len);
}

static void arena_close(tqi_arena_t *arena, uint32_t id)
{
    tqi_sim_host_t *host = host_of(arena);
    segment_t *segment = tqi_map_u64_take(&host->segments, id);

    if (!segment) {
        arena_fault(host, "segment %" PRIu32 " was closed and is not open", id);
        return;
    }
    if (!guards_stand(segment))
        arena_fault(host, "somebody wrote outside of segment %" PRIu32, id);
    host->arena_bytes -= segment->bytes;
    memset(segment->base, FILL_CLOSED, segment->bytes);
    segment_unref(segment);
}

void arena_init(tqi_sim_host_t *host)
{
    host->arena = (tqi_arena_t){arena_open, arena_punch, arena_close};
}

tqi_arena_t *tqi_sim_host_arena(tqi_sim_host_t *host)
{
    return &host->arena;
}

uint64_t tqi_sim_host_arena_bytes(const tqi_sim_host_t *host)
{
    return host->arena_bytes;
}

const char *tqi_sim_host_arena_fault(tqi_sim_host_t *host)
{
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&host->segments); item;
         item = tqi_map_u64_next(item))
        if (!guards_stand(item->value))
            arena_fault(host, "somebody wrote outside of segment %" PRIu64, item->key);
    return host->fault[0] ? host->fault : NULL;
}

uint32_t tqi_sim_host_reap(tqi_sim_host_t *host)
{
    tqi_map_u64_item_t *item;
    uint32_t left = 0;

    tqi_assert(!host->is_up);
    while ((item = tqi_map_u64_first(&host->segments))) {
        segment_unref(tqi_map_u64_take(&host->segments, item->key));
        left++;
    }
    host->arena_bytes = 0;
    return left;
}
