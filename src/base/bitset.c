/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory of a sparse bitset is an array of leaf pointers for consecutive blocks, with spare
 * room at both ends: dropping leading blocks moves dir_head, and growing slides the entries back to
 * the start before it takes more memory, so a set that moves through the positions as a window
 * keeps the directory of the window's size.
 *
 * The summary is four such bitsets, each over the words of the one below. A level's bit is changed
 * only when a word below it becomes zero or stops being so, which is why a bit that joins others in
 * its word costs one word.
 */
#include "base/bitset.h"

#include "base/assert.h"
#include "base/size.h"

#include <string.h>

#define LEAF_BYTES (TQI_LEAF_WORDS * sizeof(uint64_t))
#define DIR_CAP_MIN 4u

/* ---- words ---- */

void tqi_words_set_range(uint64_t *words, size_t lo, size_t hi)
{
    while (lo < hi) {
        size_t word = lo / TQI_WORD_BITS;
        size_t end = tqi_size_min(hi, (word + 1) * TQI_WORD_BITS);

        words[word] |=
            tqi_word_mask((unsigned)(lo % TQI_WORD_BITS), (unsigned)(end - word * TQI_WORD_BITS));
        lo = end;
    }
}

void tqi_words_clear_range(uint64_t *words, size_t lo, size_t hi)
{
    while (lo < hi) {
        size_t word = lo / TQI_WORD_BITS;
        size_t end = tqi_size_min(hi, (word + 1) * TQI_WORD_BITS);

        words[word] &=
            ~tqi_word_mask((unsigned)(lo % TQI_WORD_BITS), (unsigned)(end - word * TQI_WORD_BITS));
        lo = end;
    }
}

size_t tqi_words_count(const uint64_t *words, size_t word_cnt)
{
    size_t count = 0;

    for (size_t i = 0; i < word_cnt; i++)
        count += tqi_word_count(words[i]);
    return count;
}

size_t tqi_words_next(const uint64_t *words, size_t word_cnt, size_t from)
{
    size_t word = from / TQI_WORD_BITS;

    if (word >= word_cnt)
        return word_cnt * TQI_WORD_BITS;
    uint64_t rest = words[word] & (UINT64_MAX << (from % TQI_WORD_BITS));
    while (rest == 0) {
        if (++word == word_cnt)
            return word_cnt * TQI_WORD_BITS;
        rest = words[word];
    }
    return word * TQI_WORD_BITS + tqi_word_lowest(rest);
}

void tqi_leaf_copy(uint64_t *dst, const uint64_t *src)
{
    if (src == NULL)
        memset(dst, 0, LEAF_BYTES);
    else
        memcpy(dst, src, LEAF_BYTES);
}

void tqi_leaf_and(uint64_t *dst, const uint64_t *src)
{
    if (src == NULL) {
        memset(dst, 0, LEAF_BYTES);
        return;
    }
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++)
        dst[i] &= src[i];
}

void tqi_leaf_or(uint64_t *dst, const uint64_t *src)
{
    if (src == NULL)
        return;
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++)
        dst[i] |= src[i];
}

void tqi_leaf_andnot(uint64_t *dst, const uint64_t *src)
{
    if (src == NULL)
        return;
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++)
        dst[i] &= ~src[i];
}

bool tqi_leaf_any(const uint64_t *leaf)
{
    uint64_t any = 0;

    if (leaf == NULL)
        return false;
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++)
        any |= leaf[i];
    return any != 0;
}

unsigned tqi_leaf_count(const uint64_t *leaf)
{
    return leaf == NULL ? 0 : (unsigned)tqi_words_count(leaf, TQI_LEAF_WORDS);
}

/* ---- sparse bitset ---- */

void tqi_bits_init(tqi_bits_t *bits, const tqi_env_t *env)
{
    *bits = (tqi_bits_t){.env = env};
}

void tqi_bits_fini(tqi_bits_t *bits)
{
    for (size_t i = 0; i < bits->dir_len; i++)
        tqi_env_free(bits->env, bits->dir[bits->dir_head + i], LEAF_BYTES);
    tqi_env_free(bits->env, bits->dir, bits->dir_cap * sizeof *bits->dir);
    *bits = (tqi_bits_t){.env = bits->env};
}

static uint64_t *leaf_find(const tqi_bits_t *bits, uint64_t block)
{
    /* A block before first_block wraps to a number that is no directory's length. */
    uint64_t entry = block - bits->first_block;

    return entry < bits->dir_len ? bits->dir[bits->dir_head + entry] : NULL;
}

/* Room for `need` entries from dir_head on. Slides only where that frees half of the directory, so
 * that a moving window doesn't slide at every step. */
static tq_status_t dir_make_room(tqi_bits_t *bits, uint64_t need)
{
    if (need <= bits->dir_cap - bits->dir_head)
        return TQ_OK;
    if (need > bits->dir_cap / 2) {
        size_t cap = tqi_size_max(bits->dir_cap, DIR_CAP_MIN);

        while (cap / 2 < need)
            if (!tqi_size_mul(cap, 2, &cap))
                return TQ_E_NO_MEMORY;
        if (cap > SIZE_MAX / sizeof *bits->dir)
            return TQ_E_NO_MEMORY;
        if (cap > bits->dir_cap) {
            uint64_t **dir = tqi_env_realloc(bits->env, bits->dir, bits->dir_cap * sizeof *dir,
                                             cap * sizeof *dir);
            if (dir == NULL)
                return TQ_E_NO_MEMORY;
            bits->dir = dir;
            bits->dir_cap = cap;
        }
    }
    memmove(bits->dir, bits->dir + bits->dir_head, bits->dir_len * sizeof *bits->dir);
    bits->dir_head = 0;
    return TQ_OK;
}

/* Makes the directory reach `block`, on whichever side it lies. */
static tq_status_t dir_reach(tqi_bits_t *bits, uint64_t block)
{
    tqi_assert(block >= bits->dropped_before);
    if (bits->dir_len == 0)
        bits->first_block = block;
    if (block >= bits->first_block) {
        uint64_t need = block - bits->first_block + 1;

        if (need <= bits->dir_len)
            return TQ_OK;
        if (dir_make_room(bits, need) != TQ_OK)
            return TQ_E_NO_MEMORY;
        memset(bits->dir + bits->dir_head + bits->dir_len, 0,
               (need - bits->dir_len) * sizeof *bits->dir);
        bits->dir_len = need;
        return TQ_OK;
    }
    uint64_t before = bits->first_block - block;
    if (before > bits->dir_head) {
        if (dir_make_room(bits, bits->dir_len + before) != TQ_OK)
            return TQ_E_NO_MEMORY;
        if (before > bits->dir_head) {
            memmove(bits->dir + before, bits->dir + bits->dir_head,
                    bits->dir_len * sizeof *bits->dir);
            bits->dir_head = before;
        }
    }
    bits->dir_head -= before;
    memset(bits->dir + bits->dir_head, 0, before * sizeof *bits->dir);
    bits->dir_len += before;
    bits->first_block = block;
    return TQ_OK;
}

static tq_status_t leaf_make(tqi_bits_t *bits, uint64_t block, uint64_t **out)
{
    if (dir_reach(bits, block) != TQ_OK)
        return TQ_E_NO_MEMORY;
    uint64_t **entry = &bits->dir[bits->dir_head + (block - bits->first_block)];
    if (*entry == NULL) {
        *entry = tqi_env_zalloc(bits->env, LEAF_BYTES);
        if (*entry == NULL)
            return TQ_E_NO_MEMORY;
        bits->leaf_cnt++;
    }
    *out = *entry;
    return TQ_OK;
}

tq_status_t tqi_bits_reserve(tqi_bits_t *bits, uint64_t lo, uint64_t hi)
{
    uint64_t *leaf;

    if (lo >= hi)
        return TQ_OK;
    for (uint64_t block = lo / TQI_LEAF_BITS; block <= (hi - 1) / TQI_LEAF_BITS; block++)
        if (leaf_make(bits, block, &leaf) != TQ_OK)
            return TQ_E_NO_MEMORY;
    return TQ_OK;
}

tq_status_t tqi_bits_set(tqi_bits_t *bits, uint64_t pos)
{
    uint64_t *leaf = leaf_find(bits, pos / TQI_LEAF_BITS);

    tqi_assert(pos != TQI_BITS_NONE);
    if (leaf == NULL && leaf_make(bits, pos / TQI_LEAF_BITS, &leaf) != TQ_OK)
        return TQ_E_NO_MEMORY;
    bits->count += !tqi_words_test(leaf, pos % TQI_LEAF_BITS);
    tqi_words_set(leaf, pos % TQI_LEAF_BITS);
    return TQ_OK;
}

/* The part of [lo, hi) in the block, as offsets in it. */
static void block_clip(uint64_t block, uint64_t lo, uint64_t hi, size_t *lo_bit, size_t *hi_bit)
{
    uint64_t start = block * TQI_LEAF_BITS;

    *lo_bit = lo > start ? (size_t)(lo - start) : 0;
    *hi_bit = (size_t)tqi_u64_min(hi - start, TQI_LEAF_BITS);
}

tq_status_t tqi_bits_set_range(tqi_bits_t *bits, uint64_t lo, uint64_t hi)
{
    if (tqi_bits_reserve(bits, lo, hi) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint64_t block = lo / TQI_LEAF_BITS; lo < hi && block <= (hi - 1) / TQI_LEAF_BITS;
         block++) {
        uint64_t *leaf = leaf_find(bits, block);
        size_t lo_bit, hi_bit;

        block_clip(block, lo, hi, &lo_bit, &hi_bit);
        bits->count -= tqi_leaf_count(leaf);
        tqi_words_set_range(leaf, lo_bit, hi_bit);
        bits->count += tqi_leaf_count(leaf);
    }
    return TQ_OK;
}

tq_status_t tqi_bits_or_leaf(tqi_bits_t *bits, uint64_t block, const uint64_t *words)
{
    uint64_t *leaf = leaf_find(bits, block);

    if (leaf == NULL) {
        if (!tqi_leaf_any(words))
            return TQ_OK;
        if (leaf_make(bits, block, &leaf) != TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++) {
        bits->count += tqi_word_count(words[i] & ~leaf[i]);
        leaf[i] |= words[i];
    }
    return TQ_OK;
}

bool tqi_bits_clear(tqi_bits_t *bits, uint64_t pos)
{
    uint64_t *leaf = leaf_find(bits, pos / TQI_LEAF_BITS);

    if (leaf == NULL || !tqi_words_test(leaf, pos % TQI_LEAF_BITS))
        return false;
    tqi_words_clear(leaf, pos % TQI_LEAF_BITS);
    bits->count--;
    return true;
}

/* The blocks with leaves that meet [lo, hi): the range of a loop over absent ones too. */
static void span_clip(const tqi_bits_t *bits, uint64_t lo, uint64_t hi, uint64_t *lo_block,
                      uint64_t *hi_block)
{
    *lo_block = tqi_u64_max(lo / TQI_LEAF_BITS, bits->first_block);
    *hi_block =
        lo >= hi ? 0 : tqi_u64_min((hi - 1) / TQI_LEAF_BITS + 1, bits->first_block + bits->dir_len);
}

void tqi_bits_clear_range(tqi_bits_t *bits, uint64_t lo, uint64_t hi)
{
    uint64_t lo_block, hi_block;

    span_clip(bits, lo, hi, &lo_block, &hi_block);
    for (uint64_t block = lo_block; block < hi_block; block++) {
        uint64_t mask[TQI_LEAF_WORDS] = {0};
        size_t lo_bit, hi_bit;

        block_clip(block, lo, hi, &lo_bit, &hi_bit);
        tqi_words_set_range(mask, lo_bit, hi_bit);
        tqi_bits_andnot_leaf(bits, block, mask);
    }
}

void tqi_bits_andnot_leaf(tqi_bits_t *bits, uint64_t block, const uint64_t *words)
{
    uint64_t *leaf = leaf_find(bits, block);

    if (leaf == NULL)
        return;
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++) {
        bits->count -= tqi_word_count(words[i] & leaf[i]);
        leaf[i] &= ~words[i];
    }
}

bool tqi_bits_test(const tqi_bits_t *bits, uint64_t pos)
{
    const uint64_t *leaf = leaf_find(bits, pos / TQI_LEAF_BITS);

    return leaf != NULL && tqi_words_test(leaf, pos % TQI_LEAF_BITS);
}

uint64_t tqi_bits_count_range(const tqi_bits_t *bits, uint64_t lo, uint64_t hi)
{
    uint64_t lo_block, hi_block, count = 0;

    span_clip(bits, lo, hi, &lo_block, &hi_block);
    for (uint64_t block = lo_block; block < hi_block; block++) {
        uint64_t mask[TQI_LEAF_WORDS] = {0};
        size_t lo_bit, hi_bit;

        block_clip(block, lo, hi, &lo_bit, &hi_bit);
        tqi_words_set_range(mask, lo_bit, hi_bit);
        tqi_leaf_and(mask, leaf_find(bits, block));
        count += tqi_leaf_count(mask);
    }
    return count;
}

const uint64_t *tqi_bits_leaf(const tqi_bits_t *bits, uint64_t block)
{
    return leaf_find(bits, block);
}

uint64_t tqi_bits_word(const tqi_bits_t *bits, uint64_t ordinal)
{
    const uint64_t *leaf = leaf_find(bits, ordinal / TQI_LEAF_WORDS);

    return leaf == NULL ? 0 : leaf[ordinal % TQI_LEAF_WORDS];
}

void tqi_bits_block_span(const tqi_bits_t *bits, uint64_t *lo, uint64_t *hi)
{
    *lo = bits->first_block;
    *hi = bits->first_block + bits->dir_len;
}

uint64_t tqi_bits_next(const tqi_bits_t *bits, uint64_t from)
{
    uint64_t lo_block, hi_block;

    span_clip(bits, from, TQI_BITS_NONE, &lo_block, &hi_block);
    for (uint64_t block = lo_block; block < hi_block; block++) {
        const uint64_t *leaf = leaf_find(bits, block);
        uint64_t start = block * TQI_LEAF_BITS;

        if (leaf == NULL)
            continue;
        size_t bit =
            tqi_words_next(leaf, TQI_LEAF_WORDS, from > start ? (size_t)(from - start) : 0);
        if (bit < TQI_LEAF_BITS)
            return start + bit;
    }
    return TQI_BITS_NONE;
}

uint64_t tqi_bits_next_clear(const tqi_bits_t *bits, uint64_t from)
{
    for (;;) {
        const uint64_t *leaf = leaf_find(bits, from / TQI_LEAF_BITS);

        if (leaf == NULL)
            return from;
        uint64_t clear =
            ~leaf[from % TQI_LEAF_BITS / TQI_WORD_BITS] & (UINT64_MAX << (from % TQI_WORD_BITS));
        uint64_t start = from - from % TQI_WORD_BITS;
        if (clear != 0)
            return start + tqi_word_lowest(clear);
        from = start + TQI_WORD_BITS;
    }
}

tq_status_t tqi_bits_and(tqi_bits_t *out, const tqi_bits_t *const *sets, size_t set_cnt,
                         uint64_t lo_block, uint64_t hi_block)
{
    tqi_assert(set_cnt > 0);
    lo_block = tqi_u64_max(lo_block, out->dropped_before);
    for (uint64_t block = lo_block; block < hi_block; block++) {
        uint64_t words[TQI_LEAF_WORDS];
        uint64_t *leaf = leaf_find(out, block);

        tqi_leaf_copy(words, leaf_find(sets[0], block));
        for (size_t i = 1; i < set_cnt; i++)
            tqi_leaf_and(words, leaf_find(sets[i], block));
        if (leaf == NULL) {
            if (!tqi_leaf_any(words))
                continue;
            if (leaf_make(out, block, &leaf) != TQ_OK)
                return TQ_E_NO_MEMORY;
        }
        out->count -= tqi_leaf_count(leaf);
        tqi_leaf_copy(leaf, words);
        out->count += tqi_leaf_count(leaf);
    }
    return TQ_OK;
}

void tqi_bits_drop_before(tqi_bits_t *bits, uint64_t block)
{
    if (block <= bits->dropped_before)
        return;
    bits->dropped_before = block;
    while (bits->dir_len > 0 && bits->first_block < block) {
        uint64_t *leaf = bits->dir[bits->dir_head];

        if (leaf != NULL) {
            bits->count -= tqi_leaf_count(leaf);
            bits->leaf_cnt--;
            tqi_env_free(bits->env, leaf, LEAF_BYTES);
        }
        bits->dir_head++;
        bits->dir_len--;
        bits->first_block++;
    }
    if (bits->dir_len == 0) {
        tqi_env_free(bits->env, bits->dir, bits->dir_cap * sizeof *bits->dir);
        bits->dir = NULL;
        bits->dir_cap = 0;
        bits->dir_head = 0;
    }
}

/* ---- summary ---- */

void tqi_summary_init(tqi_summary_t *set, const tqi_env_t *env)
{
    for (unsigned k = 0; k < TQI_SUMMARY_LEVELS; k++)
        tqi_bits_init(&set->level[k], env);
    set->words_touched = 0;
}

void tqi_summary_fini(tqi_summary_t *set)
{
    for (unsigned k = 0; k < TQI_SUMMARY_LEVELS; k++)
        tqi_bits_fini(&set->level[k]);
}

tq_status_t tqi_summary_reserve(tqi_summary_t *set, uint64_t lo, uint64_t hi)
{
    if (lo >= hi)
        return TQ_OK;
    for (unsigned k = 0; k < TQI_SUMMARY_LEVELS; k++) {
        if (tqi_bits_reserve(&set->level[k], lo, hi) != TQ_OK)
            return TQ_E_NO_MEMORY;
        lo /= TQI_WORD_BITS;
        hi = (hi - 1) / TQI_WORD_BITS + 1;
    }
    return TQ_OK;
}

/* The word that holds bit `pos` of `level` has just become non-zero; leaves are reserved. */
static void summary_raise(tqi_summary_t *set, unsigned level, uint64_t pos)
{
    for (unsigned k = level + 1; k < TQI_SUMMARY_LEVELS; k++) {
        pos /= TQI_WORD_BITS;
        bool was_zero = tqi_bits_word(&set->level[k], pos / TQI_WORD_BITS) == 0;
        tq_status_t status = tqi_bits_set(&set->level[k], pos);

        tqi_assert(status == TQ_OK);
        if (!was_zero)
            return;
    }
}

/* A bit of the word that holds `pos` of `level` was cleared: if that left it zero, tell above. */
static void summary_lower(tqi_summary_t *set, unsigned level, uint64_t pos)
{
    for (unsigned k = level + 1; k < TQI_SUMMARY_LEVELS; k++) {
        pos /= TQI_WORD_BITS;
        if (tqi_bits_word(&set->level[k - 1], pos) != 0)
            return;
        if (!tqi_bits_clear(&set->level[k], pos))
            return;
    }
}

tq_status_t tqi_summary_set(tqi_summary_t *set, uint64_t pos)
{
    if (tqi_bits_word(&set->level[0], pos / TQI_WORD_BITS) != 0)
        return tqi_bits_set(&set->level[0], pos);
    tqi_assert(pos != TQI_BITS_NONE);
    if (tqi_summary_reserve(set, pos, pos + 1) != TQ_OK)
        return TQ_E_NO_MEMORY;
    tq_status_t status = tqi_bits_set(&set->level[0], pos);
    tqi_assert(status == TQ_OK);
    summary_raise(set, 0, pos);
    return TQ_OK;
}

tq_status_t tqi_summary_or_leaf(tqi_summary_t *set, uint64_t block, const uint64_t *words)
{
    uint64_t before[TQI_LEAF_WORDS];
    uint64_t start = block * TQI_LEAF_BITS;

    tqi_assert(block < TQI_BITS_NONE / TQI_LEAF_BITS);
    if (!tqi_leaf_any(words))
        return TQ_OK;
    if (tqi_summary_reserve(set, start, start + TQI_LEAF_BITS) != TQ_OK)
        return TQ_E_NO_MEMORY;
    tqi_leaf_copy(before, tqi_bits_leaf(&set->level[0], block));
    tq_status_t status = tqi_bits_or_leaf(&set->level[0], block, words);
    tqi_assert(status == TQ_OK);
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++)
        if (before[i] == 0 && words[i] != 0)
            summary_raise(set, 0, start + i * TQI_WORD_BITS);
    return TQ_OK;
}

bool tqi_summary_clear(tqi_summary_t *set, uint64_t pos)
{
    if (!tqi_bits_clear(&set->level[0], pos))
        return false;
    summary_lower(set, 0, pos);
    return true;
}

void tqi_summary_andnot_leaf(tqi_summary_t *set, uint64_t block, const uint64_t *words)
{
    uint64_t before[TQI_LEAF_WORDS];

    tqi_leaf_copy(before, tqi_bits_leaf(&set->level[0], block));
    tqi_bits_andnot_leaf(&set->level[0], block, words);
    for (size_t i = 0; i < TQI_LEAF_WORDS; i++)
        if ((before[i] & words[i]) != 0)
            summary_lower(set, 0, block * TQI_LEAF_BITS + i * TQI_WORD_BITS);
}

void tqi_summary_drop_before(tqi_summary_t *set, uint64_t block)
{
    uint64_t lo = block * TQI_LEAF_BITS;

    tqi_bits_drop_before(&set->level[0], block);
    for (unsigned k = 1; k < TQI_SUMMARY_LEVELS; k++) {
        tqi_bits_t *level = &set->level[k];

        lo /= TQI_WORD_BITS;
        tqi_bits_clear_range(level, 0, lo);
        /* The word below bit lo may have lost only a part of its bits. */
        if (tqi_bits_word(&set->level[k - 1], lo) == 0)
            tqi_bits_clear(level, lo);
        tqi_bits_drop_before(level, lo / TQI_LEAF_BITS);
    }
}

static uint64_t touch_word(tqi_summary_t *set, unsigned level, uint64_t ordinal)
{
    set->words_touched++;
    return tqi_bits_word(&set->level[level], ordinal);
}

/* The first non-zero word of level 0 at or after ordinal `word`, or TQI_BITS_NONE: up until a level
 * shows something further on, then down along the lowest bits. */
static uint64_t summary_next_word(tqi_summary_t *set, uint64_t word)
{
    uint64_t pos = word; /* a bit of level k: everything before it is known to be out */
    unsigned k = 1;

    for (;; k++) {
        uint64_t ordinal = pos / TQI_WORD_BITS;
        uint64_t rest = touch_word(set, k, ordinal) & (UINT64_MAX << (pos % TQI_WORD_BITS));

        if (k == TQI_SUMMARY_LEVELS - 1) {
            uint64_t lo_block, hi_block;

            tqi_bits_block_span(&set->level[k], &lo_block, &hi_block);
            if (ordinal < lo_block * TQI_LEAF_WORDS) {
                ordinal = lo_block * TQI_LEAF_WORDS;
                rest = touch_word(set, k, ordinal);
            }
            while (rest == 0 && ++ordinal < hi_block * TQI_LEAF_WORDS)
                rest = touch_word(set, k, ordinal);
            if (rest == 0)
                return TQI_BITS_NONE;
        }
        if (rest != 0) {
            pos = ordinal * TQI_WORD_BITS + tqi_word_lowest(rest);
            break;
        }
        pos = ordinal + 1;
    }
    while (--k > 0)
        pos = pos * TQI_WORD_BITS + tqi_word_lowest(touch_word(set, k, pos));
    return pos;
}

size_t tqi_summary_fetch(tqi_summary_t *set, uint64_t from, uint64_t *out, size_t out_max)
{
    uint64_t word = from / TQI_WORD_BITS;
    size_t cnt = 0;

    if (out_max == 0 || set->level[0].count == 0)
        return 0;
    uint64_t rest = touch_word(set, 0, word) & (UINT64_MAX << (from % TQI_WORD_BITS));
    for (;;) {
        for (; rest != 0; rest &= rest - 1) {
            out[cnt++] = word * TQI_WORD_BITS + tqi_word_lowest(rest);
            if (cnt == out_max)
                return cnt;
        }
        word = summary_next_word(set, word + 1);
        if (word == TQI_BITS_NONE)
            return cnt;
        rest = touch_word(set, 0, word);
    }
}

uint64_t tqi_summary_next(tqi_summary_t *set, uint64_t from)
{
    uint64_t pos;

    return tqi_summary_fetch(set, from, &pos, 1) == 1 ? pos : TQI_BITS_NONE;
}
