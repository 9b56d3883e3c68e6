/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words are few, so that messages speak of the same things: two partitions, three fields, two
 * tasks, eight keys, rows and ids that are mostly below sixteen. Everything else is an edge.
 */
#include "grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "sys/env_malloc.h"
#include "wire/coldesc.h"
#include "wire/value.h"

#define ROWS_MAX 4096u
#define LISTS 12 /* of strings, in one message */
#define NUMBERS 16
#define BODY_MAX 65535u

/* ---- records --------------------------------------------------------------------------------- */

bool fuzz_record_read(const uint8_t *data, size_t len, size_t *at, fuzz_record_t *record)
{
    const uint8_t *head = data + *at;
    if (len - *at < FUZZ_HEAD)
        return false;
    *record = (fuzz_record_t){
        .choice = head[0],
        .kind = tqi_load_le16(head + 3),
        .flags = head[5],
        .seq = head[6],
        .ack = head[7],
        .body = head + FUZZ_HEAD,
        .len = tqi_size_min(tqi_load_le16(head + 1), len - *at - FUZZ_HEAD),
    };
    *at += FUZZ_HEAD + record->len;
    return true;
}

size_t fuzz_record_write(uint8_t *out, size_t cap, const fuzz_record_t *record)
{
    if (record->len > BODY_MAX || cap < FUZZ_HEAD + record->len)
        return 0;
    if (record->len > 0)
        memmove(out + FUZZ_HEAD, record->body, record->len);
    out[0] = record->choice;
    tqi_store_le16(out + 1, (uint16_t)record->len);
    tqi_store_le16(out + 3, record->kind);
    out[5] = record->flags;
    out[6] = record->seq;
    out[7] = record->ack;
    return FUZZ_HEAD + record->len;
}

const tqi_msg_info_t *fuzz_kind(uint16_t kind)
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt), *info = tqi_msg_info(kind);
    return info ? info : &infos[kind % cnt];
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A message under construction, and the memory that its views point at. */
typedef struct maker {
    tqi_rng_t *rng;
    const tqi_msg_info_t *info;
    uint32_t rows_cnt;    /* of every list of rows, and of what goes with one */
    uint32_t fields_cnt;  /* of every list of fields, and of what goes with one */
    uint64_t frame_bytes; /* that the columns describe */
    tqi_buf_t numbers[NUMBERS];
    unsigned numbers_cnt;
    tqi_strs_builder_t lists[LISTS];
    unsigned lists_cnt;
} maker_t;

static void maker_init(maker_t *m, const tqi_msg_info_t *info, tqi_rng_t *rng)
{
    memset(m, 0, sizeof *m);
    m->rng = rng;
    m->info = info;
    for (unsigned i = 0; i < NUMBERS; i++)
        tqi_buf_init(&m->numbers[i], tqi_env_malloc());
    for (unsigned i = 0; i < LISTS; i++)
        tqi_strs_builder_init(&m->lists[i], tqi_env_malloc());
}

static void maker_fini(maker_t *m)
{
    for (unsigned i = 0; i < NUMBERS; i++)
        tqi_buf_fini(&m->numbers[i]);
    for (unsigned i = 0; i < LISTS; i++)
        tqi_strs_builder_fini(&m->lists[i]);
}

static bool chance(maker_t *m, unsigned in)
{
    return tqi_rng_below(m->rng, in) == 0;
}

static uint32_t pick_cnt(maker_t *m)
{
    switch (tqi_rng_below(m->rng, 16)) {
    case 0:
        return 0;
    case 1:
        return (uint32_t)tqi_rng_below(m->rng, 200);
    case 2:
        return (uint32_t)tqi_rng_below(m->rng, ROWS_MAX);
    default:
        return 1 + (uint32_t)tqi_rng_below(m->rng, 5);
    }
}

static uint64_t pick_number(maker_t *m)
{
    switch (tqi_rng_below(m->rng, 12)) {
    case 0:
        return UINT64_C(1) << tqi_rng_below(m->rng, 64);
    case 1:
        return (UINT64_C(1) << tqi_rng_below(m->rng, 64)) - 1;
    case 2:
        return tqi_rng_u64(m->rng);
    case 3:
        return tqi_rng_below(m->rng, 100000);
    default:
        return tqi_rng_below(m->rng, 16);
    }
}

static bool is_named(const char *name, const char *const *names)
{
    while (*names && strcmp(name, *names) != 0)
        names++;
    return *names != NULL;
}

static uint32_t pick_u32(maker_t *m, const char *name)
{
    static const uint32_t rows[] = {0, 1, 2, 3, 4, 5, 8, 1024, 1025, 4097, 65536};
    static const uint32_t waits[] = {0, 1, 10, 1000, 30000, UINT32_MAX};
    if (strcmp(name, "rows_cnt") == 0 || strcmp(name, "rows_max") == 0)
        return rows[tqi_rng_below(m->rng, chance(m, 8) ? tqi_array_len(rows) : 7)];
    if (strcmp(name, "wait_ms") == 0)
        return waits[tqi_rng_below(m->rng, tqi_array_len(waits))];
    if (strcmp(name, "inline_max") == 0)
        return chance(m, 2) ? 0 : TQ_INLINE_BYTES_MAX;
    if (strncmp(name, "version", 7) == 0 && !chance(m, 16))
        return 1;
    if (chance(m, 12))
        return (uint32_t)pick_number(m);
    return (uint32_t)tqi_rng_below(m->rng, 4);
}

static uint64_t pick_u64(maker_t *m, const char *name)
{
    static const char *const sizes[] = {"capacity_bytes", "free_bytes", "payload_bytes", NULL};
    static const char *const stores[] = {"incarnation_wanted", "store_incarnation", NULL};
    if (is_named(name, sizes) && !chance(m, 4))
        return UINT64_C(1) << tqi_rng_below(m->rng, 40);
    if (is_named(name, stores) && !chance(m, 8))
        return 0;
    return pick_number(m);
}

/* A tag map, or the map of a sampler's arguments: small, and now and then none at all. */
static void put_map(maker_t *m, tqi_buf_t *buf)
{
    static const char *const keys[] = {"a", "b", "dp_rank", "n", "seqlen"};
    uint32_t cnt = (uint32_t)tqi_rng_below(m->rng, chance(m, 16) ? 300 : 4);
    if (chance(m, 20)) {
        tqi_put_array(buf, cnt);
        return;
    }
    tqi_put_map(buf, cnt);
    for (uint32_t i = 0; i < cnt; i++) {
        const char *key = keys[tqi_rng_below(m->rng, tqi_array_len(keys))];
        if (chance(m, 4))
            tqi_put_int(buf, (int64_t)pick_number(m));
        else
            tqi_put_str(buf, key, (uint32_t)strlen(key));
        switch (tqi_rng_below(m->rng, 5)) {
        case 0:
            tqi_put_nil(buf);
            break;
        case 1:
            tqi_put_f64(buf, 0.5);
            break;
        case 2:
            tqi_put_str(buf, "value", 5);
            break;
        default:
            tqi_put_int(buf, (int64_t)pick_number(m));
        }
    }
}

/* ---- columns --------------------------------------------------------------------------------- */

typedef struct column_kind {
    tqi_rng_t *rng;
    unsigned layout; /* 0 uniform bytes, 1 uniform tensor, 2 ragged, 3 each its own, 4 empty */
    uint64_t size;
} column_kind_t;

/* May be called more than once for a row: what it says depends on the row alone. */
static void desc_at(void *ctx, uint32_t row, tq_desc_t *desc)
{
    const column_kind_t *kind = ctx;
    memset(desc, 0, sizeof *desc);
    desc->encoding = TQ_ENC_BYTES;
    desc->len = kind->size;
    switch (kind->layout) {
    case 1:
        *desc = (tq_desc_t){.encoding = TQ_ENC_TENSOR,
                            .dtype = TQ_DTYPE_F32,
                            .ndim = 1,
                            .len = 4 * kind->size,
                            .shape = {kind->size}};
        break;
    case 2:
        *desc = (tq_desc_t){.encoding = TQ_ENC_TENSOR,
                            .dtype = TQ_DTYPE_I64,
                            .ndim = 2,
                            .len = 16 * ((row + kind->size) % 5),
                            .shape = {(row + kind->size) % 5, 2}};
        break;
    case 3:
        desc->encoding = (uint8_t)(TQ_ENC_BYTES + row % 4);
        desc->len = (row * 7 + kind->size) % 40;
        break;
    case 4:
        desc->len = 0;
        break;
    default:
        break;
    }
}

static void put_column(maker_t *m, tqi_buf_t *buf)
{
    static const uint64_t sizes[] = {0, 1, 4, 63, 64, 100, 5000, 70000, UINT64_C(1) << 40};
    column_kind_t kind = {m->rng, (unsigned)tqi_rng_below(m->rng, 5),
                          sizes[tqi_rng_below(m->rng, tqi_array_len(sizes) - !chance(m, 16))]};
    tqi_coldesc_t col;
    if (m->rows_cnt == 0)
        return;
    if (tqi_coldesc_encode(buf, m->rows_cnt, desc_at, &kind, NULL) == TQ_OK &&
        tqi_coldesc_decode((tqi_bytes_t){buf->data, (uint32_t)buf->len}, m->rows_cnt, &col, NULL) ==
            TQ_OK)
        m->frame_bytes += col.frame_bytes;
}

static void put_schema(maker_t *m, tqi_buf_t *buf)
{
    tq_schema_t schema = {.encoding = TQ_ENC_TENSOR, .dtype = TQ_DTYPE_F32, .ndim = 1};
    schema.shape[0] = tqi_rng_below(m->rng, 9);
    if (chance(m, 3))
        schema = (tq_schema_t){.encoding = TQ_ENC_TEXT};
    if (!chance(m, 8))
        tqi_schema_encode(buf, &schema);
}

/* ---- fields ---------------------------------------------------------------------------------- */

/* Lists with one item a row, and with one item a field, of the message. */
static const char *const by_row[] = {"rows", "units", "keys", "tags", "has_key", "has_data", NULL};
static const char *const by_field[] = {"fields",  "columns",  "schemas",      "common",
                                       "offsets", "segments", "piece_counts", NULL};

static uint32_t cnt_of(maker_t *m, const tqi_field_info_t *f)
{
    if (chance(m, 24))
        return pick_cnt(m);
    if (is_named(f->name, by_row))
        return m->rows_cnt;
    if (is_named(f->name, by_field))
        return m->fields_cnt;
    return pick_cnt(m);
}

static tqi_strs_t make_strs(maker_t *m, const tqi_field_info_t *f)
{
    static const char *const names[] = {"f", "g", "h"};
    static const char *const addresses[] = {"tcp://unit:1", "tcp://unit:2", "bad", "inproc://u"};
    tqi_strs_builder_t *list = &m->lists[m->lists_cnt++];
    uint32_t cnt = tqi_size_min(cnt_of(m, f), ROWS_MAX), first = (uint32_t)pick_number(m) % 8;
    tqi_buf_t item;
    char text[32];
    tqi_buf_init(&item, tqi_env_malloc());
    tqi_strs_builder_clear(list);
    if (strcmp(f->name, "columns") == 0)
        m->frame_bytes = 0;
    for (uint32_t i = 0; i < cnt; i++) {
        tqi_buf_clear(&item);
        if (strcmp(f->name, "columns") == 0) {
            put_column(m, &item);
        } else if (strcmp(f->name, "schemas") == 0) {
            put_schema(m, &item);
        } else if (strcmp(f->name, "tags") == 0) {
            if (!chance(m, 4))
                put_map(m, &item);
        } else if (strcmp(f->name, "keys") == 0) {
            int n = snprintf(text, sizeof text, "k%u", (first + i) % (cnt + 8));
            tqi_buf_append(&item, text, (size_t)n);
        } else if (strstr(f->name, "addresses")) {
            const char *address = addresses[tqi_rng_below(m->rng, tqi_array_len(addresses))];
            tqi_buf_append(&item, address, strlen(address));
        } else if (i < 3) {
            tqi_buf_append(&item, names[(first + i) % 3], 1);
        } else {
            int n = snprintf(text, sizeof text, "f%u", i);
            tqi_buf_append(&item, text, (size_t)n);
        }
        tqi_strs_builder_add(list, item.data, item.len);
    }
    tqi_buf_fini(&item);
    return tqi_strs_builder_view(list);
}

/* Ascending mostly; "_hi" lists are one above what the list before them has. */
static tqi_u64s_t make_u64s(maker_t *m, const tqi_field_info_t *f)
{
    tqi_buf_t *buf = &m->numbers[m->numbers_cnt++];
    uint32_t cnt = cnt_of(m, f);
    uint64_t first = pick_number(m), step = chance(m, 4) ? pick_number(m) : 1;
    size_t name_len = strlen(f->name);
    if (name_len >= 2 && strcmp(f->name + name_len - 2, "hi") == 0 && m->numbers_cnt >= 2) {
        const tqi_buf_t *lo = buf - 1;
        uint64_t width = 1 + pick_number(m);
        for (size_t at = 0; at + 8 <= lo->len; at += 8) {
            uint64_t value = tqi_load_le64(lo->data + at) + width;
            tqi_buf_append(buf, &value, 8);
        }
        return tqi_u64s((const uint64_t *)(void *)buf->data, (uint32_t)(buf->len / 8));
    }
    for (uint32_t i = 0; i < cnt; i++) {
        uint64_t value = chance(m, 32) ? pick_number(m) : first + i * step;
        tqi_buf_append(buf, &value, 8);
    }
    return tqi_u64s((const uint64_t *)(void *)buf->data, cnt);
}

static tqi_bytes_t make_bytes(maker_t *m, const tqi_field_info_t *f)
{
    tqi_buf_t *buf = &m->numbers[m->numbers_cnt++];
    uint64_t cnt = tqi_rng_below(m->rng, 20);
    if (strcmp(f->name, "sampling") == 0) {
        put_map(m, buf);
    } else {
        if (strcmp(f->name, "inline_bytes") == 0)
            cnt = chance(m, 16) ? cnt : tqi_u64_min(m->frame_bytes, TQ_INLINE_BYTES_MAX);
        else if (strcmp(f->name, "produced") == 0)
            cnt = ((uint64_t)m->rows_cnt * m->fields_cnt + 7) / 8;
        else if (strcmp(f->name, "payload_token") == 0)
            cnt = 16;
        uint8_t *at = tqi_buf_extend(buf, tqi_u64_min(cnt, BODY_MAX));
        if (at)
            memset(at, chance(m, 2) ? 0xff : 0x11, tqi_u64_min(cnt, BODY_MAX));
    }
    return (tqi_bytes_t){buf->data, (uint32_t)buf->len};
}

static tqi_str_t make_str(maker_t *m, const char *name)
{
    static const char *const partitions[] = {"p", "p", "p", "q", ""};
    static const char *const tasks[] = {"t", "t", "u", ""};
    static const char *const words[] = {"word", "", "tcp://unit:1", "host"};
    if (strcmp(name, "partition") == 0)
        return tqi_str(partitions[tqi_rng_below(m->rng, tqi_array_len(partitions))]);
    if (strcmp(name, "task") == 0)
        return tqi_str(tasks[tqi_rng_below(m->rng, tqi_array_len(tasks))]);
    return tqi_str(words[tqi_rng_below(m->rng, tqi_array_len(words))]);
}

static void fill_field(maker_t *m, const tqi_field_info_t *f, void *at)
{
    tqi_buf_t *buf;
    uint32_t cnt;
    switch (f->type) {
    case TQI_TYPE_u64:
        *(uint64_t *)at = pick_u64(m, f->name);
        break;
    case TQI_TYPE_u32:
        *(uint32_t *)at = pick_u32(m, f->name);
        break;
    case TQI_TYPE_bool:
        /* What ends things is rarer than what makes them. */
        *(bool *)at =
            chance(m, strcmp(f->name, "is_all") == 0 || strcmp(f->name, "is_abort") == 0 ? 8 : 2);
        break;
    case TQI_TYPE_bytes:
        *(tqi_bytes_t *)at = make_bytes(m, f);
        break;
    case TQI_TYPE_str:
        *(tqi_str_t *)at = make_str(m, f->name);
        break;
    case TQI_TYPE_u64s:
        *(tqi_u64s_t *)at = make_u64s(m, f);
        break;
    case TQI_TYPE_u32s:
        buf = &m->numbers[m->numbers_cnt++];
        cnt = cnt_of(m, f);
        for (uint32_t i = 0; i < cnt; i++) {
            uint32_t value = chance(m, 32) ? (uint32_t)pick_number(m) : 1 + i % 2;
            tqi_buf_append(buf, &value, 4);
        }
        *(tqi_u32s_t *)at = tqi_u32s((const uint32_t *)(void *)buf->data, cnt);
        break;
    case TQI_TYPE_u8s:
        buf = &m->numbers[m->numbers_cnt++];
        cnt = cnt_of(m, f);
        for (uint32_t i = 0; i < cnt; i++)
            tqi_buf_append(buf, i % 2 ? "\0" : "\1", 1);
        *(tqi_u8s_t *)at = (tqi_u8s_t){buf->data, cnt};
        break;
    case TQI_TYPE_strs:
        *(tqi_strs_t *)at = make_strs(m, f);
        break;
    }
}

/* The struct as a body in out; 0 where the catalogue's limits, or cap, don't take it. */
static size_t encode(const tqi_msg_info_t *info, const void *msg, uint8_t *out, size_t cap)
{
    tqi_envelope_t env = {.kind = (uint16_t)info->kind};
    tqi_buf_t frame;
    size_t len = 0;
    tqi_buf_init(&frame, tqi_env_malloc());
    if (tqi_msg_encode(&frame, &env, NULL, msg, NULL) == TQ_OK) {
        len = frame.len - TQI_ENVELOPE_BYTES;
        if (len <= tqi_size_min(cap, BODY_MAX))
            memcpy(out, frame.data + TQI_ENVELOPE_BYTES, len);
        else
            len = 0;
    }
    tqi_buf_fini(&frame);
    return len;
}

/* Large enough for any message. */
typedef union any_msg {
#define MSG(Name, number, direction, idempotent, doc) tqi_msg_##Name##_t Name;
#define F(Name, key, type, member, max, doc)
#define MSG_END(Name)
#include "wire/catalogue.def"
#undef MSG
#undef F
#undef MSG_END
} any_msg_t;

size_t fuzz_body_make(const tqi_msg_info_t *info, tqi_rng_t *rng, uint8_t *out, size_t cap)
{
    any_msg_t msg;
    maker_t m;
    maker_init(&m, info, rng);
    m.rows_cnt = pick_cnt(&m);
    m.fields_cnt = chance(&m, 20) ? pick_cnt(&m) : (uint32_t)tqi_rng_below(rng, 4);
    memset(&msg, 0, sizeof msg);
    for (uint32_t i = 0; i < info->fields_cnt; i++)
        if (!chance(&m, 6))
            fill_field(&m, &info->fields[i], (char *)&msg + info->fields[i].offset);
    size_t len = encode(info, &msg, out, cap);
    maker_fini(&m);
    return len;
}

size_t fuzz_body_change(const tqi_msg_info_t *info, tqi_rng_t *rng, uint8_t *body, size_t len,
                        size_t cap)
{
    any_msg_t msg;
    maker_t m;
    tqi_envelope_t env = {.body = body, .body_len = (uint32_t)len};
    if (info->fields_cnt == 0 || tqi_msg_decode(&env, (uint32_t)info->kind, &msg, NULL) != TQ_OK)
        return fuzz_body_make(info, rng, body, cap);
    maker_init(&m, info, rng);
    m.rows_cnt = pick_cnt(&m);
    m.fields_cnt = (uint32_t)tqi_rng_below(rng, 4);
    for (uint32_t i = 0; i < info->fields_cnt; i++) {
        const tqi_field_info_t *f = &info->fields[i];
        const void *at = (const char *)&msg + f->offset;
        if (f->type == TQI_TYPE_u64s && strcmp(f->name, "rows") == 0)
            m.rows_cnt = ((const tqi_u64s_t *)at)->cnt;
        if (f->type == TQI_TYPE_strs && strcmp(f->name, "fields") == 0)
            m.fields_cnt = ((const tqi_strs_t *)at)->cnt;
    }
    for (uint64_t n = 1 + tqi_rng_below(rng, 2); n > 0; n--) {
        const tqi_field_info_t *f = &info->fields[tqi_rng_below(rng, info->fields_cnt)];
        fill_field(&m, f, (char *)&msg + f->offset);
    }
    /* The views point into body, which is written only when all of it has been read. */
    uint8_t *copy = malloc(BODY_MAX);
    size_t made = copy ? encode(info, &msg, copy, cap) : 0;
    if (made > 0)
        memcpy(body, copy, made);
    free(copy);
    maker_fini(&m);
    return made > 0 ? made : len;
}

/* ---- stories --------------------------------------------------------------------------------- */

#define RECORDS_MAX 2048

typedef struct story {
    size_t at[RECORDS_MAX + 1]; /* where each begins, and the end */
    size_t cnt;
} story_t;

static void story_read(story_t *story, const uint8_t *data, size_t len)
{
    fuzz_record_t record;
    size_t at = 0;
    story->cnt = 0;
    story->at[0] = 0;
    while (story->cnt < RECORDS_MAX && fuzz_record_read(data, len, &at, &record))
        story->at[++story->cnt] = at;
}

/* Replaces bytes [from, to) by piece; the length, unchanged where it does not fit. */
static size_t splice(uint8_t *data, size_t len, size_t cap, size_t from, size_t to,
                     const uint8_t *piece, size_t piece_len)
{
    if (len - (to - from) + piece_len > cap)
        return len;
    memmove(data + from + piece_len, data + to, len - to);
    if (piece_len > 0)
        memcpy(data + from, piece, piece_len);
    return len - (to - from) + piece_len;
}

static const tqi_msg_info_t *pick_kind(tqi_rng_t *rng,
                                       bool (*is_wanted)(const tqi_msg_info_t *info))
{
    uint32_t cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&cnt);
    for (;;) {
        const tqi_msg_info_t *info = &infos[tqi_rng_below(rng, cnt)];
        if (is_wanted(info) || tqi_rng_below(rng, 50) == 0)
            return info;
    }
}

size_t fuzz_story_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng,
                         bool (*is_wanted)(const tqi_msg_info_t *info))
{
    static story_t story;
    static uint8_t piece[FUZZ_HEAD + BODY_MAX];
    fuzz_record_t record;
    story_read(&story, data, len);
    size_t i = story.cnt > 0 ? tqi_rng_below(rng, story.cnt) : 0, at = story.at[i];
    unsigned what = story.cnt == 0 ? 0 : (unsigned)tqi_rng_below(rng, 10);
    if (what <= 2) { /* one more */
        const tqi_msg_info_t *info = pick_kind(rng, is_wanted);
        record = (fuzz_record_t){
            .kind = (uint16_t)info->kind,
            .choice = (uint8_t)(tqi_rng_below(rng, 4) |
                                (tqi_rng_below(rng, 8) == 0 ? tqi_rng_below(rng, 64) << 2 : 0)),
            .seq = (uint8_t)tqi_rng_below(rng, 64),
            .body = piece + FUZZ_HEAD};
        if (tqi_rng_below(rng, 4) == 0) {
            record.flags = (uint8_t)tqi_rng_u64(rng);
            record.ack = (uint8_t)tqi_rng_u64(rng);
        }
        record.len = fuzz_body_make(info, rng, piece + FUZZ_HEAD, BODY_MAX);
        size_t n = fuzz_record_write(piece, sizeof piece, &record);
        size_t to = tqi_rng_below(rng, 3) == 0 ? at : story.at[story.cnt];
        return splice(data, len, cap, to, to, piece, n);
    }
    size_t from = at;
    (void)fuzz_record_read(data, len, &at, &record);
    if (what <= 6) { /* another body */
        memcpy(piece + FUZZ_HEAD, record.body, record.len);
        record.body = piece + FUZZ_HEAD;
        record.len =
            fuzz_body_change(fuzz_kind(record.kind), rng, piece + FUZZ_HEAD, record.len, BODY_MAX);
        size_t n = fuzz_record_write(piece, sizeof piece, &record);
        return splice(data, len, cap, from, at, piece, n);
    }
    switch (what) {
    case 7: { /* another head */
        static const uint8_t places[] = {0, 5, 6, 7};
        data[from + places[tqi_rng_below(rng, 4)]] = (uint8_t)tqi_rng_u64(rng);
        return len;
    }
    case 8: { /* the same once more, elsewhere; perhaps by another peer, perhaps sent again */
        size_t n = at - from, to = story.at[tqi_rng_below(rng, story.cnt + 1)];
        memcpy(piece, data + from, n);
        if (tqi_rng_below(rng, 2) == 0)
            piece[0] = (uint8_t)((piece[0] & ~3u) | tqi_rng_below(rng, 4));
        if (tqi_rng_below(rng, 2) == 0)
            piece[6]++;
        return splice(data, len, cap, to, to, piece, n);
    }
    default:
        return splice(data, len, cap, from, at, NULL, 0);
    }
}
