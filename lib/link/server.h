/*
 * Frames over a Unix socket, the listening side: many connections in the caller's event loop, whose thread alone calls
 * what is below. A connection reads and writes at its own pace: one that does not read is not read from, one that sends
 * half a frame waits alone, and one whose answers pile up past a limit is closed.
 *
 * Frames have their length before them, as on a pipe. A descriptor may come or go beside a frame.
 */
#ifndef LINK_SERVER_H
#define LINK_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define LINK_FRAME_BYTES_MAX (32u << 20) /* a frame that comes in */
#define LINK_QUEUE_BYTES_MAX (64u << 20) /* what waits to go out to one connection; more closes it */
#define LINK_CONNS_MAX 4096

struct loop;
struct link_server;
struct link_conn;

struct link_ops {
    /* One frame; borrowed. The connection may be answered and closed within. */
    void (*frame)(void *arg, struct link_conn *c, const struct wire_frame *f);
    /* What came is no frame: e says why. The connection is closed after what is queued went out. */
    void (*bad)(void *arg, struct link_conn *c, const struct err *e);
    /* The other side, or link_close, has ended it: c is not valid any more after this. */
    void (*closed)(void *arg, struct link_conn *c);
};

/* url: "unix:PATH". A socket that nobody listens on any more is replaced, *stale then says so; ERR_NO where somebody
 * does. Mode 0600. */
int link_server_new(struct err *e, struct link_server **out, bool *stale, struct loop *l, const char *url,
                    const struct link_ops *ops, void *arg);
void link_server_free(struct link_server *s); /* closes all, removes the socket */

/* Queues a frame, and a copy of a descriptor beside it (-1: none), of which one may wait at a time. A failure closes
 * the connection. */
void link_send(struct link_conn *c, const struct wire_frame *f, int fd);
uint64_t link_queued(const struct link_conn *c); /* bytes that wait to go out */
void link_close(struct link_conn *c);            /* after what is queued went out */
/* The descriptor that came last, or -1; the caller's from here on. */
int link_take_fd(struct link_conn *c);
int64_t link_pid(const struct link_conn *c); /* of the process that connected */
void link_set_data(struct link_conn *c, void *data);
void *link_data(const struct link_conn *c);

#endif
