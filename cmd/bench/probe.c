/* Requests to the server before the run: readiness, its model, the ids of words. */
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "cmd/bench/bench.h"
#include "proc/proc.h"

#define ANSWER_BYTES_MAX (16u << 20)

struct probe {
    CURL *curl;
    struct curl_slist *headers;
    const struct opts *o;
};

static int add_header(struct err *e, struct probe *a, const char *name, size_t n, const char *value)
{
    struct str line = {0};
    str_printf(&line, "%.*s: %s", (int)n, name, value);
    int rc = str_check(e, &line, "headers");
    if (!rc && strpbrk(line.p, "\r\n"))
        rc = err_set(e, ERR_USAGE, "header %.*s: the value contains a line break", (int)n, name);
    struct curl_slist *more = rc ? NULL : curl_slist_append(a->headers, line.p);
    if (!rc && !more)
        rc = err_nomem(e, "headers", line.n);
    a->headers = more ? more : a->headers;
    str_free(&line);
    return rc;
}

static int headers(struct err *e, struct probe *a)
{
    const char *key = getenv("OPENAI_API_KEY");
    struct str bearer = {0};
    int rc = add_header(e, a, "Content-Type", 12, "application/json");
    rc = rc ? rc : add_header(e, a, "Expect", 6, ""); /* no waiting for 100 Continue before a long prompt */
    if (!rc && key && *key) {
        str_printf(&bearer, "Bearer %s", key);
        rc = str_check(e, &bearer, "headers");
        rc = rc ? rc : add_header(e, a, "Authorization", 13, bearer.p);
    }
    str_free(&bearer);
    for (size_t i = 0; i < a->o->headers.n && !rc; i++) {
        const char *text = a->o->headers.v[i], *eq = strchr(text, '=');
        rc = add_header(e, a, text, (size_t)(eq - text), eq + 1);
    }
    return rc;
}

int probe_open(struct err *e, struct probe **out, const struct opts *o)
{
    struct probe *a = calloc(1, sizeof *a);
    *out = a;
    if (!a)
        return err_nomem(e, "the connection to the server", sizeof *a);
    a->o = o;
    a->curl = curl_easy_init();
    return a->curl ? headers(e, a) : err_set(e, ERR_SYS, "libcurl failed to initialise");
}

void probe_close(struct probe *a)
{
    if (!a)
        return;
    curl_easy_cleanup(a->curl);
    curl_slist_free_all(a->headers);
    free(a);
}

void probe_setup_transfer(void *curl, const struct probe *a)
{
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, a->headers);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_UNIX_SOCKET_PATH, a->o->unix_path);
    if (a->o->insecure) {
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    }
}

static size_t on_bytes(char *p, size_t one, size_t n, void *arg)
{
    struct str *b = arg;
    if (b->n + n * one > ANSWER_BYTES_MAX)
        return 0;
    str_add(b, p, n * one);
    return b->failed ? 0 : n * one;
}

/* Sends one request. *status is 0 if there was no answer; e then has the reason. *answer: owned JSON or NULL. */
static int send_request(struct err *e, long *status, json_t **answer, struct probe *a, const char *path,
                        const char *body)
{
    char url[1024];
    struct str got = {0};
    *status = 0;
    *answer = NULL;
    snprintf(url, sizeof url, "%s%s", a->o->base, path);
    curl_easy_reset(a->curl);
    curl_easy_setopt(a->curl, CURLOPT_URL, url);
    curl_easy_setopt(a->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(a->curl, CURLOPT_WRITEDATA, &got);
    probe_setup_transfer(a->curl, a);
    curl_easy_setopt(a->curl, CURLOPT_TIMEOUT_MS, 30000L);
    if (body)
        curl_easy_setopt(a->curl, CURLOPT_POSTFIELDS, body);
    CURLcode code = curl_easy_perform(a->curl);
    int rc = 0;
    if (code)
        rc = err_set(e, ERR_NO, "%.200s: %s", url, curl_easy_strerror(code));
    else
        curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, status);
    if (got.n)
        *answer = json_loadb(got.p, got.n, 0, NULL);
    str_free(&got);
    return rc;
}

static void sleep_ms(long ms)
{
    struct timespec t = time_spec((uint64_t)ms * NS_MS);
    nanosleep(&t, NULL);
}

/* /health returns 503 while a model is loaded. If the server has no /health, /v1/models is used instead. */
static int ready(struct err *e, struct probe *a)
{
    uint64_t until = time_now_ns() + (uint64_t)(a->o->ready_s * 1e9);
    const char *path = "/health";
    for (;;) {
        long status;
        json_t *answer;
        int rc = send_request(e, &status, &answer, a, path, NULL);
        json_decref(answer);
        if (status >= 200 && status < 300)
            return 0;
        if (status == 404 || status == 405)
            path = "/v1/models";
        if (!rc)
            rc = err_set(e, ERR_NO, "%.200s%s: status %ld", a->o->base, path, status);
        if (time_now_ns() >= until || proc_term_count())
            return err_prefix(e, "the server is not ready after %g s (--ready-check-timeout-sec)", a->o->ready_s);
        sleep_ms(100);
    }
}

static int models(struct err *e, struct server *s, struct probe *a)
{
    long status;
    json_t *answer;
    int rc = send_request(e, &status, &answer, a, "/v1/models", NULL);
    const json_t *first = json_array_get(json_object_get(answer, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    const json_t *meta = json_object_get(first, "meta");
    if (!rc && status != 200)
        rc = err_set(e, ERR_NO, "%.200s/v1/models: status %ld", a->o->base, status);
    else if (!rc && !id)
        rc = err_set(e, ERR_NO, "%.200s/v1/models lists no model; name one with --model", a->o->base);
    json_int_t n_vocab = json_integer_value(json_object_get(meta, "n_vocab"));
    json_int_t max_len = json_integer_value(json_object_get(first, "max_model_len"));
    s->n_vocab = n_vocab > 0 ? (uint64_t)n_vocab : 0;
    s->model_len = max_len > 0 ? (uint64_t)max_len : 0;
    if (!rc)
        snprintf(s->model, sizeof s->model, "%s", id);
    json_decref(answer);
    return rc;
}

int probe_server(struct err *e, struct server *s, struct probe *a)
{
    *s = (struct server){0};
    if (a->o->ready_s > 0 && ready(e, a))
        return e->code;
    int rc = models(e, s, a);
    if (rc && a->o->model)
        rc = 0; /* the requests of the run will report the error */
    if (!rc && a->o->model)
        snprintf(s->model, sizeof s->model, "%s", a->o->model);
    return rc;
}

int probe_tokenize(struct err *e, uint32_t **ids, size_t *n, struct probe *a, const char *text)
{
    long status;
    json_t *answer = NULL;
    *ids = NULL;
    *n = 0;
    /* Field names of vLLM and of llama.cpp. */
    json_t *q =
        json_pack("{s:s, s:s, s:b, s:b}", "prompt", text, "content", text, "add_special_tokens", 0, "add_special", 0);
    char *body = q ? json_dumps(q, JSON_COMPACT) : NULL;
    int rc = body ? 0 : err_set(e, ERR_SYS, "out of memory for a request to /tokenize");
    rc = rc ? rc : send_request(e, &status, &answer, a, "/tokenize", body);
    const json_t *list = rc || status != 200 ? NULL : json_object_get(answer, "tokens");
    size_t n_list = json_array_size(list);
    if (n_list && !(*ids = malloc(n_list * sizeof **ids)))
        rc = err_nomem(e, "ids", n_list * sizeof **ids);
    for (size_t i = 0; *ids && i < n_list; i++) {
        json_int_t id = json_integer_value(json_array_get(list, i));
        if (json_is_integer(json_array_get(list, i)) && id >= 0 && id < (json_int_t)1 << 31)
            (*ids)[(*n)++] = (uint32_t)id;
    }
    json_decref(answer);
    json_decref(q);
    free(body);
    return rc;
}

int probe_count_tokens(struct err *e, uint32_t *n, bool *again, struct probe *a, const struct server *s,
                       const char *body, bool chat)
{
    long status = 0;
    json_t *answer = NULL, *q = json_object(), *prompt = json_loads(body, JSON_DECODE_ANY, NULL);
    *n = 0;
    *again = false;
    json_object_set_new(q, "model", json_string(s->model));
    json_object_set(q, chat ? "messages" : "prompt", prompt); /* field names of vLLM and of llama.cpp */
    if (!chat)
        json_object_set(q, "content", prompt);
    json_object_set_new(q, "add_special", json_true());
    char *text = q && prompt ? json_dumps(q, JSON_COMPACT) : NULL;
    json_decref(q);
    json_decref(prompt);
    if (!text)
        return err_set(e, ERR_SYS, "out of memory for a request to /tokenize");
    struct err ignored; /* discarded: the requests of the run will report the error */
    if (!send_request(&ignored, &status, &answer, a, "/tokenize", text) && status == 200)
        *n = (uint32_t)json_array_size(json_object_get(answer, "tokens"));
    *again = *n || status == 400 || status == 413 || status == 422; /* these statuses refuse this prompt only */
    json_decref(answer);
    free(text);
    return 0;
}
