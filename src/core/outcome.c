/* SPDX-License-Identifier: Apache-2.0 */
#include "core/outcome.h"

#include <tq/types.h>

#include "base/assert.h"
#include "base/interval.h"
#include "base/list.h"
#include "base/map.h"
#include "base/size.h"
#include "wire/envelope.h"

#define KEPT_BYTES_MAX (16u << 20)

/* Both sides keep their entries in a map, for look-up, and in a list ascending by seq. New ones are
 * nearly always the newest, so a place is looked for from the end. */
typedef struct entry {
    tqi_node_t node;
    uint64_t seq;
    bool is_done;    /* inbox: the reply is kept; outbox: a reply came */
    uint32_t late;   /* inbox, not 0: executed, and what is left of its reply */
    void *user;      /* outbox */
    tqi_buf_t frame; /* inbox: the reply; outbox: the request */
} entry_t;

typedef struct window {
    const tqi_env_t *env;
    tqi_map_u64_t map;
    tqi_list_t list;
    uint64_t kept_bytes;
} window_t;

static void window_init(window_t *w, const tqi_env_t *env)
{
    w->env = env;
    tqi_map_u64_init(&w->map, env);
    tqi_list_init(&w->list);
}

static entry_t *entry_of(const tqi_node_t *node)
{
    return tqi_container_of(node, entry_t, node);
}

static entry_t *window_get(const window_t *w, uint64_t seq)
{
    return tqi_map_u64_get(&w->map, seq);
}

static entry_t *window_add(window_t *w, uint64_t seq)
{
    entry_t *e = tqi_env_zalloc(w->env, sizeof *e);
    if (!e)
        return NULL;
    if (tqi_map_u64_put(&w->map, seq, e, NULL) != TQ_OK) {
        tqi_env_free(w->env, e, sizeof *e);
        return NULL;
    }
    e->seq = seq;
    tqi_buf_init(&e->frame, w->env);
    tqi_node_t *at = w->list.head.prev;
    while (at != &w->list.head && entry_of(at)->seq > seq)
        at = at->prev;
    tqi_list_insert_after(&w->list, at, &e->node);
    return e;
}

static void window_keep(window_t *w, entry_t *e, tqi_buf_t *frame)
{
    tqi_buf_take(&e->frame, frame);
    w->kept_bytes += e->frame.cap;
}

static void window_drop_frame(window_t *w, entry_t *e)
{
    w->kept_bytes -= e->frame.cap;
    tqi_buf_fini(&e->frame);
}

static void window_remove(window_t *w, entry_t *e)
{
    window_drop_frame(w, e);
    tqi_list_remove(&w->list, &e->node);
    tqi_map_u64_take(&w->map, e->seq);
    tqi_env_free(w->env, e, sizeof *e);
}

static void window_clear(window_t *w)
{
    tqi_node_t *node;
    while ((node = tqi_list_first(&w->list)))
        window_remove(w, entry_of(node));
}

static void window_fini(window_t *w)
{
    window_clear(w);
    tqi_map_u64_fini(&w->map, NULL, NULL);
}

/* ---- receiver -------------------------------------------------------------------------------- */

struct tqi_inbox {
    window_t window;       /* admitted and not acknowledged */
    tqi_intervals_t acked; /* seqs that will never be asked about again */
};

tqi_inbox_t *tqi_inbox_new(const tqi_env_t *env)
{
    tqi_inbox_t *in = tqi_env_zalloc(env, sizeof *in);
    if (!in)
        return NULL;
    window_init(&in->window, env);
    tqi_intervals_init(&in->acked, env);
    return in;
}

void tqi_inbox_free(tqi_inbox_t *in)
{
    if (!in)
        return;
    const tqi_env_t *env = in->window.env;
    window_fini(&in->window);
    tqi_intervals_fini(&in->acked);
    tqi_env_free(env, in, sizeof *in);
}

/* What a sender has acknowledged is all up to some seq but at most TQI_OPEN_MAX, so a set of so many
 * pieces, and twice as many while one frame's is put over that of another, is more than anybody
 * honest needs. Who says otherwise is not listened to: it would only make us remember. */
static void acked_add(tqi_inbox_t *in, uint64_t lo, uint64_t hi)
{
    if (in->acked.vec.len <= 2 * TQI_OPEN_MAX + 2)
        tqi_intervals_add(&in->acked, lo, hi);
}

void tqi_inbox_ack(tqi_inbox_t *in, uint64_t ack, const uint8_t *open, uint32_t open_cnt,
                   tqi_acked_fn on_acked, void *ctx)
{
    uint64_t covered = in->acked.covered, from = 1;
    /* Out of memory only forgets: the next frame says the same again. */
    for (uint32_t i = 0; i < open_cnt && from <= ack; i++) {
        uint64_t seq = tqi_load_le64(open + (size_t)i * 8);
        if (seq > ack)
            break;
        acked_add(in, from, seq);
        from = seq + 1;
    }
    if (from <= ack && ack < UINT64_MAX)
        acked_add(in, from, ack + 1);
    if (in->acked.covered == covered)
        return;

    tqi_list_each(&in->window.list, node)
    {
        entry_t *e = entry_of(node);
        if (e->seq > ack)
            break;
        /* One that is still being worked on leaves when it is done. */
        if ((!e->is_done && !e->late) || !tqi_intervals_contains(&in->acked, e->seq))
            continue;
        uint64_t seq = e->seq;
        window_remove(&in->window, e);
        if (on_acked)
            on_acked(ctx, seq);
    }
}

tqi_admit_t tqi_inbox_admit(tqi_inbox_t *in, uint64_t seq, const tqi_buf_t **reply)
{
    entry_t *e = window_get(&in->window, seq);
    *reply = NULL;
    if (e && e->is_done) {
        *reply = &e->frame;
        return TQI_ADMIT_DONE;
    }
    if (e)
        return e->late ? TQI_ADMIT_LATE : TQI_ADMIT_PENDING;
    if (tqi_intervals_contains(&in->acked, seq))
        return TQI_ADMIT_OLD;
    if (in->window.list.cnt >= TQ_OUTSTANDING_MAX || in->window.kept_bytes >= KEPT_BYTES_MAX)
        return TQI_ADMIT_BUSY;
    return window_add(&in->window, seq) ? TQI_ADMIT_NEW : TQI_ADMIT_NO_MEMORY;
}

tq_status_t tqi_inbox_done(tqi_inbox_t *in, uint64_t seq, const tqi_buf_t *reply)
{
    entry_t *e = window_get(&in->window, seq);
    tqi_assert(e && !e->is_done);
    if (tqi_intervals_contains(&in->acked, seq)) {
        window_remove(&in->window, e);
        return TQ_OK;
    }
    tqi_buf_t copy;
    tqi_buf_init(&copy, in->window.env);
    tq_status_t rc = tqi_buf_append(&copy, reply->data, reply->len);
    if (rc != TQ_OK)
        return rc;
    window_keep(&in->window, e, &copy);
    e->is_done = true;
    e->late = 0;
    return TQ_OK;
}

void tqi_inbox_late(tqi_inbox_t *in, uint64_t seq, uint32_t outcome)
{
    entry_t *e = window_get(&in->window, seq);
    tqi_assert(e && !e->is_done && outcome != 0);
    e->late = outcome;
}

uint32_t tqi_inbox_outcome(const tqi_inbox_t *in, uint64_t seq)
{
    const entry_t *e = window_get(&in->window, seq);
    tqi_assert(e && e->late);
    return e->late;
}

bool tqi_inbox_is_acked(const tqi_inbox_t *in, uint64_t seq)
{
    return tqi_intervals_contains(&in->acked, seq);
}

uint32_t tqi_inbox_missing(const tqi_inbox_t *in, const uint8_t *open, uint32_t open_cnt,
                           uint64_t *out, uint32_t max)
{
    uint32_t cnt = 0;
    for (uint32_t i = 0; i < open_cnt && cnt < max; i++) {
        uint64_t seq = tqi_load_le64(open + (size_t)i * 8);
        const entry_t *e = window_get(&in->window, seq);
        if (!e || e->is_done || e->late)
            out[cnt++] = seq;
    }
    return cnt;
}

uint32_t tqi_inbox_pending_cnt(const tqi_inbox_t *in)
{
    uint32_t cnt = 0;
    tqi_list_each(&in->window.list, n) cnt += !entry_of(n)->is_done && !entry_of(n)->late;
    return cnt;
}

uint64_t tqi_inbox_kept_bytes(const tqi_inbox_t *in)
{
    return in->window.kept_bytes;
}

/* ---- sender ---------------------------------------------------------------------------------- */

struct tqi_outbox {
    window_t window; /* opened and not taken */
    uint64_t last;   /* newest seq opened */
    uint64_t taken;  /* newest seq taken */
};

tqi_outbox_t *tqi_outbox_new(const tqi_env_t *env)
{
    tqi_outbox_t *out = tqi_env_zalloc(env, sizeof *out);
    if (out)
        window_init(&out->window, env);
    return out;
}

void tqi_outbox_free(tqi_outbox_t *out)
{
    if (!out)
        return;
    const tqi_env_t *env = out->window.env;
    window_fini(&out->window);
    tqi_env_free(env, out, sizeof *out);
}

uint64_t tqi_outbox_open(tqi_outbox_t *out, void *user)
{
    tqi_assert(user);
    if (out->window.list.cnt >= TQ_OUTSTANDING_MAX)
        return 0;
    entry_t *e = window_add(&out->window, out->last + 1);
    if (!e)
        return 0;
    e->user = user;
    return ++out->last;
}

tq_status_t tqi_outbox_keep(tqi_outbox_t *out, uint64_t seq, tqi_buf_t *frame)
{
    entry_t *e = window_get(&out->window, seq);
    tqi_assert(e && !e->is_done && !e->frame.data);
    window_keep(&out->window, e, frame);
    return TQ_OK;
}

const tqi_buf_t *tqi_outbox_frame(const tqi_outbox_t *out, uint64_t seq)
{
    const entry_t *e = window_get(&out->window, seq);
    return e && !e->is_done && e->frame.data ? &e->frame : NULL;
}

void *tqi_outbox_user(const tqi_outbox_t *out, uint64_t seq)
{
    const entry_t *e = window_get(&out->window, seq);
    return e && !e->is_done ? e->user : NULL;
}

void *tqi_outbox_replied(tqi_outbox_t *out, uint64_t seq)
{
    entry_t *e = window_get(&out->window, seq);
    if (!e || e->is_done)
        return NULL;
    e->is_done = true;
    window_drop_frame(&out->window, e);
    return e->user;
}

void tqi_outbox_withdraw(tqi_outbox_t *out, uint64_t seq, tqi_buf_t *frame)
{
    entry_t *e = window_get(&out->window, seq);
    tqi_assert(e && !e->is_done);
    out->window.kept_bytes -= e->frame.cap;
    tqi_buf_take(frame, &e->frame);
    tqi_outbox_take(out, seq);
}

void tqi_outbox_take(tqi_outbox_t *out, uint64_t seq)
{
    entry_t *e = window_get(&out->window, seq);
    if (!e)
        return;
    window_remove(&out->window, e);
    if (seq > out->taken)
        out->taken = seq;
}

void tqi_outbox_acks(const tqi_outbox_t *out, bool is_ping, uint64_t *ack, uint64_t *open,
                     uint32_t *open_cnt)
{
    *ack = is_ping ? out->last : out->taken;
    *open_cnt = 0;
    tqi_list_each(&out->window.list, n)
    {
        if (entry_of(n)->seq > *ack)
            break;
        open[(*open_cnt)++] = entry_of(n)->seq;
    }
}

void tqi_outbox_each(tqi_outbox_t *out, void (*fn)(void *ctx, uint64_t seq, void *user), void *ctx)
{
    tqi_list_each(&out->window.list, node)
    {
        entry_t *e = entry_of(node);
        if (!e->is_done)
            fn(ctx, e->seq, e->user);
    }
}

uint32_t tqi_outbox_cnt(const tqi_outbox_t *out)
{
    return (uint32_t)out->window.list.cnt;
}

void tqi_outbox_clear(tqi_outbox_t *out)
{
    window_clear(&out->window);
    out->last = out->taken = 0;
}

uint64_t tqi_outbox_last(const tqi_outbox_t *out)
{
    return out->last;
}
