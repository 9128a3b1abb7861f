/*
 * Slots to write and who waits for them: in order, all or none, for a bounded time; nobody passes one who waits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/store_build.h"

#define MS 1000000ull

static const struct answered *told(const struct box *b, int i)
{
    assert_true(i < b->h.n_credit);
    return &b->h.credit[i];
}

static void those_who_wait_are_served_in_order(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    uint32_t slot[8], more[8];
    uint64_t got;
    box_open(&b, 8);
    OK(kv_store_credit_wait(&e, b.s, b.c[0], 2, 70, MS)); /* there is room: at once */
    assert_true(told(&b, 0)->client == b.c[0] && told(&b, 0)->tag == 70 && told(&b, 0)->n == 2);
    OK(kv_store_credit(&e, b.s, b.c[1], slot, &got, 4, false));
    OK(kv_store_credit_wait(&e, b.s, b.c[2], 5, 71, 10 * MS));
    OK(kv_store_credit_wait(&e, b.s, b.c[3], 1, 72, 20 * MS));
    assert_int_equal(b.h.n_credit, 1);
    IS_NO(kv_store_credit(&e, b.s, b.c[1], more, &got, 1, false), "others wait"); /* though two are free */
    assert_int_equal(kv_store_why(b.s), KV_WHY_NOT_NOW);
    IS_NO(kv_store_credit(&e, b.s, b.c[1], more, &got, 1, true), "others wait");
    IS_NO(kv_store_credit_wait(&e, b.s, b.c[2], 1, 73, MS), "waits for blocks already");
    IS_NO(kv_store_credit_wait(&e, b.s, b.c[1], 9, 73, MS), "never fit");
    OK(kv_store_uncredit(&e, b.s, b.c[1], slot, 2));
    assert_int_equal(kv_store_tick(b.s, 5 * MS), 10 * MS); /* 4 are free, 5 wanted */
    OK(kv_store_uncredit(&e, b.s, b.c[1], slot + 2, 2));
    kv_store_tick(b.s, 6 * MS);
    assert_int_equal(b.h.n_credit, 3);
    assert_true(told(&b, 1)->client == b.c[2] && told(&b, 1)->tag == 71 && told(&b, 1)->n == 5);
    assert_true(told(&b, 2)->client == b.c[3] && told(&b, 2)->tag == 72 && told(&b, 2)->n == 1);
    assert_int_equal(stat_of(&b).credited, 8);
    sound(&b);
    box_close(&b);
}

/* Two that hold half each and want the other half: the first one's time ends, it gives back, the other is served. */
static void two_halves_end(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    uint32_t slot[2][4];
    uint64_t got;
    box_open(&b, 8);
    for (int i = 0; i < 2; i++)
        OK(kv_store_credit(&e, b.s, b.c[i], slot[i], &got, 4, false));
    for (int i = 0; i < 2; i++)
        OK(kv_store_credit_wait(&e, b.s, b.c[i], 4, 80 + (uint64_t)i, (uint64_t)(10 + i) * MS));
    assert_int_equal(kv_store_tick(b.s, 9 * MS), 10 * MS);
    assert_int_equal(b.h.n_credit, 0);
    assert_int_equal(kv_store_tick(b.s, 10 * MS), 11 * MS);
    assert_true(b.h.n_credit == 1 && told(&b, 0)->tag == 80 && told(&b, 0)->n == 0);
    OK(kv_store_uncredit(&e, b.s, b.c[0], slot[0], 4));
    kv_store_tick(b.s, 10 * MS + 1);
    assert_true(b.h.n_credit == 2 && told(&b, 1)->tag == 81 && told(&b, 1)->n == 4);
    sound(&b);
    box_close(&b);
}

/* One whose time ends, one that is gone and one that falls silent hold nobody up. */
static void those_who_leave_the_queue_let_others_pass(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    uint32_t slot[8];
    uint64_t got;
    box_open(&b, 8);
    OK(kv_store_join(&e, b.s, &b.c[4], 9, 9, 0));
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 4, false));
    OK(kv_store_credit_wait(&e, b.s, b.c[1], 8, 1, 5 * MS));
    OK(kv_store_credit_wait(&e, b.s, b.c[2], 7, 2, 100 * S));
    OK(kv_store_credit_wait(&e, b.s, b.c[3], 6, 3, 100 * S));
    OK(kv_store_credit_wait(&e, b.s, b.c[4], 3, 4, 100 * S));
    kv_store_tick(b.s, 5 * MS);
    assert_true(b.h.n_credit == 1 && told(&b, 0)->tag == 1 && told(&b, 0)->n == 0);
    kv_store_gone(b.s, b.c[2], 6 * MS);
    kv_store_tick(b.s, 6 * MS);
    assert_int_equal(b.h.n_credit, 1);
    OK(kv_store_renew(&e, b.s, b.c[0], 5 * S));
    OK(kv_store_renew(&e, b.s, b.c[4], 5 * S));
    kv_store_tick(b.s, LEASE); /* the fourth is silent */
    assert_true(b.h.n_credit == 2 && told(&b, 1)->tag == 4 && told(&b, 1)->n == 3);
    IS_NO(kv_store_credit_wait(&e, b.s, b.c[3], 1, 5, MS), "lease has ended");
    sound(&b);
    box_close(&b);
}

/* A client that comes back on another connection waits for nothing, and may ask anew. */
static void a_new_connection_asks_anew(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    uint32_t slot[8], again;
    uint64_t got, id, key;
    box_open(&b, 8);
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 8, false));
    OK(kv_store_credit_wait(&e, b.s, b.c[1], 3, 57, 100 * MS));
    kv_store_identity(b.s, b.c[1], &id, &key);
    OK(kv_store_rejoin(&e, b.s, &again, id, key, MS));
    assert_int_equal(again, b.c[1]);
    OK(kv_store_credit_wait(&e, b.s, b.c[1], 2, 1, 100 * MS));
    OK(kv_store_uncredit(&e, b.s, b.c[0], slot, 8));
    kv_store_tick(b.s, 2 * MS);
    assert_true(b.h.n_credit == 1 && told(&b, 0)->tag == 1 && told(&b, 0)->n == 2);
    sound(&b);
    box_close(&b);
}

/* Small requests come without end, and each is given back a little later; a large one in between is served all the
 * same, as soon as those before it have gone back. */
static void a_large_request_is_not_starved(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    uint32_t slot[64][3];
    uint64_t got, held[64] = {0}, now = 0;
    int large = 0;
    box_open(&b, 40);
    for (int i = 0; i < 3000; i++) {
        int k = i % 20;
        now += MS;
        if (held[k])
            OK(kv_store_uncredit(&e, b.s, b.c[0], slot[k], held[k]));
        kv_store_tick(b.s, now);
        held[k] = kv_store_credit(&e, b.s, b.c[0], slot[k], &got, 1 + dice(3), false) ? 0 : got;
        if (i % 100 == 50)
            OK(kv_store_credit_wait(&e, b.s, b.c[1], 38, (uint64_t)i, 30 * MS));
        for (; b.h.n_credit; b.h.n_credit--) {
            large++;
            assert_int_equal(b.h.credit[0].n, 38);
            OK(kv_store_uncredit(&e, b.s, b.c[1], b.h.credit[0].slot, 38));
        }
        OK(kv_store_renew(&e, b.s, b.c[0], now));
        OK(kv_store_renew(&e, b.s, b.c[1], now));
        sound(&b);
    }
    assert_int_equal(large, 30);
    box_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_who_wait_are_served_in_order),
        cmocka_unit_test(two_halves_end),
        cmocka_unit_test(those_who_leave_the_queue_let_others_pass),
        cmocka_unit_test(a_new_connection_asks_anew),
        cmocka_unit_test(a_large_request_is_not_starved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
