/* The server: its listeners, each an MHD daemon driven by http_step. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/http_impl.h"

#define CLOSE_ROUNDS 100

/* ---- open and close ---- */

int http_open(struct err *e, struct http **out, const struct http_opts *o)
{
    struct http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_nomem(e, "the HTTP server", sizeof *h);
    h->o = *o;
    list_init(&h->conns);
    h->o.body_bytes_max = o->body_bytes_max ? o->body_bytes_max : BODY_BYTES_MAX;
    h->o.queued_bytes_max = o->queued_bytes_max ? o->queued_bytes_max : QUEUED_BYTES_MAX;
    h->o.connections_max = o->connections_max ? o->connections_max : CONNECTIONS_MAX;
    h->o.idle_s = o->idle_s ? o->idle_s : IDLE_S;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->hangups = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event v = {.events = EPOLLIN};
    int rc = 0;
    if (h->epoll < 0 || h->hangups < 0 || epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->hangups, &v))
        rc = err_sys(e, "epoll");
    if (!rc && o->tls_cert)
        rc = tls_new(e, &h->tls, o->tls_cert, o->tls_key);
    if (rc)
        http_close(h);
    else
        *out = h;
    return rc;
}

/* MHD_stop_daemon requires that no connection is suspended: abort each and run the daemons until they have closed them.
 */
static void abort_all(struct http *h)
{
    list_each (struct conn, k, &h->conns, node) {
        if (k->r && k->r->state == STATE_DELIVERED)
            request_disconnected(k->r);
        else if (k->r && k->r->suspended) {
            k->r->broken = true;
            k->r->suspended = false;
            MHD_resume_connection(k->c);
        }
    }
    for (size_t i = 0; i < h->n_listener; i++)
        MHD_run(h->listener[i]->daemon);
}

static bool any_suspended(const struct http *h)
{
    list_each (const struct conn, k, &h->conns, node)
        if (k->r && k->r->suspended)
            return true;
    return false;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    h->closing = true;
    for (int i = 0; i < CLOSE_ROUNDS && (i == 0 || any_suspended(h)); i++)
        abort_all(h);
    for (size_t i = 0; i < h->n_listener; i++) {
        struct listener *l = h->listener[i];
        MHD_stop_daemon(l->daemon);
        if (*l->path)
            unlink(l->path);
        free(l);
    }
    linger_end(h);
    if (h->epoll >= 0)
        close(h->epoll);
    if (h->hangups >= 0)
        close(h->hangups);
    tls_free(h->tls);
    free(h);
}

/* ---- addresses ---- */

static void on_log(void *arg, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *arg, const char *fmt, va_list ap)
{
    /* Errors of clients are not logged: they would fill the log and do not concern the operator. */
    check_log(arg, fmt, ap);
}

/* fd: a listening socket; owned by the daemon, closed on failure. */
static int start_daemon(struct err *e, struct listener *l, int fd)
{
    struct http *h = l->h;
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (h->tls ? MHD_USE_TLS : 0);
    const struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK, 0, tls_callback()},
                                         {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    l->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, request_handle, l, MHD_OPTION_EXTERNAL_LOGGER, on_log, l, MHD_OPTION_LISTEN_SOCKET, fd,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(h->o.connections_max + CONNECTIONS_SPARE),
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->o.idle_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32768,
        MHD_OPTION_NOTIFY_CONNECTION, conn_notify, l, MHD_OPTION_NOTIFY_COMPLETED, request_completed, l,
        MHD_OPTION_URI_LOG_CALLBACK, request_uri, l, MHD_OPTION_ARRAY, h->tls ? tls : none, MHD_OPTION_END);
    if (!l->daemon) {
        close(fd);
        return err_set(e, ERR_SYS, "%s: libmicrohttpd cannot start", l->address);
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(l->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct epoll_event v = {.events = EPOLLIN};
    if (info && !epoll_ctl(h->epoll, EPOLL_CTL_ADD, info->epoll_fd, &v))
        return 0;
    err_sys(e, "epoll");
    MHD_stop_daemon(l->daemon); /* closes fd */
    return e->code;
}

/* fd is owned, on failure too. */
static int start(struct err *e, struct http *h, int fd, int dialect, const char *address, const char *path)
{
    struct listener *l = h->n_listener < LISTENERS_MAX ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        close(fd);
        return h->n_listener < LISTENERS_MAX
                   ? err_nomem(e, "an address", sizeof *l)
                   : err_set(e, ERR_USAGE, "%s: more than %d addresses", address, LISTENERS_MAX);
    }
    l->h = h;
    l->dialect = dialect;
    snprintf(l->address, sizeof l->address, "%s", address);
    snprintf(l->path, sizeof l->path, "%s", path);
    if (start_daemon(e, l, fd)) {
        free(l);
        return e->code;
    }
    h->listener[h->n_listener++] = l;
    return 0;
}

int http_listen(struct err *e, struct http *h, const char *address, int dialect)
{
    struct http_socket s;
    if (http_bind(e, &s, address))
        return e->code;
    if (!start(e, h, s.fd, dialect, s.name, s.path))
        return 0;
    if (*s.path)
        unlink(s.path);
    return e->code;
}

int http_adopt(struct err *e, struct http *h, int fd, int dialect)
{
    char name[HTTP_NAME_BYTES];
    http_name_of(name, fd);
    return start(e, h, fd, dialect, name, "");
}

const char *http_address(const struct http *h, size_t i)
{
    return i < h->n_listener ? h->listener[i]->address : NULL;
}

int http_address_dialect(const struct http *h, size_t i)
{
    return h->listener[i]->dialect;
}

void http_stop(struct http *h)
{
    h->stopped = true;
    for (size_t i = 0; i < h->n_listener; i++) {
        struct listener *l = h->listener[i];
        MHD_socket fd = l->quiet ? MHD_INVALID_SOCKET : MHD_quiesce_daemon(l->daemon);
        l->quiet = true;
        if (fd != MHD_INVALID_SOCKET)
            close(fd);
        if (*l->path)
            unlink(l->path);
        *l->path = 0;
    }
    list_each (struct conn, k, &h->conns, node)
        if (!k->r)
            shutdown(k->fd, SHUT_RDWR);
}

int http_reload(struct err *e, struct http *h)
{
    return h->tls ? tls_load(e, h->tls) : 0;
}

uint32_t http_connections(const struct http *h)
{
    return h->n_conn;
}

/* ---- the step ---- */

int http_fd(const struct http *h)
{
    return h->epoll;
}

uint64_t http_next_ms(const struct http *h)
{
    uint64_t ms = UINT64_MAX, now = time_now_ns(), at = conn_next_ns(h), end = linger_next_ns(h);
    if (h->due)
        return 0;
    at = end < at ? end : at;
    for (size_t i = 0; i < h->n_listener; i++) {
        MHD_UNSIGNED_LONG_LONG t;
        if (MHD_get_timeout(h->listener[i]->daemon, &t) == MHD_YES && t < ms)
            ms = t;
    }
    if (at != UINT64_MAX) {
        uint64_t left = at > now ? (at - now) / NS_MS + 1 : 0;
        ms = left < ms ? left : ms;
    }
    return ms;
}

int http_step(struct err *e, struct http *h)
{
    uint64_t now = time_now_ns();
    conn_poll_hangups(h);
    conn_scan(h, now);
    linger_step(h, now);
    h->due = false;
    for (size_t i = 0; i < h->n_listener; i++)
        if (MHD_run(h->listener[i]->daemon) != MHD_YES)
            return err_set(e, ERR_SYS, "%s: libmicrohttpd has failed", h->listener[i]->address);
    return 0;
}
