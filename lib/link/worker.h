/*
 * A worker's side of the scheduler: it joins (again, with what it runs, whenever the scheduler has forgotten it), keeps
 * a work poll and a control poll parked, sends tokens to the gateways and reports to the scheduler. A thread of its own
 * does all this, so a long step delays no heartbeat. The calls are for one other thread, the one that computes, and do
 * not block.
 *
 * What comes is told once: orders and controls that come twice are dropped, a cancel of an order that never came is
 * answered here. An order is open from the time it is told until a report closes it (prefilled of a prefill order,
 * ended, failed, preempted, cancelled).
 *
 * Nothing is said of a token to the scheduler before the gateway has confirmed it: a report leaves when all that was
 * sent of its order before has been confirmed. So the scheduler never knows more of an answer than the gateway has, and
 * another worker that goes on from there leaves no gap. Tokens of one gateway go in order, one message at a time; what
 * comes meanwhile goes with the next.
 */
#ifndef LINK_WORKER_H
#define LINK_WORKER_H

#include "link/ask.h"

struct worker_link;

struct worker_link_opts {
    const char *sched;  /* url */
    const char *name;   /* unique among the workers of a scheduler */
    const char *role;   /* prefill, decode or both */
    const char *store;  /* name of its kvstore; "": none */
    const char *compat; /* model, KV type and arithmetic */
    uint32_t seqs;
    uint64_t blocks;
    uint32_t max_len, chunk;
    float pre[3], dec[3]; /* coefficients of wire_join, 0: to be learned */
};

/* Does not wait for the scheduler to be there. Without one, or with one that refuses, it goes on trying; see
 * worker_link_state. */
int worker_link_open(struct err *e, struct worker_link **out, const struct worker_link_opts *o);
void worker_link_close(struct worker_link *w);

enum worker_link_state { WORKER_JOINING, WORKER_JOINED, WORKER_REFUSED };
/* JOINED: and connected. REFUSED: *why says in words (another model runs here); it tries again every second. */
enum worker_link_state worker_link_state(struct worker_link *w, struct err *why);

/* What it can take now, every order that was taken before counted in; goes out with a work poll at once where seqs,
 * tokens or blocks changed. What is told and not taken yet is subtracted here. Before the first call: none. */
struct worker_room {
    uint32_t seqs, tokens;
    uint64_t blocks;
    uint64_t step_ns, context; /* of the last decode step */
    uint32_t batch;
    uint32_t steps[WIRE_STEPS_MAX]; /* see wire_poll */
    uint64_t step_tokens;
};
void worker_link_room(struct worker_link *w, const struct worker_room *r);
void worker_link_drain(struct worker_link *w, bool on); /* its polls say that it wants to end */

enum worker_told_what {
    TOLD_ORDER = 1,
    TOLD_CANCEL,  /* order: it is to be ended; the report `cancelled` is due */
    TOLD_PREEMPT, /* order: its slots are to be given back; the report `preempted` is due */
    TOLD_DRAIN,   /* no new orders will come; it may end when it is idle, if it was asked to. Comes after its own wish
                     too, once the scheduler has heard of it */
    TOLD_RESUME,
    TOLD_ROLE, /* role */
};
struct worker_told {
    enum worker_told_what what;
    uint64_t order;
    const struct wire_order *o; /* TOLD_ORDER: everything in it lives as long as this */
    char role[WIRE_NAME_BYTES_MAX + 1];
};
/* The next thing; NULL: nothing. Freed by worker_told_free, for an order after it was closed or before. */
struct worker_told *worker_link_take(struct worker_link *w);
void worker_told_free(struct worker_told *t);
int worker_link_fd(const struct worker_link *w); /* readable while there is something to take */

/* A frame (out, end) for the gateway of an open order. n_out: tokens of the answer after it. */
int worker_link_send(struct err *e, struct worker_link *w, uint64_t order, const struct wire_frame *f, uint32_t n_out);
/* true: frames are kept until false, so that those of a step leave in one message. Not for long. */
void worker_link_hold(struct worker_link *w, bool hold);
/* r: what, n_done, cached, n_out, out, busy_ns, handle, reason, code, text; the rest is filled in. Copied. */
int worker_link_report(struct err *e, struct worker_link *w, uint64_t order, const struct wire_report *r);

/* Nothing waits to be sent or confirmed. */
bool worker_link_idle(struct worker_link *w);
uint64_t worker_link_queued(struct worker_link *w); /* bytes that wait for gateways */

#endif
