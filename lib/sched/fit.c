/*
 * Fits durations to a + b·x + c·z by recursive least squares with a forgetting factor. Values are scaled so that the
 * three terms have similar magnitudes. Coefficients are kept non-negative, since no part of the work has a negative
 * duration.
 */
#include "sched/machine.h"

#include <math.h>
#include <string.h>

#define FORGET 0.995
#define SPREAD_MAX 1e9

void fit_set(struct sched_fit *f, double a, double b, double c, double scale_x, double scale_z)
{
    bool known = a > 0 || b > 0 || c > 0;
    memset(f, 0, sizeof *f);
    f->k[0] = a;
    f->k[1] = b;
    f->k[2] = c;
    f->scale[0] = 1;
    f->scale[1] = scale_x;
    f->scale[2] = scale_z;
    for (int i = 0; i < 3; i++)
        f->p[i][i] = known ? 1e-3 : 1e3; /* given coefficients change slowly */
}

double fit_at(const struct sched_fit *f, double x, double z)
{
    double y = f->k[0] + f->k[1] * x + f->k[2] * z;
    return y > 0 ? y : 0;
}

void fit_learn(struct sched_fit *f, double x, double z, double y)
{
    const double v[3] = {1, x / f->scale[1], z / f->scale[2]};
    double k[3] = {f->k[0], f->k[1] * f->scale[1], f->k[2] * f->scale[2]}, pv[3], den = FORGET;
    if (!(y > 0) || !isfinite(y) || !isfinite(x) || !isfinite(z))
        return;
    for (int i = 0; i < 3; i++)
        pv[i] = f->p[i][0] * v[0] + f->p[i][1] * v[1] + f->p[i][2] * v[2];
    for (int i = 0; i < 3; i++)
        den += v[i] * pv[i];
    double off = y - (k[0] * v[0] + k[1] * v[1] + k[2] * v[2]);
    for (int i = 0; i < 3; i++) {
        k[i] += pv[i] / den * off;
        k[i] = k[i] > 0 ? k[i] : 0;
        for (int j = 0; j < 3; j++)
            f->p[i][j] = (f->p[i][j] - pv[i] * pv[j] / den) / FORGET;
        if (!(fabs(f->p[i][i]) < SPREAD_MAX)) { /* no new information for long: restart from these coefficients */
            fit_set(f, k[0], k[1] / f->scale[1], k[2] / f->scale[2], f->scale[1], f->scale[2]);
            return;
        }
    }
    f->k[0] = k[0];
    f->k[1] = k[1] / f->scale[1];
    f->k[2] = k[2] / f->scale[2];
}
