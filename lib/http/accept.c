/* New connections, and their limits: descriptors, all together, and of one address. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "http/http_impl.h"

#define ACCEPTS 64 /* in a row, before existing connections have their turn */
#define READS 16   /* of a refused client's input */
#define AGAIN_NS (100 * NS_MS)
#define LOG_NS (60 * NS_S)

/* ---- the clients of one address ---- */

/* An IPv6 host may have all addresses of a /64 network. False: no address. */
static bool key_of(uint8_t key[16], const struct sockaddr_storage *a)
{
    memset(key, 0, 16);
    if (a->ss_family == AF_INET) {
        key[10] = key[11] = 0xff;
        memcpy(key + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
        return true;
    }
    if (a->ss_family != AF_INET6)
        return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
    memcpy(key, v6, IN6_IS_ADDR_V4MAPPED(v6) ? 16 : 8);
    return true;
}

static uint64_t hash_of(const uint8_t key[16])
{
    uint64_t half[2];
    memcpy(half, key, sizeof half);
    return map_mix(half[0] ^ map_mix(half[1]));
}

static struct peer *peer_find(const struct http *h, const uint8_t key[16])
{
    size_t at;
    struct peer *p = map_first(&h->peers, hash_of(key), &at);
    while (p && memcmp(p->key, key, 16) != 0)
        p = map_next(&h->peers, hash_of(key), &at);
    return p;
}

static struct peer *peer_get(struct http *h, const uint8_t key[16])
{
    struct err e;
    struct peer *p = peer_find(h, key);
    if (p || !(p = calloc(1, sizeof *p)))
        return p;
    memcpy(p->key, key, 16);
    list_init(&p->idle);
    if (!map_put(&e, &h->peers, hash_of(key), p))
        return p;
    free(p);
    return NULL;
}

void peer_leave(struct conn *k)
{
    struct peer *p = k->peer;
    k->peer = NULL;
    if (!p || --p->n)
        return;
    map_drop(&k->h->peers, hash_of(p->key), p);
    free(p);
}

/* ---- refusals ---- */

static void log_refused(struct http *h, const char *text)
{
    char line[400];
    uint64_t now = time_now_ns();
    h->n_refused++;
    if (h->logged_ns && now - h->logged_ns < LOG_NS) {
        h->n_unlogged++;
        return;
    }
    snprintf(line, sizeof line, "refused a connection: %s (%llu more since the last such line)", text,
             (unsigned long long)h->n_unlogged);
    h->logged_ns = now;
    h->n_unlogged = 0;
    if (h->o.log)
        h->o.log(h->o.arg, line);
}

/* Sends 503 without reading the request. Over TLS the connection is closed, since a handshake would cost too much. */
static void refuse(struct listener *l, int fd, const struct sockaddr_storage *a, bool keep, const char *text)
{
    char waste[4096];
    struct conn *k = conn_open(l, fd, a);
    log_refused(l->h, text);
    if (!k)
        return;
    if (l->h->tls || (keep && conn_add(k))) {
        conn_close(k);
        return;
    }
    /* Unread input would turn the close into a reset. */
    for (int i = 0; i < READS && recv(fd, waste, sizeof waste, MSG_DONTWAIT) > 0; i++) {
    }
    request_fail(k, 503, text);
    (void)send_queued(k);
    list_remove(&k->due);
    if (!keep) {
        shutdown(fd, SHUT_WR);
        conn_close(k);
    } else {
        conn_linger(k);
    }
}

/* Closes a connection for a new one: the oldest without a complete request head, NULL: there is none. False: it is too
 * young. */
static bool replace(struct conn *oldest)
{
    if (!oldest || time_now_ns() - oldest->since_ns < REPLACE_NS)
        return false;
    oldest->h->n_replaced++;
    conn_close(oldest);
    return true;
}

static struct conn *oldest_of_all(const struct http *h)
{
    return list_empty(&h->idle) ? NULL : list_entry(h->idle.next, struct conn, idle);
}

static struct conn *oldest_of(const struct peer *p)
{
    return list_empty(&p->idle) ? NULL : list_entry(p->idle.next, struct conn, peer_idle);
}

/* ---- accepting ---- */

static void admit(struct listener *l, int fd, const struct sockaddr_storage *a)
{
    struct http *h = l->h;
    uint8_t key[16];
    char text[200] = "";
    struct peer *p = key_of(key, a) ? peer_find(h, key) : NULL;
    uint32_t max = h->o.address_connections_max;
    if (p && p->n >= max && !replace(oldest_of(p)))
        snprintf(text, sizeof text, "too many connections from this address: the limit is %u; retry later", max);
    else if (h->n_conn >= h->o.connections_max && !replace(oldest_of_all(h)))
        snprintf(text, sizeof text, "too many connections: the limit is %u; retry later", h->o.connections_max);
    if (*text) {
        refuse(l, fd, a, true, text);
        return;
    }
    struct conn *k = conn_open(l, fd, a);
    if (!k)
        return;
    if (key_of(key, a) && !(k->peer = peer_get(h, key))) {
        conn_close(k);
        return;
    }
    if (k->peer)
        k->peer->n++;
    if (conn_start(k))
        conn_close(k);
}

/* No descriptor is left: an idle connection gives its own, else a spare one serves to refuse the client. */
static bool without_descriptors(struct listener *l)
{
    struct http *h = l->h;
    struct rlimit limit = {0};
    char text[160];
    if (replace(oldest_of_all(h)))
        return true;
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;
    if (h->spare < 0)
        return false;
    close(h->spare);
    int fd = accept4(l->fd, (struct sockaddr *)&a, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    snprintf(text, sizeof text, "no free file descriptor: the limit of this process is %llu; retry later",
             (unsigned long long)limit.rlim_cur);
    if (fd >= 0)
        refuse(l, fd, &a, false, text);
    h->spare = eventfd(0, EFD_CLOEXEC);
    return fd >= 0;
}

void accept_ready(void *listener, uint32_t events)
{
    struct listener *l = listener;
    struct err e;
    (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        struct sockaddr_storage a = {0};
        socklen_t n = sizeof a;
        int fd = accept4(l->fd, (struct sockaddr *)&a, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            admit(l, fd, &a);
            continue;
        }
        if (errno == EAGAIN)
            return;
        bool full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (full && !without_descriptors(l)) {
            (void)loop_fd_set(&e, &l->io, 0); /* do not spin */
            loop_timer_set(&l->again, time_now_ns() + AGAIN_NS);
            return;
        }
    }
}

void accept_again(void *listener)
{
    struct listener *l = listener;
    struct err e;
    if (l->fd >= 0)
        (void)loop_fd_set(&e, &l->io, EPOLLIN);
}
