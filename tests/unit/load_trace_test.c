/* Traces and lists of requests. Expected values are read off the lines: differences of the times, the lengths, the ids.
 * The lines are from the published traces of Azure and Mooncake. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "load/load.h"

static int line_of(struct load_items *t, double *zero, const char *line)
{
    struct err e = {0};
    int rc = load_trace_line(&e, t, zero, line, strlen(line));
    assert_true(!rc == !*e.text);
    return rc;
}

/* The error text of a line that is refused. */
static const char *error_of(struct load_items *t, double *zero, const char *line)
{
    static struct err e;
    size_t n = t->n;
    e = (struct err){0};
    assert_int_equal(load_trace_line(&e, t, zero, line, strlen(line)), ERR_NO);
    assert_int_equal(t->n, n);
    return e.text;
}

static void test_azure_traces_parse(void **state)
{
    (void)state;
    struct load_items t = {0};
    double zero = -1;
    assert_int_equal(line_of(&t, &zero, "# a comment\n"), 0);
    assert_int_equal(line_of(&t, &zero, "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"), 0);
    assert_int_equal(t.n, 0);
    assert_int_equal(line_of(&t, &zero, "2023-11-16 18:17:03.9799600,4808,10\r\n"), 0);
    assert_int_equal(line_of(&t, &zero, "2023-11-16 18:17:04.0319600,3180,8\n"), 0);
    assert_int_equal(line_of(&t, &zero, "\n"), 0);
    assert_int_equal(line_of(&t, &zero, "2023-11-17 18:17:04.9799600,7,0"), 0);
    assert_int_equal(t.n, 3);
    assert_true(t.v[0].at_s == 0);
    assert_true(fabs(t.v[1].at_s - 0.052) < 1e-9);
    assert_true(fabs(t.v[2].at_s - 86401) < 1e-9);
    assert_int_equal(t.v[0].n_prompt, 4808);
    assert_int_equal(t.v[1].n_out, 8);
    assert_int_equal(t.v[2].n_out, 1); /* an answer has at least one token */
    assert_int_equal(line_of(&t, &zero, "2023-11-15 18:17:04.9799600,7,3"), ERR_NO);
    assert_int_equal(line_of(&t, &zero, "2023-11-17 18:17:04.9799600,0,3"), ERR_NO);
    assert_int_equal(line_of(&t, &zero, "2023-11-17 18:17:04.9799600,1e9,3"), ERR_NO);
    assert_int_equal(line_of(&t, &zero, "2023-11-17 18:17:04.9799600,nan,3"), ERR_NO);
    assert_int_equal(line_of(&t, &zero, "2023-11-17 18:17,7,3"), ERR_NO);
    assert_int_equal(line_of(&t, &zero, "hello"), ERR_NO);
    static const char *const no_time[] = {
        "2023-13-17 18:17:04,7,3", "2023-00-17 18:17:04,7,3", "2023-11-32 18:17:04,7,3", "2023-11-00 18:17:04,7,3",
        "2023-11-18 24:00:00,7,3", "2023-11-18 18:60:00,7,3", "2023-11-18 18:17:61,7,3", "2023-11-18 99:99:99,7,3",
        "2023-11-18 18:-1:00,7,3", "2023-11-18 18:17:-1,7,3", "2023-11-18 18:17:nan,7,3"};
    for (size_t i = 0; i < sizeof no_time / sizeof *no_time; i++)
        assert_memory_equal(error_of(&t, &zero, no_time[i]), "TIMESTAMP: ", 11);
    assert_int_equal(line_of(&t, &zero, "2023-12-31 23:59:60.5,7,3"), 0); /* a leap second */
    assert_int_equal(t.n, 4);
    load_items_free(&t);
}

static void test_mooncake_traces_parse(void **state)
{
    (void)state;
    struct load_items t = {0};
    double zero = -1;
    assert_int_equal(line_of(&t, &zero,
                             "{\"timestamp\": 0, \"input_length\": 2290, \"output_length\": 316, \"hash_ids\": [0, 42, "
                             "43, 44, 45]}\n"),
                     0);
    assert_int_equal(
        line_of(&t, &zero,
                "{\"timestamp\": 27482, \"input_length\": 600, \"output_length\": 3, \"hash_ids\": [0, 46, "
                "47, 48]}"),
        0);
    assert_int_equal(line_of(&t, &zero, "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 3}"), 0);
    assert_int_equal(t.n, 3);
    assert_true(fabs(t.v[1].at_s - 27.482) < 1e-9);
    assert_int_equal(t.v[0].n_prompt, 2290);
    assert_int_equal(t.v[0].n_out, 316);
    assert_int_equal(t.v[0].n_hash, 5); /* 4.47 blocks of 512 */
    assert_int_equal(t.v[0].hash[4], 45);
    assert_int_equal(t.v[1].n_hash, 2); /* no more than it has blocks */
    assert_int_equal(t.v[2].n_hash, 0);
    static const char *const bad[] = {
        "{",
        "{}",
        "{\"timestamp\": -1, \"input_length\": 6, \"output_length\": 3}",
        "{\"timestamp\": 1, \"input_length\": 0, \"output_length\": 3}",
        "{\"timestamp\": 1, \"input_length\": 9, \"output_length\": 3, \"hash_ids\": [\"x\"]}",
        "{\"timestamp\": 1, \"input_length\": 99999999, \"output_length\": 3}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(line_of(&t, &zero, bad[i]), ERR_NO);
    static const char *const named[][2] = {
        {"{\"input_length\": 6, \"output_length\": 3}", "timestamp is missing"},
        {"{\"timestamp\": \"x\", \"input_length\": 6, \"output_length\": 3}", "timestamp is not a number"},
        {"{\"timestamp\": null, \"input_length\": 6, \"output_length\": 3}", "timestamp is not a number"},
        {"{\"timestamp\": -1, \"input_length\": 6, \"output_length\": 3}",
         "timestamp: -1 is not a time in ms from 0 to 1e15"},
        {"{\"timestamp\": 1, \"output_length\": 3}", "input_length is missing"},
        {"{\"timestamp\": 1, \"input_length\": 6}", "output_length is missing"},
        {"{\"timestamp\": 1, \"input_length\": 6, \"output_length\": \"3\"}", "output_length is not a number"},
        {"{\"timestamp\": 1, \"input_length\": 6, \"output_length\": 3, \"hash_ids\": 7}", "hash_ids is not a list"}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        assert_string_equal(error_of(&t, &zero, named[i][0]), named[i][1]);
    assert_int_equal(line_of(&t, &zero,
                             "{\"timestamp\": 1, \"input_length\": 6, \"output_length\": 3, "
                             "\"hash_ids\": null}"),
                     0);
    assert_int_equal(t.n, 4);
    load_items_free(&t);
}

static int list_line(struct load_items *t, const char *line)
{
    struct err e = {0};
    return load_list_line(&e, t, line, strlen(line));
}

static void test_lists_parse(void **state)
{
    (void)state;
    struct load_items t = {0};
    assert_int_equal(list_line(&t, "{\"prompt\": \"a \\\"b\\\" é\", \"output_tokens\": 7}\n"), 0);
    assert_int_equal(list_line(&t, "{\"prompt\": [1, 2, 3], \"max_tokens\": 9, \"x\": 1}"), 0);
    assert_int_equal(list_line(&t, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"), 0);
    assert_int_equal(list_line(&t, " \n"), 0);
    assert_int_equal(t.n, 3);
    assert_string_equal(t.v[0].body, "\"a \\\"b\\\" é\"");
    assert_int_equal(t.v[0].n_out, 7);
    assert_int_equal(t.v[0].n_prompt, 0);
    assert_string_equal(t.v[1].body, "[1,2,3]");
    assert_int_equal(t.v[1].n_prompt, 3);
    assert_int_equal(t.v[1].n_out, 9);
    assert_false(t.v[1].chat);
    assert_true(t.v[2].chat);
    assert_int_equal(t.v[2].n_out, 0);
    assert_int_equal(t.v[2].n_prompt, 0);
    assert_string_equal(t.v[2].body, "[{\"role\":\"user\",\"content\":\"hi\"}]");
    static const char *const bad[] = {"{",
                                      "[]",
                                      "{}",
                                      "{\"prompt\": []}",
                                      "{\"prompt\": [\"a\"]}",
                                      "{\"prompt\": 7}",
                                      "{\"messages\": \"x\"}",
                                      "{\"prompt\": \"x\", \"max_tokens\": 0}",
                                      "{\"prompt\": \"x\", \"output_tokens\": \"many\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(list_line(&t, bad[i]), ERR_NO);
    assert_int_equal(t.n, 3);
    load_items_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_azure_traces_parse),
        cmocka_unit_test(test_mooncake_traces_parse),
        cmocka_unit_test(test_lists_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
