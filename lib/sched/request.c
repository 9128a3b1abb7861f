/* Requests, their states, and their attempts on workers. */
#include "sched/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

static uint64_t req_hash(const struct gateway *gw, uint64_t id)
{
    return map_mix(id ^ gw->hash);
}

struct request *req_find(const struct sched *s, const struct gateway *gw, uint64_t id)
{
    size_t at;
    uint64_t hash = req_hash(gw, id);
    struct request *r = map_first(&s->requests, hash, &at);
    while (r && (r->gw != gw || r->pub.job != id))
        r = map_next(&s->requests, hash, &at);
    return r;
}

int req_new(struct err *e, struct request **out, struct sched *s, struct gateway *gw, uint64_t id)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        return err_nomem(e, "a request", sizeof *r);
    int rc = map_put(e, &s->requests, req_hash(gw, id), r);
    if (rc) {
        free(r);
        return rc;
    }
    r->gw = gw;
    r->pub.gw = gw->name;
    r->pub.tenant = "";
    r->pub.job = id;
    r->pub.number = ++s->next_request;
    r->pub.arrival_ns = r->pub.since_ns = s->now_ns;
    r->pub.kv_store = -1;
    r->attempt = 1;
    r->state = REQUEST_ENDED;
    s->n_ended++;
    list_init(&r->attempts);
    list_init(&r->unacked);
    list_init(&r->grace);
    list_init(&r->suspect);
    list_push_front(&gw->requests, &r->of_gateway);
    *out = r;
    return 0;
}

static void drop_data(struct sched *s, struct request *r)
{
    free(r->digests);
    free(r->body);
    free(r->reply);
    free(r->out);
    r->digests = r->body = NULL;
    r->reply = NULL;
    r->out = NULL;
    s->bytes -= r->n_body;
    if (r->tenant)
        r->tenant->bytes -= r->n_body;
    r->n_body = r->n_reply = 0;
    r->n_out_id = r->size_out = 0;
    r->pub.n_block = 0;
}

void req_free(struct sched *s, struct request *r)
{
    struct gateway *g = r->gw;
    s->n_ended--;
    map_drop(&s->requests, req_hash(g, r->pub.job), r);
    list_remove(&r->of_gateway);
    drop_data(s, r);
    tenant_put(s, r->tenant);
    free(r);
    if (g->gone && list_empty(&g->requests))
        gateway_free(s, g);
}

/* Adds the request to the queue and the count of its state, or removes it. */
static void count(struct sched *s, struct request *r, bool in)
{
    uint64_t one = in ? 1 : UINT64_MAX;
    struct queue *q = r->state == REQUEST_QUEUED ? &s->queued : r->state == REQUEST_READY ? &s->ready : NULL;
    if (q && in)
        tenant_tag(s, r);
    if (r->state == REQUEST_QUEUED && r->tenant)
        r->tenant->n_queued += one;
    if (q && in)
        queue_add(q, r);
    else if (q)
        queue_drop(q, r);
    list_remove(&r->suspect);
    if (q && in && r->deaths)
        list_push_back(&s->suspects, &r->suspect);
    if (q || r->state == REQUEST_IN_GRACE)
        s->n_waiting += one;
    else if (r->state == REQUEST_RUNNING)
        s->n_running += r->unclaimed ? 0 : one;
    else
        s->n_ended += one;
}

void req_set_state(struct sched *s, struct request *r, enum request_state state)
{
    count(s, r, false);
    r->state = state;
    r->pub.since_ns = s->now_ns;
    r->pub.prefilled = state == REQUEST_READY;
    s->dirty = true;
    count(s, r, true);
}

static void deadline_drop(struct sched *s, struct request *r)
{
    if (r->deadline.at_ns)
        s->deadlines = loop_heap_remove(s->deadlines, &r->deadline);
    r->deadline.at_ns = 0;
}

#define OUT_MAX (2u << 20) /* with the longest body a work item still fits into a frame of a session */

/*
 * Adds the newest tokens of an answer: ids ends at position n_out. Known tokens are skipped. Tokens after a gap, or
 * beyond OUT_MAX, are ignored: a later attempt then computes them again, and the gateway deduplicates.
 */
int req_add_tokens(struct err *e, struct request *r, uint32_t n_out, const uint32_t *ids, uint32_t n_id)
{
    if (n_out <= r->pub.n_out)
        return 0;
    if (!n_id && !r->n_out_id) { /* the worker reports counts without ids (simulate) */
        r->pub.n_out = n_out;
        return 0;
    }
    if (n_id > n_out || n_out - n_id > r->n_out_id || r->pub.n_out != r->n_out_id || n_out > OUT_MAX)
        return 0;
    uint32_t have = r->n_out_id, n_new = n_out - have;
    int rc = vec_reserve(e, &r->out, &r->size_out, n_out, sizeof *r->out, "tokens of an answer");
    if (rc)
        return rc;
    memcpy(r->out + have, ids + (n_id - n_new), n_new * sizeof *ids);
    r->n_out_id = r->pub.n_out = n_out;
    return 0;
}

static void send_done(struct sched *s, const struct request *r, enum end end, uint32_t code, const char *text)
{
    static const enum wire_reason reason[] = {
        [END_STOP] = WIRE_STOP,         [END_LENGTH] = WIRE_LENGTH, [END_CANCELLED] = WIRE_CANCELLED,
        [END_EXPIRED] = WIRE_CANCELLED, [END_ERROR] = WIRE_ERROR,   [END_REFUSED] = WIRE_ERROR};
    struct wire_frame f = {.kind = WIRE_DONE};
    f.done = (struct wire_done){.at_ns = s->now_ns,
                                .to = wire_str_of(r->gw->name),
                                .job = r->pub.job,
                                .attempt = r->attempt,
                                .n_out = r->pub.n_out,
                                .reason = reason[end],
                                .code = code,
                                .text = wire_str_of(text)};
    emit(s, &f);
}

void req_end(struct sched *s, struct request *r, enum end end, uint32_t code, const char *text)
{
    list_each (struct attempt, a, &r->attempts, of_request)
        attempt_cancel(s, a);
    list_remove(&r->grace);
    list_remove(&r->unacked);
    deadline_drop(s, r);
    if (r->state == REQUEST_READY)
        handle_release(s, r);
    req_set_state(s, r, REQUEST_ENDED);
    tenant_refund(r);
    if (!r->unclaimed) {
        s->ended[end]++;
        if (end != END_REFUSED)
            send_done(s, r, end, code, text);
    }
    if (list_empty(&r->attempts))
        req_free(s, r);
    else
        drop_data(s, r);
}

void req_requeue(struct sched *s, struct request *r, const char *failure)
{
    r->attempt++;
    handle_release(s, r);
    r->pub.kv_store = -1;
    if (r->unclaimed) { /* no gateway has submitted it; if one does later, it is a new request */
        req_end(s, r, END_ERROR, ERR_SYS, "");
        return;
    }
    if (r->pub.n_out && r->pub.n_out >= r->pub.max_tokens) { /* only the report of its end was lost */
        req_end(s, r, END_LENGTH, 0, "");
        return;
    }
    if (failure) {
        s->retried++;
        if (++r->pub.retries > s->retries_max) {
            char text[512];
            snprintf(text, sizeof text,
                     "given up after %u failed attempts (setting retries): the workers died or reported an error; "
                     "last: %.300s",
                     r->pub.retries, failure);
            req_end(s, r, END_ERROR, ERR_SYS, text);
            return;
        }
    }
    req_set_state(s, r, REQUEST_QUEUED);
}

uint64_t req_blocks(const struct sched *s, const struct request *r, uint32_t max_len, enum sched_phase phase)
{
    uint64_t n = (uint64_t)r->pub.n_prompt + r->pub.n_out + 1;
    if (phase != SCHED_ON_PREFILL) {
        double most = (double)r->pub.n_prompt + s->reserve * (double)r->pub.max_tokens;
        uint64_t want = most < 4e9 ? (uint64_t)most : 4000000000u;
        want = want < max_len ? want : max_len;
        n = want > n ? want : n;
    }
    return (n + KV_BLOCK - 1) / KV_BLOCK;
}

uint64_t req_more_blocks(const struct sched *s, const struct request *r, int store, uint32_t max_len,
                         enum sched_phase phase)
{
    uint64_t n = req_blocks(s, r, max_len, phase), has = phase == SCHED_ON_DECODE ? handle_blocks(r, store) : 0;
    return n > has ? n - has : 0;
}

/* ---- attempts ---- */

int attempt_new(struct err *e, struct attempt **out, struct sched *s, struct request *r, struct worker *w,
                enum sched_phase phase)
{
    struct attempt *a = malloc(sizeof *a);
    if (!a)
        return err_nomem(e, "a work item", sizeof *a);
    *a =
        (struct attempt){.w = w, .r = r, .number = r->attempt, .phase = phase, .fresh = true, .suspect = r->deaths > 0};
    w->n_fresh++;
    w->n_suspect += a->suspect;
    list_push_front(&r->attempts, &a->of_request);
    list_push_back(&w->attempts, &a->of_worker);
    a->blocks = req_more_blocks(s, r, w->pub.store, w->pub.max_len, phase);
    a->context = r->pub.n_prompt + r->pub.n_out;
    attempt_set_bytes(a, r->n_body);
    w->pub.n_prefill += phase == SCHED_ON_PREFILL;
    w->pub.n_decode += phase == SCHED_ON_DECODE;
    w->pub.n_whole += phase == SCHED_ON_WHOLE;
    if (phase != SCHED_ON_PREFILL)
        w->pub.context += a->context;
    *out = a;
    return 0;
}

void attempt_set_bytes(struct attempt *a, uint64_t n)
{
    a->w->bytes += n - a->bytes;
    a->bytes = n;
}

void attempt_set_left(struct attempt *a, uint64_t est_ns)
{
    a->w->pub.prefill_left_ns += est_ns - a->est_ns;
    a->est_ns = est_ns;
}

void attempt_clear(struct attempt *a)
{
    a->w->n_fresh -= a->fresh;
    a->w->n_suspect -= a->suspect;
    a->fresh = a->suspect = false;
}

/* Does not add the attempt's blocks to the free ones: the worker's next capacity frame includes them. */
void attempt_close(struct sched *s, struct attempt *a)
{
    struct worker *w = a->w;
    attempt_set_left(a, 0);
    attempt_set_bytes(a, 0);
    attempt_clear(a);
    w->pub.n_prefill -= a->phase == SCHED_ON_PREFILL;
    w->pub.n_decode -= a->phase == SCHED_ON_DECODE;
    w->pub.n_whole -= a->phase == SCHED_ON_WHOLE;
    if (a->phase != SCHED_ON_PREFILL)
        w->pub.context -= a->context;
    list_remove(&a->of_worker);
    list_remove(&a->of_request);
    if (a->r->current == a)
        a->r->current = NULL;
    s->dirty = true;
    free(a);
}

void attempt_cancel(struct sched *s, struct attempt *a)
{
    if (a->r->current == a)
        a->r->current = NULL;
    if (a->cancelled)
        return;
    a->cancelled = true;
    worker_control(s, a->w, "cancel", a);
}
