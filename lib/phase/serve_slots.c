/*
 * KV slots for the steps of a worker, from its reserved slots. An assignment without a slot waits while others run;
 * after YIELD_MS the last one is preempted, so the first one always makes progress.
 */
#include "phase/serve.h"

#define LOG_NS (1000 * NS_MS) /* between log lines of one kind */

void slots_expect(struct runner *r, int64_t blocks)
{
    struct serve *v = serve_of(r);
    if (!v->expired)
        hold_reserve(v, blocks);
}

int slots_get(struct err *e, struct runner *r, struct request *q, int64_t *rows)
{
    struct serve *v = serve_of(r);
    struct assignment *a = assignment_of(q);
    struct err no;
    (void)e;
    if (v->expired) {
        *rows = 0;
        return 0;
    }
    int64_t can = (q->kv.n + kv_pool_idle(r->s.pool)) * KV_BLOCK - q->n_kv;
    int64_t n = *rows < can ? *rows : can;
    if (n <= 0 || kv_table_grow(&no, &q->kv, r->s.pool, blocks_of(q->n_kv + n))) {
        if (!a->starved_ns)
            a->starved_ns = time_now_ns();
        n = 0;
    } else {
        a->starved_ns = 0;
    }
    *rows = n;
    return 0;
}

bool slots_valid(struct runner *r, struct request *q)
{
    struct serve *v = serve_of(r);
    struct assignment *a = assignment_of(q);
    if (kv_arena_valid(v->arena, a->seq.seq, a->seq.gen))
        return true;
    q->state = REQUEST_WAITS;
    hold_release(v, a);
    return false;
}

/* ---- too few slots ---- */

static bool holds(const struct request *q)
{
    return q->state == REQUEST_RUNS && q->kv.n;
}

static void log_preempted(struct serve *v, const struct request *victim, uint64_t now)
{
    v->n_preempted++;
    if (now < v->log_ns)
        return;
    serve_log(v, "kvstore is full: a request with %u output tokens is preempted (%llu preemptions so far)",
              request_n_answer(victim), (unsigned long long)v->n_preempted);
    v->log_ns = now + LOG_NS;
}

int slots_yield(struct err *e, struct serve *v)
{
    struct request *first = NULL, *last = NULL;
    uint64_t now = time_now_ns();
    for (struct request *q = v->r.head; q; q = q->next) {
        if (!first && q->state == REQUEST_RUNS && assignment_of(q)->starved_ns)
            first = q;
        if (holds(q))
            last = q;
    }
    if (!first || v->store_down || v->must_resync)
        return 0;
    bool other = last && last != first;
    uint64_t wait = other ? YIELD_MS : STARVE_MS;
    if (now - assignment_of(first)->starved_ns < wait * NS_MS)
        return 0;
    struct request *victim = other ? last : first;
    log_preempted(v, victim, now);
    for (struct request *q = v->r.head; q; q = q->next)
        if (assignment_of(q)->starved_ns)
            assignment_of(q)->starved_ns = now;
    return work_stop(e, v, assignment_of(victim), "preempted");
}
