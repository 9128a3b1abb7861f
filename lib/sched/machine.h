/* Private to lib/sched: the state of the machine. */
#ifndef SCHED_MACHINE_H
#define SCHED_MACHINE_H

#include "base/list.h"
#include "base/loop.h"
#include "base/loop_heap.h"
#include "base/map.h"
#include "base/time.h"
#include "sched/sched.h"

#define SKIP_LEVELS 12
#define DRAINED_MAX 256       /* drained workers to remember after their sessions ended */
#define SCAN_NS (250 * NS_MS) /* the policy runs this often without events */

struct request;
struct worker;

/* ---- queue.c: waiting requests, sorted ---- */

struct skip {
    struct request *next[SKIP_LEVELS];
    struct request *prev; /* at level 0 */
    uint8_t n;
};
struct queue {
    struct request *first[SKIP_LEVELS];
    uint64_t n, tokens, seed;
};
void queue_add(struct queue *q, struct request *r);
void queue_drop(struct queue *q, struct request *r);

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
void index_prefetch(const struct index *x, const uint8_t *digest); /* before index_set or index_clear */
const struct block *index_get(const struct index *x, const uint8_t *digest);
void index_free(struct index *x);

/* ---- fit.c ---- */

/* scale_x and scale_z: usual magnitudes of x and z. */
void fit_set(struct sched_fit *f, double a, double b, double c, double scale_x, double scale_z);
void fit_learn(struct sched_fit *f, double x, double z, double y);
double fit_at(const struct sched_fit *f, double x, double z);

/* ---- state ---- */

enum request_state {
    REQUEST_IN_GRACE, /* submitted again; for grace_ms a worker may join that runs it already */
    REQUEST_QUEUED,   /* waits for prefill */
    REQUEST_READY,    /* prefilled, waits for decode */
    REQUEST_RUNNING,  /* has a current attempt */
    REQUEST_ENDED,    /* kept until the last worker has closed its attempt, or has disconnected */
};

enum end { END_STOP, END_LENGTH, END_CANCELLED, END_EXPIRED, END_ERROR, END_REFUSED, END_N };

struct attempt {            /* a work item that a worker has, or may have */
    struct list of_request; /* newest first */
    struct list of_worker;  /* by n_sent */
    struct worker *w;
    struct request *r;
    uint64_t order;  /* number of the work item */
    uint64_t n_sent; /* its place among the work items sent since the worker's join; 0: it came with the join */
    uint32_t number; /* of the attempt, from 1 for each request */
    enum sched_phase phase;
    bool cancelled, preempted; /* the control was sent */
    bool answered;             /* the gateway has reported that it has the whole answer */
    bool fresh;                /* it has produced nothing: if the worker dies now, its request may be the reason */
    bool suspect;              /* fresh, and its request is a suspect */
    uint64_t blocks;
    uint64_t est_ns; /* prefill that is left, estimated */
    uint32_t cached, n_new, context, chunk;
    uint64_t bytes; /* of the body; 0: unknown, it came with the join */
};

struct gateway {
    char *name;
    uint64_t hash;
    struct list requests;
    bool gone; /* its session has ended; freed when no worker has an attempt of its requests */
};

struct tenant { /* from the first of its requests until the last is freed */
    char name[WIRE_NAME_BYTES_MAX + 1];
    uint64_t hash, n_request;
    uint64_t n_queued, bytes; /* requests that wait for prefill; bytes of the bodies of all its requests */
    double weight, finish;    /* finish: virtual time at which its requests so far are served */
};

#define TENANT_WEIGHTS_MAX 4096

struct tenant_weight {
    char name[WIRE_NAME_BYTES_MAX + 1];
    double weight;
};

struct request {
    struct sched_request pub; /* first: policies get its address */
    struct gateway *gw;
    struct tenant *tenant; /* NULL: no gateway has submitted it */
    double start, charge;  /* start tag, once tagged; what it adds to its tenant's finish tag; 0 once placed */
    bool tagged;
    enum request_state state;
    uint32_t attempt; /* number of its current attempt, or of its next one */
    uint64_t eta_ns;
    uint8_t *digests, *body;
    char *reply;
    size_t n_body, n_reply;
    uint32_t *out, n_out_id;
    size_t size_out;
    uint8_t handle[WIRE_HANDLE_BYTES_MAX];
    size_t n_handle;
    struct list attempts;
    struct attempt *current; /* NULL: none */
    struct skip skip;
    struct loop_timer deadline; /* at_ns 0: in no heap */
    uint64_t key_deadline;
    struct list of_gateway;
    struct list unacked;           /* node of sched.unacked */
    struct list grace;             /* node of sched.grace */
    bool gateway_reported;         /* its gateway has reported tokens */
    bool unclaimed;                /* it came with a worker's join, and no gateway has submitted it */
    uint32_t failed_worker_number; /* of the last worker on which it failed */
    uint32_t deaths;               /* workers that died while its attempt there was fresh; > 0: a suspect */
    uint64_t died_incarnation;     /* of the last of them; 0: none */
    struct list suspect;           /* node of sched.suspects */
};

struct worker {              /* from its join to the end of its session */
    struct sched_worker pub; /* first */
    char *name;
    uint64_t incarnation, hash;
    uint64_t n_sent; /* work items since its join */
    uint32_t seqs;   /* sequences it can take; policies see 0 while its session is full */
    bool full;
    uint64_t last_step_ns, last_context;
    uint32_t last_batch;
    uint32_t steps[WIRE_STEPS_MAX], n_steps;        /* of its newest capacity */
    uint64_t step_tokens, out_bytes, out_bytes_max; /* of the same */
    struct list attempts;
    uint64_t bytes;              /* of the bodies of its attempts */
    uint32_t n_fresh, n_suspect; /* of its attempts */
    uint32_t at;                 /* index in sched.worker */
};

struct store {
    char *name;
    uint64_t stuck_ns; /* since when no request that is prefilled there can start decoding; 0: one can */
};

#define TIMES 1024

struct times { /* the newest durations, a ring */
    uint64_t ns[TIMES];
    uint32_t n, at;
};

struct sched {
    const struct sched_policy *policy;
    void *policy_state;
    struct sched_sink sink;
    uint64_t now_ns, next_order, next_request, next_worker;
    struct sched_setting setting[SCHED_SETTINGS_MAX]; /* with their present values */
    size_t n_setting;
    /* values of the scheduler's own settings, updated when one changes */
    uint64_t grace_ns, lease_ns, retry_ns;
    uint64_t queue_max, queue_bytes, worker_bytes;
    uint64_t bytes; /* of the bodies of all requests */
    uint32_t retries_max, deaths_max;
    double reserve;

    struct worker **worker;
    uint32_t n_worker;
    size_t size_worker;
    struct map workers, gateways, requests; /* by name, by name, by (gateway, job) */
    struct map tenants;                     /* by name */
    struct tenant_weight *weight;
    size_t n_weight, size_weight;
    double virtual_time, tenant_share;
    struct store store[SCHED_STORES_MAX];
    uint32_t n_store;
    struct index index;
    uint64_t drained[DRAINED_MAX]; /* incarnations, a ring: a worker that joins again is drained again */
    uint32_t drained_at;
    char *kv_identity; /* of all workers; NULL: none has joined */

    struct queue queued, ready;
    struct loop_timer *deadlines; /* the root of a heap; NULL: none */
    struct list unacked;          /* requests of this instant, whose acks are sent at its end */
    struct list suspects;         /* suspects that wait, the longest first */
    struct list grace;            /* requests in grace and unclaimed ones, by since_ns: all wait equally long */

    uint64_t submitted, ended[END_N], n_running, n_waiting, n_ended;
    uint32_t n_gateway, max_len;
    uint64_t blocks_max; /* of the largest pool ever seen */
    uint64_t retried, preempted, stale, placed;
    struct times ttft, itl;
    int32_t priority_last; /* the largest ever submitted */
    uint64_t scan_ns;
    bool started;
    bool recheck;       /* the first pool has joined: waiting requests may be too large for it */
    bool dirty;         /* something changed that a policy may act on */
    struct err failure; /* an action failed: no memory */
};

static inline struct request *request_of(const struct sched_request *r)
{
    return (struct request *)(uintptr_t)r;
}
static inline struct worker *worker_of(const struct sched_worker *w)
{
    return (struct worker *)(uintptr_t)w;
}
static inline struct request *grace_first(const struct sched *s) /* NULL: none */
{
    return list_empty(&s->grace) ? NULL : list_entry(s->grace.next, struct request, grace);
}
static inline struct request *deadline_first(const struct sched *s) /* NULL: none */
{
    return s->deadlines ? list_entry(s->deadlines, struct request, deadline) : NULL;
}
bool str_is(struct wire_str s, const char *what);
int str_index(struct wire_str s, const char *const *names, int n); /* -1: s is none of names */

/* ---- request.c: requests and their attempts ---- */

struct request *req_find(const struct sched *s, const struct gateway *gw, uint64_t id);
int req_new(struct err *e, struct request **out, struct sched *s, struct gateway *gw, uint64_t id);
void req_free(struct sched *s, struct request *r);
void req_set_state(struct sched *s, struct request *r, enum request_state state); /* updates queues and counts */
int req_add_tokens(struct err *e, struct request *r, uint32_t n_out, const uint32_t *ids, uint32_t n_id);
/* Ends it and sends `done` to the gateway, except for END_REFUSED. May free the request. */
void req_end(struct sched *s, struct request *r, enum end end, uint32_t code, const char *text);
/* Queues it again as a new attempt. failure: why the last attempt failed; the new one counts as a retry. NULL: it did
 * not fail. May end and free the request. */
void req_requeue(struct sched *s, struct request *r, const char *failure);
uint64_t req_blocks(const struct sched *s, const struct request *r, uint32_t max_len, enum sched_phase phase);
/* The same, less the blocks it holds at the store. */
uint64_t req_more_blocks(const struct sched *s, const struct request *r, int store, uint32_t max_len,
                         enum sched_phase phase);

int attempt_new(struct err *e, struct attempt **out, struct sched *s, struct request *r, struct worker *w,
                enum sched_phase phase);
void attempt_close(struct sched *s, struct attempt *a);    /* the worker has ended it; does not free the request */
void attempt_cancel(struct sched *s, struct attempt *a);   /* no longer current; sends cancel to the worker */
void attempt_clear(struct attempt *a);                     /* it has produced something: no longer fresh */
void attempt_set_bytes(struct attempt *a, uint64_t n);     /* of its body */
void attempt_set_left(struct attempt *a, uint64_t est_ns); /* prefill that is left */

/* ---- tenant.c: fair queueing ---- */

int tenant_get(struct err *e, struct tenant **out, struct sched *s, struct wire_str name); /* counts one request */
void tenant_put(struct sched *s, struct tenant *t); /* counts one request less; t may be NULL */
int tenant_set_weight(struct err *e, struct sched *s, const char *name, double weight);
void tenant_tag(struct sched *s, struct request *r); /* when it first enters the queue */
void tenant_placed(struct sched *s, struct request *r);
void tenant_refund(struct request *r); /* it has ended; no effect if it was placed */
/* true: its tenant has more than its share of the queue; fills text. */
bool tenant_full(char *text, size_t size, const struct sched *s, const struct request *r);

/* ---- suspect.c: requests that may kill workers ---- */

/* w has died with the attempt a of r, which was current. True: it ended r, which may be freed. */
bool suspect_death(struct sched *s, struct request *r, const struct worker *w, bool fresh);
void suspects_rejoined(struct sched *s, uint64_t incarnation); /* that worker had not died */
bool suspect_room(const struct sched *s, const struct request *r, const struct worker *w);

/* ---- submit.c: gateways ---- */

struct gateway *gateway_find(const struct sched *s, struct wire_str name);
int gateway_get(struct err *e, struct gateway **out, struct sched *s, struct wire_str name);
void gateway_gone(struct sched *s, struct gateway *g);
void gateway_free(struct sched *s, struct gateway *g);
int submit_event(struct err *e, struct sched *s, const struct wire_submit *f);
void cancel_event(struct sched *s, const struct wire_cancel *f);
void submit_acks(struct sched *s);
void submit_timers(struct sched *s);
enum refusal { REFUSE_FOR_NOW, REFUSE_NEVER, REFUSE_ENDING };
void req_refuse(struct sched *s, struct request *r, enum refusal kind, uint64_t retry_ns, const char *text);

/* ---- worker.c: the registry, capacity, work items and controls ---- */

struct worker *worker_find(const struct sched *s, struct wire_str name);
int worker_new(struct err *e, struct worker **out, struct sched *s, struct wire_str name);
void worker_gone(struct sched *s, struct worker *w); /* its session has ended: requeues its requests and frees it */
int capacity_event(struct sched *s, const struct wire_capacity *f);
void worker_timers(struct sched *s);
/* a: the attempt to cancel or preempt, otherwise NULL. */
void worker_control(struct sched *s, const struct worker *w, const char *what, const struct attempt *a);
void worker_drain(struct sched *s, struct worker *w, bool on);
void worker_send(struct sched *s, struct attempt *a);
void worker_refuse(struct sched *s, struct wire_str name, const char *text);

void times_add(struct times *t, uint64_t ns);

/* ---- join.c, report.c ---- */

/* The index of a store, -1: unknown. store_get adds an unknown one; *out is -1 if the name is empty or there are
 * SCHED_STORES_MAX. */
int store_find(const struct sched *s, struct wire_str name);
int store_get(struct err *e, int *out, struct sched *s, struct wire_str name);
int join_event(struct err *e, struct sched *s, const struct wire_join *f);
int report_event(struct err *e, struct sched *s, const struct wire_report *f);

static inline void emit(struct sched *s, const struct wire_frame *f)
{
    if (s->sink.emit)
        s->sink.emit(s->sink.arg, f);
}

/* ---- handle.c: transfer handles ---- */

uint64_t handle_blocks(const struct request *r, int store); /* blocks of its prefilled sequence at the store */
void handle_release(struct sched *s, struct request *r);
/* Releases the handle of a report that has no effect, unless it is r's own; r may be NULL. */
void handle_release_unused(struct sched *s, const struct request *r, const struct wire_report *f);
void handles_timers(struct sched *s);

#endif
