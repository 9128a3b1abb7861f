/* Requests, the states they go through, and their tries on workers. */
#include "sched/machine.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

static uint64_t job_hash(const struct gateway *gw, uint64_t id)
{
    return mix64(id ^ gw->hash);
}

struct job *job_find(const struct sched *s, const struct gateway *gw, uint64_t id)
{
    size_t at;
    uint64_t hash = job_hash(gw, id);
    struct job *j = map_first(&s->jobs, hash, &at);
    while (j && (j->gw != gw || j->pub.job != id))
        j = map_next(&s->jobs, hash, &at);
    return j;
}

int job_new(struct err *e, struct job **out, struct sched *s, struct gateway *gw, uint64_t id)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return err_nomem(e, "a request", sizeof *j);
    int rc = map_put(e, &s->jobs, job_hash(gw, id), j);
    if (rc) {
        free(j);
        return rc;
    }
    j->gw = gw;
    j->pub.gw = gw->name;
    j->pub.job = id;
    j->pub.number = ++s->next_job;
    j->pub.arrival_ns = j->pub.since_ns = s->now_ns;
    j->pub.kv_store = -1;
    j->attempt = 1;
    j->state = JOB_ENDED;
    s->n_ended++;
    list_init(&j->runs);
    list_init(&j->fresh);
    list_init(&j->held);
    list_push_front(&gw->jobs, &j->of_gateway);
    *out = j;
    return 0;
}

static void drop_data(struct job *j)
{
    free(j->digests);
    free(j->body);
    free(j->reply);
    free(j->out);
    j->digests = j->body = NULL;
    j->reply = NULL;
    j->out = NULL;
    j->n_body = j->n_reply = 0;
    j->n_out_id = j->size_out = 0;
    j->pub.n_block = 0;
}

void job_free(struct sched *s, struct job *j)
{
    struct gateway *g = j->gw;
    s->n_ended--;
    map_drop(&s->jobs, job_hash(g, j->pub.job), j);
    list_remove(&j->of_gateway);
    drop_data(j);
    free(j);
    if (g->gone && list_empty(&g->jobs))
        gateway_free(s, g);
}

/* Counts the request into its state, or out of it. */
static void count(struct sched *s, struct job *j, bool in)
{
    uint64_t one = in ? 1 : UINT64_MAX;
    struct queue *q = j->state == JOB_QUEUED ? &s->queued : j->state == JOB_READY ? &s->ready : NULL;
    if (q && in)
        queue_add(q, j);
    else if (q)
        queue_drop(q, j);
    if (q || j->state == JOB_HELD)
        s->n_waiting += one;
    else if (j->state == JOB_RUNNING)
        s->n_running += j->unasked ? 0 : one;
    else
        s->n_ended += one;
}

void job_set(struct sched *s, struct job *j, enum job_state state)
{
    count(s, j, false);
    j->state = state;
    j->pub.since_ns = s->now_ns;
    j->pub.prefilled = state == JOB_READY;
    s->dirty = true;
    count(s, j, true);
}

static void deadline_drop(struct sched *s, struct job *j)
{
    if (j->deadline.at_ns)
        s->deadlines = loop_heap_remove(s->deadlines, &j->deadline);
    j->deadline.at_ns = 0;
}

#define OUT_MAX (2u << 20) /* with the longest body an order still fits into a frame of a session */

/*
 * The newest tokens of an answer, ids ending at n_out. What is known already is passed over. A gap, or more than
 * OUT_MAX, is not taken: the answer then goes on from what is known, and the gateway passes over what it has.
 */
int job_take_out(struct err *e, struct job *j, uint32_t n_out, const uint32_t *ids, uint32_t n_id)
{
    if (n_out <= j->pub.n_out)
        return 0;
    if (!n_id && !j->n_out_id) { /* workers that only count */
        j->pub.n_out = n_out;
        return 0;
    }
    if (n_id > n_out || n_out - n_id > j->n_out_id || j->pub.n_out != j->n_out_id || n_out > OUT_MAX)
        return 0;
    uint32_t have = j->n_out_id, fresh = n_out - have;
    int rc = vec_reserve(e, &j->out, &j->size_out, n_out, sizeof *j->out, "tokens of an answer");
    if (rc)
        return rc;
    memcpy(j->out + have, ids + (n_id - fresh), fresh * sizeof *ids);
    j->n_out_id = j->pub.n_out = n_out;
    return 0;
}

static void tell_done(struct sched *s, const struct job *j, enum end end, uint32_t code, const char *text)
{
    static const enum wire_reason reason[] = {
        [END_STOP] = WIRE_STOP,         [END_LENGTH] = WIRE_LENGTH, [END_CANCELLED] = WIRE_CANCELLED,
        [END_EXPIRED] = WIRE_CANCELLED, [END_ERROR] = WIRE_ERROR,   [END_REFUSED] = WIRE_ERROR};
    struct wire_frame f = {.kind = WIRE_DONE};
    f.done = (struct wire_done){.at_ns = s->now_ns,
                                .to = wire_str_of(j->gw->name),
                                .job = j->pub.job,
                                .attempt = j->attempt,
                                .n_out = j->pub.n_out,
                                .reason = reason[end],
                                .code = code,
                                .text = wire_str_of(text)};
    emit(s, &f);
}

void job_end(struct sched *s, struct job *j, enum end end, uint32_t code, const char *text)
{
    list_each (struct run, r, &j->runs, of_job)
        run_abandon(s, r);
    list_remove(&j->held);
    list_remove(&j->fresh);
    deadline_drop(s, j);
    if (j->state == JOB_READY)
        handle_let_go(s, j);
    job_set(s, j, JOB_ENDED);
    if (!j->unasked) {
        s->ended[end]++;
        if (end != END_REFUSED)
            tell_done(s, j, end, code, text);
    }
    if (list_empty(&j->runs))
        job_free(s, j);
    else
        drop_data(j);
}

void job_requeue(struct sched *s, struct job *j, bool retry)
{
    j->attempt++;
    handle_let_go(s, j);
    j->pub.kv_store = -1;
    if (j->unasked) { /* nobody asks for it any more on this worker; a gateway may submit it yet */
        job_end(s, j, END_ERROR, ERR_SYS, "");
        return;
    }
    if (j->pub.n_out && j->pub.n_out >= j->pub.max_tokens) { /* only the news of its end was lost */
        job_end(s, j, END_LENGTH, 0, "");
        return;
    }
    if (retry) {
        s->retried++;
        if (++j->pub.retries > s->retries_max) {
            job_end(s, j, END_ERROR, ERR_SYS, "every worker that had the request died or failed");
            return;
        }
    }
    job_set(s, j, JOB_QUEUED);
}

uint64_t job_blocks(const struct sched *s, const struct job *j, uint32_t max_len, enum sched_phase phase)
{
    uint64_t n = (uint64_t)j->pub.n_prompt + j->pub.n_out + 1;
    if (phase != SCHED_ON_PREFILL) {
        double most = (double)j->pub.n_prompt + s->reserve * (double)j->pub.max_tokens;
        uint64_t want = most < 4e9 ? (uint64_t)most : 4000000000u;
        want = want < max_len ? want : max_len;
        n = want > n ? want : n;
    }
    return (n + KV_BLOCK - 1) / KV_BLOCK;
}

uint64_t job_wants(const struct sched *s, const struct job *j, int store, uint32_t max_len, enum sched_phase phase)
{
    uint64_t n = job_blocks(s, j, max_len, phase), has = phase == SCHED_ON_DECODE ? handle_blocks(j, store) : 0;
    return n > has ? n - has : 0;
}

/* ---- tries ---- */

int run_open(struct err *e, struct run **out, struct sched *s, struct job *j, struct worker *w, enum sched_phase phase)
{
    struct run *r = malloc(sizeof *r);
    if (!r)
        return err_nomem(e, "an order", sizeof *r);
    *r = (struct run){.w = w, .j = j, .attempt = j->attempt, .phase = phase};
    list_push_front(&j->runs, &r->of_job);
    list_push_back(&w->runs, &r->of_worker);
    r->blocks = job_wants(s, j, w->pub.store, w->pub.max_len, phase);
    r->context = j->pub.n_prompt + j->pub.n_out;
    w->pub.n_prefill += phase == SCHED_ON_PREFILL;
    w->pub.n_decode += phase == SCHED_ON_DECODE;
    w->pub.n_whole += phase == SCHED_ON_WHOLE;
    if (phase != SCHED_ON_PREFILL)
        w->pub.context += r->context;
    *out = r;
    return 0;
}

void run_progress(struct run *r, uint64_t est_ns)
{
    r->w->pub.prefill_left_ns += est_ns - r->est_ns;
    r->est_ns = est_ns;
}

/* The worker's next capacity counts its room again. */
void run_close(struct sched *s, struct run *r)
{
    struct worker *w = r->w;
    run_progress(r, 0);
    w->pub.n_prefill -= r->phase == SCHED_ON_PREFILL;
    w->pub.n_decode -= r->phase == SCHED_ON_DECODE;
    w->pub.n_whole -= r->phase == SCHED_ON_WHOLE;
    if (r->phase != SCHED_ON_PREFILL)
        w->pub.context -= r->context;
    list_remove(&r->of_worker);
    list_remove(&r->of_job);
    if (r->j->cur == r)
        r->j->cur = NULL;
    s->dirty = true;
    free(r);
}

void run_abandon(struct sched *s, struct run *r)
{
    if (r->j->cur == r)
        r->j->cur = NULL;
    r->current = false;
    if (r->cancelled)
        return;
    r->cancelled = true;
    worker_control(s, r->w, "cancel", r);
}
