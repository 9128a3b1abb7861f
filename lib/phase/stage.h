/* What prefill and decode share: a loaded model with its engine, and requests on their way. Private to lib/phase. */
#ifndef PHASE_STAGE_H
#define PHASE_STAGE_H

#include "engine/answer.h"
#include "engine/engine.h"
#include "engine/sample.h"
#include "phase/phase.h"
#include "text/text.h"
#include "wire/wire.h"

#define EMPTY_STREAM "stdin: empty, not even a hello: the stage before failed"

struct cores;

struct stage {
    const struct phase_opts *o;
    struct model *m;
    struct text *text;
    struct kv_pool *pool;
    struct engine *g;
    struct kv_kind kind; /* of KV that the engine computes; before there is one, of --kv-cache-dtype */
    struct kv_layout layout;
    enum kern_kv kv;
    int64_t context;
    uint64_t load_ns;
    int n_thread;
    struct cores *cores; /* where own processors were given */
    struct wire_writer *out;
    struct batch *batch;
};

/* Model and vocabulary; the engine and the pool come with the KV type, by stage_engine. */
int stage_open(struct err *e, struct stage *s, const struct phase_opts *o);
/* (Re)makes pool and engine for a KV type; no request may hold blocks. */
int stage_engine(struct err *e, struct stage *s, enum kern_kv kv);
/* The same over a pool that is there already; it is taken, whatever happens. */
int stage_engine_take(struct err *e, struct stage *s, enum kern_kv kv, struct kv_pool *pool);
void stage_say_profile(const struct stage *s); /* where it was asked for */
void stage_close(struct stage *s);

int kv_type_parse(struct err *e, enum kern_kv *out, const char *name);
void stage_hello(const struct stage *s, struct wire_hello *h, bool with_kv);
/* Checks the vocabulary section, and the KV section where there is one: ERR_PROTO in words. */
int stage_check_hello(struct err *e, const struct stage *s, const struct wire_hello *h);

/* ---- requests ---- */

struct positions {           /* log-probabilities of prompt positions */
    struct wire_logprob *lp; /* [n_id] */
    struct wire_top *top;    /* [n_id][n_top] */
    uint32_t n;              /* 0: not asked for */
    int32_t n_top;
};

struct request {
    struct request *next;
    struct wire_req *r; /* owned */
    struct sample_params sp;
    struct sample_bias *bias; /* of sp */
    struct kv_table kv;
    int64_t n_kv;               /* tokens of the sequence whose KV is in the table */
    uint32_t max_new;           /* tokens the answer may have: limit, window and budget allow */
    struct positions pos;       /* prompt log-probabilities, where asked for */
    bool want_prompt;           /* they are still to be computed */
    struct sample_result first; /* the first token */
    bool has_first;
    uint64_t queued_ns, start_ns;
    struct err err; /* code != 0: the request failed */

    /* decode */
    struct answer *answer;
    uint32_t last; /* the newest id, whose KV is not there yet */
    struct sample_result now;
    bool given_first; /* first came from prefill */
    uint32_t cached;
    uint64_t load_ns, first_ns, last_ns, bytes_in;
    struct wire_span *span; /* [n_span] from stages before; owned */
    uint32_t n_span;
    uint32_t *arrived;        /* [n_block] layers that have come */
    int64_t n_block, n_whole; /* blocks of the prompt; complete ones */
    bool streaming;           /* blocks are coming from prefill */
    bool dropped;             /* they are thrown away: the pool was full */
    bool kv_seen;             /* the kv frame, or the error, is here */
    bool echoed, begun;       /* the prompt was sent on; the first token was */
    uint64_t prompt_end_ns;   /* where decode computed the prompt itself */

    /* services */
    uint32_t *all; /* [n_all] the prompt and behind it the answer so far */
    int64_t n_all, cap_all;
    struct task *task;
};

/* Takes over a copy of r and checks it against the model and the pool. A request that cannot run gets err set. */
int request_new(struct err *e, struct request **out, const struct stage *s, const struct wire_req *r);
void request_free(struct request *q, struct stage *s);        /* gives its blocks back; NULL is safe */
int64_t request_blocks(const struct request *q, bool answer); /* blocks of the prompt; with its answer */

/* ---- steps ---- */

struct batch; /* rows of the next step */
int batch_new(struct err *e, struct batch **out, struct stage *s);
void batch_free(struct batch *b);
void batch_clear(struct batch *b);
int64_t batch_room(const struct batch *b); /* rows left */
/* Adds up to `most` tokens of q's sequence that have no KV yet. */
void batch_prompt(struct batch *b, struct request *q, int64_t most);
void batch_token(struct batch *b, struct request *q);
/* Adds up to `most` ids of q->all that have no KV yet: of a prompt, of an answer that is computed again, or the newest
 * one. Where they reach the end, the step gives the next token. */
void batch_sequence(struct batch *b, struct request *q, int64_t most);
int64_t batch_n(const struct batch *b);
struct request *batch_at(const struct batch *b, int64_t i);
bool batch_sampled(const struct batch *b, int64_t i); /* the step gave this request a token: q->now */

/* Runs the step and samples. A request whose numbers are damaged gets err set. */
int batch_run(struct err *e, struct batch *b, engine_layer_fn *layer_done, void *arg);
const struct engine_chunk *batch_chunk(const struct batch *b, int64_t i);

/* ---- frames of requests ---- */

/* The err frame of a request that failed; borrows from q. */
void error_frame(struct wire_frame *out, const struct request *q);
enum wire_reason reason_of(enum answer_end end);
/* The prompt itself, where any of it is to be shown: its ids; with echo its text; its log-probabilities. *text:
 * malloc'd, in any case; the rest borrows from q. */
bool shows_prompt(const struct request *q);
int echo_frame(struct err *e, struct wire_frame *out, char **text, const struct stage *s, const struct request *q);
/* The end of an answer without spans and load_ns; borrows from q. */
void end_frame(struct wire_frame *out, const struct request *q, enum answer_end end);
/* A span of this process, without times. */
struct wire_span span_here(const char *stage);
void logprob_of(struct wire_logprob *out, struct wire_top top[SAMPLE_TOP_MAX], const struct sample_result *r);

#endif
