/* The table for AVX2. get_row is plain C: a step reads few rows of the embedding. */
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/plain.h"
#include "kernels/cpu/vec_ops.h"

const struct kern_ops kern_ops_avx2 = {
    .name = "avx2",
    .quantize_act = vec_quantize_act_avx2,
    .norm = vec_norm_avx2,
    .matmul = vec_matmul_avx2,
    .get_row = plain_get_row,
    .silu_mul = vec_silu_mul_avx2,
    .add = vec_add_avx2,
    .rope = vec_rope_avx2,
    .kv_write = vec_kv_write_avx2,
    .q_prep = vec_q_prep_avx2,
    .attn = vec_attn_avx2,
    .attn_merge = vec_attn_merge_avx2,
    .attn_finish = vec_attn_finish_avx2,
    .argmax = vec_argmax_avx2,
    .expsum = vec_expsum_avx2,
};
