/* Logs of the services: stderr of the supervisor, with the name before each line, or a bounded file for each. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmd/phasepipe/service.h"

#define LINE_BYTES_MAX 1200

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

/* The previous file becomes NAME.log.1, so a service uses at most twice the limit on disk. */
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

static bool put(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

/* A line that cannot be written completely is removed. */
static bool append(struct log *l, const char *p, size_t n)
{
    if (put(l->fd, p, n)) {
        l->bytes += n;
        return true;
    }
    struct stat st;
    if (!fstat(l->fd, &st) && (uint64_t)st.st_size > l->bytes && ftruncate(l->fd, (off_t)l->bytes))
        l->bytes = (uint64_t)st.st_size; /* it cannot be removed */
    return false;
}

/* The number of lost lines is written before the next line, and in one write with it. */
static void to_file(struct log *l, const char *when, const char *p, size_t n)
{
    char text[LINE_BYTES_MAX + 120];
    int k = l->lost ? snprintf(text, sizeof text, "%slines that found no room: %" PRIu64 "\n", when, l->lost) : 0;
    memcpy(text + k, p, n);
    n += (size_t)k;
    if (l->bytes + n > LOG_BYTES_MAX)
        rotate(l);
    l->lost = append(l, text, n) ? 0 : l->lost + 1;
}

/* If neither the file nor stderr can be written, the line is lost. */
void log_line(struct log *l, const char *name, const char *p, size_t n)
{
    char text[LINE_BYTES_MAX], when[32] = "";
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
    if (*l->path)
        to_file(l, when, text, k);
    else
        (void)put(STDERR_FILENO, text, k);
}
