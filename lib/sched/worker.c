/* Workers: who lives, what each has been sent and has confirmed, and what waits for its next poll. */
#include "sched/machine.h"

#include <stdlib.h>
#include <string.h>

struct worker *worker_find(const struct sched *s, struct wire_str name)
{
    size_t at;
    uint64_t hash = wire_sum(name.p, name.n);
    struct worker *w = map_first(&s->workers, hash, &at);
    while (w && !str_is(name, w->name))
        w = map_next(&s->workers, hash, &at);
    return w;
}

static int add_to_array(struct err *e, struct sched *s, struct worker *w)
{
    if (s->n_worker == s->size_worker) {
        uint32_t size = s->size_worker ? 2 * s->size_worker : 16;
        struct worker **p = realloc(s->worker, size * sizeof(struct worker *));
        if (!p)
            return err_nomem(e, "workers", size * sizeof(struct worker *));
        s->worker = p;
        s->size_worker = size;
    }
    w->at = s->n_worker;
    s->worker[s->n_worker++] = w;
    return 0;
}

int worker_new(struct err *e, struct worker **out, struct sched *s, struct wire_str name)
{
    struct worker *w = calloc(1, sizeof *w);
    if (w)
        w->name = strndup(name.p ? name.p : "", name.n);
    if (!w || !w->name) {
        free(w);
        return err_nomem(e, "a worker", sizeof *w);
    }
    w->hash = wire_sum(name.p, name.n);
    w->pub.name = w->name;
    w->pub.number = (uint32_t)++s->next_worker;
    w->pub.store = -1;
    w->pub.role_since_ns = w->heard_ns = s->now_ns;
    int rc = add_to_array(e, s, w);
    if (!rc) {
        rc = map_put(e, &s->workers, w->hash, w);
        s->n_worker -= rc != 0;
    }
    if (rc) {
        free(w->name);
        free(w);
        return rc;
    }
    *out = w;
    return 0;
}

void worker_free(struct sched *s, struct worker *w)
{
    for (struct worker **at = &s->touched; *at; at = &(*at)->touched_next)
        if (*at == w) {
            *at = w->touched_next;
            break;
        }
    map_drop(&s->workers, w->hash, w);
    s->worker[w->at] = s->worker[--s->n_worker];
    s->worker[w->at]->at = w->at;
    free(w->ctl);
    free(w->name);
    free(w);
}

/* Its process is no more: nothing it had will ever be answered. */
void worker_gone(struct sched *s, struct worker *w)
{
    w->pub.alive = w->pub.polls = w->ctl_polls = false;
    while (w->first_run) {
        struct run *r = w->first_run;
        struct job *j = r->j;
        bool current = r->current;
        run_close(s, r);
        if (current)
            job_requeue(s, j, true);
        else if (j->state == JOB_ENDED && !j->runs)
            job_free(s, j);
    }
    worker_free(s, w);
    s->dirty = true;
}

void worker_heard(struct sched *s, struct worker *w)
{
    w->heard_ns = s->now_ns;
    if (!w->pub.alive) {
        w->pub.alive = true;
        s->dirty = true;
    }
}

void worker_touch(struct sched *s, struct worker *w)
{
    if (w->touched)
        return;
    w->touched = true;
    w->touched_next = s->touched;
    s->touched = w;
}

void worker_refuse(struct sched *s, struct wire_str name, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.at_ns = s->now_ns, .to = name, .text = wire_str_of(text)};
    emit(s, &f);
}

/* ---- controls ---- */

static void put_control(struct sched *s, const struct worker *w, const struct message *m)
{
    static const char *const roles[] = {"", "prefill", "decode", "both"};
    struct wire_frame f = {.kind = WIRE_CONTROL};
    f.control = (struct wire_control){.at_ns = s->now_ns,
                                      .to = wire_str_of(w->name),
                                      .n = m->n,
                                      .what = wire_str_of(m->what),
                                      .gw = wire_str_of(m->gw),
                                      .job = m->job,
                                      .order = m->order,
                                      .attempt = m->attempt,
                                      .role = wire_str_of(roles[m->role])};
    emit(s, &f);
}

void worker_tell(struct sched *s, struct worker *w, const char *what, const struct run *r)
{
    if (w->n_ctl == w->size_ctl) {
        size_t size = w->size_ctl ? 2 * w->size_ctl : 16;
        struct message *p = realloc(w->ctl, size * sizeof *p);
        if (!p) {
            err_nomem(&s->broken, "controls", size * sizeof *p);
            return;
        }
        w->ctl = p;
        w->size_ctl = size;
    }
    struct message *m = &w->ctl[w->n_ctl++];
    *m = (struct message){.n = ++w->ctl_n, .what = what, .role = r ? 0 : w->pub.role};
    if (r) {
        memccpy(m->gw, r->j->gw->name, 0, sizeof m->gw - 1);
        m->job = r->j->pub.job;
        m->order = r->order;
        m->attempt = r->attempt;
    }
    worker_touch(s, w);
}

void worker_drain(struct sched *s, struct worker *w, bool on)
{
    if (w->pub.draining == on)
        return;
    w->pub.draining = on;
    worker_tell(s, w, on ? "drain" : "resume", NULL);
    s->dirty = true;
}

static void flush_controls(struct sched *s, struct worker *w)
{
    if (!w->ctl_polls || !w->n_ctl)
        return;
    for (size_t i = 0; i < w->n_ctl; i++)
        put_control(s, w, &w->ctl[i]);
    w->ctl_polls = false;
}

/* What was told leaves by the polls that are parked; a poll that orders have answered is used up. */
void worker_flush(struct sched *s)
{
    while (s->touched) {
        struct worker *w = s->touched;
        s->touched = w->touched_next;
        w->touched = false;
        flush_controls(s, w);
        if (w->sent)
            w->pub.polls = w->sent = false;
    }
}

/* ---- orders ---- */

static const char *const phases[] = {"prefill", "decode", "whole"};

void worker_send(struct sched *s, struct run *r)
{
    struct job *j = r->j;
    struct worker *w = r->w;
    bool decode = r->phase == SCHED_ON_DECODE;
    struct wire_frame f = {.kind = WIRE_ORDER};
    f.order = (struct wire_order){.at_ns = s->now_ns,
                                  .to = wire_str_of(w->name),
                                  .n = r->n,
                                  .order = r->order,
                                  .gw = wire_str_of(j->gw->name),
                                  .job = j->pub.job,
                                  .attempt = r->attempt,
                                  .phase = wire_str_of(phases[r->phase]),
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
    if (!decode && r->next_store >= 0)
        f.order.next = wire_str_of(s->store[r->next_store].name);
    emit(s, &f);
    w->sent = true;
    worker_touch(s, w);
}

/* What the worker's figures do not have in yet. */
static void take_room(struct worker *w, const struct run *r)
{
    w->pub.seqs -= w->pub.seqs > 0;
    w->pub.blocks -= r->blocks < w->pub.blocks ? r->blocks : w->pub.blocks;
    w->pub.tokens -= r->n_new < w->pub.tokens ? r->n_new : w->pub.tokens;
}

/* Orders behind `got` were lost with the message they were in. One that is no longer wanted is not sent again: the
 * cancel that follows it is answered though the worker never had it. */
static void send_again(struct sched *s, struct worker *w, uint64_t got)
{
    struct run *r = w->last_run;
    while (r && r->w_prev && (r->w_prev->n > got || !r->n))
        r = r->w_prev;
    for (; r; r = r->w_next)
        if (r->n > got && r->current) {
            take_room(w, r);
            worker_send(s, r);
        }
}

static void work_poll(struct sched *s, struct worker *w, const struct wire_poll *f)
{
    w->pub.polls = true;
    w->poll_ns = s->now_ns;
    w->pub.seqs = f->seqs < w->pub.seqs_all ? f->seqs : w->pub.seqs_all;
    w->pub.tokens = f->tokens;
    w->pub.blocks = f->blocks < w->pub.blocks_all ? f->blocks : w->pub.blocks_all;
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
    if (w->last_run && w->last_run->n > f->got)
        send_again(s, w, f->got);
    s->dirty = true;
}

static void ctl_poll(struct sched *s, struct worker *w, uint64_t got)
{
    size_t n = 0;
    while (n < w->n_ctl && w->ctl[n].n <= got)
        n++;
    w->n_ctl -= n;
    if (n)
        memmove(w->ctl, w->ctl + n, w->n_ctl * sizeof *w->ctl);
    w->ctl_polls = true;
    w->ctl_poll_ns = s->now_ns;
    if (w->n_ctl)
        worker_touch(s, w);
}

/* The first poll of a gateway is refused, so that it submits again whatever it runs: this may be a scheduler that has
 * just begun, or one that took the gateway for gone. */
static int gateway_poll(struct err *e, struct sched *s, const struct wire_poll *f)
{
    struct gateway *g;
    int rc = gateway_get(e, &g, s, f->gw);
    if (rc)
        return rc;
    g->gone = false;
    g->heard_ns = s->now_ns;
    if (!g->polls)
        worker_refuse(s, f->gw, "submit again what runs: this scheduler has not heard of this gateway");
    g->polls = true;
    return 0;
}

int poll_event(struct err *e, struct sched *s, const struct wire_poll *f)
{
    if (!f->worker.n && f->gw.n)
        return gateway_poll(e, s, f);
    struct worker *w = worker_find(s, f->worker);
    if (!w || w->inc != f->inc) {
        worker_refuse(s, f->worker, "join first: this scheduler does not know this worker");
        return 0;
    }
    worker_heard(s, w);
    if (f->drain && !w->pub.draining) { /* its own wish: it need not be told */
        w->pub.draining = true;
        s->dirty = true;
    }
    if (f->ctl)
        ctl_poll(s, w, f->got);
    else
        work_poll(s, w, f);
    return 0;
}

/* ---- time ---- */

static void idle(struct sched *s, struct worker *w, bool ctl)
{
    struct wire_frame f = {.kind = WIRE_IDLE};
    f.idle = (struct wire_idle){.at_ns = s->now_ns, .to = wire_str_of(w->name), .ctl = ctl};
    emit(s, &f);
}

/* Stopped or cut off: what it ran goes on elsewhere. It may come back, so its tries stay known, each to be cancelled,
 * until their leases are over. */
static void silent(struct sched *s, struct worker *w)
{
    w->pub.alive = w->pub.polls = w->ctl_polls = false;
    s->dirty = true;
    for (struct run *r = w->first_run, *next; r; r = next) {
        next = r->w_next;
        struct job *j = r->j;
        bool current = r->current;
        r->drop_ns = s->now_ns + s->lease_ns;
        run_abandon(s, r);
        if (current)
            job_requeue(s, j, true);
    }
}

static void drop_leases(struct sched *s, struct worker *w)
{
    for (struct run *r = w->first_run, *next; r; r = next) {
        next = r->w_next;
        struct job *j = r->j;
        if (r->current || !r->drop_ns || r->drop_ns > s->now_ns)
            continue;
        run_close(s, r);
        if (j->state == JOB_ENDED && !j->runs)
            job_free(s, j);
    }
}

void worker_timers(struct sched *s)
{
    if (s->now_ns < s->scan_ns)
        return;
    s->scan_ns = s->now_ns + s->heartbeat_ns / 4;
    s->dirty = true;
    gateways_timers(s);
    handles_timers(s);
    for (uint32_t i = s->n_worker; i-- > 0;) {
        struct worker *w = s->worker[i];
        if (w->pub.alive && w->heard_ns + 3 * s->heartbeat_ns <= s->now_ns)
            silent(s, w);
        if (w->pub.polls && w->poll_ns + s->heartbeat_ns <= s->now_ns) {
            idle(s, w, false);
            w->pub.polls = false;
        }
        if (w->ctl_polls && w->ctl_poll_ns + s->heartbeat_ns <= s->now_ns) {
            idle(s, w, true);
            w->ctl_polls = false;
        }
        if (!w->pub.alive)
            drop_leases(s, w);
        if (!w->pub.alive && !w->n_run && w->heard_ns + 4 * s->lease_ns <= s->now_ns)
            worker_free(s, w);
    }
}
