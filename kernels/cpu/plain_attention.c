/*
 * Plain C: one partition of attention in two passes per row, and merging of partitions. Tokens outside a row's range
 * are never read: their bytes may be stale, and 0·NaN is NaN.
 */
#include "kernels/cpu/plain.h"

/* One row of one partition: its range, and the results of the first pass for the second. */
struct row {
    const struct kern_attn *a;
    const uint8_t *q;
    int from, to;
    float e[KERN_KV_PARTITION]; /* scores, then exp2(score - max); exactly 0 outside the range */
};

static const uint8_t *tile_at(const struct kern_attn *a, int t)
{
    return a->tile[t / KV_BLOCK];
}

static float f32_at(const uint8_t *p, int i)
{
    float x;
    memcpy(&x, p + 4 * i, 4);
    return x;
}

static void scores_int8(struct row *r)
{
    int hd = r->a->hd;
    const int8_t *hi = (const int8_t *)r->q, *lo = hi + hd;
    float dq = f32_at(r->q + 2 * hd, 0);
    int32_t q[KERN_HEAD_MAX];
    for (int i = 0; i < hd; i++)
        q[i] = hi[i] * 128 + lo[i];
    for (int t = r->from; t < r->to; t++) {
        const uint8_t *k = tile_at(r->a, t) + t % 32 * 4;
        int32_t s = 0;
        for (int i = 0; i < hd; i++)
            s += q[i] * (k[i / 4 * 128 + i % 4] - 128);
        r->e[t] = (float)s * (f32_at(tile_at(r->a, t) + 32 * hd, t % 32) * dq);
    }
}

static void scores_bf16(struct row *r)
{
    int hd = r->a->hd;
    const uint16_t *q = (const uint16_t *)(const void *)r->q;
    for (int t = r->from; t < r->to; t++) {
        const uint16_t *k = (const uint16_t *)(const void *)tile_at(r->a, t) + t % 32 * 2;
        float s = 0.0f;
        for (int i = 0; i < hd; i += 2) {
            s = fmaf(f32_of_bf16(k[i * 32 + 1]), f32_of_bf16(q[i + 1]), s);
            s = fmaf(f32_of_bf16(k[i * 32]), f32_of_bf16(q[i]), s);
        }
        r->e[t] = s * f32_at(r->q + 2 * hd, 0);
    }
}

static void scores_f16(struct row *r)
{
    int hd = r->a->hd;
    for (int t = r->from; t < r->to; t++) {
        const uint16_t *k = (const uint16_t *)(const void *)tile_at(r->a, t) + t % 32;
        float s = 0.0f;
        for (int i = 0; i < hd; i++)
            s = fmaf(f32_of_f16(k[i * 32]), f32_at(r->q, i), s);
        r->e[t] = s * f32_at(r->q + 4 * hd, 0);
    }
}

/* Weights as 14-bit integers: both products are exact integer sums, so the order within a partition does not matter. */
static void values_int8(float *o, const struct row *r)
{
    int hd = r->a->hd;
    float w[KERN_KV_PARTITION], c = 0.0f;
    int32_t p[KERN_KV_PARTITION];
    for (int t = r->from; t < r->to; t++) {
        w[t] = r->e[t] * f32_at(tile_at(r->a, t) + 64 * hd + 128, t % 32);
        c = w[t] > c ? w[t] : c;
    }
    float inv = c < SCALE_MIN ? 0.0f : 16383.0f / c, back = c * (1 / 16383.0f);
    for (int t = r->from; t < r->to; t++)
        p[t] = round_within(w[t] * inv, 16383.0f);
    for (int i = 0; i < hd; i++) {
        int32_t s = 0;
        for (int t = r->from; t < r->to; t++) {
            const int8_t *v = (const int8_t *)tile_at(r->a, t) + 32 * hd + 128;
            s += p[t] * v[(t % 32 / 4 * hd + i) * 4 + t % 4];
        }
        o[i] = (float)s * back;
    }
}

/* If one token of a pair is outside the range, it counts as zeros. */
static void values_bf16(float *o, const struct row *r)
{
    int hd = r->a->hd;
    for (int i = 0; i < hd; i++)
        o[i] = 0.0f;
    for (int t = r->from & ~1; t < r->to; t += 2) {
        const uint16_t *v = (const uint16_t *)(const void *)tile_at(r->a, t) + 32 * hd + t % 32 / 2 * hd * 2;
        bool even = t >= r->from, odd = t + 1 < r->to;
        float p0 = even ? f32_of_bf16(bf16_of_f32(r->e[t])) : 0.0f;
        float p1 = odd ? f32_of_bf16(bf16_of_f32(r->e[t + 1])) : 0.0f;
        for (int i = 0; i < hd; i++) {
            o[i] = fmaf(p1, odd ? f32_of_bf16(v[2 * i + 1]) : 0.0f, o[i]);
            o[i] = fmaf(p0, even ? f32_of_bf16(v[2 * i]) : 0.0f, o[i]);
        }
    }
}

static void values_f16(float *o, const struct row *r)
{
    int hd = r->a->hd;
    for (int i = 0; i < hd; i++)
        o[i] = 0.0f;
    for (int t = r->from; t < r->to; t++) {
        const uint16_t *v = (const uint16_t *)(const void *)tile_at(r->a, t) + 32 * hd + t % 32 * hd;
        for (int i = 0; i < hd; i++)
            o[i] = fmaf(r->e[t], f32_of_f16(v[i]), o[i]);
    }
}

static void attn_row(float *m, float *l, float *o, struct row *r)
{
    enum kern_kv type = r->a->type;
    float lane[16] = {0}, max = -INFINITY;
    (type == KERN_KV_INT8 ? scores_int8 : type == KERN_KV_BF16 ? scores_bf16 : scores_f16)(r);
    for (int t = r->from; t < r->to; t++)
        max = r->e[t] > max ? r->e[t] : max;
    for (int t = r->from; t < r->to; t++) {
        r->e[t] = kern_exp2(r->e[t] - max);
        lane[t % 16] += r->e[t];
    }
    *m = max;
    *l = fold16(lane);
    (type == KERN_KV_INT8 ? values_int8 : type == KERN_KV_BF16 ? values_bf16 : values_f16)(o, r);
    for (int i = 0; i < r->a->hd; i++)
        o[i] += 0.0f;
}

static const uint8_t *query_of(const struct kern_attn *a, int row)
{
    int run = a->run ? a->run : a->n_row;
    return a->q + (size_t)(row / run) * a->step + (size_t)(row % run) * kern_q_bytes(a->type, a->hd);
}

void plain_attn(float *m, float *l, float *o, const struct kern_attn *a)
{
    for (int i = 0; i < a->n_row; i++, o += a->hd) {
        struct row r = {.a = a, .q = query_of(a, i), .from = a->from[i], .to = a->to[i]};
        if (r.from < r.to) {
            attn_row(m + i, l + i, o, &r);
            continue;
        }
        m[i] = -INFINITY;
        l[i] = 0.0f;
        memset(o, 0, (size_t)a->hd * sizeof(float));
    }
}

void plain_attn_merge(float *M, float *L, float *O, float m, float l, const float *o, int hd)
{
    if (m == -INFINITY)
        return;
    float top = m > *M ? m : *M, old = kern_exp2(*M - top), new = kern_exp2(m - top);
    for (int i = 0; i < hd; i++)
        O[i] = fmaf(O[i], old, o[i] * new);
    *L = fmaf(*L, old, l * new);
    *M = top;
}

void plain_attn_finish(float *out, float L, const float *O, int hd)
{
    for (int i = 0; i < hd; i++)
        out[i] = O[i] / L + 0.0f;
}
