/* Reports: held back until the gateway has acknowledged what they speak of, kept until the scheduler has. */
#include <stdlib.h>
#include <string.h>

#include "link/worker_impl.h"

static const char *const words[] = {"progress", "prefilled", "tokens", "ended", "failed", "preempted", "cancelled"};
enum { N_WORDS = sizeof words / sizeof *words, PROGRESS = 0, PREFILLED, TOKENS, ENDED, FAILED, PREEMPTED, CANCELLED };

static int word_of(struct wire_str s)
{
    for (int i = 0; i < N_WORDS; i++)
        if (s.n == strlen(words[i]) && !memcmp(s.p, words[i], s.n))
            return i;
    return -1;
}

/*
 * Of a cancelled order perhaps not all tokens have arrived: then it was cancelled, whatever its worker reports, and no
 * more of its answer is reported than the gateway has. The handle stays: nobody will come for it, and the scheduler
 * releases it.
 */
static void cut_short(struct wire_report *f, const struct order *o, bool closes)
{
    uint32_t more = f->n_out > o->n_out ? f->n_out - o->n_out : 0;
    f->n_out -= more;
    f->n_out_id = f->n_out_id > more ? f->n_out_id - more : 0;
    if (!closes)
        return;
    f->what = wire_str_of(words[o->fail_code ? FAILED : CANCELLED]);
    f->code = (uint32_t)o->fail_code;
    f->text = wire_str_of(o->fail_text);
    f->reason = 0;
}

static int send_report(struct worker_link *w, const struct message *m)
{
    struct err e;
    struct wire_frame f;
    if (m->order->n_acked >= m->need)
        return session_send_bytes(&e, w->sched, m->p, m->n);
    wire_arena_reset(w->mem);
    int rc = session_frame(&e, &f, w->mem, &(struct session_event){.type = SESSION_FRAME, .p = m->p, .n = m->n});
    if (!rc)
        cut_short(&f.report, m->order, m->closes);
    return rc ? rc : session_send(&e, w->sched, &f);
}

static void remove_report(struct message *m)
{
    list_remove(&m->node);
    free(m);
}

/* Of progress only the newest counts. */
static void drop_older(struct worker_link *w, const struct order *o)
{
    list_for_each (n, &w->reports) {
        struct message *m = list_entry(n, struct message, node);
        if (m->order == o && !m->number && m->progress) {
            remove_report(m);
            return;
        }
    }
}

int report_add(struct err *e, struct worker_link *w, struct order *o, const struct wire_report *r)
{
    int word = word_of(r->what);
    struct message *m;
    if (word < 0)
        return err_set(e, ERR_USAGE, "'%.*s' is no report", (int)r->what.n, r->what.p);
    struct wire_frame f = {.kind = WIRE_REPORT, .report = *r};
    f.report.worker = wire_str_of(w->o.name);
    f.report.inc = w->inc;
    f.report.gw = wire_str_of(o->gw);
    f.report.job = o->f.job;
    f.report.order = o->f.order;
    f.report.attempt = o->f.attempt;
    f.report.store = wire_str_of(word == PREFILLED ? w->o.store : NULL);
    f.report.extra = (struct wire_extra){0};
    int rc = message_new(e, &m, o, &f);
    if (rc)
        return rc;
    m->need = o->n_sent;
    m->progress = word == PROGRESS;
    m->closes = word >= ENDED || (word == PREFILLED && !strcmp(o->phase, "prefill"));
    if (m->progress)
        drop_older(w, o);
    if (m->closes)
        order_closed(o);
    list_push_back(&w->reports, &m->node);
    return 0;
}

/* Reports of one order stay in order: the needs of later ones are not smaller. When the window is full the rest
 * continues as the scheduler acknowledges. */
void report_pump(struct worker_link *w)
{
    list_for_each (n, &w->reports) {
        struct message *m = list_entry(n, struct message, node);
        if (m->number || (!m->order->cancelled && m->order->n_acked < m->need))
            continue;
        if (send_report(w, m))
            return;
        m->number = session_sent(w->sched);
    }
}

void report_acked(struct worker_link *w, uint64_t acked)
{
    list_for_each_safe (n, &w->reports) {
        struct message *m = list_entry(n, struct message, node);
        if (!m->number || m->number > acked)
            continue;
        if (m->closes)
            order_gone(w, m->order);
        remove_report(m);
    }
}

void report_down(struct worker_link *w)
{
    list_for_each (n, &w->reports)
        list_entry(n, struct message, node)->number = 0;
}

int worker_link_report(struct err *e, struct worker_link *w, const struct wire_order *order,
                       const struct wire_report *r)
{
    pthread_mutex_lock(&w->lock);
    struct order *o = order_open(e, order);
    int rc = o ? report_add(e, w, o, r) : e->code;
    pthread_mutex_unlock(&w->lock);
    if (!rc)
        session_hub_wake(w->hub);
    return rc;
}
