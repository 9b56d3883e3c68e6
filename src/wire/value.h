/* SPDX-License-Identifier: Apache-2.0 */
/*
 * msgpack: the values inside messages, tags and sampler arguments.
 *
 * Reading is a cursor over bytes: it allocates nothing, believes no count that the remaining bytes
 * could not hold, and has no depth limit of its own (docs/adr/0004 says why this is not msgpack-c).
 * Writing appends to a buffer and always chooses the smallest form.
 */
#ifndef TQI_WIRE_VALUE_H
#define TQI_WIRE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

typedef enum tqi_value_type {
    TQI_VALUE_NIL = 1,
    TQI_VALUE_BOOL,
    TQI_VALUE_UINT, /* also integers that were written signed but are not negative */
    TQI_VALUE_INT,  /* negative */
    TQI_VALUE_F32,
    TQI_VALUE_F64,
    TQI_VALUE_STR,
    TQI_VALUE_BIN,
    TQI_VALUE_EXT,
    TQI_VALUE_ARRAY, /* cnt values follow */
    TQI_VALUE_MAP,   /* cnt keys, each followed by its value */
} tqi_value_type_t;

typedef struct tqi_value {
    tqi_value_type_t type;
    uint32_t cnt; /* ARRAY, MAP: entries that follow */
    union {
        bool is_true;
        uint64_t u;
        int64_t i;
        double f; /* F32, F64 */
    } as;
    const uint8_t *data; /* STR, BIN, EXT: views into the input */
    uint32_t len;
    int8_t ext_type;
} tqi_value_t;

typedef struct tqi_reader {
    const uint8_t *at;
    const uint8_t *end;
} tqi_reader_t;

static inline tqi_reader_t tqi_reader(const void *data, size_t len)
{
    const uint8_t *at = data;
    return (tqi_reader_t){at, at ? at + len : at};
}

/* Reads one head: a whole scalar, or the head of an array or map, whose entries follow. False at
 * the end, on a truncated or reserved form, or where cnt entries can't fit into what is left; the
 * reader then stays where it was. */
bool tqi_value_next(tqi_reader_t *r, tqi_value_t *v);

/* Steps over one whole value, however deep. False: as above. */
bool tqi_value_skip(tqi_reader_t *r);

/* True if the bytes are exactly one whole value. */
bool tqi_value_is_whole(const void *data, size_t len);

/* How many entries the map at the front has; 0 if there is none. */
uint32_t tqi_value_map_cnt(const void *data, size_t len);

/* True if the bytes are exactly one map with at most entries_max entries, whose keys are strings or
 * integers: what a tag map must be. */
bool tqi_value_is_tag_map(const void *data, size_t len, uint32_t entries_max);

/* Finds a string key in a map; out gets the value's head and *span its whole bytes (may be NULL).
 * False if it is not there or the bytes are not a map. The last of equal keys counts. */
bool tqi_value_find(const void *map, size_t len, const char *key, size_t key_len, tqi_value_t *out,
                    const uint8_t **span, size_t *span_len);

/* Appends. E_NO_MEMORY, the buffer then unchanged. */
tq_status_t tqi_put_nil(tqi_buf_t *buf);
tq_status_t tqi_put_bool(tqi_buf_t *buf, bool is_true);
tq_status_t tqi_put_uint(tqi_buf_t *buf, uint64_t value);
tq_status_t tqi_put_int(tqi_buf_t *buf, int64_t value);
tq_status_t tqi_put_f64(tqi_buf_t *buf, double value);
tq_status_t tqi_put_str(tqi_buf_t *buf, const void *data, uint32_t len);
tq_status_t tqi_put_bin(tqi_buf_t *buf, const void *data, uint32_t len);
/* The head of a bin of len bytes that the caller appends itself. */
tq_status_t tqi_put_bin_head(tqi_buf_t *buf, uint32_t len);
tq_status_t tqi_put_map(tqi_buf_t *buf, uint32_t cnt);
tq_status_t tqi_put_array(tqi_buf_t *buf, uint32_t cnt);

/* Appends one whole value as JSON: NaN and infinities as null, BIN and EXT as base64 strings, map
 * keys as strings. Nesting deeper than 64 is written as null. E_MALFORMED, E_NO_MEMORY. */
tq_status_t tqi_value_to_json(const void *data, size_t len, tqi_buf_t *json);
/* Appends a JSON string literal with quotes; bytes that are not UTF-8 become U+FFFD. */
tq_status_t tqi_json_str(tqi_buf_t *json, const void *data, size_t len);

#endif
