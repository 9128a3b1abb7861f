/* Listeners: accepting connections. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/socket.h"
#include "link/session_impl.h"
#include "link/socket.h"

static void on_accept(void *arg)
{
    hub_mark(&((struct session_listener *)arg)->ready, READY_ACCEPT);
}

/* File modes keep other users out; this holds also where a directory or mount does not. */
static bool is_trusted(const struct session_listener *l, nng_stream *stream)
{
    uint64_t uid;
    if (strncmp(l->url, "ipc://", 6))
        return true;
    return !nng_stream_get_uint64(stream, NNG_OPT_IPC_PEER_UID, &uid) && socket_trusts((uid_t)uid, l->url + 6);
}

static void accept_stream(struct session_listener *l, nng_stream *stream)
{
    struct err e;
    struct conn *c;
    struct session_hub *h = l->h;
    if (h->n_accepted >= SESSIONS_MAX + HUB_CONNS_SPARE || !is_trusted(l, stream)) {
        nng_stream_close(stream);
        nng_stream_free(stream);
        return;
    }
    if (conn_new(&e, &c, h, stream, NULL, l))
        return;
    if (h->n_accepted > SESSIONS_MAX)
        core_end(&c->core, ERR_NO, "too many sessions, the limit is 4096", session_now_ms(), "too many sessions");
}

void listener_ready(struct session_listener *l)
{
    int rc = nng_aio_result(l->accept);
    if (!rc)
        accept_stream(l, nng_aio_get_output(l->accept, 0));
    if (!rc || rc == NNG_ECONNABORTED) {
        nng_stream_listener_accept(l->listener, l->accept);
        return;
    }
    l->retry_ms = session_now_ms() + ACCEPT_RETRY_MS; /* out of descriptors or memory */
    hub_due(l->h, l->retry_ms);
}

void listener_tick(struct session_listener *l, uint64_t now)
{
    if (!l->retry_ms)
        return;
    if (now < l->retry_ms) {
        hub_due(l->h, l->retry_ms);
        return;
    }
    l->retry_ms = 0;
    nng_stream_listener_accept(l->listener, l->accept);
}

/* For tcp://HOST:0 replaces the 0 of the url by the port that was chosen. */
static int bound_url(struct err *e, struct session_listener *l)
{
    size_t n = strlen(l->url);
    int port = 0;
    if (!strncmp(l->url, "ipc://", 6) || strcmp(l->url + n - 2, ":0") ||
        nng_stream_listener_get_int(l->listener, NNG_OPT_TCP_BOUND_PORT, &port))
        return 0;
    char *url = malloc(n + 8);
    if (!url)
        return err_nomem(e, "an address", n);
    snprintf(url, n + 8, "%.*s%d", (int)n - 1, l->url, port);
    free(l->url);
    l->url = url;
    return 0;
}

static int listen_failed(struct err *e, const char *url, int rc)
{
    if (rc == NNG_EADDRINUSE)
        return err_set(e, ERR_NO, "%s: address in use: another program listens on it", url);
    if (rc == NNG_EADDRINVAL || rc == NNG_EINVAL || rc == NNG_ENOTSUP)
        return err_set(e, ERR_USAGE, "%s: not an address of this host", url);
    return err_set(e, ERR_SYS, "%s: %s", url, nng_strerror(rc));
}

static int start(struct err *e, struct session_listener *l)
{
    bool ipc = !strncmp(l->url, "ipc://", 6), is_socket;
    int rc = ipc ? socket_make_way(e, l->url + 6, &is_socket) : 0;
    if (rc)
        return rc == ERR_NO && is_socket ? listen_failed(e, l->url, NNG_EADDRINUSE) : rc;
    rc = nng_stream_listener_alloc(&l->listener, session_url_stream(l->url));
    rc = rc ? rc : nng_aio_alloc(&l->accept, on_accept, l);
    if (!rc && ipc)
        rc = nng_stream_listener_set_int(l->listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    rc = rc ? rc : nng_stream_listener_listen(l->listener);
    rc = rc ? listen_failed(e, l->url, rc) : bound_url(e, l);
    if (!rc && ipc && !socket_give_to_owner(l->url + 6))
        rc = err_sys(e, "%s", l->url);
    if (!rc)
        nng_stream_listener_accept(l->listener, l->accept);
    return rc;
}

int session_listen(struct err *e, struct session_listener **out, struct session_hub *h, const char *url,
                   const char *roles, void *arg)
{
    int rc = session_url_check(e, url, &h->o.security);
    if (rc)
        return rc;
    struct session_listener *l = calloc(1, sizeof *l);
    if (!l)
        return err_nomem(e, "a listener", sizeof *l);
    *l = (struct session_listener){.h = h, .url = strdup(url), .roles = strdup(roles), .arg = arg};
    l->ready = (struct ready){.h = h, .object = l};
    list_push_back(&h->listeners, &l->node);
    rc = l->url && l->roles ? start(e, l) : err_nomem(e, "a listener", sizeof *l);
    if (rc) {
        session_listener_free(l);
        return rc;
    }
    *out = l;
    return 0;
}

const char *session_listener_url(const struct session_listener *l)
{
    return l->url;
}

void session_listener_line(char *out, size_t n, const struct session_listener *l)
{
    *out = 0;
    if (strncmp(l->url, "ipc://", 6))
        snprintf(out, n, "LISTEN=%s\n", l->url);
}

/* Closes connections that have no session yet; accepted sessions stay. */
static void detach_conns(struct session_listener *l)
{
    list_each_safe (struct conn, c, &l->h->conns, node) {
        if (c->l != l)
            continue;
        c->l = NULL;
        if (!c->s && c->core.state != CORE_ENDED)
            conn_free(c);
    }
}

void session_listener_free(struct session_listener *l)
{
    if (!l)
        return;
    if (l->listener)
        nng_stream_listener_close(l->listener);
    if (l->accept)
        nng_aio_stop(l->accept);
    nng_stream *late = l->accept && !nng_aio_result(l->accept) ? nng_aio_get_output(l->accept, 0) : NULL;
    if (late)
        nng_stream_free(late);
    hub_unmark(&l->ready);
    detach_conns(l);
    list_remove(&l->node);
    if (l->listener)
        nng_stream_listener_free(l->listener);
    nng_aio_free(l->accept);
    free(l->url);
    free(l->roles);
    free(l);
}
