/* SPDX-License-Identifier: Apache-2.0 */
#include "base/env.h"

#include "base/size.h"

#include <string.h>

void *tqi_env_alloc(const tqi_env_t *env, size_t size)
{
    return env->mem(env->ctx, NULL, 0, size);
}

void *tqi_env_zalloc(const tqi_env_t *env, size_t size)
{
    void *ptr = env->mem(env->ctx, NULL, 0, size);

    if (ptr != NULL)
        memset(ptr, 0, size);
    return ptr;
}

void *tqi_env_calloc(const tqi_env_t *env, size_t cnt, size_t size)
{
    size_t total;

    if (!tqi_size_mul(cnt, size, &total))
        return NULL;
    return tqi_env_zalloc(env, total);
}

void *tqi_env_realloc(const tqi_env_t *env, void *ptr, size_t old_size, size_t new_size)
{
    return env->mem(env->ctx, ptr, old_size, new_size);
}

void tqi_env_free(const tqi_env_t *env, void *ptr, size_t size)
{
    if (ptr != NULL)
        env->mem(env->ctx, ptr, size, 0);
}
