/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzzing target as a plain program: the corpus first, then inputs changed from it at random, from
 * a seed, for some seconds. What libFuzzer does better (make fuzz) it does longer; this runs
 * anywhere, under any compiler.
 *
 *   usage: TARGET [--seconds N] [--seed N] FILE-OR-FOLDER...
 *
 * An input that crashes is in ./crash-input.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"

#define INPUT_MAX FUZZ_INPUT_MAX
#define CORPUS_MAX 8192

static struct {
    uint8_t *data;
    size_t len;
} corpus[CORPUS_MAX];
static unsigned corpus_cnt;

static uint8_t current[INPUT_MAX];
static size_t current_len;

static void on_abort(int sig)
{
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd >= 0 && write(fd, current, current_len) < 0)
        _exit(98);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void run(const uint8_t *data, size_t len)
{
    memcpy(current, data, len);
    current_len = len;
    tqi_fuzz_one(current, len);
}

static void load(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        exit(2);
    }
    if (S_ISDIR(st.st_mode)) {
        struct dirent **names;
        int cnt = scandir(path, &names, NULL, alphasort);
        for (int i = 0; i < cnt; i++) {
            char sub[4096];
            snprintf(sub, sizeof sub, "%s/%s", path, names[i]->d_name);
            if (names[i]->d_name[0] != '.')
                load(sub);
            free(names[i]);
        }
        free(names);
        return;
    }
    FILE *file = fopen(path, "re");
    if (!file || corpus_cnt == CORPUS_MAX)
        exit(2);
    size_t size = tqi_size_min((size_t)st.st_size, INPUT_MAX);
    corpus[corpus_cnt].data = malloc(size ? size : 1);
    corpus[corpus_cnt].len = fread(corpus[corpus_cnt].data, 1, size, file);
    corpus_cnt++;
    fclose(file);
}

/* A few changes: bytes, numbers at their edges, pieces of other inputs, cut, repeated. */
static size_t mutate(uint8_t *data, size_t len, tqi_rng_t *rng)
{
    static const uint8_t edges[] = {0, 1, 0x7f, 0x80, 0xff, 0xc0, 0xc4, 0xdd, 0xdf, 16, 32, 64};
    for (uint64_t n = 1 + tqi_rng_below(rng, 6); n > 0; n--) {
        size_t at = len ? tqi_rng_below(rng, len) : 0;
        switch (tqi_rng_below(rng, 6)) {
        case 0:
            if (len > 0)
                data[at] = (uint8_t)tqi_rng_u64(rng);
            break;
        case 1:
            if (len > 0)
                data[at] = edges[tqi_rng_below(rng, sizeof edges)];
            break;
        case 2:
            if (len > 0)
                data[at] ^= (uint8_t)(1u << tqi_rng_below(rng, 8));
            break;
        case 3:
            len = at;
            break;
        case 4:
        case 5: { /* a piece of any input goes in */
            unsigned other = (unsigned)tqi_rng_below(rng, corpus_cnt);
            size_t from = corpus[other].len ? tqi_rng_below(rng, corpus[other].len) : 0;
            size_t piece = 1 + tqi_rng_below(rng, 64);
            if (from + piece > corpus[other].len)
                piece = corpus[other].len - from;
            if (len + piece > INPUT_MAX)
                break;
            memmove(data + at + piece, data + at, len - at);
            memcpy(data + at, corpus[other].data + from, piece);
            len += piece;
            break;
        }
        }
    }
    return len;
}

int main(int argc, char **argv)
{
    double seconds = 0;
    uint64_t seed = 1, runs = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            load(argv[i]);
    }
    if (corpus_cnt == 0) {
        fprintf(stderr, "no inputs\n");
        return 2;
    }
    signal(SIGABRT, on_abort);
    signal(SIGSEGV, on_abort);
    for (unsigned i = 0; i < corpus_cnt; i++)
        run(corpus[i].data, corpus[i].len);
    tqi_rng_t rng;
    struct timespec start, now;
    tqi_rng_init(&rng, seed);
    clock_gettime(CLOCK_MONOTONIC, &start);
    static uint8_t data[INPUT_MAX];
    for (bool is_over = seconds <= 0; !is_over; runs++) {
        unsigned from = (unsigned)tqi_rng_below(&rng, corpus_cnt);
        memcpy(data, corpus[from].data, corpus[from].len);
        size_t len = corpus[from].len;
        if (tqi_fuzz_change && tqi_rng_below(&rng, 2) == 0)
            for (uint64_t n = 1 + tqi_rng_below(&rng, 4); n > 0; n--)
                len = tqi_fuzz_change(data, len, INPUT_MAX, &rng);
        else
            len = mutate(data, len, &rng);
        run(data, len);
        clock_gettime(CLOCK_MONOTONIC, &now);
        is_over =
            (double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 >
            seconds;
    }
    printf("corpus %u\nruns %llu (seed %llu)\n", corpus_cnt, (unsigned long long)runs,
           (unsigned long long)seed);
    return 0;
}
