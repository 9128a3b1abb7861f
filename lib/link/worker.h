/*
 * The connections of a worker: one session to the scheduler, and one to each gateway that has a request here. They run
 * in a thread of their own, so a long step does not delay them. All calls below belong to one other thread, the one
 * that computes; they do not block.
 *
 * A work item (frame `order`) is one attempt of a request, assigned by the scheduler. It is open from the time it is
 * received until a report closes it (prefilled for a prefill item, ended, failed, preempted, cancelled). After each
 * connect the link joins with every item whose closing report the scheduler has not acknowledged, and sends the
 * reports in flight again.
 *
 * The link sends a report only after the gateway has acknowledged every frame of that item before the report. So the
 * scheduler never counts tokens that the gateway lacks, and a retry that continues from its count leaves no gap.
 * Delivery to a gateway is at least once: a frame is kept until it is acknowledged, and sent again, in order, after a
 * reconnect; the gateway deduplicates tokens by their position.
 *
 * The link cancels an item when the scheduler has been disconnected for longer than the item's lease. When more than
 * WORKER_GATEWAY_BYTES_MAX bytes wait for a gateway, or out_bytes_max for all of them, or a frame is too long for a
 * session, the link cancels the item and reports it as failed, whatever the caller reports.
 */
#ifndef LINK_WORKER_H
#define LINK_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "link/session.h"
#include "wire/wire.h"

#define WORKER_GATEWAY_BYTES_MAX (64u << 20) /* of one gateway */
#define WORKER_OUT_BYTES_MAX ((uint64_t)256 << 20)

struct worker_link;

struct worker_link_opts { /* the strings are borrowed until worker_link_close */
    const char *sched;    /* url */
    struct session_security security;
    const char *name;   /* unique among the workers of a scheduler */
    const char *role;   /* prefill, decode or both */
    const char *store;  /* name of its kvstore; "": none */
    const char *compat; /* KV identity: model, KV type and arithmetic; equal for all workers of a scheduler */
    uint32_t seqs;
    uint64_t blocks;
    uint32_t max_len, chunk;
    uint64_t out_bytes_max; /* limit of the frames that gateways have not acknowledged; 0: WORKER_OUT_BYTES_MAX */
    float pre[3], dec[3];   /* coefficients of wire_join, 0: the scheduler learns them */
};

/* Does not wait for a connection. While the scheduler is unreachable or refuses this worker, the link retries; see
 * worker_link_state. */
int worker_link_open(struct err *e, struct worker_link **out, const struct worker_link_opts *o);
/* Ends the sessions and the thread; blocks for at most about a second. Unacknowledged frames and reports are lost. NULL
 * is allowed. */
void worker_link_close(struct worker_link *w);

enum worker_link_state { WORKER_JOINING, WORKER_JOINED, WORKER_REFUSED };
/* JOINED: connected, and the scheduler has processed the join. REFUSED: *reason is the scheduler's (its workers have
 * another model); the link retries every second. reason may be NULL. */
enum worker_link_state worker_link_state(struct worker_link *w, struct err *reason);

/* Sets the free capacity of the worker. It must count every item that worker_link_take has returned as running; the
 * scheduler subtracts the items in flight. Sent at once when it changes, and every second. Before the first call: none.
 * Reads from c: seqs, tokens, blocks, step_ns, context, batch, steps (NULL, or all WIRE_STEPS_MAX) and step_tokens; the
 * link sets the rest. Copied. */
void worker_link_capacity(struct worker_link *w, const struct wire_capacity *c);
void worker_link_drain(struct worker_link *w, bool on); /* on: the scheduler must assign no further items */

enum worker_event_type {
    WORKER_EV_ASSIGNED = 1, /* a new work item */
    WORKER_EV_PREEMPT,      /* the caller must release the slots of the item and report `preempted` */
    WORKER_EV_CANCEL,       /* the caller must end the item and report `cancelled` */
    WORKER_EV_DRAIN,        /* no item follows; a worker that is shutting down may exit when it is idle. Also the
                               scheduler's response to worker_link_drain */
    WORKER_EV_RESUME,
};
struct worker_event {
    enum worker_event_type type;
    uint64_t order; /* id of the work item */
    /* WORKER_EV_ASSIGNED: the item, valid until worker_order_release, also after worker_link_close. Otherwise NULL. */
    const struct wire_order *assigned;
};
/* The next event; false: none. Events of one item are ordered by type. A closed item has no further event. */
bool worker_link_take(struct worker_link *w, struct worker_event *ev);
void worker_order_release(const struct wire_order *o); /* before or after the item is closed; NULL is allowed */
int worker_link_fd(const struct worker_link *w);       /* readable while there is an event to take */

/*
 * The calls below identify an item by worker_event.assigned, before worker_order_release. ERR_NO: it is closed.
 *
 * Queues a frame (out, end) for the gateway of the item; copied. The link sets its seq to the item's job. n_out: tokens
 * of the answer up to and with this frame. For a cancelled item nothing is queued.
 */
int worker_link_send(struct err *e, struct worker_link *w, const struct wire_order *order, const struct wire_frame *f,
                     uint32_t n_out);
/* true: frames wait until false, so that those of a step are sent together. Hold for the duration of a step at most. */
void worker_link_hold(struct worker_link *w, bool hold);
/* From r: what, n_done, cached, n_out, out, busy_ns, handle, reason, code, text; the link sets the rest. Copied. */
int worker_link_report(struct err *e, struct worker_link *w, const struct wire_order *order,
                       const struct wire_report *r);

/* Whether every frame and report has been acknowledged. */
bool worker_link_idle(struct worker_link *w);
uint64_t worker_link_queued(struct worker_link *w); /* bytes that gateways have not acknowledged */

#endif
