/*
 * The command line: one table of options drives parsing, --help, the completion file and the test that compares them
 * with the man page. Printing happens only through the functions here, called by mains.
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
    CLI_LIST,   /* struct cli_list *: may be given several times */
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
    const char *arg;  /* how the man page calls the argument, "N"; NULL for flags */
    const char *help; /* one line */
    uint64_t lo, hi;  /* U64, SIZE, I64 (cast); both 0: any */
    double flo, fhi;  /* F64; both 0: any */
    const char *choices;
    bool *given; /* set where the option was given; may be NULL */
};

struct cli_prog {
    const char *name;     /* "prefill" */
    const char *synopsis; /* "[-m MODEL] [FILE ...]" */
    const char *about;    /* one line */
    const struct cli_opt *opts;
    size_t n_opt;
    size_t n_arg_max; /* positional arguments allowed */
};

/*
 * Called first of all: it also sees to it that the descriptors 0, 1 and 2 are no file of ours where they were closed.
 * Parses argv. Positional arguments are moved to the front of argv[1 …] and counted in *n_arg. --help, --version and
 * --complete (the bash completion words, for scripts) print to stdout and make this return CLI_DONE: the main returns
 * 0.
 * "--name=value", "--name value", "-nV" and "-n V" are taken; "--" ends options; an unknown option or a bad value is
 * ERR_USAGE with a text that names it and its range.
 */
#define CLI_DONE (-1)
int cli_parse(struct err *e, const struct cli_prog *p, int argc, char **argv, size_t *n_arg);

/* Prints "prog: text" (for ERR_USAGE with a hint at --help) to stderr, control characters as '?'; returns the exit
 * status, e->code. */
int cli_fail(const char *prog, const struct err *e);
/* "prog: …" to stderr. */
void cli_warn(const char *prog, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same as a callback: `prog` is a const char *. */
void cli_say(void *prog, const char *text);

/* A mapped file that is cut short while it is read raises SIGBUS: from here on that says "prog: what" and exits with
 * ERR_SYS. `prog` and `what` are kept. */
void cli_on_bus_error(const char *prog, const char *what);

/* Flushes and closes stdout: a full disk or closed pipe is an ERR_SYS. */
int cli_close_stdout(struct err *e);

/* A progress line on stderr where that is a terminal, nothing elsewhere. done == total ends the line. */
struct cli_progress {
    const char *prog, *what;
    bool tty;
    int last; /* percent shown */
};
void cli_progress_start(struct cli_progress *p, const char *prog, const char *what);
void cli_progress(void *progress, uint64_t done, uint64_t total);

/* Strict numbers, for files and environment too: the whole string or ERR_USAGE naming `what` and the range. */
int cli_u64(struct err *e, const char *what, const char *s, uint64_t *out, uint64_t lo, uint64_t hi);
int cli_f64(struct err *e, const char *what, const char *s, double *out, double lo, double hi);
int cli_size(struct err *e, const char *what, const char *s, uint64_t *out);

/* Refuses to write frames to a terminal: ERR_USAGE. */
int cli_no_tty(struct err *e, int fd, const char *what);

#endif
