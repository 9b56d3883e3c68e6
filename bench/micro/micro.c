/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What single parts of tq cost, without the rest: the ready set that a fetch reads and a publish
 * writes, the ring between two threads and the wake-up of the one that sleeps, copies in pieces.
 * usage: micro; prints a table of medians.
 */
#include "base/bitset.h"
#include "base/rng.h"
#include "base/size.h"
#include "sys/clock.h"
#include "sys/copy.h"
#include "sys/env_malloc.h"
#include "sys/ring.h"
#include "sys/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES_MAX = 4096 };

/* Nanoseconds per operation. */
typedef struct samples {
    double ns[SAMPLES_MAX];
    size_t cnt;
} samples_t;

static void sample_add(samples_t *samples, uint64_t start_ns, uint64_t operations)
{
    if (samples->cnt < SAMPLES_MAX)
        samples->ns[samples->cnt++] = (double)(tqi_now_ns() - start_ns) / (double)operations;
}

static int double_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double percentile(samples_t *samples, double share)
{
    qsort(samples->ns, samples->cnt, sizeof samples->ns[0], double_order);
    return samples->ns[(size_t)(share * (double)(samples->cnt - 1))];
}

static void require(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "micro: %s failed\n", what);
    exit(1);
}

/* ---- ready sets ---- */

static void fill(tqi_summary_t *set, uint64_t rows)
{
    uint64_t words[TQI_LEAF_WORDS];

    memset(words, 0xff, sizeof words);
    for (uint64_t block = 0; block < rows / TQI_LEAF_BITS; block++)
        require(tqi_summary_or_leaf(set, block, words) == TQ_OK, "or_leaf");
}

/* 32 rows are fetched and consumed; a straggler stays unconsumed at the front, the rest of the front
 * is consumed, and what is fetched becomes ready again at random places. */
static void bench_fetch(uint64_t rows)
{
    enum { FETCH = 32 };
    static samples_t fetch, publish;
    tqi_summary_t set;
    tqi_rng_t rng;
    uint64_t out[FETCH];

    fetch.cnt = publish.cnt = 0;
    tqi_summary_init(&set, tqi_env_malloc());
    tqi_rng_init(&rng, 1);
    fill(&set, rows);
    for (uint64_t pos = 1; pos < rows / 2; pos++)
        tqi_summary_clear(&set, pos);
    uint64_t words_touched = set.words_touched;
    for (int i = 0; i < SAMPLES_MAX; i++) {
        uint64_t start_ns = tqi_now_ns();
        size_t cnt = tqi_summary_fetch(&set, 1, out, FETCH);

        for (size_t k = 0; k < cnt; k++)
            tqi_summary_clear(&set, out[k]);
        sample_add(&fetch, start_ns, 1);
        start_ns = tqi_now_ns();
        for (size_t k = 0; k < cnt; k++)
            require(tqi_summary_set(&set, 1 + tqi_rng_below(&rng, rows - 1)) == TQ_OK, "set");
        sample_add(&publish, start_ns, 1);
    }
    printf(
        "  %10" PRIu64 " rows   fetch of 32 %6.2f us   words read %5.1f   publish of 32 %6.2f us\n",
        rows, percentile(&fetch, 0.5) / 1e3,
        (double)(set.words_touched - words_touched) / SAMPLES_MAX, percentile(&publish, 0.5) / 1e3);
    tqi_summary_fini(&set);
}

/* Whole messages of 1,024 rows, applied to one production bitset and one ready set. */
static void bench_publish(void)
{
    enum { BLOCKS = 4096 };
    static samples_t samples;
    uint64_t words[TQI_LEAF_WORDS];

    memset(words, 0xff, sizeof words);
    samples.cnt = 0;
    for (int round = 0; round < 20; round++) {
        tqi_bits_t produced;
        tqi_summary_t ready;

        tqi_bits_init(&produced, tqi_env_malloc());
        tqi_summary_init(&ready, tqi_env_malloc());
        uint64_t start_ns = tqi_now_ns();
        for (uint64_t block = 0; block < BLOCKS; block++) {
            require(tqi_bits_or_leaf(&produced, block, words) == TQ_OK, "or_leaf");
            require(tqi_summary_or_leaf(&ready, block, words) == TQ_OK, "or_leaf");
        }
        sample_add(&samples, start_ns, BLOCKS);
        tqi_bits_fini(&produced);
        tqi_summary_fini(&ready);
    }
    printf("  publish of 1,024 rows into fresh leaves %.0f ns: %.0f M rows/s\n",
           percentile(&samples, 0.5), 1024.0 * 1e3 / percentile(&samples, 0.5));
}

/* ---- between threads ---- */

typedef struct echo {
    tqi_ring_t to, from;
    tqi_wake_t to_wake, from_wake;
} echo_t;

static void *receive(tqi_ring_t *ring, tqi_wake_t *wake, tqi_thread_t *thread)
{
    for (;;) {
        void *ptr = tqi_ring_pop(ring);

        if (ptr != NULL)
            return ptr;
        tqi_wake_prepare(wake);
        bool stop = thread != NULL && tqi_thread_should_stop(thread);
        if (!stop && tqi_ring_is_empty(ring))
            tqi_wake_wait(wake, UINT64_MAX);
        tqi_wake_done(wake);
        if (stop)
            return NULL;
    }
}

static void echo_main(tqi_thread_t *thread, void *arg)
{
    echo_t *echo = arg;
    void *ptr;

    while ((ptr = receive(&echo->to, &echo->to_wake, thread)) != NULL) {
        require(tqi_ring_push(&echo->from, ptr), "push");
        tqi_wake_signal(&echo->from_wake);
    }
}

static void bench_ring(void)
{
    static samples_t samples, alone;
    static echo_t echo;
    tqi_thread_t thread;

    require(tqi_ring_init(&echo.to, 64) == TQ_OK && tqi_ring_init(&echo.from, 64) == TQ_OK, "ring");
    require(tqi_wake_init(&echo.to_wake, NULL) == TQ_OK, "wake");
    require(tqi_wake_init(&echo.from_wake, NULL) == TQ_OK, "wake");
    samples.cnt = alone.cnt = 0;
    for (int i = 0; i < 200; i++) {
        uint64_t start_ns = tqi_now_ns();

        for (int k = 0; k < 1000; k++) {
            require(tqi_ring_push(&echo.to, &echo), "push");
            tqi_wake_signal(&echo.to_wake);
            require(tqi_ring_pop(&echo.to) == &echo, "pop");
        }
        sample_add(&alone, start_ns, 1000);
    }
    require(tqi_thread_start(&thread, "echo", echo_main, &echo, NULL) == TQ_OK, "thread");
    for (int i = 0; i < SAMPLES_MAX; i++) {
        uint64_t start_ns = tqi_now_ns();

        require(tqi_ring_push(&echo.to, &echo), "push");
        tqi_wake_signal(&echo.to_wake);
        receive(&echo.from, &echo.from_wake, NULL);
        sample_add(&samples, start_ns, 1);
    }
    tqi_thread_stop(&thread);
    tqi_wake_signal(&echo.to_wake);
    tqi_thread_join(&thread);
    printf("  push, signal and pop by one thread %.0f ns\n", percentile(&alone, 0.5));
    printf("  there and back between sleeping threads: median %.1f us, p99 %.1f us\n",
           percentile(&samples, 0.5) / 1e3, percentile(&samples, 0.99) / 1e3);
    tqi_wake_fini(&echo.to_wake);
    tqi_wake_fini(&echo.from_wake);
    tqi_ring_fini(&echo.to);
    tqi_ring_fini(&echo.from);
}

/* ---- copies ---- */

static void copy_pieces(uint8_t *dst, const uint8_t *src, size_t total, size_t piece,
                        bool is_memcpy)
{
    for (size_t at = 0; at < total; at += piece) {
        if (is_memcpy)
            memcpy(dst + at, src + at, piece);
        else
            tqi_copy(dst + at, src + at, piece, total);
    }
    tqi_copy_done();
}

/* In turns, because a neighbour's use of the memory changes from second to second. */
static void bench_pieces(uint8_t *dst, const uint8_t *src, size_t total, size_t piece)
{
    static samples_t samples[2];

    samples[0].cnt = samples[1].cnt = 0;
    for (int i = 0; i < 30; i++) {
        uint64_t start_ns = tqi_now_ns();

        copy_pieces(dst, src, total, piece, i % 2 == 0);
        sample_add(&samples[i % 2], start_ns, total);
    }
    printf("  %4zu MiB in pieces of %4zu KiB   memcpy %5.1f   tqi_copy %5.1f GB/s\n", total >> 20,
           piece >> 10, 1 / percentile(&samples[0], 0.5), 1 / percentile(&samples[1], 0.5));
}

static void bench_copy(void)
{
    static const size_t totals[] = {1u << 20, 32u << 20, 256u << 20};
    static const size_t pieces[] = {1u << 10, 64u << 10, 1u << 20};
    size_t bytes = totals[tqi_array_len(totals) - 1];
    uint8_t *src = malloc(bytes), *dst = malloc(bytes);

    require(src != NULL && dst != NULL, "malloc");
    memset(src, 1, bytes);
    memset(dst, 2, bytes);
    for (size_t t = 0; t < tqi_array_len(totals); t++)
        for (size_t p = 0; p < tqi_array_len(pieces); p++)
            bench_pieces(dst, src, totals[t], pieces[p]);
    free(src);
    free(dst);
}

int main(void)
{
    puts("ready sets");
    bench_fetch(1024);
    bench_fetch(1 << 20);
    bench_fetch(10 << 20);
    bench_publish();
    puts("between threads");
    bench_ring();
    puts("copies");
    bench_copy();
    return 0;
}
