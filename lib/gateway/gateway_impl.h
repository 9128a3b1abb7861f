/*
 * Private to lib/gateway. A request is one line of the caller. A choice is one of its answers; the scheduler knows it
 * as a job, by a number that the gateway never uses again. If a job ends without an end of the answer, the choice
 * continues as a new job, after the tokens that were output.
 *
 * The frames for the scheduler are derived from the state of a choice: submitted on this connection or not, tokens
 * reported so far, ended. A choice with something to send is in the list to_send until the session accepts it; if the
 * session is full, until SESSION_ACKED. A lost connection only resets `submitted`.
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
#define END_NS NS_S      /* limit from `done` to the end frame */
#define RETRIES_MAX 5    /* of a line at tokenize; of a choice with new jobs */
#define IN_FLIGHT_MAX 64 /* lines sent to tokenize and not answered */
#define BYTES_RETRY_NS NS_S
#define ENDED_N 4096 /* jobs to remember after their end */

enum gw_state {
    GW_WAITING, /* to be sent to tokenize */
    GW_SENT,    /* tokenize has the line and has not sent all choices */
    GW_PARSED,  /* all choices were received */
    GW_STATES
};

struct gw_request {
    struct list hash;  /* by seq */
    struct list node;  /* of requests[state], the oldest first */
    uint64_t seq, ask; /* ask: number of its newest `ask` frame, never used again */
    enum gw_state state;
    char *line; /* until GW_PARSED; the id follows it, n_id 0: none */
    size_t n_line, n_id;
    bool cancelled; /* by the caller */
    bool too_long;  /* the line, which was not copied */
    char tenant[WIRE_NAME_BYTES_MAX + 1];
    uint32_t retries;     /* sessions to tokenize that ended in GW_SENT */
    uint64_t deadline_ns; /* 0: none */
    struct list choices;  /* by index; before GW_PARSED those received so far */
    uint32_t n_choice;
};

struct gw_choice {
    struct list hash;     /* by job */
    struct list node;     /* of its request */
    struct list to_send;  /* node of gateway.to_send */
    struct gw_request *r; /* NULL: it has ended, and its end is still to be reported to the scheduler */
    uint64_t job;
    uint32_t index, attempt, max_tokens;
    uint8_t *frame; /* the `prompt` frame of tokenize, with its length prefix; owned */
    size_t n_frame;
    bool submitted;      /* on the current connection */
    bool again;          /* submitted on an earlier one, so a worker may run it */
    bool at_risk;        /* the scheduler's session broke while it was there; whether it died is not known yet */
    bool suspect;        /* the scheduler died while it was there: it is submitted alone */
    bool echoed;         /* the prompt was output */
    uint64_t submit_ns;  /* earliest time to submit it */
    uint64_t sent_ns;    /* when it was first submitted */
    uint64_t refused_ns; /* since when the scheduler refuses it; 0: not refused */
    uint32_t retries;    /* new jobs so far */
    uint32_t *out;       /* tokens that were output; [n_out] */
    uint32_t n_out;
    size_t size_out;
    uint32_t n_reported; /* tokens reported to the scheduler on this connection */
    uint64_t reported_ns;
    uint64_t first_ns, last_ns; /* arrival of its first and last token */
    uint64_t done_ns;           /* when the scheduler sent `done` with stop or length; 0: it has not */
    enum wire_reason done;
    enum wire_reason ended; /* r NULL: the reason to report; 0: send a cancel */
};

struct gw_ended {
    uint64_t job;
    uint32_t n_out; /* more tokens make the gateway cancel the job; UINT32_MAX: they are ignored */
};

struct gw_weight {
    char setting[WIRE_NAME_BYTES_MAX + 1]; /* "weight:TENANT" */
    float value;
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
    uint64_t bytes;       /* of the lines of all requests, and of the frames of their choices */
    uint32_t n_in_flight; /* lines in flight at tokenize, including those of requests that have ended */
    uint64_t timer_ns;    /* the earliest timer */
    struct gw_ended ended[ENDED_N];

    struct gw_weight *weight; /* [n_weight] */
    size_t n_weight, size_weight;

    uint64_t sched_inc;      /* incarnation of the scheduler of the last session */
    struct gw_choice *trial; /* the suspect that is submitted, until it is cleared; NULL: none */
    uint64_t trial_end_ns;
    uint32_t n_suspect;

    bool has_hello; /* tokenize has sent its hello on this connection */
    struct log_limit peer_log;
    bool has_fp;
    uint8_t fp[32];
    struct wire_arena *arena, *prompt_arena; /* of the received frame; of a stored prompt frame */
    struct err failure;                      /* no memory; returned by gateway_step */
    bool more;                               /* events were left for the next step */
};

/* ---- gateway.c ---- */

void gw_timer(struct gateway *g, uint64_t at_ns); /* the next gateway_step is due then */
void gw_deadline_passed(struct err *e, const struct gateway *g);
void gw_log(struct gateway *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Decodes the frame of an event into g->arena. False: it is invalid; that was logged. */
bool gw_frame(struct gateway *g, struct wire_frame *f, const struct session_event *ev);
/* Logs a frame of a kind that the peer must not send. */
void gw_unexpected(struct gateway *g, const struct wire_frame *f, const struct session_event *ev);
void gw_fail(struct gateway *g, const struct err *e);

/* ---- choice.c: requests, choices and their ends ---- */

struct gw_request *gw_request_find(const struct gateway *g, uint64_t seq);
/* Copies id and line. */
int gw_request_new(struct err *e, struct gateway *g, const char *tenant, uint64_t seq, struct wire_str id,
                   const char *line, size_t n);
struct wire_str gw_request_id(char buf[32], const struct gw_request *r); /* before GW_PARSED */
void gw_request_move(struct gateway *g, struct gw_request *r, enum gw_state state);
/* Ends all choices of a request with an err frame, or (error NULL) an end frame with reason cancelled; before GW_PARSED
 * with one frame for all. Frees r. */
void gw_request_end(struct gateway *g, struct gw_request *r, const struct err *error);
void gw_request_refused(struct gateway *g, struct gw_request *r, const struct wire_frame *f); /* f: tokenize's err */
void gw_request_parsed(struct gateway *g, struct gw_request *r);       /* all choices were received */
void gw_request_drop_choices(struct gateway *g, struct gw_request *r); /* before GW_PARSED */

struct gw_choice *gw_choice_find(const struct gateway *g, uint64_t job);
/* ev: the SESSION_FRAME event of f, a prompt frame; it is copied. ERR_NO: over bytes_max, which was reported to
 * `refused`. */
int gw_choice_new(struct err *e, struct gateway *g, struct gw_request *r, const struct session_event *ev,
                  const struct wire_prompt *q);
/* Decodes its prompt frame; *f is valid until the next call. */
int gw_choice_prompt(struct err *e, struct gateway *g, struct wire_frame *f, const struct gw_choice *c);
/* Assigns a new job to c. may_run: a worker may run the old one; it is cancelled now, or, if the
 * session has no room, when it sends more tokens. */
void gw_choice_renumber(struct gateway *g, struct gw_choice *c, bool may_run);
/* Emit the last frame of a choice: the end frame of the worker, or an own one: err if error is not NULL, otherwise end.
 * c is freed, or stays in to_send until its end is reported; its request is freed with its last choice. */
void gw_choice_forward_end(struct gateway *g, struct gw_choice *c, const struct wire_end *w);
void gw_choice_end(struct gateway *g, struct gw_choice *c, enum wire_reason reason, const struct err *error);
void gw_choice_free(struct gateway *g, struct gw_choice *c); /* emits nothing */
void gw_free_all(struct gateway *g);

/* ---- line.c: tokenize ---- */

bool gw_line_ready(const struct gateway *g); /* the oldest waiting request can be sent now */
void gw_line_send(struct gateway *g);
void gw_line_event(struct gateway *g, const struct session_event *ev);

/* ---- submit.c: the scheduler ---- */

void gw_send_add(struct gateway *g, struct gw_choice *c); /* c has something to send, now or when it is due */
void gw_send_all(struct gateway *g, uint64_t now);        /* as far as the session has room */
/* Called for tokens of a job that has ended or was replaced, n_out in all: cancels the job at the scheduler, once. */
void gw_cancel_late(struct gateway *g, uint64_t job, uint64_t n_out);
/* Continues c as a new job after the tokens that were output, since the job has ended early or its tokens cannot be
 * used. may_run: a worker may still run the old job. May end and free c. */
void gw_resubmit(struct gateway *g, struct gw_choice *c, bool may_run, const char *reason, uint64_t now);
void gw_sched_event(struct gateway *g, const struct session_event *ev, uint64_t now);

/* ---- weight.c: weights of tenants ---- */

void gw_weights_up(struct gateway *g); /* the scheduler is connected */

/* ---- suspect.c: requests that may kill the scheduler ---- */

void gw_suspects_down(struct gateway *g, const struct err *reason); /* before the choices are marked as not submitted */
void gw_suspects_up(struct gateway *g);                             /* may end choices */
bool gw_suspect_may_send(struct gateway *g, struct gw_choice *c, uint64_t now);
void gw_suspect_clear(struct gateway *g, struct gw_choice *c); /* it has a token, an end or a refusal */
void gw_suspects_timer(struct gateway *g, uint64_t now);

/* ---- out.c: workers ---- */

void gw_out_event(struct gateway *g, const struct session_event *ev, uint64_t now);

#endif
