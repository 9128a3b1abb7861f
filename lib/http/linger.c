/* Lingering close. Closing a socket with unread input sends a reset, which can destroy a response that the client has
 * not read yet (above all 413). So a duplicate of the descriptor is read, and its input discarded, for LINGER_NS. */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/http_impl.h"

#define READS 16 /* reads a step of each, so that a fast sender delays nobody */

void linger_add(struct http *h, int fd)
{
    int own = h->closing || h->n_linger == LINGERS_MAX ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    struct epoll_event v = {.events = EPOLLIN};
    if (own < 0)
        return;
    shutdown(own, SHUT_WR); /* sends what is queued, then FIN */
    if (epoll_ctl(h->epoll, EPOLL_CTL_ADD, own, &v)) {
        close(own);
        return;
    }
    h->linger[h->n_linger].fd = own;
    h->linger[h->n_linger++].end_ns = time_now_ns() + LINGER_NS;
}

static bool has_ended(int fd)
{
    static char waste[65536];
    ssize_t n = 1;
    for (int i = 0; i < READS && n > 0; i++) {
        n = recv(fd, waste, sizeof waste, MSG_DONTWAIT);
        if (n < 0)
            return errno != EAGAIN && errno != EINTR;
    }
    return n == 0;
}

void linger_step(struct http *h, uint64_t now)
{
    for (size_t i = 0; i < h->n_linger;) {
        if (now < h->linger[i].end_ns && !has_ended(h->linger[i].fd)) {
            i++;
            continue;
        }
        close(h->linger[i].fd);
        h->linger[i] = h->linger[--h->n_linger];
    }
}

uint64_t linger_next_ns(const struct http *h)
{
    uint64_t at = UINT64_MAX;
    for (size_t i = 0; i < h->n_linger; i++)
        at = h->linger[i].end_ns < at ? h->linger[i].end_ns : at;
    return at;
}

void linger_end(struct http *h)
{
    while (h->n_linger)
        close(h->linger[--h->n_linger].fd);
}
