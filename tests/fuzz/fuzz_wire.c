/* SPDX-License-Identifier: Apache-2.0 */
/* Every decoder of src/wire on the same bytes. */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "sys/env_malloc.h"
#include "wire/coldesc.h"
#include "wire/msg.h"
#include "wire/value.h"

static void decode_message(const uint8_t *data, size_t len)
{
    tqi_envelope_t env;
    char line[256];
    _Alignas(16) uint8_t msg[1024];
    if (tqi_envelope_decode(data, len, &env, NULL) == TQ_OK) {
        tqi_msg_print(&env, line, sizeof line);
        (void)tqi_msg_decode(&env, env.kind, msg, NULL);
    }
    /* The bytes as a body, too: the header would keep most of them out. */
    uint32_t infos_cnt;
    const tqi_msg_info_t *infos = tqi_msg_infos(&infos_cnt);
    if (len > 1) {
        const tqi_msg_info_t *info = &infos[data[0] % infos_cnt];
        tqi_envelope_t body = {
            .kind = (uint16_t)info->kind, .body = data + 1, .body_len = (uint32_t)len - 1};
        (void)tqi_msg_decode(&body, (uint32_t)info->kind, msg, NULL);
    }
}

static void decode_column(const uint8_t *data, size_t len)
{
    tqi_coldesc_t col;
    tq_schema_t schema;
    if (len < 2)
        return;
    uint32_t rows_cnt = data[0];
    if (tqi_coldesc_decode((tqi_bytes_t){data + 1, (uint32_t)len - 1}, rows_cnt, &col, NULL) ==
        TQ_OK) {
        tqi_coldesc_iter_t it;
        tq_desc_t desc;
        uint64_t offset = 0, end = 0;
        tqi_coldesc_iter(&it, &col);
        for (uint32_t r = 0; r < rows_cnt; r++) {
            tqi_coldesc_next(&it, &desc, &offset);
            if (offset != end || tqi_desc_check(&desc, NULL) != TQ_OK)
                abort();
            end = offset + desc.len;
        }
        if (end != col.frame_bytes)
            abort();
        tqi_schema_of(&col, &schema);
    }
    (void)tqi_schema_decode((tqi_bytes_t){data, (uint32_t)len}, &schema);
}

static void decode_value(const uint8_t *data, size_t len)
{
    tqi_buf_t json;
    tqi_value_t v;
    tqi_buf_init(&json, tqi_env_malloc());
    bool is_whole = tqi_value_is_whole(data, len);
    if ((tqi_value_to_json(data, len, &json) == TQ_OK) != is_whole)
        abort();
    if (tqi_value_is_tag_map(data, len, 256) && !is_whole)
        abort();
    (void)tqi_value_find(data, len, "k", 1, &v, NULL, NULL);
    tqi_buf_fini(&json);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    decode_message(data, len);
    decode_column(data, len);
    decode_value(data, len);
}
