/*
 * The engine: runs a model over any mix of rows (prefill chunks and decode tokens), reading and writing paged KV.
 *
 * One engine belongs to one thread at a time (it runs its own compute threads inside). The model, the KV pool and the
 * block tables are borrowed. Results depend on nothing but model, ids, positions and KV type: docs/arithmetic.md.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "kv/kv.h"
#include "model/model.h"

struct engine;
struct cores;

struct engine_opts {
    const char *isa;     /* "c", "avx2", "avx512"; NULL: the best there is */
    int threads;         /* >= 1; where cores is NULL */
    struct cores *cores; /* a thread for each of its own cores and for each it may borrow (proc/cores.h); borrowed */
    enum kern_kv kv;
    int64_t row_max;     /* rows of a step */
    uint64_t delay_seed; /* tests: random waits at phase ends; 0: none */
};

int engine_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                const struct engine_opts *o);
void engine_free(struct engine *g);
int64_t engine_row_max(const struct engine *g);
int engine_threads(const struct engine *g); /* all compute threads, those on borrowed cores too */
const char *engine_isa(const struct engine *g);
void engine_layout(struct kv_layout *out, const struct model *m, enum kern_kv kv);

enum engine_want { ENGINE_NONE, ENGINE_LAST, ENGINE_ALL };

/* One sequence's part of a step: ids at positions pos … pos+n-1, whose KV goes into `kv` (which has room) and which
 * read all KV before them. A sequence appears once in a step. */
struct engine_chunk {
    const struct kv_table *kv;
    const uint32_t *ids;   /* [n], below the model's vocab */
    int64_t n, pos;        /* n >= 1 */
    enum engine_want want; /* rows whose logits will be asked for */
};

/* Called on the caller's thread while the others compute, when all KV of a layer of this step is written. Must be
 * short. */
typedef void engine_layer_fn(void *arg, int64_t layer);

/* Runs one step; n_chunk >= 1, sum of n <= row_max; ERR_SYS without memory. Afterwards engine_logits reads the wanted
 * rows, in the order of the chunks. */
int engine_step(struct err *e, struct engine *g, const struct engine_chunk *chunk, int64_t n_chunk,
                engine_layer_fn *layer_done, void *arg);

/* Logits of wanted rows first … first+n-1 (first a multiple of 8) of the last step; out: [n][ld], ld =
 * engine_logits_ld. */
int64_t engine_logits_ld(const struct engine *g);
void engine_logits(struct engine *g, float *out, int64_t first, int64_t n);

/* Runs fn(arg, i, tid) for i in 0 … n-1 on the compute threads, tid below engine_threads. */
void engine_each(struct engine *g, void (*fn)(void *arg, int64_t i, int tid), void *arg, int64_t n);

const struct kern_ops *engine_ops(const struct engine *g);

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
