/* Requests and their choices: how they are found, what they keep, and how they end. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gateway/gateway_impl.h"
#include "proc/proc.h"

static size_t bucket(uint64_t x)
{
    return (size_t)((x * 0x9e3779b97f4a7c15u) >> 52); /* BUCKETS is 2 to the 12 */
}

static void emit(struct gateway *g, const struct wire_frame *f)
{
    g->o.frame(g->o.arg, f);
}

/* ---- requests ---- */

struct gw_request *gw_request_find(const struct gateway *g, uint64_t seq)
{
    struct gw_request *r = g->by_seq[bucket(seq)];
    while (r && r->seq != seq)
        r = r->next_hash;
    return r;
}

static void free_line(struct gw_request *r)
{
    free(r->line);
    free(r->id);
    r->line = r->id = NULL;
}

/* False: no memory. */
static bool copy_line(struct gw_request *r, struct wire_str id, const char *line, size_t n)
{
    if (n <= GATEWAY_LINE_BYTES_MAX && !(r->line = malloc(n + 1)))
        return false;
    if (r->line)
        memcpy(r->line, line, r->n_line = n);
    if (!id.n || id.n > WIRE_ID_BYTES_MAX)
        return true;
    if (!(r->id = malloc(id.n)))
        return false;
    memcpy(r->id, id.p, r->n_id = id.n);
    return true;
}

int gw_request_new(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n)
{
    struct gw_request *r = calloc(1, sizeof *r);
    if (!r || !copy_line(r, id, line, n)) {
        if (r)
            free_line(r);
        free(r);
        return err_nomem(e, "a request", n);
    }
    r->what = FOR_LINE;
    r->seq = seq;
    r->born_ns = proc_now_ns();
    if (g->o.deadline_ns) {
        r->deadline_ns = g->o.deadline_ns < UINT64_MAX - r->born_ns ? r->born_ns + g->o.deadline_ns : UINT64_MAX;
        gw_timer(g, r->deadline_ns);
    }
    if (n > GATEWAY_LINE_BYTES_MAX)
        err_set(&r->why, ERR_NO, "more than %u bytes, the limit of a request to a service", GATEWAY_LINE_BYTES_MAX);
    r->next_hash = g->by_seq[bucket(seq)];
    g->by_seq[bucket(seq)] = r;
    r->prev = g->last;
    if (g->last)
        g->last->next = r;
    else
        g->first = r;
    g->last = r;
    g->n_running++;
    g->to_ask = true;
    return 0;
}

/* It answers to its number no more. */
static void request_over(struct gateway *g, struct gw_request *r)
{
    struct gw_request **at = &g->by_seq[bucket(r->seq)];
    while (*at != r)
        at = &(*at)->next_hash;
    *at = r->next_hash;
    r->over = true;
    free_line(r);
}

void gw_request_unref(struct gateway *g, struct gw_request *r)
{
    if (!r->over || r->asked)
        return;
    if (r->prev)
        r->prev->next = r->next;
    else
        g->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        g->last = r->prev;
    free(r);
}

/* The id of a request that tokenize has not read yet. */
static struct wire_str id_of(char buf[32], const struct gw_request *r)
{
    if (r->id)
        return (struct wire_str){r->id, r->n_id};
    return (struct wire_str){buf, (size_t)snprintf(buf, 32, "req-%" PRIu64, r->seq)};
}

/* Before tokenize has answered there is no choice yet, and one frame for all. */
static void request_end(struct gateway *g, struct gw_request *r, struct wire_frame *f)
{
    char buf[32];
    struct wire_str id = id_of(buf, r);
    char *kept = r->id; /* until the frame is out */
    r->id = NULL;
    if (f->kind == WIRE_ERR)
        f->error.id = id;
    else
        f->end.id = id;
    request_over(g, r);
    g->n_running--;
    emit(g, f);
    free(kept);
    gw_request_unref(g, r);
}

void gw_request_fail(struct gateway *g, struct gw_request *r, const struct err *why)
{
    struct gw_choice *next;
    if (!r->choices) {
        struct wire_frame f = {.kind = WIRE_ERR};
        f.error = (struct wire_error){
            .seq = r->seq, .code = (uint32_t)(why->code ? why->code : ERR_SYS), .text = {why->text, strlen(why->text)}};
        request_end(g, r, &f);
        return;
    }
    for (struct gw_choice *c = r->choices; c; c = next) {
        next = c->next;
        gw_choice_fail(g, c, why);
    }
}

void gw_request_cancel(struct gateway *g, struct gw_request *r)
{
    struct gw_choice *next;
    if (!r->choices) {
        struct wire_frame f = {.kind = WIRE_END};
        f.end = (struct wire_end){.seq = r->seq, .reason = WIRE_CANCELLED};
        request_end(g, r, &f);
        return;
    }
    for (struct gw_choice *c = r->choices; c; c = next) {
        next = c->next;
        gw_choice_end_here(g, c, WIRE_CANCELLED);
    }
}

void gw_request_refused(struct gateway *g, struct gw_request *r, const struct wire_frame *f)
{
    struct wire_frame mine = *f;
    mine.error.seq = r->seq;
    mine.error.index = 0;
    request_over(g, r);
    g->n_running--;
    emit(g, &mine);
    gw_request_unref(g, r);
}

void gw_request_read(struct gw_request *r)
{
    free_line(r);
}

/* ---- choices ---- */

struct gw_choice *gw_choice_find(const struct gateway *g, uint64_t job)
{
    struct gw_choice *c = g->by_job[bucket(job)];
    while (c && c->job != job)
        c = c->next_hash;
    return c;
}

static void unhash(struct gateway *g, struct gw_choice *c)
{
    struct gw_choice **at = &g->by_job[bucket(c->job)];
    while (*at != c)
        at = &(*at)->next_hash;
    *at = c->next_hash;
}

static void hash(struct gateway *g, struct gw_choice *c)
{
    c->next_hash = g->by_job[bucket(c->job)];
    g->by_job[bucket(c->job)] = c;
}

/* What a worker gets to read: hello, tok, under the number of the job. */
static int write_body(struct err *e, struct gw_choice *c, const struct wire_frame *hello, const struct wire_frame *tok)
{
    struct wire_frame t = *tok;
    struct link_msg m = {0};
    t.req.seq = c->job;
    int rc = link_msg_add(e, &m, hello);
    rc = rc ? rc : link_msg_add(e, &m, &t);
    if (!rc && m.n > WIRE_BODY_BYTES_MAX)
        rc = err_set(e, ERR_NO, "the prompt has %" PRIu32 " tokens, a frame of %zu bytes; services carry %u",
                     t.req.n_id, m.n, WIRE_BODY_BYTES_MAX);
    if (rc) {
        link_msg_free(&m);
        return rc;
    }
    link_msg_free(&c->body);
    c->body = m;
    return 0;
}

int gw_choice_new(struct err *e, struct gateway *g, struct gw_request *r, const struct wire_hello *h,
                  const struct wire_req *q)
{
    struct wire_frame hello = {.kind = WIRE_HELLO, .hello = *h}, tok = {.kind = WIRE_TOK, .req = *q};
    struct gw_choice *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, "an answer", sizeof *c);
    c->r = r;
    c->job = ++g->next_job;
    c->index = q->index;
    c->n_prompt = q->n_id;
    c->max_tokens = q->s.max_tokens;
    c->attempt = 1;
    int rc = write_body(e, c, &hello, &tok);
    if (rc) {
        free(c);
        return rc;
    }
    hash(g, c);
    struct gw_choice **at = &r->choices;
    while (*at)
        at = &(*at)->next;
    *at = c;
    r->n_choice++;
    return 0;
}

static int read_body(struct err *e, struct gateway *g, const struct gw_choice *c, struct wire_frame *hello,
                     struct wire_frame *tok)
{
    const uint8_t *p = c->body.p;
    size_t n = c->body.n;
    wire_arena_reset(g->body_arena);
    bool got = link_msg_next(e, hello, g->body_arena, &p, &n) && link_msg_next(e, tok, g->body_arena, &p, &n);
    return got ? 0 : e->code;
}

int gw_choice_tok(struct err *e, struct gateway *g, struct wire_frame *tok, const struct gw_choice *c)
{
    struct wire_frame hello;
    return read_body(e, g, c, &hello, tok);
}

int gw_choice_renumber(struct err *e, struct gateway *g, struct gw_choice *c)
{
    struct wire_frame hello, tok;
    gw_choice_remember(g, c->job, UINT32_MAX);
    unhash(g, c);
    c->job = ++g->next_job;
    hash(g, c);
    int rc = read_body(e, g, c, &hello, &tok);
    return rc ? rc : write_body(e, c, &hello, &tok);
}

void gw_choice_remember(struct gateway *g, uint64_t job, uint32_t n_out)
{
    g->ended[job % ENDED_N] = (struct gw_ended){job, n_out};
}

/* ---- their end ---- */

static void choice_free(struct gateway *g, struct gw_choice *c)
{
    struct gw_choice **at = &c->r->choices;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    gw_tell_drop(g, c);
    unhash(g, c);
    link_msg_free(&c->body);
    free(c->out);
    free(c);
}

void gw_choice_drop(struct gateway *g, struct gw_choice *c)
{
    c->r->n_choice--;
    choice_free(g, c);
}

/* The last frame of a choice. What the scheduler may still run of it is cancelled there. */
static void finish(struct gateway *g, struct gw_choice *c, const struct wire_frame *f, bool runs)
{
    struct gw_request *r = c->r;
    if (runs && c->told != TOLD_NOT)
        gw_tell_cancel(g, c->job);
    gw_choice_remember(g, c->job, runs ? UINT32_MAX : c->n_out);
    bool last = !--r->n_choice;
    if (last)
        request_over(g, r);
    g->n_running--;
    emit(g, f);
    choice_free(g, c);
    if (last)
        gw_request_unref(g, r);
}

static bool is_here(const struct wire_span *s)
{
    return s->host.n == strlen(proc_host()) && !memcmp(s->host.p, proc_host(), s->host.n);
}

/* How long the scheduler had it: until the first worker knew of it. Only on one host have the two the same clock. */
static bool span_of_wait(struct wire_span *out, const struct gw_choice *c, const struct wire_end *w)
{
    for (uint32_t i = 0; i < w->n_span; i++) {
        const struct wire_span *s = &w->span[i];
        bool worker = (s->stage.n == 7 && !memcmp(s->stage.p, "prefill", 7)) ||
                      (s->stage.n == 6 && !memcmp(s->stage.p, "decode", 6));
        if (!worker)
            continue;
        if (!is_here(s) || !c->sent_ns || s->queued_ns < c->sent_ns)
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

void gw_choice_end(struct gateway *g, struct gw_choice *c, const struct wire_end *w)
{
    struct wire_span wait, *span = NULL;
    struct wire_frame f = {.kind = WIRE_END, .end = *w};
    f.end.seq = c->r->seq;
    f.end.index = c->index;
    if (w->n_span < WIRE_SPANS_MAX && span_of_wait(&wait, c, w) &&
        (span = malloc((w->n_span + 1) * sizeof *span))) { /* without memory it has one span less */
        memcpy(span, w->span, w->n_span * sizeof *span);
        span[w->n_span] = wait;
        f.end.span = span;
        f.end.n_span++;
    }
    finish(g, c, &f, false);
    free(span);
}

void gw_choice_end_here(struct gateway *g, struct gw_choice *c, enum wire_reason reason)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_END}, tok;
    if (gw_choice_tok(&e, g, &tok, c)) {
        gw_broken(g, &e);
        return;
    }
    const struct wire_req *q = &tok.req;
    f.end = (struct wire_end){.seq = c->r->seq,
                              .index = c->index,
                              .id = q->id,
                              .reason = reason,
                              .prompt_tokens = c->n_prompt,
                              .completion_tokens = c->n_out,
                              .load_ns = q->load_ns,
                              .span = q->span,
                              .n_span = q->n_span,
                              .extra = q->extra};
    if (q->n_span && is_here(&q->span[0])) {
        f.end.born_ns = q->born_ns;
        f.end.first_ns = c->first_ns;
        f.end.last_ns = c->last_ns;
    }
    finish(g, c, &f, true);
}

void gw_choice_fail(struct gateway *g, struct gw_choice *c, const struct err *why)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_ERR}, tok;
    if (gw_choice_tok(&e, g, &tok, c)) {
        gw_broken(g, &e);
        return;
    }
    const struct wire_req *q = &tok.req;
    f.error = (struct wire_error){.seq = c->r->seq,
                                  .index = c->index,
                                  .id = q->id,
                                  .code = (uint32_t)(why->code ? why->code : ERR_SYS),
                                  .text = {why->text, strlen(why->text)},
                                  .extra = q->extra};
    finish(g, c, &f, true);
}

void gw_free_all(struct gateway *g)
{
    struct gw_request *next;
    for (struct gw_request *r = g->first; r; r = next) {
        next = r->next;
        while (r->choices)
            choice_free(g, r->choices);
        free_line(r);
        free(r);
    }
}
