/*
 * Quantisation to int8: activations, K and V of a token, query rows in two planes. The divisions of many blocks are
 * done together; everything else is done per block.
 */
#ifndef VEC_QUANTIZE_H
#define VEC_QUANTIZE_H

#include "kernels/cpu/vec_float.h"
#include "kernels/cpu/vec_ops.h"

/* A head padded to whole registers. */
#define HEAD_MAX (KERN_HEAD_MAX + 16)

/* Blocks whose divisions are done together. */
#define ACT_RUN 16

INLINE float float_of_bits(int32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

/* The largest magnitude of n values (n a multiple of LANES; padding is 0); NaN is the largest. */
INLINE float greatest(const float *x, int n)
{
    vi max = vi_zero();

    for (int i = 0; i < n; i += LANES)
        max = vi_max(max, magnitude_bits(vf_load(x + i)));
    return float_of_bits(vi_max_lane(max));
}

/* d = max/127 and 127/max; both 0 if max is tiny, which makes the values 0. */
INLINE void act_scales(float *d, float *inv, int n)
{
    for (int i = 0; i < n; i += LANES) {
        vf max = vf_load(d + i);
        vm tiny = vm_lt(max, vf_set(SCALE_MIN));
        vf_store(d + i, vf_select(tiny, vf_zero(), vf_div(max, vf_set(127.0f))));
        vf_store(inv + i, vf_select(tiny, vf_zero(), vf_div(vf_set(127.0f), max)));
    }
}

/* A block of one row: its source, its number in the tiles, its column there. */
struct act_block {
    const float *x;
    int64_t at;
    int c;
};

/* Up to ACT_RUN blocks, of one row or of several: reductions and divisions are done for all at once. */
static void act_run(struct kern_act *a, const struct act_block block[ACT_RUN], int n)
{
    vi half[2][ACT_RUN];
    int32_t sum[2][ACT_RUN];
    float d[ACT_RUN], inv[ACT_RUN];

    for (int b = 0; b < ACT_RUN; b++) {
        vi max = vi_zero();

        for (int i = 0; i < 32 && b < n; i += LANES)
            max = vi_max(max, magnitude_bits(vf_load(block[b].x + i)));
        half[0][b] = half[1][b] = max;
    }
    vi_max_each(sum[0], half[0]);
    memcpy(d, sum[0], sizeof(d));
    act_scales(d, inv, ACT_RUN);
    for (int b = 0; b < n; b++) {
        int8_t *q = a->q + block[b].at * 256 + block[b].c * 32;

        half[0][b] = half[1][b] = vi_zero();
        for (int i = 0; i < 32; i += LANES) {
            vi v = round_limit(vf_mul(vf_load(block[b].x + i), vf_set(inv[b])), 127.0f);

            vi_store_8(q + i, v);
            half[i / 16][b] = vi_add(half[i / 16][b], v);
        }
    }
    vi_sum_each(sum[0], half[0]);
    vi_sum_each(sum[1], half[1]);
    for (int b = 0; b < n; b++) {
        const int64_t at = block[b].at;
        const int c = block[b].c;

        a->d[at * 8 + c] = d[b];
        a->z[at * 8 + c] = d[b] * (float)(sum[0][b] + sum[1][b]);
        a->s[at * 16 + c] = sum[0][b];
        a->s[at * 16 + 8 + c] = sum[1][b];
    }
}

static void act_int8(struct kern_act *a, int64_t r0, int64_t n_row, int64_t k0, int64_t n, const float *x, size_t ld)
{
    struct act_block block[ACT_RUN];
    int have = 0;

    for (int64_t r = r0; r < r0 + n_row; r++, x += ld)
        for (int64_t k = 0; k < n; k += 32) {
            block[have++] =
                (struct act_block){x + k, r / KERN_TILE * (a->k / 32) + (k0 + k) / 32, (int)(r % KERN_TILE)};
            if (have == ACT_RUN) {
                act_run(a, block, have);
                have = 0;
            }
        }
    if (have)
        act_run(a, block, have);
}

/* Converts n columns of one row to bf16 pairs, 8 pairs apart; an odd last column is paired with zero. */
static void act_bf16(uint16_t *b, const float *x, int64_t n)
{
    for (int64_t k = 0; k < n; k += LANES) {
        int left = n - k < LANES ? (int)(n - k) : LANES;
        int32_t bits[LANES];
        vi_store(bits, bf16_bits(vf_load_n(x + k, left)));
        for (int i = 0; i < left; i += 2) {
            uint32_t pair = (uint32_t)bits[i] | (uint32_t)bits[i + 1] << 16;
            memcpy(b + (k + i) * KERN_TILE, &pair, 4);
        }
    }
}

void VF(vec_quantize_act)(struct kern_act *a, int64_t r0, int64_t n_row, int64_t k0, int64_t n, const float *x,
                          size_t ld)
{
    if (a->q)
        act_int8(a, r0, n_row, k0, n, x, ld);
    for (int64_t r = r0; r < r0 + n_row && (a->b || a->f); r++, x += ld) {
        const int64_t tile = r / KERN_TILE;
        const int c = (int)(r % KERN_TILE);

        if (a->b)
            act_bf16(a->b + ((tile * ((a->k + 1) / 2) + k0 / 2) * KERN_TILE + c) * 2, x, n);
        for (int64_t k = 0; k < n && a->f; k++)
            a->f[(tile * a->k + k0 + k) * KERN_TILE + c] = x[k];
    }
}

/* Copies x[hd], padded with zeros to whole registers. */
INLINE int head_copy(float *x, const float *from, int hd)
{
    int i = 0;

    for (; i < hd; i += LANES)
        vf_store(x + i, vf_load_n(from + i, hd - i));
    return i;
}

/* In blocks of n, the largest power of two that divides hd: stages n/2 … 1, (lo+hi, lo-hi). */
static void hadamard_spread(float *x, int hd)
{
    const int n = hd & -hd;

    for (int h = n / 2; h >= LANES; h /= 2)
        for (int b = 0; b < hd; b += 2 * h)
            for (int i = b; i < b + h; i += LANES) {
                vf lo = vf_load(x + i), hi = vf_load(x + i + h);
                vf_store(x + i, vf_add(lo, hi));
                vf_store(x + i + h, vf_sub(lo, hi));
            }
    for (int i = 0; i < hd; i += LANES) {
        vf v = vf_load(x + i);
        for (int h = n / 2 < LANES ? n / 2 : LANES / 2; h; h /= 2)
            v = vf_add(vf_across(v, h), vf_flip_where(v, h));
        vf_store(x + i, v);
    }
}

/* One scale for a whole head; q has room for whole registers. */
static float head_quantize(int8_t *q, const float *x, int padded)
{
    float max = greatest(x, padded), inv = 127.0f / max;

    if (max < SCALE_MIN) {
        memset(q, 0, (size_t)padded);
        return 0.0f;
    }
    for (int i = 0; i < padded; i += LANES)
        vi_store_8(q + i, round_limit(vf_mul(vf_load(x + i), vf_set(inv)), 127.0f));
    return max / 127.0f;
}

static void write_int8(uint8_t *tile, int hd, int t, const float *k, const float *v)
{
    uint8_t *scale_k = tile + 32 * hd, *tile_v = scale_k + 128, *scale_v = tile_v + 32 * hd;
    float x[HEAD_MAX], d;
    int8_t q[HEAD_MAX];
    int padded = head_copy(x, k, hd);

    hadamard_spread(x, hd);
    d = head_quantize(q, x, padded);
    for (int i = 0; i < hd; i += 4) {
        uint32_t four;
        memcpy(&four, q + i, 4);
        four ^= 0x80808080u;
        memcpy(tile + i * 32 + t * 4, &four, 4);
    }
    memcpy(scale_k + 4 * t, &d, 4);
    head_copy(x, v, hd);
    d = head_quantize(q, x, padded);
    tile_v += t / 4 * hd * 4 + t % 4;
    for (int i = 0; i < hd; i++)
        tile_v[4 * i] = (uint8_t)q[i];
    memcpy(scale_v + 4 * t, &d, 4);
}

static void write_bf16(uint16_t *tile, int hd, int t, const float *k, const float *v)
{
    uint16_t *tile_v = tile + 32 * hd, b[HEAD_MAX];

    for (int i = 0; i < hd; i += LANES)
        vi_store_16(b + i, bf16_bits(vf_load_n(k + i, hd - i)));
    for (int i = 0; i < hd; i += 2)
        memcpy(tile + i * 32 + t * 2, b + i, 4);
    for (int i = 0; i < hd; i += LANES)
        vi_store_16(b + i, bf16_bits(vf_load_n(v + i, hd - i)));
    for (int i = 0; i < hd; i++)
        tile_v[(t / 2 * hd + i) * 2 + t % 2] = b[i];
}

/* Clamps to the largest finite value. NaN stays NaN: min and max return their second operand for it. */
INLINE void head_f16(uint16_t *h, const float *x, int hd)
{
    for (int i = 0; i < hd; i += LANES)
        vf_store_f16(h + i, vf_max(vf_set(-65504.0f), vf_min(vf_set(65504.0f), vf_load_n(x + i, hd - i))));
}

static void write_f16(uint16_t *tile, int hd, int t, const float *k, const float *v)
{
    uint16_t h[HEAD_MAX];

    head_f16(h, k, hd);
    for (int i = 0; i < hd; i++)
        tile[i * 32 + t] = h[i];
    head_f16(h, v, hd);
    memcpy(tile + (size_t)(32 + t) * (size_t)hd, h, (size_t)hd * 2);
}

void VF(vec_kv_write)(uint8_t *tile, enum kern_kv type, int hd, int t, const float *k, const float *v)
{
    if (type == KERN_KV_INT8)
        write_int8(tile, hd, t, k, v);
    else if (type == KERN_KV_BF16)
        write_bf16((uint16_t *)(void *)tile, hd, t, k, v);
    else
        write_f16((uint16_t *)(void *)tile, hd, t, k, v);
}

/* 15 bits in two signed planes: q = 128·hi + lo. */
static void prep_int8(uint8_t *dst, int hd, const float *q, float to_log2)
{
    float x[HEAD_MAX], dq = 0.0f;
    int8_t hi[HEAD_MAX], lo[HEAD_MAX];
    int32_t sum[2] = {0, 0};
    vi sum_hi = vi_zero(), sum_lo = vi_zero();
    int padded = head_copy(x, q, hd);

    hadamard_spread(x, hd);
    float max = greatest(x, padded);
    if (!(max < SCALE_MIN)) {
        float inv = 16319.0f / max;
        dq = max / 16319.0f * (to_log2 / (float)(hd & -hd));
        for (int i = 0; i < padded; i += LANES) {
            vi v = round_limit(vf_mul(vf_load(x + i), vf_set(inv)), 16319.0f);
            vi h = vi_sar(vi_add(v, vi_set(64)), 7), l = vi_sub(v, vi_shl(h, 7));
            if (hd - i < LANES) {
                h = vi_select(vm_range(0, 0, hd - i), h, vi_zero());
                l = vi_select(vm_range(0, 0, hd - i), l, vi_zero());
            }
            vi_store_8(hi + i, h);
            vi_store_8(lo + i, l);
            sum_hi = vi_add(sum_hi, h);
            sum_lo = vi_add(sum_lo, l);
        }
        sum[0] = vi_sum_lanes(sum_hi);
        sum[1] = vi_sum_lanes(sum_lo);
        memcpy(dst, hi, (size_t)hd);
        memcpy(dst + hd, lo, (size_t)hd);
    }
    memcpy(dst + 2 * hd, &dq, 4);
    memcpy(dst + 2 * hd + 4, sum, 8);
}

void VF(vec_q_prep)(uint8_t *dst, enum kern_kv type, int hd, const float *q, float scale)
{
    float to_log2 = scale * LOG2E;
    uint16_t b[HEAD_MAX];

    memset(dst, 0, kern_q_bytes(type, hd));
    if (type == KERN_KV_INT8) {
        prep_int8(dst, hd, q, to_log2);
    } else if (type == KERN_KV_BF16) {
        for (int i = 0; i < hd; i += LANES)
            vi_store_16(b + i, bf16_bits(vf_load_n(q + i, hd - i)));
        memcpy(dst, b, (size_t)hd * 2);
        memcpy(dst + 2 * hd, &to_log2, 4);
    } else {
        memcpy(dst, q, (size_t)hd * 4);
        memcpy(dst + 4 * hd, &to_log2, 4);
    }
}

#endif
