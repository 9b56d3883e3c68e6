/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machines of the storage unit (base/machine.h), beside transfers (core/transfer.h).
 */
#ifndef TQI_ROLE_STORAGE_MACHINES_H
#define TQI_ROLE_STORAGE_MACHINES_H

#include "base/machine.h"

/* ---- the unit in its store --------------------------------------------------------------------- */

#define MEMBER_STATES(X, P)                                                                        \
    X(P, OUTSIDE, "not registered: it serves nobody")                                              \
    X(P, INSIDE, "registered: it serves while it hears the controller")                            \
    X(P, EMPTYING, "its rows are another store's: they go, and then it registers")

#define MEMBER_EVENTS(X, P)                                                                        \
    X(P, ACCEPTED, "REGISTER was answered")                                                        \
    X(P, REFUSED, "REGISTER was answered with an error")                                           \
    X(P, SILENT, "the controller spoke after it had been silent for too long")                     \
    X(P, OTHER_STORE, "the controller is another store's")                                         \
    X(P, EMPTIED, "nothing of the former store is left")

#define MEMBER_STEPS(X, P)                                                                         \
    X(P, OUTSIDE, ACCEPTED, INSIDE)                                                                \
    X(P, INSIDE, ACCEPTED, INSIDE)                                                                 \
    X(P, OUTSIDE, REFUSED, OUTSIDE)                                                                \
    X(P, INSIDE, REFUSED, INSIDE)                                                                  \
    X(P, INSIDE, SILENT, OUTSIDE)                                                                  \
    X(P, OUTSIDE, OTHER_STORE, EMPTYING)                                                           \
    X(P, INSIDE, OTHER_STORE, EMPTYING)                                                            \
    X(P, EMPTYING, EMPTIED, OUTSIDE)

/* ---- its connection to the controller ---------------------------------------------------------- */

#define WIRE_STATES(X, P)                                                                          \
    X(P, AWAY, "there is none")                                                                    \
    X(P, DIALLED, "there is one")

#define WIRE_EVENTS(X, P)                                                                          \
    X(P, DIAL, "it is made")                                                                       \
    X(P, DOWN, "it is gone")                                                                       \
    X(P, STUCK, "nothing came by it for so long that another is made")

#define WIRE_STEPS(X, P)                                                                           \
    X(P, AWAY, DIAL, DIALLED)                                                                      \
    X(P, DIALLED, DOWN, AWAY)                                                                      \
    X(P, DIALLED, STUCK, AWAY)

/* ---- a session --------------------------------------------------------------------------------- */

#define SESSION_STATES(X, P)                                                                       \
    X(P, ADRIFT, "it has no connection now")                                                       \
    X(P, CONNECTED, "it has")                                                                      \
    X(P, ENDED, "kept only until the payload port lets its transfers go")                          \
    X(P, GONE, "nothing of it is left")

#define SESSION_EVENTS(X, P)                                                                       \
    X(P, HELLO, "it says HELLO by its newest connection")                                          \
    X(P, OVERTAKEN, "it says HELLO by an older one")                                               \
    X(P, DOWN, "its connection is gone")                                                           \
    X(P, END, "the controller has ended it, or the unit leaves the store")                         \
    X(P, LAST, "its last transfer is gone")

#define SESSION_STEPS(X, P)                                                                        \
    X(P, ADRIFT, HELLO, CONNECTED)                                                                 \
    X(P, CONNECTED, HELLO, CONNECTED)                                                              \
    X(P, CONNECTED, OVERTAKEN, CONNECTED)                                                          \
    X(P, CONNECTED, DOWN, ADRIFT)                                                                  \
    X(P, ADRIFT, END, ENDED)                                                                       \
    X(P, CONNECTED, END, ENDED)                                                                    \
    X(P, ENDED, LAST, GONE)

extern const tqi_machine_t tqi_unit_member_machine, tqi_unit_wire_machine, tqi_unit_session_machine;

#endif
