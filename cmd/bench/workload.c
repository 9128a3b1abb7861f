/* The requests: lengths and prompts, made when a request is sent, from the seed and its number. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/bench/bench.h"
#include "proc/proc.h"

/* Purposes of random sequences: different ones are independent. */
enum { OF_LENGTHS = 1, OF_OWN, OF_PREFIX, OF_BLOCK, OF_TURN, OF_WARM };

struct workload {
    const struct opts *o;
    const struct pool *pool;
    const struct server *server;
    struct probe *probe;
    struct load_items items;
    char *tail;         /* owned: the end of a body, ,"model":…} */
    bool has_length;    /* tail has the answer's length, or none is sent */
    uint32_t n_out_all; /* that length; 0: the workload's */
    uint64_t *turn;     /* [n_prefixes] the order of the current round */
    uint64_t round;
    size_t n_left_out, n_unknown;
    uint64_t token_limit; /* limit of tokens per request; 0: none */
    bool no_count;        /* the server does not report token counts */
    uint32_t n_template;  /* tokens that the chat template adds */
};

static uint64_t stream(uint64_t tag, uint64_t i)
{
    return tag << 56 ^ i;
}

static const char *length_field(const struct opts *o)
{
    return o->chat ? "max_completion_tokens" : "max_tokens";
}

/* Makes the end of a body: all fields but the prompt and those that the workload sets per request. */
static int make_tail(struct err *e, struct workload *w, const struct server *s)
{
    const struct opts *o = w->o;
    json_t *j = json_pack("{s:s, s:b, s:{s:b}}", "model", s->model, "stream", 1, "stream_options", "include_usage", 1);
    json_t *extra = o->extra_body ? json_loads(o->extra_body, 0, NULL) : NULL;
    const char *key;
    json_t *value;
    void *next;
    if (o->ignore_eos)
        json_object_set_new(j, "ignore_eos", json_true());
    if (o->has_temperature)
        json_object_set_new(j, "temperature", json_real(o->temperature));
    json_t *length = json_object_get(extra, length_field(o)); /* the API's other name for it counts as well */
    length = length ? length : json_object_get(extra, o->chat ? "max_tokens" : "max_completion_tokens");
    json_int_t n = json_integer_value(length);
    w->has_length = length != NULL;
    w->n_out_all = n >= 1 && n <= LOAD_TOKENS_MAX ? (uint32_t)n : 0;
    json_object_foreach_safe(extra, next, key, value)
    {
        if (json_is_null(value))
            json_object_del(j, key);
        else
            json_object_set(j, key, value);
    }
    w->tail = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    json_decref(extra);
    if (!w->tail)
        return err_set(e, ERR_SYS, "out of memory for the request");
    w->tail[0] = w->tail[1] == '}' ? ' ' : ','; /* replaces its brace */
    return 0;
}

static uint32_t planned_out(const struct workload *w, const struct load_item *x)
{
    return w->n_out_all ? w->n_out_all : x->n_out ? x->n_out : (uint32_t)w->o->out_len;
}

static int count_template(struct err *e, struct workload *w)
{
    char one[80];
    bool again;
    snprintf(one, sizeof one, "[{\"role\":\"user\",\"content\":\"%s\"}]", bench_words[0]);
    int rc = probe_count_tokens(e, &w->n_template, &again, w->probe, w->server, one, true);
    w->n_template -= w->n_template > 0;
    return rc;
}

/* Counts the tokens of a text or messages if the request may not fit, or if a warm-up must have its length. A text has
 * at most as many tokens as bytes, and a few more. */
static int count_tokens(struct err *e, struct workload *w, struct load_item *x)
{
    bool may_fail = w->token_limit && (x->chat || strlen(x->body) + 8 + planned_out(w, x) > w->token_limit);
    bool again = true;
    int rc = 0;
    if (x->n_prompt || (!may_fail && w->items.n > w->o->n_warmup))
        return 0;
    if (!w->no_count)
        rc = probe_count_tokens(e, &x->n_prompt, &again, w->probe, w->server, x->body, x->chat);
    if (!rc && x->n_prompt && x->chat && w->o->n_warmup && !w->n_template)
        rc = count_template(e, w);
    w->no_count |= !again;
    w->n_unknown += may_fail && !x->n_prompt;
    return rc;
}

static uint32_t scaled(uint32_t n, double by)
{
    double x = n * by;
    return x < 1 ? 1 : x > LOAD_TOKENS_MAX ? LOAD_TOKENS_MAX : (uint32_t)x;
}

/* Scales lengths and times of the newest item; drops it if it does not fit the context length. */
static int admit(struct err *e, struct workload *w)
{
    const struct opts *o = w->o;
    struct load_item *x = &w->items.v[w->items.n - 1];
    if (o->dataset == DATA_TRACE) {
        x->at_s *= o->time_scale;
        x->n_prompt = scaled(x->n_prompt, o->length_scale);
        x->n_out = scaled(x->n_out, o->length_scale);
    } else if (x->chat != o->chat) {
        return err_set(e, ERR_NO, "%s: this endpoint requires %s", o->chat ? "a prompt" : "messages",
                       o->chat ? "messages" : "a prompt");
    } else if (count_tokens(e, w, x)) {
        return e->code;
    }
    if (w->token_limit && (uint64_t)x->n_prompt + planned_out(w, x) > w->token_limit) {
        free(x->hash);
        free(x->body);
        w->items.n--;
        w->n_left_out++;
    }
    return 0;
}

static void warn_lengths(const struct workload *w)
{
    if (w->n_left_out)
        cli_warn(PROG, "%s: skipped %zu requests that take more than %llu tokens", w->o->path, w->n_left_out,
                 (unsigned long long)w->token_limit);
    if (w->n_unknown)
        cli_warn(PROG, "%s: the server does not report the token count of %zu requests: they are sent", w->o->path,
                 w->n_unknown);
}

static int read_file(struct err *e, struct workload *w)
{
    const struct opts *o = w->o;
    bool is_stdin = !strcmp(o->path, "-");
    FILE *in = is_stdin ? stdin : fopen(o->path, "r");
    char *line = NULL;
    size_t size = 0, n_line = 0;
    ssize_t n;
    double zero_s = -1;
    int rc = in ? 0 : err_sys(e, "%s", o->path);
    while (!rc && w->items.n < o->n_prompts && !proc_term_count() && (n = getline(&line, &size, in)) >= 0) {
        size_t n_before = w->items.n;
        n_line++;
        rc = o->dataset == DATA_TRACE ? load_trace_line(e, &w->items, &zero_s, line, (size_t)n)
                                      : load_list_line(e, &w->items, line, (size_t)n);
        if (!rc && w->items.n > n_before)
            rc = admit(e, w);
        if (rc)
            err_prefix(e, "%s: line %zu", o->path, n_line);
    }
    if (!rc && ferror(in))
        rc = err_sys(e, "%s", o->path);
    free(line);
    if (in && !is_stdin)
        fclose(in);
    if (rc)
        return rc;
    warn_lengths(w);
    return w->items.n || proc_term_count() ? 0 : err_set(e, ERR_NO, "%s: no requests", o->path);
}

int workload_open(struct err *e, struct workload **out, const struct opts *o, const struct server *s, struct probe *a,
                  const struct pool *p)
{
    struct workload *w = calloc(1, sizeof *w);
    *out = w;
    if (!w)
        return err_nomem(e, "the workload", sizeof *w);
    w->o = o;
    w->pool = p;
    w->server = s;
    w->probe = a;
    w->token_limit = o->model_len ? o->model_len : s->model_len;
    w->round = UINT64_MAX;
    if (o->dataset == DATA_PREFIX && !(w->turn = malloc(o->n_prefixes * sizeof *w->turn)))
        return err_nomem(e, "prefixes", o->n_prefixes * sizeof *w->turn);
    int rc = make_tail(e, w, s);
    return rc || !o->path ? rc : read_file(e, w);
}

void workload_close(struct workload *w)
{
    if (!w)
        return;
    load_items_free(&w->items);
    free(w->tail);
    free(w->turn);
    free(w);
}

/* A trace is sent once; a list is repeated if a number of requests or a duration is given. */
uint64_t workload_count(const struct workload *w)
{
    const struct opts *o = w->o;
    bool once = o->dataset == DATA_TRACE || (o->dataset == DATA_LIST && o->n_prompts == UINT64_MAX && !o->duration_s);
    return once ? w->items.n : UINT64_MAX;
}

double workload_at(const struct workload *w, uint64_t i)
{
    return w->items.v[i].at_s;
}

/* ---- prompts ---- */

struct writing {
    struct err *e;
    struct str *out;
    struct workload *w;
    bool first;
};

/* Bodies have one number per token: printf would take longer than everything else. */
static void add_u64(struct str *s, uint64_t v)
{
    char digits[20];
    size_t n = sizeof digits;
    do {
        digits[--n] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    str_add(s, digits + n, sizeof digits - n);
}

/* Appends n tokens of a random sequence. */
static int tokens(struct writing *t, uint64_t of, uint64_t n)
{
    const struct pool *p = t->w->pool;
    struct load_rng r;
    load_rng_start(&r, t->w->o->seed, of);
    for (uint64_t i = 0; i < n; i++) {
        if (!t->first)
            str_add_char(t->out, t->w->o->ids ? ',' : ' ');
        t->first = false;
        if (t->w->o->ids)
            add_u64(t->out, p->vocab ? load_rng_below(&r, p->vocab) : p->ids[load_rng_below(&r, p->n_ids)]);
        else
            str_add_text(t->out, p->words[load_rng_below(&r, p->n_words)]);
    }
    return str_check(t->e, t->out, "a request");
}

/* A random integer from floor(mean · (1 - range)) to ceil(mean · (1 + range)), at least `least`. */
static uint64_t length(struct load_rng *r, uint64_t mean, double range, uint64_t least)
{
    uint64_t low = (uint64_t)floor((double)mean * (1 - range)), high = (uint64_t)ceil((double)mean * (1 + range));
    uint64_t n = low + load_rng_below(r, high - low + 1);
    return n < least ? least : n;
}

/* Every round of n_prefixes requests has each prefix once, in a random order. */
static uint64_t prefix_of(struct workload *w, uint64_t i)
{
    uint64_t n = w->o->n_prefixes, round = i / n;
    if (round != w->round) {
        struct load_rng r;
        load_rng_start(&r, w->o->seed, stream(OF_TURN, round));
        for (uint64_t k = 0; k < n; k++) {
            uint64_t at = load_rng_below(&r, k + 1);
            w->turn[k] = w->turn[at];
            w->turn[at] = k;
        }
        w->round = round;
    }
    return w->turn[i % n];
}

static int random_prompt(struct writing *t, uint32_t *n_prompt, uint32_t *n_out, uint64_t i, bool warm)
{
    const struct opts *o = t->w->o;
    struct load_rng r;
    load_rng_start(&r, o->seed, stream(OF_LENGTHS, i));
    uint64_t own = length(&r, o->in_len, o->in_range, o->prefix_len ? 0 : 1);
    *n_out = (uint32_t)length(&r, o->out_len, o->out_range, 1);
    *n_prompt = (uint32_t)(o->prefix_len + own);
    int rc = tokens(t, stream(OF_PREFIX, 0), o->prefix_len);
    return rc ? rc : tokens(t, stream(warm ? OF_WARM : OF_OWN, i), own);
}

static int prefix_prompt(struct writing *t, uint32_t *n_prompt, uint32_t *n_out, uint64_t i, bool warm)
{
    const struct opts *o = t->w->o;
    *n_prompt = (uint32_t)(o->repeat_prefix_len + o->repeat_suffix_len);
    *n_out = (uint32_t)o->repeat_out_len;
    uint64_t prefix = warm ? stream(OF_WARM, i | 1ull << 40) : stream(OF_PREFIX, prefix_of(t->w, i));
    int rc = tokens(t, prefix, o->repeat_prefix_len);
    return rc ? rc : tokens(t, stream(warm ? OF_WARM : OF_OWN, i), o->repeat_suffix_len);
}

/* Blocks with equal hash ids are equal; the rest of a prompt is unique to the request. */
static int trace_prompt(struct writing *t, uint32_t *n_prompt, uint32_t *n_out, uint64_t i, bool warm)
{
    const struct load_item *x = &t->w->items.v[i % t->w->items.n];
    double block = LOAD_BLOCK * t->w->o->length_scale;
    uint64_t left = x->n_prompt, done = 0;
    *n_prompt = x->n_prompt;
    *n_out = x->n_out;
    for (uint32_t k = 0; k < x->n_hash && left && !warm; k++) {
        uint64_t end = (uint64_t)(block * (k + 1)), n = end > done ? end - done : 0;
        n = n < left ? n : left;
        if (tokens(t, stream(OF_BLOCK, x->hash[k]), n))
            return t->e->code;
        left -= n;
        done += n;
    }
    return tokens(t, stream(warm ? OF_WARM : OF_OWN, i), left);
}

/* A warm-up has the same length, in words; if it was not counted, one word for four bytes. */
static int list_prompt(struct writing *t, uint32_t *n_prompt, uint32_t *n_out, uint64_t i, bool warm)
{
    const struct load_item *x = &t->w->items.v[i % t->w->items.n];
    uint64_t n = x->n_prompt ? x->n_prompt : strlen(x->body) / 4;
    *n_prompt = x->n_prompt;
    *n_out = planned_out(t->w, x);
    if (warm)
        return tokens(t, stream(OF_WARM, i), n > t->w->n_template ? n - t->w->n_template : 1);
    str_add_text(t->out, x->body);
    return 0;
}

static int prompt(struct writing *t, uint32_t *n_prompt, uint32_t *n_out, uint64_t i, bool warm)
{
    switch (t->w->o->dataset) {
    case DATA_PREFIX:
        return prefix_prompt(t, n_prompt, n_out, i, warm);
    case DATA_TRACE:
        return trace_prompt(t, n_prompt, n_out, i, warm);
    case DATA_LIST:
        return list_prompt(t, n_prompt, n_out, i, warm);
    case DATA_RANDOM:
        break;
    }
    return random_prompt(t, n_prompt, n_out, i, warm);
}

int workload_body(struct err *e, struct str *out, uint32_t *n_prompt, uint32_t *n_out, struct workload *w, uint64_t i,
                  bool warm)
{
    const struct opts *o = w->o;
    struct writing t = {e, out, w, true};
    bool made = o->dataset != DATA_LIST || warm;
    const char *open = o->ids ? "[" : "\"", *close = o->ids ? "]" : "\"";
    str_clear(out);
    if (!made)
        open = close = "";
    else if (o->chat)
        open = "[{\"role\":\"user\",\"content\":\"", close = "\"}]";
    str_printf(out, "{\"%s\":%s", o->chat ? "messages" : "prompt", open);
    int rc = prompt(&t, n_prompt, n_out, i, warm);
    str_add_text(out, close);
    *n_out = w->n_out_all ? w->n_out_all : *n_out;
    if (!w->has_length)
        str_printf(out, ",\"%s\":%" PRIu32, length_field(o), *n_out);
    str_add_text(out, w->tail);
    return rc ? rc : str_check(e, out, "a request");
}
