/*
 * Private to lib/gateway. A request is one line of the caller. A choice is one of its answers; the scheduler knows it
 * as a job, under a number that is never used again in the life of the gateway. When the scheduler gives up a job that
 * is still wanted, its choice continues under a new number, after the tokens that were given out.
 *
 * What has to be sent to the scheduler is derived from the state of a choice: submitted on this connection or not,
 * tokens reported so far, ended. A choice with something to send is in one list until the session takes it; when the
 * window of the session is full it stays there until SESSION_ACKED. A lost connection only resets "submitted".
 */
#ifndef GATEWAY_IMPL_H
#define GATEWAY_IMPL_H

#include "base/list.h"
#include "base/log_limit.h"
#include "base/time.h"
#include "gateway/gateway.h"
#include "link/session.h"

#define BUCKETS 4096
#define REPORT_TOKENS 64 /* the first token is reported at once, later ones when this many are new … */
#define REPORT_NS NS_S   /* … or after this long */
#define END_NS NS_S      /* from `done` to the end frame at most */
#define TRIES_MAX 5      /* requests to tokenize for one line; jobs of a choice that are lost */
#define ASKED_MAX 64     /* lines at tokenize at once */
#define ENDED_N 4096     /* jobs remembered after their end */

enum gw_state {
    GW_WAITING, /* to be sent to tokenize */
    GW_ASKED,   /* tokenize has the line and has not answered completely */
    GW_READ,    /* all of its choices are here */
    GW_STATES
};

struct gw_request {
    struct list hash;  /* by seq */
    struct list node;  /* of requests[state], the oldest first */
    uint64_t seq, ask; /* ask: the seq of its `ask` frame, never used again */
    enum gw_state state;
    char *line; /* until GW_READ; its id, n_id 0: none, lies after it */
    size_t n_line, n_id;
    bool cancelled;       /* by the caller */
    bool too_long;        /* the line, which was not copied */
    uint32_t tries;       /* connections to tokenize that ended while it was asked */
    uint64_t deadline_ns; /* 0: none */
    struct list choices;  /* by index; before GW_READ those that have come */
    uint32_t n_choice;
};

struct gw_choice {
    struct list hash;     /* by job */
    struct list node;     /* of its request */
    struct list to_send;  /* of those with something to send to the scheduler */
    struct gw_request *r; /* NULL: it has ended, and only the report to the scheduler is left */
    uint64_t job;
    uint32_t index, attempt, max_tokens;
    uint8_t *frame; /* the `prompt` frame of tokenize, with its length prefix; owned */
    size_t n_frame;
    bool submitted; /* on the present connection */
    bool again;     /* it was submitted on an earlier one: a worker may run it */
    bool echoed;
    uint64_t submit_ns;  /* not before */
    uint64_t sent_ns;    /* when it was first submitted */
    uint64_t refused_ns; /* since when the scheduler refuses it; 0: it does not */
    uint32_t tries;      /* jobs that were lost */
    uint32_t *out;       /* tokens given out; [n_out] */
    uint32_t n_out;
    size_t size_out;
    uint32_t n_reported; /* tokens that the scheduler was told of on this connection */
    uint64_t reported_ns;
    uint64_t first_ns, last_ns; /* of its tokens */
    uint64_t done_ns;           /* when the scheduler reported a good end; 0: it did not */
    enum wire_reason done;
    enum wire_reason ended; /* r NULL: the reason to report; 0: the job is cancelled */
};

struct gw_ended {
    uint64_t job;
    uint32_t n_out; /* UINT32_MAX: late tokens of it are ignored */
};

struct gateway {
    struct gateway_opts o;
    char name[WIRE_NAME_BYTES_MAX + 1];
    struct session_hub *hub;
    struct session *sched, *tokenize;
    struct session_listener *workers;
    uint64_t sched_down_ns, tokenize_down_ns; /* since when; 0: connected */
    bool refusal_logged;                      /* since one of the two was last connected */

    struct list by_seq[BUCKETS], by_job[BUCKETS];
    struct list requests[GW_STATES], to_send;
    uint64_t n_running, next_job, next_ask;
    uint32_t n_asked;  /* lines that tokenize has not answered completely, also of requests that have ended */
    uint64_t timer_ns; /* nothing is due before */
    struct gw_ended ended[ENDED_N];

    bool greeted; /* the hello of tokenize has come on this connection */
    struct log_limit peer_log;
    bool has_fp;
    uint8_t fp[32];
    struct wire_arena *arena, *prompt_arena; /* of the frame that came; of a choice's own prompt frame */
    struct err broken;                       /* no memory, returned by the step */
};

/* ---- gateway.c ---- */

void gw_timer(struct gateway *g, uint64_t at_ns); /* something is due then */
void gw_deadline_passed(struct err *e, const struct gateway *g);
void gw_log(struct gateway *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The frame of an event, in g->arena. False: it breaks the schema; that is logged, and the frame ignored. */
bool gw_frame(struct gateway *g, struct wire_frame *f, const struct session_event *ev);
void gw_unexpected(struct gateway *g, const struct wire_frame *f, const struct session_event *ev); /* logs it */
void gw_broken(struct gateway *g, const struct err *e);

/* ---- choice.c: requests and their choices, and how they end ---- */

struct gw_request *gw_request_find(const struct gateway *g, uint64_t seq);
/* Copies id and line. */
int gw_request_new(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n);
struct wire_str gw_request_id(char buf[32], const struct gw_request *r); /* before GW_READ */
void gw_request_move(struct gateway *g, struct gw_request *r, enum gw_state state);
/* Ends all of a request by an err frame each, or (why NULL) an end frame each with reason cancelled; by one frame
 * before GW_READ. Frees r. */
void gw_request_end(struct gateway *g, struct gw_request *r, const struct err *why);
void gw_request_refused(struct gateway *g, struct gw_request *r, const struct wire_frame *f); /* f: tokenize's err */
void gw_request_read(struct gateway *g, struct gw_request *r); /* all of its choices are here */
void gw_request_drop_choices(struct gw_request *r);            /* before GW_READ */

struct gw_choice *gw_choice_find(const struct gateway *g, uint64_t job);
/* ev: the SESSION_FRAME event of f, a prompt frame; it is copied. */
int gw_choice_new(struct err *e, struct gateway *g, struct gw_request *r, const struct session_event *ev,
                  const struct wire_prompt *q);
/* Its prompt frame, borrowed until the next call. */
int gw_choice_prompt(struct err *e, struct gateway *g, struct wire_frame *f, const struct gw_choice *c);
/* Gives c another job. runs: a worker may have the old one, and new tokens of that cancel it. */
void gw_choice_renumber(struct gateway *g, struct gw_choice *c, bool runs);
/* These emit the last frame of a choice: the worker's, or an end or (why not NULL) err frame of the gateway's own. c is
 * freed, or stays in the list of what is to be sent; its request is freed with the last one. */
void gw_choice_take_end(struct gateway *g, struct gw_choice *c, const struct wire_end *w);
void gw_choice_end(struct gateway *g, struct gw_choice *c, enum wire_reason reason, const struct err *why);
void gw_choice_free(struct gw_choice *c); /* emits nothing */
void gw_free_all(struct gateway *g);

/* ---- line.c: tokenize ---- */

bool gw_line_ready(const struct gateway *g); /* the oldest request can be sent now */
void gw_line_send(struct gateway *g);
void gw_line_event(struct gateway *g, const struct session_event *ev);

/* ---- submit.c: the scheduler ---- */

void gw_send_add(struct gateway *g, struct gw_choice *c); /* c has something to send, now or when it is due */
void gw_send_all(struct gateway *g, uint64_t now);        /* what the session takes */
/* Tokens of a job that has ended or was given up: the scheduler is to cancel it, once. n_out: those it has made. */
void gw_cancel_stray(struct gateway *g, uint64_t job, uint64_t n_out);
/* The job is lost, or (runs: a worker may still have it) its tokens cannot be used: c continues as another job, after
 * the tokens given out. c may end by this. */
void gw_renew(struct gateway *g, struct gw_choice *c, bool runs, const char *why, uint64_t now);
void gw_sched_event(struct gateway *g, const struct session_event *ev, uint64_t now);

/* ---- out.c: workers ---- */

void gw_out_event(struct gateway *g, const struct session_event *ev, uint64_t now);

#endif
