/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State machines as tables. Three lists make a machine: its states, its events, and its steps (which
 * event may meet which state, and where that leads). From them come the enums, the names, and the
 * one place that says what is legal:
 *
 *     #define DOOR_STATES(X, P) X(P, OPEN, "who wants may go through") X(P, SHUT, "nobody may")
 *     #define DOOR_EVENTS(X, P) X(P, PUSH, "...") X(P, PULL, "...")
 *     #define DOOR_STEPS(X, P) X(P, OPEN, PUSH, SHUT) X(P, SHUT, PULL, OPEN)
 *     typedef enum door_state { TQI_MACHINE_STATES(DOOR) } door_state_t;    DOOR_OPEN, ...
 *     typedef enum door_event { TQI_MACHINE_EVENTS(DOOR) } door_event_t;    DOOR_EV_PUSH, ...
 *     TQI_MACHINE(door_machine, "door", DOOR, DOOR_STEPS);
 *
 * An event that leaves the state as it is has a step, too, where it is worth telling apart. What is
 * not in the table does not happen: a step that is not there stops the process. Where a peer decides
 * what comes, tqi_machine_can is asked first.
 *
 * The simulator's build (TQI_MACHINE_WATCH) is told of every step, and shows which were never taken
 * (docs/testing.md). In any other build a step is one look into the table.
 */
#ifndef TQI_BASE_MACHINE_H
#define TQI_BASE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"

typedef struct tqi_machine {
    const char *name;
    const char *const *states;
    const char *const *events;
    uint8_t states_cnt;
    uint8_t events_cnt;
    const uint8_t *next; /* [state * events_cnt + event]: where to, plus one; 0: not legal */
} tqi_machine_t;

#ifdef TQI_MACHINE_WATCH
/* Before each step, legal or not. Defined by the simulator. */
void tqi_machine_on_step(const tqi_machine_t *machine, unsigned state, unsigned event);
#endif

static inline bool tqi_machine_can(const tqi_machine_t *machine, unsigned state, unsigned event)
{
    return machine->next[state * machine->events_cnt + event] != 0;
}

/* The state that the event leads to; it is legal. */
static inline unsigned tqi_machine_step(const tqi_machine_t *machine, unsigned state,
                                        unsigned event)
{
    unsigned next = machine->next[state * machine->events_cnt + event];

#ifdef TQI_MACHINE_WATCH
    tqi_machine_on_step(machine, state, event);
#endif
    tqi_assert(next != 0);
    return next - 1;
}

#define TQI_MACHINE_STATE_(P, name, doc) P##_##name,
#define TQI_MACHINE_EVENT_(P, name, doc) P##_EV_##name,
#define TQI_MACHINE_NAME_(P, name, doc) #name,
#define TQI_MACHINE_PUT_(at, to) [at] = (to) + 1,
#define TQI_MACHINE_STEP_(P, from, event, to)                                                      \
    TQI_MACHINE_PUT_((P##_##from) * (P##_EVENT_CNT) + P##_EV_##event, P##_##to)

/* The members of the two enums. */
#define TQI_MACHINE_STATES(P) P##_STATES(TQI_MACHINE_STATE_, P) P##_STATE_CNT
#define TQI_MACHINE_EVENTS(P) P##_EVENTS(TQI_MACHINE_EVENT_, P) P##_EVENT_CNT

/* Defines the machine `id`, which a header declares. */
#define TQI_MACHINE(id, title, P, STEPS)                                                           \
    static const char *const id##_states[] = {P##_STATES(TQI_MACHINE_NAME_, P)};                   \
    static const char *const id##_events[] = {P##_EVENTS(TQI_MACHINE_NAME_, P)};                   \
    static const uint8_t id##_next[P##_STATE_CNT * P##_EVENT_CNT] = {STEPS(TQI_MACHINE_STEP_, P)}; \
    const tqi_machine_t id = {title,         id##_states,   id##_events,                           \
                              P##_STATE_CNT, P##_EVENT_CNT, id##_next}

#endif
