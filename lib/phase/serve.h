/*
 * A worker of the scheduler. Private to lib/phase.
 *
 * An assignment is a work item (a frame `order`): one attempt of a request. Its sequence is the prompt and the answer
 * so far; the KV of all ids but the last is needed. The worker leases what the store has cached, computes the rest, and
 * continues the answer. So a new request, a preempted or migrated one, and one whose KV was lost need one path.
 */
#ifndef SERVE_H
#define SERVE_H

#include "base/time.h"
#include "link/store_client.h"
#include "link/worker.h"
#include "phase/runner.h"

#define STARVE_MS 10000  /* limit of a wait for a slot if no other assignment has slots: then this one is preempted */
#define YIELD_MS 50      /* limit of a wait for a slot: then the last assignment with slots is preempted */
#define PENDING_MS 10000 /* limit of a wait for a block that another worker computes: then it is computed here too */
#define RETRY_MS 10      /* between requests to a store that is full */

/* The transfer handle that prefill sends to decode through the scheduler. */
#define HANDLE_BYTES 64
struct handle {
    uint64_t seq, gen;
    uint32_t cached, pid;
    uint64_t queued_ns, start_ns, end_ns; /* of prefill */
    uint64_t first_ns, load_ns;
};

struct assignment {
    struct request q;               /* first */
    const struct wire_order *order; /* owned: worker_order_release */
    struct wire_arena *mem;         /* owns the memory of tok, which also borrows from order */
    struct wire_req tok;

    bool has_transfer; /* the transfer `from` is not accepted yet */
    struct handle from;

    bool pending; /* with REQUEST_WAITS: another client computes its next block */
    bool has_seq;
    struct kv_seq_info seq;
    int64_t n_published; /* blocks of the table that are published; the tail (seq_tail) and reserved slots follow */
    bool seq_tail;
    bool no_wait;     /* lease without waiting for other clients */
    uint8_t *digests; /* [n_digest][32] of the full blocks of the sequence */
    int64_t n_digest;
    size_t cap_digest;

    bool cached_known;
    bool token_reported; /* the scheduler was informed that this attempt has produced a token */
    uint64_t retry_ns, pending_ns, starved_ns;
    uint64_t busy_ns, progress_ns;
};

static inline struct assignment *assignment_of(struct request *q)
{
    return (struct assignment *)q;
}

struct serve {
    struct runner r; /* first; its requests are assignments */
    const char *role;
    char name[WIRE_NAME_BYTES_MAX + 1], store_name[WIRE_NAME_BYTES_MAX + 1], kv_identity[192];
    struct worker_link *link;

    struct store_client *store;
    struct kv_arena *arena;
    uint64_t arena_id;
    bool store_down;  /* kvstore does not respond; logged */
    bool must_resync; /* a call without a response may have been done: lease everything again */
    bool expired;     /* the lease has ended: the store has released everything */
    uint64_t store_retry_ns, reserve_ns, stat_ns; /* earliest next call while it is down, next reservation, next stat */
    uint64_t idle_ns;                             /* since when nothing is computed */
    uint64_t resync_ns;                           /* earliest next resync */
    uint64_t room_blocks;

    uint64_t term_ns;              /* when SIGTERM was noticed */
    uint64_t done_ns;              /* after SIGTERM: since when all is done and sent; 0: not yet */
    bool sched_drains;             /* the scheduler has confirmed the drain: no more work items */
    bool refused;                  /* the scheduler refuses this worker; logged */
    uint64_t drain_ns;             /* when running work is preempted; 0: not draining */
    uint64_t n_preempted, log_ns;  /* preemptions for lack of slots; earliest next log line */
    struct wire_capacity capacity; /* the last report, with the newest costs of steps */
    uint32_t steps[WIRE_STEPS_MAX];
    uint64_t capacity_ns;
};

static inline struct serve *serve_of(struct runner *r)
{
    return (struct serve *)r;
}

void serve_log(const struct serve *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- serve_work.c: the begin and the early end of assignments ---- */

int work_take(struct err *e, struct serve *v, const struct wire_order *o); /* owns o, also on failure */
struct assignment *work_find(const struct serve *v, uint64_t order);
void work_release(struct runner *r, struct request *q);
int work_digests(struct err *e, struct assignment *a, int64_t n); /* of the first n blocks */

/* Releases its slots, closes it, and reports `what`: cancelled or preempted. Its published blocks stay cached, for the
 * worker that continues. */
int work_stop(struct err *e, struct serve *v, struct assignment *a, const char *what);

/* ---- serve_hold.c: leases and slots of kvstore ---- */

int hold_open(struct err *e, struct serve *v); /* blocks until kvstore responds; v->store stays NULL after SIGTERM */
void hold_close(struct serve *v);
/* Resynchronizes with the store, processes its events, leases sequences, accepts transfers, releases unused slots. */
int hold_poll(struct err *e, struct serve *v);
/* Reserves slots for `n` blocks and some spare ones, as far as the store has them. */
void hold_reserve(struct serve *v, int64_t n);
/* Publishes the full blocks, with `tail` also the partial one. False: not now, the slots stay reserved. */
bool hold_publish(struct serve *v, struct assignment *a, bool tail);
bool hold_transfer_out(struct serve *v, struct assignment *a, struct kv_seq_info *out);
/* Releases the sequence and slots of an assignment. */
void hold_release(struct serve *v, struct assignment *a);
uint64_t hold_available(struct serve *v); /* blocks that are free or can be evicted */

/* ---- serve_slots.c: runner_io's KV slots ---- */

void slots_expect(struct runner *r, int64_t blocks);
int slots_get(struct err *e, struct runner *r, struct request *q, int64_t *rows);
bool slots_valid(struct runner *r, struct request *q);
/* Preempts an assignment if another has waited too long for a slot. */
int slots_yield(struct err *e, struct serve *v);

/* ---- serve_out.c: runner_io's sink ---- */

void out_computed(struct runner *r, uint64_t ns);
int out_flush(struct err *e, struct runner *r);
int out_frame(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
int out_progress(struct err *e, struct runner *r, struct request *q);
int out_end(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
int out_fail(struct err *e, struct runner *r, struct request *q);
int out_transfer(struct err *e, struct runner *r, struct request *q);
int out_report(struct err *e, struct serve *v, struct assignment *a, const char *what, int code, const char *text);

void handle_write(uint8_t out[HANDLE_BYTES], const struct handle *h);
bool handle_read(struct handle *h, struct wire_bytes b);

#endif
