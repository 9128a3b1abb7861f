/* Seeded random numbers: splitmix64, and the gamma distribution by Marsaglia and Tsang, "A simple method for generating
 * gamma variables" (2000). */
#include <math.h>

#include "base/map.h"
#include "load/load.h"

void load_rng_start(struct load_rng *r, uint64_t seed, uint64_t stream)
{
    r->s = map_mix(map_mix(seed + 0x9e3779b97f4a7c15ull) ^ map_mix(stream ^ 0xd1b54a32d192ed03ull));
}

uint64_t load_rng_next(struct load_rng *r)
{
    return map_mix(r->s += 0x9e3779b97f4a7c15ull);
}

uint64_t load_rng_below(struct load_rng *r, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)load_rng_next(r) * n) >> 64);
}

double load_rng_unit(struct load_rng *r)
{
    return ((double)(load_rng_next(r) >> 12) + 0.5) * 0x1p-52;
}

static double normal(struct load_rng *r)
{
    double radius = sqrt(-2 * log(load_rng_unit(r)));
    return radius * cos(2 * M_PI * load_rng_unit(r));
}

double load_rng_gamma(struct load_rng *r, double shape, double scale)
{
    if (shape == 1)
        return -log(load_rng_unit(r)) * scale;
    double lift = 1;
    if (shape < 1) { /* gamma(shape) = gamma(shape + 1) · U^(1 / shape) */
        lift = pow(load_rng_unit(r), 1 / shape);
        shape += 1;
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(r), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(load_rng_unit(r)) < x * x / 2 + d - d * v + d * log(v))
            return d * v * scale * lift;
    }
}
