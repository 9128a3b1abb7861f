/* The error of a request that exceeds the context length. The wording is that of OpenAI and of vLLM 0.9, which has all
 * numbers; vLLM 0.32 keeps the first sentence only. litellm's ExceptionCheckers.is_error_str_context_window_exceeded
 * and others look for that sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "request/ask.h"

static void the_text_is_that_of_openai_and_vllm(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(ask_context_error(&e, &(struct ask_context){8192, 9031, 6, false}), ERR_NO);
    assert_string_equal(e.text,
                        "This model's maximum context length is 8192 tokens. However, you requested 9037 tokens "
                        "(9031 in the messages, 6 in the completion). Please reduce the length of the messages "
                        "or completion.");
    ask_context_error(&e, &(struct ask_context){8192, 30000, 1, true});
    assert_string_equal(e.text, "This model's maximum context length is 8192 tokens. However, you requested at least "
                                "30001 tokens (at least 30000 in the messages, 1 in the completion). Please reduce the "
                                "length of the messages or completion.");
}

static void the_numbers_are_read_back(void **state)
{
    (void)state;
    for (int least = 0; least < 2; least++) {
        struct err e = {0};
        struct ask_context c = {0};
        ask_context_error(&e, &(struct ask_context){UINT32_MAX, UINT64_MAX / 2, 7, least});
        assert_true(ask_context_read(&c, e.text));
        assert_true(c.context == UINT32_MAX && c.n_prompt == UINT64_MAX / 2 && c.n_answer == 7 && c.at_least == least);
    }
}

static void other_texts_are_not_read(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        "max_tokens: expected an integer from 0 to 4294967295, got -1",
        "This model's maximum context length is ",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
        "This model's maximum context length is 8192 tokens. However, you requested 9 tokens",
        "This model's maximum context length is 8192 tokens. However, you requested 9 tokens (8 in the messages",
        "x This model's maximum context length is 8192 tokens. However, you requested 9 tokens (8 in the messages, 1 "
        "in "
        "the completion).",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct ask_context c = {.context = 3};
        assert_false(ask_context_read(&c, texts[i]));
        assert_int_equal(c.context, 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_that_of_openai_and_vllm),
        cmocka_unit_test(the_numbers_are_read_back),
        cmocka_unit_test(other_texts_are_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
