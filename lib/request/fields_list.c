/* Fields with lists: strings, token ids, biases. */
#include "request/fields.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A string or a list of strings, none empty. *out: malloc'd, borrows the strings. */
static int read_texts(struct err *e, struct wire_str **out, uint32_t *n_out, struct ask_path *at, const json_t *v,
                      size_t most)
{
    size_t n = json_is_string(v) ? 1 : json_array_size(v);
    if (n > most)
        return err_set(e, ERR_NO, "%s: too many strings: %zu, the limit is %zu", at->text, n, most);
    struct wire_str *texts = calloc(n + 1, sizeof *texts);
    if (!texts)
        return err_nomem(e, "texts", n * sizeof *texts);
    free(*out);
    *out = texts;
    *n_out = (uint32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_string(v) ? v : json_array_get(v, i);
        size_t was = json_is_string(v) ? at->n : path_index(at, i);
        if (!json_is_string(x))
            return ask_wrong(e, at, "a string", x);
        if (json_string_length(x) == 0)
            return err_set(e, ERR_NO, "%s: must not be empty", at->text);
        texts[i] = (struct wire_str){json_string_value(x), json_string_length(x)};
        path_back(at, was);
    }
    return 0;
}

int field_stop_check(struct err *e, int code, const char *name, const struct wire_str *texts, size_t n)
{
    size_t n_byte = 0;
    for (size_t i = 0; i < n; i++)
        n_byte += texts[i].n;
    if (n_byte <= ASK_STOP_BYTES_MAX)
        return 0;
    return err_set(e, code, "%s: too long: %zu bytes together, the limit is %d", name, n_byte, ASK_STOP_BYTES_MAX);
}

int field_stop(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_string(v) && !json_is_array(v))
        return ask_wrong(e, at, "a string or a list of strings", v);
    int rc = read_texts(e, &a->stop, &a->s.n_stop, at, v, WIRE_STOPS_MAX);
    a->s.stop = a->stop;
    return rc ? rc : field_stop_check(e, ERR_NO, at->text, a->stop, a->s.n_stop);
}

/* Bans each string without its leading blanks; a blank string is refused. */
int field_bad_words(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_array(v))
        return ask_wrong(e, at, "a list of strings", v);
    if (read_texts(e, &a->bad, &a->n_bad, at, v, ASK_BAD_WORDS_MAX))
        return e->code;
    for (uint32_t i = 0; i < a->n_bad; i++) {
        struct wire_str *w = &a->bad[i];
        while (w->n && strchr(" \t\r\n", *w->p) && *w->p) {
            w->p++;
            w->n--;
        }
        size_t was = path_index(at, i);
        if (!w->n)
            return err_set(e, ERR_NO, "%s: must not be blank", at->text);
        if (w->n > ASK_BAD_BYTES_MAX)
            return err_set(e, ERR_NO, "%s: too long: %zu bytes, the limit is %d", at->text, w->n, ASK_BAD_BYTES_MAX);
        path_back(at, was);
    }
    return 0;
}

/* *out: malloc'd, NULL on failure; ask_check_ids compares the ids with the vocabulary. */
static int read_ids(struct err *e, uint32_t **out, size_t *n_out, struct ask_path *at, const json_t *v, size_t most)
{
    if (!json_is_array(v))
        return ask_wrong(e, at, "a list of token ids", v);
    size_t n = json_array_size(v);
    if (n > most)
        return err_set(e, ERR_NO, "%s: too many ids: %zu, the limit is %zu", at->text, n, most);
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids)
        return err_nomem(e, "token ids", n * sizeof *ids);
    free(*out);
    *out = ids;
    *n_out = n;
    for (size_t i = 0; i < n; i++) {
        size_t was = path_index(at, i);
        if (field_u32(e, &ids[i], at, json_array_get(v, i), 0, UINT32_MAX))
            return e->code;
        path_back(at, was);
    }
    return 0;
}

int field_stop_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    size_t n = 0;
    if (read_ids(e, &a->stop_ids, &n, at, v, WIRE_STOP_IDS_MAX))
        return e->code;
    a->s.stop_ids = a->stop_ids;
    a->s.n_stop_id = (uint32_t)n;
    return 0;
}

int field_allowed_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    size_t n = 0;
    if (read_ids(e, &a->allowed, &n, at, v, WIRE_ALLOWED_MAX))
        return e->code;
    if (!n)
        return err_set(e, ERR_NO, "%s: must not be empty", at->text);
    a->s.allowed = a->allowed;
    a->s.n_allowed = (uint32_t)n;
    return 0;
}

int field_prefix_ids(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    return read_ids(e, &a->prefix, &a->n_prefix, at, v, WIRE_IDS_MAX);
}

int field_logit_bias(struct err *e, struct ask *a, struct ask_path *at, const json_t *v)
{
    if (!json_is_object(v))
        return ask_wrong(e, at, "an object that maps token ids to numbers", v);
    size_t n = json_object_size(v), i = 0;
    if (n > WIRE_BIAS_MAX)
        return err_set(e, ERR_NO, "%s: too many ids: %zu, the limit is %d", at->text, n, WIRE_BIAS_MAX);
    a->bias = calloc(n + 1, sizeof *a->bias);
    if (!a->bias)
        return err_nomem(e, "logit_bias", n * sizeof *a->bias);
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)v, key, x)
    {
        size_t was = path_field(at, key), len = strlen(key);
        if (len == 0 || len > 10 || strspn(key, "0123456789") != len || strtoull(key, NULL, 10) > UINT32_MAX)
            return err_set(e, ERR_NO, "%s: expected a token id as key", at->text);
        a->bias[i].id = (uint32_t)strtoull(key, NULL, 10);
        if (field_f32(e, &a->bias[i].bias, at, x, -ASK_BIAS_ABS_MAX, ASK_BIAS_ABS_MAX))
            return e->code;
        path_back(at, was);
        for (size_t k = 0; k < i; k++) /* "7" and "07" are the same id */
            if (a->bias[k].id == a->bias[i].id)
                return err_set(e, ERR_NO, "%s: duplicate id %u", at->text, a->bias[i].id);
        i++;
    }
    a->s.bias = a->bias;
    a->s.n_bias = (uint32_t)n;
    return 0;
}
