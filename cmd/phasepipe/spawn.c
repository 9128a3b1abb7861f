/* Starts the process of a service: descriptors, environment, signals; SIGTERM when the supervisor dies. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/time.h"
#include "cmd/phasepipe/service.h"

#define FIRST_FD 3
#define HIGH_FD 64 /* above the descriptors that the service inherits */

int command_add(struct err *e, struct command *c, const char *word)
{
    if (c->n + 4 > sizeof c->argv / sizeof *c->argv)
        return err_set(e, ERR_SYS, "too many arguments for %s", c->path);
    char *copy = strdup(word);
    if (!copy)
        return err_nomem(e, "words of a command", strlen(word));
    c->argv[c->n++] = copy;
    return 0;
}

void command_free(struct command *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->argv[i]);
    *c = (struct command){0};
}

const char *command_program(const struct command *c)
{
    const char *slash = strrchr(c->path, '/');
    return slash ? slash + 1 : c->path;
}

uint64_t process_born(pid_t pid)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    /* The name in parentheses may contain any character, so fields are counted after the last one; 22 is the start
     * time. */
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

char process_letter(pid_t pid, uint64_t born)
{
    char path[40], text[512];
    if (pid <= 0 || process_born(pid) != born)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n < 0 ? 0 : n] = 0;
    char *p = strrchr(text, ')');
    return p && p[1] && p[2] != 'Z' && p[2] != 'X' ? p[2] : 0;
}

void status_words(char *out, size_t n, int status)
{
    if (WIFSIGNALED(status))
        snprintf(out, n, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(out, n, "exit status %d", WEXITSTATUS(status));
}

/* In the child. Descriptors are first moved to high numbers, since their targets may be in use. */
static void become(struct service *v, const char *run, int ready, int err, pid_t parent)
{
    char number[24], text[PATH_MAX], names[KEPT_MAX * 64] = "";
    int high[KEPT_MAX + 2], n = 0;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0); /* Ctrl-C in the terminal then signals the supervisor only, which ends the services in order */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(ERR_SYS);
    high[n++] = fcntl(err, F_DUPFD, HIGH_FD);
    for (size_t i = 0; i < v->n_kept; i++)
        high[n++] = fcntl(v->kept[i].fd, F_DUPFD, HIGH_FD);
    high[n++] = fcntl(ready, F_DUPFD, HIGH_FD);
    int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(high[0], STDOUT_FILENO);
    dup2(high[0], STDERR_FILENO);
    for (int i = 1; i < n; i++)
        dup2(high[i], FIRST_FD + i - 1);
    close_range((unsigned)(FIRST_FD + n - 1), ~0u, 0);
    for (size_t i = 0; i < v->n_kept; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ":" : "", v->kept[i].name);
    if (v->n_kept) {
        snprintf(number, sizeof number, "%zu", v->n_kept);
        setenv("LISTEN_FDS", number, 1);
        setenv("LISTEN_FDNAMES", names, 1);
        snprintf(number, sizeof number, "%d", (int)getpid());
        setenv("LISTEN_PID", number, 1);
    } else {
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_FDNAMES");
        unsetenv("LISTEN_PID");
    }
    snprintf(text, sizeof text, "%s/notify.sock", run);
    setenv("NOTIFY_SOCKET", text, 1);
    unsetenv("WATCHDOG_USEC"); /* of the manager of this supervisor */
    if (v->watchdog_ns) {
        snprintf(text, sizeof text, "%" PRIu64, v->watchdog_ns / NS_US);
        setenv("WATCHDOG_USEC", text, 1);
        snprintf(text, sizeof text, "%d", (int)getpid());
        setenv("WATCHDOG_PID", text, 1);
    }
    setenv("PHASEPIPE_RUN", run, 1);
    if (v->pinned)
        sched_setaffinity(0, sizeof v->cpus, &v->cpus);
    snprintf(number, sizeof number, "%d", FIRST_FD + n - 2);
    v->command.argv[v->command.n] = "--ready-fd";
    v->command.argv[v->command.n + 1] = number;
    v->command.argv[v->command.n + 2] = NULL;
    execv(v->command.path, v->command.argv);
    int why = errno;
    dprintf(STDERR_FILENO, "%s: run %s: %s\n", UP, v->command.path, strerror(why));
    _exit(ERR_SYS);
}

int service_spawn(struct err *e, struct service *v, const char *run)
{
    int ready[2] = {-1, -1}, err[2] = {-1, -1};
    pid_t parent = getpid(), pid = -1;
    int rc =
        pipe2(ready, O_CLOEXEC) || pipe2(err, O_CLOEXEC) || (pid = fork()) < 0 ? err_sys(e, "start %s", v->name) : 0;
    if (pid == 0)
        become(v, run, ready[1], err[1], parent);
    if (ready[1] >= 0)
        close(ready[1]);
    if (err[1] >= 0)
        close(err[1]);
    if (rc) {
        if (ready[0] >= 0)
            close(ready[0]);
        if (err[0] >= 0)
            close(err[0]);
        return rc;
    }
    fcntl(err[0], F_SETFL, O_NONBLOCK);
    fcntl(ready[0], F_SETFL, O_NONBLOCK);
    v->pid = pid;
    v->born = process_born(pid);
    v->ready_fd = ready[0];
    v->err_fd = err[0];
    v->begun_ns = time_now_ns();
    v->alive_ns = 0;
    v->n_line = 0;
    v->last[0] = 0;
    return 0;
}
