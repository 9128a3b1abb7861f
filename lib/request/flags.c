/* Converts flags to the defaults of requests, and to fields of JSON. */
#include "request/flags.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "request/fields.h"

void ask_flags_init(struct ask_flags *f)
{
    *f = (struct ask_flags){.max_tokens = 512, .top_p = 1, .repetition = 1};
}

void ask_flags_free(struct ask_flags *f)
{
    cli_list_free(&f->stop);
    cli_list_free(&f->stop_id);
    cli_list_free(&f->bias);
}

#define OPT(l, nm, k, o, a, ...)                                                                                       \
    {                                                                                                                  \
        .letter = l, .name = nm, .kind = k, .out = o, .arg = a, .help = __VA_ARGS__                                    \
    }

void ask_flags_options(struct cli_opt *out, struct ask_flags *f)
{
    const struct cli_opt opts[ASK_FLAGS_N] = {
        OPT(0, "system", CLI_STR, &f->system, "TEXT", "a system message before chats without one"),
        OPT('n', "max-tokens", CLI_U64, &f->max_tokens, "N", "tokens of an answer at most; default 512",
            .hi = UINT32_MAX, .given = &f->given.max_tokens, .alias = "max-completion-tokens"),
        OPT(0, "min-tokens", CLI_U64, &f->min_tokens, "N", "tokens before the answer may end", .hi = UINT32_MAX,
            .given = &f->given.min_tokens),
        OPT(0, "temp", CLI_F64, &f->temp, "T", "temperature; default 0, greedy", .fhi = ASK_TEMPERATURE_MAX,
            .given = &f->given.temp, .alias = "temperature"),
        OPT(0, "top-k", CLI_U64, &f->top_k, "N", "sample from the N best; 0: off", .hi = UINT32_MAX,
            .given = &f->given.top_k),
        OPT(0, "top-p", CLI_F64, &f->top_p, "P", "sample from the best with this much probability", .fhi = 1,
            .given = &f->given.top_p),
        OPT(0, "min-p", CLI_F64, &f->min_p, "P", "drop what is less likely than P times the best", .fhi = 1,
            .given = &f->given.min_p),
        OPT(0, "repetition-penalty", CLI_F64, &f->repetition, "R", "divide the logits of tokens seen; 1: off",
            .flo = 0.01, .fhi = 100, .given = &f->given.repetition),
        OPT(0, "presence-penalty", CLI_F64, &f->presence, "R", "subtract from the logits of tokens in the answer",
            .flo = -2, .fhi = 2, .given = &f->given.presence),
        OPT(0, "frequency-penalty", CLI_F64, &f->frequency, "R",
            "subtract from the logits of tokens in the answer, for each use", .flo = -2, .fhi = 2,
            .given = &f->given.frequency),
        OPT(0, "seed", CLI_U64, &f->seed, "N", "of the sampler; default: from the system", .given = &f->given.seed),
        OPT(0, "stop", CLI_LIST, &f->stop, "TEXT", "end the answer before this text; may be repeated"),
        OPT(0, "stop-id", CLI_LIST, &f->stop_id, "ID", "end the answer at this token; may be repeated",
            .alias = "stop-token-ids"),
        OPT(0, "ignore-eos", CLI_FLAG, &f->ignore_eos, NULL, "continue after end tokens"),
        OPT(0, "logprobs", CLI_U64, &f->logprobs, "N", "log-probabilities of the tokens and the N best of each",
            .hi = WIRE_TOP_MAX, .given = &f->given.logprobs),
        OPT(0, "echo", CLI_FLAG, &f->echo, NULL, "include the prompt in the answer"),
        OPT(0, "logit-bias", CLI_LIST, &f->bias, "ID=BIAS", "add to a token's logit; may be repeated"),
    };
    memcpy(out, opts, sizeof opts);
}

bool ask_flags_given(const struct ask_flags *f)
{
    return f->system || f->given.max_tokens || f->given.min_tokens || f->given.top_k || f->given.seed ||
           f->given.logprobs || f->given.temp || f->given.top_p || f->given.min_p || f->given.repetition ||
           f->given.presence || f->given.frequency || f->ignore_eos || f->echo || f->stop.n || f->stop_id.n ||
           f->bias.n;
}

int ask_flags_check(struct err *e, const struct ask_flags *f)
{
    return f->min_tokens > f->max_tokens ? err_set(e, ERR_USAGE, "--min-tokens is more than -n") : 0;
}

static int stops(struct err *e, struct ask *a, const struct cli_list *l)
{
    if (l->n > WIRE_STOPS_MAX)
        return err_set(e, ERR_USAGE, "--stop: too many strings: %zu, the limit is %d", l->n, WIRE_STOPS_MAX);
    a->stop = calloc(l->n + 1, sizeof *a->stop);
    if (!a->stop)
        return err_nomem(e, "stops", l->n * sizeof *a->stop);
    for (size_t i = 0; i < l->n; i++) {
        a->stop[i] = (struct wire_str){l->v[i], strlen(l->v[i])};
        if (!a->stop[i].n)
            return err_set(e, ERR_USAGE, "--stop: must not be empty");
    }
    a->s.stop = a->stop;
    a->s.n_stop = (uint32_t)l->n;
    return field_stop_check(e, ERR_USAGE, "--stop", a->stop, l->n);
}

static int stop_ids(struct err *e, struct ask *a, const struct cli_list *l)
{
    if (l->n > WIRE_STOP_IDS_MAX)
        return err_set(e, ERR_USAGE, "--stop-id: too many ids: %zu, the limit is %d", l->n, WIRE_STOP_IDS_MAX);
    a->stop_ids = calloc(l->n + 1, sizeof *a->stop_ids);
    if (!a->stop_ids)
        return err_nomem(e, "stop ids", l->n * sizeof *a->stop_ids);
    for (size_t i = 0; i < l->n; i++) {
        uint64_t id = 0;
        if (cli_u64(e, "--stop-id", l->v[i], &id, 0, UINT32_MAX))
            return e->code;
        a->stop_ids[i] = (uint32_t)id;
    }
    a->s.stop_ids = a->stop_ids;
    a->s.n_stop_id = (uint32_t)l->n;
    return 0;
}

static int one_bias(struct err *e, struct wire_bias *out, const char *s)
{
    const char *eq = strchr(s, '=');
    char id_text[16];
    if (!eq || (size_t)(eq - s) >= sizeof id_text)
        return err_set(e, ERR_USAGE, "--logit-bias: invalid value '%.60s': expected ID=BIAS", s);
    memcpy(id_text, s, (size_t)(eq - s));
    id_text[eq - s] = 0;
    uint64_t id = 0;
    double bias = 0;
    if (cli_u64(e, "--logit-bias", id_text, &id, 0, UINT32_MAX) ||
        cli_f64(e, "--logit-bias", eq + 1, &bias, -ASK_BIAS_ABS_MAX, ASK_BIAS_ABS_MAX))
        return e->code;
    *out = (struct wire_bias){(uint32_t)id, (float)bias};
    return 0;
}

static int biases(struct err *e, struct ask *a, const struct cli_list *l)
{
    if (l->n > WIRE_BIAS_MAX)
        return err_set(e, ERR_USAGE, "--logit-bias: too many ids: %zu, the limit is %d", l->n, WIRE_BIAS_MAX);
    a->bias = calloc(l->n + 1, sizeof *a->bias);
    if (!a->bias)
        return err_nomem(e, "biases", l->n * sizeof *a->bias);
    for (size_t i = 0; i < l->n; i++) {
        if (one_bias(e, &a->bias[i], l->v[i]))
            return e->code;
        for (size_t k = 0; k < i; k++)
            if (a->bias[k].id == a->bias[i].id)
                return err_set(e, ERR_USAGE, "--logit-bias: duplicate id %u", a->bias[i].id);
    }
    a->s.bias = a->bias;
    a->s.n_bias = (uint32_t)l->n;
    return 0;
}

int ask_flags_defaults(struct err *e, struct ask *a, const struct ask_flags *f)
{
    ask_default(a);
    a->s.max_tokens = (uint32_t)f->max_tokens;
    a->s.min_tokens = (uint32_t)f->min_tokens;
    a->s.temperature = (float)f->temp;
    a->s.top_k = (uint32_t)f->top_k;
    a->s.top_p = (float)f->top_p;
    a->s.min_p = (float)f->min_p;
    a->s.repetition_penalty = (float)f->repetition;
    a->s.presence_penalty = (float)f->presence;
    a->s.frequency_penalty = (float)f->frequency;
    a->s.seed = f->seed;
    a->has_seed = f->given.seed;
    a->s.ignore_eos = f->ignore_eos;
    a->s.echo = f->echo;
    a->s.logprobs = f->given.logprobs ? (int32_t)f->logprobs : -1;
    return stops(e, a, &f->stop) || stop_ids(e, a, &f->stop_id) || biases(e, a, &f->bias) ? e->code : 0;
}

/* ---- as JSON ---- */

static json_t *json_list(const struct ask *a)
{
    json_t *v = json_array();
    for (uint32_t i = 0; i < a->s.n_stop; i++) {
        char *text = NULL;
        size_t n = 0;
        struct err e;
        if (text_utf8_repair(&e, &text, &n, a->s.stop[i].p, a->s.stop[i].n) ||
            json_array_append_new(v, json_stringn(text, n))) {
            json_decref(v);
            v = NULL;
        }
        free(text);
        if (!v)
            break;
    }
    return v;
}

static json_t *json_ids(const struct ask *a)
{
    json_t *v = json_array();
    for (uint32_t i = 0; i < a->s.n_stop_id; i++)
        json_array_append_new(v, json_integer(a->s.stop_ids[i]));
    return v;
}

static json_t *json_biases(const struct ask *a)
{
    json_t *v = json_object();
    for (uint32_t i = 0; i < a->s.n_bias; i++) {
        char id[16];
        snprintf(id, sizeof id, "%" PRIu32, a->s.bias[i].id);
        json_object_set_new(v, id, json_real((double)a->s.bias[i].bias));
    }
    return v;
}

static int fields_of(json_t *o, const struct ask_flags *f, const struct ask *a)
{
    int bad = 0;
#define GIVEN(on, name, value) bad |= (on) ? json_object_set_new(o, name, value) : 0
    GIVEN(f->given.max_tokens, "max_tokens", json_integer((json_int_t)f->max_tokens));
    GIVEN(f->given.min_tokens, "min_tokens", json_integer((json_int_t)f->min_tokens));
    GIVEN(f->given.temp, "temperature", json_real(f->temp));
    GIVEN(f->given.top_k, "top_k", json_integer((json_int_t)f->top_k));
    GIVEN(f->given.top_p, "top_p", json_real(f->top_p));
    GIVEN(f->given.min_p, "min_p", json_real(f->min_p));
    GIVEN(f->given.repetition, "repetition_penalty", json_real(f->repetition));
    GIVEN(f->given.presence, "presence_penalty", json_real(f->presence));
    GIVEN(f->given.frequency, "frequency_penalty", json_real(f->frequency));
    GIVEN(f->given.seed, "seed", json_sprintf("%" PRIu64, f->seed)); /* as a string: JSON integers are signed */
    GIVEN(f->given.logprobs, "logprobs", json_integer((json_int_t)f->logprobs));
    GIVEN(f->ignore_eos, "ignore_eos", json_true());
    GIVEN(f->echo, "echo", json_true());
    GIVEN(a->s.n_stop, "stop", json_list(a));
    GIVEN(a->s.n_stop_id, "stop_token_ids", json_ids(a));
    GIVEN(a->s.n_bias, "logit_bias", json_biases(a));
#undef GIVEN
    return bad;
}

int ask_flags_json(struct err *e, json_t **out, const struct ask_flags *f)
{
    struct ask a = {0};
    json_t *o = json_object();
    int rc = ask_flags_defaults(e, &a, f);
    if (!rc && (!o || fields_of(o, f, &a)))
        rc = err_nomem(e, "flags", 0);
    ask_free(&a);
    if (rc)
        json_decref(o);
    else
        *out = o;
    return rc;
}

/* Text of the command line or of a file; invalid UTF-8 is repaired as tokenize does. */
static json_t *text_json(const char *text, size_t n)
{
    struct err e;
    char *fixed = NULL;
    size_t n_fixed = 0;
    if (text_utf8_repair(&e, &fixed, &n_fixed, text, n))
        return NULL;
    json_t *s = json_stringn(fixed, n_fixed);
    free(fixed);
    return s;
}

static json_t *message(const char *role, json_t *content)
{
    return json_pack("{s:s,s:o}", "role", role, "content", content);
}

static int dump(struct err *e, struct ask_line *out, const json_t *o)
{
    out->text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    if (!out->text)
        return err_nomem(e, "a request", 0);
    out->n = strlen(out->text);
    return 0;
}

int ask_line_of_text(struct err *e, struct ask_line *out, const struct ask_flags *f, bool raw, const char *text,
                     size_t n)
{
    json_t *o;
    *out = (struct ask_line){0};
    if (ask_flags_json(e, &o, f))
        return e->code;
    int bad = 0;
    if (raw) {
        bad = json_object_set_new(o, "prompt", text_json(text, n));
    } else {
        json_t *m = json_array();
        if (f->system)
            bad |= json_array_append_new(m, message("system", text_json(f->system, strlen(f->system))));
        bad |= json_array_append_new(m, message("user", text_json(text, n)));
        bad |= json_object_set_new(o, "messages", m);
    }
    int rc = bad ? err_nomem(e, "a request", n) : dump(e, out, o);
    json_decref(o);
    return rc;
}

static bool has(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v);
}

/* Whether the object has the field under its other name. */
static bool has_other(const json_t *o, const char *key)
{
    return (!strcmp(key, "max_tokens") && has(o, "max_completion_tokens")) ||
           (!strcmp(key, "logprobs") && has(o, "top_logprobs"));
}

static int with_system(json_t *o, const struct ask_flags *f)
{
    json_t *m = json_object_get(o, "messages");
    if (!f->system || !json_is_array(m))
        return 0;
    const char *role = json_string_value(json_object_get(json_array_get(m, 0), "role"));
    if (role && ask_is_system(role))
        return 0;
    return json_array_insert_new(m, 0, message("system", text_json(f->system, strlen(f->system))));
}

/* Sets the flags in a parsed line, or in the body of a batch line. */
static int set_flags(json_t *o, const json_t *flags, const struct ask_flags *f)
{
    const char *key;
    json_t *v, *body = o;
    int bad = 0;
    if (json_is_object(json_object_get(o, "body")) && has(o, "url"))
        body = json_object_get(o, "body");
    json_object_foreach((json_t *)(uintptr_t)flags, key, v)
    {
        if (!has(body, key) && !has_other(body, key))
            bad |= json_object_set(body, key, v);
    }
    return bad | with_system(body, f);
}

static int copy(struct err *e, char **out, size_t *n_out, const char *p, size_t n)
{
    *out = malloc(n + 1);
    if (!*out)
        return err_nomem(e, "a request", n);
    memcpy(*out, p, n);
    (*out)[n] = 0;
    *n_out = n;
    return 0;
}

int ask_line_with_flags(struct err *e, struct ask_line *out, const struct ask_flags *f, const char *line, size_t n)
{
    json_t *o = NULL, *flags = NULL;
    struct err none;
    *out = (struct ask_line){0};
    if (ask_flags_json(e, &flags, f))
        return e->code;
    bool plain = !f->system && !json_object_size(flags);
    bool parsed = !ask_parse(&none, &o, line, n);
    int rc = 0;
    if (parsed) {
        char buf[ASK_ID_TEXT];
        struct wire_str id = ask_id(buf, o);
        rc = id.n ? copy(e, &out->id, &out->n_id, id.p, id.n) : 0;
    }
    if (!rc && (plain || !parsed))
        rc = copy(e, &out->text, &out->n, line, n);
    else if (!rc)
        rc = set_flags(o, flags, f) ? err_nomem(e, "a request", n) : dump(e, out, o);
    json_decref(o);
    json_decref(flags);
    if (rc)
        ask_line_free(out);
    return rc;
}

void ask_line_free(struct ask_line *l)
{
    free(l->text);
    free(l->id);
    *l = (struct ask_line){0};
}
