/*
 * The side that asks: a REQ socket, and a context for each question that is open. Contexts are used again and never
 * cancelled. With resending off a question is sent once; one that was sent over a connection that breaks fails with
 * ECONNRESET, one that was not waits for the next connection.
 *
 * Where nng hangs over a connection that broke (ask_impl.h), it does not connect again, and later does not even tell of
 * connections that break. So a second after a question failed its connection is taken to be gone, and where there is
 * none, what connects is made anew.
 */
#include <nng/nng.h>

#include <nng/protocol/reqrep0/req.h>
#include <stdlib.h>
#include <string.h>

#include "link/ask_impl.h"

struct asked {
    struct asked *next; /* of all, and of the free ones */
    struct asked *next_free;
    struct link_dialer *d;
    nng_ctx ctx;
    nng_aio *aio;
    bool sent;
    uint32_t over; /* which connection it was sent over, by count */
    struct box_item item;
};

struct link_dialer {
    struct link_box *box;
    nng_socket socket;
    char *url;
    struct peers peers;
    struct asked *all, *free;
    uint32_t n_asked;
    nng_dialer dialer;
    nng_aio *timer;
    bool looking, closing;
    uint32_t n_within; /* threads of nng within a context of the socket */
    pthread_cond_t without;
    uint32_t broken; /* the connection over which a question failed */
};

#define LOOK_MS 1000

static void look_later(struct link_dialer *d)
{
    pthread_mutex_lock(&d->box->lock);
    bool start = !d->looking && !d->closing;
    d->looking |= start;
    pthread_mutex_unlock(&d->box->lock);
    if (start)
        nng_sleep_aio(LOOK_MS, d->timer);
}

static void lost(struct peers *s)
{
    look_later((struct link_dialer *)((char *)s - offsetof(struct link_dialer, peers)));
}

/* On a thread of nng. */
static void look(void *arg)
{
    struct link_dialer *d = arg;
    pthread_mutex_lock(&d->box->lock);
    d->looking = false;
    bool closing = d->closing || nng_aio_result(d->timer);
    if (!closing && d->broken == d->peers.n_came)
        peers_down(&d->peers);
    bool none = !closing && !d->peers.n_up;
    pthread_mutex_unlock(&d->box->lock);
    if (!none)
        return;
    nng_dialer_close(d->dialer);
    if (nng_dial(d->socket, d->url, &d->dialer, NNG_FLAG_NONBLOCK))
        look_later(d);
}

static void asked_taken(struct box_item *i)
{
    struct asked *a = (struct asked *)((char *)i - offsetof(struct asked, item));
    pthread_mutex_lock(&a->d->box->lock);
    a->next_free = a->d->free;
    a->d->free = a;
    pthread_mutex_unlock(&a->d->box->lock);
}

/* Was sent: the same aio waits for the answer. That may be there already and be taken, and the socket closed by whoever
 * takes it, before this returns; nng (1.5) then frees the socket under the context that this thread still has to let
 * go. So it is said that a thread is within, and who closes waits for it. */
static void await_answer(struct asked *a)
{
    struct link_dialer *d = a->d;
    pthread_mutex_lock(&d->box->lock);
    bool closing = d->closing;
    a->sent = true;
    a->over = d->peers.n_came;
    d->n_within += !closing;
    pthread_mutex_unlock(&d->box->lock);
    nng_aio_set_msg(a->aio, NULL);
    if (closing) /* nobody waits for it */
        return;
    nng_ctx_recv(a->ctx, a->aio);
    pthread_mutex_lock(&d->box->lock);
    if (!--d->n_within)
        pthread_cond_signal(&d->without);
    pthread_mutex_unlock(&d->box->lock);
}

/* On a thread of nng. */
static void asked_done(void *arg)
{
    struct asked *a = arg;
    int rc = nng_aio_result(a->aio);
    nng_msg *m = nng_aio_get_msg(a->aio);
    struct link_box *b = a->d->box;
    if (!rc && !a->sent) {
        await_answer(a);
        return;
    }
    nng_aio_set_msg(a->aio, NULL);
    if (rc && !a->sent && m)
        nng_msg_free(m);
    a->item.what = rc ? LINK_FAILED : LINK_ANSWER;
    a->item.failure = rc;
    a->item.msg = rc ? NULL : m;
    a->item.peer = rc ? 0 : (uint32_t)nng_pipe_id(nng_msg_get_pipe(m));
    pthread_mutex_lock(&b->lock);
    bool closing = a->d->closing;
    if (!closing)
        box_put(b, &a->item);
    if (rc)
        a->d->broken = a->over;
    pthread_mutex_unlock(&b->lock);
    if (closing && a->item.msg)
        nng_msg_free(a->item.msg);
    else if (rc && !closing)
        look_later(a->d);
}

static int dial_start(struct err *e, struct link_dialer *d)
{
    int rc = nng_socket_set_ms(d->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (rc)
        return err_set(e, ERR_SYS, "%s: %s", d->url, nng_strerror(rc));
    rc = ask_options(e, d->socket, d->url);
    rc = rc ? rc : peers_watch(e, &d->peers, d->socket);
    if (rc)
        return rc;
    rc = nng_dial(d->socket, d->url, &d->dialer, NNG_FLAG_NONBLOCK);
    if (rc)
        return err_set(e, rc == NNG_ENOMEM ? ERR_SYS : ERR_USAGE, "%s: %s", d->url, nng_strerror(rc));
    return 0;
}

int link_dial(struct err *e, struct link_dialer **out, struct link_box *b, const char *url, void *arg)
{
    int rc = ask_url(e, url);
    if (rc)
        return rc;
    struct link_dialer *d = calloc(1, sizeof *d);
    if (d)
        d->url = strdup(url);
    if (!d || !d->url) {
        free(d);
        return err_nomem(e, "a connection", sizeof *d);
    }
    d->box = b;
    pthread_cond_init(&d->without, NULL);
    d->peers = (struct peers){.box = b, .socket = d, .arg = arg, .url = d->url, .lost = lost};
    rc = nng_aio_alloc(&d->timer, look, d);
    if (!rc && (rc = nng_req0_open(&d->socket)))
        nng_aio_free(d->timer);
    if (rc) {
        free(d->url);
        free(d);
        return err_set(e, ERR_SYS, "%s: %s", url, nng_strerror(rc));
    }
    rc = dial_start(e, d);
    if (rc) {
        link_dialer_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void link_dialer_free(struct link_dialer *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->box->lock);
    d->closing = true;
    while (d->n_within)
        pthread_cond_wait(&d->without, &d->box->lock);
    pthread_mutex_unlock(&d->box->lock);
    nng_aio_stop(d->timer);
    bool closed = ask_close(d->socket);
    if (closed)
        for (struct asked *a = d->all; a; a = a->next)
            nng_aio_stop(a->aio);
    box_forget(d->box, d);
    if (!closed) {
        d->box->stuck = true;
        return;
    }
    nng_aio_free(d->timer);
    peers_free(&d->peers);
    struct asked *next;
    for (struct asked *a = d->all; a; a = next) {
        next = a->next;
        nng_aio_free(a->aio);
        free(a);
    }
    pthread_cond_destroy(&d->without);
    free(d->url);
    free(d);
}

bool link_dialer_up(const struct link_dialer *d)
{
    pthread_mutex_lock(&d->box->lock);
    bool up = d->peers.n_up > 0;
    pthread_mutex_unlock(&d->box->lock);
    return up;
}

static int new_asked(struct err *e, struct asked **out, struct link_dialer *d)
{
    struct asked *a = calloc(1, sizeof *a);
    if (!a)
        return err_nomem(e, "a question", sizeof *a);
    a->d = d;
    a->item = (struct box_item){.url = d->url, .socket = d, .taken = asked_taken};
    int rc = nng_aio_alloc(&a->aio, asked_done, a);
    if (rc) {
        free(a);
        return err_set(e, ERR_SYS, "%s: %s", d->url, nng_strerror(rc));
    }
    rc = nng_ctx_open(&a->ctx, d->socket);
    if (!rc && (rc = nng_ctx_set_ms(a->ctx, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE)))
        nng_ctx_close(a->ctx);
    if (rc) {
        nng_aio_free(a->aio);
        free(a);
        return err_set(e, ERR_SYS, "%s: %s", d->url, nng_strerror(rc));
    }
    *out = a;
    return 0;
}

/* A free context, or a new one. */
static int get_asked(struct err *e, struct asked **out, struct link_dialer *d)
{
    pthread_mutex_lock(&d->box->lock);
    struct asked *a = d->free;
    bool full = !a && d->n_asked >= LINK_ASKED_MAX;
    if (a)
        d->free = a->next_free;
    else if (!full)
        d->n_asked++;
    pthread_mutex_unlock(&d->box->lock);
    *out = a;
    if (full)
        return err_set(e, ERR_NO, "%s: %d questions are open", d->url, LINK_ASKED_MAX);
    if (a)
        return 0;
    int rc = new_asked(e, out, d);
    pthread_mutex_lock(&d->box->lock);
    if (rc) {
        d->n_asked--;
    } else {
        (*out)->next = d->all;
        d->all = *out;
    }
    pthread_mutex_unlock(&d->box->lock);
    return rc;
}

int link_ask(struct err *e, struct link_dialer *d, struct link_msg *m, void *arg)
{
    struct asked *a;
    nng_msg *msg;
    size_t n = m ? m->n : 0;
    int rc = nng_msg_alloc(&msg, n);
    if (rc)
        return err_nomem(e, "a message", n);
    if (n)
        memcpy(nng_msg_body(msg), m->p, n);
    rc = get_asked(e, &a, d);
    if (rc) {
        nng_msg_free(msg);
        return rc;
    }
    if (m)
        link_msg_clear(m);
    a->sent = false;
    a->item.arg = arg;
    nng_aio_set_msg(a->aio, msg);
    nng_ctx_send(a->ctx, a->aio);
    return 0;
}
