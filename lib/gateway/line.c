/* Questions to tokenize: a line of JSON becomes the prompts of its choices. To ask again is safe. */
#include <inttypes.h>
#include <string.h>

#include "gateway/gateway_impl.h"
#include "proc/proc.h"
#include "request/ask.h"

#define AGAIN_NS ((uint64_t)50 * 1000 * 1000)

static int ask(struct err *e, struct gateway *g, struct gw_request *r)
{
    struct wire_frame f = {.kind = WIRE_ASK};
    f.ask = (struct wire_ask){.what = {"line", 4}, .seq = r->seq, .text = {r->line, r->n_line}};
    link_msg_clear(&g->msg);
    int rc = link_msg_add(e, &g->msg, &f);
    rc = rc ? rc : link_ask(e, g->tokenize, &g->msg, r);
    if (!rc) {
        r->asked = true;
        g->n_asked++;
    }
    return rc;
}

void gw_line_ask(struct gateway *g, uint64_t now)
{
    struct err e;
    struct gw_request *next;
    g->to_ask = false;
    for (struct gw_request *r = g->first; r && g->n_asked < TOKENIZE_ASKED_MAX; r = next) {
        next = r->next;
        if (r->over || r->asked || r->choices)
            continue;
        if (r->why.code) {
            gw_request_fail(g, r, &r->why);
        } else if (r->ask_ns > now) {
            gw_timer(g, r->ask_ns);
        } else if (ask(&e, g, r)) {
            if (e.code == ERR_SYS)
                gw_broken(g, &e);
            else
                gw_request_fail(g, r, &e);
        }
    }
}

/* Another vocabulary than before: who spells tokens has to know. */
static void hello(struct gateway *g, const struct wire_frame *f)
{
    bool same = g->has_fp && f->hello.vocab_fp.n == 32 && !memcmp(g->fp, f->hello.vocab_fp.p, 32);
    if (same)
        return;
    g->has_fp = f->hello.has_vocab && f->hello.vocab_fp.n == 32;
    if (g->has_fp)
        memcpy(g->fp, f->hello.vocab_fp.p, 32);
    g->o.frame(g->o.arg, f);
}

static int nonsense(struct err *e, const char *what)
{
    return err_set(e, ERR_PROTO, "tokenize: the answer to a question is %s", what);
}

/* The choices of an answer; *refused: it is an err frame, in *f. */
static int read_answer(struct err *e, struct gateway *g, struct wire_frame *f, bool *refused, struct gw_request *r,
                       const uint8_t *p, size_t n)
{
    struct wire_frame h;
    *refused = false;
    wire_arena_reset(g->arena);
    if (!link_msg_next(e, &h, g->arena, &p, &n))
        return e->code ? e->code : nonsense(e, "empty");
    if (h.kind != WIRE_HELLO || !h.hello.has_vocab)
        return nonsense(e, "without a hello that names the vocabulary");
    uint32_t count = 0;
    while (link_msg_next(e, f, g->arena, &p, &n)) {
        if (f->kind == WIRE_ERR && !count) {
            *refused = true;
            hello(g, &h);
            return 0;
        }
        if (f->kind != WIRE_TOK || f->req.index != count || count == ASK_CHOICES_MAX)
            return nonsense(e, "no list of tok frames");
        int rc = gw_choice_new(e, g, r, &h.hello, &f->req);
        if (rc)
            return rc;
        if (!count++ && g->o.read)
            g->o.read(g->o.arg, r->seq, &f->req);
    }
    if (e->code || !count)
        return e->code ? e->code : nonsense(e, "without a prompt");
    hello(g, &h);
    return 0;
}

static void answered(struct gateway *g, struct gw_request *r, const struct link_event *v)
{
    struct err e = {0};
    struct wire_frame f;
    bool refused;
    if (read_answer(&e, g, &f, &refused, r, v->p, v->n)) {
        while (r->choices)
            gw_choice_drop(g, r->choices);
        gw_request_fail(g, r, &e);
        return;
    }
    if (refused) {
        gw_request_refused(g, r, &f);
        return;
    }
    g->n_running += r->n_choice - 1;
    gw_request_read(r);
    for (struct gw_choice *c = r->choices; c; c = c->next)
        gw_tell_add(g, c);
}

static void failed(struct gateway *g, struct gw_request *r, const struct link_event *v)
{
    struct err e;
    if (++r->tries >= TRIES_MAX) {
        err_set(&e, ERR_SYS, "tokenize has not answered %" PRIu32 " times: %.300s", r->tries, v->err.text);
        gw_request_fail(g, r, &e);
        return;
    }
    r->ask_ns = proc_now_ns() + AGAIN_NS * r->tries;
    gw_timer(g, r->ask_ns);
}

void gw_line_event(struct gateway *g, struct gw_request *r, const struct link_event *v)
{
    r->asked = false;
    g->n_asked--;
    g->to_ask = true;
    if (r->over)
        gw_request_unref(g, r);
    else if (v->what == LINK_ANSWER)
        answered(g, r, v);
    else
        failed(g, r, v);
}
