/*
 * Questions and answers between services, over nng (ipc://PATH, tcp://HOST:PORT): messages of frames. A message is any
 * number of frames, each with its length before it as on a pipe. A question may stay unanswered for as long as its
 * receiver likes (a long poll), and many may be open at once on one connection.
 *
 * Everything that happens arrives in a box, in order, and is taken out by one thread; nng's own threads put it there. A
 * box has a descriptor to poll beside others. Sockets are opened at the start of a program and closed at its end.
 *
 * A question whose receiver dies, or whose connection breaks, has failed: it may have been done or not, so what is
 * asked must be safe to ask again. An answer to a peer that has gone vanishes. A peer that was stopped is not noticed
 * here.
 */
#ifndef LINK_ASK_H
#define LINK_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define LINK_MESSAGE_BYTES_MAX (64u << 20)
#define LINK_QUESTIONS_MAX 16384 /* open at a listener */
#define LINK_ASKED_MAX 4096      /* open of a dialer */

/* ---- a message that is being written ---- */

struct link_msg {
    uint8_t *p;
    size_t n, cap;
    uint32_t n_frame;
};
int link_msg_add(struct err *e, struct link_msg *m, const struct wire_frame *f);
void link_msg_clear(struct link_msg *m); /* empty, memory kept */
void link_msg_free(struct link_msg *m);

/* The next frame of a message that came: *p and *n move behind it; false at the end, or on an error (e->code). Borrows
 * from the bytes and the arena. */
bool link_msg_next(struct err *e, struct wire_frame *f, struct wire_arena *a, const uint8_t **p, size_t *n);

/* ---- the box ---- */

struct link_box;
struct link_question; /* to be answered once */

enum link_what {
    LINK_QUESTION = 1, /* of a peer of a listener */
    LINK_ANSWER,       /* to what was asked */
    LINK_FAILED,       /* what was asked will not be answered */
    LINK_UP,           /* a connection is there */
    /* It is gone: its peer died, or closed it. Its questions are dropped: from the taking of this on they are no more,
     * and must not be answered. */
    LINK_DOWN,
};

struct link_event {
    enum link_what what;
    void *arg;               /* of the socket; for LINK_ANSWER and LINK_FAILED of the question */
    uint32_t peer;           /* the connection, 0 for LINK_FAILED; a number is not used again soon */
    struct link_question *q; /* LINK_QUESTION */
    const uint8_t *p;        /* LINK_QUESTION, LINK_ANSWER: the message, until the next take from this box */
    size_t n;
    struct err err; /* LINK_FAILED */
};

int link_box_new(struct err *e, struct link_box **out);
void link_box_free(struct link_box *b);    /* after its sockets */
int link_box_fd(const struct link_box *b); /* readable while something is in it */
/* False: it is empty, and the descriptor is not readable any more, whoever woke it: what a wake was for is looked at
 * after this, or after link_box_wait. */
bool link_box_take(struct link_box *b, struct link_event *out);
/* Waits for something to take, or for link_box_wake, at most timeout_ms (-1: for ever). */
void link_box_wait(struct link_box *b, int timeout_ms);
void link_box_wake(struct link_box *b); /* from any thread, and from signal handlers */

/* ---- sockets ---- */

struct link_listener;
/* ERR_USAGE: no such address; ERR_NO: somebody listens there. A socket file that nobody listens on is replaced; mode
 * 0600. */
int link_listen(struct err *e, struct link_listener **out, struct link_box *b, const char *url, void *arg);
void link_listener_free(struct link_listener *l);
/* As peers dial it: for tcp://HOST:0 with the port that was free. */
const char *link_listener_url(const struct link_listener *l);
/* Sends m (NULL: an empty message) and empties it; q is gone whatever happens. Any thread. */
void link_answer(struct link_question *q, struct link_msg *m);

struct link_dialer;
/* Connects when it can, and again when the connection breaks; nothing is waited for here. */
int link_dial(struct err *e, struct link_dialer **out, struct link_box *b, const char *url, void *arg);
void link_dialer_free(struct link_dialer *d);
bool link_dialer_up(const struct link_dialer *d);
/* Sends m, and empties it; without a connection when there is one. Exactly one LINK_ANSWER or LINK_FAILED with `arg`
 * follows. ERR_NO: LINK_ASKED_MAX are open. */
int link_ask(struct err *e, struct link_dialer *d, struct link_msg *m, void *arg);

#endif
