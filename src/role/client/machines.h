/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machines of the client (base/machine.h).
 */
#ifndef TQI_ROLE_CLIENT_MACHINES_H
#define TQI_ROLE_CLIENT_MACHINES_H

#include "base/machine.h"

/* ---- the client in its store ------------------------------------------------------------------- */

#define TQI_JOIN_STATES(X, P)                                                                      \
    X(P, OUTSIDE, "there is no session")                                                           \
    X(P, INSIDE, "there is one")                                                                   \
    X(P, REFUSED, "there will never be one again")

#define TQI_JOIN_EVENTS(X, P)                                                                      \
    X(P, JOIN, "HELLO was answered, with a new session")                                           \
    X(P, KEEP, "HELLO was answered, with the session that there is")                               \
    X(P, EXPIRED, "the controller has ended the session")                                          \
    X(P, DISMISSED, "the store says that it shuts down")                                           \
    X(P, REPLACED, "another store answers at the address")                                         \
    X(P, STARVED, "there was no memory for what came with it")                                     \
    X(P, REFUSE, "this store is gone, or does not want this client")

#define TQI_JOIN_STEPS(X, P)                                                                       \
    X(P, OUTSIDE, JOIN, INSIDE)                                                                    \
    X(P, INSIDE, KEEP, INSIDE)                                                                     \
    X(P, INSIDE, EXPIRED, OUTSIDE)                                                                 \
    X(P, INSIDE, DISMISSED, OUTSIDE)                                                               \
    X(P, OUTSIDE, REPLACED, OUTSIDE)                                                               \
    X(P, INSIDE, REPLACED, OUTSIDE)                                                                \
    X(P, INSIDE, STARVED, OUTSIDE)                                                                 \
    X(P, OUTSIDE, REFUSE, REFUSED)                                                                 \
    X(P, INSIDE, REFUSE, REFUSED)

/* ---- its end ----------------------------------------------------------------------------------- */

#define TQI_CLOSE_STATES(X, P)                                                                     \
    X(P, OPEN, "it takes ops")                                                                     \
    X(P, CLOSING, "ops end, then BYE is said until it is answered")                                \
    X(P, CLOSED, "over")

#define TQI_CLOSE_EVENTS(X, P)                                                                     \
    X(P, CLOSE, "its owner closes it")                                                             \
    X(P, BYE, "BYE was answered")                                                                  \
    X(P, ALONE, "there is nobody to say BYE to")                                                   \
    X(P, LATE, "it took too long")

#define TQI_CLOSE_STEPS(X, P)                                                                      \
    X(P, OPEN, CLOSE, CLOSING)                                                                     \
    X(P, CLOSING, BYE, CLOSED)                                                                     \
    X(P, CLOSING, ALONE, CLOSED)                                                                   \
    X(P, CLOSING, LATE, CLOSED)

/* ---- a link ------------------------------------------------------------------------------------ */

#define TQI_LINK_STATES(X, P)                                                                      \
    X(P, IDLE, "nobody wants it")                                                                  \
    X(P, WAITING, "the next attempt is due at a time")                                             \
    X(P, GREETING, "connected, HELLO is not answered yet")                                         \
    X(P, UP, "HELLO was answered")

#define TQI_LINK_EVENTS(X, P)                                                                      \
    X(P, DIAL, "a connection is made")                                                             \
    X(P, NO_DIAL, "none could be made")                                                            \
    X(P, WELCOME, "HELLO was answered")                                                            \
    X(P, DOWN, "the connection is of no use any more")                                             \
    X(P, REST, "nobody wants it any more")                                                         \
    X(P, RESET, "the session is over")

/* The one to the controller is wanted always, and outlives sessions. */
#define TQI_CONTROLLER_LINK_STEPS(X, P)                                                            \
    X(P, IDLE, DIAL, GREETING)                                                                     \
    X(P, IDLE, NO_DIAL, WAITING)                                                                   \
    X(P, WAITING, DIAL, GREETING)                                                                  \
    X(P, WAITING, NO_DIAL, WAITING)                                                                \
    X(P, GREETING, WELCOME, UP)                                                                    \
    X(P, GREETING, DOWN, WAITING)                                                                  \
    X(P, UP, DOWN, WAITING)

#define TQI_UNIT_LINK_STEPS(X, P)                                                                  \
    TQI_CONTROLLER_LINK_STEPS(X, P)                                                                \
    X(P, WAITING, REST, IDLE)                                                                      \
    X(P, IDLE, RESET, IDLE)                                                                        \
    X(P, WAITING, RESET, IDLE)                                                                     \
    X(P, GREETING, RESET, IDLE)                                                                    \
    X(P, UP, RESET, IDLE)

/* ---- an op ------------------------------------------------------------------------------------- */

#define TQI_OP_STATES(X, P)                                                                        \
    X(P, NEW, "the caller's")                                                                      \
    X(P, QUEUED, "it waits for a session")                                                         \
    X(P, RUNNING, "")                                                                              \
    X(P, ENDING, "what a transfer could still touch, and what must be undone, is waited for")      \
    X(P, DONE, "the caller's again")

#define TQI_OP_EVENTS(X, P)                                                                        \
    X(P, SUBMIT, "it is given to the client")                                                      \
    X(P, START, "there is a session")                                                              \
    X(P, SUCCEED, "its outcome is known, and good")                                                \
    X(P, FAIL, "its outcome is known, and bad")                                                    \
    X(P, AGAIN, "it has to begin anew")                                                            \
    X(P, REQUEUED, "it can begin anew")                                                            \
    X(P, SETTLED, "nothing of it is under way")                                                    \
    X(P, CANCEL, "its caller wants it to end")                                                     \
    X(P, TIMEOUT, "its time is up")                                                                \
    X(P, UNREACHABLE, "a peer that it waits for does not answer")                                  \
    X(P, SESSION_OVER, "the session is over, and with it all its requests")                        \
    X(P, CLOSE, "the client closes")

#define TQI_OP_STEPS(X, P)                                                                         \
    X(P, NEW, SUBMIT, QUEUED)                                                                      \
    X(P, QUEUED, START, RUNNING)                                                                   \
    X(P, QUEUED, FAIL, ENDING)                                                                     \
    X(P, QUEUED, CANCEL, QUEUED)                                                                   \
    X(P, QUEUED, TIMEOUT, QUEUED)                                                                  \
    X(P, RUNNING, SUCCEED, ENDING)                                                                 \
    X(P, RUNNING, FAIL, ENDING)                                                                    \
    X(P, RUNNING, AGAIN, ENDING)                                                                   \
    X(P, RUNNING, CANCEL, RUNNING)                                                                 \
    X(P, RUNNING, TIMEOUT, RUNNING)                                                                \
    X(P, RUNNING, UNREACHABLE, RUNNING)                                                            \
    X(P, RUNNING, SESSION_OVER, RUNNING)                                                           \
    X(P, RUNNING, CLOSE, RUNNING)                                                                  \
    X(P, ENDING, FAIL, ENDING)                                                                     \
    X(P, ENDING, CANCEL, ENDING)                                                                   \
    X(P, ENDING, TIMEOUT, ENDING)                                                                  \
    X(P, ENDING, REQUEUED, QUEUED)                                                                 \
    X(P, ENDING, SETTLED, DONE)                                                                    \
    X(P, DONE, CANCEL, DONE)

/* ---- a slot: the part of a put or a get that concerns one unit --------------------------------- */

#define TQI_SLOT_STATES(X, P)                                                                      \
    X(P, IDLE, "nothing was asked of the unit")                                                    \
    X(P, LINKING, "the unit is not connected yet")                                                 \
    X(P, PREPARING, "PREPARE is not answered yet")                                                 \
    X(P, READY, "it was")                                                                          \
    X(P, MOVING, "the payload port has it")                                                        \
    X(P, CLOSING, "the unit was told that all bytes moved (COMMIT, RELEASE)")                      \
    X(P, STORED, "it is done")                                                                     \
    X(P, ENDED, "nothing of it is left")

#define TQI_SLOT_EVENTS(X, P)                                                                      \
    X(P, LINK, "the unit has to be connected first")                                               \
    X(P, LINKED, "it is")                                                                          \
    X(P, UNLINK, "its op does not want that any more")                                             \
    X(P, PREPARE, "PREPARE is sent")                                                               \
    X(P, PREPARED, "it was answered")                                                              \
    X(P, REFUSED, "it was answered with an error")                                                 \
    X(P, MOVE, "the payload port takes it")                                                        \
    X(P, CLOSE, "all bytes moved")                                                                 \
    X(P, STORE, "nothing is left to be done")                                                      \
    X(P, YIELD, "a put gives up its space, for others, to take it in order")                       \
    X(P, END, "its op ends")

#define TQI_SLOT_STEPS(X, P)                                                                       \
    X(P, IDLE, LINK, LINKING)                                                                      \
    X(P, IDLE, PREPARE, PREPARING)                                                                 \
    X(P, IDLE, END, ENDED)                                                                         \
    X(P, LINKING, LINKED, IDLE)                                                                    \
    X(P, LINKING, UNLINK, IDLE)                                                                    \
    X(P, PREPARING, PREPARED, READY)                                                               \
    X(P, PREPARING, REFUSED, IDLE)                                                                 \
    X(P, PREPARING, YIELD, IDLE)                                                                   \
    X(P, PREPARING, END, ENDED)                                                                    \
    X(P, READY, MOVE, MOVING)                                                                      \
    X(P, READY, STORE, STORED)                                                                     \
    X(P, READY, END, ENDED)                                                                        \
    X(P, MOVING, CLOSE, CLOSING)                                                                   \
    X(P, MOVING, STORE, STORED)                                                                    \
    X(P, MOVING, YIELD, IDLE)                                                                      \
    X(P, MOVING, END, ENDED)                                                                       \
    X(P, CLOSING, STORE, STORED)                                                                   \
    X(P, CLOSING, END, ENDED)                                                                      \
    X(P, STORED, END, ENDED)

/* ---- how far a put and a get are, while RUNNING ------------------------------------------------- */

#define TQI_PUT_STATES(X, P)                                                                       \
    X(P, RESOLVING, "its rows are found or made")                                                  \
    X(P, STORING, "its values go to each unit")                                                    \
    X(P, YIELDING, "one unit is full: everything taken is given up, to be taken in order")         \
    X(P, PUBLISHING, "the whole is made visible at once")

#define TQI_PUT_EVENTS(X, P)                                                                       \
    X(P, START, "it begins, perhaps anew")                                                         \
    X(P, RESOLVED, "its rows are known")                                                           \
    X(P, BARE, "they are, and there is nothing to store")                                          \
    X(P, STORED, "every unit has its part")                                                        \
    X(P, FULL, "a unit has no space, and nothing was committed yet")                               \
    X(P, YIELDED, "everything was given up")                                                       \
    X(P, CANCEL, "asked to stop, as an op is")                                                     \
    X(P, TIMEOUT, "")                                                                              \
    X(P, UNREACHABLE, "")                                                                          \
    X(P, SESSION_OVER, "")                                                                         \
    X(P, CLOSE, "")

#define TQI_PUT_STEPS(X, P)                                                                        \
    X(P, RESOLVING, START, RESOLVING)                                                              \
    X(P, RESOLVING, RESOLVED, STORING)                                                             \
    X(P, RESOLVING, BARE, PUBLISHING)                                                              \
    X(P, RESOLVING, CANCEL, RESOLVING)                                                             \
    X(P, RESOLVING, TIMEOUT, RESOLVING)                                                            \
    X(P, RESOLVING, UNREACHABLE, RESOLVING)                                                        \
    X(P, RESOLVING, SESSION_OVER, RESOLVING)                                                       \
    X(P, RESOLVING, CLOSE, RESOLVING)                                                              \
    X(P, STORING, START, RESOLVING)                                                                \
    X(P, STORING, STORED, PUBLISHING)                                                              \
    X(P, STORING, FULL, YIELDING)                                                                  \
    X(P, STORING, CANCEL, STORING)                                                                 \
    X(P, STORING, TIMEOUT, STORING)                                                                \
    X(P, STORING, UNREACHABLE, STORING)                                                            \
    X(P, STORING, SESSION_OVER, STORING)                                                           \
    X(P, STORING, CLOSE, STORING)                                                                  \
    X(P, YIELDING, YIELDED, STORING)                                                               \
    X(P, YIELDING, CANCEL, YIELDING)                                                               \
    X(P, YIELDING, TIMEOUT, YIELDING)                                                              \
    X(P, YIELDING, UNREACHABLE, YIELDING)                                                          \
    X(P, YIELDING, SESSION_OVER, YIELDING)                                                         \
    X(P, YIELDING, CLOSE, YIELDING)                                                                \
    X(P, PUBLISHING, CANCEL, PUBLISHING)                                                           \
    X(P, PUBLISHING, TIMEOUT, PUBLISHING)                                                          \
    X(P, PUBLISHING, UNREACHABLE, PUBLISHING)                                                      \
    X(P, PUBLISHING, SESSION_OVER, PUBLISHING)                                                     \
    X(P, PUBLISHING, CLOSE, PUBLISHING)

#define TQI_GET_STATES(X, P)                                                                       \
    X(P, RESOLVING, "its rows and their units are looked up")                                      \
    X(P, DESCRIBING, "the units pin and describe the values")                                      \
    X(P, READING, "they are read into their place")

#define TQI_GET_EVENTS(X, P)                                                                       \
    X(P, START, "it begins, perhaps anew")                                                         \
    X(P, RESOLVED, "its rows are known")                                                           \
    X(P, DESCRIBED, "every unit has answered")                                                     \
    X(P, CANCEL, "asked to stop, as an op is")                                                     \
    X(P, TIMEOUT, "")                                                                              \
    X(P, UNREACHABLE, "")                                                                          \
    X(P, SESSION_OVER, "")                                                                         \
    X(P, CLOSE, "")

#define TQI_GET_STEPS(X, P)                                                                        \
    X(P, RESOLVING, START, RESOLVING)                                                              \
    X(P, RESOLVING, RESOLVED, DESCRIBING)                                                          \
    X(P, RESOLVING, CANCEL, RESOLVING)                                                             \
    X(P, RESOLVING, TIMEOUT, RESOLVING)                                                            \
    X(P, RESOLVING, UNREACHABLE, RESOLVING)                                                        \
    X(P, RESOLVING, SESSION_OVER, RESOLVING)                                                       \
    X(P, RESOLVING, CLOSE, RESOLVING)                                                              \
    X(P, DESCRIBING, START, RESOLVING)                                                             \
    X(P, DESCRIBING, DESCRIBED, READING)                                                           \
    X(P, DESCRIBING, CANCEL, DESCRIBING)                                                           \
    X(P, DESCRIBING, TIMEOUT, DESCRIBING)                                                          \
    X(P, DESCRIBING, UNREACHABLE, DESCRIBING)                                                      \
    X(P, DESCRIBING, SESSION_OVER, DESCRIBING)                                                     \
    X(P, DESCRIBING, CLOSE, DESCRIBING)                                                            \
    X(P, READING, START, RESOLVING)                                                                \
    X(P, READING, CANCEL, READING)                                                                 \
    X(P, READING, TIMEOUT, READING)                                                                \
    X(P, READING, UNREACHABLE, READING)                                                            \
    X(P, READING, SESSION_OVER, READING)                                                           \
    X(P, READING, CLOSE, READING)

typedef enum tqi_join_state { TQI_MACHINE_STATES(TQI_JOIN) } tqi_join_state_t;
typedef enum tqi_join_event { TQI_MACHINE_EVENTS(TQI_JOIN) } tqi_join_event_t;
typedef enum tqi_close_state { TQI_MACHINE_STATES(TQI_CLOSE) } tqi_close_state_t;
typedef enum tqi_close_event { TQI_MACHINE_EVENTS(TQI_CLOSE) } tqi_close_event_t;
typedef enum tqi_put_state { TQI_MACHINE_STATES(TQI_PUT) } tqi_put_state_t;
typedef enum tqi_put_event { TQI_MACHINE_EVENTS(TQI_PUT) } tqi_put_event_t;
typedef enum tqi_get_state { TQI_MACHINE_STATES(TQI_GET) } tqi_get_state_t;
typedef enum tqi_get_event { TQI_MACHINE_EVENTS(TQI_GET) } tqi_get_event_t;
typedef enum tqi_link_state { TQI_MACHINE_STATES(TQI_LINK) } tqi_link_state_t;
typedef enum tqi_link_event { TQI_MACHINE_EVENTS(TQI_LINK) } tqi_link_event_t;
typedef enum tqi_op_state { TQI_MACHINE_STATES(TQI_OP) } tqi_op_state_t;
typedef enum tqi_op_event { TQI_MACHINE_EVENTS(TQI_OP) } tqi_op_event_t;
typedef enum tqi_slot_state { TQI_MACHINE_STATES(TQI_SLOT) } tqi_slot_state_t;
typedef enum tqi_slot_event { TQI_MACHINE_EVENTS(TQI_SLOT) } tqi_slot_event_t;

extern const tqi_machine_t tqi_client_machine, tqi_close_machine, tqi_controller_link_machine,
    tqi_unit_link_machine, tqi_op_machine, tqi_slot_machine, tqi_put_machine, tqi_get_machine;

#endif
