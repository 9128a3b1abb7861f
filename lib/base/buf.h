/*
 * A queue of bytes, for what is received or sent in pieces: appended at the end, taken from the front. A zeroed
 * `struct buf` is empty. The bytes in the queue are p[at … n).
 *
 *     if (!buf_reserve(&b, READ_BYTES))
 *         return err_nomem(...);
 *     b.n += recv(sock, b.p + b.n, READ_BYTES, 0);
 *     buf_take(&b, parse(buf_front(&b), buf_left(&b)));
 *
 * The owner frees p with free().
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUF_KEEP_BYTES ((size_t)1 << 20) /* memory over this is freed as soon as the queue is empty */

struct buf {
    uint8_t *p;
    size_t at, n, cap;
};

static inline size_t buf_left(const struct buf *b)
{
    return b->n - b->at;
}

static inline const uint8_t *buf_front(const struct buf *b) /* NULL: it has no memory, and no bytes */
{
    return b->p ? b->p + b->at : NULL;
}

/* Makes room for n bytes at p + b->n, after the front that was taken is reclaimed. The bytes may move. False: no
 * memory, and nothing has changed. */
bool buf_reserve(struct buf *b, size_t n);
/* Takes n bytes, at most buf_left, from the front. With 0, frees the memory of an empty queue all the same. */
void buf_take(struct buf *b, size_t n);

#endif
