/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a table: STATUS, LIST, and a FETCH of all rows. Rows come in pages, in insertion order; a
 * cursor is the position to go on from, so rows that come or go between two pages disturb nothing.
 */
#include "role/controller/internal.h"

#include <string.h>

/* Rows between two looks at the bytes of a page: with the largest tags and keys they stay under the
 * message's limit. */
#define CHUNK_ROWS 64u
/* Bits or bytes over rows x fields in a page. */
#define PAGE_CELLS_MAX (8u << 20)
#define UNKNOWN_WAITERS_MAX 64u

/* ---- walking --------------------------------------------------------------------------------- */

typedef struct walk {
    const tqi_partition_t *table;
    bool is_keys_only;
    bool is_stuck_only;
} walk_t;

/* Rows of the block that a parked fetch could use but for fields that they lack. */
static void stuck_words(const tqi_partition_t *table, uint64_t ordinal, uint64_t *words)
{
    uint64_t stuck[TQI_LEAF_WORDS] = {0};

    tqi_list_each(&table->ready, node)
    {
        const tqi_ready_t *set = tqi_container_of(node, tqi_ready_t, node);
        tqi_mask_t rows = {.ordinal = ordinal}, has;

        if (set->waiters_cnt == 0)
            continue;
        tqi_leaf_copy(rows.words, words);
        tqi_leaf_andnot(rows.words, tqi_bits_leaf(&set->task->consumed, ordinal));
        has = rows;
        tqi_partition_and_produced(table, set->fields, set->fields_cnt, &has);
        tqi_leaf_andnot(rows.words, has.words);
        tqi_leaf_or(stuck, rows.words);
    }
    for (tqi_map_str_item_t *item = tqi_map_str_first(&table->tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        tqi_list_each(&task->waiters, node)
        {
            uint64_t rows[TQI_LEAF_WORDS];

            /* Who waits for a field that nobody has written lacks it in every row. */
            if (tqi_container_of(node, tqi_waiter_t, node)->set)
                continue;
            tqi_leaf_copy(rows, words);
            tqi_leaf_andnot(rows, tqi_bits_leaf(&task->consumed, ordinal));
            tqi_leaf_or(stuck, rows);
            break;
        }
    }
    tqi_leaf_copy(words, stuck);
}

/* The next rows at or after *pos, at most max; *pos then is where to go on. Looks at up to *budget
 * rows' worth of blocks. */
static uint32_t walk_next(const walk_t *walk, uint64_t *pos, uint64_t *out, uint32_t max,
                          uint32_t *budget)
{
    const tqi_partition_t *table = walk->table;
    uint64_t end = table->index.end;
    uint32_t cnt = 0;

    if (*pos < tqi_index_first(&table->index) * TQI_BLOCK_ROWS)
        *pos = tqi_index_first(&table->index) * TQI_BLOCK_ROWS;
    while (*pos < end && cnt<max && * budget> 0) {
        uint64_t ordinal = *pos / TQI_BLOCK_ROWS, words[TQI_LEAF_WORDS];
        size_t bit;

        tqi_partition_listed(table, ordinal, words);
        if (walk->is_stuck_only)
            stuck_words(table, ordinal, words);
        bit = tqi_words_next(words, TQI_LEAF_WORDS, *pos % TQI_BLOCK_ROWS);
        for (; bit < TQI_BLOCK_ROWS && cnt < max;
             bit = tqi_words_next(words, TQI_LEAF_WORDS, bit + 1)) {
            uint64_t at = ordinal * TQI_BLOCK_ROWS + bit;
            size_t len;

            if (walk->is_keys_only && !tqi_partition_key_of(table, at, &len))
                continue;
            out[cnt++] = at;
        }
        *pos = ordinal * TQI_BLOCK_ROWS + bit;
        *budget -= (uint32_t)tqi_u64_min(*budget, 1);
    }
    *budget -= (uint32_t)tqi_u64_min(*budget, cnt);
    return cnt;
}

/* The cursor for the next page; 0 when there are no more positions. */
static uint64_t cursor_after(const tqi_partition_t *table, uint64_t pos)
{
    return pos < table->index.end ? pos : 0;
}

static uint64_t page_bytes(const reply_rows_t *out)
{
    return out->keys.bytes.len + out->tags.bytes.len;
}

static bool read_fail(tqi_controller_t *ctl, request_t *req, tq_status_t status, const char *text)
{
    tqi_err_t err;

    tqi_fail(&err, status, "%s", text);
    tqi_ctl_request_fail(ctl, req, &err);
    return true;
}

static uint32_t rows_page(const tqi_controller_t *ctl, size_t fields_cnt, uint32_t wanted)
{
    uint64_t max = PAGE_CELLS_MAX / tqi_u64_max(1, fields_cnt);

    max = tqi_u64_min(tqi_u64_max(max, 1), ctl->page_rows);
    return (uint32_t)(wanted ? tqi_u64_min(wanted, max) : max);
}

/* ---- STATUS ---------------------------------------------------------------------------------- */

/* Appends one byte a row, or rows x fields. */
static tq_status_t status_append(request_t *req, const tqi_task_t *task, const uint64_t *pos,
                                 uint32_t cnt)
{
    bool is_production = req->msg.status.what == TQ_STATUS_PRODUCTION;
    size_t width = is_production ? req->fields.len : 1;
    uint8_t *at = tqi_buf_extend(&req->out.produced, cnt * width);

    if (!at || tqi_vec_reserve(&req->out.rows, cnt) != TQ_OK)
        return TQ_E_NO_MEMORY;
    for (uint32_t i = 0; i < cnt; i++) {
        req->out.rows.at[req->out.rows.len++] = tqi_index_row(&req->op.part->table.index, pos[i]);
        for (size_t f = 0; f < width; f++)
            *at++ = is_production ? tqi_bits_test(&req->fields.at[f]->produced, pos[i])
                                  : task && tqi_bits_test(&task->consumed, pos[i]);
    }
    return TQ_OK;
}

/* The fields asked about; false if one was never written. */
static bool status_fields(request_t *req, tq_status_t *rc)
{
    const tqi_msg_Status_t *msg = &req->msg.status;

    *rc = tqi_vec_reserve(&req->fields, msg->fields.cnt);
    for (uint32_t i = 0; i < msg->fields.cnt && *rc == TQ_OK; i++) {
        tqi_str_t name = tqi_strs_at(msg->fields, i);
        tqi_field_t *field = tqi_partition_field(&req->op.part->table, name.data, name.len);

        if (!field)
            return false;
        req->fields.at[req->fields.len++] = field;
    }
    return *rc == TQ_OK && msg->fields.cnt > 0;
}

bool tqi_ctl_status_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Status_t *msg = &req->msg.status;
    tqi_msg_Status_R_t reply = {0};
    const tqi_task_t *task;
    uint32_t rows_max;
    walk_t walk = {0};
    tq_status_t rc = TQ_OK;

    if (msg->what != TQ_STATUS_CONSUMPTION && msg->what != TQ_STATUS_PRODUCTION)
        return read_fail(ctl, req, TQ_E_INVALID, "no such kind of status");
    if (!op->part || !op->part->is_known) {
        tqi_ctl_request_reply(ctl, req, &reply);
        return true;
    }
    if (req->phase == 0) {
        if (msg->what == TQ_STATUS_PRODUCTION && !status_fields(req, &rc)) {
            if (rc != TQ_OK)
                return read_fail(ctl, req, rc, "no memory for a status");
            tqi_ctl_request_reply(ctl, req, &reply);
            return true;
        }
        req->at_block = msg->cursor;
        req->phase = 1;
    }
    walk.table = &op->part->table;
    task = tqi_partition_task(walk.table, msg->task.data, msg->task.len);
    rows_max = rows_page(ctl, req->fields.len, 0);
    while (req->out.rows.len < rows_max && req->at_block < walk.table->index.end) {
        uint64_t pos[CHUNK_ROWS];
        uint32_t cnt;

        if (*budget == 0)
            return false;
        cnt = walk_next(&walk, &req->at_block, pos,
                        (uint32_t)tqi_u64_min(CHUNK_ROWS, rows_max - req->out.rows.len), budget);
        if (cnt > 0 && status_append(req, task, pos, cnt) != TQ_OK)
            return read_fail(ctl, req, TQ_E_NO_MEMORY, "no memory for a status");
    }
    reply.is_known = true;
    reply.rows = tqi_u64s(req->out.rows.at, (uint32_t)req->out.rows.len);
    reply.status = (tqi_u8s_t){req->out.produced.data, (uint32_t)req->out.produced.len};
    reply.next = cursor_after(walk.table, req->at_block);
    tqi_ctl_request_reply(ctl, req, &reply);
    return true;
}

/* ---- LIST ------------------------------------------------------------------------------------ */

static bool strs_have(const tqi_strs_builder_t *builder, tqi_str_t name)
{
    tqi_strs_t strs = tqi_strs_builder_view(builder);

    for (uint32_t i = 0; i < strs.cnt; i++) {
        tqi_str_t at = tqi_strs_at(strs, i);

        if (at.len == name.len && memcmp(at.data, name.data, name.len) == 0)
            return true;
    }
    return false;
}

/* One column of the listing; a field that nobody has written has a name and nothing else. */
static tq_status_t list_add_field(request_t *req, tqi_str_t name)
{
    tqi_field_t *field = tqi_partition_field(&req->op.part->table, name.data, name.len);
    tq_status_t rc = tqi_strs_builder_add(&req->out.fields, name.data, name.len);

    if (rc == TQ_OK)
        rc = tqi_ctl_out_schema(&req->out, field);
    if (rc == TQ_OK)
        rc = tqi_vec_push(&req->fields, field);
    return rc;
}

/* Those that parked fetches wait for, each once. */
static tq_status_t list_stuck_fields(request_t *req)
{
    const tqi_partition_t *table = &req->op.part->table;
    uint32_t unknown = 0;

    tqi_list_each(&table->ready, node)
    {
        const tqi_ready_t *set = tqi_container_of(node, tqi_ready_t, node);

        for (uint32_t i = 0; set->waiters_cnt > 0 && i < set->fields_cnt; i++) {
            tqi_str_t name = {set->fields[i]->name, set->fields[i]->name_len};

            if (!strs_have(&req->out.fields, name) && list_add_field(req, name) != TQ_OK)
                return TQ_E_NO_MEMORY;
        }
    }
    for (tqi_map_str_item_t *item = tqi_map_str_first(&table->tasks); item;
         item = tqi_map_str_next(item)) {
        tqi_list_each(&((const tqi_task_t *)item->value)->waiters, node)
        {
            const tqi_waiter_t *waiter = tqi_container_of(node, tqi_waiter_t, node);
            const request_t *waiting = tqi_container_of(waiter, request_t, waiter);
            const tqi_strs_t *fields = &waiting->msg.fetch.fields;

            if (waiter->set || unknown++ >= UNKNOWN_WAITERS_MAX)
                continue;
            for (uint32_t i = 0; i < fields->cnt; i++)
                if (!strs_have(&req->out.fields, tqi_strs_at(*fields, i)) &&
                    req->fields.len < TQ_PARTITION_FIELDS_MAX &&
                    list_add_field(req, tqi_strs_at(*fields, i)) != TQ_OK)
                    return TQ_E_NO_MEMORY;
        }
    }
    return TQ_OK;
}

static tq_status_t list_fields(request_t *req)
{
    const tqi_partition_t *table = &req->op.part->table;

    if (req->msg.list.is_stuck_only)
        return list_stuck_fields(req);
    for (size_t i = 0; req->msg.list.want_fields && i < table->sorted.len; i++) {
        tqi_str_t name = {table->sorted.at[i]->name, table->sorted.at[i]->name_len};

        if (list_add_field(req, name) != TQ_OK)
            return TQ_E_NO_MEMORY;
    }
    return TQ_OK;
}

static tq_status_t append_columns(request_t *req, const uint64_t *pos, uint32_t cnt, bool has_keys)
{
    const tqi_partition_t *table = &req->op.part->table;
    uint32_t first = (uint32_t)req->out.rows.len;
    tq_status_t rc = tqi_ctl_out_rows(&req->out, table, pos, cnt);

    if (rc == TQ_OK && has_keys)
        rc = tqi_ctl_out_keys(&req->out, table, pos, cnt);
    if (rc == TQ_OK)
        rc = tqi_ctl_out_tags(&req->out, table, pos, cnt);
    if (rc == TQ_OK)
        rc = tqi_ctl_out_produced(&req->out, table, pos, cnt, first, req->fields.at,
                                  (uint32_t)req->fields.len);
    return rc;
}

/* Fills the page within the budget. True when it is full or the rows are at their end. */
static bool page_fill(request_t *req, const walk_t *walk, uint32_t rows_max, bool has_keys,
                      uint32_t *budget, tq_status_t *rc)
{
    while (req->out.rows.len < rows_max && req->at_block < walk->table->index.end &&
           page_bytes(&req->out) < PAGE_BYTES_MAX) {
        uint64_t pos[CHUNK_ROWS];
        uint32_t cnt;

        if (*budget == 0)
            return false;
        cnt = walk_next(walk, &req->at_block, pos,
                        (uint32_t)tqi_u64_min(CHUNK_ROWS, rows_max - req->out.rows.len), budget);
        *rc = append_columns(req, pos, cnt, has_keys);
        if (*rc != TQ_OK)
            return true;
    }
    return true;
}

bool tqi_ctl_list_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_List_t *msg = &req->msg.list;
    const reply_rows_t *out = &req->out;
    walk_t walk = {.is_keys_only = msg->is_keys_only, .is_stuck_only = msg->is_stuck_only};
    tqi_msg_List_R_t reply = {0};
    tq_status_t rc = TQ_OK;

    if (!op->part || !op->part->is_known) {
        tqi_ctl_request_reply(ctl, req, &reply);
        return true;
    }
    if (req->phase == 0) {
        if (list_fields(req) != TQ_OK)
            return read_fail(ctl, req, TQ_E_NO_MEMORY, "no memory for a listing");
        req->at_block = msg->cursor;
        req->phase = 1;
    }
    walk.table = &op->part->table;
    if (!page_fill(req, &walk, rows_page(ctl, req->fields.len, msg->rows_max), true, budget, &rc))
        return false;
    if (rc != TQ_OK)
        return read_fail(ctl, req, rc, "no memory for a listing");
    reply.is_known = true;
    reply.rows = tqi_u64s(out->rows.at, (uint32_t)out->rows.len);
    reply.units = tqi_u32s(out->units.at, (uint32_t)out->units.len);
    reply.keys = tqi_strs_builder_view(&out->keys);
    reply.has_key = (tqi_u8s_t){out->has_key.at, (uint32_t)out->has_key.len};
    reply.tags = tqi_strs_builder_view(&out->tags);
    reply.fields = tqi_strs_builder_view(&out->fields);
    reply.schemas = tqi_strs_builder_view(&out->schemas);
    reply.produced = (tqi_bytes_t){out->produced.data, (uint32_t)out->produced.len};
    reply.next = cursor_after(walk.table, req->at_block);
    tqi_ctl_request_reply(ctl, req, &reply);
    return true;
}

/* The cursor is the ordinal of creation of the last one named. */
void tqi_ctl_list_partitions(tqi_controller_t *ctl, request_t *req)
{
    const tqi_msg_List_t *msg = &req->msg.list;
    tqi_strs_builder_t *names = &req->out.fields;
    tqi_msg_List_R_t reply = {.is_known = true};
    uint64_t last = msg->cursor;

    tqi_list_each(&ctl->parts, node)
    {
        const part_t *part = tqi_container_of(node, part_t, node);

        if (!part->is_known || part->ordinal <= msg->cursor)
            continue;
        if (names->bytes.len >= PAGE_BYTES_MAX) {
            reply.next = last;
            break;
        }
        if (tqi_strs_builder_add(names, part->name, part->name_len) != TQ_OK) {
            read_fail(ctl, req, TQ_E_NO_MEMORY, "no memory for a listing");
            return;
        }
        last = part->ordinal;
    }
    reply.names = tqi_strs_builder_view(names);
    tqi_ctl_request_reply(ctl, req, &reply);
}

/* ---- FETCH of all ---------------------------------------------------------------------------- */

bool tqi_ctl_fetch_all_step(tqi_controller_t *ctl, op_t *op, uint32_t *budget)
{
    request_t *req = request_of(op);
    const tqi_msg_Fetch_t *msg = &req->msg.fetch;
    const reply_rows_t *out = &req->out;
    tqi_msg_Fetch_R_t reply = {0};
    walk_t walk = {0};
    tq_status_t rc = TQ_OK;

    if (!op->part || !op->part->is_known) {
        tqi_err_t err;

        tqi_fail(&err, TQ_E_NO_PARTITION, "Partition %.*s not found",
                 (int)tqi_u64_min(msg->partition.len, 128), (const char *)msg->partition.data);
        tqi_ctl_request_fail(ctl, req, &err);
        return true;
    }
    if (req->phase == 0) {
        for (uint32_t i = 0; i < msg->fields.cnt && rc == TQ_OK; i++) {
            tqi_str_t name = tqi_strs_at(msg->fields, i);

            if (tqi_partition_field(&op->part->table, name.data, name.len))
                rc = list_add_field(req, name);
        }
        if (rc != TQ_OK)
            return read_fail(ctl, req, rc, "no memory for a fetch");
        req->phase = 1;
    }
    walk.table = &op->part->table;
    if (!page_fill(req, &walk, rows_page(ctl, req->fields.len, 0), false, budget, &rc))
        return false;
    if (rc != TQ_OK)
        return read_fail(ctl, req, rc, "no memory for a fetch");
    reply.rows = tqi_u64s(out->rows.at, (uint32_t)out->rows.len);
    reply.units = tqi_u32s(out->units.at, (uint32_t)out->units.len);
    reply.fields = tqi_strs_builder_view(&out->fields);
    reply.schemas = tqi_strs_builder_view(&out->schemas);
    reply.produced = (tqi_bytes_t){out->produced.data, (uint32_t)out->produced.len};
    reply.tags = tqi_strs_builder_view(&out->tags);
    reply.next = cursor_after(walk.table, req->at_block);
    tqi_ctl_request_reply(ctl, req, &reply);
    return true;
}
