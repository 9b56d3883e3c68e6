/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What unit tests share: cmocka, an environment that counts its bytes and can refuse the n-th
 * allocation, and the loop of a property test over fixed seeds, which says the seed that failed.
 */
#ifndef TQI_TESTS_UNIT_H
#define TQI_TESTS_UNIT_H

#include "base/env.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct unit_env {
    tqi_env_t env; /* first: pass &e.env to what is tested */
    size_t bytes;  /* allocated now; 0 again after the object's fini */
    size_t bytes_max;
    uint64_t alloc_cnt;  /* allocations and growths asked for */
    uint64_t fail_after; /* so many more succeed, then all are refused; UINT64_MAX: never */
} unit_env_t;

static inline void *unit_env_mem(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    unit_env_t *e = ctx;

    if (new_size == 0) {
        assert_true(e->bytes >= old_size);
        e->bytes -= old_size;
        free(ptr);
        return NULL;
    }
    e->alloc_cnt++;
    if (e->fail_after == 0)
        return NULL;
    if (e->fail_after != UINT64_MAX)
        e->fail_after--;
    void *result = realloc(ptr, new_size);
    assert_non_null(result);
    e->bytes += new_size - old_size;
    if (e->bytes > e->bytes_max)
        e->bytes_max = e->bytes;
    return result;
}

static inline void unit_env_init(unit_env_t *e)
{
    *e = (unit_env_t){.fail_after = UINT64_MAX};
    e->env.ctx = e;
    e->env.mem = unit_env_mem;
}

/* The seed under test, for the message when a property fails. */
static uint64_t unit_seed __attribute__((unused));

#define unit_check(expr)                                                                           \
    do {                                                                                           \
        if (!(expr))                                                                               \
            fail_msg("%s (seed %llu)", #expr, (unsigned long long)unit_seed);                      \
    } while (0)

/* for_each_seed(seed, 50) { ... } */
#define for_each_seed(seed, cnt) for (uint64_t seed = 1; (unit_seed = seed) <= (cnt); seed++)

#endif
