/* The HTTP server with clients that disconnect, half-close, read slowly or send slowly. http.h states the times. */
#include "http_client.h"

#include <netinet/in.h>
#include <sys/resource.h>

static const struct http_opts plain = {0};

#define DISCONNECT_MS 100 /* of http.h */

/* ---- disconnects ---- */

/* Disconnects and measures when the server reports it; the best of three, since the machine may be busy. */
static void expect_detected_soon(const char *address, const char *text, bool reset)
{
    struct server *v = server_new(&plain, address);
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 3; i++) {
        struct client *c = client_new(v);
        struct tag *t = send_waiting(v, c, text);
        run_ms(v, 20);
        uint64_t left = time_now_ns();
        client_leave(c, reset);
        UNTIL(v, t->n_finished);
        assert_int_equal(t->n_disconnected, 1);
        best = t->disconnected_ns - left < best ? t->disconnected_ns - left : best;
        UNTIL(v, http_connections(v->h) == 0);
        client_free(c);
    }
    if (best > DISCONNECT_MS * MS)
        fail_msg("%s, %.12s, %s: %.1f ms", address, text, reset ? "reset" : "closed", (double)best / 1e6);
    server_free(v);
}

static void a_disconnect_is_detected_without_a_write(void **state)
{
    char path[80];
    (void)state;
    snprintf(path, sizeof path, "unix:/tmp/http_leave_test.%d", (int)getpid());
    for (int reset = 0; reset < 2; reset++)
        for (int i = 0; i < 2; i++) {
            expect_detected_soon(i ? path : "127.0.0.1:0", GET("/wait"), reset);
            expect_detected_soon(i ? path : "127.0.0.1:0", GET("/stream"), reset);
            expect_detected_soon(i ? path : "127.0.0.1:0",
                                 "POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", reset);
        }
    expect_detected_soon("127.0.0.1:0", "GET /wait HTTP/1.0\r\nHost: a\r\n\r\n", false);
}

static void a_disconnect_is_detected_within_a_stream(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    struct tag *t = send_waiting(v, c, GET("/stream"));
    answer_head(v, c, &a);
    http_write(t->r, "data: 1\n\n", 9);
    answer_chunk(v, c, &a);
    answer_free(&a);
    client_leave(c, false);
    UNTIL(v, t->n_finished);
    assert_int_equal(t->n_disconnected, 1);
    client_free(c);
    /* A client that disconnects after http_end, before the response is sent, counts as answered. */
    c = client_new(v);
    t = send_waiting(v, c, GET("/stream"));
    http_write(t->r, "data: 1\n\n", 9);
    tag_end(t);
    client_leave(c, true);
    UNTIL(v, http_connections(v->h) == 0);
    assert_int_equal(t->n_disconnected, 0);
    client_free(c);
    server_free(v);
}

/* Servers that run at the same time, so that a test waits once for all of them. */
static void run_all_ms(struct server **v, int n, uint64_t ms)
{
    for (uint64_t end = time_now_ns() + ms * MS; time_now_ns() < end;)
        for (int i = 0; i < n; i++)
            pump(v[i], -1, time_now_ns() + MS);
}

/* ---- half-closed connections ---- */

static void a_half_closed_request_is_answered(void **state)
{
    struct server *v[2];
    struct client *c[2];
    char path[80];
    (void)state;
    snprintf(path, sizeof path, "unix:/tmp/http_leave_test.%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        v[i] = server_new(&plain, i ? path : "127.0.0.1:0");
        c[i] = client_new(v[i]);
        send_text(v[i], c[i], GET("/wait"));
        shutdown(c[i]->fd, SHUT_WR);
        UNTIL(v[i], v[i]->n_tag == 1);
    }
    run_all_ms(v, 2, 1300);
    for (int i = 0; i < 2; i++) {
        struct answer a;
        assert_int_equal(last(v[i])->n_disconnected, 0);
        tag_reply(last(v[i]), 200, "text/plain", "late", 4);
        answer_read(v[i], c[i], &a);
        assert_string_equal(a.body, "late");
        answer_free(&a);
        client_until_closed(v[i], c[i]);
        UNTIL(v[i], http_connections(v[i]->h) == 0);
        client_free(c[i]);
        server_free(v[i]);
    }
}

/* A probe does not change the response: a comment of server-sent events (WHATWG HTML, 9.2.5), or white space before a
 * JSON value (RFC 8259, 2). */
static void a_half_closed_stream_is_whole(void **state)
{
    static const char *const type[] = {"text/event-stream", "application/x-ndjson"}, *const probe[] = {":\n\n", " "},
                             *const event[] = {"data: 1\n\n", "{\"a\":1}\n"};
    struct server *v[2];
    struct client *c[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        v[i] = server_new(&plain, "127.0.0.1:0");
        c[i] = client_new(v[i]);
        v[i]->stream_type = type[i];
        send_text(v[i], c[i], GET("/stream"));
        shutdown(c[i]->fd, SHUT_WR);
        UNTIL(v[i], v[i]->n_tag == 1);
    }
    for (int j = 0; j < 3; j++) {
        for (int i = 0; i < 2; i++)
            http_write(last(v[i])->r, event[i], strlen(event[i]));
        run_all_ms(v, 2, 400);
    }
    for (int i = 0; i < 2; i++) {
        struct answer a;
        tag_end(last(v[i]));
        answer_read(v[i], c[i], &a);
        int n = 0, n_probe = 0;
        for (const char *p = a.body; *p;) {
            bool is_event = !strncmp(p, event[i], strlen(event[i]));
            if (!is_event && strncmp(p, probe[i], strlen(probe[i])) != 0)
                fail_msg("'%s' in '%s'", p, a.body);
            n += is_event;
            n_probe += !is_event;
            p += strlen(is_event ? event[i] : probe[i]);
        }
        assert_int_equal(n, 3);
        assert_in_range(n_probe, 1, 4);
        answer_free(&a);
        client_free(c[i]);
        server_free(v[i]);
    }
}

static void half_closed_then_closed_counts_as_disconnected(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    (void)state;
    struct tag *t = send_waiting(v, c, GET("/wait"));
    shutdown(c->fd, SHUT_WR);
    run_ms(v, 300);
    assert_int_equal(t->n_disconnected, 0);
    client_leave(c, false);
    UNTIL(v, t->n_disconnected); /* at the next probe, within a second */
    client_free(c);
    /* Pipelined requests before a half-close are all answered. */
    struct answer a;
    c = client_new(v);
    send_text(v, c, GET("/echo") GET("/wait") GET("/echo"));
    shutdown(c->fd, SHUT_WR);
    UNTIL(v, v->n_tag == 3);
    run_ms(v, 200);
    tag_reply(last(v), 201, NULL, NULL, 0);
    static const int status[] = {200, 201, 200};
    for (int i = 0; i < 3; i++) {
        answer_read(v, c, &a);
        assert_int_equal(a.status, status[i]);
        answer_free(&a);
    }
    client_until_closed(v, c);
    client_free(c);
    server_free(v);
}

/* ---- slow clients ---- */

static void a_client_that_does_not_read_is_disconnected(void **state)
{
    struct http_opts o = {.queued_bytes_max = 1 << 20};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *stalled = client_new(v), *other = client_new(v);
    static char piece[65536];
    size_t written = 0;
    (void)state;
    struct tag *t = send_waiting(v, stalled, GET("/stream"));
    while (t->r && written < (size_t)64 << 20) {
        http_write(t->r, piece, sizeof piece);
        written += sizeof piece;
        assert_true(!t->r || http_queued(t->r) <= o.queued_bytes_max);
        if (written % (1 << 20) == 0)
            request_echo(v, other);
        pump(v, -1, time_now_ns() + MS);
    }
    assert_int_equal(t->n_disconnected, 1);
    assert_in_range(written, o.queued_bytes_max, ((size_t)64 << 20) - 1);
    UNTIL(v, http_connections(v->h) == 1);
    request_echo(v, other);
    client_free(stalled);
    client_free(other);
    server_free(v);
}

static void a_slow_reader_receives_everything(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    size_t n = (size_t)8 << 20;
    char *all = malloc(n);
    (void)state;
    for (size_t i = 0; i < n; i++)
        all[i] = (char)(i * 2654435761u >> 11);
    struct tag *t = send_waiting(v, c, GET("/stream"));
    for (size_t i = 0; i < n; i += 65536)
        http_write(t->r, all + i, 65536);
    run_ms(v, 50);
    assert_true(http_queued(t->r) > 0);
    tag_end(t);
    answer_read(v, c, &a);
    assert_int_equal(a.n_body, n);
    assert_memory_equal(a.body, all, n);
    answer_free(&a);
    request_echo(v, c);
    free(all);
    client_free(c);
    server_free(v);
}

/* A reader so slow that its socket does not become writable within the idle timeout keeps its connection; a client that
 * reads nothing loses it in the end. */
static void a_slow_reader_does_not_time_out(void **state)
{
    enum { N = 24 << 20 };
    struct http_opts o = {.idle_s = 1};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *slow = client_new(v), *stalled = client_new(v);
    char *all = calloc(N, 1), some[4096];
    size_t n = 0;
    (void)state;
    struct tag *s = send_waiting(v, slow, GET("/stream")), *d = send_waiting(v, stalled, GET("/stream"));
    http_write(s->r, all, N);
    http_write(d->r, all, N);
    uint64_t begin = time_now_ns();
    for (int i = 0; i < 30; i++) {
        run_ms(v, 100);
        ssize_t k = recv(slow->fd, some, sizeof some, MSG_DONTWAIT);
        n += k > 0 ? (size_t)k : 0;
        assert_int_equal(s->n_disconnected, 0);
    }
    assert_true(n > 0 && http_queued(s->r) > 0);
    tag_end(s);
    while (slow->n < 5 || memcmp(slow->p + slow->n - 5, "0\r\n\r\n", 5) != 0)
        assert_true(receive(v, slow, time_now_ns() + WAIT_MS * MS));
    assert_true(n + slow->n > N);
    client_drop(slow, slow->n);
    request_echo(v, slow);
    while (!d->n_disconnected && time_now_ns() - begin < 20000 * MS)
        run_ms(v, 100);
    assert_in_range(time_now_ns() - begin, 3000 * MS, 15000 * MS);
    free(all);
    client_free(slow);
    client_free(stalled);
    server_free(v);
}

/* http_unsent counts a complete response until it is sent, as long as its client reads something, however slowly. */
static void unsent_responses_of_reading_clients_are_counted(void **state)
{
    enum { SERVERS = 4, N = 24 << 20 };
    struct server *v[SERVERS];
    struct client *slow[SERVERS], *stalled[SERVERS];
    char path[80], *all = calloc(N, 1), some[100000];
    (void)state;
    for (int i = 0; i < SERVERS; i++) {
        bool streams = i % 2;
        snprintf(path, sizeof path, "unix:/tmp/http_leave_test.%d.%d", (int)getpid(), i);
        v[i] = server_new(&plain, i / 2 ? path : "127.0.0.1:0");
        slow[i] = client_new(v[i]);
        stalled[i] = client_new(v[i]);
        struct tag *t[] = {send_waiting(v[i], slow[i], streams ? GET("/stream") : GET("/wait")),
                           send_waiting(v[i], stalled[i], streams ? GET("/stream") : GET("/wait"))};
        assert_int_equal(http_unsent(v[i]->h, 300 * MS), 0);
        for (int k = 0; k < 2; k++) {
            if (streams) {
                http_write(t[k]->r, all, N);
                tag_end(t[k]);
            } else {
                tag_reply(t[k], 200, "text/plain", all, N);
            }
        }
        run_ms(v[i], 20);
        assert_int_equal(http_unsent(v[i]->h, 300 * MS), 2);
    }
    for (int k = 0; k < 60; k++) {
        run_all_ms(v, SERVERS, 10);
        for (int i = 0; i < SERVERS; i++) {
            assert_true(recv(slow[i]->fd, some, sizeof some, MSG_DONTWAIT) > 0);
            assert_true(http_unsent(v[i]->h, 300 * MS) >= 1);
        }
    }
    for (int i = 0; i < SERVERS; i++)
        assert_int_equal(http_unsent(v[i]->h, 300 * MS), 1);
    uint64_t left = SERVERS;
    for (uint64_t end = time_now_ns() + WAIT_MS * MS; left;) {
        assert_true(time_now_ns() < end);
        left = 0;
        for (int i = 0; i < SERVERS; i++) {
            pump(v[i], -1, 0);
            while (recv(slow[i]->fd, some, sizeof some, MSG_DONTWAIT) > 0) {
            }
            left += http_unsent(v[i]->h, 300 * MS);
        }
    }
    for (int i = 0; i < SERVERS; i++) {
        assert_int_equal(http_connections(v[i]->h), 2);
        client_free(slow[i]);
        client_free(stalled[i]);
        server_free(v[i]);
    }
    free(all);
}

/* Incomplete requests time out, with 408 if anything of them was received; requests that wait for their response do
 * not. */
static void a_slow_sender_times_out(void **state)
{
    static const char *const text[] = {
        "",
        "GET /ec",
        "GET /echo HTTP/1.1\r\nHo",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha",
        GET("/echo"), /* idle after a request */
    };
    enum { N = sizeof text / sizeof *text };
    struct http_opts o = {.idle_s = 1};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c[N], *line = client_new(v), *body = client_new(v), *wait = client_new(v), *stream = client_new(v);
    struct answer a;
    (void)state;
    struct tag *waits = send_waiting(v, wait, GET("/wait")), *streams = send_waiting(v, stream, GET("/stream"));
    for (size_t i = 0; i < N; i++) {
        c[i] = client_new(v);
        send_text(v, c[i], text[i]);
    }
    send_text(v, body, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n");
    uint64_t begin = time_now_ns(), line_ns = 0, body_ns = 0;
    while ((!line_ns || !body_ns) && time_now_ns() - begin < 12000 * MS) {
        run_ms(v, 200); /* one byte each, so that neither connection is ever idle for long */
        if (!line_ns && !client_send(v, line, "G", 1))
            line_ns = time_now_ns() - begin;
        if (!body_ns && !client_send(v, body, "b", 1))
            body_ns = time_now_ns() - begin;
    }
    assert_in_range(line_ns, 1000 * MS, 5000 * MS);
    assert_in_range(body_ns, 1000 * MS, 9000 * MS);
    for (size_t i = 0; i < N; i++) {
        static const int status[N] = {0, 408, 408, 408, 408, 200};
        client_until_closed(v, c[i]);
        int got = c[i]->n ? (int)strtol(c[i]->p + 9, NULL, 10) : 0;
        if (got != status[i])
            fail_msg("%d after '%.30s'", got, text[i]);
        client_free(c[i]);
    }
    assert_int_equal(v->n_tag, 3 + 4 + 2);
    assert_int_equal(http_connections(v->h), 2);
    struct http_stats stats;
    http_stats(v->h, &stats);
    assert_int_equal(stats.timed_out, 6);
    assert_int_equal(stats.body_bytes, 0);
    assert_false(waits->n_disconnected || streams->n_disconnected);
    tag_reply(waits, 200, "text/plain", "late", 4);
    answer_read(v, wait, &a);
    assert_string_equal(a.body, "late");
    answer_free(&a);
    tag_end(streams);
    answer_read(v, stream, &a);
    answer_free(&a);
    client_free(line);
    client_free(body);
    client_free(wait);
    client_free(stream);
    server_free(v);
}

/* ---- many streams ---- */

#define MANY 500
#define EVENTS 20

static void many_streams_run_at_once(void **state)
{
    static struct client *c[MANY];
    struct rlimit l;
    struct server *v = server_new(&plain, "127.0.0.1:0");
    (void)state;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
    for (int i = 0; i < MANY; i++) {
        c[i] = client_new(v);
        send_text(v, c[i], GET("/stream"));
    }
    UNTIL(v, v->n_tag == MANY);
    for (int j = 0; j < EVENTS; j++)
        for (size_t i = 0; i < MANY; i++) {
            char text[64];
            int n = snprintf(text, sizeof text, "data: %zu %d\n\n", i, j);
            http_write(v->tag[i].r, text, (size_t)n);
            if (i % 50 == 49)
                pump(v, -1, time_now_ns() + MS);
        }
    for (size_t i = 0; i < MANY; i++)
        tag_end(&v->tag[i]);
    static bool seen[MANY];
    for (int i = 0; i < MANY; i++) {
        struct answer a;
        answer_read(v, c[i], &a);
        size_t which = strtoul(a.body + 6, NULL, 10), at = 0;
        assert_true(which < MANY && !seen[which]);
        seen[which] = true;
        for (int j = 0; j < EVENTS; j++) {
            char text[64];
            int n = snprintf(text, sizeof text, "data: %zu %d\n\n", which, j);
            assert_memory_equal(a.body + at, text, (size_t)n);
            at += (size_t)n;
        }
        assert_int_equal(a.n_body, at);
        answer_free(&a);
        client_free(c[i]);
    }
    UNTIL(v, http_connections(v->h) == 0);
    server_free(v);
}

/* server_free checks that each delivered request gets one final callback. */
static void closing_the_server_aborts_all_requests(void **state)
{
    static const char *const text[] = {GET("/wait"),
                                       GET("/stream"),
                                       "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n",
                                       "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
                                       "",
                                       "GET / HT",
                                       GET("/echo") GET("/echo")};
    enum { N = sizeof text / sizeof *text };
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c[N];
    (void)state;
    for (size_t i = 0; i < N; i++) {
        c[i] = client_new(v);
        send_text(v, c[i], text[i]);
    }
    UNTIL(v, v->n_tag == 5);
    static char piece[1 << 20];
    http_write(v->tag[1].r, piece, sizeof piece);
    server_free(v);
    for (size_t i = 0; i < N; i++)
        client_free(c[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disconnect_is_detected_without_a_write),
        cmocka_unit_test(a_disconnect_is_detected_within_a_stream),
        cmocka_unit_test(a_half_closed_request_is_answered),
        cmocka_unit_test(a_half_closed_stream_is_whole),
        cmocka_unit_test(half_closed_then_closed_counts_as_disconnected),
        cmocka_unit_test(a_client_that_does_not_read_is_disconnected),
        cmocka_unit_test(a_slow_reader_receives_everything),
        cmocka_unit_test(a_slow_reader_does_not_time_out),
        cmocka_unit_test(unsent_responses_of_reading_clients_are_counted),
        cmocka_unit_test(a_slow_sender_times_out),
        cmocka_unit_test(many_streams_run_at_once),
        cmocka_unit_test(closing_the_server_aborts_all_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
