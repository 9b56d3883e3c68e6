/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants: rows given to a fetch. Until the fetcher has acknowledged that it took them they are
 * provisional: consumed in every status, and given back if it dies or cancels. An acknowledgement,
 * or a reset of the task, makes them final.
 *
 *   INV-8  every row of a provisional grant that is not cleared is consumed by the grant's task, and
 *          no two provisional grants of a task have a row in common
 */
#ifndef TQI_CORE_GRANT_H
#define TQI_CORE_GRANT_H

#include "core/partition.h"

/* X(from, event, to) */
#define TQI_GRANT_STEP_TABLE(X)                                                                    \
    X(NONE, GRANT, PROVISIONAL)                                                                    \
    X(PROVISIONAL, ACK, FINAL)                                                                     \
    X(PROVISIONAL, RESET, FINAL)                                                                   \
    X(PROVISIONAL, GIVE_BACK, RETURNED)

typedef enum tqi_grant_state {
    TQI_GRANT_NONE,
    TQI_GRANT_PROVISIONAL,
    TQI_GRANT_FINAL,
    TQI_GRANT_RETURNED,
} tqi_grant_state_t;

typedef enum tqi_grant_event {
    TQI_GRANT_EVENT_GRANT,
    TQI_GRANT_EVENT_ACK,
    TQI_GRANT_EVENT_RESET,
    TQI_GRANT_EVENT_GIVE_BACK,
} tqi_grant_event_t;

/* Embedded in the role's record. All zero: NONE. */
typedef struct tqi_grant {
    tqi_node_t node; /* in the task's list while PROVISIONAL */
    tqi_task_t *task;
    tqi_grant_state_t state;
    tqi_bits_t rows;
} tqi_grant_t;

/* Chosen rows, ascending or not, all ready for the task: consumed, and remembered. All or nothing:
 * E_NO_MEMORY. */
tq_status_t tqi_grant_make(tqi_partition_t *p, tqi_grant_t *grant, tqi_task_t *task,
                           const uint64_t *pos, uint32_t cnt);
/* ACK or RESET: the rows are the task's for good. */
void tqi_grant_finish(tqi_grant_t *grant, tqi_grant_event_t event);
/* Gives back those of the mask's rows that the grant has. How many. */
uint32_t tqi_grant_return(tqi_partition_t *p, tqi_grant_t *grant, const tqi_mask_t *mask);
/* All rows were given back. */
void tqi_grant_returned(tqi_grant_t *grant);
void tqi_grant_fini(tqi_grant_t *grant); /* any state but PROVISIONAL */
bool tqi_grant_check(const tqi_partition_t *p, tqi_err_t *err);

#endif
