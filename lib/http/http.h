/*
 * An HTTP/1.1 server on libmicrohttpd; nothing of that library is visible outside lib/http. Single-threaded: the caller
 * polls http_fd and calls http_step. It knows nothing of models. A request is delivered to the caller when its whole
 * body has been received; the caller responds at once, later, or in pieces.
 *
 * Disconnects are detected within 100 ms, also while nothing is sent. A reset or a close counts as a disconnect, the
 * end of the client's stream (half-close) alone does not. To distinguish a half-closed client from a closed one, the
 * server sends a few bytes, to which the client's kernel reacts: within a streamed response the bytes that http_begin
 * describes, before the response an interim response (100), which HTTP/1.1 allows at any time. Over TLS and for
 * HTTP/1.0 there is no such probe, so a client that half-closes before its response begins counts as disconnected. A
 * client that reads slowly delays nobody: unread output is queued here, up to a limit.
 *
 * A request that two servers could parse differently (RFC 9112: more than one body length, a space before a colon, no
 * Host …) is refused through opts.fail and is the last of its connection: later bytes are not parsed as a request. Some
 * requests libmicrohttpd refuses by itself, with its own pages, and closes the connection: no request line (400), an
 * unsupported version (505), a line or head that is too long (414, 431), a header without a colon or with a NUL in its
 * name (400), and malformed chunks (400, 413).
 */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

struct http;
struct http_request; /* valid from opts.request until opts.finished returns */

struct http_opts {
    /* 0: 32 MiB. A larger body: opts.fail with 413; if Content-Length is given, before the body is read. */
    uint64_t body_bytes_max;
    /* Output that the client has not read, 0: 64 MiB. With more the client is disconnected. */
    uint64_t queued_bytes_max;
    /* 0: 4096. A request on a connection beyond the limit: opts.fail with 503, then the connection is closed. */
    uint32_t connections_max;
    /* Timeout in seconds of a connection without a request or with an incomplete one; five times as long if the client
     * reads nothing of a long response. A request must be complete within five times this. 0: 60 */
    uint32_t idle_s;
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS. http_reload reads them again */
    const char *origins; /* CORS: "*", or origins separated by commas; NULL: no CORS headers, and OPTIONS is delivered
                            like any other method */
    /* A complete request. The caller must respond with http_reply, or with http_begin … http_end. */
    void (*request)(void *arg, struct http_request *r);
    /* The request is refused with this status (400, 413, 431, 501, 503) and reason. The callback must call http_reply
     * before it returns. Method and path may be unknown (""). */
    void (*fail)(void *arg, struct http_request *r, int status, const char *text);
    /* The client disconnected before the response was complete. `finished` follows; the caller must not respond any
     * more. */
    void (*disconnected)(void *arg, struct http_request *r);
    /* Final callback of a request; r is invalid after it returns. status: of the completely queued response; 0: the
     * client disconnected. Called from http_reply, http_end and after `disconnected`. The caller frees here what it
     * attached with http_set. May be NULL. */
    void (*finished)(void *arg, struct http_request *r, int status);

    void *arg;
};

int http_open(struct err *e, struct http **out, const struct http_opts *o);
void http_close(struct http *h); /* aborts unfinished requests; opts.disconnected is called for each */

/* Listens at an address; errors as of http_bind (http/listen.h). `dialect` is a number of the caller that http_dialect
 * returns for requests to this address. */
int http_listen(struct err *e, struct http *h, const char *address, int dialect);
int http_adopt(struct err *e, struct http *h, int fd,
               int dialect); /* fd: a listening socket, e.g. of a service manager; owned, on failure too */
const char *http_address(const struct http *h,
                         size_t i); /* of the i-th listener, "127.0.0.1:8000"; NULL: there is none */
int http_address_dialect(const struct http *h, size_t i);
/* For a graceful shutdown: accepts no new connections and no further request on existing ones; closes idle ones. */
void http_stop(struct http *h);
int http_reload(struct err *e,
                struct http *h); /* reads the TLS files again; on failure the old certificate stays in use */
uint32_t http_connections(const struct http *h);
/* For a graceful shutdown: the number of complete responses that are not fully sent and whose clients have read
 * something within the last stall_ns. Progress is observed by these calls only, so call it repeatedly. */
uint32_t http_unsent(struct http *h, uint64_t stall_ns);

int http_fd(const struct http *h);            /* poll for reading: readable when http_step has work */
uint64_t http_next_ms(const struct http *h);  /* milliseconds after which http_step has work anyhow; UINT64_MAX: none */
int http_step(struct err *e, struct http *h); /* does not block; sends what was queued since the last call */

/* ---- a request; returned pointers are borrowed for its lifetime ---- */

const char *http_method(const struct http_request *r); /* "GET" */
const char *http_path(const struct http_request *r);   /* without host and query, percent-decoded */
int http_dialect(const struct http_request *r);
const char *http_header(const struct http_request *r, const char *name); /* case-insensitive; NULL: absent */
const char *http_body(const struct http_request *r, size_t *n);          /* NUL-terminated */
const char *http_peer(const struct http_request *r);                     /* "127.0.0.1", or "unix" */
uint64_t http_arrived_ns(const struct http_request *r); /* CLOCK_MONOTONIC, when the request line was received */
void http_set(struct http_request *r, void *user);      /* the caller's pointer, for http_get */
void *http_get(const struct http_request *r);

/* Before http_reply or http_begin; both strings are copied. Headers after the 16th are ignored. */
void http_add_header(struct http_request *r, const char *name, const char *value);
/* The complete response; body is copied. For HEAD only the headers are sent. r is invalid afterwards. */
void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t n);
/* Begins a streamed response; the headers are sent by the next http_step. The content type determines the probe for
 * half-closed clients: a comment line for text/event-stream, a space before a value for application/x-ndjson and JSON,
 * else none. */
void http_begin(struct http_request *r, int status, const char *type);
/* Queues a copy. Pass whole events, so that few are split over packets. If more than queued_bytes_max are queued, the
 * client is disconnected. */
void http_write(struct http_request *r, const void *p, size_t n);
void http_end(struct http_request *r);            /* r is invalid afterwards; queued bytes are still sent */
size_t http_queued(const struct http_request *r); /* bytes of a streamed response not yet passed to the socket */

#endif
