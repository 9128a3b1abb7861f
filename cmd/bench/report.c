/* The table on stdout. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd/bench/bench.h"

#define ERRORS_SHOWN 10

static void counts(const struct result *r)
{
    const struct run *run = r->run;
    printf("%-12s %" PRIu64 " done, %" PRIu64 " failed in %.2f s: %.2f a second\n", "requests", r->completed, r->failed,
           r->duration_s, r->request_rate);
    if (run->interrupted)
        printf("%-12s %" PRIu64 " were in flight and are not counted\n", "interrupted", run->n_cut);
    if (r->opts->goodput)
        printf("%-12s %.2f requests a second\n", "goodput", r->goodput);
    printf("%-12s %" PRIu64 " in, %" PRIu64 " out: %.1f out a second, %.1f in all; in the best second %.0f out\n",
           "tokens", r->total_in, r->total_out, r->out_rate, r->total_rate, r->peak_out_rate);
    printf("%-12s %" PRIu64 " at a time at most\n", "concurrency", run->n_in_flight_max);
}

static void latencies(const struct result *r)
{
    char word[32];
    printf("\n%-12s %10s %10s %10s", "ms", "mean", "median", "std");
    for (size_t i = 0; i < r->opts->n_percentile; i++) {
        percentile_word(word, r->opts->percentile[i]);
        printf(" %10s", word);
    }
    printf("\n");
    for (int m = 0; m < N_METRIC; m++) {
        if (!metric_made(r->opts, m))
            continue;
        printf("%-12s %10.2f %10.2f %10.2f", metric_names[m].title, r->stat[m].mean * 1e3, r->stat[m].median * 1e3,
               r->stat[m].std * 1e3);
        for (size_t i = 0; i < r->opts->n_percentile; i++)
            printf(" %10.2f", load_percentile(r->v[m], r->n_v[m], r->opts->percentile[i]) * 1e3);
        printf("\n");
    }
}

static void own(const struct result *r)
{
    const struct run *run = r->run;
    double per_event = run->n_event ? run->cpu_s / (double)run->n_event * 1e6 : 0;
    printf(
        "\nof bench itself: %.1f us of CPU an event; sent after the plan p99 %.2f ms, at most %.2f ms; stamped after "
        "readable p99 %.2f ms, at most %.2f ms\n",
        per_event, r->lag_p99_s * 1e3, r->lag_max_s * 1e3, run_delay_s(run, 99) * 1e3, run_delay_s(run, 100) * 1e3);
}

/* A server's text may contain control characters, which a terminal would execute. */
static void print_safe(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        putchar(high || *c < 0x20 || *c == 0x7f ? ' ' : *c);
        c += high;
    }
}

static void errors(const struct result *r)
{
    uint64_t shown = 0;
    if (!r->failed)
        return;
    printf("\nfailed:");
    for (int f = 1; f < N_FAIL; f++)
        if (r->n_fail[f])
            printf(" %s %" PRIu64, fail_names[f], r->n_fail[f]);
    printf("\n");
    for (uint64_t i = 0; i < r->run->n && shown < ERRORS_SHOWN; i++) {
        const struct request *x = r->run->v[i];
        if (!x->over || !x->fail)
            continue;
        printf("%8" PRIu64 "  %s: ", i, fail_names[x->fail]);
        print_safe(x->error ? x->error : "");
        printf("\n");
        shown++;
    }
    if (r->failed > shown)
        printf("          and %" PRIu64 " more\n", r->failed - shown);
}

int report_print(struct err *e, const struct result *r)
{
    (void)e;
    counts(r);
    latencies(r);
    own(r);
    errors(r);
    return 0;
}
