/* What a worker sends: tokens and ends to gateways, reports to the scheduler. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phase/serve.h"

#define PROGRESS_NS (200 * NS_MS)
#define NEWEST 4096 /* limit of ids in a report of an end; the gateway has reported the earlier ones */

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

static struct wire_report report_of(const struct assignment *a, const char *what)
{
    const struct request *q = &a->q;
    uint32_t n = request_n_answer(q);
    return (struct wire_report){.what = wire_str_of(what),
                                .n_done = (uint32_t)q->n_kv,
                                .cached = q->cached,
                                .n_out = n,
                                .out = n ? q->ids + q->r->n_id : NULL,
                                .n_out_id = n,
                                .busy_ns = a->busy_ns};
}

int out_report(struct err *e, struct serve *v, struct assignment *a, const char *what, int code, const char *text)
{
    struct wire_report r = report_of(a, what);
    r.code = (uint32_t)code;
    r.text = wire_str_of(text);
    return worker_link_report(e, v->link, a->order, &r);
}

int out_fail(struct err *e, struct runner *r, struct request *q)
{
    hold_release(serve_of(r), assignment_of(q));
    return out_report(e, serve_of(r), assignment_of(q), "failed", q->err.code, q->err.text);
}

/* Publishes full blocks. While the prompt is computed, reports its progress every PROGRESS_NS. */
int out_progress(struct err *e, struct runner *r, struct request *q)
{
    struct serve *v = serve_of(r);
    struct assignment *a = assignment_of(q);
    uint64_t now = time_now_ns();
    hold_publish(v, a, false);
    if (request_grows(q) || now - a->progress_ns < PROGRESS_NS)
        return 0;
    a->progress_ns = now;
    struct wire_report w = report_of(a, "progress");
    w.n_out = w.n_out_id = 0; /* the gateway reports them */
    return worker_link_report(e, v->link, a->order, &w);
}

static int report_prefilled(struct err *e, struct serve *v, struct assignment *a, const struct kv_seq_info *handed)
{
    const struct request *q = &a->q;
    uint8_t bytes[HANDLE_BYTES];
    struct wire_report r = report_of(a, "prefilled");
    r.n_done = (uint32_t)(q->n_ids - 1);
    if (handed) {
        struct handle h = {.seq = handed->seq,
                           .gen = handed->gen,
                           .cached = q->cached,
                           .pid = (uint32_t)getpid(),
                           .queued_ns = q->queued_ns,
                           .start_ns = q->start_ns,
                           .end_ns = q->prompt_end_ns,
                           .first_ns = q->first_ns,
                           .load_ns = q->load_ns > v->r.s.load_ns ? q->load_ns : v->r.s.load_ns};
        handle_write(bytes, &h);
        r.handle = (struct wire_bytes){bytes, sizeof bytes};
        r.store = wire_str_of(v->store_name);
    }
    return worker_link_report(e, v->link, a->order, &r);
}

int out_transfer(struct err *e, struct runner *r, struct request *q)
{
    struct serve *v = serve_of(r);
    struct assignment *a = assignment_of(q);
    struct kv_seq_info handed;
    bool done = hold_transfer_out(v, a, &handed);
    int rc = report_prefilled(e, v, a, done ? &handed : NULL);
    hold_release(v, a);
    return rc;
}

/* ---- answers ---- */

/* Reports the first token of an attempt: if the worker dies later, the request is not suspected (sched/suspect.c). The
 * report of a transfer has it too. Later tokens are reported by the gateway. */
static int report_first(struct err *e, struct runner *r, struct request *q)
{
    struct assignment *a = assignment_of(q);
    if (a->token_reported || q->transfers_out)
        return 0;
    a->token_reported = true;
    struct wire_report w = report_of(a, "tokens");
    w.out += w.n_out_id - 1;
    w.n_out_id = 1;
    return worker_link_report(e, serve_of(r)->link, a->order, &w);
}

int out_frame(struct err *e, struct runner *r, struct request *q, struct wire_frame *f)
{
    uint32_t n = f->out.prompt ? 0 : request_n_answer(q);
    if (n) {
        f->out.cached = n == 1 ? q->cached : 0;
        f->out.at = n - 1;
    }
    int rc = worker_link_send(e, serve_of(r)->link, assignment_of(q)->order, f, n);
    return rc || !n ? rc : report_first(e, r, q);
}

int out_end(struct err *e, struct runner *r, struct request *q, struct wire_frame *f)
{
    struct serve *v = serve_of(r);
    struct assignment *a = assignment_of(q);
    hold_publish(v, a, false); /* before the end is sent, so that a follow-up request finds the blocks */
    int rc = worker_link_send(e, v->link, a->order, f, request_n_answer(q));
    hold_release(v, a);
    if (rc)
        return rc;
    struct wire_report w = report_of(a, "ended");
    w.reason = f->end.reason;
    if (w.n_out_id > NEWEST) {
        w.out += w.n_out_id - NEWEST;
        w.n_out_id = NEWEST;
    }
    return worker_link_report(e, v->link, a->order, &w);
}

/* ---- steps ---- */

/* 1, 8, 16, 32 … 16384, and beyond. */
static int size_of_step(int64_t tokens)
{
    int i = tokens > 1;
    for (int64_t most = 8; i && i < WIRE_STEPS_MAX - 1 && tokens > most; most *= 2)
        i++;
    return i;
}

/* Updates the costs that the scheduler estimates with: those of steps without prompts, and the share of each prompt in
 * the time of a step. From here to out_flush the link collects frames, so that they are sent together. */
void out_computed(struct runner *r, uint64_t ns)
{
    struct serve *v = serve_of(r);
    const struct batch *b = r->s.batch;
    int64_t rows = 0;
    uint64_t context = 0;
    bool prompts = false;
    for (int64_t i = 0; i < b->n; i++) {
        const struct engine_chunk *c = &b->chunk[i];
        rows += c->n;
        context += (uint64_t)(c->pos + c->n);
        prompts |= c->n > 1 || c->pos < c->n_prompt;
    }
    for (int64_t i = 0; i < b->n; i++)
        assignment_of(b->q[i])->busy_ns += ns * (uint64_t)b->chunk[i].n / (uint64_t)rows;
    v->steps[size_of_step(rows)]++;
    v->capacity.step_tokens += (uint64_t)rows;
    if (!prompts) {
        v->capacity.step_ns = ns;
        v->capacity.context = context;
        v->capacity.batch = (uint32_t)b->n;
    }
    worker_link_hold(v->link, true);
}

int out_flush(struct err *e, struct runner *r)
{
    (void)e;
    worker_link_hold(serve_of(r)->link, false);
    return 0;
}
