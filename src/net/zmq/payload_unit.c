/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The unit's end: one ROUTER for all clients. A client's connection is known once it has said the
 * token that its session was given over ctrl; what comes before, or on any other, is dropped.
 *
 * Incoming chunks are copied here, straight to where the frames' pieces are. Outgoing ones are lent
 * to libzmq out of the segments, so a sent transfer ends when libzmq has let go of its last chunk.
 */
#include <errno.h>
#include <inttypes.h>
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
#include "sys/copy.h"
#include "sys/entropy.h"
#include "sys/log.h"

/* Well above the chunks that all windows of a peer can have under way. */
#define HWM 65536
#define TURN_MESSAGES 8 /* received, or sent, before the loop looks at control messages again */
#define RETRY_NS UINT64_C(1000000)

typedef struct session {
    uint64_t id;
    uint8_t token[TQI_STREAM_TOKEN];
    uint8_t route[256];
    size_t route_len; /* 0: its connection has not shown yet */
} session_t;

/* A transfer that is being received. */
typedef struct incoming {
    tqi_transfer_key_t key;
    tqi_cursor_t cursor;
    uint64_t bytes;     /* in all, for how to copy */
    uint64_t ungranted; /* received since the last CREDIT */
    tq_status_t status; /* once it is over */
    const char *text;
    tqi_node_t over; /* in self->over: to be reported */
} incoming_t;

struct tqi_zmq_payload_unit {
    tqi_payload_unit_t port;
    tqi_source_t source;
    const tqi_env_t *env;
    tqi_mailbox_t *mailbox;
    tqi_sink_t sink;
    void *context;
    tqi_poller_t poller;
    tqi_poller_item_t item;
    char address[TQI_ADDRESS_MAX];    /* "": listens nowhere */
    char advertised[TQI_ADDRESS_MAX]; /* what clients dial */
    uint64_t direct_arena;
    tqi_map_u64_t sessions;
    tqi_map_str_t by_route; /* routing id -> session */
    tqi_map_str_t incoming; /* key -> incoming_t */
    tqi_map_str_t outgoing; /* key -> tqi_outgoing_t, until it has ended */
    tqi_list_t sending;     /* those that may have something to send */
    tqi_list_t over;
    uint64_t dropped;      /* messages of strangers, or malformed */
    pthread_mutex_t mutex; /* of lent, for close */
    pthread_cond_t none_lent;
    bool is_stopped;
    uint32_t lent; /* outgoing transfers whose end was not handled yet */
};

typedef struct tqi_zmq_payload_unit unit_t;

static unit_t *unit_of(tqi_payload_unit_t *port)
{
    return tqi_container_of(port, unit_t, port);
}

static void say(unit_t *self, const session_t *session, tqi_stream_kind_t kind, uint64_t id,
                uint64_t credit)
{
    tqi_stream_head_t head = {.kind = kind, .id = id, .credit = credit};
    if (session->route_len == 0)
        return;
    /* The window is far below the high-water mark; who can't be told is gone. */
    (void)tqi_stream_say(self->item.socket, session->route, session->route_len, &head, NULL, 0);
    tqi_poller_mark(&self->item);
}

/* ---- incoming -------------------------------------------------------------------------------- */

static void incoming_end(unit_t *self, incoming_t *in, tq_status_t status, const char *text)
{
    tqi_map_str_take(&self->incoming, &in->key, sizeof in->key);
    in->status = status;
    in->text = text;
    tqi_list_push_back(&self->over, &in->over);
}

static void incoming_free(unit_t *self, incoming_t *in)
{
    tqi_cursor_fini(&in->cursor);
    tqi_env_free(self->env, in, sizeof *in);
}

/* Puts one chunk where it belongs. A chunk that is not the next one of the transfer ends it. */
static void incoming_data(unit_t *self, session_t *session, const tqi_stream_head_t *head,
                          const uint8_t *data, size_t len)
{
    tqi_transfer_key_t key = {session->id, head->id};
    incoming_t *in = tqi_map_str_get(&self->incoming, &key, sizeof key);
    if (!in) { /* dropped meanwhile */
        say(self, session, TQI_STREAM_STOP, head->id, 0);
        return;
    }
    bool is_over = tqi_cursor_at_end(&in->cursor);
    const tqi_frame_t *frame = is_over ? NULL : &in->cursor.frames[in->cursor.frame];
    if (is_over || len != head->len || len == 0 || head->frame != in->cursor.frame ||
        head->offset != in->cursor.offset || len > frame->bytes - head->offset) {
        say(self, session, TQI_STREAM_STOP, head->id, 0);
        incoming_end(self, in, TQ_E_MALFORMED, "a payload chunk is not the next one of its frame");
        return;
    }
    for (size_t at = 0; at < len;) {
        void *to;
        uint64_t took = tqi_cursor_take(&in->cursor, len - at, &to);
        tqi_copy(to, data + at, took, in->bytes);
        at += took;
    }
    tqi_copy_done();
    in->ungranted += len;
    if (tqi_cursor_at_end(&in->cursor)) {
        incoming_end(self, in, TQ_OK, "");
    } else if (in->ungranted >= TQI_STREAM_WINDOW / 2) {
        say(self, session, TQI_STREAM_CREDIT, head->id, in->ungranted);
        in->ungranted = 0;
    }
}

/* ---- outgoing -------------------------------------------------------------------------------- */

static void outgoing_handled(unit_t *self)
{
    pthread_mutex_lock(&self->mutex);
    if (--self->lent == 0)
        pthread_cond_broadcast(&self->none_lent);
    pthread_mutex_unlock(&self->mutex);
}

static void on_outgoing_over(tqi_outgoing_t *out, bool is_closed)
{
    unit_t *self = out->ctx;
    tqi_transfer_key_t key = out->key;
    tq_status_t status = out->status;
    const char *text = out->text;
    tqi_outgoing_free(out);
    if (!is_closed)
        self->sink.on_payload(self->sink.ctx, key, status, text);
    outgoing_handled(self);
}

static void outgoing_stop(unit_t *self, tqi_outgoing_t *out, tq_status_t status, const char *text)
{
    if (tqi_node_is_linked(&out->node))
        tqi_list_remove(&self->sending, &out->node);
    tqi_map_str_take(&self->outgoing, &out->key, sizeof out->key);
    tqi_outgoing_end(out, status, text);
}

/* One round over those that may send. True if libzmq had no room for somebody. */
static bool send_round(unit_t *self, bool *is_more)
{
    bool is_blocked = false;
    int budget = TURN_MESSAGES;
    for (size_t turns = self->sending.cnt; turns > 0 && budget > 0; turns--, budget--) {
        tqi_outgoing_t *out =
            tqi_container_of(tqi_list_pop_front(&self->sending), tqi_outgoing_t, node);
        session_t *session = tqi_map_u64_get(&self->sessions, out->key.owner);
        if (!session || session->route_len == 0)
            continue; /* resumed when its connection shows */
        tqi_transfer_key_t key = out->key;
        tqi_poller_mark(&self->item);
        switch (tqi_outgoing_send(out, self->item.socket, session->route, session->route_len)) {
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
            tqi_map_str_take(&self->outgoing, &key, sizeof key);
            break;
        }
    }
    return is_blocked;
}

static void resume(unit_t *self, tqi_outgoing_t *out)
{
    if (!tqi_node_is_linked(&out->node))
        tqi_list_push_back(&self->sending, &out->node);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void hello(unit_t *self, const void *route, size_t route_len, const tqi_stream_head_t *head,
                  const void *token, size_t token_len)
{
    session_t *session = tqi_map_u64_get(&self->sessions, head->id);
    /* A connection belongs to one session for good. */
    if (!session || tqi_map_str_get(&self->by_route, route, route_len) ||
        token_len != TQI_STREAM_TOKEN || route_len > sizeof session->route ||
        memcmp(session->token, token, TQI_STREAM_TOKEN) != 0 ||
        /* Without memory to know it by it would be a stranger for good: it shall dial again. */
        tqi_map_str_put(&self->by_route, route, route_len, session, NULL) != TQ_OK) {
        tqi_stream_head_t answer = {.kind = TQI_STREAM_REFUSED, .id = head->id};
        (void)tqi_stream_say(self->item.socket, route, route_len, &answer, NULL, 0);
        self->dropped++;
        return;
    }
    if (session->route_len > 0)
        tqi_map_str_take(&self->by_route, session->route, session->route_len);
    memcpy(session->route, route, route_len);
    session->route_len = route_len;
    tqi_map_str_item_t *item = tqi_map_str_first(&self->outgoing);
    for (; item; item = tqi_map_str_next(item)) {
        tqi_outgoing_t *out = item->value;
        if (out->key.owner != session->id)
            continue;
        /* Whatever was sent before went down with the old connection, and so did its reader: one
         * that waits on this connection has had nothing yet. */
        tqi_cursor_rewind(&out->cursor);
        out->credit = TQI_STREAM_WINDOW;
        resume(self, out);
    }
}

static void on_parts(unit_t *self, zmq_msg_t *route, zmq_msg_t *head_part, zmq_msg_t *data)
{
    tqi_stream_head_t head;
    if (!tqi_stream_head_read(zmq_msg_data(head_part), zmq_msg_size(head_part), &head)) {
        self->dropped++;
        return;
    }
    if (head.kind == TQI_STREAM_HELLO) {
        hello(self, zmq_msg_data(route), zmq_msg_size(route), &head, zmq_msg_data(data),
              zmq_msg_size(data));
        return;
    }
    session_t *session = tqi_map_str_get(&self->by_route, zmq_msg_data(route), zmq_msg_size(route));
    if (!session) {
        self->dropped++;
        return;
    }
    tqi_transfer_key_t key = {session->id, head.id};
    tqi_outgoing_t *out;
    switch (head.kind) {
    case TQI_STREAM_DATA:
        incoming_data(self, session, &head, zmq_msg_data(data), zmq_msg_size(data));
        break;
    case TQI_STREAM_CREDIT:
        out = tqi_map_str_get(&self->outgoing, &key, sizeof key);
        if (out) {
            out->credit = tqi_u64_min(out->credit + head.credit, TQI_STREAM_WINDOW);
            resume(self, out);
        }
        break;
    case TQI_STREAM_STOP:
        out = tqi_map_str_get(&self->outgoing, &key, sizeof key);
        if (out)
            outgoing_stop(self, out, TQ_E_CANCELLED, "the receiver takes no more");
        break;
    default:
        self->dropped++;
    }
}

/* Reads one message of [route, head] or [route, head, data]. False: nothing there. */
static bool read_one(unit_t *self)
{
    zmq_msg_t parts[4];
    int cnt = 0;
    bool is_more = true, is_ok = true;
    for (int i = 0; i < 4; i++)
        zmq_msg_init(&parts[i]);
    while (is_more) {
        int at = cnt < 3 ? cnt : 3; /* further parts are read over each other, and dropped */
        if (zmq_msg_recv(&parts[at], self->item.socket, ZMQ_DONTWAIT) < 0) {
            is_ok = false;
            break;
        }
        is_more = zmq_msg_more(&parts[at]);
        cnt++;
    }
    if (is_ok && (cnt == 2 || cnt == 3))
        on_parts(self, &parts[0], &parts[1], &parts[2]);
    else if (is_ok)
        self->dropped++;
    for (int i = 0; i < 4; i++)
        zmq_msg_close(&parts[i]);
    return is_ok;
}

static uint64_t unit_run(tqi_source_t *source, uint64_t now_ns)
{
    unit_t *self = tqi_container_of(source, unit_t, source);
    bool is_more = false, is_blocked = false;
    if (self->item.socket) {
        tqi_poller_collect(&self->poller);
        if (tqi_poller_pop(&self->poller)) {
            int i = 0;
            while (i < TURN_MESSAGES && read_one(self))
                i++;
            if (i == TURN_MESSAGES) {
                tqi_poller_mark(&self->item);
                is_more = true;
            }
        }
        is_blocked = send_round(self, &is_more);
    }
    tqi_node_t *node;
    while ((node = tqi_list_pop_front(&self->over))) {
        incoming_t *in = tqi_container_of(node, incoming_t, over);
        tqi_transfer_key_t key = in->key;
        tq_status_t status = in->status;
        const char *text = in->text;
        incoming_free(self, in);
        self->sink.on_payload(self->sink.ctx, key, status, text);
    }
    if (is_more)
        return now_ns;
    return is_blocked ? now_ns + RETRY_NS : UINT64_MAX;
}

static bool unit_is_busy(tqi_source_t *source)
{
    unit_t *self = tqi_container_of(source, unit_t, source);
    return self->over.cnt > 0 || (self->item.socket && tqi_poller_is_busy(&self->poller));
}

/* ---- the port -------------------------------------------------------------------------------- */

static tq_status_t unit_offer(tqi_payload_unit_t *port, uint64_t id, const char **address,
                              uint8_t token[16], uint64_t *direct_arena)
{
    unit_t *self = unit_of(port);
    session_t *session = tqi_map_u64_get(&self->sessions, id);
    if (!session) {
        session = tqi_env_zalloc(self->env, sizeof *session);
        if (!session || tqi_map_u64_put(&self->sessions, id, session, NULL) != TQ_OK) {
            tqi_env_free(self->env, session, sizeof *session);
            return TQ_E_NO_MEMORY;
        }
        session->id = id;
        tqi_entropy(session->token, sizeof session->token);
    }
    *address = self->advertised;
    memcpy(token, session->token, TQI_STREAM_TOKEN);
    *direct_arena = self->direct_arena;
    return TQ_OK;
}

static void unit_forget(tqi_payload_unit_t *port, uint64_t id)
{
    unit_t *self = unit_of(port);
    session_t *session = tqi_map_u64_take(&self->sessions, id);
    if (!session)
        return;
    if (session->route_len > 0)
        tqi_map_str_take(&self->by_route, session->route, session->route_len);
    tqi_env_free(self->env, session, sizeof *session);
}

static tq_status_t unit_expect(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                               const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    unit_t *self = unit_of(port);
    if (self->is_stopped || tqi_map_str_get(&self->incoming, &key, sizeof key))
        return tqi_fail(err, TQ_E_CLOSED, "the payload port is closed, or has this transfer");
    incoming_t *in = tqi_env_zalloc(self->env, sizeof *in);
    tq_status_t rc = in ? tqi_cursor_init(&in->cursor, frames, cnt) : TQ_E_NO_MEMORY;
    if (rc == TQ_OK) {
        in->key = key;
        for (uint32_t i = 0; i < cnt; i++)
            in->bytes += frames[i].bytes;
        rc = tqi_map_str_put(&self->incoming, &key, sizeof key, in, NULL);
    }
    if (rc != TQ_OK) {
        if (in)
            incoming_free(self, in);
        return tqi_fail(err, rc, "no memory to receive a transfer");
    }
    if (tqi_cursor_at_end(&in->cursor)) /* nothing but empty frames */
        incoming_end(self, in, TQ_OK, "");
    return TQ_OK;
}

static tq_status_t unit_send(tqi_payload_unit_t *port, tqi_transfer_key_t key,
                             const tqi_frame_t *frames, uint32_t cnt, tqi_err_t *err)
{
    unit_t *self = unit_of(port);
    tqi_outgoing_t *out;
    if (!self->item.socket || tqi_map_str_get(&self->outgoing, &key, sizeof key))
        return tqi_fail(err, TQ_E_CLOSED, "the payload port is closed, or has this transfer");
    tq_status_t rc =
        tqi_outgoing_new(key, frames, cnt, self->mailbox, self, on_outgoing_over, &out);
    if (rc == TQ_OK) {
        rc = tqi_map_str_put(&self->outgoing, &key, sizeof key, out, NULL);
        if (rc != TQ_OK)
            tqi_outgoing_free(out);
    }
    if (rc != TQ_OK)
        return tqi_fail(err, rc, "no memory to send a transfer");
    pthread_mutex_lock(&self->mutex);
    self->lent++;
    pthread_mutex_unlock(&self->mutex);
    tqi_list_push_back(&self->sending, &out->node);
    tqi_poller_mark(&self->item);
    return TQ_OK;
}

static void unit_drop(tqi_payload_unit_t *port, tqi_transfer_key_t key)
{
    unit_t *self = unit_of(port);
    incoming_t *in = tqi_map_str_get(&self->incoming, &key, sizeof key);
    tqi_outgoing_t *out = tqi_map_str_get(&self->outgoing, &key, sizeof key);
    session_t *session = tqi_map_u64_get(&self->sessions, key.owner);
    if (in) {
        if (session)
            say(self, session, TQI_STREAM_STOP, key.transfer, 0);
        incoming_end(self, in, TQ_E_CANCELLED, "the transfer was dropped");
    }
    if (out)
        outgoing_stop(self, out, TQ_E_CANCELLED, "the transfer was dropped");
}

tqi_payload_unit_t *tqi_zmq_payload_unit_port(tqi_zmq_payload_unit_t *unit)
{
    return &unit->port;
}

tqi_source_t *tqi_zmq_payload_unit_source(tqi_zmq_payload_unit_t *unit)
{
    return &unit->source;
}

void tqi_zmq_payload_unit_stop(tqi_zmq_payload_unit_t *self)
{
    tqi_map_str_item_t *item;
    tqi_node_t *node;
    self->is_stopped = true;
    while ((item = tqi_map_str_first(&self->outgoing)))
        outgoing_stop(self, item->value, TQ_E_CLOSED, "the unit is closed");
    if (self->item.socket)
        tqi_zmq_unlink(self->item.socket);
    tqi_poller_close(&self->item);
    pthread_mutex_lock(&self->mutex);
    while (self->lent > 0)
        pthread_cond_wait(&self->none_lent, &self->mutex);
    pthread_mutex_unlock(&self->mutex);
    while ((item = tqi_map_str_first(&self->incoming)))
        incoming_end(self, item->value, TQ_E_CLOSED, "");
    while ((node = tqi_list_pop_front(&self->over)))
        incoming_free(self, tqi_container_of(node, incoming_t, over));
}

void tqi_zmq_payload_unit_free(tqi_zmq_payload_unit_t *self)
{
    tqi_map_u64_item_t *session;
    if (!self)
        return;
    tqi_zmq_payload_unit_stop(self);
    while ((session = tqi_map_u64_first(&self->sessions)))
        unit_forget(&self->port, session->key);
    if (self->dropped > 0)
        tqi_log_info("payload", "%" PRIu64 " messages were dropped unread", self->dropped);
    tqi_map_str_fini(&self->outgoing, NULL, NULL);
    tqi_map_str_fini(&self->incoming, NULL, NULL);
    tqi_map_str_fini(&self->by_route, NULL, NULL);
    tqi_map_u64_fini(&self->sessions, NULL, NULL);
    tqi_poller_fini(&self->poller);
    tqi_zmq_context_release(self->context);
    pthread_cond_destroy(&self->none_lent);
    pthread_mutex_destroy(&self->mutex);
    tqi_mailbox_unref(self->mailbox);
    tqi_env_free(self->env, self, sizeof *self);
}

tq_status_t tqi_zmq_payload_unit_new(const tqi_env_t *env, const char *address,
                                     uint64_t direct_arena, tqi_mailbox_t *mailbox,
                                     const tqi_sink_t *sink, tqi_zmq_payload_unit_t **out,
                                     tqi_err_t *err)
{
    unit_t *self = tqi_env_zalloc(env, sizeof *self);
    void *socket;
    if (!self)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a payload port");
    self->port = (tqi_payload_unit_t){unit_offer, unit_forget, unit_expect, unit_send, unit_drop};
    self->env = env;
    self->mailbox = mailbox;
    tqi_mailbox_ref(mailbox);
    self->sink = *sink;
    self->direct_arena = direct_arena;
    tqi_map_u64_init(&self->sessions, env);
    tqi_map_str_init(&self->by_route, env);
    tqi_map_str_init(&self->incoming, env);
    tqi_map_str_init(&self->outgoing, env);
    tqi_list_init(&self->sending);
    tqi_list_init(&self->over);
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->none_lent, NULL);
    tq_status_t rc = tqi_poller_init(&self->poller, err);
    self->source = (tqi_source_t){self->poller.epoll_fd, unit_run, unit_is_busy};
    if (rc == TQ_OK && address) {
        rc = tqi_zmq_context_acquire(&self->context, err);
        if (rc == TQ_OK)
            rc = tqi_zmq_socket(self->context, ZMQ_ROUTER, HWM, HWM, 2 * TQI_STREAM_CHUNK, &socket,
                                err);
        if (rc == TQ_OK)
            rc = tqi_poller_add(&self->poller, &self->item, socket, err);
        if (rc == TQ_OK)
            rc = tqi_zmq_bind(socket, address, NULL, self->address, err);
    }
    if (rc != TQ_OK) {
        tqi_zmq_payload_unit_free(self);
        return rc;
    }
    tqi_zmq_payload_unit_advertise(self, self->address);
    *out = self;
    return TQ_OK;
}

const char *tqi_zmq_payload_unit_address(const tqi_zmq_payload_unit_t *self)
{
    return self->address;
}

void tqi_zmq_payload_unit_advertise(tqi_zmq_payload_unit_t *self, const char *address)
{
    memcpy(self->advertised, address, strnlen(address, sizeof self->advertised - 1) + 1);
    self->advertised[sizeof self->advertised - 1] = 0;
}
