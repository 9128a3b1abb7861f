/*
 * Fuzzes lib/http with arbitrary bytes on a connection. The server must keep running, deliver no request twice, finish
 * each request once, release everything of a disconnected client, and parse nothing after a malformed request. The
 * first byte of an input selects the behaviour of the client. Then come pieces, each after a byte that gives its length
 * and what happens after it; a piece of length 255 takes the rest.
 *
 * With HOW_CHUNKS the rest of the input is a body, which the harness sends with chunked coding: sizes of chunks,
 * extensions and the pieces in which they are sent follow from the bytes. It must be delivered as it is.
 */
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "http/http.h"

#define STEPS_MAX 400 /* steps until a connection must have ended, 1 ms each while idle */

enum { HOW_HALF_CLOSE = 1, HOW_UNREAD = 2, HOW_CHUNKS = 4 };
#define BODY_MAX 3000

static struct http *h;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t n_at;
static struct http_request *waiting[256];
static size_t n_waiting, n_delivered, n_finished;
static bool malformed;           /* a malformed request was refused on this connection */
static const uint8_t *sent_body; /* with HOW_CHUNKS: what must be delivered */
static size_t n_sent_body;

static void forget(struct http_request *r)
{
    for (size_t i = 0; i < n_waiting; i++)
        if (waiting[i] == r) {
            waiting[i] = waiting[--n_waiting];
            return;
        }
}

/* Calls every accessor; the last letter of the path selects how the request is answered. */
static void on_request(void *arg, struct http_request *r)
{
    (void)arg;
    size_t n;
    const char *path = http_path(r), *body = http_body(r, &n), *header = http_header(r, "X-A");
    char text[300];
    assert(!body[n] && *http_method(r) && *http_peer(r) && !malformed);
    n_delivered++;
    if (sent_body)
        assert(n == n_sent_body && !memcmp(body, sent_body, n));
    int k = snprintf(text, sizeof text, "%.100s %zu %.50s", path, n, header ? header : "-");
    http_add_header(r, "X-Echo", header ? header : "");
    switch (*path ? path[strlen(path) - 1] : 0) {
    case 's':
        http_begin(r, 200, n % 2 ? "application/x-ndjson" : "text/event-stream");
        http_write(r, text, (size_t)k);
        waiting[n_waiting++] = r;
        break;
    case 'e':
        http_begin(r, 200, "text/event-stream");
        http_write(r, body, n);
        http_end(r);
        break;
    case 'w':
        waiting[n_waiting++] = r;
        break;
    default:
        http_reply(r, 200, "text/plain", text, (size_t)k);
    }
}

static void on_fail(void *arg, struct http_request *r, int status, const char *text)
{
    (void)arg;
    n_delivered++;
    assert(status >= 400 && !malformed && !sent_body);
    malformed = true;
    http_reply(r, status, "text/plain", text, strlen(text));
}

static void on_disconnected(void *arg, struct http_request *r)
{
    (void)arg;
    forget(r);
}

static void on_finished(void *arg, struct http_request *r, int status)
{
    (void)arg, (void)r, (void)status;
    n_finished++;
}

static void step(int ms)
{
    struct err e = {0};
    struct pollfd p = {.fd = http_fd(h), .events = POLLIN};
    uint64_t next = http_next_ms(h);
    (void)poll(&p, 1, next < (uint64_t)ms ? (int)next : ms);
    assert(!http_step(&e, h));
}

/* Writes more to the oldest waiting request, or completes it. */
static void answer(int what)
{
    if (!n_waiting)
        return;
    struct http_request *r = waiting[0];
    const char *path = http_path(r);
    bool streams = path[strlen(path) - 1] == 's';
    if (streams && what % 2) {
        http_write(r, "data: more\n\n", 12);
        return;
    }
    forget(r);
    if (streams)
        http_end(r);
    else
        http_reply(r, 201, "text/plain", "late", 4);
}

static void open_server(void)
{
    static const struct http_opts o = {.body_bytes_max = BODY_MAX,
                                       .queued_bytes_max = 20000,
                                       .origins = "http://a.test,http://b.test",
                                       .request = on_request,
                                       .fail = on_fail,
                                       .disconnected = on_disconnected,
                                       .finished = on_finished};
    struct err e = {0};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    n_at = sizeof address.sun_family; /* the kernel chooses an abstract name */
    assert(fd >= 0 && !bind(fd, (struct sockaddr *)&address, n_at) && !listen(fd, 8));
    n_at = sizeof address;
    assert(!getsockname(fd, (struct sockaddr *)&address, &n_at));
    assert(!http_open(&e, &h, &o) && !http_adopt(&e, h, fd, 1));
}

static void read_all(int fd)
{
    char waste[16384];
    while (recv(fd, waste, sizeof waste, MSG_DONTWAIT) > 0) {
    }
}

static void send_all(int fd, const uint8_t *p, size_t n)
{
    for (int i = 0; n && i < STEPS_MAX; i++) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        }
        if (n)
            step(0);
    }
}

/* Encodes a body with chunks whose sizes and extensions follow from its bytes. */
static size_t encode(char *out, const uint8_t *p, size_t n)
{
    static const char *const extension[] = {"", ";a", " ; a=b", ";a=\"b;c\"", "\t;", ";x ;y"};
    size_t at = (size_t)sprintf(out, "POST /body HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t i = 0, k; i < n; i += k) {
        k = 1 + p[i] % 61;
        k = k < n - i ? k : n - i;
        at += (size_t)sprintf(out + at, p[i] % 2 ? "%zx%s\r\n" : "00%zX%s\r\n", k, extension[p[i] % 6]);
        memcpy(out + at, p + i, k);
        memcpy(out + at + k, "\r\n", 2);
        at += k + 2;
    }
    return at + (size_t)sprintf(out + at, n % 2 ? "0\r\n\r\n" : "0;z\r\nA: b\r\n\r\n");
}

static void send_chunks(int fd, const uint8_t *p, size_t n)
{
    static char text[BODY_MAX * 40 + 200];
    size_t n_text, before = n_delivered;
    n = n < BODY_MAX ? n : BODY_MAX;
    sent_body = p;
    n_sent_body = n;
    n_text = encode(text, p, n);
    for (size_t at = 0, i = 0, k; at < n_text; at += k, i++) {
        k = 1 + (n ? p[i % n] * p[i / 3 % n] % 97 : 40);
        k = k < n_text - at ? k : n_text - at;
        send_all(fd, (const uint8_t *)text + at, k);
        step(0);
    }
    for (int i = 0; i < STEPS_MAX && n_delivered == before; i++)
        step(1);
    assert(n_delivered == before + 1);
    sent_body = NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    if (!h)
        open_server();
    if (!n)
        return 0;
    int how = *p++, fd = socket(AF_UNIX, SOCK_STREAM, 0);
    n--;
    malformed = false;
    assert(fd >= 0 && !connect(fd, (struct sockaddr *)&address, n_at));
    if (how & HOW_CHUNKS) {
        send_chunks(fd, p, n);
        n = 0;
    }
    while (n) {
        size_t k = *p++, all = --n;
        k = k == 255 || k > all ? all : k;
        send_all(fd, p, k);
        for (int i = 0; i < 2; i++)
            step(0);
        answer((int)k);
        if (!(how & HOW_UNREAD))
            read_all(fd);
        p += k;
        n -= k;
    }
    if (how & HOW_HALF_CLOSE) {
        shutdown(fd, SHUT_WR);
        for (int i = 0; i < 4; i++) {
            step(0);
            answer(i);
        }
        read_all(fd);
    }
    close(fd);
    for (int i = 0; i < STEPS_MAX && http_connections(h); i++)
        step(1);
    assert(!http_connections(h) && !n_waiting && n_delivered == n_finished);
    return 0;
}
