/* The connections of a socket, as nng tells of them. */
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>

#include "link/ask_impl.h"

/* The answer's number of four bytes travels beside the message. */
#define HEADER_BYTES 64
#define RECONNECT_MS_MIN 5
#define RECONNECT_MS_MAX 100
#define PATH_BYTES_MAX (sizeof((struct sockaddr_un *)NULL)->sun_path - 1)

/* nng finds some of this out only when it dials, and then tries for ever. */
int ask_url(struct err *e, const char *url)
{
    bool ipc = !strncmp(url, "ipc://", 6), tcp = !strncmp(url, "tcp://", 6);
    const char *colon = strrchr(url, ':'), *port = colon ? colon + 1 : url;
    if ((!ipc && !tcp) || !url[6])
        return err_set(e, ERR_USAGE, "'%s': an address is ipc://PATH or tcp://HOST:PORT", url);
    if (ipc && strlen(url + 6) > PATH_BYTES_MAX)
        return err_set(e, ERR_USAGE, "'%s': the path of a socket has at most %zu bytes", url, PATH_BYTES_MAX);
    size_t n = strspn(port, "0123456789");
    if (tcp && (port <= url + 6 || !n || n > 5 || port[n] || strtoul(port, NULL, 10) > 65535))
        return err_set(e, ERR_USAGE, "'%s': a port is a number up to 65535", url);
    return 0;
}

int ask_options(struct err *e, nng_socket s, const char *url)
{
    ask_broken_pipes();
    int rc = nng_socket_set_size(s, NNG_OPT_RECVMAXSZ, LINK_MESSAGE_BYTES_MAX + HEADER_BYTES);
    rc = rc ? rc : nng_socket_set_ms(s, NNG_OPT_RECONNMINT, RECONNECT_MS_MIN);
    rc = rc ? rc : nng_socket_set_ms(s, NNG_OPT_RECONNMAXT, RECONNECT_MS_MAX);
    return rc ? err_set(e, ERR_SYS, "%s: %s", url, nng_strerror(rc)) : 0;
}

struct peer *peers_find(struct peers *s, uint32_t id)
{
    struct peer *p = s->bucket[id % PEER_BUCKETS];
    while (p && p->id != id)
        p = p->next;
    return p;
}

static void unlink_peer(struct peer *p)
{
    struct peer **at = &p->of->bucket[p->id % PEER_BUCKETS];
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
}

/* LINK_DOWN was taken, so LINK_UP was too. */
static void down_taken(struct box_item *i)
{
    struct peer *p = (struct peer *)((char *)i - offsetof(struct peer, down_item));
    if (p->of->dropped)
        p->of->dropped(p);
    pthread_mutex_lock(&p->of->box->lock);
    unlink_peer(p);
    pthread_mutex_unlock(&p->of->box->lock);
    free(p);
}

/* Before its first message; one that finds no memory is closed again. */
static void add(struct peers *s, nng_pipe pipe)
{
    struct peer *p = calloc(1, sizeof *p);
    if (!p) {
        nng_pipe_close(pipe);
        return;
    }
    p->of = s;
    p->id = (uint32_t)nng_pipe_id(pipe);
    struct box_item item = {.what = LINK_UP, .peer = p->id, .arg = s->arg, .url = s->url, .socket = s->socket};
    p->up_item = item;
    item.what = LINK_DOWN;
    item.taken = down_taken;
    p->down_item = item;
    pthread_mutex_lock(&s->box->lock);
    p->next = s->bucket[p->id % PEER_BUCKETS];
    s->bucket[p->id % PEER_BUCKETS] = p;
    pthread_mutex_unlock(&s->box->lock);
}

void peer_up(struct peer *p)
{
    if (p->up)
        return;
    p->up = true;
    p->of->n_up++;
    p->of->n_came++;
    box_put(p->of->box, &p->up_item);
}

/* One that never came up has no questions either. */
static void gone(struct peers *s, struct peer *p)
{
    p->gone = true;
    if (!p->up) {
        unlink_peer(p);
        free(p);
        return;
    }
    s->n_up--;
    if (s->gone)
        s->gone(p);
    box_put(s->box, &p->down_item);
}

static void on_pipe(nng_pipe pipe, nng_pipe_ev ev, void *arg)
{
    struct peers *s = arg;
    if (ev == NNG_PIPE_EV_ADD_PRE) {
        add(s, pipe);
        return;
    }
    pthread_mutex_lock(&s->box->lock);
    struct peer *p = peers_find(s, (uint32_t)nng_pipe_id(pipe));
    if (p && !p->gone) {
        if (ev == NNG_PIPE_EV_REM_POST)
            gone(s, p);
        else
            peer_up(p);
    }
    pthread_mutex_unlock(&s->box->lock);
    if (ev == NNG_PIPE_EV_REM_POST && s->lost)
        s->lost(s);
}

void peers_down(struct peers *s)
{
    for (int i = 0; i < PEER_BUCKETS; i++) {
        struct peer *next;
        for (struct peer *p = s->bucket[i]; p; p = next) {
            next = p->next;
            if (p->up && !p->gone)
                gone(s, p);
        }
    }
}

int peers_watch(struct err *e, struct peers *s, nng_socket socket)
{
    int rc = nng_pipe_notify(socket, NNG_PIPE_EV_ADD_PRE, on_pipe, s);
    rc = rc ? rc : nng_pipe_notify(socket, NNG_PIPE_EV_ADD_POST, on_pipe, s);
    rc = rc ? rc : nng_pipe_notify(socket, NNG_PIPE_EV_REM_POST, on_pipe, s);
    return rc ? err_set(e, ERR_SYS, "%s: %s", s->url, nng_strerror(rc)) : 0;
}

void peers_free(struct peers *s)
{
    for (int i = 0; i < PEER_BUCKETS; i++) {
        struct peer *next;
        for (struct peer *p = s->bucket[i]; p; p = next) {
            next = p->next;
            free(p);
        }
    }
    memset(s->bucket, 0, sizeof s->bucket);
}

#define CLOSE_MS_MAX 500

struct closing { /* freed by whoever of the two comes last */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    nng_socket socket;
    bool done, left;
};

static void closing_free(struct closing *c)
{
    pthread_cond_destroy(&c->cond);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void *close_it(void *arg)
{
    struct closing *c = arg;
    nng_close(c->socket);
    pthread_mutex_lock(&c->lock);
    c->done = true;
    bool left = c->left;
    pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
    if (left)
        closing_free(c);
    return NULL;
}

static bool wait_for(struct closing *c)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_nsec += CLOSE_MS_MAX * 1000000L;
    end.tv_sec += end.tv_nsec / 1000000000L;
    end.tv_nsec %= 1000000000L;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    while (!c->done && !rc)
        rc = pthread_cond_timedwait(&c->cond, &c->lock, &end);
    bool done = c->done;
    c->left = !done;
    pthread_mutex_unlock(&c->lock);
    return done;
}

bool ask_close(nng_socket s)
{
    pthread_t t;
    struct closing *c = calloc(1, sizeof *c);
    if (!c)
        return false;
    c->socket = s;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->cond, NULL);
    if (pthread_create(&t, NULL, close_it, c)) {
        closing_free(c);
        return false;
    }
    bool done = wait_for(c);
    if (!done) {
        pthread_detach(t);
        return false;
    }
    pthread_join(t, NULL);
    closing_free(c);
    return true;
}
