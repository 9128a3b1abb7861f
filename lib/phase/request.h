/*
 * A request in this process: its ids, its KV and its answer, whatever it came from. One per answer. Private to
 * lib/phase.
 */
#ifndef PHASE_REQUEST_H
#define PHASE_REQUEST_H

#include "engine/answer.h"
#include "engine/sample.h"
#include "phase/stage.h"

struct positions {           /* log-probabilities of prompt positions */
    struct wire_logprob *lp; /* [n_id] */
    struct wire_top *top;    /* [n_id][n_top] */
    uint32_t n;              /* 0: not asked for */
    int32_t n_top;
};

enum request_state {
    REQUEST_WAITS,  /* for what its source has to do before anything can be computed */
    REQUEST_RUNS,   /* steps compute it */
    REQUEST_CLOSED, /* it has ended, or was handed over */
};

struct request {
    struct request *next; /* of the runner */
    enum request_state state;
    int32_t priority; /* lower ones first */
    int64_t chunk;    /* rows of prompts beside answers in a step; 0: as many as there are */
    bool hands_over;  /* another process continues after the first token */
    int64_t rows;     /* of the step that is being planned */
    struct err err;   /* code != 0: the request failed */

    const struct wire_req *r; /* outlives it */
    struct wire_req *copy;    /* r, where it was copied; owned */
    struct sample_params sp;
    struct sample_bias *bias; /* of sp */
    uint32_t max_new;         /* tokens the answer may have: limit, window and budget allow */

    uint32_t *ids; /* [n_ids] the prompt, then the answer so far */
    int64_t n_ids;
    size_t cap_ids;
    struct kv_table kv;
    int64_t n_kv;               /* ids whose KV is in the table; never all of an answer that goes on */
    struct answer *answer;      /* NULL: max_new is 0 */
    struct sample_result token; /* the next token: chosen, and not yet part of the answer */
    bool has_token;
    struct positions pos; /* prompt log-probabilities, where asked for */
    bool want_prompt;     /* they are still to be computed */
    bool echoed;          /* the prompt was given out, or need not be */

    uint32_t cached;                             /* prompt tokens whose KV was there already */
    uint64_t bytes_in;                           /* of KV that came through a pipe */
    uint64_t queued_ns, start_ns, prompt_end_ns; /* prompt_end_ns 0: the prompt was not computed here */
    uint64_t taken_ns;                           /* since when its KV, computed elsewhere, is here; 0: it is not */
    uint64_t first_ns, last_ns;                  /* when its first and newest token were known */
    uint64_t load_ns;                            /* the greatest that a stage spent to load */
    struct wire_span *span; /* [n_span] of the processes before this one; owned. NULL: those of r */
    uint32_t n_span;
};

/* Prepares q, which is zeroed, for r, which outlives it, and checks r against the model and the pool. A request that
 * cannot run gets err set. On failure q is to be freed all the same. */
int request_init(struct err *e, struct request *q, const struct stage *s, const struct wire_req *r);
/* A request over a copy of r, at the beginning of `size` bytes. */
int request_new(struct err *e, struct request **out, size_t size, const struct stage *s, const struct wire_req *r);
/* Gives its blocks back to the pool (NULL: it has none), and frees it with the memory that it begins; NULL is safe. */
void request_free(struct request *q, struct kv_pool *pool);
int64_t request_blocks(const struct request *q, bool answer); /* blocks of the prompt; with its answer */

static inline int64_t blocks_of(int64_t tokens)
{
    return (tokens + KV_BLOCK - 1) / KV_BLOCK;
}

uint32_t request_n_answer(const struct request *q);
/* One row a step: all but the newest id of its answer have KV. */
bool request_grows(const struct request *q);
/* An id becomes part of the answer. *text: bytes safe to show, borrowed until the next call. */
int request_push(struct err *e, struct request *q, uint32_t id, const char **text, size_t *n_text,
                 enum answer_end *end);
/* Spans of processes before this one, behind those it has; copied with their names and unknown fields. */
int request_add_spans(struct err *e, struct request *q, const struct wire_span *span, uint32_t n);

/* ---- frames; each borrows from q ---- */

/* A span of this process, without times. */
struct wire_span span_here(const char *stage);
void logprob_of(struct wire_logprob *out, struct wire_top top[SAMPLE_TOP_MAX], const struct sample_result *r);
enum wire_reason reason_of(enum answer_end end);

/* The error of a request that failed. */
void error_frame(struct wire_frame *out, const struct request *q);
/* The prompt itself, where any of it is to be shown: its ids; with echo its text; its log-probabilities. *text:
 * malloc'd, in any case. */
bool shows_prompt(const struct request *q);
int echo_frame(struct err *e, struct wire_frame *out, char **text, const struct stage *s, const struct request *q);
/* The newest token. `top` and `lp` are memory that the frame borrows. */
void token_frame(struct wire_frame *out, struct wire_logprob *lp, struct wire_top top[SAMPLE_TOP_MAX],
                 const struct request *q, const char *text, size_t n_text);
/* The end of an answer, with a span of each stage. *span: malloc'd, in any case. */
int end_frame(struct err *e, struct wire_frame *out, struct wire_span **span, const struct stage *s, struct request *q,
              enum answer_end end);

#endif
