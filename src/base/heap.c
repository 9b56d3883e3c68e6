/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

#include "base/assert.h"
#include "base/size.h"

#define HEAP_CAP_MIN 16u

void tqi_heap_init(tqi_heap_t *heap, const tqi_env_t *env)
{
    *heap = (tqi_heap_t){.env = env};
}

void tqi_heap_fini(tqi_heap_t *heap)
{
    for (size_t i = 0; i < heap->cnt; i++)
        heap->nodes[i]->place = 0;
    tqi_env_free(heap->env, heap->nodes, heap->cap * sizeof *heap->nodes);
    *heap = (tqi_heap_t){.env = heap->env};
}

static bool node_is_before(const tqi_heap_node_t *a, const tqi_heap_node_t *b)
{
    if (a->deadline_ns != b->deadline_ns)
        return a->deadline_ns < b->deadline_ns;
    return a->order < b->order;
}

static void node_place(tqi_heap_t *heap, tqi_heap_node_t *node, size_t at)
{
    heap->nodes[at] = node;
    node->place = at + 1;
}

static void sift_up(tqi_heap_t *heap, tqi_heap_node_t *node, size_t at)
{
    while (at > 0) {
        size_t parent = (at - 1) / 2;

        if (!node_is_before(node, heap->nodes[parent]))
            break;
        node_place(heap, heap->nodes[parent], at);
        at = parent;
    }
    node_place(heap, node, at);
}

static void sift_down(tqi_heap_t *heap, tqi_heap_node_t *node, size_t at)
{
    for (;;) {
        size_t child = 2 * at + 1;

        if (child >= heap->cnt)
            break;
        if (child + 1 < heap->cnt && node_is_before(heap->nodes[child + 1], heap->nodes[child]))
            child++;
        if (!node_is_before(heap->nodes[child], node))
            break;
        node_place(heap, heap->nodes[child], at);
        at = child;
    }
    node_place(heap, node, at);
}

/* The slot `at` gets node, whatever its neighbours are. */
static void sift(tqi_heap_t *heap, tqi_heap_node_t *node, size_t at)
{
    if (at > 0 && node_is_before(node, heap->nodes[(at - 1) / 2]))
        sift_up(heap, node, at);
    else
        sift_down(heap, node, at);
}

tq_status_t tqi_heap_reserve(tqi_heap_t *heap, size_t node_cnt)
{
    size_t cap = tqi_size_max(heap->cap, HEAP_CAP_MIN);
    size_t bytes;

    if (node_cnt <= heap->cap)
        return TQ_OK;
    while (cap < node_cnt)
        if (!tqi_size_mul(cap, 2, &cap))
            return TQ_E_NO_MEMORY;
    if (!tqi_size_mul(cap, sizeof *heap->nodes, &bytes))
        return TQ_E_NO_MEMORY;
    tqi_heap_node_t **nodes =
        tqi_env_realloc(heap->env, heap->nodes, heap->cap * sizeof *nodes, bytes);
    if (nodes == NULL)
        return TQ_E_NO_MEMORY;
    heap->nodes = nodes;
    heap->cap = cap;
    return TQ_OK;
}

tq_status_t tqi_heap_insert(tqi_heap_t *heap, tqi_heap_node_t *node, uint64_t deadline_ns)
{
    tqi_assert(!tqi_heap_node_is_in(node));
    if (tqi_heap_reserve(heap, heap->cnt + 1) != TQ_OK)
        return TQ_E_NO_MEMORY;
    node->deadline_ns = deadline_ns;
    node->order = heap->order_next++;
    sift_up(heap, node, heap->cnt++);
    return TQ_OK;
}

static size_t node_index(const tqi_heap_t *heap, const tqi_heap_node_t *node)
{
    size_t at = node->place - 1;

    tqi_assert(at < heap->cnt && heap->nodes[at] == node);
    return at;
}

void tqi_heap_move(tqi_heap_t *heap, tqi_heap_node_t *node, uint64_t deadline_ns)
{
    size_t at = node_index(heap, node);

    node->deadline_ns = deadline_ns;
    node->order = heap->order_next++;
    sift(heap, node, at);
}

void tqi_heap_remove(tqi_heap_t *heap, tqi_heap_node_t *node)
{
    if (!tqi_heap_node_is_in(node))
        return;
    size_t at = node_index(heap, node);
    tqi_heap_node_t *last = heap->nodes[--heap->cnt];
    node->place = 0;
    if (last != node)
        sift(heap, last, at);
}

tqi_heap_node_t *tqi_heap_peek(const tqi_heap_t *heap)
{
    return heap->cnt == 0 ? NULL : heap->nodes[0];
}

tqi_heap_node_t *tqi_heap_pop_due(tqi_heap_t *heap, uint64_t now_ns)
{
    tqi_heap_node_t *node = tqi_heap_peek(heap);

    if (node == NULL || node->deadline_ns > now_ns)
        return NULL;
    tqi_heap_remove(heap, node);
    return node;
}
