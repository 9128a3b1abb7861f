/* What workers send: pieces of answers and their ends. Each token is known by its place, so what several tries of an
 * answer have sent is put together, once and in order. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/gateway_impl.h"

static int keep(struct err *e, struct gw_choice *c, const uint32_t *ids, uint32_t n)
{
    if (c->size_out - c->n_out < n) {
        uint64_t size = (uint64_t)c->n_out + c->n_out / 2 + n + 32;
        uint32_t *p = size < UINT32_MAX ? realloc(c->out, size * sizeof *p) : NULL;
        if (!p)
            return err_nomem(e, "tokens of an answer", size * sizeof *p);
        c->out = p;
        c->size_out = (uint32_t)size;
    }
    memcpy(c->out + c->n_out, ids, n * sizeof *ids);
    c->n_out += n;
    return 0;
}

/* Tokens of a job that has ended: a worker that has not heard of it computes for nobody. */
static void unknown(struct gateway *g, const struct wire_out *o)
{
    struct gw_ended *x = &g->ended[o->seq % ENDED_N];
    if (x->job != o->seq || !o->seq || x->n_out == UINT32_MAX || (uint64_t)o->at + o->n_id <= x->n_out)
        return;
    x->n_out = UINT32_MAX;
    gw_tell_cancel(g, o->seq);
}

static void give(struct gateway *g, struct gw_choice *c, const struct wire_frame *f)
{
    struct wire_frame mine = *f;
    mine.out.seq = c->r->seq;
    mine.out.index = c->index;
    g->o.frame(g->o.arg, &mine);
}

static void out(struct gateway *g, const struct wire_frame *f, uint64_t now)
{
    const struct wire_out *o = &f->out;
    struct gw_choice *c = gw_choice_find(g, o->seq);
    struct err e;
    if (!c) {
        unknown(g, o);
        return;
    }
    if (o->prompt) {
        bool fresh = !c->echoed && !c->n_out;
        c->echoed = true;
        if (fresh)
            give(g, c, f);
        return;
    }
    uint64_t end = (uint64_t)o->at + o->n_id;
    uint64_t known = end <= c->n_out ? o->n_id : o->at < c->n_out ? c->n_out - o->at : 0;
    if (known && memcmp(c->out + o->at, o->ids, known * sizeof *o->ids)) {
        gw_tell_renew(g, c, true, "another try of it has other tokens", now);
        return;
    }
    if (o->at > c->n_out) {
        gw_tell_renew(g, c, true, "tokens of it are missing", now);
        return;
    }
    if (known && known < o->n_id) { /* its text cannot be cut where the ids are */
        gw_tell_renew(g, c, true, "a piece of it begins before what is there and ends behind", now);
        return;
    }
    if (known || !o->n_id)
        return;
    if (keep(&e, c, o->ids, o->n_id)) {
        gw_broken(g, &e);
        return;
    }
    c->first_ns = c->first_ns ? c->first_ns : now;
    c->last_ns = now;
    gw_report(g, c);
    give(g, c, f);
}

static void end(struct gateway *g, const struct wire_end *w, uint64_t now)
{
    struct gw_choice *c = gw_choice_find(g, w->seq);
    if (!c)
        return;
    if (w->completion_tokens > c->n_out)
        gw_tell_renew(g, c, true, "tokens before its end are missing", now);
    else {
        if (c->told != TOLD_NOT)
            gw_tell_ended(g, c->job, w->reason);
        gw_choice_end(g, c, w);
    }
}

void gw_out_event(struct gateway *g, const struct link_event *v, uint64_t now)
{
    struct err e = {0};
    struct wire_frame f;
    if (v->what != LINK_QUESTION)
        return;
    const uint8_t *p = v->p;
    size_t n = v->n;
    wire_arena_reset(g->arena);
    while (link_msg_next(&e, &f, g->arena, &p, &n)) {
        if (f.kind == WIRE_OUT)
            out(g, &f, now);
        else if (f.kind == WIRE_END)
            end(g, &f.end, now);
        else
            gw_say(g, "%s: a frame of kind %s, which no worker sends", g->reply, wire_kind_name(f.kind));
        wire_arena_reset(g->arena);
    }
    if (e.code)
        gw_say(g, "%s: %s", g->reply, e.text);
    link_answer(v->q, NULL);
}
