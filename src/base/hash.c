/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

/* Inlined rather than linked: one function of a library of many, and no libxxhash to find where
 * libtq is installed. */
#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t tqi_hash_bytes(const void *bytes, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, len, seed);
}
