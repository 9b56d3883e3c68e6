/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be read, judged from outside: from what callers asked for, when, and what they were told.
 *
 * Every cell's bytes name the put that made them (its serial), the row by what the put knew of it
 * (its key, its index, or its place in the put), and the field; the rest is a pattern that follows
 * from those. So a reader's bytes say which put they are of, and three things can be asked: is that
 * this row, this field, this store? Was it published, ever? Was it gone before the read began?
 *
 *   INV-21  a read returns bytes of that row, that field, that store, and of one put
 *   INV-22  nothing is readable before it was published: a put that failed is seen by nobody, but
 *           where it replaced what was published
 *   INV-23  what was acknowledged stays while its unit lives, until it is replaced or cleared
 *   INV-24  what was replaced or cleared before a read began is not read
 *   INV-32  a row's key and tags are those that were given to that row, and the latest
 *
 * Tags are judged as fields are: a put writes the tag "n", TAGS the tag "t", and their values name
 * whose they are.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/vec.h"
#include "sys/env_malloc.h"
#include "world.h"

#define MAGIC 0x51544c43u

typedef struct head {
    uint32_t magic;
    uint16_t part;
    uint16_t field;
    uint64_t serial;
    uint64_t ident; /* key, row, or 0 */
    uint32_t ord;
    uint32_t len;
} head_t;

/* What a row is, once it is known. */
typedef struct binding {
    uint32_t part;
    uint32_t key;    /* KEYS: none known */
    uint64_t serial; /* of the IDENT_NEW put that made it; 0: not known */
    uint32_t ord;
} binding_t;

struct model {
    world_t *w;
    TQI_VEC(put_record_t *) puts;
    TQI_VEC(clear_record_t *) clears;
    tqi_map_u64_t rows; /* row -> binding_t, of the present store */
    tqi_map_u64_t made; /* serial * ROWS_MAX + ord -> row + 1 */
};

static void binding_free(void *ctx, void *value)
{
    (void)ctx;
    free(value);
}

model_t *model_new(world_t *w)
{
    model_t *m = calloc(1, sizeof *m);

    tqi_assert(m);
    m->w = w;
    tqi_vec_init(&m->puts, tqi_env_malloc());
    tqi_vec_init(&m->clears, tqi_env_malloc());
    tqi_map_u64_init(&m->rows, tqi_env_malloc());
    tqi_map_u64_init(&m->made, tqi_env_malloc());
    return m;
}

void model_new_store(model_t *m)
{
    tqi_map_u64_fini(&m->rows, binding_free, NULL);
    tqi_map_u64_fini(&m->made, NULL, NULL);
    tqi_map_u64_init(&m->rows, tqi_env_malloc());
    tqi_map_u64_init(&m->made, tqi_env_malloc());
}

void model_free(model_t *m)
{
    model_new_store(m);
    for (size_t i = 0; i < m->puts.len; i++)
        free(m->puts.at[i]);
    for (size_t i = 0; i < m->clears.len; i++)
        free(m->clears.at[i]);
    tqi_vec_fini(&m->puts);
    tqi_vec_fini(&m->clears);
    free(m);
}

put_record_t *model_put(model_t *m)
{
    put_record_t *put = calloc(1, sizeof *put);

    tqi_assert(put && tqi_vec_push(&m->puts, put) == TQ_OK);
    put->serial = m->puts.len;
    put->submit_ns = tqi_sim_now(m->w->sim);
    put->done_ns = UINT64_MAX;
    put->losses = m->w->memory_losses;
    for (uint32_t i = 0; i < ROWS_MAX; i++) {
        put->rows[i] = TQ_ROW_NONE;
        put->keys[i] = KEYS;
    }
    return put;
}

clear_record_t *model_clear(model_t *m)
{
    clear_record_t *clear = calloc(1, sizeof *clear);

    tqi_assert(clear && tqi_vec_push(&m->clears, clear) == TQ_OK);
    clear->submit_ns = tqi_sim_now(m->w->sim);
    clear->asked_of = m->w->controller->life;
    clear->done_ns = UINT64_MAX;
    return clear;
}

/* ---- bytes ------------------------------------------------------------------------------------- */

size_t model_cell_len(const put_record_t *put, uint32_t ord, uint32_t field)
{
    static const uint32_t lens[] = {40, 100, 4000, 20000, 70000, 140000};
    uint64_t of[3] = {put->serial, put->is_uniform ? 0 : ord, field};
    uint64_t hash = tqi_hash_bytes(of, sizeof of, 7);

    if (field >= FIELDS)
        return sizeof(head_t);
    if (!put->is_uniform && hash % 16 == 0)
        return 0;
    return sizeof(head_t) + hash / 16 % lens[put->size_class];
}

void model_cell_fill(const put_record_t *put, uint32_t ord, uint32_t field, uint8_t *out)
{
    size_t len = model_cell_len(put, ord, field);
    head_t head = {MAGIC, (uint16_t)put->part, (uint16_t)field, put->serial, 0, ord, (uint32_t)len};
    tqi_rng_t rng;

    if (len == 0)
        return;
    if (put->ident == IDENT_KEY)
        head.ident = put->keys[ord];
    else if (put->ident == IDENT_ROW)
        head.ident = put->rows[ord];
    memcpy(out, &head, sizeof head);
    tqi_rng_init(&rng, tqi_hash_bytes(&head, sizeof head, 1));
    for (size_t at = sizeof head; at < len; at += 8) {
        uint64_t bits = tqi_rng_u64(&rng);
        memcpy(out + at, &bits, len - at < 8 ? len - at : 8);
    }
}

/* ---- questions --------------------------------------------------------------------------------- */

static binding_t *bind(model_t *m, tq_row_t row)
{
    binding_t *b = tqi_map_u64_get(&m->rows, row);

    if (b)
        return b;
    b = calloc(1, sizeof *b);
    tqi_assert(b && tqi_map_u64_put(&m->rows, row, b, NULL) == TQ_OK);
    b->part = PARTITIONS;
    b->key = KEYS;
    return b;
}

static void bind_row(model_t *m, const put_record_t *put, uint32_t ord, tq_row_t row)
{
    world_t *w = m->w;
    binding_t *b = bind(m, row);

    if (b->part != PARTITIONS && b->part != put->part)
        world_fail(w, "INV-21", "row %" PRIu64 " was in %s and is in %s", row,
                   partition_names[b->part], partition_names[put->part]);
    b->part = put->part;
    if (put->ident == IDENT_KEY) {
        if (b->key != KEYS && b->key != put->keys[ord])
            world_fail(w, "INV-21", "row %" PRIu64 " had key k%u and has key k%u", row, b->key,
                       put->keys[ord]);
        b->key = put->keys[ord];
    }
    if (put->ident == IDENT_NEW) {
        uint64_t made = put->serial * ROWS_MAX + ord;
        void *old = tqi_map_u64_get(&m->made, made);
        if (b->serial != 0 && (b->serial != put->serial || b->ord != ord))
            world_fail(w, "INV-21",
                       "row %" PRIu64 " was made by put %" PRIu64 " row %u and by put %" PRIu64
                       " row %u",
                       row, b->serial, b->ord, put->serial, ord);
        if (old && (uintptr_t)old - 1 != row)
            world_fail(w, "INV-21", "row %u of put %" PRIu64 " is row %" PRIu64 " and row %" PRIu64,
                       ord, put->serial, (uint64_t)(uintptr_t)old - 1, row);
        if (!old)
            tqi_assert(tqi_map_u64_put(&m->made, made, (void *)(uintptr_t)(row + 1), NULL) ==
                       TQ_OK);
        b->serial = put->serial;
        b->ord = ord;
    }
}

void model_put_ok(model_t *m, put_record_t *put, const tq_row_t *rows, uint64_t incarnation)
{
    put->incarnation = incarnation;
    for (uint32_t i = 0; i < put->rows_cnt; i++) {
        put->rows[i] = rows[i];
        if (incarnation == m->w->controller->life)
            bind_row(m, put, i, rows[i]);
    }
}

/* The put's place of the row, or ROWS_MAX. */
static uint32_t ord_of(const put_record_t *put, tq_row_t row)
{
    for (uint32_t i = 0; i < put->rows_cnt; i++)
        if (put->rows[i] == row)
            return i;
    return ROWS_MAX;
}

static bool clear_has(const model_t *m, const clear_record_t *clear, uint32_t part, tq_row_t row,
                      uint32_t key)
{
    const binding_t *b = row == TQ_ROW_NONE ? NULL : tqi_map_u64_get(&m->rows, row);

    if (clear->part != part)
        return false;
    if (clear->is_all)
        return true;
    if (key == KEYS && b)
        key = b->key;
    for (uint32_t i = 0; i < clear->cnt; i++)
        if (clear->is_by_key ? clear->keys[i] == key : clear->rows[i] == row)
            return true;
    return false;
}

bool model_is_cleared(model_t *m, uint32_t part, tq_row_t row, uint64_t rs, uint64_t incarnation)
{
    for (size_t i = 0; i < m->clears.len; i++) {
        const clear_record_t *clear = m->clears.at[i];
        if (clear->is_ok && clear->incarnation == incarnation && clear->asked_of == incarnation &&
            clear->done_ns < rs && !clear->is_all && !clear->is_by_key &&
            clear_has(m, clear, part, row, KEYS))
            return true;
    }
    return false;
}

static put_record_t *put_of_cell(model_t *m, uint32_t part, tq_row_t row, uint32_t field,
                                 const uint8_t *data, size_t len, uint32_t *ord)
{
    world_t *w = m->w;
    head_t head;
    put_record_t *put;
    uint8_t *expected;

    if (len < sizeof head)
        world_fail(w, "INV-21", "row %" PRIu64 " field %s has %zu bytes, as no put wrote", row,
                   field_names[field], len);
    memcpy(&head, data, sizeof head);
    if (head.magic != MAGIC || head.serial == 0 || head.serial > m->puts.len)
        world_fail(w, "INV-21", "row %" PRIu64 " field %s has %zu bytes of no put (%08x)", row,
                   field_names[field], len, head.magic);
    put = m->puts.at[head.serial - 1];
    if (put->part != part || head.field != field || !(put->fields_mask >> field & 1) ||
        head.ord >= put->rows_cnt)
        world_fail(w, "INV-21",
                   "row %" PRIu64 " of %s field %s has bytes of put %" PRIu64
                   " to %s row %u field %u",
                   row, partition_names[part], field_names[field], head.serial,
                   partition_names[put->part], head.ord, head.field);
    *ord = head.ord;
    expected = malloc(model_cell_len(put, head.ord, field) + 1);
    tqi_assert(expected);
    model_cell_fill(put, head.ord, field, expected);
    if (model_cell_len(put, head.ord, field) != len || memcmp(expected, data, len) != 0)
        world_fail(w, "INV-21",
                   "row %" PRIu64 " field %s: %zu bytes are not all of put %" PRIu64 " row %u", row,
                   field_names[field], len, head.serial, head.ord);
    free(expected);
    return put;
}

/* Whether any other put may have published the cell before `before`. */
static bool may_be_published(model_t *m, const put_record_t *but, tq_row_t row, uint32_t key,
                             uint32_t field, uint64_t before)
{
    for (size_t i = 0; i < m->puts.len; i++) {
        const put_record_t *q = m->puts.at[i];
        if (q == but || q->part != but->part || !(q->fields_mask >> field & 1) ||
            q->outcome == PUT_FAILED || q->submit_ns > before)
            continue;
        if (ord_of(q, row) != ROWS_MAX)
            return true;
        for (uint32_t k = 0; q->ident == IDENT_KEY && key != KEYS && k < q->rows_cnt; k++)
            if (q->keys[k] == key)
                return true;
        if (q->ident == IDENT_NEW && q->rows[0] == TQ_ROW_NONE)
            return true; /* its rows are not known */
    }
    return false;
}

void model_check_cell(model_t *m, uint32_t part, tq_row_t row, uint32_t field, const uint8_t *data,
                      size_t len, uint64_t rs, uint64_t re, uint64_t incarnation)
{
    world_t *w = m->w;
    put_record_t *put;
    binding_t *b;
    uint32_t ord;

    w->totals.cells_read++;
    if (len == 0) /* says nothing of who wrote it */
        return;
    put = put_of_cell(m, part, row, field, data, len, &ord);
    if (put->ident == IDENT_ROW && put->rows[ord] != row)
        world_fail(w, "INV-21", "row %" PRIu64 " has bytes of row %" PRIu64, row, put->rows[ord]);
    if (put->outcome == PUT_OK && put->incarnation != incarnation)
        world_fail(w, "INV-21", "store %016" PRIx64 " has bytes of store %016" PRIx64, incarnation,
                   put->incarnation);
    if (put->outcome == PUT_OK && put->rows[ord] != row)
        world_fail(w, "INV-21", "row %" PRIu64 " has bytes of row %" PRIu64 " of put %" PRIu64, row,
                   put->rows[ord], put->serial);
    if (incarnation != w->controller->life)
        return; /* a read that ended with its store: rows are numbered anew */
    bind_row(m, put, ord, row);
    b = bind(m, row);
    if (put->submit_ns > re)
        world_fail(w, "INV-21", "put %" PRIu64 " was read before it began", put->serial);
    if (put->outcome == PUT_FAILED && put->done_ns < rs &&
        (field >= FIELDS || !may_be_published(m, put, row, b->key, field, re)))
        world_fail(w, "INV-22",
                   "row %" PRIu64 " field %s is of put %" PRIu64
                   ", which failed, and no other made it",
                   row, field_names[field], put->serial);
    if (put->outcome == PUT_PENDING || put->outcome == PUT_UNKNOWN)
        return; /* it may take effect at any time */
    for (size_t i = 0; i < m->puts.len; i++) {
        const put_record_t *q = m->puts.at[i];
        if (q->outcome == PUT_OK && q->incarnation == incarnation && q->submit_ns > put->done_ns &&
            q->done_ns < rs && (q->fields_mask >> field & 1) && q->part == part &&
            ord_of(q, row) != ROWS_MAX)
            world_fail(w, put->outcome == PUT_OK ? "INV-24" : "INV-23",
                       "row %" PRIu64 " field %s is of put %" PRIu64 " (%s), which put %" PRIu64
                       " had replaced before the read began",
                       row, field_names[field], put->serial,
                       put->outcome == PUT_OK ? "acknowledged" : "failed", q->serial);
    }
    for (size_t i = 0; i < m->clears.len; i++) {
        const clear_record_t *c = m->clears.at[i];
        if (c->is_ok && c->incarnation == incarnation && c->submit_ns > put->done_ns &&
            c->done_ns < rs && put->outcome == PUT_OK && clear_has(m, c, part, row, KEYS))
            world_fail(w, "INV-24",
                       "row %" PRIu64 " of put %" PRIu64 " was cleared before it was read", row,
                       put->serial);
    }
}

bool model_must_exist(model_t *m, uint32_t part, tq_row_t row, uint32_t key, uint32_t field,
                      uint64_t rs, uint64_t re)
{
    world_t *w = m->w;

    for (size_t i = 0; i < m->puts.len; i++) {
        const put_record_t *put = m->puts.at[i];
        bool is_cleared = false;
        if (put->outcome != PUT_OK || put->part != part || !(put->fields_mask >> field & 1) ||
            put->done_ns >= rs || put->incarnation != w->controller->life ||
            put->losses != w->memory_losses)
            continue;
        if (key != KEYS) {
            bool has_key = false;
            for (uint32_t k = 0; put->ident == IDENT_KEY && k < put->rows_cnt; k++)
                has_key |= put->keys[k] == key;
            if (!has_key)
                continue;
        } else if (ord_of(put, row) == ROWS_MAX) {
            continue;
        }
        for (size_t c = 0; c < m->clears.len && !is_cleared; c++) {
            const clear_record_t *clear = m->clears.at[c];
            uint64_t end_ns = clear->is_ok ? clear->done_ns : UINT64_MAX;
            is_cleared = clear->submit_ns <= re && end_ns >= put->submit_ns &&
                         clear->part == part &&
                         (clear->is_all || clear_has(m, clear, part, row, key) ||
                          (key != KEYS && !clear->is_by_key));
        }
        if (!is_cleared)
            return true;
    }
    return false;
}

bool model_has_clear(model_t *m, uint32_t part, uint64_t rs, uint64_t re)
{
    for (size_t i = 0; i < m->clears.len; i++) {
        const clear_record_t *clear = m->clears.at[i];
        uint64_t end_ns = clear->is_ok ? clear->done_ns : UINT64_MAX;
        if (clear->part == part && clear->submit_ns <= re && end_ns >= rs)
            return true;
    }
    return false;
}

tq_row_t model_some_row(model_t *m, uint32_t part)
{
    tq_row_t row = TQ_ROW_NONE;
    uint32_t seen = 0;

    for (size_t i = m->puts.len > 40 ? m->puts.len - 40 : 0; i < m->puts.len; i++) {
        const put_record_t *put = m->puts.at[i];
        if (put->outcome == PUT_OK && put->part == part &&
            put->incarnation == m->w->controller->life && world_between(m->w, 0, seen++) == 0)
            row = put->rows[world_between(m->w, 0, put->rows_cnt - 1)];
    }
    return row;
}

/* ---- keys and tags ----------------------------------------------------------------------------- */

void model_check_key(model_t *m, uint32_t part, tq_row_t row, uint32_t key, uint64_t incarnation)
{
    world_t *w = m->w;
    binding_t *b;

    if (incarnation != w->controller->life)
        return;
    b = bind(m, row);
    if (b->part != PARTITIONS && b->part != part)
        world_fail(w, "INV-32", "row %" PRIu64 " of %s is listed in %s", row,
                   partition_names[b->part], partition_names[part]);
    b->part = part;
    /* A row that was made ahead gets its key when it is handed out. */
    if (key == KEYS)
        return;
    if (b->key != KEYS && b->key != key)
        world_fail(w, "INV-32", "row %" PRIu64 " has key k%u, and is listed with k%u", row, b->key,
                   key);
    b->key = key;
}

/* {"n": bin} or {"t": bin}. */
void model_fill_tags(const put_record_t *put, uint32_t ord, uint8_t out[MODEL_TAGS_BYTES])
{
    bool is_put = put->fields_mask >> CELL_N & 1;
    uint8_t head[] = {0x81, 0xa1, is_put ? 'n' : 't', 0xc4, sizeof(head_t)};

    tqi_assert(sizeof head + sizeof(head_t) == MODEL_TAGS_BYTES);
    memcpy(out, head, sizeof head);
    model_cell_fill(put, ord, is_put ? CELL_N : CELL_T, out + sizeof head);
}

/* Somebody may have taken away tags that he did not set. */
static bool may_be_stripped(const model_t *m, uint32_t part, uint64_t re)
{
    for (size_t i = 0; i < m->puts.len; i++) {
        const put_record_t *put = m->puts.at[i];
        if (put->is_replace && put->part == part && put->outcome != PUT_FAILED &&
            put->submit_ns <= re)
            return true;
    }
    return false;
}

void model_check_tags(model_t *m, uint32_t part, tq_row_t row, const uint8_t *map, size_t len,
                      uint64_t rs, uint64_t re, uint64_t incarnation)
{
    world_t *w = m->w;
    uint32_t cnt = len > 0 ? map[0] & 0x0f : 0;
    bool has[2] = {false, false};
    size_t at = 1;

    if (len > 0 && (map[0] & 0xf0) != 0x80)
        world_fail(w, "INV-32", "row %" PRIu64 " has tags that are no map", row);
    for (uint32_t i = 0; i < cnt; i++, at += MODEL_TAGS_BYTES - 1) {
        if (at + MODEL_TAGS_BYTES - 1 > len || map[at] != 0xa1 ||
            (map[at + 1] != 'n' && map[at + 1] != 't') || map[at + 2] != 0xc4 ||
            map[at + 3] != sizeof(head_t))
            world_fail(w, "INV-32", "row %" PRIu64 " has tags as nobody set them", row);
        bool is_t = map[at + 1] == 't';
        if (has[is_t])
            world_fail(w, "INV-32", "row %" PRIu64 " has a tag twice", row);
        has[is_t] = true;
        model_check_cell(m, part, row, is_t ? CELL_T : CELL_N, map + at + 4, sizeof(head_t), rs, re,
                         incarnation);
    }
    for (int t = 0; t < 2; t++)
        if (!has[t] && incarnation == w->controller->life && !may_be_stripped(m, part, re) &&
            model_must_exist(m, part, row, KEYS, t ? CELL_T : CELL_N, rs, re))
            world_fail(w, "INV-32", "row %" PRIu64 " of %s has lost its tag '%s'", row,
                       partition_names[part], field_names[t ? CELL_T : CELL_N]);
}
