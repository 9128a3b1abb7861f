/*
 * A server of frames over a Unix socket, in the caller's event loop; all calls belong to the thread of that loop, and
 * none blocks. Connections do not delay each other: the server stops reading from a client that does not read its
 * responses (back pressure), keeps partial frames, and closes a connection whose queue exceeds its limit.
 *
 * Each frame has a length prefix, as on a pipe. Descriptors can be passed with a frame in either direction.
 */
#ifndef LINK_SERVER_H
#define LINK_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/socket.h"
#include "err/err.h"
#include "wire/wire.h"

#define LINK_FRAME_BYTES_MAX (32u << 20) /* of a received frame */
#define LINK_QUEUE_BYTES_MAX (64u << 20) /* unsent bytes of one connection; more closes it */
#define LINK_CONNS_MAX 4096

struct loop;
struct link_server;
struct link_conn;

struct link_ops {
    /* A received frame, borrowed until the callback returns, which may call link_send and link_close. */
    void (*frame)(void *arg, struct link_conn *c, const struct wire_frame *f);
    /* The received bytes are not a frame; e: the reason. The connection is closed after its queue was sent; the
     * callback may add a response. */
    void (*bad)(void *arg, struct link_conn *c, const struct err *e);
    /* The connection has ended, by the client or by link_close; c is invalid after the callback returns. */
    void (*closed)(void *arg, struct link_conn *c);
};

/* url: "unix:PATH", mode 0600. A stale socket file (no program listens on it) is replaced and sets *stale. ERR_NO:
 * another program listens on it, or the file is not a socket. */
int link_server_new(struct err *e, struct link_server **out, bool *stale, struct loop *l, const char *url,
                    const struct link_ops *ops, void *arg);
void link_server_free(struct link_server *s); /* closes all connections, removes the socket */

/* Queues a frame with duplicates of the descriptors fd [SOCKET_FDS] (-1 from the first that is absent; NULL: none).
 * Only one frame with descriptors may be queued at a time. A failure closes the connection. */
void link_send(struct link_conn *c, const struct wire_frame *f, const int *fd);
uint64_t link_queued(const struct link_conn *c); /* unsent bytes */
void link_close(struct link_conn *c);            /* closes the connection after its queue was sent */
/* The descriptors that were received last, -1 from the first that is absent; owned by the caller. */
void link_take_fds(struct link_conn *c, int *fd);
int64_t link_pid(const struct link_conn *c); /* of the process that connected */
void link_set_data(struct link_conn *c, void *data);
void *link_data(const struct link_conn *c);

#endif
