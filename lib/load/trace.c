/* Traces (arrival times, lengths, shared blocks) and lists of requests, one per line. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "load/load.h"

void load_items_free(struct load_items *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->v[i].hash);
        free(t->v[i].body);
    }
    free(t->v);
    *t = (struct load_items){0};
}

/* Returns an element at the end of the array; the caller adds it by t->n++. */
static int place(struct err *e, struct load_item **out, struct load_items *t)
{
    int rc = vec_reserve(e, &t->v, &t->size, t->n + 1, sizeof *t->v, "requests");
    if (rc)
        return rc;
    *out = &t->v[t->n];
    **out = (struct load_item){0};
    return 0;
}

static bool empty(const char *line, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", line[i]))
        i++;
    return i == n || line[i] == '#' || (n - i >= 9 && !memcmp(line + i, "TIMESTAMP", 9));
}

static int lengths(struct err *e, struct load_item *x, double prompt, double out)
{
    if (!(prompt >= 1 && prompt <= LOAD_TOKENS_MAX && out >= 0 && out <= LOAD_TOKENS_MAX))
        return err_set(e, ERR_NO, "%g prompt tokens and %g answer tokens: outside 1 and 0 to %u", prompt, out,
                       LOAD_TOKENS_MAX);
    x->n_prompt = (uint32_t)prompt;
    x->n_out = out < 1 ? 1 : (uint32_t)out;
    return 0;
}

/* Stores those ids that name a block of the prompt. */
static int hashes(struct err *e, struct load_item *x, const json_t *ids)
{
    size_t n = json_array_size(ids), blocks = (x->n_prompt + LOAD_BLOCK - 1) / LOAD_BLOCK;
    if (ids && !json_is_null(ids) && !json_is_array(ids))
        return err_set(e, ERR_NO, "hash_ids is not a list");
    n = n < blocks ? n : blocks;
    if (!n)
        return 0;
    x->hash = malloc(n * sizeof *x->hash);
    if (!x->hash)
        return err_nomem(e, "hash ids", n * sizeof *x->hash);
    for (; x->n_hash < n; x->n_hash++) {
        const json_t *id = json_array_get(ids, x->n_hash);
        if (!json_is_integer(id))
            return err_set(e, ERR_NO, "hash_ids[%u] is not an integer", x->n_hash);
        x->hash[x->n_hash] = (uint64_t)json_integer_value(id);
    }
    return 0;
}

static int field(struct err *e, double *out, const json_t *j, const char *name)
{
    const json_t *v = json_object_get(j, name);
    *out = json_number_value(v);
    return json_is_number(v) ? 0 : err_set(e, ERR_NO, "%s %s", name, v ? "is not a number" : "is missing");
}

static int mooncake(struct err *e, struct load_items *t, const char *line, size_t n)
{
    json_error_t at;
    json_t *j = json_loadb(line, n, 0, &at);
    struct load_item *x = NULL;
    if (!j)
        return err_set(e, ERR_NO, "column %d: %.200s", at.column, at.text);
    double ms, prompt, out;
    int rc = field(e, &ms, j, "timestamp");
    if (!rc && !(ms >= 0 && ms < 1e15))
        rc = err_set(e, ERR_NO, "timestamp: %g is not a time in ms from 0 to 1e15", ms);
    rc = rc ? rc : field(e, &prompt, j, "input_length");
    rc = rc ? rc : field(e, &out, j, "output_length");
    rc = rc ? rc : place(e, &x, t);
    if (!rc) {
        x->at_s = ms / 1e3;
        rc = lengths(e, x, prompt, out);
        rc = rc ? rc : hashes(e, x, json_object_get(j, "hash_ids"));
        if (rc)
            free(x->hash);
        else
            t->n++;
    }
    json_decref(j);
    return rc;
}

/* Parses the day of the month and the time of 2023-11-16 18:17:03.9799600. The month is ignored, so a trace across the
 * end of a month is refused as not ascending. */
static int azure(struct err *e, struct load_items *t, double *zero_s, const char *line, size_t n)
{
    char text[160];
    int month, day, hour, minute, used = 0;
    double second, prompt, out;
    struct load_item *x = NULL;
    size_t take = n < sizeof text - 1 ? n : sizeof text - 1;
    memcpy(text, line, take);
    text[take] = 0;
    if (sscanf(text, "%*4d-%2d-%2d %2d:%2d:%15lf,%15lf,%15lf%n", &month, &day, &hour, &minute, &second, &prompt, &out,
               &used) != 7 ||
        !used)
        return err_set(e, ERR_NO, "expected TIMESTAMP,ContextTokens,GeneratedTokens or a JSON object");
    bool is_day = month >= 1 && month <= 12 && day >= 1 && day <= 31;
    if (!is_day || hour < 0 || hour > 23 || minute < 0 || minute > 59 || !(second >= 0 && second < 61))
        return err_set(e, ERR_NO, "TIMESTAMP: %.*s is not a %s", (int)strcspn(text, ","), text,
                       is_day ? "time of day" : "date");
    double at = day * 86400.0 + hour * 3600.0 + minute * 60.0 + second;
    double zero = *zero_s < 0 ? at : *zero_s;
    if (at < zero)
        return err_set(e, ERR_NO, "TIMESTAMP: earlier than the first line's");
    int rc = place(e, &x, t);
    rc = rc ? rc : lengths(e, x, prompt, out);
    if (rc)
        return rc;
    *zero_s = zero;
    x->at_s = at - zero;
    t->n++;
    return 0;
}

int load_trace_line(struct err *e, struct load_items *t, double *zero_s, const char *line, size_t n)
{
    if (empty(line, n))
        return 0;
    return *line == '{' ? mooncake(e, t, line, n) : azure(e, t, zero_s, line, n);
}

static bool prompt_fits(const json_t *j, bool chat)
{
    if (chat)
        return json_array_size(j) > 0;
    if (json_is_string(j))
        return true;
    for (size_t i = 0; i < json_array_size(j); i++)
        if (!json_is_integer(json_array_get(j, i)))
            return false;
    return json_array_size(j) > 0;
}

static int list_item(struct err *e, struct load_item *x, const json_t *j)
{
    static const char *const counts[] = {"output_tokens", "max_tokens", "max_completion_tokens"};
    const json_t *body = json_object_get(j, "messages");
    x->chat = body != NULL;
    body = body ? body : json_object_get(j, "prompt");
    if (!body || !prompt_fits(body, x->chat))
        return err_set(e, ERR_NO, "expected prompt (a text or a list of ids) or messages");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const json_t *v = json_object_get(j, counts[i]);
        if (!v || json_is_null(v))
            continue;
        if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > LOAD_TOKENS_MAX)
            return err_set(e, ERR_NO, "%s: not an integer from 1 to %u", counts[i], LOAD_TOKENS_MAX);
        x->n_out = (uint32_t)json_integer_value(v);
        break;
    }
    x->n_prompt = x->chat ? 0 : (uint32_t)json_array_size(body);
    x->body = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY);
    return x->body ? 0 : err_set(e, ERR_SYS, "out of memory for a prompt");
}

int load_list_line(struct err *e, struct load_items *t, const char *line, size_t n)
{
    struct load_item *x = NULL;
    json_error_t at;
    if (empty(line, n))
        return 0;
    json_t *j = json_loadb(line, n, 0, &at);
    if (!j)
        return err_set(e, ERR_NO, "column %d: %.200s", at.column, at.text);
    int rc = place(e, &x, t);
    rc = rc ? rc : list_item(e, x, j);
    t->n += !rc;
    json_decref(j);
    return rc;
}
