/*
 * Tokens on their way to gateways: one list a gateway, in order. Each frame stays in it until the gateway has
 * acknowledged it. When the session breaks, everything in the list is sent again over the next one; while a gateway is
 * away its frames stay here until the scheduler cancels its orders.
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

/* Frees those that were not used for as long as `ns`. */
static void free_unused(struct worker_link *w, uint64_t now_ns, uint64_t ns)
{
    list_for_each_safe (n, &w->outlets) {
        struct outlet *t = list_entry(n, struct outlet, node);
        if (!t->n_order && !t->bytes && now_ns >= t->used_ns + ns)
            outlet_free(w, t);
    }
}

static int outlet_new(struct err *e, struct outlet **out, struct worker_link *w, const char *url)
{
    if (w->n_outlet >= WORKER_OUTLETS)
        free_unused(w, UINT64_MAX, 0);
    if (w->n_outlet >= WORKER_OUTLETS)
        return err_set(e, ERR_SYS, "%u gateways at once are too many", WORKER_OUTLETS);
    struct outlet *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, "a gateway", sizeof *t);
    int rc = session_dial(e, &t->session, w->hub, url, "gateway", t);
    if (rc) {
        free(t);
        return rc == ERR_USAGE ? err_set(e, ERR_NO, "reply '%.200s' of the request is not an address", url) : rc;
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
    order_unref(m->order);
    free(m);
}

/* Nobody waits for frames of cancelled orders. */
static void sweep(struct worker_link *w, struct outlet *t)
{
    t->sweep = false;
    list_for_each_safe (n, &t->unsent) {
        struct message *m = list_entry(n, struct message, node);
        if (m->order->cancelled)
            free_message(w, t, m);
    }
}

static void acked(struct worker_link *w, struct outlet *t)
{
    list_for_each_safe (n, &t->sent) {
        struct message *m = list_entry(n, struct message, node);
        struct order *o = m->order;
        if (m->number > session_acked(t->session))
            break;
        o->n_acked++;
        o->n_out = m->n_out > o->n_out ? m->n_out : o->n_out;
        free_message(w, t, m);
    }
    t->used_ns = time_now_ns();
}

void outlet_event(struct worker_link *w, struct outlet *t, const struct session_event *ev)
{
    if (ev->type == SESSION_ACKED) {
        acked(w, t);
    } else if (ev->type == SESSION_DOWN) { /* everything is to be sent again, but what was cancelled meanwhile */
        list_append(&t->sent, &t->unsent);
        list_append(&t->unsent, &t->sent);
        t->sweep = true;
    }
}

/* A frame that the window has no room for leaves when the gateway has acknowledged others. */
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

/* ---- the caller's side ---- */

/* m: NULL when it cannot be sent. What is not queued counts as sent, so that no report claims it was delivered. */
static void add_message(struct worker_link *w, struct order *o, struct message *m)
{
    struct outlet *t = o->outlet;
    o->n_sent++;
    if (!m)
        order_fail(w, o, ERR_NO, "the answer has a frame that is longer than 32 MiB or cannot be encoded");
    else if (t->bytes && t->bytes + m->n > WORKER_GATEWAY_BYTES_MAX)
        order_fail(w, o, ERR_SYS, "the gateway does not read: 64 MiB wait for it");
    if (!m || o->cancelled) {
        free(m);
        return;
    }
    atomic_fetch_add(&o->n_ref, 1);
    list_push_back(&t->unsent, &m->node);
    t->bytes += m->n;
    w->queued += m->n;
}

int worker_link_send(struct err *e, struct worker_link *w, const struct wire_order *order, const struct wire_frame *f,
                     uint32_t n_out)
{
    struct message *m = NULL;
    struct wire_frame own = *f;
    struct order *o = order_open(e, order);
    if (!o)
        return e->code;
    *(f->kind == WIRE_OUT ? &own.out.seq : &own.end.seq) = o->f.job;
    if (message_new(e, &m, o, &own) == ERR_SYS) /* encoded without the lock */
        return e->code;
    if (m && m->n > SESSION_FRAME_BYTES_MAX) {
        free(m);
        m = NULL;
    }
    if (m)
        m->n_out = n_out;
    pthread_mutex_lock(&w->lock);
    add_message(w, o, m);
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
