/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/env_malloc.h"

#include <stdlib.h>

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

const tqi_env_t *tqi_env_malloc(void)
{
    static const tqi_env_t env = {.ctx = NULL, .mem = malloc_mem};

    return &env;
}
