/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a row, as a table. One setter (rows_step in core/partition.c) moves rows, whole masks
 * at a time, and checks every move against it (INV-1).
 */
#ifndef TQI_CORE_ROWSTATE_H
#define TQI_CORE_ROWSTATE_H

#include "base/machine.h"

#define TQI_ROW_STATES(X, P)                                                                       \
    X(P, RESERVED, "handed out, nothing published yet")                                            \
    X(P, ACTIVE, "something (fields or tags) was published")                                       \
    X(P, CLEARING, "no new request of ours reaches it; units have yet to say the same")            \
    X(P, DEAD, "gone for ever; its index is never used again")

#define TQI_ROW_EVENTS(X, P)                                                                       \
    X(P, PUBLISH, "a put into it was published")                                                   \
    X(P, CLEAR, "a clear began, or its only put failed")                                           \
    X(P, UNLINK, "no unit can reach it any more")

#define TQI_ROW_STEPS(X, P)                                                                        \
    X(P, RESERVED, PUBLISH, ACTIVE)                                                                \
    X(P, ACTIVE, PUBLISH, ACTIVE)                                                                  \
    X(P, RESERVED, CLEAR, CLEARING)                                                                \
    X(P, ACTIVE, CLEAR, CLEARING)                                                                  \
    X(P, CLEARING, UNLINK, DEAD)

typedef enum tqi_row_state { TQI_MACHINE_STATES(TQI_ROW) } tqi_row_state_t;
typedef enum tqi_row_event { TQI_MACHINE_EVENTS(TQI_ROW) } tqi_row_event_t;
extern const tqi_machine_t tqi_row_machine;

#endif
