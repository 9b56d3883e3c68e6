/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One ROUTER a listening address, one DEALER a peer that we dial. Peers of a ROUTER are known by
 * the routing ids that libzmq gives them, one a connection; so a peer handle is one connection.
 *
 * Sending never blocks: what libzmq does not take waits in the peer's own queue, bounded in bytes,
 * and blocked peers are served in turns. A DEALER tells us by its monitor that its connection came
 * or went. A ROUTER tells nothing: sending to somebody who left fails with EHOSTUNREACH, and the
 * silence of a peer is for the role to notice.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tq/types.h>
#include <zmq.h>

#include "base/assert.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "net/zmq/context.h"
#include "net/zmq/poller.h"
#include "net/zmq/zmq_ctrl.h"
#include "sys/log.h"

/* libzmq counts messages, we count bytes: what it holds for a peer is bounded by LENT_BYTES_MAX, so
 * its own mark on the sending side only has to be above the window of 1,024 requests. On the
 * receiving side, a peer that we do not read from can make it hold so many messages. */
#define SEND_HWM 4096
#define RECEIVE_HWM 64
#define LENT_BYTES_MAX (4u << 20)
#define BYTES_MAX ((int64_t)TQ_MESSAGE_BYTES_MAX + 65536)
#define QUEUE_BYTES_MAX (16u << 20) /* net/ctrl.h */
#define TURN_MESSAGES 256           /* received from one socket before the others get a turn */
#define TURN_BYTES (256u << 10)     /* sent to one blocked peer before the others get a turn */
#define RETRY_NS UINT64_C(1000000)  /* nothing tells when libzmq has room again */
#define CLOSE_LINGER_MS 200         /* for the last words, if the peer reads them at all */
/* Of one ROUTER, which does not say who has left: beyond it whoever was silent for longest is taken to
 * be gone. */
#define PEERS_MAX 65536

typedef struct zmq_ctrl zmq_ctrl_t;

typedef struct sock {
    zmq_ctrl_t *self;
    tqi_poller_item_t item; /* with a monitor for a DEALER */
    tqi_node_t node;        /* in self->socks */
    tqi_map_str_t by_id;    /* ROUTER: routing id -> peer */
    tqi_list_t heard;       /* ROUTER: its peers, those heard last at the end */
    struct peer *dialled;   /* DEALER */
} sock_t;

/* How many bytes libzmq holds for a peer; its threads count down, also after the peer is gone. */
typedef struct lent {
    atomic_uint refs;
    atomic_size_t bytes;
} lent_t;

/* A frame that libzmq has. */
typedef struct lent_frame {
    tqi_buf_t frame;
    lent_t *lent;
} lent_frame_t;

typedef struct queued {
    tqi_node_t node;
    tqi_buf_t frame;
} queued_t;

typedef struct peer {
    tqi_peer_t handle;
    sock_t *sock;
    uint8_t id[256];
    size_t id_len;     /* 0 for the peer of a DEALER */
    bool is_connected; /* DEALER: the handshake is over */
    tqi_node_t heard;  /* ROUTER: in sock->heard */
    tqi_list_t queue;  /* of queued_t */
    size_t queue_bytes;
    lent_t *lent;
    tqi_node_t blocked; /* in self->blocked while the queue is not empty */
} peer_t;

struct zmq_ctrl {
    tqi_ctrl_adapter_t adapter;
    const tqi_env_t *env;
    tqi_sink_t sink;
    tqi_zmq_keys_t keys;
    void *context;
    tqi_poller_t poller;
    tqi_list_t socks;
    tqi_map_u64_t peers; /* handle -> peer */
    tqi_list_t blocked;
    tqi_peer_t peer_last;
    tqi_map_u64_t lost; /* handles whose loss was noticed within a call; reported by run */
    uint64_t dropped;   /* messages with the wrong number of parts, or without memory for a peer */
    const char *why_down;
};

static zmq_ctrl_t *self_of(tqi_ctrl_t *ctrl)
{
    return tqi_container_of(ctrl, zmq_ctrl_t, adapter.ctrl);
}

/* ---- sockets --------------------------------------------------------------------------------- */

static void sock_close(sock_t *sock)
{
    zmq_ctrl_t *self = sock->self;
    if (sock->item.socket) {
        tqi_zmq_linger(sock->item.socket, CLOSE_LINGER_MS);
        tqi_zmq_unlink(sock->item.socket);
    }
    tqi_poller_close(&sock->item);
    if (tqi_node_is_linked(&sock->node))
        tqi_list_remove(&self->socks, &sock->node);
    tqi_map_str_fini(&sock->by_id, NULL, NULL);
    tqi_env_free(self->env, sock, sizeof *sock);
}

static tq_status_t sock_new(zmq_ctrl_t *self, int type, sock_t **out, tqi_err_t *err)
{
    void *socket;
    sock_t *sock = tqi_env_zalloc(self->env, sizeof *sock);
    if (!sock)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a socket");
    sock->self = self;
    tqi_map_str_init(&sock->by_id, self->env);
    tqi_list_init(&sock->heard);
    tq_status_t rc =
        tqi_zmq_socket(self->context, type, SEND_HWM, RECEIVE_HWM, BYTES_MAX, &socket, err);
    if (rc == TQ_OK)
        rc = tqi_poller_add(&self->poller, &sock->item, socket, err);
    if (rc != TQ_OK) {
        sock_close(sock);
        return rc;
    }
    tqi_list_push_back(&self->socks, &sock->node);
    *out = sock;
    return TQ_OK;
}

/* ---- peers ----------------------------------------------------------------------------------- */

static void queue_drop(peer_t *peer)
{
    tqi_node_t *node;
    while ((node = tqi_list_pop_front(&peer->queue))) {
        queued_t *queued = tqi_container_of(node, queued_t, node);
        tqi_buf_fini(&queued->frame);
        free(queued);
    }
    peer->queue_bytes = 0;
    if (tqi_node_is_linked(&peer->blocked))
        tqi_list_remove(&peer->sock->self->blocked, &peer->blocked);
}

static void lent_unref(lent_t *lent)
{
    if (atomic_fetch_sub_explicit(&lent->refs, 1, memory_order_acq_rel) == 1)
        free(lent);
}

static peer_t *peer_new(sock_t *sock, const void *id, size_t id_len)
{
    zmq_ctrl_t *self = sock->self;
    peer_t *peer = tqi_env_zalloc(self->env, sizeof *peer);
    lent_t *lent = calloc(1, sizeof *lent);
    if (!peer || !lent)
        goto no_memory;
    atomic_init(&lent->refs, 1);
    peer->lent = lent;
    peer->handle = ++self->peer_last;
    peer->sock = sock;
    peer->id_len = id_len;
    if (id_len > 0)
        memcpy(peer->id, id, id_len);
    tqi_list_init(&peer->queue);
    if (tqi_map_u64_put(&self->peers, peer->handle, peer, NULL) != TQ_OK)
        goto no_memory;
    if (id_len > 0 && tqi_map_str_put(&sock->by_id, id, id_len, peer, NULL) != TQ_OK) {
        tqi_map_u64_take(&self->peers, peer->handle);
        goto no_memory;
    }
    if (id_len > 0)
        tqi_list_push_back(&sock->heard, &peer->heard);
    return peer;
no_memory:
    tqi_env_free(self->env, peer, sizeof *peer);
    free(lent);
    return NULL;
}

/* Forgets a peer; a DEALER goes with it. */
static void peer_free(peer_t *peer)
{
    zmq_ctrl_t *self = peer->sock->self;
    queue_drop(peer);
    tqi_map_u64_take(&self->peers, peer->handle);
    if (peer->id_len > 0) {
        tqi_map_str_take(&peer->sock->by_id, peer->id, peer->id_len);
        tqi_list_remove(&peer->sock->heard, &peer->heard);
    } else {
        sock_close(peer->sock);
    }
    lent_unref(peer->lent);
    tqi_env_free(self->env, peer, sizeof *peer);
}

static void peer_down(peer_t *peer, const char *why)
{
    zmq_ctrl_t *self = peer->sock->self;
    tqi_peer_t handle = peer->handle;
    peer_free(peer);
    self->why_down = why;
    self->sink.on_peer_down(self->sink.ctx, handle);
    self->why_down = "";
}

/* ---- sending --------------------------------------------------------------------------------- */

/* libzmq's thread is done with a frame. */
static void frame_free(void *data, void *hint)
{
    lent_frame_t *owned = hint;
    (void)data;
    atomic_fetch_sub_explicit(&owned->lent->bytes, owned->frame.len, memory_order_relaxed);
    lent_unref(owned->lent);
    tqi_buf_fini(&owned->frame);
    free(owned);
}

/* Hands one frame to libzmq, which owns it on OK. E_BUSY: no room now. */
static tq_status_t send_now(peer_t *peer, tqi_buf_t *frame)
{
    sock_t *sock = peer->sock;
    lent_t *lent = peer->lent;
    zmq_msg_t msg;
    size_t held = atomic_load_explicit(&lent->bytes, memory_order_relaxed);
    if (held > 0 && held + frame->len > LENT_BYTES_MAX)
        return TQ_E_BUSY;
    lent_frame_t *owned = malloc(sizeof *owned);
    if (!owned)
        return TQ_E_NO_MEMORY;
    *owned = (lent_frame_t){.frame.env = frame->env, .lent = lent};
    if (zmq_msg_init_data(&msg, frame->data, frame->len, frame_free, owned) != 0) {
        free(owned);
        return TQ_E_NO_MEMORY;
    }
    tqi_buf_take(&owned->frame, frame);
    atomic_fetch_add_explicit(&lent->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&lent->bytes, owned->frame.len, memory_order_relaxed);
    tqi_poller_mark(&sock->item);
    if ((peer->id_len == 0 ||
         zmq_send(sock->item.socket, peer->id, peer->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0) &&
        zmq_msg_send(&msg, sock->item.socket, ZMQ_DONTWAIT) >= 0)
        return TQ_OK;
    int why = errno;
    /* Closing the message would free the frame: take it back first. */
    atomic_fetch_sub_explicit(&lent->bytes, owned->frame.len, memory_order_relaxed);
    tqi_buf_take(frame, &owned->frame);
    zmq_msg_close(&msg);
    return why == EHOSTUNREACH ? TQ_E_UNREACHABLE : TQ_E_BUSY;
}

/* Sends what waits, a turn's worth, as far as libzmq has room. */
static void queue_flush(peer_t *peer)
{
    size_t sent = 0;
    tqi_node_t *node;
    while ((node = tqi_list_first(&peer->queue)) && sent < TURN_BYTES) {
        queued_t *queued = tqi_container_of(node, queued_t, node);
        size_t len = queued->frame.len;
        if (send_now(peer, &queued->frame) != TQ_OK)
            return;
        tqi_list_remove(&peer->queue, node);
        free(queued);
        peer->queue_bytes -= len;
        sent += len;
    }
}

/* A turn for each peer that had something queued when the round began. */
static void flush_blocked(zmq_ctrl_t *self)
{
    for (size_t turns = self->blocked.cnt; turns > 0; turns--) {
        peer_t *peer = tqi_container_of(tqi_list_pop_front(&self->blocked), peer_t, blocked);
        if (peer->id_len > 0 || peer->is_connected)
            queue_flush(peer);
        if (peer->queue.cnt > 0)
            tqi_list_push_back(&self->blocked, &peer->blocked);
    }
}

static tq_status_t ctrl_send(tqi_ctrl_t *ctrl, tqi_peer_t handle, tqi_buf_t *frame)
{
    zmq_ctrl_t *self = self_of(ctrl);
    peer_t *peer = tqi_map_u64_get(&self->peers, handle);
    if (!peer || tqi_map_u64_get(&self->lost, handle))
        return TQ_E_UNREACHABLE;
    tqi_assert(frame->len > 0);
    bool may_try = peer->queue.cnt == 0 && (peer->id_len > 0 || peer->is_connected);
    tq_status_t rc = may_try ? send_now(peer, frame) : TQ_E_BUSY;
    if (rc == TQ_E_UNREACHABLE) {
        (void)tqi_map_u64_put(&self->lost, handle, peer, NULL);
        return rc;
    }
    if (rc != TQ_E_BUSY)
        return rc;
    if (peer->queue_bytes > 0 && peer->queue_bytes + frame->len > QUEUE_BYTES_MAX)
        return TQ_E_BUSY;
    queued_t *queued = calloc(1, sizeof *queued);
    if (!queued)
        return TQ_E_NO_MEMORY;
    queued->frame.env = frame->env;
    peer->queue_bytes += frame->len;
    tqi_buf_take(&queued->frame, frame);
    tqi_list_push_back(&peer->queue, &queued->node);
    if (!tqi_node_is_linked(&peer->blocked))
        tqi_list_push_back(&self->blocked, &peer->blocked);
    return TQ_OK;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Reads one whole message into msg; further parts are counted and dropped. False: nothing there. */
static bool receive(sock_t *sock, zmq_msg_t *id, zmq_msg_t *msg)
{
    bool is_router = sock->dialled == NULL;
    for (;;) {
        if (zmq_msg_recv(is_router ? id : msg, sock->item.socket, ZMQ_DONTWAIT) < 0)
            return false;
        int parts = 1;
        for (zmq_msg_t *last = is_router ? id : msg; zmq_msg_more(last); parts++) {
            last = msg;
            if (zmq_msg_recv(msg, sock->item.socket, ZMQ_DONTWAIT) < 0)
                return false;
        }
        if (parts == (is_router ? 2 : 1))
            return true;
        sock->self->dropped++;
    }
}

/* The peer of a ROUTER that has this routing id; NULL without memory for a new one. */
static peer_t *peer_heard(sock_t *sock, const void *id, size_t id_len)
{
    peer_t *peer = tqi_map_str_get(&sock->by_id, id, id_len);
    if (peer) {
        tqi_list_remove(&sock->heard, &peer->heard);
        tqi_list_push_back(&sock->heard, &peer->heard);
        return peer;
    }
    if (sock->heard.cnt >= PEERS_MAX)
        peer_down(tqi_container_of(tqi_list_first(&sock->heard), peer_t, heard),
                  "it was silent, and others came");
    return peer_new(sock, id, id_len);
}

/* Takes up to a turn's worth of messages. True when there may be more. The socket may be closed by
 * what the role does: its node then is in no list any more. */
static bool read_socket(sock_t *sock)
{
    zmq_ctrl_t *self = sock->self;
    zmq_msg_t id, msg;
    bool is_router = sock->dialled == NULL;
    tqi_peer_t handle = is_router ? 0 : sock->dialled->handle;
    zmq_msg_init(&id);
    zmq_msg_init(&msg);
    bool is_more = true;
    for (int i = 0; i < TURN_MESSAGES; i++) {
        if (!receive(sock, &id, &msg)) {
            is_more = false;
            break;
        }
        if (is_router) {
            peer_t *peer = peer_heard(sock, zmq_msg_data(&id), zmq_msg_size(&id));
            if (!peer) {
                self->dropped++;
                continue;
            }
            handle = peer->handle;
        }
        self->sink.on_message(self->sink.ctx, handle, zmq_msg_data(&msg), zmq_msg_size(&msg));
        if (!is_router && !tqi_map_u64_get(&self->peers, handle)) {
            is_more = false; /* the role has hung up, and sock is gone */
            break;
        }
    }
    zmq_msg_close(&id);
    zmq_msg_close(&msg);
    return is_more;
}

/* What became of a DEALER's connection. False when it is gone, and the socket with it. */
static bool read_monitor(sock_t *sock)
{
    peer_t *peer = sock->dialled;
    zmq_ctrl_t *self = sock->self;
    const char *why = "";
    for (;;) {
        switch (tqi_poller_next_event(&sock->item, &why)) {
        case TQI_LINK_NONE:
            return true;
        case TQI_LINK_UP:
            peer->is_connected = true;
            continue;
        case TQI_LINK_DOWN:
            break;
        }
        /* What had arrived before the connection went is still to be read. */
        tqi_peer_t handle = peer->handle;
        while (peer->is_connected && read_socket(sock))
            continue;
        if (tqi_map_u64_get(&self->peers, handle))
            peer_down(peer, why);
        return false;
    }
}

/* ---- the loop's side ------------------------------------------------------------------------- */

static uint64_t zmq_run(tqi_source_t *source, uint64_t now_ns)
{
    zmq_ctrl_t *self = tqi_container_of(source, zmq_ctrl_t, adapter.source);
    bool is_more = tqi_poller_collect(&self->poller);
    tqi_map_u64_item_t *item;
    while ((item = tqi_map_u64_first(&self->lost))) {
        peer_t *peer = tqi_map_u64_get(&self->peers, item->key);
        tqi_map_u64_take(&self->lost, item->key);
        if (peer)
            peer_down(peer, "the connection is gone");
    }

    /* One turn for each socket that may have something; those that have more stay on the list. */
    for (size_t turns = self->poller.dirty.cnt; turns > 0; turns--) {
        tqi_poller_item_t *dirty = tqi_poller_pop(&self->poller);
        if (!dirty)
            break;
        sock_t *sock = tqi_container_of(dirty, sock_t, item);
        if (sock->dialled && !read_monitor(sock))
            continue;
        tqi_peer_t handle = sock->dialled ? sock->dialled->handle : 0;
        bool has_more = (tqi_zmq_events(sock->item.socket) & ZMQ_POLLIN) && read_socket(sock);
        if (has_more && (handle == 0 || tqi_map_u64_get(&self->peers, handle))) {
            tqi_poller_mark(&sock->item);
            is_more = true;
        }
    }
    flush_blocked(self);
    if (is_more)
        return now_ns;
    return self->blocked.cnt > 0 ? now_ns + RETRY_NS : UINT64_MAX;
}

static bool zmq_is_busy(tqi_source_t *source)
{
    zmq_ctrl_t *self = tqi_container_of(source, zmq_ctrl_t, adapter.source);
    return tqi_map_u64_count(&self->lost) > 0 || tqi_poller_is_busy(&self->poller);
}

/* ---- the port -------------------------------------------------------------------------------- */

static bool zmq_serves(const tqi_ctrl_adapter_t *adapter, const char *address)
{
    (void)adapter;
    return tqi_zmq_serves(address);
}

static tq_status_t ctrl_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *out,
                                tqi_err_t *err)
{
    zmq_ctrl_t *self = self_of(ctrl);
    sock_t *sock = NULL;
    tq_status_t rc = sock_new(self, ZMQ_DEALER, &sock, err);
    if (rc != TQ_OK)
        return rc;
    peer_t *peer = peer_new(sock, NULL, 0);
    if (!peer) {
        sock_close(sock);
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a connection to %s", address);
    }
    sock->dialled = peer;
    rc = tqi_poller_monitor(&sock->item, self->context, err);
    if (rc == TQ_OK)
        rc = tqi_zmq_connect(sock->item.socket, address, &self->keys, err);
    if (rc != TQ_OK) {
        peer_free(peer);
        return rc;
    }
    *out = peer->handle;
    return TQ_OK;
}

static void ctrl_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t handle)
{
    zmq_ctrl_t *self = self_of(ctrl);
    peer_t *peer = tqi_map_u64_get(&self->peers, handle);
    tqi_map_u64_take(&self->lost, handle);
    if (peer)
        peer_free(peer);
}

static const char *ctrl_why_down(tqi_ctrl_t *ctrl)
{
    return self_of(ctrl)->why_down;
}

static tq_status_t zmq_listen(tqi_ctrl_adapter_t *adapter, const char *address,
                              char real[TQI_ADDRESS_MAX], tqi_err_t *err)
{
    zmq_ctrl_t *self = tqi_container_of(adapter, zmq_ctrl_t, adapter);
    sock_t *sock = NULL;
    tq_status_t rc = sock_new(self, ZMQ_ROUTER, &sock, err);
    if (rc != TQ_OK)
        return rc;
    rc = tqi_zmq_bind(sock->item.socket, address, &self->keys, real, err);
    if (rc != TQ_OK)
        sock_close(sock);
    return rc;
}

static void zmq_close_adapter(tqi_ctrl_adapter_t *adapter)
{
    zmq_ctrl_t *self = tqi_container_of(adapter, zmq_ctrl_t, adapter);
    tqi_map_u64_item_t *item;
    tqi_node_t *node;
    if (self->dropped > 0)
        tqi_log_info("ctrl", "%" PRIu64 " messages were dropped unread", self->dropped);
    while ((item = tqi_map_u64_first(&self->peers)))
        peer_free(item->value);
    while ((node = tqi_list_first(&self->socks)))
        sock_close(tqi_container_of(node, sock_t, node));
    tqi_map_u64_fini(&self->peers, NULL, NULL);
    tqi_map_u64_fini(&self->lost, NULL, NULL);
    tqi_poller_fini(&self->poller);
    tqi_zmq_context_release(self->context);
    tqi_env_free(self->env, self, sizeof *self);
}

tq_status_t tqi_zmq_ctrl_new(const tqi_env_t *env, const tqi_zmq_conf_t *conf,
                             const tqi_sink_t *sink, tqi_ctrl_adapter_t **out, tqi_err_t *err)
{
    zmq_ctrl_t *self = tqi_env_zalloc(env, sizeof *self);
    if (!self)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a port");
    self->adapter = (tqi_ctrl_adapter_t){
        .ctrl = {ctrl_connect, ctrl_disconnect, ctrl_send, ctrl_why_down},
        .source = {-1, zmq_run, zmq_is_busy},
        .serves = zmq_serves,
        .listen = zmq_listen,
        .close = zmq_close_adapter,
    };
    self->env = env;
    self->sink = *sink;
    self->why_down = "";
    tqi_list_init(&self->socks);
    tqi_list_init(&self->blocked);
    tqi_map_u64_init(&self->peers, env);
    tqi_map_u64_init(&self->lost, env);
    tq_status_t rc = tqi_poller_init(&self->poller, err);
    self->adapter.source.fd = self->poller.epoll_fd;
    if (rc == TQ_OK)
        rc = tqi_zmq_keys_init(&self->keys, conf, err);
    if (rc == TQ_OK)
        rc = tqi_zmq_context_acquire(&self->context, err);
    if (rc != TQ_OK) {
        zmq_close_adapter(&self->adapter);
        return rc;
    }
    *out = &self->adapter;
    return TQ_OK;
}
