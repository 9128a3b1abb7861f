/*
 * KV tiles and attention, for each KV type and head size, compared with a softmax in double precision over the K and V
 * that the test reads back from the tiles by the layout in kernels.h. Memory to which no token was written is NaN.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/draw.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#define TOKENS 600 /* three partitions, the last one partly filled */
#define BLOCKS 24
#define HEAD 128

static const struct kern_ops *ops; /* each implementation that this machine supports, in turn */
static const int heads[] = {8, 16, 32, 64, 96, 128};
#define N_HEADS ((int)(sizeof(heads) / sizeof(*heads)))

/* One head of a sequence. */
struct sequence {
    enum kern_kv type;
    int hd;
    uint8_t *tile[BLOCKS];
    float k[TOKENS][HEAD], v[TOKENS][HEAD];
    double k_back[TOKENS][HEAD], v_back[TOKENS][HEAD], k_scale[TOKENS];
};

static int setup(void **state)
{
    (void)state;
    kern_thread_init();
    return 0;
}

static int hadamard_size(int hd)
{
    return hd % 128 == 0 ? 128 : hd % 64 == 0 ? 64 : hd % 32 == 0 ? 32 : hd % 16 == 0 ? 16 : 8;
}

/* The Hadamard matrix by definition: entry (i,j) is -1 to the number of ones in i & j. */
static void transform(double *x, int hd)
{
    int n = hadamard_size(hd);
    double y[HEAD];
    for (int i = 0; i < hd; i++) {
        y[i] = 0;
        for (int j = 0; j < n; j++)
            y[i] += x[i / n * n + j] * (__builtin_parity((unsigned)(i % n & j)) ? -1 : 1);
    }
    memcpy(x, y, (size_t)hd * sizeof(double));
}

static double half_at(const uint8_t *p, enum kern_kv type, int i)
{
    uint16_t h;
    memcpy(&h, p + 2 * i, 2);
    return type == KERN_KV_BF16 ? f32_of_bf16(h) : f32_of_f16(h);
}

static double f32_at(const uint8_t *p, int i)
{
    float x;
    memcpy(&x, p + 4 * i, 4);
    return x;
}

/* Token t of a tile as numbers; the transform of int8 K is undone. */
static void read_back(double *k, double *v, double *k_scale, const uint8_t *tile, enum kern_kv type, int hd, int t)
{
    const uint8_t *ks = tile + 32 * hd, *vt = ks + 128, *vs = vt + 32 * hd;
    for (int d = 0; d < hd; d++) {
        if (type == KERN_KV_INT8) {
            k[d] = (tile[d / 4 * 128 + t * 4 + d % 4] - 128) * f32_at(ks, t) / hadamard_size(hd);
            v[d] = ((const int8_t *)vt)[t / 4 * hd * 4 + d * 4 + t % 4] * f32_at(vs, t);
        } else if (type == KERN_KV_BF16) {
            k[d] = half_at(tile, type, d / 2 * 64 + t * 2 + d % 2);
            v[d] = half_at(tile + 64 * hd, type, t / 2 * hd * 2 + d * 2 + t % 2);
        } else {
            k[d] = half_at(tile, type, d * 32 + t);
            v[d] = half_at(tile + 64 * hd, type, t * hd + d);
        }
    }
    *k_scale = type == KERN_KV_INT8 ? f32_at(ks, t) : 0;
    if (type == KERN_KV_INT8)
        transform(k, hd);
}

/* Tokens from … to-1 are written, all others stay NaN. K has an outlier channel, as in real models. */
static struct sequence *sequence_make(enum kern_kv type, int hd, int from, int to, uint64_t *seed)
{
    struct sequence *s = stale(sizeof(*s));
    s->type = type;
    s->hd = hd;
    for (int b = 0; b < BLOCKS; b++)
        s->tile[b] = stale(kern_kv_tile_bytes(type, hd));
    for (int t = from; t < to; t++) {
        draw_row(s->k[t], hd, 2.0f, seed);
        draw_row(s->v[t], hd, 1.0f, seed);
        s->k[t][3] += 20.0f;
        ops->kv_write(s->tile[t / 32], type, hd, t % 32, s->k[t], s->v[t]);
    }
    for (int t = from; t < to; t++)
        read_back(s->k_back[t], s->v_back[t], &s->k_scale[t], s->tile[t / 32], type, hd, t % 32);
    return s;
}

static void sequence_free(struct sequence *s)
{
    for (int b = 0; b < BLOCKS; b++)
        free(s->tile[b]);
    free(s);
}

/* Attention of n rows over the tokens from[i] <= t < to[i] of the sequence, partition by partition. */
static void attend(float *out, const struct sequence *s, int n, const float *q, const int *from, const int *to,
                   float scale)
{
    size_t q_bytes = kern_q_bytes(s->type, s->hd);
    uint8_t *prepared = stale(q_bytes * (size_t)n);
    void *scratch = stale(kern_attn_scratch(s->type, s->hd, n));
    float *O = calloc((size_t)(n * s->hd), sizeof(float)), M[8], L[8] = {0};
    for (int i = 0; i < n; i++) {
        ops->q_prep(prepared + q_bytes * (size_t)i, s->type, s->hd, q + i * s->hd, scale);
        M[i] = -INFINITY;
    }
    for (int p = 0; p * KERN_KV_PARTITION < TOKENS; p++) {
        int32_t a[8], b[8], most = 0;
        float m[8], l[8], *o = stale((size_t)(n * s->hd) * sizeof(float));
        for (int i = 0; i < n; i++) {
            a[i] = from[i] - p * 256 < 0 ? 0 : from[i] - p * 256 > 256 ? 256 : from[i] - p * 256;
            b[i] = to[i] - p * 256 < 0 ? 0 : to[i] - p * 256 > 256 ? 256 : to[i] - p * 256;
            most = b[i] > most ? b[i] : most;
        }
        struct kern_attn at = {s->type,          s->hd, n, prepared, a, b, (const uint8_t *const *)s->tile + p * 8,
                               (most + 31) / 32, NULL,  0, scratch,  0, 0};
        ops->attn(m, l, o, &at);
        for (int i = 0; i < n; i++) {
            if (a[i] >= b[i])
                assert_true(m[i] == -INFINITY && l[i] == 0.0f && o[i * s->hd] == 0.0f &&
                            o[(i + 1) * s->hd - 1] == 0.0f);
            ops->attn_merge(&M[i], &L[i], O + i * s->hd, m[i], l[i], o + i * s->hd, s->hd);
        }
        free(o);
    }
    for (int i = 0; i < n; i++)
        ops->attn_finish(out + i * s->hd, L[i], O + i * s->hd, s->hd);
    free(O);
    free(scratch);
    free(prepared);
}

/*
 * One row in double. The bound: scores differ by the 15 bits of Q and by f32 sums, the output by twice that; weights
 * are rounded to 14 bits of the largest (int8) or to 8 bits (bf16).
 */
static double oracle(double *out, const struct sequence *s, const float *q, int from, int to, float scale)
{
    static double e[TOKENS];
    double max = -INFINITY, l = 0, q_max = 0, v_max = 0, score_err = 0, qt[HEAD];
    for (int d = 0; d < s->hd; d++)
        qt[d] = s->type == KERN_KV_BF16 ? f32_of_bf16(bf16_of_f32(q[d])) : q[d];
    for (int t = from; t < to; t++) {
        double sum = 0, size = 0;
        for (int d = 0; d < s->hd; d++) {
            sum += qt[d] * s->k_back[t][d];
            size += fabs(qt[d] * s->k_back[t][d]);
            v_max = fmax(v_max, fabs(s->v_back[t][d]));
        }
        e[t] = sum * scale;
        max = fmax(max, e[t]);
        score_err = fmax(score_err, size * scale * s->hd * 0x1p-24);
    }
    if (s->type == KERN_KV_INT8) {
        transform(qt, s->hd);
        for (int d = 0; d < s->hd; d++)
            q_max = fmax(q_max, fabs(qt[d]));
        for (int t = from; t < to; t++)
            score_err =
                fmax(score_err, s->hd * 127 * s->k_scale[t] * scale / hadamard_size(s->hd) * q_max / 16319 * 0.51);
    }
    for (int d = 0; d < s->hd; d++)
        out[d] = 0;
    for (int t = from; t < to; t++) {
        e[t] = exp(e[t] - max);
        l += e[t];
        for (int d = 0; d < s->hd; d++)
            out[d] += e[t] * s->v_back[t][d];
    }
    for (int d = 0; d < s->hd; d++)
        out[d] /= l;
    double weight_err = s->type == KERN_KV_INT8 ? (to - from) * 0.51 / 16383 / l : s->type == KERN_KV_BF16 ? 0x1p-8 : 0;
    return v_max * (2 * score_err + weight_err + 1e-5);
}

static void equals_softmax(void **state)
{
    (void)state;
    static const int from[8] = {0, 0, 0, 0, 255, 100, 513, 77}, to[8] = {1, 33, 256, 600, 257, 599, 514, 300};
    uint64_t seed = 21;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++)
        for (int h = 0; h < N_HEADS; h++) {
            int hd = heads[h];
            struct sequence *s = sequence_make(type, hd, 0, TOKENS, &seed);
            float q[8 * HEAD], out[8 * HEAD], one[HEAD], scale = 1.0f / sqrtf((float)hd);
            draw_row(q, 8 * hd, 3.0f, &seed);
            attend(out, s, 8, q, from, to, scale);
            for (int i = 0; i < 8; i++) {
                double expect[HEAD], bound = oracle(expect, s, q + i * hd, from[i], to[i], scale);
                for (int d = 0; d < hd; d++)
                    if (!(fabs(out[i * hd + d] - expect[d]) <= bound))
                        fail_msg("%s head %d row %d: %.8g, not %.8g within %.3g", kern_kv_name(type), hd, i,
                                 out[i * hd + d], expect[d], bound);
                attend(one, s, 1, q + i * hd, from + i, to + i, scale); /* rows are independent */
                assert_memory_equal(one, out + i * hd, (size_t)hd * sizeof(float));
            }
            sequence_free(s);
        }
}

/* Scores of one partition by the rules of docs/arithmetic.md, from a prepared row and the tiles. */
static void scores_as_written(float *e, const struct sequence *s, const uint8_t *q, int from, int to)
{
    int hd = s->hd;
    const int8_t *plane = (const int8_t *)q;
    float last = (float)f32_at(q + hd * (s->type == KERN_KV_F16 ? 4 : 2), 0);
    for (int t = from; t < to; t++) {
        float acc = 0;
        int32_t sum = 0;
        for (int d = 0; d < hd; d++) {
            int odd_first = d ^ 1;
            if (s->type == KERN_KV_INT8)
                sum += (plane[d] * 128 + plane[hd + d]) * (s->tile[t / 32][d / 4 * 128 + t % 32 * 4 + d % 4] - 128);
            else if (s->type == KERN_KV_BF16)
                acc = fmaf((float)half_at(q, s->type, odd_first), (float)s->k_back[t][odd_first], acc);
            else
                acc = fmaf((float)f32_at(q, d), (float)s->k_back[t][d], acc);
        }
        e[t] = s->type == KERN_KV_INT8 ? (float)sum * ((float)s->k_scale[t] * last) : acc * last;
    }
}

static float value_as_written(const struct sequence *s, const float *e, int from, int to, int d)
{
    const uint8_t *const *tile = (const uint8_t *const *)s->tile;
    float w[KERN_KV_PARTITION], c = 0, acc = 0;
    int32_t sum = 0;
    if (s->type == KERN_KV_F16)
        for (int t = from; t < to; t++)
            acc = fmaf(e[t], (float)s->v_back[t][d], acc);
    if (s->type == KERN_KV_BF16)
        for (int i = from & ~1; i < ((to + 1) & ~1); i++) {
            int t = i ^ 1; /* the odd token of a pair first */
            if (t >= from && t < to)
                acc = fmaf(f32_of_bf16(bf16_of_f32(e[t])), (float)s->v_back[t][d], acc);
        }
    if (s->type != KERN_KV_INT8)
        return acc;
    for (int t = from; t < to; t++) {
        w[t] = e[t] * (float)f32_at(tile[t / 32] + 64 * s->hd + 128, t % 32);
        c = w[t] > c ? w[t] : c;
    }
    for (int t = from; t < to; t++) {
        const int8_t *v = (const int8_t *)tile[t / 32] + 32 * s->hd + 128;
        sum += (int32_t)lrintf(w[t] * (16383.0f / c)) * v[t % 32 / 4 * s->hd * 4 + d * 4 + t % 4];
    }
    return (float)sum * (c * (1 / 16383.0f));
}

/* Maximum, sum and output of one partition equal in every bit. */
static void order_of_sums(void **state)
{
    (void)state;
    uint64_t seed = 28;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++)
        for (int i = 0; i < 4 * N_HEADS; i++) {
            static const int starts[] = {0, 0, 37, 200}, ends[] = {256, 7, 222, 256};
            int hd = heads[i / 4];
            int32_t from = starts[i % 4], to = ends[i % 4];
            struct sequence *s = sequence_make(type, hd, from, to, &seed);
            uint8_t *q = stale(kern_q_bytes(type, hd));
            void *scratch = stale(kern_attn_scratch(type, hd, 1));
            float row[HEAD], e[KERN_KV_PARTITION], lane[16] = {0}, max = -INFINITY, m, l, o[HEAD];
            draw_row(row, hd, 1.0f, &seed);
            ops->q_prep(q, type, hd, row, 0.25f);
            struct kern_attn at = {type,           hd,   1, q,       &from, &to, (const uint8_t *const *)s->tile,
                                   (to + 31) / 32, NULL, 0, scratch, 0,     0};
            ops->attn(&m, &l, o, &at);
            scores_as_written(e, s, q, from, to);
            for (int t = from; t < to; t++)
                max = e[t] > max ? e[t] : max;
            for (int t = from; t < to; t++) {
                e[t] = kern_exp2(e[t] - max);
                lane[t % 16] += e[t];
            }
            for (int h = 8; h; h /= 2)
                for (int k = 0; k < h; k++)
                    lane[k] += lane[k + h];
            assert_true(m == max);
            assert_true(l == lane[0]);
            for (int d = 0; d < hd; d++)
                if (o[d] != value_as_written(s, e, from, to, d))
                    fail_msg("%s head %d: %a, not %a", kern_kv_name(type), hd, o[d],
                             value_as_written(s, e, from, to, d));
            free(scratch);
            free(q);
            sequence_free(s);
        }
}

/* A flushed product leaves -0 in a sum; the output has no negative zero, whichever tokens were skipped. */
static void no_negative_zero(void **state)
{
    (void)state;
    for (int type = KERN_KV_BF16; type <= KERN_KV_F16; type++) {
        uint8_t *tile = stale(kern_kv_tile_bytes(type, 8)), *q = stale(kern_q_bytes(type, 8));
        void *scratch = stale(kern_attn_scratch(type, 8, 1));
        int32_t from = 0, to = 3;
        float k[8] = {0}, v[8] = {0}, query[8] = {1}, m, l, o[8];
        ops->kv_write(tile, type, 8, 0, k, v);
        ops->kv_write(tile, type, 8, 1, k, v);
        k[0] = -80; /* 2^-115 of the largest weight */
        for (int d = 0; d < 8; d++)
            v[d] = -0x1p-24f;
        ops->kv_write(tile, type, 8, 2, k, v);
        ops->q_prep(q, type, 8, query, 1.0f);
        struct kern_attn at = {type, 8, 1, q, &from, &to, (const uint8_t *const[]){tile}, 1, NULL, 0, scratch, 0, 0};
        ops->attn(&m, &l, o, &at);
        for (int d = 0; d < 8; d++)
            assert_true(o[d] == 0.0f && !signbit(o[d]));
        free(scratch);
        free(q);
        free(tile);
    }
}

/* Stored values differ from the given ones by at most half a step of the format. */
static void stores_k_and_v(void **state)
{
    (void)state;
    uint64_t seed = 22;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++)
        for (int h = 0; h < N_HEADS; h++) {
            int hd = heads[h];
            struct sequence *s = sequence_make(type, hd, 0, 64, &seed);
            for (int t = 0; t < 64; t++) {
                double v_max = 0;
                for (int d = 0; d < hd; d++)
                    v_max = fmax(v_max, fabs(s->v[t][d]));
                for (int d = 0; d < hd; d++) {
                    double k = s->k[t][d], v = s->v[t][d];
                    double step = type == KERN_KV_BF16 ? 0x1p-8 : 0x1p-11, k_err = fabs(k) * step,
                           v_err = fabs(v) * step;
                    if (type == KERN_KV_INT8) {
                        k_err = s->k_scale[t] * 0.501; /* H·error/n is at most the largest error */
                        v_err = v_max / 127 * 0.501;
                    }
                    assert_true(fabs(s->k_back[t][d] - k) <= k_err + 0x1p-24 &&
                                fabs(s->v_back[t][d] - v) <= v_err + 0x1p-24);
                }
            }
            sequence_free(s);
        }
}

/* Writes a token over two different fills: the bytes that become equal are those of the token, no more and no fewer. */
static void writes_its_token_only(void **state)
{
    (void)state;
    uint64_t seed = 23;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++)
        for (int h = 0; h < N_HEADS; h++) {
            int hd = heads[h];
            size_t n = kern_kv_tile_bytes(type, hd);
            float k[HEAD], v[HEAD];
            draw_row(k, hd, 1.0f, &seed);
            draw_row(v, hd, 1.0f, &seed);
            uint8_t *seen = calloc(n, 1), *zeros = stale(n), *ones = stale(n);
            for (int t = 0; t < 32; t++) {
                memset(zeros, 0, n);
                memset(ones, 0xff, n);
                ops->kv_write(zeros, type, hd, t, k, v);
                ops->kv_write(ones, type, hd, t, k, v);
                for (size_t i = 0; i < n; i++) {
                    seen[i] += zeros[i] == ones[i];
                    assert_true(zeros[i] == ones[i] || (zeros[i] == 0 && ones[i] == 0xff));
                }
            }
            for (size_t i = 0; i < n; i++)
                assert_int_equal(seen[i], 1);
            free(seen);
            free(zeros);
            free(ones);
        }
}

/* Only the tokens of the range are written; everything before and after is NaN, also in the same pairs, quads and
 * tiles. */
static void stale_bytes_stay_out(void **state)
{
    (void)state;
    uint64_t seed = 24;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++)
        for (int h = 0; h < N_HEADS; h++)
            for (int k = 0; k < 9; k++) {
                static const int starts[] = {0, 0, 0, 0, 31, 33, 250, 255, 511},
                                 ends[] = {1, 2, 3, 35, 32, 38, 263, 256, 513};
                int hd = heads[h], from = starts[k], to = ends[k];
                struct sequence *s = sequence_make(type, hd, from, to, &seed);
                float q[HEAD], out[HEAD], scale = 0.125f;
                double expect[HEAD];
                draw_row(q, hd, 3.0f, &seed);
                attend(out, s, 1, q, &from, &to, scale);
                double bound = oracle(expect, s, q, from, to, scale);
                for (int d = 0; d < hd; d++)
                    if (!(fabs(out[d] - expect[d]) <= bound))
                        fail_msg("%s head %d tokens %d to %d: %.8g, not %.8g", kern_kv_name(type), hd, from, to, out[d],
                                 expect[d]);
                sequence_free(s);
            }
}

/* Zeros: queries weigh every token equally, values give zero without a sign. */
static void zero_vectors(void **state)
{
    (void)state;
    uint64_t seed = 25;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++) {
        struct sequence *s = sequence_make(type, 64, 0, 50, &seed);
        float zero[64] = {0}, out[64];
        int from = 0, to = 50;
        double expect[HEAD], bound = oracle(expect, s, zero, 0, 50, 1.0f);
        attend(out, s, 1, zero, &from, &to, 1.0f);
        for (int d = 0; d < 64; d++)
            assert_true(fabs(out[d] - expect[d]) <= bound);
        for (int t = 0; t < 50; t++)
            ops->kv_write(s->tile[t / 32], type, 64, t % 32, zero, zero);
        attend(out, s, 1, s->k[0], &from, &to, 1.0f);
        for (int d = 0; d < 64; d++)
            assert_true(out[d] == 0.0f && !signbit(out[d]));
        sequence_free(s);
    }
}

static void not_a_number_shows(void **state)
{
    (void)state;
    uint64_t seed = 26;
    for (int type = KERN_KV_INT8; type <= KERN_KV_F16; type++) {
        struct sequence *s = sequence_make(type, 32, 0, 40, &seed);
        float q[32], out[32], bad[32];
        int from = 0, to = 40;
        draw_row(q, 32, 1.0f, &seed);
        memcpy(bad, q, sizeof(q));
        bad[7] = NAN;
        attend(out, s, 1, bad, &from, &to, 1.0f);
        assert_true(isnan(out[0]) && isnan(out[31]));
        ops->kv_write(s->tile[1], type, 32, 1, bad, s->v[33]);
        attend(out, s, 1, q, &from, &to, 1.0f);
        assert_true(isnan(out[0]) && isnan(out[31]));
        to = 33; /* not if the token is masked */
        attend(out, s, 1, q, &from, &to, 1.0f);
        assert_false(isnan(out[0]) || isnan(out[31]));
        sequence_free(s);
    }
}

static void f16_is_clamped(void **state)
{
    (void)state;
    float k[8] = {1e6f, -1e6f, INFINITY, -INFINITY, 65504, 65519, 65520, NAN}, v[8] = {0};
    double back[8], unused[8], scale;
    uint8_t *tile = stale(kern_kv_tile_bytes(KERN_KV_F16, 8));
    ops->kv_write(tile, KERN_KV_F16, 8, 9, k, v);
    read_back(back, unused, &scale, tile, KERN_KV_F16, 8, 9);
    for (int d = 0; d < 7; d++)
        assert_true(back[d] == (k[d] < 0 ? -65504 : 65504));
    assert_true(isnan(back[7]));
    free(tile);
}

/* The planes, their sums and the padding are shared by every implementation. */
static void prepared_queries(void **state)
{
    (void)state;
    uint64_t seed = 27;
    for (int h = 0; h < N_HEADS; h++) {
        int hd = heads[h];
        size_t n = kern_q_bytes(KERN_KV_INT8, hd);
        float q[HEAD], scale = 0.3f, to_log2 = scale * 1.44269504f;
        uint8_t *row = stale(kern_q_bytes(KERN_KV_F16, hd));
        double x[HEAD], max = 0;
        int32_t sum[2], hi = 0, lo = 0;
        draw_row(q, hd, 3.0f, &seed);
        for (int d = 0; d < hd; d++)
            x[d] = q[d];
        transform(x, hd);
        for (int d = 0; d < hd; d++)
            max = fmax(max, fabs(x[d]));
        ops->q_prep(row, KERN_KV_INT8, hd, q, scale);
        assert_int_equal(n % 64, 0);
        for (int d = 0; d < hd; d++) {
            int a = ((const int8_t *)row)[d], b = ((const int8_t *)row)[hd + d];
            assert_true(fabs(a * 128 + b - x[d] / max * 16319) <= 0.51 && b >= -64 && b <= 63);
            hi += a;
            lo += b;
        }
        double dq = f32_at(row + 2 * hd, 0), expect = max / 16319 * to_log2 / hadamard_size(hd);
        memcpy(sum, row + 2 * hd + 4, 8);
        assert_true(fabs(dq - expect) <= 1e-6 * expect);
        assert_true(sum[0] == hi && sum[1] == lo);
        for (size_t i = 2 * (size_t)hd + 12; i < n; i++)
            assert_int_equal(row[i], 0);
        ops->q_prep(row, KERN_KV_F16, hd, q, scale);
        assert_memory_equal(row, q, (size_t)hd * 4);
        assert_true(f32_at(row + 4 * hd, 0) == to_log2);
        ops->q_prep(row, KERN_KV_BF16, hd, q, scale);
        assert_true(half_at(row, KERN_KV_BF16, hd - 1) == f32_of_bf16(bf16_of_f32(q[hd - 1])));
        assert_true(f32_at(row + 2 * hd, 0) == to_log2);
        free(row);
    }
}

static void merging(void **state)
{
    (void)state;
    float M = -INFINITY, L = 0, O[8] = {0}, out[8], o[8] = {1, 2, 3, 4, 5, 6, 7, -0.0f};
    ops->attn_merge(&M, &L, O, -INFINITY, 0, o, 8); /* a partition without tokens for the row */
    assert_true(M == -INFINITY && L == 0 && O[0] == 0);
    ops->attn_merge(&M, &L, O, 3, 2, o, 8);
    assert_true(M == 3 && L == 2 && O[6] == 7);
    ops->attn_merge(&M, &L, O, 1, 4, o, 8); /* a smaller maximum counts a quarter */
    assert_true(M == 3 && L == 3 && O[0] == 1.25f && O[6] == 8.75f);
    ops->attn_merge(&M, &L, O, 4, 1, o, 8); /* a larger maximum halves the earlier sums */
    assert_true(M == 4 && L == 2.5f && O[0] == 1.625f);
    ops->attn_merge(&M, &L, O, 500, 1, o, 8);
    assert_true(M == 500 && L == 1 && O[0] == 1);
    ops->attn_finish(out, 2, o, 8);
    assert_true(out[0] == 0.5f && out[7] == 0 && !signbit(out[7]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_softmax),
        cmocka_unit_test(stores_k_and_v),
        cmocka_unit_test(writes_its_token_only),
        cmocka_unit_test(stale_bytes_stay_out),
        cmocka_unit_test(zero_vectors),
        cmocka_unit_test(not_a_number_shows),
        cmocka_unit_test(f16_is_clamped),
        cmocka_unit_test(prepared_queries),
        cmocka_unit_test(merging),
        cmocka_unit_test(order_of_sums),
        cmocka_unit_test(no_negative_zero),
    };
    static const char *const names[] = {"c", "avx2", "avx512"};
    struct err e;
    int failed = 0;
    for (int i = 0; i < 3; i++)
        if (kern_select(&e, &ops, names[i]) == 0)
            failed += cmocka_run_group_tests_name(names[i], tests, setup, NULL);
    return failed;
}
