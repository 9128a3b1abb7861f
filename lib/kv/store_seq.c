/* Sequences: lease, publish, transfer, release. */
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
    slot_ref(s, slot);
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
    bool handed = seq_of(s, i)->state == KV_SEQ_TRANSFER;
    uint32_t *first = handed ? &s->first_transfer : &s->client[seq_of(s, i)->owner - 1].first_seq;
    *(q->prev != KV_NONE ? &s->seq[q->prev].next : first) = q->next;
    if (q->next != KV_NONE)
        s->seq[q->next].prev = q->prev;
    else if (handed)
        s->last_transfer = q->prev;
    q->prev = q->next = KV_NONE;
}

static void new_gen(struct kv_store *s, uint32_t i)
{
    kv_arena_new_gen(s->a, i);
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
        return store_refuse(e, s, KV_WHY_NOT_NOW, ERR_NO, "all %" PRIu64 " sequences of the store are in use",
                            s->n_seq);
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

/* Changes the generation before it releases blocks, so that readers detect the change. Ticks decrease along the table,
 * so that of blocks with equal priority the last ones of the chain are evicted first. */
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
        slot_unref(s, kv_arena_page(s->a, page)->slot[k % KV_PAGE_SLOTS], tick - k);
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

/* ---- checks of requests ---- */

int store_client(struct err *e, struct kv_store *s, uint32_t client)
{
    if (client >= s->n_client || s->client[client].state == CLIENT_NONE)
        return store_refuse(e, s, KV_WHY_REFUSED, ERR_NO, "unknown client");
    if (s->client[client].state == CLIENT_EXPIRED)
        return store_refuse(e, s, KV_WHY_EXPIRED, ERR_NO,
                            "the lease has ended: all that the client owned was released");
    return 0;
}

/* The owner of a sequence in a transfer is its sender, until that client leaves. */
static bool in_transfer(const struct kv_store *s, uint64_t seq, uint64_t gen)
{
    return seq < s->n_seq && seq_of(s, seq)->state == KV_SEQ_TRANSFER && seq_of(s, seq)->gen == gen;
}

static int own_seq(struct err *e, struct kv_store *s, uint32_t client, uint64_t seq, uint64_t gen)
{
    int rc = store_client(e, s, client);
    if (rc)
        return rc;
    if (seq >= s->n_seq || seq_of(s, seq)->state != KV_SEQ_OWNED || seq_of(s, seq)->owner != client + 1 ||
        seq_of(s, seq)->gen != gen)
        return store_refuse(e, s, KV_WHY_STALE, ERR_NO,
                            "this client does not own sequence %" PRIu64 " (generation %" PRIu64 ")", seq, gen);
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
        return store_refuse(e, s, KV_WHY_REFUSED, ERR_PROTO, "%" PRIu64 " digests for %" PRIu64 " ids", n_block, n_id);
    if ((n_id + KV_BLOCK - 1) / KV_BLOCK > s->n_slot)
        return store_refuse(e, s, KV_WHY_NEVER, ERR_NO,
                            "%" PRIu64 " tokens never fit: the store has %" PRIu64 " blocks of %d", n_id, s->n_slot,
                            KV_BLOCK);
    rc = seq_new(e, s, &i, client);
    if (rc)
        return rc;
    s->seq[i].wait = wait;
    s->seq[i].no_tier = s->seq[i].unreported = false;
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
    bool gave = client < s->n_client && in_transfer(s, seq, gen) && seq_of(s, seq)->owner == client + 1;
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
        return store_refuse(e, s, KV_WHY_REFUSED, ERR_NO, "block %" PRIu64 " was published, the next one is %" PRIu64,
                            p->at, (uint64_t)q->n_block);
    if (p->n_tail >= KV_BLOCK || (p->n_tail != 0) != (p->tail != KV_NONE))
        return store_refuse(e, s, KV_WHY_REFUSED, ERR_NO,
                            "a tail of %u tokens: it has 1 to 31 and a slot, or 0 and none", p->n_tail);
    if (pages_for(p->at + p->n_block) - pages_for(p->at) > s->n_free_page)
        return store_refuse(e, s, KV_WHY_NOT_NOW, ERR_NO, "the store has no free pages for a longer block table");
    s->mark++;
    rc = check_reserved(e, s, client, p->slot, p->n_block, q->tail);
    if (!rc && p->tail != KV_NONE)
        rc = check_reserved(e, s, client, &p->tail, 1, q->tail);
    for (uint64_t k = 0; k < p->n_block && !rc && s->o.verify >= KV_VERIFY_PUBLISH; k++)
        if (kv_arena_sum(s->a, p->slot[k]) != p->sum[k])
            rc = store_refuse(e, s, KV_WHY_REFUSED, ERR_NO, "block %" PRIu64 " (slot %u) does not match its checksum",
                              p->at + k, p->slot[k]);
    return rc;
}

/* Turns a written slot into a block of the sequence. Returns the slot to append: another one if the block was cached
 * already. If the cached block has the same digest but other ids, the new one is not indexed. */
static uint32_t add_block(struct kv_store *s, uint32_t client, const struct kv_publish *p, uint64_t k)
{
    static const uint8_t zero[KV_DIGEST];
    uint32_t i = p->slot[k], seq = (uint32_t)p->seq;
    const uint8_t *digest = p->digests ? p->digests + k * KV_DIGEST : NULL;
    const uint32_t *ids = p->ids + k * KV_BLOCK;
    uint32_t parent = p->at + k ? seq_block(s, seq, p->at + k - 1) : KV_NONE;
    if (parent != KV_NONE && slot_of(s, parent)->state != KV_NAMED)
        digest = NULL; /* a block after one that is not indexed could never be found */
    uint32_t found = digest ? slot_find(s, digest) : KV_NONE;
    if (found != KV_NONE && slot_is(s, found, kv_ids_hash(ids), parent)) {
        s->duplicate++;
        slot_set(s, i, KV_RESERVED, client + 1);
        return found;
    }
    if (!digest || found != KV_NONE) {
        slot_of(s, i)->ids = kv_ids_hash(ids);
        slot_of(s, i)->n_id = KV_BLOCK;
        slot_of(s, i)->sum = p->sum[k];
        slot_set(s, i, KV_PRIVATE, 0);
        return i;
    }
    slot_name(s, i, digest, parent != KV_NONE ? slot_of(s, parent)->digest : zero, parent, kv_ids_hash(ids), p->sum[k]);
    s->published++;
    if (!s->o.tier || !kv_tier_has(s->o.tier, digest))
        store_emit(s, &(struct kv_event){.kind = KV_EVENT_STORED, .digest = digest});
    else
        s->slot[i].on_disk = true;
    slot_dirty(s, i);
    return i;
}

static void set_tail(struct kv_store *s, uint32_t client, const struct kv_publish *p)
{
    struct kv_seq *q = seq_of(s, p->seq);
    if (q->tail != KV_NONE && q->tail != p->tail)
        slot_set(s, q->tail, KV_RESERVED, client + 1); /* replaced by a new tail, or a duplicate of a cached block */
    q->tail = p->tail;
    q->n_tail = p->n_tail;
    if (p->tail == KV_NONE)
        return;
    struct kv_slot *t = slot_of(s, p->tail);
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
        if (q->tail == p->slot[k]) { /* the former tail is a full block now */
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

/* ---- transfer ---- */

int kv_store_transfer_out(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
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
    q->state = KV_SEQ_TRANSFER;
    transfer_link(s, i, now_ns);
    seq_info(s, info, i);
    claims_wake(s, first);
    return 0;
}

void transfer_link(struct kv_store *s, uint32_t i, uint64_t now_ns)
{
    struct seq_side *d = &s->seq[i];
    d->end_ns = now_ns + s->o.transfer_ns;
    d->prev = s->last_transfer;
    d->next = KV_NONE;
    *(s->last_transfer != KV_NONE ? &s->seq[s->last_transfer].next : &s->first_transfer) = i;
    s->last_transfer = i;
}

int kv_store_transfer_in(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                         uint64_t gen)
{
    int rc = store_client(e, s, client);
    if (rc)
        return rc;
    uint32_t i = (uint32_t)seq;
    if (seq >= s->n_seq || seq_of(s, i)->state != KV_SEQ_TRANSFER || seq_of(s, i)->gen != gen)
        return store_refuse(e, s, KV_WHY_STALE, ERR_NO,
                            "sequence %" PRIu64 " (generation %" PRIu64
                            ") is not in a transfer: another client completed it, "
                            "or its time is over",
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

int kv_store_end_transfer(struct err *e, struct kv_store *s, const uint8_t *handle, size_t n)
{
    if (n < KV_HANDLE_BYTES)
        return store_refuse(e, s, KV_WHY_REFUSED, ERR_NO, "a transfer handle of %zu bytes: it must have at least %d", n,
                            KV_HANDLE_BYTES);
    uint64_t seq = le64(handle), gen = le64(handle + 8);
    if (!in_transfer(s, seq, gen))
        return store_refuse(e, s, KV_WHY_STALE, ERR_NO,
                            "sequence %" PRIu64 " (generation %" PRIu64 ") is not in a transfer", seq, gen);
    seq_drop(s, (uint32_t)seq, false);
    return 0;
}
