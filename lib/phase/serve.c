/* A worker's life: it opens what it needs, does orders, and drains. */
#include "phase/serve.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proc/notify.h"
#include "proc/proc.h"

#define WAIT_IDLE_MS 200 /* looks at signals and at what is due */
#define WAIT_SOON_MS 5   /* something waits for the store */
#define CAPACITY_NS (500 * NS_MS)
#define TOLD_NS (2000 * NS_MS)  /* for the scheduler to hear of a drain */
#define HEARD_NS (3000 * NS_MS) /* for the scheduler to confirm reports, when nothing else is to be done */
#define AWAY_NS (300 * NS_MS)   /* the same, where there is none */
#define LAST_NS (5000 * NS_MS)  /* after the drain's deadline, for gateways that do not confirm */

void serve_say(const struct serve *v, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!v->r.s.o->say)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    v->r.s.o->say(v->r.s.o->say_arg, text);
}

/* ---- opening ---- */

static void name_it(struct serve *v)
{
    const struct phase_opts *o = v->r.s.o;
    const uint8_t *fp = v->r.s.m->fingerprint, *vocab = text_fingerprint(v->r.s.text);
    if (o->name)
        snprintf(v->name, sizeof v->name, "%s", o->name);
    else
        snprintf(v->name, sizeof v->name, "%s-%d@%.32s", o->prog, (int)getpid(), proc_host());
    snprintf(v->store_name, sizeof v->store_name, "%s", o->store ? o->store : proc_host());
    snprintf(v->compat, sizeof v->compat, "model %02x%02x%02x%02x%02x%02x, vocabulary %02x%02x%02x%02x, %s, %s, %s",
             fp[0], fp[1], fp[2], fp[3], fp[4], fp[5], vocab[0], vocab[1], vocab[2], vocab[3], kern_kv_name(v->r.s.kv),
             v->r.s.kind.arith, v->r.s.kind.layout);
}

static int join(struct err *e, struct serve *v)
{
    const struct phase_opts *o = v->r.s.o;
    struct worker_link_opts w = {.sched = o->sched,
                                 .name = v->name,
                                 .role = v->role,
                                 .store = v->store_name,
                                 .compat = v->compat,
                                 .seqs = (uint32_t)o->seqs,
                                 .blocks = (uint64_t)kv_pool_slots(v->r.s.pool),
                                 .max_len = (uint32_t)v->r.s.context,
                                 .chunk = (uint32_t)o->batched_tokens};
    name_it(v);
    struct engine_cost cost;
    bool known = engine_cost(v->r.s.g, &cost);
    for (int i = 0; i < 3 && known; i++) {
        w.pre[i] = (float)cost.prefill[i];
        w.dec[i] = (float)cost.decode[i];
    }
    return worker_link_open(e, &v->link, &w);
}

/* ---- events of the scheduler ---- */

static int event(struct err *e, struct serve *v, const struct worker_event *ev)
{
    if (ev->type == WORKER_EV_ASSIGNED) {
        /* Until the capacity is reported the link counts the assignment, even if it is what it was before. */
        v->capacity_ns = 0;
        return work_take(e, v, ev->assigned);
    }
    if (ev->type == WORKER_EV_DRAIN || ev->type == WORKER_EV_RESUME) {
        v->sched_drains = ev->type == WORKER_EV_DRAIN;
        return 0;
    }
    struct assignment *a = work_find(v, ev->order);
    return a ? work_stop(e, v, a, ev->type == WORKER_EV_CANCEL ? "cancelled" : "preempted") : 0;
}

static int take_events(struct err *e, struct serve *v)
{
    struct worker_event ev;
    int rc = 0;
    while (!rc && worker_link_take(v->link, &ev))
        rc = event(e, v, &ev);
    return rc;
}

/* ---- capacity ---- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static void report_capacity(struct serve *v)
{
    uint64_t prompts = 0, blocks = 0, now = time_now_ns();
    for (const struct request *q = v->r.head; q; q = q->next) {
        if (q->state == REQUEST_CLOSED || request_n_answer(q))
            continue;
        uint64_t n_id = q->r->n_id;
        prompts += less(n_id, (uint64_t)q->n_kv);
        blocks += less((n_id + KV_BLOCK) / KV_BLOCK, (uint64_t)q->kv.n);
    }
    struct wire_capacity c = v->capacity;
    c.seqs = (uint32_t)less(v->r.s.o->seqs, (uint64_t)v->r.n);
    c.tokens = (uint32_t)less(2 * v->r.s.o->batched_tokens, prompts);
    c.blocks = less(hold_room(v) + (uint64_t)kv_pool_idle(v->r.s.pool), blocks);
    c.steps = v->steps;
    uint64_t near = v->capacity.blocks / 16 + 1;
    bool same = c.seqs == v->capacity.seqs && c.tokens == v->capacity.tokens && c.blocks <= v->capacity.blocks + near &&
                v->capacity.blocks <= c.blocks + near;
    if (same && v->capacity_ns && now - v->capacity_ns < CAPACITY_NS)
        return;
    v->capacity = c;
    v->capacity_ns = now;
    worker_link_capacity(v->link, &c);
}

/* ---- draining ---- */

/* Nothing is on its way from the scheduler any more, as far as can be known. */
static bool nothing_comes(const struct serve *v, uint64_t now)
{
    struct err why;
    return v->sched_drains || worker_link_state(v->link, &why) != WORKER_JOINED || now >= v->term_ns + TOLD_NS;
}

/* Gateways have all, and the scheduler has been told, or has gone before: then it is no loss to it. */
static bool all_said(struct serve *v, uint64_t now)
{
    struct err why;
    uint64_t wait = worker_link_state(v->link, &why) == WORKER_JOINED ? HEARD_NS : AWAY_NS;
    if (v->r.n || worker_link_queued(v->link)) {
        v->done_ns = 0;
        return false;
    }
    v->done_ns = v->done_ns ? v->done_ns : now;
    return worker_link_idle(v->link) || now >= v->done_ns + wait;
}

/* *over: all is done, reported and confirmed. */
static int drain(struct err *e, struct serve *v, bool *over)
{
    uint64_t now = time_now_ns();
    int rc = 0;
    if (!proc_term_count())
        return 0;
    if (!v->drain_ns) {
        struct err n;
        v->term_ns = now;
        v->drain_ns = now + v->r.s.o->drain_s * 1000 * NS_MS;
        worker_link_drain(v->link, true);
        proc_notify(&n, "STOPPING=1", -1);
    }
    for (struct request *q = v->r.head; q && !rc && now >= v->drain_ns; q = q->next)
        if (q->state != REQUEST_CLOSED)
            rc = work_stop(e, v, assignment_of(q), "preempted");
    runner_sweep(&v->r);
    if (now >= v->drain_ns + LAST_NS)
        *over = true;
    else
        *over = all_said(v, now) && nothing_comes(v, now);
    return rc;
}

/* ---- the loop ---- */

/* A scheduler that refuses this worker says why, and so does this worker: once. */
static void say_refused(struct serve *v)
{
    struct err why;
    bool refused = worker_link_state(v->link, &why) == WORKER_REFUSED;
    if (refused && !v->refused)
        serve_say(v, "the scheduler refuses this worker: %s; it is asked again every second", why.text);
    v->refused = refused;
}

/* Until something is told, the store says something, or something is due. */
static void wait_some(const struct serve *v)
{
    struct pollfd p[2] = {{worker_link_fd(v->link), POLLIN, 0}, {store_client_fd(v->store), POLLIN, 0}};
    bool soon = false, pending = false;
    for (struct request *q = v->r.head; q; q = q->next) {
        bool waits = q->state == REQUEST_WAITS && assignment_of(q)->pending;
        pending |= waits;
        soon |= !waits;
    }
    int ms = soon || v->drain_ns ? WAIT_SOON_MS : WAIT_IDLE_MS;
    poll(p, 1 + (pending && !v->away), ms);
}

static int take(struct err *e, struct runner *r, bool idle, bool *over)
{
    struct serve *v = serve_of(r);
    int rc = drain(e, v, over);
    if (rc || *over)
        return rc;
    report_capacity(v);
    if (idle) {
        say_refused(v);
        wait_some(v);
    }
    rc = take_events(e, v);
    rc = rc ? rc : hold_turn(e, v);
    return rc ? rc : slots_yield(e, v);
}

static const struct runner_io io = {.take = take,
                                    .release = work_release,
                                    .expect = slots_expect,
                                    .slots = slots_get,
                                    .valid = slots_valid,
                                    .computed = out_computed,
                                    .out = out_frame,
                                    .progress = out_progress,
                                    .end = out_end,
                                    .fail = out_fail,
                                    .hand_over = out_hand_over,
                                    .flush = out_flush};

static int run(struct err *e, struct serve *v)
{
    struct err manager = {0};
    report_capacity(v);
    v->r.s.load_ns = 0; /* no request waits for what was loaded before it came */
    int rc = proc_ready(e, &manager, v->r.s.o->ready_fd);
    if (manager.code)
        serve_say(v, "%s", manager.text);
    return rc ? rc : runner_run(e, &v->r);
}

int phase_serve(struct err *e, const struct phase_opts *o, const char *role)
{
    struct serve *v = calloc(1, sizeof *v);
    if (!v)
        return err_nomem(e, "a worker", sizeof *v);
    v->r.io = &io;
    v->role = role;
    kern_thread_init();
    proc_wake_soon(true); /* but those that compute */
    int rc = stage_open(e, &v->r.s, o);
    rc = rc ? rc : hold_open(e, v);
    if (!rc && v->store) {
        rc = join(e, v);
        rc = rc ? rc : run(e, v);
    }
    if (!rc)
        stage_say_profile(&v->r.s);
    worker_link_close(v->link);
    v->link = NULL;
    for (struct request *q = v->r.head; q; q = q->next)
        runner_close(q);
    runner_sweep(&v->r);
    stage_close(&v->r.s);
    hold_close(v);
    free(v);
    return rc;
}
