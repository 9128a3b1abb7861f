/* Connections: each drives a core (session_core.h) with a stream of nng. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/peer_tls_impl.h"
#include "link/session_impl.h"

static void on_rx(void *arg)
{
    hub_mark(&((struct conn *)arg)->ready, READY_RX);
}

static void on_tx(void *arg)
{
    hub_mark(&((struct conn *)arg)->ready, READY_TX);
}

static void post_receive(struct conn *c)
{
    nng_iov v = {c->in, CONN_READ_BYTES};
    nng_aio_set_iov(c->rx, 1, &v);
    nng_stream_recv(c->stream, c->rx);
}

static int start(struct err *e, struct conn *c)
{
    const struct session_hub_opts *o = &c->h->o;
    const struct session *s = c->s;
    struct core_opts core = {.self = &c->h->self,
                             .roles = s ? s->role : c->l->roles,
                             .dialed = s != NULL,
                             .plain = s && s->plain,
                             .silence_ms = s ? o->silence_dialed_ms : o->silence_accepted_ms,
                             .window = o->window,
                             .arena = c->h->arena};
    int rc = nng_aio_alloc(&c->rx, on_rx, c);
    rc = rc ? rc : nng_aio_alloc(&c->tx, on_tx, c);
    c->in = malloc(CONN_READ_BYTES);
    if (rc || !c->in)
        return err_nomem(e, "a connection", CONN_READ_BYTES);
    rc = session_url_is_tls(s ? s->url : c->l->url) ? session_tls_new(e, &c->tls, o->security.tls, s != NULL) : 0;
    return rc ? rc : core_init(e, &c->core, &core, session_now_ms());
}

int conn_new(struct err *e, struct conn **out, struct session_hub *h, nng_stream *stream, struct session *s,
             struct session_listener *l)
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c) {
        nng_stream_free(stream);
        return err_nomem(e, "a connection", sizeof *c);
    }
    *c = (struct conn){.h = h, .s = s, .l = l, .stream = stream, .accepted = !s};
    c->ready = (struct ready){.h = h, .object = c};
    list_init(&c->pending);
    list_init(&c->dirty);
    list_push_back(&h->conns, &c->node);
    h->n_accepted += !s;
    int rc = start(e, c);
    if (rc) {
        conn_free(c);
        return rc;
    }
    if (s)
        s->conn = c;
    post_receive(c);
    conn_dirty(c);
    hub_pend(c, false);
    hub_due(h, core_due_ms(&c->core));
    *out = c;
    return 0;
}

void conn_detach(struct conn *c)
{
    if (c->s)
        c->s->conn = NULL;
    c->s = NULL;
    c->core.down_due = false;
    conn_dirty(c);
    hub_due(c->h, conn_is_over(c, 0) ? 0 : c->core.end_ms);
}

void conn_free(struct conn *c)
{
    struct session_hub *h = c->h;
    nng_stream_close(c->stream);
    if (c->rx)
        nng_aio_stop(c->rx);
    if (c->tx)
        nng_aio_stop(c->tx);
    hub_unmark(&c->ready);
    nng_stream_free(c->stream);
    nng_aio_free(c->rx);
    nng_aio_free(c->tx);
    list_remove(&c->pending);
    list_remove(&c->dirty);
    list_remove(&c->node);
    h->n_accepted -= c->accepted;
    if (c->s)
        c->s->conn = NULL;
    core_free(&c->core);
    session_tls_free(c->tls);
    free(c->plain.p);
    free(c->roles);
    free(c->in);
    free(c);
}

/* Encrypts what the core has queued. Bytes to write now. */
static const uint8_t *encrypted(struct conn *c, size_t *n)
{
    size_t done;
    do {
        const uint8_t *p = core_out(&c->core, n);
        done = *n ? session_tls_send(c->tls, p, *n) : 0;
        core_wrote(&c->core, done);
    } while (done);
    return session_tls_out(c->tls, n);
}

bool conn_is_over(const struct conn *c, uint64_t now)
{
    if (!core_is_over(&c->core, now))
        return false;
    return !c->tls || c->core.lost || now >= c->core.end_ms || !session_tls_has_out(c->tls);
}

void conn_push(struct conn *c)
{
    size_t n;
    if (c->tx_busy || c->tx_failed)
        return;
    const uint8_t *p = c->tls ? encrypted(c, &n) : core_out(&c->core, &n);
    if (!n)
        return;
    nng_iov v = {(void *)(uintptr_t)p, n};
    nng_aio_set_iov(c->tx, 1, &v);
    c->tx_busy = true;
    nng_stream_send(c->stream, c->tx);
}

void conn_dirty(struct conn *c)
{
    if (list_empty(&c->dirty))
        list_push_back(&c->h->dirty, &c->dirty);
}

/* The peer gets the reason, or if the handshake has failed the alert that is queued, and the connection ends. */
static void refuse(struct conn *c, const struct err *reason, uint64_t now)
{
    c->core.refused = true;
    core_end(&c->core, reason->code, session_tls_is_up(c->tls) ? reason->text : NULL, now, "%s", reason->text);
    c->core.await_close = true; /* an immediate close could discard the alert */
}

/* The words of a list that the other has too, separated by spaces; NULL: no memory. */
static char *both(const char *list, const char *other)
{
    size_t size = strlen(list) + 2, at = 0;
    char *out = calloc(1, size);
    for (const char *p = list; out && *p;) {
        size_t n = strcspn(p, " ");
        if (n && peer_list_has(other, p, n))
            at += (size_t)snprintf(out + at, size - at, "%s%.*s", at ? " " : "", (int)n, p);
        p += n + (p[n] == ' ');
    }
    return out;
}

/* The handshake is complete: the core accepts what the certificate permits. */
static int authenticated(struct err *e, struct conn *c)
{
    c->roles = both(c->core.o.roles, session_tls_roles(c->tls));
    if (!c->roles)
        return err_nomem(e, "a connection", strlen(c->core.o.roles));
    if (!*c->roles)
        return err_set(e, ERR_PROTO, "the certificate of the peer permits the roles '%s', needed here: %s",
                       session_tls_roles(c->tls), c->core.o.roles);
    c->core.o.roles = c->roles;
    c->core.o.names = session_tls_names(c->tls);
    return 0;
}

static void decrypt(struct conn *c, size_t n, uint64_t now)
{
    struct err e;
    bool was_up = session_tls_is_up(c->tls);
    if (c->core.state == CORE_ENDED)
        return;
    c->core.last_seen_ms = now;
    int rc = session_tls_feed(&e, c->tls, c->in, n);
    conn_dirty(c);
    if (!rc && !was_up && session_tls_is_up(c->tls))
        rc = authenticated(&e, c);
    c->plain.n = c->plain.at = 0;
    rc = rc ? rc : session_tls_recv(&e, c->tls, &c->plain);
    if (buf_left(&c->plain))
        core_received(&c->core, buf_front(&c->plain), buf_left(&c->plain), now);
    if (rc)
        refuse(c, &e, now);
}

static void received(struct conn *c, uint64_t now)
{
    char text[128];
    int rc = nng_aio_result(c->rx);
    hub_pend(c, false);
    if (rc) {
        snprintf(text, sizeof text, "the connection broke: %s", nng_strerror(rc));
        core_lost(&c->core, text);
        return;
    }
    if (c->tls)
        decrypt(c, nng_aio_count(c->rx), now);
    else
        core_received(&c->core, c->in, nng_aio_count(c->rx), now);
    post_receive(c);
}

/* A failed write does not end the connection: frames that the peer sent before it closed are still read. */
static void written(struct conn *c)
{
    c->tx_busy = false;
    c->tx_failed = nng_aio_result(c->tx) != 0;
    if (!c->tx_failed && c->tls)
        session_tls_wrote(c->tls, nng_aio_count(c->tx));
    else if (!c->tx_failed)
        core_wrote(&c->core, nng_aio_count(c->tx));
    if (c->core.state == CORE_CLOSING)
        hub_pend(c, false);
    conn_push(c);
}

void conn_ready(struct conn *c, unsigned flags)
{
    uint64_t now = session_now_ms();
    if (flags & READY_TX)
        written(c);
    if (flags & READY_RX)
        received(c, now);
    if (!c->s && conn_is_over(c, now))
        conn_free(c);
    else
        hub_due(c->h, core_due_ms(&c->core));
}

void conn_tick(struct conn *c, uint64_t now)
{
    core_tick(&c->core, now);
    if (!c->s && conn_is_over(c, now)) {
        conn_free(c);
        return;
    }
    if (c->core.down_due)
        hub_pend(c, false);
    conn_dirty(c);
    hub_due(c->h, core_due_ms(&c->core));
}
