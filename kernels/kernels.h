/*
 * The table of kernels: operations, layouts and the exact order of sums. docs/arithmetic.md is the contract; every
 * implementation of the table gives the same bits. No operation allocates, blocks or fails; the caller passes valid
 * shapes and buffers. Any number of threads may call an operation at once on disjoint outputs.
 *
 * Compute threads must run with MXCSR = round to nearest, DAZ and FTZ on: kern_thread_init().
 *
 * Buffers are 64-byte aligned where a layout is given. All sizes are 64-bit.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kv_block.h"
#include "err/err.h"

/* ---- weights ---------------------------------------------------------------------------------------------------- */

enum kern_type {
    KERN_F32,
    KERN_F16,
    KERN_BF16,
    KERN_Q8_0,
    KERN_Q4_0,
    KERN_Q4_1,
    KERN_Q5_0,
    KERN_Q5_1,
    KERN_Q4_K,
    KERN_Q5_K,
    KERN_Q6_K,
    KERN_TYPES,
};

/*
 * A packed matrix [rows, cols] is a run of groups; group g holds output rows 16g … 16g+15, all columns, contiguous.
 * Rows past `rows` are zero rows. In a group (r = row in group 0…15, k = column):
 *
 *   F32   [k][16] f32         F16  [k][16] f16         BF16  [ceil(cols/2)][16][2], k = 2i, 2i+1; odd cols: a zero
 *
 * Quantised types: a block is 32 columns; byte lane of (r,t) is 4r + t; quad q = 0…7 covers k = 4q + t, t = 0…3.
 *   nib[256]  byte j*64 + 4r + t (j = 0…3): low nibble quad j, high nibble quad j+4 (so k = 4j+t and k = 16+4j+t)
 *   hi1[64]   byte 4r + t: bit q = bit 4 (value 16) of quad q
 *   hi2[128]  byte v*64 + 4r + t (v = 0,1): bits 2p,2p+1 (p = 0…3) = bits 4,5 of quad 4v + p
 *   w8[512]   byte q*64 + 4r + t: weight + 128
 *   d, m      16 f16, one a row
 * Types with 32-column scales go in pairs of blocks (64 columns; an odd count is padded with a block of zero scales):
 *   Q8_0  [w8 w8][d d]      Q4_0 [nib nib][d d]       Q4_1 [nib nib][d m d m]
 *   Q5_0  [nib hi1 nib hi1][d d]                      Q5_1 [nib hi1 nib hi1][d m d m]
 * K types go by 256 columns (8 blocks):
 *   Q4_K  [d dmin][8 × nib][8 × (sc u8[16], mn u8[16])]
 *   Q5_K  [d dmin][8 × (nib hi1)][8 × (sc u8[16], mn u8[16])]
 *   Q6_K  [d, 32 zero bytes][8 × (nib hi2)][8 × (sc i8[16] of columns 0…15, sc i8[16] of columns 16…31)]
 * so that group sizes are multiples of 64 bytes (F16 is padded to one). Stored values: Q4_0 0…15 (minus 8), Q5_0 0…31
 * (minus 16), Q6_K 0…63 (minus 32), Q8_0 plus 128; Q4_1, Q5_1: d·q + m; Q4_K, Q5_K: (d·sc)·q - dmin·mn.
 */
struct kern_mat {
    enum kern_type type;
    int64_t rows, cols;
    size_t group_bytes;  /* kern_group_bytes(type, cols) */
    const uint8_t *data; /* [ceil(rows/16)] groups; 64-byte aligned; borrowed */
};

const char *kern_type_name(enum kern_type t);
bool kern_type_is_quant(enum kern_type t);                  /* reads int8 activations */
int64_t kern_type_block(enum kern_type t);                  /* columns must be a multiple of this: 1, 32 or 256 */
size_t kern_type_row_bytes(enum kern_type t, int64_t cols); /* bytes of one row as GGUF stores it */
size_t kern_group_bytes(enum kern_type t, int64_t cols);    /* bytes of one packed group */

/*
 * Packs up to 16 rows, each as GGUF stores it (kern_type_row_bytes), into one group. rows[i] == NULL is a zero row.
 * `src` may differ from `dst` in one way: src F32 or F16 with dst BF16 (exact values only, see kern_is_bf16).
 */
void kern_pack_group(uint8_t *dst, enum kern_type dst_type, enum kern_type src_type, const uint8_t *const rows[16],
                     int64_t cols);

/* The first column of a row, as GGUF stores it, whose value is NaN or infinite, or -1. In a quantised type only a scale
 * can be: then the first column of its block. */
int64_t kern_row_not_finite(enum kern_type src_type, const uint8_t *row, int64_t cols);

/* True if every value of a row of F32 or F16 is exact in bf16. */
bool kern_is_bf16(enum kern_type src_type, const uint8_t *row, int64_t cols);

/*
 * Rounding to bf16, in every operation: to nearest even; a subnormal f32 gives zero of its sign, as VCVTNEPS2BF16 does;
 * NaN is quieted. Rounding to f16: to nearest even, subnormals kept.
 */

/* ---- activations ------------------------------------------------------------------------------------------------ */

#define KERN_TILE 8 /* rows of a tile; memory of the last tile is always whole, also if only some rows are used */

/*
 * n_row rows of k activations, in the forms that weight types read; a form that is not needed is NULL. Tile t = row /
 * 8, c = row % 8. Quantised types read q, d, z, s; BF16 reads b; F16 and F32 read f.
 *  q: int8 of the row's 32-block; d: its scale; z = d·(float)Σq; s: Σq of the two halves of 16 columns.
 */
struct kern_act {
    int64_t n_row, k;
    int8_t *q;   /* [tile][k/32][8][32] */
    float *d;    /* [tile][k/32][8] */
    float *z;    /* [tile][k/32][8] */
    int32_t *s;  /* [tile][k/32][2][8] */
    uint16_t *b; /* [tile][ceil(k/2)][8][2] */
    float *f;    /* [tile][k][8] */
};

enum { KERN_FORM_Q = 1, KERN_FORM_B = 2, KERN_FORM_F = 4 };
int kern_type_form(enum kern_type t); /* the form a weight type reads */

/* Bytes that kern_act_place needs for n_row rows of k in `forms`; kern_act_place sets the pointers of `a` into mem,
 * which is 64-byte aligned and stays the caller's. */
size_t kern_act_bytes(int64_t n_row, int64_t k, int forms);
void kern_act_place(struct kern_act *a, void *mem, int64_t n_row, int64_t k, int forms);

/* ---- KV --------------------------------------------------------------------------------------------------------- */

enum kern_kv { KERN_KV_INT8, KERN_KV_BF16, KERN_KV_F16 };

#define KERN_HEAD_MAX 512 /* largest head_dim; the caller refuses a model with more */

#define KERN_KV_PARTITION 256 /* tokens of an attention partition: 8 blocks */

/*
 * One (layer, kv head) tile of a block: K, K scales, V, V scales, contiguous (head_dim hd, a multiple of 8; token t):
 *   int8  K [hd/4][32][4] k+128 (u8); 32 f32; V [8][hd][4] s8 (tokens 4i+j); 32 f32
 *   bf16  K [hd/2][32][2]; V [16][hd][2] (tokens 2i+j)        f16  K [hd][32]; V [32][hd]
 */
size_t kern_kv_tile_bytes(enum kern_kv type, int hd);
const char *kern_kv_name(enum kern_kv type);

/*
 * One query row prepared for attention (rotated; for int8 also transformed and split in two planes). The format is
 * opaque to the engine and shared by every implementation of the table; 64-byte aligned. L = scale·log2(e), one f32
 * product. The bytes that pad the row to a multiple of 64 are zero:
 *
 *  int8  s8 hi[hd], s8 lo[hd], then f32 dq, i32 Σhi, i32 Σlo; dq = (max/16319)·(L/n), n the size of a Hadamard block
 *  bf16  u16[hd], then f32 L        f16  f32[hd], then f32 L (queries stay f32)
 */
size_t kern_q_bytes(enum kern_kv type, int hd); /* a multiple of 64 */

/*
 * One partition of attention, for the rows of one (sequence, kv head). Row i attends to tokens from[i] <= t < to[i],
 * counted from the partition's first token (0 … 256). A row without tokens gets m = -inf, l = 0, o = 0.
 */
struct kern_attn {
    enum kern_kv type;
    int hd;
    int n_row;
    const uint8_t *q;           /* [n_row] of kern_q_bytes, placed by run and step */
    const int32_t *from, *to;   /* [n_row] */
    const uint8_t *const *tile; /* [n_tile]: the (layer, head) tile of each block */
    int n_tile;                 /* ceil(max to / 32) */
    const uint8_t *const *next; /* [n_next] tiles that the caller reads next, to be prefetched; 0: none */
    int n_next;
    void *scratch; /* kern_attn_scratch bytes, one buffer per thread */
    int run;       /* 0: rows of q are contiguous; else runs of this many rows, step bytes apart */
    size_t step;
};
size_t kern_attn_scratch(enum kern_kv type, int hd, int n_row_max);

/* ---- the table -------------------------------------------------------------------------------------------------- */

struct kern_ops {
    const char *name; /* "c", "avx2", "avx512" */

    /* Converts columns k0 … k0+n-1 (k0 and n multiples of 32, or k0 = 0 and n = k) of rows r0 … r0+n_row-1 to the forms
     * of `a`. x: [n_row][ld], x[0] is column k0. */
    void (*quantize_act)(struct kern_act *a, int64_t r0, int64_t n_row, int64_t k0, int64_t n, const float *x,
                         size_t ld);

    /* out[i] = (x[i]·r)·w[i], r = 1/sqrt(Σx²/n + eps), sums in 16 lanes. out may be x. */
    void (*norm)(float *out, const float *x, const float *w, int64_t n, float eps);

    /* out[r*ld + j] = Σ_k w[j][k]·x[r][k] for groups g0 <= g < g1, with j = 16g + i - 16·g0 (out starts at group g0),
     * rows r0 <= r < r1 (out row 0 is r0; r0 is a multiple of 8). Writes all 16 columns of a group. */
    void (*matmul)(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1, const struct kern_act *x,
                   int64_t r0, int64_t r1, void *scratch);

    /* out[cols] = row `row` of w in f32: d·q (then + min, a plain add). */
    void (*get_row)(float *out, const struct kern_mat *w, int64_t row);

    void (*silu_mul)(float *out, const float *gate, const float *up, int64_t n); /* out may be gate */
    void (*add)(float *x, const float *y, int64_t n);                            /* x += y */

    /* Rotates n_rot/2 pairs of one head: (x[2i], x[2i+1]), or (x[i], x[i+n_rot/2]) if neox. cs: [n_rot/2][2], cosine
     * and sine. */
    void (*rope)(float *x, const float *cs, int n_rot, bool neox);

    /* Stores K (rotated) and V of one token and head at token t (0 … 31) of a tile. Changes bytes of token t only. */
    void (*kv_write)(uint8_t *tile, enum kern_kv type, int hd, int t, const float *k, const float *v);

    /* Prepares one rotated query row. scale: the softmax scale (1/sqrt(hd) unless the model sets another). */
    void (*q_prep)(uint8_t *dst, enum kern_kv type, int hd, const float *q, float scale);

    /* m, l: [n_row]; o: [n_row][hd]. 0.0f is added to every element at the end, so that the sign of a zero does not
     * depend on which masked tokens were skipped. */
    void (*attn)(float *m, float *l, float *o, const struct kern_attn *a);

    /* Merges the partial (m,l,o) of the next partition into (M,L,O), one row. M starts at -inf, L and O at 0. m = -inf
     * changes nothing. */
    void (*attn_merge)(float *M, float *L, float *O, float m, float l, const float *o, int hd);

    /* out[i] = O[i]/L + 0.0f. */
    void (*attn_finish)(float *out, float L, const float *O, int hd);

    /* Index of the largest of n, the lower one on a tie; *max is its value. NaN is never larger: the search starts with
     * index 0 and -inf, which is also the result if nothing is larger than -inf. */
    int64_t (*argmax)(const float *x, int64_t n, float *max);

    /* Σ exp2((x[i] - max)·c) of one tile (n <= 1024), in 16 lanes, folded; stores the terms in e if e is not NULL. */
    float (*expsum)(float *e, const float *x, int64_t n, float max, float c);
};

size_t kern_matmul_scratch(int64_t cols_max); /* bytes of scratch a thread needs for `matmul` */

/* exp2 of x <= 0 as defined by docs/arithmetic.md. */
float kern_exp2(float x);

/*
 * Selects an implementation by name ("c", "avx2", "avx512"), or the fastest this machine supports if name is NULL.
 * ERR_USAGE: unknown, or not supported by this machine. "avx512" is "avx512-fma" or "avx512-dot" (bf16 by VDPBF16PS),
 * whichever is faster on this machine. The first selection measures that, and disables avx512-dot if its bits differ
 * from the contract.
 */
int kern_select(struct err *e, const struct kern_ops **out, const char *name);

/* Sets rounding, DAZ and FTZ for the calling thread. */
void kern_thread_init(void);

extern const struct kern_ops kern_ops_c, kern_ops_avx2, kern_ops_avx512, kern_ops_avx512_dot;

#endif
