/* Private to lib/api: counters, and the page that shows them. */
#ifndef API_METRICS_IMPL_H
#define API_METRICS_IMPL_H

#include "api/metrics.h"
#include "api/stats_poller.h"
#include "base/str.h"

/* ---- metrics_histogram.c ---- */

/* A zeroed histogram ignores observations and has no buckets. */
struct histogram {
    const double *le; /* [n_le] upper bounds, rising; borrowed */
    size_t n_le;
    uint64_t *bucket; /* [n_le + 1] not cumulative; the last has no upper bound */
    uint64_t n;
    double sum;
};

struct bounds {
    const double *le;
    size_t n;
};

int histogram_new(struct err *e, struct histogram *h, struct bounds b);
void histogram_free(struct histogram *h);
void histogram_observe(struct histogram *h, double v);
void histogram_add(struct histogram *h, size_t bucket,
                   uint64_t n); /* adds n observations counted elsewhere; the caller adds to sum */

extern const struct bounds bounds_ttft, bounds_gap, bounds_request, bounds_step, bounds_choices; /* vLLM's */
extern const struct bounds bounds_stage, bounds_lag;                                             /* our own */
/* 1, 2, 5, 10 … up to max; le: malloc'd. */
int bounds_125(struct err *e, struct bounds *out, uint64_t max);

/* ---- metrics_page.c: the text format ---- */

struct page {
    struct str out;
    const char *model;  /* label of the vllm: families */
    const char *family; /* the current one */
};

struct label {
    const char *name;
    const char *value;
    size_t n; /* bytes of value */
};

struct label label_of(const char *name, const char *value);
struct label label_str(const char *name, struct wire_str value);

/* HELP and TYPE, before the samples of a family. type: counter, gauge, histogram. */
void page_family(struct page *p, const char *name, const char *type, const char *help);
void page_u64(struct page *p, const struct label *l, size_t n, uint64_t v);
void page_number(struct page *p, const struct label *l, size_t n, double v);
void page_histogram(struct page *p, const struct label *l, size_t n, const struct histogram *h);

/* ---- counters ---- */

#define METRICS_ROUTES_MAX 96 /* distinct routes; further ones count as "other" */
#define METRICS_CODES 24
#define METRICS_DIALECTS 2
#define METRICS_WORKERS_MAX 64

struct http_row {
    const char *route; /* of a route table, borrowed */
    uint64_t n[METRICS_DIALECTS][METRICS_CODES];
    uint32_t shown[METRICS_DIALECTS]; /* bit mask of columns that are written even if 0 */
};

enum metrics_reason { REASON_STOP, REASON_LENGTH, REASON_ABORT, REASON_ERROR, REASON_REPETITION, REASONS };

struct metrics {
    char *model;
    struct bounds tokens; /* owned */
    uint64_t prompt_tokens, cached_tokens, generation_tokens;
    uint64_t ended[REASONS];
    struct histogram ttft, gap, per_token, e2e, queue, prefill, decode, inference;
    struct histogram prompt, answer, computed, max_tokens, most_tokens, choices;
    struct histogram stage_tokenize, stage_queue, stage_prefill, stage_transfer, stage_transfer_in, stage_decode;
    struct histogram http_seconds[METRICS_DIALECTS];
    struct http_row http[METRICS_ROUTES_MAX];
    size_t n_http;
    uint64_t client_disconnected;
    double start_s; /* of the process, Unix time in seconds; 0 */
};

/* ---- the parts of the page ---- */

void metrics_vllm(struct page *p, const struct metrics *m, const struct metrics_now *now, const struct stats_poller *w);
void metrics_stages(struct page *p, const struct metrics *m);
void metrics_http_rows(struct page *p, const struct metrics *m, const struct metrics_now *now);
void metrics_sched(struct page *p, const struct stats_poller *w);
void metrics_store(struct page *p, const struct stats_poller *w);
void metrics_keys(struct page *p, const struct keys *k);
double process_start_s(void);
/* Status of a column; 0: the client disconnected; 1: any other. */
int metrics_code(size_t column);

#endif
