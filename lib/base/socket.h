/*
 * Unix sockets. socket_send and socket_recv are like send and recv with a descriptor beside the bytes (SCM_RIGHTS),
 * with errno, but never raise a signal.
 */
#ifndef BASE_SOCKET_H
#define BASE_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* fd: a copy of it goes beside the first byte; -1: none. */
ssize_t socket_send(int sock, const void *p, size_t n, int fd);
/* *fd: in, a descriptor that the caller holds (-1: none); out, the one that was received last, if any. The one held
 * before is then closed, as are all that came before the last. */
ssize_t socket_recv(int sock, void *p, size_t n, int *fd);

/* Whether a program accepts stream connections at the path of a Unix socket. Does not block. */
bool socket_is_listening(const char *path);

#endif
