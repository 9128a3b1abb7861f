/*
 * An HTTP/1.1 server, with TLS by GnuTLS. Single-threaded: the caller polls http_fd and calls http_step. It knows
 * nothing of models. A request is delivered to the caller when its whole body has been received; the caller responds at
 * once, later, or in pieces. opts.head can refuse it before its body is read.
 *
 * Disconnects are detected within 100 ms, also while nothing is sent. A reset or a close counts as a disconnect, the
 * end of the client's stream (half-close) alone does not. To distinguish a half-closed client from a closed one, the
 * server sends a few bytes, to which the client's kernel reacts: within a streamed response the bytes that http_begin
 * describes, before the response an interim response (100), which HTTP/1.1 allows at any time. Over TLS and for
 * HTTP/1.0 there is no such probe, so a client that half-closes before its response begins counts as disconnected. A
 * client that reads slowly delays nobody: unread output is queued here, up to a limit.
 *
 * A request that two servers could parse differently (RFC 9112: more than one body length, a space before a colon, no
 * Host …) or that exceeds a limit is refused through opts.fail and is the last of its connection: later bytes are not
 * parsed as a request. Every response is formatted by the caller.
 */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"
#include "err/err.h"

struct http;
struct http_request; /* valid from opts.request until opts.finished returns */

struct http_opts {
    /* 0: 32 MiB. A larger body: opts.fail with 413; if Content-Length is given, before the body is read. */
    uint64_t body_bytes_max;
    /* Bodies of all requests together, from their first byte until http_take_body or the end of the request, 0: 512
     * MiB. A request that would exceed it: opts.fail with 503; if Content-Length is given, before the body is read. */
    uint64_t bodies_bytes_max;
    /* Output that the client has not read, 0: 64 MiB. With more the client is disconnected. */
    uint64_t queued_bytes_max;
    /* The same of all connections together, 0: 1 GiB. A client is disconnected if it has more than 1 MiB of it and all
     * together have more than the limit. */
    uint64_t outputs_bytes_max;
    /* 0: 4096. A new connection beyond the limit replaces the one that has been without a complete request for the
     * longest time; if all have one, opts.fail with 503 for the new one. */
    uint32_t connections_max;
    /* The same limit for each address of clients (IPv6: for each /64 network); Unix sockets have none. 0: three
     * quarters of connections_max. */
    uint32_t address_connections_max;
    /* Timeout in seconds of a connection between two requests, of a body of which nothing more arrives, and, five times
     * as long, of a client that reads nothing of a response. 0: 60. */
    uint32_t idle_s;
    /* Timeout of a TLS handshake and of a request head, in seconds. A body may take so long and a second more for each
     * HTTP_BODY_RATE bytes received. An incomplete request: opts.fail with 408. 0: 15, or idle_s if that is less. */
    uint32_t head_s;
    /* Seconds after which a comment is sent in a response with text/event-stream to which nothing was written. 0: never
     */
    double keepalive_s;
    const char *tls_cert, *tls_key; /* PEM files; NULL: no TLS. http_reload reads them again */
    const char *origins; /* CORS: "*", or origins separated by commas; NULL: no CORS headers, and OPTIONS is delivered
                            like any other method */
    /* NULL: no checks. Otherwise pages of other sites in a user's browser are kept out: opts.fail with 403 for a
     * request with an Origin that is not of this server, of the local host, of an application or in `origins`; and, if
     * it came to a loopback address, for a Host that is no literal address, not localhost and not in this list of
     * names, separated by commas ("": none, "*": any). */
    const char *hosts;
    /* A complete head, whose request would be accepted. May respond with http_reply, e.g. 401: then the body is not
     * read, the connection is closed, and `finished` is called. Otherwise it must attach nothing. May be NULL. */
    void (*head)(void *arg, struct http_request *r);
    /* A complete request. The caller must respond with http_reply, or with http_begin … http_end. */
    void (*request)(void *arg, struct http_request *r);
    /* The request is refused with this status (400, 403, 408, 413, 414, 431, 501, 503, 505) and reason. The callback
     * must call http_reply before it returns. Method and path may be unknown (""). */
    void (*fail)(void *arg, struct http_request *r, int status, const char *text);
    /* The client disconnected before the response was complete. `finished` follows; the caller must not respond any
     * more. */
    void (*disconnected)(void *arg, struct http_request *r);
    /* Final callback of a request; r is invalid after it returns. status: of the completely queued response; 0: the
     * client disconnected. Called from http_reply, http_end and after `disconnected`. The caller frees here what it
     * attached with http_set. May be NULL. */
    void (*finished)(void *arg, struct http_request *r, int status);
    /* At most a line a minute about connections that are refused. May be NULL. */
    void (*log)(void *arg, const char *text);

    void *arg;
};

#define HTTP_BODY_RATE 4096 /* bytes a second; see head_s */

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
/* For a restart: stops accepting at adopted sockets, so that later connections wait in their backlogs for a successor.
 * Requests on connections accepted there before are still delivered; each is the last of its connection. Closes those
 * that are idle. */
void http_leave(struct http *h);
uint32_t http_arriving(const struct http *h);    /* after http_leave: connections whose request is incomplete */
bool http_is_last(const struct http_request *r); /* its connection is closed after its response (http_leave) */
/* For a graceful shutdown: accepts no new connections and no further request on existing ones; closes idle ones. */
void http_stop(struct http *h);
int http_reload(struct err *e,
                struct http *h); /* reads the TLS files again; on failure the old certificate stays in use */
/* Whether http_open would accept these files: for a supervisor that starts the server later. */
int http_check_tls(struct err *e, const char *cert, const char *key);
uint32_t http_connections(const struct http *h);
struct http_stats {
    uint32_t connections, idle;        /* open ones; those of them without a complete request head */
    uint64_t body_bytes, queued_bytes; /* of bodies_bytes_max, of outputs_bytes_max */
    uint64_t replaced, refused; /* connections closed for a new one, refused for a limit or for lack of descriptors */
    uint64_t timed_out;         /* requests that were incomplete for too long, and clients that read nothing */
};
void http_stats(const struct http *h, struct http_stats *out);
/* For a graceful shutdown: the number of complete responses that are not fully sent and whose clients have read
 * something within the last stall_ns. Progress is observed by these calls only, so call it repeatedly. */
uint32_t http_unsent(struct http *h, uint64_t stall_ns);

int http_fd(const struct http *h); /* poll for reading: readable when http_step has work */
uint64_t
http_next_ms(const struct http *h); /* milliseconds until http_step has a timeout to process; UINT64_MAX: none */
int http_step(struct err *e, struct http *h); /* does not block; sends what was queued since the last call */

/* ---- a request; returned pointers are borrowed for its lifetime ---- */

const char *http_method(const struct http_request *r); /* "GET" */
const char *http_path(const struct http_request *r);   /* without host and query, percent-decoded */
int http_dialect(const struct http_request *r);
const char *http_header(const struct http_request *r, const char *name); /* case-insensitive; NULL: absent */
const char *http_body(const struct http_request *r, size_t *n);          /* NUL-terminated */
/* Transfers the body to the caller, who frees it. It no longer counts towards bodies_bytes_max. NULL: it is empty, or
 * was taken before. */
char *http_take_body(struct http_request *r, size_t *n);
const char *http_peer(const struct http_request *r);    /* "127.0.0.1", or "unix" */
uint64_t http_arrived_ns(const struct http_request *r); /* CLOCK_MONOTONIC, when the request line was received */
void http_set(struct http_request *r, void *user);      /* the caller's pointer, for http_get */
void *http_get(const struct http_request *r);

/* Before http_reply or http_begin; both strings are copied. Headers after the 16th are ignored. */
void http_add_header(struct http_request *r, const char *name, const char *value);
/* The complete response; body is copied. For HEAD only the headers are sent. r is invalid afterwards. */
void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t n);
/* The same for a body in pieces, whose memory is taken over and not copied: part[0 … n) are empty afterwards. */
void http_reply_parts(struct http_request *r, int status, const char *type, struct str *part, size_t n);
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
