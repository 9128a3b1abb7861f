/* The accounting of a scheduler, counted again from all that it keeps. */
#include "unit/sched_check.h"

#include "sched/machine.h"

struct census {
    uint64_t state[JOB_ENDED + 1], unasked, runs, deadlines, held;
};

static const char *look_at_job(const struct job *j, struct census *c)
{
    c->state[j->state]++;
    c->unasked += j->unasked && j->state == JOB_RUNNING;
    c->deadlines += j->deadline.at_ns != 0;
    c->held += !list_empty(&j->held);
    const struct run *cur = NULL;
    list_each (struct run, r, &j->runs, of_job) {
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
    if (j->state == JOB_ENDED && list_empty(&j->runs))
        return "an ended request is kept without a reason";
    return NULL;
}

static const char *look_at_worker(const struct worker *w, uint64_t *n)
{
    uint64_t context = 0, left = 0;
    uint32_t runs = 0, kind[3] = {0};
    list_each (struct run, r, &w->runs, of_worker) {
        runs++;
        kind[r->phase]++;
        left += r->est_ns;
        context += r->phase != SCHED_ON_PREFILL ? r->context : 0;
        if (r->w != w || r->of_worker.next->prev != &r->of_worker)
            return "the list of a worker's orders is broken";
    }
    *n += runs;
    if (kind[0] != w->pub.n_prefill || kind[1] != w->pub.n_decode || kind[2] != w->pub.n_whole)
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

static uint64_t n_deadline(const struct loop_timer *t)
{
    uint64_t n = 0;
    for (; t; t = t->next)
        n += 1 + n_deadline(t->child);
    return n;
}

int sched_check(struct err *e, const struct sched *s)
{
    struct census c = {0};
    const char *bad = NULL;
    uint64_t n_run = 0, ended = 0, held = 0;
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
        bad = "ended requests are miscounted";
    for (const struct list *n = s->held.next; n != &s->held; n = n->next)
        held++;
    if (!bad && held != c.held)
        bad = "those that wait for the other side are miscounted";
    if (!bad && n_deadline(s->deadlines) != c.deadlines)
        bad = "deadlines are miscounted";
    for (int i = 0; i < END_N; i++)
        ended += s->ended[i];
    if (!bad && s->submitted != ended + s->n_running + s->n_waiting)
        bad = "submitted is not ended + running + waiting";
    return bad ? err_set(e, ERR_PROTO, "%s", bad) : 0;
}
