/* Reads a line of JSON into a request. */
#include "request/ask.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "request/fields.h"

void ask_default(struct ask *a)
{
    *a = (struct ask){.n = 1, .specials = true, .chat_end = TEXT_CHAT_ANSWER};
    wire_sampling_default(&a->s);
    a->s.max_tokens = 512;
}

void ask_free(struct ask *a)
{
    if (!a)
        return;
    for (size_t i = 0; i < a->n_joined; i++)
        free(a->joined[i]);
    free(a->joined);
    free(a->ids);
    free(a->prefix);
    free(a->messages);
    free(a->stop);
    free(a->stop_ids);
    free(a->bias);
    free(a->allowed);
    free(a->bad);
    json_decref(a->extra);
    json_decref(a->json);
    *a = (struct ask){0};
}

/* A line of an OpenAI batch file: {custom_id, method, url, body}. Returns the body. */
static int batch_body(struct err *e, const json_t **body, struct ask *a, const json_t *o)
{
    const json_t *method = json_object_get(o, "method"), *url = json_object_get(o, "url");
    struct ask_path at = {.n = 0};
    *body = json_object_get(o, "body");
    const json_t *id = json_object_get(o, "custom_id");
    size_t was = path_field(&at, "custom_id");
    if (id && !json_is_null(id) && field_id(e, a, &at, id))
        return e->code;
    path_back(&at, was);
    was = path_field(&at, "method");
    if (method && !json_is_null(method) && (!json_is_string(method) || strcmp(json_string_value(method), "POST")))
        return ask_wrong(e, &at, "\"POST\"", method);
    path_back(&at, was);
    was = path_field(&at, "url");
    const char *u = json_string_value(url);
    bool chat = u && !strcmp(u, "/v1/chat/completions");
    if (!chat && (!u || strcmp(u, "/v1/completions")))
        return err_set(e, ERR_NO, "url: expected /v1/completions or /v1/chat/completions, got '%.60s'",
                       u ? u : "nothing");
    path_back(&at, was);
    path_field(&at, "body");
    if (!json_is_object(*body))
        return ask_wrong(e, &at, "an object", *body);
    const char *need = chat ? "messages" : "prompt";
    const json_t *v = json_object_get(*body, need);
    if (!v || json_is_null(v))
        return err_set(e, ERR_NO, "body.%s: is required", need);
    return 0;
}

/* Whether the n digits are an integer that jansson can hold. */
static bool fits_json_int(const char *digits, size_t n, bool negative)
{
    const char *most = negative ? "9223372036854775808" : "9223372036854775807";
    return n < 19 || (n == 19 && memcmp(digits, most, 19) <= 0);
}

/* Whether the value that follows the first n bytes of o is that of a seed or an id. */
static bool digits_count(const char *o, size_t n)
{
    static const char *const keys[] = {"\"seed\"", "\"id\"", "\"request_id\"", "\"custom_id\""};
    while (n && strchr(" \t\r\n:", o[n - 1]) && o[n - 1])
        n--;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t k = strlen(keys[i]);
        if (n >= k && !memcmp(o + n - k, keys[i], k))
            return true;
    }
    return false;
}

/*
 * jansson refuses integers beyond signed 64 bits. A seed or an id may be one, so those are put in quotes before
 * parsing; elsewhere such a number gets a decimal point and becomes a double, as in most JSON parsers. *out: malloc'd.
 */
static int spell_long_numbers(struct err *e, char **out, size_t *n_out, const char *s, size_t n)
{
    size_t cap = n + n / 9 + 3, at = 0;
    char *o = malloc(cap);
    if (!o)
        return err_nomem(e, "line", cap);
    bool in_text = false;
    for (size_t i = 0; i < n;) {
        if (in_text && s[i] == '\\' && i + 1 < n) {
            o[at++] = s[i++];
            o[at++] = s[i++];
            continue;
        }
        if (s[i] == '"')
            in_text = !in_text;
        bool number = !in_text && (s[i] == '-' || (s[i] >= '0' && s[i] <= '9'));
        if (!number) {
            o[at++] = s[i++];
            continue;
        }
        size_t k = i + (s[i] == '-'), first = k;
        while (k < n && s[k] >= '0' && s[k] <= '9')
            k++;
        bool over = k > first && s[first] != '0' && !fits_json_int(s + first, k - first, first > i);
        while (k < n && strchr("0123456789+-.eE", s[k]) && s[k]) {
            over = false;
            k++;
        }
        bool quote = over && digits_count(o, at);
        if (quote)
            o[at++] = '"';
        memcpy(o + at, s + i, k - i);
        at += k - i;
        if (quote) {
            o[at++] = '"';
        } else if (over) {
            o[at++] = '.';
            o[at++] = '0';
        }
        i = k;
    }
    *out = o;
    *n_out = at;
    return 0;
}

int ask_parse(struct err *e, json_t **out, const char *line, size_t n)
{
    *out = NULL;
    char *text = NULL;
    size_t n_text = 0;
    if (spell_long_numbers(e, &text, &n_text, line, n))
        return e->code;
    json_error_t je;
    *out = json_loadb(text, n_text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &je);
    free(text);
    if (!*out)
        return err_set(e, ERR_NO, "not JSON: %.160s (column %d)", je.text, je.column);
    if (json_is_object(*out))
        return 0;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ERR_NO, "not a JSON object");
}

/* `s` borrows the arrays of the defaults. */
static void begin(struct ask *out, const struct ask *defaults)
{
    *out = *defaults;
    out->json = out->extra = NULL;
    out->stop = NULL;
    out->stop_ids = NULL;
    out->bias = NULL;
    out->prefix = out->allowed = NULL;
    out->bad = NULL;
    out->has_max_tokens = false;
    out->object = out->template_args = NULL;
    out->template = NULL;
    out->no_thinking = false;
}

int ask_read(struct err *e, struct ask *out, const struct ask *defaults, const char *line, size_t n)
{
    json_t *o = NULL;
    begin(out, defaults);
    if (n > ASK_LINE_BYTES_MAX)
        return err_set(e, ERR_NO, "the line is too long: the limit is %u bytes", ASK_LINE_BYTES_MAX);
    return ask_parse(e, &o, line, n) ? e->code : ask_take_json(e, out, defaults, o);
}

int ask_take_json(struct err *e, struct ask *out, const struct ask *defaults, json_t *object)
{
    const json_t *o = object;
    struct ask_path at = {.n = 0};
    begin(out, defaults);
    out->json = object;
    if (json_object_get(o, "body") && json_object_get(o, "url")) {
        if (batch_body(e, &o, out, o))
            return e->code;
        path_field(&at, "body");
    }
    if (fields_read(e, out, &at, o))
        return e->code;
    const char *body = at.n ? "body." : "";
    if (!out->kind)
        return err_set(e, ERR_NO, "%sprompt: is required, or messages", body);
    if (out->messages && (out->text || out->ids))
        return err_set(e, ERR_NO, "%smessages: cannot be combined with prompt", body);
    if (out->chat_end != TEXT_CHAT_ANSWER && !out->messages)
        return err_set(e, ERR_NO, "%sadd_generation_prompt: is allowed only with messages", body);
    if (out->control && !defaults->control && !out->text)
        return err_set(e, ERR_NO, "%sparse_special: is allowed only if prompt is a string", body);
    if (out->s.min_tokens > out->s.max_tokens)
        return err_set(e, ERR_NO, "%smin_tokens: %u is more than max_tokens, %u", body, out->s.min_tokens,
                       out->s.max_tokens);
    return 0;
}

/* Reads the id fields of one object in table order; false: one is invalid. */
static bool ids_of(struct ask *a, const json_t *o)
{
    static const char *const names[] = {"id", "request_id", "custom_id"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err none;
        struct ask_path at = {.n = 0};
        const json_t *v = json_object_get(o, names[i]);
        if (v && !json_is_null(v) && field_id(&none, a, &at, v))
            return false;
    }
    return true;
}

struct wire_str ask_id(char buf[ASK_ID_TEXT], const json_t *o)
{
    struct ask a = {0};
    const json_t *body = json_object_get(o, "body");
    bool batch = body && json_object_get(o, "url");
    if (ids_of(&a, o) && batch)
        (void)ids_of(&a, body);
    if (a.id != a.id_text)
        return (struct wire_str){a.id, a.n_id};
    memcpy(buf, a.id_text, sizeof a.id_text);
    return (struct wire_str){buf, a.n_id};
}

int ask_check_ids(struct err *e, const struct ask *a, int64_t n_row)
{
    for (size_t i = 0; i < a->n_ids; i++)
        if (a->ids[i] >= n_row)
            return err_set(e, ERR_NO, "prompt[%zu]: token id %u is out of vocabulary: the model has %" PRId64 " ids", i,
                           a->ids[i], n_row);
    for (size_t i = 0; i < a->n_prefix; i++)
        if (a->prefix[i] >= n_row)
            return err_set(e, ERR_NO,
                           "prefix_token_ids[%zu]: token id %u is out of vocabulary: the model has %" PRId64 " ids", i,
                           a->prefix[i], n_row);
    for (uint32_t i = 0; i < a->s.n_stop_id; i++)
        if (a->s.stop_ids[i] >= n_row)
            return err_set(e, ERR_NO,
                           "stop_token_ids[%u]: token id %u is out of vocabulary: the model has %" PRId64 " ids", i,
                           a->s.stop_ids[i], n_row);
    for (uint32_t i = 0; i < a->s.n_allowed; i++)
        if (a->s.allowed[i] >= n_row)
            return err_set(e, ERR_NO,
                           "allowed_token_ids[%u]: token id %u is out of vocabulary: the model has %" PRId64 " ids", i,
                           a->s.allowed[i], n_row);
    for (uint32_t i = 0; i < a->s.n_bias; i++)
        if (a->s.bias[i].id >= n_row)
            return err_set(e, ERR_NO, "logit_bias.%u: token id out of vocabulary: the model has %" PRId64 " ids",
                           a->s.bias[i].id, n_row);
    return 0;
}
