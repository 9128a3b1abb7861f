/* Element-wise operations and row sums for AVX-512. */
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/vec_element.h"
