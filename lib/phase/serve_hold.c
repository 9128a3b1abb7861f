/*
 * A worker and its store. A call is made only where it will be answered soon: while the store is away, what needs no
 * slot goes on, and the rest waits. A call that was not answered may have been done: what is held is then not known for
 * sure, and when the store is back all is leased anew, which costs an order at most the tokens of a block.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "phase/serve.h"
#include "proc/proc.h"

#define CALL_MS 3000 /* a store that takes longer for an answer counts as away */
#define AWAY_NS (5000 * NS_MS)
#define STAT_NS (100 * NS_MS)
#define IDLE_NS (1000 * NS_MS) /* then credit is given back */
#define ANEW_NS (100 * NS_MS)  /* between two beginnings */
#define RESERVE 16             /* of all slots, one in so many is kept as credit at most */
#define NEWS_MAX 1024          /* a turn */

/* ---- reaching it ---- */

enum fate {
    FATE_OK,
    FATE_LATER, /* it has no room now, or does not answer */
    FATE_GONE,  /* the sequence is lost */
    FATE_NEVER, /* it fits nowhere */
};

static enum fate fate_of(struct serve *v, int rc, const struct err *e)
{
    enum kv_why why = rc ? store_client_why(v->store) : 0;
    if (!rc)
        return FATE_OK;
    if (why == KV_WHY_NEVER)
        return FATE_NEVER;
    if (why == KV_WHY_NOT_NOW || why == KV_WHY_DRAINING)
        return FATE_LATER;
    if (why == KV_WHY_EXPIRED) {
        v->expired = true;
        return FATE_LATER;
    }
    if (why == KV_WHY_STALE)
        return FATE_GONE;
    if (why) { /* it counts otherwise than we do: anew, then both count the same */
        serve_say(v, "kvstore refuses: %s", e->text);
        v->unsure = true;
        return FATE_LATER;
    }
    if (!v->away)
        serve_say(v, "%s: what needs it waits", e->text);
    v->away = v->unsure = true;
    v->away_ns = time_now_ns() + AWAY_NS;
    return FATE_LATER;
}

static bool answers(struct serve *v)
{
    struct pollfd p = {store_client_fd(v->store), POLLIN, 0};
    return poll(&p, 1, 0) > 0 || time_now_ns() >= v->away_ns;
}

/* A call can be made. */
static bool reachable(struct serve *v)
{
    struct err e;
    if (!store_client_up(v->store)) {
        if (!v->away)
            serve_say(v, "kvstore has gone: what needs it waits");
        v->away = true;
        v->away_ns = 0;
        return false;
    }
    if (!v->away)
        return true;
    if (!answers(v))
        return false;
    if (fate_of(v, store_client_renew(&e, v->store), &e) == FATE_LATER && !v->expired)
        return false;
    v->away = false;
    serve_say(v, "kvstore is back");
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
    bool said = false;
    while (!rc && (rc = store_client_open(e, &v->store, &o)) == ERR_SYS && !proc_term_count()) {
        if (!said)
            serve_say(v, "%s: it is waited for", e->text);
        said = true;
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

/* ---- what an assignment holds ---- */

static bool valid(const struct serve *v, const struct assignment *a)
{
    return kv_arena_valid(v->arena, a->seq.seq, a->seq.gen);
}

static int64_t own_from(const struct assignment *a)
{
    return a->n_pub + a->seq_tail;
}

/* Forgets what it holds, of which own credit is of use again. */
static void forget(struct serve *v, struct assignment *a)
{
    struct kv_table *t = &a->q.kv;
    if (t->n > own_from(a))
        kv_pool_put(v->r.s.pool, t->slot + own_from(a), t->n - own_from(a));
    free(t->slot);
    *t = (struct kv_table){0};
    a->has_seq = a->seq_tail = false;
    a->n_pub = 0;
    a->q.n_kv = 0;
}

/* What was handed over and not taken yet would lie in the store until its time is over. */
static void let_go(struct serve *v, struct assignment *a)
{
    struct err e;
    a->has_from = false;
    if (!v->unsure && !v->expired && reachable(v))
        a->has_seq = fate_of(v, store_client_take(&e, v->store, &a->seq, a->from.seq, a->from.gen), &e) == FATE_OK;
}

void hold_drop(struct serve *v, struct assignment *a)
{
    struct err e;
    if (a->has_from)
        let_go(v, a);
    bool held = a->has_seq && !v->expired && valid(v, a);
    forget(v, a);
    if (held && (v->unsure || !reachable(v)))
        v->unsure = true; /* it goes with all the others */
    else if (held)
        fate_of(v, store_client_release(&e, v->store, a->seq.seq, a->seq.gen), &e);
}

/* Its KV is not there any more: from the beginning. */
static void restart(struct serve *v, struct assignment *a)
{
    forget(v, a);
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

/* The table of a sequence as the store has it. */
static int copy_table(struct err *e, struct serve *v, struct assignment *a)
{
    struct kv_table *t = &a->q.kv;
    int64_t n = (int64_t)a->seq.n_block;
    struct err no;
    int rc = reserve_table(e, t, n + 8);
    if (rc)
        return rc;
    if (kv_arena_table(&no, v->arena, t->slot, (uint64_t)n, a->seq.seq, a->seq.gen)) {
        restart(v, a);
        return 0;
    }
    t->n = a->n_pub = n;
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

/* ---- leasing and taking ---- */

/* What prefill did, and the time until its sequence was taken. */
static int taken(struct err *e, struct assignment *a)
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
    a->has_from = false;
    /* One that is answered later may have been taken all the same: it is released with what is held; expired or not. */
    if (fate_of(v, store_client_take(&no, v->store, &a->seq, a->from.seq, a->from.gen), &no) != FATE_OK)
        return 0;
    a->has_seq = true;
    int rc = copy_table(e, v, a);
    if (rc || a->q.state != REQUEST_RUNS)
        return rc;
    if (a->q.n_kv >= a->q.n_ids) { /* more than is known of the answer: its last row would be written twice */
        hold_drop(v, a);
        a->q.state = REQUEST_WAITS;
        return 0;
    }
    return taken(e, a);
}

static int lease(struct err *e, struct serve *v, struct assignment *a)
{
    struct err no;
    struct request *q = &a->q;
    /* The last id is computed in any case; for prompt log-probabilities all are. */
    int64_t n = q->want_prompt ? 0 : (q->n_ids - 1) / KV_BLOCK;
    int rc = work_digests(e, a, n);
    if (rc)
        return rc;
    rc = store_client_lease(&no, v->store, &a->seq, q->ids, (uint64_t)q->n_ids, a->digests, (uint64_t)n, !a->no_wait);
    switch (fate_of(v, rc, &no)) {
    case FATE_NEVER:
        err_set(&q->err, ERR_NO, "%s", no.text);
        return runner_fail(e, &v->r, q);
    case FATE_OK:
        break;
    default:
        a->retry_ns = time_now_ns() + RETRY_MS * NS_MS;
        return 0;
    }
    a->has_seq = a->pending = true;
    a->pending_ns = time_now_ns();
    return copy_table(e, v, a);
}

/* What was found is known when the first attempt of a request begins to compute. */
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
    if (a->has_from)
        rc = take(e, v, a);
    if (!rc && is_new(a) && reachable(v) && !v->expired)
        rc = lease(e, v, a);
    started(a);
    return rc;
}

/* ---- news ---- */

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

static int news(struct err *e, struct serve *v)
{
    struct kv_seq_info s;
    struct err no;
    int rc = 0;
    for (int i = 0; i < NEWS_MAX && !rc && store_client_up(v->store) && !store_client_news(&no, v->store, &s, 0); i++) {
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

/* Whoever computes its next block takes too long, or its news were lost. */
static void waited_enough(struct serve *v, struct assignment *a)
{
    if (time_now_ns() - a->pending_ns < PENDING_MS * NS_MS)
        return;
    hold_drop(v, a);
    a->no_wait = true;
    a->pending = false;
}

/* ---- beginning anew ---- */

static int anew(struct err *e, struct serve *v)
{
    struct err no;
    int rc = 0;
    uint64_t now = time_now_ns();
    if (now < v->anew_ns)
        return 0;
    v->anew_ns = now + ANEW_NS;
    if (store_client_renew_all(&no, v->store)) {
        if (!v->away)
            serve_say(v, "%s", no.text);
        v->away = true;
        v->away_ns = time_now_ns() + RETRY_MS * NS_MS;
        return 0;
    }
    int32_t slot[256];
    while (kv_pool_get(v->r.s.pool, slot, 256))
        ;
    for (struct request *q = v->r.head; q; q = q->next)
        if (q->state != REQUEST_CLOSED) {
            restart(v, assignment_of(q));
            while (kv_pool_get(v->r.s.pool, slot, 256)) /* its own slots are of a client that is no more */
                ;
        }
    v->unsure = v->expired = v->away = false;
    v->credit_ns = 0;
    if (store_client_arena(v->store) != v->arena || kv_arena_head(store_client_arena(v->store))->id != v->arena_id)
        rc = map_arena(e, v);
    return rc;
}

/* ---- credit ---- */

static int64_t reserve_of(const struct serve *v)
{
    int64_t most = kv_pool_slots(v->r.s.pool) / RESERVE, want = v->r.n + 4;
    return want < most ? want : most;
}

static void give_back(struct serve *v, int64_t n)
{
    int32_t slot[512];
    uint32_t give[512];
    struct err e;
    while (n > 0 && reachable(v)) {
        int64_t k = kv_pool_get(v->r.s.pool, slot, n < 512 ? n : 512);
        for (int64_t i = 0; i < k; i++)
            give[i] = (uint32_t)slot[i];
        if (!k || fate_of(v, store_client_uncredit(&e, v->store, give, (uint64_t)k), &e) != FATE_OK)
            return;
        n -= k;
    }
}

void hold_want(struct serve *v, int64_t n)
{
    int64_t idle = kv_pool_idle(v->r.s.pool), reserve = reserve_of(v), more = n + reserve - idle;
    uint64_t now = time_now_ns(), got = 0;
    struct err e;
    if (idle >= n + reserve / 2) {
        if (idle > n + 2 * reserve + 8)
            give_back(v, idle - n - reserve);
        return;
    }
    if (now < v->credit_ns || v->expired || !reachable(v))
        return;
    uint32_t *slot = malloc((size_t)more * sizeof *slot);
    if (!slot)
        return;
    fate_of(v, store_client_credit(&e, v->store, slot, &got, (uint64_t)more, true), &e);
    for (uint64_t i = 0; i < got; i++)
        kv_pool_put(v->r.s.pool, &(int32_t){(int32_t)slot[i]}, 1);
    free(slot);
    v->credit_ns = (int64_t)got < more ? now + RETRY_MS * NS_MS : 0;
}

uint64_t hold_room(struct serve *v)
{
    uint64_t now = time_now_ns();
    struct wire_kv_stat st;
    struct err e;
    if (now < v->stat_ns || v->expired || !reachable(v))
        return v->room_blocks;
    v->stat_ns = now + STAT_NS;
    if (fate_of(v, store_client_stat(&e, v->store, &st), &e) == FATE_OK)
        v->room_blocks = st.free + st.cached;
    return v->room_blocks;
}

/* ---- passing on ---- */

static void published(struct serve *v, struct assignment *a, const uint32_t *given, const uint32_t *out, int64_t n)
{
    struct kv_table *t = &a->q.kv;
    for (int64_t k = 0; k < n; k++)
        if (out[k] != given[k]) { /* another was first */
            kv_pool_put(v->r.s.pool, &t->slot[a->n_pub + k], 1);
            t->slot[a->n_pub + k] = (int32_t)out[k];
        }
    a->n_pub += n;
    if (n)
        a->seq_tail = false;
}

static bool publish(struct serve *v, struct assignment *a, int64_t n, int n_tail)
{
    const struct request *q = &a->q;
    uint32_t *slot = malloc((size_t)(n + 1) * 2 * sizeof *slot), *out = slot + n + 1;
    uint64_t *sum = malloc((size_t)(n + 1) * sizeof *sum);
    struct err e;
    bool ok = slot && sum && !work_digests(&e, a, a->n_pub + n);
    if (ok) {
        for (int64_t k = 0; k < n; k++) {
            slot[k] = (uint32_t)q->kv.slot[a->n_pub + k];
            sum[k] = kv_arena_sum(v->arena, slot[k]);
        }
        struct kv_publish p = {.seq = a->seq.seq,
                               .gen = a->seq.gen,
                               .at = (uint64_t)a->n_pub,
                               .slot = slot,
                               .sum = sum,
                               .n_block = (uint64_t)n,
                               .digests = a->digests + a->n_pub * KV_DIGEST,
                               .ids = q->ids + a->n_pub * KV_BLOCK,
                               .n_tail = (uint32_t)n_tail,
                               .tail = n_tail ? (uint32_t)q->kv.slot[a->n_pub + n] : KV_NONE};
        enum fate f = fate_of(v, store_client_publish(&e, v->store, out, &p), &e);
        ok = f == FATE_OK;
        if (ok)
            published(v, a, slot, out, n);
        if (ok && n_tail)
            a->seq_tail = true;
        if (f == FATE_GONE)
            restart(v, a);
    }
    free(slot);
    free(sum);
    return ok;
}

bool hold_publish(struct serve *v, struct assignment *a, bool tail)
{
    if (!a->has_seq || a->q.state != REQUEST_RUNS)
        return false;
    int64_t n = a->q.n_kv / KV_BLOCK - a->n_pub;
    int n_tail = tail ? (int)(a->q.n_kv % KV_BLOCK) : 0;
    if (!n && !n_tail)
        return true;
    if (v->unsure || v->expired || !reachable(v))
        return false;
    return publish(v, a, n, n_tail);
}

bool hold_hand(struct serve *v, struct assignment *a, struct kv_seq_info *out)
{
    struct err e;
    if (!hold_publish(v, a, true) ||
        fate_of(v, store_client_hand(&e, v->store, out, a->seq.seq, a->seq.gen), &e) != FATE_OK)
        return false;
    a->has_seq = false;
    return true;
}

/* ---- a turn ---- */

static void idle(struct serve *v)
{
    uint64_t now = time_now_ns();
    if (v->r.n || !kv_pool_idle(v->r.s.pool))
        v->idle_ns = now;
    else if (now - v->idle_ns > IDLE_NS && !v->unsure && !v->expired)
        give_back(v, kv_pool_idle(v->r.s.pool));
}

int hold_turn(struct err *e, struct serve *v)
{
    int rc = news(e, v);
    if (!rc && (v->unsure || v->expired) && (v->expired ? store_client_up(v->store) : reachable(v)))
        rc = anew(e, v);
    idle(v);
    uint64_t now = time_now_ns();
    for (struct request *q = v->r.head; q && !rc; q = q->next) {
        struct assignment *a = assignment_of(q);
        if (v->unsure || v->expired)
            return 0;
        if (is_pending(a))
            waited_enough(v, a);
        if (is_new(a) && now >= a->retry_ns && reachable(v))
            rc = begin(e, v, a);
    }
    return rc;
}
