/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch port: tells when the process behind a session is dead. A socket's hang-up proves
 * nothing (a forked child may hold it), and silence takes seconds to mean something; a process's
 * death is certain and known at once, if it is a process of this machine that we can see.
 */
#ifndef TQI_NET_WATCH_H
#define TQI_NET_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Who a process says it is (HELLO): a pid means nothing on another machine or in another pid
 * namespace, nor after the process has ended and its number was taken by a new one. */
typedef struct tqi_process {
    const char *boot_id; /* not terminated */
    size_t boot_id_len;
    uint64_t pid_ns; /* inode of its pid namespace */
    uint64_t pid;
    uint64_t start_time; /* clock ticks since boot */
} tqi_process_t;

typedef struct tqi_watch tqi_watch_t;
struct tqi_watch {
    /* Watches a process under an id of the caller's. False where it can't be watched from here (all
     * must match), or is gone already, or there is no memory, or the id is in use; then nothing is
     * ever reported. A process that has just died, and of which the machine still knows, is
     * reported like one that dies later: once, and never from within this call. */
    bool (*add)(tqi_watch_t *watch, uint64_t id, const tqi_process_t *process);
    /* Nothing is reported for the id any more. Unknown: no effect. */
    void (*remove)(tqi_watch_t *watch, uint64_t id);
};

#endif
