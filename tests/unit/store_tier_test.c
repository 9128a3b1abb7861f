/* A store with a file tier: leases of blocks on disk, and a disk that stalls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kv/store.h"

#include "unit/tier_build.h"

struct tier_events {
    int n_evicted, n_reports, n_seq;
    struct kv_seq_info seq;
    char text[512];
};

static void on_event(void *arg, const struct kv_event *n)
{
    struct tier_events *b = arg;
    b->n_evicted += n->kind == KV_EVENT_EVICTED;
    b->n_reports += n->kind == KV_EVENT_TIER;
    b->n_seq += n->kind == KV_EVENT_SEQ;
    if (n->kind == KV_EVENT_SEQ)
        b->seq = n->seq;
    if (n->kind == KV_EVENT_TIER)
        snprintf(b->text, sizeof b->text, "%s", n->text);
}

static struct kv_store *store_over(struct kv_arena *a, struct kv_tier *t, struct tier_events *b, uint32_t *c)
{
    struct err e = {0};
    struct kv_store *s;
    struct kv_store_opts o = {
        .lease_ns = 1000, .transfer_ns = 1000, .tier_ns = 100, .tier = t, .on_event = on_event, .event_arg = b};
    OK(kv_store_new(&e, &s, a, &o, 0));
    OK(kv_store_join(&e, s, c, 1, 1, 0));
    return s;
}

/* Waits until nothing is in flight. */
static void settle(struct kv_store *s, struct kv_tier *t)
{
    do
        kv_store_tier(s);
    while (kv_tier_wait(t, 10000));
}

static void write_out(struct kv_store *s, struct kv_tier *t)
{
    while (kv_store_flush(s))
        ;
    settle(s, t);
}

/* A lease whose blocks may have to be read first; every other call with wait. */
static void lease_settled(struct kv_store *s, struct kv_tier *t, struct tier_events *b, uint32_t c,
                          struct kv_seq_info *q, const struct prompt *p)
{
    static bool wait;
    struct err e = {0};
    wait = !wait;
    b->n_seq = 0;
    OK(kv_store_lease(&e, s, c, q, p->ids, p->n * 32, p->digests, p->n, wait));
    if (!q->pending)
        return;
    settle(s, t);
    assert_int_equal(b->n_seq, 1); /* one event, when all are read */
    assert_true(b->seq.seq == q->seq && b->seq.gen == q->gen && !b->seq.pending);
    *q = b->seq;
}

static uint64_t lease_and_compute(struct kv_store *s, struct kv_arena *a, struct kv_tier *t, struct tier_events *b,
                                  uint32_t c, const struct prompt *p)
{
    struct err e = {0};
    struct kv_seq_info q;
    uint32_t slot[DEPTH_MAX], out[DEPTH_MAX];
    uint64_t sum[DEPTH_MAX], got;
    int32_t table[DEPTH_MAX];
    lease_settled(s, t, b, c, &q, p);
    uint64_t hit = q.n_block;
    OK(kv_arena_table(&e, a, table, hit, q.seq, q.gen));
    for (uint64_t k = 0; k < hit; k++)
        assert_memory_equal(kv_arena_bytes(a, (uint64_t)table[k]), p->digests + k * KV_DIGEST, KV_DIGEST);
    OK(kv_store_reserve(&e, s, c, slot, &got, p->n - hit, false));
    for (uint64_t k = hit; k < p->n; k++) {
        memcpy(kv_arena_bytes(a, slot[k - hit]), p->digests + k * KV_DIGEST, KV_DIGEST);
        sum[k - hit] = kv_arena_sum(a, slot[k - hit]);
    }
    struct kv_publish u = {.seq = q.seq,
                           .gen = q.gen,
                           .at = hit,
                           .slot = slot,
                           .sum = sum,
                           .n_block = p->n - hit,
                           .digests = p->digests + hit * KV_DIGEST,
                           .ids = p->ids + hit * 32,
                           .tail = KV_NONE};
    OK(kv_store_publish(&e, s, c, out, &u));
    OK(kv_store_release(&e, s, c, q.seq, q.gen));
    OK(kv_store_check(&e, s));
    return hit;
}

/* Four slots of memory, nine records on disk: an evicted prompt is leased from disk, also after a restart. */
static void leases_blocks_of_the_file_tier(void **state)
{
    (void)state;
    struct kv_tier *t = tier(ROOM(9));
    struct kv_arena *a = small_arena(4);
    struct tier_events b = {0};
    struct prompt p, r;
    uint32_t c;
    prompt_of(&p, (const uint8_t[]){1, 1, 1, 1}, 4);
    prompt_of(&r, (const uint8_t[]){2, 2, 2}, 3);
    struct kv_store *s = store_over(a, t, &b, &c);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 0);
    write_out(s, t);
    assert_int_equal(stat_of(t).used, 4);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &r), 0);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 4);
    assert_true(b.n_evicted == 0 && stat_of(t).used == 7); /* all are cached in memory or on disk */
    settle(s, t);
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
    poke(4096 + 2 * RECORD + 4096 + 100, 1);
    t = tier(ROOM(9));
    a = small_arena(8);
    s = store_over(a, t, &b, &c);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p),
                     2); /* the third is damaged: it and those after it are computed */
    assert_true(b.n_reports == 1 && b.n_evicted == 1 && strstr(b.text, "damaged"));
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 4);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &r), 3);
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* Two sequences wait for a block of a stalled disk: other sequences continue; after the time limit one of the two
 * computes the block; no other read is started until the disk has completed one. */
static void ends_reads_of_a_stalled_disk(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier *t = tier(ROOM(9));
    struct kv_arena *a = small_arena(8);
    struct tier_events b = {0};
    struct prompt p, r;
    struct kv_seq_info q, v, u;
    uint32_t c, d;
    prompt_of(&p, (const uint8_t[]){1, 1, 1, 1}, 4);
    prompt_of(&r, (const uint8_t[]){2, 2, 2}, 3);
    struct kv_store *s = store_over(a, t, &b, &c);
    lease_and_compute(s, a, t, &b, c, &p);
    write_out(s, t);
    kv_store_free(s);
    kv_arena_free(a);
    a = small_arena(8);
    s = store_over(a, t, &b, &c);
    OK(kv_store_join(&e, s, &d, 2, 2, 0));
    kv_store_tick(s, 10);
    atomic_store(&stalled, true);
    OK(kv_store_lease(&e, s, c, &q, p.ids, p.n * 32, p.digests, p.n, true));
    OK(kv_store_lease(&e, s, d, &v, p.ids, p.n * 32, p.digests, p.n, true));
    assert_true(q.pending && v.pending && q.n_block == 0);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &r), 0); /* another prompt is computed meanwhile */
    kv_store_tier(s);
    assert_int_equal(kv_store_tick(s, 50), 110);
    b.n_seq = 0;
    kv_store_tick(s, 110);
    /* The first is to compute it, the second waits for that. */
    assert_true(b.n_seq == 1 && b.seq.seq == q.seq && !b.seq.pending);
    assert_non_null(strstr(b.text, "count as missing"));
    OK(kv_store_release(&e, s, c, q.seq, q.gen)); /* its owner does not: the second is to compute it */
    assert_true(b.n_seq == 2 && b.seq.seq == v.seq && !b.seq.pending);
    OK(kv_store_release(&e, s, d, v.seq, v.gen));
    OK(kv_store_lease(&e, s, c, &u, p.ids, p.n * 32, p.digests, p.n, true));
    assert_true(!u.pending && u.n_block == 0);
    OK(kv_store_release(&e, s, c, u.seq, u.gen));
    OK(kv_store_check(&e, s));
    atomic_store(&stalled, false);
    settle(s, t);
    assert_non_null(strstr(b.text, "completed a read"));
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 4);
    OK(kv_store_check(&e, s));
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* Sequences that end while their block is read, a block that is published while it is read, and one for which no slot
 * is free when it is read. */
static void a_read_that_is_no_longer_needed(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier *t = tier(ROOM(9));
    struct kv_arena *a = small_arena(4);
    struct tier_events b = {0};
    struct prompt p, r;
    struct kv_seq_info q, v;
    uint32_t c, d, slot[4], out[4];
    uint64_t got;
    prompt_of(&p, (const uint8_t[]){1, 1, 1, 1}, 4);
    prompt_of(&r, (const uint8_t[]){2, 2, 2, 2}, 4);
    struct kv_store *s = store_over(a, t, &b, &c);
    OK(kv_store_join(&e, s, &d, 2, 2, 0));
    lease_and_compute(s, a, t, &b, c, &p);
    write_out(s, t);
    lease_and_compute(s, a, t, &b, c, &r); /* p is on disk only */
    write_out(s, t);
    atomic_store(&stalled, true);
    OK(kv_store_lease(&e, s, c, &q, p.ids, p.n * 32, p.digests, p.n, true));
    assert_true(q.pending);
    OK(kv_store_release(&e, s, c, q.seq, q.gen));
    atomic_store(&stalled, false);
    settle(s, t);
    OK(kv_store_check(&e, s));
    struct kv_store_stat st;
    kv_store_stat(s, &st);
    /* r is still cached: the read block was not loaded, since no sequence waited for it. */
    assert_true(st.cached == 4 && st.evicted == 4);

    atomic_store(&stalled, true);
    OK(kv_store_lease(&e, s, c, &q, p.ids, p.n * 32, p.digests, p.n, true));
    OK(kv_store_lease(&e, s, d, &v, NULL, 0, NULL, 0, false));
    OK(kv_store_reserve(&e, s, d, slot, &got, 1, false));
    memcpy(kv_arena_bytes(a, slot[0]), p.digests, KV_DIGEST);
    uint64_t sum = kv_arena_sum(a, slot[0]);
    struct kv_publish u = {.seq = v.seq,
                           .gen = v.gen,
                           .slot = slot,
                           .sum = &sum,
                           .n_block = 1,
                           .digests = p.digests,
                           .ids = p.ids,
                           .tail = KV_NONE};
    b.n_seq = 0;
    OK(kv_store_publish(&e, s, d, out, &u)); /* the first block; the read of the second starts */
    assert_int_equal(b.n_seq, 0);
    OK(kv_store_reserve(&e, s, d, slot, &got, 3, false)); /* the rest of the memory */
    atomic_store(&stalled, false);
    settle(s, t);
    assert_true(b.n_seq == 1 && b.seq.seq == q.seq && b.seq.n_block == 1 && !b.seq.pending);
    OK(kv_store_check(&e, s));
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* More blocks are evicted than the queue of a stalled disk has room for: one report, and no cached block is lost. */
static void drops_blocks_if_the_write_queue_is_full(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier *t = tier(ROOM(40000));
    struct kv_arena *a = small_arena(4);
    struct tier_events b = {0};
    struct prompt p;
    uint32_t c, slot[4];
    uint64_t got;
    struct kv_store *s = store_over(a, t, &b, &c);
    atomic_store(&stalled, true);
    uint32_t n = KV_TIER_QUEUE_BYTES / DATA + 10;
    for (uint32_t k = 0; k < n; k++) {
        prompt_of(&p, (const uint8_t[]){3}, 1);
        memcpy(p.digests + 20, &k, sizeof k);
        lease_and_compute(s, a, t, &b, c, &p);
    }
    OK(kv_store_reserve(&e, s, c, slot, &got, 4, false));
    assert_true(b.n_reports == 1 && strstr(b.text, "some are not stored"));
    assert_int_equal(b.n_evicted, 10);
    assert_int_equal(stat_of(t).used, n - 10);
    atomic_store(&stalled, false);
    settle(s, t);
    OK(kv_store_check(&e, s));
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* ---- random runs ---- */

static uint64_t dice_state;
static uint64_t dice(uint64_t n)
{
    dice_state ^= dice_state << 13;
    dice_state ^= dice_state >> 7;
    dice_state ^= dice_state << 17;
    return dice_state % n;
}

#define N_HELD 10
#define N_CLIENT 3

struct run {
    struct kv_arena *a;
    struct kv_tier *t;
    struct kv_store *s;
    uint64_t now;
    uint32_t client[N_CLIENT];
    struct {
        bool used;
        uint32_t c;
        struct kv_seq_info q;
        struct prompt p;
    } h[N_HELD];
};

static void run_on_event(void *arg, const struct kv_event *n)
{
    struct run *r = arg;
    for (int i = 0; n->kind == KV_EVENT_SEQ && i < N_HELD; i++)
        if (r->h[i].used && r->h[i].q.seq == n->seq.seq && r->h[i].q.gen == n->seq.gen) {
            assert_true(r->h[i].q.pending && n->seq.n_block >= r->h[i].q.n_block);
            r->h[i].q = n->seq;
        }
}

/* The blocks of each sequence match their digests, whether computed or read. */
static void run_check(struct run *r)
{
    struct err e = {0};
    int32_t table[DEPTH_MAX];
    OK(kv_store_check(&e, r->s));
    for (int i = 0; i < N_HELD; i++) {
        if (!r->h[i].used)
            continue;
        OK(kv_arena_table(&e, r->a, table, r->h[i].q.n_block, r->h[i].q.seq, r->h[i].q.gen));
        for (uint64_t k = 0; k < r->h[i].q.n_block; k++)
            assert_memory_equal(kv_arena_bytes(r->a, (uint64_t)table[k]), r->h[i].p.digests + k * KV_DIGEST, KV_DIGEST);
    }
}

static void run_lease(struct run *r, int i)
{
    struct err e = {0};
    uint8_t p[6];
    for (int d = 0; d < 6; d++)
        p[d] = (uint8_t)dice(2);
    prompt_of(&r->h[i].p, p, 1 + dice(6));
    r->h[i].c = (uint32_t)dice(N_CLIENT);
    OK(kv_store_lease(&e, r->s, r->client[r->h[i].c], &r->h[i].q, r->h[i].p.ids, r->h[i].p.n * 32, r->h[i].p.digests,
                      r->h[i].p.n, dice(2)));
    r->h[i].used = true;
}

static void run_publish(struct run *r, int i)
{
    struct err e = {0};
    uint32_t slot, out, c = r->client[r->h[i].c];
    uint64_t got, at = r->h[i].q.n_block;
    if (r->h[i].q.pending || at == r->h[i].p.n || kv_store_reserve(&e, r->s, c, &slot, &got, 1, false))
        return;
    memset(kv_arena_bytes(r->a, slot), 0, kv_arena_layout(r->a)->slot_bytes);
    memcpy(kv_arena_bytes(r->a, slot), r->h[i].p.digests + at * KV_DIGEST, KV_DIGEST);
    uint64_t sum = kv_arena_sum(r->a, slot);
    struct kv_publish u = {.seq = r->h[i].q.seq,
                           .gen = r->h[i].q.gen,
                           .at = at,
                           .slot = &slot,
                           .sum = &sum,
                           .n_block = 1,
                           .digests = r->h[i].p.digests + at * KV_DIGEST,
                           .ids = r->h[i].p.ids + at * 32,
                           .tail = KV_NONE};
    OK(kv_store_publish(&e, r->s, c, &out, &u));
    r->h[i].q.n_block++;
    if (out != slot)
        OK(kv_store_release_slots(&e, r->s, c, &slot, 1));
}

static void run_end_client(struct run *r, uint32_t c)
{
    struct err e = {0};
    for (int i = 0; i < N_HELD; i++)
        r->h[i].used = r->h[i].used && r->h[i].c != c;
    kv_store_leave(r->s, r->client[c], r->now);
    OK(kv_store_join(&e, r->s, &r->client[c], 1, 1, r->now));
}

static void run_one(struct run *r)
{
    struct err e = {0};
    uint64_t what = dice(100);
    int i = (int)dice(N_HELD);
    if (what < 30 && !r->h[i].used) {
        run_lease(r, i);
    } else if (what < 60 && r->h[i].used) {
        run_publish(r, i);
    } else if (what < 75 && r->h[i].used) {
        OK(kv_store_release(&e, r->s, r->client[r->h[i].c], r->h[i].q.seq, r->h[i].q.gen));
        r->h[i].used = false;
    } else if (what < 90) {
        kv_store_flush(r->s);
        if (!atomic_load(&stalled) && dice(2)) /* otherwise a slow machine would have no hits */
            settle(r->s, r->t);
        kv_store_tier(r->s);
    } else if (what < 94) {
        atomic_store(&stalled, dice(3) == 0);
    } else if (what < 96) {
        run_end_client(r, (uint32_t)dice(N_CLIENT));
    } else {
        r->now += dice(60);
        for (int c = 0; c < N_CLIENT; c++)
            OK(kv_store_renew(&e, r->s, r->client[c], r->now));
        kv_store_tick(r->s, r->now);
    }
}

/* A small memory, a small file, and a disk that stalls at random: blocks are read unchanged, and after all completions
 * no sequence waits for the disk. */
static void random_runs_with_a_stalling_disk(void **state)
{
    (void)state;
    struct err e = {0};
    struct run *r = calloc(1, sizeof *r);
    uint64_t hits = 0;
    for (uint64_t run = 1; run <= 4; run++) {
        memset(r, 0, sizeof *r);
        dice_state = run * 0x9e3779b97f4a7c15u;
        unlink(path);
        r->t = tier(ROOM(40));
        r->a = small_arena(20);
        struct kv_store_opts o = {.lease_ns = 1000,
                                  .transfer_ns = 1000,
                                  .tier_ns = 100,
                                  .verify = true,
                                  .tier = r->t,
                                  .on_event = run_on_event,
                                  .event_arg = r};
        OK(kv_store_new(&e, &r->s, r->a, &o, 0));
        for (int c = 0; c < N_CLIENT; c++)
            OK(kv_store_join(&e, r->s, &r->client[c], 1, 1, 0));
        for (int i = 0; i < 3000; i++) {
            run_one(r);
            run_check(r);
        }
        atomic_store(&stalled, false);
        for (int i = 0; i < 100; i++)
            settle(r->s, r->t);
        kv_store_tick(r->s, r->now);
        for (uint32_t c = 0; c < N_CLIENT; c++)
            run_end_client(r, c);
        run_check(r);
        struct kv_store_stat st;
        kv_store_stat(r->s, &st);
        assert_true(!st.leased && !st.reserved && !st.seqs && !st.waiting && !st.disk_bad);
        hits += st.disk_hits;
        kv_store_free(r->s);
        kv_arena_free(r->a);
        kv_tier_free(r->t);
    }
    assert_true(hits > 200);
    free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(leases_blocks_of_the_file_tier, setup, teardown),
        cmocka_unit_test_setup_teardown(ends_reads_of_a_stalled_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_that_is_no_longer_needed, setup, teardown),
        cmocka_unit_test_setup_teardown(drops_blocks_if_the_write_queue_is_full, setup, teardown),
        cmocka_unit_test_setup_teardown(random_runs_with_a_stalling_disk, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
