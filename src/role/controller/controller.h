/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller role: sessions, every partition's table, the list of units. It never sees payload
 * bytes. One instance a store; pure over its port.
 */
#ifndef TQI_ROLE_CONTROLLER_CONTROLLER_H
#define TQI_ROLE_CONTROLLER_CONTROLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/err.h"
#include "net/watch.h"
#include "role/role.h"

typedef struct tqi_controller tqi_controller_t;

typedef struct tqi_controller_conf {
    uint64_t incarnation; /* of the store, never 0, never one used before */
    uint64_t seed;        /* of everything random inside */
    const char *sampler;  /* NULL: "SequentialSampler"; "GRPOGroupNSampler" */
    uint32_t sampler_group;
    const char *sampler_group_by; /* a tag's name, or NULL: by position */
    uint32_t prealloc_rows;
    uint32_t ping_ms;      /* 1,000 */
    uint32_t silence_ms;   /* 5,000 */
    uint32_t unit_lost_ms; /* 10,000 */
    uint32_t confirm_ms;   /* 100: the longest that a published put waits for its CONFIRM */
    uint32_t slice_rows;   /* 4,096, and no more: what an operation handles before others go on */
    uint32_t page_rows;    /* 65,536, and no more: of one answer to LIST, STATUS or FETCH of all */
    tqi_watch_t *watch;    /* of the processes behind sessions; NULL: silence alone ends them */
    /* How many sessions there may be now; if no more, why must say what allows more. Asked at each new
     * one. NULL: any number. */
    size_t (*sessions_max)(void *ctx, char *why, size_t why_size);
    void *sessions_max_ctx;
    const void *user_conf; /* copied */
    size_t user_conf_len;
} tqi_controller_conf_t; /* zero: the default beside it */

/* E_NO_SAMPLER, E_CONFIG, E_NO_MEMORY. env and ctrl outlive it. */
tq_status_t tqi_controller_new(const tqi_env_t *env, const tqi_controller_conf_t *conf,
                               tqi_ctrl_t *ctrl, uint64_t now_ns, tqi_controller_t **out,
                               tqi_err_t *err);
void tqi_controller_free(tqi_controller_t *ctl);
tqi_role_t *tqi_controller_role(tqi_controller_t *ctl);

/* From now on new requests are answered E_CLOSING, and parked ones too; true once nothing is in
 * flight any more. */
void tqi_controller_drain(tqi_controller_t *ctl, uint64_t now_ns);
bool tqi_controller_is_idle(const tqi_controller_t *ctl);
/* After the drain, as the last thing: tells every client that nothing more will come from here. */
void tqi_controller_say_closing(tqi_controller_t *ctl);
/* All that are connected have answered that. */
bool tqi_controller_is_heard(const tqi_controller_t *ctl);

/* The loop did not run for pause_ns: sessions and units get so much more time before they count as
 * silent. Call after the queues have been read. */
void tqi_controller_forgive(tqi_controller_t *ctl, uint64_t pause_ns);

/* A session's process is known to be dead (conf.watch, whose ids are sessions): ends it at once. */
void tqi_controller_session_died(tqi_controller_t *ctl, uint64_t session, uint64_t now_ns);

/* Appends the store's figures as one JSON object (docs/operations.md). */
tq_status_t tqi_controller_stat(const tqi_controller_t *ctl, tqi_buf_t *json);

/* Walks every table and checks that they agree with each other (INV-n of docs/architecture.md);
 * for the simulator and tests: cost is linear. False and the reason in err. */
bool tqi_controller_check(const tqi_controller_t *ctl, tqi_err_t *err);

#endif
