/* Orders: how they come, and every way they end but the good one. */
#include <stdlib.h>
#include <string.h>

#include "phase/serve.h"
#include "proc/proc.h"

static bool is(struct wire_str s, const char *what)
{
    return s.n == strlen(what) && !memcmp(s.p, what, s.n);
}

uint32_t task_n_out(const struct task *o)
{
    size_t n = 0;
    if (o->q && o->q->answer)
        answer_ids(o->q->answer, &n);
    return (uint32_t)n;
}

struct task *task_find(const struct serve *v, uint64_t id)
{
    struct task *o = v->orders;
    while (o && (o->told->order != id || o->state == TASK_CLOSED))
        o = o->next;
    return o;
}

void task_free(struct serve *v, struct task *o)
{
    if (!o)
        return;
    hold_drop(v, o);
    request_free(o->q, NULL);
    worker_told_free(o->told);
    free(o->digests);
    free(o);
}

void task_sweep(struct serve *v)
{
    for (struct task **at = &v->orders; *at;) {
        struct task *o = *at;
        if (o->state != TASK_CLOSED) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        v->n_order--;
        task_free(v, o);
    }
}

int task_append(struct err *e, struct task *o, uint32_t id)
{
    struct request *q = o->q;
    if (q->n_all == q->cap_all) {
        int64_t cap = q->n_all + q->n_all / 2 + 64;
        uint32_t *p = realloc(q->all, (size_t)cap * sizeof *p);
        if (!p)
            return err_nomem(e, "a sequence", (size_t)cap * sizeof *p);
        q->all = p;
        q->cap_all = cap;
    }
    q->all[q->n_all++] = id;
    return 0;
}

int task_digests(struct err *e, struct task *o, int64_t n)
{
    const struct wire_req *r = o->q->r;
    if (n > o->cap_digest) {
        int64_t cap = n + n / 2 + 8;
        uint8_t *p = realloc(o->digests, (size_t)cap * TEXT_DIGEST);
        if (!p)
            return err_nomem(e, "digests", (size_t)cap * TEXT_DIGEST);
        o->digests = p;
        o->cap_digest = cap;
    }
    for (; o->n_digest < n; o->n_digest++) {
        int64_t b = o->n_digest;
        uint8_t *to = o->digests + b * TEXT_DIGEST;
        if ((size_t)(b + 1) * TEXT_DIGEST <= r->digests.n)
            memcpy(to, r->digests.p + b * TEXT_DIGEST, TEXT_DIGEST);
        else
            text_digest(to, b ? to - TEXT_DIGEST : NULL, o->q->all + b * TEXT_BLOCK, r->salt.p, r->salt.n);
    }
    return 0;
}

/* ---- coming ---- */

/* The request in the order's body. *why is set, and 0 returned, where it is refused. */
static int read_body(struct err *e, struct err *why, struct serve *v, struct task *o)
{
    struct wire_arena *mem = wire_arena_new();
    struct wire_frame f;
    const uint8_t *p = o->o->body.p;
    size_t n = o->o->body.n;
    int rc = 0;
    if (!mem)
        return err_nomem(e, "a request", n);
    if (!link_msg_next(why, &f, mem, &p, &n) || f.kind != WIRE_HELLO)
        err_set(why, ERR_NO, "the request has no hello: %s", why->code ? why->text : "its body is something else");
    else if (stage_check_hello(why, &v->s, &f.hello))
        why->code = ERR_NO;
    else if (!link_msg_next(why, &f, mem, &p, &n) || f.kind != WIRE_TOK)
        err_set(why, ERR_NO, "the request has no tok frame: %s", why->code ? why->text : "its body is something else");
    else {
        f.req.seq = o->o->job;
        rc = request_new(e, &o->q, &v->s, &f.req);
        if (!rc)
            *why = o->q->err;
    }
    wire_arena_free(mem);
    return rc;
}

/* The answer as far as it was delivered. *end: it had ended then already. */
static int known_answer(struct err *e, struct task *o, enum answer_end *end)
{
    const struct wire_order *w = o->o;
    struct request *q = o->q;
    const char *text;
    size_t n_text;
    int rc = 0;
    *end = ANSWER_OPEN;
    for (uint32_t i = 0; i < q->r->n_id && !rc; i++)
        rc = task_append(e, o, q->r->ids[i]);
    /* Tokens that are only counted are made again; the gateway knows each by its place. */
    uint32_t n = w->n_out == w->n_out_id && q->answer ? w->n_out : 0;
    for (uint32_t i = 0; i < n && !rc && *end == ANSWER_OPEN; i++) {
        q->last = w->out[i];
        rc = answer_push(e, q->answer, q->last, &text, &n_text, end);
        rc = rc ? rc : task_append(e, o, q->last);
    }
    q->begun = q->echoed = n > 0;
    if (n)
        q->want_prompt = false;
    return rc;
}

static bool ids_known(const struct serve *v, const struct wire_order *w)
{
    for (uint32_t i = 0; i < w->n_out_id; i++)
        if (w->out[i] >= (uint64_t)v->s.m->c.vocab)
            return false;
    return true;
}

static int begin(struct err *e, struct serve *v, struct task *o)
{
    struct err why = {0};
    enum answer_end end = ANSWER_OPEN;
    int rc = read_body(e, &why, v, o);
    if (!rc && !why.code && !ids_known(v, o->o))
        err_set(&why, ERR_NO, "the answer so far has ids that the model has not");
    if (!rc && !why.code)
        rc = known_answer(e, o, &end);
    if (rc)
        return rc;
    if (why.code)
        return task_fail(e, v, o, why.code, why.text);
    o->q->task = o;
    if (end != ANSWER_OPEN) /* only the news of its end was lost */
        return out_end(e, v, o, end);
    bool here = !o->o->from.n || is(o->o->from, v->store_name);
    o->has_from = is(o->o->phase, "decode") && handle_read(&o->from, o->o->handle) && here;
    if (o->has_from) {
        o->q->cached = o->from.cached;
        o->cached_known = true;
    }
    return 0;
}

int task_take(struct err *e, struct serve *v, struct worker_told *t)
{
    struct task *o = calloc(1, sizeof *o), **at = &v->orders;
    if (!o) {
        worker_told_free(t);
        return err_nomem(e, "an order", sizeof *o);
    }
    o->told = t;
    o->o = t->o;
    o->hands = is(t->o->phase, "prefill");
    while (*at && (*at)->o->priority <= t->o->priority)
        at = &(*at)->next;
    o->next = *at;
    *at = o;
    v->n_order++;
    return begin(e, v, o);
}

/* ---- ending ---- */

int task_fail(struct err *e, struct serve *v, struct task *o, int code, const char *text)
{
    hold_drop(v, o);
    o->state = TASK_CLOSED;
    return out_report(e, v, o, "failed", code, text);
}

int task_cancel(struct err *e, struct serve *v, struct task *o)
{
    hold_drop(v, o);
    o->state = TASK_CLOSED;
    return out_report(e, v, o, "cancelled", 0, "");
}

/* Its blocks stay in the store, under their names, for whoever goes on. */
int task_preempt(struct err *e, struct serve *v, struct task *o)
{
    hold_drop(v, o);
    o->state = TASK_CLOSED;
    return out_report(e, v, o, "preempted", 0, "");
}
