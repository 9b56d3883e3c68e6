/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bitmap of granules per segment, with two hints that keep first fit cheap: `free_lo`, below
 * which nothing is free, and `run_max`, which no free run exceeds. Both are bounds: taking leaves
 * run_max alone, a search that fails makes it exact, giving back raises it by what may have joined.
 * So a full segment costs one comparison.
 *
 * A chunk is four words of the bitmap. It is idle when they are zero and its `touched` bit says
 * that its pages are populated.
 */
#include "core/segment.h"

#include <inttypes.h>

#include "base/assert.h"
#include "base/bitset.h"
#include "base/size.h"
#include "base/vec.h"

#define CHUNK_GRANULES (TQI_CHUNK_BYTES / TQI_GRANULE_BYTES)
#define CHUNK_WORDS (CHUNK_GRANULES / TQI_WORD_BITS)

struct tqi_segment {
    uint32_t id;
    uint8_t *base;
    size_t granules_cnt;
    size_t used_cnt; /* granules taken */
    size_t free_lo;
    size_t run_max;
    uint64_t *words;     /* one bit a granule: taken */
    uint64_t *touched;   /* one bit a chunk: populated */
    uint64_t *unclaimed; /* during a check: taken, and not named yet */
};

struct tqi_segments {
    const tqi_env_t *env;
    tqi_segment_ops_t ops;
    uint64_t segment_bytes;
    uint64_t idle_bytes_max;
    uint32_t id_next;
    tqi_segments_stat_t stat;
    TQI_VEC(tqi_segment_t *) vec; /* in the order of opening */
};

/* ---- words ------------------------------------------------------------------------------------ */

/* The first clear bit at or after `from`, or `end` when there is none before it. */
static size_t next_clear(const uint64_t *words, size_t from, size_t end)
{
    size_t word = from / TQI_WORD_BITS;
    uint64_t free_bits;

    if (from >= end)
        return end;
    free_bits = ~words[word] & tqi_word_mask(from % TQI_WORD_BITS, TQI_WORD_BITS);
    while (free_bits == 0) {
        if (++word * TQI_WORD_BITS >= end)
            return end;
        free_bits = ~words[word];
    }
    return tqi_size_min(end, word * TQI_WORD_BITS + tqi_word_lowest(free_bits));
}

static size_t next_set(const uint64_t *words, size_t from, size_t end)
{
    size_t at = from >= end ? end : tqi_words_next(words, (end + 63) / TQI_WORD_BITS, from);

    return tqi_size_min(at, end);
}

/* Whether bits [lo, hi) are all set. */
static bool all_set(const uint64_t *words, size_t lo, size_t hi)
{
    return next_clear(words, lo, hi) == hi;
}

/* ---- segments --------------------------------------------------------------------------------- */

static size_t words_cnt(const tqi_segment_t *seg)
{
    return seg->granules_cnt / TQI_WORD_BITS;
}

static size_t chunks_cnt(const tqi_segment_t *seg)
{
    return seg->granules_cnt / CHUNK_GRANULES;
}

static size_t touched_words(const tqi_segment_t *seg)
{
    return (chunks_cnt(seg) + 63) / TQI_WORD_BITS;
}

static uint64_t segment_bytes(const tqi_segment_t *seg)
{
    return (uint64_t)seg->granules_cnt * TQI_GRANULE_BYTES;
}

static bool chunk_is_free(const tqi_segment_t *seg, size_t chunk)
{
    const uint64_t *w = seg->words + chunk * CHUNK_WORDS;

    return (w[0] | w[1] | w[2] | w[3]) == 0;
}

_Static_assert(CHUNK_WORDS == 4, "chunk_is_free reads four words");

static void segment_free(tqi_segments_t *segs, tqi_segment_t *seg)
{
    tqi_env_free(segs->env, seg->words, words_cnt(seg) * sizeof(uint64_t));
    tqi_env_free(segs->env, seg->touched, touched_words(seg) * sizeof(uint64_t));
    tqi_env_free(segs->env, seg->unclaimed, words_cnt(seg) * sizeof(uint64_t));
    tqi_env_free(segs->env, seg, sizeof *seg);
}

static tq_status_t segment_open(tqi_segments_t *segs, uint64_t bytes, tqi_segment_t **out,
                                tqi_err_t *err)
{
    tqi_segment_t *seg = tqi_env_zalloc(segs->env, sizeof *seg);
    void *base = NULL;
    tq_status_t rc = TQ_E_NO_MEMORY;

    if (!seg)
        return tqi_fail(err, rc, "no memory for a segment's bookkeeping");
    seg->id = segs->id_next;
    seg->granules_cnt = bytes / TQI_GRANULE_BYTES;
    seg->run_max = seg->granules_cnt;
    seg->words = tqi_env_calloc(segs->env, words_cnt(seg), sizeof(uint64_t));
    seg->touched = tqi_env_calloc(segs->env, touched_words(seg), sizeof(uint64_t));
    if (!seg->words || !seg->touched || tqi_vec_reserve(&segs->vec, 1) != TQ_OK)
        rc = tqi_fail(err, rc, "no memory for a segment's bookkeeping");
    else
        rc = segs->ops.open(segs->ops.ctx, seg->id, bytes, &base, err);
    if (rc != TQ_OK) {
        segment_free(segs, seg);
        return rc;
    }
    seg->base = base;
    segs->id_next++;
    segs->stat.mapped_bytes += bytes;
    segs->stat.segments_cnt++;
    segs->vec.at[segs->vec.len++] = seg;
    *out = seg;
    return TQ_OK;
}

/* The segment is empty, so its idle chunks are those touched. */
static void segment_close(tqi_segments_t *segs, tqi_segment_t *seg)
{
    size_t i = 0;

    tqi_assert(seg->used_cnt == 0);
    segs->stat.idle_bytes -= tqi_words_count(seg->touched, touched_words(seg)) * TQI_CHUNK_BYTES;
    segs->stat.mapped_bytes -= segment_bytes(seg);
    segs->stat.segments_cnt--;
    segs->ops.close(segs->ops.ctx, seg->id);
    while (segs->vec.at[i] != seg)
        i++;
    for (segs->vec.len--; i < segs->vec.len; i++)
        segs->vec.at[i] = segs->vec.at[i + 1];
    segment_free(segs, seg);
}

/* Gives the idle chunks among [lo, hi) back to the system, in as few calls as they lie together. */
static void segment_punch(tqi_segments_t *segs, tqi_segment_t *seg, size_t lo, size_t hi)
{
    while (lo < hi) {
        size_t end = lo;

        while (end < hi && tqi_words_test(seg->touched, end) && chunk_is_free(seg, end))
            end++;
        if (end > lo) {
            segs->ops.punch(segs->ops.ctx, seg->id, (uint64_t)lo * TQI_CHUNK_BYTES,
                            (uint64_t)(end - lo) * TQI_CHUNK_BYTES);
            tqi_words_clear_range(seg->touched, lo, end);
            segs->stat.idle_bytes -= (uint64_t)(end - lo) * TQI_CHUNK_BYTES;
        }
        lo = end + 1;
    }
}

/* First fit. On success *at is the run's first granule; else run_max becomes exact. */
static bool segment_find(tqi_segment_t *seg, size_t need, size_t *at)
{
    size_t end = seg->granules_cnt;
    size_t lo = next_clear(seg->words, seg->free_lo, end);
    size_t run_max = 0;

    seg->free_lo = lo;
    while (lo < end) {
        size_t hi = next_set(seg->words, lo, tqi_size_min(end, lo + need));

        if (hi - lo == need) {
            *at = lo;
            return true;
        }
        run_max = tqi_size_max(run_max, hi - lo);
        lo = next_clear(seg->words, hi, end);
    }
    seg->run_max = run_max;
    return false;
}

static void segment_take(tqi_segments_t *segs, tqi_segment_t *seg, size_t lo, size_t cnt)
{
    size_t hi = lo + cnt;

    for (size_t c = lo / CHUNK_GRANULES; c * CHUNK_GRANULES < hi; c++) {
        if (!tqi_words_test(seg->touched, c))
            tqi_words_set(seg->touched, c);
        else if (chunk_is_free(seg, c))
            segs->stat.idle_bytes -= TQI_CHUNK_BYTES;
    }
    tqi_words_set_range(seg->words, lo, hi);
    seg->used_cnt += cnt;
    segs->stat.used_bytes += (uint64_t)cnt * TQI_GRANULE_BYTES;
    if (seg->free_lo == lo)
        seg->free_lo = hi;
}

/* ---- public ----------------------------------------------------------------------------------- */

tqi_segments_t *tqi_segments_new(const tqi_env_t *env, const tqi_segment_ops_t *ops,
                                 uint64_t segment_bytes_wanted, uint64_t idle_bytes_max,
                                 uint32_t id_first)
{
    tqi_segments_t *segs = tqi_env_zalloc(env, sizeof *segs);
    size_t bytes;

    if (!segs)
        return NULL;
    if (!tqi_size_align(segment_bytes_wanted, TQI_CHUNK_BYTES, &bytes) || bytes == 0)
        bytes = TQI_CHUNK_BYTES;
    segs->env = env;
    segs->ops = *ops;
    segs->segment_bytes = bytes;
    segs->idle_bytes_max = idle_bytes_max;
    segs->id_next = id_first;
    tqi_vec_init(&segs->vec, env);
    return segs;
}

void tqi_segments_free(tqi_segments_t *segs)
{
    if (!segs)
        return;
    for (size_t i = 0; i < segs->vec.len; i++) {
        segs->ops.close(segs->ops.ctx, segs->vec.at[i]->id);
        segment_free(segs, segs->vec.at[i]);
    }
    tqi_vec_fini(&segs->vec);
    tqi_env_free(segs->env, segs, sizeof *segs);
}

uint64_t tqi_segments_cost(uint64_t bytes)
{
    return bytes > UINT64_MAX - TQI_GRANULE_BYTES
               ? UINT64_MAX
               : (bytes + TQI_GRANULE_BYTES - 1) / TQI_GRANULE_BYTES * TQI_GRANULE_BYTES;
}

tq_status_t tqi_segments_take(tqi_segments_t *segs, uint64_t bytes, tqi_span_t *out, tqi_err_t *err)
{
    uint64_t cost = tqi_segments_cost(bytes);
    size_t need = cost / TQI_GRANULE_BYTES;
    size_t at = 0;
    tqi_segment_t *seg = NULL;

    tqi_assert(bytes > 0);
    if (cost > INT64_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "%" PRIu64 " bytes in one extent", bytes);
    /* Large segments are for large extents only: a small one in it would keep the next large one
     * from using it again. */
    for (size_t i = 0; i < segs->vec.len; i++) {
        tqi_segment_t *s = segs->vec.at[i];
        bool is_dedicated = segment_bytes(s) > segs->segment_bytes;

        if (s->run_max >= need && is_dedicated == (cost > segs->segment_bytes) &&
            segment_find(s, need, &at)) {
            seg = s;
            break;
        }
    }
    if (!seg) {
        uint64_t chunks = (cost + TQI_CHUNK_BYTES - 1) / TQI_CHUNK_BYTES;
        tq_status_t rc = segment_open(
            segs, tqi_u64_max(segs->segment_bytes, chunks * TQI_CHUNK_BYTES), &seg, err);

        if (rc != TQ_OK)
            return rc;
        at = 0;
    }
    segment_take(segs, seg, at, need);
    *out = (tqi_span_t){seg, (uint64_t)at * TQI_GRANULE_BYTES, cost};
    return TQ_OK;
}

void tqi_segments_give(tqi_segments_t *segs, tqi_span_t span)
{
    tqi_segment_t *seg = span.segment;
    size_t lo = span.offset / TQI_GRANULE_BYTES;
    size_t cnt = span.bytes / TQI_GRANULE_BYTES;
    size_t hi = lo + cnt;
    size_t chunk_lo = lo / CHUNK_GRANULES;
    size_t chunk_hi = (hi + CHUNK_GRANULES - 1) / CHUNK_GRANULES;

    if (cnt == 0)
        return;
    tqi_assert(hi <= seg->granules_cnt && all_set(seg->words, lo, hi));
    tqi_words_clear_range(seg->words, lo, hi);
    seg->used_cnt -= cnt;
    segs->stat.used_bytes -= span.bytes;
    seg->free_lo = tqi_size_min(seg->free_lo, lo);
    /* At worst a longest run on either side joined with this one. */
    seg->run_max = tqi_size_min(seg->granules_cnt - seg->used_cnt, 2 * seg->run_max + cnt);
    for (size_t c = chunk_lo; c < chunk_hi; c++)
        if (chunk_is_free(seg, c))
            segs->stat.idle_bytes += TQI_CHUNK_BYTES;
    if (segs->stat.idle_bytes <= segs->idle_bytes_max)
        return;
    if (seg->used_cnt == 0)
        segment_close(segs, seg);
    else
        segment_punch(segs, seg, chunk_lo, chunk_hi);
}

uint32_t tqi_segments_id_next(const tqi_segments_t *segs)
{
    return segs->id_next;
}

uint32_t tqi_segment_id(const tqi_segment_t *segment)
{
    return segment->id;
}

void *tqi_span_data(tqi_span_t span)
{
    return span.segment->base + span.offset;
}

void tqi_segments_stat(const tqi_segments_t *segs, tqi_segments_stat_t *out)
{
    *out = segs->stat;
}

/* ---- checks ----------------------------------------------------------------------------------- */

tq_status_t tqi_segments_check_begin(tqi_segments_t *segs, tqi_err_t *err)
{
    for (size_t i = 0; i < segs->vec.len; i++) {
        tqi_segment_t *seg = segs->vec.at[i];

        if (!seg->unclaimed)
            seg->unclaimed = tqi_env_alloc(segs->env, words_cnt(seg) * sizeof(uint64_t));
        if (!seg->unclaimed)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to check the segments");
        for (size_t w = 0; w < words_cnt(seg); w++)
            seg->unclaimed[w] = seg->words[w];
    }
    return TQ_OK;
}

tq_status_t tqi_segments_check_span(tqi_segments_t *segs, tqi_span_t span, tqi_err_t *err)
{
    size_t lo = span.offset / TQI_GRANULE_BYTES;
    size_t hi = lo + span.bytes / TQI_GRANULE_BYTES;
    size_t i = 0;

    while (i < segs->vec.len && segs->vec.at[i] != span.segment)
        i++;
    if (i == segs->vec.len)
        return tqi_fail(err, TQ_E_BUG, "an extent lies in a segment that is not open");
    if (hi > span.segment->granules_cnt || !all_set(span.segment->unclaimed, lo, hi))
        return tqi_fail(err, TQ_E_BUG,
                        "segment %u: [%" PRIu64 ", +%" PRIu64 ") is not taken, or taken twice",
                        span.segment->id, span.offset, span.bytes);
    tqi_words_clear_range(span.segment->unclaimed, lo, hi);
    return TQ_OK;
}

static tq_status_t segment_check(tqi_segment_t *seg, uint64_t *idle_bytes, tqi_err_t *err)
{
    size_t end = seg->granules_cnt;
    size_t lost = tqi_words_count(seg->unclaimed, words_cnt(seg));
    size_t lo = next_clear(seg->words, 0, end);
    size_t run_max = 0;

    if (lost > 0)
        return tqi_fail(err, TQ_E_BUG, "segment %u: %zu granules are taken by nobody", seg->id,
                        lost);
    if (tqi_words_count(seg->words, words_cnt(seg)) != seg->used_cnt)
        return tqi_fail(err, TQ_E_BUG, "segment %u: its count of granules is wrong", seg->id);
    if (lo < seg->free_lo)
        return tqi_fail(err, TQ_E_BUG, "segment %u: free space below its hint", seg->id);
    while (lo < end) {
        size_t hi = next_set(seg->words, lo, end);

        run_max = tqi_size_max(run_max, hi - lo);
        lo = next_clear(seg->words, hi, end);
    }
    if (run_max > seg->run_max)
        return tqi_fail(err, TQ_E_BUG, "segment %u: a free run above its hint", seg->id);
    for (size_t c = 0; c < chunks_cnt(seg); c++) {
        if (!chunk_is_free(seg, c) && !tqi_words_test(seg->touched, c))
            return tqi_fail(err, TQ_E_BUG, "segment %u: chunk %zu in use, not touched", seg->id, c);
        if (chunk_is_free(seg, c) && tqi_words_test(seg->touched, c))
            *idle_bytes += TQI_CHUNK_BYTES;
    }
    return TQ_OK;
}

tq_status_t tqi_segments_check_end(tqi_segments_t *segs, tqi_err_t *err)
{
    uint64_t used_bytes = 0;
    uint64_t idle_bytes = 0;
    tq_status_t rc = TQ_OK;

    for (size_t i = 0; i < segs->vec.len; i++) {
        tqi_segment_t *seg = segs->vec.at[i];

        if (rc == TQ_OK)
            rc = segment_check(seg, &idle_bytes, err);
        used_bytes += (uint64_t)seg->used_cnt * TQI_GRANULE_BYTES;
        tqi_env_free(segs->env, seg->unclaimed, words_cnt(seg) * sizeof(uint64_t));
        seg->unclaimed = NULL;
    }
    if (rc == TQ_OK && (used_bytes != segs->stat.used_bytes || idle_bytes != segs->stat.idle_bytes))
        rc = tqi_fail(err, TQ_E_BUG,
                      "segments: used %" PRIu64 " idle %" PRIu64 ", counted as %" PRIu64
                      " and %" PRIu64,
                      used_bytes, idle_bytes, segs->stat.used_bytes, segs->stat.idle_bytes);
    return rc;
}
