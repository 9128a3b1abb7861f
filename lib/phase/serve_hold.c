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
    v->away_ns = proc_now_ns() + AWAY_NS;
    return FATE_LATER;
}

static bool answers(struct serve *v)
{
    struct pollfd p = {store_client_fd(v->store), POLLIN, 0};
    return poll(&p, 1, 0) > 0 || proc_now_ns() >= v->away_ns;
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
    return rc ? rc : stage_engine_take(e, &v->s, kv_arena_layout(v->arena)->type, pool);
}

int hold_open(struct err *e, struct serve *v)
{
    struct store_client_opts o = {.url = v->s.o->kv, .name = v->s.o->prog, .kind = &v->s.kind, .timeout_ms = CALL_MS};
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

/* ---- what an order holds ---- */

bool hold_valid(const struct serve *v, const struct task *o)
{
    return kv_arena_valid(v->arena, o->seq.seq, o->seq.gen);
}

static int64_t own_from(const struct task *o)
{
    return o->n_pub + o->seq_tail;
}

/* Forgets what it holds, of which own credit is of use again. */
static void forget(struct serve *v, struct task *o)
{
    struct kv_table *t = &o->q->kv;
    if (t->n > own_from(o))
        kv_pool_put(v->s.pool, t->slot + own_from(o), t->n - own_from(o));
    free(t->slot);
    *t = (struct kv_table){0};
    o->has_seq = o->seq_tail = false;
    o->n_pub = 0;
    o->q->n_kv = 0;
}

/* What was handed over and not taken yet would lie in the store until its time is over. */
static void let_go(struct serve *v, struct task *o)
{
    struct err e;
    o->has_from = false;
    if (!v->unsure && !v->expired && reachable(v))
        o->has_seq = fate_of(v, store_client_take(&e, v->store, &o->seq, o->from.seq, o->from.gen), &e) == FATE_OK;
}

void hold_drop(struct serve *v, struct task *o)
{
    struct err e;
    if (!o->q)
        return;
    if (o->has_from)
        let_go(v, o);
    bool held = o->has_seq && !v->expired && hold_valid(v, o);
    forget(v, o);
    if (held && (v->unsure || !reachable(v)))
        v->unsure = true; /* it goes with all the others */
    else if (held)
        fate_of(v, store_client_release(&e, v->store, o->seq.seq, o->seq.gen), &e);
}

/* Its KV is not there any more: from the beginning. */
static void restart(struct serve *v, struct task *o)
{
    forget(v, o);
    o->state = TASK_NEW;
    o->retry_ns = 0;
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
static int copy_table(struct err *e, struct serve *v, struct task *o)
{
    struct kv_table *t = &o->q->kv;
    int64_t n = (int64_t)o->seq.n_block;
    struct err no;
    int rc = reserve_table(e, t, n + 8);
    if (rc)
        return rc;
    if (kv_arena_table(&no, v->arena, t->slot, (uint64_t)n, o->seq.seq, o->seq.gen)) {
        restart(v, o);
        return 0;
    }
    t->n = o->n_pub = n;
    o->seq_tail = o->seq.tail != KV_NONE && o->seq.tail < kv_arena_head(v->arena)->n_slot;
    if (o->seq_tail)
        t->slot[t->n++] = (int32_t)o->seq.tail;
    o->q->n_kv = n * KERN_KV_BLOCK + (o->seq_tail ? (int64_t)o->seq.n_tail : 0);
    if (!o->seq.pending)
        o->state = TASK_RUN;
    return 0;
}

/* ---- leasing and taking ---- */

static int take(struct err *e, struct serve *v, struct task *o)
{
    struct err no;
    o->has_from = false;
    switch (fate_of(v, store_client_take(&no, v->store, &o->seq, o->from.seq, o->from.gen), &no)) {
    case FATE_OK:
        break;
    case FATE_LATER: /* it may have been taken all the same, and is released with what is held; expired or not */
    default:
        return 0;
    }
    o->has_seq = true;
    int rc = copy_table(e, v, o);
    if (rc || o->state != TASK_RUN)
        return rc;
    if (o->q->n_kv >= o->q->n_all) { /* more than is known of the answer: its last row would be written twice */
        hold_drop(v, o);
        o->state = TASK_NEW;
        return 0;
    }
    o->taken = true;
    o->taken_ns = proc_now_ns();
    return 0;
}

static int lease(struct err *e, struct serve *v, struct task *o)
{
    struct err no;
    struct request *q = o->q;
    /* The last id is computed in any case; for prompt log-probabilities all are. */
    int64_t n = q->want_prompt ? 0 : (q->n_all - 1) / KERN_KV_BLOCK;
    int rc = task_digests(e, o, n);
    if (rc)
        return rc;
    rc = store_client_lease(&no, v->store, &o->seq, q->all, (uint64_t)q->n_all, o->digests, (uint64_t)n, !o->no_wait);
    switch (fate_of(v, rc, &no)) {
    case FATE_NEVER:
        return task_fail(e, v, o, ERR_NO, no.text);
    case FATE_OK:
        break;
    default:
        o->retry_ns = proc_now_ns() + RETRY_MS * NS_MS;
        return 0;
    }
    o->has_seq = true;
    o->state = TASK_PENDING;
    o->pending_ns = proc_now_ns();
    return copy_table(e, v, o);
}

/* What was found is known when the first try of a request begins to compute. */
static void started(struct task *o)
{
    struct request *q = o->q;
    if (o->state != TASK_RUN || o->cached_known)
        return;
    o->cached_known = true;
    q->cached = (uint32_t)(q->n_kv < (int64_t)q->r->n_id ? q->n_kv : (int64_t)q->r->n_id);
}

static int begin(struct err *e, struct serve *v, struct task *o)
{
    int rc = 0;
    if (o->has_from)
        rc = take(e, v, o);
    if (!rc && o->state == TASK_NEW && reachable(v) && !v->expired)
        rc = lease(e, v, o);
    started(o);
    return rc;
}

/* ---- news ---- */

static struct task *order_of(const struct serve *v, const struct kv_seq_info *s)
{
    struct task *o = v->orders;
    while (o && (o->state != TASK_PENDING || o->seq.seq != s->seq || o->seq.gen != s->gen))
        o = o->next;
    return o;
}

static int news(struct err *e, struct serve *v)
{
    struct kv_seq_info s;
    struct err no;
    int rc = 0;
    for (int i = 0; i < NEWS_MAX && !rc && store_client_up(v->store) && !store_client_news(&no, v->store, &s, 0); i++) {
        struct task *o = order_of(v, &s);
        if (!o)
            continue;
        o->seq = s;
        o->pending_ns = proc_now_ns();
        rc = copy_table(e, v, o);
        started(o);
    }
    return rc;
}

/* Whoever computes its next block takes too long, or its news were lost. */
static void waited_enough(struct serve *v, struct task *o)
{
    if (proc_now_ns() - o->pending_ns < PENDING_MS * NS_MS)
        return;
    hold_drop(v, o);
    o->no_wait = true;
    o->state = TASK_NEW;
}

/* ---- beginning anew ---- */

static int anew(struct err *e, struct serve *v)
{
    struct err no;
    int rc = 0;
    uint64_t now = proc_now_ns();
    if (now < v->anew_ns)
        return 0;
    v->anew_ns = now + ANEW_NS;
    if (store_client_renew_all(&no, v->store)) {
        if (!v->away)
            serve_say(v, "%s", no.text);
        v->away = true;
        v->away_ns = proc_now_ns() + RETRY_MS * NS_MS;
        return 0;
    }
    int32_t slot[256];
    while (kv_pool_get(v->s.pool, slot, 256))
        ;
    for (struct task *o = v->orders; o; o = o->next)
        if (o->state != TASK_CLOSED && o->q) {
            restart(v, o);
            while (kv_pool_get(v->s.pool, slot, 256)) /* its own slots are of a client that is no more */
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
    int64_t most = kv_pool_slots(v->s.pool) / RESERVE, want = v->n_order + 4;
    return want < most ? want : most;
}

static void give_back(struct serve *v, int64_t n)
{
    int32_t slot[512];
    uint32_t give[512];
    struct err e;
    while (n > 0 && reachable(v)) {
        int64_t k = kv_pool_get(v->s.pool, slot, n < 512 ? n : 512);
        for (int64_t i = 0; i < k; i++)
            give[i] = (uint32_t)slot[i];
        if (!k || fate_of(v, store_client_uncredit(&e, v->store, give, (uint64_t)k), &e) != FATE_OK)
            return;
        n -= k;
    }
}

void hold_want(struct serve *v, int64_t n)
{
    int64_t idle = kv_pool_idle(v->s.pool), reserve = reserve_of(v), more = n + reserve - idle;
    uint64_t now = proc_now_ns(), got = 0;
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
        kv_pool_put(v->s.pool, &(int32_t){(int32_t)slot[i]}, 1);
    free(slot);
    v->credit_ns = (int64_t)got < more ? now + RETRY_MS * NS_MS : 0;
}

uint64_t hold_room(struct serve *v)
{
    uint64_t now = proc_now_ns();
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

static void published(struct serve *v, struct task *o, const uint32_t *given, const uint32_t *out, int64_t n)
{
    struct kv_table *t = &o->q->kv;
    for (int64_t k = 0; k < n; k++)
        if (out[k] != given[k]) { /* another was first */
            kv_pool_put(v->s.pool, &t->slot[o->n_pub + k], 1);
            t->slot[o->n_pub + k] = (int32_t)out[k];
        }
    o->n_pub += n;
    if (n)
        o->seq_tail = false;
}

static bool publish(struct serve *v, struct task *o, int64_t n, int n_tail)
{
    const struct request *q = o->q;
    uint32_t *slot = malloc((size_t)(n + 1) * 2 * sizeof *slot), *out = slot + n + 1;
    uint64_t *sum = malloc((size_t)(n + 1) * sizeof *sum);
    struct err e;
    bool ok = slot && sum && !task_digests(&e, o, o->n_pub + n);
    if (ok) {
        for (int64_t k = 0; k < n; k++) {
            slot[k] = (uint32_t)q->kv.slot[o->n_pub + k];
            sum[k] = kv_arena_sum(v->arena, slot[k]);
        }
        struct kv_publish p = {.seq = o->seq.seq,
                               .gen = o->seq.gen,
                               .at = (uint64_t)o->n_pub,
                               .slot = slot,
                               .sum = sum,
                               .n_block = (uint64_t)n,
                               .digests = o->digests + o->n_pub * KV_DIGEST,
                               .ids = q->all + o->n_pub * KERN_KV_BLOCK,
                               .n_tail = (uint32_t)n_tail,
                               .tail = n_tail ? (uint32_t)q->kv.slot[o->n_pub + n] : KV_NONE};
        enum fate f = fate_of(v, store_client_publish(&e, v->store, out, &p), &e);
        ok = f == FATE_OK;
        if (ok)
            published(v, o, slot, out, n);
        if (ok && n_tail)
            o->seq_tail = true;
        if (f == FATE_GONE)
            restart(v, o);
    }
    free(slot);
    free(sum);
    return ok;
}

bool hold_publish(struct serve *v, struct task *o, bool tail)
{
    if (!o->has_seq || o->state != TASK_RUN)
        return false;
    int64_t n = o->q->n_kv / KERN_KV_BLOCK - o->n_pub;
    int n_tail = tail ? (int)(o->q->n_kv % KERN_KV_BLOCK) : 0;
    if (!n && !n_tail)
        return true;
    if (v->unsure || v->expired || !reachable(v))
        return false;
    return publish(v, o, n, n_tail);
}

bool hold_hand(struct serve *v, struct task *o, struct kv_seq_info *out)
{
    struct err e;
    if (!hold_publish(v, o, true) ||
        fate_of(v, store_client_hand(&e, v->store, out, o->seq.seq, o->seq.gen), &e) != FATE_OK)
        return false;
    o->has_seq = false;
    return true;
}

/* ---- a turn ---- */

static void idle(struct serve *v)
{
    uint64_t now = proc_now_ns();
    if (v->n_order || !kv_pool_idle(v->s.pool))
        v->idle_ns = now;
    else if (now - v->idle_ns > IDLE_NS && !v->unsure && !v->expired)
        give_back(v, kv_pool_idle(v->s.pool));
}

int hold_turn(struct err *e, struct serve *v)
{
    int rc = news(e, v);
    if (!rc && (v->unsure || v->expired) && (v->expired ? store_client_up(v->store) : reachable(v)))
        rc = anew(e, v);
    idle(v);
    uint64_t now = proc_now_ns();
    for (struct task *o = v->orders; o && !rc; o = o->next) {
        if (v->unsure || v->expired)
            return 0;
        if (o->state == TASK_PENDING)
            waited_enough(v, o);
        if (o->state == TASK_NEW && now >= o->retry_ns && reachable(v))
            rc = begin(e, v, o);
    }
    return rc;
}
