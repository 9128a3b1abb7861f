/* prefill as a filter: prompts in, their KV and first tokens out. Prompts are packed into steps in the order they came.
 */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "phase/emit.h"
#include "phase/stage.h"
#include "proc/proc.h"

#define WAITING_MAX 256 /* prompts read ahead of the engine */
#define RANGES 8        /* parts in which the layers of a block leave */

struct prefill {
    struct stage s;
    struct wire_reader *in;
    struct emit *emit;
    struct request *head, **tail; /* in the order they came; the first of them hold blocks */
    int64_t n_waiting;
    bool bye; /* the input's bye is here: nothing is read until all before it is done */
    struct wire_bye last;
    uint64_t n_ok, n_error;
    int64_t range; /* layers of a blk frame */
    int64_t sent;  /* layers of this step that were queued */
};

static int start_stream(struct err *e, struct prefill *p, const struct wire_hello *h)
{
    enum kern_kv kv;
    int rc = stage_check_hello(e, &p->s, h);
    if (!rc && h->has_kv)
        rc = err_set(e, ERR_PROTO, "stream of %.*s has been prefilled already", (int)h->from.n, h->from.p);
    if (!rc)
        rc = kv_type_parse(e, &kv, p->s.o->kv_type);
    if (!rc)
        rc = stage_engine(e, &p->s, kv);
    if (!rc && !p->emit)
        rc = emit_new(e, &p->emit, &p->s);
    if (rc)
        return rc;
    p->range = (p->s.layout.n_layer + RANGES - 1) / RANGES;
    p->n_ok = p->n_error = 0;
    struct wire_frame f = {.kind = WIRE_HELLO};
    stage_hello(&p->s, &f.hello, true);
    f.hello.extra = h->extra;
    return emit_frame(e, p->emit, &f);
}

static int end_stream(struct err *e, struct prefill *p)
{
    struct wire_frame f = {.kind = WIRE_BYE};
    f.bye = (struct wire_bye){
        .from = {p->s.o->prog, strlen(p->s.o->prog)}, .n_ok = p->n_ok, .n_error = p->n_error, .extra = p->last.extra};
    p->bye = false;
    int rc = emit_frame(e, p->emit, &f);
    return rc ? rc : emit_flush(e, p->emit);
}

static int refuse(struct err *e, struct prefill *p, struct request *q)
{
    struct wire_frame f;
    error_frame(&f, q);
    p->n_error++;
    int rc = emit_frame(e, p->emit, &f);
    emit_done(p->emit, q);
    return rc ? rc : emit_room(e, p->emit);
}

static int accept(struct err *e, struct prefill *p, const struct wire_req *r)
{
    struct request *q;
    int rc = request_new(e, &q, &p->s, r);
    if (rc)
        return rc;
    if (q->err.code)
        return refuse(e, p, q);
    *p->tail = q;
    p->tail = &q->next;
    p->n_waiting++;
    return 0;
}

/* Reads what is there; blocks only where there is nothing to compute. *end: the input is over. */
static int read_some(struct err *e, struct prefill *p, bool *end)
{
    while (p->n_waiting < WAITING_MAX) {
        struct pollfd fd = {p->s.o->fd_in, POLLIN, 0};
        if (p->n_waiting && !wire_reader_ready(p->in) && poll(&fd, 1, 0) <= 0)
            return 0;
        struct wire_frame *f;
        int rc = wire_read(e, p->in, &f);
        if (rc)
            return rc;
        if (!f) {
            *end = true;
            return wire_reader_seen_hello(p->in) ? 0 : err_set(e, ERR_PROTO, EMPTY_STREAM);
        }
        switch (f->kind) {
        case WIRE_HELLO:
            rc = start_stream(e, p, &f->hello);
            break;
        case WIRE_TOK:
            rc = accept(e, p, &f->req);
            break;
        case WIRE_ERR:
            p->n_error++;
            rc = emit_frame(e, p->emit, f);
            rc = rc ? rc : emit_room(e, p->emit);
            break;
        case WIRE_BYE:
            p->last = f->bye; /* borrowed until the next read, which comes after end_stream */
            p->bye = true;
            return 0;
        default:
            rc = err_set(e, ERR_PROTO, "stdin: frame %s where tok is due", wire_kind_name(f->kind));
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* An answer of one token reads no KV. By what was asked, not by what fits here: the next stage may have more room. */
static bool sends_kv(const struct request *q)
{
    return q->r->s.max_tokens > 1;
}

/* Queues the blocks of chunk i that this step completes: layers `from` … `to`-1. */
static void send_blocks(struct prefill *p, int64_t i, int64_t from, int64_t to)
{
    const struct engine_chunk *c = batch_chunk(p->s.batch, i);
    const struct request *q = batch_at(p->s.batch, i);
    int64_t end = c->pos + c->n, n_id = q->r->n_id;
    if (!sends_kv(q))
        return;
    for (int64_t b = c->pos / KERN_KV_BLOCK; b * KERN_KV_BLOCK < end; b++) {
        int64_t n = n_id - b * KERN_KV_BLOCK;
        n = n < KERN_KV_BLOCK ? n : KERN_KV_BLOCK;
        if (b * KERN_KV_BLOCK + n <= end)
            emit_block(p->emit, q, b, q->kv.slot[b], from, to - from, (int)n);
    }
}

static void layer_done(void *arg, int64_t layer)
{
    struct prefill *p = arg;
    int64_t done = layer + 1;
    if (done - p->sent < p->range && done != p->s.layout.n_layer)
        return;
    for (int64_t i = 0; i < batch_n(p->s.batch); i++)
        send_blocks(p, i, p->sent, done);
    p->sent = done;
}

/* The request's first step: its blocks, and word of it to the next stage. *full: no room now. */
static int admit(struct err *e, struct prefill *p, struct request *q, bool *full)
{
    struct err no;
    *full = false;
    if (q->kv.n)
        return 0;
    int rc = kv_table_grow(&no, &q->kv, p->s.pool, request_blocks(q, false));
    if (rc == ERR_NO) {
        *full = true;
        return 0;
    }
    if (rc) {
        *e = no;
        return rc;
    }
    q->start_ns = proc_now_ns();
    struct wire_frame f = {.kind = WIRE_OPEN, .req = *q->r};
    f.req.load_ns = q->load_ns > p->s.load_ns ? q->load_ns : p->s.load_ns;
    return emit_frame(e, p->emit, &f);
}

static int pack(struct err *e, struct prefill *p)
{
    struct batch *b = p->s.batch;
    batch_clear(b);
    for (struct request *q = p->head; q && batch_room(b) > 0; q = q->next) {
        bool full;
        int rc = admit(e, p, q, &full);
        if (rc)
            return rc;
        if (!full) {
            batch_prompt(b, q, INT64_MAX);
            continue;
        }
        if (batch_n(b))
            return 0;
        /* blocks that wait to be written are all that can be in the way of the first; none left: they are free now */
        int64_t n = emit_pending(p->emit);
        rc = emit_wait(e, p->emit, n ? n - 1 : 0);
        if (rc)
            return rc;
        return pack(e, p);
    }
    return 0;
}

static int send_first(struct err *e, struct prefill *p, struct request *q)
{
    struct wire_top top[SAMPLE_TOP_MAX];
    struct wire_span span = span_here(p->s.o->prog);
    span.queued_ns = q->queued_ns;
    span.start_ns = q->start_ns;
    span.end_ns = proc_now_ns();
    span.tokens = q->r->n_id;
    struct wire_frame f = {.kind = WIRE_KV};
    f.kv = (struct wire_kv){.seq = q->r->seq,
                            .index = q->r->index,
                            .n_token = sends_kv(q) ? q->r->n_id : 0,
                            .has_first = q->max_new > 0,
                            .prompt = q->pos.lp,
                            .n_prompt = q->pos.n,
                            .load_ns = p->s.load_ns,
                            .span = &span,
                            .n_span = 1};
    if (f.kv.n_token)
        for (int64_t i = 0; i < request_blocks(q, false); i++) {
            int64_t n = q->r->n_id - i * KERN_KV_BLOCK;
            span.bytes +=
                kv_packed_bytes(&p->s.layout, p->s.layout.n_layer, n < KERN_KV_BLOCK ? (int)n : KERN_KV_BLOCK);
        }
    if (f.kv.has_first)
        logprob_of(&f.kv.first, top, &q->now);
    return emit_frame(e, p->emit, &f);
}

/* After a step: prompts that are done leave with their first token; damaged ones with their error. */
static int hand_over(struct err *e, struct prefill *p)
{
    struct request **at = &p->head;
    while (*at) {
        struct request *q = *at;
        bool done = q->n_kv == q->r->n_id;
        if (!done && !q->err.code) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        p->n_waiting--;
        if (q->err.code) {
            int rc = refuse(e, p, q); /* q is the writer's from here on */
            if (rc)
                return rc;
            continue;
        }
        int rc = send_first(e, p, q);
        emit_done(p->emit, q); /* the writer's from here on */
        if (rc)
            return rc;
        p->n_ok++;
    }
    p->tail = at;
    return 0;
}

static int step(struct err *e, struct prefill *p)
{
    int rc = pack(e, p);
    p->sent = 0;
    if (!rc)
        rc = batch_run(e, p->s.batch, layer_done, p);
    if (!rc)
        rc = hand_over(e, p);
    return rc ? rc : emit_check(e, p->emit); /* the next stage may have gone: no more is computed for it */
}

static int run(struct err *e, struct prefill *p)
{
    bool end = false;
    for (int rc = 0;;) {
        if (!p->bye && !end)
            rc = read_some(e, p, &end);
        if (!rc && p->n_waiting)
            rc = step(e, p);
        else if (!rc && p->bye)
            rc = end_stream(e, p);
        else if (!rc && end)
            return p->emit ? emit_flush(e, p->emit) : 0;
        if (rc)
            return rc;
    }
}

int phase_prefill(struct err *e, const struct phase_opts *o)
{
    struct prefill p = {0};
    p.tail = &p.head;
    int rc = stage_open(e, &p.s, o);
    if (!rc)
        rc = wire_reader_new(e, &p.in, o->fd_in, "stdin");
    if (!rc)
        rc = run(e, &p);
    if (!rc)
        stage_say_profile(&p.s);
    emit_free(p.emit);
    while (p.head) {
        struct request *q = p.head;
        p.head = q->next;
        request_free(q, &p.s);
    }
    wire_reader_free(p.in);
    stage_close(&p.s);
    return rc;
}
