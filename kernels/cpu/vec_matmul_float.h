/*
 * Matrix multiplication by F32, F16 and BF16 weights: lanes are output rows, every output is one chain of fma over
 * ascending k (BF16: over pairs, the odd one first). The packed groups are read in place for any number of rows.
 */
#ifndef VEC_MATMUL_FLOAT_H
#define VEC_MATMUL_FLOAT_H

#include "kernels/kernels.h"

/*
 * Groups that a direct kernel walks at once are far apart, each in its own part of the matrix, so that every stream of
 * weights is sequential over many groups: interleaved neighbours of some KiB read at half the rate. Distance in bytes
 * and in outputs.
 */
struct group_stride {
    size_t bytes, out;
};

/* One step of BF16 by vf_pair_dot instead of widening and fma. */
INLINE void dot_pair_step(vf acc[], int strips, int cols, const uint8_t *const w[], size_t off, const uint8_t *x)
{
    vi pair[8];

    foreach (s, strips)
        pair[s] = vi_load(w[s] + off);
    foreach (c, cols) {
        vi a = vi_bcast4(x + 4 * c);

        foreach (s, strips)
            acc[s * cols + c] = vf_pair_dot(pair[s], a, acc[s * cols + c]);
    }
}

/* acc[strips][cols] += one step: a column k, or for BF16 the pair 2k, 2k+1. w: one pointer per strip; x: the tile's
 * step. */
INLINE void float_step(vf acc[], enum kern_type t, int strips, int cols, const uint8_t *const w[], size_t off,
                       const void *x)
{
    const vi high = vi_set((int32_t)0xffff0000u);
    vf even[8], odd[8];

    foreach (s, strips) {
        if (t == KERN_F32) {
            even[s] = vf_load((const float *)(w[s] + off));
        } else if (t == KERN_F16) {
            even[s] = vf_load_f16(w[s] + off);
        } else {
            vi pair = vi_load(w[s] + off);

            even[s] = vf_bits(vi_shl(pair, 16));
            odd[s] = vf_bits(vi_and(pair, high));
        }
    }
    foreach (c, cols) {
        if (t != KERN_BF16) {
            vf a = vf_set(((const float *)x)[c]);

            foreach (s, strips)
                acc[s * cols + c] = vf_fma(even[s], a, acc[s * cols + c]);
        } else {
            vi pair = vi_bcast4((const uint8_t *)x + 4 * c);
            vf a = vf_bits(vi_shl(pair, 16)), b = vf_bits(vi_and(pair, high));

            foreach (s, strips)
                acc[s * cols + c] = vf_fma(even[s], a, vf_fma(odd[s], b, acc[s * cols + c]));
        }
    }
}

/* One tile of activations over `groups` groups: `cols` columns computed, the first n stored. dot: by dot_pair_step. */
INLINE void float_tile(float *out, size_t ld, enum kern_type t, bool dot, int groups, int cols, int n, const uint8_t *w,
                       struct group_stride stride, int64_t steps, const void *x)
{
    const int strips = groups * (16 / LANES);
    const size_t strip_bytes = t == KERN_F16 ? 2 * LANES : 4 * LANES, step_bytes = t == KERN_F16 ? 32 : 64;
    const uint8_t *strip[8];
    vf acc[4 * 8];

    foreach (s, strips)
        strip[s] = w + (size_t)(s / (16 / LANES)) * stride.bytes + (size_t)(s % (16 / LANES)) * strip_bytes;
    foreach (i, strips * cols)
        acc[i] = vf_zero();
    for (int64_t k = 0; k < steps; k++) {
        foreach (g, groups)
            _mm_prefetch((const char *)(w + (size_t)g * stride.bytes + (size_t)k * step_bytes + 2048), _MM_HINT_T0);
        if (dot)
            dot_pair_step(acc, strips, cols, strip, (size_t)k * step_bytes, (const uint8_t *)x + k * 32);
        else
            float_step(acc, t, strips, cols, strip, (size_t)k * step_bytes, (const uint8_t *)x + k * 32);
    }
    foreach (c, cols)
        foreach (s, strips)
            if (c < n)
                vf_store(out + (size_t)c * ld + (size_t)(s / (16 / LANES)) * stride.out + s % (16 / LANES) * LANES,
                         acc[s * cols + c]);
}

#endif
