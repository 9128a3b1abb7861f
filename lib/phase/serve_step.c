/*
 * A step of a worker: the newest token of every answer that grows, then prompts in the rows that are left; afterwards
 * what it made is shown, if what it read was still there. One that has no slot to write in waits while others run; then
 * the last one is preempted, so that the first always goes on.
 */
#include <string.h>

#include "phase/serve.h"
#include "proc/proc.h"

#define SAY_NS (1000 * NS_MS) /* between lines about the same thing */

static int64_t blocks_of(int64_t tokens)
{
    return (tokens + KERN_KV_BLOCK - 1) / KERN_KV_BLOCK;
}

/* An answer that grows: one row a step. */
static bool grows(const struct task *o)
{
    return o->q->begun && o->q->n_kv + 1 == o->q->n_all;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows it would have, of `room`; *chunk: rows of prompts that are mixed into a decode step, used up. */
static int64_t rows_of(const struct task *o, int64_t room, int64_t *chunk)
{
    int64_t left = o->q->n_all - o->q->n_kv, bound = o->hands || !o->o->chunk ? room : (int64_t)o->o->chunk - *chunk;
    left = least(least(left, room), bound > 0 ? bound : 0);
    if (!o->hands)
        *chunk += left;
    return left;
}

static bool runs(const struct serve *v, const struct task *o)
{
    return o->state == TASK_RUN && !v->expired;
}

/* Calls fn for each order that gets rows, in the order they get them, until the rows are used up. */
typedef int64_t plan_fn(struct serve *v, struct task *o, int64_t rows);

static int64_t plan(struct serve *v, plan_fn *fn)
{
    int64_t room = (int64_t)v->s.o->batched_tokens, chunk = 0, sum = 0;
    for (int pass = 0; pass < 2; pass++)
        for (struct task *o = v->orders; o && room > 0; o = o->next) {
            if (!runs(v, o) || grows(o) != !pass)
                continue;
            int64_t rows = pass ? rows_of(o, room, &chunk) : 1;
            if (rows <= 0)
                continue;
            int64_t used = fn(v, o, rows);
            room -= pass || used ? rows : 0;
            sum += used;
        }
    return sum;
}

/* Blocks that are wanted for them. */
static int64_t wanted(struct serve *v, struct task *o, int64_t rows)
{
    (void)v;
    int64_t more = blocks_of(o->q->n_kv + rows) - o->q->kv.n;
    return more > 0 ? more : 0;
}

/* Into the batch, as far as there are slots. */
static int64_t packed(struct serve *v, struct task *o, int64_t rows)
{
    struct request *q = o->q;
    struct err no;
    int64_t can = (q->kv.n + kv_pool_idle(v->s.pool)) * KERN_KV_BLOCK - q->n_kv;
    rows = least(rows, can);
    if (rows <= 0 || kv_table_grow(&no, &q->kv, v->s.pool, blocks_of(q->n_kv + rows))) {
        if (!o->starved_ns)
            o->starved_ns = proc_now_ns();
        return 0;
    }
    o->starved_ns = 0;
    if (!q->start_ns)
        q->start_ns = proc_now_ns();
    batch_sequence(v->s.batch, q, rows);
    return rows;
}

/* ---- too few slots ---- */

static bool holds(const struct task *o)
{
    return o->state == TASK_RUN && o->q->kv.n;
}

static int yield(struct err *e, struct serve *v)
{
    struct task *first = NULL, *last = NULL;
    uint64_t now = proc_now_ns();
    for (struct task *o = v->orders; o; o = o->next) {
        if (!first && o->state == TASK_RUN && o->starved_ns)
            first = o;
        if (holds(o))
            last = o;
    }
    if (!first || v->away || v->unsure)
        return 0;
    bool other = last && last != first;
    uint64_t wait = other ? YIELD_MS : STARVE_MS;
    if (now - first->starved_ns < wait * NS_MS)
        return 0;
    struct task *victim = other ? last : first;
    v->n_preempted++;
    if (now >= v->said_ns) {
        serve_say(v, "the KV store is full: an answer of %u tokens is preempted, %llu so far", task_n_out(victim),
                  (unsigned long long)v->n_preempted);
        v->said_ns = now + SAY_NS;
    }
    for (struct task *o = v->orders; o; o = o->next)
        o->starved_ns = o->starved_ns ? now : 0;
    return task_preempt(e, v, victim);
}

/* ---- after a step ---- */

static int sampled(struct err *e, struct serve *v, struct task *o)
{
    enum answer_end end = ANSWER_OPEN;
    struct kv_seq_info handed;
    int rc = out_token(e, v, o, &end);
    if (rc)
        return rc;
    if (end != ANSWER_OPEN)
        return out_end(e, v, o, end);
    if (!o->hands) {
        hold_publish(v, o, false);
        return 0;
    }
    bool done = hold_hand(v, o, &handed);
    rc = out_prefilled(e, v, o, done ? &handed : NULL);
    hold_drop(v, o);
    o->state = TASK_CLOSED;
    return rc;
}

/* Nothing is chosen: more of the prompt is to come, or no answer is wanted. */
static int part_done(struct err *e, struct serve *v, struct task *o)
{
    struct request *q = o->q;
    if (q->max_new || q->n_kv < (int64_t)q->r->n_id) {
        hold_publish(v, o, false);
        return out_progress(e, v, o);
    }
    int rc = out_echo(e, v, o);
    return rc ? rc : out_end(e, v, o, ANSWER_LENGTH);
}

static int after(struct err *e, struct serve *v, struct task *o, bool has_token)
{
    struct request *q = o->q;
    if (!hold_valid(v, o)) { /* nothing of this step is shown */
        q->err = (struct err){0};
        o->state = TASK_NEW;
        hold_drop(v, o);
        return 0;
    }
    if (q->err.code)
        return task_fail(e, v, o, q->err.code, q->err.text);
    if (!q->prompt_end_ns && !o->taken && q->n_kv >= (int64_t)q->r->n_id)
        q->prompt_end_ns = proc_now_ns();
    return has_token ? sampled(e, v, o) : part_done(e, v, o);
}

/* 1, 8, 16, 32 … 16384, and beyond. */
static int size_of_step(int64_t tokens)
{
    int i = tokens > 1;
    for (int64_t most = 8; i && i < WIRE_STEPS_MAX - 1 && tokens > most; most *= 2)
        i++;
    return i;
}

/* What the scheduler learns its costs from: steps of answers alone; and each prompt's share of the time. */
static void account(struct serve *v, uint64_t ns)
{
    struct batch *b = v->s.batch;
    int64_t rows = 0;
    uint64_t context = 0;
    bool prompts = false;
    for (int64_t i = 0; i < batch_n(b); i++) {
        const struct engine_chunk *c = batch_chunk(b, i);
        rows += c->n;
        context += (uint64_t)(c->pos + c->n);
        prompts |= c->n > 1 || c->pos < (int64_t)batch_at(b, i)->r->n_id;
    }
    for (int64_t i = 0; i < batch_n(b); i++)
        batch_at(b, i)->task->busy_ns += ns * (uint64_t)batch_chunk(b, i)->n / (uint64_t)rows;
    v->steps[size_of_step(rows)]++;
    v->step_tokens += (uint64_t)rows;
    if (prompts)
        return;
    v->step_ns = ns;
    v->context = context;
    v->batch = (uint32_t)batch_n(b);
}

int serve_step(struct err *e, struct serve *v, bool *did)
{
    struct batch *b = v->s.batch;
    batch_clear(b);
    *did = false;
    int rc = yield(e, v); /* before the batch is made: it may take what is in it */
    bool any = false;
    for (struct task *o = v->orders; o && !any; o = o->next)
        any = runs(v, o);
    if (rc || !any)
        return rc;
    hold_want(v, plan(v, wanted));
    plan(v, packed);
    if (!batch_n(b))
        return 0;
    *did = true;
    uint64_t begun = proc_now_ns();
    rc = batch_run(e, b, NULL, NULL);
    if (!rc)
        account(v, proc_now_ns() - begun);
    worker_link_hold(v->link, true);
    for (int64_t i = 0; i < batch_n(b) && !rc; i++)
        rc = after(e, v, batch_at(b, i)->task, batch_sampled(b, i));
    worker_link_hold(v->link, false);
    return rc;
}
