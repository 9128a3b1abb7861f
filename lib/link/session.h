/*
 * Sessions: one ordered, bidirectional connection per pair of processes (worker and scheduler, gateway and scheduler,
 * worker and gateway, gateway and tokenize, tool and scheduler), over nng's byte streams (ipc://PATH, tcp://HOST:PORT,
 * tls+tcp://HOST:PORT).
 * Both sides may send frames at any time. Frames arrive in order, whole, and at most once per connection.
 *
 * Resync is the only recovery: when a connection breaks, the dialer connects again, both sides get SESSION_DOWN and
 * then SESSION_UP, and each sends its full state over the new connection. The session retransmits nothing: the peer may
 * or may not have processed a frame that was not acknowledged before SESSION_DOWN. So frames must be idempotent.
 *
 * A connection begins with one `session_hello` in each direction (wire version, role, name, incarnation), before
 * any other frame and within SESSION_HELLO_MS. A side that does not accept the peer's version or role ends the
 * connection with `session_bye`, whose reason the peer gets as the error of SESSION_REFUSED or SESSION_DOWN. An
 * accepted session whose role and name equal those of an older one replaces it: the older one is closed first
 * (SESSION_DOWN before SESSION_UP). A session without a name (of a tool) replaces none.
 *
 * Trust: ipc:// admits processes of this user, of root, and of the owner of the socket's directory. tls+tcp:// admits
 * the holders of a certificate (link/peer_tls.h), which also states the roles and names that the hello may have. Both
 * sides check. tcp:// has neither, so it is refused beyond the loopback unless session_security permits it.
 *
 * Acknowledgement: a frame counts as processed when its receiver takes the next event. Each side acknowledges the
 * number of frames it has processed (cumulative, per connection), at the latest when its event queue is empty. The
 * sender gets SESSION_ACKED.
 *
 * Keepalive: a side that has sent nothing for a second, or for a third of the `silence_ms` in the peer's hello, sends
 * `session_ping`, at most every 20 ms. A side that has received nothing for `silence_ms` closes the connection. Time in
 * which this process itself was stopped (its event loop ran more than 500 ms late) does not count against its peers.
 *
 * Limits: a frame has at most SESSION_FRAME_BYTES_MAX bytes. At most `window` bytes are queued and unacknowledged,
 * except that one frame may always be sent when nothing is unacknowledged. session_send refuses more (ERR_NO): the
 * caller keeps the frame and continues after SESSION_ACKED. Received bytes are always read; the peer's window bounds
 * the frames that wait to be taken. A peer that exceeds a limit, sends bytes that are not a frame, or sends another
 * frame before its hello is disconnected with a reason.
 *
 * Threads: a hub and its sessions belong to one thread. nng's threads only mark sessions as ready. session_hub_wake may
 * be called from any thread and from signal handlers. Only session_hub_wait and session_hub_free (at most about a
 * second) block.
 */
#ifndef LINK_SESSION_H
#define LINK_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "link/peer_tls.h"
#include "wire/wire.h"

#define SESSION_FRAME_BYTES_MAX (32u << 20)
#define SESSION_WINDOW_BYTES (16u << 20) /* default window */
#define SESSION_HELLO_MS 2000
#define SESSION_PING_MS 1000
#define SESSIONS_MAX 4096 /* accepted sessions of a hub; a further connection is closed with a reason */

struct session_hub;
struct session;

/* The identity of this process in `session_hello`. Strings are copied. */
struct session_self {
    const char *role; /* "worker", "gateway", "monitor", "sched", "tokenize", "tool" */
    const char *name; /* at most WIRE_NAME_BYTES_MAX bytes; "" or NULL: none */
    uint64_t inc;     /* incarnation: a number that differs after each restart of the process */
};

enum session_event_type {
    SESSION_UP = 1, /* the hellos were exchanged; frames may be sent */
    SESSION_FRAME,  /* one whole frame was received */
    SESSION_ACKED,  /* the peer has processed more of our frames: session_acked() */
    SESSION_DOWN,   /* the connection ended after SESSION_UP; err: the reason. An accepted session gets no further event
                       and is freed when the next event is taken; a dialed one connects again by itself.
                       err.code 0: graceful end after session_bye, the peer has processed everything */
    SESSION_REFUSED, /* a dialed connection ended before SESSION_UP because one side refused the other (version, role,
                        session_bye); err: the reason. The session dials again after a second */
};

struct session_event {
    enum session_event_type type;
    struct session *s;
    const uint8_t *p; /* SESSION_FRAME: the frame with its length prefix; valid until the next event is taken */
    size_t n;
    struct err err; /* SESSION_DOWN, SESSION_REFUSED */
};

/* What protects connections to other hosts. Zeroed: only ipc:// and tcp:// on the loopback are possible. */
struct session_security {
    struct peer_tls *tls; /* for tls+tcp://; borrowed until session_hub_free; NULL: none */
    bool plaintext;       /* permit tcp:// beyond the loopback: neither encrypted nor authenticated */
};

/* Receive timeouts in ms of accepted and dialed sessions; 0: the defaults (3000 and 10000). */
struct session_hub_opts {
    struct session_self self;
    struct session_security security;
    uint32_t silence_accepted_ms, silence_dialed_ms;
    uint64_t window; /* 0: SESSION_WINDOW_BYTES */
};

int session_hub_new(struct err *e, struct session_hub **out, const struct session_hub_opts *o);
/* Closes all sessions and listeners. Queued frames that were not sent are lost: see session_bye. NULL is allowed. */
void session_hub_free(struct session_hub *h);

/* Readable while session_hub_next may have an event or work; poll it together with other descriptors. */
int session_hub_fd(const struct session_hub *h);
/* Milliseconds after which session_hub_next must be called although the descriptor is not readable (keepalive, redial);
 * -1: none. */
int session_hub_timeout_ms(const struct session_hub *h);
/* Waits until there may be an event, for session_hub_wake, or for at most timeout_ms (-1: no limit of its own). */
void session_hub_wait(struct session_hub *h, int timeout_ms);
void session_hub_wake(struct session_hub *h);
/* The next event, or false: there is none now. Also sends queued frames and acknowledgements, and runs timers. */
bool session_hub_next(struct session_hub *h, struct session_event *out);
/* Decodes the frame of a SESSION_FRAME event. It borrows from the event's bytes and from the arena. ERR_PROTO: the
 * frame violates its schema; the caller decides whether to close the session. */
int session_frame(struct err *e, struct wire_frame *f, struct wire_arena *a, const struct session_event *ev);

/* ERR_USAGE: not an address, or not permitted by s. */
int session_url_check(struct err *e, const char *url, const struct session_security *s);
bool session_url_is_tls(const char *url);
/* Whether an address can be used on this host only: ipc://, or on the loopback. */
bool session_url_is_local(const char *url);
/* Whether an address is all addresses of this host, to which others cannot connect: 0.0.0.0, [::], * or none. */
bool session_url_is_any(const char *url);

struct session_listener;
/* ERR_USAGE: not an address of this host, or not permitted by session_security; ERR_NO: another program listens on it,
 * or the path is not a socket. A stale socket file (no program listens on it) is replaced; mode 0600. If root listens
 * in a directory of another user, the socket belongs to that user, too. `roles`: accepted roles of peers, separated by
 * spaces. arg: session_arg of accepted sessions. */
int session_listen(struct err *e, struct session_listener **out, struct session_hub *h, const char *url,
                   const char *roles, void *arg);
void session_listener_free(struct session_listener *l); /* stops accepting; accepted sessions stay */
/* The address that peers dial: for tcp://HOST:0 with the port that was chosen. */
const char *session_listener_url(const struct session_listener *l);
/* The line LISTEN=URL of the readiness message, with a newline; for ipc:// "", since its address is known. */
void session_listener_line(char *out, size_t n, const struct session_listener *l);

/* Starts to connect without blocking; connects again 5 to 100 ms after a connection broke or failed. `role`: the role
 * that the peer must have. The caller owns the session until session_free. ERR_USAGE: not an address, or not permitted
 * by session_security. */
int session_dial(struct err *e, struct session **out, struct session_hub *h, const char *url, const char *role,
                 void *arg);
/* The same for a peer that uses frames without hello, acknowledgement and keepalive (kvstore: unix:PATH or ipc://PATH):
 * SESSION_UP follows as soon as it is connected; session_acked stays 0 and only unsent bytes count against the window.
 */
int session_dial_plain(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg);
/* Closes and frees a session without an event; the peer gets a reason. A dialed session does not connect again. NULL is
 * allowed. */
void session_free(struct session *s);
/* Ends the connection; reason: sent to the peer (NULL: none). SESSION_DOWN follows if the session was up. */
void session_close(struct session *s, const char *reason);
/* For a graceful shutdown: sends what is queued, but accepts no further frame. The connection ends by SESSION_DOWN when
 * the peer has acknowledged everything, or after timeout_ms. A dialed session does not connect again. */
void session_bye(struct session *s, uint32_t timeout_ms);

/* Queues a frame. ERR_NO: the window is full (nothing was queued). ERR_PROTO: the frame violates its schema or is too
 * long; ERR_USAGE: not connected. */
int session_send(struct err *e, struct session *s, const struct wire_frame *f);
/* The same for one encoded frame with its length prefix; copied. */
int session_send_bytes(struct err *e, struct session *s, const uint8_t *p, size_t n);
/* Whether a frame of n bytes would be accepted now. */
bool session_has_room(const struct session *s, size_t n);

/* Frames queued and acknowledged on the current connection, cumulative; both 0 after SESSION_DOWN. A frame that was
 * queued when session_sent became N has been processed when session_acked is at least N. */
uint64_t session_sent(const struct session *s);
uint64_t session_acked(const struct session *s);
uint64_t session_unacked_bytes(const struct session *s);

bool session_is_up(const struct session *s);
const char *session_peer_name(const struct session *s); /* "" before SESSION_UP, and for a plain session */
const char *session_peer_role(const struct session *s);
/* Why a dialed session is not connected: the last failure to connect, like "Permission denied"; "": none yet, or it is
 * connected. */
const char *session_dial_error(const struct session *s);
uint64_t session_peer_inc(const struct session *s);
const char *session_url(const struct session *s); /* the dialed address, or that of the listener */
void *session_arg(const struct session *s);
void session_set_arg(struct session *s, void *arg);

#endif
