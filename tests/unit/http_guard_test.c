/* Requests that pages of other sites send from a user's browser: DNS rebinding (the page's own name as Host) and
 * cross-site requests (Origin, which a browser adds to each POST). The allowed origins are Ollama's. */
#include "http_client.h"

struct browser {
    const char *headers, *hosts, *origins;
    int status;
};

static const struct browser cases[] = {
    /* Host */
    {"Host: localhost", "", NULL, 200},
    {"Host: LOCALHOST:8000", "", NULL, 200},
    {"Host: localhost.", "", NULL, 200},
    {"Host: a.localhost:1", "", NULL, 200},
    {"Host: 127.0.0.1:8000", "", NULL, 200},
    {"Host: 192.168.1.1", "", NULL, 200},
    {"Host: [::1]:80", "", NULL, 200},
    {"Host:", "", NULL, 200},
    {"Host: attacker.example", "", NULL, 403},
    {"Host: attacker.example:8000", "", NULL, 403},
    {"Host: localhost.attacker.example", "", NULL, 403},
    {"Host: xlocalhost", "", NULL, 403},
    {"Host: 127.0.0.1.attacker.example", "", NULL, 403},
    {"Host: 127.1", "", NULL, 403},
    {"Host: [::1", "", NULL, 403},
    {"Host: llm.example", "other.example, llm.example", NULL, 200},
    {"Host: LLM.example:443", "other.example, llm.example", NULL, 200},
    {"Host: llm.example", "other.example,llm.example.org", NULL, 403},
    {"Host: attacker.example", "*", NULL, 200},
    {"Host: attacker.example", NULL, NULL, 200},
    /* Origin */
    {"Host: localhost\r\nOrigin: http://evil.example", "", NULL, 403},
    {"Host: localhost\r\nOrigin: null", "", NULL, 403},
    {"Host: localhost\r\nOrigin: http://localhost.evil.example", "", NULL, 403},
    {"Host: localhost\r\nOrigin: http://127.0.0.1.evil.example:80", "", NULL, 403},
    {"Host: localhost\r\nOrigin: chrome-extension://abc", "", NULL, 403},
    {"Host: localhost\r\nOrigin: http://evil.example", "*", NULL, 403},
    {"Host: localhost\r\nOrigin: http://localhost:3000", "", NULL, 200},
    {"Host: localhost\r\nOrigin: https://127.0.0.1", "", NULL, 200},
    {"Host: localhost\r\nOrigin: http://[::1]:5", "", NULL, 200},
    {"Host: localhost\r\nOrigin: app://obsidian.md", "", NULL, 200},
    {"Host: localhost\r\nOrigin: vscode-webview://abc", "", NULL, 200},
    {"Host: 10.0.0.1:8000\r\nOrigin: http://10.0.0.1:8000", "", NULL, 200}, /* its own page */
    {"Host: 10.0.0.1:8000\r\nOrigin: http://10.0.0.1:80", "", NULL, 403},
    {"Host: localhost\r\nOrigin: http://a.example", "", "http://b.example, http://a.example", 200},
    {"Host: localhost\r\nOrigin: http://c.example", "", "http://b.example,http://a.example", 403},
    {"Host: localhost\r\nOrigin: null", "", "*", 200},
    {"Host: localhost\r\nOrigin: http://evil.example", NULL, NULL, 200},
};

static void expect_status(struct server *v, const char *text, int status, const char *what)
{
    struct client *c = client_new(v);
    struct answer a;
    send_text(v, c, text);
    answer_read(v, c, &a);
    if (a.status != status)
        fail_msg("%d to %s: %s", a.status, what, a.body);
    if (status == 403) {
        assert_int_equal(last(v)->n_fail, 1);
        assert_string_equal(answer_header(&a, "Connection"), "close");
    }
    answer_free(&a);
    client_free(c);
}

static void pages_of_other_sites_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct browser *b = &cases[i];
        struct http_opts o = {.hosts = b->hosts, .origins = b->origins};
        struct server *v = server_new(&o, "127.0.0.1:0");
        char text[400];
        snprintf(text, sizeof text,
                 "POST /echo HTTP/1.1\r\n%s\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}", b->headers);
        expect_status(v, text, b->status, b->headers);
        server_free(v);
    }
}

/* A target with a host has precedence over the header (RFC 9112, 3.2.2). */
static void the_host_of_the_target_counts(void **state)
{
    struct http_opts o = {.hosts = ""};
    struct server *v = server_new(&o, "127.0.0.1:0");
    (void)state;
    expect_status(v, "GET http://attacker.example/echo HTTP/1.1\r\nHost: localhost\r\n\r\n", 403, "a foreign target");
    expect_status(v, "GET http://localhost:1/echo HTTP/1.1\r\nHost: attacker.example\r\n\r\n", 200, "a local target");
    expect_status(v, "GET /echo HTTP/1.0\r\n\r\n", 200, "HTTP/1.0");
    server_free(v);
}

/* What counts is the address that the client has reached, not that of the listener. A Unix socket has no browsers. */
static void any_host_is_served_at_other_addresses(void **state)
{
    struct http_opts o = {.hosts = ""};
    struct server *v = server_new(&o, ":0");
    char path[80];
    (void)state;
    expect_status(v, "GET /echo HTTP/1.1\r\nHost: attacker.example\r\n\r\n", 403, "all addresses, by the loopback");
    server_free(v);
    snprintf(path, sizeof path, "unix:/tmp/http_guard_test.%d", (int)getpid());
    v = server_new(&o, path);
    expect_status(v, "GET /echo HTTP/1.1\r\nHost: any.example\r\n\r\n", 200, "a Unix socket");
    server_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_of_other_sites_are_refused),
        cmocka_unit_test(the_host_of_the_target_counts),
        cmocka_unit_test(any_host_is_served_at_other_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
