/*
 * The engine: runs a model over any mix of rows (prefill chunks and decode tokens), reads and writes paged KV, and
 * chooses tokens from the logits.
 *
 * A backend implements it, named by a spec: NULL computes on the CPU; "fake:A,B,C,D,E,F" computes no model and sleeps
 * as long as a real step would take, for tests of scheduling. Callers see no difference except in the chosen ids.
 *
 * One thread at a time uses an engine (which has compute threads of its own), except for engine_kv_read,
 * engine_kv_place and engine_kv_write. The model, the vocabulary, the KV pool and the block tables are borrowed.
 * Results depend only on model, ids, positions, sampling parameters and KV type: docs/arithmetic.md.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sample.h"
#include "err/err.h"
#include "kv/kv.h"
#include "model/model.h"

struct engine;
struct cores;
struct text;

/*
 * Opens the parts of the model file that the backend needs: the fake one reads only the header, and gives the model one
 * layer with one KV head. Owned by the caller (model_free). ERR_USAGE: the spec is wrong.
 */
int engine_model(struct err *e, struct model **out, const char *backend, const struct model_opts *o);

/* The kind of KV that a backend computes for a model; KV of another kind cannot be exchanged with it. With m NULL, only
 * the ids and the type are set. ERR_USAGE: the backend does not compute this type. */
int engine_kv_kind(struct err *e, struct kv_kind *out, const char *backend, const struct model *m, enum kern_kv type);

struct engine_opts {
    const char *backend; /* its spec */
    const struct text
        *text;       /* the ids that engine_sample may choose; NULL: all of the model. The fake backend requires it */
    const char *isa; /* CPU: "c", "avx2", "avx512"; NULL: the best available */
    int threads;     /* >= 1; if cores is NULL */
    struct cores *cores; /* a thread for each own core and each that may be borrowed (proc/cores.h); the caller's */
    enum kern_kv kv;
    int64_t row_max;     /* rows of a step */
    uint64_t delay_seed; /* tests: random waits at the ends of stages; 0: none */
};

int engine_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                const struct engine_opts *o);
void engine_free(struct engine *g); /* NULL is safe */
int64_t engine_row_max(const struct engine *g);
int engine_threads(const struct engine *g);     /* all compute threads, including those on borrowed cores */
const char *engine_isa(const struct engine *g); /* for logs: "avx512", "no weights" */

/* ---- steps ---- */

enum engine_want { ENGINE_NONE, ENGINE_LAST, ENGINE_ALL };

/* One sequence's part of a step: ids at positions pos … pos+n-1. Their KV is written into `kv`, which has the blocks
 * for it, and they read all KV before them. A sequence appears once in a step. */
struct engine_chunk {
    const struct kv_table *kv;
    const uint32_t *ids;   /* [n], below the model's vocab */
    int64_t n, pos;        /* n >= 1 */
    enum engine_want want; /* rows whose logits are read afterwards */
    int64_t n_prompt; /* positions before this one belong to a prompt. Affects the cost of a fake step, no result */
};

/* Called on the caller's thread, while the others compute, when all KV of a layer of this step is written. Must return
 * quickly. */
typedef void engine_layer_fn(void *arg, int64_t layer);

/* Runs one step and blocks until it is done; n_chunk >= 1, sum of n <= row_max. ERR_SYS: no memory. Afterwards
 * engine_logits and engine_sample read the wanted rows, in the order of the chunks; the caller does not change chunks
 * and tables before that. */
int engine_step(struct err *e, struct engine *g, const struct engine_chunk *chunk, int64_t n_chunk,
                engine_layer_fn *layer_done, void *arg);

/* Logits of wanted rows first … first+n-1 (first a multiple of 8) of the last step; out: [n][ld], 64-byte aligned, ld =
 * engine_logits_ld. ERR_NO: the backend has none. The programs sample with engine_sample; this is the only way to see
 * logits for the tests of a backend and for tests/tools/logits, which compares them with the float32 reference. */
int64_t engine_logits_ld(const struct engine *g);
int engine_logits(struct err *e, struct engine *g, float *out, int64_t first, int64_t n);

/* The use of one wanted row, and the result. */
enum engine_use {
    ENGINE_UNUSED,
    ENGINE_CHOOSE, /* choose the next token: sample() */
    ENGINE_SCORE,  /* log-probability of prompt[position]: sample_logprob() */
};
struct engine_row {
    enum engine_use use;
    int64_t position; /* of the token that the row predicts */
    const uint32_t *prompt,
        *answer; /* [n_prompt], [n_answer]: the ids of the sequence, at least those before position */
    int64_t n_prompt, n_answer;
    const struct sample_params *params; /* CHOOSE */
    const uint32_t *ban;                /* CHOOSE: [n_ban] ids that must not be chosen */
    int64_t n_ban;
    int32_t n_top; /* SCORE: how many of the best tokens are reported */

    struct sample_result out;
    struct err err; /* code != 0: only this row failed, because its logits or its KV are damaged */
};

/* Samples or scores wanted rows first … first+n-1 (first a multiple of 8) of the last step, on the engine's threads;
 * row: [n]. */
int engine_sample(struct err *e, struct engine *g, struct engine_row *row, int64_t first, int64_t n);

/* ---- KV in and out ---- */

/*
 * These functions read and write a part of a KV block in the packed form of kv.h. `room` is a buffer of kv_packed_bytes
 * that the caller owns; a backend uses it if the bytes are not in host memory in that form. Any thread may call these,
 * also while a step runs that neither reads nor writes the part.
 */

/* *out: the packed bytes, in `room` or in the pool; valid until the slot is written or `room` changes. */
int engine_kv_read(struct err *e, struct engine *g, const uint8_t **out, const struct kv_part *p, uint8_t *room);
/* Where the caller writes the packed bytes: the pool itself, or `room`. engine_kv_write with that pointer then makes
 * them the KV of the part. */
uint8_t *engine_kv_place(struct engine *g, const struct kv_part *p, uint8_t *room);
int engine_kv_write(struct err *e, struct engine *g, const struct kv_part *p, const uint8_t *packed);

/* ---- times ---- */

/* The duration of steps, in ns: a prefill step a + b·new + c·((cached + new)² - cached²), a decode step a + b·context +
 * c·batch. The fake engine sleeps that long, the simulator advances its clock, a worker sends it to the scheduler. */
struct engine_cost {
    double prefill[3], decode[3];
};

/* A prefill step over positions old … all-1. fixed: c->prefill[0], or 0 if another prompt of the step counts it. */
static inline double engine_prefill_ns(const struct engine_cost *c, double fixed, double old, double all)
{
    return fixed + c->prefill[1] * (all - old) + c->prefill[2] * (all * all - old * old);
}

/* A decode step without its fixed part. context: tokens of all sequences of the batch. */
static inline double engine_decode_ns(const struct engine_cost *c, double context, double batch)
{
    return c->decode[1] * context + c->decode[2] * batch;
}

/* False: the backend does not know the duration of its steps in advance. */
bool engine_cost(const struct engine *g, struct engine_cost *out);

/* Time spent in the parts of all steps so far, ns, measured on the caller's thread; for profiles. Waiting for the other
 * threads is a part of its own. */
enum engine_part {
    PART_EMBED,
    PART_NORM,
    PART_QKV,
    PART_ROPE,
    PART_ATTN,
    PART_OUT,
    PART_FFN,
    PART_DOWN,
    PART_HEAD,
    PART_WAIT,
    PART_N
};
const char *engine_part_name(enum engine_part p);
void engine_times(const struct engine *g, uint64_t out_ns[PART_N]);

#endif
