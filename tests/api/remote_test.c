/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client in another process than the store: control over ipc, payload as a stream. The store's
 * process is a child, made before this one has threads; it ends when its pipe is closed, or is
 * killed.
 */
#include "api.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct remote {
    pid_t pid;
    int hold; /* closing it ends the store */
    char address[512];
    tq_client_t *client;
} remote_t;

static void serve(int out, int hold, uint64_t capacity)
{
    tq_store_conf_t conf = {.capacity_bytes = capacity};
    char address[512] = "", end;
    tq_store_t *store;
    tq_error_t err;

    if (tq_store_open(&conf, &store, &err) != TQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    snprintf(address, sizeof address, "%s", tq_store_public_address(store));
    if (write(out, address, sizeof address) != sizeof address)
        _exit(1);
    (void)!read(hold, &end, 1);
    tq_store_close(store);
    _exit(0);
}

static void remote_open(remote_t *remote)
{
    int out[2], hold[2];

    memset(remote, 0, sizeof *remote);
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(hold), 0);
    remote->pid = fork();
    if (remote->pid == 0) {
        close(out[0]);
        close(hold[1]);
        serve(out[1], hold[0], 512u << 20);
    }
    close(out[1]);
    close(hold[0]);
    remote->hold = hold[1];
    assert_int_equal(read(out[0], remote->address, sizeof remote->address), sizeof remote->address);
    close(out[0]);
    tq_client_conf_t conf = {.address = remote->address};
    api_ok(tq_client_open(&conf, &remote->client, &err));
}

static void remote_close(remote_t *remote)
{
    int status;

    tq_client_close(remote->client);
    close(remote->hold);
    assert_int_equal(waitpid(remote->pid, &status, 0), remote->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void round_trip(remote_t *remote, uint32_t n, uint32_t width, uint32_t seed)
{
    api_strs_t keys = api_names("k", n);
    uint32_t *one = api_fill(seed, n, width), *two = api_fill(seed + 1, n, width);
    tq_column_t columns[] = {api_column("a", one, width), api_column("b", two, width)};
    tq_put_args_t put = {
        .partition = "p", .rows_cnt = n, .keys = &keys.strs, .columns_cnt = 2, .columns = columns};
    tq_get_args_t get = {.partition = "p", .keys = &keys.strs};
    tq_op_t *op;

    api_ok(tq_put(remote->client, &put, NULL, &err));
    api_ok(tq_get(remote->client, &get, &op, &err));
    for (uint32_t f = 0; f < 2; f++)
        for (uint32_t r = 0; r < n; r++)
            api_check_row(&tq_op_result(op)->columns[f], r, seed + f, r, width);
    tq_op_free(op);
    free(one);
    free(two);
    api_strs_free(&keys);
}

static void data_of_every_size_goes_there_and_back(void **state)
{
    remote_t remote;

    (void)state;
    remote_open(&remote);
    round_trip(&remote, 1, 1, 1);
    round_trip(&remote, 8, 2048, 2); /* at the edge of what fits into a message */
    round_trip(&remote, 8, 2049, 3);
    round_trip(&remote, 300, 4096, 4);  /* many frames */
    round_trip(&remote, 5000, 64, 5);   /* rows of both units */
    round_trip(&remote, 2, 5000000, 6); /* one row is over the window */
    remote_close(&remote);
}

static void waiting_threads_and_queues_both_get_their_bytes(void **state)
{
    remote_t remote;
    tq_cq_t *cq;
    enum { N = 6 };
    tq_op_t *ops[N];
    uint32_t got = 0;

    (void)state;
    remote_open(&remote);
    round_trip(&remote, 64, 20000, 7);
    api_ok(tq_cq_open(remote.client, &cq, &err));
    api_strs_t keys = api_names("k", 64);
    tq_get_args_t get = {.partition = "p", .keys = &keys.strs};
    for (int i = 0; i < N; i++)
        api_ok(tq_get_submit(remote.client, cq, &get, NULL, &ops[i], &err));
    round_trip(&remote, 64, 20000, 7);
    while (got < N) {
        uint32_t cnt = tq_cq_wait(cq, ops, N, 20000);
        assert_true(cnt > 0);
        for (uint32_t i = 0; i < cnt; i++) {
            assert_int_equal(tq_op_status(ops[i]), TQ_OK);
            api_check_row(&tq_op_result(ops[i])->columns[1], 63, 8, 63, 20000);
            tq_op_free(ops[i]);
        }
        got += cnt;
    }
    api_strs_free(&keys);
    tq_cq_close(cq);
    remote_close(&remote);
}

static void a_killed_store_fails_every_call_within_five_seconds(void **state)
{
    remote_t remote;
    tq_op_t *op, *fetched;
    uint32_t offsets[] = {0, 1};
    tq_strs_t fields = {1, offsets, "x"};
    tq_fetch_args_t fetch = {.partition = "p",
                             .fields = &fields,
                             .rows_cnt = 1,
                             .task = "t",
                             .mode = TQ_FETCH,
                             .timeout_ms = 60000};
    tq_list_args_t list = {0};

    (void)state;
    remote_open(&remote);
    api_ok(tq_fetch_submit(remote.client, NULL, &fetch, NULL, &fetched, &err));
    kill(remote.pid, SIGKILL);
    waitpid(remote.pid, NULL, 0);
    double before = api_seconds();
    api_ok(tq_list_submit(remote.client, NULL, &list, NULL, &op, &err));
    assert_true(tq_op_wait(op, -1));
    assert_int_equal(tq_op_status(op), TQ_E_UNREACHABLE);
    assert_non_null(strstr(tq_op_error(op), "still running"));
    assert_true(tq_op_wait(fetched, -1));
    assert_int_equal(tq_op_status(fetched), TQ_E_UNREACHABLE);
    assert_true(api_seconds() - before < 6);
    tq_op_free(op);
    tq_op_free(fetched);
    tq_client_close(remote.client);
    assert_true(api_seconds() - before < 9);
    close(remote.hold);
}

static void a_put_under_way_when_the_store_is_stopped_ends_when_it_goes_on(void **state)
{
    remote_t remote;
    uint32_t *data = api_fill(1, 64, 100000);
    tq_column_t column = api_column("x", data, 100000);
    tq_put_args_t put = {.partition = "p", .rows_cnt = 64, .columns_cnt = 1, .columns = &column};
    tq_op_t *op;

    (void)state;
    remote_open(&remote);
    api_ok(tq_put_submit(remote.client, NULL, &put, NULL, &op, &err));
    kill(remote.pid, SIGSTOP);
    assert_false(tq_op_wait(op, 1500));
    kill(remote.pid, SIGCONT);
    assert_true(tq_op_wait(op, 20000));
    assert_int_equal(tq_op_status(op), TQ_OK);
    tq_op_free(op);
    remote_close(&remote);
    free(data);
}

static void a_forked_child_of_the_stores_process_is_a_client_like_any_other(void **state)
{
    api_t api;
    int status;

    (void)state;
    api_open_conf(&api, (tq_store_conf_t){0});
    pid_t pid = fork();
    if (pid == 0) {
        remote_t remote = {0};
        tq_client_conf_t conf = {.address = tq_store_public_address(api.store)};
        tq_error_t err;
        if (tq_client_open(&conf, &remote.client, &err) != TQ_OK) {
            fprintf(stderr, "%s\n", err.text);
            _exit(1);
        }
        round_trip(&remote, 8, 8, 1);
        round_trip(&remote, 64, 20000, 2);
        tq_client_close(remote.client);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        fail_msg("the child was ended by signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    api_close(&api);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_of_every_size_goes_there_and_back),
        cmocka_unit_test(waiting_threads_and_queues_both_get_their_bytes),
        cmocka_unit_test(a_killed_store_fails_every_call_within_five_seconds),
        cmocka_unit_test(a_put_under_way_when_the_store_is_stopped_ends_when_it_goes_on),
        cmocka_unit_test(a_forked_child_of_the_stores_process_is_a_client_like_any_other),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
