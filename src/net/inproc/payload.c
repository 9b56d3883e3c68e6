/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DIRECT payload: a transfer is one copy job between the op's memory and the unit's segments, run
 * by the thread that waits for the op or by the client's pool (net/exec.h). Its end comes back to
 * the loop as a letter.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/map.h"
#include "base/size.h"
#include "net/inproc/arena.h"
#include "net/inproc/inproc.h"

struct tqi_inproc_payload {
    tqi_payload_client_t port;
    const tqi_env_t *env;
    tqi_mailbox_t *mailbox;
    tqi_exec_t *exec;
    tqi_sink_t sink;
    tqi_map_u64_t units;     /* unit id -> arena */
    tqi_map_u64_t transfers; /* transfer -> copy_t; the loop's */
    pthread_mutex_t mutex;   /* of running, for close */
    pthread_cond_t all_done;
    uint32_t running; /* jobs whose end was not handled yet */
    bool is_stopped;
};

typedef struct copy {
    tqi_copy_job_t job;
    tqi_letter_t letter;
    tqi_inproc_payload_t *self;
    tqi_transfer_key_t key;
    bool was_cancelled;
    tqi_copy_piece_t *pieces;
    uint32_t pieces_cap;
    tqi_inproc_segment_t **segments; /* counted */
    uint32_t segments_cnt;
} copy_t;

static tqi_inproc_payload_t *self_of(tqi_payload_client_t *port)
{
    return tqi_container_of(port, tqi_inproc_payload_t, port);
}

static void copy_free(copy_t *copy)
{
    for (uint32_t i = 0; i < copy->segments_cnt; i++)
        tqi_inproc_segment_unref(copy->segments[i]);
    free(copy->segments);
    free(copy->pieces);
    free(copy);
}

static void copy_over(tqi_inproc_payload_t *self)
{
    pthread_mutex_lock(&self->mutex);
    if (--self->running == 0)
        pthread_cond_broadcast(&self->all_done);
    pthread_mutex_unlock(&self->mutex);
}

/* In the loop's thread; or, once the mailbox is closed, where the copy ended: then the transfer stays
 * in the map, and close frees it. */
static void on_letter(tqi_letter_t *letter, bool is_closed)
{
    copy_t *copy = tqi_container_of(letter, copy_t, letter);
    tqi_inproc_payload_t *self = copy->self;
    if (!is_closed) {
        tqi_transfer_key_t key = copy->key;
        bool was_cancelled = copy->was_cancelled;
        tqi_map_u64_take(&self->transfers, key.transfer);
        copy_free(copy);
        self->sink.on_payload(self->sink.ctx, key, was_cancelled ? TQ_E_CANCELLED : TQ_OK,
                              was_cancelled ? "the copy was cancelled" : "");
    }
    copy_over(self);
}

/* Copy thread. */
static void on_copied(tqi_copy_job_t *job, bool was_cancelled)
{
    copy_t *copy = tqi_container_of(job, copy_t, job);
    copy->was_cancelled = was_cancelled;
    copy->letter.open = on_letter;
    if (!tqi_mailbox_post(copy->self->mailbox, &copy->letter))
        on_letter(&copy->letter, true);
}

/* ---- building a job -------------------------------------------------------------------------- */

/* Pairs the pieces of one frame with its extents: both are runs of the same bytes, cut differently.
 * E_MALFORMED when the unit's extents are not inside its segments or not as long as the frame. */
static tq_status_t pair_up(copy_t *copy, tqi_inproc_arena_t *arena, const tqi_frame_t *frame,
                           const tqi_remote_frame_t *remote, bool is_write, tqi_err_t *err)
{
    uint32_t piece = 0, extent = 0;
    uint64_t in_piece = 0, in_extent = 0;
    uint8_t *base = NULL;
    tqi_inproc_segment_t *segment = NULL;

    for (;;) {
        while (piece < frame->pieces_cnt && in_piece == frame->pieces[piece].len)
            piece++, in_piece = 0;
        while (extent < remote->extents_cnt && in_extent == remote->extents[extent].len)
            extent++, in_extent = 0;
        if (piece == frame->pieces_cnt || extent == remote->extents_cnt)
            break;
        const tqi_extent_t *at = &remote->extents[extent];
        if (in_extent == 0) {
            segment = tqi_inproc_arena_ref_segment(arena, at->segment);
            if (segment)
                copy->segments[copy->segments_cnt++] = segment;
            base = segment ? tqi_inproc_segment_at(segment, at->offset, at->len) : NULL;
            if (!base)
                return tqi_fail(err, TQ_E_MALFORMED,
                                "the unit named bytes %" PRIu64 "+%" PRIu64
                                " of segment %u, which are not there",
                                at->offset, at->len, at->segment);
        }
        uint64_t len = tqi_u64_min(frame->pieces[piece].len - in_piece, at->len - in_extent);
        uint8_t *local = (uint8_t *)frame->pieces[piece].data + in_piece;
        uint8_t *far = base + in_extent;
        tqi_assert(copy->job.pieces_cnt < copy->pieces_cap);
        copy->pieces[copy->job.pieces_cnt++] =
            is_write ? (tqi_copy_piece_t){far, local, len} : (tqi_copy_piece_t){local, far, len};
        in_piece += len;
        in_extent += len;
    }
    if (piece < frame->pieces_cnt || extent < remote->extents_cnt)
        return tqi_fail(err, TQ_E_MALFORMED, "the unit's extents are not as long as the frame");
    return TQ_OK;
}

static tq_status_t begin(tqi_payload_client_t *port, tqi_transfer_key_t key,
                         const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                         void *copier, bool is_write, tqi_err_t *err)
{
    tqi_inproc_payload_t *self = self_of(port);
    tqi_inproc_arena_t *arena = tqi_map_u64_get(&self->units, key.owner);
    if (!arena || self->is_stopped)
        return tqi_fail(err, TQ_E_UNREACHABLE, "unit %" PRIu64 " is not in this process",
                        key.owner);
    uint64_t pieces_max = 0, extents = 0;
    for (uint32_t i = 0; i < cnt; i++) {
        pieces_max += (uint64_t)frames[i].pieces_cnt + remote[i].extents_cnt;
        extents += remote[i].extents_cnt;
    }
    copy_t *copy = calloc(1, sizeof *copy);
    if (!copy)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a transfer");
    copy->self = self;
    copy->key = key;
    copy->pieces_cap = (uint32_t)pieces_max;
    copy->pieces = calloc(pieces_max + 1, sizeof *copy->pieces);
    copy->segments = calloc(extents + 1, sizeof(tqi_inproc_segment_t *));
    tq_status_t rc = TQ_OK;
    if (!copy->pieces || !copy->segments)
        rc = tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a transfer of %" PRIu64 " pieces",
                      pieces_max);
    for (uint32_t i = 0; rc == TQ_OK && i < cnt; i++)
        rc = pair_up(copy, arena, &frames[i], &remote[i], is_write, err);
    if (rc == TQ_OK) {
        rc = tqi_map_u64_put(&self->transfers, key.transfer, copy, NULL);
        if (rc != TQ_OK)
            tqi_fail(err, rc, "no memory for a transfer");
    }
    if (rc != TQ_OK) {
        copy_free(copy);
        return rc;
    }
    copy->job.pieces = copy->pieces;
    copy->job.copier = copier;
    copy->job.on_done = on_copied;
    pthread_mutex_lock(&self->mutex);
    self->running++;
    pthread_mutex_unlock(&self->mutex);
    tqi_exec_submit(self->exec, &copy->job);
    return TQ_OK;
}

/* ---- the port -------------------------------------------------------------------------------- */

static tqi_payload_mode_t payload_open(tqi_payload_client_t *port, uint64_t unit_id,
                                       const char *address, const void *token, size_t token_len,
                                       uint64_t session, uint64_t direct_arena, tqi_err_t *err)
{
    tqi_inproc_payload_t *self = self_of(port);
    (void)address, (void)token, (void)token_len, (void)session;
    tqi_inproc_arena_t *arena = direct_arena ? tqi_inproc_arena_find(direct_arena) : NULL;
    void *old = NULL;
    if (!arena) {
        tqi_fail(err, TQ_E_UNREACHABLE, "unit %" PRIu64 " is not in this process", unit_id);
        return TQI_PAYLOAD_NONE;
    }
    if (tqi_map_u64_put(&self->units, unit_id, arena, &old) != TQ_OK) {
        tqi_inproc_arena_unref(arena);
        tqi_fail(err, TQ_E_NO_MEMORY, "no memory for the way to unit %" PRIu64, unit_id);
        return TQI_PAYLOAD_NONE;
    }
    tqi_inproc_arena_unref(old);
    return TQI_PAYLOAD_DIRECT;
}

static void payload_close(tqi_payload_client_t *port, uint64_t unit_id)
{
    tqi_inproc_arena_unref(tqi_map_u64_take(&self_of(port)->units, unit_id));
}

static tq_status_t payload_write(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                 const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                 uint32_t cnt, void *copier, tqi_err_t *err)
{
    return begin(port, key, frames, remote, cnt, copier, true, err);
}

static tq_status_t payload_read(tqi_payload_client_t *port, tqi_transfer_key_t key,
                                const tqi_frame_t *frames, const tqi_remote_frame_t *remote,
                                uint32_t cnt, void *copier, tqi_err_t *err)
{
    return begin(port, key, frames, remote, cnt, copier, false, err);
}

static void payload_drop(tqi_payload_client_t *port, tqi_transfer_key_t key)
{
    tqi_inproc_payload_t *self = self_of(port);
    copy_t *copy = tqi_map_u64_get(&self->transfers, key.transfer);
    if (copy)
        tqi_exec_cancel(self->exec, &copy->job);
}

tq_status_t tqi_inproc_payload_new(const tqi_env_t *env, tqi_mailbox_t *mailbox, tqi_exec_t *exec,
                                   const tqi_sink_t *sink, tqi_inproc_payload_t **out,
                                   tqi_err_t *err)
{
    tqi_inproc_payload_t *self = tqi_env_zalloc(env, sizeof *self);
    if (!self)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a payload port");
    self->port = (tqi_payload_client_t){payload_open, payload_close, payload_write, payload_read,
                                        payload_drop};
    self->env = env;
    self->mailbox = mailbox;
    tqi_mailbox_ref(mailbox);
    self->exec = exec;
    self->sink = *sink;
    tqi_map_u64_init(&self->units, env);
    tqi_map_u64_init(&self->transfers, env);
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->all_done, NULL);
    *out = self;
    return TQ_OK;
}

tqi_payload_client_t *tqi_inproc_payload_port(tqi_inproc_payload_t *payload)
{
    return &payload->port;
}

void tqi_inproc_payload_stop(tqi_inproc_payload_t *self)
{
    tqi_map_u64_item_t *item;
    self->is_stopped = true;
    /* The mailbox is closed: jobs that end from now on stay in the map, and are freed here. */
    for (item = tqi_map_u64_first(&self->transfers); item; item = tqi_map_u64_next(item)) {
        copy_t *copy = item->value;
        tqi_exec_cancel(self->exec, &copy->job);
    }
    pthread_mutex_lock(&self->mutex);
    while (self->running > 0)
        pthread_cond_wait(&self->all_done, &self->mutex);
    pthread_mutex_unlock(&self->mutex);
    while ((item = tqi_map_u64_first(&self->transfers)))
        copy_free(tqi_map_u64_take(&self->transfers, item->key));
}

void tqi_inproc_payload_free(tqi_inproc_payload_t *self)
{
    tqi_map_u64_item_t *item;
    if (!self)
        return;
    tqi_inproc_payload_stop(self);
    while ((item = tqi_map_u64_first(&self->units)))
        payload_close(&self->port, item->key);
    tqi_map_u64_fini(&self->units, NULL, NULL);
    tqi_map_u64_fini(&self->transfers, NULL, NULL);
    pthread_cond_destroy(&self->all_done);
    pthread_mutex_destroy(&self->mutex);
    tqi_mailbox_unref(self->mailbox);
    tqi_env_free(self->env, self, sizeof *self);
}
