/* The server: its listeners, each a daemon of libmicrohttpd that this loop drives, and its step. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/http_impl.h"
#include "proc/proc.h"

#define CLOSE_ROUNDS 100

/* ---- open and close ---- */

int http_open(struct err *e, struct http **out, const struct http_opts *o)
{
    struct http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_nomem(e, "the HTTP server", sizeof *h);
    h->o = *o;
    h->o.body_bytes_max = o->body_bytes_max ? o->body_bytes_max : BODY_BYTES_MAX;
    h->o.queued_bytes_max = o->queued_bytes_max ? o->queued_bytes_max : QUEUED_BYTES_MAX;
    h->o.connections_max = o->connections_max ? o->connections_max : CONNECTIONS_MAX;
    h->o.idle_s = o->idle_s ? o->idle_s : IDLE_S;
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->watch = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event v = {.events = EPOLLIN};
    int rc = 0;
    if (h->epoll < 0 || h->watch < 0 || epoll_ctl(h->epoll, EPOLL_CTL_ADD, h->watch, &v))
        rc = err_sys(e, "epoll");
    if (!rc && o->tls_cert)
        rc = tls_new(e, &h->tls, o->tls_cert, o->tls_key);
    if (rc)
        http_close(h);
    else
        *out = h;
    return rc;
}

/* MHD ends badly with suspended connections: each is told to close, and the daemons run until they have. */
static void let_go(struct http *h)
{
    for (struct conn *k = h->conns; k; k = k->next) {
        if (k->r && k->r->phase == PHASE_OUT)
            request_gone(k->r);
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
    for (const struct conn *k = h->conns; k; k = k->next)
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
        let_go(h);
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
    if (h->watch >= 0)
        close(h->watch);
    tls_free(h->tls);
    free(h);
}

/* ---- addresses ---- */

static void on_log(void *arg, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
static void on_log(void *arg, const char *fmt, va_list ap)
{
    /* What peers do wrong fills logs and says nothing to the one who runs the server. */
    check_log(arg, fmt, ap);
}

/* fd is a listening socket, l's from now on, or the daemon's. */
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
static int start(struct err *e, struct http *h, int fd, int surface, const char *address, const char *path)
{
    struct listener *l = h->n_listener < LISTENERS_MAX ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        close(fd);
        return h->n_listener < LISTENERS_MAX
                   ? err_nomem(e, "an address", sizeof *l)
                   : err_set(e, ERR_USAGE, "%s: more than %d addresses", address, LISTENERS_MAX);
    }
    l->h = h;
    l->surface = surface;
    snprintf(l->address, sizeof l->address, "%s", address);
    snprintf(l->path, sizeof l->path, "%s", path);
    if (start_daemon(e, l, fd)) {
        free(l);
        return e->code;
    }
    h->listener[h->n_listener++] = l;
    return 0;
}

static void name_of(char *out, size_t n, int fd)
{
    struct sockaddr_storage a = {0}; /* a Unix socket may have no name */
    socklen_t len = sizeof a;
    char host[INET6_ADDRSTRLEN] = "";
    if (getsockname(fd, (struct sockaddr *)&a, &len)) {
        snprintf(out, n, "a socket");
    } else if (a.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(out, n, "%s:%d", host, ntohs(in->sin_port));
    } else if (a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&a;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        snprintf(out, n, "[%s]:%d", host, ntohs(in->sin6_port));
    } else {
        snprintf(out, n, "unix:%.100s", ((const struct sockaddr_un *)&a)->sun_path);
    }
}

static bool somebody_listens(const struct sockaddr_un *a)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool yes = fd >= 0 && (!connect(fd, (const struct sockaddr *)a, sizeof *a) || errno == EAGAIN);
    if (fd >= 0)
        close(fd);
    return yes;
}

static int listen_unix(struct err *e, struct http *h, const char *path, int surface)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char address[160];
    struct stat st;
    if (!*path || strlen(path) >= sizeof a.sun_path)
        return err_set(e, ERR_USAGE, "unix:%.60s: the path of a socket has from 1 to %zu bytes", path,
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    snprintf(address, sizeof address, "unix:%s", path);
    if (!stat(path, &st)) {
        if (!S_ISSOCK(st.st_mode) || somebody_listens(&a))
            return err_set(e, ERR_NO, "%s: is in use", address);
        unlink(path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, "%s", address);
    mode_t mask = umask(0077);
    int bad = bind(fd, (const struct sockaddr *)&a, sizeof a) || listen(fd, 1024);
    umask(mask);
    if (bad) {
        err_sys(e, "%s", address);
        close(fd);
        return e->code;
    }
    if (start(e, h, fd, surface, address, path)) {
        unlink(path);
        return e->code;
    }
    return 0;
}

/* "HOST:PORT" into two; the host is NULL for all addresses. */
static int split(struct err *e, char host[256], const char **port, bool *all, const char *address)
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    const char *p = address;
    *port = colon ? colon + 1 : address;
    *all = colon && n == 0;
    if (n > 2 && p[0] == '[' && p[n - 1] == ']') {
        p++;
        n -= 2;
    }
    size_t digits = strspn(*port, "0123456789");
    if (!digits || digits > 5 || (*port)[digits] || strtoul(*port, NULL, 10) > 65535 || n > 255)
        return err_set(e, ERR_USAGE, "'%.100s' is no address: HOST:PORT, :PORT, PORT or unix:PATH", address);
    snprintf(host, 256, "%.*s", (int)(colon && n ? n : 9), colon && n ? p : "127.0.0.1");
    return 0;
}

static int listen_at(struct err *e, const struct addrinfo *a, const char *address)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        err_sys(e, "%s", address);
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6) {
        int zero = 0;
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    }
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1024))
        return fd;
    if (errno == EADDRINUSE)
        err_set(e, ERR_NO, "%s: somebody listens there already", address);
    else
        err_sys(e, "%s", address);
    close(fd);
    return -1;
}

int http_listen(struct err *e, struct http *h, const char *address, int surface)
{
    char host[256], name[160];
    const char *port;
    bool all;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    if (!strncmp(address, "unix:", 5))
        return listen_unix(e, h, address + 5, surface);
    if (split(e, host, &port, &all, address))
        return e->code;
    int bad = getaddrinfo(all ? NULL : host, port, &hints, &found);
    if (bad)
        return err_set(e, ERR_USAGE, "%.100s: %s", address, gai_strerror(bad));
    /* All addresses: the one of IPv6 takes both, where there is any. */
    const struct addrinfo *a = found;
    for (const struct addrinfo *i = found; all && i; i = i->ai_next)
        if (i->ai_family == AF_INET6)
            a = i;
    int fd = listen_at(e, a, address);
    if (fd < 0 && all && a != found && e->code != ERR_NO)
        fd = listen_at(e, found, address);
    freeaddrinfo(found);
    if (fd < 0)
        return e->code;
    name_of(name, sizeof name, fd);
    return start(e, h, fd, surface, name, "");
}

int http_adopt(struct err *e, struct http *h, int fd, int surface)
{
    char name[160];
    name_of(name, sizeof name, fd);
    return start(e, h, fd, surface, name, "");
}

const char *http_address(const struct http *h, size_t i)
{
    return i < h->n_listener ? h->listener[i]->address : NULL;
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
    for (struct conn *k = h->conns; k; k = k->next)
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
    uint64_t ms = UINT64_MAX, now = proc_now_ns(), at = conn_next_ns(h), end = linger_next_ns(h);
    if (h->due)
        return 0;
    at = end < at ? end : at;
    for (size_t i = 0; i < h->n_listener; i++) {
        MHD_UNSIGNED_LONG_LONG t;
        if (MHD_get_timeout(h->listener[i]->daemon, &t) == MHD_YES && t < ms)
            ms = t;
    }
    if (at != UINT64_MAX) {
        uint64_t left = at > now ? (at - now) / 1000000 + 1 : 0;
        ms = left < ms ? left : ms;
    }
    return ms;
}

int http_step(struct err *e, struct http *h)
{
    uint64_t now = proc_now_ns();
    conn_watch(h);
    conn_scan(h, now);
    linger_step(h, now);
    h->due = false;
    for (size_t i = 0; i < h->n_listener; i++)
        if (MHD_run(h->listener[i]->daemon) != MHD_YES)
            return err_set(e, ERR_SYS, "%s: libmicrohttpd has failed", h->listener[i]->address);
    return 0;
}
