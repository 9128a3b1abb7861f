/*
 * A request in this process: its ids, its KV and its answer, independent of its source. One for each answer. Private to
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
    uint32_t n;              /* 0: not requested */
    int32_t n_top;
};

enum request_state {
    REQUEST_WAITS,  /* the source has not finished preparing it */
    REQUEST_RUNS,   /* steps compute it */
    REQUEST_CLOSED, /* it has ended or was transferred */
};

struct request {
    struct request *next; /* of the runner */
    enum request_state state;
    int32_t priority;   /* lower ones first */
    int64_t chunk;      /* limit of prompt rows in a step with decoding sequences; 0: no limit */
    bool transfers_out; /* another process decodes after the first token */
    int64_t rows;       /* in the step that is being planned */
    struct err err;     /* code != 0: the request failed */

    const struct wire_req *r; /* outlives it */
    struct wire_req *copy;    /* r if it was copied; owned */
    struct sample_params sp;
    struct sample_bias *bias; /* of sp */
    uint32_t max_new;         /* limit of tokens of the answer, by request, context length and budget */

    uint32_t *ids; /* [n_ids] the prompt, then the answer so far */
    int64_t n_ids;
    size_t cap_ids;
    struct kv_table kv;
    int64_t n_kv;               /* ids whose KV is computed; fewer than n_ids while the answer continues */
    struct answer *answer;      /* NULL: max_new is 0 */
    struct sample_result token; /* the next token: chosen, not yet appended to the answer */
    bool has_token;
    struct positions pos; /* prompt log-probabilities, if requested */
    bool want_prompt;     /* they must still be computed */
    bool echoed;          /* the prompt was output, or is not wanted */

    uint32_t cached;                             /* prompt tokens whose KV was cached */
    uint64_t bytes_in;                           /* KV bytes that were read from a pipe */
    uint64_t queued_ns, start_ns, prompt_end_ns; /* prompt_end_ns 0: the prompt was not computed here */
    uint64_t taken_ns;                           /* when its KV, computed by another process, was complete; 0: not */
    uint64_t first_ns, last_ns;                  /* when its first and newest token were output */
    uint64_t load_ns;                            /* the longest load time of all stages */
    struct wire_span *span; /* [n_span] of the processes before this one; owned. NULL: those of r */
    uint32_t n_span;
};

/* Initializes q (zeroed) for r, which outlives it, and checks r against the model and the pool. If the request cannot
 * run, q->err is set and 0 returned. Also after a failure q must be freed. */
int request_init(struct err *e, struct request *q, const struct stage *s, const struct wire_req *r);
/* Allocates `size` bytes that begin with a request, over a copy of r. */
int request_new(struct err *e, struct request **out, size_t size, const struct stage *s, const struct wire_req *r);
/* Releases its blocks to the pool (NULL: it has none), and frees the memory that it begins; NULL is safe. */
void request_free(struct request *q, struct kv_pool *pool);
int64_t request_blocks(const struct request *q, bool answer); /* blocks of the prompt, and of the longest answer */

static inline int64_t blocks_of(int64_t tokens)
{
    return (tokens + KV_BLOCK - 1) / KV_BLOCK;
}

uint32_t request_n_answer(const struct request *q);
/* Whether it is decoding: KV is computed for all ids but the newest of the answer, so it needs one row a step. */
bool request_grows(const struct request *q);
/* Appends an id to the answer. *text: new bytes that no later token can change, borrowed until the next call. */
int request_push(struct err *e, struct request *q, uint32_t id, const char **text, size_t *n_text,
                 enum answer_end *end);
/* Appends spans of earlier processes; copies their names and unknown fields. */
int request_add_spans(struct err *e, struct request *q, const struct wire_span *span, uint32_t n);

/* ---- frames; each borrows from q ---- */

/* A span of this process, without times. */
struct wire_span span_here(const char *stage);
void logprob_of(struct wire_logprob *out, struct wire_top top[SAMPLE_TOP_MAX], const struct sample_result *r);
enum wire_reason reason_of(enum answer_end end);

/* The bytes of an id in the text that the request wants, borrowed. */
const void *token_text(const struct text *t, const struct wire_req *r, uint32_t id, size_t *n);
/* The error of a request that failed. */
void error_frame(struct wire_frame *out, const struct request *q);
/* Whether the request wants its prompt, and the frame: its ids; with echo its text; its log-probabilities. *text: owned
 * by the caller, also after a failure. */
bool shows_prompt(const struct request *q);
int echo_frame(struct err *e, struct wire_frame *out, char **text, const struct stage *s, const struct request *q);
/* The newest token. The frame borrows `top` and `lp`. */
void token_frame(struct wire_frame *out, struct wire_logprob *lp, struct wire_top top[SAMPLE_TOP_MAX],
                 const struct request *q, const char *text, size_t n_text);
/* The end of an answer, with a span of each stage. *span: owned by the caller, also after a failure. */
int end_frame(struct err *e, struct wire_frame *out, struct wire_span **span, const struct stage *s, struct request *q,
              enum answer_end end);

#endif
