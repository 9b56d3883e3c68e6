/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public client: a client role in a thread of its own, and handles for it.
 *
 * Ownership. The role and everything that it touches belong to the loop's thread. Other threads
 * send it letters: to submit, cancel, and to say that a result was taken or that nobody wants it.
 * A tq_op_t is counted by its user, by the loop (from submit to completion) and by each letter that
 * names it; the client's shell (exec, cache of buffers) by its handle, its ops and its queues, so
 * that they outlive tq_client_close.
 *
 * Completion. The loop's thread sets DONE, tq_op_free sets FREED, each with one atomic or: whoever
 * comes second sees the other and cleans up. So an op that is freed while it is being completed is
 * freed once, and rows that it got go back.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <tq/tq.h>

#include "api/address.h"
#include "api/buffer.h"
#include "api/fork.h"
#include "api/way.h"
#include "base/assert.h"
#include "base/list.h"
#include "loop/loop.h"
#include "net/exec.h"
#include "net/inproc/inproc.h"
#include "net/zmq/zmq_ctrl.h"
#include "net/zmq/zmq_payload.h"
#include "role/client/client.h"
#include "sys/clock.h"
#include "sys/env_malloc.h"
#include "sys/limit.h"
#include "sys/machine.h"

#define NS_PER_MS UINT64_C(1000000)
#define CLOSE_NS UINT64_C(8000000000)
#define NAP_NS 200000L /* between looks at a client that closes */
#define OPS_MAX 65536u /* outstanding at once */
#define CACHE_BYTES (UINT64_C(256) << 20)
#define CONNECT_MS 5000u

enum { OP_DONE = 1, OP_FREED = 2, OP_TAKEN = 4, OP_CANCELLED = 8 };

struct tq_client {
    atomic_uint refs;
    unsigned generation;
    tqi_exec_t *exec;
    tqi_buffers_t *buffers;
    atomic_uint ops_cnt;
    atomic_bool is_closed;
    atomic_uint_fast64_t incarnation;

    /* The loop's thread's, and after its end the closer's. */
    tqi_loop_t *loop;
    tqi_client_t *role;
    tqi_inproc_payload_t *direct;
    tqi_zmq_payload_client_t *stream;
    tqi_ways_t *ways;
    tqi_mailbox_t *mailbox; /* the loop's; counted, since others post until the last op is freed */
    bool is_started;
    bool is_role_closed; /* the answer of a look */
    tqi_err_t why;       /* likewise */

    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t cond;
    bool is_up;
    tqi_err_t refusal;
    char *store_conf; /* of the first session; terminated */
    size_t store_conf_len;
};

struct tq_cq {
    atomic_uint refs; /* its handle, and the ops that will be put into it */
    unsigned generation;
    tq_client_t *client;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t cond;
    tqi_list_t done;
    int fd; /* readable while done is not empty */
    bool is_closed;
};

struct tq_op {
    atomic_uint refs;
    atomic_uint flags;
    tq_client_t *client;
    tq_cq_t *cq; /* or NULL */
    tqi_op_t *op;
    void *user;
    tqi_node_t node;     /* in cq->done */
    tqi_letter_t submit; /* each is under way once at most */
    tqi_letter_t cancel;
    tqi_letter_t last; /* taken, discarded or abandoned */
};

static bool is_forked(unsigned generation)
{
    return generation != tqi_fork_generation();
}

/* ---- counting ---------------------------------------------------------------------------------- */

static void client_unref(tq_client_t *client)
{
    if (atomic_fetch_sub_explicit(&client->refs, 1, memory_order_acq_rel) > 1)
        return;
    tqi_exec_free(client->exec);
    tqi_buffers_close(client->buffers);
    tqi_mailbox_unref(client->mailbox);
    pthread_cond_destroy(&client->cond);
    pthread_mutex_destroy(&client->mutex);
    free(client->store_conf);
    free(client);
}

static void cq_unref(tq_cq_t *cq)
{
    if (atomic_fetch_sub_explicit(&cq->refs, 1, memory_order_acq_rel) > 1)
        return;
    pthread_cond_destroy(&cq->cond);
    pthread_mutex_destroy(&cq->mutex);
    client_unref(cq->client);
    free(cq);
}

static void op_unref(tq_op_t *op)
{
    if (atomic_fetch_sub_explicit(&op->refs, 1, memory_order_acq_rel) > 1)
        return;
    tqi_op_free(op->op);
    if (op->cq)
        cq_unref(op->cq);
    client_unref(op->client);
    free(op);
}

/* Sends a letter that names the op. False once the loop has ended: nothing is under way then. */
static bool op_post(tq_op_t *op, tqi_letter_t *letter, void (*open)(tqi_letter_t *, bool))
{
    letter->open = open;
    atomic_fetch_add_explicit(&op->refs, 1, memory_order_relaxed);
    if (!atomic_load_explicit(&op->client->is_closed, memory_order_acquire) &&
        tqi_mailbox_post(op->client->mailbox, letter))
        return true;
    op_unref(op);
    return false;
}

/* ---- the loop's side --------------------------------------------------------------------------- */

static void cq_push(tq_cq_t *cq, tq_op_t *op)
{
    uint64_t one = 1;

    if (cq->done.cnt == 0)
        (void)!write(cq->fd, &one, sizeof one);
    tqi_list_push_back(&cq->done, &op->node);
    pthread_cond_signal(&cq->cond);
}

static void on_done(void *ctx, tqi_op_t *inner)
{
    tq_client_t *client = ctx;
    tq_op_t *op = tqi_op_user(inner);
    bool is_orphan = false; /* its queue is closed: the user's part is ours */
    unsigned flags;

    atomic_fetch_sub_explicit(&client->ops_cnt, 1, memory_order_relaxed);
    if (op->cq) {
        /* Whether somebody will poll it is decided under the queue's mutex. */
        pthread_mutex_lock(&op->cq->mutex);
        flags = atomic_fetch_or_explicit(&op->flags, OP_DONE, memory_order_acq_rel);
        is_orphan = op->cq->is_closed && (flags & OP_FREED) == 0;
        if (!is_orphan && (flags & OP_FREED) == 0)
            cq_push(op->cq, op);
        pthread_mutex_unlock(&op->cq->mutex);
    } else {
        flags = atomic_fetch_or_explicit(&op->flags, OP_DONE, memory_order_acq_rel);
        if ((flags & OP_FREED) == 0)
            tqi_exec_wake(client->exec, op);
    }
    if ((is_orphan || (flags & OP_FREED)) && tqi_op_has_grant(inner))
        tqi_client_discard(client->role, inner, tqi_now_ns());
    if (is_orphan)
        op_unref(op);
    op_unref(op); /* the loop's */
}

static void on_event(void *ctx, tqi_client_event_t event, tq_status_t status, const char *text)
{
    tq_client_t *client = ctx;
    size_t len;
    const void *conf;

    pthread_mutex_lock(&client->mutex);
    if (event == TQI_CLIENT_UP) {
        atomic_store_explicit(&client->incarnation, tqi_client_incarnation(client->role),
                              memory_order_relaxed);
        client->is_up = true;
        if (!client->store_conf) {
            conf = tqi_client_user_conf(client->role, &len);
            client->store_conf = malloc(len + 1);
            if (client->store_conf) {
                if (len > 0)
                    memcpy(client->store_conf, conf, len);
                client->store_conf[len] = '\0';
                client->store_conf_len = len;
            }
        }
    } else if (event == TQI_CLIENT_REFUSED) {
        tqi_fail(&client->refusal, status, "%s", text);
    }
    pthread_cond_broadcast(&client->cond);
    pthread_mutex_unlock(&client->mutex);
}

static tq_buffer_t *buffer_take(void *ctx, size_t bytes, void **data)
{
    return tqi_buffers_take(((tq_client_t *)ctx)->buffers, bytes, data);
}

/* A letter that the loop did not open before it ended is opened by the closer, while the role is
 * still there and closing: what it is told ends at once. */
static void open_submit(tqi_letter_t *letter, bool is_closed)
{
    tq_op_t *op = tqi_container_of(letter, tq_op_t, submit);

    (void)is_closed;
    tqi_client_submit(op->client->role, op->op, tqi_now_ns());
    op_unref(op);
}

static void open_cancel(tqi_letter_t *letter, bool is_closed)
{
    tq_op_t *op = tqi_container_of(letter, tq_op_t, cancel);

    (void)is_closed;
    tqi_client_cancel(op->client->role, op->op, tqi_now_ns());
    op_unref(op);
}

static void open_abandon(tqi_letter_t *letter, bool is_closed)
{
    tq_op_t *op = tqi_container_of(letter, tq_op_t, last);

    (void)is_closed;
    tqi_client_abandon(op->client->role, op->op, tqi_now_ns());
    op_unref(op);
}

static void open_taken(tqi_letter_t *letter, bool is_closed)
{
    tq_op_t *op = tqi_container_of(letter, tq_op_t, last);

    if (!is_closed)
        tqi_client_taken(op->client->role, op->op, tqi_now_ns());
    op_unref(op);
}

static void open_discard(tqi_letter_t *letter, bool is_closed)
{
    tq_op_t *op = tqi_container_of(letter, tq_op_t, last);

    if (!is_closed)
        tqi_client_discard(op->client->role, op->op, tqi_now_ns());
    op_unref(op);
}

/* ---- client ------------------------------------------------------------------------------------ */

static tq_status_t client_start(tq_client_t *client, const tq_client_conf_t *conf,
                                const char *address, uint64_t incarnation, tqi_err_t *err)
{
    const tqi_env_t *env = tqi_env_malloc();
    tqi_zmq_conf_t zmq = {.curve_server_key = conf->curve_server_key};
    tqi_ctrl_adapter_t *adapter;
    char name[128];
    uint64_t cache = conf->receive_cache_bytes;
    tq_status_t rc;

    if (!conf->name)
        snprintf(name, sizeof name, "%d@%.100s", (int)getpid(), tqi_machine_host());
    rc = tqi_buffers_new(cache == 0            ? CACHE_BYTES
                         : cache == UINT64_MAX ? 0
                                               : cache,
                         &client->buffers, err);
    if (rc == TQ_OK)
        rc = tqi_exec_new(conf->copy_threads ? conf->copy_threads : 1, &client->exec, err);
    if (rc == TQ_OK)
        rc = tqi_loop_new("tq-client", &client->loop, err);
    if (rc == TQ_OK) {
        client->mailbox = tqi_loop_mailbox(client->loop);
        tqi_mailbox_ref(client->mailbox);
    }
    if (rc == TQ_OK)
        rc = tqi_inproc_ctrl_new(env, tqi_loop_mailbox(client->loop),
                                 tqi_loop_ctrl_sink(client->loop, 0), &adapter, err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_ctrl(client->loop, 0, adapter, err);
    if (rc == TQ_OK)
        rc = tqi_zmq_ctrl_new(env, &zmq, tqi_loop_ctrl_sink(client->loop, 1), &adapter, err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_ctrl(client->loop, 1, adapter, err);
    if (rc == TQ_OK)
        rc = tqi_inproc_payload_new(env, tqi_loop_mailbox(client->loop), client->exec,
                                    tqi_loop_sink(client->loop), &client->direct, err);
    if (rc == TQ_OK)
        rc = tqi_zmq_payload_client_new(env, tqi_loop_mailbox(client->loop), client->exec,
                                        tqi_loop_sink(client->loop), &client->stream, err);
    if (rc == TQ_OK)
        rc = tqi_loop_add_source(client->loop, tqi_zmq_payload_client_source(client->stream), err);
    if (rc == TQ_OK)
        rc = tqi_ways_new(env, tqi_inproc_payload_port(client->direct),
                          tqi_zmq_payload_client_port(client->stream), &client->ways, err);
    if (rc == TQ_OK) {
        tqi_client_conf_t role = {
            .address = address,
            .incarnation_wanted = incarnation,
            .name = conf->name ? conf->name : name,
            .boot_id = tqi_machine_boot_id(),
            .pid_ns = tqi_process_pid_ns(),
            .pid = (uint64_t)getpid(),
            .start_time = tqi_process_start_time(getpid()),
            .connect_timeout_ms = conf->connect_timeout_ms,
            .call_timeout_ms = conf->call_timeout_ms,
            .fetch_timeout_ms = conf->fetch_timeout_ms,
            .space_timeout_ms = conf->space_timeout_ms,
            .host = {client, on_done, on_event, buffer_take, tq_buffer_unref},
        };
        rc = tqi_client_new(env, &role, tqi_loop_ctrl(client->loop), tqi_ways_port(client->ways),
                            tqi_now_ns(), &client->role, err);
    }
    if (rc == TQ_OK)
        rc = tqi_loop_start(client->loop, tqi_client_role(client->role), err);
    client->is_started = rc == TQ_OK;
    return rc;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

static void look_why(void *ctx, uint64_t now_ns)
{
    tq_client_t *client = ctx;

    (void)now_ns;
    client->why = (tqi_err_t){0};
    tqi_client_why(client->role, CONNECT_MS, &client->why);
}

static tq_status_t wait_up(tq_client_t *client, uint32_t timeout_ms, tqi_err_t *err)
{
    uint64_t deadline_ns = tqi_now_ns() + timeout_ms * NS_PER_MS;
    struct timespec until = timespec_of(deadline_ns);
    bool is_up;
    tqi_err_t refusal;

    pthread_mutex_lock(&client->mutex);
    while (!client->is_up && client->refusal.status == TQ_OK &&
           pthread_cond_timedwait(&client->cond, &client->mutex, &until) != ETIMEDOUT) {
    }
    is_up = client->is_up;
    refusal = client->refusal;
    pthread_mutex_unlock(&client->mutex);
    if (is_up)
        return TQ_OK;
    if (refusal.status == TQ_OK) {
        tqi_loop_call(client->loop, look_why, client);
        refusal = client->why;
    }
    if (err)
        *err = refusal;
    return refusal.status;
}

static void cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

tq_status_t tq_client_open(const tq_client_conf_t *conf, tq_client_t **out, tq_error_t *err)
{
    static const tq_client_conf_t defaults;
    tq_client_t *client;
    char *address = NULL;
    uint64_t incarnation;
    tq_status_t rc;

    if (!out)
        return tqi_fail(err, TQ_E_INVALID, "there is no place for the client");
    *out = NULL;
    if (!conf)
        conf = &defaults;
    if (conf->copy_threads > 4)
        return tqi_fail(err, TQ_E_CONFIG, "%" PRIu32 " copy threads: there can be 1 to 4",
                        conf->copy_threads);
    rc = tqi_address_parse(conf->address, &address, &incarnation, err);
    if (rc != TQ_OK)
        return rc;
    client = calloc(1, sizeof *client);
    if (!client) {
        free(address);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a client");
    }
    atomic_init(&client->refs, 1);
    client->generation = tqi_fork_generation();
    pthread_mutex_init(&client->mutex, NULL);
    cond_init(&client->cond);
    rc = client_start(client, conf, address, incarnation, err);
    free(address);
    if (rc == TQ_OK)
        rc = wait_up(client, conf->connect_timeout_ms ? conf->connect_timeout_ms : CONNECT_MS, err);
    if (rc != TQ_OK) {
        tq_client_close(client);
        return rc;
    }
    *out = client;
    return TQ_OK;
}

static void ask_close(void *ctx, uint64_t now_ns)
{
    tq_client_t *client = ctx;

    tqi_client_close(client->role, now_ns);
    client->is_role_closed = tqi_client_is_closed(client->role);
}

void tq_client_close(tq_client_t *client)
{
    struct timespec nap = {0, NAP_NS};

    /* The parent's threads are not here, nor may their memory be touched. */
    if (!client || is_forked(client->generation))
        return;
    if (client->is_started) {
        uint64_t until_ns = tqi_now_ns() + CLOSE_NS;
        do {
            tqi_loop_call(client->loop, ask_close, client);
        } while (!client->is_role_closed && tqi_now_ns() < until_ns && nanosleep(&nap, NULL) == 0);
    }
    atomic_store_explicit(&client->is_closed, true, memory_order_release);
    if (client->loop)
        tqi_loop_stop(client->loop);
    /* From here on nothing writes into anybody's memory. */
    if (client->direct)
        tqi_inproc_payload_stop(client->direct);
    if (client->stream)
        tqi_zmq_payload_client_stop(client->stream);
    tqi_client_free(client->role);
    tqi_ways_free(client->ways);
    tqi_inproc_payload_free(client->direct);
    tqi_zmq_payload_client_free(client->stream);
    tqi_loop_free(client->loop);
    client->role = NULL;
    client->loop = NULL;
    client_unref(client);
}

uint64_t tq_client_incarnation(const tq_client_t *client)
{
    return atomic_load_explicit(&client->incarnation, memory_order_relaxed);
}

const char *tq_client_store_conf(const tq_client_t *client, size_t *len)
{
    if (len)
        *len = client->store_conf_len;
    return client->store_conf ? client->store_conf : "";
}

/* ---- submitting -------------------------------------------------------------------------------- */

/* What every submit asks first. */
static tq_status_t check_call(tq_client_t *client, tq_cq_t *cq, const void *args, tq_op_t **op,
                              tqi_err_t *err)
{
    if (!client || !op || !args)
        return tqi_fail(err, TQ_E_INVALID, "%s is missing",
                        !client ? "the client"
                        : !op   ? "the place for the op"
                                : "the argument");
    *op = NULL;
    if (is_forked(client->generation))
        return tqi_fail(err, TQ_E_FORKED,
                        "this client belongs to the parent process: open one after the fork");
    if (cq && (cq->client != client || cq->is_closed))
        return tqi_fail(err, TQ_E_INVALID, "the completion queue is not one of this client");
    if (atomic_load_explicit(&client->is_closed, memory_order_acquire))
        return tqi_fail(err, TQ_E_CLOSED, "the client is closed");
    return TQ_OK;
}

static tq_status_t submit(tq_client_t *client, tq_cq_t *cq, tqi_op_t *inner, void *user,
                          tq_op_t **out, tqi_err_t *err)
{
    tq_op_t *op;

    if (atomic_fetch_add_explicit(&client->ops_cnt, 1, memory_order_relaxed) >= OPS_MAX) {
        atomic_fetch_sub_explicit(&client->ops_cnt, 1, memory_order_relaxed);
        tqi_op_free(inner);
        return tqi_fail(err, TQ_E_BUSY, "%u ops are outstanding: wait for some of them", OPS_MAX);
    }
    op = calloc(1, sizeof *op);
    if (!op) {
        atomic_fetch_sub_explicit(&client->ops_cnt, 1, memory_order_relaxed);
        tqi_op_free(inner);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an op");
    }
    atomic_init(&op->refs, 2); /* the user's and the loop's */
    op->client = client;
    op->cq = cq;
    op->op = inner;
    op->user = user;
    tqi_op_set_user(inner, op);
    atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
    if (cq)
        atomic_fetch_add_explicit(&cq->refs, 1, memory_order_relaxed);
    if (!op_post(op, &op->submit, open_submit)) {
        atomic_fetch_sub_explicit(&client->ops_cnt, 1, memory_order_relaxed);
        op_unref(op);
        op_unref(op);
        return tqi_fail(err, TQ_E_CLOSED, "the client is closed");
    }
    *out = op;
    return TQ_OK;
}

#define SUBMIT(name, args_t, make)                                                                 \
    tq_status_t tq_##name##_submit(tq_client_t *client, tq_cq_t *cq, const args_t *args,           \
                                   void *user, tq_op_t **op, tq_error_t *err)                      \
    {                                                                                              \
        tqi_op_t *inner;                                                                           \
        tq_status_t rc = check_call(client, cq, args, op, err);                                    \
                                                                                                   \
        if (rc == TQ_OK)                                                                           \
            rc = make(tqi_env_malloc(), args, &inner, err);                                        \
        return rc == TQ_OK ? submit(client, cq, inner, user, op, err) : rc;                        \
    }

SUBMIT(put, tq_put_args_t, tqi_op_put)
SUBMIT(insert, tq_insert_args_t, tqi_op_insert)
SUBMIT(tags, tq_tags_args_t, tqi_op_tags)
SUBMIT(clear, tq_clear_args_t, tqi_op_clear)
SUBMIT(reset, tq_reset_args_t, tqi_op_reset)
SUBMIT(fetch, tq_fetch_args_t, tqi_op_fetch)
SUBMIT(resolve, tq_resolve_args_t, tqi_op_resolve)
SUBMIT(get, tq_get_args_t, tqi_op_get)
SUBMIT(status, tq_status_args_t, tqi_op_status_of)
SUBMIT(list, tq_list_args_t, tqi_op_list)

tq_status_t tq_stat_submit(tq_client_t *client, tq_cq_t *cq, uint32_t timeout_ms, void *user,
                           tq_op_t **op, tq_error_t *err)
{
    tqi_op_t *inner;
    tq_status_t rc = check_call(client, cq, &timeout_ms, op, err);

    if (rc == TQ_OK)
        rc = tqi_op_stat(tqi_env_malloc(), timeout_ms, &inner, err);
    return rc == TQ_OK ? submit(client, cq, inner, user, op, err) : rc;
}

tq_status_t tq_unit_forget_submit(tq_client_t *client, tq_cq_t *cq, uint32_t unit_id,
                                  uint32_t timeout_ms, void *user, tq_op_t **op, tq_error_t *err)
{
    tqi_op_t *inner;
    tq_status_t rc = check_call(client, cq, &unit_id, op, err);

    if (rc == TQ_OK)
        rc = tqi_op_unit_forget(tqi_env_malloc(), unit_id, timeout_ms, &inner, err);
    return rc == TQ_OK ? submit(client, cq, inner, user, op, err) : rc;
}

/* Waits for a blocking call's op and hands it over if it went well. */
static tq_status_t finish_call(tq_op_t *op, tq_op_t **out, tq_error_t *err)
{
    tq_status_t rc;

    tq_op_wait(op, -1);
    rc = tq_op_status(op);
    if (rc == TQ_OK && out) {
        *out = op;
        return TQ_OK;
    }
    if (rc != TQ_OK)
        tqi_fail(err, rc, "%s", tq_op_error(op));
    tq_op_free(op);
    return rc;
}

tq_status_t tq_put(tq_client_t *client, const tq_put_args_t *args, tq_op_t **out, tq_error_t *err)
{
    tq_op_t *op;
    tq_status_t rc = tq_put_submit(client, NULL, args, NULL, &op, err);

    if (out)
        *out = NULL;
    return rc == TQ_OK ? finish_call(op, out, err) : rc;
}

tq_status_t tq_get(tq_client_t *client, const tq_get_args_t *args, tq_op_t **out, tq_error_t *err)
{
    tq_op_t *op;
    tq_status_t rc;

    if (!out)
        return tqi_fail(err, TQ_E_INVALID, "there is no place for the result");
    *out = NULL;
    rc = tq_get_submit(client, NULL, args, NULL, &op, err);
    return rc == TQ_OK ? finish_call(op, out, err) : rc;
}

/* ---- ops --------------------------------------------------------------------------------------- */

static bool is_done(void *ctx)
{
    tq_op_t *op = ctx;

    return (atomic_load_explicit(&op->flags, memory_order_acquire) & OP_DONE) != 0;
}

/* The user has it: rows that it got are final. */
static void taken(tq_op_t *op)
{
    if (tqi_op_has_grant(op->op) &&
        (atomic_fetch_or_explicit(&op->flags, OP_TAKEN, memory_order_relaxed) & OP_TAKEN) == 0)
        op_post(op, &op->last, open_taken);
}

bool tq_op_wait(tq_op_t *op, int64_t timeout_ms)
{
    uint64_t deadline_ns = UINT64_MAX;

    if (is_forked(op->client->generation))
        return true; /* with E_FORKED */
    if (timeout_ms >= 0)
        deadline_ns = tqi_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    if (!is_done(op) && !tqi_exec_sit(op->client->exec, op, deadline_ns, is_done, op))
        return false;
    if (!op->cq)
        taken(op);
    return true;
}

void tq_op_cancel(tq_op_t *op)
{
    if (is_forked(op->client->generation) || is_done(op) ||
        (atomic_fetch_or_explicit(&op->flags, OP_CANCELLED, memory_order_relaxed) & OP_CANCELLED))
        return;
    op_post(op, &op->cancel, open_cancel);
}

void tq_op_free(tq_op_t *op)
{
    unsigned flags;

    if (!op || is_forked(op->client->generation))
        return;
    if (op->cq) {
        /* A completed one that was not polled leaves its queue. */
        pthread_mutex_lock(&op->cq->mutex);
        flags = atomic_fetch_or_explicit(&op->flags, OP_FREED, memory_order_acq_rel);
        if (tqi_node_is_linked(&op->node)) {
            uint64_t cnt;
            tqi_list_remove(&op->cq->done, &op->node);
            if (op->cq->done.cnt == 0)
                (void)!read(op->cq->fd, &cnt, sizeof cnt);
        }
        pthread_mutex_unlock(&op->cq->mutex);
    } else {
        flags = atomic_fetch_or_explicit(&op->flags, OP_FREED, memory_order_acq_rel);
    }
    if ((flags & OP_DONE) == 0)
        op_post(op, &op->last, open_abandon);
    else if ((flags & OP_TAKEN) == 0 && tqi_op_has_grant(op->op))
        op_post(op, &op->last, open_discard);
    op_unref(op);
}

void *tq_op_user(const tq_op_t *op)
{
    return op->user;
}

tq_status_t tq_op_status(const tq_op_t *op)
{
    return is_forked(op->client->generation) ? TQ_E_FORKED : tqi_op_status(op->op);
}

const char *tq_op_error(const tq_op_t *op)
{
    return is_forked(op->client->generation) ? "this op belongs to the parent process"
                                             : tqi_op_error(op->op);
}

const tq_result_t *tq_op_result(const tq_op_t *op)
{
    return tqi_op_result(op->op);
}

/* ---- completion queues ------------------------------------------------------------------------- */

tq_status_t tq_cq_open(tq_client_t *client, tq_cq_t **out, tq_error_t *err)
{
    tq_cq_t *cq;

    if (!client || !out)
        return tqi_fail(err, TQ_E_INVALID, "the client, or the place for the queue, is missing");
    *out = NULL;
    if (is_forked(client->generation))
        return tqi_fail(err, TQ_E_FORKED,
                        "this client belongs to the parent process: open one after the fork");
    cq = calloc(1, sizeof *cq);
    if (!cq)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a completion queue");
    cq->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cq->fd < 0) {
        int why = errno;
        free(cq);
        return tqi_fail_errno(err, why, "no event file for a completion queue");
    }
    atomic_init(&cq->refs, 1);
    cq->generation = client->generation;
    cq->client = client;
    atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
    pthread_mutex_init(&cq->mutex, NULL);
    cond_init(&cq->cond);
    tqi_list_init(&cq->done);
    *out = cq;
    return TQ_OK;
}

void tq_cq_close(tq_cq_t *cq)
{
    tqi_node_t *node;
    tqi_list_t left;

    if (!cq || is_forked(cq->generation))
        return;
    tqi_list_init(&left);
    pthread_mutex_lock(&cq->mutex);
    cq->is_closed = true;
    while ((node = tqi_list_pop_front(&cq->done)))
        tqi_list_push_back(&left, node);
    close(cq->fd);
    cq->fd = -1;
    pthread_mutex_unlock(&cq->mutex);
    while ((node = tqi_list_pop_front(&left)))
        tq_op_free(tqi_container_of(node, tq_op_t, node));
    cq_unref(cq);
}

int tq_cq_fd(const tq_cq_t *cq)
{
    return cq->fd;
}

uint32_t tq_cq_poll(tq_cq_t *cq, tq_op_t **ops, uint32_t max)
{
    return tq_cq_wait(cq, ops, max, 0);
}

uint32_t tq_cq_wait(tq_cq_t *cq, tq_op_t **ops, uint32_t max, int64_t timeout_ms)
{
    struct timespec until;
    uint32_t cnt = 0;
    uint64_t count;
    bool has_time = timeout_ms != 0;

    if (is_forked(cq->generation))
        return 0;
    if (timeout_ms > 0)
        until = timespec_of(tqi_now_ns() + (uint64_t)timeout_ms * NS_PER_MS);
    pthread_mutex_lock(&cq->mutex);
    while (cq->done.cnt == 0 && has_time && !cq->is_closed) {
        if (timeout_ms < 0)
            pthread_cond_wait(&cq->cond, &cq->mutex);
        else
            has_time = pthread_cond_timedwait(&cq->cond, &cq->mutex, &until) != ETIMEDOUT;
    }
    while (cnt < max && cq->done.cnt > 0)
        ops[cnt++] = tqi_container_of(tqi_list_pop_front(&cq->done), tq_op_t, node);
    if (cnt > 0 && cq->done.cnt == 0)
        (void)!read(cq->fd, &count, sizeof count);
    pthread_mutex_unlock(&cq->mutex);
    for (uint32_t i = 0; i < cnt; i++)
        taken(ops[i]);
    return cnt;
}

const char *tq_version(void)
{
    return TQI_VERSION_TEXT;
}
