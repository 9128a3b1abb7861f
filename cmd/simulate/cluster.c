/*
 * Fake workers in virtual time, with the real scheduler. A step of a worker computes a token of every answer that it
 * decodes and a chunk of the first prompt in its queue; the coefficients give its duration. After a step the worker
 * sends its reports and its capacity. Work items and controls reach it half a round trip after they are decided.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/kv_block.h"
#include "base/str.h"
#include "base/vec.h"
#include "cmd/simulate/simulate.h"

#define AHEAD 2         /* chunks of prompts for which a worker has capacity */
#define REPORT_EVERY 16 /* tokens of an answer */

enum event_type { ARRIVE, STEP, CONTROL, BEGIN };

struct item { /* a work item on a worker */
    struct item *next;
    uint32_t job;
    uint64_t order;
    uint32_t attempt, n_prompt, max_tokens, n_out, cached, done;
    bool prefill, whole, started;
};

struct worker {
    char name[16];
    int store;
    bool busy;
    uint64_t n_order; /* since its join */
    struct item *prompts, **last_prompt, *answers;
    uint32_t n_prompt, n_answer, tokens_ahead, chunk_now;
    uint64_t blocks, context, step_ns;
    uint64_t decode_only_ns, decode_only_context;
    uint32_t decode_only_batch;
};

struct event {
    uint64_t at_ns, number;
    enum event_type type;
    uint32_t index;    /* of a worker; ARRIVE: of a request */
    struct item *item; /* of BEGIN */
    /* of CONTROL */
    uint64_t order;
    bool preempt;
    uint32_t n_attempt; /* times it was scheduled; it is repeated until the work item arrives */
};

struct cluster {
    struct sched *s;
    struct trace *t;
    const struct cluster_options *o;
    struct worker *w;
    uint32_t n_worker, n_store, n_unfinished;
    struct store *store[SCHED_STORES_MAX];
    struct event *heap;
    size_t n_heap, size_heap;
    uint64_t now_ns, number;
    struct err failed;
    struct str stored, evicted; /* digests for the frame of one cache_prompt call */
};

/* ---- the event queue ---- */

static bool is_earlier(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

static void schedule(struct cluster *c, struct event h)
{
    if (vec_reserve(&c->failed, &c->heap, &c->size_heap, c->n_heap + 1, sizeof *c->heap, "the event queue"))
        return;
    h.number = c->number++;
    size_t i = c->n_heap++;
    for (; i && is_earlier(&h, &c->heap[(i - 1) / 2]); i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = h;
}

static struct event next_event(struct cluster *c)
{
    struct event top = c->heap[0], last = c->heap[--c->n_heap];
    size_t i = 0;
    while (2 * i + 1 < c->n_heap) {
        size_t k = 2 * i + 1;
        k += k + 1 < c->n_heap && is_earlier(&c->heap[k + 1], &c->heap[k]);
        if (!is_earlier(&c->heap[k], &last))
            break;
        c->heap[i] = c->heap[k];
        i = k;
    }
    c->heap[i] = last;
    return top;
}

static void send_event(struct cluster *c, struct wire_frame *f)
{
    f->tick.at_ns = c->now_ns;
    if (!c->failed.code && c->o->record)
        wire_write_later(&c->failed, c->o->record, f);
    if (!c->failed.code)
        sched_event(&c->failed, c->s, f);
}

/* ---- frames of workers ---- */

static void capacity(struct cluster *c, struct worker *w)
{
    uint32_t ahead = AHEAD * c->o->chunk, used = w->n_prompt + w->n_answer;
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){.worker = wire_str_of(w->name),
                                        .inc = 1,
                                        .orders = w->n_order,
                                        .seqs = used < c->o->seqs ? c->o->seqs - used : 0,
                                        .tokens = w->tokens_ahead < ahead ? ahead - w->tokens_ahead : 0,
                                        .blocks = c->o->blocks - w->blocks,
                                        .step_ns = w->decode_only_ns,
                                        .context = w->decode_only_context,
                                        .batch = w->decode_only_batch};
    w->decode_only_ns = 0;
    send_event(c, &f);
}

static void report(struct cluster *c, const struct worker *w, const struct item *item, const char *what,
                   uint64_t busy_ns)
{
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){.worker = wire_str_of(w->name),
                                    .inc = 1,
                                    .gw = wire_str_of("gateway"),
                                    .job = item->job,
                                    .order = item->order,
                                    .attempt = item->attempt,
                                    .what = wire_str_of(what),
                                    .n_done = item->cached + item->done,
                                    .cached = item->cached,
                                    .n_out = item->n_out,
                                    .busy_ns = busy_ns,
                                    .reason = strcmp(what, "ended") ? 0 : WIRE_LENGTH};
    send_event(c, &f);
}

/* ---- the stores ---- */

static void on_change(void *arg, uint64_t block, bool stored)
{
    struct cluster *c = arg;
    uint8_t digest[KV_DIGEST] = {0};
    memcpy(digest, &block, sizeof block);
    str_add(stored ? &c->stored : &c->evicted, digest, sizeof digest);
}

static void cache_prompt(struct cluster *c, int store, const struct request *q)
{
    struct wire_frame f = {.kind = WIRE_BLOCKS};
    char name[16];
    if (!q->n_block)
        return;
    snprintf(name, sizeof name, "s%d", store);
    str_clear(&c->stored);
    str_clear(&c->evicted);
    store_add(c->store[store], q->block, q->n_block, on_change, c);
    f.blocks = (struct wire_blocks){.store = wire_str_of(name),
                                    .stored = {(const uint8_t *)c->stored.p, c->stored.n},
                                    .evicted = {(const uint8_t *)c->evicted.p, c->evicted.n}};
    if (!c->failed.code)
        (void)(str_check(&c->failed, &c->stored, "digests") || str_check(&c->failed, &c->evicted, "digests"));
    if (c->stored.n || c->evicted.n)
        send_event(c, &f);
}

/* ---- steps ---- */

static uint32_t need(const struct item *item)
{
    uint64_t n = (uint64_t)item->n_prompt + (item->prefill && !item->whole ? 1 : item->max_tokens);
    return (uint32_t)((n + KV_BLOCK - 1) / KV_BLOCK);
}

/* Chooses the cached prefix of a prompt: that of the worker's own store, or a longer one of another store if its
 * transfer is faster than to compute it. Returns the fixed cost, ns. */
static double begin_prompt(struct cluster *c, struct worker *w, struct item *item)
{
    const struct request *q = &c->t->v[item->job - 1];
    uint32_t own = store_prefix(c->store[w->store], q->block, q->n_block) * KV_BLOCK, best = 0;
    uint32_t most = item->n_prompt - 1;
    own = own < most ? own : most;
    for (uint32_t i = 0; i < c->n_store; i++) {
        uint32_t n = store_prefix(c->store[i], q->block, q->n_block) * KV_BLOCK;
        best = n > best ? n : best;
    }
    best = best < most ? best : most;
    double transfer = 0, saved = engine_prefill_ns(&c->o->cost, 0, own, best);
    if (best > own && (best - own) * c->o->transfer_ns < saved)
        transfer = (best - own) * c->o->transfer_ns;
    item->cached = transfer > 0 ? best : own;
    item->done = 0;
    item->started = true;
    return c->o->cost.prefill[0] + transfer;
}

/* Starts the next step if the worker is idle and has work. */
static void step(struct cluster *c, struct worker *w)
{
    if (w->busy || (!w->prompts && !w->answers))
        return;
    const struct engine_cost *cost = &c->o->cost;
    double ns = 0, fixed = 0;
    w->context = 0;
    for (const struct item *item = w->answers; item; item = item->next)
        w->context += item->n_prompt + item->n_out;
    if (w->n_answer) {
        fixed = cost->decode[0];
        ns += engine_decode_ns(cost, (double)w->context, w->n_answer);
    }
    w->chunk_now = 0;
    struct item *item = w->prompts;
    if (item) {
        double start = item->started ? 0 : begin_prompt(c, w, item);
        fixed = start > fixed ? start : fixed;
        uint32_t left = item->n_prompt - item->cached - item->done;
        uint32_t room = w->n_answer < c->o->chunk ? c->o->chunk - w->n_answer : 1;
        w->chunk_now = left < room ? left : room;
        double had = item->cached + item->done;
        ns += engine_prefill_ns(cost, 0, had, had + w->chunk_now);
    }
    w->busy = true;
    w->step_ns = (uint64_t)(ns + fixed) + 1;
    schedule(c, (struct event){.at_ns = c->now_ns + w->step_ns, .type = STEP, .index = (uint32_t)(w - c->w)});
}

static void free_item(struct worker *w, struct item *item)
{
    w->blocks -= need(item);
    free(item);
}

static void add_token(struct cluster *c, struct item *item)
{
    struct request *q = &c->t->v[item->job - 1];
    item->n_out++;
    if (item->n_out <= q->n_received) /* computed again by a later attempt */
        return;
    q->n_received = item->n_out;
    q->last_ns = c->now_ns;
    if (item->n_out == 1)
        q->first_ns = c->now_ns;
}

static void prompt_done(struct cluster *c, struct worker *w, struct item *item)
{
    struct request *q = &c->t->v[item->job - 1];
    w->prompts = item->next;
    w->last_prompt = w->prompts ? w->last_prompt : &w->prompts;
    w->n_prompt--;
    q->cached = item->cached;
    cache_prompt(c, w->store, q);
    add_token(c, item);
    const struct engine_cost *cost = &c->o->cost;
    uint64_t busy = (uint64_t)engine_prefill_ns(cost, cost->prefill[0], item->cached, item->n_prompt);
    if (item->n_out >= item->max_tokens) {
        report(c, w, item, "ended", 0);
        free_item(w, item);
        return;
    }
    report(c, w, item, "prefilled", busy);
    if (!item->whole) {
        free_item(w, item);
        return;
    }
    item->next = w->answers;
    w->answers = item;
    w->n_answer++;
}

static void step_done(struct cluster *c, struct worker *w)
{
    w->busy = false;
    bool mixed = w->chunk_now > 0, decoded = w->n_answer > 0;
    uint64_t context = w->context, batch = w->n_answer;
    for (struct item **at = &w->answers, *item; (item = *at);) {
        add_token(c, item);
        bool all = item->n_out >= item->max_tokens;
        if (all || item->n_out % REPORT_EVERY == 0)
            report(c, w, item, all ? "ended" : "tokens", 0);
        if (!all) {
            at = &item->next;
            continue;
        }
        *at = item->next;
        w->n_answer--;
        free_item(w, item);
    }
    struct item *item = w->prompts;
    if (item && w->chunk_now) {
        item->done += w->chunk_now;
        w->tokens_ahead -= w->chunk_now < w->tokens_ahead ? w->chunk_now : w->tokens_ahead;
        if (item->cached + item->done >= item->n_prompt)
            prompt_done(c, w, item);
        else
            report(c, w, item, "progress", 0);
    }
    if (!w->prompts)
        w->tokens_ahead = 0;
    w->decode_only_ns = decoded && !mixed ? w->step_ns : 0; /* the scheduler learns only from steps without prefill */
    w->decode_only_context = context;
    w->decode_only_batch = (uint32_t)batch;
    capacity(c, w);
    step(c, w);
}

/* ---- work items and controls ---- */

static void begin_item(struct cluster *c, struct worker *w, struct item *item)
{
    if (item->prefill) {
        *w->last_prompt = item;
        w->last_prompt = &item->next;
    } else {
        item->next = w->answers;
        w->answers = item;
        w->n_prompt--;
        w->n_answer++;
    }
    step(c, w);
}

static void end_item(struct cluster *c, struct worker *w, struct item **at, bool preempt)
{
    struct item *item = *at;
    bool answer = !item->prefill || (item->started && item->cached + item->done >= item->n_prompt);
    *at = item->next;
    if (answer)
        w->n_answer--;
    else
        w->n_prompt--;
    if (at == &w->prompts && !item->next)
        w->last_prompt = &w->prompts;
    for (struct item **p = &w->prompts; !answer && *p; p = &(*p)->next)
        w->last_prompt = &(*p)->next;
    report(c, w, item, preempt ? "preempted" : "cancelled", 0);
    free_item(w, item);
    capacity(c, w);
}

/* Ends a work item. If it has not arrived, or computes a chunk of its prompt, the control is scheduled again. */
static void control_item(struct cluster *c, struct worker *w, const struct event *h)
{
    for (struct item **at = &w->answers; *at; at = &(*at)->next)
        if ((*at)->order == h->order) {
            end_item(c, w, at, h->preempt);
            return;
        }
    for (struct item **at = &w->prompts; *at; at = &(*at)->next)
        if ((*at)->order == h->order && (at != &w->prompts || !w->busy)) {
            end_item(c, w, at, h->preempt);
            return;
        }
    struct event later = *h;
    later.at_ns = c->now_ns + NS_MS;
    if (later.n_attempt++ < 10000)
        schedule(c, later);
}

static void on_work_item(struct cluster *c, const struct wire_order *o)
{
    struct worker *w = &c->w[strtoul(o->to.p + 1, NULL, 10)];
    struct item *item = calloc(1, sizeof *item);
    if (!item) {
        err_nomem(&c->failed, "a work item", sizeof *item);
        return;
    }
    bool decode = o->phase.p[0] == 'd';
    *item = (struct item){.job = (uint32_t)o->job,
                          .order = o->order,
                          .attempt = o->attempt,
                          .n_prompt = o->n_prompt,
                          .max_tokens = o->max_tokens,
                          .n_out = o->n_out,
                          .prefill = !decode,
                          .whole = o->phase.p[0] == 'w'};
    w->n_order++;
    w->n_prompt++; /* a sequence slot; begin_item corrects it for decode */
    w->blocks += need(item);
    double delay = c->o->rtt_ns / 2;
    if (decode && o->from.n && strtol(o->from.p + 1, NULL, 10) != w->store)
        delay += c->o->transfer_ns * o->n_prompt;
    w->tokens_ahead += decode ? 0 : o->n_prompt - o->cached;
    schedule(c, (struct event){
                    .at_ns = c->now_ns + (uint64_t)delay, .type = BEGIN, .index = (uint32_t)(w - c->w), .item = item});
}

static void on_control(struct cluster *c, const struct wire_control *f)
{
    if (f->what.p[0] != 'c' && f->what.p[0] != 'p')
        return;
    schedule(c, (struct event){.at_ns = c->now_ns + (uint64_t)(c->o->rtt_ns / 2),
                               .type = CONTROL,
                               .index = (uint32_t)strtoul(f->to.p + 1, NULL, 10),
                               .order = f->order,
                               .preempt = f->what.p[0] == 'p'});
}

static void emit(void *arg, const struct wire_frame *f)
{
    struct cluster *c = arg;
    struct request *q;
    switch ((int)f->kind) {
    case WIRE_ORDER:
        on_work_item(c, &f->order);
        break;
    case WIRE_CONTROL:
        on_control(c, &f->control);
        break;
    case WIRE_REFUSE:
        if (f->refuse.job) {
            c->t->v[f->refuse.job - 1].refused = true;
            c->n_unfinished--;
        }
        break;
    case WIRE_DONE:
        q = &c->t->v[f->done.job - 1];
        q->done = f->done.reason == WIRE_STOP || f->done.reason == WIRE_LENGTH;
        q->failed = !q->done;
        c->n_unfinished--;
        break;
    }
}

/* ---- the simulation ---- */

static void arrive(struct cluster *c, uint32_t i)
{
    struct request *q = &c->t->v[i];
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    uint8_t *digests = calloc((size_t)q->n_block + 1, 32);
    if (!digests) {
        err_nomem(&c->failed, "digests", q->n_block);
        return;
    }
    for (uint32_t b = 0; b < q->n_block; b++)
        memcpy(digests + (size_t)b * 32, &q->block[b], sizeof q->block[b]);
    f.submit = (struct wire_submit){.gw = wire_str_of("gateway"),
                                    .job = i + 1,
                                    .n_prompt = q->n_prompt,
                                    .max_tokens = q->n_out,
                                    .digests = {digests, (size_t)q->n_block * 32},
                                    .slo_ttft_ns = c->o->slo_ttft_ns,
                                    .slo_tpot_ns = c->o->slo_tpot_ns};
    send_event(c, &f);
    free(digests);
    if (i + 1 < c->t->n)
        schedule(c, (struct event){.at_ns = c->t->v[i + 1].at_ns, .type = ARRIVE, .index = i + 1});
}

static void process(struct cluster *c, const struct event *h)
{
    struct worker *w = h->type == ARRIVE ? NULL : &c->w[h->index];
    switch (h->type) {
    case ARRIVE:
        arrive(c, h->index);
        break;
    case STEP:
        step_done(c, w);
        break;
    case CONTROL:
        control_item(c, w, h);
        break;
    case BEGIN:
        begin_item(c, w, h->item);
        break;
    }
}

static void join(struct cluster *c, uint32_t i)
{
    struct worker *w = &c->w[i];
    const struct cluster_options *o = c->o;
    struct wire_frame f = {.kind = WIRE_JOIN};
    char name[16];
    snprintf(w->name, sizeof w->name, "w%u", i);
    w->last_prompt = &w->prompts;
    w->store = o->shared ? 0 : (int)i;
    snprintf(name, sizeof name, "s%d", w->store);
    f.join = (struct wire_join){.worker = wire_str_of(w->name),
                                .inc = 1,
                                .role = wire_str_of(i < o->n_prefill                 ? "prefill"
                                                    : i < o->n_prefill + o->n_decode ? "decode"
                                                                                     : "both"),
                                .store = wire_str_of(name),
                                .seqs = o->seqs,
                                .blocks = o->blocks,
                                .max_len = o->max_len,
                                .chunk = o->chunk,
                                .pre_a = (float)o->cost.prefill[0],
                                .pre_b = (float)o->cost.prefill[1],
                                .pre_c = (float)o->cost.prefill[2],
                                .dec_a = (float)o->cost.decode[0],
                                .dec_b = (float)o->cost.decode[1],
                                .dec_c = (float)o->cost.decode[2]};
    send_event(c, &f);
    capacity(c, w);
}

static int loop(struct err *e, struct cluster *c)
{
    for (uint32_t i = 0; i < c->n_worker; i++)
        join(c, i);
    if (!c->failed.code)
        sched_decide(&c->failed, c->s);
    if (c->t->n)
        schedule(c, (struct event){.at_ns = c->t->v[0].at_ns, .type = ARRIVE});
    while (c->n_unfinished && !c->failed.code) {
        uint64_t at = sched_next_ns(c->s);
        if (c->n_heap && c->heap[0].at_ns <= at) {
            c->now_ns = c->heap[0].at_ns;
            while (c->n_heap && c->heap[0].at_ns == c->now_ns) {
                struct event h = next_event(c);
                process(c, &h);
            }
        } else {
            struct wire_frame f = {.kind = WIRE_TICK};
            c->now_ns = at > c->now_ns ? at : c->now_ns + NS_MS;
            send_event(c, &f);
        }
        if (!c->failed.code)
            sched_decide(&c->failed, c->s);
    }
    if (c->failed.code)
        *e = c->failed;
    return c->failed.code;
}

static void free_cluster(struct cluster *c)
{
    for (uint32_t i = 0; c->w && i < c->n_worker; i++)
        for (int k = 0; k < 2; k++)
            for (struct item *t = k ? c->w[i].answers : c->w[i].prompts, *after; t; t = after) {
                after = t->next;
                free(t);
            }
    for (size_t i = 0; i < c->n_heap; i++)
        if (c->heap[i].type == BEGIN)
            free(c->heap[i].item);
    for (uint32_t i = 0; i < c->n_store; i++)
        store_free(c->store[i]);
    free(c->w);
    free(c->heap);
    str_free(&c->stored);
    str_free(&c->evicted);
}

int cluster_run(struct err *e, struct sched *s, struct trace *t, const struct cluster_options *o, uint64_t *end_ns)
{
    struct cluster c = {.s = s, .t = t, .o = o, .n_unfinished = (uint32_t)t->n};
    c.n_worker = o->n_prefill + o->n_decode + o->n_both;
    c.w = calloc(c.n_worker, sizeof *c.w);
    uint32_t n_store = o->shared ? 1 : c.n_worker;
    int rc = c.w ? 0 : err_nomem(e, "workers", c.n_worker * sizeof *c.w);
    for (; !rc && c.n_store < n_store; c.n_store++) {
        c.store[c.n_store] = store_new(o->cache_blocks);
        if (!c.store[c.n_store])
            rc = err_nomem(e, "a store", o->cache_blocks);
    }
    sched_set_sink(s, &(struct sched_sink){.emit = emit, .arg = &c});
    rc = rc ? rc : loop(e, &c);
    sched_set_sink(s, &(struct sched_sink){0});
    *end_ns = c.now_ns;
    free_cluster(&c);
    return rc;
}
