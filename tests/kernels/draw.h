/* Repeatable random numbers and aligned memory for the tests of the kernels. */
#ifndef TESTS_KERNELS_DRAW_H
#define TESTS_KERNELS_DRAW_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* SplitMix64. */
static inline uint64_t draw_u64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static inline int draw_int(uint64_t *state, int from, int to)
{
    return from + (int)(draw_u64(state) % (uint64_t)(to - from + 1));
}

/* Between -1 and 1. */
static inline float draw_f32(uint64_t *state)
{
    return (float)((double)(int64_t)draw_u64(state) * 0x1p-63);
}

static inline void draw_row(float *x, int64_t n, float size, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = size * draw_f32(state);
}

/* 64-byte aligned, every byte 0xff: floats are NaN, so that a read of memory that was never written shows. */
static inline void *stale(size_t n)
{
    n = (n + 63) / 64 * 64;
    void *p = aligned_alloc(64, n ? n : 64);
    if (!p)
        abort();
    memset(p, 0xff, n);
    return p;
}

#endif
