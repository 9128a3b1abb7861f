/* Output for people: errors and progress on stderr, and closing of stdout. */
#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/*
 * Prints a line on stderr. A quote from a file or a request may contain control characters, which a terminal would
 * execute (those below the blank, DEL, and U+0080 to U+009F), so each is printed as '?'.
 */
static void print_line(const char *prog, const char *text)
{
    char line[1024];
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && n + 1 < sizeof line; c++) {
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        line[n++] = high || *c < 0x20 || *c == 0x7f ? '?' : (char)*c;
        c += high;
    }
    line[n] = 0;
    /* One write per line, so that lines of the programs of a pipeline do not mix. */
    fprintf(stderr, "%s: %s\n", prog, line);
}

int cli_fail(const char *prog, const struct err *e)
{
    print_line(prog, e->text);
    if (e->code == ERR_USAGE)
        fprintf(stderr, "%s: try '%s --help'\n", prog, prog);
    return e->code;
}

void cli_warn(const char *prog, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    print_line(prog, line);
}

static struct {
    const char *prog, *what;
} bus_error;

/* Calls only async-signal-safe functions. */
static void on_bus_error(int sig)
{
    (void)sig;
    struct iovec v[] = {{(void *)(uintptr_t)bus_error.prog, strlen(bus_error.prog)},
                        {(void *)(uintptr_t) ": ", 2},
                        {(void *)(uintptr_t)bus_error.what, strlen(bus_error.what)},
                        {(void *)(uintptr_t) "\n", 1}};
    if (writev(STDERR_FILENO, v, 4) < 0)
        _exit(ERR_SYS); /* stderr is closed */
    _exit(ERR_SYS);
}

void cli_on_bus_error(const char *prog, const char *what)
{
    bus_error.prog = prog;
    bus_error.what = what;
    signal(SIGBUS, on_bus_error);
}

int cli_close_stdout(struct err *e)
{
    int bad = ferror(stdout);
    errno = 0;
    if (fflush(stdout) || bad)
        return err_sys(e, "stdout");
    /* close() reports a full disk on file systems that write late. EBADF: stdout was closed from the start. */
    if (close(STDOUT_FILENO) && errno != EBADF)
        return err_sys(e, "stdout");
    return 0;
}

int cli_no_tty(struct err *e, int fd, const char *what)
{
    if (isatty(fd))
        return err_set(e, ERR_USAGE,
                       "%s are not for a terminal: pipe them to the next program, or to 'frames' to show them as JSON",
                       what);
    return 0;
}

void cli_progress_start(struct cli_progress *p, const char *prog, const char *what)
{
    *p = (struct cli_progress){.prog = prog, .what = what, .tty = isatty(STDERR_FILENO) == 1, .last = -1};
}

void cli_progress(void *progress, uint64_t done, uint64_t total)
{
    struct cli_progress *p = progress;
    if (!p->tty)
        return;
    int percent = total ? (int)((double)done / (double)total * 100.0) : 100;
    if (done >= total)
        percent = 100;
    if (percent == p->last)
        return;
    fprintf(stderr, "\r%s: %s %3d %%%s", p->prog, p->what, percent, percent == 100 ? "\n" : "");
    fflush(stderr);
    p->last = percent;
}

void cli_log(void *prog, const char *text)
{
    cli_warn(prog, "%s", text);
}
