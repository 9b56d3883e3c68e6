/* SPDX-License-Identifier: Apache-2.0 */
/* The generators are those of Blackman and Vigna (prng.di.unimi.it, public domain). */
#include "base/rng.h"

#include "base/assert.h"

static uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotate_left(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

void tqi_rng_init(tqi_rng_t *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        rng->state[i] = splitmix64(&seed);
}

uint64_t tqi_rng_u64(tqi_rng_t *rng)
{
    uint64_t *s = rng->state;
    uint64_t result = rotate_left(s[1] * 5, 7) * 9;
    uint64_t shifted = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= shifted;
    s[3] = rotate_left(s[3], 45);
    return result;
}

uint64_t tqi_rng_below(tqi_rng_t *rng, uint64_t bound)
{
    tqi_assert(bound > 0);
    /* Values under 2^64 mod bound would make the low results too likely: draw again. */
    uint64_t reject_below = (0 - bound) % bound;
    uint64_t x;

    do
        x = tqi_rng_u64(rng);
    while (x < reject_below);
    return x % bound;
}

bool tqi_rng_chance(tqi_rng_t *rng, double probability)
{
    return (double)(tqi_rng_u64(rng) >> 11) * 0x1p-53 < probability;
}
