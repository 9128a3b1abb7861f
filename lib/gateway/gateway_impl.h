/*
 * Private to lib/gateway: a gateway inside. A request lives until its last answer has ended. A choice (an
 * answer) is what the scheduler calls a job, under a number that is never used again in the life of the gateway; where
 * the scheduler has given a job up by itself (it took the gateway for gone) the answer goes on under a new number,
 * behind the tokens that were given out.
 */
#ifndef GATEWAY_IMPL_H
#define GATEWAY_IMPL_H

#include "gateway/gateway.h"
#include "link/ask.h"

#define BUCKETS 4096
#define POLL_NS ((uint64_t)1000 * 1000 * 1000)   /* heartbeat; gone at three missed */
#define POLLS_MAX 3                              /* open; all but the newest are answered at once */
#define TELL_BYTES_MAX (8u << 20)                /* of a message to the scheduler, but for a single frame */
#define REPORT_TOKENS 64                         /* tokens are reported at the first, then when this many are new */
#define REPORT_NS ((uint64_t)1000 * 1000 * 1000) /* … or after this long */
#define END_NS ((uint64_t)1000 * 1000 * 1000)    /* from `done` to the end frame at most */
#define TRIES_MAX 5                              /* of a question to tokenize; of a job that is lost */
#define TOKENIZE_ASKED_MAX 64
#define ENDED_N 4096 /* jobs remembered after their end */

enum gw_for { FOR_SCHED, FOR_TOKENIZE, FOR_WORKERS, FOR_POLL, FOR_TELL, FOR_LINE };

struct gw_request {
    enum gw_for what; /* first: FOR_LINE; the argument of its question */
    struct gw_request *next_hash, *prev, *next;
    uint64_t seq;
    char *line; /* until tokenize has answered */
    size_t n_line;
    char *id; /* of the line, for the same time; NULL: none */
    size_t n_id;
    bool asked;                    /* a question is open: it is not freed before */
    bool over;                     /* has ended; only its question keeps it */
    bool cancelled;                /* by the caller */
    uint32_t tries;                /* questions that failed */
    uint64_t ask_ns;               /* not before */
    uint64_t born_ns, deadline_ns; /* 0: none */
    struct gw_choice *choices;
    uint32_t n_choice; /* that have not ended */
    struct err why;    /* code not 0: it cannot be asked */
};

enum gw_told { TOLD_NOT, TOLD_SENT, TOLD_YES }; /* sent: in the message that is open */

struct gw_choice {
    struct gw_choice *next_hash;             /* by job */
    struct gw_choice *next;                  /* of its request */
    struct gw_choice *next_tell, *prev_tell; /* that have something to say to the scheduler */
    bool in_tell;
    struct gw_request *r;
    uint64_t job;
    uint32_t index, attempt, max_tokens, n_prompt;
    struct link_msg body; /* hello, tok */
    enum gw_told told;
    bool again; /* submitted once: a worker may run it already */
    bool echoed;
    uint64_t submit_ns;  /* not before */
    uint64_t sent_ns;    /* when it was first submitted */
    uint64_t refused_ns; /* since when it is refused; 0: it is not */
    uint32_t tries;      /* jobs that were lost */
    uint32_t *out, n_out, size_out;
    uint32_t n_told, n_telling; /* tokens that the scheduler knows of; with what is in the open message */
    uint64_t told_ns;
    uint64_t first_ns, last_ns; /* of its tokens */
    uint64_t done_ns;           /* 0, or when the scheduler said that it has ended well */
    enum wire_reason done;
};

struct gw_ended {
    uint64_t job;
    uint32_t n_out; /* UINT32_MAX: nothing more is said of it */
};

struct gw_last { /* the last word about a job */
    uint64_t job;
    enum wire_reason ended; /* its answer is here; 0: it is cancelled */
};

struct gateway {
    struct gateway_opts o;
    char name[WIRE_NAME_BYTES_MAX + 1];
    char *sched_url, *tokenize_url;
    const char *reply; /* of the listener */
    struct link_box *box;
    struct link_dialer *sched, *tokenize;
    struct link_listener *workers;
    enum gw_for for_sched, for_tokenize, for_workers, for_poll, for_tell; /* arguments */
    uint64_t sched_down_ns, tokenize_down_ns;                             /* since when; 0: connected */
    bool sched_was_up;

    struct gw_request *by_seq[BUCKETS];
    struct gw_choice *by_job[BUCKETS];
    struct gw_request *first, *last; /* all requests, the oldest first */
    uint64_t n_running, next_job;
    uint32_t n_asked;  /* questions to tokenize that are open */
    bool to_ask;       /* a request may be asked */
    bool to_cancel;    /* a request was cancelled by the caller */
    uint64_t timer_ns; /* nothing is due before */

    struct gw_choice *tell_first, *tell_last;
    struct gw_last *last_word; /* to be said; the first n_saying are in the open message */
    size_t n_last_word, n_saying, size_last_word;
    bool telling;    /* a message is open */
    uint32_t n_poll; /* open */
    uint64_t poll_ns, poll_not_before_ns;
    uint32_t n_refused; /* polls refused, one after the other */
    struct gw_ended ended[ENDED_N];

    bool has_fp;
    uint8_t fp[32];
    struct wire_arena *arena, *body_arena; /* of what comes; of an answer's own body */
    struct link_msg msg;
    struct err broken; /* no memory, said by the step */
};

/* ---- gateway.c ---- */

void gw_timer(struct gateway *g, uint64_t at_ns); /* something is due then */
void gw_say(struct gateway *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void gw_broken(struct gateway *g, const struct err *e);

/* ---- choice.c: requests and their choices, and how they end ---- */

struct gw_request *gw_request_find(const struct gateway *g, uint64_t seq);
int gw_request_new(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n);
void gw_request_unref(struct gateway *g, struct gw_request *r); /* frees one that is over and not asked */
/* Ends all of a request by an err frame each, or (cancelled) an end frame. */
void gw_request_fail(struct gateway *g, struct gw_request *r, const struct err *why);
void gw_request_cancel(struct gateway *g, struct gw_request *r);
void gw_request_refused(struct gateway *g, struct gw_request *r, const struct wire_frame *f); /* f: tokenize's err */
void gw_request_read(struct gw_request *r); /* its line is needed no more */

struct gw_choice *gw_choice_find(const struct gateway *g, uint64_t job);
int gw_choice_new(struct err *e, struct gateway *g, struct gw_request *r, const struct wire_hello *h,
                  const struct wire_req *q);
/* Its tok frame, borrowed until the next call. */
int gw_choice_tok(struct err *e, struct gateway *g, struct wire_frame *tok, const struct gw_choice *c);
/* Under another job; what still comes of the old one is passed over. */
int gw_choice_renumber(struct err *e, struct gateway *g, struct gw_choice *c);
void gw_choice_remember(struct gateway *g, uint64_t job, uint32_t n_out);
/* These emit, and free it; its request too when it was the last. */
void gw_choice_end(struct gateway *g, struct gw_choice *c, const struct wire_end *w);
void gw_choice_end_here(struct gateway *g, struct gw_choice *c, enum wire_reason reason);
void gw_choice_fail(struct gateway *g, struct gw_choice *c, const struct err *why);
void gw_choice_drop(struct gateway *g, struct gw_choice *c); /* without a word */
void gw_free_all(struct gateway *g);

/* ---- line.c: tokenize ---- */

void gw_line_ask(struct gateway *g, uint64_t now);
void gw_line_event(struct gateway *g, struct gw_request *r, const struct link_event *v);

/* ---- tell.c: the scheduler ---- */

void gw_tell_add(struct gateway *g, struct gw_choice *c); /* c has something to say */
void gw_tell_drop(struct gateway *g, struct gw_choice *c);
void gw_tell_cancel(struct gateway *g, uint64_t job);
/* Its end is here: so the scheduler knows, whatever becomes of the worker that sent it. */
void gw_tell_ended(struct gateway *g, uint64_t job, enum wire_reason reason);
void gw_report(struct gateway *g, struct gw_choice *c); /* c has new tokens: told when it is time */
/* All that runs is submitted again. */
void gw_tell_again(struct gateway *g);
/* The job is lost, or (runs: a worker may still have it) what came of it cannot be used: a new one goes on behind the
 * tokens given out. c may end by this. */
void gw_tell_renew(struct gateway *g, struct gw_choice *c, bool runs, const char *why, uint64_t now);
void gw_tell_send(struct gateway *g, uint64_t now);
void gw_tell_event(struct gateway *g, const struct link_event *v, uint64_t now);
uint64_t gw_tell_next_ns(const struct gateway *g);

/* ---- out.c: workers ---- */

void gw_out_event(struct gateway *g, const struct link_event *v, uint64_t now);

#endif
