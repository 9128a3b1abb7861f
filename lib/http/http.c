/* The server: its listeners, and the step that runs it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "http/http_impl.h"

/* ---- open and close ---- */

static uint64_t or_default(uint64_t v, uint64_t otherwise)
{
    return v ? v : otherwise;
}

static void set_limits(struct http_opts *o)
{
    o->body_bytes_max = or_default(o->body_bytes_max, BODY_BYTES_MAX);
    o->bodies_bytes_max = or_default(o->bodies_bytes_max, BODIES_BYTES_MAX);
    o->queued_bytes_max = or_default(o->queued_bytes_max, QUEUED_BYTES_MAX);
    o->outputs_bytes_max = or_default(o->outputs_bytes_max, OUTPUTS_BYTES_MAX);
    o->connections_max = (uint32_t)or_default(o->connections_max, CONNECTIONS_MAX);
    o->address_connections_max =
        (uint32_t)or_default(o->address_connections_max, or_default(o->connections_max / 4 * 3, o->connections_max));
    o->idle_s = (uint32_t)or_default(o->idle_s, IDLE_S);
    o->head_s = (uint32_t)or_default(o->head_s, o->idle_s < HEAD_S ? o->idle_s : HEAD_S);
}

int http_open(struct err *e, struct http **out, const struct http_opts *o)
{
    struct http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_nomem(e, "the HTTP server", sizeof *h);
    h->o = *o;
    set_limits(&h->o);
    list_init(&h->conns);
    list_init(&h->idle);
    list_init(&h->lingers);
    list_init(&h->due);
    h->spare = eventfd(0, EFD_CLOEXEC);
    int rc = loop_new(e, &h->loop);
    if (!rc && o->tls_cert)
        rc = tls_new(e, &h->tls, o->tls_cert, o->tls_key);
    if (rc)
        http_close(h);
    else
        *out = h;
    return rc;
}

static void listener_stop(struct listener *l)
{
    loop_fd_remove(&l->io);
    loop_timer_stop(&l->again);
    if (l->fd >= 0)
        close(l->fd);
    l->fd = -1;
    if (*l->path)
        unlink(l->path);
    *l->path = 0;
}

static void free_all(struct list *conns)
{
    while (!list_empty(conns))
        conn_close(list_entry(conns->next, struct conn, node));
}

void http_close(struct http *h)
{
    if (!h)
        return;
    h->closing = true;
    free_all(&h->conns);
    free_all(&h->lingers);
    for (size_t i = 0; i < h->n_listener; i++) {
        listener_stop(h->listener[i]);
        free(h->listener[i]);
    }
    if (h->spare >= 0)
        close(h->spare);
    loop_free(h->loop);
    tls_free(h->tls);
    map_free(&h->peers);
    free(h);
}

/* ---- addresses ---- */

static int add_listener(struct err *e, struct http *h, struct listener *l)
{
    if (fcntl(l->fd, F_SETFL, fcntl(l->fd, F_GETFL) | O_NONBLOCK)) /* an inherited one may block */
        return err_sys(e, "%s", l->address);
    loop_timer_init(h->loop, &l->again, accept_again, l);
    return loop_fd_add(e, h->loop, &l->io, l->fd, EPOLLIN, accept_ready, l);
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
    l->fd = fd;
    l->dialect = dialect;
    snprintf(l->address, sizeof l->address, "%s", address);
    snprintf(l->path, sizeof l->path, "%s", path);
    if (add_listener(e, h, l)) {
        close(fd);
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
    int rc = start(e, h, fd, dialect, name, "");
    if (!rc)
        h->listener[h->n_listener - 1]->adopted = true;
    return rc;
}

const char *http_address(const struct http *h, size_t i)
{
    return i < h->n_listener ? h->listener[i]->address : NULL;
}

int http_address_dialect(const struct http *h, size_t i)
{
    return h->listener[i]->dialect;
}

/* Whether bytes of a request were received, by this process or its kernel. */
static bool has_input(const struct conn *k)
{
    int n_unread = 0;
    return buf_left(&k->in) || (!ioctl(k->fd, FIONREAD, &n_unread) && n_unread);
}

void http_leave(struct http *h)
{
    for (size_t i = 0; i < h->n_listener; i++)
        if (h->listener[i]->adopted)
            listener_stop(h->listener[i]);
    list_each (struct conn, k, &h->conns, node)
        if (conn_is_leaving(k) && k->state == CONN_HEAD && k->used && !has_input(k))
            conn_kill(k);
}

uint32_t http_arriving(const struct http *h)
{
    uint32_t n = 0;
    list_each (const struct conn, k, &h->conns, node) {
        bool begun = k->state == CONN_HANDSHAKE || k->state == CONN_BODY || (k->state == CONN_HEAD && !k->used);
        n += conn_is_leaving(k) && !k->dead && begun;
    }
    return n;
}

bool http_is_last(const struct http_request *r)
{
    return conn_is_leaving(r->k);
}

void http_stop(struct http *h)
{
    for (size_t i = 0; i < h->n_listener; i++)
        listener_stop(h->listener[i]);
    list_each (struct conn, k, &h->conns, node)
        if (k->state == CONN_HANDSHAKE || (k->state == CONN_HEAD && !buf_left(&k->in)))
            conn_kill(k);
}

int http_reload(struct err *e, struct http *h)
{
    return h->tls ? tls_load(e, h->tls) : 0;
}

int http_check_tls(struct err *e, const char *cert, const char *key)
{
    struct tls *t = NULL;
    int rc = tls_new(e, &t, cert, key);
    tls_free(t);
    return rc;
}

uint32_t http_connections(const struct http *h)
{
    return h->n_conn;
}

void http_stats(const struct http *h, struct http_stats *out)
{
    *out = (struct http_stats){
        .connections = h->n_conn,
        .idle = h->n_idle,
        .body_bytes = h->n_body,
        .queued_bytes = h->n_queued,
        .replaced = h->n_replaced,
        .refused = h->n_refused,
        .timed_out = h->n_timed_out,
    };
}

uint32_t http_unsent(struct http *h, uint64_t stall_ns)
{
    uint64_t now = time_now_ns();
    uint32_t n = 0;
    list_each (struct conn, k, &h->conns, node) {
        if (!k->r || k->r->state != REQUEST_FINISHED || k->dead)
            continue;
        uint64_t bytes = send_unsent(k);
        if (!k->look_ns || bytes != k->unsent)
            k->look_ns = now;
        k->unsent = bytes;
        n += now - k->look_ns < stall_ns;
    }
    return n;
}

/* ---- the step ---- */

int http_fd(const struct http *h)
{
    return loop_epoll_fd(h->loop);
}

uint64_t http_next_ms(const struct http *h)
{
    uint64_t at = loop_next_ns(h->loop), now = time_now_ns();
    if (!list_empty(&h->due))
        return 0;
    return at == UINT64_MAX ? at : at > now ? (at - now) / NS_MS + 1 : 0;
}

/* What becomes due meanwhile has its turn later, so that no client can hold the others up. */
static void run_due(struct http *h)
{
    struct list turn;
    list_init(&turn);
    list_append(&turn, &h->due);
    for (struct list *n; (n = list_pop_front(&turn));)
        conn_turn(list_entry(n, struct conn, due));
}

int http_step(struct err *e, struct http *h)
{
    run_due(h); /* responses since the last step */
    int rc = loop_step(e, h->loop, NULL, 0);
    run_due(h); /* responses to the requests of this one */
    return rc;
}
