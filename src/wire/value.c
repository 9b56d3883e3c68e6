/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/value.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static uint64_t load_be(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

/* Takes `bytes` bytes of a big-endian number after the head byte at *p; false when truncated. */
static bool take_be(const uint8_t **p, const uint8_t *end, unsigned bytes, uint64_t *v)
{
    if ((size_t)(end - *p) < bytes)
        return false;
    *v = load_be(*p, bytes);
    *p += bytes;
    return true;
}

static bool take_data(const uint8_t **p, const uint8_t *end, uint64_t len, tqi_value_t *v)
{
    if ((uint64_t)(end - *p) < len)
        return false;
    v->data = *p;
    v->len = (uint32_t)len;
    *p += len;
    return true;
}

/* Every entry needs at least one byte (a map's two): a count that can't be true is refused before
 * anybody allocates by it. */
static bool take_cnt(const uint8_t *p, const uint8_t *end, uint64_t cnt, tqi_value_type_t type,
                     tqi_value_t *v)
{
    uint64_t bytes_min = type == TQI_VALUE_MAP ? 2 * cnt : cnt;
    if ((uint64_t)(end - p) < bytes_min)
        return false;
    v->type = type;
    v->cnt = (uint32_t)cnt;
    return true;
}

static void set_signed(tqi_value_t *v, int64_t i)
{
    v->type = i < 0 ? TQI_VALUE_INT : TQI_VALUE_UINT;
    v->as.i = i;
}

bool tqi_value_next(tqi_reader_t *r, tqi_value_t *v)
{
    const uint8_t *p = r->at, *end = r->end;
    uint64_t n = 0;
    memset(v, 0, sizeof *v);
    if (p == end)
        return false;
    uint8_t head = *p++;
    bool is_ok = true;

    if (head <= 0x7f) {
        v->type = TQI_VALUE_UINT;
        v->as.u = head;
    } else if (head <= 0x8f) {
        is_ok = take_cnt(p, end, head & 0x0f, TQI_VALUE_MAP, v);
    } else if (head <= 0x9f) {
        is_ok = take_cnt(p, end, head & 0x0f, TQI_VALUE_ARRAY, v);
    } else if (head <= 0xbf) {
        v->type = TQI_VALUE_STR;
        is_ok = take_data(&p, end, head & 0x1f, v);
    } else if (head >= 0xe0) {
        set_signed(v, (int8_t)head);
    } else {
        switch (head) {
        case 0xc0:
            v->type = TQI_VALUE_NIL;
            break;
        case 0xc2:
        case 0xc3:
            v->type = TQI_VALUE_BOOL;
            v->as.is_true = head == 0xc3;
            break;
        case 0xc4:
        case 0xc5:
        case 0xc6:
            v->type = TQI_VALUE_BIN;
            is_ok = take_be(&p, end, 1u << (head - 0xc4), &n) && take_data(&p, end, n, v);
            break;
        case 0xc7:
        case 0xc8:
        case 0xc9:
            v->type = TQI_VALUE_EXT;
            is_ok = take_be(&p, end, 1u << (head - 0xc7), &n) && p < end;
            if (is_ok) {
                v->ext_type = (int8_t)*p++;
                is_ok = take_data(&p, end, n, v);
            }
            break;
        case 0xca: {
            is_ok = take_be(&p, end, 4, &n);
            uint32_t bits = (uint32_t)n;
            float f;
            memcpy(&f, &bits, 4);
            v->type = TQI_VALUE_F32;
            v->as.f = (double)f;
            break;
        }
        case 0xcb:
            is_ok = take_be(&p, end, 8, &n);
            v->type = TQI_VALUE_F64;
            memcpy(&v->as.f, &n, 8);
            break;
        case 0xcc:
        case 0xcd:
        case 0xce:
        case 0xcf:
            is_ok = take_be(&p, end, 1u << (head - 0xcc), &n);
            v->type = TQI_VALUE_UINT;
            v->as.u = n;
            break;
        case 0xd0:
            is_ok = take_be(&p, end, 1, &n), set_signed(v, (int8_t)n);
            break;
        case 0xd1:
            is_ok = take_be(&p, end, 2, &n), set_signed(v, (int16_t)n);
            break;
        case 0xd2:
            is_ok = take_be(&p, end, 4, &n), set_signed(v, (int32_t)n);
            break;
        case 0xd3:
            is_ok = take_be(&p, end, 8, &n), set_signed(v, (int64_t)n);
            break;
        case 0xd4:
        case 0xd5:
        case 0xd6:
        case 0xd7:
        case 0xd8:
            v->type = TQI_VALUE_EXT;
            is_ok = p < end;
            if (is_ok) {
                v->ext_type = (int8_t)*p++;
                is_ok = take_data(&p, end, UINT64_C(1) << (head - 0xd4), v);
            }
            break;
        case 0xd9:
        case 0xda:
        case 0xdb:
            v->type = TQI_VALUE_STR;
            is_ok = take_be(&p, end, 1u << (head - 0xd9), &n) && take_data(&p, end, n, v);
            break;
        case 0xdc:
        case 0xdd:
            is_ok = take_be(&p, end, head == 0xdc ? 2 : 4, &n) &&
                    take_cnt(p, end, n, TQI_VALUE_ARRAY, v);
            break;
        case 0xde:
        case 0xdf:
            is_ok =
                take_be(&p, end, head == 0xde ? 2 : 4, &n) && take_cnt(p, end, n, TQI_VALUE_MAP, v);
            break;
        default:
            is_ok = false; /* 0xc1 is reserved */
        }
    }
    if (is_ok)
        r->at = p;
    return is_ok;
}

bool tqi_value_skip(tqi_reader_t *r)
{
    tqi_reader_t at = *r;
    uint64_t todo = 1; /* values still to read; each has at least a byte, so this can't overflow */
    while (todo > 0) {
        tqi_value_t v;
        if (!tqi_value_next(&at, &v))
            return false;
        todo--;
        if (v.type == TQI_VALUE_ARRAY)
            todo += v.cnt;
        if (v.type == TQI_VALUE_MAP)
            todo += 2 * (uint64_t)v.cnt;
        if (todo > (uint64_t)(at.end - at.at))
            return false;
    }
    *r = at;
    return true;
}

bool tqi_value_is_whole(const void *data, size_t len)
{
    tqi_reader_t r = tqi_reader(data, len);
    return tqi_value_skip(&r) && r.at == r.end;
}

uint32_t tqi_value_map_cnt(const void *data, size_t len)
{
    tqi_reader_t r = tqi_reader(data, len);
    tqi_value_t map;

    return tqi_value_next(&r, &map) && map.type == TQI_VALUE_MAP ? map.cnt : 0;
}

bool tqi_value_is_tag_map(const void *data, size_t len, uint32_t entries_max)
{
    tqi_reader_t r = tqi_reader(data, len);
    tqi_value_t map, key;
    if (!tqi_value_next(&r, &map) || map.type != TQI_VALUE_MAP || map.cnt > entries_max)
        return false;
    for (uint32_t i = 0; i < map.cnt; i++) {
        if (!tqi_value_next(&r, &key))
            return false;
        if (key.type != TQI_VALUE_STR && key.type != TQI_VALUE_UINT && key.type != TQI_VALUE_INT)
            return false;
        if (!tqi_value_skip(&r))
            return false;
    }
    return r.at == r.end;
}

bool tqi_value_find(const void *map, size_t len, const char *key, size_t key_len, tqi_value_t *out,
                    const uint8_t **span, size_t *span_len)
{
    tqi_reader_t r = tqi_reader(map, len);
    tqi_value_t head, k;
    bool is_found = false;
    if (!tqi_value_next(&r, &head) || head.type != TQI_VALUE_MAP)
        return false;
    for (uint32_t i = 0; i < head.cnt; i++) {
        if (!tqi_value_next(&r, &k))
            return false;
        /* A key that is a container is stepped over with its entries. */
        if (k.type == TQI_VALUE_ARRAY || k.type == TQI_VALUE_MAP) {
            uint64_t inner = k.type == TQI_VALUE_MAP ? 2 * (uint64_t)k.cnt : k.cnt;
            while (inner-- > 0)
                if (!tqi_value_skip(&r))
                    return false;
        }
        tqi_reader_t value = r;
        if (!tqi_value_skip(&r))
            return false;
        if (k.type != TQI_VALUE_STR || k.len != key_len ||
            (key_len > 0 && memcmp(k.data, key, key_len) != 0))
            continue;
        const uint8_t *start = value.at;
        if (out)
            tqi_value_next(&value, out);
        if (span) {
            *span = start;
            *span_len = (size_t)(r.at - start);
        }
        is_found = true;
    }
    return is_found;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Appends a head byte and a big-endian number of `bytes` bytes. */
static tq_status_t put_head(tqi_buf_t *buf, uint8_t head, uint64_t v, unsigned bytes)
{
    uint8_t *p = tqi_buf_extend(buf, 1 + bytes);
    if (!p)
        return TQ_E_NO_MEMORY;
    *p++ = head;
    while (bytes-- > 0)
        *p++ = (uint8_t)(v >> (8 * bytes));
    return TQ_OK;
}

tq_status_t tqi_put_nil(tqi_buf_t *buf)
{
    return put_head(buf, 0xc0, 0, 0);
}

tq_status_t tqi_put_bool(tqi_buf_t *buf, bool is_true)
{
    return put_head(buf, is_true ? 0xc3 : 0xc2, 0, 0);
}

tq_status_t tqi_put_uint(tqi_buf_t *buf, uint64_t v)
{
    if (v <= 0x7f)
        return put_head(buf, (uint8_t)v, 0, 0);
    if (v <= UINT8_MAX)
        return put_head(buf, 0xcc, v, 1);
    if (v <= UINT16_MAX)
        return put_head(buf, 0xcd, v, 2);
    if (v <= UINT32_MAX)
        return put_head(buf, 0xce, v, 4);
    return put_head(buf, 0xcf, v, 8);
}

tq_status_t tqi_put_int(tqi_buf_t *buf, int64_t i)
{
    uint64_t v = (uint64_t)i;
    if (i >= 0)
        return tqi_put_uint(buf, v);
    if (i >= -32)
        return put_head(buf, (uint8_t)v, 0, 0);
    if (i >= INT8_MIN)
        return put_head(buf, 0xd0, v, 1);
    if (i >= INT16_MIN)
        return put_head(buf, 0xd1, v, 2);
    if (i >= INT32_MIN)
        return put_head(buf, 0xd2, v, 4);
    return put_head(buf, 0xd3, v, 8);
}

tq_status_t tqi_put_f64(tqi_buf_t *buf, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return put_head(buf, 0xcb, bits, 8);
}

tq_status_t tqi_put_bin_head(tqi_buf_t *buf, uint32_t len)
{
    if (len <= UINT8_MAX)
        return put_head(buf, 0xc4, len, 1);
    if (len <= UINT16_MAX)
        return put_head(buf, 0xc5, len, 2);
    return put_head(buf, 0xc6, len, 4);
}

static tq_status_t put_data(tqi_buf_t *buf, size_t start, tq_status_t rc, const void *data,
                            uint32_t len)
{
    if (rc == TQ_OK)
        rc = tqi_buf_append(buf, data, len);
    if (rc != TQ_OK)
        buf->len = start;
    return rc;
}

tq_status_t tqi_put_str(tqi_buf_t *buf, const void *data, uint32_t len)
{
    size_t start = buf->len;
    tq_status_t rc;
    if (len <= 31)
        rc = put_head(buf, (uint8_t)(0xa0 | len), 0, 0);
    else if (len <= UINT8_MAX)
        rc = put_head(buf, 0xd9, len, 1);
    else if (len <= UINT16_MAX)
        rc = put_head(buf, 0xda, len, 2);
    else
        rc = put_head(buf, 0xdb, len, 4);
    return put_data(buf, start, rc, data, len);
}

tq_status_t tqi_put_bin(tqi_buf_t *buf, const void *data, uint32_t len)
{
    size_t start = buf->len;
    return put_data(buf, start, tqi_put_bin_head(buf, len), data, len);
}

tq_status_t tqi_put_map(tqi_buf_t *buf, uint32_t cnt)
{
    if (cnt <= 15)
        return put_head(buf, (uint8_t)(0x80 | cnt), 0, 0);
    if (cnt <= UINT16_MAX)
        return put_head(buf, 0xde, cnt, 2);
    return put_head(buf, 0xdf, cnt, 4);
}

tq_status_t tqi_put_array(tqi_buf_t *buf, uint32_t cnt)
{
    if (cnt <= 15)
        return put_head(buf, (uint8_t)(0x90 | cnt), 0, 0);
    if (cnt <= UINT16_MAX)
        return put_head(buf, 0xdc, cnt, 2);
    return put_head(buf, 0xdd, cnt, 4);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Length of the UTF-8 sequence at p (RFC 3629: no surrogates, nothing overlong), 0 if it is none. */
static size_t utf8_len(const uint8_t *p, const uint8_t *end)
{
    size_t left = (size_t)(end - p);
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] <= 0xdf)
        return left >= 2 && (p[1] & 0xc0) == 0x80 ? 2 : 0;
    if (p[0] >= 0xe0 && p[0] <= 0xef) {
        if (left < 3 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80)
            return 0;
        if (p[0] == 0xe0 && p[1] < 0xa0)
            return 0;
        if (p[0] == 0xed && p[1] > 0x9f)
            return 0;
        return 3;
    }
    if (p[0] >= 0xf0 && p[0] <= 0xf4) {
        if (left < 4 || (p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80)
            return 0;
        if (p[0] == 0xf0 && p[1] < 0x90)
            return 0;
        if (p[0] == 0xf4 && p[1] > 0x8f)
            return 0;
        return 4;
    }
    return 0;
}

tq_status_t tqi_json_str(tqi_buf_t *json, const void *data, size_t len)
{
    const uint8_t *p = data, *end = p ? p + len : p;
    tq_status_t rc = tqi_buf_append(json, "\"", 1);
    while (rc == TQ_OK && p < end) {
        if (*p == '"' || *p == '\\') {
            rc = tqi_buf_printf(json, "\\%c", *p++);
        } else if (*p < 0x20 || *p == 0x7f) {
            rc = tqi_buf_printf(json, "\\u%04x", *p++);
        } else {
            size_t n = utf8_len(p, end);
            rc = n ? tqi_buf_append(json, p, n) : tqi_buf_append(json, "\xef\xbf\xbd", 3);
            p += n ? n : 1;
        }
    }
    return rc == TQ_OK ? tqi_buf_append(json, "\"", 1) : rc;
}

static tq_status_t json_base64(tqi_buf_t *json, const uint8_t *p, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    tq_status_t rc = tqi_buf_append(json, "\"", 1);
    for (size_t i = 0; rc == TQ_OK && i < len; i += 3) {
        size_t have = len - i < 3 ? len - i : 3;
        uint32_t v = (uint32_t)p[i] << 16;
        if (have > 1)
            v |= (uint32_t)p[i + 1] << 8;
        if (have > 2)
            v |= p[i + 2];
        char out[4] = {digits[v >> 18], digits[v >> 12 & 63], have > 1 ? digits[v >> 6 & 63] : '=',
                       have > 2 ? digits[v & 63] : '='};
        rc = tqi_buf_append(json, out, 4);
    }
    return rc == TQ_OK ? tqi_buf_append(json, "\"", 1) : rc;
}

#define JSON_DEPTH_MAX 64

static tq_status_t json_value(tqi_reader_t *r, tqi_buf_t *json, int depth, bool is_key)
{
    tqi_reader_t start = *r;
    tqi_value_t v;
    if (!tqi_value_next(r, &v))
        return TQ_E_MALFORMED;
    const char *quote = is_key ? "\"" : "";
    switch (v.type) {
    case TQI_VALUE_NIL:
        return tqi_buf_printf(json, "%snull%s", quote, quote);
    case TQI_VALUE_BOOL:
        return tqi_buf_printf(json, "%s%s%s", quote, v.as.is_true ? "true" : "false", quote);
    case TQI_VALUE_UINT:
        return tqi_buf_printf(json, "%s%" PRIu64 "%s", quote, v.as.u, quote);
    case TQI_VALUE_INT:
        return tqi_buf_printf(json, "%s%" PRId64 "%s", quote, v.as.i, quote);
    case TQI_VALUE_F32:
    case TQI_VALUE_F64:
        if (!isfinite(v.as.f))
            return tqi_buf_printf(json, "%snull%s", quote, quote);
        return tqi_buf_printf(json, "%s%.*g%s", quote, v.type == TQI_VALUE_F32 ? 9 : 17, v.as.f,
                              quote);
    case TQI_VALUE_STR:
        return tqi_json_str(json, v.data, v.len);
    case TQI_VALUE_BIN:
    case TQI_VALUE_EXT:
        return json_base64(json, v.data, v.len);
    case TQI_VALUE_ARRAY:
    case TQI_VALUE_MAP:
        break;
    }
    if (depth == JSON_DEPTH_MAX || is_key) {
        *r = start;
        if (!tqi_value_skip(r))
            return TQ_E_MALFORMED;
        return tqi_buf_printf(json, "%snull%s", quote, quote);
    }
    bool is_map = v.type == TQI_VALUE_MAP;
    tq_status_t rc = tqi_buf_append(json, is_map ? "{" : "[", 1);
    for (uint32_t i = 0; rc == TQ_OK && i < v.cnt; i++) {
        if (i > 0)
            rc = tqi_buf_append(json, ",", 1);
        if (rc == TQ_OK && is_map) {
            rc = json_value(r, json, depth + 1, true);
            if (rc == TQ_OK)
                rc = tqi_buf_append(json, ":", 1);
        }
        if (rc == TQ_OK)
            rc = json_value(r, json, depth + 1, false);
    }
    return rc == TQ_OK ? tqi_buf_append(json, is_map ? "}" : "]", 1) : rc;
}

tq_status_t tqi_value_to_json(const void *data, size_t len, tqi_buf_t *json)
{
    size_t start = json->len;
    tqi_reader_t r = tqi_reader(data, len);
    tq_status_t rc = json_value(&r, json, 0, false);
    if (rc == TQ_OK && r.at != r.end)
        rc = TQ_E_MALFORMED;
    if (rc != TQ_OK)
        json->len = start;
    return rc;
}
