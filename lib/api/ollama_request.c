/* From bodies of /api/generate and /api/chat to requests to the gateway. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ollama.h"
#include "request/ask.h"

/* ---- values of one type ---- */

int ollama_wrong(struct err *e, const char *path, const char *what, const json_t *got)
{
    struct ask_path at;
    snprintf(at.text, sizeof at.text, "%s", path);
    at.n = strlen(at.text);
    return ask_wrong(e, &at, what, got);
}

static const json_t *get(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_null(v) ? NULL : v; /* null counts as absent */
}

int ollama_text(struct err *e, const char **out, size_t *n, const json_t *o, const char *key)
{
    const json_t *v = get(o, key);
    *out = "";
    *n = 0;
    if (!v)
        return 0;
    if (!json_is_string(v))
        return ollama_wrong(e, key, "a string", v);
    *out = json_string_value(v);
    *n = json_string_length(v);
    return 0;
}

int ollama_bool(struct err *e, bool *out, const json_t *o, const char *key)
{
    const json_t *v = get(o, key);
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return ollama_wrong(e, key, "true or false", v);
    *out = json_is_true(v);
    return 0;
}

static int put(struct err *e, json_t *o, const char *key, json_t *value)
{
    return json_object_set_new(o, key, value) ? err_nomem(e, "a request", 0) : 0;
}

/* ---- keep_alive ---- */

/* The length of one number with its unit, as Go writes durations; 0: malformed. *zero is cleared unless the number is
 * 0. */
static size_t duration_part(bool *zero, const char *s)
{
    static const char *const unit[] = {"ns", "us", "\xc2\xb5s", "\xce\xbcs", "ms", "s", "m", "h"};
    size_t n = strspn(s, "0123456789.");
    if (!n || !strpbrk(s, "0123456789") || strspn(s, ".") == n)
        return 0;
    *zero &= strspn(s, "0.") >= n;
    for (size_t i = 0; i < sizeof unit / sizeof *unit; i++) {
        size_t u = strlen(unit[i]);
        bool minute = !strcmp(unit[i], "m") && s[n + 1] == 's';
        if (!strncmp(s + n, unit[i], u) && !minute)
            return n + u;
    }
    return 0;
}

/* Whether keep_alive requests unloading: 0, "0", "0s". ERR_NO: not a duration. */
static int keep_none(struct err *e, bool *none, const json_t *v)
{
    *none = false;
    if (!v || json_is_null(v))
        return 0;
    if (json_is_number(v)) { /* seconds */
        *none = json_number_value(v) == 0;
        return 0;
    }
    if (!json_is_string(v))
        return ollama_wrong(e, "keep_alive", "a number of seconds, or a string such as 5m", v);
    const char *s = json_string_value(v), *p = s + (*s == '-' || *s == '+');
    bool zero = true;
    if (strcmp(p, "0")) {
        size_t n = 1;
        for (const char *at = p; *at; at += n)
            if (!(n = duration_part(&zero, at)))
                break;
        if (!n || !*p)
            return err_set(e, ERR_NO, "keep_alive: invalid duration '%.40s': expected e.g. 5m, 24h, 0 or -1", s);
    }
    *none = zero;
    return 0;
}

/* ---- unsupported fields ---- */

/* Refuses a field that this server does not support, unless it is empty. */
static int refuse_unless_empty(struct err *e, const char *path, const json_t *v, const char *why)
{
    bool empty = !v || json_is_null(v) || (json_is_string(v) && !json_string_length(v)) ||
                 (json_is_array(v) && !json_array_size(v)) || json_is_false(v);
    return empty ? 0 : err_set(e, ERR_NO, "%s: %s", path, why);
}

static int refuse_think(struct err *e, const json_t *v)
{
    if (!v || json_is_null(v) || json_is_false(v))
        return 0;
    if (!json_is_boolean(v) && !json_is_string(v))
        return ollama_wrong(e, "think", "true, false or a string", v);
    return err_set(e, ERR_NO, "think: this model does not support thinking");
}

/* Refuses unsupported fields of both routes. */
static int refuse(struct err *e, const json_t *o)
{
    bool render = false;
    if (refuse_unless_empty(e, "format", json_object_get(o, "format"), "structured outputs are not supported"))
        return e->code;
    if (ollama_bool(e, &render, o, "_debug_render_only"))
        return e->code;
    if (render)
        return err_set(e, ERR_NO, "_debug_render_only: is not supported");
    return refuse_think(e, json_object_get(o, "think"));
}

/* ---- fields of both routes ---- */

static int logprobs(struct err *e, struct ollama_request *q, const json_t *o)
{
    const json_t *v = get(o, "top_logprobs");
    int64_t n = 0;
    if (ollama_bool(e, &q->logprobs, o, "logprobs"))
        return e->code;
    if (v && !json_is_integer(v))
        return ollama_wrong(e, "top_logprobs", "an integer", v);
    n = v ? json_integer_value(v) : 0;
    if (n < 0 || n > OLLAMA_TOP_MAX)
        return err_set(e, ERR_NO, "top_logprobs must be between 0 and %d", OLLAMA_TOP_MAX);
    /* As in Ollama, without effect unless logprobs is set. */
    return q->logprobs ? put(e, q->line, "logprobs", json_integer(n)) : 0;
}

static int pass_unknown(struct err *e, json_t *line, const json_t *o)
{
    static const char *const known[] = {
        "model",        "prompt",   "suffix", "system",   "template", "context",    "stream",
        "raw",          "format",   "images", "options",  "think",    "keep_alive", "logprobs",
        "top_logprobs", "messages", "tools",  "truncate", "shift",    "name",       "_debug_render_only",
    };
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        bool is = json_is_null(v);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is |= !strcmp(known[i], key);
        if (!is && ollama_pass(e, line, key))
            return e->code;
    }
    return 0;
}

/* Reads the fields that do not depend on the prompt. truncate and shift have no effect: a prompt is never truncated,
 * and an answer ends at the context length. */
static int read_both(struct err *e, struct ollama_request *q, const struct api_model *m, const json_t *o, bool *none)
{
    bool unused = false;
    q->stream = true;
    q->line = json_object();
    if (!q->line)
        return err_nomem(e, "a request", 0);
    if (ollama_bool(e, &q->stream, o, "stream") || ollama_bool(e, &unused, o, "truncate") ||
        ollama_bool(e, &unused, o, "shift") || keep_none(e, none, json_object_get(o, "keep_alive")) || refuse(e, o) ||
        ollama_options(e, q->line, m, json_object_get(o, "options")) || logprobs(e, q, o))
        return e->code;
    return pass_unknown(e, q->line, o);
}

/* ---- generate ---- */

/* A prompt that the client has formatted itself: markers are control tokens, and only a missing begin token is added.
 */
static int raw_prompt(struct err *e, json_t *line, const char *prompt, size_t n)
{
    int rc = put(e, line, "parse_special", json_true());
    return rc ? rc : put(e, line, "prompt", json_stringn(prompt, n));
}

static json_t *message(const char *role, const char *text, size_t n)
{
    return json_pack("{s:s,s:o}", "role", role, "content", json_stringn(text, n));
}

static int chat_prompt(struct err *e, json_t *line, const char *system, size_t n_system, const char *prompt, size_t n)
{
    json_t *list = json_array();
    bool bad = n_system && json_array_append_new(list, message("system", system, n_system));
    if (bad || json_array_append_new(list, message("user", prompt, n))) {
        json_decref(list);
        return err_nomem(e, "a prompt", n);
    }
    return put(e, line, "messages", list);
}

struct generate {
    const char *prompt, *system, *template, *suffix;
    size_t n_prompt, n_system, n_template, n_suffix;
    const json_t *context;
};

static int generate_fields(struct err *e, struct generate *g, struct ollama_request *q, const json_t *o)
{
    if (ollama_text(e, &g->prompt, &g->n_prompt, o, "prompt") ||
        ollama_text(e, &g->system, &g->n_system, o, "system") ||
        ollama_text(e, &g->template, &g->n_template, o, "template") ||
        ollama_text(e, &g->suffix, &g->n_suffix, o, "suffix") || ollama_bool(e, &q->raw, o, "raw"))
        return e->code;
    g->context = get(o, "context");
    if (g->context && !json_is_array(g->context))
        return ollama_wrong(e, "context", "a list of token ids", g->context);
    if (!json_array_size(g->context))
        g->context = NULL;
    return 0;
}

static int generate_check(struct err *e, const struct generate *g, const struct ollama_request *q,
                          const struct api_model *m, const json_t *o)
{
    if (q->raw && (g->n_template || g->n_system || g->context))
        return err_set(e, ERR_NO, "raw mode does not support template, system, or context");
    if (g->n_suffix)
        return err_set(e, ERR_NO, "suffix: this model does not support insert");
    if (g->n_template && (!m->chat_template || strcmp(g->template, m->chat_template)))
        return err_set(e, ERR_NO, "template: only the model's own is supported; with raw send a formatted prompt");
    if (g->n_system && !m->chat_template)
        return err_set(e, ERR_NO, "system: this model has no chat template");
    return refuse_unless_empty(e, "images", json_object_get(o, "images"), "this model reads text only");
}

static int read_generate(struct err *e, struct ollama_request *q, const struct api_model *m, const json_t *o, bool none)
{
    struct generate g = {0};
    json_t *ids = NULL;
    if (generate_fields(e, &g, q, o) || generate_check(e, &g, q, m, o))
        return e->code;
    q->kind = g.n_prompt ? OLLAMA_RUN : none ? OLLAMA_UNLOAD : OLLAMA_LOAD;
    if (q->kind != OLLAMA_RUN)
        return 0;
    if (q->raw)
        return raw_prompt(e, q->line, g.prompt, g.n_prompt);
    if (g.context) {
        int rc = ollama_continue(e, &ids, m, g.context, g.system, g.n_system, g.prompt, g.n_prompt);
        return rc ? rc : put(e, q->line, "prompt", ids);
    }
    if (!m->chat_template)
        return put(e, q->line, "prompt", json_stringn(g.prompt, g.n_prompt));
    return chat_prompt(e, q->line, g.system, g.n_system, g.prompt, g.n_prompt);
}

/* ---- chat ---- */

static int message_refuse(struct err *e, const char *path, const json_t *m)
{
    static const struct {
        const char *name, *why;
    } no[] = {
        {"images", "this model reads text only"},
        {"tool_calls", "this model does not support tools"},
        {"tool_call_id", "this model does not support tools"},
    };
    char at[120];
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        snprintf(at, sizeof at, "%s.%s", path, no[i].name);
        if (refuse_unless_empty(e, at, json_object_get(m, no[i].name), no[i].why))
            return e->code;
    }
    return 0;
}

/* Reads a message. As in Ollama, roles are case-insensitive and missing content is empty. Earlier thinking is left out,
 * as templates do. */
static int message_read(struct err *e, json_t *list, size_t i, const json_t *m)
{
    char path[64], at[80], role[40];
    snprintf(path, sizeof path, "messages[%zu]", i);
    if (!json_is_object(m))
        return ollama_wrong(e, path, "an object with role and content", m);
    const json_t *r = json_object_get(m, "role"), *content = get(m, "content");
    snprintf(at, sizeof at, "%s.role", path);
    if (!json_is_string(r))
        return ollama_wrong(e, at, "a string", r);
    if (json_string_length(r) >= sizeof role || strlen(json_string_value(r)) != json_string_length(r))
        return err_set(e, ERR_NO, "%s: unknown role", at);
    size_t n = 0;
    for (const char *s = json_string_value(r); *s; s++)
        role[n++] = (char)tolower((unsigned char)*s);
    role[n] = 0;
    snprintf(at, sizeof at, "%s.content", path);
    if (content && !json_is_string(content) && !json_is_array(content))
        return ollama_wrong(e, at, "a string", content);
    if (message_refuse(e, path, m))
        return e->code;
    json_t *text = content ? json_incref((json_t *)content) : json_string("");
    json_t *one = json_pack("{s:o,s:o}", "role", json_string(role), "content", text);
    return one && !json_array_append_new(list, one) ? 0 : err_nomem(e, "a message", 0);
}

/* As in Ollama, a last message of the assistant is continued. */
static int read_chat(struct err *e, struct ollama_request *q, const json_t *o, bool none)
{
    const json_t *v = get(o, "messages");
    size_t n = json_array_size(v);
    if (v && !json_is_array(v))
        return ollama_wrong(e, "messages", "a list of messages", v);
    if (refuse_unless_empty(e, "tools", json_object_get(o, "tools"), "this model does not support tools"))
        return e->code;
    q->kind = n ? OLLAMA_RUN : none ? OLLAMA_UNLOAD : OLLAMA_LOAD;
    if (!n)
        return 0;
    json_t *list = json_array();
    if (put(e, q->line, "messages", list))
        return e->code;
    for (size_t i = 0; i < n; i++)
        if (message_read(e, list, i, json_array_get(v, i)))
            return e->code;
    const char *last = json_string_value(json_object_get(json_array_get(list, n - 1), "role"));
    if (strcmp(last, "assistant"))
        return 0;
    return put(e, q->line, "add_generation_prompt", json_false()) ||
                   put(e, q->line, "continue_final_message", json_true())
               ? e->code
               : 0;
}

int ollama_request_read(struct err *e, struct ollama_request *out, const struct api_model *m, const json_t *body,
                        bool chat)
{
    bool none = false;
    *out = (struct ollama_request){.chat = chat};
    int rc = read_both(e, out, m, body, &none);
    if (!rc)
        rc = chat ? read_chat(e, out, body, none) : read_generate(e, out, m, body, none);
    if (rc)
        ollama_request_free(out);
    return rc;
}

void ollama_request_free(struct ollama_request *a)
{
    json_decref(a->line);
    a->line = NULL;
}
