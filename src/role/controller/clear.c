/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CLEAR, and the burial of rows.
 *
 * Rows become CLEARING in the request's own op; keys are free at once. Then the units are told, and
 * the request parks until all have answered or are lost; the rows are dead after that. Whoever
 * clears rows that are CLEARING, by index, by a key that they had, or a partition that is going,
 * joins and waits for the same end.
 */
#include "role/controller/internal.h"

#include <string.h>

#define BLOCK_COST 8u

/* ---- clears ---------------------------------------------------------------------------------- */

static bool bury_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
static void bury_finish(tqi_controller_t *ctl, op_t *op);

clearing_t *tqi_ctl_clearing_new(tqi_controller_t *ctl, part_t *part)
{
    clearing_t *clearing = tqi_env_zalloc(ctl->env, sizeof *clearing);
    uint32_t units = (uint32_t)part->table.placed.len;

    if (!clearing)
        return NULL;
    if (units > 0) {
        clearing->units = tqi_env_calloc(ctl->env, units, sizeof *clearing->units);
        if (!clearing->units) {
            tqi_env_free(ctl->env, clearing, sizeof *clearing);
            return NULL;
        }
    }
    clearing->units_cap = units;
    tqi_clear_init(&clearing->core, ctl->env, ++ctl->clear_last);
    clearing->op.step = bury_step;
    clearing->op.finish = bury_finish;
    clearing->part = part;
    tqi_list_init(&clearing->joins);
    tqi_strs_builder_init(&clearing->keys, ctl->env);
    tqi_list_push_back(&part->clears, &clearing->core.node);
    return clearing;
}

void tqi_ctl_clearing_free(tqi_controller_t *ctl, clearing_t *clearing)
{
    tqi_strs_t keys = tqi_strs_builder_view(&clearing->keys);

    for (uint32_t i = 0; i < keys.cnt; i++) {
        tqi_str_t key = tqi_strs_at(keys, i);

        if (tqi_map_str_get(&clearing->part->leaving, key.data, key.len) == clearing)
            tqi_map_str_take(&clearing->part->leaving, key.data, key.len);
    }
    tqi_list_each(&clearing->joins, node)
    {
        join_t *join = tqi_container_of(node, join_t, in_clear);

        tqi_list_remove(&join->request->joins, &join->in_request);
        tqi_env_free(ctl->env, join, sizeof *join);
    }
    for (uint32_t i = 0; i < clearing->units_cap; i++)
        if (tqi_node_is_linked(&clearing->units[i].node))
            tqi_list_remove(&clearing->units[i].unit->unlinks, &clearing->units[i].node);
    if (clearing->request)
        clearing->request->clearing = NULL;
    tqi_strs_builder_fini(&clearing->keys);
    tqi_list_remove(&clearing->part->clears, &clearing->core.node);
    tqi_clear_fini(&clearing->core);
    if (clearing->units_cap > 0)
        tqi_env_free(ctl->env, clearing->units, clearing->units_cap * sizeof *clearing->units);
    tqi_env_free(ctl->env, clearing, sizeof *clearing);
}

/* A key leaves with its row; until the row is dead, clearing the key again finds this clear. Out of
 * memory, it finds nothing, as for a key that was never there. */
static void on_key(void *ctx, const char *key, size_t len)
{
    clearing_t *clearing = ctx;
    void *old;

    if (tqi_strs_builder_add(&clearing->keys, key, len) == TQ_OK)
        (void)tqi_map_str_put(&clearing->part->leaving, key, len, clearing, &old);
}

uint32_t tqi_ctl_clearing_add(tqi_controller_t *ctl, clearing_t *clearing, const tqi_mask_t *mask)
{
    uint32_t cnt =
        tqi_clear_add(&clearing->part->table, &clearing->core, mask, NULL, on_key, clearing);

    ctl->cnt_rows_cleared += cnt;
    return cnt;
}

static bool has_rows_on(const clearing_t *clearing, const tqi_placed_t *placed)
{
    tqi_mask_t mask;

    for (uint64_t at = 0; tqi_mask_next(&clearing->core.rows, &at, &mask);) {
        tqi_leaf_and(mask.words, tqi_bits_leaf(&placed->rows, mask.ordinal));
        if (tqi_mask_any(&mask))
            return true;
    }
    return false;
}

void tqi_ctl_clearing_start(tqi_controller_t *ctl, clearing_t *clearing)
{
    const tqi_partition_t *table = &clearing->part->table;

    if (clearing->core.rows_cnt == 0) {
        tqi_clear_step(&clearing->core, TQI_CLEAR_EV_EMPTY);
        tqi_ctl_clearing_free(ctl, clearing);
        return;
    }
    tqi_assert(clearing->units_cap >= table->placed.len);
    for (uint32_t i = 0; i < table->placed.len; i++) {
        const tqi_placed_t *placed = table->placed.at[i];
        unlinking_t *unlinking = &clearing->units[i];
        unit_t *unit = tqi_ctl_unit_find(ctl, placed->unit);

        if (!unit || !has_rows_on(clearing, placed))
            continue;
        unlinking->clearing = clearing;
        unlinking->unit = unit;
        clearing->core.waiting_cnt++;
        tqi_list_push_back(&unit->unlinks, &unlinking->node);
    }
    if (clearing->core.waiting_cnt == 0) {
        tqi_clear_step(&clearing->core, TQI_CLEAR_EV_NOBODY);
        tqi_ctl_op_queue_next(ctl, clearing->part, &clearing->op);
        return;
    }
    tqi_clear_step(&clearing->core, TQI_CLEAR_EV_ORDER);
    for (size_t i = 0; i < ctl->units.len; i++)
        if (ctl->units.at[i]->unlinks.cnt > 0)
            tqi_ctl_unit_push(ctl, ctl->units.at[i]);
}

void tqi_ctl_clearing_unit_done(tqi_controller_t *ctl, unlinking_t *unlinking)
{
    clearing_t *clearing = unlinking->clearing;

    tqi_invariant(clearing && clearing->core.waiting_cnt > 0, "INV-9");
    unlinking->clearing = NULL;
    if (--clearing->core.waiting_cnt == 0) {
        tqi_clear_step(&clearing->core, TQI_CLEAR_EV_LAST_DONE);
        tqi_ctl_op_queue_next(ctl, clearing->part, &clearing->op);
    } else {
        tqi_clear_step(&clearing->core, TQI_CLEAR_EV_UNIT_DONE);
    }
}

static void on_dead(void *ctx, uint64_t block)
{
    clearing_t *clearing = ctx;

    tqi_ctl_unit_block_dead(clearing->ctl, clearing->part, block);
}

static bool bury_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    clearing_t *clearing = tqi_container_of(op, clearing_t, op);
    uint32_t blocks = *budget / BLOCK_COST + 1;

    clearing->ctl = ctl;
    *budget -= (uint32_t)tqi_u64_min(
        *budget, BLOCK_COST * tqi_u64_min(blocks, clearing->core.rows.leaf_cnt));
    return tqi_clear_bury(&clearing->part->table, &clearing->core, blocks, on_dead, clearing);
}

/* ---- requests that wait ---------------------------------------------------------------------- */

static void clear_maybe_reply(tqi_controller_t *ctl, request_t *req)
{
    if (req->clearing || req->joins.cnt > 0)
        return;
    req->is_parked = false;
    tqi_ctl_request_reply_done(ctl, req, &(tqi_msg_Clear_R_t){.rows_cnt = req->rows_cnt});
    tqi_ctl_request_close(ctl, req);
}

static void bury_finish(tqi_controller_t *ctl, op_t *op)
{
    clearing_t *clearing = tqi_container_of(op, clearing_t, op);
    request_t *own = clearing->request;
    tqi_node_t *node;

    while ((node = tqi_list_pop_front(&clearing->joins))) {
        join_t *join = tqi_container_of(node, join_t, in_clear);
        request_t *req = join->request;

        tqi_list_remove(&req->joins, &join->in_request);
        tqi_env_free(ctl->env, join, sizeof *join);
        req->rows_cnt += clearing->core.rows_cnt;
        if (req->is_parked)
            clear_maybe_reply(ctl, req);
    }
    tqi_clear_step(&clearing->core, TQI_CLEAR_EV_BURIED);
    tqi_ctl_clearing_free(ctl, clearing);
    if (own && own->is_parked)
        clear_maybe_reply(ctl, own);
}

/* It waits for another's clear as well; once for each. */
static tq_status_t clear_join(tqi_controller_t *ctl, request_t *req, clearing_t *clearing)
{
    join_t *join;

    tqi_list_each(&req->joins, node)
    {
        if (tqi_container_of(node, join_t, in_request)->clearing == clearing)
            return TQ_OK;
    }
    join = tqi_env_zalloc(ctl->env, sizeof *join);
    if (!join)
        return TQ_E_NO_MEMORY;
    join->request = req;
    join->clearing = clearing;
    tqi_list_push_back(&req->joins, &join->in_request);
    tqi_list_push_back(&clearing->joins, &join->in_clear);
    tqi_clear_step(&clearing->core, TQI_CLEAR_EV_JOIN);
    return TQ_OK;
}

void tqi_ctl_clear_leave(tqi_controller_t *ctl, request_t *req)
{
    tqi_node_t *node;

    if (req->clearing) {
        req->clearing->request = NULL;
        tqi_clear_step(&req->clearing->core, TQI_CLEAR_EV_LEAVE);
    }
    req->clearing = NULL;
    while ((node = tqi_list_pop_front(&req->joins))) {
        join_t *join = tqi_container_of(node, join_t, in_request);

        tqi_list_remove(&join->clearing->joins, &join->in_clear);
        tqi_clear_step(&join->clearing->core, TQI_CLEAR_EV_LEAVE);
        tqi_env_free(ctl->env, join, sizeof *join);
    }
}

/* The units that a clear waits for, into a sentence. */
static void say_units(const clearing_t *clearing, tqi_buf_t *text)
{
    for (uint32_t i = 0; clearing && i < clearing->units_cap; i++) {
        const unlinking_t *unlinking = &clearing->units[i];

        if (unlinking->clearing && text->len < TQI_ERR_TEXT_MAX)
            tqi_buf_printf(text, "%s%u ('%s')", text->len > 0 ? ", " : "", unlinking->unit->id,
                           unlinking->unit->name);
    }
}

void tqi_ctl_clear_due(tqi_controller_t *ctl, request_t *req)
{
    tqi_buf_t units;
    tqi_err_t err;

    tqi_buf_init(&units, ctl->env);
    say_units(req->clearing, &units);
    tqi_list_each(&req->joins, node)
    {
        say_units(tqi_container_of(node, join_t, in_request)->clearing, &units);
    }
    tqi_fail(&err, TQ_E_TIMEOUT,
             "the clear goes on: storage units %.*s have not answered; the same call waits again",
             (int)units.len, units.data ? (const char *)units.data : "");
    tqi_buf_fini(&units);
    tqi_ctl_request_leave(ctl, req, &err);
}

/* ---- CLEAR ----------------------------------------------------------------------------------- */

/* Clears the mask's live rows and joins the clears that have others of them. */
static tq_status_t clear_mask(tqi_controller_t *ctl, request_t *req, const tqi_mask_t *mask)
{
    clearing_t *clearing = req->clearing;
    part_t *part = req->op.part;
    tqi_mask_t going = *mask;
    tq_status_t rc = tqi_clear_reserve(&clearing->core, mask->ordinal);

    if (rc != TQ_OK)
        return rc;
    tqi_leaf_and(going.words, tqi_bits_leaf(&part->table.state[TQI_ROW_CLEARING], mask->ordinal));
    tqi_leaf_andnot(going.words, tqi_bits_leaf(&clearing->core.rows, mask->ordinal));
    req->rows_cnt += tqi_ctl_clearing_add(ctl, clearing, mask);
    if (!tqi_mask_any(&going))
        return TQ_OK;
    tqi_list_each(&part->clears, node)
    {
        clearing_t *other = tqi_container_of(node, clearing_t, core.node);

        if (other != clearing && tqi_clear_meets(&other->core, &going))
            rc = clear_join(ctl, req, other);
        if (rc != TQ_OK)
            return rc;
    }
    return TQ_OK;
}

static tq_status_t clear_one(tqi_controller_t *ctl, request_t *req, uint64_t *hint)
{
    const tqi_msg_Clear_t *msg = &req->msg.clear;
    part_t *part = req->op.part;
    uint64_t pos;

    if (msg->keys.cnt > 0) {
        tqi_str_t key = tqi_strs_at(msg->keys, req->at);
        clearing_t *leaving = tqi_map_str_get(&part->leaving, key.data, key.len);

        pos = tqi_partition_key(&part->table, key.data, key.len);
        if (pos == TQI_POS_NONE && leaving && leaving != req->clearing)
            return clear_join(ctl, req, leaving);
    } else {
        pos = tqi_index_pos(&part->table.index, tqi_u64s_at(msg->rows, req->at), hint);
    }
    if (pos == TQI_POS_NONE)
        return TQ_OK;
    tqi_mask_t mask = tqi_mask_run(pos, pos + 1);
    return clear_mask(ctl, req, &mask);
}

/* Rows that follow each other within a block are one mask. */
static tq_status_t clear_run(tqi_controller_t *ctl, request_t *req, uint64_t *hint, uint32_t max,
                             uint32_t *len)
{
    const tqi_msg_Clear_t *msg = &req->msg.clear;
    uint64_t row, pos;

    *len = 1;
    if (msg->keys.cnt > 0)
        return clear_one(ctl, req, hint);
    row = tqi_u64s_at(msg->rows, req->at);
    max = (uint32_t)tqi_u64_min(max, TQI_BLOCK_ROWS - row % TQI_BLOCK_ROWS);
    while (*len < max && req->at + *len < msg->rows.cnt &&
           tqi_u64s_at(msg->rows, req->at + *len) == row + *len)
        ++*len;
    if (*len == 1)
        return clear_one(ctl, req, hint);
    pos = tqi_index_pos(&req->op.part->table.index, row, hint);
    if (pos == TQI_POS_NONE)
        return TQ_OK;
    tqi_mask_t mask = tqi_mask_run(pos, pos + *len);
    return clear_mask(ctl, req, &mask);
}

/* A partition of that name that was cleared as a whole and is not gone yet. */
static tq_status_t join_dying(tqi_controller_t *ctl, request_t *req)
{
    const tqi_str_t name = req->msg.clear.partition;

    tqi_list_each(&ctl->dying, node)
    {
        part_t *part = tqi_container_of(node, part_t, node);

        if (part == req->op.part || part->name_len != name.len ||
            memcmp(part->name, name.data, name.len) != 0)
            continue;
        tqi_list_each(&part->clears, clear)
        {
            tq_status_t rc = clear_join(ctl, req, tqi_container_of(clear, clearing_t, core.node));

            if (rc != TQ_OK)
                return rc;
        }
    }
    return TQ_OK;
}

static bool clear_fail(tqi_controller_t *ctl, request_t *req, tq_status_t status)
{
    clearing_t *clearing = req->clearing;
    tqi_err_t err;

    tqi_fail(&err, status,
             status == TQ_E_BUSY ? "too many requests of the session wait"
                                 : "no memory for a clear");
    tqi_ctl_clear_leave(ctl, req);
    tqi_ctl_request_fail(ctl, req, &err);
    /* What was begun goes on; the same call joins it. */
    if (clearing)
        tqi_ctl_clearing_start(ctl, clearing);
    return true;
}

static tq_status_t clear_begin(tqi_controller_t *ctl, request_t *req)
{
    const tqi_msg_Clear_t *msg = &req->msg.clear;
    part_t *part = req->op.part;
    tq_status_t rc = join_dying(ctl, req);

    if (rc != TQ_OK || !part || !part->is_known)
        return rc;
    req->clearing = tqi_ctl_clearing_new(ctl, part);
    if (!req->clearing)
        return TQ_E_NO_MEMORY;
    req->clearing->request = req;
    if (msg->is_all) {
        /* From there on it may have to wait for memory, which must not be that of its frame. */
        rc = tqi_ctl_request_own(ctl, req);
        if (rc == TQ_OK)
            rc = tqi_ctl_part_detach(ctl, part, &req->op);
        req->at_block = tqi_index_first(&part->table.index);
    }
    return rc;
}

/* Rows, keys or blocks within the budget; *is_over when all are done. */
static tq_status_t clear_rows(tqi_controller_t *ctl, request_t *req, uint32_t *budget,
                              bool *is_over)
{
    const tqi_msg_Clear_t *msg = &req->msg.clear;
    uint32_t cnt = msg->keys.cnt > 0 ? msg->keys.cnt : msg->rows.cnt;
    const tqi_index_t *index = &req->op.part->table.index;
    uint64_t hint = 0;
    tq_status_t rc = TQ_OK;

    while (!msg->is_all && req->at<cnt && * budget> 0 && rc == TQ_OK) {
        uint32_t len;

        rc = clear_run(ctl, req, &hint, *budget, &len);
        req->at += len;
        *budget -= len;
    }
    while (msg->is_all && req->at_block < tqi_index_limit(index) && *budget > 0 && rc == TQ_OK) {
        tqi_mask_t mask = {.ordinal = req->at_block};
        uint64_t before = req->rows_cnt;

        memset(mask.words, 0xff, sizeof mask.words);
        rc = clear_mask(ctl, req, &mask);
        if (rc != TQ_OK) {
            /* The partition has lost its name already: there is no way but on. */
            ctl->is_starved = true;
            *budget = 0;
            rc = TQ_OK;
            break;
        }
        req->at_block++;
        *budget -=
            (uint32_t)tqi_u64_min(*budget, BLOCK_COST + (req->rows_cnt - before) / BLOCK_COST);
    }
    *is_over = msg->is_all ? req->at_block >= tqi_index_limit(index) : req->at >= cnt;
    return rc;
}

bool tqi_ctl_clear_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    tq_status_t rc = TQ_OK;
    bool is_over = true;
    clearing_t *own;

    if (req->phase == 0) {
        rc = clear_begin(ctl, req);
        req->phase = 1;
    }
    if (rc == TQ_OK && req->clearing)
        rc = clear_rows(ctl, req, budget, &is_over);
    if (rc != TQ_OK)
        return clear_fail(ctl, req, rc);
    if (!is_over)
        return false;
    own = req->clearing;
    if (own && own->core.rows_cnt == 0) {
        req->clearing = NULL;
        own->request = NULL;
        tqi_clear_step(&own->core, TQI_CLEAR_EV_EMPTY);
        tqi_ctl_clearing_free(ctl, own);
        own = NULL;
    }
    if (!own && req->joins.cnt == 0) {
        tqi_ctl_request_reply_done(ctl, req, &(tqi_msg_Clear_R_t){.rows_cnt = req->rows_cnt});
        return true;
    }
    rc = tqi_ctl_request_park(ctl, req);
    if (rc != TQ_OK)
        return clear_fail(ctl, req, rc);
    /* It waits for clears, of whatever partition, and no longer for this one. */
    op->part = NULL;
    if (own)
        tqi_ctl_clearing_start(ctl, own);
    return true;
}
