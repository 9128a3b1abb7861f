#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

bool buf_reserve(struct buf *b, size_t n)
{
    if (b->at && b->at >= b->cap / 2) { /* not more bytes are moved than were taken */
        memmove(b->p, b->p + b->at, buf_left(b));
        b->n -= b->at;
        b->at = 0;
    }
    return vec_grow(&b->p, &b->cap, b->n + n, 1);
}

void buf_take(struct buf *b, size_t n)
{
    b->at += n;
    if (b->at < b->n)
        return;
    b->at = b->n = 0;
    if (b->cap <= BUF_KEEP_BYTES)
        return;
    free(b->p);
    *b = (struct buf){0};
}
