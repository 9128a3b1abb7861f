#include "link/server.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "link/socket.h"

#define READ_BYTES ((size_t)64 << 10) /* of one connection at a time, so that none keeps the others waiting */
#define PAUSE_BYTES ((size_t)1 << 20) /* queued: until this has gone out, nothing more is read */
#define KEEP_BYTES ((size_t)1 << 20)  /* a buffer over this is given back when it is empty */
#define EVENTS 64

struct out { /* bytes to go, with a descriptor beside the first */
    struct out *next;
    size_t n, at;
    int fd;
    uint8_t *bytes;
};

struct link_conn {
    struct link_server *s;
    struct link_conn *prev, *next;
    int sock, fd_in;
    int64_t pid;
    void *data;
    uint8_t *in;
    size_t in_size, in_n;
    struct out *first, *last;
    uint64_t queued;
    bool closing, dead; /* after what is queued; now */
    uint32_t events;
};

struct link_server {
    int epoll, sock;
    struct sockaddr_un address;
    struct link_ops ops;
    void *arg;
    struct link_conn *conns;
    int n_conn;
    struct wire_arena *arena;
    struct link_conn *doomed; /* to be freed at the end of a step (by next) */
    char waker;               /* its address stands for a descriptor of the caller's among the events */
};

/* ---- connections ---- */

static void watch(struct link_conn *c)
{
    uint32_t want = EPOLLRDHUP;
    if (c->first)
        want |= EPOLLOUT;
    if (!c->closing && c->queued < PAUSE_BYTES)
        want |= EPOLLIN;
    if (want == c->events)
        return;
    struct epoll_event ev = {.events = want, .data.ptr = c};
    epoll_ctl(c->s->epoll, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->sock, &ev);
    c->events = want;
}

static void pop_out(struct link_conn *c)
{
    struct out *o = c->first;
    c->first = o->next;
    c->last = c->first ? c->last : NULL;
    if (o->fd >= 0)
        close(o->fd);
    free(o->bytes);
    free(o);
}

/* Off the list at once; the memory goes when the events of this step are done. */
static void end(struct link_conn *c)
{
    if (c->dead)
        return;
    c->dead = true;
    *(c->prev ? &c->prev->next : &c->s->conns) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->s->n_conn--;
    c->s->ops.closed(c->s->arg, c);
    close(c->sock);
    if (c->fd_in >= 0)
        close(c->fd_in);
    while (c->first)
        pop_out(c);
    free(c->in);
    c->in = NULL;
    c->next = c->s->doomed;
    c->s->doomed = c;
}

static void bury(struct link_server *s)
{
    while (s->doomed) {
        struct link_conn *c = s->doomed;
        s->doomed = c->next;
        free(c);
    }
}

static void flush(struct link_conn *c)
{
    while (c->first) {
        struct out *o = c->first;
        ssize_t n = socket_send(c->sock, o->bytes + o->at, o->n - o->at, o->at ? -1 : o->fd);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n <= 0) {
            end(c);
            return;
        }
        o->at += (size_t)n;
        c->queued -= (size_t)n;
        if (o->at == o->n)
            pop_out(c);
    }
    if (c->closing && !c->first)
        end(c);
    else
        watch(c);
}

void link_send(struct link_conn *c, const struct wire_frame *f, int fd)
{
    struct err e;
    if (c->dead || c->closing)
        return;
    struct out *o = calloc(1, sizeof *o);
    if (!o || frame_bytes(&e, &o->bytes, &o->n, f)) {
        free(o);
        c->closing = true; /* without memory, or a frame that is none: it must not wait for ever */
        watch(c);
        return;
    }
    o->fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    *(c->last ? &c->last->next : &c->first) = o;
    c->last = o;
    c->queued += o->n;
    if (c->queued > LINK_QUEUE_BYTES_MAX) {
        c->closing = true;
        shutdown(c->sock, SHUT_RDWR); /* the next step sees it, and ends it */
    }
    watch(c);
}

uint64_t link_queued(const struct link_conn *c)
{
    return c->queued;
}

void link_close(struct link_conn *c)
{
    if (c->dead)
        return;
    c->closing = true;
    if (!c->first)
        shutdown(c->sock, SHUT_RDWR);
    watch(c);
}

int link_take_fd(struct link_conn *c)
{
    int fd = c->fd_in;
    c->fd_in = -1;
    return fd;
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

/* ---- what comes in ---- */

static void refuse(struct link_conn *c, const struct err *e)
{
    c->s->ops.bad(c->s->arg, c, e);
    link_close(c);
}

/* The whole frames of the buffer; what is left moves to its front. */
static void frames(struct link_conn *c)
{
    struct err e = {0};
    size_t at = 0;
    uint64_t size;
    while (!c->dead && !c->closing && !frame_size(&e, &size, c->in + at, c->in_n - at, LINK_FRAME_BYTES_MAX) && size &&
           c->in_n - at >= size) {
        struct wire_frame f;
        wire_arena_reset(c->s->arena);
        if (wire_decode(&e, &f, c->s->arena, c->in + at + FRAME_PREFIX, size - FRAME_PREFIX)) {
            refuse(c, &e);
            return;
        }
        c->s->ops.frame(c->s->arg, c, &f);
        at += size;
    }
    if (c->dead)
        return;
    if (e.code) {
        refuse(c, &e);
        return;
    }
    memmove(c->in, c->in + at, c->in_n - at);
    c->in_n -= at;
    if (!c->in_n && c->in_size > KEEP_BYTES) {
        free(c->in);
        c->in = NULL;
        c->in_size = 0;
    }
}

/* The buffer grows with what has come, not with what a frame says of itself. */
static bool room(struct link_conn *c)
{
    if (c->in_size - c->in_n >= READ_BYTES)
        return true;
    size_t size = c->in_size ? 2 * c->in_size : 2 * READ_BYTES;
    uint8_t *in = realloc(c->in, size);
    if (!in)
        return false;
    c->in = in;
    c->in_size = size;
    return true;
}

static void take(struct link_conn *c)
{
    ssize_t n = room(c) ? socket_recv(c->sock, c->in + c->in_n, READ_BYTES, &c->fd_in) : 0;
    if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (n <= 0) {
        end(c);
        return;
    }
    c->in_n += (size_t)n;
    frames(c);
}

/* ---- the listening socket ---- */

static void admit(struct link_server *s, int sock)
{
    struct ucred u;
    socklen_t n = sizeof u;
    struct link_conn *c = s->n_conn < LINK_CONNS_MAX ? calloc(1, sizeof *c) : NULL;
    if (!c) { /* past the limit one is dropped at once, so that it knows */
        close(sock);
        return;
    }
    *c = (struct link_conn){.s = s, .sock = sock, .fd_in = -1, .next = s->conns};
    if (!getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n))
        c->pid = u.pid;
    if (s->conns)
        s->conns->prev = c;
    s->conns = c;
    s->n_conn++;
    watch(c);
}

static void welcome(struct link_server *s)
{
    for (int i = 0; i < EVENTS; i++) {
        int sock = accept4(s->sock, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (sock < 0)
            return;
        admit(s, sock);
    }
}

static bool somebody_listens(const struct sockaddr_un *a)
{
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is = sock >= 0 && !connect(sock, (const struct sockaddr *)(const void *)a, sizeof *a);
    if (sock >= 0)
        close(sock);
    return is;
}

static int listen_at(struct err *e, struct link_server *s, bool *stale)
{
    struct stat st;
    const char *path = s->address.sun_path;
    *stale = !lstat(path, &st) && S_ISSOCK(st.st_mode);
    if (*stale && somebody_listens(&s->address))
        return err_set(e, ERR_NO, "%s: another program listens there", path);
    if (*stale && unlink(path))
        return err_sys(e, "%s", path);
    s->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    mode_t old = umask(0177);
    int bad = s->sock < 0 || bind(s->sock, (const struct sockaddr *)(const void *)&s->address, sizeof s->address) ||
              listen(s->sock, SOMAXCONN);
    umask(old);
    if (bad)
        return err_sys(e, "%s", path);
    struct epoll_event ev = {.events = EPOLLIN};
    return epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->sock, &ev) ? err_sys(e, "epoll") : 0;
}

int link_server_new(struct err *e, struct link_server **out, bool *stale, const char *url, const struct link_ops *ops,
                    void *arg)
{
    struct link_server *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, "a server", sizeof *s);
    s->ops = *ops;
    s->arg = arg;
    s->sock = -1;
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->arena = wire_arena_new();
    int rc = s->epoll < 0 ? err_sys(e, "epoll") : s->arena ? 0 : err_nomem(e, "a server", sizeof *s);
    rc = rc ? rc : socket_address(e, &s->address, url);
    rc = rc ? rc : listen_at(e, s, stale);
    if (rc) {
        if (s->sock >= 0)
            close(s->sock);
        s->sock = -1; /* a socket that is another's stays */
        link_server_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void link_server_stop_accepting(struct link_server *s)
{
    if (s->sock < 0)
        return;
    close(s->sock);
    s->sock = -1;
    unlink(s->address.sun_path);
}

void link_server_free(struct link_server *s)
{
    if (!s)
        return;
    while (s->conns)
        end(s->conns);
    bury(s);
    link_server_stop_accepting(s);
    if (s->epoll >= 0)
        close(s->epoll);
    wire_arena_free(s->arena);
    free(s);
}

int link_server_wake_on(struct err *e, struct link_server *s, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &s->waker};
    return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev) ? err_sys(e, "epoll") : 0;
}

int link_server_step(struct err *e, struct link_server *s, bool *did, int timeout_ms)
{
    struct epoll_event ev[EVENTS];
    int n = epoll_wait(s->epoll, ev, EVENTS, timeout_ms);
    *did = n > 0;
    if (n < 0 && errno != EINTR)
        return err_sys(e, "epoll");
    for (int i = 0; i < n; i++) {
        struct link_conn *c = ev[i].data.ptr;
        if (ev[i].data.ptr == &s->waker)
            continue;
        if (!c) {
            welcome(s);
            continue;
        }
        if (!c->dead && ev[i].events & EPOLLIN)
            take(c);
        if (!c->dead && ev[i].events & EPOLLOUT)
            flush(c);
        if (!c->dead && ev[i].events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP) && !(ev[i].events & EPOLLIN))
            end(c);
    }
    bury(s);
    return 0;
}
