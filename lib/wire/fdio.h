/* Private to lib/wire: blocking reads and writes on any fd, also a non-blocking one. */
#ifndef WIRE_FDIO_H
#define WIRE_FDIO_H

#include <errno.h>
#include <poll.h>
#include <stdbool.h>

/* After a failed read or write: true: retry; waits for `events` after EAGAIN. False: the error is permanent. */
static inline bool fd_again(int fd, short events)
{
    if (errno == EINTR)
        return true;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
        return false;
    struct pollfd p = {.fd = fd, .events = events};
    return poll(&p, 1, -1) >= 0 || errno == EINTR;
}

#endif
