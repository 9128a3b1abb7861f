/* Plain C: out = W·x. One chain of sums per output, in the order of the columns. */
#include "kernels/cpu/plain.h"
#include "kernels/layout.h"

#define ROWS 64 /* activation rows that share one unpacking of a block */

/* Exact: |q| <= 128, |x| <= 127. Both are int16, because a compiler otherwise read the activations as unsigned
 * bytes. */
static void dot16(int32_t s[2], const int16_t q[32], const int16_t x[32])
{
    int32_t lo = 0, hi = 0;
    for (int k = 0; k < 16; k++)
        lo += q[k] * x[k];
    for (int k = 16; k < 32; k++)
        hi += q[k] * x[k];
    s[0] = lo;
    s[1] = hi;
}

static float chain(enum kern_type type, float acc, const struct plain_block *w, const int32_t s[2], float d, float z)
{
    if (type == KERN_Q6_K) {
        float t = fmaf(w->d[1], (float)s[1], w->d[0] * (float)s[0]);
        return fmaf(d, t, acc);
    }
    acc = fmaf(w->d[0] * d, (float)(s[0] + s[1]), acc);
    return kern_layout(type)->has_min ? fmaf(w->m, z, acc) : acc;
}

static void group_quant(float *out, size_t ld, const struct kern_mat *w, const uint8_t *group, const struct kern_act *x,
                        int64_t r0, int64_t n_row)
{
    int64_t n_block = w->cols / 32;
    for (int64_t r = 0; r < n_row; r++)
        memset(out + (size_t)r * ld, 0, 16 * sizeof(float));
    for (int64_t b = 0; b < n_block; b++) {
        struct plain_block blk[16];
        for (int i = 0; i < 16; i++)
            plain_unpack(&blk[i], w->type, group, i, b);
        for (int64_t r = 0; r < n_row; r++) {
            int64_t at = ((r0 + r) / KERN_TILE * (x->k / 32) + b) * KERN_TILE + (r0 + r) % KERN_TILE;
            const int8_t *q = x->q + at * 32;
            float *acc = out + (size_t)r * ld;
            int16_t wide[32];
            for (int k = 0; k < 32; k++)
                wide[k] = q[k];
            for (int i = 0; i < 16; i++) {
                int32_t s[2];
                dot16(s, blk[i].q, wide);
                acc[i] = chain(w->type, acc[i], &blk[i], s, x->d[at], x->z[at]);
            }
        }
    }
}

static void group_f32(float acc[16], const uint8_t *group, int64_t cols, const float *x)
{
    const float *w = (const float *)(const void *)group;
    for (int64_t k = 0; k < cols; k++)
        for (int i = 0; i < 16; i++)
            acc[i] = fmaf(w[k * 16 + i], x[k * KERN_TILE], acc[i]);
}

static void group_f16(float acc[16], const uint8_t *group, int64_t cols, const float *x)
{
    const uint16_t *w = (const uint16_t *)(const void *)group;
    for (int64_t k = 0; k < cols; k++)
        for (int i = 0; i < 16; i++)
            acc[i] = fmaf(f32_of_f16(w[k * 16 + i]), x[k * KERN_TILE], acc[i]);
}

/* The odd column of a pair is added first, as by VDPBF16PS. */
static void group_bf16(float acc[16], const uint8_t *group, int64_t cols, const uint16_t *x)
{
    const uint16_t *w = (const uint16_t *)(const void *)group;
    for (int64_t p = 0; p < (cols + 1) / 2; p++, w += 32, x += KERN_TILE * 2)
        for (int i = 0; i < 16; i++) {
            float odd = fmaf(f32_of_bf16(w[2 * i + 1]), f32_of_bf16(x[1]), acc[i]);
            acc[i] = fmaf(f32_of_bf16(w[2 * i]), f32_of_bf16(x[0]), odd);
        }
}

static void group_float(float *out, const struct kern_mat *w, const uint8_t *group, const struct kern_act *x, int64_t r)
{
    int64_t tile = r / KERN_TILE, c = r % KERN_TILE;
    float acc[16] = {0};
    if (w->type == KERN_BF16)
        group_bf16(acc, group, w->cols, x->b + (tile * ((x->k + 1) / 2) * KERN_TILE + c) * 2);
    else if (w->type == KERN_F16)
        group_f16(acc, group, w->cols, x->f + tile * x->k * KERN_TILE + c);
    else
        group_f32(acc, group, w->cols, x->f + tile * x->k * KERN_TILE + c);
    memcpy(out, acc, sizeof(acc));
}

void plain_matmul(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1, const struct kern_act *x,
                  int64_t r0, int64_t r1, void *scratch)
{
    (void)scratch;
    for (int64_t g = g0; g < g1; g++) {
        const uint8_t *group = w->data + (size_t)g * w->group_bytes;
        float *col = out + 16 * (g - g0);
        if (kern_type_is_quant(w->type))
            for (int64_t r = r0; r < r1; r += ROWS)
                group_quant(col + (size_t)(r - r0) * ld, ld, w, group, x, r, r1 - r < ROWS ? r1 - r : ROWS);
        else
            for (int64_t r = r0; r < r1; r++)
                group_float(col + (size_t)(r - r0) * ld, w, group, x, r);
    }
}
