/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TQI_SYS_CLOCK_H
#define TQI_SYS_CLOCK_H

#include <stdint.h>

/* Monotonic time, the now_ns of every core and deadline. Its zero is the same for all processes of
 * a host and means nothing elsewhere. Any thread. */
uint64_t tqi_now_ns(void);
/* Nanoseconds since 1970, for people and logs only: it jumps. Any thread. */
uint64_t tqi_realtime_ns(void);

#endif
