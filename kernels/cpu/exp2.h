/*
 * exp2 as defined by docs/arithmetic.md, for x <= 0: n = x rounded to nearest even, a polynomial of degree 6 in x - n
 * (the Taylor series: ln2^k/k!, each rounded to f32), n added to the exponent as an integer; 0 below -126.
 */
#ifndef KERNELS_CPU_EXP2_H
#define KERNELS_CPU_EXP2_H

#define EXP2_MIN (-126.0f)
#define EXP2_C0 1.0f
#define EXP2_C1 0x1.62e430p-1f  /* 0.6931472 */
#define EXP2_C2 0x1.ebfbe0p-3f  /* 0.2402265 */
#define EXP2_C3 0x1.c6b08ep-5f  /* 0.05550411 */
#define EXP2_C4 0x1.3b2ab6p-7f  /* 0.009618129 */
#define EXP2_C5 0x1.5d87fep-10f /* 0.0013333558 */
#define EXP2_C6 0x1.430912p-13f /* 0.00015403530 */

#define LOG2E 0x1.715476p+0f /* 1.442695 */

/* A smaller scale is treated as 0, so that no reciprocal overflows. */
#define SCALE_MIN 0x1p-100f

#endif
