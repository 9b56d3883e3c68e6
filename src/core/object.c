/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests go through their cells in field order, rows within a field, so that neighbours in a
 * request are neighbours in leaves and runs. What leaves cells is collected into ranges of one run
 * and dropped a range at a time: clearing a column is one give-back.
 *
 * INV-11, INV-14 and INV-15 of docs/architecture.md are audited at the end of this file. An open
 * batch's claimed cells count in pending_cnt; its rows stay kept whatever happens to their cells,
 * because a writer may be writing them.
 */
#include "core/object.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/map.h"
#include "base/size.h"
#include "core/cells.h"

/* A put with batches that are not settled. */
typedef struct tqi_put {
    uint64_t put_id;
    uint64_t session;
    tqi_list_t batches;
} put_t;

/* One PREPARE may take so much of it, or half, if that is less. */
#define META_BYTES_A_REQUEST (UINT64_C(1) << 30)

struct tqi_objects {
    const tqi_env_t *env; /* counts; all but the struct itself comes from it */
    const tqi_env_t *outer;
    tqi_env_t counting;
    uint64_t meta_bytes;
    uint64_t meta_bytes_max;
    bool is_bounded; /* a PREPARE is at work */
    bool was_refused;
    tqi_objects_conf_t conf;
    uint64_t plain_bytes_max; /* capacity without the column reserve */
    tqi_segments_t *segs;
    tqi_cells_t cells;
    tqi_map_u64_t puts;
    TQI_VEC(tqi_run_t *) runs;      /* by slot; [0] is never used */
    TQI_VEC(uint32_t) slots_free;   /* has room for every slot */
    TQI_VEC(tqi_coldesc_t) columns; /* of the PREPARE being looked at */
    uint64_t runs_cnt;
    uint64_t zombie_bytes;
    uint64_t published_cnt;
    uint64_t staged_cnt;
    uint64_t claimed_cnt;
    uint64_t pinned_cnt;
};

/* Only a PREPARE is refused: what makes room must not fail for want of it. */
static void *counted_mem(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    tqi_objects_t *objs = ctx;
    void *result;

    if (new_size > old_size && objs->is_bounded &&
        objs->meta_bytes + (new_size - old_size) > objs->meta_bytes_max) {
        objs->was_refused = true;
        return NULL;
    }
    result = objs->outer->mem(objs->outer->ctx, ptr, old_size, new_size);
    if (result || new_size == 0)
        objs->meta_bytes += new_size - old_size;
    return result;
}

tqi_objects_t *tqi_objects_new(const tqi_env_t *outer, const tqi_objects_conf_t *conf,
                               const tqi_segment_ops_t *ops)
{
    tqi_objects_t *objs = tqi_env_zalloc(outer, sizeof *objs);
    const tqi_env_t *env;

    if (!objs)
        return NULL;
    objs->outer = outer;
    objs->counting = (tqi_env_t){objs, counted_mem, outer->hash_seed};
    objs->env = env = &objs->counting;
    objs->meta_bytes_max = tqi_u64_max(conf->capacity_bytes, TQI_META_BYTES_MIN);
    objs->conf = *conf;
    objs->plain_bytes_max =
        conf->capacity_bytes - conf->capacity_bytes / 100 * conf->column_reserve_percent;
    tqi_cells_init(&objs->cells, env);
    tqi_map_u64_init(&objs->puts, env);
    tqi_vec_init(&objs->runs, env);
    tqi_vec_init(&objs->slots_free, env);
    tqi_vec_init(&objs->columns, env);
    objs->segs = tqi_segments_new(env, ops, conf->segment_bytes, conf->idle_bytes_max,
                                  conf->segment_id_first);
    if (!objs->segs || tqi_vec_push(&objs->runs, NULL) != TQ_OK) {
        tqi_objects_free(objs);
        return NULL;
    }
    return objs;
}

uint32_t tqi_objects_segment_next(const tqi_objects_t *objs)
{
    return tqi_segments_id_next(objs->segs);
}

/* ---- runs and batches ------------------------------------------------------------------------- */

static tqi_run_t *run_of(const tqi_objects_t *objs, tqi_ref_t ref)
{
    return objs->runs.at[tqi_ref_slot(ref)];
}

static tq_status_t run_add(tqi_objects_t *objs, tqi_run_t *run)
{
    if (objs->slots_free.len > 0) {
        run->slot = objs->slots_free.at[--objs->slots_free.len];
    } else {
        /* Room to take the slot back is made now, so that freeing a run can't fail. */
        if (tqi_vec_reserve(&objs->runs, 1) != TQ_OK ||
            tqi_vec_reserve(&objs->slots_free, objs->runs.len + 1) != TQ_OK)
            return TQ_E_NO_MEMORY;
        run->slot = (uint32_t)objs->runs.len++;
    }
    objs->runs.at[run->slot] = run;
    objs->runs_cnt++;
    return TQ_OK;
}

static void run_remove(tqi_objects_t *objs, tqi_run_t *run)
{
    objs->runs.at[run->slot] = NULL;
    objs->slots_free.at[objs->slots_free.len++] = run->slot;
    objs->runs_cnt--;
    tqi_run_free(objs->env, run);
}

static void run_remove_if_done(tqi_objects_t *objs, tqi_run_t *run)
{
    if (run->live_cnt == 0 && !run->batch)
        run_remove(objs, run);
}

static void *carve(uint8_t *base, size_t *at, size_t bytes)
{
    void *part = base ? base + *at : NULL;

    *at += (bytes + 7) & ~(size_t)7;
    return part;
}

static tqi_batch_t *batch_new(tqi_objects_t *objs, const tqi_prepare_t *req)
{
    size_t bytes = sizeof(tqi_batch_t);
    size_t at = sizeof(tqi_batch_t);
    tqi_batch_t *batch;

    carve(NULL, &bytes, (size_t)req->rows.cnt * sizeof(uint64_t));
    carve(NULL, &bytes, (size_t)req->fields.cnt * sizeof(tqi_run_t *));
    carve(NULL, &bytes, (size_t)req->fields.cnt * sizeof(tqi_field_t *));
    batch = tqi_env_zalloc(objs->env, bytes);
    if (!batch)
        return NULL;
    batch->alloc_bytes = bytes;
    batch->put_id = req->put_id;
    batch->session = req->session;
    batch->fused_transfer = req->is_fused ? req->transfer : 0;
    batch->rows_cnt = req->rows.cnt;
    batch->fields_cnt = req->fields.cnt;
    batch->is_open = true;
    batch->rows = carve((uint8_t *)batch, &at, (size_t)req->rows.cnt * sizeof(uint64_t));
    batch->runs = carve((uint8_t *)batch, &at, (size_t)req->fields.cnt * sizeof(tqi_run_t *));
    batch->fields = carve((uint8_t *)batch, &at, (size_t)req->fields.cnt * sizeof(tqi_field_t *));
    memcpy(batch->rows, req->rows.data, (size_t)req->rows.cnt * sizeof(uint64_t));
    return batch;
}

static tq_status_t batch_join_put(tqi_objects_t *objs, tqi_batch_t *batch)
{
    put_t *put = tqi_map_u64_get(&objs->puts, batch->put_id);

    if (!put) {
        put = tqi_env_zalloc(objs->env, sizeof *put);
        if (!put)
            return TQ_E_NO_MEMORY;
        put->put_id = batch->put_id;
        put->session = batch->session;
        tqi_list_init(&put->batches);
        if (tqi_map_u64_put(&objs->puts, put->put_id, put, NULL) != TQ_OK) {
            tqi_env_free(objs->env, put, sizeof *put);
            return TQ_E_NO_MEMORY;
        }
    }
    batch->put = put;
    tqi_list_push_back(&put->batches, &batch->node);
    return TQ_OK;
}

/* Frees the batch; its runs live on for as long as they have live rows. */
static void batch_free(tqi_objects_t *objs, tqi_batch_t *batch)
{
    put_t *put = batch->put;

    for (uint32_t f = 0; f < batch->fields_cnt; f++) {
        if (batch->runs[f]) {
            batch->runs[f]->batch = NULL;
            run_remove_if_done(objs, batch->runs[f]);
        }
        if (batch->fields[f])
            tqi_cells_field_unref(&objs->cells, batch->fields[f]);
    }
    if (put) {
        tqi_list_remove(&put->batches, &batch->node);
        if (put->batches.cnt == 0) {
            tqi_map_u64_take(&objs->puts, put->put_id);
            tqi_env_free(objs->env, put, sizeof *put);
        }
    }
    tqi_env_free(objs->env, batch, batch->alloc_bytes);
}

static void batch_less_pending(tqi_objects_t *objs, tqi_batch_t *batch, uint64_t cnt)
{
    tqi_assert(batch->pending_cnt >= cnt);
    batch->pending_cnt -= cnt;
    if (batch->pending_cnt == 0 && !batch->is_open)
        batch_free(objs, batch);
}

/* ---- cells ------------------------------------------------------------------------------------ */

static uint64_t *state_cnt(tqi_objects_t *objs, tqi_cell_state_t state)
{
    tqi_assert(state != TQI_CELL_EMPTY);
    return state == TQI_CELL_CLAIMED  ? &objs->claimed_cnt
           : state == TQI_CELL_STAGED ? &objs->staged_cnt
                                      : &objs->published_cnt;
}

/* The one place where a cell changes. May settle, and so free, the batch that its object came in. */
static void cell_set(tqi_objects_t *objs, tqi_leaf_t *leaf, tqi_ref_t *cell, tqi_ref_t ref)
{
    tqi_ref_t old = *cell;

    if (old) {
        leaf->cnt--;
        (*state_cnt(objs, tqi_ref_state(old)))--;
    }
    if (ref) {
        leaf->cnt++;
        (*state_cnt(objs, tqi_ref_state(ref)))++;
    }
    *cell = ref;
}

static bool is_pending(tqi_ref_t ref)
{
    return ref && tqi_ref_state(ref) != TQI_CELL_PUBLISHED;
}

static void cell_publish(tqi_objects_t *objs, tqi_leaf_t *leaf, tqi_ref_t *cell)
{
    tqi_batch_t *batch = run_of(objs, *cell)->batch;

    cell_set(objs, leaf, cell,
             tqi_ref(TQI_CELL_PUBLISHED, tqi_ref_slot(*cell), tqi_ref_row(*cell)));
    batch_less_pending(objs, batch, 1);
}

/* Collects what cells gave up into ranges of one run. */
typedef struct dropper {
    tqi_objects_t *objs;
    tqi_run_t *run;
    uint32_t lo;
    uint32_t cnt;
    uint32_t pending; /* of them, claimed or staged before */
} dropper_t;

static void dropper_flush(dropper_t *d)
{
    tqi_run_t *run = d->run;

    if (!run)
        return;
    d->run = NULL;
    if (run->batch && run->batch->is_open) {
        batch_less_pending(d->objs, run->batch, d->pending);
        return;
    }
    d->objs->zombie_bytes += tqi_run_drop(run, d->objs->segs, d->lo, d->cnt);
    if (d->pending > 0) {
        tqi_batch_t *batch = run->batch;

        /* Keep the run from going twice: settling its batch looks at it too. */
        if (batch->pending_cnt == d->pending) {
            batch_less_pending(d->objs, batch, d->pending);
            return;
        }
        batch_less_pending(d->objs, batch, d->pending);
    }
    run_remove_if_done(d->objs, run);
}

/* The object of a cell that was just emptied or replaced. */
static void dropper_add(dropper_t *d, tqi_ref_t ref)
{
    tqi_run_t *run = run_of(d->objs, ref);
    uint32_t row = tqi_ref_row(ref);

    if (d->run == run && row == d->lo + d->cnt) {
        d->cnt++;
        d->pending += is_pending(ref);
        return;
    }
    dropper_flush(d);
    d->run = run;
    d->lo = row;
    d->cnt = 1;
    d->pending = is_pending(ref);
}

/* ---- prepare ---------------------------------------------------------------------------------- */

static bool is_marked(tqi_bytes_t produced, uint64_t bit)
{
    return bit / 8 < produced.len && ((const uint8_t *)produced.data)[bit / 8] >> (bit % 8) & 1;
}

static void blame_row(tqi_blame_t *blame, uint64_t row)
{
    if (blame->rows_cnt < TQI_BLAME_ROWS_MAX)
        blame->rows[blame->rows_cnt++] = row;
}

static int name_len(tqi_str_t name)
{
    return name.len > 128 ? 128 : (int)name.len;
}

/* The rows of the resolved request that are dead go into blame. */
static tq_status_t check_rows_live(tqi_objects_t *objs, tqi_u64s_t rows, tq_status_t status,
                                   tqi_blame_t *blame, tqi_err_t *err)
{
    const tqi_cells_t *cells = &objs->cells;
    uint32_t dead_cnt = 0;

    for (uint32_t i = 0; i < rows.cnt; i++) {
        uint64_t row = tqi_u64s_at(rows, i);
        uint32_t ordinal = cells->block_of.at[i];
        bool is_dead = ordinal == TQI_NO_BLOCK
                           ? tqi_intervals_contains(&cells->dead_blocks, row / TQI_BLOCK_ROWS)
                           : tqi_words_test(cells->touched.at[ordinal]->dead, row % TQI_BLOCK_ROWS);

        if (is_dead) {
            dead_cnt++;
            blame_row(blame, row);
        }
    }
    if (dead_cnt == 0)
        return TQ_OK;
    return tqi_fail(err, status, "%u of %u rows have been cleared, the first of them %" PRIu64,
                    dead_cnt, rows.cnt, blame->rows[0]);
}

static tq_status_t check_fields(tqi_strs_t fields, tqi_u64s_t rows, tqi_err_t *err)
{
    if (rows.cnt == 0 || fields.cnt == 0)
        return tqi_fail(err, TQ_E_INVALID, "a request for %u rows and %u fields", rows.cnt,
                        fields.cnt);
    for (uint32_t i = 0; i < rows.cnt; i++)
        if (tqi_u64s_at(rows, i) > TQ_ROW_MAX)
            return tqi_fail(err, TQ_E_INVALID, "%" PRIu64 " is no row", tqi_u64s_at(rows, i));
    for (uint32_t f = 0; f < fields.cnt; f++) {
        tqi_str_t name = tqi_strs_at(fields, f);

        if (name.len == 0 || name.len > TQ_NAME_MAX)
            return tqi_fail(err, TQ_E_INVALID, "a field's name has %u bytes, not 1 to %d", name.len,
                            TQ_NAME_MAX);
    }
    return TQ_OK;
}

/* Decodes the columns; what they cost together is *cost. */
static tq_status_t decode_columns(tqi_objects_t *objs, const tqi_prepare_t *req, uint64_t *cost,
                                  tqi_err_t *err)
{
    uint64_t frames_bytes = 0;
    uint64_t descs_cnt = 0;
    tq_status_t rc = TQ_OK;

    if (req->columns.cnt != req->fields.cnt)
        return tqi_fail(err, TQ_E_MALFORMED, "%u fields, but %u columns", req->fields.cnt,
                        req->columns.cnt);
    objs->columns.len = 0;
    if (tqi_vec_reserve(&objs->columns, req->fields.cnt) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %u columns", req->fields.cnt);
    *cost = 0;
    for (uint32_t f = 0; f < req->fields.cnt; f++) {
        tqi_coldesc_t *col = &objs->columns.at[f];
        tqi_str_t name = tqi_strs_at(req->fields, f);

        rc = tqi_coldesc_decode(tqi_strs_at(req->columns, f), req->rows.cnt, col, err);
        if (rc != TQ_OK) {
            tqi_err_prefix(err, "field '%.*s'", name_len(name), (const char *)name.data);
            return rc;
        }
        descs_cnt += col->descs_cnt;
        if (!tqi_u64_add(frames_bytes, col->frame_bytes, &frames_bytes) ||
            !tqi_u64_add(*cost, tqi_segments_cost(col->frame_bytes), cost))
            return tqi_fail(err, TQ_E_TOO_LARGE, "the columns are over 2^64 bytes");
    }
    if (descs_cnt > TQ_REQUEST_DESCS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "%" PRIu64 " descriptors, over the limit of %u",
                        descs_cnt, TQ_REQUEST_DESCS_MAX);
    if (req->is_fused && frames_bytes != req->fused_bytes)
        return tqi_fail(err, TQ_E_MALFORMED,
                        "%" PRIu64 " bytes of payload, but the columns say %" PRIu64,
                        req->fused_bytes, frames_bytes);
    return TQ_OK;
}

/* Publishes what the controller said is produced, then looks for cells that other puts hold. */
static tq_status_t check_cells(tqi_objects_t *objs, const tqi_prepare_t *req, tqi_blame_t *blame,
                               tqi_err_t *err)
{
    for (uint32_t f = 0; f < req->fields.cnt; f++) {
        tqi_str_t name = tqi_strs_at(req->fields, f);
        tqi_field_t *field = tqi_cells_field(&objs->cells, name, false);

        if (!field)
            continue;
        tqi_cells_select(&objs->cells, field, false);
        for (uint32_t i = 0; i < req->rows.cnt; i++) {
            uint64_t row = tqi_u64s_at(req->rows, i);
            tqi_leaf_t *leaf;
            tqi_ref_t *cell = tqi_cells_at(&objs->cells, i, row, &leaf);

            if (!cell || !is_pending(*cell))
                continue;
            if (tqi_ref_state(*cell) == TQI_CELL_STAGED &&
                is_marked(req->produced, (uint64_t)i * req->fields.cnt + f)) {
                cell_publish(objs, leaf, cell);
                continue;
            }
            bool is_own = run_of(objs, *cell)->put_id == req->put_id;

            if (is_own && tqi_ref_state(*cell) == TQI_CELL_STAGED)
                continue; /* an earlier attempt's: claimed from it */
            blame_row(blame, row);
            blame->field = name;
            if (is_own)
                return tqi_fail(err, TQ_E_DUPLICATE,
                                "row %" PRIu64 ", field '%.*s': this put is writing it already",
                                row, name_len(name), (const char *)name.data);
            return tqi_fail(err, TQ_E_BUSY,
                            "row %" PRIu64 ", field '%.*s' is being written by another put", row,
                            name_len(name), (const char *)name.data);
        }
    }
    return TQ_OK;
}

static uint64_t bytes_max(const tqi_objects_t *objs, const tqi_prepare_t *req)
{
    return req->is_column ? objs->conf.capacity_bytes : objs->plain_bytes_max;
}

static tq_status_t check_size(const tqi_objects_t *objs, const tqi_prepare_t *req, uint64_t cost,
                              tqi_err_t *err)
{
    if (cost <= bytes_max(objs, req))
        return TQ_OK;
    return tqi_fail(err, TQ_E_TOO_LARGE,
                    "%" PRIu64 " bytes for %u rows, but the unit can hold %" PRIu64
                    " (capacity_bytes %" PRIu64 "%s)",
                    cost, req->rows.cnt, bytes_max(objs, req), objs->conf.capacity_bytes,
                    req->is_column ? "" : " less the reserve for rows that have data");
}

static tq_status_t check_space(const tqi_objects_t *objs, const tqi_prepare_t *req, uint64_t cost,
                               tqi_err_t *err)
{
    uint64_t limit = bytes_max(objs, req);
    tqi_segments_stat_t seg;

    tqi_segments_stat(objs->segs, &seg);
    if (seg.used_bytes <= limit - cost)
        return TQ_OK;
    return tqi_fail(
        err, TQ_E_FULL,
        "%" PRIu64 " bytes wanted, %" PRIu64 " of %" PRIu64 " free%s, %" PRIu64
        " of those in use are cleared but still read; clear rows or raise "
        "capacity_bytes (unit.capacity)",
        cost, limit > seg.used_bytes ? limit - seg.used_bytes : 0, objs->conf.capacity_bytes,
        req->is_column ? "" : " outside the reserve for rows that have data", objs->zombie_bytes);
}

/* The runs with their extents, and the leaves that the cells need. What was made before a failure
 * is the batch's, for batch_discard. */
static tq_status_t batch_fill(tqi_objects_t *objs, tqi_batch_t *batch, const tqi_prepare_t *req,
                              tqi_err_t *err)
{
    for (uint32_t f = 0; f < req->fields.cnt; f++) {
        const tqi_coldesc_t *col = &objs->columns.at[f];
        tqi_field_t *field = tqi_cells_field(&objs->cells, tqi_strs_at(req->fields, f), true);
        tqi_span_t span = {0};
        tqi_run_t *run;

        if (!field)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a field");
        tqi_cells_field_ref(field);
        batch->fields[f] = field;
        if (tqi_cells_select(&objs->cells, field, true) != TQ_OK)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the cells of %u rows",
                            req->rows.cnt);
        if (col->frame_bytes > 0) {
            tq_status_t rc = tqi_segments_take(objs->segs, col->frame_bytes, &span, err);

            if (rc != TQ_OK)
                return rc;
        }
        run = tqi_run_new(objs->env, col, tqi_strs_at(req->columns, f), span);
        if (!run || run_add(objs, run) != TQ_OK) {
            if (run) {
                run->live_cnt = 0;
                tqi_run_free(objs->env, run);
            }
            tqi_segments_give(objs->segs, span);
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the objects of %u rows",
                            req->rows.cnt);
        }
        run->put_id = req->put_id;
        run->batch = batch;
        batch->runs[f] = run;
        batch->cost_bytes += span.bytes;
    }
    return TQ_OK;
}

/* Empties the cells that an open batch claimed. The request must be resolved. */
static void batch_unclaim(tqi_objects_t *objs, tqi_batch_t *batch)
{
    for (uint32_t f = 0; f < batch->fields_cnt && batch->pending_cnt > 0; f++) {
        if (!batch->runs[f])
            continue;
        tqi_cells_select(&objs->cells, batch->fields[f], false);
        for (uint32_t i = 0; i < batch->rows_cnt; i++) {
            tqi_leaf_t *leaf;
            tqi_ref_t *cell = tqi_cells_at(&objs->cells, i, batch->rows[i], &leaf);

            if (cell && *cell == tqi_ref(TQI_CELL_CLAIMED, batch->runs[f]->slot, i)) {
                cell_set(objs, leaf, cell, 0);
                batch->pending_cnt--;
            }
        }
    }
    tqi_assert(batch->pending_cnt == 0);
}

/* Frees an open batch without claims, and its runs. */
static void batch_discard(tqi_objects_t *objs, tqi_batch_t *batch)
{
    for (uint32_t f = 0; f < batch->fields_cnt; f++)
        if (batch->runs[f])
            tqi_run_give_all(batch->runs[f], objs->segs);
    batch_free(objs, batch);
}

/* Claims the batch's empty cells, and those that an earlier attempt of its put has staged; can only
 * fail on a cell named twice. */
static tq_status_t batch_claim(tqi_objects_t *objs, tqi_batch_t *batch, tqi_blame_t *blame,
                               tqi_err_t *err)
{
    dropper_t drop = {.objs = objs};

    for (uint32_t f = 0; f < batch->fields_cnt; f++) {
        tqi_cells_select(&objs->cells, batch->fields[f], false);
        for (uint32_t i = 0; i < batch->rows_cnt; i++) {
            tqi_leaf_t *leaf;
            tqi_ref_t *cell = tqi_cells_at(&objs->cells, i, batch->rows[i], &leaf);
            tqi_ref_t old = *cell;

            if (old && !is_pending(old))
                continue;
            if (old && run_of(objs, old)->batch == batch) {
                dropper_flush(&drop);
                blame_row(blame, batch->rows[i]);
                return tqi_fail(err, TQ_E_DUPLICATE,
                                "row %" PRIu64 ", field '%.128s' is named twice", batch->rows[i],
                                batch->fields[f]->name);
            }
            cell_set(objs, leaf, cell, tqi_ref(TQI_CELL_CLAIMED, batch->runs[f]->slot, i));
            batch->pending_cnt++;
            if (old)
                dropper_add(&drop, old);
        }
    }
    dropper_flush(&drop);
    return TQ_OK;
}

static tq_status_t prepare(tqi_objects_t *objs, const tqi_prepare_t *req, tqi_batch_t **out,
                           tqi_blame_t *blame, tqi_err_t *err)
{
    tqi_batch_t *batch = NULL;
    uint64_t cost = 0;
    tq_status_t rc;

    blame->rows_cnt = 0;
    blame->field = (tqi_str_t){0};
    const put_t *put = tqi_map_u64_get(&objs->puts, req->put_id);
    if (put && put->session != req->session)
        return tqi_fail(err, TQ_E_DENIED, "put %" PRIu64 " is another session's", req->put_id);
    rc = check_fields(req->fields, req->rows, err);
    if (rc == TQ_OK)
        rc = decode_columns(objs, req, &cost, err);
    if (rc == TQ_OK)
        rc = check_size(objs, req, cost, err);
    if (rc != TQ_OK)
        return rc;
    if (tqi_cells_resolve(&objs->cells, req->rows, true) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %u rows", req->rows.cnt);
    rc = check_rows_live(objs, req->rows, TQ_E_ROW_GONE, blame, err);
    if (rc == TQ_OK)
        rc = check_cells(objs, req, blame, err);
    if (rc == TQ_OK)
        rc = check_space(objs, req, cost, err);
    if (rc == TQ_OK) {
        batch = batch_new(objs, req);
        if (!batch || batch_join_put(objs, batch) != TQ_OK)
            rc = tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a put of %u rows", req->rows.cnt);
    }
    if (rc == TQ_OK)
        rc = batch_fill(objs, batch, req, err);
    if (rc == TQ_OK)
        rc = batch_claim(objs, batch, blame, err);
    if (rc != TQ_OK) {
        if (batch) {
            batch_unclaim(objs, batch);
            batch_discard(objs, batch);
        }
        tqi_cells_sweep(&objs->cells);
        return rc;
    }
    *out = batch;
    return TQ_OK;
}

/* Values without bytes take no space and all the same a cell, a pin and a descriptor each: a request
 * of a few KiB can ask for gigabytes of those. */
tq_status_t tqi_objects_prepare(tqi_objects_t *objs, const tqi_prepare_t *req, tqi_batch_t **out,
                                tqi_blame_t *blame, tqi_err_t *err)
{
    uint64_t max = objs->meta_bytes_max, had = objs->meta_bytes;
    uint64_t own = tqi_u64_min(max / 2, META_BYTES_A_REQUEST);
    bool is_own = had + own < max;
    tq_status_t rc;

    if (is_own)
        objs->meta_bytes_max = had + own;
    objs->is_bounded = true;
    objs->was_refused = false;
    rc = prepare(objs, req, out, blame, err);
    objs->is_bounded = false;
    objs->meta_bytes_max = max;
    if (rc != TQ_E_NO_MEMORY || !objs->was_refused)
        return rc;
    if (is_own)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "over %" PRIu64 " bytes of bookkeeping for %u rows of %u fields: put fewer "
                        "at once",
                        own, req->rows.cnt, req->fields.cnt);
    return tqi_fail(err, TQ_E_FULL,
                    "the bookkeeping of what is stored takes %" PRIu64 " of %" PRIu64
                    " bytes; clear rows or raise capacity_bytes (unit.capacity)",
                    objs->meta_bytes, max);
}

/* ---- the life of a batch ---------------------------------------------------------------------- */

/* Rows that were resolved at PREPARE: the look-up finds its memory as it left it, and can't fail. */
static void batch_resolve(tqi_objects_t *objs, const tqi_batch_t *batch)
{
    tq_status_t rc = tqi_cells_resolve(&objs->cells, tqi_u64s(batch->rows, batch->rows_cnt), false);

    tqi_assert(rc == TQ_OK);
}

tq_status_t tqi_objects_commit(tqi_objects_t *objs, tqi_batch_t *batch, tqi_blame_t *blame,
                               tqi_err_t *err)
{
    dropper_t drop = {.objs = objs};
    tq_status_t rc;

    tqi_assert(batch->is_open && !batch->is_doomed);
    blame->rows_cnt = 0;
    blame->field = (tqi_str_t){0};
    batch_resolve(objs, batch);
    rc = check_rows_live(objs, tqi_u64s(batch->rows, batch->rows_cnt), TQ_E_ROW_GONE, blame, err);
    if (rc != TQ_OK)
        return rc;
    for (uint32_t f = 0; f < batch->fields_cnt; f++) {
        uint32_t slot = batch->runs[f]->slot;

        tqi_cells_select(&objs->cells, batch->fields[f], false);
        for (uint32_t i = 0; i < batch->rows_cnt; i++) {
            tqi_leaf_t *leaf;
            tqi_ref_t *cell = tqi_cells_at(&objs->cells, i, batch->rows[i], &leaf);
            tqi_ref_t old = *cell;

            if (old == tqi_ref(TQI_CELL_CLAIMED, slot, i)) {
                cell_set(objs, leaf, cell, tqi_ref(TQI_CELL_STAGED, slot, i));
                continue;
            }
            /* It was published at PREPARE, and only death takes that away. */
            tqi_assert(tqi_ref_state(old) == TQI_CELL_PUBLISHED);
            cell_set(objs, leaf, cell, tqi_ref(TQI_CELL_PUBLISHED, slot, i));
            dropper_add(&drop, old);
        }
    }
    dropper_flush(&drop);
    batch->is_open = false;
    batch_less_pending(objs, batch, 0);
    return TQ_OK;
}

static void batch_leave_cells(tqi_objects_t *objs, tqi_batch_t *batch)
{
    if (batch->pending_cnt == 0)
        return;
    batch_resolve(objs, batch);
    batch_unclaim(objs, batch);
    tqi_cells_sweep(&objs->cells);
}

void tqi_objects_cancel(tqi_objects_t *objs, tqi_batch_t *batch)
{
    tqi_assert(batch->is_open);
    if (batch->is_doomed)
        objs->zombie_bytes -= batch->cost_bytes;
    batch_leave_cells(objs, batch);
    batch_discard(objs, batch);
}

void tqi_objects_doom(tqi_objects_t *objs, tqi_batch_t *batch)
{
    tqi_assert(batch->is_open && !batch->is_doomed);
    batch->is_doomed = true;
    objs->zombie_bytes += batch->cost_bytes;
    batch_leave_cells(objs, batch);
}

/* Walks the staged cells of a committed batch: publishes them, or empties them. That settles it, and
 * its put if it was the last. */
static uint64_t batch_settle(tqi_objects_t *objs, tqi_batch_t *batch, bool is_published)
{
    dropper_t drop = {.objs = objs};
    uint64_t cells_cnt = 0;

    batch_resolve(objs, batch);
    batch->pending_cnt++; /* keeps it from settling before its last cell was looked at */
    for (uint32_t f = 0; f < batch->fields_cnt && batch->pending_cnt > 1; f++) {
        uint32_t slot = batch->runs[f]->slot;

        tqi_cells_select(&objs->cells, batch->fields[f], false);
        cells_cnt += batch->rows_cnt;
        for (uint32_t i = 0; i < batch->rows_cnt; i++) {
            tqi_leaf_t *leaf;
            tqi_ref_t *cell = tqi_cells_at(&objs->cells, i, batch->rows[i], &leaf);
            tqi_ref_t ref = tqi_ref(TQI_CELL_STAGED, slot, i);

            if (!cell || *cell != ref)
                continue;
            if (is_published) {
                cell_publish(objs, leaf, cell);
            } else {
                cell_set(objs, leaf, cell, 0);
                dropper_add(&drop, ref);
            }
        }
        dropper_flush(&drop);
    }
    batch_less_pending(objs, batch, 1);
    tqi_cells_sweep(&objs->cells);
    return cells_cnt;
}

static uint64_t put_settle(tqi_objects_t *objs, uint64_t put_id, bool is_published)
{
    put_t *put = tqi_map_u64_get(&objs->puts, put_id);
    uint64_t cells_cnt = 0;

    /* Settling its last batch frees the put: leave by the count, not by the list. */
    for (size_t left = put ? put->batches.cnt : 0; left > 0; left--) {
        tqi_batch_t *batch = tqi_container_of(tqi_list_first(&put->batches), tqi_batch_t, node);

        if (batch->is_open) {
            tqi_list_remove(&put->batches, &batch->node); /* to the end: look at the next one */
            tqi_list_push_back(&put->batches, &batch->node);
        } else {
            cells_cnt += batch_settle(objs, batch, is_published);
        }
    }
    return cells_cnt;
}

uint64_t tqi_objects_confirm(tqi_objects_t *objs, uint64_t put_id)
{
    return put_settle(objs, put_id, true);
}

uint64_t tqi_objects_abort(tqi_objects_t *objs, uint64_t put_id, uint64_t session)
{
    const put_t *put = tqi_map_u64_get(&objs->puts, put_id);

    if (!put || put->session != session)
        return 0;
    return put_settle(objs, put_id, false);
}

bool tqi_objects_abort_fused(tqi_objects_t *objs, uint64_t session, uint64_t transfer)
{
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&objs->puts); it; it = tqi_map_u64_next(it)) {
        const put_t *put = it->value;

        if (put->session != session)
            continue;
        tqi_list_each(&put->batches, node)
        {
            tqi_batch_t *batch = tqi_container_of(node, tqi_batch_t, node);

            if (batch->is_open || batch->fused_transfer != transfer)
                continue;
            batch_settle(objs, batch, false);
            return true;
        }
    }
    return false;
}

uint64_t tqi_objects_staged_put(const tqi_objects_t *objs, uint64_t session)
{
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&objs->puts); it; it = tqi_map_u64_next(it)) {
        const put_t *put = it->value;

        if (put->session != session)
            continue;
        tqi_list_each(&put->batches, node)
        {
            if (!tqi_container_of(node, tqi_batch_t, node)->is_open)
                return put->put_id;
        }
    }
    return 0;
}

/* ---- unlink ----------------------------------------------------------------------------------- */

/* Empties rows [lo, hi) of a block in every field. Returns the cells looked at. */
static uint64_t block_empty(tqi_objects_t *objs, tqi_block_t *block, uint32_t lo, uint32_t hi)
{
    uint64_t cells_cnt = 0;

    for (size_t l = 0; l < block->leaves.len; l++) {
        tqi_leaf_t *leaf = block->leaves.at[l];
        dropper_t drop = {.objs = objs};

        for (uint32_t i = lo; i < hi && leaf->cnt > 0; i++) {
            tqi_ref_t ref = leaf->refs[i];

            if (ref) {
                cell_set(objs, leaf, &leaf->refs[i], 0);
                dropper_add(&drop, ref);
            }
        }
        dropper_flush(&drop);
        cells_cnt += hi - lo;
    }
    tqi_cells_tidy(&objs->cells, block);
    return cells_cnt + 1;
}

/* Whole blocks [lo, hi). More of them than there are: walk those that there are. */
static uint64_t blocks_empty(tqi_objects_t *objs, uint64_t lo, uint64_t hi)
{
    uint64_t cells_cnt = 0;

    if (hi - lo <= tqi_map_u64_count(&objs->cells.blocks)) {
        for (uint64_t id = lo; id < hi; id++) {
            tqi_block_t *block = tqi_map_u64_get(&objs->cells.blocks, id);

            cells_cnt += block ? block_empty(objs, block, 0, TQI_BLOCK_ROWS) : 1;
        }
        return cells_cnt;
    }
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&objs->cells.blocks), *next; it; it = next) {
        tqi_block_t *block = it->value;

        next = tqi_map_u64_next(it);
        if (block->id >= lo && block->id < hi)
            cells_cnt += block_empty(objs, block, 0, TQI_BLOCK_ROWS);
    }
    return cells_cnt;
}

tq_status_t tqi_objects_unlink(tqi_objects_t *objs, uint64_t *lo, uint64_t hi, uint64_t cells_max)
{
    uint64_t cells_cnt = 0;

    while (*lo < hi && cells_cnt < cells_max) {
        uint64_t id = *lo / TQI_BLOCK_ROWS;
        uint64_t base = id * TQI_BLOCK_ROWS;

        if (*lo == base && hi - base >= TQI_BLOCK_ROWS) {
            uint64_t end = hi / TQI_BLOCK_ROWS;

            /* A slice of blocks at a time, unless the range is far larger than what is here. */
            if (end - id <= 16 * (tqi_map_u64_count(&objs->cells.blocks) + 64))
                end = tqi_u64_min(end, id + 16);
            if (tqi_cells_kill_blocks(&objs->cells, id, end) != TQ_OK)
                return TQ_E_NO_MEMORY;
            cells_cnt += blocks_empty(objs, id, end);
            *lo = end * TQI_BLOCK_ROWS;
        } else {
            uint64_t end = tqi_u64_min(hi, base + TQI_BLOCK_ROWS);
            tqi_block_t *block;

            if (tqi_cells_kill(&objs->cells, *lo, end, &block) != TQ_OK)
                return TQ_E_NO_MEMORY;
            if (block)
                cells_cnt +=
                    block_empty(objs, block, (uint32_t)(*lo - base), (uint32_t)(end - base));
            cells_cnt++;
            *lo = end;
        }
    }
    return TQ_OK;
}

/* ---- reading ---------------------------------------------------------------------------------- */

void tqi_view_init(tqi_view_t *view, const tqi_env_t *env)
{
    memset(view, 0, sizeof *view);
    tqi_vec_init(&view->ranges, env);
    tqi_vec_init(&view->fields, env);
}

void tqi_view_fini(tqi_view_t *view)
{
    tqi_assert(!view->is_pinned);
    tqi_vec_fini(&view->ranges);
    tqi_vec_fini(&view->fields);
}

static tq_status_t read_field(tqi_objects_t *objs, tqi_u64s_t rows, tqi_strs_t fields, uint32_t f,
                              tqi_bytes_t produced, tqi_view_t *view, tqi_blame_t *blame,
                              tqi_err_t *err)
{
    tqi_str_t name = tqi_strs_at(fields, f);
    tqi_field_t *field = tqi_cells_field(&objs->cells, name, false);
    tqi_range_t range = {0};
    uint32_t missing_cnt = 0;
    uint64_t bytes = 0;

    if (field)
        tqi_cells_select(&objs->cells, field, false);
    for (uint32_t i = 0; i < rows.cnt; i++) {
        uint64_t row = tqi_u64s_at(rows, i);
        tqi_leaf_t *leaf = NULL;
        tqi_ref_t *cell = field ? tqi_cells_at(&objs->cells, i, row, &leaf) : NULL;

        if (cell && tqi_ref_state(*cell) == TQI_CELL_STAGED &&
            is_marked(produced, (uint64_t)i * fields.cnt + f))
            cell_publish(objs, leaf, cell);
        if (!cell || tqi_ref_state(*cell) != TQI_CELL_PUBLISHED) {
            missing_cnt++;
            blame_row(blame, row);
            continue;
        }
        uint32_t run_row = tqi_ref_row(*cell);
        tqi_run_t *run = run_of(objs, *cell);

        if (run == range.run && run_row == range.lo + range.cnt) {
            range.cnt++;
            continue;
        }
        if (range.run) {
            bytes += tqi_run_bytes(range.run, range.lo, range.cnt);
            if (tqi_vec_push(&view->ranges, range) != TQ_OK)
                return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to read %u rows", rows.cnt);
        }
        range = (tqi_range_t){run, run_row, 1};
    }
    if (missing_cnt > 0) {
        blame->field = name;
        return tqi_fail(err, TQ_E_NOT_PRODUCED,
                        "field '%.*s' is not there for %u of %u rows, the first of them %" PRIu64,
                        name_len(name), (const char *)name.data, missing_cnt, rows.cnt,
                        blame->rows[0]);
    }
    bytes += tqi_run_bytes(range.run, range.lo, range.cnt);
    tqi_view_field_t end = {view->ranges.len + 1, bytes};
    if (tqi_vec_push(&view->ranges, range) != TQ_OK || tqi_vec_push(&view->fields, end) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to read %u rows", rows.cnt);
    if (!tqi_u64_add(view->bytes, bytes, &view->bytes))
        return tqi_fail(err, TQ_E_TOO_LARGE, "the columns are over 2^64 bytes");
    return TQ_OK;
}

tq_status_t tqi_objects_read(tqi_objects_t *objs, tqi_u64s_t rows, tqi_strs_t fields,
                             tqi_bytes_t produced, tqi_view_t *view, tqi_blame_t *blame,
                             tqi_err_t *err)
{
    tq_status_t rc = check_fields(fields, rows, err);

    tqi_assert(!view->is_pinned);
    blame->rows_cnt = 0;
    blame->field = (tqi_str_t){0};
    view->rows_cnt = rows.cnt;
    view->bytes = 0;
    view->ranges.len = view->fields.len = 0;
    if (rc != TQ_OK)
        return rc;
    if (tqi_cells_resolve(&objs->cells, rows, false) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %u rows", rows.cnt);
    rc = check_rows_live(objs, rows, TQ_E_NOT_FOUND, blame, err);
    for (uint32_t f = 0; rc == TQ_OK && f < fields.cnt; f++)
        rc = read_field(objs, rows, fields, f, produced, view, blame, err);
    return rc;
}

void tqi_objects_pin(tqi_objects_t *objs, tqi_view_t *view)
{
    tqi_assert(!view->is_pinned);
    view->is_pinned = true;
    for (size_t i = 0; i < view->ranges.len; i++) {
        tqi_run_pin(view->ranges.at[i].run, view->ranges.at[i].lo, view->ranges.at[i].cnt);
        objs->pinned_cnt += view->ranges.at[i].cnt;
    }
}

void tqi_objects_unpin(tqi_objects_t *objs, tqi_view_t *view)
{
    tqi_assert(view->is_pinned);
    view->is_pinned = false;
    for (size_t i = 0; i < view->ranges.len; i++) {
        tqi_range_t *range = &view->ranges.at[i];

        objs->pinned_cnt -= range->cnt;
        objs->zombie_bytes -= tqi_run_unpin(range->run, objs->segs, range->lo, range->cnt);
        run_remove_if_done(objs, range->run);
    }
}

/* Row by row through a field's ranges, forwards mostly. */
typedef struct view_cursor {
    const tqi_view_t *view;
    size_t first; /* the field's first range */
    size_t range;
    uint32_t base; /* row of the request that the range begins with */
} view_cursor_t;

static void view_desc_at(void *ctx, uint32_t row, tq_desc_t *desc)
{
    view_cursor_t *c = ctx;

    if (row < c->base) {
        c->range = c->first;
        c->base = 0;
    }
    while (row - c->base >= c->view->ranges.at[c->range].cnt)
        c->base += c->view->ranges.at[c->range++].cnt;
    tqi_run_desc(c->view->ranges.at[c->range].run, c->view->ranges.at[c->range].lo + row - c->base,
                 desc);
}

tq_status_t tqi_view_column(const tqi_view_t *view, uint32_t f, tqi_buf_t *buf, tqi_err_t *err)
{
    size_t first = f == 0 ? 0 : view->fields.at[f - 1].ranges_end;
    size_t end = view->fields.at[f].ranges_end;
    const tqi_range_t *range = &view->ranges.at[first];
    tqi_bytes_t blob = range->run->blob;
    bool is_same = range->cnt == range->run->rows_cnt && end == first + 1;

    /* A run as it came, or rows that all have the one descriptor of a uniform column: the encoded
     * form is at hand. */
    if (!is_same) {
        is_same = !range->run->offsets;
        for (size_t i = first + 1; i < end && is_same; i++) {
            const tqi_run_t *run = view->ranges.at[i].run;

            is_same = run == range->run || (!run->offsets && run->blob.len == blob.len &&
                                            memcmp(run->blob.data, blob.data, blob.len) == 0);
        }
    }
    if (is_same)
        return tqi_buf_append(buf, blob.data, blob.len) == TQ_OK
                   ? TQ_OK
                   : tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a column's descriptors");
    view_cursor_t cursor = {view, first, first, 0};

    return tqi_coldesc_encode(buf, view->rows_cnt, view_desc_at, &cursor, err);
}

void tqi_view_copy(const tqi_view_t *view, void *dst)
{
    uint8_t *at = dst;

    for (size_t i = 0; i < view->ranges.len; i++) {
        const tqi_range_t *range = &view->ranges.at[i];
        uint64_t bytes = tqi_run_bytes(range->run, range->lo, range->cnt);

        if (bytes > 0)
            memcpy(at, tqi_run_data(range->run, range->lo), bytes);
        at += bytes;
    }
}

/* ---- the whole -------------------------------------------------------------------------------- */

void tqi_objects_free(tqi_objects_t *objs)
{
    if (!objs)
        return;
    const tqi_env_t *env = objs->env, *outer = objs->outer;

    for (size_t s = 1; s < objs->runs.len; s++) {
        tqi_run_t *run = objs->runs.at[s];

        if (!run)
            continue;
        tqi_assert(!run->batch || !run->batch->is_open);
        if (run->batch) {
            run->batch->pending_cnt = 0;
            batch_free(objs, run->batch); /* may free the run, if nothing in it lives */
            run = objs->runs.at[s];
        }
        if (run) {
            run->live_cnt = 0;
            tqi_run_free(env, run);
        }
    }
    tqi_assert(tqi_map_u64_count(&objs->puts) == 0 && objs->pinned_cnt == 0);
    tqi_cells_fini(&objs->cells);
    tqi_map_u64_fini(&objs->puts, NULL, NULL);
    tqi_vec_fini(&objs->runs);
    tqi_vec_fini(&objs->slots_free);
    tqi_vec_fini(&objs->columns);
    tqi_segments_free(objs->segs);
    tqi_assert(objs->meta_bytes == 0);
    tqi_env_free(outer, objs, sizeof *objs);
}

void tqi_objects_stat(const tqi_objects_t *objs, tqi_objects_stat_t *out)
{
    tqi_segments_stat_t seg;

    tqi_segments_stat(objs->segs, &seg);
    *out = (tqi_objects_stat_t){
        .capacity_bytes = objs->conf.capacity_bytes,
        .used_bytes = seg.used_bytes,
        .zombie_bytes = objs->zombie_bytes,
        .idle_bytes = seg.idle_bytes,
        .meta_bytes = objs->meta_bytes,
        .mapped_bytes = seg.mapped_bytes,
        .segments_cnt = seg.segments_cnt,
        .published_cnt = objs->published_cnt,
        .staged_cnt = objs->staged_cnt,
        .claimed_cnt = objs->claimed_cnt,
        .pinned_cnt = objs->pinned_cnt,
        .runs_cnt = objs->runs_cnt,
        .puts_cnt = tqi_map_u64_count(&objs->puts),
        .fields_cnt = tqi_map_str_count(&objs->cells.fields),
        .blocks_cnt = tqi_map_u64_count(&objs->cells.blocks),
    };
}

/* ---- checks ----------------------------------------------------------------------------------- */

typedef struct audit {
    tqi_objects_t *objs;
    tqi_err_t *err;
    uint32_t *named; /* by slot: cells that name the run */
    uint64_t cnt[4]; /* by state */
} audit_t;

static tq_status_t audit_leaf(audit_t *a, const tqi_block_t *block, const tqi_leaf_t *leaf)
{
    tqi_objects_t *objs = a->objs;
    uint32_t cnt = 0;

    for (uint32_t i = 0; i < TQI_BLOCK_ROWS; i++) {
        tqi_ref_t ref = leaf->refs[i];
        uint32_t slot = tqi_ref_slot(ref);
        tqi_run_t *run = slot < objs->runs.len ? objs->runs.at[slot] : NULL;
        uint64_t row = block->id * TQI_BLOCK_ROWS + i;

        if (!ref)
            continue;
        cnt++;
        if (tqi_words_test(block->dead, i))
            return tqi_fail(a->err, TQ_E_BUG, "dead row %" PRIu64 " has a cell in '%s'", row,
                            leaf->field->name);
        if (tqi_ref_state(ref) == TQI_CELL_EMPTY || !run || tqi_ref_row(ref) >= run->rows_cnt ||
            !tqi_words_test(run->kept, tqi_ref_row(ref)))
            return tqi_fail(a->err, TQ_E_BUG, "row %" PRIu64 ", '%s' refers to nothing", row,
                            leaf->field->name);
        if (is_pending(ref) &&
            (!run->batch || run->batch->is_open != (tqi_ref_state(ref) == TQI_CELL_CLAIMED)))
            return tqi_fail(a->err, TQ_E_BUG, "row %" PRIu64 ", '%s' is pending without its put",
                            row, leaf->field->name);
        a->named[slot]++;
        a->cnt[tqi_ref_state(ref)]++;
    }
    if (cnt != leaf->cnt || cnt == 0)
        return tqi_fail(a->err, TQ_E_BUG, "block %" PRIu64 ", '%s': %u cells, counted as %u",
                        block->id, leaf->field->name, cnt, leaf->cnt);
    return TQ_OK;
}

static tq_status_t audit_run(audit_t *a, tqi_run_t *run, uint64_t *pins, uint64_t *zombies)
{
    size_t kept = tqi_words_count(run->kept, ((size_t)run->rows_cnt + 63) / TQI_WORD_BITS);
    bool is_open = run->batch && run->batch->is_open;

    if (run->live_cnt == 0 && !run->batch)
        return tqi_fail(a->err, TQ_E_BUG, "run %u holds nothing", run->slot);
    if (is_open ? kept != run->rows_cnt || a->named[run->slot] > kept : kept != a->named[run->slot])
        return tqi_fail(a->err, TQ_E_BUG, "run %u keeps %zu rows, %u cells name it", run->slot,
                        kept, a->named[run->slot]);
    for (uint32_t r = 0; r < run->rows_cnt; r++) {
        *pins += run->pins[r];
        if (run->pins[r] > 0 && !tqi_words_test(run->kept, r))
            *zombies += tqi_run_bytes(run, r, 1);
    }
    if (is_open && run->batch->is_doomed)
        *zombies += run->span.bytes;
    return tqi_run_check(run, a->objs->segs, a->err);
}

static tq_status_t audit_puts(audit_t *a, uint64_t *pending)
{
    tqi_objects_t *objs = a->objs;

    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&objs->puts); it; it = tqi_map_u64_next(it)) {
        const put_t *put = it->value;

        tqi_list_each(&put->batches, node)
        {
            const tqi_batch_t *batch = tqi_container_of(node, tqi_batch_t, node);

            *pending += batch->pending_cnt;
            if (batch->put != put || (!batch->is_open && batch->pending_cnt == 0))
                return tqi_fail(a->err, TQ_E_BUG, "put %" PRIu64 " keeps a settled batch",
                                put->put_id);
        }
        if (put->batches.cnt == 0)
            return tqi_fail(a->err, TQ_E_BUG, "put %" PRIu64 " is empty", put->put_id);
    }
    return TQ_OK;
}

static tq_status_t audit_all(audit_t *a)
{
    tqi_objects_t *objs = a->objs;
    uint64_t pins = 0;
    uint64_t zombies = 0;
    uint64_t pending = 0;
    uint64_t runs = 0;
    tq_status_t rc = TQ_OK;

    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&objs->cells.blocks); it && rc == TQ_OK;
         it = tqi_map_u64_next(it)) {
        const tqi_block_t *block = it->value;

        for (size_t l = 0; l < block->leaves.len && rc == TQ_OK; l++)
            rc = audit_leaf(a, block, block->leaves.at[l]);
    }
    for (size_t s = 1; s < objs->runs.len && rc == TQ_OK; s++) {
        if (objs->runs.at[s]) {
            runs++;
            rc = audit_run(a, objs->runs.at[s], &pins, &zombies);
        }
    }
    if (rc == TQ_OK)
        rc = audit_puts(a, &pending);
    if (rc != TQ_OK)
        return rc;
    if (a->cnt[TQI_CELL_CLAIMED] != objs->claimed_cnt ||
        a->cnt[TQI_CELL_STAGED] != objs->staged_cnt ||
        a->cnt[TQI_CELL_PUBLISHED] != objs->published_cnt ||
        pending != objs->claimed_cnt + objs->staged_cnt)
        return tqi_fail(a->err, TQ_E_BUG, "cells by state are counted wrong");
    if (pins != objs->pinned_cnt || zombies != objs->zombie_bytes || runs != objs->runs_cnt)
        return tqi_fail(a->err, TQ_E_BUG,
                        "%" PRIu64 " pins, %" PRIu64 " zombie bytes, %" PRIu64
                        " runs, counted as %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                        pins, zombies, runs, objs->pinned_cnt, objs->zombie_bytes, objs->runs_cnt);
    return TQ_OK;
}

tq_status_t tqi_objects_check(tqi_objects_t *objs, tqi_err_t *err)
{
    audit_t a = {.objs = objs, .err = err};
    size_t slots = objs->runs.len;
    tq_status_t rc;

    a.named = tqi_env_calloc(objs->env, slots, sizeof *a.named);
    if (!a.named)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to check the objects");
    rc = tqi_segments_check_begin(objs->segs, err);
    if (rc == TQ_OK)
        rc = audit_all(&a);
    tq_status_t rc_end = tqi_segments_check_end(objs->segs, rc == TQ_OK ? err : NULL);
    tqi_env_free(objs->env, a.named, slots * sizeof *a.named);
    return rc == TQ_OK ? rc_end : rc;
}
