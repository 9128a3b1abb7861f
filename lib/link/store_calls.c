/* The client of kvstore: its requests, and notifications. */
#include "link/store_client_impl.h"

#include <stdlib.h>
#include <string.h>

int store_client_lease(struct err *e, struct store_client *c, struct kv_seq_info *out, const uint32_t *ids,
                       uint64_t n_id, const uint8_t *digests, uint64_t n_block, bool wait)
{
    struct wire_frame f = {
        .kind = WIRE_KV_LEASE,
        .kv_lease = {.ids = ids, .n_id = (uint32_t)n_id, .digests = {digests, n_block * KV_DIGEST}, .wait = wait}};
    int rc = client_call(e, c, &f, WIRE_KV_SEQ);
    if (!rc)
        client_info(out, &f.kv_seq);
    return client_done(c, rc);
}

static int slots_of(struct err *e, uint32_t *out, uint64_t *got, const struct wire_kv_slots *s, uint64_t max)
{
    if (s->n_slot > max)
        return err_set(e, ERR_PROTO, "kvstore responded with %u slots, at most %llu were requested", s->n_slot,
                       (unsigned long long)max);
    if (s->n_slot)
        memcpy(out, s->slot, s->n_slot * sizeof *out);
    *got = s->n_slot;
    return 0;
}

int store_client_reserve(struct err *e, struct store_client *c, uint32_t *slot, uint64_t *got, uint64_t n, bool some)
{
    struct wire_frame f = {.kind = WIRE_KV_CREDIT, .kv_credit = {.n = n, .some = some}};
    *got = 0;
    int rc = client_call(e, c, &f, WIRE_KV_SLOTS);
    return client_done(c, rc ? rc : slots_of(e, slot, got, &f.kv_slots, n));
}

int store_client_release_slots(struct err *e, struct store_client *c, const uint32_t *slot, uint64_t n)
{
    struct wire_frame f = {.kind = WIRE_KV_FREE, .kv_free = {.slot = slot, .n_slot = (uint32_t)n}};
    return client_done(c, client_call(e, c, &f, WIRE_KV_FREE));
}

int store_client_publish(struct err *e, struct store_client *c, uint32_t *out, const struct kv_publish *p)
{
    struct wire_kv_block *b = malloc((p->n_block + 1) * sizeof *b);
    uint64_t got = 0;
    if (!b)
        return err_nomem(e, "blocks to publish", p->n_block * sizeof *b);
    for (uint64_t k = 0; k < p->n_block; k++)
        b[k] = (struct wire_kv_block){p->slot[k], p->sum[k]};
    struct wire_frame f = {.kind = WIRE_KV_PUBLISH,
                           .kv_publish = {.seq = p->seq,
                                          .gen = p->gen,
                                          .at = p->at,
                                          .block = b,
                                          .n_block = (uint32_t)p->n_block,
                                          .digests = {p->digests, p->digests ? p->n_block * KV_DIGEST : 0},
                                          .ids = p->ids,
                                          .n_id = (uint32_t)(p->n_block * KV_BLOCK + p->n_tail),
                                          .has_tail = p->tail != KV_NONE,
                                          .tail = p->tail}};
    int rc = client_call(e, c, &f, WIRE_KV_SLOTS);
    free(b);
    rc = rc ? rc : slots_of(e, out, &got, &f.kv_slots, p->n_block);
    if (!rc && got != p->n_block)
        rc = err_set(e, ERR_PROTO, "kvstore responded with %llu slots for %llu blocks", (unsigned long long)got,
                     (unsigned long long)p->n_block);
    return client_done(c, rc);
}

static int handle(struct err *e, struct store_client *c, struct kv_seq_info *out, enum wire_kind k, uint64_t seq,
                  uint64_t gen)
{
    struct wire_frame f = {.kind = k, .kv_handle = {.seq = seq, .gen = gen}};
    int rc = client_call(e, c, &f, WIRE_KV_SEQ);
    if (!rc)
        client_info(out, &f.kv_seq);
    return client_done(c, rc);
}

int store_client_transfer_out(struct err *e, struct store_client *c, struct kv_seq_info *out, uint64_t seq,
                              uint64_t gen)
{
    return handle(e, c, out, WIRE_KV_HAND, seq, gen);
}

int store_client_transfer_in(struct err *e, struct store_client *c, struct kv_seq_info *out, uint64_t seq, uint64_t gen)
{
    return handle(e, c, out, WIRE_KV_TAKE, seq, gen);
}

int store_client_release(struct err *e, struct store_client *c, uint64_t seq, uint64_t gen)
{
    struct wire_frame f = {.kind = WIRE_KV_FREE, .kv_free = {.seq = seq, .gen = gen}};
    return client_done(c, client_call(e, c, &f, WIRE_KV_FREE));
}

int store_client_renew(struct err *e, struct store_client *c)
{
    struct wire_frame f = {.kind = WIRE_KV_RENEW};
    return client_done(c, client_call(e, c, &f, WIRE_KV_RENEW));
}

int store_client_stat(struct err *e, struct store_client *c, struct wire_kv_stat *out)
{
    struct wire_frame f = {.kind = WIRE_KV_STAT};
    int rc = client_call(e, c, &f, WIRE_KV_STAT);
    if (!rc) {
        *out = f.kv_stat;
        out->extra = (struct wire_extra){0};
    }
    return client_done(c, rc);
}

int store_client_next_event(struct err *e, struct store_client *c, struct kv_seq_info *out, int timeout_ms)
{
    struct wire_frame f;
    int64_t end_ms = client_now_ms() + timeout_ms;
    pthread_mutex_lock(&c->lock);
    int rc = client_ready(e, c, end_ms);
    while (!rc && list_empty(&c->news)) {
        rc = client_receive(e, c, &f, end_ms);
        if (!rc)
            client_notification(c, &f);
        rc = rc ? rc : client_ready(e, c, end_ms);
    }
    if (!rc) {
        struct queued *q = list_entry(list_pop_front(&c->news), struct queued, node);
        *out = q->seq;
        free(q);
    }
    return client_done(c, rc);
}
