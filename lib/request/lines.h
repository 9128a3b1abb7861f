/* Lines of a file descriptor, delivered as they arrive, of up to ASK_LINE_BYTES_MAX bytes. */
#ifndef REQUEST_LINES_H
#define REQUEST_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

struct lines {
    int fd;
    const char *name; /* for error texts */
    char *buf;
    size_t n, cap, at;
    uint64_t number; /* number of the last line, from 1 */
    bool end, overlong;
};

/* Reads the next line; blocks. *line: borrowed until the next call, without its line feed; NULL at the end. A line over
 * the limit has n > ASK_LINE_BYTES_MAX and undefined text. SIGTERM and SIGINT count as the end. */
int lines_next(struct err *e, struct lines *l, const char **line, size_t *n);
/* The same for JSON requests: skips blank lines, and U+FEFF at the start of the file. */
int lines_next_json(struct err *e, struct lines *l, const char **line, size_t *n);
/* Reads to the end of the file; *out: malloc'd. */
int lines_all(struct err *e, struct lines *l, char **out, size_t *n);
void lines_free(struct lines *l);

/* The length of a line without the carriage return that some editors put before the line feed. */
size_t lines_without_return(const char *line, size_t n);
/* The length of a file as a message: without the end of its last line. */
size_t lines_message(const char *text, size_t n);

/* Peeks at the first byte: in a file by pread, in a pipe by tee(2), in a socket by MSG_PEEK. Blocks until there is one.
 * *first: 0 at the end, and for other descriptors such as a terminal. */
int lines_peek(struct err *e, unsigned char *first, int fd, const char *name);

#endif
