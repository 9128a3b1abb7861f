/* The contract of lib/kv/store.h: leases, publication, transfer, limits, expiry of leases, adoption. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/store_build.h"

static void leases_the_longest_cached_prefix(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p, r;
    struct kv_seq_info q, other;
    fixture_open(&b, 16);
    prompt_of(&p, path_a, 4);
    prompt_of(&r, path_b, 4);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    assert_true(q.n_block == 0 && !q.pending);
    OK(publish(&e, &b, b.c[0], &q, &p, 4));
    assert_int_equal(b.h.n_stored, 4);
    OK(lease(&e, &b, b.c[1], &other, &r, true));
    assert_int_equal(other.n_block, 2); /* the prompts differ after two blocks */
    holds_prefix(&b, &other, &r);
    OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    struct kv_store_stat t = stat_of(&b);
    assert_true(t.leased == 2 && t.cached == 2 && t.free == 12 && t.hit_blocks == 2);
    assert_false(kv_arena_valid(b.a, q.seq, q.gen));
    sound(&b);
    fixture_close(&b);
}

/* Another prompt with the digests of the first is no hit, since the ids differ, and its blocks are not indexed. */
static void compares_ids_and_not_only_digests(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p, r;
    struct kv_seq_info q, other;
    fixture_open(&b, 16);
    prompt_of(&p, path_a, 3);
    prompt_of(&r, path_b, 3);
    memcpy(r.digests, p.digests, sizeof p.digests);
    r.ids[5] ^= 1;
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    OK(lease(&e, &b, b.c[1], &other, &r, true));
    assert_int_equal(other.n_block, 0);
    OK(publish(&e, &b, b.c[1], &other, &r, 3));
    assert_true(stat_of(&b).published == 3 && stat_of(&b).duplicate == 0);
    sound(&b);
    OK(kv_store_release(&e, b.s, b.c[1], other.seq, other.gen));
    assert_int_equal(stat_of(&b).free, 13);
    sound(&b);
    fixture_close(&b);
}

static void keeps_the_first_of_two_equal_blocks(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, r;
    int32_t t1[3], t2[3];
    fixture_open(&b, 16);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, false));
    OK(lease(&e, &b, b.c[1], &r, &p, false)); /* does not wait: both compute it */
    assert_false(r.pending);
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    OK(publish(&e, &b, b.c[1], &r, &p, 3));
    OK(kv_arena_table(&e, b.a, t1, 3, q.seq, q.gen));
    OK(kv_arena_table(&e, b.a, t2, 3, r.seq, r.gen));
    assert_memory_equal(t1, t2, sizeof t1);
    assert_true(stat_of(&b).duplicate == 3 && stat_of(&b).leased == 3 && stat_of(&b).free == 13);
    sound(&b);
    fixture_close(&b);
}

static void refuses_wrong_publications(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q;
    uint32_t slot[2], out[2];
    uint64_t got, sum[2];
    fixture_open(&b, 16);
    prompt_of(&p, path_a, 2);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 2, false));
    for (int k = 0; k < 2; k++) {
        write_block(&b, slot[k], p.digests + 32 * k);
        sum[k] = kv_arena_sum(b.a, slot[k]);
    }
    struct kv_publish u = {.seq = q.seq,
                           .gen = q.gen,
                           .slot = slot,
                           .sum = sum,
                           .n_block = 2,
                           .digests = p.digests,
                           .ids = p.ids,
                           .tail = KV_NONE},
                      bad;
    IS_NO(kv_store_publish(&e, b.s, b.c[1], out, &u), "does not own sequence");
    assert_int_equal(kv_store_why(b.s), KV_WHY_STALE);
    bad = u;
    bad.gen++;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "does not own sequence");
    bad = u;
    bad.at = 1;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "the next one is 0");
    bad = u;
    uint32_t twice[2] = {slot[0], slot[0]}, foreign[2] = {slot[0], 15}, wild[2] = {slot[0], 1u << 31};
    bad.slot = twice;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "occurs twice");
    bad.slot = foreign;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "not reserved for this client");
    bad.slot = wild;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "not reserved for this client");
    kv_arena_bytes(b.a, slot[1])[9]++;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &u), "block 1");
    kv_arena_bytes(b.a, slot[1])[9]--;
    assert_int_equal(b.h.n_stored, 0); /* all or nothing */
    OK(kv_store_publish(&e, b.s, b.c[0], out, &u));
    sound(&b);
    fixture_close(&b);
}

/* Twenty sequences wait for the blocks that another one computes, and receive an event. */
static void one_sequence_computes_a_block_for_all(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, w[20];
    fixture_open(&b, 16);
    prompt_of(&p, path_a, 5);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    for (int i = 0; i < 20; i++) {
        OK(lease(&e, &b, b.c[1 + i % 3], &w[i], &p, true));
        assert_true(w[i].pending);
    }
    OK(publish(&e, &b, b.c[0], &q, &p, 2));
    assert_int_equal(b.h.n_seq, 20);
    for (int i = 0; i < 20; i++)
        assert_true(b.h.seq[i].seq == w[i].seq && b.h.seq[i].n_block == 2 && b.h.seq[i].pending);
    b.h.n_seq = 0;
    sound(&b);
    kv_store_leave(b.s, b.c[0], 1); /* before the prompt is complete: the first waiting sequence continues */
    assert_int_equal(b.h.n_seq, 1);
    assert_true(b.h.seq[0].seq == w[0].seq && !b.h.seq[0].pending && b.h.seq_client[0] == b.c[1]);
    w[0] = b.h.seq[0];
    b.h.n_seq = 0;
    OK(publish(&e, &b, b.c[1], &w[0], &p, 5));
    assert_int_equal(b.h.n_seq, 19);
    for (int i = 0; i < 19; i++)
        assert_true(b.h.seq[i].n_block == 5 && !b.h.seq[i].pending);
    assert_true(stat_of(&b).published == 5 && stat_of(&b).waiting == 0);
    sound(&b);
    fixture_close(&b);
}

static void transfers_a_sequence(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, h, t;
    uint32_t slot, out;
    uint64_t got, sum;
    fixture_open(&b, 8);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 2));
    OK(kv_store_reserve(&e, b.s, b.c[0], &slot, &got, 1, false));
    struct kv_publish tail = {.seq = q.seq, .gen = q.gen, .at = 2, .ids = p.ids + 64, .n_tail = 5, .tail = slot};
    OK(kv_store_publish(&e, b.s, b.c[0], NULL, &tail));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 5));
    assert_true(h.gen > q.gen && h.n_block == 2 && h.tail == slot && h.n_tail == 5);
    IS_NO(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen), "does not own sequence");
    IS_NO(kv_store_transfer_in(&e, b.s, b.c[1], &t, q.seq, q.gen), "is not in a transfer");
    kv_store_leave(b.s, b.c[0], 6); /* the sender may end now */
    OK(kv_store_transfer_in(&e, b.s, b.c[1], &t, h.seq, h.gen));
    IS_NO(kv_store_transfer_in(&e, b.s, b.c[2], &q, h.seq, h.gen), "is not in a transfer");
    assert_int_equal(kv_store_why(b.s), KV_WHY_STALE);
    holds_prefix(&b, &t, &p);
    /* Decode fills the tail, which becomes an indexed block. */
    write_block(&b, slot, p.digests + 64);
    sum = kv_arena_sum(b.a, slot);
    struct kv_publish full = {.seq = t.seq,
                              .gen = t.gen,
                              .at = 2,
                              .slot = &slot,
                              .sum = &sum,
                              .n_block = 1,
                              .digests = p.digests + 64,
                              .ids = p.ids + 64,
                              .tail = KV_NONE};
    OK(kv_store_publish(&e, b.s, b.c[1], &out, &full));
    assert_int_equal(out, slot);
    assert_true(stat_of(&b).leased == 3 && stat_of(&b).published == 3);
    sound(&b);
    OK(kv_store_release(&e, b.s, b.c[1], t.seq, t.gen));
    OK(lease(&e, &b, b.c[2], &q, &p, true));
    assert_int_equal(q.n_block, 3); /* the next request leases the block that decode published */
    sound(&b);
    fixture_close(&b);
}

static void a_transfer_ends_after_its_time(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, h;
    fixture_open(&b, 8);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 2 * S));
    for (int i = 0; i < 4; i++)
        OK(kv_store_renew(&e, b.s, b.c[i], 9 * S));
    assert_int_equal(kv_store_tick(b.s, 11 * S), 12 * S);
    assert_int_equal(stat_of(&b).leased, 3);
    kv_store_tick(b.s, 12 * S);
    assert_true(stat_of(&b).leased == 0 && stat_of(&b).cached == 3);
    IS_NO(kv_store_transfer_in(&e, b.s, b.c[1], &q, h.seq, h.gen), "is not in a transfer");
    sound(&b);
    fixture_close(&b);
}

/* The sender ends a transfer, or any client that has the handle. */
static void ends_a_transfer_by_sender_or_handle(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, h, t;
    uint32_t slot;
    uint64_t got;
    fixture_open(&b, 8);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    OK(kv_store_reserve(&e, b.s, b.c[0], &slot, &got, 1, false));
    struct kv_publish tail = {.seq = q.seq, .gen = q.gen, .at = 3, .ids = p.ids, .n_tail = 5, .tail = slot};
    OK(kv_store_publish(&e, b.s, b.c[0], NULL, &tail));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 1 * S));
    IS_NO(kv_store_release(&e, b.s, b.c[1], h.seq, h.gen), "does not own sequence"); /* it is not the sender */
    OK(kv_store_release(&e, b.s, b.c[0], h.seq, h.gen));
    assert_true(stat_of(&b).leased == 0 && stat_of(&b).cached == 3 && stat_of(&b).free == 5);
    IS_NO(kv_store_transfer_in(&e, b.s, b.c[1], &t, h.seq, h.gen), "is not in a transfer");
    sound(&b);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    IS_NO(end_transfer(&e, &b, &q, HANDLE_BYTES), "is not in a transfer");
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 41 * S));
    IS_NO(end_transfer(&e, &b, &h, KV_HANDLE_BYTES - 1), "a transfer handle of 15 bytes: it must have at least 16");
    assert_int_equal(kv_store_why(b.s), KV_WHY_REFUSED);
    assert_int_equal(stat_of(&b).leased, 3);
    OK(end_transfer(&e, &b, &h, HANDLE_BYTES));
    assert_true(stat_of(&b).leased == 0 && stat_of(&b).cached == 3);
    IS_NO(end_transfer(&e, &b, &h, HANDLE_BYTES), "is not in a transfer");
    assert_int_equal(kv_store_why(b.s), KV_WHY_STALE);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 41 * S));
    OK(end_transfer(&e, &b, &h, KV_HANDLE_BYTES));
    sound(&b);
    /* After the transfer the sender cannot release it; and a new client with the number of the sender cannot either. */
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 41 * S));
    OK(kv_store_transfer_in(&e, b.s, b.c[1], &t, h.seq, h.gen));
    IS_NO(kv_store_release(&e, b.s, b.c[0], h.seq, h.gen), "does not own sequence");
    IS_NO(kv_store_release(&e, b.s, b.c[0], t.seq, t.gen), "does not own sequence");
    OK(kv_store_transfer_out(&e, b.s, b.c[1], &h, t.seq, t.gen, 41 * S));
    kv_store_leave(b.s, b.c[1], 41 * S);
    uint32_t again;
    OK(kv_store_join(&e, b.s, &again, 1, 1, 41 * S));
    assert_int_equal(again, b.c[1]);
    IS_NO(kv_store_release(&e, b.s, again, h.seq, h.gen), "does not own sequence");
    OK(kv_store_transfer_in(&e, b.s, b.c[2], &t, h.seq, h.gen));
    sound(&b);
    fixture_close(&b);
}

static void distinguishes_never_from_not_now(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q;
    uint32_t slot[16];
    uint64_t got;
    fixture_open(&b, 8);
    prompt_of(&p, path_a, 8);
    IS_NO(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 9, false), "never fit");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NEVER);
    IS_NO(kv_store_lease(&e, b.s, b.c[0], &q, p.ids, 8 * 32 + 1, p.digests, 8, true), "never fit");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NEVER);
    OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 5, false));
    IS_NO(kv_store_reserve(&e, b.s, b.c[1], slot + 5, &got, 4, false), "full: 4 blocks requested, 3 of 8");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NOT_NOW);
    OK(kv_store_reserve(&e, b.s, b.c[1], slot + 5, &got, 4, true));
    assert_int_equal(got, 3);
    IS_NO(kv_store_reserve(&e, b.s, b.c[1], slot + 8, &got, 1, true), "full");
    OK(kv_store_release_slots(&e, b.s, b.c[0], slot, 5));
    IS_NO(kv_store_release_slots(&e, b.s, b.c[0], slot, 1), "not reserved for this client");
    assert_int_equal(stat_of(&b).free, 5);
    sound(&b);
    fixture_close(&b);
}

/* A stopped client loses its sequences when its lease ends; its writable slots are not reused until it has left. */
static void quarantines_slots_of_an_expired_client(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q;
    uint32_t slot[3];
    uint64_t got;
    fixture_open(&b, 8);
    prompt_of(&p, path_a, 2);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 2));
    OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 3, false));
    struct kv_publish tail = {.seq = q.seq, .gen = q.gen, .at = 2, .ids = p.ids, .n_tail = 3, .tail = slot[0]};
    OK(kv_store_publish(&e, b.s, b.c[0], NULL, &tail));
    for (int i = 1; i < 4; i++)
        OK(kv_store_renew(&e, b.s, b.c[i], 5 * S));
    kv_store_tick(b.s, LEASE - 1);
    assert_true(kv_arena_valid(b.a, q.seq, q.gen));
    kv_store_tick(b.s, LEASE);
    assert_true(b.h.n_expired == 1 && b.h.expired == b.c[0]);
    assert_false(kv_arena_valid(b.a, q.seq, q.gen));
    struct kv_store_stat t = stat_of(&b);
    assert_true(t.quarantined == 3 && t.cached == 2 && t.free == 3 && !t.leased && !t.reserved);
    sound(&b);
    uint32_t all[8];
    OK(kv_store_reserve(&e, b.s, b.c[1], all, &got, 5, false));
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++)
            assert_int_not_equal(all[i], slot[k]);
    IS_NO(kv_store_renew(&e, b.s, b.c[0], LEASE + 1), "lease has ended"); /* the client continues */
    assert_int_equal(kv_store_why(b.s), KV_WHY_EXPIRED);
    IS_NO(kv_store_release_slots(&e, b.s, b.c[0], slot + 1, 1), "lease has ended");
    kv_store_leave(b.s, b.c[0], LEASE + 2);
    assert_int_equal(stat_of(&b).quarantined, 0);
    assert_int_equal(stat_of(&b).free, 3);
    sound(&b);
    fixture_close(&b);
}

/* A store that adopts the arena of a killed one knows its clients, their sequences and slots. */
static void a_new_store_adopts_the_arena(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt p;
    struct kv_seq_info q, h, cached;
    uint32_t slot[2], c;
    uint64_t got, id, key, start;
    int64_t pid;
    fixture_open(&b, 16);
    prompt_of(&p, path_a, 4);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 4));
    OK(lease(&e, &b, b.c[0], &h, &p, true));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, h.seq, h.gen, 1));
    OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 2, false));
    prompt_of(&p, path_c, 2);
    OK(lease(&e, &b, b.c[1], &cached, &p, true));
    OK(publish(&e, &b, b.c[1], &cached, &p, 2));
    OK(kv_store_release(&e, b.s, b.c[1], cached.seq, cached.gen));
    struct kv_store_stat before = stat_of(&b), after;
    kv_store_identity(b.s, b.c[0], &id, &key);
    kv_store_free(b.s);
    struct kv_store_opts o = {
        .lease_ns = LEASE, .transfer_ns = LEASE, .verify = true, .on_event = on_event, .event_arg = &b.h};
    OK(kv_store_new(&e, &b.s, b.a, &o, 100));
    sound(&b);
    after = stat_of(&b);
    assert_true(before.free == after.free && before.cached == after.cached && before.leased == after.leased &&
                before.reserved == after.reserved && before.seqs == after.seqs && before.clients == after.clients);
    int n_absent = 0;
    for (c = KV_NONE; kv_store_absent(b.s, &c, &pid, &start); n_absent++)
        assert_true(pid >= 100 && pid < 104 && start == 7);
    assert_int_equal(n_absent, 4);
    IS_NO(kv_store_rejoin(&e, b.s, &c, id, key + 1, 101), "does not know the client");
    OK(kv_store_rejoin(&e, b.s, &c, id, key, 101));
    assert_int_equal(c, b.c[0]);
    OK(kv_store_release_slots(&e, b.s, c, slot, 1));
    assert_true(kv_arena_valid(b.a, q.seq, q.gen));
    OK(kv_store_release(&e, b.s, c, q.seq, q.gen));
    OK(kv_store_transfer_in(&e, b.s, c, &h, h.seq, h.gen));
    prompt_of(&p, path_a, 4);
    holds_prefix(&b, &h, &p);
    OK(lease(&e, &b, c, &q, &p, true));
    assert_int_equal(q.n_block, 4);
    sound(&b);
    /* Clients that do not connect again expire after a lease; their slots are quarantined until their process has
     * ended. */
    OK(kv_store_renew(&e, b.s, c, LEASE));
    kv_store_tick(b.s, 100 + LEASE);
    assert_int_equal(b.h.n_expired, 3);
    for (c = KV_NONE; kv_store_absent(b.s, &c, &pid, &start);)
        kv_store_leave(b.s, c, 101 + LEASE);
    assert_int_equal(stat_of(&b).clients, 1);
    sound(&b);
    fixture_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leases_the_longest_cached_prefix),
        cmocka_unit_test(compares_ids_and_not_only_digests),
        cmocka_unit_test(keeps_the_first_of_two_equal_blocks),
        cmocka_unit_test(refuses_wrong_publications),
        cmocka_unit_test(one_sequence_computes_a_block_for_all),
        cmocka_unit_test(transfers_a_sequence),
        cmocka_unit_test(a_transfer_ends_after_its_time),
        cmocka_unit_test(ends_a_transfer_by_sender_or_handle),
        cmocka_unit_test(distinguishes_never_from_not_now),
        cmocka_unit_test(quarantines_slots_of_an_expired_client),
        cmocka_unit_test(a_new_store_adopts_the_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
