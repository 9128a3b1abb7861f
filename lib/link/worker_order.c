/* Orders and controls that are received, and the events that the caller gets of them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/kv_block.h"
#include "link/worker_impl.h"

static struct order **bucket(const struct worker_link *w, uint64_t id)
{
    return (struct order **)(uintptr_t)&w->order[(id * 0x9e3779b97f4a7c15u) >> 54];
}

struct order *order_find(const struct worker_link *w, uint64_t id)
{
    struct order *o = *bucket(w, id);
    while (o && o->id != id)
        o = o->next;
    return o;
}

struct order *order_open(struct err *e, const struct worker_link *w, uint64_t id)
{
    struct order *o = order_find(w, id);
    if (o && !o->closed)
        return o;
    err_set(e, ERR_NO, "order %llu is not open", (unsigned long long)id);
    return NULL;
}

static bool str_is(struct wire_str s, const char *what)
{
    size_t n = strlen(what);
    return s.n == n && !memcmp(s.p, what, n);
}

static void str_to(char *out, size_t size, struct wire_str s)
{
    size_t n = s.n < size ? s.n : size - 1;
    if (n)
        memcpy(out, s.p, n);
    out[n] = 0;
}

/* ---- events ---- */

static void put_told(struct worker_link *w, struct told *t)
{
    list_push_back(&w->told, &t->node);
    uint64_t one = 1;
    (void)!write(w->fd, &one, sizeof one);
}

void order_tell(struct worker_link *w, enum worker_told_what what, uint64_t order, struct wire_str role)
{
    struct told *t = calloc(1, sizeof *t);
    if (!t) /* a cancel that is lost costs work, no more: its tokens and reports are dropped */
        return;
    t->pub.what = what;
    t->pub.order = order;
    str_to(t->pub.role, sizeof t->pub.role, role);
    put_told(w, t);
}

void worker_told_free(struct worker_told *p)
{
    if (!p || p->what != TOLD_ORDER) {
        free(p); /* the first member of its struct told */
        return;
    }
    struct order *o = (struct order *)p; /* the first member of its struct order */
    wire_arena_free(o->mem);
    free(o->bytes);
    order_unref(o);
}

struct worker_told *worker_link_take(struct worker_link *w)
{
    pthread_mutex_lock(&w->lock);
    struct list *n = list_pop_front(&w->told);
    struct told *t = n ? list_entry(n, struct told, node) : NULL;
    if (t)
        w->n_taken += t->pub.what == TOLD_ORDER && ((struct order *)t)->n_join == w->n_join;
    if (list_empty(&w->told)) {
        uint64_t count;
        (void)!read(w->fd, &count, sizeof count);
    }
    pthread_mutex_unlock(&w->lock);
    return t ? &t->pub : NULL;
}

void worker_link_room(struct worker_link *w, const struct worker_room *r)
{
    pthread_mutex_lock(&w->lock);
    w->room = *r;
    w->n_counted = w->n_taken;
    pthread_mutex_unlock(&w->lock);
    session_hub_wake(w->hub);
}

/* ---- orders ---- */

/* Into the table; the frame's memory is not copied yet. */
static struct order *order_new(struct worker_link *w, const struct wire_order *f)
{
    struct order *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    atomic_init(&o->n_ref, 1);
    o->n_join = w->n_join;
    o->id = f->order;
    o->job = f->job;
    o->lease_ns = f->lease_ns;
    o->attempt = f->attempt;
    o->n_prompt = f->n_prompt;
    o->max_tokens = f->max_tokens;
    o->n_out = f->n_out;
    str_to(o->gw, sizeof o->gw, f->gw);
    str_to(o->phase, sizeof o->phase, f->phase);
    o->next = *bucket(w, o->id);
    *bucket(w, o->id) = o;
    w->n_order++;
    return o;
}

static int copy_frame(struct err *e, struct order *o, const struct session_event *ev)
{
    o->bytes = malloc(ev->n);
    o->mem = wire_arena_new();
    if (!o->bytes || !o->mem)
        return err_nomem(e, "an order", ev->n);
    memcpy(o->bytes, ev->p, ev->n);
    return session_frame(e, &o->f, o->mem, &(struct session_event){.type = SESSION_FRAME, .p = o->bytes, .n = ev->n});
}

/* An order that this worker cannot begin is closed by its report, and no event of it is due. */
static void order_refused(struct worker_link *w, struct order *o, const struct err *why)
{
    struct err e;
    struct wire_report r = {.what = wire_str_of("failed"), .code = (uint32_t)why->code, .text = wire_str_of(why->text)};
    wire_arena_free(o->mem);
    free(o->bytes);
    w->n_taken++;
    if (report_add(&e, w, o, &r)) {
        order_gone(w, o);
        session_close(w->sched, e.text);
    }
}

/* An order that is not in the table when the session breaks is missing in the next join: the scheduler places it
 * again. */
void order_frame(struct worker_link *w, const struct wire_order *f, const struct session_event *ev)
{
    struct err e;
    char url[WIRE_URL_BYTES_MAX + 1];
    struct order *o = order_find(w, f->order) ? NULL : order_new(w, f);
    if (!o) {
        session_close(w->sched, "an order that runs already, or no memory for it");
        return;
    }
    str_to(url, sizeof url, f->reply);
    int rc = copy_frame(&e, o, ev);
    rc = rc ? rc : outlet_get(&e, &o->outlet, w, url);
    if (rc) {
        order_refused(w, o, &e);
        return;
    }
    o->outlet->n_order++;
    o->told.pub = (struct worker_told){.what = TOLD_ORDER, .order = o->id, .o = &o->f.order};
    atomic_fetch_add(&o->n_ref, 1);
    put_told(w, &o->told);
}

void order_unref(struct order *o)
{
    if (atomic_fetch_sub(&o->n_ref, 1) == 1)
        free(o);
}

void order_gone(struct worker_link *w, struct order *o)
{
    struct order **at = bucket(w, o->id);
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    w->n_order--;
    if (o->outlet)
        o->outlet->n_order--;
    order_unref(o);
}

/* Its tokens need not arrive any more, nor do its reports wait for them. */
static void order_cancel(struct worker_link *w, struct order *o)
{
    if (o->cancelled)
        return;
    o->cancelled = true;
    if (o->outlet)
        o->outlet->sweep = true;
    if (!o->closed)
        order_tell(w, TOLD_CANCEL, o->id, (struct wire_str){0});
}

void order_fail(struct worker_link *w, struct order *o, int code, const char *text)
{
    if (o->cancelled)
        return;
    o->fail_code = code;
    o->fail_text = text;
    order_cancel(w, o);
}

/* Nobody renews what it runs: it belongs to others by now. */
void order_leases(struct worker_link *w, uint64_t now_ns)
{
    if (w->state == WORKER_JOINED)
        return;
    for (uint32_t i = 0; i < WORKER_BUCKETS && w->n_order; i++)
        for (struct order *o = w->order[i]; o; o = o->next)
            if (!o->closed && o->lease_ns && now_ns > w->lost_ns && now_ns - w->lost_ns >= o->lease_ns)
                order_cancel(w, o);
}

int message_new(struct err *e, struct message **out, struct order *o, const struct wire_frame *f)
{
    uint8_t *bytes = NULL;
    size_t n = 0, cap = 0;
    int rc = wire_encode_add(e, &bytes, &n, &cap, f);
    struct message *m = rc ? NULL : malloc(sizeof *m + n);
    if (m) {
        *m = (struct message){.order = o, .n = n};
        memcpy(m->p, bytes, n);
    }
    free(bytes);
    *out = m;
    return rc || m ? rc : err_nomem(e, "a frame", n);
}

/* ---- controls ---- */

static void preempt(struct worker_link *w, struct order *o)
{
    if (o->preempted || o->cancelled || o->closed)
        return;
    o->preempted = true;
    order_tell(w, TOLD_PREEMPT, o->id, (struct wire_str){0});
}

static void set_draining(struct worker_link *w, bool on)
{
    w->drain_received = on;
    if (w->draining == on)
        return;
    w->draining = on;
    order_tell(w, on ? TOLD_DRAIN : TOLD_RESUME, 0, (struct wire_str){0});
}

/* A control of an order that is not in the table comes late: the report that closed the order has been acknowledged or
 * is on its way. */
void control_frame(struct worker_link *w, const struct wire_control *f)
{
    struct order *o = order_find(w, f->order);
    if (str_is(f->what, "cancel") && o) {
        order_cancel(w, o);
    } else if (str_is(f->what, "preempt") && o) {
        preempt(w, o);
    } else if (str_is(f->what, "drain") || str_is(f->what, "resume")) {
        set_draining(w, str_is(f->what, "drain"));
    } else if (str_is(f->what, "role") && !str_is(f->role, w->role)) {
        str_to(w->role, sizeof w->role, f->role);
        order_tell(w, TOLD_ROLE, 0, f->role);
    }
}
