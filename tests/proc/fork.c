/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forks under load. A thread puts, reads, compares and clears without end, while the first thread
 * forks again and again, a little later in the transfer each time; so every phase of one is met.
 *
 *   fork ADDRESS FORKS      the store is elsewhere
 *   fork embedded FORKS     the store, with its roles' threads, is in this process
 *
 * Each child finds its parent's client dead, opens one of its own, does what the parent does, and
 * ends: without closing anything, by exit(), or closing what is its parent's as well. A child that
 * hangs is killed by its alarm. Prints "connected", then "forked N, worked on"; status 2 for bytes
 * that differ, 1 for any other fault.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <tq/host.h>
#include <unistd.h>

#include "proc.h"

#define LARGE_BYTES 3000000u
#define SMALL_BYTES 1000u
#define CHILD_S 40u
#define STEP_NS 170000L /* later in each fork than in the one before */
#define STEPS 60        /* of such steps at most */

typedef struct work {
    tq_client_t *client;
    char partition[64];
    atomic_bool is_over;
    unsigned rounds;
} work_t;

static void one_round(tq_client_t *client, const char *partition, char *bytes, unsigned number)
{
    tq_column_t columns[2] = {bytes_column("large", bytes, LARGE_BYTES),
                              bytes_column("small", bytes, SMALL_BYTES)};
    tq_put_args_t put = {
        .partition = partition, .rows_cnt = 1, .columns_cnt = 2, .columns = columns};
    tq_error_t err;
    tq_op_t *op = NULL;

    memset(bytes, (int)(number + (unsigned)getpid()), LARGE_BYTES);
    done(tq_put_submit(client, NULL, &put, NULL, &op, &err), &err, &op);
    tq_row_t row = tq_op_result(op)->rows[0];
    tq_op_free(op);

    tq_get_args_t get = {.partition = partition, .rows_cnt = 1, .rows = &row};
    done(tq_get_submit(client, NULL, &get, NULL, &op, &err), &err, &op);
    for (unsigned c = 0; c < 2; c++) {
        const tq_column_out_t *column = &tq_op_result(op)->columns[c];
        if (tq_op_result(op)->columns_cnt != 2 || column->desc.len != columns[c].desc.len ||
            memcmp(tq_buffer_data(column->buffer), bytes, column->desc.len) != 0) {
            say("bytes differ");
            _exit(2);
        }
    }
    tq_op_free(op);

    tq_clear_args_t clear = {.partition = partition, .rows_cnt = 1, .rows = &row};
    done(tq_clear_submit(client, NULL, &clear, NULL, &op, &err), &err, &op);
    tq_op_free(op);
}

static void *work_run(void *arg)
{
    work_t *work = arg;
    char *bytes = malloc(LARGE_BYTES);

    while (bytes && !atomic_load(&work->is_over))
        one_round(work->client, work->partition, bytes, work->rounds++);
    free(bytes);
    return NULL;
}

/* The child's whole life. */
static void child(const work_t *parents, const char *address, unsigned number)
{
    tq_client_conf_t conf = {.address = address, .name = "child", .call_timeout_ms = 30000};
    tq_client_t *client;
    tq_error_t err;
    tq_op_t *op;
    char *bytes = malloc(LARGE_BYTES);

    alarm(CHILD_S);
    if (!bytes)
        _exit(1);
    if (tq_stat_submit(parents->client, NULL, 0, NULL, &op, &err) != TQ_E_FORKED) {
        say("a child can use its parent's client");
        _exit(1);
    }
    if (tq_client_open(&conf, &client, &err) != TQ_OK) {
        printf("child: %s\n", err.text);
        fflush(stdout);
        _exit(1);
    }
    one_round(client, "children", bytes, number);
    free(bytes);
    if (number % 3 == 0)
        _exit(0);
    if (number % 3 == 1) {
        tq_client_close(parents->client);
        tq_client_close(client);
    }
    exit(0);
}

static int forks(work_t *work, const char *address, unsigned cnt)
{
    for (unsigned i = 0; i < cnt; i++) {
        struct timespec nap = {0, (long)(i % STEPS) * STEP_NS};
        int status;

        nanosleep(&nap, NULL);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0)
            child(work, address, i);
        if (pid < 0 || waitpid(pid, &status, 0) != pid) {
            say("no child");
            return 1;
        }
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            printf("child %u ended with status %x\n", i, (unsigned)status);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    tq_store_conf_t conf = {.capacity_bytes = 256u << 20};
    tq_store_t *store = NULL;
    work_t work = {.partition = "parent"};
    const char *address = argv[1];
    tq_error_t err;
    pthread_t thread;

    if (argc != 3)
        return 3;
    if (strcmp(address, "embedded") == 0) {
        if (tq_store_open(&conf, &store, &err) != TQ_OK)
            fail(err.status, err.text);
        address = tq_store_public_address(store);
    }
    /* The parent's own way to an embedded store is within the process. */
    work.client = connected(store ? tq_store_address(store) : address);
    if (pthread_create(&thread, NULL, work_run, &work) != 0)
        return 3;
    int code = forks(&work, address, (unsigned)atoi(argv[2]));
    atomic_store(&work.is_over, true);
    pthread_join(thread, NULL);
    printf("forked %s, worked %s\n", argv[2], work.rounds > 0 ? "on" : "never");
    tq_client_close(work.client);
    tq_store_close(store);
    return code;
}
