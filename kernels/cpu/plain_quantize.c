/* Plain C: converts activations to the forms that weight types read. */
#include "kernels/cpu/plain.h"

float plain_quantize(int8_t *q, const float *x, int n)
{
    float max = magnitude(x, n);
    if (max < SCALE_MIN) {
        memset(q, 0, (size_t)n);
        return 0.0f;
    }
    float inv = 127.0f / max;
    for (int i = 0; i < n; i++)
        q[i] = (int8_t)round_within(x[i] * inv, 127.0f);
    return max / 127.0f;
}

static void act_block(struct kern_act *a, int64_t tile, int64_t block, int c, const float x[32])
{
    int64_t at = tile * (a->k / 32) + block;
    int8_t *q = a->q + (at * KERN_TILE + c) * 32;
    float d = plain_quantize(q, x, 32);
    int32_t s[2] = {0, 0};
    for (int i = 0; i < 32; i++)
        s[i / 16] += q[i];
    a->d[at * KERN_TILE + c] = d;
    a->z[at * KERN_TILE + c] = d * (float)(s[0] + s[1]);
    a->s[(at * 2 + 0) * KERN_TILE + c] = s[0];
    a->s[(at * 2 + 1) * KERN_TILE + c] = s[1];
}

void plain_quantize_act(struct kern_act *a, int64_t r0, int64_t n_row, int64_t k0, int64_t n, const float *x, size_t ld)
{
    int64_t pairs = (a->k + 1) / 2;
    for (int64_t i = 0; i < n_row; i++, x += ld) {
        int64_t tile = (r0 + i) / KERN_TILE;
        int c = (int)((r0 + i) % KERN_TILE);
        for (int64_t k = 0; k < n && a->q; k += 32)
            act_block(a, tile, (k0 + k) / 32, c, x + k);
        for (int64_t k = 0; k < n + n % 2 && a->b; k++)
            a->b[((tile * pairs + (k0 + k) / 2) * KERN_TILE + c) * 2 + k % 2] = k < n ? bf16_of_f32(x[k]) : 0;
        for (int64_t k = 0; k < n && a->f; k++)
            a->f[(tile * a->k + k0 + k) * KERN_TILE + c] = x[k];
    }
}
