/* Makes one JSON object of the frames of an answer. */
#include "request/reply.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

struct reply *reply_new(uint64_t seq, uint32_t index)
{
    struct reply *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->seq = seq;
    a->index = index;
    return a;
}

static void lp_free(struct reply_lp *l)
{
    json_decref(l->tokens);
    json_decref(l->logprobs);
    json_decref(l->top);
    json_decref(l->offset);
}

void reply_free(struct reply *a)
{
    if (!a)
        return;
    lp_free(&a->lp);
    lp_free(&a->prompt_lp);
    free(a->text);
    free(a->ids);
    free(a);
}

static int add_text(struct err *e, struct reply *a, const char *p, size_t n)
{
    int rc = vec_reserve(e, &a->text, &a->cap_text, a->n_text + n + 1, 1, "answer");
    if (rc)
        return rc;
    if (n)
        memcpy(a->text + a->n_text, p, n);
    a->n_text += n;
    a->text[a->n_text] = 0;
    return 0;
}

static int add_ids(struct err *e, struct reply *a, const uint32_t *ids, size_t n)
{
    int rc = vec_reserve(e, &a->ids, &a->cap_id, a->n_id + n, sizeof *a->ids, "answer ids");
    if (!rc && n)
        memcpy(a->ids + a->n_id, ids, n * sizeof *ids);
    a->n_id += rc ? 0 : n;
    return rc;
}

/* ---- log-probabilities ---- */

const char *reply_bytes(const struct text *vocab, uint32_t id, size_t *n)
{
    *n = 0;
    return text_is_control(vocab, id) ? text_entry(vocab, id, n) : (const char *)text_piece(vocab, id, n);
}

json_t *reply_token(const struct text *vocab, uint32_t id)
{
    size_t n;
    const char *p = reply_bytes(vocab, id, &n);
    if (!p || !n)
        return json_sprintf("token_id:%" PRIu32, id);
    json_t *s = json_stringn(p, n); /* NULL if not UTF-8 */
    if (s)
        return s;
    char *hex = malloc(n * 4 + 7);
    if (!hex)
        return NULL;
    memcpy(hex, "bytes:", 7);
    for (size_t i = 0; i < n; i++)
        snprintf(hex + 6 + 4 * i, 5, "\\x%02x", (unsigned char)p[i]);
    s = json_string(hex);
    free(hex);
    return s;
}

static json_t *number(float logprob)
{
    return isfinite(logprob) ? json_real((double)logprob) : json_null();
}

uint64_t reply_characters(const struct text *vocab, uint32_t id)
{
    size_t n = 0;
    uint64_t count = 0;
    const uint8_t *p = text_is_control(vocab, id) ? NULL : text_piece(vocab, id, &n);
    for (size_t i = 0; p && i < n; i++)
        count += (p[i] & 0xc0) != 0x80;
    return count;
}

static json_t *best_of(const struct wire_logprob *lp, const struct text *vocab)
{
    json_t *o = json_object();
    if (isnan(lp->logprob) && !lp->n_top) {
        json_decref(o);
        return json_null();
    }
    for (uint32_t i = 0; o && i < lp->n_top; i++) {
        json_t *name = reply_token(vocab, lp->top[i].id);
        if (!name || json_object_set_new(o, json_string_value(name), number(lp->top[i].logprob))) {
            json_decref(name);
            json_decref(o);
            return NULL;
        }
        json_decref(name);
    }
    return o;
}

static int add_logprob(struct err *e, struct reply_lp *l, const struct wire_logprob *lp, const struct text *vocab)
{
    if (!l->tokens) {
        l->tokens = json_array();
        l->logprobs = json_array();
        l->top = json_array();
        l->offset = json_array();
    }
    if (json_array_append_new(l->tokens, reply_token(vocab, lp->id)) ||
        json_array_append_new(l->logprobs, number(lp->logprob)) || json_array_append_new(l->top, best_of(lp, vocab)) ||
        json_array_append_new(l->offset, json_integer((json_int_t)l->n_char)))
        return err_nomem(e, "log-probabilities", 0);
    l->n_char += reply_characters(vocab, lp->id);
    return 0;
}

int reply_add(struct err *e, struct reply *a, const struct wire_out *o, const struct text *vocab)
{
    if (!o->silent && (add_text(e, a, o->text.p, o->text.n) || add_ids(e, a, o->ids, o->n_id)))
        return e->code;
    for (uint32_t i = 0; i < o->n_lp; i++)
        if (add_logprob(e, o->silent ? &a->prompt_lp : &a->lp, &o->lp[i], vocab))
            return e->code;
    return 0;
}

/* ---- times ---- */

static uint64_t since(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

const struct wire_span *reply_span(const struct wire_end *w, const char *stage)
{
    size_t n = strlen(stage);
    for (uint32_t i = 0; i < w->n_span; i++)
        if (w->span[i].stage.n == n && !memcmp(w->span[i].stage.p, stage, n))
            return &w->span[i];
    return NULL;
}

bool reply_same_host(const struct wire_span *a, const struct wire_span *b)
{
    return a && b && a->host.n == b->host.n && (!a->host.n || !memcmp(a->host.p, b->host.p, a->host.n));
}

/* A decode worker gets a request while prefill still computes it, so its own queueing begins with the first token, when
 * all KV has arrived. */
static uint64_t waited(const struct wire_span *s, const struct wire_end *w, const struct wire_span *prefill,
                       const struct wire_span *decode)
{
    return since(s == decode && prefill ? w->first_ns : s->queued_ns, s->start_ns);
}

void reply_times(struct reply_times *t, const struct wire_end *w)
{
    const struct wire_span *born = reply_span(w, "tokenize"), *prefill = reply_span(w, "prefill");
    const struct wire_span *decode = reply_span(w, "decode");
    uint64_t before = 0; /* time to the first token, from durations only */
    *t = (struct reply_times){
        .load_ns = w->load_ns,
        .decode_ns = since(w->first_ns, w->last_ns),
        .n_prompt = w->prompt_tokens,
        .n_cached = w->cached_tokens,
        .n_answer = w->completion_tokens,
    };
    for (uint32_t i = 0; i < w->n_span; i++) {
        const struct wire_span *s = &w->span[i];
        t->queue_ns += waited(s, w, prefill, decode);
        if (s != decode)
            before += since(s->queued_ns, s->end_ns);
        else if (!prefill)
            before += since(s->queued_ns, w->first_ns);
    }
    /* A decode worker that computed the prompt itself has no prefill span. */
    if (prefill)
        t->prefill_ns = since(prefill->start_ns, prefill->end_ns);
    else if (decode)
        t->prefill_ns = since(decode->start_ns, w->first_ns);
    if (prefill && reply_same_host(prefill, decode))
        t->transfer_ns = since(prefill->end_ns, w->first_ns);
    bool one_clock = w->born_ns && (!born || !decode || reply_same_host(born, decode));
    t->ttft_ns = one_clock ? since(w->born_ns, w->first_ns) : before;
    t->total_ns = one_clock ? since(w->born_ns, w->last_ns) : before + t->decode_ns;
}

/* ---- the object ---- */

static json_t *u64(uint64_t v)
{
    return json_integer((json_int_t)(v > INT64_MAX ? INT64_MAX : v));
}

static json_t *text_json(const char *p, size_t n)
{
    json_t *s = json_stringn(p ? p : "", n);
    return s ? s : json_string(""); /* our decode sends whole characters; another implementation may not */
}

static json_t *ids_json(const struct reply *a)
{
    json_t *v = json_array();
    for (size_t i = 0; v && i < a->n_id; i++)
        json_array_append_new(v, json_integer(a->ids[i]));
    return v;
}

static json_t *logprobs_json(const struct reply_lp *l)
{
    if (!l->tokens)
        return json_null();
    return json_pack("{s:O,s:O,s:O,s:O}", "tokens", l->tokens, "token_logprobs", l->logprobs, "top_logprobs", l->top,
                     "text_offset", l->offset);
}

static json_t *stop_json(const struct wire_end *w)
{
    if (w->stop_text.n)
        return text_json(w->stop_text.p, w->stop_text.n);
    return w->has_stop_id ? json_integer(w->stop_id) : json_null();
}

static json_t *times_json(const struct wire_end *w)
{
    struct reply_times t;
    reply_times(&t, w);
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "total_duration", u64(t.total_ns), "load_duration",
                     u64(t.load_ns), "prompt_eval_count", u64(t.n_prompt), "prompt_eval_duration", u64(t.prefill_ns),
                     "eval_count", u64(t.n_answer), "eval_duration", u64(t.decode_ns), "ttft_ns", u64(t.ttft_ns),
                     "queue_ns", u64(t.queue_ns), "transfer_ns", u64(t.transfer_ns));
}

/* Fields of the request come last and never replace one of the answer. */
static int finish(struct err *e, json_t **out, json_t *o, const struct reply *a, const json_t *extra)
{
    if (!o)
        return err_nomem(e, "answer", 0);
    if (a->prompt_lp.tokens && json_object_set_new(o, "prompt_logprobs", logprobs_json(&a->prompt_lp))) {
        json_decref(o);
        return err_nomem(e, "answer", 0);
    }
    if (extra && json_object_update_missing(o, (json_t *)extra)) {
        json_decref(o);
        return err_nomem(e, "answer", 0);
    }
    *out = o;
    return 0;
}

int reply_json(struct err *e, json_t **out, const struct reply *a, const struct wire_end *w, const json_t *extra)
{
    json_t *usage = json_pack("{s:o,s:o,s:o}", "prompt_tokens", u64(w->prompt_tokens), "completion_tokens",
                              u64(w->completion_tokens), "cached_tokens", u64(w->cached_tokens));
    json_t *o = json_pack("{s:o,s:o,s:o,s:o,s:s,s:o,s:o,s:o,s:o,s:n}", "id", text_json(w->id.p, w->id.n), "index",
                          u64(a->index), "text", text_json(a->text, a->n_text), "token_ids", ids_json(a),
                          "finish_reason", wire_reason_name(w->reason), "stop_reason", stop_json(w), "logprobs",
                          logprobs_json(&a->lp), "usage", usage, "timings", times_json(w), "error");
    return finish(e, out, o, a, extra);
}

int reply_error_json(struct err *e, json_t **out, const struct reply *a, const struct wire_error *w,
                     const json_t *extra)
{
    json_t *o = json_pack("{s:o,s:o,s:o,s:o,s:s,s:n,s:o,s:n,s:n,s:{s:o,s:i}}", "id", text_json(w->id.p, w->id.n),
                          "index", u64(a->index), "text", text_json(a->text, a->n_text), "token_ids", ids_json(a),
                          "finish_reason", "error", "stop_reason", "logprobs", logprobs_json(&a->lp), "usage",
                          "timings", "error", "message", text_json(w->text.p, w->text.n), "code", (int)w->code);
    return finish(e, out, o, a, extra);
}

int reply_extra(struct err *e, json_t **out, uint32_t *n_choice, const struct wire_extra *x)
{
    *out = NULL;
    *n_choice = 1;
    if (!x->n_pair)
        return 0;
    /* A bye frame has the fewest fields that could collide. */
    struct wire_frame f = {.kind = WIRE_BYE};
    f.bye.from = (struct wire_str){"stream", 6};
    f.bye.extra = *x;
    char *line = NULL;
    if (wire_to_json(e, &line, &f, NULL, true))
        return e->code;
    json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
    free(line);
    if (!o)
        return err_set(e, ERR_PROTO, "fields passed through are not JSON");
    static const char *const own[] = {"k", "from", "n_ok", "n_error"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        json_object_del(o, own[i]);
    const json_t *choices = json_object_get(o, "choices");
    if (json_is_integer(choices) && json_integer_value(choices) > 0 && json_integer_value(choices) <= UINT32_MAX)
        *n_choice = (uint32_t)json_integer_value(choices);
    json_object_del(o, "choices");
    json_t *request = json_object_get(o, "request");
    if (json_is_object(request)) {
        json_incref(request);
        json_object_del(o, "request");
        json_object_update_missing(o, request);
        json_decref(request);
    }
    *out = o;
    return 0;
}
