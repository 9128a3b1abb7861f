/* Lines of standard input or a file. Each is delivered as soon as it is complete, so that a program can hold a
 * conversation. */
#include "request/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/vec.h"
#include "proc/proc.h"
#include "request/ask.h"
#include "wire/wire.h"

#define READ_BYTES 65536

void lines_free(struct lines *l)
{
    free(l->buf);
    l->buf = NULL;
}

static int fill(struct err *e, struct lines *l)
{
    int rc = vec_reserve(e, &l->buf, &l->cap, l->n + READ_BYTES, 1, "input");
    if (rc)
        return rc;
    for (;;) {
        if (proc_term_count()) {
            l->end = true;
            return 0;
        }
        ssize_t r = read(l->fd, l->buf + l->n, READ_BYTES);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_sys(e, "read %s", l->name);
        l->end = r == 0;
        l->n += (size_t)r;
        return 0;
    }
}

/* Drops delivered lines; an unfinished line moves to the start. */
static void compact(struct lines *l)
{
    if (l->at && l->n > l->at)
        memmove(l->buf, l->buf + l->at, l->n - l->at);
    l->n -= l->at;
    l->at = 0;
}

int lines_next(struct err *e, struct lines *l, const char **line, size_t *n)
{
    size_t seen = l->at; /* no line feed before this offset */
    l->overlong = false;
    for (;;) {
        char *feed = l->n > seen ? memchr(l->buf + seen, '\n', l->n - seen) : NULL;
        if (feed || (l->end && (l->n > l->at || l->overlong))) {
            *line = l->buf + l->at;
            *n = (feed ? (size_t)(feed - l->buf) : l->n) - l->at;
            l->at += *n + (feed != NULL);
            if (l->overlong)
                *n = (size_t)ASK_LINE_BYTES_MAX + 1;
            l->number++;
            return 0;
        }
        if (l->end) {
            *line = NULL;
            return 0;
        }
        compact(l);
        seen = l->n;
        /* Discards the rest of a line over the limit, so that the next one is found. */
        if (l->n > ASK_LINE_BYTES_MAX) {
            l->overlong = true;
            l->n = seen = 0;
        }
        if (fill(e, l))
            return e->code;
    }
}

int lines_all(struct err *e, struct lines *l, char **out, size_t *n)
{
    while (!l->end) {
        if (l->n > WIRE_STR_BYTES_MAX)
            return err_set(e, ERR_NO, "%s: the prompt is too long: the limit is %u bytes", l->name, WIRE_STR_BYTES_MAX);
        if (fill(e, l))
            return e->code;
    }
    *out = l->buf;
    *n = l->n;
    l->buf = NULL;
    return 0;
}

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    return true;
}

int lines_next_json(struct err *e, struct lines *l, const char **line, size_t *n)
{
    do {
        if (lines_next(e, l, line, n))
            return e->code;
        if (*line && l->number == 1 && !l->overlong && *n >= 3 && !memcmp(*line, "\xef\xbb\xbf", 3)) {
            *line += 3;
            *n -= 3;
        }
    } while (*line && !l->overlong && blank(*line, *n));
    return 0;
}

size_t lines_without_return(const char *line, size_t n)
{
    return n && line[n - 1] == '\r' ? n - 1 : n;
}

size_t lines_message(const char *text, size_t n)
{
    return n && text[n - 1] == '\n' ? lines_without_return(text, n - 1) : n;
}

int lines_peek(struct err *e, unsigned char *first, int fd, const char *name)
{
    *first = 0;
    off_t at = lseek(fd, 0, SEEK_CUR);
    if (at >= 0 && pread(fd, first, 1, at) >= 0)
        return 0;
    int p[2];
    if (pipe2(p, O_CLOEXEC))
        return err_sys(e, "pipe");
    ssize_t n;
    do
        n = tee(fd, p[1], 1, 0);
    while (n < 0 && errno == EINTR && !proc_term_count());
    int why = errno;
    if (n == 1)
        n = read(p[0], first, 1);
    close(p[0]);
    close(p[1]);
    if (n < 0 && why == EINVAL && recv(fd, first, 1, MSG_PEEK) < 0 && errno != ENOTSOCK)
        return err_sys(e, "read %s", name);
    return 0;
}
