/* Dispatches HTTP requests: request id, API key, route. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "api/api_impl.h"
#include "base/time.h"

static void metrics_route(struct api *a, struct http_request *r);

static const struct api_route core_routes[] = {
    {"GET", "/metrics", true, metrics_route, NULL},
    {NULL, NULL, false, NULL, NULL},
};

static void fail(struct http_request *r, int status, double retry_s, const char *text)
{
    if (http_dialect(r) == API_OLLAMA)
        ollama_error(r, status, retry_s, text);
    else
        openai_error(r, status, NULL, retry_s, text);
}

static void metrics_route(struct api *a, struct http_request *r)
{
    char *text = NULL;
    size_t n = 0;
    struct err e;
    const struct api_request *q = http_get(r);
    bool by_key = a->o.metrics_by_key && q->key && q->key->role == KEY_ROLE_ADMIN;
    struct metrics_now now = {.running = a->n_running,
                              .waiting = a->n_waiting,
                              .held_bytes = a->n_held,
                              .keys = by_key ? a->keys : NULL,
                              .prompt_bytes = gateway_bytes(a->gateway),
                              .body_limit_bytes = a->o.bodies_bytes_max + PARSE_BYTES_MAX,
                              .output_limit_bytes = a->o.outputs_bytes_max,
                              .prompt_limit_bytes = a->o.prompts_bytes_max};
    http_stats(a->http, &now.http);
    now.http.body_bytes += a->n_parsing;
    if (metrics_text(&e, &text, &n, a->metrics, &now, a->poller)) {
        fail(r, 500, 0, e.text);
        return;
    }
    http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
    free(text);
}

/* ---- ids ---- */

static bool is_id(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (s[i] < ' ' || s[i] >= 127 || s[i] == '"' || s[i] == '\\' || s[i] == '<' || s[i] == '>')
            return false;
    return n > 0 && n <= API_ID_BYTES_MAX;
}

static void make_id(struct api_request *q, struct http_request *r)
{
    const char *given = http_header(r, "X-Request-Id");
    uint8_t random[16];
    if (given && is_id(given)) {
        snprintf(q->id, sizeof q->id, "%s", given);
    } else {
        randombytes_buf(random, sizeof random);
        sodium_bin2hex(q->id, sizeof q->id, random, sizeof random);
    }
    http_add_header(r, "X-Request-Id", q->id);
}

const char *api_request_id(const struct http_request *r)
{
    const struct api_request *q = http_get(r);
    return q ? q->id : "";
}

static struct api_request *begin(struct api *a, struct http_request *r)
{
    struct api_request *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->a = a;
    q->route = "other";
    http_set(r, q);
    make_id(q, r);
    return q;
}

/* ---- routes ---- */

static bool path_is(const struct api_route *t, const char *path)
{
    size_t n = strlen(t->path);
    if (n && t->path[n - 1] == '*')
        return !strncmp(t->path, path, n - 1) && path[n - 1];
    return !strcmp(t->path, path);
}

/* lib/http omits the body of a HEAD response. */
static bool method_is(const struct api_route *t, const char *method)
{
    return !strcmp(t->method, method) || (!strcmp(method, "HEAD") && !strcmp(t->method, "GET"));
}

struct seek {
    const char *method, *path;
    const struct api_route *found, *other; /* other: the same path with another method */
    char allow[64];
    struct key *key;       /* borrowed; NULL: none */
    struct key_refusal no; /* with status 429 */
};

static void seek_in(struct seek *s, const struct api_route *t)
{
    for (; t->method && !s->found; t++) {
        if (!path_is(t, s->path))
            continue;
        if (method_is(t, s->method)) {
            s->found = t;
        } else {
            size_t n = strlen(s->allow);
            s->other = t;
            if (!strstr(s->allow, t->method))
                snprintf(s->allow + n, sizeof s->allow - n, "%s%s", n ? ", " : "", t->method);
        }
    }
}

static void seek(struct seek *s, const struct api *a, const struct http_request *r)
{
    *s = (struct seek){.method = http_method(r), .path = http_path(r)};
    if (http_dialect(r) == API_OLLAMA)
        seek_in(s, ollama_routes);
    seek_in(s, openai_routes);
    seek_in(s, core_routes);
    s->key = a->keys ? keys_find(a->keys, http_header(r, "Authorization")) : NULL;
}

/* True: a web page of another site can send r without a preflight request, since its body is not declared as JSON. The
 * browser then hides only the response, so such a request must be refused. */
static bool is_simple_of_page(const struct http_request *r)
{
    const char *length = http_header(r, "Content-Length");
    bool has_body = http_header(r, "Transfer-Encoding") || (length && strtoull(length, NULL, 10));
    return has_body && http_header(r, "Origin") && !api_is_json(http_header(r, "Content-Type"));
}

/* Numbers of all clients together. */
static bool is_admin(const struct api_route *t)
{
    return !strcmp(t->path, "/metrics") || !strcmp(t->path, "/load");
}

/* Limits of a key count what may take long: every request with a body. */
static bool is_limited(const struct seek *s)
{
    return s->key && !s->found->open && !strcmp(s->found->method, "POST");
}

/* 401, 403, or 0. Without roles in the file /metrics is open. */
static int check_key(const struct api *a, struct seek *s)
{
    bool admin = is_admin(s->found), open = s->found->open && !(admin && a->keys && a->keys->has_roles);
    if (!open && a->keys && !s->key)
        return 401;
    if (!admin || !s->key || s->key->role != KEY_ROLE_USER)
        return 0;
    s->key->n_forbidden++;
    return 403;
}

/* The status that refuses the request by its head, or 0. */
static int check_head(const struct api *a, const struct http_request *r, struct seek *s)
{
    if (!s->found)
        return s->other ? 405 : 404;
    int status = check_key(a, s);
    if (status)
        return status;
    if (is_simple_of_page(r))
        return 415;
    return is_limited(s) && !key_may_begin(&s->no, s->key, time_now_ns()) ? 429 : 0;
}

static void refuse(struct http_request *r, int status, const struct seek *s)
{
    char text[256] = "a request with Origin needs Content-Type: application/json";
    if (status == 429) {
        api_limit_reply(r, s->key, &s->no);
        return;
    }
    if (status == 405) {
        http_add_header(r, "Allow", s->allow);
        snprintf(text, sizeof text, "method %.20s is not allowed for this path; use %s", s->method, s->allow);
    } else if (status == 404) {
        snprintf(text, sizeof text, "unknown path %.150s; see /openapi.json", s->path);
    } else if (status == 401) {
        http_add_header(r, "WWW-Authenticate", "Bearer");
        snprintf(text, sizeof text, "missing or invalid API key: send the header Authorization: Bearer KEY");
    } else if (status == 403) {
        snprintf(text, sizeof text, "API key %s has role=user, which may not read %.40s: use a key with role=admin",
                 s->key->name, s->found->path);
    }
    fail(r, status, 0, text);
}

/* Attaches the state of a request, with its route for metrics. */
static struct api_request *begin_route(struct api *a, struct http_request *r, const struct seek *s)
{
    struct api_request *q = begin(a, r);
    if (!q)
        fail(r, 500, 0, "out of memory");
    else if (s->found || s->other)
        q->route = s->found ? s->found->path : s->other->path;
    if (q && s->key)
        q->key = key_ref(s->key);
    return q;
}

/* The request is accepted: it counts for the limits of its key. */
static void count_request(struct http_request *r, struct api_request *q, const struct seek *s)
{
    if (!is_limited(s))
        return;
    q->begun = true;
    key_begin(q->key, time_now_ns());
    api_limit_headers(r, q->key, KEY_REQUESTS);
}

void api_on_head(void *arg, struct http_request *r)
{
    struct seek s;
    seek(&s, arg, r);
    int status = check_head(arg, r, &s);
    if (status && begin_route(arg, r, &s))
        refuse(r, status, &s);
}

/* A long body is parsed by the background thread before its route is called. */
static void dispatch(struct api *a, struct http_request *r, struct api_request *q, const struct api_route *route)
{
    struct err e;
    size_t n;
    http_body(r, &n);
    q->found = route;
    if (n < (route->prepare ? PARSE_BYTES_PREPARED : PARSE_BYTES)) {
        route->call(a, r);
        return;
    }
    if (a->draining && !http_is_last(r)) {
        fail(r, 503, 1, "the server is shutting down");
        return;
    }
    char *body = http_take_body(r, &n);
    if (parse_add(&e, &q->job, a, r, route, body, n))
        fail(r, 503, 1, PARSE_FULL_TEXT);
}

void api_on_request(void *arg, struct http_request *r)
{
    struct api *a = arg;
    struct seek s;
    seek(&s, a, r);
    struct api_request *q = begin_route(a, r, &s);
    if (!q)
        return;
    int status = check_head(a, r, &s); /* keys and their use may have changed meanwhile */
    if (status) {
        refuse(r, status, &s);
        return;
    }
    count_request(r, q, &s);
    dispatch(a, r, q, s.found);
}

struct api_parsed *api_body(struct http_request *r)
{
    struct api_request *q = http_get(r);
    size_t n;
    const char *body = http_body(r, &n);
    if (!q->parsed)
        q->parsed = api_parse(q->found, &q->a->model, body, n);
    return q->parsed;
}

void api_on_parsed(struct api *a, struct http_request *r, const struct api_route *route, struct api_parsed *p)
{
    struct api_request *q = http_get(r);
    q->job = NULL;
    q->parsed = p;
    if (!p) {
        fail(r, 500, 0, "out of memory");
        return;
    }
    p->kept = true;
    route->call(a, r); /* may finish the request */
    if (!p->finished)
        q->parsed = NULL;
    parse_drop(a, p); /* it does not stay in memory while the response is generated */
}

void api_on_fail(void *arg, struct http_request *r, int status, const char *text)
{
    if (begin(arg, r))
        fail(r, status, status == 503 ? 1 : 0, text);
    else
        http_reply(r, status, "text/plain", text, strlen(text));
}

void api_on_disconnected(void *arg, struct http_request *r)
{
    struct api *a = arg;
    struct api_request *q = http_get(r);
    metrics_client_disconnected(a->metrics);
    if (q && q->generation)
        generation_disconnected(q->generation);
}

void api_on_finished(void *arg, struct http_request *r, int status)
{
    struct api *a = arg;
    struct api_request *q = http_get(r);
    double took = (double)(time_now_ns() - http_arrived_ns(r)) / 1e9;
    if (!q)
        return;
    if (q->generation)
        generation_free(q->generation);
    if (q->job)
        parse_cancel(q->job);
    if (q->parsed && q->parsed->kept)
        q->parsed->finished = true;
    else
        api_parsed_free(q->parsed);
    metrics_http(a->metrics, http_dialect(r), q->route, status, took);
    if (a->o.access_log)
        api_log(a, "%s \"%s %.200s\" %d %.1f ms %s", http_peer(r), http_method(r), http_path(r), status, took * 1e3,
                q->id);
    if (q->begun)
        key_end(q->key);
    key_unref(q->key);
    free(q);
}
