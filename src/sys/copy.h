/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of payload. A transfer is any number of tqi_copy calls and then one tqi_copy_done:
 *
 *     for each piece: tqi_copy(dst, src, len, transfer_bytes);
 *     tqi_copy_done();
 *     now tell whoever may read it
 *
 * A transfer that caches can't hold is written past them (streaming stores), which saves reading
 * the destination first. What decides is the size of the whole transfer, which memcpy can't see:
 * it takes each piece of a large one for a small copy.
 */
#ifndef TQI_SYS_COPY_H
#define TQI_SYS_COPY_H

#include <stddef.h>
#include <stdint.h>

/* From this size of a transfer on, stores are streamed. */
#define TQI_COPY_STREAM_BYTES (4u << 20)

/* Copies len bytes of a transfer of total_bytes (>= len). The ranges don't overlap; any alignment.
 * Until this thread has called tqi_copy_done, other threads may see old bytes even after a release
 * store. Any thread. */
void tqi_copy(void *dst, const void *src, size_t len, uint64_t total_bytes);
/* Orders this thread's copies before its later stores. */
void tqi_copy_done(void);

#endif
