/* Private to lib/link: addresses and paths of Unix sockets. */
#ifndef LINK_SOCKET_H
#define LINK_SOCKET_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "err/err.h"

/* "unix:PATH" as an address; ERR_USAGE. */
int socket_address(struct err *e, struct sockaddr_un *out, const char *url);
/* Makes a path free for bind: removes a stale socket file. *is_socket: the file is a socket, also if ERR_NO is
 * returned. ERR_NO: another program listens on it, or the file is not a socket. */
int socket_make_way(struct err *e, const char *path, bool *is_socket);

#endif
