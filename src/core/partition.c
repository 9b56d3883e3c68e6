/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that changes rows goes through rows_step (states) and then brings the ready sets up to
 * date for the same mask, so that a set never depends on the order in which its causes came.
 *
 * Leaves that a change may need are made when a block is: states, absence and ready sets. Production
 * and consumption are made by the two _reserve functions. Nothing else can run out of memory half
 * way.
 */
#include "core/partition.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "core/ready.h"

TQI_MACHINE(tqi_row_machine, "row", TQI_ROW, TQI_ROW_STEPS);

/* Moves every row of the mask; each must have a step for the event (INV-1). Leaves are reserved. */
static void rows_step(tqi_partition_t *p, const tqi_mask_t *mask, tqi_row_event_t event)
{
    tqi_mask_t rest = *mask;

    for (unsigned from = 0; from < TQI_ROW_DEAD; from++) {
        uint64_t moving[TQI_LEAF_WORDS];
        unsigned to;

        tqi_leaf_copy(moving, rest.words);
        tqi_leaf_and(moving, tqi_bits_leaf(&p->state[from], mask->ordinal));
        if (!tqi_leaf_any(moving))
            continue;
        to = tqi_machine_step(&tqi_row_machine, from, event);
        tqi_leaf_andnot(rest.words, moving);
        if (to == from)
            continue;
        tqi_bits_andnot_leaf(&p->state[from], mask->ordinal, moving);
        if (to != TQI_ROW_DEAD) {
            tq_status_t rc = tqi_bits_or_leaf(&p->state[to], mask->ordinal, moving);

            tqi_assert(rc == TQ_OK);
        }
    }
    tqi_invariant(!tqi_mask_any(&rest), "INV-1"); /* no event moves the dead */
}

/* ---- masks ---- */

bool tqi_mask_next(const tqi_bits_t *bits, uint64_t *ordinal, tqi_mask_t *mask)
{
    uint64_t lo, hi;

    tqi_bits_block_span(bits, &lo, &hi);
    for (uint64_t at = lo > *ordinal ? lo : *ordinal; at < hi; at++) {
        const uint64_t *leaf = tqi_bits_leaf(bits, at);

        if (leaf && tqi_leaf_any(leaf)) {
            mask->ordinal = at;
            tqi_leaf_copy(mask->words, leaf);
            *ordinal = at + 1;
            return true;
        }
    }
    return false;
}

tqi_mask_t tqi_mask_run(uint64_t lo, uint64_t hi)
{
    tqi_mask_t mask = {.ordinal = lo / TQI_BLOCK_ROWS};

    tqi_assert(lo < hi && (hi - 1) / TQI_BLOCK_ROWS == mask.ordinal);
    tqi_words_set_range(mask.words, lo % TQI_BLOCK_ROWS, (hi - 1) % TQI_BLOCK_ROWS + 1);
    return mask;
}

/* for_mask(pos, mask): every position of a mask. */
#define for_mask(pos, mask)                                                                        \
    for (unsigned pos##_word = 0; pos##_word < TQI_LEAF_WORDS; pos##_word++)                       \
        for (uint64_t pos##_rest = (mask)->words[pos##_word], pos;                                 \
             pos##_rest != 0 && (pos = (mask)->ordinal * TQI_BLOCK_ROWS +                          \
                                       pos##_word * TQI_WORD_BITS + tqi_word_lowest(pos##_rest),   \
                                true);                                                             \
             pos##_rest &= pos##_rest - 1)

/* ---- life ---- */

void tqi_partition_init(tqi_partition_t *p, const tqi_env_t *env, tqi_index_source_t *source)
{
    *p = (tqi_partition_t){.env = env};
    tqi_index_init(&p->index, env, source);
    for (unsigned s = 0; s < TQI_ROW_DEAD; s++)
        tqi_bits_init(&p->state[s], env);
    tqi_bits_init(&p->unlisted, env);
    tqi_bits_init(&p->absent, env);
    tqi_bits_init(&p->ahead, env);
    tqi_map_str_init(&p->field_map, env);
    tqi_vec_init(&p->fields, env);
    tqi_vec_init(&p->sorted, env);
    tqi_map_str_init(&p->tasks, env);
    tqi_vec_init(&p->placed, env);
    tqi_map_str_init(&p->keys, env);
    tqi_list_init(&p->ready);
}

#define COLUMN_BYTES(column) (TQI_BLOCK_ROWS * sizeof *(column))

static void column_free(const tqi_env_t *env, void *column, size_t bytes)
{
    if (column)
        tqi_env_free(env, column, bytes);
}

static void block_free_columns(tqi_partition_t *p, tqi_block_t *block)
{
    for (uint32_t i = 0; block->tags && i < TQI_BLOCK_ROWS; i++)
        tqi_tags_free(p->env, block->tags[i]);
    column_free(p->env, block->tags, COLUMN_BYTES(block->tags));
    column_free(p->env, (void *)block->keys, COLUMN_BYTES(block->keys));
    column_free(p->env, block->units, COLUMN_BYTES(block->units));
    column_free(p->env, block->pending, COLUMN_BYTES(block->pending));
    block->tags = NULL;
    block->keys = NULL;
    block->units = NULL;
    block->pending = NULL;
    block->pending_sum = 0;
}

static void task_free(void *ctx, void *value)
{
    tqi_partition_t *p = ctx;
    tqi_task_t *task = value;

    tqi_assert(task->waiters.cnt == 0 && task->grants.cnt == 0);
    tqi_bits_fini(&task->consumed);
    tqi_env_free(p->env, task, sizeof *task);
}

void tqi_partition_fini(tqi_partition_t *p)
{
    tqi_ready_free_all(p);
    for (uint64_t at = tqi_index_first(&p->index); at < tqi_index_limit(&p->index); at++)
        block_free_columns(p, tqi_index_block(&p->index, at));
    tqi_index_fini(&p->index);
    for (unsigned s = 0; s < TQI_ROW_DEAD; s++)
        tqi_bits_fini(&p->state[s]);
    tqi_bits_fini(&p->unlisted);
    tqi_bits_fini(&p->absent);
    tqi_bits_fini(&p->ahead);
    for (size_t i = 0; i < p->fields.len; i++) {
        tqi_bits_fini(&p->fields.at[i]->produced);
        tqi_env_free(p->env, p->fields.at[i], sizeof *p->fields.at[i]);
    }
    tqi_map_str_fini(&p->field_map, NULL, NULL);
    tqi_vec_fini(&p->fields);
    tqi_vec_fini(&p->sorted);
    tqi_map_str_fini(&p->tasks, task_free, p);
    for (size_t i = 0; i < p->placed.len; i++) {
        tqi_bits_fini(&p->placed.at[i]->rows);
        tqi_env_free(p->env, p->placed.at[i], sizeof *p->placed.at[i]);
    }
    tqi_vec_fini(&p->placed);
    tqi_map_str_fini(&p->keys, NULL, NULL);
}

/* ---- rows ---- */

/* Makes rows [end, end + cnt): RESERVED. */
static tq_status_t rows_make(tqi_partition_t *p, uint32_t cnt, tqi_err_t *err)
{
    uint64_t lo = p->index.end, hi = lo + cnt;
    uint64_t here = tqi_partition_rows_cnt(p) + tqi_bits_count(&p->state[TQI_ROW_CLEARING]);
    tq_status_t rc = TQ_OK;

    tqi_assert(cnt > 0 && cnt <= TQI_SLICE_ROWS);
    if (here + cnt > TQ_PARTITION_ROWS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "%u more rows beside the %llu there are over the %u that a partition may "
                        "have",
                        cnt, (unsigned long long)here, TQ_PARTITION_ROWS_MAX);
    rc = tqi_index_extend(&p->index, cnt);
    uint64_t limit = tqi_index_limit(&p->index) * TQI_BLOCK_ROWS;
    for (unsigned s = 0; s < TQI_ROW_DEAD && rc == TQ_OK; s++)
        rc = tqi_bits_reserve(&p->state[s], lo, limit);
    if (rc == TQ_OK)
        rc = tqi_bits_reserve(&p->absent, lo, limit);
    if (rc == TQ_OK)
        rc = tqi_bits_reserve(&p->unlisted, lo, limit);
    if (rc == TQ_OK)
        rc = tqi_ready_reserve(p, lo, limit);
    if (rc != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %u rows", cnt);
    rc = tqi_bits_set_range(&p->state[TQI_ROW_RESERVED], lo, hi);
    tqi_assert(rc == TQ_OK);
    p->index.end = hi;
    p->rows_made += cnt;
    return TQ_OK;
}

tq_status_t tqi_partition_prealloc(tqi_partition_t *p, uint32_t cnt, tqi_err_t *err)
{
    uint64_t lo = p->index.end;
    tq_status_t rc;

    if (cnt == 0)
        return TQ_OK;
    if (tqi_bits_reserve(&p->ahead, lo, lo + cnt) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %u rows", cnt);
    rc = rows_make(p, cnt, err);
    if (rc == TQ_OK)
        rc = tqi_bits_set_range(&p->ahead, lo, lo + cnt);
    return rc;
}

/* Rows are handed out, or written to without having been. */
static void rows_no_more_ahead(tqi_partition_t *p, const tqi_mask_t *mask)
{
    if (tqi_bits_count(&p->ahead) > 0)
        tqi_bits_andnot_leaf(&p->ahead, mask->ordinal, mask->words);
}

tq_status_t tqi_partition_take(tqi_partition_t *p, uint32_t want, bool is_unlisted, uint64_t *lo,
                               uint32_t *got, tqi_err_t *err)
{
    tq_status_t rc;

    tqi_assert(want > 0 && want <= TQI_SLICE_ROWS);
    if (tqi_bits_count(&p->ahead) > 0) {
        *lo = tqi_bits_next(&p->ahead, 0);
        *got = (uint32_t)tqi_u64_min(want, tqi_bits_next_clear(&p->ahead, *lo) - *lo);
        tqi_bits_clear_range(&p->ahead, *lo, *lo + *got);
    } else {
        *lo = p->index.end;
        *got = want;
        rc = rows_make(p, want, err);
        if (rc != TQ_OK)
            return rc;
    }
    if (is_unlisted) {
        rc = tqi_bits_set_range(&p->unlisted, *lo, *lo + *got);
        tqi_assert(rc == TQ_OK);
    }
    return TQ_OK;
}

tqi_row_state_t tqi_partition_state(const tqi_partition_t *p, uint64_t pos)
{
    for (unsigned s = 0; s < TQI_ROW_DEAD; s++)
        if (tqi_bits_test(&p->state[s], pos))
            return (tqi_row_state_t)s;
    return TQI_ROW_DEAD;
}

bool tqi_partition_is_live(const tqi_partition_t *p, uint64_t pos)
{
    return tqi_bits_test(&p->state[TQI_ROW_ACTIVE], pos) ||
           tqi_bits_test(&p->state[TQI_ROW_RESERVED], pos);
}

bool tqi_partition_is_listed(const tqi_partition_t *p, uint64_t pos)
{
    return tqi_partition_is_live(p, pos) && !tqi_bits_test(&p->unlisted, pos);
}

void tqi_partition_live(const tqi_partition_t *p, uint64_t ordinal, uint64_t words[TQI_LEAF_WORDS])
{
    tqi_leaf_copy(words, tqi_bits_leaf(&p->state[TQI_ROW_ACTIVE], ordinal));
    tqi_leaf_or(words, tqi_bits_leaf(&p->state[TQI_ROW_RESERVED], ordinal));
}

void tqi_partition_listed(const tqi_partition_t *p, uint64_t ordinal,
                          uint64_t words[TQI_LEAF_WORDS])
{
    tqi_partition_live(p, ordinal, words);
    tqi_leaf_andnot(words, tqi_bits_leaf(&p->unlisted, ordinal));
}

void tqi_partition_keep(tqi_partition_t *p, uint64_t pos)
{
    tqi_bits_clear(&p->unlisted, pos);
}

tq_status_t tqi_partition_pend(tqi_partition_t *p, const tqi_mask_t *mask)
{
    tqi_block_t *block = tqi_index_block(&p->index, mask->ordinal);

    tqi_assert(block);
    if (!block->pending) {
        block->pending = tqi_env_zalloc(p->env, COLUMN_BYTES(block->pending));
        if (!block->pending)
            return TQ_E_NO_MEMORY;
    }
    for_mask(pos, mask)
    {
        block->pending[pos % TQI_BLOCK_ROWS]++;
    }
    block->pending_sum += tqi_mask_count(mask);
    rows_no_more_ahead(p, mask);
    return TQ_OK;
}

void tqi_partition_unpend(tqi_partition_t *p, const tqi_mask_t *mask, tqi_mask_t *orphans)
{
    tqi_block_t *block = tqi_index_block(&p->index, mask->ordinal);

    *orphans = (tqi_mask_t){.ordinal = mask->ordinal};
    /* A block that died meanwhile took its counts along. */
    if (!block || !block->pending)
        return;
    for_mask(pos, mask)
    {
        tqi_assert(block->pending[pos % TQI_BLOCK_ROWS] > 0);
        if (--block->pending[pos % TQI_BLOCK_ROWS] == 0)
            tqi_words_set(orphans->words, pos % TQI_BLOCK_ROWS);
    }
    block->pending_sum -= tqi_mask_count(mask);
    if (block->pending_sum == 0) {
        column_free(p->env, block->pending, COLUMN_BYTES(block->pending));
        block->pending = NULL;
    }
    tqi_leaf_and(orphans->words, tqi_bits_leaf(&p->unlisted, mask->ordinal));
    tqi_leaf_and(orphans->words, tqi_bits_leaf(&p->state[TQI_ROW_RESERVED], mask->ordinal));
}

/* ---- placement ---- */

tqi_placed_t *tqi_partition_placed(const tqi_partition_t *p, uint32_t unit)
{
    for (size_t i = 0; i < p->placed.len; i++)
        if (p->placed.at[i]->unit == unit)
            return p->placed.at[i];
    return NULL;
}

static tqi_placed_t *placed_make(tqi_partition_t *p, uint32_t unit)
{
    tqi_placed_t *placed = tqi_partition_placed(p, unit);

    if (placed)
        return placed;
    placed = tqi_env_zalloc(p->env, sizeof *placed);
    if (!placed)
        return NULL;
    placed->unit = unit;
    tqi_bits_init(&placed->rows, p->env);
    if (tqi_vec_push(&p->placed, placed) != TQ_OK) {
        tqi_env_free(p->env, placed, sizeof *placed);
        return NULL;
    }
    return placed;
}

/* Gives the block a unit for each row, where one for all does not do any more. */
static tq_status_t block_split_units(tqi_partition_t *p, tqi_block_t *block, uint64_t ordinal)
{
    const tqi_placed_t *placed = tqi_partition_placed(p, block->unit);
    const uint64_t *leaf = placed ? tqi_bits_leaf(&placed->rows, ordinal) : NULL;

    block->units = tqi_env_zalloc(p->env, COLUMN_BYTES(block->units));
    if (!block->units)
        return TQ_E_NO_MEMORY;
    for (size_t i = 0; leaf && i < TQI_BLOCK_ROWS; i++)
        if (tqi_words_test(leaf, i))
            block->units[i] = block->unit;
    return TQ_OK;
}

tq_status_t tqi_partition_place(tqi_partition_t *p, uint64_t lo, uint64_t hi, uint32_t unit)
{
    tqi_placed_t *placed = placed_make(p, unit);

    tqi_assert(unit != 0);
    if (!placed || tqi_bits_reserve(&placed->rows, lo, hi) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint64_t at = lo / TQI_BLOCK_ROWS; at <= (hi - 1) / TQI_BLOCK_ROWS; at++) {
        tqi_block_t *block = tqi_index_block(&p->index, at);

        tqi_assert(block);
        if (block->unit == 0 || block->units || block->unit == unit)
            continue;
        /* A block whose rows of the other unit have all died can go over to this one. */
        const tqi_placed_t *other = tqi_partition_placed(p, block->unit);
        const uint64_t *leaf = other ? tqi_bits_leaf(&other->rows, at) : NULL;
        if (leaf && tqi_leaf_any(leaf) && block_split_units(p, block, at) != TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    for (uint64_t at = lo / TQI_BLOCK_ROWS; at <= (hi - 1) / TQI_BLOCK_ROWS; at++) {
        tqi_block_t *block = tqi_index_block(&p->index, at);
        uint64_t from = tqi_u64_max(lo, at * TQI_BLOCK_ROWS);
        uint64_t to = tqi_u64_min(hi, (at + 1) * TQI_BLOCK_ROWS);

        if (block->units)
            for (uint64_t pos = from; pos < to; pos++)
                block->units[pos % TQI_BLOCK_ROWS] = unit;
        else
            block->unit = unit;
        if (placed->is_absent) {
            tqi_mask_t mask = tqi_mask_run(from, to);
            tq_status_t rc = tqi_bits_or_leaf(&p->absent, at, mask.words);

            tqi_assert(rc == TQ_OK);
        }
    }
    tq_status_t rc = tqi_bits_set_range(&placed->rows, lo, hi);
    tqi_assert(rc == TQ_OK);
    return TQ_OK;
}

void tqi_partition_units(const tqi_partition_t *p, const uint64_t *pos, uint32_t cnt, uint32_t *out)
{
    const uint64_t *leaf = NULL;
    const tqi_block_t *block = NULL;
    uint64_t ordinal = UINT64_MAX;

    for (uint32_t i = 0; i < cnt; i++) {
        if (pos[i] == TQI_POS_NONE) {
            out[i] = 0;
            continue;
        }
        if (pos[i] / TQI_BLOCK_ROWS != ordinal) {
            ordinal = pos[i] / TQI_BLOCK_ROWS;
            block = tqi_index_block(&p->index, ordinal);
            const tqi_placed_t *placed =
                block && !block->units ? tqi_partition_placed(p, block->unit) : NULL;
            leaf = placed ? tqi_bits_leaf(&placed->rows, ordinal) : NULL;
        }
        if (block && block->units)
            out[i] = block->units[pos[i] % TQI_BLOCK_ROWS];
        else
            out[i] = leaf && tqi_words_test(leaf, pos[i] % TQI_BLOCK_ROWS) ? block->unit : 0;
    }
}

void tqi_partition_absent(tqi_partition_t *p, tqi_placed_t *placed, uint64_t ordinal,
                          bool is_absent)
{
    const uint64_t *leaf = tqi_bits_leaf(&placed->rows, ordinal);
    tqi_mask_t mask = {.ordinal = ordinal};

    if (!leaf || !tqi_leaf_any(leaf))
        return;
    tqi_leaf_copy(mask.words, leaf);
    if (is_absent) {
        tq_status_t rc = tqi_bits_or_leaf(&p->absent, ordinal, mask.words);

        tqi_assert(rc == TQ_OK);
    } else {
        tqi_bits_andnot_leaf(&p->absent, ordinal, mask.words);
    }
    tqi_ready_refresh(p, NULL, &mask);
}

void tqi_partition_absent_done(tqi_placed_t *placed, bool is_absent)
{
    placed->is_absent = is_absent;
}

/* A field of which nothing is produced any more keeps its name and forgets what it was. */
static void field_settle(tqi_field_t *field)
{
    if (tqi_bits_count(&field->produced) == 0)
        field->schema = (tq_schema_t){0};
}

void tqi_partition_wipe(tqi_partition_t *p, tqi_placed_t *placed, uint64_t ordinal)
{
    const uint64_t *leaf = tqi_bits_leaf(&placed->rows, ordinal);
    tqi_mask_t mask = {.ordinal = ordinal};

    if (!leaf || !tqi_leaf_any(leaf))
        return;
    tqi_leaf_copy(mask.words, leaf);
    for (size_t i = 0; i < p->fields.len; i++) {
        tqi_field_t *field = p->fields.at[i];
        uint64_t before = tqi_bits_count(&field->produced);

        tqi_bits_andnot_leaf(&field->produced, ordinal, mask.words);
        p->cells_lost += before - tqi_bits_count(&field->produced);
        field_settle(field);
    }
    tqi_ready_refresh(p, NULL, &mask);
}

/* ---- fields, production ---- */

tqi_field_t *tqi_partition_field(const tqi_partition_t *p, const void *name, size_t len)
{
    return tqi_map_str_get(&p->field_map, name, len);
}

static int name_cmp(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);

    return order != 0 ? order : a_len < b_len ? -1 : a_len > b_len;
}

tq_status_t tqi_partition_field_make(tqi_partition_t *p, const void *name, size_t len,
                                     tqi_field_t **out, tqi_err_t *err)
{
    tqi_field_t *field = tqi_partition_field(p, name, len);

    if (field) {
        *out = field;
        return TQ_OK;
    }
    if (p->fields.len >= TQ_PARTITION_FIELDS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "a partition may have %u fields",
                        TQ_PARTITION_FIELDS_MAX);
    field = tqi_env_zalloc(p->env, sizeof *field);
    if (!field || tqi_vec_reserve(&p->fields, 1) != TQ_OK ||
        tqi_vec_reserve(&p->sorted, 1) != TQ_OK ||
        tqi_map_str_put(&p->field_map, name, len, field, NULL) != TQ_OK) {
        tqi_env_free(p->env, field, sizeof *field);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for field '%.*s'", (int)len,
                        (const char *)name);
    }
    field->name = tqi_map_str_find(&p->field_map, name, len)->key;
    field->name_len = (uint32_t)len;
    field->id = (uint32_t)p->fields.len;
    tqi_bits_init(&field->produced, p->env);
    p->fields.at[p->fields.len++] = field;
    size_t at = p->sorted.len++;
    for (; at > 0 &&
           name_cmp(p->sorted.at[at - 1]->name, p->sorted.at[at - 1]->name_len, name, len) > 0;
         at--)
        p->sorted.at[at] = p->sorted.at[at - 1];
    p->sorted.at[at] = field;
    p->changes++;
    *out = field;
    return TQ_OK;
}

tq_status_t tqi_partition_publish_reserve(tqi_partition_t *p, tqi_field_t *const *fields,
                                          uint32_t fields_cnt, const tqi_mask_t *mask)
{
    uint64_t lo = mask->ordinal * TQI_BLOCK_ROWS;

    (void)p;
    for (uint32_t i = 0; i < fields_cnt; i++)
        if (tqi_bits_reserve(&fields[i]->produced, lo, lo + 1) != TQ_OK)
            return TQ_E_NO_MEMORY;
    return TQ_OK;
}

void tqi_partition_publish(tqi_partition_t *p, tqi_field_t *const *fields, uint32_t fields_cnt,
                           const tqi_mask_t *mask)
{
    uint64_t before = tqi_bits_count(&p->state[TQI_ROW_RESERVED]);

    rows_step(p, mask, TQI_ROW_EV_PUBLISH);
    rows_no_more_ahead(p, mask);
    tqi_bits_andnot_leaf(&p->unlisted, mask->ordinal, mask->words);
    p->mark++;
    for (uint32_t i = 0; i < fields_cnt; i++) {
        tq_status_t rc = tqi_bits_or_leaf(&fields[i]->produced, mask->ordinal, mask->words);

        tqi_assert(rc == TQ_OK);
        fields[i]->mark = p->mark;
    }
    /* Rows that were RESERVED may enter sets that have none of these fields. */
    if (before != tqi_bits_count(&p->state[TQI_ROW_RESERVED]))
        tqi_ready_refresh(p, NULL, mask);
    else
        tqi_ready_refresh_marked(p, mask);
}

void tqi_partition_and_produced(const tqi_partition_t *p, tqi_field_t *const *fields,
                                uint32_t fields_cnt, tqi_mask_t *mask)
{
    uint64_t live[TQI_LEAF_WORDS];

    tqi_partition_live(p, mask->ordinal, live);
    tqi_leaf_and(mask->words, live);
    for (uint32_t i = 0; i < fields_cnt; i++)
        tqi_leaf_and(mask->words, tqi_bits_leaf(&fields[i]->produced, mask->ordinal));
}

uint32_t tqi_partition_common(tqi_field_t **common, uint32_t cnt, const tqi_mask_t *mask)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < cnt; i++) {
        uint64_t lacking[TQI_LEAF_WORDS];

        tqi_leaf_copy(lacking, mask->words);
        tqi_leaf_andnot(lacking, tqi_bits_leaf(&common[i]->produced, mask->ordinal));
        if (!tqi_leaf_any(lacking))
            common[kept++] = common[i];
    }
    return kept;
}

/* ---- keys, tags ---- */

uint64_t tqi_partition_key(const tqi_partition_t *p, const void *key, size_t len)
{
    void *value = tqi_map_str_get(&p->keys, key, len);

    return value ? (uint64_t)(uintptr_t)value - 1 : TQI_POS_NONE;
}

tq_status_t tqi_partition_key_set(tqi_partition_t *p, uint64_t pos, const void *key, size_t len)
{
    tqi_block_t *block = tqi_index_block(&p->index, pos / TQI_BLOCK_ROWS);

    tqi_assert(block);
    if (!block->keys) {
        block->keys = tqi_env_zalloc(p->env, COLUMN_BYTES(block->keys));
        if (!block->keys)
            return TQ_E_NO_MEMORY;
    }
    tqi_invariant(!block->keys[pos % TQI_BLOCK_ROWS], "INV-5");
    if (tqi_map_str_put(&p->keys, key, len, (void *)(uintptr_t)(pos + 1), NULL) != TQ_OK)
        return TQ_E_NO_MEMORY;
    block->keys[pos % TQI_BLOCK_ROWS] = tqi_map_str_find(&p->keys, key, len);
    return TQ_OK;
}

const char *tqi_partition_key_of(const tqi_partition_t *p, uint64_t pos, size_t *len)
{
    const tqi_block_t *block = tqi_index_block(&p->index, pos / TQI_BLOCK_ROWS);
    const tqi_map_str_item_t *item =
        block && block->keys ? block->keys[pos % TQI_BLOCK_ROWS] : NULL;

    *len = item ? item->key_len : 0;
    return item ? item->key : NULL;
}

const tqi_tags_t *tqi_partition_tags(const tqi_partition_t *p, uint64_t pos)
{
    const tqi_block_t *block = tqi_index_block(&p->index, pos / TQI_BLOCK_ROWS);

    return block && block->tags ? block->tags[pos % TQI_BLOCK_ROWS] : NULL;
}

tq_status_t tqi_partition_tags_reserve(tqi_partition_t *p, uint64_t ordinal)
{
    tqi_block_t *block = tqi_index_block(&p->index, ordinal);

    tqi_assert(block);
    if (!block->tags)
        block->tags = tqi_env_zalloc(p->env, COLUMN_BYTES(block->tags));
    return block->tags ? TQ_OK : TQ_E_NO_MEMORY;
}

void tqi_partition_tags_set(tqi_partition_t *p, uint64_t pos, tqi_tags_t *tags)
{
    tqi_block_t *block = tqi_index_block(&p->index, pos / TQI_BLOCK_ROWS);

    tqi_assert(block && block->tags);
    tqi_tags_free(p->env, block->tags[pos % TQI_BLOCK_ROWS]);
    block->tags[pos % TQI_BLOCK_ROWS] = tags;
}

/* ---- clearing ---- */

static void row_forget(tqi_partition_t *p, tqi_block_t *block, uint64_t pos, tqi_key_fn on_key,
                       void *ctx)
{
    uint32_t at = pos % TQI_BLOCK_ROWS;

    if (block->tags) {
        tqi_tags_free(p->env, block->tags[at]);
        block->tags[at] = NULL;
    }
    if (block->keys && block->keys[at]) {
        const tqi_map_str_item_t *item = block->keys[at];

        block->keys[at] = NULL;
        if (on_key)
            on_key(ctx, item->key, item->key_len);
        tqi_map_str_take(&p->keys, item->key, item->key_len);
    }
}

static void clear_consumed(tqi_partition_t *p, const tqi_mask_t *mask)
{
    for (tqi_map_str_item_t *item = tqi_map_str_first(&p->tasks); item;
         item = tqi_map_str_next(item)) {
        tqi_task_t *task = item->value;

        tqi_bits_andnot_leaf(&task->consumed, mask->ordinal, mask->words);
    }
}

void tqi_partition_clear(tqi_partition_t *p, const tqi_mask_t *mask, tqi_mask_t *cleared,
                         tqi_key_fn on_key, void *ctx)
{
    tqi_block_t *block = tqi_index_block(&p->index, mask->ordinal);

    cleared->ordinal = mask->ordinal;
    tqi_partition_live(p, mask->ordinal, cleared->words);
    tqi_leaf_and(cleared->words, mask->words);
    if (!tqi_mask_any(cleared))
        return;
    rows_step(p, cleared, TQI_ROW_EV_CLEAR);
    rows_no_more_ahead(p, cleared);
    tqi_bits_andnot_leaf(&p->unlisted, mask->ordinal, cleared->words);
    for (size_t i = 0; i < p->fields.len; i++) {
        tqi_bits_andnot_leaf(&p->fields.at[i]->produced, mask->ordinal, cleared->words);
        field_settle(p->fields.at[i]);
    }
    clear_consumed(p, cleared);
    tqi_ready_remove(p, NULL, cleared);
    if (block->tags || block->keys)
        for_mask(pos, cleared)
        {
            row_forget(p, block, pos, on_key, ctx);
        }
}

bool tqi_partition_bury(tqi_partition_t *p, const tqi_mask_t *mask, uint64_t *block_id)
{
    tqi_block_t *block = tqi_index_block(&p->index, mask->ordinal);

    rows_step(p, mask, TQI_ROW_EV_UNLINK);
    for (size_t i = 0; i < p->placed.len; i++)
        tqi_bits_andnot_leaf(&p->placed.at[i]->rows, mask->ordinal, mask->words);
    tqi_bits_andnot_leaf(&p->absent, mask->ordinal, mask->words);
    if (block->units)
        for_mask(pos, mask)
        {
            block->units[pos % TQI_BLOCK_ROWS] = 0;
        }
    block->dead_cnt += tqi_mask_count(mask);
    if (block->dead_cnt < TQI_BLOCK_ROWS)
        return false;
    block_free_columns(p, block);
    *block_id = block->id;
    return true;
}

void tqi_partition_drop_dead(tqi_partition_t *p)
{
    uint64_t before = tqi_index_first(&p->index);
    uint64_t first = tqi_index_drop_dead(&p->index);

    if (first == before)
        return;
    for (unsigned s = 0; s < TQI_ROW_DEAD; s++)
        tqi_bits_drop_before(&p->state[s], first);
    tqi_bits_drop_before(&p->unlisted, first);
    tqi_bits_drop_before(&p->absent, first);
    tqi_bits_drop_before(&p->ahead, first);
    for (size_t i = 0; i < p->fields.len; i++)
        tqi_bits_drop_before(&p->fields.at[i]->produced, first);
    for (size_t i = 0; i < p->placed.len; i++)
        tqi_bits_drop_before(&p->placed.at[i]->rows, first);
    for (tqi_map_str_item_t *item = tqi_map_str_first(&p->tasks); item;
         item = tqi_map_str_next(item)) {
        tqi_task_t *task = item->value;

        tqi_bits_drop_before(&task->consumed, first);
    }
    tqi_ready_drop_before(p, first);
}

/* ---- tasks, consumption ---- */

tqi_task_t *tqi_partition_task(const tqi_partition_t *p, const void *name, size_t len)
{
    return tqi_map_str_get(&p->tasks, name, len);
}

tq_status_t tqi_partition_task_make(tqi_partition_t *p, const void *name, size_t len,
                                    tqi_task_t **out, tqi_err_t *err)
{
    tqi_task_t *task = tqi_partition_task(p, name, len);

    if (task) {
        *out = task;
        return TQ_OK;
    }
    if (tqi_map_str_count(&p->tasks) >= TQ_PARTITION_TASKS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "a partition may have %u tasks",
                        TQ_PARTITION_TASKS_MAX);
    task = tqi_env_zalloc(p->env, sizeof *task);
    if (!task || tqi_map_str_put(&p->tasks, name, len, task, NULL) != TQ_OK) {
        tqi_env_free(p->env, task, sizeof *task);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for task '%.*s'", (int)len,
                        (const char *)name);
    }
    task->name = tqi_map_str_find(&p->tasks, name, len)->key;
    task->name_len = (uint32_t)len;
    tqi_bits_init(&task->consumed, p->env);
    tqi_list_init(&task->waiters);
    tqi_list_init(&task->grants);
    *out = task;
    return TQ_OK;
}

tq_status_t tqi_partition_consume_reserve(tqi_task_t *task, const tqi_mask_t *mask)
{
    uint64_t lo = mask->ordinal * TQI_BLOCK_ROWS;

    return tqi_bits_reserve(&task->consumed, lo, lo + 1);
}

void tqi_partition_consume(tqi_partition_t *p, tqi_task_t *task, const tqi_mask_t *mask)
{
    tq_status_t rc = tqi_bits_or_leaf(&task->consumed, mask->ordinal, mask->words);

    tqi_assert(rc == TQ_OK);
    tqi_ready_remove(p, task, mask);
}

void tqi_partition_unconsume(tqi_partition_t *p, tqi_task_t *task, const tqi_mask_t *mask)
{
    tqi_bits_andnot_leaf(&task->consumed, mask->ordinal, mask->words);
    tqi_ready_refresh(p, task, mask);
}

/* ---- check ---- */

#define CHECK(expr, ...)                                                                           \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            tqi_fail(err, TQ_E_BUG, __VA_ARGS__);                                                  \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static bool check_leaf_within(const uint64_t *leaf, const uint64_t *within)
{
    uint64_t rest[TQI_LEAF_WORDS];

    if (!leaf)
        return true;
    tqi_leaf_copy(rest, leaf);
    tqi_leaf_andnot(rest, within);
    return !tqi_leaf_any(rest);
}

static bool check_states(const tqi_partition_t *p, uint64_t ordinal, tqi_err_t *err)
{
    const tqi_block_t *block = tqi_index_block(&p->index, ordinal);
    uint64_t any[TQI_LEAF_WORDS] = {0}, both[TQI_LEAF_WORDS];
    uint64_t made = tqi_u64_min(p->index.end - tqi_u64_min(p->index.end, ordinal * TQI_BLOCK_ROWS),
                                TQI_BLOCK_ROWS);

    for (unsigned s = 0; s < TQI_ROW_DEAD; s++) {
        tqi_leaf_copy(both, any);
        tqi_leaf_and(both, tqi_bits_leaf(&p->state[s], ordinal));
        CHECK(!tqi_leaf_any(both), "INV-1: a row of block %llu is in two states",
              (unsigned long long)ordinal);
        tqi_leaf_or(any, tqi_bits_leaf(&p->state[s], ordinal));
    }
    CHECK(tqi_leaf_count(any) + block->dead_cnt == made,
          "INV-1: block %llu has %u rows in a state and %u dead of %llu",
          (unsigned long long)ordinal, tqi_leaf_count(any), block->dead_cnt,
          (unsigned long long)made);
    CHECK(check_leaf_within(tqi_bits_leaf(&p->unlisted, ordinal),
                            tqi_bits_leaf(&p->state[TQI_ROW_RESERVED], ordinal)),
          "a row of block %llu is unlisted and not reserved", (unsigned long long)ordinal);
    return true;
}

static bool check_active_only(const tqi_partition_t *p, uint64_t ordinal, tqi_err_t *err)
{
    uint64_t active[TQI_LEAF_WORDS];

    tqi_leaf_copy(active, tqi_bits_leaf(&p->state[TQI_ROW_ACTIVE], ordinal));
    for (size_t i = 0; i < p->fields.len; i++)
        CHECK(check_leaf_within(tqi_bits_leaf(&p->fields.at[i]->produced, ordinal), active),
              "INV-4: field '%s' is produced for a row of block %llu that is not active",
              p->fields.at[i]->name, (unsigned long long)ordinal);
    for (tqi_map_str_item_t *item = tqi_map_str_first(&p->tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        CHECK(check_leaf_within(tqi_bits_leaf(&task->consumed, ordinal), active),
              "INV-4: task '%s' has consumed a row of block %llu that is not active", task->name,
              (unsigned long long)ordinal);
    }
    return true;
}

static bool check_units(const tqi_partition_t *p, uint64_t ordinal, tqi_err_t *err)
{
    const tqi_block_t *block = tqi_index_block(&p->index, ordinal);
    uint64_t any[TQI_LEAF_WORDS] = {0}, lost[TQI_LEAF_WORDS] = {0}, both[TQI_LEAF_WORDS];

    for (size_t i = 0; i < p->placed.len; i++) {
        const tqi_placed_t *placed = p->placed.at[i];
        const uint64_t *leaf = tqi_bits_leaf(&placed->rows, ordinal);
        tqi_mask_t mask = {.ordinal = ordinal};

        tqi_leaf_copy(both, any);
        tqi_leaf_and(both, leaf);
        CHECK(!tqi_leaf_any(both), "INV-6: a row of block %llu is on two units",
              (unsigned long long)ordinal);
        tqi_leaf_or(any, leaf);
        if (placed->is_absent)
            tqi_leaf_or(lost, leaf);
        tqi_leaf_copy(mask.words, leaf);
        for_mask(pos, &mask)
        {
            uint32_t unit = 0;

            tqi_partition_units(p, &pos, 1, &unit);
            CHECK(unit == placed->unit, "INV-6: row at %llu says unit %u, is in the set of %u",
                  (unsigned long long)pos, unit, placed->unit);
            CHECK(tqi_partition_state(p, pos) != TQI_ROW_DEAD, "INV-6: dead row at %llu is placed",
                  (unsigned long long)pos);
        }
    }
    for (uint32_t i = 0; block->units && i < TQI_BLOCK_ROWS; i++)
        CHECK(block->units[i] == 0 || tqi_words_test(any, i),
              "INV-6: row at %llu has a unit and is in no set",
              (unsigned long long)(ordinal * TQI_BLOCK_ROWS + i));
    for (size_t i = 0; i < p->placed.len; i++)
        if (p->placed.at[i]->is_syncing)
            return true; /* some blocks are done, others not */
    tqi_leaf_copy(both, tqi_bits_leaf(&p->absent, ordinal));
    CHECK(memcmp(both, lost, sizeof both) == 0,
          "INV-3: absent rows of block %llu are not those of lost units",
          (unsigned long long)ordinal);
    return true;
}

static bool check_columns(const tqi_partition_t *p, uint64_t ordinal, uint64_t *keys,
                          tqi_err_t *err)
{
    const tqi_block_t *block = tqi_index_block(&p->index, ordinal);
    uint64_t pending = 0;

    for (uint32_t i = 0; i < TQI_BLOCK_ROWS; i++) {
        uint64_t pos = ordinal * TQI_BLOCK_ROWS + i;

        if (block->pending)
            pending += block->pending[i];
        if (block->tags && block->tags[i])
            CHECK(tqi_partition_is_live(p, pos), "row at %llu has tags and is not live",
                  (unsigned long long)pos);
        if (!block->keys || !block->keys[i])
            continue;
        ++*keys;
        CHECK(tqi_partition_is_live(p, pos), "INV-5: row at %llu has a key and is not live",
              (unsigned long long)pos);
        CHECK(tqi_partition_key(p, block->keys[i]->key, block->keys[i]->key_len) == pos,
              "INV-5: the key of the row at %llu leads elsewhere", (unsigned long long)pos);
    }
    CHECK(pending == block->pending_sum, "pending puts of block %llu: %llu counted, sum is %u",
          (unsigned long long)ordinal, (unsigned long long)pending, block->pending_sum);
    return true;
}

static bool check_blocks(const tqi_partition_t *p, tqi_err_t *err)
{
    uint64_t last_id = 0, keys = 0;

    for (uint64_t at = tqi_index_first(&p->index); at < tqi_index_limit(&p->index); at++) {
        const tqi_block_t *block = tqi_index_block(&p->index, at);

        CHECK(at == tqi_index_first(&p->index) || block->id > last_id,
              "INV-2: block %llu of the partition is not above the one before",
              (unsigned long long)at);
        CHECK(block->id < p->index.source->next_block, "INV-2: block %llu was never given out",
              (unsigned long long)block->id);
        last_id = block->id;
        if (!check_states(p, at, err) || !check_active_only(p, at, err) ||
            !check_units(p, at, err) || !check_columns(p, at, &keys, err))
            return false;
    }
    CHECK(keys == tqi_map_str_count(&p->keys), "INV-5: %llu rows have keys, the map has %zu",
          (unsigned long long)keys, tqi_map_str_count(&p->keys));
    return true;
}

bool tqi_partition_check(const tqi_partition_t *p, tqi_err_t *err)
{
    if (!check_blocks(p, err))
        return false;
    for (size_t i = 0; i < p->fields.len; i++) {
        const tqi_field_t *field = p->fields.at[i];

        CHECK(field->id == i && tqi_partition_field(p, field->name, field->name_len) == field,
              "field '%s' is not where its id says", field->name);
        CHECK(i == 0 || name_cmp(p->sorted.at[i - 1]->name, p->sorted.at[i - 1]->name_len,
                                 p->sorted.at[i]->name, p->sorted.at[i]->name_len) < 0,
              "fields are not sorted at '%s'", p->sorted.at[i]->name);
    }
    return tqi_ready_check(p, err);
}
