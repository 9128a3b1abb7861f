/* Mean, median, standard deviation and percentiles, by numpy's default definitions. */
#include <math.h>
#include <stdlib.h>

#include "load/load.h"

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void load_sort(double *v, size_t n)
{
    if (n)
        qsort(v, n, sizeof *v, rising);
}

double load_percentile(const double *sorted, size_t n, double p)
{
    if (!n)
        return 0;
    double at = p / 100 * (double)(n - 1);
    size_t low = (size_t)at;
    if (low + 1 >= n)
        return sorted[n - 1];
    return sorted[low] + (sorted[low + 1] - sorted[low]) * (at - (double)low);
}

struct load_stat load_stat(const double *sorted, size_t n)
{
    struct load_stat s = {0};
    double sum = 0, squares = 0;
    if (!n)
        return s;
    for (size_t i = 0; i < n; i++)
        sum += sorted[i];
    s.mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (sorted[i] - s.mean) * (sorted[i] - s.mean);
    s.std = sqrt(squares / (double)n);
    s.median = load_percentile(sorted, n, 50);
    return s;
}
