/* A worker: start, work items, drain. */
#include "phase/serve.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proc/notify.h"
#include "proc/proc.h"

#define WAIT_IDLE_MS 200 /* interval of checks for signals and timers */
#define WAIT_SOON_MS 5   /* the same, if a request waits for slots */
#define CAPACITY_NS (500 * NS_MS)
#define DRAIN_NOTICE_NS (2000 * NS_MS) /* limit for the scheduler to confirm a drain */
#define CONFIRM_NS (3000 * NS_MS)      /* limit for the scheduler to acknowledge the last reports */
#define NO_SCHED_NS (300 * NS_MS)      /* the same, while no scheduler is connected */
#define LAST_NS (5000 * NS_MS)         /* limit, after the deadline of the drain, for gateways to acknowledge */

void serve_log(const struct serve *v, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (!v->r.s.o->log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    v->r.s.o->log(v->r.s.o->log_arg, text);
}

/* ---- opening ---- */

static void set_names(struct serve *v)
{
    const struct phase_opts *o = v->r.s.o;
    const uint8_t *fp = v->r.s.m->fingerprint, *vocab = text_fingerprint(v->r.s.text);
    if (o->name)
        snprintf(v->name, sizeof v->name, "%s", o->name);
    else
        snprintf(v->name, sizeof v->name, "%s-%d@%.32s", o->prog, (int)getpid(), proc_host());
    snprintf(v->store_name, sizeof v->store_name, "%s", o->store ? o->store : proc_host());
    snprintf(v->kv_identity, sizeof v->kv_identity,
             "model %02x%02x%02x%02x%02x%02x, vocabulary %02x%02x%02x%02x, %s, %s, %s", fp[0], fp[1], fp[2], fp[3],
             fp[4], fp[5], vocab[0], vocab[1], vocab[2], vocab[3], kern_kv_name(v->r.s.kv), v->r.s.kind.arith,
             v->r.s.kind.layout);
}

static int join(struct err *e, struct serve *v)
{
    const struct phase_opts *o = v->r.s.o;
    struct worker_link_opts w = {.sched = o->sched,
                                 .security = o->security,
                                 .name = v->name,
                                 .role = v->role,
                                 .store = v->store_name,
                                 .compat = v->kv_identity,
                                 .seqs = (uint32_t)o->seqs,
                                 .blocks = (uint64_t)kv_pool_slots(v->r.s.pool),
                                 .max_len = (uint32_t)v->r.s.context,
                                 .chunk = (uint32_t)o->batched_tokens,
                                 .out_bytes_max = proc_memory_part(32, WORKER_GATEWAY_BYTES_MAX, WORKER_OUT_BYTES_MAX)};
    set_names(v);
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
        /* The link counts the assignment until the next report of capacity, so report even an equal one. */
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

static uint64_t saturating_sub(uint64_t a, uint64_t b)
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
        prompts += saturating_sub(n_id, (uint64_t)q->n_kv);
        blocks += saturating_sub((n_id + KV_BLOCK) / KV_BLOCK, (uint64_t)q->kv.n);
    }
    struct wire_capacity c = v->capacity;
    c.seqs = (uint32_t)saturating_sub(v->r.s.o->seqs, (uint64_t)v->r.n);
    c.tokens = (uint32_t)saturating_sub(2 * v->r.s.o->batched_tokens, prompts);
    c.blocks = saturating_sub(hold_available(v) + (uint64_t)kv_pool_idle(v->r.s.pool), blocks);
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

/* Whether no work item can be in flight from the scheduler. */
static bool no_work_expected(const struct serve *v, uint64_t now)
{
    struct err why;
    return v->sched_drains || worker_link_state(v->link, &why) != WORKER_JOINED || now >= v->term_ns + DRAIN_NOTICE_NS;
}

/* Whether gateways and the scheduler have acknowledged everything, or their time is over. */
static bool all_confirmed(struct serve *v, uint64_t now)
{
    struct err why;
    uint64_t wait = worker_link_state(v->link, &why) == WORKER_JOINED ? CONFIRM_NS : NO_SCHED_NS;
    if (v->r.n || worker_link_queued(v->link)) {
        v->done_ns = 0;
        return false;
    }
    v->done_ns = v->done_ns ? v->done_ns : now;
    return worker_link_idle(v->link) || now >= v->done_ns + wait;
}

/* *over: all work is done, reported and acknowledged. */
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
        *over = all_confirmed(v, now) && no_work_expected(v, now);
    return rc;
}

/* ---- the loop ---- */

/* Logs once if the scheduler refuses this worker, with the reason. */
static void log_refused(struct serve *v)
{
    struct err why;
    bool refused = worker_link_state(v->link, &why) == WORKER_REFUSED;
    if (refused && !v->refused)
        serve_log(v, "the scheduler refuses this worker: %s; the worker retries every second", why.text);
    v->refused = refused;
}

/* Blocks until the scheduler or the store sends something, or a timer expires. */
static void wait_for_events(const struct serve *v)
{
    struct pollfd p[2] = {{worker_link_fd(v->link), POLLIN, 0}, {store_client_fd(v->store), POLLIN, 0}};
    bool soon = false, pending = false;
    for (struct request *q = v->r.head; q; q = q->next) {
        bool waits = q->state == REQUEST_WAITS && assignment_of(q)->pending;
        pending |= waits;
        soon |= !waits;
    }
    int ms = soon || v->drain_ns ? WAIT_SOON_MS : WAIT_IDLE_MS;
    poll(p, 1 + (pending && !v->store_down), ms);
}

static int take(struct err *e, struct runner *r, bool idle, bool *over)
{
    struct serve *v = serve_of(r);
    proc_alive();
    proc_trim();
    int rc = drain(e, v, over);
    if (rc || *over)
        return rc;
    report_capacity(v);
    if (idle) {
        log_refused(v);
        wait_for_events(v);
    }
    rc = take_events(e, v);
    rc = rc ? rc : hold_poll(e, v);
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
                                    .transfer_out = out_transfer,
                                    .flush = out_flush};

static int run(struct err *e, struct serve *v)
{
    struct err manager = {0};
    report_capacity(v);
    v->r.s.load_ns = 0; /* requests arrive after the model is loaded, so none waits for the load */
    int rc = proc_ready(e, &manager, v->r.s.o->ready_fd);
    if (manager.code)
        serve_log(v, "%s", manager.text);
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
    proc_wake_soon(true); /* all threads but the compute threads */
    int rc = stage_open(e, &v->r.s, o);
    rc = rc ? rc : hold_open(e, v);
    if (!rc && v->store) {
        rc = join(e, v);
        rc = rc ? rc : run(e, v);
    }
    if (!rc)
        stage_log_profile(&v->r.s);
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
