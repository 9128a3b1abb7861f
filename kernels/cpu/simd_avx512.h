/*
 * The vector operations used by the vec_*.h algorithms, for AVX-512 with VNNI: a register is LANES f32 or i32, or
 * 4·LANES bytes. simd_avx2.h defines the same names with half the lanes, so each algorithm is written once.
 *
 * VF(name) is the name of an exported function in this instruction set's build.
 */
#ifndef SIMD_H
#define SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define VF(name) name##_avx512
#define INLINE static inline __attribute__((always_inline))
/* Loops over registers must be unrolled: an array is kept in registers only if every index is a constant. */
#define foreach(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* Groups that matrix multiplication walks at once: quantised, float for few (1, 2) and for many columns, a panel. */
#define DIRECT_GROUPS 2
/* From this number of columns on, one quantised group at a time, so that all its sums stay in registers; K types read
 * fastest so. */
#define ONE_COLS 4
#define ONE_COLS_K 1
#define FLOAT_GROUPS_FEW 4
#define FLOAT_GROUPS 2
/* The most columns for which super-blocks may be loaded before the arithmetic (touch_super). */
#define TOUCH_COLS 2
#define PANEL_GROUPS 2
/* Columns of a register tile over a panel. With all sums in registers, 4 reaches 4 to 6 points of the peak more than 8
 * (Zen 4). */
#define PANEL_COLS 4
/* Registers of tokens, and of head columns, that attention processes at once. */
#define SCORE_REGS 2
#define VALUE_REGS 2
/* Strips (LANES output rows) whose dot products are computed together, so that they share each broadcast. */
#define DOT_STRIPS_FEW 2
#define DOT_STRIPS_MANY 2

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm; /* one bit a lane */

INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}
INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* acc plus the products of the bf16 pairs w and x, the odd product first; by VDPBF16PS if dot_avx512.h allows it. */
INLINE vf vf_pair_dot(vi w, vi x, vf acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}
INLINE vf vf_neg(vf a)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32((int)0x80000000u)));
}
INLINE vf vf_abs(vf a)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
/* a > b ? a : b, so b if either is NaN. */
INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
INLINE vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf vf_from_i(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
INLINE vi vi_from_f(vf a)
{
    return _mm512_cvtps_epi32(a);
}
INLINE vf vf_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
INLINE vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}

INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
INLINE vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}
INLINE vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
INLINE void vi_store(void *p, vi v)
{
    _mm512_storeu_si512(p, v);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
#define vi_sar(a, n) _mm512_srai_epi32(a, n)
/* The same four bytes in every lane. */
INLINE vi vi_bcast4(const void *p)
{
    int32_t x;

    memcpy(&x, p, 4);
    return _mm512_set1_epi32(x);
}

/* LANES narrow values widened. */
INLINE vf vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
INLINE void vf_store_f16(void *p, vf v)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
}
INLINE vi vi_load_s8(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
}
INLINE vi vi_load_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
}
/* The low 8 or 16 bits of each lane. */
INLINE void vi_store_8(void *p, vi v)
{
    _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v));
}
/* Stores 4·LANES values of 0 … 255 as bytes; the four bytes of values 4i … 4i+3 are at PACKED_AT(i). */
#define PACKED_AT(i) (16 * ((i) % (LANES / 4)) + 4 * ((i) / (LANES / 4)))
INLINE void vi_store_packed(void *p, vi a, vi b, vi c, vi d)
{
    _mm512_storeu_si512(p, _mm512_packus_epi16(_mm512_packus_epi32(a, b), _mm512_packus_epi32(c, d)));
}
INLINE void vi_store_16(void *p, vi v)
{
    _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(v));
}

INLINE vm vm_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
INLINE vm vm_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
INLINE vm vm_ge(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
INLINE vm vi_gt(vi a, vi b)
{
    return _mm512_cmpgt_epi32_mask(a, b);
}
INLINE bool vm_any(vm m)
{
    return m != 0;
}
/*
 * p·2^n for vf_exp2, n = x rounded, p = exp2(x - n): 0 if x < -126. Then p·2^n is smaller than the smallest normal
 * number, so the instruction flushes it, as MXCSR demands; it also gives 0 for n = -inf, where p is NaN.
 */
INLINE vf vf_times_exp2(vf p, vf n, vf x)
{
    (void)x;
    return _mm512_scalef_ps(p, n);
}
/* Lanes lo <= i < hi of a register whose first lane has the number `first`. */
INLINE vm vm_range(int first, int lo, int hi)
{
    lo = lo < first ? 0 : lo - first > LANES ? LANES : lo - first;
    hi = hi < first ? 0 : hi - first > LANES ? LANES : hi - first;
    return (vm)(hi <= lo ? 0 : ((1u << hi) - 1) & ~((1u << lo) - 1));
}
/* m ? a : b */
INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
INLINE vi vi_select(vm m, vi a, vi b)
{
    return _mm512_mask_blend_epi32(m, b, a);
}

/*
 * Sums of byte products. dot_step adds the four products of each lane: weights w (0 … 2^bits - 1, unsigned) times the
 * signed bytes a, as step number `step` of a run of at most `run`; dot_end returns the run's sums. bits = 8 means bytes
 * that hold value + 128. If DOT_TAKES_128_OFF is false they are summed as stored, and the caller subtracts 128·Σa.
 */
typedef struct {
    vi s;
} vdot;

/* 32 registers suffice without help to the compiler; see simd_avx2.h. */
#define RELOAD(p) (void)(p)

#define DOT_TAKES_128_OFF false

INLINE vdot dot_begin(vi seed)
{
    return (vdot){seed};
}
INLINE vdot dot_step(vdot d, vi w, vi a, int bits, int step)
{
    (void)bits, (void)step;
    d.s = _mm512_dpbusd_epi32(d.s, w, a);
    return d;
}
INLINE vi dot_end(vdot d)
{
    return d.s;
}

/* Fold of 16 lanes: l[i] += l[i+8], then 4, 2, 1. v holds the 16 lanes in 16/LANES registers. */
INLINE float vf_fold16(const vf v[1])
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v[0]), _mm512_extractf32x8_ps(v[0], 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
INLINE float vf_max_lane(vf v)
{
    return _mm512_reduce_max_ps(v);
}
INLINE int32_t vi_sum_lanes(vi v)
{
    return _mm512_reduce_add_epi32(v);
}
INLINE int32_t vi_max_lane(vi v)
{
    return _mm512_reduce_max_epi32(v);
}
/*
 * out[i] = the maximum, or the sum, of the lanes of v[i], for 16 registers at once. Halves are joined pairwise, so that
 * every step reduces as many lanes as there are.
 */
#define EACH_OF_16(NAME, OP)                                                                                           \
    INLINE void NAME(int32_t out[16], const vi v[16])                                                                  \
    {                                                                                                                  \
        const vi order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);                      \
        vi a[8], b[4], c[2];                                                                                           \
                                                                                                                       \
        foreach (i, 8)                                                                                                 \
            a[i] = OP(_mm512_shuffle_i64x2(v[i], v[i + 8], 0x44), _mm512_shuffle_i64x2(v[i], v[i + 8], 0xee));         \
        foreach (i, 4)                                                                                                 \
            b[i] = OP(_mm512_shuffle_i64x2(a[i], a[i + 4], 0x88), _mm512_shuffle_i64x2(a[i], a[i + 4], 0xdd));         \
        foreach (i, 2)                                                                                                 \
            c[i] = OP(_mm512_unpacklo_epi64(b[i], b[i + 2]), _mm512_unpackhi_epi64(b[i], b[i + 2]));                   \
        a[0] = _mm512_castps_si512(_mm512_shuffle_ps(vf_bits(c[0]), vf_bits(c[1]), 0x88));                             \
        a[1] = _mm512_castps_si512(_mm512_shuffle_ps(vf_bits(c[0]), vf_bits(c[1]), 0xdd));                             \
        _mm512_storeu_si512(out, _mm512_permutexvar_epi32(order, OP(a[0], a[1])));                                     \
    }
EACH_OF_16(vi_max_each, _mm512_max_epi32)
EACH_OF_16(vi_sum_each, _mm512_add_epi32)

/* Loads the first n lanes; the others are 0 and their memory is not accessed. */
INLINE vf vf_load_n(const float *p, int n)
{
    return n >= LANES ? vf_load(p) : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
INLINE void vf_store_n(float *p, vf v, int n)
{
    if (n >= LANES)
        vf_store(p, v);
    else
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v);
}
INLINE vi vi_load_n(const void *p, int n)
{
    return n >= LANES ? vi_load(p) : _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), p);
}
INLINE vf vf_load_f16_n(const void *p, int n)
{
    return n >= LANES ? vf_load_f16(p) : _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p));
}

/* Lane i takes lane i^h. */
INLINE vf vf_across(vf v, int h)
{
    vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_permutexvar_ps(_mm512_xor_si512(lane, _mm512_set1_epi32(h)), v);
}
/* 0, 1, 2 …; and the lanes whose number has bit h. */
INLINE vi vi_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
INLINE vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}
INLINE vf vf_flip_where(vf v, int h)
{
    vi bit = _mm512_and_si512(vi_lanes(), _mm512_set1_epi32(h));
    __mmask16 k = _mm512_test_epi32_mask(bit, bit);
    return _mm512_castsi512_ps(_mm512_mask_xor_epi32(vi_bits(v), k, vi_bits(v), _mm512_set1_epi32((int)0x80000000u)));
}
/* Pairs (2i, 2i+1): both lanes get the even one, both the odd one, or the two are swapped. */
INLINE vf vf_dup_even(vf v)
{
    return _mm512_moveldup_ps(v);
}
INLINE vf vf_dup_odd(vf v)
{
    return _mm512_movehdup_ps(v);
}
INLINE vf vf_swap_pairs(vf v)
{
    return _mm512_permute_ps(v, 0xb1);
}
/* The even, or the odd, lanes of two consecutive registers. */
INLINE vf vf_evens(vf a, vf b)
{
    vi pick = vi_shl(vi_lanes(), 1);
    return _mm512_permutex2var_ps(a, pick, b);
}
INLINE vf vf_odds(vf a, vf b)
{
    vi pick = _mm512_or_si512(vi_shl(vi_lanes(), 1), vi_set(1));
    return _mm512_permutex2var_ps(a, pick, b);
}

#endif
