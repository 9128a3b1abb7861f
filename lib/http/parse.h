/*
 * Private to lib/http: the grammar of requests (RFC 9110, RFC 9112). Pure functions without input or output, for unit
 * tests and fuzzing. What two servers could parse differently is refused, so that no proxy takes for a body what is a
 * request here (request smuggling).
 */
#ifndef HTTP_PARSE_H
#define HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARSE_HEAD_BYTES_MAX 32768 /* request line and headers */
#define PARSE_HEADERS_MAX 128
#define PARSE_CHUNK_LINE_MAX 1024 /* a chunk size with its extensions */
#define PARSE_TRAILER_MAX 8192

struct parse_head {
    char *text;                /* the head, cut into strings; borrowed from the caller of parse_head */
    const char *method, *path; /* path: percent-decoded, without host and query; "" if unknown */
    const char *authority;     /* host and port of a target in absolute-form; NULL: another form */
    size_t n_authority;
    int minor; /* HTTP/1.minor */
    struct {
        uint16_t name, value; /* offsets in text */
    } header[PARSE_HEADERS_MAX];
    size_t n_header;
    bool chunked, has_length, keep_alive, expects_continue;
    uint64_t length; /* Content-Length; UINT64_MAX: it does not fit */
};

/* Length of the head at p, up to and including its empty line; 0: it is incomplete. Lines end with CR LF or LF. *from:
 * in and out, bytes that were searched by earlier calls with less of the same input; begin with 0. */
size_t parse_head_length(const char *p, size_t n, size_t *from);

/* Parses a head of n bytes, without empty lines before it. text: [n + 1], owned by the caller as long as the result is
 * used; it is changed. Returns 0, or the status that refuses the request (400, 431, 501, 505) and its reason. Also then
 * method, path and headers are valid strings. */
int parse_head(struct parse_head *h, char *text, size_t n, const char **why);
const char *parse_header(const struct parse_head *h, const char *name); /* case-insensitive; NULL: absent */

/* A chunked body (RFC 9112, 7.1). Zeroed at its begin. */
struct parse_chunks {
    enum {
        CHUNK_SIZE,
        CHUNK_EXTENSION,
        CHUNK_LINE_END,
        CHUNK_DATA,
        CHUNK_DATA_CR,
        CHUNK_DATA_LF,
        CHUNK_TRAILER,
        CHUNK_TRAILER_NAME,
        CHUNK_TRAILER_VALUE,
        CHUNK_TRAILER_LF,
        CHUNK_LAST_LF,
        CHUNK_END
    } state;
    uint64_t left;     /* bytes of the chunk that follow; UINT64_MAX: its size does not fit */
    size_t n_line;     /* bytes of the current line, or of the trailer */
    bool digit, blank; /* in CHUNK_SIZE: a digit, then a blank was read */
};
/* Consumes input until a piece of data, the end or the end of the input. Returns the number of consumed bytes.
 * *data, *n_data: a piece of the body within p; 0: none. *why: NULL, or the reason of 400. The caller checks `left`
 * after each call: more than its limit is too large. c->state is CHUNK_END after the last byte of the body. */
size_t parse_chunks(struct parse_chunks *c, const char *p, size_t n, const char **data, size_t *n_data,
                    const char **why);

#endif
