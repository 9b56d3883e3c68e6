/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, closing, queues, waiting, cancelling: what a client promises besides its data. */
#include "api.h"

#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static tq_op_t *fetch(tq_client_t *client, tq_cq_t *cq, uint32_t rows, const char *task,
                      uint32_t timeout_ms, void *user)
{
    static const uint32_t offsets[] = {0, 1};
    tq_strs_t fields = {1, offsets, "x"};
    tq_fetch_args_t args = {.partition = "p",
                            .fields = &fields,
                            .rows_cnt = rows,
                            .task = task,
                            .mode = TQ_FETCH,
                            .timeout_ms = timeout_ms};
    tq_op_t *op;

    api_ok(tq_fetch_submit(client, cq, &args, user, &op, &err));
    return op;
}

static void put(tq_client_t *client, uint32_t rows)
{
    uint32_t *data = api_fill(1, rows, 2);
    tq_column_t column = api_column("x", data, 2);
    tq_put_args_t args = {.partition = "p", .rows_cnt = rows, .columns_cnt = 1, .columns = &column};

    api_ok(tq_put(client, &args, NULL, &err));
    free(data);
}

static void *put_soon(void *arg)
{
    struct timespec nap = {0, 50000000};

    nanosleep(&nap, NULL);
    put(arg, 4);
    return NULL;
}

static void a_waiting_fetch_is_woken_by_a_put(void **state)
{
    api_t api;
    pthread_t thread;

    (void)state;
    api_open(&api);
    tq_op_t *op = fetch(api.client, NULL, 4, "t", 0, NULL);
    assert_false(tq_op_wait(op, 0));
    pthread_create(&thread, NULL, put_soon, api.client);
    assert_int_equal(tq_op_result(api_wait(op))->rows_cnt, 4);
    tq_op_free(op);
    pthread_join(thread, NULL);
    api_close(&api);
}

static void a_fetch_that_is_not_ready_says_what_is_missing(void **state)
{
    api_t api;

    (void)state;
    api_open(&api);
    put(api.client, 1);
    tq_op_t *op = fetch(api.client, NULL, 4, "t", 100, NULL);
    assert_true(tq_op_wait(op, -1));
    assert_int_equal(tq_op_status(op), TQ_E_NOT_READY);
    assert_true(strlen(tq_op_error(op)) > 10);
    tq_op_free(op);
    api_close(&api);
}

static void rows_of_a_fetch_that_nobody_took_go_to_the_next(void **state)
{
    api_t api;

    (void)state;
    api_open(&api);
    put(api.client, 4);
    tq_op_t *op = fetch(api.client, NULL, 4, "t", 0, NULL);
    struct timespec nap = {0, 50000000};
    nanosleep(&nap, NULL); /* it is most likely completed, and was not waited for */
    tq_op_free(op);
    op = fetch(api.client, NULL, 4, "t", 0, NULL);
    assert_int_equal(tq_op_result(api_wait(op))->rows_cnt, 4);
    tq_op_free(op);
    tq_op_t *other = fetch(api.client, NULL, 1, "t", 50, NULL);
    assert_true(tq_op_wait(other, -1));
    assert_int_equal(tq_op_status(other), TQ_E_NOT_READY); /* those were taken */
    tq_op_free(other);
    api_close(&api);
}

static void a_cancelled_fetch_completes_once(void **state)
{
    api_t api;

    (void)state;
    api_open(&api);
    tq_op_t *op = fetch(api.client, NULL, 4, "t", 0, NULL);
    tq_op_cancel(op);
    tq_op_cancel(op);
    assert_true(tq_op_wait(op, -1));
    assert_int_equal(tq_op_status(op), TQ_E_CANCELLED);
    tq_op_free(op);
    api_close(&api);
}

static void a_queue_tells_by_its_fd_and_gives_each_op_once(void **state)
{
    api_t api;
    enum { N = 500 };
    tq_cq_t *cq;
    tq_op_t *ops[64];
    uint32_t seen[N] = {0}, cnt = 0;

    (void)state;
    api_open(&api);
    api_ok(tq_cq_open(api.client, &cq, &err));
    struct pollfd pfd = {.fd = tq_cq_fd(cq), .events = POLLIN};
    assert_int_equal(poll(&pfd, 1, 0), 0);
    assert_int_equal(tq_cq_wait(cq, ops, 64, 10), 0);
    tq_list_args_t args = {0};
    for (uintptr_t i = 0; i < N; i++) {
        tq_op_t *op;
        api_ok(tq_list_submit(api.client, cq, &args, (void *)i, &op, &err));
    }
    while (cnt < N) {
        assert_int_equal(poll(&pfd, 1, 10000), 1);
        uint32_t got = tq_cq_poll(cq, ops, 64);
        for (uint32_t i = 0; i < got; i++) {
            assert_int_equal(tq_op_status(ops[i]), TQ_OK);
            seen[(uintptr_t)tq_op_user(ops[i])]++;
            tq_op_free(ops[i]);
        }
        cnt += got;
    }
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    assert_int_equal(poll(&pfd, 1, 0), 0);
    tq_cq_close(cq);
    api_close(&api);
}

static void closing_a_queue_frees_its_ops_as_they_complete(void **state)
{
    api_t api;
    tq_cq_t *cq;

    (void)state;
    api_open(&api);
    api_ok(tq_cq_open(api.client, &cq, &err));
    put(api.client, 2);
    fetch(api.client, cq, 2, "t", 0, NULL); /* completes */
    fetch(api.client, cq, 9, "u", 100, NULL);
    struct timespec nap = {0, 20000000};
    nanosleep(&nap, NULL);
    tq_cq_close(cq);
    tq_op_t *op = fetch(api.client, NULL, 2, "t", 0, NULL); /* came back */
    api_wait(op);
    tq_op_free(op);
    api_close(&api);
}

static void closing_the_client_ends_what_is_outstanding(void **state)
{
    api_t api;
    tq_op_t *ops[8];

    (void)state;
    api_open(&api);
    for (int i = 0; i < 8; i++)
        ops[i] = fetch(api.client, NULL, 4, "t", 60000, NULL);
    double before = api_seconds();
    tq_client_close(api.client);
    assert_true(api_seconds() - before < 5);
    for (int i = 0; i < 8; i++) {
        assert_true(tq_op_wait(ops[i], 0));
        assert_int_equal(tq_op_status(ops[i]), TQ_E_CLOSED);
        tq_op_cancel(ops[i]);
        tq_op_free(ops[i]);
    }
    tq_store_close(api.store);
}

static void the_creators_text_and_the_incarnation_are_known(void **state)
{
    api_t api;
    size_t len;

    (void)state;
    api_open_conf(&api,
                  (tq_store_conf_t){.is_private = true, .controller = {.user_conf = "some: text"}});
    assert_string_equal(tq_client_store_conf(api.client, &len), "some: text");
    assert_int_equal(len, 10);
    assert_true(tq_client_incarnation(api.client) != 0);
    api_close(&api);
}

static void an_address_that_is_none_says_so_at_once(void **state)
{
    tq_client_t *client;
    tq_error_t err;
    const char *bad[] = {"nonsense", "udp://x:1", "ipc:///tmp/x#zz"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        tq_client_conf_t conf = {.address = bad[i]};
        double before = api_seconds();
        assert_int_equal(tq_client_open(&conf, &client, &err), TQ_E_CONFIG);
        assert_non_null(strstr(err.text, bad[i]));
        assert_true(api_seconds() - before < 1);
    }
    unsetenv("TQ_ADDRESS");
    assert_int_equal(tq_client_open(NULL, &client, &err), TQ_E_CONFIG);
    assert_non_null(strstr(err.text, "TQ_ADDRESS"));
}

static void a_dead_address_fails_in_time_with_the_remedy(void **state)
{
    tq_client_conf_t conf = {.address = "ipc:///nonexistent/tq-test", .connect_timeout_ms = 300};
    tq_client_t *client;
    tq_error_t err;
    double before = api_seconds();

    (void)state;
    assert_int_equal(tq_client_open(&conf, &client, &err), TQ_E_UNREACHABLE);
    assert_non_null(strstr(err.text, "/nonexistent/tq-test"));
    assert_non_null(strstr(err.text, "Start it"));
    assert_true(api_seconds() - before < 2);
}

static void tq_address_is_honoured_and_names_one_store(void **state)
{
    api_t api;
    tq_client_t *client;
    tq_error_t why;
    char wrong[256];

    (void)state;
    api_open_conf(&api, (tq_store_conf_t){0});
    setenv("TQ_ADDRESS", tq_store_public_address(api.store), 1);
    api_ok(tq_client_open(NULL, &client, &err));
    put(client, 3);
    tq_client_close(client);
    snprintf(wrong, sizeof wrong, "%s", tq_store_public_address(api.store));
    wrong[strlen(wrong) - 1] = wrong[strlen(wrong) - 1] == '0' ? '1' : '0';
    setenv("TQ_ADDRESS", wrong, 1);
    assert_int_equal(tq_client_open(NULL, &client, &why), TQ_E_STORE_GONE);
    unsetenv("TQ_ADDRESS");
    api_close(&api);
}

static void a_call_after_the_store_is_gone_fails_within_five_seconds(void **state)
{
    api_t api;

    (void)state;
    api_open_conf(&api, (tq_store_conf_t){0});
    tq_store_close(api.store);
    double before = api_seconds();
    tq_list_args_t args = {0};
    tq_op_t *op;
    api_ok(tq_list_submit(api.client, NULL, &args, NULL, &op, &err));
    assert_true(tq_op_wait(op, -1));
    assert_int_equal(tq_op_status(op), TQ_E_UNREACHABLE);
    assert_true(api_seconds() - before < 5.5);
    tq_op_free(op);
    tq_client_close(api.client);
}

static void a_forked_child_may_not_use_what_the_parent_opened(void **state)
{
    api_t api;
    tq_cq_t *cq;
    int status;

    (void)state;
    api_open(&api);
    api_ok(tq_cq_open(api.client, &cq, &err));
    tq_op_t *op = fetch(api.client, NULL, 4, "t", 60000, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        tq_error_t err;
        tq_op_t *other;
        tq_list_args_t args = {0};
        bool is_right =
            tq_list_submit(api.client, NULL, &args, NULL, &other, &err) == TQ_E_FORKED &&
            tq_op_wait(op, -1) && tq_op_status(op) == TQ_E_FORKED &&
            tq_cq_wait(cq, &other, 1, -1) == 0;
        tq_op_cancel(op);
        tq_op_free(op);
        tq_cq_close(cq);
        tq_client_close(api.client);
        _exit(is_right ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    put(api.client, 4); /* the parent goes on */
    api_wait(op);
    tq_op_free(op);
    tq_cq_close(cq);
    api_close(&api);
}

typedef struct worker {
    tq_client_t *client;
    uint32_t id;
} worker_t;

static void *work(void *arg)
{
    worker_t *w = arg;
    char prefix[16];

    snprintf(prefix, sizeof prefix, "w%u-", w->id);
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t width = round % 2 ? 8 : 20000;
        uint32_t *data = api_fill(w->id * 100 + round, 4, width);
        tq_column_t column = api_column("x", data, width);
        api_strs_t keys = api_names(prefix, 4);
        tq_put_args_t put_args = {.partition = "p",
                                  .rows_cnt = 4,
                                  .keys = &keys.strs,
                                  .columns_cnt = 1,
                                  .columns = &column};
        tq_get_args_t get_args = {.partition = "p", .keys = &keys.strs};
        tq_clear_args_t clear = {.partition = "p", .keys = &keys.strs};
        tq_op_t *op;
        api_ok(tq_put(w->client, &put_args, NULL, &err));
        api_ok(tq_get(w->client, &get_args, &op, &err));
        for (uint32_t r = 0; r < 4; r++)
            api_check_row(tq_op_result(op)->columns, r, w->id * 100 + round, r, width);
        tq_op_free(op);
        if (round % 5 == 4) {
            api_ok(tq_clear_submit(w->client, NULL, &clear, NULL, &op, &err));
            api_wait(op);
            tq_op_free(op);
        }
        api_strs_free(&keys);
        free(data);
    }
    return NULL;
}

static void many_threads_share_a_client(void **state)
{
    api_t api;
    pthread_t threads[6];
    worker_t workers[6];

    (void)state;
    api_open(&api);
    for (uint32_t i = 0; i < 6; i++) {
        workers[i] = (worker_t){api.client, i};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (uint32_t i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    api_close(&api);
}

static void freeing_outstanding_ops_is_fine(void **state)
{
    api_t api;
    uint32_t *data = api_fill(1, 16, 40000);
    tq_column_t column = api_column("x", data, 40000);
    tq_put_args_t args = {.partition = "p", .rows_cnt = 16, .columns_cnt = 1, .columns = &column};

    (void)state;
    api_open(&api);
    for (int i = 0; i < 30; i++) {
        tq_op_t *op;
        api_ok(tq_put_submit(api.client, NULL, &args, NULL, &op, &err));
        if (i % 3)
            tq_op_wait(op, i % 2);
        tq_op_free(op);
    }
    api_close(&api);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_waiting_fetch_is_woken_by_a_put),
        cmocka_unit_test(a_fetch_that_is_not_ready_says_what_is_missing),
        cmocka_unit_test(rows_of_a_fetch_that_nobody_took_go_to_the_next),
        cmocka_unit_test(a_cancelled_fetch_completes_once),
        cmocka_unit_test(a_queue_tells_by_its_fd_and_gives_each_op_once),
        cmocka_unit_test(closing_a_queue_frees_its_ops_as_they_complete),
        cmocka_unit_test(closing_the_client_ends_what_is_outstanding),
        cmocka_unit_test(the_creators_text_and_the_incarnation_are_known),
        cmocka_unit_test(an_address_that_is_none_says_so_at_once),
        cmocka_unit_test(a_dead_address_fails_in_time_with_the_remedy),
        cmocka_unit_test(tq_address_is_honoured_and_names_one_store),
        cmocka_unit_test(a_call_after_the_store_is_gone_fails_within_five_seconds),
        cmocka_unit_test(a_forked_child_may_not_use_what_the_parent_opened),
        cmocka_unit_test(many_threads_share_a_client),
        cmocka_unit_test(freeing_outstanding_ops_is_fine),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
