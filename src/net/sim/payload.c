/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode STREAM, to the rules of the adapter over libzmq: chunks in order on a connection of their own
 * under credit; the sender's end says that the bytes have left it, not that they arrived; a
 * connection that breaks ends the client's transfers on it, while the unit's wait for whoever drops
 * them.
 */
#include <inttypes.h>

#include "net/sim/internal.h"
#include "sys/env_malloc.h"

#define SCHEME "simdata://"
#define TOKEN_BYTES 16

typedef enum chunk_kind {
    CHUNK_HELLO = 1,
    CHUNK_DATA,
    CHUNK_CREDIT,
    CHUNK_STOP,
    CHUNK_REFUSED
} chunk_kind_t;

typedef struct chunk {
    uint32_t kind;
    uint32_t frame;
    uint64_t id; /* transfer; HELLO: session */
    uint64_t offset;
    uint64_t credit;
} chunk_t;

/* The client's way to a unit. */
typedef struct way {
    tqi_sim_host_t *host;
    uint64_t unit_id;
    char target[64];
    uint8_t token[TOKEN_BYTES];
    uint64_t session;
    conn_t *conn;           /* NULL: broken */
    tqi_sim_host_t *direct; /* else STREAM */
    uint64_t direct_handle;
} way_t;

/* A session that a unit lets in. */
typedef struct admitted {
    uint64_t session;
    uint8_t token[TOKEN_BYTES];
    conn_t *conn; /* NULL: its connection has not shown, or is gone */
} admitted_t;

typedef struct transfer {
    tqi_node_t node;
    tqi_sim_host_t *host;
    tqi_transfer_key_t key;
    way_t *way; /* client side */
    bool is_outgoing;
    bool is_over; /* to be reported by the event */
    tq_status_t status;
    const char *text;
    tqi_sim_event_t event; /* the next chunk, or the report */
    tqi_frame_t *frames;
    tqi_piece_t *pieces;
    uint32_t frames_cnt;
    uint32_t frame; /* where we are */
    uint32_t piece;
    uint64_t in_piece;
    uint64_t offset; /* in the frame */
    uint64_t credit;
    uint64_t ungranted;
} transfer_t;

/* ---- transfers --------------------------------------------------------------------------------- */

static transfer_t *transfer_find(tqi_sim_host_t *host, tqi_transfer_key_t key, bool is_unit)
{
    tqi_list_each(&host->transfers, node)
    {
        transfer_t *t = tqi_container_of(node, transfer_t, node);
        if (t->key.owner == key.owner && t->key.transfer == key.transfer &&
            (t->way == NULL) == is_unit && !t->is_over)
            return t;
    }
    return NULL;
}

static void transfer_free(transfer_t *t)
{
    tqi_sim_cancel(t->host->sim, &t->event);
    tqi_list_remove(&t->host->transfers, &t->node);
    free(t->frames);
    free(t->pieces);
    free(t);
}

/* Steps over what is empty or finished; true at the end of all frames. */
static bool at_end(transfer_t *t)
{
    while (t->frame < t->frames_cnt) {
        const tqi_frame_t *frame = &t->frames[t->frame];
        while (t->piece < frame->pieces_cnt && t->in_piece == frame->pieces[t->piece].len)
            t->piece++, t->in_piece = 0;
        if (t->piece < frame->pieces_cnt)
            return false;
        t->frame++;
        t->piece = 0;
        t->offset = 0;
    }
    return true;
}

/* Copies up to len bytes from or to where we are and moves on; stops at the end of the frame. */
static size_t take(transfer_t *t, uint8_t *bytes, size_t len, bool is_fill)
{
    size_t done = 0;

    while (done < len) {
        uint32_t frame = t->frame;
        if (at_end(t) || t->frame != frame)
            break;
        const tqi_piece_t *piece = &t->frames[t->frame].pieces[t->piece];
        size_t part = tqi_u64_min(piece->len - t->in_piece, len - done);
        uint8_t *here = (uint8_t *)piece->data + t->in_piece;
        memcpy(is_fill ? here : bytes + done, is_fill ? bytes + done : here, part);
        t->in_piece += part;
        t->offset += part;
        done += part;
    }
    return done;
}

/* Nothing is read or written any more; the owner is told soon. */
static void transfer_end(transfer_t *t, tq_status_t status, const char *text)
{
    if (t->is_over)
        return;
    t->is_over = true;
    t->status = status;
    t->text = text;
    tqi_sim_at(t->host->sim, &t->event, sim_chunk_at(t->host->sim));
}

/* False: the sender has learned just now that the connection is gone. */
static bool say(conn_t *conn, int from, const chunk_t *chunk, const void *data, size_t len)
{
    uint8_t *bytes;
    bool is_sent;

    if (!conn)
        return true;
    bytes = sim_alloc(sizeof *chunk + len);
    memcpy(bytes, chunk, sizeof *chunk);
    if (len > 0)
        memcpy(bytes + sizeof *chunk, data, len);
    is_sent = conn_send(conn, from, bytes, sizeof *chunk + len, false);
    free(bytes);
    return is_sent;
}

static admitted_t *admitted_of(const transfer_t *t)
{
    return tqi_map_u64_get(&t->host->sessions, t->key.owner);
}

static conn_t *conn_of(const transfer_t *t)
{
    const admitted_t *session = t->way ? NULL : admitted_of(t);

    return t->way ? t->way->conn : session ? session->conn : NULL;
}

static void transfer_runs(void *ctx)
{
    transfer_t *t = ctx;
    tqi_sim_host_t *host = t->host;
    tqi_sim_t *sim = host->sim;
    conn_t *conn = conn_of(t);

    if (host->is_paused) {
        tqi_sim_at(sim, &t->event, sim_chunk_at(sim));
        return;
    }
    if (t->is_over) {
        tqi_transfer_key_t key = t->key;
        tq_status_t status = t->status;
        const char *text = t->text;
        transfer_free(t);
        host->sink.on_payload(host->sink.ctx, key, status, text);
        return;
    }
    if (!t->is_outgoing || !conn || t->credit == 0)
        return; /* resumed by what it waits for */
    if (at_end(t)) {
        transfer_end(t, TQ_OK, "");
        return;
    }
    uint64_t len = sim_between(sim, 1, sim->conf.chunk_bytes_max);
    uint8_t *bytes = sim_alloc(len);
    chunk_t chunk = {
        .kind = CHUNK_DATA, .id = t->key.transfer, .frame = t->frame, .offset = t->offset};
    len = take(t, bytes, tqi_u64_min(len, t->credit), false);
    t->credit -= len;
    /* It may end within the call. A unit that has learned that its reader is gone sends no more. */
    if (!say(conn, t->way ? 0 : 1, &chunk, bytes, len) && !t->way)
        transfer_end(t, TQ_E_PEER_LOST, "the payload connection is gone");
    free(bytes);
    if (!t->is_over)
        tqi_sim_at(sim, &t->event, sim_chunk_at(sim));
}

static void resume(transfer_t *t)
{
    if (!t->is_over && t->is_outgoing && !tqi_sim_is_set(&t->event))
        tqi_sim_at(t->host->sim, &t->event, sim_chunk_at(t->host->sim));
}

static transfer_t *transfer_new(tqi_sim_host_t *host, way_t *way, tqi_transfer_key_t key,
                                const tqi_frame_t *frames, uint32_t cnt, bool is_outgoing)
{
    transfer_t *t = sim_alloc(sizeof *t);
    uint64_t pieces = 0, bytes;

    for (uint32_t i = 0; i < cnt; i++)
        pieces += frames[i].pieces_cnt;
    t->host = host;
    t->way = way;
    t->key = key;
    t->is_outgoing = is_outgoing;
    t->credit = host->sim->conf.window_bytes;
    t->frames_cnt = cnt;
    t->frames = sim_alloc(cnt * sizeof *t->frames + 1);
    t->pieces = sim_alloc(pieces * sizeof *t->pieces + 1);
    pieces = 0;
    for (uint32_t i = 0; i < cnt; i++) {
        t->frames[i] = frames[i];
        t->frames[i].pieces = t->pieces + pieces;
        bytes = 0;
        for (uint32_t p = 0; p < frames[i].pieces_cnt; p++) {
            t->pieces[pieces++] = frames[i].pieces[p];
            bytes += frames[i].pieces[p].len;
        }
        tqi_assert(bytes == frames[i].bytes);
    }
    tqi_sim_event_init(&t->event, transfer_runs, t);
    tqi_list_push_back(&host->transfers, &t->node);
    if (is_outgoing)
        resume(t);
    else if (at_end(t))
        transfer_end(t, TQ_OK, "");
    return t;
}

static bool drop(tqi_sim_host_t *host, tqi_transfer_key_t key, bool is_unit)
{
    transfer_t *t = transfer_find(host, key, is_unit);
    chunk_t stop = {.kind = CHUNK_STOP, .id = key.transfer};

    if (!t)
        return false;
    transfer_end(t, TQ_E_CANCELLED, "the transfer was dropped");
    if (!t->is_outgoing)
        say(conn_of(t), is_unit ? 1 : 0, &stop, NULL, 0);
    return true;
}

/* ---- what arrives ------------------------------------------------------------------------------ */

static void on_data(tqi_sim_host_t *host, conn_t *conn, int at, transfer_t *t, const chunk_t *chunk,
                    uint8_t *data, size_t len)
{
    chunk_t answer = {.kind = CHUNK_STOP, .id = chunk->id};

    if (!t || t->is_outgoing) {
        say(conn, at, &answer, NULL, 0);
        return;
    }
    if (at_end(t) || chunk->frame != t->frame || chunk->offset != t->offset ||
        len > t->frames[t->frame].bytes - t->offset) {
        say(conn, at, &answer, NULL, 0);
        transfer_end(t, TQ_E_MALFORMED, "a payload chunk is not the next one of its frame");
        return;
    }
    take(t, data, len, true);
    t->ungranted += len;
    if (at_end(t)) {
        transfer_end(t, TQ_OK, "");
    } else if (t->ungranted >= host->sim->conf.window_bytes / 2) {
        answer.kind = CHUNK_CREDIT;
        answer.credit = t->ungranted;
        t->ungranted = 0;
        say(conn, at, &answer, NULL, 0);
    }
}

static void on_hello(tqi_sim_host_t *host, conn_t *conn, const chunk_t *chunk, const uint8_t *token,
                     size_t len)
{
    admitted_t *session = tqi_map_u64_get(&host->sessions, chunk->id);

    if (!session || conn->ends[1].user || len != TOKEN_BYTES ||
        memcmp(session->token, token, TOKEN_BYTES) != 0) {
        chunk_t refused = {.kind = CHUNK_REFUSED, .id = chunk->id};
        say(conn, 1, &refused, NULL, 0);
        return;
    }
    if (session->conn)
        session->conn->ends[1].user = NULL;
    session->conn = conn;
    conn->ends[1].user = session;
    tqi_list_each(&host->transfers, node)
    {
        transfer_t *t = tqi_container_of(node, transfer_t, node);
        if (t->way || !t->is_outgoing || t->is_over || t->key.owner != session->session)
            continue;
        /* What was sent before went down with the old connection, and so did whoever was reading
         * it: a reader on this one has had nothing yet. */
        t->frame = t->piece = 0;
        t->in_piece = t->offset = 0;
        t->credit = host->sim->conf.window_bytes;
        resume(t);
    }
}

/* The client's end of a connection is over: so are its transfers. */
static void way_down(way_t *way, tq_status_t status, const char *text)
{
    way->conn = NULL;
    tqi_list_each(&way->host->transfers, node)
    {
        transfer_t *t = tqi_container_of(node, transfer_t, node);
        if (t->way == way)
            transfer_end(t, status, text);
    }
}

void payload_on_frame(conn_t *conn, int at, const void *data, size_t len)
{
    tqi_sim_host_t *host = conn->ends[at].host;
    way_t *way = at == 0 ? conn->ends[0].user : NULL;
    admitted_t *session = at == 1 ? conn->ends[1].user : NULL;
    chunk_t chunk;
    uint8_t *bytes = (uint8_t *)data + sizeof chunk;

    memcpy(&chunk, data, sizeof chunk);
    len -= sizeof chunk;
    if (chunk.kind == CHUNK_HELLO) {
        on_hello(host, conn, &chunk, bytes, len);
        return;
    }
    if (!way && !session)
        return; /* a stranger, or one that was forgotten */
    if (chunk.kind == CHUNK_REFUSED) {
        if (way) {
            conn_close(conn, 0);
            way_down(way, TQ_E_DENIED, "the unit does not know the token");
        }
        return;
    }
    tqi_transfer_key_t key = {way ? way->unit_id : session->session, chunk.id};
    transfer_t *t = transfer_find(host, key, !way);
    if (chunk.kind == CHUNK_DATA) {
        on_data(host, conn, at, t, &chunk, bytes, len);
    } else if (t && t->is_outgoing && chunk.kind == CHUNK_CREDIT) {
        t->credit = tqi_u64_min(t->credit + chunk.credit, host->sim->conf.window_bytes);
        resume(t);
    } else if (t && t->is_outgoing && chunk.kind == CHUNK_STOP) {
        transfer_end(t, way ? TQ_E_PEER_LOST : TQ_E_CANCELLED, "the receiver takes no more");
    }
}

void payload_on_end(conn_t *conn, int at)
{
    if (at == 0 && conn->ends[0].user)
        way_down(conn->ends[0].user, TQ_E_PEER_LOST, "the payload connection broke");
    if (at == 1 && conn->ends[1].user)
        ((admitted_t *)conn->ends[1].user)->conn = NULL;
    conn->ends[at].user = NULL;
}

/* ---- client ------------------------------------------------------------------------------------ */

static tqi_sim_host_t *client_of(tqi_payload_client_t *port)
{
    return tqi_container_of(port, tqi_sim_host_t, client);
}

static void way_dial(way_t *way)
{
    chunk_t hello = {.kind = CHUNK_HELLO, .id = way->session};

    way->conn = conn_dial(way->host, way->target, CONN_PAYLOAD, way);
    say(way->conn, 0, &hello, way->token, TOKEN_BYTES);
}

static void client_close(tqi_payload_client_t *port, uint64_t unit_id)
{
    tqi_sim_host_t *host = client_of(port);
    way_t *way = tqi_map_u64_take(&host->ways, unit_id);

    if (!way)
        return;
    tqi_list_each(&host->transfers, node)
    {
        /* The role closes a way only when nothing moves on it (net/payload.h). */
        tqi_assert(tqi_container_of(node, transfer_t, node)->way != way);
    }
    if (way->conn) {
        way->conn->ends[0].user = NULL;
        conn_close(way->conn, 0);
    }
    free(way);
}

static tqi_payload_mode_t client_open(tqi_payload_client_t *port, uint64_t unit_id,
                                      const char *address, const void *token, size_t token_len,
                                      uint64_t session, uint64_t direct_arena, tqi_err_t *err)
{
    tqi_sim_host_t *host = client_of(port);
    way_t *way = sim_alloc(sizeof *way);
    tq_status_t rc;

    client_close(port, unit_id);
    way->host = host;
    way->unit_id = unit_id;
    way->session = session;
    way->direct = direct_find(host, direct_arena);
    way->direct_handle = direct_arena;
    if (!host->is_up ||
        (!way->direct && (strncmp(address, SCHEME, sizeof SCHEME - 1) != 0 ||
                          token_len != TOKEN_BYTES || strlen(address) >= sizeof way->target))) {
        free(way);
        tqi_fail(err, TQ_E_UNREACHABLE, "'%s' is no payload address of this network", address);
        return TQI_PAYLOAD_NONE;
    }
    if (port_fails(host)) {
        free(way);
        tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a payload connection");
        return TQI_PAYLOAD_NONE;
    }
    rc = tqi_map_u64_put(&host->ways, unit_id, way, NULL);
    tqi_assert(rc == TQ_OK);
    if (way->direct)
        return TQI_PAYLOAD_DIRECT;
    strcpy(way->target, address + sizeof SCHEME - 1);
    memcpy(way->token, token, TOKEN_BYTES);
    way_dial(way);
    return TQI_PAYLOAD_STREAM;
}

static tq_status_t client_begin(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                uint32_t cnt, bool is_write, tqi_err_t *err)
{
    tqi_sim_host_t *host = client_of(port);
    way_t *way = tqi_map_u64_get(&host->ways, key.owner);

    if (!host->is_up || !way)
        return tqi_fail(err, TQ_E_UNREACHABLE, "there is no way to unit %" PRIu64, key.owner);
    if (port_fails(host))
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a transfer");
    if (way->direct) {
        if (!way->direct->is_up || way->direct->arena_handle != way->direct_handle)
            return tqi_fail(err, TQ_E_UNREACHABLE, "the arena of unit %" PRIu64 " is gone",
                            key.owner);
        return direct_begin(host, way->direct, key, frames, remote, cnt, is_write, err);
    }
    if (!way->conn)
        way_dial(way);
    transfer_new(host, way, key, frames, cnt, is_write);
    return TQ_OK;
}

static tq_status_t client_write(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                uint32_t cnt, void *copier, tqi_err_t *err)
{
    (void)copier;
    return client_begin(port, key, frames, remote, cnt, true, err);
}

static tq_status_t client_read(tqi_payload_client_t *port, tqi_transfer_key_t key,
                               const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                               uint32_t cnt, void *copier, tqi_err_t *err)
{
    (void)copier;
    return client_begin(port, key, frames, remote, cnt, false, err);
}

static void client_drop(tqi_payload_client_t *port, tqi_transfer_key_t key)
{
    if (!drop(client_of(port), key, false))
        (void)direct_drop(client_of(port), key);
}

/* ---- unit -------------------------------------------------------------------------------------- */

static tqi_sim_host_t *unit_of(tqi_payload_unit_t *port)
{
    return tqi_container_of(port, tqi_sim_host_t, unit);
}

static tq_status_t unit_offer(tqi_payload_unit_t *port, uint64_t id, const char **address,
                              uint8_t token[16], uint64_t *direct_arena)
{
    tqi_sim_host_t *host = unit_of(port);
    admitted_t *session = tqi_map_u64_get(&host->sessions, id);

    if (!session && port_fails(host))
        return TQ_E_NO_MEMORY;
    if (!session) {
        session = sim_alloc(sizeof *session);
        session->session = id;
        for (size_t i = 0; i < TOKEN_BYTES; i++)
            session->token[i] = (uint8_t)tqi_rng_u64(&host->sim->rng);
        tq_status_t rc = tqi_map_u64_put(&host->sessions, id, session, NULL);
        tqi_assert(rc == TQ_OK);
    }
    *address = host->payload_address;
    memcpy(token, session->token, TOKEN_BYTES);
    *direct_arena = host->process ? host->arena_handle : 0;
    return TQ_OK;
}

static void unit_forget(tqi_payload_unit_t *port, uint64_t id)
{
    admitted_t *session = tqi_map_u64_take(&unit_of(port)->sessions, id);

    if (session && session->conn)
        session->conn->ends[1].user = NULL;
    free(session);
}

static tq_status_t unit_begin(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                              const tqi_frame_t *frames, uint32_t cnt, bool is_outgoing,
                              tqi_err_t *err)
{
    tqi_sim_host_t *host = unit_of(port);

    if (!host->is_up || transfer_find(host, key, true))
        return tqi_fail(err, TQ_E_CLOSED, "the payload port is closed, or has this transfer");
    if (port_fails(host))
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a transfer");
    transfer_new(host, NULL, key, frames, cnt, is_outgoing);
    return TQ_OK;
}

static tq_status_t unit_expect(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                               const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    return unit_begin(port, key, frames, cnt, false, err);
}

static tq_status_t unit_send(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                             const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    return unit_begin(port, key, frames, cnt, true, err);
}

static void unit_drop(tqi_payload_unit_t *port, tqi_transfer_key_t key)
{
    (void)drop(unit_of(port), key, true);
}

bool tqi_sim_host_spoil(tqi_sim_host_t *host)
{
    transfer_t *last = NULL;

    tqi_list_each(&host->transfers, node)
    {
        transfer_t *t = tqi_container_of(node, transfer_t, node);
        if (!t->way && !t->is_outgoing && !t->is_over)
            last = t;
    }
    if (last)
        transfer_end(last, TQ_E_PEER_LOST, "a payload chunk is not the next one of its frame");
    return last != NULL;
}

/* ---- both -------------------------------------------------------------------------------------- */

void payload_init(tqi_sim_host_t *host)
{
    host->client =
        (tqi_payload_client_t){client_open, client_close, client_write, client_read, client_drop};
    host->unit = (tqi_payload_unit_t){unit_offer, unit_forget, unit_expect, unit_send, unit_drop};
}

void payload_kill(tqi_sim_host_t *host)
{
    tqi_map_u64_item_t *item;

    for (item = tqi_map_u64_first(&host->ways); item; item = tqi_map_u64_next(item))
        ((way_t *)item->value)->conn = NULL; /* the connections died before */
    for (item = tqi_map_u64_first(&host->sessions); item; item = tqi_map_u64_next(item))
        ((admitted_t *)item->value)->conn = NULL;
    while (host->transfers.cnt > 0) {
        transfer_t *t = tqi_container_of(tqi_list_first(&host->transfers), transfer_t, node);
        tqi_transfer_key_t key = t->key;
        bool is_client = t->way != NULL;
        transfer_free(t);
        if (is_client)
            host->sink.on_payload(host->sink.ctx, key, TQ_E_CLOSED, "the process is dead");
    }
    while ((item = tqi_map_u64_first(&host->ways)))
        client_close(&host->client, item->key);
    while ((item = tqi_map_u64_first(&host->sessions)))
        unit_forget(&host->unit, item->key);
}

tqi_payload_client_t *tqi_sim_host_payload_client(tqi_sim_host_t *host)
{
    return &host->client;
}

tqi_payload_unit_t *tqi_sim_host_payload_unit(tqi_sim_host_t *host)
{
    return &host->unit;
}

uint32_t tqi_sim_host_transfers_cnt(const tqi_sim_host_t *host)
{
    return (uint32_t)(host->transfers.cnt + host->copies.cnt);
}
