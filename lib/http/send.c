/* Output of a connection: a queue of bytes, then the parts of a long body. */
#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "http/http_impl.h"

#define KEEP_BYTES 16384 /* an empty queue with more memory is freed */

size_t send_left(const struct conn *k)
{
    size_t n = buf_left(&k->out);
    for (size_t i = k->at_part; i < k->n_part; i++)
        n += k->part[i].n;
    return n - k->at_byte;
}

void send_count(struct conn *k)
{
    uint64_t n = send_left(k);
    k->h->n_queued += n - k->n_queued;
    k->n_queued = n;
}

void send_bytes(struct conn *k, const void *p, size_t n)
{
    if (k->dead || !n)
        return;
    if (!k->n_queued)
        k->moved_ns = time_now_ns();
    if (!buf_reserve(&k->out, n)) {
        conn_kill(k);
        return;
    }
    memcpy(k->out.p + k->out.n, p, n);
    k->out.n += n;
    send_count(k);
    conn_due(k);
}

static ssize_t to_kernel(struct conn *k, const void *p, size_t n)
{
    if (k->tls)
        return tls_send(k->tls, p, n);
    ssize_t sent = send(k->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent >= 0 ? sent : errno == EAGAIN || errno == EINTR ? -1 : -2;
}

/* The next bytes to send; *n 0: none. */
static const void *front(const struct conn *k, size_t *n)
{
    *n = buf_left(&k->out);
    if (*n)
        return buf_front(&k->out);
    if (k->at_part == k->n_part)
        return NULL;
    *n = k->part[k->at_part].n - k->at_byte;
    return k->part[k->at_part].p + k->at_byte;
}

static void sent(struct conn *k, size_t n)
{
    if (buf_left(&k->out)) {
        buf_take(&k->out, n);
        if (!buf_left(&k->out) && k->out.cap > KEEP_BYTES) {
            free(k->out.p);
            k->out = (struct buf){0};
        }
        return;
    }
    k->at_byte += n;
    if (k->at_byte < k->part[k->at_part].n)
        return;
    str_free(&k->part[k->at_part++]);
    k->at_byte = 0;
    if (k->at_part < k->n_part)
        return;
    free(k->part);
    k->part = NULL;
    k->n_part = k->at_part = 0;
}

bool send_queued(struct conn *k)
{
    ssize_t n = 1;
    size_t total = 0, left;
    const void *p;
    k->blocked = false;
    while ((p = front(k, &left)) && total < TURN_BYTES) {
        n = to_kernel(k, p, left < TURN_BYTES ? left : TURN_BYTES);
        if (n <= 0)
            break;
        sent(k, (size_t)n);
        total += (size_t)n;
    }
    k->blocked = p != NULL;
    if (k->blocked && total && ioctl(k->fd, SIOCOUTQ, &k->kernel_unsent))
        k->kernel_unsent = 0;
    if (total) {
        k->moved_ns = time_now_ns();
        send_count(k);
    }
    return n > 0 || n == -1;
}

uint64_t send_unsent(const struct conn *k)
{
    int n = 0;
    if (ioctl(k->fd, SIOCOUTQ, &n))
        n = 0;
    return (uint64_t)send_left(k) << 32 | (uint32_t)n;
}
