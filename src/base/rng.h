/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded pseudo-random numbers (xoshiro256**, seeded through splitmix64): the same seed gives the
 * same run on every machine. Not for secrets: tokens and incarnations come from the system.
 */
#ifndef TQI_BASE_RNG_H
#define TQI_BASE_RNG_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tqi_rng {
    uint64_t state[4];
} tqi_rng_t;

/* Any seed is good, 0 included. */
void tqi_rng_init(tqi_rng_t *rng, uint64_t seed);
/* Uniform over all 64-bit values. */
uint64_t tqi_rng_u64(tqi_rng_t *rng);
/* Uniform over [0, bound), without bias. bound > 0. */
uint64_t tqi_rng_below(tqi_rng_t *rng, uint64_t bound);
/* True with the given probability: never at 0 and below, always at 1 and above. */
bool tqi_rng_chance(tqi_rng_t *rng, double probability);

#endif
