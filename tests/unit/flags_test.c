/* Flags of a request as fields of JSON: the fields of a line itself count, and null is no value (as docs/man/tokenize.1
 * has it). The fields are those of tokenize, whose reader judges them here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/vec.h"
#include "request/flags.h"

static struct ask_flags f;

static int setup(void **state)
{
    (void)state;
    ask_flags_init(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ask_flags_free(&f);
    return 0;
}

static void list(struct cli_list *l, const char *s)
{
    assert_true(vec_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v));
    l->v[l->n++] = s;
}

/* The line with the flags, read as tokenize reads it. */
static void read_with(struct ask *a, char **line, const char *s)
{
    struct err e = {0};
    struct ask base;
    struct ask_line l;
    if (ask_line_with_flags(&e, &l, &f, s, strlen(s)))
        fail_msg("%s", e.text);
    *line = l.text;
    assert_int_equal(l.n, strlen(l.text));
    ask_default(&base);
    if (ask_read(&e, a, &base, l.text, l.n))
        fail_msg("%s: %s", l.text, e.text);
    /* The id beside the line is the one that is read from it. */
    assert_int_equal(l.n_id, a->n_id);
    if (a->n_id)
        assert_memory_equal(l.id, a->id, a->n_id);
    free(l.id);
}

static void test_lines_fields_count(void **state)
{
    (void)state;
    struct ask a;
    char *line;
    f.max_tokens = 9;
    f.temp = 0.5;
    f.top_k = 3;
    f.seed = UINT64_MAX;
    f.given.max_tokens = f.given.temp = f.given.top_k = f.given.seed = true;
    list(&f.stop, "END");
    list(&f.stop_id, "7");
    list(&f.bias, "5=-1.5");
    read_with(&a, &line, "{\"prompt\":\"x\",\"temperature\":0.25,\"top_k\":null,\"id\":18446744073709551615}");
    assert_int_equal(a.s.max_tokens, 9);
    assert_true(a.s.temperature == 0.25f);
    assert_int_equal(a.s.top_k, 3);
    assert_true(a.has_seed && a.s.seed == UINT64_MAX);
    assert_int_equal(a.s.n_stop, 1);
    assert_int_equal(a.s.n_stop_id, 1);
    assert_true(a.s.n_bias == 1 && a.s.bias[0].id == 5 && a.s.bias[0].bias == -1.5f);
    assert_memory_equal(a.id, "18446744073709551615", 20);
    ask_free(&a);
    free(line);
    read_with(&a, &line, "{\"prompt\":\"x\",\"max_completion_tokens\":4}");
    assert_int_equal(a.s.max_tokens, 4);
    ask_free(&a);
    free(line);
    read_with(&a, &line,
              "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\"}}");
    assert_int_equal(a.s.max_tokens, 9);
    assert_memory_equal(a.id, "c", 1);
    ask_free(&a);
    free(line);
}

static void test_system(void **state)
{
    (void)state;
    struct ask a;
    char *line;
    f.system = "be brief";
    read_with(&a, &line, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_int_equal(a.n_message, 2);
    assert_string_equal(a.messages[0].role, "system");
    ask_free(&a);
    free(line);
    read_with(&a, &line,
              "{\"messages\":[{\"role\":\"system\",\"content\":\"mine\"},{\"role\":\"user\",\"content\":\"hi\"}]}");
    assert_int_equal(a.n_message, 2);
    assert_memory_equal(a.messages[0].content, "mine", 4);
    ask_free(&a);
    free(line);
    read_with(&a, &line, "{\"prompt\":\"x\"}");
    assert_int_equal(a.kind, ASK_TEXT);
    ask_free(&a);
    free(line);
}

/* The reader reports what is wrong with it. */
static void test_what_is_no_request_stays(void **state)
{
    (void)state;
    static const char *const lines[] = {"", "{", "[1]", "{\"a\":1,\"a\":2}", "nonsense"};
    struct err e;
    f.given.max_tokens = true;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct ask_line l;
        assert_int_equal(ask_line_with_flags(&e, &l, &f, lines[i], strlen(lines[i])), 0);
        assert_int_equal(l.n, strlen(lines[i]));
        assert_string_equal(l.text, lines[i]);
        assert_null(l.id);
        ask_line_free(&l);
    }
}

/* Without flags the text of a line is kept byte by byte; its id is known all the same. */
static void test_ids(void **state)
{
    (void)state;
    static const struct {
        const char *line, *id; /* NULL: none */
    } cases[] = {
        {"{ \"prompt\": \"x\" }", NULL},
        {"{\"prompt\":\"x\",\"id\":null}", NULL},
        {"{\"prompt\":\"x\",\"id\":\"\"}", NULL}, /* wrong, and no id */
        {"{ \"prompt\": \"x\", \"id\": \"mine\" }", "mine"},
        {"{\"prompt\":\"x\",\"id\":7}", "7"},
        {"{\"prompt\":\"x\",\"id\":18446744073709551615}", "18446744073709551615"},
        {"{\"custom_id\":\"c\",\"id\":\"a\",\"request_id\":\"b\"}", "c"},
        {"{\"id\":\"a\",\"request_id\":[]}", "a"},
        {"{\"custom_id\":\"c\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\"}}", "c"},
        {"{\"custom_id\":\"c\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":\"x\",\"id\":\"b\"}}", "b"},
    };
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ask_line l;
        assert_int_equal(ask_line_with_flags(&e, &l, &f, cases[i].line, strlen(cases[i].line)), 0);
        assert_string_equal(l.text, cases[i].line);
        if (cases[i].id) {
            assert_int_equal(l.n_id, strlen(cases[i].id));
            assert_string_equal(l.id, cases[i].id);
        } else {
            assert_null(l.id);
        }
        ask_line_free(&l);
    }
}

static void test_a_text(void **state)
{
    (void)state;
    struct err e;
    struct ask base, a;
    struct ask_line l;
    ask_default(&base);
    f.system = "s";
    f.echo = true;
    assert_int_equal(ask_line_of_text(&e, &l, &f, false, "a\0\"\xff", 4), 0);
    assert_int_equal(ask_read(&e, &a, &base, l.text, l.n), 0);
    assert_int_equal(a.n_message, 2);
    assert_int_equal(a.messages[1].n_content, 6);
    assert_memory_equal(a.messages[1].content, "a\0\"\xef\xbf\xbd", 6);
    assert_true(a.s.echo);
    ask_free(&a);
    ask_line_free(&l);
    f.system = NULL;
    assert_int_equal(ask_line_of_text(&e, &l, &f, true, "x", 1), 0);
    assert_int_equal(ask_read(&e, &a, &base, l.text, l.n), 0);
    assert_int_equal(a.kind, ASK_TEXT);
    assert_int_equal(a.s.max_tokens, 512);
    ask_free(&a);
    ask_line_free(&l);
}

static void test_wrong_flags(void **state)
{
    (void)state;
    struct err e;
    json_t *o;
    list(&f.stop_id, "x");
    assert_int_equal(ask_flags_json(&e, &o, &f), ERR_USAGE);
    f.stop_id.n = 0;
    list(&f.bias, "1=2");
    list(&f.bias, "1=3");
    assert_int_equal(ask_flags_json(&e, &o, &f), ERR_USAGE);
    f.min_tokens = 513;
    assert_int_equal(ask_flags_check(&e, &f), ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lines_fields_count, setup, teardown),
        cmocka_unit_test_setup_teardown(test_system, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_no_request_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ids, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_flags, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
