/* Attention for AVX-512, bf16 KV in both of its forms. */
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/dot_avx512.h"
#include "kernels/cpu/vec_attn.h"

ATTN_TYPE(bf16_dot, KERN_KV_BF16, true)

void vec_attn_dot_avx512(float *m, float *l, float *o, const struct kern_attn *a)
{
    static attn_fn *const fns[ATTN_ROWS] = {attn_bf16_dot_1, attn_bf16_dot_2, attn_bf16_dot_3, attn_bf16_dot_4};

    attn_walk(m, l, o, a->type == KERN_KV_BF16 ? fns : attn_fns[a->type], a);
}
