/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TQI_SYS_ENTROPY_H
#define TQI_SYS_ENTROPY_H

#include <stddef.h>

/* Fills from the kernel's generator, good enough for tokens and incarnations. Any thread. */
void tqi_entropy(void *bytes, size_t len);

#endif
