/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a row, as a table. One setter (rows_step in core/partition.c) moves rows, whole masks
 * at a time, and checks every move against it (INV-1).
 *
 *   RESERVED  handed out, nothing published yet
 *   ACTIVE    something (fields or tags) was published
 *   CLEARING  no new request of ours reaches it; units have yet to say the same
 *   DEAD      gone for ever; its index is never used again
 */
#ifndef TQI_CORE_ROWSTATE_H
#define TQI_CORE_ROWSTATE_H

#define TQI_ROW_STATE_TABLE(X)                                                                     \
    X(RESERVED)                                                                                    \
    X(ACTIVE)                                                                                      \
    X(CLEARING)                                                                                    \
    X(DEAD)

#define TQI_ROW_EVENT_TABLE(X)                                                                     \
    X(PUBLISH) /* a put into it was published */                                                   \
    X(CLEAR)   /* a clear began, or its only put failed */                                         \
    X(UNLINK)  /* no unit can reach it any more */

/* X(from, event, to). What is not here does not happen. */
#define TQI_ROW_STEP_TABLE(X)                                                                      \
    X(RESERVED, PUBLISH, ACTIVE)                                                                   \
    X(ACTIVE, PUBLISH, ACTIVE)                                                                     \
    X(RESERVED, CLEAR, CLEARING)                                                                   \
    X(ACTIVE, CLEAR, CLEARING)                                                                     \
    X(CLEARING, UNLINK, DEAD)

typedef enum tqi_row_state {
#define TQI_ROW_STATE_ENUM_(name) TQI_ROW_##name,
    TQI_ROW_STATE_TABLE(TQI_ROW_STATE_ENUM_)
#undef TQI_ROW_STATE_ENUM_
        TQI_ROW_STATE_CNT
} tqi_row_state_t;

typedef enum tqi_row_event {
#define TQI_ROW_EVENT_ENUM_(name) TQI_ROW_EVENT_##name,
    TQI_ROW_EVENT_TABLE(TQI_ROW_EVENT_ENUM_)
#undef TQI_ROW_EVENT_ENUM_
        TQI_ROW_EVENT_CNT
} tqi_row_event_t;

#endif
