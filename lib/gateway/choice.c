/* Requests and their choices: lookup, creation, and their ends. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gateway/gateway_impl.h"
#include "proc/proc.h"

static size_t bucket(uint64_t x)
{
    return (size_t)((x * 0x9e3779b97f4a7c15u) >> 52); /* BUCKETS is 2^12 */
}

static void emit(struct gateway *g, const struct wire_frame *f)
{
    g->o.frame(g->o.arg, f);
}

/* ---- bytes ---- */

static void line_free(struct gateway *g, struct gw_request *r)
{
    g->bytes -= r->line ? r->n_line : 0;
    free(r->line);
    r->line = NULL;
}

static void frame_free(struct gateway *g, struct gw_choice *c)
{
    g->bytes -= c->frame ? c->n_frame : 0;
    free(c->frame);
    free(c->out);
    c->frame = NULL;
    c->out = NULL;
}

static bool refuse_bytes(struct err *e, struct gateway *g, const struct gw_request *r, size_t n)
{
    if (!g->o.bytes_max || g->n_running < 2 || g->bytes + n <= g->o.bytes_max)
        return false;
    if (g->o.refused)
        g->o.refused(g->o.arg, r->seq, BYTES_RETRY_NS, false);
    err_set(e, ERR_NO,
            "the prompts of all requests would have %" PRIu64 " bytes, the limit is %" PRIu64 "; retry later",
            g->bytes + n, g->o.bytes_max);
    return true;
}

/* ---- requests ---- */

struct gw_request *gw_request_find(const struct gateway *g, uint64_t seq)
{
    list_each (struct gw_request, r, &g->by_seq[bucket(seq)], hash)
        if (r->seq == seq)
            return r;
    return NULL;
}

/* False: no memory. The id follows the line. */
static bool copy_line(struct gw_request *r, struct wire_str id, const char *line, size_t n)
{
    r->n_line = n <= GATEWAY_LINE_BYTES_MAX ? n : 0;
    r->n_id = id.n <= WIRE_ID_BYTES_MAX ? id.n : 0;
    if (!(r->line = malloc(r->n_line + r->n_id + 1)))
        return false;
    memcpy(r->line, r->n_line ? line : "", r->n_line);
    memcpy(r->line + r->n_line, r->n_id ? id.p : "", r->n_id);
    return true;
}

int gw_request_new(struct err *e, struct gateway *g, const char *tenant, uint64_t seq, struct wire_str id,
                   const char *line, size_t n)
{
    struct gw_request *r = calloc(1, sizeof *r);
    if (!r || !copy_line(r, id, line, n)) {
        free(r);
        return err_nomem(e, "a request", n);
    }
    g->bytes += r->n_line;
    r->seq = seq;
    snprintf(r->tenant, sizeof r->tenant, "%s", tenant);
    r->too_long = n > GATEWAY_LINE_BYTES_MAX;
    list_init(&r->choices);
    if (g->o.deadline_ns) {
        uint64_t now = time_now_ns();
        r->deadline_ns = g->o.deadline_ns < UINT64_MAX - now ? now + g->o.deadline_ns : UINT64_MAX;
        gw_timer(g, r->deadline_ns);
    }
    if (r->too_long)
        gw_timer(g, 0);
    list_push_back(&g->by_seq[bucket(seq)], &r->hash);
    list_push_back(&g->requests[GW_WAITING], &r->node);
    g->n_running++;
    return 0;
}

void gw_request_move(struct gateway *g, struct gw_request *r, enum gw_state state)
{
    r->state = state;
    list_remove(&r->node);
    list_push_back(&g->requests[state], &r->node);
}

struct wire_str gw_request_id(char buf[32], const struct gw_request *r)
{
    if (r->n_id)
        return (struct wire_str){r->line + r->n_line, r->n_id};
    return (struct wire_str){buf, (size_t)snprintf(buf, 32, "req-%" PRIu64, r->seq)};
}

/* Its seq may be used again from here; the caller frees r after the last frame. */
static void request_unlink(struct gateway *g, struct gw_request *r)
{
    list_remove(&r->hash);
    list_remove(&r->node);
    g->n_running--;
}

void gw_request_drop_choices(struct gateway *g, struct gw_request *r)
{
    while (!list_empty(&r->choices))
        gw_choice_free(g, list_entry(r->choices.next, struct gw_choice, node));
    r->n_choice = 0;
}

static struct wire_error error_of(uint64_t seq, struct wire_str id, const struct err *error)
{
    return (struct wire_error){.seq = seq,
                               .id = id,
                               .code = (uint32_t)(error->code ? error->code : ERR_SYS),
                               .text = wire_str_of(error->text)};
}

/* Ends a request that has no choices yet (its state is before GW_PARSED): f, one end or error, is for all of them. */
static void request_end(struct gateway *g, struct gw_request *r, const struct wire_frame *f)
{
    request_unlink(g, r);
    emit(g, f);
    gw_request_drop_choices(g, r);
    line_free(g, r);
    free(r);
}

void gw_request_end(struct gateway *g, struct gw_request *r, const struct err *error)
{
    char buf[32];
    struct wire_frame f = {.kind = error ? WIRE_ERR : WIRE_END};
    if (r->state == GW_PARSED) {
        for (uint32_t n = r->n_choice; n; n--) /* the last one frees r */
            gw_choice_end(g, list_entry(r->choices.next, struct gw_choice, node), WIRE_CANCELLED, error);
        return;
    }
    if (error)
        f.error = error_of(r->seq, gw_request_id(buf, r), error);
    else
        f.end = (struct wire_end){.seq = r->seq, .id = gw_request_id(buf, r), .reason = WIRE_CANCELLED};
    request_end(g, r, &f);
}

void gw_request_refused(struct gateway *g, struct gw_request *r, const struct wire_frame *f)
{
    struct wire_frame copy = *f;
    copy.error.seq = r->seq;
    copy.error.index = 0;
    request_end(g, r, &copy);
}

void gw_request_parsed(struct gateway *g, struct gw_request *r)
{
    line_free(g, r);
    gw_request_move(g, r, GW_PARSED);
    g->n_running += r->n_choice - 1;
    list_each (struct gw_choice, c, &r->choices, node)
        gw_send_add(g, c);
}

/* ---- choices ---- */

struct gw_choice *gw_choice_find(const struct gateway *g, uint64_t job)
{
    list_each (struct gw_choice, c, &g->by_job[bucket(job)], hash)
        if (c->job == job)
            return c;
    return NULL;
}

/* c must not be in by_job. */
static void assign_job(struct gateway *g, struct gw_choice *c)
{
    c->job = ++g->next_job;
    list_push_back(&g->by_job[bucket(c->job)], &c->hash);
}

int gw_choice_new(struct err *e, struct gateway *g, struct gw_request *r, const struct session_event *ev,
                  const struct wire_prompt *q)
{
    if (refuse_bytes(e, g, r, ev->n))
        return ERR_NO;
    struct gw_choice *c = calloc(1, sizeof *c);
    if (!c || !(c->frame = malloc(ev->n))) {
        free(c);
        return err_nomem(e, "a prompt", ev->n);
    }
    memcpy(c->frame, ev->p, ev->n);
    c->n_frame = ev->n;
    g->bytes += ev->n;
    c->r = r;
    c->index = q->index;
    c->max_tokens = q->max_tokens;
    c->attempt = 1;
    list_init(&c->to_send);
    assign_job(g, c);
    list_push_back(&r->choices, &c->node);
    r->n_choice++;
    return 0;
}

int gw_choice_prompt(struct err *e, struct gateway *g, struct wire_frame *f, const struct gw_choice *c)
{
    const struct session_event ev = {.type = SESSION_FRAME, .p = c->frame, .n = c->n_frame};
    wire_arena_reset(g->prompt_arena);
    return session_frame(e, f, g->prompt_arena, &ev);
}

static void remember_ended(struct gateway *g, uint64_t job, uint32_t n_out)
{
    g->ended[job % ENDED_N] = (struct gw_ended){job, n_out};
}

void gw_choice_renumber(struct gateway *g, struct gw_choice *c, bool may_run)
{
    remember_ended(g, c->job, may_run ? 0 : UINT32_MAX);
    gw_cancel_late(g, c->job, 1);
    list_remove(&c->hash);
    assign_job(g, c);
}

/* ---- ends ---- */

void gw_choice_free(struct gateway *g, struct gw_choice *c)
{
    list_remove(&c->node);
    list_remove(&c->hash);
    list_remove(&c->to_send);
    frame_free(g, c);
    free(c);
}

/* Emits the last frame of a choice. reason: for the report to the scheduler; 0: cancels the job instead. */
static void finish(struct gateway *g, struct gw_choice *c, const struct wire_frame *f, enum wire_reason reason)
{
    struct gw_request *r = c->r;
    bool last = !--r->n_choice;
    gw_suspect_clear(g, c);
    remember_ended(g, c->job, reason ? c->n_out : UINT32_MAX);
    list_remove(&c->hash);
    list_remove(&c->node);
    c->r = NULL;
    if (last)
        request_unlink(g, r);
    else
        g->n_running--;
    emit(g, f);
    if (last)
        free(r);
    if (!c->submitted) {
        gw_choice_free(g, c);
        return;
    }
    frame_free(g, c);
    c->ended = reason;
    gw_send_add(g, c);
}

static bool is_this_host(const struct wire_span *s)
{
    return s->host.n == strlen(proc_host()) && !memcmp(s->host.p, proc_host(), s->host.n);
}

/* The span of the scheduler: from the submit until a worker has queued it. False: the worker has another clock, since
 * it runs on another host. */
static bool sched_span(struct wire_span *out, const struct gw_choice *c, const struct wire_end *w)
{
    for (uint32_t i = 0; i < w->n_span; i++) {
        const struct wire_span *s = &w->span[i];
        bool worker = (s->stage.n == 7 && !memcmp(s->stage.p, "prefill", 7)) ||
                      (s->stage.n == 6 && !memcmp(s->stage.p, "decode", 6));
        if (!worker)
            continue;
        if (!is_this_host(s) || !c->sent_ns || s->queued_ns < c->sent_ns)
            return false;
        *out = (struct wire_span){.stage = {"sched", 5},
                                  .host = {proc_host(), strlen(proc_host())},
                                  .pid = (uint32_t)getpid(),
                                  .queued_ns = c->sent_ns,
                                  .start_ns = s->queued_ns,
                                  .end_ns = s->queued_ns};
        return true;
    }
    return false;
}

void gw_choice_forward_end(struct gateway *g, struct gw_choice *c, const struct wire_end *w)
{
    struct wire_span added, *span = NULL;
    struct wire_frame f = {.kind = WIRE_END, .end = *w};
    f.end.seq = c->r->seq;
    f.end.index = c->index;
    if (w->n_span < WIRE_SPANS_MAX && sched_span(&added, c, w) &&
        (span = malloc((w->n_span + 1) * sizeof *span))) { /* omitted if memory allocation fails */
        memcpy(span, w->span, w->n_span * sizeof *span);
        span[w->n_span] = added;
        f.end.span = span;
        f.end.n_span++;
    }
    finish(g, c, &f, w->reason);
    free(span);
}

static struct wire_end end_of(const struct gw_choice *c, const struct wire_prompt *q, enum wire_reason reason)
{
    bool this_host = q->n_span && is_this_host(&q->span[0]);
    return (struct wire_end){.seq = c->r->seq,
                             .index = c->index,
                             .id = q->id,
                             .reason = reason,
                             .prompt_tokens = q->n_prompt,
                             .completion_tokens = c->n_out,
                             .born_ns = this_host ? q->born_ns : 0,
                             .first_ns = this_host ? c->first_ns : 0,
                             .last_ns = this_host ? c->last_ns : 0,
                             .load_ns = q->load_ns,
                             .span = q->span,
                             .n_span = q->n_span,
                             .extra = q->extra};
}

void gw_choice_end(struct gateway *g, struct gw_choice *c, enum wire_reason reason, const struct err *error)
{
    struct err e;
    struct wire_frame f = {.kind = error ? WIRE_ERR : WIRE_END}, p;
    if (gw_choice_prompt(&e, g, &p, c)) {
        gw_fail(g, &e);
        return;
    }
    if (error) {
        f.error = error_of(c->r->seq, p.prompt.id, error);
        f.error.index = c->index;
        f.error.extra = p.prompt.extra;
    } else {
        f.end = end_of(c, &p.prompt, reason);
    }
    finish(g, c, &f, 0);
}

void gw_free_all(struct gateway *g)
{
    for (int state = 0; state < GW_STATES; state++)
        list_each_safe (struct gw_request, r, &g->requests[state], node) {
            gw_request_drop_choices(g, r);
            line_free(g, r);
            free(r);
        }
    while (!list_empty(&g->to_send)) /* those that have ended */
        gw_choice_free(g, list_entry(g->to_send.next, struct gw_choice, to_send));
}
