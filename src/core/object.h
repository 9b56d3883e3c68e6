/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: what a unit holds, and what may happen to it.
 *
 * A put arrives in batches: one PREPARE each, some rows by some fields. A batch is open while its
 * bytes arrive: its empty cells are claimed, so that another put's PREPARE there waits instead of
 * meeting it at COMMIT. COMMIT replaces published objects at once; the rest is staged under the
 * put_id until that is confirmed, or a request carries the controller's word that the cell is
 * produced. A batch with nothing claimed or staged is settled and forgotten; its runs stay.
 *
 *   cell:  EMPTY -> CLAIMED -> STAGED -> PUBLISHED -> (replaced by PUBLISHED)    any -> dead row
 *
 * Rows that are dead take no object any more. What readers have pinned outlives its cell as zombie
 * bytes, which count against the capacity like all others.
 *
 * One owner; nothing here blocks, waits or knows of time.
 */
#ifndef TQI_CORE_OBJECT_H
#define TQI_CORE_OBJECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/env.h"
#include "base/err.h"
#include "base/list.h"
#include "base/vec.h"
#include "core/run.h"
#include "core/segment.h"
#include "wire/msg.h"

/* What a unit remembers of its objects is memory too, and is bounded by its capacity, or by this
 * where that is less. */
#define TQI_META_BYTES_MIN (UINT64_C(64) << 20)

typedef struct tqi_objects tqi_objects_t;

typedef struct tqi_objects_conf {
    uint64_t capacity_bytes;
    uint32_t column_reserve_percent; /* of it, kept for puts whose rows have a produced field */
    uint64_t segment_bytes;
    uint32_t segment_id_first; /* at least 1 */
    uint64_t idle_bytes_max;
} tqi_objects_conf_t;

/* NULL when out of memory. */
tqi_objects_t *tqi_objects_new(const tqi_env_t *env, const tqi_objects_conf_t *conf,
                               const tqi_segment_ops_t *ops);
/* Every batch must have been committed, cancelled or doomed and freed, every view unpinned. */
void tqi_objects_free(tqi_objects_t *objs);

/* The id that the next segment will get: where another one over the same arena goes on. */
uint32_t tqi_objects_segment_next(const tqi_objects_t *objs);

/* What an error is about, where that helps. */
#define TQI_BLAME_ROWS_MAX 64u
typedef struct tqi_blame {
    uint32_t rows_cnt; /* the first ones */
    uint64_t rows[TQI_BLAME_ROWS_MAX];
    tqi_str_t field; /* data NULL: none; a view into the request */
} tqi_blame_t;

/* ---- writing ---------------------------------------------------------------------------------- */

typedef struct tqi_batch {
    uint64_t put_id;
    uint64_t session;
    uint64_t fused_transfer; /* the transfer that it came and was committed with, or 0 */
    uint32_t rows_cnt;
    uint32_t fields_cnt;
    uint64_t pending_cnt; /* cells that are claimed or staged */
    uint64_t cost_bytes;  /* of its extents */
    bool is_open;
    bool is_doomed;
    struct tqi_put *put;
    tqi_node_t node;  /* in the put */
    uint64_t *rows;   /* in request order */
    tqi_run_t **runs; /* one a field: where its frame goes is runs[f]->span, runs[f]->bytes */
    struct tqi_field **fields;
    size_t alloc_bytes;
} tqi_batch_t;

/* Views into the request; nothing of it is kept. */
typedef struct tqi_prepare {
    uint64_t session;
    uint64_t transfer;
    uint64_t put_id;
    tqi_u64s_t rows;
    tqi_strs_t fields;
    tqi_strs_t columns;
    tqi_bytes_t produced; /* bit r * fields + f; may be short */
    bool is_column;
    bool is_fused; /* the frames together must be exactly fused_bytes long */
    uint64_t fused_bytes;
} tqi_prepare_t;

/* Takes extents and claims cells; all or nothing. What the same put has staged there before, in an
 * attempt whose answer it did not wait for, goes.
 *   E_FULL      no space, or no room to remember it, now } the same call may
 *   E_BUSY      another put claimed or staged a cell     } succeed later
 *   E_TOO_LARGE more than the capacity, or over a limit
 *   E_ROW_GONE  rows that are dead (blame)
 *   E_DUPLICATE a row twice, or a cell that this put is writing already
 *   E_DENIED    the put is another session's
 *   E_INVALID, E_MALFORMED, E_NO_MEMORY, E_SYSTEM. */
tq_status_t tqi_objects_prepare(tqi_objects_t *objs, const tqi_prepare_t *req, tqi_batch_t **out,
                                tqi_blame_t *blame, tqi_err_t *err);
/* All bytes are there. The batch is no longer the caller's. E_ROW_GONE: nothing was changed, the
 * batch is still open: cancel it. */
tq_status_t tqi_objects_commit(tqi_objects_t *objs, tqi_batch_t *batch, tqi_blame_t *blame,
                               tqi_err_t *err);
/* Gives up an open batch that nobody writes to any more: its cells and its memory. */
void tqi_objects_cancel(tqi_objects_t *objs, tqi_batch_t *batch);
/* Gives up an open batch whose memory a writer may still touch: its cells now, its memory (zombie
 * bytes until then) with tqi_objects_cancel. */
void tqi_objects_doom(tqi_objects_t *objs, tqi_batch_t *batch);

/* The put was published: its staged objects become readable. Unknown put_ids are skipped. Return
 * the number of cells looked at. */
uint64_t tqi_objects_confirm(tqi_objects_t *objs, uint64_t put_id);
/* The put, of that session, failed: its staged objects are freed; what it replaced stays replaced.
 * Open batches are the caller's. */
uint64_t tqi_objects_abort(tqi_objects_t *objs, uint64_t put_id, uint64_t session);
/* A fused PREPARE was given up before its answer came: what it staged is freed. False: nothing is
 * staged that came with it. */
bool tqi_objects_abort_fused(tqi_objects_t *objs, uint64_t session, uint64_t transfer);
/* Any put of the session that has staged objects, or 0. */
uint64_t tqi_objects_staged_put(const tqi_objects_t *objs, uint64_t session);

/* Rows [*lo, hi) are dead from now on; what is in their cells goes, pinned bytes when they are
 * unpinned. Does about cells_max cells' worth of it and moves *lo on; call again until *lo == hi.
 * E_NO_MEMORY: the same call may be made again. */
tq_status_t tqi_objects_unlink(tqi_objects_t *objs, uint64_t *lo, uint64_t hi, uint64_t cells_max);

/* ---- reading ---------------------------------------------------------------------------------- */

typedef struct tqi_range {
    tqi_run_t *run;
    uint32_t lo;
    uint32_t cnt;
} tqi_range_t;

typedef struct tqi_view_field {
    size_t ranges_end; /* in the view's ranges; its first is the end of the field before */
    uint64_t bytes;
} tqi_view_field_t;

/* The objects that a read found, by field, rows in request order. Unpinned, it is good until the
 * objects change. */
typedef struct tqi_view {
    uint32_t rows_cnt;
    uint64_t bytes; /* of all frames */
    bool is_pinned;
    TQI_VEC(tqi_range_t) ranges;
    TQI_VEC(tqi_view_field_t) fields;
} tqi_view_t;

void tqi_view_init(tqi_view_t *view, const tqi_env_t *env);
void tqi_view_fini(tqi_view_t *view); /* not pinned */
/* What it remembers, in bytes of memory. */
static inline uint64_t tqi_view_bytes(const tqi_view_t *view)
{
    return view->ranges.cap * sizeof *view->ranges.at + view->fields.cap * sizeof *view->fields.at;
}

/* E_NOT_FOUND: dead rows. E_NOT_PRODUCED: nothing to read at a cell. E_INVALID, E_NO_MEMORY. */
tq_status_t tqi_objects_read(tqi_objects_t *objs, tqi_u64s_t rows, tqi_strs_t fields,
                             tqi_bytes_t produced, tqi_view_t *view, tqi_blame_t *blame,
                             tqi_err_t *err);
void tqi_objects_pin(tqi_objects_t *objs, tqi_view_t *view);
void tqi_objects_unpin(tqi_objects_t *objs, tqi_view_t *view);
/* Appends the column descriptors of field f (wire/coldesc.h). */
tq_status_t tqi_view_column(const tqi_view_t *view, uint32_t f, tqi_buf_t *buf, tqi_err_t *err);
/* Copies all frames, in field order: view->bytes. */
void tqi_view_copy(const tqi_view_t *view, void *dst);

/* ---- the whole -------------------------------------------------------------------------------- */

typedef struct tqi_objects_stat {
    uint64_t capacity_bytes;
    uint64_t used_bytes; /* of extents, zombies included */
    uint64_t zombie_bytes;
    uint64_t idle_bytes;
    uint64_t meta_bytes; /* of memory for cells, runs and segments, beside the bytes themselves */
    uint64_t mapped_bytes;
    uint32_t segments_cnt;
    uint64_t published_cnt; /* cells */
    uint64_t staged_cnt;
    uint64_t claimed_cnt;
    uint64_t pinned_cnt; /* rows of runs, as often as they are pinned */
    uint64_t runs_cnt;
    uint64_t puts_cnt; /* with staged objects or open batches */
    uint64_t fields_cnt;
    uint64_t blocks_cnt;
} tqi_objects_stat_t;
void tqi_objects_stat(const tqi_objects_t *objs, tqi_objects_stat_t *out);

/* Walks everything: extents make up what is used, each granule once; references, runs, pins and
 * counts agree. E_BUG with the sentence, E_NO_MEMORY. */
tq_status_t tqi_objects_check(tqi_objects_t *objs, tqi_err_t *err);

#endif
