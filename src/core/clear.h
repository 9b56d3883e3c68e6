/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A clear: rows that are CLEARING together, and the units that have yet to say that no new request
 * can reach them. When the last has answered, or counts as LOST, the rows are dead. A clear that
 * meets rows of another joins it and is over when both are.
 *
 *   INV-9  rows are CLEARING exactly while one clear that waits, or has still to bury them, has them
 */
#ifndef TQI_CORE_CLEAR_H
#define TQI_CORE_CLEAR_H

#include "core/partition.h"

#define TQI_CLEAR_STATES(X, P)                                                                     \
    X(P, GATHERING, "rows are being marked")                                                       \
    X(P, WAITING, "units have yet to unlink them")                                                 \
    X(P, BURYING, "every unit has, or is lost: the rows die, a slice at a time")                   \
    X(P, OVER, "all of them are dead")

#define TQI_CLEAR_EVENTS(X, P)                                                                     \
    X(P, ORDER, "all rows are marked, and units are told")                                         \
    X(P, NOBODY, "all rows are marked, and no unit has any of them")                               \
    X(P, EMPTY, "there was no row to mark")                                                        \
    X(P, UNIT_DONE, "a unit has unlinked them or is lost, others have yet to")                     \
    X(P, LAST_DONE, "the last unit has unlinked them or is lost")                                  \
    X(P, BURIED, "the last row is dead")                                                           \
    X(P, JOIN, "another request waits for it as well")                                             \
    X(P, LEAVE, "a request does not wait for it any more")

#define TQI_CLEAR_STEPS(X, P)                                                                      \
    X(P, GATHERING, ORDER, WAITING)                                                                \
    X(P, GATHERING, NOBODY, BURYING)                                                               \
    X(P, GATHERING, EMPTY, OVER)                                                                   \
    X(P, GATHERING, JOIN, GATHERING)                                                               \
    X(P, GATHERING, LEAVE, GATHERING)                                                              \
    X(P, WAITING, UNIT_DONE, WAITING)                                                              \
    X(P, WAITING, LAST_DONE, BURYING)                                                              \
    X(P, WAITING, JOIN, WAITING)                                                                   \
    X(P, WAITING, LEAVE, WAITING)                                                                  \
    X(P, BURYING, BURIED, OVER)                                                                    \
    X(P, BURYING, JOIN, BURYING)                                                                   \
    X(P, BURYING, LEAVE, BURYING)

typedef enum tqi_clear_state { TQI_MACHINE_STATES(TQI_CLEAR) } tqi_clear_state_t;
typedef enum tqi_clear_event { TQI_MACHINE_EVENTS(TQI_CLEAR) } tqi_clear_event_t;
extern const tqi_machine_t tqi_clear_machine;

typedef struct tqi_clear {
    tqi_node_t node; /* in the partition's list of clears */
    uint64_t id;
    tqi_clear_state_t state;
    tqi_bits_t rows;      /* all of them CLEARING; those buried leave */
    uint64_t rows_cnt;    /* how many it began with */
    uint32_t waiting_cnt; /* units that have not answered */
    uint64_t buried_to;   /* ordinal: blocks before it are done */
} tqi_clear_t;

void tqi_clear_init(tqi_clear_t *clear, const tqi_env_t *env, uint64_t id);
void tqi_clear_fini(tqi_clear_t *clear);
/* Changes the state; the event is legal. */
void tqi_clear_step(tqi_clear_t *clear, tqi_clear_event_t event);

/* Makes it possible to take the block's rows without failing. E_NO_MEMORY. */
tq_status_t tqi_clear_reserve(tqi_clear_t *clear, uint64_t ordinal);
/* Clears the mask's live rows in the partition and takes them in. How many; *taken (may be NULL)
 * gets them. Reserved before. */
uint32_t tqi_clear_add(tqi_partition_t *p, tqi_clear_t *clear, const tqi_mask_t *mask,
                       tqi_mask_t *taken, tqi_key_fn on_key, void *ctx);
/* Whether the clear has any of the mask's rows. */
bool tqi_clear_meets(const tqi_clear_t *clear, const tqi_mask_t *mask);

/* Writes the runs of rows (indexes, [lo, hi)) that the clear has on a unit, from block *ordinal on, at
 * most max of them (at least 512); *ordinal then is the block to go on with. False when that was the
 * last. */
bool tqi_clear_ranges(const tqi_partition_t *p, const tqi_clear_t *clear,
                      const tqi_placed_t *placed, uint64_t *ordinal, uint64_t *lo, uint64_t *hi,
                      uint32_t max, uint32_t *cnt);

/* Buries up to blocks_max blocks of a clear that waits for nobody. Each block that is dead for good
 * is told to on_dead. True when all rows are dead. */
typedef void (*tqi_dead_block_fn)(void *ctx, uint64_t block);
bool tqi_clear_bury(tqi_partition_t *p, tqi_clear_t *clear, uint32_t blocks_max,
                    tqi_dead_block_fn on_dead, void *ctx);

#endif
