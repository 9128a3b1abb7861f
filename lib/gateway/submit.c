/*
 * The session to the scheduler: submits choices, reports their tokens and ends, cancels jobs, and processes decisions.
 * A lost connection means that the scheduler has cancelled all jobs submitted over it, or has restarted and does not
 * know them. After the next SESSION_UP all unfinished choices are submitted again with their current state; nothing is
 * sent about those that have ended.
 *
 * A job that the scheduler reports as cancelled, although the gateway did not cancel it, continues as a new job.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/gateway_impl.h"

#define RETRY_MIN_NS (20 * NS_MS)
#define RETRY_MAX_NS (60 * NS_S)
#define EARLY_NS (50 * NS_MS) /* the scheduler may expire a deadline this much before the gateway does */

/* ---- sending ---- */

void gw_send_add(struct gateway *g, struct gw_choice *c)
{
    if (list_empty(&c->to_send))
        list_push_back(&g->to_send, &c->to_send);
}

static int send_cancel(struct err *e, struct gateway *g, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of(g->name), .job = job}};
    return session_send(e, g->sched, &f);
}

void gw_cancel_late(struct gateway *g, uint64_t job, uint64_t n_out)
{
    struct err e;
    struct gw_ended *x = &g->ended[job % ENDED_N];
    if (job && x->job == job && x->n_out != UINT32_MAX && n_out > x->n_out && !send_cancel(&e, g, job))
        x->n_out = UINT32_MAX;
}

static int send_submit(struct err *e, struct gateway *g, struct gw_choice *c, uint64_t now)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT}, p;
    if (gw_choice_prompt(e, g, &p, c))
        return e->code;
    uint64_t left = c->r->deadline_ns > now ? c->r->deadline_ns - now : 1;
    f.submit = (struct wire_submit){
        .gw = wire_str_of(g->name),
        .job = c->job,
        .n_prompt = p.prompt.n_prompt,
        .max_tokens = p.prompt.max_tokens,
        .digests = p.prompt.digests,
        .priority = p.prompt.priority,
        .deadline_ns = c->r->deadline_ns ? left : 0,
        .slo_ttft_ns = g->o.slo_ttft_ns,
        .slo_tpot_ns = g->o.slo_tpot_ns,
        .reply = wire_str_of(session_listener_url(g->workers)),
        .body = p.prompt.body,
        .again = c->again,
        .attempt = c->again ? c->attempt : 0,
        .n_out = c->n_out,
        .out = c->out,
        .n_out_id = c->n_out,
        .tenant = wire_str_of(c->r->tenant),
    };
    int rc = session_send(e, g->sched, &f);
    if (rc)
        return rc;
    c->submitted = true;
    c->n_reported = c->n_out;
    c->reported_ns = c->n_out ? now : 0;
    if (!c->sent_ns)
        c->sent_ns = now;
    return 0;
}

static int send_tokens(struct err *e, struct gateway *g, struct gw_choice *c, uint64_t now)
{
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){
        .gw = wire_str_of(g->name),
        .job = c->job,
        .attempt = c->attempt,
        .what = wire_str_of("tokens"),
        .n_out = c->n_out,
        .out = c->out + c->n_reported,
        .n_out_id = c->n_out - c->n_reported,
    };
    int rc = session_send(e, g->sched, &f);
    if (rc)
        return rc;
    c->n_reported = c->n_out;
    c->reported_ns = now;
    return 0;
}

/* The gateway reports the end itself, since the worker may die before it does. */
static int send_end(struct err *e, struct gateway *g, const struct gw_choice *c)
{
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){
        .gw = wire_str_of(g->name), .job = c->job, .what = wire_str_of("ended"), .reason = c->ended};
    return c->ended ? session_send(e, g->sched, &f) : send_cancel(e, g, c->job);
}

static int send_choice(struct err *e, struct gateway *g, struct gw_choice *c, uint64_t now)
{
    if (!c->r)
        return c->submitted ? send_end(e, g, c) : 0;
    if (c->done_ns)
        return 0;
    if (!c->submitted && c->submit_ns <= now && !gw_suspect_may_send(g, c, now))
        return 0; /* gw_suspect_clear continues */
    if (!c->submitted && c->submit_ns <= now)
        return send_submit(e, g, c, now);
    uint64_t due = c->reported_ns ? c->reported_ns + REPORT_NS : 0;
    if (!c->submitted)
        gw_timer(g, c->submit_ns);
    else if (c->n_out - c->n_reported >= REPORT_TOKENS || (c->n_out > c->n_reported && due <= now))
        return send_tokens(e, g, c, now);
    else if (c->n_out > c->n_reported)
        gw_timer(g, due);
    return 0;
}

void gw_send_all(struct gateway *g, uint64_t now)
{
    struct err e;
    while (!g->failure.code && !list_empty(&g->to_send)) {
        struct gw_choice *c = list_entry(g->to_send.next, struct gw_choice, to_send);
        if (!session_has_room(g->sched, c->submitted ? 0 : c->n_frame))
            return;
        int rc = send_choice(&e, g, c, now);
        if (rc == ERR_NO || rc == ERR_USAGE) /* the session is full or down: try again later */
            return;
        list_remove(&c->to_send);
        if (rc == ERR_SYS)
            gw_fail(g, &e);
        else if (!c->r)
            gw_choice_free(g, c);
        else if (rc)
            gw_choice_end(g, c, 0, &e); /* a frame that can never be sent */
    }
}

void gw_resubmit(struct gateway *g, struct gw_choice *c, bool may_run, const char *reason, uint64_t now)
{
    struct err e;
    if (c->max_tokens && c->n_out >= c->max_tokens) { /* the answer is complete without its end frame */
        gw_choice_end(g, c, WIRE_LENGTH, NULL);
        return;
    }
    if (++c->retries > RETRIES_MAX) {
        err_set(&e, ERR_SYS, "given up after %d retries: %.300s", RETRIES_MAX, reason);
        gw_choice_end(g, c, 0, &e);
        return;
    }
    gw_log(g, "request %" PRIu64 " continues after %" PRIu32 " tokens: %.300s", c->r->seq, c->n_out, reason);
    gw_choice_renumber(g, c, may_run);
    c->submitted = c->again = false;
    c->done_ns = 0;
    c->submit_ns = now + (c->retries > 1 ? RETRY_MIN_NS << c->retries : 0);
    gw_send_add(g, c);
}

/* ---- decisions of the scheduler ---- */

static void on_ack(struct gateway *g, struct gw_choice *c, const struct wire_ack *f)
{
    c->attempt = f->attempt ? f->attempt : c->attempt;
    c->refused_ns = 0;
    if (g->o.accepted)
        g->o.accepted(g->o.arg, c->r->seq, f->n_before, f->eta_ns);
}

static void on_refuse(struct gateway *g, struct gw_choice *c, const struct wire_refuse *f, uint64_t now)
{
    struct err e;
    char retry[40] = "";
    uint64_t wait = f->retry_ns < RETRY_MIN_NS ? RETRY_MIN_NS : f->retry_ns > RETRY_MAX_NS ? RETRY_MAX_NS : f->retry_ns;
    c->submitted = c->again = false; /* the scheduler no longer has it */
    gw_suspect_clear(g, c);
    if (!c->refused_ns)
        c->refused_ns = now;
    uint64_t waits = now - c->refused_ns + wait;
    bool patient = !f->ending && (c->r->deadline_ns || waits < g->o.patience_ns);
    if (!f->never && patient) {
        c->submit_ns = now + wait;
        gw_send_add(g, c);
        return;
    }
    if (!f->never)
        snprintf(retry, sizeof retry, ": try again in %.3g s", (double)f->retry_ns / 1e9);
    err_set(&e, ERR_NO, "%.*s%s", (int)(f->text.n < 400 ? f->text.n : 400), f->text.n ? f->text.p : "", retry);
    if (!f->never && g->o.refused)
        g->o.refused(g->o.arg, c->r->seq, f->retry_ns, f->ending);
    gw_choice_end(g, c, 0, &e);
}

static void on_done(struct gateway *g, struct gw_choice *c, const struct wire_done *f, uint64_t now)
{
    struct err e;
    char text[401];
    snprintf(text, sizeof text, "%.*s", (int)(f->text.n < 400 ? f->text.n : 400), f->text.n ? f->text.p : "");
    c->submitted = false; /* the scheduler has dropped it */
    switch (f->reason) {
    case WIRE_ERROR:
        err_set(&e, f->code ? (int)f->code : ERR_SYS, "%s",
                *text ? text : "the scheduler reports a failure without a reason");
        gw_choice_end(g, c, 0, &e);
        return;
    case WIRE_CANCELLED:
        gw_deadline_passed(&e, g);
        if (c->r->deadline_ns && now + EARLY_NS >= c->r->deadline_ns)
            gw_choice_end(g, c, 0, &e);
        else
            gw_resubmit(g, c, false, *text ? text : "the scheduler has cancelled it", now);
        return;
    case WIRE_STOP:
    case WIRE_LENGTH:
        c->done = f->reason;
        c->done_ns = now;
        gw_timer(g, now + END_NS);
        return;
    }
}

static void on_frame(struct gateway *g, const struct session_event *ev, uint64_t now)
{
    struct wire_frame f;
    struct gw_choice *c;
    if (!gw_frame(g, &f, ev))
        return;
    switch (f.kind) {
    case WIRE_ACK:
        if ((c = gw_choice_find(g, f.ack.job)))
            on_ack(g, c, &f.ack);
        return;
    case WIRE_REFUSE:
        if ((c = gw_choice_find(g, f.refuse.job)))
            on_refuse(g, c, &f.refuse, now);
        else if (!f.refuse.job) /* it refuses a frame, not a request */
            gw_log(g, "%s: %.*s", session_url(ev->s), (int)(f.refuse.text.n < 400 ? f.refuse.text.n : 400),
                   f.refuse.text.n ? f.refuse.text.p : "");
        return;
    case WIRE_DONE:
        if ((c = gw_choice_find(g, f.done.job)) && !c->done_ns)
            on_done(g, c, &f.done, now);
        return;
    case WIRE_KNOB: /* a weight, as it was sent */
        return;
    default:
        gw_unexpected(g, &f, ev);
    }
}

static void on_down(struct gateway *g, const struct err *reason)
{
    gw_suspects_down(g, reason);
    list_each_safe (struct gw_choice, c, &g->to_send, to_send)
        if (!c->r)
            gw_choice_free(g, c);
    list_each (struct gw_request, r, &g->requests[GW_PARSED], node)
        list_each (struct gw_choice, c, &r->choices, node) {
            c->again = c->again || c->submitted;
            c->submitted = false;
            gw_send_add(g, c);
        }
}

void gw_sched_event(struct gateway *g, const struct session_event *ev, uint64_t now)
{
    if (ev->type == SESSION_FRAME) {
        on_frame(g, ev, now);
    } else if (ev->type == SESSION_UP) {
        gw_weights_up(g);
        gw_suspects_up(g);
    } else if (ev->type == SESSION_DOWN) {
        on_down(g, &ev->err);
    }
}
