/* Lines of a file descriptor, as they arrive, of up to ASK_LINE_BYTES_MAX bytes. */
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
    uint64_t number; /* of the line last given, from 1 */
    bool end, overlong;
};

/* *line: borrowed until the next call, without its line feed; NULL at the end. A line over the limit is given with n
 * beyond ASK_LINE_BYTES_MAX and no text that counts. A signal to stop counts as the end. */
int lines_next(struct err *e, struct lines *l, const char **line, size_t *n);
/* The same for requests in JSON: empty lines are passed over, and U+FEFF at the begin of the file. */
int lines_next_json(struct err *e, struct lines *l, const char **line, size_t *n);
/* Everything up to the end of the file; malloc'd. */
int lines_all(struct err *e, struct lines *l, char **out, size_t *n);
void lines_free(struct lines *l);

/* A line of some editors ends with a carriage return and a line feed; n counts what comes before the line feed. */
size_t lines_without_return(const char *line, size_t n);
/* A whole file as a message: the end of the last line is no part of what its writer says. */
size_t lines_message(const char *text, size_t n);

/* Looks at the first byte and leaves it there: in a file by its offset, in a pipe by tee(2), in a socket by a peek.
 * What is none of these, a terminal, is not looked at. *first is 0 there and at the end. Waits for the byte. */
int lines_peek(struct err *e, unsigned char *first, int fd, const char *name);

#endif
