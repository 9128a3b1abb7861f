/*
 * For the tests of workers as services (serve_fixture.h): a scheduler and gateway in the program of the test, which
 * replaces lib/link/worker.c, assigns jobs to workers, and logs their answers.
 */
#ifndef TEST_SERVE_SCHEDULER_H
#define TEST_SERVE_SCHEDULER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "link/store_client.h"
#include "link/worker.h"
#include "phase/phase.h"
#include "proc/proc.h"
#include "text/text.h"
#include "unit/text_model.h"

#define JOBS_MAX 64
#define TOKENS_MAX 2048
#define WORKERS_MAX 4

/* Reports a failure with its line, and ends the child process of the case. */
#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        if (!(x)) {                                                                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                                    \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* ---- answers ---- */

struct token {
    uint32_t id;
    float lp;
    uint32_t n_top;
    struct wire_top top[8];
};

struct answer_log {
    uint32_t n, n_prompt_lp;
    struct token *token; /* [TOKENS_MAX] */
    char *text;
    size_t n_text;
    float *prompt_lp;
    bool ended, failed, cancelled;
    enum wire_reason reason;
    char error[256];
    uint32_t cached, prompt_tokens, completion_tokens;
    char spans[256];
};

static inline void add_text(struct answer_log *a, struct wire_str s)
{
    a->text = realloc(a->text, a->n_text + s.n + 1);
    MUST(a->text);
    if (s.n)
        memcpy(a->text + a->n_text, s.p, s.n);
    a->n_text += s.n;
    a->text[a->n_text] = 0;
}

static inline void log_out(struct answer_log *a, const struct wire_out *o)
{
    if (o->prompt) {
        if (a->prompt_lp) /* a later attempt sends it again */
            return;
        a->prompt_lp = calloc(o->n_lp + 1, sizeof *a->prompt_lp);
        a->n_prompt_lp = o->n_lp;
        for (uint32_t i = 0; i < o->n_lp; i++)
            a->prompt_lp[i] = o->lp[i].logprob;
        add_text(a, o->text);
        return;
    }
    if (!a->token)
        a->token = calloc(TOKENS_MAX, sizeof *a->token);
    struct token t = {.id = o->ids[0]};
    MUST(o->n_id == 1 && a->n < TOKENS_MAX);
    if (o->n_lp) {
        t.lp = o->lp[0].logprob;
        t.n_top = o->lp[0].n_top;
        MUST(t.n_top <= 8);
        if (t.n_top)
            memcpy(t.top, o->lp[0].top, t.n_top * sizeof *t.top);
    }
    MUST(o->at <= a->n); /* a gap */
    if (o->at < a->n) {  /* a token that was received already must be equal */
        MUST(!memcmp(&a->token[o->at], &t, sizeof t));
        return;
    }
    a->token[a->n++] = t;
    add_text(a, o->text);
}

static inline void log_end(struct answer_log *a, const struct wire_end *w)
{
    a->ended = true;
    a->reason = w->reason;
    a->cached = w->cached_tokens;
    a->prompt_tokens = w->prompt_tokens;
    a->completion_tokens = w->completion_tokens;
    for (uint32_t i = 0; i < w->n_span; i++) {
        size_t n = strlen(a->spans);
        snprintf(a->spans + n, sizeof a->spans - n, "%.*s ", (int)w->span[i].stage.n, w->span[i].stage.p);
    }
}

static inline void same(const struct answer_log *a, const struct answer_log *b)
{
    MUST(a->ended && b->ended);
    MUST(a->n == b->n);
    MUST(a->n_text == b->n_text && (!a->n_text || !memcmp(a->text, b->text, a->n_text)));
    MUST(!a->n || !memcmp(a->token, b->token, a->n * sizeof *a->token));
    MUST(a->n_prompt_lp == b->n_prompt_lp);
    MUST(!a->n_prompt_lp || !memcmp(a->prompt_lp, b->prompt_lp, a->n_prompt_lp * sizeof *a->prompt_lp));
    MUST(a->reason == b->reason && a->completion_tokens == b->completion_tokens &&
         a->prompt_tokens == b->prompt_tokens);
}

/* ---- jobs ---- */

enum job_state { JOB_WAITS, JOB_AT_PREFILL, JOB_AT_DECODE, JOB_DONE };

struct job {
    struct wire_req r;
    uint8_t *body;
    size_t n_body;
    struct answer_log log;
    enum job_state at;
    bool handed, closing; /* closing: a cancel or preempt was sent */
    uint8_t handle[WIRE_HANDLE_BYTES_MAX];
    size_t n_handle;
    struct worker_link *w;
    uint64_t order;
    uint32_t attempts;
};

static struct job jobs[JOBS_MAX];
static int n_job;
static struct worker_link *workers[WORKERS_MAX];
static int n_worker;
static uint64_t next_order;
static bool colocate; /* only work items of both phases */
static uint32_t chunk;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* ---- replacement of lib/link/worker.c ---- */

struct queued_event {
    struct wire_order o; /* first */
    struct worker_event ev;
    uint32_t ids[TOKENS_MAX];
    uint8_t handle[WIRE_HANDLE_BYTES_MAX];
    struct queued_event *next;
};

struct worker_link {
    char role[16];
    struct queued_event *first, **last;
    int fd;
    bool drains, gone;
    struct wire_capacity capacity;
};

int worker_link_open(struct err *e, struct worker_link **out, const struct worker_link_opts *o)
{
    struct worker_link *w = calloc(1, sizeof *w);
    (void)e;
    MUST(w && strlen(o->compat) > 20 && o->blocks && o->max_len && o->chunk);
    snprintf(w->role, sizeof w->role, "%s", o->role);
    w->last = &w->first;
    w->fd = eventfd(0, EFD_NONBLOCK);
    pthread_mutex_lock(&lock);
    workers[n_worker++] = w;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    *out = w;
    return 0;
}

void worker_link_close(struct worker_link *w)
{
    if (w)
        w->gone = true;
}

enum worker_link_state worker_link_state(struct worker_link *w, struct err *why)
{
    (void)w;
    (void)why;
    return WORKER_JOINED;
}

void worker_link_capacity(struct worker_link *w, const struct wire_capacity *c)
{
    pthread_mutex_lock(&lock);
    w->capacity = *c;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static inline struct queued_event *put_event(struct worker_link *w, enum worker_event_type type, uint64_t order)
{
    struct queued_event *i = calloc(1, sizeof *i);
    MUST(i);
    i->ev.type = type;
    i->ev.order = order;
    *w->last = i;
    w->last = &i->next;
    eventfd_write(w->fd, 1);
    return i;
}

void worker_link_drain(struct worker_link *w, bool on)
{
    pthread_mutex_lock(&lock);
    w->drains = on;
    put_event(w, WORKER_EV_DRAIN, 0);
    pthread_mutex_unlock(&lock);
}

bool worker_link_take(struct worker_link *w, struct worker_event *ev)
{
    eventfd_t v;
    pthread_mutex_lock(&lock);
    struct queued_event *i = w->first;
    if (i) {
        w->first = i->next;
        if (!w->first)
            w->last = &w->first;
    } else {
        eventfd_read(w->fd, &v);
    }
    pthread_mutex_unlock(&lock);
    if (!i)
        return false;
    *ev = i->ev;
    if (!ev->assigned)
        free(i);
    return true;
}

void worker_order_release(const struct wire_order *o)
{
    free((void *)(uintptr_t)o); /* the first member of its struct queued_event */
}

int worker_link_fd(const struct worker_link *w)
{
    return w->fd;
}

bool worker_link_idle(struct worker_link *w)
{
    (void)w;
    return true;
}

uint64_t worker_link_queued(struct worker_link *w)
{
    (void)w;
    return 0;
}

static inline struct job *job_of(uint64_t order)
{
    for (int i = 0; i < n_job; i++)
        if (jobs[i].order == order)
            return &jobs[i];
    MUST(!"a frame for a work item that is not open");
    return NULL;
}

int worker_link_send(struct err *e, struct worker_link *w, const struct wire_order *order, const struct wire_frame *f,
                     uint32_t n_out)
{
    struct wire_frame copy;
    uint8_t *p;
    size_t n;
    MUST(!wire_encode(e, &p, &n, f)); /* as it would be sent */
    struct wire_arena *mem = wire_arena_new();
    MUST(!wire_decode(e, &copy, mem, p, n));
    pthread_mutex_lock(&lock);
    struct job *j = job_of(order->order);
    MUST(j->w == w);
    if (copy.kind == WIRE_OUT) {
        MUST(copy.out.seq == j->r.seq && copy.out.index == j->r.index);
        log_out(&j->log, &copy.out);
        MUST(copy.out.prompt || n_out == copy.out.at + 1);
    } else {
        MUST(copy.kind == WIRE_END && !j->log.ended);
        log_end(&j->log, &copy.end);
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    wire_arena_free(mem);
    free(p);
    return 0;
}

static inline bool is(struct wire_str s, const char *what)
{
    return s.n == strlen(what) && !memcmp(s.p, what, s.n);
}

void worker_link_hold(struct worker_link *w, bool hold)
{
    (void)w, (void)hold;
}

int worker_link_report(struct err *e, struct worker_link *w, const struct wire_order *order,
                       const struct wire_report *r)
{
    (void)e;
    pthread_mutex_lock(&lock);
    struct job *j = job_of(order->order);
    MUST(j->w == w && r->n_out <= j->log.n);
    if (is(r->what, "progress")) {
        MUST(r->n_done <= j->r.n_id + j->log.n);
    } else if (is(r->what, "tokens")) { /* the first of the attempt */
        MUST(r->n_out >= 1 && r->n_out_id == 1 && (int64_t)*r->out == (int64_t)j->log.token[r->n_out - 1].id);
    } else if (is(r->what, "prefilled")) {
        MUST(j->at == JOB_AT_PREFILL && r->n_out >= 1 && r->n_out_id == r->n_out);
        j->at = JOB_WAITS;
        j->n_handle = r->handle.n;
        j->handed = true;
        if (r->handle.n)
            memcpy(j->handle, r->handle.p, r->handle.n);
    } else if (is(r->what, "ended")) {
        MUST(j->log.ended && r->reason == j->log.reason);
        j->at = JOB_DONE;
    } else if (is(r->what, "failed")) {
        snprintf(j->log.error, sizeof j->log.error, "%.*s", (int)r->text.n, r->text.p);
        j->log.failed = true;
        j->at = JOB_DONE;
    } else if (is(r->what, "preempted")) {
        MUST(r->n_out_id == r->n_out && r->n_out == j->log.n);
        j->at = JOB_WAITS;
        j->handed = false;
        j->n_handle = 0;
    } else {
        MUST(is(r->what, "cancelled"));
        j->log.cancelled = true;
        j->at = JOB_DONE;
    }
    if (!is(r->what, "progress") && !is(r->what, "tokens")) {
        j->order = 0;
        j->closing = false;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- the scheduler ---- */

static inline struct worker_link *worker_for(const char *role, int turn)
{
    for (int k = 0; k < n_worker; k++) {
        struct worker_link *w = workers[(k + turn) % n_worker];
        if (!strcmp(w->role, role) && !w->drains && !w->gone)
            return w;
    }
    return NULL;
}

/* Counts as the worker does: one block more than the known ids. */
static inline bool fits(struct worker_link *w, const struct job *j)
{
    uint64_t need = (j->r.n_id + j->log.n) / 32 + 2;
    if (!w->capacity.seqs || (w->capacity.blocks < need && w->capacity.seqs < 16 && j->r.n_id < 800))
        return false;
    w->capacity.seqs--;
    w->capacity.blocks -= need < w->capacity.blocks ? need : w->capacity.blocks;
    return true;
}

static inline void assign(struct job *j)
{
    bool split = !colocate && !j->handed && worker_for("prefill", 0);
    struct worker_link *w = worker_for(split ? "prefill" : "decode", (int)j->attempts);
    if (!w)
        w = worker_for("prefill", 0);
    if (!w || !fits(w, j))
        return;
    const char *phase = split ? "prefill" : j->handed ? "decode" : "whole";
    j->order = ++next_order;
    j->attempts++;
    j->w = w;
    j->at = split ? JOB_AT_PREFILL : JOB_AT_DECODE;
    struct queued_event *i = put_event(w, WORKER_EV_ASSIGNED, j->order);
    i->o = (struct wire_order){.order = j->order,
                               .gw = {"gw", 2},
                               .job = j->r.seq,
                               .attempt = j->attempts,
                               .phase = {phase, strlen(phase)},
                               .n_prompt = j->r.n_id,
                               .max_tokens = j->r.s.max_tokens,
                               .chunk = chunk,
                               .priority = j->r.priority,
                               .n_out = j->log.n,
                               .out = i->ids,
                               .n_out_id = j->log.n,
                               .body = {j->body, j->n_body}};
    for (uint32_t k = 0; k < j->log.n; k++)
        i->ids[k] = j->log.token[k].id;
    if (j->handed && j->n_handle) {
        memcpy(i->handle, j->handle, j->n_handle);
        i->o.handle = (struct wire_bytes){i->handle, j->n_handle};
    }
    i->ev.assigned = &i->o;
}

static inline void assign_all(void)
{
    for (int i = 0; i < n_job; i++)
        if (jobs[i].at == JOB_WAITS)
            assign(&jobs[i]);
}

static inline bool all_done(void)
{
    bool all = true;
    for (int i = 0; i < n_job; i++)
        all &= jobs[i].at == JOB_DONE;
    return all;
}

static inline void wait_some(int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += (long)ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&changed, &lock, &t);
}

/* Runs all jobs to their end. chaos: percentage of iterations that preempt a job, so that another worker may continue
 * it.
 */
static inline void run_jobs(int chaos, unsigned seed)
{
    uint64_t end = time_now_ns() + 400000000000u;
    pthread_mutex_lock(&lock);
    while (!all_done()) {
        MUST(time_now_ns() < end);
        assign_all();
        wait_some(20);
        struct job *j = &jobs[rand_r(&seed) % (unsigned)n_job];
        if ((int)(rand_r(&seed) % 100) < chaos && j->order && !j->closing && !j->log.ended) {
            put_event(j->w, WORKER_EV_PREEMPT, j->order);
            j->closing = true;
        }
    }
    pthread_mutex_unlock(&lock);
}

#endif
