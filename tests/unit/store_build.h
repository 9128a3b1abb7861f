/* A store over a small arena, a record of its events, and calls that its tests share. */
#ifndef STORE_BUILD_H
#define STORE_BUILD_H

#include "kv/store.h"

#include "unit/kv_build.h"

#define S 1000000000ull
#define LEASE (10ull * S)

struct events {
    struct kv_seq_info seq[64];
    uint32_t seq_client[64];
    int n_seq, n_expired, n_stored, n_evicted, n_damaged;
    uint32_t expired;
    uint8_t evicted[4096][KV_DIGEST];
};

static inline void on_event(void *arg, const struct kv_event *n)
{
    struct events *h = arg;
    if (n->kind == KV_EVENT_SEQ && h->n_seq < 64) {
        h->seq_client[h->n_seq] = n->client;
        h->seq[h->n_seq++] = n->seq;
    }
    if (n->kind == KV_EVENT_EXPIRED) {
        h->n_expired++;
        h->expired = n->client;
    }
    h->n_stored += n->kind == KV_EVENT_STORED;
    h->n_damaged += n->kind == KV_EVENT_DAMAGED;
    if (n->kind == KV_EVENT_EVICTED)
        memcpy(h->evicted[h->n_evicted++ % 4096], n->digest, KV_DIGEST);
}

struct fixture {
    struct kv_arena *a;
    struct kv_store *s;
    struct events h;
    uint32_t c[8];
};

static inline void fixture_open_verify(struct fixture *b, uint64_t n_slot, enum kv_verify verify)
{
    struct err e = {0};
    memset(b, 0, sizeof *b);
    b->a = small_arena(n_slot);
    struct kv_store_opts o = {
        .lease_ns = LEASE, .transfer_ns = LEASE, .verify = verify, .on_event = on_event, .event_arg = &b->h};
    OK(kv_store_new(&e, &b->s, b->a, &o, 0));
    for (int i = 0; i < 4; i++)
        OK(kv_store_join(&e, b->s, &b->c[i], 100 + i, 7, 0));
}

static inline void fixture_open(struct fixture *b, uint64_t n_slot)
{
    fixture_open_verify(b, n_slot, KV_VERIFY_PUBLISH);
}

static inline void fixture_close(struct fixture *b)
{
    kv_store_free(b->s);
    kv_arena_free(b->a);
}

static inline void sound(struct fixture *b)
{
    struct err e = {0};
    OK(kv_store_check(&e, b->s));
}

/* Fills a slot with copies of the digest of its block. */
static inline void write_block(const struct fixture *b, uint32_t slot, const uint8_t *digest)
{
    uint8_t *p = kv_arena_bytes(b->a, slot);
    for (size_t i = 0; i < kv_arena_layout(b->a)->slot_bytes; i += KV_DIGEST)
        memcpy(p + i, digest, KV_DIGEST);
}

/* Computes blocks from the end of the sequence up to block `to` of the prompt, and publishes them. */
static inline int publish(struct err *e, struct fixture *b, uint32_t client, struct kv_seq_info *q,
                          const struct prompt *p, uint64_t to)
{
    uint64_t n = to - q->n_block, got;
    uint32_t slot[DEPTH_MAX], out[DEPTH_MAX];
    uint64_t sum[DEPTH_MAX];
    int rc = kv_store_reserve(e, b->s, client, slot, &got, n, false);
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
                           .ids = p->ids + q->n_block * KV_BLOCK,
                           .tail = KV_NONE};
    rc = kv_store_publish(e, b->s, client, out, &u);
    uint32_t back[DEPTH_MAX];
    uint64_t n_back = 0;
    for (uint64_t k = 0; k < n; k++)
        if (rc || out[k] != slot[k])
            back[n_back++] = slot[k];
    struct err f = {0};
    kv_store_release_slots(&f, b->s, client, back, n_back);
    if (!rc)
        q->n_block += n;
    return rc;
}

static inline int lease(struct err *e, struct fixture *b, uint32_t client, struct kv_seq_info *q,
                        const struct prompt *p, bool wait)
{
    return kv_store_lease(e, b->s, client, q, p->ids, p->n * KV_BLOCK, p->digests, p->n, wait);
}

#define HANDLE_BYTES (KV_HANDLE_BYTES + 8) /* bytes that the store ignores follow, as in the handles of workers */

/* Ends a transfer by the first n bytes of its handle. */
static inline int end_transfer(struct err *e, struct fixture *b, const struct kv_seq_info *q, size_t n)
{
    uint8_t handle[HANDLE_BYTES];
    memset(handle, 0xff, sizeof handle);
    for (int i = 0; i < 8; i++) {
        handle[i] = (uint8_t)(q->seq >> 8 * i);
        handle[8 + i] = (uint8_t)(q->gen >> 8 * i);
    }
    return kv_store_end_transfer(e, b->s, handle, n);
}

static inline void holds_prefix(const struct fixture *b, const struct kv_seq_info *q, const struct prompt *p)
{
    struct err e = {0};
    int32_t table[DEPTH_MAX];
    OK(kv_arena_table(&e, b->a, table, q->n_block, q->seq, q->gen));
    for (uint64_t k = 0; k < q->n_block; k++)
        assert_memory_equal(kv_arena_bytes(b->a, (uint64_t)table[k]) + KV_DIGEST, p->digests + k * KV_DIGEST,
                            KV_DIGEST);
}

static inline struct kv_store_stat stat_of(const struct fixture *b)
{
    struct kv_store_stat t;
    kv_store_stat(b->s, &t);
    assert_int_equal(t.free + t.cached + t.leased + t.quarantined + t.reserved, t.total);
    return t;
}

static const uint8_t path_a[8] = {1, 1, 1, 1, 1, 1, 1, 1}, path_b[8] = {1, 1, 2, 2, 2, 2, 2, 2}, path_c[8] = {3};

static uint64_t dice_state = 0x9e3779b97f4a7c15u;
static inline uint64_t dice(uint64_t n)
{
    dice_state ^= dice_state << 13;
    dice_state ^= dice_state >> 7;
    dice_state ^= dice_state << 17;
    return dice_state % n;
}

#endif
