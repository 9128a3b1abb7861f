/*
 * Responses of the OpenAI dialect without HTTP: from frames to events and objects. Formats, names and the order of
 * role, finish reason, usage and end mark are those of vLLM's completion_stream_generator,
 * chat_completion_stream_generator and their protocol.py; log-probabilities those of OpenAI's API reference.
 */
#include <float.h>
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
#define STREAM "\"stream\":true"

static struct http_request r;

/* ---- frames ---- */

static void begin(const char *path, const char *body)
{
    r = (struct http_request){0};
    fake_ask(&server, &r, "POST", path, body);
    if (!fake_call.state)
        fail_msg("%s: %.*s", body, (int)r.out.n, r.out.p);
}

static void prompt(uint32_t line, const uint32_t *ids, uint32_t n)
{
    struct prompt_body body;
    const struct wire_prompt q = prompt_build(&body, ids, n);
    fake_call.ops->prompt(&fake_call, line, &q);
    free(body.p);
}

static void token(uint32_t line, uint32_t choice, uint32_t id, const char *text)
{
    const struct wire_out o = {.index = choice, .ids = &id, .n_id = 1, .text = wire_str_of(text)};
    fake_call.ops->out(&fake_call, line, choice, &o);
}

static void finish(uint32_t line, uint32_t choice, enum wire_reason reason, uint32_t n_prompt, uint32_t n_answer)
{
    const struct wire_end w = {.index = choice,
                               .reason = reason,
                               .prompt_tokens = n_prompt,
                               .completion_tokens = n_answer,
                               .cached_tokens = n_prompt - 1};
    fake_call.ops->end(&fake_call, line, choice, &w);
}

/* ---- responses ---- */

/* Parses the event at *at and advances *at; NULL: the end mark. */
static json_t *next_event(size_t *at)
{
    const char *p = r.out.p + *at, *end = memmem(p, r.out.n - *at, "\n\n", 2);
    json_error_t je;
    if (!end || strncmp(p, "data: ", 6))
        fail_msg("no event at %zu of %.*s", *at, (int)r.out.n, r.out.p);
    *at += (size_t)(end - p) + 2;
    if (end - p == 12 && !strncmp(p, "data: [DONE]", 12))
        return NULL;
    json_t *o = json_loadb(p + 6, (size_t)(end - p) - 6, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        fail_msg("%.*s: %s", (int)(end - p), p, je.text);
    return o;
}

/* Checks that `got` contains every member of `want`; lists must have the same length. */
static bool has(const json_t *got, const json_t *want)
{
    const char *key;
    json_t *v;
    if (json_is_object(want)) {
        json_object_foreach((json_t *)(uintptr_t)want, key, v)
        {
            if (!has(json_object_get(got, key), v))
                return false;
        }
        return json_is_object(got);
    }
    if (!json_is_array(want))
        return got && json_equal(got, want);
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!has(json_array_get(got, i), json_array_get(want, i)))
            return false;
    return json_is_array(got) && json_array_size(got) == json_array_size(want);
}

static void expect_has(json_t *got, const char *want)
{
    json_error_t je;
    json_t *o = json_loads(want, 0, &je);
    if (!o)
        fail_msg("%s: %s", want, je.text);
    if (!has(got, o))
        fail_msg("wants %s, got %s", want, json_dumps(got, 0));
    json_decref(o);
}

/* Checks that the stream is these events, then the end mark and nothing else. */
static void expect_events(const char *const *want, size_t n)
{
    size_t at = 0;
    json_t *first = NULL;
    assert_true(r.over && r.begun && r.status == 200);
    assert_string_equal(r.type, "text/event-stream; charset=utf-8");
    for (size_t i = 0; i < n; i++) {
        json_t *o = next_event(&at);
        if (!o)
            fail_msg("%zu events: %.*s", i, (int)r.out.n, r.out.p);
        expect_has(o, want[i]);
        if (!json_object_get(o, "error")) { /* the same id, time and model in each */
            static const char *const same[] = {"id", "object", "created", "model"};
            first = first ? first : json_incref(o);
            for (size_t k = 0; k < 4; k++)
                assert_true(json_equal(json_object_get(o, same[k]), json_object_get(first, same[k])));
        }
        json_decref(o);
    }
    if (next_event(&at))
        fail_msg("more than %zu events: %.*s", n, (int)r.out.n, r.out.p);
    assert_int_equal(at, r.out.n);
    json_decref(first);
    fake_free(&r);
}

#define expect(...)                                                                                                    \
    do {                                                                                                               \
        const char *const events_[] = {__VA_ARGS__};                                                                   \
        expect_events(events_, sizeof events_ / sizeof *events_);                                                      \
    } while (0)

static json_t *whole(void)
{
    json_error_t je;
    assert_true(r.over && r.status == 200);
    assert_string_equal(r.type, "application/json");
    json_t *o = json_loadb(r.out.p, r.out.n, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        fail_msg("%.*s: %s", (int)r.out.n, r.out.p, je.text);
    fake_free(&r);
    return o;
}

static void expect_whole(const char *want)
{
    json_t *o = whole();
    expect_has(o, want);
    json_decref(o);
}

/* ---- streams ---- */

static void a_chat_streams_one_event_per_token(void **state)
{
    (void)state;
    begin(CHAT, "{" ASK_A "," STREAM "}");
    fake_flush();
    assert_false(r.begun); /* nothing is sent before the first token, not even a status */
    token(0, 0, SAY_HELLO, "Hello");
    fake_flush();
    assert_true(r.begun && r.out.n > 0); /* no token waits for the next one */
    size_t sent = r.out.n;
    token(0, 0, SAY_WORLD, " world");
    finish(0, 0, WIRE_LENGTH, 3, 2);
    fake_flush();
    assert_true(r.out.n > sent);
    fake_done();
    expect("{\"object\":\"chat.completion.chunk\",\"model\":\"smol\",\"id\":\"chatcmpl-0f\",\"choices\":[{\"index\":0,"
           "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}",
           "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":null}]}",
           /* the finish reason is in the event of the last token if both arrive together */
           "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\" world\"},\"finish_reason\":\"length\"}]}");
}

static void an_end_without_tokens_is_an_event_of_its_own(void **state)
{
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\"," STREAM ",\"stream_options\":{\"include_usage\":true}}");
    token(0, 0, SAY_HELLO, "Hello");
    fake_flush();
    finish(0, 0, WIRE_STOP, 3, 1);
    fake_flush();
    fake_done();
    expect("{\"object\":\"text_completion\",\"id\":\"cmpl-0f\",\"choices\":[{\"index\":0,\"text\":\"Hello\","
           "\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null}]}",
           "{\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\",\"stop_reason\":null}]}",
           "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4,"
           "\"prompt_tokens_details\":{\"cached_tokens\":2}}}");
}

/* A client can count tokens by events: also those without text, and each of several that arrive together. */
static void each_frame_is_an_event_even_without_text(void **state)
{
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\"," STREAM "}");
    token(0, 0, SAY_HALF, "");
    token(0, 0, 172, "\xe2\x82\xac");
    token(0, 0, 97, "a");
    fake_flush();
    token(0, 0, SAY_END, "");
    finish(0, 0, WIRE_STOP, 1, 4);
    fake_done();
    expect("{\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}", "{\"choices\":[{\"text\":\"\xe2\x82\xac\"}]}",
           "{\"choices\":[{\"text\":\"a\"}]}", "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}]}");
}

static void continuous_usage_is_in_each_event(void **state)
{
    static const uint32_t ids[] = {1, 2, 3};
    (void)state;
    begin(CHAT, "{" ASK_A "," STREAM ",\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}}");
    prompt(0, ids, 3);
    token(0, 0, SAY_HELLO, "Hello");
    token(0, 0, SAY_WORLD, " world");
    finish(0, 0, WIRE_STOP, 3, 2);
    fake_done();
#define USED(n, all) "{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":" #n ",\"total_tokens\":" #all "}"
    expect(USED(0, 3) ",\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}", USED(1, 4) "}", USED(2, 5) "}",
           USED(2, 5) ",\"choices\":[]}");
    /* as in vLLM, no usage without include_usage */
    begin(CHAT, "{" ASK_A "," STREAM ",\"stream_options\":{\"continuous_usage_stats\":true}}");
    token(0, 0, SAY_HELLO, "Hello");
    finish(0, 0, WIRE_STOP, 3, 1);
    fake_done();
    assert_null(memmem(r.out.p, r.out.n, "usage", 5));
    expect("{}", "{}");
}

/* index = choice + n × prompt; choices begin and end independently, and usage sums all. */
static void prompts_and_choices_are_interleaved_by_index(void **state)
{
    static const uint32_t ids[] = {1, 2, 3};
    (void)state;
    begin(CHAT, "{" ASK_A ",\"n\":2," STREAM "}");
    token(0, 1, 97, "a");
    token(0, 0, 98, "b");
    fake_flush();
    finish(0, 0, WIRE_STOP, 3, 1);
    token(0, 1, 99, "c");
    finish(0, 1, WIRE_LENGTH, 3, 2);
    fake_done();
    expect("{\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}",
           "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}",
           "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}",
           "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"b\"},\"finish_reason\":null}]}",
           "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\"}]}",
           "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"c\"},\"finish_reason\":\"length\"}]}");

    begin(COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":2," STREAM ",\"stream_options\":{\"include_usage\":true}}");
    prompt(0, ids, 2);
    prompt(1, ids, 3);
    for (uint32_t i = 0; i < 4; i++) {
        token(i / 2, i % 2, 97 + i, (const char[]){(char)('a' + i), 0});
        finish(i / 2, i % 2, WIRE_LENGTH, 2 + i / 2, 1);
    }
    fake_done();
    expect("{\"choices\":[{\"index\":0,\"text\":\"a\"}]}", "{\"choices\":[{\"index\":1,\"text\":\"b\"}]}",
           "{\"choices\":[{\"index\":2,\"text\":\"c\"}]}", "{\"choices\":[{\"index\":3,\"text\":\"d\"}]}",
           "{\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":4,\"total_tokens\":9}}");
}

/* An echoed prompt is sent with the first token, however late. */
static void an_echoed_prompt_precedes_the_first_token(void **state)
{
    static const uint32_t ids[] = {SAY_HELLO, 33};
    const struct wire_out echo = {.ids = ids, .n_id = 2, .text = wire_str_of("Hello!"), .prompt = true};
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"Hello!\",\"echo\":true," STREAM ",\"return_token_ids\":true}");
    prompt(0, ids, 2);
    fake_call.ops->out(&fake_call, 0, 0, &echo);
    fake_flush();
    fake_flush();
    assert_int_equal(r.out.n, 0);
    token(0, 0, SAY_WORLD, " world");
    fake_flush();
    token(0, 0, 97, "a");
    finish(0, 0, WIRE_LENGTH, 2, 2);
    fake_done();
    const char *once = memmem(r.out.p, r.out.n, "prompt_token_ids", 16);
    assert_non_null(once);
    assert_null(memmem(once + 1, r.out.n - (size_t)(once + 1 - r.out.p), "prompt_token_ids", 16));
    expect("{\"choices\":[{\"text\":\"Hello! world\",\"prompt_token_ids\":[256,33],\"token_ids\":[257]}]}",
           "{\"choices\":[{\"text\":\"a\",\"token_ids\":[97],\"finish_reason\":\"length\"}]}");
    begin(COMPLETIONS, "{\"prompt\":\"Hello!\",\"echo\":true,\"max_tokens\":0," STREAM "}");
    fake_call.ops->out(&fake_call, 0, 0, &echo);
    fake_flush();
    finish(0, 0, WIRE_LENGTH, 2, 0);
    fake_done();
    expect("{\"choices\":[{\"text\":\"Hello!\",\"finish_reason\":\"length\"}]}");
}

static void token_ids_are_returned(void **state)
{
    static const uint32_t ids[] = {1, 2};
    (void)state;
    begin(CHAT, "{" ASK_A "," STREAM ",\"return_token_ids\":true}");
    prompt(0, ids, 2);
    token(0, 0, SAY_HELLO, "Hello");
    token(0, 0, SAY_END, "");
    finish(0, 0, WIRE_STOP, 2, 2);
    fake_done();
    expect("{\"prompt_token_ids\":[1,2],\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}",
           "{\"choices\":[{\"token_ids\":[256]}]}", "{\"choices\":[{\"token_ids\":[260]}]}");
    begin(CHAT, "{" ASK_A ",\"return_token_ids\":true}");
    prompt(0, ids, 2);
    token(0, 0, SAY_HELLO, "Hello");
    finish(0, 0, WIRE_STOP, 2, 1);
    fake_done();
    expect_whole("{\"prompt_token_ids\":[1,2],\"choices\":[{\"token_ids\":[256]}]}");
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"return_token_ids\":true}");
    prompt(0, ids, 2);
    token(0, 0, SAY_HELLO, "Hello");
    finish(0, 0, WIRE_STOP, 2, 1);
    fake_done();
    expect_whole("{\"choices\":[{\"prompt_token_ids\":[1,2],\"token_ids\":[256]}]}");
}

/* ---- failures ---- */

static void a_failure_is_a_status_or_an_event(void **state)
{
    (void)state;
    /* before the first byte: a status */
    begin(COMPLETIONS, "{\"prompt\":\"a\"," STREAM "}");
    fake_fail(0, 400, 0, "stop_token_ids[0]: token id 9 is out of vocabulary: the model has 5 ids");
    assert_int_equal(r.status, 400);
    assert_string_equal(r.type, "application/json");
    assert_string_equal(
        (str_add(&r.out, "", 1), r.out.p),
        "{\"error\":{\"message\":\"stop_token_ids[0]: token id 9 is out of vocabulary: the model has 5 ids\",\"type\":"
        "\"BadRequestError\",\"param\":\"stop_token_ids[0]\",\"code\":400}}");
    fake_free(&r);
    begin(COMPLETIONS, "{\"prompt\":\"a\"}");
    fake_fail(0, 429, 2, "full");
    assert_int_equal(r.status, 429);
    assert_non_null(strstr(r.headers, "Retry-After: 2\n"));
    fake_free(&r);
    /* the index of the prompt is named */
    begin(COMPLETIONS, "{\"prompt\":[[1],[2],[9]]}");
    fake_fail(2, 400, 0, "prompt[0]: token id 9 is out of vocabulary: the model has 5 ids");
    assert_non_null(memmem(r.out.p, r.out.n, "\"param\":\"prompt[2][0]\"", 22));
    fake_free(&r);
    /* an error that the request did not cause names no field */
    begin(COMPLETIONS, "{\"prompt\":\"a\"}");
    fake_fail(0, 500, 0, "tokenize: out of memory");
    assert_non_null(memmem(r.out.p, r.out.n, "\"InternalServerError\",\"param\":null", 34));
    fake_free(&r);
    /* within the stream: an event, then the end mark */
    begin(CHAT, "{" ASK_A "," STREAM ",\"stream_options\":{\"include_usage\":true}}");
    token(0, 0, SAY_HELLO, "Hello");
    fake_flush();
    token(0, 0, SAY_WORLD, " world");
    fake_fail(0, 500, 0, "no worker is left");
    expect(
        "{}", "{\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}",
        "{\"choices\":[{\"delta\":{\"content\":\" world\"}}]}",
        "{\"error\":{\"message\":\"no worker is left\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}");
}

/* ---- responses as one object ---- */

static void a_response_is_one_object(void **state)
{
    (void)state;
    begin(CHAT, "{" ASK_A ",\"model\":\"alias\"}"); /* responses have the first served name */
    token(0, 0, SAY_HELLO, "He\"llo\n");
    token(0, 0, SAY_WORLD, " w\xc3\xb6rld\x01");
    finish(0, 0, WIRE_STOP, 3, 2);
    fake_done();
    expect_whole(
        "{\"id\":\"chatcmpl-0f\",\"object\":\"chat.completion\",\"model\":\"smol\",\"choices\":[{\"index\":0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"He\\\"llo\\n w\xc3\xb6rld\\u0001\"},\"logprobs\":null,"
        "\"finish_reason\":\"stop\",\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":3,"
        "\"completion_tokens\":2,\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":2}}}");
    begin(COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}");
    token(1, 0, 98, "B");
    finish(1, 0, WIRE_LENGTH, 2, 1);
    token(0, 0, 97, "A");
    finish(0, 0, WIRE_STOP, 1, 1);
    fake_done();
    expect_whole("{\"id\":\"cmpl-0f\",\"object\":\"text_completion\",\"model\":\"smol\",\"choices\":[{\"index\":0,"
                 "\"text\":\"A\","
                 "\"finish_reason\":\"stop\"},{\"index\":1,\"text\":\"B\",\"finish_reason\":\"length\"}],\"usage\":"
                 "{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}");
}

static void stop_reason_names_the_stop_text_or_id(void **state)
{
    const struct wire_end text = {.reason = WIRE_STOP, .stop_text = {"\"\n", 2}};
    const struct wire_end id = {.reason = WIRE_STOP, .has_stop_id = true, .stop_id = 7};
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\"}");
    fake_call.ops->end(&fake_call, 0, 0, &text);
    fake_done();
    expect_whole("{\"choices\":[{\"finish_reason\":\"stop\",\"stop_reason\":\"\\\"\\n\"}]}");
    begin(CHAT, "{" ASK_A "," STREAM "}");
    fake_call.ops->end(&fake_call, 0, 0, &id);
    fake_done();
    expect("{\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}",
           "{\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"stop\",\"stop_reason\":7}]}");
}

/* A disconnect frees the state of the request. */
static void a_disconnect_frees_everything(void **state)
{
    (void)state;
    begin(CHAT, "{" ASK_A ",\"n\":3," STREAM "}");
    token(0, 2, SAY_HELLO, "Hello");
    fake_flush();
    token(0, 1, SAY_HELLO, "Hello");
    fake_gone();
    fake_free(&r);
}

/* ---- log-probabilities ---- */

static const struct wire_top best[] = {{SAY_HELLO, -0.5f}, {97, -1.5f}, {SAY_HALF, -2}};
static const struct wire_logprob of_best = {SAY_HELLO, -0.5f, best, 3, 1}, of_half = {SAY_HALF, -2, best, 1, 3},
                                 of_none = {97, NAN, NULL, 0, 0}, of_far = {98, -FLT_MAX, best, 1, 9};

static void scored(uint32_t id, const char *text, const struct wire_logprob *lp, bool of_prompt, bool silent)
{
    const struct wire_out o = {
        .ids = &id, .n_id = 1, .text = wire_str_of(text), .lp = lp, .n_lp = 1, .prompt = of_prompt, .silent = silent};
    fake_call.ops->out(&fake_call, 0, 0, &o);
}

static void completions_return_logprobs(void **state)
{
    static const int where[] = {0, 1, 6, 7};
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2,\"echo\":true}");
    scored(97, "a", &of_none, true, false);
    scored(SAY_HELLO, "Hello", &of_best, false, false);
    scored(SAY_HALF, "", &of_half, false, false);
    scored(172, "\xe2\x82\xac", &of_far, false, false);
    finish(0, 0, WIRE_LENGTH, 1, 3);
    fake_done();
    json_t *o = whole();
    /* the chosen token is listed besides the top ones; bytes that are not text are spelled out; infinity is replaced */
    expect_has(o, "{\"choices\":[{\"text\":\"aHello\xe2\x82\xac\",\"logprobs\":{"
                  "\"tokens\":[\"a\",\"Hello\",\"bytes:\\\\xe2\\\\x82\",\"b\"],"
                  "\"token_logprobs\":[null,-0.5,-2.0,-9999.0],"
                  "\"top_logprobs\":[null,{\"Hello\":-0.5,\"a\":-1.5},{\"Hello\":-0.5,\"bytes:\\\\xe2\\\\x82\":-2.0},"
                  "{\"Hello\":-0.5,\"b\":-9999.0}]}}]}");
    const json_t *lp = json_object_get(json_array_get(json_object_get(o, "choices"), 0), "logprobs");
    assert_int_equal(json_object_size(json_array_get(json_object_get(lp, "top_logprobs"), 1)), 2);
    const json_t *offset = json_object_get(lp, "text_offset");
    assert_int_equal(json_array_size(offset), 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_array_get(offset, i)), where[i]);
    json_decref(o);
}

static void chats_return_logprobs(void **state)
{
    (void)state;
    begin(CHAT, "{" ASK_A ",\"logprobs\":true,\"top_logprobs\":2}");
    scored(SAY_HELLO, "Hello", &of_best, false, false);
    scored(SAY_HALF, "", &of_half, false, false);
    finish(0, 0, WIRE_LENGTH, 1, 2);
    fake_done();
    expect_whole(
        "{\"choices\":[{\"logprobs\":{\"content\":[{\"token\":\"Hello\",\"logprob\":-0.5,\"bytes\":[72,101,108,"
        "108,111],\"top_logprobs\":[{\"token\":\"Hello\",\"logprob\":-0.5,\"bytes\":[72,101,108,108,111]},"
        "{\"token\":\"a\",\"logprob\":-1.5,\"bytes\":[97]}]},{\"token\":\"bytes:\\\\xe2\\\\x82\",\"logprob\":-2.0,"
        "\"bytes\":[226,130],\"top_logprobs\":[{\"token\":\"Hello\"}]}]}}]}");
    begin(CHAT, "{" ASK_A ",\"logprobs\":true," STREAM "}");
    scored(SAY_HELLO, "Hello", &of_best, false, false);
    fake_flush();
    finish(0, 0, WIRE_LENGTH, 1, 1);
    fake_done();
    expect("{\"choices\":[{\"logprobs\":null}]}",
           "{\"choices\":[{\"logprobs\":{\"content\":[{\"token\":\"Hello\",\"top_logprobs\":[]}]}}]}",
           "{\"choices\":[{\"logprobs\":null,\"finish_reason\":\"length\"}]}");
}

/* The end token is a control token: in the list it has no bytes, so that those of all tokens are the content. */
static void chats_return_no_bytes_of_what_is_not_in_the_content(void **state)
{
    (void)state;
    static const char end_text[] = "<|im_end|>";
    static const struct wire_top top = {SAY_END, -0.5f};
    static const struct wire_logprob end = {SAY_END, -0.5f, &top, 1, 1};
    static const char *const more[] = {"", ",\"skip_special_tokens\":false",
                                       ",\"skip_special_tokens\":false,\"include_stop_str_in_output\":true",
                                       ",\"stop_token_ids\":[97,256]"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        char body[300];
        snprintf(body, sizeof body, "{" ASK_A ",\"logprobs\":true,\"top_logprobs\":1%s}", more[i]);
        begin(CHAT, body);
        scored(SAY_HELLO, "Hello", &of_best, false, false);
        scored(SAY_END, "", &end, false, false);
        finish(0, 0, WIRE_STOP, 1, 2);
        fake_done();
        json_t *o = whole();
        const json_t *list =
            json_object_get(json_object_get(json_array_get(json_object_get(o, "choices"), 0), "logprobs"), "content");
        const json_t *last = json_array_get(list, 1),
                     *best_of_last = json_array_get(json_object_get(last, "top_logprobs"), 0);
        assert_int_equal(json_array_size(json_object_get(json_array_get(list, 0), "bytes")), i == 3 ? 0 : 5);
        assert_int_equal(json_array_size(json_object_get(last, "bytes")), i == 2 ? strlen(end_text) : 0);
        assert_string_equal(json_string_value(json_object_get(last, "token")), end_text);
        assert_int_equal(json_array_size(json_object_get(best_of_last, "bytes")), strlen(end_text));
        json_decref(o);
    }
}

static void tokens_are_returned_as_token_ids(void **state)
{
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":1,\"return_tokens_as_token_ids\":true," STREAM "}");
    scored(SAY_HELLO, "Hello", &of_best, false, false);
    fake_flush();
    scored(SAY_HALF, "", &of_half, false, false);
    finish(0, 0, WIRE_LENGTH, 1, 2);
    fake_done();
    expect("{\"choices\":[{\"logprobs\":{\"tokens\":[\"token_id:256\"],\"top_logprobs\":[{\"token_id:256\":-0.5}],"
           "\"text_offset\":[0]}}]}",
           "{\"choices\":[{\"logprobs\":{\"tokens\":[\"token_id:258\"],\"top_logprobs\":[{\"token_id:256\":-0.5,"
           "\"token_id:258\":-2.0}],\"text_offset\":[5]}}]}");
}

/* Log-probabilities of the prompt are neither text nor log-probabilities of the answer. */
static void prompt_logprobs_are_a_field_of_their_own(void **state)
{
    (void)state;
    begin(COMPLETIONS, "{\"prompt\":\"a\",\"prompt_logprobs\":1,\"logprobs\":3}");
    scored(97, "", &of_none, true, true);
    scored(SAY_HELLO, "", &of_best, true, true);
    scored(SAY_HALF, "", &of_half, true, true);
    scored(SAY_HELLO, "Hello", &of_best, false, false);
    finish(0, 0, WIRE_LENGTH, 3, 1);
    fake_done();
    json_t *o = whole();
    expect_has(o, "{\"choices\":[{\"text\":\"Hello\",\"logprobs\":{\"tokens\":[\"Hello\"]},\"prompt_logprobs\":[null,"
                  "{\"256\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"Hello\"}},"
                  "{\"256\":{\"logprob\":-0.5,\"rank\":1,\"decoded_token\":\"Hello\"},"
                  "\"258\":{\"logprob\":-2.0,\"rank\":3}}]}]}");
    const json_t *p = json_object_get(json_array_get(json_object_get(o, "choices"), 0), "prompt_logprobs");
    assert_int_equal(json_object_size(json_array_get(p, 1)), 1); /* as many as requested */
    json_decref(o);
    begin(CHAT, "{" ASK_A ",\"prompt_logprobs\":0}");
    scored(97, "", &of_none, true, true);
    scored(SAY_HELLO, "", &of_best, true, true);
    token(0, 0, SAY_HELLO, "Hello");
    finish(0, 0, WIRE_LENGTH, 2, 1);
    fake_done();
    expect_whole("{\"choices\":[{\"message\":{\"content\":\"Hello\"},\"logprobs\":null}],\"prompt_logprobs\":[null,"
                 "{\"256\":{\"logprob\":-0.5,\"rank\":1}}]}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_streams_one_event_per_token),
        cmocka_unit_test(an_end_without_tokens_is_an_event_of_its_own),
        cmocka_unit_test(each_frame_is_an_event_even_without_text),
        cmocka_unit_test(continuous_usage_is_in_each_event),
        cmocka_unit_test(prompts_and_choices_are_interleaved_by_index),
        cmocka_unit_test(an_echoed_prompt_precedes_the_first_token),
        cmocka_unit_test(token_ids_are_returned),
        cmocka_unit_test(a_failure_is_a_status_or_an_event),
        cmocka_unit_test(a_response_is_one_object),
        cmocka_unit_test(stop_reason_names_the_stop_text_or_id),
        cmocka_unit_test(a_disconnect_frees_everything),
        cmocka_unit_test(completions_return_logprobs),
        cmocka_unit_test(chats_return_logprobs),
        cmocka_unit_test(chats_return_no_bytes_of_what_is_not_in_the_content),
        cmocka_unit_test(tokens_are_returned_as_token_ids),
        cmocka_unit_test(prompt_logprobs_are_a_field_of_their_own),
    };
    return cmocka_run_group_tests(tests, fake_setup, fake_teardown);
}
