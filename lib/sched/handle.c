/*
 * Transfer handles. A prefilled sequence holds blocks at its store until a decode worker takes it, so its request needs
 * fewer free blocks than others. A handle that no worker will take is released, so that the store need not wait for its
 * TTL. Handles are opaque here: they come from the prefill worker and are passed to the decode worker or to the store.
 *
 * The store does not report when the TTL of a sequence (kvstore --handed-ms) has expired. Its request then needs more
 * blocks than are counted here; its decode worker leases what is cached and computes the rest.
 *
 * Deadlock avoidance: prefilled requests can fill a pool, so that none of them has room to decode and no running
 * request has room to continue. Then all but the first release their handles. Their blocks stay cached, and are leased
 * or computed again when the requests are scheduled.
 */
#include "sched/machine.h"

#include <string.h>

#define STUCK_NS (500 * NS_MS) /* a store is stuck for this long before handles are released */

static bool waits_at(const struct request *r, int store)
{
    return r->n_handle && r->pub.kv_store >= 0 && r->pub.kv_store == store;
}

uint64_t handle_blocks(const struct request *r, int store)
{
    uint64_t n = (uint64_t)r->pub.n_prompt + r->pub.n_out;
    return waits_at(r, store) && n ? (n - 1 + KV_BLOCK - 1) / KV_BLOCK : 0;
}

static void release(struct sched *s, int store, const uint8_t *p, size_t n)
{
    if (s->sink.release && n && store >= 0)
        s->sink.release(s->sink.arg, s->store[store].name, (struct wire_bytes){p, n});
}

void handle_release(struct sched *s, struct request *r)
{
    release(s, r->pub.kv_store, r->handle, r->n_handle);
    r->n_handle = 0;
}

/* A late copy of the report that set r's handle must not release it. */
void handle_release_unused(struct sched *s, const struct request *r, const struct wire_report *f)
{
    if (r && r->n_handle == f->handle.n && f->handle.n && !memcmp(r->handle, f->handle.p, f->handle.n))
        return;
    release(s, store_find(s, f->store), f->handle.p, f->handle.n);
}

static struct request *first_at(const struct sched *s, int store)
{
    struct request *r = s->ready.first[0];
    while (r && !waits_at(r, store))
        r = r->skip.next[0];
    return r;
}

/* True if the first request of the queue does not fit and running ones will not free blocks soon: nothing decodes at
 * the store, or there is less than a free block for each request that does. */
static bool stuck(const struct sched *s, int store)
{
    uint64_t room = 0, running = 0;
    bool any = false;
    for (uint32_t i = 0; i < s->n_worker; i++) {
        const struct sched_worker *w = &s->worker[i]->pub;
        if (w->store != store)
            continue;
        running += w->n_decode + w->n_whole;
        if (w->draining || !w->seqs)
            continue;
        any = true;
        room = w->blocks > room ? w->blocks : room;
    }
    const struct request *r = any && (!running || room < running) ? first_at(s, store) : NULL;
    return r && req_more_blocks(s, r, store, s->max_len, SCHED_ON_DECODE) > room;
}

static void release_all_but_first(struct sched *s, int store)
{
    struct request *first = first_at(s, store), *r = first->skip.next[0];
    bool others = false;
    for (; r; r = r->skip.next[0])
        if (waits_at(r, store)) {
            others = true;
            handle_release(s, r);
        }
    if (!others)
        handle_release(s, first);
    s->dirty = true;
}

void handles_timers(struct sched *s)
{
    for (uint32_t i = 0; i < s->n_store; i++) {
        struct store *t = &s->store[i];
        if (!s->ready.n || !stuck(s, (int)i)) {
            t->stuck_ns = 0;
        } else if (!t->stuck_ns) {
            t->stuck_ns = s->now_ns;
        } else if (t->stuck_ns + STUCK_NS <= s->now_ns) {
            t->stuck_ns = 0;
            release_all_but_first(s, (int)i);
        }
    }
}
