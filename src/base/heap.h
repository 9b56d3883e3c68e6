/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers: a binary min-heap of deadlines. The node lives in the element and knows its place, so one
 * is removed or moved in O(log n). Equal deadlines come out in the order they went in, because a
 * run under the simulator must not depend on anything else.
 */
#ifndef TQI_BASE_HEAP_H
#define TQI_BASE_HEAP_H

#include "base/env.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tq/status.h>

/* All zero means in no heap. The element must not move while it is in one. */
typedef struct tqi_heap_node {
    uint64_t deadline_ns;
    uint64_t order; /* of insertion */
    size_t place;   /* 1 + index in the heap's array; 0: in no heap */
} tqi_heap_node_t;

typedef struct tqi_heap {
    const tqi_env_t *env;
    tqi_heap_node_t **nodes;
    size_t cnt;
    size_t cap;
    uint64_t order_next;
} tqi_heap_t;

/* Allocates nothing. */
void tqi_heap_init(tqi_heap_t *heap, const tqi_env_t *env);
/* Forgets the nodes that are still there; they belong to the caller. */
void tqi_heap_fini(tqi_heap_t *heap);

/* Room for node_cnt nodes in all, so that inserting them can't fail. OK or E_NO_MEMORY. */
tq_status_t tqi_heap_reserve(tqi_heap_t *heap, size_t node_cnt);
/* node is in no heap. OK or E_NO_MEMORY. */
tq_status_t tqi_heap_insert(tqi_heap_t *heap, tqi_heap_node_t *node, uint64_t deadline_ns);
/* Gives a node that is in this heap another deadline, behind its equals. */
void tqi_heap_move(tqi_heap_t *heap, tqi_heap_node_t *node, uint64_t deadline_ns);
/* Takes node out if it is in the heap. */
void tqi_heap_remove(tqi_heap_t *heap, tqi_heap_node_t *node);
/* The node with the lowest deadline, or NULL. */
tqi_heap_node_t *tqi_heap_peek(const tqi_heap_t *heap);
/* Takes out the first node whose deadline is at or before now_ns; NULL when there is none. */
tqi_heap_node_t *tqi_heap_pop_due(tqi_heap_t *heap, uint64_t now_ns);

static inline bool tqi_heap_node_is_in(const tqi_heap_node_t *node)
{
    return node->place != 0;
}

#endif
