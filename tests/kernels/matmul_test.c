/*
 * Activations and W·x. Three authorities: integers, for which every sum is exact; double precision within a stated
 * bound; and for the order of the sums, the rules of docs/arithmetic.md written again, from the bytes of GGUF.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/draw.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#define ROWS 40 /* two groups and a half */
#define COLS_MAX 512
#define N_ROW 19 /* two tiles and a part */

static const struct kern_ops *ops; /* each implementation that this machine supports, in turn */

/* A random matrix: its GGUF rows, packed, and as values. */
struct weights {
    struct kern_mat w;
    uint8_t *src, *packed;
    float value[ROWS][COLS_MAX];
};

static int setup(void **state)
{
    (void)state;
    kern_thread_init();
    return 0;
}

static void put_f16(uint8_t *at, float x)
{
    uint16_t h = f16_of_f32(x);
    memcpy(at, &h, 2);
}

/* d and m: the f16 scales of every block. */
static void random_block(uint8_t *b, enum kern_type t, float d, float m, uint64_t *seed)
{
    size_t n = kern_type_row_bytes(t, kern_type_block(t));
    for (size_t i = 0; i < n; i++)
        b[i] = (uint8_t)draw_u64(seed);
    put_f16(t == KERN_Q6_K ? b + 208 : b, d);
    if (t == KERN_Q4_1 || t == KERN_Q5_1 || t == KERN_Q4_K || t == KERN_Q5_K)
        put_f16(b + 2, m);
    if (t == KERN_Q4_K || t == KERN_Q5_K) /* the upper two bits of the last four scales are 0 */
        for (int i = 4; i < 12; i++)
            b[i] &= 63;
}

/* Integers in the float types if `whole`. */
static void random_float(uint8_t *at, enum kern_type t, bool whole, uint64_t *seed)
{
    float x = whole ? (float)draw_int(seed, -9, 9) : draw_f32(seed);
    uint16_t h = t == KERN_F16 ? f16_of_f32(x) : bf16_of_f32(x);
    memcpy(at, t == KERN_F32 ? (void *)&x : (void *)&h, t == KERN_F32 ? 4 : 2);
}

static struct weights *weights_make(enum kern_type t, int64_t cols, float d, float m, bool whole, uint64_t *seed)
{
    struct weights *w = malloc(sizeof(*w));
    size_t row = kern_type_row_bytes(t, cols), group = kern_group_bytes(t, cols), block = row / (size_t)cols;
    block = kern_type_is_quant(t) ? kern_type_row_bytes(t, kern_type_block(t)) : block;
    w->src = malloc(row * ROWS);
    w->packed = stale(group * 3);
    w->w = (struct kern_mat){t, ROWS, cols, group, w->packed};
    for (uint8_t *b = w->src; b < w->src + row * ROWS; b += block) {
        if (kern_type_is_quant(t))
            random_block(b, t, d, m, seed);
        else
            random_float(b, t, whole, seed);
    }
    for (int g = 0; g < 3; g++) {
        const uint8_t *rows[16];
        for (int r = 0; r < 16; r++)
            rows[r] = g * 16 + r < ROWS ? w->src + row * (size_t)(g * 16 + r) : NULL;
        kern_pack_group(w->packed + group * (size_t)g, t, t, rows, cols);
    }
    for (int r = 0; r < ROWS; r++)
        ops->get_row(w->value[r], &w->w, r);
    return w;
}

static void weights_free(struct weights *w)
{
    free(w->src);
    free(w->packed);
    free(w);
}

static int64_t cols_of(enum kern_type t)
{
    return kern_type_is_quant(t) ? kern_type_block(t) == 256 ? 512 : 160 : 37;
}

static void *act_make(struct kern_act *a, int64_t n_row, int64_t cols, int forms, const float *x)
{
    void *mem = stale(kern_act_bytes(n_row, cols, forms));
    kern_act_place(a, mem, n_row, cols, forms);
    ops->quantize_act(a, 0, n_row, 0, cols, x, (size_t)cols);
    return mem;
}

/* The value for (row, column) in the form that a weight type reads. */
static double held(const struct kern_act *a, int forms, int64_t r, int64_t k)
{
    int64_t tile = r / 8, c = r % 8;
    if (forms == KERN_FORM_Q) {
        int64_t at = (tile * (a->k / 32) + k / 32) * 8 + c;
        return (double)a->d[at] * a->q[at * 32 + k % 32];
    }
    if (forms == KERN_FORM_B)
        return f32_of_bf16(a->b[((tile * ((a->k + 1) / 2) + k / 2) * 8 + c) * 2 + k % 2]);
    return a->f[(tile * a->k + k) * 8 + c];
}

/* Integers throughout: scale 1 of the activations (the largest of each block is 127), integer scales of the weights. */
static void exact_on_integers(void **state)
{
    (void)state;
    uint64_t seed = 11;
    void *scratch = stale(kern_matmul_scratch(COLS_MAX));
    for (int t = 0; t < KERN_TYPES; t++) {
        int64_t cols = cols_of(t);
        struct weights *w = weights_make(t, cols, 1.0f, 2.0f, true, &seed);
        float x[N_ROW * COLS_MAX];
        struct kern_act a;
        for (int64_t i = 0; i < N_ROW * cols; i++)
            x[i] = (float)(i % 32 == 7 ? (i & 32 ? 127 : -127) : draw_int(&seed, -3, 3));
        void *mem = act_make(&a, N_ROW, cols, kern_type_form(t), x);
        for (int r1 = 1; r1 <= N_ROW; r1++)
            for (int g0 = 0; g0 < 3; g0++) {
                int r0 = r1 > 8 && g0 == 1 ? 8 : 0, g1 = g0 == 0 ? 2 : 3, width = (g1 - g0) * 16, ld = width + 16;
                float *out = stale((size_t)((r1 - r0 + 1) * ld) * sizeof(float));
                ops->matmul(out, (size_t)ld, &w->w, g0, g1, &a, r0, r1, scratch);
                for (int i = 0; i < (r1 - r0 + 1) * ld; i++) {
                    int r = r0 + i / ld, j = g0 * 16 + i % ld;
                    double sum = 0;
                    if (r >= r1 || i % ld >= width) {
                        assert_true(isnan(out[i]));
                        continue;
                    }
                    for (int64_t k = 0; k < cols && j < ROWS; k++)
                        sum += (double)w->value[j][k] * x[r * cols + k];
                    if (out[i] != sum)
                        fail_msg("%s row %d output %d: %.9g, not %.9g", kern_type_name(t), r, j, out[i], sum);
                }
                free(out);
            }
        free(mem);
        weights_free(w);
    }
    free(scratch);
}

/* Each of the (at most 2·cols) roundings has an error of 2^-24 of the sum so far. */
static void bound_in_double(void **state)
{
    (void)state;
    static const double greatest[KERN_TYPES] = {1, 1, 1, 128, 8, 16, 16, 32, 63 * 16, 63 * 32, 128 * 32};
    uint64_t seed = 12;
    for (int t = 0; t < KERN_TYPES; t++) {
        int64_t cols = cols_of(t);
        double size = greatest[t] * (kern_type_is_quant(t) ? 0.11 : 1);
        int steps = kern_type_is_quant(t) ? (int)cols / 32 * 2 + 4 : (int)cols;
        struct weights *w = weights_make(t, cols, 0.0731f, -0.1091f, false, &seed);
        float x[N_ROW * COLS_MAX], out[N_ROW * 48];
        struct kern_act a;
        draw_row(x, N_ROW * cols, 3.0f, &seed);
        void *mem = act_make(&a, N_ROW, cols, kern_type_form(t), x), *scratch = stale(kern_matmul_scratch(cols));
        ops->matmul(out, 48, &w->w, 0, 3, &a, 0, N_ROW, scratch);
        for (int r = 0; r < N_ROW; r++)
            for (int j = 0; j < ROWS; j++) {
                double sum = 0, bound = 0;
                for (int64_t k = 0; k < cols; k++) {
                    double v = held(&a, kern_type_form(t), r, k);
                    sum += w->value[j][k] * v;
                    bound += 2 * size * fabs(v) * steps * 0x1p-24;
                }
                if (!(fabs(out[r * 48 + j] - sum) <= bound))
                    fail_msg("%s: %.9g, not %.9g within %.3g", kern_type_name(t), out[r * 48 + j], sum, bound);
            }
        free(scratch);
        free(mem);
        weights_free(w);
    }
}

/* The meaning of a 32-column block of a GGUF row: w = dw[k/16]·q + m, q integer. Scales as random_block draws them. */
static void gguf_scales(float dw[2], float *m, enum kern_type t, const uint8_t *row, int64_t b)
{
    size_t n = kern_type_row_bytes(t, kern_type_block(t));
    const uint8_t *blk = row + n * (size_t)(kern_type_block(t) == 256 ? b / 8 : b), *s = blk + 4;
    _Float16 d, min;
    int j = (int)(b % 8);
    memcpy(&d, t == KERN_Q6_K ? blk + 208 : blk, 2);
    memcpy(&min, blk + 2, 2);
    dw[0] = dw[1] = (float)d;
    *m = t == KERN_Q4_1 || t == KERN_Q5_1 ? (float)min : 0.0f;
    if (t == KERN_Q6_K) {
        dw[0] = (float)d * (int8_t)blk[192 + 2 * j];
        dw[1] = (float)d * (int8_t)blk[193 + 2 * j];
    } else if (kern_type_block(t) == 256) {
        dw[0] = dw[1] = (float)d * (float)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) + (s[j - 4] >> 6) * 16);
        *m = -((float)min * (float)(j < 4 ? s[j + 4] : s[j + 4] >> 4));
    }
}

static float chain_quant(const struct weights *w, int j, const struct kern_act *a, int r)
{
    enum kern_type t = w->w.type;
    float acc = 0.0f;
    for (int64_t b = 0; b < w->w.cols / 32; b++) {
        int64_t at = (r / 8 * (a->k / 32) + b) * 8 + r % 8;
        float dw[2], m;
        int s[2] = {0, 0}, n = 0;
        gguf_scales(dw, &m, t, w->src + kern_type_row_bytes(t, w->w.cols) * (size_t)j, b);
        for (int k = 0; k < 32; k++) {
            int q = dw[k / 16] == 0 ? 0 : (int)lrint(((double)w->value[j][b * 32 + k] - m) / dw[k / 16]);
            s[k / 16] += q * a->q[at * 32 + k];
            n += a->q[at * 32 + k];
        }
        float d = a->d[at], z = d * (float)n;
        if (t == KERN_Q6_K)
            acc = fmaf(d, fmaf(dw[1], (float)s[1], dw[0] * (float)s[0]), acc);
        else
            acc = fmaf(dw[0] * d, (float)(s[0] + s[1]), acc);
        if (t == KERN_Q4_1 || t == KERN_Q5_1 || t == KERN_Q4_K || t == KERN_Q5_K)
            acc = fmaf(m, z, acc);
    }
    return acc;
}

static float chain_float(const struct weights *w, int j, const struct kern_act *a, int r)
{
    int64_t cols = w->w.cols;
    const float *v = w->value[j];
    float acc = 0.0f;
    if (w->w.type != KERN_BF16) {
        for (int64_t k = 0; k < cols; k++)
            acc = fmaf(v[k], (float)held(a, KERN_FORM_F, r, k), acc);
        return acc;
    }
    for (int64_t k = 0; k < cols; k += 2) {
        if (k + 1 < cols)
            acc = fmaf(v[k + 1], (float)held(a, KERN_FORM_B, r, k + 1), acc);
        acc = fmaf(v[k], (float)held(a, KERN_FORM_B, r, k), acc);
    }
    return acc;
}

static void order_of_sums(void **state)
{
    (void)state;
    uint64_t seed = 13;
    for (int t = 0; t < KERN_TYPES; t++) {
        int64_t cols = cols_of(t);
        struct weights *w = weights_make(t, cols, 0.0731f, 0.0331f, false, &seed);
        float x[N_ROW * COLS_MAX], out[N_ROW * 48];
        struct kern_act a;
        draw_row(x, N_ROW * cols, 1.0f, &seed);
        void *mem = act_make(&a, N_ROW, cols, kern_type_form(t), x), *scratch = stale(kern_matmul_scratch(cols));
        ops->matmul(out, 48, &w->w, 0, 3, &a, 0, N_ROW, scratch);
        for (int r = 0; r < N_ROW; r++)
            for (int j = 0; j < ROWS; j++) {
                float expect = kern_type_is_quant(t) ? chain_quant(w, j, &a, r) : chain_float(w, j, &a, r);
                if (out[r * 48 + j] != expect)
                    fail_msg("%s row %d output %d: %a, not %a", kern_type_name(t), r, j, out[r * 48 + j], expect);
            }
        free(scratch);
        free(mem);
        weights_free(w);
    }
}

static void quantize_act_rounds(void **state)
{
    (void)state;
    uint64_t seed = 14;
    float x[N_ROW * 96];
    struct kern_act a;
    int forms = KERN_FORM_Q | KERN_FORM_B | KERN_FORM_F;
    for (int64_t i = 0; i < N_ROW * 96; i++)
        x[i] = draw_f32(&seed) * ldexpf(1, draw_int(&seed, -4, 4));
    void *mem = act_make(&a, N_ROW, 96, forms, x);
    for (int r = 0; r < N_ROW; r++)
        for (int b = 0; b < 3; b++) {
            int64_t at = (r / 8 * 3 + b) * 8 + r % 8, half = (r / 8 * 3 + b) * 16 + r % 8;
            double max = 0;
            int s[2] = {0, 0}, top = 0;
            for (int k = 0; k < 32; k++) {
                float v = x[r * 96 + b * 32 + k];
                int q = a.q[at * 32 + k];
                max = fabs(v) > max ? fabs(v) : max;
                top = abs(q) > top ? abs(q) : top;
                s[k / 16] += q;
                assert_true(fabs(held(&a, KERN_FORM_Q, r, b * 32 + k) - v) <= 0.50001 * a.d[at]);
                assert_true(held(&a, KERN_FORM_F, r, b * 32 + k) == v);
                assert_true(held(&a, KERN_FORM_B, r, b * 32 + k) == f32_of_bf16(bf16_of_f32(v)));
            }
            assert_true(a.d[at] == (float)max / 127.0f);
            assert_int_equal(top, 127);
            assert_int_equal(a.s[half], s[0]);
            assert_int_equal(a.s[half + 8], s[1]);
            assert_true(a.z[at] == a.d[at] * (float)(s[0] + s[1]));
        }
    free(mem);
}

/* x·(127/max), not x/(max/127): they differ about once in 100,000 values. */
static void quantize_act_rounds_as_written(void **state)
{
    (void)state;
    uint64_t seed = 17;
    for (int i = 0; i < 4000; i++) {
        float x[8 * 32];
        struct kern_act a;
        draw_row(x, 8 * 32, 1.0f, &seed);
        void *mem = act_make(&a, 8, 32, KERN_FORM_Q, x);
        for (int r = 0; r < 8; r++) {
            float max = 0;
            for (int k = 0; k < 32; k++)
                max = fabsf(x[r * 32 + k]) > max ? fabsf(x[r * 32 + k]) : max;
            float inv = 127.0f / max;
            for (int k = 0; k < 32; k++)
                assert_int_equal(a.q[r * 32 + k], lrintf(x[r * 32 + k] * inv));
        }
        free(mem);
    }
}

/* In pieces, in any order: the same bytes; memory of other rows and columns is unchanged. */
static void quantize_act_in_pieces(void **state)
{
    (void)state;
    uint64_t seed = 15;
    float x[N_ROW * 128];
    struct kern_act a, b;
    int forms = KERN_FORM_Q | KERN_FORM_B | KERN_FORM_F;
    draw_row(x, N_ROW * 128, 2.0f, &seed);
    void *one = act_make(&a, N_ROW, 128, forms, x), *two = stale(kern_act_bytes(N_ROW, 128, forms));
    kern_act_place(&b, two, N_ROW, 128, forms);
    for (int k = 96; k >= 0; k -= 32) {
        ops->quantize_act(&b, 5, N_ROW - 5, k, 32, x + 5 * 128 + k, 128);
        ops->quantize_act(&b, 0, 5, k, 32, x + k, 128);
    }
    assert_memory_equal(one, two, kern_act_bytes(N_ROW, 128, forms));
    free(one);
    free(two);
}

static void quantize_act_edges(void **state)
{
    (void)state;
    float x[5 * 32] = {0};
    struct kern_act a;
    x[32] = 0x1p-101f; /* row 1: below the smallest scale */
    x[64] = 0x1p-99f;  /* row 2: above it */
    x[96] = NAN;       /* row 3 */
    x[97] = 3.0f;
    x[128] = 3e38f; /* row 4 */
    x[129] = -1e38f;
    void *mem = act_make(&a, 5, 32, KERN_FORM_Q, x);
    for (int r = 0; r < 2; r++) {
        assert_true(a.d[r] == 0.0f && a.z[r] == 0.0f);
        for (int k = 0; k < 32; k++)
            assert_int_equal(a.q[r * 32 + k], 0);
    }
    assert_true(a.d[2] == 0x1p-99f / 127.0f);
    assert_int_equal(a.q[2 * 32], 127);
    assert_true(isnan(a.d[3]) && isnan(a.z[3]));
    assert_int_equal(a.q[4 * 32], 127);
    assert_int_equal(a.q[4 * 32 + 1], -42);
    free(mem);
}

/* A NaN or a zero row changes no other row; NaN shows in every output of its row. */
static void bad_rows_stay_alone(void **state)
{
    (void)state;
    uint64_t seed = 16;
    for (int t = 0; t < KERN_TYPES; t++) {
        int64_t cols = cols_of(t);
        struct weights *w = weights_make(t, cols, 0.5f, 0.25f, false, &seed);
        float x[8 * COLS_MAX], good[8 * 48], bad[8 * 48];
        struct kern_act a;
        draw_row(x, 8 * cols, 1.0f, &seed);
        void *scratch = stale(kern_matmul_scratch(cols)), *mem = act_make(&a, 8, cols, kern_type_form(t), x);
        ops->matmul(good, 48, &w->w, 0, 3, &a, 0, 8, scratch);
        free(mem);
        x[3 * cols + 5] = NAN;
        memset(x + 4 * cols, 0, (size_t)cols * sizeof(float));
        mem = act_make(&a, 8, cols, kern_type_form(t), x);
        ops->matmul(bad, 48, &w->w, 0, 3, &a, 0, 8, scratch);
        for (int r = 0; r < 8; r++)
            for (int j = 0; j < ROWS; j++) {
                float v = bad[r * 48 + j];
                assert_true(r == 3 ? isnan(v) : r == 4 ? v == 0.0f : v == good[r * 48 + j]);
            }
        free(mem);
        free(scratch);
        weights_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_on_integers),      cmocka_unit_test(bound_in_double),
        cmocka_unit_test(order_of_sums),          cmocka_unit_test(quantize_act_rounds),
        cmocka_unit_test(quantize_act_in_pieces), cmocka_unit_test(quantize_act_edges),
        cmocka_unit_test(bad_rows_stay_alone),    cmocka_unit_test(quantize_act_rounds_as_written),
    };
    static const char *const names[] = {"c", "avx2", "avx512"};
    struct err e;
    int failed = 0;
    for (int i = 0; i < 3; i++)
        if (kern_select(&e, &ops, names[i]) == 0)
            failed += cmocka_run_group_tests_name(names[i], tests, setup, NULL);
    return failed;
}
