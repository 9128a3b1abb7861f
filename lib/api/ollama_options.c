/* `options` of an Ollama request, with Ollama's names, defaults and ranges, to fields of a request to the gateway. */
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ollama.h"
#include "request/ask.h"

/* Ollama's defaults (DefaultOptions in api/types.go), where they differ from those of request/ask.h. The others agree:
 * num_predict -1 (no limit), seed -1 (random), repeat_penalty 1, min_p 0, no other penalty. */
#define TEMPERATURE 0.8
#define TOP_K 40
#define TOP_P 0.9
#define REPEAT_LAST_N 64

struct read {
    json_t *line;
    uint64_t context;
};

typedef int option_fn(struct err *e, struct read *r, const char *path, const json_t *v);

static int put(struct err *e, json_t *line, const char *key, json_t *value)
{
    return json_object_set_new(line, key, value) ? err_nomem(e, "a request", 0) : 0;
}

/* 40.0 counts as an integer: Ollama accepts any number, and some clients write all with a point. */
static int whole(struct err *e, int64_t *out, const char *path, const json_t *v)
{
    double d = json_is_real(v) ? json_real_value(v) : 0;
    bool ok = json_is_integer(v) || (json_is_real(v) && d >= -9e15 && d <= 9e15 && d == (double)(int64_t)d);
    if (!ok)
        return ollama_wrong(e, path, "an integer", v);
    *out = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    return 0;
}

static int number(struct err *e, double *out, const char *path, const json_t *v, double lo, double hi)
{
    char what[80];
    snprintf(what, sizeof what, "a number from %g to %g", lo, hi);
    *out = json_number_value(v);
    return json_is_number(v) && *out >= lo && *out <= hi ? 0 : ollama_wrong(e, path, what, v);
}

/* -1 means a random seed; a string if it exceeds a JSON integer (request/ask.h). */
static int o_seed(struct err *e, struct read *r, const char *path, const json_t *v)
{
    int64_t x = 0;
    if (json_is_string(v))
        return put(e, r->line, "seed", json_incref((json_t *)v));
    if (whole(e, &x, path, v))
        return e->code;
    return x == -1 ? 0 : put(e, r->line, "seed", json_integer(x));
}

/* 0 and below: no limit but the context length. Ollama does not pass 0 to its runner, whose default is no limit. */
static int o_predict(struct err *e, struct read *r, const char *path, const json_t *v)
{
    int64_t x = 0;
    if (whole(e, &x, path, v))
        return e->code;
    return x <= 0 || x >= UINT32_MAX ? 0 : put(e, r->line, "max_tokens", json_integer(x));
}

static int o_top_k(struct err *e, struct read *r, const char *path, const json_t *v)
{
    int64_t x = 0;
    if (whole(e, &x, path, v))
        return e->code;
    return put(e, r->line, "top_k", json_integer(x < 0 || x > UINT32_MAX ? 0 : x));
}

/* 1 and above: off. */
static int o_top_p(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    if (number(e, &x, path, v, 0, 1e9))
        return e->code;
    return put(e, r->line, "top_p", json_real(x > 1 ? 1 : x));
}

/* 1 and above: off; 0 keeps the one token nearest the entropy, as does the least number above it. */
static int o_typical_p(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    if (number(e, &x, path, v, 0, 1e9))
        return e->code;
    return put(e, r->line, "typical_p", json_real(x > 1 ? 1 : x > 0 ? x : (double)FLT_MIN));
}

static int o_min_p(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    return number(e, &x, path, v, 0, 1) ? e->code : put(e, r->line, "min_p", json_real(x));
}

static int o_temperature(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    if (number(e, &x, path, v, 0, ASK_TEMPERATURE_MAX))
        return e->code;
    return put(e, r->line, "temperature", json_real(x));
}

static int o_repeat(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    if (number(e, &x, path, v, 0.01, 100))
        return e->code;
    return put(e, r->line, "repetition_penalty", json_real(x));
}

static int o_presence(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    return number(e, &x, path, v, -2, 2) ? e->code : put(e, r->line, "presence_penalty", json_real(x));
}

static int o_frequency(struct err *e, struct read *r, const char *path, const json_t *v)
{
    double x = 0;
    return number(e, &x, path, v, -2, 2) ? e->code : put(e, r->line, "frequency_penalty", json_real(x));
}

/* -1 is the context length, i.e. prompt and answer; a line's own -1 would count the answer only. Read after num_ctx. */
static int o_last_n(struct err *e, struct read *r, const char *path, const json_t *v)
{
    int64_t x = 0;
    if (whole(e, &x, path, v))
        return e->code;
    const json_t *window = json_object_get(r->line, "window");
    if (x < 0)
        x = window ? json_integer_value(window) : (int64_t)r->context;
    return put(e, r->line, "repeat_last_n", json_integer(x > INT32_MAX ? INT32_MAX : x));
}

static int o_stop(struct err *e, struct read *r, const char *path, const json_t *v)
{
    size_t n = json_array_size(v);
    char at[80];
    if (json_is_string(v))
        return json_string_length(v) ? put(e, r->line, "stop", json_incref((json_t *)v))
                                     : err_set(e, ERR_NO, "%s: must not be empty", path);
    if (!json_is_array(v))
        return ollama_wrong(e, path, "a list of strings", v);
    if (n > WIRE_STOPS_MAX)
        return err_set(e, ERR_NO, "%s: too many strings: %zu, the limit is %d", path, n, WIRE_STOPS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(v, i);
        snprintf(at, sizeof at, "%s[%zu]", path, i);
        if (!json_is_string(x))
            return ollama_wrong(e, at, "a string", x);
        if (!json_string_length(x))
            return err_set(e, ERR_NO, "%s: must not be empty", at);
    }
    return n ? put(e, r->line, "stop", json_incref((json_t *)v)) : 0;
}

/* As in Ollama, more than the model's context length means the context length. */
static int o_ctx(struct err *e, struct read *r, const char *path, const json_t *v)
{
    int64_t x = 0;
    if (whole(e, &x, path, v))
        return e->code;
    if (x <= 0 || (uint64_t)x >= r->context)
        return 0;
    return put(e, r->line, "window", json_integer(x));
}

/* Options of the hardware and of loading, which belong to the workers: without effect, logged once. */
static int o_machine(struct err *e, struct read *r, const char *path, const json_t *v)
{
    if (!json_is_number(v) && !json_is_boolean(v))
        return ollama_wrong(e, path, "a number or a boolean", v);
    return ollama_pass(e, r->line, path);
}

/* Unsupported sampling methods: accepted only if turned off. */
static int o_off_at_0(struct err *e, struct read *r, const char *path, const json_t *v)
{
    (void)r;
    return json_is_number(v) && json_number_value(v) == 0 ? 0 : err_set(e, ERR_NO, "%s: is not supported", path);
}

static int o_off_at_1(struct err *e, struct read *r, const char *path, const json_t *v)
{
    (void)r;
    return json_is_number(v) && json_number_value(v) == 1 ? 0
                                                          : err_set(e, ERR_NO, "%s: is not supported, only 1", path);
}

/* In reading order: repeat_last_n after num_ctx. */
static const struct option {
    const char *name;
    option_fn *read;
} options[] = {
    {"seed", o_seed},
    {"num_predict", o_predict},
    {"temperature", o_temperature},
    {"top_k", o_top_k},
    {"top_p", o_top_p},
    {"min_p", o_min_p},
    {"typical_p", o_typical_p},
    {"tfs_z", o_off_at_1},
    {"mirostat", o_off_at_0},
    {"repeat_penalty", o_repeat},
    {"presence_penalty", o_presence},
    {"frequency_penalty", o_frequency},
    {"stop", o_stop},
    {"num_ctx", o_ctx},
    {"repeat_last_n", o_last_n},
    {"num_keep", o_machine},
    {"num_batch", o_machine},
    {"num_gpu", o_machine},
    {"main_gpu", o_machine},
    {"num_thread", o_machine},
    {"use_mmap", o_machine},
    {"use_mlock", o_machine},
    {"low_vram", o_machine},
    {"numa", o_machine},
    {"f16_kv", o_machine},
    {"draft_num_predict", o_machine},
};

static bool known(const char *name)
{
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!strcmp(options[i].name, name))
            return true;
    return false;
}

int ollama_pass(struct err *e, json_t *line, const char *key)
{
    char name[64];
    for (const char *p = key; *p; p++)
        if (*p <= ' ' || *p >= 127)
            return 0;
    snprintf(name, sizeof name, "ollama.%.50s", key);
    return put(e, line, name, json_true());
}

int ollama_options(struct err *e, json_t *line, const struct api_model *m, const json_t *o)
{
    struct read r = {.line = line, .context = m->context};
    char path[80];
    if (put(e, line, "temperature", json_real(TEMPERATURE)) || put(e, line, "top_k", json_integer(TOP_K)) ||
        put(e, line, "top_p", json_real(TOP_P)) || put(e, line, "repeat_last_n", json_integer(REPEAT_LAST_N)) ||
        put(e, line, "max_tokens", json_integer(UINT32_MAX)))
        return e->code;
    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return ollama_wrong(e, "options", "an object", o);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const json_t *v = json_object_get(o, options[i].name);
        snprintf(path, sizeof path, "options.%s", options[i].name);
        if (v && !json_is_null(v) && options[i].read(e, &r, path, v))
            return e->code;
    }
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v)
    {
        snprintf(path, sizeof path, "options.%.60s", key);
        if (!known(key) && !json_is_null(v) && ollama_pass(e, line, path))
            return e->code;
    }
    return 0;
}
