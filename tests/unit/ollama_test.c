/*
 * Requests of the Ollama dialect without HTTP: from bodies to requests to the gateway. Names, defaults and limits are
 * those of Ollama's api/types.go and docs/api.md (August 2026); ids those of lib/text, whose own tests compare it with
 * other programs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/ollama.h"
#include "unit/ollama_model.h"

/* ---- requests ---- */

static struct ollama_request q;

static int read_body(struct err *e, const char *body, bool chat)
{
    json_error_t je;
    json_t *o = json_loads(body, 0, &je);
    if (!o)
        fail_msg("%s: %s", body, je.text);
    int rc = ollama_request_read(e, &q, &model, o, chat);
    json_decref(o);
    return rc;
}

/* Checks that a body becomes this request to the gateway. */
static void expect_line(const char *body, bool chat, const char *line)
{
    struct err e;
    if (read_body(&e, body, chat))
        fail_msg("%s: %s", body, e.text);
    json_t *want = json_loads(line, 0, NULL);
    assert_non_null(want);
    if (!json_equal(q.line, want))
        fail_msg("%s: got %s", body, json_dumps(q.line, 0));
    json_decref(want);
    ollama_request_free(&q);
}

static void expect_no(const char *body, bool chat, const char *in_text)
{
    struct err e;
    if (read_body(&e, body, chat) != ERR_NO)
        fail_msg("%s: is taken", body);
    if (!strstr(e.text, in_text))
        fail_msg("%s: error %s", body, e.text);
    assert_null(q.line);
}

#define DEFAULTS "\"temperature\":0.8,\"top_k\":40,\"top_p\":0.9,\"repeat_last_n\":64,\"max_tokens\":4294967295"
#define ASK_A "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"

static void ollama_defaults_are_applied(void **state)
{
    struct err e;
    (void)state;
    expect_line("{\"model\":\"m\",\"prompt\":\"a\"}", false, "{" DEFAULTS "," ASK_A "}");
    expect_line("{\"model\":\"m\"," ASK_A "}", true, "{" DEFAULTS "," ASK_A "}");
    assert_int_equal(read_body(&e, "{\"prompt\":\"a\"}", false), 0);
    assert_true(q.stream && !q.raw && !q.chat && !q.logprobs && q.kind == OLLAMA_RUN);
    ollama_request_free(&q);
    /* null counts as absent */
    expect_line("{\"prompt\":\"a\",\"system\":null,\"options\":null,\"format\":null,\"context\":null,\"stream\":null,"
                "\"keep_alive\":null,\"think\":null,\"images\":null,\"raw\":null,\"suffix\":null,\"template\":null}",
                false, "{" DEFAULTS "," ASK_A "}");
}

static void options_become_sampling_fields(void **state)
{
    (void)state;
    expect_line(
        "{\"prompt\":\"a\",\"options\":{\"seed\":7,\"num_predict\":5,\"temperature\":0,\"top_k\":3,\"top_p\":"
        "0.5,\"min_p\":0.1,\"typical_p\":0.7,\"repeat_penalty\":1.2,\"presence_penalty\":0.5,"
        "\"frequency_penalty\":-0.5,\"repeat_last_n\":33,\"stop\":[\"x\",\"y\"],\"num_ctx\":512}}",
        false,
        "{\"seed\":7,\"max_tokens\":5,\"temperature\":0.0,\"top_k\":3,\"top_p\":0.5,\"min_p\":0.1,\"typical_p\":0.7,"
        "\"repetition_penalty\":1.2,\"presence_penalty\":0.5,\"frequency_penalty\":-0.5,\"repeat_last_n\":33,\"stop\":["
        "\"x\",\"y\"],"
        "\"window\":512," ASK_A "}");
    /* no limit: -1 infinite, -2 fills the context, 0 is not passed to Ollama's runner */
    for (int n = -2; n <= 0; n++) {
        char body[100];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"options\":{\"num_predict\":%d}}", n);
        expect_line(body, false, "{" DEFAULTS "," ASK_A "}");
    }
    /* -1 is a random seed; a longer context than the model's is the model's */
    expect_line("{\"prompt\":\"a\",\"options\":{\"seed\":-1,\"num_ctx\":131072}}", false, "{" DEFAULTS "," ASK_A "}");
    expect_line("{\"prompt\":\"a\",\"options\":{\"seed\":42.0,\"top_p\":1.5,\"top_k\":-1}}", false,
                "{\"seed\":42,\"temperature\":0.8,\"top_k\":0,\"top_p\":1.0,\"repeat_last_n\":64,\"max_tokens\":"
                "4294967295," ASK_A "}");
    expect_line("{\"prompt\":\"a\",\"options\":{\"stop\":[]}}", false, "{" DEFAULTS "," ASK_A "}");
}

/* The tokens that penalties consider: -1 means num_ctx, here the model's context length (8192), and 0 none. */
static void repeat_last_n_minus_one_is_the_context_length(void **state)
{
    (void)state;
    static const struct {
        const char *options, *is;
    } of[] = {
        {"\"repeat_last_n\":0", "0"},
        {"\"repeat_last_n\":33.0", "33"},
        {"\"repeat_last_n\":-1", "8192"},
        {"\"repeat_last_n\":-1,\"num_ctx\":131072", "8192"},
        {"\"repeat_last_n\":-1,\"num_ctx\":512", "512,\"window\":512"},
        {"\"num_ctx\":32", "64,\"window\":32"},
        {"\"repeat_last_n\":9223372036854775807", "2147483647"},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char body[200], line[300];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"options\":{\"repeat_penalty\":1.25,%s}}", of[i].options);
        snprintf(
            line, sizeof line,
            "{\"temperature\":0.8,\"top_k\":40,\"top_p\":0.9,\"max_tokens\":4294967295,\"repetition_penalty\":1.25,"
            "\"repeat_last_n\":%s," ASK_A "}",
            of[i].is);
        expect_line(body, false, line);
    }
}

/* 1 and above: off; 0 keeps the token nearest the entropy, which is expressed by the least number above 0. */
static void typical_p_of_one_and_above_is_off(void **state)
{
    (void)state;
    expect_line("{\"prompt\":\"a\",\"options\":{\"typical_p\":1.5}}", false,
                "{" DEFAULTS ",\"typical_p\":1.0," ASK_A "}");
    expect_line("{\"prompt\":\"a\",\"options\":{\"typical_p\":1}}", false,
                "{" DEFAULTS ",\"typical_p\":1.0," ASK_A "}");
    expect_line("{\"prompt\":\"a\",\"options\":{\"typical_p\":0}}", false,
                "{" DEFAULTS ",\"typical_p\":1.1754943508222875e-38," ASK_A "}");
}

static void options_without_effect_are_passed_on_by_name(void **state)
{
    (void)state;
    expect_line("{\"prompt\":\"a\",\"keep_alive\":\"5m\",\"truncate\":true,\"shift\":false,\"think\":false,"
                "\"format\":\"\",\"images\":[],\"max_tokens\":3,"
                "\"options\":{\"num_gpu\":1,\"num_thread\":4,\"use_mmap\":true,\"n\":2}}",
                false,
                "{" DEFAULTS "," ASK_A ",\"ollama.options.num_gpu\":true,\"ollama.options.num_thread\":true,"
                "\"ollama.options.use_mmap\":true,\"ollama.options.n\":true,\"ollama.max_tokens\":true}");
}

static void messages_become_a_chat(void **state)
{
    (void)state;
    expect_line("{\"messages\":[{\"role\":\"System\",\"content\":\"s\",\"thinking\":\"hm\"},{\"role\":\"user\"},"
                "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"p\"}],\"images\":[]}]}",
                true,
                "{" DEFAULTS ",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
                "\"\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"p\"}]}]}");
    /* a last message of the assistant is continued */
    expect_line("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
                true,
                "{" DEFAULTS ",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
                "\"content\":\"b\"}],\"add_generation_prompt\":false,\"continue_final_message\":true}");
    expect_line("{\"prompt\":\"a\",\"system\":\"s\"}", false,
                "{" DEFAULTS ",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
                "\"a\"}]}");
}

static void logprobs_become_their_number(void **state)
{
    (void)state;
    expect_line("{\"prompt\":\"a\",\"logprobs\":true}", false, "{" DEFAULTS "," ASK_A ",\"logprobs\":0}");
    expect_line("{\"prompt\":\"a\",\"logprobs\":true,\"top_logprobs\":20}", false,
                "{" DEFAULTS "," ASK_A ",\"logprobs\":20}");
    expect_line("{\"prompt\":\"a\",\"top_logprobs\":2}", false, "{" DEFAULTS "," ASK_A "}");
    expect_no("{\"prompt\":\"a\",\"logprobs\":true,\"top_logprobs\":21}", false,
              "top_logprobs must be between 0 and 20");
    expect_no("{\"prompt\":\"a\",\"top_logprobs\":-1}", false, "top_logprobs must be between 0 and 20");
}

/* The model's own template is accepted. */
static void only_the_models_own_template_is_accepted(void **state)
{
    (void)state;
    json_t *o = json_pack("{s:s,s:s}", "prompt", "a", "template", model.chat_template);
    char *body = json_dumps(o, 0);
    expect_line(body, false, "{" DEFAULTS "," ASK_A "}");
    free(body);
    json_decref(o);
    expect_no("{\"prompt\":\"a\",\"template\":\"{{ .Prompt }}\"}", false, "template:");
}

static void invalid_fields_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *body, *error;
    } generate[] = {
        {"{\"prompt\":5}", "prompt: expected a string, got 5"},
        {"{\"prompt\":\"a\",\"suffix\":\"b\"}", "suffix:"},
        {"{\"prompt\":\"a\",\"stream\":\"yes\"}", "stream: expected true or false, got a string"},
        {"{\"prompt\":\"a\",\"raw\":true,\"system\":\"s\"}", "raw mode does not support template, system, or context"},
        {"{\"prompt\":\"a\",\"raw\":true,\"context\":[1]}", "raw mode does not support template, system, or context"},
        {"{\"prompt\":\"a\",\"images\":[\"aGk=\"]}", "images:"},
        {"{\"prompt\":\"a\",\"format\":\"json\"}", "format:"},
        {"{\"prompt\":\"a\",\"format\":{\"type\":\"object\"}}", "format:"},
        {"{\"prompt\":\"a\",\"think\":true}", "does not support thinking"},
        {"{\"prompt\":\"a\",\"think\":\"high\"}", "does not support thinking"},
        {"{\"prompt\":\"a\",\"keep_alive\":\"soon\"}", "keep_alive:"},
        {"{\"prompt\":\"a\",\"keep_alive\":[]}", "keep_alive:"},
        {"{\"prompt\":\"a\",\"context\":\"x\"}", "context: expected a list of token ids, got a string"},
        {"{\"prompt\":\"a\",\"context\":[1,-2]}", "context[1]:"},
        {"{\"prompt\":\"a\",\"context\":[49152]}", "context[0]: expected a token id below 49152"},
        {"{\"prompt\":\"a\",\"options\":[]}", "options: expected an object, got a list"},
        {"{\"prompt\":\"a\",\"options\":{\"top_k\":\"3\"}}", "options.top_k: expected an integer, got a string"},
        {"{\"prompt\":\"a\",\"options\":{\"num_predict\":1.5}}", "options.num_predict: expected an integer"},
        {"{\"prompt\":\"a\",\"options\":{\"temperature\":-1}}", "options.temperature: expected a number from 0"},
        {"{\"prompt\":\"a\",\"options\":{\"min_p\":2}}", "options.min_p: expected a number from 0 to 1, got 2"},
        {"{\"prompt\":\"a\",\"options\":{\"typical_p\":-0.1}}", "options.typical_p: expected a number from 0"},
        {"{\"prompt\":\"a\",\"options\":{\"tfs_z\":0.5}}", "options.tfs_z: is not supported"},
        {"{\"prompt\":\"a\",\"options\":{\"mirostat\":1}}", "options.mirostat: is not supported"},
        {"{\"prompt\":\"a\",\"options\":{\"repeat_last_n\":1.5}}", "options.repeat_last_n: expected an integer"},
        {"{\"prompt\":\"a\",\"options\":{\"presence_penalty\":3}}", "options.presence_penalty: expected a number"},
        {"{\"prompt\":\"a\",\"options\":{\"stop\":[\"\"]}}", "options.stop[0]: must not be empty"},
        {"{\"prompt\":\"a\",\"options\":{\"stop\":[7]}}", "options.stop[0]: expected a string, got 7"},
        {"{\"prompt\":\"a\",\"options\":{\"num_gpu\":\"all\"}}", "options.num_gpu: expected a number or a boolean"},
        {"{\"prompt\":\"a\",\"options\":{\"num_ctx\":{}}}", "options.num_ctx: expected an integer, got an object"},
    };
    static const struct {
        const char *body, *error;
    } chat[] = {
        {"{\"messages\":{}}", "messages: expected a list of messages, got an object"},
        {"{\"messages\":[7]}", "messages[0]: expected an object with role and content"},
        {"{\"messages\":[{\"content\":\"a\"}]}", "messages[0].role: expected a string, got nothing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content: expected a string, got 5"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"images\":[\"aGk=\"]}]}", "messages[0].images:"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"tool_calls\":[{}]}]}", "messages[0].tool_calls:"},
        {"{" ASK_A ",\"tools\":[{\"type\":\"function\"}]}", "does not support tools"},
    };
    for (size_t i = 0; i < sizeof generate / sizeof *generate; i++)
        expect_no(generate[i].body, false, generate[i].error);
    for (size_t i = 0; i < sizeof chat / sizeof *chat; i++)
        expect_no(chat[i].body, true, chat[i].error);
}

static void a_request_without_prompt_loads_or_unloads(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        bool chat;
        enum ollama_kind kind;
    } of[] = {
        {"{}", false, OLLAMA_LOAD},
        {"{\"prompt\":\"\",\"keep_alive\":-1}", false, OLLAMA_LOAD},
        {"{\"keep_alive\":\"10m\"}", false, OLLAMA_LOAD},
        {"{\"keep_alive\":\"1h30m\"}", false, OLLAMA_LOAD},
        {"{\"keep_alive\":\"1.5ms\"}", false, OLLAMA_LOAD},
        {"{\"keep_alive\":0}", false, OLLAMA_UNLOAD},
        {"{\"keep_alive\":\"0\"}", false, OLLAMA_UNLOAD},
        {"{\"keep_alive\":\"0s\"}", false, OLLAMA_UNLOAD},
        {"{\"keep_alive\":\"0m0s\"}", false, OLLAMA_UNLOAD},
        {"{\"prompt\":\"a\",\"keep_alive\":0}", false, OLLAMA_RUN},
        {"{}", true, OLLAMA_LOAD},
        {"{\"messages\":[],\"keep_alive\":0}", true, OLLAMA_UNLOAD},
    };
    struct err e;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (read_body(&e, of[i].body, of[i].chat))
            fail_msg("%s: %s", of[i].body, e.text);
        if (q.kind != of[i].kind)
            fail_msg("%s: kind %d", of[i].body, q.kind);
        ollama_request_free(&q);
    }
    static const char *const wrong[] = {"\"\"", "\"5\"", "\"m\"", "\".s\"", "\"5 m\"", "\"5mm\"", "\"--1s\"", "true"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char body[60];
        snprintf(body, sizeof body, "{\"keep_alive\":%s}", wrong[i]);
        expect_no(body, false, "keep_alive:");
    }
}

/* Any value of a field is accepted, or refused by a text that begins with its path or is complete in itself. */
static void any_value_is_accepted_or_refused_by_path(void **state)
{
    static const char *const keys[] = {"prompt",  "messages", "suffix",  "system",       "template",
                                       "context", "stream",   "raw",     "format",       "images",
                                       "think",   "truncate", "shift",   "logprobs",     "keep_alive",
                                       "options", "tools",    "unknown", "top_logprobs", "_debug_render_only"};
    static const char *const options[] = {
        "seed",  "num_predict", "top_k",       "top_p",          "min_p",         "typical_p",
        "tfs_z", "mirostat",    "temperature", "repeat_penalty", "repeat_last_n", "presence_penalty",
        "stop",  "num_ctx",     "num_thread",  "num_keep",       "use_mmap",      "unknown"};
    static const char *const values[] = {"null",
                                         "true",
                                         "false",
                                         "-1",
                                         "0",
                                         "7",
                                         "0.5",
                                         "1e308",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "\"\"",
                                         "[]",
                                         "{}",
                                         "[[]]",
                                         "[{}]",
                                         "[1]",
                                         "\"x\"",
                                         "[\"\"]",
                                         "[null]",
                                         "{\"a\":[{}]}"};
    struct err e;
    char body[200];
    (void)state;
    for (size_t v = 0; v < sizeof values / sizeof *values; v++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys + sizeof options / sizeof *options; k++)
            for (int chat = 0; chat < 2; chat++) {
                size_t n = sizeof keys / sizeof *keys;
                snprintf(body, sizeof body, k < n ? "{\"%s\":%s}" : "{\"options\":{\"%s\":%s}}",
                         k < n ? keys[k] : options[k - n], values[v]);
                int rc = read_body(&e, body, chat);
                if (rc && (rc != ERR_NO || !e.text[0]))
                    fail_msg("%s: %d %s", body, rc, e.text);
                if (!rc)
                    ollama_request_free(&q);
                assert_null(q.line);
            }
}

/* ---- ids: checked against lib/text, whose own tests compare it with other programs ---- */

static void expect_ids(const json_t *list, const struct text_ids *v)
{
    assert_int_equal(json_array_size(list), v->n);
    for (size_t i = 0; i < v->n; i++)
        assert_int_equal(json_integer_value(json_array_get(list, i)), v->ids[i]);
}

/* In a raw prompt markers are control tokens: tests/cli/tokenize.bats compares parse_special with the rendered chat. */
static void a_raw_prompt_may_contain_control_tokens(void **state)
{
    struct err e;
    (void)state;
    json_t *o = json_pack("{s:s,s:b}", "prompt", "<|im_start|>user\nhi", "raw", 1);
    assert_int_equal(ollama_request_read(&e, &q, &model, o, false), 0);
    assert_true(q.raw);
    assert_string_equal(json_string_value(json_object_get(q.line, "prompt")), "<|im_start|>user\nhi");
    assert_true(json_is_true(json_object_get(q.line, "parse_special")));
    ollama_request_free(&q);
    json_object_del(o, "raw");
    assert_int_equal(ollama_request_read(&e, &q, &model, o, false), 0);
    assert_null(json_object_get(q.line, "parse_special"));
    ollama_request_free(&q);
    json_decref(o);
}

static json_t *list_of(const uint32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Any part of the end of a turn in the conversation leads to the same chat. */
static void context_continues_a_conversation(void **state)
{
    struct err e;
    const struct text_message m[] = {{"user", "hi", 2}, {"assistant", "hello", 5}, {"user", "bye", 3}};
    struct text_ids all = {0}, open = {0}, closed = {0};
    json_t *got;
    (void)state;
    assert_int_equal(text_chat(&e, model.text, &all, m, 3, TEXT_CHAT_ANSWER), 0);
    assert_int_equal(text_chat(&e, model.text, &open, m, 2, TEXT_CHAT_OPEN), 0);
    assert_int_equal(text_chat(&e, model.text, &closed, m, 2, TEXT_CHAT_CLOSED), 0);
    assert_true(closed.n == open.n + 2); /* <|im_end|> and a line feed */
    for (size_t n = open.n; n <= closed.n; n++) {
        json_t *context = list_of(closed.ids, n);
        assert_int_equal(ollama_continue(&e, &got, &model, context, "", 0, "bye", 3), 0);
        expect_ids(got, &all);
        json_decref(context);
        json_decref(got);
    }
    text_ids_free(&all);
    const struct text_message s[] = {m[0], m[1], {"system", "be", 2}, m[2]};
    assert_int_equal(text_chat(&e, model.text, &all, s, 4, TEXT_CHAT_ANSWER), 0);
    json_t *o = json_pack("{s:s,s:s,s:o}", "prompt", "bye", "system", "be", "context", list_of(open.ids, open.n));
    assert_int_equal(ollama_request_read(&e, &q, &model, o, false), 0);
    expect_ids(json_object_get(q.line, "prompt"), &all);
    json_decref(o);
    ollama_request_free(&q);
    text_ids_free(&all);
    text_ids_free(&open);
    text_ids_free(&closed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ollama_defaults_are_applied),
        cmocka_unit_test(options_become_sampling_fields),
        cmocka_unit_test(options_without_effect_are_passed_on_by_name),
        cmocka_unit_test(repeat_last_n_minus_one_is_the_context_length),
        cmocka_unit_test(typical_p_of_one_and_above_is_off),
        cmocka_unit_test(messages_become_a_chat),
        cmocka_unit_test(logprobs_become_their_number),
        cmocka_unit_test(only_the_models_own_template_is_accepted),
        cmocka_unit_test(invalid_fields_are_refused_by_name),
        cmocka_unit_test(a_request_without_prompt_loads_or_unloads),
        cmocka_unit_test(any_value_is_accepted_or_refused_by_path),
        cmocka_unit_test(a_raw_prompt_may_contain_control_tokens),
        cmocka_unit_test(context_continues_a_conversation),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
