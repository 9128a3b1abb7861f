/*
 * Private to lib/link: hubs, sessions and their connections over nng's streams.
 *
 * nng's threads only mark an object as ready, with the lock, and write the hub's eventfd; the thread of the hub does
 * the rest. No function of nng is called with the lock held. Rules that nng 1.5.2 needs: a receive is posted as soon as
 * there is a stream, and always; a failed write does not end a connection, a failed read does; a stream is closed, its
 * aios stopped, then freed.
 */
#ifndef LINK_SESSION_IMPL_H
#define LINK_SESSION_IMPL_H

#include <nng/nng.h>
#include <pthread.h>

#include "base/list.h"
#include "link/session_core.h"

#define CONN_READ_BYTES ((size_t)64 << 10)
#define HUB_READY_EVERY 32 /* events taken before the sockets are looked at again */
#define HUB_LATE_MS 500    /* later than this, the process was stopped */
#define HUB_CONNS_SPARE 64 /* connections beside SESSIONS_MAX that are told so; more are closed at once */
#define REDIAL_MS_MIN 5
#define REDIAL_MS_MAX 100
#define REDIAL_REFUSED_MS 1000
#define DIAL_MS_MAX 5000
#define ACCEPT_AGAIN_MS 100

enum { READY_RX = 1, READY_TX = 2, READY_DIAL = 4, READY_ACCEPT = 8 };

/* Embedded in what nng's threads mark. */
struct ready {
    struct session_hub *h;
    struct list node;
    unsigned what; /* READY_*, 0: not in the list */
    void *of;
};

struct conn {
    struct list node;           /* of the hub */
    struct list pending, dirty; /* while it is in these lists of the hub */
    struct session_hub *h;
    struct session *s; /* NULL: accepted and without hello yet, or no longer a session's */
    struct session_listener *l;
    struct core core;
    struct ready ready;
    nng_stream *stream;
    nng_aio *rx, *tx;
    bool accepted, tx_busy, tx_failed;
    bool up_due; /* SESSION_UP is to be reported, after the SESSION_DOWN of the session that is replaced */
    uint8_t *in;
};

struct session {
    struct list node; /* of the hub */
    struct session_hub *h;
    struct conn *conn; /* NULL: not connected */
    char *url, *role;  /* role: dialed, what the peer must be */
    void *arg;
    bool dialed, plain, up, left; /* left: session_bye was called, it does not connect again */
    char peer_role[WIRE_ROLE_BYTES_MAX + 1], peer_name[WIRE_NAME_BYTES_MAX + 1];
    uint64_t peer_inc;
    /* dialed */
    nng_stream_dialer *dialer;
    nng_aio *dial;
    struct ready ready;
    bool dialing;
    uint32_t wait_ms; /* before the next attempt */
    uint64_t dial_ms, up_ms;
};

struct session_listener {
    struct list node; /* of the hub */
    struct session_hub *h;
    char *url, *roles;
    void *arg;
    nng_stream_listener *listener;
    nng_aio *accept;
    struct ready ready;
    uint64_t again_ms; /* accepting failed: again then; 0: it is under way */
};

struct session_hub {
    struct session_self self;
    struct session_hub_opts o;
    struct wire_arena *arena;
    struct list conns, sessions, listeners;
    uint32_t n_accepted;    /* connections */
    struct list pending;    /* connections that are asked for events, in this order */
    struct list dirty;      /* connections that may have something to write */
    struct session *dead;   /* accepted, reported as down: freed when the next event is taken */
    uint32_t n_since_ready; /* events */
    uint64_t due_ms, ran_ms;

    pthread_mutex_t lock; /* of what follows */
    struct list ready;
    int fd;
    bool raised;
};

uint64_t session_now_ms(void);
/* On nng's threads. */
void hub_mark(struct ready *r, unsigned what);
void hub_unmark(struct ready *r); /* after its aios were stopped */
void hub_due(struct session_hub *h, uint64_t at_ms);
/* conn: to be asked for events; first: before all others. */
void hub_pend(struct conn *c, bool first);

/* Takes over the stream, also on failure. plain and dialed by s; s NULL: accepted by l. */
int conn_new(struct err *e, struct conn **out, struct session_hub *h, nng_stream *stream, struct session *s,
             struct session_listener *l);
void conn_free(struct conn *c);
void conn_ready(struct conn *c, unsigned what); /* may free it */
void conn_push(struct conn *c);                 /* writes what is queued */
void conn_dirty(struct conn *c);                /* something was queued */
void conn_tick(struct conn *c, uint64_t now);   /* may free it */
/* The session lets go of it: it stays until its last bytes are written. */
void conn_detach(struct conn *c);

int session_url_check(struct err *e, const char *url); /* ERR_USAGE */
void dial_ready(struct session *s);
void dial_stop(struct session *s); /* for good */
void dial_tick(struct session *s, uint64_t now);
/* The connection of a dialed session ended: when it connects again. */
void dial_again(struct session *s, bool refused, uint64_t now);
void listener_ready(struct session_listener *l);
void listener_tick(struct session_listener *l, uint64_t now);

int session_new(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg);
void session_delete(struct session *s);

#endif
