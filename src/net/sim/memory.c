/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory with a head that says how much, and a guard behind. Roles give back what they took, with
 * the size that they took it with: a size that differs is a container that lost count.
 */
#include <inttypes.h>
#include <stdio.h>

#include "net/sim/internal.h"

#define FILL_NEW 0xAB
#define FILL_FREED 0xDF
#define GUARD UINT64_C(0x7D1C0FFEE0DDF00D)

typedef struct head {
    _Alignas(16) size_t size;
    const tqi_sim_memory_t *owner;
} head_t;

static _Noreturn void broken(const tqi_sim_memory_t *memory, const char *what, size_t told,
                             size_t size)
{
    fprintf(stderr, "sim: memory of %s: %s (%zu bytes; told %zu)\n", memory->name, what, size,
            told);
    abort();
}

static void check(const tqi_sim_memory_t *memory, const head_t *head, size_t old_size)
{
    uint64_t guard;

    if (head->owner != memory)
        broken(memory, "a block comes back to another owner, or twice", old_size, 0);
    if (head->size != old_size)
        broken(memory, "a block comes back with another size", old_size, head->size);
    memcpy(&guard, (const char *)(head + 1) + head->size, sizeof guard);
    if (guard != GUARD)
        broken(memory, "something was written behind a block", old_size, head->size);
}

static void *memory_mem(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    tqi_sim_memory_t *memory = ctx;
    head_t *old = ptr ? (head_t *)ptr - 1 : NULL, *head = NULL;
    uint64_t guard = GUARD;

    if (old)
        check(memory, old, old_size);
    if (new_size > 0) {
        memory->calls++;
        if (memory->calls == memory->fail_at ||
            (memory->refusal > 0 && tqi_rng_chance(&memory->rng, memory->refusal))) {
            memory->refused++;
            return NULL;
        }
        head = malloc(sizeof *head + new_size + sizeof guard);
        tqi_assert(head);
        head->size = new_size;
        head->owner = memory;
        if (old)
            memcpy(head + 1, ptr, tqi_size_min(old_size, new_size));
        if (new_size > old_size || !old)
            memset((char *)(head + 1) + (old ? old_size : 0), FILL_NEW,
                   new_size - (old ? old_size : 0));
        memcpy((char *)(head + 1) + new_size, &guard, sizeof guard);
        memory->bytes += new_size;
        memory->blocks++;
    }
    if (old) {
        memory->bytes -= old_size;
        memory->blocks--;
        memset(old, FILL_FREED, sizeof *old + old_size);
        free(old);
    }
    if (memory->bytes > memory->bytes_max)
        memory->bytes_max = memory->bytes;
    return head ? head + 1 : NULL;
}

void tqi_sim_memory_init(tqi_sim_memory_t *memory, const char *name, uint64_t seed)
{
    *memory = (tqi_sim_memory_t){.env = {.ctx = memory, .mem = memory_mem}, .name = name};
    tqi_rng_init(&memory->rng, seed);
}
