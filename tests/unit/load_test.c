/*
 * Numbers, arrivals and statistics of the load generator. Statistics: values that numpy gives for the same list (mean,
 * median, std, percentile with the default linear method). Distributions: closed forms of their functions. Rates and
 * stretching: the definitions of `vllm bench serve` (get_request), computed with numpy.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "load/load.h"

#define N 20000

static void near_to(double got, double want, double rel)
{
    if (!(fabs(got - want) <= rel * fabs(want)))
        fail_msg("%.17g should be %.17g", got, want);
}

static void test_statistics_equal_numpy(void **state)
{
    (void)state;
    double v[] = {0.012, 0.5, 0.031, 0.25, 0.0071, 0.12, 0.033, 0.9, 0.031, 0.08};
    static const double at[][2] = {{0, 0.0071},
                                   {1, 0.007541000000000001},
                                   {25, 0.031},
                                   {50, 0.0565},
                                   {90, 0.5399999999999998},
                                   {99, 0.8640000000000001},
                                   {99.9, 0.8964},
                                   {100, 0.9}};
    size_t n = sizeof v / sizeof *v;
    load_sort(v, n);
    struct load_stat s = load_stat(v, n);
    near_to(s.mean, 0.19641, 1e-12);
    near_to(s.median, 0.0565, 1e-12);
    near_to(s.std, 0.2758145262672001, 1e-12);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        near_to(load_percentile(v, n, at[i][0]), at[i][1], 1e-12);
    const double two[] = {1, 2}, one[] = {3};
    near_to(load_percentile(two, 2, 10), 1.1, 1e-12);
    near_to(load_percentile(two, 2, 99), 1.99, 1e-12);
    near_to(load_percentile(one, 1, 99), 3, 0);
    assert_true(load_percentile(NULL, 0, 99) == 0);
    s = load_stat(NULL, 0);
    assert_true(s.mean == 0 && s.median == 0 && s.std == 0);
}

/* The distribution functions of gamma with shapes 1/2, 1 and 2, scale 1. */
static double half(double x)
{
    return erf(sqrt(x));
}

static double one(double x)
{
    return 1 - exp(-x);
}

static double two(double x)
{
    return 1 - (1 + x) * exp(-x);
}

/* The largest distance between the sample's distribution function and the true one (Kolmogorov): above 1.95 / sqrt(n)
 * for one of a thousand seeds, and the seed is fixed. */
static void same_distribution(double *v, size_t n, double (*cdf)(double), double scale)
{
    double most = 0;
    load_sort(v, n);
    for (size_t i = 0; i < n; i++) {
        double want = cdf(v[i] / scale);
        most = fmax(most, fmax(fabs(want - (double)i / (double)n), fabs(want - (double)(i + 1) / (double)n)));
    }
    if (most > 1.95 / sqrt((double)n))
        fail_msg("distance %g of %zu", most, n);
}

static void test_gamma_has_its_distribution(void **state)
{
    (void)state;
    static const struct {
        double shape, scale, (*cdf)(double);
    } c[] = {{0.5, 3, half}, {1, 0.1, one}, {2, 7, two}};
    double *v = malloc(N * sizeof *v);
    assert_non_null(v);
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        struct load_rng r;
        load_rng_start(&r, 7, k);
        for (size_t i = 0; i < N; i++)
            v[i] = load_rng_gamma(&r, c[k].shape, c[k].scale);
        same_distribution(v, N, c[k].cdf, c[k].scale);
    }
    free(v);
}

/* splitmix64 is fixed here, so that a seed means the same prompts in every release: its outputs from state 0, as
 * published (Vigna, xoshiro page), apply to the step; streams must differ. */
static void test_seeds_give_fixed_numbers(void **state)
{
    (void)state;
    struct load_rng r = {0}, a, b;
    assert_true(load_rng_next(&r) == 0xe220a8397b1dcdafull);
    assert_true(load_rng_next(&r) == 0x6e789e6aa1b965f4ull);
    assert_true(load_rng_next(&r) == 0x06c45d188009454full);
    load_rng_start(&a, 1, 2);
    load_rng_start(&b, 2, 1);
    int same = 0, seen[6] = {0};
    for (int i = 0; i < 1000; i++)
        same += load_rng_next(&a) == load_rng_next(&b);
    assert_int_equal(same, 0);
    for (int i = 0; i < 60000; i++)
        seen[load_rng_below(&a, 6)]++;
    for (int i = 0; i < 6; i++) /* 10,000 each, standard deviation 91: within five of them */
        assert_in_range(seen[i], 9540, 10460);
    for (int i = 0; i < 10000; i++) {
        double u = load_rng_unit(&a);
        assert_true(u > 0 && u < 1);
    }
    assert_int_equal(load_rng_below(&a, 1), 0);
}

static double *gaps(const struct load_plan *p, uint64_t n)
{
    double *v = malloc(n * sizeof *v);
    assert_non_null(v);
    load_plan_arrivals(v, p, n);
    for (uint64_t i = n - 1; i > 0; i--) {
        v[i] -= v[i - 1];
        assert_true(v[i] >= 0);
    }
    return v;
}

static void test_arrivals_have_the_rate(void **state)
{
    (void)state;
    struct load_plan p = {.rate = 50, .burstiness = 1, .seed = 3};
    double *v = gaps(&p, N), sum = 0;
    for (size_t i = 0; i < N; i++)
        sum += v[i];
    near_to(sum, N / 50.0, 1e-9); /* the last request is at n / rate */
    same_distribution(v, N, one, 1 / 50.0);
    free(v);
    p.burstiness = 0.5; /* scale 1 / (rate · burstiness) */
    v = gaps(&p, N);
    same_distribution(v, N, half, 1 / 25.0);
    free(v);
    p.burstiness = INFINITY;
    v = gaps(&p, 10);
    for (size_t i = 0; i < 10; i++)
        near_to(v[i], 0.02, 1e-9);
    free(v);
    p.rate = INFINITY;
    v = gaps(&p, 10);
    for (size_t i = 0; i < 10; i++)
        assert_true(v[i] == 0);
    free(v);
}

static void test_ramps_change_the_rate(void **state)
{
    (void)state;
    static const double line[] = {10, 20, 30, 40, 50};
    static const double curve[] = {10, 14.953487812212206, 22.360679774997898, 33.4370152488211, 50};
    struct load_plan p = {
        .rate = INFINITY, .burstiness = INFINITY, .ramp = LOAD_LINEAR, .ramp_from = 10, .ramp_to = 50};
    double at[5], sum = 0;
    for (uint64_t i = 0; i < 5; i++)
        near_to(load_plan_rate(&p, i, 5), line[i], 1e-12);
    load_plan_arrivals(at, &p, 5);
    for (uint64_t i = 0; i < 5; i++)
        near_to(at[i], sum += 1 / line[i], 1e-12);  /* a ramp is not stretched */
    assert_int_equal(load_plan_count(&p, 20), 498); /* 497.07 */
    p.ramp = LOAD_EXPONENTIAL;
    for (uint64_t i = 0; i < 5; i++)
        near_to(load_plan_rate(&p, i, 5), curve[i], 1e-12);
    assert_int_equal(load_plan_count(&p, 20), 403); /* 402.36 */
    p.ramp_to = 10;
    assert_int_equal(load_plan_count(&p, 20), 200);
    near_to(load_plan_rate(&p, 0, 1), 10, 1e-12);
    p = (struct load_plan){.rate = 0.01, .burstiness = 1};
    assert_int_equal(load_plan_count(&p, 20), 1);
    p.rate = 0.1;
    assert_int_equal(load_plan_count(&p, 30), 3); /* 3.0000000000000004 */
}

/* With within_s: all requests are within the time, and the gaps keep their proportions. */
static void test_arrivals_fit_into_a_time(void **state)
{
    (void)state;
    static const struct load_plan plans[] = {
        {.rate = 50, .burstiness = 1},
        {.rate = 3, .burstiness = INFINITY},
        {.rate = INFINITY, .burstiness = 1, .ramp = LOAD_LINEAR, .ramp_from = 2, .ramp_to = 20},
        {.rate = INFINITY, .burstiness = 0.2, .ramp = LOAD_EXPONENTIAL, .ramp_from = 1, .ramp_to = 5}};
    double at[512], free_at[512];
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++)
        for (uint64_t seed = 0; seed < 20; seed++) {
            struct load_plan p = plans[k];
            uint64_t n = load_plan_count(&p, 4.25);
            p.seed = seed;
            assert_in_range(n, 1, 512);
            load_plan_arrivals(free_at, &p, n);
            p.within_s = 4.25;
            load_plan_arrivals(at, &p, n);
            near_to(at[n - 1], 4.25, 1e-12);
            for (uint64_t i = 0; i < n; i++)
                near_to(at[i] / at[n - 1], free_at[i] / free_at[n - 1], 1e-12);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics_equal_numpy),   cmocka_unit_test(test_gamma_has_its_distribution),
        cmocka_unit_test(test_seeds_give_fixed_numbers), cmocka_unit_test(test_arrivals_have_the_rate),
        cmocka_unit_test(test_ramps_change_the_rate),    cmocka_unit_test(test_arrivals_fit_into_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
