/* Gateways: requests come in, are acknowledged or refused, and are cancelled. */
#include "sched/machine.h"

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
    list_init(&g->jobs);
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

/* Nobody is there to read its answers. */
void gateway_gone(struct sched *s, struct gateway *g)
{
    g->gone = false; /* jobs that are freed must not take it with them while this walks */
    list_each_safe (struct job, j, &g->jobs, of_gateway)
        if (j->state != JOB_ENDED)
            job_end(s, j, END_CANCELLED, 0, "the gateway has gone");
    g->gone = true;
    if (list_empty(&g->jobs))
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

static int fill(struct err *e, struct sched *s, struct job *j, const struct wire_submit *f)
{
    j->pub.n_prompt = f->n_prompt ? f->n_prompt : 1;
    j->pub.max_tokens = f->max_tokens;
    j->pub.priority = f->priority;
    s->priority_last = f->priority > s->priority_last ? f->priority : s->priority_last;
    j->pub.slo_ttft_ns = f->slo_ttft_ns;
    j->pub.slo_tpot_ns = f->slo_tpot_ns;
    j->pub.n_block = (uint32_t)(f->digests.n / 32);
    j->pub.deadline_ns = 0;
    if (f->deadline_ns)
        j->pub.deadline_ns = f->deadline_ns < UINT64_MAX - s->now_ns ? s->now_ns + f->deadline_ns : UINT64_MAX;
    j->key_deadline = j->pub.deadline_ns ? j->pub.deadline_ns : UINT64_MAX;
    int rc = copy(e, &j->digests, f->digests.p, f->digests.n);
    rc = rc ? rc : copy(e, &j->body, f->body.p, f->body.n);
    rc = rc ? rc : copy(e, &j->reply, f->reply.p, f->reply.n);
    rc = rc ? rc : job_take_out(e, j, f->n_out, f->out, f->n_out_id);
    if (rc)
        return rc;
    j->n_body = f->body.n;
    j->n_reply = f->reply.n;
    j->deadline.at_ns = j->pub.deadline_ns;
    if (j->pub.deadline_ns)
        s->deadlines = loop_heap_add(s->deadlines, &j->deadline);
    return 0;
}

void refuse_job(struct sched *s, struct job *j, bool never, uint64_t retry_ns, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.at_ns = s->now_ns,
                                    .to = wire_str_of(j->gw->name),
                                    .job = j->pub.job,
                                    .never = never,
                                    .retry_ns = never ? 0 : retry_ns,
                                    .text = wire_str_of(text)};
    emit(s, &f);
    job_end(s, j, END_REFUSED, ERR_NO, text);
}

/*
 * "Never fits" is against the largest pool and window ever seen, so that a pool that restarts does not turn requests
 * away for good. True: refused.
 */
static bool refuse_never(struct sched *s, struct job *j)
{
    char text[256];
    if (s->max_len && j->pub.n_prompt >= s->max_len) {
        snprintf(text, sizeof text, "the prompt has %u tokens, a sequence at most %u with its answer", j->pub.n_prompt,
                 s->max_len);
        refuse_job(s, j, true, 0, text);
        return true;
    }
    uint64_t need = job_blocks(s, j, s->max_len, SCHED_ON_DECODE);
    if (!s->blocks_max || need <= s->blocks_max)
        return false;
    snprintf(text, sizeof text,
             "prompt and answer need %llu blocks of %d tokens, the largest pool has %llu (prompt: %u tokens)",
             (unsigned long long)need, KV_BLOCK, (unsigned long long)s->blocks_max, j->pub.n_prompt);
    refuse_job(s, j, true, 0, text);
    return true;
}

static int again(struct err *e, struct sched *s, struct job *j, const struct wire_submit *f)
{
    if (j->state == JOB_ENDED) { /* a late copy: it has been answered, workers still finish with it */
        struct wire_frame d = {.kind = WIRE_DONE};
        d.done = (struct wire_done){.at_ns = s->now_ns,
                                    .to = wire_str_of(j->gw->name),
                                    .job = j->pub.job,
                                    .attempt = j->attempt,
                                    .reason = WIRE_CANCELLED,
                                    .text = wire_str_of("this request has ended before")};
        emit(s, &d);
        return 0;
    }
    if (list_empty(&j->fresh))
        list_push_back(&s->fresh, &j->fresh);
    return job_take_out(e, j, f->n_out, f->out, f->n_out_id);
}

/* A worker brought it with its join, now its gateway asks for it. */
static int claim(struct err *e, struct sched *s, struct job *j, const struct wire_submit *f)
{
    list_remove(&j->held);
    int rc = fill(e, s, j, f);
    if (rc)
        return rc;
    j->unasked = false;
    s->submitted++;
    s->n_running++;
    list_push_back(&s->fresh, &j->fresh);
    return 0;
}

static int admit(struct err *e, struct sched *s, struct job *j, const struct wire_submit *f)
{
    int rc = fill(e, s, j, f);
    if (rc) {
        job_free(s, j);
        return rc;
    }
    list_push_back(&s->fresh, &j->fresh);
    s->submitted++;
    if (f->again) {
        j->attempt = f->attempt ? f->attempt : 1;
        job_set(s, j, JOB_HELD);
        list_push_back(&s->held, &j->held);
        return 0;
    }
    if (refuse_never(s, j))
        return 0;
    if (s->queued.n >= s->queue_max) {
        refuse_job(s, j, false, s->retry_ns, "the queue is full");
        return 0;
    }
    job_set(s, j, JOB_QUEUED);
    return 0;
}

int submit_event(struct err *e, struct sched *s, const struct wire_submit *f)
{
    struct gateway *g;
    struct job *j;
    if (f->digests.n % 32)
        return err_set(e, ERR_PROTO, "submit: digests have %zu bytes, must be a multiple of 32", f->digests.n);
    if (f->n_out_id > f->n_out)
        return err_set(e, ERR_PROTO, "submit: %u ids came of %u tokens", f->n_out_id, f->n_out);
    int rc = gateway_get(e, &g, s, f->gw);
    if (rc)
        return rc;
    g->gone = false;
    j = job_find(s, g, f->job);
    if (j && j->unasked && j->state == JOB_RUNNING)
        return claim(e, s, j, f);
    if (j)
        return again(e, s, j, f);
    rc = job_new(e, &j, s, g, f->job);
    return rc ? rc : admit(e, s, j, f);
}

void cancel_event(struct sched *s, const struct wire_cancel *f)
{
    struct gateway *g = gateway_find(s, f->gw);
    struct job *j = g ? job_find(s, g, f->job) : NULL;
    if (j && j->state != JOB_ENDED)
        job_end(s, j, END_CANCELLED, 0, "");
}

void submit_acks(struct sched *s)
{
    list_each_safe (struct job, j, &s->fresh, fresh) {
        list_remove(&j->fresh);
        uint32_t before = j->state == JOB_QUEUED ? (uint32_t)(s->queued.n - 1) : 0;
        struct wire_frame f = {.kind = WIRE_ACK};
        f.ack = (struct wire_ack){.at_ns = s->now_ns,
                                  .to = wire_str_of(j->gw->name),
                                  .job = j->pub.job,
                                  .attempt = j->attempt,
                                  .n_before = before,
                                  .eta_ns = j->eta_ns};
        emit(s, &f);
    }
}

static void recheck(struct sched *s)
{
    s->recheck = false;
    for (struct job *j = s->queued.first[0], *next; j; j = next) {
        next = j->skip.next[0];
        (void)refuse_never(s, j);
    }
}

void submit_timers(struct sched *s)
{
    if (s->recheck)
        recheck(s);
    for (struct job *j; (j = deadline_first(s)) && j->pub.deadline_ns <= s->now_ns;)
        job_end(s, j, END_EXPIRED, 0, "its deadline has passed");
    for (struct job *j; (j = held_first(s)) && j->pub.since_ns + s->grace_ns <= s->now_ns;) {
        list_remove(&j->held);
        if (j->unasked) {
            job_end(s, j, END_CANCELLED, 0, "");
        } else {
            j->attempt++; /* the worker that had it may come yet */
            if (!refuse_never(s, j))
                job_set(s, j, JOB_QUEUED);
        }
    }
}
