/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A get: rows are resolved, each unit describes its cells (and sends them along when they are few),
 * the columns are laid out, one buffer each, and the bytes are read to where they stay.
 *
 *   RESOLVING -> DESCRIBING -> READING
 *
 * What a unit described is what is read: descriptors travel with the values, and READY pins them.
 * Where a pin did not hold, or a row went away in between, the whole begins again.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Cells of a PREPARE, whose answer may need a descriptor and a piece for each. */
#define SLOT_CELLS_MAX (TQ_REQUEST_DESCS_MAX / 2)
#define EACH_ALIGN 16
#define WAYS_MAX 2 /* broken ways that a get survives */

TQI_MACHINE(tqi_get_machine, "get at the client", TQI_GET, TQI_GET_STEPS);

typedef struct get {
    tqi_op_t op;
    const char *partition;
    tq_strs_t keys;
    uint32_t given_cnt;
    const tq_row_t *given; /* NULL: keys */
    bool has_fields;       /* else all that are common */
    tq_strs_t wanted;
    uint32_t flags;

    tqi_get_state_t phase;
    uint32_t rows_cnt;   /* found */
    uint32_t fields_cnt; /* to be read; op.fields has them */
    uint8_t *produced;   /* bitset over rows x fields */
    uint32_t lives_cnt;  /* units, and the life of each that these bits speak of */
    uint32_t *life_units;
    uint64_t *lives;
    uint32_t waiting_cnt; /* slots in the way of the next phase */
    tq_column_out_t *columns;
    char **bases;         /* one a column: its buffer's memory */
    uint32_t columns_cnt; /* whose buffers are ours */
    bool was_gone;        /* a row went away once already */
} get_t;

static get_t *get_of(tqi_op_t *op)
{
    return tqi_container_of(op, get_t, op);
}

static void get_step(get_t *get, tqi_get_event_t event)
{
    get->phase = (tqi_get_state_t)tqi_machine_step(&tqi_get_machine, get->phase, event);
}

static const tqi_op_class_t get_class;

tq_status_t tqi_op_get(const tqi_env_t *env, const tq_get_args_t *args, tqi_op_t **out,
                       tqi_err_t *err)
{
    tqi_op_t *op;
    get_t *get;
    tq_status_t rc = tqi_check_name("partition", args->partition, err);

    if (rc == TQ_OK && (args->keys != NULL) == (args->rows != NULL))
        rc = tqi_fail(err, TQ_E_INVALID, "a get names its rows by keys or by index");
    if (rc == TQ_OK && args->keys)
        rc = tqi_check_keys(args->keys, true, err);
    if (rc == TQ_OK && args->rows)
        rc = tqi_check_rows("get", args->rows, args->rows_cnt, err);
    if (rc == TQ_OK && args->fields) {
        rc =
            tqi_check_strs("field", args->fields, TQ_PARTITION_FIELDS_MAX, TQ_NAME_MAX, false, err);
        if (rc == TQ_OK)
            rc = tqi_check_distinct_strs(env, "field", args->fields, err);
    }
    if (rc == TQ_OK)
        rc = tqi_op_new(env, &get_class, args->timeout_ms, &op, err);
    if (rc != TQ_OK)
        return rc;
    get = get_of(op);
    get->flags = args->flags;
    get->has_fields = args->fields != NULL;
    get->partition = tqi_op_dup_str(op, args->partition, strlen(args->partition));
    rc = get->partition ? tqi_op_dup_strs(op, args->keys, &get->keys) : TQ_E_NO_MEMORY;
    if (rc == TQ_OK)
        rc = tqi_op_dup_strs(op, args->fields, &get->wanted);
    if (rc == TQ_OK && args->rows) {
        get->given_cnt = args->rows_cnt;
        get->given = tqi_op_dup(op, args->rows, args->rows_cnt * sizeof *args->rows);
        rc = get->given ? TQ_OK : TQ_E_NO_MEMORY;
    }
    if (rc != TQ_OK) {
        tqi_op_free(op);
        return tqi_fail(err, rc, "no memory for a get");
    }
    *out = op;
    return TQ_OK;
}

static void give_buffers(get_t *get)
{
    for (uint32_t f = 0; f < get->columns_cnt; f++)
        if (get->columns[f].buffer)
            get->op.buffer_give(get->columns[f].buffer);
    get->columns_cnt = 0;
}

static void get_fini(tqi_op_t *op)
{
    give_buffers(get_of(op));
}

/* ---- resolving --------------------------------------------------------------------------------- */

static void get_start(tqi_op_t *op, uint64_t now_ns)
{
    get_t *get = get_of(op);
    tqi_msg_Resolve_t msg = {
        .partition = tqi_str(get->partition),
        .keys = tqi_strs_of(&get->keys),
        .rows = tqi_u64s(get->given, get->given_cnt),
        .fields = tqi_strs_of(&get->wanted),
        .want_common = !get->has_fields,
        .want_keys = get->given != NULL,
    };

    give_buffers(get);
    get_step(get, TQI_GET_EV_START);
    tqi_op_request(op, op->client->controller, NULL, TQI_KIND_Resolve, &msg, now_ns);
}

static bool bit_at(const void *bits, uint32_t len, size_t bit)
{
    return bit / 8 < len && (((const uint8_t *)bits)[bit / 8] >> (bit % 8) & 1);
}

/* Which of the rows asked for are there: their places in the reply, in out. */
static tq_status_t find_rows(get_t *get, const tqi_msg_Resolve_R_t *msg, tqi_buf_t *out,
                             tqi_err_t *err)
{
    uint32_t asked = get->given ? get->given_cnt : get->keys.cnt;

    if (!msg->is_known)
        return tqi_fail(err, TQ_E_NO_PARTITION, "there is no partition '%.200s'", get->partition);
    if (msg->rows.cnt != asked || msg->units.cnt != asked)
        return tqi_fail(err, TQ_E_MALFORMED,
                        "the controller resolved %" PRIu32 " of %" PRIu32 " rows", msg->rows.cnt,
                        asked);
    for (uint32_t r = 0; r < asked; r++) {
        if (tqi_u64s_at(msg->rows, r) != TQ_ROW_NONE) {
            if (tqi_buf_append(out, &r, sizeof r) != TQ_OK)
                return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a get");
            continue;
        }
        if (get->given)
            return tqi_fail(err, TQ_E_NOT_FOUND,
                            "row %" PRIu64 " of partition '%.200s' is not there (any more)",
                            get->given[r], get->partition);
        if (get->flags & TQ_GET_SKIP_KEYS)
            continue;
        tqi_strs_t keys = tqi_strs_of(&get->keys);
        tqi_str_t key = tqi_strs_at(keys, r);
        return tqi_fail(err, TQ_E_NO_KEY, "partition '%.100s' has no key '%.*s'", get->partition,
                        (int)tqi_size_min(key.len, 200), (const char *)key.data);
    }
    return TQ_OK;
}

/* Which of the fields are to be read: their places in the reply, in out. */
static tq_status_t find_fields(get_t *get, const tqi_msg_Resolve_R_t *msg, const tqi_buf_t *found,
                               tqi_buf_t *out, tqi_err_t *err)
{
    const uint32_t *at = (const uint32_t *)(const void *)found->data;
    uint32_t rows_cnt = (uint32_t)(found->len / sizeof *at);
    tqi_strs_t names = get->has_fields ? tqi_strs_of(&get->wanted) : msg->common;

    for (uint32_t f = 0; f < names.cnt; f++) {
        tqi_str_t name = tqi_strs_at(names, f);
        uint32_t lacking = 0, first = 0;
        for (uint32_t k = 0; k < rows_cnt && get->has_fields; k++)
            if (!bit_at(msg->produced.data, msg->produced.len, (size_t)at[k] * names.cnt + f) &&
                lacking++ == 0)
                first = at[k];
        if (lacking == 0) {
            if (tqi_buf_append(out, &f, sizeof f) != TQ_OK)
                return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a get");
            continue;
        }
        if (get->flags & TQ_GET_SKIP_FIELDS)
            continue;
        if (f < msg->schemas.cnt && tqi_strs_at(msg->schemas, f).len == 0)
            return tqi_fail(err, TQ_E_NO_FIELD, "partition '%.100s' has no field '%.*s'",
                            get->partition, (int)tqi_size_min(name.len, 200),
                            (const char *)name.data);
        return tqi_fail(err, TQ_E_NOT_PRODUCED,
                        "field '%.*s' is not produced for %" PRIu32 " of %" PRIu32
                        " rows of partition '%.100s', the first is row %" PRIu64,
                        (int)tqi_size_min(name.len, 150), (const char *)name.data, lacking,
                        rows_cnt, get->partition, tqi_u64s_at(msg->rows, first));
    }
    return TQ_OK;
}

static tq_status_t keep_lives(get_t *get, const tqi_msg_Resolve_R_t *msg)
{
    get->lives_cnt = msg->lives.cnt == msg->life_units.cnt ? msg->lives.cnt : 0;
    get->life_units = tqi_op_mem(&get->op, get->lives_cnt * sizeof *get->life_units);
    get->lives = tqi_op_mem(&get->op, get->lives_cnt * sizeof *get->lives);
    if (!get->life_units || !get->lives)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < get->lives_cnt; i++) {
        get->life_units[i] = tqi_u32s_at(msg->life_units, i);
        get->lives[i] = tqi_u64s_at(msg->lives, i);
    }
    return TQ_OK;
}

static uint64_t life_of(const get_t *get, uint32_t unit_id)
{
    for (uint32_t i = 0; i < get->lives_cnt; i++)
        if (get->life_units[i] == unit_id)
            return get->lives[i];
    return 0;
}

/* Rows, keys, fields and bits of what is to be read; units in units. */
static tq_status_t keep_found(get_t *get, const tqi_msg_Resolve_R_t *msg, const tqi_buf_t *rows,
                              const tqi_buf_t *fields, tqi_buf_t *units)
{
    tqi_op_t *op = &get->op;
    const uint32_t *row_at = (const uint32_t *)(const void *)rows->data;
    const uint32_t *field_at = (const uint32_t *)(const void *)fields->data;
    tqi_strs_t names = get->has_fields ? tqi_strs_of(&get->wanted) : msg->common;
    tqi_strs_t keys = get->given ? msg->keys : tqi_strs_of(&get->keys);
    size_t bytes;
    tq_status_t rc = TQ_OK;

    get->rows_cnt = (uint32_t)(rows->len / sizeof *row_at);
    get->fields_cnt = (uint32_t)(fields->len / sizeof *field_at);
    bytes = ((size_t)get->rows_cnt * get->fields_cnt + 7) / 8 + 1;
    get->produced = tqi_op_mem(op, bytes);
    if (!get->produced)
        return TQ_E_NO_MEMORY;
    memset(get->produced, 0, bytes);
    if (keep_lives(get, msg) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint32_t f = 0; f < get->fields_cnt && rc == TQ_OK; f++) {
        tqi_str_t name = tqi_strs_at(names, field_at[f]);
        rc = tqi_strs_builder_add(&op->fields, name.data, name.len);
    }
    for (uint32_t k = 0; k < get->rows_cnt && rc == TQ_OK; k++) {
        uint64_t row = tqi_u64s_at(msg->rows, row_at[k]);
        uint32_t unit = tqi_u32s_at(msg->units, row_at[k]);
        uint8_t has_key =
            !get->given || (row_at[k] < msg->has_key.cnt && msg->has_key.data[row_at[k]]);
        tqi_str_t key = row_at[k] < keys.cnt ? tqi_strs_at(keys, row_at[k]) : (tqi_str_t){0};
        for (uint32_t f = 0; f < get->fields_cnt; f++) {
            size_t to = (size_t)k * get->fields_cnt + f;
            /* Common fields are produced for every row found, whatever the bits of the others. */
            if (!get->has_fields || bit_at(msg->produced.data, msg->produced.len,
                                           (size_t)row_at[k] * names.cnt + field_at[f]))
                get->produced[to / 8] |= (uint8_t)(1u << (to % 8));
        }
        rc = tqi_buf_append(&op->rows, &row, sizeof row);
        if (rc == TQ_OK)
            rc = tqi_buf_append(units, &unit, sizeof unit);
        if (rc == TQ_OK)
            rc = tqi_buf_append(&op->has_key, &has_key, 1);
        if (rc == TQ_OK)
            rc = tqi_strs_builder_add(&op->keys, key.data, key.len);
    }
    return rc;
}

static void describe_all(get_t *get, const tqi_buf_t *units, uint64_t now_ns);

static void resolved(get_t *get, const tqi_msg_Resolve_R_t *msg, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;
    tqi_buf_t rows, fields, units;
    tqi_err_t err;
    tq_status_t rc;

    tqi_buf_init(&rows, op->env);
    tqi_buf_init(&fields, op->env);
    tqi_buf_init(&units, op->env);
    rc = find_rows(get, msg, &rows, &err);
    if (rc == TQ_OK)
        rc = find_fields(get, msg, &rows, &fields, &err);
    if (rc == TQ_OK) {
        rc = keep_found(get, msg, &rows, &fields, &units);
        if (rc != TQ_OK)
            tqi_fail(&err, rc, "no memory for a get of %" PRIu32 " rows", get->rows_cnt);
    }
    if (rc != TQ_OK)
        tqi_op_fail(op, &err, now_ns);
    else
        describe_all(get, &units, now_ns);
    tqi_buf_fini(&rows);
    tqi_buf_fini(&fields);
    tqi_buf_fini(&units);
}

/* ---- describing -------------------------------------------------------------------------------- */

static void describe(get_t *get, tqi_slot_t *slot, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;
    const tq_row_t *all = (const tq_row_t *)(void *)op->rows.data;
    tqi_buf_t rows, produced;
    tq_status_t rc = TQ_OK;

    tqi_buf_init(&rows, op->env);
    tqi_buf_init(&produced, op->env);
    for (uint32_t k = 0; k < slot->rows_cnt && rc == TQ_OK; k++)
        rc = tqi_buf_append(&rows, &all[slot->at[k]], sizeof *all);
    if (rc == TQ_OK)
        rc = tqi_slot_produced(slot, get->produced, get->fields_cnt, &produced);
    if (rc != TQ_OK) {
        tqi_op_no_memory(op, now_ns);
    } else {
        slot->transfer = ++op->client->transfer_last;
        slot->is_touched = true;
        tqi_msg_PrepareGet_t msg = {
            .transfer = slot->transfer,
            .rows = tqi_u64s((const uint64_t *)(void *)rows.data, slot->rows_cnt),
            .fields = tqi_strs_builder_view(&op->fields),
            .produced = {produced.data, (uint32_t)produced.len},
            .inline_max = TQ_INLINE_BYTES_MAX,
            .mode = slot->link->mode,
            .life = life_of(get, slot->link->unit_id),
        };
        tqi_slot_step(slot, TQI_SLOT_EV_PREPARE);
        tqi_op_request(op, slot->link, slot, TQI_KIND_PrepareGet, &msg, now_ns);
    }
    tqi_buf_fini(&rows);
    tqi_buf_fini(&produced);
}

static void finish(get_t *get, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;

    if (tqi_op_answer(op, now_ns) != TQ_OK)
        return;
    op->result.columns = get->columns;
    op->result.columns_cnt = get->fields_cnt;
    tqi_op_finish(op, now_ns);
}

static bool make_columns(get_t *get)
{
    tqi_op_t *op = &get->op;
    tqi_strs_t names = tqi_strs_builder_view(&op->fields);

    get->columns = tqi_op_mem(op, (size_t)get->fields_cnt * sizeof *get->columns + 1);
    get->bases = tqi_op_mem(op, (size_t)get->fields_cnt * sizeof *get->bases + 1);
    if (!get->columns || !get->bases)
        return false;
    memset(get->columns, 0, (size_t)get->fields_cnt * sizeof *get->columns);
    memset(get->bases, 0, (size_t)get->fields_cnt * sizeof *get->bases);
    get->columns_cnt = get->fields_cnt;
    for (uint32_t f = 0; f < get->fields_cnt; f++) {
        tqi_str_t name = tqi_strs_at(names, f);
        get->columns[f].field = tqi_op_dup_str(op, name.data, name.len);
        if (!get->columns[f].field)
            return false;
    }
    return true;
}

static void describe_all(get_t *get, const tqi_buf_t *units, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;
    tqi_u32s_t ids = tqi_u32s((const uint32_t *)(const void *)units->data, get->rows_cnt);
    tqi_err_t err;

    if (!make_columns(get)) {
        tqi_op_no_memory(op, now_ns);
        return;
    }
    if (get->rows_cnt == 0 || get->fields_cnt == 0) {
        for (uint32_t f = 0; f < get->fields_cnt; f++)
            get->columns[f].layout = TQ_LAYOUT_EACH;
        finish(get, now_ns);
        return;
    }
    if (tqi_slots_make(op, ids, (uint32_t)tqi_u64_max(1, SLOT_CELLS_MAX / get->fields_cnt), &err) !=
        TQ_OK) {
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    get_step(get, TQI_GET_EV_RESOLVED);
    get->waiting_cnt = op->slots_cnt;
    for (uint32_t s = 0; s < op->slots_cnt && op->state == TQI_OP_RUNNING; s++)
        if (tqi_slot_link(&op->slots[s], now_ns))
            describe(get, &op->slots[s], now_ns);
}

static void get_on_link(tqi_op_t *op, tqi_slot_t *slot, uint64_t now_ns)
{
    describe(get_of(op), slot, now_ns);
}

/* Keeps the reply's body for the views into it. */
static tq_status_t keep_ready(get_t *get, tqi_slot_t *slot, const tqi_reply_t *reply,
                              tqi_err_t *err)
{
    tqi_envelope_t env = {.kind = TQI_KIND_PrepareGet_R};
    const tqi_msg_PrepareGet_R_t *ready = &slot->ready;
    uint64_t pieces = 0;
    tq_status_t rc;

    tqi_buf_clear(&slot->reply);
    if (tqi_buf_append(&slot->reply, reply->env->body, reply->env->body_len) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for descriptors");
    env.body = slot->reply.data;
    env.body_len = (uint32_t)slot->reply.len;
    rc = tqi_msg_decode(&env, env.kind, &slot->ready, err);
    if (rc != TQ_OK)
        return rc;
    for (uint32_t f = 0; f < ready->piece_counts.cnt; f++)
        pieces += tqi_u32s_at(ready->piece_counts, f);
    if (ready->columns.cnt != get->fields_cnt || pieces != ready->piece_segments.cnt ||
        pieces != ready->piece_offsets.cnt || pieces != ready->piece_bytes.cnt ||
        (!ready->is_inline && slot->link->mode == TQI_PAYLOAD_DIRECT &&
         ready->piece_counts.cnt != get->fields_cnt))
        return tqi_fail(err, TQ_E_MALFORMED, "PrepareGet_R does not describe %" PRIu32 " fields",
                        get->fields_cnt);
    return TQ_OK;
}

/* ---- layout ------------------------------------------------------------------------------------ */

static tq_status_t column_of(const get_t *get, const tqi_slot_t *slot, uint32_t f,
                             tqi_coldesc_t *out, tqi_err_t *err)
{
    (void)get;
    return tqi_coldesc_decode(tqi_strs_at(slot->ready.columns, f), slot->rows_cnt, out, err);
}

static bool is_equal(const tq_desc_t *a, const tq_desc_t *b, unsigned from)
{
    if (a->encoding != b->encoding || a->dtype != b->dtype || a->ndim != b->ndim ||
        (from == 0 && a->len != b->len))
        return false;
    for (unsigned i = from; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

/* Whether rows of it have no bytes whatever their shape[0], so that bytes can't tell their lengths. */
static bool has_empty_steps(const tq_desc_t *desc)
{
    for (unsigned i = 1; i < desc->ndim; i++)
        if (desc->shape[i] == 0)
            return true;
    return false;
}

/* The layout that all the slots' descriptors of a field allow, and the first of them. */
static tq_status_t layout_of(const get_t *get, uint32_t f, tq_layout_t *layout, tq_desc_t *first,
                             tqi_err_t *err)
{
    const tqi_op_t *op = &get->op;
    bool has_first = false;

    *layout = TQ_LAYOUT_UNIFORM;
    for (uint32_t s = 0; s < op->slots_cnt; s++) {
        tqi_coldesc_t column;
        tqi_coldesc_iter_t it;
        tq_desc_t desc;
        uint64_t offset;
        tq_status_t rc = column_of(get, &op->slots[s], f, &column, err);
        if (rc != TQ_OK)
            return rc;
        tqi_coldesc_iter(&it, &column);
        for (uint32_t k = 0; k < column.rows_cnt; k++) {
            tqi_coldesc_next(&it, &desc, &offset);
            if (!has_first)
                *first = desc;
            has_first = true;
            if (*layout == TQ_LAYOUT_UNIFORM && !is_equal(first, &desc, 0))
                *layout = TQ_LAYOUT_RAGGED;
            if (*layout == TQ_LAYOUT_RAGGED &&
                (first->encoding != TQ_ENC_TENSOR || first->ndim == 0 || has_empty_steps(first) ||
                 !is_equal(first, &desc, 1)))
                *layout = TQ_LAYOUT_EACH;
            if (*layout == TQ_LAYOUT_EACH)
                return TQ_OK;
            if (column.layout == TQ_LAYOUT_UNIFORM)
                break; /* the others are like it */
        }
    }
    return TQ_OK;
}

/* Lays a column out, and takes its buffer. */
static tq_status_t lay_out(get_t *get, uint32_t f, tqi_err_t *err)
{
    tqi_op_t *op = &get->op;
    tq_column_out_t *out = &get->columns[f];
    const tqi_client_host_t *host = &op->client->conf.host;
    int64_t *offsets = tqi_op_mem(op, ((size_t)get->rows_cnt + 1) * sizeof *offsets);
    tq_desc_t *descs = NULL;
    uint64_t total = 0;
    void *data;
    tq_status_t rc = layout_of(get, f, &out->layout, &out->desc, err);

    if (rc != TQ_OK)
        return rc;
    if (out->layout == TQ_LAYOUT_EACH)
        descs = tqi_op_mem(op, (size_t)get->rows_cnt * sizeof *descs);
    if (!offsets || (out->layout == TQ_LAYOUT_EACH && !descs))
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %" PRIu32 " offsets", get->rows_cnt);
    /* Lengths first, at the place of the row; then their sums. */
    for (uint32_t s = 0; s < op->slots_cnt; s++) {
        const tqi_slot_t *slot = &op->slots[s];
        tqi_coldesc_t column;
        tqi_coldesc_iter_t it;
        tq_desc_t desc;
        uint64_t offset;
        rc = column_of(get, slot, f, &column, err);
        if (rc != TQ_OK)
            return rc;
        tqi_coldesc_iter(&it, &column);
        for (uint32_t k = 0; k < slot->rows_cnt; k++) {
            tqi_coldesc_next(&it, &desc, &offset);
            offsets[slot->at[k]] = (int64_t)desc.len;
            if (descs)
                descs[slot->at[k]] = desc;
        }
    }
    for (uint32_t r = 0; r < get->rows_cnt; r++) {
        uint64_t len = (uint64_t)offsets[r], room = len;
        if (descs)
            room = (len + EACH_ALIGN - 1) & ~(uint64_t)(EACH_ALIGN - 1);
        offsets[r] = (int64_t)total;
        if (room < len || !tqi_u64_add(total, room, &total) || total > INT64_MAX)
            return tqi_fail(err, TQ_E_TOO_LARGE, "the column is over 2^63 bytes");
    }
    offsets[get->rows_cnt] = (int64_t)total;
    out->offsets = offsets;
    out->descs = descs;
    if (out->layout == TQ_LAYOUT_RAGGED) {
        out->desc.shape[0] = 0;
        out->desc.len = 0;
    } else if (out->layout == TQ_LAYOUT_EACH) {
        out->desc = (tq_desc_t){0};
    }
    if (total == 0)
        return TQ_OK;
    out->buffer = host->buffer_take(host->ctx, (size_t)total, &data);
    if (!out->buffer)
        return tqi_fail(err, TQ_E_NO_MEMORY, "field '%.200s': no memory for its %" PRIu64 " bytes",
                        out->field, total);
    get->bases[f] = data;
    return TQ_OK;
}

/* ---- reading ----------------------------------------------------------------------------------- */

/* Where the slot's values go: one frame a field, in the order of its rows. */
static tq_status_t make_frames(const get_t *get, const tqi_slot_t *slot, tqi_frames_t *frames,
                               tqi_err_t *err)
{
    tq_status_t rc = tqi_frames_init(frames, get->op.env, get->fields_cnt);

    if (rc != TQ_OK)
        return tqi_fail(err, rc, "no memory for frames");
    for (uint32_t f = 0; f < get->fields_cnt && rc == TQ_OK; f++) {
        const tq_column_out_t *out = &get->columns[f];
        char *base = get->bases[f];
        tqi_coldesc_t column;
        tqi_coldesc_iter_t it;
        tq_desc_t desc;
        uint64_t offset;
        rc = column_of(get, slot, f, &column, err);
        if (rc != TQ_OK)
            break;
        tqi_coldesc_iter(&it, &column);
        for (uint32_t k = 0; k < slot->rows_cnt && rc == TQ_OK; k++) {
            tqi_coldesc_next(&it, &desc, &offset);
            if (desc.len > 0)
                rc = tqi_frames_add(frames, f, base + out->offsets[slot->at[k]], desc.len);
        }
        if (rc != TQ_OK)
            tqi_fail(err, rc, "no memory for frames");
    }
    if (rc == TQ_OK)
        tqi_frames_seal(frames);
    else
        tqi_frames_fini(frames);
    return rc;
}

static tq_status_t copy_inline(const tqi_slot_t *slot, const tqi_frames_t *frames, tqi_err_t *err)
{
    const char *from = slot->ready.inline_bytes.data;
    uint64_t left = slot->ready.inline_bytes.len;

    for (uint32_t f = 0; f < frames->cnt; f++)
        for (uint32_t p = 0; p < frames->frames[f].pieces_cnt; p++) {
            const tqi_piece_t *piece = &frames->frames[f].pieces[p];
            if (piece->len > left)
                return tqi_fail(err, TQ_E_MALFORMED, "fewer bytes than their descriptors say");
            memcpy(piece->data, from, piece->len);
            from += piece->len;
            left -= piece->len;
        }
    if (left > 0)
        return tqi_fail(err, TQ_E_MALFORMED, "more bytes than their descriptors say");
    return TQ_OK;
}

static tq_status_t remote_of(const get_t *get, const tqi_slot_t *slot, const tqi_frames_t *frames,
                             tqi_extent_t *extents, tqi_remote_frame_t *remote, tqi_err_t *err)
{
    const tqi_msg_PrepareGet_R_t *ready = &slot->ready;
    uint32_t at = 0;

    for (uint32_t f = 0; f < get->fields_cnt; f++) {
        uint32_t cnt = tqi_u32s_at(ready->piece_counts, f);
        uint64_t bytes = 0;
        remote[f] = (tqi_remote_frame_t){&extents[at], cnt};
        for (uint32_t i = 0; i < cnt; i++, at++) {
            extents[at] = (tqi_extent_t){.segment = tqi_u32s_at(ready->piece_segments, at),
                                         .offset = tqi_u64s_at(ready->piece_offsets, at),
                                         .len = tqi_u64s_at(ready->piece_bytes, at)};
            if (!tqi_u64_add(bytes, extents[at].len, &bytes))
                bytes = UINT64_MAX;
        }
        if (bytes != frames->frames[f].bytes)
            return tqi_fail(err, TQ_E_MALFORMED,
                            "%" PRIu64 " bytes of field %" PRIu32 " were described as %" PRIu64,
                            bytes, f, frames->frames[f].bytes);
    }
    return TQ_OK;
}

static tq_status_t read_frames(get_t *get, tqi_slot_t *slot, const tqi_frames_t *frames,
                               uint64_t now_ns, tqi_err_t *err)
{
    const tqi_env_t *env = get->op.env;
    uint32_t cnt = get->fields_cnt, extents_cnt = slot->ready.piece_segments.cnt + 1;
    tqi_extent_t *extents = tqi_env_calloc(env, extents_cnt, sizeof *extents);
    tqi_remote_frame_t *remote = tqi_env_calloc(env, cnt, sizeof *remote);
    tq_status_t rc = TQ_OK;

    if (!extents || !remote)
        rc = tqi_fail(err, TQ_E_NO_MEMORY, "no memory for extents");
    else if (slot->link->mode == TQI_PAYLOAD_DIRECT)
        rc = remote_of(get, slot, frames, extents, remote, err);
    if (rc == TQ_OK)
        rc = tqi_slot_move(slot, false, frames->frames, remote, cnt, now_ns, err);
    tqi_env_free(env, extents, extents_cnt * sizeof *extents);
    tqi_env_free(env, remote, cnt * sizeof *remote);
    return rc;
}

static void slot_done(get_t *get, tqi_slot_t *slot, uint64_t now_ns)
{
    tqi_slot_step(slot, TQI_SLOT_EV_STORE);
    tqi_assert(get->waiting_cnt > 0);
    if (--get->waiting_cnt == 0)
        finish(get, now_ns);
}

static void read_slot(get_t *get, tqi_slot_t *slot, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;
    tqi_frames_t frames;
    tqi_err_t err;
    tq_status_t rc;
    uint64_t bytes = 0;

    if (make_frames(get, slot, &frames, &err) != TQ_OK) {
        tqi_op_fail(op, &err, now_ns);
        return;
    }
    for (uint32_t f = 0; f < frames.cnt; f++)
        bytes += frames.frames[f].bytes;
    if (slot->ready.is_inline)
        rc = copy_inline(slot, &frames, &err);
    else if (slot->link->mode == TQI_PAYLOAD_NONE)
        rc = tqi_fail(&err, TQ_E_UNSUPPORTED,
                      "%" PRIu64 " bytes don't fit into a message (limit %u), and there is no way "
                      "for payload from storage unit %u: %s",
                      bytes, TQ_INLINE_BYTES_MAX, slot->link->unit_id, slot->link->mode_text);
    else
        rc = read_frames(get, slot, &frames, now_ns, &err);
    tqi_frames_fini(&frames);
    if (rc != TQ_OK) {
        tqi_op_fail(op, &err, now_ns);
    } else if (slot->ready.is_inline) {
        slot_done(get, slot, now_ns);
    } else if (slot->link->mode == TQI_PAYLOAD_STREAM) {
        tqi_msg_Commit_t commit = {.transfer = slot->transfer};
        tqi_op_request(op, slot->link, slot, TQI_KIND_Commit, &commit, now_ns);
    }
}

static void read_all(get_t *get, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;
    tqi_err_t err;

    get_step(get, TQI_GET_EV_DESCRIBED);
    get->waiting_cnt = op->slots_cnt;
    for (uint32_t f = 0; f < get->fields_cnt; f++)
        if (lay_out(get, f, &err) != TQ_OK) {
            tqi_op_fail(op, &err, now_ns);
            return;
        }
    for (uint32_t s = 0; s < op->slots_cnt && op->state == TQI_OP_RUNNING; s++)
        read_slot(get, &op->slots[s], now_ns);
}

/* STREAM: the bytes came, and the unit says that it sent them all. */
static void streamed(get_t *get, tqi_slot_t *slot, uint64_t now_ns)
{
    if (slot->has_moved && slot->was_closed)
        slot_done(get, slot, now_ns);
}

static void get_on_payload(tqi_op_t *op, tqi_slot_t *slot, tq_status_t status, const char *text,
                           uint64_t now_ns)
{
    get_t *get = get_of(op);
    tqi_msg_Release_t release = {.transfer = slot->transfer};
    tqi_err_t err;

    if (status != TQ_OK) {
        tqi_fail(&err, status, "reading from storage unit %u: %s", slot->link->unit_id, text);
        /* A way that broke, perhaps while nothing moved, is opened again. */
        if (tq_status_class(status) == TQ_CLASS_PEER && op->restarts < WAYS_MAX)
            tqi_op_restart(op, &err, now_ns);
        else
            tqi_op_fail(op, &err, now_ns);
        return;
    }
    if (slot->link->mode == TQI_PAYLOAD_STREAM) {
        slot->has_moved = true;
        streamed(get, slot, now_ns);
        return;
    }
    tqi_slot_step(slot, TQI_SLOT_EV_CLOSE);
    tqi_op_request(op, slot->link, slot, TQI_KIND_Release, &release, now_ns);
}

/* ---- the rest ---------------------------------------------------------------------------------- */

static void get_failed(get_t *get, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    tqi_op_t *op = &get->op;
    tqi_err_t err = reply->err;

    if (reply->kind == TQI_KIND_Commit && slot->has_moved) {
        /* The unit's port took so long to say that it sent them that the lease ran out; the bytes
         * came whole all the same. */
        slot->was_closed = true;
        streamed(get, slot, now_ns);
        return;
    }
    if (reply->kind == TQI_KIND_PrepareGet)
        tqi_slot_step(slot, TQI_SLOT_EV_REFUSED); /* refused: nothing is pinned */
    if (slot && (reply->status == TQ_E_NOT_FOUND || reply->status == TQ_E_ROW_GONE) &&
        !get->was_gone) {
        /* The controller knows whether the row is gone or was only resolved too early. */
        get->was_gone = true;
        tqi_op_restart(op, &err, now_ns);
        return;
    }
    if (slot && reply->status == TQ_E_ROW_GONE)
        err.status = TQ_E_NOT_FOUND;
    if (slot && tq_status_class(reply->status) == TQ_CLASS_PEER)
        tqi_err_prefix(&err, "storage unit %u", slot->link->unit_id);
    tqi_op_fail(op, &err, now_ns);
}

static void get_on_reply(tqi_op_t *op, tqi_slot_t *slot, const tqi_reply_t *reply, uint64_t now_ns)
{
    get_t *get = get_of(op);
    tqi_msg_Resolve_R_t resolve;
    tqi_msg_Release_R_t release;
    tqi_err_t err;

    if (reply->status != TQ_OK) {
        get_failed(get, slot, reply, now_ns);
        return;
    }
    switch (reply->kind) {
    case TQI_KIND_Resolve:
        if (tqi_op_decode(op, reply, &resolve, now_ns))
            resolved(get, &resolve, now_ns);
        break;
    case TQI_KIND_PrepareGet:
        tqi_slot_step(slot, TQI_SLOT_EV_PREPARED);
        if (keep_ready(get, slot, reply, &err) != TQ_OK) {
            tqi_op_fail(op, &err, now_ns);
            break;
        }
        if (!slot->ready.is_inline)
            tqi_link_lease(slot->link, slot->ready.lease_ms, now_ns);
        if (--get->waiting_cnt == 0)
            read_all(get, now_ns);
        break;
    case TQI_KIND_Commit:
        slot->was_closed = true;
        streamed(get, slot, now_ns);
        break;
    case TQI_KIND_Release:
        if (!tqi_op_decode(op, reply, &release, now_ns))
            break;
        if (release.was_held) {
            slot_done(get, slot, now_ns);
        } else {
            /* What was read may be another's by now. */
            tqi_fail(&err, TQ_E_TIMEOUT,
                     "storage unit %u let go of the cells before they were read",
                     slot->link->unit_id);
            tqi_op_restart(op, &err, now_ns);
        }
        break;
    default:
        tqi_assert(false);
    }
}

/* Nothing is undone but what clean does. */
static bool get_stop(tqi_op_t *op, tqi_op_event_t why, tqi_err_t *err, uint64_t now_ns)
{
    (void)err, (void)now_ns;
    get_step(get_of(op), (tqi_get_event_t)(TQI_GET_EV_CANCEL + (why - TQI_OP_EV_CANCEL)));
    return false;
}

static bool get_clean(tqi_op_t *op, uint64_t now_ns)
{
    if (op->err.status == TQ_OK)
        return true;
    for (uint32_t s = 0; s < op->slots_cnt; s++) {
        tqi_slot_t *slot = &op->slots[s];
        tqi_msg_Cancel_t cancel = {.transfer = slot->transfer};
        bool has_pins = slot->state == TQI_SLOT_PREPARING || slot->state == TQI_SLOT_READY ||
                        slot->state == TQI_SLOT_MOVING;
        /* Nobody waits for the answer. */
        if (has_pins && slot->is_touched && !slot->ready.is_inline &&
            tqi_link_request(slot->link, NULL, NULL, TQI_KIND_Cancel, &cancel, TQI_NEVER, now_ns,
                             NULL, NULL) != TQ_OK)
            return false;
        slot->is_touched = false;
    }
    return true;
}

static const tqi_op_class_t get_class = {
    .name = "get",
    .size = sizeof(get_t),
    .is_repeatable = true,
    .start = get_start,
    .on_reply = get_on_reply,
    .on_link = get_on_link,
    .on_payload = get_on_payload,
    .stop = get_stop,
    .clean = get_clean,
    .fini = get_fini,
};
