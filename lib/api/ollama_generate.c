/* /api/generate and /api/chat: runs a generation; its frames become NDJSON or one object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ollama.h"
#include "api/ollama_impl.h"
#include "base/time.h"
#include "request/ask.h"

#define NDJSON "application/x-ndjson"

struct run {
    struct ollama_answer *a;
    bool stream, began, failed;
    const char *reason; /* NULL: not ended, or failed */
    struct ollama_times t;
    int status;
    double retry_s;
    char *text; /* error text; owned */
};

static void run_free(void *state)
{
    struct run *x = state;
    if (!x)
        return;
    ollama_answer_free(x->a);
    free(x->text);
    free(x);
}

static void note_failure(struct run *x, int status, double retry_s, const char *text)
{
    x->failed = true;
    x->status = status;
    x->retry_s = retry_s;
    free(x->text);
    x->text = strdup(text);
}

static void send(struct generation *c, struct run *x, const char *p, size_t n)
{
    if (!x->began)
        http_begin(generation_http(c), 200, NDJSON);
    x->began = true;
    http_write(generation_http(c), p, n);
}

static void on_begin(struct generation *c)
{
    struct run *x = generation_state(c);
    if (!x->stream || x->began)
        return;
    x->began = true;
    http_begin(generation_http(c), 200, NDJSON);
}

static void on_prompt(struct generation *c, uint32_t line, const struct wire_prompt *q)
{
    struct run *x = generation_state(c);
    struct err e;
    (void)line;
    if (ollama_answer_prompt(&e, x->a, q)) {
        note_failure(x, 500, 0, e.text);
        generation_cancel(c);
    }
}

static void on_out(struct generation *c, uint32_t line, uint32_t choice, const struct wire_out *o)
{
    struct run *x = generation_state(c);
    struct err e;
    const char *p;
    size_t n = 0, before = ollama_answer_bytes(x->a);
    (void)line, (void)choice;
    if (ollama_answer_piece(&e, x->a, &p, &n, o)) {
        note_failure(x, 500, 0, e.text);
    } else if (!generation_hold(c, (int64_t)(ollama_answer_bytes(x->a) - before))) {
        note_failure(x, 503, 1, "the responses in progress use all of their memory; retry later, or request a stream");
    } else {
        if (n)
            send(c, x, p, n);
        return;
    }
    generation_cancel(c);
}

static void on_end(struct generation *c, uint32_t line, uint32_t choice, const struct wire_end *w)
{
    struct run *x = generation_state(c);
    (void)line, (void)choice;
    x->reason = w->reason == WIRE_LENGTH ? "length" : "stop";
    ollama_times(&x->t, w, generation_arrived_ns(c), generation_first_ns(c), time_now_ns());
}

/* The words of Ollama, and those of llama.cpp, which Ollama passes on since version 0.40: clients match on either. */
static void context_text(char *out, size_t n, const struct ask_context *x)
{
    snprintf(out, n,
             "the input length exceeds the context length: request (%s%llu tokens) exceeds the available context size "
             "(%llu tokens); shorten it, or raise num_ctx up to the context length of the model",
             x->at_least ? "at least " : "", (unsigned long long)x->n_prompt, (unsigned long long)x->context);
}

static void on_fail(struct generation *c, uint32_t line, uint32_t choice, const struct api_error *why)
{
    struct ask_context x;
    char text[300];
    (void)line, (void)choice;
    if (why->status == 400 && ask_context_read(&x, why->text)) {
        context_text(text, sizeof text, &x);
        note_failure(generation_state(c), why->status, why->retry_s, text);
        return;
    }
    note_failure(generation_state(c), why->status, why->retry_s, why->text);
}

/* Before the first byte the error is a status, later a line of the stream and its end. */
static void end_failed(struct generation *c, struct run *x)
{
    const char *text = x->text ? x->text : "generation was cancelled";
    if (!x->began) {
        ollama_error(generation_http(c), x->status ? x->status : 500, x->retry_s, text);
        return;
    }
    struct str w = {0};
    ollama_error_body(&w, text);
    str_add(&w, "\n", 1);
    if (!w.failed)
        http_write(generation_http(c), w.p, w.n);
    str_free(&w);
    http_end(generation_http(c));
}

static void on_done(struct generation *c)
{
    struct run *x = generation_state(c);
    struct err e;
    const char *p;
    size_t n;
    if (!x->failed && x->reason && ollama_answer_last(&e, x->a, &p, &n, x->reason, &x->t))
        note_failure(x, 500, 0, e.text);
    if (x->failed || !x->reason) {
        end_failed(c, x);
    } else if (x->stream) {
        send(c, x, p, n);
        http_end(generation_http(c));
    } else {
        http_reply(generation_http(c), 200, OLLAMA_JSON, p, n);
    }
}

static const struct generation_ops ops = {
    .begin = on_begin,
    .prompt = on_prompt,
    .out = on_out,
    .end = on_end,
    .fail = on_fail,
    .done = on_done,
    .free = run_free,
};

/* ---- requests ---- */

/* Answers a request without a prompt. The workers hold the weights, so the model counts as loaded if a worker is alive,
 * and an unload request has no effect. As in Ollama, the response is one object, streamed or not. */
static void reply_loaded(struct api *a, struct http_request *r, const struct ollama_request *q, struct run *x)
{
    struct err e;
    const char *p;
    size_t n;
    if (q->kind == OLLAMA_LOAD && !api_ready(a)) {
        ollama_error(r, 503, 1, "the model is not loaded: no worker is alive, or the server is shutting down");
        return;
    }
    ollama_times(&x->t, NULL, http_arrived_ns(r), 0, time_now_ns());
    if (ollama_answer_last(&e, x->a, &p, &n, q->kind == OLLAMA_LOAD ? "load" : "unload", &x->t))
        ollama_error(r, 500, 0, e.text);
    else
        http_reply(r, 200, OLLAMA_JSON, p, n);
}

static void start(struct api *a, struct http_request *r, struct ollama_request *q, const char *model)
{
    struct err e;
    struct generation *c;
    struct api_error why = {0};
    struct run *x = calloc(1, sizeof *x);
    const json_t *line = q->line;
    if (!x || ollama_answer_new(&e, &x->a, q, model, api_model(a)->text)) {
        ollama_error(r, 500, 0, "out of memory");
        run_free(x);
        return;
    }
    x->stream = q->stream;
    if (q->kind != OLLAMA_RUN) {
        reply_loaded(a, r, q, x);
        run_free(x);
    } else if (generation_start(&e, &c, a, r, &ops, x, &line, 1, 1, &why)) {
        ollama_error(r, why.status ? why.status : 500, why.retry_s, why.text ? why.text : e.text);
        run_free(x);
    }
}

/* The request as read by `prepare`, before its model name is checked. */
struct prepared {
    int rc;
    struct err e;
    struct ollama_request q;
};

static void prepared_free(void *p)
{
    struct prepared *d = p;
    if (!d->rc)
        ollama_request_free(&d->q);
    free(d);
}

static void prepare(struct api_parsed *p, const struct api_model *m, bool chat)
{
    struct prepared *d = calloc(1, sizeof *d);
    if (!d)
        return;
    d->rc = ollama_request_read(&d->e, &d->q, m, p->o, chat);
    p->more = d;
    p->free_more = prepared_free;
}

void ollama_generate_prepare(struct api_parsed *p, const struct api_model *m)
{
    prepare(p, m, false);
}

void ollama_chat_prepare(struct api_parsed *p, const struct api_model *m)
{
    prepare(p, m, true);
}

static void ask(struct api *a, struct http_request *r)
{
    const char *model;
    json_t *body = ollama_body(a, r, &model);
    if (!body)
        return;
    struct api_parsed *p = api_body(r);
    struct prepared *d = p ? p->more : NULL;
    bool moved = d && !p->kept;
    if (moved)
        p->more = NULL, p->free_more = NULL;
    if (!d)
        ollama_error(r, 500, 0, "out of memory");
    else if (d->rc)
        ollama_error(r, d->rc == ERR_NO ? 400 : 500, 0, d->e.text);
    else
        start(a, r, &d->q, model);
    if (moved)
        prepared_free(d);
    json_decref(body);
}

void ollama_generate_route(struct api *a, struct http_request *r)
{
    ask(a, r);
}

void ollama_chat_route(struct api *a, struct http_request *r)
{
    ask(a, r);
}
