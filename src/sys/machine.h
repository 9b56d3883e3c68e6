/* SPDX-License-Identifier: Apache-2.0 */
/* What identifies this machine and this process to others. Any thread; static memory. */
#ifndef TQI_SYS_MACHINE_H
#define TQI_SYS_MACHINE_H

#include <stdint.h>

const char *tqi_machine_boot_id(void);    /* "" where the kernel does not say */
const char *tqi_machine_host(void);       /* the host's name */
uint64_t tqi_machine_memory(void);        /* bytes, or the cgroup's limit where that is less */
uint64_t tqi_process_pid_ns(void);        /* inode of the pid namespace; 0 unknown */
uint64_t tqi_process_start_time(int pid); /* clock ticks since boot; 0 unknown */

#endif
