/* The accounting, kept and counted anew. */
#include "sched/machine.h"

#include <stdlib.h>
#include <string.h>

void times_add(struct times *t, uint64_t ns)
{
    t->ns[t->at] = ns;
    t->at = (t->at + 1) % TIMES;
    t->n += t->n < TIMES;
}

static int by_time(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* By nearest rank. */
static void percentiles(uint64_t *p50, uint64_t *p99, const struct times *t)
{
    uint64_t v[TIMES];
    *p50 = *p99 = 0;
    if (!t->n)
        return;
    memcpy(v, t->ns, t->n * sizeof *v);
    qsort(v, t->n, sizeof *v, by_time);
    *p50 = v[(t->n + 1) / 2 - 1];
    *p99 = v[(t->n * 99 + 99) / 100 - 1];
}

void sched_stat(const struct sched *s, struct wire_stat *out)
{
    *out = (struct wire_stat){.at_ns = s->now_ns,
                              .submitted = s->submitted,
                              .running = s->n_running,
                              .waiting = s->n_waiting,
                              .stop = s->ended[END_STOP],
                              .length = s->ended[END_LENGTH],
                              .cancelled = s->ended[END_CANCELLED],
                              .expired = s->ended[END_EXPIRED],
                              .error = s->ended[END_ERROR],
                              .refused = s->ended[END_REFUSED],
                              .retried = s->retried,
                              .preempted = s->preempted,
                              .stale = s->stale,
                              .placed = s->placed,
                              .workers = s->n_worker,
                              .gateways = s->n_gateway,
                              .stores = s->n_store,
                              .tombs = (uint32_t)s->n_ended,
                              .policy = wire_str_of(s->policy->name)};
    percentiles(&out->ttft_p50_ns, &out->ttft_p99_ns, &s->ttft);
    percentiles(&out->itl_p50_ns, &out->itl_p99_ns, &s->itl);
}

struct census {
    uint64_t state[JOB_ENDED + 1], unasked, runs, deadlines, held;
};

static const char *look_at_job(const struct job *j, struct census *c)
{
    c->state[j->state]++;
    c->unasked += j->unasked && j->state == JOB_RUNNING;
    c->deadlines += j->heap_at != 0;
    c->held += j->held;
    const struct run *cur = NULL;
    for (const struct run *r = j->runs; r; r = r->next) {
        c->runs++;
        if (r->j != j)
            return "a try belongs to another request";
        if (r->current && cur)
            return "a request has two current tries";
        cur = r->current ? r : cur;
        if (r->current && r->attempt != j->attempt)
            return "a current try is of an old attempt";
        if (!r->current && !r->cancelled)
            return "an old try was not cancelled";
    }
    if (cur != j->cur)
        return "the current try is not the one marked";
    if ((j->state == JOB_RUNNING) != (cur != NULL))
        return "running and having a try are not the same";
    if (j->state == JOB_ENDED && !j->runs)
        return "a tombstone that nobody waits for";
    return NULL;
}

static const char *look_at_worker(const struct worker *w, uint64_t *n)
{
    uint64_t context = 0, left = 0;
    uint32_t runs = 0, kind[3] = {0};
    for (const struct run *r = w->first_run; r; r = r->w_next) {
        runs++;
        kind[r->phase]++;
        left += r->est_ns;
        context += r->phase != SCHED_ON_PREFILL ? r->context : 0;
        if (r->w != w || (r->w_next && r->w_next->w_prev != r))
            return "the list of a worker's orders is broken";
    }
    *n += runs;
    if (runs != w->n_run || kind[0] != w->pub.n_prefill || kind[1] != w->pub.n_decode || kind[2] != w->pub.n_whole)
        return "a worker's orders are miscounted";
    if (context != w->pub.context || left != w->pub.prefill_left_ns)
        return "a worker's load is miscounted";
    if (w->seqs > w->pub.seqs_all || w->pub.seqs != (w->full ? 0 : w->seqs) || w->pub.blocks > w->pub.blocks_all)
        return "a worker has more room than it has";
    return NULL;
}

static const char *look_at_queue(const struct queue *q)
{
    uint64_t n = 0, tokens = 0;
    const struct job *last = NULL;
    for (const struct job *j = q->first[0]; j; last = j, j = j->skip.next[0]) {
        n++;
        tokens += j->pub.n_prompt;
        if (j->skip.prev != last || (last && last->pub.priority > j->pub.priority))
            return "a queue is out of order";
    }
    return n != q->n || tokens != q->tokens ? "a queue is miscounted" : NULL;
}

int sched_check(struct err *e, const struct sched *s)
{
    struct census c = {0};
    const char *bad = NULL;
    uint64_t n_run = 0, ended = 0;
    for (size_t i = 0; s->jobs.slot && i <= s->jobs.mask && !bad; i++)
        if (s->jobs.slot[i].p)
            bad = look_at_job(s->jobs.slot[i].p, &c);
    for (uint32_t i = 0; i < s->n_worker && !bad; i++)
        bad = look_at_worker(s->worker[i], &n_run);
    bad = bad ? bad : look_at_queue(&s->queued);
    bad = bad ? bad : look_at_queue(&s->ready);
    if (!bad && n_run != c.runs)
        bad = "workers and requests disagree about the tries";
    if (!bad && (s->queued.n != c.state[JOB_QUEUED] || s->ready.n != c.state[JOB_READY]))
        bad = "the queues hold others than those that wait";
    if (!bad && s->n_waiting != c.state[JOB_HELD] + c.state[JOB_QUEUED] + c.state[JOB_READY])
        bad = "waiting is miscounted";
    if (!bad && s->n_running + c.unasked != c.state[JOB_RUNNING])
        bad = "running is miscounted";
    if (!bad && s->n_ended != c.state[JOB_ENDED])
        bad = "tombstones are miscounted";
    if (!bad && s->deadlines.n != c.deadlines)
        bad = "deadlines are miscounted";
    for (int i = 0; i < END_N; i++)
        ended += s->ended[i];
    if (!bad && s->submitted != ended + s->n_running + s->n_waiting)
        bad = "submitted is not ended + running + waiting";
    return bad ? err_set(e, ERR_PROTO, "%s", bad) : 0;
}
