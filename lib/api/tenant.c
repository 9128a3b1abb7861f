/* What an API key changes for its requests: tenant, cache salt, and responses about limits. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "api/json_write.h"
#include "api/ollama.h"
#include "api/ollama_impl.h"

#define SALT_BYTES_MAX 1024 /* of a request's own cache_salt, as in request/fields.c */

/* ---- keys ---- */

static int read_keys(struct err *e, struct keys **out, const char *path, bool metrics_by_key)
{
    if (keys_read(e, out, path))
        return e->code;
    if ((*out)->has_admin || !metrics_by_key)
        return 0;
    keys_free(*out);
    *out = NULL;
    return err_set(e, ERR_NO, "%s: no key has role=admin, and --metrics-by-key shows its numbers to such keys only",
                   path);
}

int api_check_keys(struct err *e, const char *path, bool metrics_by_key)
{
    struct keys *k;
    int rc = read_keys(e, &k, path, metrics_by_key);
    keys_free(k);
    return rc;
}

int api_keys_weights(struct err *e, struct api *a, const struct keys *k, const struct keys *old)
{
    int rc = 0;
    for (size_t i = 0; old && i < old->n && !rc; i++) {
        const struct key *now = keys_named(k, old->v[i]->name);
        if (old->v[i]->weight > 0 && !(now && now->weight > 0))
            rc = gateway_set_weight(e, a->gateway, old->v[i]->name, 1);
    }
    for (size_t i = 0; k && i < k->n && !rc; i++)
        if (k->v[i]->weight > 0)
            rc = gateway_set_weight(e, a->gateway, k->v[i]->name, (float)k->v[i]->weight);
    return rc;
}

int api_keys_read(struct err *e, struct api *a)
{
    struct keys *k;
    if (!a->o.key_file)
        return 0;
    if (read_keys(e, &k, a->o.key_file, a->o.metrics_by_key))
        return e->code;
    if (a->gateway && api_keys_weights(e, a, k, a->keys)) {
        keys_free(k);
        return e->code;
    }
    keys_adopt(k, a->keys);
    keys_free(a->keys);
    a->keys = k;
    return 0;
}

void api_tenant(char out[WIRE_NAME_BYTES_MAX + 1], const struct http_request *r)
{
    const struct api_request *q = http_get(r);
    snprintf(out, WIRE_NAME_BYTES_MAX + 1, "%s", q->key ? q->key->name : http_peer(r));
}

/* ---- lines ---- */

/* Sets cache_salt. One that tokenize refuses stays as it is. */
static int set_salt(json_t *line, const struct line_edit *x)
{
    const json_t *own = json_object_get(line, "cache_salt");
    size_t n = json_string_length(own);
    char salt[KEY_SALT_BYTES];
    if (own && !json_is_null(own) && (!json_is_string(own) || n == 0 || n > SALT_BYTES_MAX))
        return 0;
    key_salt(salt, x->hash, n ? json_string_value(own) : "", n);
    return json_object_set_new(line, "cache_salt", json_string(salt));
}

char *line_text(const json_t *line, const struct line_edit *x)
{
    const json_t *own = json_object_get(line, "window");
    bool limited = x->context && !(json_is_integer(own) && (uint64_t)json_integer_value(own) <= x->context);
    if (!limited && !x->salted)
        return json_dumps(line, JSON_COMPACT);
    json_t *mine = json_copy((json_t *)(uintptr_t)line);
    char *text = NULL;
    int rc = mine ? 0 : -1;
    if (!rc && limited)
        rc = json_object_set_new(mine, "window", json_integer((json_int_t)x->context));
    if (!rc && x->salted)
        rc = set_salt(mine, x);
    if (!rc)
        text = json_dumps(mine, JSON_COMPACT);
    json_decref(mine);
    return text;
}

/* ---- limits ---- */

/* As OpenAI writes durations: 120ms, 6.5s, 1m30s. */
static void duration_text(char *out, size_t n, double s)
{
    uint64_t ms = s > 0 ? (uint64_t)ceil(s * 1e3) : 0, whole = ms / 1000;
    if (ms < 1000)
        snprintf(out, n, "%" PRIu64 "ms", ms);
    else if (whole < 60 && ms % 1000)
        snprintf(out, n, "%" PRIu64 ".%03us", whole, (unsigned)(ms % 1000));
    else if (whole < 60)
        snprintf(out, n, "%" PRIu64 "s", whole);
    else
        snprintf(out, n, "%" PRIu64 "m%us", whole / 60, (unsigned)(whole % 60));
}

void api_limit_headers(struct http_request *r, struct key *k, enum key_limit limit)
{
    const char *what = limit == KEY_REQUESTS ? "requests" : "tokens";
    char name[48], text[32];
    struct key_state s;
    if (!key_state(&s, k, limit, time_now_ns()))
        return;
    snprintf(name, sizeof name, "x-ratelimit-limit-%s", what);
    snprintf(text, sizeof text, "%" PRIu64, s.limit);
    http_add_header(r, name, text);
    snprintf(name, sizeof name, "x-ratelimit-remaining-%s", what);
    snprintf(text, sizeof text, "%" PRIu64, s.remaining);
    http_add_header(r, name, text);
    snprintf(name, sizeof name, "x-ratelimit-reset-%s", what);
    duration_text(text, sizeof text, s.reset_s);
    http_add_header(r, name, text);
}

/* OpenAI's error object for limits, which clients recognize by its code. */
static void write_openai(struct str *w, const struct key_refusal *no)
{
    str_add_text(w, "{\"error\":{\"message\":");
    json_write_string(w, no->text, strlen(no->text));
    str_add_text(w, ",\"type\":\"");
    str_add_text(w, no->limit == KEY_TOKENS ? "tokens" : "requests");
    str_add_text(w, "\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}");
}

void api_limit_reply(struct http_request *r, struct key *k, const struct key_refusal *no)
{
    const struct api_request *q = http_get(r);
    struct str w = {0};
    char seconds[24];
    snprintf(seconds, sizeof seconds, "%.0f", no->retry_s);
    http_add_header(r, "Retry-After", seconds);
    if (!q->begun) /* otherwise it has them already */
        api_limit_headers(r, k, KEY_REQUESTS);
    api_limit_headers(r, k, KEY_TOKENS);
    if (http_dialect(r) == API_OLLAMA)
        ollama_error_body(&w, no->text);
    else
        write_openai(&w, no);
    http_reply(r, 429, "application/json", w.failed ? "{}" : w.p, w.failed ? 2 : w.n);
    str_free(&w);
}
