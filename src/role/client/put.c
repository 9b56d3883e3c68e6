/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A put: rows are resolved or made, their values stored at each unit, and then the whole is
 * published at once.
 *
 *   RESOLVING -> STORING -> PUBLISHING
 *                  |  ^
 *                  v  |  one unit is full: everything taken is given up, and taken again in
 *                YIELDING  ascending order of units, one after another, waiting for space. So two
 *                          puts never hold what the other waits for.
 *
 * Up to PUBLISHING any failure undoes everything: ABORT at each unit that was touched, and at the
 * controller, which clears rows that only this put had made. From then on the outcome is what the
 * controller says, and unknown if it never does.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A PREPARE carries at most so much besides payload, well below TQ_MESSAGE_BYTES_MAX. */
#define SLOT_DESC_BYTES_MAX (4u << 20)
#define PART_TAGS_BYTES_MAX (8u << 20)

TQI_MACHINE(tqi_put_machine, "put at the client", TQI_PUT, TQI_PUT_STEPS);

typedef struct put {
    tqi_op_t op;
    const char *partition;
    uint32_t rows_cnt;
    tq_strs_t keys;
    const tq_row_t *given; /* NULL: keys, or new rows */
    uint32_t columns_cnt;
    tq_column_t *columns;
    tq_strs_t fields; /* of the columns */
    tq_strs_t tags;
    uint32_t flags;
    uint64_t bytes;

    tqi_put_state_t phase;
    uint64_t put_id;   /* 0: none was begun, or it is published */
    uint8_t *produced; /* bitset over rows x columns */
    const uint8_t *has_data;
    uint32_t waiting_cnt; /* slots not STORED; YIELDING: CANCELs unanswered; PUBLISHING: parts */
    bool is_retaking;
    uint64_t space_deadline_ns; /* 0: not begun */
    tq_schema_t *schemas;
    bool is_named; /* the error names the cells that were replaced */
} put_t;

static put_t *put_of(tqi_op_t *op)
{
    return tqi_container_of(op, put_t, op);
}

static void put_step(put_t *put, tqi_put_event_t event)
{
    put->phase = (tqi_put_state_t)tqi_machine_step(&tqi_put_machine, put->phase, event);
}

/* ---- columns ----------------------------------------------------------------------------------- */

/* Where row r's bytes are and how many. */
static const char *cell_at(const tq_column_t *column, uint32_t r, uint64_t *len)
{
    switch (column->layout) {
    case TQ_LAYOUT_UNIFORM:
        *len = column->desc.len;
        return (const char *)column->data + (int64_t)r * column->row_stride;
    case TQ_LAYOUT_RAGGED:
        *len = (uint64_t)(column->offsets[r + 1] - column->offsets[r]) * column->unit_bytes;
        return (const char *)column->data + (uint64_t)column->offsets[r] * column->unit_bytes;
    case TQ_LAYOUT_EACH:
        *len = column->cells[r].desc.len;
        return column->cells[r].data;
    }
    *len = 0;
    return NULL;
}

typedef struct desc_ctx {
    const tq_column_t *column;
    const uint32_t *at; /* NULL: all rows */
} desc_ctx_t;

static void desc_at(void *ctx, uint32_t k, tq_desc_t *desc)
{
    const desc_ctx_t *c = ctx;
    const tq_column_t *column = c->column;
    uint32_t r = c->at ? c->at[k] : k;

    switch (column->layout) {
    case TQ_LAYOUT_UNIFORM:
        *desc = column->desc;
        break;
    case TQ_LAYOUT_RAGGED:
        *desc = column->desc;
        desc->shape[0] = (uint64_t)(column->offsets[r + 1] - column->offsets[r]);
        desc->len = desc->shape[0] * column->unit_bytes;
        break;
    case TQ_LAYOUT_EACH:
        *desc = column->cells[r].desc;
        break;
    }
}

static tq_status_t check_column(const tq_column_t *column, uint32_t rows_cnt, uint64_t *bytes,
                                tqi_err_t *err)
{
    desc_ctx_t ctx = {.column = column};
    tq_status_t rc = tqi_check_name("field", column->field, err);
    tq_desc_t desc;

    if (rc != TQ_OK)
        return rc;
    switch (column->layout) {
    case TQ_LAYOUT_UNIFORM:
        if (column->desc.len > 0 && !column->data)
            return tqi_fail(err, TQ_E_INVALID, "field '%.200s': data is missing", column->field);
        break;
    case TQ_LAYOUT_RAGGED:
        if (!column->offsets)
            return tqi_fail(err, TQ_E_INVALID, "field '%.200s': offsets are missing",
                            column->field);
        if (column->desc.encoding != TQ_ENC_TENSOR || column->desc.ndim == 0)
            return tqi_fail(err, TQ_E_INVALID,
                            "field '%.200s': a ragged column has tensors of one dimension or more",
                            column->field);
        for (uint32_t r = 0; r < rows_cnt; r++)
            if (column->offsets[r] < 0 || column->offsets[r + 1] < column->offsets[r])
                return tqi_fail(err, TQ_E_INVALID,
                                "field '%.200s': offsets don't ascend at row %" PRIu32,
                                column->field, r);
        if (column->unit_bytes != 0 &&
            (uint64_t)column->offsets[rows_cnt] > INT64_MAX / column->unit_bytes)
            return tqi_fail(err, TQ_E_TOO_LARGE, "field '%.200s': offsets overflow 2^63 bytes",
                            column->field);
        if (column->offsets[rows_cnt] > column->offsets[0] && column->unit_bytes > 0 &&
            !column->data)
            return tqi_fail(err, TQ_E_INVALID, "field '%.200s': data is missing", column->field);
        break;
    case TQ_LAYOUT_EACH:
        if (!column->cells)
            return tqi_fail(err, TQ_E_INVALID, "field '%.200s': cells are missing", column->field);
        for (uint32_t r = 0; r < rows_cnt; r++)
            if (column->cells[r].desc.len > 0 && !column->cells[r].data)
                return tqi_fail(err, TQ_E_INVALID,
                                "field '%.200s': the data of row %" PRIu32 " is missing",
                                column->field, r);
        break;
    default:
        return tqi_fail(err, TQ_E_INVALID, "field '%.200s': unknown layout %d", column->field,
                        column->layout);
    }
    for (uint32_t r = 0; r < (column->layout == TQ_LAYOUT_UNIFORM ? 1 : rows_cnt); r++) {
        uint64_t times = column->layout == TQ_LAYOUT_UNIFORM ? rows_cnt : 1, more;
        desc_at(&ctx, r, &desc);
        rc = tqi_desc_check(&desc, err);
        if (rc != TQ_OK) {
            tqi_err_prefix(err, "field '%.200s', row %" PRIu32, column->field, r);
            return rc;
        }
        if (!tqi_u64_mul(desc.len, times, &more) || !tqi_u64_add(*bytes, more, bytes) ||
            *bytes > INT64_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE, "the put is over 2^63 bytes at field '%.200s'",
                            column->field);
    }
    return TQ_OK;
}

/* ---- making ------------------------------------------------------------------------------------ */

static tq_status_t put_check(const tq_put_args_t *args, uint64_t *bytes, const tqi_env_t *env,
                             tqi_err_t *err)
{
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc != TQ_OK)
        return rc;
    if (args->rows_cnt == 0)
        return tqi_fail(err, TQ_E_INVALID, "a put of 0 rows");
    if (args->rows_cnt > TQ_REQUEST_ROWS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "a put of %" PRIu32 " rows, over the limit of %u: split it", args->rows_cnt,
                        TQ_REQUEST_ROWS_MAX);
    if (args->keys && args->rows)
        return tqi_fail(err, TQ_E_INVALID, "a put names its rows by keys or by index, not by both");
    if (args->columns_cnt > TQ_PARTITION_FIELDS_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE, "%" PRIu32 " fields, over the limit of %u",
                        args->columns_cnt, TQ_PARTITION_FIELDS_MAX);
    if (args->columns_cnt > 0 && !args->columns)
        return tqi_fail(err, TQ_E_INVALID, "the columns are missing");
    if (args->columns_cnt == 0 && !args->tags)
        return tqi_fail(err, TQ_E_INVALID, "a put of neither columns nor tags");
    if (args->keys) {
        if (args->keys->cnt != args->rows_cnt)
            return tqi_fail(err, TQ_E_INVALID, "%" PRIu32 " keys for %" PRIu32 " rows",
                            args->keys->cnt, args->rows_cnt);
        rc = tqi_check_keys(args->keys, false, err);
        if (rc == TQ_OK)
            rc = tqi_check_distinct_strs(env, "key", args->keys, err);
    } else if (args->rows) {
        rc = tqi_check_rows("put", args->rows, args->rows_cnt, err);
        if (rc == TQ_OK)
            rc = tqi_check_distinct_rows(env, args->rows, args->rows_cnt, err);
    }
    if (rc == TQ_OK)
        rc = tqi_check_tags(args->tags, args->rows_cnt, err);
    for (uint32_t f = 0; f < args->columns_cnt && rc == TQ_OK; f++)
        rc = check_column(&args->columns[f], args->rows_cnt, bytes, err);
    if (rc == TQ_OK && args->tags && (args->flags & TQ_PUT_WANT_META) &&
        args->tags->offsets[args->rows_cnt] > PART_TAGS_BYTES_MAX)
        return tqi_fail(err, TQ_E_TOO_LARGE,
                        "%" PRIu32 " bytes of tags, over the limit of %u for a put that wants them "
                        "back: split it",
                        args->tags->offsets[args->rows_cnt], PART_TAGS_BYTES_MAX);
    return rc;
}

static const tqi_op_class_t put_class;

static tq_status_t copy_columns(put_t *put, const tq_put_args_t *args)
{
    tqi_op_t *op = &put->op;
    size_t bytes = 0;
    uint32_t *offsets, at = 0;
    char *names;

    if (args->columns_cnt == 0)
        return TQ_OK;
    put->columns = tqi_op_dup(op, args->columns, args->columns_cnt * sizeof *args->columns);
    put->schemas = tqi_op_mem(op, args->columns_cnt * sizeof *put->schemas);
    offsets = tqi_op_mem(op, ((size_t)args->columns_cnt + 1) * sizeof *offsets);
    for (uint32_t f = 0; f < args->columns_cnt; f++)
        bytes += strlen(args->columns[f].field) + 1;
    names = tqi_op_mem(op, bytes);
    if (!put->columns || !put->schemas || !offsets || !names)
        return TQ_E_NO_MEMORY;
    put->columns_cnt = args->columns_cnt;
    for (uint32_t f = 0; f < args->columns_cnt; f++) {
        tq_column_t *column = &put->columns[f];
        size_t len = strlen(column->field);
        memcpy(names + at, column->field, len);
        offsets[f] = at;
        at += (uint32_t)len;
        column->field = NULL; /* its name is in fields */
        if (column->layout == TQ_LAYOUT_RAGGED) {
            column->offsets = tqi_op_dup(op, column->offsets,
                                         ((size_t)put->rows_cnt + 1) * sizeof *column->offsets);
            if (!column->offsets)
                return TQ_E_NO_MEMORY;
        } else if (column->layout == TQ_LAYOUT_EACH) {
            column->cells =
                tqi_op_dup(op, column->cells, (size_t)put->rows_cnt * sizeof *column->cells);
            if (!column->cells)
                return TQ_E_NO_MEMORY;
        }
    }
    offsets[args->columns_cnt] = at;
    put->fields = (tq_strs_t){.cnt = args->columns_cnt, .offsets = offsets, .bytes = names};
    return TQ_OK;
}

tq_status_t tqi_op_put(const tqi_env_t *env, const tq_put_args_t *args, tqi_op_t **out,
                       tqi_err_t *err)
{
    uint64_t bytes = 0;
    tqi_op_t *op;
    put_t *put;
    tq_status_t rc = put_check(args, &bytes, env, err);

    if (rc == TQ_OK)
        rc = tqi_op_new(env, &put_class, args->timeout_ms, &op, err);
    if (rc != TQ_OK)
        return rc;
    put = put_of(op);
    put->rows_cnt = args->rows_cnt;
    put->flags = args->flags;
    put->bytes = bytes;
    put->partition = tqi_op_dup_str(op, args->partition, strlen(args->partition));
    rc = put->partition ? tqi_op_dup_strs(op, args->keys, &put->keys) : TQ_E_NO_MEMORY;
    if (rc == TQ_OK)
        rc = tqi_op_dup_strs(op, args->tags, &put->tags);
    if (rc == TQ_OK && args->rows) {
        put->given = tqi_op_dup(op, args->rows, args->rows_cnt * sizeof *args->rows);
        rc = put->given ? TQ_OK : TQ_E_NO_MEMORY;
    }
    if (rc == TQ_OK)
        rc = copy_columns(put, args);
    if (rc == TQ_OK)
        rc = tqi_check_distinct_strs(env, "field", &put->fields, err);
    else
        tqi_fail(err, rc, "no memory for a put of %" PRIu32 " rows", args->rows_cnt);
    if (rc != TQ_OK) {
        tqi_op_free(op);
        return rc;
    }
    *out = op;
    return TQ_OK;
}

/* ---- resolving --------------------------------------------------------------------------------- */

static void store_all(put_t *put, uint64_t now_ns);
static void publish(put_t *put, uint64_t now_ns);

/* How long space may still be waited for; 1 where no time is left, as 0 means not to wait. */
static uint32_t space_wait_ms(const put_t *put, uint64_t now_ns)
{
    uint64_t until_ns = tqi_u64_min(put->space_deadline_ns, put->op.deadline_ns);

    return until_ns > now_ns ? (uint32_t)tqi_u64_max((until_ns - now_ns) / TQI_MS, 1) : 1;
}

static void put_start(tqi_op_t *op, uint64_t now_ns)
{
    put_t *put = put_of(op);
    tqi_client_t *client = op->client;

    put_step(put, TQI_PUT_EV_START);
    put->put_id = 0;
    /* Space is waited for once, whether it is a unit or bytes that are missing. */
    if (put->space_deadline_ns == 0)
        put->space_deadline_ns = now_ns + client->conf.space_timeout_ms * TQI_MS;
    if (put->keys.cnt > 0 || put->given) {
        tqi_msg_Resolve_t msg = {
            .partition = tqi_str(put->partition),
            .keys = tqi_strs_of(&put->keys),
            .rows = tqi_u64s(put->given, put->given ? put->rows_cnt : 0),
            .fields = tqi_strs_of(&put->fields),
            .is_create = put->keys.cnt > 0,
            .is_put = true,
            .payload_bytes = put->bytes,
            .wait_ms = space_wait_ms(put, now_ns),
        };
        tqi_op_request(op, client->controller, NULL, TQI_KIND_Resolve, &msg, now_ns);
    } else {
        tqi_msg_Insert_t msg = {
            .partition = tqi_str(put->partition),
            .rows_cnt = put->rows_cnt,
            .fields = tqi_strs_of(&put->fields),
            .is_put = true,
            .payload_bytes = put->bytes,
            .wait_ms = space_wait_ms(put, now_ns),
        };
        tqi_op_request(op, client->controller, NULL, TQI_KIND_Insert, &msg, now_ns);
    }
}

/* At most so many rows a slot, that descriptors, bits and rows fit into a message. */
static uint32_t rows_max_of(const put_t *put)
{
    uint64_t descs = 0, bytes = 8 + put->columns_cnt / 8 + 1;

    for (uint32_t f = 0; f < put->columns_cnt; f++) {
        const tq_column_t *column = &put->columns[f];
        if (column->layout == TQ_LAYOUT_UNIFORM)
            continue;
        descs++;
        if (column->layout == TQ_LAYOUT_RAGGED) {
            bytes += 8;
        } else {
            uint32_t ndim = 0;
            for (uint32_t r = 0; r < put->rows_cnt; r++)
                ndim = ndim > column->cells[r].desc.ndim ? ndim : column->cells[r].desc.ndim;
            bytes += 12 + (uint64_t)ndim * 8;
        }
    }
    uint64_t max = SLOT_DESC_BYTES_MAX / bytes;
    if (descs > 0)
        max = tqi_u64_min(max, TQ_REQUEST_DESCS_MAX / descs);
    return (uint32_t)tqi_u64_max(1, tqi_u64_min(max, TQ_REQUEST_ROWS_MAX));
}

static void resolved(put_t *put, uint64_t put_id, tqi_u64s_t rows, tqi_u32s_t units,
                     tqi_bytes_t produced, tqi_u8s_t has_data, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    size_t bits = ((size_t)put->rows_cnt * put->columns_cnt + 7) / 8;
    uint8_t *data;
    tqi_err_t err;

    put->put_id = put_id;
    if (rows.cnt != put->rows_cnt || units.cnt != put->rows_cnt || put_id == 0 ||
        (has_data.cnt != 0 && has_data.cnt != put->rows_cnt) || produced.len > bits) {
        tqi_fail(&err, TQ_E_MALFORMED, "the controller resolved %" PRIu32 " of %" PRIu32 " rows",
                 rows.cnt, put->rows_cnt);
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    put->produced = tqi_op_mem(op, bits + 1);
    data = tqi_op_mem(op, put->rows_cnt);
    if (!put->produced || !data ||
        tqi_buf_append(&op->rows, rows.data, (size_t)rows.cnt * sizeof(tq_row_t)) != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    memset(put->produced, 0, bits + 1);
    if (produced.len > 0)
        memcpy(put->produced, produced.data, produced.len);
    memset(data, 0, put->rows_cnt);
    if (has_data.cnt > 0)
        memcpy(data, has_data.data, has_data.cnt);
    put->has_data = data;
    if (put->columns_cnt == 0) {
        publish(put, now_ns);
        return;
    }
    if (tqi_slots_make(op, units, rows_max_of(put), &err) != TQ_OK) {
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    for (uint32_t s = 0; s < op->slots_cnt; s++) {
        tqi_slot_t *slot = &op->slots[s];
        for (uint32_t f = 0; f < put->columns_cnt; f++)
            for (uint32_t k = 0; k < slot->rows_cnt; k++) {
                uint64_t len;
                cell_at(&put->columns[f], slot->at[k], &len);
                slot->bytes += len;
            }
    }
    put_step(put, TQI_PUT_EV_RESOLVED);
    store_all(put, now_ns);
}

/* ---- storing ----------------------------------------------------------------------------------- */

/* The slot's frames: one a field, the rows' values one after another. */
static tq_status_t make_frames(const put_t *put, const tqi_slot_t *slot, tqi_frames_t *frames)
{
    tq_status_t rc = tqi_frames_init(frames, put->op.env, put->columns_cnt);

    for (uint32_t f = 0; f < put->columns_cnt && rc == TQ_OK; f++)
        for (uint32_t k = 0; k < slot->rows_cnt && rc == TQ_OK; k++) {
            uint64_t len;
            const char *data = cell_at(&put->columns[f], slot->at[k], &len);
            /* Frames are the same for both directions; this one is only read. */
            rc = tqi_frames_add(frames, f, (void *)(uintptr_t)data, len);
        }
    if (rc == TQ_OK)
        tqi_frames_seal(frames);
    else
        tqi_frames_fini(frames);
    return rc;
}

static bool is_fused(const tqi_slot_t *slot)
{
    return slot->bytes <= TQ_INLINE_BYTES_MAX;
}

static tq_status_t encode_columns(put_t *put, const tqi_slot_t *slot, tqi_strs_builder_t *out,
                                  tqi_err_t *err)
{
    tq_status_t rc = TQ_OK;
    tqi_buf_t blob;

    tqi_buf_init(&blob, put->op.env);
    for (uint32_t f = 0; f < put->columns_cnt && rc == TQ_OK; f++) {
        desc_ctx_t ctx = {.column = &put->columns[f], .at = slot->at};
        tqi_coldesc_t column;
        tq_schema_t schema;
        tqi_buf_clear(&blob);
        rc = tqi_coldesc_encode(&blob, slot->rows_cnt, desc_at, &ctx, err);
        if (rc == TQ_OK)
            rc = tqi_coldesc_decode((tqi_bytes_t){blob.data, (uint32_t)blob.len}, slot->rows_cnt,
                                    &column, err);
        if (rc != TQ_OK)
            break;
        tqi_schema_of(&column, &schema);
        if (slot->idx == 0)
            put->schemas[f] = schema;
        else
            tqi_schema_merge(&put->schemas[f], &schema);
        rc = tqi_strs_builder_add(out, blob.data, blob.len);
        if (rc != TQ_OK)
            tqi_fail(err, rc, "no memory for descriptors");
    }
    tqi_buf_fini(&blob);
    return rc;
}

static tq_status_t encode_inline(const put_t *put, const tqi_slot_t *slot, tqi_buf_t *out)
{
    tq_status_t rc = tqi_buf_reserve(out, slot->bytes);

    for (uint32_t f = 0; f < put->columns_cnt && rc == TQ_OK; f++)
        for (uint32_t k = 0; k < slot->rows_cnt && rc == TQ_OK; k++) {
            uint64_t len;
            const char *data = cell_at(&put->columns[f], slot->at[k], &len);
            rc = tqi_buf_append(out, data, len);
        }
    return rc;
}

static bool has_data(const put_t *put, const tqi_slot_t *slot)
{
    for (uint32_t k = 0; k < slot->rows_cnt; k++)
        if (!put->has_data[slot->at[k]])
            return false;
    return true;
}

static void prepare(put_t *put, tqi_slot_t *slot, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    const tq_row_t *all = (const tq_row_t *)(void *)op->rows.data;
    tqi_strs_builder_t columns;
    tqi_buf_t rows, produced, bytes;
    tqi_msg_PreparePut_t msg = {0};
    tqi_err_t err = {0};
    tq_status_t rc = TQ_OK;

    if (!is_fused(slot) && slot->link->mode == TQI_PAYLOAD_NONE) {
        tqi_fail(&err, TQ_E_UNSUPPORTED,
                 "%" PRIu64 " bytes don't fit into a message (limit %u), and there is no way for "
                 "payload to storage unit %u: %s",
                 slot->bytes, TQ_INLINE_BYTES_MAX, slot->link->unit_id, slot->link->mode_text);
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    tqi_strs_builder_init(&columns, op->env);
    tqi_buf_init(&rows, op->env);
    tqi_buf_init(&produced, op->env);
    tqi_buf_init(&bytes, op->env);
    for (uint32_t k = 0; k < slot->rows_cnt && rc == TQ_OK; k++)
        rc = tqi_buf_append(&rows, &all[slot->at[k]], sizeof *all);
    if (rc == TQ_OK)
        rc = tqi_slot_produced(slot, put->produced, put->columns_cnt, &produced);
    if (rc == TQ_OK && is_fused(slot))
        rc = encode_inline(put, slot, &bytes);
    if (rc != TQ_OK)
        tqi_fail(&err, rc, "no memory for a put of %" PRIu32 " rows", slot->rows_cnt);
    else
        rc = encode_columns(put, slot, &columns, &err);
    if (rc == TQ_OK) {
        slot->transfer = ++op->client->transfer_last;
        msg.transfer = slot->transfer;
        msg.put_id = put->put_id;
        msg.rows = tqi_u64s((const uint64_t *)(void *)rows.data, slot->rows_cnt);
        msg.fields = tqi_strs_of(&put->fields);
        msg.columns = tqi_strs_builder_view(&columns);
        msg.produced = (tqi_bytes_t){produced.data, (uint32_t)produced.len};
        if (put->is_retaking)
            msg.wait_ms = space_wait_ms(put, now_ns);
        msg.is_column = has_data(put, slot);
        msg.is_fused = is_fused(slot);
        msg.inline_bytes = (tqi_bytes_t){bytes.data, (uint32_t)bytes.len};
        msg.mode = is_fused(slot) ? TQI_PAYLOAD_NONE : slot->link->mode;
        slot->is_touched = true;
        tqi_slot_step(slot, TQI_SLOT_EV_PREPARE);
        tqi_op_request(op, slot->link, slot, TQI_KIND_PreparePut, &msg, now_ns);
    } else {
        tqi_op_fail(op, &err, now_ns);
    }
    tqi_strs_builder_fini(&columns);
    tqi_buf_fini(&rows);
    tqi_buf_fini(&produced);
    tqi_buf_fini(&bytes);
}

static void store(put_t *put, tqi_slot_t *slot, uint64_t now_ns)
{
    if (tqi_slot_link(slot, now_ns))
        prepare(put, slot, now_ns);
}

static void store_all(put_t *put, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;

    put->waiting_cnt = op->slots_cnt;
    for (uint32_t s = 0; s < op->slots_cnt && op->state == TQI_OP_RUNNING; s++) {
        store(put, &op->slots[s], now_ns);
        if (put->is_retaking)
            return; /* the next one when this one is ready */
    }
}

/* Retaking: this slot has its space. */
static void store_next(put_t *put, const tqi_slot_t *slot, uint64_t now_ns)
{
    uint32_t next = slot->idx + 1;

    if (put->is_retaking && next < put->op.slots_cnt)
        store(put, &put->op.slots[next], now_ns);
}

static void stored(put_t *put, tqi_slot_t *slot, uint64_t now_ns)
{
    tqi_slot_step(slot, TQI_SLOT_EV_STORE);
    tqi_assert(put->waiting_cnt > 0);
    if (--put->waiting_cnt == 0)
        publish(put, now_ns);
}

static void write_frames(put_t *put, tqi_slot_t *slot, const tqi_msg_PreparePut_R_t *ready,
                         uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    bool is_direct = slot->link->mode == TQI_PAYLOAD_DIRECT;
    tqi_extent_t *extents = NULL;
    tqi_remote_frame_t *remote = NULL;
    uint32_t cnt = put->columns_cnt;
    tqi_frames_t frames;
    tqi_err_t err;

    if (is_direct && (ready->segments.cnt != cnt || ready->offsets.cnt != cnt)) {
        tqi_fail(&err, TQ_E_MALFORMED, "storage unit %u gave %u places for %u fields",
                 slot->link->unit_id, ready->segments.cnt, cnt);
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    if (make_frames(put, slot, &frames) != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    extents = tqi_env_calloc(op->env, cnt, sizeof *extents);
    remote = tqi_env_calloc(op->env, cnt, sizeof *remote);
    if (!extents || !remote) {
        tqi_op_no_memory(op, now_ns);
    } else {
        for (uint32_t f = 0; f < cnt && is_direct; f++) {
            extents[f] = (tqi_extent_t){.segment = tqi_u32s_at(ready->segments, f),
                                        .offset = tqi_u64s_at(ready->offsets, f),
                                        .len = frames.frames[f].bytes};
            remote[f] = (tqi_remote_frame_t){&extents[f], extents[f].len > 0 ? 1 : 0};
        }
        if (tqi_slot_move(slot, true, frames.frames, remote, cnt, now_ns, &err) != TQ_OK)
            tqi_op_fail(op, &err, now_ns);
    }
    tqi_env_free(op->env, extents, cnt * sizeof *extents);
    tqi_env_free(op->env, remote, cnt * sizeof *remote);
    tqi_frames_fini(&frames);
}

static void put_on_link(tqi_op_t *op, tqi_slot_t *slot, uint64_t now_ns)
{
    prepare(put_of(op), slot, now_ns);
}

static void yield_if_idle(put_t *put, uint64_t now_ns);

static void put_on_payload(tqi_op_t *op, tqi_slot_t *slot, tq_status_t status, const char *text,
                           uint64_t now_ns)
{
    put_t *put = put_of(op);
    tqi_msg_Commit_t commit = {.transfer = slot->transfer};
    tqi_err_t err;

    if (put->phase == TQI_PUT_YIELDING) {
        yield_if_idle(put, now_ns);
        return;
    }
    if (status != TQ_OK) {
        tqi_fail(&err, status, "writing to storage unit %u: %s", slot->link->unit_id, text);
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    tqi_slot_step(slot, TQI_SLOT_EV_CLOSE);
    tqi_op_request(op, slot->link, slot, TQI_KIND_Commit, &commit, now_ns);
}

/* ---- yielding ---------------------------------------------------------------------------------- */

static bool is_committed(const put_t *put)
{
    for (uint32_t s = 0; s < put->op.slots_cnt; s++)
        if (put->op.slots[s].state == TQI_SLOT_STORED || put->op.slots[s].state == TQI_SLOT_CLOSING)
            return true;
    return false;
}

/* A unit is full. What was not committed yet is cancelled there. Where something was, only ABORT
 * frees it, which ends the put_id: the whole begins again under another one. */
static void yield(put_t *put, const tqi_err_t *full, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    tqi_node_t *node;

    if (is_committed(put)) {
        put->is_retaking = true;
        tqi_op_restart(op, full, now_ns);
        return;
    }
    put_step(put, TQI_PUT_EV_FULL);
    while ((node = tqi_list_first(&op->reqs)))
        tqi_req_orphan(tqi_container_of(node, tqi_req_t, node));
    tqi_slots_stop(op);
    yield_if_idle(put, now_ns);
}

/* Nothing writes into extents any more: they are given up. */
static void yield_if_idle(put_t *put, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;

    if (op->moving.cnt > 0)
        return;
    for (uint32_t s = 0; s < op->slots_cnt && op->state == TQI_OP_RUNNING; s++) {
        tqi_slot_t *slot = &op->slots[s];
        tqi_msg_Cancel_t msg = {.transfer = slot->transfer};
        if (slot->is_touched)
            tqi_op_request(op, slot->link, slot, TQI_KIND_Cancel, &msg, now_ns);
        if (slot->state != TQI_SLOT_IDLE)
            tqi_slot_step(slot, TQI_SLOT_EV_YIELD);
    }
    put->waiting_cnt = (uint32_t)op->reqs.cnt;
}

static void yielded(put_t *put, uint64_t now_ns)
{
    if (--put->waiting_cnt > 0)
        return;
    put->is_retaking = true;
    put_step(put, TQI_PUT_EV_YIELDED);
    store_all(put, now_ns);
}

/* ---- publishing -------------------------------------------------------------------------------- */

/* How many of the rows from `from` on have tags that fit into one part. */
static uint32_t part_rows(const put_t *put, uint32_t from)
{
    uint32_t to = from + 1;

    if (put->tags.cnt == 0)
        return put->rows_cnt - from;
    while (to < put->rows_cnt &&
           put->tags.offsets[to + 1] - put->tags.offsets[from] <= PART_TAGS_BYTES_MAX)
        to++;
    return to - from;
}

static tqi_strs_t tags_part(const put_t *put, uint32_t from, uint32_t cnt, uint32_t *offsets)
{
    if (put->tags.cnt == 0)
        return (tqi_strs_t){0};
    for (uint32_t i = 0; i <= cnt; i++)
        offsets[i] = put->tags.offsets[from + i] - put->tags.offsets[from];
    return (tqi_strs_t){.offsets = offsets,
                        .bytes = put->tags.bytes + put->tags.offsets[from],
                        .cnt = cnt,
                        .bytes_len = offsets[cnt]};
}

static void send_parts(put_t *put, tqi_strs_t schemas, uint32_t *offsets, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    const uint64_t *rows = (const uint64_t *)(void *)op->rows.data;
    uint32_t parts = 0, part = 0;

    for (uint32_t from = 0; from < put->rows_cnt; from += part_rows(put, from))
        parts++;
    put->waiting_cnt = parts;
    for (uint32_t from = 0, cnt; from < put->rows_cnt && op->state == TQI_OP_RUNNING; from += cnt) {
        cnt = part_rows(put, from);
        tqi_msg_Publish_t msg = {
            .partition = tqi_str(put->partition),
            .put_id = put->put_id,
            .part = ++part,
            .parts = parts,
            .rows = tqi_u64s(rows + from, cnt),
            .fields = tqi_strs_of(&put->fields),
            .schemas = schemas,
            .tags = tags_part(put, from, cnt, offsets),
            .is_replace_tags = (put->flags & TQ_PUT_REPLACE_TAGS) != 0,
            .want_meta = (put->flags & TQ_PUT_WANT_META) != 0,
        };
        tqi_req_t *req;
        tqi_err_t err;
        if (tqi_link_request(op->client->controller, op, NULL, TQI_KIND_Publish, &msg,
                             op->deadline_ns, now_ns, &req, &err) == TQ_OK)
            req->is_point = part == parts; /* the last part is what applies it */
        else
            tqi_op_fail(op, &err, now_ns);
    }
}

static void publish(put_t *put, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    tqi_strs_builder_t schemas;
    tqi_buf_t blob, offsets;
    tq_status_t rc = TQ_OK;

    put_step(put, put->phase == TQI_PUT_RESOLVING ? TQI_PUT_EV_BARE : TQI_PUT_EV_STORED);
    tqi_strs_builder_init(&schemas, op->env);
    tqi_buf_init(&blob, op->env);
    tqi_buf_init(&offsets, op->env);
    for (uint32_t f = 0; f < put->columns_cnt && rc == TQ_OK; f++) {
        tqi_buf_clear(&blob);
        rc = tqi_schema_encode(&blob, &put->schemas[f]);
        if (rc == TQ_OK)
            rc = tqi_strs_builder_add(&schemas, blob.data, blob.len);
    }
    if (rc == TQ_OK)
        rc = tqi_buf_reserve(&offsets, ((size_t)put->rows_cnt + 1) * sizeof(uint32_t));
    if (rc == TQ_OK)
        send_parts(put, tqi_strs_builder_view(&schemas), (uint32_t *)(void *)offsets.data, now_ns);
    else
        tqi_op_no_memory(op, now_ns);
    tqi_strs_builder_fini(&schemas);
    tqi_buf_fini(&blob);
    tqi_buf_fini(&offsets);
}

static void published(put_t *put, const tqi_reply_t *reply, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    tqi_msg_Publish_R_t msg;

    if (--put->waiting_cnt > 0)
        return;
    put->put_id = 0;
    if (put->flags & TQ_PUT_WANT_META) {
        if (tqi_msg_decode(reply->env, TQI_KIND_Publish_R, &msg, NULL) != TQ_OK ||
            tqi_strs_append(&op->fields, msg.common) != TQ_OK ||
            tqi_op_add_schemas(op, msg.schemas) != TQ_OK || msg.schemas.cnt != msg.common.cnt ||
            tqi_op_add_tags(op, msg.tags) != TQ_OK) {
            /* It is published all the same. */
            tqi_strs_builder_clear(&op->fields);
            tqi_strs_builder_clear(&op->tags);
            tqi_buf_clear(&op->schemas);
        }
    }
    tqi_op_seal(op);
    tqi_op_finish(op, now_ns);
}

/* ---- the rest ---------------------------------------------------------------------------------- */

static void unknown(put_t *put, tqi_err_t *err)
{
    char why[300];

    snprintf(why, sizeof why, "%.299s", err->text);
    tqi_fail(err, TQ_E_OUTCOME_UNKNOWN,
             "put of %" PRIu32
             " rows into '%.100s': it was sent to be published and no answer came "
             "(%s); it may be visible or not",
             put->rows_cnt, put->partition, why);
}

static void put_failed(put_t *put, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    tqi_err_t err = reply->err;

    if (reply->status == TQ_E_FULL && put->phase == TQI_PUT_STORING && !put->is_retaking) {
        yield(put, &err, now_ns);
        return;
    }
    if (slot && (tq_status_class(reply->status) == TQ_CLASS_PEER || reply->status == TQ_E_FULL))
        tqi_err_prefix(&err, "storage unit %u", slot->link->unit_id);
    tqi_op_fail(&put->op, &err, now_ns);
}

static void put_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    put_t *put = put_of(op);
    tqi_msg_Resolve_R_t resolve;
    tqi_msg_Insert_R_t insert;
    tqi_msg_PreparePut_R_t ready;

    if (reply->kind == TQI_KIND_Cancel) {
        yielded(put, now_ns); /* whatever it said: what it does not have needs no cancelling */
        return;
    }
    if (reply->status != TQ_OK) {
        put_failed(put, slot, reply, now_ns);
        return;
    }
    switch (reply->kind) {
    case TQI_KIND_Resolve:
        if (tqi_op_decode(op, reply, &resolve, now_ns))
            resolved(put, resolve.put_id, resolve.rows, resolve.units, resolve.produced,
                     resolve.has_data, now_ns);
        break;
    case TQI_KIND_Insert:
        if (tqi_op_decode(op, reply, &insert, now_ns))
            resolved(put, insert.put_id, insert.rows, insert.units, (tqi_bytes_t){0},
                     (tqi_u8s_t){0}, now_ns);
        break;
    case TQI_KIND_PreparePut:
        if (!tqi_op_decode(op, reply, &ready, now_ns))
            break;
        tqi_slot_step(slot, TQI_SLOT_EV_PREPARED);
        tqi_link_lease(slot->link, ready.lease_ms, now_ns);
        store_next(put, slot, now_ns);
        if (op->state != TQI_OP_RUNNING)
            break;
        if (is_fused(slot))
            stored(put, slot, now_ns);
        else
            write_frames(put, slot, &ready, now_ns);
        break;
    case TQI_KIND_Commit:
        stored(put, slot, now_ns);
        break;
    case TQI_KIND_Publish:
        published(put, reply, now_ns);
        break;
    default:
        tqi_assert(false);
    }
}

static bool put_stop(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns)
{
    put_t *put = put_of(op);

    put_step(put, (tqi_put_event_t)(TQI_PUT_EV_CANCEL + (why - TQI_OP_EV_CANCEL)));
    if (!tqi_op_is_past_point(op))
        return false;
    if (why == TQI_OP_EV_CANCEL)
        return true; /* its real outcome is on the way */
    if (err->status != TQ_E_STALE_STORE && err->status != TQ_E_STORE_GONE)
        unknown(put, err);
    tqi_op_fail(op, err, now_ns);
    return true;
}

/* Cells that were produced before this put and hold its value already. */
static void name_replaced(put_t *put)
{
    tqi_op_t *op = &put->op;
    const tq_row_t *rows = (const tq_row_t *)(void *)op->rows.data;
    uint64_t cnt = 0;
    size_t first = 0;
    uint64_t first_row = 0;

    for (uint32_t s = 0; s < op->slots_cnt; s++) {
        const tqi_slot_t *slot = &op->slots[s];
        if (slot->state != TQI_SLOT_STORED && slot->state != TQI_SLOT_CLOSING)
            continue;
        for (uint32_t k = 0; k < slot->rows_cnt; k++)
            for (uint32_t f = 0; f < put->columns_cnt; f++) {
                size_t bit = (size_t)slot->at[k] * put->columns_cnt + f;
                if ((put->produced[bit / 8] >> (bit % 8) & 1) == 0)
                    continue;
                if (cnt++ == 0) {
                    first = f;
                    first_row = rows[slot->at[k]];
                }
            }
    }
    if (cnt > 0) {
        size_t len = strlen(op->err.text);
        const char *name = put->fields.bytes + put->fields.offsets[first];
        int name_len = (int)(put->fields.offsets[first + 1] - put->fields.offsets[first]);
        snprintf(op->err.text + len, sizeof op->err.text - len,
                 "; %" PRIu64
                 " cells that were replaced may hold the new value, the first is field "
                 "'%.*s' of row %" PRIu64,
                 cnt, name_len > 60 ? 60 : name_len, name, first_row);
    }
}

/* ABORT to each unit that was touched, once; answers are waited for. A PUBLISH that was refused may
 * or may not have used the put_id up: the controller is told in any case, and knows. */
static bool abort_units(put_t *put, uint64_t now_ns)
{
    tqi_op_t *op = &put->op;
    tqi_msg_Abort_t msg = {.put_id = put->put_id};
    const tqi_link_t *last = NULL;

    for (uint32_t s = 0; s < op->slots_cnt && put->put_id != 0; s++) {
        tqi_slot_t *slot = &op->slots[s];
        /* A unit that is lost is told when it is back; nobody waits for that. */
        bool is_lost = slot->link->is_lost && slot->link->state != TQI_LINK_UP;
        if (slot->is_touched && slot->link != last &&
            tqi_link_request(slot->link, is_lost ? NULL : op, NULL, TQI_KIND_Abort, &msg, TQI_NEVER,
                             now_ns, NULL, NULL) != TQ_OK)
            return false;
        if (slot->is_touched)
            last = slot->link;
        slot->is_touched = false;
    }
    return true;
}

static bool put_clean(tqi_op_t *op, uint64_t now_ns)
{
    put_t *put = put_of(op);
    tqi_msg_Publish_t msg = {
        .partition = tqi_str(put->partition),
        .put_id = put->put_id,
        .part = 1,
        .parts = 1,
        .is_abort = true,
    };

    if (op->err.status == TQ_OK || op->err.status == TQ_E_OUTCOME_UNKNOWN)
        return true;
    if (op->slots_cnt > 0 && !op->is_restarting && !put->is_named)
        name_replaced(put);
    put->is_named = true;
    if (!abort_units(put, now_ns))
        return false;
    return put->put_id == 0 || tqi_link_request(op->client->controller, op, NULL, TQI_KIND_Publish,
                                                &msg, TQI_NEVER, now_ns, NULL, NULL) == TQ_OK;
}

static const tqi_op_class_t put_class = {
    .name = "put",
    .size = sizeof(put_t),
    .start = put_start,
    .on_reply = put_on_reply,
    .on_link = put_on_link,
    .on_payload = put_on_payload,
    .stop = put_stop,
    .clean = put_clean,
};
