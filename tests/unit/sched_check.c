/* Recounts the state of a scheduler, and compares it with the counts that it maintains. */
#include "unit/sched_check.h"

#include "sched/machine.h"

struct totals {
    uint64_t state[REQUEST_ENDED + 1], unclaimed, attempts, deadlines, in_grace;
};

static const char *check_request(const struct request *r, struct totals *c)
{
    c->state[r->state]++;
    c->unclaimed += r->unclaimed && r->state == REQUEST_RUNNING;
    c->deadlines += r->deadline.at_ns != 0;
    c->in_grace += !list_empty(&r->grace);
    bool listed = !r->current;
    list_each (struct attempt, a, &r->attempts, of_request) {
        c->attempts++;
        if (a->r != r)
            return "an attempt in the list of a request belongs to another request";
        listed |= a == r->current;
        if (a == r->current && a->number != r->attempt)
            return "the current attempt has an old number";
        if (a != r->current && !a->cancelled)
            return "an old attempt was not cancelled";
    }
    if (!listed)
        return "the current attempt of a request is not in its list";
    if ((r->state == REQUEST_RUNNING) != (r->current != NULL))
        return "a request runs without a current attempt, or has one and does not run";
    if (r->state == REQUEST_ENDED && list_empty(&r->attempts))
        return "an ended request without attempts is not freed";
    return NULL;
}

static const char *check_worker(const struct worker *w, uint64_t *n)
{
    uint64_t context = 0, bytes = 0, left = 0;
    uint32_t n_attempt = 0, kind[3] = {0};
    list_each (struct attempt, a, &w->attempts, of_worker) {
        n_attempt++;
        kind[a->phase]++;
        left += a->est_ns;
        context += a->phase != SCHED_ON_PREFILL ? a->context : 0;
        bytes += a->bytes;
        if (a->w != w || a->of_worker.next->prev != &a->of_worker)
            return "the list of a worker's attempts is broken";
    }
    *n += n_attempt;
    if (kind[0] != w->pub.n_prefill || kind[1] != w->pub.n_decode || kind[2] != w->pub.n_whole)
        return "the count of a worker's attempts is wrong";
    if (bytes != w->bytes)
        return "the bytes of a worker's bodies are wrong";
    if (context != w->pub.context || left != w->pub.prefill_left_ns)
        return "the load of a worker is wrong";
    if (w->seqs > w->pub.seqs_all || w->pub.seqs != (w->full ? 0 : w->seqs) || w->pub.blocks > w->pub.blocks_all)
        return "a worker has more free capacity than it has in all, or ignores that its session is full";
    return NULL;
}

static const char *check_queue(const struct queue *q)
{
    uint64_t n = 0, tokens = 0;
    const struct request *last = NULL;
    for (const struct request *r = q->first[0]; r; last = r, r = r->skip.next[0]) {
        n++;
        tokens += r->pub.n_prompt;
        if (r->skip.prev != last || (last && last->pub.priority > r->pub.priority))
            return "a queue is not sorted";
    }
    return n != q->n || tokens != q->tokens ? "the count of a queue is wrong" : NULL;
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
    struct totals c = {0};
    const char *bad = NULL;
    uint64_t n_attempt = 0, ended = 0, in_grace = 0;
    for (size_t i = 0; s->requests.slot && i <= s->requests.mask && !bad; i++)
        if (s->requests.slot[i].p)
            bad = check_request(s->requests.slot[i].p, &c);
    for (uint32_t i = 0; i < s->n_worker && !bad; i++)
        bad = check_worker(s->worker[i], &n_attempt);
    bad = bad ? bad : check_queue(&s->queued);
    bad = bad ? bad : check_queue(&s->ready);
    if (!bad && n_attempt != c.attempts)
        bad = "workers and requests have different numbers of attempts";
    if (!bad && (s->queued.n != c.state[REQUEST_QUEUED] || s->ready.n != c.state[REQUEST_READY]))
        bad = "the queues have other requests than those that wait";
    if (!bad && s->n_waiting != c.state[REQUEST_IN_GRACE] + c.state[REQUEST_QUEUED] + c.state[REQUEST_READY])
        bad = "the count of waiting requests is wrong";
    if (!bad && s->n_running + c.unclaimed != c.state[REQUEST_RUNNING])
        bad = "the count of running requests is wrong";
    if (!bad && s->n_ended != c.state[REQUEST_ENDED])
        bad = "the count of ended requests is wrong";
    for (const struct list *n = s->grace.next; n != &s->grace; n = n->next)
        in_grace++;
    if (!bad && in_grace != c.in_grace)
        bad = "the count of requests in grace is wrong";
    if (!bad && n_deadline(s->deadlines) != c.deadlines)
        bad = "the count of deadlines is wrong";
    for (int i = 0; i < END_N; i++)
        ended += s->ended[i];
    if (!bad && s->submitted != ended + s->n_running + s->n_waiting)
        bad = "submitted is not ended + running + waiting";
    return bad ? err_set(e, ERR_PROTO, "%s", bad) : 0;
}
