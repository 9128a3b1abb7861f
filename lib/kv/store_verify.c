/*
 * Verified leases. Every worker of the host can write the bytes of every slot, so a published block can change. The
 * checksum of a block was compared when it was published; it is compared again when the block is leased: at the first
 * lease, at one in SAMPLE of the later ones, and at all of them with KV_VERIFY_ALWAYS. After a difference, every cached
 * block is compared at its next lease.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kv/store_impl.h"

#define SAMPLE 64

static uint64_t next_random(struct kv_store *s)
{
    s->dice ^= s->dice << 13;
    s->dice ^= s->dice >> 7;
    s->dice ^= s->dice << 17;
    return s->dice;
}

static bool is_due(struct kv_store *s, uint32_t i)
{
    if (s->o.verify < KV_VERIFY_FIRST)
        return false;
    return s->o.verify == KV_VERIFY_ALWAYS || s->slot[i].verified != s->epoch || next_random(s) % SAMPLE == 0;
}

/* Marks each block that follows block i, directly or not: s->mark. The marks s->mark - 1 are of blocks that do not. */
static void mark_descendants(struct kv_store *s, uint32_t i)
{
    s->mark += 2;
    s->slot[i].mark = s->mark;
    for (uint32_t k = 0; k < s->n_slot; k++) {
        uint32_t top = k;
        /* Marked on the way up, because the parents of an adopted arena may form a circle. */
        for (; top != KV_NONE && slot_of(s, top)->state == KV_NAMED && s->slot[top].mark < s->mark - 1;
             top = s->slot[top].parent)
            s->slot[top].mark = s->mark - 1;
        bool follows = top != KV_NONE && s->slot[top].mark == s->mark;
        for (uint32_t at = k; at != top && follows; at = s->slot[at].parent)
            s->slot[at].mark = s->mark;
    }
}

/* What follows the damaged block may have been computed from its changed KV, so it is dropped too. Blocks that
 * sequences use stay in their tables, but no new sequence finds them. */
static uint64_t drop_marked(struct kv_store *s, uint32_t damaged)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < s->n_slot; k++) {
        if (slot_of(s, k)->state != KV_NAMED || s->slot[k].mark != s->mark)
            continue;
        if (s->o.tier && k != damaged) /* the copy of the damaged one has its own checksum */
            kv_tier_drop(s->o.tier, slot_of(s, k)->digest);
        s->slot[k].on_disk = s->slot[k].on_disk && k == damaged;
        slot_forget(s, k);
        n++;
    }
    return n;
}

bool slot_verify(struct kv_store *s, uint32_t i)
{
    if (!is_due(s, i))
        return true;
    if (kv_arena_sum(s->a, i) == slot_of(s, i)->sum) {
        s->slot[i].verified = s->epoch;
        return true;
    }
    char text[160];
    mark_descendants(s, i);
    uint64_t n = drop_marked(s, i);
    s->epoch++;
    s->damaged += n;
    snprintf(text, sizeof text,
             "the block in slot %" PRIu32 " has changed since it was published: it and %" PRIu64
             " blocks that follow it are dropped",
             i, n - 1);
    store_emit(s, &(struct kv_event){.kind = KV_EVENT_DAMAGED, .text = text});
    return false;
}
