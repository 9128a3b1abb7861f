/* Reports: kept until the scheduler has taken them, held back until the gateway has what they speak of. */
#include "link/worker_impl.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES (4u << 20) /* of reports in one message */

static const char *const words[] = {"progress", "prefilled", "tokens", "ended", "failed", "preempted", "cancelled"};
enum { N_WORDS = sizeof words / sizeof *words, PROGRESS = 0, PREFILLED = 1, TOKENS = 2, ENDED = 3, CANCELLED = 6 };

static int word_of(struct wire_str s)
{
    for (int i = 0; i < N_WORDS; i++)
        if (s.n == strlen(words[i]) && !memcmp(s.p, words[i], s.n))
            return i;
    return -1;
}

static void *keep(uint8_t **at, const void *p, size_t n)
{
    void *q = *at;
    if (n)
        memcpy(q, p, n);
    *at += n;
    return q;
}

int report_make(struct err *e, struct report **out, const struct wire_report *r)
{
    int word = word_of(r->what);
    if (word < 0)
        return err_set(e, ERR_USAGE, "'%.*s' is no report", (int)r->what.n, r->what.p);
    size_t n_ids = (size_t)r->n_out_id * sizeof *r->out, n = n_ids + r->handle.n + r->text.n;
    struct report *q = calloc(1, sizeof *q + n);
    if (!q)
        return err_nomem(e, "a report", sizeof *q + n);
    uint8_t *at = q->data;
    q->f = *r;
    q->f.what = (struct wire_str){words[word], strlen(words[word])};
    q->f.out = keep(&at, r->out, n_ids);
    q->f.handle.p = keep(&at, r->handle.p, r->handle.n);
    q->f.text.p = keep(&at, r->text.p, r->text.n);
    q->f.worker = q->f.gw = q->f.store = (struct wire_str){0};
    q->f.extra = (struct wire_extra){0};
    *out = q;
    return 0;
}

static void unlink_report(struct worker_link *w, struct report **at)
{
    struct report *r = *at;
    *at = r->next;
    if (w->reports_end == &r->next)
        w->reports_end = at;
    free(r);
}

/* Of progress only the newest counts. */
static void drop_older(struct worker_link *w, const struct report *r)
{
    int word = word_of(r->f.what);
    if (word != PROGRESS && word != TOKENS)
        return;
    for (struct report **at = &w->reports; *at; at = &(*at)->next)
        if ((*at)->order == r->order && !(*at)->message && word_of((*at)->f.what) == word) {
            unlink_report(w, at);
            return;
        }
}

void report_add(struct worker_link *w, struct report *r)
{
    if (r->order)
        drop_older(w, r);
    r->next = NULL;
    *w->reports_end = r;
    w->reports_end = &r->next;
}

void report_orphan(struct worker_link *w, const char *what, struct wire_str gw, uint64_t job, uint64_t order,
                   uint32_t attempt, const struct err *why)
{
    struct err e;
    struct report *r;
    struct wire_report f = {.what = {what, strlen(what)}, .job = job, .order = order, .attempt = attempt};
    if (why) {
        f.code = (uint32_t)why->code;
        f.text = (struct wire_str){why->text, strlen(why->text)};
    }
    if (report_make(&e, &r, &f)) /* without memory the scheduler says it again after the next join */
        return;
    size_t n = gw.n < sizeof r->gw ? gw.n : sizeof r->gw - 1;
    if (n)
        memcpy(r->gw, gw.p, n);
    report_add(w, r);
}

static bool may_leave(const struct report *r)
{
    return !r->message && (!r->order || r->order->cancelled || r->order->n_confirmed >= r->need);
}

bool report_ready(const struct worker_link *w)
{
    for (const struct report *r = w->reports; r; r = r->next)
        if (may_leave(r))
            return true;
    return false;
}

/*
 * What leaves. Of a cancelled order not all tokens have arrived, perhaps: then it was cancelled, whatever its worker
 * thinks, and no more of its answer is told than the gateway has.
 */
static struct wire_report frame_of(const struct worker_link *w, const struct report *r)
{
    struct wire_report f = r->f;
    const struct order *o = r->order;
    f.worker = (struct wire_str){w->name, strlen(w->name)};
    f.inc = w->inc;
    f.gw = (struct wire_str){o ? o->gw : r->gw, strlen(o ? o->gw : r->gw)};
    if (word_of(f.what) == PREFILLED)
        f.store = (struct wire_str){w->store, strlen(w->store)};
    if (!o || o->n_confirmed >= r->need)
        return f;
    if (r->closes) {
        f.what = (struct wire_str){words[CANCELLED], strlen(words[CANCELLED])};
        f.code = 0; /* the handle stays: nobody will come for it, and the scheduler lets it go */
        f.reason = 0;
    }
    uint32_t more = f.n_out > o->n_out ? f.n_out - o->n_out : 0;
    f.n_out -= more;
    f.n_out_id = f.n_out_id > more ? f.n_out_id - more : 0;
    return f;
}

bool report_put(struct worker_link *w, struct link_msg *m, uint64_t message)
{
    bool some = false;
    for (struct report *r = w->reports; r && m->n < MESSAGE_BYTES; r = r->next) {
        struct err e;
        if (!may_leave(r))
            continue;
        struct wire_frame f = {.kind = WIRE_REPORT, .report = frame_of(w, r)};
        if (link_msg_add(&e, m, &f))
            break;
        r->message = message;
        some = true;
    }
    return some;
}

void report_done(struct worker_link *w, uint64_t message)
{
    for (struct report **at = &w->reports; *at;) {
        struct report *r = *at;
        if (!message || r->message != message) {
            at = &r->next;
            continue;
        }
        if (r->closes && r->order)
            order_gone(w, r->order);
        unlink_report(w, at);
    }
}

void report_back(struct worker_link *w, uint64_t message)
{
    for (struct report *r = w->reports; r; r = r->next)
        if (!message || r->message == message)
            r->message = 0;
}

int worker_link_report(struct err *e, struct worker_link *w, uint64_t order, const struct wire_report *r)
{
    struct report *q;
    int rc = report_make(e, &q, r);
    if (rc)
        return rc;
    pthread_mutex_lock(&w->lock);
    struct order *o = order_find(w, order);
    if (o && !o->closed) {
        int word = word_of(q->f.what);
        q->order = o;
        q->need = o->n_sent;
        q->f.order = o->id;
        q->f.job = o->job;
        q->f.attempt = o->attempt;
        q->closes = word >= ENDED || (word == PREFILLED && !strcmp(o->phase, "prefill"));
        o->closed = q->closes;
        struct wire_frame f = {.kind = WIRE_REPORT, .report = frame_of(w, q)};
        struct link_msg m = {0};
        rc = link_msg_add(e, &m, &f); /* one that cannot be written would wait for ever */
        link_msg_free(&m);
        if (rc)
            o->closed = false;
        else
            report_add(w, q);
    } else {
        rc = err_set(e, ERR_NO, "order %llu is not open", (unsigned long long)order);
    }
    pthread_mutex_unlock(&w->lock);
    if (rc) {
        free(q);
        return rc;
    }
    link_box_wake(w->box);
    return 0;
}
