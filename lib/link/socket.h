/* Private to lib/link: addresses and paths of Unix sockets. */
#ifndef LINK_SOCKET_H
#define LINK_SOCKET_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "err/err.h"

/* "unix:PATH" as an address; ERR_USAGE. */
int socket_address(struct err *e, struct sockaddr_un *out, const char *url);
/* The path can be bound: a socket file that nobody listens on (*stale) is removed. ERR_NO: another program listens
 * there, or the file is not a socket. */
int socket_make_way(struct err *e, const char *path, bool *stale);

#endif
