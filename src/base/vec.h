/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growable arrays of one type (base/buf.h has the one of bytes). They grow by half or more, so
 * appending is O(1) amortised; elements move when they do, so pointers into them don't last.
 */
#ifndef TQI_BASE_VEC_H
#define TQI_BASE_VEC_H

#include "base/env.h"

#include <stddef.h>
#include <tq/status.h>

/* typedef TQI_VEC(row_t) row_vec_t;  ...  vec.at[i] for i < vec.len
 * raw is the same pointer, for the functions that don't know the type. */
#define TQI_VEC(type)                                                                              \
    struct {                                                                                       \
        const tqi_env_t *env;                                                                      \
        union {                                                                                    \
            type *at;                                                                              \
            void *raw;                                                                             \
        };                                                                                         \
        size_t len;                                                                                \
        size_t cap;                                                                                \
    }

/* Allocates nothing. */
#define tqi_vec_init(vec, env_)                                                                    \
    ((vec)->env = (env_), (vec)->raw = NULL, (vec)->len = (vec)->cap = 0)
/* Frees the array; the vector is then empty and usable. */
#define tqi_vec_fini(vec)                                                                          \
    (tqi_env_free((vec)->env, (vec)->raw, (vec)->cap * sizeof *(vec)->at), (vec)->raw = NULL,      \
     (vec)->len = (vec)->cap = 0)
/* Room for `more` elements beyond len. OK or E_NO_MEMORY. */
#define tqi_vec_reserve(vec, more)                                                                 \
    ((vec)->cap - (vec)->len >= (size_t)(more)                                                     \
         ? TQ_OK                                                                                   \
         : tqi_vec_grow((vec)->env, &(vec)->raw, (vec)->len, &(vec)->cap, (more),                  \
                        sizeof *(vec)->at))
/* Appends a value. OK or E_NO_MEMORY. */
#define tqi_vec_push(vec, value)                                                                   \
    (tqi_vec_reserve(vec, 1) == TQ_OK ? ((vec)->at[(vec)->len++] = (value), TQ_OK) : TQ_E_NO_MEMORY)

/* What tqi_vec_reserve does when there is too little room. */
tq_status_t tqi_vec_grow(const tqi_env_t *env, void **raw, size_t len, size_t *cap, size_t more,
                         size_t elem_size);

#endif
