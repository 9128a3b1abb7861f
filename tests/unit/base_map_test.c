/* The hash table against a table of flags: random additions and removals of entries, many with equal hashes. map_mix
 * against the reference values of splitmix64 with seed 1234567 (Vigna's splitmix64.c, as listed by Rosetta Code). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/map.h"

#define N 2000

static void test_mix_gives_the_reference_values(void **state)
{
    static const uint64_t want[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u};
    (void)state;
    uint64_t x = 1234567;
    for (int i = 0; i < 3; i++)
        assert_true(map_mix(x += 0x9e3779b97f4a7c15u) == want[i]);
}

static uint64_t draw(uint64_t *x)
{
    return map_mix(*x += 0x9e3779b97f4a7c15u);
}

/* The number of times that the map finds p, by all entries of its hash. */
static int found(const struct map *m, uint64_t hash, const void *p)
{
    size_t at;
    int n = 0;
    for (void *q = map_first(m, hash, &at); q; q = map_next(m, hash, &at))
        n += q == p;
    return n;
}

/* groups: entries with the same remainder have the same hash. */
static void random_operations(uint64_t groups, uint64_t multiplier)
{
    static char item[N];
    bool in[N] = {false};
    struct map m = {0};
    struct err e;
    uint64_t x = groups;
    size_t n = 0;
    for (int i = 0; i < 20 * N; i++) {
        size_t k = draw(&x) % N;
        uint64_t hash = k % groups * multiplier;
        assert_int_equal(found(&m, hash, &item[k]), in[k]);
        if (in[k])
            map_drop(&m, hash, &item[k]);
        else
            assert_int_equal(map_put(&e, &m, hash, &item[k]), 0);
        n = in[k] ? n - 1 : n + 1;
        in[k] = !in[k];
        assert_int_equal(m.n, n);
    }
    for (size_t k = 0; k < N; k++)
        assert_int_equal(found(&m, k % groups * multiplier, &item[k]), in[k]);
    map_drop(&m, 1, &e); /* it was removed: no effect */
    assert_int_equal(m.n, n);
    map_free(&m);
    assert_int_equal(found(&m, 0, item), 0);
}

static void test_entries_are_found_until_they_are_removed(void **state)
{
    (void)state;
    random_operations(N, 1);                    /* each in its own slot */
    random_operations(N, (uint64_t)1 << 40);    /* all hashes begin at the same slot */
    random_operations(300, 0x9e3779b97f4a7c15); /* several entries with each hash */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mix_gives_the_reference_values),
        cmocka_unit_test(test_entries_are_found_until_they_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
