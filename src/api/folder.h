/* SPDX-License-Identifier: Apache-2.0 */
/* The folder of an embedded store's sockets. It is locked for as long as the process lives, so that the
 * folders of processes that were killed can be told from others, and removed by the next store. */
#ifndef TQI_API_FOLDER_H
#define TQI_API_FOLDER_H

#include "base/err.h"
#include "net/adapter.h"

typedef struct tqi_folder {
    char path[TQI_ADDRESS_MAX]; /* "": there is none */
    int lock_fd;                /* -1: could not be locked */
} tqi_folder_t;

/* Where they are made: $XDG_RUNTIME_DIR, or /tmp where there is none, or a path so long that a unix
 * socket's 107 bytes would not hold it. */
const char *tqi_folder_base(void);

/* Makes BASE/tq-PID-XXXXXX, mode 0700. E_SYSTEM. */
tq_status_t tqi_folder_make(const char *base, tqi_folder_t *folder, tqi_err_t *err);
/* Removes it with the sockets of a store in it; what else is there stays, and so does it. */
void tqi_folder_remove(tqi_folder_t *folder);

/* Removes this user's folders in `base` whose store is dead; how many. Dead is one whose lock is
 * nobody's. One without a lock is dead when its process is, nobody answers at its socket, and it is
 * older than a minute. Any thread. */
unsigned tqi_folder_sweep(const char *base);

#endif
