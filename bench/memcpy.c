/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick of every data figure: one thread copies a block between two warm buffers.
 * usage: memcpy BYTES REPEATS; prints {"bytes": ..., "seconds": [...]} on one line.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 3 ? (size_t)strtoull(argv[1], NULL, 10) : 0;
    int repeats = argc == 3 ? atoi(argv[2]) : 0;

    if (bytes == 0 || repeats < 1) {
        fprintf(stderr, "usage: memcpy BYTES REPEATS\n");
        return 2;
    }

    unsigned char *src = malloc(bytes);
    unsigned char *dst = malloc(bytes);

    if (src == NULL || dst == NULL) {
        fprintf(stderr, "memcpy: no memory for two blocks of %zu bytes\n", bytes);
        free(src);
        free(dst);
        return 1;
    }
    memset(src, 1, bytes);
    memset(dst, 2, bytes);

    printf("{\"bytes\": %zu, \"seconds\": [", bytes);
    for (int i = 0; i < repeats; i++) {
        src[i % bytes]++;
        double start = now_s();

        memcpy(dst, src, bytes);
        /* The copy is observed, so that the compiler can't drop it. */
        __asm__ volatile("" : : "r"(dst) : "memory");
        printf("%s%.9f", i > 0 ? ", " : "", now_s() - start);
    }
    printf("]}\n");
    free(src);
    free(dst);
    return 0;
}
