/* Arrival times of requests: Poisson, bursts, even, and ramps, as defined by `vllm bench serve`. */
#include <math.h>

#include "load/load.h"

double load_plan_rate(const struct load_plan *p, uint64_t i, uint64_t n)
{
    double progress = n > 1 ? (double)i / (double)(n - 1) : 0;
    switch (p->ramp) {
    case LOAD_LINEAR:
        return p->ramp_from + (p->ramp_to - p->ramp_from) * progress;
    case LOAD_EXPONENTIAL:
        return p->ramp_from * pow(p->ramp_to / p->ramp_from, progress);
    case LOAD_STEADY:
        break;
    }
    return p->rate;
}

/* The time of n requests is n times the mean of 1/rate over them: log(k)/(k - 1)/from for a linear ramp by the factor
 * k, (1 - 1/k)/log(k)/from for an exponential one. */
uint64_t load_plan_count(const struct load_plan *p, double seconds)
{
    double n = p->rate * seconds, k = p->ramp_to / p->ramp_from;
    if (p->ramp != LOAD_STEADY) {
        n = p->ramp_from * seconds;
        if (fabs(k - 1) > 1e-6)
            n *= p->ramp == LOAD_LINEAR ? (k - 1) / log(k) : log(k) / (1 - 1 / k);
    }
    return n < 1 ? 1 : n > 1e9 ? (uint64_t)1e9 : (uint64_t)ceil(n * (1 - 1e-12)); /* 0.1 · 30 must give 3 */
}

void load_plan_arrivals(double *at_s, const struct load_plan *p, uint64_t n)
{
    struct load_rng r;
    double at = 0;
    load_rng_start(&r, p->seed, 0);
    for (uint64_t i = 0; i < n; i++) {
        double rate = load_plan_rate(p, i, n);
        if (!isinf(rate))
            at += isinf(p->burstiness) ? 1 / rate : load_rng_gamma(&r, p->burstiness, 1 / (rate * p->burstiness));
        at_s[i] = at;
    }
    double last = p->within_s > 0 ? p->within_s : p->ramp == LOAD_STEADY && !isinf(p->rate) ? (double)n / p->rate : 0;
    double stretch = last > 0 && at > 0 ? last / at : 1;
    for (uint64_t i = 0; i < n; i++)
        at_s[i] *= stretch;
}
