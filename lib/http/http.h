/*
 * An HTTP/1.1 server on libmicrohttpd, of which nothing is seen outside lib/http. One thread: whoever polls http_fd and
 * calls http_step. It knows nothing of models; a request is given out when its body has come, and answered at once,
 * later, or piece by piece.
 *
 * A client that has gone is noticed while nothing is sent too, within 100 ms: a reset or a close counts, the end of
 * what it sends (half-close) does not by itself. The two are told apart by a few bytes that its kernel answers: of an
 * answer that has begun as http_begin says, before that an interim answer (100), which HTTP/1.1 lets a server send at
 * any time. Over TLS and for HTTP/1.0 there is none, so before its answer begins a half-closed client counts as gone.
 * One that reads slowly keeps nobody waiting: what it has not read is kept here, up to a limit.
 *
 * A request that two servers could read in two ways (RFC 9112: more than one length of its body, a space in front of a
 * colon, no Host …) is refused by opts.fail and is the last of its connection: nothing behind it is read as a request.
 * What libmicrohttpd refuses by itself it answers with pages of its own, closes too, and lets nobody shape: no request
 * line (400), another version (505), too long a line or head (414, 431), a header without a colon or with a NUL in its
 * name (400), and chunks that are none (400, 413).
 */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

struct http;
struct http_request; /* lives from opts.request to the end of its answer, or to opts.gone */

struct http_opts {
    uint64_t
        body_bytes_max; /* 0: 32 MiB; beyond: opts.fail with 413, before the body is read where its length is said */
    uint64_t queued_bytes_max; /* of an answer that its client does not read, 0: 64 MiB; beyond it counts as gone */
    uint32_t connections_max;  /* 0: 4096; beyond: 503 with Retry-After and an end, not a hang */
    /* A connection without a request, or in the middle of one, is closed after this, one that takes nothing of a long
     * answer after five times as long; 0: 60 */
    uint32_t idle_s;
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS. Read again at http_reload */
    const char *origins; /* CORS: "*", or origins separated by commas; NULL: no header of it, OPTIONS is 405 */
    /* A whole request. It must be answered in the end by http_reply, or by http_begin … http_end. */
    void (*request)(void *arg, struct http_request *r);
    /* The request cannot be given out: status (400, 413, 431, 501, 503) and why; to be answered by http_reply at once.
     * Of some neither method nor path is known. */
    void (*fail)(void *arg, struct http_request *r, int status, const char *text);
    /* The client of a request that is not answered to its end has gone; r is no more after this returns. */
    void (*gone)(void *arg, struct http_request *r);
    /* r is no more after this, whatever its end: its answer was given whole (status), or it is gone (0). Called by
     * http_reply, http_end and after `gone`: what http_set keeps is freed here. */
    void (*over)(void *arg, struct http_request *r, int status);
    void (*say)(void *arg, const char *text); /* what a person should know; may be NULL */
    void *arg;
};

int http_open(struct err *e, struct http **out, const struct http_opts *o);
void http_close(struct http *h); /* what is not answered is cut off; opts.gone is called for each */

/* Listens at an address, with the errors of http_bind (http/listen.h). `surface` is what http_surface says of its
 * requests. */
int http_listen(struct err *e, struct http *h, const char *address, int surface);
int http_adopt(struct err *e, struct http *h, int fd, int surface); /* a listening socket of a service manager; owned */
const char *http_address(const struct http *h, size_t i); /* of the i-th listener, "127.0.0.1:8000"; NULL: none */
int http_address_surface(const struct http *h, size_t i);
/* No new connections, no next request on those that are there: idle ones are closed. For draining. */
void http_stop(struct http *h);
int http_reload(struct err *e, struct http *h); /* the TLS files again; on failure the old ones stay */
uint32_t http_connections(const struct http *h);
/* Answers that were given whole and have not left yet, of clients that took something of them within stall_ns of the
 * last calls. For draining; called now and then. */
uint32_t http_leaving(struct http *h, uint64_t stall_ns);

int http_fd(const struct http *h);            /* readable: http_step has something to do */
uint64_t http_next_ms(const struct http *h);  /* … or when this has passed; UINT64_MAX: never */
int http_step(struct err *e, struct http *h); /* does not wait; sends what was written since */

/* ---- a request; what is returned is borrowed for its life ---- */

const char *http_method(const struct http_request *r); /* "GET" */
const char *http_path(const struct http_request *r);   /* without host and query, percent-decoded */
int http_surface(const struct http_request *r);
const char *http_header(const struct http_request *r, const char *name); /* of any case; NULL: none */
const char *http_body(const struct http_request *r, size_t *n);          /* NUL-terminated */
const char *http_peer(const struct http_request *r);                     /* "127.0.0.1", or "unix" */
uint64_t http_arrived_ns(const struct http_request *r);                  /* CLOCK_MONOTONIC: its first line had come */
void http_set(struct http_request *r, void *state);                      /* of the caller */
void *http_get(const struct http_request *r);

/* Before http_reply or http_begin; copied. */
void http_add_header(struct http_request *r, const char *name, const char *value);
/* The whole answer; body is copied. r is no more. HEAD: the headers of it. */
void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t n);
/* An answer in pieces: headers leave with the first http_step. The content type says what an idle probe may be: for
 * text/event-stream a comment line, for application/x-ndjson and JSON a space before a value. */
void http_begin(struct http_request *r, int status, const char *type);
void http_write(struct http_request *r, const void *p, size_t n); /* copied; whole events, so that none is cut by a
                                                                     packet where it can be helped */
void http_end(struct http_request *r);                            /* r is no more; what is queued still leaves */
size_t http_queued(const struct http_request *r);                 /* bytes that the client has not taken */

#endif
