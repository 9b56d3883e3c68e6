/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table against a naive model: one struct a row, one byte a cell. Random operations, fixed seeds,
 * everything compared after each.
 */
#include "core/partition.h"

#include <string.h>

#include "core/grant.h"
#include "core/ready.h"
#include "core/waiter.h"
#include "unit.h"

#define ROWS_MAX 6000u
#define FIELDS 4u
#define TASKS 2u
#define UNITS 3u

static const char *const field_names[FIELDS] = {"a", "b", "c", "d"};
static const char *const task_names[TASKS] = {"t", "u"};

typedef struct model_row {
    tqi_row_state_t state;
    bool is_unlisted;
    bool is_ahead;
    bool produced[FIELDS];
    bool consumed[TASKS];
    uint32_t unit;
    uint32_t pending;
    uint32_t key; /* 0: none; else "k<key>" */
} model_row_t;

typedef struct model {
    model_row_t rows[ROWS_MAX];
    uint64_t cnt;
    bool is_lost[UNITS + 1];
    uint32_t key_last;
} model_t;

typedef struct world {
    unit_env_t env;
    tqi_index_source_t source;
    tqi_partition_t p;
    model_t *m;
    tqi_rng_t *rng;
} world_t;

static bool is_live(const model_row_t *row)
{
    return row->state == TQI_ROW_RESERVED || row->state == TQI_ROW_ACTIVE;
}

static void key_name(uint32_t key, char out[16])
{
    snprintf(out, 16, "k%u", key);
}

/* ---- comparing ---- */

static void compare_row(world_t *w, uint64_t pos)
{
    const model_row_t *row = &w->m->rows[pos];
    uint32_t unit;
    size_t len;

    unit_check(tqi_partition_state(&w->p, pos) == row->state);
    unit_check(tqi_partition_is_listed(&w->p, pos) == (is_live(row) && !row->is_unlisted));
    for (unsigned f = 0; f < FIELDS; f++) {
        const tqi_field_t *field = tqi_partition_field(&w->p, field_names[f], 1);

        unit_check((field && tqi_bits_test(&field->produced, pos)) == row->produced[f]);
    }
    for (unsigned t = 0; t < TASKS; t++) {
        const tqi_task_t *task = tqi_partition_task(&w->p, task_names[t], 1);

        unit_check((task && tqi_bits_test(&task->consumed, pos)) == row->consumed[t]);
    }
    tqi_partition_units(&w->p, &pos, 1, &unit);
    unit_check(unit == (row->state == TQI_ROW_DEAD ? 0 : row->unit));
    const char *key = tqi_partition_key_of(&w->p, pos, &len);
    unit_check((key != NULL) == (row->key != 0));
    if (key) {
        char name[16];

        key_name(row->key, name);
        unit_check(strlen(name) == len && memcmp(name, key, len) == 0);
        unit_check(tqi_partition_key(&w->p, name, len) == pos);
    }
}

/* Every ready set has what the model says, in order. */
static void compare_ready(world_t *w)
{
    tqi_list_each(&w->p.ready, node)
    {
        tqi_ready_t *set = tqi_container_of(node, tqi_ready_t, node);
        unsigned task = set->task->name[0] == 't' ? 0 : 1;
        uint64_t next = tqi_summary_next(&set->rows, 0), cnt = 0;

        for (uint64_t pos = 0; pos < w->m->cnt; pos++) {
            const model_row_t *row = &w->m->rows[pos];
            bool is_ready =
                row->state == TQI_ROW_ACTIVE && !row->consumed[task] && !w->m->is_lost[row->unit];

            for (uint32_t f = 0; f < set->fields_cnt; f++)
                is_ready = is_ready && row->produced[set->fields[f]->name[0] - 'a'];
            if (!is_ready)
                continue;
            unit_check(next == pos);
            next = tqi_summary_next(&set->rows, pos + 1);
            cnt++;
        }
        unit_check(next == TQI_BITS_NONE);
        unit_check(cnt == tqi_ready_count(set));
    }
}

static void compare(world_t *w)
{
    tqi_err_t err;

    if (!tqi_partition_check(&w->p, &err))
        fail_msg("%s (seed %llu)", err.text, (unsigned long long)unit_seed);
    unit_check(w->p.index.end == w->m->cnt);
    for (uint64_t pos = 0; pos < w->m->cnt; pos++)
        compare_row(w, pos);
    compare_ready(w);
}

/* ---- operations ---- */

/* A random run or scatter of rows inside one block; false if there are no rows. */
static bool random_mask(world_t *w, tqi_mask_t *mask)
{
    uint64_t lo, hi;

    if (w->m->cnt == 0)
        return false;
    lo = tqi_rng_below(w->rng, w->m->cnt);
    *mask = (tqi_mask_t){.ordinal = lo / TQI_BLOCK_ROWS};
    hi = tqi_u64_min((mask->ordinal + 1) * TQI_BLOCK_ROWS, w->m->cnt);
    if (tqi_rng_chance(w->rng, 0.5))
        hi = tqi_u64_min(hi, lo + 1 + tqi_rng_below(w->rng, 300));
    for (uint64_t pos = lo; pos < hi; pos++)
        if (hi - lo < 20 || tqi_rng_chance(w->rng, 0.7))
            tqi_words_set(mask->words, pos % TQI_BLOCK_ROWS);
    return tqi_mask_any(mask);
}

#define for_model(w, mask, row)                                                                    \
    for (uint64_t pos_ = (mask)->ordinal * TQI_BLOCK_ROWS;                                         \
         pos_ < ((mask)->ordinal + 1) * TQI_BLOCK_ROWS && pos_ < (w)->m->cnt; pos_++)              \
        for (model_row_t *row = &(w)->m->rows[pos_];                                               \
             row && tqi_words_test((mask)->words, pos_ % TQI_BLOCK_ROWS); row = NULL)

static void keep_state(world_t *w, tqi_mask_t *mask, tqi_row_state_t one, tqi_row_state_t other)
{
    for_model(w, mask, row)
    {
        if (row->state != one && row->state != other)
            tqi_words_clear(mask->words, pos_ % TQI_BLOCK_ROWS);
    }
}

static void op_take(world_t *w)
{
    uint32_t want = 1 + (uint32_t)tqi_rng_below(w->rng, tqi_rng_chance(w->rng, 0.1) ? 700 : 20);
    bool is_unlisted = tqi_rng_chance(w->rng, 0.5), is_ahead = tqi_rng_chance(w->rng, 0.1);
    uint64_t lo;
    uint32_t got;

    if (w->m->cnt + want > ROWS_MAX)
        return;
    if (is_ahead) {
        unit_check(tqi_partition_prealloc(&w->p, want, NULL) == TQ_OK);
        for (uint32_t i = 0; i < want; i++)
            w->m->rows[w->m->cnt++] = (model_row_t){.state = TQI_ROW_RESERVED, .is_ahead = true};
        return;
    }
    unit_check(tqi_partition_take(&w->p, want, is_unlisted, &lo, &got, NULL) == TQ_OK);
    unit_check(got >= 1 && got <= want);
    for (uint64_t pos = lo; pos < lo + got; pos++) {
        model_row_t *row = &w->m->rows[pos];

        if (pos == w->m->cnt)
            *row = (model_row_t){.state = TQI_ROW_RESERVED, .unit = 0}, w->m->cnt++;
        else
            unit_check(row->is_ahead && row->state == TQI_ROW_RESERVED);
        row->is_ahead = false;
        row->is_unlisted = is_unlisted;
    }
    /* Rows made ahead come first. */
    for (uint64_t pos = 0; pos < lo; pos++)
        unit_check(!w->m->rows[pos].is_ahead);
    if (tqi_rng_chance(w->rng, 0.9)) {
        uint32_t unit = 1 + (uint32_t)tqi_rng_below(w->rng, UNITS);

        unit_check(tqi_partition_place(&w->p, lo, lo + got, unit) == TQ_OK);
        for (uint64_t pos = lo; pos < lo + got; pos++)
            w->m->rows[pos].unit = unit;
    }
}

static void op_publish(world_t *w)
{
    tqi_field_t *fields[FIELDS];
    uint32_t cnt = 0;
    tqi_mask_t mask;
    bool has[FIELDS] = {false};

    if (!random_mask(w, &mask))
        return;
    keep_state(w, &mask, TQI_ROW_RESERVED, TQI_ROW_ACTIVE);
    if (!tqi_mask_any(&mask))
        return;
    for (unsigned f = 0; f < FIELDS; f++)
        if (tqi_rng_chance(w->rng, 0.5)) {
            has[f] = true;
            unit_check(tqi_partition_field_make(&w->p, field_names[f], 1, &fields[cnt++], NULL) ==
                       TQ_OK);
        }
    unit_check(tqi_partition_publish_reserve(&w->p, fields, cnt, &mask) == TQ_OK);
    tqi_partition_publish(&w->p, fields, cnt, &mask);
    for_model(w, &mask, row)
    {
        row->state = TQI_ROW_ACTIVE;
        row->is_unlisted = row->is_ahead = false;
        for (unsigned f = 0; f < FIELDS; f++)
            row->produced[f] = row->produced[f] || has[f];
    }
}

static void op_consume(world_t *w)
{
    unsigned t = (unsigned)tqi_rng_below(w->rng, TASKS);
    tqi_task_t *task;
    tqi_mask_t mask;

    if (!random_mask(w, &mask))
        return;
    keep_state(w, &mask, TQI_ROW_ACTIVE, TQI_ROW_ACTIVE);
    unit_check(tqi_partition_task_make(&w->p, task_names[t], 1, &task, NULL) == TQ_OK);
    bool is_back = tqi_rng_chance(w->rng, 0.4);
    if (is_back) {
        tqi_partition_unconsume(&w->p, task, &mask);
    } else {
        unit_check(tqi_partition_consume_reserve(task, &mask) == TQ_OK);
        tqi_partition_consume(&w->p, task, &mask);
    }
    for_model(w, &mask, row)
    {
        row->consumed[t] = !is_back;
    }
}

static void op_clear(world_t *w)
{
    tqi_mask_t mask, cleared;

    if (!random_mask(w, &mask))
        return;
    tqi_partition_clear(&w->p, &mask, &cleared, NULL, NULL);
    for_model(w, &mask, row)
    {
        unit_check(is_live(row) == tqi_words_test(cleared.words, pos_ % TQI_BLOCK_ROWS));
        if (!is_live(row))
            continue;
        *row = (model_row_t){.state = TQI_ROW_CLEARING, .unit = row->unit, .pending = row->pending};
    }
}

static void op_bury(world_t *w)
{
    tqi_mask_t mask;
    uint64_t block, dead = 0;

    if (!random_mask(w, &mask))
        return;
    if (tqi_rng_chance(w->rng, 0.5))
        memset(mask.words, 0xff, sizeof mask.words);
    keep_state(w, &mask, TQI_ROW_CLEARING, TQI_ROW_CLEARING);
    for (uint64_t pos = mask.ordinal * TQI_BLOCK_ROWS; pos < (mask.ordinal + 1) * TQI_BLOCK_ROWS;
         pos++) {
        if (pos >= w->m->cnt)
            tqi_words_clear(mask.words, pos % TQI_BLOCK_ROWS);
        else
            dead += w->m->rows[pos].state == TQI_ROW_DEAD;
    }
    if (!tqi_mask_any(&mask))
        return;
    dead += tqi_mask_count(&mask);
    unit_check(tqi_partition_bury(&w->p, &mask, &block) == (dead == TQI_BLOCK_ROWS));
    for_model(w, &mask, row)
    {
        *row = (model_row_t){.state = TQI_ROW_DEAD, .pending = row->pending};
    }
    tqi_partition_drop_dead(&w->p);
}

static void op_key(world_t *w)
{
    uint64_t pos;
    char name[16];

    if (w->m->cnt == 0)
        return;
    pos = tqi_rng_below(w->rng, w->m->cnt);
    if (!is_live(&w->m->rows[pos]) || w->m->rows[pos].key != 0)
        return;
    w->m->rows[pos].key = ++w->m->key_last;
    key_name(w->m->key_last, name);
    unit_check(tqi_partition_key_set(&w->p, pos, name, strlen(name)) == TQ_OK);
}

static void op_pend(world_t *w)
{
    tqi_mask_t mask, orphans;

    if (!random_mask(w, &mask))
        return;
    if (tqi_rng_chance(w->rng, 0.6)) {
        keep_state(w, &mask, TQI_ROW_RESERVED, TQI_ROW_ACTIVE);
        if (!tqi_mask_any(&mask))
            return;
        unit_check(tqi_partition_pend(&w->p, &mask) == TQ_OK);
        for_model(w, &mask, row)
        {
            row->pending++;
            row->is_ahead = false;
        }
        return;
    }
    for_model(w, &mask, row)
    {
        /* Not of dead rows: a block that died took their counts along. */
        if (row->pending == 0 || row->state == TQI_ROW_DEAD)
            tqi_words_clear(mask.words, pos_ % TQI_BLOCK_ROWS);
    }
    tqi_partition_unpend(&w->p, &mask, &orphans);
    for_model(w, &mask, row)
    {
        row->pending--;
        unit_check(tqi_words_test(orphans.words, pos_ % TQI_BLOCK_ROWS) ==
                   (row->pending == 0 && row->is_unlisted && row->state == TQI_ROW_RESERVED));
    }
}

static void op_unit(world_t *w)
{
    uint32_t unit = 1 + (uint32_t)tqi_rng_below(w->rng, UNITS);
    tqi_placed_t *placed = tqi_partition_placed(&w->p, unit);
    unsigned what = (unsigned)tqi_rng_below(w->rng, 5);

    if (!placed)
        return;
    for (uint64_t at = tqi_index_first(&w->p.index); at < tqi_index_limit(&w->p.index); at++) {
        if (what == 0)
            tqi_partition_wipe(&w->p, placed, at);
        else
            tqi_partition_absent(&w->p, placed, at, what <= 2);
    }
    if (what != 0) {
        tqi_partition_absent_done(placed, what <= 2);
        w->m->is_lost[unit] = what <= 2;
        return;
    }
    for (uint64_t pos = 0; pos < w->m->cnt; pos++)
        if (w->m->rows[pos].unit == unit)
            memset(w->m->rows[pos].produced, 0, sizeof w->m->rows[pos].produced);
}

static void op_ready(world_t *w)
{
    tqi_field_t *fields[FIELDS];
    uint32_t cnt = 0;
    tqi_task_t *task;
    tqi_ready_t *set;

    unit_check(tqi_partition_task_make(&w->p, task_names[tqi_rng_below(w->rng, TASKS)], 1, &task,
                                       NULL) == TQ_OK);
    for (unsigned f = 0; f < FIELDS; f++)
        if (tqi_rng_chance(w->rng, 0.4) && tqi_partition_field(&w->p, field_names[f], 1))
            fields[cnt++] = tqi_partition_field(&w->p, field_names[f], 1);
    unit_check(tqi_ready_get(&w->p, task, fields, cnt, &set, NULL) == TQ_OK);
    while (!tqi_ready_build(&w->p, set, 1))
        ;
}

static void the_table_does_what_a_naive_model_does(void **state)
{
    static void (*const ops[])(world_t *) = {op_take,  op_take, op_publish, op_publish, op_publish,
                                             op_clear, op_bury, op_consume, op_key,     op_pend,
                                             op_pend,  op_unit, op_ready};
    model_t *model = malloc(sizeof *model);

    (void)state;
    assert_non_null(model);
    for_each_seed(seed, 60)
    {
        tqi_rng_t rng;
        world_t w = {.m = model, .rng = &rng};

        memset(model, 0, sizeof *model);
        tqi_rng_init(&rng, seed);
        unit_env_init(&w.env);
        tqi_partition_init(&w.p, &w.env.env, &w.source);
        for (unsigned i = 0; i < 150; i++) {
            ops[tqi_rng_below(&rng, tqi_array_len(ops))](&w);
            /* Another partition takes blocks in between. */
            if (tqi_rng_chance(&rng, 0.1))
                w.source.next_block++;
            if (i % 5 == 4)
                compare(&w);
        }
        compare(&w);
        tqi_partition_fini(&w.p);
        unit_check(w.env.bytes == 0);
    }
    free(model);
}

/* ---- claims ---- */

typedef struct table {
    unit_env_t env;
    tqi_index_source_t source;
    tqi_partition_t p;
} table_t;

static void table_init(table_t *t)
{
    unit_env_init(&t->env);
    t->source = (tqi_index_source_t){0};
    tqi_partition_init(&t->p, &t->env.env, &t->source);
}

static void table_fini(table_t *t)
{
    tqi_partition_fini(&t->p);
    assert_int_equal(t->env.bytes, 0);
}

static void table_make(table_t *t, uint64_t rows)
{
    uint64_t lo;
    uint32_t got;

    for (uint64_t made = 0; made < rows; made += got) {
        uint32_t want = (uint32_t)tqi_u64_min(TQI_SLICE_ROWS, rows - made);

        assert_int_equal(tqi_partition_take(&t->p, want, false, &lo, &got, NULL), TQ_OK);
    }
}

static void table_publish(table_t *t, const char *name, uint64_t lo, uint64_t hi)
{
    tqi_field_t *field;

    assert_int_equal(tqi_partition_field_make(&t->p, name, strlen(name), &field, NULL), TQ_OK);
    while (lo < hi) {
        uint64_t end = tqi_u64_min(hi, (lo / TQI_BLOCK_ROWS + 1) * TQI_BLOCK_ROWS);
        tqi_mask_t mask = tqi_mask_run(lo, end);

        assert_int_equal(tqi_partition_publish_reserve(&t->p, &field, 1, &mask), TQ_OK);
        tqi_partition_publish(&t->p, &field, 1, &mask);
        lo = end;
    }
}

static uint64_t fetch_words(uint64_t rows)
{
    uint64_t got[32], words;
    tqi_task_t *task;
    tqi_ready_t *set;
    tqi_field_t *field;
    tqi_grant_t grant = {0};
    table_t t;

    table_init(&t);
    table_make(&t, rows);
    /* One row at the front that is never produced, as where a plain scan suffers. */
    table_publish(&t, "a", 1, rows);
    field = tqi_partition_field(&t.p, "a", 1);
    assert_int_equal(tqi_partition_task_make(&t.p, "t", 1, &task, NULL), TQ_OK);
    assert_int_equal(tqi_ready_get(&t.p, task, &field, 1, &set, NULL), TQ_OK);
    while (!tqi_ready_build(&t.p, set, 1000))
        ;
    /* All but the last rows are consumed, so that the front is empty. */
    for (uint64_t lo = 1; lo < rows - 64;) {
        uint64_t end = tqi_u64_min(rows - 64, (lo / TQI_BLOCK_ROWS + 1) * TQI_BLOCK_ROWS);
        tqi_mask_t mask = tqi_mask_run(lo, end);

        assert_int_equal(tqi_partition_consume_reserve(task, &mask), TQ_OK);
        tqi_partition_consume(&t.p, task, &mask);
        lo = end;
    }
    set->rows.words_touched = 0;
    assert_int_equal(tqi_summary_fetch(&set->rows, 0, got, 32), 32);
    words = set->rows.words_touched;
    assert_int_equal(got[0], rows - 64);
    assert_int_equal(tqi_grant_make(&t.p, &grant, task, got, 32), TQ_OK);
    assert_int_equal(tqi_ready_count(set), 32);
    tqi_grant_finish(&grant, TQI_GRANT_EV_ACK);
    tqi_grant_fini(&grant);
    table_fini(&t);
    return words;
}

static void fetching_32_rows_touches_as_few_words_of_10_million_rows_as_of_1_thousand(void **state)
{
    (void)state;
    /* Up to three levels of summary and down again, once for the first word and once for the next. */
    assert_true(fetch_words(1024) <= 16);
    assert_true(fetch_words(1000000) <= 16);
    assert_true(fetch_words(10000000) <= 16);
}

static void an_emptied_partition_costs_one_block_record(void **state)
{
    table_t t;
    tqi_mask_t cleared;
    uint64_t block;
    size_t before;

    (void)state;
    table_init(&t);
    table_make(&t, 1);
    table_publish(&t, "a", 0, 1);
    before = t.env.bytes;
    table_make(&t, 100 * TQI_BLOCK_ROWS - 1);
    table_publish(&t, "a", 1, 100 * TQI_BLOCK_ROWS);
    for (uint64_t at = 0; at < 100; at++) {
        tqi_mask_t mask = tqi_mask_run(at * TQI_BLOCK_ROWS, (at + 1) * TQI_BLOCK_ROWS);

        tqi_partition_clear(&t.p, &mask, &cleared, NULL, NULL);
        assert_true(tqi_partition_bury(&t.p, &cleared, &block));
        assert_int_equal(block, at);
        tqi_partition_drop_dead(&t.p);
    }
    assert_int_equal(tqi_index_first(&t.p.index), 100);
    assert_true(t.env.bytes < before);
    table_fini(&t);
}

static void clearing_all_rows_of_a_field_resets_its_schema_and_keeps_its_name(void **state)
{
    tqi_mask_t mask = tqi_mask_run(0, 4), cleared;
    tqi_field_t *field;
    table_t t;

    (void)state;
    table_init(&t);
    table_make(&t, 4);
    table_publish(&t, "a", 0, 4);
    field = tqi_partition_field(&t.p, "a", 1);
    field->schema = (tq_schema_t){.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_F32};
    mask = tqi_mask_run(0, 3);
    tqi_partition_clear(&t.p, &mask, &cleared, NULL, NULL);
    assert_int_equal(field->schema.dtype, TQ_DTYPE_F32);
    mask = tqi_mask_run(3, 4);
    tqi_partition_clear(&t.p, &mask, &cleared, NULL, NULL);
    assert_int_equal(field->schema.encoding, 0);
    assert_ptr_equal(tqi_partition_field(&t.p, "a", 1), field);
    table_fini(&t);
}

static void a_row_that_comes_back_from_a_lost_unit_is_ready_again(void **state)
{
    tqi_task_t *task;
    tqi_ready_t *set;
    tqi_field_t *field;
    table_t t;

    (void)state;
    table_init(&t);
    table_make(&t, 10);
    assert_int_equal(tqi_partition_place(&t.p, 0, 4, 1), TQ_OK);
    assert_int_equal(tqi_partition_place(&t.p, 4, 10, 2), TQ_OK);
    table_publish(&t, "a", 0, 10);
    field = tqi_partition_field(&t.p, "a", 1);
    assert_int_equal(tqi_partition_task_make(&t.p, "t", 1, &task, NULL), TQ_OK);
    assert_int_equal(tqi_ready_get(&t.p, task, &field, 1, &set, NULL), TQ_OK);
    assert_true(tqi_ready_build(&t.p, set, 10));
    assert_int_equal(tqi_ready_count(set), 10);
    tqi_partition_absent(&t.p, tqi_partition_placed(&t.p, 1), 0, true);
    tqi_partition_absent_done(tqi_partition_placed(&t.p, 1), true);
    assert_int_equal(tqi_ready_count(set), 6);
    tqi_partition_absent(&t.p, tqi_partition_placed(&t.p, 1), 0, false);
    tqi_partition_absent_done(tqi_partition_placed(&t.p, 1), false);
    assert_int_equal(tqi_ready_count(set), 10);
    tqi_partition_wipe(&t.p, tqi_partition_placed(&t.p, 2), 0);
    assert_int_equal(tqi_ready_count(set), 4);
    assert_int_equal(t.p.cells_lost, 6);
    table_fini(&t);
}

static void the_least_recently_used_ready_set_leaves_and_waiters_keep_theirs(void **state)
{
    tqi_waiter_t waiter = {0};
    tqi_field_t *fields[12];
    tqi_ready_t *first = NULL, *set;
    tqi_task_t *task;
    table_t t;

    (void)state;
    table_init(&t);
    table_make(&t, 2);
    for (int i = 0; i < 12; i++) {
        char name[8];

        snprintf(name, sizeof name, "f%d", i);
        table_publish(&t, name, 0, 1);
        fields[i] = tqi_partition_field(&t.p, name, strlen(name));
    }
    assert_int_equal(tqi_partition_task_make(&t.p, "t", 1, &task, NULL), TQ_OK);
    assert_int_equal(tqi_ready_get(&t.p, task, fields, 1, &first, NULL), TQ_OK);
    tqi_waiter_park(&t.p, &waiter, task, first, 2);
    for (int i = 0; i < 12; i++)
        for (int j = i + 1; j < 12; j++) {
            tqi_field_t *pair[2] = {fields[i], fields[j]};

            assert_int_equal(tqi_ready_get(&t.p, task, pair, 2, &set, NULL), TQ_OK);
            assert_true(t.p.ready.cnt <= TQ_PARTITION_READY_SETS_MAX);
        }
    assert_int_equal(tqi_ready_get(&t.p, task, fields, 1, &set, NULL), TQ_OK);
    assert_ptr_equal(set, first);
    tqi_waiter_leave(&waiter);
    table_fini(&t);
}

/* Publishing, clearing and taking rows with the n-th allocation refused leave a whole table. */
static void running_out_of_memory_leaves_a_whole_table(void **state)
{
    (void)state;
    for (uint64_t fail_after = 0; fail_after < 60; fail_after++) {
        tqi_field_t *field = NULL;
        tqi_task_t *task = NULL;
        tqi_ready_t *set = NULL;
        tqi_mask_t mask, cleared;
        uint64_t lo = 0;
        uint32_t got = 0;
        tqi_err_t err;
        table_t t;

        table_init(&t);
        t.env.fail_after = fail_after;
        if (tqi_partition_task_make(&t.p, "t", 1, &task, &err) == TQ_OK &&
            tqi_partition_take(&t.p, 1500, true, &lo, &got, &err) == TQ_OK &&
            tqi_partition_place(&t.p, lo, lo + 700, 1) == TQ_OK &&
            tqi_partition_place(&t.p, lo + 700, lo + 1500, 2) == TQ_OK &&
            tqi_partition_field_make(&t.p, "a", 1, &field, &err) == TQ_OK &&
            tqi_ready_get(&t.p, task, &field, 1, &set, &err) == TQ_OK) {
            mask = tqi_mask_run(0, 1024);
            if (tqi_partition_publish_reserve(&t.p, &field, 1, &mask) == TQ_OK)
                tqi_partition_publish(&t.p, &field, 1, &mask);
            (void)tqi_partition_key_set(&t.p, 3, "key", 3);
            (void)tqi_partition_take(&t.p, 3000, false, &lo, &got, &err);
            tqi_partition_clear(&t.p, &mask, &cleared, NULL, NULL);
        }
        if (!tqi_partition_check(&t.p, &err))
            fail_msg("%s (refused after %llu)", err.text, (unsigned long long)fail_after);
        table_fini(&t);
    }
}

/* What the checks of tables are worth: each of these is one word of a whole table made wrong. */
static void break_two_states(tqi_partition_t *p)
{
    assert_int_equal(tqi_bits_set(&p->state[TQI_ROW_CLEARING], 3), TQ_OK);
}
static void break_no_state(tqi_partition_t *p)
{
    assert_true(tqi_bits_clear(&p->state[TQI_ROW_ACTIVE], 1));
}
static void break_unlisted(tqi_partition_t *p)
{
    assert_int_equal(tqi_bits_set(&p->unlisted, 1), TQ_OK);
}
static void break_produced(tqi_partition_t *p)
{
    assert_int_equal(tqi_bits_set(&p->fields.at[0]->produced, 9), TQ_OK);
}
static void break_consumed(tqi_partition_t *p)
{
    assert_int_equal(tqi_bits_set(&tqi_partition_task(p, "t", 1)->consumed, 9), TQ_OK);
}
static void break_two_units(tqi_partition_t *p)
{
    assert_int_equal(tqi_bits_set(&p->placed.at[1]->rows, 1), TQ_OK);
}
static void break_other_unit(tqi_partition_t *p)
{
    p->placed.at[0]->unit = 7;
}
static void break_placed_dead(tqi_partition_t *p)
{
    assert_true(tqi_bits_clear(&p->state[TQI_ROW_RESERVED], 8));
    tqi_index_block(&p->index, 0)->dead_cnt++;
}
static void break_unit_in_no_set(tqi_partition_t *p)
{
    assert_true(tqi_bits_clear(&p->placed.at[0]->rows, 1));
}
static void break_absent(tqi_partition_t *p)
{
    assert_int_equal(tqi_bits_set(&p->absent, 1), TQ_OK);
}
static void break_key_count(tqi_partition_t *p)
{
    p->placed.at[0]->is_syncing = true; /* absent rows are not compared meanwhile */
    assert_int_equal(tqi_bits_set(&p->absent, 1), TQ_OK);
    tqi_index_block(&p->index, 0)->keys[2] = NULL;
}
static void break_key_place(tqi_partition_t *p)
{
    tqi_block_t *block = tqi_index_block(&p->index, 0);

    block->keys[5] = block->keys[2];
}
static void break_key_of_dead(tqi_partition_t *p)
{
    tqi_block_t *block = tqi_index_block(&p->index, 0);

    block->keys[20] = block->keys[2];
}
static void break_tags_of_dead(tqi_partition_t *p)
{
    tqi_block_t *block = tqi_index_block(&p->index, 0);

    block->tags[20] = block->tags[2];
}
static void break_pending(tqi_partition_t *p)
{
    tqi_index_block(&p->index, 0)->pending_sum++;
}
static void break_block_order(tqi_partition_t *p)
{
    tqi_index_block(&p->index, 1)->id = tqi_index_block(&p->index, 0)->id;
}
static void break_block_unknown(tqi_partition_t *p)
{
    tqi_index_block(&p->index, 1)->id = p->index.source->next_block;
}
static void break_field_id(tqi_partition_t *p)
{
    p->fields.at[1]->id = 0;
}
static void break_field_name(tqi_partition_t *p)
{
    p->fields.at[1]->name = p->fields.at[0]->name;
}
static void break_field_order(tqi_partition_t *p)
{
    tqi_field_t *first = p->sorted.at[0];

    p->sorted.at[0] = p->sorted.at[1];
    p->sorted.at[1] = first;
}
static tqi_ready_t *ready_set(tqi_partition_t *p)
{
    tqi_field_t *field = p->fields.at[0];
    tqi_ready_t *set;

    assert_int_equal(tqi_ready_get(p, tqi_partition_task(p, "t", 1), &field, 1, &set, NULL), TQ_OK);
    return set;
}
static void break_ready_row(tqi_partition_t *p)
{
    assert_true(tqi_summary_clear(&ready_set(p)->rows, 1));
}
static void break_ready_leaf(tqi_partition_t *p)
{
    tqi_summary_drop_before(&ready_set(p)->rows, 1);
}
static void break_ready_count(tqi_partition_t *p)
{
    ready_set(p)->rows.level[0].count++;
}

static void a_check_of_a_table_finds_what_is_wrong_with_it(void **state)
{
    static const struct {
        void (*make_wrong)(tqi_partition_t *p);
        const char *text;
    } cases[] = {
        {break_two_states, "in two states"},
        {break_no_state, "rows in a state and"},
        {break_unlisted, "unlisted and not reserved"},
        {break_produced, "is produced for a row"},
        {break_consumed, "has consumed a row"},
        {break_two_units, "is on two units"},
        {break_other_unit, "is in the set of 7"},
        {break_placed_dead, "INV-6: dead row at 8 is placed"},
        {break_unit_in_no_set, "is in no set"},
        {break_absent, "not those of lost units"},
        {break_key_count, "0 rows have keys, the map has 1"},
        {break_key_place, "leads elsewhere"},
        {break_key_of_dead, "has a key and is not live"},
        {break_tags_of_dead, "has tags and is not live"},
        {break_pending, "pending puts of block 0"},
        {break_block_order, "not above the one before"},
        {break_block_unknown, "never given out"},
        {break_field_id, "is not where its id says"},
        {break_field_name, "is not where its id says"},
        {break_field_order, "fields are not sorted"},
        {break_ready_row, "is wrong in block 0"},
        {break_ready_leaf, "has no leaf"},
        {break_ready_count, "counts"},
    };
    static const uint8_t tag_map[] = {0x81, 0x01, 0x02};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tqi_mask_t mask = tqi_mask_run(20, 21), cleared;
        tqi_tags_t *tags = NULL;
        tqi_field_t *field;
        tqi_task_t *task;
        tqi_ready_t *set;
        uint64_t block;
        tqi_err_t err;
        table_t t;

        /* Rows 0 to 3 are active, 20 is dead, the others reserved; two units have 0 to 3, and 8. */
        table_init(&t);
        table_make(&t, TQI_BLOCK_ROWS + 10);
        assert_int_equal(tqi_partition_place(&t.p, 0, 4, 1), TQ_OK);
        assert_int_equal(tqi_partition_place(&t.p, 8, 9, 2), TQ_OK);
        table_publish(&t, "a", 0, 4);
        table_publish(&t, "b", 0, 2);
        field = tqi_partition_field(&t.p, "a", 1);
        assert_int_equal(tqi_partition_task_make(&t.p, "t", 1, &task, NULL), TQ_OK);
        assert_int_equal(tqi_ready_get(&t.p, task, &field, 1, &set, NULL), TQ_OK);
        while (!tqi_ready_build(&t.p, set, 1000))
            ;
        assert_int_equal(tqi_partition_key_set(&t.p, 2, "key", 3), TQ_OK);
        assert_int_equal(tqi_partition_tags_reserve(&t.p, 0), TQ_OK);
        assert_int_equal(
            tqi_tags_merge(&t.env.env, NULL, tag_map, sizeof tag_map, true, &tags, NULL), TQ_OK);
        tqi_partition_tags_set(&t.p, 2, tags);
        tqi_partition_clear(&t.p, &mask, &cleared, NULL, NULL);
        assert_false(tqi_partition_bury(&t.p, &cleared, &block));
        assert_true(tqi_partition_check(&t.p, &err));

        cases[i].make_wrong(&t.p);
        if (tqi_partition_check(&t.p, &err))
            fail_msg("\"%s\" is not found", cases[i].text);
        assert_int_equal(err.status, TQ_E_BUG);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" instead of \"%s\"", err.text, cases[i].text);
        if (cases[i].make_wrong == break_tags_of_dead)
            tqi_index_block(&t.p.index, 0)->tags[20] = NULL; /* it has one owner */
        table_fini(&t);
    }
}

static void fields_and_tasks_are_bounded_by_partition(void **state)
{
    tqi_field_t *field;
    tqi_task_t *task;
    tqi_err_t err;
    table_t t;
    char name[16];

    (void)state;
    table_init(&t);
    for (unsigned i = 0; i < TQ_PARTITION_FIELDS_MAX; i++) {
        snprintf(name, sizeof name, "f%u", i);
        assert_int_equal(tqi_partition_field_make(&t.p, name, strlen(name), &field, &err), TQ_OK);
    }
    assert_int_equal(tqi_partition_field_make(&t.p, "f", 1, &field, &err), TQ_E_TOO_LARGE);
    assert_int_equal(tqi_partition_field_make(&t.p, "f0", 2, &field, &err), TQ_OK);
    for (unsigned i = 0; i < TQ_PARTITION_TASKS_MAX; i++) {
        snprintf(name, sizeof name, "t%u", i);
        assert_int_equal(tqi_partition_task_make(&t.p, name, strlen(name), &task, &err), TQ_OK);
    }
    assert_int_equal(tqi_partition_task_make(&t.p, "t", 1, &task, &err), TQ_E_TOO_LARGE);
    assert_int_equal(tqi_partition_task_make(&t.p, "t0", 2, &task, &err), TQ_OK);
    assert_true(tqi_partition_check(&t.p, &err));
    table_fini(&t);
}

static void where_no_row_ever_was_there_is_nothing(void **state)
{
    uint64_t nowhere[] = {50, 5 * TQI_BLOCK_ROWS, UINT64_MAX / 2};
    table_t t;

    (void)state;
    table_init(&t);
    table_make(&t, 10);
    for (size_t i = 0; i < sizeof nowhere / sizeof nowhere[0]; i++) {
        uint32_t unit = 77;
        size_t len;

        assert_null(tqi_partition_key_of(&t.p, nowhere[i], &len));
        assert_null(tqi_partition_tags(&t.p, nowhere[i]));
        assert_false(tqi_partition_is_live(&t.p, nowhere[i]));
        assert_false(tqi_partition_is_listed(&t.p, nowhere[i]));
        assert_int_equal(tqi_partition_state(&t.p, nowhere[i]), TQI_ROW_DEAD);
        tqi_partition_units(&t.p, &nowhere[i], 1, &unit);
        assert_int_equal(unit, 0);
    }
    assert_null(tqi_partition_placed(&t.p, 3));
    table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_does_what_a_naive_model_does),
        cmocka_unit_test(fetching_32_rows_touches_as_few_words_of_10_million_rows_as_of_1_thousand),
        cmocka_unit_test(an_emptied_partition_costs_one_block_record),
        cmocka_unit_test(clearing_all_rows_of_a_field_resets_its_schema_and_keeps_its_name),
        cmocka_unit_test(a_row_that_comes_back_from_a_lost_unit_is_ready_again),
        cmocka_unit_test(the_least_recently_used_ready_set_leaves_and_waiters_keep_theirs),
        cmocka_unit_test(running_out_of_memory_leaves_a_whole_table),
        cmocka_unit_test(a_check_of_a_table_finds_what_is_wrong_with_it),
        cmocka_unit_test(fields_and_tasks_are_bounded_by_partition),
        cmocka_unit_test(where_no_row_ever_was_there_is_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
