/* Messages: frames one behind the other. */
#include <stdlib.h>
#include <string.h>

#include "link/ask.h"
#include "link/socket.h"

int link_msg_add(struct err *e, struct link_msg *m, const struct wire_frame *f)
{
    size_t before = m->n;
    if (f->kind == WIRE_BLK)
        return err_set(e, ERR_PROTO, "a blk frame goes into no message");
    int rc = wire_encode_add(e, &m->p, &m->n, &m->cap, f);
    if (!rc && m->n > LINK_MESSAGE_BYTES_MAX) {
        rc = err_set(e, ERR_PROTO, "a message of %zu bytes, the limit is %u", m->n, LINK_MESSAGE_BYTES_MAX);
        m->n = before;
    }
    if (!rc)
        m->n_frame++;
    return rc;
}

void link_msg_clear(struct link_msg *m)
{
    m->n = 0;
    m->n_frame = 0;
}

void link_msg_free(struct link_msg *m)
{
    free(m->p);
    memset(m, 0, sizeof *m);
}

bool link_msg_next(struct err *e, struct wire_frame *f, struct wire_arena *a, const uint8_t **p, size_t *n)
{
    uint64_t size;
    e->code = 0;
    if (!*n)
        return false;
    if (frame_size(e, &size, *p, *n, LINK_MESSAGE_BYTES_MAX))
        return false;
    if (!size || size > *n) {
        err_set(e, ERR_PROTO, "a frame of %llu bytes in the last %zu of a message", (unsigned long long)size, *n);
        return false;
    }
    if (wire_decode(e, f, a, *p + FRAME_PREFIX, (size_t)size - FRAME_PREFIX))
        return false;
    if (f->kind == WIRE_BLK) {
        err_set(e, ERR_PROTO, "a blk frame in a message");
        return false;
    }
    *p += size;
    *n -= (size_t)size;
    return true;
}
