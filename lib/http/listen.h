/*
 * Listening sockets of the HTTP server, without the server: whoever starts the server in another process can bind them
 * before it, so that an address in use is known at once, and keep them when that process is replaced.
 */
#ifndef HTTP_LISTEN_H
#define HTTP_LISTEN_H

#include "err/err.h"

#define HTTP_NAME_BYTES 160

struct http_socket {
    int fd;                     /* listening, not blocking, close-on-exec; owned by the caller */
    char name[HTTP_NAME_BYTES]; /* "127.0.0.1:8000", "[::1]:8000", "unix:PATH"; of port 0 the port that it was given */
    char path[108];             /* of a Unix socket, to be removed by the caller in the end; "" */
};

/*
 * Binds HOST:PORT, [V6]:PORT, :PORT (all addresses), PORT (loopback) or unix:PATH; port 0: a free one. A Unix socket
 * that nobody listens on is replaced. It may wait for the resolution of a host name. ERR_NO: in use (the text names the
 * address). ERR_USAGE: not an address. On failure out->fd is -1.
 */
int http_bind(struct err *e, struct http_socket *out, const char *address);
/* The name of a listening socket, as in struct http_socket. */
void http_name_of(char out[HTTP_NAME_BYTES], int fd);

#endif
