/*
 * Fake workers in virtual time around the real machine. A worker goes step by step: a token of every answer that it
 * decodes, and a chunk of the prompt in front of its queue; the step takes what the coefficients say. It reports, and
 * sends its capacity, when a step has ended; orders and controls arrive half a round trip later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/kv_block.h"
#include "base/str.h"
#include "base/vec.h"
#include "cmd/simulate/simulate.h"

#define AHEAD 2 /* chunks of prompts that a worker takes ahead */
#define REPORT_EVERY 16

enum what { ARRIVE, STEP, CONTROL, BEGIN };

struct task { /* an order on a worker */
    struct task *next;
    uint32_t job;
    uint64_t order, arrive_ns;
    uint32_t attempt, n_prompt, max_tokens, n_out, cached, done;
    bool prefill, whole, begun;
};

struct worker {
    char name[16];
    int store;
    bool busy;
    uint64_t n_order; /* since its join */
    struct task *prompts, **last_prompt, *answers;
    uint32_t n_prompt, n_answer, tokens_ahead, chunk_now;
    uint64_t blocks, context, step_ns;
    uint64_t clean_ns, clean_context;
    uint32_t clean_batch;
};

struct happening {
    uint64_t at_ns, number;
    enum what what;
    uint32_t who;
    struct task *task; /* BEGIN; of CONTROL: a copy of what to do */
    uint64_t order;
    bool preempt;
    uint32_t tries; /* of CONTROL: an order may still be on its way */
};

struct cluster {
    struct sched *s;
    struct trace *t;
    const struct cluster_options *o;
    struct worker *w;
    uint32_t n_worker, n_store, n_left;
    struct store *store[SCHED_STORES_MAX];
    struct happening *heap;
    size_t n_heap, size_heap;
    uint64_t now_ns, number;
    struct err failed;
    struct str stored, evicted; /* digests, for the events of one call */
};

/* ---- what happens when ---- */

static bool sooner(const struct happening *a, const struct happening *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->number < b->number;
}

static void happen(struct cluster *c, struct happening h)
{
    if (vec_reserve(&c->failed, &c->heap, &c->size_heap, c->n_heap + 1, sizeof *c->heap, "what happens"))
        return;
    h.number = c->number++;
    size_t i = c->n_heap++;
    for (; i && sooner(&h, &c->heap[(i - 1) / 2]); i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = h;
}

static struct happening next(struct cluster *c)
{
    struct happening top = c->heap[0], last = c->heap[--c->n_heap];
    size_t i = 0;
    while (2 * i + 1 < c->n_heap) {
        size_t k = 2 * i + 1;
        k += k + 1 < c->n_heap && sooner(&c->heap[k + 1], &c->heap[k]);
        if (!sooner(&c->heap[k], &last))
            break;
        c->heap[i] = c->heap[k];
        i = k;
    }
    c->heap[i] = last;
    return top;
}

static void tell(struct cluster *c, struct wire_frame *f)
{
    f->tick.at_ns = c->now_ns;
    if (!c->failed.code && c->o->record)
        wire_write_later(&c->failed, c->o->record, f);
    if (!c->failed.code)
        sched_event(&c->failed, c->s, f);
}

/* ---- what workers send ---- */

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
                                        .step_ns = w->clean_ns,
                                        .context = w->clean_context,
                                        .batch = w->clean_batch};
    w->clean_ns = 0;
    tell(c, &f);
}

static void report(struct cluster *c, const struct worker *w, const struct task *k, const char *what, uint64_t busy_ns)
{
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){.worker = wire_str_of(w->name),
                                    .inc = 1,
                                    .gw = wire_str_of("gateway"),
                                    .job = k->job,
                                    .order = k->order,
                                    .attempt = k->attempt,
                                    .what = wire_str_of(what),
                                    .n_done = k->cached + k->done,
                                    .cached = k->cached,
                                    .n_out = k->n_out,
                                    .busy_ns = busy_ns,
                                    .reason = strcmp(what, "ended") ? 0 : WIRE_LENGTH};
    tell(c, &f);
}

/* ---- the stores ---- */

static void moved(void *arg, uint64_t block, bool stored)
{
    struct cluster *c = arg;
    uint8_t digest[KV_DIGEST] = {0};
    memcpy(digest, &block, sizeof block);
    str_add(stored ? &c->stored : &c->evicted, digest, sizeof digest);
}

static void keep(struct cluster *c, int store, const struct request *q)
{
    struct wire_frame f = {.kind = WIRE_BLOCKS};
    char name[16];
    if (!q->n_block)
        return;
    snprintf(name, sizeof name, "s%d", store);
    str_clear(&c->stored);
    str_clear(&c->evicted);
    store_keep(&c->failed, c->store[store], q->block, q->n_block, moved, c);
    f.blocks = (struct wire_blocks){.store = wire_str_of(name),
                                    .stored = {(const uint8_t *)c->stored.p, c->stored.n},
                                    .evicted = {(const uint8_t *)c->evicted.p, c->evicted.n}};
    if (!c->failed.code)
        (void)(str_check(&c->failed, &c->stored, "digests") || str_check(&c->failed, &c->evicted, "digests"));
    if (c->stored.n || c->evicted.n)
        tell(c, &f);
}

/* ---- steps ---- */

static uint32_t need(const struct task *k)
{
    uint64_t n = (uint64_t)k->n_prompt + (k->prefill && !k->whole ? 1 : k->max_tokens);
    return (uint32_t)((n + KV_BLOCK - 1) / KV_BLOCK);
}

/* What its own store has is not computed; what another has is fetched where that is quicker. */
static double begin_prompt(struct cluster *c, struct worker *w, struct task *k)
{
    const struct request *q = &c->t->v[k->job - 1];
    uint32_t own = store_front(c->store[w->store], q->block, q->n_block) * KV_BLOCK, best = 0;
    uint32_t most = k->n_prompt - 1;
    own = own < most ? own : most;
    for (uint32_t i = 0; i < c->n_store; i++) {
        uint32_t n = store_front(c->store[i], q->block, q->n_block) * KV_BLOCK;
        best = n > best ? n : best;
    }
    best = best < most ? best : most;
    double fetch = 0, saved = engine_prefill_ns(&c->o->cost, 0, own, best);
    if (best > own && (best - own) * c->o->transfer_ns < saved)
        fetch = (best - own) * c->o->transfer_ns;
    k->cached = fetch > 0 ? best : own;
    k->done = 0;
    k->begun = true;
    return c->o->cost.prefill[0] + fetch;
}

/* Starts the next step where there is anything to do. */
static void step(struct cluster *c, struct worker *w)
{
    if (w->busy || (!w->prompts && !w->answers))
        return;
    const struct engine_cost *cost = &c->o->cost;
    double ns = 0, fixed = 0;
    w->context = 0;
    for (const struct task *k = w->answers; k; k = k->next)
        w->context += k->n_prompt + k->n_out;
    if (w->n_answer) {
        fixed = cost->decode[0];
        ns += engine_decode_ns(cost, (double)w->context, w->n_answer);
    }
    w->chunk_now = 0;
    struct task *k = w->prompts;
    if (k) {
        double start = k->begun ? 0 : begin_prompt(c, w, k);
        fixed = start > fixed ? start : fixed;
        uint32_t left = k->n_prompt - k->cached - k->done;
        uint32_t room = w->n_answer < c->o->chunk ? c->o->chunk - w->n_answer : 1;
        w->chunk_now = left < room ? left : room;
        double had = k->cached + k->done;
        ns += engine_prefill_ns(cost, 0, had, had + w->chunk_now);
    }
    w->busy = true;
    w->step_ns = (uint64_t)(ns + fixed) + 1;
    happen(c, (struct happening){.at_ns = c->now_ns + w->step_ns, .what = STEP, .who = (uint32_t)(w - c->w)});
}

static void drop(struct worker *w, struct task *k)
{
    w->blocks -= need(k);
    free(k);
}

static void token(struct cluster *c, struct task *k)
{
    struct request *q = &c->t->v[k->job - 1];
    k->n_out++;
    if (k->n_out <= q->got) /* a repetition after a retry */
        return;
    q->got = k->n_out;
    q->last_ns = c->now_ns;
    if (k->n_out == 1)
        q->first_ns = c->now_ns;
}

static void prompt_done(struct cluster *c, struct worker *w, struct task *k)
{
    struct request *q = &c->t->v[k->job - 1];
    w->prompts = k->next;
    w->last_prompt = w->prompts ? w->last_prompt : &w->prompts;
    w->n_prompt--;
    q->cached = k->cached;
    keep(c, w->store, q);
    token(c, k);
    const struct engine_cost *cost = &c->o->cost;
    uint64_t busy = (uint64_t)engine_prefill_ns(cost, cost->prefill[0], k->cached, k->n_prompt);
    if (k->n_out >= k->max_tokens) {
        report(c, w, k, "ended", 0);
        drop(w, k);
        return;
    }
    report(c, w, k, "prefilled", busy);
    if (!k->whole) {
        drop(w, k);
        return;
    }
    k->next = w->answers;
    w->answers = k;
    w->n_answer++;
}

static void step_done(struct cluster *c, struct worker *w)
{
    w->busy = false;
    bool mixed = w->chunk_now > 0, decoded = w->n_answer > 0;
    uint64_t context = w->context, batch = w->n_answer;
    for (struct task **at = &w->answers, *k; (k = *at);) {
        token(c, k);
        bool all = k->n_out >= k->max_tokens;
        if (all || k->n_out % REPORT_EVERY == 0)
            report(c, w, k, all ? "ended" : "tokens", 0);
        if (!all) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        w->n_answer--;
        drop(w, k);
    }
    struct task *k = w->prompts;
    if (k && w->chunk_now) {
        k->done += w->chunk_now;
        w->tokens_ahead -= w->chunk_now < w->tokens_ahead ? w->chunk_now : w->tokens_ahead;
        if (k->cached + k->done >= k->n_prompt)
            prompt_done(c, w, k);
        else
            report(c, w, k, "progress", 0);
    }
    if (!w->prompts)
        w->tokens_ahead = 0;
    w->clean_ns = decoded && !mixed ? w->step_ns : 0; /* a step of decoding alone teaches the machine */
    w->clean_context = context;
    w->clean_batch = (uint32_t)batch;
    capacity(c, w);
    step(c, w);
}

/* ---- what a worker is told ---- */

static void begin(struct cluster *c, struct worker *w, struct task *k)
{
    if (k->prefill) {
        *w->last_prompt = k;
        w->last_prompt = &k->next;
    } else {
        k->next = w->answers;
        w->answers = k;
        w->n_prompt--;
        w->n_answer++;
    }
    step(c, w);
}

static void give_up(struct cluster *c, struct worker *w, struct task **at, bool preempt)
{
    struct task *k = *at;
    bool answer = !k->prefill || (k->begun && k->cached + k->done >= k->n_prompt);
    *at = k->next;
    if (answer)
        w->n_answer--;
    else
        w->n_prompt--;
    if (at == &w->prompts && !k->next)
        w->last_prompt = &w->prompts;
    for (struct task **p = &w->prompts; !answer && *p; p = &(*p)->next)
        w->last_prompt = &(*p)->next;
    report(c, w, k, preempt ? "preempted" : "cancelled", 0);
    drop(w, k);
    capacity(c, w);
}

/* The prompt under way ends its chunk first: it is found again at the next step. */
static void control(struct cluster *c, struct worker *w, const struct happening *h)
{
    for (struct task **at = &w->answers; *at; at = &(*at)->next)
        if ((*at)->order == h->order) {
            give_up(c, w, at, h->preempt);
            return;
        }
    for (struct task **at = &w->prompts; *at; at = &(*at)->next)
        if ((*at)->order == h->order && (at != &w->prompts || !w->busy)) {
            give_up(c, w, at, h->preempt);
            return;
        }
    struct happening later = *h;
    later.at_ns = c->now_ns + NS_MS;
    if (later.tries++ < 10000)
        happen(c, later);
}

static void on_order(struct cluster *c, const struct wire_order *o)
{
    struct worker *w = &c->w[strtoul(o->to.p + 1, NULL, 10)];
    struct request *q = &c->t->v[o->job - 1];
    struct task *k = calloc(1, sizeof *k);
    if (!k) {
        err_nomem(&c->failed, "an order", sizeof *k);
        return;
    }
    bool decode = o->phase.p[0] == 'd';
    *k = (struct task){.job = (uint32_t)o->job,
                       .order = o->order,
                       .attempt = o->attempt,
                       .n_prompt = o->n_prompt,
                       .max_tokens = o->max_tokens,
                       .n_out = o->n_out,
                       .prefill = !decode,
                       .whole = o->phase.p[0] == 'w'};
    w->n_order++;
    w->n_prompt++; /* a seat, whatever it is; begin() sorts it */
    w->blocks += need(k);
    double late = c->o->rtt_ns / 2;
    if (decode && o->from.n && strtol(o->from.p + 1, NULL, 10) != w->store)
        late += c->o->transfer_ns * o->n_prompt;
    w->tokens_ahead += decode ? 0 : o->n_prompt - o->cached;
    q->ready_ns = c->now_ns;
    happen(c, (struct happening){
                  .at_ns = c->now_ns + (uint64_t)late, .what = BEGIN, .who = (uint32_t)(w - c->w), .task = k});
}

static void on_control(struct cluster *c, const struct wire_control *f)
{
    if (f->what.p[0] != 'c' && f->what.p[0] != 'p')
        return;
    happen(c, (struct happening){.at_ns = c->now_ns + (uint64_t)(c->o->rtt_ns / 2),
                                 .what = CONTROL,
                                 .who = (uint32_t)strtoul(f->to.p + 1, NULL, 10),
                                 .order = f->order,
                                 .preempt = f->what.p[0] == 'p'});
}

static void emit(void *arg, const struct wire_frame *f)
{
    struct cluster *c = arg;
    struct request *q;
    switch ((int)f->kind) {
    case WIRE_ORDER:
        on_order(c, &f->order);
        break;
    case WIRE_CONTROL:
        on_control(c, &f->control);
        break;
    case WIRE_REFUSE:
        if (f->refuse.job) {
            c->t->v[f->refuse.job - 1].refused = true;
            c->n_left--;
        }
        break;
    case WIRE_DONE:
        q = &c->t->v[f->done.job - 1];
        q->done = f->done.reason == WIRE_STOP || f->done.reason == WIRE_LENGTH;
        q->failed = !q->done;
        c->n_left--;
        break;
    }
}

/* ---- the run ---- */

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
    tell(c, &f);
    free(digests);
    if (i + 1 < c->t->n)
        happen(c, (struct happening){.at_ns = c->t->v[i + 1].at_ns, .what = ARRIVE, .who = i + 1});
}

static void take(struct cluster *c, const struct happening *h)
{
    struct worker *w = h->what == ARRIVE ? NULL : &c->w[h->who];
    switch (h->what) {
    case ARRIVE:
        arrive(c, h->who);
        break;
    case STEP:
        step_done(c, w);
        break;
    case CONTROL:
        control(c, w, h);
        break;
    case BEGIN:
        begin(c, w, h->task);
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
    tell(c, &f);
    capacity(c, w);
}

static int loop(struct err *e, struct cluster *c)
{
    for (uint32_t i = 0; i < c->n_worker; i++)
        join(c, i);
    if (!c->failed.code)
        sched_decide(&c->failed, c->s);
    if (c->t->n)
        happen(c, (struct happening){.at_ns = c->t->v[0].at_ns, .what = ARRIVE});
    while (c->n_left && !c->failed.code) {
        uint64_t at = sched_next_ns(c->s);
        if (c->n_heap && c->heap[0].at_ns <= at) {
            c->now_ns = c->heap[0].at_ns;
            while (c->n_heap && c->heap[0].at_ns == c->now_ns) {
                struct happening h = next(c);
                take(c, &h);
            }
        } else {
            struct wire_frame f = {.kind = WIRE_TICK};
            c->now_ns = at > c->now_ns ? at : c->now_ns + NS_MS;
            tell(c, &f);
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
            for (struct task *t = k ? c->w[i].answers : c->w[i].prompts, *after; t; t = after) {
                after = t->next;
                free(t);
            }
    for (size_t i = 0; i < c->n_heap; i++)
        if (c->heap[i].what == BEGIN)
            free(c->heap[i].task);
    for (uint32_t i = 0; i < c->n_store; i++)
        store_free(c->store[i]);
    free(c->w);
    free(c->heap);
    str_free(&c->stored);
    str_free(&c->evicted);
}

int cluster_run(struct err *e, struct sched *s, struct trace *t, const struct cluster_options *o, uint64_t *end_ns)
{
    struct cluster c = {.s = s, .t = t, .o = o, .n_left = (uint32_t)t->n};
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
