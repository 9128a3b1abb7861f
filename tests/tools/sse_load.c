/*
 * What a server-sent event costs lib/http, and how late it comes: many streams of a server, read by a client in another
 * process on the same host.
 *
 *     sse_load [-n STREAMS] [-e EVENTS] [-s STEP_MS] [-b BYTES] [-a ADDRESS] [-r]
 *
 * Each stream is given an event each STEP_MS, all at once as the answers of a batch are, or with -r evenly spread over
 * the step. An event has the time when it was written, and the client prints how long ago that was when it came. Prints
 * "key value" lines; exits with 1 unless every event of every stream came.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "http/http.h"
#include "proc/proc.h"

#define MS NS_MS
#define PATIENCE_NS ((uint64_t)20000 * MS)
#define TAIL 64 /* of what a read cut off */
#define MARK "\"ns\":"

struct plan {
    uint64_t streams, events, step_ns, bytes;
    const char *address;
    bool spread;
};

static double cpu_us(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void die(const char *what)
{
    fprintf(stderr, "sse_load: %s: %s\n", what, strerror(errno));
    exit(111);
}

/* ---- the client ---- */

struct stream {
    int fd;
    size_t n_tail;
    char tail[TAIL];
    uint64_t n_event;
    bool ended;
};

struct client {
    struct stream *s;
    uint64_t n, n_open;
    uint32_t *delay_us;
    uint64_t n_delay, max_delay;
};

static int dial(const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    bool local = !strncmp(address, "unix:", 5);
    int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    in.sin_port = htons((uint16_t)strtoul(strrchr(address, ':') + 1, NULL, 10));
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (local)
        snprintf(un.sun_path, sizeof un.sun_path, "%.107s", address + 5);
    const struct sockaddr *a = local ? (struct sockaddr *)&un : (struct sockaddr *)&in;
    if (fd < 0 || connect(fd, a, local ? sizeof un : sizeof in))
        die(address);
    return fd;
}

/* Events of what has come; the end of it, where an event may be cut, is kept. */
static void take(struct client *c, struct stream *s, const char *p, size_t n)
{
    uint64_t now = time_now_ns();
    const char *end = p + n, *at = p, *mark;
    while ((mark = memmem(at, (size_t)(end - at), MARK, sizeof MARK - 1)) != NULL &&
           mark + sizeof MARK - 1 + 20 <= end) {
        uint64_t then = strtoull(mark + sizeof MARK - 1, NULL, 10);
        at = mark + sizeof MARK - 1 + 20;
        s->n_event++;
        if (c->n_delay < c->max_delay)
            c->delay_us[c->n_delay++] = (uint32_t)((now - then) / 1000);
    }
    s->ended = s->ended || memmem(at, (size_t)(end - at), "[DONE]", 6);
    size_t left = (size_t)(end - at);
    s->n_tail = left < TAIL - 1 ? left : TAIL - 1;
    memcpy(s->tail, end - s->n_tail, s->n_tail);
}

static void read_some(struct client *c, struct stream *s)
{
    static char buffer[TAIL + 65536 + 1];
    memcpy(buffer, s->tail, s->n_tail);
    ssize_t n = recv(s->fd, buffer + s->n_tail, 65536, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n > 0) {
        buffer[s->n_tail + (size_t)n] = 0;
        take(c, s, buffer, s->n_tail + (size_t)n);
    }
    if (n <= 0 || s->ended) {
        close(s->fd);
        s->fd = -1;
        c->n_open--;
    }
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_ms(const struct client *c, double q)
{
    return c->n_delay ? (double)c->delay_us[(size_t)(q * (double)(c->n_delay - 1))] / 1e3 : 0;
}

static int client_report(struct client *c, const struct plan *p, double cpu)
{
    uint64_t whole = 0;
    for (uint64_t i = 0; i < c->n; i++)
        whole += c->s[i].ended && c->s[i].n_event == p->events;
    qsort(c->delay_us, c->n_delay, sizeof *c->delay_us, by_size);
    printf("streams %" PRIu64 "\nwhole %" PRIu64 "\nevents %" PRIu64 "\n", c->n, whole, c->n_delay);
    printf("delay_ms_p50 %.3f\ndelay_ms_p90 %.3f\ndelay_ms_p99 %.3f\ndelay_ms_max %.3f\n", quantile_ms(c, 0.5),
           quantile_ms(c, 0.9), quantile_ms(c, 0.99), quantile_ms(c, 1));
    printf("client_us_per_event %.2f\n", cpu / (double)(c->n * p->events));
    return whole == c->n ? 0 : 1;
}

static int client_run(const struct plan *p, const char *address)
{
    static const char ask[] = "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
    struct client c = {.n = p->streams, .n_open = p->streams, .max_delay = p->streams * p->events};
    struct epoll_event v[256];
    int ep = epoll_create1(EPOLL_CLOEXEC);
    c.s = calloc(c.n, sizeof *c.s);
    c.delay_us = calloc(c.max_delay, sizeof *c.delay_us);
    if (ep < 0 || !c.s || !c.delay_us)
        die("the client");
    for (uint64_t i = 0; i < c.n; i++) {
        struct epoll_event w = {.events = EPOLLIN, .data.ptr = &c.s[i]};
        c.s[i].fd = dial(address);
        if (send(c.s[i].fd, ask, sizeof ask - 1, MSG_NOSIGNAL) < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, c.s[i].fd, &w))
            die("a connection");
    }
    double before = cpu_us();
    while (c.n_open) {
        int n = epoll_wait(ep, v, 256, (int)(PATIENCE_NS / MS));
        if (n <= 0)
            break;
        for (int i = 0; i < n; i++)
            read_some(&c, v[i].data.ptr);
    }
    return client_report(&c, p, cpu_us() - before);
}

/* ---- the server ---- */

struct served {
    struct plan p;
    struct http *h;
    struct http_request **r;
    uint64_t *n_event;
    uint64_t n, n_finished, n_disconnected;
};

static void on_request(void *arg, struct http_request *r)
{
    struct served *v = arg;
    if (v->n == v->p.streams) {
        http_reply(r, 503, "text/plain", NULL, 0);
        return;
    }
    v->r[v->n++] = r;
    http_begin(r, 200, "text/event-stream");
}

static void on_fail(void *arg, struct http_request *r, int status, const char *text)
{
    (void)arg;
    http_reply(r, status, "text/plain", text, strlen(text));
}

static void on_disconnected(void *arg, struct http_request *r)
{
    struct served *v = arg;
    for (uint64_t i = 0; i < v->n; i++)
        if (v->r[i] == r) {
            v->r[i] = NULL;
            v->n_finished++;
            v->n_disconnected++;
        }
}

static void write_event(struct served *v, uint64_t i)
{
    static char event[4096];
    struct http_request *r = v->r[i];
    if (!r)
        return;
    int n = snprintf(event, sizeof event, "data: {" MARK "%020" PRIu64 ",\"text\":\"%0*d\"}\n\n", time_now_ns(),
                     (int)v->p.bytes, 0);
    http_write(r, event, (size_t)n);
    if (++v->n_event[i] < v->p.events)
        return;
    http_write(r, "data: [DONE]\n\n", 14);
    http_end(r);
    v->r[i] = NULL;
    v->n_finished++;
}

/* Waits for the client until at_ns, and steps once. */
static void step(struct served *v, uint64_t at_ns)
{
    struct err e = {0};
    struct pollfd p = {.fd = http_fd(v->h), .events = POLLIN};
    uint64_t now = time_now_ns(), next = http_next_ms(v->h), ns = now < at_ns ? at_ns - now : 0;
    if (next < UINT64_MAX / MS && next * MS < ns)
        ns = next * MS;
    struct timespec t = {(time_t)(ns / (1000 * MS)), (long)(ns % (1000 * MS))};
    if (ppoll(&p, 1, &t, NULL) < 0 && errno != EINTR)
        die("poll");
    if (http_step(&e, v->h)) {
        fprintf(stderr, "sse_load: %s\n", e.text);
        exit(111);
    }
}

/* The k-th event of all: that of stream k % n. Without spread those of a step are due together. */
static uint64_t due_ns(const struct served *v, uint64_t k, uint64_t start)
{
    uint64_t at = k / v->n * v->p.step_ns;
    return start + at + (v->p.spread ? k % v->n * v->p.step_ns / v->n : 0);
}

static void serve(struct served *v)
{
    uint64_t patience = time_now_ns() + PATIENCE_NS, all = v->p.streams * v->p.events, k = 0;
    while (v->n < v->p.streams && time_now_ns() < patience)
        step(v, time_now_ns() + 100 * MS);
    if (!v->n)
        return;
    uint64_t start = time_now_ns() + 100 * MS;
    double before = cpu_us();
    while (k < all && v->n_finished < v->n) {
        for (uint64_t now = time_now_ns(); k < all && due_ns(v, k, start) <= now; k++)
            write_event(v, k % v->n);
        step(v, k < all ? due_ns(v, k, start) : 0);
    }
    double spent = cpu_us() - before;
    patience = time_now_ns() + PATIENCE_NS;
    while (http_connections(v->h) && time_now_ns() < patience)
        step(v, time_now_ns() + 100 * MS);
    printf("server_us_per_event %.2f\ngone %" PRIu64 "\n", spent / (double)all, v->n_disconnected);
}

static uint64_t count(const char *text, uint64_t max)
{
    char *end;
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (errno || *end || !*text || n == 0 || n > max) {
        fprintf(stderr, "sse_load: '%s' is no number from 1 to %" PRIu64 "\n", text, max);
        exit(100);
    }
    return n;
}

static void options(struct plan *p, int argc, char **argv)
{
    int o;
    while ((o = getopt(argc, argv, "n:e:s:b:a:r")) != -1)
        switch (o) {
        case 'n':
            p->streams = count(optarg, 100000);
            break;
        case 'e':
            p->events = count(optarg, 1000000);
            break;
        case 's':
            p->step_ns = count(optarg, 60000) * MS;
            break;
        case 'b':
            p->bytes = count(optarg, 3500);
            break;
        case 'a':
            p->address = optarg;
            break;
        case 'r':
            p->spread = true;
            break;
        default:
            exit(100);
        }
}

int main(int argc, char **argv)
{
    struct served v = {.p = {1000, 60, 100 * MS, 180, "127.0.0.1:0", false}};
    struct http_opts o = {.request = on_request, .fail = on_fail, .disconnected = on_disconnected, .arg = &v};
    struct err e = {0};
    struct rlimit files;
    options(&v.p, argc, argv);
    proc_write_errors();
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    v.r = calloc(v.p.streams, sizeof *v.r);
    v.n_event = calloc(v.p.streams, sizeof *v.n_event);
    o.connections_max = (uint32_t)v.p.streams + 16;
    if (!v.r || !v.n_event)
        die("streams");
    if (http_open(&e, &v.h, &o) || http_listen(&e, v.h, v.p.address, 0)) {
        fprintf(stderr, "sse_load: %s\n", e.text);
        return 111;
    }
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (!child) {
        char address[200];
        snprintf(address, sizeof address, "%s", http_address(v.h, 0));
        close_range(3, ~0u, 0);
        return client_run(&v.p, address);
    }
    serve(&v);
    http_close(v.h);
    int status = 0;
    fflush(stdout);
    waitpid(child, &status, 0);
    free(v.r);
    free(v.n_event);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 111;
}
