/* Private to lib/sched: the state of the machine. */
#ifndef SCHED_MACHINE_H
#define SCHED_MACHINE_H

#include "base/list.h"
#include "base/loop.h"
#include "base/loop_heap.h"
#include "base/time.h"
#include "sched/sched.h"

#define SKIP_LEVELS 12
#define DRAINED_MAX 256       /* workers that were drained when their sessions ended */
#define SCAN_NS (250 * NS_MS) /* policies look again though nothing has happened */

struct job;
struct worker;

/* ---- map.c: hash to pointer, several of a hash allowed ---- */

struct map_slot {
    uint64_t hash;
    void *p;
};
struct map {
    struct map_slot *slot;
    size_t n, mask;
};
void *map_first(const struct map *m, uint64_t hash, size_t *at);
void *map_next(const struct map *m, uint64_t hash, size_t *at);
int map_put(struct err *e, struct map *m, uint64_t hash, void *p);
void map_drop(struct map *m, uint64_t hash, const void *p);
void map_free(struct map *m);
uint64_t mix64(uint64_t x);

/* ---- queue.c: waiting requests in order ---- */

struct skip {
    struct job *next[SKIP_LEVELS];
    struct job *prev; /* at level 0 */
    uint8_t n;
};
struct queue {
    struct job *first[SKIP_LEVELS];
    uint64_t n, tokens, seed;
};
void queue_add(struct queue *q, struct job *j);
void queue_drop(struct queue *q, struct job *j);

/* ---- index.c: which store holds which block ---- */

struct block {
    uint64_t key[2]; /* the digest's first 16 bytes; 0, 0: free */
    uint64_t stores[SCHED_STORES_MAX / 64];
};
struct index {
    struct block *slot;
    size_t n, mask;
};
int index_set(struct err *e, struct index *x, const uint8_t *digest, uint32_t store);
void index_clear(struct index *x, const uint8_t *digest, uint32_t store);
void index_clear_store(struct index *x, uint32_t store);
void index_prefetch(const struct index *x, const uint8_t *digest); /* it will be set or cleared soon */
const struct block *index_get(const struct index *x, const uint8_t *digest);
void index_free(struct index *x);

/* ---- fit.c ---- */

/* scale_x and scale_z: usual magnitudes of x and z. */
void fit_set(struct sched_fit *f, double a, double b, double c, double scale_x, double scale_z);
void fit_learn(struct sched_fit *f, double x, double z, double y);
double fit_at(const struct sched_fit *f, double x, double z);

/* ---- state ---- */

enum job_state {
    JOB_HELD,    /* submitted again: a worker may run it already */
    JOB_QUEUED,  /* waits for prefill */
    JOB_READY,   /* prefilled, waits for decode */
    JOB_RUNNING, /* has a current run */
    JOB_ENDED,   /* a worker still has an attempt of it, which its report or the end of its session closes */
};

enum end { END_STOP, END_LENGTH, END_CANCELLED, END_EXPIRED, END_ERROR, END_REFUSED, END_N };

struct run {               /* an order that a worker has, or may have */
    struct list of_job;    /* the newest first */
    struct list of_worker; /* by number */
    struct worker *w;
    struct job *j;
    uint64_t order, n; /* n: its number among the orders sent since the worker's join, 0: it came with the join */
    uint32_t attempt;
    enum sched_phase phase;
    bool current, cancelled, preempted; /* cancelled, preempted: the control was sent */
    bool answered;                      /* its gateway has reported that the answer is there */
    uint64_t blocks;
    uint64_t est_ns; /* of what is left to prefill */
    uint32_t cached, n_new, context, chunk;
};

struct gateway {
    char *name;
    uint64_t hash;
    struct list jobs;
    bool gone; /* freed when no worker has an attempt of its requests */
};

struct job {
    struct sched_job pub; /* first: policies get its address */
    struct gateway *gw;
    enum job_state state;
    uint32_t attempt;
    uint64_t eta_ns;
    uint8_t *digests, *body;
    char *reply;
    size_t n_body, n_reply;
    uint32_t *out, n_out_id;
    size_t size_out;
    uint8_t handle[WIRE_HANDLE_BYTES_MAX];
    size_t n_handle;
    struct list runs;
    struct run *cur;
    struct skip skip;
    struct loop_timer deadline; /* at_ns 0: in no heap */
    uint64_t key_deadline;
    struct list of_gateway;
    struct list fresh; /* in the list of requests of this instant, or in none */
    struct list held;  /* in the list of those that wait for the other side, or in none */
    bool told_first;   /* its gateway has told of tokens */
    bool unasked;      /* a run that came with a join; no gateway has submitted it */
    uint32_t avoid;    /* number of the worker that failed it last */
};

struct worker {              /* from its join to the end of its session */
    struct sched_worker pub; /* first */
    char *name;
    uint64_t inc, hash;
    uint64_t n_sent; /* orders since its join */
    uint32_t seqs;   /* that it can take; policies see 0 while its session is full */
    bool full;
    uint64_t last_step_ns, last_context;
    uint32_t last_batch;
    uint32_t steps[WIRE_STEPS_MAX], n_steps; /* of its newest capacity */
    uint64_t step_tokens;
    struct list runs;
    uint32_t at; /* place in the machine's array */
};

struct store {
    char *name;
    uint64_t stuck_ns; /* since when nothing that waits there can go on; 0: it can */
};

#define TIMES 1024

struct times { /* the newest, a ring */
    uint64_t ns[TIMES];
    uint32_t n, at;
};

struct sched_view {
    char unused; /* the machine itself, seen from a policy */
};

struct sched {
    struct sched_view view; /* first */
    const struct sched_policy *policy;
    void *policy_state;
    struct sched_sink sink;
    uint64_t now_ns, next_order, next_job, next_worker;
    struct sched_default knob[SCHED_KNOBS_MAX]; /* with their present values */
    size_t n_knob;
    /* the machine's own knobs, read once they change */
    uint64_t grace_ns, lease_ns, retry_ns;
    uint64_t queue_max;
    uint32_t retries_max;
    double reserve;

    struct worker **worker;
    uint32_t n_worker;
    size_t size_worker;
    struct map workers, gateways, jobs; /* by name, by name, by (gateway, job) */
    struct store store[SCHED_STORES_MAX];
    uint32_t n_store;
    struct index index;
    uint64_t drained[DRAINED_MAX]; /* their incarnations, a ring: one that joins again is drained again */
    uint32_t drained_at;
    char *compat;

    struct queue queued, ready;
    struct loop_timer *deadlines; /* the root of a heap; NULL: none */
    struct list fresh;
    struct list held; /* by since_ns: all wait equally long */

    uint64_t submitted, ended[END_N], n_running, n_waiting, n_ended;
    uint32_t n_gateway, max_len;
    uint64_t blocks_max; /* of the largest pool ever seen */
    uint64_t retried, preempted, stale, placed;
    struct times ttft, itl;
    int32_t priority_last; /* the largest ever submitted */
    uint64_t scan_ns;
    bool begun, recheck; /* recheck: the first pool has joined, requests that wait may not fit */
    bool dirty;          /* something changed that a policy may act on */
    struct err broken;   /* an action failed for want of memory */
};

static inline struct job *job_of(const struct sched_job *j)
{
    return (struct job *)(uintptr_t)j;
}
static inline struct worker *worker_of(const struct sched_worker *w)
{
    return (struct worker *)(uintptr_t)w;
}
static inline struct wire_str str_of(const char *s, size_t n)
{
    return (struct wire_str){s, n};
}
static inline struct job *held_first(const struct sched *s) /* NULL: none */
{
    return list_empty(&s->held) ? NULL : list_entry(s->held.next, struct job, held);
}
static inline struct job *deadline_first(const struct sched *s) /* NULL: none */
{
    return s->deadlines ? list_entry(s->deadlines, struct job, deadline) : NULL;
}
bool str_is(struct wire_str s, const char *what);
int str_among(struct wire_str s, const char *const *names, int n); /* the index; -1: it is none of these */

/* ---- job.c: requests and their tries ---- */

struct job *job_find(const struct sched *s, const struct gateway *gw, uint64_t id);
int job_new(struct err *e, struct job **out, struct sched *s, struct gateway *gw, uint64_t id);
void job_free(struct sched *s, struct job *j);
void job_set(struct sched *s, struct job *j, enum job_state state); /* keeps queues and counts */
int job_take_out(struct err *e, struct job *j, uint32_t n_out, const uint32_t *ids, uint32_t n_id);
/* Ends it and tells the gateway (not for END_REFUSED, whose refusal says it). The job may be freed. */
void job_end(struct sched *s, struct job *j, enum end end, uint32_t code, const char *text);
/* It waits again as a new attempt. `retry`: one that counts. The job may be ended and freed. */
void job_requeue(struct sched *s, struct job *j, bool retry);
uint64_t job_blocks(const struct sched *s, const struct job *j, uint32_t max_len, enum sched_phase phase);
/* Less what it has there already. */
uint64_t job_wants(const struct sched *s, const struct job *j, int store, uint32_t max_len, enum sched_phase phase);

int run_open(struct err *e, struct run **out, struct sched *s, struct job *j, struct worker *w, enum sched_phase phase);
void run_close(struct sched *s, struct run *r);    /* the worker knows it no longer; the job is not freed */
void run_abandon(struct sched *s, struct run *r);  /* not current; the worker gets a cancel */
void run_progress(struct run *r, uint64_t est_ns); /* what is left to prefill */

/* ---- submit.c: gateways ---- */

struct gateway *gateway_find(const struct sched *s, struct wire_str name);
int gateway_get(struct err *e, struct gateway **out, struct sched *s, struct wire_str name);
void gateway_gone(struct sched *s, struct gateway *g);
void gateway_free(struct sched *s, struct gateway *g);
int submit_event(struct err *e, struct sched *s, const struct wire_submit *f);
void cancel_event(struct sched *s, const struct wire_cancel *f);
void submit_acks(struct sched *s);
void submit_timers(struct sched *s);
void refuse_job(struct sched *s, struct job *j, bool never, uint64_t retry_ns, const char *text);

/* ---- worker.c: the registry, capacity, orders and controls ---- */

struct worker *worker_find(const struct sched *s, struct wire_str name);
int worker_new(struct err *e, struct worker **out, struct sched *s, struct wire_str name);
void worker_gone(struct sched *s, struct worker *w); /* frees it */
int capacity_event(struct sched *s, const struct wire_capacity *f);
void worker_timers(struct sched *s);
void worker_control(struct sched *s, const struct worker *w, const char *what, const struct run *r); /* r may be NULL */
void worker_drain(struct sched *s, struct worker *w, bool on);
void worker_send(struct sched *s, struct run *r);
void worker_refuse(struct sched *s, struct wire_str name, const char *text);

void times_add(struct times *t, uint64_t ns);

/* ---- join.c, report.c ---- */

int store_find(const struct sched *s, struct wire_str name);                   /* -1: not known */
int store_get(struct err *e, int *out, struct sched *s, struct wire_str name); /* -1: none, or one too many */
int join_event(struct err *e, struct sched *s, const struct wire_join *f);
int report_event(struct err *e, struct sched *s, const struct wire_report *f);

static inline void emit(struct sched *s, const struct wire_frame *f)
{
    if (s->sink.emit)
        s->sink.emit(s->sink.arg, f);
}

/* ---- handle.c ---- */

uint64_t handle_blocks(const struct job *j, int store); /* that the request has at the store, waiting to be taken */
void handle_let_go(struct sched *s, struct job *j);
/* The handle of a report that nobody goes by; j may be NULL. */
void handle_unused(struct sched *s, const struct job *j, const struct wire_report *f);
void handles_timers(struct sched *s);

#endif
