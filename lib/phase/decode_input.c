/* The input thread of decode: reads frames into requests, and blocks from the pipe directly into their slots. */
#include <stdlib.h>
#include <string.h>

#include "phase/decode.h"

#define WAITING_MAX 256 /* requests read ahead of the engine */
#define HELD_MAX 4096   /* requests, including those without blocks: a slow next stage holds back the reading */

bool decode_admit(struct decode *d, struct incoming *in)
{
    struct err no;
    return kv_table_grow(&no, &in->q.kv, d->r.s.pool, request_blocks(&in->q, true)) == 0;
}

bool decode_ready(const struct incoming *in)
{
    return !in->prefilled || in->kv_seen;
}

void decode_free(struct decode *d, struct incoming *in)
{
    free(in->arrived);
    request_free(&in->q, d->r.s.pool);
}

/* Whether a request that has blocks, or can get them, will end without further input. */
static bool will_free(const struct decode *d)
{
    return d->n_held > d->n_streaming ||
           (!d->n_streaming && d->n_waiting && decode_ready(incoming_of(d->waiting.next)));
}

static struct incoming *find(struct list *l, uint64_t seq, uint32_t index)
{
    list_for_each (n, l) {
        struct incoming *in = incoming_of(n);
        if (in->q.r->seq == seq && in->q.r->index == index)
            return in;
    }
    return NULL;
}

static struct incoming *find_any(struct decode *d, uint64_t seq, uint32_t index)
{
    struct incoming *in = find(&d->held, seq, index);
    return in ? in : find(&d->waiting, seq, index);
}

/* Allocates memory for a whole block in packed form, for the present KV type. */
static int packed_room(struct err *e, struct decode *d)
{
    size_t n = kv_packed_bytes(&d->r.s.layout, d->r.s.layout.n_layer, KV_BLOCK);
    uint8_t *p = realloc(d->packed, n);
    if (!p)
        return err_nomem(e, "a block", n);
    d->packed = p;
    return 0;
}

/* The beginning of a stream: the stream before has ended, and all its requests are done. */
static int take_hello(struct err *e, struct decode *d, const struct wire_hello *h)
{
    enum kern_kv kv;
    int rc = stage_check_hello(e, &d->r.s, h);
    if (!rc && h->has_kv) {
        char name[16] = {0};
        memcpy(name, h->kv_type.p, h->kv_type.n < 15 ? h->kv_type.n : 15);
        rc = kv_type_parse(e, &kv, name);
        enum kern_kv mine;
        if (!rc && strcmp(d->r.s.o->kv_type, "auto") && !kv_type_parse(e, &mine, d->r.s.o->kv_type) && mine != kv)
            rc = err_set(e, ERR_PROTO, "stream of %.*s carries %s KV, --kv-cache-dtype is %s", (int)h->from.n,
                         h->from.p, name, d->r.s.o->kv_type);
    } else if (!rc) {
        rc = kv_type_parse(e, &kv, d->r.s.o->kv_type);
    }
    if (!rc)
        rc = stage_engine(e, &d->r.s, kv);
    if (!rc)
        rc = packed_room(e, d);
    if (rc)
        return rc;
    struct wire_frame f;
    stage_hello(&d->r.s, &f, h, false);
    return wire_write(e, d->r.s.out, &f);
}

/*
 * Allocates the blocks of the request, waiting while other requests will free some. If none will, all requests that
 * hold blocks wait for this thread, which would be a deadlock: returns false, and the request is computed again later.
 * False at once if no blocks follow in the input.
 */
static bool wait_room(struct decode *d, struct incoming *in)
{
    while (!d->quit) {
        if (!d->n_waiting && decode_admit(d, in)) /* in order of arrival */
            return true;
        if (!will_free(d) || (!in->streaming && d->n_waiting < WAITING_MAX))
            return false;
        pthread_cond_wait(&d->room, &d->lock);
    }
    return false;
}

static int take_request(struct err *e, struct decode *d, const struct wire_req *r, bool streaming)
{
    struct request *q;
    struct incoming *in;
    int rc = request_new(e, &q, sizeof *in, &d->r.s, r);
    if (rc)
        return rc;
    in = (struct incoming *)q;
    in->streaming = streaming && q->max_new > 1;
    in->n_block = request_blocks(q, false);
    in->streaming &= !q->err.code;
    if (in->streaming && !(in->arrived = calloc((size_t)in->n_block, sizeof *in->arrived))) {
        rc = err_nomem(e, "a request's blocks", (size_t)in->n_block * sizeof *in->arrived);
        decode_free(d, in);
        return rc;
    }
    in->prefilled = streaming;
    if (streaming)
        q->want_prompt = false; /* prefill has scored the prompt */
    pthread_mutex_lock(&d->lock);
    if (find_any(d, r->seq, r->index)) {
        pthread_mutex_unlock(&d->lock);
        rc = err_set(e, ERR_PROTO, "stdin: request %llu.%u opened twice", (unsigned long long)r->seq, r->index);
        decode_free(d, in);
        return rc;
    }
    bool needs = !q->err.code && !(streaming && q->max_new <= 1);
    while (!needs && !d->quit && d->n_held - d->n_streaming >= HELD_MAX)
        pthread_cond_wait(&d->room, &d->lock);
    if (!needs || wait_room(d, in)) {
        list_push_back(&d->held, &in->node);
        d->n_held++;
        d->n_streaming += streaming; /* refused ones too: they end when the kv or err frame is read */
    } else {
        in->dropped = streaming; /* its blocks are discarded and computed again from the ids */
        list_push_back(&d->waiting, &in->node);
        d->n_waiting++;
    }
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

/* Checks the frame of a block: the layer ranges of a block come in order, each once. */
static int check_block(struct err *e, const struct decode *d, const struct incoming *in, const struct wire_blk *b)
{
    int64_t n_id = in->q.r->n_id;
    if (b->block >= (uint64_t)in->n_block || b->layer + (uint64_t)b->n_layer > (uint64_t)d->r.s.layout.n_layer ||
        !b->n_layer)
        return err_set(e, ERR_PROTO,
                       "stdin: block %llu, layers %u+%u is outside request %llu.%u (%lld blocks of %lld layers)",
                       (unsigned long long)b->block, b->layer, b->n_layer, (unsigned long long)b->seq, b->index,
                       (long long)in->n_block, (long long)d->r.s.layout.n_layer);
    int64_t n = n_id - (int64_t)b->block * KV_BLOCK;
    n = n < KV_BLOCK ? n : KV_BLOCK;
    if (b->n_token != (uint32_t)n || b->n_data != kv_packed_bytes(&d->r.s.layout, b->n_layer, (int)n))
        return err_set(
            e, ERR_PROTO, "stdin: block %llu of request %llu.%u holds %u tokens in %llu bytes, %lld in %zu expected",
            (unsigned long long)b->block, (unsigned long long)b->seq, b->index, b->n_token,
            (unsigned long long)b->n_data, (long long)n, kv_packed_bytes(&d->r.s.layout, b->n_layer, (int)n));
    if (!in->dropped && in->arrived[b->block] != b->layer)
        return err_set(e, ERR_PROTO, "stdin: block %llu of request %llu.%u: got layer %u, expected %u",
                       (unsigned long long)b->block, (unsigned long long)b->seq, b->index, b->layer,
                       in->arrived[b->block]);
    return 0;
}

static int read_block(struct err *e, struct decode *d, struct incoming *in, const struct wire_blk *b)
{
    struct kv_part p = {in->q.kv.slot[b->block], b->layer, b->n_layer, (int)b->n_token};
    uint64_t sum = b->sum, n = b->n_data, block = b->block, seq = b->seq;
    uint32_t index = b->index;
    uint8_t *to = engine_kv_place(d->r.s.g, &p, d->packed);
    int rc = wire_read_data(e, d->in, to, n);
    if (!rc && wire_sum(to, n) != sum)
        rc = err_set(e, ERR_PROTO, "stdin: block %llu of request %llu.%u is damaged: its checksum differs",
                     (unsigned long long)block, (unsigned long long)seq, index);
    return rc ? rc : engine_kv_write(e, d->r.s.g, &p, to);
}

/* The input of the request is complete: the runner may take it. With the lock held. */
static void arrived(struct decode *d, struct incoming *in)
{
    if (!in->dropped) {
        d->n_streaming--;
        in->q.n_kv = in->streaming ? (int64_t)in->q.r->n_id : 0;
    }
    in->streaming = false;
    pthread_cond_signal(&d->work);
}

static struct incoming *find_streaming(struct err *e, struct decode *d, uint64_t seq, uint32_t index, const char *kind)
{
    pthread_mutex_lock(&d->lock);
    struct incoming *in = find_any(d, seq, index);
    if (!in || in->kv_seen || !in->prefilled) {
        err_set(e, ERR_PROTO, "stdin: %s frame of request %llu.%u, which %s", kind, (unsigned long long)seq, index,
                in ? "is complete" : "was not opened");
        in = NULL;
    }
    pthread_mutex_unlock(&d->lock);
    return in;
}

static int take_block(struct err *e, struct decode *d, const struct wire_blk *b)
{
    struct incoming *in = find_streaming(e, d, b->seq, b->index, "blk");
    if (!in)
        return e->code;
    if (in->q.err.code || !in->arrived)
        return 0; /* refused earlier */
    int rc = check_block(e, d, in, b);
    if (rc || in->dropped)
        return rc;
    uint64_t block = b->block;
    uint32_t upto = b->layer + b->n_layer;
    uint64_t n = b->n_data;
    rc = read_block(e, d, in, b);
    if (rc)
        return rc;
    in->arrived[block] = upto;
    in->n_whole += upto == d->r.s.layout.n_layer;
    in->q.bytes_in += n;
    return 0;
}

static int keep_prompt(struct err *e, struct request *q, const struct wire_kv *k)
{
    if (k->n_prompt != q->pos.n)
        return err_set(e, ERR_PROTO, "stdin: kv frame of request %llu.%u has %u prompt log-probabilities, expected %u",
                       (unsigned long long)k->seq, k->index, k->n_prompt, q->pos.n);
    uint32_t n_top = (uint32_t)q->pos.n_top;
    for (uint32_t i = 0; i < k->n_prompt; i++) {
        struct wire_logprob *lp = &q->pos.lp[i];
        *lp = k->prompt[i];
        if (lp->n_top > n_top)
            return err_set(e, ERR_PROTO,
                           "stdin: kv frame of request %llu.%u has %u best of a position, %u were requested",
                           (unsigned long long)k->seq, k->index, lp->n_top, n_top);
        if (lp->n_top)
            memcpy(q->pos.top + (size_t)i * n_top, lp->top, lp->n_top * sizeof *lp->top);
        lp->top = q->pos.top + (size_t)i * n_top;
    }
    return 0;
}

static int take_kv(struct err *e, struct decode *d, const struct wire_kv *k)
{
    struct incoming *in = find_streaming(e, d, k->seq, k->index, "kv");
    if (!in)
        return e->code;
    struct request *q = &in->q;
    if (k->has_first && (k->first.id >= (uint64_t)d->r.s.m->c.vocab || k->first.n_top > SAMPLE_TOP_MAX))
        return err_set(e, ERR_PROTO, "stdin: kv frame of request %llu.%u: first id %u is not in the model's %lld",
                       (unsigned long long)k->seq, k->index, k->first.id, (long long)d->r.s.m->c.vocab);
    if (!q->err.code && k->has_first != (q->max_new > 0))
        return err_set(e, ERR_PROTO, "stdin: kv frame of request %llu.%u has %s first token",
                       (unsigned long long)k->seq, k->index, k->has_first ? "an unwanted" : "no");
    if (!q->err.code && in->streaming && !in->dropped && in->n_whole < in->n_block)
        return err_set(e, ERR_PROTO, "stdin: kv frame of request %llu.%u after %lld of %lld blocks",
                       (unsigned long long)k->seq, k->index, (long long)in->n_whole, (long long)in->n_block);
    if (in->streaming && k->n_token != q->r->n_id)
        return err_set(e, ERR_PROTO, "stdin: kv frame of request %llu.%u holds %u tokens, expected %u",
                       (unsigned long long)k->seq, k->index, k->n_token, q->r->n_id);
    int rc = q->err.code ? 0 : request_add_spans(e, q, k->span, k->n_span);
    if (!rc && !q->err.code)
        rc = keep_prompt(e, q, k);
    if (rc)
        return rc;
    q->token = (struct sample_result){
        .id = k->first.id, .logprob = k->first.logprob, .rank = k->first.rank, .n_top = (int32_t)k->first.n_top};
    for (uint32_t i = 0; i < k->first.n_top; i++)
        q->token.top[i] = (struct sample_top){k->first.top[i].id, k->first.top[i].logprob};
    q->cached = k->cached;
    q->load_ns = k->load_ns > q->load_ns ? k->load_ns : q->load_ns;
    pthread_mutex_lock(&d->lock);
    q->has_token = k->has_first;
    in->kv_seen = true;
    arrived(d, in);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

/* A request that failed in an earlier stage. If it was opened here, it ends with that error; otherwise the frame is
 * forwarded. */
static int take_error(struct err *e, struct decode *d, const struct wire_frame *f)
{
    const struct wire_error *w = &f->error;
    pthread_mutex_lock(&d->lock);
    struct incoming *in = find_any(d, w->seq, w->index);
    bool open = in && !decode_ready(in);
    if (open) {
        if (!in->q.err.code)
            err_set(&in->q.err, (int)w->code, "%.*s", (int)w->text.n, w->text.p);
        in->kv_seen = true;
        arrived(d, in);
    }
    d->n_error += !in;
    pthread_mutex_unlock(&d->lock);
    if (!in)
        return wire_write(e, d->r.s.out, f);
    return open ? 0
                : err_set(e, ERR_PROTO, "stdin: err frame of request %llu.%u, which is complete",
                          (unsigned long long)w->seq, w->index);
}

/* The end of a stream. An error if a request is incomplete. */
static int take_bye(struct err *e, struct decode *d, const struct wire_bye *b)
{
    pthread_mutex_lock(&d->lock);
    int64_t open = 0;
    list_for_each (n, &d->held)
        open += !decode_ready(incoming_of(n));
    list_for_each (n, &d->waiting)
        open += !decode_ready(incoming_of(n));
    d->last = *b; /* borrowed until the next read, which waits until the runner has written the bye */
    d->bye = !open;
    pthread_cond_signal(&d->work);
    while (d->bye && !d->quit)
        pthread_cond_wait(&d->room, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return open ? err_set(e, ERR_PROTO, "stdin: bye of %.*s, but %lld requests are incomplete", (int)b->from.n,
                          b->from.p, (long long)open)
                : 0;
}

static int take_frame(struct err *e, struct decode *d, struct wire_frame *f)
{
    switch (f->kind) {
    case WIRE_HELLO:
        return take_hello(e, d, &f->hello);
    case WIRE_TOK:
        return take_request(e, d, &f->req, false);
    case WIRE_OPEN:
        return take_request(e, d, &f->req, true);
    case WIRE_BLK:
        return take_block(e, d, &f->blk);
    case WIRE_KV:
        return take_kv(e, d, &f->kv);
    case WIRE_ERR:
        return take_error(e, d, f);
    case WIRE_BYE:
        return take_bye(e, d, &f->bye);
    default:
        return err_set(e, ERR_PROTO, "stdin: %s frame in place of tok, open, blk or kv", wire_kind_name(f->kind));
    }
}

void *decode_input(void *arg)
{
    struct decode *d = arg;
    struct err e = {0};
    struct wire_frame *f = NULL;
    int rc;
    while (!(rc = wire_read(&e, d->in, &f)) && f)
        if ((rc = take_frame(&e, d, f)))
            break;
    if (!rc && !wire_reader_seen_hello(d->in))
        rc = err_set(&e, ERR_PROTO, EMPTY_STREAM);
    pthread_mutex_lock(&d->lock);
    d->end = true;
    if (rc)
        d->in_err = e;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}
