/*
 * A worker of the scheduler. An assignment (a frame `order`) is one answer: its sequence is the prompt and the answer
 * so far, whose KV is needed for all ids but the last. What the store has is leased, the rest computed, then the answer
 * goes on; so a new request, one that was preempted or moved, and one whose KV was lost are the same. Private to
 * lib/phase.
 */
#ifndef SERVE_H
#define SERVE_H

#include "base/time.h"
#include "link/store_client.h"
#include "link/worker.h"
#include "phase/runner.h"

#define STARVE_MS 10000  /* an assignment alone without a slot: it is preempted */
#define YIELD_MS 50      /* an assignment without a slot: the last one is preempted */
#define PENDING_MS 10000 /* without news of a block that another worker computes: computed here too */
#define RETRY_MS 10      /* until what the store had no room for is asked for again */

/* What passes from prefill to decode through the scheduler: always as many bytes. */
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
    struct wire_arena *mem;         /* of tok, which also borrows from order */
    struct wire_req tok;

    bool has_from; /* from is still to be taken */
    struct handle from;

    bool pending; /* while it waits: other clients compute its next block */
    bool has_seq;
    struct kv_seq_info seq;
    int64_t n_pub; /* blocks of the table that are the sequence's; behind them a tail of it, then own credit */
    bool seq_tail;
    bool no_wait;     /* waited long enough for others */
    uint8_t *digests; /* [n_digest][32] of the full blocks of the sequence */
    int64_t n_digest;
    size_t cap_digest;

    bool cached_known;
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
    char name[WIRE_NAME_BYTES_MAX + 1], store_name[WIRE_NAME_BYTES_MAX + 1], compat[192];
    struct worker_link *link;

    struct store_client *store;
    struct kv_arena *arena;
    uint64_t arena_id;
    bool away;    /* does not answer; was said */
    bool unsure;  /* it may not know what we hold as we do: all is to be leased anew when it answers */
    bool expired; /* what we held is gone */
    uint64_t away_ns, credit_ns, stat_ns, idle_ns; /* when to try, to ask, to look again; since when nothing is done */
    uint64_t anew_ns;                              /* not before */
    uint64_t room_blocks;

    uint64_t term_ns;              /* when SIGTERM was seen */
    uint64_t done_ns;              /* after it: since when nothing is open and no gateway waits; 0: not yet */
    bool sched_drains;             /* the scheduler assigns nothing any more */
    bool refused;                  /* it takes no worker like this one; was said */
    uint64_t drain_ns;             /* when what runs is given up; 0: not draining */
    uint64_t n_preempted, said_ns; /* for want of slots; when it may be said again */
    struct wire_capacity capacity; /* as it was reported, with the newest figures of steps */
    uint32_t steps[WIRE_STEPS_MAX];
    uint64_t capacity_ns;
};

static inline struct serve *serve_of(struct runner *r)
{
    return (struct serve *)r;
}

void serve_say(const struct serve *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- serve_work.c: assignments come, and end in other ways than by their answer ---- */

int work_take(struct err *e, struct serve *v, const struct wire_order *o); /* owns o from here on */
struct assignment *work_find(const struct serve *v, uint64_t order);
void work_release(struct runner *r, struct request *q);
int work_digests(struct err *e, struct assignment *a, int64_t n); /* of the first n blocks */

/* Gives back what it holds, closes it, and reports `what`: cancelled or preempted. Its blocks stay in the store, under
 * their names, for whoever goes on. */
int work_stop(struct err *e, struct serve *v, struct assignment *a, const char *what);

/* ---- serve_hold.c: the store ---- */

int hold_open(struct err *e, struct serve *v); /* waits for it; v->store stays NULL where SIGTERM came before */
void hold_close(struct serve *v);
/* What is due: the store is back, news, sequences to be leased or taken, credit to be given back. */
int hold_turn(struct err *e, struct serve *v);
/* Tries to have slots for `n` blocks, and a reserve. */
void hold_want(struct serve *v, int64_t n);
/* The full blocks that the store does not have; with `tail`, the half-filled one too. False: they stay ours. */
bool hold_publish(struct serve *v, struct assignment *a, bool tail);
bool hold_hand(struct serve *v, struct assignment *a, struct kv_seq_info *out);
/* The assignment holds nothing any more. */
void hold_drop(struct serve *v, struct assignment *a);
uint64_t hold_room(struct serve *v); /* blocks that could be had */

/* ---- serve_slots.c: runner_io's KV slots ---- */

void slots_expect(struct runner *r, int64_t blocks);
int slots_get(struct err *e, struct runner *r, struct request *q, int64_t *rows);
bool slots_valid(struct runner *r, struct request *q);
/* Preempts one where another has waited too long for a slot. */
int slots_yield(struct err *e, struct serve *v);

/* ---- serve_out.c: runner_io's sink ---- */

void out_computed(struct runner *r, uint64_t ns);
int out_flush(struct err *e, struct runner *r);
int out_frame(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
int out_progress(struct err *e, struct runner *r, struct request *q);
int out_end(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
int out_fail(struct err *e, struct runner *r, struct request *q);
int out_hand_over(struct err *e, struct runner *r, struct request *q);
int out_report(struct err *e, struct serve *v, struct assignment *a, const char *what, int code, const char *text);

void handle_write(uint8_t out[HANDLE_BYTES], const struct handle *h);
bool handle_read(struct handle *h, struct wire_bytes b);

#endif
