/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pure core may know of the world: where its memory comes from, and a number that those who
 * choose keys can't know. Time is passed to each
 * call as now_ns (monotonic), randomness as a tqi_rng_t; nothing under base, wire or core asks the
 * system for anything itself, so that a whole store runs, repeatably, in a simulator.
 */
#ifndef TQI_BASE_ENV_H
#define TQI_BASE_ENV_H

#include <stddef.h>
#include <stdint.h>

typedef struct tqi_env tqi_env_t;

/* Owned by whoever made it; outlives every object that was given it. All calls come from the
 * thread that owns the object. */
struct tqi_env {
    void *ctx;
    /* malloc, realloc and free in one: ptr NULL allocates, new_size 0 frees and returns NULL.
     * old_size is what the object was allocated with, so that an arena or a counter needs no
     * header. Returns NULL when out of memory; the old block is then untouched. New bytes are not
     * cleared. Alignment is that of malloc. */
    void *(*mem)(void *ctx, void *ptr, size_t old_size, size_t new_size);
    /* Of hash tables, so that nobody can choose keys that all meet in one bucket. Results don't
     * depend on it: maps are walked in the order of insertion. 0 where runs are to be repeated. */
    uint64_t hash_seed;
};

/* Memory of `size` bytes, not cleared, or NULL. size > 0. */
void *tqi_env_alloc(const tqi_env_t *env, size_t size);
/* Memory of `size` bytes cleared to zero, or NULL. size > 0. */
void *tqi_env_zalloc(const tqi_env_t *env, size_t size);
/* Memory of `cnt * size` bytes cleared to zero, or NULL when out of memory or on overflow. */
void *tqi_env_calloc(const tqi_env_t *env, size_t cnt, size_t size);
/* Resizes from old_size to new_size; NULL leaves the old block as it was. */
void *tqi_env_realloc(const tqi_env_t *env, void *ptr, size_t old_size, size_t new_size);
/* Frees; NULL is fine. */
void tqi_env_free(const tqi_env_t *env, void *ptr, size_t size);

#endif
