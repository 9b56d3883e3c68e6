/* SPDX-License-Identifier: Apache-2.0 */
/* The same targets under libFuzzer: meson setup -Dfuzz=true with clang; make fuzz. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    tqi_fuzz_one(data, len);
    return 0;
}
