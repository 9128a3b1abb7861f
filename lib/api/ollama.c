/* The routes of the Ollama API, and its errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/ollama.h"
#include "api/ollama_impl.h"
#include "request/ask.h"

void ollama_error_body(struct str *w, const char *text)
{
    str_add_text(w, "{\"error\":");
    json_write_string(w, text, strlen(text));
    str_add_text(w, "}");
}

/* Ollama uses 503 for a full queue, where other APIs use 429. */
void ollama_error(struct http_request *r, int status, double retry_s, const char *text)
{
    struct str w = {0};
    char retry[32];
    ollama_error_body(&w, text);
    if (retry_s > 0) {
        snprintf(retry, sizeof retry, "%.0f", ceil(retry_s < 3600 ? retry_s : 3600));
        http_add_header(r, "Retry-After", retry);
    }
    if (w.failed)
        http_reply(r, 500, OLLAMA_JSON, "{\"error\":\"out of memory\"}", 25);
    else
        http_reply(r, status == 429 ? 503 : status, OLLAMA_JSON, w.p, w.n);
    str_free(&w);
}

static void reply(struct http_request *r, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        http_reply(r, 200, OLLAMA_JSON, text, strlen(text));
    else
        ollama_error(r, 500, 0, "out of memory");
    free(text);
    json_decref(o);
}

/* ---- requests ---- */

/* The body as an object; NULL: an error was sent. The content type is ignored, because curl -d sends that of a form. */
static json_t *object(struct http_request *r)
{
    struct api_parsed *p = api_body(r);
    json_t *o = p ? p->o : NULL;
    if (p && !p->n)
        ollama_error(r, 400, 0, "missing request body");
    else if (!p || p->rc)
        ollama_error(r, p && p->rc == ERR_NO ? 400 : 500, 0, p ? p->e.text : "out of memory");
    if (o && !p->kept)
        p->o = NULL;
    return o && p->kept ? json_incref(o) : o;
}

static void not_found(struct http_request *r, const char *model)
{
    char text[400];
    snprintf(text, sizeof text, "model '%.300s' not found", model);
    ollama_error(r, 404, 0, text);
}

/* The model name in the field `key`, or in `old`; NULL: an error was sent. */
static const char *name_of(struct api *a, struct http_request *r, const json_t *o, const char *key, const char *old)
{
    struct err e;
    const char *name = "";
    size_t n = 0;
    if (ollama_text(&e, &name, &n, o, key) || (!n && old && ollama_text(&e, &name, &n, o, old))) {
        ollama_error(r, 400, 0, e.text);
        return NULL;
    }
    if (!n) {
        ollama_error(r, 400, 0, "model is required");
        return NULL;
    }
    if (strlen(name) == n && api_serves(a, name, true))
        return name;
    not_found(r, name);
    return NULL;
}

json_t *ollama_body(struct api *a, struct http_request *r, const char **model)
{
    json_t *o = object(r);
    *model = o ? name_of(a, r, o, "model", "name") : NULL;
    if (*model)
        return o;
    json_decref(o);
    return NULL;
}

/* ---- supported routes ---- */

static void root(struct api *a, struct http_request *r)
{
    (void)a;
    http_reply(r, 200, "text/plain; charset=utf-8", "Ollama is running", 17);
}

static void version(struct api *a, struct http_request *r)
{
    (void)a;
    reply(r, json_pack("{s:s}", "version", OLLAMA_VERSION));
}

static void tags(struct api *a, struct http_request *r)
{
    size_t n = 0;
    const char *const *name = api_names(a, &n);
    reply(r, ollama_tags(api_model(a), name, n));
}

/* Without a worker no model is loaded. */
static void ps(struct api *a, struct http_request *r)
{
    size_t n = 0;
    const char *const *name = api_names(a, &n);
    reply(r, ollama_ps(api_model(a), name, api_ready(a) ? n : 0, (int64_t)time(NULL)));
}

static void show(struct api *a, struct http_request *r)
{
    struct err e;
    const char *model;
    bool verbose = false;
    json_t *o = ollama_body(a, r, &model);
    if (!o)
        return;
    if (ollama_bool(&e, &verbose, o, "verbose"))
        ollama_error(r, 400, 0, e.text);
    else
        reply(r, ollama_show(api_model(a), verbose));
    json_decref(o);
}

/* The model is present already. */
static void pull(struct api *a, struct http_request *r)
{
    static const char lines[] = "{\"status\":\"pulling manifest\"}\n{\"status\":\"success\"}\n";
    struct err e;
    const char *model;
    bool stream = true;
    json_t *o = ollama_body(a, r, &model);
    if (!o)
        return;
    if (ollama_bool(&e, &stream, o, "stream"))
        ollama_error(r, 400, 0, e.text);
    else if (stream)
        http_reply(r, 200, "application/x-ndjson", lines, sizeof lines - 1);
    else
        reply(r, json_pack("{s:s}", "status", "success"));
    json_decref(o);
}

/* ---- unsupported routes ---- */

static void embed(struct api *a, struct http_request *r)
{
    const char *model;
    json_t *o = ollama_body(a, r, &model);
    if (o)
        ollama_error(r, 501, 0, "this model does not support embeddings");
    json_decref(o);
}

static void unchangeable(struct http_request *r)
{
    ollama_error(r, 501, 0,
                 "this server cannot create, copy, push or delete models: its model is chosen when it is started");
}

/* An unknown model gives 404. */
static void delete (struct api *a, struct http_request *r)
{
    const char *model;
    json_t *o = ollama_body(a, r, &model);
    if (o)
        unchangeable(r);
    json_decref(o);
}

static void copy(struct api *a, struct http_request *r)
{
    json_t *o = object(r);
    if (o && name_of(a, r, o, "source", NULL))
        unchangeable(r);
    json_decref(o);
}

static void change(struct api *a, struct http_request *r)
{
    (void)a;
    unchangeable(r);
}

static void blob(struct api *a, struct http_request *r)
{
    (void)a;
    ollama_error(r, 404, 0, "blob not found: this server stores no blobs");
}

const struct api_route ollama_routes[] = {
    {"GET", "/", true, root, NULL},
    {"GET", "/api/version", true, version, NULL},
    {"GET", "/api/tags", false, tags, NULL},
    {"GET", "/api/ps", false, ps, NULL},
    {"POST", "/api/show", false, show, NULL},
    {"POST", "/api/generate", false, ollama_generate_route, ollama_generate_prepare},
    {"POST", "/api/chat", false, ollama_chat_route, ollama_chat_prepare},
    {"POST", "/api/embed", false, embed, NULL},
    {"POST", "/api/embeddings", false, embed, NULL},
    {"POST", "/api/pull", false, pull, NULL},
    {"POST", "/api/push", false, change, NULL},
    {"POST", "/api/create", false, change, NULL},
    {"POST", "/api/copy", false, copy, NULL},
    {"DELETE", "/api/delete", false, delete, NULL},
    {"GET", "/api/blobs/*", false, blob, NULL},
    {"POST", "/api/blobs/*", false, change, NULL},
    {NULL, NULL, false, NULL, NULL},
};
