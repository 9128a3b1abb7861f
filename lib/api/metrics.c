/* What is counted of requests, answers and tokens, as they happen. */
#include "api/metrics.h"

#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"
#include "request/reply.h"

/* Statuses that an answer can have; column 0: its client had gone, column 1: any other. */
static const int codes[METRICS_CODES] = {0,   1,   200, 204, 301, 304, 400, 401, 403, 404, 405, 408,
                                         411, 413, 415, 417, 422, 429, 431, 500, 501, 503, 504, 505};

int metrics_code(size_t column)
{
    return codes[column];
}

static size_t column_of(int status)
{
    for (size_t i = 0; i < METRICS_CODES; i++)
        if (codes[i] == status && status != 1)
            return i;
    return 1;
}

static size_t surface_of(int surface)
{
    return surface == API_OLLAMA ? 1 : 0;
}

struct plan {
    struct histogram *h;
    struct bounds b;
};

#define HISTOGRAMS 22

/* All that there are. */
static void plan_of(struct plan out[HISTOGRAMS], struct metrics *m)
{
    const struct plan plan[HISTOGRAMS] = {
        {&m->ttft, bounds_ttft},
        {&m->gap, bounds_gap},
        {&m->per_token, bounds_gap},
        {&m->e2e, bounds_request},
        {&m->queue, bounds_request},
        {&m->prefill, bounds_request},
        {&m->decode, bounds_request},
        {&m->inference, bounds_request},
        {&m->prompt, m->tokens},
        {&m->answer, m->tokens},
        {&m->computed, m->tokens},
        {&m->max_tokens, m->tokens},
        {&m->most_tokens, m->tokens},
        {&m->choices, bounds_choices},
        {&m->phase_tokenize, bounds_phase},
        {&m->phase_queue, bounds_phase},
        {&m->phase_prefill, bounds_phase},
        {&m->phase_transfer, bounds_phase},
        {&m->phase_handover, bounds_phase},
        {&m->phase_decode, bounds_phase},
        {&m->http_seconds[0], bounds_phase},
        {&m->http_seconds[1], bounds_phase},
    };
    memcpy(out, plan, sizeof plan);
}

static int new_histograms(struct err *e, struct metrics *m)
{
    struct plan plan[HISTOGRAMS];
    int rc = 0;
    plan_of(plan, m);
    for (size_t i = 0; i < HISTOGRAMS && !rc; i++)
        rc = histogram_new(e, plan[i].h, plan[i].b);
    return rc;
}

static struct http_row *row_of(struct metrics *m, const char *route)
{
    for (size_t i = 0; i < m->n_http; i++)
        if (m->http[i].route == route || !strcmp(m->http[i].route, route))
            return &m->http[i];
    if (m->n_http == METRICS_ROUTES_MAX)
        return &m->http[0];
    m->http[m->n_http].route = route;
    return &m->http[m->n_http++];
}

/* A rate does not see the first event of a series that begins with it: those that tell of trouble are there before. */
static void show_from_the_start(struct metrics *m)
{
    static const struct {
        const char *route;
        int surface, n_code, code[8];
    } rows[] = {
        {"other", API_OPENAI, 2, {404, 400}},
        {"other", API_OLLAMA, 2, {404, 400}},
        {"/metrics", API_OPENAI, 1, {200}},
        {"/v1/completions", API_OPENAI, 7, {200, 400, 404, 429, 500, 503, 0}},
        {"/v1/chat/completions", API_OPENAI, 7, {200, 400, 404, 429, 500, 503, 0}},
        {"/api/generate", API_OLLAMA, 7, {200, 400, 404, 429, 500, 503, 0}},
        {"/api/chat", API_OLLAMA, 7, {200, 400, 404, 429, 500, 503, 0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_row *r = row_of(m, rows[i].route);
        for (int k = 0; k < rows[i].n_code; k++)
            r->shown[surface_of(rows[i].surface)] |= 1u << column_of(rows[i].code[k]);
    }
}

int metrics_new(struct err *e, struct metrics **out, const char *model_name, uint64_t context)
{
    struct metrics *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_nomem(e, "metrics", sizeof *m);
    m->http[m->n_http++].route = "other";
    show_from_the_start(m);
    m->start_s = process_start_s();
    m->model = strdup(model_name ? model_name : "");
    int rc = m->model ? bounds_125(e, &m->tokens, context) : err_nomem(e, "metrics", 0);
    rc = rc ? rc : new_histograms(e, m);
    if (rc)
        metrics_free(m);
    else
        *out = m;
    return rc;
}

void metrics_free(struct metrics *m)
{
    if (!m)
        return;
    struct plan plan[HISTOGRAMS];
    plan_of(plan, m);
    for (size_t i = 0; i < HISTOGRAMS; i++)
        histogram_free(plan[i].h);
    free((double *)m->tokens.le);
    free(m->model);
    free(m);
}

/* ---- tokens ---- */

void metrics_first(struct metrics *m, double ttft_s, uint32_t n)
{
    histogram_observe(&m->ttft, ttft_s);
    m->generation_tokens += n;
}

/* As in vLLM, what comes at once is one latency, however many tokens it has. */
void metrics_tokens(struct metrics *m, double gap_s, uint32_t n)
{
    histogram_observe(&m->gap, gap_s);
    m->generation_tokens += n;
}

/* ---- the end of a choice ---- */

static double since(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

static double seconds(uint64_t ns)
{
    return (double)ns / 1e9;
}

/* Queued: from the scheduler until a worker begins to compute. Prefill: from there to the first token. Decode: to the
 * last, by the worker's clock; an answer that was begun on a worker that died was longer under way than its last worker
 * knows, and then the edge's own clock counts. */
static void of_vllm(struct metrics *m, const struct metrics_end *x, const struct wire_end *w)
{
    const struct wire_span *wait = reply_span(w, "sched"), *prefill = reply_span(w, "prefill");
    const struct wire_span *decode = reply_span(w, "decode"), *first = prefill ? prefill : decode;
    double queue = 0, work = 0, rest = since(w->first_ns, w->last_ns);
    if (wait)
        queue += since(wait->queued_ns, wait->start_ns);
    if (first) {
        bool one_clock = !decode || reply_same_host(first, decode); /* first_ns is of decode's */
        queue += since(first->queued_ns, first->start_ns);
        work = since(first->start_ns, one_clock ? w->first_ns : first->end_ns);
    }
    if (x->last_s > rest)
        rest = x->last_s;
    histogram_observe(&m->queue, queue);
    histogram_observe(&m->prefill, work);
    histogram_observe(&m->decode, rest);
    histogram_observe(&m->inference, work + rest);
    histogram_observe(&m->per_token, w->completion_tokens > 1 ? rest / (w->completion_tokens - 1) : 0);
}

/* A phase that a request did not go through is not counted for it. */
static void of_phases(struct metrics *m, const struct wire_end *w)
{
    const struct wire_span *tokenize = reply_span(w, "tokenize"), *prefill = reply_span(w, "prefill");
    const struct wire_span *hand = reply_span(w, "hand-over"), *decode = reply_span(w, "decode");
    struct reply_times t;
    reply_times(&t, w);
    if (tokenize)
        histogram_observe(&m->phase_tokenize, since(tokenize->start_ns, tokenize->end_ns));
    if (prefill || decode) {
        histogram_observe(&m->phase_queue, seconds(t.queue_ns));
        histogram_observe(&m->phase_prefill, seconds(t.prefill_ns));
    }
    if (prefill && decode && reply_same_host(prefill, decode) && prefill->pid != decode->pid)
        histogram_observe(&m->phase_transfer, seconds(t.transfer_ns));
    if (hand)
        histogram_observe(&m->phase_handover, since(hand->start_ns, hand->end_ns));
    if (decode)
        histogram_observe(&m->phase_decode, seconds(t.decode_ns));
}

static enum metrics_reason reason_of(enum wire_reason r)
{
    switch (r) {
    case WIRE_STOP:
        return REASON_STOP;
    case WIRE_LENGTH:
        return REASON_LENGTH;
    case WIRE_CANCELLED:
        return REASON_ABORT;
    default:
        return REASON_ERROR;
    }
}

static void count_prompt(struct metrics *m, uint64_t n, uint64_t cached)
{
    m->prompt_tokens += n;
    m->cached_tokens += cached < n ? cached : n;
}

/* Distributions are of answers that came to their end, as what was cut off says nothing of how long one takes. */
void metrics_end(struct metrics *m, const struct metrics_end *x)
{
    const struct wire_end *w = x->w;
    bool whole = w && (x->reason == WIRE_STOP || x->reason == WIRE_LENGTH);
    m->ended[reason_of(x->reason)]++;
    if (w)
        count_prompt(m, w->prompt_tokens, w->cached_tokens);
    else if (x->ttft_s >= 0)
        count_prompt(m, x->n_prompt, x->n_cached);
    if (x->n_choice) {
        histogram_observe(&m->choices, x->n_choice);
        histogram_observe(&m->most_tokens, x->most_tokens);
    }
    if (!whole)
        return;
    histogram_observe(&m->e2e, x->e2e_s);
    histogram_observe(&m->prompt, w->prompt_tokens);
    histogram_observe(&m->answer, w->completion_tokens);
    histogram_observe(&m->computed, w->prompt_tokens - (double)w->cached_tokens);
    if (x->max_tokens && x->max_tokens != UINT32_MAX)
        histogram_observe(&m->max_tokens, x->max_tokens);
    of_vllm(m, x, w);
    of_phases(m, w);
}

/* ---- HTTP ---- */

void metrics_http(struct metrics *m, int surface, const char *route, int status, double took_s)
{
    size_t s = surface_of(surface);
    row_of(m, route)->n[s][column_of(status)]++;
    histogram_observe(&m->http_seconds[s], took_s);
}

void metrics_client_gone(struct metrics *m)
{
    m->client_gone++;
}
