/* Orders and controls that are received, and the events that the caller gets of them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/kv_block.h"
#include "link/worker_impl.h"

static struct order *order_find(const struct worker_link *w, uint64_t id)
{
    list_each (struct order, o, &w->orders, node)
        if (o->f.order == id)
            return o;
    return NULL;
}

static struct order *order_of(const struct wire_order *f)
{
    return list_entry((uintptr_t)f, struct order, f);
}

/* Only the caller closes an order that it has, so that no lock is needed. */
struct order *order_open(struct err *e, const struct wire_order *f)
{
    struct order *o = order_of(f);
    if (!o->closed)
        return o;
    err_set(e, ERR_NO, "order %llu is closed", (unsigned long long)f->order);
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

static void wake_caller(const struct worker_link *w)
{
    uint64_t one = 1;
    (void)!write(w->fd, &one, sizeof one);
}

static void order_event(struct worker_link *w, struct order *o, enum worker_event_type type)
{
    if (!o->events)
        list_push_back(&w->order_events, &o->event_node);
    o->events |= 1u << type;
    wake_caller(w);
}

void order_closed(struct order *o)
{
    o->closed = true;
    o->events &= 1u << WORKER_EV_ASSIGNED; /* which the caller has to release */
    if (!o->events)
        list_remove(&o->event_node);
}

void set_draining(struct worker_link *w, bool on)
{
    if (w->draining == on)
        return;
    w->draining = on;
    w->events |= 1u << (on ? WORKER_EV_DRAIN : WORKER_EV_RESUME);
    wake_caller(w);
}

static bool take_order_event(struct worker_link *w, struct worker_event *ev)
{
    if (list_empty(&w->order_events))
        return false;
    struct order *o = list_entry(w->order_events.next, struct order, event_node);
    enum worker_event_type type = WORKER_EV_ASSIGNED;
    while (!(o->events & 1u << type))
        type++;
    bool assigned = type == WORKER_EV_ASSIGNED;
    *ev = (struct worker_event){type, o->f.order, assigned ? &o->f : NULL};
    w->n_taken += assigned && o->n_join == w->n_join;
    o->events &= ~(1u << type);
    if (!o->events)
        list_remove(&o->event_node);
    return true;
}

/* After those of all orders, since no order follows a drain. If both are due, the present state is the last one. */
static bool take_drain_event(struct worker_link *w, struct worker_event *ev)
{
    enum worker_event_type now = w->draining ? WORKER_EV_DRAIN : WORKER_EV_RESUME;
    if (!w->events)
        return false;
    *ev = (struct worker_event){.type = w->events == 1u << now ? now : WORKER_EV_DRAIN + WORKER_EV_RESUME - now};
    w->events &= ~(1u << ev->type);
    return true;
}

bool worker_link_take(struct worker_link *w, struct worker_event *ev)
{
    pthread_mutex_lock(&w->lock);
    bool any = take_order_event(w, ev) || take_drain_event(w, ev);
    if (list_empty(&w->order_events) && !w->events) {
        uint64_t count;
        (void)!read(w->fd, &count, sizeof count);
    }
    pthread_mutex_unlock(&w->lock);
    return any;
}

void worker_order_release(const struct wire_order *f)
{
    if (!f)
        return;
    struct order *o = order_of(f);
    wire_arena_free(o->mem);
    free(o->bytes);
    order_unref(o);
}

void worker_link_capacity(struct worker_link *w, const struct wire_capacity *c)
{
    pthread_mutex_lock(&w->lock);
    w->now = *c;
    if (c->steps)
        memcpy(w->steps, c->steps, sizeof w->steps);
    w->n_counted = w->n_taken;
    pthread_mutex_unlock(&w->lock);
    session_hub_wake(w->hub);
}

/* ---- orders ---- */

/* In the list; what the frame borrows is not copied yet. */
static struct order *order_new(struct worker_link *w, const struct wire_order *f)
{
    struct order *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    list_init(&o->event_node);
    atomic_init(&o->n_ref, 1);
    o->n_join = w->n_join;
    o->f = *f;
    o->n_out = f->n_out;
    str_to(o->gw, sizeof o->gw, f->gw);
    str_to(o->phase, sizeof o->phase, f->phase);
    list_push_back(&w->orders, &o->node);
    w->n_order++;
    return o;
}

static int copy_frame(struct err *e, struct order *o, const struct session_event *ev)
{
    struct wire_frame f;
    o->bytes = malloc(ev->n);
    o->mem = wire_arena_new();
    if (!o->bytes || !o->mem)
        return err_nomem(e, "an order", ev->n);
    memcpy(o->bytes, ev->p, ev->n);
    int rc = session_frame(e, &f, o->mem, &(struct session_event){.type = SESSION_FRAME, .p = o->bytes, .n = ev->n});
    if (!rc)
        o->f = f.order;
    return rc;
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

/* An order that is not in the list when the session breaks is missing in the next join: the scheduler places it
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
    atomic_fetch_add(&o->n_ref, 1);
    order_event(w, o, WORKER_EV_ASSIGNED);
}

void order_unref(struct order *o)
{
    if (atomic_fetch_sub(&o->n_ref, 1) == 1)
        free(o);
}

void order_gone(struct worker_link *w, struct order *o)
{
    list_remove(&o->node);
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
        order_event(w, o, WORKER_EV_CANCEL);
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
    list_each (struct order, o, &w->orders, node)
        if (!o->closed && o->f.lease_ns && now_ns > w->lost_ns && now_ns - w->lost_ns >= o->f.lease_ns)
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
    order_event(w, o, WORKER_EV_PREEMPT);
}

/* A control of an order that is not in the list comes late: the report that closed the order has been acknowledged or
 * is on its way. */
void control_frame(struct worker_link *w, const struct wire_control *f)
{
    struct order *o = order_find(w, f->order);
    if (str_is(f->what, "cancel") && o) {
        order_cancel(w, o);
    } else if (str_is(f->what, "preempt") && o) {
        preempt(w, o);
    } else if (str_is(f->what, "drain") || str_is(f->what, "resume")) {
        w->drain_received = str_is(f->what, "drain");
        set_draining(w, w->drain_received);
    } else if (str_is(f->what, "role")) {
        str_to(w->role, sizeof w->role, f->role); /* for the next join */
    }
}
