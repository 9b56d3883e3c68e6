/* SPDX-License-Identifier: Apache-2.0 */
/* The same targets under libFuzzer: meson setup -Dfuzz=true with clang; make fuzz. */
#include "fuzz.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t len, size_t cap);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t len, size_t cap, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    tqi_fuzz_one(data, len < FUZZ_INPUT_MAX ? len : FUZZ_INPUT_MAX);
    return 0;
}

/* Half of the time by the grammar, half by libFuzzer's own means (bytes, the dictionary, what it
 * saw compared), which get to where the grammar does not. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t len, size_t cap, unsigned seed)
{
    tqi_rng_t rng;
    tqi_rng_init(&rng, seed);
    if (!tqi_fuzz_change || tqi_rng_below(&rng, 2) == 0)
        return LLVMFuzzerMutate(data, len, cap);
    return tqi_fuzz_change(data, len, cap, &rng);
}
