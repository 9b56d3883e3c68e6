/* SPDX-License-Identifier: Apache-2.0 */
#include "base/list.h"

#include "unit.h"

typedef struct element {
    int number;
    tqi_node_t node;
} element_t;

static int number_of(tqi_node_t *node)
{
    return tqi_container_of(node, element_t, node)->number;
}

static void elements_leave_in_the_order_they_came(void **state)
{
    element_t elements[5] = {{.number = 0}};
    tqi_list_t list;

    (void)state;
    tqi_list_init(&list);
    assert_null(tqi_list_pop_front(&list));
    assert_null(tqi_list_last(&list));
    for (int i = 0; i < 5; i++) {
        elements[i].number = i;
        tqi_list_push_back(&list, &elements[i].node);
    }
    assert_int_equal(list.cnt, 5);
    assert_int_equal(number_of(tqi_list_last(&list)), 4);
    for (int i = 0; i < 5; i++) {
        tqi_node_t *node = tqi_list_pop_front(&list);

        assert_int_equal(number_of(node), i);
        assert_false(tqi_node_is_linked(node));
    }
    assert_int_equal(list.cnt, 0);
    assert_null(tqi_list_first(&list));
}

static void one_leaves_from_the_middle_and_may_come_back_in_front(void **state)
{
    element_t elements[3] = {{.number = 0}};
    tqi_list_t list;
    int order[3], cnt = 0;

    (void)state;
    tqi_list_init(&list);
    for (int i = 0; i < 3; i++) {
        elements[i].number = i;
        tqi_list_push_back(&list, &elements[i].node);
    }
    tqi_list_remove(&list, &elements[1].node);
    assert_int_equal(list.cnt, 2);
    tqi_list_push_front(&list, &elements[1].node);
    tqi_list_each(&list, node) order[cnt++] = number_of(node);
    assert_int_equal(cnt, 3);
    assert_int_equal(order[0], 1);
    assert_int_equal(order[1], 0);
    assert_int_equal(order[2], 2);
}

static void the_current_element_may_be_removed_while_walking(void **state)
{
    element_t elements[10] = {{.number = 0}};
    tqi_list_t list;
    int seen = 0;

    (void)state;
    tqi_list_init(&list);
    for (int i = 0; i < 10; i++) {
        elements[i].number = i;
        tqi_list_push_back(&list, &elements[i].node);
    }
    tqi_list_each(&list, node)
    {
        assert_int_equal(number_of(node), seen);
        seen++;
        if (number_of(node) % 2 == 0)
            tqi_list_remove(&list, node);
    }
    assert_int_equal(seen, 10);
    assert_int_equal(list.cnt, 5);
    assert_int_equal(number_of(tqi_list_first(&list)), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_leave_in_the_order_they_came),
        cmocka_unit_test(one_leaves_from_the_middle_and_may_come_back_in_front),
        cmocka_unit_test(the_current_element_may_be_removed_while_walking),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
