/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An intrusive doubly linked list that knows its length: the queue of waiters, of parked requests,
 * of anything that must leave from the middle in constant time. The node lives in the element, so
 * nothing allocates; the element must not move or be freed while it is linked.
 */
#ifndef TQI_BASE_LIST_H
#define TQI_BASE_LIST_H

#include "base/assert.h"
#include "base/size.h"

#include <stdbool.h>
#include <stddef.h>

/* All zero means not linked. */
typedef struct tqi_node {
    struct tqi_node *prev;
    struct tqi_node *next;
} tqi_node_t;

typedef struct tqi_list {
    tqi_node_t head; /* in a ring with the elements */
    size_t cnt;
} tqi_list_t;

static inline void tqi_list_init(tqi_list_t *list)
{
    list->head.prev = &list->head;
    list->head.next = &list->head;
    list->cnt = 0;
}

static inline bool tqi_node_is_linked(const tqi_node_t *node)
{
    return node->next != NULL;
}

/* Puts node, which is in no list, behind `after`, which is in this one (or is its head). */
static inline void tqi_list_insert_after(tqi_list_t *list, tqi_node_t *after, tqi_node_t *node)
{
    tqi_assert(!tqi_node_is_linked(node));
    node->prev = after;
    node->next = after->next;
    after->next->prev = node;
    after->next = node;
    list->cnt++;
}

static inline void tqi_list_push_back(tqi_list_t *list, tqi_node_t *node)
{
    tqi_list_insert_after(list, list->head.prev, node);
}

static inline void tqi_list_push_front(tqi_list_t *list, tqi_node_t *node)
{
    tqi_list_insert_after(list, &list->head, node);
}

/* node is in this list. */
static inline void tqi_list_remove(tqi_list_t *list, tqi_node_t *node)
{
    tqi_assert(tqi_node_is_linked(node) && list->cnt > 0);
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = NULL;
    node->next = NULL;
    list->cnt--;
}

/* NULL at the end, and from an empty list. */
static inline tqi_node_t *tqi_list_next(const tqi_list_t *list, const tqi_node_t *node)
{
    return node->next == &list->head ? NULL : node->next;
}

static inline tqi_node_t *tqi_list_first(const tqi_list_t *list)
{
    return tqi_list_next(list, &list->head);
}

static inline tqi_node_t *tqi_list_last(const tqi_list_t *list)
{
    return list->cnt == 0 ? NULL : list->head.prev;
}

/* The first node, taken out, or NULL. */
static inline tqi_node_t *tqi_list_pop_front(tqi_list_t *list)
{
    tqi_node_t *node = tqi_list_first(list);

    if (node != NULL)
        tqi_list_remove(list, node);
    return node;
}

/* for (...) over the nodes; `node` may be removed in the body, nothing else may. */
#define tqi_list_each(list, node)                                                                  \
    for (tqi_node_t *node = tqi_list_first(list),                                                  \
                    *node##_next = node != NULL ? tqi_list_next(list, node) : NULL;                \
         node != NULL;                                                                             \
         node = node##_next, node##_next = node != NULL ? tqi_list_next(list, node) : NULL)

#endif
