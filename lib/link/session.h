/*
 * Sessions: one ordered, bidirectional connection per pair of processes (worker and scheduler, gateway and scheduler,
 * worker and gateway, gateway and tokenize, tool and scheduler), over nng's byte streams (ipc://PATH, tcp://HOST:PORT).
 * Both sides send frames whenever they have some. Frames arrive in order, whole, and at most once per connection.
 *
 * There is one repair: when a connection breaks, the dialer connects again, both sides see SESSION_DOWN and then
 * SESSION_UP, and each sends its full state over the new connection. Nothing is resent here; what was sent and not
 * acknowledged before SESSION_DOWN may or may not have been processed by the peer.
 *
 * A connection begins with one `session_hello` in each direction (wire version, role, name, incarnation), before
 * anything else and within SESSION_HELLO_MS. A version or role that the other side does not accept ends it with
 * `session_bye`, whose reason the other side gets as the error of SESSION_DOWN. An accepted session whose role and name
 * equal those of an older one replaces it: the older one is closed first (SESSION_DOWN before SESSION_UP). One without
 * a name (tools) replaces nobody.
 *
 * Acknowledgement: a frame counts as processed when its receiver asks for the next event. Each side reports the number
 * of frames it has processed (cumulative, per connection), at the latest when its event queue is empty. The sender sees
 * SESSION_ACKED.
 *
 * Keepalive: a side that has sent nothing for a second, or for a third of the peer's `silence_ms` (which its hello
 * states), sends `session_ping`; a side that has received nothing for `silence_ms` closes the connection. Time in which
 * this process itself was stopped (its event loop came more than 500 ms late) does not count against its peers.
 *
 * Bounds: a frame has at most SESSION_FRAME_BYTES_MAX bytes. Bytes queued and not yet acknowledged have at most
 * `window` bytes, except that one frame may always be sent when nothing is unacknowledged. session_send refuses more
 * (ERR_NO): the caller keeps the rest, and continues after SESSION_ACKED. Received bytes are always read; frames that
 * arrive and are not yet taken are bounded by the peer's window. A peer that exceeds a bound, sends no frame, or sends
 * before its hello is closed with a reason.
 *
 * Threads: a hub and its sessions belong to one thread. nng's threads only mark sessions as ready. session_hub_wake may
 * be called from any thread and from signal handlers. Nothing here blocks but session_hub_wait and session_hub_free (at
 * most about a second).
 */
#ifndef LINK_SESSION_H
#define LINK_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define SESSION_FRAME_BYTES_MAX (32u << 20)
#define SESSION_WINDOW_BYTES (16u << 20) /* default window */
#define SESSION_HELLO_MS 2000
#define SESSION_PING_MS 1000
#define SESSIONS_MAX 4096 /* accepted, of a hub; a further connection is closed with a reason */

struct session_hub;
struct session;

/* What a process says of itself in `session_hello`. Strings are copied. */
struct session_self {
    const char *role; /* "worker", "gateway", "sched", "tokenize", "tool" */
    const char *name; /* at most WIRE_NAME_BYTES_MAX */
    uint64_t inc;     /* incarnation: another number in each life of a process */
};

enum session_event_type {
    SESSION_UP = 1,  /* the hellos were exchanged; frames may be sent */
    SESSION_FRAME,   /* a frame, whole */
    SESSION_ACKED,   /* the peer has processed more of our frames: session_acked() */
    SESSION_DOWN,    /* the connection has ended after SESSION_UP: err says why. Of an accepted session nothing follows,
                        and it is freed when the next event is taken; a dialed one connects again by itself.
                        err.code 0: it ended in order after session_bye, the peer has processed everything */
    SESSION_REFUSED, /* a dialed connection ended before SESSION_UP because of what the peer is or said (version, role,
                        session_bye): err says why. It dials again after a second */
};

struct session_event {
    enum session_event_type type;
    struct session *s;
    const uint8_t *p; /* SESSION_FRAME: the frame with its length prefix; valid until the next event is taken */
    size_t n;
    struct err err; /* SESSION_DOWN, SESSION_REFUSED */
};

/* silence_ms 0: the defaults (accepted sessions 3000, dialed ones 10000). */
struct session_hub_opts {
    struct session_self self;
    uint32_t silence_accepted_ms, silence_dialed_ms;
    uint64_t window; /* 0: SESSION_WINDOW_BYTES */
};

int session_hub_new(struct err *e, struct session_hub **out, const struct session_hub_opts *o);
/* Closes everything. Queued frames that were not sent are lost: see session_bye. NULL is allowed. */
void session_hub_free(struct session_hub *h);

/* Readable while there may be an event or something due; to be polled beside others. */
int session_hub_fd(const struct session_hub *h);
/* When session_hub_next must be called although the descriptor is not readable (keepalive, redial): milliseconds from
 * now. */
int session_hub_timeout_ms(const struct session_hub *h);
/* Waits until there may be an event, for session_hub_wake, or for at most timeout_ms (-1: no limit of its own). */
void session_hub_wait(struct session_hub *h, int timeout_ms);
void session_hub_wake(struct session_hub *h);
/* The next event, or false: there is none now. Sends what is queued, acknowledges what was processed, does what is due.
 */
bool session_hub_next(struct session_hub *h, struct session_event *out);
/* The frame of a SESSION_FRAME event. It borrows from the event's bytes and from the arena. ERR_PROTO: it breaks its
 * row in the schema; the caller decides whether to close the session. */
int session_frame(struct err *e, struct wire_frame *f, struct wire_arena *a, const struct session_event *ev);

struct session_listener;
/* ERR_USAGE: no such address; ERR_NO: somebody listens there, or the path is not a socket. A socket file that nobody
 * listens on is replaced; mode 0600. `roles`: those accepted, separated by spaces. arg: session_arg of what is
 * accepted. */
int session_listen(struct err *e, struct session_listener **out, struct session_hub *h, const char *url,
                   const char *roles, void *arg);
void session_listener_free(struct session_listener *l); /* stops accepting; accepted sessions stay */
/* As peers dial it: for tcp://HOST:0 with the port that was free. */
const char *session_listener_url(const struct session_listener *l);

/* Connects when it can, and again 5 to 100 ms after a connection broke or failed; does not wait. `role`: what the peer
 * must be. The session is the caller's until session_free. */
int session_dial(struct err *e, struct session **out, struct session_hub *h, const char *url, const char *role,
                 void *arg);
/* The same for a peer that speaks frames without hello, acknowledgement and keepalive (kvstore: unix:PATH or
 * ipc://PATH): SESSION_UP comes as soon as it is connected; session_acked stays 0 and only unsent bytes count against
 * the window. */
int session_dial_plain(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg);
/* Closes a dialed session for good, without an event, and frees it. Of an accepted one: as session_close, and freed. */
void session_free(struct session *s);
/* Ends the connection with a reason for the peer (NULL: none). SESSION_DOWN follows. */
void session_close(struct session *s, const char *reason);
/* No more is sent after what is queued: the peer processes it, and the connection ends by SESSION_DOWN when the peer
 * has acknowledged everything, or after timeout_ms. A dialed one does not connect again. For an orderly end of a
 * process. */
void session_bye(struct session *s, uint32_t timeout_ms);

/* Queues a frame. ERR_NO: the window is full (nothing was queued). ERR_PROTO: the frame breaks its row in the schema or
 * is too long; ERR_USAGE: not connected. */
int session_send(struct err *e, struct session *s, const struct wire_frame *f);
/* The same for one frame that is encoded already, with its length prefix. */
int session_send_bytes(struct err *e, struct session *s, const uint8_t *p, size_t n);
/* Whether a frame of n bytes would be accepted now. */
bool session_has_room(const struct session *s, size_t n);

/* Frames queued and acknowledged on the present connection, cumulative; both 0 after SESSION_DOWN. A frame that was
 * queued when session_sent became N is processed when session_acked is at least N. */
uint64_t session_sent(const struct session *s);
uint64_t session_acked(const struct session *s);
uint64_t session_unacked_bytes(const struct session *s);

bool session_is_up(const struct session *s);
const char *session_peer_name(const struct session *s); /* "" before SESSION_UP, and of a plain session */
const char *session_peer_role(const struct session *s);
uint64_t session_peer_inc(const struct session *s);
const char *session_url(const struct session *s); /* dialed, or of its listener */
void *session_arg(const struct session *s);
void session_set_arg(struct session *s, void *arg);

#endif
