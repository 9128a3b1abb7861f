/*
 * Command line. One table of options is used for parsing, --help, the completion file, and the test that compares them
 * with the man page. Only the functions here print; mains call them.
 */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

#define PHASEPIPE_VERSION "0.1.0"

enum cli_kind {
    CLI_FLAG,   /* bool *: set to true */
    CLI_STR,    /* const char **: borrowed from argv */
    CLI_U64,    /* uint64_t *: strict decimal, lo <= v <= hi */
    CLI_I64,    /* int64_t * */
    CLI_F64,    /* double *: finite, flo <= v <= fhi */
    CLI_SIZE,   /* uint64_t *: bytes, suffix K M G T (powers of 1024) or none */
    CLI_CHOICE, /* const char **: one of `choices`, "a|b|c" */
    CLI_LIST,   /* struct cli_list *: the option may be repeated */
};

struct cli_list {
    const char **v; /* owned array of borrowed strings; cli_list_free */
    size_t n, cap;
};
void cli_list_free(struct cli_list *l);

struct cli_opt {
    char letter;      /* 0: none */
    const char *name; /* long name without dashes; NULL: none */
    enum cli_kind kind;
    void *out;
    const char *arg;  /* name of the argument in the man page, "N"; NULL for flags */
    const char *help; /* one line */
    uint64_t lo, hi;  /* U64, SIZE, I64 (cast); both 0: any */
    double flo, fhi;  /* F64; both 0: any */
    const char *choices;
    bool *given;       /* set to true if the option was given; may be NULL */
    const char *alias; /* another long name, mostly that of an API; NULL: none */
};

struct cli_prog {
    const char *name;     /* "prefill" */
    const char *synopsis; /* "[-m MODEL] [FILE ...]" */
    const char *about;    /* one line */
    const struct cli_opt *opts;
    size_t n_opt;
    size_t n_arg_max; /* maximum number of positional arguments */
};

/*
 * Parses argv. Must be the first call of main: if a standard descriptor (0, 1 or 2) is closed, it is opened on
 * /dev/null, so that no later file gets its number. Positional arguments are moved to the front of argv[1 …] and
 * counted in *n_arg. --help, --version and --complete (words for bash completion) print to stdout and return CLI_DONE;
 * main then returns 0. Accepted are "--name=value", "--name value", "-nV" and "-n V"; "--" ends options. In long names
 * _ counts as -, so that the names of fields can be used. ERR_USAGE names an unknown option, or an option with a bad
 * value and its range.
 */
#define CLI_DONE (-1)
int cli_parse(struct err *e, const struct cli_prog *p, int argc, char **argv, size_t *n_arg);

/* Prints "prog: text" to stderr (for ERR_USAGE with a reference to --help), control characters as '?'. Returns the exit
 * status, e->code. */
int cli_fail(const char *prog, const struct err *e);
/* "prog: …" to stderr. */
void cli_warn(const char *prog, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same as a callback: `prog` is a const char *. */
void cli_log(void *prog, const char *text);

/* Installs a handler of SIGBUS, which the kernel raises when a mapped file is truncated while it is read: it prints
 * "prog: what" and exits with ERR_SYS. `prog` and `what` are borrowed forever. */
void cli_on_bus_error(const char *prog, const char *what);

/* Flushes and closes stdout. ERR_SYS: a full disk or a closed pipe. */
int cli_close_stdout(struct err *e);

/* A progress line on stderr if that is a terminal, else nothing. done == total ends the line. */
struct cli_progress {
    const char *prog, *what;
    bool tty;
    int last; /* percent shown last */
};
void cli_progress_start(struct cli_progress *p, const char *prog, const char *what);
void cli_progress(void *progress, uint64_t done, uint64_t total);

/* Strict parsing of numbers, also for files and the environment: the whole string must be a number in the range.
 * ERR_USAGE names `what` and the range. */
int cli_u64(struct err *e, const char *what, const char *s, uint64_t *out, uint64_t lo, uint64_t hi);
int cli_f64(struct err *e, const char *what, const char *s, double *out, double lo, double hi);
int cli_size(struct err *e, const char *what, const char *s, uint64_t *out);

/* Refuses to write frames to a terminal: ERR_USAGE. */
int cli_no_tty(struct err *e, int fd, const char *what);

#endif
