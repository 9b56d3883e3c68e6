/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A loop runs one role in one thread: it waits for its adapters, its mailbox and the role's next
 * deadline, and feeds the role. Everything but post and stop is called by the thread that made the
 * loop before it is started, or from within it.
 */
#ifndef TQI_LOOP_LOOP_H
#define TQI_LOOP_LOOP_H

#include "net/adapter.h"
#include "role/role.h"
#include "sys/mail.h"

typedef struct tqi_loop tqi_loop_t;

/* E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_loop_new(const char *thread_name, tqi_loop_t **out, tqi_err_t *err);
/* Stops, and closes the ctrl adapters. NULL is fine. The role is the caller's to free, between stop
 * and free. */
void tqi_loop_free(tqi_loop_t *loop);

/* For adapters that are made for this loop. */
tqi_mailbox_t *tqi_loop_mailbox(tqi_loop_t *loop);
/* Reports payload completions and, for sources that are no ctrl adapters, nothing else. */
const tqi_sink_t *tqi_loop_sink(tqi_loop_t *loop);

/* The sink that ctrl adapter number `slot` (0, 1, ...) must be made with, then the adapter itself,
 * which the loop owns from now on, also on error. At most 4. E_SYSTEM. */
const tqi_sink_t *tqi_loop_ctrl_sink(tqi_loop_t *loop, unsigned slot);
tq_status_t tqi_loop_add_ctrl(tqi_loop_t *loop, unsigned slot, tqi_ctrl_adapter_t *adapter,
                              tqi_err_t *err);
/* Another source to wait for (a payload adapter); stays the caller's. At most 4. E_SYSTEM. */
tq_status_t tqi_loop_add_source(tqi_loop_t *loop, tqi_source_t *source, tqi_err_t *err);

/* One ctrl port over all ctrl adapters, by the address's scheme. */
tqi_ctrl_t *tqi_loop_ctrl(tqi_loop_t *loop);
/* Listens with the adapter that serves the address. E_ADDRESS, E_CONFIG. */
tq_status_t tqi_loop_listen(tqi_loop_t *loop, const char *address, char real[TQI_ADDRESS_MAX],
                            tqi_err_t *err);

/* Called in the loop's thread when it was held up for pause_ns beyond what it meant to sleep (over
 * 1 s: the process was stopped, the machine was busy), after the queues were read. */
void tqi_loop_on_pause(tqi_loop_t *loop, void (*fn)(void *ctx, uint64_t pause_ns), void *ctx);

/* Starts the thread. E_SYSTEM. */
tq_status_t tqi_loop_start(tqi_loop_t *loop, tqi_role_t *role, tqi_err_t *err);
/* Asks the thread to end and waits until it has: the role is then the caller's alone. No more letters
 * are taken, and those that were not opened are told so. Idempotent. */
void tqi_loop_stop(tqi_loop_t *loop);

/* Any thread, also before start: opens the letter in the loop's thread. False once it is
 * stopped. */
bool tqi_loop_post(tqi_loop_t *loop, tqi_letter_t *letter);
/* Any thread but the loop's own, while it runs: calls fn(ctx, now_ns) in the loop's thread and
 * waits for it. */
void tqi_loop_call(tqi_loop_t *loop, void (*fn)(void *ctx, uint64_t now_ns), void *ctx);

#endif
