/*
 * exp, log, sin and cos in plain double arithmetic: +, -, *, / and moves of bits, without fused operations and without
 * libm. Every machine with IEEE doubles gives the same bits, which glibc does not promise. Errors are below 4e-16,
 * relative for exp and log, absolute for sin and cos; tests/unit/model_test.c compares them with long double.
 */
#include <stdint.h>
#include <string.h>

#include "model/model.h"

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static double of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The nearest whole number, for |x| < 2^51: adding 1.5·2^52 leaves no room for a fraction. */
static double nearest(double x)
{
    return (x + 0x1.8p52) - 0x1.8p52;
}

/* ln 2 in two parts: a whole number below 2^21 times the first part (32 bits) is exact. */
static const double ln2_hi = 0x1.62e42fee00000p-1, ln2_lo = 0x1.a39ef35793c76p-33;

/* Results below 2^-1022 are flushed to 0. */
double model_exp(double x)
{
    if (x != x)
        return x;
    if (x > 0x1.62e42fefa39efp+9)
        return of_bits(0x7ff0000000000000);
    if (x < -708.0)
        return 0.0;
    double n = nearest(x * 0x1.71547652b82fep+0);
    double r = (x - n * ln2_hi) - n * ln2_lo;
    double p = 1.0;
    /* Taylor to r^14, |r| <= 0.347: the error is below 2e-19. */
    for (int k = 14; k >= 1; k--)
        p = 1.0 + p * r / k;
    /* In two steps, because 2^1024 is not a double. */
    int64_t e = (int64_t)n, half = e / 2;
    return p * of_bits((uint64_t)(half + 1023) << 52) * of_bits((uint64_t)(e - half + 1023) << 52);
}

/* NaN for x < 0 and for NaN, -inf for 0. */
double model_log(double x)
{
    if (x != x || x < 0.0)
        return of_bits(0x7ff8000000000000);
    if (x == 0.0)
        return of_bits(0xfff0000000000000);
    if (x > 0x1.fffffffffffffp+1023)
        return x;
    int64_t e = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        e = -54;
    }
    uint64_t u = bits_of(x);
    e += (int64_t)(u >> 52) - 1023;
    double m = of_bits((u & 0x000fffffffffffff) | 0x3ff0000000000000);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e++;
    }
    /* ln m = 2·atanh(f) with |f| <= 0.1716; the first term left out is below 1e-18. */
    double f = (m - 1.0) / (m + 1.0), q = f * f, s = 0.0;
    for (int k = 23; k >= 3; k -= 2)
        s = (s + 1.0 / k) * q;
    double l = 2.0 * f + 2.0 * f * s;
    return (double)e * ln2_hi + (l + (double)e * ln2_lo);
}

/* sin and cos for |r| <= pi/4 by Taylor; the first terms left out are below 1e-19 and 2e-18. */
static void sincos_near(double *s, double *c, double r)
{
    double q = r * r, a = 0.0, b = 0.0;
    for (int k = 17; k >= 3; k -= 2)
        a = (a + 1.0) * (-q / (k * (k - 1)));
    for (int k = 16; k >= 4; k -= 2)
        b = (b + 1.0) * (-q / (k * (k - 1)));
    *s = r + r * a;
    *c = 1.0 - (0.5 * q + 0.5 * q * b);
}

/* pi/2 in three parts of 32, 32 and 53 bits (Cody and Waite): n < 2^21 times either of the first two is exact. */
void model_sincos(double *s, double *c, double x)
{
    double n = nearest(x * 0x1.45f306dc9c883p-1);
    double r = ((x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34) - n * 0x1.3198a2e037073p-69;
    double sr, cr;
    sincos_near(&sr, &cr, r);
    switch ((int64_t)n & 3) {
    case 0:
        *s = sr;
        *c = cr;
        break;
    case 1:
        *s = cr;
        *c = -sr;
        break;
    case 2:
        *s = -sr;
        *c = -cr;
        break;
    default:
        *s = -cr;
        *c = sr;
        break;
    }
}
