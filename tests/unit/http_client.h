/* A server that the test steps, and clients on plain sockets or TLS, in one thread. While the test waits for a client
 * it also polls the server's descriptor, for at most http_next_ms, as an event loop does. */
#ifndef HTTP_CLIENT_H
#define HTTP_CLIENT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/time.h"
#include "base/vec.h"
#include "http/http.h"
#include "unit/asserts.h"

#define MS NS_MS
#define WAIT_MS 5000 /* a generous limit for immediate results, on a busy machine */
#define TAGS_MAX 4096

/* The callbacks that a request has received. */
struct tag {
    struct http_request *r; /* NULL: finished */
    int n_delivered, n_fail, n_disconnected, n_finished, final_status;
    bool answered;
    uint64_t disconnected_ns;
    int dialect;
    char peer[64], what[256];
};

struct server {
    struct http *h;
    int dialect;
    struct tag tag[TAGS_MAX];
    size_t n_tag;
    const char *stream_type; /* of /stream */
};

static struct tag *tag_new(struct server *v, struct http_request *r)
{
    assert_true(v->n_tag < TAGS_MAX);
    struct tag *t = &v->tag[v->n_tag++];
    t->r = r;
    t->dialect = http_dialect(r);
    snprintf(t->peer, sizeof t->peer, "%s", http_peer(r));
    snprintf(t->what, sizeof t->what, "%s %s", http_method(r), http_path(r));
    http_set(r, t);
    return t;
}

static void tag_reply(struct tag *t, int status, const char *type, const void *body, size_t n)
{
    t->answered = true;
    http_reply(t->r, status, type, body, n);
}

static inline void tag_end(struct tag *t)
{
    t->answered = true;
    http_end(t->r);
}

/* /echo returns the body; /wait and /stream are completed by the test. */
static void on_request(void *arg, struct http_request *r)
{
    struct server *v = arg;
    struct tag *t = tag_new(v, r);
    size_t n;
    const char *body = http_body(r, &n);
    t->n_delivered++;
    assert_int_equal(strlen(body) <= n ? body[n] : 1, 0);
    if (!strcmp(http_path(r), "/stream"))
        http_begin(r, 200, v->stream_type ? v->stream_type : "text/event-stream");
    else if (strcmp(http_path(r), "/wait") != 0)
        tag_reply(t, 200, "text/plain", body, n);
}

static void on_fail(void *arg, struct http_request *r, int status, const char *text)
{
    struct tag *t = tag_new(arg, r);
    t->n_fail++;
    http_add_header(r, "X-Test", "yes");
    tag_reply(t, status, "text/plain", text, strlen(text));
}

static void on_disconnected(void *arg, struct http_request *r)
{
    struct tag *t = http_get(r);
    (void)arg;
    assert_ptr_equal(t->r, r);
    assert_int_equal(t->n_finished, 0);
    t->n_disconnected++;
    t->disconnected_ns = time_now_ns();
}

static void on_finished(void *arg, struct http_request *r, int status)
{
    struct tag *t = http_get(r);
    (void)arg;
    assert_ptr_equal(t->r, r);
    t->n_finished++;
    t->final_status = status;
    t->r = NULL;
}

static struct server *server_new(const struct http_opts *with, const char *address)
{
    struct err e = {0};
    struct server *v = calloc(1, sizeof *v);
    struct http_opts o = *with;
    o.request = on_request;
    o.fail = on_fail;
    o.disconnected = on_disconnected;
    o.finished = on_finished;
    o.arg = v;
    OK(http_open(&e, &v->h, &o));
    OK(http_listen(&e, v->h, address, 7));
    return v;
}

/* Closes the server and checks the callbacks of every request: delivered or failed once, finished once, disconnected
 * only if not answered. */
static void server_free(struct server *v)
{
    http_close(v->h);
    for (size_t i = 0; i < v->n_tag; i++) {
        const struct tag *t = &v->tag[i];
        assert_int_equal(t->n_delivered + t->n_fail, 1);
        assert_int_equal(t->n_finished, 1);
        assert_int_equal(t->n_disconnected, t->answered ? 0 : 1);
        assert_true(t->answered ? t->final_status >= 200 : t->final_status == 0);
    }
    free(v);
}

/* Waits until fd (-1: none) or the server is readable or end_ns has passed, and steps the server. Returns whether fd is
 * readable. */
static bool pump(struct server *v, int fd, uint64_t end_ns)
{
    struct err e = {0};
    struct pollfd p[] = {{.fd = http_fd(v->h), .events = POLLIN}, {.fd = fd, .events = POLLIN}};
    uint64_t now = time_now_ns(), ms = now < end_ns ? (end_ns - now) / MS + 1 : 0, next = http_next_ms(v->h);
    ms = next < ms ? next : ms;
    assert_true(poll(p, 2, (int)ms) >= 0);
    OK(http_step(&e, v->h));
    return p[1].revents != 0;
}

static inline void run_ms(struct server *v, uint64_t ms)
{
    uint64_t end = time_now_ns() + ms * MS;
    while (time_now_ns() < end)
        pump(v, -1, end);
}

/* Steps the server until the condition holds; fails after WAIT_MS. */
#define UNTIL(v, cond)                                                                                                 \
    do {                                                                                                               \
        uint64_t until_ns = time_now_ns() + WAIT_MS * MS;                                                              \
        while (!(cond)) {                                                                                              \
            if (time_now_ns() > until_ns)                                                                              \
                fail_msg("after %d ms still false: %s", WAIT_MS, #cond);                                               \
            pump(v, -1, until_ns);                                                                                     \
        }                                                                                                              \
    } while (0)

/* ---- a client ---- */

struct client {
    int fd;
    gnutls_session_t tls;
    char *p; /* received and not consumed */
    size_t n, cap;
    bool eof, reset;
};

static int dial_fd(const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    bool is_unix = !strncmp(address, "unix:", 5);
    int fd = socket(is_unix ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    in.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (is_unix)
        snprintf(un.sun_path, sizeof un.sun_path, "%s", address + 5);
    int rc = is_unix ? connect(fd, (struct sockaddr *)&un, sizeof un) : connect(fd, (struct sockaddr *)&in, sizeof in);
    if (rc)
        close(fd);
    return rc ? -1 : fd;
}

static struct client *client_new(struct server *v)
{
    struct client *c = calloc(1, sizeof *c);
    c->fd = dial_fd(http_address(v->h, 0));
    assert_true(c->fd >= 0);
    return c;
}

static void client_free(struct client *c)
{
    if (c->tls)
        gnutls_deinit(c->tls);
    if (c->fd >= 0)
        close(c->fd);
    free(c->p);
    free(c);
}

/* Disconnects as a killed process does: the descriptor is closed, with `reset` by a TCP reset. */
static inline void client_leave(struct client *c, bool reset)
{
    struct linger l = {.l_onoff = 1};
    if (reset)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(c->fd);
    c->fd = -1;
}

/* Sends all bytes while stepping the server; false: the server has closed the connection. */
static bool client_send(struct server *v, struct client *c, const char *p, size_t n)
{
    uint64_t end = time_now_ns() + WAIT_MS * MS;
    while (n) {
        ssize_t k = c->tls ? gnutls_record_send(c->tls, p, n) : send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (!c->tls && errno != EAGAIN) {
            return false;
        }
        assert_true(time_now_ns() < end);
        if (n)
            pump(v, -1, time_now_ns() + MS);
    }
    return true;
}

static void send_text(struct server *v, struct client *c, const char *text)
{
    assert_true(client_send(v, c, text, strlen(text)));
}

/* Receives more bytes or the end; false: none until end_ns. */
static bool receive(struct server *v, struct client *c, uint64_t end_ns)
{
    static char piece[65536];
    while (!c->eof) {
        ssize_t k =
            c->tls ? gnutls_record_recv(c->tls, piece, sizeof piece) : recv(c->fd, piece, sizeof piece, MSG_DONTWAIT);
        bool again = c->tls ? k == GNUTLS_E_AGAIN || k == GNUTLS_E_INTERRUPTED : k < 0 && errno == EAGAIN;
        if (!again) {
            c->eof = k <= 0;
            c->reset = k < 0;
            k = k < 0 ? 0 : k;
            assert_true(vec_grow(&c->p, &c->cap, c->n + (size_t)k + 1, 1));
            memcpy(c->p + c->n, piece, (size_t)k);
            c->n += (size_t)k;
            c->p[c->n] = 0;
            return true;
        }
        if (time_now_ns() > end_ns)
            return false;
        pump(v, c->fd, end_ns);
    }
    return false;
}

/* Receives until the server closes the connection. */
static inline void client_until_closed(struct server *v, struct client *c)
{
    uint64_t end = time_now_ns() + WAIT_MS * MS;
    while (!c->eof)
        if (!receive(v, c, end))
            fail_msg("the connection is not closed; it has %.200s", c->n ? c->p : "nothing");
}

static void client_drop(struct client *c, size_t n)
{
    memmove(c->p, c->p + n, c->n - n + 1);
    c->n -= n;
}

/* ---- responses ---- */

struct answer {
    int status, n_interim;
    char head[4096];
    char *body;
    size_t n_body;
};

static void answer_free(struct answer *a)
{
    free(a->body);
}

/* The value of a header, "" if it is absent; valid until the next call. */
static const char *answer_header(const struct answer *a, const char *name)
{
    static char value[512];
    char line[64];
    snprintf(line, sizeof line, "\r\n%s:", name);
    const char *at = strcasestr(a->head, line);
    at = at ? at + strlen(line) : "";
    at += strspn(at, " ");
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
    return value;
}

static void answer_line(struct server *v, struct client *c, const char *mark)
{
    uint64_t end = time_now_ns() + WAIT_MS * MS;
    while (!c->n || !strstr(c->p, mark))
        if (!receive(v, c, end) || (c->eof && !strstr(c->p, mark)))
            fail_msg("%s, after: %.300s", c->eof ? "closed" : "nothing came", c->n ? c->p : "");
}

static void answer_body(struct server *v, struct client *c, struct answer *a, size_t n)
{
    uint64_t end = time_now_ns() + WAIT_MS * MS;
    while (c->n < n)
        if (!receive(v, c, end) || (c->eof && c->n < n))
            fail_msg("%zu bytes of a body of %zu", c->n, n);
    a->body = realloc(a->body, a->n_body + n + 1);
    memcpy(a->body + a->n_body, c->p, n);
    a->n_body += n;
    a->body[a->n_body] = 0;
    client_drop(c, n);
}

/* Reads the status line and headers, after any interim responses. */
static void answer_head(struct server *v, struct client *c, struct answer *a)
{
    memset(a, 0, sizeof *a);
    do {
        a->n_interim += a->status == 100;
        answer_line(v, c, "\r\n\r\n");
        size_t n = (size_t)(strstr(c->p, "\r\n\r\n") - c->p) + 4;
        assert_true(n < sizeof a->head);
        memcpy(a->head, c->p, n);
        a->head[n] = 0;
        if (sscanf(a->head, "HTTP/1.1 %d", &a->status) != 1)
            fail_msg("no status line: %.200s", a->head);
        client_drop(c, n);
    } while (a->status == 100);
}

/* Reads one chunk of the body (RFC 9112, 7.1); 0: the last. */
static size_t answer_chunk(struct server *v, struct client *c, struct answer *a)
{
    answer_line(v, c, "\r\n");
    size_t n = strtoull(c->p, NULL, 16);
    client_drop(c, (size_t)(strstr(c->p, "\r\n") - c->p) + 2);
    answer_body(v, c, a, n + 2);
    assert_memory_equal(a->body + a->n_body - 2, "\r\n", 2);
    a->n_body -= 2;
    a->body[a->n_body] = 0;
    return n;
}

static void answer_read(struct server *v, struct client *c, struct answer *a)
{
    answer_head(v, c, a);
    if (!strcmp(answer_header(a, "Transfer-Encoding"), "chunked"))
        while (answer_chunk(v, c, a)) {
        }
    else
        answer_body(v, c, a, strtoull(answer_header(a, "Content-Length"), NULL, 10));
}

/* Sends a request, reads the complete response and checks its status. */
static void request(struct server *v, struct client *c, struct answer *a, const char *text, int status)
{
    send_text(v, c, text);
    answer_read(v, c, a);
    assert_int_equal(a->status, status);
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

static inline void request_echo(struct server *v, struct client *c)
{
    struct answer a;
    request(v, c, &a, GET("/echo"), 200);
    answer_free(&a);
}

/* The last request that was delivered or refused. */
static struct tag *last(struct server *v)
{
    assert_true(v->n_tag > 0);
    return &v->tag[v->n_tag - 1];
}

/* Sends a request for /wait or /stream and returns it once it is delivered. */
static inline struct tag *send_waiting(struct server *v, struct client *c, const char *text)
{
    size_t before = v->n_tag;
    send_text(v, c, text);
    UNTIL(v, v->n_tag > before);
    assert_non_null(last(v)->r);
    return last(v);
}

#endif
