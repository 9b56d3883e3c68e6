/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One payload port over the adapters of a client: the way to each unit is chosen once, when its
 * HELLO was answered. A unit of this process is read and written in place; others over libzmq.
 */
#ifndef TQI_API_WAY_H
#define TQI_API_WAY_H

#include "base/env.h"
#include "net/payload.h"

typedef struct tqi_ways tqi_ways_t;

/* The ports outlive it; direct or stream may be NULL. E_NO_MEMORY. */
tq_status_t tqi_ways_new(const tqi_env_t *env, tqi_payload_client_t *direct,
                         tqi_payload_client_t *stream, tqi_ways_t **out, tqi_err_t *err);
tqi_payload_client_t *tqi_ways_port(tqi_ways_t *ways);
void tqi_ways_free(tqi_ways_t *ways); /* NULL is fine */

#endif
