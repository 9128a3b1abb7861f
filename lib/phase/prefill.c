/* prefill as a filter: prompts in, their KV and first tokens out. Steps take prompts in order of arrival. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "phase/emit.h"
#include "phase/runner.h"

#define WAITING_MAX 256 /* prompts read ahead of the engine */
#define RANGES 8        /* blk frames for the layers of a block */

struct prefill {
    struct runner r; /* first */
    struct wire_reader *in;
    struct emit *emit;
    bool bye, end; /* bye was read: nothing more is read until all requests before it are done */
    struct wire_bye last;
    uint64_t n_ok, n_error;
    int64_t range; /* layers of a blk frame */
    int64_t sent;  /* layers of this step that are queued */
    bool full;     /* in this step a prompt found too few free blocks, so none after it is admitted */
};

static struct prefill *prefill_of(struct runner *r)
{
    return (struct prefill *)r;
}

static int start_stream(struct err *e, struct prefill *p, const struct wire_hello *h)
{
    enum kern_kv kv;
    int rc = stage_check_hello(e, &p->r.s, h);
    if (!rc && h->has_kv)
        rc = err_set(e, ERR_PROTO, "stream of %.*s has been prefilled already", (int)h->from.n, h->from.p);
    if (!rc)
        rc = kv_type_parse(e, &kv, p->r.s.o->kv_type);
    if (!rc)
        rc = stage_engine(e, &p->r.s, kv);
    if (!rc && !p->emit)
        rc = emit_new(e, &p->emit, &p->r.s);
    if (rc)
        return rc;
    p->range = (p->r.s.layout.n_layer + RANGES - 1) / RANGES;
    p->n_ok = p->n_error = 0;
    struct wire_frame f;
    stage_hello(&p->r.s, &f, h, true);
    return emit_frame(e, p->emit, &f);
}

static int end_stream(struct err *e, struct prefill *p)
{
    struct wire_frame f;
    stage_bye(&p->r.s, &f, p->n_ok, p->n_error, &p->last);
    p->bye = false;
    int rc = emit_frame(e, p->emit, &f);
    return rc ? rc : emit_flush(e, p->emit);
}

static int accept(struct err *e, struct prefill *p, const struct wire_req *r)
{
    struct request *q;
    int rc = request_new(e, &q, sizeof *q, &p->r.s, r);
    if (rc)
        return rc;
    q->state = REQUEST_RUNS;
    return runner_add(e, &p->r, q);
}

/* Reads the frames that are available; blocks only if there is nothing to compute. */
static int read_some(struct err *e, struct prefill *p)
{
    while (p->r.n < WAITING_MAX) {
        struct pollfd fd = {p->r.s.o->fd_in, POLLIN, 0};
        if (p->r.n && !wire_reader_ready(p->in) && poll(&fd, 1, 0) <= 0)
            return 0;
        struct wire_frame *f;
        int rc = wire_read(e, p->in, &f);
        if (rc)
            return rc;
        if (!f) {
            p->end = true;
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
            rc = err_set(e, ERR_PROTO, "stdin: %s frame in place of tok", wire_kind_name(f->kind));
        }
        if (rc)
            return rc;
    }
    return 0;
}

static int take(struct err *e, struct runner *r, bool idle, bool *over)
{
    struct prefill *p = prefill_of(r);
    p->full = false;
    if (idle && r->head) { /* the first request waits for blocks, which only the writing thread can free */
        int64_t n = emit_pending(p->emit);
        return emit_wait(e, p->emit, n ? n - 1 : 0);
    }
    if (p->bye)
        return r->head ? 0 : end_stream(e, p);
    if (!p->end)
        return read_some(e, p);
    *over = !r->head;
    return *over && p->emit ? emit_flush(e, p->emit) : 0;
}

/* An answer of one token reads no KV. Decided by the request, not by the limits here: the next stage may have more
 * memory. */
static bool sends_kv(const struct request *q)
{
    return q->r->s.max_tokens > 1;
}

/* Queues the blocks of chunk i that this step completes: layers `from` … `to`-1. */
static void send_blocks(struct prefill *p, int64_t i, int64_t from, int64_t to)
{
    const struct engine_chunk *c = &p->r.s.batch->chunk[i];
    const struct request *q = p->r.s.batch->q[i];
    int64_t end = c->pos + c->n, n_id = q->r->n_id;
    if (!sends_kv(q))
        return;
    for (int64_t b = c->pos / KV_BLOCK; b * KV_BLOCK < end; b++) {
        int64_t n = n_id - b * KV_BLOCK;
        n = n < KV_BLOCK ? n : KV_BLOCK;
        if (b * KV_BLOCK + n <= end)
            emit_block(p->emit, q, b, q->kv.slot[b], from, to - from, (int)n);
    }
}

static void layer_done(void *arg, int64_t layer)
{
    struct prefill *p = prefill_of(arg);
    int64_t done = layer + 1;
    if (done - p->sent < p->range && done != p->r.s.layout.n_layer)
        return;
    for (int64_t i = 0; i < p->r.s.batch->n; i++)
        send_blocks(p, i, p->sent, done);
    p->sent = done == p->r.s.layout.n_layer ? 0 : done;
}

/* Before its first step: allocates the blocks of the prompt, in order of arrival, and sends `open`. */
static int slots(struct err *e, struct runner *r, struct request *q, int64_t *rows)
{
    struct prefill *p = prefill_of(r);
    if (q->kv.n)
        return 0;
    struct err no;
    int rc = p->full ? ERR_NO : kv_table_grow(&no, &q->kv, r->s.pool, request_blocks(q, false));
    if (rc == ERR_NO) {
        p->full = true;
        *rows = 0;
        return 0;
    }
    if (rc) {
        *e = no;
        return rc;
    }
    q->start_ns = time_now_ns();
    struct wire_frame f = {.kind = WIRE_OPEN, .req = *q->r};
    f.req.load_ns = q->load_ns > r->s.load_ns ? q->load_ns : r->s.load_ns;
    return emit_frame(e, p->emit, &f);
}

static int transfer_out(struct err *e, struct runner *r, struct request *q)
{
    struct prefill *p = prefill_of(r);
    struct wire_top top[SAMPLE_TOP_MAX];
    struct wire_span span = span_here(p->r.s.o->prog);
    span.queued_ns = q->queued_ns;
    span.start_ns = q->start_ns;
    span.end_ns = q->prompt_end_ns;
    span.tokens = q->r->n_id;
    struct wire_frame f = {.kind = WIRE_KV};
    f.kv = (struct wire_kv){.seq = q->r->seq,
                            .index = q->r->index,
                            .n_token = sends_kv(q) ? q->r->n_id : 0,
                            .has_first = q->max_new > 0,
                            .prompt = q->pos.lp,
                            .n_prompt = q->pos.n,
                            .load_ns = p->r.s.load_ns,
                            .span = &span,
                            .n_span = 1};
    if (f.kv.n_token)
        for (int64_t i = 0; i < request_blocks(q, false); i++) {
            int64_t n = q->r->n_id - i * KV_BLOCK;
            span.bytes += kv_packed_bytes(&p->r.s.layout, p->r.s.layout.n_layer, n < KV_BLOCK ? (int)n : KV_BLOCK);
        }
    if (f.kv.has_first)
        logprob_of(&f.kv.first, top, &q->token);
    p->n_ok++;
    return emit_frame(e, p->emit, &f);
}

static int fail(struct err *e, struct runner *r, struct request *q)
{
    struct prefill *p = prefill_of(r);
    struct wire_frame f;
    error_frame(&f, q);
    p->n_error++;
    int rc = emit_frame(e, p->emit, &f);
    return rc ? rc : emit_room(e, p->emit);
}

/* The writing thread owns it from here on, and frees its blocks after they are written. */
static void release(struct runner *r, struct request *q)
{
    emit_done(prefill_of(r)->emit, q);
}

/* Ends the loop if the next stage has ended. */
static int flush(struct err *e, struct runner *r)
{
    return emit_check(e, prefill_of(r)->emit);
}

static const struct runner_io io = {.take = take,
                                    .release = release,
                                    .slots = slots,
                                    .layer_done = layer_done,
                                    .fail = fail,
                                    .transfer_out = transfer_out,
                                    .flush = flush};

int phase_prefill(struct err *e, const struct phase_opts *o)
{
    struct prefill p = {.r.io = &io};
    int rc = stage_open(e, &p.r.s, o);
    if (!rc)
        rc = wire_reader_new(e, &p.in, o->fd_in, "stdin");
    if (!rc)
        rc = runner_run(e, &p.r);
    if (!rc)
        stage_log_profile(&p.r.s);
    emit_free(p.emit);
    while (p.r.head) {
        struct request *q = p.r.head;
        p.r.head = q->next;
        request_free(q, p.r.s.pool);
    }
    wire_reader_free(p.in);
    stage_close(&p.r.s);
    return rc;
}
