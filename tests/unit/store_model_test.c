/*
 * Random operations, compared with a model that knows only sets: the owner of each slot, the indexed digests. After
 * each operation kv_store_check verifies the store. Then damaged arenas, and sequences of a million tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/store_build.h"

/* ---- random runs ---- */

#define N_SLOT 40
#define N_CLIENT 5
#define N_SEQ 48

struct owned_seq { /* a sequence in the model */
    bool used, in_transfer, wait;
    uint32_t client, sender; /* sender: N_CLIENT if it has left */
    struct kv_seq_info q;
    struct prompt p;
    uint64_t n_tail;
    bool tail_slot_known;
};

struct model {
    struct fixture b;
    uint64_t now;
    struct owned_seq h[N_SEQ];
    uint32_t client[N_CLIENT];
    bool silent[N_CLIENT];
    uint64_t renewed[N_CLIENT];
    uint32_t reserved[N_CLIENT][N_SLOT];
    uint64_t n_reserved[N_CLIENT];
    uint64_t n_quarantine[N_CLIENT];
};

static struct owned_seq *seq_of(struct model *m, uint64_t seq)
{
    for (int i = 0; i < N_SEQ; i++)
        if (m->h[i].used && m->h[i].q.seq == seq)
            return &m->h[i];
    fail_msg("an event of a sequence that no client owns");
    return NULL;
}

static void take_events(struct model *m)
{
    assert_true(m->b.h.n_seq < 64);
    for (int i = 0; i < m->b.h.n_seq; i++) {
        struct owned_seq *h = seq_of(m, m->b.h.seq[i].seq);
        assert_true(h->q.pending && h->q.gen == m->b.h.seq[i].gen && h->q.n_block <= m->b.h.seq[i].n_block);
        h->q = m->b.h.seq[i];
    }
    m->b.h.n_seq = 0;
}

static struct owned_seq *pick_seq(struct model *m, uint32_t c, bool in_transfer)
{
    for (int tries = 0; tries < 100; tries++) {
        struct owned_seq *h = &m->h[dice(N_SEQ)];
        if (h->used && h->in_transfer == in_transfer && (in_transfer || h->client == c))
            return h;
    }
    return NULL;
}

static void drop_seqs(struct model *m, uint32_t c)
{
    for (int i = 0; i < N_SEQ; i++)
        if (m->h[i].used && !m->h[i].in_transfer && m->h[i].client == c)
            m->h[i].used = false;
        else if (m->h[i].in_transfer && m->h[i].sender == c)
            m->h[i].sender = N_CLIENT;
}

/* The length of the cached prefix of p, by a search over all indexed slots. */
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
    struct owned_seq *h = m->h;
    while (h < m->h + N_SEQ && h->used)
        h++;
    if (h == m->h + N_SEQ)
        return;
    for (int i = 0; i < 6; i++)
        path[i] = (uint8_t)dice(2);
    *h = (struct owned_seq){.client = c, .wait = dice(4) > 0};
    prompt_of(&h->p, path, dice(7));
    uint64_t want = prefix_there(m, &h->p);
    OK(lease(&e, &m->b, m->client[c], &h->q, &h->p, h->wait));
    assert_int_equal(h->q.n_block, want);
    h->used = true;
}

static void do_reserve(struct model *m, uint32_t c)
{
    struct err e = {0};
    struct kv_store_stat t = stat_of(&m->b);
    uint64_t n = dice(8), got;
    bool some = dice(2);
    int rc = kv_store_reserve(&e, m->b.s, m->client[c], m->reserved[c] + m->n_reserved[c], &got, n, some);
    uint64_t there = t.free + t.cached;
    assert_int_equal(rc != 0, some ? n && !there : n > there);
    assert_int_equal(got, rc ? 0 : n < there ? n : there);
    m->n_reserved[c] += got;
}

static uint32_t pop_reserved(struct model *m, uint32_t c)
{
    return m->reserved[c][--m->n_reserved[c]];
}

/* Publishes a few blocks, and sometimes a tail after them. */
static void do_publish(struct model *m, uint32_t c, struct owned_seq *h)
{
    struct err e = {0};
    uint32_t slot[8], out[8], old_tail = h->q.tail;
    uint64_t sum[8], n = dice(4);
    if (h->q.pending)
        return;
    n = n < h->p.n - h->q.n_block ? n : h->p.n - h->q.n_block;
    n = n < m->n_reserved[c] ? n : m->n_reserved[c];
    struct kv_publish u = {.seq = h->q.seq,
                           .gen = h->q.gen,
                           .at = h->q.n_block,
                           .slot = slot,
                           .sum = sum,
                           .n_block = n,
                           .digests = h->p.digests + h->q.n_block * KV_DIGEST,
                           .ids = h->p.ids + h->q.n_block * KV_BLOCK,
                           .tail = KV_NONE};
    for (uint64_t k = 0; k < n; k++) {
        bool is_tail = !k && old_tail != KV_NONE && dice(2);
        slot[k] = is_tail ? old_tail : pop_reserved(m, c);
        write_block(&m->b, slot[k], u.digests + k * KV_DIGEST);
        sum[k] = kv_arena_sum(m->b.a, slot[k]);
    }
    bool consumed = n && slot[0] == old_tail;
    if (m->n_reserved[c] && dice(2) && h->q.n_block + n < DEPTH_MAX) {
        u.n_tail = 1 + (uint32_t)dice(31);
        u.tail = pop_reserved(m, c);
    }
    OK(kv_store_publish(&e, m->b.s, m->client[c], out, &u));
    if (old_tail != KV_NONE && !consumed)
        m->reserved[c][m->n_reserved[c]++] = old_tail;
    for (uint64_t k = 0; k < n; k++)
        if (out[k] != slot[k])
            m->reserved[c][m->n_reserved[c]++] = slot[k];
    h->q.n_block += n;
    h->q.tail = u.tail;
    h->q.n_tail = u.n_tail;
}

static void do_restart(struct model *m)
{
    struct err e = {0};
    struct kv_store_stat t = stat_of(&m->b), u;
    uint64_t id[N_CLIENT], key[N_CLIENT];
    if (t.quarantined) /* a new store does not know which clients have expired */
        return;
    for (int c = 0; c < N_CLIENT; c++) {
        if (m->silent[c])
            return;
        kv_store_identity(m->b.s, m->client[c], &id[c], &key[c]);
    }
    for (int i = 0; i < N_SEQ; i++) /* pending sequences would have to be leased again */
        if (m->h[i].used && m->h[i].q.pending)
            return;
    kv_store_free(m->b.s);
    struct kv_store_opts o = {
        .lease_ns = LEASE, .transfer_ns = LEASE, .verify = true, .on_event = on_event, .event_arg = &m->b.h};
    OK(kv_store_new(&e, &m->b.s, m->b.a, &o, m->now));
    u = stat_of(&m->b);
    assert_true(t.free == u.free && t.cached == u.cached && t.leased == u.leased && t.reserved == u.reserved);
    for (int c = 0; c < N_CLIENT; c++) {
        OK(kv_store_rejoin(&e, m->b.s, &m->client[c], id[c], key[c], m->now));
        m->renewed[c] = m->now;
    }
}

static void rejoin(struct model *m, uint32_t c)
{
    struct err e = {0};
    kv_store_leave(m->b.s, m->client[c], m->now);
    OK(kv_store_join(&e, m->b.s, &m->client[c], 1, 1, m->now));
    drop_seqs(m, c);
    m->silent[c] = false;
    m->renewed[c] = m->now;
    m->n_reserved[c] = m->n_quarantine[c] = 0;
}

static void do_time(struct model *m)
{
    struct err e = {0};
    m->now += dice(LEASE / 2);
    for (uint32_t c = 0; c < N_CLIENT; c++)
        if (!m->silent[c] && dice(8)) {
            if (kv_store_renew(&e, m->b.s, m->client[c], m->now))
                fail_msg("%s", e.text); /* the store must not expire it early */
            m->renewed[c] = m->now;
        }
    kv_store_tick(m->b.s, m->now);
    for (uint32_t c = 0; c < N_CLIENT; c++)
        if (!m->silent[c] && m->renewed[c] + LEASE <= m->now) {
            m->silent[c] = true;
            m->n_quarantine[c] = m->n_reserved[c];
            for (int i = 0; i < N_SEQ; i++)
                if (m->h[i].used && !m->h[i].in_transfer && m->h[i].client == c && m->h[i].q.tail != KV_NONE)
                    m->n_quarantine[c]++;
            m->n_reserved[c] = 0;
            drop_seqs(m, c);
        }
    for (int i = 0; i < N_SEQ; i++) /* transfers whose time is over */
        if (m->h[i].used && m->h[i].in_transfer && !kv_arena_valid(m->b.a, m->h[i].q.seq, m->h[i].q.gen))
            m->h[i].used = false;
    /* Drops events of sequences that ended in the same tick. */
    int n = 0;
    for (int i = 0; i < m->b.h.n_seq; i++)
        for (int k = 0; k < N_SEQ; k++)
            if (m->h[k].used && m->h[k].q.seq == m->b.h.seq[i].seq && m->h[k].q.gen == m->b.h.seq[i].gen) {
                m->b.h.seq[n] = m->b.h.seq[i];
                m->b.h.seq_client[n++] = m->b.h.seq_client[i];
                break;
            }
    m->b.h.n_seq = n;
}

static void do_leave(struct model *m, uint32_t c)
{
    drop_seqs(m, c);
    kv_store_leave(m->b.s, m->client[c], m->now);
    int n = 0;
    for (int i = 0; i < m->b.h.n_seq; i++) /* drops events of its own sequences, which waited for each other */
        if (m->b.h.seq_client[i] != m->client[c]) {
            m->b.h.seq[n] = m->b.h.seq[i];
            m->b.h.seq_client[n++] = m->b.h.seq_client[i];
        }
    m->b.h.n_seq = n;
    struct err e = {0};
    OK(kv_store_join(&e, m->b.s, &m->client[c], 1, 1, m->now));
    m->silent[c] = false;
    m->renewed[c] = m->now;
    m->n_reserved[c] = m->n_quarantine[c] = 0;
}

static void do_hold(struct model *m, uint32_t c, struct owned_seq *h, uint64_t what)
{
    struct err e = {0};
    if (what == 0) {
        OK(kv_store_release(&e, m->b.s, m->client[c], h->q.seq, h->q.gen));
        h->used = false;
    } else {
        OK(kv_store_transfer_out(&e, m->b.s, m->client[c], &h->q, h->q.seq, h->q.gen, m->now));
        h->in_transfer = true;
        h->sender = c;
        h->client = N_CLIENT;
    }
}

static void one_operation(struct model *m)
{
    struct err e = {0};
    uint32_t c = (uint32_t)dice(N_CLIENT);
    uint64_t what = dice(100);
    struct owned_seq *h = pick_seq(m, c, false);
    if (what >= 97)
        do_time(m);
    else if (what == 96)
        do_leave(m, c);
    else if (what == 95)
        do_restart(m);
    else if (m->silent[c]) {
        IS_NO(kv_store_renew(&e, m->b.s, m->client[c], m->now), "lease has ended");
        if (dice(4) == 0)
            rejoin(m, c);
    } else if (what < 25)
        do_lease(m, c);
    else if (what < 40)
        do_reserve(m, c);
    else if (what < 70 && h)
        do_publish(m, c, h);
    else if (what < 74 && m->n_reserved[c]) {
        OK(kv_store_release_slots(&e, m->b.s, m->client[c], &m->reserved[c][m->n_reserved[c] - 1], 1));
        m->n_reserved[c]--;
    } else if (what < 87 && h)
        do_hold(m, c, h, dice(2));
    else if ((h = pick_seq(m, c, true)) && dice(4) == 0) {
        if (dice(4) == 0) {
            OK(end_transfer(&e, &m->b, &h->q, HANDLE_BYTES));
            h->used = false;
        } else if (kv_store_release(&e, m->b.s, m->client[c], h->q.seq, h->q.gen))
            assert_true(h->sender != c);
        else
            h->used = h->sender != c; /* only the sender may release it */
    } else if (h) {
        OK(kv_store_transfer_in(&e, m->b.s, m->client[c], &h->q, h->q.seq, h->q.gen));
        h->in_transfer = false;
        h->client = c;
    }
}

/* Compares the counters of the model and of the store. */
static void check_counts(struct model *m)
{
    struct kv_store_stat t = stat_of(&m->b);
    uint64_t reserved = 0, quarantined = 0, seqs = 0, leased = 0;
    uint8_t slot[N_SLOT] = {0};
    struct err e = {0};
    for (int c = 0; c < N_CLIENT; c++) {
        reserved += m->n_reserved[c];
        quarantined += m->n_quarantine[c];
        for (uint64_t i = 0; i < m->n_reserved[c]; i++)
            assert_int_equal(slot[m->reserved[c][i]]++, 0);
    }
    for (int i = 0; i < N_SEQ; i++) {
        int32_t table[DEPTH_MAX];
        const struct owned_seq *h = &m->h[i];
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
    assert_int_equal(t.reserved, reserved);
    assert_int_equal(t.quarantined, quarantined);
    assert_int_equal(t.seqs, seqs);
    assert_int_equal(t.leased, leased);
}

/* For each pending sequence, another one that is not pending must compute its next block. */
static void every_wait_has_a_cause(const struct model *m)
{
    for (int i = 0; i < N_SEQ; i++) {
        const struct owned_seq *h = &m->h[i];
        bool found = !h->used || !h->q.pending;
        const uint8_t *next = h->p.digests + h->q.n_block * KV_DIGEST;
        for (int k = 0; k < N_SEQ && !found; k++) {
            const struct owned_seq *o = &m->h[k];
            for (uint64_t d = o->q.n_block; o->used && !o->in_transfer && !o->q.pending && d < o->p.n && !found; d++)
                found = !memcmp(o->p.digests + d * KV_DIGEST, next, KV_DIGEST);
        }
        assert_true(found);
    }
}

static void random_runs_match_the_model(void **state)
{
    (void)state;
    struct err e = {0};
    struct model *m = calloc(1, sizeof *m);
    for (uint64_t run = 1; run <= 8; run++) {
        memset(m, 0, sizeof *m);
        dice_state = run * 0x9e3779b97f4a7c15u;
        m->b.a = small_arena(N_SLOT);
        struct kv_store_opts o = {
            .lease_ns = LEASE, .transfer_ns = LEASE, .verify = true, .on_event = on_event, .event_arg = &m->b.h};
        OK(kv_store_new(&e, &m->b.s, m->b.a, &o, 0));
        for (int c = 0; c < N_CLIENT; c++)
            OK(kv_store_join(&e, m->b.s, &m->client[c], 1, 1, 0));
        for (int i = 0; i < 4000; i++) {
            one_operation(m);
            take_events(m);
            if (kv_store_check(&e, m->b.s))
                fail_msg("run %d, operation %d: %s", (int)run, i, e.text);
            check_counts(m);
            every_wait_has_a_cause(m);
        }
        for (int c = 0; c < N_CLIENT; c++)
            kv_store_leave(m->b.s, m->client[c], m->now);
        kv_store_tick(m->b.s, m->now + LEASE);
        struct kv_store_stat t = stat_of(&m->b);
        assert_true(!t.leased && !t.reserved && !t.quarantined && !t.seqs && !t.waiting && m->b.h.n_evicted > 10);
        kv_store_free(m->b.s);
        kv_arena_free(m->b.a);
    }
    free(m);
}
/* Random damage, as by a kill during a write or by a faulty client: the store works on, or refuses the arena. */
static void adopts_or_refuses_a_damaged_arena(void **state)
{
    (void)state;
    struct err e = {0};
    for (uint64_t run = 1; run <= 300; run++) {
        struct fixture b;
        struct prompt p;
        struct kv_seq_info q;
        uint32_t slot[3];
        uint64_t got;
        dice_state = run * 0x9e3779b97f4a7c15u;
        fixture_open(&b, 12);
        for (int i = 0; i < 3; i++) {
            prompt_of(&p, i == 0 ? path_a : i == 1 ? path_b : path_c, 4);
            OK(lease(&e, &b, b.c[i], &q, &p, false));
            OK(publish(&e, &b, b.c[i], &q, &p, 3));
        }
        OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 2, false));
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
        struct kv_store_opts o = {.lease_ns = LEASE, .transfer_ns = LEASE};
        OK(kv_store_new(&e, &b.s, b.a, &o, 0));
        OK(kv_store_join(&e, b.s, &b.c[5], 1, 1, 0));
        prompt_of(&p, path_a, 4);
        OK(lease(&e, &b, b.c[5], &q, &p, false));
        kv_store_tick(b.s, 100 * LEASE);
        for (uint32_t c = 0; c < 8; c++)
            kv_store_leave(b.s, c, 100 * LEASE);
        uint32_t all[16];
        OK(kv_store_join(&e, b.s, &b.c[6], 1, 1, 0));
        OK(kv_store_reserve(&e, b.s, b.c[6], all, &got, 8, true));
        fixture_close(&b);
    }
}
/* Sequences of 31,250 blocks, a million tokens. It takes a second; with quadratic time it would take an hour. */
static void a_million_tokens_in_linear_time(void **state)
{
    (void)state;
    struct err e = {0};
    uint64_t n = 31250, got;
    struct kv_kind k = small_kind();
    struct fixture b = {0};
    uint8_t *digests = calloc(n, KV_DIGEST);
    uint32_t *ids = malloc(n * 32 * 4), *slot = malloc(n * 4), *out = malloc(n * 4);
    uint64_t *sum = calloc(n, 8);
    struct kv_seq_info q, f, h;
    k.head_dim = 4;
    OK(kv_arena_new(&e, &b.a, &k, (n + 8) * 4096));
    struct kv_store_opts o = {.lease_ns = LEASE, .transfer_ns = LEASE};
    OK(kv_store_new(&e, &b.s, b.a, &o, 0));
    OK(kv_store_join(&e, b.s, &b.c[0], 1, 1, 0));
    for (uint64_t i = 0; i < n; i++)
        memcpy(digests + i * KV_DIGEST, &i, 8);
    for (uint64_t i = 0; i < n * 32; i++)
        ids[i] = (uint32_t)i;
    OK(kv_store_lease(&e, b.s, b.c[0], &q, ids, n * 32, digests, n, true));
    for (uint64_t at = 0; at < n; at += 50) {
        OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, 50, false));
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
    OK(kv_store_lease(&e, b.s, b.c[0], &f, ids, n * 32, digests, n, true));
    OK(kv_store_transfer_out(&e, b.s, b.c[0], &h, q.seq, q.gen, 0));
    OK(kv_store_transfer_in(&e, b.s, b.c[0], &q, h.seq, h.gen));
    OK(kv_arena_table(&e, b.a, (int32_t *)out, n, q.seq, q.gen));
    kv_store_free(b.s);
    OK(kv_store_new(&e, &b.s, b.a, &o, 0));
    sound(&b);
    assert_int_equal(stat_of(&b).leased, n);
    for (uint32_t c = 0; c < 2; c++)
        kv_store_leave(b.s, c, 0);
    assert_int_equal(stat_of(&b).cached, n);
    OK(kv_store_join(&e, b.s, &b.c[0], 1, 1, 0));
    OK(kv_store_reserve(&e, b.s, b.c[0], slot, &got, n, false));
    assert_int_equal(got, n);
    free(digests);
    free(ids);
    free(slot);
    free(out);
    free(sum);
    fixture_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_runs_match_the_model),
        cmocka_unit_test(adopts_or_refuses_a_damaged_arena),
        cmocka_unit_test(a_million_tokens_in_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
