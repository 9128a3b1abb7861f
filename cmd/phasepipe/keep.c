/*
 * The descriptor store of the supervisor: a service sends a descriptor (FDSTORE=1, FDNAME=NAME), and its next process
 * inherits it. So the arena of kvstore outlives kvstore. The same socket receives the reports of the watchdog
 * (WATCHDOG=1). The protocol is that of systemd.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/time.h"
#include "cmd/phasepipe/service.h"

int keep_open(struct err *e, int *fd, const char *run)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int on = 1;
    snprintf(a.sun_path, sizeof a.sun_path, "%s/notify.sock", run);
    if (socket_path_clear(e, a.sun_path))
        return e->code;
    *fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || bind(*fd, (const struct sockaddr *)(const void *)&a, sizeof a) ||
        setsockopt(*fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on))
        return err_sys(e, "%s", a.sun_path);
    return 0;
}

static void drop(struct service *v, const char *name)
{
    for (size_t i = 0; i < v->n_kept;) {
        if (name && strcmp(v->kept[i].name, name)) {
            i++;
            continue;
        }
        close(v->kept[i].fd);
        v->kept[i] = v->kept[--v->n_kept];
    }
}

void keep_drop(struct service *v)
{
    drop(v, NULL);
}

/* True: the descriptor is stored. Names with a colon are ignored, since it separates names in $LISTEN_FDNAMES. */
static bool keep(struct service *v, const char *text, int fd)
{
    char name[64] = "stored", line[256];
    bool store = false, remove = false;
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        store |= !strcmp(line, "FDSTORE=1");
        remove |= !strcmp(line, "FDSTOREREMOVE=1");
        if (!strncmp(line, "FDNAME=", 7) && line[7] && !strchr(line, ':') && strlen(line + 7) < sizeof name)
            snprintf(name, sizeof name, "%.63s", line + 7);
    }
    if (!remove && (!store || fd < 0))
        return false;
    drop(v, name);
    if (remove || v->n_kept == KEPT_MAX)
        return false;
    snprintf(v->kept[v->n_kept].name, sizeof name, "%s", name);
    v->kept[v->n_kept++].fd = fd;
    return true;
}

void keep_take(struct super *s)
{
    char text[4096];
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(8 * sizeof(int))];
    } control;
    struct iovec io = {text, sizeof text - 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(s->notify_fd, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    int fds[8], n_fd = 0;
    struct ucred from = {0};
    if (n < 0)
        return;
    text[n] = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_CREDENTIALS)
            memcpy(&from, CMSG_DATA(c), sizeof from);
        if (c->cmsg_type == SCM_RIGHTS) {
            n_fd = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            n_fd = n_fd > 8 ? 8 : n_fd;
            memcpy(fds, CMSG_DATA(c), (size_t)n_fd * sizeof(int));
        }
    }
    bool kept = false;
    for (size_t i = 0; i < s->n && from.pid > 0; i++)
        if (s->service[i].pid == from.pid) {
            if (!strcmp(text, "WATCHDOG=1"))
                s->service[i].alive_ns = time_now_ns();
            kept = keep(&s->service[i], text, n_fd > 0 ? fds[0] : -1);
        }
    for (int i = kept; i < n_fd; i++)
        close(fds[i]);
}
