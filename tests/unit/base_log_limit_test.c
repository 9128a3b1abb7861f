/* The limit on log lines that peers cause: 10 a second. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/log_limit.h"
#include "base/str.h"
#include "base/time.h"

static void log_line(void *arg, const char *text)
{
    str_add_text(arg, text);
    str_add_char(arg, '\n');
}

static void log_n(struct log_limit *l, struct str *log, uint64_t now_ns, int n)
{
    for (int i = 0; i < n; i++)
        log_limit(l, now_ns, "x", log_line, log);
}

static void ten_lines_a_second_pass(void **state)
{
    (void)state;
    struct log_limit l = {0};
    struct str log = {0};
    log_n(&l, &log, 0, 7);
    log_n(&l, &log, NS_S - 1, 4);
    assert_string_equal(str_text(&log), "x\nx\nx\nx\nx\nx\nx\nx\nx\nx\n");
    str_free(&log);
}

static void the_next_second_reports_how_many_were_left_out(void **state)
{
    (void)state;
    struct log_limit l = {0};
    struct str log = {0};
    log_n(&l, &log, 5 * NS_S, 1000);
    str_clear(&log);
    log_n(&l, &log, 6 * NS_S, 2);
    assert_string_equal(str_text(&log), "990 more lines of this kind were not logged\nx\nx\n");
    str_clear(&log);
    log_n(&l, &log, 70 * NS_S, 1);
    assert_string_equal(str_text(&log), "x\n");
    str_free(&log);
}

static void without_a_log_nothing_is_counted(void **state)
{
    (void)state;
    struct log_limit l = {0};
    for (int i = 0; i < 20; i++)
        log_limit(&l, 0, "x", NULL, NULL);
    assert_int_equal(l.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ten_lines_a_second_pass),
                                       cmocka_unit_test(the_next_second_reports_how_many_were_left_out),
                                       cmocka_unit_test(without_a_log_nothing_is_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
