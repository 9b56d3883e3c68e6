/* SPDX-License-Identifier: Apache-2.0 */
#include "core/transfer.h"

#include "base/assert.h"

TQI_MACHINE(tqi_put_inline_machine, "put inline", TQI_TRANSFER, TQI_PUT_INLINE_STEPS);
TQI_MACHINE(tqi_put_stream_machine, "put stream", TQI_TRANSFER, TQI_PUT_STREAM_STEPS);
TQI_MACHINE(tqi_put_direct_machine, "put direct", TQI_TRANSFER, TQI_PUT_DIRECT_STEPS);
TQI_MACHINE(tqi_get_stream_machine, "get stream", TQI_TRANSFER, TQI_GET_STREAM_STEPS);
TQI_MACHINE(tqi_get_direct_machine, "get direct", TQI_TRANSFER, TQI_GET_DIRECT_STEPS);

static const tqi_machine_t *const machines[TQI_TRANSFER_KINDS] = {
    [TQI_PUT_INLINE] = &tqi_put_inline_machine, [TQI_PUT_STREAM] = &tqi_put_stream_machine,
    [TQI_PUT_DIRECT] = &tqi_put_direct_machine, [TQI_GET_STREAM] = &tqi_get_stream_machine,
    [TQI_GET_DIRECT] = &tqi_get_direct_machine,
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
    return tqi_machine_can(machines[t->kind], t->state, event);
}

bool tqi_transfer_apply(tqi_transfer_t *t, tqi_transfer_event_t event)
{
    if (!tqi_transfer_can(t, event))
        return false;
    t->counts->now[t->state]--;
    enter(t, (tqi_transfer_state_t)tqi_machine_step(machines[t->kind], t->state, event));
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
    const tqi_machine_t *machine = machines[0];

    return (unsigned)state < machine->states_cnt ? machine->states[state] : "?";
}
