/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include "base/size.h"

#define VEC_BYTES_MIN 64u

tq_status_t tqi_vec_grow(const tqi_env_t *env, void **raw, size_t len, size_t *cap, size_t more,
                         size_t elem_size)
{
    size_t need, bytes;

    if (!tqi_size_add(len, more, &need))
        return TQ_E_NO_MEMORY;
    need = tqi_size_max(need, tqi_size_max(*cap + *cap / 2, VEC_BYTES_MIN / elem_size));
    if (!tqi_size_mul(need, elem_size, &bytes))
        return TQ_E_NO_MEMORY;
    void *grown = tqi_env_realloc(env, *raw, *cap * elem_size, bytes);
    if (grown == NULL)
        return TQ_E_NO_MEMORY;
    *raw = grown;
    *cap = need;
    return TQ_OK;
}
