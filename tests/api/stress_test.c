/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on the same handles, for ThreadSanitizer to watch: they share a client, have clients of
 * their own in one process, poll queues, cancel, and go on calling while the client is closed or the
 * process forks. Each thread's values are its own, and are checked.
 */
#include "api.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 6
#define ROUNDS 25u

typedef struct worker {
    pthread_t thread;
    unsigned id;
    tq_client_t *client;
    atomic_bool *is_closing; /* from then on E_CLOSED is an answer */
    uint32_t done;
} worker_t;

static bool is_over(const worker_t *worker, tq_status_t rc)
{
    return worker->is_closing && atomic_load(worker->is_closing) &&
           (rc == TQ_E_CLOSED || rc == TQ_E_OUTCOME_UNKNOWN || rc == TQ_E_CANCELLED);
}

#define must(worker, call)                                                                         \
    do {                                                                                           \
        tq_error_t err = {0};                                                                      \
        tq_status_t must_rc = (call);                                                              \
        if (must_rc != TQ_OK) {                                                                    \
            if (!is_over(worker, must_rc)) {                                                       \
                fprintf(stderr, "worker %u: %s: %s: %s\n", (worker)->id, #call,                    \
                        tq_status_name(must_rc), err.text);                                        \
                abort();                                                                           \
            }                                                                                      \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* Puts, reads back, lists, cancels, by all ways of waiting. */
static void *work(void *arg)
{
    worker_t *worker = arg;
    tq_client_t *client = worker->client;
    char name[16];
    uint32_t offsets[] = {0, 2, 4};
    tq_strs_t keys = {2, offsets, "k0k1"};
    tq_cq_t *cq = NULL;

    snprintf(name, sizeof name, "p%u", worker->id);
    must(worker, tq_cq_open(client, &cq, &err));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t width = i % 5 == 4 ? 20000 : 16, seed = worker->id * 1000 + i;
        uint32_t *data = api_fill(seed, 2, width);
        tq_column_t column = api_column("x", data, width);
        tq_put_args_t put = {
            .partition = name, .rows_cnt = 2, .keys = &keys, .columns_cnt = 1, .columns = &column};
        tq_get_args_t get = {.partition = name, .keys = &keys};
        tq_list_args_t list = {.partition = name};
        uint32_t field_offsets[] = {0, 1};
        tq_strs_t field = {1, field_offsets, "z"};
        tq_fetch_args_t never = {.partition = name,
                                 .fields = &field,
                                 .rows_cnt = 1,
                                 .task = "t",
                                 .mode = TQ_FETCH,
                                 .timeout_ms = 60000};
        tq_op_t *op = NULL, *done = NULL;
        tq_error_t why = {0};

        tq_status_t rc = tq_put(client, &put, NULL, &why);
        free(data);
        must(worker, (err = why, rc));
        must(worker, tq_get(client, &get, &op, &err));
        for (uint32_t r = 0; r < 2; r++)
            api_check_row(&tq_op_result(op)->columns[0], r, seed, r, width);
        tq_op_free(op);
        must(worker, tq_list_submit(client, cq, &list, NULL, &op, &err));
        if (tq_cq_wait(cq, &done, 1, 60000) != 1)
            abort();
        rc = tq_op_status(done);
        tq_op_free(done);
        must(worker, rc);
        must(worker, tq_fetch_submit(client, NULL, &never, NULL, &op, &err));
        if (i % 2) {
            tq_op_cancel(op);
            if (!tq_op_wait(op, 60000))
                abort();
        }
        tq_op_free(op);
        worker->done++;
    }
out:
    tq_cq_close(cq);
    return NULL;
}

static void start(worker_t *workers, tq_client_t *client, atomic_bool *is_closing)
{
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker_t){.id = i, .client = client, .is_closing = is_closing};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
}

static uint32_t join(worker_t *workers)
{
    uint32_t done = 0;

    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
        done += workers[i].done;
    }
    return done;
}

static void many_threads_share_one_client(void **state)
{
    api_t api;
    worker_t workers[THREADS];

    (void)state;
    api_open(&api);
    start(workers, api.client, NULL);
    assert_int_equal(join(workers), THREADS * ROUNDS);
    api_close(&api);
}

static void *work_alone(void *arg)
{
    worker_t *worker = arg;
    tq_client_conf_t conf = {.address = (const char *)worker->client};
    tq_client_t *client = NULL;

    must(worker, tq_client_open(&conf, &client, &err));
    worker->client = client;
    work(worker);
out:
    tq_client_close(client);
    return NULL;
}

static void each_thread_has_a_client_of_its_own(void **state)
{
    api_t api;
    worker_t workers[THREADS];

    (void)state;
    api_open_conf(&api, (tq_store_conf_t){0});
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker_t){.id = i, .client = (void *)(uintptr_t)tq_store_address(api.store)};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work_alone, &workers[i]), 0);
    }
    assert_int_equal(join(workers), THREADS * ROUNDS);
    api_close(&api);
}

/* A queue keeps the client's shell alive, as ops do: so its handle may go while others call. */
static void a_client_may_be_closed_while_others_call(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 4; round++) {
        api_t api;
        worker_t workers[THREADS];
        atomic_bool is_closing;
        tq_cq_t *keep;

        atomic_init(&is_closing, false);
        api_open(&api);
        api_ok(tq_cq_open(api.client, &keep, &err));
        start(workers, api.client, &is_closing);
        nanosleep(&(struct timespec){0, (long)round * 20000000L}, NULL);
        atomic_store(&is_closing, true);
        tq_client_close(api.client);
        (void)join(workers);
        tq_cq_close(keep);
        tq_store_close(api.store);
    }
}

static void a_process_may_fork_while_others_call(void **state)
{
    api_t api;
    worker_t workers[THREADS];

    (void)state;
    api_open(&api);
    start(workers, api.client, NULL);
    for (unsigned i = 0; i < 5; i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            tq_error_t err = {0};
            tq_cq_t *cq;
            tq_status_t rc = tq_cq_open(api.client, &cq, &err);
            tq_client_close(api.client);
            _exit(rc == TQ_E_FORKED ? 0 : 1);
        }
        assert_true(pid > 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(join(workers), THREADS * ROUNDS);
    api_close(&api);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_share_one_client),
        cmocka_unit_test(each_thread_has_a_client_of_its_own),
        cmocka_unit_test(a_client_may_be_closed_while_others_call),
        cmocka_unit_test(a_process_may_fork_while_others_call),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
