/* Gateways: their requests are admitted, acknowledged, refused and cancelled. */
#include "sched/machine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

struct gateway *gateway_find(const struct sched *s, struct wire_str name)
{
    size_t at;
    uint64_t hash = wire_sum(name.p, name.n);
    struct gateway *g = map_first(&s->gateways, hash, &at);
    while (g && !str_is(name, g->name))
        g = map_next(&s->gateways, hash, &at);
    return g;
}

int gateway_get(struct err *e, struct gateway **out, struct sched *s, struct wire_str name)
{
    *out = gateway_find(s, name);
    if (*out)
        return 0;
    struct gateway *g = calloc(1, sizeof *g);
    if (g)
        g->name = strndup(name.p ? name.p : "", name.n);
    if (!g || !g->name) {
        free(g);
        return err_nomem(e, "a gateway", sizeof *g);
    }
    g->hash = wire_sum(name.p, name.n);
    list_init(&g->requests);
    int rc = map_put(e, &s->gateways, g->hash, g);
    if (rc) {
        free(g->name);
        free(g);
        return rc;
    }
    s->n_gateway++;
    *out = g;
    return 0;
}

void gateway_free(struct sched *s, struct gateway *g)
{
    map_drop(&s->gateways, g->hash, g);
    s->n_gateway--;
    free(g->name);
    free(g);
}

/* Cancels its requests: their answers have no receiver. */
void gateway_gone(struct sched *s, struct gateway *g)
{
    g->gone = false; /* req_free must not free g within the loop */
    list_each_safe (struct request, r, &g->requests, of_gateway)
        if (r->state != REQUEST_ENDED)
            req_end(s, r, END_CANCELLED, 0, "the gateway has disconnected");
    g->gone = true;
    if (list_empty(&g->requests))
        gateway_free(s, g);
}

static int copy(struct err *e, void *out, const void *p, size_t n)
{
    uint8_t *q = n ? malloc(n) : NULL;
    if (n && !q)
        return err_nomem(e, "a request", n);
    if (n)
        memcpy(q, p, n);
    memcpy(out, &q, sizeof q);
    return 0;
}

static int fill(struct err *e, struct sched *s, struct request *r, const struct wire_submit *f)
{
    r->pub.n_prompt = f->n_prompt ? f->n_prompt : 1;
    r->pub.max_tokens = f->max_tokens;
    r->pub.priority = f->priority;
    s->priority_last = f->priority > s->priority_last ? f->priority : s->priority_last;
    r->pub.slo_ttft_ns = f->slo_ttft_ns;
    r->pub.slo_tpot_ns = f->slo_tpot_ns;
    r->pub.n_block = (uint32_t)(f->digests.n / 32);
    r->pub.deadline_ns = 0;
    if (f->deadline_ns)
        r->pub.deadline_ns = f->deadline_ns < UINT64_MAX - s->now_ns ? s->now_ns + f->deadline_ns : UINT64_MAX;
    r->key_deadline = r->pub.deadline_ns ? r->pub.deadline_ns : UINT64_MAX;
    int rc = r->tenant ? 0 : tenant_get(e, &r->tenant, s, f->tenant.n ? f->tenant : f->gw);
    r->pub.tenant = r->tenant ? r->tenant->name : "";
    rc = rc ? rc : copy(e, &r->digests, f->digests.p, f->digests.n);
    rc = rc ? rc : copy(e, &r->body, f->body.p, f->body.n);
    rc = rc ? rc : copy(e, &r->reply, f->reply.p, f->reply.n);
    rc = rc ? rc : req_add_tokens(e, r, f->n_out, f->out, f->n_out_id);
    if (rc)
        return rc;
    r->n_body = f->body.n;
    s->bytes += r->n_body;
    r->tenant->bytes += r->n_body;
    r->n_reply = f->reply.n;
    r->deadline.at_ns = r->pub.deadline_ns;
    if (r->pub.deadline_ns)
        s->deadlines = loop_heap_add(s->deadlines, &r->deadline);
    return 0;
}

void req_refuse(struct sched *s, struct request *r, enum refusal kind, uint64_t retry_ns, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.at_ns = s->now_ns,
                                    .to = wire_str_of(r->gw->name),
                                    .job = r->pub.job,
                                    .never = kind == REFUSE_NEVER,
                                    .ending = kind == REFUSE_ENDING,
                                    .retry_ns = kind == REFUSE_NEVER ? 0 : retry_ns,
                                    .text = wire_str_of(text)};
    emit(s, &f);
    req_end(s, r, END_REFUSED, ERR_NO, text);
}

/* true: refused, because too many requests wait, or their bodies have too many bytes. */
static bool refuse_full(struct sched *s, struct request *r)
{
    char text[300];
    if (s->queued.n >= s->queue_max)
        snprintf(text, sizeof text,
                 "the scheduler's queue is full: %" PRIu64 " requests wait, the limit is %" PRIu64
                 " (setting queue_max); retry later",
                 s->queued.n, s->queue_max);
    else if (s->bytes > s->queue_bytes)
        snprintf(text, sizeof text,
                 "the scheduler's requests would have %" PRIu64 " bytes, the limit is %" PRIu64
                 " (setting queue_bytes); retry later",
                 s->bytes, s->queue_bytes);
    else if (!tenant_full(text, sizeof text, s, r))
        return false;
    req_refuse(s, r, REFUSE_FOR_NOW, s->retry_ns, text);
    return true;
}

/*
 * Refuses a request that can never fit; true: refused. The limits are the largest pool and context length ever seen, so
 * that requests are not refused for good while the largest worker restarts.
 */
static bool refuse_never(struct sched *s, struct request *r)
{
    char text[256];
    if (s->max_len && r->pub.n_prompt >= s->max_len) {
        snprintf(text, sizeof text, "the prompt has %u tokens, a sequence at most %u with its answer", r->pub.n_prompt,
                 s->max_len);
        req_refuse(s, r, REFUSE_NEVER, 0, text);
        return true;
    }
    uint64_t need = req_blocks(s, r, s->max_len, SCHED_ON_DECODE);
    if (!s->blocks_max || need <= s->blocks_max)
        return false;
    snprintf(text, sizeof text,
             "prompt and answer need %llu blocks of %d tokens, the largest pool has %llu (prompt: %u tokens)",
             (unsigned long long)need, KV_BLOCK, (unsigned long long)s->blocks_max, r->pub.n_prompt);
    req_refuse(s, r, REFUSE_NEVER, 0, text);
    return true;
}

static int resubmitted(struct err *e, struct sched *s, struct request *r, const struct wire_submit *f)
{
    if (r->state == REQUEST_ENDED) { /* it has ended; a worker has not closed its attempt yet */
        struct wire_frame d = {.kind = WIRE_DONE};
        d.done = (struct wire_done){.at_ns = s->now_ns,
                                    .to = wire_str_of(r->gw->name),
                                    .job = r->pub.job,
                                    .attempt = r->attempt,
                                    .reason = WIRE_CANCELLED,
                                    .text = wire_str_of("this request has already ended")};
        emit(s, &d);
        return 0;
    }
    if (list_empty(&r->unacked))
        list_push_back(&s->unacked, &r->unacked);
    return req_add_tokens(e, r, f->n_out, f->out, f->n_out_id);
}

/* The gateway submits a request whose work item came with a worker's join. */
static int claim(struct err *e, struct sched *s, struct request *r, const struct wire_submit *f)
{
    list_remove(&r->grace);
    int rc = fill(e, s, r, f);
    if (rc)
        return rc;
    r->unclaimed = false;
    if (r->current)
        attempt_set_bytes(r->current, r->n_body);
    s->submitted++;
    s->n_running++;
    list_push_back(&s->unacked, &r->unacked);
    return 0;
}

static int admit(struct err *e, struct sched *s, struct request *r, const struct wire_submit *f)
{
    int rc = fill(e, s, r, f);
    if (rc && rc != ERR_SYS) {
        req_free(s, r);
        return rc;
    }
    list_push_back(&s->unacked, &r->unacked);
    s->submitted++;
    if (rc) { /* no memory for this request: the others continue */
        req_refuse(s, r, REFUSE_FOR_NOW, s->retry_ns, e->text);
        return 0;
    }
    if (f->again) {
        r->attempt = f->attempt ? f->attempt : 1;
        req_set_state(s, r, REQUEST_IN_GRACE);
        list_push_back(&s->grace, &r->grace);
        return 0;
    }
    if (refuse_never(s, r) || refuse_full(s, r))
        return 0;
    req_set_state(s, r, REQUEST_QUEUED);
    return 0;
}

int submit_event(struct err *e, struct sched *s, const struct wire_submit *f)
{
    struct gateway *g;
    struct request *r;
    if (f->digests.n % 32)
        return err_set(e, ERR_PROTO, "submit: digests have %zu bytes, which is not a multiple of 32", f->digests.n);
    if (f->n_out_id > f->n_out)
        return err_set(e, ERR_PROTO, "submit: has %u ids, more than its n_out of %u tokens", f->n_out_id, f->n_out);
    int rc = gateway_get(e, &g, s, f->gw);
    if (rc)
        return rc;
    g->gone = false;
    r = req_find(s, g, f->job);
    if (r && r->unclaimed && r->state == REQUEST_RUNNING)
        return claim(e, s, r, f);
    if (r)
        return resubmitted(e, s, r, f);
    rc = req_new(e, &r, s, g, f->job);
    return rc ? rc : admit(e, s, r, f);
}

void cancel_event(struct sched *s, const struct wire_cancel *f)
{
    struct gateway *g = gateway_find(s, f->gw);
    struct request *r = g ? req_find(s, g, f->job) : NULL;
    if (r && r->state != REQUEST_ENDED)
        req_end(s, r, END_CANCELLED, 0, "");
}

void submit_acks(struct sched *s)
{
    list_each_safe (struct request, r, &s->unacked, unacked) {
        list_remove(&r->unacked);
        uint32_t before = r->state == REQUEST_QUEUED ? (uint32_t)(s->queued.n - 1) : 0;
        struct wire_frame f = {.kind = WIRE_ACK};
        f.ack = (struct wire_ack){.at_ns = s->now_ns,
                                  .to = wire_str_of(r->gw->name),
                                  .job = r->pub.job,
                                  .attempt = r->attempt,
                                  .n_before = before,
                                  .eta_ns = r->eta_ns};
        emit(s, &f);
    }
}

static void recheck(struct sched *s)
{
    s->recheck = false;
    for (struct request *r = s->queued.first[0], *next; r; r = next) {
        next = r->skip.next[0];
        (void)refuse_never(s, r);
    }
}

void submit_timers(struct sched *s)
{
    if (s->recheck)
        recheck(s);
    for (struct request *r; (r = deadline_first(s)) && r->pub.deadline_ns <= s->now_ns;)
        req_end(s, r, END_EXPIRED, 0, "its deadline has passed");
    for (struct request *r; (r = grace_first(s)) && r->pub.since_ns + s->grace_ns <= s->now_ns;) {
        list_remove(&r->grace);
        if (r->unclaimed) {
            req_end(s, r, END_CANCELLED, 0, "");
        } else {
            r->attempt++; /* a worker that joins later with it has an old attempt */
            if (!refuse_never(s, r))
                req_set_state(s, r, REQUEST_QUEUED);
        }
    }
}
