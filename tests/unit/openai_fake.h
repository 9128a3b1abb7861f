/*
 * A fake of everything below the OpenAI dialect, in one program: requests without HTTP, a server without services,
 * generations whose frames the test makes. Its vocabulary is small and needs no model: ids below 256 are bytes, then
 * SAY_* and markers.
 */
#ifndef OPENAI_FAKE_H
#define OPENAI_FAKE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/openai.h"
#include "request/ask.h"
#include "text/text_private.h"
#include "unit/text_gguf.h"
#include "unit/text_templates.h"

enum { SAY_HELLO = 256, SAY_WORLD = 257, SAY_HALF = 258, SAY_START = 259, SAY_END = 260, SAY_N = 261 };

struct http_request {
    const char *method, *path, *body, *content_type, *request_id;
    size_t n_body;
    /* the response */
    int status;
    char type[64], headers[400];
    struct str out;
    bool begun, over;
    const struct api_route *route;
    const struct api_model *model;
    struct api_parsed *parsed;
};

struct api {
    struct api_model model;
    struct api_opts o;
    bool ready;
    char log[2000];
    size_t n_log;
    unsigned n_logged; /* number of log lines */
    int full;          /* status by which generations are refused; 0: they start */
};

static int64_t fake_held_max = INT64_MAX; /* bytes of a response */

struct generation {
    struct api *a;
    struct http_request *r;
    const struct generation_ops *ops;
    void *state;
    json_t **line;
    uint32_t n_line, n;
    bool later, works;
    int64_t n_held;
};

static struct generation fake_call; /* the one in flight; state NULL: none */

/* ---- the fake server ---- */

static inline struct text *fake_text(void)
{
    static const char *const entry[] = {"Hello", "\xc4\xa0world", "\xc3\xa2\xc4\xa4", "<|im_start|>", "<|im_end|>"};
    static const uint32_t kind[] = {1, 1, 1, 3, 3};
    struct tiny_gguf w;
    struct gguf *g;
    struct text *t;
    struct err e;
    tiny_begin(&w);
    tiny_key_str(&w, "tokenizer.ggml.model", "gpt2");
    tiny_key_str(&w, "tokenizer.ggml.pre", "smollm");
    tiny_array(&w, "tokenizer.ggml.tokens", 8, SAY_N);
    for (int b = 0; b < 256; b++) {
        uint8_t s[4];
        tiny_str(&w, (const char *)s, (size_t)text_utf8_put(s, text_byte_spelling((uint8_t)b)));
    }
    for (int i = 0; i < 5; i++)
        tiny_str(&w, entry[i], strlen(entry[i]));
    tiny_array(&w, "tokenizer.ggml.token_type", 5, SAY_N);
    for (int i = 0; i < SAY_N; i++)
        tiny_u32(&w, i < 256 ? 1 : kind[i - 256]);
    tiny_array(&w, "tokenizer.ggml.merges", 8, 0);
    tiny_key_u32(&w, "tokenizer.ggml.eos_token_id", SAY_END);
    tiny_key_bool(&w, "tokenizer.ggml.add_bos_token", 0);
    tiny_key_str(&w, "tokenizer.chat_template", TEMPLATE_CHATML);
    if (tiny_open(&e, &g, &w) || text_open(&e, &t, g)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
    gguf_free(g);
    return t;
}

static inline void fake_open(struct api *a)
{
    *a = (struct api){.ready = true,
                      .o = {.default_max_tokens = 16, .logprob_entries_max = 1000},
                      .model = {.text = fake_text(),
                                .name = "smol",
                                .context = 512,
                                .vocab = SAY_N,
                                .created = 1700000000,
                                .chat_template = "{}"}};
}

static inline void fake_close(struct api *a)
{
    text_free((struct text *)(uintptr_t)a->model.text);
}

/* Set-up and tear-down of a group. */
static struct api server;

static inline int fake_setup(void **state)
{
    (void)state;
    fake_open(&server);
    return 0;
}

static inline int fake_teardown(void **state)
{
    (void)state;
    fake_close(&server);
    return 0;
}

const struct api_model *api_model(const struct api *a)
{
    return &a->model;
}

bool api_serves(const struct api *a, const char *name, bool ollama)
{
    (void)ollama;
    return !strcmp(name, a->model.name) || !strcmp(name, "alias");
}

const char *const *api_names(const struct api *a, size_t *n)
{
    static const char *const names[] = {"smol", "alias"};
    (void)a;
    *n = 2;
    return names;
}

const struct api_opts *api_options(const struct api *a)
{
    return &a->o;
}

uint64_t api_running(const struct api *a)
{
    (void)a;
    return fake_call.state != NULL;
}

bool api_ready(const struct api *a)
{
    return a->ready;
}

void api_log(struct api *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    a->n_logged++;
    int n = vsnprintf(a->log + a->n_log, sizeof a->log - a->n_log, fmt, ap);
    va_end(ap);
    if (n > 0)
        a->n_log += (size_t)n < sizeof a->log - a->n_log ? (size_t)n : sizeof a->log - a->n_log - 1;
}

const char *api_request_id(const struct http_request *r)
{
    return r->request_id ? r->request_id : "0f";
}

/* ---- HTTP ---- */

const char *http_method(const struct http_request *r)
{
    return r->method;
}

const char *http_path(const struct http_request *r)
{
    return r->path;
}

const char *http_header(const struct http_request *r, const char *name)
{
    return !strcmp(name, "Content-Type") ? r->content_type : !strcmp(name, "X-Request-Id") ? r->request_id : NULL;
}

const char *http_body(const struct http_request *r, size_t *n)
{
    *n = r->n_body;
    return r->body ? r->body : "";
}

/* Parses in this thread; tests/service/gateway.bats covers the parse thread. */
struct api_parsed *api_body(struct http_request *r)
{
    if (!r->parsed) {
        r->parsed = calloc(1, sizeof *r->parsed);
        r->parsed->n = r->n_body;
        r->parsed->rc = ask_parse(&r->parsed->e, &r->parsed->o, r->body ? r->body : "", r->n_body);
        if (!r->parsed->rc && r->route->prepare)
            r->route->prepare(r->parsed, r->model);
    }
    return r->parsed;
}

void http_add_header(struct http_request *r, const char *name, const char *value)
{
    size_t n = strlen(r->headers);
    snprintf(r->headers + n, sizeof r->headers - n, "%s: %s\n", name, value);
}

void http_begin(struct http_request *r, int status, const char *type)
{
    if (r->begun || r->over)
        abort();
    r->begun = true;
    r->status = status;
    snprintf(r->type, sizeof r->type, "%s", type);
}

void http_write(struct http_request *r, const void *p, size_t n)
{
    if (!r->begun || r->over)
        abort();
    str_add(&r->out, p, n);
}

void http_end(struct http_request *r)
{
    if (!r->begun || r->over)
        abort();
    r->over = true;
}

void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t n)
{
    http_begin(r, status, type);
    str_add(&r->out, body, n);
    r->over = true;
}

void http_reply_parts(struct http_request *r, int status, const char *type, struct str *part, size_t n)
{
    http_begin(r, status, type);
    for (size_t i = 0; i < n; i++) {
        str_add(&r->out, part[i].p, part[i].n);
        str_free(&part[i]);
    }
    r->over = true;
}

static inline void fake_free(struct http_request *r)
{
    str_free(&r->out);
    if (r->parsed && r->parsed->free_more)
        r->parsed->free_more(r->parsed->more);
    if (r->parsed)
        json_decref(r->parsed->o);
    free(r->parsed);
}

/* ---- generations ---- */

int generation_start(struct err *e, struct generation **out, struct api *a, struct http_request *r,
                     const struct generation_ops *ops, void *state, const json_t *const *line, uint32_t n_line,
                     uint32_t n, struct api_error *why)
{
    *out = NULL;
    if (a->full) {
        *why = (struct api_error){a->full, 0.25, "too many requests wait"};
        return err_set(e, ERR_NO, "%s", why->text);
    }
    fake_call = (struct generation){
        .a = a, .r = r, .ops = ops, .state = state, .n_line = n_line, .n = n, .line = calloc(n_line, 8)};
    for (uint32_t i = 0; i < n_line; i++)
        fake_call.line[i] = json_deep_copy(line[i]);
    *out = &fake_call;
    return 0;
}

void *generation_state(struct generation *c)
{
    return c->state;
}

struct http_request *generation_http(struct generation *c)
{
    return c->r;
}

void generation_flush_later(struct generation *c)
{
    c->later = true;
}

bool generation_hold(struct generation *c, int64_t more)
{
    c->n_held += more;
    return c->n_held <= fake_held_max;
}

void generation_work_later(struct generation *c)
{
    c->works = true;
}

void generation_cancel(struct generation *c)
{
    c->ops->done(c);
}

/* As the core does before it blocks. */
static inline void fake_flush(void)
{
    if (fake_call.later)
        fake_call.ops->flush(&fake_call);
    fake_call.later = false;
}

static inline void fake_drop(void)
{
    for (uint32_t i = 0; i < fake_call.n_line; i++)
        json_decref(fake_call.line[i]);
    free(fake_call.line);
    fake_call = (struct generation){0};
}

static inline void fake_gone(void)
{
    fake_call.ops->free(fake_call.state);
    fake_drop();
}

static inline void fake_done(void)
{
    while (fake_call.works && fake_call.ops->work(&fake_call)) {
    }
    fake_call.ops->done(&fake_call);
    fake_gone();
}

static inline void fake_fail(uint32_t line, int status, double retry_s, const char *text)
{
    const struct api_error why = {status, retry_s, text};
    (fake_call.ops->fail)(&fake_call, line, 0, &why); /* cmocka has a macro of that name */
    fake_done();
}

/* ---- routes ---- */

static inline const struct api_route *fake_route(const char *method, const char *path)
{
    for (const struct api_route *t = openai_routes; t->method; t++) {
        size_t n = strlen(t->path);
        bool star = t->path[n - 1] == '*';
        if (!strcmp(t->method, method) && (star ? !strncmp(t->path, path, n - 1) : !strcmp(t->path, path)))
            return t;
    }
    return NULL;
}

/* Dispatches a request as the core does; what was set in r before is kept. */
static inline void fake_ask(struct api *a, struct http_request *r, const char *method, const char *path,
                            const char *body)
{
    const struct api_route *t = fake_route(method, path);
    r->method = method;
    r->path = path;
    r->body = body;
    if (body && !r->n_body)
        r->n_body = strlen(body);
    if (!t)
        abort();
    r->route = t;
    r->model = &a->model;
    t->call(a, r);
}

#endif
