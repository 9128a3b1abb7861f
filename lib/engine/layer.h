/* The operations of a forward pass, independent of how threads share them. Private to lib/engine. */
#ifndef ENGINE_LAYER_H
#define ENGINE_LAYER_H

#include "engine/cpu.h"

/* The state of one thread within a step. */
struct pass {
    struct cpu *g;
    struct thread_ctx *t; /* the thread's memory */
    int tid;

    /* columns.c: all rows of the step */
    int stage;         /* the next stage */
    const float *norm; /* weights of the norm before the next matrix */

    /* blocks.c: rows r0 … r0+n-1 */
    int64_t r0, n;
};

/* How threads share the work: each function runs one operation of a layer for the rows of the pass. layer.c has their
 * order. */
struct schedule {
    void (*norm)(struct pass *p, const float *w);
    void (*qkv)(struct pass *p, int64_t layer);
    void (*store)(struct pass *p, int64_t layer);
    void (*attend)(struct pass *p, int64_t layer);
    void (*out)(struct pass *p, const struct model_layer *l);
    void (*gate_up)(struct pass *p, const struct model_layer *l);
    void (*down)(struct pass *p, const struct model_layer *l);
};

void layer_keys(const struct schedule *s, struct pass *p, int64_t layer);
void layer_rest(const struct schedule *s, struct pass *p, int64_t layer);

/* ---- parts of the operations: some rows, some output columns; g0 … g1-1 are groups of 16 outputs ---- */

int64_t groups(const struct kern_mat *w);

/* x of rows r0 … r1-1 from their ids, and the sines and cosines of their positions. */
void embed_rows(struct cpu *g, int64_t r0, int64_t r1);
/* n <= KERN_TILE rows of x from r0, normed, become rows at … of a. */
void norm_tile(struct cpu *g, struct thread_ctx *t, struct kern_act *a, int64_t at, const float *w, int64_t r0,
               int64_t n);
/* One of q, k and v (which: 0, 1, 2) of n rows of a into qkv [n][ldq]. */
void qkv_panels(struct cpu *g, struct thread_ctx *t, const struct model_layer *l, int which, float *qkv,
                const struct kern_act *a, int64_t g0, int64_t g1, int64_t n);
/* Rotates n tokens of chunk c from token `first` for one kv head, stores K and V, prepares q; row: their q, k and v. */
void rotate_store(struct cpu *g, int64_t layer, int64_t c, int64_t first, int64_t n, int head, float *row);
/* silu(gate)·up of n rows: into h_act, or into h [n][ffn] if ffn is not a multiple of 32. */
void gate_up_panels(struct cpu *g, struct thread_ctx *t, const struct model_layer *l, const struct kern_act *a,
                    struct kern_act *h_act, float *h, int64_t g0, int64_t g1, int64_t n);
/* x += W·a for n rows of x from r0. */
void add_panels(struct cpu *g, struct thread_ctx *t, const struct kern_mat *w, const struct kern_act *a, int64_t g0,
                int64_t g1, int64_t r0, int64_t n);

#endif
