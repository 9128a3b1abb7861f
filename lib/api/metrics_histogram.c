/* Histograms and their bucket bounds. */
#include <stdlib.h>

#include "api/metrics_impl.h"

#define BOUNDS(...)                                                                                                    \
    {                                                                                                                  \
        (const double[]){__VA_ARGS__}, sizeof((const double[]){__VA_ARGS__}) / sizeof(double)                          \
    }

const struct bounds bounds_ttft =
    BOUNDS(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560);
const struct bounds bounds_gap =
    BOUNDS(.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80);
const struct bounds bounds_request =
    BOUNDS(.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680);
const struct bounds bounds_step = BOUNDS(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384);
const struct bounds bounds_choices = BOUNDS(1, 2, 5, 10, 20);

/* Finer at the low end than vLLM's: a stage of a small model takes less than a millisecond. */
const struct bounds bounds_stage =
    BOUNDS(.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100);
const struct bounds bounds_lag = BOUNDS(.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5);

int bounds_125(struct err *e, struct bounds *out, uint64_t max)
{
    double *le = malloc(3 * 20 * sizeof *le); /* three per decade, and 64 bits have 20 digits */
    size_t n = 0;
    if (!le)
        return err_nomem(e, "metrics", 3 * 20 * sizeof *le);
    for (double ten = 1; n < 57 && ten <= (double)max; ten *= 10)
        for (int k = 0; k < 3; k++) {
            double v = ten * (k == 0 ? 1 : k == 1 ? 2 : 5);
            if (v <= (double)max)
                le[n++] = v;
        }
    *out = (struct bounds){le, n};
    return 0;
}

int histogram_new(struct err *e, struct histogram *h, struct bounds b)
{
    *h = (struct histogram){.le = b.le, .n_le = b.n};
    h->bucket = calloc(b.n + 1, sizeof *h->bucket);
    return h->bucket ? 0 : err_nomem(e, "metrics", (b.n + 1) * sizeof *h->bucket);
}

void histogram_free(struct histogram *h)
{
    free(h->bucket);
    *h = (struct histogram){0};
}

/* NaN and negative values count as 0: a sum must not fall. */
void histogram_observe(struct histogram *h, double v)
{
    size_t i = 0;
    if (!h->bucket)
        return;
    if (!(v > 0))
        v = 0;
    while (i < h->n_le && v > h->le[i])
        i++;
    h->bucket[i]++;
    h->n++;
    h->sum += v;
}

void histogram_add(struct histogram *h, size_t bucket, uint64_t n)
{
    if (!h->bucket || bucket > h->n_le)
        return;
    h->bucket[bucket] += n;
    h->n += n;
}
