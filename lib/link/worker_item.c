/* Work items and controls that the scheduler sends, and the events that the caller takes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/kv_block.h"
#include "link/worker_impl.h"

static struct work_item *item_find(const struct worker_link *w, uint64_t id)
{
    list_each (struct work_item, item, &w->items, node)
        if (item->f.order == id)
            return item;
    return NULL;
}

static struct work_item *item_of(const struct wire_order *f)
{
    return list_entry((uintptr_t)f, struct work_item, f);
}

/* Only the caller's own thread closes an item that it has taken, so reading `closed` needs no lock. */
struct work_item *item_open(struct err *e, const struct wire_order *f)
{
    struct work_item *item = item_of(f);
    if (!item->closed)
        return item;
    err_set(e, ERR_NO, "work item %llu is closed", (unsigned long long)f->order);
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

static void item_event(struct worker_link *w, struct work_item *item, enum worker_event_type type)
{
    if (!item->events)
        list_push_back(&w->item_events, &item->event_node);
    item->events |= 1u << type;
    wake_caller(w);
}

void item_closed(struct work_item *item)
{
    item->closed = true;
    item->events &= 1u << WORKER_EV_ASSIGNED; /* the caller must still take and release it */
    if (!item->events)
        list_remove(&item->event_node);
}

void set_draining(struct worker_link *w, bool on)
{
    if (w->draining == on)
        return;
    w->draining = on;
    w->events |= 1u << (on ? WORKER_EV_DRAIN : WORKER_EV_RESUME);
    wake_caller(w);
}

static bool take_item_event(struct worker_link *w, struct worker_event *ev)
{
    if (list_empty(&w->item_events))
        return false;
    struct work_item *item = list_entry(w->item_events.next, struct work_item, event_node);
    enum worker_event_type type = WORKER_EV_ASSIGNED;
    while (!(item->events & 1u << type))
        type++;
    bool assigned = type == WORKER_EV_ASSIGNED;
    *ev = (struct worker_event){type, item->f.order, assigned ? &item->f : NULL};
    w->n_taken += assigned && item->n_join == w->n_join;
    item->events &= ~(1u << type);
    if (!item->events)
        list_remove(&item->event_node);
    return true;
}

/* Follows the events of all items, because no item may follow a drain. If drain and resume are both queued, the current
 * state is the last one. */
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
    bool any = take_item_event(w, ev) || take_drain_event(w, ev);
    if (list_empty(&w->item_events) && !w->events) {
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
    struct work_item *item = item_of(f);
    wire_arena_free(item->mem);
    free(item->bytes);
    item_unref(item);
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

/* ---- work items ---- */

/* Adds an item; copy_frame must copy what f borrows. */
static struct work_item *item_new(struct worker_link *w, const struct wire_order *f)
{
    struct work_item *item = calloc(1, sizeof *item);
    if (!item)
        return NULL;
    list_init(&item->event_node);
    atomic_init(&item->n_ref, 1);
    item->n_join = w->n_join;
    item->f = *f;
    item->n_out = f->n_out;
    str_to(item->gw, sizeof item->gw, f->gw);
    str_to(item->phase, sizeof item->phase, f->phase);
    list_push_back(&w->items, &item->node);
    w->n_item++;
    return item;
}

static int copy_frame(struct err *e, struct work_item *item, const struct session_event *ev)
{
    struct wire_frame f;
    item->bytes = malloc(ev->n);
    item->mem = wire_arena_new();
    if (!item->bytes || !item->mem)
        return err_nomem(e, "a work item", ev->n);
    memcpy(item->bytes, ev->p, ev->n);
    int rc =
        session_frame(e, &f, item->mem, &(struct session_event){.type = SESSION_FRAME, .p = item->bytes, .n = ev->n});
    if (!rc)
        item->f = f.order;
    return rc;
}

/* Reports an item that this worker cannot start as failed, without an event for the caller. */
static void item_refused(struct worker_link *w, struct work_item *item, const struct err *reason)
{
    struct err e;
    struct wire_report r = {
        .what = wire_str_of("failed"), .code = (uint32_t)reason->code, .text = wire_str_of(reason->text)};
    wire_arena_free(item->mem);
    free(item->bytes);
    w->n_taken++;
    if (report_add(&e, w, item, &r)) {
        item_remove(w, item);
        session_close(w->sched, e.text);
    }
}

/* After a failure to add an item, the session is closed: the next join lacks the item, so the scheduler assigns it
 * again. */
void item_frame(struct worker_link *w, const struct wire_order *f, const struct session_event *ev)
{
    struct err e;
    char url[WIRE_URL_BYTES_MAX + 1];
    struct work_item *item = item_find(w, f->order) ? NULL : item_new(w, f);
    if (!item) {
        session_close(w->sched, "a work item with the id of a running one, or out of memory");
        return;
    }
    str_to(url, sizeof url, f->reply);
    int rc = copy_frame(&e, item, ev);
    rc = rc ? rc : outlet_get(&e, &item->outlet, w, url);
    if (rc) {
        item_refused(w, item, &e);
        return;
    }
    item->outlet->n_item++;
    atomic_fetch_add(&item->n_ref, 1);
    item_event(w, item, WORKER_EV_ASSIGNED);
}

void item_unref(struct work_item *item)
{
    if (atomic_fetch_sub(&item->n_ref, 1) == 1)
        free(item);
}

void item_remove(struct worker_link *w, struct work_item *item)
{
    list_remove(&item->node);
    w->n_item--;
    if (item->outlet)
        item->outlet->n_item--;
    item_unref(item);
}

/* Unsent tokens of a cancelled item are dropped, and its reports do not wait for acknowledgements. */
static void item_cancel(struct worker_link *w, struct work_item *item)
{
    if (item->cancelled)
        return;
    item->cancelled = true;
    if (item->outlet)
        item->outlet->sweep = true;
    if (!item->closed)
        item_event(w, item, WORKER_EV_CANCEL);
}

void item_fail(struct worker_link *w, struct work_item *item, int code, const char *text)
{
    if (item->cancelled)
        return;
    item->fail_code = code;
    item->fail_text = text;
    item_cancel(w, item);
}

/* Cancels items whose lease has expired: the scheduler may have assigned them to another worker. */
void item_leases(struct worker_link *w, uint64_t now_ns)
{
    if (w->state == WORKER_JOINED)
        return;
    list_each (struct work_item, item, &w->items, node)
        if (!item->closed && item->f.lease_ns && now_ns > w->lost_ns && now_ns - w->lost_ns >= item->f.lease_ns)
            item_cancel(w, item);
}

int message_new(struct err *e, struct message **out, struct work_item *item, const struct wire_frame *f)
{
    uint8_t *bytes = NULL;
    size_t n = 0, cap = 0;
    int rc = wire_encode_add(e, &bytes, &n, &cap, f);
    struct message *m = rc ? NULL : malloc(sizeof *m + n);
    if (m) {
        *m = (struct message){.item = item, .n = n};
        memcpy(m->p, bytes, n);
    }
    free(bytes);
    *out = m;
    return rc || m ? rc : err_nomem(e, "a frame", n);
}

/* ---- controls ---- */

static void preempt(struct worker_link *w, struct work_item *item)
{
    if (item->preempted || item->cancelled || item->closed)
        return;
    item->preempted = true;
    item_event(w, item, WORKER_EV_PREEMPT);
}

/* A control of an unknown item is late and ignored: the scheduler has already acknowledged the item's closing report.
 */
void control_frame(struct worker_link *w, const struct wire_control *f)
{
    struct work_item *item = item_find(w, f->order);
    if (str_is(f->what, "cancel") && item) {
        item_cancel(w, item);
    } else if (str_is(f->what, "preempt") && item) {
        preempt(w, item);
    } else if (str_is(f->what, "drain") || str_is(f->what, "resume")) {
        w->drain_received = str_is(f->what, "drain");
        set_draining(w, w->drain_received);
    } else if (str_is(f->what, "role")) {
        str_to(w->role, sizeof w->role, f->role); /* for the next join */
    }
}
