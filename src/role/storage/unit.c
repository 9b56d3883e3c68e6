/* SPDX-License-Identifier: Apache-2.0 */
#include "role/storage/unit.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "role/storage/internal.h"

#define LEASE_MS 30000u
#define SILENCE_MS 5000u
#define COLUMN_RESERVE_PERCENT 10u
#define SEGMENT_BYTES (64u << 20)
/* Free memory that is kept populated: a quarter of the capacity, 1 GiB at most. */
#define IDLE_BYTES_MAX (UINT64_C(1) << 30)

static tqi_unit_t *unit_of(tqi_role_t *role)
{
    return (tqi_unit_t *)role;
}

/* ---- life ------------------------------------------------------------------------------------- */

static tq_status_t segment_open(void *ctx, uint32_t id, uint64_t bytes, void **base, tqi_err_t *err)
{
    tqi_arena_t *arena = ctx;

    return arena->open(arena, id, bytes, base, err);
}

static void segment_punch(void *ctx, uint32_t id, uint64_t offset, uint64_t len)
{
    tqi_arena_t *arena = ctx;

    arena->punch(arena, id, offset, len);
}

static void segment_close(void *ctx, uint32_t id)
{
    tqi_arena_t *arena = ctx;

    arena->close(arena, id);
}

static tqi_objects_t *objects_new(const tqi_unit_t *unit, uint32_t segment_id_first)
{
    tqi_objects_conf_t conf = {
        .capacity_bytes = unit->conf.capacity_bytes,
        .column_reserve_percent = unit->conf.column_reserve_percent,
        .segment_bytes = unit->conf.segment_bytes,
        .segment_id_first = segment_id_first,
        .idle_bytes_max = tqi_u64_min(unit->conf.capacity_bytes / 4, IDLE_BYTES_MAX),
    };
    tqi_segment_ops_t ops = {unit->arena, segment_open, segment_punch, segment_close};

    return tqi_objects_new(unit->env, &conf, &ops);
}

tq_status_t unit_reset_objects(tqi_unit_t *unit)
{
    tqi_objects_t *objs = objects_new(unit, tqi_objects_segment_next(unit->objs));

    if (!objs)
        return TQ_E_NO_MEMORY;
    tqi_objects_free(unit->objs);
    unit->objs = objs;
    return TQ_OK;
}

/* Copies a text to the end of `texts`, which has room: the pointer lasts. */
static const char *text_keep(tqi_buf_t *texts, const char *text)
{
    const char *at = (const char *)texts->data + texts->len;

    tqi_buf_append(texts, text, strlen(text) + 1);
    return at;
}

static tq_status_t conf_copy(tqi_unit_t *unit, const tqi_unit_conf_t *conf)
{
    const char *host = conf->host ? conf->host : "";
    const char *name = conf->name ? conf->name : "";
    size_t array_bytes = conf->addresses_cnt * sizeof(char *);
    size_t bytes = array_bytes + strlen(conf->controller) + strlen(host) + strlen(name) + 3;

    for (uint32_t i = 0; i < conf->addresses_cnt; i++)
        bytes += strlen(conf->addresses[i]) + 1;
    if (tqi_buf_reserve(&unit->texts, bytes) != TQ_OK)
        return TQ_E_NO_MEMORY;
    const char **addresses = (const char **)(void *)unit->texts.data;

    unit->texts.len = array_bytes;
    unit->conf = *conf;
    for (uint32_t i = 0; i < conf->addresses_cnt; i++)
        addresses[i] = text_keep(&unit->texts, conf->addresses[i]);
    unit->conf.addresses = addresses;
    unit->conf.controller = text_keep(&unit->texts, conf->controller);
    unit->conf.host = text_keep(&unit->texts, host);
    unit->conf.name = text_keep(&unit->texts, name);
    if (unit->conf.column_reserve_percent == 0)
        unit->conf.column_reserve_percent = COLUMN_RESERVE_PERCENT;
    if (unit->conf.lease_ms == 0)
        unit->conf.lease_ms = LEASE_MS;
    if (unit->conf.silence_ms == 0)
        unit->conf.silence_ms = SILENCE_MS;
    if (unit->conf.segment_bytes == 0)
        unit->conf.segment_bytes = SEGMENT_BYTES;
    return TQ_OK;
}

static tq_status_t conf_check(const tqi_unit_conf_t *conf, tqi_err_t *err)
{
    if (!conf->controller || conf->controller[0] == '\0')
        return tqi_fail(err, TQ_E_CONFIG, "a storage unit needs the controller's address");
    if (conf->unit_incarnation == 0)
        return tqi_fail(err, TQ_E_CONFIG, "a storage unit needs an incarnation");
    if (conf->capacity_bytes == 0 || conf->capacity_bytes > INT64_MAX)
        return tqi_fail(err, TQ_E_CONFIG, "capacity_bytes %" PRIu64 " is no capacity",
                        conf->capacity_bytes);
    if (conf->column_reserve_percent > 90)
        return tqi_fail(err, TQ_E_CONFIG, "column_reserve_percent %u is over 90",
                        conf->column_reserve_percent);
    return TQ_OK;
}

static void on_message(tqi_role_t *role, tqi_peer_t peer, const void *data, size_t len,
                       uint64_t now_ns)
{
    tqi_unit_t *unit = unit_of(role);
    tqi_envelope_t env;

    unit->counters.messages++;
    if (tqi_envelope_decode(data, len, &env, NULL) != TQ_OK) {
        unit->counters.malformed++;
        return;
    }
    if (peer == unit->controller && peer != 0)
        link_on_message(unit, &env, data, len, now_ns);
    else
        session_on_message(unit, peer, &env, data, len, now_ns);
}

static void on_peer_down(tqi_role_t *role, tqi_peer_t peer, uint64_t now_ns)
{
    tqi_unit_t *unit = unit_of(role);

    if (peer == unit->controller)
        link_on_peer_down(unit, now_ns);
    else
        session_on_peer_down(unit, peer);
}

static void on_payload(tqi_role_t *role, tqi_transfer_key_t key, tq_status_t status,
                       const char *text, uint64_t now_ns)
{
    transfer_on_payload(unit_of(role), key, status, text, now_ns);
}

static uint64_t step(tqi_role_t *role, uint64_t now_ns)
{
    tqi_unit_t *unit = unit_of(role);
    uint64_t next_ns = transfer_step(unit, now_ns);

    next_ns = tqi_u64_min(next_ns, link_step(unit, now_ns));
    if (unit->is_dirty)
        put_serve_waiters(unit, now_ns);
    /* Whoever failed made room for those before it. */
    if (unit->is_dirty && unit->waiters[0].cnt + unit->waiters[1].cnt > 0)
        return now_ns;
    /* What was granted has a lease. */
    tqi_heap_node_t *first = tqi_heap_peek(&unit->timers);

    return first ? tqi_u64_min(next_ns, first->deadline_ns) : next_ns;
}

tq_status_t tqi_unit_new(const tqi_env_t *env, const tqi_unit_conf_t *conf, tqi_ctrl_t *ctrl,
                         tqi_payload_unit_t *payload, tqi_arena_t *arena, uint64_t now_ns,
                         tqi_unit_t **out, tqi_err_t *err)
{
    tq_status_t rc = conf_check(conf, err);
    tqi_unit_t *unit;

    if (rc != TQ_OK)
        return rc;
    unit = tqi_env_zalloc(env, sizeof *unit);
    if (!unit)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a storage unit");
    unit->role = (tqi_role_t){on_message, on_peer_down, on_payload, step};
    unit->env = env;
    unit->ctrl = ctrl;
    unit->payload = payload;
    unit->arena = arena;
    unit->heard_ns = now_ns;
    tqi_buf_init(&unit->texts, env);
    tqi_map_u64_init(&unit->sessions, env);
    tqi_map_u64_init(&unit->peers, env);
    tqi_intervals_init(&unit->ended, env);
    tqi_heap_init(&unit->timers, env);
    tqi_list_init(&unit->orders);
    tqi_list_init(&unit->waiters[0]);
    tqi_list_init(&unit->waiters[1]);
    tqi_view_init(&unit->view, env);
    tqi_buf_init(&unit->bytes, env);
    tqi_strs_builder_init(&unit->strs, env);
    tqi_vec_init(&unit->frames, env);
    tqi_vec_init(&unit->pieces, env);
    for (int i = 0; i < 2; i++) {
        tqi_vec_init(&unit->u32s[i], env);
        tqi_vec_init(&unit->u64s[i], env);
    }
    rc = conf_copy(unit, conf);
    if (rc == TQ_OK) {
        unit->silence_ns = unit->conf.silence_ms * NS_PER_MS;
        unit->objs = objects_new(unit, 1);
    }
    rc = unit->objs ? link_open(unit, now_ns, err)
                    : tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a storage unit");
    if (rc != TQ_OK) {
        tqi_unit_free(unit);
        return rc;
    }
    *out = unit;
    return TQ_OK;
}

void tqi_unit_free(tqi_unit_t *unit)
{
    if (!unit)
        return;
    transfer_fini(unit);
    session_fini(unit);
    link_fini(unit);
    tqi_objects_free(unit->objs);
    tqi_view_fini(&unit->view);
    tqi_buf_fini(&unit->bytes);
    tqi_strs_builder_fini(&unit->strs);
    tqi_vec_fini(&unit->frames);
    tqi_vec_fini(&unit->pieces);
    for (int i = 0; i < 2; i++) {
        tqi_vec_fini(&unit->u32s[i]);
        tqi_vec_fini(&unit->u64s[i]);
    }
    tqi_buf_fini(&unit->texts);
    tqi_env_free(unit->env, unit, sizeof *unit);
}

tqi_role_t *tqi_unit_role(tqi_unit_t *unit)
{
    return &unit->role;
}

bool tqi_unit_is_registered(const tqi_unit_t *unit)
{
    return unit->member == MEMBER_INSIDE;
}

const char *tqi_unit_error(const tqi_unit_t *unit)
{
    return unit->refusal.text;
}

void tqi_unit_drain(tqi_unit_t *unit, uint64_t now_ns)
{
    unit->is_draining = true;
    for (int c = 0; c < 2; c++) {
        tqi_list_each(&unit->waiters[c], node)
        {
            transfer_t *t = tqi_container_of(node, transfer_t, node);

            tqi_fail(&t->why, TQ_E_CLOSING, "the storage unit is shutting down");
            transfer_event(unit, t, TQI_TRANSFER_EV_EXPIRE, now_ns);
        }
    }
}

bool tqi_unit_is_idle(const tqi_unit_t *unit)
{
    return unit->transfers_cnt == 0 && unit->orders.cnt == 0;
}

static void say_closing(tqi_unit_t *unit, tqi_peer_t peer, uint64_t session, uint32_t epoch)
{
    request_t to = {.peer = peer, .session = session, .epoch = epoch, .kind = TQI_KIND_Closing};

    say(unit, &to, &(tqi_msg_Closing_t){0});
}

void tqi_unit_say_closing(tqi_unit_t *unit)
{
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&unit->sessions); it;
         it = tqi_map_u64_next(it)) {
        const session_t *session = it->value;

        if (session->peer && session->state != SESSION_ENDED)
            say_closing(unit, session->peer, session->id, session->epoch);
    }
    unit->has_controller_heard = !unit->controller || unit->member != MEMBER_INSIDE;
    if (!unit->has_controller_heard)
        say_closing(unit, unit->controller, 0, 0);
}

bool tqi_unit_is_heard(const tqi_unit_t *unit)
{
    for (tqi_map_u64_item_t *it = tqi_map_u64_first(&unit->sessions); it;
         it = tqi_map_u64_next(it)) {
        const session_t *session = it->value;

        if (session->peer && session->state != SESSION_ENDED && !session->has_heard_closing)
            return false;
    }
    return unit->has_controller_heard;
}

/* ---- figures and checks ----------------------------------------------------------------------- */

tq_status_t tqi_unit_stat(const tqi_unit_t *unit, tqi_buf_t *json)
{
    const unit_counters_t *c = &unit->counters;
    tqi_objects_stat_t s;
    tq_status_t rc;

    tqi_objects_stat(unit->objs, &s);
    rc = tqi_buf_printf(
        json,
        "{\"unit_id\":%u,\"unit_incarnation\":\"%016" PRIx64
        "\",\"store_incarnation\":\"%016" PRIx64
        "\",\"is_registered\":%s,\"is_draining\":%s,\"sessions\":%zu,\"orders\":%zu,"
        "\"capacity_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64 ",\"zombie_bytes\":%" PRIu64
        ",\"idle_bytes\":%" PRIu64 ",\"meta_bytes\":%" PRIu64 ",\"mapped_bytes\":%" PRIu64
        ",\"segments\":%u,"
        "\"cells_published\":%" PRIu64 ",\"cells_staged\":%" PRIu64 ",\"cells_claimed\":%" PRIu64
        ",\"rows_pinned\":%" PRIu64 ",\"runs\":%" PRIu64 ",\"puts_unconfirmed\":%" PRIu64
        ",\"fields\":%" PRIu64 ",\"blocks\":%" PRIu64 ",\"waiters\":[%zu,%zu]"
        ",\"waiters_bytes\":%" PRIu64,
        unit->unit_id, unit->conf.unit_incarnation, unit->store_incarnation,
        unit->member == MEMBER_INSIDE ? "true" : "false", unit->is_draining ? "true" : "false",
        tqi_map_u64_count(&unit->sessions), unit->orders.cnt, s.capacity_bytes, s.used_bytes,
        s.zombie_bytes, s.idle_bytes, s.meta_bytes, s.mapped_bytes, s.segments_cnt, s.published_cnt,
        s.staged_cnt, s.claimed_cnt, s.pinned_cnt, s.runs_cnt, s.puts_cnt, s.fields_cnt,
        s.blocks_cnt, unit->waiters[0].cnt, unit->waiters[1].cnt, unit->waiters_bytes);
    if (rc == TQ_OK)
        rc = tqi_buf_printf(json, ",\"transfers\":{\"now\":{");
    for (int i = 0; rc == TQ_OK && i < TQI_TRANSFER_DONE; i++)
        rc = tqi_buf_printf(json, "%s\"%s\":%" PRIu64, i ? "," : "",
                            tqi_transfer_state_name((tqi_transfer_state_t)i), unit->counts.now[i]);
    if (rc == TQ_OK)
        rc = tqi_buf_printf(json,
                            "},\"done\":%" PRIu64 ",\"expired\":%" PRIu64 "},\"puts\":%" PRIu64
                            ",\"gets\":%" PRIu64 ",\"put_bytes\":%" PRIu64 ",\"get_bytes\":%" PRIu64
                            ",\"waited\":%" PRIu64 ",\"messages\":%" PRIu64
                            ",\"malformed\":%" PRIu64 ",\"dropped\":%" PRIu64
                            ",\"refused\":%" PRIu64 ",\"replies_lost\":%" PRIu64 "}",
                            unit->counts.entered[TQI_TRANSFER_DONE], c->expired, c->puts, c->gets,
                            c->put_bytes, c->get_bytes, c->waited, c->messages, c->malformed,
                            c->dropped, c->refused, c->replies_lost);
    return rc;
}

/* A transfer holds what its state says, and nothing else. */
static tq_status_t check_transfer(const transfer_t *t, uint64_t *pins, tqi_err_t *err)
{
    bool is_put = t->core.kind <= TQI_PUT_DIRECT;
    bool has_batch =
        is_put && t->core.state != TQI_TRANSFER_PARKED && t->core.state != TQI_TRANSFER_BROKEN;

    if ((t->batch != NULL) != has_batch || t->view.is_pinned != !is_put ||
        tqi_node_is_linked(&t->node) != (t->core.state == TQI_TRANSFER_PARKED))
        return tqi_fail(err, TQ_E_BUG, "transfer %" PRIu64 " (%s, %s) holds what it should not",
                        t->core.id, tqi_transfer_kind_name(t->core.kind),
                        tqi_transfer_state_name(t->core.state));
    if (t->batch &&
        (!t->batch->is_open || t->batch->is_doomed != (t->core.state == TQI_TRANSFER_DROPPING ||
                                                       t->core.state == TQI_TRANSFER_HELD)))
        return tqi_fail(err, TQ_E_BUG, "transfer %" PRIu64 ": its batch is in another state",
                        t->core.id);
    for (size_t i = 0; i < t->view.ranges.len; i++)
        *pins += t->view.ranges.at[i].cnt;
    return TQ_OK;
}

bool tqi_unit_check(const tqi_unit_t *unit, tqi_err_t *err)
{
    uint64_t transfers_cnt = 0;
    uint64_t pins = 0;
    tqi_objects_stat_t stat;
    tq_status_t rc = tqi_objects_check(unit->objs, err);

    for (tqi_map_u64_item_t *s = tqi_map_u64_first(&unit->sessions); s; s = tqi_map_u64_next(s)) {
        const session_t *session = s->value;

        transfers_cnt += tqi_map_u64_count(&session->transfers);
        for (tqi_map_u64_item_t *it = tqi_map_u64_first(&session->transfers); it && rc == TQ_OK;
             it = tqi_map_u64_next(it))
            rc = check_transfer(it->value, &pins, err);
        if (rc == TQ_OK && session->state == SESSION_ENDED &&
            tqi_map_u64_count(&session->transfers) == 0)
            rc = tqi_fail(err, TQ_E_BUG, "session %" PRIu64 " has ended and is still there",
                          session->id);
    }
    tqi_objects_stat(unit->objs, &stat);
    if (rc == TQ_OK && (transfers_cnt != unit->transfers_cnt || pins != stat.pinned_cnt))
        rc = tqi_fail(err, TQ_E_BUG,
                      "%" PRIu64 " transfers with %" PRIu64 " pins, counted as %" PRIu64
                      " and %" PRIu64,
                      transfers_cnt, pins, unit->transfers_cnt, stat.pinned_cnt);
    return rc == TQ_OK;
}
