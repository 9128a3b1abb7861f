/*
 * Requests of the OpenAI dialect without HTTP: from bodies to requests to the gateway, refusals, and the routes for
 * information about the server. Names, defaults and limits are those of vLLM's
 * entrypoints/openai/{completion,chat_completion}/protocol.py; errors those of its serve/engine/protocol.py and of the
 * openai package, which chooses its exception classes by them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "request/ask.h"
#include "unit/openai_fake.h"

#define COMPLETIONS "/v1/completions"
#define CHAT "/v1/chat/completions"
#define ASK_A "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static json_t *parsed(const struct http_request *r)
{
    json_error_t je;
    json_t *o = json_loadb(r->out.p ? r->out.p : "", r->out.n, JSON_REJECT_DUPLICATES, &je);
    if (!o)
        fail_msg("%.*s: %s", (int)r->out.n, r->out.p, je.text);
    assert_true(r->over);
    assert_string_equal(r->type, "application/json");
    return o;
}

/* ---- requests to the gateway ---- */

/* Checks that the requests to the gateway are these objects. */
static void expect_lines(const char *path, const char *body, const char *lines)
{
    struct http_request r = {0};
    fake_ask(&server, &r, "POST", path, body);
    if (!fake_call.state)
        fail_msg("%s: %.*s", body, (int)r.out.n, r.out.p);
    json_t *want = json_loads(lines, 0, NULL), *got = json_array();
    assert_non_null(want);
    for (uint32_t i = 0; i < fake_call.n_line; i++)
        json_array_append(got, fake_call.line[i]);
    if (!json_equal(got, want))
        fail_msg("%s: got %s", body, json_dumps(got, 0));
    json_decref(got);
    json_decref(want);
    fake_gone();
    fake_free(&r);
}

#define REST ",\"temperature\":1.0,\"max_tokens\":16,\"strict_window\":true}"

static void vllm_defaults_are_applied(void **state)
{
    (void)state;
    expect_lines(COMPLETIONS, "{\"prompt\":\"a\"}", "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    expect_lines(CHAT, "{" ASK_A "}", "[{" ASK_A ",\"temperature\":1.0,\"max_tokens\":4294967295}]");
    /* null counts as absent, and gives the default of max_tokens */
    expect_lines(
        COMPLETIONS,
        "{\"prompt\":\"a\",\"max_tokens\":null,\"temperature\":null,\"n\":null,\"stop\":null,\"model\":null,"
        "\"stream\":null,\"stream_options\":null,\"logprobs\":null,\"echo\":null,\"seed\":null,\"tools\":null}",
        "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    expect_lines(COMPLETIONS, "{\"prompt\":\"a\",\"model\":\"\",\"seed\":-1}",
                 "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    expect_lines(COMPLETIONS, "{\"prompt\":\"a\",\"parse_special\":false,\"seed\":-2}",
                 "[{\"prompt\":\"a\",\"parse_special\":false,\"seed\":-2" REST "]");
    /* max_tokens beyond the context length is refused only if it was given */
    expect_lines(
        COMPLETIONS, "{\"prompt\":\"a\",\"max_tokens\":5,\"temperature\":0}",
        "[{\"prompt\":\"a\",\"parse_special\":true,\"temperature\":0,\"max_tokens\":5,\"strict_window\":true}]");
    expect_lines(CHAT, "{" ASK_A ",\"max_completion_tokens\":5}",
                 "[{" ASK_A ",\"temperature\":1.0,\"max_completion_tokens\":5,\"strict_window\":true}]");
}

#define CARRIED                                                                                                        \
    "\"temperature\":0.5,\"top_p\":0.9,\"top_k\":4,\"min_p\":0.1,\"seed\":7,\"stop\":[\"x\"],\"n\":2,\"min_tokens\":"  \
    "1,"                                                                                                               \
    "\"ignore_eos\":true,\"logit_bias\":{\"5\":-100},\"presence_penalty\":1,\"frequency_penalty\":1,"                  \
    "\"repetition_penalty\":1.1,\"stop_token_ids\":[9],\"include_stop_str_in_output\":true,"                           \
    "\"skip_special_tokens\":false,\"truncate_prompt_tokens\":4,\"prompt_logprobs\":1,\"allowed_token_ids\":[1,2],"    \
    "\"bad_words\":[\"y\"],\"add_special_tokens\":false,\"priority\":3,\"cache_salt\":\"s\",\"max_tokens\":8"

/* Fields of the answer are passed on, fields of the gateway stay here, and internal fields of requests to the gateway
 * are ignored. */
static void known_fields_are_passed_on(void **state)
{
    (void)state;
    expect_lines(
        COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":2,\"echo\":true," CARRIED "}",
        "[{\"prompt\":\"a\",\"parse_special\":true,\"strict_window\":true,\"logprobs\":2,\"echo\":true," CARRIED "}]");
    expect_lines(CHAT,
                 "{" ASK_A ",\"logprobs\":true,\"top_logprobs\":2,\"add_generation_prompt\":false,"
                 "\"continue_final_message\":true," CARRIED "}",
                 "[{" ASK_A ",\"strict_window\":true,\"logprobs\":true,\"top_logprobs\":2,"
                 "\"add_generation_prompt\":false,\"continue_final_message\":true," CARRIED "}]");
    expect_lines(COMPLETIONS,
                 "{\"prompt\":\"a\",\"model\":\"alias\",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                 "\"user\":\"u\",\"request_id\":\"i\",\"return_token_ids\":true,\"return_tokens_as_token_ids\":true,"
                 "\"metadata\":{},\"store\":false,\"service_tier\":\"auto\"}",
                 "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    expect_lines(COMPLETIONS, "{\"prompt\":\"a\",\"window\":2,\"strict_window\":true,\"prefix_token_ids\":[1]}",
                 "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
}

static void fields_without_effect_are_logged_once(void **state)
{
    (void)state;
    server.n_log = server.n_logged = 0;
    for (int i = 0; i < 3; i++)
        expect_lines(COMPLETIONS, "{\"prompt\":\"a\",\"who_knows\":[{}]}",
                     "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    const char *first = strstr(server.log, "who_knows");
    assert_non_null(first);
    assert_null(strstr(first + 1, "who_knows")); /* logged once */
    /* nested fields, fields of OpenAI's own service, fields of the other route, and names with the same beginning */
    server.n_log = server.n_logged = 0;
    expect_lines(
        COMPLETIONS,
        "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"in\":1},\"prompt_cache_key\":true,\"messages\":[],"
        "\"top_logprobs\":3,\"id\":\"x\",\"a_long_name_of_some_parameter_one\":1,"
        "\"a_long_name_of_some_parameter_two\":1}",
        "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    assert_int_equal(server.n_logged, 7);
    expect_lines(CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"odd\":1}],\"prompt\":\"x\"}",
                 "[{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"odd\":1}],\"temperature\":1.0,"
                 "\"max_tokens\":4294967295}]");
    assert_int_equal(server.n_logged, 9);
    struct str many = {0}; /* log lines of a request are bounded */
    str_add_text(&many, "{\"prompt\":\"a\"");
    for (int i = 0; i < 500; i++) {
        char name[40];
        snprintf(name, sizeof name, ",\"one_of_many_%d\":1", i);
        str_add_text(&many, name);
    }
    str_add(&many, "}", 2);
    server.n_log = server.n_logged = 0;
    expect_lines(COMPLETIONS, many.p, "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    assert_int_equal(server.n_logged, 32);
    str_free(&many);
    /* Each of many names is logged, and the memory of logged names is bounded. */
    server.n_log = server.n_logged = 0;
    for (int i = 0; i < 5000; i++) {
        char body[60];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"unknown_%d\":1}", i);
        expect_lines(COMPLETIONS, body, "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    }
    assert_int_equal(server.n_logged, 5000);
}

static const char *prompts_of(struct str *w, const char *one, int n)
{
    str_add_text(w, "{\"prompt\":[");
    for (int i = 0; i < n; i++) {
        str_add_text(w, i ? "," : "");
        str_add_text(w, one);
    }
    str_add(w, "]}", 3);
    return w->p;
}

static void a_list_of_prompts_becomes_one_request_each(void **state)
{
    (void)state;
    expect_lines(COMPLETIONS, "{\"prompt\":[1,2]}", "[{\"prompt\":[1,2]" REST "]");
    expect_lines(COMPLETIONS, "{\"prompt\":[\"a\",\"b\"]}",
                 "[{\"prompt\":\"a\",\"parse_special\":true" REST ",{\"prompt\":\"b\",\"parse_special\":true" REST "]");
    expect_lines(COMPLETIONS, "{\"prompt\":[[1],[2,3],[4]]}",
                 "[{\"prompt\":[1]" REST ",{\"prompt\":[2,3]" REST ",{\"prompt\":[4]" REST "]");
    expect_lines(COMPLETIONS, "{\"prompt\":[\"a\"]}", "[{\"prompt\":\"a\",\"parse_special\":true" REST "]");
    struct http_request r = {0};
    struct str many = {0};
    fake_ask(&server, &r, "POST", COMPLETIONS, prompts_of(&many, "\"a\"", 1024));
    assert_int_equal(fake_call.n_line, 1024);
    fake_gone();
    fake_free(&r);
    str_free(&many);
}

static const char *id_of(const char *path, const char *header, const char *body)
{
    struct http_request r = {.request_id = header};
    const struct wire_end end = {.reason = WIRE_STOP};
    static char id[100];
    fake_ask(&server, &r, "POST", path, body);
    assert_non_null(fake_call.state);
    fake_call.ops->end(&fake_call, 0, 0, &end);
    fake_done();
    json_t *o = parsed(&r);
    snprintf(id, sizeof id, "%s", json_string_value(json_object_get(o, "id")));
    json_decref(o);
    fake_free(&r);
    return id;
}

static void the_request_id_comes_from_header_or_field(void **state)
{
    (void)state;
    assert_string_equal(id_of(COMPLETIONS, "abc-1", "{\"prompt\":\"a\"}"), "cmpl-abc-1");
    assert_string_equal(id_of(CHAT, "abc-1", "{" ASK_A "}"), "chatcmpl-abc-1");
    assert_string_equal(id_of(COMPLETIONS, NULL, "{\"prompt\":\"a\"}"), "cmpl-0f");
    assert_string_equal(id_of(COMPLETIONS, NULL, "{\"prompt\":\"a\",\"request_id\":\"x\"}"), "cmpl-x");
    assert_string_equal(id_of(COMPLETIONS, "h", "{\"prompt\":\"a\",\"request_id\":\"x\"}"), "cmpl-h");
}

/* ---- refusals ---- */

static void expect_error(struct http_request *r, int status, const char *type, const char *param, const char *words)
{
    json_t *o = parsed(r), *e = json_object_get(o, "error"), *p = json_object_get(e, "param");
    const char *text = json_string_value(json_object_get(e, "message"));
    assert_int_equal(json_object_size(o), 1);
    assert_int_equal(json_object_size(e), 4);
    if (r->status != status || json_integer_value(json_object_get(e, "code")) != status)
        fail_msg("%s: status %d", text, r->status);
    assert_string_equal(json_string_value(json_object_get(e, "type")), type);
    if (param ? !json_is_string(p) || strcmp(json_string_value(p), param) : !json_is_null(p))
        fail_msg("%s: param %s", text, json_string_value(p));
    if (!strstr(text, words))
        fail_msg("%s: does not contain %s", text, words);
    json_decref(o);
}

static void refused(const char *path, const char *body, int status, const char *param, const char *words)
{
    struct http_request r = {0};
    fake_ask(&server, &r, "POST", path, body);
    if (fake_call.state)
        fail_msg("%s: is taken", body);
    expect_error(&r, status, status == 404 ? "NotFoundError" : "BadRequestError", param, words);
    fake_free(&r);
}

static void invalid_fields_are_refused_by_name(void **state)
{
    static const struct {
        const char *more, *param;
    } no[] = {
        {"\"temperature\":2.1", "temperature"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"top_p\":1.01", "top_p"},
        {"\"top_p\":-1", "top_p"},
        {"\"n\":0", "n"},
        {"\"n\":129", "n"},
        {"\"n\":1.5", "n"},
        {"\"n\":\"2\"", "n"},
        {"\"n\":2,\"temperature\":0", "n"},
        {"\"stream\":1", "stream"},
        {"\"stream\":\"true\"", "stream"},
        {"\"stream_options\":{}", "stream_options"},
        {"\"stream\":true,\"stream_options\":[]", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage"},
        {"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":\"x\"}",
         "stream_options.continuous_usage_stats"},
        {"\"stream\":true,\"prompt_logprobs\":1", "prompt_logprobs"},
        {"\"prompt_logprobs\":21", "prompt_logprobs"},
        {"\"prompt_logprobs\":-1", "prompt_logprobs"},
        {"\"return_token_ids\":1", "return_token_ids"},
        {"\"return_tokens_as_token_ids\":[]", "return_tokens_as_token_ids"},
        {"\"request_id\":5", "request_id"},
        {"\"request_id\":\"\"", "request_id"},
        {"\"request_id\":\"a\\nb\"", "request_id"},
        {"\"model\":5", "model"},
        {"\"echo\":\"x\"", "echo"},
        {"\"user\":5", "user"},
        {"\"temperature\":\"x\"", "temperature"},
        {"\"seed\":9223372036854775808", "seed"},
        {"\"seed\":1180591620717411303424", "seed"},
        {"\"request_id\":\"a\\u0000b\"", "request_id"},
    };
    char body[300];
    (void)state;
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", no[i].more);
        refused(COMPLETIONS, body, 400, no[i].param, no[i].param);
        snprintf(body, sizeof body, "{" ASK_A ",%s}", no[i].more);
        refused(CHAT, body, 400, no[i].param, no[i].param);
    }
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"model\":\"no`\\u0007\"}", 404, "model", "no`\a");
    refused(CHAT, "{" ASK_A ",\"model\":\"no\",\"stream\":true}", 404, "model", "no");
    refused(COMPLETIONS, "{}", 400, "prompt", "required");
    refused(COMPLETIONS, "{\"prompt\":null}", 400, "prompt", "required");
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"model\":\"smol\\u0000x\"}", 404, "model", "smol");
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"temperature\":\"x\"}", 400, "temperature", "from 0 to 2");
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":\"x\"}", 400, "logprobs", "from 0 to 20");
    refused(COMPLETIONS, "{\"prompt\":[\"a\",[1]]}", 400, "prompt", "prompt[1]");
    refused(COMPLETIONS, "{\"prompt\":[[1],2]}", 400, "prompt", "prompt[1]");
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":true}", 400, "logprobs", "integer");
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":21}", 400, "logprobs", "20");
    refused(COMPLETIONS, "{\"prompt\":\"a\",\"logprobs\":-1}", 400, "logprobs", "20");
    refused(CHAT, "{}", 400, "messages", "required");
    refused(CHAT, "{" ASK_A ",\"logprobs\":1}", 400, "logprobs", "true or false");
    refused(CHAT, "{" ASK_A ",\"logprobs\":true,\"top_logprobs\":21}", 400, "top_logprobs", "20");
    refused(CHAT, "{" ASK_A ",\"top_logprobs\":1}", 400, "top_logprobs", "logprobs");
    refused(CHAT, "{" ASK_A ",\"echo\":true}", 400, "echo", COMPLETIONS);
}

static void more_choices_than_may_wait_are_refused(void **state)
{
    struct http_request r = {0};
    struct str many = {0};
    (void)state;
    fake_ask(&server, &r, "POST", COMPLETIONS, prompts_of(&many, "[1]", 1025));
    expect_error(&r, 400, "BadRequestError", "prompt", "1024");
    fake_free(&r);
    str_free(&many);
}

static void malformed_json_is_refused(void **state)
{
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "null",
                                      "\"a\"",
                                      "{\"prompt\":\"a\"}x",
                                      "{]}",
                                      "{\"a\":1,}",
                                      "{'a':1}",
                                      "\xff",
                                      "{\"a\":\"\xff\"}",
                                      "{\"prompt\":\"a\",\"prompt\":\"b\"}",
                                      "{\"prompt\":1e400}"};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(COMPLETIONS, bad[i], 400, NULL, "JSON");
        refused(CHAT, bad[i], 400, NULL, "JSON");
        refused("/tokenize", bad[i], 400, NULL, "JSON");
        refused("/detokenize", bad[i], 400, NULL, "JSON");
    }
    char *deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = 0;
    refused(COMPLETIONS, deep, 400, NULL, "JSON");
    free(deep);
}

static void content_types_other_than_json_are_refused(void **state)
{
    static const char *const good[] = {NULL, "application/json", "application/json; charset=utf-8", "Application/JSON",
                                       "application/vnd.api+json"};
    static const char *const bad[] = {"text/plain", "application/x-www-form-urlencoded", "", "application/jsonp",
                                      "multipart/form-data; boundary=application/json"};
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        struct http_request r = {.content_type = good[i]}, no = {.content_type = bad[i]};
        fake_ask(&server, &r, "POST", COMPLETIONS, "{\"prompt\":\"a\"}");
        assert_non_null(fake_call.state);
        fake_gone();
        fake_free(&r);
        fake_ask(&server, &no, "POST", COMPLETIONS, "{\"prompt\":\"a\"}");
        expect_error(&no, 400, "BadRequestError", NULL, "application/json");
        fake_free(&no);
    }
}

/* The openai package waits as long before it retries. */
static void a_full_queue_gives_retry_after(void **state)
{
    struct http_request r = {0};
    (void)state;
    server.full = 429;
    fake_ask(&server, &r, "POST", COMPLETIONS, "{\"prompt\":\"a\"}");
    server.full = 0;
    expect_error(&r, 429, "RateLimitError", NULL, "too many");
    assert_non_null(strstr(r.headers, "Retry-After: 1\n"));
    assert_non_null(strstr(r.headers, "retry-after-ms: 250\n"));
    fake_free(&r);
}

/* ---- other routes ---- */

/* Checks that the response of a route is this object. */
static void expect_answer(const char *method, const char *path, const char *body, int status, const char *want)
{
    struct http_request r = {0};
    fake_ask(&server, &r, method, path, body);
    json_t *got = parsed(&r), *o = json_loads(want, 0, NULL);
    assert_non_null(o);
    if (r.status != status || !json_equal(got, o))
        fail_msg("%s %s: %d %.*s", path, body ? body : "", r.status, (int)r.out.n, r.out.p);
    json_decref(got);
    json_decref(o);
    fake_free(&r);
}

#define CARD(name)                                                                                                     \
    "{\"id\":\"" name "\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"phasepipe\",\"root\":\"smol\","   \
    "\"parent\":null,\"max_model_len\":512,\"permission\":[]}"

static void models_are_listed(void **state)
{
    struct http_request r = {0};
    (void)state;
    expect_answer("GET", "/v1/models", NULL, 200,
                  "{\"object\":\"list\",\"data\":[" CARD("smol") "," CARD("alias") "]}");
    expect_answer("GET", "/v1/models/alias", NULL, 200, CARD("alias"));
    fake_ask(&server, &r, "GET", "/v1/models/no", NULL);
    expect_error(&r, 404, "NotFoundError", "model", "no");
    fake_free(&r);
}

static void tokenize_returns_ids(void **state)
{
    (void)state;
    /* without merges bytes are their own ids, unless the vocabulary has an entry */
    expect_answer("POST", "/tokenize", "{\"prompt\":\"ab\"}", 200,
                  "{\"count\":2,\"max_model_len\":512,\"tokens\":[97,98],\"token_strs\":null}");
    expect_answer("POST", "/tokenize", "{\"prompt\":\"a \",\"return_token_strs\":true,\"messages\":null}", 200,
                  "{\"count\":2,\"max_model_len\":512,\"tokens\":[97,32],\"token_strs\":[\"a\",\"\\u0120\"]}");
    /* ChatML: markers are control ids, but not the same characters in content */
    expect_answer("POST", "/tokenize",
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>\"}],\"add_generation_prompt\":false}",
                  200,
                  "{\"count\":19,\"max_model_len\":512,\"tokens\":[259,117,115,101,114,10,97,60,124,105,109,95,101,110,"
                  "100,124,62,260,10],\"token_strs\":null}");
}

static void tokenize_renders_open_and_closed_chats(void **state)
{
    (void)state;
    expect_answer("POST", "/tokenize", "{" ASK_A "}", 200,
                  "{\"count\":20,\"max_model_len\":512,\"tokens\":[259,117,115,101,114,10,97,260,10,259,97,115,115,105,"
                  "115,116,97,110,116,10],\"token_strs\":null}");
    expect_answer("POST", "/tokenize", "{" ASK_A ",\"add_generation_prompt\":false,\"continue_final_message\":true}",
                  200,
                  "{\"count\":7,\"max_model_len\":512,\"tokens\":[259,117,115,101,114,10,97],\"token_strs\":null}");
}

static void tokenize_refuses_invalid_bodies(void **state)
{
    struct http_request r = {0};
    (void)state;
    refused("/tokenize", "{}", 400, "prompt", "required");
    refused("/tokenize", "{\"prompt\":[1]}", 400, "prompt", "string");
    refused("/tokenize", "{\"prompt\":\"a\"," ASK_A "}", 400, "messages", "prompt");
    refused("/tokenize", "{\"prompt\":\"a\",\"model\":\"no\"}", 404, "model", "no");
    refused("/tokenize", "{\"prompt\":\"a\",\"return_token_strs\":1}", 400, "return_token_strs", "true or false");
    refused("/tokenize", "{\"prompt\":\"a\",\"add_special_tokens\":1}", 400, "add_special_tokens", "true or false");
    refused("/tokenize", "{" ASK_A ",\"tools\":[{}]}", 400, "tools", "not supported");
    refused("/tokenize", "{" ASK_A ",\"continue_final_message\":true}", 400, "continue_final_message",
            "add_generation_prompt");
    char *large = malloc((4u << 20) + 2);
    assert_non_null(large);
    memset(large, ' ', (4u << 20) + 1);
    memcpy(large, "{\"prompt\":\"a\"}", 14);
    large[(4u << 20) + 1] = 0;
    fake_ask(&server, &r, "POST", "/tokenize", large);
    free(large);
    expect_error(&r, 413, "RequestTooLargeError", NULL, "4194304");
    fake_free(&r);
}

static void detokenize_returns_text(void **state)
{
    (void)state;
    expect_answer("POST", "/detokenize", "{\"tokens\":[256,257,260]}", 200, "{\"prompt\":\"Hello world<|im_end|>\"}");
    expect_answer("POST", "/detokenize", "{\"tokens\":[]}", 200, "{\"prompt\":\"\"}");
    /* a character that spans tokens is complete; half a character is U+FFFD */
    expect_answer("POST", "/detokenize", "{\"tokens\":[258,172]}", 200, "{\"prompt\":\"\xe2\x82\xac\"}");
    expect_answer("POST", "/detokenize", "{\"tokens\":[258,97]}", 200,
                  "{\"prompt\":\"\xef\xbf\xbd"
                  "a\"}");
    refused("/detokenize", "{\"tokens\":[1,261]}", 400, "tokens", "tokens[1]");
    refused("/detokenize", "{\"tokens\":[-1]}", 400, "tokens", "tokens[0]");
    refused("/detokenize", "{\"tokens\":[1.5]}", 400, "tokens", "tokens[0]");
    refused("/detokenize", "{\"tokens\":\"a\"}", 400, "tokens", "list");
    refused("/detokenize", "{}", 400, "tokens", "list");
}

static void health_load_and_version_are_reported(void **state)
{
    struct http_request r = {0};
    (void)state;
    expect_answer("GET", "/tokenizer_info", NULL, 200,
                  "{\"tokenizer_class\":\"phasepipe\",\"bos_token\":null,\"eos_token\":\"<|im_end|>\",\"pad_token\":"
                  "null,\"chat_template\":\"{}\",\"vocab_size\":261,\"model_max_length\":512}");
    expect_answer("GET", "/load", NULL, 200, "{\"server_load\":0}");
    expect_answer("GET", "/health", NULL, 200, "{}");
    server.ready = false;
    fake_ask(&server, &r, "GET", "/health", NULL);
    expect_error(&r, 503, "ServiceUnavailableError", NULL, "not ready");
    assert_non_null(strstr(r.headers, "Retry-After: 1\n"));
    fake_free(&r);
    expect_answer("GET", "/live", NULL, 200, "{}"); /* alive, ready or not */
    expect_answer("GET", "/ping", NULL, 200, "{}");
    expect_answer("POST", "/ping", NULL, 200, "{}");
    server.ready = true;
}

/* The description and the route table agree, and its references resolve. */
static void the_openapi_description_matches_the_routes(void **state)
{
    struct http_request r = {0};
    const char *path, *method;
    json_t *item, *operation;
    (void)state;
    fake_ask(&server, &r, "GET", "/openapi.json", NULL);
    json_t *o = parsed(&r), *paths = json_object_get(o, "paths");
    assert_string_equal(json_string_value(json_object_get(o, "openapi")), "3.1.0");
    json_object_foreach(paths, path, item)
    {
        json_object_foreach(item, method, operation)
        {
            char name[60], upper[8] = "";
            snprintf(name, sizeof name, "%.*s", (int)strcspn(path, "{"), path);
            for (size_t i = 0; method[i] && i < 7; i++)
                upper[i] = (char)(method[i] - 'a' + 'A');
            assert_non_null(json_object_get(operation, "responses"));
            if (strcmp(path, "/metrics") && !fake_route(upper, strchr(path, '{') ? strcat(name, "x") : name))
                fail_msg("%s %s is described and not there", upper, path);
        }
    }
    for (const struct api_route *t = openai_routes; t->method; t++) {
        char name[60];
        size_t n = strlen(t->path);
        snprintf(name, sizeof name, "%.*s%s", (int)(n - (t->path[n - 1] == '*')), t->path,
                 t->path[n - 1] == '*' ? "{id}" : "");
        item = json_object_get(paths, name);
        if (!item || !json_object_get(item, strcmp(t->method, "GET") ? "post" : "get"))
            fail_msg("%s %s is there and not described", t->method, t->path);
    }
    json_decref(o);
    fake_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vllm_defaults_are_applied),
        cmocka_unit_test(known_fields_are_passed_on),
        cmocka_unit_test(fields_without_effect_are_logged_once),
        cmocka_unit_test(a_list_of_prompts_becomes_one_request_each),
        cmocka_unit_test(the_request_id_comes_from_header_or_field),
        cmocka_unit_test(invalid_fields_are_refused_by_name),
        cmocka_unit_test(more_choices_than_may_wait_are_refused),
        cmocka_unit_test(malformed_json_is_refused),
        cmocka_unit_test(content_types_other_than_json_are_refused),
        cmocka_unit_test(a_full_queue_gives_retry_after),
        cmocka_unit_test(models_are_listed),
        cmocka_unit_test(tokenize_returns_ids),
        cmocka_unit_test(tokenize_renders_open_and_closed_chats),
        cmocka_unit_test(tokenize_refuses_invalid_bodies),
        cmocka_unit_test(detokenize_returns_text),
        cmocka_unit_test(health_load_and_version_are_reported),
        cmocka_unit_test(the_openapi_description_matches_the_routes),
    };
    return cmocka_run_group_tests(tests, fake_setup, fake_teardown);
}
