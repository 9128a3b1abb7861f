/* Matrix multiplication for AVX2. */
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/vec_matmul.h"
