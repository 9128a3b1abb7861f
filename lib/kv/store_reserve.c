/* Reserved slots: a client may write them until it publishes or releases them. */
#include <inttypes.h>

#include "kv/store_impl.h"

/* In an adopted arena some cached blocks may not be evictable, so fewer than slots_available can be allocated. */
static uint64_t reserve(struct kv_store *s, uint32_t client, uint32_t *slot, uint64_t n, bool some)
{
    uint64_t got = 0;
    for (uint32_t i; got < n && (i = slot_get(s)) != KV_NONE; got++) {
        slot_set(s, i, KV_RESERVED, client + 1);
        slot[got] = i;
    }
    while (got && got < n && !some)
        slot_free(s, slot[--got]);
    return got;
}

static int refuse_full(struct err *e, struct kv_store *s, uint64_t n)
{
    return store_refuse(e, s, KV_WHY_NOT_NOW, ERR_NO,
                        "the store is full: %" PRIu64 " blocks requested, %" PRIu64 " of %" PRIu64 " are available", n,
                        slots_available(s), s->n_slot);
}

static int check_request(struct err *e, struct kv_store *s, uint32_t client, uint64_t n, bool some)
{
    int rc = store_client(e, s, client);
    if (!rc && n > s->n_slot && !some)
        rc = store_refuse(e, s, KV_WHY_NEVER, ERR_NO, "%" PRIu64 " blocks never fit: the store has %" PRIu64, n,
                          s->n_slot);
    return rc;
}

int kv_store_reserve(struct err *e, struct kv_store *s, uint32_t client, uint32_t *slot, uint64_t *got, uint64_t n,
                     bool some)
{
    *got = 0;
    int rc = check_request(e, s, client, n, some);
    if (rc || !n)
        return rc;
    uint64_t available = slots_available(s);
    if (some || n <= available)
        *got = reserve(s, client, slot, n < available ? n : available, some);
    return *got ? 0 : refuse_full(e, s, n);
}

/* ---- release ---- */

int check_reserved(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n,
                   uint32_t or_tail)
{
    for (uint64_t k = 0; k < n; k++) {
        uint32_t i = slot[k];
        if (i >= s->n_slot ||
            (i != or_tail && (slot_of(s, i)->state != KV_RESERVED || slot_of(s, i)->writer != client + 1)))
            return store_refuse(e, s, KV_WHY_REFUSED, ERR_NO, "slot %u is not reserved for this client", i);
        if (s->slot[i].mark == s->mark)
            return store_refuse(e, s, KV_WHY_REFUSED, ERR_NO, "slot %u occurs twice in the request", i);
        s->slot[i].mark = s->mark;
    }
    return 0;
}

int kv_store_release_slots(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n)
{
    int rc = store_client(e, s, client);
    s->mark++;
    rc = rc ? rc : check_reserved(e, s, client, slot, n, KV_NONE);
    for (uint64_t k = 0; k < n && !rc; k++)
        slot_free(s, slot[k]);
    return rc;
}
