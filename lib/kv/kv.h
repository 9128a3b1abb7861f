/*
 * KV blocks: the layout of a slot, a pool of slots, block tables of sequences, and the packed form in which a block
 * is sent. A block is 32 tokens of one sequence, all layers; in memory one slot, [layer][kv_head][K, K scales, V, V
 * scales] with the element order of kernels/kernels.h.
 *
 * A pool is thread-safe; a table belongs to one sequence and one thread at a time.
 */
#ifndef KV_H
#define KV_H

#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "kernels/kernels.h"

/* The kind of KV: a program can use a block only if its own kind is equal. engine_kv_kind returns the kind that an
 * engine computes. */
#define KV_NAME_BYTES 64
struct kv_kind {
    uint8_t model[32];                                /* fingerprint */
    char arith[KV_NAME_BYTES], layout[KV_NAME_BYTES]; /* ids of the arithmetic and of a block's layout */
    enum kern_kv type;
    uint32_t n_layer, n_kv_head, head_dim;
};

struct kv_layout {
    enum kern_kv type;
    int64_t n_layer;
    int n_kv_head, head_dim;
    size_t tile_bytes;  /* one (layer, head) */
    size_t layer_bytes; /* n_kv_head tiles */
    size_t slot_bytes;  /* n_layer layers, rounded up to an odd multiple of 4 KiB (powers of two alias in L2) */
};

void kv_layout_init(struct kv_layout *l, enum kern_kv type, int64_t n_layer, int n_kv_head, int head_dim);

struct kv_pool;

/* A pool of as many slots as fit into `bytes`; ERR_NO if not even one fits. Memory is reserved now and touched on first
 * use, in huge pages if the system has them. */
int kv_pool_new(struct err *e, struct kv_pool **out, const struct kv_layout *l, uint64_t bytes);
void kv_pool_free(struct kv_pool *p);
const struct kv_layout *kv_pool_layout(const struct kv_pool *p);
int64_t kv_pool_slots(const struct kv_pool *p); /* in total */
int64_t kv_pool_idle(struct kv_pool *p);        /* in no table */

/* The block table of a sequence: slot[i] holds tokens 32i … 32i+31. Zero-initialise; kv_table_release releases all
 * slots. */
struct kv_table {
    int32_t *slot; /* [n] */
    int64_t n, cap;
};

/* Grows the table to n_block blocks, all or none: ERR_NO if the pool has too few idle slots now. */
int kv_table_grow(struct err *e, struct kv_table *t, struct kv_pool *p, int64_t n_block);
void kv_table_release(struct kv_table *t, struct kv_pool *p);

/*
 * A tail of n_token < 32 tokens is sent packed by token: in each tile K as [hd/u][n][u], K scales [n], V as
 * [ceil(n/w)][hd][w] with zeros past n, V scales [n] (u, w the interleave of the type). Full blocks have the same bytes
 * as in memory.
 */
size_t kv_packed_bytes(const struct kv_layout *l, int64_t n_layer, int n_token);

/* Layers layer … layer+n_layer-1 of the first n_token tokens of a block. */
struct kv_part {
    int32_t slot;
    int64_t layer, n_layer;
    int n_token;
};

#endif
