/* Credit: slots that a client may write. */
#include <inttypes.h>

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
    uint64_t there = slots_available(s);
    if (some || n <= there)
        *got = get(s, client, slot, n < there ? n : there, some);
    return *got ? 0 : full(e, s, n);
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
