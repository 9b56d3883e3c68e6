/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/env_malloc.h"

#include <pthread.h>
#include <stdlib.h>

#include "sys/entropy.h"

static void *malloc_mem(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    (void)ctx;
    (void)old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_size);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static tqi_env_t process_env = {.mem = malloc_mem};

static void seed(void)
{
    tqi_entropy(&process_env.hash_seed, sizeof process_env.hash_seed);
}

const tqi_env_t *tqi_env_malloc(void)
{
    pthread_once(&once, seed);
    return &process_env;
}
