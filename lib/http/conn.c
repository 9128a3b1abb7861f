/* Connections. Disconnects are detected by a separate epoll set, because libmicrohttpd does not poll a connection whose
 * response is pending. */
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
#define BODY_IDLES 5 /* idle timeouts within which a request must be complete */

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

static void on_started(struct listener *l, struct MHD_Connection *c, void **context)
{
    struct conn *k = calloc(1, sizeof *k);
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    int one = 1;
    *context = k;
    if (!k)
        return; /* no memory: request_uri refuses its requests */
    k->h = l->h;
    k->l = l;
    k->c = c;
    k->fd = i ? i->connect_fd : -1;
    k->tls = l->h->tls != NULL;
    k->since_ns = time_now_ns();
    name_peer(k);
    setsockopt(k->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(k->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one); /* detects a client whose host vanished */
    list_push_front(&l->h->conns, &k->node);
    k->over_limit = l->h->n_conn++ >= l->h->o.connections_max;
    struct epoll_event v = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = k};
    (void)epoll_ctl(l->h->hangups, EPOLL_CTL_ADD, k->fd, &v);
}

static void on_closed(struct conn *k)
{
    struct http *h = k->h;
    int n_left = 0;
    if (!k->dead && (k->body_unread || (!ioctl(k->fd, FIONREAD, &n_left) && n_left)))
        linger_add(h, k->fd);
    (void)epoll_ctl(h->hangups, EPOLL_CTL_DEL, k->fd, NULL);
    if (k->probe_ns)
        h->n_half_closed--;
    list_remove(&k->node);
    h->n_conn--;
    h->due = true; /* below its connection limit the daemon accepts again */
    free(k);
}

void conn_notify(void *listener, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        on_started(listener, c, context);
    else if (*context)
        on_closed(*context);
}

/* Acts once: shutdown() makes the epoll set report the connection again. */
static void on_hangup(struct conn *k)
{
    if (k->hung_up)
        return;
    k->hung_up = k->dead = true;
    if (k->r)
        request_disconnected(k->r);
}

static void probe_in(struct conn *k, uint64_t ns)
{
    k->probe_ns = time_now_ns() + ns;
    if (k->probe_ns < k->h->half_scan_ns)
        k->h->half_scan_ns = k->probe_ns;
}

static void on_half_close(struct conn *k)
{
    if (!k->probe_ns)
        k->h->n_half_closed++;
    probe_in(k, PROBE_NS);
    if (k->r && k->r->state == STATE_DELIVERED)
        conn_probe(k);
}

/* The client has either closed, which only its kernel's reaction to sent bytes reveals, or has half-closed and still
 * reads. */
void conn_probe(struct conn *k)
{
    if (!k->probe_ns)
        return;
    probe_in(k, k->probed ? SCAN_NS : PROBE_NS);
    k->probed = true;
    request_probe(k->r);
}

void conn_poll_hangups(struct http *h)
{
    struct epoll_event v[EVENTS];
    int n;
    do {
        n = epoll_wait(h->hangups, v, EVENTS, 0);
        for (int i = 0; i < n; i++) {
            struct conn *k = v[i].data.ptr;
            if (v[i].events & (EPOLLERR | EPOLLHUP))
                on_hangup(k);
            else if (v[i].events & EPOLLRDHUP)
                on_half_close(k);
        }
    } while (n == EVENTS);
}

/* Whether a half-closed connection has no complete request and no unread bytes. libmicrohttpd would wait for ever if
 * the last bytes and the end arrived together: it reads the bytes and gets no event for the end. */
static bool is_drained(const struct conn *k)
{
    char c;
    return (!k->r || k->r->state == STATE_READING) && recv(k->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void abort_conn(struct conn *k)
{
    k->dead = true;
    shutdown(k->fd, SHUT_RDWR);
}

/* A request that is sent byte by byte has BODY_IDLES idle timeouts; a connection beyond the limit has a second. */
static bool has_timed_out(const struct conn *k, uint64_t now)
{
    uint64_t idle = (uint64_t)k->h->o.idle_s * NS_S;
    if (k->over_limit && k->h->n_conn > k->h->o.connections_max)
        idle = idle < SCAN_NS ? idle : SCAN_NS;
    if (!k->r)
        return now - k->since_ns > idle + SCAN_NS;
    return k->r->state == STATE_READING && now - k->r->arrived_ns > BODY_IDLES * idle;
}

static void probe_due(struct conn *k)
{
    if (k->r && k->r->state == STATE_DELIVERED)
        conn_probe(k);
    else if (is_drained(k))
        abort_conn(k);
    else
        probe_in(k, PROBE_NS);
}

void conn_scan(struct http *h, uint64_t now)
{
    bool slow = now - h->scan_ns >= SCAN_NS;
    if (!slow && (!h->n_half_closed || now < h->half_scan_ns))
        return;
    h->half_scan_ns = UINT64_MAX;
    list_each (struct conn, k, &h->conns, node) {
        if (slow && !k->dead && has_timed_out(k, now))
            abort_conn(k);
        if (!k->probe_ns || k->dead)
            continue;
        if (k->probe_ns <= now)
            probe_due(k);
        h->half_scan_ns = k->probe_ns < h->half_scan_ns ? k->probe_ns : h->half_scan_ns;
    }
    if (slow)
        h->scan_ns = now;
}

/* Output queued here and in the kernel's socket buffer; meaningful for comparison only. */
static uint64_t unsent(const struct conn *k)
{
    int n = 0;
    if (ioctl(k->fd, SIOCOUTQ, &n))
        n = 0;
    return (uint64_t)http_queued(k->r) << 32 | (uint32_t)n;
}

uint32_t http_unsent(struct http *h, uint64_t stall_ns)
{
    uint64_t now = time_now_ns();
    uint32_t n = 0;
    list_each (struct conn, k, &h->conns, node) {
        if (!k->r || k->r->state != STATE_FINISHED || k->r->broken || k->dead)
            continue;
        uint64_t bytes = unsent(k);
        if (!k->progress_ns || bytes != k->unsent)
            k->progress_ns = now;
        k->unsent = bytes;
        n += now - k->progress_ns < stall_ns;
    }
    return n;
}

uint64_t conn_next_ns(const struct http *h)
{
    uint64_t at = h->n_conn ? h->scan_ns + SCAN_NS : UINT64_MAX;
    return h->n_half_closed && h->half_scan_ns < at ? h->half_scan_ns : at;
}
