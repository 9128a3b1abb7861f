/* Log-probabilities of responses in vLLM's format. One takes about a microsecond, and a frame can have those of a whole
 * prompt: they are stored, and written in pieces between other work. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/openai.h"
#include "request/reply.h"

#define ENTRIES_AT_ONCE 2048 /* positions that one callback writes; the others of a frame are stored */

/* The positions of a frame that are not written yet. */
struct openai_pending {
    struct list node;
    uint32_t choice; /* index */
    bool prompt;
    struct wire_logprob *lp; /* [n], written up to `at`; their top tokens follow in the same memory */
    uint32_t n, at;
};

static void comma(struct str *w)
{
    if (w->n)
        LIT(w, ",");
}

/* Most tokens are plain ASCII, for which no JSON value is made. */
static void spelled(struct str *w, const struct text *vocab, uint32_t id)
{
    size_t n = 0, i = 0;
    const char *p = reply_bytes(vocab, id, &n);
    while (p && i < n && p[i] >= ' ' && p[i] < 127 && p[i] != '"' && p[i] != '\\')
        i++;
    if (n && i == n) {
        json_write_string(w, p, n);
        return;
    }
    json_t *s = reply_token(vocab, id);
    json_write_value(w, s);
    json_decref(s);
}

static void token_name(struct str *w, const struct openai_reply *p, uint32_t id)
{
    if (p->q->as_ids) {
        LIT(w, "\"token_id:");
        json_write_u64(w, id);
        LIT(w, "\"");
        return;
    }
    spelled(w, p->vocab, id);
}

/* JSON has no infinity; a token of probability 0 gets vLLM's value. */
static void logprob(struct str *w, float v)
{
    if (isnan(v))
        LIT(w, "null");
    else if (v < -9999.0f)
        LIT(w, "-9999.0");
    else
        json_write_f32(w, v);
}

/* Whether a token of the answer is part of its text: not a control token, nor one that ends the answer. (Stop ids
 * cannot be chosen where they do not end it.) */
static bool is_shown(const struct openai_reply *p, uint32_t id)
{
    const struct openai_request *q = p->q;
    bool ends = text_is_end(p->vocab, id) && !q->ignore_end;
    for (size_t i = 0; i < json_array_size(q->stop_ids) && !ends; i++)
        ends = json_number_value(json_array_get(q->stop_ids, i)) == id;
    return (!ends || q->keep_stop) && (q->control_text || !text_is_control(p->vocab, id));
}

/* in_text: the token is part of the text, so that all bytes together are its bytes. */
static void chat_token(struct str *w, const struct openai_reply *p, uint32_t id, float v, bool in_text)
{
    size_t n;
    const char *bytes = reply_bytes(p->vocab, id, &n);
    LIT(w, "{\"token\":");
    token_name(w, p, id);
    LIT(w, ",\"logprob\":");
    logprob(w, v);
    LIT(w, ",\"bytes\":[");
    json_write_bytes(w, bytes, in_text ? n : 0);
    LIT(w, "]");
}

static void chat_logprob(struct str *w, const struct openai_reply *p, const struct wire_logprob *lp)
{
    comma(w);
    chat_token(w, p, lp->id, lp->logprob, is_shown(p, lp->id));
    LIT(w, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < lp->n_top; i++) {
        if (i)
            LIT(w, ",");
        chat_token(w, p, lp->top[i].id, lp->top[i].logprob, true);
        LIT(w, "}");
    }
    LIT(w, "]}");
}

/* The i-th of the top tokens; after them the chosen token if it is not among them. False: no more. */
static bool best(struct wire_top *out, const struct wire_logprob *lp, uint32_t i)
{
    if (i < lp->n_top) {
        *out = lp->top[i];
        return true;
    }
    for (uint32_t k = 0; k < lp->n_top; k++)
        if (lp->top[k].id == lp->id)
            return false;
    *out = (struct wire_top){lp->id, lp->logprob};
    return i == lp->n_top;
}

static void completion_logprob(struct openai_choice *c, const struct openai_reply *p, const struct wire_logprob *lp)
{
    comma(&c->tokens);
    token_name(&c->tokens, p, lp->id);
    comma(&c->values);
    logprob(&c->values, lp->logprob);
    comma(&c->top);
    if (isnan(lp->logprob) && !lp->n_top) {
        LIT(&c->top, "null");
    } else {
        struct wire_top t;
        LIT(&c->top, "{");
        for (uint32_t i = 0; best(&t, lp, i); i++) {
            if (i)
                LIT(&c->top, ",");
            token_name(&c->top, p, t.id);
            LIT(&c->top, ":");
            logprob(&c->top, t.logprob);
        }
        LIT(&c->top, "}");
    }
    comma(&c->offset);
    json_write_u64(&c->offset, c->n_char);
    c->n_char += reply_characters(p->vocab, lp->id);
}

/* {"464":{"logprob":-1.2,"rank":1,"decoded_token":"The"},…} of one position of the prompt. */
static void prompt_logprob(struct str *w, const struct openai_reply *p, const struct wire_logprob *lp)
{
    comma(w);
    if (isnan(lp->logprob)) {
        LIT(w, "null");
        return;
    }
    struct wire_top t;
    LIT(w, "{");
    for (uint32_t i = 0; best(&t, lp, i); i++) {
        if (i)
            LIT(w, ",");
        LIT(w, "\"");
        json_write_u64(w, t.id);
        LIT(w, "\":{\"logprob\":");
        logprob(w, t.logprob);
        LIT(w, ",\"rank\":");
        json_write_u64(w, i == lp->n_top ? lp->rank : i + 1);
        LIT(w, ",\"decoded_token\":");
        spelled(w, p->vocab, t.id);
        LIT(w, "}");
    }
    LIT(w, "}");
}

/* Log-probabilities of the prompt go into logprobs with echo, and into prompt_logprobs if requested; the frame has as
 * many top tokens as the greater of the two numbers. */
static void write_position(const struct openai_reply *p, struct openai_choice *c, struct wire_logprob lp, bool prompt)
{
    const struct openai_request *q = p->q;
    const uint32_t n_top = lp.n_top;
    lp.n_top = n_top < q->n_prompt_top ? n_top : q->n_prompt_top;
    if (prompt && q->prompt_logprobs)
        prompt_logprob(&c->prompt, p, &lp);
    lp.n_top = n_top < q->n_top ? n_top : q->n_top;
    if (!q->logprobs || (prompt && !q->echo))
        return;
    if (q->chat)
        chat_logprob(&c->tokens, p, &lp);
    else
        completion_logprob(c, p, &lp);
}

/* ---- frames ---- */

static size_t entries(const struct wire_logprob *lp)
{
    return 1 + (size_t)lp->n_top;
}

static struct openai_pending *copy(const struct openai_choice *c, const struct wire_out *o)
{
    size_t n_top = 0;
    for (uint32_t i = 0; i < o->n_lp; i++)
        n_top += o->lp[i].n_top;
    struct openai_pending *x = calloc(1, sizeof *x);
    if (!x || !(x->lp = malloc(o->n_lp * sizeof *x->lp + n_top * sizeof *x->lp->top))) {
        free(x);
        return NULL;
    }
    struct wire_top *top = (struct wire_top *)(void *)(x->lp + o->n_lp);
    for (uint32_t i = 0; i < o->n_lp; i++) {
        x->lp[i] = o->lp[i];
        x->lp[i].top = top;
        if (o->lp[i].n_top)
            memcpy(top, o->lp[i].top, o->lp[i].n_top * sizeof *top);
        top += o->lp[i].n_top;
    }
    x->choice = c->index;
    x->prompt = o->prompt;
    x->n = o->n_lp;
    return x;
}

void openai_logprobs_add(struct openai_reply *p, struct openai_choice *c, const struct wire_out *o)
{
    size_t n = 0;
    for (uint32_t i = 0; i < o->n_lp && n <= ENTRIES_AT_ONCE; i++)
        n += entries(&o->lp[i]);
    /* Events of a stream are written at once; their number is limited instead. */
    if (!n || p->q->stream || (n <= ENTRIES_AT_ONCE && list_empty(&p->pending))) {
        for (uint32_t i = 0; i < o->n_lp; i++)
            write_position(p, c, o->lp[i], o->prompt);
        return;
    }
    struct openai_pending *x = copy(c, o);
    if (x)
        list_push_back(&p->pending, &x->node);
    else
        p->out.failed = true;
}

static void pending_free(struct openai_pending *x)
{
    list_remove(&x->node);
    free(x->lp);
    free(x);
}

bool openai_logprobs_work(struct openai_reply *p)
{
    size_t n = 0;
    while (n < ENTRIES_AT_ONCE && !list_empty(&p->pending)) {
        struct openai_pending *x = list_entry(p->pending.next, struct openai_pending, node);
        struct openai_choice *c = &p->choice[x->choice];
        size_t before = openai_choice_bytes(c);
        for (; n < ENTRIES_AT_ONCE && x->at < x->n; x->at++) {
            n += entries(&x->lp[x->at]);
            write_position(p, c, x->lp[x->at], x->prompt);
        }
        p->n_bytes += openai_choice_bytes(c) - before;
        if (x->at == x->n)
            pending_free(x);
    }
    return !list_empty(&p->pending);
}

void openai_logprobs_free(struct openai_reply *p)
{
    while (p->pending.next && !list_empty(&p->pending))
        pending_free(list_entry(p->pending.next, struct openai_pending, node));
}
