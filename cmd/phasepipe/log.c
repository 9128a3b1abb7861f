/* What services write to stderr: to ours, with their name before it, or to a file each that does not grow for ever. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmd/phasepipe/service.h"

int log_open(struct err *e, struct log *l, const char *run, const char *name, bool file)
{
    struct stat st;
    *l = (struct log){.fd = -1};
    if (!file)
        return 0;
    snprintf(l->path, sizeof l->path, "%s/log", run);
    if (mkdir(l->path, 0700) && errno != EEXIST)
        return err_sys(e, "%s", l->path);
    snprintf(l->path, sizeof l->path, "%s/log/%s.log", run, name);
    l->fd = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0 || fstat(l->fd, &st))
        return err_sys(e, "%s", l->path);
    l->bytes = (uint64_t)st.st_size;
    return 0;
}

void log_close(struct log *l)
{
    if (*l->path && l->fd >= 0)
        close(l->fd);
    l->fd = -1;
}

/* The file of before is kept beside it as NAME.log.1, so a service has at most twice the limit on disk. */
static void rotate(struct log *l)
{
    char old[PATH_MAX + 8];
    snprintf(old, sizeof old, "%s.1", l->path);
    int fd = rename(l->path, old) ? -1 : open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return;
    close(l->fd);
    l->fd = fd;
    l->bytes = 0;
}

/* Where neither a file nor a terminal takes it there is nobody to tell. */
static void put(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        p += w;
        n -= (size_t)w;
    }
}

void log_line(struct log *l, const char *name, const char *p, size_t n)
{
    char text[1200], when[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (*l->path && gmtime_r(&now, &tm))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ ", &tm);
    int at = *l->path ? snprintf(text, sizeof text, "%s", when) : snprintf(text, sizeof text, "%s | ", name);
    size_t k = (size_t)at, room = sizeof text - k - 1;
    n = n < room ? n : room;
    for (size_t i = 0; i < n; i++)
        text[k++] = (unsigned char)p[i] < 32 || p[i] == 127 ? '?' : p[i];
    text[k++] = '\n';
    if (*l->path && l->bytes + k > LOG_BYTES_MAX)
        rotate(l);
    put(*l->path ? l->fd : STDERR_FILENO, text, k);
    l->bytes += k;
}
