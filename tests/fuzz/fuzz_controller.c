/* SPDX-License-Identifier: Apache-2.0 */
/* A whole controller with hostile clients and units. */
#include "fuzz.h"
#include "peer.h"

#include "role/controller/controller.h"

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    static fuzz_t f;
    tqi_controller_t *ctl;
    tqi_controller_conf_t conf = {.incarnation = FUZZ_STORE, .seed = 1};
    tqi_err_t err;
    fuzz_init(&f);
    if (tqi_controller_new(&f.env, &conf, &f.ctrl, f.now_ns, &ctl, &err) != TQ_OK)
        abort();
    fuzz_feed(&f, tqi_controller_role(ctl), data, len);
    if (!tqi_controller_check(ctl, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    tqi_controller_free(ctl);
    fuzz_over(&f);
}
