/*
 * Requests to tokenize, which converts a line of JSON to the prompts of its choices. A connection begins with
 * tokenize's hello. The response to an `ask` is a `prompt` frame for each choice, in order, or one `err`; several
 * responses may interleave. An `ask` is idempotent: those in flight when a connection ends are sent again.
 */
#include <inttypes.h>
#include <string.h>

#include "gateway/gateway_impl.h"

#define ASK_BYTES (WIRE_ID_BYTES_MAX + 100) /* of an `ask` frame without its line */

/* The request of a response frame; NULL: it has ended. last: no frame of this response follows. */
static struct gw_request *request_of_response(struct gateway *g, uint64_t ask, bool last)
{
    if (last && g->n_in_flight)
        g->n_in_flight--;
    list_each (struct gw_request, r, &g->requests[GW_SENT], node)
        if (r->ask == ask)
            return r;
    return NULL;
}

static int send_ask(struct err *e, struct gateway *g, struct gw_request *r)
{
    char buf[32];
    struct wire_frame f = {.kind = WIRE_ASK};
    f.ask = (struct wire_ask){
        .what = wire_str_of("line"), .seq = g->next_ask + 1, .id = gw_request_id(buf, r), .text = {r->line, r->n_line}};
    int rc = session_send(e, g->tokenize, &f);
    if (rc)
        return rc;
    r->ask = ++g->next_ask;
    g->n_in_flight++;
    gw_request_move(g, r, GW_SENT);
    return 0;
}

static bool has_room(const struct gateway *g, const struct gw_request *r)
{
    return g->n_in_flight < IN_FLIGHT_MAX && session_has_room(g->tokenize, r->n_line + ASK_BYTES);
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
        if (r->too_long || r->cancelled) /* request_timers ends it */
            continue;
        if (!has_room(g, r))
            return;
        int rc = send_ask(&e, g, r);
        if (rc == ERR_SYS)
            gw_fail(g, &e);
        else if (rc == ERR_PROTO)
            gw_request_end(g, r, &e);
        else if (rc) /* the session is full or down: try again later */
            return;
    }
}

/* Passes hello on if the vocabulary has changed. */
static void on_hello(struct gateway *g, const struct wire_frame *f)
{
    const struct wire_hello *h = &f->hello;
    g->has_hello = h->has_vocab;
    if (g->has_fp && h->vocab_fp.n == 32 && !memcmp(g->fp, h->vocab_fp.p, 32))
        return;
    g->has_fp = h->has_vocab && h->vocab_fp.n == 32;
    if (g->has_fp)
        memcpy(g->fp, h->vocab_fp.p, 32);
    g->o.frame(g->o.arg, f);
}

static int check(struct err *e, const struct gateway *g, const struct gw_request *r, const struct wire_prompt *q)
{
    if (!g->has_hello)
        return err_set(e, ERR_PROTO, "tokenize sent a prompt before its hello with the vocabulary");
    if (q->index != r->n_choice)
        return err_set(e, ERR_PROTO, "tokenize sent choice %" PRIu32 " of a request, not %" PRIu32, q->index,
                       r->n_choice);
    return 0;
}

static void on_prompt(struct gateway *g, const struct session_event *ev, const struct wire_frame *f)
{
    const struct wire_prompt *q = &f->prompt;
    struct wire_frame first;
    struct err e = {0};
    bool last = q->index + 1 == q->n;
    struct gw_request *r = request_of_response(g, q->seq, last);
    if (!r)
        return;
    int rc = check(&e, g, r, q);
    rc = rc ? rc : gw_choice_new(&e, g, r, ev, q);
    if (!rc && last && g->o.parsed)
        rc = gw_choice_prompt(&e, g, &first, list_entry(r->choices.next, struct gw_choice, node));
    if (rc) {
        gw_request_end(g, r, &e);
    } else if (last) {
        gw_request_parsed(g, r);
        if (g->o.parsed)
            g->o.parsed(g->o.arg, r->seq, &first.prompt);
    }
}

static void on_frame(struct gateway *g, const struct session_event *ev)
{
    struct wire_frame f;
    struct gw_request *r;
    if (!gw_frame(g, &f, ev))
        return;
    if (f.kind == WIRE_HELLO)
        on_hello(g, &f);
    else if (f.kind == WIRE_PROMPT)
        on_prompt(g, ev, &f);
    else if (f.kind != WIRE_ERR)
        gw_unexpected(g, &f, ev);
    else if ((r = request_of_response(g, f.error.seq, true)))
        gw_request_refused(g, r, &f);
}

static void on_down(struct gateway *g, const struct err *reason)
{
    struct err e;
    g->has_hello = false;
    g->n_in_flight = 0;
    list_each (struct gw_request, r, &g->requests[GW_SENT], node) {
        gw_request_drop_choices(g, r);
        r->state = GW_WAITING;
        r->retries++;
    }
    list_append(&g->requests[GW_SENT], &g->requests[GW_WAITING]); /* keeps the order: these were first */
    list_append(&g->requests[GW_WAITING], &g->requests[GW_SENT]);
    list_each_safe (struct gw_request, r, &g->requests[GW_WAITING], node) {
        if (r->retries < RETRIES_MAX)
            continue;
        err_set(&e, ERR_SYS, "the connection to tokenize broke %" PRIu32 " times before it responded: %.300s",
                r->retries, reason->text);
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
