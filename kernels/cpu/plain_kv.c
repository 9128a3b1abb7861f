/* Plain C: writes a token's K and V to a tile, and prepares query rows for attention. */
#include "kernels/cpu/plain.h"

/* Block size of the Hadamard transform: the largest power of two that divides hd. */
static int hadamard_size(int hd)
{
    return hd & -hd;
}

/* Spreads outliers of K over the head. Not normalised: q_prep multiplies the scale of the scores by 1/n. */
static void hadamard(float *x, int hd)
{
    int n = hadamard_size(hd);
    for (float *b = x; b < x + hd; b += n)
        for (int h = n / 2; h; h /= 2)
            for (int i = 0; i < n; i++)
                if (!(i & h)) {
                    float lo = b[i], hi = b[i + h];
                    b[i] = lo + hi;
                    b[i + h] = lo - hi;
                }
}

static void write_int8(uint8_t *tile, int hd, int t, const float *k, const float *v)
{
    uint8_t *scale_k = tile + 32 * hd, *tile_v = scale_k + 128, *scale_v = tile_v + 32 * hd;
    float x[KERN_HEAD_MAX];
    int8_t q[KERN_HEAD_MAX];
    memcpy(x, k, (size_t)hd * sizeof(float));
    hadamard(x, hd);
    float d = plain_quantize(q, x, hd);
    for (int i = 0; i < hd; i++)
        tile[i / 4 * 128 + t * 4 + i % 4] = (uint8_t)(q[i] + 128);
    memcpy(scale_k + 4 * t, &d, 4);
    d = plain_quantize(q, v, hd);
    for (int i = 0; i < hd; i++)
        tile_v[(t / 4 * hd + i) * 4 + t % 4] = (uint8_t)q[i];
    memcpy(scale_v + 4 * t, &d, 4);
}

static void write_bf16(uint16_t *tile, int hd, int t, const float *k, const float *v)
{
    uint16_t *tile_v = tile + 32 * hd;
    for (int i = 0; i < hd; i++) {
        tile[i / 2 * 64 + t * 2 + i % 2] = bf16_of_f32(k[i]);
        tile_v[(t / 2 * hd + i) * 2 + t % 2] = bf16_of_f32(v[i]);
    }
}

/* An infinity in one token would make all rows of a tile NaN, so larger values are clamped to the largest finite
 * one. */
static uint16_t f16_clamped(float x)
{
    x = x > 65504.0f ? 65504.0f : x;
    return f16_of_f32(x < -65504.0f ? -65504.0f : x);
}

static void write_f16(uint16_t *tile, int hd, int t, const float *k, const float *v)
{
    uint16_t *tile_v = tile + 32 * hd;
    for (int i = 0; i < hd; i++) {
        tile[i * 32 + t] = f16_clamped(k[i]);
        tile_v[t * hd + i] = f16_clamped(v[i]);
    }
}

void plain_kv_write(uint8_t *tile, enum kern_kv type, int hd, int t, const float *k, const float *v)
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
    float x[KERN_HEAD_MAX], dq = 0.0f;
    int32_t sum[2] = {0, 0};
    memcpy(x, q, (size_t)hd * sizeof(float));
    hadamard(x, hd);
    float max = magnitude(x, hd);
    if (!(max < SCALE_MIN)) {
        float inv = 16319.0f / max;
        dq = max / 16319.0f * (to_log2 / (float)hadamard_size(hd));
        for (int i = 0; i < hd; i++) {
            int v = round_within(x[i] * inv, 16319.0f), hi = (v + 64) >> 7, lo = v - 128 * hi;
            dst[i] = (uint8_t)hi;
            dst[hd + i] = (uint8_t)lo;
            sum[0] += hi;
            sum[1] += lo;
        }
    }
    memcpy(dst + 2 * hd, &dq, 4);
    memcpy(dst + 2 * hd + 4, sum, 8);
}

void plain_q_prep(uint8_t *dst, enum kern_kv type, int hd, const float *q, float scale)
{
    float to_log2 = scale * LOG2E;
    memset(dst, 0, kern_q_bytes(type, hd));
    if (type == KERN_KV_INT8) {
        prep_int8(dst, hd, q, to_log2);
        return;
    }
    if (type == KERN_KV_BF16) {
        for (int i = 0; i < hd; i++) {
            uint16_t h = bf16_of_f32(q[i]);
            memcpy(dst + 2 * i, &h, 2);
        }
        memcpy(dst + 2 * hd, &to_log2, 4);
    } else {
        memcpy(dst, q, (size_t)hd * 4);
        memcpy(dst + 4 * hd, &to_log2, 4);
    }
}
