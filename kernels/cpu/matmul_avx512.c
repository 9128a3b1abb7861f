/* Matrix multiplication for AVX-512; BF16 in both of its forms. */
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/dot_avx512.h"
#include "kernels/cpu/vec_matmul.h"

FLOAT_TYPE(BF16_DOT, KERN_BF16, true, BF16_TILE)

void vec_matmul_dot_avx512(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1,
                           const struct kern_act *x, int64_t r0, int64_t r1, void *scratch)
{
    static const struct direct fns = FNS(BF16_DOT);

    if (w->type == KERN_BF16)
        matmul_direct(out, ld, &fns, w, g0, g1, x, r0, r1);
    else
        vec_matmul_avx512(out, ld, w, g0, g1, x, r0, r1, scratch);
}
