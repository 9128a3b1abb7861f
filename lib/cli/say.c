/* What a program says to people: errors and progress on stderr, and the end of its stdout. */
#include "cli/cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

int cli_fail(const char *prog, const struct err *e)
{
    fprintf(stderr, "%s: %s\n", prog, e->text);
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
    /* One write a line, so that the programs of a pipeline do not mix theirs. */
    fprintf(stderr, "%s: %s\n", prog, line);
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
