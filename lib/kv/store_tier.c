/*
 * The store's use of the file tier: which blocks are written, and which are read. A sequence waits for a read as it
 * does for a block that another client computes; nothing else waits. A block that is not read in time counts as
 * missing, and until a read completes no other is started.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/time.h"
#include "kv/store_impl.h"

static const uint8_t zero[KV_DIGEST]; /* the parent digest of a first block */

/* ---- writing ---- */

void slot_dirty(struct kv_store *s, uint32_t i)
{
    struct slot_side *d = &s->slot[i];
    if (!s->o.tier || d->dirty || d->on_disk)
        return;
    d->dirty = true;
    d->dirty_prev = s->last_dirty;
    d->dirty_next = KV_NONE;
    if (s->last_dirty != KV_NONE)
        s->slot[s->last_dirty].dirty_next = i;
    else
        s->first_dirty = i;
    s->last_dirty = i;
}

void slot_undirty(struct kv_store *s, uint32_t i)
{
    struct slot_side *d = &s->slot[i];
    if (!d->dirty)
        return;
    d->dirty = false;
    *(d->dirty_prev != KV_NONE ? &s->slot[d->dirty_prev].dirty_next : &s->first_dirty) = d->dirty_next;
    *(d->dirty_next != KV_NONE ? &s->slot[d->dirty_next].dirty_prev : &s->last_dirty) = d->dirty_prev;
}

static void report(struct kv_store *s, const char *text)
{
    store_emit(s, &(struct kv_event){.kind = KV_EVENT_TIER, .text = text});
}

static void dropped_from_tier(struct kv_store *s, const uint8_t *digest)
{
    uint32_t i = slot_find(s, digest);
    if (i != KV_NONE)
        s->slot[i].on_disk = false;
    else
        store_emit(s, &(struct kv_event){.kind = KV_EVENT_EVICTED, .digest = digest});
}

/* If the disk is full, slow or broken, evicted blocks are lost; those in memory are not affected. */
void slot_to_tier(struct kv_store *s, uint32_t i)
{
    struct kv_slot *p = slot_of(s, i);
    struct kv_tier_block b = {.sum = p->sum};
    struct err e = {0};
    uint8_t dropped[KV_DIGEST];
    bool has_dropped;
    slot_undirty(s, i);
    memcpy(b.digest, p->digest, KV_DIGEST);
    memcpy(b.parent, p->parent, KV_DIGEST);
    b.ids = p->ids;
    s->slot[i].on_disk = !kv_tier_put(&e, s->o.tier, dropped, &has_dropped, &b, kv_arena_bytes(s->a, i));
    if (!s->slot[i].on_disk && !s->tier_overloaded) {
        s->tier_overloaded = true;
        report(s, "the disk writes blocks more slowly than they are evicted: some are not stored");
    }
    if (has_dropped)
        dropped_from_tier(s, dropped);
}

bool kv_store_flush(struct kv_store *s)
{
    if (s->first_dirty == KV_NONE || !kv_tier_room(s->o.tier))
        return false;
    slot_to_tier(s, s->first_dirty);
    return s->first_dirty != KV_NONE && kv_tier_room(s->o.tier);
}

/* ---- reading ---- */

struct claim *tier_claim(struct kv_store *s, uint32_t i, uint64_t n)
{
    const struct seq_side *q = &s->seq[i];
    const uint8_t *digest = q->digests + n * KV_DIGEST;
    struct kv_ids_hash ids = kv_ids_hash(q->ids + n * KV_BLOCK);
    struct kv_tier_block b;
    struct err e = {0};
    if (!s->o.tier || s->tier_stalled || q->no_tier || !slots_available(s) || !kv_tier_find(s->o.tier, &b, digest) ||
        b.ids.lo != ids.lo || b.ids.hi != ids.hi ||
        memcmp(b.parent, n ? slot_of(s, seq_block(s, i, n - 1))->digest : zero, KV_DIGEST))
        return NULL;
    struct claim *c = claim_read(s, digest, s->o.tier_ns ? s->now_ns + s->o.tier_ns : UINT64_MAX);
    if (c && kv_tier_get(&e, s->o.tier, digest)) {
        uint32_t first = KV_NONE, last = KV_NONE;
        claim_end(s, c, &first, &last);
        return NULL;
    }
    return c;
}

/* Continues the look-up of the sequences that waited for c; without_tier: in memory only. */
static void finish_claim(struct kv_store *s, struct claim *c, bool without_tier)
{
    uint32_t first = KV_NONE, last = KV_NONE;
    claim_end(s, c, &first, &last);
    for (uint32_t i = first; i != KV_NONE && without_tier; i = s->seq[i].wait_next)
        s->seq[i].no_tier = true;
    claims_wake(s, first);
}

/* Copies a read block into a slot. False: no slot is free. */
static bool load_block(struct kv_store *s, const struct kv_tier_done *d)
{
    uint32_t i = slot_get(s), parent = memcmp(d->b.parent, zero, KV_DIGEST) ? slot_find(s, d->b.parent) : KV_NONE;
    if (i == KV_NONE)
        return false;
    memcpy(kv_arena_bytes(s->a, i), d->bytes,
           kv_arena_layout(s->a)->layer_bytes * (size_t)kv_arena_layout(s->a)->n_layer);
    slot_name(s, i, d->b.digest, d->b.parent, parent, d->b.ids, d->b.sum);
    s->slot[i].on_disk = kv_tier_has(s->o.tier, d->b.digest);
    slot_released(s, i, ++kv_arena_head_mut(s->a)->tick); /* waiting sequences add references next, if they can */
    return true;
}

static void read_done(struct kv_store *s, const struct kv_tier_done *d)
{
    struct claim *c = claim_find(s, d->b.digest);
    if (s->tier_stalled) {
        s->tier_stalled = false;
        report(s, "the disk has completed a read: the file tier is used again");
    }
    if (!c || c->seq != KV_NONE)
        return;
    bool wanted = c->first_wait != KV_NONE && slot_find(s, d->b.digest) == KV_NONE;
    finish_claim(s, c, d->what != KV_TIER_READ || (wanted && !load_block(s, d)));
}

void kv_store_tier(struct kv_store *s)
{
    struct kv_tier_done d;
    while (s->o.tier && kv_tier_next(s->o.tier, &d)) {
        if (d.text)
            report(s, d.text);
        if (d.what == KV_TIER_LOST || (d.what == KV_TIER_MISSING && d.text))
            dropped_from_tier(s, d.b.digest);
        if (d.what != KV_TIER_LOST)
            read_done(s, &d);
    }
}

static struct claim *first_read(const struct kv_store *s)
{
    return list_empty(&s->reads) ? NULL : list_entry(s->reads.next, struct claim, node);
}

uint64_t tier_tick(struct kv_store *s)
{
    struct claim *c;
    while ((c = first_read(s)) && c->end_ns <= s->now_ns) {
        char text[128];
        snprintf(text, sizeof text,
                 "the disk did not read a block within %" PRIu64 " ms: until it does, blocks on disk count as missing",
                 s->o.tier_ns / NS_MS);
        if (!s->tier_stalled)
            report(s, text);
        s->tier_stalled = true;
        finish_claim(s, c, true);
    }
    return c ? c->end_ns : UINT64_MAX;
}
