/* Checks and measures VDPBF16PS on this machine. */
#include "kernels/cpu/simd_avx512.h"

#include <time.h>

#include "kernels/cpu/dot_avx512.h"

/* The pair rule as docs/arithmetic.md defines it. */
INLINE vf pair_fma(vi w, vi x, vf acc)
{
    const vi high = vi_set((int32_t)0xffff0000u);

    acc = vf_fma(vf_bits(vi_and(w, high)), vf_bits(vi_and(x, high)), acc);
    return vf_fma(vf_bits(vi_shl(w, 16)), vf_bits(vi_shl(x, 16)), acc);
}

/* ---- equality --------------------------------------------------------------------------------------------------- */

/* Xorshift in every lane. */
INLINE vi lanes_next(vi *s)
{
    *s = vi_xor(*s, vi_shl(*s, 13));
    *s = vi_xor(*s, vi_shr(*s, 17));
    *s = vi_xor(*s, vi_shl(*s, 5));
    return *s;
}

/* Two bf16 in every lane, with 16 consecutive exponents, starting at `exponent`. */
INLINE vi random_pairs(vi *s, int exponent)
{
    vi bits = vi_and(lanes_next(s), vi_set((int32_t)0x807f807fu));
    vi up = vi_add(vi_and(lanes_next(s), vi_set(0x000f000f)), vi_set(exponent << 16 | exponent));

    return vi_or(bits, vi_shl(up, 7));
}

INLINE vf random_floats(vi *s, int exponent)
{
    vi bits = vi_and(lanes_next(s), vi_set((int32_t)0x807fffffu));
    vi up = vi_add(vi_and(lanes_next(s), vi_set(15)), vi_set(exponent));

    return vf_bits(vi_or(bits, vi_shl(up, 23)));
}

/* True in lanes whose bits differ, unless both are NaN. */
INLINE vm differ(vf a, vf b)
{
    vm nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) & _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q);

    return (vm)(_mm512_cmpneq_epi32_mask(vi_bits(a), vi_bits(b)) & ~nan);
}

/*
 * Compares 164,000 lanes: sums of one magnitude, at both ends of the range, of subnormals and infinities, and of random
 * bits. In half of the sums the terms nearly cancel, so that rounding errors show. 12 of 100 lanes differ if the even
 * product is added first, 21 if the sum of the products is rounded before it is added, 6 if subnormals are kept.
 */
bool dot_is_exact_avx512(void)
{
    static const struct {
        int w, x, acc; /* smallest exponents; a product's exponent is the sum of both less 127 */
    } kinds[] = {{120, 120, 120}, {56, 56, 0}, {183, 183, 240}, {0, 240, 120}};
    vi s = vi_add(vi_lanes(), vi_set(0x2545f491));
    vm wrong = 0;

    for (int i = 0; i < 2048; i++) {
        foreach (k, 4) {
            vi w = random_pairs(&s, kinds[k].w), x = random_pairs(&s, kinds[k].x);
            vf acc = random_floats(&s, kinds[k].acc);

            if (i % 2)
                acc = vf_neg(pair_fma(w, x, vf_zero()));
            wrong |= differ(vf_pair_dot(w, x, acc), pair_fma(w, x, acc));
        }
        vi w = lanes_next(&s), x = lanes_next(&s);
        vf acc = vf_bits(lanes_next(&s));

        wrong |= differ(vf_pair_dot(w, x, acc), pair_fma(w, x, acc));
    }
    return !vm_any(wrong);
}

/* ---- speed ------------------------------------------------------------------------------------------------------ */

#define SUMS 16

/* Thread CPU time of 2,000 steps of a register tile. */
INLINE int64_t tile_time(bool dot)
{
    vi w = vi_set(0x3f803f80), x = vi_set(0x3a833a83);
    struct timespec a, b;
    vf s[SUMS];

    foreach (j, SUMS)
        s[j] = vf_zero();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (int i = 0; i < 2000; i++) {
        __asm__ volatile("" : "+v"(w), "+v"(x)); /* makes w and x new operands, so that each step widens them again */
        foreach (j, SUMS)
            s[j] = dot ? vf_pair_dot(w, x, s[j]) : pair_fma(w, x, s[j]);
    }
    foreach (j, SUMS)
        __asm__ volatile("" : : "v"(s[j]));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    return (b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec;
}

/*
 * Times the dot-product instruction and fma in alternating rounds and compares the minimum of each, because other load
 * only adds to a time. On the CPUs measured, the two differed by a factor near 2, in one direction or the other; if
 * they are equal, fma is used.
 */
bool dot_is_faster_avx512(void)
{
    int64_t dot = INT64_MAX, fma = INT64_MAX;

    for (int i = 0; i < 7; i++) {
        int64_t d = tile_time(true), f = tile_time(false);

        dot = d < dot ? d : dot;
        fma = f < fma ? f : fma;
    }
    return dot < fma - fma / 8;
}
