/* Requests that another server may parse differently are refused, and no later byte is parsed as a request. The section
 * of RFC 9112 is given with each group of cases; http.h states the response. */
#include "http_client.h"

static const struct http_opts plain = {0};

#define NEXT "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST(headers) "POST /echo HTTP/1.1\r\nHost: a\r\n" headers "\r\n"
#define CHUNKED "Transfer-Encoding: chunked\r\n"
#define CHUNKS "4\r\nbody\r\n0\r\n\r\n"
#define OF(text) (text), sizeof(text) - 1

struct malformed {
    const char *text;
    size_t n;
    int status;
    const char *why; /* a part of the error text */
};

static const struct malformed malformed[] = {
    /* length of the body: 6.1, 6.3 */
    {OF(POST("Content-Length: 14\r\nTransfer-Encoding: chunked\r\n") CHUNKS), 400, "more than one"},
    {OF(POST("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") CHUNKS), 400, "more than one"},
    {OF(POST("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n") CHUNKS), 400, "more than one"},
    {OF(POST("Transfer-Encoding: chunked\r\nX: y\r\ncontent-LENGTH: 4\r\n") CHUNKS), 400, "more than one"},
    {OF(POST("Transfer-Encoding: chunked\r\nContent-Length: x\r\n") CHUNKS), 400, "Content-Length"},
    {OF(POST("Content-Length: 4\r\nContent-Length: 40\r\n") "body"), 400, "more than one"},
    {OF(POST("Content-Length: 40\r\nContent-Length: 4\r\n") "body"), 400, "more than one"},
    {OF(POST("Content-Length: 4\r\nContent-Length: 4\r\n") "body"), 400, "more than one"},
    {OF(POST("Content-Length: 4\r\nContent-Length: x\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: 4, 4\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: +4\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: -1\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: 0x4\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: 4abc\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: 4.0\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: \r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: 00000000000000000000004\r\n") "body"), 400, "Content-Length"},
    {OF(POST("Content-Length: 100000000000000000000000\r\n") "body"), 413, "limit"},
    {OF(POST("Content-Length: 18446744073709551620\r\n") "body"), 413, "limit"},
    {OF(POST("Content-Length: 18446744073709551615\r\n") "body"), 413, "limit"},
    {OF(POST("Content-Length: 9999999999999999999\r\n") "body"), 413, "limit"},
    {OF(POST("Transfer-Encoding: gzip\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: identity\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: xchunked\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: chunkedx\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: gzip, chunked\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: chunked, gzip\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: \"chunked\"\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: \vchunked\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding:\r\n") CHUNKS), 501, "Transfer-Encoding"},
    {OF(POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n") CHUNKS), 400, "more than one"},
    {OF(POST("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n") CHUNKS), 400, "more than one"},
    {OF("POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKS), 400, "HTTP/1.0"},
    {OF(POST("X: y\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n") CHUNKS), 400, "more than one"},
    /* chunks: 7.1; a bare LF ends no line here */
    {OF(POST(CHUNKED) "xyz\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "-4\r\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "+4\r\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "0x4\r\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) " 4\r\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "4 \r\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "4 4;a\r\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "4\nbody\r\n0\r\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "4\r\nbody\n0\r\n\r\n"), 400, "CR LF"},
    {OF(POST(CHUNKED) "4\r\nbody0\r\n\r\n"), 400, "CR LF"},
    {OF(POST(CHUNKED) "4\r\nbody\r\n0\n\r\n"), 400, "chunk size"},
    {OF(POST(CHUNKED) "4\r\nbody\r\n0\r\n\n"), 400, "trailer"},
    {OF(POST(CHUNKED) "4\r\nbody\r\n0\r\nA: b\n\r\n"), 400, "trailer"},
    {OF(POST(CHUNKED) "4\r\nbody\r\n0\r\n A: b\r\n\r\n"), 400, "trailer"},
    {OF(POST(CHUNKED) "4\r\nbody\r\n0\r\nA\r\n\r\n"), 400, "trailer"},
    {OF(POST(CHUNKED) "4\rbody\r\n0\r\n\r\n"), 400, "CR without LF"},
    {OF(POST(CHUNKED) "4;a\nbody\r\n0\r\n\r\n"), 400, "extension"},
    {OF(POST(CHUNKED) "4;a\0\r\nbody\r\n0\r\n\r\n"), 400, "extension"},
    {OF(POST(CHUNKED) "10000000000000004\r\nbody\r\n0\r\n\r\n"), 413, "limit"}, /* 2 to the 64 and 4 */
    {OF(POST(CHUNKED) "ffffffffffffffff\r\nbody\r\n0\r\n\r\n"), 413, "limit"},
    /* header names: 5.1 */
    {OF(POST("Content-Length : 4\r\n") "body"), 400, "name"},
    {OF(POST("Content-Length\t: 4\r\n") "body"), 400, "name"},
    {OF(POST("Transfer-Encoding : chunked\r\n") CHUNKS), 400, "name"},
    {OF(POST("Transfer-Encoding : chunked\r\nContent-Length: 4\r\n") CHUNKS), 400, "name"},
    {OF(POST(": foo\r\n")), 400, "name"},
    {OF(POST(": foo\r\nX: y\r\n")), 400, "name"},
    {OF(POST("X\rY: foo\r\n")), 400, "name"},
    {OF(POST("X(Y: foo\r\n")), 400, "name"},
    {OF(POST("X\xc3\xa9: foo\r\n")), 400, "name"},
    {OF("GET /echo HTTP/1.1\r\n Host: a\r\n\r\n"), 400, "name"}, /* 2.2 */
    /* values: RFC 9110, 5.5; folded lines: 5.2 */
    {OF(POST("X: a\0b\r\n")), 400, "NUL"},
    {OF(POST("X: a\0b: c\r\nContent-Length: 4\r\n") "body"), 400, "NUL"},
    {OF(POST("X: \0\r\nContent-Length: 4\r\n") "body"), 400, "NUL"},
    {OF(POST("X: a\0\r\n")), 400, "NUL"},
    {OF(POST("Content-Length: 4\0000\r\n") "body"), 400, "NUL"},
    {OF("GET /echo HTTP/1.1\r\nHost: a\0b\r\n\r\n"), 400, "NUL"},
    {OF(POST("X: y\rTransfer-Encoding: chunked\r\n")), 400, "CR"},
    {OF(POST("X: y\r\r\n")), 400, "CR"},
    {OF(POST("X: a\r\n b\r\n")), 400, "more lines"},
    {OF(POST("X: a\r\n \r\nY: c\r\n")), 400, "more lines"},
    {OF(POST("X: a\r\n\t\r\n")), 400, "more lines"},
    {OF(POST("Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n") CHUNKS), 400, "more lines"},
    {OF(POST("Content: 4\r\n -Length\r\n") "body"), 400, "more lines"},
    {OF("GET / HTTP/1.0\r\na:\r\n b\r\n\r\n"), 400, "more lines"},
    /* Host: 3.2 */
    {OF("GET /echo HTTP/1.1\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHostess: a\r\n\r\n"), 400, "Host"},
    {OF("GET http://a/echo HTTP/1.1\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHost: a b\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHost: a@b\r\n\r\n"), 400, "Host"},
    {OF("GET /echo HTTP/1.1\r\nHost: a, b\r\n\r\n"), 400, "Host"},
    /* method and target: 3.1, 3.2 */
    {OF("GET\0 /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "method"},
    {OF("GET\0T /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "method"},
    {OF("G\xffT /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "method"},
    {OF("GET\t /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "method"},
    {OF("GET /echo\0x HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "NUL"},
    {OF("GET /echo\0 HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "NUL"},
    {OF("GET /echo\0HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "NUL"},
    {OF("GET /echo%00/../x HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "NUL"},
    {OF("GET /echo\rx HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "control"},
    {OF("GET /echo HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "space"},
    {OF("GET /echo?a b HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "space"},
    {OF("GET http:///echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "host"},
    {OF("GET http://a%2fb/echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "host"},
    {OF("GET http://u@a/echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400, "host"},
};
enum { N_MALFORMED = sizeof malformed / sizeof *malformed };

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text++)
        n++;
    return n;
}

/* Expects one complete error response, formatted by opts.fail, and then the end of the connection. */
static void expect_refused(struct server *v, struct client *c, const struct malformed *w)
{
    struct answer a;
    struct tag *t = last(v);
    client_until_closed(v, c);
    if (c->reset || !c->n || count(c->p, "HTTP/1.1 ") != 1)
        fail_msg("%.70s: %s%s", w->text, c->reset ? "reset after " : "", c->n ? c->p : "nothing");
    answer_read(v, c, &a);
    if (a.status != w->status || !strstr(a.body, w->why))
        fail_msg("%.70s: %d %s", w->text, a.status, a.body);
    assert_string_equal(answer_header(&a, "Content-Type"), "text/plain");
    assert_string_equal(answer_header(&a, "Connection"), "close");
    assert_string_equal(answer_header(&a, "X-Test"), "yes"); /* added by opts.fail */
    assert_true(strstr(answer_header(&a, "Date"), " GMT") != NULL);
    assert_int_equal(c->n, 0);
    assert_int_equal(t->n_fail, 1);
    answer_free(&a);
}

static void nothing_after_a_malformed_request_is_parsed(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    (void)state;
    for (size_t i = 0; i < N_MALFORMED; i++) {
        struct client *c = client_new(v);
        char text[1000];
        memcpy(text, malformed[i].text, malformed[i].n);
        memcpy(text + malformed[i].n, NEXT, sizeof NEXT);
        assert_true(client_send(v, c, text, malformed[i].n + sizeof NEXT - 1));
        client_until_closed(v, c);
        if (v->n_tag != i + 1)
            fail_msg("%.70s: %zu requests", malformed[i].text, v->n_tag - i);
        expect_refused(v, c, &malformed[i]);
        client_free(c);
    }
    server_free(v);
}

/* Each byte arrives alone, after a valid request. */
static void a_malformed_request_sent_byte_by_byte_is_refused(void **state)
{
    struct server *v = server_new(&plain, "127.0.0.1:0");
    (void)state;
    for (size_t i = 0; i < N_MALFORMED; i++) {
        struct client *c = client_new(v);
        request_echo(v, c);
        for (size_t j = 0; j < malformed[i].n && client_send(v, c, malformed[i].text + j, 1); j++)
            pump(v, -1, 0);
        (void)client_send(v, c, NEXT, sizeof NEXT - 1);
        client_until_closed(v, c);
        if (v->n_tag != 2 * i + 2)
            fail_msg("%.70s: %zu requests", malformed[i].text, v->n_tag - 2 * i);
        expect_refused(v, c, &malformed[i]);
        client_free(c);
    }
    server_free(v);
}

static void the_malformed_one_of_many_requests_is_refused(void **state)
{
    static const struct malformed length = {OF(POST("Content-Length: no\r\n")), 400, "Content-Length"};
    static const char *const rest[] = {"\r\n", "\r\n", "1: a\r\n\r\n", ": a\r\nContent-Length: 2\r\n\r\nok"};
    static const char *const begin[] = {
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: no\r\n", "GET /echo HTTP/1.1\r\nHost: a\r\n",
        "GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nX-", "GET /echo HTTP/1.1\r\nHost"};
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct err e = {0};
    struct client *c[4], *wait = client_new(v), *head = client_new(v), *no = client_new(v);
    struct answer a;
    (void)state;
    OK(http_listen(&e, v->h, "127.0.0.1:0", 8));
    request_echo(v, wait);
    struct tag *t = send_waiting(v, wait, "POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
    send_text(v, head, POST("Content-Length: 2\r\n") "o");
    for (int i = 0; i < 4; i++) {
        c[i] = client_new(v);
        send_text(v, c[i], begin[i]);
    }
    run_ms(v, 30);
    send_text(v, no, length.text);
    client_until_closed(v, no);
    expect_refused(v, no, &length);
    run_ms(v, 30);
    assert_int_equal(v->n_tag, 3);
    for (int i = 3; i > 0; i--) {
        request(v, c[i], &a, rest[i], 200);
        answer_free(&a);
    }
    send_text(v, c[0], rest[0]);
    client_until_closed(v, c[0]);
    expect_refused(v, c[0], &length);
    request(v, head, &a, "k", 200);
    assert_string_equal(a.body, "ok");
    answer_free(&a);
    tag_reply(t, 200, "text/plain", "late", 4);
    answer_read(v, wait, &a);
    assert_string_equal(a.body, "late");
    answer_free(&a);
    for (int i = 0; i < 4; i++)
        client_free(c[i]);
    client_free(wait);
    client_free(head);
    client_free(no);
    server_free(v);
}

/* The limit of 32 KiB is for request line and headers together. */
static void oversized_headers_are_refused(void **state)
{
    static char text[33100] = "GET /echo HTTP/1.1\r\nHost: a\r\nCookie: a=";
    const struct malformed w = {.text = text, .status = 431, .why = "headers"};
    struct server *v = server_new(&plain, "127.0.0.1:0");
    size_t n = strlen(text);
    struct answer a;
    (void)state;
    for (size_t more = 0; more < 2; more++) {
        struct client *c = client_new(v);
        size_t end = 32768 - 4 + more;
        memset(text + n, 'x', end - n);
        strcpy(text + end, "\r\n\r\n" NEXT);
        send_text(v, c, text);
        if (more) {
            client_until_closed(v, c);
            expect_refused(v, c, &w);
        } else {
            answer_read(v, c, &a);
            assert_int_equal(a.status, 200);
            answer_free(&a);
        }
        client_free(c);
    }
    server_free(v);
}

/* A client that sends much before it reads receives the response, not a reset. */
static void unread_input_is_discarded_without_a_reset(void **state)
{
    static const struct malformed much[] = {
        {OF(POST("Content-Length: 9 \t9\r\n")), 400, "Content-Length"},
        {OF(POST("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n")), 400, "more than one"},
    };
    static char waste[1 << 20];
    struct server *v = server_new(&plain, "127.0.0.1:0");
    (void)state;
    for (size_t i = 0; i < sizeof much / sizeof *much; i++) {
        struct client *c = client_new(v);
        send_text(v, c, much[i].text);
        for (int j = 0; j < 8; j++)
            assert_true(client_send(v, c, waste, sizeof waste));
        client_until_closed(v, c);
        expect_refused(v, c, &much[i]);
        client_free(c);
    }
    server_free(v);
}

/* ---- valid requests ---- */

static void unusual_valid_requests_are_delivered(void **state)
{
    static const struct {
        const char *text, *what, *body;
    } right[] = {
        {"GET /echo HTTP/1.1\r\nHost:\r\n\r\n", "GET /echo", ""},
        {"GET /echo HTTP/1.1\r\nHost: a.test:8000 \r\n\r\n", "GET /echo", ""},
        {"GET /echo HTTP/1.1\r\nhOST:\t[::1]:80\r\n\r\n", "GET /echo", ""},
        {"GET /echo HTTP/1.1\r\nHost: a_b-c%20\r\n\r\n", "GET /echo", ""},
        {"GET /echo HTTP/1.1\nHost: a\nX: y\n\n", "GET /echo", ""}, /* 2.2: a bare LF ends a line */
        {"\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n", "GET /echo", ""},
        {POST("X: a: \"b\" \xc3\xa9 \t\r\n!#$%&'*+-.^_`|~9: ?\r\nY:\r\nContent-Length: 4\r\n") "body", "POST /echo",
         "body"},
        {POST("Content-Length:4\r\n") "body", "POST /echo", "body"},
        {POST("Content-Length: 0004\r\n") "body", "POST /echo", "body"},
        {POST("Content-Length: 4 \t\r\n") "body", "POST /echo", "body"}, /* white space after a value: 5.1 */
        {POST("Transfer-Encoding:  chunked \t \r\n") CHUNKS, "POST /echo", "body"},
        {POST(CHUNKED) "4 ; a=b\r\nbody\r\n0\t;c\r\n\r\n", "POST /echo", "body"}, /* extensions: 7.1.1 */
        {POST(CHUNKED) "4;a=\"b;c\"; d\r\nbody\r\n0;\r\n\r\n", "POST /echo", "body"},
        {POST(CHUNKED) "0000000000000000000004\r\nbody\r\n00\r\nA:\r\nB: c d\r\n\r\n", "POST /echo", "body"},
        {POST("Content-Length: 0\r\n"), "POST /echo", ""},
        {POST("transfer-encoding:\tCHUNKED\r\n") CHUNKS, "POST /echo", "body"},
        {POST("Transfer-Encoding: chunked\r\n") "4\r\nbody\r\n0\r\nContent-Length: 3\r\n\r\n", "POST /echo", "body"},
        {POST("Cookie: a=b; c=\"d\"\r\nContent-Length: 4\r\n") "body", "POST /echo", "body"},
        {"GET /echo?a=b&c=%20d+e HTTP/1.1\r\nHost: a\r\nCookie: x\r\n\r\n", "GET /echo", ""},
        {"GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n", "GET /echo", ""},
        {"M-SEARCH /echo HTTP/1.1\r\nHost: a\r\n\r\n", "M-SEARCH /echo", ""},
        {"GET /echo? HTTP/1.1\r\nHost: a\r\n\r\n", "GET /echo", ""},
        {"GET /%FF\xff HTTP/1.1\r\nHost: a\r\n\r\n", "GET /\xff\xff", ""},
        {"GET http://host/echo HTTP/1.1\r\nHost: a\r\n\r\n", "GET /echo", ""},
        {"GET HTTPS://host:1/a%2fb?x=http://y/z HTTP/1.1\r\nHost: a\r\n\r\n", "GET /a/b", ""},
        {"GET http://host HTTP/1.1\r\nHost: a\r\n\r\n", "GET /", ""},
        {"GET http://host?x=/y HTTP/1.1\r\nHost: a\r\n\r\n", "GET /", ""},
        {"GET /http://host/echo HTTP/1.1\r\nHost: a\r\n\r\n", "GET /http://host/echo", ""},
        {"GET http%3a//host/echo HTTP/1.1\r\nHost: a\r\n\r\n", "GET http://host/echo", ""},
        {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS *", ""},
        {"GET /echo HTTP/1.2\r\nHost: a\r\n\r\n", "GET /echo", ""},
        {"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /echo", ""},
    };
    struct server *v = server_new(&plain, "127.0.0.1:0");
    struct client *c = client_new(v);
    struct answer a;
    (void)state;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        send_text(v, c, right[i].text);
        answer_read(v, c, &a);
        if (a.status != 200 || strcmp(a.body, right[i].body) != 0)
            fail_msg("%.70s: %d %s", right[i].text, a.status, a.body);
        assert_string_equal(last(v)->what, right[i].what);
        answer_free(&a);
    }
    /* Each byte alone, also of the empty lines before a request. */
    for (const char *p = "\r\n\r\nGET /echo HTTP/1.0\r\n\r\n"; *p; p++) {
        assert_true(client_send(v, c, p, 1));
        run_ms(v, 1);
    }
    answer_read(v, c, &a);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    client_until_closed(v, c);
    client_free(c);
    server_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_after_a_malformed_request_is_parsed),
        cmocka_unit_test(a_malformed_request_sent_byte_by_byte_is_refused),
        cmocka_unit_test(the_malformed_one_of_many_requests_is_refused),
        cmocka_unit_test(oversized_headers_are_refused),
        cmocka_unit_test(unread_input_is_discarded_without_a_reset),
        cmocka_unit_test(unusual_valid_requests_are_delivered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
