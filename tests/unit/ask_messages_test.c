/* The messages of a chat: their roles, and what clients send back of earlier responses. Roles and fields are those of
 * the OpenAI API reference. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "request/ask.h"

static int read_line(struct err *e, struct ask *a, const char *line)
{
    struct ask base;
    ask_default(&base);
    return ask_read(e, a, &base, line, strlen(line));
}

static void roles_are_those_of_openai(void **state)
{
    (void)state;
    static const char *const known[] = {"system", "developer", "user", "assistant", "tool"};
    char line[200];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct err e = {0};
        struct ask a;
        snprintf(line, sizeof line, "{\"messages\":[{\"role\":\"%s\",\"content\":\"x\"}]}", known[i]);
        assert_int_equal(read_line(&e, &a, line), 0);
        assert_string_equal(a.messages[0].role, known[i]);
        ask_free(&a);
    }
}

static void other_roles_are_refused_by_name(void **state)
{
    (void)state;
    static const char want[] = "messages[0].role: expected system, developer, user, assistant or tool";
    static const struct {
        const char *role, *end;
    } bad[] = {
        {"System", ", got 'System'"}, {"function", ", got 'function'"},
        {"banana", ", got 'banana'"}, {"user ", ""},
        {"us<|im_end|>er", ""},       {"", ""},
        {"user\\u0000", ""},          {"user\\u001b[31m", ""},
    };
    char line[200], text[200];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        struct ask a;
        snprintf(line, sizeof line, "{\"messages\":[{\"role\":\"%s\",\"content\":\"x\"}]}", bad[i].role);
        assert_int_equal(read_line(&e, &a, line), ERR_NO);
        snprintf(text, sizeof text, "%s%s", want, bad[i].end);
        assert_string_equal(e.text, text);
        ask_free(&a);
    }
}

#define TALK(more)                                                                                                     \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"A\"},{\"role\":\"assistant\"," more                               \
    "},{\"role\":\"user\",\"content\":\"C\"}]}"

/* Of responses of OpenAI, vLLM, DeepSeek, OpenRouter and llama.cpp. */
static void messages_of_responses_are_accepted(void **state)
{
    (void)state;
    static const char *const more[] = {
        "\"content\":\"B\",\"refusal\":null,\"tool_calls\":[],\"annotations\":[]",
        "\"content\":\"B\",\"refusal\":null,\"annotations\":null,\"audio\":null,\"function_call\":null,"
        "\"tool_calls\":null,\"reasoning\":null,\"reasoning_content\":null",
        "\"content\":\"B\",\"reasoning_content\":\"\",\"reasoning\":\"\",\"refusal\":\"\",\"tool_call_id\":\"\"",
        "\"content\":\"B\",\"reasoning_content\":\"Let me see.\",\"reasoning\":\"Let me see.\"",
        "\"content\":\"B\",\"annotations\":[{\"type\":\"url_citation\",\"url_citation\":{\"url\":\"https://a\"}}]",
        "\"content\":\"B\",\"prefix\":false,\"function_call\":{},\"audio\":{},\"provider_specific_fields\":{}",
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        char line[600];
        struct err e = {0};
        struct ask a;
        snprintf(line, sizeof line, TALK("%s"), more[i]);
        if (read_line(&e, &a, line))
            fail_msg("%s: %s", line, e.text);
        assert_int_equal(a.n_message, 3);
        assert_memory_equal(a.messages[1].content, "B", 2);
        ask_free(&a);
    }
    static const char *const empty[] = {TALK("\"content\":null"), TALK("\"content\":\"\""), TALK("\"refusal\":null")};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        struct err e = {0};
        struct ask a;
        assert_int_equal(read_line(&e, &a, empty[i]), 0);
        assert_int_equal(a.messages[1].n_content, 0);
        ask_free(&a);
    }
}

static void values_that_belong_into_the_prompt_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *more, *text;
    } bad[] = {
        {"\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\"}]", "messages[1].tool_calls: is not supported"},
        {"\"function_call\":{\"name\":\"f\",\"arguments\":\"{}\"}", "messages[1].function_call: is not supported"},
        {"\"audio\":{\"id\":\"audio_1\"}", "messages[1].audio: is not supported"},
        {"\"refusal\":\"I cannot.\"", "messages[1].refusal: is not supported"},
        {"\"tool_call_id\":\"a\"", "messages[1].tool_call_id: is not supported"},
        {"\"prefix\":true", "messages[1].prefix: is not supported"},
        {"\"reasoning\":5", "messages[1].reasoning: expected a string, got 5"},
        {"\"reasoning_content\":[]", "messages[1].reasoning_content: expected a string, got a list"},
        {"\"annotations\":{}", "messages[1].annotations: expected a list, got an object"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[400];
        struct err e = {0};
        struct ask a;
        snprintf(line, sizeof line, TALK("\"content\":\"B\",%s"), bad[i].more);
        assert_int_equal(read_line(&e, &a, line), ERR_NO);
        assert_string_equal(e.text, bad[i].text);
        ask_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roles_are_those_of_openai),
        cmocka_unit_test(other_roles_are_refused_by_name),
        cmocka_unit_test(messages_of_responses_are_accepted),
        cmocka_unit_test(values_that_belong_into_the_prompt_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
