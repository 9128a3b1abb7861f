/* Less common fields of requests. Names, types and ranges are those of vLLM's API reference; strict_window and
 * prefix_token_ids are our own (docs/man/tokenize.1), typical_p and repeat_last_n llama.cpp's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "request/ask.h"

static int read_line(struct err *e, struct ask *a, const char *line)
{
    struct ask base;
    ask_default(&base);
    return ask_read(e, a, &base, line, strlen(line));
}

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

struct row {
    const char *line;
    const char *error; /* start of the error text; NULL: no error */
};

static void check(const struct row *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct err e = {0};
        struct ask a;
        int r = read_line(&e, &a, row[i].line);
        if ((r != 0) != (row[i].error != NULL) || (r && r != ERR_NO))
            fail_msg("%s: %d %s", row[i].line, r, e.text);
        if (r && strncmp(e.text, row[i].error, strlen(row[i].error)))
            fail_msg("%s: %s", row[i].line, e.text);
        ask_free(&a);
    }
}
#define CHECK(rows) check(rows, sizeof(rows) / sizeof *(rows))

static void fields_are_checked_by_type_and_range(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {"{\"prompt\":\"x\",\"return_token_ids\":true,\"return_tokens_as_token_ids\":true}", NULL},
        {"{\"prompt\":\"x\",\"spaces_between_special_tokens\":false}", NULL},
        {"{\"prompt\":\"x\",\"spaces_between_special_tokens\":0}", "spaces_between_special_tokens: expected true"},
        {"{\"prompt\":\"x\",\"return_token_ids\":\"yes\"}", "return_token_ids: expected true or false"},
        {"{\"prompt\":\"x\",\"truncate_prompt_tokens\":-1}", NULL},
        {"{\"prompt\":\"x\",\"typical_p\":0.7,\"repeat_last_n\":33.0}", NULL},
        {"{\"prompt\":\"x\",\"typical_p\":1,\"repeat_last_n\":-1}", NULL},
        {"{\"prompt\":\"x\",\"typical_p\":0}", "typical_p: expected a number above 0 up to 1, got 0"},
        {"{\"prompt\":\"x\",\"typical_p\":1.01}", "typical_p: expected a number above 0 up to 1, got 1.01"},
        {"{\"prompt\":\"x\",\"typical_p\":\"1\"}", "typical_p: expected a number above 0 up to 1, got a string"},
        {"{\"prompt\":\"x\",\"repeat_last_n\":-2}", "repeat_last_n: expected an integer from -1 to 2147483647"},
        {"{\"prompt\":\"x\",\"repeat_last_n\":2147483648}", "repeat_last_n: expected an integer from -1"},
        {"{\"prompt\":\"x\",\"repeat_last_n\":0.5}", "repeat_last_n: expected an integer from -1"},
        {"{\"prompt\":\"x\",\"truncate_prompt_tokens\":5.0}", NULL},
        {"{\"prompt\":\"x\",\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens: expected"},
        {"{\"prompt\":\"x\",\"truncate_prompt_tokens\":-2}", "truncate_prompt_tokens: expected"},
        {"{\"prompt\":\"x\",\"truncate_prompt_tokens\":1e300}", "truncate_prompt_tokens: expected"},
        {"{\"prompt\":\"x\",\"truncate_prompt_tokens\":[5]}", "truncate_prompt_tokens: expected"},
        {"{\"prompt\":\"x\",\"strict_window\":1}", "strict_window: expected true or false, got 1"},
        {"{\"prompt\":\"x\",\"prefix_token_ids\":[]}", NULL},
        {"{\"prompt\":\"x\",\"prefix_token_ids\":[1,-1]}", "prefix_token_ids[1]: expected"},
        {"{\"prompt\":\"x\",\"prefix_token_ids\":[4294967296]}", "prefix_token_ids[0]: expected"},
        {"{\"prompt\":\"x\",\"prefix_token_ids\":\"1\"}", "prefix_token_ids: expected a list of token ids"},
        {"{\"prompt\":\"x\",\"allowed_token_ids\":[5,6]}", NULL},
        {"{\"prompt\":\"x\",\"allowed_token_ids\":null}", NULL},
        {"{\"prompt\":\"x\",\"allowed_token_ids\":[]}", "allowed_token_ids: must not be empty"},
        {"{\"prompt\":\"x\",\"allowed_token_ids\":{\"5\":1}}", "allowed_token_ids: expected a list of token ids"},
        {"{\"prompt\":\"x\",\"allowed_token_ids\":[5,\"6\"]}", "allowed_token_ids[1]: expected"},
        {"{\"prompt\":\"x\",\"bad_words\":[]}", NULL},
        {"{\"prompt\":\"x\",\"bad_words\":[\" rain\",\"a b\"]}", NULL},
        {"{\"prompt\":\"x\",\"bad_words\":\"rain\"}", "bad_words: expected a list of strings"},
        {"{\"prompt\":\"x\",\"bad_words\":[\"rain\",5]}", "bad_words[1]: expected a string, got 5"},
        {"{\"prompt\":\"x\",\"bad_words\":[\"\"]}", "bad_words[0]: must not be empty"},
        {"{\"prompt\":\"x\",\"bad_words\":[\"a\",\" \\n\"]}", "bad_words[1]: must not be blank"},
        {"{\"prompt\":\"x\",\"skip_special_tokens\":false,\"include_stop_str_in_output\":true}", NULL},
        {"{\"prompt\":\"x\",\"skip_special_tokens\":0}", "skip_special_tokens: expected true or false"},
        {"{\"prompt\":\"x\",\"include_stop_str_in_output\":\"a\"}", "include_stop_str_in_output: expected true"},
        {"{\"prompt\":\"x\",\"prompt_logprobs\":0}", NULL},
        {"{\"prompt\":\"x\",\"prompt_logprobs\":65}", "prompt_logprobs: expected an integer from 0 to 64"},
        {"{\"prompt\":\"x\",\"prompt_logprobs\":-1}", "prompt_logprobs: expected"},
        {"{\"prompt\":\"x\",\"prompt_logprobs\":true}", "prompt_logprobs: expected"},
        {"{\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"strict_window\":7}}", "body.strict_window: "},
    };
    CHECK(rows);
}

/* vLLM: "Cannot set both `continue_final_message` and `add_generation_prompt` to True", and the default of the latter
 * is true. */
static void generation_prompt_and_continuation_exclude_each_other(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {CHAT ",\"add_generation_prompt\":true,\"continue_final_message\":false}", NULL},
        {CHAT ",\"continue_final_message\":true}",
         "continue_final_message: is allowed only if add_generation_prompt is false"},
        {CHAT ",\"add_generation_prompt\":true,\"continue_final_message\":true}",
         "continue_final_message: is allowed only if"},
        {CHAT ",\"add_generation_prompt\":\"no\"}", "add_generation_prompt: expected"},
        {"{\"prompt\":\"x\",\"add_generation_prompt\":true}", NULL},
        {"{\"prompt\":\"x\",\"add_generation_prompt\":false}", "add_generation_prompt: is allowed only with messages"},
    };
    CHECK(rows);
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a, CHAT "}"), 0);
    assert_int_equal(a.chat_end, TEXT_CHAT_ANSWER);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, CHAT ",\"add_generation_prompt\":false}"), 0);
    assert_int_equal(a.chat_end, TEXT_CHAT_CLOSED);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, CHAT ",\"continue_final_message\":true,\"add_generation_prompt\":false}"), 0);
    assert_int_equal(a.chat_end, TEXT_CHAT_OPEN);
    ask_free(&a);
}

static void values_reach_the_request(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a,
                               "{\"prompt\":[1],\"prefix_token_ids\":[9,8],\"truncate_prompt_tokens\":-1,"
                               "\"strict_window\":true,\"max_tokens\":3}"),
                     0);
    assert_int_equal(a.n_prefix, 2);
    assert_int_equal(a.prefix[0], 9);
    assert_int_equal(a.truncate, -1);
    assert_true(a.strict_window && a.has_max_tokens);
    assert_int_equal(ask_check_ids(&e, &a, 10), 0);
    assert_int_equal(ask_check_ids(&e, &a, 9), ERR_NO);
    assert_non_null(strstr(e.text, "prefix_token_ids[0]: token id 9 is out of vocabulary: the model has 9 ids"));
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"prompt\":\"x\",\"strict_window\":true}"), 0);
    assert_false(a.has_max_tokens);
    assert_true(a.s.typical_p == 1 && a.s.penalty_last_n == -1);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"prompt\":\"x\",\"typical_p\":0.7,\"repeat_last_n\":33.0}"), 0);
    assert_true(a.s.typical_p == 0.7f && a.s.penalty_last_n == 33);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"prompt\":\"x\",\"typical_p\":1e-300}"), 0); /* above 0 as a float too */
    assert_true(a.s.typical_p > 0);
    ask_free(&a);
}

static void allowed_ids_and_bad_words_are_read(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(
        read_line(&e, &a,
                  "{\"prompt\":[1],\"allowed_token_ids\":[9,8],\"bad_words\":[\" \\tof  it\"],"
                  "\"skip_special_tokens\":false,\"include_stop_str_in_output\":true,\"prompt_logprobs\":3}"),
        0);
    assert_int_equal(a.s.n_allowed, 2);
    assert_int_equal(a.s.allowed[1], 8);
    assert_int_equal(a.n_bad, 1);
    assert_int_equal(a.bad[0].n, 6);
    assert_memory_equal(a.bad[0].p, "of  it", 6);
    assert_true(a.s.special_text && a.s.keep_stop && a.s.prompt_logprobs == 3);
    assert_int_equal(ask_check_ids(&e, &a, 9), ERR_NO);
    assert_non_null(strstr(e.text, "allowed_token_ids[0]: token id 9 is out of vocabulary: the model has 9 ids"));
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"prompt\":\"x\"}"), 0);
    assert_true(!a.s.special_text && !a.s.keep_stop && a.s.prompt_logprobs == -1 && !a.s.n_allowed && !a.n_bad);
    ask_free(&a);
}

/* One element more than each limit is refused. */
static void one_more_than_each_limit_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *field, *one;
        size_t n;
    } most[] = {{"allowed_token_ids", "1", WIRE_ALLOWED_MAX}, {"bad_words", "\"a\"", ASK_BAD_WORDS_MAX}};
    for (size_t i = 0; i < sizeof most / sizeof *most; i++)
        for (size_t more = 0; more < 2; more++) {
            struct err e;
            struct ask a;
            size_t n = most[i].n + more, n_one = strlen(most[i].one);
            size_t size = n * (n_one + 1) + 100;
            char *line = malloc(size), *p = line;
            assert_non_null(line);
            p += snprintf(p, size, "{\"prompt\":\"x\",\"%s\":[", most[i].field);
            for (size_t k = 0; k < n; k++, *p++ = k < n ? ',' : ']')
                p = (char *)memcpy(p, most[i].one, n_one) + n_one;
            memcpy(p, "}", 2);
            assert_int_equal(read_line(&e, &a, line), more ? ERR_NO : 0);
            if (more)
                assert_non_null(strstr(e.text, "the limit is"));
            ask_free(&a);
            free(line);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_are_checked_by_type_and_range),
        cmocka_unit_test(generation_prompt_and_continuation_exclude_each_other),
        cmocka_unit_test(values_reach_the_request),
        cmocka_unit_test(allowed_ids_and_bad_words_are_read),
        cmocka_unit_test(one_more_than_each_limit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
