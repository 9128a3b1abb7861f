/* For the tests of link/session.h: two ends of sessions in one program, and raw peers without the library. */
#ifndef TEST_SESSION_PAIR_H
#define TEST_SESSION_PAIR_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "link/session.h"
#include "unit/asserts.h"

static char url[80];
static struct err e;
static struct session_hub *server, *client; /* hubs of the listener and of the dialers */
static struct session_listener *l;
static struct session *d;        /* the dialed session */
static struct session *accepted; /* its other end */
static struct wire_arena *arena;

static inline int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A time limit, longer under sanitizers. */
static inline int64_t slow(int64_t ms)
{
    return getenv("ASAN_OPTIONS") ? 10 * ms : ms;
}

static inline struct session_hub *hub(const char *role, const char *name, uint64_t window, uint32_t silence_ms)
{
    struct session_hub *h;
    OK(session_hub_new(&e, &h,
                       &(struct session_hub_opts){.self = {role, name, 77},
                                                  .silence_accepted_ms = silence_ms,
                                                  .silence_dialed_ms = silence_ms,
                                                  .window = window}));
    return h;
}

/* The next event of h; the other hub sends queued frames but takes no events. */
static inline bool next(struct session_event *v, struct session_hub *h, int ms)
{
    int64_t end = now_ms() + ms;
    struct session_hub *other = h == server ? client : server;
    for (;;) {
        if (session_hub_next(h, v))
            return true;
        int left = (int)(end - now_ms());
        if (left <= 0)
            return false;
        session_hub_wait(h, other ? (left < 5 ? left : 5) : left);
        if (other)
            session_hub_wait(other, 0);
    }
}

/* The next event of this type; skips others. */
static inline bool next_of(struct session_event *v, struct session_hub *h, enum session_event_type type, int ms)
{
    int64_t end = now_ms() + ms;
    while (now_ms() < end)
        if (next(v, h, (int)(end - now_ms())) && v->type == type)
            return true;
    return false;
}

/* Runs both hubs and passes their events to `on` until it returns true; false: timeout. */
static inline bool run(bool (*on)(const struct session_event *v), int ms)
{
    int64_t end = now_ms() + ms;
    while (now_ms() < end) {
        struct session_event v;
        bool did = false;
        for (int i = 0; i < 64 && server && session_hub_next(server, &v); i++, did = true)
            if (on(&v))
                return true;
        for (int i = 0; i < 64 && client && session_hub_next(client, &v); i++, did = true)
            if (on(&v))
                return true;
        struct pollfd p[2] = {{.fd = server ? session_hub_fd(server) : -1, .events = POLLIN},
                              {.fd = client ? session_hub_fd(client) : -1, .events = POLLIN}};
        int a = server ? session_hub_timeout_ms(server) : -1, b = client ? session_hub_timeout_ms(client) : -1;
        int wait = a < 0 ? b : b < 0 || a < b ? a : b;
        if (!did)
            poll(p, 2, wait < 0 || wait > 20 ? 20 : wait);
    }
    return false;
}

static int n_up;
static inline bool both_up(const struct session_event *v)
{
    if (v->type == SESSION_UP) {
        n_up++;
        if (v->s != d)
            accepted = v->s;
    }
    return n_up == 2;
}

static inline void connect_both(void)
{
    n_up = 0;
    if (!l)
        OK(session_listen(&e, &l, server, url, "worker tool", &l));
    OK(session_dial(&e, &d, client, session_listener_url(l), "sched", &d));
    assert_true(run(both_up, 5000));
}

static inline void send_tick(struct session *s, uint64_t n)
{
    OK(session_send(&e, s, &(struct wire_frame){.kind = WIRE_TICK, .tick = {.at_ns = n}}));
}

static inline uint64_t tick_of(const struct session_event *v)
{
    struct wire_frame f;
    wire_arena_reset(arena);
    assert_int_equal(v->type, SESSION_FRAME);
    OK(session_frame(&e, &f, arena, v));
    assert_int_equal(f.kind, WIRE_TICK);
    return f.tick.at_ns;
}

/* For run: takes events until the timeout. */
static inline bool never(const struct session_event *v)
{
    if (v->type == SESSION_UP && v->s != d)
        accepted = v->s;
    return false;
}

/* ---- a peer without this library ---- */

static inline int connect_raw(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int64_t end = now_ms() + 5000;
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    while (connect(s, (struct sockaddr *)&a, sizeof a)) { /* the queue of the listener is full */
        assert_int_equal(errno, EAGAIN);
        assert_true(now_ms() < end);
        run(never, 5);
    }
    assert_int_equal(fcntl(s, F_SETFL, 0), 0);
    return s;
}

static inline void write_raw(int fd, const struct wire_frame *f)
{
    uint8_t *p = NULL;
    size_t n = 0, cap = 0;
    OK(wire_encode_add(&e, &p, &n, &cap, f));
    assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), n);
    free(p);
}

static inline void hello_raw(int fd, uint32_t version, const char *role, const char *name)
{
    write_raw(
        fd, &(struct wire_frame){
                .kind = WIRE_SESSION_HELLO,
                .session_hello = {.version = version, .role = wire_str_of(role), .name = wire_str_of(name), .inc = 5}});
}

/* Runs the server until a raw peer receives a frame; false: the connection ended. */
static inline bool read_raw(int fd, struct wire_frame *f)
{
    uint8_t head[5], *body;
    int64_t end = now_ms() + 5000;
    ssize_t got = 0;
    wire_arena_reset(arena);
    while (got < 5) {
        ssize_t n = recv(fd, head + got, 5 - (size_t)got, MSG_DONTWAIT);
        if (!n || (n < 0 && errno != EAGAIN))
            return false;
        got += n > 0 ? n : 0;
        if (n < 0)
            run(never, 5);
        assert_true(now_ms() < end);
    }
    size_t size = (size_t)head[3] << 8 | head[4];
    body = test_malloc(size);
    assert_int_equal(recv(fd, body, size, MSG_WAITALL), size);
    OK(wire_decode(&e, f, arena, body, size));
    static char kept[4096]; /* the frame borrows from body, which is freed */
    if (f->kind == WIRE_SESSION_BYE) {
        snprintf(kept, sizeof kept, "%.*s", (int)f->session_bye.reason.n, f->session_bye.reason.p);
        f->session_bye.reason = wire_str_of(kept);
    }
    test_free(body);
    return true;
}

/* The server ended the connection with a reason that contains this. */
static inline void ended_raw(int fd, const char *reason)
{
    struct wire_frame f;
    do
        assert_true(read_raw(fd, &f));
    while (f.kind != WIRE_SESSION_BYE);
    const char *received = f.session_bye.reason.p ? f.session_bye.reason.p : "";
    if (!strstr(received, reason))
        fail_msg("reason \"%s\" does not contain \"%s\"", received, reason);
    close(fd);
}

/* ---- set up ---- */

static inline int setup(void **state)
{
    (void)state;
    snprintf(url, sizeof url, "ipc:///tmp/session_test.%d", (int)getpid());
    arena = wire_arena_new();
    server = hub("sched", "s", 0, 0);
    client = hub("worker", "w", 0, 0);
    return 0;
}

static inline int setup_tcp(void **state)
{
    setup(state);
    snprintf(url, sizeof url, "tcp://127.0.0.1:0");
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    session_hub_free(client);
    session_hub_free(server);
    wire_arena_free(arena);
    server = client = NULL;
    l = NULL;
    d = accepted = NULL;
    return 0;
}

#endif
