/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TQI_BASE_HASH_H
#define TQI_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* A 64-bit hash (XXH3) of len bytes, the same on every machine; different seeds give unrelated
 * ones. Not cryptographic. */
uint64_t tqi_hash_bytes(const void *bytes, size_t len, uint64_t seed);

#endif
