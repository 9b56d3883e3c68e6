/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thousands of clients in one process: client roles of their own sessions, connections and timers,
 * which share one thread and one ctrl port. So each costs the store what a process would, and costs
 * this one little.
 *
 *   many ADDRESS
 *
 * does what the lines of its standard input say, and answers each with a line:
 *
 *   bare N       N connections of libzmq that say nothing: "bare N" once they are accepted
 *   drop         closes them: "dropped"
 *   open N       N sessions, begun as fast as one thread can: "open N"
 *   work N MS    the first N of them put a row, read it back, compare and clear it, again and again
 *                for so long: "worked ROUNDS WORST_MS", the longest call
 *   close        ends all sessions: "closed"
 *
 * Any error is printed as "E_NAME: text", with exit status 1.
 */
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "api/buffer.h"
#include "base/assert.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "loop/loop.h"
#include "net/zmq/zmq_ctrl.h"
#include "proc.h"
#include "role/client/client.h"
#include "sys/clock.h"
#include "sys/env_malloc.h"
#include "sys/machine.h"

#define CLIENTS_MAX 16384u
#define VALUE_BYTES 100u
#define NAP_NS 1000000L
#define OPEN_AT_ONCE 64u
#define WAIT_S 120u /* for any line to be answered */

typedef struct many many_t;

/* One client: its role calls `ctrl`, which is the shared one but for who called. */
typedef struct one {
    tqi_ctrl_t ctrl;
    many_t *many;
    tqi_client_t *role;
    tqi_heap_node_t timer; /* of its next step */
    tqi_node_t ready;      /* in many->ready: its op is done */
    tqi_op_t *op;
    tq_row_t row;
    unsigned number;
    unsigned stage; /* 0: put, 1: get, 2: clear */
    uint64_t begun_ns;
    char key[32];
    char value[VALUE_BYTES];
} one_t;

struct many {
    tqi_role_t role;
    tqi_loop_t *loop;
    const char *address;
    tqi_buffers_t *buffers;
    one_t *ones;
    unsigned cnt;
    unsigned cnt_wanted;
    tqi_heap_t timers;
    tqi_map_u64_t peers; /* peer -> one */
    tqi_list_t ready;
    bool is_closing;
    uint64_t work_until_ns;
    unsigned asked; /* of the line that is being answered: how many, and what is done */
    atomic_uint reached;
    unsigned rounds;
    uint64_t worst_ns;
};

static one_t *one_of(tqi_ctrl_t *ctrl)
{
    return tqi_container_of(ctrl, one_t, ctrl);
}

static void must(tq_status_t status, const tqi_err_t *err)
{
    if (status != TQ_OK)
        fail(status, err->text);
}

/* ---- the port that each has -------------------------------------------------------------------- */

static tq_status_t one_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                               tqi_err_t *err)
{
    many_t *many = one_of(ctrl)->many;
    tqi_ctrl_t *shared = tqi_loop_ctrl(many->loop);
    tq_status_t rc = shared->connect(shared, address, peer, err);

    if (rc == TQ_OK)
        must(tqi_map_u64_put(&many->peers, *peer, one_of(ctrl), NULL), err);
    return rc;
}

static void one_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    many_t *many = one_of(ctrl)->many;
    tqi_ctrl_t *shared = tqi_loop_ctrl(many->loop);

    tqi_map_u64_take(&many->peers, peer);
    shared->disconnect(shared, peer);
}

static tq_status_t one_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    tqi_ctrl_t *shared = tqi_loop_ctrl(one_of(ctrl)->many->loop);

    return shared->send(shared, peer, frame);
}

static const char *one_why_down(tqi_ctrl_t *ctrl)
{
    tqi_ctrl_t *shared = tqi_loop_ctrl(one_of(ctrl)->many->loop);

    return shared->why_down(shared);
}

/* ---- what each does ---------------------------------------------------------------------------- */

static void one_step(one_t *one, uint64_t now_ns)
{
    tqi_role_t *role = tqi_client_role(one->role);
    uint64_t next_ns = role->step(role, now_ns);

    tqi_heap_remove(&one->many->timers, &one->timer);
    if (next_ns != TQI_NEVER && tqi_heap_insert(&one->many->timers, &one->timer, next_ns) != TQ_OK)
        fail(TQ_E_NO_MEMORY, "no memory for a timer");
}

static tq_status_t make_op(one_t *one, tqi_op_t **op, tqi_err_t *err)
{
    const tqi_env_t *env = tqi_env_malloc();
    uint32_t offsets[2] = {0, (uint32_t)strlen(one->key)};
    tq_strs_t keys = {1, offsets, one->key};
    tq_column_t column = bytes_column("x", one->value, VALUE_BYTES);
    char partition[32];

    snprintf(partition, sizeof partition, "many-%u", one->number % 64);
    if (one->stage == 0)
        return tqi_op_put(env,
                          &(tq_put_args_t){.partition = partition,
                                           .rows_cnt = 1,
                                           .keys = &keys,
                                           .columns_cnt = 1,
                                           .columns = &column},
                          op, err);
    if (one->stage == 1)
        return tqi_op_get(env, &(tq_get_args_t){.partition = partition, .keys = &keys}, op, err);
    return tqi_op_clear(env, &(tq_clear_args_t){.partition = partition, .keys = &keys}, op, err);
}

static void one_submit(one_t *one, uint64_t now_ns)
{
    tqi_err_t err;

    if (one->stage == 0)
        memset(one->value, (int)(one->number + one->many->rounds), VALUE_BYTES);
    must(make_op(one, &one->op, &err), &err);
    one->begun_ns = now_ns;
    tqi_client_submit(one->role, one->op, now_ns);
    one_step(one, now_ns);
}

static void on_done(void *ctx, tqi_op_t *op)
{
    one_t *one = ctx;

    tqi_assert(op == one->op);
    tqi_list_push_back(&one->many->ready, &one->ready);
}

/* The op is done: looks at what it did, and begins the next. */
static void one_go_on(one_t *one, uint64_t now_ns)
{
    many_t *many = one->many;
    const tq_result_t *result = tqi_op_result(one->op);

    if (tqi_op_status(one->op) != TQ_OK)
        fail(tqi_op_status(one->op), tqi_op_error(one->op));
    many->worst_ns = tqi_u64_max(many->worst_ns, now_ns - one->begun_ns);
    if (one->stage == 1 &&
        (result->columns_cnt != 1 || result->columns[0].desc.len != VALUE_BYTES ||
         memcmp(tq_buffer_data(result->columns[0].buffer), one->value, VALUE_BYTES) != 0)) {
        say("bytes differ");
        exit(2);
    }
    tqi_op_free(one->op);
    one->op = NULL;
    one->stage = (one->stage + 1) % 3;
    if (one->stage == 0)
        many->rounds++;
    if (one->stage == 0 && now_ns >= many->work_until_ns)
        atomic_fetch_add(&many->reached, 1);
    else
        one_submit(one, now_ns);
}

static void on_event(void *ctx, tqi_client_event_t event, tq_status_t status, const char *text)
{
    one_t *one = ctx;

    if (event == TQI_CLIENT_UP)
        atomic_fetch_add(&one->many->reached, 1);
    else if (!one->many->is_closing)
        fail(status, text);
}

static tq_buffer_t *buffer_take(void *ctx, size_t bytes, void **data)
{
    return tqi_buffers_take(((one_t *)ctx)->many->buffers, bytes, data);
}

static void one_open(one_t *one, uint64_t now_ns)
{
    tqi_client_conf_t conf = {.address = one->many->address,
                              .name = one->key,
                              .boot_id = tqi_machine_boot_id(),
                              .pid_ns = tqi_process_pid_ns(),
                              .pid = (uint64_t)getpid(),
                              .start_time = tqi_process_start_time(getpid()),
                              .connect_timeout_ms = 60000,
                              .host = {one, on_done, on_event, buffer_take, tq_buffer_unref}};
    tqi_err_t err;

    one->ctrl = (tqi_ctrl_t){one_connect, one_disconnect, one_send, one_why_down};
    must(tqi_client_new(tqi_env_malloc(), &conf, &one->ctrl, NULL, now_ns, &one->role, &err), &err);
    one_step(one, now_ns);
}

/* ---- the role of the loop ---------------------------------------------------------------------- */

static many_t *many_of(tqi_role_t *role)
{
    return tqi_container_of(role, many_t, role);
}

static void many_message(tqi_role_t *role, tqi_peer_t peer, const void *data, size_t len,
                         uint64_t now_ns)
{
    one_t *one = tqi_map_u64_get(&many_of(role)->peers, peer);

    if (one) {
        tqi_role_t *inner = tqi_client_role(one->role);
        inner->on_message(inner, peer, data, len, now_ns);
        one_step(one, now_ns);
    }
}

static void many_peer_down(tqi_role_t *role, tqi_peer_t peer, uint64_t now_ns)
{
    one_t *one = tqi_map_u64_take(&many_of(role)->peers, peer);

    if (one) {
        tqi_role_t *inner = tqi_client_role(one->role);
        inner->on_peer_down(inner, peer, now_ns);
        one_step(one, now_ns);
    }
}

static void many_payload(tqi_role_t *role, tqi_transfer_key_t key, tq_status_t status,
                         const char *text, uint64_t now_ns)
{
    (void)role, (void)key, (void)status, (void)text, (void)now_ns;
}

static uint64_t many_step(tqi_role_t *role, uint64_t now_ns)
{
    many_t *many = many_of(role);
    tqi_heap_node_t *timer;

    while ((timer = tqi_heap_pop_due(&many->timers, now_ns)))
        one_step(tqi_container_of(timer, one_t, timer), now_ns);
    for (size_t turns = many->ready.cnt; turns > 0; turns--)
        one_go_on(tqi_container_of(tqi_list_pop_front(&many->ready), one_t, ready), now_ns);
    timer = tqi_heap_peek(&many->timers);
    return many->ready.cnt > 0 ? now_ns : timer ? timer->deadline_ns : TQI_NEVER;
}

/* ---- lines ------------------------------------------------------------------------------------- */

/* Opens some of them, and is called again: those that are there must not wait for the others. */
static void open_some(void *ctx, uint64_t now_ns)
{
    many_t *many = ctx;
    unsigned end =
        many->cnt_wanted < many->cnt + OPEN_AT_ONCE ? many->cnt_wanted : many->cnt + OPEN_AT_ONCE;

    for (; many->cnt < end; many->cnt++) {
        one_t *one = &many->ones[many->cnt];

        one->many = many;
        one->number = many->cnt;
        snprintf(one->key, sizeof one->key, "%d-%u", (int)getpid(), many->cnt);
        one_open(one, now_ns);
    }
}

static void begin_work(void *ctx, uint64_t now_ns)
{
    many_t *many = ctx;

    for (unsigned i = 0; i < many->asked; i++)
        one_submit(&many->ones[i], now_ns);
}

static void begin_close(void *ctx, uint64_t now_ns)
{
    many_t *many = ctx;

    many->is_closing = true;
    for (unsigned i = 0; i < many->cnt; i++) {
        tqi_client_close(many->ones[i].role, now_ns);
        one_step(&many->ones[i], now_ns);
    }
}

static void count_closed(void *ctx, uint64_t now_ns)
{
    many_t *many = ctx;
    unsigned cnt = 0;

    (void)now_ns;
    for (unsigned i = 0; i < many->cnt; i++)
        cnt += tqi_client_is_closed(many->ones[i].role);
    atomic_store(&many->reached, cnt);
}

static void end_close(void *ctx, uint64_t now_ns)
{
    many_t *many = ctx;

    (void)now_ns;
    for (unsigned i = 0; i < many->cnt; i++) {
        tqi_heap_remove(&many->timers, &many->ones[i].timer);
        tqi_client_free(many->ones[i].role);
        memset(&many->ones[i], 0, sizeof many->ones[i]);
    }
    many->cnt = 0;
    many->is_closing = false;
}

/* Has the loop do it for `asked` clients, and waits until all are there. look: asks the loop. */
static void all_reach(many_t *many, unsigned asked, void (*begin)(void *ctx, uint64_t now_ns),
                      void (*look)(void *ctx, uint64_t now_ns))
{
    uint64_t until_ns = tqi_now_ns() + WAIT_S * UINT64_C(1000000000);
    struct timespec nap = {0, NAP_NS};

    many->asked = asked;
    atomic_store(&many->reached, 0);
    tqi_loop_call(many->loop, begin, many);
    while (atomic_load(&many->reached) < asked) {
        if (tqi_now_ns() > until_ns) {
            printf("E_TIMEOUT: %u of %u after %u s\n", atomic_load(&many->reached), asked, WAIT_S);
            exit(1);
        }
        nanosleep(&nap, NULL);
        if (look)
            tqi_loop_call(many->loop, look, many);
    }
}

/* Connections without a word. With IMMEDIATE, POLLOUT says that the handshake is over. */
static void bare(void *context, void **sockets, unsigned cnt, const char *address)
{
    int none = 0, yes = 1;

    for (unsigned i = 0; i < cnt; i++) {
        sockets[i] = zmq_socket(context, ZMQ_DEALER);
        if (!sockets[i] || zmq_setsockopt(sockets[i], ZMQ_LINGER, &none, sizeof none) != 0 ||
            zmq_setsockopt(sockets[i], ZMQ_IMMEDIATE, &yes, sizeof yes) != 0 ||
            zmq_connect(sockets[i], address) != 0)
            fail(TQ_E_SYSTEM, zmq_strerror(zmq_errno()));
    }
    for (unsigned i = 0; i < cnt; i++) {
        zmq_pollitem_t item = {sockets[i], 0, ZMQ_POLLOUT, 0};
        if (zmq_poll(&item, 1, WAIT_S * 1000) != 1)
            fail(TQ_E_TIMEOUT, "a connection was not accepted");
    }
}

static void lines(many_t *many)
{
    static void *sockets[CLIENTS_MAX];
    void *context = zmq_ctx_new();
    unsigned bare_cnt = 0, cnt, ms;
    char line[128];

    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, 65535);
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "bare %u", &cnt) == 1 && cnt <= CLIENTS_MAX && bare_cnt == 0) {
            bare(context, sockets, bare_cnt = cnt, many->address);
            printf("bare %u\n", cnt);
        } else if (strcmp(line, "drop\n") == 0) {
            while (bare_cnt > 0)
                zmq_close(sockets[--bare_cnt]);
            printf("dropped\n");
        } else if (sscanf(line, "open %u", &cnt) == 1 && many->cnt + cnt <= CLIENTS_MAX) {
            many->cnt_wanted = many->cnt + cnt;
            all_reach(many, cnt, open_some, open_some);
            printf("open %u\n", cnt);
        } else if (sscanf(line, "work %u %u", &cnt, &ms) == 2 && cnt <= many->cnt) {
            many->rounds = 0;
            many->worst_ns = 0;
            many->work_until_ns = tqi_now_ns() + ms * UINT64_C(1000000);
            all_reach(many, cnt, begin_work, NULL);
            printf("worked %u %.1f\n", many->rounds, (double)many->worst_ns / 1e6);
        } else if (strcmp(line, "close\n") == 0) {
            all_reach(many, many->cnt, begin_close, count_closed);
            tqi_loop_call(many->loop, end_close, many);
            printf("closed\n");
        } else {
            fail(TQ_E_INVALID, line);
        }
        fflush(stdout);
    }
    while (bare_cnt > 0)
        zmq_close(sockets[--bare_cnt]);
    zmq_ctx_term(context);
}

int main(int argc, char **argv)
{
    const tqi_env_t *env = tqi_env_malloc();
    many_t many = {.role = {many_message, many_peer_down, many_payload, many_step}};
    tqi_ctrl_adapter_t *adapter;
    tqi_err_t err;

    if (argc != 2)
        return 3;
    argv[1][strcspn(argv[1], "#")] = '\0';
    many.address = argv[1];
    many.ones = calloc(CLIENTS_MAX, sizeof *many.ones);
    if (!many.ones)
        return 3;
    tqi_heap_init(&many.timers, env);
    tqi_map_u64_init(&many.peers, env);
    tqi_list_init(&many.ready);
    must(tqi_buffers_new(0, &many.buffers, &err), &err);
    must(tqi_loop_new("tq-many", &many.loop, &err), &err);
    must(tqi_zmq_ctrl_new(env, NULL, tqi_loop_ctrl_sink(many.loop, 0), &adapter, &err), &err);
    must(tqi_loop_add_ctrl(many.loop, 0, adapter, &err), &err);
    must(tqi_loop_start(many.loop, &many.role, &err), &err);
    lines(&many);
    tqi_loop_stop(many.loop);
    for (unsigned i = 0; i < many.cnt; i++)
        tqi_client_free(many.ones[i].role);
    tqi_loop_free(many.loop);
    tqi_heap_fini(&many.timers);
    tqi_map_u64_fini(&many.peers, NULL, NULL);
    tqi_buffers_close(many.buffers);
    free(many.ones);
    return 0;
}
