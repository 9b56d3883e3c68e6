/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of one size, at most so many of them, kept for the next user when they are given back:
 * what a hot path takes per message instead of allocating. The bound is the refusal, the counts are
 * the gauge.
 */
#ifndef TQI_BASE_POOL_H
#define TQI_BASE_POOL_H

#include "base/env.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tqi_pool {
    const tqi_env_t *env;
    size_t obj_size;
    size_t obj_max;
    void *idle; /* chain through the objects' first word */
    size_t idle_cnt;
    size_t used_cnt;   /* handed out now */
    size_t used_max;   /* the most that ever were */
    uint64_t refusals; /* takes that met the bound or found no memory */
} tqi_pool_t;

/* Allocates nothing. obj_size > 0; at most obj_max objects are out at once. */
void tqi_pool_init(tqi_pool_t *pool, const tqi_env_t *env, size_t obj_size, size_t obj_max);
/* Every object must have been given back. */
void tqi_pool_fini(tqi_pool_t *pool);

/* An object, cleared to zero, or NULL when obj_max are out or there is no memory. */
void *tqi_pool_take(tqi_pool_t *pool);
/* Gives back what came from this pool; NULL is fine. */
void tqi_pool_give(tqi_pool_t *pool, void *obj);

#endif
