/* The OpenAI dialect: its routes, and completions from request to response. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/openai.h"
#include "request/ask.h"

#define EVENTS "text/event-stream; charset=utf-8"
#define JSON "application/json"

#define STREAM_ENTRIES_MAX 32768 /* log-probabilities of echoed prompts, which are written at once */

struct completion {
    struct openai_request q;
    struct openai_reply p;
    struct openai_refusal no; /* status not 0: failed */
    double retry_s;
    bool begun;            /* http_begin was called */
    uint64_t entries, ids; /* log-probabilities, and ids of prompts, in the response */
    uint64_t entries_max;  /* of each of them */
};

/* ---- errors ---- */

void openai_refuse_reply(struct http_request *r, const struct openai_refusal *no, double retry_s)
{
    struct str w = {0};
    char seconds[24];
    openai_error_write(&w, no);
    if (retry_s > 0) {
        snprintf(seconds, sizeof seconds, "%.0f", retry_s < 1 ? 1 : retry_s);
        http_add_header(r, "Retry-After", seconds);
        snprintf(seconds, sizeof seconds, "%.0f", retry_s * 1e3);
        http_add_header(r, "retry-after-ms", seconds);
    }
    http_reply(r, no->status, JSON, w.p, w.n);
    str_free(&w);
}

void openai_error(struct http_request *r, int status, const char *param, double retry_s, const char *text)
{
    struct openai_refusal no = {0};
    openai_refuse(&no, status, param, "%s", text);
    openai_refuse_reply(r, &no, retry_s);
}

/* ---- a completion ---- */

/* Sends all events in one piece, so that none is split over packets. */
static void send_out(struct completion *s, struct http_request *r)
{
    if (!s->p.out.n)
        return;
    if (!s->begun)
        http_begin(r, 200, EVENTS);
    s->begun = true;
    http_write(r, s->p.out.p, s->p.out.n);
    str_clear(&s->p.out);
}

/* So that proxies and clients see a response while the prompt waits and is computed. */
static void on_begin(struct generation *c)
{
    struct completion *s = generation_state(c);
    if (!s->q.stream || s->begun)
        return;
    s->begun = true;
    http_begin(generation_http(c), 200, EVENTS);
}

static void cancel(struct generation *c, int status, double retry_s, const char *param, const char *text)
{
    struct completion *s = generation_state(c);
    s->no.status = status;
    s->retry_s = retry_s;
    snprintf(s->no.param, sizeof s->no.param, "%s", param);
    snprintf(s->no.text, sizeof s->no.text, "%s", text);
    generation_cancel(c);
}

/* Log-probabilities are some 100 bytes each, a thousand times as much as the text that they are of. False: cancelled.
 */
static bool check_entries(struct generation *c, const char *param, uint64_t n, uint64_t most, const char *of)
{
    const struct completion *s = generation_state(c);
    char text[300];
    if (n <= most)
        return true;
    snprintf(text, sizeof text,
             "%s: %llu entries (%s, times the number requested for each), the limit of this server is %llu "
             "(--max-logprob-entries): request "
             "fewer log-probabilities or tokens%s",
             param, (unsigned long long)n, of, (unsigned long long)most,
             s->q.stream || s->q.prompt_logprobs ? "" : ", or a stream");
    cancel(c, 400, 0, param, text);
    return false;
}

static bool check_prompt(struct generation *c, const struct wire_prompt *q)
{
    struct completion *s = generation_state(c);
    const struct openai_request *o = &s->q;
    uint64_t n_top = o->echo && o->logprobs && o->n_top > o->n_prompt_top ? o->n_top : o->n_prompt_top;
    uint64_t most = o->stream && s->entries_max > STREAM_ENTRIES_MAX ? STREAM_ENTRIES_MAX : s->entries_max;
    bool listed = o->prompt_logprobs || (o->echo && o->logprobs);
    s->entries += (uint64_t)q->n_prompt * (listed ? n_top + !n_top : 0) * (o->echo && o->logprobs ? o->n : 1);
    if (listed && !check_entries(c, o->prompt_logprobs ? "prompt_logprobs" : "logprobs", s->entries, most,
                                 "tokens of the prompts"))
        return false;
    s->ids += o->token_ids ? (uint64_t)q->n_prompt * o->n : 0;
    return check_entries(c, "return_token_ids", s->ids, s->entries_max, "tokens of the prompts");
}

static void on_prompt(struct generation *c, uint32_t line, const struct wire_prompt *q)
{
    struct completion *s = generation_state(c);
    struct err e;
    if (!check_prompt(c, q))
        return;
    if (openai_reply_prompt(&e, &s->p, line, q)) {
        cancel(c, 500, 0, "", e.text);
    }
}

/* Counts what was added to the response; false: there is no room for it, and the generation has ended. */
static bool hold(struct generation *c, size_t before)
{
    const struct completion *s = generation_state(c);
    if (generation_hold(c, (int64_t)(s->p.n_bytes - before)))
        return true;
    cancel(c, 503, 1, "", "the responses in progress use all of their memory; retry later, or request a stream");
    return false;
}

static void on_out(struct generation *c, uint32_t line, uint32_t choice, const struct wire_out *o)
{
    struct completion *s = generation_state(c);
    size_t before = s->p.n_bytes;
    openai_reply_out(&s->p, line, choice, o);
    if (s->q.stream) {
        generation_flush_later(c);
        return;
    }
    if (!list_empty(&s->p.pending))
        generation_work_later(c);
    if (hold(c, before) && !o->prompt && s->q.logprobs)
        (void)check_entries(c, "logprobs", s->entries += (uint64_t)o->n_lp * (s->q.n_top + !s->q.n_top), s->entries_max,
                            "tokens of the response");
}

static bool on_work(struct generation *c)
{
    struct completion *s = generation_state(c);
    size_t before = s->p.n_bytes;
    bool more = openai_logprobs_work(&s->p);
    return !hold(c, before) || more;
}

static void on_end(struct generation *c, uint32_t line, uint32_t choice, const struct wire_end *w)
{
    struct completion *s = generation_state(c);
    openai_reply_end(&s->p, line, choice, w);
    if (s->q.stream)
        generation_flush_later(c);
}

static void on_flush(struct generation *c)
{
    struct completion *s = generation_state(c);
    openai_reply_flush(&s->p);
    send_out(s, generation_http(c));
}

/* In a list of prompts the error names the index: "prompt[2]: …". Errors of other fields apply to all prompts. */
static void on_fail(struct generation *c, uint32_t line, uint32_t choice, const struct api_error *why)
{
    struct completion *s = generation_state(c);
    struct ask_context numbers;
    (void)choice;
    s->no.status = why->status;
    s->no.context = why->status == 400 && ask_context_read(&numbers, why->text);
    s->retry_s = why->retry_s;
    openai_param_of(s->no.param, sizeof s->no.param, why->text);
    if (s->q.list && !strncmp(why->text, "prompt", 6) && (why->text[6] == ':' || why->text[6] == '['))
        snprintf(s->no.text, sizeof s->no.text, "prompt[%u]%s", line, why->text + 6);
    else if (s->q.list && why->status == 400 && !*s->no.param)
        snprintf(s->no.text, sizeof s->no.text, "prompt[%u]: %s", line, why->text);
    else
        snprintf(s->no.text, sizeof s->no.text, "%s", why->text);
    *s->no.param = 0;
    if (why->status == 400)
        openai_param_of(s->no.param, sizeof s->no.param, s->no.text);
}

static void fail_stream(struct completion *s)
{
    struct str *w = &s->p.out;
    openai_reply_flush(&s->p);
    str_add_text(w, "data: ");
    openai_error_write(w, &s->no);
    str_add_text(w, "\n\ndata: [DONE]\n\n");
}

static void on_done(struct generation *c)
{
    struct completion *s = generation_state(c);
    struct http_request *r = generation_http(c);
    if (s->no.status && !s->begun) {
        openai_refuse_reply(r, &s->no, s->retry_s);
        return;
    }
    if (!s->q.stream) {
        openai_reply_whole(&s->p);
        if (openai_reply_failed(&s->p))
            openai_error(r, 500, NULL, 0, "out of memory");
        else
            http_reply_parts(r, 200, JSON, s->p.part, s->p.n_part);
        return;
    }
    if (s->no.status)
        fail_stream(s);
    else
        openai_reply_last(&s->p);
    send_out(s, r);
    http_end(r);
}

static void on_free(void *state)
{
    struct completion *s = state;
    openai_reply_close(&s->p);
    openai_request_free(&s->q);
    free(s);
}

static const struct generation_ops ops = {
    .begin = on_begin,
    .prompt = on_prompt,
    .out = on_out,
    .end = on_end,
    .fail = on_fail,
    .flush = on_flush,
    .work = on_work,
    .done = on_done,
    .free = on_free,
};

static void complete(struct api *a, struct http_request *r, bool chat)
{
    struct err e = {0};
    struct generation *c;
    struct api_error why;
    struct openai_refusal no = {0};
    struct completion *s = calloc(1, sizeof *s);
    if (!s) {
        openai_error(r, 500, NULL, 0, "out of memory");
        return;
    }
    if (openai_request_read(&no, &s->q, a, r, chat)) {
        openai_refuse_reply(r, &no, 0);
        openai_request_free(&s->q);
        free(s);
        return;
    }
    s->entries_max = api_options(a)->logprob_entries_max;
    if (openai_reply_open(&e, &s->p, &s->q, api_model(a)->text)) {
        openai_error(r, 500, NULL, 0, e.text);
        on_free(s);
        return;
    }
    if (generation_start(&e, &c, a, r, &ops, s, (const json_t *const *)s->q.line, s->q.n_line, s->q.n, &why)) {
        openai_error(r, why.status, NULL, why.retry_s, why.text);
        on_free(s);
        return;
    }
    openai_request_sent(&s->q); /* so that a long prompt does not stay in memory while its answer is generated */
}

static void completions(struct api *a, struct http_request *r)
{
    complete(a, r, false);
}

static void chat_completions(struct api *a, struct http_request *r)
{
    complete(a, r, true);
}

/* ---- routes ---- */

const struct api_route openai_routes[] = {
    {"POST", "/v1/chat/completions", false, chat_completions, NULL},
    {"POST", "/v1/completions", false, completions, NULL},
    {"GET", "/v1/models", false, openai_models, NULL},
    {"GET", "/v1/models/*", false, openai_model, NULL},
    {"POST", "/tokenize", false, openai_tokenize, openai_tokenize_prepare},
    {"POST", "/detokenize", false, openai_detokenize, openai_detokenize_prepare},
    {"GET", "/tokenizer_info", false, openai_tokenizer_info, NULL},
    {"GET", "/health", true, openai_health, NULL},
    {"GET", "/live", true, openai_ping, NULL},
    {"GET", "/ping", true, openai_ping, NULL},
    {"POST", "/ping", true, openai_ping, NULL},
    {"GET", "/version", true, openai_version, NULL},
    {"GET", "/load", false, openai_load, NULL},
    {"GET", "/openapi.json", true, openai_spec, NULL},
    {NULL, NULL, false, NULL, NULL},
};
