/*
 * The vector operations of simd_avx512.h for AVX2 with FMA and F16C: the same names with half the lanes.
 */
#ifndef SIMD_H
#define SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define VF(name) name##_avx2
#define INLINE static inline __attribute__((always_inline))
#define foreach(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

#define DIRECT_GROUPS 2
/* From this number of columns on, one quantised group at a time: never. */
#define ONE_COLS 99
#define ONE_COLS_K 99
#define FLOAT_GROUPS_FEW 2
#define FLOAT_GROUPS 1
/* Off: matrix multiplication gained 10 %, but the attention after it lost as much (Zen 4). */
#define TOUCH_COLS 0
#define PANEL_GROUPS 2
#define PANEL_COLS 8
#define SCORE_REGS 1
#define VALUE_REGS 1
#define DOT_STRIPS_FEW 2
#define DOT_STRIPS_MANY 1

typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vm; /* all ones or zeros in a lane */

INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}
INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
/* acc plus the products of the bf16 pairs w and x, the odd product first. */
INLINE vf vf_pair_dot(vi w, vi x, vf acc)
{
    const vi high = _mm256_set1_epi32((int32_t)0xffff0000u);

    acc = vf_fma(_mm256_castsi256_ps(_mm256_and_si256(w, high)), _mm256_castsi256_ps(_mm256_and_si256(x, high)), acc);
    return vf_fma(_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), acc);
}
INLINE vf vf_neg(vf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
INLINE vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
INLINE vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
INLINE vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
INLINE vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf vf_from_i(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
INLINE vi vi_from_f(vf a)
{
    return _mm256_cvtps_epi32(a);
}
INLINE vf vf_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
INLINE vi vi_bits(vf a)
{
    return _mm256_castps_si256(a);
}

INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
INLINE vi vi_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}
INLINE vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
INLINE void vi_store(void *p, vi v)
{
    _mm256_storeu_si256(p, v);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
#define vi_sar(a, n) _mm256_srai_epi32(a, n)
INLINE vi vi_bcast4(const void *p)
{
    int32_t x;

    memcpy(&x, p, 4);
    return _mm256_set1_epi32(x);
}

INLINE vf vf_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
INLINE void vf_store_f16(void *p, vf v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
}
INLINE vi vi_load_s8(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p));
}
INLINE vi vi_load_u16(const uint16_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
}
INLINE void vi_store_8(void *p, vi v)
{
    const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
    v = _mm256_shuffle_epi8(v, pick);
    _mm_storel_epi64(p, _mm_or_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}
#define PACKED_AT(i) (16 * ((i) % (LANES / 4)) + 4 * ((i) / (LANES / 4)))
INLINE void vi_store_packed(void *p, vi a, vi b, vi c, vi d)
{
    _mm256_storeu_si256(p, _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d)));
}
INLINE void vi_store_16(void *p, vi v)
{
    v = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    _mm_storeu_si128(p, _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}

INLINE vm vm_gt(vf a, vf b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
INLINE vm vm_lt(vf a, vf b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE vm vm_ge(vf a, vf b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
INLINE vm vi_gt(vi a, vi b)
{
    return _mm256_cmpgt_epi32(a, b);
}
INLINE vf vf_times_exp2(vf p, vf n, vf x)
{
    p = vf_bits(_mm256_add_epi32(vi_bits(p), _mm256_slli_epi32(vi_from_f(n), 23)));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), p);
}
INLINE bool vm_any(vm m)
{
    return !_mm256_testz_si256(m, m);
}
INLINE vm vm_range(int first, int lo, int hi)
{
    vi lane = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), lane));
}
INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m));
}
INLINE vi vi_select(vm m, vi a, vi b)
{
    return _mm256_blendv_epi8(b, a, m);
}

/*
 * vpmaddubsw adds two products into 16 bits and saturates. Weights of up to 6 bits stay far below saturation, so the
 * 16-bit sums of several steps are added before they are widened (2 products of w·127 a step: 8 steps for 4 bits, 4 for
 * 5, 2 for 6). 8-bit weights are multiplied as |w| and sign(w)·a without the offset of 128: at most 2·128·127 = 32,512.
 */
typedef struct {
    vi s, part;
} vdot;

/*
 * Hides the value from the compiler. It would otherwise turn chains of integer sums into trees whose terms do not fit
 * into 16 registers, and hoist what every strip loads out of the loop over strips, onto the stack.
 */
#define KEEP_HERE(v) __asm__("" : "+x"(v))
#define RELOAD(p) __asm__("" : "+r"(p))

#define DOT_TAKES_128_OFF true

INLINE vdot dot_begin(vi seed)
{
    return (vdot){seed, _mm256_setzero_si256()};
}
INLINE vi dot_widen(vi s, vi part)
{
    return _mm256_add_epi32(s, _mm256_madd_epi16(part, _mm256_set1_epi16(1)));
}
INLINE vdot dot_step(vdot d, vi w, vi a, int bits, int step)
{
    const int run = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;

    if (bits == 8) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
        d.part = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
    } else if (step % run == 0) {
        d.part = _mm256_maddubs_epi16(w, a);
    } else {
        d.part = _mm256_add_epi16(d.part, _mm256_maddubs_epi16(w, a));
        KEEP_HERE(d.part);
    }
    if (step % run == run - 1)
        d.s = dot_widen(d.s, d.part);
    KEEP_HERE(d.s);
    return d;
}
INLINE vi dot_end(vdot d)
{
    return d.s;
}

INLINE float vf_fold16(const vf v[2])
{
    __m256 a = _mm256_add_ps(v[0], v[1]);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
INLINE float vf_max_lane(vf v)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}
INLINE int32_t vi_sum_lanes(vi v)
{
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
INLINE int32_t vi_max_lane(vi v)
{
    __m128i b = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
INLINE void vi_max_each(int32_t out[16], const vi v[16])
{
    foreach (i, 16)
        out[i] = vi_max_lane(v[i]);
}
INLINE void vi_sum_each(int32_t out[16], const vi v[16])
{
    foreach (i, 16)
        out[i] = vi_sum_lanes(v[i]);
}

INLINE vf vf_load_n(const float *p, int n)
{
    return n >= LANES ? vf_load(p) : _mm256_maskload_ps(p, vm_range(0, 0, n));
}
INLINE void vf_store_n(float *p, vf v, int n)
{
    if (n >= LANES)
        vf_store(p, v);
    else
        _mm256_maskstore_ps(p, vm_range(0, 0, n), v);
}
/* The length of a head's row is a multiple of 8, so these are never partial with 8 lanes. */
INLINE vi vi_load_n(const void *p, int n)
{
    (void)n;
    return vi_load(p);
}
INLINE vf vf_load_f16_n(const void *p, int n)
{
    (void)n;
    return vf_load_f16(p);
}

INLINE vi vi_lanes(void)
{
    return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
}
INLINE vi vi_max(vi a, vi b)
{
    return _mm256_max_epi32(a, b);
}
INLINE vf vf_across(vf v, int h)
{
    return _mm256_permutevar8x32_ps(v, _mm256_xor_si256(vi_lanes(), _mm256_set1_epi32(h)));
}
INLINE vf vf_flip_where(vf v, int h)
{
    vi off = _mm256_cmpeq_epi32(_mm256_and_si256(vi_lanes(), _mm256_set1_epi32(h)), _mm256_setzero_si256());
    return _mm256_castsi256_ps(
        _mm256_xor_si256(vi_bits(v), _mm256_andnot_si256(off, _mm256_set1_epi32((int)0x80000000u))));
}
INLINE vf vf_dup_even(vf v)
{
    return _mm256_moveldup_ps(v);
}
INLINE vf vf_dup_odd(vf v)
{
    return _mm256_movehdup_ps(v);
}
INLINE vf vf_swap_pairs(vf v)
{
    return _mm256_permute_ps(v, 0xb1);
}
INLINE vf vf_evens(vf a, vf b)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
}
INLINE vf vf_odds(vf a, vf b)
{
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
}

#endif
