/* Sequences: made, grown, handed over, ended. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kv/store_impl.h"

/* ---- tables and lists ---- */

static uint64_t pages_for(uint64_t n_block)
{
    return (n_block + KV_PAGE_SLOTS - 1) / KV_PAGE_SLOTS;
}

uint32_t seq_block(const struct kv_store *s, uint32_t i, uint64_t n)
{
    const struct kv_seq *q = seq_of(s, i);
    uint32_t page = q->last_page;
    if (n / KV_PAGE_SLOTS != (q->n_block - 1) / KV_PAGE_SLOTS)
        for (page = q->first_page; n >= KV_PAGE_SLOTS; n -= KV_PAGE_SLOTS)
            page = kv_arena_page(s->a, page)->next;
    return kv_arena_page(s->a, page)->slot[n % KV_PAGE_SLOTS];
}

bool seq_append(struct kv_store *s, uint32_t i, uint32_t slot)
{
    struct kv_seq *q = seq_of(s, i);
    uint64_t n = q->n_block;
    if (n % KV_PAGE_SLOTS == 0) {
        if (!s->n_free_page)
            return false;
        uint32_t page = s->free_page[--s->n_free_page];
        kv_arena_page(s->a, page)->next = KV_NONE;
        *(n ? &kv_arena_page(s->a, q->last_page)->next : &q->first_page) = page;
        q->last_page = page;
    }
    slot_hold(s, slot);
    kv_arena_page(s->a, q->last_page)->slot[n % KV_PAGE_SLOTS] = slot;
    atomic_store_explicit(&q->n_block, n + 1, memory_order_release);
    return true;
}

void seq_link(struct kv_store *s, uint32_t *first, uint32_t i)
{
    s->seq[i].prev = KV_NONE;
    s->seq[i].next = *first;
    if (*first != KV_NONE)
        s->seq[*first].prev = i;
    *first = i;
}

static void seq_unlink(struct kv_store *s, uint32_t i)
{
    struct seq_side *q = &s->seq[i];
    bool handed = seq_of(s, i)->state == KV_SEQ_HANDED;
    uint32_t *first = handed ? &s->first_handed : &s->client[seq_of(s, i)->owner - 1].first_seq;
    *(q->prev != KV_NONE ? &s->seq[q->prev].next : first) = q->next;
    if (q->next != KV_NONE)
        s->seq[q->next].prev = q->prev;
    else if (handed)
        s->last_handed = q->prev;
    q->prev = q->next = KV_NONE;
}

static void new_gen(struct kv_store *s, uint32_t i)
{
    atomic_fetch_add_explicit(&seq_of(s, i)->gen, 1, memory_order_release);
}

void seq_info(const struct kv_store *s, struct kv_seq_info *out, uint32_t i)
{
    const struct kv_seq *q = seq_of(s, i);
    *out = (struct kv_seq_info){.seq = i,
                                .gen = q->gen,
                                .n_block = q->n_block,
                                .tail = q->tail,
                                .n_tail = q->n_tail,
                                .pending = s->seq[i].waits_for != NULL};
}

static int seq_new(struct err *e, struct kv_store *s, uint32_t *out, uint32_t client)
{
    if (!s->n_free_seq)
        return store_no(e, s, KV_WHY_NOT_NOW, ERR_NO, "all %" PRIu64 " sequences of the store are in use", s->n_seq);
    uint32_t i = s->free_seq[--s->n_free_seq];
    struct kv_seq *q = seq_of(s, i);
    q->n_block = 0;
    q->first_page = q->last_page = q->tail = KV_NONE;
    q->n_tail = q->waits = 0;
    q->owner = client + 1;
    new_gen(s, i);
    q->state = KV_SEQ_OWNED;
    seq_link(s, &s->client[client].first_seq, i);
    *out = i;
    return 0;
}

/* Readers of the sequence find another generation before its blocks are given away. Ticks fall along the table, so that
 * of blocks as good as each other those behind go first. */
void seq_drop(struct kv_store *s, uint32_t i, bool quarantine)
{
    struct kv_seq *q = seq_of(s, i);
    uint32_t first = KV_NONE, last = KV_NONE, page = q->first_page;
    uint64_t n = q->n_block, tick = kv_arena_head_mut(s->a)->tick += n;
    new_gen(s, i);
    seq_stop(s, i, &first, &last);
    seq_unlink(s, i);
    q->state = KV_SEQ_NONE;
    for (uint64_t k = 0; k < n; k++) {
        slot_unhold(s, kv_arena_page(s->a, page)->slot[k % KV_PAGE_SLOTS], tick - k);
        if (k + 1 < n && (k + 1) % KV_PAGE_SLOTS)
            continue;
        s->free_page[s->n_free_page++] = page;
        page = kv_arena_page(s->a, page)->next;
    }
    if (q->tail != KV_NONE && quarantine && slot_of(s, q->tail)->writer)
        slot_set(s, q->tail, KV_QUARANTINE, slot_of(s, q->tail)->writer);
    else if (q->tail != KV_NONE)
        slot_free(s, q->tail);
    q->n_block = 0;
    q->first_page = q->last_page = q->tail = KV_NONE;
    q->n_tail = q->owner = 0;
    s->free_seq[s->n_free_seq++] = i;
    claims_wake(s, first);
}

/* ---- checks of what a client says ---- */

int store_client(struct err *e, struct kv_store *s, uint32_t client)
{
    if (client >= s->n_client || s->client[client].state == CLIENT_NONE)
        return store_no(e, s, KV_WHY_REFUSED, ERR_NO, "no such client");
    if (s->client[client].state == CLIENT_SILENT)
        return store_no(e, s, KV_WHY_EXPIRED, ERR_NO, "the lease has ended: all that was held is gone");
    return 0;
}

/* Its owner is then the one who gave it, as long as that one is here. */
static bool is_handed(const struct kv_store *s, uint64_t seq, uint64_t gen)
{
    return seq < s->n_seq && seq_of(s, seq)->state == KV_SEQ_HANDED && seq_of(s, seq)->gen == gen;
}

static int own_seq(struct err *e, struct kv_store *s, uint32_t client, uint64_t seq, uint64_t gen)
{
    int rc = store_client(e, s, client);
    if (rc)
        return rc;
    if (seq >= s->n_seq || seq_of(s, seq)->state != KV_SEQ_OWNED || seq_of(s, seq)->owner != client + 1 ||
        seq_of(s, seq)->gen != gen)
        return store_no(e, s, KV_WHY_STALE, ERR_NO, "sequence %" PRIu64 " (generation %" PRIu64 ") is not held here",
                        seq, gen);
    return 0;
}

/* ---- leases ---- */

static int plan(struct err *e, struct kv_store *s, uint32_t i, const uint32_t *ids, const uint8_t *digests,
                uint64_t n_block)
{
    struct seq_side *q = &s->seq[i];
    q->ids = malloc(n_block * KV_BLOCK * sizeof *q->ids);
    q->digests = malloc(n_block * KV_DIGEST);
    if (!q->ids || !q->digests)
        return err_nomem(e, "a lease", n_block * (KV_BLOCK * sizeof *q->ids + KV_DIGEST));
    memcpy(q->ids, ids, n_block * KV_BLOCK * sizeof *q->ids);
    memcpy(q->digests, digests, n_block * KV_DIGEST);
    q->n_want = n_block;
    return 0;
}

int kv_store_lease(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, const uint32_t *ids,
                   uint64_t n_id, const uint8_t *digests, uint64_t n_block, bool wait)
{
    uint32_t i = KV_NONE;
    int rc = store_client(e, s, client);
    if (rc)
        return rc;
    if (n_block > n_id / KV_BLOCK)
        return store_no(e, s, KV_WHY_REFUSED, ERR_PROTO, "%" PRIu64 " digests for %" PRIu64 " ids", n_block, n_id);
    if ((n_id + KV_BLOCK - 1) / KV_BLOCK > s->n_slot)
        return store_no(e, s, KV_WHY_NEVER, ERR_NO,
                        "%" PRIu64 " tokens never fit: the store has %" PRIu64 " blocks of %d", n_id, s->n_slot,
                        KV_BLOCK);
    rc = seq_new(e, s, &i, client);
    if (rc)
        return rc;
    s->seq[i].wait = wait;
    s->seq[i].no_tier = s->seq[i].untold = false;
    rc = n_block ? plan(e, s, i, ids, digests, n_block) : 0;
    if (rc) {
        s->why = KV_WHY_NOT_NOW;
        seq_drop(s, i, false);
        return rc;
    }
    if (n_block)
        seq_grow(s, i);
    seq_info(s, info, i);
    return 0;
}

int kv_store_release(struct err *e, struct kv_store *s, uint32_t client, uint64_t seq, uint64_t gen)
{
    bool gave = client < s->n_client && is_handed(s, seq, gen) && seq_of(s, seq)->owner == client + 1;
    int rc = gave ? store_client(e, s, client) : own_seq(e, s, client, seq, gen);
    if (!rc)
        seq_drop(s, (uint32_t)seq, false);
    return rc;
}

/* ---- publishing ---- */

static int check_publish(struct err *e, struct kv_store *s, uint32_t client, const struct kv_publish *p)
{
    int rc = own_seq(e, s, client, p->seq, p->gen);
    if (rc)
        return rc;
    const struct kv_seq *q = seq_of(s, p->seq);
    if (p->at != q->n_block)
        return store_no(e, s, KV_WHY_REFUSED, ERR_NO, "block %" PRIu64 " where block %" PRIu64 " comes next", p->at,
                        (uint64_t)q->n_block);
    if (p->n_tail >= KV_BLOCK || (p->n_tail != 0) != (p->tail != KV_NONE))
        return store_no(e, s, KV_WHY_REFUSED, ERR_NO, "a tail of %u tokens", p->n_tail);
    if (pages_for(p->at + p->n_block) - pages_for(p->at) > s->n_free_page)
        return store_no(e, s, KV_WHY_NOT_NOW, ERR_NO, "the store has no room for longer tables now");
    s->mark++;
    rc = check_credit(e, s, client, p->slot, p->n_block, q->tail);
    if (!rc && p->tail != KV_NONE)
        rc = check_credit(e, s, client, &p->tail, 1, q->tail);
    for (uint64_t k = 0; k < p->n_block && !rc && s->o.verify; k++)
        if (kv_arena_sum(s->a, p->slot[k]) != p->sum[k])
            rc = store_no(e, s, KV_WHY_REFUSED, ERR_NO, "block %" PRIu64 " (slot %u) is not what its checksum says",
                          p->at + k, p->slot[k]);
    return rc;
}

/* Makes a written slot a block of the sequence. Returns the slot that is it: another one where the same block is there
 * already. One with the same digest but other ids is a stranger: ours stays without a name. */
static uint32_t add_block(struct kv_store *s, uint32_t client, const struct kv_publish *p, uint64_t k)
{
    static const uint8_t zero[KV_DIGEST];
    uint32_t i = p->slot[k], seq = (uint32_t)p->seq;
    const uint8_t *digest = p->digests ? p->digests + k * KV_DIGEST : NULL;
    const uint32_t *ids = p->ids + k * KV_BLOCK;
    uint32_t parent = p->at + k ? seq_block(s, seq, p->at + k - 1) : KV_NONE;
    if (parent != KV_NONE && slot_of(s, parent)->state != KV_NAMED)
        digest = NULL; /* behind a block without a name there is none that could be found */
    uint32_t found = digest ? slot_find(s, digest) : KV_NONE;
    if (found != KV_NONE && slot_is(s, found, ids, parent)) {
        s->duplicate++;
        slot_set(s, i, KV_CREDIT, client + 1);
        return found;
    }
    if (!digest || found != KV_NONE) {
        memcpy(slot_of(s, i)->ids, ids, sizeof slot_of(s, i)->ids);
        slot_of(s, i)->n_id = KV_BLOCK;
        slot_of(s, i)->sum = p->sum[k];
        slot_set(s, i, KV_PRIVATE, 0);
        return i;
    }
    slot_name(s, i, digest, parent != KV_NONE ? slot_of(s, parent)->digest : zero, parent, ids, p->sum[k]);
    s->published++;
    if (!s->o.tier || !kv_tier_has(s->o.tier, digest))
        store_tell(s, &(struct kv_news){.kind = KV_NEWS_STORED, .digest = digest});
    else
        s->slot[i].on_disk = true;
    slot_dirty(s, i);
    return i;
}

static void set_tail(struct kv_store *s, uint32_t client, const struct kv_publish *p)
{
    struct kv_seq *q = seq_of(s, p->seq);
    if (q->tail != KV_NONE && q->tail != p->tail)
        slot_set(s, q->tail, KV_CREDIT, client + 1); /* it was overtaken, or has become a block's duplicate */
    q->tail = p->tail;
    q->n_tail = p->n_tail;
    if (p->tail == KV_NONE)
        return;
    struct kv_slot *t = slot_of(s, p->tail);
    memcpy(t->ids, p->ids + p->n_block * KV_BLOCK, p->n_tail * sizeof *t->ids);
    t->n_id = p->n_tail;
    slot_set(s, p->tail, KV_PRIVATE, client + 1);
}

int kv_store_publish(struct err *e, struct kv_store *s, uint32_t client, uint32_t *out, const struct kv_publish *p)
{
    uint32_t first = KV_NONE, last = KV_NONE;
    int rc = check_publish(e, s, client, p);
    if (rc)
        return rc;
    struct kv_seq *q = seq_of(s, p->seq);
    for (uint64_t k = 0; k < p->n_block; k++) {
        if (q->tail == p->slot[k]) { /* it is full now */
            q->tail = KV_NONE;
            q->n_tail = 0;
        }
        out[k] = add_block(s, client, p, k);
        seq_append(s, (uint32_t)p->seq, out[k]);
        struct claim *c = p->digests ? claim_find(s, p->digests + k * KV_DIGEST) : NULL;
        if (c)
            claim_end(s, c, &first, &last);
    }
    set_tail(s, client, p);
    claims_wake(s, first);
    return 0;
}

/* ---- passing on ---- */

int kv_store_hand(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                  uint64_t gen, uint64_t now_ns)
{
    uint32_t i = (uint32_t)seq, first = KV_NONE, last = KV_NONE;
    int rc = own_seq(e, s, client, seq, gen);
    if (rc)
        return rc;
    struct kv_seq *q = seq_of(s, i);
    new_gen(s, i);
    seq_stop(s, i, &first, &last);
    seq_unlink(s, i);
    if (q->tail != KV_NONE)
        slot_set(s, q->tail, KV_PRIVATE, 0);
    q->state = KV_SEQ_HANDED;
    seq_hand_link(s, i, now_ns);
    seq_info(s, info, i);
    claims_wake(s, first);
    return 0;
}

void seq_hand_link(struct kv_store *s, uint32_t i, uint64_t now_ns)
{
    struct seq_side *d = &s->seq[i];
    d->end_ns = now_ns + s->o.handed_ns;
    d->prev = s->last_handed;
    d->next = KV_NONE;
    *(s->last_handed != KV_NONE ? &s->seq[s->last_handed].next : &s->first_handed) = i;
    s->last_handed = i;
}

int kv_store_take(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                  uint64_t gen)
{
    int rc = store_client(e, s, client);
    if (rc)
        return rc;
    uint32_t i = (uint32_t)seq;
    if (seq >= s->n_seq || seq_of(s, i)->state != KV_SEQ_HANDED || seq_of(s, i)->gen != gen)
        return store_no(e, s, KV_WHY_STALE, ERR_NO,
                        "sequence %" PRIu64 " (generation %" PRIu64 ") is not there to be taken: it was taken, or its "
                        "lease has ended",
                        seq, gen);
    seq_unlink(s, i);
    seq_of(s, i)->owner = client + 1;
    seq_of(s, i)->state = KV_SEQ_OWNED;
    seq_link(s, &s->client[client].first_seq, i);
    if (seq_of(s, i)->tail != KV_NONE)
        slot_set(s, seq_of(s, i)->tail, KV_PRIVATE, client + 1);
    new_gen(s, i);
    seq_info(s, info, i);
    return 0;
}

static uint64_t le64(const uint8_t *p)
{
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--)
        x = x << 8 | p[i];
    return x;
}

int kv_store_let_go(struct err *e, struct kv_store *s, const uint8_t *handle, size_t n)
{
    if (n < KV_HANDLE_BYTES)
        return store_no(e, s, KV_WHY_REFUSED, ERR_NO, "a handle of %zu bytes: one of this store has at least %d", n,
                        KV_HANDLE_BYTES);
    uint64_t seq = le64(handle), gen = le64(handle + 8);
    if (!is_handed(s, seq, gen))
        return store_no(e, s, KV_WHY_STALE, ERR_NO,
                        "sequence %" PRIu64 " (generation %" PRIu64 ") does not wait to be taken", seq, gen);
    seq_drop(s, (uint32_t)seq, false);
    return 0;
}
