/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a put to the wake-up of the fetches that wait for it. In each round WAITERS tasks wait for
 * 32 rows with a field, and one put of 32 small rows makes them ready. Two times are told, of every
 * waiter in every round: from the call of the put, which is before the store publishes, and from
 * its return, which is after; the time from publish to wake lies between them.
 *
 * The consumer is another client in the same process (embedded), or a process of its own (ipc). The
 * partition holds ROWS other rows, which the tasks can't use.
 *
 *   usage: wake [WAITERS [ROWS [ROUNDS]]]
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tq/host.h>
#include <tq/tq.h>
#include <unistd.h>

#include "common.h"

#define BATCH 32
#define PARTITION "wake"
#define WAITERS_MAX 64
#define ROUNDS_MAX 10000
/* A fetch was submitted long before: it has reached the store and is parked there. */
#define PARKED_US 3000

static const uint32_t used_offsets[] = {0, 4};
static const tq_strs_t used = {1, used_offsets, "used"};

/* Between producer and consumer, in memory that both processes see. */
typedef struct shared {
    char address[256];
    atomic_int opened, submitted, woken; /* address is there; rounds so far */
    int waiters, rounds;
    int64_t call_ns[ROUNDS_MAX], return_ns[ROUNDS_MAX];
    int64_t wake_ns[ROUNDS_MAX][WAITERS_MAX];
} shared_t;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static void *consume(void *arg)
{
    shared_t *shared = arg;
    tq_client_t *client;
    tq_error_t err = {0};
    tq_cq_t *cq;
    tq_op_t *op, *done[WAITERS_MAX];

    while (!atomic_load(&shared->opened))
        nap();
    tq_client_conf_t conf = {.address = shared->address};
    must(tq_client_open(&conf, &client, &err), err.text);
    must(tq_cq_open(client, &cq, &err), err.text);
    for (int round = 0; round < shared->rounds; round++) {
        for (int w = 0; w < shared->waiters; w++) {
            char task[16];
            snprintf(task, sizeof task, "task%d", w);
            tq_fetch_args_t fetch = {.partition = PARTITION,
                                     .fields = &used,
                                     .rows_cnt = BATCH,
                                     .task = task,
                                     .mode = TQ_FETCH,
                                     .timeout_ms = 60000};
            must(tq_fetch_submit(client, cq, &fetch, NULL, &op, &err), err.text);
        }
        atomic_fetch_add(&shared->submitted, 1);
        for (int woken = 0; woken < shared->waiters;) {
            uint32_t cnt = tq_cq_wait(cq, done, WAITERS_MAX, -1);
            int64_t now = now_ns();
            for (uint32_t i = 0; i < cnt; i++) {
                must(tq_op_status(done[i]), tq_op_error(done[i]));
                tq_op_free(done[i]);
                shared->wake_ns[round][woken++] = now;
            }
        }
        atomic_fetch_add(&shared->woken, 1);
    }
    tq_cq_close(cq);
    tq_client_close(client);
    return NULL;
}

static void put(tq_client_t *client, const char *field, uint32_t rows_cnt)
{
    static const uint8_t zeros[TQ_REQUEST_ROWS_MAX];
    tq_column_t column = {.field = field,
                          .layout = TQ_LAYOUT_UNIFORM,
                          .desc = {.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_U8, .len = 1},
                          .data = zeros,
                          .row_stride = 1};
    tq_put_args_t args = {
        .partition = PARTITION, .rows_cnt = rows_cnt, .columns_cnt = 1, .columns = &column};
    tq_error_t err = {0};

    must(tq_put(client, &args, NULL, &err), err.text);
}

static int compare(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a > b) - (a < b);
}

/* Prints the median and the 99th percentile of wake - from, in microseconds. */
static void report(const char *name, const char *what, const shared_t *shared, const int64_t *from)
{
    size_t cnt = 0, all = (size_t)shared->rounds * (size_t)shared->waiters;
    int64_t *times = malloc(all * sizeof *times);

    if (!times)
        must(TQ_E_NO_MEMORY, "samples");
    for (int round = 0; round < shared->rounds; round++)
        for (int w = 0; w < shared->waiters; w++)
            times[cnt++] = shared->wake_ns[round][w] - from[round];
    qsort(times, cnt, sizeof *times, compare);
    printf("%-10s %-22s median %7.1f us, p99 %7.1f us, worst %7.1f us\n", name, what,
           (double)times[cnt / 2] / 1e3, (double)times[cnt * 99 / 100] / 1e3,
           (double)times[cnt - 1] / 1e3);
    free(times);
}

static void produce(const char *name, shared_t *shared, const char *address,
                    const char *consumers_address, long rows)
{
    tq_client_conf_t conf = {.address = address};
    tq_client_t *client;
    tq_error_t err = {0};

    must(tq_client_open(&conf, &client, &err), err.text);
    for (; rows > 0; rows -= TQ_REQUEST_ROWS_MAX)
        put(client, "unused", rows < TQ_REQUEST_ROWS_MAX ? (uint32_t)rows : TQ_REQUEST_ROWS_MAX);
    snprintf(shared->address, sizeof shared->address, "%s", consumers_address);
    atomic_store(&shared->opened, 1);
    for (int round = 0; round < shared->rounds; round++) {
        while (atomic_load(&shared->submitted) <= round)
            nap();
        usleep(PARKED_US);
        shared->call_ns[round] = now_ns();
        put(client, "used", BATCH);
        shared->return_ns[round] = now_ns();
        while (atomic_load(&shared->woken) <= round)
            nap();
    }
    report(name, "from the put's call", shared, shared->call_ns);
    report(name, "from the put's return", shared, shared->return_ns);
    tq_client_close(client);
}

int main(int argc, char **argv)
{
    int waiters = argc > 1 ? atoi(argv[1]) : 1;
    long rows = argc > 2 ? atol(argv[2]) : 0;
    int rounds = argc > 3 ? atoi(argv[3]) : 500;
    tq_store_conf_t conf = {.capacity_bytes = 256u << 20};

    if (waiters < 1 || waiters > WAITERS_MAX || rounds < 1 || rounds > ROUNDS_MAX || rows < 0) {
        fprintf(stderr, "usage: wake [WAITERS 1-%d [ROWS [ROUNDS 1-%d]]]\n", WAITERS_MAX,
                ROUNDS_MAX);
        return 2;
    }
    printf("%d waiters, %ld other rows, %d rounds\n", waiters, rows, rounds);
    fflush(stdout);
    for (int is_ipc = 0; is_ipc < 2; is_ipc++) {
        shared_t *shared =
            mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        tq_store_t *store;
        tq_error_t err = {0};
        pthread_t thread;
        pid_t pid = 0;
        int status = 0;

        if (shared == MAP_FAILED)
            must(TQ_E_NO_MEMORY, "shared memory");
        shared->waiters = waiters;
        shared->rounds = rounds;
        /* Before the store is there: its threads would not live in the child. */
        fflush(stdout);
        if (is_ipc && (pid = fork()) == 0) {
            consume(shared);
            return 0;
        }
        if (pid < 0)
            must(TQ_E_NO_MEMORY, "fork");
        must(tq_store_open(&conf, &store, &err), err.text);
        if (!is_ipc && pthread_create(&thread, NULL, consume, shared) != 0)
            must(TQ_E_NO_MEMORY, "thread");
        produce(is_ipc ? "ipc" : "embedded", shared, tq_store_address(store),
                is_ipc ? tq_store_public_address(store) : tq_store_address(store), rows);
        if (is_ipc)
            waitpid(pid, &status, 0);
        else
            pthread_join(thread, NULL);
        tq_store_close(store);
        munmap(shared, sizeof *shared);
        if (status != 0)
            return 1;
    }
    return 0;
}
