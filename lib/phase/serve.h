/*
 * A worker of a scheduler, over one engine. An order is one answer: its sequence is the prompt and the answer so far,
 * whose KV is needed for all ids but the last. What is there is leased, the rest computed, then the answer goes on; so
 * a new request, one that was preempted or moved, and one whose KV was lost are the same. Private to lib/phase.
 */
#ifndef SERVE_H
#define SERVE_H

#include "link/store_client.h"
#include "link/worker.h"
#include "phase/stage.h"

#define NS_MS 1000000ull
#define STARVE_MS 10000  /* without a slot: preempted */
#define YIELD_MS 50      /* an order before it is without a slot: the last one is preempted */
#define PENDING_MS 10000 /* without news of a block that another worker computes: computed here too */
#define RETRY_MS 10      /* until what the store had no room for is asked for again */

enum task_state {
    TASK_NEW,     /* to be leased, or taken */
    TASK_PENDING, /* others compute its next block */
    TASK_RUN,
    TASK_CLOSED, /* reported; freed at the end of the turn */
};

/* What passes from prefill to decode through the scheduler: always as many bytes. */
#define HANDLE_BYTES 64
struct handle {
    uint64_t seq, gen;
    uint32_t cached, pid;
    uint64_t queued_ns, start_ns, end_ns; /* of prefill */
    uint64_t first_ns, load_ns;
};

struct task {
    struct task *next;
    struct worker_told *told; /* owned; o is in it */
    const struct wire_order *o;
    struct request *q;
    enum task_state state;
    bool hands;    /* prefill: hands over after one token */
    bool has_from; /* from is to be taken; afterwards: was */
    bool taken;
    struct handle from;
    uint64_t taken_ns;

    bool has_seq;
    struct kv_seq_info seq;
    int64_t n_pub; /* blocks of the table that are the sequence's; behind them a tail of it, then own credit */
    bool seq_tail;
    bool no_wait;     /* waited long enough for others */
    uint8_t *digests; /* [n_digest][32] of the full blocks of the sequence */
    int64_t n_digest, cap_digest;

    bool cached_known;
    uint64_t retry_ns, pending_ns, starved_ns;
    uint64_t busy_ns, progress_ns;
};

struct serve {
    struct stage s;
    const char *role;
    char name[WIRE_NAME_BYTES_MAX + 1], store_name[WIRE_NAME_BYTES_MAX + 1], compat[192];
    struct worker_link *link;
    struct task *orders; /* by priority, then as they came */
    int64_t n_order;

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
    uint64_t done_ns;              /* behind it: since when no order is open and no gateway waits; 0: not yet */
    bool told_drain;               /* the scheduler sends no orders any more */
    bool refused;                  /* it takes no worker like this one; was said */
    uint64_t drain_ns;             /* when what runs is given up; 0: not draining */
    uint64_t n_preempted, said_ns; /* for want of slots; when it may be said again */
    struct worker_room room;
    uint64_t room_ns;
    uint64_t step_ns, context; /* of the last decode step */
    uint32_t batch;
    uint32_t steps[WIRE_STEPS_MAX];
    uint64_t step_tokens;
};

void serve_say(const struct serve *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- serve_task.c: orders come and end ---- */

int task_take(struct err *e, struct serve *v, struct worker_told *t);
void task_sweep(struct serve *v); /* frees those that are closed */
struct task *task_find(const struct serve *v, uint64_t id);
void task_free(struct serve *v, struct task *o);
int task_append(struct err *e, struct task *o, uint32_t id); /* to q->all */
int task_digests(struct err *e, struct task *o, int64_t n);  /* of the first n blocks */
uint32_t task_n_out(const struct task *o);

/* Each gives back what it held, reports, and closes it. */
int task_fail(struct err *e, struct serve *v, struct task *o, int code, const char *text);
int task_cancel(struct err *e, struct serve *v, struct task *o);
int task_preempt(struct err *e, struct serve *v, struct task *o);

/* ---- serve_hold.c: the store ---- */

int hold_open(struct err *e, struct serve *v); /* waits for it; v->store stays NULL where SIGTERM came before */
void hold_close(struct serve *v);
/* What is due: the store is back, news, sequences to be leased or taken, credit to be given back. */
int hold_turn(struct err *e, struct serve *v);
/* Tries to have slots for `n` blocks, and a reserve. */
void hold_want(struct serve *v, int64_t n);
/* The full blocks that the store does not have; with `tail`, the half-filled one too. False: they stay ours. */
bool hold_publish(struct serve *v, struct task *o, bool tail);
bool hold_hand(struct serve *v, struct task *o, struct kv_seq_info *out);
/* The order holds nothing any more. */
void hold_drop(struct serve *v, struct task *o);
bool hold_valid(const struct serve *v, const struct task *o);
uint64_t hold_room(struct serve *v); /* blocks that could be had */

/* ---- serve_step.c ---- */

int serve_step(struct err *e, struct serve *v, bool *did);

/* ---- serve_out.c: what is sent and reported ---- */

/* The token that a step gave: sent. *end: that was the last. */
int out_token(struct err *e, struct serve *v, struct task *o, enum answer_end *end);
int out_echo(struct err *e, struct serve *v, struct task *o);
/* The end frame, then the report; the order is closed. */
int out_end(struct err *e, struct serve *v, struct task *o, enum answer_end end);
int out_progress(struct err *e, struct serve *v, struct task *o);
int out_prefilled(struct err *e, struct serve *v, struct task *o, const struct kv_seq_info *handed);
int out_report(struct err *e, struct serve *v, struct task *o, const char *what, int code, const char *text);

void handle_write(uint8_t out[HANDLE_BYTES], const struct handle *h);
bool handle_read(struct handle *h, struct wire_bytes b);

#endif
