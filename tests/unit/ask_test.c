/* Requests as JSON. Field names, types and ranges are those of the OpenAI and vLLM API references; docs/man/tokenize.1
 * states our own defaults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "request/ask.h"
#include "request/reply.h"

static int read_line(struct err *e, struct ask *a, const char *line)
{
    struct ask base;
    ask_default(&base);
    return ask_read(e, a, &base, line, strlen(line));
}

static void defaults_are_applied(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a, "{\"prompt\":\"x\"}"), 0);
    assert_int_equal(a.kind, ASK_TEXT);
    assert_int_equal(a.n, 1);
    assert_int_equal(a.s.max_tokens, 512);
    assert_true(a.s.temperature == 0 && a.s.top_p == 1 && a.s.repetition_penalty == 1);
    assert_int_equal(a.s.logprobs, -1);
    assert_false(a.has_seed);
    assert_true(a.specials);
    assert_null(a.id);
    ask_free(&a);
}

static void a_text_may_contain_nul(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a, "{\"prompt\":\"a\\u0000b\",\"stop\":\"\\u0000\"}"), 0);
    assert_int_equal(a.n_text, 3);
    assert_memory_equal(a.text, "a\0b", 3);
    assert_int_equal(a.s.stop[0].n, 1);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"a\"}]}"), ERR_NO);
    ask_free(&a);
}

/* A line without a list uses the array of the defaults, which ask_free does not free. */
static void arrays_of_the_defaults_are_borrowed(void **state)
{
    (void)state;
    struct err e;
    struct ask base, a, b;
    struct wire_str stop = {"END", 3};
    uint32_t id = 7;
    ask_default(&base);
    base.s.stop = &stop;
    base.s.n_stop = 1;
    base.s.stop_ids = &id;
    base.s.n_stop_id = 1;
    static const char one[] = "{\"prompt\":\"x\"}",
                      two[] = "{\"prompt\":\"x\",\"stop\":[\"A\",\"B\"],\"stop_token_ids\":[]}";
    assert_int_equal(ask_read(&e, &a, &base, one, sizeof one - 1), 0);
    assert_ptr_equal(a.s.stop, &stop);
    assert_int_equal(a.s.n_stop_id, 1);
    assert_int_equal(ask_read(&e, &b, &base, two, sizeof two - 1), 0);
    assert_int_equal(b.s.n_stop, 2);
    assert_int_equal(b.s.n_stop_id, 0);
    ask_free(&a);
    ask_free(&b);
}

static void an_invalid_line_keeps_its_id(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a, "{\"id\":\"mine\",\"prompt\":5}"), ERR_NO);
    assert_int_equal(a.n_id, 4);
    assert_memory_equal(a.id, "mine", 4);
    assert_string_equal(e.text, "prompt: expected a string or a list of token ids, got 5");
    ask_free(&a);
}

/* Every field with every wrong type is refused by name or accepted, without a crash; null counts as absent. */
static void every_field_refuses_wrong_types_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"id",
                                        "request_id",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "min_tokens",
                                        "temperature",
                                        "top_k",
                                        "top_p",
                                        "typical_p",
                                        "min_p",
                                        "repetition_penalty",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "repeat_last_n",
                                        "seed",
                                        "stop",
                                        "stop_token_ids",
                                        "ignore_eos",
                                        "logprobs",
                                        "echo",
                                        "add_special_tokens",
                                        "logit_bias",
                                        "n",
                                        "best_of",
                                        "cache_salt",
                                        "priority",
                                        "messages"};
    static const char *const values[] = {"true", "-1e99",     "\"\"", "[[]]", "[{}]",
                                         "[-1]", "{\"x\":1}", "1.5",  "9e15", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char line[256];
        struct err e = {0};
        struct ask a;
        snprintf(line, sizeof line, "{\"prompt\":\"x\",\"%s\":null}", names[i]);
        assert_int_equal(read_line(&e, &a, line), 0);
        ask_free(&a);
        int n_refused = 0;
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            snprintf(line, sizeof line, "{\"prompt\":\"x\",\"%s\":%s}", names[i], values[k]);
            if (read_line(&e, &a, line)) {
                n_refused++;
                assert_int_equal(e.code, ERR_NO);
                if (strncmp(e.text, names[i], strlen(names[i])) && strncmp(e.text, "min_tokens", 10))
                    fail_msg("%s: '%s' does not name the field", line, e.text);
            }
            ask_free(&a);
        }
        assert_true(n_refused >= 7);
    }
}

static void unsupported_fields_are_refused_unless_harmless(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int code;
    } cases[] = {
        {"{\"prompt\":\"x\",\"tools\":[{}]}", ERR_NO},
        {"{\"prompt\":\"x\",\"tools\":[]}", 0},
        {"{\"prompt\":\"x\",\"tool_choice\":\"none\"}", 0},
        {"{\"prompt\":\"x\",\"tool_choice\":\"auto\"}", ERR_NO},
        {"{\"prompt\":\"x\",\"tools\":[{}],\"tool_choice\":\"none\"}", 0},
        {"{\"prompt\":\"x\",\"tools\":{},\"tool_choice\":\"none\"}", ERR_NO},
        {"{\"prompt\":\"x\",\"tools\":[{}],\"tool_choice\":\"auto\"}", ERR_NO},
        {"{\"prompt\":\"x\",\"tools\":[],\"tool_choice\":\"auto\"}", 0},
        {"{\"prompt\":\"x\",\"tools\":[],\"tool_choice\":\"required\"}", ERR_NO},
        {"{\"prompt\":\"x\",\"functions\":[{}],\"function_call\":\"none\"}", 0},
        {"{\"prompt\":\"x\",\"functions\":[{}]}", ERR_NO},
        {"{\"prompt\":\"x\",\"function_call\":\"none\"}", 0},
        {"{\"prompt\":\"x\",\"function_call\":{\"name\":\"f\"}}", ERR_NO},
        {"{\"prompt\":\"x\",\"parallel_tool_calls\":true}", 0},
        {"{\"prompt\":\"x\",\"structured_outputs\":{\"json\":null,\"regex\":null}}", 0},
        {"{\"prompt\":\"x\",\"structured_outputs\":{\"json\":{}}}", ERR_NO},
        {"{\"prompt\":\"x\",\"kv_transfer_params\":{}}", 0},
        {"{\"prompt\":\"x\",\"guided_decoding_backend\":\"auto\"}", 0},
        {"{\"prompt\":\"x\",\"guided_decoding_backend\":\"auto\",\"guided_json\":{}}", ERR_NO},
        {"{\"prompt\":\"x\",\"response_format\":{\"type\":\"text\",\"json_schema\":null}}", 0},
        {"{\"prompt\":\"x\",\"reasoning_effort\":\"none\"}", 0},
        {"{\"prompt\":\"x\",\"reasoning_effort\":\"high\"}", ERR_NO},
        {"{\"prompt\":\"x\",\"chat_template_kwargs\":[]}", ERR_NO},
        {"{\"prompt\":\"x\",\"response_format\":{\"type\":\"text\"}}", 0},
        {"{\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}}", ERR_NO},
        {"{\"prompt\":\"x\",\"skip_special_tokens\":true}", 0},
        {"{\"prompt\":\"x\",\"skip_special_tokens\":false}", 0},
        {"{\"prompt\":\"x\",\"use_beam_search\":true}", ERR_NO},
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", ERR_NO},
        {"{\"prompt\":\"x\",\"n\":2,\"best_of\":2}", 0},
        {"{\"prompt\":\"x\",\"best_of\":2}", ERR_NO},
        {"{\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", 0},
        {"{\"prompt\":\"x\",\"logprobs\":true,\"top_logprobs\":5}", 0},
        {"{\"prompt\":\"x\",\"logprobs\":false,\"top_logprobs\":5}", ERR_NO},
        {"{\"prompt\":\"x\",\"top_k\":-1}", 0},
        {"{\"prompt\":\"x\",\"temperature\":1}", 0},
        {"{\"prompt\":\"x\",\"max_tokens\":0}", 0},
        {"{\"prompt\":\"x\",\"max_tokens\":4.0}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct ask a;
        int r = read_line(&e, &a, cases[i].line);
        if (r != cases[i].code)
            fail_msg("%s: %d %s", cases[i].line, r, e.text);
        ask_free(&a);
    }
}

static void integers_beyond_64_bits_are_handled(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a, "{\"seed\":18446744073709551615,\"prompt\":\"\\\"12345678901234567890\\\\\"}"),
                     0);
    assert_true(a.s.seed == UINT64_MAX);
    assert_string_equal(a.text, "\"12345678901234567890\\");
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"seed\":-9223372036854775808,\"prompt\":\"x\"}"), 0);
    assert_true(a.s.seed == 1ull << 63);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"seed\":-9223372036854775809,\"prompt\":\"x\"}"), ERR_NO);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"temperature\":0.12345678901234567890,\"prompt\":\"x\"}"), 0);
    ask_free(&a);
    assert_int_equal(read_line(&e, &a, "{\"id\" : 123456789012345678901,\"prompt\":\"x\"}"), 0);
    assert_int_equal(a.n_id, 21);
    assert_memory_equal(a.id, "123456789012345678901", 21);
    ask_free(&a);
}

/* A number is not accepted as a string, whatever its length, and one of 19 digits that fits 64 bits stays an integer.
 */
static void a_long_number_is_not_accepted_as_a_string(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    static const char *const refused[] = {
        "{\"prompt\":99999999999999999999}", "{\"prompt\":\"x\",\"stop\":99999999999999999999}",
        "{\"prompt\":\"x\",\"stop\":[-99999999999999999999]}", "{\"prompt\":\"x\",\"cache_salt\":99999999999999999999}",
        "{\"messages\":[{\"role\":\"user\",\"content\":99999999999999999999}]}"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_int_equal(read_line(&e, &a, refused[i]), ERR_NO);
        assert_non_null(strstr(e.text, "got "));
        ask_free(&a);
    }
    assert_int_equal(read_line(&e, &a,
                               "{\"prompt\":\"x\",\"x_a\":1234567890123456789,\"x_b\":[9223372036854775807,"
                               "-9223372036854775808],\"x_c\":9223372036854775808}"),
                     0);
    json_t *want = json_pack("{s:I,s:[I,I],s:f}", "x_a", (json_int_t)1234567890123456789, "x_b", (json_int_t)INT64_MAX,
                             (json_int_t)INT64_MIN, "x_c", 9223372036854775808.0);
    assert_true(json_equal(a.extra, want));
    json_decref(want);
    ask_free(&a);
}

static void ids_beyond_the_vocabulary_are_refused(void **state)
{
    (void)state;
    struct err e;
    struct ask a;
    assert_int_equal(read_line(&e, &a, "{\"prompt\":[1,99],\"stop_token_ids\":[98],\"logit_bias\":{\"97\":1}}"), 0);
    assert_int_equal(ask_check_ids(&e, &a, 100), 0);
    assert_int_equal(ask_check_ids(&e, &a, 99), ERR_NO);
    assert_non_null(strstr(e.text, "prompt[1]"));
    a.n_ids = 0;
    assert_int_equal(ask_check_ids(&e, &a, 98), ERR_NO);
    assert_non_null(strstr(e.text, "stop_token_ids[0]"));
    a.s.n_stop_id = 0;
    assert_int_equal(ask_check_ids(&e, &a, 97), ERR_NO);
    assert_non_null(strstr(e.text, "logit_bias.97"));
    ask_free(&a);
}

static void durations_use_one_clock_per_host(void **state)
{
    (void)state;
    /* prefill ends at 100, the first token is known at 110, decode begins its first step at 113. */
    struct wire_span span[] = {
        {.stage = {"tokenize", 8}, .host = {"h", 1}, .queued_ns = 10, .start_ns = 10, .end_ns = 20},
        {.stage = {"prefill", 7}, .host = {"h", 1}, .queued_ns = 25, .start_ns = 30, .end_ns = 100},
        {.stage = {"decode", 6}, .host = {"h", 1}, .queued_ns = 26, .start_ns = 113, .end_ns = 300},
    };
    struct wire_end w = {.born_ns = 5, .first_ns = 110, .last_ns = 290, .span = span, .n_span = 3};
    struct reply_times t;
    reply_times(&t, &w);
    assert_int_equal(t.ttft_ns, 105);
    assert_int_equal(t.total_ns, 285);
    assert_int_equal(t.prefill_ns, 70);
    assert_int_equal(t.decode_ns, 180);
    assert_int_equal(t.transfer_ns, 10);
    assert_int_equal(t.queue_ns, 5 + 3);
    /* On three hosts only durations are used: 10 + 75 until the first token. */
    span[1].host.p = "i";
    span[2].host.p = "j";
    reply_times(&t, &w);
    assert_int_equal(t.ttft_ns, 85);
    assert_int_equal(t.total_ns, 85 + 180);
    assert_int_equal(t.transfer_ns, 0);
    /* A clock that runs backwards does not give a huge number. */
    w.last_ns = 1;
    reply_times(&t, &w);
    assert_int_equal(t.decode_ns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_applied),
        cmocka_unit_test(a_text_may_contain_nul),
        cmocka_unit_test(arrays_of_the_defaults_are_borrowed),
        cmocka_unit_test(an_invalid_line_keeps_its_id),
        cmocka_unit_test(every_field_refuses_wrong_types_by_name),
        cmocka_unit_test(unsupported_fields_are_refused_unless_harmless),
        cmocka_unit_test(integers_beyond_64_bits_are_handled),
        cmocka_unit_test(a_long_number_is_not_accepted_as_a_string),
        cmocka_unit_test(ids_beyond_the_vocabulary_are_refused),
        cmocka_unit_test(durations_use_one_clock_per_host),
    };
    return cmocka_run_group_tests_name("edge", tests, NULL, NULL);
}
