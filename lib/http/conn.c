/* Connections: watched for their end apart from libmicrohttpd, which does not look at one that waits for its answer. */
#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "http/http_impl.h"

#define EVENTS 256
#define BODY_IDLES 5 /* a body may come for so many idle times */

static void name_peer(struct conn *k)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(k->c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = i ? i->client_addr : NULL;
    char text[INET6_ADDRSTRLEN] = "";
    if (a && a->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)a)->sin_addr, text, sizeof text);
    else if (a && a->sa_family == AF_INET6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)a)->sin6_addr, text, sizeof text);
    bool mapped = !strncmp(text, "::ffff:", 7) && strchr(text, '.');
    snprintf(k->peer, sizeof k->peer, "%s", mapped ? text + 7 : *text ? text : "unix");
}

static void begin(struct listener *l, struct MHD_Connection *c, void **context)
{
    struct conn *k = calloc(1, sizeof *k);
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    int one = 1;
    *context = k;
    if (!k)
        return; /* its requests are refused */
    k->h = l->h;
    k->l = l;
    k->c = c;
    k->fd = i ? i->connect_fd : -1;
    k->tls = l->h->tls != NULL;
    k->since_ns = time_now_ns();
    name_peer(k);
    setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(k->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one); /* a peer whose host is no more */
    list_push_front(&l->h->conns, &k->node);
    k->extra = l->h->n_conn++ >= l->h->o.connections_max;
    struct epoll_event v = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = k};
    (void)epoll_ctl(l->h->watch, EPOLL_CTL_ADD, k->fd, &v);
}

static void end(struct conn *k)
{
    struct http *h = k->h;
    int n_left = 0;
    if (!k->dead && (k->unread || (!ioctl(k->fd, FIONREAD, &n_left) && n_left)))
        linger_add(h, k->fd);
    (void)epoll_ctl(h->watch, EPOLL_CTL_DEL, k->fd, NULL);
    if (k->probe_ns)
        h->n_half--;
    list_remove(&k->node);
    h->n_conn--;
    h->due = true; /* where it stood at a limit, the next run lets others in */
    free(k);
}

void conn_notify(void *listener, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        begin(listener, c, context);
    else if (*context)
        end(*context);
}

/* Once: to shut a socket down wakes the watch again. */
static void gone(struct conn *k)
{
    if (k->over)
        return;
    k->over = k->dead = true;
    if (k->r)
        request_gone(k->r);
}

static void probe_in(struct conn *k, uint64_t ns)
{
    k->probe_ns = time_now_ns() + ns;
    if (k->probe_ns < k->h->half_ns)
        k->h->half_ns = k->probe_ns;
}

static void half(struct conn *k)
{
    if (!k->probe_ns)
        k->h->n_half++;
    probe_in(k, PROBE_NS);
    if (k->r && k->r->phase == PHASE_OUT)
        conn_half_check(k);
}

/* The peer sends no more: it has closed, which only an answer of its kernel to a byte of ours tells, or means to read
 * on. */
void conn_half_check(struct conn *k)
{
    if (!k->probe_ns)
        return;
    probe_in(k, k->probed ? SCAN_NS : PROBE_NS);
    k->probed = true;
    request_probe(k->r);
}

void conn_watch(struct http *h)
{
    struct epoll_event v[EVENTS];
    int n;
    do {
        n = epoll_wait(h->watch, v, EVENTS, 0);
        for (int i = 0; i < n; i++) {
            struct conn *k = v[i].data.ptr;
            if (v[i].events & (EPOLLERR | EPOLLHUP))
                gone(k);
            else if (v[i].events & EPOLLRDHUP)
                half(k);
        }
    } while (n == EVENTS);
}

/* All that a half-closed connection has sent has been read, and makes no request. libmicrohttpd waits on where the last
 * bytes and the end have come together: it reads the bytes, and no event tells it of the end. */
static bool is_spent(const struct conn *k)
{
    char c;
    return (!k->r || k->r->phase == PHASE_HEAD) && recv(k->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void cut(struct conn *k)
{
    k->dead = true;
    shutdown(k->fd, SHUT_RDWR);
}

/* Whoever sends a request byte by byte has not much longer than who sends nothing; who is one too many has little. */
static bool too_slow(const struct conn *k, uint64_t now)
{
    uint64_t idle = (uint64_t)k->h->o.idle_s * NS_S;
    if (k->extra && k->h->n_conn > k->h->o.connections_max)
        idle = idle < SCAN_NS ? idle : SCAN_NS;
    if (!k->r)
        return now - k->since_ns > idle + SCAN_NS;
    return k->r->phase == PHASE_HEAD && now - k->r->arrived_ns > BODY_IDLES * idle;
}

static void half_due(struct conn *k)
{
    if (k->r && k->r->phase == PHASE_OUT)
        conn_half_check(k);
    else if (is_spent(k))
        cut(k);
    else
        probe_in(k, PROBE_NS);
}

void conn_scan(struct http *h, uint64_t now)
{
    bool slow = now - h->scan_ns >= SCAN_NS;
    if (!slow && (!h->n_half || now < h->half_ns))
        return;
    h->half_ns = UINT64_MAX;
    list_each (struct conn, k, &h->conns, node) {
        if (slow && !k->dead && too_slow(k, now))
            cut(k);
        if (!k->probe_ns || k->dead)
            continue;
        if (k->probe_ns <= now)
            half_due(k);
        h->half_ns = k->probe_ns < h->half_ns ? k->probe_ns : h->half_ns;
    }
    if (slow)
        h->scan_ns = now;
}

/* What is here and what is with the kernel; only compared. */
static uint64_t not_taken(const struct conn *k)
{
    int n = 0;
    if (ioctl(k->fd, SIOCOUTQ, &n))
        n = 0;
    return (uint64_t)http_queued(k->r) << 32 | (uint32_t)n;
}

uint32_t http_leaving(struct http *h, uint64_t stall_ns)
{
    uint64_t now = time_now_ns();
    uint32_t n = 0;
    list_each (struct conn, k, &h->conns, node) {
        if (!k->r || k->r->phase != PHASE_OVER || k->r->broken || k->dead)
            continue;
        uint64_t left = not_taken(k);
        if (!k->moved_ns || left != k->left)
            k->moved_ns = now;
        k->left = left;
        n += now - k->moved_ns < stall_ns;
    }
    return n;
}

uint64_t conn_next_ns(const struct http *h)
{
    uint64_t at = h->n_conn ? h->scan_ns + SCAN_NS : UINT64_MAX;
    return h->n_half && h->half_ns < at ? h->half_ns : at;
}
