/* Reports to the scheduler: each waits until the gateway has acknowledged the tokens that it counts, and is kept until
 * the scheduler has acknowledged it. */
#include <stdlib.h>
#include <string.h>

#include "link/worker_impl.h"

/* Values of wire_report.what; from ENDED on they close the item. */
static const char *const types[] = {"progress", "prefilled", "tokens", "ended", "failed", "preempted", "cancelled"};
enum { N_TYPES = sizeof types / sizeof *types, PROGRESS = 0, PREFILLED, TOKENS, ENDED, FAILED, PREEMPTED, CANCELLED };

static int type_of(struct wire_str s)
{
    for (int i = 0; i < N_TYPES; i++)
        if (s.n == strlen(types[i]) && !memcmp(s.p, types[i], s.n))
            return i;
    return -1;
}

/*
 * Tokens of a cancelled item may be missing at the gateway. Then its closing report becomes `cancelled` or `failed`,
 * whatever the worker reported, and its count is limited to the tokens that the gateway has acknowledged. The transfer
 * handle stays in the report, so that the scheduler releases it.
 */
static void cut_short(struct wire_report *f, const struct work_item *item, bool closes)
{
    uint32_t more = f->n_out > item->n_out ? f->n_out - item->n_out : 0;
    f->n_out -= more;
    f->n_out_id = f->n_out_id > more ? f->n_out_id - more : 0;
    if (!closes)
        return;
    f->what = wire_str_of(types[item->fail_code ? FAILED : CANCELLED]);
    f->code = (uint32_t)item->fail_code;
    f->text = wire_str_of(item->fail_text);
    f->reason = 0;
}

static int send_report(struct worker_link *w, const struct message *m)
{
    struct err e;
    struct wire_frame f;
    if (m->item->n_acked >= m->need)
        return session_send_bytes(&e, w->sched, m->p, m->n);
    wire_arena_reset(w->mem);
    int rc = session_frame(&e, &f, w->mem, &(struct session_event){.type = SESSION_FRAME, .p = m->p, .n = m->n});
    if (!rc)
        cut_short(&f.report, m->item, m->closes);
    return rc ? rc : session_send(&e, w->sched, &f);
}

static void remove_report(struct message *m)
{
    list_remove(&m->node);
    free(m);
}

/* A new progress report replaces an unsent one. */
static void drop_older(struct worker_link *w, const struct work_item *item)
{
    list_for_each (n, &w->reports) {
        struct message *m = list_entry(n, struct message, node);
        if (m->item == item && !m->number && m->progress) {
            remove_report(m);
            return;
        }
    }
}

int report_add(struct err *e, struct worker_link *w, struct work_item *item, const struct wire_report *r)
{
    int type = type_of(r->what);
    struct message *m;
    if (type < 0)
        return err_set(e, ERR_USAGE, "'%.*s' is not a type of report", (int)r->what.n, r->what.p);
    struct wire_frame f = {.kind = WIRE_REPORT, .report = *r};
    f.report.worker = wire_str_of(w->o.name);
    f.report.inc = w->inc;
    f.report.gw = wire_str_of(item->gw);
    f.report.job = item->f.job;
    f.report.order = item->f.order;
    f.report.attempt = item->f.attempt;
    f.report.store = wire_str_of(type == PREFILLED ? w->o.store : NULL);
    f.report.extra = (struct wire_extra){0};
    int rc = message_new(e, &m, item, &f);
    if (rc)
        return rc;
    m->need = item->n_sent;
    m->progress = type == PROGRESS;
    m->closes = type >= ENDED || (type == PREFILLED && !strcmp(item->phase, "prefill"));
    if (m->progress)
        drop_older(w, item);
    if (m->closes)
        item_closed(item);
    list_push_back(&w->reports, &m->node);
    return 0;
}

/* Reports of one item are sent in order, because `need` never decreases. When the window is full, the scheduler's next
 * acknowledgement continues. */
void report_pump(struct worker_link *w)
{
    list_for_each (n, &w->reports) {
        struct message *m = list_entry(n, struct message, node);
        if (m->number || (!m->item->cancelled && m->item->n_acked < m->need))
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
            item_remove(w, m->item);
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
    struct work_item *item = item_open(e, order);
    int rc = item ? report_add(e, w, item, r) : e->code;
    pthread_mutex_unlock(&w->lock);
    if (!rc)
        session_hub_wake(w->hub);
    return rc;
}
