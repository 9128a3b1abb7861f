/*
 * A fake of link/session.h within one program, without sockets, for tests of components that use sessions, with any
 * number of hubs and threads. A test that includes this links none of lib/link/session*.c. Listeners and dialers of one
 * address are connected when the dialer's hub has no other event; a frame is in the peer's queue as soon as it is sent.
 * A frame is acknowledged when its receiver takes the next event, so a test that takes no events delays
 * acknowledgements. fake_cut breaks a connection; fake_draw chooses how many of the frames in flight still arrive
 * (NULL: none).
 */
#ifndef TEST_SESSION_FAKE_H
#define TEST_SESSION_FAKE_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "link/session.h"

#define FAKE_PREFIX 5 /* bytes of a frame's length */

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t (*fake_draw)(uint64_t below); /* called under fake_lock, by any thread */

struct fake_item {
    struct fake_item *next;
    struct session_event ev;
    uint8_t *bytes;
    uint64_t acked, acked_bytes; /* SESSION_ACKED */
};

struct session_hub {
    int fd;
    char role[WIRE_NAME_BYTES_MAX + 1], name[WIRE_NAME_BYTES_MAX + 1];
    uint64_t inc, window;
    struct fake_item *first, **end, *held; /* held: the last event taken, whose bytes are still borrowed */
};

struct session_listener {
    struct session_listener *next;
    struct session_hub *hub;
    char *url, *roles;
    void *arg;
};

struct session {
    struct session *next; /* in fake_sessions */
    struct session_hub *hub;
    struct session *peer;            /* NULL: not connected */
    struct session_listener *of;     /* of an accepted session; NULL: dialed, or the listener was freed */
    bool dialed, plain, up, closing; /* up: its owner has taken SESSION_UP. closing: it queues no further frame */
    bool refused;                    /* by the peer; dials again when a new listener opens */
    char *url, *want;                /* want: the role that the peer must have */
    void *arg;
    char peer_role[WIRE_NAME_BYTES_MAX + 1], peer_name[WIRE_NAME_BYTES_MAX + 1];
    uint64_t peer_inc;
    uint64_t sent, acked, processed; /* frames */
    uint64_t unacked;                /* bytes */
    uint64_t all_acked;              /* frames that the peer has processed; acked follows with SESSION_ACKED */
};

static struct session_listener *fake_listeners;
static struct session *fake_sessions;

static void fake_copy(char to[WIRE_NAME_BYTES_MAX + 1], const char *s)
{
    snprintf(to, WIRE_NAME_BYTES_MAX + 1, "%s", s ? s : "");
}

static struct fake_item *fake_put(struct session_hub *h, const struct session_event *ev, const void *p, size_t n)
{
    struct fake_item *i = calloc(1, sizeof *i);
    i->ev = *ev;
    if (n) {
        i->bytes = malloc(n);
        memcpy(i->bytes, p, n);
        i->ev.p = i->bytes;
        i->ev.n = n;
    }
    *h->end = i;
    h->end = &i->next;
    eventfd_write(h->fd, 1);
    return i;
}

static void fake_put_down(struct session *s, int code, const char *reason)
{
    struct session_event ev = {.type = SESSION_DOWN, .s = s};
    err_set(&ev.err, code, "%s", reason);
    fake_put(s->hub, &ev, NULL, 0);
}

/* Removes waiting events of s: all acknowledgements, and the frames after the first `keep`; whole: every event. */
static void fake_forget(struct session *s, uint64_t keep, bool whole)
{
    struct fake_item **at = &s->hub->first;
    while (*at) {
        struct fake_item *i = *at;
        bool drop = i->ev.s == s && (whole || i->ev.type == SESSION_ACKED || i->ev.type == SESSION_FRAME);
        if (drop && !whole && i->ev.type == SESSION_FRAME && keep) {
            keep--;
            drop = false;
        }
        if (drop) {
            *at = i->next;
            free(i->bytes);
            free(i);
        } else {
            at = &i->next;
        }
    }
    s->hub->end = at;
}

static uint64_t fake_waiting(const struct session *s)
{
    uint64_t n = 0;
    for (const struct fake_item *i = s->hub->first; i; i = i->next)
        n += i->ev.s == s && i->ev.type == SESSION_FRAME;
    return n;
}

/* Ends the connection. lost: frames in flight may be lost; otherwise they all arrive. */
static void fake_break(struct session *s, const char *reason, bool lost)
{
    struct session *both[] = {s, s->peer};
    for (int i = 0; i < 2; i++) {
        struct session *t = both[i];
        uint64_t n = fake_waiting(t);
        fake_forget(t, !lost ? n : fake_draw ? fake_draw(n + 1) : 0, false);
        t->peer = NULL;
        t->closing = false;
        fake_put_down(t, lost ? ERR_SYS : ERR_NO, reason); /* without a loss the peer gets the reason by session_bye */
    }
}

static bool fake_has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && !strncmp(p, word, n))
            return true;
    return false;
}

static void fake_set_peer(struct session *s, struct session *peer)
{
    s->peer = peer;
    s->sent = s->acked = s->processed = s->unacked = s->all_acked = 0;
    fake_copy(s->peer_role, peer->hub->role);
    fake_copy(s->peer_name, peer->hub->name);
    s->peer_inc = peer->hub->inc;
    fake_put(s->hub, &(struct session_event){.type = SESSION_UP, .s = s}, NULL, 0);
}

static void fake_connect(struct session *s, struct session_listener *l)
{
    if (!fake_has_word(l->roles, s->hub->role) || (s->want && strcmp(s->want, l->hub->role))) {
        struct session_event ev = {.type = SESSION_REFUSED, .s = s};
        err_set(&ev.err, ERR_PROTO, "role %s is not accepted here", s->hub->role);
        s->refused = true;
        fake_put(s->hub, &ev, NULL, 0);
        return;
    }
    for (struct session *o = fake_sessions; o; o = o->next)
        if (o->hub == l->hub && !o->dialed && o->peer && !strcmp(o->peer_role, s->hub->role) &&
            !strcmp(o->peer_name, s->hub->name))
            fake_break(o, "a newer session of the same name", false);
    struct session *a = calloc(1, sizeof *a);
    *a = (struct session){.next = fake_sessions, .hub = l->hub, .of = l, .url = strdup(l->url), .arg = l->arg};
    fake_sessions = a;
    fake_set_peer(a, s);
    fake_set_peer(s, a);
}

static struct session_listener *fake_find(const char *url)
{
    struct session_listener *l = fake_listeners;
    while (l && strcmp(l->url, url))
        l = l->next;
    return l;
}

static void fake_drop(struct session *s)
{
    struct session **at = &fake_sessions;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    fake_forget(s, 0, true);
    free(s->url);
    free(s->want);
    free(s);
}

/* ---- hubs ---- */

int session_hub_new(struct err *e, struct session_hub **out, const struct session_hub_opts *o)
{
    struct session_hub *h = calloc(1, sizeof *h);
    (void)e;
    h->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    h->end = &h->first;
    fake_copy(h->role, o->self.role);
    fake_copy(h->name, o->self.name);
    h->inc = o->self.inc;
    h->window = o->window ? o->window : SESSION_WINDOW_BYTES;
    *out = h;
    return 0;
}

/* The last event was processed: acknowledges its frame, frees its session after SESSION_DOWN. */
static void fake_done(struct session_hub *h)
{
    struct fake_item *i = h->held;
    if (!i)
        return;
    h->held = NULL;
    struct session *s = i->ev.s;
    if (i->ev.type == SESSION_FRAME && s && s->peer && !s->plain) {
        struct session *p = s->peer;
        struct fake_item *a = NULL;
        for (struct fake_item *k = p->hub->first; k; k = k->next)
            if (k->ev.s == p && k->ev.type == SESSION_ACKED)
                a = k;
        if (!a)
            a = fake_put(p->hub, &(struct session_event){.type = SESSION_ACKED, .s = p}, NULL, 0);
        a->acked = ++s->processed;
        a->acked_bytes += i->ev.n;
        p->all_acked = s->processed;
        if (p->closing && p->all_acked == p->sent)
            fake_break(p, "bye", false);
    }
    if (i->ev.type == SESSION_DOWN && s && !s->dialed)
        fake_drop(s);
    free(i->bytes);
    free(i);
}

void session_hub_free(struct session_hub *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&fake_lock);
    for (struct session_listener **at = &fake_listeners; *at;)
        if ((*at)->hub == h) {
            struct session_listener *l = *at;
            *at = l->next;
            free(l->url);
            free(l->roles);
            free(l);
        } else {
            at = &(*at)->next;
        }
    for (struct session *s = fake_sessions, *next; s; s = next) {
        next = s->next;
        if (s->hub != h)
            continue;
        if (s->peer)
            fake_break(s, "the peer has exited", true);
        if (h->held && h->held->ev.s == s)
            h->held->ev.s = NULL;
        fake_drop(s);
        next = fake_sessions; /* further sessions may have been dropped too: start again */
    }
    fake_done(h);
    pthread_mutex_unlock(&fake_lock);
    close(h->fd);
    free(h);
}

int session_hub_fd(const struct session_hub *h)
{
    return h->fd;
}

int session_hub_timeout_ms(const struct session_hub *h)
{
    (void)h;
    return 10;
}

void session_hub_wake(struct session_hub *h)
{
    eventfd_write(h->fd, 1);
}

void session_hub_wait(struct session_hub *h, int timeout_ms)
{
    struct pollfd p = {h->fd, POLLIN, 0};
    if (timeout_ms < 0 || timeout_ms > 10) /* dialers poll for their listeners */
        timeout_ms = 10;
    poll(&p, 1, timeout_ms);
}

static void fake_dial_all(struct session_hub *h)
{
    for (struct session *s = fake_sessions; s; s = s->next) {
        struct session_listener *l =
            s->hub == h && s->dialed && !s->plain && !s->up && !s->peer && !s->refused ? fake_find(s->url) : NULL;
        if (l)
            fake_connect(s, l);
    }
}

bool session_hub_next(struct session_hub *h, struct session_event *out)
{
    eventfd_t n;
    pthread_mutex_lock(&fake_lock);
    fake_done(h);
    if (!h->first)
        fake_dial_all(h);
    struct fake_item *i = h->first;
    if (!i)
        eventfd_read(h->fd, &n);
    if (i) {
        h->first = i->next;
        h->end = h->first ? h->end : &h->first;
        h->held = i;
        *out = i->ev;
        struct session *s = i->ev.s;
        if (i->ev.type == SESSION_UP)
            s->up = true;
        if (i->ev.type == SESSION_DOWN) {
            s->up = false;
            s->sent = s->acked = s->unacked = 0;
        }
        if (i->ev.type == SESSION_ACKED) {
            s->acked = i->acked;
            s->unacked -= i->acked_bytes;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return i != NULL;
}

int session_frame(struct err *e, struct wire_frame *f, struct wire_arena *a, const struct session_event *ev)
{
    return wire_decode(e, f, a, ev->p + FAKE_PREFIX, ev->n - FAKE_PREFIX);
}

/* ---- listeners, dialers ---- */

int session_listen(struct err *e, struct session_listener **out, struct session_hub *h, const char *url,
                   const char *roles, void *arg)
{
    pthread_mutex_lock(&fake_lock);
    int rc = fake_find(url) ? err_set(e, ERR_NO, "%s: address in use: another program listens on it", url) : 0;
    if (!rc) {
        struct session_listener *l = calloc(1, sizeof *l);
        *l = (struct session_listener){fake_listeners, h, strdup(url), strdup(roles), arg};
        fake_listeners = l;
        for (struct session *s = fake_sessions; s; s = s->next)
            if (s->dialed && !strcmp(s->url, url)) {
                s->refused = false;
                eventfd_write(s->hub->fd, 1);
            }
        *out = l;
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

void session_listener_free(struct session_listener *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&fake_lock);
    struct session_listener **at = &fake_listeners;
    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
    for (struct session *s = fake_sessions; s; s = s->next)
        s->of = s->of == l ? NULL : s->of;
    pthread_mutex_unlock(&fake_lock);
    free(l->url);
    free(l->roles);
    free(l);
}

const char *session_listener_url(const struct session_listener *l)
{
    return l->url;
}

void session_listener_line(char *out, size_t n, const struct session_listener *l)
{
    (void)n, (void)l;
    *out = 0;
}

static int fake_dial(struct err *e, struct session **out, struct session_hub *h, const char *url, const char *role,
                     bool plain, void *arg)
{
    if (!strstr(url, "://"))
        return err_set(e, ERR_USAGE, "'%s' is not an address", url);
    struct session *s = calloc(1, sizeof *s);
    *s = (struct session){.hub = h, .dialed = true, .plain = plain, .url = strdup(url), .arg = arg};
    s->want = role ? strdup(role) : NULL;
    pthread_mutex_lock(&fake_lock);
    s->next = fake_sessions;
    fake_sessions = s;
    eventfd_write(h->fd, 1);
    pthread_mutex_unlock(&fake_lock);
    *out = s;
    return 0;
}

int session_dial(struct err *e, struct session **out, struct session_hub *h, const char *url, const char *role,
                 void *arg)
{
    return fake_dial(e, out, h, url, role, false, arg);
}

/* The fake has no kvstore: the session is never connected. */
int session_dial_plain(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg)
{
    return fake_dial(e, out, h, url, NULL, true, arg);
}

void session_free(struct session *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&fake_lock);
    if (s->peer)
        fake_break(s, "the peer has closed the session", false);
    if (s->hub->held && s->hub->held->ev.s == s)
        s->hub->held->ev.s = NULL;
    fake_drop(s);
    pthread_mutex_unlock(&fake_lock);
}

void session_close(struct session *s, const char *reason)
{
    pthread_mutex_lock(&fake_lock);
    if (s->peer)
        fake_break(s, reason ? reason : "the peer has closed the session", false);
    pthread_mutex_unlock(&fake_lock);
}

void session_bye(struct session *s, uint32_t timeout_ms)
{
    (void)timeout_ms;
    pthread_mutex_lock(&fake_lock);
    s->closing = s->peer != NULL;
    if (s->peer && s->all_acked == s->sent)
        fake_break(s, "bye", false);
    pthread_mutex_unlock(&fake_lock);
}

/* ---- frames ---- */

static bool fake_room(const struct session *s, size_t n)
{
    return s->peer && !s->closing && (!s->unacked || s->unacked + n <= s->hub->window);
}

int session_send_bytes(struct err *e, struct session *s, const uint8_t *p, size_t n)
{
    int rc = 0;
    pthread_mutex_lock(&fake_lock);
    if (!s->up || s->closing)
        rc = err_set(e, ERR_USAGE, "not connected");
    else if (n > SESSION_FRAME_BYTES_MAX)
        rc = err_set(e, ERR_PROTO, "a frame of %zu bytes is too long", n);
    else if (s->peer && !fake_room(s, n))
        rc = err_set(e, ERR_NO, "the window is full");
    if (!rc) {
        s->sent++;
        if (s->peer) { /* otherwise the connection broke, its SESSION_DOWN is not yet taken, and the frame is lost */
            s->unacked += s->plain ? 0 : n;
            fake_put(s->peer->hub, &(struct session_event){.type = SESSION_FRAME, .s = s->peer}, p, n);
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

int session_send(struct err *e, struct session *s, const struct wire_frame *f)
{
    uint8_t *p = NULL;
    size_t n = 0, cap = 0;
    int rc = wire_encode_add(e, &p, &n, &cap, f);
    rc = rc ? rc : session_send_bytes(e, s, p, n);
    free(p);
    return rc;
}

bool session_has_room(const struct session *s, size_t n)
{
    pthread_mutex_lock(&fake_lock);
    bool room = s->up && fake_room(s, n);
    pthread_mutex_unlock(&fake_lock);
    return room;
}

uint64_t session_sent(const struct session *s)
{
    return s->sent;
}

uint64_t session_acked(const struct session *s)
{
    return s->acked;
}

uint64_t session_unacked_bytes(const struct session *s)
{
    return s->unacked;
}

bool session_is_up(const struct session *s)
{
    return s->up;
}

const char *session_peer_name(const struct session *s)
{
    return s->peer_name;
}

const char *session_peer_role(const struct session *s)
{
    return s->peer_role;
}

uint64_t session_peer_inc(const struct session *s)
{
    return s->peer_inc;
}

const char *session_url(const struct session *s)
{
    return s->url;
}

void *session_arg(const struct session *s)
{
    return s->arg;
}

void session_set_arg(struct session *s, void *arg)
{
    s->arg = arg;
}

/* Breaks one connection, chosen by `which`; its dialer connects again. */
static inline void fake_cut(uint64_t which)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t n = 0, k = 0;
    for (struct session *s = fake_sessions; s; s = s->next)
        n += s->dialed && s->peer;
    for (struct session *s = fake_sessions; s && n; s = s->next)
        if (s->dialed && s->peer && k++ == which % n) {
            fake_break(s, "the connection broke", true);
            break;
        }
    pthread_mutex_unlock(&fake_lock);
}

#endif
