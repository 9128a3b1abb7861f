/*
 * Private to lib/link: one connection of a session as a state machine, without sockets, threads, or a clock of its own.
 * Received bytes and the time go in; events and bytes to write come out. session_conn.c drives it with nng's streams,
 * tests/fuzz/session_fuzz.c with random input.
 *
 * States: HELLO until the hello of the peer was accepted, UP, LEAVING after core_bye, ENDED. In ENDED nothing is
 * received any more; what is still to be written (the last acknowledgement, session_bye) is, and the connection stays
 * open until the peer has closed it or CORE_LINGER_MS have passed: a connection that is closed with unread bytes loses
 * the last bytes it sent.
 */
#ifndef LINK_SESSION_CORE_H
#define LINK_SESSION_CORE_H

#include "base/buf.h"
#include "link/session.h"

#define CORE_HELLO_BYTES_MAX 4096 /* a frame before the hello was accepted */
#define CORE_LINGER_MS 1000
#define CORE_ACK_FRAMES 256 /* processed: an acknowledgement is due although there are further events */
#define CORE_ACK_BYTES (256u << 10)

struct core_opts {
    const struct session_self *self; /* borrowed, as are roles and arena */
    const char *roles;               /* those that the peer may have, separated by spaces */
    bool dialed, plain;              /* plain: no session_* frames, UP at once */
    uint32_t silence_ms;
    uint64_t window;
    struct wire_arena *arena;
};

enum core_state { CORE_HELLO = 1, CORE_UP, CORE_LEAVING, CORE_ENDED };

struct core {
    struct core_opts o;
    enum core_state state;
    struct err err;   /* why it ended */
    bool refused;     /* it ended because of what the peer is or sent, not because the connection broke */
    bool lost;        /* the connection is closed: nothing can be written */
    bool down_due;    /* CORE_EV_DOWN is to be reported */
    bool up_due;      /* plain: CORE_EV_UP is */
    bool await_close; /* ENDED: the peer closes first */
    bool bye_sent, bye_received;
    char role[WIRE_NAME_BYTES_MAX + 1], name[WIRE_NAME_BYTES_MAX + 1]; /* of the peer */
    uint64_t inc;
    uint32_t ping_ms;

    struct buf in;
    uint32_t taken;     /* bytes of the frame of the last CORE_EV_FRAME, until the next event is taken; 0: none */
    uint64_t processed; /* frames of the peer */
    uint64_t reported;  /* of them, in the last acknowledgement that was queued */
    uint64_t unreported_bytes;

    struct buf out, writing; /* queued; being written, where it stays */
    uint64_t sent, acked;    /* frames of ours, without session_* */
    uint64_t unacked_bytes;
    struct buf sizes; /* of the frames that are sent and not acked, a uint32_t each */

    uint64_t born_ms, seen_ms, wrote_ms; /* wrote: the last frame was queued */
    uint64_t end_ms;                     /* LEAVING, ENDED: not later than this */
};

enum core_event { CORE_EV_NONE, CORE_EV_UP, CORE_EV_FRAME, CORE_EV_ACKED, CORE_EV_DOWN };

/* ERR_SYS: no memory; core_free is safe then too. */
int core_init(struct err *e, struct core *c, const struct core_opts *o, uint64_t now_ms);
void core_free(struct core *c);

/* Bytes that were received. */
void core_received(struct core *c, const uint8_t *p, size_t n, uint64_t now_ms);
/* The connection broke. Whole frames that were received before are still reported. */
void core_lost(struct core *c, const char *text);
/* The next event; CORE_EV_FRAME: *p and *n, valid until the next call for this core. The frame of the last event counts
 * as processed from here on. */
enum core_event core_next(struct core *c, const uint8_t **p, size_t *n, uint64_t now_ms);

/* What is to be written now; n 0: nothing. The bytes stay where they are until core_wrote has counted all of them. */
const uint8_t *core_out(struct core *c, size_t *n);
void core_wrote(struct core *c, size_t n);

bool core_has_room(const struct core *c, size_t n);
int core_send(struct err *e, struct core *c, const struct wire_frame *f, uint64_t now_ms);
int core_send_bytes(struct err *e, struct core *c, const uint8_t *p, size_t n, uint64_t now_ms);

/* Ends the connection: `text` (printf) is the error of CORE_EV_DOWN. reason: for the peer, NULL: none. */
void core_end(struct core *c, int code, const char *reason, uint64_t now_ms, const char *text, ...)
    __attribute__((format(printf, 5, 6)));
void core_bye(struct core *c, uint32_t timeout_ms, uint64_t now_ms);

/* Does what is due: keepalive, silence, deadlines. */
void core_tick(struct core *c, uint64_t now_ms);
uint64_t core_due_ms(const struct core *c); /* when core_tick must be called */
/* This process did not run for ms: that does not count against the peer. */
void core_allow(struct core *c, uint64_t ms);
/* ENDED, and nothing is left to be written or waited for. */
bool core_is_over(const struct core *c, uint64_t now_ms);

#endif
