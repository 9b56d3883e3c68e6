/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Figures as JSON, and the walk that compares every table with every other.
 */
#include "role/controller/internal.h"

#include <string.h>

#include "wire/value.h"

/* Partitions are described while the text is shorter; after that only counted. */
#define PARTITIONS_BYTES_MAX (4u << 20)

static const char *const unit_states[] = {"present", "returning", "lost"};

/* ---- figures --------------------------------------------------------------------------------- */

/* `"name":` in front of a value; a comma where one is due. */
static void json_key(tqi_buf_t *json, const char *name)
{
    uint8_t last = json->len > 0 ? json->data[json->len - 1] : '{';

    if (last != '{' && last != '[')
        tqi_buf_printf(json, ",");
    tqi_json_str(json, name, strlen(name));
    tqi_buf_printf(json, ":");
}

static void json_uint(tqi_buf_t *json, const char *name, uint64_t value)
{
    json_key(json, name);
    tqi_buf_printf(json, "%llu", (unsigned long long)value);
}

static void json_text(tqi_buf_t *json, const char *name, const char *text, size_t len)
{
    json_key(json, name);
    tqi_json_str(json, text, len);
}

static void json_next(tqi_buf_t *json)
{
    tqi_buf_printf(json, json->data[json->len - 1] == '[' ? "{" : ",{");
}

static void stat_fields(const tqi_partition_t *table, tqi_buf_t *json)
{
    json_key(json, "produced");
    tqi_buf_printf(json, "{");
    for (size_t i = 0; i < table->sorted.len; i++)
        json_uint(json, table->sorted.at[i]->name, tqi_bits_count(&table->sorted.at[i]->produced));
    tqi_buf_printf(json, "}");
}

static void stat_tasks(const tqi_partition_t *table, tqi_buf_t *json)
{
    json_key(json, "tasks");
    tqi_buf_printf(json, "{");
    for (tqi_map_str_item_t *item = tqi_map_str_first(&table->tasks); item;
         item = tqi_map_str_next(item)) {
        const tqi_task_t *task = item->value;

        json_key(json, task->name);
        tqi_buf_printf(json, "{");
        json_uint(json, "consumed", tqi_bits_count(&task->consumed));
        json_uint(json, "waiters", task->waiters.cnt);
        json_uint(json, "provisional_grants", task->grants.cnt);
        tqi_buf_printf(json, "}");
    }
    tqi_buf_printf(json, "}");
}

static void stat_ready(const tqi_partition_t *table, tqi_buf_t *json)
{
    json_key(json, "ready_sets");
    tqi_buf_printf(json, "[");
    tqi_list_each(&table->ready, node)
    {
        const tqi_ready_t *set = tqi_container_of(node, tqi_ready_t, node);

        json_next(json);
        json_text(json, "task", set->task->name, set->task->name_len);
        json_key(json, "fields");
        tqi_buf_printf(json, "[");
        for (uint32_t i = 0; i < set->fields_cnt; i++) {
            if (i > 0)
                tqi_buf_printf(json, ",");
            tqi_json_str(json, set->fields[i]->name, set->fields[i]->name_len);
        }
        tqi_buf_printf(json, "]");
        json_uint(json, "ready", tqi_ready_count(set));
        json_uint(json, "waiters", set->waiters_cnt);
        tqi_buf_printf(json, "}");
    }
    tqi_buf_printf(json, "]");
}

static void stat_part(const part_t *part, tqi_buf_t *json)
{
    const tqi_partition_t *table = &part->table;

    json_next(json);
    json_text(json, "name", part->name, part->name_len);
    json_uint(json, "rows", tqi_partition_listed_cnt(table));
    json_uint(json, "rows_reserved", tqi_bits_count(&table->state[TQI_ROW_RESERVED]));
    json_uint(json, "rows_active", tqi_bits_count(&table->state[TQI_ROW_ACTIVE]));
    json_uint(json, "rows_clearing", tqi_bits_count(&table->state[TQI_ROW_CLEARING]));
    json_uint(json, "rows_unlisted", tqi_bits_count(&table->unlisted));
    json_uint(json, "rows_absent", tqi_bits_count(&table->absent));
    json_uint(json, "rows_made", table->rows_made);
    json_uint(json, "cells_lost", table->cells_lost);
    json_uint(json, "keys", tqi_map_str_count(&table->keys));
    json_uint(json, "waiters", tqi_waiter_cnt(table));
    json_uint(json, "queued", part->queue.cnt);
    json_uint(json, "puts_pending", part->puts.cnt);
    json_uint(json, "clears", part->clears.cnt);
    stat_fields(table, json);
    stat_tasks(table, json);
    stat_ready(table, json);
    tqi_buf_printf(json, "}");
}

static void stat_unit(const tqi_controller_t *ctl, const unit_t *unit, tqi_buf_t *json)
{
    json_next(json);
    json_uint(json, "id", unit->id);
    json_text(json, "name", unit->name, strlen(unit->name));
    json_text(json, "host", unit->host, strlen(unit->host));
    json_text(json, "addresses", unit->addresses, unit->addresses_len);
    json_text(json, "state", unit_states[unit->state], strlen(unit_states[unit->state]));
    json_key(json, "lost");
    tqi_buf_printf(json, unit->state == UNIT_LOST ? "true" : "false");
    json_uint(json, "capacity_bytes", unit->capacity_bytes);
    json_uint(json, "free_bytes", unit->free_bytes);
    json_uint(json, "zombie_bytes", unit->zombie_bytes);
    json_uint(json, "silent_ms",
              (ctl->now_ns - tqi_u64_min(ctl->now_ns, unit->heard_ns)) / 1000000);
    json_uint(json, "orders_open", tqi_outbox_cnt(unit->outbox));
    json_uint(json, "confirms_open", unit->confirms.len);
    json_uint(json, "lives_lost", unit->wipes);
    tqi_buf_printf(json, "}");
}

static void stat_session(const tqi_controller_t *ctl, const session_t *session, tqi_buf_t *json)
{
    json_next(json);
    json_uint(json, "id", session->id);
    json_text(json, "name", session->name, strlen(session->name));
    json_uint(json, "pid", session->pid);
    json_uint(json, "silent_ms",
              (ctl->now_ns - tqi_u64_min(ctl->now_ns, session->heard_ns)) / 1000000);
    json_uint(json, "requests", session->requests.cnt);
    json_uint(json, "puts_pending", session->puts.cnt);
    json_uint(json, "grants_provisional", tqi_map_u64_count(&session->grants));
    json_uint(json, "outcome_bytes", tqi_inbox_kept_bytes(session->inbox));
    tqi_buf_printf(json, "}");
}

static void stat_lists(const tqi_controller_t *ctl, tqi_buf_t *json)
{
    uint64_t known = 0;

    json_key(json, "partitions");
    tqi_buf_printf(json, "[");
    tqi_list_each(&ctl->parts, node)
    {
        const part_t *part = tqi_container_of(node, part_t, node);

        known += part->is_known;
        if ((part->is_known || tqi_waiter_cnt(&part->table) > 0) &&
            json->len < PARTITIONS_BYTES_MAX)
            stat_part(part, json);
    }
    tqi_buf_printf(json, "]");
    json_uint(json, "partitions_cnt", known);
    json_uint(json, "partitions_dying", ctl->dying.cnt);
    json_key(json, "units");
    tqi_buf_printf(json, "[");
    for (size_t i = 0; i < ctl->units.len; i++)
        stat_unit(ctl, ctl->units.at[i], json);
    tqi_buf_printf(json, "]");
    json_key(json, "sessions");
    tqi_buf_printf(json, "[");
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions); item;
         item = tqi_map_u64_next(item))
        if (json->len < PARTITIONS_BYTES_MAX + (2u << 20))
            stat_session(ctl, item->value, json);
    tqi_buf_printf(json, "]");
    json_uint(json, "sessions_cnt", tqi_map_u64_count(&ctl->sessions));
}

tq_status_t tqi_controller_stat(const tqi_controller_t *ctl, tqi_buf_t *json)
{
    char incarnation[17];
    size_t start = json->len;
    static const char digits[] = "0123456789abcdef";

    for (unsigned i = 0; i < 16; i++)
        incarnation[i] = digits[ctl->incarnation >> (60 - 4 * i) & 15];
    incarnation[16] = 0;
    tqi_buf_printf(json, "{");
    json_key(json, "store");
    tqi_buf_printf(json, "{");
    json_text(json, "incarnation", incarnation, 16);
    json_uint(json, "uptime_ms", (ctl->now_ns - ctl->started_ns) / 1000000);
    json_text(json, "sampler", tqi_sampler_name(&ctl->sampler),
              strlen(tqi_sampler_name(&ctl->sampler)));
    json_uint(json, "rows_indexed", ctl->source.next_block * TQI_BLOCK_ROWS);
    json_uint(json, "requests_under_way", ctl->requests_cnt);
    json_uint(json, "puts_pending", tqi_map_u64_count(&ctl->puts));
    json_uint(json, "puts_homeless", ctl->homeless.cnt);
    tqi_buf_printf(json, "}");
    stat_lists(ctl, json);
    json_key(json, "counters");
    tqi_buf_printf(json, "{");
#define COUNTER_JSON(name, doc) json_uint(json, #name, ctl->cnt_##name);
    COUNTER_TABLE(COUNTER_JSON)
#undef COUNTER_JSON
    tqi_buf_printf(json, "}");
    /* One failed append makes the text wrong; the last one tells whether there was room. */
    if (tqi_buf_printf(json, "}") != TQ_OK) {
        json->len = start;
        return TQ_E_NO_MEMORY;
    }
    return TQ_OK;
}

void tqi_ctl_stat_handle(tqi_controller_t *ctl, request_t *req)
{
    tqi_err_t err;
    tqi_buf_t json;

    tqi_buf_init(&json, ctl->env);
    if (tqi_controller_stat(ctl, &json) == TQ_OK) {
        tqi_ctl_request_reply(ctl, req,
                              &(tqi_msg_Stat_R_t){.json = {json.data, (uint32_t)json.len}});
    } else {
        tqi_fail(&err, TQ_E_NO_MEMORY, "no memory for the figures");
        tqi_ctl_request_fail(ctl, req, &err);
    }
    tqi_buf_fini(&json);
}

/* ---- check ----------------------------------------------------------------------------------- */

#define CHECK(expr, ...)                                                                           \
    do {                                                                                           \
        if (!(expr)) {                                                                             \
            tqi_fail(err, TQ_E_BUG, __VA_ARGS__);                                                  \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/* INV-7: what pending puts count at their rows is what the table counts. */
static bool check_puts(const part_t *part, tqi_err_t *err)
{
    const tqi_index_t *index = &part->table.index;
    uint64_t counted = 0, expected = 0;
    tqi_mask_t mask;

    for (uint64_t at = tqi_index_first(index); at < tqi_index_limit(index); at++)
        counted += tqi_index_block(index, at)->pending_sum;
    tqi_list_each(&part->puts, node)
    {
        const put_t *put = tqi_container_of(node, put_t, in_part);

        for (uint64_t at = put->at_block; tqi_mask_next(&put->rows, &at, &mask);) {
            const tqi_block_t *block = tqi_index_block(index, mask.ordinal);

            if (block && block->pending)
                expected += tqi_mask_count(&mask);
        }
    }
    CHECK(counted == expected, "INV-7: partition '%s' counts %llu pending rows, its puts have %llu",
          part->name, (unsigned long long)counted, (unsigned long long)expected);
    return true;
}

/* INV-9: clears have the CLEARING rows, each once. */
static bool check_clears(const part_t *part, tqi_err_t *err)
{
    const tqi_bits_t *state = &part->table.state[TQI_ROW_CLEARING];
    uint64_t rows = 0;
    tqi_mask_t mask;

    tqi_list_each(&part->clears, node)
    {
        const clearing_t *clearing = tqi_container_of(node, clearing_t, core.node);
        uint32_t waiting = 0;

        for (uint64_t at = 0; tqi_mask_next(&clearing->core.rows, &at, &mask);) {
            rows += tqi_mask_count(&mask);
            tqi_leaf_andnot(mask.words, tqi_bits_leaf(state, mask.ordinal));
            CHECK(!tqi_mask_any(&mask), "INV-9: clear %llu has a row that is not clearing",
                  (unsigned long long)clearing->core.id);
        }
        for (uint32_t i = 0; i < clearing->units_cap; i++)
            waiting += clearing->units[i].clearing != NULL;
        CHECK(waiting == clearing->core.waiting_cnt,
              "INV-9: clear %llu waits for %u units, %u are to answer",
              (unsigned long long)clearing->core.id, clearing->core.waiting_cnt, waiting);
    }
    CHECK(rows == tqi_bits_count(state),
          "INV-9: partition '%s' has %llu rows clearing, its clears have %llu", part->name,
          (unsigned long long)tqi_bits_count(state), (unsigned long long)rows);
    return true;
}

static bool check_parts(const tqi_list_t *parts, tqi_err_t *err)
{
    tqi_list_each(parts, node)
    {
        const part_t *part = tqi_container_of(node, part_t, node);

        if (!tqi_partition_check(&part->table, err) || !tqi_grant_check(&part->table, err) ||
            !check_puts(part, err) || !check_clears(part, err)) {
            tqi_err_prefix(err, "partition '%.*s'", part_show(part), part->name);
            return false;
        }
        CHECK(part->queue.cnt == 0 || tqi_node_is_linked(&part->run_node),
              "partition '%s' has a queue and is not runnable", part->name);
    }
    return true;
}

static bool check_sessions(const tqi_controller_t *ctl, tqi_err_t *err)
{
    for (tqi_map_u64_item_t *item = tqi_map_u64_first(&ctl->sessions); item;
         item = tqi_map_u64_next(item)) {
        const session_t *session = item->value;

        CHECK(session->peer == 0 || tqi_map_u64_get(&ctl->peers, session->peer) == session,
              "session %llu is not found by its connection", (unsigned long long)session->id);
        for (tqi_map_u64_item_t *at = tqi_map_u64_first(&session->grants); at;
             at = tqi_map_u64_next(at)) {
            const grant_t *grant = at->value;

            CHECK(grant->session == session && grant->core.state == TQI_GRANT_PROVISIONAL,
                  "INV-8: session %llu keeps a grant that is not provisional",
                  (unsigned long long)session->id);
        }
        tqi_list_each(&session->puts, node)
        {
            const put_t *put = tqi_container_of(node, put_t, in_session);

            CHECK(put->session == session && tqi_map_u64_get(&ctl->puts, put->id) == put,
                  "put %llu is not found by its id", (unsigned long long)put->id);
        }
    }
    return true;
}

bool tqi_controller_check(const tqi_controller_t *ctl, tqi_err_t *err)
{
    return check_parts(&ctl->parts, err) && check_parts(&ctl->dying, err) &&
           check_sessions(ctl, err);
}
