/*
 * Poison containment. A request whose frame makes the scheduler die would, by resubmission, end one scheduler after
 * another. So the choices that were at a scheduler when it died, and had at most one token, are suspects: they are
 * submitted one at a time, before all choices without a token. A suspect is cleared by a token, an end, a refusal, or
 * TRIAL_NS at a scheduler that lives. If the scheduler dies instead, that suspect fails with an error that names it.
 *
 * Neither a planned end (a reason in session_bye) nor a broken connection counts as a death: the scheduler of the next
 * session has the same incarnation.
 */
#include <inttypes.h>
#include <string.h>

#include "gateway/gateway_impl.h"

#define TRIAL_NS (2 * NS_S)

void gw_suspects_down(struct gateway *g, const struct err *reason)
{
    list_each (struct gw_request, r, &g->requests[GW_PARSED], node)
        list_each (struct gw_choice, c, &r->choices, node)
            c->at_risk = c->at_risk || (reason->code == ERR_SYS && c->submitted && c->n_out <= 1);
    if (g->trial && !g->trial->at_risk)
        g->trial = NULL;
}

static void fail(struct gateway *g, struct gw_choice *c)
{
    struct err e;
    struct wire_frame p;
    struct wire_str id = {0};
    if (!gw_choice_prompt(&e, g, &p, c))
        id = p.prompt.id;
    err_set(&e, ERR_SYS,
            "the scheduler died twice while it had request %.*s (job %" PRIu64 "): the request is not submitted again",
            (int)(id.n < 200 ? id.n : 200), id.n ? id.p : "", c->job);
    gw_log(g, "%s", e.text);
    gw_suspect_clear(g, c);
    gw_choice_end(g, c, 0, &e);
}

void gw_suspects_up(struct gateway *g)
{
    bool died = g->sched_inc && g->sched_inc != session_peer_inc(g->sched);
    struct gw_choice *guilty = died ? g->trial : NULL;
    g->sched_inc = session_peer_inc(g->sched);
    list_each (struct gw_request, r, &g->requests[GW_PARSED], node)
        list_each (struct gw_choice, c, &r->choices, node) {
            if (c->at_risk && died && !c->suspect) {
                c->suspect = true;
                g->n_suspect++;
            }
            c->again = c->again && !(c->at_risk && died); /* so that it does not wait for a worker that runs it */
            c->at_risk = false;
        }
    g->trial = NULL;
    if (guilty)
        fail(g, guilty);
}

bool gw_suspect_may_send(struct gateway *g, struct gw_choice *c, uint64_t now)
{
    if (!c->suspect)
        return !g->n_suspect || c->n_out > 1;
    if (g->trial)
        return g->trial == c;
    g->trial = c;
    g->trial_end_ns = now + TRIAL_NS;
    gw_timer(g, g->trial_end_ns);
    return true;
}

void gw_suspect_clear(struct gateway *g, struct gw_choice *c)
{
    if (g->trial == c)
        g->trial = NULL;
    if (!c->suspect)
        return;
    c->suspect = false;
    g->n_suspect--;
    gw_timer(g, 0); /* the next one may be sent */
}

void gw_suspects_timer(struct gateway *g, uint64_t now)
{
    if (!g->trial)
        return;
    if (g->trial_end_ns > now)
        gw_timer(g, g->trial_end_ns);
    else if (g->trial->submitted)
        gw_suspect_clear(g, g->trial);
    else
        g->trial = NULL; /* it was not sent, since the session is full or down */
}
