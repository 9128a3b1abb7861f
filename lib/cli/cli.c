/* Command line. One table of options is used for parsing, --help and the words of the completion. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/vec.h"
#include "cli/number.h"
#include "wire/wire.h"

void cli_list_free(struct cli_list *l)
{
    free(l->v);
    *l = (struct cli_list){0};
}

static int list_add(struct err *e, struct cli_list *l, const char *s)
{
    int rc = vec_reserve(e, &l->v, &l->cap, l->n + 1, sizeof *l->v, "options");
    if (!rc)
        l->v[l->n++] = s;
    return rc;
}

static bool in_choices(const char *choices, const char *s)
{
    size_t n = strlen(s);
    for (const char *p = choices; *p;) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, s, n) == 0)
            return true;
        p += len + (p[len] == '|');
    }
    return false;
}

/* The option as the user wrote it, for error texts: "-n" or "--max-num-seqs". */
static const char *spelled(char *buf, size_t n, const struct cli_opt *o, bool by_letter)
{
    if (by_letter || !o->name)
        snprintf(buf, n, "-%c", o->letter);
    else
        snprintf(buf, n, "--%s", o->name);
    return buf;
}

static int store_value(struct err *e, const struct cli_opt *o, const char *what, const char *value)
{
    if (o->given)
        *o->given = true;
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->out = true;
        return 0;
    case CLI_STR:
        *(const char **)o->out = value;
        return 0;
    case CLI_U64:
        return cli_u64(e, what, value, o->out, o->lo, o->hi);
    case CLI_I64:
        return cli_i64(e, what, value, o->out, (int64_t)o->lo, (int64_t)o->hi);
    case CLI_F64:
        return cli_f64(e, what, value, o->out, o->flo, o->fhi);
    case CLI_SIZE: {
        uint64_t v;
        if (cli_size(e, what, value, &v))
            return e->code;
        if ((o->lo || o->hi) && (v < o->lo || v > o->hi))
            return err_set(e, ERR_USAGE, "%s: '%.60s' is outside %llu to %llu bytes", what, value,
                           (unsigned long long)o->lo, (unsigned long long)o->hi);
        *(uint64_t *)o->out = v;
        return 0;
    }
    case CLI_CHOICE:
        if (!in_choices(o->choices, value))
            return err_set(e, ERR_USAGE, "%s: '%.60s' is not one of %s", what, value, o->choices);
        *(const char **)o->out = value;
        return 0;
    case CLI_LIST:
        return list_add(e, o->out, value);
    }
    return 0;
}

static void help_line(char letter, const char *name, const char *alias, const char *arg, const char *help)
{
    char left[80];
    int n = 0;
    if (letter)
        n = snprintf(left, sizeof left, "-%c%s", letter, name ? ", " : "");
    else
        n = snprintf(left, sizeof left, "    ");
    if (name)
        n += snprintf(left + n, sizeof left - (size_t)n, "--%s", name);
    if (alias)
        n += snprintf(left + n, sizeof left - (size_t)n, ", --%s", alias);
    if (arg)
        snprintf(left + n, sizeof left - (size_t)n, " %s", arg);
    printf("  %-34s %s%s\n", left, strlen(left) < 34 ? "" : " ", help); /* at least two spaces before the help text */
}

static void print_help(const struct cli_prog *p)
{
    printf("usage: %s %s\n%s\n\n", p->name, p->synopsis, p->about);
    for (size_t i = 0; i < p->n_opt; i++)
        help_line(p->opts[i].letter, p->opts[i].name, p->opts[i].alias, p->opts[i].arg, p->opts[i].help);
    help_line(0, "help", NULL, NULL, "print this and exit");
    help_line(0, "version", NULL, NULL, "print the version and that of the frames, and exit");
}

static void print_words(const struct cli_prog *p)
{
    for (size_t i = 0; i < p->n_opt; i++) {
        if (p->opts[i].letter)
            printf("-%c\n", p->opts[i].letter);
        if (p->opts[i].name)
            printf("--%s\n", p->opts[i].name);
        if (p->opts[i].alias)
            printf("--%s\n", p->opts[i].alias);
    }
    printf("--help\n--version\n");
}

static int done(struct err *e)
{
    return cli_close_stdout(e) ? e->code : CLI_DONE;
}

static bool same_name(const char *name, const char *s, size_t n)
{
    if (!name || strlen(name) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] != s[i] && !(name[i] == '-' && s[i] == '_'))
            return false;
    return true;
}

/* Parses "--name" or "--name=value" at argv[*i]; advances *i if the value is the next argument. */
static int long_option(struct err *e, const struct cli_prog *p, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2, *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    if (!eq && !strcmp(name, "help")) {
        print_help(p);
        return done(e);
    }
    if (!eq && !strcmp(name, "version")) {
        printf("%s (phasepipe) %s, frames %d\n", p->name, PHASEPIPE_VERSION, WIRE_VERSION);
        return done(e);
    }
    if (!eq && !strcmp(name, "complete")) {
        print_words(p);
        return done(e);
    }
    for (size_t k = 0; k < p->n_opt; k++) {
        const struct cli_opt *o = &p->opts[k];
        char what[80];
        if (!same_name(o->name, name, n) && !same_name(o->alias, name, n))
            continue;
        spelled(what, sizeof what, o, false);
        if (o->kind == CLI_FLAG)
            return eq ? err_set(e, ERR_USAGE, "%s: takes no value", what) : store_value(e, o, what, NULL);
        if (eq)
            return store_value(e, o, what, eq + 1);
        if (*i + 1 >= argc)
            return err_set(e, ERR_USAGE, "%s: requires a value: %s", what, o->arg);
        return store_value(e, o, what, argv[++*i]);
    }
    return err_set(e, ERR_USAGE, "unknown option --%.*s", (int)(n > 60 ? 60 : n), name);
}

/* Parses "-x", "-xVALUE" or several flags, "-xyz", at argv[*i]. */
static int short_options(struct err *e, const struct cli_prog *p, int argc, char **argv, int *i)
{
    for (const char *c = argv[*i] + 1; *c; c++) {
        const struct cli_opt *o = NULL;
        for (size_t k = 0; k < p->n_opt && !o; k++)
            if (p->opts[k].letter == *c)
                o = &p->opts[k];
        if (!o)
            return err_set(e, ERR_USAGE, "unknown option -%.*s", (*c & 0x80) ? 8 : 1, c);
        char what[80];
        spelled(what, sizeof what, o, true);
        if (o->kind == CLI_FLAG) {
            if (store_value(e, o, what, NULL))
                return e->code;
            continue;
        }
        if (c[1])
            return store_value(e, o, what, c + 1);
        if (*i + 1 >= argc)
            return err_set(e, ERR_USAGE, "%s: requires a value: %s", what, o->arg);
        return store_value(e, o, what, argv[++*i]);
    }
    return 0;
}

/*
 * If a standard stream is closed, the next file that is opened gets its number: a model would be read as the prompt, or
 * a message written into the packed weights. So each closed one is opened on /dev/null in a mode in which its use
 * fails.
 */
static int hold_standard_streams(struct err *e)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        int got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (got < 0)
            return err_sys(e, "opening /dev/null as the closed file descriptor %d", fd);
    }
    return 0;
}

int cli_parse(struct err *e, const struct cli_prog *p, int argc, char **argv, size_t *n_arg)
{
    if (hold_standard_streams(e))
        return e->code;
    size_t n = 0;
    bool options = true;
    for (int i = 1; i < argc; i++) {
        char *a = argv[i];
        int r = 0;
        if (options && !strcmp(a, "--")) {
            options = false;
        } else if (options && a[0] == '-' && a[1] == '-') {
            r = long_option(e, p, argc, argv, &i);
        } else if (options && a[0] == '-' && a[1]) {
            r = short_options(e, p, argc, argv, &i);
        } else if (n >= p->n_arg_max) {
            r = err_set(e, ERR_USAGE, "unexpected argument '%.60s'", a);
        } else {
            argv[1 + n++] = a;
        }
        if (r)
            return r;
    }
    *n_arg = n;
    return 0;
}
