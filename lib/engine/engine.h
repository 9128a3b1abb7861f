/*
 * The engine: runs a model over any mix of rows (prefill chunks and decode tokens), reads and writes paged KV, and
 * chooses tokens from the logits.
 *
 * A backend implements it, named by a spec: NULL computes on the CPU; "fake:A,B,C,D,E,F" computes no model and sleeps
 * as long as a real step would take, for tests of scheduling. Callers see no difference but the ids.
 *
 * One engine belongs to one thread at a time (it runs its own compute threads inside), except engine_kv_read,
 * engine_kv_place and engine_kv_write. The model, the vocabulary, the KV pool and the block tables are borrowed.
 * Results depend on nothing but model, ids, positions, sampling parameters and KV type: docs/arithmetic.md.
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
 * Opens the model file as far as the backend needs it: the fake one reads the header alone, and gives the model one
 * layer with one KV head. Owned by the caller (model_free). ERR_USAGE: the spec is wrong.
 */
int engine_model(struct err *e, struct model **out, const char *backend, const struct model_opts *o);

/* The kind of KV that a backend computes for a model: KV of another kind is refused. With m NULL, the ids and the type
 * alone. ERR_USAGE: the backend does not compute this type. */
int engine_kv_kind(struct err *e, struct kv_kind *out, const char *backend, const struct model *m, enum kern_kv type);

struct engine_opts {
    const char *backend; /* its spec */
    const struct text
        *text;       /* the ids that engine_sample may choose; NULL: all that the model has. The fake one needs it */
    const char *isa; /* CPU: "c", "avx2", "avx512"; NULL: the best there is */
    int threads;     /* >= 1; if cores is NULL */
    struct cores *cores; /* a thread for each of its own cores and for each it may borrow (proc/cores.h); borrowed */
    enum kern_kv kv;
    int64_t row_max;     /* rows of a step */
    uint64_t delay_seed; /* tests: random waits at phase ends; 0: none */
};

int engine_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                const struct engine_opts *o);
void engine_free(struct engine *g); /* NULL is safe */
int64_t engine_row_max(const struct engine *g);
int engine_threads(const struct engine *g);     /* all compute threads, those on borrowed cores too */
const char *engine_isa(const struct engine *g); /* what computes, for people: "avx512", "no weights" */

/* ---- steps ---- */

enum engine_want { ENGINE_NONE, ENGINE_LAST, ENGINE_ALL };

/* One sequence's part of a step: ids at positions pos … pos+n-1, whose KV goes into `kv` (which has room) and which
 * read all KV before them. A sequence appears once in a step. */
struct engine_chunk {
    const struct kv_table *kv;
    const uint32_t *ids;   /* [n], below the model's vocab */
    int64_t n, pos;        /* n >= 1 */
    enum engine_want want; /* rows whose logits will be asked for */
    int64_t n_prompt; /* positions before this one are of a prompt: for what a step costs, not for what it computes */
};

/* Called on the caller's thread while the others compute, when all KV of a layer of this step is written. Must be
 * short. */
typedef void engine_layer_fn(void *arg, int64_t layer);

/* Runs one step and blocks until it is done; n_chunk >= 1, sum of n <= row_max; ERR_SYS without memory. Afterwards
 * engine_logits and engine_sample read the wanted rows, in the order of the chunks; chunks and tables stay as they are
 * until then. */
int engine_step(struct err *e, struct engine *g, const struct engine_chunk *chunk, int64_t n_chunk,
                engine_layer_fn *layer_done, void *arg);

/* Logits of wanted rows first … first+n-1 (first a multiple of 8) of the last step; out: [n][ld], 64-byte aligned, ld =
 * engine_logits_ld. ERR_NO: the backend has none. */
int64_t engine_logits_ld(const struct engine *g);
int engine_logits(struct err *e, struct engine *g, float *out, int64_t first, int64_t n);

/* What is asked of one wanted row, and the result. */
enum engine_use {
    ENGINE_UNUSED,
    ENGINE_CHOOSE, /* the next token, as sample() has it */
    ENGINE_SCORE,  /* log-probability of prompt[position], as sample_logprob() has it */
};
struct engine_row {
    enum engine_use use;
    int64_t position; /* of the token that the row predicts */
    const uint32_t *prompt,
        *answer; /* [n_prompt], [n_answer]: the ids of the sequence, at least those before position */
    int64_t n_prompt, n_answer;
    const struct sample_params *params; /* CHOOSE */
    const uint32_t *ban;                /* CHOOSE: [n_ban] ids that must not be chosen now */
    int64_t n_ban;
    int32_t n_top; /* SCORE: how many of the best tokens are reported */

    struct sample_result out;
    struct err err; /* code != 0: this row failed, because its logits or its KV are damaged; the others did not */
};

/* Samples or scores wanted rows first … first+n-1 (first a multiple of 8) of the last step, on the engine's threads;
 * row: [n]. */
int engine_sample(struct err *e, struct engine *g, struct engine_row *row, int64_t first, int64_t n);

/* ---- KV in and out ---- */

/*
 * Part of a block enters and leaves an engine in the packed form of kv.h. `room` is kv_packed_bytes of memory that the
 * caller has; a backend uses it when the bytes do not lie in host memory in that form. May be called by any thread,
 * also while a step runs that neither reads nor writes the part.
 */

/* *out: the packed bytes, in `room` or in the pool; valid until the slot is written or `room` changes. */
int engine_kv_read(struct err *e, struct engine *g, const uint8_t **out, const struct kv_part *p, uint8_t *room);
/* Where the caller is to put the packed bytes: in the pool itself, or in `room`. engine_kv_write with that pointer then
 * makes them the KV of the part. */
uint8_t *engine_kv_place(struct engine *g, const struct kv_part *p, uint8_t *room);
int engine_kv_write(struct err *e, struct engine *g, const struct kv_part *p, const uint8_t *packed);

/* ---- times ---- */

/* True if the backend knows what its steps take before the first one, in ns: a prefill step a + b·new + c·((cached +
 * new)² - cached²), a decode step a + b·context + c·batch. */
bool engine_cost(const struct engine *g, float prefill[3], float decode[3]);

/* Time spent in the parts of steps so far, ns, measured on the caller's thread; for profiles. Waits for the other
 * threads are a part of their own. */
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
