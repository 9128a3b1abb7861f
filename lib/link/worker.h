/*
 * The worker's client of the scheduler: one session to it, and one to each gateway that has a request here. A thread of
 * its own does all this, so a long step delays nothing. The calls are for one other thread, the one that computes, and
 * do not block.
 *
 * After each connect the link joins, with every order that the scheduler may not know to be closed, and sends the
 * reports that the scheduler has not acknowledged. An order is open from the time it is taken until a report closes it
 * (prefilled of a prefill order, ended, failed, preempted, cancelled).
 *
 * A report of an order leaves only after the gateway has acknowledged every frame that was sent of that order before
 * the report. So the scheduler never knows more of an answer than the gateway has, and a worker that continues from
 * there leaves no gap. A frame for a gateway is kept until it is acknowledged and sent again after a reconnect, in
 * order; the gateway drops the tokens that it has by their position.
 *
 * When the scheduler is not connected for longer than the lease of an order, the order is cancelled. When more than
 * WORKER_GATEWAY_BYTES_MAX bytes wait for a gateway, or a frame is too long for a session, the link cancels the order
 * too, and reports it as failed whatever the caller reports.
 */
#ifndef LINK_WORKER_H
#define LINK_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define WORKER_GATEWAY_BYTES_MAX (64u << 20)

struct worker_link;

struct worker_link_opts { /* the strings are borrowed until worker_link_close */
    const char *sched;    /* url */
    const char *name;     /* unique among the workers of a scheduler */
    const char *role;     /* prefill, decode or both */
    const char *store;    /* name of its kvstore; "": none */
    const char *compat;   /* model, KV type and arithmetic */
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
/* JOINED: connected, and the scheduler has processed the join. REFUSED: *why is the reason (another model runs here);
 * the link tries again every second. */
enum worker_link_state worker_link_state(struct worker_link *w, struct err *why);

/* What the worker can take now; every order that worker_link_take has returned counts as running; those that
 * it has not returned the scheduler subtracts. Sent at once when it changed, and every second. Before the first call:
 * none. Of c: seqs, tokens, blocks, step_ns, context, batch, steps (NULL, or all WIRE_STEPS_MAX) and step_tokens; the
 * rest is filled in. Copied. */
void worker_link_capacity(struct worker_link *w, const struct wire_capacity *c);
void worker_link_drain(struct worker_link *w, bool on); /* on: asks the scheduler for no more orders */

enum worker_event_type {
    WORKER_EV_ASSIGNED = 1, /* a new order */
    WORKER_EV_PREEMPT,      /* order: its slots are to be released; the report `preempted` is due */
    WORKER_EV_CANCEL,       /* order: it is to be ended; the report `cancelled` is due */
    WORKER_EV_DRAIN,        /* no order follows; the worker may end when it is idle, if it was asked to. Also the
                               scheduler's response to worker_link_drain */
    WORKER_EV_RESUME,
};
struct worker_event {
    enum worker_event_type type;
    uint64_t order;
    /* WORKER_EV_ASSIGNED: the order, which is valid until worker_order_release, also after worker_link_close. Of other
     * events NULL. */
    const struct wire_order *assigned;
};
/* The next event; false: there is none. Events of one order come in the order of their types. After the order was
 * closed no event of it follows. */
bool worker_link_take(struct worker_link *w, struct worker_event *ev);
void worker_order_release(const struct wire_order *o); /* before or after the order is closed; NULL is allowed */
int worker_link_fd(const struct worker_link *w);       /* readable while there is an event to take */

/*
 * The calls about an order take it as WORKER_EV_ASSIGNED gave it, before worker_order_release. ERR_NO: it is closed.
 *
 * Queues a frame (out, end) for the gateway of the order. The link sets its seq: the job of the order. n_out: tokens
 * of the answer after it. Of a cancelled order nothing is queued.
 */
int worker_link_send(struct err *e, struct worker_link *w, const struct wire_order *order, const struct wire_frame *f,
                     uint32_t n_out);
/* true: frames are kept until false, so that those of a step leave together. Not for long. */
void worker_link_hold(struct worker_link *w, bool hold);
/* r: what, n_done, cached, n_out, out, busy_ns, handle, reason, code, text; the rest is filled in. Copied. */
int worker_link_report(struct err *e, struct worker_link *w, const struct wire_order *order,
                       const struct wire_report *r);

/* Everything sent and reported is acknowledged. */
bool worker_link_idle(struct worker_link *w);
uint64_t worker_link_queued(struct worker_link *w); /* bytes that gateways have not acknowledged */

#endif
