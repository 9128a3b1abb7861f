/* Private to lib/link: Unix sockets, and descriptors beside bytes. */
#ifndef LINK_SOCKET_H
#define LINK_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include "err/err.h"

/* "unix:PATH" as an address; ERR_USAGE. */
int socket_address(struct err *e, struct sockaddr_un *out, const char *url);
/* The path can be bound: a socket file that nobody listens on (*stale) is removed. ERR_NO: another program listens
 * there, or the file is not a socket. */
int socket_make_way(struct err *e, const char *path, bool *stale);
/* Like send and recv, never raising a signal. fd -1: none; *fd in: what is held (-1: none), out: one that came, the one
 * held before being closed. */
ssize_t socket_send(int sock, const void *p, size_t n, int fd);
ssize_t socket_recv(int sock, void *p, size_t n, int *fd);

#endif
