/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pending puts, and the requests that begin them: INSERT makes rows, RESOLVE finds or makes them by
 * key. (publish.c has the ones that end them.)
 *
 * Rows that a request makes belong to a put from the first moment, also where none was asked for, so
 * that a request that fails half way leaves nothing: ending the put clears what only it had made.
 */
#include "role/controller/internal.h"

#include <stdio.h>
#include <string.h>

/* ---- puts ------------------------------------------------------------------------------------ */

TQI_MACHINE(tqi_ctl_put_machine, "put at the controller", CTL_PUT, CTL_PUT_STEPS);

void tqi_ctl_put_step(put_t *put, put_event_t event)
{
    put->state = (put_state_t)tqi_machine_step(&tqi_ctl_put_machine, put->state, event);
}

static bool has_ended(const put_t *put)
{
    return put->state == CTL_PUT_ENDING || put->state == CTL_PUT_GONE;
}

static bool put_end_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget);
static void put_end_finish(tqi_controller_t *ctl, op_t *op);

static put_t *put_of(op_t *op)
{
    return tqi_container_of(op, put_t, op);
}

static tq_status_t put_begin(tqi_controller_t *ctl, request_t *req, uint64_t payload_bytes,
                             tqi_err_t *err)
{
    session_t *session = req->session;
    part_t *part = req->op.part;
    put_t *put;

    if (session->puts.cnt >= SESSION_PUTS_MAX)
        return tqi_fail(err, TQ_E_BUSY, "session %llu has begun %u puts that it has not ended",
                        (unsigned long long)session->id, SESSION_PUTS_MAX);
    put = tqi_env_zalloc(ctl->env, sizeof *put);
    if (!put || tqi_map_u64_put(&ctl->puts, ctl->put_last + 1, put, NULL) != TQ_OK) {
        tqi_env_free(ctl->env, put, sizeof *put);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a put");
    }
    put->id = ++ctl->put_last;
    put->op.step = put_end_step;
    put->op.finish = put_end_finish;
    put->session = session;
    put->part = part;
    put->wipes = ctl->wipes;
    put->payload_bytes = payload_bytes;
    tqi_bits_init(&put->rows, ctl->env);
    tqi_vec_init(&put->parts, ctl->env);
    tqi_list_push_back(&session->puts, &put->in_session);
    tqi_list_push_back(&part->puts, &put->in_part);
    req->put = put;
    return TQ_OK;
}

void tqi_ctl_put_charge(put_t *put, uint64_t bytes)
{
    put->parts_bytes += bytes;
    put->session->parts_bytes += bytes;
}

static void put_leave_session(put_t *put)
{
    if (!put->session)
        return;
    put->session->parts_bytes -= put->parts_bytes;
    tqi_list_remove(&put->session->puts, &put->in_session);
    put->session = NULL;
}

void tqi_ctl_put_free(tqi_controller_t *ctl, put_t *put)
{
    if (!has_ended(put))
        tqi_map_u64_take(&ctl->puts, put->id);
    put_leave_session(put);
    if (put->part)
        tqi_list_remove(&put->part->puts, &put->in_part);
    for (size_t i = 0; i < put->parts.len; i++)
        tqi_buf_fini(&put->parts.at[i]);
    tqi_vec_fini(&put->parts);
    tqi_bits_fini(&put->rows);
    tqi_env_free(ctl->env, put, sizeof *put);
}

void tqi_ctl_put_end(tqi_controller_t *ctl, put_t *put, put_event_t event)
{
    if (has_ended(put))
        return;
    ctl->cnt_puts_failed += put->state != CTL_PUT_APPLYING && event != CTL_PUT_EV_KEPT;
    tqi_ctl_put_step(put, event);
    tqi_map_u64_take(&ctl->puts, put->id);
    put_leave_session(put);
    if (put->part)
        tqi_ctl_op_queue_next(ctl, put->part, &put->op);
    else
        tqi_ctl_put_free(ctl, put);
}

static bool put_end_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    put_t *put = put_of(op);
    tqi_mask_t mask, orphans;

    while (*budget > 0) {
        uint64_t at = put->at_block;
        tqi_mask_t unlisted;

        if (!tqi_mask_next(&put->rows, &at, &mask))
            return true;
        /* What orphans need is made before anything is counted down. */
        unlisted = mask;
        tqi_leaf_and(unlisted.words, tqi_bits_leaf(&put->part->table.unlisted, mask.ordinal));
        if (tqi_mask_any(&unlisted)) {
            if (!put->orphans)
                put->orphans = tqi_ctl_clearing_new(ctl, put->part);
            if (!put->orphans || tqi_clear_reserve(&put->orphans->core, mask.ordinal) != TQ_OK) {
                ctl->is_starved = true;
                *budget = 0;
                return false;
            }
        }
        tqi_partition_unpend(&put->part->table, &mask, &orphans);
        if (tqi_mask_any(&orphans))
            tqi_ctl_clearing_add(ctl, put->orphans, &orphans);
        put->at_block = at;
        *budget -= (uint32_t)tqi_u64_min(*budget, 8 + tqi_mask_count(&orphans));
    }
    return false;
}

static void put_end_finish(tqi_controller_t *ctl, op_t *op)
{
    put_t *put = put_of(op);
    clearing_t *orphans = put->orphans;

    tqi_ctl_put_step(put, CTL_PUT_EV_COUNTED);
    tqi_ctl_put_free(ctl, put);
    if (orphans)
        tqi_ctl_clearing_start(ctl, orphans);
}

/* ---- shared by the requests ------------------------------------------------------------------ */

/* The request is over, with an error; what its put had made goes. */
static bool fail(tqi_controller_t *ctl, request_t *req, const tqi_err_t *err)
{
    tqi_ctl_request_fail(ctl, req, err);
    if (req->put)
        tqi_ctl_put_end(ctl, req->put, CTL_PUT_EV_FAILED);
    return true;
}

static bool fail_memory(tqi_controller_t *ctl, request_t *req)
{
    tqi_err_t err;

    tqi_fail(&err, TQ_E_NO_MEMORY, "partition '%.*s': no memory", part_show(req->op.part),
             req->op.part->name);
    return fail(ctl, req, &err);
}

/* Puts the partition's name in front of the sentence. */
static bool fail_named(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    tqi_err_prefix(err, "partition '%.*s'", part_show(req->op.part), req->op.part->name);
    return fail(ctl, req, err);
}

/* ---- waiting for a unit ---------------------------------------------------------------------- */

static tq_status_t no_unit(const tqi_controller_t *ctl, uint64_t waited_ns, tqi_err_t *err)
{
    char why[64], waited[48] = "";

    if (ctl->units.len == 0)
        snprintf(why, sizeof why, "none has joined the store");
    else
        snprintf(why, sizeof why, "all %zu that have joined are lost", ctl->units.len);
    if (waited_ns > 0)
        snprintf(waited, sizeof waited, " (waited for %llu ms)",
                 (unsigned long long)(waited_ns / 1000000u));
    return tqi_fail(err, TQ_E_FULL,
                    "no storage unit is there to hold the rows: %s%s; start one, or more", why,
                    waited);
}

/* When a put that waits for a unit gives up. */
static uint64_t home_deadline(const request_t *req)
{
    uint32_t wait_ms =
        req->kind == TQI_KIND_Insert ? req->msg.insert.wait_ms : req->msg.resolve.wait_ms;

    return tqi_u64_min(req->deadline_ns, req->homeless_ns + ms_to_ns(wait_ms));
}

/* A put found no unit: what it has taken is given back, and it begins anew when there is one. It is
 * in no partition meanwhile. False if it is to fail with what place_next said. */
static bool wait_for_unit(tqi_controller_t *ctl, request_t *req)
{
    if (req->homeless_ns == 0)
        req->homeless_ns = ctl->now_ns;
    if (home_deadline(req) <= ctl->now_ns || tqi_ctl_request_own(ctl, req) != TQ_OK ||
        ctl->homeless_bytes + req->frame.len > QUEUE_BYTES_MAX ||
        tqi_ctl_timer_arm(ctl, &req->timer, home_deadline(req)) != TQ_OK)
        return false;
    if (req->put)
        tqi_ctl_put_end(ctl, req->put, CTL_PUT_EV_FAILED);
    req->put = NULL;
    req->op.part = NULL;
    req->phase = 0;
    req->at = req->placed_cnt = req->part_left = 0;
    req->pos.len = 0;
    req->is_parked = true;
    tqi_list_push_back(&ctl->homeless, &req->homeless_node);
    ctl->homeless_bytes += req->frame.len;
    return true;
}

void tqi_ctl_put_homed(tqi_controller_t *ctl, request_t *req)
{
    if (!tqi_node_is_linked(&req->homeless_node))
        return;
    tqi_list_remove(&ctl->homeless, &req->homeless_node);
    ctl->homeless_bytes -= req->frame.len;
    tqi_ctl_timer_disarm(ctl, &req->timer);
}

void tqi_ctl_put_wake(tqi_controller_t *ctl)
{
    tqi_node_t *node;

    for (size_t left = ctl->homeless.cnt;
         left > 0 && tqi_ctl_unit_is_there(ctl) && (node = tqi_list_first(&ctl->homeless));
         left--) {
        request_t *req = tqi_container_of(node, request_t, homeless_node);

        tqi_ctl_put_homed(ctl, req);
        req->is_parked = false;
        tqi_ctl_request_start(ctl, req);
    }
}

void tqi_ctl_put_due(tqi_controller_t *ctl, request_t *req)
{
    tqi_err_t err;

    no_unit(ctl, ctl->now_ns - req->homeless_ns, &err);
    tqi_ctl_request_leave(ctl, req, &err);
}

/* ---- placement ------------------------------------------------------------------------------- */

/* Where the next new rows go: makes req->unit and part_left right for the row number `at` of `cnt`.
 * E_FULL if a unit is needed and none is there. */
static tq_status_t place_next(tqi_controller_t *ctl, request_t *req, uint32_t at, uint32_t cnt,
                              uint64_t payload_bytes, bool is_needed, tqi_err_t *err)
{
    const tqi_partition_t *table = &req->op.part->table;
    uint64_t bytes;

    if (req->part_left > 0)
        return TQ_OK;
    req->part_left = tqi_placement_part(cnt, at);
    bytes = payload_bytes > 0         ? payload_bytes / cnt * req->part_left
            : table->payload_rows > 0 ? table->payload_bytes / table->payload_rows * req->part_left
                                      : 0;
    req->unit = tqi_ctl_unit_choose(ctl, req->session, bytes);
    if (req->unit == 0 && is_needed)
        return no_unit(ctl, req->homeless_ns ? ctl->now_ns - req->homeless_ns : 0, err);
    return TQ_OK;
}

/* The put has the rows [lo, hi) now. */
static tq_status_t put_take_rows(put_t *put, uint64_t lo, uint64_t hi)
{
    tqi_partition_t *table = &put->part->table;

    if (tqi_bits_reserve(&put->rows, lo, hi) != TQ_OK)
        return TQ_E_NO_MEMORY;
    while (lo < hi) {
        uint64_t end = tqi_u64_min(hi, (lo / TQI_BLOCK_ROWS + 1) * TQI_BLOCK_ROWS);
        tqi_mask_t mask = tqi_mask_run(lo, end);

        if (tqi_partition_pend(table, &mask) != TQ_OK)
            return TQ_E_NO_MEMORY;
        tq_status_t rc = tqi_bits_set_range(&put->rows, lo, end);
        tqi_assert(rc == TQ_OK);
        lo = end;
    }
    return TQ_OK;
}

/* Makes up to `want` rows for the request and gives them a unit; *got of them, from *lo. The rows are
 * unlisted and the put's: its end clears them. */
static tq_status_t rows_new(tqi_controller_t *ctl, request_t *req, uint32_t want, uint64_t *lo,
                            uint32_t *got, tqi_err_t *err)
{
    tqi_partition_t *table = &req->op.part->table;
    tq_status_t rc = tqi_partition_take(table, want, true, lo, got, err);

    if (rc != TQ_OK)
        return rc;
    rc = put_take_rows(req->put, *lo, *lo + *got);
    if (rc != TQ_OK) {
        /* Without the put nothing would ever clear them. */
        for (uint64_t pos = *lo; pos < *lo + *got; pos++)
            tqi_partition_keep(table, pos);
    } else if (req->unit != 0) {
        rc = tqi_ctl_unit_place(ctl, req->op.part, *lo, *lo + *got, req->unit);
    }
    if (rc != TQ_OK)
        return tqi_fail(err, rc, "no memory for %u rows", *got);
    req->part_left -= *got;
    return TQ_OK;
}

/* Rows that stay: nothing of them depends on a put any more. */
static void rows_keep(put_t *put)
{
    tqi_mask_t mask;

    for (uint64_t at = 0; tqi_mask_next(&put->rows, &at, &mask);)
        tqi_bits_andnot_leaf(&put->part->table.unlisted, mask.ordinal, mask.words);
}

/* Answers with rows. A put goes on; rows that were made for their own sake stay, and need no put any
 * more. If the answer could not be made, nobody knows of either: they go. */
static bool made_reply(tqi_controller_t *ctl, request_t *req, const void *reply, bool is_put)
{
    bool is_told = tqi_ctl_request_reply(ctl, req, reply) == TQ_OK;

    if (!req->put || (is_put && is_told))
        return true;
    if (is_told)
        rows_keep(req->put);
    tqi_ctl_put_end(ctl, req->put, is_told ? CTL_PUT_EV_KEPT : CTL_PUT_EV_FAILED);
    return true;
}

static tqi_field_t *field_find(const request_t *req, tqi_strs_t fields, uint32_t i)
{
    tqi_str_t name = tqi_strs_at(fields, i);

    return req->op.part ? tqi_partition_field(&req->op.part->table, name.data, name.len) : NULL;
}

static tq_status_t out_schemas_of(request_t *req, tqi_strs_t fields)
{
    for (uint32_t i = 0; i < fields.cnt; i++)
        if (tqi_ctl_out_schema(&req->out, field_find(req, fields, i)) != TQ_OK)
            return TQ_E_NO_MEMORY;
    return TQ_OK;
}

/* ---- INSERT ---------------------------------------------------------------------------------- */

static bool insert_reply(tqi_controller_t *ctl, request_t *req)
{
    const tqi_msg_Insert_t *msg = &req->msg.insert;
    tqi_msg_Insert_R_t reply = {.put_id = msg->is_put && req->put ? req->put->id : 0};

    if (tqi_ctl_out_rows(&req->out, &req->op.part->table, req->pos.at, (uint32_t)req->pos.len) !=
            TQ_OK ||
        out_schemas_of(req, msg->fields) != TQ_OK)
        return fail_memory(ctl, req);
    reply.rows = tqi_u64s(req->out.rows.at, (uint32_t)req->out.rows.len);
    reply.units = tqi_u32s(req->out.units.at, (uint32_t)req->out.units.len);
    reply.schemas = tqi_strs_builder_view(&req->out.schemas);
    return made_reply(ctl, req, &reply, msg->is_put);
}

bool tqi_ctl_insert_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Insert_t *msg = &req->msg.insert;
    bool needs_unit = msg->is_put && msg->fields.cnt > 0;
    tqi_err_t err;

    if (!req->session)
        return fail_memory(ctl, req); /* nobody is there to be told anything */
    if (req->phase == 0) {
        if (msg->rows_cnt > TQ_REQUEST_ROWS_MAX) {
            tqi_fail(&err, TQ_E_TOO_LARGE, "%u rows in one request, at most %u are allowed",
                     msg->rows_cnt, TQ_REQUEST_ROWS_MAX);
            return fail_named(ctl, req, &err);
        }
        if (tqi_ctl_part_known(ctl, op->part, &err) != TQ_OK)
            return fail_named(ctl, req, &err);
        if (tqi_vec_reserve(&req->pos, msg->rows_cnt) != TQ_OK)
            return fail_memory(ctl, req);
        if (msg->rows_cnt > 0 && put_begin(ctl, req, msg->payload_bytes, &err) != TQ_OK)
            return fail_named(ctl, req, &err);
        req->phase = 1;
    }
    while (req->at < msg->rows_cnt) {
        uint64_t lo;
        uint32_t got;

        if (*budget == 0)
            return false;
        if (place_next(ctl, req, req->at, msg->rows_cnt, msg->payload_bytes, needs_unit, &err) !=
                TQ_OK ||
            rows_new(ctl, req, (uint32_t)tqi_u64_min(req->part_left, *budget), &lo, &got, &err) !=
                TQ_OK) {
            if (err.status == TQ_E_FULL && wait_for_unit(ctl, req))
                return true;
            return fail_named(ctl, req, &err);
        }
        for (uint32_t i = 0; i < got; i++)
            req->pos.at[req->pos.len++] = lo + i;
        req->at += got;
        *budget -= got;
    }
    return insert_reply(ctl, req);
}

/* ---- RESOLVE --------------------------------------------------------------------------------- */

static bool resolve_is_create(const request_t *req)
{
    return req->msg.resolve.is_create && req->msg.resolve.keys.cnt > 0;
}

/* How many keys from `at` on are not there, one after another, at most max. */
static uint32_t unknown_run(const tqi_partition_t *table, tqi_strs_t keys, uint32_t at,
                            uint32_t max)
{
    uint32_t cnt = 0;

    while (cnt < max && at + cnt < keys.cnt) {
        tqi_str_t key = tqi_strs_at(keys, at + cnt);

        if (tqi_partition_key(table, key.data, key.len) != TQI_POS_NONE)
            break;
        cnt++;
    }
    return cnt;
}

/* Gives up to `max` unknown keys from req->at on rows of their own. */
static tq_status_t resolve_make(tqi_controller_t *ctl, request_t *req, uint32_t max, tqi_err_t *err)
{
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    tqi_partition_t *table = &req->op.part->table;
    /* Where one key may come twice, the second must find the row of the first. */
    uint32_t want = msg->is_put ? unknown_run(table, msg->keys, req->at, max) : 1, got;
    bool needs_unit = msg->is_put && msg->fields.cnt > 0;
    uint64_t lo;
    tq_status_t rc;

    rc = place_next(ctl, req, req->placed_cnt, msg->keys.cnt, msg->payload_bytes, needs_unit, err);
    if (rc == TQ_OK)
        rc = rows_new(ctl, req, (uint32_t)tqi_u64_min(want, req->part_left), &lo, &got, err);
    if (rc != TQ_OK)
        return rc;
    for (uint32_t i = 0; i < got; i++) {
        tqi_str_t key = tqi_strs_at(msg->keys, req->at);

        if (key.len > TQ_NAME_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE, "a key of %u bytes, at most %u are allowed",
                            key.len, TQ_NAME_MAX);
        if (tqi_partition_key(table, key.data, key.len) != TQI_POS_NONE)
            return tqi_fail(err, TQ_E_DUPLICATE, "key '%.*s' is given twice",
                            (int)tqi_u64_min(key.len, 128), (const char *)key.data);
        if (tqi_partition_key_set(table, lo + i, key.data, key.len) != TQ_OK)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for keys");
        req->pos.at[req->pos.len++] = lo + i;
        req->at++;
    }
    req->placed_cnt += got;
    return TQ_OK;
}

/* A row that is there becomes one of the put's. */
static tq_status_t resolve_join(tqi_controller_t *ctl, request_t *req, uint64_t pos, tqi_err_t *err)
{
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    tqi_partition_t *table = &req->op.part->table;
    uint32_t unit_id;

    if (tqi_bits_test(&req->put->rows, pos)) {
        tqi_str_t key = msg->keys.cnt > 0 ? tqi_strs_at(msg->keys, req->at) : (tqi_str_t){"", 0};

        return tqi_fail(err, TQ_E_DUPLICATE, "row %llu (key '%.*s') is given twice",
                        (unsigned long long)tqi_index_row(&table->index, pos),
                        (int)tqi_u64_min(key.len, 128), (const char *)key.data);
    }
    if (put_take_rows(req->put, pos, pos + 1) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a put");
    if (msg->fields.cnt == 0)
        return TQ_OK;
    tqi_partition_units(table, &pos, 1, &unit_id);
    if (unit_id == 0) {
        tq_status_t rc = place_next(ctl, req, req->placed_cnt, (uint32_t)req->pos.cap,
                                    msg->payload_bytes, true, err);

        if (rc != TQ_OK)
            return rc;
        if (tqi_ctl_unit_place(ctl, req->op.part, pos, pos + 1, req->unit) != TQ_OK)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a put");
        req->part_left--;
        req->placed_cnt++;
        return TQ_OK;
    }
    const unit_t *unit = tqi_ctl_unit_find(ctl, unit_id);
    if (unit && unit->state == UNIT_LOST)
        return tqi_fail(err, TQ_E_UNIT_LOST, "row %llu is on storage unit %u ('%s'), which is lost",
                        (unsigned long long)tqi_index_row(&table->index, pos), unit_id, unit->name);
    return TQ_OK;
}

/* One key or row of the message that is not to be made. */
static tq_status_t resolve_one(tqi_controller_t *ctl, request_t *req, uint64_t *hint,
                               tqi_err_t *err)
{
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    tqi_partition_t *table = &req->op.part->table;
    uint64_t pos;

    if (msg->keys.cnt > 0) {
        tqi_str_t key = tqi_strs_at(msg->keys, req->at);

        pos = tqi_partition_key(table, key.data, key.len);
    } else {
        pos = tqi_index_pos(&table->index, tqi_u64s_at(msg->rows, req->at), hint);
        if (pos != TQI_POS_NONE && !tqi_partition_is_live(table, pos))
            pos = TQI_POS_NONE;
        if (pos == TQI_POS_NONE && msg->is_put)
            return tqi_fail(err, TQ_E_ROW_GONE, "row %llu has been cleared or was never there",
                            (unsigned long long)tqi_u64s_at(msg->rows, req->at));
    }
    if (pos != TQI_POS_NONE && msg->is_put) {
        tq_status_t rc = resolve_join(ctl, req, pos, err);

        if (rc != TQ_OK)
            return rc;
    } else if (pos != TQI_POS_NONE && tqi_bits_test(&table->unlisted, pos)) {
        /* Nothing of it is visible yet, except to who asks for it to be. */
        if (resolve_is_create(req))
            tqi_partition_keep(table, pos);
        else
            pos = TQI_POS_NONE;
    }
    req->pos.at[req->pos.len++] = pos;
    req->at++;
    return TQ_OK;
}

/* The fields that every row found has, by name. */
static tq_status_t resolve_common(request_t *req)
{
    const tqi_partition_t *table = &req->op.part->table;
    tqi_bits_t rows;
    tqi_mask_t mask;
    tq_status_t rc = TQ_OK;
    uint32_t cnt;

    tqi_bits_init(&rows, table->env);
    for (size_t i = 0; i < req->pos.len && rc == TQ_OK; i++)
        if (req->pos.at[i] != TQI_POS_NONE)
            rc = tqi_bits_set(&rows, req->pos.at[i]);
    if (rc == TQ_OK)
        rc = tqi_vec_reserve(&req->fields, table->sorted.len);
    if (rc == TQ_OK && tqi_bits_count(&rows) > 0) {
        for (size_t i = 0; i < table->sorted.len; i++)
            req->fields.at[i] = table->sorted.at[i];
        cnt = (uint32_t)table->sorted.len;
        for (uint64_t at = 0; tqi_mask_next(&rows, &at, &mask);)
            cnt = tqi_partition_common(req->fields.at, cnt, &mask);
        req->fields.len = cnt;
        for (uint32_t i = 0; i < cnt && rc == TQ_OK; i++)
            rc = tqi_ctl_out_field(&req->out, req->fields.at[i]);
    }
    tqi_bits_fini(&rows);
    return rc;
}

/* Which of the rows have a produced field at all. */
static tq_status_t resolve_has_data(request_t *req)
{
    const tqi_partition_t *table = &req->op.part->table;
    uint64_t ordinal = UINT64_MAX, any[TQI_LEAF_WORDS] = {0};

    if (tqi_vec_reserve(&req->out.has_data, req->pos.len) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (size_t i = 0; i < req->pos.len; i++) {
        uint64_t pos = req->pos.at[i];

        if (pos != TQI_POS_NONE && pos / TQI_BLOCK_ROWS != ordinal) {
            ordinal = pos / TQI_BLOCK_ROWS;
            memset(any, 0, sizeof any);
            for (size_t f = 0; f < table->fields.len; f++)
                tqi_leaf_or(any, tqi_bits_leaf(&table->fields.at[f]->produced, ordinal));
        }
        req->out.has_data.at[req->out.has_data.len++] =
            pos != TQI_POS_NONE && tqi_words_test(any, pos % TQI_BLOCK_ROWS);
    }
    return TQ_OK;
}

static tq_status_t resolve_columns(request_t *req)
{
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    const tqi_partition_t *table = &req->op.part->table;
    reply_rows_t *out = &req->out;
    uint32_t cnt = (uint32_t)req->pos.len;
    tq_status_t rc = tqi_ctl_out_rows(out, table, req->pos.at, cnt);

    if (rc == TQ_OK && msg->want_common) {
        rc = resolve_common(req);
    } else if (rc == TQ_OK) {
        rc = tqi_vec_reserve(&req->fields, msg->fields.cnt);
        for (uint32_t i = 0; i < msg->fields.cnt && rc == TQ_OK; i++)
            req->fields.at[req->fields.len++] = field_find(req, msg->fields, i);
    }
    for (size_t i = 0; i < req->fields.len && rc == TQ_OK; i++)
        rc = tqi_ctl_out_schema(out, req->fields.at[i]);
    if (rc == TQ_OK)
        rc = tqi_ctl_out_produced(out, table, req->pos.at, cnt, 0, req->fields.at,
                                  (uint32_t)req->fields.len);
    /* A put needs none: the unit knows which puts are older than its life. */
    if (rc == TQ_OK && !msg->is_put && req->fields.len > 0)
        rc = tqi_ctl_out_lives(out, table);
    if (rc == TQ_OK && msg->want_tags)
        rc = tqi_ctl_out_tags(out, table, req->pos.at, cnt);
    if (rc == TQ_OK && msg->want_keys)
        rc = tqi_ctl_out_keys(out, table, req->pos.at, cnt);
    if (rc == TQ_OK)
        rc = resolve_has_data(req);
    return rc;
}

static bool resolve_reply(tqi_controller_t *ctl, request_t *req)
{
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    reply_rows_t *out = &req->out;
    tqi_msg_Resolve_R_t reply = {.is_known = true,
                                 .put_id = msg->is_put && req->put ? req->put->id : 0};

    if (resolve_columns(req) != TQ_OK)
        return fail_memory(ctl, req);
    reply.rows = tqi_u64s(out->rows.at, (uint32_t)out->rows.len);
    reply.units = tqi_u32s(out->units.at, (uint32_t)out->units.len);
    reply.produced = (tqi_bytes_t){out->produced.data, (uint32_t)out->produced.len};
    reply.common = tqi_strs_builder_view(&out->fields);
    reply.schemas = tqi_strs_builder_view(&out->schemas);
    reply.tags = tqi_strs_builder_view(&out->tags);
    reply.keys = tqi_strs_builder_view(&out->keys);
    reply.has_key = (tqi_u8s_t){out->has_key.at, (uint32_t)out->has_key.len};
    reply.has_data = (tqi_u8s_t){out->has_data.at, (uint32_t)out->has_data.len};
    reply.life_units = tqi_u32s(out->life_units.at, (uint32_t)out->life_units.len);
    reply.lives = tqi_u64s(out->lives.at, (uint32_t)out->lives.len);
    return made_reply(ctl, req, &reply, msg->is_put);
}

/* The partition is not there. */
static bool resolve_unknown(tqi_controller_t *ctl, request_t *req)
{
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    tqi_err_t err;

    if (msg->is_put) {
        tqi_fail(&err, TQ_E_NO_PARTITION, "partition '%.*s' does not exist",
                 (int)tqi_u64_min(msg->partition.len, 128), (const char *)msg->partition.data);
        tqi_ctl_request_fail(ctl, req, &err);
        return true;
    }
    tqi_ctl_request_reply(ctl, req, &(tqi_msg_Resolve_R_t){.is_known = false});
    return true;
}

bool tqi_ctl_resolve_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Resolve_t *msg = &req->msg.resolve;
    uint32_t cnt = msg->keys.cnt > 0 ? msg->keys.cnt : msg->rows.cnt;
    uint64_t hint = 0;
    tqi_err_t err;

    if (!op->part || (!op->part->is_known && !msg->is_create))
        return resolve_unknown(ctl, req);
    if (!req->session)
        return fail_memory(ctl, req); /* nobody is there to be told anything */
    if (req->phase == 0) {
        if (msg->keys.cnt > 0 && msg->rows.cnt > 0) {
            tqi_fail(&err, TQ_E_INVALID, "keys and rows are given, one of them is meant");
            return fail_named(ctl, req, &err);
        }
        if (msg->is_create && tqi_ctl_part_known(ctl, op->part, &err) != TQ_OK)
            return fail_named(ctl, req, &err);
        if (cnt > 0 && tqi_vec_reserve(&req->pos, cnt) != TQ_OK)
            return fail_memory(ctl, req);
        if (cnt > 0 && (msg->is_put || resolve_is_create(req)) &&
            put_begin(ctl, req, msg->payload_bytes, &err) != TQ_OK)
            return fail_named(ctl, req, &err);
        req->phase = 1;
    }
    while (req->at < cnt) {
        uint32_t before = req->at;
        tq_status_t rc;

        if (*budget == 0)
            return false;
        if (resolve_is_create(req) && unknown_run(&op->part->table, msg->keys, req->at, 1) > 0)
            rc = resolve_make(ctl, req, *budget, &err);
        else
            rc = resolve_one(ctl, req, &hint, &err);
        if (rc == TQ_E_FULL && wait_for_unit(ctl, req))
            return true;
        if (rc != TQ_OK)
            return fail_named(ctl, req, &err);
        *budget -= tqi_u64_min(*budget, req->at - before);
    }
    return resolve_reply(ctl, req);
}
