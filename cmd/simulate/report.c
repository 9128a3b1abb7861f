/* Percentiles, and the requests that met the service levels. */
#include <math.h>
#include <stdlib.h>

#include "cmd/simulate/simulate.h"

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void percentiles(double out[4], double *v, size_t n)
{
    static const double p[3] = {0.5, 0.9, 0.99};
    double sum = 0;
    qsort(v, n, sizeof *v, by_value);
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    for (int k = 0; k < 3; k++)
        out[k] = n ? v[(size_t)ceil(p[k] * (double)n) - 1] : 0;
    out[3] = n ? sum / (double)n : 0;
}

int report_make(struct err *e, struct report *r, const struct trace *t, uint64_t slo_ttft_ns, uint64_t slo_tpot_ns,
                uint64_t end_ns)
{
    double *ttft = calloc(2 * t->n + 2, sizeof *ttft), prompt = 0, cached = 0;
    if (!ttft)
        return err_nomem(e, "the report", 2 * t->n * sizeof *ttft);
    double *tpot = ttft + t->n;
    *r = (struct report){.n = t->n};
    size_t n_tpot = 0;
    for (size_t i = 0; i < t->n; i++) {
        const struct request *q = &t->v[i];
        r->n_refused += q->refused;
        r->n_failed += q->failed;
        if (!q->done)
            continue;
        double first = (double)(q->first_ns - q->at_ns);
        double each = q->n_received > 1 ? (double)(q->last_ns - q->first_ns) / (q->n_received - 1) : 0;
        prompt += q->n_prompt;
        cached += q->cached;
        ttft[r->n_done++] = first / 1e6;
        if (q->n_received > 1)
            tpot[n_tpot++] = each / 1e6;
        r->n_good += (!slo_ttft_ns || first <= (double)slo_ttft_ns) && (!slo_tpot_ns || each <= (double)slo_tpot_ns);
    }
    percentiles(r->ttft_ms, ttft, r->n_done);
    percentiles(r->tpot_ms, tpot, n_tpot);
    free(ttft);
    r->seconds = (double)end_ns / 1e9;
    r->attained = t->n ? (double)r->n_good / (double)t->n : 0;
    double span = t->n ? (double)t->v[t->n - 1].at_ns / 1e9 : 0;
    r->goodput = span > 0 ? (double)r->n_good / span : 0;
    r->hit = prompt > 0 ? cached / prompt : 0;
    return 0;
}
