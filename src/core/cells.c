/* SPDX-License-Identifier: Apache-2.0 */
#include "core/cells.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"

void tqi_cells_init(tqi_cells_t *cells, const tqi_env_t *env)
{
    memset(cells, 0, sizeof *cells);
    cells->env = env;
    tqi_map_str_init(&cells->fields, env);
    tqi_map_u64_init(&cells->blocks, env);
    tqi_intervals_init(&cells->dead_blocks, env);
    tqi_vec_init(&cells->block_of, env);
    tqi_vec_init(&cells->touched, env);
    tqi_vec_init(&cells->leaves, env);
}

static void leaf_free(tqi_cells_t *cells, tqi_leaf_t *leaf)
{
    cells->leaves_cnt--;
    tqi_cells_field_unref(cells, leaf->field);
    tqi_env_free(cells->env, leaf, sizeof *leaf);
}

static void block_free(tqi_cells_t *cells, tqi_block_t *block)
{
    for (size_t i = 0; i < block->leaves.len; i++)
        leaf_free(cells, block->leaves.at[i]);
    tqi_vec_fini(&block->leaves);
    tqi_env_free(cells->env, block, sizeof *block);
}

static void block_fini(void *ctx, void *value)
{
    block_free(ctx, value);
}

void tqi_cells_fini(tqi_cells_t *cells)
{
    tqi_map_u64_fini(&cells->blocks, block_fini, cells);
    tqi_assert(tqi_map_str_count(&cells->fields) == 0 && cells->leaves_cnt == 0);
    tqi_map_str_fini(&cells->fields, NULL, NULL);
    tqi_intervals_fini(&cells->dead_blocks);
    tqi_vec_fini(&cells->block_of);
    tqi_vec_fini(&cells->touched);
    tqi_vec_fini(&cells->leaves);
}

/* ---- fields ----------------------------------------------------------------------------------- */

tqi_field_t *tqi_cells_field(tqi_cells_t *cells, tqi_str_t name, bool is_make)
{
    tqi_field_t *field = tqi_map_str_get(&cells->fields, name.data, name.len);

    if (field || !is_make)
        return field;
    field = tqi_env_zalloc(cells->env, sizeof *field);
    if (!field)
        return NULL;
    if (tqi_map_str_put(&cells->fields, name.data, name.len, field, NULL) != TQ_OK) {
        tqi_env_free(cells->env, field, sizeof *field);
        return NULL;
    }
    field->name = tqi_map_str_find(&cells->fields, name.data, name.len)->key;
    field->name_len = name.len;
    field->id = cells->field_id_next++;
    return field;
}

void tqi_cells_field_ref(tqi_field_t *field)
{
    field->refs_cnt++;
}

void tqi_cells_field_unref(tqi_cells_t *cells, tqi_field_t *field)
{
    tqi_assert(field->refs_cnt > 0);
    if (--field->refs_cnt > 0)
        return;
    tqi_map_str_take(&cells->fields, field->name, field->name_len);
    tqi_env_free(cells->env, field, sizeof *field);
}

/* ---- blocks and leaves ------------------------------------------------------------------------ */

static tqi_block_t *block_make(tqi_cells_t *cells, uint64_t id)
{
    tqi_block_t *block = tqi_env_zalloc(cells->env, sizeof *block);

    if (!block)
        return NULL;
    block->id = id;
    tqi_vec_init(&block->leaves, cells->env);
    if (tqi_map_u64_put(&cells->blocks, id, block, NULL) != TQ_OK) {
        tqi_env_free(cells->env, block, sizeof *block);
        return NULL;
    }
    return block;
}

/* Where the field's leaf is in the block, or should be. */
static size_t leaf_place(const tqi_block_t *block, const tqi_field_t *field)
{
    size_t lo = 0;
    size_t hi = block->leaves.len;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (block->leaves.at[mid]->field->id < field->id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static tqi_leaf_t *leaf_find(const tqi_block_t *block, const tqi_field_t *field, size_t place)
{
    bool is_there = place < block->leaves.len && block->leaves.at[place]->field == field;

    return is_there ? block->leaves.at[place] : NULL;
}

static tqi_leaf_t *leaf_make(tqi_cells_t *cells, tqi_block_t *block, tqi_field_t *field,
                             size_t place)
{
    tqi_leaf_t *leaf;

    if (tqi_vec_reserve(&block->leaves, 1) != TQ_OK)
        return NULL;
    leaf = tqi_env_zalloc(cells->env, sizeof *leaf);
    if (!leaf)
        return NULL;
    leaf->field = field;
    tqi_cells_field_ref(field);
    cells->leaves_cnt++;
    memmove(block->leaves.at + place + 1, block->leaves.at + place,
            (block->leaves.len - place) * sizeof leaf);
    block->leaves.at[place] = leaf;
    block->leaves.len++;
    return leaf;
}

void tqi_cells_tidy(tqi_cells_t *cells, tqi_block_t *block)
{
    size_t kept = 0;

    for (size_t i = 0; i < block->leaves.len; i++) {
        if (block->leaves.at[i]->cnt > 0)
            block->leaves.at[kept++] = block->leaves.at[i];
        else
            leaf_free(cells, block->leaves.at[i]);
    }
    block->leaves.len = kept;
    if (kept > 0)
        return;
    if (!tqi_leaf_any(block->dead) || tqi_intervals_contains(&cells->dead_blocks, block->id)) {
        tqi_map_u64_take(&cells->blocks, block->id);
        block_free(cells, block);
    }
}

_Static_assert(TQI_BLOCK_ROWS == TQI_LEAF_BITS, "a block's dead bits are one leaf");

/* ---- requests --------------------------------------------------------------------------------- */

tq_status_t tqi_cells_resolve(tqi_cells_t *cells, tqi_u64s_t rows, bool is_make)
{
    uint64_t last_id = UINT64_MAX;
    uint32_t ordinal = TQI_NO_BLOCK;

    cells->stamp++;
    cells->block_of.len = cells->touched.len = 0;
    if (tqi_vec_reserve(&cells->block_of, rows.cnt) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < rows.cnt; i++) {
        uint64_t id = tqi_u64s_at(rows, i) / TQI_BLOCK_ROWS;

        if (id != last_id) {
            tqi_block_t *block = tqi_map_u64_get(&cells->blocks, id);

            last_id = id;
            ordinal = TQI_NO_BLOCK;
            if (!block && is_make && !tqi_intervals_contains(&cells->dead_blocks, id)) {
                block = block_make(cells, id);
                if (!block)
                    goto no_memory;
            }
            if (block && block->stamp != cells->stamp) {
                block->stamp = cells->stamp;
                block->ordinal = (uint32_t)cells->touched.len;
                if (tqi_vec_push(&cells->touched, block) != TQ_OK) {
                    tqi_cells_tidy(cells, block);
                    goto no_memory;
                }
            }
            if (block)
                ordinal = block->ordinal;
        }
        cells->block_of.at[cells->block_of.len++] = ordinal;
    }
    if (tqi_vec_reserve(&cells->leaves, cells->touched.len) == TQ_OK)
        return TQ_OK;
no_memory:
    tqi_cells_sweep(cells);
    return TQ_E_NO_MEMORY;
}

tq_status_t tqi_cells_select(tqi_cells_t *cells, tqi_field_t *field, bool is_make)
{
    cells->leaves.len = 0;
    for (size_t b = 0; b < cells->touched.len; b++) {
        tqi_block_t *block = cells->touched.at[b];
        size_t place = leaf_place(block, field);
        tqi_leaf_t *leaf = leaf_find(block, field, place);

        if (!leaf && is_make) {
            leaf = leaf_make(cells, block, field, place);
            if (!leaf)
                return TQ_E_NO_MEMORY;
        }
        cells->leaves.at[cells->leaves.len++] = leaf;
    }
    return TQ_OK;
}

void tqi_cells_sweep(tqi_cells_t *cells)
{
    for (size_t b = 0; b < cells->touched.len; b++)
        tqi_cells_tidy(cells, cells->touched.at[b]);
    cells->touched.len = cells->block_of.len = 0;
}

/* ---- dead rows -------------------------------------------------------------------------------- */

bool tqi_cells_is_dead(const tqi_cells_t *cells, uint64_t row)
{
    const tqi_block_t *block = tqi_map_u64_get(&cells->blocks, row / TQI_BLOCK_ROWS);

    if (block && tqi_words_test(block->dead, row % TQI_BLOCK_ROWS))
        return true;
    return tqi_intervals_contains(&cells->dead_blocks, row / TQI_BLOCK_ROWS);
}

tq_status_t tqi_cells_kill(tqi_cells_t *cells, uint64_t lo, uint64_t hi, tqi_block_t **out)
{
    uint64_t id = lo / TQI_BLOCK_ROWS;
    tqi_block_t *block = tqi_map_u64_get(&cells->blocks, id);

    tqi_assert(lo < hi && (hi - 1) / TQI_BLOCK_ROWS == id);
    *out = block;
    if (!block) {
        if (tqi_intervals_contains(&cells->dead_blocks, id))
            return TQ_OK;
        block = block_make(cells, id);
        if (!block)
            return TQ_E_NO_MEMORY;
        *out = block;
    }
    tqi_words_set_range(block->dead, lo - id * TQI_BLOCK_ROWS, hi - id * TQI_BLOCK_ROWS);
    /* When the last one has died, the block needs no record any more. */
    if (tqi_leaf_count(block->dead) == TQI_BLOCK_ROWS)
        return tqi_intervals_add(&cells->dead_blocks, id, id + 1);
    return TQ_OK;
}

tq_status_t tqi_cells_kill_blocks(tqi_cells_t *cells, uint64_t lo, uint64_t hi)
{
    return tqi_intervals_add(&cells->dead_blocks, lo, hi);
}
