/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole stores, and every place where the system may refuse memory, a descriptor, a thread, a mapping
 * or a message to our code fails once (faults.def). Each step of a script is tried with the next
 * place that has not failed yet armed, in whichever thread gets there first; it ends well or with a
 * status that says why, and then the same step succeeds. A script is run until nothing in it fails
 * any more. When a store is closed it leaves no block, descriptor, thread, mapping or file.
 *
 * Each eighth place does in the gate, where each round costs a second of waiting; all of them in
 * `make check-slow`: TQ_TORTURE_EVERY says which.
 */
#include "api.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"

#define ROUNDS_MAX 400
#define ROWS 4u
#define WIDTH 16384u /* 64 KiB a row */

/* ---- what is left ------------------------------------------------------------------------------ */

static unsigned entries_of(const char *path)
{
    DIR *dir = opendir(path);
    unsigned cnt = 0;

    assert_non_null(dir);
    while (readdir(dir))
        cnt++;
    closedir(dir);
    return cnt;
}

static unsigned segments_mapped(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    unsigned cnt = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        cnt += strstr(line, "tq-segment") != NULL;
    fclose(maps);
    return cnt;
}

typedef struct held {
    int64_t blocks;
    unsigned fds, threads, segments;
} held_t;

static held_t held_now(void)
{
    return (held_t){faults_blocks(), entries_of("/proc/self/fd"), entries_of("/proc/self/task"),
                    segments_mapped()};
}

/* Threads that were joined may still be seen for a moment. */
static void check_held(const held_t *before)
{
    held_t now = held_now();

    for (unsigned tries = 0; now.threads > before->threads && tries < 2000; tries++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        now = held_now();
    }
    if (now.blocks != before->blocks || now.fds != before->fds || now.threads != before->threads ||
        now.segments != before->segments) {
        faults_print();
        fail_msg("left: %lld blocks, %d descriptors, %d threads, %d segments",
                 (long long)(now.blocks - before->blocks), (int)(now.fds - before->fds),
                 (int)(now.threads - before->threads), (int)(now.segments - before->segments));
    }
}

/* ---- arming ------------------------------------------------------------------------------------ */

static unsigned failures;         /* of this round */
static int ask = -1, answer = -1; /* pipes to the process whose calls fail; -1: it is this one */

static bool say(char what)
{
    char reply = 0;

    assert_int_equal(write(ask, &what, 1), 1);
    assert_int_equal(read(answer, &reply, 1), 1);
    return reply == 'y';
}

static void arm(void)
{
    if (ask >= 0)
        say('a');
    else
        faults_arm();
}

static void disarm(void)
{
    failures += ask >= 0 ? say('d') : faults_disarm() != NULL;
}

/* What a refusal may come out as. */
static void check_refusal(const char *step, tq_status_t status, const char *text)
{
    tq_status_class_t cls = tq_status_class(status);

    if ((cls != TQ_CLASS_LOCAL && cls != TQ_CLASS_PEER && cls != TQ_CLASS_RETRY &&
         status != TQ_E_OUTCOME_UNKNOWN) ||
        text[0] == '\0') {
        faults_print();
        fail_msg("%s: %s: %s", step, tq_status_name(status), text);
    }
}

/* Tries call, which sets rc and err, with the next place armed, and if it fails once more without. */
#define torture(step, call)                                                                        \
    do {                                                                                           \
        tq_error_t err = {0};                                                                      \
        tq_status_t rc;                                                                            \
        arm();                                                                                     \
        rc = (call);                                                                               \
        disarm();                                                                                  \
        if (rc != TQ_OK) {                                                                         \
            check_refusal(step, rc, err.text);                                                     \
            err.text[0] = '\0';                                                                    \
            rc = (call);                                                                           \
            if (rc != TQ_OK) {                                                                     \
                faults_print();                                                                    \
                fail_msg("%s, the second time: %s: %s", step, tq_status_name(rc), err.text);       \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* ---- the script -------------------------------------------------------------------------------- */

static const uint32_t key_offsets[] = {0, 2, 4, 6, 8}, field_offsets[] = {0, 1, 2};
static const tq_strs_t keys = {ROWS, key_offsets, "k0k1k2k3"};
static const tq_strs_t fields = {2, field_offsets, "xy"};
static uint32_t *small, *large;

static tq_status_t wait_op(tq_status_t rc, tq_op_t *op, tq_op_t **out, tq_error_t *err)
{
    if (rc != TQ_OK)
        return rc;
    assert_true(tq_op_wait(op, 60000));
    rc = tq_op_status(op);
    snprintf(err->text, sizeof err->text, "%s", tq_op_error(op));
    if (out && rc == TQ_OK)
        *out = op;
    else
        tq_op_free(op);
    return rc;
}

static tq_status_t put_small(tq_client_t *client, tq_error_t *err)
{
    tq_column_t column = api_column("x", small, 8);
    tq_put_args_t args = {
        .partition = "p", .rows_cnt = ROWS, .keys = &keys, .columns_cnt = 1, .columns = &column};
    return tq_put(client, &args, NULL, err);
}

static tq_status_t put_large(tq_client_t *client, tq_error_t *err)
{
    tq_column_t columns[] = {api_column("x", small, 8), api_column("y", large, WIDTH)};
    tq_put_args_t args = {
        .partition = "p", .rows_cnt = ROWS, .keys = &keys, .columns_cnt = 2, .columns = columns};
    return tq_put(client, &args, NULL, err);
}

static tq_status_t get_both(tq_client_t *client, tq_error_t *err)
{
    tq_get_args_t args = {.partition = "p", .keys = &keys, .fields = &fields};
    tq_op_t *op;
    tq_status_t rc = tq_get(client, &args, &op, err);

    if (rc != TQ_OK)
        return rc;
    for (uint32_t r = 0; r < ROWS; r++) {
        api_check_row(&tq_op_result(op)->columns[0], r, 1, r, 8);
        api_check_row(&tq_op_result(op)->columns[1], r, 2, r, WIDTH);
    }
    tq_op_free(op);
    return TQ_OK;
}

static tq_status_t fetch(tq_client_t *client, tq_error_t *err)
{
    tq_fetch_args_t args = {.partition = "p",
                            .fields = &fields,
                            .rows_cnt = ROWS,
                            .task = "t",
                            .mode = TQ_FETCH,
                            .timeout_ms = 10000};
    tq_op_t *op = NULL, *fetched;
    tq_status_t rc = tq_fetch_submit(client, NULL, &args, NULL, &op, err);

    rc = wait_op(rc, op, &fetched, err);
    if (rc != TQ_OK)
        return rc;
    assert_int_equal(tq_op_result(fetched)->rows_cnt, ROWS);
    tq_op_free(fetched);
    return TQ_OK;
}

static tq_status_t reset(tq_client_t *client, tq_error_t *err)
{
    tq_reset_args_t args = {.partition = "p"};
    tq_op_t *op = NULL;
    tq_status_t rc = tq_reset_submit(client, NULL, &args, NULL, &op, err);

    return wait_op(rc, op, NULL, err);
}

static tq_status_t list(tq_client_t *client, tq_error_t *err)
{
    tq_list_args_t args = {.partition = "p", .want_fields = true};
    tq_op_t *op = NULL;
    tq_status_t rc = tq_list_submit(client, NULL, &args, NULL, &op, err);

    return wait_op(rc, op, NULL, err);
}

static tq_status_t stat(tq_client_t *client, tq_error_t *err)
{
    tq_op_t *op = NULL;
    tq_status_t rc = tq_stat_submit(client, NULL, 0, NULL, &op, err);

    return wait_op(rc, op, NULL, err);
}

/* Through a queue, and one op cancelled on the way. */
static tq_status_t by_queue(tq_client_t *client, tq_error_t *err)
{
    tq_list_args_t args = {0};
    tq_fetch_args_t never = {.partition = "none",
                             .fields = &fields,
                             .rows_cnt = 1,
                             .task = "t",
                             .mode = TQ_FETCH,
                             .timeout_ms = 60000};
    tq_cq_t *cq = NULL;
    tq_op_t *ops[2] = {0}, *done;
    tq_status_t rc = tq_cq_open(client, &cq, err);
    unsigned cnt = 0;

    if (rc == TQ_OK)
        rc = tq_list_submit(client, cq, &args, NULL, &ops[cnt], err);
    cnt += rc == TQ_OK;
    if (rc == TQ_OK)
        rc = tq_fetch_submit(client, cq, &never, NULL, &ops[cnt], err);
    if (rc == TQ_OK)
        tq_op_cancel(ops[cnt]);
    cnt += rc == TQ_OK;
    for (; cnt > 0; cnt--) {
        if (tq_cq_wait(cq, &done, 1, 20000) != 1) {
            faults_print();
            fail_msg("an op does not end");
        }
        tq_status_t status = tq_op_status(done);
        if (status != TQ_OK && status != TQ_E_CANCELLED) {
            rc = status;
            snprintf(err->text, sizeof err->text, "%s", tq_op_error(done));
        }
        tq_op_free(done);
    }
    tq_cq_close(cq);
    return rc;
}

static tq_status_t clear(tq_client_t *client, tq_error_t *err)
{
    tq_clear_args_t args = {.partition = "p", .is_all = true};
    tq_op_t *op = NULL;
    tq_status_t rc = tq_clear_submit(client, NULL, &args, NULL, &op, err);

    return wait_op(rc, op, NULL, err);
}

static void script(const char *address)
{
    tq_client_conf_t conf = {.address = address, .call_timeout_ms = 20000};
    tq_client_t *client = NULL;

    torture("opening a client", tq_client_open(&conf, &client, &err));
    torture("put of what fits into a message", put_small(client, &err));
    torture("put of what does not", put_large(client, &err));
    torture("get", get_both(client, &err));
    torture("fetch", fetch(client, &err));
    torture("reset", reset(client, &err));
    torture("list", list(client, &err));
    torture("stat", stat(client, &err));
    torture("by a queue", by_queue(client, &err));
    torture("put once more", put_large(client, &err));
    torture("get once more", get_both(client, &err));
    torture("clear", clear(client, &err));
    arm();
    tq_client_close(client);
    disarm();
}

/* Until a round in which nothing fails. */
static void until_calm(const char *name, void (*round)(void))
{
    unsigned rounds = 0;

    round(); /* warm: what is made once and kept */
    held_t before = held_now();
    double began = api_seconds();
    do {
        assert_true(rounds++ < ROUNDS_MAX);
        failures = 0;
        round();
        check_held(&before);
    } while (failures > 0);
    print_message("%s: %u places failed in %u rounds, %.1f s\n", name, faults_places(), rounds,
                  api_seconds() - began);
}

/* ---- here -------------------------------------------------------------------------------------- */

static void round_in_a_process(void)
{
    tq_store_conf_t conf = {.is_private = true, .capacity_bytes = 64u << 20, .units_cnt = 1};
    tq_store_t *store = NULL;

    torture("opening a store", tq_store_open(&conf, &store, &err));
    script(tq_store_address(store));
    arm();
    tq_store_close(store);
    disarm();
}

static void a_store_in_this_process_survives_every_refusal_once(void **state)
{
    (void)state;
    until_calm("a private store", round_in_a_process);
}

/* ---- between processes ------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int to, from;
} child_t;

static child_t fork_child(void (*run)(int in, int out))
{
    int down[2], up[2];
    child_t child;

    assert_int_equal(pipe(down), 0);
    assert_int_equal(pipe(up), 0);
    child.pid = fork();
    if (child.pid == 0) {
        close(down[1]);
        close(up[0]);
        run(down[0], up[1]);
        _exit(0);
    }
    close(down[0]);
    close(up[1]);
    child.to = down[1];
    child.from = up[0];
    return child;
}

static void join_child(child_t *child)
{
    int status;

    close(child->to);
    assert_int_equal(waitpid(child->pid, &status, 0), child->pid);
    close(child->from);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void serve(int in, int out)
{
    tq_store_conf_t conf = {.capacity_bytes = 64u << 20, .units_cnt = 1};
    char address[512] = "", end;
    tq_store_t *store;
    tq_error_t err;

    if (tq_store_open(&conf, &store, &err) != TQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        _exit(1);
    }
    snprintf(address, sizeof address, "%s", tq_store_public_address(store));
    (void)!write(out, address, sizeof address);
    (void)!read(in, &end, 1);
    tq_store_close(store);
}

static char store_address[512];

static void round_as_a_client(void)
{
    script(store_address);
}

static void a_client_of_another_process_survives_every_refusal_once(void **state)
{
    (void)state;
    child_t child = fork_child(serve);
    assert_int_equal(read(child.from, store_address, sizeof store_address), sizeof store_address);
    until_calm("a client of another process", round_as_a_client);
    join_child(&child);
}

/* The client's process: has the store's calls fail, and does the judging. */
static void use(int in, int out)
{
    char address[512];

    ask = out;
    answer = in;
    while (read(in, address, sizeof address) == sizeof address) {
        script(address);
        (void)!write(out, "e", 1); /* the round is over */
    }
}

static child_t user;

static void round_of_a_store(void)
{
    tq_store_conf_t conf = {.capacity_bytes = 64u << 20, .units_cnt = 1};
    tq_store_t *store = NULL;
    char address[512] = "", what;

    torture("opening a store", tq_store_open(&conf, &store, &err));
    snprintf(address, sizeof address, "%s", tq_store_public_address(store));
    assert_int_equal(write(user.to, address, sizeof address), sizeof address);
    while (read(user.from, &what, 1) == 1 && what != 'e') {
        bool has_failed = false;
        if (what == 'a') {
            faults_arm();
        } else {
            has_failed = faults_disarm() != NULL;
            failures += has_failed;
        }
        assert_int_equal(write(user.to, has_failed ? "y" : "n", 1), 1);
    }
    if (what != 'e') { /* the client's process has told why */
        faults_print();
        fail_msg("the client gave up");
    }
    arm();
    tq_store_close(store);
    disarm();
}

static void a_store_of_another_process_survives_every_refusal_once(void **state)
{
    (void)state;
    user = fork_child(use);
    until_calm("a store of another process", round_of_a_store);
    join_child(&user);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_in_this_process_survives_every_refusal_once),
        cmocka_unit_test(a_client_of_another_process_survives_every_refusal_once),
        cmocka_unit_test(a_store_of_another_process_survives_every_refusal_once),
    };
    const char *wanted = getenv("TQ_TORTURE_EVERY");

    faults_init(wanted && atoi(wanted) > 0 ? (unsigned)atoi(wanted) : 8);
    signal(SIGPIPE, SIG_IGN);
    small = api_fill(1, ROWS, 8);
    large = api_fill(2, ROWS, WIDTH);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    free(small);
    free(large);
    printf("refusals %u\n", faults_places());
    return rc;
}
