/* The CPU backend: declarations shared by its files. Private to lib/engine. */
#ifndef ENGINE_CPU_H
#define ENGINE_CPU_H

#include "engine/backend.h"
#include "engine/sample.h"
#include "engine/threads.h"
#include "kv/bytes.h"

#define BLOCK_ROWS 64
#define LOGITS_ROWS 32 /* logits of a pass of cpu_sample; a multiple of 8 */
#define ROWS_ALONE                                                                                                     \
    8 /* up to so many, each thread computes its own copy of the normed rows: waiting would cost more                  \
       */

struct thread_ctx {               /* buffers of one thread */
    struct kern_act act;          /* normed rows, up to ROWS_ALONE */
    void *linear;                 /* kern_matmul_scratch */
    float *a, *b;                 /* [row_max][32] */
    float *norm;                  /* [8][hidden] */
    float *m, *l, *o;             /* attention partials: [attn_rows], [attn_rows][hd] */
    float *M, *L, *O;             /* running sums over the partitions */
    int32_t *from, *to;           /* [attn_rows] */
    void *attn;                   /* kern_attn_scratch */
    uint8_t *q;                   /* [attn_rows] prepared rows */
    const uint8_t **tile, **next; /* [8] */

    /* activations of a block of rows; each buffer has BLOCK_ROWS rows */
    struct kern_act norm_act, out_act, h_act;
    float *qkv, *out, *h;
};

struct part { /* partials of split attention: [head][unit][part_rows] */
    float *m, *l, *o;
    int64_t cap; /* rows */
};

/* Layers that are computed for a block of rows; on a cache line of its own. */
struct block {
    _Alignas(64) _Atomic int32_t done;
};

struct step {
    const struct engine_chunk *chunk;
    int64_t n_chunk, n_row, n_want;
    int64_t *row0;          /* [n_chunk] first row */
    int64_t *unit0;         /* [n_chunk + 1] first attention unit of a chunk (of one head) */
    int64_t n_unit;         /* of one head */
    bool split;             /* few rows, long contexts: a unit is one partition */
    bool heads;             /* with split: a unit is all heads of a partition */
    int64_t part_rows;      /* rows of the partials of one head and unit */
    bool whole;             /* a unit is all rows of a chunk: it also rotates and stores their KV */
    int64_t block, n_block; /* many rows: rows of a block, number of blocks; 0: columns.c */
    int64_t n_reported;     /* layers for which layer_done was called */
    engine_layer_fn *layer_done;
    void *layer_arg;
};

struct cpu {
    struct engine e; /* first */
    const struct kern_ops *k;
    struct threads *threads;
    int group;   /* query heads a kv head */
    int width;   /* threads of the present run, at most */
    int64_t ldq; /* row of qkv: q, k, v, each padded to 16 */
    int64_t off_k, off_v;
    int attn_tokens, attn_rows; /* tokens and rows of an attention unit */
    size_t q_bytes;
    float scale;

    float *x;                                 /* [row_max][hidden] residual */
    float *qkv;                               /* [row_max][ldq] */
    uint8_t *q;                               /* [row_max][n_head] prepared */
    float *o;                                 /* [row_max][n_head * hd] */
    float *h;                                 /* [row_max][ffn], if ffn is not a multiple of 32 */
    float *cs;                                /* [row_max][n_rot/2][2] */
    float *want;                              /* [row_max][hidden] wanted rows, final norm applied */
    struct kern_act act, act_o, act_h, act_w; /* shared activations */
    struct block *block;                      /* [row_max / 32] */
    struct part part;
    struct thread_ctx *ctx; /* [n_thread] */
    void *mem;              /* all of the above */
    uint64_t mem_bytes;

    struct step s;
    uint64_t mark, waited; /* engine_times: the clock and threads_waited_ns at the last call of part_time */

    float *logits; /* arguments of cpu_logits for the threads */
    int64_t logits_first, logits_n;

    struct sampler **sampler; /* [n_thread] */
    float *sample_logits;     /* [LOGITS_ROWS][ld] */
    struct engine_row *row;   /* [n_pass] rows of the present pass of cpu_sample */
    int64_t n_pass;
};

static inline struct cpu *cpu_of(struct engine *g)
{
    return (struct cpu *)g;
}

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The first of n units that belongs to thread tid (threads_claim). */
static inline int64_t own_unit(const struct cpu *g, int tid, int64_t n)
{
    return tid % g->width * n / g->width;
}

int64_t chunk_of(const struct step *s, int64_t r); /* the chunk that holds row r */
int64_t panels(const struct kern_mat *w);          /* of two groups each: 32 output rows */
/* Takes up to `run` panels of a stage and returns the first, or -1. */
int64_t take_run(struct cpu *g, int tid, int stage, int64_t n_panel, int64_t run);

/* attend.c. Splits the step's attention into units; allocates the partials. */
int attend_plan(struct err *e, struct cpu *g);
/* Attention of one layer, run by every thread; advances *stage by one or two. */
void attend_units(struct cpu *g, int tid, int64_t layer, int *stage);
/* Prefetches the KV that thread tid will probably read first. */
void attend_ahead(struct cpu *g, int tid, int64_t layer);
/* Attention of n tokens of chunk c from token `first`, all heads, in one thread; o: [n][n_head·hd]. */
void attend_rows(struct cpu *g, int tid, int64_t layer, int64_t c, int64_t first, int64_t n, float *o);

/* The two schedules: all layers of a step, run by every thread; advance *stage. */
void columns_run(struct cpu *g, int tid, int *stage);
void blocks_run(struct cpu *g, int tid, int *stage);
/* Chooses the schedule of the step: sets the rows of a block, 0 for columns.c. */
void blocks_plan(struct cpu *g);

void part_time(struct cpu *g, int tid, enum engine_part p);

int cpu_step(struct err *e, struct engine *engine, const struct engine_chunk *chunk, int64_t n_chunk,
             engine_layer_fn *layer_done, void *arg);
int cpu_logits(struct err *e, struct engine *engine, float *out, int64_t first, int64_t n);

#endif
