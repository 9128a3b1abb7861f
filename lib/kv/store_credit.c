/*
 * Credit: slots that a client may write. All or none, and whoever waits is served in the order they came: a request for
 * many is not starved by those for few, and two clients cannot each hold half of what both need for longer than the
 * first of them waits.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "kv/store_impl.h"

/* In an adopted arena blocks may stand in each other's way, so that fewer can be had than are counted. */
static uint64_t get(struct kv_store *s, uint32_t client, uint32_t *slot, uint64_t n, bool some)
{
    uint64_t got = 0;
    for (uint32_t i; got < n && (i = slot_get(s)) != KV_NONE; got++) {
        slot_set(s, i, KV_CREDIT, client + 1);
        slot[got] = i;
    }
    while (got && got < n && !some)
        slot_free(s, slot[--got]);
    return got;
}

static int full(struct err *e, struct kv_store *s, uint64_t n)
{
    return store_no(e, s, KV_WHY_NOT_NOW, ERR_NO,
                    "the store is full: %" PRIu64 " blocks wanted, %" PRIu64 " of %" PRIu64 " can be had now", n,
                    slots_available(s), s->n_slot);
}

static int may_have(struct err *e, struct kv_store *s, uint32_t client, uint64_t n, bool some)
{
    int rc = store_client(e, s, client);
    if (!rc && n > s->n_slot && !some)
        rc = store_no(e, s, KV_WHY_NEVER, ERR_NO, "%" PRIu64 " blocks never fit: the store has %" PRIu64, n, s->n_slot);
    return rc;
}

int kv_store_credit(struct err *e, struct kv_store *s, uint32_t client, uint32_t *slot, uint64_t *got, uint64_t n,
                    bool some)
{
    *got = 0;
    int rc = may_have(e, s, client, n, some);
    if (rc || !n)
        return rc;
    if (s->first_credit != KV_NONE)
        return store_no(e, s, KV_WHY_NOT_NOW, ERR_NO, "others wait for blocks already");
    uint64_t there = slots_available(s);
    if (some || n <= there)
        *got = get(s, client, slot, n < there ? n : there, some);
    return *got ? 0 : full(e, s, n);
}

/* ---- waiting ---- */

void credit_unwait(struct kv_store *s, uint32_t client)
{
    struct client_side *c = &s->client[client];
    if (!c->n_credit)
        return;
    *(c->credit_prev != KV_NONE ? &s->client[c->credit_prev].credit_next : &s->first_credit) = c->credit_next;
    *(c->credit_next != KV_NONE ? &s->client[c->credit_next].credit_prev : &s->last_credit) = c->credit_prev;
    c->n_credit = 0;
}

static void answer(struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n)
{
    struct kv_news news = {
        .kind = KV_NEWS_CREDIT, .client = client, .tag = s->client[client].credit_tag, .slot = slot, .n = n};
    credit_unwait(s, client);
    store_tell(s, &news);
}

/* Nobody passes the first: it is served when there is enough for it, or its time is over. */
static void serve(struct kv_store *s)
{
    while (s->first_credit != KV_NONE) {
        uint32_t client = s->first_credit;
        uint64_t n = s->client[client].n_credit;
        uint32_t *slot = n <= slots_available(s) ? malloc(n * sizeof *slot) : NULL;
        uint64_t got = slot ? get(s, client, slot, n, false) : 0;
        if (got)
            answer(s, client, slot, got);
        free(slot);
        if (!got)
            return;
    }
}

int kv_store_credit_wait(struct err *e, struct kv_store *s, uint32_t client, uint64_t n, uint64_t tag, uint64_t wait_ns)
{
    int rc = may_have(e, s, client, n, false);
    if (rc)
        return rc;
    struct client_side *c = &s->client[client];
    if (c->n_credit || !n)
        return store_no(e, s, KV_WHY_REFUSED, ERR_NO, n ? "it waits for blocks already" : "no blocks to wait for");
    c->n_credit = n;
    c->credit_tag = tag;
    c->credit_end_ns = s->now_ns + wait_ns;
    c->credit_prev = s->last_credit;
    c->credit_next = KV_NONE;
    *(s->last_credit != KV_NONE ? &s->client[s->last_credit].credit_next : &s->first_credit) = client;
    s->last_credit = client;
    serve(s);
    return 0;
}

uint64_t credits_tick(struct kv_store *s)
{
    uint64_t due = UINT64_MAX;
    serve(s);
    for (uint32_t i = s->first_credit, next; i != KV_NONE; i = next) {
        next = s->client[i].credit_next;
        if (s->client[i].credit_end_ns <= s->now_ns)
            answer(s, i, NULL, 0);
    }
    serve(s); /* those behind one whose time is over */
    for (uint32_t i = s->first_credit; i != KV_NONE; i = s->client[i].credit_next)
        due = s->client[i].credit_end_ns < due ? s->client[i].credit_end_ns : due;
    return due;
}

/* ---- giving back ---- */

int check_credit(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n, uint32_t or_tail)
{
    for (uint64_t k = 0; k < n; k++) {
        uint32_t i = slot[k];
        if (i >= s->n_slot ||
            (i != or_tail && (slot_of(s, i)->state != KV_CREDIT || slot_of(s, i)->writer != client + 1)))
            return store_no(e, s, KV_WHY_REFUSED, ERR_NO, "slot %u is not this client's to write", i);
        if (s->slot[i].mark == s->mark)
            return store_no(e, s, KV_WHY_REFUSED, ERR_NO, "slot %u comes twice", i);
        s->slot[i].mark = s->mark;
    }
    return 0;
}

int kv_store_uncredit(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n)
{
    int rc = store_client(e, s, client);
    s->mark++;
    rc = rc ? rc : check_credit(e, s, client, slot, n, KV_NONE);
    for (uint64_t k = 0; k < n && !rc; k++)
        slot_free(s, slot[k]);
    return rc;
}
