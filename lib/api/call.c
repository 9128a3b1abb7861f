/* Calls: an HTTP request is some requests to the gateway, and what comes of them is told to its surface. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/time.h"
#include "request/ask.h"

static size_t bucket(uint64_t seq)
{
    return (size_t)(seq % API_BUCKETS); /* they are given out in order */
}

static struct call_line *find(const struct api *a, uint64_t seq)
{
    struct call_line *l = a->by_seq[bucket(seq)];
    while (l && l->seq != seq)
        l = l->next_hash;
    return l;
}

static void unhash(struct call_line *l)
{
    struct call_line **at = &l->c->a->by_seq[bucket(l->seq)];
    if (!l->hashed)
        return;
    while (*at != l)
        at = &(*at)->next_hash;
    *at = l->next_hash;
    l->hashed = false;
}

static void hash(struct call_line *l)
{
    struct call_line **at = &l->c->a->by_seq[bucket(l->seq)];
    l->next_hash = *at;
    *at = l;
    l->hashed = true;
}

/* ---- begin and end ---- */

void call_later(struct call *c)
{
    if (list_empty(&c->later))
        list_push_front(&c->a->later, &c->later);
}

void call_flush_all(struct api *a)
{
    for (struct list *n; (n = list_pop_front(&a->later));) {
        struct call *c = list_entry(n, struct call, later);
        if (c->ops->flush)
            c->ops->flush(c);
    }
}

/* When its HTTP request is no more, whatever the end. */
void call_free(struct call *c)
{
    struct api *a = c->a;
    list_remove(&c->later);
    for (uint32_t i = 0; i < c->n_line; i++) {
        unhash(&c->line[i]);
        free(c->line[i].choice);
    }
    list_remove(&c->node);
    a->n_call--;
    free(c->line);
    free(c);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

/* With the last of a request's choices: how many there were, and how long the longest is. */
static void of_all_choices(struct metrics_end *m, const struct call *c, const struct call_line *l)
{
    uint32_t most = 0;
    for (uint32_t k = 0; k < c->n; k++) {
        if (!l->choice[k].ended)
            return;
        most = l->choice[k].n_token > most ? l->choice[k].n_token : most;
    }
    m->n_choice = c->n;
    m->most_tokens = most;
}

/* One choice is no more; w: NULL where it did not end by itself. */
static void choice_over(struct call *c, struct call_line *l, struct call_choice *x, enum wire_reason reason,
                        const struct wire_end *w)
{
    struct metrics_end m = {
        .reason = reason,
        .max_tokens = l->max_tokens,
        .n_prompt = l->n_prompt,
        .n_cached = x->n_cached,
        .e2e_s = seconds(c->arrived_ns, time_now_ns()),
        .ttft_s = x->first_ns ? seconds(c->arrived_ns, x->first_ns) : -1,
        .last_s = seconds(x->first_ns, x->last_ns),
        .w = w,
    };
    x->ended = true;
    if (x->first_ns)
        c->a->n_running--;
    else
        c->a->n_waiting--;
    c->n_left--;
    if (reason == WIRE_ERROR && !l->n_prompt) /* refused by its text: the engine never heard of it */
        return;
    of_all_choices(&m, c, l);
    metrics_end(c->a->metrics, &m);
}

/* Nothing more is heard of what still runs. */
static void cut(struct call *c, enum wire_reason reason)
{
    for (uint32_t i = 0; i < c->n_line; i++) {
        struct call_line *l = &c->line[i];
        if (l->hashed && c->a->gateway)
            gateway_cancel(c->a->gateway, l->seq);
        unhash(l);
        for (uint32_t k = 0; k < c->n; k++)
            if (!l->choice[k].ended)
                choice_over(c, l, &l->choice[k], reason, NULL);
    }
}

/* The surface writes the last of the answer; by that its request ends, and the call with it. */
static void finish(struct call *c)
{
    const struct call_ops *ops = c->ops;
    void *state = c->state;
    ops->done(c);
    if (ops->free)
        ops->free(state);
}

void call_cancel(struct call *c)
{
    cut(c, WIRE_CANCELLED);
    finish(c);
}

void call_gone(struct call *c)
{
    cut(c, WIRE_CANCELLED);
    if (c->ops->free)
        c->ops->free(c->state);
}

static void fail(struct call *c, uint32_t line, uint32_t choice, const struct call_error *why)
{
    cut(c, WIRE_ERROR);
    if (c->ops->fail)
        c->ops->fail(c, line, choice, why);
    finish(c);
}

/* tokenize has not answered for one of its lines. */
static bool is_unread(const struct call *c)
{
    for (uint32_t i = 0; i < c->n_line; i++)
        if (!c->line[i].n_prompt)
            return true;
    return false;
}

void call_fail_all(struct api *a, enum calls which, const struct call_error *why)
{
    list_each_safe (struct call, c, &a->calls, node) {
        if (which == CALLS_ALL || (which == CALLS_WAITING && !c->first_ns) || (which == CALLS_UNREAD && is_unread(c)))
            fail(c, 0, 0, why);
    }
}

static int refuse(struct err *e, struct call_error *why, int status, double retry_s, const char *text)
{
    err_set(e, ERR_NO, "%s", text);
    *why = (struct call_error){status, retry_s, e->text};
    return ERR_NO;
}

static int admit(struct err *e, const struct api *a, uint64_t n, struct call_error *why)
{
    uint64_t since = 0, now = time_now_ns();
    char text[120];
    if (n > a->o.waiting_max) { /* there is never room for it: by 429 it would come again for ever */
        snprintf(text, sizeof text, "%llu answers in one request: at most %u may wait here", (unsigned long long)n,
                 a->o.waiting_max);
        return refuse(e, why, 400, 0, text);
    }
    if (a->draining)
        return refuse(e, why, 503, 1, "the server ends");
    if (a->wrong_vocab)
        return refuse(e, why, 500, 0, "tokenize serves another vocabulary than the model of the edge");
    if (api_absent(a, &since) && now - since > API_ABSENT_NEW_NS)
        return refuse(e, why, 503, 5, API_ABSENT_TEXT);
    if (a->n_waiting + n > a->o.waiting_max)
        return refuse(e, why, 429, 1, "too many requests wait");
    return 0;
}

static int new_call(struct err *e, struct call **out, uint32_t n_line, uint32_t n)
{
    struct call *c = calloc(1, sizeof *c);
    *out = c;
    if (!c || !(c->line = calloc(n_line, sizeof *c->line)))
        return err_nomem(e, "a call", n_line * sizeof *c->line);
    for (uint32_t i = 0; i < n_line; i++, c->n_line++)
        if (!(c->line[i].choice = calloc(n, sizeof *c->line[i].choice)))
            return err_nomem(e, "a call", n * sizeof *c->line[i].choice);
    c->n = n;
    c->n_left = n * n_line;
    return 0;
}

static void drop(struct call *c)
{
    for (uint32_t i = 0; c && i < c->n_line; i++)
        free(c->line[i].choice);
    if (c)
        free(c->line);
    free(c);
}

/* A line that asks for no smaller window than there is has that one. */
static char *in_window(const struct api *a, const json_t *line)
{
    const json_t *own = json_object_get(line, "window");
    bool smaller = json_is_integer(own) && (uint64_t)json_integer_value(own) <= a->model.context;
    if (a->model.context == a->window_file || smaller)
        return json_dumps(line, JSON_COMPACT);
    json_t *mine = json_copy((json_t *)(uintptr_t)line);
    char *text = NULL;
    if (mine && !json_object_set_new(mine, "window", json_integer((json_int_t)a->model.context)))
        text = json_dumps(mine, JSON_COMPACT);
    json_decref(mine);
    return text;
}

/* The lines go out; one that cannot is an error of the whole. */
static int ask_all(struct err *e, struct call *c, const json_t *const *line)
{
    struct api *a = c->a;
    int rc = 0;
    for (uint32_t i = 0; i < c->n_line && !rc; i++) {
        struct call_line *l = &c->line[i];
        char *text = in_window(a, line[i]);
        rc = text ? gateway_ask(e, a->gateway, l->seq, (struct wire_str){0}, text, strlen(text))
                  : err_nomem(e, "a request", 0);
        free(text);
        if (!rc)
            hash(l);
    }
    for (uint32_t i = 0; rc && i < c->n_line; i++) {
        if (c->line[i].hashed)
            gateway_cancel(a->gateway, c->line[i].seq);
        unhash(&c->line[i]);
    }
    return rc;
}

int call_start(struct err *e, struct call **out, struct api *a, struct http_request *r, const struct call_ops *ops,
               void *state, const json_t *const *line, uint32_t n_line, uint32_t n, struct call_error *why)
{
    struct call *c = NULL;
    *out = NULL;
    *why = (struct call_error){500, 0, "out of memory"};
    if (admit(e, a, (uint64_t)n_line * n, why))
        return e->code;
    int rc = new_call(e, &c, n_line, n);
    if (rc) {
        drop(c);
        return rc;
    }
    c->a = a;
    c->r = r;
    c->ops = ops;
    c->state = state;
    c->arrived_ns = http_arrived_ns(r);
    for (uint32_t i = 0; i < n_line; i++) {
        c->line[i].c = c;
        c->line[i].seq = a->next_seq++;
    }
    rc = ask_all(e, c, line);
    if (rc) {
        drop(c);
        return rc;
    }
    list_push_front(&a->calls, &c->node);
    list_init(&c->later);
    a->n_call++;
    a->n_waiting += c->n_left;
    struct api_request *q = http_get(r);
    q->call = c;
    *out = c;
    return 0;
}

void *call_state(struct call *c)
{
    return c->state;
}

struct http_request *call_http(struct call *c)
{
    return c->r;
}

uint64_t call_arrived_ns(const struct call *c)
{
    return c->arrived_ns;
}

uint64_t call_first_ns(const struct call *c)
{
    return c->first_ns;
}

/* ---- what comes ---- */

static void on_out(struct call_line *l, const struct wire_out *o)
{
    struct call *c = l->c;
    struct api *a = c->a;
    struct call_choice *x = o->index < c->n ? &l->choice[o->index] : NULL;
    if (!x || x->ended)
        return;
    if (!o->prompt && o->n_id) {
        uint64_t now = time_now_ns();
        if (!x->first_ns) {
            x->first_ns = now;
            x->n_cached = o->cached;
            a->n_waiting--;
            a->n_running++;
            if (!c->first_ns)
                c->first_ns = now;
            metrics_first(a->metrics, seconds(c->arrived_ns, now), o->n_id);
        } else {
            metrics_tokens(a->metrics, seconds(x->last_ns, now), o->n_id);
        }
        x->last_ns = now;
        x->n_token += o->n_id;
    }
    c->ops->out(c, (uint32_t)(l - c->line), o->index, o);
}

static void on_end(struct call_line *l, const struct wire_end *w)
{
    struct call *c = l->c;
    struct call_choice *x = w->index < c->n ? &l->choice[w->index] : NULL;
    uint32_t line = (uint32_t)(l - c->line);
    if (w->reason == WIRE_ERROR || w->reason == WIRE_CANCELLED) { /* not by a client: that is heard of no more */
        const struct call_error why = {w->reason == WIRE_ERROR ? 500 : 503, w->reason == WIRE_ERROR ? 0 : 1,
                                       w->reason == WIRE_ERROR ? "the answer failed" : "the answer was cancelled"};
        fail(c, line, w->index, &why);
        return;
    }
    if (!x || x->ended)
        return;
    choice_over(c, l, x, w->reason, w);
    c->ops->end(c, line, w->index, w);
    if (!c->n_left)
        finish(c);
}

static int status_of(const struct call_line *l, const struct wire_error *w)
{
    const struct api *a = l->c->a;
    if (l->retry_ns)
        return 429;
    if (w->code == ERR_SYS && !l->n_prompt) /* of tokenize, which has no room just now */
        return 503;
    if (w->code != ERR_NO)
        return 500;
    bool late = a->o.deadline_s > 0 && seconds(l->c->arrived_ns, time_now_ns()) >= a->o.deadline_s;
    return late ? 504 : 400;
}

static void on_error(struct call_line *l, const struct wire_error *w)
{
    char text[2048];
    size_t n = w->text.n < sizeof text - 1 ? w->text.n : sizeof text - 1;
    memcpy(text, w->text.n ? w->text.p : "", n);
    text[n] = 0;
    struct call *c = l->c;
    int status = status_of(l, w);
    const struct call_error why = {status, l->retry_ns ? (double)l->retry_ns / 1e9 : status == 503, text};
    if (!l->n_prompt)
        watch_tokenize_lives(c->a->watch);
    fail(c, (uint32_t)(l - c->line), w->index, &why);
}

static void on_hello(struct api *a, const struct wire_hello *h)
{
    bool wrong = h->has_vocab && (h->vocab_fp.n != 32 || memcmp(h->vocab_fp.p, text_fingerprint(a->text), 32));
    if (wrong && !a->wrong_vocab)
        api_say(a, "%s serves another vocabulary than that of %s: requests are refused", a->o.tokenize, a->model.path);
    a->wrong_vocab = wrong;
    if (wrong) {
        const struct call_error why = {500, 0, "tokenize serves another vocabulary than the model of the edge"};
        call_fail_all(a, CALLS_WAITING, &why);
    }
}

void api_on_frame(void *arg, const struct wire_frame *f)
{
    struct api *a = arg;
    struct call_line *l;
    switch (f->kind) {
    case WIRE_HELLO:
        on_hello(a, &f->hello);
        return;
    case WIRE_OUT:
        if ((l = find(a, f->out.seq)))
            on_out(l, &f->out);
        return;
    case WIRE_END:
        if ((l = find(a, f->end.seq)))
            on_end(l, &f->end);
        return;
    case WIRE_ERR:
        if ((l = find(a, f->error.seq)))
            on_error(l, &f->error);
        return;
    default:
        return;
    }
}

void api_on_read(void *arg, uint64_t seq, const struct wire_prompt *q)
{
    struct call_line *l = find(arg, seq);
    if (!l)
        return;
    watch_tokenize_lives(l->c->a->watch);
    l->max_tokens = q->max_tokens;
    l->n_prompt = q->n_prompt;
    if (l->c->ops->prompt)
        l->c->ops->prompt(l->c, (uint32_t)(l - l->c->line), q);
}

void api_on_full(void *arg, uint64_t seq, uint64_t retry_ns)
{
    struct call_line *l = find(arg, seq);
    if (l)
        l->retry_ns = retry_ns ? retry_ns : 1;
}
