/*
 * Claims. A sequence claims the blocks of its prompt that are not cached. Another sequence that needs a claimed block
 * waits, and continues its look-up when the block is published, or when the claim ends without it: then the first
 * waiting sequence claims the block. So a hundred cold requests with one prompt compute it once. A read from the file
 * tier is a claim without a sequence; sequences wait for it in the same way.
 */
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/store_impl.h"

static struct claim **bucket(const struct kv_store *s, const uint8_t *digest)
{
    uint64_t h = XXH3_64bits_withSeed(digest, KV_DIGEST, kv_arena_head(s->a)->id);
    return &s->claim_bucket[h & (s->n_bucket - 1)];
}

struct claim *claim_find(const struct kv_store *s, const uint8_t *digest)
{
    struct claim *c = *bucket(s, digest);
    while (c && memcmp(c->digest, digest, KV_DIGEST))
        c = c->hash_next;
    return c;
}

static struct claim *make(struct kv_store *s, uint32_t seq, const uint8_t *digest)
{
    struct claim *c = calloc(1, sizeof *c), **b = bucket(s, digest);
    if (!c)
        return NULL;
    memcpy(c->digest, digest, KV_DIGEST);
    c->seq = seq;
    c->first_wait = c->last_wait = KV_NONE;
    c->hash_next = *b;
    *b = c;
    return c;
}

/* False: no memory. */
static bool claim_make(struct kv_store *s, uint32_t seq, const uint8_t *digest)
{
    struct claim *c = make(s, seq, digest);
    if (c)
        list_push_front(&s->seq[seq].claims, &c->node);
    return c != NULL;
}

struct claim *claim_read(struct kv_store *s, const uint8_t *digest, uint64_t end_ns)
{
    struct claim *c = make(s, KV_NONE, digest);
    if (!c)
        return NULL;
    c->end_ns = end_ns;
    list_push_back(&s->reads, &c->node);
    return c;
}

static void claim_wait(struct kv_store *s, struct claim *c, uint32_t seq)
{
    struct seq_side *q = &s->seq[seq];
    q->waits_for = c;
    q->wait_prev = c->last_wait;
    q->wait_next = KV_NONE;
    *(c->last_wait != KV_NONE ? &s->seq[c->last_wait].wait_next : &c->first_wait) = seq;
    c->last_wait = seq;
    seq_of(s, seq)->waits = 1;
    s->n_waiting++;
}

static void claim_unwait(struct kv_store *s, uint32_t seq)
{
    struct seq_side *q = &s->seq[seq];
    struct claim *c = q->waits_for;
    if (!c)
        return;
    *(q->wait_prev != KV_NONE ? &s->seq[q->wait_prev].wait_next : &c->first_wait) = q->wait_next;
    *(q->wait_next != KV_NONE ? &s->seq[q->wait_next].wait_prev : &c->last_wait) = q->wait_prev;
    q->waits_for = NULL;
    seq_of(s, seq)->waits = 0;
    q->wait_prev = q->wait_next = KV_NONE;
    s->n_waiting--;
}

void claim_end(struct kv_store *s, struct claim *c, uint32_t *first, uint32_t *last)
{
    struct claim **b = bucket(s, c->digest);
    while (*b != c)
        b = &(*b)->hash_next;
    *b = c->hash_next;
    list_remove(&c->node);
    while (c->first_wait != KV_NONE) {
        uint32_t i = c->first_wait;
        claim_unwait(s, i);
        *(*last != KV_NONE ? &s->seq[*last].wait_next : first) = i;
        s->seq[i].wait_prev = *last; /* a separate list until claims_wake */
        *last = i;
    }
    free(c);
}

static void claims_end(struct kv_store *s, uint32_t seq, uint32_t *first, uint32_t *last)
{
    list_each_safe (struct claim, c, &s->seq[seq].claims, node)
        claim_end(s, c, first, last);
}

/* Blocks are read from the file tier one at a time; the event is emitted when no more are being read. */
void claims_wake(struct kv_store *s, uint32_t first)
{
    while (first != KV_NONE) {
        uint32_t i = first;
        struct seq_side *q = &s->seq[i];
        first = q->wait_next;
        q->wait_prev = q->wait_next = KV_NONE;
        uint64_t had = seq_of(s, i)->n_block;
        seq_grow(s, i);
        struct kv_event n = {.kind = KV_EVENT_SEQ, .client = seq_of(s, i)->owner - 1};
        seq_info(s, &n.seq, i);
        q->unreported = q->unreported || n.seq.n_block != had || !n.seq.pending;
        if (!q->unreported || (q->waits_for && q->waits_for->seq == KV_NONE))
            continue;
        q->unreported = false;
        store_emit(s, &n);
    }
}

static void free_plan(struct seq_side *q)
{
    free(q->ids);
    free(q->digests);
    q->ids = NULL;
    q->digests = NULL;
    q->n_want = 0;
}

/* The slot of block n, the next one of the sequence, or KV_NONE. *there: a slot has its digest. */
static uint32_t next_block(struct kv_store *s, uint32_t i, uint64_t n, bool *there)
{
    const struct seq_side *q = &s->seq[i];
    uint32_t slot = slot_find(s, q->digests + n * KV_DIGEST), parent = n ? seq_block(s, i, n - 1) : KV_NONE;
    *there = slot != KV_NONE;
    if (*there && !slot_verify(s, slot)) {
        *there = false; /* it may be on disk */
        return KV_NONE;
    }
    return *there && slot_is(s, slot, kv_ids_hash(q->ids + n * KV_BLOCK), parent) ? slot : KV_NONE;
}

void seq_grow(struct kv_store *s, uint32_t i)
{
    struct seq_side *q = &s->seq[i];
    uint64_t n = seq_of(s, i)->n_block;
    bool there = false;
    for (; n < q->n_want; n++) {
        uint32_t slot = next_block(s, i, n, &there);
        if (slot == KV_NONE || !seq_append(s, i, slot))
            break;
        s->hit_blocks++;
    }
    struct claim *c = n < q->n_want ? claim_find(s, q->digests + n * KV_DIGEST) : NULL;
    if (!c && n < q->n_want && !there)
        c = tier_claim(s, i, n);
    if (c && c->seq != i && (c->seq == KV_NONE ? !q->no_tier : q->wait)) {
        claim_wait(s, c, i);
        return;
    }
    s->miss_blocks += q->n_want - n;
    for (; n < q->n_want; n++)
        if (!claim_find(s, q->digests + n * KV_DIGEST) && !claim_make(s, i, q->digests + n * KV_DIGEST))
            break; /* memory allocation failed: without a claim, another sequence may compute the block too */
    free_plan(q);
}

void seq_stop(struct kv_store *s, uint32_t i, uint32_t *first, uint32_t *last)
{
    claim_unwait(s, i);
    free_plan(&s->seq[i]);
    claims_end(s, i, first, last);
}
