/* Requests of clients: each frame calls the store, and gets a response. */
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "cmd/kvstore/kvstore.h"

void kvstore_refuse(struct peer *p, uint64_t tag, enum kv_why why, const struct err *e)
{
    struct wire_frame f = {.kind = WIRE_KV_NO,
                           .kv_no = {.tag = tag,
                                     .why = (uint32_t)(why ? why : KV_WHY_REFUSED),
                                     .code = (uint32_t)e->code,
                                     .text = {e->text, strlen(e->text)}}};
    link_send(p->conn, &f, NULL);
}

static void reply_seq(struct peer *p, uint64_t tag, const struct kv_seq_info *q)
{
    struct wire_frame f = {.kind = WIRE_KV_SEQ,
                           .kv_seq = {.tag = tag,
                                      .seq = q->seq,
                                      .gen = q->gen,
                                      .n_block = q->n_block,
                                      .has_tail = q->tail != KV_NONE,
                                      .tail = q->tail,
                                      .n_tail = q->n_tail,
                                      .pending = q->pending}};
    link_send(p->conn, &f, NULL);
}

/* A lease without `wait` gets one response, when the sequence is no longer pending. */
void kvstore_seq_event(struct peer *p, const struct kv_seq_info *q)
{
    struct late *l = NULL;
    list_each (struct late, at, &p->late, node) {
        if (!l && at->seq == q->seq && at->gen == q->gen)
            l = at;
    }
    if (l && q->pending)
        return;
    reply_seq(p, l ? l->tag : 0, q);
    if (l)
        list_remove(&l->node);
    free(l);
}

static int reply_later(struct err *e, struct peer *p, uint64_t tag, const struct kv_seq_info *q)
{
    struct late *l = malloc(sizeof *l);
    if (!l)
        return err_nomem(e, "a response", sizeof *l);
    *l = (struct late){.tag = tag, .seq = q->seq, .gen = q->gen};
    list_push_front(&p->late, &l->node);
    return 0;
}

static void reply_slots(struct peer *p, uint64_t tag, const uint32_t *slot, uint64_t n)
{
    struct wire_frame f = {.kind = WIRE_KV_SLOTS, .kv_slots = {.tag = tag, .slot = slot, .n_slot = (uint32_t)n}};
    link_send(p->conn, &f, NULL);
}

static int lease(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_lease *r)
{
    struct kv_seq_info q;
    if (r->digests.n % KV_DIGEST)
        return err_set(e, ERR_PROTO, "the digests have %zu bytes, which is not a multiple of 32", r->digests.n);
    if (k->draining)
        return err_set(e, ERR_NO, "kvstore is shutting down");
    int rc =
        kv_store_lease(e, k->store, p->client, &q, r->ids, r->n_id, r->digests.p, r->digests.n / KV_DIGEST, r->wait);
    if (!rc && q.pending && !r->wait)
        return reply_later(e, p, r->tag, &q);
    if (!rc)
        reply_seq(p, r->tag, &q);
    return rc;
}

static int credit(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_credit *r)
{
    uint64_t got, most = kv_arena_head(k->arena)->n_slot;
    most = most < WIRE_KV_BLOCKS_MAX ? most : WIRE_KV_BLOCKS_MAX;
    if (r->n > most && !r->some && r->n <= kv_arena_head(k->arena)->n_slot)
        return err_set(e, ERR_NO, "a request for %llu slots: the limit is %u", (unsigned long long)r->n,
                       WIRE_KV_BLOCKS_MAX);
    uint64_t n = r->some && r->n > most ? most : r->n;
    uint32_t *slot = malloc((n < most ? n + 1 : most + 1) * sizeof *slot);
    if (!slot)
        return err_nomem(e, "slots", most * sizeof *slot);
    int rc = kv_store_reserve(e, k->store, p->client, slot, &got, n, r->some);
    if (!rc)
        reply_slots(p, r->tag, slot, got);
    free(slot);
    return rc;
}

static int publish(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_publish *r)
{
    uint64_t n = r->n_block, n_tail = r->n_id - n * KV_BLOCK;
    if (r->n_id < n * KV_BLOCK || n_tail >= KV_BLOCK || (r->digests.n && r->digests.n != n * KV_DIGEST))
        return err_set(e, ERR_PROTO, "%u ids and %zu bytes of digests for %u blocks", r->n_id, r->digests.n,
                       r->n_block);
    uint32_t *slot = malloc((n + 1) * 2 * sizeof *slot);
    uint64_t *sum = malloc((n + 1) * sizeof *sum);
    int rc = slot && sum ? 0 : err_nomem(e, "blocks", n * sizeof *sum);
    for (uint64_t i = 0; i < n && !rc; i++) {
        slot[i] = r->block[i].slot;
        sum[i] = r->block[i].sum;
    }
    struct kv_publish u = {.seq = r->seq,
                           .gen = r->gen,
                           .at = r->at,
                           .slot = slot,
                           .sum = sum,
                           .n_block = n,
                           .digests = r->digests.n ? r->digests.p : NULL,
                           .ids = r->ids,
                           .n_tail = (uint32_t)n_tail,
                           .tail = r->has_tail ? r->tail : KV_NONE};
    rc = rc ? rc : kv_store_publish(e, k->store, p->client, slot + n, &u);
    if (!rc)
        reply_slots(p, r->tag, slot + n, n);
    free(slot);
    free(sum);
    return rc;
}

static int handle(struct err *e, struct kvstore *k, struct peer *p, enum wire_kind kind, const struct wire_kv_handle *r)
{
    struct kv_seq_info q;
    int rc = kind == WIRE_KV_HAND ? kv_store_transfer_out(e, k->store, p->client, &q, r->seq, r->gen, time_now_ns())
                                  : kv_store_transfer_in(e, k->store, p->client, &q, r->seq, r->gen);
    if (!rc)
        reply_seq(p, r->tag, &q);
    return rc;
}

static int release(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_free *r)
{
    int rc = r->n_slot ? kv_store_release_slots(e, k->store, p->client, r->slot, r->n_slot) : 0;
    if (!rc && r->gen)
        rc = kv_store_release(e, k->store, p->client, r->seq, r->gen);
    struct wire_frame f = {.kind = WIRE_KV_FREE, .kv_free = {.tag = r->tag}};
    if (!rc)
        link_send(p->conn, &f, NULL);
    return rc;
}

static void stat(struct kvstore *k, struct peer *p, uint64_t tag)
{
    struct kv_store_stat s = {0};
    if (k->store)
        kv_store_stat(k->store, &s);
    struct wire_frame f = {.kind = WIRE_KV_STAT,
                           .kv_stat = {.tag = tag,
                                       .total = s.total,
                                       .free = s.free,
                                       .cached = s.cached,
                                       .leased = s.leased,
                                       .quarantined = s.quarantined,
                                       .credited = s.reserved,
                                       .seqs = s.seqs,
                                       .clients = s.clients,
                                       .waiting = s.waiting,
                                       .hit_blocks = s.hit_blocks,
                                       .miss_blocks = s.miss_blocks,
                                       .published = s.published,
                                       .duplicate = s.duplicate,
                                       .evicted = s.evicted,
                                       .disk_total = s.disk_total,
                                       .disk_used = s.disk_used,
                                       .disk_hits = s.disk_hits,
                                       .disk_bad = s.disk_bad}};
    if (k->arena) {
        f.kv_stat.slot_bytes = kv_arena_layout(k->arena)->slot_bytes;
        f.kv_stat.huge_bytes = k->huge_bytes;
    }
    link_send(p->conn, &f, NULL);
}

static int renew(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_tag *r)
{
    struct wire_frame f = {.kind = WIRE_KV_RENEW, .kv_tag = {.tag = r->tag}};
    int rc = p->client != KV_NONE ? kv_store_renew(e, k->store, p->client, time_now_ns()) : 0;
    if (!rc && r->tag)
        link_send(p->conn, &f, NULL);
    return rc;
}

/* Ends a transfer by its handle. Needs no client id: the scheduler ends those that no worker will complete. */
static int end_transfer(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_free *r)
{
    struct wire_frame f = {.kind = WIRE_KV_FREE, .kv_free = {.tag = r->tag}};
    if (r->gen || r->n_slot)
        return err_set(e, ERR_PROTO, "a kv_free frame with a handle and with a sequence or slots");
    int rc = k->store ? kv_store_end_transfer(e, k->store, r->handle.p, r->handle.n)
                      : err_set(e, ERR_NO, "kvstore is starting: retry");
    if (!rc)
        link_send(p->conn, &f, NULL);
    return rc;
}

/* Every request renews the lease, and fails if that has ended. */
static int handle_client(struct err *e, struct kvstore *k, struct peer *p, const struct wire_frame *f)
{
    if (f->kind == WIRE_KV_RENEW)
        return renew(e, k, p, &f->kv_tag);
    if (f->kind == WIRE_KV_FREE && f->kv_free.handle.n)
        return end_transfer(e, k, p, &f->kv_free);
    if (p->client == KV_NONE)
        return err_set(e, ERR_PROTO, "a %s frame on a connection without a KV kind", wire_kind_name(f->kind));
    int rc = kv_store_renew(e, k->store, p->client, time_now_ns());
    if (rc)
        return rc;
    switch ((int)f->kind) {
    case WIRE_KV_LEASE:
        return lease(e, k, p, &f->kv_lease);
    case WIRE_KV_CREDIT:
        return credit(e, k, p, &f->kv_credit);
    case WIRE_KV_PUBLISH:
        return publish(e, k, p, &f->kv_publish);
    case WIRE_KV_HAND:
    case WIRE_KV_TAKE:
        return handle(e, k, p, f->kind, &f->kv_handle);
    case WIRE_KV_FREE:
        return release(e, k, p, &f->kv_free);
    }
    return err_set(e, ERR_PROTO, "a %s frame is not a request of kvstore", wire_kind_name(f->kind));
}

void kvstore_serve(struct kvstore *k, struct peer *p, const struct wire_frame *f)
{
    struct err e = {0};
    if (f->kind == WIRE_KV_STAT) {
        stat(k, p, f->kv_stat.tag);
        return;
    }
    bool asks = f->kind >= WIRE_STORE_FIRST && f->kind <= WIRE_STORE_LAST;
    int rc = handle_client(&e, k, p, f);
    if (!rc)
        return;
    bool by_store = rc == ERR_NO && k->store && (p->client != KV_NONE || f->kind == WIRE_KV_FREE);
    enum kv_why why = by_store ? kv_store_why(k->store) : KV_WHY_REFUSED;
    if (k->draining && f->kind == WIRE_KV_LEASE)
        why = KV_WHY_DRAINING;
    kvstore_refuse(p, asks && f->kind != WIRE_KV_EVENT ? f->kv_tag.tag : 0, why, &e);
    if (rc == ERR_PROTO)
        link_close(p->conn);
}
