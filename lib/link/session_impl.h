/*
 * Private to lib/link: hubs, sessions and their connections over nng's streams.
 *
 * nng's threads only mark an object as ready under the lock and write the hub's eventfd; the hub's thread does the
 * rest. No function of nng is called with the lock held. nng 1.5.2 requires: a receive is posted as soon as a stream
 * exists, and always; a failed write does not end a connection, a failed read does; a stream is closed before its aios
 * are stopped, and freed last.
 */
#ifndef LINK_SESSION_IMPL_H
#define LINK_SESSION_IMPL_H

#include <nng/nng.h>
#include <pthread.h>

#include "base/list.h"
#include "link/session_core.h"
#include "link/session_tls.h"

#define CONN_READ_BYTES ((size_t)64 << 10)
#define HUB_READY_EVERY 32 /* events taken before ready sockets are processed again */
#define HUB_LATE_MS 500    /* if the event loop is later than this, the process was stopped */
#define HUB_CONNS_SPARE 64 /* connections above SESSIONS_MAX that get a reason; more are closed without one */
#define REDIAL_MS_MIN 5
#define REDIAL_MS_MAX 100
#define REDIAL_REFUSED_MS 1000
#define DIAL_MS_MAX 5000
#define ACCEPT_RETRY_MS 100

enum { READY_RX = 1, READY_TX = 2, READY_DIAL = 4, READY_ACCEPT = 8 };

/* Embedded in the objects that nng's threads mark. */
struct ready {
    struct session_hub *h;
    struct list node; /* session_hub.ready */
    unsigned flags;   /* READY_*, 0: not in the list */
    void *object;     /* a conn, session or session_listener, by flags */
};

struct conn {
    struct list node;           /* session_hub.conns */
    struct list pending, dirty; /* session_hub.pending and .dirty */
    struct session_hub *h;
    struct session *s; /* NULL: accepted and its hello is still missing, or detached */
    struct session_listener *l;
    struct core core;
    struct ready ready;
    nng_stream *stream;
    nng_aio *rx, *tx;
    bool accepted, tx_busy, tx_failed;
    bool up_due;             /* SESSION_UP must be reported, after the SESSION_DOWN of the session that it replaces */
    uint8_t *in;             /* receive buffer, CONN_READ_BYTES */
    struct session_tls *tls; /* NULL: none */
    struct buf plain;        /* decrypted */
    char *roles;             /* accepted ones that the peer's certificate permits; NULL: not yet, or no TLS */
};

struct session {
    struct list node; /* session_hub.sessions */
    struct session_hub *h;
    struct conn *conn;      /* NULL: not connected */
    char *url, *role;       /* role: of a dialed session, the role that the peer must have */
    const char *dial_error; /* static; NULL: none */
    void *arg;
    bool dialed, plain, up, closing; /* closing: session_bye was called, so it does not connect again */
    char peer_role[WIRE_ROLE_BYTES_MAX + 1], peer_name[WIRE_NAME_BYTES_MAX + 1];
    uint64_t peer_inc;
    /* only of a dialed session */
    nng_stream_dialer *dialer;
    nng_aio *dial;
    struct ready ready;
    bool dialing;
    uint32_t wait_ms;        /* delay before the next attempt */
    uint64_t dial_ms, up_ms; /* time of the next attempt; of the last SESSION_UP */
};

struct session_listener {
    struct list node; /* session_hub.listeners */
    struct session_hub *h;
    char *url, *roles;
    void *arg;
    nng_stream_listener *listener;
    nng_aio *accept;
    struct ready ready;
    uint64_t retry_ms; /* after a failed accept: time of the next one; 0: an accept is posted */
};

struct session_hub {
    struct session_self self;
    struct session_hub_opts o;
    struct wire_arena *arena;
    struct list conns, sessions, listeners;
    uint32_t n_accepted;     /* accepted connections */
    struct list pending;     /* connections that may have events, in this order */
    struct list dirty;       /* connections that may have bytes to write */
    struct session *dead;    /* accepted session that was reported as down: freed when the next event is taken */
    uint32_t n_since_ready;  /* events taken since ready sockets were processed */
    uint64_t due_ms, ran_ms; /* next timer; last run of the event loop */

    pthread_mutex_t lock; /* protects the fields below */
    struct list ready;
    int fd; /* eventfd */
    bool raised;
};

uint64_t session_now_ms(void);
/* Called on nng's threads. */
void hub_mark(struct ready *r, unsigned flags);
void hub_unmark(struct ready *r); /* call it after the aios of the object were stopped */
void hub_due(struct session_hub *h, uint64_t at_ms);
/* Puts a connection into the list of those that may have events; first: at its head. */
void hub_pend(struct conn *c, bool first);

/* Owns the stream, also on failure. s: the session that dialed; NULL: the connection was accepted by l. */
int conn_new(struct err *e, struct conn **out, struct session_hub *h, nng_stream *stream, struct session *s,
             struct session_listener *l);
void conn_free(struct conn *c);
void conn_ready(struct conn *c, unsigned flags);       /* may free c */
void conn_push(struct conn *c);                        /* starts to write queued bytes */
void conn_dirty(struct conn *c);                       /* bytes may be queued: conn_push is due */
void conn_tick(struct conn *c, uint64_t now);          /* may free c */
bool conn_is_over(const struct conn *c, uint64_t now); /* it has ended, and nothing is left to write */
/* Separates the connection from its session; the hub frees it after its last bytes were written. */
void conn_detach(struct conn *c);

const char *session_url_stream(const char *url); /* the part of it that nng gets */
void dial_ready(struct session *s);
void dial_stop(struct session *s); /* final: frees the dialer */
void dial_tick(struct session *s, uint64_t now);
/* Schedules the next attempt after the connection of a dialed session ended. */
void dial_again(struct session *s, bool refused, uint64_t now);
void listener_ready(struct session_listener *l);
void listener_tick(struct session_listener *l, uint64_t now);

int session_new(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg);
void session_delete(struct session *s);

#endif
