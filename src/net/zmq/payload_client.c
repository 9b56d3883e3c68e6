/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's end: one DEALER a unit, dialled when its unit is opened and again when it is needed
 * after it broke. What breaks with a connection are its transfers; the role above decides about
 * them.
 *
 * This thread copies at most 64 KiB at a time. A chunk that is larger is a copy job, which holds
 * the message until it is done; so a transfer that is read ends when its last job has.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/map.h"
#include "base/size.h"
#include "net/zmq/context.h"
#include "net/zmq/poller.h"
#include "net/zmq/stream.h"
#include "net/zmq/zmq_payload.h"

#define HWM 65536
#define TURN_MESSAGES 64
#define RETRY_NS UINT64_C(1000000)
#define INLINE_COPY_MAX (64u << 10)
/* A get only reads from its connection, so one that died without a word (a pulled cable, a firewall
 * that forgot it) would be noticed by nobody. */
#define HEARTBEAT_MS 2000
#define HEARTBEAT_TIMEOUT_MS 6000

typedef struct tqi_zmq_payload_client client_t;

typedef struct conn {
    client_t *self;
    tqi_poller_item_t item;
    uint64_t unit_id;
    bool is_up; /* connected, and HELLO was said */
    char address[TQI_ADDRESS_MAX];
    uint8_t token[TQI_STREAM_TOKEN];
    uint64_t session;
} conn_t;

/* A transfer that is being received. */
typedef struct incoming {
    client_t *self;
    tqi_transfer_key_t key;
    tqi_cursor_t cursor;
    void *copier;
    uint64_t ungranted;
    tqi_list_t jobs; /* of chunk_t under way */
    bool is_ending;  /* no more chunks are taken; over when the jobs are */
    tq_status_t status;
    const char *text;
    tqi_node_t all;  /* in self->all, from read to its report */
    tqi_node_t over; /* in self->over: to be reported */
} incoming_t;

/* A chunk that is being copied; it holds libzmq's message. */
typedef struct chunk {
    tqi_copy_job_t job;
    tqi_letter_t letter;
    tqi_node_t node; /* in incoming->jobs */
    incoming_t *in;
    zmq_msg_t data;
    tqi_copy_piece_t *pieces;
} chunk_t;

struct tqi_zmq_payload_client {
    tqi_payload_client_t port;
    tqi_source_t source;
    const tqi_env_t *env;
    tqi_mailbox_t *mailbox;
    tqi_exec_t *exec;
    tqi_sink_t sink;
    void *context; /* NULL until the first unit is opened */
    tqi_poller_t poller;
    tqi_map_u64_t conns;    /* unit id -> conn_t */
    tqi_map_u64_t incoming; /* transfer -> incoming_t */
    tqi_map_u64_t outgoing; /* transfer -> tqi_outgoing_t, until it has ended */
    tqi_list_t sending;
    tqi_list_t all; /* incoming transfers, those that are ending too */
    tqi_list_t over;
    bool is_stopped;
    pthread_mutex_t mutex; /* of running, for close */
    pthread_cond_t none_running;
    uint32_t running; /* jobs, and outgoing transfers, whose end was not handled yet */
};

static client_t *client_of(tqi_payload_client_t *port)
{
    return tqi_container_of(port, client_t, port);
}

static void running_add(client_t *self)
{
    pthread_mutex_lock(&self->mutex);
    self->running++;
    pthread_mutex_unlock(&self->mutex);
}

static void running_done(client_t *self)
{
    pthread_mutex_lock(&self->mutex);
    if (--self->running == 0)
        pthread_cond_broadcast(&self->none_running);
    pthread_mutex_unlock(&self->mutex);
}

/* ---- incoming -------------------------------------------------------------------------------- */

static void incoming_free(client_t *self, incoming_t *in)
{
    if (tqi_node_is_linked(&in->all))
        tqi_list_remove(&self->all, &in->all);
    tqi_cursor_fini(&in->cursor);
    tqi_env_free(self->env, in, sizeof *in);
}

static void incoming_over_if_idle(incoming_t *in)
{
    if (in->is_ending && in->jobs.cnt == 0 && !tqi_node_is_linked(&in->over))
        tqi_list_push_back(&in->self->over, &in->over);
}

/* Takes no more; what is being copied is stopped unless all is well. */
static void incoming_end(incoming_t *in, tq_status_t status, const char *text)
{
    if (in->is_ending)
        return;
    in->is_ending = true;
    in->status = status;
    in->text = text;
    tqi_map_u64_take(&in->self->incoming, in->key.transfer);
    if (status != TQ_OK)
        tqi_list_each(&in->jobs, node)
            tqi_exec_cancel(in->self->exec, &tqi_container_of(node, chunk_t, node)->job);
    incoming_over_if_idle(in);
}

static void chunk_free(chunk_t *chunk)
{
    zmq_msg_close(&chunk->data);
    free(chunk->pieces);
    free(chunk);
}

/* In the loop's thread; or, once the mailbox is closed, wherever the job ended: then close frees
 * it. */
static void on_chunk_letter(tqi_letter_t *letter, bool is_closed)
{
    chunk_t *chunk = tqi_container_of(letter, chunk_t, letter);
    client_t *self = chunk->in->self;
    if (!is_closed) {
        incoming_t *in = chunk->in;
        tqi_list_remove(&in->jobs, &chunk->node);
        chunk_free(chunk);
        incoming_over_if_idle(in);
    }
    running_done(self);
}

/* A copy thread. */
static void on_chunk_copied(tqi_copy_job_t *job, bool was_cancelled)
{
    chunk_t *chunk = tqi_container_of(job, chunk_t, job);
    (void)was_cancelled; /* its transfer is ending with the reason */
    chunk->letter.open = on_chunk_letter;
    if (!tqi_mailbox_post(chunk->in->self->mailbox, &chunk->letter))
        on_chunk_letter(&chunk->letter, true);
}

static void say(conn_t *conn, tqi_stream_kind_t kind, uint64_t id, uint64_t credit)
{
    tqi_stream_head_t head = {.kind = kind, .id = id, .credit = credit};
    if (!conn->is_up) /* before HELLO nobody would listen */
        return;
    (void)tqi_stream_say(conn->item.socket, NULL, 0, &head, NULL, 0);
    tqi_poller_mark(&conn->item);
}

/* Copies a chunk, or has it copied: data's message is taken over by a job. */
static tq_status_t scatter(incoming_t *in, zmq_msg_t *data)
{
    uint8_t *from = zmq_msg_data(data);
    uint64_t len = zmq_msg_size(data);
    void *to;
    if (len <= INLINE_COPY_MAX) {
        for (uint64_t at = 0, took; at < len; at += took) {
            took = tqi_cursor_take(&in->cursor, len - at, &to);
            memcpy(to, from + at, took);
        }
        return TQ_OK;
    }
    chunk_t *chunk = calloc(1, sizeof *chunk);
    uint32_t cap = 0;
    tq_status_t rc = chunk ? TQ_OK : TQ_E_NO_MEMORY;
    for (uint64_t at = 0, took; rc == TQ_OK && at < len; at += took) {
        if (chunk->job.pieces_cnt == cap) {
            cap = cap ? 2 * cap : 4;
            tqi_copy_piece_t *grown = realloc(chunk->pieces, cap * sizeof *grown);
            if (!grown) {
                rc = TQ_E_NO_MEMORY;
                break;
            }
            chunk->pieces = grown;
        }
        took = tqi_cursor_take(&in->cursor, len - at, &to);
        chunk->pieces[chunk->job.pieces_cnt++] = (tqi_copy_piece_t){to, from + at, took};
    }
    if (rc != TQ_OK) {
        if (chunk)
            free(chunk->pieces);
        free(chunk);
        return rc;
    }
    zmq_msg_init(&chunk->data);
    zmq_msg_move(&chunk->data, data);
    chunk->in = in;
    chunk->job.pieces = chunk->pieces;
    chunk->job.copier = in->copier;
    chunk->job.on_done = on_chunk_copied;
    tqi_list_push_back(&in->jobs, &chunk->node);
    running_add(in->self);
    tqi_exec_submit(in->self->exec, &chunk->job);
    return TQ_OK;
}

static void on_data(conn_t *conn, const tqi_stream_head_t *head, zmq_msg_t *data)
{
    incoming_t *in = tqi_map_u64_get(&conn->self->incoming, head->id);
    if (!in || in->key.owner != conn->unit_id) {
        say(conn, TQI_STREAM_STOP, head->id, 0);
        return;
    }
    uint64_t len = zmq_msg_size(data);
    bool is_end = tqi_cursor_at_end(&in->cursor);
    const tqi_frame_t *frame = is_end ? NULL : &in->cursor.frames[in->cursor.frame];
    tq_status_t rc = TQ_OK;
    const char *text = "";
    if (is_end || len != head->len || len == 0 || head->frame != in->cursor.frame ||
        head->offset != in->cursor.offset || len > frame->bytes - head->offset) {
        rc = TQ_E_MALFORMED;
        text = "a payload chunk is not the next one of its frame";
    } else if ((rc = scatter(in, data)) != TQ_OK) {
        text = "no memory to copy a payload chunk";
    }
    if (rc != TQ_OK) {
        say(conn, TQI_STREAM_STOP, head->id, 0);
        incoming_end(in, rc, text);
        return;
    }
    in->ungranted += len;
    if (tqi_cursor_at_end(&in->cursor)) {
        incoming_end(in, TQ_OK, "");
    } else if (in->ungranted >= TQI_STREAM_WINDOW / 2) {
        say(conn, TQI_STREAM_CREDIT, head->id, in->ungranted);
        in->ungranted = 0;
    }
}

/* ---- outgoing -------------------------------------------------------------------------------- */

static void on_outgoing_over(tqi_outgoing_t *out, bool is_closed)
{
    client_t *self = out->ctx;
    tqi_transfer_key_t key = out->key;
    tq_status_t status = out->status;
    const char *text = out->text;
    tqi_outgoing_free(out);
    if (!is_closed)
        self->sink.on_payload(self->sink.ctx, key, status, text);
    running_done(self);
}

static void outgoing_stop(client_t *self, tqi_outgoing_t *out, tq_status_t status, const char *text)
{
    if (tqi_node_is_linked(&out->node))
        tqi_list_remove(&self->sending, &out->node);
    tqi_map_u64_take(&self->outgoing, out->key.transfer);
    tqi_outgoing_end(out, status, text);
}

static void resume(client_t *self, tqi_outgoing_t *out)
{
    if (!tqi_node_is_linked(&out->node))
        tqi_list_push_back(&self->sending, &out->node);
}

static bool send_round(client_t *self, bool *is_more)
{
    bool is_blocked = false;
    int budget = TURN_MESSAGES;
    for (size_t turns = self->sending.cnt; turns > 0 && budget > 0; turns--, budget--) {
        tqi_outgoing_t *out =
            tqi_container_of(tqi_list_pop_front(&self->sending), tqi_outgoing_t, node);
        conn_t *conn = tqi_map_u64_get(&self->conns, out->key.owner);
        if (!conn || !conn->is_up)
            continue; /* resumed when it is */
        uint64_t transfer = out->key.transfer;
        tqi_poller_mark(&conn->item);
        switch (tqi_outgoing_send(out, conn->item.socket, NULL, 0)) {
        case TQI_SEND_OK:
            *is_more = true;
            tqi_list_push_back(&self->sending, &out->node);
            break;
        case TQI_SEND_BLOCKED:
            is_blocked = true;
            tqi_list_push_back(&self->sending, &out->node);
            break;
        case TQI_SEND_WAIT:
            break;
        case TQI_SEND_ALL:
        case TQI_SEND_LOST:
            tqi_map_u64_take(&self->outgoing, transfer);
            break;
        }
    }
    return is_blocked;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Ends every transfer with a unit. */
static void fail_all(client_t *self, uint64_t unit_id, tq_status_t status, const char *text)
{
    tqi_map_u64_item_t *item, *next;
    for (item = tqi_map_u64_first(&self->incoming); item; item = next) {
        incoming_t *in = item->value;
        next = tqi_map_u64_next(item);
        if (in->key.owner == unit_id)
            incoming_end(in, status, text);
    }
    for (item = tqi_map_u64_first(&self->outgoing); item; item = next) {
        tqi_outgoing_t *out = item->value;
        next = tqi_map_u64_next(item);
        if (out->key.owner == unit_id)
            outgoing_stop(self, out, status, text);
    }
}

static tq_status_t conn_dial(conn_t *conn, tqi_err_t *err)
{
    client_t *self = conn->self;
    void *socket;
    if (conn->item.socket)
        return TQ_OK;
    tq_status_t rc =
        tqi_zmq_socket(self->context, ZMQ_DEALER, HWM, HWM, 2 * TQI_STREAM_CHUNK, &socket, err);
    if (rc == TQ_OK)
        tqi_zmq_heartbeat(socket, HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS);
    if (rc == TQ_OK)
        rc = tqi_poller_add(&self->poller, &conn->item, socket, err);
    if (rc == TQ_OK)
        rc = tqi_poller_monitor(&conn->item, self->context, err);
    if (rc == TQ_OK)
        rc = tqi_zmq_connect(socket, conn->address, NULL, err);
    if (rc != TQ_OK)
        tqi_poller_close(&conn->item);
    return rc;
}

static void conn_down(conn_t *conn, tq_status_t status, const char *text)
{
    conn->is_up = false;
    tqi_poller_close(&conn->item);
    fail_all(conn->self, conn->unit_id, status, text);
}

static void conn_up(conn_t *conn)
{
    client_t *self = conn->self;
    tqi_stream_head_t head = {.kind = TQI_STREAM_HELLO, .id = conn->session};
    /* A send looks for what the I/O thread made only if the last look is a while ago; asking for
     * events always does. Without, a connection that is there is "full" at times. */
    (void)tqi_zmq_events(conn->item.socket);
    if (!tqi_stream_say(conn->item.socket, NULL, 0, &head, conn->token, sizeof conn->token)) {
        conn_down(conn, TQ_E_PEER_LOST, "the payload connection broke at once");
        return;
    }
    tqi_poller_mark(&conn->item);
    conn->is_up = true;
    tqi_map_u64_item_t *item = tqi_map_u64_first(&self->outgoing);
    for (; item; item = tqi_map_u64_next(item)) {
        tqi_outgoing_t *out = item->value;
        if (out->key.owner == conn->unit_id)
            resume(self, out);
    }
}

/* Reads one message of [head] or [head, data]. False: nothing there, or the connection went. */
static bool read_one(conn_t *conn)
{
    client_t *self = conn->self;
    zmq_msg_t parts[2];
    tqi_stream_head_t head;
    bool is_more = true, is_ok = true;
    int cnt = 0;
    zmq_msg_init(&parts[0]);
    zmq_msg_init(&parts[1]);
    while (is_ok && is_more) {
        int at = cnt < 1 ? 0 : 1;
        is_ok = zmq_msg_recv(&parts[at], conn->item.socket, ZMQ_DONTWAIT) >= 0;
        is_more = is_ok && zmq_msg_more(&parts[at]);
        cnt++;
    }
    if (is_ok && cnt <= 2 &&
        tqi_stream_head_read(zmq_msg_data(&parts[0]), zmq_msg_size(&parts[0]), &head)) {
        tqi_outgoing_t *out = tqi_map_u64_get(&self->outgoing, head.id);
        if (out && out->key.owner != conn->unit_id)
            out = NULL;
        switch (head.kind) {
        case TQI_STREAM_DATA:
            on_data(conn, &head, &parts[1]);
            break;
        case TQI_STREAM_CREDIT:
            if (out) {
                out->credit = tqi_u64_min(out->credit + head.credit, TQI_STREAM_WINDOW);
                resume(self, out);
            }
            break;
        case TQI_STREAM_STOP:
            if (out)
                outgoing_stop(self, out, TQ_E_PEER_LOST, "the unit takes no more of this transfer");
            break;
        case TQI_STREAM_REFUSED:
            conn_down(conn, TQ_E_DENIED, "the unit refused the payload token of this session");
            is_ok = false;
            break;
        default:
            break;
        }
    }
    zmq_msg_close(&parts[0]);
    zmq_msg_close(&parts[1]);
    return is_ok;
}

/* Up to a turn's worth from one connection; true if there may be more. */
static bool conn_read(conn_t *conn)
{
    for (int i = 0; i < TURN_MESSAGES; i++)
        if (!read_one(conn))
            return false;
    return true;
}

/* False when the connection is gone. */
static bool conn_monitor(conn_t *conn)
{
    const char *why = "";
    for (;;) {
        switch (tqi_poller_next_event(&conn->item, &why)) {
        case TQI_LINK_NONE:
            return true;
        case TQI_LINK_UP:
            conn_up(conn);
            break;
        case TQI_LINK_DOWN:
            /* What had arrived before it went is still good. */
            while (conn->is_up && conn_read(conn))
                continue;
            conn_down(conn, TQ_E_PEER_LOST, why);
            return false;
        }
        if (!conn->item.socket)
            return false;
    }
}

static uint64_t client_run(tqi_source_t *source, uint64_t now_ns)
{
    client_t *self = tqi_container_of(source, client_t, source);
    bool is_more = tqi_poller_collect(&self->poller);
    for (size_t turns = self->poller.dirty.cnt; turns > 0; turns--) {
        tqi_poller_item_t *item = tqi_poller_pop(&self->poller);
        if (!item)
            break;
        conn_t *conn = tqi_container_of(item, conn_t, item);
        if (conn_monitor(conn) && conn_read(conn)) {
            tqi_poller_mark(&conn->item);
            is_more = true;
        }
    }
    bool is_blocked = send_round(self, &is_more);
    tqi_node_t *node;
    while ((node = tqi_list_pop_front(&self->over))) {
        incoming_t *in = tqi_container_of(node, incoming_t, over);
        tqi_transfer_key_t key = in->key;
        tq_status_t status = in->status;
        const char *text = in->text;
        incoming_free(self, in);
        self->sink.on_payload(self->sink.ctx, key, status, text);
    }
    if (is_more || self->over.cnt > 0)
        return now_ns;
    return is_blocked ? now_ns + RETRY_NS : UINT64_MAX;
}

static bool client_is_busy(tqi_source_t *source)
{
    client_t *self = tqi_container_of(source, client_t, source);
    return self->over.cnt > 0 || tqi_poller_is_busy(&self->poller);
}

/* ---- the port -------------------------------------------------------------------------------- */

static void client_close_unit(tqi_payload_client_t *port, uint64_t unit_id)
{
    client_t *self = client_of(port);
    conn_t *conn = tqi_map_u64_take(&self->conns, unit_id);
    if (!conn)
        return;
    conn_down(conn, TQ_E_CLOSED, "the connection to the unit was closed");
    tqi_env_free(self->env, conn, sizeof *conn);
}

static tqi_payload_mode_t client_open(tqi_payload_client_t *port, uint64_t unit_id,
                                      const char *address, const void *token, size_t token_len,
                                      uint64_t session, uint64_t direct_arena, tqi_err_t *err)
{
    client_t *self = client_of(port);
    (void)direct_arena;
    client_close_unit(port, unit_id);
    if (self->is_stopped || !address || !*address || strlen(address) >= TQI_ADDRESS_MAX ||
        token_len != TQI_STREAM_TOKEN) {
        tqi_fail(err, TQ_E_UNREACHABLE, "the unit offers no way for payload");
        return TQI_PAYLOAD_NONE;
    }
    if (!self->context && tqi_zmq_context_acquire(&self->context, err) != TQ_OK)
        return TQI_PAYLOAD_NONE;
    conn_t *conn = tqi_env_zalloc(self->env, sizeof *conn);
    if (!conn || tqi_map_u64_put(&self->conns, unit_id, conn, NULL) != TQ_OK) {
        tqi_env_free(self->env, conn, sizeof *conn);
        tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a payload connection");
        return TQI_PAYLOAD_NONE;
    }
    conn->self = self;
    conn->item.poller = &self->poller;
    conn->unit_id = unit_id;
    conn->session = session;
    memcpy(conn->address, address, strlen(address) + 1);
    memcpy(conn->token, token, token_len);
    if (conn_dial(conn, err) != TQ_OK) {
        client_close_unit(port, unit_id);
        return TQI_PAYLOAD_NONE;
    }
    return TQI_PAYLOAD_STREAM;
}

/* The connection of a unit, dialled again if it broke. */
static tq_status_t conn_for(client_t *self, uint64_t unit_id, conn_t **out, tqi_err_t *err)
{
    *out = tqi_map_u64_get(&self->conns, unit_id);
    if (!*out)
        return tqi_fail(err, TQ_E_UNREACHABLE, "no payload connection to the unit");
    return conn_dial(*out, err);
}

static tq_status_t client_write(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                uint32_t cnt, void *copier, tqi_err_t *err)
{
    client_t *self = client_of(port);
    conn_t *conn;
    tqi_outgoing_t *out;
    (void)remote, (void)copier;
    tq_status_t rc = conn_for(self, key.owner, &conn, err);
    if (rc != TQ_OK)
        return rc;
    rc = tqi_outgoing_new(key, frames, cnt, self->mailbox, self, on_outgoing_over, &out);
    if (rc == TQ_OK) {
        rc = tqi_map_u64_put(&self->outgoing, key.transfer, out, NULL);
        if (rc != TQ_OK)
            tqi_outgoing_free(out);
    }
    if (rc != TQ_OK)
        return tqi_fail(err, rc, "no memory to send a transfer");
    running_add(self);
    resume(self, out);
    tqi_poller_mark(&conn->item);
    return TQ_OK;
}

static tq_status_t client_read(tqi_payload_client_t *port, tqi_transfer_key_t key,
                               const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                               uint32_t cnt, void *copier, tqi_err_t *err)
{
    client_t *self = client_of(port);
    conn_t *conn;
    (void)remote;
    tq_status_t rc = conn_for(self, key.owner, &conn, err);
    if (rc != TQ_OK)
        return rc;
    incoming_t *in = tqi_env_zalloc(self->env, sizeof *in);
    rc = in ? tqi_cursor_init(&in->cursor, frames, cnt) : TQ_E_NO_MEMORY;
    if (rc == TQ_OK)
        rc = tqi_map_u64_put(&self->incoming, key.transfer, in, NULL);
    if (rc != TQ_OK) {
        if (in)
            incoming_free(self, in);
        return tqi_fail(err, rc, "no memory to receive a transfer");
    }
    in->self = self;
    in->key = key;
    in->copier = copier;
    in->text = "";
    tqi_list_init(&in->jobs);
    tqi_list_push_back(&self->all, &in->all);
    if (tqi_cursor_at_end(&in->cursor)) /* nothing but empty frames */
        incoming_end(in, TQ_OK, "");
    return TQ_OK;
}

static void client_drop(tqi_payload_client_t *port, tqi_transfer_key_t key)
{
    client_t *self = client_of(port);
    incoming_t *in = tqi_map_u64_get(&self->incoming, key.transfer);
    tqi_outgoing_t *out = tqi_map_u64_get(&self->outgoing, key.transfer);
    conn_t *conn = tqi_map_u64_get(&self->conns, key.owner);
    if (in) {
        if (conn)
            say(conn, TQI_STREAM_STOP, key.transfer, 0);
        incoming_end(in, TQ_E_CANCELLED, "the transfer was dropped");
    }
    if (out)
        outgoing_stop(self, out, TQ_E_CANCELLED, "the transfer was dropped");
}

tqi_payload_client_t *tqi_zmq_payload_client_port(tqi_zmq_payload_client_t *client)
{
    return &client->port;
}

tqi_source_t *tqi_zmq_payload_client_source(tqi_zmq_payload_client_t *client)
{
    return &client->source;
}

void tqi_zmq_payload_client_stop(tqi_zmq_payload_client_t *self)
{
    tqi_map_u64_item_t *item;
    tqi_node_t *node;
    self->is_stopped = true;
    while ((item = tqi_map_u64_first(&self->conns)))
        client_close_unit(&self->port, item->key);
    /* Every transfer belonged to a connection, and has been ended with it. Jobs that are over may
     * still be on their transfers' lists: the mailbox is closed, nobody opens their letters. */
    pthread_mutex_lock(&self->mutex);
    while (self->running > 0)
        pthread_cond_wait(&self->none_running, &self->mutex);
    pthread_mutex_unlock(&self->mutex);
    while ((node = tqi_list_pop_front(&self->over)))
        continue;
    while ((node = tqi_list_first(&self->all))) {
        incoming_t *in = tqi_container_of(node, incoming_t, all);
        tqi_node_t *job;
        while ((job = tqi_list_pop_front(&in->jobs)))
            chunk_free(tqi_container_of(job, chunk_t, node));
        incoming_free(self, in);
    }
}

void tqi_zmq_payload_client_free(tqi_zmq_payload_client_t *self)
{
    if (!self)
        return;
    tqi_zmq_payload_client_stop(self);
    tqi_map_u64_fini(&self->conns, NULL, NULL);
    tqi_map_u64_fini(&self->incoming, NULL, NULL);
    tqi_map_u64_fini(&self->outgoing, NULL, NULL);
    tqi_poller_fini(&self->poller);
    tqi_zmq_context_release(self->context);
    pthread_cond_destroy(&self->none_running);
    pthread_mutex_destroy(&self->mutex);
    tqi_mailbox_unref(self->mailbox);
    tqi_env_free(self->env, self, sizeof *self);
}

tq_status_t tqi_zmq_payload_client_new(const tqi_env_t *env, tqi_mailbox_t *mailbox,
                                       tqi_exec_t *exec, const tqi_sink_t *sink,
                                       tqi_zmq_payload_client_t **out, tqi_err_t *err)
{
    client_t *self = tqi_env_zalloc(env, sizeof *self);
    if (!self)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a payload port");
    self->port = (tqi_payload_client_t){client_open, client_close_unit, client_write, client_read,
                                        client_drop};
    self->env = env;
    self->mailbox = mailbox;
    tqi_mailbox_ref(mailbox);
    self->exec = exec;
    self->sink = *sink;
    tqi_map_u64_init(&self->conns, env);
    tqi_map_u64_init(&self->incoming, env);
    tqi_map_u64_init(&self->outgoing, env);
    tqi_list_init(&self->sending);
    tqi_list_init(&self->all);
    tqi_list_init(&self->over);
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->none_running, NULL);
    tq_status_t rc = tqi_poller_init(&self->poller, err);
    self->source = (tqi_source_t){self->poller.epoll_fd, client_run, client_is_busy};
    if (rc != TQ_OK) {
        tqi_zmq_payload_client_free(self);
        return rc;
    }
    *out = self;
    return TQ_OK;
}
