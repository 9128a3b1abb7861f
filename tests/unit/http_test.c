/* The HTTP server with correct, slow, malformed and disconnecting clients. The expectations follow RFC 9110 and 9112,
 * the Fetch standard (CORS), and http.h. TLS, shutdown and addresses are in http_listen_test.c. */
#include "http_client.h"

static const struct http_opts plain = {0};

/* ---- valid requests ---- */

static void a_connection_serves_many_requests(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    request(v, c, &a, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nfirst", 200);
    assert_string_equal(a.body, "first");
    answer_free(&a);
    send_text(v, c,
              "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\noneGET /wait HTTP/1.1\r\nHost: a\r\n\r\n"
              "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nthree");
    UNTIL(v, v->n_tag == 3);
    run_ms(v, 50);
    assert_int_equal(v->n_tag, 3); /* the pipelined request is not delivered before this response */
    tag_reply(last(v), 202, "text/plain", "two", 3);
    static const char *const bodies[] = {"one", "two", "three"};
    for (int i = 0; i < 3; i++) {
        answer_read(v, c, &a);
        assert_string_equal(a.body, bodies[i]);
        answer_free(&a);
    }
    request(v, c, &a, "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200);
    answer_free(&a);
    client_until_closed(v, c);
    UNTIL(v, http_connections(v->h) == 0);
    client_free(c);
    server_free(v);
}

static void a_chunked_body_is_delivered(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    static const char text[] =
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "4;ext=1\r\nWiki\r\n6\r\npedia \r\n0E\r\nin \r\n\r\nchunks.\r\n0\r\nTrailer-A: b\r\n\r\n";
    request(v, c, &a, text, 200);
    assert_string_equal(a.body, "Wikipedia in \r\n\r\nchunks.");
    answer_free(&a);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_true(client_send(v, c, text + i, 1));
        run_ms(v, 0);
        pump(v, -1, 0);
    }
    answer_read(v, c, &a);
    assert_string_equal(a.body, "Wikipedia in \r\n\r\nchunks.");
    answer_free(&a);
    client_free(c);
    server_free(v);
}

static void a_large_body_is_delivered_whole(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    size_t n = (size_t)9 << 20;
    char *body = malloc(n);
    (void)state;
    for (size_t i = 0; i < n; i++)
        body[i] = (char)(i * 2654435761u >> 13);
    send_text(v, c, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9437184\r\n\r\n");
    assert_true(client_send(v, c, body, n));
    answer_read(v, c, &a);
    assert_int_equal(a.n_body, n);
    assert_memory_equal(a.body, body, n);
    answer_free(&a);
    free(body);
    client_free(c);
    server_free(v);
}

static void accessors_return_the_parts_of_a_request(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    (void)state;
    uint64_t before = time_now_ns();
    send_text(v, c,
              "PUT /a%20b/%C3%A9?x=1&empty=&bare&y=a%26b HTTP/1.1\r\nHost: a\r\nX-Some: Value\r\nContent-Length: "
              "1\r\n\r\n");
    run_ms(v, 20);
    assert_int_equal(v->n_tag, 0);
    send_text(v, c, "z");
    UNTIL(v, v->n_tag == 1);
    assert_string_equal(last(v)->what, "PUT /a b/\xc3\xa9");
    assert_string_equal(last(v)->peer, "127.0.0.1");
    assert_int_equal(last(v)->dialect, 7);
    struct tag *t =
        send_waiting(v, c, "GET /wait?x=1&empty=&bare&y=a%26b HTTP/1.1\r\nHost: a\r\nX-Some: Value\r\n\r\n");
    assert_string_equal(http_path(t->r), "/wait");
    assert_string_equal(http_header(t->r, "x-sOME"), "Value");
    assert_null(http_header(t->r, "X-Other"));
    assert_in_range(http_arrived_ns(t->r), before, time_now_ns());
    size_t n;
    assert_string_equal(http_body(t->r, &n), "");
    assert_int_equal(n, 0);
    tag_reply(t, 204, NULL, NULL, 0);
    client_free(c);
    server_free(v);
}

static void expect_continue_is_answered_before_the_body(void **state)
{
    struct http_opts o = {.body_bytes_max = 1000};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    send_text(v, c, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    answer_line(v, c, "\r\n\r\n");
    assert_int_equal(strncmp(c->p, "HTTP/1.1 100 ", 13), 0);
    request(v, c, &a, "body", 200);
    assert_string_equal(a.body, "body");
    assert_int_equal(a.n_interim, 1);
    answer_free(&a);
    request(v, c, &a, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n", 413);
    assert_int_equal(a.n_interim, 0);
    answer_free(&a);
    client_free(c);
    server_free(v);
}

static void head_returns_headers_only(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    send_text(v, c, "HEAD /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    UNTIL(v, v->n_tag == 1);
    tag_reply(last(v), 200, "text/plain", "twelve bytes", 12);
    answer_head(v, c, &a);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Content-Length"), "12");
    assert_string_equal(answer_header(&a, "Content-Type"), "text/plain");
    request_echo(v, c); /* no body was sent */
    struct tag *t = send_waiting(v, c, "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    http_write(t->r, "data: 1\n\n", 9);
    run_ms(v, 30);
    assert_int_equal(t->n_disconnected, 0);
    http_write(t->r, "data: 2\n\n", 9);
    tag_end(t);
    answer_head(v, c, &a);
    assert_string_equal(answer_header(&a, "Content-Type"), "text/event-stream");
    client_until_closed(v, c);
    assert_int_equal(c->n, 0);
    client_free(c);
    server_free(v);
}

/* ---- CORS ---- */

#define PREFLIGHT                                                                                                      \
    "OPTIONS /echo HTTP/1.1\r\nHost: a\r\nOrigin: http://b.test\r\nAccess-Control-Request-Method: POST\r\n"            \
    "Access-Control-Request-Headers: content-type,authorization\r\n\r\n"
#define FROM(origin) "GET /echo HTTP/1.1\r\nHost: a\r\nOrigin: " origin "\r\n\r\n"

/* Checks the Access-Control-Allow-Origin of the response; "": absent. */
static void expect_origin(struct server *v, struct client *c, const char *text, const char *origin)
{
    struct answer a;
    send_text(v, c, text);
    answer_read(v, c, &a);
    assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin"), origin);
    answer_free(&a);
}

static void cors_allows_the_listed_origins(void **state)
{
    struct http_opts some = {.origins = "http://a.test, http://b.test,https://c.test:8443"}, all = {.origins = "*"};
    struct server *v = server_new(&some, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    request(v, c, &a, PREFLIGHT, 204);
    assert_int_equal(v->n_tag, 0);
    assert_string_equal(answer_header(&a, "Access-Control-Allow-Origin"), "http://b.test");
    assert_non_null(strstr(answer_header(&a, "Access-Control-Allow-Methods"), "POST"));
    assert_string_equal(answer_header(&a, "Access-Control-Allow-Headers"), "content-type,authorization");
    assert_string_equal(answer_header(&a, "Vary"), "Origin");
    answer_free(&a);
    expect_origin(v, c, FROM("http://a.test"), "http://a.test");
    expect_origin(v, c, FROM("https://c.test:8443"), "https://c.test:8443");
    expect_origin(v, c, FROM("https://c.test:844"), "");
    expect_origin(v, c, FROM("http://b.test.evil"), "");
    expect_origin(v, c, FROM("null"), "");
    expect_origin(v, c, GET("/echo"), "");
    /* OPTIONS without an Origin is delivered like any other method. */
    expect_origin(v, c, "OPTIONS /echo HTTP/1.1\r\nHost: a\r\n\r\n", "");
    assert_string_equal(last(v)->what, "OPTIONS /echo");
    client_free(c);
    server_free(v);
    v = server_new(&all, "127.0.0.1:0");
    c = client_new(v);
    expect_origin(v, c, FROM("null"), "*");
    expect_origin(v, c, PREFLIGHT, "*");
    client_free(c);
    server_free(v);
}

static void without_origins_there_are_no_cors_headers(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    (void)state;
    expect_origin(v, c, FROM("http://a.test"), "");
    expect_origin(v, c, PREFLIGHT, "");
    assert_string_equal(last(v)->what, "OPTIONS /echo"); /* delivered, so that the caller responds with 405 */
    client_free(c);
    server_free(v);
}

/* ---- requests that are refused ---- */

/* A client that sends much of its body before it reads still receives the response. */
static void a_content_length_over_the_limit_is_refused(void **state)
{
    struct http_opts o = {.body_bytes_max = 100000};
    struct server *v = server_new(&o, "127.0.0.1:0");
    static char waste[1 << 20];
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct client *c = client_new(v);
        struct answer a;
        send_text(v, c, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n");
        for (int j = 0; j < 10 * i; j++)
            assert_true(client_send(v, c, waste, sizeof waste));
        answer_read(v, c, &a);
        assert_int_equal(a.status, 413);
        assert_non_null(strstr(a.body, "100000"));
        assert_string_equal(answer_header(&a, "Connection"), "close");
        answer_free(&a);
        client_until_closed(v, c);
        assert_false(c->reset);
        client_free(c);
    }
    for (size_t i = 0; i < v->n_tag; i++)
        assert_int_equal(v->tag[i].n_fail, 1);
    UNTIL(v, http_connections(v->h) == 0);
    server_free(v);
}

/* The answer comes as soon as the limit is passed, and the client may send on until it has read it. */
static void a_chunked_body_over_the_limit_is_refused(void **state)
{
    struct http_opts o = {.body_bytes_max = 10000};
    struct server *v = server_new(&o, "127.0.0.1:0");
    struct client *c = client_new(v);
    static char chunk[1006] = "3e8\r\n";
    struct answer a;
    (void)state;
    memset(chunk + 5, 'x', 1000);
    for (int n = 10; n <= 11; n++) {
        send_text(v, c, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        for (int i = 0; i < n; i++) {
            assert_true(client_send(v, c, chunk, 1005));
            send_text(v, c, "\r\n");
        }
        if (n == 10)
            send_text(v, c, "0\r\n\r\n");
        answer_read(v, c, &a);
        assert_int_equal(a.status, n == 10 ? 200 : 413);
        assert_true(n == 10 || strstr(a.body, "10000"));
        answer_free(&a);
    }
    assert_int_equal(last(v)->n_fail, 1);
    client_until_closed(v, c);
    assert_false(c->reset);
    client_free(c);
    /* The size of a chunk alone is enough. */
    c = client_new(v);
    request(v, c, &a, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2711\r\n", 413);
    answer_free(&a);
    client_free(c);
    /* An endless body is cut off after a time, whatever the client sends. */
    c = client_new(v);
    size_t before = v->n_tag;
    uint64_t begin = time_now_ns();
    send_text(v, c, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    while (time_now_ns() - begin < 8000 * MS && client_send(v, c, chunk, 1005) && client_send(v, c, "\r\n", 2))
        run_ms(v, 1);
    assert_in_range(time_now_ns() - begin, 1000 * MS, 5000 * MS);
    assert_int_equal(v->n_tag, before + 1);
    client_free(c);
    server_free(v);
}

static void a_malformed_request_is_not_delivered(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    static char many[70000];
    (void)state;
    size_t n = (size_t)snprintf(many, sizeof many, "GET /echo HTTP/1.1\r\nHost: a\r\nX: ");
    memset(many + n, 'x', sizeof many - n - 1);
    static char uri[70000];
    memset(uri, 'u', sizeof uri - 1);
    memcpy(uri, "GET /", 5);
    static char headers[2000] = "GET /echo HTTP/1.1\r\nHost: a\r\n";
    for (int i = 0; i < 128; i++)
        strcat(headers, "X: y\r\n");
    strcat(headers, "\r\n");
    const struct {
        const char *text;
        int status;
    } c[] = {
        {"GARBAGE\r\n\r\n", 400},
        {"GET\r\n\r\n", 400},
        {"GET /\r\n\r\n", 400},
        {"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505},
        {"GET / JUNK/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /echo HTTP/1.1\r\nHost: a\r\nno colon here\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n\r\n", 413},
        {many, 431},
        {headers, 431},
        {uri, 414},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct client *k = client_new(v);
        client_send(v, k, c[i].text, strlen(c[i].text));
        client_until_closed(v, k);
        int status = k->n ? (int)strtol(k->p + 9, NULL, 10) : 0;
        if (status != c[i].status || !strstr(k->p, "\r\nX-Test: yes\r\n")) /* formatted by opts.fail */
            fail_msg("%d to %.40s", status, c[i].text);
        client_free(k);
    }
    for (size_t i = 0; i < v->n_tag; i++)
        assert_int_equal(v->tag[i].n_delivered, 0);
    server_free(v);
}

/* A request cut at any byte by a disconnect is never delivered. */
static void an_incomplete_request_is_never_delivered(void **state)
{
    static const char *const whole[] = {
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\ntwelve bytes",
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nseven\r\n3\r\nthe\r\n0\r\n\r\n"};
    struct server *v = server_new(&plain, "127.0.0.1:0");
    (void)state;
    struct client *half[400];
    size_t n_half = 0;
    for (size_t i = 0; i < 2; i++)
        for (size_t n = 0; n < strlen(whole[i]); n++)
            for (int how = 0; how < 3; how++) {
                struct client *c = client_new(v);
                assert_true(client_send(v, c, whole[i], n));
                if (n % 2)
                    pump(v, -1, time_now_ns() + MS);
                if (how == 2)
                    shutdown(c->fd, SHUT_WR);
                else
                    client_leave(c, how == 1);
                pump(v, -1, 0);
                if (how == 2)
                    half[n_half++] = c;
                else
                    client_free(c);
            }
    UNTIL(v, http_connections(v->h) == 0);
    while (n_half)
        client_free(half[--n_half]);
    assert_int_equal(v->n_tag, 0);
    server_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_connection_serves_many_requests),
        cmocka_unit_test(a_chunked_body_is_delivered),
        cmocka_unit_test(a_large_body_is_delivered_whole),
        cmocka_unit_test(accessors_return_the_parts_of_a_request),
        cmocka_unit_test(expect_continue_is_answered_before_the_body),
        cmocka_unit_test(head_returns_headers_only),
        cmocka_unit_test(cors_allows_the_listed_origins),
        cmocka_unit_test(without_origins_there_are_no_cors_headers),
        cmocka_unit_test(a_content_length_over_the_limit_is_refused),
        cmocka_unit_test(a_chunked_body_over_the_limit_is_refused),
        cmocka_unit_test(a_malformed_request_is_not_delivered),
        cmocka_unit_test(an_incomplete_request_is_never_delivered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
