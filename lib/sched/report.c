/* What workers say about orders. Only the current try of a request can change it. */
#include "sched/machine.h"

#include <stdio.h>
#include <string.h>

enum what { PROGRESS, PREFILLED, TOKENS, ENDED, FAILED, PREEMPTED, CANCELLED, N_WHAT };
static const char *const words[N_WHAT] = {"progress", "prefilled", "tokens",   "ended",
                                          "failed",   "preempted", "cancelled"};

static void progress(struct run *r, const struct wire_report *f)
{
    uint32_t all = r->j->pub.n_prompt + r->j->pub.n_out, left = f->n_done < all ? all - f->n_done : 0;
    uint64_t est = (uint64_t)sched_prefill_ns(&r->w->pub, left, all - left);
    run_progress(r, est < r->est_ns ? est : r->est_ns);
}

/* Tokens move the worker's load. */
static void grow(struct run *r)
{
    uint32_t now = r->j->pub.n_prompt + r->j->pub.n_out;
    if (r->phase != SCHED_ON_PREFILL)
        r->w->pub.context += now - r->context;
    r->context = now;
}

static int prefilled(struct err *e, struct sched *s, struct run *r, const struct wire_report *f)
{
    struct job *j = r->j;
    uint32_t all = f->n_done ? f->n_done : j->pub.n_prompt, cached = f->cached < all ? f->cached : all;
    if (f->busy_ns)
        fit_learn(&r->w->pub.prefill, all - cached, (double)all * all - (double)cached * cached, (double)f->busy_ns);
    run_progress(r, 0);
    if (r->phase != SCHED_ON_PREFILL) /* it goes on decoding where it is */
        return 0;
    int rc = store_get(e, &j->pub.kv_store, s, f->store);
    if (rc)
        return rc;
    if (j->pub.kv_store < 0)
        j->pub.kv_store = r->w->pub.store;
    j->n_handle = f->handle.n;
    if (f->handle.n)
        memcpy(j->handle, f->handle.p, f->handle.n);
    run_close(s, r);
    bool whole = j->pub.n_out && j->pub.n_out >= j->pub.max_tokens;
    if (!whole && !j->unasked) {
        job_set(s, j, JOB_READY);
        return 0;
    }
    handle_let_go(s, j);
    job_end(s, j, whole ? END_LENGTH : END_CANCELLED, 0, "");
    return 0;
}

static const enum end ends[] = {
    [WIRE_STOP] = END_STOP, [WIRE_LENGTH] = END_LENGTH, [WIRE_CANCELLED] = END_CANCELLED, [WIRE_ERROR] = END_ERROR};

static void ended(struct sched *s, struct run *r, const struct wire_report *f)
{
    struct job *j = r->j;
    run_close(s, r);
    job_end(s, j, f->reason ? ends[f->reason] : END_STOP, f->code, "");
}

static void failed(struct sched *s, struct run *r, const struct wire_report *f)
{
    struct job *j = r->j;
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(f->text.n < 500 ? f->text.n : 500), f->text.n ? f->text.p : "");
    j->avoid = r->w->pub.number;
    run_close(s, r);
    if (f->code == ERR_NO)
        job_end(s, j, END_ERROR, f->code, text);
    else
        job_requeue(s, j, true);
}

static int current(struct err *e, struct sched *s, struct run *r, enum what what, const struct wire_report *f)
{
    struct job *j = r->j;
    int rc = job_take_out(e, j, f->n_out, f->out, f->n_out_id);
    if (rc)
        return rc;
    grow(r);
    switch (what) {
    case PROGRESS:
        progress(r, f);
        return 0;
    case PREFILLED:
        return prefilled(e, s, r, f);
    case ENDED:
        ended(s, r, f);
        return 0;
    case FAILED:
        failed(s, r, f);
        return 0;
    case PREEMPTED:
        run_close(s, r);
        j->pub.preempts++;
        s->preempted++;
        job_requeue(s, j, false);
        return 0;
    case CANCELLED: /* not asked for: its lease had run out there */
        handle_unused(s, j, f);
        run_close(s, r);
        job_requeue(s, j, true);
        return 0;
    default:
        return 0;
    }
}

/* Of an old attempt, or of a request that has ended: all it can do is to answer. */
static void old(struct sched *s, struct run *r, enum what what, const struct wire_report *f)
{
    struct job *j = r->j;
    s->stale += !r->answered;
    handle_unused(s, j, f);
    if (what == PROGRESS || what == TOKENS || (what == PREFILLED && r->phase != SCHED_ON_PREFILL))
        return;
    run_close(s, r);
    if (j->state == JOB_ENDED && list_empty(&j->runs))
        job_free(s, j);
}

/* A gateway has the whole answer. Its worker will say so too, or dies; either closes the try. */
static void ended_there(struct sched *s, struct job *j, const struct wire_report *f)
{
    if (!j->told_first)
        times_add(&s->ttft, s->now_ns - j->pub.arrival_ns);
    list_each (struct run, r, &j->runs, of_job)
        if (r->current) {
            r->cancelled = true; /* it needs no control */
            r->answered = true;
        }
    job_end(s, j, f->reason ? ends[f->reason] : END_STOP, 0, "");
}

static struct run *run_of(const struct job *j, const struct worker *w, uint64_t order)
{
    list_each (struct run, r, &j->runs, of_job)
        if (r->w == w && r->order == order)
            return r;
    return NULL;
}

int report_event(struct err *e, struct sched *s, const struct wire_report *f)
{
    int what = str_among(f->what, words, N_WHAT);
    if (what < 0)
        return err_set(e, ERR_PROTO, "report: '%.*s' is no report", (int)f->what.n, f->what.p);
    if (f->n_out_id > f->n_out)
        return err_set(e, ERR_PROTO, "report: %u ids of %u tokens", f->n_out_id, f->n_out);
    struct worker *w = NULL;
    if (f->worker.n) {
        w = worker_find(s, f->worker);
        if (!w || w->inc != f->inc) {
            s->stale++;
            return 0;
        }
    }
    struct gateway *g = gateway_find(s, f->gw);
    struct job *j = g ? job_find(s, g, f->job) : NULL;
    if (j && !w && what == TOKENS && !j->told_first) {
        j->told_first = true;
        times_add(&s->ttft, s->now_ns - j->pub.arrival_ns);
    }
    if (j && !w && what == ENDED && j->state != JOB_ENDED) {
        ended_there(s, j, f);
        return 0;
    }
    if (j && !w && what == TOKENS && j->state != JOB_ENDED)
        return job_take_out(e, j, f->n_out, f->out, f->n_out_id);
    struct run *r = j ? run_of(j, w, f->order) : NULL;
    if (r && r->current)
        return current(e, s, r, (enum what)what, f);
    if (r) {
        old(s, r, (enum what)what, f);
    } else {
        s->stale++;
        handle_unused(s, j, f);
    }
    return 0;
}
