/*
 * The store against what lib/kv/store.h promises: single cases, and long random runs beside a model that knows only
 * sets: which slot is whose, which names are there. kv_store_check walks the store itself after each operation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <unistd.h>

#include "kv/store.h"

#include "unit/kv_build.h"

#define S 1000000000ull
#define LEASE (10ull * S)

struct heard {
    struct kv_seq_info seq[64];
    uint32_t seq_client[64];
    int n_seq, n_expired, n_stored, n_evicted;
    uint32_t expired;
    uint8_t evicted[4096][KV_DIGEST];
};

static void hear(void *arg, const struct kv_news *n)
{
    struct heard *h = arg;
    if (n->kind == KV_NEWS_SEQ && h->n_seq < 64) {
        h->seq_client[h->n_seq] = n->client;
        h->seq[h->n_seq++] = n->seq;
    }
    if (n->kind == KV_NEWS_EXPIRED) {
        h->n_expired++;
        h->expired = n->client;
    }
    h->n_stored += n->kind == KV_NEWS_STORED;
    if (n->kind == KV_NEWS_EVICTED)
        memcpy(h->evicted[h->n_evicted++ % 4096], n->digest, KV_DIGEST);
}

struct box {
    struct kv_arena *a;
    struct kv_store *s;
    struct heard h;
    uint32_t c[8];
};

static void box_open(struct box *b, uint64_t n_slot)
{
    struct err e = {0};
    memset(b, 0, sizeof *b);
    b->a = small_arena(n_slot);
    struct kv_store_opts o = {.lease_ns = LEASE, .handed_ns = LEASE, .verify = true, .tell = hear, .tell_arg = &b->h};
    OK(kv_store_new(&e, &b->s, b->a, &o, 0));
    for (int i = 0; i < 4; i++)
        OK(kv_store_join(&e, b->s, &b->c[i], 100 + i, 7, 0));
}

static void box_close(struct box *b)
{
    kv_store_free(b->s);
    kv_arena_free(b->a);
}

static void sound(struct box *b)
{
    struct err e = {0};
    OK(kv_store_check(&e, b->s));
}

/* What a slot of a block holds in these tests: its name, all over. */
static void write_block(const struct box *b, uint32_t slot, const uint8_t *digest)
{
    uint8_t *p = kv_arena_bytes(b->a, slot);
    for (size_t i = 0; i < kv_arena_layout(b->a)->slot_bytes; i += KV_DIGEST)
        memcpy(p + i, digest, KV_DIGEST);
}

/* Computes blocks from the end of the sequence up to block `to` of the prompt, and publishes them. */
static int publish(struct err *e, struct box *b, uint32_t client, struct kv_seq_info *q, const struct prompt *p,
                   uint64_t to)
{
    uint64_t n = to - q->n_block, got;
    uint32_t slot[DEPTH_MAX], out[DEPTH_MAX];
    uint64_t sum[DEPTH_MAX];
    int rc = kv_store_credit(e, b->s, client, slot, &got, n, false);
    if (rc)
        return rc;
    for (uint64_t k = 0; k < n; k++) {
        write_block(b, slot[k], p->digests + (q->n_block + k) * KV_DIGEST);
        sum[k] = kv_arena_sum(b->a, slot[k]);
    }
    struct kv_publish u = {.seq = q->seq,
                           .gen = q->gen,
                           .at = q->n_block,
                           .slot = slot,
                           .sum = sum,
                           .n_block = n,
                           .digests = p->digests + q->n_block * KV_DIGEST,
                           .ids = p->ids + q->n_block * KERN_KV_BLOCK,
                           .tail = KV_NONE};
    rc = kv_store_publish(e, b->s, client, out, &u);
    uint32_t back[DEPTH_MAX];
    uint64_t n_back = 0;
    for (uint64_t k = 0; k < n; k++)
        if (rc || out[k] != slot[k])
            back[n_back++] = slot[k];
    struct err f = {0};
    kv_store_uncredit(&f, b->s, client, back, n_back);
    if (!rc)
        q->n_block += n;
    return rc;
}

static int lease(struct err *e, struct box *b, uint32_t client, struct kv_seq_info *q, const struct prompt *p,
                 bool wait)
{
    return kv_store_lease(e, b->s, client, q, p->ids, p->n * KERN_KV_BLOCK, p->digests, p->n, wait);
}

static void holds_prefix(const struct box *b, const struct kv_seq_info *q, const struct prompt *p)
{
    struct err e = {0};
    int32_t table[DEPTH_MAX];
    OK(kv_arena_table(&e, b->a, table, q->n_block, q->seq, q->gen));
    for (uint64_t k = 0; k < q->n_block; k++)
        assert_memory_equal(kv_arena_bytes(b->a, (uint64_t)table[k]) + KV_DIGEST, p->digests + k * KV_DIGEST,
                            KV_DIGEST);
}

static struct kv_store_stat stat_of(const struct box *b)
{
    struct kv_store_stat t;
    kv_store_stat(b->s, &t);
    assert_int_equal(t.free + t.cached + t.leased + t.quarantined + t.credited, t.total);
    return t;
}

static const uint8_t path_a[8] = {1, 1, 1, 1, 1, 1, 1, 1}, path_b[8] = {1, 1, 2, 2, 2, 2, 2, 2}, path_c[8] = {3};

static void a_prefix_is_found_again(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p, r;
    struct kv_seq_info q, other;
    box_open(&b, 16);
    prompt_of(&p, path_a, 4);
    prompt_of(&r, path_b, 4);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    assert_true(q.n_block == 0 && !q.pending);
    OK(publish(&e, &b, b.c[0], &q, &p, 4));
    assert_int_equal(b.h.n_stored, 4);
    OK(lease(&e, &b, b.c[1], &other, &r, true));
    assert_int_equal(other.n_block, 2); /* the paths part after two */
    holds_prefix(&b, &other, &r);
    OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    struct kv_store_stat t = stat_of(&b);
    assert_true(t.leased == 2 && t.cached == 2 && t.free == 12 && t.hit_blocks == 2);
    assert_false(kv_arena_valid(b.a, q.seq, q.gen));
    sound(&b);
    box_close(&b);
}

/* The ids decide: another prompt with the digests of the first is no hit, and its blocks stay without a name. */
static void a_digest_alone_is_no_hit(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p, r;
    struct kv_seq_info q, other;
    box_open(&b, 16);
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
    box_close(&b);
}

static void first_publication_wins(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q, r;
    int32_t t1[3], t2[3];
    box_open(&b, 16);
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
    box_close(&b);
}

static void publishing_is_checked(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q;
    uint32_t slot[2], out[2];
    uint64_t got, sum[2];
    box_open(&b, 16);
    prompt_of(&p, path_a, 2);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 2, false));
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
    IS_NO(kv_store_publish(&e, b.s, b.c[1], out, &u), "is not held here");
    assert_int_equal(kv_store_why(b.s), KV_WHY_STALE);
    bad = u;
    bad.gen++;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "is not held here");
    bad = u;
    bad.at = 1;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "where block 0 comes next");
    bad = u;
    uint32_t twice[2] = {slot[0], slot[0]}, foreign[2] = {slot[0], 15}, wild[2] = {slot[0], 1u << 31};
    bad.slot = twice;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "comes twice");
    bad.slot = foreign;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "not this client's");
    bad.slot = wild;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &bad), "not this client's");
    kv_arena_bytes(b.a, slot[1])[9]++;
    IS_NO(kv_store_publish(&e, b.s, b.c[0], out, &u), "block 1");
    kv_arena_bytes(b.a, slot[1])[9]--;
    assert_int_equal(b.h.n_stored, 0); /* all or nothing */
    OK(kv_store_publish(&e, b.s, b.c[0], out, &u));
    sound(&b);
    box_close(&b);
}

/* A hundred with one prompt: one computes, the others wait and are told. */
static void one_computes_for_all(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q, w[20];
    box_open(&b, 16);
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
    kv_store_gone(b.s, b.c[0], 1); /* in mid-prompt: the first of those that wait goes on */
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
    box_close(&b);
}

static void a_sequence_changes_hands(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q, h, t;
    uint32_t slot, out;
    uint64_t got, sum;
    box_open(&b, 8);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 2));
    OK(kv_store_credit(&e, b.s, b.c[0], &slot, &got, 1, false));
    struct kv_publish tail = {.seq = q.seq, .gen = q.gen, .at = 2, .ids = p.ids + 64, .n_tail = 5, .tail = slot};
    OK(kv_store_publish(&e, b.s, b.c[0], NULL, &tail));
    OK(kv_store_hand(&e, b.s, b.c[0], &h, q.seq, q.gen, 5));
    assert_true(h.gen > q.gen && h.n_block == 2 && h.tail == slot && h.n_tail == 5);
    IS_NO(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen), "not held");
    IS_NO(kv_store_take(&e, b.s, b.c[1], &t, q.seq, q.gen), "not there to be taken");
    kv_store_gone(b.s, b.c[0], 6); /* prefill may end now */
    OK(kv_store_take(&e, b.s, b.c[1], &t, h.seq, h.gen));
    IS_NO(kv_store_take(&e, b.s, b.c[2], &q, h.seq, h.gen), "not there to be taken");
    assert_int_equal(kv_store_why(b.s), KV_WHY_STALE);
    holds_prefix(&b, &t, &p);
    /* Decode fills the tail, which becomes a block under its name, and has another behind it. */
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
    assert_int_equal(q.n_block, 3); /* the next turn finds what decode made */
    sound(&b);
    box_close(&b);
}

static void a_handed_sequence_that_nobody_takes_ends(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q, h;
    box_open(&b, 8);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    OK(kv_store_hand(&e, b.s, b.c[0], &h, q.seq, q.gen, 2 * S));
    for (int i = 0; i < 4; i++)
        OK(kv_store_renew(&e, b.s, b.c[i], 9 * S));
    assert_int_equal(kv_store_tick(b.s, 11 * S), 12 * S);
    assert_int_equal(stat_of(&b).leased, 3);
    kv_store_tick(b.s, 12 * S);
    assert_true(stat_of(&b).leased == 0 && stat_of(&b).cached == 3);
    IS_NO(kv_store_take(&e, b.s, b.c[1], &q, h.seq, h.gen), "not there to be taken");
    sound(&b);
    box_close(&b);
}

static void a_fork_copies_the_tail_only(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q, f[3];
    uint32_t slot;
    uint64_t got;
    box_open(&b, 8);
    prompt_of(&p, path_a, 3);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 3));
    OK(kv_store_credit(&e, b.s, b.c[0], &slot, &got, 1, false));
    memset(kv_arena_bytes(b.a, slot), 0x5a, 64);
    struct kv_publish tail = {.seq = q.seq, .gen = q.gen, .at = 3, .ids = p.ids, .n_tail = 31, .tail = slot};
    OK(kv_store_publish(&e, b.s, b.c[0], NULL, &tail));
    for (int i = 0; i < 3; i++) {
        OK(kv_store_fork(&e, b.s, b.c[0], &f[i], q.seq, q.gen));
        assert_true(f[i].n_block == 3 && f[i].n_tail == 31 && f[i].tail != slot);
        assert_int_equal(kv_arena_bytes(b.a, f[i].tail)[63], 0x5a);
        holds_prefix(&b, &f[i], &p);
    }
    assert_int_equal(stat_of(&b).leased, 3 + 4);
    OK(kv_store_fork(&e, b.s, b.c[0], &f[0], q.seq, q.gen));
    IS_NO(kv_store_fork(&e, b.s, b.c[0], &f[1], q.seq, q.gen), "no slot for a copy of the tail");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NOT_NOW);
    sound(&b);
    kv_store_gone(b.s, b.c[0], 1);
    assert_true(stat_of(&b).leased == 0 && stat_of(&b).cached == 3 && stat_of(&b).free == 5);
    sound(&b);
    box_close(&b);
}

static void never_is_told_from_not_now(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q;
    uint32_t slot[16];
    uint64_t got;
    box_open(&b, 8);
    prompt_of(&p, path_a, 8);
    IS_NO(kv_store_credit(&e, b.s, b.c[0], slot, &got, 9, false), "never fit");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NEVER);
    IS_NO(kv_store_lease(&e, b.s, b.c[0], &q, p.ids, 8 * 32 + 1, p.digests, 8, true), "never fit");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NEVER);
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 5, false));
    IS_NO(kv_store_credit(&e, b.s, b.c[1], slot + 5, &got, 4, false), "full: 4 blocks wanted, 3 of 8");
    assert_int_equal(kv_store_why(b.s), KV_WHY_NOT_NOW);
    OK(kv_store_credit(&e, b.s, b.c[1], slot + 5, &got, 4, true));
    assert_int_equal(got, 3);
    IS_NO(kv_store_credit(&e, b.s, b.c[1], slot + 8, &got, 1, true), "full");
    OK(kv_store_uncredit(&e, b.s, b.c[0], slot, 5));
    IS_NO(kv_store_uncredit(&e, b.s, b.c[0], slot, 1), "not this client's");
    assert_int_equal(stat_of(&b).free, 5);
    sound(&b);
    box_close(&b);
}

/* Stopped: its sequences end with its lease, what it might still write is kept away until it is gone. */
static void a_silent_client_is_fenced(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q;
    uint32_t slot[3];
    uint64_t got;
    box_open(&b, 8);
    prompt_of(&p, path_a, 2);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 2));
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 3, false));
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
    assert_true(t.quarantined == 3 && t.cached == 2 && t.free == 3 && !t.leased && !t.credited);
    sound(&b);
    uint32_t all[8];
    OK(kv_store_credit(&e, b.s, b.c[1], all, &got, 5, false));
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++)
            assert_int_not_equal(all[i], slot[k]);
    IS_NO(kv_store_renew(&e, b.s, b.c[0], LEASE + 1), "lease has ended"); /* it goes on */
    assert_int_equal(kv_store_why(b.s), KV_WHY_EXPIRED);
    IS_NO(kv_store_uncredit(&e, b.s, b.c[0], slot + 1, 1), "lease has ended");
    kv_store_gone(b.s, b.c[0], LEASE + 2);
    assert_int_equal(stat_of(&b).quarantined, 0);
    assert_int_equal(stat_of(&b).free, 3);
    sound(&b);
    box_close(&b);
}

static bool was_evicted(const struct box *b, int i, const struct prompt *p, uint64_t k)
{
    return i < b->h.n_evicted && !memcmp(b->h.evicted[i], p->digests + k * KV_DIGEST, KV_DIGEST);
}

/* Of chains a (used once) and c (used three times), both of old: a goes first, from its end. */
static void eviction_goes_by_recency_and_reuse(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt a, c;
    struct kv_seq_info q;
    uint32_t slot[8];
    uint64_t got;
    box_open(&b, 8);
    prompt_of(&a, path_a, 3);
    prompt_of(&c, path_c, 2);
    for (int i = 0; i < 3; i++) {
        OK(lease(&e, &b, b.c[0], &q, &c, true));
        OK(publish(&e, &b, b.c[0], &q, &c, 2));
        OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    }
    OK(lease(&e, &b, b.c[0], &q, &a, true));
    OK(publish(&e, &b, b.c[0], &q, &a, 3));
    OK(kv_store_credit(&e, b.s, b.c[1], slot, &got, 3, false)); /* what was free */
    assert_int_equal(b.h.n_evicted, 0);
    IS_NO(kv_store_credit(&e, b.s, b.c[1], slot, &got, 3, false), "3 blocks wanted, 2"); /* a is leased */
    OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    OK(kv_store_credit(&e, b.s, b.c[1], slot + 3, &got, 4, false));
    assert_true(was_evicted(&b, 0, &a, 2) && was_evicted(&b, 1, &a, 1) && was_evicted(&b, 2, &a, 0));
    assert_true(was_evicted(&b, 3, &c, 1));
    sound(&b);
    box_close(&b);
}

/* The clients, their sequences and slots are known to a store that begins with the arena of one that was killed. */
static void a_new_store_takes_over(void **state)
{
    (void)state;
    struct err e = {0};
    struct box b;
    struct prompt p;
    struct kv_seq_info q, h, cached;
    uint32_t slot[2], c;
    uint64_t got, id, key, start;
    int64_t pid;
    box_open(&b, 16);
    prompt_of(&p, path_a, 4);
    OK(lease(&e, &b, b.c[0], &q, &p, true));
    OK(publish(&e, &b, b.c[0], &q, &p, 4));
    OK(kv_store_fork(&e, b.s, b.c[0], &h, q.seq, q.gen));
    OK(kv_store_hand(&e, b.s, b.c[0], &h, h.seq, h.gen, 1));
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 2, false));
    prompt_of(&p, path_c, 2);
    OK(lease(&e, &b, b.c[1], &cached, &p, true));
    OK(publish(&e, &b, b.c[1], &cached, &p, 2));
    OK(kv_store_release(&e, b.s, b.c[1], cached.seq, cached.gen));
    struct kv_store_stat before = stat_of(&b), after;
    kv_store_identity(b.s, b.c[0], &id, &key);
    kv_store_free(b.s);
    struct kv_store_opts o = {.lease_ns = LEASE, .handed_ns = LEASE, .verify = true, .tell = hear, .tell_arg = &b.h};
    OK(kv_store_new(&e, &b.s, b.a, &o, 100));
    sound(&b);
    after = stat_of(&b);
    assert_true(before.free == after.free && before.cached == after.cached && before.leased == after.leased &&
                before.credited == after.credited && before.seqs == after.seqs && before.clients == after.clients);
    int n_absent = 0;
    for (c = KV_NONE; kv_store_absent(b.s, &c, &pid, &start); n_absent++)
        assert_true(pid >= 100 && pid < 104 && start == 7);
    assert_int_equal(n_absent, 4);
    IS_NO(kv_store_rejoin(&e, b.s, &c, id, key + 1, 101), "not known");
    OK(kv_store_rejoin(&e, b.s, &c, id, key, 101));
    assert_int_equal(c, b.c[0]);
    OK(kv_store_uncredit(&e, b.s, c, slot, 1));
    assert_true(kv_arena_valid(b.a, q.seq, q.gen));
    OK(kv_store_release(&e, b.s, c, q.seq, q.gen));
    OK(kv_store_take(&e, b.s, c, &h, h.seq, h.gen));
    prompt_of(&p, path_a, 4);
    holds_prefix(&b, &h, &p);
    OK(lease(&e, &b, c, &q, &p, true));
    assert_int_equal(q.n_block, 4);
    sound(&b);
    /* Those who never come back: silent after a lease, in quarantine until their process is known to be gone. */
    OK(kv_store_renew(&e, b.s, c, LEASE));
    kv_store_tick(b.s, 100 + LEASE);
    assert_int_equal(b.h.n_expired, 3);
    for (c = KV_NONE; kv_store_absent(b.s, &c, &pid, &start);)
        kv_store_gone(b.s, c, 101 + LEASE);
    assert_int_equal(stat_of(&b).clients, 1);
    sound(&b);
    box_close(&b);
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

#define N_SLOT 40
#define N_CLIENT 5
#define N_HELD 48

struct held { /* a sequence as the model knows it */
    bool used, handed, wait;
    uint32_t client;
    struct kv_seq_info q;
    struct prompt p;
    uint64_t n_tail;
    bool tail_slot_known;
};

struct model {
    struct box b;
    uint64_t now;
    struct held h[N_HELD];
    uint32_t client[N_CLIENT];
    bool silent[N_CLIENT];
    uint64_t renewed[N_CLIENT];
    uint32_t credit[N_CLIENT][N_SLOT];
    uint64_t n_credit[N_CLIENT];
    uint64_t n_quarantine[N_CLIENT];
};

static struct held *held_of(struct model *m, uint64_t seq)
{
    for (int i = 0; i < N_HELD; i++)
        if (m->h[i].used && m->h[i].q.seq == seq)
            return &m->h[i];
    fail_msg("news of a sequence that nobody has");
    return NULL;
}

static void take_news(struct model *m)
{
    assert_true(m->b.h.n_seq < 64);
    for (int i = 0; i < m->b.h.n_seq; i++) {
        struct held *h = held_of(m, m->b.h.seq[i].seq);
        assert_true(h->q.pending && h->q.gen == m->b.h.seq[i].gen && h->q.n_block <= m->b.h.seq[i].n_block);
        h->q = m->b.h.seq[i];
    }
    m->b.h.n_seq = 0;
}

static struct held *any_held(struct model *m, uint32_t c, bool handed)
{
    for (int tries = 0; tries < 100; tries++) {
        struct held *h = &m->h[dice(N_HELD)];
        if (h->used && h->handed == handed && (handed || h->client == c))
            return h;
    }
    return NULL;
}

static void drop_held(struct model *m, uint32_t c)
{
    for (int i = 0; i < N_HELD; i++)
        if (m->h[i].used && !m->h[i].handed && m->h[i].client == c)
            m->h[i].used = false;
}

/* How long a prefix of p there is: by walking over the slots that carry a name. */
static uint64_t prefix_there(const struct model *m, const struct prompt *p)
{
    for (uint64_t n = 0; n < p->n; n++) {
        uint64_t i = 0;
        while (i < N_SLOT && (kv_arena_slot(m->b.a, i)->state != KV_NAMED ||
                              memcmp(kv_arena_slot(m->b.a, i)->digest, p->digests + n * KV_DIGEST, KV_DIGEST)))
            i++;
        if (i == N_SLOT)
            return n;
    }
    return p->n;
}

static void do_lease(struct model *m, uint32_t c)
{
    struct err e = {0};
    uint8_t path[6];
    struct held *h = m->h;
    while (h < m->h + N_HELD && h->used)
        h++;
    if (h == m->h + N_HELD)
        return;
    for (int i = 0; i < 6; i++)
        path[i] = (uint8_t)dice(2);
    *h = (struct held){.client = c, .wait = dice(4) > 0};
    prompt_of(&h->p, path, dice(7));
    uint64_t want = prefix_there(m, &h->p);
    OK(lease(&e, &m->b, m->client[c], &h->q, &h->p, h->wait));
    assert_int_equal(h->q.n_block, want);
    h->used = true;
}

static void do_credit(struct model *m, uint32_t c)
{
    struct err e = {0};
    struct kv_store_stat t = stat_of(&m->b);
    uint64_t n = dice(8), got;
    bool some = dice(2);
    int rc = kv_store_credit(&e, m->b.s, m->client[c], m->credit[c] + m->n_credit[c], &got, n, some);
    uint64_t there = t.free + t.cached;
    assert_int_equal(rc != 0, some ? n && !there : n > there);
    assert_int_equal(got, rc ? 0 : n < there ? n : there);
    m->n_credit[c] += got;
}

static uint32_t pop_credit(struct model *m, uint32_t c)
{
    return m->credit[c][--m->n_credit[c]];
}

/* A few blocks that come next, and perhaps a tail behind them. */
static void do_publish(struct model *m, uint32_t c, struct held *h)
{
    struct err e = {0};
    uint32_t slot[8], out[8], old_tail = h->q.tail;
    uint64_t sum[8], n = dice(4);
    if (h->q.pending)
        return;
    n = n < h->p.n - h->q.n_block ? n : h->p.n - h->q.n_block;
    n = n < m->n_credit[c] ? n : m->n_credit[c];
    struct kv_publish u = {.seq = h->q.seq,
                           .gen = h->q.gen,
                           .at = h->q.n_block,
                           .slot = slot,
                           .sum = sum,
                           .n_block = n,
                           .digests = h->p.digests + h->q.n_block * KV_DIGEST,
                           .ids = h->p.ids + h->q.n_block * KERN_KV_BLOCK,
                           .tail = KV_NONE};
    for (uint64_t k = 0; k < n; k++) {
        bool is_tail = !k && old_tail != KV_NONE && dice(2);
        slot[k] = is_tail ? old_tail : pop_credit(m, c);
        write_block(&m->b, slot[k], u.digests + k * KV_DIGEST);
        sum[k] = kv_arena_sum(m->b.a, slot[k]);
    }
    bool consumed = n && slot[0] == old_tail;
    if (m->n_credit[c] && dice(2) && h->q.n_block + n < DEPTH_MAX) {
        u.n_tail = 1 + (uint32_t)dice(31);
        u.tail = pop_credit(m, c);
    }
    OK(kv_store_publish(&e, m->b.s, m->client[c], out, &u));
    if (old_tail != KV_NONE && !consumed)
        m->credit[c][m->n_credit[c]++] = old_tail;
    for (uint64_t k = 0; k < n; k++)
        if (out[k] != slot[k])
            m->credit[c][m->n_credit[c]++] = slot[k];
    h->q.n_block += n;
    h->q.tail = u.tail;
    h->q.n_tail = u.n_tail;
}

static void do_restart(struct model *m)
{
    struct err e = {0};
    struct kv_store_stat t = stat_of(&m->b), u;
    uint64_t id[N_CLIENT], key[N_CLIENT];
    if (t.quarantined) /* clients that have gone silent stay so only as long as the store lives */
        return;
    for (int c = 0; c < N_CLIENT; c++) {
        if (m->silent[c])
            return;
        kv_store_identity(m->b.s, m->client[c], &id[c], &key[c]);
    }
    for (int i = 0; i < N_HELD; i++) /* what waited asks again */
        if (m->h[i].used && m->h[i].q.pending)
            return;
    kv_store_free(m->b.s);
    struct kv_store_opts o = {.lease_ns = LEASE, .handed_ns = LEASE, .verify = true, .tell = hear, .tell_arg = &m->b.h};
    OK(kv_store_new(&e, &m->b.s, m->b.a, &o, m->now));
    u = stat_of(&m->b);
    assert_true(t.free == u.free && t.cached == u.cached && t.leased == u.leased && t.credited == u.credited);
    for (int c = 0; c < N_CLIENT; c++) {
        OK(kv_store_rejoin(&e, m->b.s, &m->client[c], id[c], key[c], m->now));
        m->renewed[c] = m->now;
    }
}

static void go_on(struct model *m, uint32_t c)
{
    struct err e = {0};
    kv_store_gone(m->b.s, m->client[c], m->now);
    OK(kv_store_join(&e, m->b.s, &m->client[c], 1, 1, m->now));
    drop_held(m, c);
    m->silent[c] = false;
    m->renewed[c] = m->now;
    m->n_credit[c] = m->n_quarantine[c] = 0;
}

static void do_time(struct model *m)
{
    struct err e = {0};
    m->now += dice(LEASE / 2);
    for (uint32_t c = 0; c < N_CLIENT; c++)
        if (!m->silent[c] && dice(8)) {
            if (kv_store_renew(&e, m->b.s, m->client[c], m->now))
                fail_msg("%s", e.text); /* none was ticked away unseen */
            m->renewed[c] = m->now;
        }
    kv_store_tick(m->b.s, m->now);
    for (uint32_t c = 0; c < N_CLIENT; c++)
        if (!m->silent[c] && m->renewed[c] + LEASE <= m->now) {
            m->silent[c] = true;
            m->n_quarantine[c] = m->n_credit[c];
            for (int i = 0; i < N_HELD; i++)
                if (m->h[i].used && !m->h[i].handed && m->h[i].client == c && m->h[i].q.tail != KV_NONE)
                    m->n_quarantine[c]++;
            m->n_credit[c] = 0;
            drop_held(m, c);
        }
    for (int i = 0; i < N_HELD; i++) /* those handed over end by themselves */
        if (m->h[i].used && m->h[i].handed && !kv_arena_valid(m->b.a, m->h[i].q.seq, m->h[i].q.gen))
            m->h[i].used = false;
    /* News from sequences that ended in the same tick are of no use. */
    int n = 0;
    for (int i = 0; i < m->b.h.n_seq; i++)
        for (int k = 0; k < N_HELD; k++)
            if (m->h[k].used && m->h[k].q.seq == m->b.h.seq[i].seq && m->h[k].q.gen == m->b.h.seq[i].gen) {
                m->b.h.seq[n] = m->b.h.seq[i];
                m->b.h.seq_client[n++] = m->b.h.seq_client[i];
                break;
            }
    m->b.h.n_seq = n;
}

static void do_gone(struct model *m, uint32_t c)
{
    drop_held(m, c);
    kv_store_gone(m->b.s, m->client[c], m->now);
    int n = 0;
    for (int i = 0; i < m->b.h.n_seq; i++) /* its own sequences waited for each other */
        if (m->b.h.seq_client[i] != m->client[c]) {
            m->b.h.seq[n] = m->b.h.seq[i];
            m->b.h.seq_client[n++] = m->b.h.seq_client[i];
        }
    m->b.h.n_seq = n;
    struct err e = {0};
    OK(kv_store_join(&e, m->b.s, &m->client[c], 1, 1, m->now));
    m->silent[c] = false;
    m->renewed[c] = m->now;
    m->n_credit[c] = m->n_quarantine[c] = 0;
}

static void do_hold(struct model *m, uint32_t c, struct held *h, uint64_t what)
{
    struct err e = {0};
    struct kv_seq_info q;
    if (what == 0) {
        OK(kv_store_release(&e, m->b.s, m->client[c], h->q.seq, h->q.gen));
        h->used = false;
    } else if (what == 1) {
        OK(kv_store_hand(&e, m->b.s, m->client[c], &h->q, h->q.seq, h->q.gen, m->now));
        h->handed = true;
        h->client = N_CLIENT;
    } else {
        struct held *f = m->h;
        while (f < m->h + N_HELD && f->used)
            f++;
        if (f == m->h + N_HELD || kv_store_fork(&e, m->b.s, m->client[c], &q, h->q.seq, h->q.gen))
            return;
        *f = *h;
        f->q = q;
        f->wait = false;
    }
}

static void one_operation(struct model *m)
{
    struct err e = {0};
    uint32_t c = (uint32_t)dice(N_CLIENT);
    uint64_t what = dice(100);
    struct held *h = any_held(m, c, false);
    if (what >= 97)
        do_time(m);
    else if (what == 96)
        do_gone(m, c);
    else if (what == 95)
        do_restart(m);
    else if (m->silent[c]) {
        IS_NO(kv_store_renew(&e, m->b.s, m->client[c], m->now), "lease has ended");
        if (dice(4) == 0)
            go_on(m, c);
    } else if (what < 25)
        do_lease(m, c);
    else if (what < 40)
        do_credit(m, c);
    else if (what < 70 && h)
        do_publish(m, c, h);
    else if (what < 74 && m->n_credit[c]) {
        OK(kv_store_uncredit(&e, m->b.s, m->client[c], &m->credit[c][m->n_credit[c] - 1], 1));
        m->n_credit[c]--;
    } else if (what < 87 && h)
        do_hold(m, c, h, dice(3));
    else if ((h = any_held(m, c, true))) {
        OK(kv_store_take(&e, m->b.s, m->client[c], &h->q, h->q.seq, h->q.gen));
        h->handed = false;
        h->client = c;
    }
}

/* What the model knows against what the store says. */
static void agree(struct model *m)
{
    struct kv_store_stat t = stat_of(&m->b);
    uint64_t credited = 0, quarantined = 0, seqs = 0, leased = 0;
    uint8_t slot[N_SLOT] = {0};
    struct err e = {0};
    for (int c = 0; c < N_CLIENT; c++) {
        credited += m->n_credit[c];
        quarantined += m->n_quarantine[c];
        for (uint64_t i = 0; i < m->n_credit[c]; i++)
            assert_int_equal(slot[m->credit[c][i]]++, 0);
    }
    for (int i = 0; i < N_HELD; i++) {
        int32_t table[DEPTH_MAX];
        const struct held *h = &m->h[i];
        if (!h->used)
            continue;
        seqs++;
        OK(kv_arena_table(&e, m->b.a, table, h->q.n_block, h->q.seq, h->q.gen));
        for (uint64_t k = 0; k < h->q.n_block; k++) {
            assert_true(slot[table[k]] == 0 || slot[table[k]] == 100);
            leased += !slot[table[k]];
            slot[table[k]] = 100;
        }
        holds_prefix(&m->b, &h->q, &h->p);
        if (h->q.tail == KV_NONE)
            continue;
        assert_int_equal(slot[h->q.tail]++, 0);
        leased++;
    }
    assert_int_equal(t.credited, credited);
    assert_int_equal(t.quarantined, quarantined);
    assert_int_equal(t.seqs, seqs);
    assert_int_equal(t.leased, leased);
}

/* One that waits waits for something: another, which does not, is to compute the very next block. */
static void nobody_waits_for_nothing(const struct model *m)
{
    for (int i = 0; i < N_HELD; i++) {
        const struct held *h = &m->h[i];
        bool found = !h->used || !h->q.pending;
        const uint8_t *next = h->p.digests + h->q.n_block * KV_DIGEST;
        for (int k = 0; k < N_HELD && !found; k++) {
            const struct held *o = &m->h[k];
            for (uint64_t d = o->q.n_block; o->used && !o->handed && !o->q.pending && d < o->p.n && !found; d++)
                found = !memcmp(o->p.digests + d * KV_DIGEST, next, KV_DIGEST);
        }
        assert_true(found);
    }
}

static void random_runs(void **state)
{
    (void)state;
    struct err e = {0};
    struct model *m = calloc(1, sizeof *m);
    for (uint64_t run = 1; run <= 8; run++) {
        memset(m, 0, sizeof *m);
        dice_state = run * 0x9e3779b97f4a7c15u;
        m->b.a = small_arena(N_SLOT);
        struct kv_store_opts o = {
            .lease_ns = LEASE, .handed_ns = LEASE, .verify = true, .tell = hear, .tell_arg = &m->b.h};
        OK(kv_store_new(&e, &m->b.s, m->b.a, &o, 0));
        for (int c = 0; c < N_CLIENT; c++)
            OK(kv_store_join(&e, m->b.s, &m->client[c], 1, 1, 0));
        for (int i = 0; i < 4000; i++) {
            one_operation(m);
            take_news(m);
            if (kv_store_check(&e, m->b.s))
                fail_msg("run %d, operation %d: %s", (int)run, i, e.text);
            agree(m);
            nobody_waits_for_nothing(m);
        }
        for (int c = 0; c < N_CLIENT; c++)
            kv_store_gone(m->b.s, m->client[c], m->now);
        kv_store_tick(m->b.s, m->now + LEASE);
        struct kv_store_stat t = stat_of(&m->b);
        assert_true(!t.leased && !t.credited && !t.quarantined && !t.seqs && !t.waiting && m->b.h.n_evicted > 10);
        kv_store_free(m->b.s);
        kv_arena_free(m->b.a);
    }
    free(m);
}

/* What a kill in the middle of a write, or a client that scribbles, may leave: the store goes on, or refuses, in order.
 */
static void a_damaged_arena_is_survived(void **state)
{
    (void)state;
    struct err e = {0};
    for (uint64_t run = 1; run <= 300; run++) {
        struct box b;
        struct prompt p;
        struct kv_seq_info q;
        uint32_t slot[3];
        uint64_t got;
        dice_state = run * 0x9e3779b97f4a7c15u;
        box_open(&b, 12);
        for (int i = 0; i < 3; i++) {
            prompt_of(&p, i == 0 ? path_a : i == 1 ? path_b : path_c, 4);
            OK(lease(&e, &b, b.c[i], &q, &p, false));
            OK(publish(&e, &b, b.c[i], &q, &p, 3));
        }
        OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 2, false));
        kv_store_free(b.s);
        b.s = NULL;
        for (uint64_t i = 0; i < 1 + dice(30); i++) {
            uint64_t what = dice(4), at = dice(what == 0 ? 12 : 8);
            void *thing = what == 0   ? (void *)kv_arena_slot(b.a, at)
                          : what == 1 ? (void *)kv_arena_seq(b.a, at)
                          : what == 2 ? (void *)kv_arena_page(b.a, at)
                                      : (void *)kv_arena_client(b.a, at);
            size_t size = what == 0   ? sizeof(struct kv_slot)
                          : what == 1 ? sizeof(struct kv_seq)
                          : what == 2 ? 64
                                      : sizeof(struct kv_client);
            ((uint8_t *)thing)[dice(size)] = dice(2) ? (uint8_t)dice(256) : (uint8_t)dice(5);
        }
        struct kv_store_opts o = {.lease_ns = LEASE, .handed_ns = LEASE};
        OK(kv_store_new(&e, &b.s, b.a, &o, 0));
        OK(kv_store_join(&e, b.s, &b.c[5], 1, 1, 0));
        prompt_of(&p, path_a, 4);
        OK(lease(&e, &b, b.c[5], &q, &p, false));
        kv_store_tick(b.s, 100 * LEASE);
        for (uint32_t c = 0; c < 8; c++)
            kv_store_gone(b.s, c, 100 * LEASE);
        uint32_t all[16];
        OK(kv_store_join(&e, b.s, &b.c[6], 1, 1, 0));
        OK(kv_store_credit(&e, b.s, b.c[6], all, &got, 8, true));
        box_close(&b);
    }
}

/* 31,250 blocks a sequence, a million tokens: time must stay linear. What takes an hour if it is not, takes a second.
 */
static void a_million_tokens(void **state)
{
    (void)state;
    struct err e = {0};
    uint64_t n = 31250, got;
    struct kv_kind k = small_kind();
    struct box b = {0};
    uint8_t *digests = calloc(n, KV_DIGEST);
    uint32_t *ids = malloc(n * 32 * 4), *slot = malloc(n * 4), *out = malloc(n * 4);
    uint64_t *sum = calloc(n, 8);
    struct kv_seq_info q, f, h;
    k.head_dim = 4;
    OK(kv_arena_new(&e, &b.a, &k, (n + 8) * 4096));
    struct kv_store_opts o = {.lease_ns = LEASE, .handed_ns = LEASE};
    OK(kv_store_new(&e, &b.s, b.a, &o, 0));
    OK(kv_store_join(&e, b.s, &b.c[0], 1, 1, 0));
    for (uint64_t i = 0; i < n; i++)
        memcpy(digests + i * KV_DIGEST, &i, 8);
    for (uint64_t i = 0; i < n * 32; i++)
        ids[i] = (uint32_t)i;
    OK(kv_store_lease(&e, b.s, b.c[0], &q, ids, n * 32, digests, n, true));
    for (uint64_t at = 0; at < n; at += 50) {
        OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, 50, false));
        struct kv_publish u = {.seq = q.seq,
                               .gen = q.gen,
                               .at = at,
                               .slot = slot,
                               .sum = sum,
                               .n_block = 50,
                               .digests = digests + at * KV_DIGEST,
                               .ids = ids + at * 32,
                               .tail = KV_NONE};
        OK(kv_store_publish(&e, b.s, b.c[0], out, &u));
    }
    OK(kv_store_fork(&e, b.s, b.c[0], &f, q.seq, q.gen));
    OK(kv_store_hand(&e, b.s, b.c[0], &h, q.seq, q.gen, 0));
    OK(kv_store_take(&e, b.s, b.c[0], &q, h.seq, h.gen));
    OK(kv_arena_table(&e, b.a, (int32_t *)out, n, q.seq, q.gen));
    kv_store_free(b.s);
    OK(kv_store_new(&e, &b.s, b.a, &o, 0));
    sound(&b);
    assert_int_equal(stat_of(&b).leased, n);
    for (uint32_t c = 0; c < 2; c++)
        kv_store_gone(b.s, c, 0);
    assert_int_equal(stat_of(&b).cached, n);
    OK(kv_store_join(&e, b.s, &b.c[0], 1, 1, 0));
    OK(kv_store_credit(&e, b.s, b.c[0], slot, &got, n, false));
    assert_int_equal(got, n);
    free(digests);
    free(ids);
    free(slot);
    free(out);
    free(sum);
    box_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_is_found_again),
        cmocka_unit_test(a_digest_alone_is_no_hit),
        cmocka_unit_test(first_publication_wins),
        cmocka_unit_test(publishing_is_checked),
        cmocka_unit_test(one_computes_for_all),
        cmocka_unit_test(a_sequence_changes_hands),
        cmocka_unit_test(a_handed_sequence_that_nobody_takes_ends),
        cmocka_unit_test(a_fork_copies_the_tail_only),
        cmocka_unit_test(never_is_told_from_not_now),
        cmocka_unit_test(a_silent_client_is_fenced),
        cmocka_unit_test(eviction_goes_by_recency_and_reuse),
        cmocka_unit_test(a_new_store_takes_over),
        cmocka_unit_test(random_runs),
        cmocka_unit_test(a_damaged_arena_is_survived),
        cmocka_unit_test(a_million_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
