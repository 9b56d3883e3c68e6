/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define BUF_CAP_MIN 64

void tqi_buf_init(tqi_buf_t *buf, const tqi_env_t *env)
{
    *buf = (tqi_buf_t){.env = env};
}

void tqi_buf_fini(tqi_buf_t *buf)
{
    if (buf->data)
        tqi_env_free(buf->env, buf->data, buf->cap);
    buf->data = NULL;
    buf->len = buf->cap = 0;
}

void tqi_buf_clear(tqi_buf_t *buf)
{
    buf->len = 0;
}

tq_status_t tqi_buf_reserve(tqi_buf_t *buf, size_t more)
{
    if (more <= buf->cap - buf->len)
        return TQ_OK;
    if (more > SIZE_MAX / 2 - buf->len)
        return TQ_E_NO_MEMORY;
    size_t need = buf->len + more;
    size_t cap = buf->cap + buf->cap / 2;
    if (cap < need)
        cap = need;
    if (cap < BUF_CAP_MIN)
        cap = BUF_CAP_MIN;
    uint8_t *data = tqi_env_realloc(buf->env, buf->data, buf->cap, cap);
    if (!data)
        return TQ_E_NO_MEMORY;
    buf->data = data;
    buf->cap = cap;
    return TQ_OK;
}

void *tqi_buf_extend(tqi_buf_t *buf, size_t len)
{
    if (tqi_buf_reserve(buf, len ? len : 1) != TQ_OK)
        return NULL;
    void *at = buf->data + buf->len;
    buf->len += len;
    return at;
}

tq_status_t tqi_buf_append(tqi_buf_t *buf, const void *data, size_t len)
{
    if (len == 0)
        return TQ_OK;
    void *at = tqi_buf_extend(buf, len);
    if (!at)
        return TQ_E_NO_MEMORY;
    memcpy(at, data, len);
    return TQ_OK;
}

tq_status_t tqi_buf_printf(tqi_buf_t *buf, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    tqi_assert(len >= 0);
    tq_status_t rc = tqi_buf_reserve(buf, (size_t)len + 1);
    if (rc == TQ_OK) {
        vsnprintf((char *)buf->data + buf->len, (size_t)len + 1, fmt, again);
        buf->len += (size_t)len;
    }
    va_end(again);
    return rc;
}

void tqi_buf_take(tqi_buf_t *to, tqi_buf_t *from)
{
    tqi_assert(to->data == NULL);
    *to = *from;
    from->data = NULL;
    from->len = from->cap = 0;
}
