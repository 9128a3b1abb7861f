/*
 * What workers send: pieces of answers and their ends. Each token is known by its position in the answer, so what
 * several attempts have sent is put together, once and in order. A piece is acknowledged (link/session.h) after it was
 * given out.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "gateway/gateway_impl.h"

static int keep(struct err *e, struct gw_choice *c, const uint32_t *ids, uint32_t n)
{
    int rc = vec_reserve(e, &c->out, &c->size_out, (size_t)c->n_out + n, sizeof *c->out, "tokens of an answer");
    if (rc)
        return rc;
    memcpy(c->out + c->n_out, ids, n * sizeof *ids);
    c->n_out += n;
    return 0;
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
        gw_cancel_stray(g, o->seq, (uint64_t)o->at + o->n_id);
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
        gw_renew(g, c, true, "another attempt has other tokens", now);
        return;
    }
    if (o->at > c->n_out) {
        gw_renew(g, c, true, "tokens of it are missing", now);
        return;
    }
    if (known && known < o->n_id) { /* its text cannot be cut where the ids are */
        gw_renew(g, c, true, "a piece of it begins before what is there and ends after it", now);
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
    gw_send_add(g, c);
    give(g, c, f);
}

static void end(struct gateway *g, const struct wire_end *w, uint64_t now)
{
    struct gw_choice *c = gw_choice_find(g, w->seq);
    if (!c)
        return;
    if (w->completion_tokens > c->n_out)
        gw_renew(g, c, true, "tokens before its end are missing", now);
    else
        gw_choice_take_end(g, c, w);
}

void gw_out_event(struct gateway *g, const struct session_event *ev, uint64_t now)
{
    struct wire_frame f;
    if (ev->type == SESSION_DOWN && ev->err.code == ERR_PROTO)
        gw_log(g, "%s: %s", session_url(ev->s), ev->err.text);
    if (ev->type != SESSION_FRAME || !gw_frame(g, &f, ev))
        return;
    if (f.kind == WIRE_OUT)
        out(g, &f, now);
    else if (f.kind == WIRE_END)
        end(g, &f.end, now);
    else
        gw_unexpected(g, &f, ev);
}
