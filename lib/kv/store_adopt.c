/*
 * Adoption: rebuilds the state outside the arena from the arena. The previous store may have been killed between any
 * two writes, and the file is untrusted input: an inconsistent slot or sequence is dropped, the rest is used. The
 * verification of a store (kv_store_check) is here too.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store_impl.h"

/* ---- clients ---- */

static void adopt_clients(struct kv_store *s, uint64_t now_ns)
{
    for (uint32_t i = 0; i < s->n_client; i++) {
        if (!kv_arena_client(s->a, i)->id)
            continue;
        s->client[i].state = CLIENT_ABSENT;
        s->client[i].end_ns = now_ns + s->o.lease_ns;
        s->n_connected++;
    }
}

static bool is_client(const struct kv_store *s, uint32_t writer)
{
    return writer && writer <= s->n_client && s->client[writer - 1].state != CLIENT_NONE;
}

/* ---- slots ---- */

/* A slot with an invalid state, or with a digest that is indexed already, becomes free. */
static void adopt_slot(struct kv_store *s, uint32_t i)
{
    struct kv_slot *p = slot_of(s, i);
    bool named = p->state == KV_NAMED;
    if (p->state > KV_QUARANTINE || (named && (p->n_id != KV_BLOCK || slot_find(s, p->digest) != KV_NONE)) ||
        ((p->state == KV_RESERVED || p->state == KV_QUARANTINE) && !is_client(s, p->writer)))
        p->state = KV_FREE;
    if (p->state == KV_FREE || p->state == KV_NAMED || !is_client(s, p->writer))
        p->writer = 0;
    if (p->writer)
        slot_link_writer(s, i, p->writer - 1);
    if (p->state == KV_NAMED)
        slot_index(s, i);
}

static void adopt_slots(struct kv_store *s)
{
    for (uint32_t i = 0; i < s->n_slot; i++)
        adopt_slot(s, i);
    for (uint32_t i = 0; i < s->n_slot; i++) {
        const struct kv_slot *p = slot_of(s, i);
        uint32_t parent = p->state == KV_NAMED ? slot_find(s, p->parent) : KV_NONE;
        if (parent != KV_NONE && parent != i)
            slot_adopt_child(s, i, parent);
    }
}

/* After adopt_seq: slots without references become cached or free, or quarantined if a client may still write them. */
static void finish_slots(struct kv_store *s)
{
    for (uint32_t k = 0; k < s->n_slot; k++) {
        uint32_t i = (uint32_t)s->n_slot - 1 - k; /* low slots on top of the stack */
        struct kv_slot *p = slot_of(s, i);
        if (p->state == KV_PRIVATE && !s->slot[i].refs) {
            if (!p->writer) {
                p->state = KV_FREE;
                atomic_fetch_add_explicit(&p->gen, 1, memory_order_release);
            } else {
                p->state = KV_QUARANTINE;
            }
        }
        if (p->state == KV_FREE)
            s->free_slot[s->n_free++] = i;
        else
            slot_count(s, i, 1);
        if (p->state == KV_NAMED && s->o.tier)
            s->slot[i].on_disk = kv_tier_has(s->o.tier, p->digest);
        if (p->state == KV_NAMED && !s->slot[i].on_disk)
            slot_dirty(s, i);
        s->slot[i].prio = p->n_use < 64 ? p->n_use : 64;
        slot_evictable(s, i);
    }
}

/* ---- sequences ---- */

/* Walks a table. True if no page is used twice and each slot is a full block. */
static bool table_valid(struct kv_store *s, const struct kv_seq *q, uint8_t *page_used)
{
    uint32_t page = q->first_page;
    if (q->n_block > s->n_page * KV_PAGE_SLOTS || (!q->n_block && q->first_page != KV_NONE))
        return false;
    for (uint64_t k = 0; k < q->n_block; k++) {
        if (k && k % KV_PAGE_SLOTS == 0)
            page = kv_arena_page(s->a, page)->next;
        if (page >= s->n_page || (k % KV_PAGE_SLOTS == 0 && page_used[page]))
            return false;
        if (k % KV_PAGE_SLOTS == 0)
            page_used[page] = 2; /* by this walk */
        uint32_t slot = kv_arena_page(s->a, page)->slot[k % KV_PAGE_SLOTS];
        if (slot >= s->n_slot || (slot_of(s, slot)->state != KV_NAMED && slot_of(s, slot)->state != KV_PRIVATE) ||
            slot_of(s, slot)->n_id != KV_BLOCK)
            return false;
    }
    return !q->n_block || page == q->last_page;
}

/* Marks the pages of the last walk as used by the sequence, or as free. */
static void finish_pages(struct kv_store *s, const struct kv_seq *q, uint8_t *page_used, bool keep)
{
    for (uint32_t page = q->first_page; page < s->n_page && page_used[page] == 2;
         page = kv_arena_page(s->a, page)->next)
        page_used[page] = keep;
}

static bool tail_valid(const struct kv_store *s, const struct kv_seq *q)
{
    if (q->tail == KV_NONE)
        return !q->n_tail;
    return q->tail < s->n_slot && slot_of(s, q->tail)->state == KV_PRIVATE && q->n_tail && q->n_tail < KV_BLOCK &&
           slot_of(s, q->tail)->n_id == q->n_tail && !s->slot[q->tail].refs &&
           slot_of(s, q->tail)->writer == (q->state == KV_SEQ_OWNED ? q->owner : 0);
}

static void discard_seq(struct kv_store *s, uint32_t i)
{
    struct kv_seq *q = seq_of(s, i);
    if (q->state != KV_SEQ_NONE)
        kv_arena_new_gen(s->a, i);
    q->state = KV_SEQ_NONE;
    q->owner = q->n_tail = 0;
    q->n_block = 0;
    q->first_page = q->last_page = q->tail = KV_NONE;
    s->free_seq[s->n_free_seq++] = i;
}

static void adopt_seq(struct kv_store *s, uint32_t i, uint8_t *page_used, uint64_t now_ns)
{
    struct kv_seq *q = seq_of(s, i);
    bool holds = (q->state == KV_SEQ_OWNED && is_client(s, q->owner)) || q->state == KV_SEQ_TRANSFER;
    holds = holds && table_valid(s, q, page_used) && tail_valid(s, q);
    finish_pages(s, q, page_used, holds);
    if (!holds) {
        discard_seq(s, i);
        return;
    }
    uint32_t page = q->first_page;
    for (uint64_t k = 0; k < q->n_block; k++) {
        if (k && k % KV_PAGE_SLOTS == 0)
            page = kv_arena_page(s->a, page)->next;
        s->slot[kv_arena_page(s->a, page)->slot[k % KV_PAGE_SLOTS]].refs++;
    }
    if (q->tail != KV_NONE)
        s->slot[q->tail].refs = 1; /* so that no other sequence accepts it as its tail; store_adopt resets it */
    if (q->state == KV_SEQ_OWNED) {
        seq_link(s, &s->client[q->owner - 1].first_seq, i);
        return;
    }
    q->owner = is_client(s, q->owner) ? q->owner : 0;
    transfer_link(s, i, now_ns);
}

int store_adopt(struct err *e, struct kv_store *s, uint64_t now_ns)
{
    uint8_t *page_used = calloc(s->n_page, 1);
    if (!page_used)
        return err_nomem(e, "the pages of a store", s->n_page);
    adopt_clients(s, now_ns);
    adopt_slots(s);
    for (uint32_t i = 0; i < s->n_seq; i++) /* any client can have changed the copy */
        kv_arena_copy_gen(s->a, i);
    for (uint32_t k = 0; k < s->n_seq; k++)
        adopt_seq(s, (uint32_t)s->n_seq - 1 - k, page_used, now_ns);
    for (uint32_t k = 0; k < s->n_page; k++)
        if (!page_used[s->n_page - 1 - k])
            s->free_page[s->n_free_page++] = (uint32_t)s->n_page - 1 - k;
    finish_slots(s);
    for (uint32_t i = 0; i < s->n_seq; i++)
        if (seq_of(s, i)->state != KV_SEQ_NONE && seq_of(s, i)->tail != KV_NONE)
            s->slot[seq_of(s, i)->tail].refs = 0;
    free(page_used);
    return 0;
}

/* ---- verification ---- */

#define CHECK(what, ...)                                                                                               \
    if (!(what))                                                                                                       \
    return err_set(e, ERR_NO, __VA_ARGS__)

static int check_slots(struct err *e, const struct kv_store *s, const uint32_t *refs, const uint32_t *child)
{
    uint64_t n[5] = {0}, cached = 0, named_leased = 0, heap = 0;
    for (uint32_t i = 0; i < s->n_slot; i++) {
        const struct kv_slot *p = slot_of(s, i);
        const struct slot_side *d = &s->slot[i];
        CHECK(p->state <= KV_QUARANTINE, "slot %u has an invalid state", i);
        n[p->state]++;
        bool named = p->state == KV_NAMED;
        cached += named && !d->refs;
        named_leased += named && d->refs;
        heap += d->heap_at != KV_NONE;
        CHECK(d->refs == refs[i], "slot %u: %u refs, %u tables", i, d->refs, refs[i]);
        CHECK(!named || d->n_child == child[i], "slot %u: %u children, %u counted", i, d->n_child, child[i]);
        CHECK((d->heap_at != KV_NONE) == (named && !d->refs && !d->n_child),
              "slot %u is in the heap but not evictable, or the reverse", i);
        CHECK(d->heap_at == KV_NONE || s->heap[d->heap_at] == i, "slot %u: wrong position in the heap", i);
        CHECK(!named || slot_find(s, p->digest) == i, "slot %u is not found by its digest", i);
        CHECK((p->state == KV_RESERVED || p->state == KV_QUARANTINE) ? p->writer > 0
              : p->state != KV_PRIVATE                               ? p->writer == 0
                                                                     : true,
              "slot %u: wrong writer", i);
    }
    CHECK(n[KV_FREE] == s->n_free, "free: %" PRIu64 " counted, %" PRIu64, n[KV_FREE], s->n_free);
    CHECK(cached == s->n_cached, "cached: %" PRIu64 " counted, %" PRIu64, cached, s->n_cached);
    CHECK(n[KV_PRIVATE] + named_leased == s->n_leased, "leased: %" PRIu64 " counted, %" PRIu64,
          n[KV_PRIVATE] + named_leased, s->n_leased);
    CHECK(n[KV_QUARANTINE] == s->n_quarantined, "quarantined: %" PRIu64 " counted", n[KV_QUARANTINE]);
    CHECK(n[KV_RESERVED] == s->n_reserved, "reserved: %" PRIu64 " counted", n[KV_RESERVED]);
    CHECK(s->n_free + s->n_cached + s->n_leased + s->n_quarantined + s->n_reserved == s->n_slot,
          "the sum of the classes is not the number of slots");
    CHECK(heap == s->n_heap, "%" PRIu64 " slots in the heap, %" PRIu64 " counted", heap, s->n_heap);
    return 0;
}

static int check_seq(struct err *e, const struct kv_store *s, uint32_t i, uint32_t *refs, uint8_t *tails,
                     uint64_t *n_page)
{
    const struct kv_seq *q = seq_of(s, i);
    uint32_t page = q->first_page;
    for (uint64_t k = 0; k < q->n_block; k++) {
        if (k && k % KV_PAGE_SLOTS == 0)
            page = kv_arena_page(s->a, page)->next;
        *n_page += k % KV_PAGE_SLOTS == 0;
        CHECK(page < s->n_page, "sequence %u: wrong page", i);
        uint32_t slot = kv_arena_page(s->a, page)->slot[k % KV_PAGE_SLOTS];
        CHECK(slot < s->n_slot, "sequence %u: wrong slot", i);
        CHECK(slot_of(s, slot)->state == KV_NAMED || slot_of(s, slot)->state == KV_PRIVATE,
              "sequence %u references slot %u of state %u", i, slot, slot_of(s, slot)->state);
        refs[slot]++;
    }
    CHECK((q->tail != KV_NONE) == (q->n_tail > 0), "sequence %u: wrong tail", i);
    if (q->tail != KV_NONE) {
        CHECK(!tails[q->tail]++, "slot %u is the tail of two sequences", q->tail);
        CHECK(slot_of(s, q->tail)->state == KV_PRIVATE, "tail %u is of state %u", q->tail, slot_of(s, q->tail)->state);
        CHECK(slot_of(s, q->tail)->writer == (q->state == KV_SEQ_OWNED ? q->owner : 0), "tail %u has another writer",
              q->tail);
    }
    return 0;
}

static int check_all(struct err *e, const struct kv_store *s, uint32_t *refs, uint32_t *child, uint8_t *tails)
{
    uint64_t n_seq = 0, n_page = 0;
    int rc = 0;
    for (uint32_t i = 0; i < s->n_seq && !rc; i++) {
        if (seq_of(s, i)->state == KV_SEQ_NONE)
            continue;
        n_seq++;
        rc = check_seq(e, s, i, refs, tails, &n_page);
    }
    if (rc)
        return rc;
    CHECK(n_seq + s->n_free_seq == s->n_seq, "%" PRIu64 " sequences, %" PRIu64 " free", n_seq, s->n_free_seq);
    CHECK(n_page + s->n_free_page == s->n_page, "%" PRIu64 " pages in tables, %" PRIu64 " free", n_page,
          s->n_free_page);
    for (uint32_t i = 0; i < s->n_slot; i++) {
        uint32_t parent = s->slot[i].parent;
        if (slot_of(s, i)->state != KV_NAMED || parent == KV_NONE)
            continue;
        CHECK(slot_of(s, parent)->state == KV_NAMED, "the parent of slot %u is not a full block", i);
        CHECK(!s->slot[i].refs || s->slot[parent].refs, "slot %u has references, its parent has none", i);
        child[parent]++;
    }
    return check_slots(e, s, refs, child);
}

int kv_store_check(struct err *e, const struct kv_store *s)
{
    uint32_t *refs = calloc(s->n_slot, sizeof *refs), *child = calloc(s->n_slot, sizeof *child);
    uint8_t *tails = calloc(s->n_slot, 1);
    int rc = refs && child && tails ? check_all(e, s, refs, child, tails) : err_nomem(e, "a check", s->n_slot);
    free(refs);
    free(child);
    free(tails);
    return rc;
}
