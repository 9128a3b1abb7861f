/* Reports of workers and gateways. Only reports of a request's current attempt change the request. */
#include "sched/machine.h"

#include <stdio.h>
#include <string.h>

enum what { PROGRESS, PREFILLED, TOKENS, ENDED, FAILED, PREEMPTED, CANCELLED, N_WHAT };
static const char *const words[N_WHAT] = {"progress", "prefilled", "tokens",   "ended",
                                          "failed",   "preempted", "cancelled"};

static void progress(struct attempt *a, const struct wire_report *f)
{
    uint32_t all = a->r->pub.n_prompt + a->r->pub.n_out, left = f->n_done < all ? all - f->n_done : 0;
    uint64_t est = (uint64_t)sched_prefill_ns(&a->w->pub, left, all - left);
    attempt_set_left(a, est < a->est_ns ? est : a->est_ns);
}

/* Adds new tokens to the worker's load. */
static void update_context(struct attempt *a)
{
    uint32_t now = a->r->pub.n_prompt + a->r->pub.n_out;
    if (a->phase != SCHED_ON_PREFILL)
        a->w->pub.context += now - a->context;
    a->context = now;
}

static int prefilled(struct err *e, struct sched *s, struct attempt *a, const struct wire_report *f)
{
    struct request *r = a->r;
    uint32_t all = f->n_done ? f->n_done : r->pub.n_prompt, cached = f->cached < all ? f->cached : all;
    if (f->busy_ns)
        fit_learn(&a->w->pub.prefill, all - cached, (double)all * all - (double)cached * cached, (double)f->busy_ns);
    attempt_set_left(a, 0);
    if (a->phase != SCHED_ON_PREFILL) /* the worker continues with decoding */
        return 0;
    int rc = store_get(e, &r->pub.kv_store, s, f->store);
    if (rc)
        return rc;
    if (r->pub.kv_store < 0)
        r->pub.kv_store = a->w->pub.store;
    r->n_handle = f->handle.n;
    if (f->handle.n)
        memcpy(r->handle, f->handle.p, f->handle.n);
    attempt_close(s, a);
    bool whole = r->pub.n_out && r->pub.n_out >= r->pub.max_tokens;
    if (!whole && !r->unclaimed) {
        req_set_state(s, r, REQUEST_READY);
        return 0;
    }
    handle_release(s, r);
    req_end(s, r, whole ? END_LENGTH : END_CANCELLED, 0, "");
    return 0;
}

static const enum end ends[] = {
    [WIRE_STOP] = END_STOP, [WIRE_LENGTH] = END_LENGTH, [WIRE_CANCELLED] = END_CANCELLED, [WIRE_ERROR] = END_ERROR};

static void failed(struct sched *s, struct attempt *a, const struct wire_report *f)
{
    struct request *r = a->r;
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(f->text.n < 500 ? f->text.n : 500), f->text.n ? f->text.p : "");
    r->failed_worker_number = a->w->pub.number;
    attempt_close(s, a);
    if (f->code == ERR_NO)
        req_end(s, r, END_ERROR, f->code, text);
    else
        req_requeue(s, r, *text ? text : "unknown");
}

static int current_report(struct err *e, struct sched *s, struct attempt *a, enum what what,
                          const struct wire_report *f)
{
    struct request *r = a->r;
    int rc = req_add_tokens(e, r, f->n_out, f->out, f->n_out_id);
    if (rc)
        return rc;
    update_context(a);
    if (what == PREFILLED || (what == TOKENS && f->n_out))
        attempt_clear(a);
    switch (what) {
    case PROGRESS:
        progress(a, f);
        return 0;
    case PREFILLED:
        return prefilled(e, s, a, f);
    case ENDED:
        attempt_close(s, a);
        req_end(s, r, f->reason ? ends[f->reason] : END_STOP, f->code, "");
        return 0;
    case FAILED:
        failed(s, a, f);
        return 0;
    case PREEMPTED:
        attempt_close(s, a);
        r->pub.preempts++;
        s->preempted++;
        req_requeue(s, r, NULL);
        return 0;
    case CANCELLED: /* by the worker itself: the lease of the work item had ended */
        handle_release_unused(s, r, f);
        attempt_close(s, a);
        req_requeue(s, r, "the lease of the work item ended");
        return 0;
    default:
        return 0;
    }
}

/* A report of an old attempt, or of a request that has ended: it can only close the attempt. */
static void stale_report(struct sched *s, struct attempt *a, enum what what, const struct wire_report *f)
{
    struct request *r = a->r;
    s->stale += !a->answered;
    handle_release_unused(s, r, f);
    if (what == PROGRESS || what == TOKENS || (what == PREFILLED && a->phase != SCHED_ON_PREFILL))
        return;
    attempt_close(s, a);
    if (r->state == REQUEST_ENDED && list_empty(&r->attempts))
        req_free(s, r);
}

/* The gateway has the whole answer. The attempt is closed by the worker's own report, or when the worker disconnects.
 */
static void gateway_ended(struct sched *s, struct request *r, const struct wire_report *f)
{
    if (!r->gateway_reported)
        times_add(&s->ttft, s->now_ns - r->pub.arrival_ns);
    if (r->current)
        r->current->answered = r->current->cancelled = true; /* the worker needs no control */
    req_end(s, r, f->reason ? ends[f->reason] : END_STOP, 0, "");
}

static struct attempt *attempt_of(const struct request *r, const struct worker *w, uint64_t order)
{
    list_each (struct attempt, a, &r->attempts, of_request)
        if (a->w == w && a->order == order)
            return a;
    return NULL;
}

int report_event(struct err *e, struct sched *s, const struct wire_report *f)
{
    int what = str_index(f->what, words, N_WHAT);
    if (what < 0)
        return err_set(e, ERR_PROTO, "report: '%.*s' is not a kind of report", (int)f->what.n, f->what.p);
    if (f->n_out_id > f->n_out)
        return err_set(e, ERR_PROTO, "report: has %u ids, more than its n_out of %u tokens", f->n_out_id, f->n_out);
    struct worker *w = NULL;
    if (f->worker.n) {
        w = worker_find(s, f->worker);
        if (!w || w->incarnation != f->inc) {
            s->stale++;
            return 0;
        }
    }
    struct gateway *g = gateway_find(s, f->gw);
    struct request *r = g ? req_find(s, g, f->job) : NULL;
    if (r && !w && what == TOKENS && !r->gateway_reported) {
        r->gateway_reported = true;
        times_add(&s->ttft, s->now_ns - r->pub.arrival_ns);
    }
    if (r && !w && what == ENDED && r->state != REQUEST_ENDED) {
        gateway_ended(s, r, f);
        return 0;
    }
    if (r && !w && what == TOKENS && r->state != REQUEST_ENDED)
        return req_add_tokens(e, r, f->n_out, f->out, f->n_out_id);
    struct attempt *a = r ? attempt_of(r, w, f->order) : NULL;
    if (a && r->current == a)
        return current_report(e, s, a, (enum what)what, f);
    if (a) {
        stale_report(s, a, (enum what)what, f);
    } else {
        s->stale++;
        handle_release_unused(s, r, f);
    }
    return 0;
}
