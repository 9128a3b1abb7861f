/*
 * Private to lib/link: the box, and the connections of a socket. The lock of a box is over all that its sockets share
 * with nng's threads; it is never held while nng is called. What comes is queued without taking memory: the places are
 * in the questions and connections themselves.
 */
#ifndef LINK_ASK_IMPL_H
#define LINK_ASK_IMPL_H

#include <nng/nng.h>
#include <pthread.h>

#include "link/ask.h"

struct box_item { /* something that came, in the box or not */
    struct box_item *prev, *next;
    bool in;
    enum link_what what;
    uint32_t peer;
    void *arg;
    nng_msg *msg;
    int failure;     /* of LINK_FAILED: a code of nng */
    const char *url; /* of its socket */
    struct link_question *q;
    const void *socket;
    void (*taken)(struct box_item *i); /* called after it was taken, without the lock; NULL: nothing to do */
};

struct link_box {
    pthread_mutex_t lock;
    struct box_item *first, *last;
    uint64_t n_bytes; /* of messages in it */
    int fd;
    bool raised;   /* fd is readable because of something in it */
    nng_msg *held; /* of the event taken last */
    bool stuck;    /* a socket could not be closed: nng may still put things in, so it is never freed */
};

/* With the lock. */
void box_put(struct link_box *b, struct box_item *i);
void box_remove(struct link_box *b, struct box_item *i); /* and frees its message */
/* Takes the lock. */
void box_forget(struct link_box *b, const void *socket); /* all of one socket */

/* A connection. Known from before its first message until LINK_DOWN is taken. */
struct peer {
    struct peer *next; /* of its bucket */
    struct peers *of;
    uint32_t id;
    bool up; /* LINK_UP was put into the box */
    bool gone;
    struct link_question *first; /* its questions that are open */
    uint32_t n_open;
    struct box_item up_item, down_item;
};

#define PEER_BUCKETS 256
struct peers {
    struct peer *bucket[PEER_BUCKETS];
    struct link_box *box;
    const void *socket;
    void *arg;
    const char *url;
    uint32_t n_up, n_came;
    /* The connection is gone (with the lock), and after that (without it); LINK_DOWN was taken. May be NULL. */
    void (*gone)(struct peer *p);
    void (*lost)(struct peers *s);
    void (*dropped)(struct peer *p);
};

/* Watches the connections of a socket; to be called before it listens or dials. */
int peers_watch(struct err *e, struct peers *s, nng_socket socket);
struct peer *peers_find(struct peers *s, uint32_t id); /* with the lock; NULL: gone */
void peer_up(struct peer *p);                          /* with the lock: LINK_UP, once */
void peers_down(struct peers *s);                      /* with the lock: LINK_DOWN for all */
void peers_free(struct peers *s);                      /* after the socket was closed */

/* "ipc://…" or "tcp://…"; ERR_USAGE. */
int ask_url(struct err *e, const char *url);
/* What every socket is set to. */
int ask_options(struct err *e, nng_socket s, const char *url);
/*
 * nng 1.5.2 loses the end of a receive where a connection is closed just as bytes come; it then waits for ever in the
 * one thread that does away with connections, for all sockets of the process, and in nng_close. So closing is given
 * some time. False: it hangs, and all that belongs to the socket must stay. link/dial.c has what this means for
 * connections that break.
 */
bool ask_close(nng_socket s);
/* Does nothing but have lib/link/broken_pipe.c linked. */
void ask_broken_pipes(void);

#endif
