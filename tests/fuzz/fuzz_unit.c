/* SPDX-License-Identifier: Apache-2.0 */
/* A whole storage unit with hostile clients and a hostile controller. */
#include "fuzz.h"
#include "peer.h"

#include "role/storage/unit.h"

#define SEGMENTS_MAX 64

static struct {
    uint32_t id;
    void *base;
} segments[SEGMENTS_MAX];

static tq_status_t segment_open(tqi_arena_t *arena, uint32_t id, uint64_t bytes, void **base,
                                tqi_err_t *err)
{
    (void)arena;
    for (int i = 0; i < SEGMENTS_MAX; i++) {
        if (segments[i].base)
            continue;
        segments[i].id = id;
        *base = segments[i].base = malloc(bytes);
        return TQ_OK;
    }
    return tqi_fail(err, TQ_E_NO_MEMORY, "no segments left");
}

static void segment_punch(tqi_arena_t *arena, uint32_t id, uint64_t offset, uint64_t len)
{
    (void)arena, (void)id, (void)offset, (void)len;
}

static void segment_close(tqi_arena_t *arena, uint32_t id)
{
    (void)arena;
    for (int i = 0; i < SEGMENTS_MAX; i++)
        if (segments[i].base && segments[i].id == id) {
            free(segments[i].base);
            segments[i].base = NULL;
        }
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    static fuzz_t f;
    static const char *const addresses[] = {"fuzz://unit"};
    tqi_arena_t arena = {segment_open, segment_punch, segment_close};
    tqi_unit_conf_t conf = {.unit_incarnation = 5,
                            .controller = "fuzz://controller",
                            .addresses = addresses,
                            .addresses_cnt = 1,
                            .host = "host",
                            .name = "unit",
                            .capacity_bytes = 1u << 20,
                            .segment_bytes = 1u << 18};
    tqi_unit_t *unit;
    tqi_err_t err;
    fuzz_init(&f);
    f.session = 7;
    if (tqi_unit_new(&f.env, &conf, &f.ctrl, NULL, &arena, f.now_ns, &unit, &err) != TQ_OK)
        abort();
    fuzz_feed(&f, tqi_unit_role(unit), data, len);
    if (!tqi_unit_check(unit, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    tqi_unit_free(unit);
    fuzz_over(&f);
}
