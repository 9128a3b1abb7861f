/*
 * Functions shared by several operations: exp2, rounding within limits, conversion to bf16, the 16-lane sums.
 */
#ifndef VEC_FLOAT_H
#define VEC_FLOAT_H

#include "kernels/cpu/exp2.h"

/* Registers that hold the 16 lanes of docs/arithmetic.md. */
#define LANE_REGS (16 / LANES)

/* For x <= 0. NaN stays NaN. */
INLINE vf vf_exp2(vf x)
{
    vf n = vf_round(x), f = vf_sub(x, n), p = vf_set(EXP2_C6);

    p = vf_fma(p, f, vf_set(EXP2_C5));
    p = vf_fma(p, f, vf_set(EXP2_C4));
    p = vf_fma(p, f, vf_set(EXP2_C3));
    p = vf_fma(p, f, vf_set(EXP2_C2));
    p = vf_fma(p, f, vf_set(EXP2_C1));
    p = vf_fma(p, f, vf_set(EXP2_C0));
    return vf_times_exp2(p, n, x);
}

/* Rounds to nearest even within ±limit; NaN gives limit. */
INLINE vi round_limit(vf x, float limit)
{
    return vi_from_f(vf_max(vf_min(x, vf_set(limit)), vf_set(-limit)));
}

/* The bits of a magnitude, which have the order of the magnitudes, with NaN as the largest. */
INLINE vi magnitude_bits(vf x)
{
    return vi_and(vi_bits(x), vi_set(0x7fffffff));
}

/* bf16 in the low half of each lane: nearest even, subnormals to zero, NaN quieted. */
INLINE vi bf16_bits(vf x)
{
    vi u = vi_bits(x), mag = magnitude_bits(x), top = vi_shr(u, 16);
    vi near = vi_shr(vi_add(vi_add(u, vi_set(0x7fff)), vi_and(top, vi_set(1))), 16);

    near = vi_select(vi_gt(vi_set(0x00800000), mag), vi_and(top, vi_set(0x8000)), near);
    return vi_select(vi_gt(mag, vi_set(0x7f800000)), vi_or(top, vi_set(0x40)), near);
}

#endif
