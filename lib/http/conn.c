/* Connections: their states, their times, and disconnects. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "http/http_impl.h"

#define READ_BYTES 65536

static void on_io(void *arg, uint32_t events);
static void on_timer(void *arg);

/* ---- begin and end ---- */

static bool is_loopback(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n))
        return false;
    if (a.ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)&a)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&a)->sin6_addr;
    return a.ss_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127));
}

static void name_client(struct conn *k, const struct sockaddr_storage *a)
{
    char text[INET6_ADDRSTRLEN] = "";
    if (a->ss_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, text, sizeof text);
    else if (a->ss_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, text, sizeof text);
    bool mapped = !strncmp(text, "::ffff:", 7) && strchr(text, '.');
    snprintf(k->name, sizeof k->name, "%s", mapped ? text + 7 : *text ? text : "unix");
}

struct conn *conn_open(struct listener *l, int fd, const struct sockaddr_storage *a)
{
    struct conn *k = calloc(1, sizeof *k);
    int one = 1;
    if (!k) {
        close(fd);
        return NULL;
    }
    k->h = l->h;
    k->l = l;
    k->fd = fd;
    list_init(&k->node);
    list_init(&k->idle);
    list_init(&k->peer_idle);
    list_init(&k->due);
    loop_timer_init(k->h->loop, &k->timer, on_timer, k);
    k->since_ns = time_now_ns();
    k->state = k->h->tls ? CONN_HANDSHAKE : CONN_HEAD;
    name_client(k, a);
    if (a->ss_family == AF_INET || a->ss_family == AF_INET6) {
        k->loopback = is_loopback(fd);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one); /* detects a client whose host vanished */
    }
    return k;
}

void conn_set_idle(struct conn *k, bool idle)
{
    if (idle == !list_empty(&k->idle))
        return;
    k->h->n_idle += idle ? 1 : -1u;
    list_remove(&k->idle);
    list_remove(&k->peer_idle);
    if (idle)
        list_push_back(&k->h->idle, &k->idle);
    if (idle && k->peer)
        list_push_back(&k->peer->idle, &k->peer_idle);
}

/* Stops counting k as a connection. */
static void leave(struct conn *k)
{
    if (k->state == CONN_LINGER)
        return;
    conn_set_idle(k, false);
    peer_leave(k);
    if (!list_empty(&k->node))
        k->h->n_conn--;
    list_remove(&k->node);
}

void conn_close(struct conn *k)
{
    struct http *h = k->h;
    leave(k);
    h->n_linger -= k->state == CONN_LINGER;
    list_remove(&k->node);
    list_remove(&k->due);
    loop_timer_stop(&k->timer);
    loop_fd_remove(&k->io);
    if (k->r)
        request_free(k->r);
    h->n_queued -= k->n_queued;
    tls_close(k->tls, false);
    close(k->fd);
    for (size_t i = k->at_part; i < k->n_part; i++)
        str_free(&k->part[i]);
    free(k->part);
    free(k->in.p);
    free(k->out.p);
    free(k);
}

void conn_due(struct conn *k)
{
    if (list_empty(&k->due))
        list_push_back(&k->h->due, &k->due);
}

void conn_kill(struct conn *k)
{
    k->dead = true;
    conn_due(k);
}

/* ---- times ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t keepalive_ns(const struct conn *k)
{
    double s = k->h->o.keepalive_s;
    return s > 0 && k->r && k->r->keepalive && !k->r->replied ? k->written_ns + (uint64_t)(s * 1e9) : UINT64_MAX;
}

static uint64_t deadline(const struct conn *k)
{
    const struct http_opts *o = &k->h->o;
    uint64_t idle = o->idle_s * NS_S, head = o->head_s * NS_S;
    switch (k->state) {
    case CONN_HANDSHAKE:
        return k->since_ns + head;
    case CONN_HEAD:
        return k->since_ns + (k->used && !buf_left(&k->in) ? idle : head);
    case CONN_BODY:
        return least(k->moved_ns + idle, k->since_ns + head + k->r->body.n * NS_S / HTTP_BODY_RATE);
    case CONN_BUSY:
        return least(least(k->probe_ns ? k->probe_ns : UINT64_MAX, keepalive_ns(k)),
                     k->blocked ? k->moved_ns + STALL_IDLES * idle : UINT64_MAX);
    default:
        return k->since_ns + LINGER_NS;
    }
}

/* Deadlines mostly move to later times, so the timer may fire early. */
void conn_arm(struct conn *k)
{
    uint64_t at = deadline(k);
    if (at < k->timer.at_ns)
        loop_timer_set(&k->timer, at);
}

/* A full socket becomes writable only after a good part of it was read. So progress is looked up in the kernel too. */
static bool has_stalled(struct conn *k)
{
    int n = 0;
    if (ioctl(k->fd, SIOCOUTQ, &n) || n == k->kernel_unsent)
        return true;
    k->kernel_unsent = n;
    k->moved_ns = time_now_ns();
    return false;
}

static void probe(struct conn *k)
{
    k->probe_ns = time_now_ns() + (k->probed ? PROBE_AGAIN_NS : PROBE_NS);
    k->probed = true;
    if (k->r->state == REQUEST_DELIVERED)
        request_probe(k->r);
}

static void busy_timer(struct conn *k, uint64_t now)
{
    static const char comment[] = ": keep-alive\n\n";
    if (k->blocked && now >= k->moved_ns + STALL_IDLES * k->h->o.idle_s * NS_S && has_stalled(k)) {
        k->h->n_timed_out++;
        conn_kill(k);
        return;
    }
    if (now >= keepalive_ns(k))
        http_write(k->r, comment, sizeof comment - 1);
    if (k->probe_ns && now >= k->probe_ns)
        probe(k);
}

static void on_timer(void *arg)
{
    struct conn *k = arg;
    uint64_t now = time_now_ns();
    char text[120];
    if (k->dead || now < deadline(k)) {
        conn_arm(k);
        return;
    }
    if (k->state == CONN_BUSY) {
        busy_timer(k, now);
        conn_arm(k);
    } else if (k->state == CONN_BODY || (k->state == CONN_HEAD && buf_left(&k->in))) {
        k->h->n_timed_out++;
        snprintf(text, sizeof text,
                 k->state == CONN_BODY
                     ? "the request body arrived too slowly: it may take %u s and 1 s for each %d bytes"
                     : "the request headers were not complete within %u s",
                 k->h->o.head_s, HTTP_BODY_RATE);
        request_fail(k, 408, text);
    } else {
        conn_kill(k);
    }
}

/* ---- input ---- */

/* Bytes, 0: the end of the stream, -1: none now, -2: failed. */
static ssize_t receive(struct conn *k, void *p, size_t n)
{
    if (k->tls)
        return tls_recv(k->tls, p, n);
    ssize_t got = recv(k->fd, p, n, MSG_DONTWAIT);
    return got >= 0 ? got : errno == EAGAIN || errno == EINTR ? -1 : -2;
}

static bool is_reading(const struct conn *k)
{
    return !k->dead && (k->state == CONN_HEAD || k->state == CONN_BODY);
}

/* A body is appended to directly; what follows it is of the next request. */
static void take_input(struct conn *k, const char *p, size_t n)
{
    size_t used = k->state == CONN_BODY && !buf_left(&k->in) ? request_body(k, p, n) : 0;
    k->moved_ns = time_now_ns();
    if (used == n || k->dead)
        return;
    if (k->state == CONN_HEAD && !buf_left(&k->in))
        k->since_ns = k->moved_ns; /* begin of a head */
    if (!buf_reserve(&k->in, n - used)) {
        conn_kill(k);
        return;
    }
    memcpy(k->in.p + k->in.n, p + used, n - used);
    k->in.n += n - used;
}

static void read_input(struct conn *k)
{
    static char piece[READ_BYTES];
    size_t total = 0;
    while (is_reading(k)) {
        if (request_input(k))
            continue;
        if (!is_reading(k) || total >= TURN_BYTES)
            break;
        ssize_t n = receive(k, piece, sizeof piece);
        if (n == -1)
            break;
        if (n <= 0) { /* an incomplete request is dropped */
            k->eof = true;
            conn_kill(k);
            return;
        }
        total += (size_t)n;
        take_input(k, piece, (size_t)n);
    }
}

static void discard(struct conn *k)
{
    static char waste[READ_BYTES];
    ssize_t n = 1;
    for (size_t total = 0; n > 0 && total < TURN_BYTES; total += (size_t)n)
        n = receive(k, waste, sizeof waste);
    if (n == 0 || n == -2)
        conn_kill(k);
}

static void handshake(struct conn *k)
{
    int done = tls_handshake(k->tls);
    if (done < 0)
        conn_kill(k);
    if (done <= 0)
        return;
    k->state = CONN_HEAD;
    k->since_ns = time_now_ns();
    read_input(k);
}

/* ---- events ---- */

static void watch(struct conn *k)
{
    struct err e;
    uint32_t events = k->blocked ? EPOLLOUT : 0;
    if (k->state == CONN_HANDSHAKE)
        events = tls_wants_write(k->tls) ? EPOLLOUT : EPOLLIN;
    else if (k->state == CONN_BUSY)
        events |= k->probe_ns ? 0 : EPOLLRDHUP;
    else
        events |= EPOLLIN;
    if (!k->dead && loop_fd_set(&e, &k->io, events))
        conn_kill(k);
}

static void on_io(void *arg, uint32_t events)
{
    struct conn *k = arg;
    if (k->dead)
        return;
    if (events & (EPOLLERR | EPOLLHUP)) {
        conn_kill(k);
        return;
    }
    if (k->state == CONN_HANDSHAKE)
        handshake(k);
    else if (k->state == CONN_LINGER)
        discard(k);
    else if (events & EPOLLIN)
        read_input(k);
    if (events & EPOLLRDHUP && k->state == CONN_BUSY && !k->probe_ns)
        probe(k);
    if (events & EPOLLOUT)
        conn_due(k);
    conn_arm(k);
    watch(k);
}

int conn_add(struct conn *k)
{
    struct err e;
    return loop_fd_add(&e, k->h->loop, &k->io, k->fd, 0, on_io, k);
}

int conn_start(struct conn *k)
{
    if (k->h->tls && !(k->tls = tls_open(k->h->tls, k->fd)))
        return ERR_SYS;
    if (conn_add(k))
        return ERR_SYS;
    list_push_front(&k->h->conns, &k->node);
    k->h->n_conn++;
    conn_set_idle(k, true);
    on_io(k, EPOLLIN); /* the request has mostly arrived already */
    return 0;
}

/* ---- the end of a response ---- */

void conn_linger(struct conn *k)
{
    struct http *h = k->h;
    leave(k);
    if (k->r)
        request_free(k->r);
    k->r = NULL;
    if (h->closing || h->n_linger == LINGERS_MAX) {
        conn_close(k);
        return;
    }
    tls_close(k->tls, true);
    k->tls = NULL;
    shutdown(k->fd, SHUT_WR); /* sends what is queued, then FIN */
    k->state = CONN_LINGER;
    k->since_ns = time_now_ns();
    list_push_back(&h->lingers, &k->node);
    h->n_linger++;
    conn_arm(k);
    watch(k);
}

static void next_request(struct conn *k)
{
    struct http_request *r = k->r;
    k->r = NULL;
    request_free(r);
    k->state = CONN_HEAD;
    k->used = true;
    k->since_ns = time_now_ns();
    k->probe_ns = 0; /* the end of the stream is read after all requests */
    k->unsent = k->look_ns = 0;
    conn_set_idle(k, true);
    read_input(k);
}

void conn_turn(struct conn *k)
{
    if (k->dead || !send_queued(k)) {
        conn_close(k);
        return;
    }
    if (k->state == CONN_BUSY && k->r->replied && !send_left(k)) {
        if (k->r->close || conn_is_leaving(k)) {
            conn_linger(k);
            return;
        }
        next_request(k);
    }
    conn_arm(k);
    watch(k);
}
