/*
 * Tokens on their way to gateways. One message is open at a gateway; what comes meanwhile waits and goes with the next.
 * One that failed goes again first. A gateway that is away keeps its frames here until the scheduler cancels its
 * orders.
 */
#include "link/worker_impl.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_BYTES (1u << 20) /* of a message; a longer frame goes alone */
#define UNUSED_NS (60 * 1000 * WORKER_MS)

static void outlet_free(struct outlet *t)
{
    link_dialer_free(t->dialer);
    free(t->url);
    free(t);
}

/* To close a connection may take a while: not under the lock. */
static void retire(struct worker_link *w, struct outlet **at)
{
    struct outlet *t = *at;
    *at = t->next;
    t->next = w->retired;
    w->retired = t;
    w->n_outlet--;
}

void outlet_free_list(struct outlet *t)
{
    for (struct outlet *next; t; t = next) {
        next = t->next;
        outlet_free(t);
    }
}

static bool unused(const struct outlet *t)
{
    return !t->n_order && !t->sent && !t->wait && !t->asked;
}

/* The one that was not used for longest makes room. */
static bool make_room(struct worker_link *w)
{
    struct outlet **oldest = NULL;
    for (struct outlet **at = &w->outlets; *at; at = &(*at)->next)
        if (unused(*at) && (!oldest || (*at)->used_ns < (*oldest)->used_ns))
            oldest = at;
    if (!oldest)
        return false;
    retire(w, oldest);
    return true;
}

static int outlet_new(struct err *e, struct outlet **out, struct worker_link *w, const char *url)
{
    if (w->n_outlet >= WORKER_OUTLETS && !make_room(w))
        return err_set(e, ERR_SYS, "%u gateways at once are too many", WORKER_OUTLETS);
    struct outlet *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, "a gateway", sizeof *t);
    t->end = &t->wait;
    t->number = ++w->outlet_number;
    t->url = strdup(url);
    int rc = t->url ? link_dial(e, &t->dialer, w->box, url, (void *)(uintptr_t)t->number)
                    : err_nomem(e, "a gateway", strlen(url));
    if (rc) {
        free(t->url);
        free(t);
        return rc;
    }
    t->next = w->outlets;
    w->outlets = t;
    w->n_outlet++;
    *out = t;
    return 0;
}

int outlet_get(struct err *e, struct outlet **out, struct worker_link *w, const char *url)
{
    int rc = 0;
    *out = w->outlets;
    while (*out && strcmp((*out)->url, url))
        *out = (*out)->next;
    if (!*out)
        rc = outlet_new(e, out, w, url);
    if (!rc)
        (*out)->used_ns = worker_now_ns();
    return rc == ERR_USAGE ? err_set(e, ERR_NO, "the request wants its answer at '%.200s', which is no address", url)
                           : rc;
}

void outlet_add(struct worker_link *w, struct outlet *t, struct piece *p)
{
    p->next = NULL;
    *t->end = p;
    t->end = &p->next;
    p->order->n_piece++;
    w->queued += p->n;
}

static void free_piece(struct worker_link *w, struct piece *p)
{
    w->queued -= p->n;
    order_drop_piece(p->order);
    free(p);
}

/* Frames of cancelled orders have nobody who waits for them. */
static void sweep(struct worker_link *w, struct outlet *t)
{
    t->sweep = false;
    struct piece **at = &t->wait;
    while (*at) {
        struct piece *p = *at;
        if (p->order->cancelled) {
            *at = p->next;
            free_piece(w, p);
        } else {
            at = &p->next;
        }
    }
    t->end = at;
}

/* The bytes are frames already, each with its length before it: they are appended as they are. */
static bool append(struct link_msg *m, const struct piece *p)
{
    if (m->cap - m->n < p->n) {
        size_t cap = m->cap ? 2 * m->cap : 4096;
        while (cap - m->n < p->n)
            cap *= 2;
        uint8_t *q = realloc(m->p, cap);
        if (!q)
            return false;
        m->p = q;
        m->cap = cap;
    }
    memcpy(m->p + m->n, p->p, p->n);
    m->n += p->n;
    m->n_frame++;
    return true;
}

static void ask(struct worker_link *w, struct outlet *t, uint64_t now_ns)
{
    struct err e;
    struct link_msg m = {0};
    struct piece **at = &t->wait;
    while (*at && (!m.n || m.n + (*at)->n <= MESSAGE_BYTES) && append(&m, *at))
        at = &(*at)->next;
    uint64_t id = ++w->question;
    t->again_ns = now_ns + WORKER_AGAIN_MS * WORKER_MS; /* where there was no memory */
    if (m.n && !link_ask(&e, t->dialer, &m, (void *)(uintptr_t)id)) {
        t->asked = id;
        t->again_ns = 0;
        t->sent = t->wait;
        t->wait = *at;
        *at = NULL;
        if (!t->wait)
            t->end = &t->wait;
    }
    link_msg_free(&m);
}

static void confirmed(struct worker_link *w, struct outlet *t)
{
    for (struct piece *p = t->sent, *next; p; p = next) {
        next = p->next;
        p->order->n_confirmed++;
        if (p->n_out > p->order->n_out)
            p->order->n_out = p->n_out;
        free_piece(w, p);
    }
    t->sent = NULL;
}

static void failed(struct outlet *t)
{
    struct piece **last = &t->sent;
    while (*last)
        last = &(*last)->next;
    *last = t->wait;
    if (!t->wait)
        t->end = last;
    t->wait = t->sent;
    t->sent = NULL;
    t->sweep = true; /* some of it may be cancelled meanwhile */
}

bool outlet_event(struct worker_link *w, const struct link_event *ev)
{
    uint64_t id = (uint64_t)(uintptr_t)ev->arg;
    bool answer = ev->what == LINK_ANSWER || ev->what == LINK_FAILED;
    struct outlet *t = w->outlets;
    while (t && id != (answer ? t->asked : t->number))
        t = t->next;
    if (!t || !id)
        return false;
    if (!answer)
        return true;
    t->asked = 0;
    t->used_ns = worker_now_ns();
    if (ev->what == LINK_ANSWER) {
        confirmed(w, t);
    } else {
        failed(t);
        t->again_ns = t->used_ns + WORKER_BROKEN_MS * WORKER_MS;
    }
    return true;
}

/* Without a connection nothing is asked, so that what is cancelled meanwhile need not be kept. */
uint64_t outlet_pump(struct worker_link *w, uint64_t now_ns)
{
    uint64_t next_ns = UINT64_MAX;
    for (struct outlet **at = &w->outlets; *at;) {
        struct outlet *t = *at;
        if (t->sweep)
            sweep(w, t);
        if (t->wait && !t->asked && !w->hold && link_dialer_up(t->dialer)) {
            if (now_ns >= t->again_ns)
                ask(w, t, now_ns);
            if (!t->asked && t->again_ns < next_ns)
                next_ns = t->again_ns;
        }
        if (unused(t) && now_ns > t->used_ns && now_ns - t->used_ns > UNUSED_NS)
            retire(w, at);
        else
            at = &t->next;
    }
    return next_ns;
}

static void free_pieces(struct worker_link *w, struct piece *p)
{
    for (struct piece *next; p; p = next) {
        next = p->next;
        free_piece(w, p);
    }
}

void outlet_free_all(struct worker_link *w)
{
    while (w->outlets) {
        struct outlet *t = w->outlets;
        w->outlets = t->next;
        free_pieces(w, t->sent);
        free_pieces(w, t->wait);
        outlet_free(t);
    }
    outlet_free_list(w->retired);
}

/* The frame is written before the lock is taken. */
static int piece_new(struct err *e, struct piece **out, const struct wire_frame *f, uint32_t n_out)
{
    struct link_msg m = {0};
    int rc = link_msg_add(e, &m, f);
    if (!rc && m.n > LINK_MESSAGE_BYTES_MAX)
        rc = err_set(e, ERR_NO, "a frame of %zu bytes is too long for a gateway", m.n);
    struct piece *p = rc ? NULL : malloc(sizeof *p + m.n);
    if (!rc && !p)
        rc = err_nomem(e, "a frame", sizeof *p + m.n);
    if (!rc) {
        *p = (struct piece){.n_out = n_out, .n = m.n};
        memcpy(p->p, m.p, m.n);
        *out = p;
    }
    link_msg_free(&m);
    return rc;
}

int worker_link_send(struct err *e, struct worker_link *w, uint64_t order, const struct wire_frame *f, uint32_t n_out)
{
    struct piece *p;
    int rc = piece_new(e, &p, f, n_out);
    if (rc)
        return rc;
    pthread_mutex_lock(&w->lock);
    struct order *o = order_find(w, order);
    if (!o || o->closed) {
        rc = err_set(e, ERR_NO, "order %llu is not open", (unsigned long long)order);
    } else {
        o->n_sent++; /* of a cancelled order too: what is not sent is never confirmed */
        if (!o->cancelled) {
            p->order = o;
            outlet_add(w, o->outlet, p);
            p = NULL;
        }
    }
    bool hold = w->hold;
    pthread_mutex_unlock(&w->lock);
    free(p);
    if (!rc && !hold)
        link_box_wake(w->box);
    return rc;
}

void worker_link_hold(struct worker_link *w, bool hold)
{
    pthread_mutex_lock(&w->lock);
    w->hold = hold;
    pthread_mutex_unlock(&w->lock);
    if (!hold)
        link_box_wake(w->box);
}

uint64_t worker_link_queued(struct worker_link *w)
{
    pthread_mutex_lock(&w->lock);
    uint64_t n = w->queued;
    pthread_mutex_unlock(&w->lock);
    return n;
}
