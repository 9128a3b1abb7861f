/*
 * link/ask.h within one program, without sockets: a test that includes this cuts connections as it likes and loses
 * nothing but what it says. Listeners and dialers of one address are connected while both are there.
 */
#ifndef TEST_ASK_FAKE_H
#define TEST_ASK_FAKE_H

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "link/ask.h"

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

struct item {
    struct item *next;
    struct link_event ev;
    uint8_t *bytes;
    const void *of; /* the socket */
};

struct link_box {
    int fd;
    struct item *first, **end;
    uint8_t *held;
};

struct link_question {
    struct link_question *next; /* of all that are open */
    struct link_listener *l;
    struct link_dialer *d; /* NULL: its connection is gone */
    void *arg;
    uint32_t peer;
};

struct link_listener {
    struct link_listener *next;
    struct link_box *box;
    char *url;
    void *arg;
};

struct waiting { /* asked without a connection */
    struct waiting *next;
    void *arg;
    uint8_t *bytes;
    size_t n;
};

struct link_dialer {
    struct link_dialer *next;
    struct link_box *box;
    char *url;
    void *arg;
    struct link_listener *to; /* NULL: down */
    uint32_t peer;
    struct waiting *waiting;
};

static struct link_listener *fake_listeners;
static struct link_dialer *fake_dialers;
static struct link_question *fake_questions, *fake_dead;
static uint32_t fake_peer;

int link_box_new(struct err *e, struct link_box **out)
{
    struct link_box *b = calloc(1, sizeof *b);
    (void)e;
    b->fd = eventfd(0, EFD_NONBLOCK);
    b->end = &b->first;
    *out = b;
    return 0;
}

void link_box_free(struct link_box *b)
{
    if (!b)
        return;
    while (b->first) {
        struct item *i = b->first;
        b->first = i->next;
        free(i->bytes);
        free(i);
    }
    free(b->held);
    close(b->fd);
    free(b);
}

int link_box_fd(const struct link_box *b)
{
    return b->fd;
}

void link_box_wake(struct link_box *b)
{
    uint64_t one = 1;
    (void)!write(b->fd, &one, sizeof one);
}

void link_box_wait(struct link_box *b, int timeout_ms)
{
    struct pollfd p = {b->fd, POLLIN, 0};
    poll(&p, 1, timeout_ms);
}

static void put(struct link_box *b, const void *of, const struct link_event *ev, const void *bytes, size_t n)
{
    struct item *i = calloc(1, sizeof *i);
    i->ev = *ev;
    i->of = of;
    i->bytes = malloc(n + 1);
    if (n)
        memcpy(i->bytes, bytes, n);
    i->ev.p = i->bytes;
    i->ev.n = n;
    *b->end = i;
    b->end = &i->next;
    link_box_wake(b);
}

bool link_box_take(struct link_box *b, struct link_event *out)
{
    pthread_mutex_lock(&fake_lock);
    free(b->held);
    b->held = NULL;
    struct item *i = b->first;
    if (i) {
        b->first = i->next;
        b->end = b->first ? b->end : &b->first;
        *out = i->ev;
        b->held = i->bytes;
        free(i);
    } else {
        uint64_t n;
        (void)!read(b->fd, &n, sizeof n);
    }
    pthread_mutex_unlock(&fake_lock);
    return i != NULL;
}

/* What is in the box of a socket, or of one question of a listener, was never seen. */
static void forget(struct link_box *b, const void *of, const struct link_question *q)
{
    struct item **at = &b->first;
    while (*at) {
        struct item *i = *at;
        if (i->of == of && (!q || i->ev.q == q)) {
            *at = i->next;
            free(i->bytes);
            free(i);
        } else {
            at = &i->next;
        }
    }
    b->end = at;
}

static void send_question(struct link_dialer *d, void *arg, const void *bytes, size_t n)
{
    struct link_question *q = calloc(1, sizeof *q);
    *q = (struct link_question){.next = fake_questions, .l = d->to, .d = d, .arg = arg, .peer = d->peer};
    fake_questions = q;
    put(d->to->box, d->to, &(struct link_event){.what = LINK_QUESTION, .arg = d->to->arg, .peer = d->peer, .q = q},
        bytes, n);
}

static void connect_it(struct link_dialer *d, struct link_listener *l)
{
    d->to = l;
    d->peer = ++fake_peer;
    put(l->box, l, &(struct link_event){.what = LINK_UP, .arg = l->arg, .peer = d->peer}, NULL, 0);
    put(d->box, d, &(struct link_event){.what = LINK_UP, .arg = d->arg, .peer = d->peer}, NULL, 0);
    while (d->waiting) {
        struct waiting *w = d->waiting;
        d->waiting = w->next;
        send_question(d, w->arg, w->bytes, w->n);
        free(w->bytes);
        free(w);
    }
}

/* Its address is not used again: who has it may answer once more. */
static void drop_question(struct link_question *q)
{
    struct link_question **at = &fake_questions;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    q->next = fake_dead;
    fake_dead = q;
}

/* The connection breaks. Questions fail; what the listener has not seen it never sees. */
static void break_it(struct link_dialer *d)
{
    struct link_listener *l = d->to;
    d->to = NULL;
    for (struct link_question *q = fake_questions, *next; q; q = next) {
        next = q->next;
        if (q->d != d)
            continue;
        struct link_event ev = {.what = LINK_FAILED, .arg = q->arg};
        err_set(&ev.err, ERR_SYS, "broken");
        put(d->box, d, &ev, NULL, 0);
        forget(l->box, l, q);
        drop_question(q);
    }
    put(l->box, l, &(struct link_event){.what = LINK_DOWN, .arg = l->arg, .peer = d->peer}, NULL, 0);
    put(d->box, d, &(struct link_event){.what = LINK_DOWN, .arg = d->arg, .peer = d->peer}, NULL, 0);
}

int link_listen(struct err *e, struct link_listener **out, struct link_box *b, const char *url, void *arg)
{
    struct link_listener *l = calloc(1, sizeof *l);
    (void)e;
    pthread_mutex_lock(&fake_lock);
    *l = (struct link_listener){fake_listeners, b, strdup(url), arg};
    fake_listeners = l;
    for (struct link_dialer *d = fake_dialers; d; d = d->next)
        if (!d->to && !strcmp(d->url, url))
            connect_it(d, l);
    pthread_mutex_unlock(&fake_lock);
    *out = l;
    return 0;
}

void link_listener_free(struct link_listener *l)
{
    pthread_mutex_lock(&fake_lock);
    for (struct link_dialer *d = fake_dialers; d; d = d->next)
        if (d->to == l)
            break_it(d);
    forget(l->box, l, NULL);
    struct link_listener **at = &fake_listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    pthread_mutex_unlock(&fake_lock);
    free(l->url);
    free(l);
}

/* q is open, or its connection broke and LINK_DOWN was not taken yet. */
void link_answer(struct link_question *q, struct link_msg *m)
{
    pthread_mutex_lock(&fake_lock);
    struct link_question *o = fake_questions;
    while (o && o != q)
        o = o->next;
    if (o) {
        put(q->d->box, q->d, &(struct link_event){.what = LINK_ANSWER, .arg = q->arg, .peer = q->peer}, m ? m->p : NULL,
            m ? m->n : 0);
        drop_question(q);
    }
    pthread_mutex_unlock(&fake_lock);
    if (m)
        link_msg_clear(m);
}

int link_dial(struct err *e, struct link_dialer **out, struct link_box *b, const char *url, void *arg)
{
    struct link_dialer *d = calloc(1, sizeof *d);
    (void)e;
    pthread_mutex_lock(&fake_lock);
    *d = (struct link_dialer){.next = fake_dialers, .box = b, .url = strdup(url), .arg = arg};
    fake_dialers = d;
    for (struct link_listener *l = fake_listeners; l && !d->to; l = l->next)
        if (!strcmp(l->url, url))
            connect_it(d, l);
    pthread_mutex_unlock(&fake_lock);
    *out = d;
    return 0;
}

void link_dialer_free(struct link_dialer *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&fake_lock);
    if (d->to)
        break_it(d);
    forget(d->box, d, NULL);
    struct link_dialer **at = &fake_dialers;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    while (d->waiting) {
        struct waiting *w = d->waiting;
        d->waiting = w->next;
        free(w->bytes);
        free(w);
    }
    pthread_mutex_unlock(&fake_lock);
    free(d->url);
    free(d);
}

bool link_dialer_up(const struct link_dialer *d)
{
    pthread_mutex_lock(&fake_lock);
    bool up = d->to != NULL;
    pthread_mutex_unlock(&fake_lock);
    return up;
}

int link_ask(struct err *e, struct link_dialer *d, struct link_msg *m, void *arg)
{
    (void)e;
    pthread_mutex_lock(&fake_lock);
    if (d->to) {
        send_question(d, arg, m ? m->p : NULL, m ? m->n : 0);
    } else {
        struct waiting *w = calloc(1, sizeof *w), **at = &d->waiting;
        *w = (struct waiting){NULL, arg, malloc((m ? m->n : 0) + 1), m ? m->n : 0};
        if (w->n)
            memcpy(w->bytes, m->p, w->n);
        while (*at)
            at = &(*at)->next;
        *at = w;
    }
    pthread_mutex_unlock(&fake_lock);
    if (m)
        link_msg_clear(m);
    return 0;
}

/* One of the connections at random breaks and comes again. */
static void fake_cut(uint64_t which)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t n = 0, k = 0;
    for (struct link_dialer *d = fake_dialers; d; d = d->next)
        n += d->to != NULL;
    for (struct link_dialer *d = fake_dialers; d && n; d = d->next)
        if (d->to && k++ == which % n) {
            struct link_listener *l = d->to;
            break_it(d);
            connect_it(d, l);
            break;
        }
    pthread_mutex_unlock(&fake_lock);
}

#endif
