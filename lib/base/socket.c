#include "base/socket.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

ssize_t socket_send(int sock, const void *p, size_t n, const int *fd)
{
    struct iovec iov = {(void *)(uintptr_t)p, n};
    union {
        char room[CMSG_SPACE(SOCKET_FDS * sizeof(int))];
        struct cmsghdr align;
    } u;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    size_t n_fd = 0;
    while (fd && n_fd < SOCKET_FDS && fd[n_fd] >= 0)
        n_fd++;
    if (n_fd) {
        memset(&u, 0, sizeof u);
        m.msg_control = u.room;
        m.msg_controllen = CMSG_SPACE(n_fd * sizeof *fd);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fd * sizeof *fd);
        memcpy(CMSG_DATA(c), fd, n_fd * sizeof *fd);
    }
    return sendmsg(sock, &m, MSG_NOSIGNAL);
}

void socket_fds_close(int *fd)
{
    for (int i = 0; i < SOCKET_FDS; i++) {
        if (fd[i] >= 0)
            close(fd[i]);
        fd[i] = -1;
    }
}

#define FDS_MAX 16

/* However many are sent, none is left open unseen. */
static void take_fds(struct msghdr *m, int *fd)
{
    size_t at = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (n && !at)
            socket_fds_close(fd);
        for (size_t i = 0; i < n; i++) {
            int got;
            memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
            if (at < SOCKET_FDS)
                fd[at++] = got;
            else
                close(got);
        }
    }
}

ssize_t socket_recv(int sock, void *p, size_t n, int *fd)
{
    struct iovec iov = {p, n};
    union {
        char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } u;
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = u.room, .msg_controllen = sizeof u.room};
    ssize_t got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    if (got >= 0)
        take_fds(&m, fd);
    return got;
}

/* Connects without blocking; -1: no socket. *rc: that of connect, with errno. */
static int dial(const char *path, int *rc)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    *rc = sock < 0 ? -1 : connect(sock, (const struct sockaddr *)(const void *)&a, sizeof a);
    return sock;
}

bool socket_is_listening(const char *path)
{
    int rc, sock = dial(path, &rc);
    bool is = sock >= 0 && (!rc || errno == EAGAIN);
    if (sock >= 0)
        close(sock);
    return is;
}

pid_t socket_listener(const char *path)
{
    struct ucred u = {0};
    socklen_t n = sizeof u;
    int rc, sock = dial(path, &rc);
    if (rc || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n))
        u.pid = 0;
    if (sock >= 0)
        close(sock);
    return u.pid;
}

/* Of the directory of a path. */
static bool owner(const char *path, struct stat *st)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) : 0;
    int k = !slash ? snprintf(dir, sizeof dir, ".") : snprintf(dir, sizeof dir, "%.*s", n ? n : 1, path);
    return k > 0 && (size_t)k < sizeof dir && !stat(dir, st);
}

bool socket_trusts(uid_t uid, const char *path)
{
    struct stat st;
    return uid == geteuid() || !uid || (owner(path, &st) && st.st_uid == uid);
}

bool socket_trusts_peer(int sock, const char *path)
{
    struct ucred u;
    socklen_t n = sizeof u;
    return !getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &u, &n) && socket_trusts(u.uid, path);
}

bool socket_give_to_owner(const char *path)
{
    struct stat st;
    if (geteuid() || !owner(path, &st) || !st.st_uid)
        return true;
    return !lchown(path, st.st_uid, st.st_gid);
}
