#include "link/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/socket.h"
#include "link/socket.h"

#define READ_BYTES ((size_t)64 << 10) /* of a connection in one turn, so that none delays the others */
#define PAUSE_BYTES ((size_t)1 << 20) /* with more queued bytes a connection is not read */
#define ACCEPTS 64                    /* in one turn */

struct link_conn {
    struct link_server *s;
    struct list node; /* link_server.conns */
    struct loop_fd sock;
    /* Received; to be sent with the byte after the first `fd_after` of out. -1: none */
    int fd_in[SOCKET_FDS], fd_out[SOCKET_FDS];
    size_t fd_after;
    int64_t pid;
    void *data;
    struct buf in, out;
    bool closing; /* the connection ends after its queue was sent */
};

struct link_server {
    struct loop *loop;
    struct loop_fd sock;
    struct sockaddr_un address;
    struct link_ops ops;
    void *arg;
    struct list conns;
    int n_conn;
    struct wire_arena *arena;
};

/* ---- connections ---- */

static void watch(struct link_conn *c)
{
    struct err e;
    uint32_t want = EPOLLRDHUP;
    if (buf_left(&c->out))
        want |= EPOLLOUT;
    if (!c->closing && buf_left(&c->out) < PAUSE_BYTES)
        want |= EPOLLIN;
    (void)loop_fd_set(&e, &c->sock, want); /* cannot fail for a descriptor that is in the loop */
}

static void end(struct link_conn *c)
{
    list_remove(&c->node);
    c->s->n_conn--;
    c->s->ops.closed(c->s->arg, c);
    loop_fd_remove(&c->sock);
    close(c->sock.fd);
    socket_fds_close(c->fd_in);
    socket_fds_close(c->fd_out);
    free(c->in.p);
    free(c->out.p);
    free(c);
}

static void sent(struct link_conn *c, size_t n)
{
    buf_take(&c->out, n);
    if (c->fd_out[0] >= 0 && c->fd_after)
        c->fd_after -= n;
    else
        socket_fds_close(c->fd_out);
}

/* False: the connection must be closed. */
static bool flush(struct link_conn *c)
{
    while (buf_left(&c->out)) {
        bool first = c->fd_out[0] >= 0 && c->fd_after;
        ssize_t n = socket_send(c->sock.fd, buf_front(&c->out), first ? c->fd_after : buf_left(&c->out),
                                first ? NULL : c->fd_out);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0)
            return false;
        sent(c, (size_t)n);
    }
    watch(c);
    return !c->closing || buf_left(&c->out);
}

void link_send(struct link_conn *c, const struct wire_frame *f, const int *fd)
{
    struct err e;
    if (c->closing)
        return;
    size_t before = buf_left(&c->out);
    if ((fd && c->fd_out[0] >= 0) || !buf_reserve(&c->out, 0) ||
        wire_encode_add(&e, &c->out.p, &c->out.n, &c->out.cap, f)) {
        link_close(c); /* otherwise the peer would wait for this frame */
        return;
    }
    for (int i = 0; fd && i < SOCKET_FDS && fd[i] >= 0; i++) {
        c->fd_out[i] = fcntl(fd[i], F_DUPFD_CLOEXEC, 0);
        c->fd_after = before;
    }
    if (buf_left(&c->out) > LINK_QUEUE_BYTES_MAX) {
        c->closing = true;
        shutdown(c->sock.fd, SHUT_RDWR); /* the next turn of the loop gets the event and closes it */
    }
    watch(c);
}

uint64_t link_queued(const struct link_conn *c)
{
    return buf_left(&c->out);
}

void link_close(struct link_conn *c)
{
    c->closing = true;
    if (!buf_left(&c->out))
        shutdown(c->sock.fd, SHUT_RDWR);
    watch(c);
}

void link_take_fds(struct link_conn *c, int *fd)
{
    for (int i = 0; i < SOCKET_FDS; i++) {
        fd[i] = c->fd_in[i];
        c->fd_in[i] = -1;
    }
}

int64_t link_pid(const struct link_conn *c)
{
    return c->pid;
}

void link_set_data(struct link_conn *c, void *data)
{
    c->data = data;
}

void *link_data(const struct link_conn *c)
{
    return c->data;
}

/* ---- receiving ---- */

static int next_frame(struct err *e, struct link_conn *c, size_t *n)
{
    struct wire_frame f;
    const uint8_t *p = buf_front(&c->in);
    int rc = wire_frame_size(e, n, p, buf_left(&c->in), LINK_FRAME_BYTES_MAX);
    if (rc || !*n)
        return rc;
    wire_arena_reset(c->s->arena);
    rc = wire_decode(e, &f, c->s->arena, p + WIRE_PREFIX_BYTES, *n - WIRE_PREFIX_BYTES);
    if (!rc)
        c->s->ops.frame(c->s->arg, c, &f);
    return rc;
}

static void frames(struct link_conn *c)
{
    struct err e;
    for (size_t n = 1; n && !c->closing; buf_take(&c->in, n))
        if (next_frame(&e, c, &n)) {
            c->s->ops.bad(c->s->arg, c, &e);
            link_close(c);
            return;
        }
}

/* The buffer grows with the received bytes, not with the length that a frame states. False: the connection must be
 * closed. */
static bool take(struct link_conn *c)
{
    if (!buf_reserve(&c->in, READ_BYTES))
        return false;
    ssize_t n = socket_recv(c->sock.fd, c->in.p + c->in.n, READ_BYTES, c->fd_in);
    if (n <= 0)
        return n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK);
    c->in.n += (size_t)n;
    frames(c);
    return true;
}

static void ready(void *arg, uint32_t events)
{
    struct link_conn *c = arg;
    bool lives = !(events & EPOLLIN) || take(c);
    if (lives && events & EPOLLOUT)
        lives = flush(c);
    if (!lives || (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP) && !(events & EPOLLIN)))
        end(c);
}

/* ---- the listening socket ---- */

static void admit(struct link_server *s, int sock)
{
    struct err e;
    struct ucred u;
    socklen_t n = sizeof u;
    bool room = s->n_conn < LINK_CONNS_MAX && socket_trusts_peer(sock, s->address.sun_path);
    struct link_conn *c = room ? calloc(1, sizeof *c) : NULL;
    if (!c || loop_fd_add(&e, s->loop, &c->sock, sock, EPOLLIN | EPOLLRDHUP, ready, c)) {
        close(sock); /* above the limit, or of another user: an immediate close informs the client */
        free(c);
        return;
    }
    c->s = s;
    for (int i = 0; i < SOCKET_FDS; i++)
        c->fd_in[i] = c->fd_out[i] = -1;
    if (!getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n))
        c->pid = u.pid;
    list_push_front(&s->conns, &c->node);
    s->n_conn++;
}

static void accept_all(void *arg, uint32_t events)
{
    struct link_server *s = arg;
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        int sock = accept4(s->sock.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (sock < 0)
            return;
        admit(s, sock);
    }
}

static int listen_at(struct err *e, struct link_server *s, bool *stale)
{
    const char *path = s->address.sun_path;
    int rc = socket_make_way(e, path, stale);
    if (rc)
        return rc;
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t old = umask(0177);
    int bad = sock < 0 || bind(sock, (const struct sockaddr *)(const void *)&s->address, sizeof s->address) ||
              listen(sock, SOMAXCONN);
    umask(old);
    rc = bad ? err_sys(e, "%s", path) : loop_fd_add(e, s->loop, &s->sock, sock, EPOLLIN, accept_all, s);
    if (rc && sock >= 0)
        close(sock);
    return rc;
}

int link_server_new(struct err *e, struct link_server **out, bool *stale, struct loop *l, const char *url,
                    const struct link_ops *ops, void *arg)
{
    struct link_server *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, "a server", sizeof *s);
    s->loop = l;
    s->ops = *ops;
    s->arg = arg;
    list_init(&s->conns);
    s->arena = wire_arena_new();
    int rc = s->arena ? 0 : err_nomem(e, "a server", sizeof *s);
    rc = rc ? rc : socket_address(e, &s->address, url);
    rc = rc ? rc : listen_at(e, s, stale);
    if (rc) {
        link_server_free(s); /* removes the socket only if this server has bound it */
        return rc;
    }
    *out = s;
    return 0;
}

void link_server_free(struct link_server *s)
{
    if (!s)
        return;
    list_each_safe (struct link_conn, c, &s->conns, node)
        end(c);
    if (s->sock.loop) {
        loop_fd_remove(&s->sock);
        close(s->sock.fd);
        unlink(s->address.sun_path);
    }
    wire_arena_free(s->arena);
    free(s);
}
