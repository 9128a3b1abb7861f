/*
 * The pair rule of bf16 by VDPBF16PS, one instruction for two fma. If it gives the same bits and is faster, select.c
 * returns kern_ops_avx512_dot instead of kern_ops_avx512.
 */
#ifndef DOT_AVX512_H
#define DOT_AVX512_H

#include "kernels/kernels.h"

void vec_matmul_dot_avx512(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1,
                           const struct kern_act *x, int64_t r0, int64_t r1, void *scratch);
void vec_attn_dot_avx512(float *m, float *l, float *o, const struct kern_attn *a);

/* Both run on this machine for less than a millisecond. The caller must have called kern_thread_init(). */
bool dot_is_exact_avx512(void);
bool dot_is_faster_avx512(void);

#endif
