/* Private to lib/link: a client of kvstore inside. store_client.c has its connection, lease and thread; store_calls.c
 * the calls that go over it. */
#ifndef LINK_STORE_CLIENT_IMPL_H
#define LINK_STORE_CLIENT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/socket.h"
#include "link/socket.h"
#include "link/store_client.h"

struct queued { /* news of a sequence */
    struct list node;
    struct kv_seq_info seq;
};

struct store_client {
    struct sockaddr_un address;
    char *name;
    bool has_kind;
    struct kv_kind kind;
    int timeout_ms;

    pthread_mutex_t lock;  /* a call, from its frame to its answer */
    pthread_mutex_t wlock; /* a frame on its way out; taken inside lock, or alone */
    _Atomic int sock;
    int fd_in;
    _Atomic bool broken; /* the connection: the thread makes another */
    _Atomic bool expired;
    uint64_t id, key, tag;
    _Atomic uint64_t lease_ms;
    struct kv_arena *arena;
    enum kv_why why;
    struct buf in;
    size_t skip; /* bytes of the frame that was given out last, still in `in` */
    struct wire_arena *mem;
    struct list news; /* queued */

    pthread_t thread;
    bool has_thread;
    int stop[2]; /* a pipe that ends the thread */
};

int64_t client_now_ms(void);

/* Sends, and waits for the answer, `want` or an error. *f is both; borrowed until client_done, which every call needs,
 * failed or not: the lock is held between the two. */
int client_call(struct err *e, struct store_client *c, struct wire_frame *f, enum wire_kind want);
int client_done(struct store_client *c, int rc); /* returns rc */

/* With the lock held. Waits while the connection is being made anew. */
int client_ready(struct err *e, struct store_client *c, int64_t end_ms);
/* The next frame, borrowed until the next one. ERR_NO: none in time. */
int client_receive(struct err *e, struct store_client *c, struct wire_frame *f, int64_t end_ms);
/* A frame that is not the response to the call under way: news are queued, a late response is dropped. */
void client_unasked(struct store_client *c, const struct wire_frame *f);
void client_info(struct kv_seq_info *out, const struct wire_kv_seq *q);

#endif
