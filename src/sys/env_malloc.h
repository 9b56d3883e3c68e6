/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TQI_SYS_ENV_MALLOC_H
#define TQI_SYS_ENV_MALLOC_H

#include "base/env.h"

/* The C library's heap. Static, any thread. */
const tqi_env_t *tqi_env_malloc(void);

#endif
