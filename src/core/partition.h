/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One partition's table: rows x fields, with what is produced, what each task has consumed, which
 * unit holds a row, its key and its tags. It knows no messages, sessions or time.
 *
 * Rows are named by position (core/index.h). Whatever changes rows takes a mask: one block's rows as
 * 16 words, so that 1,024 rows in a run cost the same few word operations as one. Callers cut their
 * work into masks and count them against their slice.
 *
 * The structs are open to be read; only the functions here change them. Those that can fail reserve
 * first and leave everything as it was; those that return nothing can't.
 *
 * Invariants (checked by tqi_partition_check):
 *   INV-1  a row is in exactly one state, and only moves of core/rowstate.h happen
 *   INV-2  an index is never used twice
 *   INV-3  a ready set is the AND of its fields' production over ACTIVE rows on present units, less
 *          what its task has consumed
 *   INV-4  only ACTIVE rows are produced or consumed
 *   INV-5  the key map and the key column say the same, and only of RESERVED and ACTIVE rows
 *   INV-6  the unit of a row that is not dead has the row in its bitset, and no other unit has
 */
#ifndef TQI_CORE_PARTITION_H
#define TQI_CORE_PARTITION_H

#include <stdbool.h>
#include <stdint.h>

#include <tq/types.h>

#include "base/bitset.h"
#include "base/err.h"
#include "base/list.h"
#include "base/map.h"
#include "base/vec.h"
#include "core/index.h"
#include "core/rowstate.h"
#include "core/tags.h"

/* How many rows an operation handles before it lets the loop go on (DESIGN.md section 2). */
#define TQI_SLICE_ROWS 4096u

/* Rows of one block. */
typedef struct tqi_mask {
    uint64_t ordinal;
    uint64_t words[TQI_LEAF_WORDS];
} tqi_mask_t;

typedef struct tqi_field {
    const char *name; /* terminated */
    uint32_t name_len;
    uint32_t id; /* place in fields */
    tqi_bits_t produced;
    tq_schema_t schema; /* a hint; all zero while nothing is produced */
    uint64_t mark;      /* scratch: equal to the partition's while the field is in a set of them */
} tqi_field_t;

typedef struct tqi_task {
    const char *name; /* terminated */
    uint32_t name_len;
    tqi_bits_t consumed; /* provisional grants included */
    tqi_list_t waiters;  /* tqi_waiter_t, in order of arrival */
    tqi_list_t grants;   /* tqi_grant_t, provisional ones */
} tqi_task_t;

/* A unit's rows in this partition. */
typedef struct tqi_placed {
    uint32_t unit;
    tqi_bits_t rows; /* until they are dead */
    bool is_absent;  /* its rows are out of the ready sets */
    /* Of the role's, while it brings the partition up to date with the unit's fate. */
    bool is_syncing;
    bool sync_absent;
    bool sync_wipe;
    uint64_t sync_at;
    uint64_t wipes_seen;
    uint64_t life_seen; /* the unit's incarnation that production speaks of */
} tqi_placed_t;

typedef struct tqi_partition {
    const tqi_env_t *env;
    tqi_index_t index;
    tqi_bits_t state[TQI_ROW_DEAD]; /* by tqi_row_state_t; DEAD is the absence of the others */
    tqi_bits_t unlisted;            /* made by puts, nothing published into them yet */
    tqi_bits_t absent;              /* rows on units that are lost */
    tqi_bits_t ahead;               /* made ahead of use and not handed out yet */
    tqi_map_str_t field_map;
    TQI_VEC(tqi_field_t *) fields; /* by id */
    TQI_VEC(tqi_field_t *) sorted; /* the same, by name */
    tqi_map_str_t tasks;
    TQI_VEC(tqi_placed_t *) placed;
    tqi_map_str_t keys; /* to position + 1 */
    tqi_list_t ready;   /* tqi_ready_t, least recently used first */
    uint64_t mark;
    uint64_t changes;      /* grows whenever a waiter may have come to be worth a look */
    uint64_t rows_made;    /* ever */
    uint64_t cells_lost;   /* un-produced because a unit lost them */
    uint64_t payload_rows; /* for the mean row size: rows of puts that said their size */
    uint64_t payload_bytes;
} tqi_partition_t;

void tqi_partition_init(tqi_partition_t *p, const tqi_env_t *env, tqi_index_source_t *source);
/* Waiters and grants must have left. */
void tqi_partition_fini(tqi_partition_t *p);

/* ---- rows ---- */

/* Makes `cnt` rows ahead of use: RESERVED, listed, handed out before any new ones. E_NO_MEMORY;
 * E_TOO_LARGE over TQ_PARTITION_ROWS_MAX. cnt <= TQI_SLICE_ROWS. */
tq_status_t tqi_partition_prealloc(tqi_partition_t *p, uint32_t cnt, tqi_err_t *err);

/* Hands out the next rows, in position order: a run [*lo, *lo + *got), 1 <= *got <= want. Rows made
 * ahead come first. is_unlisted: rows of a put. want <= TQI_SLICE_ROWS. Errors as above. */
tq_status_t tqi_partition_take(tqi_partition_t *p, uint32_t want, bool is_unlisted, uint64_t *lo,
                               uint32_t *got, tqi_err_t *err);

/* Rows that are neither clearing nor dead. */
static inline uint64_t tqi_partition_rows_cnt(const tqi_partition_t *p)
{
    return tqi_bits_count(&p->state[TQI_ROW_RESERVED]) + tqi_bits_count(&p->state[TQI_ROW_ACTIVE]);
}
/* Of those, the ones that a listing shows: all but rows of puts with nothing published. */
static inline uint64_t tqi_partition_listed_cnt(const tqi_partition_t *p)
{
    return tqi_partition_rows_cnt(p) - tqi_bits_count(&p->unlisted);
}
/* Any position. */
tqi_row_state_t tqi_partition_state(const tqi_partition_t *p, uint64_t pos);
bool tqi_partition_is_live(const tqi_partition_t *p, uint64_t pos);
bool tqi_partition_is_listed(const tqi_partition_t *p, uint64_t pos);
/* The block's rows that a listing shows. */
void tqi_partition_listed(const tqi_partition_t *p, uint64_t ordinal,
                          uint64_t words[TQI_LEAF_WORDS]);
/* The block's rows that are RESERVED or ACTIVE. */
void tqi_partition_live(const tqi_partition_t *p, uint64_t ordinal, uint64_t words[TQI_LEAF_WORDS]);
/* A row that a put made is to stay whatever becomes of the put. */
void tqi_partition_keep(tqi_partition_t *p, uint64_t pos);

/* Pending puts: counts one more (E_NO_MEMORY), or one less, at each row of the mask. *orphans gets
 * those that now have none and that nothing was ever published into: they are to be cleared. */
tq_status_t tqi_partition_pend(tqi_partition_t *p, const tqi_mask_t *mask);
void tqi_partition_unpend(tqi_partition_t *p, const tqi_mask_t *mask, tqi_mask_t *orphans);

/* ---- placement ---- */

/* Says that rows [lo, hi), not placed before, are on `unit`. E_NO_MEMORY. */
tq_status_t tqi_partition_place(tqi_partition_t *p, uint64_t lo, uint64_t hi, uint32_t unit);
/* out[i] = unit of pos[i]; 0 where it is not placed or dead, or pos[i] is TQI_POS_NONE. */
void tqi_partition_units(const tqi_partition_t *p, const uint64_t *pos, uint32_t cnt,
                         uint32_t *out);
tqi_placed_t *tqi_partition_placed(const tqi_partition_t *p, uint32_t unit);
/* Takes the unit's rows of a block out of the ready sets, or puts them back. The caller walks all
 * blocks and then calls the second. */
void tqi_partition_absent(tqi_partition_t *p, tqi_placed_t *placed, uint64_t ordinal,
                          bool is_absent);
void tqi_partition_absent_done(tqi_placed_t *placed, bool is_absent);
/* The unit has lost what it held of the block: its cells are un-produced and counted. */
void tqi_partition_wipe(tqi_partition_t *p, tqi_placed_t *placed, uint64_t ordinal);

/* ---- fields, production ---- */

tqi_field_t *tqi_partition_field(const tqi_partition_t *p, const void *name, size_t len);
/* Finds or makes. E_NO_MEMORY; E_TOO_LARGE over TQ_PARTITION_FIELDS_MAX. */
tq_status_t tqi_partition_field_make(tqi_partition_t *p, const void *name, size_t len,
                                     tqi_field_t **out, tqi_err_t *err);
/* Makes it possible to publish the fields for the mask's rows. E_NO_MEMORY. */
tq_status_t tqi_partition_publish_reserve(tqi_partition_t *p, tqi_field_t *const *fields,
                                          uint32_t fields_cnt, const tqi_mask_t *mask);
/* The fields (reserved before) are produced for the mask's rows, all RESERVED or ACTIVE. No fields:
 * something else of them was published. */
void tqi_partition_publish(tqi_partition_t *p, tqi_field_t *const *fields, uint32_t fields_cnt,
                           const tqi_mask_t *mask);
/* Leaves in words the rows that are RESERVED or ACTIVE and for which all fields are produced. */
void tqi_partition_and_produced(const tqi_partition_t *p, tqi_field_t *const *fields,
                                uint32_t fields_cnt, tqi_mask_t *mask);
/* Takes out of common[] the fields that some row of the mask lacks; keeps the order. */
uint32_t tqi_partition_common(tqi_field_t **common, uint32_t cnt, const tqi_mask_t *mask);

/* ---- keys, tags ---- */

/* Position of a key, or TQI_POS_NONE. */
uint64_t tqi_partition_key(const tqi_partition_t *p, const void *key, size_t len);
/* Gives a row that has none a key that is not there. E_NO_MEMORY. */
tq_status_t tqi_partition_key_set(tqi_partition_t *p, uint64_t pos, const void *key, size_t len);
/* The row's key (not terminated by len alone: a NUL follows), or NULL. */
const char *tqi_partition_key_of(const tqi_partition_t *p, uint64_t pos, size_t *len);
/* The row's tags; NULL is an empty map. */
const tqi_tags_t *tqi_partition_tags(const tqi_partition_t *p, uint64_t pos);
/* Makes room for the block's tags, so that setting can't fail. E_NO_MEMORY. */
tq_status_t tqi_partition_tags_reserve(tqi_partition_t *p, uint64_t ordinal);
/* Takes the new tags (NULL: empty) and frees the old. Reserved before. */
void tqi_partition_tags_set(tqi_partition_t *p, uint64_t pos, tqi_tags_t *tags);

/* ---- clearing ---- */

/* RESERVED and ACTIVE rows of the mask become CLEARING: nothing of them is produced, consumed or
 * ready any more, keys and tags are gone. on_key (may be NULL) sees each key before it goes. *cleared
 * gets those rows. */
typedef void (*tqi_key_fn)(void *ctx, const char *key, size_t len);
void tqi_partition_clear(tqi_partition_t *p, const tqi_mask_t *mask, tqi_mask_t *cleared,
                         tqi_key_fn on_key, void *ctx);
/* The mask's rows, all CLEARING, are DEAD. True if the whole block is dead now: then *block is its
 * number (index / 1,024). */
bool tqi_partition_bury(tqi_partition_t *p, const tqi_mask_t *mask, uint64_t *block);
/* Drops leading dead blocks everywhere. */
void tqi_partition_drop_dead(tqi_partition_t *p);

/* ---- tasks, consumption ---- */

tqi_task_t *tqi_partition_task(const tqi_partition_t *p, const void *name, size_t len);
/* Finds or makes. E_NO_MEMORY; E_TOO_LARGE over TQ_PARTITION_TASKS_MAX. */
tq_status_t tqi_partition_task_make(tqi_partition_t *p, const void *name, size_t len,
                                    tqi_task_t **out, tqi_err_t *err);
/* The mask's rows, all ACTIVE, are consumed by the task. Reserve first. */
tq_status_t tqi_partition_consume_reserve(tqi_task_t *task, const tqi_mask_t *mask);
void tqi_partition_consume(tqi_partition_t *p, tqi_task_t *task, const tqi_mask_t *mask);
/* The mask's rows are not consumed (any more); any rows. */
void tqi_partition_unconsume(tqi_partition_t *p, tqi_task_t *task, const tqi_mask_t *mask);

/* ---- masks ---- */

/* The next block at or after *ordinal that has bits in the set; *ordinal then is the one after.
 *     for (uint64_t at = 0; tqi_mask_next(&bits, &at, &mask);) */
bool tqi_mask_next(const tqi_bits_t *bits, uint64_t *ordinal, tqi_mask_t *mask);
static inline bool tqi_mask_any(const tqi_mask_t *mask)
{
    return tqi_leaf_any(mask->words);
}
static inline uint32_t tqi_mask_count(const tqi_mask_t *mask)
{
    return tqi_leaf_count(mask->words);
}
/* The mask of one run inside one block. */
tqi_mask_t tqi_mask_run(uint64_t lo, uint64_t hi);

/* Walks everything. False and the reason in err. */
bool tqi_partition_check(const tqi_partition_t *p, tqi_err_t *err);

#endif
