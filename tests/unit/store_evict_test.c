/* Eviction: single cases, and random runs compared with a linear search over a list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "unit/store_build.h"

static bool was_evicted(const struct fixture *b, int i, const struct prompt *p, uint64_t k)
{
    return i < b->h.n_evicted && !memcmp(b->h.evicted[i], p->digests + k * KV_DIGEST, KV_DIGEST);
}

/* Of two chains without references, a (used once) is evicted before c (used three times), last block first. */
static void evicts_by_uses_and_recency(void **state)
{
    (void)state;
    struct err e = {0};
    struct fixture b;
    struct prompt a, c;
    struct kv_seq_info q;
    uint32_t slot[8];
    uint64_t got;
    fixture_open(&b, 8);
    prompt_of(&a, path_a, 3);
    prompt_of(&c, path_c, 2);
    for (int i = 0; i < 3; i++) {
        OK(lease(&e, &b, b.c[0], &q, &c, true));
        OK(publish(&e, &b, b.c[0], &q, &c, 2));
        OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    }
    OK(lease(&e, &b, b.c[0], &q, &a, true));
    OK(publish(&e, &b, b.c[0], &q, &a, 3));
    OK(kv_store_reserve(&e, b.s, b.c[1], slot, &got, 3, false)); /* all free slots */
    assert_int_equal(b.h.n_evicted, 0);
    IS_NO(kv_store_reserve(&e, b.s, b.c[1], slot, &got, 3, false), "3 blocks requested, 2"); /* a is leased */
    OK(kv_store_release(&e, b.s, b.c[0], q.seq, q.gen));
    OK(kv_store_reserve(&e, b.s, b.c[1], slot + 3, &got, 4, false));
    assert_true(was_evicted(&b, 0, &a, 2) && was_evicted(&b, 1, &a, 1) && was_evicted(&b, 2, &a, 0));
    assert_true(was_evicted(&b, 3, &c, 1));
    sound(&b);
    fixture_close(&b);
}

/* ---- compared with a list ---- */

#define N_SLOT 48
#define N_KNOWN 4096
#define N_HELD 5

struct known { /* a block that was cached at some time; parent: its index in the list, or -1 */
    uint8_t digest[KV_DIGEST];
    int parent;
    bool here;
    uint64_t refs, uses, tick, prio;
};

struct list {
    struct known k[N_KNOWN];
    int n, n_here, n_reserved, n_gone;
    uint64_t tick, aged;
    int gone[N_KNOWN * 4]; /* in order */
};

static int block_of_digest(struct list *l, const uint8_t *digest, int parent)
{
    int i = 0;
    while (i < l->n && memcmp(l->k[i].digest, digest, KV_DIGEST))
        i++;
    if (i == l->n) {
        assert_true(l->n < N_KNOWN);
        l->k[l->n++] = (struct known){.parent = parent};
        memcpy(l->k[i].digest, digest, KV_DIGEST);
    }
    return i;
}

static bool is_leaf(const struct list *l, int i)
{
    for (int j = 0; j < l->n; j++)
        if (l->k[j].here && l->k[j].parent == i)
            return false;
    return true;
}

/* The eviction rule of lib/kv/store_blocks.c, by linear search. */
static void make_room(struct list *l)
{
    int best = -1;
    for (int i = 0; i < l->n; i++)
        if (l->k[i].here && !l->k[i].refs && is_leaf(l, i) &&
            (best < 0 || l->k[i].prio < l->k[best].prio ||
             (l->k[i].prio == l->k[best].prio && l->k[i].tick < l->k[best].tick)))
            best = i;
    assert_true(best >= 0);
    l->k[best].here = false;
    l->n_here--;
    l->aged = l->k[best].prio > l->aged ? l->k[best].prio : l->aged;
    l->gone[l->n_gone++] = best;
}

static void list_lease(struct list *l, const struct prompt *p, int *chain)
{
    for (uint64_t d = 0; d < p->n; d++) {
        int i = chain[d] = block_of_digest(l, p->digests + d * KV_DIGEST, d ? chain[d - 1] : -1);
        if (l->k[i].here) {
            l->k[i].refs++;
            l->k[i].uses++;
        }
    }
    for (uint64_t d = 0; d < p->n; d++) /* as the store does: slots for all missing blocks first, then the blocks */
        if (!l->k[chain[d]].here && l->n_here + l->n_reserved++ == N_SLOT)
            make_room(l);
    for (uint64_t d = 0; d < p->n; d++) {
        struct known *k = &l->k[chain[d]];
        if (k->here)
            continue;
        k->here = true;
        k->refs = k->uses = 1;
        l->n_here++;
        l->n_reserved--;
    }
}

static void list_drop(struct list *l, const int *chain, uint64_t n)
{
    l->tick += n;
    for (uint64_t d = 0; d < n; d++) {
        struct known *k = &l->k[chain[d]];
        if (--k->refs)
            continue;
        k->tick = l->tick - d;
        k->prio = l->aged + (k->uses < 64 ? k->uses : 64);
    }
}

static void evicts_as_a_linear_search_does(void **state)
{
    (void)state;
    struct err e = {0};
    static struct list l;
    for (uint64_t run = 1; run <= 6; run++) {
        struct fixture b;
        struct {
            struct kv_seq_info q;
            struct prompt p;
            int chain[DEPTH_MAX];
            bool used;
        } *h = calloc(N_HELD, sizeof *h);
        memset(&l, 0, sizeof l);
        dice_state = run * 0x9e3779b97f4a7c15u;
        fixture_open(&b, N_SLOT);
        for (int i = 0; i < 3000; i++) {
            uint8_t path[8];
            uint64_t k = dice(N_HELD);
            if (h[k].used) {
                OK(kv_store_release(&e, b.s, b.c[0], h[k].q.seq, h[k].q.gen));
                list_drop(&l, h[k].chain, h[k].p.n);
                h[k].used = false;
            } else {
                for (int d = 0; d < 8; d++)
                    path[d] = (uint8_t)(dice(3) ? 0 : dice(3));
                prompt_of(&h[k].p, path, 1 + dice(8));
                OK(lease(&e, &b, b.c[0], &h[k].q, &h[k].p, false));
                OK(publish(&e, &b, b.c[0], &h[k].q, &h[k].p, h[k].p.n));
                list_lease(&l, &h[k].p, h[k].chain);
                h[k].used = true;
            }
            assert_int_equal(b.h.n_evicted, l.n_gone);
            for (int g = 0; g < l.n_gone; g++)
                assert_memory_equal(b.h.evicted[g], l.k[l.gone[g]].digest, KV_DIGEST);
            b.h.n_evicted = l.n_gone = 0;
            sound(&b);
        }
        assert_true(stat_of(&b).evicted > 500);
        fixture_close(&b);
        free(h);
    }
}

/* ---- the benefit ---- */

static uint64_t lease_and_publish(struct fixture *b, const struct prompt *p)
{
    struct err e = {0};
    struct kv_seq_info q;
    OK(lease(&e, b, b->c[0], &q, p, false));
    uint64_t hit = q.n_block;
    OK(publish(&e, b, b->c[0], &q, p, p->n));
    OK(kv_store_release(&e, b->s, b->c[0], q.seq, q.gen));
    return hit;
}

static void once_only(struct prompt *p, uint32_t n)
{
    prompt_of(p, (const uint8_t[]){9, 9, 9}, 3);
    for (int d = 0; d < 3; d++)
        memcpy(p->digests + d * KV_DIGEST + 20, &n, sizeof n);
}

/* Every ninth request has the same cached prefix of 12 blocks; the others have 3 blocks that are used once, in 32
 * slots. Plain LRU would evict the prefix each time, since 24 other blocks are used between. When no request uses the
 * prefix any longer, it is evicted. */
static void keeps_a_used_prefix_during_a_scan(void **state)
{
    (void)state;
    static const uint8_t path[12] = {5};
    struct fixture b;
    struct prompt hot, cold;
    uint64_t hits = 0;
    uint32_t n = 0;
    fixture_open(&b, 32);
    prompt_of(&hot, path, 12);
    for (int i = 0; i < 3; i++)
        lease_and_publish(&b, &hot);
    for (int i = 0; i < 40; i++) {
        hits += lease_and_publish(&b, &hot);
        for (int k = 0; k < 8; k++) {
            once_only(&cold, n++);
            lease_and_publish(&b, &cold);
        }
    }
    assert_int_equal(hits, 40 * 12);
    for (int k = 0; k < 64 * 32; k++) {
        once_only(&cold, n++);
        lease_and_publish(&b, &cold);
    }
    assert_int_equal(lease_and_publish(&b, &hot), 0);
    fixture_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicts_by_uses_and_recency),
        cmocka_unit_test(evicts_as_a_linear_search_does),
        cmocka_unit_test(keeps_a_used_prefix_during_a_scan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
