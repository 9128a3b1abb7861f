/* The fields of a request: a table of names and of functions that check and read them. */
#include "request/ask.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request/fields.h"

static const char *type_name(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "an unknown type";
}

int ask_wrong(struct err *e, const struct ask_path *path, const char *what, const json_t *got)
{
    if (json_is_real(got))
        return err_set(e, ERR_NO, "%s: expected %s, got %g", path->text, what, json_real_value(got));
    if (json_is_integer(got))
        return err_set(e, ERR_NO, "%s: expected %s, got %lld", path->text, what, (long long)json_integer_value(got));
    return err_set(e, ERR_NO, "%s: expected %s, got %s", path->text, what, type_name(got));
}

/* ---- values of one type ---- */

/* An integer; 3.0 counts as one, because some clients write every number with a point. */
static bool field_whole(int64_t *out, const json_t *v)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double d = json_is_real(v) ? json_real_value(v) : 0.5;
    if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || d != (double)(int64_t)d)
        return false;
    *out = (int64_t)d;
    return true;
}

int field_u32(struct err *e, uint32_t *out, const struct ask_path *at, const json_t *v, int64_t lo, int64_t hi)
{
    int64_t x;
    char what[80];
    snprintf(what, sizeof what, "an integer from %" PRId64 " to %" PRId64, lo, hi);
    if (!field_whole(&x, v) || x < lo || x > hi)
        return ask_wrong(e, at, what, v);
    *out = (uint32_t)x;
    return 0;
}

int field_f32(struct err *e, float *out, const struct ask_path *at, const json_t *v, double lo, double hi)
{
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= lo && x <= hi)) {
        char what[80];
        snprintf(what, sizeof what, "a number from %g to %g", lo, hi);
        return ask_wrong(e, at, what, v);
    }
    *out = (float)x;
    return 0;
}

static int field_bool(struct err *e, bool *out, const struct ask_path *at, const json_t *v)
{
    if (!json_is_boolean(v))
        return ask_wrong(e, at, "true or false", v);
    *out = json_is_true(v);
    return 0;
}

/* ---- fields ---- */

typedef int field_fn(struct err *e, struct ask *a, struct ask_path *at, const json_t *v);

int field_id(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (json_is_integer(v)) {
        a->n_id = (size_t)snprintf(a->id_text, sizeof a->id_text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        a->id = a->id_text;
        return 0;
    }
    if (!json_is_string(v))
        return ask_wrong(e, at, "a string", v);
    if (json_string_length(v) == 0 || json_string_length(v) > 1024)
        return err_set(e, ERR_NO, "%s: %zu bytes, expected 1 to 1024", at->text, json_string_length(v));
    a->id = json_string_value(v);
    a->n_id = json_string_length(v);
    return 0;
}

static int f_max_tokens(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    a->has_max_tokens = true;
    return field_u32(e, &a->s.max_tokens, at, v, 0, UINT32_MAX);
}

static int f_min_tokens(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_u32(e, &a->s.min_tokens, at, v, 0, UINT32_MAX);
}

static int f_temperature(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_f32(e, &a->s.temperature, at, v, 0, ASK_TEMPERATURE_MAX);
}

/* -1 means off for some servers, 0 for others. */
static int f_top_k(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    int64_t x;
    if (field_whole(&x, v) && x == -1) {
        a->s.top_k = 0;
        return 0;
    }
    return field_u32(e, &a->s.top_k, at, v, 0, UINT32_MAX);
}

static int f_top_p(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_f32(e, &a->s.top_p, at, v, 0, 1);
}

/* The open lower end of the range is approximated by the smallest positive float. */
static int f_typical_p(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x > 0 && x <= 1))
        return ask_wrong(e, at, "a number above 0 up to 1", v);
    a->s.typical_p = x < (double)FLT_MIN ? FLT_MIN : (float)x;
    return 0;
}

static int f_min_p(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_f32(e, &a->s.min_p, at, v, 0, 1);
}

static int f_repetition(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_f32(e, &a->s.repetition_penalty, at, v, 0.01, 100);
}

static int f_presence(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_f32(e, &a->s.presence_penalty, at, v, -2, 2);
}

static int f_frequency(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_f32(e, &a->s.frequency_penalty, at, v, -2, 2);
}

static int f_last_n(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    int64_t x;
    if (!field_whole(&x, v) || x < -1 || x > INT32_MAX)
        return ask_wrong(e, at, "an integer from -1 to 2147483647", v);
    a->s.penalty_last_n = (int32_t)x;
    return 0;
}

/* Any 64-bit integer; also as a string, because most JSON parsers round integers above 2^53. */
static int f_seed(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    static const char what[] = "a 64-bit integer";
    int64_t x;
    a->has_seed = true;
    if (json_is_string(v)) {
        const char *s = json_string_value(v), *digits = s + (*s == '-');
        char *end;
        errno = 0;
        uint64_t u = *digits >= '0' && *digits <= '9' ? strtoull(digits, &end, 10) : (end = (char *)"x", 0);
        if (*end || errno || end != s + json_string_length(v) || (digits != s && u > (uint64_t)INT64_MAX + 1))
            return ask_wrong(e, at, what, v);
        a->s.seed = digits != s ? 0 - u : u;
        return 0;
    }
    if (!field_whole(&x, v))
        return ask_wrong(e, at, what, v);
    a->s.seed = (uint64_t)x;
    return 0;
}

static int f_ignore_eos(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_bool(e, &a->s.ignore_eos, at, v);
}

static int f_echo(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_bool(e, &a->s.echo, at, v);
}

static int f_control(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_bool(e, &a->control, at, v);
}

static int f_specials(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_bool(e, &a->specials, at, v);
}

static int f_window(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_u32(e, &a->window, at, v, 1, UINT32_MAX);
}

static int f_strict(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_bool(e, &a->strict_window, at, v);
}

static int f_keep_stop(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_bool(e, &a->s.keep_stop, at, v);
}

static int f_skip_special(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    bool skip = true;
    if (field_bool(e, &skip, at, v))
        return e->code;
    a->s.special_text = !skip;
    return 0;
}

static int f_prompt_logprobs(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    uint32_t n = 0;
    if (field_u32(e, &n, at, v, 0, WIRE_TOP_MAX))
        return e->code;
    a->s.prompt_logprobs = (int32_t)n;
    return 0;
}

static int f_truncate(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    int64_t x;
    if (!field_whole(&x, v) || x < -1 || x == 0 || x > UINT32_MAX)
        return ask_wrong(e, at, "an integer from 1 to 4294967295, or -1", v);
    a->truncate = x;
    return 0;
}

static int f_opening(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    bool on = true;
    if (field_bool(e, &on, at, v))
        return e->code;
    a->chat_end = on ? TEXT_CHAT_ANSWER : TEXT_CHAT_CLOSED;
    return 0;
}

/* Read after add_generation_prompt, whose default is true. */
static int f_continue(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    bool on = false;
    if (field_bool(e, &on, at, v))
        return e->code;
    if (on && a->chat_end == TEXT_CHAT_ANSWER)
        return err_set(e, ERR_NO, "%s: is allowed only if add_generation_prompt is false", at->text);
    if (on)
        a->chat_end = TEXT_CHAT_OPEN;
    return 0;
}

/* Checked for its type, and without effect here. */
static int f_bool_ignored(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    bool ignored;
    (void)a;
    return field_bool(e, &ignored, at, v);
}

/* A number for completions; for chats a boolean, with the number in top_logprobs. */
static int f_logprobs(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (json_is_boolean(v)) {
        a->s.logprobs = json_is_true(v) ? 0 : -1;
        return 0;
    }
    uint32_t n = 0;
    if (field_u32(e, &n, at, v, 0, WIRE_TOP_MAX))
        return e->code;
    a->s.logprobs = (int32_t)n;
    return 0;
}

static int f_top_logprobs(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    uint32_t n = 0;
    if (field_u32(e, &n, at, v, 0, WIRE_TOP_MAX))
        return e->code;
    if (a->s.logprobs < 0 && n > 0)
        return err_set(e, ERR_NO, "%s: is allowed only if logprobs is true", at->text);
    if (a->s.logprobs >= 0)
        a->s.logprobs = (int32_t)n;
    return 0;
}

static int f_n(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return field_u32(e, &a->n, at, v, 1, ASK_CHOICES_MAX);
}

/* More candidates than choices would require comparing the scores of whole answers. */
static int f_best_of(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    uint32_t n = 0;
    if (field_u32(e, &n, at, v, 1, ASK_CHOICES_MAX))
        return e->code;
    if (n != a->n)
        return err_set(e, ERR_NO, "%s: is supported only if it equals n", at->text);
    return 0;
}

static int f_salt(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_string(v))
        return ask_wrong(e, at, "a string", v);
    if (json_string_length(v) == 0 || json_string_length(v) > 1024)
        return err_set(e, ERR_NO, "%s: %zu bytes, expected 1 to 1024", at->text, json_string_length(v));
    a->salt = json_string_value(v);
    a->n_salt = json_string_length(v);
    return 0;
}

static int f_priority(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    int64_t x;
    if (!field_whole(&x, v) || x < INT32_MIN || x > INT32_MAX)
        return ask_wrong(e, at, "a 32-bit integer", v);
    a->priority = (int32_t)x;
    return 0;
}

static int f_ignored(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    (void)e, (void)a, (void)at, (void)v;
    return 0;
}

const char *path_last(const struct ask_path *at)
{
    const char *point = strrchr(at->text, '.');
    return point ? point + 1 : at->text;
}

/* Passed through in `extra`, not logged: the answer does not depend on it. */
static int f_carried(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!a->extra && !(a->extra = json_object()))
        return err_nomem(e, "fields", 0);
    return json_object_set(a->extra, path_last(at), (json_t *)v) ? err_nomem(e, "fields", 0) : 0;
}

/* In reading order: n before best_of, logprobs before top_logprobs, add_generation_prompt before
 * continue_final_message. */
static const struct field {
    const char *name;
    field_fn *read;
} fields[] = {
    {"id", field_id},
    {"request_id", field_id},
    {"custom_id", field_id},
    {"prompt", prompt_read},
    {"messages", prompt_messages},
    {"prefix_token_ids", field_prefix_ids},
    {"truncate_prompt_tokens", f_truncate},
    {"add_generation_prompt", f_opening},
    {"continue_final_message", f_continue},
    {"max_tokens", f_max_tokens},
    {"max_completion_tokens", f_max_tokens},
    {"window", f_window},
    {"strict_window", f_strict},
    {"min_tokens", f_min_tokens},
    {"temperature", f_temperature},
    {"top_k", f_top_k},
    {"top_p", f_top_p},
    {"typical_p", f_typical_p},
    {"min_p", f_min_p},
    {"repetition_penalty", f_repetition},
    {"presence_penalty", f_presence},
    {"frequency_penalty", f_frequency},
    {"repeat_last_n", f_last_n},
    {"seed", f_seed},
    {"stop", field_stop},
    {"stop_token_ids", field_stop_ids},
    {"include_stop_str_in_output", f_keep_stop},
    {"skip_special_tokens", f_skip_special},
    {"allowed_token_ids", field_allowed_ids},
    {"bad_words", field_bad_words},
    {"ignore_eos", f_ignore_eos},
    {"logprobs", f_logprobs},
    {"top_logprobs", f_top_logprobs},
    {"prompt_logprobs", f_prompt_logprobs},
    {"echo", f_echo},
    {"add_special_tokens", f_specials},
    {"parse_special", f_control},
    {"logit_bias", field_logit_bias},
    {"n", f_n},
    {"best_of", f_best_of},
    {"cache_salt", f_salt},
    {"priority", f_priority},
    {"stream", f_ignored},
    {"stream_options", f_ignored},
    {"return_token_ids", f_bool_ignored},
    {"return_tokens_as_token_ids", f_bool_ignored},
    {"spaces_between_special_tokens", f_bool_ignored},
    {"model", f_carried},
    {"user", f_carried},
    {"metadata", f_carried},
    {"audio", field_unsupported},
    {"chat_template", field_template},
    {"chat_template_kwargs", field_template_args},
    {"documents", field_unsupported},
    {"ec_transfer_params", field_unsupported},
    {"function_call", field_unsupported},
    {"functions", field_unsupported},
    {"guided_choice", field_unsupported},
    {"guided_decoding_backend", f_ignored},
    {"guided_grammar", field_unsupported},
    {"guided_json", field_unsupported},
    {"guided_regex", field_unsupported},
    {"guided_whitespace_pattern", f_ignored},
    {"kv_transfer_params", field_unsupported},
    {"length_penalty", field_unsupported},
    {"logits_processors", field_unsupported},
    {"logprob_token_ids", field_unsupported},
    {"modalities", field_unsupported},
    {"parallel_tool_calls", field_unsupported},
    {"prediction", field_unsupported},
    {"prompt_embeds", field_unsupported},
    {"reasoning_effort", field_effort},
    {"repetition_detection", field_unsupported},
    {"response_format", field_unsupported},
    {"return_prompt_text", field_unsupported},
    {"stream_interval", field_unsupported},
    {"structured_outputs", field_unsupported},
    {"suffix", field_unsupported},
    {"thinking_token_budget", field_unsupported},
    {"tool_choice", field_unsupported},
    {"tools", field_unsupported},
    {"truncation_side", field_unsupported},
    {"use_beam_search", field_unsupported},
    {"watermarking", field_unsupported},
    {"web_search_options", field_unsupported},
};

static bool known(const char *name)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!strcmp(fields[i].name, name))
            return true;
    return false;
}

int fields_read(struct err *e, struct ask *a, const struct ask_path *at, const json_t *o)
{
    a->object = o;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(o, fields[i].name);
        if (!v || json_is_null(v))
            continue;
        struct ask_path here = *at; /* "body" in a line of a batch file */
        path_field(&here, fields[i].name);
        if (fields[i].read(e, a, &here, v))
            return e->code;
    }
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        if (known(key) || json_is_null(v))
            continue;
        if (!a->extra && !(a->extra = json_object()))
            return err_nomem(e, "fields", 0);
        if (json_object_set(a->extra, key, v))
            return err_nomem(e, "fields", 0);
    }
    return 0;
}

bool ask_knows(const char *name)
{
    return known(name);
}
