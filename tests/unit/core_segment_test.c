/* SPDX-License-Identifier: Apache-2.0 */
#include "core/segment.h"

#include "unit.h"

#include <string.h>

#define SEGMENT (256u << 10)
#define GRANULES_MAX 4096u /* of one segment */
#define SEGMENTS_MAX 4096u
#define SPANS_MAX 512u

/* The naive model: a byte per granule of every segment that was ever opened. */
typedef struct model {
    uint64_t size[SEGMENTS_MAX]; /* 0: not open */
    uint8_t *taken[SEGMENTS_MAX];
    uint32_t opened_cnt;
    uint32_t closed_cnt;
    uint64_t punched_bytes;
    bool refuses;
} model_t;

static tq_status_t model_open(void *ctx, uint32_t id, uint64_t bytes, void **base, tqi_err_t *err)
{
    model_t *m = ctx;

    if (m->refuses)
        return tqi_fail(err, TQ_E_SYSTEM, "no more segments");
    assert_in_range(id, 1, SEGMENTS_MAX - 1);
    assert_int_equal(m->size[id], 0);
    assert_null(m->taken[id]); /* ids are not reused */
    assert_int_equal(bytes % TQI_CHUNK_BYTES, 0);
    m->size[id] = bytes;
    m->taken[id] = calloc(bytes / TQI_GRANULE_BYTES, 1);
    m->opened_cnt++;
    *base = m->taken[id]; /* never read as payload */
    return TQ_OK;
}

static void model_punch(void *ctx, uint32_t id, uint64_t offset, uint64_t len)
{
    model_t *m = ctx;

    assert_true(offset + len <= m->size[id]);
    for (uint64_t g = offset / TQI_GRANULE_BYTES; g < (offset + len) / TQI_GRANULE_BYTES; g++)
        unit_check(m->taken[id][g] == 0);
    m->punched_bytes += len;
}

static void model_close(void *ctx, uint32_t id)
{
    model_t *m = ctx;

    assert_true(m->size[id] > 0);
    m->size[id] = 0;
    m->closed_cnt++;
}

static void model_mark(model_t *m, tqi_span_t span, uint8_t value)
{
    uint32_t id = tqi_segment_id(span.segment);

    unit_check(span.offset + span.bytes <= m->size[id]);
    for (uint64_t g = span.offset / TQI_GRANULE_BYTES;
         g < (span.offset + span.bytes) / TQI_GRANULE_BYTES; g++) {
        unit_check(m->taken[id][g] != value);
        m->taken[id][g] = value;
    }
}

static void model_fini(model_t *m)
{
    for (uint32_t i = 0; i < SEGMENTS_MAX; i++)
        free(m->taken[i]);
}

typedef struct fixture {
    unit_env_t env;
    model_t model;
    tqi_segments_t *segs;
} fixture_t;

static void setup(fixture_t *f, uint64_t idle_bytes_max)
{
    memset(f, 0, sizeof *f);
    unit_env_init(&f->env);
    tqi_segment_ops_t ops = {&f->model, model_open, model_punch, model_close};
    f->segs = tqi_segments_new(&f->env.env, &ops, SEGMENT, idle_bytes_max, 1);
    assert_non_null(f->segs);
}

static void teardown(fixture_t *f)
{
    tqi_segments_free(f->segs);
    assert_int_equal(f->env.bytes, 0);
    assert_int_equal(f->model.opened_cnt, f->model.closed_cnt);
    model_fini(&f->model);
}

static tqi_span_t take(fixture_t *f, uint64_t bytes)
{
    tqi_span_t span;

    assert_int_equal(tqi_segments_take(f->segs, bytes, &span, NULL), TQ_OK);
    model_mark(&f->model, span, 1);
    return span;
}

static void give(fixture_t *f, tqi_span_t span)
{
    model_mark(&f->model, span, 0);
    tqi_segments_give(f->segs, span);
}

static tqi_segments_stat_t stat_of(const fixture_t *f)
{
    tqi_segments_stat_t stat;

    tqi_segments_stat(f->segs, &stat);
    return stat;
}

static void extents_never_overlap_and_every_granule_comes_back(void **state)
{
    (void)state;
    for_each_seed(seed, 40)
    {
        fixture_t f;
        tqi_rng_t rng;
        tqi_span_t spans[SPANS_MAX];
        size_t spans_cnt = 0;
        uint64_t used = 0;
        uint64_t idle_max = tqi_rng_below((tqi_rng_init(&rng, seed), &rng), 4) * SEGMENT;

        setup(&f, idle_max);
        for (int step = 0; step < 3000; step++) {
            bool is_growing = tqi_rng_chance(&rng, step / 500 % 2 ? 0.35 : 0.65);

            if (is_growing && spans_cnt < SPANS_MAX) {
                uint64_t max = tqi_rng_chance(&rng, 0.03)  ? SEGMENT + SEGMENT / 2
                               : tqi_rng_chance(&rng, 0.3) ? 20000
                                                           : 700;
                spans[spans_cnt] = take(&f, 1 + tqi_rng_below(&rng, max));
                used += spans[spans_cnt++].bytes;
            } else if (spans_cnt > 0) {
                size_t i = tqi_rng_below(&rng, spans_cnt);
                uint64_t granules = spans[i].bytes / TQI_GRANULE_BYTES;
                tqi_span_t part = spans[i];

                /* Whole, or a part in the middle, which leaves two spans. */
                if (granules > 2 && spans_cnt < SPANS_MAX && tqi_rng_chance(&rng, 0.5)) {
                    uint64_t lo = 1 + tqi_rng_below(&rng, granules - 2);
                    uint64_t cnt = 1 + tqi_rng_below(&rng, granules - lo - 1);
                    uint64_t end = part.offset + part.bytes;

                    part.offset += lo * TQI_GRANULE_BYTES;
                    part.bytes = cnt * TQI_GRANULE_BYTES;
                    spans[i].bytes = lo * TQI_GRANULE_BYTES;
                    spans[spans_cnt++] = (tqi_span_t){part.segment, part.offset + part.bytes,
                                                      end - part.offset - part.bytes};
                } else {
                    spans[i] = spans[--spans_cnt];
                }
                used -= part.bytes;
                give(&f, part);
            }
            unit_check(stat_of(&f).used_bytes == used);
            unit_check(stat_of(&f).idle_bytes <= idle_max);
            if (step % 500 == 0) {
                tqi_err_t err = {0};

                unit_check(tqi_segments_check_begin(f.segs, &err) == TQ_OK);
                for (size_t i = 0; i < spans_cnt; i++)
                    if (tqi_segments_check_span(f.segs, spans[i], &err) != TQ_OK)
                        fail_msg("%s (seed %llu)", err.text, (unsigned long long)seed);
                if (tqi_segments_check_end(f.segs, &err) != TQ_OK)
                    fail_msg("%s (seed %llu)", err.text, (unsigned long long)seed);
            }
        }
        while (spans_cnt > 0)
            give(&f, spans[--spans_cnt]);
        unit_check(stat_of(&f).used_bytes == 0);
        teardown(&f);
    }
}

static void memory_that_was_used_before_is_used_again(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f, 4 * SEGMENT);
    tqi_span_t a = take(&f, 100000);
    tqi_span_t large = take(&f, 3 * SEGMENT);
    uint32_t large_id = tqi_segment_id(large.segment);
    give(&f, a);
    give(&f, large);
    assert_int_equal(stat_of(&f).segments_cnt, 2);
    tqi_span_t b = take(&f, 100000);
    assert_ptr_equal(b.segment, a.segment);
    assert_int_equal(b.offset, a.offset);
    large = take(&f, 2 * SEGMENT);
    assert_int_equal(tqi_segment_id(large.segment), large_id);
    assert_int_equal(f.model.opened_cnt, 2);
    assert_int_equal(f.model.punched_bytes, 0);
    give(&f, b);
    give(&f, large);
    teardown(&f);
}

static void small_extents_stay_out_of_large_segments(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f, 4 * SEGMENT);
    tqi_span_t large = take(&f, 2 * SEGMENT);
    give(&f, large);
    tqi_span_t small = take(&f, 100);
    assert_ptr_not_equal(small.segment, large.segment);
    give(&f, small);
    teardown(&f);
}

static void beyond_the_budget_memory_goes_back_to_the_system(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f, 0);
    tqi_span_t a = take(&f, TQI_CHUNK_BYTES);
    tqi_span_t b = take(&f, TQI_CHUNK_BYTES);
    give(&f, a);
    assert_int_equal(f.model.punched_bytes, TQI_CHUNK_BYTES);
    assert_int_equal(stat_of(&f).idle_bytes, 0);
    give(&f, b);
    assert_int_equal(f.model.closed_cnt, 1);
    assert_int_equal(stat_of(&f).mapped_bytes, 0);
    teardown(&f);
}

static void a_segment_that_cannot_be_opened_is_an_error_and_nothing_else(void **state)
{
    fixture_t f;
    tqi_span_t span;
    tqi_err_t err;
    (void)state;
    setup(&f, 0);
    tqi_span_t a = take(&f, SEGMENT);
    f.model.refuses = true;
    assert_int_equal(tqi_segments_take(f.segs, 1, &span, &err), TQ_E_SYSTEM);
    assert_string_equal(err.text, "no more segments");
    f.model.refuses = false;
    for (uint64_t n = 0; n < 4; n++) {
        f.env.fail_after = n;
        assert_int_equal(tqi_segments_take(f.segs, 1, &span, &err), n < 3 ? TQ_E_NO_MEMORY : TQ_OK);
    }
    f.env.fail_after = UINT64_MAX;
    tqi_segments_give(f.segs, span);
    give(&f, a);
    teardown(&f);
}

static void a_check_finds_what_is_taken_twice_or_by_nobody(void **state)
{
    fixture_t f;
    (void)state;
    setup(&f, 0);
    tqi_span_t a = take(&f, 1000);
    assert_int_equal(tqi_segments_check_begin(f.segs, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_span(f.segs, a, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_span(f.segs, a, NULL), TQ_E_BUG);
    assert_int_equal(tqi_segments_check_end(f.segs, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_begin(f.segs, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_end(f.segs, NULL), TQ_E_BUG);
    give(&f, a);
    teardown(&f);
}

static void a_check_finds_extents_that_lie_nowhere(void **state)
{
    fixture_t f;
    tqi_err_t err;
    (void)state;
    setup(&f, 0);
    tqi_span_t a = take(&f, 1000), beyond = a, none = {NULL, 0, TQI_GRANULE_BYTES};
    beyond.offset = SEGMENT;
    assert_int_equal(tqi_segments_check_begin(f.segs, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_span(f.segs, none, &err), TQ_E_BUG);
    assert_non_null(strstr(err.text, "not open"));
    assert_int_equal(tqi_segments_check_span(f.segs, beyond, &err), TQ_E_BUG);
    assert_non_null(strstr(err.text, "not taken"));
    /* A check that was given up half-way is begun again. */
    assert_int_equal(tqi_segments_check_begin(f.segs, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_span(f.segs, a, NULL), TQ_OK);
    assert_int_equal(tqi_segments_check_end(f.segs, NULL), TQ_OK);
    f.env.fail_after = 0;
    assert_int_equal(tqi_segments_check_begin(f.segs, &err), TQ_E_NO_MEMORY);
    give(&f, a);
    teardown(&f);
}

static void sizes_that_overflow_are_refused(void **state)
{
    fixture_t f;
    tqi_span_t span;
    tqi_err_t err;
    (void)state;
    assert_int_equal(tqi_segments_cost(0), 0);
    assert_int_equal(tqi_segments_cost(1), TQI_GRANULE_BYTES);
    assert_int_equal(tqi_segments_cost(UINT64_MAX - TQI_GRANULE_BYTES),
                     UINT64_MAX / TQI_GRANULE_BYTES * TQI_GRANULE_BYTES);
    assert_int_equal(tqi_segments_cost(UINT64_MAX - TQI_GRANULE_BYTES + 1), UINT64_MAX);
    setup(&f, 0);
    assert_int_equal(tqi_segments_take(f.segs, UINT64_MAX, &span, &err), TQ_E_TOO_LARGE);
    assert_int_equal(tqi_segments_take(f.segs, (uint64_t)INT64_MAX + 1, &span, &err),
                     TQ_E_TOO_LARGE);
    assert_int_equal(stat_of(&f).segments_cnt, 0);
    /* Nothing given back is nothing done. */
    tqi_segments_give(f.segs, (tqi_span_t){0});
    teardown(&f);
}

/* A size of 0, or one that can't be rounded up, is one chunk. */
static void a_segment_has_a_chunk_at_least(void **state)
{
    static const uint64_t sizes[] = {0, 1, UINT64_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        fixture_t f;
        setup(&f, 0);
        tqi_segment_ops_t ops = {&f.model, model_open, model_punch, model_close};
        tqi_segments_free(f.segs);
        f.segs = tqi_segments_new(&f.env.env, &ops, sizes[i], 0, 1);
        assert_non_null(f.segs);
        give(&f, take(&f, 1));
        tqi_span_t span = take(&f, 1);
        assert_int_equal(stat_of(&f).mapped_bytes, TQI_CHUNK_BYTES);
        give(&f, span);
        teardown(&f);
    }
}

static void a_segment_without_memory_for_its_books_is_not_opened(void **state)
{
    tq_status_t rc = TQ_E_NO_MEMORY;
    (void)state;
    for (uint64_t fail_after = 0; rc != TQ_OK; fail_after++) {
        fixture_t f;
        tqi_span_t span;
        assert_true(fail_after < 10);
        setup(&f, 0);
        f.env.fail_after = fail_after;
        rc = tqi_segments_take(f.segs, 1, &span, NULL);
        assert_int_equal(f.model.opened_cnt, rc == TQ_OK);
        if (rc == TQ_OK)
            tqi_segments_give(f.segs, span);
        else
            assert_int_equal(rc, TQ_E_NO_MEMORY);
        teardown(&f);
    }
    unit_env_t env;
    tqi_segment_ops_t ops = {0};
    unit_env_init(&env);
    env.fail_after = 0;
    assert_null(tqi_segments_new(&env.env, &ops, SEGMENT, 0, 1));
    tqi_segments_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(extents_never_overlap_and_every_granule_comes_back),
        cmocka_unit_test(memory_that_was_used_before_is_used_again),
        cmocka_unit_test(small_extents_stay_out_of_large_segments),
        cmocka_unit_test(beyond_the_budget_memory_goes_back_to_the_system),
        cmocka_unit_test(a_segment_that_cannot_be_opened_is_an_error_and_nothing_else),
        cmocka_unit_test(a_check_finds_what_is_taken_twice_or_by_nobody),
        cmocka_unit_test(a_check_finds_extents_that_lie_nowhere),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(a_segment_has_a_chunk_at_least),
        cmocka_unit_test(a_segment_without_memory_for_its_books_is_not_opened),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
