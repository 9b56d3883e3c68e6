/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole client whose controller and units are hostile. The host submits ops of every kind, takes,
 * cancels and abandons them, and plays the payload port, as the story says. Whatever the store
 * answers: each op ends once, memory goes back, and close ends within its bound.
 */
#include "peer.h"

#include <string.h>

#include "base/size.h"
#include "role/client/client.h"

#define OPS_MAX 64
#define TRANSFERS_MAX 256
#define BUFFERS_BYTES_MAX (4u << 20)
#define SESSION 77u
#define HOST_WORDS 20 /* of the host's, see host() */

static fuzz_t f;
static tqi_client_t *client;
static tqi_op_t *ops[OPS_MAX]; /* submitted; NULL: free */
static bool is_done[OPS_MAX];
static unsigned buffers_cnt;
static size_t buffers_bytes;
static tqi_payload_mode_t mode;

static struct {
    tqi_transfer_key_t key;
    bool is_dropped;
} transfers[TRANSFERS_MAX];
static unsigned transfers_cnt;

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng);

static bool is_wanted(const tqi_msg_info_t *info)
{
    return (info->kind & TQI_KIND_REPLY) &&
           (strstr(info->direction, "TO_CLIENT") || strcmp(info->direction, "ANY") == 0);
}

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng)
{
    if (tqi_rng_below(rng, 3) > 0)
        return fuzz_story_change(data, len, cap, rng, is_wanted);
    /* The host does something more, at the end or at the start. */
    fuzz_record_t record = {.choice = (uint8_t)(FUZZ_HOST << 2 | tqi_rng_below(rng, 6) << 5),
                            .flags = (uint8_t)tqi_rng_u64(rng),
                            .seq = (uint8_t)tqi_rng_u64(rng),
                            .ack = (uint8_t)tqi_rng_u64(rng)};
    if (cap - len < FUZZ_HEAD)
        return len;
    if (tqi_rng_below(rng, 2) == 0)
        return len + fuzz_record_write(data + len, cap - len, &record);
    memmove(data + FUZZ_HEAD, data, len);
    (void)fuzz_record_write(data, FUZZ_HEAD, &record);
    return len + FUZZ_HEAD;
}

/* ---- the payload port ------------------------------------------------------------------------ */

static tqi_payload_mode_t port_open(tqi_payload_client_t *port, uint64_t unit_id,
                                    const char *address, const void *token, size_t token_len,
                                    uint64_t session, uint64_t arena, tqi_err_t *err)
{
    (void)port, (void)unit_id, (void)session, (void)arena;
    fuzz_require(address && (token || token_len == 0) && token_len <= 16, "a way to nowhere");
    if (mode == TQI_PAYLOAD_NONE)
        tqi_fail(err, TQ_E_UNSUPPORTED, "there is no way");
    return mode;
}

static void port_close(tqi_payload_client_t *port, uint64_t unit_id)
{
    (void)port;
    for (unsigned i = 0; i < transfers_cnt; i++)
        if (transfers[i].key.owner == unit_id)
            transfers[i].is_dropped = true;
}

static tq_status_t port_begin(tqi_transfer_key_t key, const tqi_frame_t *frames, uint32_t cnt,
                              bool is_write, tqi_err_t *err)
{
    if (transfers_cnt == TRANSFERS_MAX)
        return tqi_fail(err, TQ_E_NO_MEMORY, "the port is full");
    for (uint32_t i = 0; i < cnt; i++) {
        uint64_t bytes = 0;
        for (uint32_t p = 0; p < frames[i].pieces_cnt; p++) {
            const tqi_piece_t *piece = &frames[i].pieces[p];
            volatile uint8_t *first = piece->data, *last = first + piece->len - 1;
            if (is_write)
                (void)*first, (void)*last;
            else
                *first = *last = 1;
            bytes += piece->len;
        }
        fuzz_require(bytes == frames[i].bytes, "a frame's pieces are not the frame");
    }
    transfers[transfers_cnt].is_dropped = false;
    transfers[transfers_cnt++].key = key;
    return TQ_OK;
}

static tq_status_t port_write(tqi_payload_client_t *port, tqi_transfer_key_t key,
                              const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                              uint32_t cnt, void *copier, tqi_err_t *err)
{
    (void)port, (void)remote, (void)copier;
    return port_begin(key, frames, cnt, true, err);
}

static tq_status_t port_read(tqi_payload_client_t *port, tqi_transfer_key_t key,
                             const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                             uint32_t cnt, void *copier, tqi_err_t *err)
{
    (void)port, (void)remote, (void)copier;
    return port_begin(key, frames, cnt, false, err);
}

static void port_drop(tqi_payload_client_t *port, tqi_transfer_key_t key)
{
    (void)port;
    for (unsigned i = 0; i < transfers_cnt; i++)
        if (transfers[i].key.owner == key.owner && transfers[i].key.transfer == key.transfer)
            transfers[i].is_dropped = true;
}

static void port_end(fuzz_t *fuzz, unsigned i, tq_status_t status)
{
    tqi_transfer_key_t key = transfers[i].key;
    transfers[i] = transfers[--transfers_cnt];
    fuzz->role->on_payload(fuzz->role, key, status, status == TQ_OK ? "" : "as the story wants",
                           fuzz->now_ns);
}

static void after_step(fuzz_t *fuzz)
{
    for (unsigned i = 0; i < transfers_cnt;) {
        if (transfers[i].is_dropped)
            port_end(fuzz, i, TQ_E_CANCELLED);
        else
            i++;
    }
}

/* ---- the host -------------------------------------------------------------------------------- */

struct tq_buffer {
    size_t bytes;
    void *data;
};

static void on_done(void *ctx, tqi_op_t *op)
{
    size_t i = (size_t)(uintptr_t)tqi_op_user(op);
    (void)ctx;
    fuzz_require(i < OPS_MAX && ops[i] == op && !is_done[i], "an op ended twice");
    is_done[i] = true;
}

static tq_buffer_t *buffer_take(void *ctx, size_t bytes, void **data)
{
    (void)ctx;
    if (bytes > BUFFERS_BYTES_MAX - buffers_bytes)
        return NULL;
    tq_buffer_t *buffer = malloc(sizeof *buffer);
    *buffer = (tq_buffer_t){bytes, aligned_alloc(64, (bytes + 63) / 64 * 64)};
    *data = buffer->data;
    buffers_cnt++;
    buffers_bytes += bytes;
    return buffer;
}

static void buffer_give(tq_buffer_t *buffer)
{
    buffers_cnt--;
    buffers_bytes -= buffer->bytes;
    free(buffer->data);
    free(buffer);
}

/* Reads what an op gave, so that a sanitizer sees memory that is not its own. */
static void look_at(const tq_result_t *r)
{
    static volatile uint64_t seen;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r->rows_cnt; i++) {
        sum += r->rows ? r->rows[i] : 0;
        sum += r->units ? r->units[i] : 0;
    }
    for (uint32_t i = 0; i < r->keys.cnt; i++)
        sum += r->has_key ? r->has_key[i] : 0;
    for (uint32_t i = 0; i < r->fields.cnt && r->schemas; i++)
        sum += r->schemas[i].encoding;
    for (uint64_t i = 0; r->status && i < (uint64_t)r->rows_cnt * tqi_u64_max(r->fields.cnt, 1);
         i++)
        sum += r->status[i];
    fuzz_require(r->keys.cnt == 0 || r->keys.cnt == r->rows_cnt, "%u keys of %u rows", r->keys.cnt,
                 r->rows_cnt);
    sum += r->json ? strlen(r->json) : 0;
    for (uint32_t i = 0; i < r->columns_cnt; i++) {
        const tq_column_out_t *c = &r->columns[i];
        if (!c->buffer)
            continue;
        const uint8_t *data = c->buffer->data;
        for (uint32_t row = 0; row < r->rows_cnt; row++) {
            uint64_t len = c->layout == TQ_LAYOUT_EACH
                               ? c->descs[row].len
                               : (uint64_t)(c->offsets[row + 1] - c->offsets[row]);
            fuzz_require((uint64_t)c->offsets[row] + len <= c->buffer->bytes,
                         "row %u of column %u is outside of its buffer", row, i);
            sum += len > 0 ? data[c->offsets[row]] + data[(uint64_t)c->offsets[row] + len - 1] : 0;
        }
    }
    seen = sum;
    (void)seen;
}

static const uint32_t one_name[] = {0, 1}, two_keys[] = {0, 2, 4};
static const tq_strs_t field_f = {1, one_name, "f"}, keys_2 = {2, two_keys, "k0k1"};
static const tq_row_t rows_2[] = {0, 1};
static const uint8_t zeros[200000];

static tq_status_t make_op(unsigned what, unsigned variant, tqi_op_t **op)
{
    const tqi_env_t *env = &f.env;
    uint64_t bytes = variant & 1 ? sizeof zeros / 2 : 8;
    tq_column_t column = {.field = "f",
                          .layout = TQ_LAYOUT_UNIFORM,
                          .desc = {.encoding = TQ_ENC_BYTES, .len = bytes},
                          .data = zeros,
                          .row_stride = (int64_t)bytes};
    switch (what % 12) {
    case 0:
        return tqi_op_put(env,
                          &(tq_put_args_t){.partition = "p",
                                           .rows_cnt = 2,
                                           .keys = variant & 2 ? &keys_2 : NULL,
                                           .rows = variant & 2 ? NULL : rows_2,
                                           .columns_cnt = 1,
                                           .columns = &column,
                                           .flags = variant & 4 ? TQ_PUT_WANT_META : 0},
                          op, NULL);
    case 1:
        return tqi_op_put(
            env,
            &(tq_put_args_t){.partition = "p", .rows_cnt = 2, .columns_cnt = 1, .columns = &column},
            op, NULL);
    case 2:
    case 3:
        return tqi_op_get(env,
                          &(tq_get_args_t){.partition = "p",
                                           .keys = variant & 1 ? &keys_2 : NULL,
                                           .rows_cnt = variant & 1 ? 0 : 2,
                                           .rows = variant & 1 ? NULL : rows_2,
                                           .fields = variant & 2 ? &field_f : NULL},
                          op, NULL);
    case 4:
        return tqi_op_fetch(env,
                            &(tq_fetch_args_t){.partition = "p",
                                               .fields = &field_f,
                                               .rows_cnt = 2,
                                               .task = "t",
                                               .mode = variant & 1 ? TQ_FETCH_ALL : TQ_FETCH,
                                               .is_polling = variant & 2},
                            op, NULL);
    case 5:
        return tqi_op_insert(
            env, &(tq_insert_args_t){.partition = "p", .rows_cnt = 2, .fields = &field_f}, op,
            NULL);
    case 6:
        return tqi_op_clear(env,
                            &(tq_clear_args_t){.partition = "p",
                                               .rows_cnt = variant & 1 ? 2 : 0,
                                               .rows = variant & 1 ? rows_2 : NULL,
                                               .is_all = !(variant & 1)},
                            op, NULL);
    case 7:
        return tqi_op_reset(env, &(tq_reset_args_t){.partition = "p", .task = "t"}, op, NULL);
    case 8:
        return tqi_op_resolve(env,
                              &(tq_resolve_args_t){.partition = "p",
                                                   .keys = variant & 1 ? &keys_2 : NULL,
                                                   .rows_cnt = variant & 1 ? 0 : 2,
                                                   .rows = variant & 1 ? NULL : rows_2,
                                                   .is_create = (variant & 3) == 3},
                              op, NULL);
    case 9:
        return tqi_op_status_of(
            env,
            &(tq_status_args_t){.partition = "p",
                                .kind = variant & 1 ? TQ_STATUS_PRODUCTION : TQ_STATUS_CONSUMPTION,
                                .task = "t",
                                .fields = &field_f},
            op, NULL);
    case 10:
        return tqi_op_list(env,
                           &(tq_list_args_t){.partition = variant & 1 ? "p" : NULL,
                                             .want_fields = variant & 2,
                                             .rows_max = variant & 4 ? 2 : 0},
                           op, NULL);
    default:
        return tqi_op_stat(env, 0, op, NULL);
    }
}

static void submit(unsigned what, unsigned variant)
{
    for (size_t i = 0; i < OPS_MAX; i++) {
        if (ops[i])
            continue;
        if (make_op(what, variant, &ops[i]) != TQ_OK) {
            ops[i] = NULL;
            return;
        }
        f.allowed += 65536;
        is_done[i] = false;
        tqi_op_set_user(ops[i], (void *)(uintptr_t)i);
        tqi_client_submit(client, ops[i], f.now_ns);
        return;
    }
}

/* Takes what is done, from op `from` on; or only one where `is_one`. */
static void reap(size_t from, bool is_one, bool is_discarded)
{
    for (size_t n = 0; n < OPS_MAX; n++) {
        size_t i = (from + n) % OPS_MAX;
        if (!ops[i] || !is_done[i])
            continue;
        if (tqi_op_status(ops[i]) == TQ_OK)
            look_at(tqi_op_result(ops[i]));
        else
            fuzz_require(tqi_op_error(ops[i])[0] != 0, "an error without a sentence");
        if (is_discarded)
            tqi_client_discard(client, ops[i], f.now_ns);
        else
            tqi_client_taken(client, ops[i], f.now_ns);
        tqi_op_free(ops[i]);
        ops[i] = NULL;
        if (is_one)
            return;
    }
}

/* FUZZ_HOST: seq says what, flags and ack about what. */
static void host(fuzz_t *fuzz, const fuzz_record_t *record)
{
    unsigned what = record->seq % HOST_WORDS;
    size_t i = record->flags % OPS_MAX;
    (void)fuzz;
    if (what < 12)
        submit(what, record->flags);
    else if (what == 12 && ops[i] && !is_done[i])
        tqi_client_cancel(client, ops[i], f.now_ns);
    else if (what == 13 && ops[i] && !is_done[i])
        tqi_client_abandon(client, ops[i], f.now_ns);
    else if (what == 14 || what == 15)
        reap(i, what == 14, record->ack & 1);
    else if (what == 16)
        mode = (tqi_payload_mode_t)(record->flags % 3);
    else if (what == 17 && record->flags == 0xff)
        tqi_client_close(client, f.now_ns);
    else if (what >= 17 && transfers_cnt > 0)
        port_end(&f, record->flags % transfers_cnt, record->ack & 1 ? TQ_E_PEER_LOST : TQ_OK);
}

static void check(fuzz_t *fuzz)
{
    tqi_err_t err = {0};
    (void)fuzz;
    fuzz_require(tqi_client_check(client, &err), "%s", err.text);
}

static void on_connect(fuzz_t *fuzz, tqi_peer_t peer, const char *address)
{
    /* The controller is peer 0, units are the others in turn. */
    static unsigned turn;
    unsigned who = strcmp(address, "fuzz://controller") == 0 ? 0 : 1 + turn++ % 3;
    fuzz->peers[who] = peer;
    fuzz->sender = 0;
}

/* The store's greeting, so that stories begin in a session with two units. */
static void greet(void)
{
    static const uint32_t ids[] = {1, 2}, offsets[] = {0, 12, 24}, host_offsets[] = {0, 1, 2};
    static const uint8_t lost[] = {0, 0};
    tqi_msg_Hello_R_t msg = {.version = 1,
                             .ping_ms = 1000,
                             .silence_ms = 5000,
                             .table_version = 1,
                             .unit_ids = tqi_u32s(ids, 2),
                             .unit_addresses = {offsets, "tcp://unit:1tcp://unit:2", 2, 24},
                             .unit_hosts = {host_offsets, "hh", 2, 2},
                             .unit_lost = {lost, 2}};
    tqi_envelope_t env = {
        .kind = TQI_KIND_Hello_R, .incarnation = FUZZ_STORE, .session = SESSION, .epoch = 1};
    fuzz_say(&f, f.peers[0], &env, &msg);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    tqi_payload_client_t port = {port_open, port_close, port_write, port_read, port_drop};
    tqi_client_conf_t conf = {.address = "fuzz://controller",
                              .host = {NULL, on_done, NULL, buffer_take, buffer_give}};
    tqi_err_t err;
    fuzz_init(&f);
    f.on_connect = on_connect;
    f.after_step = after_step;
    f.host = host;
    f.check = check;
    for (int i = 0; i < FUZZ_PEERS; i++)
        f.sessions[i] = SESSION;
    memset(ops, 0, sizeof ops);
    transfers_cnt = buffers_cnt = 0;
    buffers_bytes = 0;
    /* The first byte: how payload goes, and whether the story begins before the greeting. */
    mode = len > 0 ? (tqi_payload_mode_t)(data[0] % 3) : TQI_PAYLOAD_NONE;
    if (tqi_client_new(&f.env, &conf, &f.ctrl, &port, f.now_ns, &client, &err) != TQ_OK)
        abort();
    f.role = tqi_client_role(client);
    fuzz_step(&f);
    if (len > 0 && !(data[0] & 128))
        greet();
    fuzz_step(&f);
    if (len > 0)
        fuzz_feed(&f, data + 1, len - 1);

    f.where = "close";
    tqi_client_close(client, f.now_ns);
    fuzz_pass(&f, 5000);
    while (transfers_cnt > 0) {
        port_end(&f, 0, TQ_E_CLOSED);
        fuzz_step(&f);
    }
    fuzz_pass(&f, 5000);
    for (size_t i = 0; i < OPS_MAX; i++)
        fuzz_require(!ops[i] || is_done[i], "op %zu has not ended 10 s after close", i);
    fuzz_require(tqi_client_is_closed(client), "the client is not closed after 10 s");
    check(&f);
    reap(0, false, false);
    tqi_client_free(client);
    fuzz_require(buffers_cnt == 0, "%u buffers were not given back", buffers_cnt);
    fuzz_over(&f);
}
