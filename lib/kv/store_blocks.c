/*
 * Slots: their classes, the index by digest, and eviction. A full block can be evicted if it has no references and no
 * cached block follows it. The block with the lowest priority is evicted first (LFU with dynamic aging: the priority is
 * the number of uses, plus the priority of the last evicted block at the time of the last use); of equal ones the least
 * recently used.
 */
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/store_impl.h"

#define USES_MAX 64 /* limit of the uses that count for the priority */

/* ---- classes ---- */

static uint64_t *class_of(struct kv_store *s, uint32_t i)
{
    switch ((enum kv_slot_state)slot_of(s, i)->state) {
    case KV_FREE:
        return NULL;
    case KV_RESERVED:
        return &s->n_reserved;
    case KV_NAMED:
        return s->slot[i].refs ? &s->n_leased : &s->n_cached;
    case KV_PRIVATE:
        return &s->n_leased;
    case KV_QUARANTINE:
        return &s->n_quarantined;
    }
    return NULL;
}

void slot_count(struct kv_store *s, uint32_t i, int by)
{
    uint64_t *n = class_of(s, i);
    if (n)
        *n += (uint64_t)(int64_t)by;
}

void slot_link_writer(struct kv_store *s, uint32_t i, uint32_t client)
{
    uint32_t *first = &s->client[client].first_slot;
    s->slot[i].prev = KV_NONE;
    s->slot[i].next = *first;
    if (*first != KV_NONE)
        s->slot[*first].prev = i;
    *first = i;
}

static void slot_unlink_writer(struct kv_store *s, uint32_t i)
{
    struct slot_side *d = &s->slot[i];
    uint32_t writer = slot_of(s, i)->writer;
    if (!writer)
        return;
    if (d->prev != KV_NONE)
        s->slot[d->prev].next = d->next;
    else
        s->client[writer - 1].first_slot = d->next;
    if (d->next != KV_NONE)
        s->slot[d->next].prev = d->prev;
    d->prev = d->next = KV_NONE;
}

void slot_set(struct kv_store *s, uint32_t i, enum kv_slot_state state, uint32_t writer)
{
    struct kv_slot *p = slot_of(s, i);
    slot_count(s, i, -1);
    if (p->writer != writer) {
        slot_unlink_writer(s, i);
        p->writer = writer;
        if (writer)
            slot_link_writer(s, i, writer - 1);
    }
    /* A store that adopts the arena after a kill must see the state change last. */
    atomic_signal_fence(memory_order_seq_cst);
    p->state = (uint32_t)state;
    slot_count(s, i, 1);
}

void slot_free(struct kv_store *s, uint32_t i)
{
    atomic_fetch_add_explicit(&slot_of(s, i)->gen, 1, memory_order_release);
    slot_set(s, i, KV_FREE, 0);
    slot_of(s, i)->n_id = 0;
    s->slot[i].refs = 0;
    s->free_slot[s->n_free++] = i;
}

/* ---- index ---- */

/* Seeded, so that a client cannot choose digests that collide. */
static uint64_t bucket_of(const struct kv_store *s, const uint8_t *digest)
{
    return XXH3_64bits_withSeed(digest, KV_DIGEST, kv_arena_head(s->a)->id) & (s->n_bucket - 1);
}

uint32_t slot_find(const struct kv_store *s, const uint8_t *digest)
{
    uint32_t i = s->bucket[bucket_of(s, digest)];
    while (i != KV_NONE && memcmp(slot_of(s, i)->digest, digest, KV_DIGEST))
        i = s->slot[i].hash_next;
    return i;
}

/* If the parent of the slot was evicted, only the ids are compared. */
bool slot_is(const struct kv_store *s, uint32_t i, struct kv_ids_hash ids, uint32_t parent)
{
    return slot_of(s, i)->ids.lo == ids.lo && slot_of(s, i)->ids.hi == ids.hi &&
           (s->slot[i].parent == KV_NONE || s->slot[i].parent == parent);
}

void slot_index(struct kv_store *s, uint32_t i)
{
    uint32_t *b = &s->bucket[bucket_of(s, slot_of(s, i)->digest)];
    s->slot[i].hash_next = *b;
    *b = i;
}

static void slot_unindex(struct kv_store *s, uint32_t i)
{
    uint32_t *b = &s->bucket[bucket_of(s, slot_of(s, i)->digest)];
    while (*b != i)
        b = &s->slot[*b].hash_next;
    *b = s->slot[i].hash_next;
}

void slot_adopt_child(struct kv_store *s, uint32_t i, uint32_t parent)
{
    if (parent != KV_NONE && slot_of(s, parent)->state != KV_NAMED)
        parent = KV_NONE;
    s->slot[i].parent = parent;
    if (parent != KV_NONE)
        s->slot[parent].n_child++;
}

void slot_name(struct kv_store *s, uint32_t i, const uint8_t *digest, const uint8_t *parent, uint32_t parent_slot,
               struct kv_ids_hash ids, uint64_t sum)
{
    struct kv_slot *p = slot_of(s, i);
    memcpy(p->digest, digest, KV_DIGEST);
    memcpy(p->parent, parent, KV_DIGEST);
    p->ids = ids;
    p->n_id = KV_BLOCK;
    p->n_use = 0;
    p->sum = sum;
    s->slot[i].verified = 0;
    slot_set(s, i, KV_NAMED, 0);
    s->slot[i].n_child = 0;
    s->slot[i].on_disk = false;
    slot_adopt_child(s, i, parent_slot);
    slot_index(s, i);
}

/* ---- the heap of evictable slots ---- */

static bool before(const struct kv_store *s, uint32_t i, uint32_t j)
{
    uint64_t a = s->slot[i].prio, b = s->slot[j].prio;
    return a != b ? a < b : slot_of(s, i)->tick < slot_of(s, j)->tick;
}

static void heap_put(struct kv_store *s, uint64_t at, uint32_t i)
{
    s->heap[at] = i;
    s->slot[i].heap_at = (uint32_t)at;
}

static void heap_up(struct kv_store *s, uint64_t at)
{
    uint32_t i = s->heap[at];
    for (; at && before(s, i, s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap_put(s, at, s->heap[(at - 1) / 2]);
    heap_put(s, at, i);
}

static void heap_down(struct kv_store *s, uint64_t at)
{
    uint32_t i = s->heap[at];
    for (uint64_t child; (child = 2 * at + 1) < s->n_heap; at = child) {
        if (child + 1 < s->n_heap && before(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!before(s, s->heap[child], i))
            break;
        heap_put(s, at, s->heap[child]);
    }
    heap_put(s, at, i);
}

static void heap_remove(struct kv_store *s, uint32_t i)
{
    uint64_t at = s->slot[i].heap_at;
    if (at == KV_NONE)
        return;
    s->slot[i].heap_at = KV_NONE;
    uint32_t last = s->heap[--s->n_heap];
    if (last == i)
        return;
    heap_put(s, at, last);
    heap_up(s, at);
    heap_down(s, s->slot[last].heap_at);
}

void slot_evictable(struct kv_store *s, uint32_t i)
{
    struct slot_side *d = &s->slot[i];
    if (slot_of(s, i)->state != KV_NAMED || d->refs || d->n_child || d->heap_at != KV_NONE)
        return;
    heap_put(s, s->n_heap++, i);
    heap_up(s, d->heap_at);
}

void slot_released(struct kv_store *s, uint32_t i, uint64_t tick)
{
    struct kv_slot *p = slot_of(s, i);
    p->tick = tick;
    s->slot[i].prio = s->aged + (p->n_use < USES_MAX ? p->n_use : USES_MAX);
    slot_evictable(s, i);
}

/* ---- references ---- */

void slot_ref(struct kv_store *s, uint32_t i)
{
    slot_count(s, i, -1);
    if (!s->slot[i].refs++)
        heap_remove(s, i);
    slot_of(s, i)->n_use++;
    slot_count(s, i, 1);
}

void slot_unref(struct kv_store *s, uint32_t i, uint64_t tick)
{
    struct kv_slot *p = slot_of(s, i);
    slot_count(s, i, -1);
    uint32_t refs = --s->slot[i].refs;
    slot_count(s, i, 1);
    if (refs)
        return;
    if (p->state != KV_NAMED) {
        slot_free(s, i);
        return;
    }
    slot_released(s, i, tick);
}

/* ---- allocation ---- */

static void evict(struct kv_store *s, uint32_t i)
{
    struct kv_slot *p = slot_of(s, i);
    uint8_t digest[KV_DIGEST];
    heap_remove(s, i);
    if (s->o.tier && !s->slot[i].on_disk)
        slot_to_tier(s, i);
    slot_undirty(s, i);
    s->aged = s->slot[i].prio > s->aged ? s->slot[i].prio : s->aged;
    slot_unindex(s, i);
    memcpy(digest, p->digest, KV_DIGEST);
    uint32_t parent = s->slot[i].parent;
    if (parent != KV_NONE) {
        s->slot[parent].n_child--;
        slot_evictable(s, parent);
    }
    s->slot[i].parent = KV_NONE;
    s->evicted++;
    slot_free(s, i);
    if (!s->slot[i].on_disk)
        store_emit(s, &(struct kv_event){.kind = KV_EVENT_EVICTED, .digest = digest});
    s->slot[i].on_disk = false;
}

void slot_forget(struct kv_store *s, uint32_t i)
{
    struct slot_side *d = &s->slot[i];
    uint8_t digest[KV_DIGEST];
    memcpy(digest, slot_of(s, i)->digest, KV_DIGEST);
    heap_remove(s, i);
    slot_undirty(s, i);
    slot_unindex(s, i);
    if (d->parent != KV_NONE) {
        s->slot[d->parent].n_child--;
        slot_evictable(s, d->parent);
    }
    d->parent = KV_NONE;
    if (d->refs)
        slot_set(s, i, KV_PRIVATE, 0);
    else
        slot_free(s, i);
    if (!d->on_disk)
        store_emit(s, &(struct kv_event){.kind = KV_EVENT_EVICTED, .digest = digest});
    d->on_disk = false;
}

uint64_t slots_available(const struct kv_store *s)
{
    return s->n_free + s->n_cached;
}

uint32_t slot_get(struct kv_store *s)
{
    if (!s->n_free && s->n_heap)
        evict(s, s->heap[0]);
    if (!s->n_free)
        return KV_NONE;
    return s->free_slot[--s->n_free];
}
