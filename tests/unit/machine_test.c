/* SPDX-License-Identifier: Apache-2.0 */
#include "base/machine.h"

#include "unit.h"

#include <string.h>

#define DOOR_STATES(X, P)                                                                          \
    X(P, OPEN, "who wants may go through")                                                         \
    X(P, SHUT, "nobody may")

#define DOOR_EVENTS(X, P)                                                                          \
    X(P, PUSH, "from inside")                                                                      \
    X(P, PULL, "from outside")                                                                     \
    X(P, KNOCK, "changes nothing")

#define DOOR_STEPS(X, P)                                                                           \
    X(P, OPEN, PUSH, SHUT)                                                                         \
    X(P, SHUT, PULL, OPEN)                                                                         \
    X(P, SHUT, KNOCK, SHUT)

typedef enum door_state { TQI_MACHINE_STATES(DOOR) } door_state_t;
typedef enum door_event { TQI_MACHINE_EVENTS(DOOR) } door_event_t;
TQI_MACHINE(door_machine, "door", DOOR, DOOR_STEPS);

static void a_step_leads_where_the_table_says(void **state)
{
    door_state_t door = DOOR_OPEN;

    (void)state;
    door = (door_state_t)tqi_machine_step(&door_machine, door, DOOR_EV_PUSH);
    assert_int_equal(door, DOOR_SHUT);
    door = (door_state_t)tqi_machine_step(&door_machine, door, DOOR_EV_KNOCK);
    assert_int_equal(door, DOOR_SHUT);
    door = (door_state_t)tqi_machine_step(&door_machine, door, DOOR_EV_PULL);
    assert_int_equal(door, DOOR_OPEN);
}

static void what_has_no_step_is_not_legal(void **state)
{
    unsigned legal = 0;

    (void)state;
    for (unsigned s = 0; s < DOOR_STATE_CNT; s++)
        for (unsigned e = 0; e < DOOR_EVENT_CNT; e++)
            legal += tqi_machine_can(&door_machine, s, e);
    assert_int_equal(legal, 3);
    assert_false(tqi_machine_can(&door_machine, DOOR_OPEN, DOOR_EV_KNOCK));
    assert_true(tqi_machine_can(&door_machine, DOOR_SHUT, DOOR_EV_KNOCK));
}

static void states_and_events_have_their_names(void **state)
{
    (void)state;
    assert_string_equal(door_machine.name, "door");
    assert_int_equal(door_machine.states_cnt, 2);
    assert_int_equal(door_machine.events_cnt, 3);
    assert_string_equal(door_machine.states[DOOR_SHUT], "SHUT");
    assert_string_equal(door_machine.events[DOOR_EV_KNOCK], "KNOCK");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_leads_where_the_table_says),
        cmocka_unit_test(what_has_no_step_is_not_legal),
        cmocka_unit_test(states_and_events_have_their_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
