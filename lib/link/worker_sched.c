/*
 * The session to the scheduler. After each connect the worker sends its join with every item in worker_link.items, the
 * unacknowledged reports, and its capacity. Then it sends reports when their frames are acknowledged, and capacity when
 * it changes and every second. A scheduler that refuses the join is dialed again after a second.
 */
#include <stdlib.h>

#include "link/worker_impl.h"

static int dial(struct err *e, struct worker_link *w)
{
    return session_dial(e, &w->sched, w->hub, w->o.sched, "sched", NULL);
}

/* ---- join ---- */

static void put_runs(struct wire_run *run, uint32_t n, const struct worker_link *w)
{
    uint32_t k = 0;
    list_each (const struct work_item, item, &w->items, node)
        if (k < n)
            run[k++] = (struct wire_run){.gw = wire_str_of(item->gw),
                                         .job = item->f.job,
                                         .order = item->f.order,
                                         .attempt = item->f.attempt,
                                         .phase = wire_str_of(item->phase),
                                         .n_prompt = item->f.n_prompt,
                                         .max_tokens = item->f.max_tokens,
                                         .n_out = item->n_out};
}

/* With its length prefix; *p: malloc'd. */
static int encode_join(struct err *e, uint8_t **p, size_t *n, const struct worker_link *w)
{
    size_t cap = 0;
    uint32_t n_run = w->n_item < WIRE_RUNS_MAX ? w->n_item : WIRE_RUNS_MAX;
    struct wire_run *run = calloc((size_t)n_run + 1, sizeof *run);
    *p = NULL;
    *n = 0;
    if (!run)
        return err_nomem(e, "a join", (n_run + 1) * sizeof *run);
    put_runs(run, n_run, w);
    struct wire_frame f = {.kind = WIRE_JOIN,
                           .join = {.worker = wire_str_of(w->o.name),
                                    .inc = w->inc,
                                    .role = wire_str_of(w->role),
                                    .store = wire_str_of(w->o.store),
                                    .compat = wire_str_of(w->o.compat),
                                    .seqs = w->o.seqs,
                                    .blocks = w->o.blocks,
                                    .max_len = w->o.max_len,
                                    .chunk = w->o.chunk,
                                    .pre_a = w->o.pre[0],
                                    .pre_b = w->o.pre[1],
                                    .pre_c = w->o.pre[2],
                                    .dec_a = w->o.dec[0],
                                    .dec_b = w->o.dec[1],
                                    .dec_c = w->o.dec[2],
                                    .run = run,
                                    .n_run = n_run}};
    int rc = wire_encode_add(e, p, n, &cap, &f);
    free(run);
    return rc;
}

int sched_open(struct err *e, struct worker_link *w)
{
    uint8_t *p;
    size_t n;
    struct session_hub_opts o = {.self = {"worker", w->o.name, w->inc}, .security = w->o.security};
    int rc = encode_join(e, &p, &n, w); /* detects names that cannot be encoded */
    free(p);
    rc = rc ? rc : session_hub_new(e, &w->hub, &o);
    return rc ? rc : dial(e, w);
}

static void join(struct worker_link *w)
{
    struct err e;
    uint8_t *p;
    size_t n;
    int rc = encode_join(&e, &p, &n, w);
    rc = rc ? rc : session_send_bytes(&e, w->sched, p, n);
    free(p);
    if (rc) {
        session_close(w->sched, e.text);
        return;
    }
    w->join = session_sent(w->sched);
    w->n_join++;
    w->n_taken = w->n_counted = 0;
    w->drain_received = false;
    w->last_capacity = (struct wire_capacity){0};
    w->last_capacity_ns = 0;
}

/* The scheduler has processed the join. If it has not sent `drain` before that, this worker does not drain. */
static void joined(struct worker_link *w)
{
    w->state = WORKER_JOINED;
    w->reason = (struct err){0};
    if (!w->drain_received && !w->drain)
        set_draining(w, false);
}

static void down(struct worker_link *w)
{
    if (w->state == WORKER_JOINED) {
        w->lost_ns = time_now_ns();
        w->state = WORKER_JOINING;
    }
    w->join = 0;
    report_down(w);
}

/* Ends the connection: the scheduler refuses this worker until its own set of workers changes, so retry slowly. */
static void refused(struct worker_link *w, struct wire_str text)
{
    down(w);
    w->state = WORKER_REFUSED;
    err_set(&w->reason, ERR_NO, "%.*s", (int)(text.n < 400 ? text.n : 400), text.n ? text.p : "");
    session_free(w->sched);
    w->sched = NULL;
    w->dial_ns = time_now_ns() + NS_S;
}

/* ---- capacity ---- */

/* Sends capacity if it changed, and every second. If the window is full, it retries after a second. */
static void send_capacity(struct worker_link *w, uint64_t now_ns)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_CAPACITY, .capacity = w->now};
    struct wire_capacity *c = &f.capacity, *s = &w->last_capacity;
    c->worker = wire_str_of(w->o.name);
    c->inc = w->inc;
    c->orders = w->n_counted;
    c->drain = w->drain;
    c->out_bytes = w->queued;
    c->out_bytes_max = w->o.out_bytes_max;
    c->steps = w->steps;
    c->n_steps = WIRE_STEPS_MAX;
    bool same = c->orders == s->orders && c->seqs == s->seqs && c->tokens == s->tokens && c->blocks == s->blocks &&
                c->drain == s->drain;
    if (same && w->last_capacity_ns && now_ns < w->last_capacity_ns + NS_S)
        return;
    w->last_capacity_ns = now_ns;
    if (session_send(&e, w->sched, &f))
        return;
    w->last_capacity = f.capacity;
    w->now.step_ns = w->now.batch = 0; /* each step is reported once */
}

/* ---- events and timers ---- */

static void frame(struct worker_link *w, const struct session_event *ev)
{
    struct err e;
    struct wire_frame f;
    wire_arena_reset(w->mem);
    if (session_frame(&e, &f, w->mem, ev))
        session_close(w->sched, e.text);
    else if (f.kind == WIRE_ORDER)
        item_frame(w, &f.order, ev);
    else if (f.kind == WIRE_CONTROL)
        control_frame(w, &f.control);
    else if (f.kind == WIRE_REFUSE && !f.refuse.job)
        refused(w, f.refuse.text);
}

void sched_link_event(struct worker_link *w, const struct session_event *ev)
{
    switch (ev->type) {
    case SESSION_UP:
        join(w);
        break;
    case SESSION_FRAME:
        frame(w, ev);
        break;
    case SESSION_ACKED:
        if (w->state != WORKER_JOINED && w->join && session_acked(w->sched) >= w->join)
            joined(w);
        report_acked(w, session_acked(w->sched));
        break;
    case SESSION_DOWN:
        down(w);
        break;
    case SESSION_REFUSED: /* the session dials again by itself */
        w->state = WORKER_REFUSED;
        w->reason = ev->err;
        break;
    }
}

void sched_link_pump(struct worker_link *w, uint64_t now_ns)
{
    struct err e;
    if (!w->sched && now_ns >= w->dial_ns && dial(&e, w))
        w->dial_ns = now_ns + NS_S;
    if (!w->join)
        return;
    report_pump(w);
    send_capacity(w, now_ns);
}

uint64_t sched_link_next_ns(const struct worker_link *w)
{
    uint64_t next = time_now_ns() + NS_S;
    if (w->join)
        return w->last_capacity_ns + NS_S;
    return !w->sched && w->dial_ns < next ? w->dial_ns : next;
}
