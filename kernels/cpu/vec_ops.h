/*
 * The operations of a vector instruction set, one file per concept; ops_*.c puts them in the table. Included after the
 * instruction set's simd header.
 */
#ifndef VEC_OPS_H
#define VEC_OPS_H

#include "kernels/kernels.h"

void VF(vec_matmul)(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1, const struct kern_act *x,
                    int64_t r0, int64_t r1, void *scratch);
void VF(vec_quantize_act)(struct kern_act *a, int64_t r0, int64_t n_row, int64_t k0, int64_t n, const float *x,
                          size_t ld);
void VF(vec_norm)(float *out, const float *x, const float *w, int64_t n, float eps);
void VF(vec_silu_mul)(float *out, const float *gate, const float *up, int64_t n);
void VF(vec_add)(float *x, const float *y, int64_t n);
void VF(vec_rope)(float *x, const float *cs, int n_rot, bool neox);
void VF(vec_kv_write)(uint8_t *tile, enum kern_kv type, int hd, int t, const float *k, const float *v);
void VF(vec_q_prep)(uint8_t *dst, enum kern_kv type, int hd, const float *q, float scale);
void VF(vec_attn)(float *m, float *l, float *o, const struct kern_attn *a);
void VF(vec_attn_merge)(float *M, float *L, float *O, float m, float l, const float *o, int hd);
void VF(vec_attn_finish)(float *out, float L, const float *O, int hd);
int64_t VF(vec_argmax)(const float *x, int64_t n, float *max);
float VF(vec_expsum)(float *e, const float *x, int64_t n, float max, float c);

#endif
