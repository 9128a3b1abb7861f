/* What a worker says: tokens and ends to the gateway, reports to the scheduler. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phase/serve.h"
#include "proc/proc.h"

#define PROGRESS_NS (200 * NS_MS)
#define NEWEST 4096 /* ids of an answer that has ended; the gateway has told of those before */

/* ---- handles ---- */

static uint8_t *put(uint8_t *p, uint64_t x, int n)
{
    for (int i = 0; i < n; i++)
        *p++ = (uint8_t)(x >> 8 * i);
    return p;
}

static uint64_t get(const uint8_t **p, int n)
{
    uint64_t x = 0;
    for (int i = 0; i < n; i++)
        x |= (uint64_t) * (*p)++ << 8 * i;
    return x;
}

void handle_write(uint8_t out[HANDLE_BYTES], const struct handle *h)
{
    const uint64_t ns[] = {h->queued_ns, h->start_ns, h->end_ns, h->first_ns, h->load_ns};
    out = put(put(out, h->seq, 8), h->gen, 8);
    out = put(put(out, h->cached, 4), h->pid, 4);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++)
        out = put(out, ns[i], 8);
}

bool handle_read(struct handle *h, struct wire_bytes b)
{
    const uint8_t *p = b.p;
    if (b.n != HANDLE_BYTES)
        return false;
    *h = (struct handle){.seq = get(&p, 8)};
    h->gen = get(&p, 8);
    h->cached = (uint32_t)get(&p, 4);
    h->pid = (uint32_t)get(&p, 4);
    h->queued_ns = get(&p, 8);
    h->start_ns = get(&p, 8);
    h->end_ns = get(&p, 8);
    h->first_ns = get(&p, 8);
    h->load_ns = get(&p, 8);
    return true;
}

/* ---- reports ---- */

static struct wire_report report_of(const struct task *o, const char *what)
{
    size_t n = 0;
    const uint32_t *ids = o->q && o->q->answer ? answer_ids(o->q->answer, &n) : NULL;
    return (struct wire_report){.what = {what, strlen(what)},
                                .n_done = o->q ? (uint32_t)o->q->n_kv : 0,
                                .cached = o->q ? o->q->cached : 0,
                                .n_out = (uint32_t)n,
                                .out = ids,
                                .n_out_id = (uint32_t)n,
                                .busy_ns = o->busy_ns};
}

int out_report(struct err *e, struct serve *v, struct task *o, const char *what, int code, const char *text)
{
    struct wire_report r = report_of(o, what);
    r.code = (uint32_t)code;
    r.text = (struct wire_str){text, strlen(text)};
    return worker_link_report(e, v->link, o->told->order, &r);
}

int out_progress(struct err *e, struct serve *v, struct task *o)
{
    uint64_t now = proc_now_ns();
    if (now - o->progress_ns < PROGRESS_NS)
        return 0;
    o->progress_ns = now;
    struct wire_report r = report_of(o, "progress");
    r.n_out = r.n_out_id = 0; /* of those the gateway tells */
    return worker_link_report(e, v->link, o->told->order, &r);
}

int out_prefilled(struct err *e, struct serve *v, struct task *o, const struct kv_seq_info *handed)
{
    const struct request *q = o->q;
    uint8_t bytes[HANDLE_BYTES];
    struct wire_report r = report_of(o, "prefilled");
    r.n_done = (uint32_t)(q->n_all - 1);
    if (handed) {
        struct handle h = {.seq = handed->seq,
                           .gen = handed->gen,
                           .cached = q->cached,
                           .pid = (uint32_t)getpid(),
                           .queued_ns = q->queued_ns,
                           .start_ns = q->start_ns,
                           .end_ns = q->prompt_end_ns,
                           .first_ns = q->first_ns,
                           .load_ns = q->load_ns > v->s.load_ns ? q->load_ns : v->s.load_ns};
        handle_write(bytes, &h);
        r.handle = (struct wire_bytes){bytes, sizeof bytes};
        r.store = (struct wire_str){v->store_name, strlen(v->store_name)};
    }
    return worker_link_report(e, v->link, o->told->order, &r);
}

/* ---- tokens ---- */

int out_echo(struct err *e, struct serve *v, struct task *o)
{
    struct wire_frame f;
    char *text = NULL;
    if (o->q->echoed || !shows_prompt(o->q))
        return 0;
    o->q->echoed = true;
    int rc = echo_frame(e, &f, &text, &v->s, o->q);
    rc = rc ? rc : worker_link_send(e, v->link, o->told->order, &f, 0);
    free(text);
    return rc;
}

int out_token(struct err *e, struct serve *v, struct task *o, enum answer_end *end)
{
    struct request *q = o->q;
    const char *text;
    size_t n;
    int rc = out_echo(e, v, o);
    rc = rc ? rc : answer_push(e, q->answer, q->now.id, &text, &n, end);
    rc = rc ? rc : task_append(e, o, q->now.id);
    if (rc)
        return rc;
    q->last = q->now.id;
    q->last_ns = proc_now_ns();
    if (!q->first_ns)
        q->first_ns = o->taken ? o->from.first_ns : q->last_ns;
    q->begun = true;
    struct wire_top top[SAMPLE_TOP_MAX];
    struct wire_logprob lp;
    logprob_of(&lp, top, &q->now);
    uint32_t n_out = task_n_out(o);
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.seq = q->r->seq,
                              .index = q->r->index,
                              .id = q->r->id,
                              .ids = &q->last,
                              .n_id = 1,
                              .text = {text, n},
                              .lp = &lp,
                              .n_lp = q->sp.logprobs >= 0,
                              .cached = n_out == 1 ? q->cached : 0,
                              .at = n_out - 1};
    return worker_link_send(e, v->link, o->told->order, &f, n_out);
}

/* ---- the end ---- */

static void add_prefill(struct wire_span *s, const struct task *o)
{
    const struct request *q = o->q;
    bool far = o->taken;
    *s = span_here("prefill");
    s->pid = far ? o->from.pid : s->pid;
    s->queued_ns = far ? o->from.queued_ns : q->queued_ns;
    s->start_ns = far ? o->from.start_ns : q->start_ns;
    s->end_ns = far ? o->from.end_ns : q->prompt_end_ns;
    s->tokens = q->r->n_id;
}

static uint32_t spans_of(struct wire_span *span, const struct task *o, uint64_t now)
{
    const struct request *q = o->q;
    uint32_t n = 0;
    if (o->taken || q->prompt_end_ns)
        add_prefill(&span[n++], o);
    if (o->taken) {
        span[n] = span_here("hand-over");
        span[n].queued_ns = span[n].start_ns = o->from.end_ns;
        span[n].end_ns = o->taken_ns;
        span[n++].tokens = q->r->n_id;
    }
    if (o->hands)
        return n;
    span[n] = span_here("decode");
    span[n].queued_ns = q->queued_ns;
    span[n].start_ns = o->taken ? o->taken_ns : q->prompt_end_ns ? q->prompt_end_ns : q->start_ns;
    span[n].end_ns = now;
    span[n++].tokens = task_n_out(o);
    return n;
}

static int send_end(struct err *e, struct serve *v, struct task *o, enum answer_end end)
{
    struct request *q = o->q;
    uint64_t now = proc_now_ns();
    if (!q->first_ns)
        q->first_ns = q->last_ns = now;
    if (!q->last_ns)
        q->last_ns = now;
    uint32_t before = q->r->n_span < WIRE_SPANS_MAX - 3 ? q->r->n_span : WIRE_SPANS_MAX - 3;
    struct wire_span *span = malloc((before + 3) * sizeof *span);
    if (!span)
        return err_nomem(e, "spans", (before + 3) * sizeof *span);
    if (before)
        memcpy(span, q->r->span, before * sizeof *span);
    struct wire_frame f;
    end_frame(&f, q, end);
    f.end.span = span;
    f.end.n_span = before + spans_of(span + before, o, now);
    f.end.load_ns = q->load_ns > v->s.load_ns ? q->load_ns : v->s.load_ns;
    if (o->taken && o->from.load_ns > f.end.load_ns)
        f.end.load_ns = o->from.load_ns;
    int rc = worker_link_send(e, v->link, o->told->order, &f, task_n_out(o));
    free(span);
    return rc;
}

int out_end(struct err *e, struct serve *v, struct task *o, enum answer_end end)
{
    hold_publish(v, o, false); /* before it is known that it ended, so that what comes next finds them */
    int rc = send_end(e, v, o, end);
    hold_drop(v, o);
    o->state = TASK_CLOSED;
    if (rc)
        return rc;
    struct wire_report r = report_of(o, "ended");
    r.reason = reason_of(end);
    if (r.n_out_id > NEWEST) {
        r.out += r.n_out_id - NEWEST;
        r.n_out_id = NEWEST;
    }
    return worker_link_report(e, v->link, o->told->order, &r);
}
