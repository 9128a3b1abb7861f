/*
 * Workers with a real kvstore. The test replaces lib/link/worker.c and plays scheduler and gateway. Answers must be
 * equal, bit by bit, to those of decode as a filter on the same frames (docs/arithmetic.md), or, with the fake engine,
 * to those of an undisturbed run. Each case runs in its own process, since signals are counted per process.
 */
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
            fprintf(stderr, "serve_test.c:%d: %s\n", __LINE__, #x);                                                    \
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

static void add_text(struct answer_log *a, struct wire_str s)
{
    a->text = realloc(a->text, a->n_text + s.n + 1);
    MUST(a->text);
    if (s.n)
        memcpy(a->text + a->n_text, s.p, s.n);
    a->n_text += s.n;
    a->text[a->n_text] = 0;
}

static void log_out(struct answer_log *a, const struct wire_out *o)
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

static void log_end(struct answer_log *a, const struct wire_end *w)
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

static void same(const struct answer_log *a, const struct answer_log *b)
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

static struct queued_event *put_event(struct worker_link *w, enum worker_event_type type, uint64_t order)
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

static struct job *job_of(uint64_t order)
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

static bool is(struct wire_str s, const char *what)
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
    if (!is(r->what, "progress")) {
        j->order = 0;
        j->closing = false;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* ---- the scheduler ---- */

static struct worker_link *worker_for(const char *role, int turn)
{
    for (int k = 0; k < n_worker; k++) {
        struct worker_link *w = workers[(k + turn) % n_worker];
        if (!strcmp(w->role, role) && !w->drains && !w->gone)
            return w;
    }
    return NULL;
}

/* Counts as the worker does: one block more than the known ids. */
static bool fits(struct worker_link *w, const struct job *j)
{
    uint64_t need = (j->r.n_id + j->log.n) / 32 + 2;
    if (!w->capacity.seqs || (w->capacity.blocks < need && w->capacity.seqs < 16 && j->r.n_id < 800))
        return false;
    w->capacity.seqs--;
    w->capacity.blocks -= need < w->capacity.blocks ? need : w->capacity.blocks;
    return true;
}

static void assign(struct job *j)
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

static void assign_all(void)
{
    for (int i = 0; i < n_job; i++)
        if (jobs[i].at == JOB_WAITS)
            assign(&jobs[i]);
}

static bool all_done(void)
{
    bool all = true;
    for (int i = 0; i < n_job; i++)
        all &= jobs[i].at == JOB_DONE;
    return all;
}

static void wait_some(int ms)
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
static void run_jobs(int chaos, unsigned seed)
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

/* ---- requests ---- */

static struct text *vocab;
static uint8_t *hello;
static size_t n_hello;

static const char long_prompt[] =
    "Once upon a time there was a small village near the sea, job_state the fishermen went out every morning before "
    "dawn. "
    "One day the youngest of them did not come back, and his brothers went to look for him. They sailed to the north "
    "and to the south, they asked the gulls and the seals, and on the third day they came to an island which none of "
    "them had ever seen before. There was a house on it, and smoke rose from its chimney, and";

static struct job *add_job(const char *prompt, uint32_t max_tokens)
{
    struct err e;
    struct job *j = &jobs[n_job];
    struct text_ids ids = {0};
    MUST(n_job < JOBS_MAX && !text_encode(&e, vocab, &ids, prompt, strlen(prompt), TEXT_BOS));
    j->r = (struct wire_req){.seq = (uint64_t)n_job, .id = {"r", 1}, .ids = ids.ids, .n_id = (uint32_t)ids.n};
    wire_sampling_default(&j->r.s);
    j->r.s.max_tokens = max_tokens;
    n_job++;
    return j;
}

static void seal(struct job *j)
{
    struct err e;
    size_t cap = 0;
    struct wire_frame f = {.kind = WIRE_TOK, .req = j->r}, h;
    struct wire_arena *mem = wire_arena_new();
    MUST(!wire_decode(&e, &h, mem, hello, n_hello));
    MUST(!wire_encode_add(&e, &j->body, &j->n_body, &cap, &h) && !wire_encode_add(&e, &j->body, &j->n_body, &cap, &f));
    wire_arena_free(mem);
}

/* Requests that cover the fields of a request. */
static void add_requests(void)
{
    static const struct wire_str stop[] = {{"K L", 3}};
    add_job("The capital of France is", 24)->r.s.logprobs = 3;
    struct job *j = add_job(long_prompt, 24);
    j->r.s.logprobs = 2;
    j->r.s.echo = true;
    j = add_job("The three laws of robotics are", 24);
    j->r.s.temperature = 0.9f;
    j->r.s.top_p = 0.95f;
    j->r.s.seed = 7;
    j->r.s.logprobs = 1;
    j = add_job("A gentle rain, a gentle rain, a gentle rain,", 40);
    j->r.s.temperature = 1.2f;
    j->r.s.top_k = 40;
    j->r.s.min_p = 0.02f;
    j->r.s.seed = UINT64_MAX;
    j->r.s.repetition_penalty = 1.3f;
    j->r.s.presence_penalty = 0.2f;
    j->r.s.frequency_penalty = 0.1f;
    j->r.s.logprobs = 0;
    j = add_job("A B C D E F", 24);
    j->r.s.stop = stop;
    j->r.s.n_stop = 1;
    j->r.s.min_tokens = 2;
    j->r.s.logprobs = 0;
    for (uint32_t i = 0; i < 2; i++) { /* two choices of one request, with a shared prompt */
        j = add_job(long_prompt, 48);
        j->r.index = i;
        j->r.s.temperature = 1;
        j->r.s.seed = 11;
        j->r.s.logprobs = 0;
    }
    j = add_job(long_prompt, 0); /* scores only */
    j->r.s.echo = true;
    j->r.s.logprobs = 0;
    add_job(long_prompt, 1)->r.s.logprobs = 0;
    add_job(long_prompt, 8)->r.s.prompt_logprobs = 4;
    j = add_job(long_prompt, 1); /* as harnesses score continuations */
    j->r.s.echo = true;
    j->r.s.logprobs = 1;
    static const uint32_t allowed[] = {28, 30, 260, 284, 418, 5}, bad[] = {260, 28, 284, 30}, lens[] = {1, 2, 1};
    j = add_job(long_prompt, 24);
    j->r.s.allowed = allowed;
    j->r.s.n_allowed = 6;
    j->r.s.bad_ids = bad;
    j->r.s.n_bad_id = 4;
    j->r.s.bad_lens = lens;
    j->r.s.n_bad = 3;
    j->r.s.temperature = 0.8f;
    j->r.s.seed = 5;
    j->r.s.logprobs = 1;
    j->r.s.special_text = j->r.s.keep_stop = true;
    j = add_job("A gentle rain, a gentle rain, a gentle rain,", 40);
    j->r.s.temperature = 1.2f;
    j->r.s.top_k = 40;
    j->r.s.typical_p = 0.8f;
    j->r.s.top_p = 0.9f;
    j->r.s.seed = 3;
    j->r.s.repetition_penalty = 1.3f;
    j->r.s.presence_penalty = 0.2f;
    j->r.s.penalty_last_n = 16;
    j->r.s.logprobs = 0;
    for (int i = 0; i < n_job; i++)
        seal(&jobs[i]);
}

/* ---- the reference: decode as a filter ---- */

struct filter {
    struct phase_opts o;
    pthread_t thread;
};

static struct phase_opts opts(const char *role)
{
    return (struct phase_opts){.prog = role,
                               .model = getenv("PHASEPIPE_TEST_MODEL"),
                               .kv_type = "auto",
                               .threads = 1,
                               .batched_tokens = 64,
                               .seqs = 16,
                               .kv_bytes = 256u << 20,
                               .ready_fd = -1,
                               .drain_s = 2,
                               .kv = "unix:kv.sock",
                               .sched = "-"};
}

static void *filter_main(void *arg)
{
    struct err e = {0};
    const struct phase_opts *o = arg;
    if (phase_decode(&e, o))
        fprintf(stderr, "%s\n", e.text);
    close(o->fd_out);
    return NULL;
}

static void *write_requests(void *arg)
{
    struct err e;
    struct wire_writer *w;
    int fd = *(int *)arg;
    struct wire_frame f, bye = {.kind = WIRE_BYE, .bye = {.from = {"test", 4}}};
    struct wire_arena *mem = wire_arena_new();
    MUST(!wire_decode(&e, &f, mem, hello, n_hello));
    MUST(!wire_writer_new(&e, &w, fd, "pipe") && !wire_write(&e, w, &f));
    for (int i = 0; i < n_job; i++) {
        f = (struct wire_frame){.kind = WIRE_TOK, .req = jobs[i].r};
        MUST(!wire_write(&e, w, &f));
    }
    MUST(!wire_write(&e, w, &bye));
    wire_writer_free(w);
    close(fd);
    return NULL;
}

static struct answer_log *reference(const char *engine)
{
    struct answer_log *log = calloc(JOBS_MAX, sizeof *log);
    struct phase_opts o = opts("decode");
    o.engine = engine;
    struct wire_reader *in;
    struct wire_frame *f;
    struct err e = {0};
    pthread_t run, write;
    int to[2], from[2];
    MUST(log && !pipe(to) && !pipe(from));
    o.fd_in = to[0];
    o.fd_out = from[1];
    MUST(!pthread_create(&run, NULL, filter_main, &o) && !pthread_create(&write, NULL, write_requests, &to[1]));
    MUST(!wire_reader_new(&e, &in, from[0], "pipe"));
    uint32_t n_at[JOBS_MAX] = {0};
    while (!wire_read(&e, in, &f) && f)
        if (f->kind == WIRE_OUT) {
            f->out.at = f->out.prompt ? 0 : n_at[f->out.seq]++;
            log_out(&log[f->out.seq], &f->out);
        } else if (f->kind == WIRE_END) {
            log_end(&log[f->end.seq], &f->end);
        }
    pthread_join(run, NULL);
    pthread_join(write, NULL);
    wire_reader_free(in);
    return log;
}

/* ---- the services ---- */

static pid_t store_pid;

static void start_store(const char *bytes, bool fake)
{
    char fp[65];
    memset(fp, 0, sizeof fp);
    for (int i = 0; i < 32; i++)
        memcpy(fp + 2 * i, "fa", 2);
    int ready[2];
    char line[8];
    MUST(!pipe(ready));
    store_pid = fork();
    if (!store_pid) {
        const char *m = getenv("PHASEPIPE_TEST_MODEL");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        MUST(dup2(ready[1], 9) == 9);
        if (fake)
            execlp("kvstore", "kvstore", "--listen", "unix:kv.sock", "--kv-cache-memory-bytes", bytes, "--ready-fd",
                   "9", "--model-fingerprint", fp, "--layers", "1", "--kv-heads", "1", "--head-dim", "8",
                   "--arithmetic", "fake1", "--lease-ms", "1000", "--handed-ms", "2000", (char *)NULL);
        else
            execlp("kvstore", "kvstore", "--listen", "unix:kv.sock", "--kv-cache-memory-bytes", bytes, "--ready-fd",
                   "9", m ? "-m" : "-v", m, (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    MUST(read(ready[0], line, sizeof line) == 6);
    close(ready[0]);
}

static void log_line(void *arg, const char *text)
{
    if (getenv("SERVE_TEST_VERBOSE"))
        fprintf(stderr, "%s: %s\n", (const char *)arg, text);
}

struct service {
    struct phase_opts o;
    pthread_t thread;
    int rc;
    struct err e;
};

static void *service_main(void *arg)
{
    struct service *s = arg;
    s->rc = phase_serve(&s->e, &s->o, s->o.prog);
    if (s->rc)
        fprintf(stderr, "%s: %s\n", s->o.prog, s->e.text);
    return NULL;
}

static void start(struct service *s, const char *role, const char *engine)
{
    s->o = opts(role);
    s->o.engine = engine;
    s->o.log = log_line;
    s->o.log_arg = (void *)(uintptr_t)role;
    int before = n_worker;
    MUST(!pthread_create(&s->thread, NULL, service_main, s));
    pthread_mutex_lock(&lock);
    for (int i = 0; n_worker == before && i < 1000; i++)
        wait_some(50);
    MUST(n_worker > before);
    pthread_mutex_unlock(&lock);
}

static void stop(struct service *s, int n)
{
    MUST(!kill(getpid(), SIGTERM));
    for (int i = 0; i < n; i++) {
        pthread_join(s[i].thread, NULL);
        MUST(!s[i].rc);
    }
}

static struct wire_kv_stat store_stat(void)
{
    struct store_client *c;
    struct wire_kv_stat st;
    struct err e;
    struct store_client_opts o = {.url = "unix:kv.sock", .name = "test"};
    MUST(!store_client_open(&e, &c, &o) && !store_client_stat(&e, c, &st));
    store_client_close(c);
    return st;
}

static void begin(void)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_HELLO};
    struct gguf *g = default_model();
    MUST(!text_open(&e, &vocab, g) && !proc_signals(&e));
    f.hello = (struct wire_hello){.version = WIRE_VERSION,
                                  .from = {"test", 4},
                                  .has_vocab = true,
                                  .vocab_fp = {text_fingerprint(vocab), 32},
                                  .vocab_n = text_n_token(vocab)};
    MUST(!wire_encode(&e, &hello, &n_hello, &f));
    gguf_free(g);
}

struct case_run { /* in its own process and directory */
    pid_t pid;
    char dir[32];
};

static void case_start(struct case_run *c, void (*fn)(void))
{
    snprintf(c->dir, sizeof c->dir, "/tmp/serve_test.XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    fflush(NULL);
    c->pid = fork();
    if (!c->pid) {
        alarm(600);
        MUST(!chdir(c->dir));
        begin();
        fn();
        kill(store_pid, SIGKILL);
        _exit(0);
    }
}

static void case_end(const struct case_run *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", c->dir);
    (void)!system(cmd);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- cases ---- */

static void check_all(const struct answer_log *want)
{
    for (int i = 0; i < n_job; i++) {
        if (jobs[i].log.failed)
            fprintf(stderr, "job %d: %s\n", i, jobs[i].log.error);
        same(&jobs[i].log, &want[i]);
    }
}

static void reset_jobs(void)
{
    for (int i = 0; i < n_job; i++) {
        jobs[i].log = (struct answer_log){0};
        jobs[i].at = JOB_WAITS;
        jobs[i].handed = false;
        jobs[i].attempts = 0;
        jobs[i].n_handle = 0;
    }
}

/* After all jobs nothing is leased; idle workers release their reserved slots. */
static void check_store(void)
{
    struct wire_kv_stat st = store_stat();
    MUST(st.free + st.cached + st.leased + st.quarantined + st.credited == st.total);
    /* A call without a response may have begun a transfer, which ends after --handed-ms. */
    for (int i = 0; i < 60 && (st.leased || st.quarantined || st.seqs); i++, st = store_stat())
        usleep(50000);
    if (st.leased || st.quarantined || st.seqs)
        fprintf(stderr, "leased %d, quarantined %d, sequences %d\n", (int)st.leased, (int)st.quarantined, (int)st.seqs);
    MUST(!st.leased && !st.quarantined && !st.seqs);
    for (int i = 0; i < 100 && st.credited; i++, st = store_stat())
        usleep(50000);
    MUST(!st.credited);
}

static void split_and_cached(void)
{
    struct service s[3] = {0};
    add_requests();
    struct answer_log *want = reference(NULL);
    start_store("64M", false);
    start(&s[0], "prefill", NULL);
    start(&s[1], "decode", NULL);
    run_jobs(0, 1);
    check_all(want);
    MUST(!strcmp(jobs[0].log.spans, "prefill hand-over decode "));
    MUST(!strcmp(jobs[8].log.spans, "prefill "));
    check_store();
    reset_jobs(); /* with the blocks that are cached now */
    run_jobs(0, 1);
    check_all(want);
    MUST(jobs[5].log.cached == (jobs[5].r.n_id - 1) / 32 * 32 && jobs[5].log.cached >= 64);
    MUST(jobs[1].log.cached == 0); /* prompt log-probabilities need the whole computation */
    check_store();
    reset_jobs(); /* with migration between two decode workers */
    start(&s[2], "decode", NULL);
    run_jobs(10, 2);
    check_all(want);
    check_store();
    stop(s, 3);
}

static void whole(void)
{
    struct service s[1] = {0};
    add_requests();
    struct answer_log *want = reference(NULL);
    start_store("64M", false);
    start(&s[0], "decode", NULL);
    chunk = 20;
    run_jobs(5, 3);
    check_all(want);
    stop(s, 1);
}

/* A follow-up request leases the blocks that decode filled for the first one. */
static void follow_up_request(void)
{
    struct service s[2] = {0};
    start_store("64M", false);
    start(&s[0], "prefill", NULL);
    start(&s[1], "decode", NULL);
    seal(add_job(long_prompt, 70));
    run_jobs(0, 1);
    struct job *a = &jobs[0], *b = &jobs[n_job++];
    uint32_t n = a->r.n_id + a->log.n;
    uint32_t *ids = malloc((n + 8) * sizeof *ids);
    memcpy(ids, a->r.ids, a->r.n_id * sizeof *ids);
    for (uint32_t i = 0; i < a->log.n; i++)
        ids[a->r.n_id + i] = a->log.token[i].id;
    for (uint32_t i = 0; i < 8; i++)
        ids[n + i] = a->r.ids[i];
    b->r = a->r;
    b->r.seq = 1;
    b->r.ids = ids;
    b->r.n_id = n + 8;
    b->r.s.max_tokens = 4;
    seal(b);
    run_jobs(0, 1);
    MUST(a->log.n == 70 && b->log.ended);
    MUST(b->log.cached == (n - 1) / 32 * 32);
    stop(s, 2);
}

/* ---- with the fake engine ---- */

/* A step with prompts takes 10 µs plus 1 µs a token, a decode step 0.2 ms plus 20 µs a sequence. */
static const char fake[] = "fake:10000,1000,0,200000,0,20000";

static void add_many(int n, uint32_t max_tokens, uint32_t more)
{
    for (int i = 0; i < n; i++) {
        char text[2048];
        snprintf(text, sizeof text, "%s%d. %s", i % 2 ? long_prompt : "", i, long_prompt);
        seal(add_job(text, max_tokens + more * (uint32_t)i));
    }
}

/* Slots for each request but not for all at once: all end with the same answers. A request that never fits fails with
 * the limit. */
static void small_arena(void)
{
    struct service s[3] = {0};
    add_many(12, 100, 20);
    struct answer_log *want = reference(fake);
    start_store("112K", true); /* 28 slots; an answer takes up to 17 */
    start(&s[0], "prefill", fake);
    start(&s[1], "decode", fake);
    start(&s[2], "decode", fake);
    run_jobs(0, 1);
    check_all(want);
    check_store();
    char *big = calloc(1, 28 * 32 * 8 + 1);
    for (int i = 0; i < 28 * 32 * 8 - 4; i += 4)
        memcpy(big + i, " sea", 4);
    struct job *j = add_job(big, 4);
    seal(j);
    run_jobs(0, 1);
    MUST(j->log.failed && strstr(j->log.error, "28"));
    check_store();
    stop(s, 3);
}

static bool interfering;

/* Never returns: kvstore would be killed with the thread that started it (PR_SET_PDEATHSIG). */
static void *interfere_with_store(void *arg)
{
    const char *how = arg;
    for (int i = 0; i < 3; i++) {
        usleep(150000);
        if (*how == 'k') { /* killed and started again */
            kill(store_pid, SIGKILL);
            waitpid(store_pid, NULL, 0);
            usleep(i * 100000);
            start_store("4M", true);
        } else { /* stopped for longer than a lease, once also than the timeout of a call */
            kill(store_pid, SIGSTOP);
            usleep(i < 2 ? 1500000 : 4000000);
            kill(store_pid, SIGCONT);
        }
    }
    pthread_mutex_lock(&lock);
    interfering = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (;;)
        pause();
    return NULL;
}

static void run_with_interference(const char *how, int chaos)
{
    struct service s[3] = {0};
    pthread_t t;
    add_many(16, 1200, 10);
    struct answer_log *want = reference(fake);
    start_store("4M", true);
    start(&s[0], "prefill", fake);
    start(&s[1], "decode", fake);
    start(&s[2], "decode", fake);
    interfering = true;
    MUST(!pthread_create(&t, NULL, interfere_with_store, (void *)(uintptr_t)how));
    run_jobs(chaos, 4);
    check_all(want);
    pthread_mutex_lock(&lock);
    while (interfering)
        wait_some(100);
    pthread_mutex_unlock(&lock);
    reset_jobs();
    run_jobs(chaos, 5);
    check_all(want);
    check_store();
    stop(s, 3);
}

static void store_killed(void)
{
    run_with_interference("kill", 2);
}

static void store_stopped(void)
{
    run_with_interference("stop", 2);
}

/* Jobs are cancelled at random times; the answers of the others are equal, and nothing stays leased. */
static void cancellations(void)
{
    struct service s[2] = {0};
    unsigned seed = 9;
    add_many(30, 60, 5);
    struct answer_log *want = reference(fake);
    start_store("4M", true);
    start(&s[0], "prefill", fake);
    start(&s[1], "decode", fake);
    int n_cancelled = 0;
    for (int round = 0; round < 5; round++) {
        reset_jobs();
        pthread_mutex_lock(&lock);
        while (!all_done()) {
            assign_all();
            wait_some(3);
            struct job *j = &jobs[rand_r(&seed) % (unsigned)n_job];
            if (j->order && !j->closing && !j->log.ended && rand_r(&seed) % 20 == 0) {
                put_event(j->w, WORKER_EV_CANCEL, j->order);
                j->closing = true;
            }
        }
        pthread_mutex_unlock(&lock);
        int n = 0;
        for (int i = 0; i < n_job; i++) {
            n += jobs[i].log.cancelled;
            if (!jobs[i].log.cancelled)
                same(&jobs[i].log, &want[i]);
        }
        n_cancelled += n;
        MUST(n < n_job);
        check_store();
    }
    MUST(n_cancelled > 5);
    stop(s, 2);
}

/* After SIGTERM the jobs that end in time are completed, the others are preempted. */
static void drains(void)
{
    struct service s[1] = {0};
    add_many(2, 50, 0);
    seal(add_job(long_prompt, 1800));
    struct answer_log *want = reference(fake);
    start_store("4M", true);
    s[0].o = opts("decode");
    start(&s[0], "decode", "fake:10000,1000,0,5000000,0,20000");
    pthread_mutex_lock(&lock);
    while (jobs[2].log.n < 5) {
        assign_all();
        wait_some(20);
    }
    pthread_mutex_unlock(&lock);
    uint64_t t0 = time_now_ns();
    stop(s, 1);
    MUST(time_now_ns() - t0 > 1900000000u && time_now_ns() - t0 < 20000000000u);
    MUST(jobs[0].at == JOB_DONE && jobs[1].at == JOB_DONE && jobs[2].at == JOB_WAITS && jobs[2].log.n > 100);
    same(&jobs[0].log, &want[0]);
    same(&jobs[1].log, &want[1]);
    MUST(!memcmp(jobs[2].log.token, want[2].token, jobs[2].log.n * sizeof(struct token)));
    MUST(!store_stat().leased);
}

#define CASE(name)                                                                                                     \
    static struct case_run run_##name;                                                                                 \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        if (!run_##name.pid)                                                                                           \
            case_start(&run_##name, name);                                                                             \
        case_end(&run_##name);                                                                                         \
    }
CASE(split_and_cached)
CASE(whole)
CASE(follow_up_request)
CASE(small_arena)
CASE(store_killed)
CASE(store_stopped)
CASE(cancellations)
CASE(drains)

/* Cases that mostly wait for leases run concurrently with the others. */
static int start_slow_cases(void **state)
{
    (void)state;
    if (getenv("SERVE_TEST_ONLY"))
        return 0;
    case_start(&run_small_arena, small_arena);
    case_start(&run_store_killed, store_killed);
    case_start(&run_store_stopped, store_stopped);
    case_start(&run_cancellations, cancellations);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_and_cached),  cmocka_unit_test(test_whole),
        cmocka_unit_test(test_follow_up_request), cmocka_unit_test(test_small_arena),
        cmocka_unit_test(test_store_killed),      cmocka_unit_test(test_store_stopped),
        cmocka_unit_test(test_cancellations),     cmocka_unit_test(test_drains),
    };
    cmocka_set_test_filter(getenv("SERVE_TEST_ONLY"));
    return cmocka_run_group_tests(tests, start_slow_cases, NULL);
}
