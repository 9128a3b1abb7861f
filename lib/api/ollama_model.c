/* Model info for Ollama's clients: /api/show, /api/tags, /api/ps. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/ollama.h"
#include "base/str.h"

/* Formats as Ollama's format.HumanNumber. */
void ollama_human(char *out, size_t room, uint64_t n)
{
    double b = (double)n / 1e9, m = (double)n / 1e6;
    if (n >= 1000000000)
        snprintf(out, room, b == floor(b) ? "%.0fB" : "%.1fB", b);
    else if (n >= 1000000)
        snprintf(out, room, m == floor(m) ? "%.0fM" : "%.2fM", m);
    else if (n >= 1000)
        snprintf(out, room, "%.0fK", (double)n / 1e3);
    else
        snprintf(out, room, "%" PRIu64, n);
}

/* "m" is "m:latest". */
static void with_tag(char *out, size_t room, const char *name)
{
    const char *slash = strrchr(name, '/');
    snprintf(out, room, strchr(slash ? slash : name, ':') ? "%s" : "%s:latest", name);
}

static json_t *details(const struct api_model *m)
{
    char size[32];
    ollama_human(size, sizeof size, m->n_param);
    return json_pack("{s:s,s:s,s:s,s:[s],s:s,s:s}", "parent_model", "", "format", "gguf", "family", m->arch, "families",
                     m->arch, "parameter_size", size, "quantization_level", m->quant);
}

/* ---- the lists ---- */

#define NAME_ROOM 300

json_t *ollama_tags(const struct api_model *m, const char *const *name, size_t n_name)
{
    char tagged[NAME_ROOM], when[OLLAMA_TIME_BYTES];
    json_t *list = json_array();
    ollama_time(when, m->created, 0);
    for (size_t i = 0; i < n_name && list; i++) {
        with_tag(tagged, sizeof tagged, name[i]);
        json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:I,s:s,s:o,s:[s]}", "name", tagged, "model", tagged,
                                              "modified_at", when, "size", (json_int_t)m->bytes, "digest", m->digest,
                                              "details", details(m), "capabilities", "completion"));
    }
    return json_pack("{s:o}", "models", list);
}

/* The model stays loaded: Ollama's expiry for that is as far ahead as its durations reach. */
#define NEVER_S (INT64_MAX / 1000000000)

json_t *ollama_ps(const struct api_model *m, const char *const *name, size_t n_name, int64_t now_s)
{
    char tagged[NAME_ROOM], when[OLLAMA_TIME_BYTES];
    json_t *list = json_array();
    ollama_time(when, now_s + NEVER_S, 0);
    for (size_t i = 0; i < n_name && list; i++) {
        with_tag(tagged, sizeof tagged, name[i]);
        json_array_append_new(list,
                              json_pack("{s:s,s:s,s:I,s:s,s:o,s:s,s:i,s:I}", "name", tagged, "model", tagged, "size",
                                        (json_int_t)m->bytes, "digest", m->digest, "details", details(m), "expires_at",
                                        when, "size_vram", 0, "context_length", (json_int_t)m->context));
    }
    return json_pack("{s:o}", "models", list);
}

/* ---- show ---- */

/* Appends a string quoted as in a Modelfile. */
static void add_quoted(struct str *s, const char *text, size_t n)
{
    str_add_char(s, '"');
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"' || text[i] == '\\')
            str_add_char(s, '\\');
        if (text[i])
            str_add_char(s, text[i]);
    }
    str_add_char(s, '"');
}

/* One line for each parameter, with its value in a column; each begins with `before`. Stop strings are ids of the
 * vocabulary here, which is equivalent. */
static void add_parameters(struct str *s, const struct api_model *m, const char *before, bool columns)
{
    str_printf(s, columns ? "%s%-30s %" PRIu64 : "%s%s %" PRIu64, before, "num_ctx", m->context);
    for (uint32_t id = 0; id < text_n_token(m->text); id++) {
        if (!text_is_end(m->text, id))
            continue;
        size_t n = 0;
        const char *text = text_entry(m->text, id, &n);
        str_printf(s, columns ? "\n%s%-30s " : "\n%s%s ", before, "stop");
        add_quoted(s, text, n);
    }
}

/* The file name without its directory, which clients need not know. */
static void modelfile(struct str *s, const struct api_model *m)
{
    const char *slash = strrchr(m->path, '/');
    str_printf(s, "# Modelfile of what phasepipe serves\nFROM %s\n", slash ? slash + 1 : m->path);
    if (m->chat_template && !strstr(m->chat_template, "\"\"\""))
        str_printf(s, "TEMPLATE \"\"\"%s\"\"\"\n", m->chat_template);
    add_parameters(s, m, "PARAMETER ", false);
    str_add_char(s, '\n');
}

/* Takes ownership of s. NULL: no memory. */
static json_t *text_of(struct str *s)
{
    json_t *j = s->failed ? NULL : json_string(str_text(s));
    str_free(s);
    return j;
}

static json_t *strings(const struct gguf_str *v, uint64_t n)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < n && list; i++) {
        json_t *s = json_stringn(v[i].p, v[i].n); /* NULL if not UTF-8 */
        json_array_append_new(list, s ? s : json_string(""));
    }
    return list;
}

/* An array of the file; null unless `verbose`, since arrays hold the vocabulary. The reader keeps arrays of strings and
 * of 4-byte numbers only. */
static json_t *array_of(const struct gguf *g, const char *key, bool verbose)
{
    struct err e;
    const struct gguf_str *s;
    const int32_t *w;
    const float *f;
    uint64_t n = 0;
    if (!verbose)
        return json_null();
    if (!gguf_strs(&e, g, key, &s, &n))
        return strings(s, n);
    json_t *list = NULL;
    if (!gguf_i32s(&e, g, key, &w, &n)) {
        list = json_array();
        for (uint64_t i = 0; i < n && list; i++)
            json_array_append_new(list, json_integer(w[i]));
    } else if (!gguf_f32s(&e, g, key, &f, &n)) {
        list = json_array();
        for (uint64_t i = 0; i < n && list; i++)
            json_array_append_new(list, isfinite(f[i]) ? json_real((double)f[i]) : json_null());
    }
    return list ? list : json_null();
}

static json_t *value_of(const struct gguf *g, const char *key, bool verbose)
{
    struct err e;
    struct gguf_str s;
    uint64_t u;
    double d;
    bool b;
    if (!gguf_string(&e, g, key, &s))
        return json_stringn(s.p, s.n);
    if (!gguf_u64(&e, g, key, &u, 0, INT64_MAX))
        return json_integer((json_int_t)u);
    if (!gguf_f64(&e, g, key, &d))
        return isfinite(d) ? json_real(d) : json_null();
    if (!gguf_bool(&e, g, key, &b))
        return json_boolean(b);
    return array_of(g, key, verbose);
}

/* The metadata of the file, except what has fields of its own. */
static json_t *model_info(const struct api_model *m, bool verbose)
{
    char key[256];
    json_t *o = json_object();
    uint64_t n = gguf_key_count(m->gguf);
    json_object_set_new(o, "general.parameter_count", json_integer((json_int_t)m->n_param));
    for (uint64_t i = 0; i < n && o; i++) {
        struct gguf_str k = gguf_key_at(m->gguf, i);
        if (!k.n || k.n >= sizeof key || memchr(k.p, 0, k.n))
            continue;
        memcpy(key, k.p, k.n);
        key[k.n] = 0;
        if (!strcmp(key, "general.name") || !strcmp(key, "tokenizer.chat_template"))
            continue;
        json_t *v = value_of(m->gguf, key, verbose);
        json_object_set_new(o, key, v ? v : json_null()); /* fails for a key that is not UTF-8, which is left out */
    }
    return o;
}

static json_t *tensors(const struct gguf *g)
{
    json_t *list = json_array();
    for (uint64_t i = 0; i < gguf_tensor_count(g) && list; i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const char *type = gguf_type_name(t->type);
        json_t *shape = json_array(), *name = json_stringn(t->name.p, t->name.n);
        for (int k = 0; k < t->n_dim; k++)
            json_array_append_new(shape, json_integer((json_int_t)t->dim[k]));
        json_array_append_new(list, json_pack("{s:o,s:s,s:o}", "name", name ? name : json_string(""), "type",
                                              type ? type : "unknown", "shape", shape));
    }
    return list;
}

json_t *ollama_show(const struct api_model *m, bool verbose)
{
    struct err e;
    struct gguf_str license;
    struct str file = {0}, parameters = {0};
    char when[OLLAMA_TIME_BYTES];
    json_t *o = json_object();
    modelfile(&file, m);
    add_parameters(&parameters, m, "", true);
    ollama_time(when, m->created, 0);
    if (!gguf_string(&e, m->gguf, "general.license", &license) && license.n)
        json_object_set_new(o, "license", json_stringn(license.p, license.n));
    json_object_set_new(o, "modelfile", text_of(&file));
    json_object_set_new(o, "parameters", text_of(&parameters));
    json_object_set_new(o, "template", json_string(m->chat_template ? m->chat_template : "{{ .Prompt }}"));
    json_object_set_new(o, "details", details(m));
    json_object_set_new(o, "model_info", model_info(m, verbose));
    if (verbose)
        json_object_set_new(o, "tensors", tensors(m->gguf));
    json_object_set_new(o, "capabilities", json_pack("[s]", "completion"));
    json_object_set_new(o, "modified_at", json_string(when));
    return o;
}
