/*
 * Listening sockets for the HTTP server. A supervisor binds them before it starts the server, so that an address in use
 * is reported at once, and keeps them open when it restarts the server.
 */
#ifndef HTTP_LISTEN_H
#define HTTP_LISTEN_H

#include "err/err.h"

#define HTTP_NAME_BYTES 160

struct http_socket {
    int fd;                     /* listening, non-blocking, close-on-exec; owned by the caller */
    char name[HTTP_NAME_BYTES]; /* "127.0.0.1:8000", "[::1]:8000", "unix:PATH"; the actual port if 0 was requested */
    char path[108];             /* of a Unix socket, which the caller unlinks at the end; "" otherwise */
};

/*
 * Binds HOST:PORT, [V6]:PORT, :PORT (all addresses), PORT (loopback) or unix:PATH. Port 0 chooses a free port. A stale
 * Unix socket, on which no process listens, is replaced. May block while it resolves a host name. ERR_NO: the address
 * is in use (the text names it). ERR_USAGE: not a valid address. On failure out->fd is -1.
 */
int http_bind(struct err *e, struct http_socket *out, const char *address);
/* The name of a listening socket, as in struct http_socket. */
void http_name_of(char out[HTTP_NAME_BYTES], int fd);

#endif
