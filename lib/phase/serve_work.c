/* Work items: decodes the frame, begins the request, and ends it when the scheduler or a failure stops it. */
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "phase/serve.h"

static bool is(struct wire_str s, const char *what)
{
    return s.n == strlen(what) && !memcmp(s.p, what, s.n);
}

struct assignment *work_find(const struct serve *v, uint64_t order)
{
    struct request *q = v->r.head;
    while (q && (assignment_of(q)->order->order != order || q->state == REQUEST_CLOSED))
        q = q->next;
    return q ? assignment_of(q) : NULL;
}

void work_release(struct runner *r, struct request *q)
{
    struct assignment *a = assignment_of(q);
    hold_release(serve_of(r), a);
    wire_arena_free(a->mem);
    worker_order_release(a->order);
    free(a->digests);
    request_free(q, NULL);
}

int work_digests(struct err *e, struct assignment *a, int64_t n)
{
    const struct wire_req *r = a->q.r;
    int rc = vec_reserve(e, &a->digests, &a->cap_digest, (size_t)n, KV_DIGEST, "digests");
    if (rc)
        return rc;
    for (; a->n_digest < n; a->n_digest++) {
        int64_t b = a->n_digest;
        uint8_t *to = a->digests + b * KV_DIGEST;
        if ((size_t)(b + 1) * KV_DIGEST <= r->digests.n)
            memcpy(to, r->digests.p + b * KV_DIGEST, KV_DIGEST);
        else
            text_digest(to, b ? to - KV_DIGEST : NULL, a->q.ids + b * KV_BLOCK, r->salt.p, r->salt.n);
    }
    return 0;
}

/* ---- begin ---- */

/* The request in the assignment's body, decoded once. a->q.err is set, and 0 returned, if it is refused. */
static int read_body(struct err *e, struct serve *v, struct assignment *a)
{
    struct err *why = &a->q.err;
    struct wire_frame f;
    const uint8_t *p = a->order->body.p;
    size_t n = a->order->body.n;
    a->mem = wire_arena_new();
    if (!a->mem)
        return err_nomem(e, "a request", n);
    if (wire_decode_next(why, &f, a->mem, &p, &n) || f.kind != WIRE_HELLO)
        err_set(why, ERR_NO, "the body of the request has no hello frame: %s",
                why->code ? why->text : "it has another frame");
    else if (stage_check_hello(why, &v->r.s, &f.hello))
        why->code = ERR_NO;
    else if (wire_decode_next(why, &f, a->mem, &p, &n) || f.kind != WIRE_TOK)
        err_set(why, ERR_NO, "the body of the request has no tok frame: %s",
                why->code ? why->text : "it has another frame");
    else {
        a->tok = f.req;
        return request_init(e, &a->q, &v->r.s, &a->tok);
    }
    return 0;
}

static bool ids_known(const struct serve *v, const struct wire_order *w)
{
    for (uint32_t i = 0; i < w->n_out_id; i++)
        if (w->out[i] >= (uint64_t)v->r.s.m->c.vocab)
            return false;
    return true;
}

/* Restores the part of the answer that was delivered. *end: that part is the whole answer. */
static int restore_answer(struct err *e, struct serve *v, struct assignment *a, enum answer_end *end)
{
    const struct wire_order *w = a->order;
    struct request *q = &a->q;
    const char *text;
    size_t n_text;
    int rc = 0;
    if (!ids_known(v, w))
        err_set(&q->err, ERR_NO, "the answer so far has ids that are not in the vocabulary of the model");
    /* Tokens that the work item has without their ids are computed again; the gateway drops duplicates. */
    uint32_t n = !q->err.code && w->n_out == w->n_out_id && q->answer ? w->n_out : 0;
    for (uint32_t i = 0; i < n && !rc && *end == ANSWER_OPEN; i++)
        rc = request_push(e, q, w->out[i], &text, &n_text, end);
    q->echoed = n > 0;
    if (n)
        q->want_prompt = false;
    return rc;
}

static int begin(struct err *e, struct serve *v, struct assignment *a, enum answer_end end)
{
    struct request *q = &a->q;
    int rc = runner_add(e, &v->r, q);
    if (rc || q->state == REQUEST_CLOSED)
        return rc;
    if (end != ANSWER_OPEN) /* only its end was not delivered */
        return runner_end(e, &v->r, q, end);
    const struct wire_order *o = a->order;
    bool here = !o->from.n || is(o->from, v->store_name);
    a->has_transfer = is(o->phase, "decode") && handle_read(&a->from, o->handle) && here;
    if (a->has_transfer) {
        q->cached = a->from.cached;
        a->cached_known = true;
    }
    return 0;
}

int work_take(struct err *e, struct serve *v, const struct wire_order *o)
{
    enum answer_end end = ANSWER_OPEN;
    struct assignment *a = calloc(1, sizeof *a);
    if (!a) {
        worker_order_release(o);
        return err_nomem(e, "an assignment", sizeof *a);
    }
    a->order = o;
    a->q.priority = o->priority;
    a->q.chunk = o->chunk;
    a->q.transfers_out = is(o->phase, "prefill");
    int rc = read_body(e, v, a);
    if (!rc && !a->q.err.code)
        rc = restore_answer(e, v, a, &end);
    if (!rc)
        return begin(e, v, a, end);
    work_release(&v->r, &a->q);
    return rc;
}

int work_stop(struct err *e, struct serve *v, struct assignment *a, const char *what)
{
    hold_release(v, a);
    runner_close(&a->q);
    return out_report(e, v, a, what, 0, "");
}
