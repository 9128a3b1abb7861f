/* The plain C implementation: the rules of docs/arithmetic.md as loops. Private to plain_*.c. */
#ifndef KERNELS_CPU_PLAIN_H
#define KERNELS_CPU_PLAIN_H

#include <math.h>

#include "kernels/cpu/exp2.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

/* Rounds to nearest even within ±limit. NaN gives limit: its scale is NaN already, and the conversion must be
 * defined. */
static inline int round_within(float x, float limit)
{
    x = x < limit ? x : limit;
    return (int)lrintf(x > -limit ? x : -limit);
}

/* The largest magnitude of n values, compared as bits, so that NaN is the largest. */
static inline float magnitude(const float *x, int64_t n)
{
    uint32_t max = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_of_f32(x[i]) & 0x7fffffff;
        max = u > max ? u : max;
    }
    return f32_of_bits(max);
}

/* Adds 16 lanes in the order of docs/arithmetic.md; overwrites the lanes. */
static inline float fold16(float l[16])
{
    for (int h = 8; h; h /= 2)
        for (int i = 0; i < h; i++)
            l[i] += l[i + h];
    return l[0];
}

/* Quantises n values to int8 with one scale; returns the scale. */
float plain_quantize(int8_t *q, const float *x, int n);

void plain_quantize_act(struct kern_act *a, int64_t r0, int64_t n_row, int64_t k0, int64_t n, const float *x,
                        size_t ld);
void plain_norm(float *out, const float *x, const float *w, int64_t n, float eps);
void plain_matmul(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1, const struct kern_act *x,
                  int64_t r0, int64_t r1, void *scratch);
void plain_get_row(float *out, const struct kern_mat *w, int64_t row);
void plain_silu_mul(float *out, const float *gate, const float *up, int64_t n);
void plain_add(float *x, const float *y, int64_t n);
void plain_rope(float *x, const float *cs, int n_rot, bool neox);
void plain_kv_write(uint8_t *tile, enum kern_kv type, int hd, int t, const float *k, const float *v);
void plain_q_prep(uint8_t *dst, enum kern_kv type, int hd, const float *q, float scale);
void plain_attn(float *m, float *l, float *o, const struct kern_attn *a);
void plain_attn_merge(float *M, float *L, float *O, float m, float l, const float *o, int hd);
void plain_attn_finish(float *out, float L, const float *O, int hd);
int64_t plain_argmax(const float *x, int64_t n, float *max);
float plain_expsum(float *e, const float *x, int64_t n, float max, float c);

/* One 32-column block of one row of a quantised matrix, zero point subtracted: w = d[k/16]·q + m. */
struct plain_block {
    int16_t q[32];
    float d[2], m;
};
void plain_unpack(struct plain_block *out, enum kern_type type, const uint8_t *group, int r, int64_t block);

#endif
