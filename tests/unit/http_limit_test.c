/* The limits of the HTTP server: connections of all and of one address, bodies, output, and times. The numbers are
 * those of http.h. */
#include "http_client.h"

#define POST_OF(n) "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: " #n "\r\n\r\n"

static struct http_stats stats_of(struct server *v)
{
    struct http_stats s;
    http_stats(v->h, &s);
    return s;
}

/* A client from another address of the loopback. */
static struct client *client_from(struct server *v, const char *address)
{
    struct client *c = calloc(1, sizeof *c);
    struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, address, &from.sin_addr);
    assert_int_equal(bind(c->fd, (struct sockaddr *)&from, sizeof from), 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons((uint16_t)strtoul(strrchr(http_address(v->h, 0), ':') + 1, NULL, 10));
    assert_int_equal(connect(c->fd, (struct sockaddr *)&to, sizeof to), 0);
    return c;
}

/* ---- connections ---- */

static void a_new_connection_replaces_the_one_that_is_idle_for_longest(void **state)
{
    struct http_opts o = {.connections_max = 3, .address_connections_max = 3};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c[4];
    struct answer a;
    (void)state;
    for (int i = 0; i < 3; i++)
        c[i] = client_new(v);
    struct tag *t = send_waiting(v, c[0], GET("/wait"));
    send_text(v, c[1], "GET /ec"); /* an incomplete head is idle too */
    run_ms(v, 1200);
    request_echo(v, c[2]);
    c[3] = client_new(v);
    request_echo(v, c[3]);
    client_until_closed(v, c[1]);
    assert_int_equal(stats_of(v).replaced, 1);
    assert_int_equal(stats_of(v).connections, 3);
    request_echo(v, c[2]);
    tag_reply(t, 200, "text/plain", "late", 4);
    answer_read(v, c[0], &a);
    assert_string_equal(a.body, "late");
    answer_free(&a);
    for (int i = 0; i < 4; i++)
        client_free(c[i]);
    server_free(v);
}

/* A connection that has just been made is not closed for the next one: its request may be on the way. */
static void without_an_old_idle_connection_a_new_one_gets_503(void **state)
{
    struct http_opts o = {.connections_max = 2, .address_connections_max = 2};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c[4];
    struct answer a;
    (void)state;
    for (int i = 0; i < 2; i++)
        c[i] = client_new(v);
    struct tag *t[2];
    for (int round = 0; round < 2; round++) {
        c[2] = client_new(v);
        answer_read(v, c[2], &a); /* without a request */
        assert_int_equal(a.status, 503);
        assert_non_null(strstr(a.body, "the limit is 2"));
        assert_string_equal(answer_header(&a, "Connection"), "close");
        answer_free(&a);
        client_until_closed(v, c[2]);
        assert_false(c[2]->reset);
        client_free(c[2]);
        for (int i = 0; !round && i < 2; i++)
            t[i] = send_waiting(v, c[i], GET("/wait"));
        if (!round)
            run_ms(v, 1200);
    }
    assert_int_equal(stats_of(v).refused, 2);
    for (int i = 0; i < 2; i++) {
        tag_reply(t[i], 200, "text/plain", "late", 4);
        answer_read(v, c[i], &a);
        answer_free(&a);
        client_free(c[i]);
    }
    server_free(v);
}

static void one_address_cannot_lock_out_another(void **state)
{
    static const char *const begin[] = {"", "GET /echo HTTP/1.1\r\nHo"};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        struct http_opts o = {.connections_max = 40};
        struct server *v = server_new(&o, "127.0.0.1:0");
        struct client *c[60], *other[10];
        for (int i = 0; i < 60; i++) {
            c[i] = client_new(v);
            (void)send(c[i]->fd, begin[kind], strlen(begin[kind]), MSG_NOSIGNAL);
        }
        UNTIL(v, stats_of(v).refused == 30); /* three quarters of the limit */
        assert_int_equal(http_connections(v->h), 30);
        for (int i = 0; i < 10; i++) {
            other[i] = client_from(v, "127.0.0.2");
            request_echo(v, other[i]);
            assert_string_equal(last(v)->peer, "127.0.0.2");
        }
        /* A new one of the first address replaces its oldest, not one of the other. */
        run_ms(v, 1100);
        struct client *more = client_new(v);
        request_echo(v, more);
        assert_int_equal(stats_of(v).replaced, 1);
        for (int i = 0; i < 10; i++) {
            request_echo(v, other[i]);
            client_free(other[i]);
        }
        client_free(more);
        for (int i = 0; i < 60; i++)
            client_free(c[i]);
        UNTIL(v, http_connections(v->h) == 0);
        server_free(v);
    }
}

static void unix_sockets_have_no_limit_of_an_address(void **state)
{
    struct http_opts o = {.connections_max = 40};
    char path[80];
    (void)state;
    snprintf(path, sizeof path, "unix:/tmp/http_limit_test.%d", (int)getpid());
    struct server *v = server_new(&o, path);
    struct client *c[40];
    for (int i = 0; i < 40; i++)
        c[i] = client_new(v);
    for (int i = 0; i < 40; i++) {
        request_echo(v, c[i]);
        client_free(c[i]);
    }
    assert_int_equal(stats_of(v).refused, 0);
    server_free(v);
}

/* ---- times ---- */

/* The timeout of a head does not depend on the idle timeout, nor on its bytes. */
static void a_trickled_head_ends_with_408(void **state)
{
    struct http_opts o = {.head_s = 1};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c = client_new(v), *idle = client_new(v);
    (void)state;
    request_echo(v, idle);
    uint64_t begin = time_now_ns();
    while (!c->eof && time_now_ns() - begin < 5000 * MS) {
        (void)send(c->fd, "G", 1, MSG_NOSIGNAL);
        run_ms(v, 100);
        receive(v, c, 0);
    }
    assert_in_range(time_now_ns() - begin, 900 * MS, 3000 * MS);
    assert_int_equal(strtol(c->p + 9, NULL, 10), 408);
    request_echo(v, idle); /* between requests the idle timeout of 60 s holds */
    client_free(c);
    client_free(idle);
    server_free(v);
}

/* ---- bodies ---- */

static void all_bodies_together_have_a_limit(void **state)
{
    struct http_opts o = {.body_bytes_max = 10000, .bodies_bytes_max = 25000};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c[2], *more = client_new(v), *chunks = client_new(v);
    static char body[10000];
    struct answer a;
    size_t n;
    (void)state;
    memset(body, 'b', sizeof body);
    for (int i = 0; i < 2; i++) {
        c[i] = client_new(v);
        send_text(v, c[i], POST_OF(10000));
        assert_true(client_send(v, c[i], body, 9000));
    }
    UNTIL(v, stats_of(v).body_bytes == 18000);
    request(v, more, &a, POST_OF(10000), 503); /* before its body */
    assert_non_null(strstr(a.body, "25000"));
    answer_free(&a);
    client_until_closed(v, more);
    send_text(v, chunks, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n");
    assert_true(client_send(v, chunks, body, 8192)); /* when it exceeds the rest */
    answer_read(v, chunks, &a);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    UNTIL(v, stats_of(v).body_bytes == 18000);
    for (int i = 0; i < 2; i++) {
        assert_true(client_send(v, c[i], body, 1000));
        answer_read(v, c[i], &a);
        assert_int_equal(a.n_body, 10000);
        answer_free(&a);
    }
    UNTIL(v, stats_of(v).body_bytes == 0);
    /* A body that the caller has taken no longer counts. */
    struct tag *t = send_waiting(v, c[0], "POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_int_equal(stats_of(v).body_bytes, 4);
    char *p = http_take_body(t->r, &n);
    assert_int_equal(n, 4);
    assert_memory_equal(p, "body", 5);
    free(p);
    assert_int_equal(stats_of(v).body_bytes, 0);
    assert_string_equal(http_body(t->r, &n), "");
    assert_null(http_take_body(t->r, &n));
    tag_reply(t, 204, NULL, NULL, 0);
    for (int i = 0; i < 2; i++)
        client_free(c[i]);
    client_free(more);
    client_free(chunks);
    server_free(v);
}

static void on_head(void *arg, struct http_request *r)
{
    if (strcmp(http_path(r), "/denied") != 0)
        return;
    struct tag *t = tag_new(arg, r);
    t->n_fail++;
    tag_reply(t, 401, "text/plain", "no key", 6);
}

static struct server *server_with_head(void)
{
    struct http_opts o = {.head = on_head};
    struct server *v = server_new(&o, "127.0.0.1:0");
    return v;
}

/* The callback of heads gets the `arg` of the others. */
static void a_request_is_refused_before_its_body(void **state)
{
    struct server *v = server_with_head();
    struct client *c = client_new(v), *expects = client_new(v), *sends = client_new(v);
    static char body[1 << 20];
    struct answer a;
    (void)state;
    request(v, c, &a, "POST /denied HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n", 401);
    assert_string_equal(answer_header(&a, "Connection"), "close");
    answer_free(&a);
    client_until_closed(v, c);
    request(v, expects, &a, "POST /denied HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
            401);
    assert_int_equal(a.n_interim, 0);
    answer_free(&a);
    /* A client that sends its body at once receives the response, and no request is parsed in it. */
    send_text(v, sends, "POST /denied HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n" GET("/echo"));
    for (int i = 0; i < 8; i++)
        assert_true(client_send(v, sends, body, sizeof body));
    answer_read(v, sends, &a);
    assert_int_equal(a.status, 401);
    answer_free(&a);
    client_until_closed(v, sends);
    assert_false(sends->reset);
    assert_int_equal(v->n_tag, 3);
    assert_int_equal(stats_of(v).body_bytes, 0);
    /* Without a body the connection stays open. */
    client_free(c);
    c = client_new(v);
    request(v, c, &a, GET("/denied"), 401);
    answer_free(&a);
    request(v, c, &a, POST_OF(2) "ok", 200);
    assert_string_equal(a.body, "ok");
    answer_free(&a);
    request(v, c, &a, "GET /denied HTTP/1.0\r\n\r\n", 401); /* unless the client does not want that */
    answer_free(&a);
    client_until_closed(v, c);
    client_free(c);
    client_free(expects);
    client_free(sends);
    server_free(v);
}

/* ---- output ---- */

/* Clients that do not read: each may have 1 MiB, more only while all together are below the limit. */
static void all_outputs_together_have_a_limit(void **state)
{
    struct http_opts o = {.outputs_bytes_max = 4 << 20};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c[3];
    struct tag *t[3];
    static char piece[65536];
    (void)state;
    for (int i = 0; i < 3; i++) {
        c[i] = client_new(v);
        t[i] = send_waiting(v, c[i], GET("/stream"));
        for (int j = 0; j < 200 && !t[i]->n_finished; j++) { /* 12.5 MiB; the kernel takes some */
            http_write(t[i]->r, piece, sizeof piece);
            pump(v, -1, 0);
            assert_true(stats_of(v).queued_bytes < (4 << 20) + 65600);
            if (i == 0 && stats_of(v).queued_bytes > 3 << 20)
                break;
        }
    }
    assert_int_equal(t[0]->n_disconnected, 0); /* it has stopped in time */
    assert_int_equal(t[1]->n_disconnected, 1);
    assert_int_equal(t[2]->n_disconnected, 1);
    tag_end(t[0]);
    for (int i = 0; i < 3; i++)
        client_free(c[i]);
    UNTIL(v, http_connections(v->h) == 0);
    assert_int_equal(stats_of(v).queued_bytes, 0);
    server_free(v);
}

/* The parts are sent in their order, and their memory is taken over. */
static void a_response_in_parts_is_whole(void **state)
{
    struct http_opts o = {0};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct str part[4] = {0};
    struct answer a;
    (void)state;
    struct tag *t = send_waiting(v, c, GET("/wait"));
    str_add_text(&part[0], "begin ");
    for (int i = 0; i < 1000000; i++)
        str_add_text(&part[2], "0123456789");
    str_add_text(&part[3], " end");
    t->answered = true;
    http_reply_parts(t->r, 200, "text/plain", part, 4);
    for (int i = 0; i < 4; i++)
        assert_null(part[i].p);
    answer_read(v, c, &a);
    assert_int_equal(a.n_body, 6 + 10000000 + 4);
    assert_memory_equal(a.body, "begin 0123456789", 16);
    assert_string_equal(a.body + 6 + 10000000 - 1, "9 end");
    answer_free(&a);
    request_echo(v, c);
    client_free(c);
    server_free(v);
}

static void a_silent_event_stream_gets_comments(void **state)
{
    static const char *const type[] = {"text/event-stream", "application/x-ndjson"};
    struct http_opts o = {.keepalive_s = 0.2};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct server *v = server_new(&o, "127.0.0.1:0");
        struct client *c = client_new(v);
        struct answer a;
        v->stream_type = type[i];
        struct tag *t = send_waiting(v, c, GET("/stream"));
        answer_head(v, c, &a); /* at once */
        assert_int_equal(a.status, 200);
        run_ms(v, 500);
        for (int j = 0; j < 5; j++) { /* 100 ms apart: no comment */
            http_write(t->r, "{}", 2);
            run_ms(v, 100);
        }
        tag_end(t);
        while (answer_chunk(v, c, &a)) {
        }
        assert_string_equal(a.body, i ? "{}{}{}{}{}" : ": keep-alive\n\n: keep-alive\n\n{}{}{}{}{}");
        answer_free(&a);
        client_free(c);
        server_free(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_connection_replaces_the_one_that_is_idle_for_longest),
        cmocka_unit_test(without_an_old_idle_connection_a_new_one_gets_503),
        cmocka_unit_test(one_address_cannot_lock_out_another),
        cmocka_unit_test(unix_sockets_have_no_limit_of_an_address),
        cmocka_unit_test(a_trickled_head_ends_with_408),
        cmocka_unit_test(all_bodies_together_have_a_limit),
        cmocka_unit_test(a_request_is_refused_before_its_body),
        cmocka_unit_test(all_outputs_together_have_a_limit),
        cmocka_unit_test(a_response_in_parts_is_whole),
        cmocka_unit_test(a_silent_event_stream_gets_comments),
    };
    alarm(120); /* a hang fails the test too */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
