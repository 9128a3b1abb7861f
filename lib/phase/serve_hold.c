/*
 * A worker as client of kvstore. While kvstore does not respond, the worker makes no blocking calls: assignments that
 * need no new slot continue, and the others wait. A call without a response may have been done or not, so the two may
 * disagree about the worker's slots. When kvstore responds again, the worker therefore releases everything and leases
 * again, which costs each assignment at most the tokens of one block.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "phase/serve.h"
#include "proc/proc.h"

#define CALL_MS 3000                  /* timeout of a call, after which kvstore counts as down */
#define STORE_RETRY_NS (5000 * NS_MS) /* between calls to a store that does not respond */
#define STAT_NS (100 * NS_MS)         /* between requests for its free slots */
#define IDLE_NS (1000 * NS_MS)        /* idle time after which reserved slots are released */
#define RESYNC_NS (100 * NS_MS)       /* between two resyncs */
#define RESERVE 16                    /* at most one of this many slots is reserved in advance */
#define STORE_EVENTS_MAX 1024         /* in one poll */

/* ---- connection ---- */

enum kv_status {
    KV_STATUS_OK,
    KV_STATUS_RETRY, /* the store is full, or does not respond */
    KV_STATUS_STALE, /* the sequence no longer exists */
    KV_STATUS_NEVER, /* it never fits into the store */
};

static enum kv_status kv_status_of(struct serve *v, int rc, const struct err *e)
{
    enum kv_why why = rc ? store_client_why(v->store) : 0;
    if (!rc)
        return KV_STATUS_OK;
    if (why == KV_WHY_NEVER)
        return KV_STATUS_NEVER;
    if (why == KV_WHY_NOT_NOW || why == KV_WHY_DRAINING)
        return KV_STATUS_RETRY;
    if (why == KV_WHY_EXPIRED) {
        v->expired = true;
        return KV_STATUS_RETRY;
    }
    if (why == KV_WHY_STALE)
        return KV_STATUS_STALE;
    if (why) { /* the store and this worker disagree about slots: resync */
        serve_log(v, "kvstore refused a call, this worker resynchronizes: %s", e->text);
        v->must_resync = true;
        return KV_STATUS_RETRY;
    }
    if (!v->store_down)
        serve_log(v, "%s: requests that need new slots wait", e->text);
    v->store_down = v->must_resync = true;
    v->store_retry_ns = time_now_ns() + STORE_RETRY_NS;
    return KV_STATUS_RETRY;
}

static bool may_respond(struct serve *v)
{
    struct pollfd p = {store_client_fd(v->store), POLLIN, 0};
    return poll(&p, 1, 0) > 0 || time_now_ns() >= v->store_retry_ns;
}

/* Whether a call would not block for long. */
static bool reachable(struct serve *v)
{
    struct err e;
    if (!store_client_up(v->store)) {
        if (!v->store_down)
            serve_log(v, "the connection to kvstore is closed: requests that need new slots wait");
        v->store_down = true;
        v->store_retry_ns = 0;
        return false;
    }
    if (!v->store_down)
        return true;
    if (!may_respond(v))
        return false;
    if (kv_status_of(v, store_client_renew(&e, v->store), &e) == KV_STATUS_RETRY && !v->expired)
        return false;
    v->store_down = false;
    serve_log(v, "kvstore responds again");
    return true;
}

static int map_arena(struct err *e, struct serve *v)
{
    struct kv_pool *pool;
    v->arena = store_client_arena(v->store);
    v->arena_id = kv_arena_head(v->arena)->id;
    int rc = kv_pool_of_arena(e, &pool, v->arena);
    return rc ? rc : stage_engine_take(e, &v->r.s, kv_arena_layout(v->arena)->type, pool);
}

int hold_open(struct err *e, struct serve *v)
{
    struct store_client_opts o = {
        .url = v->r.s.o->kv, .name = v->r.s.o->prog, .kind = &v->r.s.kind, .timeout_ms = CALL_MS};
    int rc = 0;
    bool logged = false;
    while (!rc && (rc = store_client_open(e, &v->store, &o)) == ERR_SYS && !proc_term_count()) {
        if (!logged)
            serve_log(v, "%s: waiting for kvstore", e->text);
        logged = true;
        rc = 0;
    }
    if (rc == ERR_SYS && proc_term_count())
        return 0;
    return rc ? rc : map_arena(e, v);
}

void hold_close(struct serve *v)
{
    store_client_close(v->store);
}

/* ---- the sequence and slots of an assignment ---- */

static bool valid(const struct serve *v, const struct assignment *a)
{
    return kv_arena_valid(v->arena, a->seq.seq, a->seq.gen);
}

static int64_t first_own(const struct assignment *a)
{
    return a->n_published + a->seq_tail;
}

/* Empties its table; slots that are only reserved return to the pool. */
static void drop_table(struct serve *v, struct assignment *a)
{
    struct kv_table *t = &a->q.kv;
    if (t->n > first_own(a))
        kv_pool_put(v->r.s.pool, t->slot + first_own(a), t->n - first_own(a));
    free(t->slot);
    *t = (struct kv_table){0};
    a->has_seq = a->seq_tail = false;
    a->n_published = 0;
    a->q.n_kv = 0;
}

/* Accepts a pending transfer so that it can be released: otherwise its blocks stay leased until it times out. */
static void claim_transfer(struct serve *v, struct assignment *a)
{
    struct err e;
    a->has_transfer = false;
    if (!v->must_resync && !v->expired && reachable(v))
        a->has_seq = kv_status_of(v, store_client_transfer_in(&e, v->store, &a->seq, a->from.seq, a->from.gen), &e) ==
                     KV_STATUS_OK;
}

void hold_release(struct serve *v, struct assignment *a)
{
    struct err e;
    if (a->has_transfer)
        claim_transfer(v, a);
    bool held = a->has_seq && !v->expired && valid(v, a);
    drop_table(v, a);
    if (held && (v->must_resync || !reachable(v)))
        v->must_resync = true; /* the resync releases it */
    else if (held)
        kv_status_of(v, store_client_release(&e, v->store, a->seq.seq, a->seq.gen), &e);
}

/* Its KV is lost: lease and compute again. */
static void recompute(struct serve *v, struct assignment *a)
{
    drop_table(v, a);
    a->q.state = REQUEST_WAITS;
    a->pending = false;
    a->retry_ns = 0;
}

static int reserve_table(struct err *e, struct kv_table *t, int64_t n)
{
    if (n <= t->cap)
        return 0;
    int32_t *p = realloc(t->slot, (size_t)n * sizeof *p);
    if (!p)
        return err_nomem(e, "a block table", (size_t)n * sizeof *p);
    t->slot = p;
    t->cap = n;
    return 0;
}

/* Copies the block table of its sequence from the arena. */
static int copy_table(struct err *e, struct serve *v, struct assignment *a)
{
    struct kv_table *t = &a->q.kv;
    int64_t n = (int64_t)a->seq.n_block;
    struct err no;
    int rc = reserve_table(e, t, n + 8);
    if (rc)
        return rc;
    if (kv_arena_table(&no, v->arena, t->slot, (uint64_t)n, a->seq.seq, a->seq.gen)) {
        recompute(v, a);
        return 0;
    }
    t->n = a->n_published = n;
    a->seq_tail = a->seq.tail != KV_NONE && a->seq.tail < kv_arena_head(v->arena)->n_slot;
    if (a->seq_tail)
        t->slot[t->n++] = (int32_t)a->seq.tail;
    a->q.n_kv = n * KV_BLOCK + (a->seq_tail ? (int64_t)a->seq.n_tail : 0);
    if (!a->seq.pending) {
        a->q.state = REQUEST_RUNS;
        a->pending = false;
    }
    return 0;
}

/* ---- leases and transfers ---- */

/* Adds the spans of prefill and of the transfer. */
static int add_transfer_spans(struct err *e, struct assignment *a)
{
    struct request *q = &a->q;
    const struct handle *h = &a->from;
    struct wire_span span[2] = {span_here("prefill"), span_here("hand-over")};
    q->taken_ns = time_now_ns();
    q->first_ns = q->first_ns ? q->first_ns : h->first_ns;
    q->load_ns = q->load_ns > h->load_ns ? q->load_ns : h->load_ns;
    span[0].pid = h->pid;
    span[0].queued_ns = h->queued_ns;
    span[0].start_ns = h->start_ns;
    span[0].end_ns = span[1].queued_ns = span[1].start_ns = h->end_ns;
    span[1].end_ns = q->taken_ns;
    span[0].tokens = span[1].tokens = q->r->n_id;
    return request_add_spans(e, q, span, 2);
}

static int take(struct err *e, struct serve *v, struct assignment *a)
{
    struct err no;
    a->has_transfer = false;
    /* If the call failed without a response, the transfer may be complete: the resync releases the sequence. */
    if (kv_status_of(v, store_client_transfer_in(&no, v->store, &a->seq, a->from.seq, a->from.gen), &no) !=
        KV_STATUS_OK)
        return 0;
    a->has_seq = true;
    int rc = copy_table(e, v, a);
    if (rc || a->q.state != REQUEST_RUNS)
        return rc;
    /* KV of tokens that this attempt does not know yet: the last row would be written twice. */
    if (a->q.n_kv >= a->q.n_ids) {
        hold_release(v, a);
        a->q.state = REQUEST_WAITS;
        return 0;
    }
    return add_transfer_spans(e, a);
}

static int lease(struct err *e, struct serve *v, struct assignment *a)
{
    struct err no;
    struct request *q = &a->q;
    /* The last id is always computed; for prompt log-probabilities all ids are. */
    int64_t n = q->want_prompt ? 0 : (q->n_ids - 1) / KV_BLOCK;
    int rc = work_digests(e, a, n);
    if (rc)
        return rc;
    rc = store_client_lease(&no, v->store, &a->seq, q->ids, (uint64_t)q->n_ids, a->digests, (uint64_t)n, !a->no_wait);
    switch (kv_status_of(v, rc, &no)) {
    case KV_STATUS_NEVER:
        err_set(&q->err, ERR_NO, "%s", no.text);
        return runner_fail(e, &v->r, q);
    case KV_STATUS_OK:
        break;
    default:
        a->retry_ns = time_now_ns() + RETRY_MS * NS_MS;
        return 0;
    }
    a->has_seq = a->pending = true;
    a->pending_ns = time_now_ns();
    return copy_table(e, v, a);
}

/* Sets the number of cached tokens when an assignment first begins to compute. */
static void started(struct assignment *a)
{
    struct request *q = &a->q;
    if (q->state != REQUEST_RUNS || a->cached_known)
        return;
    a->cached_known = true;
    q->cached = (uint32_t)(q->n_kv < (int64_t)q->r->n_id ? q->n_kv : (int64_t)q->r->n_id);
}

static bool is_pending(const struct assignment *a)
{
    return a->q.state == REQUEST_WAITS && a->pending;
}

static bool is_new(const struct assignment *a)
{
    return a->q.state == REQUEST_WAITS && !a->pending;
}

static int begin(struct err *e, struct serve *v, struct assignment *a)
{
    int rc = 0;
    if (a->has_transfer)
        rc = take(e, v, a);
    if (!rc && is_new(a) && reachable(v) && !v->expired)
        rc = lease(e, v, a);
    started(a);
    return rc;
}

/* ---- events of the store ---- */

static struct assignment *pending_of(const struct serve *v, const struct kv_seq_info *s)
{
    struct request *q = v->r.head;
    for (; q; q = q->next) {
        struct assignment *a = assignment_of(q);
        if (is_pending(a) && a->seq.seq == s->seq && a->seq.gen == s->gen)
            return a;
    }
    return NULL;
}

static int poll_store_events(struct err *e, struct serve *v)
{
    struct kv_seq_info s;
    struct err no;
    int rc = 0;
    for (int i = 0;
         i < STORE_EVENTS_MAX && !rc && store_client_up(v->store) && !store_client_next_event(&no, v->store, &s, 0);
         i++) {
        struct assignment *a = pending_of(v, &s);
        if (!a)
            continue;
        a->seq = s;
        a->pending_ns = time_now_ns();
        rc = copy_table(e, v, a);
        started(a);
    }
    return rc;
}

/* The worker that computes its next block takes too long, or the event was lost: compute the block here. */
static void check_pending_timeout(struct serve *v, struct assignment *a)
{
    if (time_now_ns() - a->pending_ns < PENDING_MS * NS_MS)
        return;
    hold_release(v, a);
    a->no_wait = true;
    a->pending = false;
}

/* ---- resync ---- */

static int resync(struct err *e, struct serve *v)
{
    struct err no;
    int rc = 0;
    uint64_t now = time_now_ns();
    if (now < v->resync_ns)
        return 0;
    v->resync_ns = now + RESYNC_NS;
    if (store_client_renew_all(&no, v->store)) {
        if (!v->store_down)
            serve_log(v, "%s", no.text);
        v->store_down = true;
        v->store_retry_ns = time_now_ns() + RETRY_MS * NS_MS;
        return 0;
    }
    int32_t slot[256];
    while (kv_pool_get(v->r.s.pool, slot, 256))
        ;
    for (struct request *q = v->r.head; q; q = q->next)
        if (q->state != REQUEST_CLOSED) {
            recompute(v, assignment_of(q));
            while (kv_pool_get(v->r.s.pool, slot, 256)) /* its reserved slots belong to the expired client */
                ;
        }
    v->must_resync = v->expired = v->store_down = false;
    v->reserve_ns = 0;
    if (store_client_arena(v->store) != v->arena || kv_arena_head(store_client_arena(v->store))->id != v->arena_id)
        rc = map_arena(e, v);
    return rc;
}

/* ---- reserved slots ---- */

static int64_t reserve_of(const struct serve *v)
{
    int64_t most = kv_pool_slots(v->r.s.pool) / RESERVE, want = v->r.n + 4;
    return want < most ? want : most;
}

static void release_slots(struct serve *v, int64_t n)
{
    int32_t slot[512];
    uint32_t give[512];
    struct err e;
    while (n > 0 && reachable(v)) {
        int64_t k = kv_pool_get(v->r.s.pool, slot, n < 512 ? n : 512);
        for (int64_t i = 0; i < k; i++)
            give[i] = (uint32_t)slot[i];
        if (!k || kv_status_of(v, store_client_release_slots(&e, v->store, give, (uint64_t)k), &e) != KV_STATUS_OK)
            return;
        n -= k;
    }
}

void hold_reserve(struct serve *v, int64_t n)
{
    int64_t idle = kv_pool_idle(v->r.s.pool), reserve = reserve_of(v), more = n + reserve - idle;
    uint64_t now = time_now_ns(), got = 0;
    struct err e;
    if (idle >= n + reserve / 2) {
        if (idle > n + 2 * reserve + 8)
            release_slots(v, idle - n - reserve);
        return;
    }
    if (now < v->reserve_ns || v->expired || !reachable(v))
        return;
    uint32_t *slot = malloc((size_t)more * sizeof *slot);
    if (!slot)
        return;
    kv_status_of(v, store_client_reserve(&e, v->store, slot, &got, (uint64_t)more, true), &e);
    for (uint64_t i = 0; i < got; i++)
        kv_pool_put(v->r.s.pool, &(int32_t){(int32_t)slot[i]}, 1);
    free(slot);
    v->reserve_ns = (int64_t)got < more ? now + RETRY_MS * NS_MS : 0;
}

uint64_t hold_available(struct serve *v)
{
    uint64_t now = time_now_ns();
    struct wire_kv_stat st;
    struct err e;
    if (now < v->stat_ns || v->expired || !reachable(v))
        return v->room_blocks;
    v->stat_ns = now + STAT_NS;
    if (kv_status_of(v, store_client_stat(&e, v->store, &st), &e) == KV_STATUS_OK)
        v->room_blocks = st.free + st.cached;
    return v->room_blocks;
}

/* ---- publication and transfer ---- */

static void published(struct serve *v, struct assignment *a, const uint32_t *sent, const uint32_t *out, int64_t n)
{
    struct kv_table *t = &a->q.kv;
    for (int64_t k = 0; k < n; k++)
        if (out[k] != sent[k]) { /* the block was cached already */
            kv_pool_put(v->r.s.pool, &t->slot[a->n_published + k], 1);
            t->slot[a->n_published + k] = (int32_t)out[k];
        }
    a->n_published += n;
    if (n)
        a->seq_tail = false;
}

static bool publish(struct serve *v, struct assignment *a, int64_t n, int n_tail)
{
    const struct request *q = &a->q;
    uint32_t *slot = malloc((size_t)(n + 1) * 2 * sizeof *slot), *out = slot + n + 1;
    uint64_t *sum = malloc((size_t)(n + 1) * sizeof *sum);
    struct err e;
    bool ok = slot && sum && !work_digests(&e, a, a->n_published + n);
    if (ok) {
        for (int64_t k = 0; k < n; k++) {
            slot[k] = (uint32_t)q->kv.slot[a->n_published + k];
            sum[k] = kv_arena_sum(v->arena, slot[k]);
        }
        struct kv_publish p = {.seq = a->seq.seq,
                               .gen = a->seq.gen,
                               .at = (uint64_t)a->n_published,
                               .slot = slot,
                               .sum = sum,
                               .n_block = (uint64_t)n,
                               .digests = a->digests + a->n_published * KV_DIGEST,
                               .ids = q->ids + a->n_published * KV_BLOCK,
                               .n_tail = (uint32_t)n_tail,
                               .tail = n_tail ? (uint32_t)q->kv.slot[a->n_published + n] : KV_NONE};
        enum kv_status f = kv_status_of(v, store_client_publish(&e, v->store, out, &p), &e);
        ok = f == KV_STATUS_OK;
        if (ok)
            published(v, a, slot, out, n);
        if (ok && n_tail)
            a->seq_tail = true;
        if (f == KV_STATUS_STALE)
            recompute(v, a);
    }
    free(slot);
    free(sum);
    return ok;
}

bool hold_publish(struct serve *v, struct assignment *a, bool tail)
{
    if (!a->has_seq || a->q.state != REQUEST_RUNS)
        return false;
    int64_t n = a->q.n_kv / KV_BLOCK - a->n_published;
    int n_tail = tail ? (int)(a->q.n_kv % KV_BLOCK) : 0;
    if (!n && !n_tail)
        return true;
    if (v->must_resync || v->expired || !reachable(v))
        return false;
    return publish(v, a, n, n_tail);
}

bool hold_transfer_out(struct serve *v, struct assignment *a, struct kv_seq_info *out)
{
    struct err e;
    if (!hold_publish(v, a, true) ||
        kv_status_of(v, store_client_transfer_out(&e, v->store, out, a->seq.seq, a->seq.gen), &e) != KV_STATUS_OK)
        return false;
    a->has_seq = false;
    return true;
}

/* ---- poll ---- */

static void idle(struct serve *v)
{
    uint64_t now = time_now_ns();
    if (v->r.n || !kv_pool_idle(v->r.s.pool))
        v->idle_ns = now;
    else if (now - v->idle_ns > IDLE_NS && !v->must_resync && !v->expired)
        release_slots(v, kv_pool_idle(v->r.s.pool));
}

int hold_poll(struct err *e, struct serve *v)
{
    int rc = poll_store_events(e, v);
    if (!rc && (v->must_resync || v->expired) && (v->expired ? store_client_up(v->store) : reachable(v)))
        rc = resync(e, v);
    idle(v);
    uint64_t now = time_now_ns();
    for (struct request *q = v->r.head; q && !rc; q = q->next) {
        struct assignment *a = assignment_of(q);
        if (v->must_resync || v->expired)
            return 0;
        if (is_pending(a))
            check_pending_timeout(v, a);
        if (is_new(a) && now >= a->retry_ns && reachable(v))
            rc = begin(e, v, a);
    }
    return rc;
}
