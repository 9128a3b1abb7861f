/*
 * Matrix multiplication by quantised weights. Up to DIRECT_ROWS activation rows, the packed weights are read in place
 * and stream from memory once for every 8 rows. Above that, a panel of groups is unpacked once into bytes and f32
 * scales, and every tile of activations is multiplied by it. Both add block after block in one chain for each output,
 * so they give equal bits.
 */
#ifndef VEC_MATMUL_QUANT_H
#define VEC_MATMUL_QUANT_H

#include "kernels/cpu/machine.h"
#include "kernels/cpu/vec_matmul_float.h"
#include "kernels/cpu/vec_quant.h"

#define DIRECT_ROWS 16
/* Blocks of a piece of a panel, which must fit into the first-level cache together with a tile's activations. */
#define PANEL_BLOCKS 24
/* Prefetch distance, shared by the streams of groups that are walked at once. */
#define PREFETCH_BYTES 6144
#define PANEL_STRIPS (PANEL_GROUPS * GROUP_STRIPS)
#define PANEL_BLOCK_BYTES ((size_t)PANEL_STRIPS * (8 * STRIP_BYTES + 2 * 4 * LANES))

/* One tile of activations in the form for quantised weights, at its first block. */
struct quant_tile {
    const int8_t *q;
    const float *d, *z;
    const int32_t *s;
};

INLINE struct quant_tile quant_tile_at(const struct kern_act *x, int64_t tile, int64_t block)
{
    int64_t i = tile * (x->k / 32) + block;

    return (struct quant_tile){x->q + i * 256, x->d + i * 8, x->z + i * 8, x->s + i * 16};
}

INLINE struct quant_tile quant_tile_next(struct quant_tile x, int64_t blocks)
{
    return (struct quant_tile){x.q + blocks * 256, x.d + blocks * 8, x.z + blocks * 8, x.s + blocks * 16};
}

/* Vector of quad q of strip number s of a block's weights: packed (one pointer per strip) or a panel (one for all). */
INLINE vi strip_quad(enum kern_type t, bool packed, int strips, const uint8_t *const w[], int s, int q)
{
    return packed ? quant_quad(t, w[s], q) : vi_load(w[0] + (size_t)(q * strips + s) * STRIP_BYTES);
}

/*
 * out[s·cols + c] = exact sums of one block for strips s0 … s0+n_strip-1. half: -1 for both halves, else the half of 16
 * columns. Nibble quads are processed in the order 0 4 1 5 …, so that both quads of a byte come from one load.
 */
INLINE void block_dots(vi out[], enum kern_type t, bool packed, int strips, int s0, int n_strip, int cols,
                       const uint8_t *const w[], struct quant_tile x, int half)
{
    const int steps = half < 0 ? 8 : 4;
    int32_t seed[8];
    vdot d[4 * 8];
    vi v[4];

    RELOAD(x.q);
    if (quant_zero(t))
        for (int c = 0; c < cols; c++)
            seed[c] = -quant_zero(t) * (half < 0 ? x.s[c] + x.s[8 + c] : x.s[8 * half + c]);
    foreach (c, cols)
        foreach (s, n_strip)
            d[s * cols + c] = dot_begin(quant_zero(t) ? vi_set(seed[c]) : vi_zero());
    foreach (i, steps) {
        const int q = half >= 0 ? half * 4 + i : (i & 1) * 4 + i / 2;

        foreach (s, n_strip)
            v[s] = strip_quad(t, packed, strips, w, s0 + s, q);
        foreach (c, cols) {
            vi a = vi_bcast4(x.q + c * 32 + q * 4);

            foreach (s, n_strip)
                d[s * cols + c] = dot_step(d[s * cols + c], v[s], a, quant_bits(t), i);
        }
    }
    foreach (i, n_strip * cols)
        out[i] = dot_end(d[i]);
}

/* acc[s·cols + c] += one block, for strips s0 … s0+n_strip-1; scale: one per strip. */
INLINE void block_add(vf acc[], enum kern_type t, bool packed, int strips, int s0, int n_strip, int cols,
                      const uint8_t *const w[], const struct quant_scale scale[], struct quant_tile x)
{
    vi sum[4 * 8];
    vf half[4 * 8];

    if (t == KERN_Q6_K) {
        block_dots(sum, t, packed, strips, s0, n_strip, cols, w, x, 0);
        foreach (i, n_strip * cols)
            half[i] = vf_mul(scale[s0 + i / cols].d, vf_from_i(sum[i]));
        block_dots(sum, t, packed, strips, s0, n_strip, cols, w, x, 1);
        foreach (i, n_strip * cols) {
            half[i] = vf_fma(scale[s0 + i / cols].m, vf_from_i(sum[i]), half[i]);
            acc[s0 * cols + i] = vf_fma(vf_set(x.d[i % cols]), half[i], acc[s0 * cols + i]);
        }
        return;
    }
    block_dots(sum, t, packed, strips, s0, n_strip, cols, w, x, -1);
    foreach (c, cols)
        foreach (s, n_strip) {
            const int i = s * cols + c;
            vf f = vf_fma(vf_mul(scale[s0 + s].d, vf_set(x.d[c])), vf_from_i(sum[i]), acc[s0 * cols + i]);

            acc[s0 * cols + i] = quant_has_min(t) ? vf_fma(scale[s0 + s].m, vf_set(x.z[c]), f) : f;
        }
}

/* Stores acc[strips][cols] of the first n columns: out[c·ld + row]. */
INLINE void acc_store(float *out, size_t ld, const vf acc[], int strips, int cols, int n)
{
    foreach (c, cols)
        if (c < n)
            foreach (s, strips)
                vf_store(out + (size_t)c * ld + s * LANES, acc[s * cols + c]);
}

/*
 * Prefetches a block's share of a later super-block (its scales are apart from its weights); the next group follows
 * directly. If memory is the bottleneck (few columns, 8-bit weights), into the second level, which reads up to half
 * again as fast on Zen 4; if the arithmetic takes as long, into the first.
 */
INLINE void prefetch_block(enum kern_type t, int groups, int cols, const uint8_t *super, int in)
{
    const size_t share = quant_super_bytes(t) / (size_t)quant_super(t);
    const char *p = (const char *)super + (size_t)in * share + PREFETCH_BYTES / groups;

    for (size_t i = 0; i < share; i += 64)
        if (cols <= (quant_is_k(t) ? 2 : 4) || quant_bits(t) == 8)
            _mm_prefetch(p + i, _MM_HINT_T1);
        else
            _mm_prefetch(p + i, _MM_HINT_T0);
}

/* True if a super-block is first loaded in order, so that the arithmetic finds it in the first-level cache. */
INLINE bool touched(enum kern_type t, int cols)
{
    return cols <= TOUCH_COLS && quant_super(t) == 2 && machine_touches;
}

/*
 * Loads a super-block line by line with one load instruction, which the hardware prefetchers of Zen 4 follow best. The
 * loads of the arithmetic stride by a super-block each, and with them, even with software prefetch, a core reaches 0.75
 * of the rate of a plain read from memory; with this 0.85 to 0.9. A Xeon (Emerald Rapids) lost a quarter by it with one
 * thread.
 */
INLINE void touch_super(enum kern_type t, const uint8_t *super)
{
    const volatile uint8_t *line = super, *end = super + quant_super_bytes(t);

    _Pragma("GCC unroll 1") while (line < end)
    {
        (void)*line;
        line += 64;
    }
}

/* acc += block number `in` of a super-block. */
INLINE void direct_block(vf acc[], enum kern_type t, int groups, int cols, const uint8_t *super,
                         struct group_stride stride, int in, struct quant_tile x)
{
    const int strips = groups * GROUP_STRIPS, step = cols <= 2 ? DOT_STRIPS_FEW : DOT_STRIPS_MANY;
    const int n_strip = step < strips ? step : strips;
    const size_t off = quant_head_bytes(t) + (size_t)in * quant_weight_bytes(t);
    const uint8_t *strip[8];
    struct quant_scale scale[8];

    foreach (g, groups)
        if (!touched(t, cols))
            prefetch_block(t, groups, cols, super + (size_t)g * stride.bytes, in);
        else if (in == 0)
            touch_super(t, super + (size_t)g * stride.bytes);
    foreach (s, strips) {
        const uint8_t *group = super + (size_t)(s / GROUP_STRIPS) * stride.bytes;

        strip[s] = group + off + s % GROUP_STRIPS * STRIP_BYTES;
        scale[s] = quant_scales(t, group, in, s % GROUP_STRIPS);
    }
    for (int s = 0; s < strips / n_strip; s++)
        block_add(acc, t, true, strips, s * n_strip, n_strip, cols, strip, scale, x);
}

/*
 * Writes `n` columns of `groups` groups; computes `cols`, whose memory exists. A super-block of two is one iteration of
 * the loop, so that each load has an even stride, which the hardware prefetcher follows.
 */
INLINE void direct_tile(float *out, size_t ld, enum kern_type t, int groups, int cols, int n, const uint8_t *w,
                        struct group_stride stride, int64_t blocks, struct quant_tile x)
{
    const int turn = quant_super(t) == 2 ? 2 : 1;
    vf acc[4 * 8];

    foreach (i, groups * GROUP_STRIPS * cols)
        acc[i] = vf_zero();
    for (int64_t b = 0; b < blocks; b += turn) {
        const uint8_t *super = w + (size_t)(b / quant_super(t)) * quant_super_bytes(t);

        foreach (i, turn) {
            if (i && b + i == blocks)
                break;
            direct_block(acc, t, groups, cols, super, stride, turn == 2 ? i : (int)(b % quant_super(t)), x);
            x = quant_tile_next(x, 1);
        }
    }
    foreach (g, groups)
        acc_store(out + (size_t)g * stride.out, ld, acc + g * GROUP_STRIPS * cols, GROUP_STRIPS, cols, n);
}

/* Unpacks blocks b0 … b0+n-1 of `groups` groups: [block][quad][strip] bytes, then [strip] scales and [strip] minima. */
INLINE void panel_unpack(uint8_t *panel, enum kern_type t, int groups, const uint8_t *w, size_t group_bytes, int64_t b0,
                         int64_t n)
{
    const int strips = groups * GROUP_STRIPS;

    for (int64_t b = b0; b < b0 + n; b++, panel += PANEL_BLOCK_BYTES) {
        const int in = (int)(b % quant_super(t));
        const size_t super = (size_t)(b / quant_super(t)) * quant_super_bytes(t);
        const size_t off = super + quant_head_bytes(t) + (size_t)in * quant_weight_bytes(t);
        float *scale = (float *)(panel + (size_t)8 * strips * STRIP_BYTES);

        foreach (s, strips) {
            const int h = s % GROUP_STRIPS;
            const uint8_t *group = w + (size_t)(s / GROUP_STRIPS) * group_bytes;
            struct quant_scale sc = quant_scales(t, group + super, in, h);

            foreach (q, 8)
                vi_store(panel + (size_t)(q * strips + s) * STRIP_BYTES,
                         quant_quad(t, group + off + h * STRIP_BYTES, q));
            vf_store(scale + s * LANES, sc.d);
            vf_store(scale + (strips + s) * LANES, sc.m);
        }
    }
}

/*
 * The memory that is unpacked next, prefetched a share per tile during the arithmetic: the next piece of the same
 * groups, or the first piece of the next groups (after the last groups that reads past them, which is harmless).
 */
struct panel_ahead {
    const uint8_t *at[PANEL_GROUPS];
    size_t left, step, groups;
};

INLINE struct panel_ahead panel_ahead(enum kern_type t, int groups, const uint8_t *group, size_t group_bytes,
                                      int64_t blocks, int64_t next, int64_t tiles)
{
    const size_t share = quant_super_bytes(t) / (size_t)quant_super(t);
    const int64_t from = next < blocks ? next : 0, n = blocks - from < PANEL_BLOCKS ? blocks - from : PANEL_BLOCKS;
    struct panel_ahead f = {.left = share * (size_t)n, .groups = (size_t)groups};

    for (int i = 0; i < groups; i++)
        f.at[i] = group + (size_t)(next < blocks ? i : groups + i) * group_bytes +
                  (size_t)(from / quant_super(t)) * quant_super_bytes(t);
    f.step = (f.left / (size_t)tiles + 63) / 64 * 64;
    return f;
}

INLINE void panel_fetch(struct panel_ahead *f)
{
    const size_t n = f->left < f->step ? f->left : f->step;

    for (size_t i = 0; i < f->groups; i++) {
        for (size_t k = 0; k < n; k += 64)
            _mm_prefetch((const char *)f->at[i] + k, _MM_HINT_T1);
        f->at[i] += n;
    }
    f->left -= n;
}

/* Multiplies one tile by a panel of n blocks; `more`: out holds the sums so far. */
INLINE void panel_tile(float *out, size_t ld, enum kern_type t, int groups, int n_col, const uint8_t *panel, int64_t n,
                       bool more, struct quant_tile x)
{
    const int strips = groups * GROUP_STRIPS;
    const int n_strip = DOT_STRIPS_MANY < strips ? DOT_STRIPS_MANY : strips;
    vf acc[4 * 8];

    foreach (c, PANEL_COLS)
        foreach (s, strips)
            acc[s * PANEL_COLS + c] = more && c < n_col ? vf_load(out + (size_t)c * ld + s * LANES) : vf_zero();
    for (int64_t b = 0; b < n; b++, panel += PANEL_BLOCK_BYTES) {
        const float *m = (const float *)(panel + (size_t)8 * strips * STRIP_BYTES);
        struct quant_scale scale[8];

        foreach (s, strips) {
            scale[s].d = vf_load(m + s * LANES);
            scale[s].m = vf_load(m + (strips + s) * LANES);
        }
        for (int s = 0; s < strips / n_strip; s++)
            block_add(acc, t, false, strips, s * n_strip, n_strip, PANEL_COLS, &panel, scale, x);
        x = quant_tile_next(x, 1);
    }
    acc_store(out, ld, acc, strips, PANEL_COLS, n_col);
}

#endif
