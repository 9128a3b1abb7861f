/* What a program says to people: errors and progress on stderr, and the end of its stdout. */
#include "cli/cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/*
 * A line on stderr. What is quoted from a file or a request may hold anything, and a terminal would obey its control
 * characters (those below the blank, DEL, and U+0080 to U+009F), so each shows as '?'.
 */
static void say(const char *prog, const char *text)
{
    char line[1024];
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && n + 1 < sizeof line; c++) {
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        line[n++] = high || *c < 0x20 || *c == 0x7f ? '?' : (char)*c;
        c += high;
    }
    line[n] = 0;
    /* One write a line, so that the programs of a pipeline do not mix theirs. */
    fprintf(stderr, "%s: %s\n", prog, line);
}

int cli_fail(const char *prog, const struct err *e)
{
    say(prog, e->text);
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
    say(prog, line);
}

static struct {
    const char *prog, *what;
} bus_error;

/* Only what is safe in a handler. */
static void on_bus_error(int sig)
{
    (void)sig;
    struct iovec v[] = {{(void *)(uintptr_t)bus_error.prog, strlen(bus_error.prog)},
                        {(void *)(uintptr_t) ": ", 2},
                        {(void *)(uintptr_t)bus_error.what, strlen(bus_error.what)},
                        {(void *)(uintptr_t) "\n", 1}};
    if (writev(STDERR_FILENO, v, 4) < 0)
        _exit(ERR_SYS); /* nobody to tell */
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
    /* close() tells of a full disk on file systems that write late; EBADF is a stdout that was closed from the start.
     */
    if (close(STDOUT_FILENO) && errno != EBADF)
        return err_sys(e, "stdout");
    return 0;
}

int cli_no_tty(struct err *e, int fd, const char *what)
{
    if (isatty(fd))
        return err_set(e, ERR_USAGE, "%s are not for a terminal: pipe them to the next program, or to 'frames' to look",
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

void cli_say(void *prog, const char *text)
{
    cli_warn(prog, "%s", text);
}
