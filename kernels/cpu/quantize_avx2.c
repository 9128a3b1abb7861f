/* Quantisation of activations, K, V and queries for AVX2. */
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/vec_quantize.h"
