/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pool.h"

#include "base/assert.h"
#include "base/size.h"

#include <string.h>

void tqi_pool_init(tqi_pool_t *pool, const tqi_env_t *env, size_t obj_size, size_t obj_max)
{
    tqi_assert(obj_size > 0);
    *pool = (tqi_pool_t){
        .env = env,
        .obj_size = tqi_size_max(obj_size, sizeof(void *)),
        .obj_max = obj_max,
    };
}

static void *idle_pop(tqi_pool_t *pool)
{
    void *obj = pool->idle;

    memcpy(&pool->idle, obj, sizeof pool->idle);
    pool->idle_cnt--;
    return obj;
}

void tqi_pool_fini(tqi_pool_t *pool)
{
    tqi_assert(pool->used_cnt == 0);
    while (pool->idle != NULL)
        tqi_env_free(pool->env, idle_pop(pool), pool->obj_size);
}

void *tqi_pool_take(tqi_pool_t *pool)
{
    void *obj = NULL;

    if (pool->used_cnt < pool->obj_max) {
        if (pool->idle != NULL)
            obj = idle_pop(pool);
        else
            obj = tqi_env_alloc(pool->env, pool->obj_size);
    }
    if (obj == NULL) {
        pool->refusals++;
        return NULL;
    }
    memset(obj, 0, pool->obj_size);
    pool->used_cnt++;
    pool->used_max = tqi_size_max(pool->used_max, pool->used_cnt);
    return obj;
}

void tqi_pool_give(tqi_pool_t *pool, void *obj)
{
    if (obj == NULL)
        return;
    tqi_assert(pool->used_cnt > 0);
    memcpy(obj, &pool->idle, sizeof pool->idle);
    pool->idle = obj;
    pool->idle_cnt++;
    pool->used_cnt--;
}
