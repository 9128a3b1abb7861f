/*
 * Requests to tokenize: a line of JSON becomes the prompts of its choices. A connection begins with tokenize's hello;
 * then each `ask` is answered by a `prompt` frame for each choice, in order, or by one `err`. Answers to several asks
 * may interleave. What was not answered completely when a connection ended is asked again, which is safe.
 */
#include <inttypes.h>
#include <string.h>

#include "gateway/gateway_impl.h"

#define ASK_BYTES (WIRE_ID_BYTES_MAX + 100) /* of an `ask` frame beside the line */

/* The request of an answer; NULL: it has ended. last: the answer is complete, and another line may be sent. */
static struct gw_request *answered(struct gateway *g, uint64_t ask, bool last)
{
    if (last && g->n_asked)
        g->n_asked--;
    list_each (struct gw_request, r, &g->requests[GW_ASKED], node)
        if (r->ask == ask)
            return r;
    return NULL;
}

static int ask(struct err *e, struct gateway *g, struct gw_request *r)
{
    char buf[32];
    struct wire_frame f = {.kind = WIRE_ASK};
    f.ask = (struct wire_ask){
        .what = wire_str_of("line"), .seq = g->next_ask + 1, .id = gw_request_id(buf, r), .text = {r->line, r->n_line}};
    int rc = session_send(e, g->tokenize, &f);
    if (rc)
        return rc;
    r->ask = ++g->next_ask;
    g->n_asked++;
    gw_request_move(g, r, GW_ASKED);
    return 0;
}

static bool has_room(const struct gateway *g, const struct gw_request *r)
{
    return g->n_asked < ASKED_MAX && session_has_room(g->tokenize, r->n_line + ASK_BYTES);
}

bool gw_line_ready(const struct gateway *g)
{
    const struct list *waiting = &g->requests[GW_WAITING];
    return !list_empty(waiting) && has_room(g, list_entry(waiting->next, struct gw_request, node));
}

void gw_line_send(struct gateway *g)
{
    struct err e;
    list_each_safe (struct gw_request, r, &g->requests[GW_WAITING], node) {
        if (r->too_long || r->cancelled) /* its timer ends it */
            continue;
        if (!has_room(g, r))
            return;
        int rc = ask(&e, g, r);
        if (rc == ERR_SYS)
            gw_broken(g, &e);
        else if (rc == ERR_PROTO)
            gw_request_end(g, r, &e);
        else if (rc) /* later: SESSION_ACKED, or the connection has just ended */
            return;
    }
}

/* The caller learns of another vocabulary than before. */
static void on_hello(struct gateway *g, const struct wire_frame *f)
{
    const struct wire_hello *h = &f->hello;
    g->greeted = h->has_vocab;
    if (g->has_fp && h->vocab_fp.n == 32 && !memcmp(g->fp, h->vocab_fp.p, 32))
        return;
    g->has_fp = h->has_vocab && h->vocab_fp.n == 32;
    if (g->has_fp)
        memcpy(g->fp, h->vocab_fp.p, 32);
    g->o.frame(g->o.arg, f);
}

static int check(struct err *e, const struct gateway *g, const struct gw_request *r, const struct wire_prompt *q)
{
    if (!g->greeted)
        return err_set(e, ERR_PROTO, "tokenize: a prompt before the hello that names the vocabulary");
    if (q->index != r->n_choice)
        return err_set(e, ERR_PROTO, "tokenize: choice %" PRIu32 " of a request after %" PRIu32, q->index, r->n_choice);
    return 0;
}

static void on_prompt(struct gateway *g, const struct session_event *ev, const struct wire_frame *f)
{
    const struct wire_prompt *q = &f->prompt;
    struct wire_frame first;
    struct err e = {0};
    bool last = q->index + 1 == q->n;
    struct gw_request *r = answered(g, q->seq, last);
    if (!r)
        return;
    int rc = check(&e, g, r, q);
    rc = rc ? rc : gw_choice_new(&e, g, r, ev, q);
    if (!rc && last && g->o.read)
        rc = gw_choice_prompt(&e, g, &first, list_entry(r->choices.next, struct gw_choice, node));
    if (rc) {
        gw_request_end(g, r, &e);
    } else if (last) {
        gw_request_read(g, r);
        if (g->o.read)
            g->o.read(g->o.arg, r->seq, &first.prompt);
    }
}

static void on_err(struct gateway *g, const struct wire_frame *f)
{
    struct gw_request *r = answered(g, f->error.seq, true);
    if (r)
        gw_request_refused(g, r, f);
}

static void on_frame(struct gateway *g, const struct session_event *ev)
{
    struct wire_frame f;
    if (!gw_frame(g, &f, ev))
        return;
    if (f.kind == WIRE_HELLO)
        on_hello(g, &f);
    else if (f.kind == WIRE_PROMPT)
        on_prompt(g, ev, &f);
    else if (f.kind == WIRE_ERR)
        on_err(g, &f);
    else
        gw_unexpected(g, &f, ev);
}

static void on_down(struct gateway *g, const struct err *why)
{
    struct err e;
    g->greeted = false;
    g->n_asked = 0;
    list_each (struct gw_request, r, &g->requests[GW_ASKED], node) {
        gw_request_drop_choices(r);
        r->state = GW_WAITING;
        r->tries++;
    }
    list_append(&g->requests[GW_ASKED], &g->requests[GW_WAITING]); /* they were first */
    list_append(&g->requests[GW_WAITING], &g->requests[GW_ASKED]);
    list_each_safe (struct gw_request, r, &g->requests[GW_WAITING], node) {
        if (r->tries < TRIES_MAX)
            continue;
        err_set(&e, ERR_SYS, "tokenize has not answered %" PRIu32 " times: %.300s", r->tries, why->text);
        gw_request_end(g, r, &e);
    }
}

void gw_line_event(struct gateway *g, const struct session_event *ev)
{
    if (ev->type == SESSION_FRAME)
        on_frame(g, ev);
    else if (ev->type == SESSION_DOWN)
        on_down(g, &ev->err);
}
