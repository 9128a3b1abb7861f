/* Expected values follow the option table in the test and C's number grammar. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/cli.h"

struct got {
    bool flag, other, n_given;
    const char *text, *type;
    uint64_t n, bytes;
    int64_t p;
    double temp;
    struct cli_list stop;
};

static int parse(struct err *e, struct got *g, size_t n_arg_max, size_t *n_arg, char **argv)
{
    const struct cli_opt opts[] = {
        {.letter = 'f', .name = "flag", .kind = CLI_FLAG, .out = &g->flag, .help = "a flag"},
        {.letter = 'o', .kind = CLI_FLAG, .out = &g->other, .help = "another"},
        {.letter = 'p', .name = "text", .kind = CLI_STR, .out = &g->text, .arg = "TEXT", .help = "a text"},
        {.letter = 'n',
         .name = "max-num",
         .kind = CLI_U64,
         .out = &g->n,
         .arg = "N",
         .lo = 1,
         .hi = 100,
         .given = &g->n_given,
         .help = "a number"},
        {.name = "priority", .kind = CLI_I64, .out = &g->p, .arg = "N", .lo = (uint64_t)-5, .hi = 5, .help = "order"},
        {.name = "temp",
         .alias = "the-temperature",
         .kind = CLI_F64,
         .out = &g->temp,
         .arg = "T",
         .flo = 0,
         .fhi = 2,
         .help = "heat"},
        {.name = "bytes", .kind = CLI_SIZE, .out = &g->bytes, .arg = "B", .help = "room"},
        {.name = "type", .kind = CLI_CHOICE, .out = &g->type, .arg = "TYPE", .choices = "auto|f16", .help = "kind"},
        {.name = "stop", .kind = CLI_LIST, .out = &g->stop, .arg = "TEXT", .help = "ends"},
    };
    const struct cli_prog p = {"prog", "[FILE]", "does a thing", opts, sizeof opts / sizeof *opts, n_arg_max};
    int argc = 0;
    while (argv[argc])
        argc++;
    return cli_parse(e, &p, argc, argv, n_arg);
}

#define ARGS(...) ((char *[]){"prog", __VA_ARGS__, NULL})

static void test_every_form_of_an_option_is_accepted(void **state)
{
    (void)state;
    struct err e = {0};
    struct got g = {0};
    size_t n;
    char **argv =
        ARGS("a", "-fo", "-n", "7", "--text=x=y", "b", "--priority", "-3", "--stop", "s1", "--stop=", "--", "-f");
    assert_int_equal(parse(&e, &g, 3, &n, argv), 0);
    assert_true(g.flag && g.other && g.n_given);
    assert_int_equal(g.n, 7);
    assert_int_equal(g.p, -3);
    assert_string_equal(g.text, "x=y");
    assert_int_equal(g.stop.n, 2);
    assert_string_equal(g.stop.v[0], "s1");
    assert_string_equal(g.stop.v[1], "");
    assert_int_equal(n, 3);
    assert_string_equal(argv[1], "a");
    assert_string_equal(argv[2], "b");
    assert_string_equal(argv[3], "-f");
    cli_list_free(&g.stop);

    struct got h = {0};
    assert_int_equal(parse(&e, &h, 1, &n, ARGS("-fn12", "-p-x", "--temp", "1e-1", "--bytes", "3K", "--type=f16", "-")),
                     0);
    assert_true(h.flag);
    assert_int_equal(h.n, 12);
    assert_string_equal(h.text, "-x");
    assert_true(h.temp == 0.1);
    assert_int_equal(h.bytes, 3072);
    assert_string_equal(h.type, "f16");
    assert_int_equal(n, 1);

    /* other names of the same option, and those of fields */
    char *const names[] = {"--the-temperature", "--the_temperature", "--the-temperature=0.1"};
    for (size_t i = 0; i < 3; i++) {
        struct got t = {0};
        assert_int_equal(parse(&e, &t, 1, &n, i < 2 ? ARGS(names[i], "0.1") : ARGS(names[i])), 0);
        assert_true(t.temp == 0.1);
    }
}

static void wrong(char **argv, const char *names)
{
    struct err e = {0};
    struct got g = {0};
    size_t n;
    assert_int_equal(parse(&e, &g, 1, &n, argv), ERR_USAGE);
    if (!strstr(e.text, names))
        fail_msg("'%s' does not name '%s'", e.text, names);
    cli_list_free(&g.stop);
}

static void test_wrong_options_are_named(void **state)
{
    (void)state;
    wrong(ARGS("--nope"), "--nope");
    wrong(ARGS("-x"), "-x");
    wrong(ARGS("-fx"), "-x");
    wrong(ARGS("--flag=1"), "--flag");
    wrong(ARGS("--text"), "--text");
    wrong(ARGS("-p"), "-p");
    wrong(ARGS("a", "b"), "'b'");
    wrong(ARGS("-n", "0"), "from 1 to 100");
    wrong(ARGS("-n", "101"), "from 1 to 100");
    wrong(ARGS("-n", ""), "-n");
    wrong(ARGS("--max-num=1x"), "'1x'");
    wrong(ARGS("--max-num", "-1"), "'-1'");
    wrong(ARGS("--priority", "-6"), "from -5 to 5");
    wrong(ARGS("--temp", "2.1"), "from 0 to 2");
    wrong(ARGS("--the-temperature", "2.1"), "--temp: ");
    wrong(ARGS("--the-temperatur", "1"), "unknown option --the-temperatur");
    wrong(ARGS("--_temp", "1"), "unknown option --_temp");
    wrong(ARGS("--temp", "nan"), "nan");
    wrong(ARGS("--bytes", "K"), "--bytes");
    wrong(ARGS("--type", "f1"), "auto|f16");
    wrong(ARGS("--ma", "5"),
          "--ma"); /* no abbreviations: an option added later must not change the meaning of a script */
}

static void test_numbers_are_strict(void **state)
{
    (void)state;
    struct err e;
    uint64_t u = 5;
    double d;
    assert_int_equal(cli_u64(&e, "x", "18446744073709551615", &u, 0, 0), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(cli_u64(&e, "x", "18446744073709551616", &u, 0, 0), ERR_USAGE);
    assert_true(u == UINT64_MAX);
    static const char *const bad_u64[] = {"", " 1", "1 ", "+1", "-0", "0x10", "1e3", "1.0", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad_u64 / sizeof *bad_u64; i++)
        assert_int_equal(cli_u64(&e, "x", bad_u64[i], &u, 0, 0), ERR_USAGE);
    static const char *const bad_f64[] = {"",      " 1",     "1 ", "inf", "nan", "0x1p3",
                                          "1e400", "-1e400", "1e", ".",   "--1", "1.2.3"};
    for (size_t i = 0; i < sizeof bad_f64 / sizeof *bad_f64; i++)
        assert_int_equal(cli_f64(&e, "x", bad_f64[i], &d, 0, 0), ERR_USAGE);
    assert_int_equal(cli_f64(&e, "x", "-2.5e-3", &d, 0, 0), 0);
    assert_true(d == -2.5e-3);

    static const struct {
        const char *s;
        uint64_t v;
    } size[] = {{"0", 0},           {"1", 1},           {"2k", 2048},
                {"5M", 5ull << 20}, {"7G", 7ull << 30}, {"16777215T", 16777215ull << 40}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        assert_int_equal(cli_size(&e, "x", size[i].s, &u), 0);
        assert_true(u == size[i].v);
    }
    static const char *const bad_size[] = {"", "1KB", "1.5G", "-1", "16777216T", "18446744073709551616", "1P", "K"};
    for (size_t i = 0; i < sizeof bad_size / sizeof *bad_size; i++)
        assert_int_equal(cli_size(&e, "x", bad_size[i], &u), ERR_USAGE);
}

/* A terminal is refused, a pipe is accepted. */
static void test_a_terminal_is_refused(void **state)
{
    (void)state;
    struct err e;
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(cli_no_tty(&e, fd[1], "frames"), 0);
    close(fd[0]);
    close(fd[1]);
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY);
    if (master >= 0) {
        assert_int_equal(cli_no_tty(&e, master, "frames"), ERR_USAGE);
        close(master);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_form_of_an_option_is_accepted),
        cmocka_unit_test(test_wrong_options_are_named),
        cmocka_unit_test(test_numbers_are_strict),
        cmocka_unit_test(test_a_terminal_is_refused),
    };
    return cmocka_run_group_tests_name("cli", tests, NULL, NULL);
}
