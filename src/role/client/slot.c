/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of a put or a get that concerns one unit. While the payload port has a slot's bytes, the
 * slot is in the client's map of transfers, and its op does not end before it has left it.
 */
#include "role/client/internal.h"

#include <inttypes.h>
#include <string.h>

TQI_MACHINE(tqi_slot_machine, "slot", TQI_SLOT, TQI_SLOT_STEPS);

void tqi_slot_step(tqi_slot_t *slot, tqi_slot_event_t event)
{
    slot->state = (tqi_slot_state_t)tqi_machine_step(&tqi_slot_machine, slot->state, event);
}

/* ---- making ------------------------------------------------------------------------------------ */

typedef struct unit_rows {
    uint32_t unit_id;
    uint32_t rows_cnt;
    uint32_t slot_first;
    uint32_t done;
} unit_rows_t;

/* The units that occur, ascending by id, with their numbers of rows. A handful, so that a place is
 * looked for from the one of the row before. */
static tq_status_t count_units(tqi_u32s_t units, tqi_buf_t *out)
{
    size_t at = 0;

    for (uint32_t r = 0; r < units.cnt; r++) {
        uint32_t id = tqi_u32s_at(units, r);
        unit_rows_t *all = (unit_rows_t *)(void *)out->data;
        size_t cnt = out->len / sizeof *all;
        if (at >= cnt || all[at].unit_id != id) {
            for (at = 0; at < cnt && all[at].unit_id < id;)
                at++;
            if (at == cnt || all[at].unit_id != id) {
                if (!tqi_buf_extend(out, sizeof *all))
                    return TQ_E_NO_MEMORY;
                all = (unit_rows_t *)(void *)out->data;
                memmove(&all[at + 1], &all[at], (cnt - at) * sizeof *all);
                all[at] = (unit_rows_t){.unit_id = id};
            }
        }
        all[at].rows_cnt++;
    }
    return TQ_OK;
}

static tq_status_t make(tqi_op_t *op, tqi_u32s_t units, uint32_t rows_max, unit_rows_t *all,
                        size_t all_cnt, tqi_err_t *err)
{
    uint32_t cnt = 0, *at;
    tqi_slot_t *slots;
    size_t u = 0;

    for (size_t i = 0; i < all_cnt; i++) {
        if (all[i].unit_id == 0)
            return tqi_fail(err, TQ_E_UNIT_LOST, "no storage unit holds %" PRIu32 " of the rows",
                            all[i].rows_cnt);
        all[i].slot_first = cnt;
        cnt += (all[i].rows_cnt + rows_max - 1) / rows_max;
    }
    slots = tqi_op_mem(op, cnt * sizeof *slots);
    at = tqi_op_mem(op, (size_t)units.cnt * sizeof *at);
    if (!slots || !at)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for %" PRIu32 " rows", units.cnt);
    memset(slots, 0, cnt * sizeof *slots);
    for (size_t i = 0; i < all_cnt; i++) {
        tqi_link_t *link = tqi_client_unit(op->client, all[i].unit_id);
        if (!link)
            return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a unit");
        for (uint32_t left = all[i].rows_cnt, s = all[i].slot_first; left > 0; s++) {
            uint32_t rows_cnt = left < rows_max ? left : rows_max;
            slots[s] = (tqi_slot_t){.op = op, .link = link, .idx = s, .at = at};
            tqi_buf_init(&slots[s].reply, op->env);
            at += rows_cnt;
            left -= rows_cnt;
        }
    }
    for (uint32_t r = 0; r < units.cnt; r++) {
        uint32_t id = tqi_u32s_at(units, r);
        if (all[u].unit_id != id)
            for (u = 0; all[u].unit_id != id;)
                u++;
        tqi_slot_t *slot = &slots[all[u].slot_first + all[u].done++ / rows_max];
        slot->at[slot->rows_cnt++] = r;
    }
    op->slots = slots;
    op->slots_cnt = cnt;
    return TQ_OK;
}

tq_status_t tqi_slots_make(tqi_op_t *op, tqi_u32s_t units, uint32_t rows_max, tqi_err_t *err)
{
    tqi_buf_t all;
    tq_status_t rc;

    tqi_assert(op->slots_cnt == 0 && units.cnt > 0 && rows_max > 0);
    tqi_buf_init(&all, op->env);
    rc = count_units(units, &all);
    if (rc != TQ_OK)
        tqi_fail(err, rc, "no memory for %" PRIu32 " rows", units.cnt);
    else
        rc = make(op, units, rows_max, (unit_rows_t *)(void *)all.data,
                  all.len / sizeof(unit_rows_t), err);
    tqi_buf_fini(&all);
    return rc;
}

void tqi_slots_stop(tqi_op_t *op)
{
    for (uint32_t i = 0; i < op->slots_cnt; i++) {
        tqi_slot_t *slot = &op->slots[i];
        if (slot->state == TQI_SLOT_LINKING) {
            tqi_list_remove(&slot->link->waiters, &slot->wait_node);
            tqi_slot_step(slot, TQI_SLOT_EV_UNLINK);
        }
        tqi_slot_drop(slot);
    }
}

void tqi_slots_fini(tqi_op_t *op)
{
    for (uint32_t i = 0; i < op->slots_cnt; i++) {
        tqi_slot_t *slot = &op->slots[i];
        tqi_assert(!tqi_node_is_linked(&slot->link_node) && !tqi_node_is_linked(&slot->wait_node));
        tqi_buf_fini(&slot->reply);
        tqi_slot_step(slot, TQI_SLOT_EV_END);
    }
    op->slots = NULL;
    op->slots_cnt = 0;
}

bool tqi_slot_link(tqi_slot_t *slot, uint64_t now_ns)
{
    tqi_link_want(slot->link, now_ns);
    if (slot->link->state == TQI_LINK_UP && !slot->link->must_reopen)
        return true;
    tqi_slot_step(slot, TQI_SLOT_EV_LINK);
    slot->since_ns = now_ns;
    tqi_list_push_back(&slot->link->waiters, &slot->wait_node);
    tqi_link_watch(slot->link, now_ns);
    return false;
}

tq_status_t tqi_slot_produced(const tqi_slot_t *slot, const uint8_t *bits, uint32_t fields_cnt,
                              tqi_buf_t *out)
{
    size_t bytes = ((size_t)slot->rows_cnt * fields_cnt + 7) / 8;
    uint8_t *to = tqi_buf_extend(out, bytes);
    size_t bit = 0;

    if (!to)
        return TQ_E_NO_MEMORY;
    memset(to, 0, bytes);
    for (uint32_t k = 0; k < slot->rows_cnt; k++) {
        size_t from = (size_t)slot->at[k] * fields_cnt;
        for (uint32_t f = 0; f < fields_cnt; f++, bit++)
            if (bits[(from + f) / 8] >> ((from + f) % 8) & 1)
                to[bit / 8] |= (uint8_t)(1u << (bit % 8));
    }
    return TQ_OK;
}

/* ---- moving ------------------------------------------------------------------------------------ */

static tqi_transfer_key_t key_of(const tqi_slot_t *slot)
{
    return (tqi_transfer_key_t){.owner = slot->link->unit_id, .transfer = slot->transfer};
}

tq_status_t tqi_slot_move(tqi_slot_t *slot, bool is_write, const tqi_frame_t *frames,
                          const tqi_remote_frame_t *remote, uint32_t cnt, uint64_t now_ns,
                          tqi_err_t *err)
{
    tqi_client_t *client = slot->op->client;
    tqi_payload_client_t *port = client->payload;
    tq_status_t rc;

    if (tqi_map_u64_put(&client->transfers, slot->transfer, slot, NULL) != TQ_OK)
        return tqi_fail(err, TQ_E_NO_MEMORY, "no memory for a transfer");
    rc = (is_write ? port->write : port->read)(port, key_of(slot), frames, remote, cnt,
                                               slot->op->user, err);
    if (rc != TQ_OK) {
        tqi_map_u64_take(&client->transfers, slot->transfer);
        return rc;
    }
    tqi_list_push_back(&slot->link->moving, &slot->link_node);
    tqi_list_push_back(&slot->op->moving, &slot->op_node);
    tqi_slot_step(slot, TQI_SLOT_EV_MOVE);
    slot->is_write = is_write;
    slot->since_ns = now_ns;
    tqi_link_watch(slot->link, now_ns);
    return TQ_OK;
}

void tqi_slot_drop(tqi_slot_t *slot)
{
    if (tqi_node_is_linked(&slot->link_node))
        slot->op->client->payload->drop(slot->op->client->payload, key_of(slot));
}

tqi_slot_t *tqi_slot_moved(tqi_client_t *client, tqi_transfer_key_t key)
{
    tqi_slot_t *slot = tqi_map_u64_take(&client->transfers, key.transfer);

    if (!slot)
        return NULL;
    tqi_list_remove(&slot->link->moving, &slot->link_node);
    tqi_list_remove(&slot->op->moving, &slot->op_node);
    return slot;
}

/* ---- frames ------------------------------------------------------------------------------------ */

tq_status_t tqi_frames_init(tqi_frames_t *frames, const tqi_env_t *env, uint32_t cnt)
{
    frames->env = env;
    frames->cnt = cnt;
    tqi_buf_init(&frames->pieces, env);
    frames->frames = tqi_env_calloc(env, cnt, sizeof *frames->frames);
    return frames->frames ? TQ_OK : TQ_E_NO_MEMORY;
}

void tqi_frames_fini(tqi_frames_t *frames)
{
    tqi_buf_fini(&frames->pieces);
    tqi_env_free(frames->env, frames->frames, frames->cnt * sizeof *frames->frames);
}

tq_status_t tqi_frames_add(tqi_frames_t *frames, uint32_t frame, void *data, uint64_t len)
{
    tqi_frame_t *to = &frames->frames[frame];
    tqi_piece_t *piece;

    if (len == 0)
        return TQ_OK;
    if (to->pieces_cnt > 0) {
        piece = (tqi_piece_t *)(void *)(frames->pieces.data + frames->pieces.len) - 1;
        if ((char *)piece->data + piece->len == data) {
            piece->len += len;
            to->bytes += len;
            return TQ_OK;
        }
    }
    piece = tqi_buf_extend(&frames->pieces, sizeof *piece);
    if (!piece)
        return TQ_E_NO_MEMORY;
    *piece = (tqi_piece_t){.data = data, .len = len};
    to->pieces_cnt++;
    to->bytes += len;
    return TQ_OK;
}

void tqi_frames_seal(tqi_frames_t *frames)
{
    tqi_piece_t *piece = (tqi_piece_t *)(void *)frames->pieces.data;

    for (uint32_t f = 0; f < frames->cnt; f++) {
        frames->frames[f].pieces = piece;
        piece = frames->frames[f].pieces_cnt ? piece + frames->frames[f].pieces_cnt : piece;
    }
}
