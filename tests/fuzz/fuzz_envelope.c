/* SPDX-License-Identifier: Apache-2.0 */
/* Envelopes: any bytes; what is one comes back as it was. */
#include "fuzz.h"

#include <string.h>

#include "base/size.h"
#include "sys/env_malloc.h"
#include "wire/msg.h"

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    tqi_envelope_t env, back;
    uint64_t open[TQI_OPEN_MAX];
    char line[256];
    tqi_err_t err = {0};
    tqi_buf_t frame;
    if (tqi_envelope_decode(data, len, &env, &err) != TQ_OK) {
        fuzz_require(err.text[0] != 0, "a refusal without a sentence");
        return;
    }
    for (uint16_t i = 0; i < env.open_cnt; i++)
        open[i] = tqi_load_le64(env.open + (size_t)i * 8);
    tqi_buf_init(&frame, tqi_env_malloc());
    if (tqi_envelope_begin(&frame, &env, open) != TQ_OK ||
        tqi_buf_append(&frame, env.body, env.body_len) != TQ_OK)
        abort();
    tqi_envelope_seal(&frame);
    fuzz_require(frame.len == len, "%zu bytes of %zu come back", frame.len, len);
    fuzz_require(tqi_envelope_decode(frame.data, frame.len, &back, NULL) == TQ_OK,
                 "what was encoded can't be decoded");
    /* All but the reserved word, which is written as zero. */
    fuzz_require(memcmp(data, frame.data, 72) == 0 &&
                     memcmp(data + 80, frame.data + 80, len - 80) == 0,
                 "an envelope comes back as another");
    size_t n = tqi_msg_print(&env, line, sizeof line);
    fuzz_require(n < sizeof line && line[n] == 0, "a line of %zu bytes", n);
    tqi_buf_fini(&frame);
}
