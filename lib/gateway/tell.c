/*
 * The scheduler's side of a gateway. What is to be said goes in one message at a time, so that it arrives in order and
 * a message that fails is said again; beside it a poll is always open, which is the heartbeat, and brings back what the
 * scheduler says.
 *
 * The scheduler forgets: a new one knows nothing, and one that took this gateway for gone has cancelled all. It answers
 * the poll by `refuse`, then all that runs is submitted again. A job that it says is cancelled, though nobody here
 * asked for that, is one that it still gives up for the same reason: its choice goes on as another job.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/gateway_impl.h"

#define LAST_WORDS_MAX 4096 /* of a message */
#define RETRY_MIN_NS ((uint64_t)20 * 1000 * 1000)
#define RETRY_MAX_NS ((uint64_t)60 * 1000 * 1000 * 1000)
#define EARLY_NS ((uint64_t)50 * 1000 * 1000)   /* the scheduler's clock may be this much before ours */
#define PARKED_NS ((uint64_t)200 * 1000 * 1000) /* a poll that came back empty before was not parked */

/* ---- what is to be said ---- */

void gw_tell_add(struct gateway *g, struct gw_choice *c)
{
    if (c->in_tell)
        return;
    c->in_tell = true;
    c->next_tell = NULL;
    c->prev_tell = g->tell_last;
    if (g->tell_last)
        g->tell_last->next_tell = c;
    else
        g->tell_first = c;
    g->tell_last = c;
}

void gw_tell_drop(struct gateway *g, struct gw_choice *c)
{
    if (!c->in_tell)
        return;
    c->in_tell = false;
    if (c->prev_tell)
        c->prev_tell->next_tell = c->next_tell;
    else
        g->tell_first = c->next_tell;
    if (c->next_tell)
        c->next_tell->prev_tell = c->prev_tell;
    else
        g->tell_last = c->prev_tell;
}

static void last_word(struct gateway *g, uint64_t job, enum wire_reason ended)
{
    if (g->n_last_word == g->size_last_word) {
        size_t size = 2 * g->size_last_word + 64;
        struct gw_last *p = realloc(g->last_word, size * sizeof *p);
        if (!p) {
            struct err e;
            err_nomem(&e, "requests that have ended", size * sizeof *p);
            gw_broken(g, &e);
            return;
        }
        g->last_word = p;
        g->size_last_word = size;
    }
    g->last_word[g->n_last_word++] = (struct gw_last){job, ended};
}

void gw_tell_cancel(struct gateway *g, uint64_t job)
{
    last_word(g, job, 0);
}

void gw_tell_ended(struct gateway *g, uint64_t job, enum wire_reason reason)
{
    last_word(g, job, reason);
}

static void each(struct gateway *g, void (*f)(struct gateway *g, struct gw_choice *c))
{
    for (struct gw_request *r = g->first; r; r = r->next)
        for (struct gw_choice *c = r->over ? NULL : r->choices; c; c = c->next)
            f(g, c);
}

static void again(struct gateway *g, struct gw_choice *c)
{
    if (c->told == TOLD_NOT)
        return;
    c->again = c->again || c->told == TOLD_YES;
    c->told = TOLD_NOT;
    gw_tell_add(g, c);
}

void gw_tell_again(struct gateway *g)
{
    each(g, again);
}

void gw_tell_renew(struct gateway *g, struct gw_choice *c, bool runs, const char *why, uint64_t now)
{
    struct err e;
    if (c->max_tokens && c->n_out >= c->max_tokens) { /* only the news of its end is missing */
        gw_choice_end_here(g, c, WIRE_LENGTH);
        return;
    }
    if (++c->tries > TRIES_MAX) {
        err_set(&e, ERR_SYS, "given up after %d times: %.300s", TRIES_MAX, why);
        gw_choice_fail(g, c, &e);
        return;
    }
    gw_say(g, "request %" PRIu64 " goes on behind %" PRIu32 " tokens: %.300s", c->r->seq, c->n_out, why);
    if (runs && c->told != TOLD_NOT)
        gw_tell_cancel(g, c->job);
    if (gw_choice_renumber(&e, g, c)) {
        gw_broken(g, &e);
        return;
    }
    c->told = TOLD_NOT;
    c->again = false;
    c->done_ns = 0;
    c->n_told = c->n_telling = 0;
    c->submit_ns = now + (c->tries > 1 ? RETRY_MIN_NS << c->tries : 0);
    gw_timer(g, c->submit_ns);
    gw_tell_add(g, c);
}

/* ---- a message ---- */

static int add_submit(struct err *e, struct gateway *g, struct gw_choice *c, uint64_t now)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT}, tok;
    if (gw_choice_tok(e, g, &tok, c))
        return e->code;
    uint64_t left = c->r->deadline_ns > now ? c->r->deadline_ns - now : 1;
    f.submit = (struct wire_submit){
        .gw = wire_str_of(g->name),
        .job = c->job,
        .n_prompt = tok.req.n_id,
        .max_tokens = tok.req.s.max_tokens,
        .digests = tok.req.digests,
        .priority = tok.req.priority,
        .deadline_ns = c->r->deadline_ns ? left : 0,
        .slo_ttft_ns = g->o.slo_ttft_ns,
        .slo_tpot_ns = g->o.slo_tpot_ns,
        .reply = wire_str_of(g->reply),
        .body = {c->body.p, c->body.n},
        .again = c->again,
        .attempt = c->again ? c->attempt : 0,
        .n_out = c->n_out,
        .out = c->out,
        .n_out_id = c->n_out,
    };
    int rc = link_msg_add(e, &g->msg, &f);
    if (rc)
        return rc;
    c->told = TOLD_SENT;
    c->n_telling = c->n_out;
    c->told_ns = c->n_out ? now : 0;
    if (!c->sent_ns)
        c->sent_ns = now;
    return 0;
}

static int add_report(struct err *e, struct gateway *g, struct gw_choice *c, uint64_t now)
{
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){
        .gw = wire_str_of(g->name),
        .job = c->job,
        .attempt = c->attempt,
        .what = wire_str_of("tokens"),
        .n_out = c->n_out,
        .out = c->out + c->n_told,
        .n_out_id = c->n_out - c->n_told,
    };
    int rc = link_msg_add(e, &g->msg, &f);
    if (rc)
        return rc;
    c->n_telling = c->n_out;
    c->told_ns = now;
    return 0;
}

/* What fits of one choice; ERR_SYS is no memory, everything else its own fault. */
static int add_choice(struct err *e, struct gateway *g, struct gw_choice *c, uint64_t now)
{
    if (c->done_ns)
        return 0;
    if (c->told == TOLD_NOT && c->submit_ns > now)
        gw_timer(g, c->submit_ns);
    else if (c->told == TOLD_NOT)
        return add_submit(e, g, c, now);
    else if (c->n_out > c->n_told)
        return add_report(e, g, c, now);
    return 0;
}

static int add_last_words(struct err *e, struct gateway *g)
{
    while (g->n_saying < g->n_last_word && g->n_saying < LAST_WORDS_MAX) {
        const struct gw_last *w = &g->last_word[g->n_saying];
        struct wire_frame f = {.kind = w->ended ? WIRE_REPORT : WIRE_CANCEL};
        if (w->ended)
            f.report = (struct wire_report){
                .gw = wire_str_of(g->name), .job = w->job, .what = wire_str_of("ended"), .reason = w->ended};
        else
            f.cancel = (struct wire_cancel){.gw = wire_str_of(g->name), .job = w->job};
        if (link_msg_add(e, &g->msg, &f))
            return e->code;
        g->n_saying++;
    }
    return 0;
}

static void tell(struct gateway *g, uint64_t now)
{
    struct err e = {0};
    link_msg_clear(&g->msg);
    int rc = add_last_words(&e, g);
    while (!rc && g->tell_first && g->msg.n < TELL_BYTES_MAX) {
        struct gw_choice *c = g->tell_first;
        rc = add_choice(&e, g, c, now);
        if (rc && g->msg.n) { /* it may fit alone, in the next one */
            rc = 0;
            break;
        }
        gw_tell_drop(g, c);
        if (rc && rc != ERR_SYS) {
            gw_choice_fail(g, c, &e);
            rc = 0;
        }
    }
    if (!rc && g->msg.n && !(rc = link_ask(&e, g->sched, &g->msg, &g->for_tell)))
        g->telling = true;
    if (rc)
        gw_broken(g, &e);
}

static void poll_sched(struct gateway *g, uint64_t now)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_POLL};
    f.poll.gw = wire_str_of(g->name);
    /* This process was stopped, or busy: the scheduler may have taken it for gone. */
    if (g->poll_ns && now - g->poll_ns > POLL_NS * 5 / 2)
        gw_tell_again(g);
    link_msg_clear(&g->msg);
    if (link_msg_add(&e, &g->msg, &f) || link_ask(&e, g->sched, &g->msg, &g->for_poll)) {
        gw_broken(g, &e);
        return;
    }
    g->n_poll++;
    g->poll_ns = now;
}

uint64_t gw_tell_next_ns(const struct gateway *g)
{
    if (g->sched_down_ns || g->n_poll >= POLLS_MAX)
        return UINT64_MAX;
    uint64_t at = g->n_poll ? g->poll_ns + POLL_NS : 0;
    return at > g->poll_not_before_ns ? at : g->poll_not_before_ns;
}

void gw_tell_send(struct gateway *g, uint64_t now)
{
    if (g->sched_down_ns)
        return;
    if (gw_tell_next_ns(g) <= now)
        poll_sched(g, now);
    if (g->n_refused > 1 && now < g->poll_not_before_ns)
        return;
    if (!g->telling && (g->tell_first || g->n_last_word > g->n_saying))
        tell(g, now);
}

/* ---- what comes ---- */

static void confirmed(struct gateway *g, struct gw_choice *c)
{
    (void)g;
    if (c->told == TOLD_SENT)
        c->told = TOLD_YES;
    if (c->told == TOLD_YES)
        c->n_told = c->n_telling;
    if (c->told == TOLD_YES && c->n_out > c->n_told)
        gw_report(g, c);
}

static void unconfirmed(struct gateway *g, struct gw_choice *c)
{
    if (c->told == TOLD_SENT)
        c->told = TOLD_NOT;
    c->n_telling = c->n_told;
    if (c->told == TOLD_NOT || c->n_out > c->n_told)
        gw_tell_add(g, c);
}

static void tell_done(struct gateway *g, bool ok)
{
    g->telling = false;
    if (ok && g->n_saying) {
        g->n_last_word -= g->n_saying;
        memmove(g->last_word, g->last_word + g->n_saying, g->n_last_word * sizeof *g->last_word);
    }
    g->n_saying = 0;
    each(g, ok ? confirmed : unconfirmed);
}

/* The first token at once, then as header and docs/protocol.md say. */
void gw_report(struct gateway *g, struct gw_choice *c)
{
    if (c->told != TOLD_YES || c->n_telling > c->n_told)
        return; /* said when the open message is confirmed */
    uint64_t due = c->told_ns ? c->told_ns + REPORT_NS : 0;
    if (!c->told_ns || c->n_out - c->n_told >= REPORT_TOKENS || due <= c->last_ns)
        gw_tell_add(g, c);
    else
        gw_timer(g, due);
}

static void expired(struct gateway *g, struct gw_choice *c)
{
    struct err e;
    err_set(&e, ERR_NO, "the deadline of %.3g s has passed", (double)g->o.deadline_ns / 1e9);
    gw_choice_fail(g, c, &e);
}

static void refused(struct gateway *g, struct gw_choice *c, const struct wire_refuse *f, uint64_t now)
{
    struct err e;
    uint64_t wait = f->retry_ns < RETRY_MIN_NS ? RETRY_MIN_NS : f->retry_ns > RETRY_MAX_NS ? RETRY_MAX_NS : f->retry_ns;
    c->told = TOLD_NOT; /* it is not there any more */
    c->again = false;
    if (!c->refused_ns)
        c->refused_ns = now;
    uint64_t waits = now - c->refused_ns + wait;
    bool patient = c->r->deadline_ns || waits < g->o.patience_ns;
    if (f->never || !patient) {
        int n = (int)(f->text.n < 400 ? f->text.n : 400);
        if (f->never)
            err_set(&e, ERR_NO, "%.*s", n, f->text.p ? f->text.p : "");
        else
            err_set(&e, ERR_NO, "%.*s: ask again in %.3g s", n, f->text.p ? f->text.p : "", (double)f->retry_ns / 1e9);
        if (!f->never && g->o.full)
            g->o.full(g->o.arg, c->r->seq, f->retry_ns);
        gw_choice_fail(g, c, &e);
        return;
    }
    c->submit_ns = now + wait;
    gw_timer(g, c->submit_ns);
    gw_tell_add(g, c);
}

static void done(struct gateway *g, struct gw_choice *c, const struct wire_done *f, uint64_t now)
{
    struct err e;
    char text[401];
    snprintf(text, sizeof text, "%.*s", (int)(f->text.n < 400 ? f->text.n : 400), f->text.n ? f->text.p : "");
    c->told = TOLD_NOT; /* it has ended there */
    switch (f->reason) {
    case WIRE_ERROR:
        err_set(&e, f->code ? (int)f->code : ERR_SYS, "%s", *text ? text : "the scheduler says that it failed");
        gw_choice_fail(g, c, &e);
        return;
    case WIRE_CANCELLED:
        if (c->r->deadline_ns && now + EARLY_NS >= c->r->deadline_ns)
            expired(g, c);
        else
            gw_tell_renew(g, c, false, *text ? text : "the scheduler has given it up", now);
        return;
    case WIRE_STOP:
    case WIRE_LENGTH:
        c->done = f->reason;
        c->done_ns = now;
        gw_timer(g, now + END_NS);
        return;
    }
}

/* Of a job 0: the scheduler does not know this gateway. */
static void forgotten(struct gateway *g, uint64_t now)
{
    g->n_refused++;
    g->poll_not_before_ns = now + (RETRY_MIN_NS << (g->n_refused < 6 ? g->n_refused : 6));
    gw_tell_again(g);
}

static void take(struct gateway *g, const struct wire_frame *f, uint64_t now)
{
    struct gw_choice *c;
    switch (f->kind) {
    case WIRE_ACK:
        c = gw_choice_find(g, f->ack.job);
        if (!c)
            return;
        c->attempt = f->ack.attempt ? f->ack.attempt : c->attempt;
        c->refused_ns = 0;
        if (g->o.taken)
            g->o.taken(g->o.arg, c->r->seq, f->ack.n_before, f->ack.eta_ns);
        return;
    case WIRE_REFUSE:
        c = f->refuse.job ? gw_choice_find(g, f->refuse.job) : NULL;
        if (c)
            refused(g, c, &f->refuse, now);
        else if (!f->refuse.job)
            forgotten(g, now);
        return;
    case WIRE_DONE:
        c = gw_choice_find(g, f->done.job);
        if (c && !c->done_ns)
            done(g, c, &f->done, now);
        return;
    case WIRE_IDLE:
        return;
    default:
        gw_say(g, "%s: a frame of kind %s, which no scheduler sends", g->sched_url, wire_kind_name(f->kind));
    }
}

static void answer(struct gateway *g, const struct link_event *v, uint64_t now)
{
    struct err e = {0};
    struct wire_frame f;
    const uint8_t *p = v->p;
    size_t n = v->n;
    uint32_t was = g->n_refused;
    wire_arena_reset(g->arena);
    while (link_msg_next(&e, &f, g->arena, &p, &n)) {
        take(g, &f, now);
        wire_arena_reset(g->arena);
    }
    if (e.code)
        gw_say(g, "%s: %s", g->sched_url, e.text);
    if (g->n_refused == was && v->n)
        g->n_refused = 0;
}

static void connected(struct gateway *g, bool up, uint64_t now)
{
    if (!up) {
        g->sched_down_ns = now;
        return;
    }
    if (g->sched_was_up)
        gw_tell_again(g);
    g->sched_was_up = true;
    g->sched_down_ns = g->poll_ns = g->poll_not_before_ns = 0;
    g->n_refused = 0;
}

void gw_tell_event(struct gateway *g, const struct link_event *v, uint64_t now)
{
    if (v->what == LINK_UP || v->what == LINK_DOWN) {
        connected(g, v->what == LINK_UP, now);
        return;
    }
    bool poll = *(const enum gw_for *)v->arg == FOR_POLL;
    if (poll) {
        g->n_poll--;
        /* Not a poll that was parked: whoever answers so must not be asked without end. */
        if (v->what == LINK_ANSWER && !v->n && !g->n_poll && now - g->poll_ns < PARKED_NS)
            g->poll_not_before_ns = g->poll_ns + PARKED_NS;
    } else {
        tell_done(g, v->what == LINK_ANSWER);
    }
    if (v->what == LINK_ANSWER)
        answer(g, v, now);
}
