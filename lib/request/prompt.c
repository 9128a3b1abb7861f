/* Reads `prompt` or `messages`. */
#include "request/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t path_add(struct ask_path *at, const char *fmt, const char *name, size_t i)
{
    size_t was = at->n;
    char piece[80];
    int n = name ? snprintf(piece, sizeof piece, "%s%.60s", *fmt ? fmt : "", name)
                 : snprintf(piece, sizeof piece, "[%zu]", i);
    if (n > 0 && at->n + (size_t)n < sizeof at->text) {
        memcpy(at->text + at->n, piece, (size_t)n + 1);
        at->n += (size_t)n;
    }
    return was;
}

size_t path_field(struct ask_path *at, const char *name)
{
    return path_add(at, at->n ? "." : "", name, 0);
}

size_t path_index(struct ask_path *at, size_t i)
{
    return path_add(at, "", NULL, i);
}

void path_back(struct ask_path *at, size_t n)
{
    at->n = n;
    at->text[n] = 0;
}

static int prompt_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    size_t n = json_array_size(v);
    if (n > WIRE_IDS_MAX)
        return err_set(e, ERR_NO, "%s: too many ids: %zu, the limit is %u", at->text, n, WIRE_IDS_MAX);
    a->ids = malloc(n * sizeof *a->ids);
    if (!a->ids)
        return err_nomem(e, "prompt ids", n * sizeof *a->ids);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        size_t was = path_index(at, i);
        if (i == 0 && (json_is_string(x) || json_is_array(x)))
            return err_set(e, ERR_NO, "%s: expected a token id; send several prompts as separate lines", at->text);
        if (!json_is_integer(x))
            return ask_wrong(e, at, "a token id", x);
        json_int_t id = json_integer_value(x);
        if (id < 0 || id > UINT32_MAX)
            return err_set(e, ERR_NO, "%s: %lld is not a token id", at->text, (long long)id);
        a->ids[i] = (uint32_t)id;
        path_back(at, was);
    }
    a->n_ids = n;
    a->kind = ASK_IDS;
    return 0;
}

int prompt_read(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (json_is_string(v)) {
        a->kind = ASK_TEXT;
        a->text = json_string_value(v);
        a->n_text = json_string_length(v);
        return 0;
    }
    if (!json_is_array(v))
        return ask_wrong(e, at, "a string or a list of token ids", v);
    if (json_array_size(v) == 0)
        return err_set(e, ERR_NO, "%s: must not be empty", at->text);
    return prompt_ids(e, a, at, v);
}

/* The text of one content part, {"type":"text","text":"…"}. */
static int part_text(struct err *e, const json_t **text, struct ask_path *at, const json_t *part)
{
    if (!json_is_object(part))
        return ask_wrong(e, at, "an object with type and text", part);
    const json_t *type = json_object_get(part, "type");
    size_t was = path_field(at, "type");
    if (!json_is_string(type))
        return ask_wrong(e, at, "a string", type);
    if (strcmp(json_string_value(type), "text"))
        return err_set(e, ERR_NO, "%s: '%.40s' is not supported, only text", at->text, json_string_value(type));
    path_back(at, was);
    was = path_field(at, "text");
    *text = json_object_get(part, "text");
    if (!json_is_string(*text))
        return ask_wrong(e, at, "a string", *text);
    path_back(at, was);
    return 0;
}

/* Parts are joined by line feeds: templates of text models expect one text a message. */
static int join_parts(struct err *e, struct ask *a, struct text_message *m, struct ask_path *at, const json_t *parts)
{
    size_t n_part = json_array_size(parts), n = 0;
    for (size_t i = 0; i < n_part; i++) {
        const json_t *text = NULL;
        size_t was = path_index(at, i);
        if (part_text(e, &text, at, json_array_get(parts, i)))
            return e->code;
        path_back(at, was);
        n += json_string_length(text) + 1;
    }
    char *all = malloc(n + 1);
    if (!all)
        return err_nomem(e, "message", n + 1);
    size_t used = 0;
    for (size_t i = 0; i < n_part; i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        if (i)
            all[used++] = '\n';
        memcpy(all + used, json_string_value(text), json_string_length(text));
        used += json_string_length(text);
    }
    a->joined[a->n_joined++] = all;
    m->content = all;
    m->n_content = used;
    return 0;
}

static bool is_empty(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) || (json_is_string(v) && !json_string_length(v)) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

/* Clients send responses back as they received them, from this server or another. A field of a
 * response is accepted if it is empty. A value that would belong into the prompt is refused, since the templates are
 * rendered without it. */
static int refuse_message_fields(struct err *e, struct ask_path *at, const json_t *m)
{
    static const char *const no[] = {"tool_calls", "tool_call_id", "function_call", "audio", "refusal", "prefix"};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        if (is_empty(json_object_get(m, no[i])))
            continue;
        path_field(at, no[i]);
        return err_set(e, ERR_NO, "%s: is not supported", at->text);
    }
    return 0;
}

/* Fields that say something about a message. The reasoning of earlier turns is no part of a prompt: templates drop it.
 */
static int check_notes(struct err *e, struct ask_path *at, const json_t *m)
{
    static const char *const texts[] = {"reasoning_content", "reasoning"};
    const json_t *notes = json_object_get(m, "annotations");
    size_t was = at->n;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const json_t *v = json_object_get(m, texts[i]);
        path_field(at, texts[i]);
        if (v && !json_is_null(v) && !json_is_string(v))
            return ask_wrong(e, at, "a string", v);
        path_back(at, was);
    }
    path_field(at, "annotations");
    if (notes && !json_is_null(notes) && !json_is_array(notes))
        return ask_wrong(e, at, "a list", notes);
    path_back(at, was);
    return 0;
}

bool ask_is_system(const char *role)
{
    return !strcmp(role, "system") || !strcmp(role, "developer");
}

static bool is_known(const json_t *role)
{
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_string_length(role) == strlen(known[i]) && !strcmp(json_string_value(role), known[i]))
            return true;
    return false;
}

/* The error contains the role only if that is a word: elsewhere it could be markers or control characters. */
static int unknown_role(struct err *e, const struct ask_path *at, const json_t *role)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const char *s = json_string_value(role);
    bool word = *s && strspn(s, letters) == json_string_length(role);
    return err_set(e, ERR_NO, "%s: expected system, developer, user, assistant or tool%s%.40s%s", at->text,
                   word ? ", got '" : "", word ? s : "", word ? "'" : "");
}

static int message_read(struct err *e, struct ask *a, struct text_message *out, struct ask_path *at, const json_t *m)
{
    if (!json_is_object(m))
        return ask_wrong(e, at, "an object with role and content", m);
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
    size_t was = path_field(at, "role");
    if (!json_is_string(role))
        return ask_wrong(e, at, "a string", role);
    if (!is_known(role))
        return unknown_role(e, at, role);
    out->role = json_string_value(role);
    path_back(at, was);
    if (refuse_message_fields(e, at, m) || check_notes(e, at, m))
        return e->code;
    was = path_field(at, "content");
    if (json_is_string(content)) {
        out->content = json_string_value(content);
        out->n_content = json_string_length(content);
    } else if (json_is_array(content)) {
        if (join_parts(e, a, out, at, content))
            return e->code;
    } else if ((!content || json_is_null(content)) && !strcmp(out->role, "assistant")) { /* an empty message */
        out->content = "";
    } else {
        return ask_wrong(e, at, "a string or a list of parts", content);
    }
    path_back(at, was);
    return 0;
}

int prompt_messages(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_array(v))
        return ask_wrong(e, at, "a list of messages", v);
    size_t n = json_array_size(v);
    if (n == 0)
        return err_set(e, ERR_NO, "%s: must not be empty", at->text);
    if (n > ASK_MESSAGES_MAX)
        return err_set(e, ERR_NO, "%s: too many messages: %zu, the limit is %d", at->text, n, ASK_MESSAGES_MAX);
    /* One more, so that the caller can insert a system message. */
    a->messages = calloc(n + 1, sizeof *a->messages);
    a->joined = calloc(n, sizeof *a->joined);
    if (!a->messages || !a->joined)
        return err_nomem(e, "messages", n * sizeof *a->messages);
    for (size_t i = 0; i < n; i++) {
        size_t was = path_index(at, i);
        if (message_read(e, a, &a->messages[i], at, json_array_get(v, i)))
            return e->code;
        path_back(at, was);
    }
    a->n_message = n;
    a->kind = ASK_MESSAGES;
    return 0;
}
