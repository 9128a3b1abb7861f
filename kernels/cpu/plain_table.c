#include "kernels/cpu/plain.h"

const struct kern_ops kern_ops_c = {
    .name = "c",
    .quantize_act = plain_quantize_act,
    .norm = plain_norm,
    .matmul = plain_matmul,
    .get_row = plain_get_row,
    .silu_mul = plain_silu_mul,
    .add = plain_add,
    .rope = plain_rope,
    .kv_write = plain_kv_write,
    .q_prep = plain_q_prep,
    .attn = plain_attn,
    .attn_merge = plain_attn_merge,
    .attn_finish = plain_attn_finish,
    .argmax = plain_argmax,
    .expsum = plain_expsum,
};
