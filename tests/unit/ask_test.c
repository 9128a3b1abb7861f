/*
 * Questions over nng: many at once, long ones, large ones, hostile ones, and peers that die. Peers that die are
 * processes of their own (tests/tools/ask_peer), started by posix_spawn, since nng does not survive a fork.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "link/ask.h"

extern char **environ;

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if (call)                                                                                                      \
            fail_msg("%s: %s", #call, e.text);                                                                         \
    } while (0)

static char url[80], tool[256];
static struct err e;
static struct link_box *at_home, *abroad; /* of a listener, of a dialer */
static struct link_listener *l;
static struct link_dialer *d;
static struct link_msg m;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The next event of this kind within ms; others before it are skipped. */
static bool wait_for(struct link_event *v, struct link_box *b, enum link_what what, int ms)
{
    int64_t end = now_ms() + ms;
    for (;;) {
        while (link_box_take(b, v))
            if (v->what == what)
                return true;
        int64_t left = end - now_ms();
        if (left <= 0)
            return false;
        link_box_wait(b, (int)left);
    }
}

static void add(struct link_msg *to, uint64_t n)
{
    OK(link_msg_add(&e, to, &(struct wire_frame){.kind = WIRE_TICK, .tick = {.at_ns = n}}));
}

static uint64_t number(const struct link_event *v)
{
    struct wire_arena *a = wire_arena_new();
    struct wire_frame f;
    const uint8_t *p = v->p;
    size_t n = v->n;
    bool there = link_msg_next(&e, &f, a, &p, &n);
    wire_arena_free(a);
    assert_true(there);
    assert_int_equal(f.kind, WIRE_TICK);
    return f.tick.at_ns;
}

static void ask(uint64_t n)
{
    add(&m, n);
    OK(link_ask(&e, d, &m, (void *)(uintptr_t)n));
    assert_int_equal(m.n, 0);
}

static int setup(void **state)
{
    (void)state;
    snprintf(url, sizeof url, "ipc:///tmp/ask_test.%d", (int)getpid());
    OK(link_box_new(&e, &at_home));
    OK(link_box_new(&e, &abroad));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    link_dialer_free(d);
    link_listener_free(l);
    link_box_free(at_home);
    link_box_free(abroad);
    link_msg_free(&m);
    d = NULL;
    l = NULL;
    unlink(url + 6);
    return 0;
}

static void both(void)
{
    OK(link_listen(&e, &l, at_home, url, NULL));
    OK(link_dial(&e, &d, abroad, url, NULL));
}

/* ---- a peer in a process of its own ---- */

struct child {
    pid_t pid;
    int in;
};

static struct child start(const char *what, const char *n)
{
    int to[2], from[2];
    struct child c;
    char *argv[] = {tool, (char *)(uintptr_t)what, url, (char *)(uintptr_t)n, NULL};
    posix_spawn_file_actions_t fa;
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, to[0], 0);
    posix_spawn_file_actions_adddup2(&fa, from[1], 1);
    assert_int_equal(posix_spawn(&c.pid, tool, &fa, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&fa);
    close(to[0]);
    close(from[1]);
    char said[6];
    size_t got = 0;
    while (got < sizeof said) {
        ssize_t r = read(from[0], said + got, sizeof said - got);
        assert_true(r > 0);
        got += (size_t)r;
    }
    assert_memory_equal(said, "ready\n", 6);
    close(from[0]);
    c.in = to[1];
    return c;
}

static void end(struct child *c, int sig)
{
    if (sig)
        kill(c->pid, sig);
    close(c->in);
    waitpid(c->pid, NULL, 0);
}

/* ---- the tests ---- */

#define MANY 1000

static void answered_out_of_order(void **state)
{
    (void)state;
    static struct link_question *q[MANY];
    static bool seen[MANY];
    struct link_event v;
    both();
    for (uint64_t i = 0; i < MANY; i++)
        ask(i);
    for (uint64_t i = 0; i < MANY; i++) {
        assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
        uint64_t n = number(&v);
        assert_true(n < MANY && !q[n]);
        q[n] = v.q;
    }
    for (uint64_t i = MANY; i-- > 0;) {
        add(&m, i * 3);
        link_answer(q[i], &m);
    }
    for (uint64_t i = 0; i < MANY; i++) {
        assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
        uint64_t n = (uint64_t)(uintptr_t)v.arg;
        assert_true(n < MANY && !seen[n]);
        assert_int_equal(number(&v), n * 3);
        seen[n] = true;
    }
    assert_false(link_box_take(abroad, &v));
}

static void long_poll(void **state)
{
    (void)state;
    struct link_event v, w;
    both();
    ask(7);
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
    assert_false(wait_for(&w, abroad, LINK_ANSWER, 400));
    ask(8);
    assert_true(wait_for(&w, at_home, LINK_QUESTION, 5000));
    link_answer(w.q, NULL);
    assert_true(wait_for(&w, abroad, LINK_ANSWER, 5000));
    assert_int_equal((uintptr_t)w.arg, 8);
    assert_int_equal(w.n, 0);
    add(&m, 70);
    add(&m, 71);
    link_answer(v.q, &m);
    assert_true(wait_for(&w, abroad, LINK_ANSWER, 5000));
    assert_int_equal((uintptr_t)w.arg, 7);
    assert_int_equal(number(&w), 70);
}

static void big_messages(void **state)
{
    (void)state;
    static uint8_t body[WIRE_BODY_BYTES_MAX];
    struct link_event v;
    struct wire_frame f = {
        .kind = WIRE_SUBMIT,
        .submit = {.gw = {"g", 1}, .job = 1, .n_prompt = 1, .max_tokens = 1, .body = {body, sizeof body}}};
    for (size_t i = 0; i < sizeof body; i++)
        body[i] = (uint8_t)(i * 2654435761u >> 13);
    both();
    for (int i = 0; i < 3; i++)
        OK(link_msg_add(&e, &m, &f));
    size_t n = m.n;
    OK(link_ask(&e, d, &m, NULL));
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 20000));
    assert_int_equal(v.n, n);
    struct wire_arena *a = wire_arena_new();
    struct wire_frame g;
    const uint8_t *p = v.p;
    size_t left = v.n;
    for (int i = 0; i < 3; i++) {
        assert_true(link_msg_next(&e, &g, a, &p, &left));
        assert_int_equal(g.submit.body.n, sizeof body);
        assert_memory_equal(g.submit.body.p, body, sizeof body);
    }
    assert_false(link_msg_next(&e, &g, a, &p, &left));
    assert_int_equal(e.code, 0);
    wire_arena_free(a);
    OK(link_msg_add(&e, &m, &f));
    n = m.n;
    link_answer(v.q, &m);
    assert_true(wait_for(&v, abroad, LINK_ANSWER, 20000));
    assert_int_equal(v.n, n);
    for (int i = 0; i < 3; i++)
        OK(link_msg_add(&e, &m, &f));
    assert_int_equal(link_msg_add(&e, &m, &f), ERR_PROTO);
    assert_int_equal(m.n_frame, 3);
    assert_int_equal(m.n, 3 * n);
}

/* The connection ends with it; what is asked after that goes over the next one. */
static void over_size(void **state)
{
    (void)state;
    struct link_event v;
    both();
    ask(1);
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
    link_answer(v.q, NULL);
    assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
    struct link_msg big = {.p = calloc(1, LINK_MESSAGE_BYTES_MAX + 4096), .n = LINK_MESSAGE_BYTES_MAX + 4096};
    OK(link_ask(&e, d, &big, NULL));
    link_msg_free(&big);
    assert_true(wait_for(&v, abroad, LINK_FAILED, 20000));
    assert_int_equal(v.err.code, ERR_SYS);
    assert_non_null(strstr(v.err.text, url));
    assert_true(wait_for(&v, at_home, LINK_DOWN, 5000));
    ask(2);
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
    assert_int_equal(number(&v), 2);
    link_answer(v.q, NULL);
    assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
}

static int next_of(const uint8_t *bytes, size_t n, int *n_frame)
{
    struct wire_arena *a = wire_arena_new();
    struct wire_frame f;
    /* A copy of exactly this size, so that the sanitizer sees a byte too many. */
    uint8_t *copy = malloc(n ? n : 1);
    if (n)
        memcpy(copy, bytes, n);
    const uint8_t *p = copy;
    *n_frame = 0;
    while (link_msg_next(&e, &f, a, &p, &n))
        ++*n_frame;
    int code = e.code;
    free(copy);
    wire_arena_free(a);
    return code;
}

static void garbage(void **state)
{
    (void)state;
    int n_frame;
    add(&m, 1u << 20);
    add(&m, 2);
    add(&m, 3);
    assert_int_equal(next_of(m.p, m.n, &n_frame), 0);
    assert_int_equal(n_frame, 3);
    assert_int_equal(next_of(m.p, 0, &n_frame), 0);
    /* Cut anywhere: only between frames is it an end. */
    int ends = 0;
    for (size_t cut = 0; cut <= m.n; cut++)
        ends += next_of(m.p, cut, &n_frame) == 0;
    assert_int_equal(ends, 4);
    assert_int_equal(next_of((const uint8_t *)"GET / HTTP/1.1\r\n", 16, &n_frame), ERR_PROTO);
    static const uint8_t long_one[] = {0xce, 0xff, 0xff, 0xff, 0xff, 0x81}, empty[] = {0xce, 0, 0, 0, 0},
                         no_map[] = {0xce, 0, 0, 0, 1, 0xc0};
    assert_int_equal(next_of(long_one, sizeof long_one, &n_frame), ERR_PROTO);
    assert_int_equal(next_of(empty, sizeof empty, &n_frame), ERR_PROTO);
    assert_int_equal(next_of(no_map, sizeof no_map, &n_frame), ERR_PROTO);
    /* {"k": 56, "x": [[[[…]]]]}, 1,000 deep */
    static uint8_t deep[5 + 8 + 1001] = {0xce, 0, 0, 0, 0, 0x82, 0xa1, 'k', 56, 0xa1, 'x'};
    size_t n = sizeof deep - 5 - 2;
    deep[3] = (uint8_t)(n >> 8);
    deep[4] = (uint8_t)n;
    memset(deep + 11, 0x91, n - 7);
    deep[4 + n] = 0xc0;
    assert_int_equal(next_of(deep, 5 + n, &n_frame), ERR_PROTO);
    struct wire_frame blk = {.kind = WIRE_BLK};
    assert_int_equal(link_msg_add(&e, &m, &blk), ERR_PROTO);
}

static void listener_killed(void **state)
{
    (void)state;
    struct link_event v;
    struct child c = start("hold", NULL);
    OK(link_dial(&e, &d, abroad, url, NULL));
    assert_true(wait_for(&v, abroad, LINK_UP, 5000));
    assert_true(v.peer != 0);
    uint32_t peer = v.peer;
    for (uint64_t i = 0; i < 50; i++)
        ask(i);
    assert_false(wait_for(&v, abroad, LINK_ANSWER, 200));
    assert_true(link_dialer_up(d));
    int64_t t = now_ms();
    end(&c, SIGKILL);
    int n_failed = 0, n_down = 0;
    while (n_failed < 50 || !n_down) {
        assert_true(now_ms() - t < 5000);
        link_box_wait(abroad, 1000);
        while (link_box_take(abroad, &v)) {
            n_failed += v.what == LINK_FAILED;
            n_down += v.what == LINK_DOWN;
            if (v.what == LINK_DOWN)
                assert_int_equal(v.peer, peer);
        }
    }
    assert_true(now_ms() - t < 100 * (getenv("ASAN_OPTIONS") ? 10 : 1));
    assert_int_equal(n_failed, 50);
    assert_int_equal(n_down, 1);
    assert_false(link_dialer_up(d));
}

/* More than the contexts that listen, so that most come from those that are made as they are needed. */
static void asker_killed(void **state)
{
    (void)state;
    struct link_event v;
    static struct link_question *held[300];
    int64_t best = INT64_MAX;
    OK(link_listen(&e, &l, at_home, url, NULL));
    for (int round = 0; round < 5; round++) {
        struct child c = start("ask", "300");
        for (int i = 0; i < 200; i++) {
            assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
            held[i] = v.q;
        }
        link_answer(held[0], NULL);
        int64_t t = now_ms();
        end(&c, SIGKILL);
        usleep(50000);
        add(&m, 1);
        link_answer(held[1], &m); /* to nobody */
        assert_int_equal(m.n, 0);
        assert_true(wait_for(&v, at_home, LINK_DOWN, 5000));
        int64_t took = now_ms() - t - 50;
        best = took < best ? took : best;
        assert_false(wait_for(&v, at_home, LINK_QUESTION, 20));
    }
    assert_true(best < 100);
    OK(link_dial(&e, &d, abroad, url, NULL));
    for (uint64_t i = 0; i < 300; i++)
        ask(i);
    for (int i = 0; i < 300; i++) {
        assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
        link_answer(v.q, NULL);
    }
    for (int i = 0; i < 300; i++)
        assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
}

static void listener_comes_later(void **state)
{
    (void)state;
    struct link_event v;
    OK(link_dial(&e, &d, abroad, url, NULL));
    for (uint64_t i = 0; i < 20; i++)
        ask(i);
    assert_false(link_box_take(abroad, &v));
    assert_false(link_dialer_up(d));
    usleep(300000);
    OK(link_listen(&e, &l, at_home, url, NULL));
    for (int i = 0; i < 20; i++) {
        assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
        link_answer(v.q, NULL);
    }
    for (int i = 0; i < 20; i++)
        assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
}

static void listener_restarted(void **state)
{
    (void)state;
    struct link_event v;
    struct child c = start("hold", NULL);
    OK(link_dial(&e, &d, abroad, url, NULL));
    ask(1);
    usleep(100000);
    for (int round = 0; round < 5; round++) {
        end(&c, SIGKILL);
        c = start(round < 4 ? "hold" : "echo", NULL);
        assert_true(wait_for(&v, abroad, LINK_FAILED, 5000));
        assert_true(wait_for(&v, abroad, LINK_UP, 5000));
        ask(1);
        usleep(100000);
    }
    assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
    end(&c, 0);
}

/* Killed while much goes both ways: every question ends one way or the other, those that were not sent yet by the next
 * process. */
static void killed_under_load(void **state)
{
    (void)state;
    struct link_event v;
    uint64_t n_asked = 0, n_ended = 0;
    const char *rounds = getenv("ROUNDS");
    long n = rounds ? strtol(rounds, NULL, 10) : 10;
    OK(link_dial(&e, &d, abroad, url, NULL));
    for (long round = 0; round <= n; round++) {
        struct child c = start("echo", NULL);
        int64_t t = now_ms();
        bool killed = false;
        uint64_t n_answer = 0;
        while (round < n ? !killed || link_dialer_up(d) : n_asked > n_ended) {
            while (!killed && round < n && n_asked < n_ended + 200)
                ask(n_asked++);
            link_box_wait(abroad, 20);
            while (link_box_take(abroad, &v)) {
                n_ended += v.what == LINK_ANSWER || v.what == LINK_FAILED;
                n_answer += v.what == LINK_ANSWER;
            }
            if (!killed && round < n && n_answer > 2000) {
                killed = true;
                end(&c, SIGKILL);
            }
            if (now_ms() - t > 5000)
                fail_msg("round %ld: %d of %d ended, %s", round, (int)n_ended, (int)n_asked,
                         link_dialer_up(d) ? "up" : "down");
        }
        if (round == n)
            end(&c, 0);
    }
}

static int connect_raw(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
    return s;
}

/* Peers that leave at once, say nothing, or say what is not nng's. None of them keeps others from being heard. */
static void hostile_connections(void **state)
{
    (void)state;
    static const char header[] = "\0SP\0\0\60\0\0", size[] = "\1\177\377\377\377\377\377\377\377";
    struct link_event v;
    int quiet[50];
    OK(link_listen(&e, &l, at_home, url, NULL));
    for (int i = 0; i < 300; i++)
        close(connect_raw());
    for (int i = 0; i < 50; i++)
        quiet[i] = connect_raw();
    for (int i = 0; i < 50; i++) {
        assert_int_equal(write(quiet[i], i % 2 ? header : "GET / HTTP/1.1\r\n\r\n", 8), 8);
        if (i % 4 == 1)
            assert_int_equal(write(quiet[i], size, 9), 9);
        if (i % 4 == 3)
            assert_int_equal(write(quiet[i], "\1\0\0\0\0\0\0\0\3abc", 12), 12);
    }
    OK(link_dial(&e, &d, abroad, url, NULL));
    ask(1);
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 20000));
    link_answer(v.q, NULL);
    assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
    for (int i = 0; i < 50; i++)
        close(quiet[i]);
    ask(2);
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
}

static void addresses(void **state)
{
    (void)state;
    struct link_listener *other = NULL;
    struct link_dialer *none = NULL;
    struct stat st;
    OK(link_listen(&e, &l, at_home, url, NULL));
    assert_int_equal(stat(url + 6, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(link_listen(&e, &other, at_home, url, NULL), ERR_NO);
    assert_int_equal(link_listen(&e, &other, at_home, "unix:/tmp/x", NULL), ERR_USAGE);
    assert_int_equal(link_dial(&e, &none, at_home, "ipc://", NULL), ERR_USAGE);
    char long_one[300] = "ipc:///tmp/";
    memset(long_one + 11, 'x', 200);
    assert_int_equal(link_listen(&e, &other, at_home, long_one, NULL), ERR_USAGE);
    assert_int_equal(link_dial(&e, &none, at_home, "tcp://127.0.0.1:99999", NULL), ERR_USAGE);
    OK(link_listen(&e, &other, at_home, "tcp://127.0.0.1:0", NULL));
    assert_string_not_equal(link_listener_url(other), "tcp://127.0.0.1:0");
    OK(link_dial(&e, &d, abroad, link_listener_url(other), NULL));
    struct link_event v;
    ask(5);
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
    link_answer(v.q, NULL);
    assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
    link_listener_free(other);
}

static void limit_of_a_dialer(void **state)
{
    (void)state;
    struct link_event v;
    both();
    for (uint64_t i = 0; i < LINK_ASKED_MAX; i++)
        ask(i);
    add(&m, 0);
    assert_int_equal(link_ask(&e, d, &m, NULL), ERR_NO);
    for (uint64_t i = 0; i < LINK_ASKED_MAX; i++) {
        assert_true(wait_for(&v, at_home, LINK_QUESTION, 10000));
        link_answer(v.q, NULL);
    }
    for (uint64_t i = 0; i < LINK_ASKED_MAX; i++)
        assert_true(wait_for(&v, abroad, LINK_ANSWER, 10000));
    OK(link_ask(&e, d, &m, NULL));
    assert_true(wait_for(&v, at_home, LINK_QUESTION, 10000));
}

static void *wake_soon(void *arg)
{
    usleep(100000);
    link_box_wake(arg);
    return NULL;
}

static void woken(void **state)
{
    (void)state;
    pthread_t t;
    struct link_event v;
    int64_t from = now_ms();
    pthread_create(&t, NULL, wake_soon, at_home);
    link_box_wait(at_home, 10000);
    assert_true(now_ms() - from < 5000);
    assert_true(now_ms() - from >= 90);
    pthread_join(t, NULL);
    assert_false(link_box_take(at_home, &v));
    from = now_ms();
    link_box_wait(at_home, 50);
    assert_true(now_ms() - from >= 45);
}

#define ANSWERERS 4
#define EACH 250

static void *answer_some(void *arg)
{
    struct link_question **q = arg;
    struct link_msg to = {0};
    struct err mine = {0};
    for (int i = 0; i < EACH; i++) {
        if (!link_msg_add(&mine, &to, &(struct wire_frame){.kind = WIRE_TICK, .tick = {.at_ns = 9}}))
            link_answer(q[i], &to);
    }
    link_msg_free(&to);
    return NULL;
}

static void answered_by_threads(void **state)
{
    (void)state;
    static struct link_question *q[ANSWERERS][EACH];
    pthread_t t[ANSWERERS];
    struct link_event v;
    both();
    for (uint64_t i = 0; i < ANSWERERS * EACH; i++)
        ask(i);
    for (int i = 0; i < ANSWERERS; i++)
        for (int k = 0; k < EACH; k++) {
            assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
            q[i][k] = v.q;
        }
    for (int i = 0; i < ANSWERERS; i++)
        pthread_create(&t[i], NULL, answer_some, q[i]);
    for (uint64_t i = 0; i < ANSWERERS * EACH; i++)
        assert_true(wait_for(&v, abroad, LINK_ANSWER, 5000));
    for (int i = 0; i < ANSWERERS; i++)
        pthread_join(t[i], NULL);
}

/* Freed in the middle of everything: nothing is read after it was freed, nothing is kept. */
static void ended_while_busy(void **state)
{
    (void)state;
    struct link_event v;
    for (int round = 0; round < 20; round++) {
        both();
        for (uint64_t i = 0; i < 100; i++)
            ask(i);
        for (int i = 0; i < round * 3; i++) {
            assert_true(wait_for(&v, at_home, LINK_QUESTION, 5000));
            link_answer(v.q, NULL);
        }
        if (round % 2) {
            link_listener_free(l);
            link_dialer_free(d);
        } else {
            link_dialer_free(d);
            link_listener_free(l);
        }
        l = NULL;
        d = NULL;
        assert_false(link_box_take(at_home, &v));
        assert_false(link_box_take(abroad, &v));
    }
}

/* The tool is built beside: …/tests/unit/ask_test, …/tests/tools/ask_peer. */
static bool find_tool(void)
{
    ssize_t n = readlink("/proc/self/exe", tool, sizeof tool - 32);
    if (n <= 0)
        return false;
    tool[n] = '\0';
    char *at = strstr(tool, "/unit/ask_test");
    if (!at)
        return false;
    memcpy(at, "/tools/ask_peer", 16);
    return access(tool, X_OK) == 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answered_out_of_order, setup, teardown),
        cmocka_unit_test_setup_teardown(long_poll, setup, teardown),
        cmocka_unit_test_setup_teardown(big_messages, setup, teardown),
        cmocka_unit_test_setup_teardown(over_size, setup, teardown),
        cmocka_unit_test_setup_teardown(garbage, setup, teardown),
        cmocka_unit_test_setup_teardown(listener_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(asker_killed, setup, teardown),
        cmocka_unit_test_setup_teardown(listener_comes_later, setup, teardown),
        cmocka_unit_test_setup_teardown(listener_restarted, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_under_load, setup, teardown),
        cmocka_unit_test_setup_teardown(hostile_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(limit_of_a_dialer, setup, teardown),
        cmocka_unit_test_setup_teardown(woken, setup, teardown),
        cmocka_unit_test_setup_teardown(answered_by_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(ended_while_busy, setup, teardown),
    };
    if (!find_tool()) {
        fprintf(stderr, "ask_test: tests/tools/ask_peer is not built\n");
        return 1;
    }
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
