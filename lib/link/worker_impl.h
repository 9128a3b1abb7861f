/*
 * Private to lib/link: a worker's side of the scheduler inside. worker.c has the calls and the thread, worker_sched.c
 * what is said to the scheduler and by it, worker_order.c the orders and what is told of them, worker_report.c the
 * reports, worker_outlet.c the tokens on their way to the gateways. All under one lock that is held for moments.
 */
#ifndef LINK_WORKER_IMPL_H
#define LINK_WORKER_IMPL_H

#include <pthread.h>

#include "link/worker.h"

#define WORKER_BUCKETS 1024  /* of orders */
#define WORKER_TOMBS 4096    /* cancelled orders that may still come */
#define WORKER_EARLY 256     /* orders that are to be preempted and have not come yet */
#define WORKER_OUTLETS 1024  /* gateways at once */
#define WORKER_OPEN 2        /* messages with a work poll: one is parked, one on its way */
#define WORKER_MS 1000000ull /* ns */
#define WORKER_AGAIN_MS 100  /* after a question that led to nothing */
#define WORKER_BROKEN_MS 10  /* after one that failed: by then it is known whether the connection is there */
#define WORKER_REFUSED_MS 1000
#define WORKER_QUIET_MS 3000 /* without any answer: both polls go once more */
#define WORKER_PHASE_BYTES 16

struct outlet;

/* From the time it is told until the scheduler has taken the report that closes it. */
struct order {
    struct order *next; /* of its bucket */
    uint64_t id, job, lease_ns;
    uint32_t attempt, n_prompt, max_tokens;
    char gw[WIRE_NAME_BYTES_MAX + 1], phase[WORKER_PHASE_BYTES];
    struct outlet *outlet;
    uint32_t n_out;               /* tokens of the answer that its gateway has confirmed */
    uint64_t n_sent, n_confirmed; /* frames */
    uint32_t n_piece;             /* of it in its outlet */
    bool closed;                  /* the report is made */
    bool gone;                    /* and taken: freed with its last piece */
    bool cancelled, preempted;    /* told */
};

struct need { /* what orders will take that the caller's figures do not have in yet */
    uint32_t seqs, tokens;
    uint64_t blocks;
};

struct told {
    struct worker_told pub; /* first */
    struct told *next;
    struct need need;
    uint8_t *bytes; /* of the order's frame */
    struct wire_arena *mem;
    struct wire_frame f;
};

struct report {
    struct report *next;
    struct order *order; /* NULL: of one that never came */
    uint64_t need;       /* frames that its gateway must have confirmed */
    uint64_t message;    /* the open question that carries it; 0: none */
    bool closes;
    struct wire_report f; /* strings and lists are in `data`, or constant */
    char gw[WIRE_NAME_BYTES_MAX + 1];
    _Alignas(uint32_t) uint8_t data[]; /* ids first */
};

struct piece { /* a frame for a gateway, encoded */
    struct piece *next;
    struct order *order;
    uint32_t n_out;
    size_t n;
    uint8_t p[];
};

struct outlet {
    struct outlet *next;
    uint64_t number, used_ns;
    char *url;
    struct link_dialer *dialer;
    bool sweep;                       /* pieces of cancelled orders are among those that wait */
    uint64_t asked, again_ns;         /* the open question; 0: none. again: not before, after one that failed */
    struct piece *sent, *wait, **end; /* sent: in the open question */
    uint32_t n_order;                 /* that may still send */
};

struct work { /* an open question with a work poll */
    uint64_t id;
    bool drain, reports;
};

struct worker_link {
    pthread_mutex_t lock;
    pthread_t thread;
    bool has_thread, stop;
    bool hold; /* frames for gateways wait for more of them */
    struct link_box *box;
    struct link_dialer *dialer;
    int fd;

    char *name, *store, *compat;
    char role[WIRE_NAME_BYTES_MAX + 1];
    struct worker_link_opts o;
    uint64_t inc, question; /* question: number of the last one */

    bool drain;
    enum worker_link_state state;
    struct err why;
    uint64_t join, ctl; /* open questions; 0: none */
    struct work work[WORKER_OPEN];
    uint32_t n_work;
    uint64_t newest; /* the work poll that counts, answered or not */
    uint64_t join_at_ns, work_at_ns, ctl_at_ns, joined_ns, heard_ns, lease_look_ns;
    uint64_t got, got_ctl;
    struct worker_room room, said; /* said: in the newest work poll */
    struct need coming, taken;     /* told; of those taken by the caller since it last said its room */

    struct order *order[WORKER_BUCKETS];
    uint32_t n_order;
    uint64_t tomb[WORKER_TOMBS], early[WORKER_EARLY];
    uint32_t tomb_at, early_at;
    struct told *first, **end;
    bool quiet;               /* and have gone */
    bool draining, ctl_first; /* draining: told. ctl_first: no control poll was answered since the join */

    struct report *reports, **reports_end;
    struct outlet *outlets, *retired; /* retired: to be freed without the lock */
    uint64_t outlet_number, queued;   /* queued: bytes */
    uint32_t n_outlet;
};

uint64_t worker_now_ns(void); /* CLOCK_MONOTONIC */

/* ---- worker_order.c ---- */

struct order *order_find(const struct worker_link *w, uint64_t id);
/* p: its bytes. false: no memory; it comes again, and so must all behind it. */
bool order_frame(struct worker_link *w, const struct wire_order *f, const uint8_t *p, size_t n);
void control_frame(struct worker_link *w, const struct wire_control *f);
void order_cancel(struct worker_link *w, struct order *o); /* once */
void order_gone(struct worker_link *w, struct order *o);   /* the scheduler knows it no longer */
void order_leases(struct worker_link *w, uint64_t now_ns);
void order_tell(struct worker_link *w, enum worker_told_what what, uint64_t order, struct wire_str role);
void order_untell(struct worker_link *w); /* frees what was not taken */
void order_drop_piece(struct order *o);   /* it has one less */

/* ---- worker_report.c ---- */

int report_make(struct err *e, struct report **out, const struct wire_report *r);
void report_add(struct worker_link *w, struct report *r);
/* Of an order that never came. */
void report_orphan(struct worker_link *w, const char *what, struct wire_str gw, uint64_t job, uint64_t order,
                   uint32_t attempt, const struct err *why);
bool report_ready(const struct worker_link *w);                               /* one may leave */
bool report_put(struct worker_link *w, struct link_msg *m, uint64_t message); /* those that may; true: some */
void report_done(struct worker_link *w, uint64_t message);                    /* they were taken */
void report_back(struct worker_link *w, uint64_t message);                    /* they go again; 0: all */

/* ---- worker_outlet.c ---- */

int outlet_get(struct err *e, struct outlet **out, struct worker_link *w, const char *url);
void outlet_add(struct worker_link *w, struct outlet *t, struct piece *p);
bool outlet_event(struct worker_link *w, const struct link_event *ev); /* false: of none */
uint64_t outlet_pump(struct worker_link *w, uint64_t now_ns);          /* when again */
void outlet_free_list(struct outlet *t);
void outlet_free_all(struct worker_link *w);

/* ---- worker_sched.c ---- */

int sched_join_message(struct err *e, struct link_msg *m, const struct worker_link *w);
void sched_link_event(struct worker_link *w, const struct link_event *ev, uint64_t now_ns);
void sched_link_pump(struct worker_link *w, uint64_t now_ns);
uint64_t sched_link_next_ns(const struct worker_link *w, uint64_t now_ns);

#endif
