/* Responses of the OpenAI dialect that are large: limits of log-probabilities and of bytes, and log-probabilities that
 * are written in pieces. And the headers of a stream, which are sent when it is accepted. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "unit/openai_fake.h"
#include "unit/prompt_build.h"

#define COMPLETIONS "/v1/completions"
#define CHAT "/v1/chat/completions"
#define ASK_A "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define N 3000
#define TOP 2

static struct http_request r;
static uint32_t ids[N];

static void begin(const char *path, const char *body)
{
    r = (struct http_request){0};
    fake_ask(&server, &r, "POST", path, body);
    if (!fake_call.state)
        fail_msg("%s: %.*s", body, (int)r.out.n, r.out.p);
}

/* The result of tokenize. */
static void prompt(uint32_t n)
{
    struct prompt_body body;
    const struct wire_prompt q = prompt_build(&body, ids, n);
    fake_call.ops->prompt(&fake_call, 0, &q);
    free(body.p);
}

/* A value that float and its decimal spelling have exactly. */
static float value(uint32_t i)
{
    return -(float)(i % 512) / 8;
}

/* A frame with the log-probabilities of n positions, from position `from` on. */
static void logprobs(uint32_t from, uint32_t n, bool is_prompt)
{
    static struct wire_logprob lp[N];
    static struct wire_top top[N][TOP];
    for (uint32_t i = 0; i < n; i++) {
        lp[i] = (struct wire_logprob){
            .id = ids[(from + i) % N], .logprob = value(from + i), .top = top[i], .n_top = TOP, .rank = 9};
        for (uint32_t k = 0; k < TOP; k++)
            top[i][k] = (struct wire_top){'A' + (from + i + k) % 26, value(from + i + k)};
    }
    const struct wire_out o = {
        .prompt = is_prompt, .ids = ids, .n_id = n, .text = wire_str_of("t"), .lp = lp, .n_lp = n};
    fake_call.ops->out(&fake_call, 0, 0, &o);
}

static void end(uint32_t n_prompt, uint32_t n_answer)
{
    const struct wire_end w = {.reason = WIRE_LENGTH, .prompt_tokens = n_prompt, .completion_tokens = n_answer};
    fake_call.ops->end(&fake_call, 0, 0, &w);
    fake_done();
}

static json_t *response(void)
{
    json_error_t je;
    json_t *o = json_loadb(r.out.p, r.out.n, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        fail_msg("%s: %.*s", je.text, (int)r.out.n, r.out.p);
    return o;
}

/* ---- pieces ---- */

/* A frame with a long prompt, the next one before it is written: all in their order. */
static void log_probabilities_of_a_long_prompt_are_in_order(void **state)
{
    (void)state;
    server.o.logprob_entries_max = 1000000;
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":2,\"logprobs\":1,\"echo\":true,\"max_tokens\":2}");
    prompt(N - 2);
    logprobs(0, N - 2, true);
    assert_true(fake_call.works); /* not at once */
    logprobs(N - 2, 1, false);
    assert_true(fake_call.ops->work(&fake_call));
    logprobs(N - 1, 1, false);
    end(N - 2, 2);
    json_t *o = response(), *c = json_array_get(json_object_get(o, "choices"), 0);
    const json_t *lp = json_object_get(c, "logprobs"), *of_prompt = json_object_get(c, "prompt_logprobs");
    const json_t *values = json_object_get(lp, "token_logprobs"), *offsets = json_object_get(lp, "text_offset");
    assert_int_equal(json_array_size(values), N);
    assert_int_equal(json_array_size(json_object_get(lp, "top_logprobs")), N);
    assert_int_equal(json_array_size(of_prompt), N - 2);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(json_real_value(json_array_get(values, i)) == (double)value(i));
        assert_true(!i || json_integer_value(json_array_get(offsets, i)) >=
                              json_integer_value(json_array_get(offsets, i - 1)));
    }
    for (uint32_t i = 0; i < N - 2; i++) {
        char key[12];
        snprintf(key, sizeof key, "%u", 'A' + i % 26);
        const json_t *best = json_object_get(json_array_get(of_prompt, i), key);
        assert_true(json_real_value(json_object_get(best, "logprob")) == (double)value(i));
        assert_int_equal(json_integer_value(json_object_get(best, "rank")), 1);
    }
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "usage"), "completion_tokens")), 2);
    json_decref(o);
    fake_free(&r);
}

static void a_disconnect_frees_what_is_not_written(void **state)
{
    (void)state;
    server.o.logprob_entries_max = 1000000;
    begin(CHAT, "{" ASK_A ",\"prompt_logprobs\":2}");
    prompt(N);
    logprobs(0, N, true);
    assert_true(fake_call.ops->work(&fake_call));
    fake_gone(); /* the sanitizers check the memory */
    fake_free(&r);
}

/* ---- limits ---- */

static void expect_refused(const char *param, const char *const *parts)
{
    json_t *o = response(), *e = json_object_get(o, "error");
    assert_int_equal(r.status, 400);
    assert_string_equal(json_string_value(json_object_get(e, "param")), param);
    for (; *parts; parts++)
        if (!strstr(json_string_value(json_object_get(e, "message")), *parts))
            fail_msg("%s, expected %s", json_string_value(json_object_get(e, "message")), *parts);
    json_decref(o);
    fake_gone();
    fake_free(&r);
}

static void too_many_log_probabilities_are_refused(void **state)
{
    static const struct {
        const char *path, *body, *param;
        uint32_t most; /* tokens of a prompt that are accepted */
    } cases[] = {
        {COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":2}", "prompt_logprobs", 500},
        {CHAT, "{" ASK_A ",\"prompt_logprobs\":20}", "prompt_logprobs", 50},
        {COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":0}", "prompt_logprobs", 1000},
        {COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":5}", "logprobs", 200},
        {COMPLETIONS, "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":5,\"n\":4,\"stream\":true}", "logprobs", 50},
        {COMPLETIONS, "{\"prompt\":\"a\",\"return_token_ids\":true,\"n\":5}", "return_token_ids", 200},
    };
    (void)state;
    server.o.logprob_entries_max = 1000;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(cases[i].path, cases[i].body);
        prompt(cases[i].most);
        assert_false(r.over);
        fake_gone();
        fake_free(&r);
        begin(cases[i].path, cases[i].body);
        prompt(cases[i].most + 1);
        expect_refused(cases[i].param, (const char *const[]){"1000", "--max-logprob-entries", NULL});
    }
    /* An echoed prompt of a stream is written at once, so that its limit is lower, 32768 (stream(1)). */
    server.o.logprob_entries_max = 262144;
    static const char echo[] = "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":4,\"stream\":true}";
    begin(COMPLETIONS, echo);
    prompt(8192);
    assert_false(r.over);
    fake_gone();
    fake_free(&r);
    begin(COMPLETIONS, echo);
    prompt(8193);
    expect_refused("logprobs", (const char *const[]){"32772", "32768", NULL});
    server.o.logprob_entries_max = 1000;
    /* Those of the answer are counted as they come, if it is not streamed. */
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2,\"max_tokens\":2000}");
    prompt(5);
    logprobs(0, 500, false);
    assert_false(r.over);
    logprobs(500, 1, false);
    expect_refused("logprobs", (const char *const[]){"1002", "1000", "stream", NULL});
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2,\"max_tokens\":2000,\"stream\":true}");
    prompt(5);
    for (int i = 0; i < 3; i++)
        logprobs(0, 500, false);
    assert_false(r.over);
    fake_gone();
    fake_free(&r);
}

static void responses_without_room_are_refused(void **state)
{
    (void)state;
    server.o.logprob_entries_max = 1000000;
    fake_held_max = 50000;
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":2}");
    prompt(N);
    logprobs(0, N, true);
    while (!r.over)
        assert_true(fake_call.ops->work(&fake_call));
    fake_held_max = INT64_MAX;
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.headers, "Retry-After: 1\n"));
    fake_gone();
    fake_free(&r);
}

/* ---- the begin of a stream ---- */

static void a_stream_begins_when_it_is_accepted(void **state)
{
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"stream\":true}");
    prompt(5);
    assert_false(r.begun);
    fake_call.ops->begin(&fake_call);
    assert_true(r.begun && r.status == 200 && !r.out.n);
    assert_string_equal(r.type, "text/event-stream; charset=utf-8");
    fake_fail(0, 500, 0, "the worker failed"); /* too late for a status */
    assert_true(r.over);
    assert_non_null(strstr(r.out.p, "data: {\"error\":{\"message\":\"the worker failed\""));
    assert_non_null(strstr(r.out.p, "data: [DONE]\n\n"));
    fake_free(&r);
    /* A response that is not streamed waits, and so does one that is refused first. */
    begin(COMPLETIONS, "{\"prompt\":\"a\"}");
    fake_call.ops->begin(&fake_call);
    assert_false(r.begun);
    fake_gone();
    fake_free(&r);
    begin(CHAT, "{" ASK_A ",\"stream\":true}");
    fake_fail(0, 429, 1, "the queue is full");
    assert_int_equal(r.status, 429);
    fake_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_probabilities_of_a_long_prompt_are_in_order),
        cmocka_unit_test(a_disconnect_frees_what_is_not_written),
        cmocka_unit_test(too_many_log_probabilities_are_refused),
        cmocka_unit_test(responses_without_room_are_refused),
        cmocka_unit_test(a_stream_begins_when_it_is_accepted),
    };
    for (uint32_t i = 0; i < N; i++)
        ids[i] = 'a' + i % 20;
    return cmocka_run_group_tests(tests, fake_setup, fake_teardown);
}
