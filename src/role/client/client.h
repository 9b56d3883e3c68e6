/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client role: turns one call into the messages and transfers that it takes, and completes it
 * exactly once. It keeps the session, the connections to the controller and to the units that it
 * has used, and resends what got lost. Pure over its ports.
 *
 * Everything here belongs to the thread that runs the role, but for making and freeing ops, which
 * any thread may do with an environment that any thread may use.
 */
#ifndef TQI_ROLE_CLIENT_CLIENT_H
#define TQI_ROLE_CLIENT_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include <tq/tq.h>

#include "base/env.h"
#include "base/err.h"
#include "role/role.h"

typedef struct tqi_client tqi_client_t;
typedef struct tqi_op tqi_op_t;

/* What happens in a client's life, told to its host. */
typedef enum tqi_client_event {
    TQI_CLIENT_UP = 1,  /* a session has begun (again) */
    TQI_CLIENT_DOWN,    /* a session was lost; the client tries for another */
    TQI_CLIENT_REFUSED, /* the store will not have this client, or is gone for good; the status and
                           text say why. Every later op fails with them */
} tqi_client_event_t;

/* The host of a client. Calls come from the client's thread, from within step(). */
typedef struct tqi_client_host {
    void *ctx;
    /* The op is complete: its status and result may be read, and it may be freed, from now on. */
    void (*on_done)(void *ctx, tqi_op_t *op);
    /* May be NULL. */
    void (*on_event)(void *ctx, tqi_client_event_t event, tq_status_t status, const char *text);
    /* Memory that a get fills: `bytes` > 0, aligned to 64, counted once for the op. NULL when there
     * is none. */
    tq_buffer_t *(*buffer_take)(void *ctx, size_t bytes, void **data);
    /* The op's reference goes. Any thread that may free ops, also after the client is gone. */
    void (*buffer_give)(tq_buffer_t *buffer);
} tqi_client_host_t;

typedef struct tqi_client_conf {
    const char *address;         /* of the controller; without "#incarnation" */
    uint64_t incarnation_wanted; /* 0: any; else no other store is ever joined */
    const char *name;            /* "" or NULL: none */
    const char *boot_id;         /* of this machine; "" or NULL: unknown */
    uint64_t pid_ns;             /* with pid and start_time: this process (Hello) */
    uint64_t pid;
    uint64_t start_time;
    uint32_t connect_timeout_ms; /* 5,000 */
    uint32_t call_timeout_ms;    /* 200,000 */
    uint32_t fetch_timeout_ms;   /* 5,000 */
    uint32_t space_timeout_ms;   /* 30,000 */
    tqi_client_host_t host;
} tqi_client_conf_t; /* zero: the default beside it. Copied, strings too */

/* Makes a client, which begins to connect with its first step. env, ctrl and payload (NULL: what
 * does not fit into control messages fails) outlive it. E_CONFIG, E_NO_MEMORY. */
tq_status_t tqi_client_new(const tqi_env_t *env, const tqi_client_conf_t *conf, tqi_ctrl_t *ctrl,
                           tqi_payload_client_t *payload, uint64_t now_ns, tqi_client_t **out,
                           tqi_err_t *err);
/* Outstanding ops are completed with E_CLOSED (E_OUTCOME_UNKNOWN where a write may have happened),
 * inline. No transfer may touch memory any more: close first, or stop the payload port before. */
void tqi_client_free(tqi_client_t *client);
tqi_role_t *tqi_client_role(tqi_client_t *client);

/* Submits an op made by one of the functions below. It is the client's until on_done, which never
 * comes from within this call. */
void tqi_client_submit(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns);
/* Asks for the end of an outstanding op; on_done still comes, once, with what really happened. */
void tqi_client_cancel(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns);
/* The same for an op that nobody waits for any more: rows that it still gets are given back. */
void tqi_client_abandon(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns);
/* A completed op's caller has its result: rows granted by it are final. Needed only if
 * tqi_op_has_grant; other ops have no effect. The op may be freed afterwards. */
void tqi_client_taken(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns);
/* The opposite: nobody will see the result of this completed op; rows that it got go back. */
void tqi_client_discard(tqi_client_t *client, tqi_op_t *op, uint64_t now_ns);

/* Begins to end the session: outstanding ops end, then BYE. Idempotent. */
void tqi_client_close(tqi_client_t *client, uint64_t now_ns);
/* True once nothing is outstanding and BYE was answered (or given up after 2 s). */
bool tqi_client_is_closed(const tqi_client_t *client);

/* Why there is no session, as a sentence with the remedy, for somebody who waited so long. */
tq_status_t tqi_client_why(const tqi_client_t *client, uint64_t waited_ms, tqi_err_t *err);
/* Of the session that the client is in; 0 while in none. */
uint64_t tqi_client_session(const tqi_client_t *client);
/* Of the store that it is or was in; 0 before the first. */
uint64_t tqi_client_incarnation(const tqi_client_t *client);
/* The creator's text; the client's memory, changed by a TQI_CLIENT_UP only. */
const void *tqi_client_user_conf(const tqi_client_t *client, size_t *len);
/* Ops submitted and not yet done. */
uint32_t tqi_client_ops_cnt(const tqi_client_t *client);
/* Walks what the client keeps and checks that it agrees with itself; for the simulator and tests.
 * False and the reason in err. */
bool tqi_client_check(const tqi_client_t *client, tqi_err_t *err);

/* ---- ops ---------------------------------------------------------------------------------------
 *
 * Made from the arguments of the public call (tq/tq.h), which are checked, and copied but for
 * column data. E_INVALID, E_DUPLICATE, E_TOO_LARGE with the sentence; E_NO_MEMORY. */

tq_status_t tqi_op_put(const tqi_env_t *env, const tq_put_args_t *args, tqi_op_t **op,
                       tqi_err_t *err);
tq_status_t tqi_op_get(const tqi_env_t *env, const tq_get_args_t *args, tqi_op_t **op,
                       tqi_err_t *err);
tq_status_t tqi_op_fetch(const tqi_env_t *env, const tq_fetch_args_t *args, tqi_op_t **op,
                         tqi_err_t *err);
tq_status_t tqi_op_insert(const tqi_env_t *env, const tq_insert_args_t *args, tqi_op_t **op,
                          tqi_err_t *err);
tq_status_t tqi_op_tags(const tqi_env_t *env, const tq_tags_args_t *args, tqi_op_t **op,
                        tqi_err_t *err);
tq_status_t tqi_op_clear(const tqi_env_t *env, const tq_clear_args_t *args, tqi_op_t **op,
                         tqi_err_t *err);
tq_status_t tqi_op_reset(const tqi_env_t *env, const tq_reset_args_t *args, tqi_op_t **op,
                         tqi_err_t *err);
tq_status_t tqi_op_resolve(const tqi_env_t *env, const tq_resolve_args_t *args, tqi_op_t **op,
                           tqi_err_t *err);
tq_status_t tqi_op_status_of(const tqi_env_t *env, const tq_status_args_t *args, tqi_op_t **op,
                             tqi_err_t *err);
tq_status_t tqi_op_list(const tqi_env_t *env, const tq_list_args_t *args, tqi_op_t **op,
                        tqi_err_t *err);
tq_status_t tqi_op_unit_forget(const tqi_env_t *env, uint32_t unit_id, uint32_t timeout_ms,
                               tqi_op_t **op, tqi_err_t *err);
tq_status_t tqi_op_stat(const tqi_env_t *env, uint32_t timeout_ms, tqi_op_t **op, tqi_err_t *err);

/* Frees an op that was never submitted, or is done. NULL is fine. */
void tqi_op_free(tqi_op_t *op);

/* The host's own pointer, which is also who may copy this op's payload (tqi_payload_client_t's
 * `copier`). */
void tqi_op_set_user(tqi_op_t *op, void *user);
void *tqi_op_user(const tqi_op_t *op);

/* Of a done op. */
tq_status_t tqi_op_status(const tqi_op_t *op);
const char *tqi_op_error(const tqi_op_t *op); /* "" on success */
const tq_result_t *tqi_op_result(const tqi_op_t *op);
/* It holds rows that are granted provisionally: tell the client when they were taken. */
bool tqi_op_has_grant(const tqi_op_t *op);

#endif
