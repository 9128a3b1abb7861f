#include "proc/notify.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/socket.h"
#include "base/time.h"

#define FIRST_FD 3

int proc_notify(struct err *e, const char *text, int fd)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || !*path)
        return 0;
    size_t n = strlen(path);
    if (n >= sizeof a.sun_path || (*path != '/' && *path != '@'))
        return err_set(e, ERR_USAGE, "NOTIFY_SOCKET: must be an absolute path or @NAME, of less than %zu bytes",
                       sizeof a.sun_path);
    memcpy(a.sun_path, path, n);
    if (*path == '@') /* abstract */
        a.sun_path[0] = 0;
    int sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
    int rc = sock < 0 || connect(sock, (const struct sockaddr *)(const void *)&a, len) ||
                     socket_send(sock, text, strlen(text), (const int[SOCKET_FDS]){fd, -1}) < 0
                 ? err_sys(e, "NOTIFY_SOCKET %s", path)
                 : 0;
    if (sock >= 0)
        close(sock);
    return rc;
}

int proc_ready(struct err *e, struct err *manager, int fd)
{
    return proc_ready_at(e, manager, fd, "");
}

int proc_ready_at(struct err *e, struct err *manager, int fd, const char *addresses)
{
    char text[PROC_READY_BYTES_MAX + 8];
    int n = snprintf(text, sizeof text, "ready\n%s", addresses);
    if (n >= (int)sizeof text)
        return err_set(e, ERR_USAGE, "the addresses of a readiness message have %zu bytes, the limit is %d",
                       strlen(addresses), PROC_READY_BYTES_MAX);
    if (proc_notify(manager ? manager : e, "READY=1", -1) && !manager)
        return e->code;
    if (fd < 0)
        return 0;
    if (write(fd, text, (size_t)n) != n)
        return err_sys(e, "--ready-fd %d", fd);
    close(fd);
    return 0;
}

/* Nanoseconds between two reports; 0: no watchdog. */
static uint64_t alive_period_ns(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!us || (pid && strtol(pid, NULL, 10) != getpid()))
        return 0;
    return strtoull(us, NULL, 10) * NS_US / 4;
}

void proc_alive(void)
{
    static bool asked;
    static uint64_t period_ns, next_ns;
    if (!asked) {
        asked = true;
        period_ns = alive_period_ns();
    }
    if (!period_ns)
        return;
    uint64_t now = time_now_ns();
    if (now < next_ns)
        return;
    struct err e = {0};
    (void)proc_notify(&e, "WATCHDOG=1", -1); /* a manager that does not listen ends this process: nothing else to do */
    next_ns = now + period_ns;
}

/* The i-th of names between colons is `name`. */
static int place_of(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; names; i++) {
        size_t n = strcspn(names, ":");
        if (n == len && !memcmp(names, name, n))
            return i;
        names = names[n] ? names + n + 1 : NULL;
    }
    return -1;
}

int proc_kept_fd(const char *name)
{
    const char *fds = getenv("LISTEN_FDS"), *pid = getenv("LISTEN_PID");
    if (!fds || !pid || strtol(pid, NULL, 10) != getpid())
        return -1;
    long n = strtol(fds, NULL, 10);
    int i = place_of(getenv("LISTEN_FDNAMES"), name);
    if (i < 0 || i >= n || fcntl(FIRST_FD + i, F_SETFD, FD_CLOEXEC))
        return -1;
    return FIRST_FD + i;
}
