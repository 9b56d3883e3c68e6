/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory with a file descriptor: what a unit's segments are made of. It can be passed to another
 * process, and ranges of it can be given back to the system while the rest stays.
 */
#ifndef TQI_SYS_MEMFD_H
#define TQI_SYS_MEMFD_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tqi_memfd {
    int fd; /* close-on-exec; sealed, so that no holder can change its size under a mapping */
    uint8_t *base; /* mapped for reading and writing, not in forked children */
    size_t bytes;
} tqi_memfd_t;

/* bytes > 0, a multiple of 4,096. Takes no memory until it is touched; reads as zeros. name shows
 * in /proc/PID/maps. E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_memfd_open(tqi_memfd_t *memfd, const char *name, size_t bytes, tqi_err_t *err);
/* Unmaps and closes. A closed or zeroed one with fd -1 is fine. */
void tqi_memfd_close(tqi_memfd_t *memfd);

/* Gives the memory of [offset, offset + len) back; it reads as zeros afterwards. Multiples of
 * 4,096. Never for a range that a device or a registration may still write (the write would go to
 * pages that nobody sees). E_SYSTEM. */
tq_status_t tqi_memfd_punch(tqi_memfd_t *memfd, size_t offset, size_t len, tqi_err_t *err);
/* Makes the range present and mapped ahead of use, keeping its contents: a copy into fresh pages
 * runs at a third of the speed. E_NO_MEMORY when the system has no more of it; E_SYSTEM. */
tq_status_t tqi_memfd_pretouch(tqi_memfd_t *memfd, size_t offset, size_t len, tqi_err_t *err);

#endif
