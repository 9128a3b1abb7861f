/* Element-wise operations and sums over a row: norm, activation function, rotation, sums over the vocabulary. */
#ifndef VEC_ELEMENT_H
#define VEC_ELEMENT_H

#include <math.h>

#include "kernels/cpu/vec_float.h"
#include "kernels/cpu/vec_ops.h"

/* Number of lanes of the register at i that are before n; an int, for the partial loads. */
INLINE int lanes_left(int64_t n, int64_t i)
{
    return n - i < LANES ? (n > i ? (int)(n - i) : 0) : LANES;
}

void VF(vec_norm)(float *out, const float *x, const float *w, int64_t n, float eps)
{
    vf sum[LANE_REGS];

    for (int j = 0; j < LANE_REGS; j++)
        sum[j] = vf_zero();
    /* Lanes past the end add +0 to a sum of squares, which changes no bit. */
    for (int64_t i = 0; i < n; i += 16)
        for (int j = 0; j < LANE_REGS; j++) {
            vf v = vf_load_n(x + i + j * LANES, lanes_left(n, i + j * LANES));
            sum[j] = vf_add(sum[j], vf_mul(v, v));
        }
    vf r = vf_set(1.0f / sqrtf(vf_fold16(sum) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES) {
        int left = lanes_left(n, i);
        vf_store_n(out + i, vf_mul(vf_mul(vf_load_n(x + i, left), r), vf_load_n(w + i, left)), left);
    }
}

void VF(vec_silu_mul)(float *out, const float *gate, const float *up, int64_t n)
{
    const vf one = vf_set(1.0f);

    for (int64_t i = 0; i < n; i += LANES) {
        int left = lanes_left(n, i);
        vf g = vf_load_n(gate + i, left);
        vf e = vf_exp2(vf_mul(vf_neg(vf_abs(g)), vf_set(LOG2E)));
        vf s = vf_div(vf_select(vm_ge(g, vf_zero()), one, e), vf_add(one, e));
        vf_store_n(out + i, vf_mul(vf_mul(g, s), vf_load_n(up + i, left)), left);
    }
}

void VF(vec_add)(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int left = lanes_left(n, i);
        vf_store_n(x + i, vf_add(vf_load_n(x + i, left), vf_load_n(y + i, left)), left);
    }
}

/* Neighbouring pairs: with (x0,x1) and (c,s) interleaved, x0·(c,s), then fma of (-x1,x1) and (s,c). */
static void rope_pairs(float *x, const float *cs, int n_rot)
{
    for (int i = 0; i < n_rot; i += LANES) {
        int left = lanes_left(n_rot, i);
        vf v = vf_load_n(x + i, left), t = vf_load_n(cs + i, left);
        vf far = vf_neg(vf_flip_where(vf_dup_odd(v), 1));
        vf_store_n(x + i, vf_fma(far, vf_swap_pairs(t), vf_mul(vf_dup_even(v), t)), left);
    }
}

void VF(vec_rope)(float *x, const float *cs, int n_rot, bool neox)
{
    const int n = n_rot / 2;

    if (!neox) {
        rope_pairs(x, cs, 2 * n);
        return;
    }
    for (int i = 0; i < n; i += LANES) {
        int left = lanes_left(n, i), both = 2 * left;
        vf a = vf_load_n(cs + 2 * i, both < LANES ? both : LANES);
        vf b = both > LANES ? vf_load_n(cs + 2 * i + LANES, both - LANES) : vf_zero();
        vf c = vf_evens(a, b), s = vf_odds(a, b);
        vf x0 = vf_load_n(x + i, left), x1 = vf_load_n(x + n + i, left);
        vf_store_n(x + i, vf_fma(vf_neg(x1), s, vf_mul(x0, c)), left);
        vf_store_n(x + n + i, vf_fma(x1, c, vf_mul(x0, s)), left);
    }
}

/* Each lane keeps its first maximum; if lanes tie, the lower index wins. */
int64_t VF(vec_argmax)(const float *x, int64_t n, float *max)
{
    vf top = vf_set(-INFINITY);
    vi at = vi_zero(), now = vi_lanes();
    float value[LANES];
    int32_t index[LANES];
    int64_t i = 0, best = 0;

    for (; i + LANES <= n; i += LANES, now = vi_add(now, vi_set(LANES))) {
        vf v = vf_load(x + i);
        vm more = vm_gt(v, top);
        top = vf_select(more, v, top);
        at = vi_select(more, now, at);
    }
    vf_store(value, top);
    vi_store(index, at);
    *max = -INFINITY;
    for (int j = 0; j < LANES; j++)
        if (value[j] > *max || (value[j] == *max && value[j] > -INFINITY && index[j] < best)) {
            *max = value[j];
            best = index[j];
        }
    for (; i < n; i++)
        if (x[i] > *max) {
            *max = x[i];
            best = i;
        }
    /* +0 and -0 tie; the value is the one at the index. */
    if (*max > -INFINITY)
        *max = x[best];
    return best;
}

float VF(vec_expsum)(float *e, const float *x, int64_t n, float max, float c)
{
    vf sum[LANE_REGS];

    for (int j = 0; j < LANE_REGS; j++)
        sum[j] = vf_zero();
    for (int64_t i = 0; i < n; i += 16)
        for (int j = 0; j < LANE_REGS; j++) {
            int64_t k = i + j * LANES;
            int left = lanes_left(n, k);
            if (left == 0)
                break;
            vf v = vf_exp2(vf_mul(vf_sub(vf_load_n(x + k, left), vf_set(max)), vf_set(c)));
            if (left < LANES)
                v = vf_select(vm_range(0, 0, left), v, vf_zero());
            if (e)
                vf_store_n(e + k, v, left);
            sum[j] = vf_add(sum[j], v);
        }
    return vf_fold16(sum);
}

void VF(vec_attn_merge)(float *M, float *L, float *O, float m, float l, const float *o, int hd)
{
    if (m == -INFINITY)
        return;
    if (*M == -INFINITY && m > -INFINITY) { /* 0 times 0 plus 1 times the new value, which contains no -0 */
        memcpy(O, o, (size_t)hd * sizeof *O);
        *L = l;
        *M = m;
        return;
    }
    float top = m > *M ? m : *M, sum[LANES];
    const vf old = vf_exp2(vf_set(*M - top)), new = vf_exp2(vf_set(m - top));

    for (int i = 0; i < hd; i += LANES) {
        int left = lanes_left(hd, i);
        vf add = vf_mul(vf_load_n(o + i, left), new);
        vf_store_n(O + i, vf_fma(vf_load_n(O + i, left), old, add), left);
    }
    vf_store(sum, vf_fma(vf_set(*L), old, vf_mul(vf_set(l), new)));
    *L = sum[0];
    *M = top;
}

void VF(vec_attn_finish)(float *out, float L, const float *O, int hd)
{
    for (int i = 0; i < hd; i += LANES) {
        int left = lanes_left(hd, i);
        vf_store_n(out + i, vf_add(vf_div(vf_load_n(O + i, left), vf_set(L)), vf_zero()), left);
    }
}

#endif
