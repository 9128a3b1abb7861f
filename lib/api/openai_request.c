/* From a body of the OpenAI API to requests to the gateway. tokenize checks most fields, by the table that files, flags
 * and HTTP share. Checked here are fields of the HTTP gateway only, and limits of this API that the engine does not
 * have. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include <xxhash.h>

#include "api/openai.h"
#include "request/ask.h"

int openai_refuse(struct openai_refusal *no, int status, const char *param, const char *fmt, ...)
{
    va_list ap;
    no->status = status;
    snprintf(no->param, sizeof no->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(no->text, sizeof no->text, fmt, ap);
    va_end(ap);
    return -1;
}

void openai_param_of(char *out, size_t n, const char *text)
{
    size_t k = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]-");
    if (k && k < n && text[k] == ':' && text[k + 1] == ' ')
        snprintf(out, n, "%.*s", (int)k, text);
    else
        *out = 0;
}

json_t *openai_body(struct openai_refusal *no, struct http_request *r)
{
    const char *type = http_header(r, "Content-Type");
    if (type && !api_is_json(type)) { /* some load generators send none */
        openai_refuse(no, 400, NULL, "Content-Type %.60s: expected application/json", type);
        return NULL;
    }
    struct api_parsed *p = api_body(r);
    json_t *o = p ? p->o : NULL;
    if (o) {
        if (!p->kept)
            p->o = NULL;
        return p->kept ? json_incref(o) : o;
    }
    openai_refuse(no, p && p->rc == ERR_NO ? 400 : 500, NULL, "%s", p ? p->e.text : "out of memory");
    return NULL;
}

/* ---- single fields ---- */

static const json_t *get(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return v && !json_is_null(v) ? v : NULL;
}

int openai_get_bool(struct openai_refusal *no, bool *out, const json_t *o, const char *name, const char *path)
{
    const json_t *v = get(o, name);
    if (v && !json_is_boolean(v))
        return openai_refuse(no, 400, path, "%s: expected true or false", path);
    if (v)
        *out = json_is_true(v);
    return 0;
}

int openai_model_check(struct openai_refusal *no, const struct api *a, const json_t *o)
{
    const json_t *v = get(o, "model");
    if (v && !json_is_string(v))
        return openai_refuse(no, 400, "model", "model: expected a string");
    const char *name = json_string_value(v);
    bool whole = v && strlen(name) == json_string_length(v);
    if (v && *name && !(whole && api_serves(a, name, false)))
        return openai_refuse(no, 404, "model", "The model `%.200s` does not exist.", name);
    return 0;
}

static int model_of(struct openai_refusal *no, struct openai_request *q, const struct api *a, const json_t *o)
{
    if (openai_model_check(no, a, o))
        return -1;
    q->model = strdup(api_model(a)->name); /* the first, whichever served name was given */
    return q->model ? 0 : openai_refuse(no, 500, NULL, "out of memory");
}

static int stream_of(struct openai_refusal *no, struct openai_request *q, const json_t *o)
{
    const json_t *options = get(o, "stream_options");
    if (openai_get_bool(no, &q->stream, o, "stream", "stream"))
        return -1;
    if (!options)
        return 0;
    if (!json_is_object(options))
        return openai_refuse(no, 400, "stream_options", "stream_options: expected an object");
    if (!q->stream)
        return openai_refuse(no, 400, "stream_options", "stream_options: is allowed only if stream is true");
    if (openai_get_bool(no, &q->usage, options, "include_usage", "stream_options.include_usage") ||
        openai_get_bool(no, &q->usage_always, options, "continuous_usage_stats",
                        "stream_options.continuous_usage_stats"))
        return -1;
    q->usage_always = q->usage_always && q->usage;
    return 0;
}

static int id_of(struct openai_refusal *no, struct openai_request *q, const json_t *o, const struct http_request *r)
{
    const json_t *v = get(o, "request_id");
    const char *id = api_request_id(r), *header = http_header(r, "X-Request-Id");
    if (v && !json_is_string(v))
        return openai_refuse(no, 400, "request_id", "request_id: expected a string");
    if (v && !(header && !strcmp(header, id))) /* as in vLLM, the header has precedence */
        id = json_string_value(v);
    size_t n = id == api_request_id(r) ? strlen(id) : json_string_length(v);
    if (n == 0 || n > API_ID_BYTES_MAX)
        return openai_refuse(no, 400, "request_id", "request_id: %zu bytes, expected 1 to %d", n, API_ID_BYTES_MAX);
    for (const char *p = id; p < id + n; p++)
        if (*p < ' ' || *p == 127 || *p == '"' || *p == '\\')
            return openai_refuse(no, 400, "request_id", "request_id: contains a control character, quote or backslash");
    snprintf(q->id, sizeof q->id, "%s-%s", q->chat ? "chatcmpl" : "cmpl", id);
    return 0;
}

/* A number in [lo, hi]; tokenize checks whether it must be an integer. */
static int range(struct openai_refusal *no, const json_t *o, const char *name, double lo, double hi)
{
    const json_t *v = get(o, name);
    double x = json_number_value(v);
    if (!v || (json_is_number(v) && x >= lo && x <= hi))
        return 0;
    if (json_is_number(v))
        return openai_refuse(no, 400, name, "%s: expected a number from %g to %g, got %g", name, lo, hi, x);
    struct err e;
    struct ask_path at = {.n = strlen(name)};
    char what[64];
    snprintf(at.text, sizeof at.text, "%s", name);
    snprintf(what, sizeof what, "a number from %g to %g", lo, hi);
    ask_wrong(&e, &at, what, v);
    return openai_refuse(no, 400, name, "%s", e.text);
}

/* A signed 64-bit integer in this API; -1 means none. tokenize accepts more. (A string of digits is an integer that
 * JSON's reader cannot hold.) */
static int seed_of(struct openai_refusal *no, const json_t *o)
{
    const json_t *v = get(o, "seed");
    const char *s = json_string_value(v);
    if (s && *s != '-' && strspn(s, "0123456789") == strlen(s) && (strlen(s) > 19 || strtoull(s, NULL, 10) > INT64_MAX))
        return openai_refuse(no, 400, "seed", "seed: expected an integer from %" PRId64 " to %" PRId64 ", got %.40s",
                             INT64_MIN, INT64_MAX, s);
    return 0;
}

static bool is_no_seed(const char *key, const json_t *v)
{
    return !strcmp(key, "seed") && json_is_integer(v) && json_integer_value(v) == -1;
}

/* The number of top log-probabilities; tokenize refuses other types. */
static int count(struct openai_refusal *no, uint32_t *out, const json_t *o, const char *name)
{
    const json_t *v = get(o, name);
    if (range(no, o, name, 0, OPENAI_TOP_MAX))
        return -1;
    *out = v && json_is_number(v) ? (uint32_t)json_number_value(v) : 0;
    return 0;
}

/* /v1/completions: `logprobs` is the number of top log-probabilities. Chat: a boolean, and `top_logprobs` is the
 * number. */
static int logprobs_of(struct openai_refusal *no, struct openai_request *q, const json_t *o)
{
    const json_t *v = get(o, "logprobs"), *top = get(o, "top_logprobs");
    if (q->chat) {
        if (openai_get_bool(no, &q->logprobs, o, "logprobs", "logprobs"))
            return -1;
        if (top && json_number_value(top) > 0 && !q->logprobs)
            return openai_refuse(no, 400, "top_logprobs", "top_logprobs: is allowed only if logprobs is true");
        return count(no, &q->n_top, o, "top_logprobs");
    }
    if (v && json_is_boolean(v))
        return openai_refuse(no, 400, "logprobs", "logprobs: expected an integer, got a boolean");
    q->logprobs = v != NULL;
    return count(no, &q->n_top, o, "logprobs");
}

/* What decides which tokens of the answer have a text; tokenize checks the types. */
static void shown_of(struct openai_request *q, const json_t *o)
{
    const json_t *ids = get(o, "stop_token_ids");
    q->control_text = json_is_false(get(o, "skip_special_tokens"));
    q->keep_stop = json_is_true(get(o, "include_stop_str_in_output"));
    q->ignore_end = json_is_true(get(o, "ignore_eos"));
    if (q->chat && q->logprobs && json_is_array(ids) && json_array_size(ids) <= WIRE_STOP_IDS_MAX)
        q->stop_ids = json_incref((json_t *)(uintptr_t)ids);
}

static int choices_of(struct openai_refusal *no, struct openai_request *q, const json_t *o)
{
    const json_t *v = get(o, "n"), *t = get(o, "temperature");
    q->n = 1;
    if (!v)
        return 0;
    double n = json_number_value(v); /* 2.0 counts as an integer; 0 for other types */
    if (!(n >= 1 && n <= ASK_CHOICES_MAX) || n != floor(n))
        return openai_refuse(no, 400, "n", "n: expected an integer from 1 to %d", ASK_CHOICES_MAX);
    q->n = (uint32_t)n;
    if (q->n > 1 && t && json_is_number(t) && json_number_value(t) == 0)
        return openai_refuse(no, 400, "n", "n: must be 1 if temperature is 0, since all choices would be equal, got %u",
                             q->n);
    return 0;
}

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(*list, name))
            return true;
    return false;
}

/* Fields handled here; other known fields are passed to tokenize. */
static const char *const own[] = {"model",    "stream", "stream_options",   "request_id",
                                  "user",     "prompt", "return_token_ids", "return_tokens_as_token_ids",
                                  "messages", NULL};
/* Fields without effect here: of OpenAI's own service, or of a line of stdin that is not an HTTP request. */
static const char *const idle[] = {"metadata",  "service_tier",     "store",  "safety_identifier", "id",
                                   "custom_id", "prompt_cache_key", "window", "strict_window",     "prefix_token_ids",
                                   NULL};
static const char *const of_completions[] = {"prompt", NULL}, *const of_chats[] = {"messages", "top_logprobs", NULL};

/* ---- fields without effect ---- */

static void unknown(struct api *a, unsigned *left, const char *where, const char *name)
{
    enum { SIZE = 4096 };
    static uint64_t logged[SIZE];
    static unsigned n;
    uint64_t h = XXH3_64bits_withSeed(name, strlen(name), XXH3_64bits(where, strlen(where))) | 1;
    size_t at = h / 2 % SIZE;
    if (!*left)
        return;
    while (logged[at] && logged[at] != h)
        at = (at + 1) % SIZE;
    if (logged[at])
        return;
    if (n++ == SIZE / 2) { /* the table is half full, e.g. of invented names: start over, which may log a name again */
        memset(logged, 0, sizeof logged);
        n = 1;
        at = h / 2 % SIZE;
    }
    logged[at] = h;
    --*left;
    api_log(a, "ignored the field '%s%.120s' of a request: it has no effect%s", where, name,
            *left ? "" : "; further ones of this request are not logged");
}

void openai_unknown_all(struct api *a, unsigned *left, const char *where, const json_t *o, const char *const *known)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        if (!json_is_null(v) && !is_one_of(key, known))
            unknown(a, left, where, key);
    }
}

static void unknown_within(struct api *a, unsigned *left, const json_t *body)
{
    static const char *const of_options[] = {"include_usage", "continuous_usage_stats", NULL};
    /* without those that request/prompt.c refuses */
    static const char *const of_message[] = {"role",          "content", "tool_calls",  "tool_call_id",
                                             "function_call", "audio",   "prefix",      "reasoning_content",
                                             "reasoning",     "refusal", "annotations", NULL};
    const json_t *m = json_object_get(body, "messages"), *v;
    size_t i;
    openai_unknown_all(a, left, "stream_options.", json_object_get(body, "stream_options"), of_options);
    json_array_foreach(m, i, v)
    {
        openai_unknown_all(a, left, "messages[].", v, of_message);
    }
}

/* ---- requests to the gateway ---- */

static json_t *base_line(const struct openai_request *q, struct api *a)
{
    json_t *line = json_object();
    const char *key;
    json_t *v;
    bool bad = !line;
    unsigned left = OPENAI_UNKNOWN_MAX;
    json_object_foreach(q->body, key, v)
    {
        if (json_is_null(v) || is_no_seed(key, v))
            continue;
        if (is_one_of(key, q->chat ? of_completions : of_chats) || is_one_of(key, idle))
            unknown(a, &left, "", key);
        else if (is_one_of(key, own))
            continue;
        else if (ask_knows(key))
            bad |= json_object_set(line, key, v) != 0;
        else
            unknown(a, &left, "", key);
    }
    unknown_within(a, &left, q->body);
    if (bad)
        return line;
    /* vLLM's defaults: plain sampling, and a limit of the length. */
    if (!json_object_get(line, "temperature"))
        json_object_set_new(line, "temperature", json_real(1));
    bool given = json_object_get(line, "max_tokens") || json_object_get(line, "max_completion_tokens");
    if (!given) {
        json_int_t most = q->chat ? (json_int_t)UINT32_MAX : (json_int_t)api_options(a)->default_max_tokens;
        json_object_set_new(line, "max_tokens", json_integer(most));
    }
    if (given || !q->chat)
        json_object_set_new(line, "strict_window", json_true());
    return line;
}

static int add_line(struct openai_refusal *no, struct openai_request *q, json_t *base, const char *name,
                    const json_t *prompt)
{
    json_t *line = q->n_line ? json_copy(base) : json_incref(base);
    /* As in vLLM, the prompt of a completion is formatted already, so markers are control tokens. */
    bool control = !q->chat && json_is_string(prompt) && !json_object_get(line, "parse_special");
    if (!line || json_object_set(line, name, (json_t *)(uintptr_t)prompt) ||
        (control && json_object_set_new(line, "parse_special", json_true()))) {
        json_decref(line);
        return openai_refuse(no, 500, NULL, "out of memory");
    }
    q->line[q->n_line++] = line;
    return 0;
}

/* A string, a list of ids, or a list of either. */
static int prompts(struct openai_refusal *no, struct openai_request *q, json_t *base, const json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    bool list = json_is_array(v) && (json_is_string(first) || json_is_array(first));
    size_t n = list ? json_array_size(v) : 1;
    if (!v)
        return openai_refuse(no, 400, "prompt", "prompt: is required");
    if (n > OPENAI_PROMPTS_MAX)
        return openai_refuse(no, 400, "prompt", "prompt: too many prompts: %zu, the limit is %d", n,
                             OPENAI_PROMPTS_MAX);
    q->line = calloc(n, sizeof *q->line);
    if (!q->line)
        return openai_refuse(no, 500, NULL, "out of memory");
    q->list = list;
    if (!list)
        return add_line(no, q, base, "prompt", v);
    for (size_t i = 0; i < n; i++) {
        const json_t *p = json_array_get(v, i);
        if (json_typeof(p) != json_typeof(first))
            return openai_refuse(no, 400, "prompt", "prompt[%zu]: all prompts must be strings, or all lists of ids", i);
        if (add_line(no, q, base, "prompt", p))
            return -1;
    }
    return 0;
}

static int lines(struct openai_refusal *no, struct openai_request *q, struct api *a)
{
    json_t *base = base_line(q, a);
    const json_t *m = get(q->body, "messages");
    int bad = base ? 0 : openai_refuse(no, 500, NULL, "out of memory");
    if (!bad && q->chat && !m)
        bad = openai_refuse(no, 400, "messages", "messages: is required");
    if (!bad && q->chat) {
        q->line = calloc(1, sizeof *q->line);
        bad = q->line ? add_line(no, q, base, "messages", m) : openai_refuse(no, 500, NULL, "out of memory");
    } else if (!bad) {
        bad = prompts(no, q, base, get(q->body, "prompt"));
    }
    json_decref(base);
    return bad;
}

static int check(struct openai_refusal *no, struct openai_request *q)
{
    const json_t *o = q->body;
    if (stream_of(no, q, o) || logprobs_of(no, q, o) || choices_of(no, q, o))
        return -1;
    if (range(no, o, "temperature", 0, 2) || range(no, o, "top_p", 0, 1) ||
        count(no, &q->n_prompt_top, o, "prompt_logprobs") || seed_of(no, o))
        return -1;
    if (openai_get_bool(no, &q->token_ids, o, "return_token_ids", "return_token_ids") ||
        openai_get_bool(no, &q->as_ids, o, "return_tokens_as_token_ids", "return_tokens_as_token_ids") ||
        openai_get_bool(no, &q->echo, o, "echo", "echo"))
        return -1;
    shown_of(q, o);
    const json_t *user = get(o, "user");
    if (user && !json_is_string(user))
        return openai_refuse(no, 400, "user", "user: expected a string");
    if (q->chat && q->echo)
        return openai_refuse(no, 400, "echo", "echo: is supported by /v1/completions only");
    q->prompt_logprobs = get(o, "prompt_logprobs") != NULL;
    if (q->prompt_logprobs && q->stream)
        return openai_refuse(no, 400, "prompt_logprobs", "prompt_logprobs: is not supported if stream is true");
    return 0;
}

int openai_request_read(struct openai_refusal *no, struct openai_request *out, struct api *a, struct http_request *r,
                        bool chat)
{
    *out = (struct openai_request){.chat = chat, .created = (int64_t)time(NULL)};
    out->body = openai_body(no, r);
    if (!out->body)
        return -1;
    if (model_of(no, out, a, out->body) || id_of(no, out, out->body, r) || check(no, out))
        return -1;
    return lines(no, out, a);
}

void openai_request_sent(struct openai_request *q)
{
    for (uint32_t i = 0; q->line && i < q->n_line; i++)
        json_decref(q->line[i]);
    free(q->line);
    json_decref(q->body);
    q->line = NULL;
    q->body = NULL;
}

void openai_request_free(struct openai_request *q)
{
    openai_request_sent(q);
    json_decref(q->stop_ids);
    free(q->model);
    *q = (struct openai_request){0};
}
