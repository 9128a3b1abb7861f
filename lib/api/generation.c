/* Generations: an HTTP request becomes requests to the gateway, whose frames are passed to its API dialect. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_impl.h"
#include "base/time.h"
#include "request/ask.h"

#define WORK_NS (5 * NS_MS) /* of work in one step of the loop */
#define VOCAB_TEXT "tokenize serves another vocabulary than the gateway's model: restart both with the same model"

static size_t bucket(uint64_t seq)
{
    return (size_t)(seq % API_BUCKETS); /* numbers are assigned in order */
}

static struct generation_prompt *find(const struct api *a, uint64_t seq)
{
    struct generation_prompt *l = a->by_seq[bucket(seq)];
    while (l && l->seq != seq)
        l = l->next_hash;
    return l;
}

void generation_unhash(struct generation_prompt *l)
{
    struct generation_prompt **at = &l->c->a->by_seq[bucket(l->seq)];
    if (!l->hashed)
        return;
    while (*at != l)
        at = &(*at)->next_hash;
    *at = l->next_hash;
    l->hashed = false;
}

void generation_hash(struct generation_prompt *l)
{
    struct generation_prompt **at = &l->c->a->by_seq[bucket(l->seq)];
    l->next_hash = *at;
    *at = l;
    l->hashed = true;
}

/* ---- begin and end ---- */

void generation_flush_later(struct generation *c)
{
    if (list_empty(&c->later))
        list_push_front(&c->a->later, &c->later);
}

void generation_flush_all(struct api *a)
{
    for (struct list *n; (n = list_pop_front(&a->later));) {
        struct generation *c = list_entry(n, struct generation, later);
        if (c->ops->flush)
            c->ops->flush(c);
    }
}

void generation_work_later(struct generation *c)
{
    if (list_empty(&c->work))
        list_push_back(&c->a->work, &c->work);
}

/* Replaces what was charged by what was used. A prompt counts if it was computed, or might have been when its client
 * left. */
static void settle(struct generation *c)
{
    uint64_t used = c->n_generated;
    for (uint32_t i = 0; i < c->n_line; i++)
        used += c->line[i].charged && (c->line[i].computed || !c->failed) ? c->line[i].n_prompt : 0;
    if (c->key)
        key_settle(c->key, c->n_charged, used);
}

/* Called when its HTTP request is finished, also after a disconnect. */
void generation_free(struct generation *c)
{
    struct api *a = c->a;
    settle(c);
    list_remove(&c->later);
    list_remove(&c->work);
    for (uint32_t i = 0; i < c->n_line; i++) {
        generation_unhash(&c->line[i]);
        free(c->line[i].choice);
    }
    list_remove(&c->node);
    if (c->submit)
        generation_submit_forget(c);
    a->n_generation--;
    a->n_held -= c->n_held;
    free(c->line);
    free(c);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

/* Adds, with the last choice of a prompt, the number of choices and the length of the longest. */
static void add_choice_totals(struct metrics_end *m, const struct generation *c, const struct generation_prompt *l)
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

/* Counts the end of a choice; w: NULL if it failed or was cancelled. */
static void choice_ended(struct generation *c, struct generation_prompt *l, struct generation_choice *x,
                         enum wire_reason reason, const struct wire_end *w)
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
    if (reason == WIRE_ERROR && !l->n_prompt) /* refused before it reached the scheduler */
        return;
    add_choice_totals(&m, c, l);
    metrics_end(c->a->metrics, &m);
}

/* Cancels the choices in flight; later frames of them are ignored. */
static void cut(struct generation *c, enum wire_reason reason)
{
    for (uint32_t i = 0; i < c->n_line; i++) {
        struct generation_prompt *l = &c->line[i];
        if (l->hashed && c->a->gateway)
            gateway_cancel(c->a->gateway, l->seq);
        generation_unhash(l);
        for (uint32_t k = 0; k < c->n; k++)
            if (!l->choice[k].ended)
                choice_ended(c, l, &l->choice[k], reason, NULL);
    }
}

/* Before the first callback that may begin the response. */
static void response_begins(struct generation *c)
{
    if (c->key && !c->begun)
        api_limit_headers(c->r, c->key, KEY_TOKENS);
    c->begun = true;
}

/* The dialect completes the response, which finishes the HTTP request and thereby frees c. */
static void finish(struct generation *c)
{
    const struct generation_ops *ops = c->ops;
    void *state = c->state;
    response_begins(c);
    ops->done(c);
    if (ops->free)
        ops->free(state);
}

bool generation_hold(struct generation *c, int64_t more)
{
    c->n_held += (uint64_t)more;
    c->a->n_held += (uint64_t)more;
    return c->a->n_held <= c->a->o.outputs_bytes_max;
}

void generation_work_all(struct api *a)
{
    uint64_t end = time_now_ns() + WORK_NS;
    for (struct list *n; time_now_ns() < end && (n = list_pop_front(&a->work));) {
        struct generation *c = list_entry(n, struct generation, work);
        list_push_back(&a->work, &c->work);
        if (c->ops->work(c)) /* or it has ended, and is freed */
            continue;
        list_remove(&c->work);
        if (c->finishing)
            finish(c);
    }
}

void generation_cancel(struct generation *c)
{
    cut(c, WIRE_CANCELLED);
    finish(c);
}

void generation_disconnected(struct generation *c)
{
    cut(c, WIRE_CANCELLED);
    if (c->ops->free)
        c->ops->free(c->state);
}

void generation_fail(struct generation *c, uint32_t line, uint32_t choice, const struct api_error *why)
{
    c->failed = true;
    cut(c, WIRE_ERROR);
    if (c->ops->fail)
        c->ops->fail(c, line, choice, why);
    finish(c);
}

/* Whether tokenize has not processed all prompts of it. */
static bool is_untokenized(const struct generation *c)
{
    for (uint32_t i = 0; i < c->n_line; i++)
        if (!c->line[i].n_prompt)
            return true;
    return false;
}

void generation_fail_all(struct api *a, enum generation_filter which, const struct api_error *why)
{
    list_each_safe (struct generation, c, &a->generations, node) {
        if (which == GENERATIONS_ALL || (which == GENERATIONS_WAITING && !c->first_ns) ||
            (which == GENERATIONS_UNTOKENIZED && is_untokenized(c)))
            generation_fail(c, 0, 0, why);
    }
}

static int refuse(struct err *e, struct api_error *why, int status, double retry_s, const char *text)
{
    err_set(e, ERR_NO, "%s", text);
    *why = (struct api_error){status, retry_s, e->text};
    return ERR_NO;
}

static int admit(struct err *e, const struct api *a, const struct http_request *r, uint64_t n, struct api_error *why)
{
    uint64_t since = 0, now = time_now_ns();
    char text[120];
    if (n > a->o.waiting_max) { /* not 429: it can never be accepted, and the client would retry for ever */
        snprintf(text, sizeof text, "%llu choices in one request (prompts times n): the limit is %u",
                 (unsigned long long)n, a->o.waiting_max);
        return refuse(e, why, 400, 0, text);
    }
    if (a->draining && !http_is_last(r)) /* at an inherited socket requests that were accepted are answered */
        return refuse(e, why, 503, 1, "the server is shutting down");
    if (a->wrong_vocab)
        return refuse(e, why, 500, 0, VOCAB_TEXT);
    if (api_absent(a, &since) && now - since > API_ABSENT_NEW_NS)
        return refuse(e, why, 503, 5, API_ABSENT_TEXT);
    if (a->n_waiting + n > a->o.waiting_max) {
        snprintf(text, sizeof text, "too many requests are waiting: the limit is %u; retry later", a->o.waiting_max);
        return refuse(e, why, 429, 1, text);
    }
    if (gateway_bytes(a->gateway) > a->o.prompts_bytes_max / 4 * 3) { /* the rest is for those that tokenize has */
        snprintf(text, sizeof text, "the prompts of running requests have %llu MiB, the limit is %llu; retry later",
                 (unsigned long long)gateway_bytes(a->gateway) >> 20, (unsigned long long)a->o.prompts_bytes_max >> 20);
        return refuse(e, why, 429, 1, text);
    }
    return 0;
}

static int new_generation(struct err *e, struct generation **out, uint32_t n_line, uint32_t n)
{
    struct generation *c = calloc(1, sizeof *c);
    *out = c;
    if (!c || !(c->line = calloc(n_line, sizeof *c->line)))
        return err_nomem(e, "a request", n_line * sizeof *c->line);
    for (uint32_t i = 0; i < n_line; i++, c->n_line++)
        if (!(c->line[i].choice = calloc(n, sizeof *c->line[i].choice)))
            return err_nomem(e, "a request", n * sizeof *c->line[i].choice);
    c->n = n;
    c->n_left = n * n_line;
    c->n_unaccepted = c->n_left;
    return 0;
}

static void drop(struct generation *c)
{
    for (uint32_t i = 0; c && i < c->n_line; i++)
        free(c->line[i].choice);
    if (c)
        free(c->line);
    free(c);
}

int generation_start(struct err *e, struct generation **out, struct api *a, struct http_request *r,
                     const struct generation_ops *ops, void *state, const json_t *const *line, uint32_t n_line,
                     uint32_t n, struct api_error *why)
{
    struct generation *c = NULL;
    *out = NULL;
    *why = (struct api_error){500, 0, "out of memory"};
    if (admit(e, a, r, (uint64_t)n_line * n, why))
        return e->code;
    int rc = new_generation(e, &c, n_line, n);
    if (rc) {
        drop(c);
        return rc;
    }
    c->a = a;
    c->r = r;
    c->ops = ops;
    c->state = state;
    c->arrived_ns = http_arrived_ns(r);
    api_tenant(c->tenant, r);
    struct api_request *q = http_get(r);
    c->key = q->key;
    for (uint32_t i = 0; i < n_line; i++) {
        c->line[i].c = c;
        c->line[i].seq = a->next_seq++;
    }
    size_t n_bytes = q->parsed ? q->parsed->n : 0;
    rc = generation_submit(e, c, line, n_bytes);
    if (rc) {
        drop(c);
        if (rc == ERR_NO)
            *why = (struct api_error){503, 1, PARSE_FULL_TEXT};
        return rc;
    }
    list_push_front(&a->generations, &c->node);
    list_init(&c->later);
    list_init(&c->work);
    a->n_generation++;
    a->n_waiting += c->n_left;
    q->generation = c;
    *out = c;
    return 0;
}

void *generation_state(struct generation *c)
{
    return c->state;
}

struct http_request *generation_http(struct generation *c)
{
    return c->r;
}

uint64_t generation_arrived_ns(const struct generation *c)
{
    return c->arrived_ns;
}

uint64_t generation_first_ns(const struct generation *c)
{
    return c->first_ns;
}

/* ---- frames ---- */

/* Counts as the usage of a response does: a prompt once, however many choices it has. */
static void count_for_key(struct generation_prompt *l, const struct wire_out *o)
{
    struct generation *c = l->c;
    c->n_generated += o->n_id;
    if (c->key) {
        c->key->generation_tokens += o->n_id;
        c->key->prompt_tokens += l->computed ? 0 : l->n_prompt;
        c->key->cached_tokens += l->computed ? 0 : o->cached;
    }
    l->computed = true;
}

static void on_out(struct generation_prompt *l, const struct wire_out *o)
{
    struct generation *c = l->c;
    struct api *a = c->a;
    struct generation_choice *x = o->index < c->n ? &l->choice[o->index] : NULL;
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
        count_for_key(l, o);
    }
    response_begins(c);
    c->ops->out(c, (uint32_t)(l - c->line), o->index, o);
}

static void on_end(struct generation_prompt *l, const struct wire_end *w)
{
    struct generation *c = l->c;
    struct generation_choice *x = w->index < c->n ? &l->choice[w->index] : NULL;
    uint32_t line = (uint32_t)(l - c->line);
    if (w->reason == WIRE_ERROR ||
        w->reason == WIRE_CANCELLED) { /* not by a disconnect, after which frames are ignored */
        const struct api_error why = {w->reason == WIRE_ERROR ? 500 : 503, w->reason == WIRE_ERROR ? 0 : 1,
                                      w->reason == WIRE_ERROR ? "generation failed" : "generation was cancelled"};
        generation_fail(c, line, w->index, &why);
        return;
    }
    if (!x || x->ended)
        return;
    choice_ended(c, l, x, w->reason, w);
    c->ops->end(c, line, w->index, w);
    c->finishing = !c->n_left;
    if (c->finishing && list_empty(&c->work))
        finish(c);
}

static int status_of(const struct generation_prompt *l, const struct wire_error *w)
{
    const struct api *a = l->c->a;
    if (l->retry_ns)
        return l->ending ? 503 : 429;
    if (w->code == ERR_SYS && !l->n_prompt) /* of tokenize, whose queue is full */
        return 503;
    if (w->code != ERR_NO)
        return 500;
    bool late = a->o.deadline_s > 0 && seconds(l->c->arrived_ns, time_now_ns()) >= a->o.deadline_s;
    return late ? 504 : 400;
}

static void on_error(struct generation_prompt *l, const struct wire_error *w)
{
    char text[2048];
    size_t n = w->text.n < sizeof text - 1 ? w->text.n : sizeof text - 1;
    memcpy(text, w->text.n ? w->text.p : "", n);
    text[n] = 0;
    struct generation *c = l->c;
    int status = status_of(l, w);
    const struct api_error why = {status, l->retry_ns ? (double)l->retry_ns / 1e9 : status == 503, text};
    if (!l->n_prompt)
        poller_tokenize_responded(c->a->poller);
    generation_fail(c, (uint32_t)(l - c->line), w->index, &why);
}

static void on_hello(struct api *a, const struct wire_hello *h)
{
    bool wrong = h->has_vocab && (h->vocab_fp.n != 32 || memcmp(h->vocab_fp.p, text_fingerprint(a->text), 32));
    if (wrong && !a->wrong_vocab)
        api_log(a, "%s serves another vocabulary than %s has: requests are refused; restart both with the same model",
                a->o.tokenize, a->model.path);
    a->wrong_vocab = wrong;
    if (wrong) {
        const struct api_error why = {500, 0, VOCAB_TEXT};
        generation_fail_all(a, GENERATIONS_WAITING, &why);
    }
}

void api_on_frame(void *arg, const struct wire_frame *f)
{
    struct api *a = arg;
    struct generation_prompt *l;
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

/* Beyond the limit of its key the generation ends; nothing of it was submitted to the scheduler for this prompt. */
static void charge(struct generation_prompt *l)
{
    struct generation *c = l->c;
    struct key_refusal no;
    uint64_t n_answer = (uint64_t)c->n * l->max_tokens;
    if (key_charge(&no, &c->n_charged, c->key, l->n_prompt, n_answer, time_now_ns())) {
        l->charged = true;
        return;
    }
    l->n_prompt = 0;
    if (c->begun) {
        const struct api_error why = {429, no.retry_s, no.text};
        generation_fail(c, (uint32_t)(l - c->line), 0, &why);
        return;
    }
    c->failed = true;
    cut(c, WIRE_ERROR);
    if (c->ops->free)
        c->ops->free(c->state);
    api_limit_reply(c->r, c->key, &no); /* finishes the HTTP request, which frees c */
}

void api_on_read(void *arg, uint64_t seq, const struct wire_prompt *q)
{
    struct generation_prompt *l = find(arg, seq);
    if (!l)
        return;
    poller_tokenize_responded(l->c->a->poller);
    l->max_tokens = q->max_tokens;
    l->n_prompt = q->n_prompt;
    if (l->c->ops->prompt)
        l->c->ops->prompt(l->c, (uint32_t)(l - l->c->line), q);
    l = find(arg, seq); /* the dialect may have ended it */
    if (l && l->c->key)
        charge(l);
}

void api_on_accepted(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns)
{
    struct generation_prompt *l = find(arg, seq);
    (void)n_before, (void)eta_ns;
    if (!l || !l->c->n_unaccepted || --l->c->n_unaccepted || !l->c->ops->begin)
        return;
    response_begins(l->c);
    l->c->ops->begin(l->c);
}

void api_on_full(void *arg, uint64_t seq, uint64_t retry_ns, bool ending)
{
    struct generation_prompt *l = find(arg, seq);
    if (!l)
        return;
    l->retry_ns = retry_ns ? retry_ns : 1;
    l->ending = ending;
}
