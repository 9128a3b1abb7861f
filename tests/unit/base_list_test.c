#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/list.h"

struct item {
    int value;
    struct list node;
};

static void assert_values(const struct list *head, const int *want, size_t n)
{
    size_t i = 0;
    list_for_each (at, head) {
        assert_true(i < n);
        assert_int_equal(list_entry(at, struct item, node)->value, want[i++]);
    }
    assert_int_equal(i, n);
    for (const struct list *at = head->prev; at != head; at = at->prev)
        assert_int_equal(list_entry(at, struct item, node)->value, want[--i]);
    assert_int_equal(i, 0);
}

static void test_elements_keep_their_order(void **state)
{
    (void)state;
    struct item v[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    struct list l;
    list_init(&l);
    assert_true(list_empty(&l));
    assert_values(&l, NULL, 0);
    list_push_back(&l, &v[1].node);
    list_push_back(&l, &v[2].node);
    list_push_front(&l, &v[0].node);
    assert_values(&l, (int[]){0, 1, 2}, 3);
    list_insert_before(&v[1].node, &v[3].node);
    assert_values(&l, (int[]){0, 3, 1, 2}, 4);
    assert_ptr_equal(list_pop_front(&l), &v[0].node);
    assert_values(&l, (int[]){3, 1, 2}, 3);
}

static void test_removed_twice_is_removed_once(void **state)
{
    (void)state;
    struct item v[2] = {{.value = 0}, {.value = 1}};
    struct list l;
    list_init(&l);
    list_push_back(&l, &v[0].node);
    list_push_back(&l, &v[1].node);
    list_remove(&v[0].node);
    list_remove(&v[0].node);
    assert_true(list_empty(&v[0].node));
    assert_values(&l, (int[]){1}, 1);
    list_remove(&v[1].node);
    assert_null(list_pop_front(&l));
}

static void test_all_are_freed_in_a_loop(void **state)
{
    (void)state;
    struct list l;
    int sum = 0;
    list_init(&l);
    for (int i = 0; i < 5; i++) {
        struct item *it = calloc(1, sizeof *it);
        assert_non_null(it);
        it->value = i;
        list_push_back(&l, &it->node);
    }
    list_each_safe (struct item, it, &l, node) {
        sum += it->value;
        list_remove(&it->node);
        free(it);
    }
    assert_int_equal(sum, 10);
    assert_true(list_empty(&l));
}

static void test_append_moves_all(void **state)
{
    (void)state;
    struct item v[4] = {{.value = 0}, {.value = 1}, {.value = 2}, {.value = 3}};
    struct list a, b;
    list_init(&a);
    list_init(&b);
    list_append(&a, &b);
    assert_values(&a, NULL, 0);
    list_push_back(&b, &v[0].node);
    list_push_back(&b, &v[1].node);
    list_append(&a, &b);
    assert_values(&a, (int[]){0, 1}, 2);
    assert_true(list_empty(&b));
    list_push_back(&b, &v[2].node);
    list_push_back(&b, &v[3].node);
    list_append(&a, &b);
    assert_values(&a, (int[]){0, 1, 2, 3}, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_keep_their_order),
        cmocka_unit_test(test_removed_twice_is_removed_once),
        cmocka_unit_test(test_all_are_freed_in_a_loop),
        cmocka_unit_test(test_append_moves_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
