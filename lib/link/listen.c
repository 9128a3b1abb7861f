/*
 * The side that answers: a REP socket, and a context for each question that is open. Contexts are made as they are
 * needed and never closed before the end. Some listen; the rest hold questions, or are idle, so that what comes in at
 * once is bounded whatever the peers do.
 *
 * nng lets a context listen again without having answered: that is how the question of a peer that has gone ends.
 */
#include <nng/nng.h>

#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/ask_impl.h"

#define LISTENING_MIN 8
#define LISTENING_MAX 64
#define BACKLOG_BYTES_MAX ((uint64_t)256 << 20) /* of messages not taken; above, no more contexts listen */

struct link_question {
    struct link_question *next_all, *next_idle;
    struct link_question *prev, *next; /* of its peer's */
    struct link_listener *l;
    struct peer *peer; /* while it is open */
    nng_ctx ctx;
    nng_aio *aio;
    bool answering; /* otherwise it listens, when the aio is at work */
    struct box_item item;
};

struct link_listener {
    struct link_box *box;
    nng_socket socket;
    char *url;
    struct peers peers;
    struct link_question *all, *idle;
    uint32_t n_all, n_listening;
    bool closing;
};

static void question_done(void *arg);

static int new_question(struct link_question **out, struct link_listener *l)
{
    struct link_question *q = calloc(1, sizeof *q);
    if (!q)
        return NNG_ENOMEM;
    q->l = l;
    int rc = nng_aio_alloc(&q->aio, question_done, q);
    if (!rc && (rc = nng_ctx_open(&q->ctx, l->socket)))
        nng_aio_free(q->aio);
    if (rc)
        free(q);
    else
        *out = q;
    return rc;
}

/* Lets contexts listen until there are enough that do. */
static int grow(struct link_listener *l)
{
    int rc = 0;
    while (!rc) {
        pthread_mutex_lock(&l->box->lock);
        struct link_question *q = NULL;
        bool more = !l->closing && l->n_listening < LISTENING_MIN && l->box->n_bytes <= BACKLOG_BYTES_MAX &&
                    (l->idle || l->n_all < LINK_QUESTIONS_MAX);
        if (more) {
            q = l->idle;
            if (q)
                l->idle = q->next_idle;
            else
                l->n_all++;
            l->n_listening++;
        }
        pthread_mutex_unlock(&l->box->lock);
        if (!more)
            break;
        bool made = !q;
        if (made)
            rc = new_question(&q, l);
        if (made) {
            pthread_mutex_lock(&l->box->lock);
            if (rc) {
                l->n_all--;
                l->n_listening--;
            } else {
                q->next_all = l->all;
                l->all = q;
            }
            pthread_mutex_unlock(&l->box->lock);
        }
        if (!rc)
            nng_ctx_recv(q->ctx, q->aio);
    }
    return rc;
}

/* A context that has nothing to do any more. */
static void rest(struct link_question *q)
{
    struct link_listener *l = q->l;
    q->answering = false;
    pthread_mutex_lock(&l->box->lock);
    bool listens = l->n_listening < LISTENING_MAX && l->box->n_bytes <= BACKLOG_BYTES_MAX;
    if (listens) {
        l->n_listening++;
    } else {
        q->next_idle = l->idle;
        l->idle = q;
    }
    pthread_mutex_unlock(&l->box->lock);
    if (listens)
        nng_ctx_recv(q->ctx, q->aio);
}

/* What made it stop would make it stop again. */
static void not_listening(struct link_question *q)
{
    pthread_mutex_lock(&q->l->box->lock);
    q->l->n_listening--;
    q->next_idle = q->l->idle;
    q->l->idle = q;
    pthread_mutex_unlock(&q->l->box->lock);
}

static void leave_peer(struct link_question *q)
{
    if (q->prev)
        q->prev->next = q->next;
    else
        q->peer->first = q->next;
    if (q->next)
        q->next->prev = q->prev;
    q->peer->n_open--;
    q->peer = NULL;
}

static void join_peer(struct link_question *q, struct peer *p)
{
    q->peer = p;
    q->prev = NULL;
    q->next = p->first;
    if (p->first)
        p->first->prev = q;
    p->first = q;
    p->n_open++;
}

/* The backlog may have kept contexts from listening. */
static void question_taken(struct box_item *i)
{
    grow(i->q->l);
}

/* A question came; false: its peer has gone, or asks too much. */
static bool came(struct link_question *q, nng_msg *m)
{
    struct link_listener *l = q->l;
    nng_pipe pipe = nng_msg_get_pipe(m);
    pthread_mutex_lock(&l->box->lock);
    l->n_listening--;
    struct peer *p = peers_find(&l->peers, (uint32_t)nng_pipe_id(pipe));
    bool much = p && !p->gone && p->n_open >= LINK_ASKED_MAX;
    bool taken = p && !p->gone && !much && !l->closing;
    if (taken) {
        peer_up(p);
        join_peer(q, p);
        q->item = (struct box_item){.what = LINK_QUESTION,
                                    .peer = p->id,
                                    .arg = l->peers.arg,
                                    .msg = m,
                                    .url = l->url,
                                    .q = q,
                                    .socket = l,
                                    .taken = question_taken};
        box_put(l->box, &q->item);
    }
    pthread_mutex_unlock(&l->box->lock);
    if (much)
        nng_pipe_close(pipe);
    return taken;
}

/* On a thread of nng. Once the socket is closed nothing goes on. */
static void question_done(void *arg)
{
    struct link_question *q = arg;
    int rc = nng_aio_result(q->aio);
    nng_msg *m = nng_aio_get_msg(q->aio);
    nng_aio_set_msg(q->aio, NULL);
    if (q->answering) {
        if (rc && m)
            nng_msg_free(m);
        if (rc != NNG_ECLOSED && rc != NNG_ECANCELED)
            rest(q);
        return;
    }
    if (rc) {
        not_listening(q);
        return;
    }
    if (!came(q, m)) {
        nng_msg_free(m);
        rest(q);
    }
    grow(q->l);
}

/* Questions that still are in the box will not be seen. Without the lock they rest when LINK_DOWN is taken. */
static void peer_gone(struct peer *p)
{
    for (struct link_question *q = p->first; q; q = q->next)
        if (q->item.in)
            box_remove(p->of->box, &q->item);
}

static void peer_dropped(struct peer *p)
{
    struct link_box *b = p->of->box;
    for (;;) {
        pthread_mutex_lock(&b->lock);
        struct link_question *q = p->first;
        if (q)
            leave_peer(q);
        pthread_mutex_unlock(&b->lock);
        if (!q)
            return;
        rest(q);
    }
}

void link_answer(struct link_question *q, struct link_msg *m)
{
    struct link_box *b = q->l->box;
    nng_msg *msg = NULL;
    size_t n = m ? m->n : 0;
    pthread_mutex_lock(&b->lock);
    bool gone = q->peer->gone;
    nng_pipe pipe = {.id = q->peer->id};
    leave_peer(q);
    pthread_mutex_unlock(&b->lock);
    int rc = gone ? 0 : nng_msg_alloc(&msg, n);
    if (!gone && !rc) {
        if (n)
            memcpy(nng_msg_body(msg), m->p, n);
        q->answering = true;
        nng_aio_set_msg(q->aio, msg);
        nng_ctx_send(q->ctx, q->aio);
    } else {
        /* Without memory for the answer the asker learns that there is none from the end of its connection. */
        if (!gone)
            nng_pipe_close(pipe);
        rest(q);
    }
    if (m)
        link_msg_clear(m);
}

/* The port that tcp://HOST:0 got. */
static int bound_url(struct err *e, struct link_listener *l, nng_listener ln)
{
    size_t n = strlen(l->url);
    int port = 0;
    if (strncmp(l->url, "tcp://", 6) || n < 2 || strcmp(l->url + n - 2, ":0") ||
        nng_listener_get_int(ln, NNG_OPT_TCP_BOUND_PORT, &port))
        return 0;
    char *url = malloc(n + 8);
    if (!url)
        return err_nomem(e, "an address", n);
    snprintf(url, n + 8, "%.*s%d", (int)n - 1, l->url, port);
    free(l->url);
    l->url = url;
    l->peers.url = url;
    return 0;
}

static int listen_failed(struct err *e, const char *url, int rc)
{
    if (rc == NNG_EADDRINUSE)
        return err_set(e, ERR_NO, "%s: somebody listens there", url);
    if (rc == NNG_EADDRINVAL || rc == NNG_EINVAL || rc == NNG_ENOTSUP)
        return err_set(e, ERR_USAGE, "%s: no such address", url);
    return err_set(e, ERR_SYS, "%s: %s", url, nng_strerror(rc));
}

static int listen_start(struct err *e, struct link_listener *l)
{
    nng_listener ln;
    int rc = ask_options(e, l->socket, l->url);
    rc = rc ? rc : peers_watch(e, &l->peers, l->socket);
    if (rc)
        return rc;
    rc = nng_listener_create(&ln, l->socket, l->url);
    if (!rc && !strncmp(l->url, "ipc://", 6))
        rc = nng_listener_set_int(ln, NNG_OPT_IPC_PERMISSIONS, 0600);
    rc = rc ? rc : grow(l);
    rc = rc ? rc : nng_listener_start(ln, 0);
    return rc ? listen_failed(e, l->url, rc) : bound_url(e, l, ln);
}

int link_listen(struct err *e, struct link_listener **out, struct link_box *b, const char *url, void *arg)
{
    int rc = ask_url(e, url);
    if (rc)
        return rc;
    struct link_listener *l = calloc(1, sizeof *l);
    if (l)
        l->url = strdup(url);
    if (!l || !l->url) {
        free(l);
        return err_nomem(e, "a socket", sizeof *l);
    }
    l->box = b;
    l->peers =
        (struct peers){.box = b, .socket = l, .arg = arg, .url = l->url, .gone = peer_gone, .dropped = peer_dropped};
    rc = nng_rep0_open(&l->socket);
    if (rc) {
        free(l->url);
        free(l);
        return err_set(e, ERR_SYS, "%s: %s", url, nng_strerror(rc));
    }
    rc = listen_start(e, l);
    if (rc) {
        link_listener_free(l);
        return rc;
    }
    *out = l;
    return 0;
}

const char *link_listener_url(const struct link_listener *l)
{
    return l->url;
}

/* A thread of nng that had already begun to make a context goes on to the end, so once more until there are no new
 * ones. */
static void stop_all(struct link_listener *l)
{
    struct link_question *first = NULL, *before;
    do {
        before = first;
        pthread_mutex_lock(&l->box->lock);
        first = l->all;
        pthread_mutex_unlock(&l->box->lock);
        for (struct link_question *q = first; q; q = q->next_all)
            nng_aio_stop(q->aio);
    } while (first != before);
}

void link_listener_free(struct link_listener *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->box->lock);
    l->closing = true;
    pthread_mutex_unlock(&l->box->lock);
    bool closed = ask_close(l->socket);
    if (closed)
        stop_all(l);
    box_forget(l->box, l);
    if (!closed) {
        l->box->stuck = true;
        return;
    }
    peers_free(&l->peers);
    struct link_question *next;
    for (struct link_question *q = l->all; q; q = next) {
        next = q->next_all;
        nng_aio_free(q->aio);
        free(q);
    }
    free(l->url);
    free(l);
}
