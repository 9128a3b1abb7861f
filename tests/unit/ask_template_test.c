/* What requests demand of a chat template. A variable that a template does not use has no effect in jinja2, so that a
 * demand for it is met; enable_thinking is true unless Qwen3's template gets another value. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "request/ask.h"
#include "unit/text_gguf.h"
#include "unit/text_model.h"

#define TURNS "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
#define THINKS                                                                                                         \
    TURNS "{% if not_enable_thinking %}{% endif %}{% if enable_thinking is defined %}<think>\n\n</think>{% endif %}"

static int set_up(void **state)
{
    *state = default_model();
    return 0;
}

static int tear_down(void **state)
{
    gguf_free(*state);
    return 0;
}

static struct text *text_with(void **state, const char *template)
{
    struct other o = {.pre = "smollm", .template = template, .add_bos = -1, .eos = 2};
    struct text *t = open_other(*state, &o);
    assert_non_null(t);
    return t;
}

static void expect(const struct text *t, const char *fields, const char *error)
{
    char line[500];
    struct ask base, a;
    struct err e = {0};
    ask_default(&base);
    snprintf(line, sizeof line, "{\"messages\":[{\"role\":\"user\",\"content\":\"A\"}],%s}", fields);
    assert_int_equal(ask_read(&e, &a, &base, line, strlen(line)), 0);
    int rc = ask_check_template(&e, &a, t);
    if (rc != (error ? ERR_NO : 0))
        fail_msg("%s: %d %s", fields, rc, e.text);
    if (error)
        assert_int_equal(strncmp(e.text, error, strlen(error)), 0);
    ask_free(&a);
}

static void variables_that_the_template_does_not_use_are_accepted(void **state)
{
    struct text *plain = text_with(state, TURNS), *thinks = text_with(state, THINKS);
    expect(plain, "\"chat_template_kwargs\":{\"enable_thinking\":false}", NULL);
    expect(plain, "\"chat_template_kwargs\":{\"enable_thinking\":true,\"thinking\":false,\"mess\":1}", NULL);
    expect(plain, "\"chat_template_kwargs\":{\"messages\":[]}", "chat_template_kwargs.messages: ");
    expect(thinks, "\"chat_template_kwargs\":{\"enable_thinking\":false}", "chat_template_kwargs.enable_thinking: ");
    expect(thinks, "\"chat_template_kwargs\":{\"enable_thinking\":true}", NULL);
    expect(thinks, "\"chat_template_kwargs\":{\"enable_thinking\":null,\"enable\":1,\"\":2}", NULL);
    expect(plain, "\"reasoning_effort\":\"none\"", NULL);
    expect(thinks, "\"reasoning_effort\":\"none\"", "reasoning_effort: ");
    text_free(plain);
    text_free(thinks);
}

static void the_template_of_the_model_is_accepted(void **state)
{
    struct text *t = text_with(state, "<|im_start|><|im_end|>");
    expect(t, "\"chat_template\":\"<|im_start|><|im_end|>\"", NULL);
    expect(t, "\"chat_template\":\"<|im_start|><|im_end|> \"", "chat_template: ");
    expect(t, "\"chat_template\":\"\"", "chat_template: ");
    text_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variables_that_the_template_does_not_use_are_accepted),
        cmocka_unit_test(the_template_of_the_model_is_accepted),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
