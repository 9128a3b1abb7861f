/*
 * Private to lib/link: the inside of the worker's client of the scheduler. worker.c has the calls and the thread,
 * worker_sched.c the session to the scheduler, worker_order.c orders and events, worker_report.c reports,
 * worker_outlet.c the sessions to gateways. One lock covers everything and is held for moments. The hub and its
 * sessions belong to the thread; the calls only change lists and wake it.
 */
#ifndef LINK_WORKER_IMPL_H
#define LINK_WORKER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/time.h"
#include "link/session.h"
#include "link/worker.h"

#define WORKER_OUTLETS 1024 /* gateways at once */
#define WORKER_PHASE_BYTES 16

/* One attempt of a request, from the time its order is received until the scheduler has acknowledged the report that
 * closes it. bytes and mem are the caller's from worker_link_take to worker_order_release. */
struct order {
    struct list event_node; /* of worker_link.order_events, while there are events */
    uint32_t events;        /* to be taken: a bit 1 << enum worker_event_type each */
    struct wire_order f;    /* what it borrows from bytes and mem is the caller's */
    uint8_t *bytes;
    struct wire_arena *mem;
    uint32_t n_join; /* the join that it came after */

    struct list node;  /* of worker_link.orders */
    atomic_uint n_ref; /* the list of orders, the caller, each frame for its gateway */
    char gw[WIRE_NAME_BYTES_MAX + 1], phase[WORKER_PHASE_BYTES];
    struct outlet *outlet;    /* NULL: the order failed when it was received */
    uint32_t n_out;           /* tokens of the answer that its gateway has acknowledged */
    uint64_t n_sent, n_acked; /* frames */
    bool closed;              /* the report is made */
    bool cancelled, preempted;
    int fail_code; /* the link cancelled it, for fail_text */
    const char *fail_text;
};

/* A frame in a send queue (to a gateway, or a report to the scheduler), encoded; kept until its receiver has
 * acknowledged it, and sent again after a reconnect. One a frame, not one an answer. */
struct message {
    struct list node;
    struct order *order;
    uint64_t number;       /* among the frames sent on this connection; 0: not sent */
    uint64_t need;         /* report: frames that the gateway must have acknowledged */
    bool closes, progress; /* report */
    uint32_t n_out;        /* frame for a gateway: tokens of the answer after it */
    size_t n;
    uint8_t p[];
};

struct outlet {
    struct list node;
    struct session *session;
    uint64_t used_ns, bytes;  /* bytes: of the list */
    bool sweep;               /* frames of cancelled orders are among those that are not sent */
    struct list sent, unsent; /* messages, in order: sent on this connection, and the rest */
    uint32_t n_order;         /* that may still send */
};

struct worker_link {
    pthread_mutex_t lock;
    pthread_t thread;
    bool has_thread, stop;
    bool hold; /* frames for gateways wait for more of them */
    struct session_hub *hub;
    int fd;

    char role[WIRE_NAME_BYTES_MAX + 1];
    struct worker_link_opts o;
    uint64_t inc;

    struct session *sched; /* NULL: the scheduler refused, until dial_ns */
    struct wire_arena *mem;
    enum worker_link_state state;
    struct err why;
    uint64_t dial_ns, lost_ns; /* lost: since when not joined */
    uint64_t join;             /* number of the join on this connection; 0: not sent */
    uint32_t n_join;
    uint64_t n_taken, n_counted; /* orders since the join: taken by the caller; counted in its capacity */
    bool drain, draining;        /* drain: the caller asked for it. draining: the scheduler said so last */
    bool drain_received;         /* on this connection */
    uint32_t events;             /* of draining, to be taken: as in struct order */

    struct wire_capacity now; /* what the caller has set */
    uint32_t steps[WIRE_STEPS_MAX];
    struct wire_capacity capacity; /* that was sent last on this connection */
    uint64_t capacity_ns;          /* when; 0: none was */

    struct list orders;
    uint32_t n_order;
    struct list order_events, reports, outlets;
    uint64_t queued; /* bytes of all outlets */
    uint32_t n_outlet;
};

/* ---- worker_order.c ---- */

struct order *order_open(struct err *e, const struct wire_order *f); /* the caller's; NULL, ERR_NO: it is closed */
void order_frame(struct worker_link *w, const struct wire_order *f, const struct session_event *ev);
void control_frame(struct worker_link *w, const struct wire_control *f);
void order_fail(struct worker_link *w, struct order *o, int code, const char *text); /* cancels it. text: constant */
void order_gone(struct worker_link *w, struct order *o); /* the scheduler no longer knows it */
void order_closed(struct order *o); /* its closing report is queued: the caller gets no more events of it */
void order_unref(struct order *o);
int message_new(struct err *e, struct message **out, struct order *o, const struct wire_frame *f);
void order_leases(struct worker_link *w, uint64_t now_ns);
void set_draining(struct worker_link *w, bool on); /* with an event, if it changes */

/* ---- worker_report.c ---- */

int report_add(struct err *e, struct worker_link *w, struct order *o, const struct wire_report *r);
void report_pump(struct worker_link *w); /* sends those that may leave */
void report_acked(struct worker_link *w, uint64_t acked);
void report_down(struct worker_link *w);

/* ---- worker_outlet.c ---- */

/* ERR_NO: url is no address. */
int outlet_get(struct err *e, struct outlet **out, struct worker_link *w, const char *url);
void outlet_event(struct worker_link *w, struct outlet *t, const struct session_event *ev);
void outlet_pump(struct worker_link *w, uint64_t now_ns);
void outlet_free_all(struct worker_link *w); /* but their sessions, which go with the hub */

/* ---- worker_sched.c ---- */

int sched_open(struct err *e, struct worker_link *w); /* checks the names; dials */
void sched_link_event(struct worker_link *w, const struct session_event *ev);
void sched_link_pump(struct worker_link *w, uint64_t now_ns);
uint64_t sched_link_next_ns(const struct worker_link *w); /* when something is due by time alone */

#endif
