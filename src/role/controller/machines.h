/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machines of the controller (base/machine.h), beside those of the table: rows, grants and
 * clears are in core.
 */
#ifndef TQI_ROLE_CONTROLLER_MACHINES_H
#define TQI_ROLE_CONTROLLER_MACHINES_H

#include "base/machine.h"

/* ---- a session --------------------------------------------------------------------------------- */

#define CTL_SESSION_STATES(X, P)                                                                   \
    X(P, ADRIFT, "it has no connection now")                                                       \
    X(P, CONNECTED, "it has")                                                                      \
    X(P, OVER, "what was provisional is taken back")

#define CTL_SESSION_EVENTS(X, P)                                                                   \
    X(P, BIND, "it speaks, by a connection that it had not")                                       \
    X(P, LATE, "a frame comes by an older connection than the one it has")                         \
    X(P, DOWN, "its connection is gone")                                                           \
    X(P, BYE, "the client says good-bye")                                                          \
    X(P, SILENT, "nothing was heard for too long")                                                 \
    X(P, DIED, "its process is known to be dead")

#define CTL_SESSION_STEPS(X, P)                                                                    \
    X(P, ADRIFT, BIND, CONNECTED)                                                                  \
    X(P, CONNECTED, BIND, CONNECTED)                                                               \
    X(P, CONNECTED, LATE, CONNECTED)                                                               \
    X(P, CONNECTED, DOWN, ADRIFT)                                                                  \
    X(P, CONNECTED, BYE, OVER)                                                                     \
    X(P, ADRIFT, SILENT, OVER)                                                                     \
    X(P, CONNECTED, SILENT, OVER)                                                                  \
    X(P, ADRIFT, DIED, OVER)                                                                       \
    X(P, CONNECTED, DIED, OVER)

/* ---- a put, from INSERT or RESOLVE on ---------------------------------------------------------- */

#define CTL_PUT_STATES(X, P)                                                                       \
    X(P, OPEN, "its rows wait for PUBLISH")                                                        \
    X(P, STRAY, "its partition is gone")                                                           \
    X(P, APPLYING, "PUBLISH was judged and can't fail any more")                                   \
    X(P, ENDING, "it is counted down at its rows, and those that only it had made go")             \
    X(P, GONE, "nothing of it is left")

#define CTL_PUT_EVENTS(X, P)                                                                       \
    X(P, APPLY, "PUBLISH was judged")                                                              \
    X(P, PUBLISHED, "all of it is visible")                                                        \
    X(P, KEPT, "its rows were made for their own sake")                                            \
    X(P, FAILED, "a request of it failed")                                                         \
    X(P, ABORTED, "the client gives it up")                                                        \
    X(P, SESSION_OVER, "its session is over")                                                      \
    X(P, PART_GONE, "its partition was cleared as a whole, and all rows of it are dead")           \
    X(P, COUNTED, "nothing counts it any more")

#define CTL_PUT_STEPS(X, P)                                                                        \
    X(P, OPEN, APPLY, APPLYING)                                                                    \
    X(P, OPEN, KEPT, ENDING)                                                                       \
    X(P, OPEN, FAILED, ENDING)                                                                     \
    X(P, OPEN, ABORTED, ENDING)                                                                    \
    X(P, OPEN, SESSION_OVER, ENDING)                                                               \
    X(P, OPEN, PART_GONE, STRAY)                                                                   \
    X(P, STRAY, FAILED, GONE)                                                                      \
    X(P, STRAY, ABORTED, GONE)                                                                     \
    X(P, STRAY, SESSION_OVER, GONE)                                                                \
    X(P, APPLYING, PUBLISHED, ENDING)                                                              \
    X(P, APPLYING, SESSION_OVER, ENDING)                                                           \
    X(P, ENDING, COUNTED, GONE)

/* ---- a storage unit ---------------------------------------------------------------------------- */

#define UNIT_STATES(X, P)                                                                          \
    X(P, PRESENT, "its rows are in the ready sets")                                                \
    X(P, RETURNING, "it is back and is given what it missed, then its rows return")                \
    X(P, LOST, "its rows are out of the ready sets")

#define UNIT_EVENTS(X, P)                                                                          \
    X(P, SILENT, "nothing was heard for too long")                                                 \
    X(P, SAME_LIFE, "it registers again, or is heard again")                                       \
    X(P, CAUGHT_UP, "all that it missed was answered")                                             \
    X(P, NEW_LIFE, "it registers, and is empty")

#define UNIT_STEPS(X, P)                                                                           \
    X(P, PRESENT, SILENT, LOST)                                                                    \
    X(P, RETURNING, SILENT, LOST)                                                                  \
    X(P, PRESENT, SAME_LIFE, PRESENT)                                                              \
    X(P, RETURNING, SAME_LIFE, RETURNING)                                                          \
    X(P, LOST, SAME_LIFE, RETURNING)                                                               \
    X(P, RETURNING, CAUGHT_UP, PRESENT)                                                            \
    X(P, PRESENT, NEW_LIFE, PRESENT)                                                               \
    X(P, RETURNING, NEW_LIFE, PRESENT)                                                             \
    X(P, LOST, NEW_LIFE, PRESENT)

extern const tqi_machine_t tqi_ctl_session_machine, tqi_ctl_put_machine, tqi_ctl_unit_machine;

#endif
