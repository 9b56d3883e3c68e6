/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole controller with hostile clients and units, an honest unit, and an honest client that comes
 * last: its requests succeed whatever state the others have made, and when they have gone it can
 * clear the store, after which the controller holds what it held at first.
 */
#include "peer.h"

#include <string.h>
#include <tq/tq.h>

#include "base/size.h"
#include "role/controller/controller.h"

/* What stays of a store that was used: containers that keep their room, and the units, which only an
 * operator forgets. */
#define KEPT_BYTES 65536u
#define UNIT_KEPT_BYTES 8192u

typedef struct honest_unit {
    tqi_peer_t peer;
    fuzz_request_t orders[64]; /* to be answered */
    unsigned orders_cnt;
    bool is_registering;
} honest_unit_t;

static fuzz_t f;
static honest_unit_t unit;
static tqi_controller_t *ctl;

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng);

static bool is_wanted(const tqi_msg_info_t *info)
{
    bool is_reply = info->kind & TQI_KIND_REPLY;
    return strstr(info->direction, is_reply ? "UNIT_TO_CONTROLLER" : "TO_CONTROLLER") ||
           strstr(info->direction, "TO_ANY") || (!is_reply && strcmp(info->direction, "ANY") == 0);
}

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng)
{
    return fuzz_story_change(data, len, cap, rng, is_wanted);
}

static void on_sent(fuzz_t *fuzz, tqi_peer_t peer, const tqi_envelope_t *env)
{
    (void)fuzz;
    if (peer == unit.peer && !(env->kind & TQI_KIND_REPLY) &&
        unit.orders_cnt < tqi_array_len(unit.orders))
        unit.orders[unit.orders_cnt++] = (fuzz_request_t){peer, env->kind, env->seq, 0, 0};
}

/* The honest unit does what it is told. */
static void after_step(fuzz_t *fuzz)
{
    static const tqi_msg_Ping_R_t pong = {.capacity_bytes = 1 << 30, .free_bytes = 1 << 30};
    while (unit.orders_cnt > 0) {
        fuzz_request_t order = unit.orders[--unit.orders_cnt];
        tqi_envelope_t env = {
            .kind = order.kind | TQI_KIND_REPLY, .incarnation = FUZZ_STORE, .seq = order.seq};
        fuzz_say(fuzz, unit.peer, &env, order.kind == TQI_KIND_Ping ? &pong : NULL);
        while (fuzz->role->step(fuzz->role, fuzz->now_ns) <= fuzz->now_ns)
            continue;
    }
}

static void check(fuzz_t *fuzz)
{
    tqi_err_t err = {0};
    (void)fuzz;
    fuzz_require(tqi_controller_check(ctl, &err), "%s", err.text);
}

/* INSERT makes rows out of nothing but their number: 16 bitsets, a unit and a put for each. */
static size_t cost(const tqi_envelope_t *env)
{
    tqi_msg_Insert_t msg;
    if (env->kind != TQI_KIND_Insert || tqi_msg_decode(env, env->kind, &msg, NULL) != TQ_OK)
        return 0;
    return (size_t)msg.rows_cnt * 64;
}

static void unit_joins(void)
{
    static const uint32_t offsets[] = {0, 13};
    tqi_msg_Register_t msg = {.version_min = 1,
                              .version_max = 1,
                              .unit_incarnation = UINT64_C(0x7777777777777777),
                              .addresses = {offsets, "tcp://honest:1", 1, 13},
                              .host = tqi_str("honest"),
                              .capacity_bytes = 1 << 30,
                              .free_bytes = 1 << 30};
    tqi_envelope_t env = {.kind = TQI_KIND_Register};
    memset(&unit, 0, sizeof unit);
    unit.peer = fuzz_connect_peer(&f);
    fuzz_say(&f, unit.peer, &env, &msg);
}

/* ---- the honest client ----------------------------------------------------------------------- */

static const char partition[] = "somebody else's rows 8d575004";
static uint64_t session, seq;

#define ask(kind, msg)                                                                             \
    do {                                                                                           \
        tq_status_t rc_ = fuzz_ask(&f, kind, session, ++seq, msg);                                 \
        fuzz_require(rc_ == TQ_OK, "an honest client's %s: %s", #kind, fuzz_answer_text(&f));      \
    } while (0)

#define answer(kind, msg)                                                                          \
    fuzz_require(tqi_msg_decode(&f.answer_env, kind, msg, NULL) == TQ_OK, "the answer is "         \
                                                                          "malformed")

static void friend_works(void)
{
    static const uint32_t offsets[] = {0, 1}, tag_offsets[] = {0, 4, 8};
    const tqi_strs_t fields = {offsets, "f", 1, 1};
    tqi_msg_Hello_t hello = {.version_min = 1, .version_max = 1};
    tqi_msg_Insert_t insert = {
        .partition = tqi_str(partition), .rows_cnt = 2, .fields = fields, .is_put = true};
    tqi_msg_Insert_R_t inserted;
    tqi_msg_Fetch_R_t fetched;
    uint64_t rows[2];

    f.where = "an honest client's work";
    f.friend = fuzz_connect_peer(&f);
    f.friend_epoch = 1;
    session = seq = 0;
    tq_status_t rc = fuzz_ask(&f, TQI_KIND_Hello, 0, 0, &hello);
    fuzz_require(rc == TQ_OK, "an honest client's HELLO: %s", fuzz_answer_text(&f));
    session = f.answer_env.session;
    ask(TQI_KIND_Insert, &insert);
    answer(TQI_KIND_Insert_R, &inserted);
    fuzz_require(inserted.rows.cnt == 2, "%u rows", inserted.rows.cnt);
    rows[0] = tqi_u64s_at(inserted.rows, 0);
    rows[1] = tqi_u64s_at(inserted.rows, 1);
    tqi_msg_Publish_t publish = {.partition = tqi_str(partition),
                                 .put_id = inserted.put_id,
                                 .rows = tqi_u64s(rows, 2),
                                 .fields = fields,
                                 .tags = {tag_offsets,
                                          "\x81\xa1"
                                          "a\1\x81\xa1"
                                          "a\1",
                                          2, 8}};
    ask(TQI_KIND_Publish, &publish);
    tqi_msg_Fetch_t fetch = {.partition = tqi_str(partition),
                             .fields = fields,
                             .rows_cnt = 2,
                             .task = tqi_str("task"),
                             .mode = TQ_FETCH};
    ask(TQI_KIND_Fetch, &fetch);
    answer(TQI_KIND_Fetch_R, &fetched);
    fuzz_require(fetched.rows.cnt == 2 && tqi_u64s_at(fetched.rows, 0) == rows[0] &&
                     tqi_u64s_at(fetched.rows, 1) == rows[1],
                 "a fetch got other rows");
}

/* Everybody else falls silent. */
static void others_go(void)
{
    static const tqi_msg_Ping_t ping = {0};
    f.where = "the end of the others";
    for (int i = 0; i < 30; i++) {
        tqi_envelope_t env = {.kind = TQI_KIND_Ping,
                              .incarnation = FUZZ_STORE,
                              .session = session,
                              .epoch = 1,
                              .ack = seq};
        fuzz_say(&f, f.friend, &env, &ping);
        fuzz_pass(&f, 500);
    }
}

static void friend_clears(void)
{
    tqi_msg_List_t list = {.is_partitions = true};
    tqi_msg_List_R_t names;
    f.where = "an honest client's clear";
    for (;;) {
        ask(TQI_KIND_List, &list);
        answer(TQI_KIND_List_R, &names);
        if (names.names.cnt == 0)
            break;
        char name[TQ_NAME_MAX + 1];
        tqi_str_t first = tqi_strs_at(names.names, 0);
        fuzz_require(first.len <= TQ_NAME_MAX, "a partition's name of %u bytes", first.len);
        if (first.len > 0)
            memcpy(name, first.data, first.len);
        tqi_msg_Clear_t clear = {.partition = {name, first.len}, .is_all = true};
        ask(TQI_KIND_Clear, &clear);
    }
    tq_status_t rc = fuzz_ask(&f, TQI_KIND_Bye, session, 0, NULL);
    fuzz_require(rc == TQ_OK, "an honest client's BYE: %s", fuzz_answer_text(&f));
    fuzz_pass(&f, 2000);
}

static uint32_t units_cnt(void)
{
    tqi_buf_t json;
    uint32_t cnt = 0;
    tqi_buf_init(&json, &f.env);
    if (tqi_controller_stat(ctl, &json) != TQ_OK || tqi_buf_append(&json, "", 1) != TQ_OK)
        abort();
    for (const char *at = (const char *)json.data; (at = strstr(at, "\"addresses\"")); at++)
        cnt++;
    tqi_buf_fini(&json);
    return cnt;
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    tqi_controller_conf_t conf = {.incarnation = FUZZ_STORE, .seed = 1};
    tqi_err_t err;
    fuzz_init(&f);
    f.on_sent = on_sent;
    f.after_step = after_step;
    f.check = check;
    f.cost = cost;
    /* The first byte says which store: its sampler, and rows made ahead. */
    if (len > 0 && data[0] & 1) {
        conf.sampler = "GRPOGroupNSampler";
        conf.sampler_group = 2;
        conf.sampler_group_by = data[0] & 2 ? "a" : NULL;
    }
    if (len > 0 && data[0] & 4)
        conf.prealloc_rows = 4;
    if (len > 0 && data[0] & 8)
        conf.slice_rows = 2;
    if (tqi_controller_new(&f.env, &conf, &f.ctrl, f.now_ns, &ctl, &err) != TQ_OK)
        abort();
    f.role = tqi_controller_role(ctl);
    unit_joins();
    fuzz_step(&f);
    size_t before = f.bytes;
    if (len > 0)
        fuzz_feed(&f, data + 1, len - 1);
    friend_works();
    others_go();
    friend_clears();
    check(&f);
    size_t kept = before + KEPT_BYTES + UNIT_KEPT_BYTES * units_cnt();
    fuzz_require(f.bytes <= kept, "an empty store holds %zu bytes, %zu at first", f.bytes, before);
    tqi_controller_free(ctl);
    fuzz_over(&f);
}
