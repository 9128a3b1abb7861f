/* Creation of a store, clients and their leases, statistics. */
#include "kv/store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <sodium.h>

#include "kv/store_impl.h"

int store_refuse(struct err *e, struct kv_store *s, enum kv_why why, int code, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    s->why = why;
    return err_set(e, code, "%s", text);
}

void store_emit(struct kv_store *s, const struct kv_event *n)
{
    if (s->o.on_event)
        s->o.on_event(s->o.event_arg, n);
}

enum kv_why kv_store_why(const struct kv_store *s)
{
    return s->why;
}

/* ---- creation ---- */

static void *alloc_none(uint64_t n)
{
    uint32_t *p = malloc(n * sizeof *p);
    if (p)
        memset(p, 0xff, n * sizeof *p); /* KV_NONE */
    return p;
}

static bool allocate(struct kv_store *s)
{
    for (s->n_bucket = 64; s->n_bucket < s->n_slot; s->n_bucket *= 2)
        ;
    s->slot = calloc(s->n_slot, sizeof *s->slot);
    s->seq = calloc(s->n_seq, sizeof *s->seq);
    s->client = calloc(s->n_client, sizeof *s->client);
    s->claim_bucket = calloc(s->n_bucket, sizeof(struct claim *));
    s->free_slot = alloc_none(s->n_slot);
    s->heap = alloc_none(s->n_slot);
    s->bucket = alloc_none(s->n_bucket);
    s->free_seq = alloc_none(s->n_seq);
    s->free_page = alloc_none(s->n_page);
    return s->slot && s->seq && s->client && s->claim_bucket && s->free_slot && s->heap && s->bucket && s->free_seq &&
           s->free_page;
}

static void init_links(struct kv_store *s)
{
    s->first_dirty = s->last_dirty = s->first_transfer = s->last_transfer = KV_NONE;
    for (uint64_t i = 0; i < s->n_slot; i++) {
        struct slot_side *d = &s->slot[i];
        d->parent = d->hash_next = d->heap_at = d->prev = d->next = KV_NONE;
    }
    list_init(&s->reads);
    for (uint64_t i = 0; i < s->n_seq; i++) {
        list_init(&s->seq[i].claims);
        s->seq[i].prev = s->seq[i].next = s->seq[i].wait_prev = s->seq[i].wait_next = KV_NONE;
    }
    for (uint64_t i = 0; i < s->n_client; i++)
        s->client[i].first_seq = s->client[i].first_slot = KV_NONE;
}

static bool random_u64(uint64_t *out)
{
    return getrandom(out, sizeof *out, 0) == sizeof *out;
}

int kv_store_new(struct err *e, struct kv_store **out, struct kv_arena *a, const struct kv_store_opts *o,
                 uint64_t now_ns)
{
    const struct kv_arena_head *h = kv_arena_head(a);
    struct kv_store *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, "a store", sizeof *s);
    s->a = a;
    s->o = *o;
    s->now_ns = now_ns;
    s->epoch = 1;
    s->n_slot = h->n_slot;
    s->n_seq = h->n_seq;
    s->n_page = h->n_page;
    s->n_client = h->n_client;
    s->slot_bytes = kv_arena_layout(a)->slot_bytes;
    int rc = random_u64(&s->dice) ? 0 : err_sys(e, "random bytes");
    s->dice |= 1;
    if (!rc)
        rc = allocate(s) ? 0 : err_nomem(e, "a store", s->n_slot * sizeof *s->slot);
    if (!rc) {
        init_links(s);
        rc = store_adopt(e, s, now_ns);
    }
    if (rc) {
        kv_store_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void kv_store_free(struct kv_store *s)
{
    if (!s)
        return;
    for (uint64_t i = 0; s->claim_bucket && i < s->n_bucket; i++)
        for (struct claim *c = s->claim_bucket[i], *next; c; c = next) {
            next = c->hash_next;
            free(c);
        }
    for (uint64_t i = 0; s->seq && i < s->n_seq; i++) {
        free(s->seq[i].ids);
        free(s->seq[i].digests);
    }
    free(s->slot);
    free(s->seq);
    free(s->client);
    free(s->claim_bucket);
    free(s->free_slot);
    free(s->heap);
    free(s->bucket);
    free(s->free_seq);
    free(s->free_page);
    free(s);
}

/* ---- clients ---- */

/* Clients can read the metadata, and a client's key lets its bearer continue with what the client owns. */
static void hash_key(uint8_t out[32], uint64_t key)
{
    crypto_generichash(out, 32, (const uint8_t *)&key, sizeof key, NULL, 0);
}

int kv_store_join(struct err *e, struct kv_store *s, uint32_t *client, int64_t pid, uint64_t pid_start, uint64_t now_ns)
{
    uint32_t i = 0;
    struct kv_client c = {.pid = pid, .pid_start = pid_start};
    uint64_t key;
    while (i < s->n_client && s->client[i].state != CLIENT_NONE)
        i++;
    if (i == s->n_client)
        return store_refuse(e, s, KV_WHY_NOT_NOW, ERR_NO, "the store has %" PRIu64 " clients, which is the limit",
                            s->n_client);
    if (!random_u64(&c.id) || !random_u64(&key))
        return err_sys(e, "random bytes");
    c.id |= 1;
    hash_key(c.key, key);
    *kv_arena_client(s->a, i) = c;
    s->client[i] = (struct client_side){.state = CLIENT_CONNECTED,
                                        .key = key,
                                        .end_ns = now_ns + s->o.lease_ns,
                                        .first_seq = KV_NONE,
                                        .first_slot = KV_NONE};
    s->n_connected++;
    *client = i;
    return 0;
}

int kv_store_rejoin(struct err *e, struct kv_store *s, uint32_t *client, uint64_t id, uint64_t key, uint64_t now_ns)
{
    uint32_t i = 0;
    uint8_t hash[32];
    while (i < s->n_client && (s->client[i].state == CLIENT_NONE || kv_arena_client(s->a, i)->id != id))
        i++;
    hash_key(hash, key);
    if (!id || i == s->n_client || sodium_memcmp(kv_arena_client(s->a, i)->key, hash, sizeof hash))
        return store_refuse(e, s, KV_WHY_EXPIRED, ERR_NO,
                            "this store does not know the client: all that it owned was released");
    /* The refusal reports the expiry, so the client stops writing, and its slots can be freed. */
    if (s->client[i].state == CLIENT_EXPIRED) {
        kv_store_leave(s, i, now_ns);
        return store_refuse(e, s, KV_WHY_EXPIRED, ERR_NO,
                            "the lease has ended: all that the client owned was released");
    }
    s->client[i].state = CLIENT_CONNECTED;
    s->client[i].absent = false;
    s->client[i].key = key;
    s->client[i].end_ns = now_ns + s->o.lease_ns;
    *client = i;
    return 0;
}

void kv_store_resend(struct kv_store *s, uint32_t client)
{
    for (uint32_t i = s->client[client].first_seq; i != KV_NONE; i = s->seq[i].next) {
        if (!seq_of(s, i)->waits || s->seq[i].waits_for)
            continue;
        struct kv_event n = {.kind = KV_EVENT_SEQ, .client = client};
        seq_of(s, i)->waits = 0;
        seq_info(s, &n.seq, i);
        store_emit(s, &n);
    }
}

void kv_store_identity(const struct kv_store *s, uint32_t client, uint64_t *id, uint64_t *key)
{
    *id = kv_arena_client(s->a, client)->id;
    *key = s->client[client].key;
}

int kv_store_renew(struct err *e, struct kv_store *s, uint32_t client, uint64_t now_ns)
{
    int rc = store_client(e, s, client);
    s->now_ns = now_ns;
    if (!rc)
        s->client[client].end_ns = now_ns + s->o.lease_ns;
    return rc;
}

static void drop_seqs(struct kv_store *s, uint32_t client, bool quarantine)
{
    while (s->client[client].first_seq != KV_NONE)
        seq_drop(s, s->client[client].first_seq, quarantine);
}

void kv_store_leave(struct kv_store *s, uint32_t client, uint64_t now_ns)
{
    struct client_side *c = &s->client[client];
    s->now_ns = now_ns;
    if (c->state == CLIENT_NONE)
        return;
    drop_seqs(s, client, false);
    for (uint32_t i = s->first_transfer; i != KV_NONE; i = s->seq[i].next)
        if (seq_of(s, i)->owner == client + 1) /* another client can get its number */
            seq_of(s, i)->owner = 0;
    while (c->first_slot != KV_NONE)
        slot_free(s, c->first_slot);
    *kv_arena_client(s->a, client) = (struct kv_client){0};
    c->state = CLIENT_NONE;
    s->n_connected--;
}

/* Ends its lease. A stopped process may continue and write, so its slots are quarantined. */
static void expire(struct kv_store *s, uint32_t client)
{
    struct client_side *c = &s->client[client];
    c->absent = c->state == CLIENT_ABSENT;
    c->state = CLIENT_EXPIRED;
    drop_seqs(s, client, true);
    for (uint32_t i = c->first_slot; i != KV_NONE; i = s->slot[i].next)
        if (slot_of(s, i)->state == KV_RESERVED)
            slot_set(s, i, KV_QUARANTINE, client + 1);
    store_emit(s, &(struct kv_event){.kind = KV_EVENT_EXPIRED, .client = client});
}

uint64_t kv_store_tick(struct kv_store *s, uint64_t now_ns)
{
    s->now_ns = now_ns;
    uint64_t next = tier_tick(s);
    for (uint32_t i = 0; i < s->n_client; i++) {
        struct client_side *c = &s->client[i];
        if (c->state != CLIENT_CONNECTED && c->state != CLIENT_ABSENT)
            continue;
        if (c->end_ns <= now_ns)
            expire(s, i);
        else if (c->end_ns < next)
            next = c->end_ns;
    }
    while (s->first_transfer != KV_NONE && s->seq[s->first_transfer].end_ns <= now_ns)
        seq_drop(s, s->first_transfer, false);
    if (s->first_transfer != KV_NONE && s->seq[s->first_transfer].end_ns < next)
        next = s->seq[s->first_transfer].end_ns;
    return next;
}

bool kv_store_absent(const struct kv_store *s, uint32_t *client, int64_t *pid, uint64_t *pid_start)
{
    for (uint32_t i = *client + 1; i < s->n_client; i++) { /* KV_NONE + 1 is 0 */
        const struct client_side *c = &s->client[i];
        if (c->state != CLIENT_ABSENT && !(c->state == CLIENT_EXPIRED && c->absent))
            continue;
        *client = i;
        *pid = kv_arena_client(s->a, i)->pid;
        *pid_start = kv_arena_client(s->a, i)->pid_start;
        return true;
    }
    return false;
}

/* ---- statistics ---- */

void kv_store_stat(const struct kv_store *s, struct kv_store_stat *out)
{
    *out = (struct kv_store_stat){.total = s->n_slot,
                                  .free = s->n_free,
                                  .cached = s->n_cached,
                                  .leased = s->n_leased,
                                  .quarantined = s->n_quarantined,
                                  .reserved = s->n_reserved,
                                  .seqs = s->n_seq - s->n_free_seq,
                                  .clients = s->n_connected,
                                  .waiting = s->n_waiting,
                                  .hit_blocks = s->hit_blocks,
                                  .miss_blocks = s->miss_blocks,
                                  .published = s->published,
                                  .duplicate = s->duplicate,
                                  .evicted = s->evicted,
                                  .damaged = s->damaged};
    if (s->o.tier) {
        struct kv_tier_stat t;
        kv_tier_stat(s->o.tier, &t);
        out->disk_total = t.total;
        out->disk_used = t.used;
        out->disk_hits = t.hits;
        out->disk_bad = t.bad;
    }
}

struct each {
    const struct kv_store *s;
    void (*fn)(void *arg, const uint8_t *digest);
    void *arg;
};

static void each_on_disk(void *arg, const uint8_t *digest)
{
    const struct each *x = arg;
    if (slot_find(x->s, digest) == KV_NONE)
        x->fn(x->arg, digest);
}

void kv_store_each(const struct kv_store *s, void (*fn)(void *arg, const uint8_t *digest), void *arg)
{
    struct each x = {s, fn, arg};
    for (uint32_t i = 0; i < s->n_slot; i++)
        if (slot_of(s, i)->state == KV_NAMED)
            fn(arg, slot_of(s, i)->digest);
    if (s->o.tier)
        kv_tier_each(s->o.tier, each_on_disk, &x);
}

bool kv_store_busy(const struct kv_store *s)
{
    return s->n_free_seq < s->n_seq && s->n_connected > 0;
}
