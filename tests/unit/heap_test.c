/* SPDX-License-Identifier: Apache-2.0 */
#include "base/heap.h"

#include "unit.h"

enum { NODES = 200 };

/* The naive model: the lowest (deadline, order) of those that are in. */
static tqi_heap_node_t *lowest(tqi_heap_node_t *nodes)
{
    tqi_heap_node_t *best = NULL;

    for (size_t i = 0; i < NODES; i++) {
        tqi_heap_node_t *node = &nodes[i];

        if (!tqi_heap_node_is_in(node))
            continue;
        if (best == NULL || node->deadline_ns < best->deadline_ns ||
            (node->deadline_ns == best->deadline_ns && node->order < best->order))
            best = node;
    }
    return best;
}

static void random_operations_agree_with_a_scan(void **state)
{
    (void)state;
    for_each_seed(seed, 50)
    {
        tqi_heap_node_t nodes[NODES] = {{.place = 0}};
        tqi_heap_t heap;
        unit_env_t e;
        tqi_rng_t rng;

        unit_env_init(&e);
        tqi_rng_init(&rng, seed);
        tqi_heap_init(&heap, &e.env);
        for (int i = 0; i < 3000; i++) {
            tqi_heap_node_t *node = &nodes[tqi_rng_below(&rng, NODES)];
            uint64_t deadline_ns = tqi_rng_below(&rng, 50); /* few, so that many are equal */

            if (!tqi_heap_node_is_in(node))
                unit_check(tqi_heap_insert(&heap, node, deadline_ns) == TQ_OK);
            else if (tqi_rng_chance(&rng, 0.5))
                tqi_heap_remove(&heap, node);
            else
                tqi_heap_move(&heap, node, deadline_ns);
            unit_check(tqi_heap_peek(&heap) == lowest(nodes));
        }
        for (tqi_heap_node_t *due; (due = tqi_heap_pop_due(&heap, 25)) != NULL;) {
            unit_check(due->deadline_ns <= 25);
            tqi_heap_node_t *next = lowest(nodes);
            unit_check(next == NULL || next->deadline_ns > due->deadline_ns ||
                       (next->deadline_ns == due->deadline_ns && next->order > due->order));
        }
        unit_check(heap.cnt == 0 || tqi_heap_peek(&heap)->deadline_ns > 25);
        tqi_heap_fini(&heap);
        unit_check(e.bytes == 0);
    }
}

static void equal_deadlines_come_out_in_the_order_they_went_in(void **state)
{
    tqi_heap_node_t nodes[NODES] = {{.place = 0}};
    tqi_heap_t heap;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_heap_init(&heap, &e.env);
    for (size_t i = 0; i < NODES; i++)
        assert_int_equal(tqi_heap_insert(&heap, &nodes[i], 7), TQ_OK);
    tqi_heap_remove(&heap, &nodes[50]);
    tqi_heap_remove(&heap, &nodes[50]); /* not in: fine */
    assert_null(tqi_heap_pop_due(&heap, 6));
    for (size_t i = 0; i < NODES; i++)
        if (i != 50)
            assert_ptr_equal(tqi_heap_pop_due(&heap, 7), &nodes[i]);
    assert_null(tqi_heap_pop_due(&heap, UINT64_MAX));
    tqi_heap_fini(&heap);
    assert_int_equal(e.bytes, 0);
}

static void refused_memory_leaves_the_node_out(void **state)
{
    tqi_heap_node_t nodes[NODES] = {{.place = 0}};
    tqi_heap_t heap;
    unit_env_t e;

    (void)state;
    unit_env_init(&e);
    tqi_heap_init(&heap, &e.env);
    e.fail_after = 0;
    assert_int_equal(tqi_heap_insert(&heap, &nodes[0], 1), TQ_E_NO_MEMORY);
    assert_false(tqi_heap_node_is_in(&nodes[0]));
    e.fail_after = 1;
    assert_int_equal(tqi_heap_reserve(&heap, NODES), TQ_OK);
    for (size_t i = 0; i < NODES; i++)
        assert_int_equal(tqi_heap_insert(&heap, &nodes[i], 1), TQ_OK);
    assert_int_equal(tqi_heap_reserve(&heap, SIZE_MAX), TQ_E_NO_MEMORY);
    tqi_heap_fini(&heap);
    assert_false(tqi_heap_node_is_in(&nodes[0]));
    assert_int_equal(e.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_agree_with_a_scan),
        cmocka_unit_test(equal_deadlines_come_out_in_the_order_they_went_in),
        cmocka_unit_test(refused_memory_leaves_the_node_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
