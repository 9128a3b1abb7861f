/*
 * What is said to the scheduler and what it says. Three kinds of questions: join, a work poll with the reports in front
 * of it, a control poll. Both polls are always parked; of work polls the newest counts, an older one comes back empty.
 */
#include "link/worker_impl.h"

#include <stdlib.h>
#include <string.h>

static bool ask(struct worker_link *w, struct link_msg *m, uint64_t id)
{
    struct err e;
    int rc = link_ask(&e, w->dialer, m, (void *)(uintptr_t)id);
    link_msg_free(m);
    return !rc;
}

/* ---- join ---- */

static void put_runs(struct wire_run *run, uint32_t n, const struct worker_link *w)
{
    uint32_t k = 0;
    for (uint32_t i = 0; i < WORKER_BUCKETS; i++)
        for (const struct order *o = w->order[i]; o && k < n; o = o->next)
            run[k++] = (struct wire_run){.gw = wire_str_of(o->gw),
                                         .job = o->job,
                                         .order = o->id,
                                         .attempt = o->attempt,
                                         .phase = wire_str_of(o->phase),
                                         .n_prompt = o->n_prompt,
                                         .max_tokens = o->max_tokens,
                                         .n_out = o->n_out};
}

int sched_join_message(struct err *e, struct link_msg *m, const struct worker_link *w)
{
    uint32_t n = w->n_order < WIRE_RUNS_MAX ? w->n_order : WIRE_RUNS_MAX;
    struct wire_run *run = calloc((size_t)n + 1, sizeof *run);
    if (!run)
        return err_nomem(e, "a join", (n + 1) * sizeof *run);
    put_runs(run, n, w);
    struct wire_frame f = {.kind = WIRE_JOIN,
                           .join = {.worker = wire_str_of(w->name),
                                    .inc = w->inc,
                                    .role = wire_str_of(w->role),
                                    .store = wire_str_of(w->store),
                                    .compat = wire_str_of(w->compat),
                                    .seqs = w->o.seqs,
                                    .blocks = w->o.blocks,
                                    .max_len = w->o.max_len,
                                    .chunk = w->o.chunk,
                                    .pre_a = w->o.pre[0],
                                    .pre_b = w->o.pre[1],
                                    .pre_c = w->o.pre[2],
                                    .dec_a = w->o.dec[0],
                                    .dec_b = w->o.dec[1],
                                    .dec_c = w->o.dec[2],
                                    .run = run,
                                    .n_run = n}};
    int rc = link_msg_add(e, m, &f);
    free(run);
    return rc;
}

static void ask_join(struct worker_link *w, uint64_t now_ns)
{
    struct err e;
    struct link_msg m = {0};
    uint64_t id = ++w->question;
    w->join_at_ns = now_ns + WORKER_AGAIN_MS * WORKER_MS;
    if (sched_join_message(&e, &m, w))
        link_msg_free(&m);
    else if (ask(w, &m, id))
        w->join = id;
}

/* This scheduler does not know this worker. What was asked before is forgotten: numbers count from 1 after the join,
 * and reports that it was not there for go again. */
static void forget(struct worker_link *w, enum worker_link_state state)
{
    w->state = state;
    w->join = w->ctl = w->newest = 0;
    w->n_work = 0;
    report_back(w, 0);
}

static void heard_of(struct worker_link *w, uint64_t now_ns)
{
    w->heard_ns = now_ns;
    w->quiet = false;
}

static void joined(struct worker_link *w, uint64_t now_ns)
{
    w->state = WORKER_JOINED;
    w->why = (struct err){0};
    w->joined_ns = now_ns;
    heard_of(w, now_ns);
    w->got = w->got_ctl = 0;
    w->ctl_first = true;
}

/* ---- polls ---- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static struct worker_room room_now(const struct worker_link *w)
{
    struct worker_room r = w->room;
    r.seqs = (uint32_t)less(r.seqs, w->coming.seqs);
    r.tokens = (uint32_t)less(r.tokens, w->coming.tokens);
    r.blocks = less(r.blocks, w->coming.blocks);
    return r;
}

static int put_poll(struct err *e, struct link_msg *m, const struct worker_link *w, bool ctl,
                    const struct worker_room *r)
{
    struct wire_frame f = {.kind = WIRE_POLL,
                           .poll = {.worker = wire_str_of(w->name),
                                    .inc = w->inc,
                                    .ctl = ctl,
                                    .got = ctl ? w->got_ctl : w->got,
                                    .seqs = r->seqs,
                                    .tokens = r->tokens,
                                    .blocks = r->blocks,
                                    .step_ns = r->step_ns,
                                    .context = r->context,
                                    .batch = r->batch,
                                    .drain = w->drain,
                                    .steps = r->steps,
                                    .n_steps = ctl ? 0 : WIRE_STEPS_MAX,
                                    .step_tokens = r->step_tokens}};
    return link_msg_add(e, m, &f);
}

static void ask_ctl(struct worker_link *w, uint64_t now_ns)
{
    struct err e;
    struct link_msg m = {0};
    uint64_t id = ++w->question;
    w->ctl_at_ns = now_ns + WORKER_AGAIN_MS * WORKER_MS;
    if (put_poll(&e, &m, w, true, &(struct worker_room){0}))
        link_msg_free(&m);
    else if (ask(w, &m, id))
        w->ctl = id;
}

static void ask_work(struct worker_link *w, uint64_t now_ns)
{
    struct err e;
    struct link_msg m = {0};
    struct worker_room r = room_now(w);
    struct work q = {++w->question, w->drain, false};
    q.reports = report_put(w, &m, q.id);
    w->work_at_ns = now_ns + WORKER_AGAIN_MS * WORKER_MS;
    if (put_poll(&e, &m, w, false, &r)) {
        link_msg_free(&m);
        report_back(w, q.id);
    } else if (ask(w, &m, q.id)) {
        w->work[w->n_work++] = q;
        w->newest = q.id;
        w->said = r;
        w->room.step_ns = w->room.batch = 0; /* a step is told once */
    } else {
        report_back(w, q.id);
    }
}

static const struct work *newest(const struct worker_link *w)
{
    return w->n_work && w->work[w->n_work - 1].id == w->newest ? &w->work[w->n_work - 1] : NULL;
}

/* While the newest is parked another goes only with news; one that would end hears at once that what it said came. */
static bool work_is_due(const struct worker_link *w, uint64_t now_ns)
{
    const struct work *q = newest(w);
    struct worker_room r = room_now(w);
    bool alone = w->n_work == 1;
    if (w->n_work == WORKER_OPEN)
        return false;
    if (!q)
        return now_ns >= w->work_at_ns;
    if (r.seqs != w->said.seqs || r.tokens != w->said.tokens || r.blocks != w->said.blocks)
        return true;
    if (w->drain && (!q->drain || (alone && (q->reports || !w->draining))))
        return true;
    return report_ready(w);
}

/* ---- answers ---- */

struct heard {
    bool refused, orders, drain, bad; /* bad: not all of it was taken in */
    struct err why;
};

static void frame(struct worker_link *w, struct heard *h, const struct wire_frame *f, const uint8_t *p, size_t n)
{
    switch ((int)f->kind) {
    case WIRE_REFUSE:
        h->refused = h->refused || !f->refuse.job;
        err_set(&h->why, ERR_NO, "%.*s", (int)(f->refuse.text.n < 400 ? f->refuse.text.n : 400), f->refuse.text.p);
        break;
    case WIRE_ORDER:
        h->bad = h->bad || !order_frame(w, &f->order, p, n);
        h->orders = true;
        break;
    case WIRE_CONTROL:
        h->drain = h->drain || (f->control.what.n == 5 && !memcmp(f->control.what.p, "drain", 5));
        control_frame(w, &f->control);
        break;
    default: /* idle; others are of no use here */
        break;
    }
}

/* What cannot be read counts as not there: the next poll asks for it again. */
static void frames(struct worker_link *w, struct heard *h, const struct link_event *ev)
{
    struct err e = {0};
    struct wire_frame f;
    const uint8_t *p = ev->p, *from = p;
    size_t n = ev->n;
    struct wire_arena *mem = wire_arena_new();
    h->bad = !mem;
    while (!h->bad && link_msg_next(&e, &f, mem, &p, &n)) {
        frame(w, h, &f, from, (size_t)(p - from));
        from = p;
        wire_arena_reset(mem);
    }
    h->bad = h->bad || e.code;
    wire_arena_free(mem);
}

static void join_answer(struct worker_link *w, const struct link_event *ev, uint64_t now_ns)
{
    struct heard h = {0};
    w->join = 0;
    if (ev->what == LINK_FAILED) {
        w->join_at_ns = now_ns + WORKER_BROKEN_MS * WORKER_MS;
        return;
    }
    frames(w, &h, ev);
    if (!h.refused) {
        joined(w, now_ns);
        return;
    }
    w->state = WORKER_REFUSED;
    w->why = h.why;
    w->join_at_ns = now_ns + WORKER_REFUSED_MS * WORKER_MS;
}

/* Join again: at once, but not in a circle with a scheduler that takes joins and then knows nothing. */
static void unknown(struct worker_link *w, uint64_t now_ns)
{
    uint64_t next = w->joined_ns + WORKER_AGAIN_MS * WORKER_MS;
    forget(w, WORKER_JOINING);
    w->join_at_ns = next > now_ns ? next : now_ns;
}

static void ctl_answer(struct worker_link *w, const struct link_event *ev, uint64_t now_ns)
{
    struct heard h = {0};
    w->ctl = 0;
    if (ev->what == LINK_FAILED) {
        w->ctl_at_ns = now_ns + WORKER_BROKEN_MS * WORKER_MS;
        return;
    }
    frames(w, &h, ev);
    w->ctl_at_ns = now_ns + (h.bad ? WORKER_AGAIN_MS * WORKER_MS : 0);
    if (h.refused) {
        unknown(w, now_ns);
        return;
    }
    heard_of(w, now_ns);
    if (w->ctl_first && w->draining && !h.drain && !w->drain) { /* this scheduler wants no drain */
        w->draining = false;
        order_tell(w, TOLD_RESUME, 0, (struct wire_str){0});
    }
    w->ctl_first = false;
}

static void work_answer(struct worker_link *w, uint32_t i, const struct link_event *ev, uint64_t now_ns)
{
    struct heard h = {0};
    struct work q = w->work[i];
    w->n_work--;
    memmove(&w->work[i], &w->work[i + 1], (w->n_work - i) * sizeof *w->work);
    if (ev->what == LINK_FAILED) {
        report_back(w, q.id);
        w->work_at_ns = now_ns + WORKER_BROKEN_MS * WORKER_MS;
        return;
    }
    frames(w, &h, ev);
    w->work_at_ns = now_ns + (h.bad ? WORKER_AGAIN_MS * WORKER_MS : 0);
    if (h.refused) {
        unknown(w, now_ns);
        return;
    }
    report_done(w, q.id);
    heard_of(w, now_ns);
    if (q.drain && !h.orders && !w->draining) { /* it has heard the wish, nothing is on its way */
        w->draining = true;
        order_tell(w, TOLD_DRAIN, 0, (struct wire_str){0});
    }
}

void sched_link_event(struct worker_link *w, const struct link_event *ev, uint64_t now_ns)
{
    uint64_t id = (uint64_t)(uintptr_t)ev->arg;
    if (ev->what == LINK_UP || ev->what == LINK_DOWN) {
        if (ev->what == LINK_UP)
            w->join_at_ns = w->work_at_ns = w->ctl_at_ns = now_ns;
    } else if (ev->what != LINK_ANSWER && ev->what != LINK_FAILED) {
        return;
    } else if (id == w->join) {
        join_answer(w, ev, now_ns);
    } else if (id == w->ctl) {
        ctl_answer(w, ev, now_ns);
    } else {
        for (uint32_t i = 0; i < w->n_work; i++)
            if (id == w->work[i].id) {
                work_answer(w, i, ev, now_ns);
                return;
            }
    }
}

/*
 * A scheduler that was slow itself, and took this worker for silent, waits for a word of it as this worker waits for an
 * answer. One that is stopped gets no more than one poll of each kind.
 */
static void break_silence(struct worker_link *w, uint64_t now_ns)
{
    const struct work *q = newest(w);
    if (w->quiet || !w->ctl || !q || now_ns < w->heard_ns + WORKER_QUIET_MS * WORKER_MS)
        return;
    w->quiet = true;
    ask_ctl(w, now_ns);
    if (w->n_work < WORKER_OPEN)
        ask_work(w, now_ns);
}

void sched_link_pump(struct worker_link *w, uint64_t now_ns)
{
    if (!link_dialer_up(w->dialer))
        return;
    if (w->state != WORKER_JOINED) {
        if (!w->join && now_ns >= w->join_at_ns)
            ask_join(w, now_ns);
        return;
    }
    if (!w->ctl && now_ns >= w->ctl_at_ns)
        ask_ctl(w, now_ns);
    if (work_is_due(w, now_ns))
        ask_work(w, now_ns);
    break_silence(w, now_ns);
}

static uint64_t sooner(uint64_t a, uint64_t b, uint64_t now_ns)
{
    b = b > now_ns ? b : now_ns;
    return a < b ? a : b;
}

/* When something is due by time alone. */
uint64_t sched_link_next_ns(const struct worker_link *w, uint64_t now_ns)
{
    uint64_t next = now_ns + 1000 * WORKER_MS;
    if (!link_dialer_up(w->dialer))
        return next;
    if (w->state != WORKER_JOINED)
        return w->join ? next : sooner(next, w->join_at_ns, now_ns);
    if (!w->ctl)
        next = sooner(next, w->ctl_at_ns, now_ns);
    if (!newest(w) && w->n_work < WORKER_OPEN)
        next = sooner(next, w->work_at_ns, now_ns);
    return next;
}
