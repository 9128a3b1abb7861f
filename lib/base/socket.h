/*
 * Unix sockets. socket_send and socket_recv are like send and recv with up to SOCKET_FDS descriptors beside the bytes
 * (SCM_RIGHTS), with errno, but never raise a signal.
 */
#ifndef BASE_SOCKET_H
#define BASE_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SOCKET_FDS 2

/* fd [SOCKET_FDS]: copies of them go beside the first byte; -1 from the first that is absent. NULL: none. */
ssize_t socket_send(int sock, const void *p, size_t n, const int *fd);
/* fd [SOCKET_FDS]: in, descriptors that the caller holds (-1: none); out, the first of those that were received with
 * the last message that had any. Those held before are then closed, as are all others that were received. */
ssize_t socket_recv(int sock, void *p, size_t n, int *fd);
void socket_fds_close(int *fd); /* [SOCKET_FDS]: closes those that are not -1, and sets all to -1 */

/* Whether a program accepts stream connections at the path of a Unix socket. Does not block. */
bool socket_is_listening(const char *path);
/* The process that listens there; 0: none, or its queue of connections is full. Does not block. */
pid_t socket_listener(const char *path);

/* Whether a process of the user uid may use the socket at path: one of our user, of root, or of the owner of the
 * directory, who could replace the socket. */
bool socket_trusts(uid_t uid, const char *path);
/* The same for the process at the other end of an accepted connection. */
bool socket_trusts_peer(int sock, const char *path);
/* If root has bound a socket in a directory of another user, makes that user its owner, so that programs of the user
 * can connect. False: errno. */
bool socket_give_to_owner(const char *path);

#endif
