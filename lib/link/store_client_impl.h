/* Private to lib/link: the client of kvstore. store_client.c has its connection, lease and thread, store_calls.c its
 * requests. */
#ifndef LINK_STORE_CLIENT_IMPL_H
#define LINK_STORE_CLIENT_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/socket.h"
#include "link/socket.h"
#include "link/store_client.h"

struct queued { /* a notification that a waiting sequence has grown */
    struct list node;
    struct kv_seq_info seq;
};

struct store_client {
    struct sockaddr_un address;
    char *name;
    bool has_kind;
    struct kv_kind kind;
    int timeout_ms;

    pthread_mutex_t lock;  /* held during a call, from request to response */
    pthread_mutex_t wlock; /* held while a frame is written; taken inside lock, or alone */
    _Atomic int sock;
    int fd_in[SOCKET_FDS];
    _Atomic bool broken;  /* no connection: the thread connects again */
    _Atomic bool expired; /* the lease: store_client_renew_all is due */
    uint64_t id, key, tag;
    _Atomic uint64_t lease_ms;
    struct kv_arena *arena;
    enum kv_why why;
    struct buf in;
    size_t skip; /* bytes of the last received frame, which is still borrowed from `in` */
    struct wire_arena *mem;
    struct list news; /* struct queued */

    pthread_t thread;
    bool has_thread;
    int stop[2]; /* a pipe: a byte ends the thread */
};

int64_t client_now_ms(void);

/* Sends the request *f and blocks for the response of kind `want`, which replaces *f and is borrowed until client_done.
 * Holds the lock on return, also after a failure: the caller must call client_done. */
int client_call(struct err *e, struct store_client *c, struct wire_frame *f, enum wire_kind want);
int client_done(struct store_client *c, int rc); /* releases the lock; returns rc */

/* The functions below are called with the lock held. client_ready waits until the thread has connected again. */
int client_ready(struct err *e, struct store_client *c, int64_t end_ms);
/* The next frame, borrowed until the next call. ERR_NO: none in time. */
int client_receive(struct err *e, struct store_client *c, struct wire_frame *f, int64_t end_ms);
/* Handles a frame that is not the response to the current call: queues a notification, drops a late response. */
void client_notification(struct store_client *c, const struct wire_frame *f);
void client_info(struct kv_seq_info *out, const struct wire_kv_seq *q);

#endif
