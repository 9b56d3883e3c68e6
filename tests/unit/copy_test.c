/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/copy.h"

#include "unit.h"

#include <string.h>

enum { BYTES = 40000, GUARD = 64 };

static void every_length_and_alignment_is_copied_and_nothing_else(void **state)
{
    static const uint64_t totals[] = {0, TQI_COPY_STREAM_BYTES};
    static uint8_t src[BYTES + 2 * GUARD], dst[BYTES + 2 * GUARD], expected[BYTES + 2 * GUARD];

    (void)state;
    for_each_seed(seed, 1000)
    {
        tqi_rng_t rng;

        tqi_rng_init(&rng, seed);
        size_t from = tqi_rng_below(&rng, GUARD);
        size_t to = GUARD + tqi_rng_below(&rng, GUARD);
        size_t len = tqi_rng_below(&rng, tqi_rng_chance(&rng, 0.5) ? 200 : BYTES - GUARD);
        for (size_t i = 0; i < sizeof src; i++)
            src[i] = (uint8_t)(i * 31 + seed);
        memset(dst, 0xee, sizeof dst);
        memset(expected, 0xee, sizeof expected);
        memcpy(expected + to, src + from, len);
        tqi_copy(dst + to, src + from, len, len + totals[seed % 2]);
        tqi_copy_done();
        unit_check(memcmp(dst, expected, sizeof dst) == 0);
    }
}

static void a_large_transfer_in_pieces_arrives_whole(void **state)
{
    size_t total = 3 * (size_t)TQI_COPY_STREAM_BYTES + 17;
    uint8_t *src = malloc(total), *dst = malloc(total);

    (void)state;
    assert_non_null(src);
    assert_non_null(dst);
    for (size_t i = 0; i < total; i++)
        src[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t at = 0; at < total; at += 1000)
        tqi_copy(dst + at, src + at, total - at < 1000 ? total - at : 1000, total);
    tqi_copy_done();
    assert_memory_equal(dst, src, total);
    tqi_copy(NULL, NULL, 0, total);
    free(src);
    free(dst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_and_alignment_is_copied_and_nothing_else),
        cmocka_unit_test(a_large_transfer_in_pieces_arrives_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
