/* The client of kvstore: its connection, reconnecting, and the thread that renews its lease. */
#include "link/store_client_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"

#define TIMEOUT_MS 10000
#define FRAME_MAX (64u << 20)
#define READ_BYTES ((size_t)64 << 10)
#define RETRY_MS 20 /* between attempts to connect */

int64_t client_now_ms(void)
{
    return (int64_t)(time_now_ns() / NS_MS);
}

/* ---- the connection ---- */

static int lost(struct err *e, struct store_client *c)
{
    c->broken = true;
    c->why = 0;
    return err_set(e, ERR_SYS, "%s: the connection to kvstore broke", c->address.sun_path);
}

static int send_all(struct err *e, struct store_client *c, const struct wire_frame *f, const int *fd, int64_t end_ms)
{
    uint8_t *p = NULL;
    size_t n = 0, at = 0, cap = 0;
    int rc = wire_encode_add(e, &p, &n, &cap, f);
    pthread_mutex_lock(&c->wlock);
    while (at < n && !rc) {
        ssize_t k = socket_send(c->sock, p + at, n - at, at ? NULL : fd);
        if (k > 0) {
            at += (size_t)k;
        } else if (k < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd pf = {c->sock, POLLOUT, 0};
            int64_t left = end_ms - client_now_ms();
            if (left <= 0)
                rc = at ? lost(e, c)
                        : err_set(e, ERR_SYS, "kvstore did not accept a request within %d ms", c->timeout_ms);
            else
                poll(&pf, 1, (int)left);
        } else {
            rc = lost(e, c);
        }
    }
    pthread_mutex_unlock(&c->wlock);
    free(p);
    return rc;
}

int client_receive(struct err *e, struct store_client *c, struct wire_frame *f, int64_t end_ms)
{
    buf_take(&c->in, c->skip);
    for (c->skip = 0;;) {
        const uint8_t *p = buf_front(&c->in);
        int rc = wire_frame_size(e, &c->skip, p, buf_left(&c->in), FRAME_MAX);
        wire_arena_reset(c->mem);
        if (!rc && c->skip)
            rc = wire_decode(e, f, c->mem, p + WIRE_PREFIX_BYTES, c->skip - WIRE_PREFIX_BYTES);
        c->broken = c->broken || rc;
        if (rc || c->skip)
            return rc ? err_prefix(e, "kvstore") : 0;
        struct pollfd pf = {c->sock, POLLIN, 0};
        int64_t left = end_ms - client_now_ms();
        int got = poll(&pf, 1, left > 0 ? (int)left : 0);
        if (got == 0)
            return err_set(e, ERR_NO, "no response of kvstore before the timeout");
        if (got < 0)
            continue;
        ssize_t n = buf_reserve(&c->in, READ_BYTES) ? socket_recv(c->sock, c->in.p + c->in.n, READ_BYTES, c->fd_in) : 0;
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return lost(e, c);
        c->in.n += (size_t)n;
    }
}

void client_info(struct kv_seq_info *out, const struct wire_kv_seq *q)
{
    *out = (struct kv_seq_info){.seq = q->seq,
                                .gen = q->gen,
                                .n_block = q->n_block,
                                .tail = q->has_tail ? q->tail : KV_NONE,
                                .n_tail = q->n_tail,
                                .pending = q->pending};
}

/* The tag of a response, the first field of all kinds of responses; 0: the frame is a notification. */
static uint64_t tag_of(const struct wire_frame *f)
{
    return f->kind == WIRE_KV_EVENT ? 0 : f->kv_tag.tag;
}

void client_notification(struct store_client *c, const struct wire_frame *f)
{
    if (tag_of(f))
        return;
    if (f->kind == WIRE_KV_NO)
        c->expired = c->expired || f->kv_no.why == WIRE_KV_EXPIRED;
    struct queued *q = f->kind == WIRE_KV_SEQ ? malloc(sizeof *q) : NULL;
    if (!q)
        return;
    client_info(&q->seq, &f->kv_seq);
    list_push_back(&c->news, &q->node);
}

static int lease_expired(struct err *e, struct store_client *c)
{
    c->why = KV_WHY_EXPIRED;
    return err_set(e, ERR_NO, "the lease has ended: all that the client owned was released");
}

static int refused(struct err *e, struct store_client *c, const struct wire_kv_no *no)
{
    c->why = (enum kv_why)no->why;
    c->expired = c->expired || no->why == WIRE_KV_EXPIRED;
    return err_set(e, (int)no->code, "%.*s", (int)(no->text.n < 400 ? no->text.n : 400), no->text.p);
}

static int response(struct err *e, struct store_client *c, struct wire_frame *out, enum wire_kind want, uint64_t tag,
                    int64_t end_ms)
{
    bool was = c->expired;
    for (;;) {
        int rc = client_receive(e, c, out, end_ms);
        if (rc == ERR_NO) { /* the tag identifies a late response, which is skipped */
            c->why = 0;
            return err_set(e, ERR_SYS, "kvstore did not respond within %d ms", c->timeout_ms);
        }
        if (rc)
            return rc;
        if (tag_of(out) != tag) {
            client_notification(c, out);
            if (c->expired && !was) /* kvstore sends no response after it */
                return lease_expired(e, c);
            continue;
        }
        if (out->kind == WIRE_KV_NO)
            return refused(e, c, &out->kv_no);
        if (out->kind == want)
            return 0;
        return err_set(e, ERR_PROTO, "kvstore responded with a %s frame, not %s", wire_kind_name(out->kind),
                       wire_kind_name(want));
    }
}

int client_ready(struct err *e, struct store_client *c, int64_t end_ms)
{
    while (c->broken && c->has_thread && !c->expired && client_now_ms() < end_ms) {
        pthread_mutex_unlock(&c->lock);
        usleep(2000);
        pthread_mutex_lock(&c->lock);
    }
    if (c->expired)
        return lease_expired(e, c);
    return c->broken ? lost(e, c) : 0;
}

int client_call(struct err *e, struct store_client *c, struct wire_frame *f, enum wire_kind want)
{
    pthread_mutex_lock(&c->lock);
    c->why = 0;
    int64_t end_ms = client_now_ms() + c->timeout_ms;
    int rc = client_ready(e, c, end_ms);
    if (rc)
        return rc;
    uint64_t tag = ++c->tag;
    f->kv_tag.tag = tag;
    rc = send_all(e, c, f, NULL, end_ms);
    return rc ? rc : response(e, c, f, want, tag, end_ms);
}

int client_done(struct store_client *c, int rc)
{
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* ---- opening ---- */

static void open_frame(struct wire_frame *f, const struct store_client *c)
{
    *f = (struct wire_frame){.kind = WIRE_KV_OPEN,
                             .kv_open = {.tag = 1,
                                         .from = wire_str_of(c->name),
                                         .client = c->id,
                                         .key = c->key,
                                         .brings_arena = c->arena != NULL && c->id}};
    if (!c->has_kind)
        return;
    struct wire_kv_open *o = &f->kv_open;
    o->has_kv = true;
    o->model_fp = (struct wire_bytes){c->kind.model, 32};
    o->kv_type = wire_str_of(kern_kv_name(c->kind.type));
    o->arith = wire_str_of(c->kind.arith);
    o->layout = wire_str_of(c->kind.layout);
    o->n_layer = c->kind.n_layer;
    o->n_kv_head = c->kind.n_kv_head;
    o->head_dim = c->kind.head_dim;
}

static int take_arena(struct err *e, struct store_client *c, const struct wire_kv_arena *w)
{
    int fd[KV_ARENA_FDS] = {c->fd_in[0], c->fd_in[1]};
    c->fd_in[0] = c->fd_in[1] = -1;
    if (fd[1] < 0) {
        socket_fds_close(fd);
        return err_set(e, ERR_PROTO, "kvstore sent no arena");
    }
    if (c->arena && w->arena == kv_arena_head(c->arena)->id)
        return kv_arena_replace(e, c->arena, fd);
    kv_arena_free(c->arena);
    c->arena = NULL;
    return kv_arena_open(e, &c->arena, fd, &c->kind);
}

/* One attempt on a new socket. *again: kvstore is not running yet, or not ready; retry. */
static int connect_once(struct err *e, struct store_client *c, bool *again, int64_t end_ms)
{
    struct wire_frame f;
    bool had = c->id != 0;
    *again = false;
    if (c->sock >= 0) {
        shutdown(c->sock, SHUT_RDWR); /* a poll of the other thread would keep the connection open after close */
        close(c->sock);
    }
    socket_fds_close(c->fd_in);
    c->in.at = c->in.n = c->skip = 0;
    c->why = 0;
    c->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->sock < 0)
        return err_sys(e, "a socket");
    if (connect(c->sock, (const struct sockaddr *)(const void *)&c->address, sizeof c->address)) {
        *again = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
        return err_sys(e, "%s", c->address.sun_path);
    }
    open_frame(&f, c);
    int rc = send_all(e, c, &f, f.kv_open.brings_arena ? kv_arena_fds(c->arena) : NULL, end_ms);
    rc = rc ? rc : response(e, c, &f, WIRE_KV_ARENA, 1, end_ms);
    if (rc) {
        *again = rc == ERR_SYS || c->why == KV_WHY_NOT_NOW;
        return rc;
    }
    c->tag = 1;
    c->lease_ms = f.kv_arena.lease_ms;
    c->id = f.kv_arena.client;
    c->key = f.kv_arena.key;
    if (had && !f.kv_arena.kept) /* the caller may be using the arena: it stays mapped until store_client_renew_all */
        c->expired = true;
    else
        rc = c->has_kind ? take_arena(e, c, &f.kv_arena) : 0;
    c->broken = rc != 0;
    return rc;
}

static int connect_until(struct err *e, struct store_client *c, int64_t end_ms)
{
    bool again = true;
    int rc = 0;
    while (again && client_now_ms() < end_ms) {
        rc = connect_once(e, c, &again, end_ms);
        if (rc && again)
            usleep(RETRY_MS * 1000);
        again = again && rc;
    }
    return rc;
}

/* ---- the thread ---- */

/* After the connection broke. The client keeps its slots and sequences if kvstore adopts the arena. */
static void reconnect(struct store_client *c)
{
    struct err e = {0};
    bool again;
    pthread_mutex_lock(&c->lock);
    if (!c->expired && connect_once(&e, c, &again, client_now_ms() + 1000)) {
        c->broken = true;
        c->expired = c->why == KV_WHY_EXPIRED;
    }
    pthread_mutex_unlock(&c->lock);
}

static bool hung_up(struct store_client *c)
{
    struct pollfd p = {c->sock, POLLRDHUP, 0};
    return poll(&p, 1, 0) > 0 && p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
}

static void *keep_alive(void *arg)
{
    struct store_client *c = arg;
    int64_t next_ms = 0;
    for (;;) {
        struct pollfd p[2] = {{c->stop[0], POLLIN, 0}, {c->sock, POLLRDHUP, 0}};
        int period = (int)(c->lease_ms / 4 < 1000 ? c->lease_ms / 4 + 1 : 1000);
        bool broken = c->broken || c->expired;
        poll(p, broken ? 1 : 2, broken ? RETRY_MS : period);
        if (p[0].revents)
            return NULL;
        if (c->expired)
            continue;
        if (c->broken || hung_up(c)) {
            reconnect(c);
        } else if (client_now_ms() >= next_ms) {
            struct err e;
            struct wire_frame f = {.kind = WIRE_KV_RENEW};
            send_all(&e, c, &f, NULL, client_now_ms() + 100);
            next_ms = client_now_ms() + period - 1;
        }
    }
}

int store_client_open(struct err *e, struct store_client **out, const struct store_client_opts *o)
{
    struct store_client *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, "a client", sizeof *c);
    c->sock = c->fd_in[0] = c->fd_in[1] = c->stop[0] = c->stop[1] = -1;
    list_init(&c->news);
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->wlock, NULL);
    c->timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
    c->name = strdup(o->name);
    c->mem = wire_arena_new();
    c->has_kind = o->kind != NULL;
    if (o->kind)
        c->kind = *o->kind;
    int rc = c->name && c->mem ? socket_address(e, &c->address, o->url) : err_nomem(e, "a client", sizeof *c);
    rc = rc ? rc : connect_until(e, c, client_now_ms() + c->timeout_ms);
    if (!rc && c->has_kind) {
        c->has_thread = !pipe(c->stop) && !pthread_create(&c->thread, NULL, keep_alive, c);
        rc = c->has_thread ? 0 : err_set(e, ERR_SYS, "cannot start the thread that renews the lease");
    }
    if (rc) {
        store_client_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

static void free_news(struct store_client *c)
{
    list_each_safe (struct queued, q, &c->news, node)
        free(q);
    list_init(&c->news);
}

void store_client_close(struct store_client *c)
{
    if (!c)
        return;
    if (c->has_thread) {
        (void)!write(c->stop[1], "", 1);
        pthread_join(c->thread, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (c->stop[i] >= 0)
            close(c->stop[i]);
    if (c->sock >= 0)
        close(c->sock);
    socket_fds_close(c->fd_in);
    free_news(c);
    kv_arena_free(c->arena);
    wire_arena_free(c->mem);
    free(c->in.p);
    free(c->name);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->wlock);
    free(c);
}

/* Reconnects with the old id, so that kvstore detects the end of that client and releases its resources now. Otherwise
 * a kvstore that has adopted the arena would keep its sequences for a lease, and its writable slots until this process
 * ends. */
static int reconnect_old_id(struct err *e, struct store_client *c)
{
    bool again;
    if (!c->id)
        return 0;
    int rc = connect_once(e, c, &again, client_now_ms() + c->timeout_ms);
    c->broken = rc != 0;
    return c->why == KV_WHY_EXPIRED ? 0 : rc;
}

int store_client_renew_all(struct err *e, struct store_client *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t id = c->id, key = c->key;
    if (reconnect_old_id(e, c))
        return client_done(c, e->code);
    c->id = c->key = 0;
    free_news(c);
    int rc = connect_until(e, c, client_now_ms() + c->timeout_ms);
    c->expired = rc != 0 && c->expired;
    if (rc) {
        c->id = id;
        c->key = key;
    }
    return client_done(c, rc);
}

struct kv_arena *store_client_arena(const struct store_client *c)
{
    return c->arena;
}

enum kv_why store_client_why(const struct store_client *c)
{
    return c->why;
}

bool store_client_up(const struct store_client *c)
{
    return !c->broken || c->expired;
}

int store_client_fd(const struct store_client *c)
{
    return c->sock;
}
