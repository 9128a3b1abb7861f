/* Known fields that are not supported: refused by name, unless the value asks for what happens anyway. */
#include "request/fields.h"

#include <stdlib.h>
#include <string.h>

static bool is_text(const json_t *v, const char *text)
{
    return json_is_string(v) && !strcmp(json_string_value(v), text);
}

static bool is_empty_list(const json_t *v)
{
    return json_is_array(v) && !json_array_size(v);
}

/* An object whose values are all null: clients send every field that they know. */
static bool is_blank(const json_t *v)
{
    const char *key;
    json_t *x;
    if (!json_is_object(v))
        return false;
    json_object_foreach((json_t *)(uintptr_t)v, key, x)
    {
        if (!json_is_null(x))
            return false;
    }
    return true;
}

/* {"type":"text"}, with other fields null. */
static bool is_text_format(const json_t *v)
{
    const char *key;
    json_t *x;
    if (!is_text(json_object_get(v, "type"), "text"))
        return false;
    json_object_foreach((json_t *)(uintptr_t)v, key, x)
    {
        if (strcmp(key, "type") && !json_is_null(x))
            return false;
    }
    return true;
}

/* Tools that must not be used: none in the list, or the choice is none. */
static bool is_unused(const json_t *tools, const json_t *choice)
{
    return is_empty_list(tools) || (json_is_array(tools) && is_text(choice, "none"));
}

/* A choice that uses no tool: none, or auto from an empty list. */
static bool is_no_choice(const json_t *choice, const json_t *tools)
{
    return is_text(choice, "none") || (is_text(choice, "auto") && is_empty_list(tools));
}

static bool is_default(const struct ask *a, const char *name, const json_t *v)
{
    static const struct {
        const char *name, *value;
    } harmless[] = {
        {"modalities", "[\"text\"]"},
        {"use_beam_search", "false"},
        {"parallel_tool_calls", "true"},
        {"parallel_tool_calls", "false"},
        {"suffix", "\"\""},
        {"documents", "[]"},
        {"length_penalty", "1"},
        {"length_penalty", "1.0"},
        {"logits_processors", "[]"},
        {"logprob_token_ids", "[]"},
        {"return_prompt_text", "false"},
        {"stream_interval", "1"},
        {"thinking_token_budget", "-1"},
        {"truncation_side", "\"left\""},
        {"watermarking", "false"},
    };
    static const char *const objects[] = {"structured_outputs", "kv_transfer_params", "ec_transfer_params",
                                          "repetition_detection"};
    if (!strcmp(name, "tools"))
        return is_unused(v, json_object_get(a->object, "tool_choice"));
    if (!strcmp(name, "functions"))
        return is_unused(v, json_object_get(a->object, "function_call"));
    if (!strcmp(name, "tool_choice"))
        return is_no_choice(v, json_object_get(a->object, "tools"));
    if (!strcmp(name, "function_call"))
        return is_no_choice(v, json_object_get(a->object, "functions"));
    if (!strcmp(name, "response_format"))
        return is_text_format(v);
    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (!strcmp(name, objects[i]))
            return is_blank(v);
    char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    bool ok = false;
    for (size_t i = 0; text && i < sizeof harmless / sizeof *harmless; i++)
        ok |= !strcmp(harmless[i].name, name) && !strcmp(harmless[i].value, text);
    free(text);
    return ok;
}

int field_unsupported(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return is_default(a, path_last(at), v) ? 0 : err_set(e, ERR_NO, "%s: is not supported", at->text);
}

/* ---- what depends on the template of the model ---- */

int field_template(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_string(v))
        return ask_wrong(e, at, "a string", v);
    a->template = json_string_value(v);
    a->n_template = json_string_length(v);
    return 0;
}

int field_template_args(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_object(v))
        return ask_wrong(e, at, "an object", v);
    a->template_args = v;
    return 0;
}

int field_effort(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_string(v))
        return ask_wrong(e, at, "a string", v);
    if (!is_text(v, "none"))
        return err_set(e, ERR_NO, "%s: is not supported, only none", at->text);
    a->no_thinking = true;
    return 0;
}

static bool is_word_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether the word is in the text, with no letter before or after it. */
static bool mentions(const char *text, size_t n, const char *word)
{
    size_t n_word = strlen(word);
    for (const char *p = text, *end = text + n; n_word && (p = memmem(p, (size_t)(end - p), word, n_word)); p++)
        if ((p == text || !is_word_byte(p[-1])) && (p + n_word == end || !is_word_byte(p[n_word])))
            return true;
    return false;
}

int ask_check_template(struct err *e, const struct ask *a, const struct text *t)
{
    const char *key, *template;
    json_t *v;
    size_t n = 0;
    if (a->kind != ASK_MESSAGES || !(template = text_chat_template(t, &n))) /* without one, rendering fails */
        return 0;
    if (a->template && (a->n_template != n || memcmp(a->template, template, n)))
        return err_set(e, ERR_NO, "chat_template: is not supported, only that of the model");
    if (a->no_thinking && memmem(template, n, "</think>", 8))
        return err_set(e, ERR_NO, "reasoning_effort: none is not supported by the chat template of %s", text_file(t));
    json_object_foreach((json_t *)(uintptr_t)a->template_args, key, v)
    {
        bool same = json_is_null(v) || (!strcmp(key, "enable_thinking") && json_is_true(v));
        if (!same && mentions(template, n, key))
            return err_set(e, ERR_NO, "chat_template_kwargs.%.60s: is not supported with the chat template of %s", key,
                           text_file(t));
    }
    return 0;
}
