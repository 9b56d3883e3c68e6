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

#define TQI_GRANT_STATES(X, P)                                                                     \
    X(P, NONE, "not made yet")                                                                     \
    X(P, PROVISIONAL, "consumed, and given back if the fetcher never says that it took them")      \
    X(P, FINAL, "the task's for good")                                                             \
    X(P, RETURNED, "given back, all of it")

#define TQI_GRANT_EVENTS(X, P)                                                                     \
    X(P, GRANT, "rows were chosen for a fetch")                                                    \
    X(P, ACK, "the fetcher has taken the answer")                                                  \
    X(P, RESET, "the task begins again, or its partition is gone")                                 \
    X(P, GIVE_BACK, "the fetch was cancelled, its rows returned, or its session is over")

#define TQI_GRANT_STEPS(X, P)                                                                      \
    X(P, NONE, GRANT, PROVISIONAL)                                                                 \
    X(P, PROVISIONAL, ACK, FINAL)                                                                  \
    X(P, PROVISIONAL, RESET, FINAL)                                                                \
    X(P, PROVISIONAL, GIVE_BACK, RETURNED)

typedef enum tqi_grant_state { TQI_MACHINE_STATES(TQI_GRANT) } tqi_grant_state_t;
typedef enum tqi_grant_event { TQI_MACHINE_EVENTS(TQI_GRANT) } tqi_grant_event_t;
extern const tqi_machine_t tqi_grant_machine;

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
