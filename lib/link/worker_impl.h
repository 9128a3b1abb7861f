/*
 * Private to lib/link: the connections of a worker. worker.c has the calls and the thread, worker_sched.c the session
 * to the scheduler, worker_item.c work items and events, worker_report.c reports, worker_outlet.c the sessions to
 * gateways. One lock protects all fields and is never held while blocking. The hub and its sessions belong to the
 * thread; the calls only change lists and wake the thread.
 */
#ifndef LINK_WORKER_IMPL_H
#define LINK_WORKER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/list.h"
#include "base/time.h"
#include "link/session.h"
#include "link/worker.h"

#define WORKER_OUTLETS 1024 /* gateways connected at a time */
#define WORKER_PHASE_BYTES 16

/* One attempt of a request, from the time its frame `order` is received until the scheduler has acknowledged the report
 * that closes it. The caller owns bytes and mem from worker_link_take to worker_order_release. */
struct work_item {
    struct list event_node; /* in worker_link.item_events, while it has events */
    uint32_t events;        /* not yet taken: a bit 1 << enum worker_event_type each */
    struct wire_order f;    /* borrows from bytes and mem, so only the caller may follow its pointers */
    uint8_t *bytes;
    struct wire_arena *mem;
    uint32_t n_join; /* worker_link.n_join when it was received */

    struct list node;  /* in worker_link.items */
    atomic_uint n_ref; /* reference count: worker_link.items, the caller, each frame for its gateway */
    char gw[WIRE_NAME_BYTES_MAX + 1], phase[WORKER_PHASE_BYTES];
    struct outlet *outlet;    /* NULL: the item failed when it was received */
    uint32_t n_out;           /* tokens of the answer that its gateway has acknowledged */
    uint64_t n_sent, n_acked; /* frames */
    bool closed;              /* its closing report is queued */
    bool cancelled, preempted;
    int fail_code; /* not 0: the link cancelled it for fail_text */
    const char *fail_text;
};

/* An encoded frame in a send queue (to a gateway, or a report to the scheduler): kept until its receiver has
 * acknowledged it, and sent again after a reconnect. */
struct message {
    struct list node;
    struct work_item *item;
    uint64_t number;       /* session_sent of this connection after it was sent; 0: not sent */
    uint64_t need;         /* report: sent after the gateway has acknowledged this many frames of the item */
    bool closes, progress; /* report */
    uint32_t n_out;        /* frame for a gateway: tokens of the answer up to and with it */
    size_t n;
    uint8_t p[];
};

/* The send queue and session of one gateway. */
struct outlet {
    struct list node; /* in worker_link.outlets */
    struct session *session;
    uint64_t used_ns, bytes;  /* last use; bytes of sent and unsent */
    bool sweep;               /* unsent may have frames of cancelled items */
    struct list sent, unsent; /* messages, in order: in flight on this connection, and the rest */
    uint32_t n_item;          /* items that may still send */
};

struct worker_link {
    pthread_mutex_t lock;
    pthread_t thread;
    bool has_thread, stop;
    bool hold; /* frames for gateways wait until worker_link_hold(false) */
    struct session_hub *hub;
    int fd; /* eventfd: readable while the caller can take events */

    char role[WIRE_NAME_BYTES_MAX + 1];
    struct worker_link_opts o;
    uint64_t inc;

    struct session *sched; /* NULL: the scheduler refused this worker; dialed again at dial_ns */
    struct wire_arena *mem;
    enum worker_link_state state;
    struct err reason;         /* of WORKER_REFUSED */
    uint64_t dial_ns, lost_ns; /* lost: since when the worker is not joined */
    uint64_t join;             /* session_sent after the join on this connection; 0: not sent */
    uint32_t n_join;           /* joins so far */
    uint64_t n_taken;          /* items since the join that the caller has taken */
    uint64_t n_counted;        /* n_taken at the last worker_link_capacity */
    bool drain, draining;      /* requested by the caller; last state set by the scheduler */
    bool drain_received;       /* on this connection */
    uint32_t events;           /* drain and resume events not yet taken: bits as in struct work_item */

    struct wire_capacity now; /* of the last worker_link_capacity; its steps are copied to the next field */
    uint32_t steps[WIRE_STEPS_MAX];
    struct wire_capacity last_capacity; /* that was sent on this connection */
    uint64_t last_capacity_ns;          /* time of it; 0: none was sent */

    struct list items;
    uint32_t n_item;
    struct list item_events, reports, outlets;
    uint64_t queued; /* bytes of all outlets */
    uint32_t n_outlet;
};

/* ---- worker_item.c ---- */

struct work_item *item_open(struct err *e,
                            const struct wire_order *f); /* of worker_event.assigned; NULL, ERR_NO: closed */
void item_frame(struct worker_link *w, const struct wire_order *f, const struct session_event *ev);
void control_frame(struct worker_link *w, const struct wire_control *f);
void item_fail(struct worker_link *w, struct work_item *item, int code,
               const char *text);                                /* cancels it; text: a literal */
void item_remove(struct worker_link *w, struct work_item *item); /* removes it: its closing report is acknowledged */
void item_closed(struct work_item *item);                        /* its closing report is queued: drops its events */
void item_unref(struct work_item *item);
int message_new(struct err *e, struct message **out, struct work_item *item, const struct wire_frame *f);
void item_leases(struct worker_link *w, uint64_t now_ns);
void set_draining(struct worker_link *w, bool on); /* queues an event if it changes */

/* ---- worker_report.c ---- */

int report_add(struct err *e, struct worker_link *w, struct work_item *item, const struct wire_report *r);
void report_pump(struct worker_link *w); /* sends the reports whose frames are acknowledged */
void report_acked(struct worker_link *w, uint64_t acked);
void report_down(struct worker_link *w);

/* ---- worker_outlet.c ---- */

/* Finds or opens the session to a gateway. ERR_NO: url is not an address. */
int outlet_get(struct err *e, struct outlet **out, struct worker_link *w, const char *url);
void outlet_event(struct worker_link *w, struct outlet *t, const struct session_event *ev);
void outlet_pump(struct worker_link *w, uint64_t now_ns);
void outlet_free_all(struct worker_link *w);

/* ---- worker_sched.c ---- */

int sched_open(struct err *e, struct worker_link *w); /* checks the options, creates the hub, dials */
void sched_link_event(struct worker_link *w, const struct session_event *ev);
void sched_link_pump(struct worker_link *w, uint64_t now_ns);
uint64_t sched_link_next_ns(const struct worker_link *w); /* time of the next timer */

#endif
