/* Workers: the registry, what each can take, and the orders and controls that go to it. */
#include "sched/machine.h"

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
    list_init(&w->runs);
    w->at = s->n_worker;
    s->worker[s->n_worker++] = w;
    *out = w;
    return 0;
}

/* Its session has ended: what it ran waits again, and no report of it will come. */
void worker_gone(struct sched *s, struct worker *w)
{
    if (w->pub.draining)
        s->drained[s->drained_at++ % DRAINED_MAX] = w->inc;
    while (!list_empty(&w->runs)) {
        struct run *r = list_entry(w->runs.next, struct run, of_worker);
        struct job *j = r->j;
        bool current = r->current;
        run_close(s, r);
        if (current)
            job_requeue(s, j, true);
        else if (j->state == JOB_ENDED && list_empty(&j->runs))
            job_free(s, j);
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

void worker_control(struct sched *s, const struct worker *w, const char *what, const struct run *r)
{
    struct wire_frame f = {.kind = WIRE_CONTROL};
    f.control = (struct wire_control){.at_ns = s->now_ns, .to = wire_str_of(w->name), .what = wire_str_of(what)};
    if (r) {
        f.control.gw = wire_str_of(r->j->gw->name);
        f.control.job = r->j->pub.job;
        f.control.order = r->order;
        f.control.attempt = r->attempt;
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

/* ---- orders ---- */

/* Room is counted down by what was sent: a worker's capacity says which orders it counts already. */
static void take_room(struct worker *w, const struct run *r)
{
    w->seqs -= w->seqs > 0;
    w->pub.blocks -= r->blocks < w->pub.blocks ? r->blocks : w->pub.blocks;
    w->pub.tokens -= r->n_new < w->pub.tokens ? r->n_new : w->pub.tokens;
    w->pub.seqs = w->full ? 0 : w->seqs;
}

void worker_send(struct sched *s, struct run *r)
{
    struct job *j = r->j;
    struct worker *w = r->w;
    bool decode = r->phase == SCHED_ON_DECODE;
    struct wire_frame f = {.kind = WIRE_ORDER};
    f.order = (struct wire_order){.at_ns = s->now_ns,
                                  .to = wire_str_of(w->name),
                                  .order = r->order,
                                  .gw = wire_str_of(j->gw->name),
                                  .job = j->pub.job,
                                  .attempt = r->attempt,
                                  .phase = wire_str_of(sched_phase_names[r->phase]),
                                  .n_prompt = j->pub.n_prompt,
                                  .max_tokens = j->pub.max_tokens,
                                  .cached = r->cached,
                                  .chunk = r->chunk,
                                  .lease_ns = s->lease_ns,
                                  .priority = j->pub.priority,
                                  .reply = str_of(j->reply, j->n_reply),
                                  .n_out = j->pub.n_out,
                                  .out = j->out,
                                  .n_out_id = j->n_out_id,
                                  .body = {j->body, j->n_body}};
    if (decode && j->n_handle)
        f.order.handle = (struct wire_bytes){j->handle, j->n_handle};
    if (decode && j->pub.kv_store >= 0)
        f.order.from = wire_str_of(s->store[j->pub.kv_store].name);
    r->n = ++w->n_sent;
    take_room(w, r);
    emit(s, &f);
}

/* ---- capacity ---- */

static void take_steps(struct sched *s, struct worker *w, const struct wire_capacity *f)
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
    if (!w || w->inc != f->inc) {
        worker_refuse(s, f->worker, "join first: this scheduler does not know this worker");
        return 0;
    }
    w->seqs = f->seqs < w->pub.seqs_all ? f->seqs : w->pub.seqs_all;
    w->pub.seqs = w->full ? 0 : w->seqs;
    w->pub.tokens = f->tokens;
    w->pub.blocks = f->blocks < w->pub.blocks_all ? f->blocks : w->pub.blocks_all;
    for (struct list *n = w->runs.prev; n != &w->runs; n = n->prev) { /* those of the join, with number 0, come first */
        const struct run *r = list_entry(n, struct run, of_worker);
        if (r->n <= f->orders)
            break;
        take_room(w, r); /* the worker did not have this order yet */
    }
    take_steps(s, w, f);
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
