/* SPDX-License-Identifier: Apache-2.0 */
#include "core/transfer.h"

#include "base/assert.h"

/* 0: not legal; else the state to go to, plus one. */
static const uint8_t table[TQI_TRANSFER_KINDS][TQI_TRANSFER_STATES_CNT][TQI_TRANSFER_EVENTS_CNT] = {
#define ROW(kind, from, event, to)                                                                 \
    [TQI_##kind][TQI_TRANSFER_##from][TQI_TRANSFER_EV_##event] = TQI_TRANSFER_##to + 1,
    TQI_TRANSFER_TABLE(ROW)
#undef ROW
};

static void enter(tqi_transfer_t *t, tqi_transfer_state_t state)
{
    t->state = state;
    t->counts->entered[state]++;
    t->counts->now[state]++;
}

void tqi_transfer_init(tqi_transfer_t *t, uint64_t id, tqi_transfer_kind_t kind,
                       tqi_transfer_counts_t *counts)
{
    *t = (tqi_transfer_t){.id = id, .kind = kind, .counts = counts};
    enter(t, TQI_TRANSFER_PARKED);
}

void tqi_transfer_fini(tqi_transfer_t *t)
{
    tqi_assert(!tqi_heap_node_is_in(&t->timer));
    t->counts->now[t->state]--;
}

bool tqi_transfer_can(const tqi_transfer_t *t, tqi_transfer_event_t event)
{
    return table[t->kind][t->state][event] != 0;
}

bool tqi_transfer_apply(tqi_transfer_t *t, tqi_transfer_event_t event)
{
    uint8_t to = table[t->kind][t->state][event];

    if (to == 0)
        return false;
    t->counts->now[t->state]--;
    enter(t, (tqi_transfer_state_t)(to - 1));
    return true;
}

tqi_transfer_phase_t tqi_transfer_phase(const tqi_transfer_t *t)
{
    bool is_put = t->kind == TQI_PUT_STREAM || t->kind == TQI_PUT_DIRECT;

    switch (t->state) {
    case TQI_TRANSFER_PARKED:
        return TQI_PHASE_BEFORE;
    case TQI_TRANSFER_OPEN:
        return is_put ? TQI_PHASE_POSTED : TQI_PHASE_BEFORE;
    case TQI_TRANSFER_COMMITTED:
    case TQI_TRANSFER_DROPPING:
    case TQI_TRANSFER_HELD:
        return TQI_PHASE_POSTED;
    default:
        return TQI_PHASE_CONFIRMED;
    }
}

const char *tqi_transfer_kind_name(tqi_transfer_kind_t kind)
{
    static const char *const names[] = {
        [TQI_PUT_INLINE] = "PUT_INLINE", [TQI_PUT_STREAM] = "PUT_STREAM",
        [TQI_PUT_DIRECT] = "PUT_DIRECT", [TQI_GET_STREAM] = "GET_STREAM",
        [TQI_GET_DIRECT] = "GET_DIRECT",
    };

    return (unsigned)kind < TQI_TRANSFER_KINDS ? names[kind] : "?";
}

const char *tqi_transfer_state_name(tqi_transfer_state_t state)
{
    static const char *const names[] = {
#define NAME(name, doc) [TQI_TRANSFER_##name] = #name,
        TQI_TRANSFER_STATES(NAME)
#undef NAME
    };

    return (unsigned)state < TQI_TRANSFER_STATES_CNT ? names[state] : "?";
}
