/* SPDX-License-Identifier: Apache-2.0 */
#include <tq/value.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "sys/env_malloc.h"
#include "wire/value.h"

/* Moves the buffer's bytes, and a terminator behind them, to malloc's memory. */
static tq_status_t hand_out(tqi_buf_t *buf, void **data, size_t *len, tq_error_t *err)
{
    char *out = malloc(buf->len + 1);
    if (!out)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a value");
    if (buf->len > 0)
        memcpy(out, buf->data, buf->len);
    out[buf->len] = 0;
    *data = out;
    if (len)
        *len = buf->len;
    return TQ_OK;
}

static tq_status_t put_text(tqi_buf_t *buf, const char *text)
{
    size_t len = strlen(text);
    char *end;
    if (strcmp(text, "null") == 0)
        return tqi_put_nil(buf);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return tqi_put_bool(buf, *text == 't');
    if (len >= 2 && text[0] == '"' && text[len - 1] == '"')
        return tqi_put_str(buf, text + 1, (uint32_t)len - 2);
    /* strtod also takes hex and names; a number begins with a digit, a sign or a dot. */
    if (len > 0 && strspn(text, "+-.0123456789eE") == len && strpbrk(text, "0123456789")) {
        errno = 0;
        long long i = strtoll(text, &end, 10);
        if (*end == 0 && errno == 0)
            return tqi_put_int(buf, i);
        errno = 0;
        double f = strtod(text, &end);
        if (*end == 0 && errno == 0)
            return tqi_put_f64(buf, f);
    }
    return tqi_put_str(buf, text, (uint32_t)len);
}

tq_status_t tq_map_from_texts(const char *const *names, const char *const *texts, uint32_t cnt,
                              void **map, size_t *len, tq_error_t *err)
{
    tqi_buf_t buf;
    tqi_buf_init(&buf, tqi_env_malloc());
    tq_status_t rc = tqi_put_map(&buf, cnt);
    for (uint32_t i = 0; rc == TQ_OK && i < cnt; i++) {
        for (uint32_t j = 0; j < i && rc == TQ_OK; j++)
            if (strcmp(names[i], names[j]) == 0)
                rc = tqi_fail(err, TQ_E_INVALID, "tag '%s' is given twice", names[i]);
        if (rc == TQ_OK)
            rc = tqi_put_str(&buf, names[i], (uint32_t)strlen(names[i]));
        if (rc == TQ_OK)
            rc = put_text(&buf, texts[i]);
    }
    if (rc == TQ_E_NO_MEMORY)
        tqi_fail(err, rc, "no memory for a map of %u tags", cnt);
    if (rc == TQ_OK)
        rc = hand_out(&buf, map, len, err);
    tqi_buf_fini(&buf);
    return rc;
}

tq_status_t tq_value_to_json(const void *value, size_t len, char **json, tq_error_t *err)
{
    tqi_buf_t buf;
    void *out = NULL;
    tqi_buf_init(&buf, tqi_env_malloc());
    tq_status_t rc = len == 0 ? tqi_buf_append(&buf, "{}", 2) : tqi_value_to_json(value, len, &buf);
    if (rc == TQ_OK)
        rc = hand_out(&buf, &out, NULL, err);
    else if (rc == TQ_E_NO_MEMORY)
        tqi_fail(err, rc, "no memory for a value's JSON");
    else
        rc = tqi_fail(err, TQ_E_INVALID, "not one whole msgpack value");
    tqi_buf_fini(&buf);
    *json = out;
    return rc;
}

char *tq_json_string(const void *data, size_t len)
{
    tqi_buf_t buf;
    void *out = NULL;
    tqi_buf_init(&buf, tqi_env_malloc());
    if (tqi_json_str(&buf, data, len) == TQ_OK)
        (void)hand_out(&buf, &out, NULL, NULL);
    tqi_buf_fini(&buf);
    return out;
}

void tq_free(void *data)
{
    free(data);
}
