/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUBLISH and TAGS: what was written becomes visible, all of it or nothing.
 *
 * A publish first judges every row and merges tags on the side, then makes everything that applying
 * needs, and only then applies, from which point it can't fail. The units' CONFIRM is noted at that
 * point, so that a session that ends in the middle still ends with its put counted as published.
 */
#include "role/controller/internal.h"

enum { JUDGE, MAKE, APPLY, TELL };

/* Rows that an E_ROW_GONE names. */
#define GONE_ROWS_MAX 1024u

static bool fail(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    part_t *part = req->op.part;
    tqi_u64s_t gone = tqi_u64s(req->out.rows.at, (uint32_t)req->out.rows.len);

    if (part)
        tqi_err_prefix(err, "partition '%.*s'", part_show(part), part->name);
    tqi_ctl_request_fail_about(ctl, req, err, gone.data, gone.cnt, NULL);
    if (req->put)
        tqi_ctl_put_end(ctl, req->put, CTL_PUT_EV_FAILED);
    return true;
}

void tqi_ctl_publish_forget(tqi_controller_t *ctl, request_t *req)
{
    for (size_t i = 0; i < req->parts.len; i++) {
        publish_part_t *part = &req->parts.at[i];

        tqi_bits_fini(&part->rows);
        tqi_env_free(ctl->env, part->fields, part->fields_cap * sizeof *part->fields);
    }
    for (size_t i = 0; i < req->staged.len; i++)
        tqi_tags_free(ctl->env, req->staged.at[i].tags);
    req->parts.len = 0;
    req->staged.len = 0;
}

/* ---- beginning ------------------------------------------------------------------------------- */

static tq_status_t part_add(tqi_controller_t *ctl, request_t *req, const tqi_msg_Publish_t *msg,
                            tqi_err_t *err)
{
    publish_part_t part = {.msg = *msg};

    if (msg->schemas.cnt != 0 && msg->schemas.cnt != msg->fields.cnt)
        return tqi_fail(err, TQ_E_INVALID, "%u schemas for %u fields", msg->schemas.cnt,
                        msg->fields.cnt);
    if (msg->tags.cnt != 0 && msg->tags.cnt != msg->rows.cnt)
        return tqi_fail(err, TQ_E_INVALID, "%u tag maps for %u rows", msg->tags.cnt, msg->rows.cnt);
    for (uint32_t i = 0; i < msg->schemas.cnt; i++) {
        tq_schema_t schema;

        if (tqi_schema_decode(tqi_strs_at(msg->schemas, i), &schema) != TQ_OK)
            return tqi_fail(err, TQ_E_INVALID, "the schema of field %u can't be read", i);
    }
    for (uint32_t i = 0; i < msg->fields.cnt; i++) {
        tqi_str_t name = tqi_strs_at(msg->fields, i);

        if (name.len == 0 || name.len > TQ_NAME_MAX)
            return tqi_fail(err, TQ_E_INVALID, "a field's name has 1 to %u bytes, not %u",
                            TQ_NAME_MAX, name.len);
    }
    tqi_bits_init(&part.rows, ctl->env);
    if (msg->fields.cnt > 0) {
        part.fields = tqi_env_calloc(ctl->env, msg->fields.cnt, sizeof *part.fields);
        part.fields_cap = msg->fields.cnt;
    }
    if ((msg->fields.cnt > 0 && !part.fields) || tqi_vec_push(&req->parts, part) != TQ_OK) {
        tqi_env_free(ctl->env, part.fields, part.fields_cap * sizeof *part.fields);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a publish");
    }
    return TQ_OK;
}

/* Part k of n, k < n: kept until part n comes. */
static tq_status_t part_keep(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    const tqi_msg_Publish_t *msg = &req->msg.publish;
    tqi_bytes_t frame = req->borrowed;
    put_t *put = req->put;
    uint64_t cost = 0;
    tqi_buf_t *kept;

    if (req->frame.data)
        frame = (tqi_bytes_t){req->frame.data, (uint32_t)req->frame.len};
    /* Room for the parts before it comes with a part that is far up. */
    if (msg->part > put->parts.len)
        cost = (msg->part - put->parts.len) * sizeof *put->parts.at;
    if (put->session->parts_bytes + cost + frame.len > SESSION_PARTS_BYTES_MAX ||
        msg->parts > 65536)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "a publish of %u parts, while parts of %llu bytes wait for their last one",
                        msg->parts, (unsigned long long)put->session->parts_bytes);
    while (put->parts.len < msg->part) {
        tqi_buf_t empty;

        tqi_buf_init(&empty, ctl->env);
        if (tqi_vec_push(&put->parts, empty) != TQ_OK)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a part of a publish");
        tqi_ctl_put_charge(put, sizeof empty);
    }
    kept = &put->parts.at[msg->part - 1];
    if (kept->data)
        return tqi_fail(err, TQ_E_DUPLICATE, "part %u of the publish has come before", msg->part);
    if (tqi_buf_append(kept, frame.data, frame.len) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a part of a publish");
    tqi_ctl_put_charge(put, kept->cap);
    return TQ_OK;
}

/* All parts but the last, from what was kept of them. */
static tq_status_t parts_gather(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    const tqi_msg_Publish_t *msg = &req->msg.publish;
    put_t *put = req->put;

    for (uint32_t i = 0; i + 1 < msg->parts; i++) {
        tqi_msg_Publish_t part;
        tqi_envelope_t env;
        tq_status_t rc;

        if (i >= put->parts.len || !put->parts.at[i].data)
            return tqi_fail(err, TQ_E_INVALID, "part %u of %u of the publish has not come", i + 1,
                            msg->parts);
        rc = tqi_envelope_decode(put->parts.at[i].data, put->parts.at[i].len, &env, err);
        if (rc == TQ_OK)
            rc = tqi_msg_decode(&env, TQI_KIND_Publish, &part, err);
        if (rc == TQ_OK)
            rc = part_add(ctl, req, &part, err);
        if (rc != TQ_OK)
            return rc;
    }
    return part_add(ctl, req, msg, err);
}

/* Finds the put, and says whether there is something to apply. */
static tq_status_t publish_begin(tqi_controller_t *ctl, request_t *req, bool *is_over,
                                 tqi_err_t *err)
{
    const tqi_msg_Publish_t *msg = &req->msg.publish;
    put_t *put = tqi_map_u64_get(&ctl->puts, msg->put_id);
    tq_status_t rc;

    *is_over = false;
    if (put && put->session != req->session)
        return tqi_fail(err, TQ_E_DENIED, "put %llu is another session's",
                        (unsigned long long)msg->put_id);
    if (msg->is_abort) {
        if (put) {
            req->put = put;
            tqi_ctl_put_end(ctl, put, CTL_PUT_EV_ABORTED);
        }
        *is_over = true;
        return TQ_OK;
    }
    if (!put)
        return tqi_fail(err, TQ_E_INVALID, "put %llu is not under way: it has ended, or never was",
                        (unsigned long long)msg->put_id);
    req->put = put;
    if (!put->part)
        return tqi_fail(err, TQ_E_ROW_GONE, "the partition of put %llu has been cleared",
                        (unsigned long long)msg->put_id);
    if (msg->parts > 1 && (msg->part < 1 || msg->part > msg->parts))
        return tqi_fail(err, TQ_E_INVALID, "part %u of %u", msg->part, msg->parts);
    if (msg->parts > 1 && msg->part < msg->parts) {
        *is_over = true;
        return part_keep(ctl, req, err);
    }
    rc = msg->parts > 1 ? parts_gather(ctl, req, err) : part_add(ctl, req, msg, err);
    return rc;
}

/* ---- judging --------------------------------------------------------------------------------- */

/* Rows of a message from `at` on that follow each other within a block. */
static uint32_t run_len(tqi_u64s_t rows, uint32_t at, uint32_t max)
{
    uint64_t row = tqi_u64s_at(rows, at);
    uint32_t left = (uint32_t)tqi_u64_min(max, TQI_BLOCK_ROWS - row % TQI_BLOCK_ROWS);
    uint32_t len = 1;

    left = (uint32_t)tqi_u64_min(left, rows.cnt - at);
    while (len < left && tqi_u64s_at(rows, at + len) == row + len)
        len++;
    return len;
}

static void note_gone(request_t *req, uint64_t row)
{
    req->rows_cnt++;
    if (req->out.rows.len < GONE_ROWS_MAX)
        (void)tqi_vec_push(&req->out.rows, row);
}

/* Judges a run of rows and adds it to *rows. Rows that are gone are noted. */
static tq_status_t run_judge(request_t *req, const tqi_bits_t *allowed, uint64_t row, uint64_t pos,
                             uint32_t len, tqi_bits_t *rows, tqi_err_t *err)
{
    tqi_partition_t *table = &req->op.part->table;
    tqi_mask_t mask = tqi_mask_run(pos, pos + len);
    uint64_t lacking[TQI_LEAF_WORDS], live[TQI_LEAF_WORDS];

    tqi_leaf_copy(lacking, mask.words);
    if (allowed)
        tqi_leaf_andnot(lacking, tqi_bits_leaf(allowed, mask.ordinal));
    else
        tqi_leaf_andnot(lacking, lacking);
    if (tqi_leaf_any(lacking)) {
        size_t bit = tqi_words_next(lacking, TQI_LEAF_WORDS, 0);

        return tqi_fail(err, TQ_E_INVALID, "row %llu is not one of the put's",
                        (unsigned long long)(row / TQI_BLOCK_ROWS * TQI_BLOCK_ROWS + bit));
    }
    tqi_partition_live(table, mask.ordinal, live);
    tqi_leaf_copy(lacking, mask.words);
    tqi_leaf_andnot(lacking, live);
    if (tqi_leaf_any(lacking))
        for (uint32_t i = 0; i < len; i++)
            if (tqi_words_test(lacking, (pos + i) % TQI_BLOCK_ROWS))
                note_gone(req, row + i);
    if (tqi_bits_or_leaf(rows, mask.ordinal, mask.words) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a publish");
    return TQ_OK;
}

/* Merges the tags of rows [at, at + len) on the side. */
static tq_status_t tags_stage(tqi_controller_t *ctl, request_t *req, tqi_strs_t tags, uint32_t at,
                              uint64_t pos, uint32_t len, bool is_replace, tqi_err_t *err)
{
    tqi_partition_t *table = &req->op.part->table;

    if (tqi_vec_reserve(&req->staged, len) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for tags");
    for (uint32_t i = 0; i < len; i++) {
        tqi_str_t add = tqi_strs_at(tags, at + i);
        const tqi_tags_t *old = tqi_partition_tags(table, pos + i);
        staged_tags_t staged = {.pos = pos + i};
        /* A row that comes again builds on what the first time made of it. */
        uintptr_t before = (uintptr_t)tqi_map_u64_get(&req->staged_map, pos + i);
        tq_status_t rc;

        if (!tqi_partition_is_live(table, pos + i))
            continue;
        if (before)
            old = req->staged.at[before - 1].tags;
        rc = tqi_tags_merge(ctl->env, old, add.data, add.len, is_replace, &staged.tags, err);
        if (rc != TQ_OK) {
            tqi_err_prefix(err, "row %llu",
                           (unsigned long long)tqi_index_row(&table->index, pos + i));
            return rc;
        }
        if (before) {
            tqi_tags_free(ctl->env, req->staged.at[before - 1].tags);
            req->staged.at[before - 1].tags = staged.tags;
            continue;
        }
        req->staged.at[req->staged.len++] = staged;
        if (tqi_map_u64_put(&req->staged_map, pos + i, (void *)(uintptr_t)req->staged.len, NULL) !=
            TQ_OK)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for tags");
    }
    return TQ_OK;
}

/* Judges rows of a message from req->at on. True when all are. */
static bool rows_judge(tqi_controller_t *ctl, request_t *req, tqi_u64s_t rows, tqi_strs_t tags,
                       bool is_replace, const tqi_bits_t *allowed, tqi_bits_t *judged,
                       uint32_t *budget, tq_status_t *rc, tqi_err_t *err)
{
    const tqi_partition_t *table = &req->op.part->table;
    uint64_t hint = tqi_index_limit(&table->index);

    while (req->at < rows.cnt) {
        uint64_t row = tqi_u64s_at(rows, req->at), pos;
        uint32_t len;

        if (*budget == 0)
            return false;
        len = run_len(rows, req->at, *budget);
        pos = tqi_index_pos(&table->index, row, &hint);
        if (pos == TQI_POS_NONE) {
            for (uint32_t i = 0; i < len; i++)
                note_gone(req, row + i);
        } else {
            *rc = run_judge(req, allowed, row, pos, len, judged, err);
            if (*rc == TQ_OK && tags.cnt > 0)
                *rc = tags_stage(ctl, req, tags, req->at, pos, len, is_replace, err);
            if (*rc != TQ_OK)
                return false;
        }
        req->at += len;
        *budget -= len;
    }
    return true;
}

static tq_status_t say_gone(request_t *req, tqi_err_t *err)
{
    return tqi_fail(err, TQ_E_ROW_GONE,
                    "%llu of the rows have been cleared or were never there, row %llu first",
                    (unsigned long long)req->rows_cnt,
                    (unsigned long long)(req->out.rows.len ? req->out.rows.at[0] : TQ_ROW_NONE));
}

/* A unit that has begun a new life since the put did has lost what it was sent. */
static tq_status_t judge_units(tqi_controller_t *ctl, request_t *req, tqi_err_t *err)
{
    const tqi_partition_t *table = &req->op.part->table;
    tqi_mask_t mask;

    if (req->put->wipes == ctl->wipes)
        return TQ_OK;
    for (size_t i = 0; i < table->placed.len; i++) {
        const tqi_placed_t *placed = table->placed.at[i];
        const unit_t *unit = tqi_ctl_unit_find(ctl, placed->unit);

        if (!unit || unit->wiped_at <= req->put->wipes)
            continue;
        for (uint64_t at = 0; tqi_mask_next(&req->put->rows, &at, &mask);) {
            tqi_leaf_and(mask.words, tqi_bits_leaf(&placed->rows, mask.ordinal));
            if (tqi_mask_any(&mask))
                return tqi_fail(err, TQ_E_UNIT_LOST,
                                "storage unit %u ('%s') was replaced while the put was under way",
                                unit->id, unit->name);
        }
    }
    return TQ_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

static tq_status_t fields_make(request_t *req, tqi_err_t *err)
{
    tqi_partition_t *table = &req->op.part->table;
    size_t more = 0;

    for (size_t i = 0; i < req->parts.len; i++)
        for (uint32_t f = 0; f < req->parts.at[i].msg.fields.cnt; f++) {
            tqi_str_t name = tqi_strs_at(req->parts.at[i].msg.fields, f);

            more += !tqi_partition_field(table, name.data, name.len);
        }
    if (table->fields.len + more > TQ_PARTITION_FIELDS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "%zu more fields beside %zu, at most %u are allowed",
                        more, table->fields.len, TQ_PARTITION_FIELDS_MAX);
    for (size_t i = 0; i < req->parts.len; i++) {
        publish_part_t *part = &req->parts.at[i];

        for (uint32_t f = 0; f < part->msg.fields.cnt; f++) {
            tqi_str_t name = tqi_strs_at(part->msg.fields, f);
            tq_status_t rc =
                tqi_partition_field_make(table, name.data, name.len, &part->fields[f], err);

            if (rc != TQ_OK)
                return rc;
        }
    }
    return TQ_OK;
}

static tq_status_t leaves_make(request_t *req)
{
    tqi_partition_t *table = &req->op.part->table;
    tqi_mask_t mask;

    for (size_t i = 0; i < req->parts.len; i++) {
        const publish_part_t *part = &req->parts.at[i];

        for (uint64_t at = 0; tqi_mask_next(&part->rows, &at, &mask);)
            if (tqi_partition_publish_reserve(table, part->fields, part->msg.fields.cnt, &mask) !=
                TQ_OK)
                return TQ_E_NO_MEMORY;
    }
    for (size_t i = 0; i < req->staged.len; i++)
        if (tqi_partition_tags_reserve(table, req->staged.at[i].pos / TQI_BLOCK_ROWS) != TQ_OK)
            return TQ_E_NO_MEMORY;
    return TQ_OK;
}

/* Notes the CONFIRM at every unit that holds rows of the put. */
static tq_status_t confirms_make(tqi_controller_t *ctl, request_t *req)
{
    const tqi_partition_t *table = &req->op.part->table;
    bool has_fields = false;
    tqi_mask_t mask;

    for (size_t i = 0; i < req->parts.len; i++)
        has_fields = has_fields || req->parts.at[i].msg.fields.cnt > 0;
    if (!has_fields)
        return TQ_OK;
    for (size_t i = 0; i < table->placed.len; i++) {
        unit_t *unit = tqi_ctl_unit_find(ctl, table->placed.at[i]->unit);

        if (unit && tqi_ctl_unit_confirm_reserve(unit, 1) != TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    for (size_t i = 0; i < table->placed.len; i++) {
        const tqi_placed_t *placed = table->placed.at[i];
        unit_t *unit = tqi_ctl_unit_find(ctl, placed->unit);

        for (uint64_t at = 0; unit && tqi_mask_next(&req->put->rows, &at, &mask);) {
            tqi_leaf_and(mask.words, tqi_bits_leaf(&placed->rows, mask.ordinal));
            if (tqi_mask_any(&mask)) {
                tqi_ctl_unit_confirm(ctl, unit, req->put);
                break;
            }
        }
    }
    return TQ_OK;
}

static void schemas_merge(const publish_part_t *part)
{
    for (uint32_t f = 0; f < part->msg.schemas.cnt; f++) {
        tq_schema_t add = {0};

        if (tqi_schema_decode(tqi_strs_at(part->msg.schemas, f), &add) != TQ_OK ||
            add.encoding == 0)
            continue;
        if (part->fields[f]->schema.encoding == 0)
            part->fields[f]->schema = add;
        else
            tqi_schema_merge(&part->fields[f]->schema, &add);
    }
}

/* ---- applying -------------------------------------------------------------------------------- */

static void tags_apply(request_t *req, uint32_t *budget)
{
    tqi_partition_t *table = &req->op.part->table;

    while (req->at<req->staged.len && * budget> 0) {
        staged_tags_t *staged = &req->staged.at[req->at++];

        tqi_partition_tags_set(table, staged->pos, staged->tags);
        staged->tags = NULL;
        --*budget;
    }
}

/* Applies blocks of the parts from (part_at, at_block) on. True when all are. */
static bool rows_apply(tqi_controller_t *ctl, request_t *req, uint32_t *budget)
{
    tqi_partition_t *table = &req->op.part->table;
    tqi_mask_t mask;

    while (req->part_at < req->parts.len) {
        publish_part_t *part = &req->parts.at[req->part_at];

        while (tqi_mask_next(&part->rows, &req->at_block, &mask)) {
            uint32_t cnt = tqi_mask_count(&mask);

            tqi_partition_publish(table, part->fields, part->msg.fields.cnt, &mask);
            ctl->cnt_rows_published += cnt;
            *budget -= tqi_u64_min(*budget, cnt);
            if (*budget == 0)
                return false;
        }
        req->part_at++;
        req->at_block = 0;
    }
    return true;
}

static bool publish_tell(tqi_controller_t *ctl, request_t *req)
{
    const publish_part_t *last = &req->parts.at[req->parts.len - 1];
    tqi_partition_t *table = &req->op.part->table;
    tqi_msg_Publish_R_t reply = {0};
    put_t *put = req->put;
    tq_status_t rc = TQ_OK;
    tqi_mask_t mask;
    uint32_t cnt = (uint32_t)table->sorted.len;

    if (req->session && req->msg.publish.want_meta) {
        uint64_t hint = 0;

        rc = tqi_vec_reserve(&req->fields, cnt);
        if (rc == TQ_OK)
            rc = tqi_vec_reserve(&req->pos, last->msg.rows.cnt);
        if (rc == TQ_OK) {
            for (uint32_t i = 0; i < cnt; i++)
                req->fields.at[i] = table->sorted.at[i];
            for (uint64_t at = 0; tqi_mask_next(&put->rows, &at, &mask);)
                cnt = tqi_partition_common(req->fields.at, cnt, &mask);
            for (uint32_t i = 0; i < last->msg.rows.cnt; i++)
                req->pos.at[req->pos.len++] =
                    tqi_index_pos(&table->index, tqi_u64s_at(last->msg.rows, i), &hint);
        }
        for (uint32_t i = 0; i < cnt && rc == TQ_OK; i++) {
            rc = tqi_ctl_out_field(&req->out, req->fields.at[i]);
            if (rc == TQ_OK)
                rc = tqi_ctl_out_schema(&req->out, req->fields.at[i]);
        }
        if (rc == TQ_OK)
            rc = tqi_ctl_out_tags(&req->out, table, req->pos.at, (uint32_t)req->pos.len);
        /* What was published stays so: an answer without them is still true. */
        if (rc == TQ_OK) {
            reply.common = tqi_strs_builder_view(&req->out.fields);
            reply.schemas = tqi_strs_builder_view(&req->out.schemas);
            reply.tags = tqi_strs_builder_view(&req->out.tags);
        }
    }
    tqi_ctl_request_reply_done(ctl, req, &reply);
    tqi_ctl_put_end(ctl, put, CTL_PUT_EV_PUBLISHED);
    return true;
}

bool tqi_ctl_publish_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    tq_status_t rc = TQ_OK;
    bool is_over = false;
    tqi_err_t err;

    if (req->phase == JUDGE && !req->session) {
        /* The session ended: nobody wants it, and its end has ended the put. */
        tqi_fail(&err, TQ_E_SESSION_EXPIRED, "the session has ended");
        tqi_ctl_request_fail(ctl, req, &err);
        return true;
    }
    if (req->phase == JUDGE && req->parts.len == 0) {
        rc = publish_begin(ctl, req, &is_over, &err);
        if (rc != TQ_OK)
            return fail(ctl, req, &err);
        if (is_over) {
            tqi_ctl_request_reply_done(ctl, req, &(tqi_msg_Publish_R_t){0});
            return true;
        }
    }
    while (req->phase == JUDGE) {
        publish_part_t *part = &req->parts.at[req->part_at];

        if (!rows_judge(ctl, req, part->msg.rows, part->msg.tags, part->msg.is_replace_tags,
                        &req->put->rows, &part->rows, budget, &rc, &err))
            return rc == TQ_OK ? false : fail(ctl, req, &err);
        req->at = 0;
        if (++req->part_at == req->parts.len)
            req->phase = MAKE;
    }
    if (req->phase == MAKE) {
        if (req->rows_cnt > 0)
            rc = say_gone(req, &err);
        if (rc == TQ_OK)
            rc = judge_units(ctl, req, &err);
        if (rc == TQ_OK)
            rc = fields_make(req, &err);
        if (rc == TQ_OK && (leaves_make(req) != TQ_OK || confirms_make(ctl, req) != TQ_OK))
            rc = tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for a publish");
        if (rc != TQ_OK)
            return fail(ctl, req, &err);
        for (size_t i = 0; i < req->parts.len; i++)
            schemas_merge(&req->parts.at[i]);
        if (req->put->payload_bytes > 0) {
            op->part->table.payload_rows += tqi_bits_count(&req->put->rows);
            op->part->table.payload_bytes += req->put->payload_bytes;
        }
        tqi_ctl_put_step(req->put, CTL_PUT_EV_APPLY);
        req->part_at = 0;
        req->at_block = 0;
        req->at = 0;
        req->phase = APPLY;
    }
    if (req->phase == APPLY) {
        if (!rows_apply(ctl, req, budget))
            return false;
        req->phase = TELL;
    }
    tags_apply(req, budget);
    if (req->at < req->staged.len)
        return false;
    return publish_tell(ctl, req);
}

/* ---- TAGS ------------------------------------------------------------------------------------ */

bool tqi_ctl_tags_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Tags_t *msg = &req->msg.tags;
    tq_status_t rc = TQ_OK;
    tqi_mask_t mask;
    tqi_err_t err;

    if (!op->part || !op->part->is_known)
        rc = tqi_fail(&err, TQ_E_NO_PARTITION, "partition '%.*s' does not exist",
                      (int)tqi_u64_min(msg->partition.len, 128), (const char *)msg->partition.data);
    else if (msg->tags.cnt != msg->rows.cnt)
        rc = tqi_fail(&err, TQ_E_INVALID, "%u tag maps for %u rows", msg->tags.cnt, msg->rows.cnt);
    if (rc != TQ_OK) {
        tqi_ctl_request_fail(ctl, req, &err);
        return true;
    }
    if (req->phase == JUDGE) {
        if (!rows_judge(ctl, req, msg->rows, msg->tags, msg->is_replace, NULL, &req->rows, budget,
                        &rc, &err))
            return rc == TQ_OK ? false : fail(ctl, req, &err);
        if (req->rows_cnt > 0)
            rc = say_gone(req, &err);
        else if (leaves_make(req) != TQ_OK)
            rc = tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for tags");
        if (rc != TQ_OK)
            return fail(ctl, req, &err);
        req->at = 0;
        req->phase = APPLY;
        /* Rows that had nothing yet have tags now. */
        for (uint64_t at = 0; tqi_mask_next(&req->rows, &at, &mask);)
            tqi_partition_publish(&op->part->table, NULL, 0, &mask);
    }
    tags_apply(req, budget);
    if (req->at < req->staged.len)
        return false;
    tqi_ctl_request_reply_done(ctl, req, &(tqi_msg_Tags_R_t){0});
    return true;
}
