/* A body of the OpenAI API becomes lines that tokenize reads: those fields are checked there, by one table for files
 * and for HTTP. What is checked here is what only the edge knows, and limits that this API has and the engine has not.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "api/openai.h"
#include "edge/ask.h"

int openai_refuse(struct openai_no *no, int status, const char *param, const char *fmt, ...)
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

/* Absent is taken for JSON, as some load generators leave it out. */
static bool is_json(const char *type)
{
    size_t n = type ? strcspn(type, "; ") : 0;
    return !type || (n == 16 && !strncasecmp(type, "application/json", n)) ||
           (n > 5 && !strncasecmp(type, "application/", 12) && !strncasecmp(type + n - 5, "+json", 5));
}

json_t *openai_body(struct openai_no *no, const struct http_request *r)
{
    struct err e;
    json_t *o = NULL;
    size_t n;
    const char *body = http_body(r, &n), *type = http_header(r, "Content-Type");
    if (!is_json(type)) {
        openai_refuse(no, 400, NULL, "Content-Type %.60s: expected application/json", type);
        return NULL;
    }
    if (ask_parse(&e, &o, body, n)) {
        openai_refuse(no, e.code == ERR_NO ? 400 : 500, NULL, "%s", e.text);
        return NULL;
    }
    return o;
}

/* ---- single fields ---- */

static const json_t *get(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return v && !json_is_null(v) ? v : NULL;
}

int openai_get_bool(struct openai_no *no, bool *out, const json_t *o, const char *name, const char *path)
{
    const json_t *v = get(o, name);
    if (v && !json_is_boolean(v))
        return openai_refuse(no, 400, path, "%s: expected true or false", path);
    if (v)
        *out = json_is_true(v);
    return 0;
}

int openai_model_check(struct openai_no *no, const struct api *a, const json_t *o)
{
    const json_t *v = get(o, "model");
    if (v && !json_is_string(v))
        return openai_refuse(no, 400, "model", "model: expected a text");
    if (v && !api_serves(a, json_string_value(v), false))
        return openai_refuse(no, 404, "model", "The model `%.200s` does not exist.", json_string_value(v));
    return 0;
}

static int model_of(struct openai_no *no, struct openai_ask *q, const struct api *a, const json_t *o)
{
    const json_t *v = get(o, "model");
    if (openai_model_check(no, a, o))
        return -1;
    q->model = strdup(v ? json_string_value(v) : api_model(a)->name);
    return q->model ? 0 : openai_refuse(no, 500, NULL, "out of memory");
}

static int stream_of(struct openai_no *no, struct openai_ask *q, const json_t *o)
{
    const json_t *options = get(o, "stream_options");
    if (openai_get_bool(no, &q->stream, o, "stream", "stream"))
        return -1;
    if (!options)
        return 0;
    if (!json_is_object(options))
        return openai_refuse(no, 400, "stream_options", "stream_options: expected an object");
    if (!q->stream)
        return openai_refuse(no, 400, "stream_options", "stream_options: is for stream: true alone");
    if (openai_get_bool(no, &q->usage, options, "include_usage", "stream_options.include_usage") ||
        openai_get_bool(no, &q->usage_always, options, "continuous_usage_stats",
                        "stream_options.continuous_usage_stats"))
        return -1;
    q->usage_always = q->usage_always && q->usage;
    return 0;
}

static int id_of(struct openai_no *no, struct openai_ask *q, const json_t *o, const struct http_request *r)
{
    const json_t *v = get(o, "request_id");
    const char *id = api_request_id(r), *header = http_header(r, "X-Request-Id");
    if (v && !json_is_string(v))
        return openai_refuse(no, 400, "request_id", "request_id: expected a text");
    if (v && !(header && !strcmp(header, id))) /* as in vLLM: the header counts before the field */
        id = json_string_value(v);
    size_t n = strlen(id);
    if (n == 0 || n > 64)
        return openai_refuse(no, 400, "request_id", "request_id: %zu bytes, it has from 1 to 64", n);
    for (const char *p = id; *p; p++)
        if (*p < ' ' || *p == 127 || *p == '"' || *p == '\\')
            return openai_refuse(no, 400, "request_id", "request_id: has a character that no id has");
    snprintf(q->id, sizeof q->id, "%s-%s", q->chat ? "chatcmpl" : "cmpl", id);
    return 0;
}

/* A number in [lo, hi] where it is one at all; its type is for the table to say. */
static int range(struct openai_no *no, const json_t *o, const char *name, double lo, double hi)
{
    const json_t *v = get(o, name);
    double x = json_number_value(v);
    if (v && json_is_number(v) && !(x >= lo && x <= hi))
        return openai_refuse(no, 400, name, "%s: expected a number from %g to %g, got %g", name, lo, hi, x);
    return 0;
}

/* How many of the best tokens; a value of another type is for the table to refuse. */
static int count(struct openai_no *no, uint32_t *out, const json_t *o, const char *name)
{
    const json_t *v = get(o, name);
    if (range(no, o, name, 0, OPENAI_TOP_MAX))
        return -1;
    *out = v && json_is_number(v) ? (uint32_t)json_number_value(v) : 0;
    return 0;
}

/* How many other tokens; of chats a truth value says whether there are any. */
static int logprobs_of(struct openai_no *no, struct openai_ask *q, const json_t *o)
{
    const json_t *v = get(o, "logprobs"), *top = get(o, "top_logprobs");
    if (q->chat) {
        if (openai_get_bool(no, &q->logprobs, o, "logprobs", "logprobs"))
            return -1;
        if (top && json_number_value(top) > 0 && !q->logprobs)
            return openai_refuse(no, 400, "top_logprobs", "top_logprobs: needs logprobs to be true");
        return count(no, &q->n_top, o, "top_logprobs");
    }
    if (v && json_is_boolean(v))
        return openai_refuse(no, 400, "logprobs", "logprobs: expected a whole number, got a truth value");
    if (top)
        return openai_refuse(no, 400, "top_logprobs", "top_logprobs: is for chats; here logprobs is the number");
    q->logprobs = v != NULL;
    return count(no, &q->n_top, o, "logprobs");
}

static int choices_of(struct openai_no *no, struct openai_ask *q, const json_t *o)
{
    const json_t *v = get(o, "n"), *t = get(o, "temperature");
    q->n = 1;
    if (!v)
        return 0;
    double n = json_number_value(v); /* 2.0 is a whole number too; 0 of what is none */
    if (!(n >= 1 && n <= ASK_CHOICES_MAX) || n != floor(n))
        return openai_refuse(no, 400, "n", "n: expected a whole number from 1 to %d", ASK_CHOICES_MAX);
    q->n = (uint32_t)n;
    if (q->n > 1 && t && json_is_number(t) && json_number_value(t) == 0)
        return openai_refuse(no, 400, "n", "n: must be 1 where temperature is 0: all answers would be the same, got %u",
                             q->n);
    return 0;
}

/* ---- the lines ---- */

/* Of the edge alone; everything else that is known goes on to the table. */
static bool is_own(const char *name)
{
    static const char *const own[] = {"model",        "stream",   "stream_options",    "request_id",
                                      "user",         "metadata", "return_token_ids",  "return_tokens_as_token_ids",
                                      "prompt",       "id",       "custom_id",         "messages",
                                      "service_tier", "store",    "safety_identifier", "prompt_cache_key"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(own[i], name))
            return true;
    return false;
}

/* Means something in a line, and nothing to a client. */
static bool is_of_lines(const char *name)
{
    return !strcmp(name, "window") || !strcmp(name, "strict_window") || !strcmp(name, "prefix_token_ids");
}

/* What nobody knows is taken, and said once a name. */
static void unknown(struct api *a, const char *name)
{
    static char said[64][32];
    static size_t n;
    for (size_t i = 0; i < n; i++)
        if (!strncmp(said[i], name, sizeof said[i] - 1))
            return;
    if (n == sizeof said / sizeof *said)
        return;
    snprintf(said[n++], sizeof said[0], "%s", name);
    api_say(a, "a request has the field '%.60s', which is unknown and has no effect", name);
}

static json_t *base_line(const struct openai_ask *q, struct api *a)
{
    json_t *line = json_object();
    const char *key;
    json_t *v;
    bool bad = !line;
    json_object_foreach(q->body, key, v)
    {
        if (is_own(key) || json_is_null(v))
            continue;
        if (ask_knows(key) && !is_of_lines(key))
            bad |= json_object_set(line, key, v) != 0;
        else
            unknown(a, key);
    }
    if (bad)
        return line;
    /* vLLM's defaults: as the model is, but for the length. */
    if (!json_object_get(line, "temperature"))
        json_object_set_new(line, "temperature", json_real(1));
    if (!json_object_get(line, "max_tokens") && !json_object_get(line, "max_completion_tokens")) {
        json_int_t most = q->chat ? (json_int_t)UINT32_MAX : (json_int_t)api_options(a)->default_max_tokens;
        json_object_set_new(line, "max_tokens", json_integer(most));
    } else {
        json_object_set_new(line, "strict_window", json_true());
    }
    return line;
}

static int add_line(struct openai_no *no, struct openai_ask *q, json_t *base, const char *name, const json_t *prompt)
{
    json_t *line = q->n_line ? json_copy(base) : json_incref(base);
    if (!line || json_object_set(line, name, (json_t *)(uintptr_t)prompt)) {
        json_decref(line);
        return openai_refuse(no, 500, NULL, "out of memory");
    }
    q->line[q->n_line++] = line;
    return 0;
}

/* A text, ids, or a list of either. */
static int prompts(struct openai_no *no, struct openai_ask *q, json_t *base, const json_t *v)
{
    const json_t *first = json_array_get(v, 0);
    bool list = json_is_array(v) && (json_is_string(first) || json_is_array(first));
    size_t n = list ? json_array_size(v) : 1;
    if (!v)
        return openai_refuse(no, 400, "prompt", "prompt: is missing");
    if (n > OPENAI_PROMPTS_MAX)
        return openai_refuse(no, 400, "prompt", "prompt: %zu prompts, the limit is %d", n, OPENAI_PROMPTS_MAX);
    q->line = calloc(n, sizeof *q->line);
    if (!q->line)
        return openai_refuse(no, 500, NULL, "out of memory");
    if (!list)
        return add_line(no, q, base, "prompt", v);
    for (size_t i = 0; i < n; i++) {
        const json_t *p = json_array_get(v, i);
        if (json_typeof(p) != json_typeof(first))
            return openai_refuse(no, 400, "prompt", "prompt[%zu]: prompts are all texts or all lists of ids", i);
        if (add_line(no, q, base, "prompt", p))
            return -1;
    }
    return 0;
}

static int lines(struct openai_no *no, struct openai_ask *q, struct api *a)
{
    json_t *base = base_line(q, a);
    const json_t *m = get(q->body, "messages");
    int bad = base ? 0 : openai_refuse(no, 500, NULL, "out of memory");
    if (!bad && q->chat && !m)
        bad = openai_refuse(no, 400, "messages", "messages: is missing");
    if (!bad && q->chat && get(q->body, "prompt"))
        bad = openai_refuse(no, 400, "prompt", "prompt: is for /v1/completions");
    if (!bad && !q->chat && m)
        bad = openai_refuse(no, 400, "messages", "messages: is for /v1/chat/completions");
    if (!bad && q->chat) {
        q->line = calloc(1, sizeof *q->line);
        bad = q->line ? add_line(no, q, base, "messages", m) : openai_refuse(no, 500, NULL, "out of memory");
    } else if (!bad) {
        bad = prompts(no, q, base, get(q->body, "prompt"));
    }
    json_decref(base);
    return bad;
}

static int check(struct openai_no *no, struct openai_ask *q)
{
    const json_t *o = q->body;
    if (stream_of(no, q, o) || logprobs_of(no, q, o) || choices_of(no, q, o))
        return -1;
    if (range(no, o, "temperature", 0, 2) || range(no, o, "top_p", 0, 1) ||
        count(no, &q->n_prompt_top, o, "prompt_logprobs"))
        return -1;
    if (openai_get_bool(no, &q->token_ids, o, "return_token_ids", "return_token_ids") ||
        openai_get_bool(no, &q->as_ids, o, "return_tokens_as_token_ids", "return_tokens_as_token_ids") ||
        openai_get_bool(no, &q->echo, o, "echo", "echo"))
        return -1;
    if (q->chat && q->echo)
        return openai_refuse(no, 400, "echo", "echo: is for /v1/completions");
    q->prompt_logprobs = get(o, "prompt_logprobs") != NULL;
    if (q->prompt_logprobs && q->stream)
        return openai_refuse(no, 400, "prompt_logprobs", "prompt_logprobs: is not for streams");
    return 0;
}

int openai_ask_read(struct openai_no *no, struct openai_ask *out, struct api *a, const struct http_request *r,
                    bool chat)
{
    *out = (struct openai_ask){.chat = chat, .created = (int64_t)time(NULL)};
    out->body = openai_body(no, r);
    if (!out->body)
        return -1;
    if (model_of(no, out, a, out->body) || id_of(no, out, out->body, r) || check(no, out))
        return -1;
    return lines(no, out, a);
}

void openai_ask_sent(struct openai_ask *q)
{
    for (uint32_t i = 0; q->line && i < q->n_line; i++)
        json_decref(q->line[i]);
    free(q->line);
    json_decref(q->body);
    q->line = NULL;
    q->body = NULL;
}

void openai_ask_free(struct openai_ask *q)
{
    openai_ask_sent(q);
    free(q->model);
    *q = (struct openai_ask){0};
}
