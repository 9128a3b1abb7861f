/* Workers: the registry, their capacity, and the work items and controls that they receive. */
#include "sched/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

struct worker *worker_find(const struct sched *s, struct wire_str name)
{
    size_t at;
    uint64_t hash = wire_sum(name.p, name.n);
    struct worker *w = map_first(&s->workers, hash, &at);
    while (w && !str_is(name, w->name))
        w = map_next(&s->workers, hash, &at);
    return w;
}

int worker_new(struct err *e, struct worker **out, struct sched *s, struct wire_str name)
{
    struct worker *w = calloc(1, sizeof *w);
    if (w)
        w->name = strndup(name.p ? name.p : "", name.n);
    int rc = w && w->name ? 0 : err_nomem(e, "a worker", sizeof *w);
    rc = rc ? rc : vec_reserve(e, &s->worker, &s->size_worker, (size_t)s->n_worker + 1, sizeof w, "workers");
    rc = rc ? rc : map_put(e, &s->workers, wire_sum(name.p, name.n), w);
    if (rc) {
        free(w ? w->name : NULL);
        free(w);
        return rc;
    }
    w->hash = wire_sum(name.p, name.n);
    w->pub.name = w->name;
    w->pub.number = (uint32_t)++s->next_worker;
    w->pub.store = -1;
    list_init(&w->attempts);
    w->at = s->n_worker;
    s->worker[s->n_worker++] = w;
    *out = w;
    return 0;
}

void worker_gone(struct sched *s, struct worker *w)
{
    char failure[200];
    snprintf(failure, sizeof failure, "worker %s disconnected", w->name);
    if (w->pub.draining)
        s->drained[s->drained_at++ % DRAINED_MAX] = w->incarnation;
    while (!list_empty(&w->attempts)) {
        struct attempt *a = list_entry(w->attempts.next, struct attempt, of_worker);
        struct request *r = a->r;
        bool current = r->current == a, fresh = a->fresh;
        attempt_close(s, a);
        if (current && suspect_death(s, r, w, fresh))
            continue;
        if (current)
            req_requeue(s, r, failure);
        else if (r->state == REQUEST_ENDED && list_empty(&r->attempts))
            req_free(s, r);
    }
    map_drop(&s->workers, w->hash, w);
    s->worker[w->at] = s->worker[--s->n_worker];
    s->worker[w->at]->at = w->at;
    free(w->name);
    free(w);
    s->dirty = true;
}

void worker_refuse(struct sched *s, struct wire_str name, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.at_ns = s->now_ns, .to = name, .text = wire_str_of(text)};
    emit(s, &f);
}

/* ---- controls ---- */

void worker_control(struct sched *s, const struct worker *w, const char *what, const struct attempt *a)
{
    struct wire_frame f = {.kind = WIRE_CONTROL};
    f.control = (struct wire_control){.at_ns = s->now_ns, .to = wire_str_of(w->name), .what = wire_str_of(what)};
    if (a) {
        f.control.gw = wire_str_of(a->r->gw->name);
        f.control.job = a->r->pub.job;
        f.control.order = a->order;
        f.control.attempt = a->number;
    } else {
        f.control.role = wire_str_of(sched_role_names[w->pub.role]);
    }
    emit(s, &f);
}

void worker_drain(struct sched *s, struct worker *w, bool on)
{
    if (w->pub.draining == on)
        return;
    w->pub.draining = on;
    worker_control(s, w, on ? "drain" : "resume", NULL);
    s->dirty = true;
}

/* ---- work items ---- */

/* Subtracts a work item that the worker's last capacity frame does not include. */
static void reserve_room(struct worker *w, const struct attempt *a)
{
    w->seqs -= w->seqs > 0;
    w->pub.blocks -= a->blocks < w->pub.blocks ? a->blocks : w->pub.blocks;
    w->pub.tokens -= a->n_new < w->pub.tokens ? a->n_new : w->pub.tokens;
    w->pub.seqs = w->full ? 0 : w->seqs;
}

void worker_send(struct sched *s, struct attempt *a)
{
    struct request *r = a->r;
    struct worker *w = a->w;
    bool decode = a->phase == SCHED_ON_DECODE;
    struct wire_frame f = {.kind = WIRE_ORDER};
    f.order = (struct wire_order){.at_ns = s->now_ns,
                                  .to = wire_str_of(w->name),
                                  .order = a->order,
                                  .gw = wire_str_of(r->gw->name),
                                  .job = r->pub.job,
                                  .attempt = a->number,
                                  .phase = wire_str_of(sched_phase_names[a->phase]),
                                  .n_prompt = r->pub.n_prompt,
                                  .max_tokens = r->pub.max_tokens,
                                  .cached = a->cached,
                                  .chunk = a->chunk,
                                  .lease_ns = s->lease_ns,
                                  .priority = r->pub.priority,
                                  .reply = {r->reply, r->n_reply},
                                  .n_out = r->pub.n_out,
                                  .out = r->out,
                                  .n_out_id = r->n_out_id,
                                  .body = {r->body, r->n_body}};
    if (decode && r->n_handle)
        f.order.handle = (struct wire_bytes){r->handle, r->n_handle};
    if (decode && r->pub.kv_store >= 0)
        f.order.from = wire_str_of(s->store[r->pub.kv_store].name);
    a->n_sent = ++w->n_sent;
    reserve_room(w, a);
    emit(s, &f);
}

/* ---- capacity ---- */

static void add_steps(struct sched *s, struct worker *w, const struct wire_capacity *f)
{
    if (f->step_ns && f->batch) {
        w->last_step_ns = f->step_ns;
        w->last_context = f->context;
        w->last_batch = f->batch;
        times_add(&s->itl, f->step_ns);
        fit_learn(&w->pub.step, (double)f->context, f->batch, (double)f->step_ns);
    }
    if (f->n_steps == WIRE_STEPS_MAX) {
        memcpy(w->steps, f->steps, sizeof w->steps);
        w->n_steps = WIRE_STEPS_MAX;
        w->step_tokens = f->step_tokens;
    }
}

int capacity_event(struct sched *s, const struct wire_capacity *f)
{
    struct worker *w = worker_find(s, f->worker);
    if (!w || w->incarnation != f->inc) {
        worker_refuse(s, f->worker, "this worker has not joined: a join must come before capacity");
        return 0;
    }
    w->seqs = f->seqs < w->pub.seqs_all ? f->seqs : w->pub.seqs_all;
    w->pub.seqs = w->full ? 0 : w->seqs;
    w->pub.tokens = f->tokens;
    w->pub.blocks = f->blocks < w->pub.blocks_all ? f->blocks : w->pub.blocks_all;
    for (struct list *n = w->attempts.prev; n != &w->attempts;
         n = n->prev) { /* newest first; those of the join have n_sent 0 */
        const struct attempt *a = list_entry(n, struct attempt, of_worker);
        if (a->n_sent <= f->orders)
            break;
        reserve_room(w, a); /* not received when the worker sent this frame */
    }
    w->out_bytes = f->out_bytes;
    w->out_bytes_max = f->out_bytes_max;
    add_steps(s, w, f);
    if (f->drain)
        worker_drain(s, w, true);
    s->dirty = true;
    return 0;
}

void sched_worker_full(struct sched *s, struct wire_str name, bool full)
{
    struct worker *w = worker_find(s, name);
    if (!w || w->full == full)
        return;
    w->full = full;
    w->pub.seqs = full ? 0 : w->seqs;
    s->dirty = true;
}

void worker_timers(struct sched *s)
{
    if (s->now_ns < s->scan_ns)
        return;
    s->scan_ns = s->now_ns + SCAN_NS;
    s->dirty = true;
    handles_timers(s);
}
