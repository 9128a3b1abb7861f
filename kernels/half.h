/*
 * Conversions of the two half formats in integer arithmetic: the same bits on every machine, whatever DAZ and FTZ are.
 */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float f32_of_bf16(uint16_t h)
{
    return f32_of_bits((uint32_t)h << 16);
}

/* As VCVTNEPS2BF16: rounds to nearest even, flushes subnormals to zero, quiets NaN. */
static inline uint16_t bf16_of_f32(float x)
{
    uint32_t u = bits_of_f32(x), mag = u & 0x7fffffff;
    if (mag > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    if (mag < 0x00800000)
        return (uint16_t)(u >> 16 & 0x8000);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Exact. A subnormal is mant·2^-24, which is a normal number in f32. */
static inline float f32_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, mant = h & 0x3ff;
    if (exp == 31)
        return f32_of_bits(sign | 0x7f800000 | mant << 13 | (mant ? 0x400000 : 0));
    if (exp)
        return f32_of_bits(sign | (exp + 112) << 23 | mant << 13);
    return f32_of_bits(sign | bits_of_f32((float)mant * 0x1p-24f));
}

/* Rounds to nearest even, keeps subnormals; values above the range become infinity. */
static inline uint16_t f16_of_f32(float x)
{
    uint32_t u = bits_of_f32(x), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (mag >= 0x38800000)
        return (uint16_t)(sign | ((mag - 0x38000000 + 0xfff + (mag >> 13 & 1)) >> 13));
    if (mag <= 0x33000000)
        return (uint16_t)sign;
    uint32_t shift = 126 - (mag >> 23), mant = (mag & 0x7fffff) | 0x800000;
    uint32_t down = mant >> shift, rest = mant & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (down + (rest > half || (rest == half && (down & 1)))));
}

#endif
