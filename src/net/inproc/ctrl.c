/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link joins two loops. Each end belongs to its loop's thread; what they share is the count of
 * bytes under way and the references. A frame is a letter to the other loop's mailbox.
 *
 *   dial      looks the name up, makes the link, and that is all: the other end shows with the
 *             first frame
 *   hang up   a DOWN letter, after which that end sends nothing more
 *
 * A listener is found by name under a mutex that is held for the look-up only.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "net/inproc/inproc.h"
#include "sys/fork.h"

#define SCHEME "inproc://"
#define LINK_BYTES_MAX (16u << 20) /* under way in one direction (net/ctrl.h) */

typedef struct inproc inproc_t;

typedef struct end {
    inproc_t *owner; /* valid while its mailbox takes letters */
    tqi_mailbox_t *mailbox;
    tqi_peer_t peer;     /* the owner's handle of the other side; 0: not seen yet, or hung up */
    bool is_over;        /* hung up or heard the other hang up */
    atomic_size_t bytes; /* sent to this end and not opened yet */
} end_t;

typedef struct link {
    atomic_uint refs; /* ends that hold it, letters under way */
    end_t ends[2];
} link_t;

typedef struct letter {
    tqi_letter_t base;
    link_t *link;
    int to;          /* which end it is for */
    tqi_buf_t frame; /* empty: the other side has hung up */
} letter_t;

struct inproc {
    tqi_ctrl_adapter_t adapter;
    const tqi_env_t *env;
    tqi_mailbox_t *mailbox;
    tqi_sink_t sink;
    tqi_map_u64_t peers; /* handle -> link */
    tqi_peer_t peer_last;
    tqi_map_u64_t unreached; /* handles of names that nobody listens on: reported by run */
    tqi_list_t names;        /* that this loop listens on */
};

/* ---- the names of this process --------------------------------------------------------------- */

typedef struct name {
    tqi_node_t in_registry;
    tqi_node_t in_owner;
    inproc_t *owner;
    pid_t pid; /* a forked child has a copy of the table, and none of the threads in it */
    char text[];
} name_t;

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static tqi_list_t registry = {.head = {&registry.head, &registry.head}};

static void guard(void)
{
    tqi_fork_guard(&registry_mutex);
}

static name_t *registry_find(const char *text)
{
    tqi_list_each(&registry, node)
    {
        name_t *name = tqi_container_of(node, name_t, in_registry);
        if (name->pid == getpid() && strcmp(name->text, text) == 0)
            return name;
    }
    return NULL;
}

/* ---- links ----------------------------------------------------------------------------------- */

static void link_unref(link_t *link)
{
    if (atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int i = 0; i < 2; i++)
        tqi_mailbox_unref(link->ends[i].mailbox);
    free(link);
}

static int end_of(const link_t *link, const inproc_t *owner, tqi_peer_t peer)
{
    return link->ends[0].owner == owner && link->ends[0].peer == peer ? 0 : 1;
}

static void letter_open(tqi_letter_t *base, bool is_closed);

/* Sends frame (taken) to the other end; an empty one says that this end hangs up. */
static tq_status_t post(link_t *link, int from, tqi_buf_t *frame)
{
    int to = 1 - from;
    size_t len = frame ? frame->len : 0;
    letter_t *letter = malloc(sizeof *letter);
    if (!letter)
        return TQ_E_NO_MEMORY;
    *letter = (letter_t){.base.open = letter_open, .link = link, .to = to};
    if (frame) {
        letter->frame.env = frame->env;
        tqi_buf_take(&letter->frame, frame);
    }
    atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&link->ends[to].bytes, len, memory_order_relaxed);
    if (tqi_mailbox_post(link->ends[to].mailbox, &letter->base))
        return TQ_OK;
    atomic_fetch_sub_explicit(&link->ends[to].bytes, len, memory_order_relaxed);
    if (frame)
        tqi_buf_take(frame, &letter->frame);
    free(letter);
    link_unref(link);
    return TQ_E_UNREACHABLE;
}

/* Ends this side of a link; the other is told unless it spoke first. */
static void hang_up(inproc_t *self, link_t *link, int at, bool is_told)
{
    end_t *end = &link->ends[at];
    tqi_map_u64_take(&self->peers, end->peer);
    end->is_over = true;
    /* Out of memory here leaves the other side to its own timers, as a lost connection would. */
    if (!is_told)
        (void)post(link, at, NULL);
    link_unref(link);
}

static void letter_open(tqi_letter_t *base, bool is_closed)
{
    letter_t *letter = tqi_container_of(base, letter_t, base);
    link_t *link = letter->link;
    end_t *end = &link->ends[letter->to];
    inproc_t *self = end->owner;
    bool is_down = letter->frame.data == NULL;
    atomic_fetch_sub_explicit(&end->bytes, letter->frame.len, memory_order_relaxed);

    if (!is_closed && !end->is_over) {
        if (end->peer == 0 && !is_down) {
            /* First frame of a link that the other side dialled. */
            tqi_peer_t peer = ++self->peer_last;
            if (tqi_map_u64_put(&self->peers, peer, link, NULL) == TQ_OK) {
                end->peer = peer;
                atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed);
            } /* else: no memory, the frame is lost, as frames may be */
        }
        if (end->peer != 0 && is_down) {
            tqi_peer_t peer = end->peer;
            hang_up(self, link, letter->to, true);
            self->sink.on_peer_down(self->sink.ctx, peer);
        } else if (end->peer != 0) {
            self->sink.on_message(self->sink.ctx, end->peer, letter->frame.data, letter->frame.len);
        }
        if (is_down)
            end->is_over = true;
    }
    tqi_buf_fini(&letter->frame);
    free(letter);
    link_unref(link);
}

/* ---- the port -------------------------------------------------------------------------------- */

static inproc_t *inproc_of(tqi_ctrl_t *ctrl)
{
    return tqi_container_of(ctrl, inproc_t, adapter.ctrl);
}

static bool inproc_serves(const tqi_ctrl_adapter_t *adapter, const char *address)
{
    (void)adapter;
    return strncmp(address, SCHEME, sizeof SCHEME - 1) == 0;
}

static tq_status_t inproc_connect(tqi_ctrl_t *ctrl, const char *address, tqi_peer_t *peer,
                                  tqi_err_t *err)
{
    inproc_t *self = inproc_of(ctrl);
    if (!inproc_serves(&self->adapter, address))
        return tqi_fail(err, TQ_E_CONFIG, "'%.300s' is no in-process address", address);
    link_t *link = calloc(1, sizeof *link);
    tqi_peer_t handle = ++self->peer_last;
    if (!link)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a connection to %s", address);
    atomic_init(&link->refs, 1);
    link->ends[0].owner = self;
    link->ends[0].peer = handle;
    link->ends[0].mailbox = self->mailbox;
    tqi_mailbox_ref(self->mailbox);

    pthread_mutex_lock(&registry_mutex);
    name_t *name = registry_find(address + sizeof SCHEME - 1);
    if (name) {
        link->ends[1].owner = name->owner;
        link->ends[1].mailbox = name->owner->mailbox;
        tqi_mailbox_ref(name->owner->mailbox);
    }
    pthread_mutex_unlock(&registry_mutex);

    tq_status_t rc = tqi_map_u64_put(name ? &self->peers : &self->unreached, handle, link, NULL);
    if (rc != TQ_OK) {
        link_unref(link);
        return tqi_fail(err, rc, "no memory for a connection to %s", address);
    }
    *peer = handle;
    return TQ_OK;
}

static void inproc_disconnect(tqi_ctrl_t *ctrl, tqi_peer_t peer)
{
    inproc_t *self = inproc_of(ctrl);
    link_t *link = tqi_map_u64_get(&self->peers, peer);
    if (link)
        hang_up(self, link, end_of(link, self, peer), false);
    else if ((link = tqi_map_u64_take(&self->unreached, peer)))
        link_unref(link);
}

static tq_status_t inproc_send(tqi_ctrl_t *ctrl, tqi_peer_t peer, tqi_buf_t *frame)
{
    inproc_t *self = inproc_of(ctrl);
    link_t *link = tqi_map_u64_get(&self->peers, peer);
    if (!link)
        return TQ_E_UNREACHABLE;
    tqi_assert(frame->len > 0); /* an empty letter is a hang-up */
    int from = end_of(link, self, peer);
    size_t queued = atomic_load_explicit(&link->ends[1 - from].bytes, memory_order_relaxed);
    if (queued > 0 && queued + frame->len > LINK_BYTES_MAX)
        return TQ_E_BUSY;
    return post(link, from, frame);
}

static const char *inproc_why_down(tqi_ctrl_t *ctrl)
{
    (void)ctrl;
    return "nobody listens there (any more)";
}

static tq_status_t inproc_listen(tqi_ctrl_adapter_t *adapter, const char *address,
                                 char real[TQI_ADDRESS_MAX], tqi_err_t *err)
{
    inproc_t *self = tqi_container_of(adapter, inproc_t, adapter);
    size_t len = strlen(address);
    if (len >= TQI_ADDRESS_MAX || !inproc_serves(adapter, address) || len < sizeof SCHEME)
        return tqi_fail(err, TQ_E_CONFIG, "'%.300s' is no in-process address", address);
    const char *text = address + sizeof SCHEME - 1;
    name_t *name = malloc(sizeof *name + strlen(text) + 1);
    if (!name)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory to listen on %s", address);
    memset(name, 0, sizeof *name);
    name->owner = self;
    name->pid = getpid();
    memcpy(name->text, text, strlen(text) + 1);

    pthread_mutex_lock(&registry_mutex);
    bool is_taken = registry_find(text) != NULL;
    if (!is_taken)
        tqi_list_push_back(&registry, &name->in_registry);
    pthread_mutex_unlock(&registry_mutex);
    if (is_taken) {
        free(name);
        return tqi_fail(err, TQ_E_ADDRESS, "%s is in use in this process; choose another name",
                        address);
    }
    tqi_list_push_back(&self->names, &name->in_owner);
    memcpy(real, address, len + 1);
    return TQ_OK;
}

static uint64_t inproc_run(tqi_source_t *source, uint64_t now_ns)
{
    (void)now_ns;
    inproc_t *self = tqi_container_of(source, inproc_t, adapter.source);
    tqi_map_u64_item_t *item;
    while ((item = tqi_map_u64_first(&self->unreached))) {
        tqi_peer_t peer = item->key;
        link_unref(tqi_map_u64_take(&self->unreached, peer));
        self->sink.on_peer_down(self->sink.ctx, peer);
    }
    return UINT64_MAX; /* frames come by the mailbox */
}

static bool inproc_is_busy(tqi_source_t *source)
{
    inproc_t *self = tqi_container_of(source, inproc_t, adapter.source);
    return tqi_map_u64_count(&self->unreached) > 0;
}

static void inproc_close(tqi_ctrl_adapter_t *adapter)
{
    inproc_t *self = tqi_container_of(adapter, inproc_t, adapter);
    tqi_map_u64_item_t *item;
    pthread_mutex_lock(&registry_mutex);
    tqi_list_each(&self->names, node)
    {
        name_t *name = tqi_container_of(node, name_t, in_owner);
        tqi_list_remove(&registry, &name->in_registry);
        tqi_list_remove(&self->names, node);
        free(name);
    }
    pthread_mutex_unlock(&registry_mutex);
    /* Whoever found the name before posts to a mailbox that is closed by now or soon. */
    while ((item = tqi_map_u64_first(&self->peers)) || (item = tqi_map_u64_first(&self->unreached)))
        inproc_disconnect(&self->adapter.ctrl, item->key);
    tqi_map_u64_fini(&self->peers, NULL, NULL);
    tqi_map_u64_fini(&self->unreached, NULL, NULL);
    tqi_mailbox_unref(self->mailbox);
    tqi_env_free(self->env, self, sizeof *self);
}

tq_status_t tqi_inproc_ctrl_new(const tqi_env_t *env, tqi_mailbox_t *mailbox,
                                const tqi_sink_t *sink, tqi_ctrl_adapter_t **out, tqi_err_t *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    inproc_t *self = tqi_env_zalloc(env, sizeof *self);
    pthread_once(&once, guard);
    if (!self)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for an in-process port");
    self->adapter = (tqi_ctrl_adapter_t){
        .ctrl = {inproc_connect, inproc_disconnect, inproc_send, inproc_why_down},
        .source = {-1, inproc_run, inproc_is_busy},
        .serves = inproc_serves,
        .listen = inproc_listen,
        .close = inproc_close,
    };
    self->env = env;
    self->mailbox = mailbox;
    tqi_mailbox_ref(mailbox);
    self->sink = *sink;
    tqi_map_u64_init(&self->peers, env);
    tqi_map_u64_init(&self->unreached, env);
    tqi_list_init(&self->names);
    *out = &self->adapter;
    return TQ_OK;
}
