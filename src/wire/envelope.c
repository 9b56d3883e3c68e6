/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/envelope.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"

#define AT_BODY_LEN 64

tq_status_t tqi_envelope_begin(tqi_buf_t *buf, const tqi_envelope_t *env, const uint64_t *open)
{
    tqi_assert(buf->len == 0 && env->open_cnt <= TQI_OPEN_MAX);
    uint8_t *p = tqi_buf_extend(buf, TQI_ENVELOPE_BYTES + (size_t)env->open_cnt * 8);
    if (!p)
        return TQ_E_NO_MEMORY;
    memset(p, 0, TQI_ENVELOPE_BYTES);
    tqi_store_le32(p, TQI_MAGIC);
    tqi_store_le16(p + 4, env->version ? env->version : TQI_VERSION_MAX);
    tqi_store_le16(p + 6, env->kind);
    tqi_store_le16(p + 8, env->status);
    tqi_store_le16(p + 10, env->flags);
    tqi_store_le16(p + 12, env->attempt);
    tqi_store_le16(p + 14, env->open_cnt);
    tqi_store_le64(p + 16, env->incarnation);
    tqi_store_le64(p + 24, env->session);
    tqi_store_le32(p + 32, env->epoch);
    tqi_store_le32(p + 36, env->budget_ms);
    tqi_store_le64(p + 40, env->seq);
    tqi_store_le64(p + 48, env->ack);
    tqi_store_le64(p + 56, env->request_id);
    tqi_store_le32(p + 68, env->sender);
    for (uint16_t i = 0; i < env->open_cnt; i++)
        tqi_store_le64(p + TQI_ENVELOPE_BYTES + (size_t)i * 8, open[i]);
    return TQ_OK;
}

void tqi_envelope_seal(tqi_buf_t *buf)
{
    size_t head = TQI_ENVELOPE_BYTES + (size_t)tqi_load_le16(buf->data + 14) * 8;
    tqi_assert(buf->len >= head && buf->len - head <= UINT32_MAX);
    tqi_store_le32(buf->data + AT_BODY_LEN, (uint32_t)(buf->len - head));
}

tq_status_t tqi_envelope_decode(const void *data, size_t len, tqi_envelope_t *env, tqi_err_t *err)
{
    const uint8_t *p = data;
    memset(env, 0, sizeof *env);
    if (len < TQI_ENVELOPE_BYTES)
        return tqi_fail(err, TQ_E_MALFORMED,
                        "message of %zu bytes is shorter than its header of %d", len,
                        TQI_ENVELOPE_BYTES);
    if (tqi_load_le32(p) != TQI_MAGIC)
        return tqi_fail(err, TQ_E_MALFORMED, "not a tq message (magic 0x%08x)", tqi_load_le32(p));
    env->version = tqi_load_le16(p + 4);
    env->kind = tqi_load_le16(p + 6);
    env->status = tqi_load_le16(p + 8);
    env->flags = tqi_load_le16(p + 10);
    env->attempt = tqi_load_le16(p + 12);
    env->open_cnt = tqi_load_le16(p + 14);
    env->incarnation = tqi_load_le64(p + 16);
    env->session = tqi_load_le64(p + 24);
    env->epoch = tqi_load_le32(p + 32);
    env->budget_ms = tqi_load_le32(p + 36);
    env->seq = tqi_load_le64(p + 40);
    env->ack = tqi_load_le64(p + 48);
    env->request_id = tqi_load_le64(p + 56);
    env->body_len = tqi_load_le32(p + AT_BODY_LEN);
    env->sender = tqi_load_le32(p + 68);
    if (env->version < TQI_VERSION_MIN || env->version > TQI_VERSION_MAX)
        return tqi_fail(err, TQ_E_VERSION,
                        "message of protocol version %u; this end speaks %d to %d", env->version,
                        TQI_VERSION_MIN, TQI_VERSION_MAX);
    if (env->open_cnt > TQI_OPEN_MAX)
        return tqi_fail(err, TQ_E_MALFORMED, "%u open seqs, over the limit of %d", env->open_cnt,
                        TQI_OPEN_MAX);
    size_t head = TQI_ENVELOPE_BYTES + (size_t)env->open_cnt * 8;
    if (len < head || len - head != env->body_len)
        return tqi_fail(err, TQ_E_MALFORMED, "message of %zu bytes says %u of body after %zu", len,
                        env->body_len, head);
    env->open = p + TQI_ENVELOPE_BYTES;
    env->body = p + head;
    for (uint16_t i = 1; i < env->open_cnt; i++)
        if (tqi_load_le64(env->open + (size_t)i * 8) <=
            tqi_load_le64(env->open + (size_t)i * 8 - 8))
            return tqi_fail(err, TQ_E_MALFORMED, "open seqs are not ascending");
    return TQ_OK;
}
