/*
 * Server-sent events and their fields. Events: the examples of the HTML standard, "Server-sent events". Chunks: the
 * formats of OpenAI's documentation, vLLM and llama.cpp, written by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "load/load.h"

struct seen {
    char text[400];
    size_t n;
    int events, stop_at;
};

/* Collects events after '|', those of `error` after '!'. */
static bool collect(void *arg, const char *data, size_t n, bool error)
{
    struct seen *h = arg;
    assert_true(h->n + n + 2 < sizeof h->text);
    h->text[h->n++] = error ? '!' : '|';
    memcpy(h->text + h->n, data, n);
    h->n += n;
    h->text[h->n] = 0;
    return ++h->events != h->stop_at;
}

/* The result does not depend on how the bytes are divided. */
static void stream(const char *bytes, const char *want)
{
    struct err e;
    size_t n = strlen(bytes);
    for (size_t cut = 0; cut <= n; cut++) {
        struct load_sse s = {0};
        struct seen h = {0};
        assert_int_equal(load_sse_feed(&e, &s, collect, &h, bytes, cut), 0);
        assert_int_equal(load_sse_feed(&e, &s, collect, &h, bytes + cut, n - cut), 0);
        assert_string_equal(h.text, want);
        load_sse_free(&s);
    }
    struct load_sse s = {0};
    struct seen h = {0};
    for (size_t i = 0; i < n; i++) {
        char *one = malloc(1); /* so that a byte that is kept by its address shows */
        assert_non_null(one);
        *one = bytes[i];
        assert_int_equal(load_sse_feed(&e, &s, collect, &h, one, 1), 0);
        free(one);
    }
    assert_string_equal(h.text, want);
    load_sse_free(&s);
}

static void test_examples_of_the_standard_parse(void **state)
{
    (void)state;
    stream("data: YHOO\ndata: +2\ndata: 10\n\n", "|YHOO\n+2\n10");
    /* the third has no blank line after it, so it is not an event */
    stream(": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event",
           "|first event|second event");
    stream("data:test\n\ndata: test\n\n", "|test|test");
    stream("event: add\ndata: 73857293\r\n\r\nevent: remove\r\ndata: 2153\r\n\r\n", "|73857293|2153");
}

static void test_events_of_servers_parse(void **state)
{
    (void)state;
    stream("data: {\"a\":1}\n\n\n\n: ping\n\ndata: [DONE]\n\n", "|{\"a\":1}|[DONE]");
    stream("error: {\"code\":500}\n\ndata: x\n\n", "!{\"code\":500}|x");
    stream("data:\n\ndata\n\nretry: 10\n\n", "");
}

static void test_long_events_are_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct load_sse s = {0};
    struct seen h = {.stop_at = 2};
    assert_int_equal(load_sse_feed(&e, &s, collect, &h, "data: 1\n\ndata: 2\n\ndata: 3\n\n", 27), 0);
    assert_string_equal(h.text, "|1|2");
    size_t n = LOAD_EVENT_BYTES_MAX / 4 + 1;
    char *much = malloc(n);
    assert_non_null(much);
    memset(much, 'x', n);
    int rc = load_sse_feed(&e, &s, collect, &h, "data: ", 6);
    for (int i = 0; i < 4; i++)
        rc = rc ? rc : load_sse_feed(&e, &s, collect, &h, much, n);
    assert_int_equal(rc, ERR_PROTO);
    load_sse_free(&s);
    rc = 0;
    much[n - 1] = '\n';
    memcpy(much, "data: ", 6);
    for (int i = 0; i < 5 && !rc; i++)
        rc = load_sse_feed(&e, &s, collect, &h, much, n);
    assert_int_equal(rc, ERR_PROTO);
    load_sse_free(&s);
    free(much);
}

/* A copy without a NUL after it: the sanitizer detects a read past the end. */
static int read_event(struct load_event *ev, const char *text, char text_out[64])
{
    struct err e;
    size_t n = strlen(text);
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    int rc = load_event_read(&e, ev, copy, n);
    *text_out = 0;
    if (!rc && ev->text) {
        assert_true(ev->n_text < 64);
        memcpy(text_out, ev->text, ev->n_text);
        text_out[ev->n_text] = 0;
    }
    if (!rc && ev->error) {
        assert_true(ev->error >= copy && ev->error + ev->n_error <= copy + n);
        assert_true(ev->n_error < 64);
        memcpy(text_out, ev->error, ev->n_error);
        text_out[ev->n_error] = 0;
    }
    free(copy);
    return rc;
}

static void test_chunks_parse(void **state)
{
    (void)state;
    struct load_event ev;
    char t[64];
    assert_int_equal(
        read_event(&ev,
                   "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,\"model\":\"m\",\"choices\":"
                   "[{\"index\":0,\"text\":\" \\\"a\\\\\",\"logprobs\":null,\"finish_reason\":null,"
                   "\"stop_reason\":null}],\"usage\":null}",
                   t),
        0);
    assert_true(ev.choices && !ev.usage && !ev.done && !ev.error);
    assert_string_equal(t, " \\\"a\\\\");
    assert_int_equal(
        read_event(&ev,
                   " { \"choices\" : [ {\"delta\": {\"role\":\"assistant\",\"content\":\"\"} , \"index\" : 0},"
                   "{\"index\":1,\"delta\":{\"content\":\"no\"}}] } ",
                   t),
        0);
    assert_true(ev.choices && ev.text && ev.n_text == 0);
    assert_int_equal(
        read_event(&ev, "{\"choices\":[{\"finish_reason\":\"stop\",\"index\":0,\"delta\":{}}],\"created\":1}", t), 0);
    assert_true(ev.choices && !ev.text);
    assert_int_equal(read_event(&ev, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}", t), 0);
    assert_true(ev.choices && !ev.text);
    assert_int_equal(read_event(&ev, "[DONE]", t), 0);
    assert_true(ev.done && !ev.choices);
}

static void test_usage_parses(void **state)
{
    (void)state;
    struct load_event ev;
    char t[64];
    assert_int_equal(read_event(&ev,
                                "{\"choices\":[],\"usage\":{\"completion_tokens\":20,\"prompt_tokens\":1200,"
                                "\"total_tokens\":1220,\"prompt_tokens_details\":{\"cached_tokens\":9}},"
                                "\"timings\":{\"prompt_ms\":1.5e-3}}",
                                t),
                     0);
    assert_true(!ev.choices && ev.usage && ev.has_prompt && ev.has_completion);
    assert_int_equal(ev.prompt_tokens, 1200);
    assert_int_equal(ev.completion_tokens, 20);
    assert_int_equal(read_event(&ev, "{\"usage\":{\"prompt_tokens\":null},\"choices\":[{\"text\":\"x\"}]}", t), 0);
    assert_true(ev.choices && ev.usage && !ev.has_prompt && !ev.has_completion);
    assert_int_equal(read_event(&ev, "{\"usage\":{\"prompt_tokens\":123456789012345678901234567890}}", t), 0);
    assert_int_equal(read_event(&ev, "{\"usage\":7,\"choices\":null}", t), 0);
    assert_true(!ev.usage && !ev.choices);
}

static void test_errors_parse(void **state)
{
    (void)state;
    struct load_event ev;
    char t[64];
    assert_int_equal(read_event(&ev, "{\"error\":{\"message\":\"dead [}\",\"code\":500}}", t), 0);
    assert_string_equal(t, "{\"message\":\"dead [}\",\"code\":500}");
    assert_int_equal(read_event(&ev, "{\"error\":null,\"choices\":[{}]}", t), 0);
    assert_true(!ev.error && ev.choices);
    /* text that looks like a field is not one */
    assert_int_equal(
        read_event(&ev, "{\"choices\":[{\"text\":\"\\\"error\\\":{\\\"usage\\\":{}\"}],\"x\":{\"error\":1}}", t), 0);
    assert_true(ev.choices && !ev.error && !ev.usage);
    static const char *const bad[] = {"",
                                      "null",
                                      "[]",
                                      "{",
                                      "{\"choices\":[",
                                      "{\"choices\":[{\"text\":\"a",
                                      "{\"choices\":[{\"text\":\"a\\",
                                      "{\"choices\" 1}",
                                      "{\"choices\":[{}",
                                      "{\"choices\":[oh no",
                                      "{\"usage\":{\"prompt_tokens\":1",
                                      "{\"a\":]}",
                                      "{\"a\":1 \"b\":2}",
                                      "{\"a\":{\"b\":[1,2}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (read_event(&ev, bad[i], t) != ERR_PROTO)
            fail_msg("taken: %s", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_of_the_standard_parse),
        cmocka_unit_test(test_events_of_servers_parse),
        cmocka_unit_test(test_long_events_are_refused),
        cmocka_unit_test(test_chunks_parse),
        cmocka_unit_test(test_usage_parses),
        cmocka_unit_test(test_errors_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
