/* The runtime directory: owner, lock, stale files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "cmd/phasepipe/service.h"

int run_name(struct err *e, char out[RUN_BYTES_MAX + 1], const char *flag)
{
    const char *named = flag ? flag : getenv("PHASEPIPE_RUN"), *xdg = getenv("XDG_RUNTIME_DIR");
    char name[PATH_MAX], full[PATH_MAX];
    int n;
    if (named && *named)
        n = snprintf(name, sizeof name, "%s", named);
    else if (xdg && *xdg == '/')
        n = snprintf(name, sizeof name, "%s/phasepipe", xdg);
    else
        n = snprintf(name, sizeof name, "/tmp/phasepipe-%u", (unsigned)geteuid());
    if (n < 0 || (size_t)n >= sizeof name)
        return err_set(e, ERR_USAGE, "the path of the runtime directory exceeds %zu bytes: shorten --run",
                       sizeof name - 1);
    const char *best = realpath(name, full) ? full : name;
    size_t size = strlen(best) + 1;
    if (size > RUN_BYTES_MAX + 1)
        return err_set(e, ERR_USAGE,
                       "the runtime directory '%.200s' has a name of %zu bytes; its sockets need one of at most %d",
                       best, size - 1, RUN_BYTES_MAX);
    memcpy(out, best, size);
    return 0;
}

/* Whether it is empty, or was used by a supervisor before. */
static bool ours(const char *run)
{
    char lock[RUN_BYTES_MAX + 16];
    snprintf(lock, sizeof lock, "%s/lock", run);
    if (!access(lock, F_OK))
        return true;
    DIR *d = opendir(run);
    bool empty = d != NULL;
    for (struct dirent *f; d && (f = readdir(d));)
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, ".."))
            empty = false;
    if (d)
        closedir(d);
    return empty;
}

int run_make(struct err *e, char out[RUN_BYTES_MAX + 1], bool *made, const char *flag)
{
    char name[RUN_BYTES_MAX + 1];
    struct stat st;
    if (run_name(e, name, flag))
        return e->code;
    *made = !mkdir(name, 0700);
    if (!*made && errno != EEXIST)
        return err_sys(e, "runtime directory %s", name);
    if (lstat(name, &st))
        return err_sys(e, "runtime directory %s", name);
    if (!S_ISDIR(st.st_mode))
        return err_set(e, ERR_NO, "runtime directory %s: not a directory", name);
    if (st.st_uid != geteuid())
        return err_set(e, ERR_NO, "runtime directory %s: it belongs to user %u, not to %u", name, (unsigned)st.st_uid,
                       (unsigned)geteuid());
    if ((st.st_mode & 077) && !ours(name))
        return err_set(e, ERR_NO,
                       "runtime directory %s: it is readable by others and has other files; choose another, or "
                       "chmod 700",
                       name);
    if ((st.st_mode & 0777) != 0700 && chmod(name, 0700))
        return err_sys(e, "runtime directory %s", name);
    return run_name(e, out, name); /* it exists now, so realpath makes it absolute */
}

static int lock_file(const char *run, int how)
{
    char path[RUN_BYTES_MAX + 16];
    snprintf(path, sizeof path, "%s/lock", run);
    return open(path, how | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static pid_t holder(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return !fcntl(fd, F_GETLK, &l) && l.l_type != F_UNLCK ? l.l_pid : 0;
}

pid_t run_holder(const char *run)
{
    int fd = lock_file(run, O_RDWR);
    pid_t pid = fd < 0 ? 0 : holder(fd);
    if (fd >= 0)
        close(fd);
    return pid;
}

/* Another supervisor may remove the file between open and lock: then create it again. */
int run_lock(struct err *e, int *fd, const char *run)
{
    char path[RUN_BYTES_MAX + 16];
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat is, named;
    snprintf(path, sizeof path, "%s/lock", run);
    for (;;) {
        *fd = lock_file(run, O_RDWR | O_CREAT);
        if (*fd < 0)
            return err_sys(e, "%s", path);
        if (fcntl(*fd, F_SETLK, &l)) {
            bool held = errno == EACCES || errno == EAGAIN;
            int rc = held ? err_set(e, ERR_NO, "a supervisor (pid %d) runs in %s already: phasepipe down --run %s",
                                    (int)holder(*fd), run, run)
                          : err_sys(e, "lock %s", path);
            close(*fd);
            return rc;
        }
        if (!fstat(*fd, &is) && !stat(path, &named) && is.st_ino == named.st_ino)
            return 0;
        close(*fd);
    }
}

static bool nobody_listens(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%.*s", (int)sizeof a.sun_path - 1, path);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused = s >= 0 && connect(s, (const struct sockaddr *)(const void *)&a, sizeof a) && errno == ECONNREFUSED;
    if (s >= 0)
        close(s);
    return refused;
}

void run_fresh(const char *run)
{
    char path[RUN_BYTES_MAX + 16];
    snprintf(path, sizeof path, "%s/cores", run);
    unlink(path);
}

void run_clean(const char *run, bool made)
{
    static const char *const files[] = {"state.json", "state.json.new", "cores", "lock"};
    static const char *const sockets[] = {"up.sock", "notify.sock"};
    struct err ignored;
    char path[PATH_MAX];
    DIR *d = opendir(run);
    for (struct dirent *f; d && (f = readdir(d));) {
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/%s", run, f->d_name);
        if (n > 0 && (size_t)n < sizeof path && !lstat(path, &st) && S_ISSOCK(st.st_mode) && nobody_listens(path))
            unlink(path);
    }
    if (d)
        closedir(d);
    for (size_t i = 0; i < sizeof sockets / sizeof *sockets; i++) {
        snprintf(path, sizeof path, "%s/%s", run, sockets[i]);
        (void)socket_path_clear(&ignored, path);
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", run, files[i]);
        unlink(path);
    }
    if (made)
        rmdir(run);
}
