/* The table for AVX-512, in two forms: bf16 pairs by fma and by VDPBF16PS. get_row is plain C: a step reads few rows of
 * the embedding. */
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/dot_avx512.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/vec_ops.h"

#define OPS(MATMUL, ATTN)                                                                                              \
    {                                                                                                                  \
        .name = "avx512", .quantize_act = vec_quantize_act_avx512, .norm = vec_norm_avx512, .matmul = MATMUL,          \
        .get_row = plain_get_row, .silu_mul = vec_silu_mul_avx512, .add = vec_add_avx512, .rope = vec_rope_avx512,     \
        .kv_write = vec_kv_write_avx512, .q_prep = vec_q_prep_avx512, .attn = ATTN,                                    \
        .attn_merge = vec_attn_merge_avx512, .attn_finish = vec_attn_finish_avx512, .argmax = vec_argmax_avx512,       \
        .expsum = vec_expsum_avx512,                                                                                   \
    }

const struct kern_ops kern_ops_avx512 = OPS(vec_matmul_avx512, vec_attn_avx512);
const struct kern_ops kern_ops_avx512_dot = OPS(vec_matmul_dot_avx512, vec_attn_dot_avx512);
