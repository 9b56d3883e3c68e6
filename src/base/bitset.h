/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bitsets over row positions.
 *
 *   tqi_word_*     arithmetic on one 64-bit word, and on a leaf's worth of them
 *   tqi_bits_t     a growable sparse bitset: production, consumption, dead rows
 *   tqi_summary_t  the same with a 64-ary summary above it: ready sets
 *
 * Positions are 64 bits wide and come in blocks of 1,024, as the row indexes do. A block's bits are
 * one leaf of 128 bytes, made when the first of them is set; leading blocks can be dropped, and
 * what is dropped reads as zero. A set costs 8 bytes per block between its first and last one, so
 * positions must be near each other, which those of one partition are.
 *
 * Nothing here is thread-safe. Bits set after a successful reserve can't fail, which is how an
 * operation that touches several sets stays all or nothing.
 */
#ifndef TQI_BASE_BITSET_H
#define TQI_BASE_BITSET_H

#include "base/env.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tq/status.h>

#define TQI_WORD_BITS 64u
#define TQI_LEAF_BITS 1024u
#define TQI_LEAF_WORDS (TQI_LEAF_BITS / TQI_WORD_BITS)

/* What a search answers when there is no such bit; never a position. */
#define TQI_BITS_NONE UINT64_MAX

/* ---- words ---- */

/* The lowest set bit's number; word must not be 0. */
static inline unsigned tqi_word_lowest(uint64_t word)
{
    return (unsigned)__builtin_ctzll(word);
}

/* Written out, because __builtin_popcountll calls libgcc on machines without the instruction. */
static inline unsigned tqi_word_count(uint64_t word)
{
    word -= (word >> 1) & 0x5555555555555555u;
    word = (word & 0x3333333333333333u) + ((word >> 2) & 0x3333333333333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fu;
    return (unsigned)((word * 0x0101010101010101u) >> 56);
}

/* Bits [lo, hi) of a word; lo <= hi <= 64. */
static inline uint64_t tqi_word_mask(unsigned lo, unsigned hi)
{
    uint64_t below_hi = hi == TQI_WORD_BITS ? UINT64_MAX : (UINT64_C(1) << hi) - 1;

    return lo == TQI_WORD_BITS ? 0 : below_hi & (UINT64_MAX << lo);
}

/* Plain arrays of words, bit b being bit b % 64 of words[b / 64]. */
static inline bool tqi_words_test(const uint64_t *words, size_t bit)
{
    return words[bit / TQI_WORD_BITS] >> (bit % TQI_WORD_BITS) & 1;
}

static inline void tqi_words_set(uint64_t *words, size_t bit)
{
    words[bit / TQI_WORD_BITS] |= UINT64_C(1) << (bit % TQI_WORD_BITS);
}

static inline void tqi_words_clear(uint64_t *words, size_t bit)
{
    words[bit / TQI_WORD_BITS] &= ~(UINT64_C(1) << (bit % TQI_WORD_BITS));
}

/* Sets bits [lo, hi). */
void tqi_words_set_range(uint64_t *words, size_t lo, size_t hi);
/* Clears bits [lo, hi). */
void tqi_words_clear_range(uint64_t *words, size_t lo, size_t hi);
/* How many of the first `word_cnt` words' bits are set. */
size_t tqi_words_count(const uint64_t *words, size_t word_cnt);
/* The first set bit at or after `from`, or word_cnt * 64 when there is none. */
size_t tqi_words_next(const uint64_t *words, size_t word_cnt, size_t from);

/* Leaves: TQI_LEAF_WORDS words. A NULL source is an absent leaf, all zero. */
void tqi_leaf_copy(uint64_t *dst, const uint64_t *src);
void tqi_leaf_and(uint64_t *dst, const uint64_t *src);
void tqi_leaf_or(uint64_t *dst, const uint64_t *src);
void tqi_leaf_andnot(uint64_t *dst, const uint64_t *src); /* dst &= ~src */
bool tqi_leaf_any(const uint64_t *leaf);
unsigned tqi_leaf_count(const uint64_t *leaf);

/* ---- sparse bitset ---- */

typedef struct tqi_bits {
    const tqi_env_t *env;
    uint64_t first_block; /* of dir[dir_head]; earlier blocks read as zero */
    uint64_t **dir;       /* leaves, NULL where absent; entries [dir_head, dir_head + dir_len) */
    size_t dir_head;
    size_t dir_len;
    size_t dir_cap;
    uint64_t dropped_before; /* block; bits below it may not be set any more */
    uint64_t count;          /* bits set */
    size_t leaf_cnt;         /* leaves allocated, 128 bytes each */
} tqi_bits_t;

/* Allocates nothing. env is borrowed until fini. */
void tqi_bits_init(tqi_bits_t *bits, const tqi_env_t *env);
void tqi_bits_fini(tqi_bits_t *bits);

/* Makes every leaf of [lo, hi), so that setting bits there can't fail. OK or E_NO_MEMORY. */
tq_status_t tqi_bits_reserve(tqi_bits_t *bits, uint64_t lo, uint64_t hi);

/* Sets one bit. pos is below TQI_BITS_NONE and in no dropped block. OK or E_NO_MEMORY. */
tq_status_t tqi_bits_set(tqi_bits_t *bits, uint64_t pos);
/* Sets [lo, hi); all or nothing. OK or E_NO_MEMORY. */
tq_status_t tqi_bits_set_range(tqi_bits_t *bits, uint64_t lo, uint64_t hi);
/* Sets the block's bits that are set in words; all or nothing. OK or E_NO_MEMORY. */
tq_status_t tqi_bits_or_leaf(tqi_bits_t *bits, uint64_t block, const uint64_t *words);

/* These take any position and never fail. clear says whether the bit was set. */
bool tqi_bits_clear(tqi_bits_t *bits, uint64_t pos);
void tqi_bits_clear_range(tqi_bits_t *bits, uint64_t lo, uint64_t hi);
void tqi_bits_andnot_leaf(tqi_bits_t *bits, uint64_t block, const uint64_t *words);
bool tqi_bits_test(const tqi_bits_t *bits, uint64_t pos);

static inline uint64_t tqi_bits_count(const tqi_bits_t *bits)
{
    return bits->count;
}

/* How many of [lo, hi) are set. */
uint64_t tqi_bits_count_range(const tqi_bits_t *bits, uint64_t lo, uint64_t hi);

/* The block's 16 words, or NULL when it has no leaf (all zero). Valid until the set is changed. */
const uint64_t *tqi_bits_leaf(const tqi_bits_t *bits, uint64_t block);
/* One word: positions [64 * ordinal, 64 * ordinal + 64). */
uint64_t tqi_bits_word(const tqi_bits_t *bits, uint64_t ordinal);
/* Blocks that may have a leaf are [*lo, *hi). */
void tqi_bits_block_span(const tqi_bits_t *bits, uint64_t *lo, uint64_t *hi);

/* The first set bit at or after `from`, or TQI_BITS_NONE. Walks the directory and leaves in
 * between; use a summary where that matters. The loop over a set:
 *     for (uint64_t p = tqi_bits_next(b, 0); p != TQI_BITS_NONE; p = tqi_bits_next(b, p + 1)) */
uint64_t tqi_bits_next(const tqi_bits_t *bits, uint64_t from);
/* The first clear position at or after `from`. */
uint64_t tqi_bits_next_clear(const tqi_bits_t *bits, uint64_t from);

/* Replaces what `out` has in blocks [lo_block, hi_block) by the AND of `set_cnt` sets (> 0), word by
 * word. Dropped blocks of out are left out. out is none of the sets. OK, or E_NO_MEMORY with out
 * changed in part. */
tq_status_t tqi_bits_and(tqi_bits_t *out, const tqi_bits_t *const *sets, size_t set_cnt,
                         uint64_t lo_block, uint64_t hi_block);

/* Frees every leaf before `block` for good: those positions read as zero and may not be set. */
void tqi_bits_drop_before(tqi_bits_t *bits, uint64_t block);

/* ---- bitset with a summary ---- */

/* A bit of level k + 1 says that the word it stands for at level k is not zero. The top level's
 * words each cover 16 M positions, the rows that a partition may have, and are walked in order; so a
 * search reads at most 2 words per level in a partition of any size. */
#define TQI_SUMMARY_LEVELS 4u

typedef struct tqi_summary {
    tqi_bits_t level[TQI_SUMMARY_LEVELS]; /* [0] is the set itself */
    uint64_t words_touched;               /* words read by searches, for the test of the claim */
} tqi_summary_t;

void tqi_summary_init(tqi_summary_t *set, const tqi_env_t *env);
void tqi_summary_fini(tqi_summary_t *set);

/* As for tqi_bits_t, each O(levels) per word changed. */
tq_status_t tqi_summary_reserve(tqi_summary_t *set, uint64_t lo, uint64_t hi);
tq_status_t tqi_summary_set(tqi_summary_t *set, uint64_t pos);
tq_status_t tqi_summary_or_leaf(tqi_summary_t *set, uint64_t block, const uint64_t *words);
bool tqi_summary_clear(tqi_summary_t *set, uint64_t pos);
void tqi_summary_andnot_leaf(tqi_summary_t *set, uint64_t block, const uint64_t *words);
void tqi_summary_drop_before(tqi_summary_t *set, uint64_t block);

static inline bool tqi_summary_test(const tqi_summary_t *set, uint64_t pos)
{
    return tqi_bits_test(&set->level[0], pos);
}

static inline uint64_t tqi_summary_count(const tqi_summary_t *set)
{
    return set->level[0].count;
}

static inline const uint64_t *tqi_summary_leaf(const tqi_summary_t *set, uint64_t block)
{
    return tqi_bits_leaf(&set->level[0], block);
}

/* The first set bit at or after `from`, or TQI_BITS_NONE. */
uint64_t tqi_summary_next(tqi_summary_t *set, uint64_t from);
/* Writes the lowest set bits at or after `from`, at most out_max, in order; says how many. */
size_t tqi_summary_fetch(tqi_summary_t *set, uint64_t from, uint64_t *out, size_t out_max);

#endif
