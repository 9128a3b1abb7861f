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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roles_are_those_of_openai),
        cmocka_unit_test(other_roles_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
