/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storage unit role: payload bytes, the objects in them, transfers under way. It knows rows and
 * fields, nothing of tasks. Pure over its ports.
 */
#ifndef TQI_ROLE_STORAGE_UNIT_H
#define TQI_ROLE_STORAGE_UNIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/err.h"
#include "role/role.h"

typedef struct tqi_unit tqi_unit_t;

typedef struct tqi_unit_conf {
    uint64_t unit_incarnation;    /* new at each start, never 0 */
    const char *controller;       /* address to dial */
    const char *const *addresses; /* where clients reach our ctrl port */
    uint32_t addresses_cnt;
    const char *host; /* boot id of the machine */
    const char *name;
    uint64_t capacity_bytes;
    uint32_t column_reserve_percent; /* 10 */
    uint32_t lease_ms;               /* 30,000 */
    uint32_t silence_ms;    /* 5,000: without the controller for so long: refuse sessions */
    uint64_t segment_bytes; /* 64 MiB */
} tqi_unit_conf_t;          /* zero: the default beside it, for the last five */

/* env, ctrl, payload (NULL: inline only) and arena outlive it. E_CONFIG, E_NO_MEMORY. */
tq_status_t tqi_unit_new(const tqi_env_t *env, const tqi_unit_conf_t *conf, tqi_ctrl_t *ctrl,
                         tqi_payload_unit_t *payload, tqi_arena_t *arena, uint64_t now_ns,
                         tqi_unit_t **out, tqi_err_t *err);
void tqi_unit_free(tqi_unit_t *unit);
tqi_role_t *tqi_unit_role(tqi_unit_t *unit);

/* The controller has answered REGISTER. */
bool tqi_unit_is_registered(const tqi_unit_t *unit);
/* What the controller's refusal said, or "". */
const char *tqi_unit_error(const tqi_unit_t *unit);

void tqi_unit_drain(tqi_unit_t *unit, uint64_t now_ns);
bool tqi_unit_is_idle(const tqi_unit_t *unit);
/* After the drain, as the last thing: tells clients and the controller that nothing more will come
 * from here. */
void tqi_unit_say_closing(tqi_unit_t *unit);
/* All that are connected have answered that. */
bool tqi_unit_is_heard(const tqi_unit_t *unit);

tq_status_t tqi_unit_stat(const tqi_unit_t *unit, tqi_buf_t *json);
/* As tqi_controller_check. */
bool tqi_unit_check(const tqi_unit_t *unit, tqi_err_t *err);

#endif
