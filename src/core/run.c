/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run is one allocation: the struct and, behind it, the arrays that its layout needs.
 *
 * Giving rows back works on ranges. The granules inside a range go; the one at each end may also
 * hold bytes of rows outside, and stays while one of those is held. Rows of no bytes are never
 * held, so they keep no granule.
 */
#include "core/run.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/bitset.h"
#include "base/size.h"

static size_t bit_words(uint32_t rows_cnt)
{
    return ((size_t)rows_cnt + 63) / TQI_WORD_BITS;
}

/* Hands out the next part of the allocation behind the struct; at counts up. */
static void *carve(uint8_t *base, size_t *at, size_t bytes)
{
    void *part = base ? base + *at : NULL;

    *at += (bytes + 7) & ~(size_t)7;
    return part;
}

/* Lays the arrays out; with base NULL only counts. */
static size_t run_lay_out(tqi_run_t *run, uint8_t *base, const tqi_coldesc_t *col,
                          uint32_t blob_len)
{
    size_t rows = col->rows_cnt;
    size_t at = sizeof(tqi_run_t);
    tqi_run_t none;

    if (!run)
        run = &none;
    run->kept = carve(base, &at, bit_words(col->rows_cnt) * 8);
    run->held = carve(base, &at, bit_words(col->rows_cnt) * 8);
    run->offsets = col->layout == TQ_LAYOUT_UNIFORM ? NULL : carve(base, &at, (rows + 1) * 8);
    run->pins = carve(base, &at, rows * 4);
    run->desc_at = col->layout == TQ_LAYOUT_EACH ? carve(base, &at, rows * 4) : NULL;
    run->ragged = col->layout == TQ_LAYOUT_RAGGED ? carve(base, &at, sizeof(tq_desc_t)) : NULL;
    run->blob.data = carve(base, &at, blob_len);
    return at;
}

tqi_run_t *tqi_run_new(const tqi_env_t *env, const tqi_coldesc_t *col, tqi_bytes_t blob,
                       tqi_span_t span)
{
    size_t bytes = run_lay_out(NULL, NULL, col, blob.len);
    tqi_run_t *run = tqi_env_zalloc(env, bytes);

    if (!run)
        return NULL;
    run_lay_out(run, (uint8_t *)run, col, blob.len);
    run->alloc_bytes = bytes;
    run->rows_cnt = run->live_cnt = col->rows_cnt;
    run->span = span;
    run->bytes = col->frame_bytes;
    run->blob.len = blob.len;
    memcpy((void *)run->blob.data, blob.data, blob.len);
    tqi_words_set_range(run->kept, 0, run->rows_cnt);
    if (col->layout == TQ_LAYOUT_UNIFORM) {
        run->row_bytes = col->desc.len;
        if (run->row_bytes > 0)
            tqi_words_set_range(run->held, 0, run->rows_cnt);
        return run;
    }
    if (run->ragged) {
        *run->ragged = col->desc;
        run->unit_bytes = col->unit_bytes;
    }
    uint64_t *offsets = (uint64_t *)(uintptr_t)run->offsets;
    uint32_t *desc_at = (uint32_t *)(uintptr_t)run->desc_at;
    size_t each_base =
        col->each.data ? (const uint8_t *)col->each.data - (const uint8_t *)blob.data : 0;
    tqi_coldesc_iter_t it;

    tqi_coldesc_iter(&it, col);
    for (uint32_t r = 0; r < run->rows_cnt; r++) {
        tq_desc_t desc;

        if (desc_at)
            desc_at[r] = (uint32_t)each_base + it.each_at;
        tqi_coldesc_next(&it, &desc, &offsets[r]);
        if (desc.len > 0)
            tqi_words_set(run->held, r);
    }
    offsets[run->rows_cnt] = it.offset;
    return run;
}

void tqi_run_free(const tqi_env_t *env, tqi_run_t *run)
{
    tqi_assert(run->live_cnt == 0);
    tqi_env_free(env, run, run->alloc_bytes);
}

void tqi_run_desc(const tqi_run_t *run, uint32_t row, tq_desc_t *desc)
{
    if (run->desc_at) {
        size_t used = tqi_desc_decode((const uint8_t *)run->blob.data + run->desc_at[row],
                                      run->blob.len - run->desc_at[row], desc);

        tqi_assert(used > 0); /* it was decoded when it came */
    } else if (run->ragged) {
        *desc = *run->ragged;
        desc->len = tqi_run_bytes(run, row, 1);
        /* The lengths of shape[0] are the last rows_cnt words of the blob. */
        desc->shape[0] = tqi_load_le64((const uint8_t *)run->blob.data + run->blob.len -
                                       (size_t)(run->rows_cnt - row) * 8);
    } else {
        tqi_coldesc_t col;
        tq_status_t rc = tqi_coldesc_decode(run->blob, run->rows_cnt, &col, NULL);

        tqi_assert(rc == TQ_OK);
        *desc = col.desc;
    }
}

/* ---- bytes ------------------------------------------------------------------------------------ */

/* Whether a held row before `row` reaches beyond byte `limit`. Rows are in the order of their bytes,
 * so the nearest held one decides, and the search ends where rows end before the limit. */
static bool held_before(const tqi_run_t *run, uint32_t row, uint64_t limit)
{
    while (row > 0 && tqi_run_offset(run, row) > limit) {
        uint32_t base = (row - 1) / TQI_WORD_BITS * TQI_WORD_BITS;
        uint64_t word = run->held[base / TQI_WORD_BITS] & tqi_word_mask(0, row - base);

        if (word)
            return tqi_run_offset(run, base + 64 - (uint32_t)__builtin_clzll(word)) > limit;
        row = base;
    }
    return false;
}

/* Whether a held row at or after `row` begins before byte `limit`. */
static bool held_after(const tqi_run_t *run, uint32_t row, uint64_t limit)
{
    while (row < run->rows_cnt && tqi_run_offset(run, row) < limit) {
        uint32_t base = row / TQI_WORD_BITS * TQI_WORD_BITS;
        uint64_t word = run->held[base / TQI_WORD_BITS] & tqi_word_mask(row - base, TQI_WORD_BITS);

        if (word)
            return tqi_run_offset(run, base + tqi_word_lowest(word)) < limit;
        row = base + TQI_WORD_BITS;
    }
    return false;
}

/* Rows [lo, hi) stop being live. */
static void run_release(tqi_run_t *run, tqi_segments_t *segs, uint32_t lo, uint32_t hi)
{
    uint64_t from = tqi_run_offset(run, lo);
    uint64_t to = tqi_run_offset(run, hi);

    run->live_cnt -= hi - lo;
    tqi_words_clear_range(run->held, lo, hi);
    if (from == to)
        return;
    uint64_t granule_lo = from / TQI_GRANULE_BYTES;
    uint64_t granule_hi = (to + TQI_GRANULE_BYTES - 1) / TQI_GRANULE_BYTES;

    if (from % TQI_GRANULE_BYTES && held_before(run, lo, granule_lo * TQI_GRANULE_BYTES))
        granule_lo++;
    if (to % TQI_GRANULE_BYTES && held_after(run, hi, granule_hi * TQI_GRANULE_BYTES))
        granule_hi--;
    if (granule_lo < granule_hi)
        tqi_segments_give(segs, (tqi_span_t){run->span.segment,
                                             run->span.offset + granule_lo * TQI_GRANULE_BYTES,
                                             (granule_hi - granule_lo) * TQI_GRANULE_BYTES});
}

uint64_t tqi_run_drop(tqi_run_t *run, tqi_segments_t *segs, uint32_t lo, uint32_t cnt)
{
    uint32_t end = lo + cnt;
    uint64_t pinned_bytes = 0;

    tqi_words_clear_range(run->kept, lo, end);
    while (lo < end) {
        uint32_t hi = lo;

        while (hi < end && run->pins[hi] == 0)
            hi++;
        if (hi > lo)
            run_release(run, segs, lo, hi);
        for (lo = hi; lo < end && run->pins[lo] > 0; lo++)
            pinned_bytes += tqi_run_bytes(run, lo, 1);
    }
    return pinned_bytes;
}

void tqi_run_pin(tqi_run_t *run, uint32_t lo, uint32_t cnt)
{
    for (uint32_t r = lo; r < lo + cnt; r++)
        run->pins[r]++;
}

uint64_t tqi_run_unpin(tqi_run_t *run, tqi_segments_t *segs, uint32_t lo, uint32_t cnt)
{
    uint32_t end = lo + cnt;
    uint64_t given_bytes = 0;

    for (uint32_t r = lo; r < end; r++) {
        tqi_assert(run->pins[r] > 0);
        run->pins[r]--;
    }
    while (lo < end) {
        uint32_t hi = lo;

        while (hi < end && run->pins[hi] == 0 && !tqi_words_test(run->kept, hi))
            hi++;
        if (hi > lo) {
            given_bytes += tqi_run_bytes(run, lo, hi - lo);
            run_release(run, segs, lo, hi);
        }
        lo = hi + 1;
    }
    return given_bytes;
}

void tqi_run_give_all(tqi_run_t *run, tqi_segments_t *segs)
{
    if (run->span.segment)
        tqi_segments_give(segs, run->span);
    run->span = (tqi_span_t){0};
    run->live_cnt = 0;
}

tq_status_t tqi_run_check(const tqi_run_t *run, tqi_segments_t *segs, tqi_err_t *err)
{
    uint64_t from = 0; /* granules [from, to) are held and not named yet */
    uint64_t to = 0;
    uint32_t live_cnt = 0;

    for (uint32_t r = 0; r <= run->rows_cnt; r++) {
        bool is_end = r == run->rows_cnt;
        uint64_t lo = to + 1;
        uint64_t hi = 0;

        if (!is_end) {
            bool is_live = tqi_words_test(run->kept, r) || run->pins[r] > 0;
            bool has_bytes = tqi_run_bytes(run, r, 1) > 0;

            live_cnt += is_live;
            if (tqi_words_test(run->held, r) != (is_live && has_bytes))
                return tqi_fail(err, TQ_E_BUG,
                                "run %u: row %u is live and not held, or the reverse", run->slot,
                                r);
            if (!tqi_words_test(run->held, r))
                continue;
            lo = tqi_run_offset(run, r) / TQI_GRANULE_BYTES;
            hi = (tqi_run_offset(run, r + 1) + TQI_GRANULE_BYTES - 1) / TQI_GRANULE_BYTES;
        }
        if (lo > to) {
            tq_status_t rc = from == to
                                 ? TQ_OK
                                 : tqi_segments_check_span(
                                       segs,
                                       (tqi_span_t){run->span.segment,
                                                    run->span.offset + from * TQI_GRANULE_BYTES,
                                                    (to - from) * TQI_GRANULE_BYTES},
                                       err);
            if (rc != TQ_OK)
                return rc;
            from = lo;
        }
        to = hi;
    }
    if (live_cnt != run->live_cnt)
        return tqi_fail(err, TQ_E_BUG, "run %u: %u live rows, counted as %u", run->slot, live_cnt,
                        run->live_cnt);
    return TQ_OK;
}
