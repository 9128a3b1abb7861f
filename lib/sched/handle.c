/*
 * Sequences that wait at their store to be taken by a decode worker. They hold blocks, and a request that waits with
 * one wants fewer more. A handle that nobody will come for is let go, so that its store need not wait for its end. A
 * handle is opaque here: it comes from the worker that prefilled, and goes to the one that decodes or to the store.
 *
 * The store ends a sequence that waits for too long (kvstore --handed-ms), which is not reported. The request then
 * wants more than is counted here, and its decode worker finds its blocks cached or makes room as for any other.
 *
 * Many that wait can fill a pool together, so that none of them finds room to decode, nor what decodes room to go on.
 * Then all but the first give their handles up: their blocks stay cached under their names, and are leased again or
 * computed again when their turn comes.
 */
#include "sched/machine.h"

#include <string.h>

#define STUCK_NS 500000000 /* nothing fits for so long */

static bool waits_at(const struct job *j, int store)
{
    return j->n_handle && j->pub.kv_store >= 0 && j->pub.kv_store == store;
}

uint64_t handle_blocks(const struct job *j, int store)
{
    uint64_t n = (uint64_t)j->pub.n_prompt + j->pub.n_out;
    return waits_at(j, store) && n ? (n - 1 + KV_BLOCK - 1) / KV_BLOCK : 0;
}

static void let_go(struct sched *s, int store, const uint8_t *p, size_t n)
{
    if (s->sink.let_go && n && store >= 0)
        s->sink.let_go(s->sink.arg, s->store[store].name, (struct wire_bytes){p, n});
}

void handle_let_go(struct sched *s, struct job *j)
{
    let_go(s, j->pub.kv_store, j->handle, j->n_handle);
    j->n_handle = 0;
}

/* A late copy of the report that the request goes by is nothing new. */
void handle_unused(struct sched *s, const struct job *j, const struct wire_report *f)
{
    if (j && j->n_handle == f->handle.n && f->handle.n && !memcmp(j->handle, f->handle.p, f->handle.n))
        return;
    let_go(s, store_find(s, f->store), f->handle.p, f->handle.n);
}

static struct job *first_at(const struct sched *s, int store)
{
    struct job *j = s->ready.first[0];
    while (j && !waits_at(j, store))
        j = j->skip.next[0];
    return j;
}

/* The first in the queue has too few blocks, and no end that is near will bring any: nothing decodes there, or what
 * does finds no more to write into. */
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
    const struct job *j = any && (!running || room < running) ? first_at(s, store) : NULL;
    return j && job_wants(s, j, store, s->max_len, SCHED_ON_DECODE) > room;
}

static void give_up(struct sched *s, int store)
{
    struct job *first = first_at(s, store), *j = first->skip.next[0];
    bool others = false;
    for (; j; j = j->skip.next[0])
        if (waits_at(j, store)) {
            others = true;
            handle_let_go(s, j);
        }
    if (!others)
        handle_let_go(s, first);
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
            give_up(s, (int)i);
        }
    }
}
