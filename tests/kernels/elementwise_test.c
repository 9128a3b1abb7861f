/* Norm, activation function, rotation, exp2, vocabulary sums and half formats, compared with libm in double precision
 * and with the compiler's _Float16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/draw.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

static const struct kern_ops *ops; /* each implementation that this machine supports, in turn */

static void near(double got, double expect, double bound)
{
    if (!(fabs(got - expect) <= bound))
        fail_msg("%.9g, not %.9g within %.3g", got, expect, bound);
}

static int setup(void **state)
{
    (void)state;
    kern_thread_init();
    return 0;
}

/* The first omitted term is (ln2/2)^7/7!, 1.7e-7 of the smallest value of the polynomial, 2^-1/2. Rounding adds
 * 0.6e-7. */
#define EXP2_BOUND 2.3e-7

static void exp2_bound(void **state)
{
    (void)state;
    for (double x = 0; x >= -126; x -= 1.0 / 4093) {
        double expect = exp2((double)(float)x);
        near(kern_exp2((float)x), expect, EXP2_BOUND * expect);
    }
}

static void exp2_edges(void **state)
{
    (void)state;
    assert_true(kern_exp2(0.0f) == 1.0f && kern_exp2(-0.0f) == 1.0f);
    assert_true(kern_exp2(-126.0f) == 0x1p-126f && kern_exp2(-1.0f) == 0.5f);
    assert_true(kern_exp2(nextafterf(-126.0f, -200.0f)) == 0.0f && kern_exp2(-INFINITY) == 0.0f);
    assert_true(isnan(kern_exp2(NAN)));
    for (int n = 0; n >= -125; n--) /* halves round to the even side */
        near(kern_exp2((float)n - 0.5f), exp2(n - 0.5), EXP2_BOUND * exp2(n - 0.5));
}

/* Rounding: 16 lanes of n/16 additions, each 2^-24 of the sum, then a few operations. */
static void norm_bound(void **state)
{
    (void)state;
    static const int sizes[] = {1, 15, 16, 17, 64, 576, 1000, 4096};
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        int n = sizes[i];
        float x[4096], w[4096], out[4096];
        double sum = 0;
        draw_row(x, n, 30.0f, &seed);
        draw_row(w, n, 2.0f, &seed);
        for (int k = 0; k < n; k++)
            sum += (double)x[k] * x[k];
        double r = 1 / sqrt(sum / n + 1e-5), bound = (n / 16 + 16) * 0x1p-24;
        ops->norm(out, x, w, n, 1e-5f);
        for (int k = 0; k < n; k++)
            near(out[k], x[k] * r * w[k], fabs(x[k] * r * w[k]) * bound);
        ops->norm(x, x, w, n, 1e-5f);
        assert_memory_equal(x, out, (size_t)n * sizeof(float));
    }
}

/* The lanes and the fold are part of the contract: in every other order these terms lose different parts. */
static void norm_order(void **state)
{
    (void)state;
    float x[48], w[48], out[48], lane[16] = {0};
    uint64_t seed = 2;
    for (int k = 0; k < 48; k++) {
        x[k] = draw_f32(&seed) * (float)draw_int(&seed, 1, 1000);
        w[k] = 1.0f;
        lane[k % 16] = lane[k % 16] + x[k] * x[k];
    }
    float eight[8], four[4];
    for (int k = 0; k < 8; k++)
        eight[k] = lane[k] + lane[k + 8];
    for (int k = 0; k < 4; k++)
        four[k] = eight[k] + eight[k + 4];
    float sum = (four[0] + four[2]) + (four[1] + four[3]), r = 1.0f / sqrtf(sum / 48.0f + 1e-6f);
    ops->norm(out, x, w, 48, 1e-6f);
    for (int k = 0; k < 48; k++)
        assert_true(out[k] == x[k] * r);
}

static void silu_bound(void **state)
{
    (void)state;
    uint64_t seed = 3;
    float g[1003], u[1003], out[1003];
    draw_row(g, 1003, 80.0f, &seed);
    draw_row(u, 1003, 5.0f, &seed);
    g[0] = 0.0f;
    g[1] = -0.0f;
    ops->silu_mul(out, g, u, 1003);
    for (int i = 0; i < 1003; i++) {
        double expect = g[i] / (1 + exp(-(double)g[i])) * u[i];
        /* The argument of exp2 is rounded to 2^-24 of itself. */
        near(out[i], expect, fabs(expect) * (4e-7 + fabs(g[i]) * 0x1p-23));
    }
    ops->silu_mul(g, g, u, 1003);
    assert_memory_equal(g, out, sizeof(g));
    g[0] = NAN;
    ops->silu_mul(out, g, u, 1);
    assert_true(isnan(out[0]));
}

static void add_exact(void **state)
{
    (void)state;
    float x[5] = {1, 2, 3, 4, 5}, y[5] = {0.5f, -2, 1, 0, 0x1p-30f};
    static const float sum[5] = {1.5f, 0, 4, 4, 5};
    ops->add(x, y, 5);
    assert_memory_equal(x, sum, sizeof(x));
}

static void rope_turns(void **state)
{
    (void)state;
    uint64_t seed = 4;
    for (int neox = 0; neox < 2; neox++) {
        float x[64], y[64], cs[48];
        draw_row(x, 64, 10.0f, &seed);
        memcpy(y, x, sizeof(x));
        for (int i = 0; i < 24; i++) {
            double angle = 100.0 * draw_f32(&seed);
            cs[2 * i] = (float)cos(angle);
            cs[2 * i + 1] = (float)sin(angle);
        }
        ops->rope(y, cs, 48, neox);
        for (int i = 0; i < 24; i++) {
            int a = neox ? i : 2 * i, b = neox ? i + 24 : 2 * i + 1;
            double c = cs[2 * i], s = cs[2 * i + 1];
            assert_true(y[a] == fmaf(-x[b], cs[2 * i + 1], x[a] * cs[2 * i]));
            assert_true(y[b] == fmaf(x[b], cs[2 * i], x[a] * cs[2 * i + 1]));
            near(y[a], x[a] * c - x[b] * s, 20 * 0x1p-24);
            near(y[b], x[b] * c + x[a] * s, 20 * 0x1p-24);
        }
        assert_memory_equal(y + 48, x + 48, 16 * sizeof(float));
    }
}

static void argmax_ties(void **state)
{
    (void)state;
    float max, x[40] = {0};
    x[3] = x[17] = x[39] = 2.0f;
    x[0] = x[20] = NAN;
    assert_int_equal(ops->argmax(x, 40, &max), 3);
    assert_true(max == 2.0f);
    assert_int_equal(ops->argmax(x + 4, 36, &max), 13);
    float low[3] = {NAN, -INFINITY, NAN};
    assert_int_equal(ops->argmax(low, 3, &max), 0);
    assert_true(max == -INFINITY);
    float one = -7.0f;
    assert_int_equal(ops->argmax(&one, 1, &max), 0);
    assert_true(max == -7.0f);
}

static void expsum_bound(void **state)
{
    (void)state;
    uint64_t seed = 5;
    static const int sizes[] = {1, 16, 33, 1000, 1024};
    for (int i = 0; i < 5; i++) {
        float x[1024], e[1024], max;
        double sum = 0;
        draw_row(x, sizes[i], 20.0f, &seed);
        ops->argmax(x, sizes[i], &max);
        for (int k = 0; k < sizes[i]; k++)
            sum += exp2(((double)x[k] - max) * 1.25);
        float got = ops->expsum(e, x, sizes[i], max, 1.25f);
        /* Arguments reach 50, so their rounding is 50·2^-24·ln 2 of a term. */
        near(got, sum, sum * 1e-5);
        assert_true(ops->expsum(NULL, x, sizes[i], max, 1.25f) == got);
        for (int k = 0; k < sizes[i]; k++)
            assert_true(e[k] == kern_exp2((x[k] - max) * 1.25f));
    }
}

static void f16_equals_compiler(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t u = (uint16_t)h;
        _Float16 x;
        memcpy(&x, &u, 2);
        float f = f32_of_f16(u);
        if (x != x) {
            assert_true(isnan(f));
            assert_true((f16_of_f32(f) & 0x7fff) > 0x7c00);
            continue;
        }
        assert_true(f == (float)x && !signbit(f) == !(u >> 15));
        assert_int_equal(f16_of_f32(f), u);
    }
    uint64_t seed = 6;
    for (int i = 0; i < 2000000; i++) {
        float f = f32_of_bits((uint32_t)draw_u64(&seed));
        if (i % 2) /* around the range of f16 */
            f = ldexpf(draw_f32(&seed), draw_int(&seed, -28, 18));
        _Float16 x = (_Float16)f;
        uint16_t u;
        memcpy(&u, &x, 2);
        if (f == f)
            assert_int_equal(f16_of_f32(f), u);
    }
}

/* bf16: the nearer of the two neighbours, the even one at a tie; computed on the values, not on the bits. */
static void bf16_is_nearest(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 1000000; i++) {
        float f = ldexpf(draw_f32(&seed), draw_int(&seed, -100, 100));
        uint16_t h = bf16_of_f32(f);
        double err = fabs((double)f32_of_bf16(h) - f);
        double up = fabs((double)f32_of_bf16((uint16_t)(h + 1)) - f),
               down = fabs((double)f32_of_bf16((uint16_t)(h - 1)) - f);
        assert_true(err <= up && err <= down && !((err == up || err == down) && (h & 1)));
    }
    assert_int_equal(bf16_of_f32(f32_of_bits(0x3f808000)), 0x3f80);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x3f818000)), 0x3f82);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x007fffff)), 0);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x807fffff)), 0x8000);
    assert_int_equal(bf16_of_f32(INFINITY), 0x7f80);
    assert_int_equal(bf16_of_f32(f32_of_bits(0x7f7fffff)), 0x7f80);
    assert_int_equal(bf16_of_f32(f32_of_bits(0xff800001)), 0xffc0);
}

/* The state of the thread: halves round to even, subnormals are flushed on input and output. */
static void thread_state(void **state)
{
    (void)state;
    volatile float tiny = 0x1p-126f, half = 0.5f, small = f32_of_bits(0x00400000), big = 0x1p20f;
    kern_thread_init();
    assert_true(tiny * half == 0.0f);
    assert_true(small * big == 0.0f);
    assert_int_equal(lrintf(half), 0);
}

static void selection(void **state)
{
    (void)state;
    struct err e;
    const struct kern_ops *got = NULL;
    assert_int_equal(kern_select(&e, &got, "c"), 0);
    assert_ptr_equal(got, &kern_ops_c);
    assert_int_equal(kern_select(&e, &got, NULL), 0);
    assert_non_null(got);
    assert_int_equal(kern_select(&e, &got, "mmx"), ERR_USAGE);
    assert_non_null(strstr(e.text, "mmx"));
    static const char *const wider[] = {"avx2", "avx512"};
    for (int i = 0; i < 2; i++) {
        int rc = kern_select(&e, &got, wider[i]);
        assert_true(rc == ERR_USAGE || (rc == 0 && !strcmp(got->name, wider[i])));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp2_bound),   cmocka_unit_test(exp2_edges),          cmocka_unit_test(norm_bound),
        cmocka_unit_test(norm_order),   cmocka_unit_test(silu_bound),          cmocka_unit_test(add_exact),
        cmocka_unit_test(rope_turns),   cmocka_unit_test(argmax_ties),         cmocka_unit_test(expsum_bound),
        cmocka_unit_test(thread_state), cmocka_unit_test(f16_equals_compiler), cmocka_unit_test(bf16_is_nearest),
        cmocka_unit_test(selection),
    };
    static const char *const names[] = {"c", "avx2", "avx512"};
    struct err e;
    int failed = 0;
    for (int i = 0; i < 3; i++)
        if (kern_select(&e, &ops, names[i]) == 0)
            failed += cmocka_run_group_tests_name(names[i], tests, setup, NULL);
    return failed;
}
