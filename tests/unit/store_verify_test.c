/* Verified leases: a block that another process has written to after its publication is not leased. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/store_build.h"

/* Leases a prompt of n blocks as client c, computes what is missing, and releases it. Returns how many were cached. */
static uint64_t use(struct fixture *b, int c, const uint8_t *path, uint64_t n)
{
    struct err e = {0};
    struct prompt p;
    struct kv_seq_info q;
    prompt_of(&p, path, n);
    OK(lease(&e, b, b->c[c], &q, &p, false));
    uint64_t hit = q.n_block;
    if (hit < n)
        OK(publish(&e, b, b->c[c], &q, &p, n));
    OK(kv_store_release(&e, b->s, b->c[c], q.seq, q.gen));
    sound(b);
    return hit;
}

/* The slot of a cached block, by its digest. */
static uint32_t slot_with(const struct fixture *b, const uint8_t *path, uint64_t at)
{
    struct prompt p;
    uint32_t i = 0;
    prompt_of(&p, path, at + 1);
    while (kv_arena_slot(b->a, i)->state != KV_NAMED ||
           memcmp(kv_arena_slot(b->a, i)->digest, p.digests + at * KV_DIGEST, KV_DIGEST))
        i++;
    return i;
}

static void scribble(const struct fixture *b, const uint8_t *path, uint64_t at)
{
    kv_arena_bytes(b->a, slot_with(b, path, at))[100] ^= 4;
}

static void drops_a_changed_block_and_those_that_follow_it(void **state)
{
    (void)state;
    struct fixture b;
    fixture_open_verify(&b, 20, KV_VERIFY_FIRST);
    assert_int_equal(use(&b, 0, path_a, 5), 0);
    assert_int_equal(use(&b, 0, path_b, 4), 2); /* shares two blocks with the first */
    assert_int_equal(use(&b, 0, path_c, 1), 0);
    scribble(&b, path_a, 2);
    assert_int_equal(use(&b, 1, path_b, 4), 4);
    assert_int_equal(use(&b, 1, path_a, 5), 2);
    assert_int_equal(stat_of(&b).damaged, 3);
    assert_int_equal(b.h.n_damaged, 1);
    assert_int_equal(b.h.n_evicted, 3);
    assert_int_equal(use(&b, 2, path_a, 5), 5); /* computed again */
    scribble(&b, path_a, 1);
    for (int i = 0; i < 3000 && b.h.n_damaged < 2; i++) /* a sample, since it was compared before */
        use(&b, 2, path_b, 4);
    assert_int_equal(b.h.n_damaged, 2);
    assert_int_equal(stat_of(&b).damaged, 3 + 4 + 2);
    assert_int_equal(use(&b, 2, path_c, 1), 1); /* another prompt keeps its block */
    fixture_close(&b);
}

static void compares_all_blocks_after_one_has_changed(void **state)
{
    (void)state;
    struct fixture b;
    fixture_open_verify(&b, 60, KV_VERIFY_FIRST);
    uint8_t path[32][8];
    for (uint8_t i = 0; i < 32; i++) {
        memset(path[i], i + 10, sizeof path[i]);
        use(&b, 0, path[i], 1);
        assert_int_equal(use(&b, 1, path[i], 1), 1); /* its first lease compares it */
    }
    for (int i = 0; i < 32; i++)
        scribble(&b, path[i], 0);
    int first = 0;
    while (use(&b, 1, path[first], 1) == 1) /* 1 of 64 tries finds one */
        first = (first + 1) % 32;
    for (int i = 0; i < 32; i++)
        assert_int_equal(use(&b, 1, path[i], 1), i == first);
    fixture_close(&b);
}

static void always_compares_each_lease(void **state)
{
    (void)state;
    struct fixture b;
    fixture_open_verify(&b, 20, KV_VERIFY_ALWAYS);
    use(&b, 0, path_a, 5);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(use(&b, 1, path_a, 5), 5);
        scribble(&b, path_a, 4);
        assert_int_equal(use(&b, 1, path_a, 5), 4);
    }
    fixture_close(&b);
}

static void a_changed_block_in_use_stays_with_its_sequences(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, r;
    fixture_open_verify(&b, 20, KV_VERIFY_ALWAYS);
    prompt_of(&p, path_a, 4);
    OK(lease(&e, &b, b.c[0], &q, &p, false));
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    scribble(&b, path_a, 1);
    OK(lease(&e, &b, b.c[1], &r, &p, false));
    assert_int_equal(r.n_block, 1);
    sound(&b);
    assert_true(kv_arena_valid(b.a, q.seq, q.gen));
    assert_int_equal(stat_of(&b).leased, 3);
    OK(publish(&e, &b, b.c[1], &r, &p, 4));
    OK(publish(&e, &b, b.c[0], &q, &p, 4)); /* it follows a block without a name, so it gets none either */
    sound(&b);
    OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    OK(kv_store_release(&e, b.s, b.c[1], r.seq, r.gen));
    sound(&b);
    assert_int_equal(stat_of(&b).cached, 4);
    assert_int_equal(use(&b, 2, path_a, 4), 4);
    fixture_close(&b);
}

static void publish_alone_trusts_cached_blocks(void **state)
{
    (void)state;
    struct fixture b;
    fixture_open_verify(&b, 20, KV_VERIFY_PUBLISH);
    use(&b, 0, path_a, 5);
    scribble(&b, path_a, 2);
    assert_int_equal(use(&b, 1, path_a, 5), 5);
    fixture_close(&b);
}

/* An adopted arena: what was compared before is not known, and parents may form a circle. */
static void compares_the_blocks_of_an_adopted_arena(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    fixture_open_verify(&b, 20, KV_VERIFY_FIRST);
    use(&b, 0, path_a, 5);
    assert_int_equal(use(&b, 1, path_a, 5), 5);
    struct kv_slot *first = kv_arena_slot(b.a, slot_with(&b, path_a, 0));
    memcpy(first->parent, kv_arena_slot(b.a, slot_with(&b, path_a, 3))->digest, KV_DIGEST);
    scribble(&b, path_a, 0);
    kv_store_free(b.s);
    struct kv_store_opts o = {.lease_ns = LEASE, .transfer_ns = LEASE, .verify = KV_VERIFY_FIRST};
    OK(kv_store_new(&e, &b.s, b.a, &o, 0));
    assert_int_equal(use(&b, 0, path_a, 5), 0);
    assert_int_equal(stat_of(&b).damaged, 5);
    fixture_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drops_a_changed_block_and_those_that_follow_it),
        cmocka_unit_test(compares_all_blocks_after_one_has_changed),
        cmocka_unit_test(always_compares_each_lease),
        cmocka_unit_test(a_changed_block_in_use_stays_with_its_sequences),
        cmocka_unit_test(publish_alone_trusts_cached_blocks),
        cmocka_unit_test(compares_the_blocks_of_an_adopted_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
