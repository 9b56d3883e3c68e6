/* SPDX-License-Identifier: Apache-2.0 */
/* What each fuzzing target is: one function of bytes, which returns, or aborts on a bug. */
#ifndef TQI_TESTS_FUZZ_FUZZ_H
#define TQI_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

void tqi_fuzz_one(const uint8_t *data, size_t len);

#endif
