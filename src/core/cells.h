/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cells: which object is at (row, field), and which rows are dead.
 *
 * Rows are looked up by block (row / 1024). A block has a leaf of 1,024 references for each field
 * that has a cell in it, and a bitmap of dead rows; blocks that are dead for ever are an interval
 * set and nothing else. Leaves and blocks without contents are freed.
 *
 * Requests name many rows, mostly neighbours. They are resolved once, to block ordinals, and each
 * field then looks its leaves up once a block: a cell costs an index, not a search.
 */
#ifndef TQI_CORE_CELLS_H
#define TQI_CORE_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitset.h"
#include "base/interval.h"
#include "base/map.h"
#include "base/vec.h"
#include "wire/msg.h"

#define TQI_BLOCK_ROWS 1024u

/* A reference: state, the run's slot and the row in the run. 0 is an empty cell. */
typedef uint64_t tqi_ref_t;

typedef enum tqi_cell_state {
    TQI_CELL_EMPTY = 0,
    TQI_CELL_CLAIMED = 1,   /* a put was promised it and is writing; nobody reads */
    TQI_CELL_STAGED = 2,    /* written, not known to be published */
    TQI_CELL_PUBLISHED = 3, /* readers get it */
} tqi_cell_state_t;

static inline tqi_ref_t tqi_ref(tqi_cell_state_t state, uint32_t slot, uint32_t row)
{
    return (uint64_t)state << 48 | (uint64_t)slot << 16 | row;
}
static inline tqi_cell_state_t tqi_ref_state(tqi_ref_t ref)
{
    return (tqi_cell_state_t)(ref >> 48);
}
static inline uint32_t tqi_ref_slot(tqi_ref_t ref)
{
    return (uint32_t)(ref >> 16);
}
static inline uint32_t tqi_ref_row(tqi_ref_t ref)
{
    return (uint32_t)(ref & 0xffff);
}

typedef struct tqi_field {
    const char *name; /* terminated */
    size_t name_len;
    uint64_t id;       /* ascending, never reused */
    uint64_t refs_cnt; /* leaves, and what tqi_cells_field_ref was called for */
} tqi_field_t;

typedef struct tqi_leaf {
    tqi_field_t *field;
    uint32_t cnt; /* cells that are not empty: whoever writes refs counts */
    tqi_ref_t refs[TQI_BLOCK_ROWS];
} tqi_leaf_t;

typedef struct tqi_block {
    uint64_t id;
    uint64_t dead[TQI_BLOCK_ROWS / TQI_WORD_BITS];
    TQI_VEC(tqi_leaf_t *) leaves; /* ascending by field id */
    uint64_t stamp;               /* of the request that gave it its ordinal */
    uint32_t ordinal;
} tqi_block_t;

#define TQI_NO_BLOCK UINT32_MAX

typedef struct tqi_cells {
    const tqi_env_t *env;
    tqi_map_str_t fields;
    tqi_map_u64_t blocks;
    tqi_intervals_t dead_blocks;
    uint64_t field_id_next;
    uint64_t leaves_cnt;
    uint64_t stamp;
    /* Of the request that was resolved last: */
    TQI_VEC(uint32_t) block_of;     /* one a row: ordinal, or TQI_NO_BLOCK */
    TQI_VEC(tqi_block_t *) touched; /* by ordinal */
    TQI_VEC(tqi_leaf_t *) leaves;   /* by ordinal, of the field selected last; may be NULL */
} tqi_cells_t;

void tqi_cells_init(tqi_cells_t *cells, const tqi_env_t *env);
void tqi_cells_fini(tqi_cells_t *cells);

/* A field by name; is_make: made where it is new. NULL: unknown, or out of memory. A field lives as
 * long as it is referred to; one that was just made and not referred to goes with unref. */
tqi_field_t *tqi_cells_field(tqi_cells_t *cells, tqi_str_t name, bool is_make);
void tqi_cells_field_ref(tqi_field_t *field);
void tqi_cells_field_unref(tqi_cells_t *cells, tqi_field_t *field);

/* Resolves the rows of a request; is_make: blocks are made where they are new and not dead. OK or
 * E_NO_MEMORY. */
tq_status_t tqi_cells_resolve(tqi_cells_t *cells, tqi_u64s_t rows, bool is_make);
/* Selects a field of the resolved request: fills `leaves`. OK or E_NO_MEMORY (is_make only). */
tq_status_t tqi_cells_select(tqi_cells_t *cells, tqi_field_t *field, bool is_make);
/* The i-th row's cell in the selected field, or NULL when it has no leaf. */
static inline tqi_ref_t *tqi_cells_at(const tqi_cells_t *cells, uint32_t i, uint64_t row,
                                      tqi_leaf_t **leaf)
{
    uint32_t ordinal = cells->block_of.at[i];

    *leaf = ordinal == TQI_NO_BLOCK ? NULL : cells->leaves.at[ordinal];
    return *leaf ? &(*leaf)->refs[row % TQI_BLOCK_ROWS] : NULL;
}
/* Frees leaves and blocks of the resolved request that hold nothing. The request is over. */
void tqi_cells_sweep(tqi_cells_t *cells);

bool tqi_cells_is_dead(const tqi_cells_t *cells, uint64_t row);
/* Marks rows [lo, hi) of one block dead and answers its record, or NULL where there is nothing in it
 * (all dead now). OK or E_NO_MEMORY. */
tq_status_t tqi_cells_kill(tqi_cells_t *cells, uint64_t lo, uint64_t hi, tqi_block_t **block);
/* Marks whole blocks dead. Their records must be freed by tqi_cells_tidy. OK or E_NO_MEMORY. */
tq_status_t tqi_cells_kill_blocks(tqi_cells_t *cells, uint64_t lo, uint64_t hi);
/* Frees the block's empty leaves, and the block when it says nothing that dead_blocks does not. */
void tqi_cells_tidy(tqi_cells_t *cells, tqi_block_t *block);

#endif
