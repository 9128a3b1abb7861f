/*
 * Send queues for gateways, one each. A frame stays in its queue until the gateway has acknowledged it. When the
 * session breaks, all frames in the queue are sent again over the next connection. While a gateway is disconnected, its
 * frames stay here until the scheduler cancels its items.
 */
#include <stdlib.h>
#include <string.h>

#include "link/worker_impl.h"

static void outlet_free(struct worker_link *w, struct outlet *t)
{
    list_remove(&t->node);
    w->n_outlet--;
    session_free(t->session);
    free(t);
}

/* Frees the outlets that were not used for at least `ns`. */
static void free_unused(struct worker_link *w, uint64_t now_ns, uint64_t ns)
{
    list_for_each_safe (n, &w->outlets) {
        struct outlet *t = list_entry(n, struct outlet, node);
        if (!t->n_item && !t->bytes && now_ns >= t->used_ns + ns)
            outlet_free(w, t);
    }
}

static int outlet_new(struct err *e, struct outlet **out, struct worker_link *w, const char *url)
{
    if (w->n_outlet >= WORKER_OUTLETS)
        free_unused(w, UINT64_MAX, 0);
    if (w->n_outlet >= WORKER_OUTLETS)
        return err_set(e, ERR_SYS, "the worker already has connections to %u gateways, its limit", WORKER_OUTLETS);
    struct outlet *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, "a gateway", sizeof *t);
    int rc = session_dial(e, &t->session, w->hub, url, "gateway", t);
    if (rc) {
        free(t);
        e->code = rc == ERR_USAGE ? ERR_NO : rc; /* the fault of this request alone */
        return err_prefix(e, "the address of the gateway (reply)");
    }
    list_init(&t->sent);
    list_init(&t->unsent);
    list_push_back(&w->outlets, &t->node);
    w->n_outlet++;
    *out = t;
    return 0;
}

int outlet_get(struct err *e, struct outlet **out, struct worker_link *w, const char *url)
{
    struct outlet *t = NULL;
    list_for_each (n, &w->outlets) {
        t = list_entry(n, struct outlet, node);
        if (!strcmp(session_url(t->session), url))
            break;
        t = NULL;
    }
    int rc = t ? 0 : outlet_new(e, &t, w, url);
    if (!rc)
        t->used_ns = time_now_ns();
    *out = t;
    return rc;
}

static void free_message(struct worker_link *w, struct outlet *t, struct message *m)
{
    list_remove(&m->node);
    t->bytes -= m->n;
    w->queued -= m->n;
    item_unref(m->item);
    free(m);
}

/* Drops unsent frames of cancelled items. */
static void sweep(struct worker_link *w, struct outlet *t)
{
    t->sweep = false;
    list_for_each_safe (n, &t->unsent) {
        struct message *m = list_entry(n, struct message, node);
        if (m->item->cancelled)
            free_message(w, t, m);
    }
}

static void acked(struct worker_link *w, struct outlet *t)
{
    list_for_each_safe (n, &t->sent) {
        struct message *m = list_entry(n, struct message, node);
        struct work_item *item = m->item;
        if (m->number > session_acked(t->session))
            break;
        item->n_acked++;
        item->n_out = m->n_out > item->n_out ? m->n_out : item->n_out;
        free_message(w, t, m);
    }
    t->used_ns = time_now_ns();
}

void outlet_event(struct worker_link *w, struct outlet *t, const struct session_event *ev)
{
    if (ev->type == SESSION_ACKED) {
        acked(w, t);
    } else if (ev->type == SESSION_DOWN) { /* all frames in flight must be sent again, except of cancelled items */
        list_append(&t->sent, &t->unsent);
        list_append(&t->unsent, &t->sent);
        t->sweep = true;
    }
}

/* Stops at a frame for which the window has no room; the gateway's next acknowledgement continues. */
static void send_messages(struct outlet *t)
{
    struct err e;
    list_for_each_safe (n, &t->unsent) {
        struct message *m = list_entry(n, struct message, node);
        if (session_send_bytes(&e, t->session, m->p, m->n))
            return;
        m->number = session_sent(t->session);
        list_remove(n);
        list_push_back(&t->sent, n);
    }
}

void outlet_pump(struct worker_link *w, uint64_t now_ns)
{
    list_for_each (n, &w->outlets) {
        struct outlet *t = list_entry(n, struct outlet, node);
        if (t->sweep)
            sweep(w, t);
        if (!w->hold && session_is_up(t->session))
            send_messages(t);
    }
    free_unused(w, now_ns, 60 * NS_S);
}

void outlet_free_all(struct worker_link *w)
{
    list_for_each_safe (n, &w->outlets) {
        struct outlet *t = list_entry(n, struct outlet, node);
        list_append(&t->unsent, &t->sent);
        list_for_each_safe (k, &t->unsent)
            free_message(w, t, list_entry(k, struct message, node));
        outlet_free(w, t);
    }
}

/* ---- calls of the computing thread ---- */

/* m: NULL if the frame cannot be sent. A frame that is not queued counts as sent and is never acknowledged, so later
 * reports do not claim its delivery. */
static void add_message(struct worker_link *w, struct work_item *item, struct message *m)
{
    struct outlet *t = item->outlet;
    item->n_sent++;
    if (!m)
        item_fail(w, item, ERR_NO, "a frame of the answer exceeds 32 MiB or cannot be encoded");
    else if (t->bytes && t->bytes + m->n > WORKER_GATEWAY_BYTES_MAX)
        item_fail(w, item, ERR_SYS, "the gateway does not read: its queue would exceed 64 MiB");
    else if (t->bytes && w->queued + m->n > w->o.out_bytes_max)
        item_fail(w, item, ERR_SYS, "gateways do not read: the queues of this worker would exceed their limit");
    if (!m || item->cancelled) {
        free(m);
        return;
    }
    atomic_fetch_add(&item->n_ref, 1);
    list_push_back(&t->unsent, &m->node);
    t->bytes += m->n;
    w->queued += m->n;
}

int worker_link_send(struct err *e, struct worker_link *w, const struct wire_order *order, const struct wire_frame *f,
                     uint32_t n_out)
{
    struct message *m = NULL;
    struct wire_frame own = *f;
    struct work_item *item = item_open(e, order);
    if (!item)
        return e->code;
    *(f->kind == WIRE_OUT ? &own.out.seq : &own.end.seq) = item->f.job;
    if (message_new(e, &m, item, &own) == ERR_SYS) /* encoded outside the lock */
        return e->code;
    if (m && m->n > SESSION_FRAME_BYTES_MAX) {
        free(m);
        m = NULL;
    }
    if (m)
        m->n_out = n_out;
    pthread_mutex_lock(&w->lock);
    add_message(w, item, m);
    bool hold = w->hold;
    pthread_mutex_unlock(&w->lock);
    if (!hold)
        session_hub_wake(w->hub);
    return 0;
}

void worker_link_hold(struct worker_link *w, bool hold)
{
    pthread_mutex_lock(&w->lock);
    w->hold = hold;
    pthread_mutex_unlock(&w->lock);
    if (!hold)
        session_hub_wake(w->hub);
}

uint64_t worker_link_queued(struct worker_link *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t n = w->queued;
    pthread_mutex_unlock(&w->lock);
    return n;
}
