/* Plain C: norm, activation function, rotation, and sums over the vocabulary. */
#include "kernels/cpu/plain.h"

float kern_exp2(float x)
{
    if (x < EXP2_MIN)
        return 0.0f;
    if (x != x)
        return x;
    int32_t n = (int32_t)lrintf(x);
    float f = x - (float)n, p = EXP2_C6;
    p = fmaf(p, f, EXP2_C5);
    p = fmaf(p, f, EXP2_C4);
    p = fmaf(p, f, EXP2_C3);
    p = fmaf(p, f, EXP2_C2);
    p = fmaf(p, f, EXP2_C1);
    p = fmaf(p, f, EXP2_C0);
    return f32_of_bits(bits_of_f32(p) + ((uint32_t)n << 23));
}

void plain_norm(float *out, const float *x, const float *w, int64_t n, float eps)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++)
        lane[i % 16] += x[i] * x[i];
    float r = 1.0f / sqrtf(fold16(lane) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i] * r * w[i];
}

void plain_silu_mul(float *out, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = gate[i], e = kern_exp2(-fabsf(g) * LOG2E);
        float sigmoid = (g >= 0.0f ? 1.0f : e) / (1.0f + e);
        out[i] = g * sigmoid * up[i];
    }
}

void plain_add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

void plain_rope(float *x, const float *cs, int n_rot, bool neox)
{
    int n = n_rot / 2, step = neox ? 1 : 2, away = neox ? n : 1;
    for (int i = 0; i < n; i++) {
        float *p = x + i * step, x0 = p[0], x1 = p[away], c = cs[2 * i], s = cs[2 * i + 1];
        p[0] = fmaf(-x1, s, x0 * c);
        p[away] = fmaf(x1, c, x0 * s);
    }
}

int64_t plain_argmax(const float *x, int64_t n, float *max)
{
    int64_t best = 0;
    float top = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        if (x[i] > top) {
            top = x[i];
            best = i;
        }
    *max = top;
    return best;
}

float plain_expsum(float *e, const float *x, int64_t n, float max, float c)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < n; i++) {
        float v = kern_exp2((x[i] - max) * c);
        lane[i % 16] += v;
        if (e)
            e[i] = v;
    }
    return fold16(lane);
}
