/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "history.h"

static FILE *file;

void history_to(FILE *to)
{
    file = to;
}

/* ---- pieces ------------------------------------------------------------------------------------ */

/* Everything that has a name here needs no escapes. */
static void put_head(const work_t *work)
{
    fprintf(file, "{\"p\":\"%s.%u\",\"id\":%" PRIu64 ",\"t\":%" PRIu64, work->proc->name,
            work->proc->lives, work->number, tqi_sim_now(work->proc->world->sim));
}

static void put_rows(const tq_row_t *rows, uint32_t cnt)
{
    fprintf(file, ",\"rows\":[");
    for (uint32_t i = 0; i < cnt; i++) {
        if (rows[i] == TQ_ROW_NONE)
            fprintf(file, "%snull", i ? "," : "");
        else
            fprintf(file, "%s%" PRIu64, i ? "," : "", rows[i]);
    }
    fputc(']', file);
}

static void put_keys(const uint32_t *keys, uint32_t cnt)
{
    fprintf(file, ",\"keys\":[");
    for (uint32_t i = 0; i < cnt; i++)
        fprintf(file, "%s\"k%u\"", i ? "," : "", keys[i]);
    fputc(']', file);
}

static void put_fields(uint32_t mask)
{
    const char *comma = "";

    fprintf(file, ",\"fields\":[");
    for (uint32_t f = 0; f < FIELDS; f++)
        if (mask >> f & 1) {
            fprintf(file, "%s\"%s\"", comma, field_names[f]);
            comma = ",";
        }
    fputc(']', file);
}

static void put_value(const void *data, size_t len, bool is_first)
{
    fprintf(file, is_first ? "\"" : ",\"");
    if (len > 0)
        fprintf(file, "%016" PRIx64, tqi_hash_bytes(data, len, 11));
    fputc('"', file);
}

static void put_names(const char *member, const tq_strs_t *names, const uint8_t *has_name)
{
    fprintf(file, ",\"%s\":[", member);
    for (uint32_t i = 0; i < names->cnt; i++) {
        uint32_t at = names->offsets[i];
        fprintf(file, i ? "," : "");
        if (has_name && !has_name[i])
            fprintf(file, "null");
        else
            fprintf(file, "\"%.*s\"", (int)(names->offsets[i + 1] - at), names->bytes + at);
    }
    fputc(']', file);
}

/* ---- calls ------------------------------------------------------------------------------------- */

/* The bytes are in the columns, one row behind the other. */
static void put_cells(const work_t *work)
{
    const put_record_t *put = work->put;
    const char *comma = "";

    fprintf(file, ",\"n\":%u,\"cells\":{", put->rows_cnt);
    for (uint32_t f = 0; f < FIELDS; f++) {
        const uint8_t *at = work->memory[f];
        if (!(put->fields_mask >> f & 1))
            continue;
        fprintf(file, "%s\"%s\":[", comma, field_names[f]);
        for (uint32_t r = 0; r < put->rows_cnt; r++) {
            size_t len = model_cell_len(put, r, f);
            put_value(at, len, r == 0);
            at += len;
        }
        fputc(']', file);
        comma = ",";
    }
    fputc('}', file);
}

static void call_put(const work_t *work)
{
    const put_record_t *put = work->put;

    if (put->ident == IDENT_KEY)
        put_keys(put->keys, put->rows_cnt);
    else if (put->ident == IDENT_ROW)
        put_rows(put->rows, put->rows_cnt);
    put_cells(work);
}

static void call_get(const work_t *work)
{
    if (work->is_by_key)
        put_keys(work->keys, work->rows_cnt);
    else
        put_rows(work->rows, work->rows_cnt);
    if (work->fields_mask)
        put_fields(work->fields_mask);
    if (work->is_skipping)
        fprintf(file, ",\"skip\":true");
}

static void call_fetch(const work_t *work)
{
    fprintf(file, ",\"task\":\"%s\",\"n\":%u", task_names[work->task], work->rows_cnt);
    put_fields(work->fields_mask);
    if (work->is_polling)
        fprintf(file, ",\"poll\":true");
}

static void call_clear(const work_t *work)
{
    const clear_record_t *clear = work->clear;

    if (clear->is_all)
        fprintf(file, ",\"all\":true");
    else if (clear->is_by_key)
        put_keys(clear->keys, clear->cnt);
    else
        put_rows(clear->rows, clear->cnt);
}

void history_call(const work_t *work)
{
    static const char *const names[] = {"put",    "get",  "fetch",     "clear",
                                        "reset",  "tags", "insert",    "resolve",
                                        "status", "list", "fetch all", "stat"};

    if (!file)
        return;
    put_head(work);
    fprintf(file, ",\"op\":\"%s\",\"part\":\"%s\"", names[work->kind], partition_names[work->part]);
    if (work->kind == WORK_PUT)
        call_put(work);
    else if (work->kind == WORK_GET)
        call_get(work);
    else if (work->kind == WORK_FETCH)
        call_fetch(work);
    else if (work->kind == WORK_CLEAR)
        call_clear(work);
    else if (work->kind == WORK_RESET && !work->is_all)
        fprintf(file, ",\"task\":\"%s\"", task_names[work->task]);
    else if (work->kind == WORK_LIST && work->is_part)
        fprintf(file, ",\"some\":true");
    else if (work->kind == WORK_RESOLVE && work->is_by_key)
        put_keys(work->keys, work->rows_cnt);
    fprintf(file, "}\n");
}

/* ---- ends -------------------------------------------------------------------------------------- */

static size_t cell_len(const tq_column_out_t *column, uint32_t row)
{
    if (column->layout == TQ_LAYOUT_EACH)
        return column->descs[row].len;
    if (column->layout == TQ_LAYOUT_UNIFORM)
        return column->desc.len;
    return (size_t)(column->offsets[row + 1] - column->offsets[row]);
}

static void put_columns(const tq_result_t *result)
{
    fprintf(file, ",\"cells\":{");
    for (uint32_t c = 0; c < result->columns_cnt; c++) {
        const tq_column_out_t *column = &result->columns[c];
        const uint8_t *bytes = column->buffer ? tq_buffer_data(column->buffer) : NULL;
        fprintf(file, "%s\"%s\":[", c ? "," : "", column->field);
        for (uint32_t i = 0; i < result->rows_cnt; i++)
            put_value(bytes + column->offsets[i], cell_len(column, i), i == 0);
        fputc(']', file);
    }
    fputc('}', file);
}

static void put_produced(const tq_result_t *result)
{
    put_names("fields", &result->fields, NULL);
    fprintf(file, ",\"produced\":[");
    for (uint32_t r = 0; r < result->rows_cnt; r++) {
        fprintf(file, r ? ",\"" : "\"");
        for (uint32_t f = 0; f < result->fields.cnt; f++)
            fputc(result->status[r * result->fields.cnt + f] ? '1' : '0', file);
        fputc('"', file);
    }
    fputc(']', file);
}

static void put_result(const work_t *work, const tq_result_t *result)
{
    if (work->kind == WORK_GET || work->kind == WORK_FETCH || work->kind == WORK_LIST ||
        work->kind == WORK_PUT || work->kind == WORK_INSERT || work->kind == WORK_RESOLVE ||
        work->kind == WORK_FETCH_ALL)
        put_rows(result->rows, result->rows_cnt);
    if (work->kind == WORK_GET)
        put_columns(result);
    if (result->keys.cnt > 0 && result->keys.cnt == result->rows_cnt)
        put_names("keys", &result->keys, result->has_key);
    if ((work->kind == WORK_LIST || work->kind == WORK_FETCH_ALL) && result->status)
        put_produced(result);
}

static void put_end(const work_t *work, const char *status)
{
    const tq_result_t *result = tqi_op_result(work->op);

    put_head(work);
    fprintf(file, ",\"status\":\"%s\",\"store\":\"%016" PRIx64 "\",\"session\":%" PRIu64, status,
            result->incarnation, work->session);
    if (strcmp(status, "OK") == 0)
        put_result(work, result);
    fprintf(file, "}\n");
}

void history_done(const work_t *work)
{
    /* Nobody lives to see what ends as its process dies. */
    if (file && !work->proc->is_dying)
        put_end(work, tq_status_name(work->status));
}

void history_returned(const work_t *work)
{
    if (file && !work->proc->is_dying)
        put_end(work, "RETURNED");
}

void history_loss(world_t *w)
{
    if (file)
        fprintf(file, "{\"event\":\"lost\",\"t\":%" PRIu64 "}\n", tqi_sim_now(w->sim));
}

void history_quiet(world_t *w, bool is_quiet)
{
    if (file)
        fprintf(file, "{\"event\":\"%s\",\"t\":%" PRIu64 "}\n", is_quiet ? "quiet" : "loud",
                tqi_sim_now(w->sim));
}
