/* Element-wise operations and row sums for AVX2. */
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/vec_element.h"
