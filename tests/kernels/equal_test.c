/*
 * Every operation of the table: AVX2 and AVX-512 equal plain C in every bit, with odd sizes, offsets, extreme values,
 * and stale memory after what was written. Plain C is the authority here; its own tests compare it with other
 * arithmetic.
 *
 * Buffers start with the same pattern on both sides, so that a byte written outside the output shows.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/machine.h"
#include "kernels/kernels.h"

static uint64_t seed = 0x9e3779b97f4a7c15u;

static uint64_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static int64_t between(int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rnd() % (uint64_t)(hi - lo + 1));
}

static float uniform(void)
{
    return (float)(int32_t)(rnd() & 0xffffff) / 8388608.0f - 1.0f;
}

/* A run of values of one magnitude, with the occasional zero, outlier, tiny run or subnormal. */
static void fill(float *x, int64_t n)
{
    float size = ldexpf(1.0f, (int)between(-6, 6));

    for (int64_t i = 0; i < n; i++) {
        if (i % 32 == 0 && rnd() % 16 == 0)
            size = rnd() % 2 ? 0.0f : ldexpf(1.0f, (int)between(-140, 30));
        else if (i % 32 == 0)
            size = ldexpf(1.0f, (int)between(-6, 6));
        x[i] = uniform() * size;
        if (rnd() % 64 == 0)
            x[i] = rnd() % 2 ? x[i] * 100.0f : -0.0f;
    }
}

static void *take(size_t bytes)
{
    void *p = NULL;

    assert_int_equal(posix_memalign(&p, 64, (bytes + 63) / 64 * 64 + 64), 0);
    memset(p, 0xff, (bytes + 63) / 64 * 64 + 64);
    return p;
}

/* Returns the implementation under test, or skips the test with a message. */
static const struct kern_ops *under_test(void **state)
{
    const struct kern_ops *ops = NULL;
    struct err e = {0};

    kern_thread_init();
    if (kern_select(&e, &ops, *state)) {
        printf("equal_test: %s: not run, this machine lacks it\n", (const char *)*state);
        skip();
    }
    return ops;
}

#define SAME(a, b, bytes, ...)                                                                                         \
    do {                                                                                                               \
        if (memcmp(a, b, bytes)) {                                                                                     \
            print_message(__VA_ARGS__);                                                                                \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* Equal bits, or NaN on both sides: which of two NaN an addition returns depends on the instruction. */
static bool same_floats(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

#define SAME_FLOATS(a, b, n, ...)                                                                                      \
    do {                                                                                                               \
        if (!same_floats(a, b, n)) {                                                                                   \
            print_message(__VA_ARGS__);                                                                                \
            fail();                                                                                                    \
        }                                                                                                              \
    } while (0)

/* ---- matmuls ---------------------------------------------------------------------------------------------------- */

/* Position of the f16 scales in a stored block, and its bytes. */
static const struct stored {
    int bytes, scale[2];
} stored[KERN_TYPES] = {
    [KERN_Q8_0] = {34, {0, -1}}, [KERN_Q4_0] = {18, {0, -1}},    [KERN_Q4_1] = {20, {0, 2}},
    [KERN_Q5_0] = {22, {0, -1}}, [KERN_Q5_1] = {24, {0, 2}},     [KERN_Q4_K] = {144, {0, 2}},
    [KERN_Q5_K] = {176, {0, 2}}, [KERN_Q6_K] = {210, {208, -1}},
};

/* Random bytes, or all of one value, with scales and halves below 2 in magnitude; sometimes BF16 of any magnitude. */
static void fill_row(uint8_t *row, enum kern_type t, int64_t cols)
{
    const size_t bytes = kern_type_row_bytes(t, cols);
    const int kind = (int)(rnd() % 8);

    if (t == KERN_F32) {
        fill((float *)(void *)row, cols);
        return;
    }
    for (size_t i = 0; i < bytes; i++)
        row[i] = kind == 0 ? 0xff : kind == 1 ? 0 : kind == 2 ? 0x80 : kind == 3 ? 0x7f : (uint8_t)(rnd() >> 40);
    if (t == KERN_BF16 && rnd() % 4 == 0)
        return;
    if (!kern_type_is_quant(t)) {
        for (size_t i = 1; i < bytes; i += 2)
            row[i] &= 0xbf;
        return;
    }
    for (size_t i = 0; i < bytes; i += (size_t)stored[t].bytes)
        for (int j = 0; j < 2; j++)
            if (stored[t].scale[j] >= 0)
                row[i + (size_t)stored[t].scale[j] + 1] &= 0xbf;
}

static struct kern_mat random_mat(enum kern_type t, int64_t rows, int64_t cols)
{
    const int64_t groups = (rows + 15) / 16;
    const size_t bytes = kern_type_row_bytes(t, cols);
    struct kern_mat w = {t, rows, cols, kern_group_bytes(t, cols), NULL};
    uint8_t *data = take((size_t)groups * w.group_bytes), *src = take(16 * bytes);

    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *row[16] = {NULL};

        for (int64_t i = 0; i < 16 && g * 16 + i < rows; i++) {
            uint8_t *at = src + (size_t)i * bytes;

            fill_row(at, t, cols);
            row[i] = at;
        }
        kern_pack_group(data + (size_t)g * w.group_bytes, t, t, row, cols);
    }
    free(src);
    w.data = data;
    return w;
}

static void matmul_case(const struct kern_ops *ops, enum kern_type t, int64_t rows, int64_t cols, int64_t n_row)
{
    struct kern_mat w = random_mat(t, rows, cols);
    const int64_t groups = (rows + 15) / 16, g0 = between(0, groups - 1), g1 = between(g0 + 1, groups);
    const int64_t r0 = n_row > 8 && rnd() % 2 ? between(0, (n_row - 1) / 8) * 8 : 0, r1 = between(r0 + 1, n_row);
    const size_t ld = (size_t)(g1 - g0) * 16 + (size_t)between(0, 9), out_bytes = (size_t)(r1 - r0) * ld * 4;
    const size_t act_bytes = kern_act_bytes(n_row, cols, kern_type_form(t));
    void *mem = take(act_bytes), *mem_c = take(act_bytes), *scratch = take(kern_matmul_scratch(cols));
    float *x = take((size_t)(n_row * cols) * 4), *out = take(out_bytes), *out_c = take(out_bytes);
    float *row = take((size_t)cols * 4), *row_c = take((size_t)cols * 4);
    struct kern_act a, c;

    for (int64_t i = 0; i < n_row; i++)
        fill(x + i * cols, cols);
    kern_act_place(&a, mem, n_row, cols, kern_type_form(t));
    kern_act_place(&c, mem_c, n_row, cols, kern_type_form(t));
    ops->quantize_act(&a, 0, n_row, 0, cols, x, (size_t)cols);
    kern_ops_c.quantize_act(&c, 0, n_row, 0, cols, x, (size_t)cols);
    SAME(mem, mem_c, act_bytes, "quantize_act %s rows %d cols %d\n", kern_type_name(t), (int)n_row, (int)cols);
    ops->matmul(out, ld, &w, g0, g1, &a, r0, r1, scratch);
    kern_ops_c.matmul(out_c, ld, &w, g0, g1, &a, r0, r1, scratch);
    SAME_FLOATS(out, out_c, (int64_t)out_bytes / 4, "matmul %s rows %d cols %d groups %d-%d act rows %d-%d\n",
                kern_type_name(t), (int)rows, (int)cols, (int)g0, (int)g1, (int)r0, (int)r1);
    ops->get_row(row, &w, rows - 1);
    kern_ops_c.get_row(row_c, &w, rows - 1);
    SAME(row, row_c, (size_t)cols * 4, "get_row %s cols %d\n", kern_type_name(t), (int)cols);
    free((void *)(uintptr_t)w.data);
    free(mem), free(mem_c), free(scratch), free(x), free(out), free(out_c), free(row), free(row_c);
}

static void matmuls(void **state)
{
    const struct kern_ops *ops = under_test(state);
    const bool touches = machine_touches;

    for (int t = 0; t < KERN_TYPES; t++) {
        const int64_t block = kern_type_block((enum kern_type)t);

        for (int i = 0; i < 80; i++) { /* with and without machine_touches, whichever this machine selects */
            machine_touches = i % 2;
            matmul_case(ops, (enum kern_type)t, between(1, 100), block == 1 ? between(1, 70) : block * between(1, 5),
                        i / 2 + 1);
        }
        machine_touches = touches;
        for (int i = 0; i < 60; i++)
            matmul_case(ops, (enum kern_type)t, between(1, 150),
                        block == 1 ? between(1, 300) : block * between(1, block == 32 ? 30 : 4), between(1, 40));
        /* Long rows, which are divided into pieces of a panel. */
        for (int i = 0; i < 4; i++)
            matmul_case(ops, (enum kern_type)t, between(16, 64), 256 * between(3, 9), between(17, 50));
    }
}

/* Ranges of rows and of columns, and all forms at once. */
static void activations(void **state)
{
    const struct kern_ops *ops = under_test(state);
    const int forms = KERN_FORM_Q | KERN_FORM_B | KERN_FORM_F;

    for (int i = 0; i < 300; i++) {
        const int64_t n_row = between(1, 20), k = 32 * between(1, 40);
        const int64_t r0 = between(0, n_row - 1), n = between(1, n_row - r0);
        const int64_t k0 = 32 * between(0, k / 32 - 1), cols = 32 * between(1, (k - k0) / 32);
        const size_t bytes = kern_act_bytes(n_row, k, forms), ld = (size_t)cols + (size_t)between(0, 5);
        void *mem = take(bytes), *mem_c = take(bytes);
        float *x = take((size_t)n * ld * 4);
        struct kern_act a, c;

        for (int64_t r = 0; r < n; r++)
            fill(x + (size_t)r * ld, cols);
        if (rnd() % 4 == 0)
            x[0] = INFINITY;
        kern_act_place(&a, mem, n_row, k, forms);
        kern_act_place(&c, mem_c, n_row, k, forms);
        ops->quantize_act(&a, r0, n, k0, cols, x, ld);
        kern_ops_c.quantize_act(&c, r0, n, k0, cols, x, ld);
        SAME(mem, mem_c, bytes, "quantize_act rows %d+%d of %d cols %d+%d of %d\n", (int)r0, (int)n, (int)n_row,
             (int)k0, (int)cols, (int)k);
        free(mem), free(mem_c), free(x);
    }
}

/* ---- element-wise ----------------------------------------------------------------------------------------------- */

#define N_MAX 3000

struct rows {
    float x[N_MAX], y[N_MAX], a[N_MAX], b[N_MAX];
};

static void elements_case(const struct kern_ops *ops, struct rows *r, int64_t n)
{
    float max = 0.0f, max_c = 1.0f;
    int64_t tile = n < 1024 ? n : 1024;

    fill(r->x, n);
    fill(r->y, n);
    memset(r->a, 0xff, sizeof(r->a));
    memset(r->b, 0xff, sizeof(r->b));
    ops->norm(r->a, r->x, r->y, n, 1e-5f);
    kern_ops_c.norm(r->b, r->x, r->y, n, 1e-5f);
    SAME(r->a, r->b, sizeof(r->a), "norm %d\n", (int)n);
    ops->silu_mul(r->a, r->x, r->y, n);
    kern_ops_c.silu_mul(r->b, r->x, r->y, n);
    SAME(r->a, r->b, sizeof(r->a), "silu_mul %d\n", (int)n);
    ops->add(r->a, r->y, n);
    kern_ops_c.add(r->b, r->y, n);
    SAME(r->a, r->b, sizeof(r->a), "add %d\n", (int)n);
    if (rnd() % 2)
        for (int64_t i = 0; i < n; i++)
            r->x[i] = (float)between(-3, 3);
    if (rnd() % 4 == 0)
        r->x[between(0, n - 1)] = NAN;
    if (rnd() % 16 == 0)
        for (int64_t i = 0; i < n; i++)
            r->x[i] = i % 2 ? -INFINITY : NAN;
    int64_t at = ops->argmax(r->x, n, &max), at_c = kern_ops_c.argmax(r->x, n, &max_c);
    assert_int_equal(at, at_c);
    SAME(&max, &max_c, 4, "argmax value of %d\n", (int)n);
    fill(r->x, n);
    kern_ops_c.argmax(r->x, tile, &max);
    float c = ldexpf(1.0f + (float)between(0, 7) / 8.0f, (int)between(-8, 2));
    float s = ops->expsum(r->a, r->x, tile, max, c), s_c = kern_ops_c.expsum(r->b, r->x, tile, max, c);
    SAME(&s, &s_c, 4, "expsum of %d\n", (int)tile);
    SAME(r->a, r->b, sizeof(r->a), "expsum values of %d\n", (int)tile);
    s = ops->expsum(NULL, r->x, tile, max, c);
    SAME(&s, &s_c, 4, "expsum without values of %d\n", (int)tile);
}

static void elements(void **state)
{
    const struct kern_ops *ops = under_test(state);
    struct rows *r = take(sizeof(*r));

    for (int64_t n = 1; n < 200; n++)
        elements_case(ops, r, n);
    for (int i = 0; i < 300; i++)
        elements_case(ops, r, between(1, N_MAX));
    free(r);
}

/* In place, as the engine calls them. */
static void in_place(void **state)
{
    const struct kern_ops *ops = under_test(state);
    struct rows *r = take(sizeof(*r));

    for (int64_t n = 1; n < 120; n++) {
        fill(r->x, n);
        fill(r->y, n);
        memcpy(r->a, r->x, (size_t)n * 4);
        memcpy(r->b, r->x, (size_t)n * 4);
        ops->norm(r->a, r->a, r->y, n, 1e-6f);
        kern_ops_c.norm(r->b, r->b, r->y, n, 1e-6f);
        SAME(r->a, r->b, (size_t)n * 4, "norm in place %d\n", (int)n);
        ops->silu_mul(r->a, r->a, r->y, n);
        kern_ops_c.silu_mul(r->b, r->b, r->y, n);
        SAME(r->a, r->b, (size_t)n * 4, "silu_mul in place %d\n", (int)n);
    }
    free(r);
}

static void rotations(void **state)
{
    const struct kern_ops *ops = under_test(state);
    float x[256], y[256], cs[256];

    for (int i = 0; i < 1000; i++) {
        const int n_rot = 2 * (int)between(1, 128);
        const bool neox = rnd() % 2;

        fill(x, 256);
        memcpy(y, x, sizeof(y));
        for (int j = 0; j < 256; j++)
            cs[j] = uniform();
        ops->rope(x, cs, n_rot, neox);
        kern_ops_c.rope(y, cs, n_rot, neox);
        SAME(x, y, sizeof(x), "rope %d neox %d\n", n_rot, neox);
    }
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

#define ROWS_MAX 20

struct case_ {
    enum kern_kv type;
    int hd, n_row, n_tile;
    uint8_t *tile[8], *q;
    int32_t from[ROWS_MAX], to[ROWS_MAX];
};

/* Both sides write tokens 0 … last into memory of 0xff bytes, which are NaN as scales and as values. */
static void write_tiles(const struct kern_ops *ops, struct case_ *c, int last)
{
    const size_t bytes = kern_kv_tile_bytes(c->type, c->hd);
    float *k = take((size_t)c->hd * 4), *v = take((size_t)c->hd * 4);

    for (int b = 0; b < c->n_tile; b++) {
        uint8_t *other = take(bytes);

        c->tile[b] = take(bytes);
        for (int t = 0; t < 32 && b * 32 + t < last; t++) {
            fill(k, c->hd);
            fill(v, c->hd);
            if (rnd() % 512 == 0)
                k[between(0, c->hd - 1)] = rnd() % 2 ? NAN : INFINITY;
            if (rnd() % 512 == 0)
                v[between(0, c->hd - 1)] = rnd() % 2 ? NAN : -INFINITY;
            ops->kv_write(c->tile[b], c->type, c->hd, t, k, v);
            kern_ops_c.kv_write(other, c->type, c->hd, t, k, v);
        }
        SAME(c->tile[b], other, bytes, "kv_write %s hd %d\n", kern_kv_name(c->type), c->hd);
        free(other);
    }
    free(k), free(v);
}

static void write_queries(const struct kern_ops *ops, struct case_ *c)
{
    const size_t bytes = kern_q_bytes(c->type, c->hd);
    float *q = take((size_t)c->hd * 4);
    uint8_t *other = take(bytes);

    c->q = take((size_t)c->n_row * bytes);
    for (int i = 0; i < c->n_row; i++) {
        fill(q, c->hd);
        ops->q_prep(c->q + (size_t)i * bytes, c->type, c->hd, q, 1.0f / sqrtf((float)c->hd));
        kern_ops_c.q_prep(other, c->type, c->hd, q, 1.0f / sqrtf((float)c->hd));
        SAME(c->q + (size_t)i * bytes, other, bytes, "q_prep %s hd %d\n", kern_kv_name(c->type), c->hd);
    }
    free(q), free(other);
}

/* Ranges: a decode row, a run of causal rows, a sliding window, or random ones, sometimes empty. */
static int write_ranges(struct case_ *c)
{
    const int kind = (int)between(0, 3), at = (int)between(1, 256);
    int last = 0;

    for (int i = 0; i < c->n_row; i++) {
        c->from[i] = 0;
        c->to[i] = at;
        if (kind == 1)
            c->to[i] = at + i / 3 < 256 ? at + i / 3 : 256;
        if (kind == 2) {
            c->to[i] = at + i < 256 ? at + i : 256;
            c->from[i] = c->to[i] > 40 ? c->to[i] - 40 : 0;
        }
        if (kind == 3) {
            c->from[i] = (int32_t)between(0, 255);
            c->to[i] = (int32_t)between(c->from[i], 256);
        }
        if (c->from[i] < c->to[i] && c->to[i] > last)
            last = c->to[i];
    }
    c->n_tile = (last + 31) / 32;
    return last;
}

static void attention_case(const struct kern_ops *ops, enum kern_kv type, int hd, int n_row)
{
    struct case_ c = {.type = type, .hd = hd, .n_row = n_row};
    const int last = write_ranges(&c);
    const size_t o_bytes = (size_t)n_row * (size_t)hd * 4;
    float m[ROWS_MAX + 1], l[ROWS_MAX + 1], m_c[ROWS_MAX + 1], l_c[ROWS_MAX + 1];
    float *o = take(o_bytes), *o_c = take(o_bytes), *O = take((size_t)hd * 4), *O_c = take((size_t)hd * 4);
    void *scratch = take(kern_attn_scratch(type, hd, n_row));

    write_tiles(ops, &c, last);
    write_queries(ops, &c);
    memset(m, 0xff, sizeof(m));
    memcpy(m_c, m, sizeof(m));
    memcpy(l, m, sizeof(m));
    memcpy(l_c, m, sizeof(m));
    struct kern_attn a = {type,
                          hd,
                          n_row,
                          c.q,
                          c.from,
                          c.to,
                          (const uint8_t *const *)c.tile,
                          c.n_tile,
                          (const uint8_t *const *)c.tile,
                          n_row % (c.n_tile + 1),
                          scratch,
                          0,
                          0};
    ops->attn(m, l, o, &a);
    kern_ops_c.attn(m_c, l_c, o_c, &a);
    SAME_FLOATS(m, m_c, ROWS_MAX + 1, "attn m %s hd %d rows %d\n", kern_kv_name(type), hd, n_row);
    SAME_FLOATS(l, l_c, ROWS_MAX + 1, "attn l %s hd %d rows %d\n", kern_kv_name(type), hd, n_row);
    SAME_FLOATS(o, o_c, n_row * hd + 16, "attn o %s hd %d rows %d\n", kern_kv_name(type), hd, n_row);

    float M = -INFINITY, L = 0.0f, M_c = -INFINITY, L_c = 0.0f;
    memset(O, 0, (size_t)hd * 4);
    memset(O_c, 0, (size_t)hd * 4);
    for (int i = 0; i < n_row; i++) {
        ops->attn_merge(&M, &L, O, m[i], l[i], o + i * hd, hd);
        kern_ops_c.attn_merge(&M_c, &L_c, O_c, m[i], l[i], o + i * hd, hd);
    }
    SAME(&M, &M_c, 4, "attn_merge M\n");
    SAME_FLOATS(&L, &L_c, 1, "attn_merge L\n");
    SAME_FLOATS(O, O_c, hd, "attn_merge O hd %d\n", hd);
    if (L > 0.0f) {
        ops->attn_finish(O, L, O, hd);
        kern_ops_c.attn_finish(O_c, L, O_c, hd);
        SAME_FLOATS(O, O_c, hd, "attn_finish hd %d\n", hd);
    }
    for (int b = 0; b < c.n_tile; b++)
        free(c.tile[b]);
    free(c.q), free(o), free(o_c), free(O), free(O_c), free(scratch);
}

static void attentions(void **state)
{
    static const int dims[] = {8, 16, 24, 32, 40, 64, 80, 96, 128, 256};
    const struct kern_ops *ops = under_test(state);

    for (int type = 0; type < 3; type++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (int n = 1; n <= ROWS_MAX; n++)
                for (int i = 0; i < (dims[d] == 64 ? 4 : 1); i++)
                    attention_case(ops, (enum kern_kv)type, dims[d], n);
}

/* "avx512" is one of its two forms, the same at every selection; naming a form selects that form. */
static void forms(void **state)
{
    const struct kern_ops *any = NULL, *again = NULL, *fma = NULL, *dot = NULL;
    struct err e = {0};

    (void)state;
    if (kern_select(&e, &any, "avx512"))
        skip();
    assert_int_equal(kern_select(&e, &fma, "avx512-fma"), 0);
    assert_ptr_equal(fma, &kern_ops_avx512);
    if (kern_select(&e, &dot, "avx512-dot"))
        assert_ptr_equal(any, fma);
    else
        assert_ptr_equal(dot, &kern_ops_avx512_dot);
    assert_true(any == fma || any == dot);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kern_select(&e, &again, i ? NULL : "avx512"), 0);
        assert_ptr_equal(again, any);
    }
    print_message("equal_test: bf16 pairs by %s here\n", any == dot ? "VDPBF16PS" : "fma");
}

#define BOTH(f)                                                                                                        \
    {#f "_avx2", f, NULL, NULL, (void *)(uintptr_t) "avx2"},                                                           \
    {                                                                                                                  \
#f "_avx512", f, NULL, NULL, (void *)(uintptr_t) "avx512-fma"                                                  \
    }
/* The bf16 pairs of the other form. */
#define DOT(f)                                                                                                         \
    {                                                                                                                  \
#f "_avx512_dot", f, NULL, NULL, (void *)(uintptr_t) "avx512-dot"                                              \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(activations), BOTH(elements), BOTH(in_place), BOTH(rotations),         BOTH(attentions),
        DOT(attentions),   BOTH(matmuls),  DOT(matmuls),   cmocka_unit_test(forms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
