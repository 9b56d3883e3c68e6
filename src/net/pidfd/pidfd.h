/* SPDX-License-Identifier: Apache-2.0 */
/* The watch port over Linux's pidfds. */
#ifndef TQI_NET_PIDFD_PIDFD_H
#define TQI_NET_PIDFD_PIDFD_H

#include "base/env.h"
#include "net/adapter.h"
#include "net/watch.h"

typedef struct tqi_pidfd_watch tqi_pidfd_watch_t;

/* on_death comes from the source's run. E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_pidfd_watch_new(const tqi_env_t *env, void (*on_death)(void *ctx, uint64_t id),
                                void *ctx, tqi_pidfd_watch_t **out, tqi_err_t *err);
tqi_watch_t *tqi_pidfd_watch_port(tqi_pidfd_watch_t *watch);
tqi_source_t *tqi_pidfd_watch_source(tqi_pidfd_watch_t *watch);
void tqi_pidfd_watch_free(tqi_pidfd_watch_t *watch); /* NULL is fine */

#endif
