/*
 * Private to lib/link: one connection of a session as a state machine without sockets, threads, or a clock of its own.
 * Received bytes and the time are its input; events and bytes to write are its output. session_conn.c drives it with
 * nng's streams, tests/fuzz/session_fuzz.c with random input.
 *
 * States: HELLO until the hello of the peer was accepted, UP, CLOSING after core_bye, ENDED. In ENDED the core receives
 * nothing, but still writes queued bytes (the last acknowledgement, session_bye). With await_close (this side sent a
 * reason, or the peer ended the session without one) the connection stays open until the peer has closed it or
 * CORE_LINGER_MS have passed, because closing a connection with unread bytes discards the last
 * bytes that were sent.
 */
#ifndef LINK_SESSION_CORE_H
#define LINK_SESSION_CORE_H

#include "base/buf.h"
#include "link/session.h"

#define CORE_HELLO_BYTES_MAX 4096 /* of a frame before the hello was accepted */
#define CORE_LINGER_MS 1000
#define CORE_PING_MS_MIN 20 /* interval of pings, whatever silence_ms the peer states */
/* After this many processed frames or bytes an acknowledgement is due although further events wait. */
#define CORE_ACK_FRAMES 256
#define CORE_ACK_BYTES (256u << 10)

struct core_opts {
    const struct session_self *self; /* borrowed, as are roles and arena */
    const char *roles;               /* roles that the peer may have, separated by spaces */
    const char *names;               /* names that it may have, likewise; NULL: any */
    bool dialed, plain;              /* plain: no session_* frames, UP at once */
    uint32_t silence_ms;
    uint64_t window;
    struct wire_arena *arena;
};

enum core_state { CORE_HELLO = 1, CORE_UP, CORE_CLOSING, CORE_ENDED };

struct core {
    struct core_opts o;
    enum core_state state;
    struct err err;   /* reason of the end */
    bool refused;     /* one side refused the other; otherwise the connection broke */
    bool lost;        /* the connection is closed: nothing can be written */
    bool down_due;    /* CORE_EV_DOWN must be reported */
    bool up_due;      /* plain: CORE_EV_UP must be reported */
    bool await_close; /* ENDED: the peer closes first */
    bool bye_sent, bye_received;
    char role[WIRE_NAME_BYTES_MAX + 1], name[WIRE_NAME_BYTES_MAX + 1]; /* of the peer */
    uint64_t inc;
    uint32_t ping_ms;

    struct buf in;
    uint32_t taken;        /* bytes of the frame of the last CORE_EV_FRAME, until the next event is taken; 0: none */
    uint64_t processed;    /* frames of the peer */
    uint64_t acknowledged; /* frames of the peer, by the last acknowledgement that was queued */
    uint64_t unacknowledged_bytes;

    struct buf out, writing; /* queued; in writing, whose bytes must not move */
    uint64_t sent, acked;    /* frames that this side sent, without session_* */
    uint64_t unacked_bytes;  /* that this side sent */
    struct buf sizes;        /* a uint32_t for each frame that is sent and not acked */

    uint64_t born_ms;      /* connected */
    uint64_t last_seen_ms; /* bytes were received */
    uint64_t queued_ms;    /* the last frame was queued */
    uint64_t end_ms;       /* CLOSING, ENDED: the deadline */
};

enum core_event { CORE_EV_NONE, CORE_EV_UP, CORE_EV_FRAME, CORE_EV_ACKED, CORE_EV_DOWN };

/* ERR_SYS: no memory; core_free is also safe after a failure. */
int core_init(struct err *e, struct core *c, const struct core_opts *o, uint64_t now_ms);
void core_free(struct core *c);

void core_received(struct core *c, const uint8_t *p, size_t n, uint64_t now_ms);
/* The connection broke. Whole frames that were received before are still reported. */
void core_lost(struct core *c, const char *text);
/* The next event; CORE_EV_FRAME: *p and *n, valid until the next call for this core. The frame of the previous event
 * now counts as processed. */
enum core_event core_next(struct core *c, const uint8_t **p, size_t *n, uint64_t now_ms);

/* Bytes to write now; n 0: none. They do not move until core_wrote has counted all of them. */
const uint8_t *core_out(struct core *c, size_t *n);
void core_wrote(struct core *c, size_t n);

bool core_has_room(const struct core *c, size_t n);
int core_send(struct err *e, struct core *c, const struct wire_frame *f, uint64_t now_ms);
int core_send_bytes(struct err *e, struct core *c, const uint8_t *p, size_t n, uint64_t now_ms);

/* Ends the connection: `text` (printf) is the error of CORE_EV_DOWN. reason: sent to the peer; NULL: none. */
void core_end(struct core *c, int code, const char *reason, uint64_t now_ms, const char *text, ...)
    __attribute__((format(printf, 5, 6)));
void core_bye(struct core *c, uint32_t timeout_ms, uint64_t now_ms);

/* Runs the timers: keepalive, receive timeout, deadlines. */
void core_tick(struct core *c, uint64_t now_ms);
uint64_t core_due_ms(const struct core *c); /* time of the next core_tick */
/* Extends the timeouts by a time in which this process did not run. */
void core_allow(struct core *c, uint64_t ms);
/* ENDED, all bytes are written, and the core does not wait for the peer to close. */
bool core_is_over(const struct core *c, uint64_t now_ms);

#endif
