/* Counts requests, answers and tokens as they happen. */
#include "api/metrics.h"

#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"
#include "request/reply.h"

/* Statuses of responses; column 0: the client disconnected; column 1: any other. */
static const int codes[METRICS_CODES] = {0,   1,   200, 204, 301, 304, 400, 401, 403, 404, 405, 408,
                                         411, 413, 414, 415, 422, 429, 431, 500, 501, 503, 504, 505};

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

static size_t dialect_index(int dialect)
{
    return dialect == API_OLLAMA ? 1 : 0;
}

struct plan {
    struct histogram *h;
    struct bounds b;
};

#define HISTOGRAMS 22

/* Lists all histograms with their bounds. */
static void list_histograms(struct plan out[HISTOGRAMS], struct metrics *m)
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
        {&m->stage_tokenize, bounds_stage},
        {&m->stage_queue, bounds_stage},
        {&m->stage_prefill, bounds_stage},
        {&m->stage_transfer, bounds_stage},
        {&m->stage_transfer_in, bounds_stage},
        {&m->stage_decode, bounds_stage},
        {&m->http_seconds[0], bounds_stage},
        {&m->http_seconds[1], bounds_stage},
    };
    memcpy(out, plan, sizeof plan);
}

static int new_histograms(struct err *e, struct metrics *m)
{
    struct plan plan[HISTOGRAMS];
    int rc = 0;
    list_histograms(plan, m);
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

/* rate() misses the first event of a series that begins with it. So series that show trouble exist from the start, with
 * 0. */
static void preset_series(struct metrics *m)
{
    static const struct {
        const char *route;
        int dialect, n_code, code[8];
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
            r->shown[dialect_index(rows[i].dialect)] |= 1u << column_of(rows[i].code[k]);
    }
}

int metrics_new(struct err *e, struct metrics **out, const char *model_name, uint64_t context)
{
    struct metrics *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_nomem(e, "metrics", sizeof *m);
    m->http[m->n_http++].route = "other";
    preset_series(m);
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
    list_histograms(plan, m);
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

/* As in vLLM, tokens that arrive together count as one latency. */
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

/* vLLM's intervals. Queue: from submit until a worker begins to compute. Prefill: from there to the first token.
 * Decode: to the last token, by the worker's clock; if an attempt failed before, the last worker knows only its own
 * part, and the gateway's longer interval counts. */
static void observe_vllm(struct metrics *m, const struct metrics_end *x, const struct wire_end *w)
{
    const struct wire_span *wait = reply_span(w, "sched"), *prefill = reply_span(w, "prefill");
    const struct wire_span *decode = reply_span(w, "decode"), *first = prefill ? prefill : decode;
    double queue = 0, work = 0, rest = since(w->first_ns, w->last_ns);
    if (wait)
        queue += since(wait->queued_ns, wait->start_ns);
    if (first) {
        bool one_clock = !decode || reply_same_host(first, decode); /* first_ns is by decode's clock */
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

/* A stage that a request did not pass through is not counted for it. */
static void observe_stages(struct metrics *m, const struct wire_end *w)
{
    const struct wire_span *tokenize = reply_span(w, "tokenize"), *prefill = reply_span(w, "prefill");
    const struct wire_span *hand = reply_span(w, "hand-over"), *decode = reply_span(w, "decode");
    struct reply_times t;
    reply_times(&t, w);
    if (tokenize)
        histogram_observe(&m->stage_tokenize, since(tokenize->start_ns, tokenize->end_ns));
    if (prefill || decode) {
        histogram_observe(&m->stage_queue, seconds(t.queue_ns));
        histogram_observe(&m->stage_prefill, seconds(t.prefill_ns));
    }
    if (prefill && decode && reply_same_host(prefill, decode) && prefill->pid != decode->pid)
        histogram_observe(&m->stage_transfer, seconds(t.transfer_ns));
    if (hand)
        histogram_observe(&m->stage_transfer_in, since(hand->start_ns, hand->end_ns));
    if (decode)
        histogram_observe(&m->stage_decode, seconds(t.decode_ns));
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

/* Only complete answers enter the distributions: a cancelled one does not show how long one takes. */
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
    observe_vllm(m, x, w);
    observe_stages(m, w);
}

/* ---- HTTP ---- */

void metrics_http(struct metrics *m, int dialect, const char *route, int status, double took_s)
{
    size_t s = dialect_index(dialect);
    row_of(m, route)->n[s][column_of(status)]++;
    histogram_observe(&m->http_seconds[s], took_s);
}

void metrics_client_disconnected(struct metrics *m)
{
    m->client_disconnected++;
}
