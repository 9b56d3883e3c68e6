/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole storage unit with hostile clients. Peer 0 is its controller: honest, until the story has
 * it say something, from when on nobody is promised anything but that the unit stays whole.
 *
 * With an honest controller an honest client's requests succeed at the end: some while the others'
 * state is there, a put and a get once their sessions were ended and their rows cleared; then the
 * unit holds little more than it did at first.
 */
#include "peer.h"

#include <string.h>

#include "base/size.h"
#include "core/object.h"
#include "role/storage/unit.h"
#include "wire/coldesc.h"

#define CAPACITY (1u << 20)
#define SEGMENT_BYTES (1u << 18)
#define SEGMENTS_MAX 64
#define TRANSFERS_MAX 256
#define FRIEND_SESSION UINT64_C(0x7000000000000001)
/* Far from the words of the grammar, and from its edges. */
#define FRIEND_ROW (UINT64_C(0x5a5a5a5a) * 1024)
#define FRIEND_PUT UINT64_C(0x5a5a5a5a5a5a)
/* What stays of a unit that was used: containers that keep their room, which sessions have ended. */
#define KEPT_BYTES (1u << 20)

static fuzz_t f;
static tqi_unit_t *unit;
static tqi_peer_t controller;
static bool is_betrayed; /* the controller is hostile */
static uint64_t pinged_ns, order_seq;

static struct {
    uint32_t id;
    void *base;
} segments[SEGMENTS_MAX];

/* What the payload port has. */
static struct {
    tqi_transfer_key_t key;
    bool is_dropped;
} transfers[TRANSFERS_MAX];
static unsigned transfers_cnt;

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng);

static bool is_wanted(const tqi_msg_info_t *info)
{
    return strcmp(info->direction, "CLIENT_TO_UNIT") == 0 ||
           (strstr(info->direction, "TO_ANY") && !(info->kind & TQI_KIND_REPLY));
}

size_t tqi_fuzz_change(uint8_t *data, size_t len, size_t cap, tqi_rng_t *rng)
{
    return fuzz_story_change(data, len, cap, rng, is_wanted);
}

/* ---- arena ----------------------------------------------------------------------------------- */

static tq_status_t segment_open(tqi_arena_t *arena, uint32_t id, uint64_t bytes, void **base,
                                tqi_err_t *err)
{
    (void)arena;
    for (int i = 0; i < SEGMENTS_MAX; i++) {
        if (segments[i].base)
            continue;
        segments[i].id = id;
        *base = segments[i].base = malloc(bytes);
        return *base ? TQ_OK : tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a segment");
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

/* ---- payload --------------------------------------------------------------------------------- */

static tq_status_t port_offer(tqi_payload_unit_t *port, uint64_t session, const char **address,
                              uint8_t token[16], uint64_t *direct_arena)
{
    (void)port;
    *address = "fuzz://payload";
    memset(token, 1, 16);
    *direct_arena = session % 2; /* every other session is in this process */
    return TQ_OK;
}

static void port_forget(tqi_payload_unit_t *port, uint64_t session)
{
    (void)port, (void)session;
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
            /* Memory that is the unit's, or a sanitizer says so. */
            if (is_write)
                *first = *last = 1;
            else
                (void)*first, (void)*last;
            bytes += piece->len;
        }
        fuzz_require(bytes == frames[i].bytes, "a frame's pieces are not the frame");
    }
    transfers[transfers_cnt].is_dropped = false;
    transfers[transfers_cnt++].key = key;
    return TQ_OK;
}

static tq_status_t port_expect(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                               const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    (void)port;
    return port_begin(key, frames, cnt, true, err);
}

static tq_status_t port_send(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                             const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    (void)port;
    return port_begin(key, frames, cnt, false, err);
}

static void port_drop(tqi_payload_unit_t *port, tqi_transfer_key_t key)
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

/* FUZZ_HOST: a transfer of the port ends, well or not. */
static void host(fuzz_t *fuzz, const fuzz_record_t *record)
{
    if (transfers_cnt > 0)
        port_end(fuzz, record->seq % transfers_cnt, record->flags & 1 ? TQ_E_PEER_LOST : TQ_OK);
}

/* ---- the controller -------------------------------------------------------------------------- */

static void from_controller(uint16_t kind, uint64_t seq, const void *msg)
{
    tqi_envelope_t env = {.kind = kind, .incarnation = FUZZ_STORE, .seq = seq};
    fuzz_say(&f, controller, &env, msg);
    while (f.role->step(f.role, f.now_ns) <= f.now_ns)
        continue;
}

static void registers(void)
{
    tqi_msg_Register_R_t msg = {.version = 1, .unit_id = 1, .silence_ms = 5000};
    from_controller(TQI_KIND_Register_R, 0, &msg);
}

static void on_connect(fuzz_t *fuzz, tqi_peer_t peer, const char *address)
{
    (void)address;
    controller = fuzz->peers[0] = peer;
}

/* Time passes in steps of half a second, so an honest controller is never silent for long. */
static void after_step(fuzz_t *fuzz)
{
    static const tqi_msg_Ping_t ping = {0};
    while (transfers_cnt > 0) {
        unsigned i = 0;
        while (i < transfers_cnt && !transfers[i].is_dropped)
            i++;
        if (i == transfers_cnt)
            break;
        port_end(fuzz, i, TQ_E_CANCELLED);
    }
    if (is_betrayed || fuzz->now_ns < pinged_ns + 1000 * FUZZ_MS)
        return;
    pinged_ns = fuzz->now_ns;
    if (!tqi_unit_is_registered(unit))
        registers();
    from_controller(TQI_KIND_Ping, 0, &ping);
}

static void check(fuzz_t *fuzz)
{
    tqi_err_t err = {0};
    (void)fuzz;
    fuzz_require(tqi_unit_check(unit, &err), "%s", err.text);
}

/* Is it the controller who speaks? */
static bool is_of_controller(const uint8_t *data, size_t len)
{
    fuzz_record_t record;
    for (size_t at = 0; fuzz_record_read(data, len, &at, &record);)
        if ((record.choice & 3) == 0 && (record.choice >> 2 & 7) != FUZZ_HOST &&
            (record.choice >> 2 & 7) != FUZZ_HOST_TOO)
            return true;
    return false;
}

/* ---- the honest client ----------------------------------------------------------------------- */

static uint64_t seq;

#define ask(kind, msg)                                                                             \
    do {                                                                                           \
        tq_status_t rc_ = fuzz_ask(&f, kind, FRIEND_SESSION, ++seq, msg);                          \
        fuzz_require(rc_ == TQ_OK, "an honest client's %s: %s", #kind, fuzz_answer_text(&f));      \
    } while (0)

static void friend_joins(void)
{
    tqi_msg_Hello_t hello = {.version_min = 1, .version_max = 1};
    f.where = "an honest client's work";
    f.friend = fuzz_connect_peer(&f);
    f.friend_epoch = 1;
    seq = 0;
    tq_status_t rc = fuzz_ask(&f, TQI_KIND_Hello, FRIEND_SESSION, 0, &hello);
    fuzz_require(rc == TQ_OK, "an honest client's HELLO: %s", fuzz_answer_text(&f));
    ask(TQI_KIND_Stat, NULL);
}

/* The controller ends every session but the honest one, and clears their rows. */
static void others_go(void)
{
    tqi_msg_EndSession_t end = {0};
    static const uint64_t lo[] = {0, FRIEND_ROW + 1024}, hi[] = {FRIEND_ROW, (uint64_t)TQ_ROW_MAX};
    tqi_msg_Unlink_t unlink = {.clear_id = 1, .lo = tqi_u64s(lo, 2), .hi = tqi_u64s(hi, 2)};
    for (int i = 0; i < FUZZ_PEERS; i++) {
        end.session = f.sessions[i];
        if (end.session != 0)
            from_controller(TQI_KIND_EndSession, ++order_seq, &end);
    }
    for (end.session = 1; end.session < 256; end.session++) /* FUZZ_F_GUESSED_SESSION */
        from_controller(TQI_KIND_EndSession, ++order_seq, &end);
    from_controller(TQI_KIND_Unlink, ++order_seq, &unlink);
    fuzz_pass(&f, 2000);
}

static void one_desc(void *ctx, uint32_t row, tq_desc_t *desc)
{
    (void)ctx, (void)row;
    *desc = (tq_desc_t){.encoding = TQ_ENC_BYTES, .len = 4};
}

static void friend_works(void)
{
    static const uint64_t rows[2] = {FRIEND_ROW, FRIEND_ROW + 1};
    static const uint32_t offsets[] = {0, 1};
    const tqi_strs_t fields = {offsets, "f", 1, 1};
    tqi_msg_PrepareGet_R_t got;
    tqi_strs_builder_t columns;
    tqi_buf_t column;
    tqi_buf_init(&column, &f.env);
    tqi_strs_builder_init(&columns, &f.env);
    if (tqi_coldesc_encode(&column, 2, one_desc, NULL, NULL) != TQ_OK ||
        tqi_strs_builder_add(&columns, column.data, column.len) != TQ_OK)
        abort();
    tqi_msg_PreparePut_t put = {.transfer = 1,
                                .put_id = FRIEND_PUT,
                                .rows = tqi_u64s(rows, 2),
                                .fields = fields,
                                .columns = tqi_strs_builder_view(&columns),
                                .is_fused = true,
                                .inline_bytes = {"abcdefgh", 8}};
    ask(TQI_KIND_PreparePut, &put);
    tqi_msg_PrepareGet_t get = {.transfer = 2,
                                .rows = tqi_u64s(rows, 2),
                                .fields = fields,
                                .produced = {"\3", 1},
                                .inline_max = 64};
    ask(TQI_KIND_PrepareGet, &get);
    fuzz_require(tqi_msg_decode(&f.answer_env, TQI_KIND_PrepareGet_R, &got, NULL) == TQ_OK &&
                     got.is_inline && got.inline_bytes.len == 8 &&
                     memcmp(got.inline_bytes.data, "abcdefgh", 8) == 0,
                 "an honest client reads something else than it wrote");
    tqi_strs_builder_fini(&columns);
    tqi_buf_fini(&column);
}

void tqi_fuzz_one(const uint8_t *data, size_t len)
{
    static const char *const addresses[] = {"fuzz://unit"};
    tqi_arena_t arena = {segment_open, segment_punch, segment_close};
    tqi_payload_unit_t port = {port_offer, port_forget, port_expect, port_send, port_drop};
    tqi_unit_conf_t conf = {.unit_incarnation = 5,
                            .controller = "fuzz://controller",
                            .addresses = addresses,
                            .addresses_cnt = 1,
                            .host = "host",
                            .name = "unit",
                            .capacity_bytes = CAPACITY,
                            .segment_bytes = SEGMENT_BYTES};
    tqi_err_t err;
    fuzz_init(&f);
    f.on_connect = on_connect;
    f.after_step = after_step;
    f.host = host;
    f.check = check;
    f.allowed += TQI_META_BYTES_MIN; /* of objects, whoever put them */
    for (int i = 0; i < FUZZ_PEERS; i++)
        f.sessions[i] = 7 + (uint64_t)i;
    transfers_cnt = 0;
    pinged_ns = order_seq = 0;
    is_betrayed = is_of_controller(data, len);
    if (tqi_unit_new(&f.env, &conf, &f.ctrl, &port, &arena, f.now_ns, &unit, &err) != TQ_OK)
        abort();
    f.role = tqi_unit_role(unit);
    registers();
    fuzz_step(&f);
    size_t before = f.bytes;
    fuzz_feed(&f, data, len);
    if (!is_betrayed) {
        friend_joins();
        others_go();
        friend_works();
        check(&f);
        fuzz_require(f.bytes <= before + KEPT_BYTES,
                     "a unit without anybody else's holds %zu bytes, %zu at first", f.bytes,
                     before);
    }
    while (transfers_cnt > 0)
        port_end(&f, 0, TQ_E_CLOSED);
    tqi_unit_free(unit);
    fuzz_over(&f);
}
