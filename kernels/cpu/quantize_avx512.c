/* Quantisation of activations, K, V and queries for AVX-512. */
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/vec_quantize.h"
