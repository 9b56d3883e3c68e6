/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode DIRECT: the client's process reads and writes the unit's segments itself, slice by slice, and
 * time passes between the slices. A segment that is closed meanwhile stays until the copy is over,
 * as a mapping does.
 */
#include <inttypes.h>

#include "net/sim/internal.h"

typedef struct part {
    uint8_t *dst;
    const uint8_t *src;
    uint64_t len;
} part_t;

typedef struct copy {
    tqi_node_t node;
    tqi_sim_host_t *host;
    tqi_transfer_key_t key;
    tqi_sim_event_t event;
    bool is_dropped;
    part_t *parts;
    uint32_t parts_cnt;
    uint32_t at;
    segment_t **segments;
    uint32_t segments_cnt;
} copy_t;

tqi_sim_host_t *direct_find(tqi_sim_host_t *host, uint64_t arena_handle)
{
    tqi_sim_t *sim = host->sim;

    if (arena_handle == 0 || host->process == 0)
        return NULL;
    for (uint32_t i = 0; i < sim->hosts_cnt; i++)
        if (sim->hosts[i]->is_up && sim->hosts[i]->arena_handle == arena_handle &&
            sim->hosts[i]->process == host->process)
            return sim->hosts[i];
    return NULL;
}

static void copy_free(copy_t *copy)
{
    for (uint32_t i = 0; i < copy->segments_cnt; i++)
        segment_unref(copy->segments[i]);
    tqi_sim_cancel(copy->host->sim, &copy->event);
    tqi_list_remove(&copy->host->copies, &copy->node);
    free(copy->segments);
    free(copy->parts);
    free(copy);
}

static void copy_next(copy_t *copy)
{
    tqi_sim_t *sim = copy->host->sim;

    tqi_sim_at(sim, &copy->event, sim_chunk_at(sim));
}

static void copy_runs(void *ctx)
{
    copy_t *copy = ctx;
    tqi_sim_host_t *host = copy->host;
    tqi_transfer_key_t key = copy->key;

    if (host->is_paused) { /* its copy threads too */
        copy_next(copy);
        return;
    }
    if (!copy->is_dropped && copy->at < copy->parts_cnt) {
        part_t *part = &copy->parts[copy->at];
        uint64_t len = sim_between(host->sim, 1, host->sim->conf.chunk_bytes_max);
        len = tqi_u64_min(len, part->len);
        memcpy(part->dst, part->src, len);
        part->dst += len;
        part->src += len;
        part->len -= len;
        if (part->len == 0)
            copy->at++;
        copy_next(copy);
        return;
    }
    /* Who asks to stop what was copied meanwhile hears that it is done. */
    bool was_dropped = copy->is_dropped && copy->at < copy->parts_cnt;
    copy_free(copy);
    host->sink.on_payload(host->sink.ctx, key, was_dropped ? TQ_E_CANCELLED : TQ_OK,
                          was_dropped ? "the copy was cancelled" : "");
}

/* Pairs a frame's pieces with its extents: the same bytes, cut differently. */
static tq_status_t pair_up(copy_t *copy, tqi_sim_host_t *unit, const tqi_frame_t *frame,
                           const tqi_remote_frame_t *remote, bool is_write, tqi_err_t *err)
{
    uint32_t piece = 0, extent = 0;
    uint64_t in_piece = 0, in_extent = 0;
    segment_t *segment = NULL;

    for (;;) {
        while (piece < frame->pieces_cnt && in_piece == frame->pieces[piece].len)
            piece++, in_piece = 0;
        while (extent < remote->extents_cnt && in_extent == remote->extents[extent].len)
            extent++, in_extent = 0;
        if (piece == frame->pieces_cnt || extent == remote->extents_cnt)
            break;
        const tqi_extent_t *there = &remote->extents[extent];
        if (in_extent == 0) {
            segment = segment_ref(unit, there->segment);
            if (segment)
                copy->segments[copy->segments_cnt++] = segment;
            if (!segment || there->offset > segment->bytes ||
                there->len > segment->bytes - there->offset) {
                arena_fault(unit, "extent %" PRIu64 "+%" PRIu64 " is not in segment %" PRIu32,
                            there->offset, there->len, there->segment);
                return tqi_fail(err, TQ_E_MALFORMED, "an extent is not in segment %" PRIu32,
                                there->segment);
            }
        }
        uint64_t len = tqi_u64_min(frame->pieces[piece].len - in_piece, there->len - in_extent);
        uint8_t *local = (uint8_t *)frame->pieces[piece].data + in_piece;
        uint8_t *far = segment->base + there->offset + in_extent;
        copy->parts[copy->parts_cnt++] =
            is_write ? (part_t){far, local, len} : (part_t){local, far, len};
        in_piece += len;
        in_extent += len;
    }
    if (piece < frame->pieces_cnt || extent < remote->extents_cnt)
        return tqi_fail(err, TQ_E_MALFORMED, "the unit's extents are not as long as the frame");
    return TQ_OK;
}

tq_status_t direct_begin(tqi_sim_host_t *host, tqi_sim_host_t *unit, tqi_transfer_key_t key,
                         const tqi_frame_t *frames, const tqi_remote_frame_t *remote, uint32_t cnt,
                         bool is_write, tqi_err_t *err)
{
    copy_t *copy = sim_alloc(sizeof *copy);
    uint64_t parts = 1, extents = 1;
    tq_status_t rc = TQ_OK;

    for (uint32_t i = 0; i < cnt; i++) {
        parts += (uint64_t)frames[i].pieces_cnt + remote[i].extents_cnt;
        extents += remote[i].extents_cnt;
    }
    copy->host = host;
    copy->key = key;
    copy->parts = sim_alloc(parts * sizeof *copy->parts);
    copy->segments = sim_alloc(extents * sizeof(segment_t *));
    tqi_sim_event_init(&copy->event, copy_runs, copy);
    tqi_list_push_back(&host->copies, &copy->node);
    for (uint32_t i = 0; rc == TQ_OK && i < cnt; i++)
        rc = pair_up(copy, unit, &frames[i], &remote[i], is_write, err);
    if (rc != TQ_OK) {
        copy_free(copy);
        return rc;
    }
    copy_next(copy);
    return TQ_OK;
}

bool direct_drop(tqi_sim_host_t *host, tqi_transfer_key_t key)
{
    tqi_list_each(&host->copies, node)
    {
        copy_t *copy = tqi_container_of(node, copy_t, node);
        if (copy->key.owner == key.owner && copy->key.transfer == key.transfer) {
            copy->is_dropped = true;
            return true;
        }
    }
    return false;
}

void direct_kill(tqi_sim_host_t *host)
{
    while (host->copies.cnt > 0) {
        copy_t *copy = tqi_container_of(tqi_list_first(&host->copies), copy_t, node);
        tqi_transfer_key_t key = copy->key;
        copy_free(copy);
        host->sink.on_payload(host->sink.ctx, key, TQ_E_CLOSED, "the process is dead");
    }
}
