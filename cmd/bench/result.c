/* Figures of a run, by the definitions of `vllm bench serve`: only successful requests count, a request ends with its
 * last token, and TPOT is the time after the first token divided by the tokens after it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/time.h"
#include "cmd/bench/bench.h"

const char *const fail_names[N_FAIL] = {
    [FAIL_NO] = "ok",           [FAIL_CONNECT] = "no connection",
    [FAIL_STATUS] = "status",   [FAIL_EVENT] = "error event",
    [FAIL_CUT] = "incomplete",  [FAIL_EMPTY] = "no token",
    [FAIL_TIMEOUT] = "timeout", [FAIL_OTHER] = "other",
};

static double between(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

static uint64_t out_tokens(const struct request *r)
{
    return r->reported_out != UINT32_MAX && r->reported_out ? r->reported_out : r->n_stamp;
}

static int room(struct err *e, struct result *r)
{
    uint64_t n_itl = 0;
    for (uint64_t i = 0; i < r->run->n; i++)
        n_itl += r->run->v[i]->n_stamp;
    for (int m = 0; m < N_METRIC; m++) {
        size_t n = (size_t)(m == M_ITL ? n_itl : r->run->n) + 1;
        r->v[m] = malloc(n * sizeof *r->v[m]);
        if (!r->v[m])
            return err_nomem(e, "figures", n * sizeof *r->v[m]);
    }
    return 0;
}

static void add(struct result *r, enum metric m, double v)
{
    r->v[m][r->n_v[m]++] = v;
}

static bool good(const struct opts *o, double ttft, double tpot, double e2el)
{
    return (o->slo_ms[M_TTFT] < 0 || ttft <= o->slo_ms[M_TTFT] / 1e3) &&
           (o->slo_ms[M_TPOT] < 0 || tpot <= o->slo_ms[M_TPOT] / 1e3) &&
           (o->slo_ms[M_E2EL] < 0 || e2el <= o->slo_ms[M_E2EL] / 1e3);
}

/* Queue times exist only if requests arrive by a plan and --max-concurrency may delay them. */
bool metric_made(const struct opts *o, int m)
{
    bool timed = o->plan.ramp != LOAD_STEADY || !isinf(o->plan.rate) || o->dataset == DATA_TRACE;
    return o->shown[m] && (m < M_QUEUE || (o->max_concurrency && (m == M_QUEUE || timed)));
}

static void count(struct result *r, const struct request *x, uint64_t *n_good)
{
    uint64_t n_out = out_tokens(x);
    double ttft = between(x->start_ns, x->stamp[0]), e2el = between(x->start_ns, x->stamp[x->n_stamp - 1]);
    double tpot = n_out > 1 ? (e2el - ttft) / (double)(n_out - 1) : 0, queue = between(x->arrive_ns, x->start_ns);
    r->completed++;
    r->total_in += x->reported_prompt != UINT32_MAX ? x->reported_prompt : x->n_prompt;
    r->total_out += n_out;
    add(r, M_TTFT, ttft);
    add(r, M_E2EL, e2el);
    if (n_out > 1)
        add(r, M_TPOT, tpot);
    for (uint32_t k = 1; k < x->n_stamp; k++)
        add(r, M_ITL, between(x->stamp[k - 1], x->stamp[k]));
    if (r->opts->max_concurrency)
        add(r, M_QUEUE, queue);
    bool timed = r->opts->plan.ramp != LOAD_STEADY || !isinf(r->opts->plan.rate);
    if (r->opts->max_concurrency && (timed || r->opts->dataset == DATA_TRACE))
        add(r, M_E2EL_QUEUE, e2el + queue);
    *n_good += r->opts->goodput && good(r->opts, ttft, tpot, e2el);
}

/* Tokens, and requests in flight, in each whole second from the first request on. */
static int peaks(struct err *e, struct result *r)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (uint64_t i = 0; i < r->run->n; i++) {
        const struct request *x = r->run->v[i];
        if (x->over && !x->fail) {
            first = x->start_ns < first ? x->start_ns : first;
            last = x->stamp[x->n_stamp - 1] > last ? x->stamp[x->n_stamp - 1] : last;
        }
    }
    if (!last)
        return 0;
    size_t n = (size_t)((last - first) / NS_S) + 2;
    uint64_t *tokens = calloc(2 * n, sizeof *tokens);
    if (!tokens)
        return err_nomem(e, "seconds", 2 * n * sizeof *tokens);
    uint64_t *lived = tokens + n;
    for (uint64_t i = 0; i < r->run->n; i++) {
        const struct request *x = r->run->v[i];
        if (!x->over || x->fail)
            continue;
        for (uint32_t k = 0; k < x->n_stamp; k++)
            tokens[(x->stamp[k] - first) / NS_S]++;
        uint64_t to = (x->stamp[x->n_stamp - 1] - first) / NS_S;
        for (uint64_t k = (x->start_ns - first) / NS_S; k <= to; k++)
            lived[k]++;
    }
    for (size_t k = 0; k < n; k++) {
        r->peak_out_rate = (double)tokens[k] > r->peak_out_rate ? (double)tokens[k] : r->peak_out_rate;
        r->peak_concurrent = lived[k] > r->peak_concurrent ? lived[k] : r->peak_concurrent;
    }
    free(tokens);
    return 0;
}

/* Delay of sending against the plan, of requests that did not wait for --max-concurrency. */
static int lag(struct err *e, struct result *r)
{
    double *v = malloc((r->run->n + 1) * sizeof *v);
    size_t n = 0;
    if (!v)
        return err_nomem(e, "lags", (r->run->n + 1) * sizeof *v);
    for (uint64_t i = 0; i < r->run->n; i++)
        if (!r->run->v[i]->held)
            v[n++] = between(r->run->v[i]->arrive_ns, r->run->v[i]->start_ns);
    load_sort(v, n);
    r->lag_p99_s = load_percentile(v, n, 99);
    r->lag_max_s = load_percentile(v, n, 100);
    free(v);
    return 0;
}

void result_date(struct result *r)
{
    time_t now = time(NULL);
    struct tm tm;
    strftime(r->date, sizeof r->date, "%Y%m%d-%H%M%S", localtime_r(&now, &tm));
}

int result_make(struct err *e, struct result *r, const struct opts *o, const struct server *s, const struct run *run)
{
    uint64_t n_good = 0;
    *r = (struct result){.run = run, .opts = o, .server = s, .duration_s = between(run->begin_ns, run->end_ns)};
    result_date(r);
    if (room(e, r))
        return e->code;
    for (uint64_t i = 0; i < run->n; i++) {
        const struct request *x = run->v[i];
        if (x->over && !x->fail)
            count(r, x, &n_good);
        else if (x->over)
            r->n_fail[x->fail]++, r->failed++;
    }
    for (int m = 0; m < N_METRIC; m++) {
        load_sort(r->v[m], r->n_v[m]);
        r->stat[m] = load_stat(r->v[m], r->n_v[m]);
    }
    double s_all = r->duration_s > 0 ? r->duration_s : 1e-9;
    r->request_rate = (double)r->completed / s_all;
    r->goodput = (double)n_good / s_all;
    r->out_rate = (double)r->total_out / s_all;
    r->total_rate = (double)(r->total_in + r->total_out) / s_all;
    int rc = lag(e, r);
    return rc ? rc : peaks(e, r);
}

void result_free(struct result *r)
{
    for (int m = 0; m < N_METRIC; m++)
        free(r->v[m]);
    *r = (struct result){0};
}

void percentile_word(char out[32], double p)
{
    snprintf(out, 32, "p%.10g", p);
}
