/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each fuzzing target is: one function of bytes, which returns, or aborts on a bug.
 *
 * A target whose inputs have a grammar also changes them by it: it defines tqi_fuzz_change, which
 * both runners (main.c, libfuzzer.c) then use for half of their mutations.
 */
#ifndef TQI_TESTS_FUZZ_FUZZ_H
#define TQI_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"

/* Longer inputs are cut. Both runners know it: -max_len of libFuzzer is the same. */
#define FUZZ_INPUT_MAX 16384

void tqi_fuzz_one(const uint8_t *data, size_t len);

/* Makes data[0..len) another input in place, at most cap bytes long; returns its length. Weak: NULL
 * where a target has no grammar. */
size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng) __attribute__((weak));

/* A bug: says which, and aborts. */
#define fuzz_require(condition, ...)                                                               \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not %s: ", __FILE__, __LINE__, #condition);                    \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
