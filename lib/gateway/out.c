/*
 * Frames of workers: `out` and `end`. Delivery is at least once, from several attempts; tokens are deduplicated by
 * their position in the answer. A frame is acknowledged (link/session.h) after it was output.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "gateway/gateway_impl.h"

static int add_tokens(struct err *e, struct gw_choice *c, const uint32_t *ids, uint32_t n)
{
    int rc = vec_reserve(e, &c->out, &c->size_out, (size_t)c->n_out + n, sizeof *c->out, "tokens of an answer");
    if (rc)
        return rc;
    memcpy(c->out + c->n_out, ids, n * sizeof *ids);
    c->n_out += n;
    return 0;
}

static void forward(struct gateway *g, struct gw_choice *c, const struct wire_frame *f)
{
    struct wire_frame copy = *f;
    copy.out.seq = c->r->seq;
    copy.out.index = c->index;
    g->o.frame(g->o.arg, &copy);
}

static void on_out(struct gateway *g, const struct wire_frame *f, uint64_t now)
{
    const struct wire_out *o = &f->out;
    struct gw_choice *c = gw_choice_find(g, o->seq);
    struct err e;
    if (!c) {
        gw_cancel_late(g, o->seq, (uint64_t)o->at + o->n_id);
        return;
    }
    if (o->prompt) {
        bool first = !c->echoed && !c->n_out;
        c->echoed = true;
        if (first)
            forward(g, c, f);
        return;
    }
    uint64_t end = (uint64_t)o->at + o->n_id;
    uint64_t known = end <= c->n_out ? o->n_id : o->at < c->n_out ? c->n_out - o->at : 0;
    if (known && memcmp(c->out + o->at, o->ids, known * sizeof *o->ids)) {
        gw_resubmit(g, c, true, "a worker sent other tokens than those received before", now);
        return;
    }
    if (o->at > c->n_out) {
        gw_resubmit(g, c, true, "tokens are missing", now);
        return;
    }
    if (known && known < o->n_id) { /* its text cannot be split between two ids */
        gw_resubmit(g, c, true, "a frame has both known and new tokens", now);
        return;
    }
    if (known || !o->n_id)
        return;
    if (add_tokens(&e, c, o->ids, o->n_id)) {
        gw_fail(g, &e);
        return;
    }
    c->first_ns = c->first_ns ? c->first_ns : now;
    c->last_ns = now;
    gw_suspect_clear(g, c);
    gw_send_add(g, c);
    forward(g, c, f);
}

static void on_end(struct gateway *g, const struct wire_end *w, uint64_t now)
{
    struct gw_choice *c = gw_choice_find(g, w->seq);
    if (!c)
        return;
    if (w->completion_tokens > c->n_out)
        gw_resubmit(g, c, true, "tokens before the end are missing", now);
    else
        gw_choice_forward_end(g, c, w);
}

void gw_out_event(struct gateway *g, const struct session_event *ev, uint64_t now)
{
    struct wire_frame f;
    if (ev->type == SESSION_DOWN && ev->err.code == ERR_PROTO)
        gw_log(g, "%s: %s", session_url(ev->s), ev->err.text);
    if (ev->type != SESSION_FRAME || !gw_frame(g, &f, ev))
        return;
    if (f.kind == WIRE_OUT)
        on_out(g, &f, now);
    else if (f.kind == WIRE_END)
        on_end(g, &f.end, now);
    else
        gw_unexpected(g, &f, ev);
}
